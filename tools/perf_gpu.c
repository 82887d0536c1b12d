/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a GPU from one process to others on the same device, in turn: by the device pool (POOL), through the ring
 * (INLINE), and the hardware's limits for the same bytes: a plain copy within the device, and a plain copy from
 * registered host memory to the device.
 *
 * There are two rings, and only the first has a pool, so only the way differs. A turn is one tensor, from the call of
 * send until every reader's device has the tensor; or several tensors in a row, for the bandwidth. POOL makes two
 * copies, in processes that take turns on the device, so each copy is measured alone too, beside the plain copy: the
 * whole work is queued on the stream, behind a wait for a word, before the clock starts.
 *
 * The writer announces each turn in a shared word. The readers start before the first use of CUDA, which does not
 * survive a fork. No process is pinned, since the driver's own threads would be pinned too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/cli.h"
#include "tools/cuda.h"
#include "tools/perf_gpu.h"

enum { ROUNDS = 400, LEAST_ROUNDS = 5, MOST_IN_A_ROW = 16, WARM_UP = 3 };
enum order { OPEN = 1, RECEIVE, RECEIVE_HELD, CLOSE };
enum { PAGE = 4096 };

static const int64_t LIMIT_NS = 60000000000; /* a longer wait is an error */
static const uint64_t ROW_BYTES = 256 << 20; /* the most bytes in a row; two tensors may be more */

struct shared {
  _Alignas(PERF_LINE) uint64_t turn; /* number of the turn; written after the fields below */
  enum order order;
  enum gpu_way way;
  uint32_t count;
  char handles[GPU_RINGS][96];
  struct {
    _Alignas(PERF_LINE) uint64_t done; /* turns */
    int64_t finished_ns;
    double host_ns;    /* the CPU's time for a tensor */
    double blocked_ns; /* the device's time for all of RECEIVE_HELD */
    struct ringcast_gpu_info info[GPU_RINGS];
  } readers[];
};

struct gpu {
  const struct perf_options *options;
  struct shared *shared;
  uint64_t largest, pool_bytes;
  bool oversubscribed;
  struct cuda cuda;
  ringcast_stream stream;
  ringcast_device_ptr memory;
  uint64_t *word; /* the word that holds the stream, and how often */
  uint64_t holds;
  ringcast_device_ptr word_address;
  struct perf_children children;
  /* The writer's alone: */
  ringcast_writer *rings[GPU_RINGS];
  ringcast_gpu_writer *writers[GPU_RINGS];
  ringcast_device_ptr copy; /* of the device; to copy to */
  void *host;               /* registered; to copy from */
  struct gpu_figures *figures;
};

static void must_cuda(struct gpu *gpu, int result, const char *what) {
  if (!cuda_did(&gpu->cuda, result, what)) perf_die("%s", gpu->cuda.failed);
}

static void *registered(struct gpu *gpu, size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) perf_die("can't map %zu bytes: %s", bytes, strerror(errno));
  must_cuda(gpu, gpu->cuda.host_register(memory, bytes, CUDA_REGISTER_MAPPED), "cuMemHostRegister");
  return memory;
}

static void open_device(struct gpu *gpu) {
  if (!cuda_open(&gpu->cuda, 0)) perf_die("%s", gpu->cuda.failed);
  must_cuda(gpu, gpu->cuda.alloc(&gpu->memory, gpu->largest), "cuMemAlloc");
  must_cuda(gpu, gpu->cuda.stream_create(&gpu->stream, CUDA_STREAM_NON_BLOCKING), "cuStreamCreate");
  gpu->word = registered(gpu, PAGE);
  must_cuda(gpu, gpu->cuda.host_pointer(&gpu->word_address, gpu->word, 0), "cuMemHostGetDevicePointer");
}

static void await_device(struct gpu *gpu) {
  must_cuda(gpu, gpu->cuda.stream_synchronize(gpu->stream), "cuStreamSynchronize");
}

/* Later work on the stream starts with let_go, which returns the time of that work. */
static void hold(struct gpu *gpu) {
  must_cuda(gpu, gpu->cuda.wait_value(gpu->stream, gpu->word_address, ++gpu->holds, 0), "cuStreamWaitValue64");
}

static double let_go(struct gpu *gpu) {
  int64_t start = perf_now_ns();
  __atomic_store_n(gpu->word, gpu->holds, __ATOMIC_RELEASE); /* the device reads the word */
  await_device(gpu);
  return (double)(perf_now_ns() - start);
}

/* ---- A reader --------------------------------------------------------------------------------------------------- */

