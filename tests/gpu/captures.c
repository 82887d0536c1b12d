/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beside a stream that captures a graph: what CUDA forbids meanwhile, and that nothing of the library spoils it. By the
 * driver's own functions, or by what the tests' driver has in their place.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ringcast/gpu.h"
#include "tests/gpu/probe.h"

enum { BYTES = 1 << 20, PAGE = 4096 };
enum { GLOBAL = 0, RELAXED = RC_CU_STREAM_CAPTURE_MODE_RELAXED };

static void begin_capture(rc_cu_stream stream) {
  rc_cu_result (*begin)(rc_cu_stream stream, int mode), (*fake)(rc_cu_stream stream, bool on);
  void *found = gpu_symbol("fake_cuda_capture");
  memcpy(&fake, &found, sizeof fake);
  if (found) {
    must(fake(stream, true), "the fake's capture");
    return;
  }
  found = gpu_symbol("cuStreamBeginCapture_v2");
  if (!found) skipped("this driver captures no graphs");
  memcpy(&begin, &found, sizeof begin);
  must(begin(stream, GLOBAL), "cuStreamBeginCapture");
}

/* SUCCESS: the graph is whole. */
static rc_cu_result end_capture(rc_cu_stream stream) {
  rc_cu_result (*end)(rc_cu_stream stream, void **graph), (*fake)(rc_cu_stream stream, bool on);
  void *graph, *found = gpu_symbol("fake_cuda_capture");
  memcpy(&fake, &found, sizeof fake);
  if (found) return fake(stream, false);
  found = gpu_symbol("cuStreamEndCapture");
  memcpy(&end, &found, sizeof end);
  return end(stream, &graph);
}

/* ---- What CUDA forbids ------------------------------------------------------------------------------------------- */

static struct gpu *device;
static rc_cu_ptr memory;
static void *page;
static rc_cu_stream created;

static rc_cu_result query(void) { return device->cuda->stream_query(device->stream); }
static rc_cu_result synchronise(void) { return device->cuda->stream_synchronize(device->stream); }
static rc_cu_result synchronise_all(void) { return cuda_more()->ctx_synchronize(); }
static rc_cu_result allocate(void) { return device->cuda->mem_alloc(&memory, PAGE); }
static rc_cu_result give_back(void) { return device->cuda->mem_free(memory); }
static rc_cu_result put_on_list(void) { return device->cuda->host_register(page, PAGE, 0); }
static rc_cu_result take_off_list(void) { return device->cuda->host_unregister(page); }
static rc_cu_result create(void) { return device->cuda->stream_create(&created, RC_CU_STREAM_NON_BLOCKING); }
static rc_cu_result destroy(void) { return device->cuda->stream_destroy(created); }
static rc_cu_result ask_for_memory(void) {
  size_t unused[2];
  return device->cuda->mem_get_info(&unused[0], &unused[1]);
}

static const struct {
  const char *name;
  rc_cu_result (*call)(void), (*before)(void), (*after)(void); /* what needs no capture for it */
} calls[] = {{"cuStreamQuery", query, NULL, NULL},
             {"cuStreamSynchronize", synchronise, NULL, NULL},
             {"cuCtxSynchronize", synchronise_all, NULL, NULL},
             {"cuMemGetInfo", ask_for_memory, NULL, NULL},
             {"cuMemAlloc", allocate, NULL, give_back},
             {"cuMemFree", give_back, allocate, NULL},
             {"cuMemHostRegister", put_on_list, NULL, take_off_list},
             {"cuMemHostUnregister", take_off_list, put_on_list, NULL},
             {"cuStreamCreate", create, NULL, destroy},
             {"cuStreamDestroy", destroy, create, NULL}};

/* What the graph came to, with a call about other things while it was captured. */
static void try_calls(rc_cu_stream graph, const char *prefix) {
  char key[64];
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    if (calls[i].before) must(calls[i].before(), "what comes before it");
    begin_capture(graph);
    rc_cu_result result = calls[i].call();
    snprintf(key, sizeof key, "%s_%s", prefix, calls[i].name);
    figure_result(key, end_capture(graph));
    if (result == RC_CU_SUCCESS && calls[i].after) must(calls[i].after(), "what comes after it");
    if (result != RC_CU_SUCCESS && calls[i].before) calls[i].call(); /* it did nothing */
  }
}

