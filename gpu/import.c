/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader's side of the pool: opening it, what is being read of it, and closing it.
 *
 *   a frame of the pool, read                       the watcher, when the writer dies
 *   U1  note the generation (`taken`)               X0  dead = 1, here and in the segment
 *   U2  enqueue: wait until ready >= generation     X1  each that is noted, and whose `ready` has not come: store it
 *   U3  enqueue: copies out of the extent           X2  what was waited for counts as missing
 *   U4  enqueue: ack = generation; done, which is ours
 *
 * U1 and X0 are under one mutex, the others are not: to enqueue may itself wait for the device, which waits for X1.
 * So what is noted before X0 is released by X1, whether it is enqueued already or only afterwards, as a word that was
 * reached stays reached; and what would be noted after X0 is refused.
 *
 * `ready` is everybody's, so the first reader that finds the writer dead releases the others' streams too, before they
 * know. So X1 stores a value that no device writes, by which each finds X2 of its own; and as X0 comes before X1, who
 * asks whether what its stream has read is right (rc_import_is_missing) sees the death no later than the stream did.
 *
 * By hand, `ready` is stored only for the dead, and `ack` only where nothing of this reader reads the extent any more:
 * where nothing was enqueued, or after the context was synchronised, or has failed for good. Where none of that is so,
 * as while a graph is being captured, the `ack` is owed: a thread of the watcher's synchronises until it works.
 *
 * A frame's generation is that of its slot's `ready`, or the next one, as the slot is not used again before this reader
 * has acknowledged it. Any other is damage, and would be waited for without end.
 */
#include "gpu/import.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/writer.h"
#include "ring/point.h"
#include "shm/disable.h"
#include "shm/error.h"

#define TRY_NS   ((int64_t)2 * 1000 * 1000 * 1000)
#define PAUSE_NS 20000
#define CLOSE_NS ((int64_t)1000 * 1000 * 1000)
#define DONE_NS  ((int64_t)100 * 1000 * 1000)

static struct rc_gpu_consumer *own_place(const struct rc_import *import) {
  return &rc_gpu_control(&import->segment)->consumers[import->consumer];
}

static struct rc_word *ack_of(const struct rc_import *import, uint32_t slot) {
  return rc_gpu_ack(&import->segment, slot, import->consumer);
}

static rc_cu_ptr address_of(const struct rc_import *import, uint64_t at) { return import->segment.address + at; }

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

/* Release: pairs with the acquire of whoever takes the place next, and of the writer. */
static void leave_place(struct rc_import *import) {
  struct rc_gpu_consumer *place = own_place(import);
  rc_store_relaxed(&place->opened, 0); /* relaxed: the release below; who still sees it counts on one who has left */
  rc_store_relaxed(&place->lent, 0);
  rc_store_release(&place->owner, 0);
  RC_POINT(PLACE_LEFT);
}

/* O1. The words of this place may be those of a dead reader: from here on they are of frames that nobody counts on us
 * for. */
