/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm/notify.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/os.h"
#include "shm/uring.h"

struct rc_notifier {
  struct rc_event *event;
  int64_t slice_ns;
  uint32_t forks;
  int fd; /* the eventfd */
  struct rc_uring *uring;
  bool armed; /* under the lock, from here on, where there is a thread */
  bool watching, ended;
  struct rc_watch peer;
  uint32_t value;
  bool threaded, stopping;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
};

/* Neither blocks nor fails: the count stays far from its limit. */
static void raise_fd(int fd) { (void)!eventfd_write(fd, 1); }

static void lower_fd(int fd) {
  eventfd_t count;
  (void)!eventfd_read(fd, &count);
}

static bool word_differs(struct rc_notifier *notifier, uint32_t value) {
  return rc_load_acquire(&notifier->event->word) != value;
}

/* ---- The helper thread ------------------------------------------------------------------------------------------ */

/* One slice of sleep, without the lock. What it sleeps on may be out of date when it wakes: the caller looks anew. */
static void sleep_a_slice(struct rc_notifier *notifier) {
  uint32_t value = notifier->value;
  bool watching = notifier->watching;
  pthread_mutex_unlock(&notifier->lock);
  int slept = rc_os.futex_wait(&notifier->event->word, value, notifier->slice_ns);
  bool ended = slept == -ETIMEDOUT && watching && !rc_watch_is_alive(&notifier->peer);
  pthread_mutex_lock(&notifier->lock);
  if (ended) notifier->ended = true;
}

static void *help(void *context) {
  struct rc_notifier *notifier = context;
  pthread_mutex_lock(&notifier->lock);
  while (!notifier->stopping) {
    if (!notifier->armed) {
      pthread_cond_wait(&notifier->changed, &notifier->lock);
    } else if (notifier->ended || word_differs(notifier, notifier->value)) {
      notifier->armed = false;
      raise_fd(notifier->fd); /* under the lock, so that it can't come after a clear */
    } else {
      sleep_a_slice(notifier);
    }
  }
  pthread_mutex_unlock(&notifier->lock);
  return NULL;
}

/* All signals are blocked in the helper: handlers run in the threads of the program. */
static int start_thread(struct rc_notifier *notifier) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int result = -pthread_create(&notifier->thread, NULL, help, notifier);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (result != 0) return result;
  pthread_setname_np(notifier->thread, "ringcast-notify");
  notifier->threaded = true;
  return 0;
}

/* The thread may be about to sleep on the word, or asleep on it. Changing the word keeps it from the first; waking
 * ends the second. */
static void stop_thread(struct rc_notifier *notifier) {
  pthread_mutex_lock(&notifier->lock);
  notifier->stopping = true;
  pthread_cond_signal(&notifier->changed);
  pthread_mutex_unlock(&notifier->lock);
  rc_event_nudge(notifier->event);
  rc_os.futex_wake(&notifier->event->word, INT_MAX);
  pthread_join(notifier->thread, NULL);
}

static int arm_thread(struct rc_notifier *notifier, uint32_t value) {
  pthread_mutex_lock(&notifier->lock);
  if (notifier->ended || word_differs(notifier, value)) {
    raise_fd(notifier->fd);
  } else {
    notifier->value = value;
    notifier->armed = true;
    pthread_cond_signal(&notifier->changed);
  }
  pthread_mutex_unlock(&notifier->lock);
  return 0;
}

/* If it sleeps on the word, it is left there: it looks at `armed` when it wakes. */
static void clear_thread(struct rc_notifier *notifier) {
  pthread_mutex_lock(&notifier->lock);
  notifier->armed = false;
  lower_fd(notifier->fd);
  pthread_mutex_unlock(&notifier->lock);
}

/* ---- io_uring --------------------------------------------------------------------------------------------------- */

static void drop_uring(struct rc_notifier *notifier) {
  if (notifier->uring) rc_uring_close(notifier->uring);
  notifier->uring = NULL;
}

static int open_uring(struct rc_notifier *notifier) {
  int result = rc_uring_open(notifier->fd, &notifier->uring);
  if (result != 0 || !notifier->watching || notifier->peer.fd < 0) return result;
  result = rc_uring_watch(notifier->uring, notifier->peer.fd);
  if (result < 0) drop_uring(notifier);
  return result;
}