/* Only measured: which of them spoil a graph, made by a thread as it is, and by one that is relaxed. */
static void calls_beside(void) {
  struct gpu gpu = gpu_open();
  rc_cu_capture_mode mode = RELAXED;
  rc_cu_stream graph;
  device = &gpu;
  page = shared_memory(PAGE);
  must(gpu.cuda->stream_create(&graph, RC_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  try_calls(graph, "global");
  must(gpu.cuda->exchange_capture_mode(&mode), "cuThreadExchangeStreamCaptureMode");
  try_calls(graph, "relaxed");
}

/* ---- What the library does --------------------------------------------------------------------------------------- */

static struct pair {
  struct gpu gpu;
  rc_cu_stream graph;
  rc_cu_ptr source, mine;
  ringcast_writer *ring;
  ringcast_reader *reader;
  ringcast_gpu_writer *writer;
  ringcast_gpu_reader *gpu_reader;
} pair;

static void open_pair(void) {
  const struct ringcast_writer_options ring = {.size = sizeof ring, .capacity = 8 << 20, .readers = 2};
  const struct ringcast_gpu_writer_options options = {.size = sizeof options, .device = 0, .pool_bytes = 4 << 20};
  must_ringcast(ringcast_writer_create_ex(&ring, &pair.ring), "create");
  must_ringcast(ringcast_gpu_writer_open(pair.ring, &options, &pair.writer), "ringcast_gpu_writer_open");
  must_ringcast(ringcast_reader_attach(ringcast_writer_handle(pair.ring), &pair.reader), "attach");
  must_ringcast(ringcast_gpu_reader_open(pair.reader, NULL, &pair.gpu_reader), "ringcast_gpu_reader_open");
}

static void close_pair(void) {
  ringcast_gpu_reader_close(pair.gpu_reader);
  ringcast_reader_close(pair.reader);
  ringcast_gpu_writer_close(pair.writer);
  ringcast_writer_close(pair.ring);
}

static void open_device(void) {
  pair.gpu = gpu_open();
  pair.source = gpu_alloc(&pair.gpu, BYTES);
  pair.mine = gpu_alloc(&pair.gpu, BYTES);
  must(pair.gpu.cuda->stream_create(&pair.graph, RC_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

static int send_one(rc_cu_stream stream) {
  const int64_t shape[1] = {BYTES};
  const struct ringcast_gpu_item item = {.key = "x",
                                         .key_bytes = 1,
                                         .on_device = 1,
                                         .tensor = {.data = (const void *)(uintptr_t)pair.source,
                                                    .dtype = {1, 8, 1},
                                                    .ndim = 1,
                                                    .shape = shape,
                                                    .flags = RINGCAST_ITEM_CUDA}};
  return ringcast_gpu_send(pair.writer, &item, 1, 0, 0, stream, 0);
}

static int receive_one(void) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader tensors;
  struct ringcast_gpu_take take;
  struct ringcast_item item;
  must_ringcast(ringcast_gpu_next(pair.gpu_reader, 0, &frame), "ringcast_gpu_next");
  must_ringcast(ringcast_gpu_begin(pair.gpu_reader, &frame, pair.gpu.stream, &take), "ringcast_gpu_begin");
  must_ringcast(ringcast_frame_open(&tensors, frame.data, frame.bytes), "ringcast_frame_open");
  must_ringcast(ringcast_frame_item(&tensors, 0, &item), "ringcast_frame_item");
  must_ringcast(ringcast_gpu_copy_out(pair.gpu_reader, &take, &item, pair.mine), "ringcast_gpu_copy_out");
  must_ringcast(ringcast_gpu_end(pair.gpu_reader, &take), "ringcast_gpu_end");
  return item.placement;
}

static void must_be_whole(rc_cu_result ended) {
  figure_result("end_capture", ended);
  if (ended != RC_CU_SUCCESS) failed("the capture was spoilt");
}

static void refused(void) {
  open_device();
  open_pair();
  begin_capture(pair.gpu.stream);
  int result = send_one(pair.gpu.stream);
  rc_cu_result ended = end_capture(pair.gpu.stream);
  figure_integer("send", result);
  if (result != -EBUSY) failed("a send on a stream that captures gives %d, and not -EBUSY", result);
  must_be_whole(ended);
  close_pair();
}

/* All that it does, on another stream, from its opening to its closing. */
static void beside(void) {
  open_device();
  gpu_fill(&pair.gpu, pair.source, BYTES, 7);
  begin_capture(pair.graph);
  open_pair();
  must_ringcast(send_one(pair.gpu.stream), "a send by the ring");
  if (receive_one() != RINGCAST_PLACEMENT_INLINE) failed("what was sent before the pool was open did not go INLINE");
  must_ringcast(send_one(pair.gpu.stream), "a send by the pool");
  int placement = receive_one();
  close_pair();
  must_be_whole(end_capture(pair.graph));
  if (placement != RINGCAST_PLACEMENT_POOL) no_pool("the second frame went by the ring");
  if (gpu_differing(&pair.gpu, pair.mine, BYTES, 7) != 0) failed("other bytes came");
}

const struct probe_case capture_probes[] = {{"stream_that_captures", refused, 60, false},
                                            {"all_beside_a_capture", beside, 60, false},
                                            {"calls_beside_a_capture", calls_beside, 60, false},
                                            {NULL, NULL, 0, false}};