static int take_place(struct rc_import *import) {
  struct rc_gpu_consumer *place = own_place(import);
  uint64_t before = rc_load_acquire(&place->owner); /* pairs with the store by which the one before left */
  if (before != 0 && !rc_owner_is_dead(before))
    return rc_fail_as(-EAGAIN, "the reader that had this place before has not closed the device pool yet");
  if (!rc_cas_strong_acq_rel(&place->owner, &before, import->owner))
    return rc_fail_as(-EAGAIN, "another reader takes this place in the device pool"); /* it can't be, but for damage */
  /* The fence: we take the place, and look whether the pool is left; its writer leaves it, and looks who is there; one
   * of the two sees the other's. <-> rc_estate_leave */
  rc_fence_full();
  if (rc_load_acquire(&rc_gpu_control(&import->segment)->closed)) { /* pairs with the store of leave */
    leave_place(import);
    return rc_fail_as(-ENOENT, "the writer has closed its device pool");
  }
  import->turn = rc_load_relaxed(&place->turn) + 1; /* relaxed: the place is ours */
  if (import->turn == 0) import->turn = 1;
  /* Release: who sees it sees that the one before has left, or never opened the pool. -> D1 */
  rc_store_relaxed(&place->opened, 0); /* relaxed: the release below; of one that has died it may stand still */
  rc_store_release(&place->turn, import->turn);
  rc_store_relaxed(&place->lent, 0); /* relaxed: as the others, until O3 */
  rc_store_relaxed(&place->refused, 0);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    uint64_t ready = rc_load_acquire(&rc_gpu_ready(&import->segment, slot)->whole); /* pairs with Q3 */
    rc_word_store(ack_of(import, slot), 64, ready);
  }
  for (int i = 0; i < 2; i++) {
    uint64_t at = rc_gpu_try_at(import->segment.slots, import->segment.consumers, import->consumer);
    rc_word_store(rc_gpu_word(&import->segment, at) + i, 64, 0);
  }
  RC_POINT(PLACE_TAKEN);
  return 0;
}

static int open_memory(struct rc_import *import, const struct rc_process *writer, const struct rc_gpu_identity *id) {
  struct rc_process self;
  if (rc_process_self(&self) == 0 && self.pid == writer->pid && self.start == writer->start) {
    import->pool = rc_estate_find(id->token, id->epoch, &import->device);
    return import->pool ? 0 : rc_fail_as(-ENOTSUP, "the writer is in this very process, on another device");
  }
  rc_cu_result result = import->device.cuda->ipc_open_handle(&import->pool, id->handle,
                                                             RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuIpcOpenMemHandle of the writer's pool");
  import->by_handle = true;
  import->opens++;
  return 0;
}

/* Waits for a copy that nothing holds up, but not for ever. */
static rc_cu_result await_stream(const struct rc_cuda *cuda, rc_cu_stream stream) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  rc_cu_result result;
  for (int64_t until = rc_now_ns() + TRY_NS; (result = cuda->stream_query(stream)) == RC_CU_NOT_READY;) {
    if (rc_now_ns() > until) break;
    nanosleep(&pause, NULL);
  }
  return result;
}

static int try_memory(const struct rc_import *import, const struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = import->device.cuda;
  uint64_t pattern[RC_GPU_PATTERN / sizeof(uint64_t)] = {0};
  rc_cu_stream stream;
  rc_cu_result result = cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuStreamCreate");
  result = cuda->copy_dtoh(pattern, import->pool + id->pool_bytes, sizeof pattern, stream);
  if (result == RC_CU_SUCCESS) result = await_stream(cuda, stream);
  if (result != RC_CU_NOT_READY) cuda->stream_destroy(stream);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "reading the writer's pool");
  for (uint32_t i = 0; i < RC_GPU_PATTERN / sizeof(uint64_t); i++)
    if (pattern[i] != rc_gpu_pattern(id->seed, i))
      return rc_fail_as(-ENOTSUP, "what was opened as the writer's pool is other memory: its pattern is not there");
  return 0;
}

static int open_and_try(struct rc_import *import, const struct rc_process *writer, const struct rc_gpu_identity *id) {
  uint64_t at = rc_gpu_try_at(import->segment.slots, import->segment.consumers, import->consumer);
  int failed = rc_gpu_segment_register(&import->segment, import->device.cuda);
  if (failed == 0) failed = open_memory(import, writer, id);
  RC_POINT(POOL_OPENED);
  if (failed == 0) failed = try_memory(import, id);
  if (failed == 0)
    failed = rc_words_try(import->device.cuda, import->segment.word_bits, rc_gpu_word(&import->segment, at),
                          address_of(import, at));
  RC_POINT(POOL_TRIED);
  return failed;
}

