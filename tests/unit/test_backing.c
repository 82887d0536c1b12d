/* SPDX-License-Identifier: Apache-2.0 */
/* What of spill memory is in place: put there once, given back when idle, and an error where there
 * is none to be had. */
#define _GNU_SOURCE
#include "shm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/error.h"
#include "tests/support/children.h"
#include "tests/support/fake_files.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"

static const uint64_t CHUNK = RC_BACKING_CHUNK;
enum { CHUNKS = 64 };

static struct rc_memory memory;
static struct rc_backing backing;
static struct rc_spill spill;
static struct rc_os real;
static uint32_t now = 1000;

static uint32_t fake_seconds(void) { return now; }

static void make_arena(void) {
  static const struct rc_memory anywhere = {.numa = RINGCAST_NUMA_NONE};
  ck_assert_int_eq(rc_memory_create_spill(CHUNKS * CHUNK, &anywhere, &memory), 0);
  ck_assert_int_eq(rc_backing_init(&backing, &memory), 0);
  rc_spill_init(&spill, memory.bytes);
  real = rc_os;
  rc_os.seconds = fake_seconds;
  backing.keep = 4 * CHUNK;
}

static void free_arena(void) {
  rc_backing_free(&backing);
  rc_memory_destroy(&memory);
  rc_os = real;
}

static uint64_t bytes_in_place(void) {
  struct stat file;
  ck_assert_int_eq(fstat(memory.fd, &file), 0);
  return (uint64_t)file.st_blocks * 512;
}

static void ck_in_place(uint64_t chunks) {
  ck_assert_uint_eq(backing.in_place, chunks * CHUNK);
  ck_assert_uint_eq(bytes_in_place(), chunks * CHUNK);
}

/* The calls to populate whole chunks, counted; `fails` is what they give from then on, and those
 * for less. */
static int populated, fails;

static int advise_counted(void *address, size_t bytes, int advice) {
  bool counts = advice == MADV_POPULATE_WRITE || advice == MADV_POPULATE_READ;
  populated += counts && bytes >= CHUNK;
  return counts && fails != 0 ? fails : real.advise(address, bytes, advice);
}

TEST(making_it_takes_no_memory_and_a_part_is_put_in_place_once) {
  rc_os.advise = advise_counted;
  ck_in_place(0);
  ck_assert_int_eq(rc_backing_provide(&backing, CHUNK + 5, 10), 0);
  ck_in_place(1);
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 3 * CHUNK), 0); /* the two around it */
  ck_assert_int_eq(populated, 3);
  ck_in_place(3);
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 3 * CHUNK), 0);
  ck_assert_int_eq(populated, 3);
  ck_assert_int_eq(rc_backing_provide(&backing, 3 * CHUNK - 1, 2), 0);
  ck_assert_int_eq(populated, 4);
  ck_assert_int_eq(rc_backing_provide(&backing, 60 * CHUNK, 4 * CHUNK), 0); /* up to the very end */
  ck_in_place(8);
  memset(memory.base + 60 * CHUNK, 1, 4 * CHUNK);
  ck_in_place(8);
}

TEST(memory_that_is_not_to_be_had_is_an_error_that_leaves_nothing) {
  const struct {
    int kernel, told;
  } cases[] = {{-ENOMEM, -ENOMEM}, {-EFAULT, -ENOMEM}, {-ENOSPC, -ENOSPC}};
  ck_assert_int_eq(rc_backing_provide(&backing, 0, CHUNK), 0);
  rc_os.advise = advise_counted;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fails = cases[i].kernel;
    ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), cases[i].told);
    ck_assert_ptr_nonnull(strstr(rc_error_text(), "18874368 bytes more of spill memory"));
    ck_in_place(1);
  }
  fails = 0;
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), 0);
  ck_in_place(10);
}

static int advise_half(void *address, size_t bytes, int advice) {
  if (advice != MADV_POPULATE_WRITE || bytes < CHUNK) return real.advise(address, bytes, advice);
  memset(address, 1, bytes / 2);
  return -ENOMEM;
}