/* Twice: the ring may belong to another thread. */
static int arm_uring(struct rc_notifier *notifier, uint32_t value) {
  int result = -EEXIST;
  for (int i = 0; i < 2 && result < 0; i++) {
    result = notifier->uring ? 0 : open_uring(notifier);
    if (result == 0) result = rc_uring_wait(notifier->uring, &notifier->event->word, value);
    if (result < 0) drop_uring(notifier);
  }
  if (result < 0) return result;
  notifier->armed = true;
  if (result > 0) raise_fd(notifier->fd);
  return 0;
}

static void clear_uring(struct rc_notifier *notifier) {
  if (notifier->uring && notifier->armed && rc_uring_cancel(notifier->uring) < 0) drop_uring(notifier);
  notifier->armed = false;
  lower_fd(notifier->fd);
}

static int watch_by_uring(struct rc_notifier *notifier) {
  int fd = rc_watch_fd(&notifier->peer);
  if (fd < 0) return fd == RC_WATCH_ENDED ? -ESRCH : -ENOSYS;
  return rc_uring_watch(notifier->uring, fd);
}

/* ---- The notifier ----------------------------------------------------------------------------------------------- */

/* From io_uring to the thread, for good. */
static int change_to_thread(struct rc_notifier *notifier) {
  drop_uring(notifier);
  notifier->armed = false;
  return start_thread(notifier);
}

int rc_notifier_create(struct rc_event *event, int64_t slice_ns, struct rc_notifier **out) {
  struct rc_notifier *notifier = calloc(1, sizeof *notifier);
  if (!notifier) return -ENOMEM;
  notifier->event = event;
  notifier->slice_ns = slice_ns;
  notifier->forks = rc_fork_count();
  rc_watch_init(&notifier->peer, 0, 0, 0);
  pthread_mutex_init(&notifier->lock, NULL);
  pthread_cond_init(&notifier->changed, NULL);
  notifier->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int result = notifier->fd < 0 ? -errno : 0;
  if (result == 0 && open_uring(notifier) != 0) result = start_thread(notifier);
  if (result != 0) {
    if (notifier->fd >= 0) close(notifier->fd);
    free(notifier);
    return result;
  }
  *out = notifier;
  return 0;
}

int rc_notifier_fd(const struct rc_notifier *notifier) { return notifier->fd; }

bool rc_notifier_uses_uring(const struct rc_notifier *notifier) { return !notifier->threaded; }

int rc_notifier_watch(struct rc_notifier *notifier, const struct rc_process *peer) {
  rc_watch_init(&notifier->peer, peer->pid, peer->start, UINT64_MAX); /* the thread's, once `watching` is set */
  int result = notifier->threaded ? 0 : watch_by_uring(notifier);
  if (result < 0 && result != -ESRCH) result = change_to_thread(notifier);
  if (result < 0 && result != -ESRCH) return result;
  pthread_mutex_lock(&notifier->lock);
  notifier->watching = true;
  notifier->ended = result == -ESRCH || !rc_watch_is_alive(&notifier->peer);
  pthread_mutex_unlock(&notifier->lock);
  return 0;
}

int rc_notifier_arm(struct rc_notifier *notifier, uint32_t value) {
  rc_notifier_clear(notifier);
  if (!notifier->threaded) {
    if (arm_uring(notifier, value) == 0) {
      if (notifier->ended) raise_fd(notifier->fd);
      return 0;
    }
    int result = change_to_thread(notifier);
    if (result != 0) return result;
  }
  return arm_thread(notifier, value);
}

void rc_notifier_clear(struct rc_notifier *notifier) {
  if (notifier->threaded) clear_thread(notifier);
  else clear_uring(notifier);
}

void rc_notifier_destroy(struct rc_notifier *notifier) {
  if (!notifier) return;
  if (notifier->forks == rc_fork_count()) { /* a forked child has no thread, and perhaps a lock that is held for ever */
    if (notifier->threaded) stop_thread(notifier);
    pthread_cond_destroy(&notifier->changed);
    pthread_mutex_destroy(&notifier->lock);
  }
  drop_uring(notifier);
  rc_watch_close(&notifier->peer);
  close(notifier->fd);
  free(notifier);
}
