/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of a ring, one thread, each step in a chosen order: where they start, whose a slot is,
 * what an evicted one is told, how much may be held, and a tap in the middle of a copy. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring/tap.h"
#include "tests/support/ring.h"

#define LATEST      ((struct rc_start){.newest = true})
#define TAGGED(tag) ((struct rc_start){true, tag})

static void leave(const struct rc_ring_reader *reader) {
  rc_slot_free(&ring, reader->slot, reader->owner);
}

static enum rc_slot_state state_of(uint32_t slot) {
  return rc_owner_state(control->slots[slot].owner);
}

/* Nothing of a join that failed is left. */
static void refused(struct rc_start start, int expected) {
  struct rc_ring_reader reader;
  ck_assert_int_eq(join_at(start, &reader), expected);
  for (uint32_t i = 0; i < SLOTS; i++) ck_assert_int_eq(state_of(i), RC_SLOT_FREE);
}

static void starts_at(struct rc_start start, uint64_t number, size_t bytes) {
  struct rc_ring_reader reader;
  ck_assert_int_eq(join_at(start, &reader), 0);
  expect(&reader, number, bytes);
  leave(&reader);
}

static void send_tagged(uint32_t tag, uint64_t number, size_t bytes) {
  uint64_t position = writer.tail;
  ck_assert_int_eq(send(number, bytes), 0);
  rc_newest_note(control, tag, position);
}

static bool evict(const struct rc_ring_reader *reader) {
  return rc_slot_evict(&ring, reader->slot, reader->owner);
}

/* Until the oldest frame of a reader holds the writer back. */
static uint64_t fill_up(uint64_t number, size_t bytes) {
  while (send(number, bytes) == 0) number++;
  return number;
}

/* ---- Where a reader starts ------------------------------------------------------------------- */

/* The writer was stopped after the commit, before it stored where the newest frame and the tail
 * are. Who starts at the tail may have had the frame. */
LOOP_TEST(a_frame_that_is_committed_is_the_newest_already, 0, 2) {
  ck_assert_int_eq(send(0, 300), 0);
  uint64_t newest = control->newest, tail = control->tail;
  ck_assert_int_eq(send(1, 300), 0);
  control->newest = newest;
  control->tail = tail;
  struct rc_ring_reader reader;
  ck_assert_int_eq(join_at((struct rc_start){.newest = _i}, &reader), 0);
  if (_i == 1) expect(&reader, 1, 300);
  if (_i == 1) ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  expect_nothing(&reader);
  ck_assert_int_eq(send(2, 300), 0);
  expect(&reader, 2, 300);
}

/* By the frame at which a reader starts, no other may have begun to overwrite: half the ring, and
 * not a line more. */
TEST(the_newest_of_a_tag_may_be_half_a_ring_old) {
  struct rc_ring_reader reader;
  const size_t line = RC_FRAME_ALIGN - sizeof(struct rc_frame_header);
  send_tagged(7, 0, 300);
  uint64_t start = writer.tail - rc_frame_footprint(300), sent = 1;
  for (; writer.tail - start < CAPACITY / 2; sent++) ck_assert_int_eq(send(sent, line), 0);
  ck_assert_int_eq(join_at(TAGGED(7), &reader), 0);
  sent = fill_up(sent, line);
  ck_assert_uint_eq(writer.blocker, reader.slot);
  expect(&reader, 0, 300);
  leave(&reader);
  ck_assert_int_eq(send(sent, line), 0);
  refused(TAGGED(7), -ENODATA);
}

TEST(the_ring_remembers_so_many_tags_and_forgets_the_oldest) {
  enum { FIRST = 0x40, LAST = FIRST + RC_NEWEST_TAGS - 1 };
  free_ring();
  make_ring_of(64 * 1024);
  refused(TAGGED(FIRST), -ENODATA);
  for (uint32_t tag = FIRST; tag <= LAST; tag++) send_tagged(tag, tag, 50);
  for (uint32_t tag = FIRST; tag <= LAST; tag++) starts_at(TAGGED(tag), tag, 50);
  refused(TAGGED(FIRST << 8), -ENODATA); /* of the entries of FIRST */
  send_tagged(FIRST, 1, 50);
  send_tagged(0x400, 2, 50); /* of the entries of 0x40, 0x51, 0x62 and 0x73 */
  starts_at(TAGGED(FIRST), 1, 50);
  refused(TAGGED(0x51), -ENODATA);
  starts_at(TAGGED(0x62), 0x62, 50);
}

