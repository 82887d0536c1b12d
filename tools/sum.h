/* SPDX-License-Identifier: Apache-2.0 */
/* Writing and reading every byte of a frame at the least cost. */
#ifndef TOOLS_SUM_H
#define TOOLS_SUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* memcpy; small frames without a call, like a copy of constant size. */
static inline void copy_bytes(void *to, const void *from, size_t bytes) {
  if (bytes >= 128 || bytes % 8 != 0) {
    memcpy(to, from, bytes);
    return;
  }
  for (size_t i = 0; i < bytes; i += 8) memcpy((char *)to + i, (const char *)from + i, 8);
}

/* In words, then bytes. */
static inline uint64_t sum_words(const uint8_t *at, size_t bytes) {
  uint64_t sum = 0, word = 0;
  for (; bytes >= sizeof word; bytes -= sizeof word, at += sizeof word) {
    memcpy(&word, at, sizeof word);
    sum += word;
  }
  for (size_t i = 0; i < bytes; i++) sum += (uint64_t)at[i] << 8 * i;
  return sum;
}

/* In vectors; not inline, so that the loop has the same alignment for every caller. */
uint64_t sum_vectors(const uint8_t *at, size_t bytes);

/* Sums all bytes as little-endian words of eight, the last one filled up with zeros. */
static inline uint64_t sum_bytes(const void *data, size_t bytes) {
  return bytes < 128 ? sum_words(data, bytes) : sum_vectors(data, bytes);
}

#endif
