/* SPDX-License-Identifier: Apache-2.0 */
#include "python/extension/codec/tokens.h"

#include <pthread.h>

/* ---- The stack ------------------------------------------------------------------------------- */

/* How much of a thread's stack is left. A nested value is walked by recursion, of at most
 * RINGCAST_MAX_DEPTH levels with some 500 bytes each. The usual stacks of 8 MiB are far larger, but
 * a thread may have a small stack: even then, a nested value or a hostile frame must not end the
 * process. */

/* For the calls at the bottom: making values, comparing keys, dropping values, and Python's own. */
enum { STACK_KEPT = 64 << 10 };

/* Of the current thread; finding the main thread's stack costs a look into /proc. */
static _Thread_local uintptr_t floor_known, end_known;

/* 1: unknown. */
static uintptr_t find_floor(uintptr_t here) {
  pthread_attr_t attributes;
  void *start;
  size_t bytes;
  if (here >= floor_known && here < end_known) return floor_known;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 1;
  bool known = pthread_attr_getstack(&attributes, &start, &bytes) == 0;
  pthread_attr_destroy(&attributes);
  uintptr_t low = (uintptr_t)start;
  if (!known || here < low || here - low >= bytes) return 1; /* on a stack that a library made */
  floor_known = low + STACK_KEPT;
  end_known = low + bytes;
  return floor_known;
}

bool rc_py_stack_has_room(uintptr_t *floor, size_t more) {
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  if (*floor == 0) *floor = find_floor(here);
  return here >= *floor && here - *floor >= more;
}

/* ---- The memory of a stream ------------------------------------------------------------------ */

bool rc_py_stream_grow(struct rc_py_encoding *encoding, size_t bytes) {
  size_t room = encoding->stream_room * 2;
  if (room < encoding->stream_bytes + bytes) room = encoding->stream_bytes + bytes;
  if (room < 4096) room = 4096;
  uint8_t *stream = PyMem_Realloc(encoding->stream, room);
  if (!stream) {
    PyErr_NoMemory();
    return false;
  }
  encoding->stream = stream;
  encoding->stream_room = room;
  return true;
}
