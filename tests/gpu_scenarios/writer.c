/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the writer's side. */
#include "tests/gpu_scenarios/scenario.h"

static struct draft {
  struct ringcast_gpu_extent lease;
  uint64_t offset;
  size_t bytes; /* of the frame */
  ringcast_device_ptr where;
} drafts[8];
#define DRAFT(word) (&drafts[LETTER(word)])

/* ---- Handles --------------------------------------------------------------------------------- */

static long do_ring(void) {
  struct ringcast_writer_options options = {
      .size = sizeof options,
      .capacity = 1 << 20,
      .readers = (uint32_t)number_of("readers", 8),
      .memory = (uint32_t)number_of("memory", RINGCAST_MEMORY_AUTO)};
  if (has_word("evict")) options.on_death = RINGCAST_EVICT;
  if (has_word("evict-slow")) {
    options.on_slow = RINGCAST_EVICT;
    options.slow_ns = 1000000;
  }
  int rc = ringcast_writer_create_ex(&options, &side.writer);
  if (rc == 0) strcpy(board->handle, ringcast_writer_handle(side.writer));
  return rc;
}

/* On a failure no handle may be given; one that is open stays open. */
static long do_gpu_writer(void) {
  struct ringcast_gpu_writer_options options = {.size = (uint32_t)number_of("size", sizeof options),
                                                .device =
                                                    (int32_t)number_of("device", (uint64_t)-1),
                                                .pool_bytes = number_of("pool", 2 << 20),
                                                .slots = (uint32_t)number_of("slots", 4),
                                                .flags = (uint32_t)number_of("flags", 0)};
  ringcast_gpu_writer *opened = NULL;
  int rc = ringcast_gpu_writer_open(side.writer, has_word("default") ? NULL : &options, &opened);
  must((rc == 0) == (opened != NULL));
  if (rc == 0) side.gpu_writer = opened;
  return rc;
}

static long do_writer(void) {
  open_device();
  long rc = do_ring();
  return rc != 0 ? rc : do_gpu_writer();
}

/* Both, and the reader has opened the pool: by a frame that came by the ring. */
static long do_pair(void) {
  must(do_writer() == 0);
  must(do_text("reader") == 0 && do_text("send 0 10") == 0 &&
       do_text("recv 0") == RINGCAST_PLACEMENT_INLINE);
  return 0;
}

/* As by whoever can write to the segment. */
static long do_forge(void) {
  struct rc_gpu_control *control = rc_gpu_control(&side.gpu_writer->exported->segment);
  if (strcmp(words->at[1], "pool-bytes") == 0) {
    control->id.pool_bytes = NUMBER(2);
  } else if (strcmp(words->at[1], "closed") == 0) {
    rc_store_release(&control->closed, (uint32_t)NUMBER(2));
  } else {
    must(strcmp(words->at[1], "refusal") == 0);
    rc_store_relaxed(&control->importers[0].reason, (int32_t)NUMBER(2));
    rc_store_release(&control->importers[0].refused, side.reader->ring.owner);
  }
  return 0;
}

static long do_readers(void) { return (long)rc_peer_count(&side.writer->ring.view); }

/* ---- Sending --------------------------------------------------------------------------------- */

struct ringcast_tensor bytes_at(rc_cu_ptr memory, int64_t *shape) {
  return (struct ringcast_tensor){
      .data = (const void *)(uintptr_t)memory, .dtype = {1, 8, 1}, .ndim = 1, .shape = shape};
}

static long do_send(void) {
  struct ringcast_gpu_item items[8];
  int64_t shape[1] = {(int64_t)NUMBER(2)}, square[2] = {10, 10}, strides[2] = {1, 10};
  uint32_t count = words->at[3][0] == 'x' ? (uint32_t)number(words->at[3] + 1) : 1;
  uint32_t flags = (uint32_t)number_of("flags", has_word("pool") ? RINGCAST_GPU_NO_INLINE : 0);
  rc_cu_ptr base = option("from") ? drafts[letter(option("from"))].where : source;
  if (has_word("nowhere")) base = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct ringcast_tensor tensor = bytes_at(base + NUMBER(1) + (base ? ITEM_BYTES * i : 0), shape);
    if (has_word("transposed")) {
      tensor.ndim = 2;
      tensor.shape = square;
      tensor.strides = strides;
    }
    items[i] = (struct ringcast_gpu_item){
        .key = "abcdefgh" + i, .key_bytes = 1, .tensor = tensor, .on_device = 1};
  }
  return ringcast_gpu_send(side.gpu_writer, items, count, 0, flags, stream, 0);
}

static long do_ring_send(void) {
  static char junk[SOURCE_BYTES];
  uint16_t kind = has_word("tensors") ? RINGCAST_KIND_TENSORS : RINGCAST_KIND_BYTES;
  return ringcast_writer_send(side.writer, junk, NUMBER(1), kind, 0);
}

/* A frame by the ring, and whether the reader has been evicted by now. */
static long do_overrun(void) {
  must(is_result(do_text("send 0 400000"), "0|EAGAIN"));
  return ringcast_gpu_check(side.gpu_reader);
}

