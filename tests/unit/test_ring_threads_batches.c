/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's code with threads: packed frames between plain ones, taken message by message and in
 * groups, held, given back in part, left in their midst, copied by a tap; and readers that are
 * evicted in the midst of one. */
#include "ring/packed.h"
#include "ring/tap.h"
#include "tests/support/threads.h"

enum { MOST = 40, LEASES = 4, STAYS = 1, SLOTH = 2, VISITOR = 3 };
/* A turn is a packed frame of 4 units and 4 plain ones of a unit, so that no frame runs over the
 * end of the ring. */
enum {
  UNIT = RC_FRAME_ALIGN,
  HEADER = sizeof(struct rc_frame_header),
  PACKED = 4 * UNIT - HEADER,
  PLAIN = 4
};
_Static_assert(CAPACITY % ((4 + PLAIN) * UNIT) == 0, "whole turns");

#define MORE UINT64_MAX
/* Messages and plain frames that were sent; MORE: the writer is at work. */
static _Atomic uint64_t total = MORE;
static _Atomic bool holds; /* the sloth has a group, and may be evicted */
static _Atomic uint64_t evictions, torn, visits, halves, tapped;

/* ---- Messages -------------------------------------------------------------------------------- */

static size_t bytes_of(uint64_t number) { return 8 + mix(number) % 40; }
static uint16_t kind_of(uint64_t number) { return mix(number + 7) % 8 == 0 ? 2 : 0; }

static void write_message(uint8_t *to, uint64_t number) {
  for (size_t at = 0, bytes = bytes_of(number); at < bytes; at += 8) {
    uint64_t word = frame_word(number, at);
    memcpy(to + at, &word, bytes - at < 8 ? bytes - at : 8);
  }
}

static bool is_message(const void *data, size_t bytes, uint16_t kind, uint64_t number) {
  bool same = bytes == bytes_of(number) && kind == kind_of(number);
  for (size_t at = 0; same && at < bytes; at += 8) {
    uint64_t word = frame_word(number, at);
    same = memcmp((const uint8_t *)data + at, &word, bytes - at < 8 ? bytes - at : 8) == 0;
  }
  return same;
}

/* ---- Writer ---------------------------------------------------------------------------------- */

/* A sloth that is in the way with a group is evicted, all others are waited for. */
static void *reserve_room(struct rc_ring_writer *writer, uint64_t bytes) {
  void *out;
  while (rc_ring_reserve(writer, bytes, &out) != 0) {
    /* Relaxed: the exchange decides. */
    uint64_t owner = rc_load_relaxed(&ring.control->slots[writer->blocker].owner);
    bool is_sloth = rc_owner_pid(owner) == SLOTH && rc_owner_state(owner) == RC_SLOT_ACTIVE;
    if (!is_sloth || !holds || !rc_slot_evict(&ring, writer->blocker, owner)) sched_yield();
  }
  return out;
}

/* As many messages as fit. Returns the number after. */
static uint64_t send_packed(struct rc_ring_writer *writer, uint64_t number) {
  uint8_t *payload = reserve_room(writer, PACKED), data[64];
  uint64_t at = 0;
  for (; rc_packed_end(at, bytes_of(number), kind_of(number)) <= PACKED; number++) {
    write_message(data, number);
    at = rc_packed_put(payload, at, data, bytes_of(number), kind_of(number));
  }
  rc_ring_publish(writer, at, 0, RC_FRAME_PACKED);
  rc_ring_zero_ahead(writer, at);
  return number;
}

static void *write_turns(void *nothing) {
  struct rc_ring_writer writer;
  uint64_t number = 0;
  rc_ring_writer_init(&writer, ring);
  while (number < frames) {
    number = send_packed(&writer, number);
    for (int i = 0; i < PLAIN; i++, number++) {
      uint64_t bytes = bytes_of(number);
      write_message(reserve_room(&writer, bytes), number);
      if (rc_ring_commit(&writer, bytes, kind_of(number)) != 0) abort();
      rc_ring_zero_ahead(&writer, bytes);
    }
  }
  total = number;
  return nothing;
}

/* ---- Readers that get all -------------------------------------------------------------------- */

