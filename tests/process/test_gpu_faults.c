/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each call of the driver fails once: the first, then the second, until a run has no failure. First in the writer, then
 * in the reader; first as a call that fails, then as one after which nothing works any more. A call that fails comes
 * out as an error with words, after which the same goes when it is tried again, or is made up for; what has come is
 * right; the other process does not notice. Nothing hangs and nothing is left behind, but for what the call that failed
 * was to give back.
 */
#include <sys/mman.h>

#include "tests/support/gpu_peers.h"
#include "tests/support/suite.h"

enum {
  FRAMES = 4 /* by the ring, and three by the pool, two of them read where they lie */,
  TRANSIENT = 999,
  FOR_GOOD = 700,
  MOST_SHARES = 12
};
enum { WRITER, READER };
static struct board {
  char handle[128];
  struct side {
    long calls;      /* of the driver */
    char failed[48]; /* which of them */
    uint32_t whole, by_pool, errors;
    struct ringcast_gpu_info info;
  } sides[2];
} * board;

static struct {
  int victim, result;
  long call;
  struct gate attached, received;
} run;

/* ---- What both do ----------------------------------------------------------------------------------------------- */

static void begin_side(int who, int *files) {
  char fault[64];
  *files = begin_peer(who == WRITER ? "writer" : "reader");
  if (run.victim != who) return;
  snprintf(fault, sizeof fault, "*:%ld:%d", run.call, run.result);
  setenv("FAKE_CUDA_FAIL", fault, 1);
}

static bool has_failed(void) { return *fake_cuda()->failed() != '\0'; }

/* Nothing works on this side's device any more. */
static bool is_broken(int who) { return run.victim == who && has_failed() && (run.result == FOR_GOOD || !rc_cuda()); }

static void end_side(int who, int files) {
  struct side *side = &board->sides[who];
  side->calls = fake_cuda()->calls("*");
  snprintf(side->failed, sizeof side->failed, "%s", fake_cuda()->failed());
  await_nothing_left(files);
}

/* ---- The writer -------------------------------------------------------------------------------------------------- */

static ringcast_gpu_writer *open_writer(ringcast_writer *writer) {
  const struct ringcast_gpu_writer_options options = {
      .size = sizeof options, .device = 0, .pool_bytes = 2 << 20, .slots = 4};
  ringcast_gpu_writer *gpu = NULL;
  int rc = ringcast_gpu_writer_open(writer, &options, &gpu);
  must_say_why(rc);
  if (rc != 0 && !is_broken(WRITER)) child_must(ringcast_gpu_writer_open(writer, &options, &gpu) == 0);
  return gpu;
}

static void await_received(void) { gate_wait(&run.received); }

/* One after the other: each has been received before the next. */
static void send_all(ringcast_gpu_writer *gpu, struct own_device *own) {
  int rc = 0;
  for (uint64_t number = 0; number < FRAMES && rc == 0; number++) {
    bool filled = fill_frame(own, number);
    child_must(filled || is_broken(WRITER));
    rc = send_frame(gpu, own, number, RINGCAST_FOREVER);
    if (rc != 0 && !is_broken(WRITER)) rc = send_frame(gpu, own, number, RINGCAST_FOREVER);
    child_must(rc == 0 || is_broken(WRITER));
    if (rc == 0) await_received();
  }
}

static void be_the_writer(void *context) {
  (void)context;
  struct side *side = &board->sides[WRITER];
  const struct ringcast_writer_options options = {.size = sizeof options, .capacity = 65536, .readers = 2};
  struct own_device own;
  ringcast_writer *writer;
  int files;
  begin_side(WRITER, &files);
  bool has_device = own_device_open(&own);
  child_must(has_device || is_broken(WRITER));
  child_must(ringcast_writer_create_ex(&options, &writer) == 0);
  ringcast_gpu_writer *gpu = open_writer(writer);
  memcpy(board->handle, ringcast_writer_handle(writer), strlen(ringcast_writer_handle(writer)));
  gate_open(&run.attached); /* it may attach, and has */
  gate_wait(&run.received);
  side->info.size = sizeof side->info;
  if (gpu && has_device) {
    send_all(gpu, &own);
    child_must(ringcast_gpu_writer_info(gpu, &side->info) == 0);
  }
  ringcast_gpu_writer_close(gpu);
  ringcast_writer_close(writer);
  own_device_close(&own);
  end_side(WRITER, files);
}

/* ---- The reader -------------------------------------------------------------------------------------------------- */

