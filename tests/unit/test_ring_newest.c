/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that start at the newest frame, or at the newest with a tag: one thread, every step in a
 * chosen order. */
#include "tests/support/ring.h"

#define LATEST      ((struct rc_start){.newest = true})
#define TAGGED(tag) ((struct rc_start){true, tag})

static struct rc_ring_reader join_latest(void) {
  struct rc_ring_reader reader;
  ck_assert_int_eq(join_at(LATEST, &reader), 0);
  return reader;
}

static void send_tagged(uint32_t tag, uint64_t number, size_t bytes) {
  uint64_t position = writer.tail;
  ck_assert_int_eq(send(number, bytes), 0);
  rc_newest_note(control, tag, position);
}

static void leave(const struct rc_ring_reader *reader) {
  rc_slot_free(&ring, reader->slot, reader->owner);
}

/* Nothing of a join that failed is left. */
static void refused(struct rc_start start, int expected) {
  struct rc_ring_reader reader;
  ck_assert_int_eq(join_at(start, &reader), expected);
  for (int i = 0; i < SLOTS; i++)
    ck_assert_int_eq(rc_owner_state(control->slots[i].owner), RC_SLOT_FREE);
}

TEST(a_reader_starts_at_the_newest_frame_and_misses_none_after_it) {
  for (uint64_t sent = 0; sent < 100;
       sent++) { /* several laps, frames of all sizes; also the first of all */
    ck_assert_int_eq(send(sent, sent * 19 % 1900), 0);
    struct rc_ring_reader reader = join_latest();
    expect(&reader, sent, sent * 19 % 1900);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
    expect_nothing(&reader);
    ck_assert_int_eq(send(++sent, 100), 0);
    expect(&reader, sent, 100);
    leave(&reader);
  }
}

TEST(without_any_frame_it_starts_at_the_first) {
  struct rc_ring_reader reader = join_latest();
  expect_nothing(&reader);
  ck_assert_int_eq(send(0, 300), 0);
  expect(&reader, 0, 300);
}

/* The writer was stopped after the commit, before it stored where the newest frame and the tail
 * are. */
TEST(a_frame_that_is_committed_is_the_newest_already) {
  ck_assert_int_eq(send(0, 300), 0);
  uint64_t newest = control->newest, tail = control->tail;
  ck_assert_int_eq(send(1, 300), 0);
  control->newest = newest;
  control->tail = tail;
  struct rc_ring_reader reader = join_latest();
  expect(&reader, 1, 300);
}

