/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "scenarios.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/sum.h"

enum { WORD = sizeof(uint64_t), BATCH = 256, SMALL = 64, LEAST = 10, LOOK = 64 };

/* The number of the last message has the bit LAST. A run longer than LONG_NS ends early, as a loaded machine may take a
 * thousand times as long as an idle machine. */
#define LAST ((uint64_t)1 << 63)
static const int64_t LONG_NS = 2000000000;

/* ---- Facts ------------------------------------------------------------------------------------------------------ */

struct scenario {
  const char *name;
  int64_t period_ns;
  void (*writes)(struct member *member);
  void (*reads)(struct member *member);
};

static const struct scenario *find(const char *name);

bool scenario_exists(const char *name) { return find(name) != NULL; }
bool scenario_is(const struct peers_step *step, const char *name) { return strcmp(step->scenario, name) == 0; }
bool scenario_compares(const struct peers_step *step) { return scenario_is(step, "check"); }
bool scenario_goes_back(const struct peers_step *step) { return scenario_is(step, "one-way") && step->bytes <= SMALL; }
size_t scenario_batch(const struct peers_step *step) { return scenario_is(step, "batch") ? BATCH : 1; }
int64_t scenario_period_ns(const struct peers_step *step) { return find(step->scenario)->period_ns; }

bool scenario_streams(const struct peers_step *step) {
  return scenario_is(step, "stream") || scenario_is(step, "batch");
}

const char *scenario_refuses(const struct way *way, const struct peers_step *step) {
  static char text[128];
  bool in_place = scenario_is(step, "in-place");
  if (way->largest && step->bytes > way->largest) {
    snprintf(text, sizeof text, "the largest message has %zu bytes", way->largest);
    return text;
  }
  if (in_place && way->largest_in_place && step->bytes > way->largest_in_place) {
    snprintf(text, sizeof text, "the largest message in place has %zu bytes", way->largest_in_place);
    return text;
  }
  if (way->flags & WAY_ONE_READER && step->processes > 2) return "one reader only";
  if (scenario_streams(step) && way->flags & WAY_NO_QUEUE) return "no queue";
  if (in_place && (way->flags & WAY_COPYING || !(way->calls->reserve || way->calls->write_ends)))
    return "a message can't be written in place";
  return NULL;
}

/* ---- One message ------------------------------------------------------------------------------------------------ */

static void put_word(void *to, uint64_t word) { memcpy(to, &word, WORD); }

static uint64_t word_at(const void *from) {
  uint64_t word;
  memcpy(&word, from, WORD);
  return word;
}

static void send_copied(struct member *member, struct end *end, uint64_t number) {
  put_word(member->source, number);
  end->way->calls->write(end, member->source, end->bytes);
}

static void send_in_place(struct end *end, uint64_t number) {
  if (end->way->calls->write_ends) {
    end->way->calls->write_ends(end, number, end->bytes);
    return;
  }
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
  if (got != expected) peers_die(end, "message %" PRIu64 " came in place of message %" PRIu64, got, expected);
}

/* Reads every byte. */
static void check_contents(const struct member *member, const struct end *end, const uint8_t *data, uint64_t number) {
  if (sum_bytes(data, end->bytes) == member->sum + number) return;
  expect(end, word_at(data), number);
  peers_die(end, "message %" PRIu64 " has other contents than were written", number);
}

static void check_ends(const struct end *end, const uint8_t *data, uint64_t number) {
  expect(end, word_at(data), number);
  expect(end, word_at(data + end->bytes - WORD), number);
}

/* ---- One message in flight -------------------------------------------------------------------------------------- */

static bool all_have_read(const struct member *member, uint64_t messages) {
  for (uint32_t rank = 1; rank < member->there.processes; rank++)
    if (atomic_load_explicit(&member->board->seats[rank].read, memory_order_acquire) < messages) return false;
  return true;
}

static void await_readers(const struct member *member, uint64_t messages) {
  while (!all_have_read(member, messages)) peers_relax(member->there.oversubscribed);
}

static void sleep_until(int64_t due) {
  struct timespec at = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) continue;
}