TEST(tags_a_power_of_two_apart_are_remembered_too) {
  for (uint32_t shift = 0; shift <= 28; shift += 4) {
    free_ring();
    make_ring_of(64 * 1024);
    for (uint32_t i = 1; i < 16; i++) send_tagged(i << shift, i, 50);
    for (uint32_t i = 1; i < 16; i++) starts_at(TAGGED(i << shift), i, 50);
  }
}

/* The bound in frames counts what the reader has taken, not what the last one in its slot had. */
TEST(what_the_slots_last_owner_took_is_not_the_readers) {
  writer.ahead = 1;
  struct rc_ring_reader first = join(), reader;
  ck_assert_int_eq(send(0, 100), 0);
  rc_store_release(&first.own->taken, writer.tail);
  leave(&first);
  ck_assert_int_eq(join_at(LATEST, &reader), 0);
  ck_assert_uint_eq(reader.slot, first.slot);
  ck_assert_int_eq(send(1, 100), -EAGAIN);
  expect(&reader, 0, 100);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  ck_assert_int_eq(send(1, 100), 0);
}

/* Off the lines of frames, so large that sums of positions overflow, of a lap ago, or where no
 * frame starts. */
TEST(a_place_that_cannot_be_right_is_refused) {
  const uint64_t bad[] = {1, RC_FRAME_ALIGN, (uint64_t)1 << 63, RC_MAX_POSITION + RC_FRAME_ALIGN,
                          UINT64_MAX - 127};
  for (uint64_t sent = 0; sent < 40; sent++) ck_assert_int_eq(send(sent, 1000), 0);
  send_tagged(7, 40, 1000);
  struct rc_newest *entry = control->tags;
  while (entry->tag != 7) entry++;
  uint64_t good = control->newest;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct rc_ring_reader reader;
    uint64_t place = i % 2 ? bad[i] : good + bad[i];
    control->newest = place;
    refused(LATEST, -EPROTO);
    entry->place = place + 1;
    int result = join_at(TAGGED(7), &reader);
    ck_assert(result == -EPROTO || result == -ENODATA);
  }
  control->newest = good;
  starts_at(LATEST, 40, 1000);
}

/* ---- Whose a slot is ------------------------------------------------------------------------- */

enum act { ACTIVATE, REAP, EVICT, LEAVE };

/* A slot is claimed, and becomes `state`. Then somebody does this by the word of `by`, which a slot
 * has had: true, and the slot is `after`, or nothing happens. */
static const struct {
  enum rc_slot_state state;
  enum act act;
  enum rc_slot_state by;
  bool is_done;
  enum rc_slot_state after;
} acts[] = {
    {RC_SLOT_JOINING, ACTIVATE, RC_SLOT_JOINING, true, RC_SLOT_ACTIVE},
    {RC_SLOT_FREE, ACTIVATE, RC_SLOT_JOINING, false, RC_SLOT_FREE}, /* was reaped: claims anew */
    {RC_SLOT_EVICTED, ACTIVATE, RC_SLOT_JOINING, false, RC_SLOT_FREE},
    {RC_SLOT_JOINING, REAP, RC_SLOT_JOINING, true, RC_SLOT_FREE},
    {RC_SLOT_ACTIVE, REAP, RC_SLOT_JOINING, false, RC_SLOT_ACTIVE},
    {RC_SLOT_ACTIVE, REAP, RC_SLOT_ACTIVE, true, RC_SLOT_FREE},
    {RC_SLOT_EVICTED, REAP, RC_SLOT_ACTIVE, false, RC_SLOT_EVICTED},
    {RC_SLOT_EVICTED, REAP, RC_SLOT_EVICTED, true, RC_SLOT_FREE},
    {RC_SLOT_JOINING, EVICT, RC_SLOT_JOINING, true, RC_SLOT_EVICTED},
    {RC_SLOT_ACTIVE, EVICT, RC_SLOT_JOINING, false, RC_SLOT_ACTIVE},
    {RC_SLOT_ACTIVE, EVICT, RC_SLOT_ACTIVE, true, RC_SLOT_EVICTED},
    {RC_SLOT_FREE, EVICT, RC_SLOT_ACTIVE, false, RC_SLOT_FREE},
    {RC_SLOT_JOINING, LEAVE, RC_SLOT_ACTIVE, true, RC_SLOT_FREE},
    {RC_SLOT_ACTIVE, LEAVE, RC_SLOT_ACTIVE, true, RC_SLOT_FREE},
    {RC_SLOT_EVICTED, LEAVE, RC_SLOT_ACTIVE, true, RC_SLOT_FREE},
};

