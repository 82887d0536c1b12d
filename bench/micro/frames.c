/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of the contents of a frame. One process on one CPU sends and receives: no line moves to
 * another core, so the cases show the work and the copies.
 *   codec     builds a dict of tensors and numbers in the caller's memory, or reads the dict
 *   estimate  a value of unknown size: written into a reservation by estimate; or measured by a
 *             first write; or written to private memory, and sent
 *   packed    the dict goes to three rings: built in each, or built once and sent; and the sends
 *             alone
 *   compose   a kernel makes an array, and a second kernel reads the array: in the frame, or in the
 *             caller's arrays, with a copy in and a copy out; and the kernels alone
 */
#include "bench/micro/cases.h"

#include <stdlib.h>
#include <string.h>

#include "ringcast/estimate.h"
#include "ringcast/frame.h"
#include "tools/measure/perf.h"

enum {
  KI = 1 << 10,
  MI = 1 << 20,
  RINGS = 3,
  TENSORS = 6,
  NUMBERS = 6,
  TENSOR_BYTES = 256,
  RECORDS = 1500
};

struct frames {
  ringcast_writer *writers[RINGS];
  ringcast_reader *readers[RINGS];
  uint32_t *input, *result, *copy;
  uint8_t *memory;
  size_t room, packed; /* bytes of the memory, and of the dict in it */
  uint64_t sum;        /* of the bytes read: without a sum the compiler omits the reading */
};

static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!memory) perf_die("no memory");
  memset(memory, 1, bytes); /* the pages are there */
  return memory;
}

/* `self->bytes`: the size of an array. */
static void *set_up(const struct bench_case *self) {
  static struct frames frames;
  const uint64_t ring = self->bytes * 4 > 8 * MI ? 8 * MI : 4 * MI;
  frames = (struct frames){.room = 64 * KI};
  bench_pin();
  for (int i = 0; i < RINGS; i++) {
    struct ringcast_writer_options options = {
        .size = sizeof options, .readers = 1, .capacity = ring};
    perf_must(ringcast_writer_create_ex(&options, &frames.writers[i]), "can't make a ring");
    perf_must(ringcast_reader_attach(ringcast_writer_handle(frames.writers[i]), &frames.readers[i]),
              "can't attach");
  }
  frames.memory = allocate(frames.room);
  frames.input = allocate(self->bytes);
  frames.result = allocate(self->bytes);
  frames.copy = allocate(self->bytes);
  return &frames;
}

static double tear_down(void *state) {
  struct frames *frames = state;
  bench_unpin();
  for (int i = 0; i < RINGS; i++) {
    ringcast_reader_close(frames->readers[i]);
    ringcast_writer_close(frames->writers[i]);
  }
  free(frames->memory);
  free(frames->input);
  free(frames->result);
  free(frames->copy);
  return 0;
}

static struct ringcast_frame next(struct frames *frames, int ring) {
  struct ringcast_frame frame;
  perf_must(ringcast_reader_next(frames->readers[ring], RINGCAST_FOREVER, &frame), "can't receive");
  return frame;
}

static void release(struct frames *frames, int ring, const struct ringcast_frame *frame) {
  perf_must(ringcast_reader_release(frames->readers[ring], frame), "can't release");
}

static void pass(struct frames *frames, int ring) {
  struct ringcast_frame frame = next(frames, ring);
  release(frames, ring, &frame);
}

/* ---- Codec ----------------------------------------------------------------------------------- */

static const int64_t shape[] = {TENSOR_BYTES / 4};

static struct ringcast_frame_plan plan_dict(void) {
  struct ringcast_frame_plan plan = {0};
  for (int i = 0; i < TENSORS; i++) ringcast_plan_tensor(&plan, 7, 1, TENSOR_BYTES);
  for (int i = 0; i < NUMBERS; i++) ringcast_plan_item(&plan, 7, 0);
  return plan;
}

static size_t build(const struct frames *frames, const struct ringcast_frame_plan *plan,
                    void *memory, size_t room) {
  const struct ringcast_tensor tensor = {
      .data = frames->input, .dtype = {1, 32, 1}, .ndim = 1, .shape = shape};
  struct ringcast_frame_builder builder;
  char key[] = "tensor0";
  size_t bytes;
  perf_must(ringcast_build_begin(&builder, memory, room, plan, RINGCAST_ROOT_DICT, 0),
            "can't build");
  for (int i = 0; i < TENSORS; i++, key[6]++)
    perf_must(ringcast_build_tensor(&builder, key, 7, &tensor), "can't build");
  memcpy(key, "number0", sizeof key);
  for (int i = 0; i < NUMBERS; i++, key[6]++)
    perf_must(ringcast_build_scalar(&builder, RINGCAST_ITEM_INT, key, 7, i), "can't build");
  perf_must(ringcast_build_end(&builder, &bytes), "can't build");
  return bytes;
}