static int release(struct rc_ring_reader *reader, uint64_t position) {
  return rc_ring_lent(reader, position) != 0 ? rc_ring_release_many(reader, position, 1)
                                             : rc_ring_release(reader, position);
}

struct held {
  struct rc_ring_frame frame;
  uint64_t number;
};

static void let_go(struct rc_ring_reader *reader, const struct held *held) {
  if (!is_message(held->frame.data, held->frame.bytes, held->frame.kind, held->number)) abort();
  if (release(reader, held->frame.position) != 0) abort();
}

/* One by one, some of them held for a while. */
static void *take_each(void *context) {
  struct rc_ring_reader *reader = context;
  struct held held[LEASES + 1]; /* the last for a look that is refused */
  uint32_t count = 0;
  for (uint64_t next = 0, random = 1; next != total || count > 0; random = mix(random)) {
    int result = rc_ring_take(reader, &held[count].frame);
    if (result == 0) {
      held[count++].number = next++;
      if (random % 4 != 0) continue;
    } else if (result != -EAGAIN && result != -EBUSY) abort();
    if (count == 0) sched_yield();
    if (count == 0) continue;
    uint32_t which = (uint32_t)(random >> 8) % count;
    let_go(reader, &held[which]);
    held[which] = held[--count];
  }
  rc_slot_free(&ring, reader->slot, reader->owner);
  return NULL;
}

/* In groups, of some of which only the beginning is read. */
static void *take_groups(void *context) {
  struct rc_ring_reader *reader = context;
  struct ringcast_frame group[MOST];
  struct rc_ring_frame spilled;
  uint32_t count;
  for (uint64_t next = 0, random = 2; next != total; random = mix(random)) {
    int result = rc_ring_next_many(reader, group, (uint32_t)random % MOST + 1, &count, &spilled);
    if (result == -EAGAIN) sched_yield();
    if (result == -EAGAIN) continue;
    if (result != 0) abort();
    uint32_t keep = random / MOST % 3 == 0 ? (uint32_t)(random >> 32) % (count + 1) : count;
    for (uint32_t i = 0; i < keep; i++)
      if (!is_message(group[i].data, group[i].bytes, group[i].kind, next++)) abort();
    if (rc_ring_release_many(reader, group->position, keep) != 0) abort();
    halves += keep < count;
  }
  rc_slot_free(&ring, reader->slot, reader->owner);
  return NULL;
}

/* ---- Readers that come and go ---------------------------------------------------------------- */

/* The number that the message says it has; it may be torn. */
__attribute__((no_sanitize("thread"))) static uint64_t
number_in(const struct ringcast_frame *frame) {
  return *(const uint64_t *)(const void *)frame->data;
}

__attribute__((no_sanitize("thread"))) static bool is_intact(const struct ringcast_frame *frame,
                                                             uint64_t number) {
  uint8_t copy[64];
  if (frame->bytes != bytes_of(number) || frame->kind != kind_of(number)) return false;
  for (size_t i = 0; i < frame->bytes; i++) copy[i] = ((const uint8_t *)frame->data)[i];
  return is_message(copy, frame->bytes, frame->kind, number);
}

/* Waits for a group. */
static int get(struct rc_ring_reader *reader, struct ringcast_frame *group, uint32_t *count) {
  struct rc_ring_frame spilled;
  int result;
  while ((result = rc_ring_next_many(reader, group, MOST, count, &spilled)) == -EAGAIN &&
         total == MORE)
    sched_yield();
  return result;
}

/* Starts at the newest frame, and leaves in the midst of a group. */
static void *visit(void *nothing) {
  for (uint64_t random = 3, last = 0; total == MORE; random = mix(random), visits++) {
    struct rc_ring_reader reader = join_at(VISITOR, (struct rc_start){.newest = true});
    struct ringcast_frame group[MOST];
    uint32_t count;
    uint64_t next = 0;
    for (uint64_t left = random % 8; get(&reader, group, &count) == 0; left--) {
      if (next == 0) next = number_in(group);
      if (next + MOST < last)
        abort(); /* the first of a frame that is not older than the last visit's */
      for (uint32_t i = 0; i < count; i++)
        if (!is_message(group[i].data, group[i].bytes, group[i].kind, next + i)) abort();
      if (next > last) last = next;
      if (left == 0) break;
      next += count;
      if (rc_ring_release_many(&reader, group->position, count) != 0) abort();
    }
    rc_slot_free(&ring, reader.slot, reader.owner);
  }
  return nothing;
}

