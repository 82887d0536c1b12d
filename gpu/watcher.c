/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of each import. A stream's wait has no time limit, and the program may be waiting for that stream just
 * when the writer dies; so somebody else must see it, and release the wait. It sleeps on the device segment's event
 * and on the writer's pidfd, and costs nothing until one of them stirs. It also closes the import when the reader has
 * closed, as soon as no stream reads it; and it sees to each `ack` that is owed.
 *
 * The watcher itself calls nothing of the driver's as long as a stream may wait for the writer: a call that adds to a
 * stream which takes no more waits for the device, and other threads' calls may wait for that one. Whoever makes them,
 * a thread for each errand, may have to be freed by the watcher.
 */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "gpu/import.h"
#include "shm/error.h"

#define PAUSE_NS      ((int64_t)200 * 1000)         /* between two looks whether the streams have done, ... */
#define MOST_PAUSE_NS ((int64_t)20 * 1000 * 1000)   /* ... twice as long each time */
#define LOOK_NS       ((int64_t)1000 * 1000 * 1000) /* between two looks at the device, where nobody asks for one */

/* Under the mutex. */
static uint32_t count_owed(const struct rc_import *import) {
  uint32_t count = 0;
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) count += import->taken[slot].owed != RC_OWES_NOTHING;
  return count;
}

static bool owes(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool does = count_owed(import) > 0;
  pthread_mutex_unlock(&import->mutex);
  return does;
}

static int look(void *context) {
  struct rc_import *import = context;
  if (rc_load_acquire(&import->closing)) return 0; /* pairs with the store of close */
  bool is_known = rc_load_relaxed(&import->dead);  /* relaxed: its own store */
  if (!is_known && rc_load_acquire(&rc_gpu_control(&import->segment)->dead)) return 0; /* pairs with lose's */
  return owes(import) ? 0 : -EAGAIN;
}

static int check(void *context) {
  struct rc_import *import = context;
  if (rc_load_relaxed(&import->dead)) return -EAGAIN; /* relaxed: its own store */
  return rc_watch_is_alive(&import->writer) ? -EAGAIN : -EPIPE;
}

static void see_to_death(struct rc_import *import) {
  struct rc_gpu_control *control = rc_gpu_control(&import->segment);
  if (rc_load_relaxed(&import->dead)) return; /* relaxed: its own store */
  if (rc_load_acquire(&control->dead) || !rc_watch_is_alive(&import->writer)) rc_import_mark_dead(import);
}

/* What streams of a device that has failed were to say will not be said. */
static void look_for_loss(struct rc_import *import) {
  if (rc_device_is_lost(&import->device)) rc_import_lose(import, -EIO); /* not already if it can't be entered once */
}

int rc_thread_start(void *(*body)(void *), void *context) {
  pthread_attr_t attributes;
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all); /* signals are for the program's own threads */
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&thread, &attributes, body, context);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return failed;
}

static bool is_to_look(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool looks = import->is_looking = import->to_look;
  import->to_look = false;
  pthread_mutex_unlock(&import->mutex);
  return looks;
}

static void *look_at_device(void *context) {
  struct rc_import *import = context;
  while (is_to_look(import)) { look_for_loss(import); }
  rc_import_drop(import);
  return NULL;
}

/* By an errand; if one is under way it looks again. */
static void see_to_device(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool starts = !import->is_looking;
  import->is_looking = import->to_look = true;
  pthread_mutex_unlock(&import->mutex);
  if (!starts) return;
  rc_add_acq_rel(&import->holders, 1);
  if (rc_thread_start(look_at_device, import) == 0) return;
  pthread_mutex_lock(&import->mutex); /* no thread is to be had now */
  import->is_looking = false;
  pthread_mutex_unlock(&import->mutex);
  rc_import_drop(import);
}

static bool is_looking(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool looks = import->is_looking;
  pthread_mutex_unlock(&import->mutex);
  return looks;
}

/* On its own stream, as it was to be; later if that captures a graph still. SOON: if it takes nothing any more. */
static void pay(struct rc_import *import, uint32_t slot) {
  struct rc_taken *taken = &import->taken[slot];
  pthread_mutex_lock(&import->mutex);
  bool does_owe = taken->owed == RC_OWES_ACK;
  struct rc_taken copy = *taken;
  if (does_owe) import->acking++;
  pthread_mutex_unlock(&import->mutex);
  if (!does_owe) return;
  rc_cu_result result = rc_import_enqueue_ack(import, slot, &copy);
  pthread_mutex_lock(&import->mutex);
  import->acking--;
  if (taken->owed == RC_OWES_ACK && result != RC_CU_STREAM_CAPTURE_UNSUPPORTED) /* else rc_import_lose has stored it */
    taken->owed = result == RC_CU_SUCCESS ? RC_OWES_NOTHING : RC_OWES_ACK_SOON;
  pthread_mutex_unlock(&import->mutex);
}

