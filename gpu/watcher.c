/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of each import. A stream's wait has no time limit, and the program may be waiting for that stream just
 * when the writer dies; so somebody else must see it, and release the wait. It sleeps on the device segment's event
 * and on the writer's pidfd, and costs nothing until one of them stirs. It also closes what is to be closed: lent
 * memory that is taken back, and, when the reader has closed, the import itself, as soon as no stream reads it.
 */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "gpu/import.h"
#include "shm/error.h"

#define PAUSE_NS      ((int64_t)200 * 1000) /* between two looks whether the streams have done, ... */
#define MOST_PAUSE_NS ((int64_t)20 * 1000 * 1000) /* ... twice as long each time */

static bool is_taken_back(struct rc_import *import) {
  bool found = false;
  pthread_mutex_lock(&import->mutex);
  for (uint32_t place = 0; place < RC_GPU_MAX_LENT && !found; place++)
    found = import->lent[place].base != 0 && rc_load_acquire(&rc_gpu_control(&import->segment)->lent[place].serial) !=
                                                 import->lent[place].serial; /* pairs with unlend's store */
  pthread_mutex_unlock(&import->mutex);
  return found;
}

static int look(void *context) {
  struct rc_import *import = context;
  if (rc_load_acquire(&import->closing)) return 0; /* pairs with the store of close */
  bool is_known = rc_load_relaxed(&import->dead); /* relaxed: its own store */
  if (!is_known && rc_load_acquire(&rc_gpu_control(&import->segment)->dead)) return 0; /* pairs with lose's */
  return is_taken_back(import) ? 0 : -EAGAIN;
}

static int check(void *context) {
  struct rc_import *import = context;
  if (rc_load_relaxed(&import->dead)) return -EAGAIN; /* relaxed: its own store */
  return rc_watch_is_alive(&import->writer) ? -EAGAIN : -EPIPE;
}

/* Of one that has died already there is nothing to be seen any more. */
static struct rc_watch *whom(void *context) {
  struct rc_import *import = context;
  return rc_load_relaxed(&import->dead) ? NULL : &import->writer; /* relaxed: its own store */
}

static void see_to_death(struct rc_import *import) {
  struct rc_gpu_control *control = rc_gpu_control(&import->segment);
  if (rc_load_relaxed(&import->dead)) return; /* relaxed: its own store */
  if (rc_load_acquire(&control->dead) || !rc_watch_is_alive(&import->writer)) rc_import_mark_dead(import);
}

/* False: it must be tried again. */
static bool see_to_lent(struct rc_import *import) {
  struct rc_cuda_entry entry;
  if (!is_taken_back(import) || rc_cuda_enter(import->device.context, &entry) != RC_CU_SUCCESS) return true;
  bool done = rc_import_close_lent(import, false);
  rc_cuda_leave(&entry);
  return done;
}

/* What streams of a device that has failed were to say will not be said. */
static void see_to_loss(struct rc_import *import) {
  struct rc_cuda_entry entry;
  bool has_entered = rc_cuda_enter(import->device.context, &entry) == RC_CU_SUCCESS;
  if (!has_entered || rc_device_is_lost(&import->device)) rc_import_lose(import, -EIO);
  if (has_entered) rc_cuda_leave(&entry);
}

/* The reader has closed, and its streams go on. */
static void see_to_the_end(struct rc_import *import) {
  struct timespec pause = {.tv_nsec = PAUSE_NS};
  while (!rc_import_is_idle(import)) {
    see_to_death(import);
    see_to_loss(import);
    nanosleep(&pause, NULL);
    if (pause.tv_nsec < MOST_PAUSE_NS) pause.tv_nsec *= 2;
  }
  rc_import_finish(import);
}

static void *watch(void *context) {
  struct rc_import *import = context;
  const struct rc_wait how = {.poll = look, .check = check, .whom = whom, .context = import};
  while (!rc_load_acquire(&import->closing)) { /* pairs with the store of close */
    rc_wait(&import->waiter, &how, RINGCAST_FOREVER);
    see_to_death(import);
    for (const struct timespec pause = {.tv_nsec = PAUSE_NS}; !see_to_lent(import); see_to_death(import))
      nanosleep(&pause, NULL);
  }
  see_to_the_end(import);
  rc_import_drop(import);
  return NULL;
}

void rc_watcher_wake(struct rc_import *import) { rc_wake(&rc_gpu_control(&import->segment)->attention); }

int rc_watcher_start(struct rc_import *import) {
  pthread_attr_t attributes;
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all); /* signals are for the program's own threads */
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&thread, &attributes, watch, import);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return failed == 0 ? 0 : rc_fail(-EAGAIN, "no thread is to be had, to watch the writer");
}
