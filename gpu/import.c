/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader's import of the pool: the open takes, and the end of the import.
 *
 *   a frame of the pool, read                     the watcher, when the writer dies
 *   U1  record the generation (`taken`)           X0  dead = 1, here and in the segment
 *   U2  enqueue: wait until ready >= generation   X1  store each recorded `ready` not reached
 *   U3  enqueue: copies out of the extent         X2  the frames of these slots count as missing
 *   U4  enqueue: ack = generation
 *
 * U1 and X0 hold one mutex. U2 to U4 do not, as a call that enqueues may wait for the device, which
 * waits for X1. So X1 releases each wait that was recorded before X0, whether the wait is enqueued
 * before or after X1, as a reached semaphore stays reached; a take after X0 is refused.
 *
 * All readers wait for the same `ready`. So the first reader that finds the writer dead also
 * releases the streams of readers that have not noticed the death, and a writer with a failed pool
 * does X0 and X1 (note_loss in writer.c). X1 stores a value that no device writes, by which each
 * reader detects X2. As X0 comes before X1, a reader that checks whether a stream has read the
 * right bytes (rc_import_is_missing) sees the death no later than the stream, and does X1 and X2.
 *
 * The host stores `ready` only for a dead writer. The host stores `ack` only if no stream of this
 * reader reads the extent any more: nothing was enqueued, or the driver says that the device is
 * lost, and then all received frames count as missing. A stream that captures a graph when `ack` is
 * due would add the `ack` to the graph: the `ack` is pending, and the worker enqueues the `ack`
 * after the capture.
 *
 * A frame's generation is the generation of the slot's `ready`, or the next one, as the slot is not
 * used again before this reader's `ack`. A different generation is damage, for which a stream would
 * wait without end.
 */
#include "gpu/import.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "shm/error.h"

/* Between two checks of the device of an import that is not idle. */
#define LOOK_NS ((int64_t)1000 * 1000 * 1000)