struct gpu_reader {
  ringcast_reader *rings[GPU_RINGS];
  ringcast_gpu_reader *readers[GPU_RINGS];
};

static void open_reader(struct gpu *gpu, struct gpu_reader *reader) {
  struct ringcast_gpu_reader_options options = {.size = sizeof options, .device = 0};
  open_device(gpu);
  for (int i = 0; i < GPU_RINGS; i++) {
    reader->rings[i] = perf_attach(gpu->shared->handles[i], 0);
    perf_must(ringcast_gpu_reader_open(reader->rings[i], &options, &reader->readers[i]), "can't add the device");
  }
}

static void close_reader(struct gpu *gpu, struct gpu_reader *reader, uint32_t index) {
  for (int i = 0; i < GPU_RINGS; i++) {
    struct ringcast_gpu_info *info = &gpu->shared->readers[index].info[i];
    info->size = sizeof *info;
    perf_must(ringcast_gpu_reader_info(reader->readers[i], info), "no facts of the reader");
    ringcast_gpu_reader_close(reader->readers[i]);
    ringcast_reader_close(reader->rings[i]);
  }
}

/* Returns the CPU's time for the tensor, from the arrival of the frame. */
static int64_t receive(struct gpu *gpu, ringcast_gpu_reader *reader) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader tensors;
  struct ringcast_gpu_take take;
  struct ringcast_item item;
  perf_must(ringcast_gpu_next(reader, LIMIT_NS, &frame), "can't receive");
  int64_t begun = perf_now_ns();
  perf_must(ringcast_gpu_begin(reader, &frame, gpu->stream, &take), "can't begin to read");
  perf_must(ringcast_frame_open(&tensors, frame.data, frame.bytes), "no tensors");
  perf_must(ringcast_frame_item(&tensors, 0, &item), "no tensor");
  if (item.bytes > gpu->largest) perf_die("a tensor of %llu bytes came", (unsigned long long)item.bytes);
  perf_must(ringcast_gpu_copy_out(reader, &take, &item, gpu->memory), "can't copy");
  perf_must(ringcast_gpu_end(reader, &take), "can't end");
  return perf_now_ns() - begun;
}

static void receive_all(struct gpu *gpu, struct gpu_reader *reader, uint32_t index) {
  struct shared *shared = gpu->shared;
  int64_t host = 0;
  for (uint32_t i = 0; i < shared->count; i++) host += receive(gpu, reader->readers[shared->way]);
  await_device(gpu);
  shared->readers[index].finished_ns = perf_now_ns();
  shared->readers[index].host_ns = (double)host / shared->count;
}

/* All tensors are in the pool already. */
static void receive_held(struct gpu *gpu, struct gpu_reader *reader, uint32_t index) {
  hold(gpu);
  for (uint32_t i = 0; i < gpu->shared->count; i++) receive(gpu, reader->readers[GPU_POOL]);
  gpu->shared->readers[index].blocked_ns = let_go(gpu);
}

static void reader_body(void *context, uint32_t index) {
  struct gpu *gpu = context;
  struct gpu_reader reader = {0};
  for (uint64_t turn = 1;; turn++) {
    while (perf_load(&gpu->shared->turn) != turn) perf_relax(gpu->oversubscribed);
    if (gpu->shared->order == OPEN) open_reader(gpu, &reader);
    if (gpu->shared->order == RECEIVE) receive_all(gpu, &reader, index);
    if (gpu->shared->order == RECEIVE_HELD) receive_held(gpu, &reader, index);
    if (gpu->shared->order == CLOSE) close_reader(gpu, &reader, index);
    perf_store(&gpu->shared->readers[index].done, turn);
  }
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

/* Tells the readers the next order. */
static void tell(struct gpu *gpu, enum order order, enum gpu_way way, uint32_t count) {
  gpu->shared->order = order;
  gpu->shared->way = way;
  gpu->shared->count = count;
  perf_store(&gpu->shared->turn, gpu->shared->turn + 1);
}

static void await_readers(struct gpu *gpu) {
  int64_t start = perf_now_ns();
  for (uint32_t i = 0; i < gpu->options->readers; i++)
    while (perf_load(&gpu->shared->readers[i].done) != gpu->shared->turn) {
      if (perf_now_ns() - start > LIMIT_NS) perf_die("reader %u does not get its tensors", i);
      perf_relax(gpu->oversubscribed);
    }
}

static struct ringcast_gpu_info facts(ringcast_gpu_writer *writer) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  perf_must(ringcast_gpu_writer_info(writer, &info), "no facts of the writer");
  return info;
}

