/* SPDX-License-Identifier: Apache-2.0 */
/* The two threads of the library that serve all pools of the process. */
#include "gpu/worker.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "shm/error.h"
#include "shm/os.h"
#include "shm/process.h"
#include "shm/wait.h"

/* ---- The worker ------------------------------------------------------------------------------ */

/*
 * The worker runs each job again and again until the job is done, with a pause that doubles while
 * no job makes progress. A job that waits within the driver holds up the other jobs. The wait ends:
 * at the latest, the watcher releases the semaphores that streams wait for. The thread ends with
 * the last job.
 */

#define PAUSE_NS      ((int64_t)200 * 1000)
#define MOST_PAUSE_NS ((int64_t)20 * 1000 * 1000)

int64_t rc_gpu_close_ns = (int64_t)1000 * 1000 * 1000;

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t change; /* a job has come, or is done; by CLOCK_MONOTONIC */
  struct rc_job *first;
  int64_t pause_ns; /* the next one */
  bool is_running;
} worker = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&worker.change, &attributes);
  pthread_condattr_destroy(&attributes);
}

/* Under the mutex. */
static void wait_until(int64_t until_ns) {
  struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
  pthread_cond_timedwait(&worker.change, &worker.mutex, &until);
}

/* Runs each job once. Returns whether one was done. Under the mutex, which is given up while a job
 * runs. */
static bool run_all(void) {
  struct rc_job *jobs = worker.first;
  bool has_done = false;
  worker.first = NULL;
  for (struct rc_job *job = jobs, *next; job; job = next) {
    next = job->next;
    pthread_mutex_unlock(&worker.mutex);
    bool is_done = job->run(job);
    pthread_mutex_lock(&worker.mutex);
    if (!is_done) {
      job->next = worker.first;
      worker.first = job;
      continue;
    }
    has_done = true;
    if (job->is_done) *job->is_done = true;
    pthread_cond_broadcast(&worker.change);
    pthread_mutex_unlock(&worker.mutex);
    job->end(job);
    pthread_mutex_lock(&worker.mutex);
  }
  return has_done;
}

static void *work(void *unused) {
  (void)unused;
  pthread_detach(pthread_self());
  pthread_mutex_lock(&worker.mutex);
  while (worker.first) {
    if (run_all()) {
      worker.pause_ns = PAUSE_NS;
      continue;
    }
    wait_until(rc_now_ns() + worker.pause_ns);
    if (worker.pause_ns < MOST_PAUSE_NS) worker.pause_ns *= 2;
  }
  worker.is_running = false;
  pthread_mutex_unlock(&worker.mutex);
  return NULL;
}

void rc_worker_do(struct rc_job *job, int64_t patience_ns) {
  int64_t now = rc_now_ns(), until = now + patience_ns;
  bool is_done = false;
  pthread_t thread;
  pthread_once(&once, init);
  pthread_mutex_lock(&worker.mutex);
  job->is_done = patience_ns > 0 ? &is_done : NULL;
  job->next = worker.first;
  worker.first = job;
  worker.pause_ns = PAUSE_NS;
  if (!worker.is_running) worker.is_running = rc_thread_start(work, NULL, &thread) == 0;
  pthread_cond_broadcast(&worker.change);
  for (; !is_done && now < until; now = rc_now_ns()) {
    if (!worker.is_running) run_all(); /* no thread can be started now: the next job tries again */
    if (!is_done) wait_until(worker.is_running ? until : now + PAUSE_NS);
  }
  if (patience_ns > 0 && !is_done) job->is_done = NULL;
  pthread_mutex_unlock(&worker.mutex);
}

/* ---- The watcher ----------------------------------------------------------------------------- */

/*
 * A stream's wait has no time limit, and the program may be waiting for the stream when the writer
 * dies. So a thread of the library sleeps until a watched process ends, on the processes' pidfds
 * and on an eventfd, which ends the sleep when the list changes. The thread makes no call of the
 * driver: each call of the driver may wait for a stream that only the watcher can release. The
 * thread ends when the list is empty.
 */

