/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping without slices: until a word changes, a process ends, a signal handler has run, or the time is up.
 *
 * io_uring waits for the futex word and signals an eventfd (shm/uring.h); poll(2) sleeps on that and on the process's
 * pidfd. So a sleeper needs no clock to notice a death, and takes no CPU time however long it sleeps.
 *
 * Why poll, where io_uring_enter could sleep itself: that ends with EINTR also when the process was stopped and
 * continued, or a debugger attached to it, and can't say so; poll, as futex(2), then sleeps on. Measured, the way by
 * poll is no slower.
 *
 * Not thread-safe. It may move to another thread; its io_uring belongs to one, and is then made anew. In a forked child
 * a park that was made before is made anew too.
 */
#ifndef RC_SHM_PARK_H
#define RC_SHM_PARK_H

#include <stdbool.h>
#include <stdint.h>

struct rc_park;

/* As rc_uring_open; what is refused here is refused for good. */
int rc_park_open(struct rc_park **out);

/* NULL is allowed. */
void rc_park_close(struct rc_park *park);

/* How it ended. 0: the word has changed, or for nothing. */
enum { RC_PARK_ENDED = 1 }; /* the process of the pidfd has ended */

/* Sleeps while *word == value. pidfd -1: nobody's. -ETIMEDOUT, -EINTR. -ENOTSUP: this park can't sleep any more, or is
 * handed from thread to thread too often to be worth its price; close it. */
int rc_park_sleep(struct rc_park *park, _Atomic uint32_t *word, uint32_t value, int pidfd, int64_t timeout_ns);

#endif