/* Closes what was opened, the place last. The context is current. */
static void close_all(struct rc_import *import) {
  const struct rc_cuda *cuda = import->device.cuda;
  rc_import_close_lent(import, true);
  if (import->by_handle) cuda->ipc_close_handle(import->pool);
  import->by_handle = false;
  rc_words_end(cuda, import->done, import->segment.slots);
  import->done = NULL;
  RC_POINT(IMPORT_CLOSED);
  leave_place(import);
  rc_gpu_segment_destroy(&import->segment, cuda);
}

static struct rc_import *import_new(ringcast_reader *reader) {
  struct rc_import *import = calloc(1, sizeof *import);
  pthread_condattr_t attributes;
  if (!import) return NULL;
  import->owner = reader->ring.owner;
  import->consumer = reader->ring.slot;
  import->forks = rc_fork_count();
  pthread_mutex_init(&import->mutex, NULL);
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&import->ended_change, &attributes);
  pthread_condattr_destroy(&attributes);
  atomic_init(&import->holders, 2); /* the reader, and the watcher */
  rc_watch_init(&import->writer, reader->segment.writer.pid, reader->segment.writer.start, UINT64_MAX);
  return import;
}

static void import_free(struct rc_import *import) {
  rc_waiter_destroy(&import->waiter);
  rc_watch_close(&import->writer);
  rc_device_close(&import->device);
  pthread_mutex_destroy(&import->mutex);
  pthread_cond_destroy(&import->ended_change);
  free(import->taken);
  free(import);
}

/* The writer shall know why, and not wait for this reader to come round. */
static void refuse(struct rc_import *import, int failed) {
  struct rc_gpu_consumer *place = own_place(import);
  int reason = rc_cuda_last_failure != RC_CU_SUCCESS ? rc_cuda_last_failure : failed;
  rc_store_relaxed(&place->reason, reason); /* relaxed: the release below */
  rc_store_release(&place->refused, import->owner);
}

static int set_up(struct rc_import *import, ringcast_reader *reader, const struct rc_gpu_identity *id) {
  import->pool_bytes = id->pool_bytes;
  import->taken = calloc(import->segment.slots, sizeof *import->taken);
  if (!import->taken) return rc_fail(-ENOMEM, "out of memory");
  rc_cuda_last_failure = RC_CU_SUCCESS;
  int failed = take_place(import);
  if (failed != 0) return failed;
  failed = open_and_try(import, &reader->segment.writer, id);
  if (failed == 0) {
    import->done = rc_words_make(import->device.cuda, import->segment.slots, &import->done_address);
    if (!import->done) failed = -EIO;
  }
  if (failed == 0) failed = rc_waiter_init(&import->waiter, &rc_gpu_control(&import->segment)->attention,
                                           &import->crowd, -1);
  if (failed == 0) failed = rc_watcher_start(import);
  if (failed == 0) return 0;
  if (failed == -EBUSY) { /* some stream captures a graph: that says nothing of the pool, which is tried again */
    close_all(import);
    return rc_fail_as(-EAGAIN, "the device pool can't be opened while a stream captures a CUDA graph");
  }
  refuse(import, failed);
  if (failed == -ETIMEDOUT) import->device.context = NULL; /* a stream is lost in it: it, and the words, must stay */
  else close_all(import);
  return failed;
}

