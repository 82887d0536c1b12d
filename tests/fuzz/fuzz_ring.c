/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring's algorithms against a peer that means harm. An input is a list of steps: what the
 * writer, three readers and a tap do, and in between what the peer stores in the control segment
 * (which any process that is attached can write), or, being the writer itself, in the data.
 * Whatever it stores: nothing is read or written outside DATA and SPILL, no call goes on for ever,
 * a frame is lent as it was checked; and as long as it only writes to the control segment, readers
 * whose slot it leaves alone get what was sent, and the writer overwrites none of it. Readers take
 * frames, and the messages of packed frames, one by one or together.
 */
#define _GNU_SOURCE
#include "tests/fuzz/ring_world.h"

/* ---- The writer ------------------------------------------------------------------------------ */

static bool reserve(uint64_t bytes, uint8_t **out) {
  void *to;
  int result = rc_ring_reserve(&world.writer, bytes, &to);
  require(result == 0 || result == -EAGAIN || result == -EBUSY || result == -EMSGSIZE ||
          result == -EPROTO);
  if (result == 0) may_be_written(bytes, to);
  *out = to;
  return result == 0;
}

static bool send(uint64_t bytes) {
  uint8_t *to;
  uint64_t position = world.writer.tail;
  if (!reserve(bytes, &to)) return false;
  stamp(to, bytes, world.number);
  require(rc_ring_commit(&world.writer, bytes, (uint16_t)world.number) == 0);
  rc_ring_zero_ahead(&world.writer, bytes);
  if (bytes % 4 == 0) rc_newest_note(world.control, (uint32_t)(world.number % 8 + 1), position);
  was_sent(position, bytes, false);
  return true;
}

/* Many messages in one frame. */
static void send_packed(uint64_t how) {
  uint64_t count = how % 64 + 1, most = how / 64 + 1, bytes[64], total = 0, at = 0,
           position = world.writer.tail;
  uint8_t *to;
  for (uint64_t i = 0; i < count; i++) {
    bytes[i] = (how * 7 + i * i) % (16 * most);
    total = rc_packed_end(total, bytes[i], message_kind(bytes[i]));
  }
  if (!reserve(total, &to)) return;
  for (uint64_t i = 0; i < count; i++) {
    uint8_t data[64] = {0};
    uint16_t kind = message_kind(bytes[i]);
    stamp(data, bytes[i], position + sizeof(struct rc_frame_header) + at + rc_packed_gap(at, kind));
    at = rc_packed_put(to, at, data, bytes[i], kind);
  }
  require(at == total);
  rc_ring_publish(&world.writer, total, 0, RC_FRAME_PACKED);
  rc_ring_zero_ahead(&world.writer, total);
}

/* Grows, commits less than was reserved, or takes it back. */
static void send_by_turns(struct input *input) {
  uint8_t *to;
  void *grown;
  uint64_t bytes = take(input, 2), more = take(input, 2), position = world.writer.tail;
  if (!reserve(bytes % world.capacity, &to)) return;
  if (rc_ring_grow(&world.writer, more % world.capacity, &grown) == 0) {
    may_be_written(world.writer.reserved, grown);
    stamp(grown, world.writer.reserved, 0); /* all of it may be written */
  }
  if (more & 1 && world.writer.reserved != 0) bytes = more % world.writer.reserved;
  else bytes = world.writer.reserved;
  if (more & 2) {
    require(rc_ring_abort(&world.writer) == 0);
    return;
  }
  stamp(to, bytes, world.number);
  require(rc_ring_commit(&world.writer, bytes, (uint16_t)world.number) == 0);
  rc_ring_zero_ahead(&world.writer, bytes);
  was_sent(position, bytes, false);
}

static void spill_abort(void) {
  rc_spill_abort(&world.spill);
  rc_ring_abort(&world.writer);
}

