/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the writer's side. */
#include "tests/gpu_scenarios/world.h"

struct draft drafts[8];

/* ---- Sending ---------------------------------------------------------------------------------------------------- */

struct ringcast_tensor bytes_at(rc_cu_ptr memory, int64_t *shape) {
  return (struct ringcast_tensor){
      .data = (const void *)(uintptr_t)memory, .dtype = {1, 8, 1}, .ndim = 1, .shape = shape};
}

/* AT BYTES [xN] [pool]: of the source, N tensors; in memory that is kept with `from=LETTER`. */
long do_send(struct words *words) {
  struct ringcast_gpu_item items[8];
  int64_t shape[1] = {(int64_t)NUMBER(2)}, square[2] = {10, 10}, strides[2] = {1, 10};
  uint32_t count = words->at[3][0] == 'x' ? (uint32_t)number(words->at[3] + 1) : 1;
  const char *from = option(words, "from");
  rc_cu_ptr base = from ? drafts[letter(from)].where : has_word(words, "nowhere") ? 0 : source;
  uint32_t flags = (uint32_t)number_of(words, "flags", has_word(words, "pool") ? RINGCAST_GPU_NO_INLINE : 0);
  for (uint32_t i = 0; i < count; i++) {
    struct ringcast_tensor tensor = bytes_at(base + NUMBER(1) + (base ? ITEM_BYTES * i : 0), shape);
    if (has_word(words, "transposed")) tensor.ndim = 2, tensor.shape = square, tensor.strides = strides;
    items[i] = (struct ringcast_gpu_item){.key = "abcdefgh" + i, .key_bytes = 1, .tensor = tensor, .on_device = 1};
  }
  return ringcast_gpu_send(side.gpu_writer, items, count, 0, flags, stream, 0);
}

static long do_ring_send(struct words *words) {
  static char junk[SOURCE_BYTES];
  uint16_t kind = has_word(words, "tensors") ? RINGCAST_KIND_TENSORS : RINGCAST_KIND_BYTES;
  return ringcast_writer_send(side.writer, junk, NUMBER(1), kind, 0);
}

/* A frame by the ring, and whether the reader has been evicted by now. */
static long do_overrun(struct words *words) {
  struct words much = {.count = 3, .at = {"send", "0", "400000"}};
  (void)words;
  for (int i = 3; i <= MOST_WORDS; i++) much.at[i] = "";
  must(is_result(do_send(&much), "0|EAGAIN"));
  return ringcast_gpu_check(side.gpu_reader);
}

static long do_nothing(struct words *words) { return (void)words, 0; }

static long do_lease(struct words *words) {
  uint64_t bytes[8] = {0}, offsets[8];
  uint32_t count = (uint32_t)words->count - 2;
  struct draft *draft = DRAFT(1);
  for (uint32_t i = 0; i < count; i++) bytes[i] = NUMBER(2 + i);
  int rc = ringcast_gpu_lease(side.gpu_writer, bytes, count, offsets, &draft->lease);
  if (rc != 0) return rc;
  draft->offset = count > 0 ? offsets[0] : 0;
  must(draft->lease.generation > 0);
  for (uint32_t i = 0; i < count; i++) {
    must(offsets[i] % 256 == 0 && offsets[i] + bytes[i] <= draft->lease.base + draft->lease.bytes);
    must(i == 0 || offsets[i] >= offsets[i - 1] + bytes[i - 1]);
  }
  return 0;
}

/* A frame of one tensor that refers to that place of the pool, reserved and built. */
static size_t build_frame(const struct ringcast_gpu_extent *lease, uint64_t offset, uint64_t bytes) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_span span;
  int64_t shape[1] = {(int64_t)bytes};
  struct ringcast_tensor tensor = bytes_at(source, shape);
  size_t used;
  tensor.flags = RINGCAST_ITEM_CUDA;
  ringcast_plan_device_tensor(&plan, 1, 1);
  must(ringcast_writer_reserve(side.writer, ringcast_plan_bytes(&plan), 0, &span) == 0);
  must(ringcast_build_begin(&builder, span.data, span.bytes, &plan, RINGCAST_ROOT_DICT, 0) == 0);
  must(ringcast_build_device_tensor(&builder, "x", 1, &tensor, offset) == 0);
  must(ringcast_build_device(&builder, lease->slot, lease->epoch, lease->generation) == 0);
  must(ringcast_build_end(&builder, &used) == 0);
  return used;
}

static long do_draft(struct words *words) {
  long rc = do_lease(words);
  if (rc == 0) DRAFT(1)->bytes = build_frame(&DRAFT(1)->lease, DRAFT(1)->offset, NUMBER(2));
  return rc;
}

/* Of an extent that was leased, or of one that says what it likes. */
static long do_forge_frame(struct words *words) {
  struct ringcast_gpu_extent lease = {.slot = (uint32_t)number_of(words, "slot", 0),
                                      .epoch = info_of(true).epoch + (uint32_t)number_of(words, "epoch", 0),
                                      .generation = number_of(words, "generation", 1)};
  const char *of = option(words, "of");
  uint64_t offset = of ? drafts[letter(of)].offset : 0;
  if (of) lease = drafts[letter(of)].lease;
  return ringcast_writer_commit(side.writer, build_frame(&lease, offset, NUMBER(1)), RINGCAST_KIND_TENSORS);
}

