/* SPDX-License-Identifier: Apache-2.0 */
/* Frames whose length and bytes follow from their number, so that a reader knows what must
 * arrive. */
#ifndef RC_TESTS_PATTERN_H
#define RC_TESTS_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* splitmix64 (Steele, Lea, Flood 2014) */
static inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* Mostly small, now and then anything up to `most`. */
static inline size_t pattern_bytes(uint64_t number, size_t most) {
  uint64_t random = mix(number);
  size_t bound = random % 64 == 0 ? most + 1 : most < 400 ? most + 1 : 400;
  return (size_t)((random >> 8) % bound);
}

static inline uint64_t pattern_word(uint64_t number, size_t i) {
  return (number + 1) * 0x9e3779b97f4a7c15u + i;
}

static inline void pattern_fill(void *data, size_t bytes, uint64_t number) {
  uint8_t *out = data;
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word = pattern_word(number, i);
    memcpy(out + i, &word, 8);
  }
  uint64_t last = pattern_word(number, i);
  memcpy(out + i, &last, bytes - i);
}

static inline bool pattern_matches(const void *data, size_t bytes, uint64_t number) {
  const uint8_t *in = data;
  uint64_t word, wrong = 0;
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    memcpy(&word, in + i, 8);
    wrong |= word ^ pattern_word(number, i);
  }
  word = pattern_word(number, i);
  return wrong == 0 && memcmp(in + i, &word, bytes - i) == 0;
}

#endif
