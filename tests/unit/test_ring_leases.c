/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that are held, by leases and pins: random steps against a simple model, with each number
 * of leases. */
#include "tests/support/ring.h"

enum { STEPS = 2000, LARGE = 65536, MOST = LARGE / RC_FRAME_ALIGN };

/* Held frames, oldest first, each with an entry of its own, in use or not. */
static struct {
  struct {
    uint64_t position, number;
    const void *data;
    uint32_t pins;
    bool leased;
  } held[MOST];
  uint32_t count, leases;
  uint64_t next, read, sent; /* a position, and two numbers of frames */
} model;

static struct rc_ring_reader reader;
static uint64_t busy, returned, merged, outlived; /* times that it came to this */

static size_t bytes_of(uint64_t number) { return (size_t)(mix(number + 7) % 300); }

static void send_next(void) {
  void *out;
  uint64_t number = model.sent;
  if (rc_ring_reserve(&writer, bytes_of(number), &out) != 0) return;
  pattern_fill(out, bytes_of(number), number);
  ck_assert_int_eq(rc_ring_commit(&writer, bytes_of(number), (uint16_t)number), 0);
  model.sent++;
}

static void skip(void) { model.next += rc_frame_footprint(bytes_of(model.read++)); }

static uint32_t leased(void) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < model.count; i++) count += model.held[i].leased;
  return count;
}

static int model_next(void) {
  if (leased() == model.leases) return -EBUSY;
  if (model.read == model.sent) return -EAGAIN;
  model.held[model.count].position = model.next;
  model.held[model.count].number = model.read;
  model.held[model.count].pins = 0;
  model.held[model.count++].leased = true;
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

/* The frame must be as it was sent: it has a lease or a pin. */
static void must_be_whole(uint32_t i) {
  ck_assert(
      pattern_matches(model.held[i].data, bytes_of(model.held[i].number), model.held[i].number));
}

static void model_settle(void) {
  uint32_t gone = 0;
  while (gone < model.count && !model.held[gone].leased && model.held[gone].pins == 0) gone++;
  model.count -= gone;
  memmove(model.held, model.held + gone, model.count * sizeof *model.held);
}

static int model_release(uint64_t position) {
  uint32_t i = 0;
  while (i < model.count && model.held[i].position != position) i++;
  if (i == model.count || !model.held[i].leased) return -EINVAL;
  must_be_whole(i);
  model.held[i].leased = false;
  model_settle();
  return 0;
}

/* As the public API does, or by the general way at once. */
static void release(uint64_t position, uint64_t random) {
  bool is_only = model.count == 1 && model.held[0].position == position && model.held[0].pins == 0;
  bool done = random % 2 && rc_ring_release_only(&reader, position);
  if (random % 2) ck_assert_int_eq(done, is_only);
  int result = model_release(position);
  if (!done) ck_assert_int_eq(rc_ring_release(&reader, position), result);
}

/* Any that is held, released already or not; or what never was a frame's start, or is none that is
 * held. */
static void release_any(uint64_t random) {
  if (random % 16 == 0) release(model.next, random >> 8);
  else if (random % 16 == 1) release(reader.cursor + RC_LINE, random >> 8);
  else if (random % 16 == 2) release(reader.cursor - RC_FRAME_ALIGN, random >> 8);
  else if (model.count > 0) release(model.held[(random >> 16) % model.count].position, random >> 8);
}

/* Frames with a pin and no lease: the ring says how many there may be. */
static uint32_t pinned_alone(void) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < model.count; i++)
    count += !model.held[i].leased && model.held[i].pins > 0;
  return count;
}

static uint32_t pinned(void) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < model.count; i++) count += model.held[i].pins > 0;
  return count;
}

/* Any that is held, with a lease or without. */
static void pin_any(uint64_t random) {
  uint32_t i = model.count > 0 ? (uint32_t)(random % model.count) : 0;
  if (model.count == 0) return;
  if (model.held[i].pins == 0 && pinned() == RC_MAX_PINNED) return;
  int result = model.held[i].leased ? 0 : -EINVAL;
  ck_assert_int_eq(rc_ring_pin(&reader, model.held[i].position), result);
  if (result == 0) model.held[i].pins++;
}

