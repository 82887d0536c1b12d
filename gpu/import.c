/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader's side of the pool: what is being read of it, and how that ends. opening.c opens it.
 *
 *   a frame of the pool, read                       the watcher, when the writer dies
 *   U1  note the generation (`taken`)               X0  dead = 1, here and in the segment
 *   U2  enqueue: wait until ready >= generation     X1  each that is noted, and whose `ready` has not come: store it
 *   U3  enqueue: copies out of the extent           X2  what was waited for counts as missing
 *   U4  enqueue: ack = generation
 *
 * U1 and X0 are under one mutex, the others are not: to enqueue may itself wait for the device, which waits for X1.
 * So X1 releases what is noted before X0, whether the wait is enqueued already or only afterwards, as a word that was
 * reached stays reached; and what would be noted after X0 is refused.
 *
 * All readers wait for the same `ready`. So the first reader that finds the writer dead releases the others' streams
 * too, before the others know; and a writer whose pool fails does X0 and X1 itself (rc_gpu_writer_failed). So X1 stores
 * a value that no device writes, by which each reader finds its own X2; and as X0 comes before X1, a reader that asks
 * whether its stream has read the right bytes (rc_import_is_missing) sees the death no later than the stream did, and
 * does X1 and X2 itself.
 *
 * The host stores `ready` only for the dead, and `ack` only where nothing of this reader reads the extent any more:
 * where nothing was enqueued, or where the driver says that the device is lost, when all that was received counts as
 * missing. A stream that captures a graph when its `ack` is due would take the `ack` for its graph: that `ack` is
 * pending, and the reader's next call enqueues it, or the worker once the reader has closed.
 *
 * A frame's generation is that of its slot's `ready`, or the next one, as the slot is not used again before this reader
 * has acknowledged it. Any other is damage, and would be waited for without end.
 */
#include "gpu/import.h"

#include <errno.h>
#include <stdlib.h>

#include "gpu/exported.h"
#include "gpu/point.h"
#include "shm/error.h"

#define LOOK_NS ((int64_t)1000 * 1000 * 1000) /* between two looks at the device of an import that is not idle */

/* ---- Life ------------------------------------------------------------------------------------------------------- */

static void writer_died(struct rc_watched *watched) {
  rc_import_mark_dead(RC_CONTAINER_OF(watched, struct rc_import, writer));
}

struct rc_import *rc_import_new(ringcast_reader *reader) {
  struct rc_import *import = calloc(1, sizeof *import);
  if (!import) return NULL;
  import->owner = reader->ring.owner;
  import->consumer = reader->ring.slot;
  import->forks = rc_fork_count();
  pthread_mutex_init(&import->mutex, NULL);
  atomic_init(&import->holders, 1);
  import->writer.died = writer_died;
  rc_watch_init(&import->writer.process, reader->segment.writer.pid, reader->segment.writer.start, UINT64_MAX);
  return import;
}

void rc_import_drop(struct rc_import *import) {
  if (rc_sub_acq_rel(&import->holders, 1) != 1) return;
  rc_watch_close(&import->writer.process);
  rc_device_close(&import->device);
  pthread_mutex_destroy(&import->mutex);
  free(import->taken);
  free(import);
}

void rc_import_leave_place(struct rc_import *import) {
  struct rc_gpu_consumer *place = rc_import_place(import);
  rc_store_relaxed(&place->opened, 0); /* relaxed: the release below; a writer that sees it still counts on nobody */
  rc_store_release(&place->owner, 0);
  RC_POINT(PLACE_LEFT);
}

void rc_import_close_all(struct rc_import *import) {
  if (import->by_handle) import->device.cuda->ipc_close_handle(import->pool);
  import->by_handle = false;
  RC_POINT(IMPORT_CLOSED);
  rc_import_leave_place(import);
  rc_gpu_segment_destroy(&import->segment, import->device.cuda);
}

