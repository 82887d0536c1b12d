/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/measure/trip.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/measure/walk.h"

enum { WARM = 32 };

static const int64_t SPIN_NS = 3600000000000; /* no process sleeps */

struct shared {
  _Alignas(PERF_LINE) uint64_t block; /* number of the block; written after the next three fields */
  enum trip_kind kind;
  int count;
  bool cold;
  _Alignas(PERF_LINE) uint64_t answered;
  _Alignas(PERF_LINE) uint64_t line;
  _Alignas(PERF_LINE) uint64_t there;
  _Alignas(PERF_LINE) uint64_t back;
  _Alignas(PERF_LINE) uint64_t walks;   /* of the side that answers */
  _Alignas(PERF_LINE) uint64_t handles; /* 1: `from` is set */
  char to[96], from[96];
};

struct side {
  const struct perf_options *options;
  struct shared *shared;
  ringcast_writer *out;
  ringcast_reader *in;
  uint8_t *messages[2]; /* two messages with different numbers in the first word: one is prepared
                         * while the other is on the way */
  uint64_t sum;         /* of all words but the number */
  uint64_t turn, flag, number, walks;
  struct walk walk;
  struct ringcast_span span;   /* for the next message */
  struct ringcast_frame frame; /* the last frame received */
};

struct trips {
  struct side side; /* the asking one */
  struct perf_children children;
  struct perf_clock clock;
  uint64_t stamps[TRIP_MOST + 1];
};

/* ---- The two sides ---------------------------------------------------------------------------------------------- */

static inline void await(const uint64_t *word, uint64_t value) {
  while (perf_load(word) != value) perf_relax(false);
}

/* A program that sends such small messages knows the size when the compiler runs. */
enum { USUAL = 40 };

static inline void pass(struct side *side) {
  const uint8_t *message = side->messages[side->number & 1];
  if (side->options->size == USUAL) memcpy(side->span.data, message, USUAL);
  else memcpy(side->span.data, message, side->options->size);
  perf_must(ringcast_writer_commit(side->out, side->options->size, RINGCAST_KIND_BYTES), "can't send");
}

/* Reads every byte. Not a loop over a few words: the CPU would mispredict the end of the loop after each wait, 5 ns. */
static inline bool is_right(const struct side *side, const struct ringcast_frame *frame) {
  const uint8_t *message = side->messages[side->number & 1];
  if (frame->bytes != side->options->size) return false;
  if (frame->bytes == USUAL) return memcmp(frame->data, message, USUAL) == 0;
  if (frame->bytes <= 256) return memcmp(frame->data, message, frame->bytes) == 0;
  return sum_bytes(frame->data, frame->bytes) == side->sum + side->number;
}

static inline void take(struct side *side) {
  perf_must(ringcast_reader_next(side->in, RINGCAST_FOREVER, &side->frame), "can't receive");
  if (!is_right(side, &side->frame)) perf_die("frame %llu has come damaged", (unsigned long long)side->number);
}

/* The reservation and the contents of the next message, made while a message of the other side is on the way. */
static inline void prepare_to_send(struct side *side, uint64_t number) {
  memcpy(side->messages[number & 1], &number, sizeof number);
  perf_must(ringcast_writer_reserve(side->out, side->options->size, RINGCAST_FOREVER, &side->span), "can't send");
}

static inline void release(struct side *side) {
  perf_must(ringcast_reader_release(side->in, &side->frame), "can't release");
}

/* Callers pass `kind` as a constant, so that no branch lies between two trips. */
#define ONE_KIND static inline __attribute__((always_inline)) void

ONE_KIND ping(struct side *side, int kind) {
  struct shared *shared = side->shared;
  if (kind == TRIP_RING) {
    pass(side);
    if (side->number > 0) release(side); /* the answer before */
    prepare_to_send(side, side->number + 1);
    take(side);
    side->number++;
  } else if (kind == TRIP_LINE) {
    perf_store(&shared->line, side->turn + 1);
    await(&shared->line, side->turn += 2);
  } else {
    perf_store(&shared->there, ++side->flag);
    await(&shared->back, side->flag);
  }
}

ONE_KIND pong(struct side *side, int kind) {
  struct shared *shared = side->shared;
  if (kind == TRIP_RING) {
    take(side);
    pass(side);
    release(side);
    prepare_to_send(side, side->number + 1);
    side->number++;
  } else if (kind == TRIP_LINE) {
    await(&shared->line, side->turn + 1);
    perf_store(&shared->line, side->turn += 2);
  } else {
    await(&shared->there, ++side->flag);
    perf_store(&shared->back, side->flag);
  }
}

/* Stamps the end of each `group` trips. */
ONE_KIND ping_all(struct side *side, int kind, int trips, int group, uint64_t *stamps) {
  for (int i = 0; i < trips; i += group) {
    for (int j = 0; j < group; j++) ping(side, kind);
    *stamps++ = perf_ticks();
  }
}

ONE_KIND pong_all(struct side *side, int kind, int trips) {
  for (int i = 0; i < trips; i++) pong(side, kind);
}

/* The only branch on the kind. */
static void ask(struct side *side, enum trip_kind kind, int trips, int group, uint64_t *stamps) {
  if (kind == TRIP_RING) ping_all(side, TRIP_RING, trips, group, stamps);
  else if (kind == TRIP_LINE) ping_all(side, TRIP_LINE, trips, group, stamps);
  else ping_all(side, TRIP_FLOOR, trips, group, stamps);
}

