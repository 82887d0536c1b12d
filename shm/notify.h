/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor that polls readable when an event is signalled: for epoll, asyncio, libuv.
 *
 * The descriptor is an eventfd. Who signals it is one of two:
 *   - io_uring, which waits for the event's futex word and for the peer's pidfd (shm/uring.h): no thread, no slices.
 *     Needs Linux 6.7 and a library built with liburing.
 *   - a helper thread, which sleeps on the futex word in slices and looks between them whether the peer still lives.
 *     Where io_uring or, to watch a peer, pidfds are missing or forbidden, or named by RINGCAST_DISABLE.
 * A ring serves one thread, an eventfd all of them: a notifier that moves to another thread gets a new ring, and what
 * polls its descriptor does not see it.
 *
 * Use, in the manner of rc_wait:
 *   value = rc_event_prepare(event); nothing there yet? then rc_notifier_arm(notifier, value);
 *   ... the descriptor is readable ...
 *   rc_notifier_clear(notifier); take what is there; begin again.
 *
 * Readable is a hint: take a look, and arm again if nothing is there. Not thread-safe; of a notifier that was inherited
 * by a fork nothing but rc_notifier_destroy is allowed. The descriptor is to be polled, never read.
 */
#ifndef RC_SHM_NOTIFY_H
#define RC_SHM_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/event.h"
#include "shm/process.h"

struct rc_notifier;

/* The event must stay mapped until destroy. slice_ns: how soon the helper thread notices a death. -EMFILE, -ENFILE,
 * -ENOMEM, -EAGAIN (no thread to be had). */
int rc_notifier_create(struct rc_event *event, int64_t slice_ns, struct rc_notifier **out);

/* Always the same one, from create to destroy. */
int rc_notifier_fd(const struct rc_notifier *notifier);

/* From now on, while it is armed, the descriptor also becomes readable once `peer` has ended. Once, before the first
 * arm. That also covers a signaller that dies between changing the word and waking: with io_uring nothing else does. */
int rc_notifier_watch(struct rc_notifier *notifier, const struct rc_process *peer);

/* Readable, until cleared, once *word != value, at once if that is so already. Takes back what an earlier arm did.
 * -EAGAIN, -ENOMEM: neither io_uring nor a thread is to be had any more. */
int rc_notifier_arm(struct rc_notifier *notifier, uint32_t value);

/* Not readable any more, and not armed. */
void rc_notifier_clear(struct rc_notifier *notifier);

bool rc_notifier_uses_uring(const struct rc_notifier *notifier);

/* At once, also while armed; does not wait for the end of a slice. Others that sleep on the event may be woken for
 * nothing. NULL is allowed. */
void rc_notifier_destroy(struct rc_notifier *notifier);

#endif
