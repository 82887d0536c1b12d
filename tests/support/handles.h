/* SPDX-License-Identifier: Apache-2.0 */
/* Writers and readers that close at the end of a block, and a check that a test leaves nothing of a ring behind. */
#ifndef RC_TESTS_HANDLES_H
#define RC_TESTS_HANDLES_H

#include "channel/channel.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"

/* Variables whose writer or reader closes at the end of their block, the last declared variable first. */
#define SCOPED_WRITER __attribute__((cleanup(close_scoped_writer))) ringcast_writer *
#define SCOPED_READER __attribute__((cleanup(close_scoped_reader))) ringcast_reader *

static inline void close_scoped_writer(ringcast_writer **writer) { ringcast_writer_close(*writer); }
static inline void close_scoped_reader(ringcast_reader **reader) { ringcast_reader_close(*reader); }

static int descriptors, mappings;

static inline void remember(void) {
  descriptors = open_descriptors();
  mappings = ring_mappings();
}

static inline void nothing_is_left(void) {
  ck_assert_int_eq(open_descriptors(), descriptors);
  ck_assert_int_eq(ring_mappings(), mappings);
}

static inline void ck_says(const char *word) {
  ck_assert_msg(strstr(ringcast_last_error(), word), "expected '%s' in: %s", word, ringcast_last_error());
}

#endif
