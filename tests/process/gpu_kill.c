/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   gpu_kill [--rounds N] [--seed N]
 *
 * A writer and two readers of device tensors, with the fake driver; one of them is killed, or stopped for a moment, at
 * each of the named points of the device pool (ring/point.h), in so many rounds, or ROUNDS and SEED say it.
 * After the writer's death the readers' streams are released and both are told; after a reader's, the writer and the
 * other reader go on, by the pool again as soon as the dead one's place in the ring is free, and a new reader takes its
 * place. Whatever came whole is right, nobody hangs, and who lives leaves nothing behind.
 */
#include <inttypes.h>
#include <sys/mman.h>

#include "ring/point.h"
#include "tests/support/gpu_peers.h"

enum { WRITER, STRUCK, OTHER, PARTIES, LIFE = 25 /* frames */, POOL_LIFE = 40, ENOUGH = 3 };

static const struct { const char *name; int who; } points[] = {
#define GPU_WRITES WRITER
#define GPU_READS  STRUCK
#define GPU_MOURNS STRUCK + PARTIES
#define POINT(name, who) {#name, who},
    RC_GPU_POINTS(POINT)
#undef POINT
};
enum { POINTS = sizeof points / sizeof *points };

static struct board {
  char handle[128];
  _Atomic bool has_handle, stop, writer_dies;
  _Atomic uint32_t armed[PARTIES], passes[PARTIES]; /* a point, and 1; how often it is passed before */
  _Atomic bool struck[PARTIES];
  _Atomic uint32_t by_pool[PARTIES]; /* frames since it attached last, by whoever is in the place now */
} *board;

static int me = -1, signal_number;
static uint64_t seed = 1, rounds = 1;

static uint32_t draw(uint32_t below) {
  seed = mix(seed + 1);
  return (uint32_t)(seed >> 20) % below;
}

void rc_test_point(enum rc_point point) {
  if (me < 0 || atomic_load(&board->armed[me]) != (uint32_t)point + 1) return;
  if (atomic_load(&board->passes[me]) > 0) {
    atomic_fetch_sub(&board->passes[me], 1);
    return;
  }
  atomic_store(&board->armed[me], 0);
  atomic_store(&board->struck[me], true);
  if (me == WRITER && signal_number == SIGKILL) atomic_store(&board->writer_dies, true);
  kill(getpid(), signal_number);
}

/* ---- The parties ------------------------------------------------------------------------------------------------- */

static ringcast_gpu_writer *open_pool(ringcast_writer *writer) {
  const struct ringcast_gpu_writer_options options = {
      .size = sizeof options, .device = 0, .pool_bytes = 2 << 20, .slots = 8, .flags = RINGCAST_GPU_EXTERN};
  ringcast_gpu_writer *gpu;
  child_must(ringcast_gpu_writer_open(writer, &options, &gpu) == 0);
  return gpu;
}

/* Pools come and go, and so does what is lent. What the frame of lent memory holds stays as it is until it is idle. */
static void be_the_writer(void *context) {
  (void)context;
  const struct ringcast_writer_options plain = {
      .size = sizeof plain, .capacity = 65536, .readers = 3, .on_death = RINGCAST_EVICT};
  struct own_device own;
  ringcast_writer *writer;
  uint64_t number = 0;
  int files = begin_peer("writer");
  me = WRITER;
  child_must(own_device_open(&own) && ringcast_writer_create_ex(&plain, &writer) == 0);
  strcpy(board->handle, ringcast_writer_handle(writer));
  atomic_store(&board->has_handle, true);
  while (!atomic_load(&board->stop)) {
    ringcast_gpu_writer *gpu = open_pool(writer);
    for (int i = 0; i < POOL_LIFE && !atomic_load(&board->stop); i++, number++) {
      uint32_t lent = 0;
      if (i % 8 == 7) child_must(ringcast_gpu_writer_lend(gpu, own.lent, &lent) == 0);
      child_must(fill_frame(&own, number, lent != 0));
      int rc = send_frame(gpu, &own, number, lent, RINGCAST_FOREVER);
      child_must(rc == 0 || (rc == -EAGAIN && lent));
      if (lent) child_must(ringcast_gpu_writer_unlend(gpu, lent, RINGCAST_FOREVER) == 0);
      for (int turn = 0; turn < 3; turn++) sched_yield();
    }
    ringcast_gpu_writer_close(gpu);
  }
  ringcast_writer_close(writer);
  own_device_close(&own);
  await_nothing_left(files);
}

/* One that was attached for a while. False: the writer has gone. */
static bool live_once(struct own_device *own) {
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct received received;
  int rc = ringcast_reader_attach(board->handle, &reader);
  if (rc == -ENOENT || rc == -EPIPE) return false;
  child_must(rc == 0 || rc == -EUSERS);
  if (rc != 0) return true;
  child_must(ringcast_gpu_reader_open(reader, NULL, &gpu) == 0);
  bool first = true;
  for (int i = 0; i < LIFE && rc == 0; i++) {
    if ((rc = receive_frame(gpu, own, RINGCAST_FOREVER, &received)) != 0) break;
    bool passed_over = first && received.failed == -ECONNABORTED;
    bool fine = received.whole || passed_over || (received.failed == -EPIPE && atomic_load(&board->writer_dies));
    if (!fine) fprintf(stderr, "frame %" PRIu64 ": %d (%s)\n", received.number, received.failed, ringcast_last_error());
    child_must(fine);
    first &= !received.by_pool;
    atomic_fetch_add(&board->by_pool[me], received.whole && received.by_pool);
  }
  child_must(rc == 0 || rc == -EPIPE);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  return rc == 0;
}

