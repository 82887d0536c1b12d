/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's behaviour, one thread, every step in a chosen order. */
#include "ring/hot.h"

#include <errno.h>

#include "ring/tap.h"
#include "shm/memory.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

enum { CAPACITY = 4096, SLOTS = 4 };

static struct rc_memory data;
static struct rc_control *control;
static struct rc_ring_writer writer;
static struct rc_ring ring;

static void make_ring(void) {
  ck_assert_int_eq(rc_memory_create_data(CAPACITY, &(struct rc_memory_wish){.memory = RINGCAST_MEMORY_PAGES}, &data), 0);
  control = aligned_alloc(RC_LINE, rc_control_bytes(SLOTS));
  memset((void *)control, 0, rc_control_bytes(SLOTS));
  ring = (struct rc_ring){.control = control, .data = data.base, .capacity = CAPACITY, .slots = SLOTS};
  rc_ring_writer_init(&writer, ring);
}

static void free_ring(void) {
  free(control);
  rc_memory_destroy(&data);
}

static struct rc_ring_reader join(void) {
  struct rc_ring_reader reader;
  uint32_t slot;
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot), 0);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, &reader), 0);
  return reader;
}

static int send(uint64_t number, size_t bytes) {
  void *out;
  int result = rc_ring_reserve(&writer, bytes, &out);
  if (result != 0) return result;
  pattern_fill(out, bytes, number);
  return rc_ring_commit(&writer, bytes, (uint16_t)number);
}

static void expect(struct rc_ring_reader *reader, uint64_t number, size_t bytes) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(reader, &frame), 0);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert_uint_eq(frame.kind, (uint16_t)number);
  ck_assert(pattern_matches(frame.data, bytes, number));
}

static void expect_nothing(struct rc_ring_reader *reader) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(reader, &frame), -EAGAIN);
}

START_TEST(a_frame_arrives_whole_once_and_in_order) {
  struct rc_ring_reader reader = join();
  expect_nothing(&reader);
  for (uint64_t i = 0; i < 5; i++) ck_assert_int_eq(send(i, i * 37), 0);
  for (uint64_t i = 0; i < 5; i++) {
    expect(&reader, i, i * 37);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  expect_nothing(&reader);
}
END_TEST

START_TEST(nothing_is_seen_before_commit_and_abort_leaves_nothing) {
  struct rc_ring_reader reader = join();
  void *out;
  ck_assert_int_eq(rc_ring_reserve(&writer, 100, &out), 0);
  memset(out, 0xff, 100);
  expect_nothing(&reader);
  ck_assert_int_eq(rc_ring_abort(&writer), 0);
  expect_nothing(&reader);
  ck_assert_int_eq(send(1, 10), 0);
  expect(&reader, 1, 10);
}
END_TEST

START_TEST(commit_trims_and_grow_keeps_what_was_written) {
  struct rc_ring_reader reader = join();
  void *out, *grown;
  ck_assert_int_eq(rc_ring_reserve(&writer, 1000, &out), 0);
  pattern_fill(out, 300, 7);
  ck_assert_int_eq(rc_ring_commit(&writer, 300, 7), 0);
  ck_assert_uint_eq(writer.tail, rc_frame_lines(300));
  ck_assert_int_eq(rc_ring_reserve(&writer, 10, &out), 0);
  pattern_fill(out, 8, 8);
  ck_assert_int_eq(rc_ring_grow(&writer, 900, &grown), 0);
  pattern_fill(grown, 0, 8);
  for (size_t i = 8; i < 900; i += 8) {
    uint64_t word = pattern_word(8, i);
    memcpy((uint8_t *)grown + i, &word, 900 - i < 8 ? 900 - i : 8);
  }
  ck_assert_int_eq(rc_ring_commit(&writer, 900, 8), 0);
  expect(&reader, 7, 300);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  expect(&reader, 8, 900);
}
END_TEST

START_TEST(a_grow_that_fails_leaves_the_reservation_as_it_was) {
  struct rc_ring_reader reader = join();
  void *out, *grown;
  ck_assert_int_eq(send(0, 1500), 0);
  ck_assert_int_eq(send(1, 700), 0);
  ck_assert_int_eq(rc_ring_reserve(&writer, 100, &out), 0);
  pattern_fill(out, 100, 2);
  ck_assert_int_eq(rc_ring_grow(&writer, 1900, &grown), -EAGAIN);
  ck_assert_int_eq(rc_ring_grow(&writer, CAPACITY, &grown), -EMSGSIZE);
  ck_assert_int_eq(rc_ring_commit(&writer, 1900, 2), -EINVAL);
  ck_assert_int_eq(rc_ring_commit(&writer, 100, 2), 0);
  expect(&reader, 0, 1500);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  expect(&reader, 1, 700);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  expect(&reader, 2, 100);
}
END_TEST

START_TEST(calls_out_of_order_are_refused) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame;
  void *out;
  ck_assert_int_eq(rc_ring_commit(&writer, 0, 0), -EINVAL);
  ck_assert_int_eq(rc_ring_abort(&writer), -EINVAL);
  ck_assert_int_eq(rc_ring_grow(&writer, 1, &out), -EINVAL);
  ck_assert_int_eq(rc_ring_reserve(&writer, 1, &out), 0);
  ck_assert_int_eq(rc_ring_reserve(&writer, 1, &out), -EBUSY);
  ck_assert_int_eq(rc_ring_commit(&writer, 2, 0), -EINVAL);
  ck_assert_int_eq(rc_ring_commit(&writer, 1, 0), 0);
  ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EBUSY);
}
END_TEST