/* LAST if message `number` is to be the last of the run begun at `start`, else 0. */
static uint64_t last_of(const struct member *member, uint64_t number, int64_t start) {
  const struct peers_step *step = &member->board->step;
  if (number + 1 == step->warm_up + step->messages) return LAST;
  if (number < step->warm_up + LEAST || scenario_period_ns(step) > 0) return 0;
  return clock_ns() - start > LONG_NS ? LAST : 0;
}

/* The column's entry of message `number`, or, for the warm-up, a place without a reader. */
static int64_t *entry(const struct member *member, uint32_t column, uint64_t number) {
  static int64_t ignored;
  uint64_t warm_up = member->board->step.warm_up;
  return number < warm_up ? &ignored : board_column(member->board, column) + (number - warm_up);
}

/* Until the next message is due and all readers have read the message before. The writer sleeps first: looks at the
 * board would cost time for which the way is not responsible. A message that is late is put off by a period: the writer
 * has slept for a period before every message, also after a member was held up. */
static void await_due(const struct member *member, uint64_t number, int64_t *due) {
  int64_t period = scenario_period_ns(&member->board->step);
  for (bool ready = false; !ready;) {
    int64_t now = clock_ns();
    if (*due < now) *due = now + period;
    sleep_until(*due);
    ready = all_have_read(member, number);
    if (!ready) await_readers(member, number);
  }
  *due += period;
}

static void await_turn(struct member *member, uint64_t number, int64_t *due) {
  if (number == member->board->step.warm_up) {
    await_readers(member, number);
    member_start_measuring(member);
  }
  if (scenario_period_ns(&member->board->step) > 0) await_due(member, number, due);
  else await_readers(member, number);
}

static void write_one(struct member *member, uint64_t n, uint64_t last) {
  int64_t *started = entry(member, COLUMN_STARTED, n), *written = entry(member, COLUMN_WRITTEN, n);
  bool in_place = scenario_is(&member->board->step, "in-place");
  int64_t start = board_ticks(member->board);
  if (in_place) send_in_place(&member->there, n | last);
  else send_copied(member, &member->there, n | last);
  *written = board_ticks(member->board);
  *started = start;
}

static void write_one_by_one(struct member *member) {
  const struct peers_step *step = &member->board->step;
  int64_t start = clock_ns(), due = start + scenario_period_ns(step);
  uint64_t last = 0, n = 0;
  for (; !last; n++) {
    last = last_of(member, n, start);
    await_turn(member, n, &due);
    write_one(member, n, last);
  }
  member->board->measured = n - step->warm_up;
  await_readers(member, n);
}

static void read_one_by_one(struct member *member) {
  const struct peers_step *step = &member->board->step;
  struct end *end = &member->there;
  bool in_place = scenario_is(step, "in-place");
  uint64_t last = 0;
  for (uint64_t n = 0; !last; n++) {
    int64_t *read = entry(member, COLUMN_READ + end->rank, n);
    if (n == step->warm_up) member_start_measuring(member);
    const uint8_t *data = receive(end);
    last = word_at(data) & LAST;
    if (in_place) check_ends(end, data, n | last);
    else check_contents(member, end, data, n | last);
    *read = board_ticks(member->board);
    release(end);
    atomic_store_explicit(&member->seat->read, n + 1, memory_order_release);
  }
}

/* ---- There and back --------------------------------------------------------------------------------------------- */

static void ping(struct member *member) {
  int64_t began = clock_ns();
  uint64_t last = 0, n = 0;
  for (; !last; n++) {
    last = last_of(member, n, began);
    int64_t start = board_ticks(member->board);
    send_copied(member, &member->there, n | last);
    check_contents(member, &member->back, receive(&member->back), n | last);
    *entry(member, COLUMN_ROUND, n) = board_ticks(member->board) - start;
    release(&member->back);
  }
  member->board->rounds = n - member->board->step.warm_up;
}

static void pong(struct member *member) {
  uint64_t last = 0;
  for (uint64_t n = 0; !last; n++) {
    const uint8_t *data = receive(&member->there);
    last = word_at(data) & LAST;
    check_contents(member, &member->there, data, n | last);
    send_copied(member, &member->back, n | last);
    release(&member->there);
  }
}

