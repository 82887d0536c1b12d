/* SPDX-License-Identifier: Apache-2.0 */
/* A hostile peer that takes every slot again as soon as the slot is free, in the name of a dead process: `reserve` and
 * `attach` end all the same. The library is compiled with its named points, from which this peer strikes. */
#include <errno.h>
#include <unistd.h>

#include "ring/point.h"
#include "tests/support/channel.h"

#define MOST 100000 /* strikes: without a bound in the library, the peer strikes so often and then gives up */

static struct rc_control *control;
static uint32_t slots;
static uint64_t turn;
static enum rc_slot_state state;
static int strikes;
static enum rc_point where = RC_POINT_COUNT;

/* A process of this pid lives, but has not this start time. */
static void refill(void) {
  for (uint32_t i = 0; i < slots; i++)
    if (rc_owner_state(rc_load_acquire(&control->slots[i].owner)) == RC_SLOT_FREE)
      rc_store_release(&control->slots[i].owner, rc_owner_make((uint32_t)getpid(), 1, ++turn, state));
}

void rc_test_point(unsigned point) {
  if (point != where || strikes == MOST) return;
  strikes++;
  refill();
}

static void strike_at(enum rc_point point, ringcast_writer *writer, enum rc_slot_state refilled) {
  control = rc_segment_control(&writer->segment);
  slots = writer->segment.slots;
  state = refilled;
  where = point;
  refill();
}

static ringcast_writer *make_evicting_writer(void) {
  return writer_of(.capacity = 4096, .readers = RC_MAX_SLOTS, .on_death = RINGCAST_EVICT);
}

TEST(a_peer_that_refills_slots_does_not_keep_reserve) {
  SCOPED_WRITER writer = make_evicting_writer();
  int result = 0;
  strike_at(RC_POINT_REAPED, writer, RC_SLOT_ACTIVE);
  for (int i = 0; i < 200 && result == 0; i++) result = ringcast_writer_send(writer, "frame", 5, 0, 0);
  ck_assert_int_eq(result, -EAGAIN);
  ck_assert_int_gt(strikes, 0);
  ck_assert_int_le(strikes, 10 * (int)slots);
}

TEST(a_peer_that_refills_slots_does_not_keep_attach) {
  SCOPED_WRITER writer = make_evicting_writer();
  ringcast_reader *reader;
  strike_at(RC_POINT_JOIN, writer, RC_SLOT_EVICTED);
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EUSERS);
  ck_says("all 1024 reader slots");
  ck_assert_int_gt(strikes, 0);
  ck_assert_int_le(strikes, 20); /* each is followed by a look at all slots */
}

RUN_TESTS("refilled slots", remember, nothing_is_left)
