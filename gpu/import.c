/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader's side of the pool: what is being read of it, and how that ends. It is opened, and closed, in opening.c.
 *
 *   a frame of the pool, read                       the watcher, when the writer dies
 *   U1  note the generation (`taken`)               X0  dead = 1, here and in the segment
 *   U2  enqueue: wait until ready >= generation     X1  each that is noted, and whose `ready` has not come: store it
 *   U3  enqueue: copies out of the extent           X2  what was waited for counts as missing
 *   U4  enqueue: ack = generation
 *
 * U1 and X0 are under one mutex, the others are not: to enqueue may itself wait for the device, which waits for X1.
 * So what is noted before X0 is released by X1, whether it is enqueued already or only afterwards, as a word that was
 * reached stays reached; and what would be noted after X0 is refused.
 *
 * `ready` is everybody's, so the first reader that finds the writer dead releases the others' streams too, before they
 * know. So X1 stores a value that no device writes, by which each finds X2 of its own; and as X0 comes before X1, who
 * asks whether what its stream has read is right (rc_import_is_missing) sees the death no later than the stream did,
 * and does X1 and X2 itself: its own watcher may be before them still.
 *
 * By hand, `ready` is stored only for the dead, and `ack` only where nothing of this reader reads the extent any more:
 * where nothing was enqueued, or after the context was synchronised, or has failed for good. Where the stream does not
 * take it, as while it captures a graph, the `ack` is owed: a thread of the watcher's tries again, until the stream
 * does; or where that takes nothing any more, as it was destroyed against the rules, synchronises the context, but not
 * at each try.
 *
 * A frame's generation is that of its slot's `ready`, or the next one, as the slot is not used again before this reader
 * has acknowledged it. Any other is damage, and would be waited for without end.
 */
#include "gpu/import.h"

#include <errno.h>
#include <time.h>

#include "ring/point.h"
#include "shm/error.h"

#define CLOSE_NS ((int64_t)1000 * 1000 * 1000)

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

bool rc_import_counts(const struct rc_import *import, uint64_t position) {
  struct rc_gpu_consumer *place = rc_import_place(import);
  if (rc_load_acquire(&place->counted_turn) != import->turn) return false; /* O4 <- D2 */
  return rc_load_relaxed(&place->counted_from) <= position;                /* relaxed: the acquire above */
}

/* Whether it can be the frame's: the slot's last generation, or the one under way. */
static bool is_plausible(const struct rc_import *import, uint32_t slot, uint64_t generation) {
  struct rc_word *ready = rc_gpu_ready(&import->segment, slot);
  return generation - rc_load_acquire(&ready->whole) <= 1; /* pairs with Q3 */
}

/* A peer could write `ack` too; but a peer that writes the words can also write the pool. */
static bool is_acked(const struct rc_import *import, uint32_t slot) {
  const struct rc_taken *taken = &import->taken[slot];
  if (taken->generation == 0) return true;
  return taken->acked && rc_word_has_reached(rc_gpu_ack(&import->segment, slot, import->consumer), taken->generation);
}

static int fail_damaged(void) {
  return rc_fail_as(-EPROTO, "the frame names a place in the device pool that can't be right");
}

int rc_import_fail_dead(void) {
  return rc_fail_as(-EPIPE, "the writer, or its device, is gone, and with it what this frame has in its device pool");
}

int rc_import_take(struct rc_import *import, uint32_t slot, uint64_t generation, rc_cu_stream stream) {
  int failed = 0;
  if (slot >= import->segment.slots) return fail_damaged();
  if (!is_plausible(import, slot, generation)) /* a word that was released is not, either */
    return rc_load_acquire(&rc_gpu_control(&import->segment)->dead) ? rc_import_fail_dead() /* pairs with X0 */
                                                                    : fail_damaged();
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  if (rc_load_relaxed(&import->dead)) failed = -EPIPE; /* relaxed: under the mutex */
  else if (taken->open || taken->holds > 0 || !is_acked(import, slot)) failed = -EPROTO;
  else *taken = (struct rc_taken){.generation = generation, .stream = stream, .open = true}; /* U1 */
  pthread_mutex_unlock(&import->mutex);
  RC_POINT(TAKE_NOTED);
  return failed == 0 ? 0 : failed == -EPIPE ? rc_import_fail_dead() : fail_damaged();
}

void rc_import_forget(struct rc_import *import, uint32_t slot) {
  pthread_mutex_lock(&import->mutex);
  import->taken[slot] = (struct rc_taken){.generation = 0};
  pthread_mutex_unlock(&import->mutex);
}

