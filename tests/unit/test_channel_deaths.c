/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a wait ends: {who waits × what becomes of the other side × in which memory × how one waits}.
 * Each table has a line for what may happen; a test takes a line, a memory and a way to wait.
 */
#include "ringcast/batch.h"
#include "tests/support/meanwhile.h"
#include "tests/support/pattern.h"

#define MIB ((size_t)1 << 20)

enum memory { RING, SPILL, FRAMES_AHEAD, MEMORIES };

/* ---- A writer waits for room ----------------------------------------------------------------- */

enum who { OURS, A_CHILDS };

static ringcast_writer *writer;
static ringcast_reader *reader; /* in the way, or NULL: that of the child is */
static pid_t child;
static size_t bytes; /* of each frame */

static int reserve(int64_t timeout_ns) {
  struct ringcast_span span;
  return ringcast_writer_reserve(writer, bytes, timeout_ns, &span);
}

/* Until what the signal does can be seen. */
static void strike(int signal, int state) {
  siginfo_t seen;
  ck_assert_int_eq(kill(child, signal), 0);
  ck_assert_int_eq(waitid(P_PID, (id_t)child, &seen, state | WNOWAIT), 0);
}

static void dies(void) { strike(SIGKILL, WEXITED); } /* and stays a zombie */
static void reads(void) { take_one(reader); }
static void leaves(void) { ringcast_reader_leave(reader); }
static void cancels(void) { ringcast_writer_cancel(writer); }
static void breaks_a_rule(void) { rc_store_relaxed(&reader->ring.own->cursor, UINT64_MAX); }
/* Not before the memory is full: a busy machine can let the time pass in between. */
static void takes_too_long(void) { writer->liveness.slow_ns = SECOND / 100; }

static void is_stopped_too_long(void) {
  strike(SIGSTOP, WSTOPPED);
  takes_too_long();
}

static void dies_late(void) {
  dies();
  takes_too_long();
}

static const struct {
  void (*happens)(void);
  enum who who;
  uint32_t on_death, on_slow;
  int result;
  const char *word; /* of the error */
  uint32_t told;    /* by ringcast_writer_check; ACTIVE: nobody */
  bool in_slices;   /* no wake-up comes */
} ends[] = {
    {reads, OURS, RINGCAST_FAIL, RINGCAST_FAIL, 0, "", RINGCAST_PEER_ACTIVE, false},
    {leaves, OURS, RINGCAST_FAIL, RINGCAST_FAIL, 0, "", RINGCAST_PEER_ACTIVE, false},
    {cancels, OURS, RINGCAST_FAIL, RINGCAST_FAIL, -ECANCELED, "cancelled", RINGCAST_PEER_ACTIVE,
     false},
    {dies, A_CHILDS, RINGCAST_FAIL, RINGCAST_EVICT, -EOWNERDEAD, "'rank 2'", RINGCAST_PEER_DEAD,
     true},
    {dies, A_CHILDS, RINGCAST_EVICT, RINGCAST_FAIL, 0, "", RINGCAST_PEER_DEAD, true},
    {dies_late, A_CHILDS, RINGCAST_FAIL, RINGCAST_EVICT, -EOWNERDEAD, "has died",
     RINGCAST_PEER_DEAD, true},
    {dies_late, A_CHILDS, RINGCAST_EVICT, RINGCAST_FAIL, 0, "", RINGCAST_PEER_DEAD, true},
    {takes_too_long, OURS, RINGCAST_EVICT, RINGCAST_FAIL, -ETIMEDOUT, "options.slow_ns",
     RINGCAST_PEER_ACTIVE, true},
    {takes_too_long, OURS, RINGCAST_FAIL, RINGCAST_EVICT, 0, "", RINGCAST_PEER_EVICTED, true},
    {is_stopped_too_long, A_CHILDS, RINGCAST_FAIL, RINGCAST_FAIL, -ETIMEDOUT, "stopped",
     RINGCAST_PEER_ACTIVE, true},
    {is_stopped_too_long, A_CHILDS, RINGCAST_FAIL, RINGCAST_EVICT, 0, "", RINGCAST_PEER_EVICTED,
     true},
    {breaks_a_rule, OURS, RINGCAST_FAIL, RINGCAST_FAIL, -EPROTO, "cursor", RINGCAST_PEER_ACTIVE,
     true},
    {breaks_a_rule, OURS, RINGCAST_EVICT, RINGCAST_FAIL, 0, "", RINGCAST_PEER_EVICTED, true},
};
enum { ENDS = sizeof ends / sizeof *ends };

static void fill_memory(enum memory memory) {
  struct ringcast_span span;
  int result;
  while ((result = ringcast_writer_reserve(writer, bytes, 0, &span)) == 0)
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes, 0), 0);
  ck_assert_int_eq(result, -EAGAIN);
  ck_says(memory == RING ? "ring is full" : memory == SPILL ? "spill memory" : "options.ahead");
}