/* A frame that is too large for the ring: committed, or aborted. */
static void send_spilled(struct input *input) {
  struct rc_spill *spill = &world.spill;
  uint64_t how = take(input, 1), bytes = take(input, 2) + 1, position = world.writer.tail, offset;
  uint16_t kind = (uint16_t)world.number;
  uint8_t *note;
  if (!reserve(sizeof(struct rc_spilled), &note)) return;
  rc_spill_reclaim(spill, &world.writer);
  if (rc_spill_find(spill, bytes, how & 1, &offset) != 0) {
    rc_spill_wanted(spill, bytes);
    rc_ring_abort(&world.writer);
    return;
  }
  may_be_spilled_to(offset, bytes);
  rc_spill_open(spill, offset, bytes);
  stamp(world.spill_memory + offset + RC_SPILL_PHASE, bytes, world.number);
  if (how & 4) {
    spill_abort();
  } else {
    require(rc_spill_commit(spill, &world.writer, bytes, kind) == 0);
    was_sent(position, bytes, true);
  }
  require(rc_spill_is_valid(spill));
}

/* ---- The readers and the tap ----------------------------------------------------------------- */

static void join(struct party *party, struct input *input) {
  struct rc_ring ring = world_ring();
  uint64_t how = take(input, 1);
  uint32_t slot;
  uint64_t owner;
  if (party->joined) return;
  int result = rc_slot_claim(&ring, 4711, 7, &slot, &owner);
  if (result == 0 && how >> 6 == 3)
    rc_slot_evict(&ring, slot, owner); /* it was too slow at joining */
  struct rc_start start = {.newest = how & 32,
                           .tag = how & 1 ? (uint32_t)(world.number % 8 + 1) : 0};
  if (result == 0) result = rc_slot_activate(&ring, slot, owner, start, &party->reader);
  require(result == 0 || result == -EUSERS || result == -EAGAIN || result == -EPROTO ||
          result == -ENODATA);
  if (result != 0) return;
  party->joined = true;
  party->sane = !world.tail_hurt && !world.data_hurt;
  party->evicted = false;
  party->held = 0;
  party->reader.leases = (how & 31) + 1;
}

static void leave(struct party *party) {
  struct rc_ring ring = world_ring();
  if (party->joined) rc_slot_free(&ring, party->reader.slot, party->reader.owner);
  rc_ring_participants(&ring);
  party->joined = false;
}

/* The writer goes on without whoever is in a slot: as too slow, or as dead. */
static void let_go(uint64_t how) {
  struct rc_ring ring = world_ring();
  uint32_t slot = (uint32_t)how % SLOTS;
  uint64_t owner = rc_load_acquire(&world.control->slots[slot].owner);
  enum rc_slot_state state = rc_owner_state(owner);
  bool gone = false;
  if (how & 4) gone = rc_slot_reap(&ring, slot, owner);
  else if (state == RC_SLOT_ACTIVE) gone = rc_slot_evict(&ring, slot, owner);
  for (int i = 0; gone && i < READERS; i++) {
    struct party *party = &world.participants[i];
    if (!party->joined || party->reader.slot != slot) continue;
    party->evicted = party->sane;
    party->sane = false;
  }
}

static void may_end_so(const struct party *party, int result) {
  if (world.attacked && (result == 0 || result == -EPROTO)) fuzzed_frames++;
  require(result == 0 || result == -EAGAIN || result == -EBUSY || result == -EPROTO ||
          result == -ESTALE);
  require((result != -EPROTO && result != -ESTALE) || !party->sane || world.data_hurt);
  require(!party->evicted || result == -ESTALE);
}

static void hold(struct party *party, uint64_t position, uint32_t count) {
  const struct rc_ring_reader *reader = &party->reader;
  require(party->held < reader->leases);
  party->counts[party->held] = count;
  party->positions[party->held++] = position;
  /* More: those that are released, but not one before them. */
  require(rc_ring_held(reader) + reader->lents >= party->held);
}

