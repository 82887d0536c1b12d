/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of ringcast/gpu.h: the pools that a reader opens one after the other, frames of
 * the ring, by way of a pinned buffer, the takes of frames, and memory for what was received. */
#include "gpu/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/options.h"
#include "shm/error.h"

#define CHUNKS      16u
#define CHUNK_BYTES ((uint64_t)512 << 10)
#define SPIN_NS     50000 /* how long the host polls, before the host sleeps between two queries */
#define PAUSE_NS    20000
#define LONG_NS     ((int64_t)100 * 1000 * 1000)
#define SELDOM      9 /* failed attempts take at most a tenth of the time */

/* ---- The reader's context -------------------------------------------------------------------- */

static int enter(const ringcast_gpu_reader *gpu, bool relaxes, struct rc_cuda_entry *entry) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  return rc_device_enter(&gpu->device, relaxes, entry);
}

/* Called after a failed call, with the call's code. An unexpected failure of the driver (-EIO)
 * makes the reader leave the pool. Returns the code. */
static int note_loss(ringcast_gpu_reader *gpu, int code) {
  if (code != -EIO || !gpu->import) return code;
  strncpy(gpu->why, rc_error_text(), sizeof gpu->why - 1);
  rc_import_lose(gpu->import, code);
  return code;
}

/* ---- The pools that the reader opens --------------------------------------------------------- */

static void note_failure(ringcast_gpu_reader *gpu, uint32_t epoch, bool for_now) {
  gpu->failed = epoch;
  if (!for_now) gpu->refused = epoch;
  strncpy(gpu->why, rc_error_text(), sizeof gpu->why - 1);
}

/* Closes the import and keeps it in the list of earlier imports, as streams may still wait for its
 * semaphores. */
static void put_aside(ringcast_gpu_reader *gpu, int64_t patience_ns) {
  struct rc_import *import = gpu->import;
  if (!import) return;
  rc_import_close(import, patience_ns);
  import->before = gpu->before;
  gpu->before = import;
  gpu->import = NULL;
}

/* Drops the imports with no stream at work; with `all`, each import. */
static void forget_imports(ringcast_gpu_reader *gpu, bool all) {
  for (struct rc_import **at = &gpu->before; *at;) {
    struct rc_import *import = *at;
    bool has_ended, was_missing = rc_import_is_missing(import, &has_ended);
    if (!has_ended && !all) {
      at = &import->before;
      continue;
    }
    gpu->missing |= was_missing;
    *at = import->before;
    rc_import_drop(import);
  }
}

/* Closes the import of an earlier pool, and opens the writer's present pool. The context is
 * current. 0 also if the writer has no pool; else the reason, with the error text. */
static int open_pool(ringcast_gpu_reader *gpu) {
  struct rc_gpu_place place;
  if (rc_gpu_place_read(&gpu->reader->ring.view.control->device, &place) != 0) return 0;
  /* Frames of an earlier pool may still be unread. */
  if (gpu->reader->ring.cursor < place.position) return 0;
  if (gpu->import && gpu->import->segment.epoch == place.epoch) return 0;
  if (gpu->refused == place.epoch) return 0;
  struct rc_cuda_entry relaxed;
  rc_cuda_relax(&relaxed);
  put_aside(gpu, 0);
  forget_imports(gpu, false);
  uint64_t bytes;
  int found =
      rc_environment_number("RINGCAST_GPU_POOL_BYTES", RC_GPU_MAX_POOL, "bytes", "none", &bytes);
  int failed = 0;
  if (found < 0) failed = found;
  else if (found != 0 && bytes == 0)
    failed = rc_fail_as(-ENOTSUP, "RINGCAST_GPU_POOL_BYTES is 0: no device pool");
  else failed = rc_import_open(gpu->reader, &gpu->device, &place, &gpu->import);
  rc_cuda_leave(&relaxed);
  if (failed == 0) gpu->opens++;
  else note_failure(gpu, place.epoch, rc_gpu_is_for_now(failed));
  return failed;
}

/* The same, but not soon after a failed open that took long. Each attempt takes long while the
 * device is busy, and frames must not wait for one attempt after the other. */
static void look_for_pool(ringcast_gpu_reader *gpu) {
  int64_t began = rc_now_ns();
  if (began < gpu->not_before || open_pool(gpu) == 0) return;
  int64_t now = rc_now_ns();
  if (now - began > LONG_NS) gpu->not_before = now + SELDOM * (now - began);
}

int ringcast_gpu_reader_prepare(ringcast_gpu_reader *gpu) {
  struct rc_cuda_entry entry;
  int failed = enter(gpu, true, &entry);
  if (failed != 0) return failed;
  bool has_failed = open_pool(gpu) != 0;
  rc_cuda_leave(&entry);
  /* relaxed: only compared. */
  uint32_t epoch = rc_load_relaxed(&gpu->reader->ring.view.control->device.epoch);
  if (epoch != 0 && gpu->import && gpu->import->segment.epoch == epoch) return 0;
  if (epoch != 0 && gpu->refused == epoch)
    return rc_fail(-ENOTSUP, "the writer's pool can't be opened: %s", gpu->why);
  if (has_failed) return rc_fail(-EAGAIN, "the writer's pool can't be opened now: %s", gpu->why);
  return rc_fail_as(
      -EAGAIN,
      "the writer has no device pool now, or frames of an earlier pool must be read first");
}

