/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/past_cache.h"

#include <stdint.h>
#include <string.h>

void bench_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

#ifdef __SSE2__
#include <emmintrin.h>

/* The fence orders the stores before the commit that follows. */
void bench_copy_past_cache(void *to, const void *from, size_t bytes) {
  enum { VECTOR = sizeof(__m128i) };
  size_t done = (size_t)(-(uintptr_t)to % VECTOR);
  if (done > bytes) done = bytes;
  memcpy(to, from, done);
  for (; bytes - done >= VECTOR; done += VECTOR)
    _mm_stream_si128((__m128i *)((uint8_t *)to + done),
                     _mm_loadu_si128((const __m128i *)((const uint8_t *)from + done)));
  memcpy((uint8_t *)to + done, (const uint8_t *)from + done, bytes - done);
  _mm_sfence();
}
#else
void bench_copy_past_cache(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
#endif