static bool is_message(const struct party *party, uint64_t position) {
  return rc_ring_lent(&party->reader, position) != 0;
}

static int next(struct party *party) {
  struct rc_ring_frame frame;
  if (!party->joined) return -EAGAIN;
  int result = 0;
  if (!rc_ring_next_plain(&party->reader, &frame)) result = rc_ring_take(&party->reader, &frame);
  may_end_so(party, result);
  if (result != 0) return result;
  const struct ringcast_frame message = {
      .data = frame.data, .bytes = frame.bytes, .position = frame.position, .kind = frame.kind};
  if (is_message(party, frame.position)) must_be_message(party, &message);
  else must_be_lent(party, &frame);
  hold(party, frame.position, 1);
  return 0;
}

static void next_many(struct party *party, uint32_t most) {
  struct ringcast_frame frames[64];
  struct rc_ring_frame spilled;
  uint32_t count;
  if (!party->joined) return;
  int result = rc_ring_next_many(&party->reader, frames, most % 64 + 1, &count, &spilled);
  may_end_so(party, result);
  if (result != 0) return;
  require(count >= 1 && count <= most % 64 + 1);
  if (spilled.spilled) must_be_lent(party, &spilled);
  for (uint32_t i = 0; i < count && !spilled.spilled; i++) {
    const struct rc_ring_frame whole = {.data = frames[i].data,
                                        .position = frames[i].position,
                                        .bytes = frames[i].bytes,
                                        .kind = frames[i].kind};
    if (truth_at(whole.position)->position == whole.position &&
        whole.position % RC_FRAME_ALIGN == 0)
      must_be_lent(party, &whole);
    else must_be_message(party, &frames[i]);
  }
  hold(party, frames->position, count);
}

static void forget(struct party *party, uint32_t which) {
  uint32_t after = --party->held - which;
  memmove(&party->positions[which], &party->positions[which + 1], after * sizeof *party->positions);
  memmove(&party->counts[which], &party->counts[which + 1], after * sizeof *party->counts);
}

/* Of a group, some may not have been read. */
static int release_some(struct party *party, uint32_t which, uint32_t how) {
  struct rc_ring_reader *reader = &party->reader;
  uint64_t position = party->positions[which];
  if (!is_message(party, position))
    return rc_ring_release_only(reader, position) ? 0 : rc_ring_release(reader, position);
  uint32_t count = party->counts[which];
  int result = rc_ring_release_many(reader, position, how % (count + 1));
  require(result != -EPROTO || world.data_hurt);
  return result == -EINVAL || result == -EPROTO ? rc_ring_release_many(reader, position, count)
                                                : result;
}

static void release(struct party *party, uint32_t which) {
  if (!party->joined || party->held == 0) return;
  uint32_t how = which / party->held;
  which %= party->held;
  int result = release_some(party, which, how);
  require(result == 0 || (result == -ESTALE && !party->sane));
  require(result != 0 || !party->evicted);
  if (result == 0) forget(party, which);
}

/* What is held is looked at anew, or given back as if it had not been taken. */
static void look(struct party *party, uint64_t how) {
  struct rc_ring_frame frame;
  if (!party->joined || party->held == 0) return;
  uint32_t which = how % party->held;
  int result = rc_ring_look(&party->reader, party->positions[which], &frame);
  bool lent = is_message(party, party->positions[which]);
  require(result == 0 || result == -EPROTO || (result == -ESTALE && !party->sane) ||
          (result == -EINVAL && lent));
  if (result == 0) must_be_lent(party, &frame);
  uint64_t position = party->reader.next;
  require(rc_ring_count(&party->reader.view, &position, 100) <= 100);
}

static void unread(struct party *party) {
  if (!party->joined || next(party) != 0) return;
  uint64_t position = party->positions[--party->held];
  if (!is_message(party, position)) rc_ring_unread(&party->reader, position);
  else if (rc_ring_release_many(&party->reader, position, 1) != 0) party->held++;
}