START_TEST(a_frame_that_runs_over_the_end_is_contiguous) {
  struct rc_ring_reader reader = join();
  uint64_t straddled = 0;
  for (uint64_t i = 0; i < 200; i++) {
    size_t bytes = 700 + i % 64;
    uint64_t start = writer.tail % CAPACITY;
    ck_assert_int_eq(send(i, bytes), 0);
    straddled += start + rc_frame_lines(bytes) > CAPACITY;
    expect(&reader, i, bytes);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  ck_assert_uint_gt(straddled, 10);
}
END_TEST

START_TEST(a_full_ring_refuses_names_the_slowest_and_goes_on_after_release) {
  struct rc_ring_reader quick = join(), slow = join();
  uint64_t sent = 0, read = 0;
  while (send(sent, 200) == 0) {
    expect(&quick, sent++, 200);
    ck_assert_int_eq(rc_ring_release(&quick, quick.cursor), 0);
  }
  ck_assert_uint_ge(sent, (CAPACITY - 2 * rc_frame_lines(200)) / rc_frame_lines(200));
  ck_assert_uint_eq(writer.blocker, slow.slot);
  expect(&slow, read, 200);
  ck_assert_int_eq(send(sent, 200), -EAGAIN); /* read, but not released */
  ck_assert_int_eq(rc_ring_release(&slow, slow.cursor), 0);
  ck_assert_int_eq(send(sent, 200), 0);
  for (read++; read <= sent; read++) {
    expect(&slow, read, 200);
    ck_assert_int_eq(rc_ring_release(&slow, slow.cursor), 0);
  }
  expect_nothing(&slow);
}
END_TEST

/* Aeron's C ring once took a wrong index here: free room before the end and after the start, neither enough alone. */
START_TEST(a_claim_with_room_neither_at_the_end_nor_at_the_start_overwrites_nothing) {
  struct rc_ring_reader reader = join();
  for (uint64_t i = 0; i < 3; i++) ck_assert_int_eq(send(i, 1100), 0); /* tail near the end */
  ck_assert_uint_gt(writer.tail, CAPACITY * 3 / 4);
  ck_assert_uint_lt(writer.tail, CAPACITY);
  expect(&reader, 0, 1100);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0); /* about a quarter is free at the start, and less before the end */
  ck_assert_int_eq(send(3, rc_ring_max_frame(CAPACITY)), -EAGAIN);
  ck_assert_int_eq(send(3, 1100), 0); /* fits into both together, thanks to the mirror */
  for (uint64_t i = 1; i < 4; i++) {
    expect(&reader, i, 1100);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  expect_nothing(&reader);
}
END_TEST

START_TEST(the_largest_frame_fits_wherever_the_tail_stands) {
  struct rc_ring_reader reader = join();
  size_t most = rc_ring_max_frame(CAPACITY);
  for (uint64_t i = 0; i < 3 * CAPACITY / RC_LINE; i++) {
    ck_assert_int_eq(send(i, most), 0);
    expect(&reader, i, most);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
    ck_assert_int_eq(send(i, 1), 0);
    expect(&reader, i, 1);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  void *out;
  ck_assert_int_eq(rc_ring_reserve(&writer, most + 1, &out), -EMSGSIZE);
  ck_assert_int_eq(rc_ring_reserve(&writer, UINT64_MAX, &out), -EMSGSIZE);
}
END_TEST

START_TEST(what_an_earlier_lap_left_is_never_taken_for_a_commit) {
  struct rc_ring_reader reader = join();
  void *out;
  for (uint64_t i = 0; i < 2000; i++) {
    size_t bytes = 40 + mix(i) % 600 / 8 * 8;
    ck_assert_int_eq(rc_ring_reserve(&writer, bytes, &out), 0);
    /* Every word of the payload is a position that would pass as the commit of a frame that starts on this line. */
    uint64_t *words = out;
    for (size_t k = 0; k < bytes / 8; k++) {
      uint64_t line = (writer.tail + 16 + k * 8) / RC_LINE * RC_LINE;
      words[k] = line + CAPACITY + RC_LINE;
    }
    ck_assert_int_eq(rc_ring_commit(&writer, bytes, 0), 0);
    struct rc_ring_frame frame;
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    ck_assert_uint_eq(frame.bytes, bytes);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
    expect_nothing(&reader);
  }
}
END_TEST

START_TEST(a_reader_that_joins_in_mid_stream_gets_what_comes_after) {
  struct rc_ring_reader early = join();
  for (uint64_t i = 0; i < 7; i++) {
    ck_assert_int_eq(send(i, 500), 0);
    expect(&early, i, 500);
    ck_assert_int_eq(rc_ring_release(&early, early.cursor), 0);
  }
  struct rc_ring_reader late = join();
  expect_nothing(&late);
  ck_assert_int_eq(send(7, 500), 0);
  expect(&early, 7, 500);
  expect(&late, 7, 500);
}
END_TEST

/* The writer has published a frame and was stopped before it moved the tail on. */
START_TEST(a_frame_that_is_there_already_is_not_for_who_joins_now) {
  struct rc_ring_reader first = join();
  ck_assert_int_eq(send(0, 300), 0);
  ck_assert_int_eq(send(1, 300), 0);
  control->tail = rc_frame_lines(300);
  expect(&first, 0, 300);
  ck_assert_int_eq(rc_ring_release(&first, first.cursor), 0);
  expect(&first, 1, 300);
  rc_slot_free(&ring, first.slot);
  struct rc_ring_reader again = join();
  expect_nothing(&again);
  ck_assert_int_eq(send(2, 300), 0);
  expect(&again, 2, 300);
}
END_TEST

START_TEST(the_writer_grants_itself_nothing_while_somebody_joins) {
  uint32_t slot;
  struct rc_ring_reader reader;
  ck_assert_int_eq(send(0, 100), 0); /* granted: half a ring */
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot), 0);
  uint64_t limit = writer.limit, sent = 1;
  while (send(sent, 300) == 0) sent++;
  ck_assert_uint_eq(writer.limit, limit);
  ck_assert_uint_eq(writer.blocker, slot);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, &reader), 0);
  ck_assert_int_eq(send(sent, 300), 0);
  expect(&reader, sent, 300);
}
END_TEST

