/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that die, leave, stall or have no right to the ring: the other processes are told, and
 * no memory, mapping or descriptor stays behind. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/options.h"
#include "tests/support/children.h"
#include "tests/support/handles.h"
#include "tests/support/pattern.h"
#include "tests/support/shared_memory.h"

static const uint64_t MIB = 1 << 20;

static ringcast_writer *make_writer(uint64_t capacity) {
  return writer_of(.capacity = capacity, .readers = 8);
}

struct party {
  char handle[96];
  ringcast_writer *writer;
  size_t bytes; /* of a frame */
  struct gate gate, done;
};

static struct party make_party(ringcast_writer *writer) {
  struct party party = {.writer = writer, .gate = gate_make(), .done = gate_make()};
  if (writer) strcpy(party.handle, ringcast_writer_handle(writer));
  return party;
}

static void free_party(struct party *party) {
  gate_free(&party->gate);
  gate_free(&party->done);
}

/* ---- The writer goes ------------------------------------------------------------------------- */

static void send(ringcast_writer *writer, uint64_t number, size_t bytes) {
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, RINGCAST_FOREVER, &span), 0);
  pattern_fill(span.data, bytes, number);
  ck_assert_int_eq(ringcast_writer_commit(writer, bytes, 0), 0);
}

static void must_come(ringcast_reader *reader, uint64_t number, size_t bytes) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), 0);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert(pattern_matches(frame.data, bytes, number));
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

/* A writer in a child: hands its handle over, sends three frames when the reader is there, opens a
 * fourth, and waits. */
static void be_a_writer_that_stops_halfway(void *context) {
  struct party *party = context;
  struct ringcast_span span;
  ringcast_writer *writer = writer_of(.capacity = 65536, .spill_bytes = 64 * MIB);
  child_must(write(party->done.ends[1], ringcast_writer_handle(writer), 96) == 96);
  child_must(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER) == 1);
  for (uint64_t i = 0; i < 3; i++) send(writer, i, party->bytes);
  child_must(ringcast_writer_reserve(writer, party->bytes + 1000, RINGCAST_FOREVER, &span) == 0);
  memset(span.data, 0xff, party->bytes + 1000);
  gate_wait(&party->gate);
}

/* Small frames, and some beside the ring; the reader sleeps or spins. */
LOOP_TEST(a_killed_writers_whole_frames_are_read_and_then_its_end, 0, 4) {
  struct party party = make_party(NULL);
  struct ringcast_frame frame;
  party.bytes = _i < 2 ? 4 : 4 * MIB;
  pid_t pid = start_child(be_a_writer_that_stops_halfway, &party);
  ck_assert_int_eq(read(party.done.ends[0], party.handle, 96), 96);
  ringcast_reader *reader = reader_at(party.handle, .spin_ns = _i % 2 == 0 ? 0 : (int64_t)1 << 60);
  must_come(reader, 0, party.bytes);
  uint64_t lag;
  do ck_assert_int_eq(ringcast_reader_lag(reader, &lag), 0);
  while (lag < 2 * RC_FRAME_ALIGN); /* until all three are there */
  kill_child(pid);
  for (uint64_t i = 1; i < 3; i++) must_come(reader, i, party.bytes);
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -EPIPE);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EPIPE);
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_reader_attach(party.handle, &reader), -ENOENT);
  free_party(&party);
}

static void be_a_writer_that_sends_nothing(void *context) {
  struct party *party = context;
  ringcast_writer *writer = writer_of(.capacity = 65536);
  child_must(write(party->done.ends[1], ringcast_writer_handle(writer), 96) == 96);
  for (;;) pause();
}

static void be_a_reader_to_the_end(void *context) {
  struct party *party = context;
  ringcast_reader *reader;
  struct ringcast_frame frame;
  child_must(ringcast_reader_attach(party->handle, &reader) == 0);
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == -EPIPE);
  child_must(strstr(ringcast_last_error(), "gone"));
  ringcast_reader_close(reader);
}

/* Until `count` readers sleep. */
static void await_sleepers(ringcast_tap *tap, uint32_t count) {
  struct ringcast_peer peers[8] = {{.size = sizeof *peers}};
  uint32_t asleep;
  do {
    int found = ringcast_tap_peers(tap, peers, 8);
    asleep = 0;
    for (int i = 0; i < found; i++)
      asleep += peers[i].state == RINGCAST_PEER_ACTIVE && state_of(peers[i].pid) == 'S';
  } while (asleep < count);
}