LOOP_TEST(a_slot_changes_hands_only_by_who_means_its_owner, 0, sizeof acts / sizeof *acts) {
  struct rc_ring_reader reader;
  uint32_t slot, other;
  uint64_t owner, next;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot, &owner), 0);
  ck_assert_int_eq(state_of(slot), RC_SLOT_JOINING);
  control->slots[slot].owner = rc_owner_as(owner, acts[_i].state);
  const uint64_t word = rc_owner_as(owner, acts[_i].by);
  bool is_done = true;
  if (acts[_i].act == REAP) is_done = rc_slot_reap(&ring, slot, word);
  else if (acts[_i].act == EVICT) is_done = rc_slot_evict(&ring, slot, word);
  else if (acts[_i].act == LEAVE) rc_slot_free(&ring, slot, word);
  else {
    int result = rc_slot_activate(&ring, slot, word, (struct rc_start){0}, &reader);
    ck_assert_int_eq(result, acts[_i].is_done ? 0 : -EAGAIN);
    is_done = result == 0;
  }
  ck_assert_int_eq(is_done, acts[_i].is_done);
  ck_assert_int_eq(state_of(slot), acts[_i].after);
  /* The slot is for another only when it is free; then nothing of the one before disturbs it. */
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &other, &next), 0);
  ck_assert_int_eq(other == slot, acts[_i].after == RC_SLOT_FREE);
  ck_assert(!rc_slot_reap(&ring, other, rc_owner_as(owner, RC_SLOT_ACTIVE)) || other != slot);
  if (other == slot) rc_slot_free(&ring, slot, owner);
  ck_assert_uint_eq(control->slots[other].owner, next);
}

TEST(an_owner_holds_pid_start_turn_and_state) {
  const uint32_t pid = 4194303; /* the largest of Linux */
  uint64_t owner = rc_owner_make(pid, UINT64_MAX - 5, 1024 + 5, RC_SLOT_ACTIVE);
  ck_assert_uint_eq(rc_owner_pid(owner), pid);
  ck_assert_uint_eq(rc_owner_start(owner), (UINT64_MAX - 5) & RC_START_MASK);
  ck_assert_uint_eq(rc_owner_turn(owner), 5);
  ck_assert_int_eq(rc_owner_state(owner), RC_SLOT_ACTIVE);
}

/* What was granted before is half a ring. */
TEST(the_writer_grants_itself_nothing_while_somebody_joins) {
  uint32_t slot;
  uint64_t owner;
  struct rc_ring_reader reader;
  ck_assert_int_eq(send(0, 100), 0);
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), 0);
  uint64_t limit = writer.limit, sent = fill_up(1, 300);
  ck_assert_uint_eq(writer.limit, limit);
  ck_assert_uint_eq(writer.blocker, slot);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, (struct rc_start){0}, &reader), 0);
  ck_assert_int_eq(send(sent, 300), 0);
  expect(&reader, sent, 300);
}

