/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans: when each call of a Writer or Reader began and ended, and its phases, for ringcast.trace
 * and ringcast.profile.
 *
 * While spans are off, a call costs a load and a branch that is never taken. While spans are on,
 * the call's handle refers to a struct rc_py_trace. It collects the phases of the present frame; at
 * the frame's end the phases go to a buffer of the process, and the whole call follows at its end.
 * The subscribers get the buffer's spans at the end of a call, or before a Reader's wait, once a
 * quarter of the buffer is full or the oldest span is a second old. While the buffer is full, new
 * spans are dropped.
 *
 * All functions need the GIL, except rc_py_spans_phase.
 */
#ifndef RC_EXTENSION_SPANS_H
#define RC_EXTENSION_SPANS_H

#include "python/extension/extension.h"

#include <time.h>

/* What a span is of: a whole call, or one of its phases. The values are in the order of the names
 * in spans.c. */
enum rc_py_trace_kind {
  RC_PY_CALL_SEND,
  RC_PY_PHASE_ENCODE,
  RC_PY_PHASE_WAIT_ROOM,
  RC_PY_PHASE_COPY,
  RC_PY_PHASE_PUBLISH,
  RC_PY_CALL_RECV,
  RC_PY_PHASE_WAIT_FRAME,
  RC_PY_PHASE_DECODE,
  RC_PY_TRACE_KINDS,
  RC_PY_CALL_NONE = RC_PY_TRACE_KINDS /* the call leaves a frame open: only the phases are spans */
};

/* Of CLOCK_MONOTONIC. */
static inline int64_t rc_py_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* A call that is being recorded. */
struct rc_py_trace;

extern bool rc_py_spans_on;

/* Begins a call on the ring, as *trace. If *trace is open already, both calls are one, until the
 * last end. */
void rc_py_spans_begin(struct rc_py_trace **trace, uint64_t ring);
/* Ends the present phase and begins a phase of `kind`; a present phase of the same kind goes on.
 * Needs no GIL: the call belongs to the calling thread. */
void rc_py_spans_begin_phase(struct rc_py_trace *trace, enum rc_py_trace_kind kind);
/* Ends the present phase: all phases since the last frame were of the frame at `position`. */
void rc_py_spans_end_frame(struct rc_py_trace *trace, uint64_t position, uint64_t bytes);
/* Ends the call, and sets *trace to NULL. `is_nothing`: a try found no frame or no room, or a
 * commit was refused; without a frame, the call is then not recorded. May run Python code;
 * preserves the current exception. */
void rc_py_spans_end_call(struct rc_py_trace **trace, enum rc_py_trace_kind kind, bool is_nothing);
/* Delivers the spans, if the oldest is a second old. */
void rc_py_spans_deliver_old(void);

/* The ring's number, the same in all processes: the first 64 bits of the token in the handle's
 * text. */
uint64_t rc_py_spans_ring(PyObject *handle);
/* Notes the names of a ring and of its Reader in this process; "": none. */
void rc_py_spans_name(uint64_t ring, const char *name, const char *reader);

extern PyMethodDef rc_py_spans_functions[];

#endif
