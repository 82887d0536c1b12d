/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm/poller.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "shm/os.h"
#include "shm/wait.h"

struct watched {
  uint64_t tag; /* 0: none */
  struct rc_watch process;
  bool polled; /* the pidfd is in the epoll */
};

struct rc_poller {
  int epoll, timer;
  struct rc_fd_id id; /* of the epoll */
  int fd;             /* the eventfd; -1: there is no event */
  uint32_t forks;
  int64_t checked; /* when the numbers of watched processes were last checked */
  int64_t most_ns; /* until the armed time; INT64_MAX: none */
  bool raised, cleared;

  struct rc_eventcount *event;
  struct rc_uring *uring;
  bool threaded, stopping;
  bool armed; /* where there is a thread, under the lock; so is the value */
  uint32_t value;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;

  uint32_t count, unpolled; /* unpolled: how many processes the epoll does not watch */
  struct watched watched[];
};

static int add(const struct rc_poller *poller, int fd) {
  struct epoll_event event = {.events = EPOLLIN};
  if (epoll_ctl(poller->epoll, EPOLL_CTL_ADD, fd, &event) != 0) return -errno;
  return 0;
}

/* The epoll knows its members by file and number. */
static bool is_member(const struct rc_poller *poller, int fd) {
  struct epoll_event event = {.events = EPOLLIN};
  return epoll_ctl(poller->epoll, EPOLL_CTL_MOD, fd, &event) == 0;
}

/* Whether epoll, timer and eventfd are ours. */
static bool is_whole(const struct rc_poller *poller) {
  return rc_fd_is(poller->epoll, &poller->id) && is_member(poller, poller->timer) &&
         (poller->fd < 0 || is_member(poller, poller->fd));
}

/* Does not block: the count stays far from the limit of an eventfd. */
static void raise_fd(const struct rc_poller *poller) {
  if (is_whole(poller)) (void)!eventfd_write(poller->fd, 1);
}

static void lower_fd(const struct rc_poller *poller) {
  eventfd_t count;
  (void)!eventfd_read(poller->fd, &count);
}

static bool word_differs(const struct rc_poller *poller, uint32_t value) {
  /* <- E7: the caller's look sees the signalled message. */
  return rc_load_acquire(&poller->event->word) != value;
}

/* ---- The timer ------------------------------------------------------------------------------- */

static bool has_ended_unpolled(const struct rc_poller *poller) {
  for (uint32_t i = 0; poller->unpolled > 0 && i < poller->count; i++)
    if (poller->watched[i].tag != 0 && poller->watched[i].process.ended) return true;
  return false;
}

/* Restarts the timer. An expired timer is no longer readable then. The poller is whole. */
static void set_timer(const struct rc_poller *poller) {
  int64_t ns = poller->most_ns;
  if (poller->unpolled > 0 && ns > RC_SLICE_NS) ns = RC_SLICE_NS;
  if (ns < 1 || poller->raised || has_ended_unpolled(poller)) ns = 1; /* 0 would turn it off */
  struct itimerspec once = {.it_value = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}};
  if (ns == INT64_MAX) once = (struct itimerspec){0};
  timerfd_settime(poller->timer, 0, &once, NULL);
}

/* ---- The helper thread ----------------------------------------------------------------------- */

/* Sleeps without the lock. The value may be out of date when the sleep ends: the caller looks
 * again. The slice limits the sleep in case the signaller died before the wake. */
static void sleep_a_slice(struct rc_poller *poller) {
  uint32_t value = poller->value;
  pthread_mutex_unlock(&poller->lock);
  rc_os.futex_wait(&poller->event->word, value, RC_SLICE_NS);
  pthread_mutex_lock(&poller->lock);
}

static void *help(void *context) {
  struct rc_poller *poller = context;
  pthread_mutex_lock(&poller->lock);
  while (!poller->stopping) {
    if (!poller->armed) {
      pthread_cond_wait(&poller->changed, &poller->lock);
    } else if (word_differs(poller, poller->value)) {
      poller->armed = false;
      raise_fd(poller); /* under the lock: a clear must not come before the raise */
    } else {
      sleep_a_slice(poller);
    }
  }
  pthread_mutex_unlock(&poller->lock);
  return NULL;
}

static int start_thread(struct rc_poller *poller) {
  int result = rc_thread_start(help, poller, &poller->thread);
  if (result != 0) return result;
  pthread_setname_np(poller->thread, "ringcast-poller");
  poller->threaded = true;
  return 0;
}

/* The thread may be about to sleep on the word, or asleep. The changed word prevents a sleep; the
 * wake ends a sleep. */