static struct rc_gpu_importer *place_of(const struct rc_import *import) {
  return &rc_gpu_control(&import->segment)->importers[import->importer];
}
static struct rc_semaphore *ack_of(const struct rc_import *import, uint32_t slot) {
  return rc_gpu_ack(&import->segment, slot, import->importer);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static bool enqueue_pending(struct rc_job *job);
static void drop_acks(struct rc_job *job);
static void writer_died(struct rc_watched *watched);

static struct rc_import *make_import(ringcast_reader *reader) {
  struct rc_import *import = calloc(1, sizeof *import);
  if (!import) return NULL;
  import->segment.memory.fd = -1;
  import->owner = reader->ring.owner;
  import->importer = reader->ring.slot;
  import->forks = rc_forks_seen;
  pthread_mutex_init(&import->mutex, NULL);
  atomic_init(&import->holders, 1);
  import->acks = (struct rc_job){.run = enqueue_pending, .end = drop_acks};
  import->writer.died = writer_died;
  rc_watch_init(&import->writer.process, reader->segment.writer.pid, reader->segment.writer.start,
                UINT64_MAX);
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

/* Release: pairs with the acquires of the next reader in the place, and of the writer. */
static void leave_place(struct rc_import *import) {
  struct rc_gpu_importer *place = place_of(import);
  rc_store_relaxed(&place->opened, 0); /* relaxed: the release below */
  rc_store_release(&place->owner, 0);
  RC_POINT(PLACE_LEFT);
}

/* Closes the pool, the place and the segment. The context is current. */
static void close_all(struct rc_import *import) {
  if (import->by_handle) import->device.cuda->ipc_close_handle(import->pool);
  import->by_handle = false;
  RC_POINT(IMPORT_CLOSED);
  leave_place(import);
  rc_gpu_segment_destroy(&import->segment, import->device.cuda);
}

/* Stores for the writer why this reader can't use the pool. */
static void refuse(struct rc_import *import, int failed) {
  struct rc_gpu_importer *place = place_of(import);
  int reason = rc_cuda_last_failure != RC_CU_SUCCESS ? rc_cuda_last_failure : failed;
  rc_store_relaxed(&place->reason, reason); /* relaxed: the release below */
  rc_store_release(&place->refused, import->owner);
}

/* ---- Open ------------------------------------------------------------------------------------ */

/* The open of a pool by a reader: a place in the segment, and the pool's memory, opened and tried.
 * writer.c defines O1 to O4. */

/* O1. The `ack`s of the place may be a dead reader's: they are set to generations of frames that do
 * not expect this reader. */
static int take_place(struct rc_import *import) {
  struct rc_gpu_importer *place = place_of(import);
  /* Pairs with the store by which the earlier reader left. */
  uint64_t before = rc_load_acquire(&place->owner);
  if (before != 0 && !rc_owner_is_dead(before))
    return rc_fail_as(
        -EAGAIN, "an earlier reader in this slot of the ring has not closed the device pool yet");
  if (!rc_cas_strong_acq_rel(&place->owner, &before, import->owner)) /* only after damage */
    return rc_fail_as(-EAGAIN, "a different reader takes this place in the device pool");
  /* The fence: the reader takes the place, then loads `closed`; the writer stores `closed`, then
   * loads the owners. One of the two sees the store of the other. <-> rc_exported_leave */
  rc_fence_full();
  /* Pairs with the store of leave. */
  if (rc_load_acquire(&rc_gpu_control(&import->segment)->closed)) {
    leave_place(import);
    return rc_fail_as(-ENOENT, "the writer has closed its device pool");
  }
  import->turn = rc_load_relaxed(&place->turn) + 1; /* relaxed: this reader has the place */
  if (import->turn == 0) import->turn = 1;
  /* Release: a writer that loads the turn sees that the earlier reader has left, or never opened
   * the pool. -> D1 */
  /* relaxed: the release below; a dead reader has left the old value. */
  rc_store_relaxed(&place->opened, 0);
  rc_store_release(&place->turn, import->turn);
  rc_store_relaxed(&place->refused, 0); /* relaxed: the release of O3 */
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    /* Pairs with Q3. */
    uint64_t ready = rc_load_acquire(&rc_gpu_ready(&import->segment, slot)->value);
    rc_semaphore_store(ack_of(import, slot), ready);
  }
  RC_POINT(PLACE_TAKEN);
  return 0;
}

/* As nvidia-smi -L and ringcast doctor begin the devices' names. */
#define NAME_FORMAT "GPU-%02x%02x%02x%02x"

static int open_memory(struct rc_import *import, const struct rc_process *writer,
                       const struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = import->device.cuda;
  const uint8_t *own = import->device.uuid, *theirs = id->uuid;
  struct rc_process self;
  rc_cu_ptr base;
  size_t bytes;
  if (rc_process_self(&self) == 0 && self.pid == writer->pid && self.start == writer->start) {
    import->pool = rc_exported_find(id->token, id->epoch, &import->device);
    if (!import->pool)
      return rc_fail_as(-ENOTSUP, "the writer is in this very process, on another device");
  } else {
    rc_cu_result result =
        cuda->ipc_open_handle(&import->pool, id->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    import->by_handle = result == RC_CU_SUCCESS;
    if (result != RC_CU_SUCCESS)
      return rc_cuda_code(
          result,
          "cuIpcOpenMemHandle of the writer's pool, which is on " NAME_FORMAT ", by " NAME_FORMAT,
          theirs[0], theirs[1], theirs[2], theirs[3], own[0], own[1], own[2], own[3]);
  }
  /* The segment may be damaged, and a read beyond the memory would break the context; the driver
   * knows the size. */
  if (cuda->mem_get_address_range(&base, &bytes, import->pool) != RC_CU_SUCCESS) return 0;
  uint64_t before = import->pool - base;
  if (before <= bytes && bytes - before >= id->pool_bytes + RC_GPU_PATTERN) return 0;
  return rc_fail_as(
      -EPROTO,
      "the writer's device segment is damaged: the pool is not as large as the segment says");
}

static int try_memory(const struct rc_import *import, const struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = import->device.cuda;
  uint64_t pattern[RC_GPU_PATTERN / sizeof(uint64_t)] = {0};
  rc_cu_stream stream;
  int failed = rc_stream_make(cuda, rc_semaphore_patience_ns, &stream);
  if (failed != 0) return failed;
  rc_cu_result result =
      cuda->copy_dtoh(pattern, import->pool + id->pool_bytes, sizeof pattern, stream);
  if (result == RC_CU_SUCCESS) result = rc_stream_await(cuda, stream, rc_semaphore_patience_ns);
  if (result == RC_CU_NOT_READY)
    return rc_fail_as(-ETIMEDOUT, "the writer's pool could not be read in time");
  cuda->stream_destroy(stream);
  if (result != RC_CU_SUCCESS) return rc_cuda_code(result, "reading the writer's pool");
  for (uint32_t i = 0; i < RC_GPU_PATTERN / sizeof(uint64_t); i++)
    if (pattern[i] != rc_gpu_pattern(id->seed, i))
      return rc_fail_as(
          -ENOTSUP,
          "the handle of the writer's pool has opened other memory: the pattern is missing");
  return 0;
}

static int open_and_try(struct rc_import *import, const struct rc_process *writer,
                        const struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = import->device.cuda;
  int failed = rc_gpu_segment_register(&import->segment, cuda);
  if (failed == 0) failed = open_memory(import, writer, id);
  RC_POINT(POOL_OPENED);
  if (failed == 0) failed = try_memory(import, id);
  if (failed == 0)
    failed = rc_gpu_segment_try(&import->segment, cuda, import->importer, rc_semaphore_patience_ns);
  RC_POINT(POOL_TRIED);
  return failed;
}

static int set_up(struct rc_import *import, ringcast_reader *reader,
                  const struct rc_gpu_identity *id) {
  import->pool_bytes = id->pool_bytes;
  import->taken = calloc(import->segment.slots, sizeof *import->taken);
  if (!import->taken) return rc_fail(-ENOMEM, "out of memory");
  rc_cuda_last_failure = RC_CU_SUCCESS;
  int failed = take_place(import);
  if (failed != 0) return failed;
  failed = open_and_try(import, &reader->segment.writer, id);
  if (failed == 0) failed = rc_watcher_add(&import->writer);
  if (failed == 0) return 0;
  refuse(import, failed);
  if (failed == -ETIMEDOUT)
    import->device.context = NULL; /* a stream hangs: context and semaphores must stay */
  else close_all(import);
  return failed;
}

int rc_import_open(ringcast_reader *reader, const struct rc_device *device,
                   const struct rc_gpu_place *place, struct rc_import **out) {
  struct rc_gpu_identity id;
  struct rc_import *import = make_import(reader);
  if (!import) return rc_fail(-ENOMEM, "out of memory");
  int failed = rc_device_open(device->ordinal, &import->device);
  if (failed == 0)
    failed = rc_gpu_segment_attach(&reader->segment.writer, place,
                                   rc_segment_control(&reader->segment)->id.token,
                                   reader->segment.slots, &import->segment, &id);
  if (failed == 0) failed = set_up(import, reader, &id);
  if (failed != 0) {
    if (failed != -ETIMEDOUT) rc_gpu_segment_destroy(&import->segment, device->cuda);
    rc_import_drop(import);
    return failed;
  }
  rc_store_release(&place_of(import)->opened, import->owner); /* O3 -> D1 */
  RC_POINT(OPENED_TOLD);
  *out = import;
  return 0;
}

/* ---- Takes, and what acknowledges them ------------------------------------------------------- */

bool rc_import_is_expected(const struct rc_import *import, uint64_t position) {
  struct rc_gpu_importer *place = place_of(import);
  if (rc_load_acquire(&place->expected_turn) != import->turn) return false; /* O4 <- D2 */
  return rc_load_relaxed(&place->expected_from) <= position; /* relaxed: the acquire above */
}

/* Whether the generation can be a frame's: the slot's last generation, or the generation under
 * way. */
static bool is_plausible(const struct rc_import *import, uint32_t slot, uint64_t generation) {
  struct rc_semaphore *ready = rc_gpu_ready(&import->segment, slot);
  return generation - rc_load_acquire(&ready->value) <= 1; /* pairs with Q3 */
}

/* A peer could write `ack` too; but a peer that writes the semaphores can also write the pool. */
static bool is_acked(const struct rc_import *import, uint32_t slot) {
  const struct rc_taken *taken = &import->taken[slot];
  if (taken->generation == 0) return true;
  return taken->acked && rc_semaphore_has_reached(ack_of(import, slot), taken->generation);
}

/* Called with the mutex held. */
static void set_not_pending(struct rc_import *import, uint32_t slot) {
  import->pending -= import->taken[slot].pending;
  import->taken[slot].pending = false;
}

static int fail_damaged(void) {
  return rc_fail_as(-EPROTO, "the frame is damaged: it names an invalid place in the device pool");
}

static int fail_dead(void) {
  return rc_fail_as(
      -EPIPE,
      "the writer, or the writer's device, is gone, and with it the frame's device tensors");
}

int rc_import_take(struct rc_import *import, uint32_t slot, uint64_t generation,
                   rc_cu_stream stream) {
  int failed = 0;
  if (slot >= import->segment.slots) return fail_damaged();
  if (!is_plausible(import, slot, generation)) { /* nor is the value of a released semaphore */
    bool is_dead = rc_load_acquire(&rc_gpu_control(&import->segment)->dead); /* pairs with X0 */
    return is_dead ? fail_dead() : fail_damaged();
  }
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  if (rc_load_relaxed(&import->dead)) failed = -EPIPE; /* relaxed: under the mutex */
  else if (taken->open || taken->holds > 0 || !is_acked(import, slot)) failed = -EPROTO;
  else
    *taken = (struct rc_taken){.generation = generation, .stream = stream, .open = true}; /* U1 */
  pthread_mutex_unlock(&import->mutex);
  RC_POINT(TAKE_NOTED);
  if (failed == -EPIPE) return fail_dead();
  if (failed == -EPROTO) return fail_damaged();
  return 0;
}

void rc_import_forget(struct rc_import *import, uint32_t slot) {
  pthread_mutex_lock(&import->mutex);
  import->taken[slot] = (struct rc_taken){.generation = 0};
  pthread_mutex_unlock(&import->mutex);
}

static rc_cu_result write_ack(const struct rc_import *import, uint32_t slot,
                              const struct rc_taken *taken) {
  uint64_t at = rc_gpu_ack_at(import->segment.importers, slot, import->importer);
  return rc_semaphore_write(import->device.cuda, taken->stream, import->segment.address + at,
                            taken->generation);
}

/* For a thread that has not entered the context, and has not checked the stream. */
static rc_cu_result enter_and_write_ack(const struct rc_import *import, uint32_t slot,
                                        const struct rc_taken *taken) {
  struct rc_cuda_entry entry;
  rc_cu_result result = rc_cuda_enter_context(import->device.context, &entry);
  if (result != RC_CU_SUCCESS) return result;
  if (rc_device_check_stream(&import->device, taken->stream) == -EBUSY)
    result = RC_CU_STREAM_CAPTURE_UNSUPPORTED;
  else result = write_ack(import, slot, taken);
  rc_cuda_leave(&entry);
  return result;
}

/* U4. A failure makes the reader leave the pool before acking--, as the worker closes an idle
 * import. */
static rc_cu_result enqueue_ack(struct rc_import *import, uint32_t slot,
                                const struct rc_taken *taken, bool has_entered) {
  rc_cu_result result =
      has_entered ? write_ack(import, slot, taken) : enter_and_write_ack(import, slot, taken);
  RC_POINT(ACK_ENQUEUED);
  if (result == RC_CU_SUCCESS || result == RC_CU_STREAM_CAPTURE_UNSUPPORTED) return result;
  rc_import_lose(import, -EIO);
  rc_cuda_last_failure = result;
  return result;
}

static rc_cu_result acknowledge(struct rc_import *import, uint32_t slot,
                                const struct rc_taken *taken, bool has_entered) {
  rc_cu_result result = enqueue_ack(import, slot, taken, has_entered);
  pthread_mutex_lock(&import->mutex);
  import->acking--;
  bool is_pending = result != RC_CU_SUCCESS && !is_acked(import, slot);
  import->taken[slot].pending = is_pending;
  bool is_first = is_pending && import->pending++ == 0;
  pthread_mutex_unlock(&import->mutex);
  if (is_first) {
    rc_add_acq_rel(&import->holders, 1); /* the worker */
    rc_worker_do(&import->acks, 0);
  }
  return result;
}

/* Called with the mutex held. */
static bool has_holds(const struct rc_import *import) {
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    if (import->taken[slot].holds > 0) return true;
  return false;
}

/* Whether the import must go to the worker now. Called with the mutex held. */
static bool is_to_post(struct rc_import *import) {
  bool is_to = import->closing && !import->posted && import->acking == 0 && !has_holds(import);
  import->posted |= is_to;
  return is_to;
}

/* Called by the worker. Returns whether no `ack` is pending any more. */
static bool enqueue_pending(struct rc_job *job) {
  struct rc_import *import = RC_CONTAINER_OF(job, struct rc_import, acks);
  uint32_t left = 0;
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    pthread_mutex_lock(&import->mutex);
    struct rc_taken taken = import->taken[slot];
    import->acking += taken.pending;
    pthread_mutex_unlock(&import->mutex);
    rc_cu_result result = taken.pending ? enqueue_ack(import, slot, &taken, false) : RC_CU_SUCCESS;
    pthread_mutex_lock(&import->mutex);
    import->acking -= taken.pending;
    if (taken.pending && (result == RC_CU_SUCCESS || is_acked(import, slot)))
      set_not_pending(import, slot);
    left = import->pending;
    bool is_last = is_to_post(import); /* the reader may have closed while `acking` was not 0 */
    pthread_mutex_unlock(&import->mutex);
    if (is_last) rc_worker_do(&import->job, 0);
  }
  return left == 0;
}

static void drop_acks(struct rc_job *job) {
  rc_import_drop(RC_CONTAINER_OF(job, struct rc_import, acks));
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
  import->acking += due; /* not idle until the call that enqueues the `ack` has returned */
  struct rc_taken copy = *taken;
  pthread_mutex_unlock(&import->mutex);
  if (due) result = acknowledge(import, slot, &copy, has_entered);
  pthread_mutex_lock(&import->mutex);
  bool is_last = is_to_post(import);
  pthread_mutex_unlock(&import->mutex);
  if (is_last) rc_worker_do(&import->job, 0);
  return result;
}

/* A take of a later frame in the same slot may be open. Only the reader's thread opens and ends
 * takes. */
rc_cu_result rc_import_end(struct rc_import *import, uint32_t slot, uint64_t generation) {
  pthread_mutex_lock(&import->mutex);
  bool is_it = import->taken[slot].open && import->taken[slot].generation == generation;
  pthread_mutex_unlock(&import->mutex);
  return is_it ? settle(import, slot, true, true) : RC_CU_SUCCESS;
}

void rc_import_unhold(struct rc_import *import, uint32_t slot) {
  settle(import, slot, false, false);
}

void rc_import_hold(struct rc_import *import, uint32_t slot) {
  pthread_mutex_lock(&import->mutex);
  import->taken[slot].holds++;
  pthread_mutex_unlock(&import->mutex);
  rc_add_acq_rel(&import->holders, 1);
}

void rc_import_pass(struct rc_import *import, uint32_t slot, uint64_t generation) {
  if (slot >= import->segment.slots || !is_plausible(import, slot, generation)) return;
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  bool is_new = !taken->open && taken->holds == 0 && is_acked(import, slot);
  if (is_new)
    *taken = (struct rc_taken){.generation = 0}; /* no stream waits, so X1 has nothing to release */
  pthread_mutex_unlock(&import->mutex);
  if (is_new) rc_semaphore_store(ack_of(import, slot), generation);
}

/* ---- Death ----------------------------------------------------------------------------------- */

/* X1 -> U2, unless another process has done X1 already; and X2. Called with the mutex held. */
static void release_wait(struct rc_import *import, uint32_t slot) {
  uint64_t generation = import->taken[slot].generation;
  struct rc_semaphore *ready = rc_gpu_ready(&import->segment, slot);
  if (generation == 0) return;
  bool was_released = rc_semaphore_was_released(ready, generation);
  if (!was_released && rc_semaphore_has_reached(ready, generation)) return;
  rc_store_release(&import->missing, 1); /* X2, before X1: a reader that sees X1 sees X2 */
  if (!was_released) rc_semaphore_store(ready, rc_semaphore_released(generation));
}

/* Called with the mutex held. */
static void mark_dead(struct rc_import *import) {
  rc_store_release(&import->dead, 1);                           /* X0 */
  rc_store_release(&rc_gpu_control(&import->segment)->dead, 1); /* X0, for the other readers */
  RC_POINT(DEATH_SEEN);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) release_wait(import, slot);
}

