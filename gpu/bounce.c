/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the ring to the device, through a small pinned buffer of the reader. The driver may stage a copy out of ordinary
 * memory behind all work of the stream, without a time limit, and the reader can't pin the mapping of the ring: the
 * registration of read-only memory takes an attribute that data-centre cards lack. (A private mapping of the ring can
 * be registered with default flags; but then the driver pins copies of the pages, which do not follow the ring.)
 *
 * So the host copies the frame's bytes into a chunk of the buffer, the stream copies them from there to the device, and
 * an event behind that copy says when the chunk is free again. When the call returns, the frame's bytes have left the
 * ring: the caller may release the frame.
 *
 * A chunk serves one take at a time, because only then do all copies out of the chunk lie in one stream, where the
 * event behind the last copy covers the earlier copies too. A stream's handle does not identify the stream: a new
 * stream may get the handle of a destroyed stream.
 *
 * If the device has yet to read all chunks, the call waits. The call queries the event between short sleeps, and a
 * timeout or a signal ends the wait. The bytes that are enqueued by then stay enqueued: `take->copied` counts the
 * bytes.
 *
 * A buffer that a stream may still read is not freed. A closing reader leaves the buffer to the worker, and waits for a
 * second.
 *
 * Without pinned memory the call waits until the stream is idle, copies out of the ring itself, and waits for the copy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/reader.h"
#include "gpu/point.h"
#include "shm/options.h"
#include "shm/error.h"

#define CHUNKS      16u
#define CHUNK_BYTES ((uint64_t)512 << 10)
#define SPIN_NS     50000 /* how long the host polls, before the host sleeps between two queries */
#define PAUSE_NS    20000

struct chunk {
  rc_cu_event event; /* behind the last copy out of the chunk */
  uint64_t take;     /* 1 + the position of the frame whose bytes the chunk holds; 0: no frame yet */
  uint64_t used;     /* bytes */
  bool is_read;      /* a stream may still read the chunk: no query has found the event done */
};

struct rc_bounce {
  struct rc_device device; /* holds the context: the buffer may outlive its reader */
  uint8_t *memory;
  struct chunk chunks[CHUNKS];
  uint32_t current;
  uint32_t forks;
  struct rc_job job;
};

/* ---- The buffer -------------------------------------------------------------------------------------------------- */

static void give_back(struct rc_bounce *bounce) {
  const struct rc_cuda *cuda = bounce->device.cuda;
  for (uint32_t i = 0; i < CHUNKS; i++)
    if (bounce->chunks[i].event) cuda->event_destroy(bounce->chunks[i].event);
  if (bounce->memory) cuda->host_free(bounce->memory);
}

static rc_cu_result allocate(struct rc_bounce *bounce) {
  const struct rc_cuda *cuda = bounce->device.cuda;
  void *memory;
  rc_cu_result result = cuda->host_alloc(&memory, CHUNKS * CHUNK_BYTES, RC_CU_MEMHOSTALLOC_PORTABLE);
  if (result != RC_CU_SUCCESS) return result;
  bounce->memory = memory;
  for (uint32_t i = 0; i < CHUNKS && result == RC_CU_SUCCESS; i++)
    result = cuda->event_create(&bounce->chunks[i].event, RC_CU_EVENT_DISABLE_TIMING);
  return result;
}

/* The context is current. NULL: no pinned memory is available. */
static struct rc_bounce *make(const ringcast_gpu_reader *gpu) {
  if (rc_feature_disabled("cuda_register")) return NULL;
  struct rc_bounce *bounce = calloc(1, sizeof *bounce);
  if (!bounce || rc_device_open(gpu->device.ordinal, &bounce->device) != 0) {
    free(bounce);
    return NULL;
  }
  bounce->forks = rc_fork_count();
  if (allocate(bounce) == RC_CU_SUCCESS) return bounce;
  give_back(bounce);
  rc_device_close(&bounce->device);
  free(bounce);
  return NULL;
}