static void unpin_any(uint64_t random) {
  for (uint32_t n = 0; n < model.count; n++) {
    uint32_t i = (uint32_t)((random + n) % model.count);
    if (model.held[i].pins == 0) continue;
    must_be_whole(i);
    outlived += !model.held[i].leased;
    rc_ring_unpin(&reader, model.held[i].position);
    model.held[i].pins--;
    model_settle();
    return;
  }
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
  rc_ring_unread(&reader, model.next);
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

LOOP_TEST(what_is_held_agrees_with_a_simple_model, 0, share_of(RC_MAX_LEASES)) {
  const int leases = 1 + _i * (RC_MAX_LEASES / share_of(RC_MAX_LEASES));
  reader = join();
  reader.leases = model.leases = (uint32_t)leases;
  for (uint64_t step = 0; step < STEPS; step++) {
    uint64_t random = mix(step + (uint64_t)leases * STEPS);
    uint64_t eagerness = step / 250 % 2 ? 2 : 6; /* more and more are held, then fewer */
    send_next();
    if (random % 16 == 0) put_newest_back(random >> 8);
    else if (random % 16 == 1 || random % 16 == 9) pin_any(random >> 8);
    else if (random % 16 == 2 || (random % 16 == 10 && pinned_alone() > 0)) unpin_any(random >> 8);
    else if (random % 8 < eagerness) take_next(random >> 8);
    else release_any(random >> 8);
    agree();
  }
  ck_assert_uint_gt(busy, 0);
  ck_assert_uint_gt(returned, 0);
  ck_assert_uint_gt(outlived, 0);
  if (leases > 1 && leases <= 16)
    ck_assert_uint_gt(merged, 0); /* with more of them the ring is full first */
}

static uint64_t take(void) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
  ck_assert(rc_ring_reader_is_valid(&reader));
  return frame.position;
}

/* As few can be held as may be, and hundreds behind one of them are taken and released. */
TEST(one_that_is_held_for_long_does_not_keep_others_from_coming_and_going) {
  enum { OTHERS = 400 };
  uint64_t first, before = 0;
  reader = join();
  reader.leases = 3;
  for (uint64_t i = 0; i <= OTHERS; i++) ck_assert_int_eq(send(i, 8), 0);
  first = take();
  for (int i = 0; i < OTHERS; i++) {
    uint64_t position = take();
    if (before != 0)
      ck_assert_int_eq(rc_ring_release(&reader, before), 0); /* each only once the next is there */
    if (before != 0) ck_assert_int_eq(rc_ring_release(&reader, before), -EINVAL);
    before = position;
  }
  ck_assert_uint_eq(reader.cursor, first);
  ck_assert_int_eq(rc_ring_release(&reader, before), 0);
  ck_assert_int_eq(rc_ring_release(&reader, first), 0);
  ck_assert_uint_eq(reader.cursor, reader.next);
  ck_assert_uint_eq(rc_ring_held(&reader), 0);
}

/* The most of both, and between each two one that is released: what the queue must have room
 * for. */
TEST(as_many_as_may_be_are_leased_and_pinned_whatever_lies_between_them) {
  enum { MANY = RC_MAX_LEASES + RC_MAX_PINNED };
  uint64_t positions[MANY];
  struct rc_ring_frame frame;
  reader = join();
  reader.leases = RC_MAX_LEASES;
  for (uint64_t i = 0; i <= 2 * MANY; i++) ck_assert_int_eq(send(i, 8), 0);
  for (uint32_t i = 0; i < MANY; i++) {
    positions[i] = take();
    if (i < RC_MAX_PINNED) {
      ck_assert_int_eq(rc_ring_pin(&reader, positions[i]), 0);
      ck_assert_int_eq(rc_ring_release(&reader, positions[i]), 0);
    }
    if (i + 1 < MANY) ck_assert_int_eq(rc_ring_release(&reader, take()), 0);
  }
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EBUSY);
  ck_assert_int_eq(rc_ring_release(&reader, positions[MANY / 2]), 0);
  take();
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EBUSY);
  for (uint32_t i = 0; i < RC_MAX_PINNED; i++) rc_ring_unpin(&reader, positions[i]);
  for (uint32_t i = RC_MAX_PINNED; i < MANY; i++)
    ck_assert_int_eq(rc_ring_release(&reader, positions[i]), i == MANY / 2 ? -EINVAL : 0);
}

TEST(a_pin_that_outlives_its_lease_holds_the_cursor) {
  struct rc_ring_frame frame;
  reader = join();
  for (uint64_t i = 0; i < 4; i++) ck_assert_int_eq(send(i, 8), 0);
  uint64_t first = take();
  ck_assert_int_eq(rc_ring_pin(&reader, first + RC_LINE), -EINVAL);
  for (int pins = 0; pins < 2; pins++) ck_assert_int_eq(rc_ring_pin(&reader, first), 0);
  ck_assert(!rc_ring_release_only(&reader, first));
  ck_assert_int_eq(rc_ring_release(&reader, first), 0);
  ck_assert_int_eq(rc_ring_release(&reader, first), -EINVAL);
  ck_assert_int_eq(rc_ring_pin(&reader, first), -EINVAL);
  ck_assert(!rc_ring_holds(&reader, first));
  uint64_t second = take(); /* the pin takes no lease */
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EBUSY);
  ck_assert_int_eq(rc_ring_release(&reader, second), 0);
  rc_ring_unpin(&reader, first);
  ck_assert_uint_eq(reader.own->cursor, first);
  rc_ring_unpin(&reader, first);
  ck_assert_uint_eq(reader.own->cursor, reader.next);
  ck_assert_uint_eq(rc_ring_held(&reader), 0);
  ck_assert(rc_ring_next_plain(&reader, &frame) && rc_ring_release_only(&reader, frame.position));
}

static void make_large_ring(void) { make_ring_of(LARGE); }

RUN_TESTS("ring, leases", make_large_ring, free_ring)
