/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of spill memory is whose, step by step; and what can't be right. */
#include "ring/spill.h"

#include "ring/tap.h"
#include "tests/support/spill_ring.h"

TEST(a_region_is_used_again_when_the_last_reader_has_passed_and_not_before) {
  struct rc_ring_reader fast = join(), slow = join();
  ck_assert_int_eq(send(0, 10), 0);
  ck_assert_int_eq(send(1, 10), 10);
  ck_assert_int_eq(send(2, 10), -EAGAIN);
  ck_assert_uint_eq(rc_spill_wanted(&spill, bytes_of(10)), RC_FRAME_ALIGN);
  ck_assert_uint_eq(rc_spill_wanted(&spill, bytes_of(14)), 2 * RC_FRAME_ALIGN);
  release(&fast, expect(&fast, 0, bytes_of(10)));
  release(&fast, expect(&fast, 1, bytes_of(10)));
  ck_assert_int_eq(send(2, 10), -EAGAIN);
  ck_assert_uint_eq(control->slots[writer.blocker].cursor, slow.cursor);
  ck_assert_uint_eq(control->spill_floor, 0);
  uint64_t held = expect(&slow, 0, bytes_of(10));
  ck_assert_int_eq(send(2, 10), -EAGAIN);
  release(&slow, held);
  ck_assert_int_eq(send(2, 10), 0);
  ck_assert_uint_eq(control->spill_floor, RC_FRAME_ALIGN);
  expect(&slow, 1, bytes_of(10));
}

TEST(the_lowest_gap_is_taken_first) {
  struct rc_ring_reader reader = join();
  ck_assert_int_eq(send(0, 3), 0);
  ck_assert_int_eq(send(1, 8), 3);
  ck_assert_int_eq(send(2, 8), 11);
  ck_assert_int_eq(send(3, 4), 19);
  release(&reader, expect(&reader, 0, bytes_of(3)));
  ck_assert_int_eq(send(4, 4), -EAGAIN); /* 3 and 1 are left, apart */
  ck_assert_int_eq(send(4, 2), 0);
  ck_assert_int_eq(send(5, 1), 2);
  ck_assert_int_eq(send(6, 1), 23);
  ck_assert_int_eq(send(7, 1), -EAGAIN);
}

TEST(what_can_never_fit_is_told_from_what_cannot_now) {
  uint64_t offset;
  ck_assert_int_eq(open_at(bytes_of(UNITS), &offset), 0);
  rc_spill_abort(&spill);
  rc_ring_abort(&writer);
  ck_assert_int_eq(open_at(bytes_of(UNITS) + 1, &offset), -EMSGSIZE);
  ck_assert_int_eq(open_at(UINT64_MAX, &offset), -EMSGSIZE);
  ck_assert_int_eq(open_at(UINT64_MAX - RC_SPILL_UNIT, &offset), -EMSGSIZE);
  ck_assert_uint_eq(rc_spill_max_frame(ring.spill_bytes), bytes_of(UNITS));
  ck_assert_uint_eq(rc_spill_max_frame(0), 0);
  rc_spill_init(&spill, 0); /* none at all */
  ck_assert_int_eq(open_at(0, &offset), -EMSGSIZE);
}

TEST(commit_trims_and_abort_gives_all_back) {
  struct rc_ring_reader reader = join();
  uint64_t offset;
  ck_assert_int_eq(open_at(bytes_of(20), &offset), 0);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, bytes_of(20) + 1, 0), -EINVAL);
  pattern_fill(memory + offset + RC_SPILL_PHASE, 10, 1);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, 10, 1), 0);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, 0, 1), -EINVAL);
  ck_assert_int_eq(open_at(bytes_of(UNITS - 1), &offset), 0);
  ck_assert_uint_eq(offset, RC_SPILL_UNIT);
  rc_spill_abort(&spill);
  rc_ring_abort(&writer);
  ck_assert_int_eq(send(2, UNITS - 1), 1);
  expect(&reader, 1, 10);
  expect(&reader, 2, bytes_of(UNITS - 1));
}