/* ---- Frames of the ring: the pinned buffer --------------------------------------------------- */

/*
 * From the ring to the device, through a small pinned buffer of the reader. The driver may stage a
 * copy out of ordinary memory behind all work of the stream, without a time limit, and the reader
 * can't pin the mapping of the ring: the registration of read-only memory takes an attribute that
 * data-centre cards lack. (A private mapping of the ring can be registered with default flags; but
 * then the driver pins copies of the pages, which do not follow the ring.)
 *
 * So the host copies the frame's bytes into a chunk of the buffer, the stream copies them from
 * there to the device, and an event behind that copy says when the chunk is free again. When the
 * call returns, the frame's bytes have left the ring: the caller may release the frame.
 *
 * A chunk serves one take at a time, because only then do all copies out of the chunk lie in one
 * stream, where the event behind the last copy covers the earlier copies too. A stream's handle
 * does not identify the stream: a new stream may get the handle of a destroyed stream.
 *
 * If the device has yet to read all chunks, the call waits. The call queries the event between
 * short sleeps, and a timeout or a signal ends the wait. The bytes that are enqueued by then stay
 * enqueued: `take->copied` counts the bytes.
 *
 * A buffer that a stream may still read is not freed. A closing reader leaves the buffer to the
 * worker, and waits for a second.
 *
 * Without pinned memory the call waits until the stream is idle, copies out of the ring itself, and
 * waits for the copy.
 */

struct chunk {
  rc_cu_event event; /* behind the last copy out of the chunk */
  uint64_t take; /* 1 + the position of the frame whose bytes the chunk holds; 0: no frame yet */
  uint64_t used; /* bytes */
  bool is_read;  /* a stream may still read the chunk: no query has found the event done */
};

struct rc_bounce {
  struct rc_device device; /* holds the context: the buffer may outlive its reader */
  uint8_t *memory;
  struct chunk chunks[CHUNKS];
  uint32_t current;
  uint32_t forks;
  struct rc_job job;
};

static void give_back(struct rc_bounce *bounce) {
  const struct rc_cuda *cuda = bounce->device.cuda;
  for (uint32_t i = 0; i < CHUNKS; i++)
    if (bounce->chunks[i].event) cuda->event_destroy(bounce->chunks[i].event);
  if (bounce->memory) cuda->host_free(bounce->memory);
}

static rc_cu_result allocate_bounce(struct rc_bounce *bounce) {
  const struct rc_cuda *cuda = bounce->device.cuda;
  void *memory;
  rc_cu_result result =
      cuda->host_alloc(&memory, CHUNKS * CHUNK_BYTES, RC_CU_MEMHOSTALLOC_PORTABLE);
  if (result != RC_CU_SUCCESS) return result;
  bounce->memory = memory;
  for (uint32_t i = 0; i < CHUNKS && result == RC_CU_SUCCESS; i++)
    result = cuda->event_create(&bounce->chunks[i].event, RC_CU_EVENT_DISABLE_TIMING);
  return result;
}

/* The context is current. NULL: no pinned memory is available. */
static struct rc_bounce *make_bounce(const ringcast_gpu_reader *gpu) {
  if (rc_feature_disabled("cuda_register")) return NULL;
  struct rc_bounce *bounce = calloc(1, sizeof *bounce);
  if (!bounce || rc_device_open(gpu->device.ordinal, &bounce->device) != 0) {
    free(bounce);
    return NULL;
  }
  bounce->forks = rc_forks_seen;
  if (allocate_bounce(bounce) == RC_CU_SUCCESS) return bounce;
  give_back(bounce);
  rc_device_close(&bounce->device);
  free(bounce);
  return NULL;
}

static bool is_read_still(struct rc_bounce *bounce) {
  for (uint32_t i = 0; i < CHUNKS; i++) {
    const struct chunk *chunk = &bounce->chunks[i];
    if (chunk->is_read && bounce->device.cuda->event_query(chunk->event) == RC_CU_NOT_READY)
      return true;
  }
  return false;
}

/* Called by the worker. No stream of a lost device reads the buffer any more. */
static bool try_to_free_bounce(struct rc_job *job) {
  struct rc_bounce *bounce = RC_CONTAINER_OF(job, struct rc_bounce, job);
  struct rc_cuda_entry entry;
  if (rc_cuda_enter(bounce->device.context, &entry) == RC_CU_SUCCESS) {
    bool is_read = is_read_still(bounce);
    if (!is_read) give_back(bounce);
    rc_cuda_leave(&entry);
    if (is_read) return false;
  }
  rc_device_close(&bounce->device);
  return true;
}

static void drop_bounce(struct rc_job *job) { free(RC_CONTAINER_OF(job, struct rc_bounce, job)); }

/* Has the worker free the buffer once the streams have read the buffer, and waits for the worker
 * for at most rc_gpu_close_ns. NULL is allowed. In a forked child the parent owns the buffer. */