START_TEST(a_reader_that_leaves_frees_its_room) {
  struct rc_ring_reader reader = join();
  uint64_t sent = 0;
  while (send(sent, 300) == 0) sent++;
  rc_slot_free(&ring, reader.slot);
  for (int i = 0; i < 100; i++) ck_assert_int_eq(send(sent, 300), 0);
}
END_TEST

START_TEST(without_readers_the_writer_never_waits) {
  for (uint64_t i = 0; i < 1000; i++) ck_assert_int_eq(send(i, mix(i) % 1900), 0);
}
END_TEST

START_TEST(slots_run_out_and_come_back) {
  struct rc_ring_reader readers[SLOTS];
  uint32_t slot;
  for (int i = 0; i < SLOTS; i++) readers[i] = join();
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot), -EUSERS);
  rc_slot_free(&ring, readers[2].slot);
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot), 0);
  ck_assert_uint_eq(slot, readers[2].slot);
}
END_TEST

START_TEST(a_slot_is_reaped_only_while_its_owner_is_the_one_meant) {
  uint32_t slot;
  struct rc_ring_reader reader;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot), 0);
  uint64_t joining = control->slots[slot].owner;
  ck_assert_int_eq(rc_slot_activate(&ring, slot, &reader), 0);
  ck_assert(!rc_slot_reap(&ring, slot, joining));
  ck_assert(rc_slot_reap(&ring, slot, control->slots[slot].owner));
  ck_assert_int_eq(rc_owner_state(control->slots[slot].owner), RC_SLOT_FREE);
}
END_TEST

