/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of io_uring that is in use: waiting for a futex word, told by an eventfd.
 *
 * By liburing, where the library was built with it (RINGCAST_HAVE_LIBURING); built without, opening fails with -ENOSYS
 * and the caller does without. Debian's liburing 2.3 has no helper for IORING_OP_FUTEX_WAIT, so that entry is filled
 * by hand.
 *
 * The ring is made with IORING_SETUP_DEFER_TASKRUN: what completes is put on a list and the eventfd is signalled by the
 * waker itself. Without that flag the kernel interrupts the thread that submitted the wait, and other calls of that
 * thread (epoll_wait) end with EINTR. The price: only the thread that opened the ring may use it. Others get -EEXIST
 * and open their own. Closing still interrupts, once: the kernel cleans up some time later, in the thread that used
 * the ring.
 */
#ifndef RC_SHM_URING_H
#define RC_SHM_URING_H

#include <stdbool.h>
#include <stdint.h>

struct rc_uring;

/* 0 if io_uring can be had here, else why not: -ENOSYS (built without, kernel without, switched off with
 * RINGCAST_DISABLE), -EPERM (forbidden by a container or kernel.io_uring_disabled), -EOPNOTSUPP (before Linux 6.7). */
int rc_uring_probe(void);

/* What completes signals `event_fd`. The same codes as rc_uring_probe, and -ENOMEM, -EMFILE, -ENFILE. */
int rc_uring_open(int event_fd, struct rc_uring **out);

/* Closing ends what is waited for; also allowed to other threads. */
void rc_uring_close(struct rc_uring *uring);

/* Waits for *word != value, one wait at a time. 1 if that is so already; 0 if the eventfd will tell. After an error the
 * ring is good for closing alone. */
int rc_uring_wait(struct rc_uring *uring, _Atomic uint32_t *word, uint32_t value);

/* Ends the wait, if there is one. The eventfd may have been signalled by this. */
int rc_uring_cancel(struct rc_uring *uring);

#endif
