/* SPDX-License-Identifier: Apache-2.0 */
/* Whether io_uring works here. */
#ifndef RC_TESTS_URING_H
#define RC_TESTS_URING_H

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/poller.h"

/* 0, else why not: the codes of rc_uring_open. */
static inline int probe_uring(void) {
  int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return -errno;
  struct rc_uring *uring;
  int result = rc_uring_open(fd, &uring);
  if (result == 0) rc_uring_close(uring);
  close(fd);
  return result;
}

#endif
