/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   gpu_kill [--rounds N] [--seed N] [--only POINT] [--stand MS]
 *
 * A writer and two readers of device tensors, with the fake driver; one of them is killed, or stopped for a moment (3
 * ms, or --stand), at each of the named points of the device pool (gpu/point.h), or at one, in so many rounds, or
 * ROUNDS and SEED say it.
 * After the writer's death the readers' streams are released and both are told; after a reader's, the writer and the
 * other reader go on, by the pool again as soon as the dead one's place in the ring is free, and a new reader takes its
 * place. Whatever came whole is right, no party hangs or crashes, and a party that lives leaves nothing behind.
 */
#include <inttypes.h>
#include <sys/mman.h>

#include "gpu/point.h"
#include "tests/support/gpu_peers.h"

enum {
  WRITER,
  STRUCK,
  OTHER,
  PARTIES,
  LIFE = 25 /* frames */,
  POOL_LIFE = 40,
  ENOUGH = 3,
  MOST_LOOKS = 1000 * (HANG_S + 60) /* of a millisecond or more: a party that hangs says so itself before */
};

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

static struct board {
  char handle[128];
  _Atomic bool has_handle, stop, writer_dies;
  _Atomic uint32_t armed[PARTIES]; /* a point, and 1 */
  _Atomic int passes[PARTIES];     /* how often it is passed before */
  _Atomic bool struck[PARTIES];
  _Atomic uint32_t by_pool[PARTIES];           /* frames since it attached last, by the party in the place now */
  _Atomic uint64_t compared, compared_of_pool; /* frames that came whole, in all the rounds */
} * board;

static int me = -1, signal_number;
static uint64_t seed = 1, rounds = 1, stand_ms = 3;
static const char *only = ""; /* all */

static uint32_t draw(uint32_t below) {
  seed = mix(seed + 1);
  return (uint32_t)(seed >> 20) % below;
}

void rc_test_point(unsigned point) {
  if (me < 0 || atomic_load(&board->armed[me]) != (uint32_t)point + 1) return;
  if (atomic_fetch_sub(&board->passes[me], 1) != 0) return; /* of threads that come by together one is struck */
  atomic_store(&board->armed[me], 0);
  atomic_store(&board->struck[me], true);
  if (me == WRITER && signal_number == SIGKILL) atomic_store(&board->writer_dies, true);
  kill(getpid(), signal_number);
}

/* ---- The parties ------------------------------------------------------------------------------------------------- */