int rc_import_open(ringcast_reader *reader, const struct rc_device *device, const struct rc_gpu_place *place,
                   struct rc_import **out) {
  struct rc_gpu_identity id;
  struct rc_import *import = import_new(reader);
  if (!import) return rc_fail(-ENOMEM, "out of memory");
  int failed = rc_device_open(device->ordinal, &import->device);
  if (failed == 0)
    failed = rc_gpu_segment_attach(&reader->segment.writer, place, rc_segment_control(&reader->segment)->id.token,
                                   reader->segment.slots, &import->segment, &id);
  if (failed == 0) {
    failed = set_up(import, reader, &id);
    if (failed != 0 && failed != -ETIMEDOUT) rc_gpu_segment_destroy(&import->segment, device->cuda);
  }
  if (failed != 0) {
    import_free(import);
    return failed;
  }
  rc_store_release(&own_place(import)->opened, import->owner); /* O3 -> D1 */
  RC_POINT(OPENED_TOLD);
  *out = import;
  return 0;
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

bool rc_import_counts(const struct rc_import *import, uint64_t position) {
  struct rc_gpu_consumer *place = own_place(import);
  if (rc_load_acquire(&place->counted_turn) != import->turn) return false; /* O4 <- D2 */
  return rc_load_relaxed(&place->counted_from) <= position;                /* relaxed: the acquire above */
}

/* Whether it can be the frame's: the slot's last generation, or the one under way. */
static bool is_plausible(const struct rc_import *import, uint32_t slot, uint64_t generation) {
  struct rc_word *ready = rc_gpu_ready(&import->segment, slot);
  if (import->segment.word_bits == 64) return generation - rc_load_acquire(&ready->whole) <= 1; /* pairs with Q3 */
  return (uint32_t)generation - rc_load_acquire(&ready->half) <= 1;                             /* pairs with Q3 */
}

/* Not by `ack`: it is shared, and who takes a slot for read that a stream still reads unmaps the words under it. */
static bool is_acked(const struct rc_import *import, uint32_t slot) {
  const struct rc_taken *taken = &import->taken[slot];
  if (taken->generation == 0) return true;
  return taken->acked && rc_word_has_reached(&import->done[slot], import->segment.word_bits, taken->asked);
}

static int fail_damaged(void) {
  return rc_fail_as(-EPROTO, "the frame names a place in the device pool that can't be right");
}

static int fail_dead(void) {
  return rc_fail_as(-EPIPE, "the writer, or its device, is gone, and with it what this frame has in its device pool");
}

/* The writer sees `ack`, and may send the slot's next frame, just before the stream writes `done`, the next that it
 * does. So that is waited for, but not for long: an `ack` that the stream did not write is damage. */
static void await_done(struct rc_import *import, uint32_t slot) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  const struct rc_taken *taken = &import->taken[slot];
  for (int64_t until = 0, now = 0; now <= until; nanosleep(&pause, NULL)) {
    pthread_mutex_lock(&import->mutex);
    bool is_next = taken->acked && !is_acked(import, slot) &&
                   rc_word_has_reached(ack_of(import, slot), import->segment.word_bits, taken->generation);
    pthread_mutex_unlock(&import->mutex);
    if (!is_next) return;
    now = rc_now_ns();
    if (until == 0) until = now + DONE_NS;
  }
}

/* In place of what was noted before, which was acknowledged. */
static void note(struct rc_taken *taken, struct rc_taken what) {
  what.asked = taken->asked;
  *taken = what;
}

int rc_import_take(struct rc_import *import, uint32_t slot, uint64_t generation, rc_cu_stream stream) {
  int failed = 0;
  if (slot >= import->segment.slots) return fail_damaged();
  if (!is_plausible(import, slot, generation)) /* a word that was released is not, either */
    return rc_load_acquire(&rc_gpu_control(&import->segment)->dead) ? fail_dead() : fail_damaged(); /* pairs with X0 */
  await_done(import, slot);
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  if (rc_load_relaxed(&import->dead)) failed = -EPIPE; /* relaxed: under the mutex */
  else if (taken->open || taken->holds > 0 || !is_acked(import, slot)) failed = -EPROTO;
  else note(taken, (struct rc_taken){.generation = generation, .stream = stream, .open = true}); /* U1 */
  pthread_mutex_unlock(&import->mutex);
  RC_POINT(TAKE_NOTED);
  return failed == 0 ? 0 : failed == -EPIPE ? fail_dead() : fail_damaged();
}