TEST(what_grows_stays_while_it_can_and_then_goes_where_it_can_double) {
  struct rc_ring_reader reader = join();
  uint64_t offset;
  ck_assert_int_eq(send(0, 2), 0);
  ck_assert_int_eq(send(1, 4), 2);
  release(&reader, expect(&reader, 0, bytes_of(2)));
  ck_assert_int_eq(open_at(bytes_of(1), &offset), 0);
  ck_assert_uint_eq(offset, 0);
  ck_assert_int_eq(rc_spill_find(&spill, bytes_of(2), true, &offset), 0);
  ck_assert_uint_eq(offset, 0);
  ck_assert_int_eq(rc_spill_find(&spill, bytes_of(3), true, &offset), 0);
  ck_assert_uint_eq(offset, 6 * RC_SPILL_UNIT);
  rc_spill_open(&spill, offset, bytes_of(3));
  ck_assert_int_eq(rc_spill_find(&spill, bytes_of(18), true, &offset), 0);
  ck_assert_uint_eq(offset, 6 * RC_SPILL_UNIT);
  ck_assert_int_eq(rc_spill_find(&spill, bytes_of(19), true, &offset), -EAGAIN);
  ck_assert_uint_eq(rc_spill_wanted(&spill, bytes_of(19)), 2 * RC_FRAME_ALIGN);
  release(&reader, expect(&reader, 1, bytes_of(4)));
  ck_assert_int_eq(rc_spill_reclaim(&spill, &writer), 0);
  ck_assert_int_eq(rc_spill_find(&spill, bytes_of(UNITS), true, &offset), 0); /* over itself */
  ck_assert_uint_eq(offset, 0);
  /* A reservation of the ring that comes here for the first time is placed in the same way. */
  rc_spill_abort(&spill);
  rc_ring_abort(&writer);
  ck_assert_int_eq(send(2, 3), 0);
  ck_assert_int_eq(send(3, 2), 3);
  release(&reader, expect(&reader, 2, bytes_of(3)));
  ck_assert_int_eq(rc_spill_reclaim(&spill, &writer), 0);
  ck_assert_int_eq(rc_spill_find(&spill, bytes_of(3), false, &offset), 0);
  ck_assert_uint_eq(offset, 0);
  ck_assert_int_eq(rc_spill_find(&spill, bytes_of(3), true, &offset), 0);
  ck_assert_uint_eq(offset, 5 * RC_SPILL_UNIT);
}

TEST(nothing_is_freed_while_somebody_joins) {
  struct rc_ring_reader reader = join();
  uint32_t slot;
  uint64_t owner;
  ck_assert_int_eq(send(0, UNITS), 0);
  release(&reader, expect(&reader, 0, bytes_of(UNITS)));
  ck_assert_int_eq(rc_slot_claim(&ring, 2, 7, &slot, &owner), 0);
  ck_assert_int_eq(rc_spill_reclaim(&spill, &writer), -EAGAIN);
  ck_assert_uint_eq(writer.blocker, slot);
  ck_assert_int_eq(send(1, 1), -EAGAIN);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, (struct rc_start){0}, &reader), 0);
  ck_assert_int_eq(send(1, 1), 0);
  control->slots[slot].cursor = 1 << 20;
  ck_assert_int_eq(rc_spill_reclaim(&spill, &writer), -EPROTO);
}

TEST(only_so_many_are_in_flight) {
  struct rc_ring_reader reader = join();
  rc_spill_init(&spill,
                (RC_SPILL_REGIONS + 10) * (uint64_t)RC_SPILL_UNIT); /* nothing is written there */
  uint64_t offset;
  for (uint64_t i = 0; i < RC_SPILL_REGIONS; i++) {
    ck_assert_int_eq(open_at(1, &offset), 0);
    ck_assert_uint_eq(offset, i * RC_SPILL_UNIT);
    ck_assert_int_eq(rc_spill_commit(&spill, &writer, 0, 0), 0);
  }
  ck_assert_int_eq(open_at(1, &offset), -EAGAIN);
  ck_assert_uint_eq(rc_spill_wanted(&spill, 1), RC_FRAME_ALIGN);
  for (int i = 0; i < 3; i++) {
    struct rc_ring_frame frame;
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    release(&reader, frame.position);
    ck_assert_int_eq(open_at(1, &offset), 0);
    ck_assert_int_eq(rc_spill_commit(&spill, &writer, 1, 0), 0);
    ck_assert(rc_spill_is_valid(&spill));
  }
}

/* ---- Taps ------------------------------------------------------------------------------------ */

static struct rc_ring_reader *in_the_way;

/* Just behind the last byte that is copied, all let go of the frame and the writer takes its
 * place. */
static int fetch_and_reuse(void *context, uint64_t offset, void *to, uint64_t bytes) {
  (void)context;
  memcpy(to, memory + offset, bytes);
  if (in_the_way) {
    release(in_the_way, in_the_way->cursor);
    in_the_way = NULL;
    ck_assert_int_eq(send(2, UNITS), 0);
  }
  return 0;
}

TEST(a_copy_whose_place_is_taken_before_it_is_looked_at_again_is_lost) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame;
  struct rc_ring_tap tap;
  static uint8_t buffer[UNITS * RC_SPILL_UNIT];
  rc_tap_init(&tap, &ring);
  tap.fetch = fetch_and_reuse;
  ck_assert_int_eq(send(1, 2), 0);
  expect(&reader, 1, bytes_of(2));
  in_the_way = &reader;
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), 0);
  ck_assert(frame.kind == 2 && frame.bytes == bytes_of(UNITS) &&
            pattern_matches(buffer, frame.bytes, 2));
  ck_assert(tap.gaps == 1 && tap.lost_bytes == frame.position);
}

