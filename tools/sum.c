/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sum.h"

/* A cache line in registers of 16 bytes, which every 64-bit CPU has. */
typedef uint64_t vector __attribute__((vector_size(16), aligned(8), may_alias));

uint64_t sum_vectors(const uint8_t *at, size_t bytes) {
  vector sums[4] = {{0}};
  uint64_t sum = 0;
  const size_t step = sizeof sums;
  for (; bytes >= step; bytes -= step, at += step)
    for (size_t i = 0; i < 4; i++) sums[i] += ((const vector *)(const void *)at)[i];
  for (size_t i = 0; i < 4; i++) sum += sums[i][0] + sums[i][1];
  return sum + sum_words(at, bytes);
}
