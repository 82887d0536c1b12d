/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   gpu_kill [--rounds N] [--seed N] [--only POINT]
 *
 * A writer and two readers of device tensors, with the fake driver; one of them is killed, or
 * stopped for a moment, at each of the named points of the device pool (gpu/pool.h), or at one, in
 * so many rounds. After the writer's death the readers' streams are released and both are told;
 * after a reader's, the writer and the other reader go on, by the pool again as soon as the dead
 * one's place in the ring is free, and a new reader takes its place. Whatever came whole is right,
 * no party hangs or crashes, and a party that lives leaves nothing behind.
 *
 *   gpu_kill --faults
 *
 * A writer and a reader, and each call of the driver fails once: the first, then the second, until
 * a run has no failure. First in the writer, then in the reader; first as a call that fails, then
 * as one after which nothing works any more. A call that fails comes out as an error with words,
 * after which the same goes when it is tried again, or is made up for; what has come is right; the
 * other process does not notice. Nothing hangs and nothing is left behind, but for what the call
 * that failed was to give back.
 *
 * Frame number n holds n itself and a tensor of the device whose bytes follow from n. What went
 * wrong in a child is told by its exit status.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "gpu/pool.h"
#include "gpu/writer.h"
#include "ringcast/gpu.h"
#include "tests/support/children.h"
#include "tests/support/fake_controls.h"
#include "tests/support/leaks.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

enum { WRITER, STRUCK, OTHER, PARTIES, READER = STRUCK /* the only one, of the faults */ };
enum {
  BYTES = 4000,
  HANG_S = 600,
  LOOKS = 100000
}; /* only a hang takes so long, however busy the machine is */
enum {
  FRAMES = 4 /* by the ring, and three by the pool */,
  TRANSIENT = 999,
  FOR_GOOD = 700,
  MOST_SHARES = 12
};
enum {
  LIFE = 25 /* frames */,
  POOL_LIFE = 40,
  ENOUGH = 3,
  MOST_LOOKS = 1000 * (HANG_S + 60) /* of 1 ms or more */
};

static struct board {
  char handle[128];
  _Atomic bool has_handle, stop, writer_dies;
  _Atomic uint32_t armed[PARTIES]; /* a point, and 1 */
  _Atomic int passes[PARTIES];     /* how often it is passed before */
  _Atomic bool struck[PARTIES];
  _Atomic uint32_t
      by_pool[PARTIES]; /* frames since it attached last, by the party in the place now */
  _Atomic uint64_t compared, compared_of_pool; /* frames that came whole, in all the rounds */
  char failed[PARTIES][48];                    /* by a fault: the call */
  uint32_t whole, errors;
} * board;

/* ---- The life of a party --------------------------------------------------------------------- */

static const char *party = "";

static void tell_hang(int signal) {
  (void)signal;
  dprintf(STDERR_FILENO, "the %s hangs; '%s' had failed in it\n", party, fake_cuda()->failed());
  _exit(5);
}

static pid_t start_party(void (*be)(void)) {
  pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  be();
  _exit(0);
}

/* Returns how many descriptors there are, for await_nothing_left. A stream that is only late must
 * not count as one that hangs, as the library leaves that stream's memory as it is. */
static int begin_party(const char *name) {
  party = name;
  rc_semaphore_patience_ns = (int64_t)HANG_S * 1000000000;
  signal(SIGALRM, tell_hang);
  alarm(HANG_S);
  return open_descriptors();
}

/* Calls that give something back, and those without which no call can: their failure leaves
 * something behind. */