void rc_import_forget(struct rc_import *import, uint32_t slot) {
  pthread_mutex_lock(&import->mutex);
  note(&import->taken[slot], (struct rc_taken){.generation = 0});
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

/* U4, or, where the stream does not take it, by hand: once nothing reads the extent. Where that can't be known now, it
 * is owed. */
static rc_cu_result acknowledge(struct rc_import *import, uint32_t slot, const struct rc_taken *taken) {
  const uint32_t bits = import->segment.word_bits;
  const uint64_t generation = taken->generation;
  rc_cu_stream stream = taken->stream;
  const struct rc_cuda *cuda = import->device.cuda;
  struct rc_cuda_entry entry;
  uint64_t at = rc_gpu_ack_at(import->segment.consumers, slot, import->consumer);
  rc_cu_result result = rc_cuda_enter(import->device.context, &entry);
  bool is_done = false;
  if (result == RC_CU_SUCCESS) {
    result = rc_word_write(cuda, bits, stream, address_of(import, at), generation);
    if (result == RC_CU_SUCCESS)
      result = rc_word_write(cuda, bits, stream, import->done_address + slot * sizeof *import->done, taken->asked);
    is_done = result == RC_CU_SUCCESS || cuda->ctx_synchronize() == RC_CU_SUCCESS || rc_device_is_lost(&import->device);
    rc_cuda_leave(&entry);
  }
  if (result != RC_CU_SUCCESS && is_done) {
    rc_word_store(ack_of(import, slot), bits, generation);
    rc_word_store(&import->done[slot], bits, taken->asked);
  }
  RC_POINT(ACK_ENQUEUED);
  note_acknowledged(import, slot, generation, is_done);
  return result;
}

/* Whether it is this caller's to acknowledge now. Under the mutex. */
static bool is_due(struct rc_taken *taken) {
  bool due = !taken->open && taken->holds == 0 && !taken->acked && taken->generation != 0;
  taken->acked |= due;
  taken->asked += due;
  return due;
}

static rc_cu_result settle(struct rc_import *import, uint32_t slot, bool ends) {
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  if (ends) taken->open = false;
  else taken->holds--;
  bool due = is_due(taken);
  if (due) import->acking++; /* the word may be reached before the call that enqueues it returns: not idle until then */
  struct rc_taken copy = *taken;
  pthread_mutex_unlock(&import->mutex);
  return due ? acknowledge(import, slot, &copy) : RC_CU_SUCCESS;
}

rc_cu_result rc_import_end(struct rc_import *import, uint32_t slot) { return settle(import, slot, true); }

void rc_import_unhold(struct rc_import *import, uint32_t slot) { settle(import, slot, false); }

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
  await_done(import, slot);
  pthread_mutex_lock(&import->mutex);
  struct rc_taken *taken = &import->taken[slot];
  bool is_new = !taken->open && taken->holds == 0 && is_acked(import, slot);
  if (is_new) note(taken, (struct rc_taken){.generation = generation, .acked = true});
  pthread_mutex_unlock(&import->mutex);
  if (is_new) rc_word_store(ack_of(import, slot), import->segment.word_bits, generation);
}

/* ---- Lent memory ------------------------------------------------------------------------------------------------ */

/* Of a writer in this very process there is nothing to open: CUDA can't. */
static rc_cu_result open_lent_memory(struct rc_import *import, uint32_t place, const rc_cu_ipc_handle *handle,
                                     rc_cu_ptr *out) {
  if (!import->by_handle) {
    const struct rc_gpu_identity *id = &rc_gpu_control(&import->segment)->id;
    *out = rc_estate_find_lent(id->token, import->segment.epoch, &import->device, place);
    return *out ? RC_CU_SUCCESS : RC_CU_INVALID_HANDLE;
  }
  rc_cu_result result = import->device.cuda->ipc_open_handle(out, *handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == RC_CU_SUCCESS) import->opens++;
  return result;
}