/* `flags`: with RINGCAST_GPU_NO_INLINE send waits for room in the pool. */
static void send(struct gpu *gpu, enum gpu_way way, uint64_t bytes, uint32_t flags) {
  const int64_t shape[1] = {(int64_t)bytes}, start = perf_now_ns();
  const struct ringcast_gpu_item item = {.key = "x",
                                         .key_bytes = 1,
                                         .on_device = 1,
                                         .tensor = {.data = (const void *)(uintptr_t)gpu->memory,
                                                    .dtype = {1, 8, 1},
                                                    .ndim = 1,
                                                    .shape = shape,
                                                    .flags = RINGCAST_ITEM_CUDA}};
  int result;
  while ((result = ringcast_gpu_send(gpu->writers[way], &item, 1, 0, flags, gpu->stream, LIMIT_NS)) == -EAGAIN) {
    if (perf_now_ns() - start > LIMIT_NS) perf_die("the pool is of no use any more: %s", facts(gpu->writers[way]).why);
    perf_relax(gpu->oversubscribed);
  }
  perf_must(result, "can't send");
}

/* One turn of `count` tensors. */
struct turn {
  double total_ns;            /* until every reader has all tensors */
  double send_ns, receive_ns; /* the CPU's time for a tensor, here and at the slowest reader */
};

static struct turn turn_of_ring(struct gpu *gpu, enum gpu_way way, uint64_t bytes, uint32_t count, uint32_t flags) {
  struct turn turn = {0};
  tell(gpu, RECEIVE, way, count);
  int64_t start = perf_now_ns(), last = start;
  for (uint32_t i = 0; i < count; i++) send(gpu, way, bytes, flags);
  turn.send_ns = (double)(perf_now_ns() - start) / count;
  await_readers(gpu);
  for (uint32_t i = 0; i < gpu->options->readers; i++) {
    if (gpu->shared->readers[i].finished_ns > last) last = gpu->shared->readers[i].finished_ns;
    turn.receive_ns = fmax(turn.receive_ns, gpu->shared->readers[i].host_ns);
  }
  turn.total_ns = (double)(last - start);
  return turn;
}

static struct turn turn_of_copies(struct gpu *gpu, enum gpu_way way, uint64_t bytes, uint32_t count) {
  struct turn turn = {.receive_ns = NAN};
  int64_t start = perf_now_ns();
  for (uint32_t i = 0; i < count; i++)
    must_cuda(gpu,
              way == GPU_DTOD ? gpu->cuda.dtod(gpu->copy, gpu->memory, bytes, gpu->stream)
                              : gpu->cuda.htod(gpu->copy, gpu->host, bytes, gpu->stream),
              "a plain copy");
  turn.send_ns = (double)(perf_now_ns() - start) / count;
  await_device(gpu);
  turn.total_ns = (double)(perf_now_ns() - start);
  return turn;
}

static struct turn take_turn(struct gpu *gpu, enum gpu_way way, uint64_t bytes, uint32_t count) {
  if (way == GPU_DTOD || way == GPU_HTOD) return turn_of_copies(gpu, way, bytes, count);
  return turn_of_ring(gpu, way, bytes, count, way == GPU_POOL ? RINGCAST_GPU_NO_INLINE : 0);
}

/* `count` copies of each kind alone, in nanoseconds: into the pool, out of it at the slowest reader, and plain. */
struct held {
  double in, out, plain;
};