static void tap(void) {
  struct rc_ring_frame frame;
  int result = rc_tap_next(&world.tap, world.copy, sizeof world.copy, &frame);
  if (world.attacked && (result == 0 || result == -EPROTO)) fuzzed_frames++;
  require(result == 0 || result == -EAGAIN || result == -EPROTO);
  if (result == 0) require(frame.bytes <= sizeof world.copy && frame.data == world.copy);
}

/* ---- The peer -------------------------------------------------------------------------------- */

/* Some position that means something to somebody. */
static uint64_t position_of(uint64_t whose) {
  const struct party *party = &world.participants[whose / 8 % READERS];
  switch (whose % 8) {
  case 0: return world.writer.tail;
  case 1: return party->reader.next;
  case 2: return party->reader.cursor;
  case 3: return party->held != 0 ? party->positions[whose / 32 % party->held] : 0;
  case 4: return world.tap.next;
  case 5: return world.writer.limit;
  case 6: return (uint64_t)1 << 63;
  default: return 0;
  }
}

static uint64_t value_of(struct input *input, uint64_t before) {
  uint64_t how = take(input, 1);
  switch (how % 8) {
  case 0: return take(input, 8);
  case 1: return take(input, 1);
  case 2: return position_of(take(input, 1)) + (uint64_t)(int8_t)take(input, 1) * RC_FRAME_ALIGN;
  case 3: return rc_meta_make((uint32_t)take(input, 2), (uint16_t)take(input, 1), how >> 4 & 3);
  case 4:
    return rc_owner_make((uint32_t)take(input, 1), 7, how >> 6, (enum rc_slot_state)(how >> 4 & 3));
  case 5: return before ^ (uint64_t)1 << (how >> 3 & 31);
  case 6: return position_of(take(input, 1)) + world.capacity * (uint64_t)(int8_t)take(input, 1);
  default: return SPILL - take(input, 2);
  }
}

/* It has stored at `word`: who can't be held any more to anything? */
static void mind(const uint8_t *word) {
  const uint8_t *control = (const uint8_t *)world.control;
  size_t at = (size_t)(word - control);
  world.attacked = true;
  if (word < control || at >= rc_control_bytes(SLOTS)) {
    world.data_hurt = true;
    return;
  }
  if (at == offsetof(struct rc_control, tail) || at == offsetof(struct rc_control, newest))
    world.tail_hurt = true;
  if (at >= offsetof(struct rc_control, tags) && at < offsetof(struct rc_control, slots))
    world.tail_hurt = true;
  if (at == offsetof(struct rc_control, spill_floor)) world.tail_hurt = true;
  if (at < offsetof(struct rc_control, slots)) return;
  uint32_t slot = (uint32_t)((at - offsetof(struct rc_control, slots)) / sizeof(struct rc_slot));
  size_t field = (at - offsetof(struct rc_control, slots)) % sizeof(struct rc_slot);
  bool matters =
      field == offsetof(struct rc_slot, owner) || field == offsetof(struct rc_slot, cursor);
  for (int i = 0; matters && i < READERS; i++)
    if (world.participants[i].reader.slot == slot)
      world.participants[i].sane = world.participants[i].evicted = false;
}

static void store(uint8_t *word, uint64_t value) {
  rc_store_relaxed((_Atomic uint64_t *)(void *)word, value);
  mind(word);
}

static uint8_t *word_of(struct input *input) {
  struct rc_control *control = world.control;
  uint64_t where = take(input, 1);
  struct rc_slot *slot = &control->slots[where / 16 % SLOTS];
  uint8_t *frame = world.data + (position_of(take(input, 1)) & (world.capacity - 1) & ~(uint64_t)7);
  switch (where % 16) {
  case 0: return (uint8_t *)control + take(input, 2) % (rc_control_bytes(SLOTS) / 8) * 8;
  case 1: return (uint8_t *)&control->tail;
  case 2: return where & 16 ? (uint8_t *)&control->limit : (uint8_t *)&control->newest;
  case 3: return (uint8_t *)&control->spill_floor;
  case 4:
  case 5: return (uint8_t *)&slot->owner;
  case 6:
  case 7:
  case 8: return (uint8_t *)&slot->cursor;
  case 9: return world.data + take(input, 2) % (world.capacity / 8) * 8;
  case 10: return frame; /* its commit */
  case 11: return frame + 8;
  default: return frame + 16 + where % 2 * 8; /* its note */
  }
}

