/* SPDX-License-Identifier: Apache-2.0 */
/* What the device says of itself, and what each call of the driver costs the host and the device. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ring/atomics.h"
#include "tests/gpu/ends.h"
#include "tests/gpu/run.h"

/* ---- Attributes ------------------------------------------------------------------------------------------------- */

/* Every attribute by its number in CUdevice_attribute; those that ringcast depends on also have their names. */
static void device_attributes(void) {
  static const struct {
    int number;
    const char *name;
  } named[] = {{20, "compute_mode"},
               {41, "unified_addressing"},
               {91, "host_pointer_of_registered_memory"},
               {99, "host_register"},
               {100, "host_page_tables"},
               {113, "host_register_read_only"},
               {115, "memory_pools"},
               {122, "stream_operations_of_64_bits"},
               {125, "ipc_events"}};
  struct gpu gpu = gpu_open();
  for (int number = 1; number < 160; number++) {
    char key[64];
    int value;
    if (cuda_more()->device_get_attribute(&value, (rc_cu_device_attribute)number, gpu.device) != RC_CU_SUCCESS)
      continue;
    snprintf(key, sizeof key, "%d", number);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
      if (named[i].number == number) snprintf(key, sizeof key, "%d_%s", number, named[i].name);
    figure_integer(key, value);
  }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------ */

struct bench {
  struct gpu gpu;
  rc_cu_ptr words, from, to;
  rc_cu_event event;
  rc_cu_result (*batch)(rc_cu_stream stream, unsigned count, void *operations, unsigned flags);
};

static rc_cu_result write_word(struct bench *bench) {
  return rc_word_write(bench->gpu.cuda, bench->gpu.stream, bench->words + 128, 1);
}
static rc_cu_result wait_for_past(struct bench *bench) { /* a word that has its value already */
  return rc_word_wait(bench->gpu.cuda, bench->gpu.stream, bench->words + 64, 0);
}
static rc_cu_result write_two(struct bench *bench) {
  enum { WRITE_VALUE_64 = 5 };
  struct operation { /* CUstreamBatchMemOpParams */
    uint32_t kind, unused;
    uint64_t address, value;
    uint64_t rest[3];
  } operations[2] = {{.kind = WRITE_VALUE_64, .address = bench->words + 128, .value = 1},
                     {.kind = WRITE_VALUE_64, .address = bench->words + 192, .value = 1}};
  return bench->batch ? bench->batch(bench->gpu.stream, 2, operations, 0) : RC_CU_NOT_FOUND;
}
static rc_cu_result copy_small(struct bench *bench) {
  return bench->gpu.cuda->copy_dtod(bench->to, bench->from, 1024, bench->gpu.stream);
}
static rc_cu_result record(struct bench *bench) {
  return bench->gpu.cuda->event_record(bench->event, bench->gpu.stream);
}
static rc_cu_result is_capturing(struct bench *bench) {
  int status;
  return bench->gpu.cuda->stream_is_capturing(bench->gpu.stream, &status);
}
static rc_cu_result exchange_mode(struct bench *bench) {
  rc_cu_capture_mode mode = RC_CU_STREAM_CAPTURE_MODE_RELAXED;
  return bench->gpu.cuda->exchange_capture_mode(&mode);
}
static rc_cu_result get_current(struct bench *bench) {
  rc_cu_context current;
  return bench->gpu.cuda->ctx_get_current(&current);
}
static rc_cu_result query(struct bench *bench) {
  rc_cu_result result = bench->gpu.cuda->stream_query(bench->gpu.stream);
  return result == RC_CU_NOT_READY ? RC_CU_SUCCESS : result;
}
static rc_cu_result ask_for_memory(struct bench *bench) {
  size_t unused[2];
  return bench->gpu.cuda->mem_get_info(&unused[0], &unused[1]);
}

/* Behind a wait: first the host's time for so many calls, then the device's from the store that ends the wait. */
static void cost_of_each_call(void) {
  enum { COUNT = 200, ROUNDS = 5 };
  static const struct {
    const char *name;
    rc_cu_result (*call)(struct bench *bench);
    bool is_enqueued;
  } calls[] = {{"write", write_word, true},
               {"wait_for_past", wait_for_past, true},
               {"batch_of_2_writes", write_two, true},
               {"copy_1_KiB", copy_small, true},
               {"event_record", record, true},
               {"is_capturing", is_capturing, false},
               {"exchange_mode", exchange_mode, false},
               {"get_current", get_current, false},
               {"stream_query", query, false},
               {"mem_get_info", ask_for_memory, false}};
  struct rc_word *words = shared_memory(PAGE);
  struct bench bench = {.gpu = gpu_open()};
  void *found = gpu_symbol("cuStreamBatchMemOp_v2");
  memcpy(&bench.batch, &found, sizeof bench.batch);
  bench.words = gpu_register(&bench.gpu, words, PAGE);
  bench.from = gpu_alloc(&bench.gpu, PAGE);
  bench.to = gpu_alloc(&bench.gpu, PAGE);
  must(bench.gpu.cuda->event_create(&bench.event, RC_CU_EVENT_DISABLE_TIMING), "event");
  uint64_t turn = 0;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    double host[ROUNDS], device[ROUNDS];
    rc_cu_result result = RC_CU_SUCCESS;
    char key[64];
    int count = rounds(COUNT), done = 0;
    for (; done < ROUNDS && result == RC_CU_SUCCESS; done++) {
      must(rc_word_wait(bench.gpu.cuda, bench.gpu.stream, bench.words, ++turn), "cuStreamWaitValue64");
      double begun = now_us();
      for (int call = 0; call < count && result == RC_CU_SUCCESS; call++) result = calls[i].call(&bench);
      host[done] = (now_us() - begun) / count;
      begun = now_us();
      rc_word_store(words, turn);
      must(bench.gpu.cuda->stream_synchronize(bench.gpu.stream), "cuStreamSynchronize");
      device[done] = (now_us() - begun) / count;
    }
    snprintf(key, sizeof key, "%s_host_us", calls[i].name);
    if (result == RC_CU_SUCCESS) figure_spread(key, host, (size_t)done);
    else figure_result(calls[i].name, result);
    snprintf(key, sizeof key, "%s_device_us", calls[i].name);
    if (result == RC_CU_SUCCESS && calls[i].is_enqueued) figure_spread(key, device, (size_t)done);
  }
}

