/* SPDX-License-Identifier: Apache-2.0 */
/* A writer and readers in one process, which leaves nothing behind. */
#ifndef RC_TESTS_CHANNEL_H
#define RC_TESTS_CHANNEL_H

#include "tests/support/handles.h"

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

#endif
