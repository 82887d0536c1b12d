/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of spill memory is whose: random steps against a simple model. */
#include "ring/spill.h"

#include "tests/support/spill_ring.h"

enum { READERS = 3 };

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

RUN_TESTS("spill, model", make_ring, free_ring)