TEST(all_slots_may_be_taken_and_the_evicted_are_no_parties) {
  struct rc_ring_reader readers[SLOTS];
  uint32_t slot;
  uint64_t owner;
  for (int i = 0; i < SLOTS; i++) readers[i] = join();
  ck_assert(evict(&readers[1]));
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), -EUSERS);
  ck_assert_uint_eq(rc_ring_participants(&ring), SLOTS);
  ck_assert_uint_eq(control->cpus.participants, SLOTS);
  leave(&readers[1]);
  ck_assert_uint_eq(join().slot, readers[1].slot);
  ck_assert_uint_eq(rc_ring_participants(&ring), SLOTS + 1);
}

/* ---- Eviction -------------------------------------------------------------------------------- */

/* Also where it waits for a frame, or holds all it may; and whatever lies at its next frame by now,
 * which is the middle of some payload. */
LOOP_TEST(an_evicted_reader_is_told_at_each_call, 0, 3) {
  static const uint64_t as_if[] = {0, 1, 128, 256, UINT64_MAX};
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame = {0}, again;
  reader.leases = _i == 2 ? 2 : 1;
  for (uint64_t i = 0; i < 2; i++) ck_assert_int_eq(send(i, 200), 0);
  if (_i > 0) ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
  ck_assert(!rc_ring_is_evicted(&reader));
  ck_assert(evict(&reader));
  ck_assert(rc_ring_is_evicted(&reader));
  struct rc_frame_header *header = rc_frame_at(&ring, reader.next);
  for (size_t i = 0; i < sizeof as_if / sizeof *as_if; i++) {
    header->commit = reader.next + as_if[i];
    ck_assert(!rc_ring_next_plain(&reader, &again));
    ck_assert_int_eq(rc_ring_next(&reader, &again), -ESTALE);
  }
  if (_i == 0) return;
  ck_assert_int_eq(rc_ring_look(&reader, frame.position, &again), -ESTALE);
  ck_assert(!rc_ring_release_only(&reader, frame.position));
  ck_assert_int_eq(rc_ring_release(&reader, frame.position), -ESTALE);
}

/* What a release does that had looked just before moves nothing, whatever it stores. */
TEST(the_writer_goes_on_without_it_and_the_others_lose_nothing) {
  struct rc_ring_reader slow = join(), other = join();
  uint64_t sent = fill_up(0, 200), read = 0;
  ck_assert(evict(&slow));
  slow.own->cursor = writer.tail + 4096;
  ck_assert_int_eq(send(sent, 200), -EAGAIN);
  ck_assert_uint_eq(writer.blocker, other.slot);
  for (; sent < 200; sent = fill_up(sent, 200))
    for (; read < sent; read++) {
      expect(&other, read, 200);
      ck_assert_int_eq(rc_ring_release(&other, other.cursor), 0);
    }
}

/* ---- How much may be held -------------------------------------------------------------------- */

static uint64_t take(struct rc_ring_reader *reader) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(reader, &frame), 0);
  ck_assert(rc_ring_reader_is_valid(reader));
  return frame.position;
}

static struct rc_ring_reader join_large_ring(uint32_t leases, uint64_t frames) {
  free_ring();
  make_ring_of(64 * 1024);
  struct rc_ring_reader reader = join();
  reader.leases = leases;
  for (uint64_t i = 0; i < frames; i++) ck_assert_int_eq(send(i, 8), 0);
  return reader;
}

