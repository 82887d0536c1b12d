/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of spill memory is whose: random steps against a simple model, and what the model does
 * not have: a reader that joins, more frames than regions, a tap, notes that can't be right. */
#include "ring/spill.h"

#include <errno.h>

#include "ring/ring.h"
#include "ring/tap.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

enum { CAPACITY = 65536, SLOTS = 4, READERS = 3, UNITS = 24 };

static uint8_t *data, *memory;
static struct rc_control *control;
static struct rc_ring ring;
static struct rc_ring_writer writer;
static struct rc_spill spill;

/* Notes are of one line each, so none runs over the end, and a plain mapping does. */
static void make_ring(void) {
  data = aligned_alloc(RC_LINE, CAPACITY);
  memory = aligned_alloc(RC_SPILL_UNIT, UNITS * RC_SPILL_UNIT);
  control = aligned_alloc(RC_LINE, rc_control_bytes(SLOTS));
  memset(data, 0, CAPACITY);
  memset((void *)control, 0, rc_control_bytes(SLOTS));
  ring = (struct rc_ring){.control = control,
                          .data = data,
                          .capacity = CAPACITY,
                          .spill = memory,
                          .spill_bytes = UNITS * RC_SPILL_UNIT,
                          .slots = SLOTS};
  rc_ring_writer_init(&writer, ring);
  rc_spill_init(&spill, ring.spill_bytes);
}

static void free_ring(void) {
  free(data);
  free(memory);
  free(control);
}

static struct rc_ring_reader join(void) {
  struct rc_ring_reader reader;
  uint32_t slot;
  uint64_t owner;
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), 0);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, (struct rc_start){0}, &reader), 0);
  reader.leases = 8;
  return reader;
}

static void release(struct rc_ring_reader *reader, uint64_t position) {
  ck_assert_int_eq(rc_ring_release(reader, position), 0);
}

/* Payload bytes that take so many units. */
static uint64_t bytes_of(uint64_t units) { return units * RC_SPILL_UNIT - RC_SPILL_PHASE; }

/* ---- A model --------------------------------------------------------------------------------- */

/* The same by units, each free or not, and looked through one by one. */
static struct {
  struct {
    int first, count;
    uint64_t end, number, bytes;
  } flight[1024];
  int flights;
  int open_first, open_count;
} model;

static bool is_free(int unit, int passed) {
  for (int i = passed; i < model.flights; i++)
    if (unit >= model.flight[i].first && unit < model.flight[i].first + model.flight[i].count)
      return false;
  return true;
}

static int model_gap(int count, int passed) {
  for (int first = 0; first + count <= UNITS; first++) {
    int length = 0;
    while (length < count && is_free(first + length, passed)) length++;
    if (length == count) return first;
  }
  return -1;
}

static int model_find(int count, bool grow) {
  if (count > UNITS) return -EMSGSIZE;
  int length = 0;
  if (model.open_count > 0)
    while (model.open_first + length < UNITS && is_free(model.open_first + length, 0)) length++;
  if (model.open_count > 0 && length >= count) return model.open_first;
  int first = grow ? model_gap(2 * count, 0) : -1;
  if (first < 0) first = model_gap(count, 0);
  return first < 0 ? -EAGAIN : first;
}

static uint64_t model_wanted(int count) {
  for (int passed = 1; passed <= model.flights; passed++)
    if (model_gap(count, passed) >= 0) return model.flight[passed - 1].end;
  return 0;
}

static void model_drop(uint64_t lowest) {
  int passed = 0;
  while (passed < model.flights && model.flight[passed].end <= lowest) passed++;
  model.flights -= passed;
  memmove(model.flight, model.flight + passed, (size_t)model.flights * sizeof *model.flight);
}

struct player {
  struct rc_ring_reader reader;
  bool here;
  uint64_t held[8];
  int holds;
};

static void play(struct player *player, uint64_t random, const uint64_t *bytes_by_number) {
  struct rc_ring_frame frame;
  if (!player->here) {
    *player = (struct player){.reader = join(), .here = true};
  } else if (random % 40 == 0) {
    rc_slot_free(&ring, player->reader.slot, player->reader.owner);
    player->here = false;
  } else if (random % 2 && player->holds > 0) {
    int which = (int)(random / 2 % (uint64_t)player->holds);
    release(&player->reader, player->held[which]);
    player->held[which] = player->held[--player->holds];
  } else if (player->holds < 8 && rc_ring_held(&player->reader) < 8 &&
             rc_ring_next(&player->reader, &frame) == 0) {
    ck_assert(frame.spilled);
    uint64_t number;
    memcpy(&number, frame.data, 8);
    ck_assert_uint_eq(frame.bytes, bytes_by_number[number]);
    ck_assert(pattern_matches((const uint8_t *)frame.data + 8, frame.bytes - 8, number));
    player->held[player->holds++] = frame.position;
  }
}

static uint64_t lowest_of(const struct player *players) {
  uint64_t lowest = writer.tail;
  for (int i = 0; i < READERS; i++)
    if (players[i].here && players[i].reader.cursor < lowest) lowest = players[i].reader.cursor;
  return lowest;
}