static void end_bounce(struct rc_bounce *bounce) {
  if (!bounce || bounce->forks != rc_forks_seen) return;
  bounce->job = (struct rc_job){.run = try_to_free_bounce, .end = drop_bounce};
  rc_worker_do(&bounce->job, rc_gpu_close_ns);
}

static int64_t end_of(int64_t timeout_ns) {
  int64_t now = rc_now_ns();
  return timeout_ns >= 0 && timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;
}

static int fail_behind(int64_t timeout_ns) {
  return rc_fail_as(timeout_ns == 0 ? -EAGAIN : -ETIMEDOUT,
                    "the stream is behind, and the device has not read the earlier bytes of the "
                    "ring: copy the rest, "
                    "from take.copied on, later");
}

/* Queries the event, or, if `event` is NULL, all work of the take's stream. */
static int ask(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, rc_cu_event event,
               rc_cu_result *out) {
  const struct rc_cuda *cuda = gpu->device.cuda;
  /* Another thread may begin a capture meanwhile: a query of the stream would invalidate the
   * capture. */
  int failed = event ? 0 : rc_device_check_stream(&gpu->device, take->stream);
  if (failed == 0) *out = event ? cuda->event_query(event) : cuda->stream_query(take->stream);
  return failed;
}

static int await(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, rc_cu_event event,
                 int64_t until) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  rc_cu_result result;
  int failed = ask(gpu, take, event, &result);
  if (failed == 0 && result == RC_CU_NOT_READY) gpu->syncs++;
  for (int64_t began = rc_now_ns(); failed == 0 && result == RC_CU_NOT_READY;) {
    int64_t now = rc_now_ns();
    if (now >= until) return fail_behind(take->timeout_ns);
    if (now - began > SPIN_NS && nanosleep(&pause, NULL) != 0)
      return rc_fail_as(
          -EINTR,
          "a signal arrived while waiting for the device to read earlier bytes of the ring");
    failed = ask(gpu, take, event, &result);
  }
  if (failed != 0) return failed;
  return rc_cuda_code(result, "asking how far a stream is");
}

static int finish(rc_cu_result result) {
  RC_POINT(COPIED_OUT);
  return rc_cuda_code(result, "a copy to the device");
}

/* The chunk with room for the take's next bytes. */
static int claim(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, int64_t until,
                 struct chunk **out) {
  struct rc_bounce *bounce = gpu->bounce;
  uint64_t owner = take->frame.position + 1;
  struct chunk *chunk = &bounce->chunks[bounce->current];
  if (chunk->take != owner || chunk->used >= CHUNK_BYTES) {
    uint32_t next = (bounce->current + 1) % CHUNKS;
    chunk = &bounce->chunks[next];
    int failed = chunk->is_read ? await(gpu, take, chunk->event, until) : 0;
    if (failed != 0) return failed;
    *chunk = (struct chunk){.event = chunk->event, .take = owner};
    bounce->current = next;
  }
  *out = chunk;
  return 0;
}

static int enqueue(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take,
                   struct chunk *chunk, const uint8_t *from, uint64_t bytes, rc_cu_ptr to) {
  const struct rc_cuda *cuda = gpu->device.cuda;
  uint8_t *at =
      gpu->bounce->memory + (uint64_t)(chunk - gpu->bounce->chunks) * CHUNK_BYTES + chunk->used;
  memcpy(at, from, bytes);
  rc_cu_result result = cuda->copy_htod(to, at, bytes, take->stream);
  if (result != RC_CU_SUCCESS) return finish(result);
  chunk->used += (bytes + RC_LINE - 1) & ~(uint64_t)(RC_LINE - 1);
  chunk->is_read = true;
  result = cuda->event_record(chunk->event, take->stream);
  if (result == RC_CU_SUCCESS) return finish(result);
  result = cuda->stream_synchronize(take->stream); /* no event says when the chunk is free */
  gpu->syncs++;
  chunk->is_read = result != RC_CU_SUCCESS;
  return finish(result);
}

static int copy_pageable(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                         const uint8_t *from, uint64_t bytes, rc_cu_ptr to) {
  const struct rc_cuda *cuda = gpu->device.cuda;
  /* Otherwise the copy itself might wait, and no signal would end the wait. */
  int failed = await(gpu, take, NULL, end_of(take->timeout_ns));
  if (failed != 0) return failed;
  rc_cu_result result = cuda->copy_htod(to, from, bytes, take->stream);
  /* Also after a failure: a part may be under way. */
  rc_cu_result waited = cuda->stream_synchronize(take->stream);
  gpu->syncs++;
  if (result == RC_CU_SUCCESS) result = waited;
  if (result == RC_CU_SUCCESS) take->copied = bytes;
  return finish(result);
}

/* Copies `bytes` of the ring to `to`, on the take's stream. After a return of 0 no copy reads the
 * ring any more. If the stream is too far behind, the call waits, as `take->timeout_ns` says:
 * -ETIMEDOUT, -EAGAIN, -EINTR. `take->copied` counts the enqueued bytes. -EBUSY: the stream
 * captures a graph. -EIO. The context is current. */