static void write_one_way(struct member *member) {
  write_one_by_one(member);
  if (member->board->both) ping(member);
}

static void read_one_way(struct member *member) {
  read_one_by_one(member);
  if (member->board->both) pong(member);
}

/* ---- Back to back ----------------------------------------------------------------------------------------------- */

/* The first message after the warm-up starts the clock, when all readers have read the warm-up. */
static void begin_stream(struct member *member, uint64_t number) {
  if (number != member->board->step.warm_up) return;
  await_readers(member, number);
  member_start_measuring(member);
  *board_column(member->board, COLUMN_STARTED) = board_ticks(member->board);
}

/* A look at the clock costs as much as a small message. */
static uint64_t last_of_stream(const struct member *member, uint64_t number, int64_t start) {
  const struct peers_step *step = &member->board->step;
  bool looks = number % LOOK == 0 || step->bytes > SMALL || number + 1 == step->warm_up + step->messages;
  return looks ? last_of(member, number, start) : 0;
}

/* The writer has written the last message. */
static void say_sent(struct member *member, uint64_t messages) {
  member->board->measured = messages - member->board->step.warm_up;
  atomic_store_explicit(&member->board->sent, messages, memory_order_release);
}

static void write_stream(struct member *member) {
  int64_t start = clock_ns();
  uint64_t last = 0, n = 0;
  for (; !last; n++) {
    last = last_of_stream(member, n, start);
    begin_stream(member, n);
    send_copied(member, &member->there, n | last);
  }
  say_sent(member, n);
}

static bool was_all_sent(const struct member *member, uint64_t messages) {
  uint64_t sent = atomic_load_explicit(&member->board->sent, memory_order_acquire);
  return sent > 0 && messages >= sent;
}

struct taking {
  struct member *member;
  uint64_t next; /* number */
  bool done;     /* the last message was taken */
};

/* In a lossy way, a message older than the one before counts as lost: the writer had overtaken the reader. */
static void count_gap(struct member *member, uint64_t got, uint64_t *next) {
  bool lossless = member->there.way->flags & WAY_LOSSLESS;
  if (got < *next && !lossless) return;
  if (got < *next) peers_die(&member->there, "message %" PRIu64 " came after message %" PRIu64, got, *next - 1);
  if (got != *next && lossless)
    peers_die(&member->there, "%" PRIu64 " messages were lost before message %" PRIu64, got - *next, got);
  if (*next >= member->board->step.warm_up) member->seat->lost += got - *next;
  *next = got + 1;
}

/* Reads every byte. A lossy way may overwrite a message during the read: then the number is no more to be trusted than
 * the contents, the message counts as the expected one, and the board tells whether it was the last. */
static void take(struct taking *taking, const uint8_t *data) {
  struct member *member = taking->member;
  uint64_t word = word_at(data), number = word & ~LAST;
  bool whole = sum_bytes(data, member->there.bytes) == member->sum + word;
  if (!whole && member->there.way->flags & WAY_LOSSLESS)
    peers_die(&member->there, "message %" PRIu64 " has other contents than were written", number);
  if (!whole && taking->next >= member->board->step.warm_up) member->seat->torn++;
  if (!whole) number = taking->next;
  count_gap(member, number, &taking->next);
  if (whole ? (word & LAST) != 0 : was_all_sent(member, taking->next)) taking->done = true;
}

/* The reader says on the board: the warm-up is read. */
static void say_read(struct member *member, uint64_t before, uint64_t next) {
  uint64_t warm_up = member->board->step.warm_up;
  if (before >= warm_up || next < warm_up) return;
  member_start_measuring(member);
  atomic_store_explicit(&member->seat->read, warm_up, memory_order_release);
}

static void take_polled(void *context, const void *data, size_t bytes) {
  (void)bytes;
  take(context, data);
}

/* One message, or as many as the way gives to a callback. */
static void take_some(struct taking *taking) {
  struct end *end = &taking->member->there;
  if (end->way->calls->poll) {
    end->way->calls->poll(end, take_polled, taking);
    return;
  }
  take(taking, receive(end));
  release(end);
}

