/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that a signal interrupts, that have no right to the ring or that die: no memory,
 * mapping or descriptor stays behind. */
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

static void send(ringcast_writer *writer, uint64_t number, size_t bytes) {
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, RINGCAST_FOREVER, &span), 0);
  pattern_fill(span.data, bytes, number);
  ck_assert_int_eq(ringcast_writer_commit(writer, bytes, 0), 0);
}

static void fill(ringcast_writer *writer) {
  int result;
  while ((result = ringcast_writer_send(writer, "x", 1, 0, 0)) == 0) {}
  ck_assert_int_eq(result, -EAGAIN);
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