TEST(what_it_starts_at_holds_the_writer_back) {
  const size_t most = rc_ring_max_frame(CAPACITY);
  ck_assert_int_eq(send(0, 100), 0);
  ck_assert_int_eq(send(1, most), 0);
  struct rc_ring_reader reader = join_latest();
  uint64_t sent = 2;
  while (send(sent, 60) == 0) sent++;
  ck_assert_uint_gt(sent, 2);
  ck_assert_uint_eq(writer.blocker, reader.slot);
  expect(&reader, 1, most);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  for (uint64_t number = 2; number < sent; number++) {
    expect(&reader, number, 60);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
}

/* By the frame at which a reader starts, no other may have begun to overwrite: half the ring, and
 * not a line more. */
TEST(the_newest_of_a_tag_may_be_half_a_ring_old) {
  struct rc_ring_reader reader;
  const size_t line = RC_FRAME_ALIGN - sizeof(struct rc_frame_header);
  send_tagged(7, 0, 300);
  uint64_t start = writer.tail - rc_frame_footprint(300), sent = 1;
  for (; writer.tail - start < CAPACITY / 2; sent++) ck_assert_int_eq(send(sent, line), 0);
  ck_assert_int_eq(join_at(TAGGED(7), &reader), 0);
  while (send(sent, line) == 0) sent++;
  ck_assert_uint_eq(writer.blocker, reader.slot);
  expect(&reader, 0, 300);
  leave(&reader);
  ck_assert_int_eq(send(sent, line), 0);
  refused(TAGGED(7), -ENODATA);
  send_tagged(7, 1000, 300);
  ck_assert_int_eq(join_at(TAGGED(7), &reader), 0);
  expect(&reader, 1000, 300);
}

TEST(each_tag_has_its_own_newest_frame) {
  struct rc_ring_reader reader;
  refused(TAGGED(1), -ENODATA);
  send_tagged(1, 0, 50);
  send_tagged(2, 1, 50);
  send_tagged(1, 2, 50);
  ck_assert_int_eq(send(3, 50), 0);
  refused(TAGGED(3), -ENODATA);
  refused(TAGGED(0x100), -ENODATA); /* of the entries of tag 1 */
  ck_assert_int_eq(join_at(TAGGED(1), &reader), 0);
  expect(&reader, 2, 50);
  leave(&reader);
  ck_assert_int_eq(join_at(TAGGED(2), &reader), 0);
  for (uint64_t number = 1; number <= 3; number++) {
    expect(&reader, number, 50);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
}

TEST(the_ring_remembers_so_many_tags_and_forgets_the_oldest) {
  enum { FIRST = 0x40 };
  free_ring();
  make_ring_of(64 * 1024);
  for (uint32_t tag = FIRST; tag < FIRST + RC_NEWEST_TAGS; tag++) send_tagged(tag, tag, 50);
  for (uint32_t tag = FIRST; tag < FIRST + RC_NEWEST_TAGS; tag++) {
    struct rc_ring_reader reader;
    ck_assert_int_eq(join_at(TAGGED(tag), &reader), 0);
    expect(&reader, tag, 50);
    leave(&reader);
  }
  send_tagged(FIRST, 1, 50);
  send_tagged(0x400, 2, 50); /* of the entries of 0x40, 0x51, 0x62 and 0x73 */
  struct rc_ring_reader reader;
  ck_assert_int_eq(join_at(TAGGED(FIRST), &reader), 0);
  leave(&reader);
  refused(TAGGED(0x51), -ENODATA);
  ck_assert_int_eq(join_at(TAGGED(0x62), &reader), 0);
}

TEST(tags_a_power_of_two_apart_are_remembered_too) {
  for (uint32_t shift = 0; shift <= 28; shift += 4) {
    free_ring();
    make_ring_of(64 * 1024);
    for (uint32_t i = 1; i < 16; i++) send_tagged(i << shift, i, 50);
    for (uint32_t i = 1; i < 16; i++) {
      struct rc_ring_reader reader;
      ck_assert_int_eq(join_at(TAGGED(i << shift), &reader), 0);
      leave(&reader);
    }
  }
}

/* The bound in frames counts what the reader has taken, not what the last one in its slot had. */
TEST(what_the_slots_last_owner_took_is_not_the_readers) {
  writer.ahead = 1;
  struct rc_ring_reader first = join();
  ck_assert_int_eq(send(0, 100), 0);
  rc_store_release(&first.own->taken, writer.tail);
  leave(&first);
  struct rc_ring_reader reader = join_latest();
  ck_assert_uint_eq(reader.slot, first.slot);
  ck_assert_int_eq(send(1, 100), -EAGAIN);
  expect(&reader, 0, 100);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  ck_assert_int_eq(send(1, 100), 0);
}

/* Off the lines of frames, so large that sums of positions overflow, of a lap ago, or where no
 * frame starts. */
TEST(a_place_that_cannot_be_right_is_refused) {
  const uint64_t bad[] = {1, RC_FRAME_ALIGN, (uint64_t)1 << 63, RC_MAX_POSITION + RC_FRAME_ALIGN,
                          UINT64_MAX - 127};
  for (uint64_t sent = 0; sent < 40; sent++) ck_assert_int_eq(send(sent, 1000), 0);
  send_tagged(7, 40, 1000);
  struct rc_newest *entry = NULL;
  for (uint32_t i = 0; i < RC_NEWEST_TAGS; i++)
    if (control->tags[i].tag == 7) entry = &control->tags[i];
  uint64_t good = control->newest;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    control->newest = i % 2 ? bad[i] : good + bad[i];
    refused(LATEST, -EPROTO);
    entry->place = (i % 2 ? bad[i] : good + bad[i]) + 1;
    struct rc_ring_reader reader;
    int result = join_at(TAGGED(7), &reader);
    ck_assert(result == -EPROTO || result == -ENODATA);
  }
  control->newest = good;
  entry->place = good + 1;
  struct rc_ring_reader reader = join_latest();
  expect(&reader, 40, 1000);
}

RUN_TESTS("ring, newest", make_ring, free_ring)
