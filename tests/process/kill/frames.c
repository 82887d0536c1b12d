/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/process/kill/kill.h"

/* A quarter as of the typed layout, of which the writer takes the second word's low half for the
 * frame's tag. */
uint16_t kind_of(uint64_t number) {
  return number % 4 == 0 ? (uint16_t)RINGCAST_KIND_TENSORS : (uint16_t)mix(number);
}

/* The word at `at`, a multiple of 8. Two attempts at one frame have nothing in common but its
 * number. */
static uint64_t word_at(const struct head *head, uint64_t salt, size_t at) {
  switch (at) {
  case 0: return head->number;
  case 8: return head->bytes;
  case 16: return head->attempt;
  default: return salt + at * 0x9e3779b97f4a7c15u;
  }
}

static uint64_t salt_of(const struct head *head) {
  return mix(head->number ^ head->attempt << 48 ^ head->bytes << 24);
}

/* `from` is a multiple of 8. */
void fill_frame(void *data, size_t from, size_t to, const struct head *head) {
  uint64_t salt = salt_of(head);
  for (size_t i = from; i < to; i += 8) {
    uint64_t word = word_at(head, salt, i);
    memcpy((uint8_t *)data + i, &word, to - i < 8 ? to - i : 8);
  }
}

bool frame_matches(const void *data, size_t from, size_t to, const struct head *head) {
  uint64_t salt = salt_of(head);
  for (size_t i = from; i < to; i += 8) {
    uint64_t word = word_at(head, salt, i);
    if (memcmp((const uint8_t *)data + i, &word, to - i < 8 ? to - i : 8) != 0) return false;
  }
  return true;
}