TEST(what_was_put_in_place_before_the_memory_ran_out_goes_back) {
  ck_assert_int_eq(rc_backing_provide(&backing, 0, CHUNK), 0);
  rc_os.advise = advise_half;
  memory.huge = false;
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), -ENOMEM);
  ck_in_place(1);
}

static int allocations, allocate_result;

static int allocate_counted(int fd, uint64_t offset, uint64_t bytes) {
  allocations++;
  return allocate_result != 0 ? allocate_result : real.allocate(fd, offset, bytes);
}

TEST(an_older_kernel_allocates_the_part_and_touches_it) {
  rc_os.advise = advise_counted;
  rc_os.allocate = allocate_counted;
  fails = -EINVAL;
  ck_assert_int_eq(rc_backing_provide(&backing, 7 * CHUNK, 2 * CHUNK), 0);
  ck_assert_int_eq(allocations, 1);
  ck_in_place(2);
  allocate_result = -ENOSPC;
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 2 * CHUNK), -ENOSPC);
  ck_in_place(2);
  struct rc_backing_view view;
  ck_assert_int_eq(rc_backing_view_init(&view, &memory), 0);
  ck_assert_int_eq(rc_backing_view_check(&view, 7 * CHUNK, 10, 0),
                   0); /* pages are mapped as they are read */
  rc_backing_view_free(&view);
}

TEST(what_the_machine_has_no_room_for_is_not_begun) {
  const struct fake_file machine[] = {{"/proc/meminfo", "MemAvailable: 4096 kB\n"}, {0}};
  use_fake_files(machine);
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 2 * CHUNK), 0);
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 5 * CHUNK), -ENOMEM);
  ck_assert_ptr_nonnull(strstr(rc_error_text(), "the machine's memory has room for 4194304"));
  ck_in_place(2);
}

static int collapses, collapse_result;

static int advise_collapse(void *address, size_t bytes, int advice) {
  if (advice != MADV_COLLAPSE) return real.advise(address, bytes, advice);
  collapses++;
  return collapse_result != 0 ? collapse_result : real.advise(address, bytes, advice);
}

TEST(huge_pages_are_tried_and_all_is_in_place_without_them_too) {
  const struct {
    int result, calls; /* for two parts */
  } cases[] = {{-ENOMEM, 2}, {-EAGAIN, 6}, {-EINVAL, 1}};
  rc_os.advise = advise_collapse;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    collapses = 0;
    collapse_result = cases[i].result;
    memory.huge = true;
    ck_assert_int_eq(rc_backing_provide(&backing, 10 * i * CHUNK, 2 * CHUNK), 0);
    ck_assert_int_eq(rc_backing_provide(&backing, (10 * i + 5) * CHUNK, CHUNK), 0);
    ck_assert_int_eq(collapses, cases[i].calls);
    ck_in_place(3 * (i + 1));
  }
  rc_memory_destroy(&memory);
  static const struct rc_memory anywhere = {.numa = RINGCAST_NUMA_NONE};
  setenv("RINGCAST_DISABLE", "shmem-huge", 1);
  ck_assert_int_eq(rc_memory_create_spill(CHUNKS * CHUNK, &anywhere, &memory), 0);
  rc_backing_free(&backing);
  ck_assert_int_eq(rc_backing_init(&backing, &memory), 0);
  collapses = 0;
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 2 * CHUNK), 0);
  ck_assert_int_eq(collapses, 0);
  ck_in_place(2);
}

/* ---- Giving back ----------------------------------------------------------------------------- */

TEST(what_lies_idle_above_the_mark_goes_back_after_ten_seconds) {
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), 0);
  ck_assert_uint_eq(backing.excess, 6 * CHUNK);
  now += 9;
  ck_assert(!rc_backing_trim(&backing, &spill));
  ck_assert_int_eq(rc_backing_provide(&backing, 5 * CHUNK, CHUNK), 0); /* in use: begins anew */
  now += 1;
  ck_assert(rc_backing_trim(&backing, &spill));
  ck_in_place(5);
  ck_assert_uint_eq(backing.excess, CHUNK);
  now += 8;
  ck_assert(!rc_backing_trim(&backing, &spill));
  now += 1;
  ck_assert(rc_backing_trim(&backing, &spill));
  ck_in_place(4);
  now += 1000;
  ck_assert(!rc_backing_trim(&backing, &spill));
  ck_in_place(4); /* below the mark it stays */
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), 0);
  ck_in_place(10);
}