/* LETTER [BYTES of the frame] [from=AT put=BYTES: one copy, at=OFFSET from where the lease's tensor is to be] [dims=N]
 */
static long do_commit(struct words *words) {
  int64_t shape[2] = {(int64_t)number_of(words, "put", 0), 1}, strides[2] = {2, 1};
  struct ringcast_tensor tensor = bytes_at(source + number_of(words, "from", 0), shape);
  if (option(words, "dims")) tensor.ndim = (int32_t)number_of(words, "dims", 1), tensor.strides = strides;
  const struct ringcast_gpu_put put = {.tensor = &tensor, .offset = DRAFT(1)->offset + number_of(words, "at", 0)};
  bool has_bytes = *words->at[2] && !strchr(words->at[2], '=');
  size_t bytes = has_bytes ? NUMBER(2) : DRAFT(1)->bytes;
  return ringcast_gpu_commit(side.gpu_writer, &DRAFT(1)->lease, &put, option(words, "put") != NULL, stream, bytes);
}

static long do_drop(struct words *words) { return ringcast_gpu_drop(side.gpu_writer, &DRAFT(1)->lease), 0; }
static long do_abort(struct words *words) { return (void)words, ringcast_writer_abort(side.writer); }
static long do_wait(struct words *words) { return (void)words, ringcast_gpu_wait(side.gpu_writer, stream); }
static long do_wait_stream(struct words *words) { return (void)words, ringcast_gpu_stream_wait(0, stream); }
static long do_same_lease(struct words *words) { return *DRAFT(2) = *DRAFT(1), 0; }
static long do_another_slot(struct words *words) { return DRAFT(1)->lease.slot = (uint32_t)NUMBER(2), 0; }
static long do_attach(struct words *words) {
  return ringcast_gpu_attach(side.gpu_writer, &DRAFT(1)->lease, &DRAFT(2)->lease);
}
static long do_allocate(struct words *words) {
  return ringcast_gpu_allocate(side.gpu_writer, NUMBER(2), stream, &DRAFT(1)->where, &DRAFT(1)->lease);
}
static long do_address(struct words *words) {
  uint64_t offset = DRAFT(1)->offset + (*words->at[2] ? NUMBER(2) : 0);
  return ringcast_gpu_lease_address(side.gpu_writer, &DRAFT(1)->lease, offset, stream, &DRAFT(1)->where);
}
/* In place of a kernel: bytes of the source go to where the draft's address is. */
static long do_compute(struct words *words) {
  return cuda->copy_dtod(DRAFT(1)->where, source + NUMBER(2), NUMBER(3), stream);
}
static long do_fetch(struct words *words) {
  static uint8_t host[SOURCE_BYTES];
  int64_t shape[1] = {(int64_t)NUMBER(2)};
  struct ringcast_tensor tensor = bytes_at(source + NUMBER(1), shape);
  return ringcast_gpu_fetch(side.gpu_writer, &tensor, host, stream);
}
static long do_copy_back(struct words *words) {
  static uint8_t host[SOURCE_BYTES];
  int64_t shape[1] = {(int64_t)NUMBER(2)};
  struct ringcast_tensor tensor = bytes_at(source + NUMBER(1), shape);
  return ringcast_gpu_copy_back(0, &tensor, host, stream);
}

const struct verb send_verbs[] = {
    {"send", do_send},           /* AT BYTES [xN] [pool] [from=LETTER] [transposed] [nowhere] */
    {"ring-send", do_ring_send}, /* BYTES [tensors] */
    {"overrun", do_overrun},
    {"-", do_nothing}, /* also `measures`, which main.c looks for */
    {"measures", do_nothing},
    {"lease", do_lease},             /* LETTER BYTES ... */
    {"draft", do_draft},             /* LETTER BYTES: leases, and builds a frame of it */
    {"forge-frame", do_forge_frame}, /* BYTES [slot=N] [epoch=N more] [generation=N], or of=LETTER */
    {"commit", do_commit},           /* LETTER [BYTES] [from=AT] [put=BYTES] [at=N] [dims=N] */
    {"drop", do_drop},               /* LETTER */
    {"abort", do_abort},
    {"wait", do_wait},
    {"wait-stream", do_wait_stream},
    {"same-lease", do_same_lease},     /* LETTER LETTER: a copy of the struct */
    {"another-slot", do_another_slot}, /* LETTER N: in the struct */
    {"allocate", do_allocate},         /* LETTER BYTES */
    {"attach", do_attach},             /* LEASE MEMORY */
    {"address", do_address},           /* LETTER [N more] */
    {"compute", do_compute},           /* LETTER AT BYTES */
    {"fetch", do_fetch},               /* AT BYTES */
    {"copy-back", do_copy_back},       /* AT BYTES */
    {NULL, NULL},
};