/* As few can be held as may be, and hundreds behind one of them are taken and released. */
TEST(one_that_is_held_for_long_does_not_keep_others_from_coming_and_going) {
  enum { OTHERS = 400 };
  struct rc_ring_reader reader = join_large_ring(3, OTHERS + 1);
  uint64_t first = take(&reader), before = take(&reader);
  for (int i = 1; i < OTHERS; i++) {
    uint64_t position = take(&reader);
    ck_assert_int_eq(rc_ring_release(&reader, before), 0);
    ck_assert_int_eq(rc_ring_release(&reader, before), -EINVAL);
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
  struct rc_ring_reader reader = join_large_ring(RC_MAX_LEASES, 2 * MANY + 1);
  uint64_t positions[MANY];
  struct rc_ring_frame frame;
  for (uint32_t i = 0; i < MANY; i++) {
    positions[i] = take(&reader);
    if (i < RC_MAX_PINNED) {
      ck_assert_int_eq(rc_ring_pin(&reader, positions[i]), 0);
      ck_assert_int_eq(rc_ring_release(&reader, positions[i]), 0);
      ck_assert(!rc_ring_holds(&reader, positions[i]));
    }
    if (i + 1 < MANY) ck_assert_int_eq(rc_ring_release(&reader, take(&reader)), 0);
  }
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EBUSY);
  ck_assert_int_eq(rc_ring_release(&reader, positions[MANY / 2]), 0);
  take(&reader);
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -EBUSY);
  for (uint32_t i = 0; i < RC_MAX_PINNED; i++) rc_ring_unpin(&reader, positions[i]);
  for (uint32_t i = RC_MAX_PINNED; i < MANY; i++)
    ck_assert_int_eq(rc_ring_release(&reader, positions[i]), i == MANY / 2 ? -EINVAL : 0);
}

/* ---- A tap in the middle of a copy ----------------------------------------------------------- */

/* The tap copies to a buffer that runs into this page, which can't be written. There the copy
 * stops, the writer goes on by so many frames, the page is opened, and the copy goes on. */
static uint8_t *barred;
static uint64_t frames_meanwhile;

/* Called once: a fault elsewhere comes again, and ends the test. */
static void go_on_in_the_middle(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  uintptr_t at = (uintptr_t)info->si_addr, page = (uintptr_t)barred;
  if (at < page || at - page >= (uintptr_t)sysconf(_SC_PAGESIZE)) return;
  for (uint64_t i = 0; i < frames_meanwhile; i++) ck_assert_int_eq(send(2 + i, 1500), 0);
  ck_assert_int_eq(mprotect(barred, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE), 0);
  frames_meanwhile = UINT64_MAX; /* it has happened */
}

/* A buffer of which so many bytes can be written. */
static uint8_t *buffer_before_the_bar(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(pages, MAP_FAILED);
  barred = pages + page;
  ck_assert_int_eq(mprotect(barred, page, PROT_NONE), 0);
  struct sigaction action = {.sa_sigaction = go_on_in_the_middle,
                             .sa_flags = SA_SIGINFO | SA_RESETHAND};
  ck_assert_int_eq(sigaction(SIGSEGV, &action, NULL), 0);
  return barred - bytes;
}

/* A frame takes 1536 bytes of the ring's 4096. The second of those that come meanwhile lies in part
 * where the frame stands that is being copied. */
LOOP_TEST(a_copy_that_the_writer_runs_into_is_lost_and_one_that_it_does_not_reach_is_not, 0, 5) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  bool reached = _i >= 2;
  rc_tap_init(&tap, &ring);
  ck_assert_int_eq(send(1, 1500), 0);
  frames_meanwhile = (uint64_t)_i;
  uint8_t *buffer = buffer_before_the_bar(700);
  int result = rc_tap_next(&tap, buffer, 1500, &frame);
  ck_assert_uint_eq(frames_meanwhile, UINT64_MAX);
  ck_assert_int_eq(result, reached ? -EAGAIN : 0);
  ck_assert_uint_eq(tap.lost_bytes, reached ? writer.tail : 0);
  ck_assert_uint_eq(tap.gaps, reached);
  if (!reached)
    ck_assert(frame.bytes == 1500 && frame.kind == 1 && pattern_matches(buffer, 1500, 1));
  uint64_t next = reached ? 9 : 2;
  if (reached || _i == 0) ck_assert_int_eq(send(next, 1500), 0);
  ck_assert_int_eq(rc_tap_next(&tap, buffer, 1500, &frame), 0);
  ck_assert(frame.kind == next && pattern_matches(buffer, 1500, next));
}

RUN_TESTS("ring, readers", make_ring, free_ring)
