/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that capture a graph, in CUDA's mode GLOBAL: what is forbidden meanwhile, to whom, and
 * what it spoils. */
#define _GNU_SOURCE
#include "tests/fake_cuda/fake.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED = RC_CU_STREAM_CAPTURE_MODE_RELAXED };

static _Thread_local rc_cu_capture_mode own_mode; /* GLOBAL, as CUDA's is at first */

/* What is allowed whoever captures; CUDA names only some of those that are not, so all others are
 * taken for it. Work for a stream is told apart by the stream. */
static const enum fake_function allowed[] = {FAKE_init,
                                             FAKE_driver_get_version,
                                             FAKE_get_error_name,
                                             FAKE_device_get_count,
                                             FAKE_device_get,
                                             FAKE_device_get_name,
                                             FAKE_device_get_uuid,
                                             FAKE_device_get_attribute,
                                             FAKE_ctx_push,
                                             FAKE_ctx_pop,
                                             FAKE_ctx_get_current,
                                             FAKE_ctx_get_device,
                                             FAKE_mem_get_address_range,
                                             FAKE_host_get_device_pointer,
                                             FAKE_mem_alloc_async,
                                             FAKE_mem_free_async,
                                             FAKE_copy_dtod,
                                             FAKE_copy_htod,
                                             FAKE_copy_dtoh,
                                             FAKE_write_value64,
                                             FAKE_wait_value64,
                                             FAKE_stream_is_capturing,
                                             FAKE_exchange_capture_mode,
                                             FAKE_module_get_function,
                                             FAKE_launch_kernel};

static bool is_allowed(enum fake_function function) {
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
    if (allowed[i] == function) return true;
  return false;
}

static void spoil(struct rc_cu_stream *stream) {
  if (stream->capturing != CAPTURES) return;
  stream->capturing = CAPTURE_SPOILT;
  fake.spoilt++;
}

/* Spoils those of a context, or of all (NULL), and of the calling thread alone, or of all. Whether
 * there was one. */
static bool spoil_all(const struct rc_cu_context *context, bool own_alone) {
  bool found = false;
  for (int i = 0; i < MOST_DEVICES; i++) {
    if (context && context != &fake.contexts[i]) continue;
    for (struct rc_cu_stream *stream = fake.contexts[i].streams; stream; stream = stream->next) {
      bool matters = !own_alone || pthread_equal(stream->captor, pthread_self());
      if (stream->capturing == CAPTURES_NOT || !matters) continue;
      found = true;
      spoil(stream);
    }
  }
  return found;
}

rc_cu_result fake_check_captures(enum fake_function function) {
  if (is_allowed(function) || own_mode == RELAXED) return RC_CU_SUCCESS;
  return spoil_all(NULL, own_mode == THREAD_LOCAL) ? RC_CU_STREAM_CAPTURE_UNSUPPORTED
                                                   : RC_CU_SUCCESS;
}

rc_cu_result fake_check_capture_of(const struct rc_cu_context *context) {
  return spoil_all(context, false) ? RC_CU_STREAM_CAPTURE_UNSUPPORTED : RC_CU_SUCCESS;
}

/* A blocking stream that captures: the legacy one would have to wait for it. */
static struct rc_cu_stream *find_in_the_way(const struct rc_cu_stream *legacy) {
  struct rc_cu_stream *stream = legacy->context->streams;
  while (stream && (!stream->blocking || stream->capturing == CAPTURES_NOT)) stream = stream->next;
  return stream;
}

rc_cu_result fake_check_work(struct rc_cu_stream *stream) {
  if (stream == stream->context->legacy) {
    struct rc_cu_stream *other = find_in_the_way(stream);
    if (other) spoil(other);
    return other ? RC_CU_STREAM_CAPTURE_IMPLICIT : RC_CU_SUCCESS;
  }
  if (stream->capturing == CAPTURES_NOT) return RC_CU_SUCCESS;
  spoil(stream);
  return RC_CU_STREAM_CAPTURE_UNSUPPORTED;
}

rc_cu_result cuStreamIsCapturing(rc_cu_stream stream, rc_cu_capture_status *out) {
  BEGIN(stream_is_capturing, FAKE_CURRENT);
  struct rc_cu_stream *found = fake_stream_find(context, stream);
  if (!found) return fake_end(RC_CU_INVALID_HANDLE);
  if (found == context->legacy && find_in_the_way(found))
    return fake_end(RC_CU_STREAM_CAPTURE_IMPLICIT);
  *out = (rc_cu_capture_status)found->capturing;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuThreadExchangeStreamCaptureMode(rc_cu_capture_mode *mode) {
  BEGIN(exchange_capture_mode, FAKE_READY);
  if (*mode < GLOBAL || *mode > RELAXED) return fake_end(RC_CU_INVALID_VALUE);
  rc_cu_capture_mode before = own_mode;
  own_mode = *mode;
  *mode = before;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result fake_cuda_capture(rc_cu_stream stream, bool on) {
  pthread_mutex_lock(&fake.lock);
  struct rc_cu_context *context = fake_current();
  struct rc_cu_stream *found = context ? fake_stream_find(context, stream) : NULL;
  if (!found || found == context->legacy) return fake_end(RC_CU_INVALID_HANDLE);
  bool was_spoilt = found->capturing == CAPTURE_SPOILT;
  found->capturing = on ? CAPTURES : CAPTURES_NOT;
  found->captor = pthread_self();
  return fake_end(!on && was_spoilt ? RC_CU_STREAM_CAPTURE_INVALIDATED : RC_CU_SUCCESS);
}
