/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that are held, and kept: random steps against a simple model, with each number of leases. */
#include "tests/support/ring.h"

enum { STEPS = 2000, LARGE = 65536, MOST = LARGE / RC_FRAME_ALIGN };

/* What is held, oldest first, each with an entry of its own, released or not. */
static struct {
  struct {
    uint64_t position, number;
    const void *data;
    bool released, kept;
  } held[MOST];
  uint32_t count, leases;
  uint64_t next, read, sent; /* a position, and two numbers of frames */
} model;

static struct rc_ring_reader reader;
static uint64_t busy, returned, merged; /* times that it came to this */

static size_t bytes_of(uint64_t number) { return (size_t)(mix(number + 7) % 300); }

static void send_next(void) {
  void *out;
  uint64_t number = model.sent;
  if (rc_ring_reserve(&writer, bytes_of(number), &out) != 0) return;
  pattern_fill(out, bytes_of(number), number);
  ck_assert_int_eq(rc_ring_commit(&writer, bytes_of(number), (uint16_t)number), 0);
  model.sent++;
}

static void skip(void) { model.next += rc_frame_lines(bytes_of(model.read++)); }

/* Those that count: neither released nor kept. */
static uint32_t lent(void) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < model.count; i++) count += !model.held[i].released && !model.held[i].kept;
  return count;
}

static int model_next(void) {
  if (lent() == model.leases) return -EBUSY;
  if (model.read == model.sent) return -EAGAIN;
  model.held[model.count].position = model.next;
  model.held[model.count].number = model.read;
  model.held[model.count].kept = false;
  model.held[model.count++].released = false;
  skip();
  return 0;
}

static void take_next(uint64_t random) {
  struct rc_ring_frame frame;
  bool is_plain = model.count == 0 && model.read < model.sent;
  bool got = random % 2 && rc_ring_next_plain(&reader, &frame);
  if (random % 2) ck_assert_int_eq(got, is_plain);
  int result = model_next();
  if (!got) ck_assert_int_eq(rc_ring_next(&reader, &frame), result);
  busy += result == -EBUSY;
  if (result != 0) return;
  uint64_t number = model.held[model.count - 1].number;
  ck_assert_uint_eq(frame.position, model.held[model.count - 1].position);
  ck_assert_uint_eq(frame.bytes, bytes_of(number));
  ck_assert_uint_eq(frame.kind, (uint16_t)number);
  model.held[model.count - 1].data = frame.data;
}

static int model_release(uint64_t position) {
  uint32_t i = 0, gone = 0;
  while (i < model.count && model.held[i].position != position) i++;
  if (i == model.count || model.held[i].released) return -EINVAL;
  ck_assert(pattern_matches(model.held[i].data, bytes_of(model.held[i].number), model.held[i].number));
  model.held[i].released = true;
  reader.kept -= model.held[i].kept;
  while (gone < model.count && model.held[gone].released) gone++;
  model.count -= gone;
  memmove(model.held, model.held + gone, model.count * sizeof *model.held);
  return 0;
}

/* As the public API does, or by the general way at once. */
static void release(uint64_t position, uint64_t random) {
  bool is_only = model.count == 1 && model.held[0].position == position;
  bool done = random % 2 && rc_ring_release_only(&reader, position);
  if (random % 2) ck_assert_int_eq(done, is_only);
  int result = model_release(position);
  if (!done) ck_assert_int_eq(rc_ring_release(&reader, position), result);
}

/* Any that is held, released already or not; or what never was a frame's start, or is none that is held. */
static void release_any(uint64_t random) {
  if (random % 16 == 0) release(model.next, random >> 8);
  else if (random % 16 == 1) release(reader.cursor + RC_LINE, random >> 8);
  else if (random % 16 == 2) release(reader.cursor - RC_FRAME_ALIGN, random >> 8);
  else if (model.count > 0) release(model.held[(random >> 16) % model.count].position, random >> 8);
}

/* As channel/keep.c does; beyond that the ring knows nothing of it. */
static void keep_any(uint64_t random) {
  uint32_t i = model.count > 0 ? (uint32_t)(random % model.count) : 0;
  if (model.count == 0 || model.held[i].released || model.held[i].kept || reader.kept == RC_MAX_KEPT) return;
  model.held[i].kept = true;
  reader.kept++;
}

/* Puts the newest back, which was just taken; meanwhile older ones may have gone. */
static void put_newest_back(uint64_t random) {
  uint32_t before = model.count;
  take_next(random);
  if (model.count == before) return;
  for (uint64_t i = random / 2 % 3; i > 0 && model.count > 1; i--)
    release(model.held[mix(random + i) % (model.count - 1)].position, random >> (8 + i));
  model.count--;
  model.next = model.held[model.count].position;
  model.read = model.held[model.count].number;
  rc_ring_put_back(&reader, model.next);
  returned++;
}