static void begin(int which, enum memory memory, enum way way) {
  writer = writer_of(.capacity = memory == RING ? 4096 : 65536, .readers = 4,
                     .spill_bytes = 4 * MIB, .ahead = memory == FRAMES_AHEAD ? 3 : 0,
                     .spin_ns = spin_of(way), .on_death = ends[which].on_death,
                     .on_slow = ends[which].on_slow, .slow_ns = 3600 * SECOND);
  bytes = memory == SPILL ? 3 * MIB : 1500;
  reader = attach(writer); /* the slot's reader before, who was waited for, too */
  fill_memory(memory);
  ck_assert_int_eq(reserve(1), -ETIMEDOUT);
  ringcast_reader_close(reader);
  reader = ends[which].who == OURS ? attach(writer) : NULL;
  child = reader ? 0 : start_reader(writer);
}

static void end(void) {
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  if (child != 0) kill_child(child);
}

/* What the caller is told, now and if it asks again. */
static void ck_ended(int which, int result) {
  ck_assert_int_eq(result, ends[which].result);
  if (result != 0) ck_says(ends[which].word);
  else ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  if (ends[which].told == RINGCAST_PEER_ACTIVE) ck_all_well(writer);
  else ck_told(writer, ends[which].told, reader ? getpid() : child);
  if (reader && ends[which].told == RINGCAST_PEER_EVICTED)
    ck_assert_int_eq(ringcast_reader_check(reader), -ESTALE);
  if (ends[which].told != RINGCAST_PEER_DEAD) return;
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 0), -EAGAIN); /* the dead don't count */
  for (int timeout_ns = 1; timeout_ns < 4 && result != 0; timeout_ns++)
    ck_assert_int_eq(reserve(timeout_ns), -EOWNERDEAD);
}

LOOP_TEST(a_wait_for_room_ends, 0, ENDS *MEMORIES *WAYS) {
  int which = _i / WAYS / MEMORIES;
  enum memory memory = (enum memory)(_i / WAYS % MEMORIES);
  enum way way = (enum way)(_i % WAYS);
  if (way == BY_TRIES && ends[which].happens == cancels) return;              /* it does not wait */
  if (memory == FRAMES_AHEAD && ends[which].happens == breaks_a_rule) return; /* it may */
  choose(way);
  begin(which, memory, way);
  int fd = has_fd(way) ? ringcast_writer_room_fd(writer) : -1;
  fill_memory(memory);
  ck_ended(which, wait_by(way, fd, reserve, ends[which].happens, ends[which].in_slices));
  end();
}

/* ---- Somebody dies beside the reader in the way ---------------------------------------------- */

static pid_t victim;

static void another_dies(void) { kill_child(victim); }

/* The one in the way may be waiting for the dead one, wherever that one is: as far behind, or with
 * nothing left to read. */
