/* SPDX-License-Identifier: Apache-2.0 */
/* A writer's close, step by step: what a reader sees at each named point of it (ring/point.h). */
#include <errno.h>

#include "channel/channel.h"
#include "ring/point.h"
#include "tests/support/channel.h"

static const enum rc_point order[] = {RC_POINT_CLOSE, RC_POINT_DROPPED, RC_POINT_CLOSED, RC_POINT_CLOSE_TOLD,
                                      RC_POINT_UNMAPPED};
enum { STEPS = sizeof order / sizeof *order };

static ringcast_writer *closing; /* NULL: the points are of another call */
static ringcast_reader *reader;
static int step;
static uint32_t announced;

static bool is_closed(void) { return rc_load_acquire(&reader->ring.view.control->closed) != 0; }
static bool is_asleep(void) { return rc_eventcount_is_asleep(&reader->ring.view.control->not_empty); }
static int look(void) { return ringcast_reader_next(reader, 0, &(struct ringcast_frame){0}); }

void rc_test_point(unsigned point) {
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
  case 2: /* closed before a sleeper is woken: who wakes finds it so */
    ck_assert(is_closed());
    ck_assert(is_asleep());
    ck_assert_uint_eq(rc_load_acquire(&reader->ring.view.control->not_empty.word), announced);
    break;
  case 3: ck_assert(!is_asleep()); /* fall through */
  default: ck_assert_int_eq(look(), -EPIPE);
  }
  if (step == 2) ck_assert(!rc_writer_is_open(writer)); /* the large frame is given up before the ring is closed */
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
  ringcast_writer_close(writer);
  closing = NULL;
  ck_assert_int_eq(step, STEPS);
  ringcast_reader_close(reader);
}

RUN_TESTS("writer, close", remember, nothing_is_left)