static int copy_by_bounce(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                          const void *from, uint64_t bytes, rc_cu_ptr to) {
  const uint8_t *source = from;
  take->copied = 0;
  if (!gpu->bounce && !gpu->has_no_bounce) {
    gpu->bounce = make_bounce(gpu);
    gpu->has_no_bounce = !gpu->bounce;
  }
  if (!gpu->bounce) return copy_pageable(gpu, take, source, bytes, to);
  int64_t until = end_of(take->timeout_ns); /* of all chunks together */
  while (take->copied < bytes) {
    struct chunk *chunk;
    int failed = claim(gpu, take, until, &chunk);
    if (failed != 0) return failed;
    uint64_t most = CHUNK_BYTES - chunk->used, next = bytes - take->copied;
    if (next > most) next = most;
    failed = enqueue(gpu, take, chunk, source + take->copied, next, to + take->copied);
    if (failed != 0) return failed;
    take->copied += next;
  }
  return 0;
}

/* ---- Takes ----------------------------------------------------------------------------------- */

/*
 * Takes: frames that are read from the pool, or the ring, to the caller's memory, on the caller's
 * stream. The essay atop import.c says what is enqueued for a frame of the pool.
 *
 * The caller owns the struct of a take, and may copy the struct and end both copies. So the reader
 * keeps a list of the open takes.
 */

int ringcast_gpu_next(ringcast_gpu_reader *gpu, int64_t timeout_ns, struct ringcast_frame *out) {
  int failed = rc_check_wait(gpu->forks, timeout_ns);
  return failed != 0 ? failed : ringcast_reader_next(gpu->reader, timeout_ns, out);
}

enum {
  TAKE_NONE = 0,
  TAKE_OPEN = 1,
  TAKE_INLINE = 2, /* bytes of the ring were copied */
  TAKE_FRESH = 4,  /* no call since begin, and begin saw that the stream does not capture */
  TAKE_READ = 8,   /* the last copies are enqueued */
};

struct ringcast_gpu_hold {
  struct rc_import *import;
  uint32_t slot;
};

/* The import of the frame's pool. NULL: the writer did not expect this reader to read the frame. */
static struct rc_import *import_of(const ringcast_gpu_reader *gpu, uint32_t epoch,
                                   uint64_t position) {
  struct rc_import *import = gpu->import;
  bool is_it = import && import->segment.epoch == epoch && rc_import_is_expected(import, position);
  return is_it ? import : NULL;
}

static int fail_not_expected(void) {
  return rc_fail_as(
      -ECONNABORTED,
      "this frame was under way when this reader attached, and the frame's device tensors "
      "are not for this reader: release the frame, and go on with the next one");
}

/* The entry of the open take of the frame at `entry` - 1; for `entry` 0, a free entry. NULL: not
 * found. */
static uint64_t *find_begun(ringcast_gpu_reader *gpu, uint64_t entry) {
  for (uint32_t i = 0; i < RC_MAX_LEASES; i++)
    if (gpu->begun[i] == entry) return &gpu->begun[i];
  return NULL;
}

/* Frees the entries of frames that were released before their takes ended. */
static void forget_begun(ringcast_gpu_reader *gpu) {
  for (uint32_t i = 0; i < RC_MAX_LEASES; i++)
    if (gpu->begun[i] != 0 && !rc_ring_holds(&gpu->reader->ring, gpu->begun[i] - 1))
      gpu->begun[i] = 0;
}

/* A frame that was released may have been overwritten by a later frame, whose slot must not be
 * touched. */
static int check_held(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame) {
  if (!rc_ring_holds(&gpu->reader->ring, frame->position)) return rc_fail_not_held(frame->position);
  if (!find_begun(gpu, frame->position + 1)) return 0;
  return rc_fail_as(-EBUSY, "the take of this frame is open: end the take first");
}

/* Records the take, and has the stream wait. */
static int begin_in_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  struct rc_import *import = import_of(gpu, take->epoch, take->frame.position);
  if (!import) return fail_not_expected();
  int failed = rc_import_take(import, take->slot, take->generation, take->stream);
  if (failed != 0) return failed;
  const struct rc_gpu_segment *segment = &import->segment;
  /* If the host has seen the value, all that the host enqueues afterwards comes after the copies. A
   * semaphore that was released, not written by the device, is found later by way of the record. */
  if (rc_semaphore_has_reached(rc_gpu_ready(segment, take->slot), take->generation)) return 0;
  rc_cu_ptr ready = segment->address + rc_gpu_ready_at(segment->importers, take->slot);
  rc_cu_result result = rc_semaphore_wait(gpu->device.cuda, take->stream, ready, take->generation);
  RC_POINT(WAIT_ENQUEUED);
  if (result == RC_CU_SUCCESS) return 0;
  rc_import_forget(import, take->slot);
  return note_loss(gpu, rc_cuda_code(result, "cuStreamWaitValue of a pool's word"));
}