static uint64_t read_dict(const void *data, size_t bytes) {
  struct ringcast_frame_reader content;
  struct ringcast_item item;
  uint64_t sum = 0;
  perf_must(ringcast_frame_open(&content, data, bytes), "can't open");
  for (uint32_t i = 0; i < content.count; i++) {
    perf_must(ringcast_frame_item(&content, i, &item), "can't read");
    sum += item.kind == RINGCAST_ITEM_TENSOR ? sum_bytes(item.data, item.bytes)
                                             : (uint64_t)item.scalar.i;
  }
  return sum;
}

static void build_once(struct frames *frames) {
  const struct ringcast_frame_plan plan = plan_dict();
  frames->packed = build(frames, &plan, frames->memory, frames->room);
}

static void write_codec(struct frames *frames, const struct bench_case *self, uint64_t i) {
  (void)self, (void)i;
  build_once(frames);
}

static void read_codec(struct frames *frames, const struct bench_case *self, uint64_t i) {
  (void)self, (void)i;
  if (frames->packed == 0) build_once(frames);
  frames->sum += read_dict(frames->memory, frames->packed);
}

/* ---- Estimates ------------------------------------------------------------------------------- */

/* 7 bits a byte. */
static size_t write_number(uint8_t *to, uint32_t number) {
  size_t bytes = 0;
  for (; number > 127; number >>= 7) to[bytes++] = (uint8_t)(number | 128);
  to[bytes++] = (uint8_t)number;
  return bytes;
}

static uint32_t number_of(uint64_t i) {
  return (uint32_t)(i * 0x9e3779b97f4a7c15u >> 35) >> i % 23;
}
static uint64_t records_of(uint64_t i) { return RECORDS + i * 37 % 200; }

static size_t measure(uint64_t i) {
  uint8_t some[8];
  size_t bytes = 0;
  for (uint64_t k = 0; k < records_of(i); k++) bytes += write_number(some, number_of(i + k));
  return bytes;
}

static size_t write_all(uint8_t *to, uint64_t i) {
  size_t bytes = 0;
  for (uint64_t k = 0; k < records_of(i); k++) bytes += write_number(to + bytes, number_of(i + k));
  return bytes;
}

static void write_estimated(struct frames *frames, const struct bench_case *self, uint64_t i) {
  ringcast_writer *writer = frames->writers[0];
  struct ringcast_span span;
  size_t bytes = 0;
  (void)self;
  perf_must(ringcast_writer_reserve(writer, RINGCAST_ESTIMATE, RINGCAST_FOREVER, &span),
            "can't reserve");
  for (uint64_t k = 0; k < records_of(i); k++) {
    if (span.bytes - bytes < 8)
      perf_must(ringcast_writer_grow(writer, 2 * span.bytes, RINGCAST_FOREVER, &span),
                "can't grow");
    bytes += write_number((uint8_t *)span.data + bytes, number_of(i + k));
  }
  perf_must(ringcast_writer_commit(writer, bytes, RINGCAST_KIND_BYTES), "can't commit");
  pass(frames, 0);
}

static void write_measured(struct frames *frames, const struct bench_case *self, uint64_t i) {
  ringcast_writer *writer = frames->writers[0];
  struct ringcast_span span;
  size_t bytes = measure(i);
  (void)self;
  perf_must(ringcast_writer_reserve(writer, bytes, RINGCAST_FOREVER, &span), "can't reserve");
  write_all(span.data, i);
  perf_must(ringcast_writer_commit(writer, bytes, RINGCAST_KIND_BYTES), "can't commit");
  pass(frames, 0);
}

static void write_and_send(struct frames *frames, const struct bench_case *self, uint64_t i) {
  size_t bytes = write_all(frames->memory, i);
  (void)self;
  perf_must(ringcast_writer_send(frames->writers[0], frames->memory, bytes, RINGCAST_KIND_BYTES,
                                 RINGCAST_FOREVER),
            "can't send");
  pass(frames, 0);
}

/* ---- One dict, three rings ------------------------------------------------------------------- */

static void pass_all(struct frames *frames) {
  for (int i = 0; i < RINGS; i++) pass(frames, i);
}