TEST(readers_asleep_when_the_writer_is_killed_are_told) {
  enum { READERS = 5 };
  struct party party = make_party(NULL);
  pid_t readers[READERS];
  ringcast_tap *tap;
  struct ringcast_frame frame;
  pid_t writer = start_child(be_a_writer_that_sends_nothing, &party);
  ck_assert_int_eq(read(party.done.ends[0], party.handle, 96), 96);
  ck_assert_int_eq(ringcast_tap_attach(party.handle, &tap), 0);
  for (int i = 0; i < READERS; i++) readers[i] = start_child(be_a_reader_to_the_end, &party);
  await_sleepers(tap, READERS);
  ck_assert_int_eq(kill(writer, SIGKILL), 0); /* a zombie from here on */
  for (int i = 0; i < READERS; i++) child_must_succeed(readers[i]);
  ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), -EPIPE);
  ringcast_tap_close(tap);
  ck_assert_int_eq(waitpid(writer, NULL, 0), writer);
  free_party(&party);
}

/* ---- A reader goes --------------------------------------------------------------------------- */

static void be_a_reader_that_stalls(void *context) {
  struct party *party = context;
  ringcast_reader *reader = reader_at(party->handle, .name = "stalled");
  gate_wait(&party->gate);
  ringcast_reader_close(reader);
}

static void fill(ringcast_writer *writer) {
  int result;
  while ((result = ringcast_writer_send(writer, "x", 1, 0, 0)) == 0) {}
  ck_assert_int_eq(result, -EAGAIN);
}

/* What it holds back is the ring, or spill memory. */
LOOP_TEST(a_dead_reader_that_holds_the_writer_back_is_named, 0, 2) {
  ringcast_writer *writer = writer_of(.capacity = 4096, .spill_bytes = 8 * MIB);
  size_t bytes = _i == 0 ? 1 : 5 * MIB;
  struct party party = make_party(writer);
  struct ringcast_peer peer = {.size = sizeof peer};
  struct ringcast_span span;
  pid_t pid = start_child(be_a_reader_that_stalls, &party);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER), 1);
  if (_i == 0) fill(writer);
  else send(writer, 0, bytes);
  ck_assert_int_eq(kill(pid, SIGKILL), 0); /* a zombie from here on: nobody has waited for it */
  if (_i == 1) send(writer, 1, 2 * MIB);   /* there is room for that */
  ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, RINGCAST_FOREVER, &span), -EOWNERDEAD);
  ck_assert_ptr_nonnull(strstr(ringcast_last_error(), "stalled"));
  ck_assert_ptr_nonnull(strstr(ringcast_last_error(), "died"));
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_int_eq(peer.pid, pid);
  ck_assert_uint_eq(peer.state, RINGCAST_PEER_DEAD);
  for (int i = 0; i < 3; i++) /* and again, however short the wait */
    ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, i, &span), -EOWNERDEAD);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 0), -EAGAIN); /* the dead do not count */
  ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 0), -EAGAIN);
  free_party(&party);
  ringcast_writer_close(writer);
}

struct killing {
  pid_t sleeper, victim;
};

static void kill_once_it_sleeps(void *context) {
  struct killing *killing = context;
  while (state_of(killing->sleeper) != 'S') {}
  child_must(kill(killing->victim, SIGKILL) == 0);
}

TEST(a_writer_asleep_when_the_reader_in_its_way_is_killed_is_told) {
  ringcast_writer *writer = make_writer(4096);
  struct party party = make_party(writer);
  struct ringcast_span span;
  for (int i = 0; i < 3; i++) {
    pid_t pid;
    for (int reader = 0; reader < 2; reader++) { /* one that leaves, and in its slot another */
      pid = start_child(be_a_reader_that_stalls, &party);
      ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER), 1);
      fill(writer);
      ck_assert_int_eq(ringcast_writer_reserve(writer, 1900, 30 * 1000000, &span), -ETIMEDOUT);
      if (reader == 1) break;
      gate_open(&party.gate);
      ck_assert_int_eq(ringcast_writer_reserve(writer, 1900, RINGCAST_FOREVER, &span), 0);
      ck_assert_int_eq(ringcast_writer_abort(writer), 0);
      child_must_succeed(pid);
    }
    struct killing killing = {.sleeper = getpid(), .victim = pid};
    pid_t killer = start_child(kill_once_it_sleeps, &killing);
    ck_assert_int_eq(ringcast_writer_reserve(writer, 1900, RINGCAST_FOREVER, &span), -EOWNERDEAD);
    child_must_succeed(killer);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ringcast_writer_close(writer);
    free_party(&party);
    writer = make_writer(4096);
    party = make_party(writer);
  }
  free_party(&party);
  ringcast_writer_close(writer);
}

/* ---- Signals --------------------------------------------------------------------------------- */

static void note_signal(int number) { (void)number; }

/* Until told to stop, interrupts its parent: one signal may come just before the sleep, so there
 * must be more. */
static void interrupt_parent(void *context) {
  (void)context;
  for (;;) kill(getppid(), SIGUSR1);
}