static void agree(void) {
  uint64_t cursor = model.count > 0 ? model.held[0].position : model.next;
  ck_assert(rc_ring_reader_is_valid(&reader));
  ck_assert_uint_eq(reader.next, model.next);
  ck_assert_uint_eq(reader.cursor, cursor);
  ck_assert_uint_eq(control->slots[reader.slot].cursor, cursor);
  ck_assert_uint_le(rc_ring_held(&reader), model.count);
  ck_assert_int_eq(rc_ring_held(&reader) == 0, model.count == 0);
  merged += rc_ring_held(&reader) < model.count;
}

START_TEST(what_is_held_agrees_with_a_simple_model) {
  reader = join();
  reader.leases = model.leases = (uint32_t)_i;
  for (uint64_t step = 0; step < STEPS; step++) {
    uint64_t random = mix(step + (uint64_t)_i * STEPS);
    uint64_t eagerness = step / 250 % 2 ? 2 : 6; /* more and more are held, then fewer */
    send_next();
    if (random % 16 == 0) put_newest_back(random >> 8);
    else if (random % 16 == 1) keep_any(random >> 8);
    else if (random % 8 < eagerness) take_next(random >> 8);
    else release_any(random >> 8);
    agree();
  }
  ck_assert_uint_gt(busy, 0);
  ck_assert_uint_gt(returned, 0);
  if (_i > 1 && _i <= 16) ck_assert_uint_gt(merged, 0); /* with more of them the ring is full first */
}
END_TEST

static uint64_t take(void) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
  ck_assert(rc_ring_reader_is_valid(&reader));
  return frame.position;
}

/* As few can be held as may be, and hundreds behind one of them are taken and released. */
START_TEST(one_that_is_held_for_long_does_not_keep_others_from_coming_and_going) {
  enum { OTHERS = 400 };
  uint64_t first, before = 0;
  reader = join();
  reader.leases = 3;
  for (uint64_t i = 0; i <= OTHERS; i++) ck_assert_int_eq(send(i, 8), 0);
  first = take();
  for (int i = 0; i < OTHERS; i++) {
    uint64_t position = take();
    if (before != 0) ck_assert_int_eq(rc_ring_release(&reader, before), 0); /* each only once the next is there */
    if (before != 0) ck_assert_int_eq(rc_ring_release(&reader, before), -EINVAL);
    before = position;
  }
  ck_assert_uint_eq(reader.cursor, first);
  ck_assert_int_eq(rc_ring_release(&reader, before), 0);
  ck_assert_int_eq(rc_ring_release(&reader, first), 0);
  ck_assert_uint_eq(reader.cursor, reader.next);
  ck_assert_uint_eq(rc_ring_held(&reader), 0);
}
END_TEST

/* The most of both, and between each two one that is released: what the queue must have room for. */
START_TEST(as_many_as_may_be_are_held_and_kept_whatever_lies_between_them) {
  enum { MANY = RC_MAX_LEASES + RC_MAX_KEPT };
  uint64_t positions[MANY];
  struct rc_ring_frame frame;
  reader = join();
  reader.leases = RC_MAX_LEASES;
  for (uint64_t i = 0; i <= 2 * MANY; i++) ck_assert_int_eq(send(i, 8), 0);
  for (uint32_t i = 0; i < MANY; i++) {
    positions[i] = take();
    if (i < RC_MAX_KEPT) reader.kept++;
    if (i + 1 < MANY) ck_assert_int_eq(rc_ring_release(&reader, take()), 0);
  }
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EBUSY);
  ck_assert_int_eq(rc_ring_release(&reader, positions[MANY / 2]), 0);
  take();
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EBUSY);
  for (uint32_t i = 0; i < MANY; i++)
    ck_assert_int_eq(rc_ring_release(&reader, positions[i]), i == MANY / 2 ? -EINVAL : 0);
}
END_TEST

static void make_large_ring(void) { make_ring_of(LARGE); }

int main(void) {
  Suite *suite = suite_create("ring, leases");
  TCase *tests = add_case(suite, "ring, leases");
  tcase_add_checked_fixture(tests, make_large_ring, free_ring);
  tcase_add_test(tests, one_that_is_held_for_long_does_not_keep_others_from_coming_and_going);
  tcase_add_test(tests, as_many_as_may_be_are_held_and_kept_whatever_lies_between_them);
  const int most = RC_MAX_LEASES;
  for (int leases = 1; leases <= most; leases += most / share_of(most))
    tcase_add_loop_test(tests, what_is_held_agrees_with_a_simple_model, leases, leases + 1);
  return run_suite(suite);
}