static ringcast_gpu_writer *open_pool(ringcast_writer *writer) {
  const struct ringcast_gpu_writer_options options = {
      .size = sizeof options, .device = 0, .slots = 8}; /* a pool that grows */
  ringcast_gpu_writer *gpu;
  child_must(ringcast_gpu_writer_open(writer, &options, &gpu) == 0);
  return gpu;
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
static void be_the_writer(void *context) {
  (void)context;
  const struct ringcast_writer_options plain = {
      .size = sizeof plain, .capacity = 65536, .readers = 3, .on_death = RINGCAST_EVICT};
  struct own_device own;
  ringcast_writer *writer;
  uint64_t number = 0;
  int files = begin_peer("writer");
  me = WRITER;
  rc_gpu_first_pool = 2 << 20;
  child_must(own_device_open(&own) && ringcast_writer_create_ex(&plain, &writer) == 0);
  strcpy(board->handle, ringcast_writer_handle(writer));
  atomic_store(&board->has_handle, true);
  while (!atomic_load(&board->stop)) {
    ringcast_gpu_writer *gpu = open_pool(writer);
    for (int i = 0; i < POOL_LIFE && !atomic_load(&board->stop); i++, number++) {
      alarm(HANG_S); /* a frame may not take so long; a life may, where all CPUs are busy */
      send_must(gpu, &own, number);
      if (i % 16 == 15) have_it_grow(gpu);
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
    alarm(HANG_S); /* as the writer's */
    if ((rc = receive_frame(gpu, own, RINGCAST_FOREVER, &received)) != 0) break;
    bool passed_over = first && received.failed == -ECONNABORTED;
    bool fine = received.whole || passed_over || (received.failed == -EPIPE && atomic_load(&board->writer_dies));
    if (!fine) fprintf(stderr, "frame %" PRIu64 ": %d (%s)\n", received.number, received.failed, ringcast_last_error());
    child_must(fine);
    first &= !received.by_pool;
    atomic_fetch_add(&board->by_pool[me], received.whole && received.by_pool);
    atomic_fetch_add(&board->compared, received.whole);
    atomic_fetch_add(&board->compared_of_pool, received.whole && received.by_pool);
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

static void must(bool is_true, const char *what, int point) {
  if (is_true) return;
  fprintf(stderr, "gpu_kill: at %s by signal %d: %s\n", points[point].name, signal_number, what);
  for (int i = 0; i < PARTIES; i++)
    if (pids[i] > 0)
      fprintf(stderr, "  party %d: pid %d, %c, %u frames by the pool since the last question\n", i, (int)pids[i],
              state_of(pids[i]), atomic_load(&board->by_pool[i]));
  for (int i = 0; i < PARTIES; i++)
    if (pids[i] > 0) kill(pids[i], SIGKILL);
  exit(1);
}

/* After it was waited for. True: it was struck. */
static bool was_struck(int who, int status, int point) {
  if (WIFSTOPPED(status)) return true;
  pids[who] = 0;
  must(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "a party has failed", point);
  must(WIFEXITED(status) || (WTERMSIG(status) == signal_number && atomic_load(&board->struck[who])),
       "a party has crashed", point);
  return !WIFEXITED(status);
}

static void pause_after(uint64_t looks, const char *what, int point) {
  const struct timespec pause = {.tv_nsec = 1000000};
  must(looks < MOST_LOOKS, what, point);
  nanosleep(&pause, NULL);
}

/* Who hangs says so itself, but for one that stands still. */
static bool ended_by(int who, int flags, int point) {
  int status;
  pid_t found;
  for (uint64_t looks = 0; (found = waitpid(pids[who], &status, flags | WNOHANG)) == 0; looks++)
    pause_after(looks, "a party does not end", point);
  must(found == pids[who], "waiting", point);
  return was_struck(who, status, point);
}

static void must_all_live(int point) {
  int status;
  for (int i = 0; i < PARTIES; i++) {
    if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
    was_struck(i, status, point);
    must(false, "a party has ended while the writer lives", point);
  }
}

static void await_some_by_pool(int point) {
  for (int who = STRUCK; who < PARTIES; who++) {
    atomic_store(&board->by_pool[who], 0);
    for (uint64_t looks = 0; atomic_load(&board->by_pool[who]) < ENOUGH; looks++) {
      must_all_live(point);
      pause_after(looks, "a reader has no more frames by the pool", point);
    }
  }
}

static void play(int point, int with) {
  int who = points[point].who % PARTIES;
  bool mourns = points[point].who >= PARTIES;
  uint32_t number = (uint32_t)(RC_POINT_COUNT + 1 + point);
  *board = (struct board){.compared = board->compared, .compared_of_pool = board->compared_of_pool};
  signal_number = with;
  atomic_store(&board->passes[who], (int)draw(mourns ? 1 : 3));
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
    const struct timespec while_it_stands = {.tv_sec = (time_t)(stand_ms / 1000),
                                             .tv_nsec = (long)(stand_ms % 1000) * 1000000};
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
    if (strcmp(words[i], "--stand") == 0) stand_ms = number_of(words[i + 1], stand_ms);
    if (strcmp(words[i], "--only") == 0) only = words[i + 1];
  }
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED || !fake_must_be_found("gpu_kill")) return 2;
  char jitter[24];
  uint64_t strikes = 0, first_seed = seed;
  for (uint64_t round = 0; round < rounds; round++) {
    snprintf(jitter, sizeof jitter, "%u", 1 + draw(1000));
    setenv("FAKE_CUDA_JITTER", jitter, 1);
    for (int point = 0; point < POINTS; point++)
      for (int with = 0; with < 2 && (!*only || strcmp(only, points[point].name) == 0); with++, strikes++)
        play(point, with == 0 ? SIGKILL : SIGSTOP);
  }
  if (strikes == 0) return 2; /* there is no such point */
  printf("gpu_kill: %" PRIu64 " strikes at %d points, seed %" PRIu64 ": %" PRIu64 " frames compared, %" PRIu64
         " of them by the pool; nothing wrong\n",
         strikes, *only ? 1 : POINTS, first_seed, atomic_load(&board->compared), atomic_load(&board->compared_of_pool));
  return 0;
}