static void stop_thread(struct rc_poller *poller) {
  pthread_mutex_lock(&poller->lock);
  poller->stopping = true;
  pthread_cond_signal(&poller->changed);
  pthread_mutex_unlock(&poller->lock);
  rc_eventcount_nudge(poller->event);
  rc_os.futex_wake(&poller->event->word, INT_MAX);
  pthread_join(poller->thread, NULL);
}

static void arm_thread(struct rc_poller *poller, uint32_t value) {
  pthread_mutex_lock(&poller->lock);
  if (word_differs(poller, value)) {
    raise_fd(poller);
  } else {
    poller->value = value;
    poller->armed = true;
    pthread_cond_signal(&poller->changed);
  }
  pthread_mutex_unlock(&poller->lock);
}

/* A thread that sleeps on the word is not woken: it checks `armed` after the sleep. */
static void clear_thread(struct rc_poller *poller) {
  pthread_mutex_lock(&poller->lock);
  poller->armed = false;
  lower_fd(poller);
  pthread_mutex_unlock(&poller->lock);
}

/* ---- io_uring -------------------------------------------------------------------------------- */

static void drop_uring(struct rc_poller *poller) {
  if (poller->uring) rc_uring_close(poller->uring);
  poller->uring = NULL;
  poller->armed = false;
}

/* Tries twice: the io_uring may belong to an earlier thread. */
static int arm_uring(struct rc_poller *poller, uint32_t value) {
  int result = -EEXIST;
  for (int i = 0; i < 2 && result < 0; i++) {
    result = 0;
    if (!poller->uring) result = rc_uring_open(poller->fd, &poller->uring);
    if (result == 0) result = rc_uring_wait(poller->uring, &poller->event->word, value);
    if (result < 0) drop_uring(poller);
  }
  poller->armed = result == 0;
  return result;
}

/* The end of the wait also raises the eventfd, so that is lowered last. */
static void clear_uring(struct rc_poller *poller) {
  if (poller->armed && rc_uring_cancel(poller->uring) < 0) drop_uring(poller);
  poller->armed = false;
  lower_fd(poller);
}

/* ---- The event ------------------------------------------------------------------------------- */

static int open_event(struct rc_poller *poller, struct rc_eventcount *event) {
  poller->event = event;
  poller->fd = rc_fd_above_2(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)); /* readable at first */
  if (poller->fd < 0) return poller->fd;
  int result = add(poller, poller->fd);
  if (result != 0) return result;
  if (rc_uring_open(poller->fd, &poller->uring) == 0) return 0;
  return start_thread(poller);
}

bool rc_poller_uses_uring(const struct rc_poller *poller) {
  return poller->event && !poller->threaded;
}

/* The numbers of watched processes that are no longer theirs: the timer serves these processes. By
 * the clock, since nothing is done to such a number. */
static void check_watched(struct rc_poller *poller) {
  int64_t now = rc_now_ns();
  if (now - poller->checked < RC_CHECK_NS) return;
  poller->checked = now;
  for (uint32_t i = 0; i < poller->count; i++) {
    struct watched *one = &poller->watched[i];
    if (!one->polled || is_member(poller, one->process.fd)) continue;
    one->polled = false;
    poller->unpolled++;
  }
}

static int disarm(struct rc_poller *poller) {
  if (!is_whole(poller)) return -EBADF;
  check_watched(poller);
  if (poller->threaded) clear_thread(poller);
  else clear_uring(poller);
  return 0;
}

static void set_most(struct rc_poller *poller, int64_t most_ns) {
  bool timed = poller->most_ns != INT64_MAX || most_ns != INT64_MAX || poller->unpolled > 0;
  poller->most_ns = most_ns;
  if (timed) set_timer(poller);
}

int rc_poller_arm(struct rc_poller *poller, uint32_t value, int64_t most_ns) {
  if (!poller->cleared) {
    int result = disarm(poller);
    if (result != 0) return result;
  }
  poller->cleared = false;
  set_most(poller, most_ns);
  if (!poller->threaded) {
    if (arm_uring(poller, value) == 0) return 0;
    int result = start_thread(poller); /* from io_uring to the thread, for good */
    if (result != 0) return result;
  }
  arm_thread(poller, value);
  return 0;
}

int rc_poller_clear(struct rc_poller *poller) {
  int result = disarm(poller);
  if (result != 0) return result;
  set_most(poller, INT64_MAX);
  poller->cleared = true;
  return 0;
}

/* ---- Processes ------------------------------------------------------------------------------- */

uint64_t rc_poller_tag(const struct rc_poller *poller, uint32_t index) {
  return poller->watched[index].tag;
}

/* The pidfd is taken out of the epoll before it is closed: in a forked child it may still be open,
 * and would go on to make the descriptor readable. */