/* By the reader's own thread, which alone opens: to open may take long, and is not done under the mutex. */
static int open_lent(struct rc_import *import, uint32_t place, uint32_t serial, struct rc_lent *out) {
  struct rc_gpu_lent *shared = &rc_gpu_control(&import->segment)->lent[place];
  const struct rc_cuda *cuda = import->device.cuda;
  struct rc_gpu_consumer *own = own_place(import);
  uint64_t bit = (uint64_t)1 << place;
  rc_cu_ipc_handle handle;
  rc_cu_ptr base;
  size_t bytes;
  if (rc_load_acquire(&shared->serial) != serial) return fail_damaged(); /* pairs with the store of lend */
  rc_or_acq_rel(&own->lent, bit); /* before it is open, as it is cleared after it was closed */
  RC_POINT(LENT_NOTED);
  rc_fence_full(); /* <-> is_taken_back in lend.c */
  memcpy(&handle, &shared->handle, sizeof handle);
  rc_cu_result result = RC_CU_INVALID_HANDLE;
  *out = (struct rc_lent){.serial = serial, .bytes = shared->bytes};
  if (rc_load_acquire(&shared->serial) == serial) /* as above */
    result = open_lent_memory(import, place, &handle, &out->base);
  if (result != RC_CU_SUCCESS) {
    atomic_fetch_and_explicit(&own->lent, ~bit, memory_order_acq_rel);
    return rc_cuda_fail(result, "cuIpcOpenMemHandle of memory that the writer has lent");
  }
  RC_POINT(LENT_OPENED);
  /* What the writer says of its size is not to be relied on, where the driver knows it. */
  if (cuda->mem_get_address_range(&base, &bytes, out->base) == RC_CU_SUCCESS && bytes < out->bytes) out->bytes = bytes;
  return 0;
}

int rc_import_lent(struct rc_import *import, uint64_t number, uint64_t offset, uint64_t bytes, rc_cu_ptr *out) {
  uint32_t place = rc_gpu_lent_place(number), serial = rc_gpu_lent_serial(number);
  if (place >= RC_GPU_MAX_LENT || number > UINT32_MAX) return fail_damaged();
  pthread_mutex_lock(&import->mutex);
  struct rc_lent lent = import->lent[place];
  pthread_mutex_unlock(&import->mutex);
  if (lent.base != 0 && lent.serial != serial) return fail_damaged();
  if (lent.base == 0) {
    int failed = open_lent(import, place, serial, &lent);
    if (failed != 0) return failed;
    pthread_mutex_lock(&import->mutex);
    import->lent[place] = lent;
    pthread_mutex_unlock(&import->mutex);
  }
  if (offset > lent.bytes || bytes > lent.bytes - offset) return fail_damaged();
  *out = lent.base + offset;
  return 0;
}

/* Under the mutex. */
static bool has_none_under_way(const struct rc_import *import) {
  if (import->acking > 0) return false;
  for (uint32_t slot = 0; slot < import->segment.slots; slot++)
    if (import->taken[slot].holds > 0 || !is_acked(import, slot)) return false;
  return true;
}

/* Under the mutex: no stream of this reader waits for the writer, nor will one as long as the mutex is held. */
static bool has_no_wait(const struct rc_import *import) {
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    uint64_t generation = import->taken[slot].generation;
    if (generation == 0) continue;
    if (!rc_word_has_reached(rc_gpu_ready(&import->segment, slot), import->segment.word_bits, generation)) return false;
  }
  return true;
}

bool rc_import_close_lent(struct rc_import *import, bool all) {
  pthread_mutex_lock(&import->mutex);
  bool may = all || has_no_wait(import);
  for (uint32_t place = 0; place < RC_GPU_MAX_LENT && may; place++) {
    if (import->lent[place].base == 0) continue;
    struct rc_gpu_lent *shared = &rc_gpu_control(&import->segment)->lent[place];
    if (!all && rc_load_acquire(&shared->serial) == import->lent[place].serial) continue; /* pairs with unlend's */
    if (import->by_handle) import->device.cuda->ipc_close_handle(import->lent[place].base);
    import->lent[place].base = 0;
    RC_POINT(LENT_CLOSED);
    atomic_fetch_and_explicit(&own_place(import)->lent, ~((uint64_t)1 << place), memory_order_acq_rel);
  }
  pthread_mutex_unlock(&import->mutex);
  return may;
}

