/* SPDX-License-Identifier: Apache-2.0 */
/* The trial whether a stream and the host can wait for each other by semaphores. */
#include "gpu/semaphore.h"

#include <errno.h>
#include <time.h>

#include "shm/error.h"
#include "shm/wait.h"

#define PAUSE_NS 20000
#define SPIN_NS  50000 /* how long a stream is polled before the host sleeps between two queries */

int64_t rc_semaphore_patience_ns = (int64_t)2 * 1000 * 1000 * 1000;

static bool await_semaphore(struct rc_semaphore *semaphore) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  for (int64_t until = rc_now_ns() + rc_semaphore_patience_ns; rc_now_ns() < until; nanosleep(&pause, NULL))
    if (rc_semaphore_has_reached(semaphore, 1)) return true;
  return rc_semaphore_has_reached(semaphore, 1);
}

rc_cu_result rc_stream_await(const struct rc_cuda *cuda, rc_cu_stream stream, int64_t patience_ns) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  rc_cu_result result;
  for (int64_t began = rc_now_ns(); (result = cuda->stream_query(stream)) == RC_CU_NOT_READY;) {
    int64_t waited = rc_now_ns() - began;
    if (waited > patience_ns) break;
    if (waited > SPIN_NS) nanosleep(&pause, NULL);
  }
  return result;
}

/* Enqueues an operation that does nothing, so that an idle stream has shown that the device came to the stream. */
static rc_cu_result enqueue_mark(const struct rc_cuda *cuda, rc_cu_stream stream) {
  rc_cu_event event;
  rc_cu_result result = cuda->event_create(&event, RC_CU_EVENT_DISABLE_TIMING);
  if (result != RC_CU_SUCCESS) return result;
  result = cuda->event_record(event, stream);
  cuda->event_destroy(event);
  return result;
}

int rc_stream_make(const struct rc_cuda *cuda, int64_t patience_ns, rc_cu_stream *out) {
  rc_cu_stream stream;
  rc_cu_result result = cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuStreamCreate");
  result = enqueue_mark(cuda, stream);
  if (result == RC_CU_SUCCESS) result = rc_stream_await(cuda, stream, patience_ns);
  if (result == RC_CU_SUCCESS) {
    *out = stream;
    return 0;
  }
  cuda->stream_destroy(stream);
  if (result != RC_CU_NOT_READY) return rc_cuda_fail(result, "a new stream");
  return rc_fail(-EAGAIN, "the device is busy: it has not come to a new stream within %lld s",
                 (long long)(patience_ns / 1000000000));
}

int rc_semaphores_try(const struct rc_cuda *cuda, struct rc_semaphore semaphores[2], rc_cu_ptr address,
                      int64_t patience_ns) {
  rc_cu_stream stream = NULL;
  int failed = rc_stream_make(cuda, patience_ns, &stream);
  if (failed != 0) return failed;
  rc_cu_result result = rc_semaphore_wait(cuda, stream, address, 1);
  if (result == RC_CU_SUCCESS) result = rc_semaphore_write(cuda, stream, address + sizeof *semaphores, 1);
  rc_semaphore_store(&semaphores[0], 1); /* also if only the wait was enqueued */
  failed = result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "a stream operation on a word of host memory");
  /* Also after a failure: the stream must not read the semaphores once the memory is no longer registered. */
  if (failed == 0 ? !await_semaphore(&semaphores[1])
                  : rc_stream_await(cuda, stream, rc_semaphore_patience_ns) == RC_CU_NOT_READY)
    failed = rc_fail_as(-ETIMEDOUT, "a stream that waits for a word of host memory is not woken by the host's store");
  cuda->stream_destroy(stream); /* does not wait for the stream's work */
  return failed;
}
