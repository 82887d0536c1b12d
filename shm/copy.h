/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy into a large frame, past the cache. An ordinary store fetches the line to be overwritten,
 * and drives another line out of the cache. A non-temporal store of x86-64 does neither. Such
 * stores are weakly ordered: without the fence at the end, a reader could see the commit (W2)
 * before the payload. On other CPUs the copy is memcpy.
 */
#ifndef RC_SHM_COPY_H
#define RC_SHM_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

static inline void rc_copy_past_cache(void *target, const void *source, size_t bytes) {
  uint8_t *to = target;
  const uint8_t *from = source;
  size_t done = (size_t)(-(uintptr_t)to % sizeof(__m128i));
  if (done > bytes) done = bytes;
  memcpy(to, from, done);
  for (; bytes - done >= sizeof(__m128i); done += sizeof(__m128i))
    _mm_stream_si128((__m128i *)(to + done), _mm_loadu_si128((const __m128i *)(from + done)));
  memcpy(to + done, from + done, bytes - done);
  _mm_sfence(); /* before W2 */
}
#else
static inline void rc_copy_past_cache(void *target, const void *source, size_t bytes) {
  memcpy(target, source, bytes);
}
#endif

#endif