/* Releases all waits of this reader's streams. Makes no call of the driver. */
static void writer_died(struct rc_watched *watched) {
  struct rc_import *import = RC_CONTAINER_OF(watched, struct rc_import, writer);
  pthread_mutex_lock(&import->mutex);
  mark_dead(import);
  pthread_mutex_unlock(&import->mutex);
  RC_POINT(WAITS_RELEASED);
}

/* Once the segment is unmapped, no stream of the import waits for a semaphore. */
bool rc_import_is_missing(struct rc_import *import, bool *has_ended) {
  /* The mutex: the watcher may stand before X2, after a different reader has done X1. */
  pthread_mutex_lock(&import->mutex);
  /* Pairs with X0. */
  bool is_told = !import->unmapped && rc_load_acquire(&rc_gpu_control(&import->segment)->dead);
  if (is_told && !rc_load_relaxed(&import->dead)) mark_dead(import); /* relaxed: under the mutex */
  if (has_ended)
    *has_ended = import->closing && rc_load_acquire(&import->holders) == 1; /* pairs with drop */
  pthread_mutex_unlock(&import->mutex);
  return rc_load_acquire(&import->missing); /* pairs with X2 */
}

/* For a lost device: no stream of this reader reads an extent, or will write an `ack`. */
static void acknowledge_all(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  rc_store_release(&import->missing, 1);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    struct rc_taken *taken = &import->taken[slot];
    if (is_acked(import, slot)) continue;
    set_not_pending(import, slot);
    taken->acked = true;
    rc_semaphore_store(ack_of(import, slot), taken->generation);
  }
  pthread_mutex_unlock(&import->mutex);
}