static bool is_read_still(struct rc_bounce *bounce) {
  for (uint32_t i = 0; i < CHUNKS; i++) {
    const struct chunk *chunk = &bounce->chunks[i];
    if (chunk->is_read && bounce->device.cuda->event_query(chunk->event) == RC_CU_NOT_READY) return true;
  }
  return false;
}

/* Called by the worker. No stream of a lost device reads the buffer any more. */
static bool try_to_free(struct rc_job *job) {
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

static void free_job(struct rc_job *job) { free(RC_CONTAINER_OF(job, struct rc_bounce, job)); }

/* In a forked child the parent owns the buffer. */
void rc_bounce_end(struct rc_bounce *bounce) {
  if (!bounce || bounce->forks != rc_fork_count()) return;
  bounce->job = (struct rc_job){.run = try_to_free, .end = free_job};
  rc_worker_do(&bounce->job, rc_gpu_close_ns);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static int64_t end_of(int64_t timeout_ns) {
  int64_t now = rc_now_ns();
  return timeout_ns >= 0 && timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;
}

static int fail_behind(int64_t timeout_ns) {
  return rc_fail_as(timeout_ns == 0 ? -EAGAIN : -ETIMEDOUT,
                    "the stream is behind, and the device has not read the earlier bytes of the ring: copy the rest, "
                    "from take.copied on, later");
}

/* Queries the event, or, if `event` is NULL, all work of the take's stream. */
static int ask(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, rc_cu_event event, rc_cu_result *out) {
  const struct rc_cuda *cuda = gpu->device.cuda;
  /* Another thread may begin a capture meanwhile: a query of the stream would invalidate the capture. */
  int failed = event ? 0 : rc_device_check_stream(&gpu->device, take->stream);
  if (failed == 0) *out = event ? cuda->event_query(event) : cuda->stream_query(take->stream);
  return failed;
}

static int await(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, rc_cu_event event, int64_t until) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  rc_cu_result result;
  int failed = ask(gpu, take, event, &result);
  if (failed == 0 && result == RC_CU_NOT_READY) gpu->syncs++;
  for (int64_t began = rc_now_ns(); failed == 0 && result == RC_CU_NOT_READY;) {
    int64_t now = rc_now_ns();
    if (now >= until) return fail_behind(take->timeout_ns);
    if (now - began > SPIN_NS && nanosleep(&pause, NULL) != 0)
      return rc_fail_as(-EINTR, "a signal arrived while waiting for the device to read earlier bytes of the ring");
    failed = ask(gpu, take, event, &result);
  }
  if (failed != 0) return failed;
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "asking how far a stream is");
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static int finish(rc_cu_result result) {
  RC_POINT(COPIED_OUT);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "a copy to the device");
}

/* The chunk with room for the take's next bytes. */
static int claim(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, int64_t until, struct chunk **out) {
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

static int enqueue(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, struct chunk *chunk,
                   const uint8_t *from, uint64_t bytes, rc_cu_ptr to) {
  const struct rc_cuda *cuda = gpu->device.cuda;
  uint8_t *at = gpu->bounce->memory + (uint64_t)(chunk - gpu->bounce->chunks) * CHUNK_BYTES + chunk->used;
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

static int copy_pageable(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const uint8_t *from, uint64_t bytes,
                         rc_cu_ptr to) {
  const struct rc_cuda *cuda = gpu->device.cuda;
  /* Otherwise the copy itself might wait, and no signal would end the wait. */
  int failed = await(gpu, take, NULL, end_of(take->timeout_ns));
  if (failed != 0) return failed;
  rc_cu_result result = cuda->copy_htod(to, from, bytes, take->stream);
  rc_cu_result waited = cuda->stream_synchronize(take->stream); /* also after a failure: a part may be under way */
  gpu->syncs++;
  if (result == RC_CU_SUCCESS) result = waited;
  if (result == RC_CU_SUCCESS) take->copied = bytes;
  return finish(result);
}

int rc_bounce_copy(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const void *from, uint64_t bytes,
                   rc_cu_ptr to) {
  const uint8_t *source = from;
  take->copied = 0;
  if (!gpu->bounce && !gpu->has_no_bounce) {
    gpu->bounce = make(gpu);
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