static void answer_all(struct side *side, enum trip_kind kind, int trips) {
  if (kind == TRIP_RING) pong_all(side, TRIP_RING, trips);
  else if (kind == TRIP_LINE) pong_all(side, TRIP_LINE, trips);
  else pong_all(side, TRIP_FLOOR, trips);
}

static void answer_cold(struct side *side, enum trip_kind kind) {
  for (int i = 0; i < TRIP_COLD; i++) {
    walk_once(&side->walk);
    perf_store(&side->shared->walks, ++side->walks);
    pong(side, (int)kind);
  }
}

static void make_messages(struct side *side) {
  uint64_t zero = 0;
  for (int i = 0; i < 2; i++) {
    side->messages[i] = perf_source(side->options->size);
    memcpy(side->messages[i], &zero, sizeof zero);
  }
  side->sum = sum_bytes(side->messages[0], side->options->size);
}

/* The readers after the first only read. */
static void drain(ringcast_reader *reader) {
  for (;;) {
    struct ringcast_frame frame;
    perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
    perf_must(ringcast_reader_release(reader, &frame), "can't release");
  }
}

static void answer(void *context, uint32_t index) {
  struct side side = ((struct trips *)context)->side;
  struct shared *shared = side.shared;
  side.in = perf_attach(shared->to, SPIN_NS);
  if (index > 0) drain(side.in);
  make_messages(&side);
  side.out = perf_writer(side.options, side.options->capacity, SPIN_NS);
  strncpy(shared->from, ringcast_writer_handle(side.out), sizeof shared->from - 1);
  prepare_to_send(&side, 0);
  perf_store(&shared->handles, 1);
  for (uint64_t block = 1;; block++) {
    await(&shared->block, block);
    enum trip_kind kind = shared->kind;
    int count = shared->count;
    bool cold = shared->cold;
    perf_store(&shared->answered, block);
    cold ? answer_cold(&side, kind) : answer_all(&side, kind, WARM + count);
  }
}

/* ---- Blocks ----------------------------------------------------------------------------------------------------- */

static void command(struct shared *shared, enum trip_kind kind, int count, bool cold) {
  shared->kind = kind;
  shared->count = count;
  shared->cold = cold;
  perf_store(&shared->block, shared->block + 1);
  await(&shared->answered, shared->block);
}

static double one_way(const struct trips *trips, uint64_t ticks, int count) {
  return fmax(0, ((double)ticks * trips->clock.ns_per_tick - trips->clock.cost_ns) / (2 * count));
}

void trips_run(struct trips *trips, enum trip_kind kind, int count, int group, double *ns) {
  uint64_t *stamps = trips->stamps;
  command(trips->side.shared, kind, count, false);
  ask(&trips->side, kind, WARM, WARM, stamps);
  stamps[0] = perf_ticks();
  ask(&trips->side, kind, count, group, stamps + 1);
  for (int i = 0; i < count / group; i++) ns[i] = one_way(trips, stamps[i + 1] - stamps[i], group);
}

void trips_run_cold(struct trips *trips, enum trip_kind kind, double *ns) {
  struct side *side = &trips->side;
  command(side->shared, kind, 0, true);
  for (int i = 0; i < TRIP_COLD; i++) {
    walk_once(&side->walk);
    await(&side->shared->walks, ++side->walks);
    uint64_t start = perf_ticks();
    ping(side, (int)kind);
    ns[i] = one_way(trips, perf_ticks() - start, 1);
  }
}

/* ---- Making and destroying -------------------------------------------------------------------------------------- */

struct trips *trips_make(const struct perf_options *options) {
  struct trips *trips = calloc(1, sizeof *trips);
  if (!trips) perf_die("no memory");
  struct side *side = &trips->side;
  *side = (struct side){.options = options, .shared = perf_shared(sizeof(struct shared))};
  if (options->cold) walk_make(&side->walk, options->cold_bytes);
  side->out = perf_writer(options, options->capacity, SPIN_NS);
  strncpy(side->shared->to, ringcast_writer_handle(side->out), sizeof side->shared->to - 1);
  for (uint32_t i = 0; i < options->readers; i++)
    perf_start(&trips->children, options, options->readers + 1, answer, trips);
  perf_pin(perf_cpu_of(options, 0, options->readers + 1));
  make_messages(side);
  trips->clock = perf_clock_measure();
  await(&side->shared->handles, 1);
  side->in = perf_attach(side->shared->from, SPIN_NS);
  perf_must(ringcast_writer_wait_readers(side->out, options->readers, RINGCAST_FOREVER), "the readers do not come");
  prepare_to_send(side, 0);
  return trips;
}

void trips_destroy(struct trips *trips) {
  struct side *side = &trips->side;
  perf_stop(&trips->children);
  perf_unpin(side->options);
  for (int i = 0; i < 2; i++) free(side->messages[i]);
  walk_destroy(&side->walk);
  ringcast_reader_close(side->in);
  ringcast_writer_close(side->out);
  perf_unshare(side->shared, sizeof *side->shared);
  free(trips);
}

const struct perf_clock *trips_clock(const struct trips *trips) { return &trips->clock; }

struct ringcast_info trips_info(const struct trips *trips) {
  struct ringcast_info info = {.size = sizeof info};
  perf_must(ringcast_writer_info(trips->side.out, &info), "no facts of the ring");
  return info;
}