enum { FRAMES = CAPACITY / RC_FRAME_ALIGN };

static struct rc_ring_tap robbed;
static uint32_t fetches;

/* Says that the frame that is being copied is gone, and puts another one behind it. */
static int fetch_and_be_robbed(void *context, uint64_t offset, void *to, uint64_t bytes) {
  (void)context, (void)offset, (void)to, (void)bytes;
  fetches++;
  struct rc_frame_header *next = rc_frame_at(&ring, robbed.next + RC_FRAME_ALIGN);
  struct rc_spilled *note = (struct rc_spilled *)(next + 1);
  rc_store_relaxed(&note->offset, RC_SPILL_PHASE);
  rc_store_relaxed(&note->bytes, 100);
  rc_store_relaxed(&next->meta, rc_meta_make(sizeof *note, 0, RC_FRAME_SPILLED));
  rc_store_release(&next->commit, robbed.next + 2 * RC_FRAME_ALIGN);
  rc_store_relaxed(&control->spill_floor, robbed.next + 1);
  return fetches < 100 * FRAMES ? 0 : -EIO;
}

TEST(a_tap_that_loses_each_frame_comes_back_after_a_lap) {
  struct rc_ring_frame frame;
  uint8_t buffer[256];
  rc_tap_init(&robbed, &ring);
  robbed.fetch = fetch_and_be_robbed;
  ck_assert_int_ge(send(0, 1), 0);
  struct rc_spilled *note = (struct rc_spilled *)(rc_frame_at(&ring, 0) + 1);
  rc_store_relaxed(&note->bytes, 100);
  ck_assert_int_eq(rc_tap_next(&robbed, buffer, sizeof buffer, &frame), -EAGAIN);
  ck_assert_uint_le(fetches, FRAMES + 1);
  ck_assert_uint_eq(robbed.gaps, FRAMES);
  ck_assert_uint_eq(robbed.lost_bytes, CAPACITY);
}

/* ---- Notes that can't be right --------------------------------------------------------------- */

TEST(a_note_that_cannot_be_right_is_refused_field_by_field) {
  const uint64_t all = UNITS * RC_SPILL_UNIT;
  const struct {
    uint64_t offset, bytes;
    uint32_t frame_bytes;
    uint16_t flags;
    int result;
  } cases[] = {
      {16, all - 16, 16, 1, 0},
      {80, 0, 16, 1, 0},
      {all - 48, 48, 16, 1, 0},
      {all - 48, 49, 16, 1, -EPROTO},
      {0, 10, 16, 1, -EPROTO},
      {15, 10, 16, 1, -EPROTO},
      {17, 10, 16, 1, -EPROTO},
      {16, all - 15, 16, 1, -EPROTO},
      {16, UINT64_MAX, 16, 1, -EPROTO},
      {16, UINT64_MAX - 15, 16, 1, -EPROTO},
      {all + 16, 0, 16, 1, -EPROTO},
      {UINT64_MAX - 47, 48, 16, 1, -EPROTO},
      {(uint64_t)1 << 63 | 16, 10, 16, 1, -EPROTO},
      {16, 10, 15, 1, -EPROTO},
      {16, 10, 17, 1, -EPROTO},
      {16, 10, 0, 1, -EPROTO},
      {16, 10, 16, 4, -EPROTO},
      {16, 10, 16, 3, -EPROTO},
      {16, 10, 16, 0x8000, -EPROTO},
      {16, 10, 16, 0, 0}, /* an ordinary frame of 16 bytes */
  };
  struct rc_ring_reader reader = join();
  struct rc_frame_header *header = (struct rc_frame_header *)data;
  struct rc_spilled *note = (struct rc_spilled *)(header + 1);
  ck_assert_int_eq(send(0, 1), 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct rc_ring_frame frame = {.bytes = 77};
    note->offset = cases[i].offset;
    note->bytes = cases[i].bytes;
    header->bytes = cases[i].frame_bytes;
    header->flags = cases[i].flags;
    ck_assert_msg(rc_ring_next(&reader, &frame) == cases[i].result, "case %zu", i);
    if (cases[i].result != 0) {
      ck_assert_uint_eq(frame.bytes, 77);
      continue;
    }
    if (frame.spilled) {
      ck_assert_uint_eq(frame.bytes, cases[i].bytes);
      ck_assert_ptr_eq(frame.data, memory + cases[i].offset);
    }
    rc_ring_unread(&reader, frame.position);
    ck_assert(rc_ring_reader_is_valid(&reader));
  }
  header->flags = RC_FRAME_SPILLED;
  reader.view.spill_bytes = 0; /* a ring that has none */
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EPROTO);
}

RUN_TESTS("spill", make_ring, free_ring)
