/* SPDX-License-Identifier: Apache-2.0 */
/* The ring against a peer that stores what it likes while a call is under way. */
#include "ring/tap.h"
#include "tests/support/spill_ring.h"

enum { FRAMES = CAPACITY / RC_FRAME_ALIGN };

static struct rc_ring_tap tap;
static uint32_t fetches;

/* Says that the frame that is being copied is gone, and puts another one behind it. */
static int fetch_and_be_robbed(void *context, uint64_t offset, void *to, uint64_t bytes) {
  (void)context, (void)offset, (void)to, (void)bytes;
  fetches++;
  struct rc_frame_header *next = rc_frame_at(&ring, tap.next + RC_FRAME_ALIGN);
  struct rc_spilled *note = (struct rc_spilled *)(next + 1);
  rc_store_relaxed(&note->offset, RC_SPILL_PHASE);
  rc_store_relaxed(&note->bytes, 100);
  rc_store_relaxed(&next->meta, rc_meta_make(sizeof *note, 0, RC_FRAME_SPILLED));
  rc_store_release(&next->commit, tap.next + 2 * RC_FRAME_ALIGN);
  rc_store_relaxed(&control->spill_floor, tap.next + 1);
  return fetches < 100 * FRAMES ? 0 : -EIO;
}

TEST(a_tap_that_loses_each_frame_comes_back_after_a_lap) {
  struct rc_ring_frame frame;
  uint8_t buffer[256];
  rc_tap_init(&tap, &ring);
  tap.fetch = fetch_and_be_robbed;
  ck_assert_int_ge(send(0, 1), 0);
  struct rc_spilled *note = (struct rc_spilled *)(rc_frame_at(&ring, 0) + 1);
  rc_store_relaxed(&note->bytes, 100);
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EAGAIN);
  ck_assert_uint_le(fetches, FRAMES + 1);
  ck_assert_uint_eq(tap.gaps, FRAMES);
  ck_assert_uint_eq(tap.lost_bytes, CAPACITY);
}

/* Off the lines of frames, or so large that sums of positions overflow. */
TEST(a_tail_that_cannot_be_right_is_refused) {
  const uint64_t tails[] = {1, -(uint64_t)RC_FRAME_ALIGN, (uint64_t)1 << 63, RC_MAX_POSITION + RC_FRAME_ALIGN};
  struct rc_ring_reader reader;
  struct rc_ring_frame frame;
  uint8_t buffer[256];
  uint32_t slot;
  uint64_t owner;
  for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
    rc_tap_init(&tap, &ring);
    rc_store_release(&control->tail, tails[i]);
    ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), 0);
    ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, &reader), -EPROTO);
    ck_assert_int_eq(rc_owner_state(control->slots[slot].owner), RC_SLOT_FREE);
    rc_store_release(&control->limit, CAPACITY + 1); /* so the tap is lapped, and goes on at the tail */
    ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
    rc_store_release(&control->limit, 0);
    rc_store_release(&control->tail, 0);
  }
}

RUN_TESTS("ring, hostile", make_ring, free_ring)
