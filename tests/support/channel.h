/* SPDX-License-Identifier: Apache-2.0 */
/* A writer and readers in one process, which leaves nothing behind. */
#ifndef RC_TESTS_CHANNEL_H
#define RC_TESTS_CHANNEL_H

#include <string.h>

#include "channel/channel.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"

static int descriptors, mappings;

static inline void remember(void) {
  descriptors = open_descriptors();
  mappings = ring_mappings();
}

static inline void nothing_is_left(void) {
  ck_assert_int_eq(open_descriptors(), descriptors);
  ck_assert_int_eq(ring_mappings(), mappings);
}

static inline ringcast_writer *make_writer(uint64_t capacity, uint32_t readers) {
  ringcast_writer *writer = NULL;
  struct ringcast_writer_options options = {.size = sizeof options, .capacity = capacity, .readers = readers};
  ck_assert_int_eq(ringcast_writer_create_ex(&options, &writer), 0);
  return writer;
}

static inline ringcast_reader *attach(ringcast_writer *writer) {
  ringcast_reader *reader = NULL;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), 0);
  return reader;
}

static inline void ck_says(const char *word) {
  ck_assert_msg(strstr(ringcast_last_error(), word), "expected '%s' in: %s", word, ringcast_last_error());
}

#endif
