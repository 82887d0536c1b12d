/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying to and from spill memory. Up to some MiB the C library's memcpy uses the CPU's string
 * instruction (rep movsb), which on AMD's Zen 4 takes more than twice as long as a plain loop for
 * bytes that another process has just written. Data too large for the cache is best written past
 * the cache: that spares the fetch of the lines to be overwritten. SSE2, which every x86-64 CPU
 * has, reaches the speed of the memory. On other CPUs the copy is memcpy.
 */
#ifndef RC_EXTENSION_COPY_H
#define RC_EXTENSION_COPY_H

#include "python/extension/extension.h"

#ifdef __SSE2__
#include <emmintrin.h>

/* On return, the stores are ordered like ordinary stores. */
static inline void rc_py_copy_past_cache(uint8_t *to, const uint8_t *from, size_t bytes) {
  enum { LINE = 64 };
  size_t done = (size_t)(-(uintptr_t)to % LINE);
  if (done > bytes) done = bytes;
  memcpy(to, from, done);
  for (; bytes - done >= LINE; done += LINE) {
    const __m128i *in = (const __m128i *)(from + done);
    __m128i *out = (__m128i *)(to + done);
    __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
            d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  memcpy(to + done, from + done, bytes - done);
  _mm_sfence();
}
#else
static inline void rc_py_copy_past_cache(uint8_t *to, const uint8_t *from, size_t bytes) {
  memcpy(to, from, bytes);
}
#endif

/* What a receiver copies is used next, and then a copy past the cache pays from a quarter of the
 * usual cache on. */
enum { RC_PY_RECEIVED_PAST_CACHE = 8 << 20 };

/* With the GIL or without. `is_spilled`: source or destination is in spill memory. */
static inline void rc_py_copy_bytes(bool is_spilled, void *to, const void *from, size_t bytes) {
  enum { PAST_CACHE = 1 << 20 };
  if (is_spilled && bytes >= PAST_CACHE) rc_py_copy_past_cache(to, from, bytes);
  else if (bytes) memcpy(to, from, bytes);
}

/* Called with the GIL, which it hands over meanwhile if there is much to copy. */
static inline void rc_py_copy_maybe_without_gil(bool is_spilled, void *to, const void *from,
                                                size_t bytes) {
  PyThreadState *thread = bytes > RC_PY_COPY_WITH_GIL ? PyEval_SaveThread() : NULL;
  rc_py_copy_bytes(is_spilled, to, from, bytes);
  if (thread) PyEval_RestoreThread(thread);
}

#endif
