/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans: when each call of a Writer or Reader began and ended, and its phases, for ringcast.trace
 * and ringcast.profile.
 *
 * While spans are off, a call costs a load and a branch that is never taken. While spans are on,
 * the handle of a call refers to a struct rc_py_call. The struct collects the phases of the present
 * frame; at the frame's end the phases go to a buffer of the process, and the whole call follows at
 * its end. The subscribers get the buffer's spans at the end of a call, or before a Reader's wait,
 * once a quarter of the buffer is full or the oldest span is a second old. While the buffer is
 * full, new spans are dropped.
 *
 * All functions need the GIL, except rc_py_spans_phase.
 */
#ifndef RC_EXTENSION_SPANS_H
#define RC_EXTENSION_SPANS_H

#include "python/extension/extension.h"

#include <time.h>

enum rc_py_span_kind {
  RC_PY_SPAN_SEND,
  RC_PY_SPAN_ENCODE,
  RC_PY_SPAN_WAIT_ROOM,
  RC_PY_SPAN_COPY,
  RC_PY_SPAN_PUBLISH,
  RC_PY_SPAN_RECV,
  RC_PY_SPAN_WAIT_FRAME,
  RC_PY_SPAN_DECODE,
  RC_PY_SPAN_KINDS,
  RC_PY_SPAN_NONE = RC_PY_SPAN_KINDS /* the call leaves a frame open: only the phases are spans */
};

/* Of CLOCK_MONOTONIC. */
static inline int64_t rc_py_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* A recorded call. */
struct rc_py_call;

extern bool rc_py_spans_on;

/* Begins a call on the ring, as *call. If *call is open already, both calls are one, until the last
 * end. */
void rc_py_spans_begin(struct rc_py_call **call, uint64_t ring);
/* Ends the present phase and begins a phase of `kind`; a present phase of the same kind goes on.
 * Needs no GIL: the call belongs to the calling thread. */
void rc_py_spans_begin_phase(struct rc_py_call *call, enum rc_py_span_kind kind);
/* Ends the present phase: all phases since the last frame were of the frame at `position`. */
void rc_py_spans_end_frame(struct rc_py_call *call, uint64_t position, uint64_t bytes);
/* Ends the call, and sets *call to NULL. `is_nothing`: a try found no frame, or no room, and is not
 * recorded. May run Python code; preserves the current exception. */
void rc_py_spans_end_call(struct rc_py_call **call, enum rc_py_span_kind kind, bool is_nothing);
/* Delivers the spans, if the oldest is a second old. */
void rc_py_spans_deliver_old(void);

static inline void rc_py_spans_phase(struct rc_py_call *call, enum rc_py_span_kind kind) {
  if (__builtin_expect(call != NULL, 0)) rc_py_spans_begin_phase(call, kind);
}
static inline void rc_py_spans_frame(struct rc_py_call *call, uint64_t position, uint64_t bytes) {
  if (__builtin_expect(call != NULL, 0)) rc_py_spans_end_frame(call, position, bytes);
}
static inline void rc_py_spans_end(struct rc_py_call **call, enum rc_py_span_kind kind,
                                   bool is_nothing) {
  if (__builtin_expect(*call != NULL, 0)) rc_py_spans_end_call(call, kind, is_nothing);
}

/* The ring's number, the same in all processes: the first 64 bits of the token in the handle's
 * text. */
uint64_t rc_py_spans_ring(PyObject *handle);
/* Notes the names of a ring and of its Reader in this process; "": none. */
void rc_py_spans_name(uint64_t ring, const char *name, const char *reader);

extern PyMethodDef rc_py_spans_functions[];

#endif