/* What the caller of acknowledge was to do is done, or is owed. The watcher is woken under the mutex: it may see the
 * note before that, but not unmap the words. */
static void note_acknowledged(struct rc_import *import, uint32_t slot, uint64_t generation, bool is_done) {
  pthread_mutex_lock(&import->mutex);
  import->acking--;
  struct rc_taken *taken = &import->taken[slot];
  if (!is_done && taken->generation == generation && !is_acked(import, slot)) { /* else rc_import_lose has stored it */
    taken->owed = RC_OWES_ACK;
    rc_watcher_wake(import);
  }
  pthread_mutex_unlock(&import->mutex);
}

static rc_cu_result write_ack(const struct rc_import *import, uint32_t slot, const struct rc_taken *taken) {
  uint64_t at = rc_gpu_ack_at(import->segment.consumers, slot, import->consumer);
  return rc_word_write(import->device.cuda, taken->stream, rc_import_address(import, at), taken->generation);
}

/* A stream that captures by now would take the word for its graph. */
rc_cu_result rc_import_enqueue_ack(const struct rc_import *import, uint32_t slot, const struct rc_taken *taken) {
  if (rc_device_check_stream(&import->device, taken->stream) == -EBUSY) return RC_CU_STREAM_CAPTURE_UNSUPPORTED;
  return write_ack(import, slot, taken);
}

/* U4, or, where the device has failed, by hand. Else, if the stream does not take it, it is owed. */
static rc_cu_result acknowledge(struct rc_import *import, uint32_t slot, const struct rc_taken *taken,
                                bool has_entered) {
  struct rc_cuda_entry entry;
  rc_cu_result result = has_entered ? RC_CU_SUCCESS : rc_cuda_enter_context(import->device.context, &entry);
  if (has_entered) {
    result = write_ack(import, slot, taken);
  } else if (result == RC_CU_SUCCESS) {
    result = rc_import_enqueue_ack(import, slot, taken);
    rc_cuda_leave(&entry);
  }
  bool is_done = result == RC_CU_SUCCESS || rc_device_is_lost(&import->device);
  if (result != RC_CU_SUCCESS && is_done) rc_word_store(rc_import_ack(import, slot), taken->generation);
  RC_POINT(ACK_ENQUEUED);
  note_acknowledged(import, slot, taken->generation, is_done);
  return result;
}

/* Whether it is this caller's to acknowledge now. Under the mutex. */
static bool is_due(struct rc_taken *taken) {
  bool due = !taken->open && taken->holds == 0 && !taken->acked && taken->generation != 0;
  taken->acked |= due;
  return due;
}

static rc_cu_result settle(struct rc_import *import, uint32_t slot, bool ends, bool has_entered) {
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  if (ends) taken->open = false;
  else taken->holds--;
  bool due = is_due(taken);
  if (due) import->acking++; /* the word may be reached before the call that enqueues it returns: not idle until then */
  struct rc_taken copy = *taken;
  pthread_mutex_unlock(&import->mutex);
  return due ? acknowledge(import, slot, &copy, has_entered) : RC_CU_SUCCESS;
}

/* Another take may be open there: of the frame that was sent in the slot since. Only the reader's own thread opens, and
 * ends, them. */
rc_cu_result rc_import_end(struct rc_import *import, uint32_t slot, uint64_t generation, bool has_entered) {
  pthread_mutex_lock(&import->mutex);
  bool is_it = import->taken[slot].open && import->taken[slot].generation == generation;
  pthread_mutex_unlock(&import->mutex);
  return is_it ? settle(import, slot, true, has_entered) : RC_CU_SUCCESS;
}

void rc_import_unhold(struct rc_import *import, uint32_t slot) { settle(import, slot, false, false); }

bool rc_import_hold(struct rc_import *import, uint32_t slot, uint64_t generation) {
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  bool can = taken->open && taken->generation == generation;
  if (can) taken->holds++;
  pthread_mutex_unlock(&import->mutex);
  if (can) rc_add_acq_rel(&import->holders, 1);
  return can;
}

void rc_import_pass(struct rc_import *import, uint32_t slot, uint64_t generation) {
  if (slot >= import->segment.slots || !is_plausible(import, slot, generation)) return;
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  bool is_new = !taken->open && taken->holds == 0 && is_acked(import, slot);
  if (is_new) *taken = (struct rc_taken){.generation = 0}; /* nothing waits for it, to be released */
  pthread_mutex_unlock(&import->mutex);
  if (is_new) rc_word_store(rc_import_ack(import, slot), generation);
}

