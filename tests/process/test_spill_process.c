/* SPDX-License-Identifier: Apache-2.0 */
/* Frames larger than the ring, between processes, some of which die. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "ringcast/ringcast.h"
#include "shm/topology.h"
#include "tests/support/children.h"
#include "tests/support/leaks.h"
#include "tests/support/pattern.h"
#include "tests/support/shared_memory.h"
#include "tests/support/suite.h"

static const uint64_t MIB = 1 << 20;

static ringcast_writer *make_writer(uint64_t capacity, uint64_t spill_bytes) {
  struct ringcast_writer_options options = {
      .size = sizeof options, .capacity = capacity, .readers = 8, .spill_bytes = spill_bytes};
  ringcast_writer *writer;
  ck_assert_int_eq(ringcast_writer_create_ex(&options, &writer), 0);
  return writer;
}

/* Each word depends on its place. This is as fast as memory is. */
static void fill_words(void *data, size_t bytes, uint64_t number) {
  uint64_t *words = data;
  for (size_t i = 0; i < bytes / 8; i++) words[i] = i * 0x9e3779b97f4a7c15u + number;
}

static bool words_match(const void *data, size_t bytes, uint64_t number) {
  const uint64_t *words = data;
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes / 8; i++) wrong |= words[i] ^ (i * 0x9e3779b97f4a7c15u + number);
  return wrong == 0;
}

/* ---- Size ------------------------------------------------------------------------------------------------------- */

static const size_t GIB = (size_t)1 << 30;

static void read_a_gibibyte(void *handle) {
  ringcast_reader *reader;
  struct ringcast_frame frame;
  int descriptors = open_descriptors();
  child_must(ringcast_reader_attach(handle, &reader) == 0);
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
  child_must(frame.bytes == GIB && frame.kind == 77);
  child_must(words_match(frame.data, frame.bytes, 5));
  child_must(ringcast_reader_release(reader, &frame) == 0);
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == -EPIPE);
  ringcast_reader_close(reader);
  child_must(open_descriptors() == descriptors);
}

TEST(a_gibibyte_reaches_two_readers_byte_for_byte) {
  if (cannot_under("qemu", __func__, "qemu keeps a note of each page, so rings have less spill memory there")) return;
  struct rc_room room;
  struct ringcast_span span;
  rc_topology_room(&room);
  if (room.bytes < 2 * GIB) {
    tell_skipped(__func__, "less than 2 GiB of memory are free");
    return;
  }
  ringcast_writer *writer = make_writer(0, 0);
  pid_t children[2];
  for (int i = 0; i < 2; i++) children[i] = start_child(read_a_gibibyte, (void *)ringcast_writer_handle(writer));
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, RINGCAST_FOREVER), 2);
  ck_assert_int_eq(ringcast_writer_reserve(writer, GIB, RINGCAST_FOREVER, &span), 0);
  fill_words(span.data, GIB, 5);
  ck_assert_int_eq(ringcast_writer_commit(writer, GIB, 77), 0);
  ringcast_writer_close(writer);
  for (int i = 0; i < 2; i++) child_must_succeed(children[i]);
}

/* ---- All sizes -------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__)
enum { FRAMES = 2000 };
#else
enum { FRAMES = 10000 };
#endif

/* Most frames stay in the ring of 64 KiB; some need a few MiB. Readers hold one frame while they wait for the next
 * frame: wherever the first lies in 20 MiB, there is a gap for the next, and for what is reserved beyond need. */
static size_t mixed_bytes(uint64_t number) {
  uint64_t random = mix(number);
  return (size_t)(random % 40 == 0  ? (random >> 8) % (5 * MIB)
                  : random % 8 == 1 ? (random >> 8) % 70000
                                    : (random >> 8) % 500) &
         ~(size_t)7;
}

static void read_mixed(void *handle) {
  ringcast_reader *reader;
  struct ringcast_frame held[2];
  struct ringcast_reader_options options = {.size = sizeof options, .leases = 2};
  child_must(ringcast_reader_attach_ex(handle, &options, &reader) == 0);
  for (uint64_t n = 0, first = 0; first < FRAMES; n++) {
    if (n < FRAMES) {
      struct ringcast_frame *frame = &held[n % 2];
      child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, frame) == 0);
      child_must(frame->kind == (uint16_t)n && frame->bytes == mixed_bytes(n));
    }
    if (n == 0) continue;
    child_must(words_match(held[first % 2].data, held[first % 2].bytes, first)); /* read one frame late */
    child_must(ringcast_reader_release(reader, &held[first % 2]) == 0);
    first++;
  }
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &held[0]) == -EPIPE);
  ringcast_reader_close(reader);
}

