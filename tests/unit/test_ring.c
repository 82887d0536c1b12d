/* SPDX-License-Identifier: Apache-2.0 */
/* The ring, one thread: random steps against a log of what was sent. Readers join, take, hold, pin,
 * give back, are evicted and leave; a tap looks on; reservations are trimmed, grown and given up.
 * Then what a writer and its readers must refuse, word by word. */
#include "ring/tap.h"
#include "tests/support/ring.h"

enum { STEPS = 200000, MOST_HELD = 65536 / RC_FRAME_ALIGN, TAGS = 3 };
enum { SENT = 1, FORGED = 2 }; /* kinds: of what was sent, and of what only looks like it */

/* ---- The log --------------------------------------------------------------------------------- */

static struct {
  uint64_t position;
  size_t bytes;
  uint32_t tag; /* 0: none */
} sent[STEPS];
static uint64_t count; /* of frames sent */

/* The times that it came to this. */
static struct {
  uint64_t refused, busy, returned, merged, outlived, evicted, tapped, gaps, zeroed;
} seen;

static uint64_t position_of(uint64_t number) {
  return number < count ? sent[number].position : writer.tail;
}

/* A payload is full of what looks like frames wherever one can start, of this lap or of the next:
 * a reader takes any that it is led to. */
static uint64_t word_of(uint64_t number, uint64_t position) {
  if (position % RC_FRAME_ALIGN == 0) return position + RC_FRAME_ALIGN + number % 2 * ring.capacity;
  if (position % RC_FRAME_ALIGN == 8) return rc_meta_make(8, FORGED, 0);
  return pattern_word(number, position);
}

static void forge(void *out, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = word_of(count, writer.tail + sizeof(struct rc_frame_header) + at);
    memcpy((uint8_t *)out + at, &word, bytes - at < 8 ? bytes - at : 8);
  }
}

static bool is_whole(const void *payload, uint64_t number) {
  for (size_t at = 0; at < sent[number].bytes; at += 8) {
    size_t left = sent[number].bytes - at;
    uint64_t word = word_of(number, sent[number].position + sizeof(struct rc_frame_header) + at);
    if (memcmp((const uint8_t *)payload + at, &word, left < 8 ? left : 8) != 0) return false;
  }
  return true;
}

static void ck_frame(const struct rc_ring_frame *frame, uint64_t number) {
  ck_assert_uint_lt(number, count);
  ck_assert_uint_eq(frame->position, sent[number].position);
  ck_assert_uint_eq(frame->bytes, sent[number].bytes);
  ck_assert_uint_eq(frame->kind, SENT);
}

/* ---- Readers --------------------------------------------------------------------------------- */

/* Held frames, oldest first; one that is let go stays until all older ones are. */
static struct player {
  struct rc_ring_reader reader;
  bool is_here, is_evicted;
  uint64_t next; /* the number of the frame that it gets next */
  uint32_t leases, count;
  struct {
    uint64_t number;
    const void *data;
    uint32_t pins;
    bool leased;
  } held[MOST_HELD];
} players[SLOTS];

static uint64_t cursor_of(const struct player *player) {
  return position_of(player->count > 0 ? player->held[0].number : player->next);
}

static uint64_t lowest_cursor(void) {
  uint64_t lowest = writer.tail;
  for (int i = 0; i < SLOTS; i++)
    if (players[i].is_here && !players[i].is_evicted && cursor_of(&players[i]) < lowest)
      lowest = cursor_of(&players[i]);
  return lowest;
}

static void agree(const struct player *player) {
  const struct rc_ring_reader *reader = &player->reader;
  ck_assert(rc_ring_reader_is_valid(reader));
  ck_assert_uint_eq(reader->next, position_of(player->next));
  ck_assert_uint_eq(reader->cursor, cursor_of(player));
  if (!player->is_evicted) ck_assert_uint_eq(reader->own->cursor, reader->cursor);
  ck_assert_uint_le(rc_ring_held(reader), player->count);
  ck_assert_int_eq(rc_ring_held(reader) == 0, player->count == 0);
  seen.merged += rc_ring_held(reader) < player->count;
}

