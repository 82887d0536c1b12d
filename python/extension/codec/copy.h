/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying pieces of large frames. memcpy decides by the size of each piece how to copy it, and not by the whole: for
 * what is smaller than some MiB the C library's takes the CPU's string instruction (rep movsb), which between memory
 * that others have just written takes more than twice as long on AMD's Zen 4 as a plain loop does. SSE2, which every
 * x86-64 has, is enough to be as fast as the memory. Other CPUs have memcpy.
 */
#ifndef RC_EXTENSION_COPY_H
#define RC_EXTENSION_COPY_H

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { RC_PY_LINE = 64 };

/* Up to the next line of `to`; returns how many bytes. */
static inline size_t rc_py_copy_to_line(void *to, const void *from, size_t bytes) {
  size_t head = (size_t)(-(uintptr_t)to % RC_PY_LINE);
  if (head > bytes) head = bytes;
  memcpy(to, from, head);
  return head;
}

/* To where readers are about to read: through the cache. */
static inline void rc_py_copy_near(void *to, const void *from, size_t bytes) {
  size_t done = rc_py_copy_to_line(to, from, bytes);
  for (; bytes - done >= RC_PY_LINE; done += RC_PY_LINE) {
    const __m128i *in = (const __m128i *)((const char *)from + done);
    __m128i *out = (__m128i *)((char *)to + done);
    __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
            d = _mm_loadu_si128(in + 3);
    _mm_store_si128(out, a);
    _mm_store_si128(out + 1, b);
    _mm_store_si128(out + 2, c);
    _mm_store_si128(out + 3, d);
  }
  memcpy((char *)to + done, (const char *)from + done, bytes - done);
}

/* To memory that is too much for the cache anyway: past it, which spares to fetch what is overwritten. The stores are
 * as ordered as others once it returns. */
static inline void rc_py_copy_past(void *to, const void *from, size_t bytes) {
  size_t done = rc_py_copy_to_line(to, from, bytes);
  for (; bytes - done >= RC_PY_LINE; done += RC_PY_LINE) {
    const __m128i *in = (const __m128i *)((const char *)from + done);
    __m128i *out = (__m128i *)((char *)to + done);
    __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
            d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  memcpy((char *)to + done, (const char *)from + done, bytes - done);
  _mm_sfence();
}

#else

static inline void rc_py_copy_near(void *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
}

static inline void rc_py_copy_past(void *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
}

#endif
#endif