START_TEST(frames_are_held_and_released_in_any_order) {
  enum { HELD = 8 };
  struct rc_ring_frame frames[HELD], more;
  struct rc_ring_reader reader = join();
  reader.leases = HELD;
  for (uint64_t round = 0; round < 300; round++) {
    for (uint64_t i = 0; i < HELD; i++) ck_assert_int_eq(send(round * HELD + i, 100 + i), 0);
    for (uint64_t i = 0; i < HELD; i++) ck_assert_int_eq(rc_ring_next(&reader, &frames[i]), 0);
    ck_assert_int_eq(rc_ring_next(&reader, &more), -EBUSY);
    uint64_t oldest = reader.cursor, step = 1 + 2 * (mix(round) % 4), first = mix(round + 7) % HELD;
    for (uint64_t i = 0; i < HELD; i++) {
      uint64_t which = (first + i * step) % HELD; /* each once: the step is odd */
      ck_assert(pattern_matches(frames[which].data, 100 + which, round * HELD + which));
      ck_assert_int_eq(rc_ring_release(&reader, frames[which].position), 0);
      ck_assert_int_eq(rc_ring_release(&reader, frames[which].position), -EINVAL);
      ck_assert_int_eq(rc_ring_release(&reader, frames[which].position + 1), -EINVAL);
      ck_assert(rc_ring_reader_is_valid(&reader));
      if (which == 0) oldest = UINT64_MAX;
      if (oldest != UINT64_MAX) ck_assert_uint_eq(control->slots[reader.slot].cursor, oldest);
    }
    ck_assert_uint_eq(control->slots[reader.slot].cursor, writer.tail);
  }
}
END_TEST

START_TEST(the_oldest_held_frame_holds_the_writer_back) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame oldest, frame;
  reader.leases = RC_MAX_LEASES;
  ck_assert_int_eq(send(0, 200), 0);
  ck_assert_int_eq(rc_ring_next(&reader, &oldest), 0);
  uint64_t sent = 1;
  for (; send(sent, 200) == 0; sent++) {
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    ck_assert_int_eq(rc_ring_release(&reader, frame.position), 0);
  }
  ck_assert(pattern_matches(oldest.data, 200, 0));
  ck_assert_int_eq(rc_ring_release(&reader, oldest.position), 0);
  ck_assert_int_eq(send(sent, 1900), 0);
}
END_TEST

