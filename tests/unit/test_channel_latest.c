/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching at the newest frame, or at the newest with a tag: options, tags of frames, frames in
 * spill memory. */
#include <errno.h>

#include "ringcast/frame.h"
#include "tests/support/channel.h"
#include "tests/support/pattern.h"

enum { LARGE = 3 << 19, SPILL = 2 << 20 }; /* spill memory for one large frame at a time */

/* A frame of the typed layout as far as the writer looks at it, then a pattern. */
static void send_tagged(ringcast_writer *writer, uint32_t tag, uint64_t number, size_t bytes) {
  struct ringcast_frame_header header = {.tag = tag};
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, 0, &span), 0);
  memcpy(span.data, &header, sizeof header);
  pattern_fill((uint8_t *)span.data + sizeof header, bytes - sizeof header, number);
  ck_assert_int_eq(ringcast_writer_commit(writer, bytes, RINGCAST_KIND_TENSORS), 0);
}

static void expect(ringcast_reader *reader, uint64_t number, size_t bytes) {
  const size_t head = sizeof(struct ringcast_frame_header);
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert(pattern_matches((const uint8_t *)frame.data + head, bytes - head, number));
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

static void expect_nothing(ringcast_reader *reader) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
}

#define latest_of(writer, ...) reader_of(writer, .start = RINGCAST_START_LATEST, __VA_ARGS__)

static int attach_with(ringcast_writer *writer, uint32_t start, uint32_t tag) {
  struct ringcast_reader_options options = {.size = sizeof options, .start = start, .tag = tag};
  ringcast_reader *reader;
  int result = ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader);
  ck_assert_int_ne(result, 0);
  return result;
}

TEST(a_reader_gets_the_newest_frame_at_once_and_then_all_others) {
  SCOPED_WRITER writer = make_writer(65536, 4);
  SCOPED_READER early = latest_of(writer, .leases = 1);
  expect_nothing(early);
  for (uint64_t number = 0; number < 5; number++)
    send_tagged(writer, number == 2 ? 9 : 0, number, 400);
  for (uint64_t number = 0; number < 5; number++) expect(early, number, 400);
  SCOPED_READER newest = latest_of(writer, .leases = 1);
  SCOPED_READER tagged = latest_of(writer, .tag = 9);
  SCOPED_READER next = attach(writer);
  send_tagged(writer, 0, 5, 400);
  for (uint64_t number = 4; number < 6; number++) expect(newest, number, 400);
  for (uint64_t number = 2; number < 6; number++) expect(tagged, number, 400);
  expect(next, 5, 400);
}

TEST(options_that_cannot_be_are_refused_in_words) {
  SCOPED_WRITER writer = make_writer(4096, 1);
  ck_assert_int_eq(attach_with(writer, 2, 0), -EINVAL);
  ck_says("options.start is 2");
  ck_assert_int_eq(attach_with(writer, RINGCAST_START_NEXT, 7), -EINVAL);
  ck_says("RINGCAST_START_LATEST");
}

TEST(a_tag_without_a_frame_to_start_at_is_an_error_that_names_it) {
  SCOPED_WRITER writer = make_writer(4096, 1);
  ck_assert_int_eq(attach_with(writer, RINGCAST_START_LATEST, 7), -ENODATA);
  ck_says("tag 7");
  send_tagged(writer, 7, 0, 100);
  ringcast_reader_close(latest_of(writer, .tag = 7));
  for (uint64_t number = 1; number < 18; number++)
    send_tagged(writer, 0, number, 100); /* more than half the ring */
  ck_assert_int_eq(attach_with(writer, RINGCAST_START_LATEST, 7), -ENODATA);
  ck_says("half the ring (2048 bytes)");
  SCOPED_READER reader = latest_of(writer, .leases = 1); /* the slot of those that failed is free */
  expect(reader, 17, 100);
}

/* Bytes of the caller's own have no tag, nor has a frame that is too short for one. */
TEST(only_the_typed_layout_has_tags) {
  SCOPED_WRITER writer = make_writer(4096, 1);
  const struct ringcast_frame_header header = {.tag = 7};
  ck_assert_int_eq(ringcast_writer_send(writer, &header, sizeof header, RINGCAST_KIND_BYTES, 0), 0);
  ck_assert_int_eq(
      ringcast_writer_send(writer, &header, sizeof header - 1, RINGCAST_KIND_TENSORS, 0), 0);
  ck_assert_int_eq(attach_with(writer, RINGCAST_START_LATEST, 7), -ENODATA);
  ck_assert_int_eq(ringcast_writer_send(writer, &header, sizeof header, RINGCAST_KIND_TENSORS, 0),
                   0);
  ringcast_reader_close(latest_of(writer, .tag = 7));
}

TEST(a_frame_in_spill_memory_stays_until_the_memory_is_needed) {
  struct ringcast_span span;
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .spill_bytes = SPILL);
  SCOPED_READER first = attach(writer);
  send_tagged(writer, 7, 0, LARGE);
  expect(first, 0, LARGE);
  for (int i = 0; i < 3; i++) {
    SCOPED_READER late = latest_of(writer, .leases = 1);
    ck_assert_int_eq(ringcast_writer_reserve(writer, LARGE, 0, &span), -EAGAIN);
    expect(late, 0, LARGE);
  }
  SCOPED_READER tagged = latest_of(writer, .tag = 7);
  expect(tagged, 0, LARGE);
  ck_assert_int_eq(ringcast_writer_reserve(writer, LARGE, 0, &span),
                   0); /* over the newest, which all have read */
  memset(span.data, 0, span.bytes);
  ck_assert_int_eq(attach_with(writer, RINGCAST_START_LATEST, 7), -ENODATA);
  ck_says("spill memory was taken back");
  SCOPED_READER late = latest_of(writer, .leases = 1);
  expect_nothing(late);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  send_tagged(writer, 7, 1, LARGE);
  expect(late, 1, LARGE);
  expect(tagged, 1, LARGE);
}

/* A reader gets all frames after its start, so the payload of each must be there. */
TEST(a_small_frame_is_no_start_once_a_spilled_frame_after_it_is_gone) {
  struct ringcast_span span;
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .spill_bytes = SPILL);
  SCOPED_READER first = attach(writer);
  send_tagged(writer, 7, 0, 100);
  send_tagged(writer, 0, 1, LARGE);
  for (uint64_t number = 0; number < 2; number++) expect(first, number, number == 0 ? 100 : LARGE);
  SCOPED_READER in_time = latest_of(writer, .tag = 7);
  for (uint64_t number = 0; number < 2; number++)
    expect(in_time, number, number == 0 ? 100 : LARGE);
  ck_assert_int_eq(ringcast_writer_reserve(writer, LARGE, 0, &span),
                   0); /* over the spilled frame */
  memset(span.data, 0, span.bytes);
  ck_assert_int_eq(attach_with(writer, RINGCAST_START_LATEST, 7), -ENODATA);
  ck_says("spill memory was taken back");
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  send_tagged(writer, 7, 2, 100);
  SCOPED_READER late = latest_of(writer, .tag = 7);
  expect(late, 2, 100);
}

RUN_TESTS("channel, latest", remember, nothing_is_left)
