/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of keeping share: readers that keep, and what they have kept. */
#ifndef RC_TESTS_KEEP_H
#define RC_TESTS_KEEP_H

#include <errno.h>
#include <unistd.h>

#include "shm/options.h"
#include "shm/os.h"
#include "tests/support/spill.h"

struct retained {
  ringcast_retained *handle;
  uint8_t *data;
  const void *place; /* where it was lent */
  uint64_t number;
  size_t bytes;
};

static inline ringcast_reader *attach_as(ringcast_writer *writer, uint32_t flags) {
  return reader_of(writer, .flags = flags, .leases = 2, .name = "rank 3");
}

static inline ringcast_reader *attach_retainer(ringcast_writer *writer) {
  return attach_as(writer, RINGCAST_READER_RETAIN);
}

static inline bool is_whole(const struct retained *retained) {
  return pattern_matches(retained->data, retained->bytes, retained->number);
}

/* What must be the next frame, kept. */
static inline struct retained keep(ringcast_reader *reader, uint64_t number, size_t bytes) {
  struct ringcast_frame frame = expect(reader, number, bytes);
  struct retained retained = {.place = frame.data, .number = number, .bytes = bytes};
  void *data;
  int result = ringcast_reader_retain(reader, &frame, &retained.handle, &data);
  ck_assert_msg(result == 0, "keep: %d, %s", result, ringcast_last_error());
  retained.data = data;
  ck_assert_uint_eq((uintptr_t)retained.data % 64, 16);
  ck_assert(is_whole(&retained));
  return retained;
}

static inline struct retained send_and_keep(ringcast_writer *writer, ringcast_reader *reader,
                                            uint64_t number, size_t bytes) {
  ck_assert_int_eq(send(writer, number, bytes), 0);
  return keep(reader, number, bytes);
}

/* As the other numbers would be, in every page. */
static inline void write_to(struct retained *retained) {
  retained->number += 1000;
  pattern_fill(retained->data, retained->bytes, retained->number);
}

static inline void drop(struct retained *retained) {
  ck_assert(is_whole(retained));
  ringcast_retained_release(retained->handle);
  retained->handle = NULL;
}

/* The reader's next call of next, which finds nothing. */
static inline void find_nothing(ringcast_reader *reader) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
}

/* As many small frames of spill memory as the reader leaves before it would keep one again. Returns
 * how many. */
static inline int let_it_keep(ringcast_writer *writer, ringcast_reader *reader) {
  size_t least = (size_t)info_of(writer).ring_frame + 1;
  int count = 0;
  for (; ringcast_reader_retains(reader) == 0; count++) {
    ck_assert_int_eq(send(writer, 1, least), 0);
    read_one(reader, 1, least);
  }
  return count;
}

/* The frame is kept as long as the writer lets it be: has the writer ask for it. */
static inline void want_all(ringcast_writer *writer, ringcast_reader *reader) {
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, (size_t)info_of(writer).max_frame, 0, &span),
                   -EAGAIN);
  find_nothing(reader);
  ck_assert_uint_eq(reader->retained, 0);
}

/* Whether frames can be kept here at all; says why not. */
static inline bool can_retain(const char *tests) {
  int fd = rc_feature_disabled("retain") ? -ENOTSUP : rc_os.pagemap();
  if (fd >= 0) close(fd);
  else
    tell_skipped(tests, fd == -ENOTSUP ? "retain is switched off (RINGCAST_DISABLE)"
                                       : "no /proc/self/pagemap");
  if (fd >= 0 && rc_small_page() > RC_SPILL_UNIT)
    tell_skipped(tests, "pages of more than 4 KiB"), fd = -1;
  return fd >= 0;
}

#endif