static void tap_mixed(void *handle) {
  ringcast_tap *tap;
  struct ringcast_frame frame;
  int result;
  uint64_t copied = 0, bytes, gaps, n = 0;
  child_must(ringcast_tap_attach(handle, &tap) == 0);
  while ((result = ringcast_tap_next(tap, RINGCAST_FOREVER, &frame)) == 0) {
    while (n < FRAMES && (frame.kind != (uint16_t)n || frame.bytes != mixed_bytes(n))) n++; /* those that it lost */
    child_must(n < FRAMES);
    child_must(words_match(frame.data, frame.bytes, n++));
    copied++;
  }
  child_must(result == -EPIPE);
  child_must(ringcast_tap_lost(tap, &bytes, &gaps) == 0);
  child_must(copied == FRAMES || gaps > 0);
  printf("tap: %llu of %d frames copied, %llu gaps\n", (unsigned long long)copied, FRAMES, (unsigned long long)gaps);
  fflush(stdout);
  ringcast_tap_close(tap);
}

LOOP_TEST(large_and_small_frames_reach_all_in_order, 0, 2) {
  enum { READERS = 3 };
  ringcast_writer *writer = make_writer(65536, _i == 0 ? 20 * MIB : 256 * MIB); /* waits often, and seldom */
  pid_t children[READERS + 1];
  char *handle = (char *)ringcast_writer_handle(writer);
  for (int i = 0; i < READERS; i++) children[i] = start_child(read_mixed, handle);
  children[READERS] = start_child(tap_mixed, handle);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, READERS, RINGCAST_FOREVER), READERS);
  for (uint64_t n = 0; n < FRAMES; n++) {
    struct ringcast_span span;
    size_t bytes = mixed_bytes(n),
           estimate = mix(n + 1) % 3 == 0 ? bytes / 3 : bytes + bytes / 4; /* grown, or trimmed */
    ck_assert_int_eq(ringcast_writer_reserve(writer, estimate, RINGCAST_FOREVER, &span), 0);
    if (estimate < bytes) {
      fill_words(span.data, estimate & ~(size_t)7, n);
      ck_assert_int_eq(ringcast_writer_grow(writer, bytes, RINGCAST_FOREVER, &span), 0);
      ck_assert(words_match(span.data, estimate & ~(size_t)7, n));
    }
    fill_words(span.data, bytes, n);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes, (uint16_t)n), 0);
  }
  ringcast_writer_close(writer);
  for (int i = 0; i <= READERS; i++) child_must_succeed(children[i]);
}

/* ---- Deaths ----------------------------------------------------------------------------------------------------- */

struct party {
  char handle[96];
  struct gate gate, done;
};

static void hold_a_frame(void *context) {
  struct party *party = context;
  struct ringcast_reader_options options = {.size = sizeof options, .name = "holder"};
  ringcast_reader *reader;
  struct ringcast_frame frame;
  child_must(ringcast_reader_attach_ex(party->handle, &options, &reader) == 0);
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
  gate_open(&party->done);
  gate_wait(&party->gate);
  child_must(words_match(frame.data, frame.bytes, 1));
  ringcast_reader_close(reader);
}

/* Returns once a reader in a process of its own holds a frame of 5 MiB. */
static pid_t send_to_holder(ringcast_writer *writer, struct party *party) {
  struct ringcast_span span;
  strcpy(party->handle, ringcast_writer_handle(writer));
  pid_t pid = start_child(hold_a_frame, party);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER), 1);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 0, &span), 0);
  fill_words(span.data, 5 * MIB, 1);
  ck_assert_int_eq(ringcast_writer_commit(writer, 5 * MIB, 0), 0);
  gate_wait(&party->done);
  return pid;
}

TEST(a_reader_that_dies_with_a_spilled_frame_is_named_when_the_memory_is_wanted) {
  ringcast_writer *writer = make_writer(65536, 8 * MIB);
  struct party party = {.gate = gate_make(), .done = gate_make()};
  struct ringcast_span span;
  pid_t pid = send_to_holder(writer, &party);
  kill_child(pid);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, RINGCAST_FOREVER, &span), 0); /* there is room */
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, i == 0 ? RINGCAST_FOREVER : i, &span), -EOWNERDEAD);
    ck_assert_ptr_nonnull(strstr(ringcast_last_error(), "holder"));
  }
  gate_free(&party.gate);
  gate_free(&party.done);
  ringcast_writer_close(writer);
}

enum { LEFT = 3 };

static void write_and_stop(void *context) {
  struct party *party = context;
  ringcast_writer *writer;
  struct ringcast_span span;
  struct ringcast_writer_options options = {.size = sizeof options, .capacity = 65536, .spill_bytes = 64 * MIB};
  child_must(ringcast_writer_create_ex(&options, &writer) == 0);
  child_must(write(party->done.ends[1], ringcast_writer_handle(writer), 96) == 96);
  child_must(ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER) == 1);
  for (uint64_t i = 0; i < LEFT; i++) {
    child_must(ringcast_writer_reserve(writer, (4 + i) * MIB, 0, &span) == 0);
    fill_words(span.data, (4 + i) * MIB, i);
    child_must(ringcast_writer_commit(writer, (4 + i) * MIB, 0) == 0);
  }
  child_must(ringcast_writer_reserve(writer, 5 * MIB, 0, &span) == 0); /* which nobody will see */
  memset(span.data, 0xff, 5 * MIB);
  gate_open(&party->done);
  gate_wait(&party->gate);
}