/* ---- Ends ------------------------------------------------------------------------------------------------------- */

/* X1 -> U2, or what another reader has done of it. Under the mutex. */
static void release_wait(struct rc_import *import, uint32_t slot) {
  uint64_t generation = import->taken[slot].generation;
  struct rc_word *ready = rc_gpu_ready(&import->segment, slot);
  if (generation == 0) return;
  bool was_released = rc_word_was_released(ready, generation);
  if (!was_released && rc_word_has_reached(ready, generation)) return;
  rc_store_release(&import->missing, 1); /* X2, first: who sees the word sees that it means nothing */
  if (!was_released) rc_word_store(ready, rc_word_released(generation));
}

/* Under the mutex. */
static void mark_dead(struct rc_import *import) {
  rc_store_release(&import->dead, 1);                           /* X0 */
  rc_store_release(&rc_gpu_control(&import->segment)->dead, 1); /* X0, for the others */
  RC_POINT(DEATH_SEEN);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) release_wait(import, slot);
}

void rc_import_mark_dead(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  mark_dead(import);
  pthread_mutex_unlock(&import->mutex);
  RC_POINT(WAITS_RELEASED);
}

bool rc_import_is_missing(struct rc_import *import) {
  bool is_told = rc_load_acquire(&rc_gpu_control(&import->segment)->dead); /* pairs with X0 of another reader */
  /* Also if the watcher is at it: it may stand before X2, while another reader has done X1 for it. */
  if (is_told && !rc_load_acquire(&import->missing)) rc_import_mark_dead(import); /* pairs with X2 */
  return rc_load_acquire(&import->missing);                                       /* pairs with X2 */
}

/* Once the words are gone, none of its streams waits for one. */
bool rc_import_was_missing(struct rc_import *import, bool *has_ended) {
  pthread_mutex_lock(&import->mutex);
  bool is_told = !import->unmapped && rc_load_acquire(&rc_gpu_control(&import->segment)->dead); /* as above */
  if (is_told && !rc_load_relaxed(&import->dead)) mark_dead(import); /* relaxed: under the mutex */
  bool is_missing = rc_load_acquire(&import->missing);               /* pairs with X2 */
  *has_ended = import->ended;
  pthread_mutex_unlock(&import->mutex);
  return is_missing;
}

void rc_import_lose(struct rc_import *import, int reason) {
  rc_import_refuse(import, reason);
  rc_store_release(&rc_import_place(import)->opened, 0); /* the writer goes on without: D1 */
  pthread_mutex_lock(&import->mutex);
  rc_store_release(&import->missing, 1);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    struct rc_taken *taken = &import->taken[slot];
    taken->owed = RC_OWES_NOTHING;
    if (is_acked(import, slot)) continue;
    taken->acked = true; /* a context that has failed reads nothing any more */
    rc_word_store(rc_import_ack(import, slot), taken->generation);
  }
  pthread_mutex_unlock(&import->mutex);
}

/* Under the mutex. */
static bool has_none_under_way(const struct rc_import *import) {
  if (import->acking > 0) return false;
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    if (import->taken[slot].holds > 0 || !is_acked(import, slot)) return false;
  return true;
}

bool rc_import_is_idle(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool idle = has_none_under_way(import);
  pthread_mutex_unlock(&import->mutex);
  return idle;
}

/* Under the mutex. */
static bool has_holds(const struct rc_import *import) {
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    if (import->taken[slot].holds > 0) return true;
  return false;
}

void rc_import_close(struct rc_import *import) {
  if (import->forks != rc_fork_count()) return; /* the parent's; the watcher is not here either */
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    if (import->taken[slot].open)
      settle(import, slot, true, false); /* only the reader's own thread opens and ends them */
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += CLOSE_NS / 1000000000;
  pthread_mutex_lock(&import->mutex); /* the watcher may see it before it is woken, but not unmap the words */
  /* What is sent from here on is not for this import, however long it stays: D1. */
  rc_store_release(&rc_import_place(import)->opened, 0);
  rc_store_release(&import->closing, 1); /* -> the watcher's look */
  rc_watcher_wake(import);
  /* What is held is given back by whoever holds it, at any time. */
  while (!import->ended && !has_holds(import) && pthread_cond_timedwait(&import->change, &import->mutex, &until) == 0)
    continue;
  pthread_mutex_unlock(&import->mutex);
}
