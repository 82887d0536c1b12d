/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a GPU from one process to others on the same device, in turn: by the device pool
 * (POOL), through the ring (INLINE), and the hardware's limits for the same bytes: a plain copy
 * within the device, and a plain copy from registered host memory to the device.
 *
 * There are two rings, and only the first has a pool, so only the way differs. A turn is one
 * tensor, from the call of send until every reader's device has the tensor; or several tensors in a
 * row, for the bandwidth. POOL makes two copies, in processes that take turns on the device, so
 * each copy is measured alone too, beside the plain copy: the whole work is queued on the stream,
 * behind a wait for a word, before the clock starts.
 *
 * The writer announces each turn in a shared word. The readers start before the first use of CUDA,
 * which does not survive a fork. No process is pinned, since the driver's own threads would be
 * pinned too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/cuda.h"
#include "tools/measure/perf.h"

enum { ROUNDS = 400, LEAST_ROUNDS = 5, MOST_IN_A_ROW = 16, WARM_UP = 3, PAGE = 4096 };
enum order { OPEN = 1, RECEIVE, RECEIVE_HELD, CLOSE };
enum way { POOL, INLINE, DTOD, HTOD, WAYS, RINGS = 2 /* the first two are ringcast's */ };
enum figure {
  SEND,       /* ns of the CPU for a tensor; of the plain copies, for the call */
  RECEIVED,   /* the same, at the slowest reader */
  COMPLETION, /* from the call of send until the last reader's device has the bytes */
  ROW,        /* the same for several in a row: two copies each by POOL */
  FIGURES
};

static const int64_t LIMIT_NS = (int64_t)CUDA_LIMIT_S * 1000000000;
static const uint64_t ROW_BYTES = 256 << 20; /* the most bytes in a row; two tensors may be more */

struct shared {
  _Alignas(PERF_LINE) uint64_t turn; /* number of the turn; written after the fields below */
  enum order order;
  enum way way;
  uint32_t count;
  char handles[RINGS][96];
  struct {
    _Alignas(PERF_LINE) uint64_t done; /* turns */
    int64_t finished_ns;
    double host_ns;    /* the CPU's time for a tensor */
    double blocked_ns; /* the device's time for all of RECEIVE_HELD */
    struct ringcast_gpu_info info[RINGS];
  } readers[];
};

struct gpu {
  const struct perf_options *options;
  struct shared *shared;
  uint64_t largest, pool_bytes;
  bool oversubscribed, has_pool;
  struct cuda cuda;
  ringcast_stream stream;
  ringcast_device_ptr memory;
  uint64_t *word, holds; /* the word that holds the stream, and how often */
  ringcast_device_ptr word_address;
  struct perf_children children;
  /* The writer's alone: */
  ringcast_writer *rings[RINGS];
  ringcast_gpu_writer *writers[RINGS];
  ringcast_device_ptr copy; /* of the device; to copy to */
  void *host;               /* registered; to copy from */
  struct ringcast_gpu_driver driver;
  struct ringcast_gpu_device_info device;
  struct report report;
};

static void must_cuda(struct gpu *gpu, int result, const char *what) {
  if (!cuda_did(&gpu->cuda, result, what)) perf_die("%s", gpu->cuda.failed);
}

static void *registered(struct gpu *gpu, size_t bytes) {
  void *memory = perf_shared(bytes);
  must_cuda(gpu, gpu->cuda.host_register(memory, bytes, CUDA_REGISTER_MAPPED), "cuMemHostRegister");
  return memory;
}

static void open_device(struct gpu *gpu) {
  if (!cuda_open(&gpu->cuda, 0)) perf_die("%s", gpu->cuda.failed);
  must_cuda(gpu, gpu->cuda.alloc(&gpu->memory, gpu->largest), "cuMemAlloc");
  must_cuda(gpu, gpu->cuda.stream_create(&gpu->stream, CUDA_STREAM_NON_BLOCKING), "cuStreamCreate");
  gpu->word = registered(gpu, PAGE);
  must_cuda(gpu, gpu->cuda.host_pointer(&gpu->word_address, gpu->word, 0),
            "cuMemHostGetDevicePointer");
}

static void await_device(struct gpu *gpu) {
  must_cuda(gpu, gpu->cuda.stream_synchronize(gpu->stream), "cuStreamSynchronize");
}

