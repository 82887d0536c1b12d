/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process (or thread) of a run, and its work:
 *   one-way     one message in flight: the writer starts the next when all readers have said on the
 *               board that they have read
 *   round-trip  there and back, through two streams: without the board, whose lines disturb the
 *               way's lines
 *   in-place    as one-way, but only the first and last word of a message are written, and read,
 *               where the message lies
 *   stream      messages back to back
 *   every25, idle   as one-way, with a message every 25 ms, 10 s
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "board.h"

enum { WORD = sizeof(uint64_t), LEAST = 10, LOOK = 64 };

/* The number of the last message has the bit LAST. A run longer than LONG_NS ends early, as a
 * loaded machine may take a thousand times as long as an idle one. */
#define LAST ((uint64_t)1 << 63)
static const int64_t LONG_NS = 2000000000;

struct member {
  struct board *board;
  struct peers_seat *seat;
  struct end there, back; /* back: the stream from rank 1 to rank 0, if board->both */
  uint8_t *source;        /* the contents to write */
  uint64_t sum;           /* of a message with the number 0 */
  double cpu_before;      /* when the warm-up ended */
};

struct scenario {
  const char *name;
  int64_t period_ns; /* 0: no clock */
  void (*writes)(struct member *member);
  void (*reads)(struct member *member);
};

static const struct scenario *find(const char *name);

static int64_t period_of(const struct member *member) {
  return find(member->board->step.scenario)->period_ns;
}

/* ---- One message ----------------------------------------------------------------------------- */

static void put_word(void *to, uint64_t word) { memcpy(to, &word, WORD); }

static uint64_t word_at(const void *from) {
  uint64_t word;
  memcpy(&word, from, WORD);
  return word;
}

/* Messages have a whole number of words. */
static uint64_t sum_of(const uint8_t *data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at + WORD <= bytes; at += WORD) sum += word_at(data + at);
  return sum;
}

static void fill(uint8_t *data, size_t bytes) {
  memset(data, 0, WORD);
  for (size_t i = WORD; i < bytes; i++) data[i] = (uint8_t)(i * 131 + 7 + (i >> 12));
}

static void send_copied(struct member *member, struct end *end, uint64_t number) {
  put_word(member->source, number);
  end->way->calls->write(end, member->source, end->bytes);
}

static void send_in_place(struct end *end, uint64_t number) {
  uint8_t *data = end->way->calls->reserve(end, end->bytes);
  put_word(data, number);
  put_word(data + end->bytes - WORD, number);
  end->way->calls->commit(end, end->bytes);
}

static const uint8_t *receive(struct end *end) {
  size_t bytes = 0;
  const uint8_t *data = end->way->calls->read(end, &bytes);
  if (bytes != end->bytes) peers_die(end, "a message has %zu bytes, not %zu", bytes, end->bytes);
  return data;
}

static void release(struct end *end) {
  if (end->way->calls->release) end->way->calls->release(end);
}

static void expect(const struct end *end, uint64_t got, uint64_t expected) {
  if (got == expected) return;
  peers_die(end, "message %" PRIu64 " was to come, and message %" PRIu64 " came", expected & ~LAST,
            got & ~LAST);
}

/* Reads every byte; of a message in place, the ends. */
static void check(const struct member *member, const struct end *end, const uint8_t *data,
                  uint64_t number) {
  expect(end, word_at(data), number);
  if (end->in_place) expect(end, word_at(data + end->bytes - WORD), number);
  else if (sum_of(data, end->bytes) != member->sum + number)
    peers_die(end, "message %" PRIu64 " has other contents than were written", number & ~LAST);
}

/* ---- Time ------------------------------------------------------------------------------------ */

