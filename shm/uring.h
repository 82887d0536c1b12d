/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for a futex word through io_uring, which signals an eventfd. Here "the ring" is an
 * io_uring, not ringcast's.
 *
 * The calls go through liburing, if the library is built with liburing (RINGCAST_HAVE_LIBURING). If
 * not, opening fails with -ENOSYS, and the caller waits by other means. Debian's liburing 2.3 has
 * no helper for IORING_OP_FUTEX_WAIT, so uring.c fills the entry by hand.
 *
 * The ring is made with IORING_SETUP_DEFER_TASKRUN: the kernel puts a completion on a list, and the
 * waker signals the eventfd. Without the flag the kernel interrupts the thread that submitted the
 * wait, and system calls of the thread (epoll_wait) end with EINTR. The price: only the thread that
 * opened the ring may use the ring. A call from a second thread gives -EEXIST, and the second
 * thread opens a ring of its own. Closing still interrupts once: the kernel cleans up some time
 * later, in the thread that used the ring.
 */
#ifndef RC_SHM_URING_H
#define RC_SHM_URING_H

#include <stdbool.h>
#include <stdint.h>

struct rc_uring;

/* A completion signals `event_fd`. -ENOSYS (built without, kernel without, switched off with
 * RINGCAST_DISABLE), -EPERM (forbidden by a container or kernel.io_uring_disabled), -EOPNOTSUPP
 * (before Linux 6.7), -ENOMEM, -EMFILE, -ENFILE. */
int rc_uring_open(int event_fd, struct rc_uring **out);

/* Ends an open wait. Any thread may close. */
void rc_uring_close(struct rc_uring *uring);

/* Signals the eventfd once *word != value, one wait at a time; at once if the word differs already.
 * After an error only rc_uring_close is allowed. */
int rc_uring_wait(struct rc_uring *uring, _Atomic uint32_t *word, uint32_t value);

/* Ends the wait, if one is open. The cancel may signal the eventfd. */
int rc_uring_cancel(struct rc_uring *uring);

#endif
