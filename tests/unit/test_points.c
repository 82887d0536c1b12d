/* SPDX-License-Identifier: Apache-2.0 */
/* What happens at named points of the code (ring/point.h), with which the library is compiled here:
 * a hostile peer strikes, and a reader looks at each step of a writer's close. */
#include <errno.h>
#include <unistd.h>

#include "channel/channel.h"
#include "ring/point.h"
#include "tests/support/channel.h"
#include "tests/support/pattern.h"

static void (*at_point)(unsigned point);

void rc_test_point(unsigned point) {
  if (at_point) at_point(point);
}

/* ---- A peer that takes every free slot again, in the name of a dead process ------------------ */

/* Strikes: without a bound in the library, the peer strikes so often and then gives up. */
#define MOST 100000

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
      rc_store_release(&control->slots[i].owner,
                       rc_owner_make((uint32_t)getpid(), 1, ++turn, state));
}

static void strike(unsigned point) {
  if (point != where || strikes == MOST) return;
  strikes++;
  refill();
}

static void strike_at(enum rc_point point, ringcast_writer *writer, enum rc_slot_state refilled) {
  control = rc_segment_control(&writer->segment);
  slots = writer->segment.slots;
  state = refilled;
  where = point;
  at_point = strike;
  refill();
}

static ringcast_writer *make_evicting_writer(void) {
  return writer_of(.capacity = 4096, .readers = RC_MAX_SLOTS, .on_death = RINGCAST_EVICT);
}

TEST(a_peer_that_refills_slots_does_not_keep_reserve) {
  SCOPED_WRITER writer = make_evicting_writer();
  int result = 0;
  strike_at(RC_POINT_REAPED, writer, RC_SLOT_ACTIVE);
  for (int i = 0; i < 200 && result == 0; i++)
    result = ringcast_writer_send(writer, "frame", 5, 0, 0);
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

/* ---- A writer's close ------------------------------------------------------------------------ */

static const enum rc_point order[] = {RC_POINT_CLOSE, RC_POINT_DROPPED, RC_POINT_CLOSED,
                                      RC_POINT_CLOSE_TOLD, RC_POINT_UNMAPPED};
enum { STEPS = sizeof order / sizeof *order };

static ringcast_writer *closing; /* NULL: the points are of another call */
static ringcast_reader *reader;
static int step;
static uint32_t announced;

static bool is_closed(void) { return rc_load_acquire(&reader->ring.view.control->closed) != 0; }
static bool is_asleep(void) {
  return rc_eventcount_is_asleep(&reader->ring.view.control->not_empty);
}
static int look(void) { return ringcast_reader_next(reader, 0, &(struct ringcast_frame){0}); }

static void look_at_step(unsigned point) {
  ringcast_writer *writer = closing;
  if (!writer) return;
  bool of_close = false;
  for (int i = 0; i < STEPS; i++) of_close |= order[i] == point;
  if (!of_close) return; /* of what a step calls */
  closing = NULL;
  ck_assert_int_lt(step, STEPS);
  ck_assert_int_eq(point, order[step]);
  switch (step++) {
  case 0: ck_assert(rc_writer_is_open(writer)); /* fall through */
  case 1:
    ck_assert(!is_closed());
    ck_assert(is_asleep());
    ck_assert_int_eq(look(), -EAGAIN);
    break;
  case 2: /* closed before a sleeper is woken: a reader that wakes finds it so */
    ck_assert(is_closed());
    ck_assert(is_asleep());
    ck_assert_uint_eq(rc_load_acquire(&reader->ring.view.control->not_empty.word), announced);
    break;
  case 3: ck_assert(!is_asleep()); /* fall through */
  default: ck_assert_int_eq(look(), -EPIPE);
  }
  if (step == 2) /* The large frame is given up before the ring is closed. */
    ck_assert(!rc_writer_is_open(writer));
  closing = writer;
}

TEST(each_step_of_a_close_comes_before_those_that_tell_of_it) {
  enum { LARGE = 1 << 20 };
  struct ringcast_span span;
  ringcast_writer *writer = writer_of(.capacity = 65536, .spill_bytes = 4 * LARGE);
  reader = attach(writer);
  ck_assert_int_eq(ringcast_writer_reserve(writer, LARGE, 0, &span), 0);
  announced = rc_eventcount_prepare(&reader->ring.view.control->not_empty);
  closing = writer;
  at_point = look_at_step;
  ringcast_writer_close(writer);
  closing = NULL;
  ck_assert_int_eq(step, STEPS);
  ringcast_reader_close(reader);
}

/* ---- A reader joins at the newest frame while the writer takes its memory back --------------- */

static ringcast_writer *taking;
static enum rc_point meeting;

static void join_latest(unsigned point) {
  if (point != meeting) return;
  at_point = NULL;
  reader = reader_of(taking, .start = RINGCAST_START_LATEST);
}

enum { LARGE = 3 << 19, SPILL = 2 << 20 }; /* spill memory for one large frame at a time */

static int send_large(uint64_t number) {
  struct ringcast_span span;
  int result = ringcast_writer_reserve(taking, LARGE, 0, &span);
  if (result != 0) return result;
  pattern_fill(span.data, LARGE, number);
  return ringcast_writer_commit(taking, LARGE, 0);
}

static void expect_large(uint64_t number) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert(frame.bytes == LARGE && pattern_matches(frame.data, LARGE, number));
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

/* Before the floor is told, the reader starts at the frame, and the look that follows finds the
 * reader. */
TEST(a_reader_that_joins_before_the_floor_is_told_keeps_the_newest_frame) {
  SCOPED_WRITER writer = taking = writer_of(.capacity = 4096, .spill_bytes = SPILL);
  ck_assert_int_eq(send_large(0), 0);
  meeting = RC_POINT_RECLAIM;
  at_point = join_latest;
  ck_assert_int_eq(send_large(1), -EAGAIN);
  expect_large(0);
  ck_assert_int_eq(send_large(1), 0);
  expect_large(1);
  ringcast_reader_close(reader);
}

TEST(a_reader_that_joins_after_the_floor_was_told_starts_at_the_next_frame) {
  SCOPED_WRITER writer = taking = writer_of(.capacity = 4096, .spill_bytes = SPILL);
  ck_assert_int_eq(send_large(0), 0);
  meeting = RC_POINT_S0_DONE;
  at_point = join_latest;
  ck_assert_int_eq(send_large(1), 0);
  expect_large(1);
  ringcast_reader_close(reader);
}

RUN_TESTS("points", remember, nothing_is_left)
