/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringcast perf record`: the rate of a recorder, and the cost for a ring that is recorded.
 *   The disk's own rate and the recorder's take turns, in the same directory: first chunks without a recording, written
 *   as the recorder writes; then a recording of a writer that sends without a pause,
 *   as an ordinary reader (`record --lossless`), since a tap loses frames of a writer without a pause.
 *   Then a writer sends a message every 2 ms to a reader, in blocks with a tap that records and blocks without, in
 * turns: the time of the whole send (reserve, copy, commit), of the commit, and from just before the commit until the
 * reader has the message. The files are removed as soon as they are open.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/disk.h"
#include "tools/perf.h"
#include "tools/record.h"

enum { ROUNDS = 2, UNPINNED = PERF_MAX_CPUS + 1 /* parties: more than there are CPUs */ };
enum { BLOCKS = 12, LEARNING = 20, LOADS = 2, MOST_MESSAGES = 4096 /* of a block */, FIGURES = 3 };

static const int64_t GAP_NS = 2000000;
static const size_t LOAD_SIZES[LOADS] = {65536, 256};

struct shared {
  char handle[RINGCAST_HANDLE_BYTES];
  _Alignas(PERF_LINE) uint64_t made;    /* the handle is there */
  _Alignas(PERF_LINE) uint64_t started; /* the recorder has attached */
  _Alignas(PERF_LINE) uint64_t ended;   /* ... and its file is whole */
  _Alignas(PERF_LINE) volatile sig_atomic_t stop;
  _Alignas(PERF_LINE) uint64_t had; /* messages of this block that the reader has */
  double reader_ns[MOST_MESSAGES];
};

enum figure { SEND, COMMIT, READER };

struct measured {
  const struct perf_options *options;
  struct shared *shared;
  struct ringcast_info info;
  double disk_rate, record_rate; /* bytes a second */
  struct perf_series ns[LOADS][2][FIGURES]; /* [1]: with a recorder */
  uint64_t recorded, gaps;
};

/* ---- Rates ------------------------------------------------------------------------------------------------------ */

static const char *file_of(const struct perf_options *options) {
  return options->file ? options->file : "ringcast-perf.rcrec";
}

/* The chunks of a recorder, with bytes that no disk can leave out. */
static double write_disk(const struct perf_options *options, uint64_t bytes) {
  struct disk *disk;
  char why[256];
  uint64_t word = 88172645463325252;
  if (disk_open(file_of(options), RECORD_BUFFER, &disk, why) != 0) perf_die("%s", why);
  unlink(file_of(options));
  int64_t start = perf_now_ns();
  int result = 0;
  size_t room;
  for (uint64_t done = 0; done < bytes && result == 0; done += room) {
    uint8_t *memory;
    result = disk_room(disk, done, &memory, &room);
    if (result != 0) break;
    uint64_t *at = (uint64_t *)(void *)memory;
    for (size_t i = 0; i < room / sizeof word && done < RECORD_BUFFER; i++) {
      word ^= word << 13, word ^= word >> 7, word ^= word << 17;
      at[i] = word;
    }
    result = disk_write(disk, done + room, true);
    if (done + room == RECORD_BUFFER) { /* the first lap fills the memory; the next begins with an idle disk */
      disk_drain(disk);
      start = perf_now_ns();
    }
  }
  if (result == 0) result = disk_drain(disk);
  if (result == 0 && fdatasync(disk_fd(disk)) != 0) result = -errno;
  if (result != 0) perf_die("can't write %s: %s", file_of(options), strerror(-result));
  double seconds = (double)(perf_now_ns() - start) / 1e9;
  disk_close(disk);
  return (double)(bytes - RECORD_BUFFER) / seconds;
}

static void on_start(void *context) { unlink(file_of(context)); }

/* A child: sends until the parent ends it. */
static void flood(void *context, uint32_t index) {
  const struct measured *measured = context;
  (void)index;
  ringcast_writer *writer = perf_writer(measured->options, measured->options->capacity, 0);
  strncpy(measured->shared->handle, ringcast_writer_handle(writer), sizeof measured->shared->handle - 1);
  perf_store(&measured->shared->made, 1);
  const uint8_t *source = perf_source(measured->options->size);
  perf_must(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER), "the recorder does not come");
  while (ringcast_writer_send(writer, source, measured->options->size, RINGCAST_KIND_BYTES, RINGCAST_FOREVER) == 0)
    continue;
  for (;;) pause(); /* the recorder has enough */
}

static double record_flood(struct measured *measured, uint64_t bytes) {
  const struct perf_options *options = measured->options;
  struct perf_children children = {0};
  struct record_result result;
  struct record_options asked = {.file = file_of(options), .buffer = RECORD_BUFFER, .bytes = bytes, .lossless = true};
  measured->shared->made = 0;
  perf_start(&children, options, UNPINNED, flood, measured);
  while (perf_load(&measured->shared->made) == 0) perf_relax(true);
  if (record_run(&asked, measured->shared->handle, on_start, (void *)(uintptr_t)options, &result) != 0)
    perf_die("%s", result.why);
  if (result.end != RECORD_ENOUGH) perf_die("can't record to %s: %s", file_of(options), result.why);
  perf_stop(&children);
  return (double)result.sum.bytes / result.seconds;
}

static void measure_rates(struct measured *measured) {
  for (int round = 0; round < ROUNDS; round++) {
    measured->disk_rate += write_disk(measured->options, measured->options->bytes / ROUNDS) / ROUNDS;
    perf_progress(measured->options, (round + 0.25) / ROUNDS);
    measured->record_rate += record_flood(measured, measured->options->bytes / ROUNDS) / ROUNDS;
    perf_progress(measured->options, (round + 0.5) / ROUNDS);
  }
}

/* ---- Latency ---------------------------------------------------------------------------------------------------- */

static void read_all(void *context, uint32_t index) {
  const struct measured *measured = context;
  struct shared *shared = measured->shared;
  ringcast_reader *reader = perf_attach(shared->handle, 0);
  (void)index;
  for (;;) {
    struct ringcast_frame frame;
    int64_t stamp;
    perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
    int64_t now = perf_now_ns();
    memcpy(&stamp, frame.data, sizeof stamp);
    shared->reader_ns[shared->had % MOST_MESSAGES] = (double)(now - stamp);
    perf_must(ringcast_reader_release(reader, &frame), "can't release");
    perf_store(&shared->had, shared->had + 1);
  }
}

static void on_tapping(void *context) {
  struct measured *measured = context;
  unlink(file_of(measured->options));
  perf_store(&measured->shared->started, 1);
}

static void tap(void *context, uint32_t index) {
  struct measured *measured = context;
  struct record_options asked = {
      .file = file_of(measured->options), .buffer = RECORD_BUFFER, .stop = &measured->shared->stop};
  struct record_result result;
  (void)index;
  if (record_run(&asked, measured->shared->handle, on_tapping, measured, &result) != 0 || result.error != 0)
    perf_die("%s", result.why);
  perf_store(&measured->shared->ended, result.sum.frames + 1 + (result.sum.gaps << 32));
  for (;;) pause();
}

static void sleep_until(int64_t due) {
  const struct timespec time = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) continue;
}

static void send_one(ringcast_writer *writer, const uint8_t *source, size_t size, double out[FIGURES]) {
  struct ringcast_span span;
  int64_t start = perf_now_ns();
  perf_must(ringcast_writer_reserve(writer, size, RINGCAST_FOREVER, &span), "can't send");
  memcpy(span.data, source, size);
  int64_t before = perf_now_ns();
  memcpy(span.data, &before, sizeof before);
  perf_must(ringcast_writer_commit(writer, size, RINGCAST_KIND_BYTES), "can't send");
  int64_t end = perf_now_ns();
  out[SEND] = (double)(end - start);
  out[COMMIT] = (double)(end - before);
}

static void run_messages(struct measured *measured, int load, bool recorded, ringcast_writer *writer, uint64_t count) {
  struct shared *shared = measured->shared;
  size_t size = LOAD_SIZES[load];
  uint8_t *source = perf_source(size);
  double ns[FIGURES];
  uint64_t had = shared->had;
  int64_t due = perf_now_ns();
  for (uint64_t i = 0; i < count; i++) {
    sleep_until(due += GAP_NS);
    send_one(writer, source, size, ns);
    while (perf_load(&shared->had) < had + i + 1) {
      const struct timespec moment = {.tv_nsec = 100000};
      nanosleep(&moment, NULL); /* leaves the CPU to the reader and the recorder */
    }
    ns[READER] = shared->reader_ns[(had + i) % MOST_MESSAGES];
    for (int what = 0; i >= LEARNING && what < FIGURES; what++)
      perf_add(&measured->ns[load][recorded][what], &ns[what], 1);
  }
  free(source);
}

static void run_block(struct measured *measured, int load, bool recorded, ringcast_writer *writer, uint64_t count) {
  struct shared *shared = measured->shared;
  struct perf_children recorder = {0};
  shared->stop = 0;
  perf_store(&shared->started, 0);
  perf_store(&shared->ended, 0);
  if (recorded) {
    perf_start(&recorder, measured->options, UNPINNED, tap, measured);
    while (perf_load(&shared->started) == 0) perf_relax(true);
  }
  run_messages(measured, load, recorded, writer, count);
  if (!recorded) return;
  shared->stop = 1;
  while (perf_load(&shared->ended) == 0) perf_relax(true);
  measured->recorded += (uint32_t)perf_load(&shared->ended) - 1;
  measured->gaps += perf_load(&shared->ended) >> 32;
  perf_stop(&recorder);
}

static void measure_latency(struct measured *measured) {
  const struct perf_options *options = measured->options;
  struct perf_children reader = {0};
  ringcast_writer *writer = perf_writer(options, options->capacity, 0);
  perf_must(ringcast_writer_info(writer, &measured->info), "no facts of the ring");
  strncpy(measured->shared->handle, ringcast_writer_handle(writer), sizeof measured->shared->handle - 1);
  perf_start(&reader, options, UNPINNED, read_all, measured);
  perf_must(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER), "the reader does not come");
  double messages = options->seconds * 1e9 / (double)GAP_NS / BLOCKS;
  uint64_t count = LEARNING + (uint64_t)fmin(fmax(messages, 10), MOST_MESSAGES / 2.0);
  for (int load = 0; load < LOADS; load++)
    for (int block = 0; block < BLOCKS; block++) {
      run_block(measured, load, (block % 4 == 1) || (block % 4 == 2), writer, count); /* without, with, with, without */
      perf_progress(options, (load + (double)block / BLOCKS) / LOADS);
    }
  perf_progress(options, 1);
  perf_stop(&reader);
  ringcast_writer_close(writer);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

static void print_latency(struct report *report, struct measured *measured, int load, enum figure what) {
  static const char *const names[] = {[SEND] = "send", [COMMIT] = "commit", [READER] = "reader"};
  struct perf_series *without = &measured->ns[load][0][what], *with = &measured->ns[load][1][what];
  double p50[2] = {perf_quantile_of(without, 0.5), perf_quantile_of(with, 0.5)};
  double p99[2] = {perf_quantile_of(without, 0.99), perf_quantile_of(with, 0.99)};
  char name[64];
  snprintf(name, sizeof name, "%s, %zu bytes", names[what], LOAD_SIZES[load]);
  report_open(report, NULL, '{');
  report_string(report, "latency_us", name);
  report_number(report, "p50", p50[0] / 1e3);
  report_number(report, "p50_recorded", p50[1] / 1e3);
  report_number(report, "ratio_p50", p50[1] / p50[0]);
  report_number(report, "p99", p99[0] / 1e3);
  report_number(report, "p99_recorded", p99[1] / 1e3);
  report_number(report, "ratio_p99", p99[1] / p99[0]);
  report_close(report);
}

static void print(struct measured *measured) {
  struct report report;
  perf_print_head(&report, measured->options, &measured->info, UNPINNED);
  report_string(&report, "file", file_of(measured->options));
  report_integer(&report, "bytes", (int64_t)measured->options->bytes);
  report_number(&report, "disk_bytes_per_s", measured->disk_rate);
  report_number(&report, "record_bytes_per_s", measured->record_rate);
  report_number(&report, "ratio", measured->record_rate / measured->disk_rate);
  report_integer(&report, "frames_recorded", (int64_t)measured->recorded);
  report_integer(&report, "gaps", (int64_t)measured->gaps);
  report_open(&report, "latency", '[');
  for (int load = 0; load < LOADS; load++)
    for (int what = 0; what < FIGURES; what++) print_latency(&report, measured, load, (enum figure)what);
  report_close(&report);
  report_close(&report);
}

int perf_record(const struct perf_options *options) {
  static struct measured measured;
  measured.options = options;
  measured.info.size = sizeof measured.info;
  measured.shared = perf_shared(sizeof *measured.shared);
  measure_rates(&measured);
  measure_latency(&measured);
  print(&measured);
  return CLI_OK;
}