/* Later work on the stream starts with let_go, which returns the time of that work. */
static void hold(struct gpu *gpu) {
  must_cuda(gpu, gpu->cuda.wait_value(gpu->stream, gpu->word_address, ++gpu->holds, 0),
            "cuStreamWaitValue64");
}

static double let_go(struct gpu *gpu) {
  int64_t start = perf_now_ns();
  __atomic_store_n(gpu->word, gpu->holds, __ATOMIC_RELEASE); /* the device reads the word */
  await_device(gpu);
  return (double)(perf_now_ns() - start);
}

/* ---- A reader -------------------------------------------------------------------------------- */

static void open_readers(struct gpu *gpu, ringcast_reader *rings[RINGS],
                         ringcast_gpu_reader *readers[RINGS]) {
  struct ringcast_gpu_reader_options options = {.size = sizeof options, .device = 0};
  open_device(gpu);
  for (int i = 0; i < RINGS; i++) {
    rings[i] = perf_attach(gpu->shared->handles[i], 0);
    perf_must(ringcast_gpu_reader_open(rings[i], &options, &readers[i]), "can't add the device");
  }
}

/* Receives what the turn sends, held or not. */
static void receive(struct gpu *gpu, ringcast_gpu_reader *reader, uint32_t index) {
  struct shared *shared = gpu->shared;
  bool held = shared->order == RECEIVE_HELD;
  int64_t host = 0, ns;
  if (held) hold(gpu);
  for (uint32_t i = 0; i < shared->count; i++, host += ns)
    perf_must(cuda_receive(reader, gpu->memory, gpu->largest, gpu->stream, &ns), "can't receive");
  if (held) shared->readers[index].blocked_ns = let_go(gpu);
  else await_device(gpu);
  shared->readers[index].finished_ns = perf_now_ns();
  shared->readers[index].host_ns = (double)host / shared->count;
}

static void reader_body(void *context, uint32_t index) {
  struct gpu *gpu = context;
  struct shared *shared = gpu->shared;
  ringcast_reader *rings[RINGS] = {NULL};
  ringcast_gpu_reader *readers[RINGS] = {NULL};
  for (uint64_t turn = 1;; turn++) {
    while (perf_load(&shared->turn) != turn) perf_relax(gpu->oversubscribed);
    if (shared->order == OPEN) open_readers(gpu, rings, readers);
    if (shared->order == RECEIVE || shared->order == RECEIVE_HELD)
      receive(gpu, readers[shared->way], index);
    for (int i = 0; i < RINGS && shared->order == CLOSE; i++) {
      struct ringcast_gpu_info *info = &shared->readers[index].info[i];
      info->size = sizeof *info;
      perf_must(ringcast_gpu_reader_info(readers[i], info), "no facts of the reader");
      ringcast_gpu_reader_close(readers[i]);
      ringcast_reader_close(rings[i]);
    }
    perf_store(&shared->readers[index].done, turn);
  }
}

/* ---- The writer ------------------------------------------------------------------------------ */