void rc_import_lose(struct rc_import *import, int reason) {
  refuse(import, reason);
  rc_store_release(&place_of(import)->opened, 0); /* D1: the writer sends INLINE */
  rc_store_release(&import->failed, 1);
  if (rc_device_is_lost(&import->device))
    acknowledge_all(import); /* else the streams will write each `ack` */
}

/* ---- The end --------------------------------------------------------------------------------- */

static bool is_idle(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool idle = import->acking == 0 && !has_holds(import);
  for (uint32_t slot = 0; slot < import->segment.slots && idle; slot++)
    idle = is_acked(import, slot);
  pthread_mutex_unlock(&import->mutex);
  return idle;
}

/* Called by the worker. Closes the import once no stream reads the pool any more. */
static bool try_to_close(struct rc_job *job) {
  struct rc_import *import = RC_CONTAINER_OF(job, struct rc_import, job);
  struct rc_cuda_entry entry;
  if (!is_idle(import)) {
    int64_t now = rc_now_ns();
    if (now - import->looked < LOOK_NS) return false;
    import->looked = now;
    if (rc_device_is_lost(&import->device)) acknowledge_all(import);
    return false;
  }
  rc_watcher_remove(&import->writer);
  pthread_mutex_lock(&import->mutex);
  import->unmapped = true; /* soon */
  pthread_mutex_unlock(&import->mutex);
  bool is_own = !import->by_handle;
  if (rc_cuda_enter(import->device.context, &entry) == RC_CU_SUCCESS) {
    close_all(import); /* the writer frees the pool only after this close */
    rc_cuda_leave(&entry);
  } else {
    leave_place(import);
    rc_memory_destroy(&import->segment.memory);
  }
  rc_device_close(&import->device);
  /* The writer, in this process, may have closed: then no later call frees the pool. */
  if (is_own) rc_exported_tidy(0);
  return true;
}

static void drop_job(struct rc_job *job) {
  rc_import_drop(RC_CONTAINER_OF(job, struct rc_import, job));
}

void rc_import_close(struct rc_import *import, int64_t patience_ns) {
  if (import->forks != rc_forks_seen) return; /* the parent owns the import */
  import->job = (struct rc_job){.run = try_to_close, .end = drop_job};
  rc_add_acq_rel(&import->holders, 1); /* the worker */
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    if (import->taken[slot].open)
      settle(import, slot, true, false); /* only the reader's thread opens and ends takes */
  pthread_mutex_lock(&import->mutex);
  /* D1: later frames do not expect this import, however long the import stays. */
  rc_store_release(&place_of(import)->opened, 0);
  import->closing = true;
  bool is_last = is_to_post(import);
  pthread_mutex_unlock(&import->mutex);
  if (is_last) rc_worker_do(&import->job, patience_ns);
}
