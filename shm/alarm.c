/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/alarm.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "shm/notify.h"
#include "shm/wait.h"

struct rc_alarm {
  int epoll, timer;
  struct rc_notifier *notifier;
  struct rc_watch whom; /* a watch of its own: the caller's may be closed at any time */
  bool watching;        /* its pidfd is in the epoll */
};

static int add(const struct rc_alarm *alarm, int fd) {
  struct epoll_event event = {.events = EPOLLIN};
  return epoll_ctl(alarm->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

/* Also takes back that an earlier time has passed. */
static void set_timer(const struct rc_alarm *alarm, int64_t ns) {
  if (ns < 1) ns = 1; /* 0 would turn it off */
  const struct itimerspec once = {.it_value = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}};
  timerfd_settime(alarm->timer, 0, &once, NULL);
}

int rc_alarm_open(struct rc_event *event, struct rc_alarm **out) {
  struct rc_alarm *alarm = calloc(1, sizeof *alarm);
  if (!alarm) return -ENOMEM;
  rc_watch_init(&alarm->whom, 0, 0, 0);
  alarm->epoll = epoll_create1(EPOLL_CLOEXEC);
  int result = alarm->epoll < 0 ? -errno : 0;
  alarm->timer = result == 0 ? timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK) : -1;
  if (result == 0 && alarm->timer < 0) result = -errno;
  if (result == 0) result = rc_notifier_create(event, RC_SLICE_NS, &alarm->notifier);
  if (result == 0) result = add(alarm, alarm->timer);
  if (result == 0) result = add(alarm, rc_notifier_fd(alarm->notifier));
  if (result == 0) {
    set_timer(alarm, 0);
    *out = alarm;
  } else {
    rc_alarm_close(alarm);
  }
  return result;
}

/* Nothing is taken out of the epoll: a forked child shares it with its parent. */
void rc_alarm_close(struct rc_alarm *alarm) {
  if (!alarm) return;
  rc_notifier_destroy(alarm->notifier);
  rc_watch_close(&alarm->whom);
  if (alarm->timer >= 0) close(alarm->timer);
  if (alarm->epoll >= 0) close(alarm->epoll);
  free(alarm);
}

int rc_alarm_fd(const struct rc_alarm *alarm) { return alarm->epoll; }

/* Taken out before it is closed: in a child made by fork it may be open still, and would go on to be told of. */
static void watch(struct rc_alarm *alarm, const struct rc_watch *whom) {
  if (whom && alarm->watching && whom->pid == alarm->whom.pid && whom->start == alarm->whom.start) return;
  if (alarm->watching) epoll_ctl(alarm->epoll, EPOLL_CTL_DEL, alarm->whom.fd, NULL);
  rc_watch_close(&alarm->whom);
  alarm->watching = false;
  if (!whom) return;
  rc_watch_init(&alarm->whom, whom->pid, whom->start, whom->mask);
  int fd = rc_watch_fd(&alarm->whom);
  alarm->watching = fd >= 0 && add(alarm, fd) == 0;
}

int rc_alarm_arm(struct rc_alarm *alarm, uint32_t value, const struct rc_watch *whom, int64_t most_ns) {
  watch(alarm, whom);
  bool ended = whom && alarm->whom.fd == RC_WATCH_ENDED;
  set_timer(alarm, ended ? 0 : most_ns);
  return rc_notifier_arm(alarm->notifier, value);
}