int ringcast_gpu_begin(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame,
                       ringcast_stream stream, struct ringcast_gpu_take *out) {
  struct ringcast_frame_reader opened;
  struct rc_cuda_entry entry;
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = check_held(gpu, frame);
  if (failed != 0) return failed;
  if (frame->kind != RINGCAST_KIND_TENSORS)
    return rc_fail_as(-EINVAL, "this frame holds bytes, and no tensors");
  if (ringcast_frame_open(&opened, frame->data, frame->bytes) != 0)
    return rc_fail_as(-EPROTO, "the frame's header is invalid, or of a later version");
  if (!find_begun(gpu, 0)) forget_begun(gpu);
  uint64_t *begun = find_begun(gpu, 0);
  if (!begun)
    return rc_fail(-EBUSY, "%u frames are being read: end their takes first", RC_MAX_LEASES);
  failed = enter(gpu, false, &entry);
  if (failed != 0) return failed;
  struct ringcast_gpu_take take = {.frame = *frame,
                                   .stream = stream,
                                   .timeout_ns = RINGCAST_FOREVER,
                                   .slot = opened.device_slot,
                                   .epoch = opened.device_epoch,
                                   .generation = opened.device_generation,
                                   .state = TAKE_OPEN | TAKE_FRESH};
  failed = note_loss(gpu, rc_device_check_stream(&gpu->device, stream));
  if (failed == 0) look_for_pool(gpu);
  if (failed == 0 && take.epoch != 0) failed = begin_in_pool(gpu, &take);
  rc_cuda_leave(&entry);
  if (failed != 0) return failed;
  *begun = frame->position + 1;
  *out = take;
  return 0;
}

/* False too for a take that was ended through a copy of the struct. */
static bool is_open(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take) {
  return (take->state & (TAKE_OPEN | TAKE_READ)) == TAKE_OPEN &&
         find_begun(gpu, take->frame.position + 1);
}

static int fail_no_take(void) {
  return rc_fail_as(-EINVAL, "the take is not open: begin the take first");
}

static int fail_outside(void) {
  return rc_fail_as(-EPROTO, "a tensor of the frame points outside the frame or pool");
}

static bool is_inside(const struct ringcast_frame *frame, uint64_t offset, uint64_t bytes) {
  return offset <= frame->bytes && bytes <= frame->bytes - offset;
}

static bool is_item_inside(const struct ringcast_frame *frame, const struct ringcast_item *item) {
  const uint8_t *start = frame->data, *first = item->data;
  return first >= start && is_inside(frame, (uint64_t)(first - start), item->bytes);
}

static int finish_copy(ringcast_gpu_reader *gpu, rc_cu_result result) {
  RC_POINT(COPIED_OUT);
  return note_loss(gpu, rc_cuda_code(result, "a copy to the device"));
}

/* The address of bytes of the pool in this reader's context. */
static int locate(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, uint64_t offset,
                  uint64_t bytes, rc_cu_ptr *out) {
  struct rc_import *import = gpu->import;
  if (take->epoch == 0 || !import || import->segment.epoch != take->epoch) return fail_no_take();
  if (offset > import->pool_bytes || bytes > import->pool_bytes - offset) return fail_outside();
  *out = import->pool + offset;
  return 0;
}

/* Called before the first copy is enqueued. *by_ring: some copies come from the frame. */
static int check_copies(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take,
                        const struct ringcast_gpu_copy *copies, uint32_t count, bool *by_ring) {
  rc_cu_ptr where = 0;
  int failed = 0;
  *by_ring = false;
  for (uint32_t i = 0; i < count && failed == 0; i++) {
    const struct ringcast_gpu_copy *copy = &copies[i];
    if (copy->in_pool > 1 || copy->reserved != 0)
      return rc_fail_as(-EINVAL, "a copy's in_pool must be 0 or 1, and its reserved must be 0");
    if (copy->copied > copy->bytes)
      return rc_fail_as(-EINVAL, "a copy's `copied` is more than its `bytes`");
    if (copy->in_pool)
      failed = copy->bytes > 0 ? locate(gpu, take, copy->offset, copy->bytes, &where) : 0;
    else if (!is_inside(&take->frame, copy->offset, copy->bytes)) failed = fail_outside();
    *by_ring |= !copy->in_pool && copy->bytes > 0;
  }
  return failed;
}

/* The context is current. */
static int copy_one(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                    struct ringcast_gpu_copy *copy) {
  uint64_t left = copy->bytes - copy->copied, from = copy->offset + copy->copied;
  rc_cu_ptr to = copy->to + copy->copied;
  if (left == 0) return 0;
  if (!copy->in_pool) {
    take->state |= TAKE_INLINE;
    int failed = copy_by_bounce(gpu, take, (const uint8_t *)take->frame.data + from, left, to);
    copy->copied += take->copied;
    return note_loss(gpu, failed);
  }
  rc_cu_result result =
      gpu->device.cuda->copy_dtod(to, gpu->import->pool + from, left, take->stream);
  if (result != RC_CU_SUCCESS) return finish_copy(gpu, result);
  gpu->pool_bytes += left;
  copy->copied = copy->bytes;
  return finish_copy(gpu, result);
}

/* -EIO: `ack` could not be enqueued and is pending, as after a capture that has just begun. The
 * context is current. */
static int acknowledge(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take) {
  struct rc_import *import = gpu->import;
  if (take->epoch == 0 || !import || import->segment.epoch != take->epoch) return 0;
  rc_cu_result result = rc_import_end(import, take->slot, take->generation);
  gpu->pool_frames++;
  if (result == RC_CU_SUCCESS || result == RC_CU_STREAM_CAPTURE_UNSUPPORTED) return 0;
  return note_loss(gpu, rc_cuda_code(result, "cuStreamWriteValue"));
}