static void unwatch(struct rc_poller *poller, struct watched *one) {
  if (!one->polled) poller->unpolled--;
  else if (is_whole(poller)) epoll_ctl(poller->epoll, EPOLL_CTL_DEL, one->process.fd, NULL);
  rc_watch_close(&one->process);
  *one = (struct watched){0};
}

void rc_poller_watch(struct rc_poller *poller, uint32_t index, uint64_t tag,
                     const struct rc_watch *whom) {
  struct watched *one = &poller->watched[index];
  if (!whom || tag == 0) {
    whom = NULL;
    tag = 0;
  }
  if (one->tag == tag) return;
  uint32_t unpolled = poller->unpolled;
  if (one->tag != 0) unwatch(poller, one);
  if (whom) {
    one->tag = tag;
    rc_watch_init(&one->process, whom->pid, whom->start, whom->mask);
    int fd = rc_watch_fd(&one->process);
    one->polled = fd >= 0 && add(poller, fd) == 0;
    poller->unpolled += !one->polled;
  }
  if ((unpolled > 0 || poller->unpolled > 0) && is_whole(poller)) set_timer(poller);
}

void rc_poller_raise(struct rc_poller *poller, bool raised) {
  if (poller->raised == raised) return;
  poller->raised = raised;
  if (is_whole(poller)) set_timer(poller);
}

/* 0: all watched processes live. 1: the caller checks each process. Programs call this often, so
 * that epoll_wait has its number checked by the clock. */
static int may_have_ended(struct rc_poller *poller) {
  struct epoll_event event;
  bool is_due = rc_now_ns() - poller->checked >= RC_CHECK_NS;
  if ((is_due || poller->unpolled > 0) && !is_whole(poller)) return -EBADF;
  check_watched(poller);
  if (poller->unpolled == 0) return epoll_wait(poller->epoll, &event, 1, 0) != 0;
  set_timer(poller); /* not readable until the next slice */
  return 1;
}

int rc_poller_find_ended(struct rc_poller *poller, uint32_t *index) {
  int result = may_have_ended(poller);
  if (result != 1) return result;
  result = 0;
  for (uint32_t i = 0; i < poller->count; i++) {
    struct watched *one = &poller->watched[i];
    if (one->tag == 0) continue;
    int state = rc_watch_look(&one->process);
    if (state > RC_PROCESS_ENDED || (state < 0 && result < 0)) continue;
    *index = i;
    if (state == RC_PROCESS_ENDED) return 1;
    result = state;
  }
  return result;
}

/* ---- Open, close ----------------------------------------------------------------------------- */

/* Takes the poller apart. `whole`: the program has not had the time to close a descriptor of the
 * poller. */
static void dismantle(struct rc_poller *poller, bool whole) {
  drop_uring(poller);
  for (uint32_t i = 0; i < poller->count; i++)
    if (poller->watched[i].tag != 0) rc_watch_close(&poller->watched[i].process);
  if (whole || is_whole(poller)) {
    if (poller->fd >= 0) close(poller->fd);
    if (poller->timer >= 0) close(poller->timer);
    if (poller->epoll >= 0) close(poller->epoll);
  }
  free(poller);
}

/* The epoll, and the timer in it. */
static int open_epoll(struct rc_poller *poller) {
  poller->epoll = rc_fd_above_2(epoll_create1(EPOLL_CLOEXEC));
  if (poller->epoll < 0) return poller->epoll;
  rc_fd_identify(poller->epoll, &poller->id);
  poller->timer = rc_fd_above_2(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (poller->timer < 0) return poller->timer;
  return add(poller, poller->timer);
}

int rc_poller_open(struct rc_eventcount *event, uint32_t count, struct rc_poller **out) {
  struct rc_poller *poller = calloc(1, sizeof *poller + count * sizeof *poller->watched);
  if (!poller) return -ENOMEM;
  poller->count = count;
  poller->most_ns = INT64_MAX;
  poller->forks = rc_forks_seen;
  poller->fd = -1;
  poller->timer = -1;
  pthread_mutex_init(&poller->lock, NULL);
  pthread_cond_init(&poller->changed, NULL);
  int result = open_epoll(poller);
  if (result == 0 && event) result = open_event(poller, event);
  if (result == 0) *out = poller;
  else dismantle(poller, true);
  return result;
}

/* Leaves the epoll's entries, because a forked child shares the epoll with its parent. The child
 * has no thread, and perhaps a lock that is held for ever. */
void rc_poller_close(struct rc_poller *poller) {
  if (!poller) return;
  if (poller->forks == rc_forks_seen) {
    if (poller->threaded) stop_thread(poller);
    pthread_cond_destroy(&poller->changed);
    pthread_mutex_destroy(&poller->lock);
  }
  dismantle(poller, false);
}

int rc_poller_fd(const struct rc_poller *poller) {
  return is_whole(poller) ? poller->epoll : -EBADF;
}