void rc_import_refuse(struct rc_import *import, int failed) {
  struct rc_gpu_consumer *place = rc_import_place(import);
  int reason = rc_cuda_last_failure != RC_CU_SUCCESS ? rc_cuda_last_failure : failed;
  rc_store_relaxed(&place->reason, reason); /* relaxed: the release below */
  rc_store_release(&place->refused, import->owner);
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

bool rc_import_counts(const struct rc_import *import, uint64_t position) {
  struct rc_gpu_consumer *place = rc_import_place(import);
  if (rc_load_acquire(&place->counted_turn) != import->turn) return false; /* O4 <- D2 */
  return rc_load_relaxed(&place->counted_from) <= position;                /* relaxed: the acquire above */
}

/* Whether the generation can be the frame's: the slot's last one, or the one under way. */
static bool is_plausible(const struct rc_import *import, uint32_t slot, uint64_t generation) {
  struct rc_word *ready = rc_gpu_ready(&import->segment, slot);
  return generation - rc_load_acquire(&ready->whole) <= 1; /* pairs with Q3 */
}

/* A peer could write `ack` too; but a peer that writes the words can also write the pool. */
static bool is_acked(const struct rc_import *import, uint32_t slot) {
  const struct rc_taken *taken = &import->taken[slot];
  if (taken->generation == 0) return true;
  return taken->acked && rc_word_has_reached(rc_import_ack(import, slot), taken->generation);
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

static rc_cu_result write_ack(const struct rc_import *import, uint32_t slot, const struct rc_taken *taken) {
  uint64_t at = rc_gpu_ack_at(import->segment.consumers, slot, import->consumer);
  return rc_word_write(import->device.cuda, taken->stream, rc_import_address(import, at), taken->generation);
}

/* For a thread that has looked at nothing yet. */
static rc_cu_result enter_and_write_ack(const struct rc_import *import, uint32_t slot, const struct rc_taken *taken) {
  struct rc_cuda_entry entry;
  rc_cu_result result = rc_cuda_enter_context(import->device.context, &entry);
  if (result != RC_CU_SUCCESS) return result;
  if (rc_device_check_stream(&import->device, taken->stream) == -EBUSY) result = RC_CU_STREAM_CAPTURE_UNSUPPORTED;
  else result = write_ack(import, slot, taken);
  rc_cuda_leave(&entry);
  return result;
}

/* U4. */
static rc_cu_result acknowledge(struct rc_import *import, uint32_t slot, const struct rc_taken *taken,
                                bool has_entered) {
  rc_cu_result result = has_entered ? write_ack(import, slot, taken) : enter_and_write_ack(import, slot, taken);
  bool has_failed = result != RC_CU_SUCCESS && result != RC_CU_STREAM_CAPTURE_UNSUPPORTED;
  RC_POINT(ACK_ENQUEUED);
  if (has_failed) rc_import_lose(import, -EIO); /* while it counts as acking: the worker closes it else */
  pthread_mutex_lock(&import->mutex);
  import->acking--;
  if (result != RC_CU_SUCCESS) {
    import->taken[slot].pending = true;
    rc_add_acq_rel(&import->pending, 1);
  }
  pthread_mutex_unlock(&import->mutex);
  if (has_failed) rc_cuda_last_failure = result;
  return result;
}

void rc_import_ack_pending(struct rc_import *import) {
  if (rc_load_acquire(&import->pending) == 0) return; /* what comes now is for the next call */
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    pthread_mutex_lock(&import->mutex);
    struct rc_taken taken = import->taken[slot];
    import->taken[slot].pending = false;
    import->acking += taken.pending;
    if (taken.pending) rc_sub_acq_rel(&import->pending, 1);
    pthread_mutex_unlock(&import->mutex);
    if (taken.pending) acknowledge(import, slot, &taken, false);
  }
}

/* Under the mutex. */
static bool has_holds(const struct rc_import *import) {
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    if (import->taken[slot].holds > 0) return true;
  return false;
}

/* Whether the worker is to close it from now on. Under the mutex. */
static bool is_to_post(struct rc_import *import) {
  bool is_to = import->closing && !import->posted && import->acking == 0 && !has_holds(import);
  import->posted |= is_to;
  return is_to;
}

/* The end of a take, or of a hold. */
static rc_cu_result settle(struct rc_import *import, uint32_t slot, bool ends, bool has_entered) {
  rc_cu_result result = RC_CU_SUCCESS;
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  if (ends) taken->open = false;
  else taken->holds--;
  bool due = !taken->open && taken->holds == 0 && !taken->acked && taken->generation != 0;
  taken->acked |= due;
  import->acking += due; /* the word may be reached before the call that enqueues it returns: not idle until then */
  struct rc_taken copy = *taken;
  pthread_mutex_unlock(&import->mutex);
  if (due) result = acknowledge(import, slot, &copy, has_entered);
  pthread_mutex_lock(&import->mutex);
  bool is_last = is_to_post(import);
  pthread_mutex_unlock(&import->mutex);
  if (is_last) rc_worker_do(&import->job, 0);
  return result;
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
  if (is_new) *taken = (struct rc_taken){.generation = 0}; /* no stream waits for it, to be released */
  pthread_mutex_unlock(&import->mutex);
  if (is_new) rc_word_store(rc_import_ack(import, slot), generation);
}

/* ---- Death ------------------------------------------------------------------------------------------------------ */

/* X1 -> U2, or what another process has done of it. Under the mutex. */
static void release_wait(struct rc_import *import, uint32_t slot) {
  uint64_t generation = import->taken[slot].generation;
  struct rc_word *ready = rc_gpu_ready(&import->segment, slot);
  if (generation == 0) return;
  bool was_released = rc_word_was_released(ready, generation);
  if (!was_released && rc_word_has_reached(ready, generation)) return;
  rc_store_release(&import->missing, 1); /* X2, first: a reader that sees the word sees that it means nothing */
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
  bool is_told = rc_load_acquire(&rc_gpu_control(&import->segment)->dead); /* pairs with X0 of another process */
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

/* Nothing of this reader reads an extent any more, and no stream of its writes an `ack`. */
static void acknowledge_all(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  rc_store_release(&import->missing, 1);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    struct rc_taken *taken = &import->taken[slot];
    if (is_acked(import, slot)) continue;
    if (taken->pending) rc_sub_acq_rel(&import->pending, 1);
    taken->pending = false;
    taken->acked = true;
    rc_word_store(rc_import_ack(import, slot), taken->generation);
  }
  pthread_mutex_unlock(&import->mutex);
}

void rc_import_lose(struct rc_import *import, int reason) {
  rc_import_refuse(import, reason);
  rc_store_release(&rc_import_place(import)->opened, 0); /* the writer goes on without: D1 */
  rc_store_release(&import->failed, 1);
  if (rc_device_is_lost(&import->device)) acknowledge_all(import); /* else the streams write each `ack` yet */
}

/* ---- The end ---------------------------------------------------------------------------------------------------- */

static bool is_idle(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool idle = import->acking == 0 && !has_holds(import);
  for (uint32_t slot = 0; slot < import->segment.slots && idle; slot++) idle = is_acked(import, slot);
  pthread_mutex_unlock(&import->mutex);
  return idle;
}

static void note_end(struct rc_import *import, bool *out) {
  pthread_mutex_lock(&import->mutex);
  *out = true;
  pthread_mutex_unlock(&import->mutex);
}

/* By the worker: closes all once no stream reads the pool any more. */
static bool try_to_close(struct rc_job *job) {
  struct rc_import *import = RC_CONTAINER_OF(job, struct rc_import, job);
  struct rc_cuda_entry entry;
  rc_import_ack_pending(import);
  if (!is_idle(import)) {
    int64_t now = rc_now_ns();
    if (now - import->looked < LOOK_NS) return false;
    import->looked = now;
    if (rc_device_is_lost(&import->device)) acknowledge_all(import);
    return false;
  }
  rc_watcher_remove(&import->writer);
  note_end(import, &import->unmapped); /* soon */
  bool is_own = !import->by_handle;
  if (rc_cuda_enter(import->device.context, &entry) == RC_CU_SUCCESS) {
    rc_import_close_all(import); /* as long as it is open here its writer can't free it */
    rc_cuda_leave(&entry);
  } else {
    rc_import_leave_place(import);
    rc_memory_destroy(&import->segment.memory);
  }
  rc_device_close(&import->device);
  if (is_own) rc_exported_tidy(0); /* its writer, of this process, may have closed: then nothing else looks */
  note_end(import, &import->ended);
  return true;
}

static void drop_job(struct rc_job *job) { rc_import_drop(RC_CONTAINER_OF(job, struct rc_import, job)); }

void rc_import_close(struct rc_import *import) {
  if (import->forks != rc_fork_count()) return; /* the parent's */
  import->job = (struct rc_job){.run = try_to_close, .end = drop_job};
  rc_add_acq_rel(&import->holders, 1); /* the worker */
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    if (import->taken[slot].open)
      settle(import, slot, true, false); /* only the reader's own thread opens and ends them */
  pthread_mutex_lock(&import->mutex);
  /* What is sent from here on is not for this import, however long it stays: D1. */
  rc_store_release(&rc_import_place(import)->opened, 0);
  import->closing = true;
  bool is_last = is_to_post(import);
  pthread_mutex_unlock(&import->mutex);
  if (is_last) rc_worker_do(&import->job, rc_gpu_close_ns);
}
