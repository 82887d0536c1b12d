/* SPDX-License-Identifier: Apache-2.0 */
/* A writer and a reader of device tensors in one process, on the tests' own driver. */
#ifndef RC_TESTS_GPU_CHANNEL_H
#define RC_TESTS_GPU_CHANNEL_H

#include <errno.h>
#include <time.h>

#include "gpu/reader.h"
#include "gpu/writer.h"
#include "tests/support/channel.h"
#include "tests/support/gpu.h"

enum { SOURCE_BYTES = 1 << 20 };

static const struct rc_cuda *cuda;
static rc_cu_context context;
static rc_cu_stream stream;
static rc_cu_ptr source, target; /* SOURCE_BYTES each; the source's byte i is (uint8_t)(7 * i) */
static struct rc_word *turn;     /* a stream waits for it in hold_up */
static rc_cu_ptr turn_address;

static inline void pause_shortly(void) { nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL); }
/* For what another thread does soon: the test's own time limit says if it never does. */
#define ck_comes(condition) \
  while (!(condition)) pause_shortly()

static inline void open_device(void) {
  static uint8_t bytes[SOURCE_BYTES];
  cuda = rc_cuda();
  ck_assert_ptr_nonnull(cuda);
  ck_assert_int_eq(cuda->primary_retain(&context, 0), 0);
  ck_assert_int_eq(cuda->ctx_push(context), 0);
  ck_assert_int_eq(cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING), 0);
  ck_assert_int_eq(cuda->mem_alloc(&source, SOURCE_BYTES), 0);
  ck_assert_int_eq(cuda->mem_alloc(&target, SOURCE_BYTES), 0);
  for (int i = 0; i < SOURCE_BYTES; i++) bytes[i] = (uint8_t)(7 * i);
  ck_assert_int_eq(cuda->copy_htod(source, bytes, SOURCE_BYTES, stream), 0);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  turn = aligned_alloc(4096, 4096);
  memset(turn, 0, 4096);
  ck_assert_int_eq(cuda->host_register(turn, 4096, RC_CU_MEMHOSTREGISTER_DEVICEMAP), 0);
  ck_assert_int_eq(cuda->host_get_device_pointer(&turn_address, turn, 0), 0);
}

static inline void close_device(void) {
  static const char *const kinds[] = {"allocations", "imports", "registered", "streams",
                                      "contexts",    "queued",  "lost",       "spoilt"};
  rc_exported_tidy(rc_gpu_close_ns);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_int_eq(cuda->stream_destroy(stream), 0);
  ck_assert_int_eq(cuda->mem_free(source), 0);
  ck_assert_int_eq(cuda->mem_free(target), 0);
  ck_assert_int_eq(cuda->host_unregister(turn), 0);
  free(turn);
  ck_assert_int_eq(cuda->ctx_pop(&context), 0);
  ck_assert_int_eq(cuda->primary_release(0), 0);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) ck_comes(fake_cuda()->live(kinds[i]) == 0);
}

/* After it has failed: nothing can be given back, but for the context, with all that is in it. */
static inline void abandon_device(void) {
  cuda->ctx_pop(&context);
  cuda->primary_release(0);
  ck_comes(fake_cuda()->live("contexts") == 0); /* a reader's thread has it, perhaps */
}

/* The nth call from now on of this thread; 0: every call of all threads. */
static inline void call_fails(const char *name, long nth, rc_cu_result result) {
  (fake_cuda()->fault)(name, nth, result);
}
/* The nth call from now on of the other threads, as a watcher's. */
static inline void call_fails_elsewhere(const char *name, long nth, rc_cu_result result) {
  (fake_cuda()->fault)(name, -nth, result);
}
static inline void no_call_fails(void) { (fake_cuda()->fault)(NULL, 0, 0); }

/* The stream does nothing more until let_go. */
static inline void hold_up(void) { ck_assert_int_eq(rc_word_wait(cuda, stream, turn_address, turn->whole + 1), 0); }
static inline void let_go(void) { rc_word_store(turn, turn->whole + 1); }