static ringcast_gpu_reader *open_reader(ringcast_reader *reader) {
  ringcast_gpu_reader *gpu = NULL;
  int rc = ringcast_gpu_reader_open(reader, NULL, &gpu);
  must_say_why(rc);
  if (rc != 0 && !is_broken(READER)) child_must(ringcast_gpu_reader_open(reader, NULL, &gpu) == 0);
  return gpu;
}

/* A reader without a device holds up no other party. */
static int pass_over(ringcast_reader *reader) {
  struct ringcast_frame frame;
  int rc = ringcast_reader_next(reader, RINGCAST_FOREVER, &frame);
  return rc != 0 ? rc : ringcast_reader_release(reader, &frame);
}

static void read_all(ringcast_reader *reader, ringcast_gpu_reader *gpu, struct own_device *own) {
  struct side *side = &board->sides[READER];
  for (uint64_t expected = 0;; expected++) {
    struct received frame = {0};
    int rc = gpu ? receive_frame(gpu, own, RINGCAST_FOREVER, &frame) : pass_over(reader);
    if (rc == -EPIPE) break;
    if (rc != 0) fprintf(stderr, "the next frame: %d (%s)\n", rc, ringcast_last_error());
    child_must(rc == 0 && (!gpu || frame.number == expected));
    side->whole += frame.whole;
    side->errors += gpu && !frame.whole;
    side->by_pool += frame.whole && frame.by_pool;
    gate_open(&run.received);
  }
}

static void be_the_reader(void *context) {
  (void)context;
  struct own_device own;
  ringcast_reader *reader;
  int files;
  begin_side(READER, &files);
  gate_wait(&run.attached);
  bool has_device = own_device_open(&own);
  child_must(has_device || is_broken(READER));
  child_must(ringcast_reader_attach(board->handle, &reader) == 0);
  ringcast_gpu_reader *gpu = open_reader(reader);
  gate_open(&run.received);
  read_all(reader, has_device ? gpu : NULL, &own);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  own_device_close(&own);
  end_side(READER, files);
}

/* ---- The runs ---------------------------------------------------------------------------------------------------- */

/* Both, in the order in which they end: the one that fails is told of, not the other, which waits for it. */
static void end_children(const pid_t *pids) {
  int status;
  for (int i = 0; i < 2; i++) {
    pid_t pid = wait(&status);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "the %s ended with status 0x%x: call %ld of the %s gave %d",
                  pid == pids[WRITER] ? "writer" : "reader", status, run.call,
                  run.victim == WRITER ? "writer" : "reader", run.result);
  }
}

/* False: no call was left to fail. */
static bool try_call(long call) {
  struct side *writer = &board->sides[WRITER], *reader = &board->sides[READER];
  memset(board, 0, sizeof *board);
  run.call = call;
  run.attached = gate_make();
  run.received = gate_make();
  const pid_t pids[] = {start_child(be_the_writer, NULL), start_child(be_the_reader, NULL)};
  end_children(pids);
  gate_free(&run.attached);
  gate_free(&run.received);
  bool hit = *board->sides[run.victim].failed != '\0';
  bool broken = hit && (run.result == FOR_GOOD || strcmp(board->sides[run.victim].failed, "cuInit") == 0 ||
                        strcmp(board->sides[run.victim].failed, "cuDeviceGetCount") == 0);
  const char *name = board->sides[run.victim].failed;
  if (!broken) {
    ck_assert_msg(reader->whole + reader->errors == FRAMES, "%s: %u frames", name, reader->whole + reader->errors);
    ck_assert_msg(reader->errors <= (run.victim == READER && hit), "%s: %u frames were not right", name,
                  reader->errors);
  }
  if (!hit) {
    ck_assert_uint_eq(reader->by_pool, FRAMES - 1);
    ck_assert_uint_eq(writer->info.way, RINGCAST_GPU_WAY_POOL);
  }
  return hit;
}

START_TEST(each_call_fails_once) {
  long call = 1;
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(board, MAP_FAILED);
  run.victim = _i / 2;
  run.result = _i % 2 ? FOR_GOOD : TRANSIENT;
  while (try_call(call)) call += MOST_SHARES / share_of(MOST_SHARES);
  ck_assert_int_gt(call, 60);
  munmap(board, sizeof *board);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_faults");
  TCase *tests = add_case(suite, "each call of the driver");
  tcase_add_loop_test(tests, each_call_fails_once, 0, 4);
  return run_gpu_suite(suite, "test_gpu_faults");
}