int ringcast_gpu_copy_all(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                          struct ringcast_gpu_copy *copies, uint32_t count, uint32_t flags) {
  struct rc_cuda_entry entry;
  bool by_ring, is_last = flags & RINGCAST_GPU_LAST, is_fresh = take->state & TAKE_FRESH;
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  if (!is_open(gpu, take)) return fail_no_take();
  if ((flags & ~RINGCAST_GPU_LAST) != 0)
    return rc_fail(-EINVAL, "flags are 0x%x: one is not known", flags);
  take->copied = 0;
  failed = check_copies(gpu, take, copies, count, &by_ring);
  if (failed == 0 && by_ring) failed = rc_check_wait(gpu->reader->forks, take->timeout_ns);
  /* Copies and semaphores on a stream that does not capture invalidate no graph; a query of an
   * event may. */
  if (failed == 0) failed = enter(gpu, by_ring, &entry);
  if (failed != 0) return failed;
  take->state &= ~(uint32_t)TAKE_FRESH;
  if (!is_fresh) failed = note_loss(gpu, rc_device_check_stream(&gpu->device, take->stream));
  for (uint32_t i = 0; i < count && failed == 0; i++) failed = copy_one(gpu, take, &copies[i]);
  if (failed == 0 && is_last) {
    take->state |= TAKE_READ;
    failed = acknowledge(gpu, take);
  }
  rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_copy_out(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                          const struct ringcast_item *item, ringcast_device_ptr to) {
  struct ringcast_gpu_copy copy = {
      .offset = item->device_offset, .bytes = item->bytes, .to = to, .in_pool = 1};
  if (item->placement != RINGCAST_PLACEMENT_INLINE)
    return ringcast_gpu_copy_all(gpu, take, &copy, 1, 0);
  if (!is_open(gpu, take)) return fail_no_take();
  if (!is_item_inside(&take->frame, item)) return fail_outside();
  copy.offset = (uint64_t)((const uint8_t *)item->data - (const uint8_t *)take->frame.data);
  copy.in_pool = 0;
  return ringcast_gpu_copy_all(gpu, take, &copy, 1, 0);
}

static int copy_pool_to_host(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take,
                             const struct ringcast_item *item, void *to) {
  struct rc_cuda_entry entry;
  rc_cu_ptr from = 0;
  if (!is_open(gpu, take)) return fail_no_take();
  if (item->bytes == 0) return 0;
  int failed = enter(gpu, true, &entry);
  if (failed != 0) return failed;
  failed = note_loss(gpu, rc_device_check_stream(&gpu->device, take->stream));
  if (failed == 0) failed = locate(gpu, take, item->device_offset, item->bytes, &from);
  if (failed == 0) {
    const struct rc_cuda *cuda = gpu->device.cuda;
    rc_cu_result result = cuda->copy_dtoh(to, from, item->bytes, take->stream);
    if (result == RC_CU_SUCCESS) result = cuda->stream_synchronize(take->stream);
    gpu->syncs++;
    gpu->pool_bytes += item->bytes;
    failed = finish_copy(gpu, result);
  }
  rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_copy_to_host(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                              const struct ringcast_item *item, void *to) {
  int failed = rc_check_fork(gpu->forks);
  take->state &= ~(uint32_t)TAKE_FRESH;
  if (failed != 0) return failed;
  if (item->placement != RINGCAST_PLACEMENT_INLINE) {
    failed = copy_pool_to_host(gpu, take, item, to);
    return failed != 0 ? failed : ringcast_gpu_check(gpu);
  }
  if (!is_open(gpu, take)) return fail_no_take();
  if (!is_item_inside(&take->frame, item)) return fail_outside();
  if (item->bytes > 0) memcpy(to, item->data, item->bytes);
  return 0;
}

int ringcast_gpu_map(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                     const struct ringcast_item *item, ringcast_device_ptr *out,
                     ringcast_gpu_hold **hold) {
  rc_cu_ptr where = 0;
  if (!is_open(gpu, take)) return fail_no_take();
  if (item->placement != RINGCAST_PLACEMENT_POOL)
    return rc_fail_as(-ENOTSUP,
                      "only a tensor in the writer's pool can be read in place: copy the tensor");
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = locate(gpu, take, item->device_offset, item->bytes, &where);
  if (failed != 0) return failed;
  ringcast_gpu_hold *made = malloc(sizeof *made);
  if (!made) return rc_fail(-ENOMEM, "out of memory");
  *made = (ringcast_gpu_hold){.import = gpu->import, .slot = take->slot};
  rc_import_hold(gpu->import, take->slot);
  take->maps++;
  take->state &= ~(uint32_t)TAKE_FRESH;
  *out = where;
  *hold = made;
  return 0;
}

void ringcast_gpu_unmap(ringcast_gpu_hold *hold) {
  if (!hold) return;
  if (hold->import->forks == rc_forks_seen) { /* in a forked child the parent owns the pool */
    rc_import_unhold(hold->import, hold->slot);
    rc_import_drop(hold->import);
  }
  free(hold);
}

/* -EBUSY: the stream would add the `ack` to a graph. If the context can't be entered, `ack` is
 * pending. */
static int end_in_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  struct rc_cuda_entry entry;
  if (take->epoch == 0 || take->state & TAKE_READ) return 0;
  bool has_entered = enter(gpu, false, &entry) == 0;
  int failed = has_entered ? rc_device_check_stream(&gpu->device, take->stream) : 0;
  if (failed != -EBUSY) failed = acknowledge(gpu, take);
  if (has_entered) rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_end(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  uint64_t *begun = take->state & TAKE_OPEN ? find_begun(gpu, take->frame.position + 1) : NULL;
  if (!begun) return fail_no_take();
  failed = end_in_pool(gpu, take);
  if (failed == -EBUSY) return failed;
  gpu->inline_frames += (take->state & TAKE_INLINE) != 0;
  *begun = 0;
  take->state = TAKE_NONE;
  int released = ringcast_reader_release(gpu->reader, &take->frame);
  return failed != 0 ? failed : released;
}

int ringcast_gpu_release(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame) {
  struct ringcast_frame_reader opened;
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = check_held(gpu, frame);
  if (failed != 0) return failed;
  bool is_whole = frame->kind == RINGCAST_KIND_TENSORS && ringcast_reader_check(gpu->reader) == 0 &&
                  ringcast_frame_open(&opened, frame->data, frame->bytes) == 0;
  if (is_whole && opened.device_epoch != 0) {
    struct rc_import *import = import_of(gpu, opened.device_epoch, frame->position);
    if (import) rc_import_pass(import, opened.device_slot, opened.device_generation);
  }
  return ringcast_reader_release(gpu->reader, frame);
}

/* ---- Memory for received tensors ------------------------------------------------------------- */

/*
 * Device memory for received tensors, and functions on streams that need no handle. The memory
 * holds the device's context, so it may outlive the reader. The memory is freed in the order of the
 * stream. The worker frees the memory if the stream captures a graph, which would take in the call,
 * or if the device can't free in order, as the call may wait.
 */

struct ringcast_gpu_memory {
  struct rc_device device;
  rc_cu_ptr address;
  rc_cu_stream stream;
  uint32_t forks;
  bool in_order; /* of the stream */
  struct rc_job job;
};

static int allocate_in_order(ringcast_gpu_memory *memory, uint64_t bytes) {
  const struct rc_cuda *cuda = memory->device.cuda;
  rc_cu_result result = cuda->mem_alloc_async(&memory->address, bytes, memory->stream);
  /* The result of a device without memory pools. */
  memory->in_order = result != RC_CU_NOT_SUPPORTED;
  if (!memory->in_order) result = cuda->mem_alloc(&memory->address, bytes);
  return rc_cuda_code(result, "memory of %llu bytes", (unsigned long long)bytes);
}

/* Called by the worker, or by the caller. If the context can't be entered, the memory has gone with
 * the context. */
static bool try_to_free_memory(struct rc_job *job) {
  ringcast_gpu_memory *memory = RC_CONTAINER_OF(job, ringcast_gpu_memory, job);
  const struct rc_cuda *cuda = memory->device.cuda;
  struct rc_cuda_entry entry;
  if (rc_cuda_enter(memory->device.context, &entry) == RC_CU_SUCCESS) {
    bool captures =
        memory->in_order && rc_device_check_stream(&memory->device, memory->stream) == -EBUSY;
    if (!memory->in_order) cuda->mem_free(memory->address);
    else if (!captures) cuda->mem_free_async(memory->address, memory->stream);
    rc_cuda_leave(&entry);
    if (captures) return false;
  }
  rc_device_close(&memory->device);
  return true;
}

static void end_memory(struct rc_job *job) { free(RC_CONTAINER_OF(job, ringcast_gpu_memory, job)); }

int ringcast_gpu_memory_alloc(ringcast_gpu_reader *gpu, uint64_t bytes, ringcast_stream stream,
                              ringcast_device_ptr *out, ringcast_gpu_memory **out_memory) {
  struct rc_cuda_entry entry;
  int failed = enter(gpu, true, &entry);
  if (failed != 0) return failed;
  ringcast_gpu_memory *memory = calloc(1, sizeof *memory);
  failed =
      memory ? rc_device_check_stream(&gpu->device, stream) : rc_fail(-ENOMEM, "out of memory");
  if (failed == 0) failed = rc_device_open(gpu->device.ordinal, &memory->device);
  if (memory && failed == 0) {
    memory->stream = stream;
    memory->forks = gpu->forks;
    failed = allocate_in_order(memory, bytes > 0 ? bytes : 1);
    if (failed != 0) rc_device_close(&memory->device);
  }
  rc_cuda_leave(&entry);
  if (!memory || failed != 0) {
    free(memory);
    return note_loss(gpu, failed);
  }
  *out = memory->address;
  *out_memory = memory;
  return 0;
}

void ringcast_gpu_memory_free(ringcast_gpu_memory *memory) {
  if (!memory) return;
  if (memory->forks != rc_forks_seen) { /* the memory is the parent's */
    free(memory);
    return;
  }
  memory->job = (struct rc_job){.run = try_to_free_memory, .end = end_memory};
  if (memory->in_order && try_to_free_memory(&memory->job)) free(memory);
  else rc_worker_do(&memory->job, 0);
}

/* ---- Open, close ----------------------------------------------------------------------------- */

static int resolve_options(const struct ringcast_gpu_reader_options *given,
                           struct ringcast_gpu_reader_options *out) {
  int failed = rc_sized_read("ringcast_gpu_reader_options", given, out, sizeof *out);
  if (failed != 0) return failed;
  if (!given) out->device = -1;
  if (out->flags != 0 || out->reserved != 0)
    return rc_fail_as(-EINVAL, "options.flags and reserved must be 0");
  return rc_features_check();
}

/* Ends everything except the handle; calls with the handle give -EINVAL from here on. */
static void detach(void *context) {
  ringcast_gpu_reader *gpu = context;
  put_aside(gpu, rc_gpu_close_ns);
  forget_imports(gpu, true);
  end_bounce(gpu->bounce);
  rc_device_close(&gpu->device);
  gpu->forks = RC_LEFT;
}

int ringcast_gpu_reader_open(ringcast_reader *reader,
                             const struct ringcast_gpu_reader_options *given,
                             ringcast_gpu_reader **out) {
  struct ringcast_gpu_reader_options options;
  int failed = rc_check_fork(reader->forks);
  if (failed == 0) failed = resolve_options(given, &options);
  if (failed != 0) return failed;
  if (reader->attachment.detach)
    return rc_fail_as(-EBUSY, "this reader has a ringcast_gpu_reader already: close that first");
  ringcast_gpu_reader *gpu = calloc(1, sizeof *gpu);
  if (!gpu) return rc_fail(-ENOMEM, "out of memory");
  gpu->reader = reader;
  gpu->forks = rc_forks_seen;
  failed = rc_device_open(options.device, &gpu->device);
  if (failed != 0) {
    free(gpu);
    return failed;
  }
  reader->attachment = (struct rc_attachment){.detach = detach, .context = gpu};
  *out = gpu;
  return 0;
}

void ringcast_gpu_reader_close(ringcast_gpu_reader *gpu) {
  if (!gpu) return;
  /* In a forked child the parent owns everything but the handle. */
  if (gpu->forks == rc_forks_seen) {
    gpu->reader->attachment.detach = NULL;
    detach(gpu);
  }
  free(gpu);
}

/* ---- Introspection --------------------------------------------------------------------------- */

static bool is_missing(const ringcast_gpu_reader *gpu) {
  bool is_missing = gpu->missing || (gpu->import && rc_import_is_missing(gpu->import, NULL));
  for (struct rc_import *import = gpu->before; import && !is_missing; import = import->before)
    is_missing = rc_import_is_missing(import, NULL);
  return is_missing;
}

int ringcast_gpu_check(const ringcast_gpu_reader *gpu) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  /* Evicted: the bytes may have been overwritten during the copy. */
  failed = ringcast_reader_check(gpu->reader);
  if (failed != 0) return failed;
  if (!is_missing(gpu)) return 0;
  return rc_fail_as(
      -EPIPE,
      "the writer, or a device, has failed, and device tensors that were being received never "
      "came: drop these tensors and their copies");
}

/* True too if the writer's present pool can't be opened now. */
static bool has_refused(const ringcast_gpu_reader *gpu) {
  /* relaxed: only compared. */
  uint32_t epoch = rc_load_relaxed(&gpu->reader->ring.view.control->device.epoch);
  return gpu->refused != 0 || (gpu->failed != 0 && gpu->failed == epoch);
}

int ringcast_gpu_reader_info(ringcast_gpu_reader *gpu, struct ringcast_gpu_info *out) {
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = rc_sized_check("ringcast_gpu_info", out->size);
  if (failed != 0) return failed;
  struct rc_import *import = gpu->import;
  bool has_failed = import && rc_load_acquire(&import->failed); /* pairs with the store of lose */
  /* X0 */
  bool is_lost = import && (has_failed || rc_import_is_missing(import, NULL) ||
                            rc_load_acquire(&import->dead));
  uint32_t way = RINGCAST_GPU_WAY_NO_POOL;
  if (is_lost) way = RINGCAST_GPU_WAY_LOST;
  else if (import) way = RINGCAST_GPU_WAY_POOL;
  else if (has_refused(gpu)) way = RINGCAST_GPU_WAY_REFUSED;
  struct ringcast_gpu_info info = {
      .way = way,
      .device = gpu->device.ordinal,
      .reader = gpu->reader->ring.slot,
      .pool_frames = gpu->pool_frames,
      .pool_bytes_sent = gpu->pool_bytes,
      .inline_frames = gpu->inline_frames,
      .opens = gpu->opens,
      .syncs = gpu->syncs,
      .registered = gpu->bounce != NULL,
  };
  if (import) {
    info.pool_bytes = import->pool_bytes;
    info.slots = import->segment.slots;
    info.epoch = import->segment.epoch;
  }
  if (way == RINGCAST_GPU_WAY_REFUSED || has_failed) memcpy(info.why, gpu->why, sizeof gpu->why);
  rc_sized_write(out, out->size, &info, sizeof info);
  return 0;
}