/* ---- How much a stream takes ------------------------------------------------------------------------------------ */

static struct {
  struct gpu gpu;
  rc_cu_ptr address;
  _Atomic uint64_t enqueued;
  _Atomic bool is_over;
} filler;

enum { MOST = 1 << 16 };

static void *fill_stream(void *unused) {
  (void)unused;
  must(filler.gpu.cuda->ctx_push(filler.gpu.context), "cuCtxPushCurrent");
  for (uint64_t i = 1; i <= MOST && !rc_load_acquire(&filler.is_over); i++) {
    must(rc_word_write(filler.gpu.cuda, filler.gpu.stream, filler.address + 64, i), "cuStreamWriteValue64");
    rc_store_release(&filler.enqueued, i);
  }
  return NULL;
}

static void end_wait(void *word) {
  rc_store_release(&filler.is_over, true);
  rc_word_store(word, 1);
}

/* The number of operations after which a call blocks, and whether other threads' calls block with it. */
static void operations_behind_a_wait(void) {
  static const double STALLED_US = 500e3;
  struct rc_word *words = shared_memory(PAGE);
  struct gpu gpu = filler.gpu = gpu_open();
  rc_cu_stream other;
  pthread_t thread;
  filler.address = gpu_register(&gpu, words, PAGE);
  must(gpu.cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  must(rc_word_wait(gpu.cuda, gpu.stream, filler.address, 1), "cuStreamWaitValue64");
  if (pthread_create(&thread, NULL, fill_stream, NULL) != 0) failed("no thread");
  uint64_t last = 0;
  for (double since = now_us(); last < MOST && now_us() - since < STALLED_US;) {
    uint64_t now = rc_load_acquire(&filler.enqueued);
    if (now != last) since = now_us();
    last = now;
  }
  figure_integer("operations", (int64_t)last);
  figure_integer("a_call_blocked", last < MOST);
  struct later *bound = later(1500, end_wait, words);
  double begun = now_us();
  must(rc_word_write(gpu.cuda, other, filler.address + 128, 1), "cuStreamWriteValue64 on another stream");
  figure_number("call_on_another_stream_us", now_us() - begun);
  figure_integer("another_stream_blocked_too", later_cancel(bound));
  end_wait(words);
  if (pthread_join(thread, NULL) != 0) failed("no end of the thread");
  must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
}

/* ---- Many small tensors ----------------------------------------------------------------------------------------- */

enum { TENSORS = 200, EACH = 1024 };

static double receive_many(struct opened *opened) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader tensors;
  struct ringcast_gpu_take take;
  struct ringcast_item item;
  must_ringcast(ringcast_gpu_next(opened->reader, LIMIT_NS, &frame), "ringcast_gpu_next");
  double begun = now_us();
  must_ringcast(ringcast_gpu_begin(opened->reader, &frame, opened->gpu.stream, &take), "ringcast_gpu_begin");
  must_ringcast(ringcast_frame_open(&tensors, frame.data, frame.bytes), "ringcast_frame_open");
  for (uint32_t i = 0; i < TENSORS; i++) {
    must_ringcast(ringcast_frame_item(&tensors, i, &item), "ringcast_frame_item");
    must_ringcast(ringcast_gpu_copy_out(opened->reader, &take, &item, opened->mine + (rc_cu_ptr)i * EACH), "copy_out");
  }
  must_ringcast(ringcast_gpu_end(opened->reader, &take), "ringcast_gpu_end");
  return now_us() - begun;
}