static void be_a_reader(void *context) {
  struct own_device own;
  int files = begin_peer("reader");
  me = *(int *)context;
  while (!atomic_load(&board->has_handle)) sched_yield();
  child_must(own_device_open(&own));
  while (live_once(&own)) continue;
  own_device_close(&own);
  me = -1;
  await_nothing_left(files);
}

/* ---- The rounds -------------------------------------------------------------------------------------------------- */

static pid_t pids[PARTIES];
static int numbers[PARTIES] = {0, 1, 2};

static void start(int who) {
  atomic_store(&board->by_pool[who], 0);
  pids[who] = fork();
  if (pids[who] != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (who == WRITER) be_the_writer(NULL);
  else be_a_reader(&numbers[who]);
  _exit(0);
}

/* What has ended, or stopped, until this one has, if it is any. True: this one was struck. */
static void must(bool is_true, const char *what, int point) {
  if (is_true) return;
  fprintf(stderr, "gpu_kill: at %s by signal %d: %s\n", points[point].name, signal_number, what);
  for (int i = 0; i < PARTIES; i++)
    if (pids[i] > 0) kill(pids[i], SIGKILL);
  exit(1);
}

static bool ended_by(int who, int flags, int point) {
  int status;
  must(waitpid(pids[who], &status, flags) == pids[who], "waiting", point);
  if (WIFSTOPPED(status)) return true;
  pids[who] = 0;
  if (WIFSIGNALED(status)) return WTERMSIG(status) == signal_number && atomic_load(&board->struck[who]);
  must(WEXITSTATUS(status) == 0, "a party has failed", point);
  return false;
}

static void await_some_by_pool(int point) {
  for (int who = STRUCK; who < PARTIES; who++) {
    atomic_store(&board->by_pool[who], 0);
    for (uint64_t looks = 0; atomic_load(&board->by_pool[who]) < ENOUGH; looks++) {
      const struct timespec pause = {.tv_nsec = 1000000};
      must(looks < 20000, "a reader has no more frames by the pool", point);
      nanosleep(&pause, NULL);
    }
  }
}

static void play(int point, int with) {
  int who = points[point].who % PARTIES;
  bool mourns = points[point].who >= PARTIES;
  uint32_t number = (uint32_t)(RC_POINT_COUNT + 1 + point);
  memset(board, 0, sizeof *board);
  signal_number = with;
  atomic_store(&board->passes[who], draw(mourns ? 1 : 3));
  for (int i = 0; i < PARTIES; i++) start(i);
  await_some_by_pool(point);
  atomic_store(&board->armed[who], number + 1);
  if (mourns) {
    atomic_store(&board->writer_dies, true);
    kill(pids[WRITER], SIGKILL);
    must(waitpid(pids[WRITER], NULL, 0) == pids[WRITER], "waiting", point);
    pids[WRITER] = 0;
  }
  bool struck = ended_by(who, WUNTRACED, point);
  must(struck || mourns, "the party has ended without coming by", point);
  if (struck && with == SIGSTOP) {
    const struct timespec while_it_stands = {.tv_nsec = 3000000};
    nanosleep(&while_it_stands, NULL);
    kill(pids[who], SIGCONT);
  } else if (struck && who == STRUCK && !mourns) {
    start(STRUCK);
  }
  if (pids[WRITER] > 0) {
    await_some_by_pool(point);
    atomic_store(&board->stop, true);
  }
  for (int i = 0; i < PARTIES; i++)
    if (pids[i] > 0) must(!ended_by(i, 0, point), "killed twice", point);
}

static uint64_t number_of(const char *text, uint64_t otherwise) {
  return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

int main(int count, char **words) {
  rounds = number_of(getenv("ROUNDS"), rounds);
  seed = number_of(getenv("SEED"), seed);
  for (int i = 1; i + 1 < count; i += 2) {
    if (strcmp(words[i], "--rounds") == 0) rounds = number_of(words[i + 1], rounds);
    if (strcmp(words[i], "--seed") == 0) seed = number_of(words[i + 1], seed);
  }
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED) return 2;
  char jitter[24];
  uint64_t strikes = 0, first_seed = seed;
  for (uint64_t round = 0; round < rounds; round++) {
    snprintf(jitter, sizeof jitter, "%u", 1 + draw(1000));
    setenv("FAKE_CUDA_JITTER", jitter, 1);
    for (int point = 0; point < POINTS; point++)
      for (int with = 0; with < 2; with++, strikes++) play(point, with == 0 ? SIGKILL : SIGSTOP);
  }
  printf("gpu_kill: %" PRIu64 " strikes at %d points, seed %" PRIu64 "; nothing wrong\n", strikes, POINTS, first_seed);
  return 0;
}
