/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which system calls are made: none for a frame while nobody sleeps, one for all who sleep, few by
 * who waits long.
 *
 * The first is shown by the kernel: processes that may make no call at all, and end with the first
 * one (seccomp). The second is counted at the boundary (shm/os.h), the third by a tracer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>

#include "channel/channel.h"
#include "shm/os.h"
#include "tests/support/children.h"
#include "tests/support/pattern.h"
#include "tests/support/seccomp.h"
#include "tests/support/handles.h"
#include "tests/support/switches.h"

enum { MOST = 1000, MOST_READERS = 8 };

/* What the processes of a test know of each other, without a system call. */
struct board {
  char handle[96];
  int64_t spin_ns;
  int caught[2]; /* the call that ended the writer, the reader; or -1 */
  int filtered;  /* what came of asking for seccomp, if it failed */
  _Atomic uint64_t sent, read;
  _Atomic uint64_t got[MOST_READERS];
};

static struct board *board;

static ringcast_writer *make_writer(uint64_t capacity) {
  ringcast_writer *writer = writer_of(.capacity = capacity, .spin_ns = board->spin_ns);
  strcpy(board->handle, ringcast_writer_handle(writer));
  return writer;
}

static ringcast_reader *attach(void) { return reader_at(board->handle, .spin_ns = board->spin_ns); }

/* ---- Nobody sleeps: no call ------------------------------------------------------------------ */

/* What must not be called by who spins. It may yield when interrupted, and call what the look
 * whether the other lives takes, once a slice. */
static const uint32_t waiting_calls[] = {SYS_futex, SYS_nanosleep, SYS_clock_nanosleep,
                                         SYS_io_uring_enter, SYS_write};

/* Two ways: strictly nothing, where each side has what it needs before it asks; and with real
 * waits, which spin. */
struct way {
  bool strict;
  uint64_t frames;
  uint64_t ahead; /* frames that the writer may be ahead of the reader before it asks for room; 0:
                     it just asks */
};

static const struct way strictly = {true, 100000, 256}, spinning = {false, 30000, 0};
static const struct way *way;
static ringcast_writer *writer;

static void confine(int *caught) {
  int result = way->strict
                   ? allow_no_call(caught)
                   : allow_all_calls_but(waiting_calls,
                                         sizeof waiting_calls / sizeof *waiting_calls, caught);
  if (result == 0) return;
  board->filtered = result;
  _exit(3);
}

static void send_one(uint64_t n, size_t bytes) {
  static uint8_t data[MOST];
  struct ringcast_span span;
  switch (n % 3) {
  case 0: child_must(ringcast_writer_reserve(writer, bytes, RINGCAST_FOREVER, &span) == 0); break;
  case 1:
    child_must(ringcast_writer_reserve(writer, bytes / 2, RINGCAST_FOREVER, &span) == 0);
    child_must(ringcast_writer_grow(writer, bytes, RINGCAST_FOREVER, &span) == 0);
    break;
  default:
    pattern_fill(data, bytes, n);
    child_must(ringcast_writer_send(writer, data, bytes, 7, RINGCAST_FOREVER) == 0);
    return;
  }
  pattern_fill(span.data, bytes, n);
  child_must(ringcast_writer_commit(writer, bytes, 7) == 0);
}

static void write_confined(void *nothing) {
  (void)nothing;
  writer = make_writer(way->strict ? 1 << 20 : 64 << 10);
  rc_store_release(&board->sent, 1); /* the handle is there */
  child_must(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER) == 1);
  confine(&board->caught[0]);
  for (uint64_t n = 0; n < way->frames; n++) {
    while (way->ahead != 0 && n - rc_load_acquire(&board->read) >= way->ahead) {}
    send_one(n, pattern_bytes(n, MOST));
    rc_store_release(&board->sent, n + 2);
  }
  while (rc_load_acquire(&board->read) < way->frames) {
  } /* the end would be seen by a reader that waits */
  exit_at_once(0);
}

static void read_confined(void *nothing) {
  (void)nothing;
  while (rc_load_acquire(&board->sent) == 0) sched_yield();
  ringcast_reader *reader = attach();
  struct ringcast_frame frame;
  confine(&board->caught[1]);
  for (uint64_t n = 0; n < way->frames; n++) {
    while (way->ahead != 0 && rc_load_acquire(&board->sent) < n + 2) {}
    child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
    child_must(frame.bytes == pattern_bytes(n, MOST) &&
               pattern_matches(frame.data, frame.bytes, n));
    child_must(ringcast_reader_release(reader, &frame) == 0);
    rc_store_release(&board->read, n + 1);
  }
  exit_at_once(0);
}

