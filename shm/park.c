/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm/park.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ring/point.h"
#include "shm/os.h"
#include "shm/process.h"
#include "shm/uring.h"

#define MOST_MOVES 8u /* from thread to thread: each costs some 100 us */

struct rc_park {
  struct rc_uring *uring;
  int fd; /* the eventfd */
  uint32_t forks, moves;
};

static void take_down(struct rc_park *park) {
  if (park->uring) rc_uring_close(park->uring);
  if (park->fd >= 0) close(park->fd);
  park->uring = NULL;
  park->fd = -1;
}

static int set_up(struct rc_park *park) {
  park->forks = rc_fork_count();
  park->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int result = park->fd < 0 ? -errno : rc_uring_open(park->fd, &park->uring);
  if (result != 0) take_down(park);
  return result;
}

int rc_park_open(struct rc_park **out) {
  struct rc_park *park = calloc(1, sizeof *park);
  if (!park) return -ENOMEM;
  int result = set_up(park);
  if (result != 0)
    free(park);
  else
    *out = park;
  return result;
}

void rc_park_close(struct rc_park *park) {
  if (!park) return;
  take_down(park);
  free(park);
}

/* The eventfd is lowered once the end of an earlier wait is taken in, which raises it too, and before the new wait: a
 * wake that was meant for an earlier one may end it at once, without the word having changed, and is not told twice. */
static int arm(struct rc_park *park, _Atomic uint32_t *word, uint32_t value) {
  eventfd_t count;
  int result = rc_uring_cancel(park->uring);
  if (result < 0) return result;
  (void)!eventfd_read(park->fd, &count);
  return rc_uring_wait(park->uring, word, value);
}

/* 1: it need not sleep. A child must not touch the parent's ring: its memory is shared with it. */
static int arm_anywhere(struct rc_park *park, _Atomic uint32_t *word, uint32_t value) {
  int result = park->uring && park->forks == rc_fork_count() ? arm(park, word, value) : -EEXIST;
  if (result != -EEXIST) return result;
  take_down(park); /* it is another thread's, or was the parent's */
  if (park->moves++ == MOST_MOVES) return -ENOTSUP;
  result = set_up(park);
  return result != 0 ? result : arm(park, word, value);
}

int rc_park_sleep(struct rc_park *park, _Atomic uint32_t *word, uint32_t value, int pidfd, int64_t timeout_ns) {
  int result = arm_anywhere(park, word, value);
  if (result != 0) return result < 0 ? -ENOTSUP : 0;
  RC_POINT(PARKED);
  struct pollfd files[2] = {{.fd = park->fd, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}}; /* poll skips a -1 */
  int ready = rc_os.poll(files, 2, timeout_ns);
  if (ready == -EINTR) return -EINTR;
  if (ready < 0 || (files[0].revents & POLLNVAL)) return -ENOTSUP;
  return ready == 0 ? -ETIMEDOUT : files[1].revents != 0 ? RC_PARK_ENDED : 0;
}
