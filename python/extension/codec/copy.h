/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying large things piece by piece. memcpy decides by the size of a piece how to copy it, and not by the whole: of
 * up to some MiB the C library's takes the CPU's string instruction (rep movsb), which on AMD's Zen 4 takes more than
 * twice as long for what others have just written as a plain loop. And what is too much for the cache is best written
 * past it, which spares to fetch what is overwritten. SSE2, which every x86-64 has, is enough to be as fast as the
 * memory. Other CPUs have memcpy.
 */
#ifndef RC_EXTENSION_COPY_H
#define RC_EXTENSION_COPY_H

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

/* The stores are as ordered as others once it returns. */
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

/* A piece of something of `whole` bytes. */
static inline void rc_py_copy_piece(void *to, const void *from, size_t bytes, uint64_t whole) {
  enum { PAST_CACHE = 1 << 20 };
  if (whole >= PAST_CACHE) rc_py_copy_past_cache(to, from, bytes);
  else memcpy(to, from, bytes);
}

#endif