static void frames_fly_without_calls(const char *test, const struct way *chosen) {
  int status[2];
  way = chosen;
  board->spin_ns = (int64_t)1 << 60;
  pid_t pids[2] = {start_child(write_confined, NULL), start_child(read_confined, NULL)};
  for (int i = 0; i < 2; i++) { /* whoever ends badly takes the other along */
    int which;
    pid_t pid = waitpid(-1, &which, 0);
    status[pid == pids[1]] = which;
    if (which != 0 && i == 0) kill(pids[pid == pids[0]], SIGKILL);
  }
  if (board->filtered != 0) {
    tell_skipped(test, "no seccomp here");
    return;
  }
  for (int i = 0; i < 2; i++)
    ck_assert_msg(board->caught[i] == -1, "the %s made system call %d after %llu frames",
                  i == 0 ? "writer" : "reader", board->caught[i],
                  (unsigned long long)(i == 0 ? board->sent - 1 : board->read));
  ck_assert_int_eq(status[0], 0);
  ck_assert_int_eq(status[1], 0);
  ck_assert_uint_eq(board->read, way->frames);
}

TEST(while_nobody_waits_no_frame_costs_a_system_call) {
  frames_fly_without_calls(__func__, &strictly);
}

TEST(who_spins_makes_no_call_to_sleep_or_to_wake) { frames_fly_without_calls(__func__, &spinning); }

/* ---- Who sleeps is woken by one call, however many they are ---------------------------------- */

static int wakes;
static int (*real_wake)(_Atomic uint32_t *, int);

static int count_wakes(_Atomic uint32_t *word, int count) {
  wakes++;
  return real_wake(word, count);
}

/* Until the process sleeps. Between two slices of a sleep the process runs for a moment. */
static void await_sleep(pid_t pid) {
  for (char state; (state = state_of(pid)) != 'S'; sched_yield())
    ck_assert_msg(state != 'Z', "a child has ended");
}

struct party {
  int index;
  struct gate gate;
};

/* Tells how many it has got, and goes on through the gate each time: what it sleeps on in between
 * is a frame. */
static void read_through_the_gate(void *context) {
  struct party *party = context;
  ringcast_reader *reader = attach();
  struct ringcast_frame frame;
  for (uint64_t n = 1;; n++) {
    rc_store_release(&board->got[party->index], 2 * n - 1); /* asks for the nth */
    child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
    rc_store_release(&board->got[party->index], 2 * n);
    gate_wait(&party->gate);
    do child_must(ringcast_reader_release(reader, &frame) == 0);
    while (ringcast_reader_next(reader, 0, &frame) == 0);
  }
}

static void await(int index, uint64_t value) {
  while (rc_load_acquire(&board->got[index]) != value) sched_yield();
}

LOOP_TEST(one_call_wakes_all_who_wait_for_a_frame_and_none_is_made_for_nobody, 0, 3) {
  static const int counts[] = {1, 3, MOST_READERS};
  int readers = counts[_i], rounds = share_of(50);
  struct party participants[MOST_READERS];
  pid_t pids[MOST_READERS];
  writer = make_writer(1 << 20);
  for (int i = 0; i < readers; i++) {
    participants[i] = (struct party){.index = i, .gate = gate_make()};
    pids[i] = start_child(read_through_the_gate, &participants[i]);
  }
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, (uint32_t)readers, RINGCAST_FOREVER),
                   readers);
  for (uint64_t n = 1; n <= (uint64_t)rounds; n++) {
    for (int i = 0; i < readers; i++) {
      await(i, 2 * n - 1);
      await_sleep(pids[i]);
    }
    wakes = 0;
    ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, 0), 0);
    ck_assert_int_eq(wakes, 1);
    for (int i = 0; i < readers; i++) await(i, 2 * n);
    /* One whose slice ended just then may have announced itself once more before it found the
     * frame. */
    ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, 0), 0);
    ck_assert_int_le(wakes, 2);
    wakes = 0;
    for (int i = 0; i < 100; i++) ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, 0), 0);
    ck_assert_int_eq(wakes, 0);
    for (int i = 0; i < readers; i++) gate_open(&participants[i].gate);
  }
  for (int i = 0; i < readers; i++) {
    kill_child(pids[i]);
    gate_free(&participants[i].gate);
  }
  ringcast_writer_close(writer);
}

/* Fills the ring with small frames, then waits for the room of many, again and again. */
static void write_through_the_gate(void *context) {
  struct party *party = context;
  struct ringcast_span span;
  writer = make_writer(4096);
  rc_store_release(&board->sent, 1);
  child_must(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER) == 1);
  for (uint64_t n = 1;; n++) {
    while (ringcast_writer_send(writer, "x", 1, 0, 0) == 0) {}
    rc_store_release(&board->got[0], 2 * n - 1);
    child_must(ringcast_writer_reserve(writer, 1500, RINGCAST_FOREVER, &span) == 0);
    child_must(ringcast_writer_abort(writer) == 0);
    rc_store_release(&board->got[0], 2 * n);
    gate_wait(&party->gate);
  }
}