static long do_lease(void) {
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
static size_t build_frame(const struct ringcast_gpu_extent *lease, uint64_t offset,
                          uint64_t bytes) {
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

static long do_draft(void) {
  long rc = do_lease();
  if (rc == 0) DRAFT(1)->bytes = build_frame(&DRAFT(1)->lease, DRAFT(1)->offset, NUMBER(2));
  return rc;
}

/* Of an extent that was leased, or of one that says what it likes. */
static long do_forge_frame(void) {
  struct draft forged = {.lease = {.slot = (uint32_t)number_of("slot", 0),
                                   .epoch = info_of(true).epoch + (uint32_t)number_of("epoch", 0),
                                   .generation = number_of("generation", 1)}};
  if (option("of")) forged = drafts[letter(option("of"))];
  size_t bytes = build_frame(&forged.lease, forged.offset, NUMBER(1));
  return ringcast_writer_commit(side.writer, bytes, RINGCAST_KIND_TENSORS);
}

static long do_commit(void) {
  struct draft *draft = DRAFT(1);
  int64_t shape[2] = {(int64_t)number_of("put", 0), 1}, strides[2] = {2, 1};
  struct ringcast_tensor tensor = bytes_at(source + number_of("from", 0), shape);
  if (option("dims")) {
    tensor.ndim = (int32_t)number_of("dims", 1);
    tensor.strides = strides;
  }
  const struct ringcast_gpu_put put = {.tensor = &tensor,
                                       .offset = draft->offset + number_of("at", 0)};
  bool has_bytes = *words->at[2] && !strchr(words->at[2], '=');
  size_t bytes = has_bytes ? NUMBER(2) : draft->bytes;
  return ringcast_gpu_commit(side.gpu_writer, &draft->lease, &put, option("put") != NULL, stream,
                             bytes);
}

static long do_drop(void) {
  ringcast_gpu_drop(side.gpu_writer, &DRAFT(1)->lease);
  return 0;
}

static long do_same_lease(void) {
  *DRAFT(2) = *DRAFT(1);
  return 0;
}

static long do_another_slot(void) {
  DRAFT(1)->lease.slot = (uint32_t)NUMBER(2);
  return 0;
}

static long do_abort(void) { return ringcast_writer_abort(side.writer); }
static long do_wait(void) { return ringcast_gpu_wait(side.gpu_writer, stream); }
static long do_wait_stream(void) { return ringcast_gpu_stream_wait(0, stream); }
static long do_attach(void) {
  return ringcast_gpu_attach(side.gpu_writer, &DRAFT(1)->lease, &DRAFT(2)->lease);
}

static long do_allocate(void) {
  return ringcast_gpu_allocate(side.gpu_writer, NUMBER(2), stream, &DRAFT(1)->where,
                               &DRAFT(1)->lease);
}

static long do_address(void) {
  uint64_t offset = DRAFT(1)->offset + (*words->at[2] ? NUMBER(2) : 0);
  return ringcast_gpu_lease_address(side.gpu_writer, &DRAFT(1)->lease, offset, stream,
                                    &DRAFT(1)->where);
}

/* In place of a kernel: bytes of the source go to where the draft's address is. */
static long do_compute(void) {
  return cuda->copy_dtod(DRAFT(1)->where, source + NUMBER(2), NUMBER(3), stream);
}

/* To the host, by the writer or by the process's own call. */
static long do_fetch(void) {
  static uint8_t host[SOURCE_BYTES];
  int64_t shape[1] = {(int64_t)NUMBER(2)};
  struct ringcast_tensor tensor = bytes_at(source + NUMBER(1), shape);
  if (strcmp(words->at[0], "copy-back") == 0)
    return ringcast_gpu_copy_back(0, &tensor, host, stream);
  return ringcast_gpu_fetch(side.gpu_writer, &tensor, host, stream);
}

const struct verb writer_verbs[] = {
    {"ring", do_ring},             /* readers=N memory=N evict evict-slow */
    {"gpu-writer", do_gpu_writer}, /* pool=BYTES slots=N device=N flags=N size=N default */
    {"writer", do_writer},         /* both */
    {"pair", do_pair},             /* a writer and a reader that has opened the pool */
    {"forge", do_forge},           /* pool-bytes N, closed N, refusal N: in the device segment */
    {"readers", do_readers},       /* = N: how many the ring has */
    {"send",
     do_send}, /* AT BYTES [xN tensors] [pool] [from=LETTER] [transposed] [nowhere] [flags=N] */
    {"ring-send", do_ring_send}, /* BYTES [tensors] */
    {"overrun", do_overrun},
    {"lease", do_lease}, /* LETTER BYTES ... */
    {"draft", do_draft}, /* LETTER BYTES: leases, and builds a frame of it */
    {"forge-frame",
     do_forge_frame}, /* BYTES [slot=N] [epoch=N more] [generation=N], or of=LETTER */
    {"commit",
     do_commit}, /* LETTER [BYTES of the frame] [put=BYTES [from=AT] [at=N]: one copy] [dims=N] */
    {"drop", do_drop}, /* LETTER */
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
    {"copy-back", do_fetch},
    {NULL, NULL},
};