static struct held turn_held(struct gpu *gpu, uint64_t bytes, uint32_t count) {
  struct held held = {0};
  hold(gpu);
  for (uint32_t i = 0; i < count; i++) send(gpu, GPU_POOL, bytes, RINGCAST_GPU_NO_INLINE);
  held.in = let_go(gpu);
  tell(gpu, RECEIVE_HELD, GPU_POOL, count);
  await_readers(gpu);
  for (uint32_t i = 0; i < gpu->options->readers; i++) held.out = fmax(held.out, gpu->shared->readers[i].blocked_ns);
  hold(gpu);
  for (uint32_t i = 0; i < count; i++)
    must_cuda(gpu, gpu->cuda.dtod(gpu->copy, gpu->memory, bytes, gpu->stream), "a plain copy");
  held.plain = let_go(gpu);
  return held;
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

static uint64_t free_bytes(struct gpu *gpu) {
  size_t now_free, total;
  must_cuda(gpu, gpu->cuda.get_info(&now_free, &total), "cuMemGetInfo");
  return now_free;
}

static void open_writers(struct gpu *gpu) {
  /* Room for four of the largest tensors, so that the pool is never full. */
  gpu->pool_bytes = 4 * gpu->largest > 64 << 20 ? 4 * gpu->largest : 64 << 20;
  for (int i = 0; i < GPU_RINGS; i++) {
    struct ringcast_writer_options ring = {
        .size = sizeof ring, .capacity = gpu->options->capacity, .readers = gpu->options->readers};
    struct ringcast_gpu_writer_options options = {.size = sizeof options,
                                                  .pool_bytes = i == GPU_POOL ? gpu->pool_bytes : RINGCAST_NO_POOL};
    struct ringcast_info info = {.size = sizeof info};
    perf_must(ringcast_writer_create_ex(&ring, &gpu->rings[i]), "can't make a ring");
    perf_must(ringcast_writer_info(gpu->rings[i], &info), "no facts of the ring");
    if (2 * gpu->largest > info.max_frame)
      perf_die("a ring here takes frames of up to %llu bytes, and a tensor of %llu is to go through it, two in a row: "
               "give smaller --sizes, or more RINGCAST_SPILL_BYTES",
               (unsigned long long)info.max_frame, (unsigned long long)gpu->largest);
    perf_must(ringcast_gpu_writer_open(gpu->rings[i], &options, &gpu->writers[i]), "can't add the device to the ring");
    snprintf(gpu->shared->handles[i], sizeof gpu->shared->handles[i], "%s", ringcast_writer_handle(gpu->rings[i]));
  }
}

static void open_all(struct gpu *gpu) {
  struct gpu_figures *figures = gpu->figures;
  figures->status.size = sizeof figures->status;
  figures->device.size = sizeof figures->device;
  perf_must(ringcast_gpu_status(&figures->status), "can't tell whether there is a GPU");
  if (!figures->status.ready) perf_die("nothing was measured, as no GPU is used: %s", figures->status.why);
  perf_must(ringcast_gpu_device(0, 0, &figures->device), "can't tell what the GPU is");
  open_device(gpu);
  figures->free_before = free_bytes(gpu);
  must_cuda(gpu, gpu->cuda.alloc(&gpu->copy, gpu->largest), "cuMemAlloc");
  gpu->host = registered(gpu, gpu->largest);
  must_cuda(gpu, gpu->cuda.htod(gpu->memory, gpu->host, gpu->largest, gpu->stream), "cuMemcpyHtoDAsync");
  await_device(gpu);
  open_writers(gpu);
  tell(gpu, OPEN, GPU_POOL, 0);
  await_readers(gpu);
  for (int i = 0; i < GPU_RINGS; i++)
    perf_must(ringcast_writer_wait_readers(gpu->rings[i], gpu->options->readers, LIMIT_NS), "not all readers come");
  /* The first frame always goes through the ring: with that frame the readers open the pool. */
  for (int i = 0; i < WARM_UP; i++) turn_of_ring(gpu, GPU_POOL, 1024, 1, 0);
  figures->pool = facts(gpu->writers[GPU_POOL]).way == RINGCAST_GPU_WAY_POOL;
  figures->free_open = free_bytes(gpu);
}

static void close_all(struct gpu *gpu) {
  struct gpu_figures *figures = gpu->figures;
  for (int i = 0; i < GPU_RINGS; i++) figures->writers[i] = facts(gpu->writers[i]);
  tell(gpu, CLOSE, GPU_POOL, 0);
  await_readers(gpu);
  for (int i = 0; i < GPU_RINGS; i++) {
    figures->readers[i] = gpu->shared->readers[0].info[i];
    for (uint32_t reader = 1; reader < gpu->options->readers; reader++) {
      figures->readers[i].opens += gpu->shared->readers[reader].info[i].opens;
      figures->readers[i].syncs += gpu->shared->readers[reader].info[i].syncs;
    }
    ringcast_gpu_writer_close(gpu->writers[i]);
    ringcast_writer_close(gpu->rings[i]);
  }
  must_cuda(gpu, gpu->cuda.free(gpu->copy), "cuMemFree");
  must_cuda(gpu, gpu->cuda.host_unregister(gpu->host), "cuMemHostUnregister");
  munmap(gpu->host, gpu->largest);
  perf_stop(&gpu->children);
  figures->free_after = free_bytes(gpu);
}

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

struct series {
  double total[ROUNDS], send[ROUNDS], receive[ROUNDS], row[ROUNDS];
};

/* The tensors of a round fill at most half of the pool, since no reader takes any in between. */
static void measure_copies(struct gpu *gpu, struct series *series, uint64_t bytes, struct gpu_size_figures *out) {
  uint64_t fit = gpu->pool_bytes / 2 / bytes;
  uint32_t count = fit > MOST_IN_A_ROW ? MOST_IN_A_ROW : (uint32_t)fit;
  int64_t end = perf_now_ns() + (int64_t)(gpu->options->seconds / 4 * 1e9);
  double *pool = out->of[GPU_POOL], *plain = &out->of[GPU_DTOD][GPU_COPY], per_s = (double)bytes * count * 1e9;
  size_t round;
  pool[GPU_COPY_IN] = pool[GPU_COPY_OUT] = pool[GPU_COPY_RATIO] = *plain = NAN;
  if (!gpu->figures->pool || !gpu->cuda.wait_value) return;
  for (round = 0; round <= ROUNDS && (round <= LEAST_ROUNDS || perf_now_ns() < end); round++) {
    struct held held = turn_held(gpu, bytes, count);
    if (round == 0) continue;
    series->total[round - 1] = held.in;
    series->send[round - 1] = held.out;
    series->receive[round - 1] = held.plain;
  }
  pool[GPU_COPY_IN] = per_s / perf_median(series->total, round - 1);
  pool[GPU_COPY_OUT] = per_s / perf_median(series->send, round - 1);
  *plain = per_s / perf_median(series->receive, round - 1);
  pool[GPU_COPY_RATIO] = fmin(pool[GPU_COPY_IN], pool[GPU_COPY_OUT]) / *plain;
}

static void measure_size(struct gpu *gpu, struct series *series, uint64_t bytes, struct gpu_size_figures *out) {
  uint64_t fit = ROW_BYTES / bytes;
  uint32_t row = fit > MOST_IN_A_ROW ? MOST_IN_A_ROW : fit < 2 ? 2 : (uint32_t)fit;
  int64_t end = perf_now_ns() + (int64_t)(gpu->options->seconds * 1e9);
  int first = gpu->figures->pool ? GPU_POOL : GPU_INLINE;
  size_t round;
  for (round = 0; round <= ROUNDS && (round <= LEAST_ROUNDS || perf_now_ns() < end); round++)
    for (int way = first; way < GPU_WAYS; way++) {
      struct turn one = take_turn(gpu, (enum gpu_way)way, bytes, 1);
      struct turn several = take_turn(gpu, (enum gpu_way)way, bytes, row);
      if (round == 0) continue; /* memory is put in place, and code is loaded */
      series[way].total[round - 1] = one.total_ns;
      series[way].send[round - 1] = one.send_ns;
      series[way].receive[round - 1] = one.receive_ns;
      series[way].row[round - 1] = several.total_ns;
    }
  out->bytes = bytes;
  for (int way = first; way < GPU_WAYS; way++) {
    out->rounds[way] = round - 1;
    out->of[way][GPU_COMPLETION] = perf_median(series[way].total, round - 1) / 1e3;
    out->of[way][GPU_SEND] = perf_median(series[way].send, round - 1) / 1e3;
    out->of[way][GPU_RECEIVE] = way < GPU_RINGS ? perf_median(series[way].receive, round - 1) / 1e3 : NAN;
    out->of[way][GPU_RATE] = (double)bytes * row / perf_median(series[way].row, round - 1) * 1e9;
  }
  measure_copies(gpu, series, bytes, out);
}

int perf_gpu(const struct perf_options *options) {
  static struct gpu_figures figures;
  struct gpu gpu = {.options = options, .figures = &figures};
  gpu.oversubscribed = (uint32_t)options->cpu_count <= options->readers;
  for (int i = 0; i < options->size_count; i++)
    if (options->sizes[i] > gpu.largest) gpu.largest = options->sizes[i];
  size_t bytes = sizeof *gpu.shared + options->readers * sizeof gpu.shared->readers[0];
  gpu.shared = perf_shared(bytes);
  for (uint32_t i = 0; i < options->readers; i++)
    perf_start(&gpu.children, options, UINT32_MAX /* no process is pinned */, reader_body, &gpu);
  struct series *series = calloc(GPU_WAYS, sizeof *series);
  if (!series) perf_die("no memory");
  open_all(&gpu);
  for (int i = 0; i < options->size_count; i++) {
    perf_progress(options, (double)i / options->size_count);
    measure_size(&gpu, series, options->sizes[i], &figures.sizes[i]);
  }
  perf_progress(options, 1);
  figures.size_count = options->size_count;
  close_all(&gpu);
  gpu_print(options, &figures);
  free(series);
  perf_unshare(gpu.shared, bytes);
  return CLI_OK;
}
