/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One descriptor for poll, epoll, asyncio and libuv. It polls readable when an event is signalled,
 * when a watched process has ended, or when a time has passed: an epoll of an eventfd, of pidfds
 * and of a timer.
 *
 * The eventfd is signalled by one of two engines, both of which wait for the event's futex word:
 *   - io_uring (shm/uring.c), with no thread: Linux 6.7 and a library built with liburing.
 *   - a helper thread, where io_uring is missing, forbidden or named by RINGCAST_DISABLE.
 * An io_uring serves one thread, and the eventfd serves all: if the poller moves to a new thread,
 * that gets an io_uring of its own, and the poller's descriptor stays the same.
 *
 * A process without a pidfd (Linux before 5.3, a sandbox, no descriptor free) is checked by
 * rc_watch_look: the timer makes the descriptor readable every RC_SLICE_NS, and the caller looks.
 *
 * Use, in the manner of rc_wait:
 *   value = rc_eventcount_prepare(event);
 *   no message yet? then rc_poller_arm(poller, value, most_ns);
 *   ... the descriptor is readable ...
 *   take all messages; begin again.
 *
 * Readable is a hint: the caller looks, and arms again if nothing is there. One thread at a time.
 * In a forked child only rc_poller_close is allowed. The descriptor is polled and never read.
 *
 *   poller.c  the descriptor, and the helper thread
 *   uring.c   io_uring
 */
#ifndef RC_SHM_POLLER_H
#define RC_SHM_POLLER_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/eventcount.h"
#include "shm/process.h"

struct rc_poller;

/* With room for `count` processes. With an event, which must stay mapped until close, the
 * descriptor is readable at first; NULL: no event. -EMFILE, -ENFILE, -ENOMEM, -EAGAIN (no
 * thread). */
int rc_poller_open(struct rc_eventcount *event, uint32_t count, struct rc_poller **out);

/* At once, also while armed. Other sleepers of the event may be woken for nothing. NULL is allowed;
 * also in a forked child. */
void rc_poller_close(struct rc_poller *poller);

/* The same descriptor from open to close. -EBADF: the program has closed the poller's descriptors,
 * and the numbers may be the program's own files now; the poller can only be closed. */
int rc_poller_fd(const struct rc_poller *poller);

/* ---- The event and the time ------------------------------------------------------------------ */

/* Readable, until the next arm or clear, once the event's word differs from `value` (at once if
 * already so), or most_ns from now (INT64_MAX: no time). Replaces an earlier arm. -EAGAIN, -ENOMEM:
 * neither io_uring nor a thread is left. -EBADF: as rc_poller_fd. */
int rc_poller_arm(struct rc_poller *poller, uint32_t value, int64_t most_ns);

/* Not armed any more, and not readable, unless a watched process has ended. -EBADF: as
 * rc_poller_fd. */
int rc_poller_clear(struct rc_poller *poller);

bool rc_poller_uses_uring(const struct rc_poller *poller);

/* ---- Processes ------------------------------------------------------------------------------- */

/* Watches the process of `whom` at place `index`, instead of an earlier process; NULL: no process.
 * The poller opens a watch of its own. `tag`, not 0, is the caller's name for the process: a call
 * with the current tag changes nothing. The descriptor is readable from the end of the process on,
 * also if a signaller of the event dies before the wake. */
void rc_poller_watch(struct rc_poller *poller, uint32_t index, uint64_t tag,
                     const struct rc_watch *whom);
uint64_t rc_poller_tag(const struct rc_poller *poller, uint32_t index); /* 0: none */

/* 1: a watched process has ended; *index: the first. 0: all live. -EBADF: as rc_poller_fd. Else the
 * error of rc_process_look for the one at *index. One system call while all live, if all have
 * pidfds; a few every 5 ms. */
int rc_poller_find_ended(struct rc_poller *poller, uint32_t *index);

/* Readable until lowered, for the caller's own reasons. */
void rc_poller_raise(struct rc_poller *poller, bool raised);

/* ---- io_uring -------------------------------------------------------------------------------- */

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
 * wait, whose system calls (epoll_wait) then end with EINTR. The price: only the thread that opened
 * the ring may use it. A call from a second thread gives -EEXIST, and that thread opens a ring of
 * its own. Closing still interrupts once: the kernel cleans up some time later, in the thread that
 * used the ring.
 */

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