START_TEST(parties_are_counted) {
  struct rc_ring_reader reader = join();
  ck_assert_uint_eq(rc_ring_parties(&ring), 2);
  ck_assert_uint_eq(control->crowd.parties, 2);
  rc_slot_free(&ring, reader.slot);
  ck_assert_uint_eq(rc_ring_parties(&ring), 1);
}
END_TEST

/* ---- Taps ------------------------------------------------------------------------------------------------------- */

START_TEST(a_tap_copies_and_holds_nobody_back) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EAGAIN);
  for (uint64_t i = 0; i < 500; i++) {
    size_t bytes = mix(i) % 1900;
    ck_assert_int_eq(send(i, bytes), 0);
    if (bytes > 0) ck_assert_int_eq(rc_tap_next(&tap, buffer, bytes - 1, &frame), -EMSGSIZE);
    if (bytes > 0) ck_assert_uint_eq(frame.bytes, bytes);
    ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), 0);
    ck_assert(frame.bytes == bytes && frame.kind == (uint16_t)i && pattern_matches(buffer, bytes, i));
  }
  ck_assert_uint_eq(tap.gaps, 0);
}
END_TEST

START_TEST(a_tap_that_is_lapped_knows_what_it_lost) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  uint64_t read = 0, bytes = 0;
  for (uint64_t i = 0; i < 5000; i++) {
    ck_assert_int_eq(send(i, 8 + mix(i) % 800), 0);
    uint64_t frames = mix(i + 99) % 37 == 0 ? 5 : 0; /* mostly asleep, then a few */
    for (; frames > 0 && rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0; frames--) {
      ck_assert(pattern_matches(buffer, frame.bytes, frame.kind));
      read++;
      bytes += rc_frame_lines(frame.bytes);
    }
  }
  while (rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0) bytes += rc_frame_lines(frame.bytes);
  ck_assert_uint_gt(read, 100);
  ck_assert_uint_gt(tap.gaps, 10);
  ck_assert_uint_eq(bytes + tap.lost_bytes, writer.tail); /* every byte was either copied or counted as lost */
}
END_TEST

START_TEST(a_tap_loses_nothing_while_less_than_half_a_ring_behind) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  for (uint64_t i = 0; i < 2000;) {
    uint64_t start = writer.tail;
    while (writer.tail + rc_frame_lines(300) - start <= CAPACITY / 2) ck_assert_int_eq(send(i++, 300), 0);
    while (rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0) {}
    ck_assert_uint_eq(tap.next, writer.tail);
  }
  ck_assert_uint_eq(tap.gaps, 0);
}
END_TEST

START_TEST(a_tap_refuses_what_cannot_be_right) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[64];
  rc_tap_init(&tap, &ring);
  struct rc_frame_header *header = (struct rc_frame_header *)data.base;
  header->commit = 128;
  header->bytes = 10;
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
  header->commit = 64;
  header->bytes = UINT32_MAX;
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
  control->limit = UINT64_MAX; /* lapped, by a writer that is nowhere */
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
}
END_TEST

START_TEST(a_reader_that_was_reaped_while_joining_finds_out) {
  uint32_t slot, other;
  struct rc_ring_reader reader;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot), 0);
  ck_assert(rc_slot_reap(&ring, slot, control->slots[slot].owner));
  ck_assert_int_eq(rc_slot_activate(&ring, slot, &reader), -EAGAIN);
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &other), 0);
  ck_assert_int_eq(rc_slot_activate(&ring, other, &reader), 0);
}
END_TEST

START_TEST(a_tail_that_cannot_be_right_is_refused_at_joining) {
  uint32_t slot;
  struct rc_ring_reader reader;
  control->tail = 1;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot), 0);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, &reader), -EPROTO);
  ck_assert_int_eq(rc_owner_state(control->slots[slot].owner), RC_SLOT_FREE);
}
END_TEST