static void receive_frames(struct helper *me, void *context) {
  struct opened opened = open_reader(me);
  int count = say_attached(me);
  (void)context;
  for (int i = 0; i < count; i++) {
    double took = receive_many(&opened);
    if (gpu_differing(&opened.gpu, opened.mine, TENSORS * EACH, 0) != 0) failed("other bytes came");
    helper_tell(me, &took, sizeof took);
  }
  close_reader(&opened);
}

static void small_tensors(void) {
  enum { ROUNDS = 50, WARM_UP = 3 };
  struct helper helper = helper_start(receive_frames, NULL);
  struct world world = open_writer(shared_memory(PAGE), 16 << 20, 0);
  static const int64_t shape[1] = {EACH};
  static char keys[TENSORS][8];
  static struct ringcast_gpu_item items[TENSORS];
  double sent[WARM_UP + ROUNDS], received[WARM_UP + ROUNDS];
  int count = WARM_UP + rounds(ROUNDS);
  for (uint32_t i = 0; i < TENSORS; i++) {
    uintptr_t at = (uintptr_t)world.patterns[0] + (uintptr_t)i * EACH;
    snprintf(keys[i], sizeof keys[i], "%u", i);
    items[i] = (struct ringcast_gpu_item){
        .key = keys[i],
        .key_bytes = strlen(keys[i]),
        .on_device = 1,
        .tensor = {
            .data = (const void *)at, .dtype = {1, 8, 1}, .ndim = 1, .shape = shape, .flags = RINGCAST_ITEM_CUDA}};
  }
  introduce(&world, &helper, 1, count);
  for (int i = 0; i < count; i++) {
    double begun = now_us();
    must_ringcast(ringcast_gpu_send(world.writer, items, TENSORS, 0, 0, world.gpu.stream, LIMIT_NS), "send");
    sent[i] = now_us() - begun;
    helper_hear(&helper, &received[i], sizeof received[i]);
  }
  figure_integer("tensors", TENSORS);
  figure_spread("send_us", sent + WARM_UP, (size_t)(count - WARM_UP));
  figure_spread("receive_us", received + WARM_UP, (size_t)(count - WARM_UP));
  if (info_of(&world).pool_frames == 0) no_pool(info_of(&world).why);
  helper_end(&helper);
  close_writer(&world);
}

const struct probe_case cost_probes[] = {{"cost_of_each_call", cost_of_each_call, 60, false},
                                         {"operations_behind_a_wait", operations_behind_a_wait, 60, false},
                                         {"small_tensors", small_tensors, 60, false},
                                         {NULL, NULL, 0, false}};
const struct probe_case attribute_probes[] = {{"device_attributes", device_attributes, 30, false},
                                              {NULL, NULL, 0, false}};