static void read_stream(struct member *member) {
  struct taking taking = {.member = member};
  for (uint64_t before = 0; !taking.done; before = taking.next) {
    take_some(&taking);
    say_read(member, before, taking.next);
  }
  member->seat->end = board_ticks(member->board);
}

/* ---- In batches ------------------------------------------------------------------------------------------------- */

static void write_batches(struct member *member) {
  struct end *end = &member->there;
  int64_t start = clock_ns();
  uint64_t last = 0, n = 0;
  if (!end->way->calls->write_many) {
    write_stream(member);
    return;
  }
  for (; !last; n += BATCH) {
    last = last_of(member, n + BATCH - 1, start);
    begin_stream(member, n);
    for (uint64_t i = 0; i < BATCH; i++) put_word(member->source + i * end->bytes, n + i);
    put_word(member->source + (BATCH - 1) * end->bytes, (n + BATCH - 1) | last);
    end->way->calls->write_many(end, member->source, end->bytes, BATCH);
  }
  say_sent(member, n);
}

static void read_batches(struct member *member) {
  const struct way_calls *calls = member->there.way->calls;
  struct taking taking = {.member = member};
  const void *data[BATCH];
  if (!calls->read_many) {
    read_stream(member);
    return;
  }
  for (uint64_t before = 0; !taking.done; before = taking.next) {
    size_t count = calls->read_many(&member->there, data, BATCH);
    for (size_t i = 0; i < count; i++) take(&taking, data[i]);
    if (calls->release_many) calls->release_many(&member->there);
    say_read(member, before, taking.next);
  }
  member->seat->end = board_ticks(member->board);
}

/* ---- Every byte compared ---------------------------------------------------------------------------------------- */

/* Every second message by reserve and commit, where the way has both calls and the message is not too large. */
static void write_checked(struct member *member) {
  const struct peers_step *step = &member->board->step;
  struct end *end = &member->there;
  const struct way_calls *calls = end->way->calls;
  size_t largest = calls->reserve ? end->way->largest_in_place ? end->way->largest_in_place : SIZE_MAX : 0;
  for (uint64_t n = 0; n < step->messages; n++) {
    await_readers(member, n);
    put_word(member->source, n);
    if (n % 2 == 1 && end->bytes <= largest) {
      memcpy(calls->reserve(end, end->bytes), member->source, end->bytes);
      calls->commit(end, end->bytes);
    } else {
      calls->write(end, member->source, end->bytes);
    }
  }
  await_readers(member, step->messages);
}

static void read_checked(struct member *member) {
  struct end *end = &member->there;
  for (uint64_t n = 0; n < member->board->step.messages; n++) {
    const uint8_t *data = receive(end);
    put_word(member->source, n);
    expect(end, word_at(data), n);
    for (size_t i = 0; i < end->bytes; i++)
      if (data[i] != member->source[i]) peers_die(end, "byte %zu of message %" PRIu64 " is wrong", i, n);
    release(end);
    atomic_store_explicit(&member->seat->read, n + 1, memory_order_release);
  }
}

/* ---- The table -------------------------------------------------------------------------------------------------- */

static const struct scenario scenarios[] = {
    {"one-way", 0, write_one_way, read_one_way},
    {"in-place", 0, write_one_by_one, read_one_by_one},
    {"stream", 0, write_stream, read_stream},
    {"batch", 0, write_batches, read_batches},
    {"every5", 5000000, write_one_by_one, read_one_by_one},
    {"every25", 25000000, write_one_by_one, read_one_by_one},
    {"idle", 10000000000, write_one_by_one, read_one_by_one},
    {"check", 0, write_checked, read_checked},
};

static const struct scenario *find(const char *name) {
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
    if (strcmp(scenarios[i].name, name) == 0) return &scenarios[i];
  return NULL;
}

void scenario_run(struct member *member) {
  const struct scenario *scenario = find(member->board->step.scenario);
  (member->there.rank == member->there.writer ? scenario->writes : scenario->reads)(member);
}