/* Tells the readers the next order. */
static void tell(struct gpu *gpu, enum order order, enum way way, uint32_t count) {
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
static void send(struct gpu *gpu, enum way way, uint64_t bytes, uint32_t flags) {
  int64_t start = perf_now_ns();
  int result;
  while ((result = cuda_send(gpu->writers[way], gpu->memory, bytes, flags, gpu->stream)) ==
         -EAGAIN) {
    if (perf_now_ns() - start > LIMIT_NS)
      perf_die("the pool is of no use any more: %s", facts(gpu->writers[way]).why);
    perf_relax(gpu->oversubscribed);
  }
  perf_must(result, "can't send");
}

static void plain_copy(struct gpu *gpu, enum way way, uint64_t bytes) {
  must_cuda(gpu,
            way == DTOD ? gpu->cuda.dtod(gpu->copy, gpu->memory, bytes, gpu->stream)
                        : gpu->cuda.htod(gpu->copy, gpu->host, bytes, gpu->stream),
            "a plain copy");
}

/* One turn of `count` tensors. `ns`: SEND, RECEIVED and COMPLETION. */
static void take_turn(struct gpu *gpu, enum way way, uint64_t bytes, uint32_t count,
                      double ns[FIGURES]) {
  bool ring = way < RINGS;
  if (ring) tell(gpu, RECEIVE, way, count);
  int64_t start = perf_now_ns(), last = start;
  for (uint32_t i = 0; i < count; i++) {
    if (ring) send(gpu, way, bytes, way == POOL && gpu->has_pool ? RINGCAST_GPU_NO_INLINE : 0);
    else plain_copy(gpu, way, bytes);
  }
  ns[SEND] = (double)(perf_now_ns() - start) / count;
  ns[RECEIVED] = ring ? 0 : NAN;
  if (ring) await_readers(gpu);
  else await_device(gpu);
  if (!ring) last = perf_now_ns();
  for (uint32_t i = 0; ring && i < gpu->options->readers; i++) {
    if (gpu->shared->readers[i].finished_ns > last) last = gpu->shared->readers[i].finished_ns;
    ns[RECEIVED] = fmax(ns[RECEIVED], gpu->shared->readers[i].host_ns);
  }
  ns[COMPLETION] = (double)(last - start);
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static uint64_t free_bytes(struct gpu *gpu) {
  size_t now_free, total;
  must_cuda(gpu, gpu->cuda.get_info(&now_free, &total), "cuMemGetInfo");
  return now_free;
}

static void open_writer(struct gpu *gpu, enum way way) {
  struct ringcast_writer_options ring = {
      .size = sizeof ring, .capacity = gpu->options->capacity, .readers = gpu->options->readers};
  struct ringcast_gpu_writer_options options = {
      .size = sizeof options, .pool_bytes = way == POOL ? gpu->pool_bytes : RINGCAST_NO_POOL};
  gpu->rings[way] = perf_try_writer(&ring, 2 * gpu->largest);
  if (!gpu->rings[way])
    perf_die("two of the largest tensors are to go through the ring in a row: %s", perf_reason());
  perf_must(ringcast_gpu_writer_open(gpu->rings[way], &options, &gpu->writers[way]),
            "can't add the device");
  snprintf(gpu->shared->handles[way], sizeof gpu->shared->handles[way], "%s",
           ringcast_writer_handle(gpu->rings[way]));
}

/* Bytes of the device that are free: before anything is open but one context; and with all open,
 * the readers' contexts too. */
static void open_all(struct gpu *gpu, uint64_t free_at[2]) {
  double ns[FIGURES];
  perf_must(ringcast_gpu_status(&gpu->driver), "can't tell whether there is a GPU");
  if (!gpu->driver.ready) perf_die("nothing was measured, as no GPU is used: %s", gpu->driver.why);
  perf_must(ringcast_gpu_device(0, &gpu->device), "can't tell what the GPU is");
  open_device(gpu);
  free_at[0] = free_bytes(gpu);
  must_cuda(gpu, gpu->cuda.alloc(&gpu->copy, gpu->largest), "cuMemAlloc");
  gpu->host = registered(gpu, gpu->largest);
  must_cuda(gpu, gpu->cuda.htod(gpu->memory, gpu->host, gpu->largest, gpu->stream),
            "cuMemcpyHtoDAsync");
  await_device(gpu);
  /* Room for four of the largest tensors, so that the pool is never full. */
  gpu->pool_bytes = 4 * gpu->largest > 64 << 20 ? 4 * gpu->largest : 64 << 20;
  for (enum way way = 0; way < RINGS; way++) open_writer(gpu, way);
  tell(gpu, OPEN, POOL, 0);
  await_readers(gpu);
  /* The first frame always goes through the ring: with that frame the readers open the pool. */
  for (int i = 0; i < WARM_UP; i++) take_turn(gpu, POOL, 1024, 1, ns);
  gpu->has_pool = facts(gpu->writers[POOL]).way == RINGCAST_GPU_WAY_POOL;
  free_at[1] = free_bytes(gpu);
}

static void report_info(struct report *report, const char *key,
                        const struct ringcast_gpu_info *info) {
  report_open(report, key, '{');
  report_integer(report, "pool_bytes", (int64_t)info->pool_bytes);
  report_integer(report, "pool_frames", (int64_t)info->pool_frames);
  report_integer(report, "inline_frames", (int64_t)info->inline_frames);
  report_integer(report, "opens", (int64_t)info->opens);
  report_integer(report, "syncs", (int64_t)info->syncs);
  report_boolean(report, "registered", info->registered);
  report_close(report);
}

/* What each side counted; the readers' opens and waits for the device are added up. */
static void close_all(struct gpu *gpu) {
  struct ringcast_gpu_info writers[RINGS] = {facts(gpu->writers[POOL]),
                                             facts(gpu->writers[INLINE])};
  tell(gpu, CLOSE, POOL, 0);
  await_readers(gpu);
  for (enum way way = 0; way < RINGS; way++) {
    struct ringcast_gpu_info *readers = &gpu->shared->readers[0].info[way];
    for (uint32_t i = 1; i < gpu->options->readers; i++) {
      readers->opens += gpu->shared->readers[i].info[way].opens;
      readers->syncs += gpu->shared->readers[i].info[way].syncs;
    }
    report_open(&gpu->report, way == POOL ? "ring_with_pool" : "ring_without", '{');
    report_info(&gpu->report, "writer", &writers[way]);
    report_info(&gpu->report, "readers", readers);
    report_close(&gpu->report);
    ringcast_gpu_writer_close(gpu->writers[way]);
    ringcast_writer_close(gpu->rings[way]);
  }
  must_cuda(gpu, gpu->cuda.free(gpu->copy), "cuMemFree");
  must_cuda(gpu, gpu->cuda.host_unregister(gpu->host), "cuMemHostUnregister");
  perf_unshare(gpu->host, gpu->largest);
  perf_stop(&gpu->children);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static double median_of(struct perf_series *series) {
  double median = perf_quantile_of(series, 0.5);
  series->count = 0;
  return median;
}

static void measure_size(struct gpu *gpu, uint64_t bytes) {
  static const char *const names[WAYS] = {"pool", "inline", "device_to_device", "host_to_device"};
  static struct perf_series series[WAYS][FIGURES];
  uint64_t fit = ROW_BYTES / bytes,
           end = (uint64_t)perf_now_ns() + (uint64_t)(gpu->options->seconds * 1e9);
  uint32_t row = (uint32_t)fmin(fmax((double)fit, 2), MOST_IN_A_ROW);
  enum way first = gpu->has_pool ? POOL : INLINE;
  int64_t round = 0;
  for (; round <= ROUNDS && (round <= LEAST_ROUNDS || (uint64_t)perf_now_ns() < end); round++)
    for (enum way way = first; way < WAYS; way++) {
      double ns[FIGURES], several[FIGURES];
      take_turn(gpu, way, bytes, 1, ns);
      take_turn(gpu, way, bytes, row, several);
      ns[ROW] = several[COMPLETION];
      for (int i = 0; round > 0 && i < FIGURES; i++)
        perf_add(&series[way][i], &ns[i], 1); /* 0: code is loaded */
    }
  report_open(&gpu->report, NULL, '{');
  report_integer(&gpu->report, "bytes", (int64_t)bytes);
  for (enum way way = first; way < WAYS; way++) {
    report_open(&gpu->report, names[way], '{');
    report_integer(&gpu->report, "rounds", round - 1);
    report_number(&gpu->report, "send_us", median_of(&series[way][SEND]) / 1e3);
    report_number(&gpu->report, "receive_us", median_of(&series[way][RECEIVED]) / 1e3);
    report_number(&gpu->report, "completion_us", median_of(&series[way][COMPLETION]) / 1e3);
    report_number(&gpu->report, "bytes_per_s",
                  (double)bytes * row / median_of(&series[way][ROW]) * 1e9);
    report_close(&gpu->report);
  }
  report_close(&gpu->report);
}

/* Copies of each kind alone: into the pool, out of it at the slowest reader, and plain. They fill
 * at most half of the pool, since no reader takes any in between. */
static void measure_copies(struct gpu *gpu, uint64_t bytes) {
  static struct perf_series in, out, plain;
  uint64_t fit = gpu->pool_bytes / 2 / bytes;
  uint32_t count = fit > MOST_IN_A_ROW ? MOST_IN_A_ROW : (uint32_t)fit;
  int64_t end = perf_now_ns() + (int64_t)(gpu->options->seconds / 4 * 1e9);
  for (int round = 0; round <= ROUNDS && (round <= LEAST_ROUNDS || perf_now_ns() < end); round++) {
    double ns[3] = {0};
    hold(gpu);
    for (uint32_t i = 0; i < count; i++) send(gpu, POOL, bytes, RINGCAST_GPU_NO_INLINE);
    ns[0] = let_go(gpu);
    tell(gpu, RECEIVE_HELD, POOL, count);
    await_readers(gpu);
    for (uint32_t i = 0; i < gpu->options->readers; i++)
      ns[1] = fmax(ns[1], gpu->shared->readers[i].blocked_ns);
    hold(gpu);
    for (uint32_t i = 0; i < count; i++) plain_copy(gpu, DTOD, bytes);
    ns[2] = let_go(gpu);
    if (round == 0) continue;
    perf_add(&in, &ns[0], 1);
    perf_add(&out, &ns[1], 1);
    perf_add(&plain, &ns[2], 1);
  }
  double all = (double)bytes * count * 1e9;
  double rates[3] = {all / median_of(&in), all / median_of(&out), all / median_of(&plain)};
  report_open(&gpu->report, NULL, '{');
  report_integer(&gpu->report, "bytes", (int64_t)bytes);
  report_number(&gpu->report, "writer_copy_bytes_per_s", rates[0]);
  report_number(&gpu->report, "reader_copy_bytes_per_s", rates[1]);
  report_number(&gpu->report, "device_to_device_bytes_per_s", rates[2]);
  report_number(&gpu->report, "ratio", fmin(rates[0], rates[1]) / rates[2]);
  report_close(&gpu->report);
}

/* The writer knows that a reader has no pool; the reader knows the words of the driver, and tells
 * them at the end. */
static void report_head(struct gpu *gpu) {
  struct report *report = &gpu->report;
  const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
  char text[512];
  report->json = gpu->options->json;
  report_open(report, NULL, '{');
  report_string(report, "measurement", gpu->options->name);
  report_string(report, "version", ringcast_version());
  report_string(report, "cpu", cli_cpu_model(text, sizeof text));
  report_string(report, "device", gpu->device.name);
  report_integer(report, "driver", gpu->driver.version);
  report_integer(report, "readers", gpu->options->readers);
  report_number(report, "seconds", gpu->options->seconds);
  report_boolean(report, "pool", gpu->has_pool);
  report_string(report, "why", gpu->has_pool ? "" : facts(gpu->writers[POOL]).why);
  /* Without MPS the contexts of several processes take turns on a device: completion contains the
   * switches between them, or with MPS each other's work. */
  snprintf(text, sizeof text, "%s/control", folder ? folder : "/tmp/nvidia-mps");
  report_string(report, "device_shared_by", access(text, F_OK) == 0 ? "MPS" : "time slices");
}

int perf_gpu(const struct perf_options *options) {
  struct gpu gpu = {.options = options,
                    .oversubscribed = (uint32_t)options->cpu_count <= options->readers,
                    .driver.size = sizeof gpu.driver,
                    .device.size = sizeof gpu.device};
  uint64_t free_at[2];
  for (int i = 0; i < options->size_count; i++)
    if (options->sizes[i] > gpu.largest) gpu.largest = options->sizes[i];
  gpu.shared = perf_shared(sizeof *gpu.shared + options->readers * sizeof gpu.shared->readers[0]);
  for (uint32_t i = 0; i < options->readers; i++)
    perf_start(&gpu.children, options, UINT32_MAX /* no process is pinned */, reader_body, &gpu);
  open_all(&gpu, free_at);
  report_head(&gpu);
  report_open(&gpu.report, "sizes", '[');
  for (int i = 0; i < options->size_count; i++) measure_size(&gpu, options->sizes[i]);
  report_close(&gpu.report);
  report_open(&gpu.report, "copies", '[');
  for (int i = 0; i < options->size_count && gpu.has_pool && gpu.cuda.wait_value; i++)
    measure_copies(&gpu, options->sizes[i]);
  report_close(&gpu.report);
  close_all(&gpu);
  report_open(&gpu.report, "device_free_bytes", '{');
  report_integer(&gpu.report, "before", (int64_t)free_at[0]);
  report_integer(&gpu.report, "open", (int64_t)free_at[1]);
  report_integer(&gpu.report, "after", (int64_t)free_bytes(&gpu));
  report_close(&gpu.report);
  report_close(&gpu.report);
  return CLI_OK;
}