START_TEST(an_owner_holds_pid_start_and_state) {
  uint64_t owner = rc_owner_make(4194304, UINT64_MAX - 5, RC_SLOT_ACTIVE);
  ck_assert_uint_eq(rc_owner_pid(owner), 4194304);
  ck_assert_uint_eq(rc_owner_start(owner), (UINT64_MAX - 5) & RC_START_MASK);
  ck_assert_int_eq(rc_owner_state(owner), RC_SLOT_ACTIVE);
}
END_TEST

START_TEST(no_frame_is_longer_than_its_length_can_say) {
  ck_assert_uint_eq(rc_ring_max_frame(4096), 2048 - 80);
  ck_assert_uint_eq(rc_ring_max_frame(RC_MAX_BYTES), UINT32_MAX);
}
END_TEST

START_TEST(a_grant_never_exceeds_half_a_ring) {
  struct rc_ring_reader reader = join();
  for (uint64_t i = 0; i < 500; i++) {
    if (send(i, mix(i) % 900) != 0) {
      struct rc_ring_frame frame;
      while (rc_ring_next(&reader, &frame) == 0)
        ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
      i--;
    }
    ck_assert_uint_le(control->limit, writer.tail + CAPACITY / 2);
    ck_assert_uint_le(writer.tail + RC_LINE, control->limit);
    ck_assert(rc_ring_writer_is_valid(&writer));
  }
}
END_TEST

START_TEST(a_reader_refuses_headers_that_cannot_be_right) {
  struct rc_ring_reader reader = join();
  struct rc_frame_header *frame = (struct rc_frame_header *)data.base;
  struct rc_ring_frame out;
  const uint64_t commits[] = {1, 63, 65, 128, 4096, 4160, UINT64_MAX, UINT64_MAX - 63, (uint64_t)1 << 63};
  for (size_t i = 0; i < sizeof commits / sizeof *commits; i++) {
    frame->commit = commits[i];
    frame->bytes = 10; /* takes one line: 64 would be right */
    ck_assert_int_eq(rc_ring_next(&reader, &out), -EPROTO);
  }
  frame->bytes = UINT32_MAX;
  frame->commit = rc_frame_lines(UINT32_MAX);
  ck_assert_int_eq(rc_ring_next(&reader, &out), -EPROTO);
  frame->bytes = 10;
  frame->commit = 64;
  ck_assert_int_eq(rc_ring_next(&reader, &out), 0);
}
END_TEST

START_TEST(the_writer_refuses_cursors_that_cannot_be_right) {
  struct rc_ring_reader reader = join();
  const uint64_t cursors[] = {64, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 63};
  void *out;
  for (size_t i = 0; i < sizeof cursors / sizeof *cursors; i++) {
    control->slots[reader.slot].cursor = cursors[i];
    ck_assert_int_eq(rc_ring_reserve(&writer, 100, &out), -EPROTO);
    ck_assert_uint_eq(writer.blocker, reader.slot);
  }
}
END_TEST

START_TEST(a_cursor_that_goes_back_takes_nothing_from_the_writer) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame;
  for (uint64_t i = 0; i < 8; i++) {
    ck_assert_int_eq(send(i, 300), 0);
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  control->slots[reader.slot].cursor = 0;
  void *out;
  ck_assert_int_eq(rc_ring_reserve(&writer, 1900, &out), -EAGAIN);
  ck_assert(rc_ring_writer_is_valid(&writer));
}
END_TEST