LOOP_TEST(random_steps_agree_with_a_simple_model, 0, 4) {
  enum { STEPS = 60000 };
  static uint64_t bytes_by_number[STEPS];
  struct player players[READERS] = {0};
  uint64_t random = 20261121 + (uint64_t)_i, number = 0, full = 0, moved = 0;
  void *note;
  for (int step = 0; step < share_of(STEPS); step++) {
    random = mix(random);
    uint64_t choice = random >> 8 & 15, offset = 0;
    uint64_t bytes = 8 + (random >> 16) % bytes_of((random >> 12) % 8 == 0 ? UNITS + 2 : 4);
    int units = (int)(rc_spill_room(bytes) / RC_SPILL_UNIT);
    if (choice < 9) {
      play(&players[choice % READERS], random >> 32, bytes_by_number);
      continue;
    }
    bool grow = model.open_count > 0;
    if (!grow && choice < 12) {
      ck_assert_int_eq(rc_ring_reserve(&writer, sizeof(struct rc_spilled), &note), 0);
    } else if (grow && choice < 13) {
      uint64_t used = 8 + (random >> 40) % (spill.reserved - 7);
      uint8_t *payload = memory + spill.open.offset + RC_SPILL_PHASE;
      memcpy(payload, &number, 8);
      pattern_fill(payload + 8, used - 8, number);
      ck_assert_int_eq(rc_spill_commit(&spill, &writer, used, 0), 0);
      model.flight[model.flights].first = model.open_first;
      model.flight[model.flights].count = (int)(rc_spill_room(used) / RC_SPILL_UNIT);
      model.flight[model.flights++].end = writer.tail;
      model.open_count = 0;
      bytes_by_number[number++] = used;
      continue;
    } else if (grow && choice == 13) {
      rc_spill_abort(&spill);
      ck_assert_int_eq(rc_ring_abort(&writer), 0);
      model.open_count = 0;
      continue;
    } else if (!grow) {
      continue;
    }
    ck_assert_int_eq(rc_spill_reclaim(&spill, &writer), 0);
    model_drop(lowest_of(players));
    ck_assert_uint_le(control->spill_floor, lowest_of(players));
    if (model.flights > 0) ck_assert_uint_lt(control->spill_floor, model.flight[0].end);
    int result = rc_spill_find(&spill, bytes, grow, &offset), expected = model_find(units, grow);
    ck_assert_int_eq(result == 0 ? (int)(offset / RC_SPILL_UNIT) : result, expected);
    if (result == -EAGAIN) ck_assert_uint_eq(rc_spill_wanted(&spill, bytes), model_wanted(units));
    full += result == -EAGAIN;
    if (result == 0) {
      moved += grow && offset != spill.open.offset;
      rc_spill_open(&spill, offset, bytes);
      model.open_first = (int)(offset / RC_SPILL_UNIT);
      if (units > model.open_count) model.open_count = units;
    } else if (!grow) {
      ck_assert_int_eq(rc_ring_abort(&writer), 0);
    }
    ck_assert(rc_spill_is_valid(&spill));
    ck_assert_uint_eq(spill.count, (unsigned)model.flights);
  }
  ck_assert_uint_gt(number, (uint64_t)share_of(1000));
  ck_assert_uint_gt(full, (uint64_t)share_of(100));
  ck_assert_uint_gt(moved, (uint64_t)share_of(100));
}

/* ---- Sending --------------------------------------------------------------------------------- */

static int open_at(uint64_t bytes, uint64_t *offset) {
  void *note;
  int result = rc_ring_reserve(&writer, sizeof(struct rc_spilled), &note);
  if (result != 0) return result;
  rc_spill_reclaim(&spill, &writer);
  result = rc_spill_find(&spill, bytes, false, offset);
  if (result == 0) rc_spill_open(&spill, *offset, bytes);
  else rc_ring_abort(&writer);
  return result;
}

/* Sends a frame that takes `units`; returns the unit that it starts at, or what was wrong. */
static int send(uint64_t number, uint64_t units) {
  uint64_t offset;
  int result = open_at(bytes_of(units), &offset);
  if (result != 0) return result;
  pattern_fill(memory + offset + RC_SPILL_PHASE, bytes_of(units), number);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, bytes_of(units), (uint16_t)number), 0);
  return (int)(offset / RC_SPILL_UNIT);
}

static uint64_t expect(struct rc_ring_reader *reader, uint64_t number, uint64_t units) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(reader, &frame), 0);
  ck_assert(frame.spilled && frame.kind == number && frame.bytes == bytes_of(units));
  ck_assert_uint_eq((uintptr_t)frame.data % RC_LINE, 16);
  ck_assert(pattern_matches(frame.data, frame.bytes, number));
  return frame.position;
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

TEST(a_commit_of_more_than_is_reserved_is_refused) {
  uint64_t offset;
  ck_assert_int_eq(open_at(bytes_of(20), &offset), 0);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, bytes_of(20) + 1, 0), -EINVAL);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, 10, 1), 0);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, 0, 1), -EINVAL);
}

TEST(nothing_is_freed_while_somebody_joins) {
  struct rc_ring_reader reader = join();
  uint32_t slot;
  uint64_t owner;
  ck_assert_int_eq(send(0, UNITS), 0);
  release(&reader, expect(&reader, 0, UNITS));
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
  expect(&reader, 1, 2);
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
    if (frame.spilled) ck_assert_uint_eq(frame.bytes, cases[i].bytes);
    if (frame.spilled) ck_assert_ptr_eq(frame.data, memory + cases[i].offset);
    rc_ring_unread(&reader, frame.position);
    ck_assert(rc_ring_reader_is_valid(&reader));
  }
  header->flags = RC_FRAME_SPILLED;
  reader.view.spill_bytes = 0; /* a ring that has none */
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EPROTO);
}

RUN_TESTS("spill", make_ring, free_ring)