/* ---- Ends ------------------------------------------------------------------------------------------------------- */

/* X1 -> U2, or what another reader has done of it. Under the mutex. */
static void release_wait(struct rc_import *import, uint32_t slot) {
  const uint32_t bits = import->segment.word_bits;
  uint64_t generation = import->taken[slot].generation;
  struct rc_word *ready = rc_gpu_ready(&import->segment, slot);
  if (generation == 0) return;
  bool was_released = rc_word_was_released(ready, bits, generation);
  if (!was_released && rc_word_has_reached(ready, bits, generation)) return;
  rc_store_release(&import->missing, 1); /* X2, first: who sees the word sees that it means nothing */
  if (!was_released) rc_word_store(ready, bits, rc_word_released(bits, generation));
}

void rc_import_mark_dead(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  rc_store_release(&import->dead, 1);                              /* X0 */
  rc_store_release(&rc_gpu_control(&import->segment)->dead, 1); /* X0, for the others */
  RC_POINT(DEATH_SEEN);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) release_wait(import, slot);
  pthread_mutex_unlock(&import->mutex);
  RC_POINT(WAITS_RELEASED);
}

bool rc_import_is_missing(struct rc_import *import) {
  bool is_told = rc_load_acquire(&rc_gpu_control(&import->segment)->dead); /* pairs with X0 of another reader */
  if (is_told && !rc_load_acquire(&import->dead)) rc_import_mark_dead(import); /* pairs with X0 */
  return rc_load_acquire(&import->missing); /* pairs with X2 */
}

void rc_import_lose(struct rc_import *import, rc_cu_result reason) {
  refuse(import, reason);
  rc_store_release(&own_place(import)->opened, 0); /* the writer goes on without: D1 */
  pthread_mutex_lock(&import->mutex);
  rc_store_release(&import->missing, 1);
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    struct rc_taken *taken = &import->taken[slot];
    taken->owed = RC_OWES_NOTHING;
    if (is_acked(import, slot)) continue;
    taken->acked = true; /* a context that has failed reads nothing any more */
    rc_word_store(ack_of(import, slot), import->segment.word_bits, taken->generation);
    rc_word_store(&import->done[slot], import->segment.word_bits, taken->asked);
  }
  pthread_mutex_unlock(&import->mutex);
}

bool rc_import_is_idle(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  bool idle = has_none_under_way(import);
  pthread_mutex_unlock(&import->mutex);
  return idle;
}

void rc_import_finish(struct rc_import *import) {
  struct rc_cuda_entry entry;
  if (rc_cuda_enter(import->device.context, &entry) == RC_CU_SUCCESS) {
    close_all(import);
    rc_cuda_leave(&entry);
  } else {
    rc_words_end(NULL, import->done, import->segment.slots);
    leave_place(import);
    rc_memory_destroy(&import->segment.memory);
  }
  pthread_mutex_lock(&import->mutex);
  import->ended = true;
  pthread_cond_broadcast(&import->ended_change);
  pthread_mutex_unlock(&import->mutex);
}

void rc_import_drop(struct rc_import *import) {
  if (rc_sub_acq_rel(&import->holders, 1) == 1) import_free(import);
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
    if (import->taken[slot].open) rc_import_end(import, slot); /* only the reader's own thread opens and ends them */
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += CLOSE_NS / 1000000000;
  pthread_mutex_lock(&import->mutex);    /* the watcher may see it before it is woken, but not unmap the words */
  rc_store_release(&import->closing, 1); /* -> the watcher's look */
  rc_watcher_wake(import);
  /* What is held is given back by whoever holds it, at any time. */
  while (!import->ended && !has_holds(import) &&
         pthread_cond_timedwait(&import->ended_change, &import->mutex, &until) == 0) continue;
  pthread_mutex_unlock(&import->mutex);
  rc_import_drop(import);
}
