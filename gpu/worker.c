/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker runs each job again and again until the job is done, with a pause that doubles while no job makes
 * progress. A job that waits within the driver holds up the other jobs. The wait ends: at the latest, the watcher
 * releases the semaphores that streams wait for. The thread ends with the last job.
 */
#include "gpu/worker.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "shm/process.h"
#include "shm/wait.h"

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

/* Runs each job once. Returns whether one was done. Under the mutex, which is given up while a job runs. */
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