#define ASK_MS  50   /* between two checks of a process without a pidfd */
#define LOOK_MS 1000 /* between two checks whether the program has closed the eventfd */

static struct {
  pthread_mutex_t mutex;
  struct rc_watched *first;
  int event; /* while the thread runs */
  struct rc_fd_id event_id;
  bool is_running;
} watcher = {.mutex = PTHREAD_MUTEX_INITIALIZER, .event = -1};

/* Called with the mutex held. Returns the timeout of the sleep. */
static int look_at_all(struct pollfd *fds, nfds_t *count, nfds_t room) {
  bool can_wake = rc_fd_is(watcher.event, &watcher.event_id);
  int timeout = can_wake ? LOOK_MS : ASK_MS;
  *count = 0;
  fds[(*count)++] = (struct pollfd){.fd = can_wake ? watcher.event : -1, .events = POLLIN};
  for (struct rc_watched *watched = watcher.first; watched; watched = watched->next) {
    if (watched->has_died) continue;
    if (rc_watch_look(&watched->process) == RC_PROCESS_ENDED) {
      watched->has_died = true;
      watched->died(watched);
      continue;
    }
    int fd = rc_watch_fd(&watched->process);
    if (fd >= 0 && *count < room) fds[(*count)++] = (struct pollfd){.fd = fd, .events = POLLIN};
    else timeout = ASK_MS;
  }
  return timeout;
}

static void *watch(void *unused) {
  struct pollfd fds[64]; /* further processes are checked as a process without a pidfd is */
  nfds_t count;
  uint64_t value;
  (void)unused;
  pthread_detach(pthread_self());
  pthread_mutex_lock(&watcher.mutex);
  while (watcher.first) {
    int timeout = look_at_all(fds, &count, sizeof fds / sizeof *fds);
    pthread_mutex_unlock(&watcher.mutex);
    if (poll(fds, count, timeout) > 0 && fds[0].revents)
      (void)!read(fds[0].fd, &value, sizeof value);
    pthread_mutex_lock(&watcher.mutex);
  }
  rc_fd_close(watcher.event, &watcher.event_id);
  watcher.is_running = false;
  pthread_mutex_unlock(&watcher.mutex);
  return NULL;
}

/* Called with the mutex held. */
static void wake(void) {
  uint64_t one = 1;
  if (rc_fd_is(watcher.event, &watcher.event_id)) (void)!write(watcher.event, &one, sizeof one);
}

/* Called with the mutex held. */
static int start(void) {
  pthread_t thread;
  if (watcher.is_running) return 0;
  watcher.event = rc_fd_above_2(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (watcher.event < 0)
    return rc_fail_as(-ENOMEM, "no descriptor is free to watch the writer's process");
  rc_fd_identify(watcher.event, &watcher.event_id);
  if (rc_thread_start(watch, NULL, &thread) != 0) {
    close(watcher.event);
    return rc_fail_as(-ENOMEM, "no thread can be started to watch the writer's process");
  }
  watcher.is_running = true;
  return 0;
}

int rc_watcher_add(struct rc_watched *watched) {
  pthread_mutex_lock(&watcher.mutex);
  watched->has_died = false;
  watched->next = watcher.first;
  watcher.first = watched; /* before the thread checks whether the list is empty */
  int failed = start();
  if (failed == 0) wake();
  else watcher.first = watched->next;
  pthread_mutex_unlock(&watcher.mutex);
  return failed;
}

void rc_watcher_remove(struct rc_watched *watched) {
  pthread_mutex_lock(&watcher.mutex);
  for (struct rc_watched **at = &watcher.first; *at; at = &(*at)->next) {
    if (*at != watched) continue;
    *at = watched->next;
    wake();
    break;
  }
  pthread_mutex_unlock(&watcher.mutex);
}