/* Whether there are some for which the context is to be synchronised: later ones are not covered. */
static bool pay_all(struct rc_import *import) {
  bool has_left = false;
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) pay(import, slot);
  pthread_mutex_lock(&import->mutex);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    has_left |= import->taken[slot].owed == RC_OWES_ACK_SOON;
  pthread_mutex_unlock(&import->mutex);
  return has_left;
}

/* The words are there as long as one is owed. */
static void note_settled(struct rc_import *import, bool is_done) {
  pthread_mutex_lock(&import->mutex);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    struct rc_taken *taken = &import->taken[slot];
    if (taken->owed != RC_OWES_ACK_SOON) continue;
    taken->owed = is_done ? RC_OWES_NOTHING : RC_OWES_ACK;
    if (!is_done) continue;
    rc_word_store(rc_gpu_ack(&import->segment, slot, import->consumer), taken->generation);
  }
  import->is_settling = false;
  pthread_mutex_unlock(&import->mutex);
}

/* A thread of its own: to enqueue, and to synchronise, may wait for the writer, whose death the watcher sees, and for
 * what the reader's thread is still to do, which takes the mutex for it. */
static void *settle(void *context) {
  struct rc_import *import = context;
  struct rc_cuda_entry entry;
  bool is_done = false;
  if (rc_cuda_enter(import->device.context, &entry) == RC_CU_SUCCESS) {
    is_done = pay_all(import) && rc_device_synchronise(&import->device, &import->seldom);
    rc_cuda_leave(&entry);
  }
  note_settled(import, is_done);
  rc_import_drop(import);
  return NULL;
}

/* False: something is owed still. */
static bool see_to_owed(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool does_owe = count_owed(import) > 0, starts = does_owe && !import->is_settling;
  if (starts) import->is_settling = true;
  pthread_mutex_unlock(&import->mutex);
  if (!starts) return !does_owe;
  rc_add_acq_rel(&import->holders, 1);
  if (rc_thread_start(settle, import) == 0) return false;
  note_settled(import, false); /* no thread is to be had now */
  rc_import_drop(import);
  return false;
}

static void pause_longer(struct timespec *pause) {
  nanosleep(pause, NULL);
  if (pause->tv_nsec < MOST_PAUSE_NS) pause->tv_nsec *= 2;
}

/* The reader has closed, and its streams go on. */
static void see_to_the_end(struct rc_import *import) {
  struct timespec pause = {.tv_nsec = PAUSE_NS};
  for (int64_t looked = -LOOK_NS; !rc_import_is_idle(import); pause_longer(&pause)) {
    int64_t now = rc_now_ns();
    see_to_death(import);
    see_to_owed(import);
    if (now - looked < LOOK_NS) continue;
    see_to_device(import);
    looked = now;
  }
  while (is_looking(import)) pause_longer(&pause); /* no stream waits for the writer any more */
  rc_import_finish(import);
}

/* What can't be done at once is tried until it can; the end sees to what is left then. */
static void see_to_the_rest(struct rc_import *import) {
  struct timespec pause = {.tv_nsec = PAUSE_NS};
  while (!rc_load_acquire(&import->closing)) { /* pairs with the store of close */
    bool owes_nothing = see_to_owed(import);
    if (owes_nothing) return;
    see_to_device(import);
    pause_longer(&pause);
    see_to_death(import);
  }
}

static void *watch(void *context) {
  struct rc_import *import = context;
  const struct rc_wait how = {.poll = look, .check = check, .context = import};
  while (!rc_load_acquire(&import->closing)) { /* pairs with the store of close */
    rc_wait(&import->waiter, &how, RINGCAST_FOREVER);
    see_to_death(import);
    see_to_the_rest(import);
  }
  see_to_the_end(import);
  rc_import_drop(import);
  return NULL;
}

int rc_watcher_start(struct rc_import *import) {
  return rc_thread_start(watch, import) == 0 ? 0 : rc_fail(-ENOMEM, "no thread is to be had, to watch the writer");
}