/* Of the process, or of the thread if the members are threads; with the way's helper processes. */
static double cpu_seconds(const struct member *member) {
  const struct end *end = &member->there;
  struct rusage used;
  getrusage(end->way->flags & WAY_IN_PROCESS ? RUSAGE_THREAD : RUSAGE_SELF, &used);
  double helpers = end->way->calls->helpers_cpu_s ? end->way->calls->helpers_cpu_s(end) : 0;
  return helpers + (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

/* The warm-up is over: the time and the CPU time so far do not count. */
static void start_measuring(struct member *member) {
  member->seat->begin = clock_ns();
  member->cpu_before = cpu_seconds(member);
}

static void stop_measuring(struct member *member) {
  member->seat->cpu_s = cpu_seconds(member) - member->cpu_before;
  member->seat->finish = clock_ns();
}

/* LAST if message `number` is to be the last of the run begun at `start`, else 0. */
static uint64_t last_of(const struct member *member, uint64_t number, int64_t start) {
  const struct peers_step *step = &member->board->step;
  if (number + 1 == step->warm_up + step->messages) return LAST;
  if (number < step->warm_up + LEAST || period_of(member) > 0) return 0;
  return clock_ns() - start > LONG_NS ? LAST : 0;
}

static bool all_have_read(const struct member *member, uint64_t messages) {
  const struct peers_seat *seats = member->board->seats;
  for (uint32_t rank = 1; rank < member->there.processes; rank++)
    if (atomic_load_explicit(&seats[rank].read, memory_order_acquire) < messages) return false;
  return true;
}

static void await_readers(const struct member *member, uint64_t messages) {
  while (!all_have_read(member, messages)) peers_relax(member->there.oversubscribed);
}

static void say_read(struct member *member, uint64_t messages) {
  atomic_store_explicit(&member->seat->read, messages, memory_order_release);
}

/* Until the next message is due and all readers have read the message before. A message that is
 * late is put off by a period: the writer has slept for a period before every message. */
static void await_due(const struct member *member, uint64_t number, int64_t *due) {
  for (bool ready = false; !ready; ready = all_have_read(member, number)) {
    int64_t now = clock_ns();
    if (*due < now) *due = now + period_of(member);
    struct timespec at = {.tv_sec = *due / 1000000000, .tv_nsec = *due % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) continue;
  }
  *due += period_of(member);
}

/* ---- One message in flight ------------------------------------------------------------------- */

/* The column's entry of message `number`, or, for the warm-up, a place without a reader. */
static int64_t *entry(const struct member *member, uint32_t column, uint64_t number) {
  static int64_t ignored;
  uint64_t warm_up = member->board->step.warm_up;
  if (number < warm_up) return &ignored;
  return board_column(member->board, column) + (number - warm_up);
}

static void write_one_by_one(struct member *member) {
  struct end *end = &member->there;
  uint64_t last = 0, n = 0, warm_up = member->board->step.warm_up;
  int64_t begun = clock_ns(), due = begun + period_of(member);
  for (; !last; n++) {
    last = last_of(member, n, begun);
    if (period_of(member) > 0) await_due(member, n, &due);
    await_readers(member, n);
    if (n == warm_up) start_measuring(member);
    int64_t start = clock_ns();
    if (end->in_place) send_in_place(end, n | last);
    else send_copied(member, end, n | last);
    *entry(member, COLUMN_WRITTEN, n) = clock_ns();
    *entry(member, COLUMN_STARTED, n) = start;
  }
  member->board->measured = n - warm_up;
  await_readers(member, n);
}

static void read_one_by_one(struct member *member) {
  struct end *end = &member->there;
  uint64_t last = 0;
  for (uint64_t n = 0; !last; n++) {
    int64_t *read = entry(member, COLUMN_READ + end->rank, n);
    if (n == member->board->step.warm_up) start_measuring(member);
    const uint8_t *data = receive(end);
    last = word_at(data) & LAST;
    check(member, end, data, n | last);
    *read = clock_ns();
    release(end);
    say_read(member, n + 1);
  }
}

/* ---- There and back: the time of blocks, as a look at the clock takes as long as a message --- */

static void ping(struct member *member) {
  uint64_t last = 0, n = 0, blocks = 0;
  int64_t begun = clock_ns(), start = begun;
  for (; !last; n++) {
    if (n % ROUNDS == ROUNDS - 1) last = last_of(member, n, begun);
    send_copied(member, &member->there, n | last);
    check(member, &member->back, receive(&member->back), n | last);
    release(&member->back);
    if (n % ROUNDS != ROUNDS - 1) continue;
    int64_t now = clock_ns();
    if (n >= member->board->step.warm_up)
      board_column(member->board, COLUMN_STARTED)[blocks++] = now - start;
    start = now;
  }
  member->board->measured = blocks * ROUNDS;
}

static void pong(struct member *member) {
  uint64_t last = 0;
  for (uint64_t n = 0; !last; n++) {
    const uint8_t *data = receive(&member->there);
    last = word_at(data) & LAST;
    check(member, &member->there, data, n | last);
    send_copied(member, &member->back, n | last);
    release(&member->there);
  }
}

/* ---- Back to back ---------------------------------------------------------------------------- */

/* The first message after the warm-up starts the clock, when all readers have read the warm-up. */
static void begin_stream(struct member *member, uint64_t number) {
  if (number != member->board->step.warm_up) return;
  await_readers(member, number);
  start_measuring(member);
}

static void write_stream(struct member *member) {
  const struct peers_step *step = &member->board->step;
  uint64_t last = 0, n = 0;
  int64_t start = clock_ns();
  for (; !last; n++) {
    if (n % LOOK == 0 || step->bytes > 64 || n + 1 == step->warm_up + step->messages)
      last = last_of(member, n, start);
    begin_stream(member, n);
    send_copied(member, &member->there, n | last);
  }
  member->board->measured = n - step->warm_up;
}

/* Message n of a stream: whether it is the last. */
static bool take(struct member *member, const uint8_t *data, uint64_t n) {
  uint64_t last = word_at(data) & LAST;
  check(member, &member->there, data, n | last);
  if (n + 1 == member->board->step.warm_up) {
    start_measuring(member);
    say_read(member, n + 1);
  }
  return last != 0;
}

static void read_stream(struct member *member) {
  bool last = false;
  for (uint64_t n = 0; !last; n++) {
    last = take(member, receive(&member->there), n);
    release(&member->there);
  }
}

static const struct scenario scenarios[] = {
    {"one-way", 0, write_one_by_one, read_one_by_one},
    {"round-trip", 0, ping, pong},
    {"in-place", 0, write_one_by_one, read_one_by_one},
    {"stream", 0, write_stream, read_stream},
    {"every25", 25000000, write_one_by_one, read_one_by_one},
    {"idle", 10000000000, write_one_by_one, read_one_by_one},
};

static const struct scenario *find(const char *name) {
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
    if (strcmp(scenarios[i].name, name) == 0) return &scenarios[i];
  return NULL;
}

bool scenario_exists(const char *name) { return find(name) != NULL; }

/* ---- A member -------------------------------------------------------------------------------- */

/* Member r runs on the CPU r % CPUs, of the CPUs allowed to the program. */
static void pin(const struct end *end) {
  cpu_set_t allowed, chosen;
  int cpu = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    peers_die(end, "can't tell the CPUs: %s", strerror(errno));
  int wanted = (int)(end->rank % (uint32_t)CPU_COUNT(&allowed));
  for (;; cpu++) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    if (wanted == 0) break;
    wanted--;
  }
  CPU_ZERO(&chosen);
  CPU_SET(cpu, &chosen);
  if (sched_setaffinity(0, sizeof chosen, &chosen) != 0)
    peers_die(end, "can't run on CPU %d: %s", cpu, strerror(errno));
}

static void make_source(struct member *member) {
  const struct end *end = &member->there;
  member->source = peers_memory(end, end->bytes);
  fill(member->source, end->bytes);
  member->sum = sum_of(member->source, end->bytes);
}

static void open_ends(struct member *member) {
  const struct way_calls *calls = member->there.way->calls;
  struct board *board = member->board;
  if (calls->open) calls->open(&member->there);
  if (calls->open && board->both) calls->open(&member->back);
  if (calls->version && member->there.rank == 0) calls->version(board->version, PEERS_TEXT);
}

static void close_ends(struct member *member) {
  const struct way_calls *calls = member->there.way->calls;
  if (calls->close && member->board->both) calls->close(&member->back);
  if (calls->close) calls->close(&member->there);
}

void member_ends(struct board *board, const struct way *way, struct end *there, struct end *back) {
  const struct peers_step *step = &board->step;
  *there =
      (struct end){.way = way, .board = board, .processes = step->processes, .bytes = step->bytes};
  there->oversubscribed = step->processes > board->cpus;
  there->in_place = strcmp(step->scenario, "in-place") == 0;
  *back = *there;
  back->writer = back->instance = 1;
  board->both = strcmp(step->scenario, "round-trip") == 0;
}

void member_run(struct board *board, const struct end *there, const struct end *back,
                uint32_t rank) {
  const struct scenario *scenario = find(board->step.scenario);
  struct member member = {
      .board = board, .seat = &board->seats[rank], .there = *there, .back = *back};
  member.there.rank = member.back.rank = rank;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(&member.there);
  make_source(&member);
  open_ends(&member);
  board_barrier(board);
  if (!there->oversubscribed) board_measure_line(board, rank, 0);
  start_measuring(&member);
  if (rank == there->writer) scenario->writes(&member);
  else scenario->reads(&member);
  stop_measuring(&member);
  board_barrier(board);
  if (!there->oversubscribed) board_measure_line(board, rank, 1);
  close_ends(&member);
  free(member.source);
}