/* ---- A pair ----------------------------------------------------------------------------------------------------- */

static ringcast_writer *writer;
static ringcast_reader *reader;
static ringcast_gpu_writer *gpu_writer;
static ringcast_gpu_reader *gpu_reader;

static inline struct ringcast_gpu_writer_options gpu_options(void) {
  return (struct ringcast_gpu_writer_options){
      .size = sizeof(struct ringcast_gpu_writer_options), .device = -1, .pool_bytes = 2 << 20, .slots = 4};
}

static inline struct ringcast_gpu_info writer_info(void) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  ck_assert_int_eq(ringcast_gpu_writer_info(gpu_writer, &info), 0);
  return info;
}

static inline struct ringcast_gpu_info reader_info(void) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  ck_assert_int_eq(ringcast_gpu_reader_info(gpu_reader, &info), 0);
  return info;
}

static inline struct ringcast_tensor bytes_on_device(rc_cu_ptr memory, int64_t *shape) {
  return (struct ringcast_tensor){
      .data = (const void *)(uintptr_t)memory, .dtype = {1, 8, 1}, .ndim = 1, .shape = shape};
}

/* One tensor: so many bytes from `at` of the source on. */
static inline int send_bytes(int64_t at, int64_t bytes, uint32_t flags) {
  int64_t shape[1] = {bytes};
  struct ringcast_gpu_item item = {
      .key = "x", .key_bytes = 1, .tensor = bytes_on_device(source + (rc_cu_ptr)at, shape), .on_device = 1};
  return ringcast_gpu_send(gpu_writer, &item, 1, 0, flags, stream, 0);
}

struct received {
  struct ringcast_frame frame;
  struct ringcast_frame_reader opened;
  struct ringcast_item item;
  struct ringcast_gpu_take take;
};

static inline void next_frame(struct received *out) {
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &out->frame), 0);
  ck_assert_int_eq(ringcast_frame_open(&out->opened, out->frame.data, out->frame.bytes), 0);
  ck_assert_int_eq(ringcast_frame_item(&out->opened, 0, &out->item), 0);
}

static inline void begin(struct received *received) {
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received->frame, stream, &received->take), 0);
}

/* The target's bytes, once the stream has come so far, are those of the source from `at` on. */
static inline void target_holds(int64_t at, uint64_t bytes) {
  uint8_t *host = malloc(bytes);
  ck_assert_int_eq(cuda->copy_dtoh(host, target, bytes, stream), 0);
  uint64_t others = 0;
  for (uint64_t i = 0; i < bytes; i++) others += host[i] != (uint8_t)(7 * ((uint64_t)at + i));
  ck_assert_uint_eq(others, 0);
  free(host);
}

/* Reads the next frame, which holds what was sent from `at` on, and gives its placement. */
static inline int receive_bytes(int64_t at) {
  struct received received;
  next_frame(&received);
  begin(&received);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  target_holds(at, received.item.bytes);
  return received.item.placement;
}

static inline void open_writer(const struct ringcast_gpu_writer_options *options) {
  open_device();
  remember();
  writer = make_writer(1 << 20, 8);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, options, &gpu_writer), 0);
}

static inline void open_reader(void) {
  reader = attach(writer);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
}

/* Both, and the reader has opened the pool. */
static inline void open_pair(const struct ringcast_gpu_writer_options *options) {
  struct ringcast_gpu_writer_options defaults = gpu_options();
  open_writer(options ? options : &defaults);
  open_reader();
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
}

static inline void close_reader(void) {
  ringcast_gpu_reader_close(gpu_reader);
  ringcast_reader_close(reader);
}

static inline void close_writer(void) {
  ringcast_gpu_writer_close(gpu_writer);
  ringcast_writer_close(writer);
}

static inline void close_pair(void) {
  close_reader();
  close_writer();
  close_device();
}

#endif