TEST(what_is_in_flight_or_open_is_not_idle) {
  spill.count = 1;
  spill.regions[0] =
      (struct rc_spill_region){.offset = 6 * CHUNK, .bytes = CHUNK + RC_SPILL_UNIT, .end = 64};
  spill.is_open = true;
  spill.open = (struct rc_spill_region){.offset = 9 * CHUNK, .bytes = RC_SPILL_UNIT};
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 12 * CHUNK), 0);
  memset(memory.base, 0x5a, 12 * CHUNK);
  now += 50;
  ck_assert(rc_backing_trim(&backing, &spill));
  ck_in_place(7); /* 0 to 3, 6, 7, 9 */
  ck_assert_uint_eq(others_than(0x5a, memory.base + 6 * CHUNK, CHUNK + RC_SPILL_UNIT), 0);
  ck_assert_uint_eq(memory.base[9 * CHUNK], 0x5a);
  spill.count = 0;
  spill.is_open = false;
  now += 10;
  ck_assert(rc_backing_trim(&backing, &spill));
  ck_in_place(4);
}

TEST(what_a_load_brought_back_goes_with_the_rest) {
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), 0);
  memory.base[20 * CHUNK] = 1;
  ck_assert_uint_gt(bytes_in_place(), backing.in_place);
  now += 50;
  ck_assert(rc_backing_trim(&backing, &spill));
  ck_in_place(4);
}

static int no_punch(int fd, uint64_t offset, uint64_t bytes) {
  (void)fd, (void)offset, (void)bytes;
  return -EOPNOTSUPP;
}

TEST(where_nothing_can_be_given_back_all_goes_on) {
  rc_os.punch = no_punch;
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), 0);
  now += 50;
  ck_assert(!rc_backing_trim(&backing, &spill));
  ck_in_place(10);
}

static int advise_of_an_old_kernel(void *address, size_t bytes, int advice) {
  return advice == MADV_POPULATE_WRITE ? -EINVAL : real.advise(address, bytes, advice);
}

TEST(a_file_that_has_got_the_number_is_neither_punched_nor_filled_nor_closed) {
  struct stat before, after;
  memory.huge = false;
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), 0);
  int own = memfd_create("own", MFD_CLOEXEC);
  ck_assert_int_eq(rc_os.allocate(own, 0, 20 * CHUNK), 0);
  ck_assert_int_eq(dup2(own, memory.fd), memory.fd);
  ck_assert_int_eq(fstat(own, &before), 0);
  now += 50;
  ck_assert(!rc_backing_trim(&backing, &spill));
  ck_assert_int_eq(rc_backing_provide(&backing, 30 * CHUNK, CHUNK), 0); /* takes no descriptor */
  rc_os.advise = advise_of_an_old_kernel;
  ck_assert_int_eq(rc_backing_provide(&backing, 40 * CHUNK, CHUNK), -EBADF);
  int number = memory.fd;
  rc_memory_destroy(&memory);
  ck_assert_int_eq(fstat(number, &after), 0);
  ck_assert(after.st_size == before.st_size && after.st_blocks == before.st_blocks &&
            after.st_ino == before.st_ino);
  close(number);
  close(own);
}

/* ---- The reader's side ----------------------------------------------------------------------- */