static void build_each(struct frames *frames, const struct bench_case *self, uint64_t unused) {
  struct ringcast_span span;
  (void)self, (void)unused;
  for (int i = 0; i < RINGS; i++) {
    const struct ringcast_frame_plan plan = plan_dict();
    uint64_t bytes = ringcast_plan_bytes(&plan);
    perf_must(ringcast_writer_reserve(frames->writers[i], bytes, RINGCAST_FOREVER, &span),
              "can't reserve");
    perf_must(ringcast_writer_commit(frames->writers[i], build(frames, &plan, span.data, bytes),
                                     RINGCAST_KIND_TENSORS),
              "can't commit");
  }
  pass_all(frames);
}

static void send_each(struct frames *frames) {
  for (int i = 0; i < RINGS; i++)
    perf_must(ringcast_writer_send(frames->writers[i], frames->memory, frames->packed,
                                   RINGCAST_KIND_TENSORS, RINGCAST_FOREVER),
              "can't send");
  pass_all(frames);
}

static void pack_once(struct frames *frames, const struct bench_case *self, uint64_t i) {
  (void)self, (void)i;
  build_once(frames);
  send_each(frames);
}

static void send_packed(struct frames *frames, const struct bench_case *self, uint64_t i) {
  (void)self, (void)i;
  if (frames->packed == 0) build_once(frames);
  send_each(frames);
}

/* ---- Composing ------------------------------------------------------------------------------- */

static void make(uint32_t *restrict out, const uint32_t *restrict in, size_t bytes) {
  for (size_t i = 0; i < bytes / 4; i++) out[i] = in[i] * 3 + 1;
}

static void compose_in_place(struct frames *frames, const struct bench_case *self, uint64_t i) {
  struct ringcast_span span;
  (void)i;
  perf_must(ringcast_writer_reserve(frames->writers[0], self->bytes, RINGCAST_FOREVER, &span),
            "can't reserve");
  make(span.data, frames->input, self->bytes);
  perf_must(ringcast_writer_commit(frames->writers[0], self->bytes, RINGCAST_KIND_BYTES),
            "can't commit");
  struct ringcast_frame frame = next(frames, 0);
  frames->sum += sum_bytes(frame.data, frame.bytes);
  release(frames, 0, &frame);
}

static void compose_by_copies(struct frames *frames, const struct bench_case *self, uint64_t i) {
  (void)i;
  make(frames->result, frames->input, self->bytes);
  perf_must(ringcast_writer_send(frames->writers[0], frames->result, self->bytes,
                                 RINGCAST_KIND_BYTES, RINGCAST_FOREVER),
            "can't send");
  struct ringcast_frame frame = next(frames, 0);
  memcpy(frames->copy, frame.data, frame.bytes);
  release(frames, 0, &frame);
  frames->sum += sum_bytes(frames->copy, self->bytes);
}

static void compose_nothing(struct frames *frames, const struct bench_case *self, uint64_t i) {
  (void)i;
  make(frames->result, frames->input, self->bytes);
  frames->sum += sum_bytes(frames->result, self->bytes);
}

/* ---- The table ------------------------------------------------------------------------------- */

typedef void (*step)(struct frames *frames, const struct bench_case *self, uint64_t i);

static double run(const struct bench_case *self, void *state, uint64_t iterations) {
  const step *what = self->options;
  int64_t start = perf_now_ns();
  for (uint64_t i = 0; i < iterations; i++) (*what)(state, self, i);
  return (double)(perf_now_ns() - start) * 1e-9;
}

#define CASE(name, bytes, batch, what)                                 \
  {                                                                    \
    name, bytes, batch, set_up, run, tear_down, &(const step) { what } \
  }

const struct bench_case bench_frame_cases[] = {
    CASE("codec/write", TENSORS *TENSOR_BYTES, 1000, write_codec),
    CASE("codec/read", TENSORS *TENSOR_BYTES, 1000, read_codec),
    CASE("estimate/estimated", 4 * KI, 100, write_estimated),
    CASE("estimate/measured", 4 * KI, 100, write_measured),
    CASE("estimate/written_and_sent", 4 * KI, 100, write_and_send),
    CASE("packed/built_in_each", TENSORS *TENSOR_BYTES, 100, build_each),
    CASE("packed/built_once", TENSORS *TENSOR_BYTES, 100, pack_once),
    CASE("packed/sent_again", TENSORS *TENSOR_BYTES, 100, send_packed),
    CASE("compose/in_place_1M", MI, 10, compose_in_place),
    CASE("compose/by_copies_1M", MI, 10, compose_by_copies),
    CASE("compose/kernels_1M", MI, 10, compose_nothing),
    CASE("compose/in_place_10M", 10 * MI, 10, compose_in_place),
    CASE("compose/by_copies_10M", 10 * MI, 10, compose_by_copies),
    CASE("compose/kernels_10M", 10 * MI, 10, compose_nothing),
};
const size_t bench_frame_case_count = sizeof bench_frame_cases / sizeof *bench_frame_cases;