LOOP_TEST(a_death_beside_the_reader_in_the_way_is_found, 0, 2 * 2 * WAYS) {
  const bool evicts = _i % 2, has_read_all = _i / 2 % 2;
  enum way way = (enum way)(_i / 4);
  choose(way);
  writer = writer_of(.capacity = 4096, .readers = 4, .spin_ns = spin_of(way),
                     .on_death = evicts ? RINGCAST_EVICT : RINGCAST_FAIL);
  bytes = 1500;
  reader = attach(writer);
  int fd = has_fd(way) ? ringcast_writer_room_fd(writer) : -1;
  if (!has_read_all) victim = start_reader(writer);
  fill_memory(RING);
  if (has_read_all) victim = start_reader(writer);
  if (evicts) { /* the wait goes on: until it is found, it can't end otherwise */
    another_dies();
    while (ringcast_writer_peers(writer, NULL, 0) == 2) ck_assert_int_eq(reserve(0), -EAGAIN);
    ck_assert_int_eq(wait_by(way, fd, reserve, reads, false), 0);
  } else {
    ck_assert_int_eq(wait_by(way, fd, reserve, another_dies, true), -EOWNERDEAD);
    ck_says("'rank 2'");
    ck_says("has died");
  }
  ck_assert_int_eq(ringcast_reader_check(reader), 0);
  ck_told(writer, RINGCAST_PEER_DEAD, victim);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

/* ---- A reader, or a tap, waits for a frame --------------------------------------------------- */

enum { ONE, GROUP, TAP, READS_BY };

static struct {
  char handle[RINGCAST_HANDLE_BYTES];
  struct gate made, commits, committed, closes;
} sender;

static ringcast_tap *tap;
static int reads_by;
static struct ringcast_frame frame;

static void send(ringcast_writer *to, uint64_t number) {
  struct ringcast_span span;
  child_must(ringcast_writer_reserve(to, bytes, RINGCAST_FOREVER, &span) == 0);
  pattern_fill(span.data, bytes, number);
  child_must(ringcast_writer_commit(to, bytes, (uint16_t)number) == 0);
}

/* Sends a frame, two more when it is told to, and has a fourth open until it is told to close. */
static void be_a_writer(void *nothing) {
  (void)nothing;
  struct ringcast_span span;
  ringcast_writer *own = writer_of(.capacity = 65536, .spill_bytes = 64 * MIB);
  child_must(write(sender.made.ends[1], ringcast_writer_handle(own), 96) == 96);
  child_must(ringcast_writer_wait_readers(own, reads_by == TAP ? 0 : 1, RINGCAST_FOREVER) >= 0);
  gate_wait(&sender.commits);
  for (uint64_t number = 0; number < 3; number++) send(own, number);
  child_must(ringcast_writer_reserve(own, bytes + 1000, RINGCAST_FOREVER, &span) == 0);
  memset(span.data, 0xff, bytes + 1000);
  gate_open(&sender.committed);
  gate_wait(&sender.closes);
  ringcast_writer_close(own);
}

static int next(int64_t timeout_ns) {
  if (reads_by == TAP) return ringcast_tap_next(tap, timeout_ns, &frame);
  if (reads_by == ONE) return ringcast_reader_next(reader, timeout_ns, &frame);
  int count = ringcast_reader_next_many(reader, timeout_ns, &frame, 1);
  return count == 1 ? 0 : count;
}

static void writer_commits(void) { gate_open(&sender.commits); }
static void writer_closes(void) { gate_open(&sender.closes); }
static void reader_cancels(void) { ringcast_reader_cancel(reader); }

static void ck_frame(uint64_t number) {
  ck_assert_uint_eq(frame.kind, number);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert(pattern_matches(frame.data, bytes, number));
  if (reads_by == ONE) ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  if (reads_by == GROUP) ck_assert_int_eq(ringcast_reader_release_many(reader, &frame, 1), 0);
}

static const struct {
  void (*happens)(void);
  int result;
  const char *word;
  bool in_slices, before; /* before what was committed is read */
} ends_of_reading[] = {{writer_closes, -EPIPE, "gone", false, false},
                       {writer_closes, -EPIPE, "gone", false, true},
                       {dies, -EPIPE, "gone", true, false},
                       {dies, -EPIPE, "gone", true, true},
                       {reader_cancels, -ECANCELED, "cancelled", false, false}};
enum { ENDS_OF_READING = sizeof ends_of_reading / sizeof *ends_of_reading };

/* The frames that are whole, and then the end. */
LOOP_TEST(a_wait_for_a_frame_ends, 0, ENDS_OF_READING *READS_BY * 2 * WAYS) {
  const int which = _i / WAYS / 2 / READS_BY;
  enum way way = (enum way)(_i % WAYS);
  ringcast_reader *late = NULL;
  reads_by = _i / WAYS / 2 % READS_BY;
  bytes = _i / WAYS % 2 ? 4 * MIB : 1000;
  if (reads_by == TAP && (way > ASLEEP || bytes > 1000)) return; /* without readers nothing stays */
  if (ends_of_reading[which].happens == reader_cancels && (way == BY_TRIES || reads_by == TAP))
    return;
  choose(way);
  for (struct gate *gate = &sender.made; gate <= &sender.closes; gate++) *gate = gate_make();
  child = start_child(be_a_writer, NULL);
  ck_assert_int_eq(read(sender.made.ends[0], sender.handle, 96), 96);
  if (reads_by == TAP) ck_assert_int_eq(ringcast_tap_attach(sender.handle, &tap), 0);
  else reader = reader_at(sender.handle, .spin_ns = spin_of(way));
  int fd = has_fd(way) ? ringcast_reader_fd(reader) : -1;
  const bool in_slices = ends_of_reading[which].in_slices || reads_by == TAP;
  ck_assert_int_eq(wait_by(way, fd, next, writer_commits, reads_by == TAP), 0);
  ck_frame(0);
  gate_wait(&sender.committed);
  if (ends_of_reading[which].before) ends_of_reading[which].happens();
  for (uint64_t number = 1; number < 3; number++) {
    ck_assert_int_eq(next(RINGCAST_FOREVER), 0);
    ck_frame(number);
  }
  int result = ends_of_reading[which].before
                   ? next(RINGCAST_FOREVER)
                   : wait_by(way, fd, next, ends_of_reading[which].happens, in_slices);
  ck_assert_int_eq(result, ends_of_reading[which].result);
  ck_says(ends_of_reading[which].word);
  ck_assert_int_eq(next(result == -EPIPE ? 0 : RINGCAST_FOREVER), result);
  kill_child(child);
  ck_assert_int_eq(ringcast_reader_attach(sender.handle, &late), -ENOENT);
  if (reads_by == TAP) ringcast_tap_close(tap);
  else ringcast_reader_close(reader);
  for (struct gate *gate = &sender.made; gate <= &sender.closes; gate++) gate_free(gate);
}

RUN_TESTS("channel, deaths", remember, nothing_is_left)
