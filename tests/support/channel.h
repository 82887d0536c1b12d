/* SPDX-License-Identifier: Apache-2.0 */
/* A writer and readers in one process, which leaves nothing behind. */
#ifndef RC_TESTS_CHANNEL_H
#define RC_TESTS_CHANNEL_H

#include "tests/support/handles.h"

static inline ringcast_writer *make_writer(uint64_t capacity, uint32_t readers) {
  return writer_of(.capacity = capacity, .readers = readers);
}

static inline ringcast_reader *attach(ringcast_writer *writer) {
  return reader_of(writer, .leases = 1);
}

#endif
