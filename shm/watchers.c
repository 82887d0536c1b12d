/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/watchers.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "shm/process.h"
#include "shm/wait.h"

struct watched {
  uint64_t tag;
  struct rc_watch process;
  bool polled; /* its pidfd is in the epoll */
};

struct rc_watchers {
  int epoll, timer;
  uint32_t count, unpolled; /* how many are watched by /proc */
  bool raised;
  struct watched watched[];
};

static int add(const struct rc_watchers *watchers, int fd) {
  struct epoll_event event = {.events = EPOLLIN};
  return epoll_ctl(watchers->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

int rc_watchers_open(uint32_t count, struct rc_watchers **out) {
  struct rc_watchers *watchers = calloc(1, sizeof *watchers + count * sizeof *watchers->watched);
  if (!watchers) return -ENOMEM;
  watchers->count = count;
  watchers->epoll = epoll_create1(EPOLL_CLOEXEC);
  int result = watchers->epoll < 0 ? -errno : 0;
  watchers->timer = result == 0 ? timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK) : -1;
  if (result == 0 && watchers->timer < 0) result = -errno;
  if (result == 0) result = add(watchers, watchers->timer);
  if (result != 0)
    rc_watchers_close(watchers);
  else
    *out = watchers;
  return result;
}

void rc_watchers_close(struct rc_watchers *watchers) {
  if (!watchers) return;
  for (uint32_t i = 0; i < watchers->count; i++)
    if (watchers->watched[i].tag != 0) rc_watch_close(&watchers->watched[i].process);
  if (watchers->timer >= 0) close(watchers->timer);
  if (watchers->epoll >= 0) close(watchers->epoll);
  free(watchers);
}

int rc_watchers_fd(const struct rc_watchers *watchers) { return watchers->epoll; }

uint64_t rc_watchers_tag(const struct rc_watchers *watchers, uint32_t index) { return watchers->watched[index].tag; }

/* The first tick comes at once: one that is watched from now on may have ended already.
 * Setting it forgets the last one. */
static void tick(const struct rc_watchers *watchers) {
  const struct itimerspec slices = {.it_value = {.tv_nsec = 1}, .it_interval = {.tv_nsec = RC_SLICE_NS}}, none = {0};
  timerfd_settime(watchers->timer, 0, watchers->unpolled != 0 || watchers->raised ? &slices : &none, NULL);
}

void rc_watchers_raise(struct rc_watchers *watchers, bool raised) {
  if (watchers->raised == raised) return;
  watchers->raised = raised;
  tick(watchers);
}

/* Taken out before it is closed: in a child made by fork it may be open still, and would go on to be told of. */
void rc_watchers_clear(struct rc_watchers *watchers, uint32_t index) {
  struct watched *one = &watchers->watched[index];
  if (one->tag == 0) return;
  if (one->polled) {
    epoll_ctl(watchers->epoll, EPOLL_CTL_DEL, one->process.fd, NULL);
  } else {
    watchers->unpolled--;
    tick(watchers);
  }
  rc_watch_close(&one->process);
  one->tag = 0;
}

void rc_watchers_set(struct rc_watchers *watchers, uint32_t index, uint64_t tag, int32_t pid, uint64_t start_bits,
                     uint64_t mask) {
  struct watched *one = &watchers->watched[index];
  rc_watchers_clear(watchers, index);
  one->tag = tag;
  rc_watch_init(&one->process, pid, start_bits, mask);
  int fd = rc_watch_fd(&one->process);
  one->polled = fd >= 0 && add(watchers, fd) == 0;
  if (one->polled) return;
  watchers->unpolled++;
  tick(watchers);
}

/* False: none has ended. If the epoll can't tell, each is asked. */
static bool may_have_ended(const struct rc_watchers *watchers) {
  struct epoll_event event;
  uint64_t ticks;
  if (watchers->unpolled != 0) (void)!read(watchers->timer, &ticks, sizeof ticks); /* not readable until the next */
  return epoll_wait(watchers->epoll, &event, 1, 0) != 0 || watchers->unpolled != 0;
}

bool rc_watchers_find_ended(struct rc_watchers *watchers, uint32_t *index) {
  if (!may_have_ended(watchers)) return false;
  for (uint32_t i = 0; i < watchers->count; i++) {
    struct watched *one = &watchers->watched[i];
    if (one->tag == 0 || rc_watch_is_alive(&one->process)) continue;
    *index = i;
    return true;
  }
  return false;
}