TEST(a_reader_makes_sure_of_a_chunk_once_in_an_epoch) {
  struct rc_memory mapped;
  struct rc_backing_view view;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", memory.fd);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ck_assert_int_eq(rc_memory_map_spill(fd, memory.bytes, false, &mapped), 0);
  close(fd);
  ck_assert_int_eq(rc_backing_view_init(&view, &mapped), 0);
  ck_assert_int_eq(rc_backing_provide(&backing, 0, 10 * CHUNK), 0);
  memory.base[3 * CHUNK + 16] = 7;
  rc_os.advise = advise_counted;
  ck_assert_int_eq(rc_backing_view_check(&view, 3 * CHUNK + 16, 5, 0), 0);
  ck_assert_uint_eq(mapped.base[3 * CHUNK + 16], 7);
  ck_assert_int_eq(rc_backing_view_check(&view, 3 * CHUNK + 16, CHUNK - 16, 0), 0);
  ck_assert_int_eq(populated, 1);
  ck_assert_int_eq(rc_backing_view_check(&view, 2 * CHUNK + 16, 3 * CHUNK, 0),
                   0); /* 2, and 4 and 5 */
  ck_assert_int_eq(populated, 3);
  ck_assert_int_eq(rc_backing_view_check(&view, 2 * CHUNK + 16, 3 * CHUNK, 1), 0);
  ck_assert_int_eq(populated, 4);
  fails = -EFAULT;
  ck_assert_int_eq(rc_backing_view_check(&view, 2 * CHUNK + 16, 3 * CHUNK, 1), 0);
  ck_assert_int_eq(rc_backing_view_check(&view, 8 * CHUNK + 16, 5, 1), -EFAULT);
  fails = 0;
  ck_assert_int_eq(rc_backing_view_check(&view, 8 * CHUNK + 16, 5, 1),
                   0); /* nothing was noted down */
  ck_assert_int_eq(populated, 6);
  ck_assert_int_eq(mprotect(mapped.base, CHUNK, PROT_READ | PROT_WRITE), -1);
  rc_backing_view_free(&view);
  rc_memory_destroy(&mapped);
}

static void open_it_for_writing(void *context) {
  const char *path = context;
  if (geteuid() == 0) child_must(setresuid(65534, 65534, 65534) == 0); /* root may do anything */
  struct rc_memory own;
  static const struct rc_memory anywhere = {.numa = RINGCAST_NUMA_NONE};
  child_must(rc_memory_create_spill(CHUNK, &anywhere, &own) == 0);
  char text[64];
  snprintf(text, sizeof text, path, own.fd);
  child_must(open(text, O_RDWR) == -1);
  int fd = open(text, O_RDONLY);
  child_must(fd >= 0);
  child_must(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  child_must(ftruncate(own.fd, 0) == -1 && ftruncate(own.fd, (off_t)(2 * CHUNK)) == -1);
  child_must(fcntl(own.fd, F_ADD_SEALS, F_SEAL_WRITE) == -1);
}

TEST(its_size_is_sealed_and_it_opens_for_reading_only) {
  if (access("/proc/self/fd", R_OK) != 0) tell_skipped(__func__, "no /proc");
  else child_must_succeed(start_child(open_it_for_writing, "/proc/self/fd/%d"));
}

/* mlockall(MCL_FUTURE) puts in place what is mapped from then on: here it must not. */
static void with_all_locked(void *context) {
  (void)context;
  struct rc_memory own, seen;
  static const struct rc_memory anywhere = {.numa = RINGCAST_NUMA_NONE};
  struct stat file;
  if (mlockall(MCL_FUTURE) != 0) _exit(2);
  if (rc_memory_create_spill(CHUNKS * CHUNK, &anywhere, &own) != 0) _exit(2);
  child_must(rc_memory_map_spill(own.fd, own.bytes, false, &seen) == 0);
  child_must(fstat(own.fd, &file) == 0);
  child_must(file.st_blocks == 0);
  char text[4096];
  unsigned long locked;
  child_must(rc_os.read_file("/proc/self/status", text, sizeof text) > 0);
  child_must(sscanf(strstr(text, "VmLck:"), "VmLck: %lu", &locked) == 1);
  child_must(locked << 10 < own.bytes); /* nor does it count against the limit */
}

TEST(a_process_that_locks_all_its_memory_does_not_get_all_of_it) {
  int status;
  pid_t pid = start_child(with_all_locked, NULL);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) tell_skipped(__func__, "no right to lock so much (ulimit -l)");
  else ck_assert_int_eq(WEXITSTATUS(status), 0);
}

RUN_TESTS("backing", make_arena, free_arena)
