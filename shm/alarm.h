/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor that polls readable when an event is signalled, when a process ends, or when a time has passed: an epoll
 * of a notifier (shm/notify.h), a pidfd and a timer. For who waits for a different process each time, and must look now
 * and then: the one who waits for room in a ring.
 *
 * Use as a notifier: announce (rc_event_prepare), look, nothing there? then rc_alarm_arm. Readable is a hint. It stays
 * so until the next arm. One thread at a time; in a forked child nothing but rc_alarm_close.
 */
#ifndef RC_SHM_ALARM_H
#define RC_SHM_ALARM_H

#include <stdint.h>

#include "ring/event.h"
#include "shm/process.h"

struct rc_alarm;

/* The event must stay mapped until close. Readable at first. -EMFILE, -ENFILE, -ENOMEM, -EAGAIN (no thread). */
int rc_alarm_open(struct rc_event *event, struct rc_alarm **out);
void rc_alarm_close(struct rc_alarm *alarm); /* NULL is allowed; also in a forked child */

int rc_alarm_fd(const struct rc_alarm *alarm);

/* Readable once the event's word is not `value`, once the process of `whom` has ended (NULL: nobody's; where there are
 * no pidfds the time must do), or most_ns from now. As rc_notifier_arm. */
int rc_alarm_arm(struct rc_alarm *alarm, uint32_t value, const struct rc_watch *whom, int64_t most_ns);

#endif