/* Random steps against a model that is nothing but counters. */
START_TEST(random_steps_agree_with_a_simple_model) {
  struct rc_ring_reader readers[SLOTS];
  uint64_t next[SLOTS], sent = 0, refused = 0, read = 0;
  bool attached[SLOTS] = {false};
  size_t most = rc_ring_max_frame(CAPACITY);
  for (uint64_t step = 0; step < 100000; step++) {
    uint64_t random = mix(step * 7 + (uint64_t)_i);
    uint32_t who = (random >> 8) % SLOTS;
    if (random % 8 < 4) {
      int result = send(sent, pattern_bytes(sent, most));
      ck_assert(result == 0 || result == -EAGAIN);
      if (result == 0) sent++;
      else refused++;
    } else if (!attached[who] && random % 8 == 7) {
      readers[who] = join();
      attached[who] = true;
      next[who] = sent;
    } else if (attached[who] && random % 512 == 5) {
      rc_slot_free(&ring, readers[who].slot);
      attached[who] = false;
    } else if (attached[who]) {
      for (uint64_t burst = (random >> 16) % 6; burst > 0 && next[who] < sent; burst--, next[who]++, read++) {
        expect(&readers[who], next[who], pattern_bytes(next[who], most));
        ck_assert_int_eq(rc_ring_release(&readers[who], readers[who].cursor), 0);
      }
      if (next[who] == sent) expect_nothing(&readers[who]);
    }
  }
  ck_assert_uint_gt(read, 1000);
  ck_assert_uint_gt(refused, 1000);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ring");
  TCase *tests = add_case(suite, "ring");
  tcase_add_checked_fixture(tests, make_ring, free_ring);
  tcase_add_test(tests, a_frame_arrives_whole_once_and_in_order);
  tcase_add_test(tests, nothing_is_seen_before_commit_and_abort_leaves_nothing);
  tcase_add_test(tests, commit_trims_and_grow_keeps_what_was_written);
  tcase_add_test(tests, a_grow_that_fails_leaves_the_reservation_as_it_was);
  tcase_add_test(tests, calls_out_of_order_are_refused);
  tcase_add_test(tests, a_frame_that_runs_over_the_end_is_contiguous);
  tcase_add_test(tests, a_full_ring_refuses_names_the_slowest_and_goes_on_after_release);
  tcase_add_test(tests, a_claim_with_room_neither_at_the_end_nor_at_the_start_overwrites_nothing);
  tcase_add_test(tests, the_largest_frame_fits_wherever_the_tail_stands);
  tcase_add_test(tests, what_an_earlier_lap_left_is_never_taken_for_a_commit);
  tcase_add_test(tests, a_reader_that_joins_in_mid_stream_gets_what_comes_after);
  tcase_add_test(tests, a_frame_that_is_there_already_is_not_for_who_joins_now);
  tcase_add_test(tests, the_writer_grants_itself_nothing_while_somebody_joins);
  tcase_add_test(tests, a_reader_that_leaves_frees_its_room);
  tcase_add_test(tests, without_readers_the_writer_never_waits);
  tcase_add_test(tests, slots_run_out_and_come_back);
  tcase_add_test(tests, a_slot_is_reaped_only_while_its_owner_is_the_one_meant);
  tcase_add_test(tests, frames_are_held_and_released_in_any_order);
  tcase_add_test(tests, the_oldest_held_frame_holds_the_writer_back);
  tcase_add_test(tests, parties_are_counted);
  tcase_add_test(tests, a_tap_copies_and_holds_nobody_back);
  tcase_add_test(tests, a_tap_that_is_lapped_knows_what_it_lost);
  tcase_add_test(tests, a_tap_loses_nothing_while_less_than_half_a_ring_behind);
  tcase_add_test(tests, a_tap_refuses_what_cannot_be_right);
  tcase_add_test(tests, a_reader_that_was_reaped_while_joining_finds_out);
  tcase_add_test(tests, a_tail_that_cannot_be_right_is_refused_at_joining);
  tcase_add_test(tests, an_owner_holds_pid_start_and_state);
  tcase_add_test(tests, no_frame_is_longer_than_its_length_can_say);
  tcase_add_test(tests, a_grant_never_exceeds_half_a_ring);
  tcase_add_test(tests, a_reader_refuses_headers_that_cannot_be_right);
  tcase_add_test(tests, the_writer_refuses_cursors_that_cannot_be_right);
  tcase_add_test(tests, a_cursor_that_goes_back_takes_nothing_from_the_writer);
  tcase_add_loop_test(tests, random_steps_agree_with_a_simple_model, 0, 4);
  return run_suite(suite);
}
