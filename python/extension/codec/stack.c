/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much is left of a thread's stack. A nested value is walked by recursion, of RINGCAST_MAX_DEPTH levels at most,
 * which take some 500 bytes each: the usual stacks of 8 MiB have that many times over, but a thread may have been given
 * a small one, and then a value, or a frame of whoever sends, must not end the process.
 */
#include "python/extension/codec/stack.h"

#include <pthread.h>

/* For what runs at the bottom: making values, comparing keys, dropping what was made, Python's own. */
enum { STACK_KEPT = 64 << 10 };

/* Of this thread; the question costs a look into /proc for the main one. */
static _Thread_local uintptr_t floor_known, end_known;

/* 1: there is no telling. */
static uintptr_t find_floor(uintptr_t here) {
  pthread_attr_t attributes;
  void *start;
  size_t bytes;
  if (here >= floor_known && here < end_known) return floor_known;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 1;
  bool known = pthread_attr_getstack(&attributes, &start, &bytes) == 0;
  pthread_attr_destroy(&attributes);
  uintptr_t low = (uintptr_t)start;
  if (!known || here < low || here - low >= bytes) return 1; /* on a stack of somebody's own making */
  floor_known = low + STACK_KEPT;
  end_known = low + bytes;
  return floor_known;
}

bool rc_py_stack_has_room(uintptr_t *floor) {
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  if (*floor == 0) *floor = find_floor(here);
  return here >= *floor;
}