TEST(one_call_wakes_a_writer_when_there_is_as_much_room_as_it_wants) {
  struct party party = {.gate = gate_make()};
  pid_t pid = start_child(write_through_the_gate, &party);
  while (rc_load_acquire(&board->sent) == 0) sched_yield();
  SCOPED_READER reader = attach();
  struct rc_control *control = reader->ring.view.control;
  uint64_t lag;
  for (uint64_t n = 1; n <= (uint64_t)share_of(50); n++) {
    await(0, 2 * n - 1);
    await_sleep(pid);
    wakes = 0;
    while (reader->ring.cursor + RC_FRAME_ALIGN < control->wanted) {
      take_one(reader);
      ck_assert_int_eq(wakes, 0);
    }
    take_one(reader);
    ck_assert_int_eq(wakes, 1);
    await(0, 2 * n);
    take_one(reader);
    ck_assert_int_le(wakes, 2); /* as above */
    wakes = 0;
    int more = 0;
    for (; ringcast_reader_lag(reader, &lag) == 0 && lag > 0; more++) take_one(reader);
    ck_assert_int_gt(more, 0);
    ck_assert_int_eq(wakes, 0);
    gate_open(&party.gate);
  }
  kill_child(pid);
  gate_free(&party.gate);
}

/* ---- Who waits long -------------------------------------------------------------------------- */

/* A reader's sleep ends after 90 ms at the latest, a writer's after 50: for a look whether the
 * other side lives. */
#define LONG ((int64_t)450 * 1000 * 1000)

static void stop_for_the_tracer(void) {
  child_must(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
  child_must(raise(SIGSTOP) == 0);
}

static void wait_for_a_frame(void *nothing) {
  (void)nothing;
  ringcast_reader *reader = attach();
  struct ringcast_frame frame;
  struct ringcast_stats stats = {.size = sizeof stats};
  stop_for_the_tracer();
  child_must(ringcast_reader_next(reader, LONG, &frame) == -ETIMEDOUT);
  child_must(ringcast_reader_stats(reader, &stats) == 0 && stats.sleeps <= 5 + 1);
}

static void wait_for_room(void *nothing) {
  (void)nothing;
  struct ringcast_span span;
  struct ringcast_stats stats = {.size = sizeof stats};
  writer = make_writer(4096);
  attach();
  while (ringcast_writer_send(writer, "x", 1, 0, 0) == 0) {}
  stop_for_the_tracer();
  child_must(ringcast_writer_reserve(writer, 1, LONG, &span) == -ETIMEDOUT);
  child_must(ringcast_writer_stats(writer, &stats) == 0 &&
             stats.sleeps <= 9 + 2); /* and the short first one (E9) */
}

/* How many calls it makes until it exits; -1: it can't be traced. */
static int trace_calls(pid_t pid) {
  int status, calls = 0;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  if (!WIFSTOPPED(status)) return -1;
  ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
  for (int number = 0;;) {
    ck_assert_int_eq((int)ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(intptr_t)number), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (!WIFSTOPPED(status)) break;
    number = WSTOPSIG(status);
    if (number == (SIGTRAP | 0x80)) { /* at the entry of a call, and at its return */
      calls++;
      number = 0;
    }
  }
  ck_assert_int_eq(status, 0);
  return calls / 2;
}

/* In each sleep: the sleep itself, and the look whether the other side lives: two calls whether the
 * descriptor is ours still, and one at the pidfd or the file of /proc. To this come the CPU quotas,
 * read once, the verdict at the end, and the exit. */
LOOP_TEST(who_waits_long_makes_a_few_calls_a_sleep, 0, 2) {
  static void (*const wait_in_vain[])(void *) = {wait_for_a_frame, wait_for_room};
  if (_i == 0) writer = make_writer(4096);
  int calls = trace_calls(start_child(wait_in_vain[_i], NULL));
  if (calls < 0) {
    tell_skipped(__func__, "a process can't be traced here");
    return;
  }
  int sleeps = _i == 0 ? 6 : 11;
  ck_assert_msg(calls > 0 && calls <= sleeps * 4 + 30, "%d calls in %d sleeps", calls, sleeps);
}

static void prepare(void) {
  unsetenv("RINGCAST_SPIN_US");
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(board, MAP_FAILED);
  board->caught[0] = board->caught[1] = -1;
  board->spin_ns = -1;
  real_wake = rc_os.futex_wake;
  rc_os.futex_wake = count_wakes;
}

RUN_TESTS("system calls", prepare, NULL)