TEST(what_a_killed_writer_committed_is_read_by_who_had_not_looked_at_it_yet) {
  struct party party = {.gate = gate_make(), .done = gate_make()};
  ringcast_reader *reader;
  struct ringcast_frame frame;
  pid_t pid = start_child(write_and_stop, &party);
  ck_assert_int_eq(read(party.done.ends[0], party.handle, 96), 96);
  ck_assert_int_eq(ringcast_reader_attach(party.handle, &reader), 0);
  gate_wait(&party.done);
  kill_child(pid);
  for (uint64_t i = 0; i < LEFT; i++) {
    ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), 0);
    ck_assert_uint_eq(frame.bytes, (4 + i) * MIB);
    ck_assert(words_match(frame.data, frame.bytes, i));
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  }
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -EPIPE);
  ringcast_reader_close(reader);
  gate_free(&party.gate);
  gate_free(&party.done);
}

/* ---- Nothing stays ---------------------------------------------------------------------------------------------- */

/* How many processes have a file mapped or open. */
static int holders_of(ino_t inode) {
  int holders = 0;
  DIR *processes = opendir("/proc");
  for (struct dirent *process; (process = readdir(processes)) != NULL;) {
    char path[300], line[512];
    bool holds = false;
    if (process->d_name[0] < '0' || process->d_name[0] > '9') continue;
    snprintf(path, sizeof path, "/proc/%s/maps", process->d_name);
    FILE *maps = fopen(path, "re");
    for (unsigned long found; maps && fgets(line, sizeof line, maps);)
      holds |=
          strstr(line, "memfd:ringcast.spill") && sscanf(line, "%*s %*s %*s %*s %lu", &found) == 1 && found == inode;
    if (maps) fclose(maps);
    snprintf(path, sizeof path, "/proc/%s/fd", process->d_name);
    DIR *files = opendir(path);
    for (struct dirent *file; files && (file = readdir(files)) != NULL;) {
      struct stat found;
      holds |= fstatat(dirfd(files), file->d_name, &found, 0) == 0 && S_ISREG(found.st_mode) && found.st_ino == inode;
    }
    if (files) closedir(files);
    holders += holds;
  }
  closedir(processes);
  return holders;
}

/* The only spill memory that a process has mapped. */
static ino_t spill_inode_of(pid_t pid) {
  char path[64], line[512];
  unsigned long inode = 0;
  snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
  FILE *maps = fopen(path, "re");
  while (fgets(line, sizeof line, maps))
    if (strstr(line, "memfd:ringcast.spill")) ck_assert_int_eq(sscanf(line, "%*s %*s %*s %*s %lu", &inode), 1);
  fclose(maps);
  ck_assert_uint_ne(inode, 0);
  return inode;
}

static void spill_and_stop(void *context) {
  struct party *party = context;
  ringcast_writer *writer;
  struct ringcast_span span;
  struct ringcast_writer_options options = {.size = sizeof options, .capacity = 65536, .spill_bytes = 64 * MIB};
  child_must(ringcast_writer_create_ex(&options, &writer) == 0);
  child_must(ringcast_writer_reserve(writer, 50 * MIB, 0, &span) == 0);
  child_must(ringcast_writer_commit(writer, 50 * MIB, 0) == 0);
  child_must(write(party->done.ends[1], ringcast_writer_handle(writer), 96) == 96);
  for (;;) pause();
}

static void attach_and_stop(void *context) {
  struct party *party = context;
  ringcast_reader *reader;
  child_must(ringcast_reader_attach(party->handle, &reader) == 0);
  gate_open(&party->done);
  for (;;) pause();
}

TEST(spill_memory_is_held_by_those_who_use_it_and_by_nobody_when_they_are_dead) {
  for (int order = 0; order < 2; order++) {
    struct party party = {.gate = gate_make(), .done = gate_make()};
    pid_t writer = start_child(spill_and_stop, &party);
    ck_assert_int_eq(read(party.done.ends[0], party.handle, 96), 96);
    pid_t reader = start_child(attach_and_stop, &party);
    gate_wait(&party.done);
    ino_t inode = spill_inode_of(writer);
    ck_assert_uint_eq(spill_inode_of(reader), inode);
    ck_assert_int_eq(holders_of(inode), 2);
    kill_child(order == 0 ? writer : reader);
    ck_assert_int_eq(holders_of(inode), 1);
    kill_child(order == 0 ? reader : writer);
    ck_assert_int_eq(holders_of(inode), 0);
    gate_free(&party.gate);
    gate_free(&party.done);
  }
}

RUN_TESTS("spill_process", NULL, NULL)
