/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm/poller.h"

#include <errno.h>

#include "shm/options.h"
#include "shm/os.h"

#if RINGCAST_HAVE_LIBURING

#include <liburing.h>
#include <stdlib.h>

/* From linux/io_uring.h and linux/futex.h of Linux 6.7; older headers lack these constants. */
#define OP_FUTEX_WAIT   51
#define FUTEX_SIZE_U32  0x02 /* FUTEX2_SIZE_U32; without FUTEX2_PRIVATE: across processes */
#define FUTEX_MATCH_ANY 0xffffffffu

#define ENTRIES 8u

/* The user data of an entry. Each wait has a new number, so that the completion of an earlier one
 * is not taken for the current one's. */
enum { NAME_CANCEL, NAME_FIRST_WAIT };

struct rc_uring {
  struct io_uring ring;
  struct rc_fd_id id;
  uint64_t wait; /* the name of the latest wait */
  bool waiting;
  int error;
};

static int check_operation(struct io_uring *ring) {
  struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
  if (!probe) return -EOPNOTSUPP;
  bool known = io_uring_opcode_supported(probe, OP_FUTEX_WAIT);
  io_uring_free_probe(probe);
  return known ? 0 : -EOPNOTSUPP;
}

/* liburing has made the descriptor and kept the number. A failure to move it has closed it. */
static int keep_fd(struct rc_uring *uring) {
  int fd = rc_fd_above_2(uring->ring.ring_fd);
  uring->ring.ring_fd = fd;
  uring->ring.enter_ring_fd = fd;
  rc_fd_identify(fd, &uring->id);
  return fd < 0 ? fd : 0;
}

int rc_uring_open(int event_fd, struct rc_uring **out) {
  if (rc_feature_disabled("io_uring")) return -ENOSYS;
  struct rc_uring *uring = calloc(1, sizeof *uring);
  if (!uring) return -ENOMEM;
  struct io_uring_params params = {0};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  int result = io_uring_queue_init_params(ENTRIES, &uring->ring, &params);
  if (result < 0) {
    free(uring);
    return result == -EINVAL ? -EOPNOTSUPP : result; /* flags that came with 6.1 */
  }
  result = keep_fd(uring);
  if (result == 0) result = check_operation(&uring->ring);
  if (result == 0) result = io_uring_register_eventfd(&uring->ring, event_fd);
  if (result < 0) {
    rc_uring_close(uring);
    return result;
  }
  uring->wait = NAME_FIRST_WAIT;
  *out = uring;
  return 0;
}

/* liburing closes the number: -1 where the number belongs to a file of the program by now. */
void rc_uring_close(struct rc_uring *uring) {
  if (!rc_fd_is(uring->ring.ring_fd, &uring->id)) {
    uring->ring.ring_fd = -1;
    uring->ring.enter_ring_fd = -1;
  }
  io_uring_queue_exit(&uring->ring);
  free(uring);
}

/* 0: woken. -EAGAIN: the word had another value. */
static void take_wait(struct rc_uring *uring, int result) {
  uring->waiting = false;
  if (result != 0 && result != -EAGAIN && result != -ECANCELED) uring->error = result;
}

/* Submits the new entries, runs the kernel's deferred work, and processes all completions. */
static int enter(struct rc_uring *uring) {
  int result = io_uring_submit_and_get_events(&uring->ring);
  if (result < 0) return result;
  struct io_uring_cqe *entry;
  while (io_uring_peek_cqe(&uring->ring, &entry) == 0) {
    if (io_uring_cqe_get_data64(entry) == uring->wait && uring->waiting)
      take_wait(uring, entry->res);
    io_uring_cqe_seen(&uring->ring, entry);
  }
  return uring->error;
}

int rc_uring_wait(struct rc_uring *uring, _Atomic uint32_t *word, uint32_t value) {
  struct io_uring_sqe *entry = io_uring_get_sqe(&uring->ring);
  if (!entry) return -EBUSY;
  io_uring_prep_rw(OP_FUTEX_WAIT, entry, FUTEX_SIZE_U32, (const void *)word, 0, value);
  entry->addr3 = FUTEX_MATCH_ANY;
  uring->wait++;
  io_uring_sqe_set_data64(entry, uring->wait);
  uring->waiting = true;
  return enter(uring);
}

int rc_uring_cancel(struct rc_uring *uring) {
  if (!uring->waiting) return uring->error;
  /* The wait has usually completed, and only the completion is left to process. */
  int result = enter(uring);
  if (result < 0 || !uring->waiting) return result;
  struct io_uring_sqe *entry = io_uring_get_sqe(&uring->ring);
  if (!entry) return -EBUSY;
  io_uring_prep_cancel64(entry, uring->wait, 0);
  io_uring_sqe_set_data64(entry, NAME_CANCEL);
  result = enter(uring);
  /* A wake at this moment completes later, under a number no longer in use. */
  uring->waiting = false;
  return result;
}

#else

int rc_uring_open(int event_fd, struct rc_uring **out) {
  (void)event_fd;
  (void)out;
  return -ENOSYS;
}

void rc_uring_close(struct rc_uring *uring) { (void)uring; }

int rc_uring_wait(struct rc_uring *uring, _Atomic uint32_t *word, uint32_t value) {
  (void)uring;
  (void)word;
  (void)value;
  return -ENOSYS;
}

int rc_uring_cancel(struct rc_uring *uring) {
  (void)uring;
  return -ENOSYS;
}

#endif