static bool may_leave(const char *failed) {
  static const char *const names[] = {
      "cuMemFree",           "cuMemFreeHost",   "cuIpcCloseMemHandle",
      "cuMemHostUnregister", "cuStreamDestroy", "cuCtxPushCurrent",
      "cuCtxGetCurrent",     "cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i], failed) == 0) return true;
  return false;
}

/* A reader's watcher may still be about it, or the reader has not closed the pool yet. */
static void await_nothing_left(int files) {
  static const char *const kinds[] = {"allocations", "imports", "registered", "streams",
                                      "contexts",    "queued",  "lost",       "spoilt"};
  for (int look = 0;; look++) {
    rc_exported_tidy(rc_gpu_close_ns);
    bool clean = open_descriptors() == files && ring_mappings() == 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
      clean &= fake_cuda()->live(kinds[i]) == 0;
    if (clean || may_leave(fake_cuda()->failed())) return;
    if (look == LOOKS) break;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    fprintf(stderr, "left: %ld %s\n", fake_cuda()->live(kinds[i]), kinds[i]);
  fprintf(stderr, "left: %d descriptors, %d mappings; %s had failed\n", open_descriptors() - files,
          ring_mappings(), fake_cuda()->failed());
  _exit(4);
}

/* ---- A device of the party's own ------------------------------------------------------------- */

struct device {
  const struct rc_cuda *cuda; /* NULL: it could not be had */
  rc_cu_context context;
  rc_cu_stream stream;
  rc_cu_ptr memory;
};

/* The party's own calls are made again when they fail, as a fault may be meant for any call. */
#define twice(call) ((call) == RC_CU_SUCCESS || (call) == RC_CU_SUCCESS)

static bool open_device(struct device *own) {
  const struct rc_cuda *cuda = rc_cuda();
  *own = (struct device){.cuda = NULL};
  if (!cuda || !twice(cuda->primary_retain(&own->context, 0))) return false;
  own->cuda = cuda;
  return twice(cuda->ctx_push(own->context)) && twice(cuda->stream_create(&own->stream, 1)) &&
         twice(cuda->mem_alloc(&own->memory, BYTES));
}

/* What it has, whatever of it. */
static void close_device(struct device *own) {
  const struct rc_cuda *cuda = own->cuda;
  rc_cu_context left;
  if (!cuda) return;
  if (own->stream && cuda->stream_destroy(own->stream) == TRANSIENT)
    cuda->stream_destroy(own->stream);
  if (own->memory && cuda->mem_free(own->memory) == TRANSIENT) cuda->mem_free(own->memory);
  if (cuda->ctx_pop(&left) == TRANSIENT) cuda->ctx_pop(&left);
  if (cuda->primary_release(0) == TRANSIENT) cuda->primary_release(0);
}

/* ---- Sending --------------------------------------------------------------------------------- */

static int said(int rc) {
  if (rc == 0 || strlen(ringcast_last_error()) > 8) return rc;
  fprintf(stderr, "a call gave %d (%s), and no words\n", rc, strerror(-rc));
  _exit(1);
}

/* Fills the device memory of the sender, in the order of its stream. False: its device is
 * broken. */
static bool fill_frame(struct device *own, uint64_t number) {
  static uint8_t bytes[BYTES];
  pattern_fill(bytes, sizeof bytes, number);
  return twice(own->cuda->copy_htod(own->memory, bytes, sizeof bytes, own->stream));
}

static int send_frame(ringcast_gpu_writer *gpu, struct device *own, uint64_t number) {
  const struct ringcast_dtype dtype = {1, 8, 1};
  const void *on_device = (const void *)(uintptr_t)own->memory;
  const struct ringcast_gpu_item items[] = {
      {"n", 1, {.data = &number, .dtype = dtype, .ndim = 1, .shape = (int64_t[]){8}}, 0},
      {"p", 1, {.data = on_device, .dtype = dtype, .ndim = 1, .shape = (int64_t[]){BYTES}}, 1},
  };
  return said(ringcast_gpu_send(gpu, items, 2, 0, 0, own->stream, RINGCAST_FOREVER));
}

/* ---- Receiving ------------------------------------------------------------------------------- */

struct received {
  uint64_t number;
  bool whole; /* all its bytes came, and were compared */
  bool by_pool;
  int failed; /* the first code that said otherwise */
};

static void note(struct received *out, int rc) {
  if (out->failed == 0) out->failed = said(rc);
}

/* In the order of the stream; the bytes must be right unless a call has said that they are not. */
static void compare(ringcast_gpu_reader *gpu, struct device *own, struct received *out) {
  static uint8_t found[BYTES];
  bool read = twice(own->cuda->copy_dtoh(found, own->memory, sizeof found, own->stream)) &&
              twice(own->cuda->stream_synchronize(own->stream));
  if (!read) out->failed = -EIO;
  note(out, ringcast_gpu_check(gpu));
  if (out->failed != 0) return;
  out->whole = pattern_matches(found, sizeof found, out->number);
  if (out->whole) return;
  fprintf(stderr, "CORRUPT: frame %" PRIu64 ", by %s\n", out->number,
          out->by_pool ? "pool" : "ring");
  _exit(3);
}

/* Every other frame of the pool is read where it lies. */
static void take_tensor(ringcast_gpu_reader *gpu, struct device *own,
                        struct ringcast_gpu_take *take, const struct ringcast_item *item,
                        struct received *out) {
  ringcast_gpu_hold *hold = NULL;
  ringcast_device_ptr where;
  out->by_pool = item->placement == RINGCAST_PLACEMENT_POOL;
  if (!out->by_pool || out->number % 2 == 0) {
    note(out, ringcast_gpu_copy_out(gpu, take, item, own->memory));
  } else {
    note(out, ringcast_gpu_map(gpu, take, item, &where, &hold));
    if (out->failed == 0 &&
        !twice(own->cuda->copy_dtod(own->memory, where, item->bytes, own->stream)))
      out->failed = -EIO;
  }
  note(out, ringcast_gpu_end(gpu, take));
  ringcast_gpu_unmap(hold);
}

/* 0: a frame was received, rightly or not, and given back; else as ringcast_gpu_next. */
static int receive_frame(ringcast_gpu_reader *gpu, struct device *own, struct received *out) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader opened;
  struct ringcast_gpu_take take;
  struct ringcast_item number, tensor;
  int rc = said(ringcast_gpu_next(gpu, RINGCAST_FOREVER, &frame));
  if (rc != 0) return rc;
  child_must(ringcast_frame_open(&opened, frame.data, frame.bytes) == 0);
  child_must(ringcast_frame_item(&opened, 0, &number) == 0 &&
             ringcast_frame_item(&opened, 1, &tensor) == 0);
  *out = (struct received){0};
  memcpy(&out->number, number.data, sizeof out->number);
  rc = said(ringcast_gpu_begin(gpu, &frame, own->stream, &take));
  if (rc == -EIO)
    rc = ringcast_gpu_begin(gpu, &frame, own->stream, &take); /* the frame is still held */
  note(out, rc);
  if (rc != 0) {
    said(ringcast_gpu_release(gpu, &frame));
    return 0;
  }
  take_tensor(gpu, own, &take, &tensor, out);
  compare(gpu, own, out);
  return 0;
}

/* ---- Parties that are struck ----------------------------------------------------------------- */

static const struct {
  const char *name;
  int who;
} points[] = {
#define GPU_WRITES       WRITER
#define GPU_READS        STRUCK
#define GPU_MOURNS       STRUCK + PARTIES
#define POINT(name, who) {#name, who},
    RC_GPU_POINTS(POINT)
#undef POINT
};
enum { POINTS = sizeof points / sizeof *points };

static int me = -1, signal_number;

void rc_test_point(unsigned point) {
  if (me < 0 || atomic_load(&board->armed[me]) != (uint32_t)point + 1) return;
  if (atomic_fetch_sub(&board->passes[me], 1) != 0)
    return; /* of threads that come by together one is struck */
  atomic_store(&board->armed[me], 0);
  atomic_store(&board->struck[me], true);
  if (me == WRITER && signal_number == SIGKILL) atomic_store(&board->writer_dies, true);
  kill(getpid(), signal_number);
}

/* What never fits has the pool grow, while frames go on. */
static void have_it_grow(ringcast_gpu_writer *gpu) {
  struct ringcast_gpu_extent lease;
  uint64_t bytes = 3 << 20, offset;
  int rc = ringcast_gpu_lease(gpu, &bytes, 1, &offset, &lease);
  child_must(rc == 0 || rc == -EAGAIN);
  if (rc == 0) ringcast_gpu_drop(gpu, &lease);
}

/* Pools come, grow and go. */
static void be_the_writer(void) {
  const struct ringcast_writer_options plain = {
      .size = sizeof plain, .capacity = 65536, .readers = 3, .on_death = RINGCAST_EVICT};
  const struct ringcast_gpu_writer_options options = {.size = sizeof options, .slots = 8};
  struct device own;
  ringcast_writer *writer;
  ringcast_gpu_writer *gpu;
  uint64_t number = 0;
  int files = begin_party("writer");
  rc_gpu_first_pool = 2 << 20;
  child_must(open_device(&own) && ringcast_writer_create_ex(&plain, &writer) == 0);
  strcpy(board->handle, ringcast_writer_handle(writer));
  atomic_store(&board->has_handle, true);
  while (!atomic_load(&board->stop)) {
    child_must(ringcast_gpu_writer_open(writer, &options, &gpu) == 0);
    for (int i = 0; i < POOL_LIFE && !atomic_load(&board->stop); i++, number++) {
      alarm(HANG_S); /* a frame may not take so long; a life may, where all CPUs are busy */
      child_must(fill_frame(&own, number) && send_frame(gpu, &own, number) == 0);
      if (i % 16 == 15) have_it_grow(gpu);
      for (int turn = 0; turn < 3; turn++) sched_yield();
    }
    ringcast_gpu_writer_close(gpu);
  }
  ringcast_writer_close(writer);
  close_device(&own);
  await_nothing_left(files);
}

/* One that was attached for a while. False: the writer has gone. */
static bool live_once(struct device *own) {
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  bool is_first = true;
  int rc = ringcast_reader_attach(board->handle, &reader);
  if (rc == -ENOENT || rc == -EPIPE) return false;
  child_must(rc == 0 || rc == -EUSERS);
  if (rc != 0) return true;
  child_must(ringcast_gpu_reader_open(reader, NULL, &gpu) == 0);
  for (int i = 0; i < LIFE && rc == 0; i++) {
    struct received received;
    alarm(HANG_S);
    rc = receive_frame(gpu, own, &received);
    if (rc != 0) break;
    bool passed_over = is_first && received.failed == -ECONNABORTED;
    bool fine = received.whole || passed_over ||
                (received.failed == -EPIPE && atomic_load(&board->writer_dies));
    if (!fine)
      fprintf(stderr, "frame %" PRIu64 ": %d (%s)\n", received.number, received.failed,
              ringcast_last_error());
    child_must(fine);
    is_first &= !received.by_pool;
    atomic_fetch_add(&board->by_pool[me], received.whole && received.by_pool);
    atomic_fetch_add(&board->compared, received.whole);
    atomic_fetch_add(&board->compared_of_pool, received.whole && received.by_pool);
  }
  child_must(rc == 0 || rc == -EPIPE);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  return rc == 0;
}

static void be_a_reader(void) {
  struct device own;
  int files = begin_party("reader");
  while (!atomic_load(&board->has_handle)) sched_yield();
  child_must(open_device(&own));
  while (live_once(&own)) continue;
  close_device(&own);
  me = -1;
  await_nothing_left(files);
}

/* ---- Strikes --------------------------------------------------------------------------------- */

static pid_t pids[PARTIES];
static uint64_t seed = 1;
static int point; /* that one of them is struck at */

static uint32_t draw(uint32_t below) {
  seed = mix(seed + 1);
  return (uint32_t)(seed >> 20) % below;
}

static void start(int who) {
  atomic_store(&board->by_pool[who], 0);
  me = who; /* in the child */
  pids[who] = start_party(who == WRITER ? be_the_writer : be_a_reader);
  me = -1;
}

static void must(bool is_true, const char *what) {
  if (is_true) return;
  fprintf(stderr, "gpu_kill: at %s by signal %d: %s\n", points[point].name, signal_number, what);
  for (int i = 0; i < PARTIES; i++) {
    if (pids[i] <= 0) continue;
    fprintf(stderr, "  party %d: pid %d, %c, %u frames by the pool since the last question\n", i,
            (int)pids[i], state_of(pids[i]), atomic_load(&board->by_pool[i]));
    kill(pids[i], SIGKILL);
  }
  exit(1);
}

static void pause_after(uint64_t looks, const char *what) {
  must(looks < MOST_LOOKS, what);
  nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* After it was waited for. True: it was struck. */
static bool was_struck(int who, int status) {
  if (WIFSTOPPED(status)) return true;
  pids[who] = 0;
  must(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "a party has failed");
  must(WIFEXITED(status) || (WTERMSIG(status) == signal_number && board->struck[who]),
       "a party has crashed");
  return !WIFEXITED(status);
}

/* Who hangs says so itself, but for one that stands still. */
static bool ended_by(int who, int flags) {
  int status;
  pid_t found;
  for (uint64_t looks = 0; (found = waitpid(pids[who], &status, flags | WNOHANG)) == 0; looks++)
    pause_after(looks, "a party does not end");
  must(found == pids[who], "waiting");
  return was_struck(who, status);
}

static void must_all_live(void) {
  int status;
  for (int i = 0; i < PARTIES; i++) {
    if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
    was_struck(i, status);
    must(false, "a party has ended while the writer lives");
  }
}

static void await_some_by_pool(void) {
  for (int who = STRUCK; who < PARTIES; who++) {
    atomic_store(&board->by_pool[who], 0);
    for (uint64_t looks = 0; atomic_load(&board->by_pool[who]) < ENOUGH; looks++) {
      must_all_live();
      pause_after(looks, "a reader has no more frames by the pool");
    }
  }
}

static void strike(void) {
  int who = points[point].who % PARTIES;
  bool mourns = points[point].who >= PARTIES;
  *board = (struct board){.compared = board->compared, .compared_of_pool = board->compared_of_pool};
  atomic_store(&board->passes[who], (int)draw(mourns ? 1 : 3));
  for (int i = 0; i < PARTIES; i++) start(i);
  await_some_by_pool();
  atomic_store(&board->armed[who], (uint32_t)(RC_POINT_COUNT + 1 + point) + 1);
  if (mourns) {
    atomic_store(&board->writer_dies, true);
    kill(pids[WRITER], SIGKILL);
    must(waitpid(pids[WRITER], NULL, 0) == pids[WRITER], "waiting");
    pids[WRITER] = 0;
  }
  bool struck = ended_by(who, WUNTRACED);
  must(struck || mourns, "the party has ended without coming by");
  if (struck && signal_number == SIGSTOP) {
    usleep(3000);
    kill(pids[who], SIGCONT);
  } else if (struck && who == STRUCK && !mourns) {
    start(STRUCK);
  }
  if (pids[WRITER] > 0) {
    await_some_by_pool();
    atomic_store(&board->stop, true);
  }
  for (int i = 0; i < PARTIES; i++)
    if (pids[i] > 0) must(!ended_by(i, 0), "killed twice");
}

static int strike_all(uint64_t rounds, const char *only) {
  uint64_t strikes = 0, first_seed = seed;
  for (uint64_t round = 0; round < rounds; round++) {
    char jitter[24];
    snprintf(jitter, sizeof jitter, "%u", 1 + draw(1000));
    setenv("FAKE_CUDA_JITTER", jitter, 1);
    for (point = 0; point < POINTS; point++) {
      if (*only && strcmp(only, points[point].name) != 0) continue;
      signal_number = SIGKILL;
      strike();
      signal_number = SIGSTOP;
      strike();
      strikes += 2;
    }
  }
  if (strikes == 0) return 2; /* there is no such point */
  printf("gpu_kill: %" PRIu64 " strikes at %d points, seed %" PRIu64 ": %" PRIu64
         " frames compared, %" PRIu64 " of them by the pool; nothing wrong\n",
         strikes, *only ? 1 : POINTS, first_seed, board->compared, board->compared_of_pool);
  return 0;
}

/* ---- Faults ---------------------------------------------------------------------------------- */

static struct {
  int victim, result;
  long call;
  int attached[2], received[2]; /* pipes: a byte lets the other side go on */
} run;

static void let_go(const int *gate) { child_must(write(gate[1], "x", 1) == 1); }

static void await(const int *gate) {
  char byte;
  child_must(read(gate[0], &byte, 1) == 1);
}

static int begin_side(int who) {
  char fault[64];
  int files = begin_party(who == WRITER ? "writer" : "reader");
  snprintf(fault, sizeof fault, "*:%ld:%d", run.call, run.result);
  if (run.victim == who) setenv("FAKE_CUDA_FAIL", fault, 1);
  return files;
}

/* Nothing works on this side's device any more. */
static bool is_broken(int who) {
  return run.victim == who && *fake_cuda()->failed() && (run.result == FOR_GOOD || !rc_cuda());
}

static void end_side(int who, struct device *own, int files) {
  close_device(own);
  snprintf(board->failed[who], sizeof board->failed[who], "%s", fake_cuda()->failed());
  await_nothing_left(files);
}

/* One frame after the other: each has been received before the next. */
static void send_all(ringcast_gpu_writer *gpu, struct device *own) {
  for (uint64_t number = 0; number < FRAMES; number++) {
    bool is_sent = fill_frame(own, number) &&
                   (send_frame(gpu, own, number) == 0 || send_frame(gpu, own, number) == 0);
    child_must(is_sent || is_broken(WRITER));
    if (!is_sent) return;
    await(run.received);
  }
}

static void be_the_sender(void) {
  const struct ringcast_writer_options options = {
      .size = sizeof options, .capacity = 65536, .readers = 2};
  const struct ringcast_gpu_writer_options pool = {
      .size = sizeof pool, .pool_bytes = 2 << 20, .slots = 4};
  struct device own;
  ringcast_writer *writer;
  ringcast_gpu_writer *gpu = NULL;
  int files = begin_side(WRITER);
  bool has_device = open_device(&own);
  child_must(has_device || is_broken(WRITER));
  child_must(ringcast_writer_create_ex(&options, &writer) == 0);
  if (said(ringcast_gpu_writer_open(writer, &pool, &gpu)) != 0 && !is_broken(WRITER))
    child_must(ringcast_gpu_writer_open(writer, &pool, &gpu) == 0);
  strcpy(board->handle, ringcast_writer_handle(writer));
  let_go(run.attached); /* it may attach, and has */
  await(run.received);
  if (gpu && has_device) send_all(gpu, &own);
  ringcast_gpu_writer_close(gpu);
  ringcast_writer_close(writer);
  end_side(WRITER, &own, files);
}

/* A reader without a device holds up no other party. */
static int pass_over(ringcast_reader *reader) {
  struct ringcast_frame frame;
  int rc = ringcast_reader_next(reader, RINGCAST_FOREVER, &frame);
  return rc != 0 ? rc : ringcast_reader_release(reader, &frame);
}

static void receive_all(ringcast_reader *reader, ringcast_gpu_reader *gpu, struct device *own) {
  for (uint64_t expected = 0;; expected++) {
    struct received frame = {0};
    int rc = gpu ? receive_frame(gpu, own, &frame) : pass_over(reader);
    if (rc == -EPIPE) return;
    if (rc != 0) fprintf(stderr, "the next frame: %d (%s)\n", rc, ringcast_last_error());
    child_must(rc == 0 && (!gpu || frame.number == expected));
    board->whole += frame.whole;
    board->errors += gpu && !frame.whole;
    board->by_pool[READER] += frame.whole && frame.by_pool;
    let_go(run.received);
  }
}

static void be_the_receiver(void) {
  struct device own;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu = NULL;
  int files = begin_side(READER);
  await(run.attached);
  bool has_device = open_device(&own);
  child_must(has_device || is_broken(READER));
  child_must(ringcast_reader_attach(board->handle, &reader) == 0);
  if (said(ringcast_gpu_reader_open(reader, NULL, &gpu)) != 0 && !is_broken(READER))
    child_must(ringcast_gpu_reader_open(reader, NULL, &gpu) == 0);
  let_go(run.received);
  receive_all(reader, has_device ? gpu : NULL, &own);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  end_side(READER, &own, files);
}

static void must_hold(bool is_true, const char *what) {
  if (is_true) return;
  fprintf(
      stderr,
      "gpu_kill --faults: call %ld of the %s gave %d: %s; %u frames came, %u of them not whole\n",
      run.call, run.victim == WRITER ? "writer" : "reader", run.result, what,
      board->whole + board->errors, board->errors);
  exit(1);
}

/* False: no call was left to fail. */
static bool try_call(void) {
  int status;
  *board = (struct board){.stop = false};
  must_hold(pipe(run.attached) == 0 && pipe(run.received) == 0, "no pipe");
  pid_t writer = start_party(be_the_sender);
  start_party(be_the_receiver);
  for (int i = 0; i < 2; i++) { /* in the order in which they end: the one that fails is told of */
    pid_t ended = wait(&status);
    must_hold(status == 0, ended == writer ? "the writer has failed" : "the reader has failed");
  }
  for (int i = 0; i < 2; i++) {
    close(run.attached[i]);
    close(run.received[i]);
  }
  const char *failed = board->failed[run.victim];
  bool is_hit = *failed != '\0';
  bool has_no_driver = strcmp(failed, "cuInit") == 0 || strcmp(failed, "cuDeviceGetCount") == 0;
  if (!is_hit || (run.result == TRANSIENT && !has_no_driver)) {
    must_hold(board->whole + board->errors == FRAMES, failed);
    must_hold(board->errors <= (run.victim == READER && is_hit), failed);
  }
  if (!is_hit) must_hold(board->by_pool[READER] == FRAMES - 1, "not by the pool");
  return is_hit;
}

static int fail_each_call(void) {
  for (int i = 0; i < 4; i++) {
    run.victim = i / 2 == 0 ? WRITER : READER;
    run.result = i % 2 == 0 ? TRANSIENT : FOR_GOOD;
    for (run.call = 1; try_call();) run.call += MOST_SHARES / share_of(MOST_SHARES);
    must_hold(run.call > 60, "there are fewer calls than there were");
  }
  return 0;
}

int main(int count, char **words) {
  uint64_t rounds = 1;
  const char *only = ""; /* all */
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED || !fake_must_be_found("gpu_kill")) return 2;
  if (count == 2 && strcmp(words[1], "--faults") == 0) return fail_each_call();
  for (int i = 1; i + 1 < count; i += 2) {
    if (strcmp(words[i], "--rounds") == 0) rounds = strtoull(words[i + 1], NULL, 10);
    if (strcmp(words[i], "--seed") == 0) seed = strtoull(words[i + 1], NULL, 10);
    if (strcmp(words[i], "--only") == 0) only = words[i + 1];
  }
  return strike_all(rounds, only);
}
