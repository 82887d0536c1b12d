/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/disk_way.h"

/* Jobs are done in their order, so one queue serves: `done` jobs are to be handed back, the rest wait. */
struct disk_thread {
  int fd;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool ends;
  uint32_t depth;
  uint64_t submitted, done, reaped; /* counts; the job of number n is at n % depth */
  struct disk_job *jobs;
  int64_t *results;
};

static int64_t write_all(int fd, const struct disk_job *job) {
  size_t done = 0;
  while (done < job->bytes) {
    ssize_t result = pwrite(fd, (const char *)job->memory + done, job->bytes - done, (off_t)(job->offset + done));
    if (result < 0 && errno == EINTR) continue;
    if (result < 0) return done > 0 ? (int64_t)done : -errno;
    if (result == 0) break;
    done += (size_t)result;
    if (done % 512 != 0) break; /* not a block more: the disk is full */
  }
  return (int64_t)done;
}

static void *run(void *context) {
  struct disk_thread *thread = context;
  pthread_mutex_lock(&thread->lock);
  for (;;) {
    while (thread->done == thread->submitted && !thread->ends) pthread_cond_wait(&thread->changed, &thread->lock);
    if (thread->done == thread->submitted) break;
    struct disk_job job = thread->jobs[thread->done % thread->depth];
    pthread_mutex_unlock(&thread->lock);
    int64_t result = write_all(thread->fd, &job);
    pthread_mutex_lock(&thread->lock);
    thread->results[thread->done++ % thread->depth] = result;
    pthread_cond_broadcast(&thread->changed);
  }
  pthread_mutex_unlock(&thread->lock);
  return NULL;
}

/* Signals are the first thread's: they end its waits. */
static int start(struct disk_thread *thread) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int result = pthread_create(&thread->thread, NULL, run, thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return -result;
}

int disk_thread_open(int fd, uint32_t depth, struct disk_thread **out) {
  struct disk_thread *thread = calloc(1, sizeof *thread);
  if (!thread) return -ENOMEM;
  *thread = (struct disk_thread){.fd = fd, .depth = depth};
  thread->jobs = calloc(depth, sizeof *thread->jobs);
  thread->results = calloc(depth, sizeof *thread->results);
  pthread_mutex_init(&thread->lock, NULL);
  pthread_cond_init(&thread->changed, NULL);
  int result = thread->jobs && thread->results ? start(thread) : -ENOMEM;
  if (result == 0) *out = thread;
  else free(thread->jobs), free(thread->results), free(thread);
  return result;
}

void disk_thread_close(struct disk_thread *thread) {
  pthread_mutex_lock(&thread->lock);
  thread->ends = true;
  pthread_cond_broadcast(&thread->changed);
  pthread_mutex_unlock(&thread->lock);
  pthread_join(thread->thread, NULL);
  pthread_cond_destroy(&thread->changed);
  pthread_mutex_destroy(&thread->lock);
  free(thread->jobs);
  free(thread->results);
  free(thread);
}

int disk_thread_submit(struct disk_thread *thread, const struct disk_job *job) {
  pthread_mutex_lock(&thread->lock);
  bool full = thread->submitted - thread->reaped == thread->depth; /* never: there are no more jobs */
  if (!full) thread->jobs[thread->submitted++ % thread->depth] = *job;
  pthread_cond_broadcast(&thread->changed);
  pthread_mutex_unlock(&thread->lock);
  return full ? -EBUSY : 0;
}

int disk_thread_reap(struct disk_thread *thread, bool wait, struct disk_done *out) {
  pthread_mutex_lock(&thread->lock);
  while (wait && thread->reaped == thread->done && thread->done < thread->submitted)
    pthread_cond_wait(&thread->changed, &thread->lock);
  bool found = thread->reaped < thread->done;
  if (found) {
    uint64_t at = thread->reaped++ % thread->depth;
    *out = (struct disk_done){.number = thread->jobs[at].number, .result = thread->results[at]};
  }
  pthread_mutex_unlock(&thread->lock);
  return found;
}