TEST(a_signal_ends_a_wait_and_loses_nothing) {
  ringcast_writer *writer = make_writer(4096);
  ringcast_reader *reader;
  struct ringcast_frame frame;
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), 0);
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = note_signal}, NULL);
  pid_t pid = start_child(interrupt_parent, NULL);
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -EINTR);
  fill(writer);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1900, RINGCAST_FOREVER, &span), -EINTR);
  kill(pid, SIGKILL);
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), 0);
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1900, RINGCAST_FOREVER, &span), 0);
  ringcast_writer_close(writer);
}

/* ---- Rights ---------------------------------------------------------------------------------- */

static void attach_as_nobody(void *context) {
  struct party *party = context;
  ringcast_reader *reader;
  child_must(setgid(65534) == 0 && setuid(65534) == 0);
  child_must(ringcast_reader_attach(party->handle, &reader) == -EACCES);
  child_must(strstr(ringcast_last_error(), "same user"));
}

TEST(another_users_ring_is_refused) {
  if (geteuid() != 0) {
    tell_skipped(__func__, "only root can become another user");
    return;
  }
  ringcast_writer *writer = make_writer(4096);
  struct party party = make_party(writer);
  child_must_succeed(start_child(attach_as_nobody, &party));
  free_party(&party);
  ringcast_writer_close(writer);
}

/* ---- Nothing stays --------------------------------------------------------------------------- */

static void be_a_reader_for_ever(void *context) {
  struct party *party = context;
  ringcast_reader *reader;
  struct ringcast_frame frame;
  child_must(ringcast_reader_attach(party->handle, &reader) == 0);
  gate_open(&party->done);
  ringcast_reader_next(reader, RINGCAST_FOREVER, &frame);
  for (;;) pause();
}

/* Half of it is the ring, and half of it a frame beside the ring. */
static void be_a_big_writer_for_ever(void *context) {
  struct party *party = context;
  ringcast_writer *writer =
      writer_of(.capacity = 256 * MIB, .memory = RINGCAST_MEMORY_PAGES, .spill_bytes = 256 * MIB);
  send(writer, 0, 256 * MIB - 16);
  child_must(write(party->done.ends[1], ringcast_writer_handle(writer), 96) == 96);
  for (;;) pause();
}

/* ---- What the kernel does not let a reader see ----------------------------------------------- */

static void attach_to_closed(void *handle) {
  ringcast_reader *reader;
  child_must(ringcast_reader_attach(handle, &reader) == -EACCES &&
             strstr(ringcast_last_error(), "dumpable"));
}

static void write_undumpable(void *unused) {
  ringcast_writer *writer;
  int status;
  (void)unused;
  if (geteuid() == 0)
    child_must(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
  child_must(prctl(PR_SET_DUMPABLE, 0) == 0);
  child_must(ringcast_writer_create(&writer) == 0);
  char handle[RINGCAST_HANDLE_BYTES];
  strcpy(handle, ringcast_writer_handle(writer));
  pid_t reader = start_child(attach_to_closed, handle);
  child_must(waitpid(reader, &status, 0) == reader && status == 0);
}

TEST(a_writer_that_is_not_dumpable_is_named) {
  child_must_succeed(start_child(write_undumpable, NULL));
}

static void begin_namespace(void *unused) {
  ringcast_writer *writer;
  (void)unused;
  child_must(ringcast_writer_create(&writer) == -EIO &&
             strstr(ringcast_last_error(), "PID namespace"));
  child_must(ringcast_rings(NULL, 0) == -EIO && strstr(ringcast_last_error(), "PID namespace"));
}

static void leave_namespace(void *handle) {
  ringcast_reader *reader;
  int status;
  child_must(unshare(CLONE_NEWPID) == 0);
  pid_t child = start_child(begin_namespace, handle);
  child_must(waitpid(child, &status, 0) == child && status == 0);
  child_must(ringcast_reader_attach(handle, &reader) == 0); /* this process itself has not left */
}

TEST(a_proc_of_another_namespace_is_named) {
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 1);
  if (geteuid() != 0) tell_skipped(__func__, "a PID namespace takes root");
  else child_must_succeed(start_child(leave_namespace, (void *)ringcast_writer_handle(writer)));
}

TEST(the_memory_goes_with_the_last_process_however_they_die) {
  if (cannot_under("qemu", __func__, "qemu passes no advice about memory on to the kernel")) return;
  long before = shared_memory_in_use();
  for (int order = 0; order < 2; order++) {
    struct party party = make_party(NULL);
    pid_t writer = start_child(be_a_big_writer_for_ever, &party);
    ck_assert_int_eq(read(party.done.ends[0], party.handle, 96), 96);
    pid_t reader = start_child(be_a_reader_for_ever, &party);
    gate_wait(&party.done);
    ck_assert_int_ge(ring_memory_of(writer), 512 * 1024);
    kill_child(order == 0 ? writer : reader);
    kill_child(order == 0 ? reader : writer);
    await_shared_memory_below(before + 200 * 1024);
    free_party(&party);
  }
}

RUN_TESTS("lifecycle", NULL, NULL)