/* A frame that could be one, where there may be none; or a note of one. */
static void forge(struct input *input) {
  uint64_t position = position_of(take(input, 1)) & ~(uint64_t)(RC_FRAME_ALIGN - 1),
           how = take(input, 1);
  uint64_t bytes = how & 1 ? sizeof(struct rc_spilled) : take(input, 2) % world.capacity;
  uint8_t *frame = world.data + (position & (world.capacity - 1));
  store(frame, position + rc_frame_footprint(bytes));
  store(frame + 8, rc_meta_make((uint32_t)bytes, (uint16_t)how,
                                how & 1 ? RC_FRAME_SPILLED : how & RC_FRAME_PACKED));
  if (!(how & 3)) return;
  store(frame + 16,
        how & 1 ? take(input, 2) * 16 : rc_meta_make((uint32_t)take(input, 1), 0, how >> 2 & 3));
  store(frame + 24, how & 8 ? value_of(input, 0) : take(input, 1));
}

static void harm(struct input *input) {
  uint8_t *word = word_of(input);
  store(word, value_of(input, rc_load_relaxed((_Atomic uint64_t *)(void *)word)));
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Frames as in a stream, the peer doing the same each time. */
static void stream(struct input *input) {
  uint64_t rounds = take(input, 1) + 1, bytes = take(input, 1);
  uint8_t spell[12] = {0};
  bool harmful = bytes & 1;
  uint64_t whole = take(input, 8);
  memcpy(spell, &whole, sizeof whole);
  for (uint64_t i = 0; i < rounds; i++) {
    struct input again = {.at = spell, .left = sizeof spell};
    if (bytes & 2 && i % 4 == 3) send_packed(bytes);
    else send(bytes);
    if (harmful) harm(&again);
    for (int k = 0; k < READERS; k++)
      if (next(&world.participants[k]) == 0) release(&world.participants[k], 0);
    tap();
  }
}

static void step(struct input *input) {
  uint64_t what = take(input, 1);
  struct party *party = &world.participants[what / 16 % READERS];
  switch (what % 16) {
  case 0: send(take(input, 1)); break;
  case 1: send(take(input, 2) % world.capacity); break;
  case 2: send_by_turns(input); break;
  case 3: send_spilled(input); break;
  case 4: join(party, input); break;
  case 5: leave(party); break;
  case 6:
    if (what & 128) next_many(party, (uint32_t)take(input, 1));
    else next(party);
    break;
  case 7: release(party, (uint32_t)take(input, 1)); break;
  case 8: look(party, take(input, 1)); break;
  case 9: unread(party); break;
  case 10: tap(); break;
  case 11: watch_tap(); break;
  case 12: stream(input); break;
  case 13: forge(input); break;
  case 14: what & 16 ? let_go(take(input, 1)) : harm(input); break;
  default:
    if (what & 16) send_packed(take(input, 1));
    else harm(input);
    break;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  struct input input = {.at = data, .left = bytes};
  world_begin(take(&input, 1) & 1);
  struct input all = {0};
  for (int i = 0; i < READERS; i++) join(&world.participants[i], &all);
  while (input.left > 0) step(&input);
  require(rc_ring_writer_is_valid(&world.writer) && rc_spill_is_valid(&world.spill));
  for (int i = 0; i < READERS; i++)
    if (world.participants[i].joined)
      require(rc_ring_reader_is_valid(&world.participants[i].reader));
  return 0;
}