/* The newest frame with the tag at which a reader may start. */
static bool find_tagged(uint32_t tag, uint64_t *number) {
  for (*number = count; *number > 0;) {
    --*number;
    if (writer.tail - sent[*number].position > ring.capacity / 2) return false;
    if (sent[*number].tag == tag) return true;
  }
  return false;
}

/* At the tail, at the newest frame, or at the newest with a tag. */
static void come(struct player *player, uint64_t random) {
  uint32_t leases = player->leases, tag = (uint32_t)(random / 4 % TAGS) + 1;
  struct rc_start start = {.newest = random % 4 > 1, .tag = random % 4 == 3 ? tag : 0};
  uint64_t next = count;
  if (start.newest && count > 0) next = count - 1;
  bool is_there = start.tag == 0 || find_tagged(tag, &next);
  *player = (struct player){.leases = leases, .next = next};
  int result = join_at(start, &player->reader);
  ck_assert_int_eq(result, is_there ? 0 : -ENODATA);
  player->is_here = is_there;
  player->reader.leases = leases;
  if (is_there) agree(player);
}

static void leave(struct player *player) {
  rc_slot_free(&ring, player->reader.slot, player->reader.owner);
  player->is_here = false;
}

static uint32_t leased(const struct player *player) {
  uint32_t leases = 0;
  for (uint32_t i = 0; i < player->count; i++) leases += player->held[i].leased;
  return leases;
}

/* By the usual way, where that does it, or by the general one at once. */
static void take(struct player *player, uint64_t random) {
  struct rc_ring_frame frame;
  int expected = 0;
  if (player->next == count) expected = -EAGAIN;
  if (leased(player) == player->leases) expected = -EBUSY;
  if (player->is_evicted) expected = -ESTALE;
  bool got = random % 2 && rc_ring_next_plain(&player->reader, &frame);
  if (random % 2) ck_assert_int_eq(got, expected == 0 && player->count == 0);
  if (!got) ck_assert_int_eq(rc_ring_next(&player->reader, &frame), expected);
  seen.busy += expected == -EBUSY;
  if (expected != 0) return;
  ck_frame(&frame, player->next);
  ck_assert(is_whole(frame.data, player->next));
  uint32_t last = player->count++;
  player->held[last].number = player->next++;
  player->held[last].data = frame.data;
  player->held[last].pins = 0;
  player->held[last].leased = true;
}

static void settle(struct player *player) {
  uint32_t gone = 0;
  while (gone < player->count && !player->held[gone].leased && player->held[gone].pins == 0) gone++;
  player->count -= gone;
  memmove(player->held, player->held + gone, player->count * sizeof *player->held);
}

static void release(struct player *player, uint64_t position, uint64_t random) {
  uint32_t i = 0;
  while (i < player->count && sent[player->held[i].number].position != position) i++;
  bool is_leased = i < player->count && player->held[i].leased;
  bool is_only = is_leased && player->count == 1 && player->held[0].pins == 0;
  int expected = -EINVAL;
  if (is_leased) expected = player->is_evicted ? -ESTALE : 0;
  if (expected == 0) ck_assert(is_whole(player->held[i].data, player->held[i].number));
  bool done = random % 2 && rc_ring_release_only(&player->reader, position);
  if (random % 2) ck_assert_int_eq(done, is_only && !player->is_evicted);
  if (!done) ck_assert_int_eq(rc_ring_release(&player->reader, position), expected);
  if (expected != 0) return;
  player->held[i].leased = false;
  settle(player);
}

/* One that is held or was released; or what was no frame's start, or is none that is held. */
static void release_any(struct player *player, uint64_t random) {
  uint64_t position = position_of(player->next);
  if (player->count > 0)
    position = sent[player->held[(random >> 16) % player->count].number].position;
  if (random % 16 == 0) position = player->reader.next;
  if (random % 16 == 1) position = player->reader.cursor + RC_LINE;
  if (random % 16 == 2) position = player->reader.cursor - RC_FRAME_ALIGN;
  release(player, position, random >> 8);
}