/* Reads a group in place until it is evicted. What was read before a look that finds the reader
 * still in its place must have been whole. */
static void *be_slow(void *nothing) {
  while (total == MORE) {
    struct rc_ring_reader reader = join(SLOTH);
    struct ringcast_frame group[MOST];
    uint32_t count = 0;
    int result = get(&reader, group, &count);
    uint64_t first = result == 0 ? number_in(group) : 0;
    holds = result == 0;
    while (result == 0 && total == MORE) {
      bool intact = true;
      for (uint32_t i = 0; i < count; i++) intact &= is_intact(&group[i], first + i);
      if (rc_ring_is_evicted(&reader)) result = -ESTALE;
      torn += result != 0 && !intact;
      if (result == 0 && !intact) abort();
      sched_yield();
    }
    if (count > 0 && result == -ESTALE &&
        rc_ring_release_many(&reader, group->position, count) != -ESTALE)
      abort();
    holds = false;
    evictions += result == -ESTALE;
    rc_slot_free(&ring, reader.slot, reader.owner);
  }
  return nothing;
}

/* Whatever the tap gets is whole, and in order. */
static void *tap_all(void *nothing) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  struct ringcast_frame message;
  _Alignas(16) uint8_t buffer[CAPACITY];
  uint64_t expected = 0;
  rc_tap_init(&tap, &ring);
  for (int result;
       (result = rc_tap_next(&tap, buffer, sizeof buffer, &frame)) == 0 || total == MORE;) {
    if (result == -EAGAIN) sched_yield();
    if (result == -EAGAIN) continue;
    if (result != 0) abort();
    struct rc_packed packed = rc_packed_open(buffer, frame.position, frame.bytes);
    message = (struct ringcast_frame){.data = buffer, .bytes = frame.bytes, .kind = frame.kind};
    do {
      if (frame.packed && rc_packed_next(&packed, &message) != 0) abort();
      uint64_t number = number_in(&message);
      if (number < expected || !is_message(message.data, message.bytes, message.kind, number))
        abort();
      expected = number + 1;
      tapped++;
    } while (frame.packed && rc_packed_is_left(&packed));
  }
  return nothing;
}

static void run_threads(void) {
  pthread_t writer, each, groups, visitor, sloth, tap;
  total = MORE;
  make_ring();
  struct rc_ring_reader one = join(STAYS), many = join(STAYS);
  one.leases = LEASES;
  start(&each, take_each, &one);
  start(&groups, take_groups, &many);
  start(&visitor, visit, NULL);
  start(&sloth, be_slow, NULL);
  start(&tap, tap_all, NULL);
  start(&writer, write_turns, NULL);
  pthread_join(writer, NULL);
  pthread_join(each, NULL);
  pthread_join(groups, NULL);
  pthread_join(visitor, NULL);
  pthread_join(sloth, NULL);
  pthread_join(tap, NULL);
  printf("%llu evicted, %llu of them from a group that was overwritten; %llu visits, %llu parts of "
         "groups, %llu tapped\n",
         (unsigned long long)evictions, (unsigned long long)torn, (unsigned long long)visits,
         (unsigned long long)halves, (unsigned long long)tapped);
  for (int i = 0; i < SLOTS; i++)
    ck_assert_uint_eq(rc_owner_state(ring.control->slots[i].owner), RC_SLOT_FREE);
  free_ring();
}

TEST(threads_get_each_message_of_a_batch_whole_and_in_order) {
  send_so_many(400000);
  for (int i = 0; i < MOST_RUNS && (evictions <= 10 || visits <= 10 || halves <= 10 || tapped == 0);
       i++)
    run_threads();
  ck_assert_uint_gt(evictions, 10);
  ck_assert_uint_gt(visits, 10);
  ck_assert_uint_gt(halves, 10);
  ck_assert_uint_gt(tapped, 0);
}

RUN_TESTS("ring_threads, batches", NULL, NULL)