static void pin_any(struct player *player, uint64_t random) {
  uint32_t pinned = 0, i = (uint32_t)(random % (player->count + !player->count));
  for (uint32_t k = 0; k < player->count; k++) pinned += player->held[k].pins > 0;
  if (player->count == 0 || (player->held[i].pins == 0 && pinned == RC_MAX_PINNED)) return;
  bool is_leased = player->held[i].leased;
  ck_assert_int_eq(rc_ring_pin(&player->reader, sent[player->held[i].number].position),
                   is_leased ? 0 : -EINVAL);
  player->held[i].pins += is_leased;
}

static void unpin_any(struct player *player, uint64_t random) {
  for (uint32_t n = 0; n < player->count; n++) {
    uint32_t i = (uint32_t)((random + n) % player->count);
    if (player->held[i].pins == 0) continue;
    ck_assert(player->is_evicted || is_whole(player->held[i].data, player->held[i].number));
    seen.outlived += !player->held[i].leased;
    rc_ring_unpin(&player->reader, sent[player->held[i].number].position);
    player->held[i].pins--;
    settle(player);
    return;
  }
}

/* Takes the next and puts it back; meanwhile older ones may have gone. */
static void put_newest_back(struct player *player, uint64_t random) {
  uint64_t next = player->next;
  take(player, random);
  if (player->next == next) return;
  for (uint64_t i = random / 2 % 3; i > 0 && player->count > 1; i--) {
    uint64_t which = mix(random + i) % (player->count - 1);
    release(player, sent[player->held[which].number].position, random >> (8 + i));
  }
  player->count--;
  player->next = next;
  rc_ring_unread(&player->reader, position_of(next));
  seen.returned++;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Each row is a walk of its own. Frames of up to `most` bytes, or mostly small ones where that is
 * the largest that the ring takes. */
static const struct walk {
  uint64_t capacity;
  uint32_t leases;
  size_t most;
} walks[] = {
    {4096, 1, 1904},   {4096, 1, 112},  {4096, 3, 240},   {4096, 8, 1904},
    {65536, 1, 300},   {65536, 2, 300}, {65536, 16, 300}, {65536, RC_MAX_LEASES, 300},
    {65536, 5, 32624},
};
static const struct walk *walk;

static size_t any_size(uint64_t random) {
  if (walk->most > 400) return pattern_bytes(random, walk->most);
  /* Often as long as the one before: the word of the next one's commit is zeroed ahead then. */
  return random % 4 == 0 ? random / 4 % (walk->most + 1) : walk->most;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Whether so much can be reserved: nothing above the lowest cursor is overwritten, and nothing else
 * is refused. */
static int room_for(size_t bytes) {
  uint64_t end = writer.tail + rc_frame_footprint(bytes) + RC_FRAME_ALIGN;
  return end <= lowest_cursor() + ring.capacity ? 0 : -EAGAIN;
}

enum { WHOLE, TRIMMED, GROWN, ABORTED };

static void write_frame(uint64_t random) {
  static const int ends[] = {WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, TRIMMED, GROWN, ABORTED};
  int end = ends[random % 8];
  size_t bytes = any_size(random >> 3);
  size_t more = least(bytes + (random >> 40) % 1000, rc_ring_max_frame(ring.capacity));
  size_t reserved = end == TRIMMED || end == ABORTED ? more : bytes;
  void *out;
  int expected = room_for(reserved);
  ck_assert_int_eq(rc_ring_reserve(&writer, reserved, &out), expected);
  if (expected != 0) {
    ck_assert_uint_eq(control->slots[writer.blocker].cursor, lowest_cursor());
    seen.refused++;
    return;
  }
  if (end == GROWN) {
    ck_assert_int_eq(rc_ring_grow(&writer, more, &out), room_for(more));
    if (room_for(more) == 0) reserved = more;
    if (random / 8 % 2) ck_assert_int_eq(rc_ring_grow(&writer, bytes, &out), 0);
  }
  forge(out, reserved);
  ck_assert_int_eq(rc_ring_commit(&writer, reserved + 1, SENT), -EINVAL);
  if (end == ABORTED) {
    ck_assert_int_eq(rc_ring_abort(&writer), 0);
    return;
  }
  uint32_t tag = (random >> 56) % 8 == 0 ? (uint32_t)(random >> 48) % TAGS + 1 : 0;
  sent[count].position = writer.tail;
  sent[count].bytes = bytes;
  sent[count].tag = tag;
  ck_assert_int_eq(rc_ring_commit(&writer, bytes, SENT), 0);
  if (tag != 0) rc_newest_note(control, tag, sent[count].position);
  count++;
  rc_ring_zero_ahead(&writer, bytes);
  seen.zeroed += writer.zeroed != 0;
}

static void play(struct player *player, uint64_t random, bool is_eager) {
  uint64_t choice = random % 16, more = random >> 8;
  if (!player->is_here) {
    come(player, more);
    return;
  }
  if (more % 512 == 0) {
    leave(player);
    return;
  }
  if (more % 512 == 1 && !player->is_evicted) {
    ck_assert(rc_slot_evict(&ring, player->reader.slot, player->reader.owner));
    player->is_evicted = true;
    seen.evicted++;
  }
  if (choice == 0) put_newest_back(player, more);
  else if (choice == 1 || choice == 9) pin_any(player, more);
  else if (choice == 2 || choice == 10) unpin_any(player, more);
  else if (choice % 8 < (is_eager ? 6 : 2)) take(player, more);
  else release_any(player, more);
  agree(player);
}

static struct rc_ring_tap tap;
static uint64_t next_tapped; /* a number */

/* A tap that is less than half a ring behind loses nothing; another counts what it loses. */
static void look_on(uint64_t random) {
  static _Alignas(8) uint8_t buffer[65536];
  struct rc_ring_frame frame;
  uint64_t gaps = tap.gaps;
  bool is_near = writer.tail - tap.next <= ring.capacity / 2, is_there = next_tapped < count;
  size_t room = sizeof buffer;
  if (is_there && random % 4 == 0 && sent[next_tapped].bytes > 0)
    room = sent[next_tapped].bytes - 1;
  int result = rc_tap_next(&tap, buffer, room, &frame);
  if (tap.gaps != gaps) {
    ck_assert(!is_near);
    ck_assert_int_eq(result, -EAGAIN);
    next_tapped = count;
    seen.gaps++;
  } else if (!is_there || room < sizeof buffer) {
    ck_assert_int_eq(result, is_there ? -EMSGSIZE : -EAGAIN);
  } else {
    ck_assert_int_eq(result, 0);
    ck_frame(&frame, next_tapped);
    ck_assert(is_whole(buffer, next_tapped++));
    seen.tapped++;
  }
  ck_assert_uint_eq(tap.next, position_of(next_tapped));
  ck_assert_uint_eq(tap.copied + tap.lost_bytes, tap.next);
}

LOOP_TEST(random_steps_agree_with_a_log_of_what_was_sent, 0, sizeof walks / sizeof *walks) {
  walk = &walks[_i];
  free_ring();
  make_ring_of(walk->capacity);
  rc_tap_init(&tap, &ring);
  for (int i = 0; i < SLOTS; i++) players[i].leases = walk->leases;
  for (uint64_t step = 0; step < (uint64_t)share_of(STEPS); step++) {
    uint64_t random = mix(step + (uint64_t)_i * STEPS);
    /* In turns all hold more and more and then fewer, and the tap is awake and asleep. */
    if (random % 4 == 0) write_frame(random >> 4);
    else if (random % 4 < 3 || step / 1000 % 2)
      play(&players[random / 4 % SLOTS], random >> 4, step / 250 % 2);
    else look_on(random >> 4);
    ck_assert(rc_ring_writer_is_valid(&writer));
    ck_assert_uint_le(control->limit, writer.tail + ring.capacity / 2);
  }
  ck_assert(seen.zeroed > 0 && seen.returned > 0 && seen.outlived > 0 && seen.evicted > 0);
  ck_assert(seen.merged > 0 && seen.tapped > 0);
  /* With more of them the ring is full first. */
  if (walk->leases <= 16) ck_assert_uint_gt(seen.busy, 0);
  if (walk->capacity == 4096) ck_assert(seen.refused > 0 && seen.gaps > 0);
}

/* ---- Where a frame fits ---------------------------------------------------------------------- */

static void take_and_release(struct rc_ring_reader *reader, uint64_t number, size_t bytes) {
  expect(reader, number, bytes);
  ck_assert_int_eq(rc_ring_release(reader, reader->cursor), 0);
}

/* Aeron's C ring once took a wrong index here: free room before the end and after the start,
 * neither enough alone. */
TEST(a_claim_with_room_neither_at_the_end_nor_at_the_start_overwrites_nothing) {
  struct rc_ring_reader reader = join();
  for (uint64_t i = 0; i < 3; i++) ck_assert_int_eq(send(i, 1100), 0);
  ck_assert_uint_gt(writer.tail, CAPACITY * 3 / 4); /* near the end */
  take_and_release(&reader, 0, 1100);
  ck_assert_int_eq(send(3, rc_ring_max_frame(CAPACITY)), -EAGAIN);
  ck_assert_int_eq(send(3, 1100), 0); /* fits into both together, thanks to the mirror */
  for (uint64_t i = 1; i < 4; i++) take_and_release(&reader, i, 1100);
  expect_nothing(&reader);
}

TEST(the_largest_frame_fits_wherever_the_tail_stands) {
  struct rc_ring_reader reader = join();
  size_t most = rc_ring_max_frame(CAPACITY);
  void *out;
  for (uint64_t i = 0; i < 3 * CAPACITY / RC_FRAME_ALIGN; i++) {
    ck_assert_int_eq(send(i, most), 0);
    take_and_release(&reader, i, most);
    ck_assert_int_eq(send(i, 1), 0);
    take_and_release(&reader, i, 1);
  }
  ck_assert_int_eq(rc_ring_reserve(&writer, most + 1, &out), -EMSGSIZE);
  ck_assert_int_eq(rc_ring_reserve(&writer, UINT64_MAX, &out), -EMSGSIZE);
}

/* Half of a ring of 16 GiB and more holds what a length of 32 bits can't say. */
TEST(what_a_length_cannot_say_is_refused_where_there_is_room_for_it) {
  struct rc_ring large = ring;
  struct rc_ring_writer own;
  void *out;
  ck_assert_uint_eq(rc_ring_max_frame(4096), 2048 - 144);
  ck_assert_uint_eq(rc_ring_max_frame(RC_MAX_BYTES), UINT32_MAX);
  large.capacity = (uint64_t)64 << 30;
  rc_ring_writer_init(&own, large);
  ck_assert_int_eq(rc_ring_reserve(&own, 100, &out), 0); /* grants half of it; nothing is written */
  ck_assert_int_eq(rc_ring_abort(&own), 0);
  ck_assert_int_eq(rc_ring_reserve(&own, (uint64_t)UINT32_MAX + 1, &out), -EMSGSIZE);
  ck_assert_int_eq(rc_ring_reserve(&own, UINT32_MAX, &out), 0);
  ck_assert_int_eq(rc_ring_grow(&own, (uint64_t)UINT32_MAX + 1, &out), -EMSGSIZE);
}

/* Where the payload of a filled reservation goes to spill memory after all. */
TEST(nothing_is_taken_for_a_frame_behind_a_note_in_place_of_a_filled_reservation) {
  static _Alignas(RC_LINE) uint8_t memory[4096];
  ring.spill = memory;
  ring.spill_bytes = sizeof memory;
  struct rc_ring_reader reader = join();
  for (uint64_t i = 0; i < 300; i++) {
    struct rc_ring_frame frame;
    void *out;
    ck_assert_int_eq(send(i, sizeof(struct rc_spilled)), 0);
    take_and_release(&reader, i, sizeof(struct rc_spilled));
    ck_assert_int_eq(rc_ring_reserve(&writer, 200 + mix(i) % 1000, &out), 0);
    forge(out, writer.reserved);
    ck_assert_int_eq(rc_ring_commit_spilled(&writer, sizeof(struct rc_frame_header), 2000, SENT),
                     0);
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    ck_assert(frame.spilled && frame.kind == SENT && frame.bytes == 2000);
    ck_assert_int_eq(rc_ring_release(&reader, frame.position), 0);
    expect_nothing(&reader);
  }
}

/* ---- Words that cannot be right -------------------------------------------------------------- */

enum word { COMMIT, LENGTH, CURSOR, TAIL, LIMIT };
#define HIGH ((uint64_t)1 << 63)

/* A ring whose first frame is of 10 bytes, and one word of it. A peer that believed the word would
 * read or write elsewhere. */
static const struct {
  enum word word;
  uint64_t value;
} bad_words[] = {
    {COMMIT, 1},
    {COMMIT, 64},
    {COMMIT, 127},
    {COMMIT, 129},
    {COMMIT, 256},
    {COMMIT, 4096},
    {COMMIT, 4224},
    {COMMIT, UINT64_MAX},
    {COMMIT, UINT64_MAX - 127},
    {COMMIT, HIGH},
    {LENGTH, 200},
    {LENGTH, UINT32_MAX},
    {CURSOR, 64},
    {CURSOR, 256},
    {CURSOR, UINT64_MAX},
    {CURSOR, UINT64_MAX - 127},
    {CURSOR, HIGH},
    {TAIL, 1},
    {TAIL, -(uint64_t)RC_FRAME_ALIGN},
    {TAIL, RC_MAX_POSITION + RC_FRAME_ALIGN},
    {TAIL, HIGH},
    {LIMIT, UINT64_MAX}, /* lapped, by a writer that is nowhere */
};

LOOP_TEST(a_word_that_cannot_be_right_is_refused, 0, sizeof bad_words / sizeof *bad_words) {
  const enum word word = bad_words[_i].word;
  const uint64_t value = bad_words[_i].value;
  struct rc_frame_header *frame = (struct rc_frame_header *)data.base;
  struct rc_ring_reader reader = join(), other;
  struct rc_ring_frame found;
  uint8_t buffer[256];
  void *out;
  rc_tap_init(&tap, &ring);
  ck_assert_int_eq(send(0, 10), 0);
  if (word == COMMIT) frame->commit = value;
  if (word == LENGTH) frame->bytes = (uint32_t)value;
  if (word == CURSOR) control->slots[reader.slot].cursor = value;
  if (word == TAIL) control->tail = value;
  if (word == LIMIT) control->limit = value;
  if (word == TAIL)
    control->limit = CAPACITY + 1; /* so the tap is lapped, and goes on at the tail */
  if (word == LIMIT) control->tail = 0;
  if (word == COMMIT || word == LENGTH) ck_assert_int_eq(rc_ring_next(&reader, &found), -EPROTO);
  if (word != CURSOR) ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &found), -EPROTO);
  if (word == CURSOR) {
    ck_assert_int_eq(rc_ring_reserve(&writer, 1900, &out), -EPROTO);
    ck_assert_uint_eq(writer.blocker, reader.slot);
  }
  if (word == TAIL) {
    ck_assert_int_eq(join_at((struct rc_start){0}, &other), -EPROTO);
    ck_assert_int_eq(rc_owner_state(control->slots[1].owner), RC_SLOT_FREE);
  }
  ck_assert_uint_eq(reader.next, 0);
}

TEST(a_cursor_that_goes_back_takes_nothing_from_the_writer) {
  struct rc_ring_reader reader = join();
  void *out;
  for (uint64_t i = 0; i < 8; i++) {
    ck_assert_int_eq(send(i, 300), 0);
    take_and_release(&reader, i, 300);
  }
  control->slots[reader.slot].cursor = 0;
  ck_assert_int_eq(rc_ring_reserve(&writer, 1900, &out), -EAGAIN);
  ck_assert(rc_ring_writer_is_valid(&writer));
}

RUN_TESTS("ring", make_ring, free_ring)
