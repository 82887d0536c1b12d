/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: mirrored, sealed, in place; and each thing that a machine may refuse. */
#define _GNU_SOURCE
#include "shm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/options.h"
#include "shm/error.h"
#include "shm/os.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"
#include "tests/support/switches.h"

static const uint64_t MIB = 1 << 20;
static struct rc_os real;

static void begin(void) {
  real = rc_os;
  remember();
}

static void end(void) {
  rc_os = real;
  nothing_is_left();
}

/* Pages of the mapping that are in memory already. */
static uint64_t pages_in_place(const struct rc_memory *memory) {
  uint64_t page = rc_small_page(), count = 0, pages = memory->bytes / page;
  unsigned char *state = malloc(pages);
  ck_assert_int_eq(mincore(memory->base, memory->bytes, state), 0);
  for (uint64_t i = 0; i < pages; i++) count += state[i] & 1;
  free(state);
  return count;
}

static int create(uint64_t bytes, uint32_t kind, struct rc_memory *out) {
  return rc_memory_create_data(bytes, &(struct rc_memory_wish){.memory = kind}, out);
}

static void check_data(struct rc_memory *memory, uint64_t bytes) {
  ck_assert_uint_ge(memory->bytes, bytes);
  ck_assert_uint_eq(pages_in_place(memory), memory->bytes / rc_small_page());
  for (uint64_t i = 0; i < memory->bytes; i += 512) ck_assert_uint_eq(memory->base[i], 0);
  memory->base[memory->bytes - 1] = 1;
  memory->base[memory->bytes] = 2; /* the mirror's first byte is the file's first */
  ck_assert_uint_eq(memory->base[0], 2);
  ck_assert_uint_eq(memory->base[2 * memory->bytes - 1], 1);
}

TEST(data_is_mirrored_zero_and_in_place) {
  const uint64_t sizes[] = {4096, 64 * 1024, 2 * MIB, 8 * MIB};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    struct rc_memory memory;
    ck_assert_int_eq(create(sizes[i], RINGCAST_MEMORY_AUTO, &memory), 0);
    if (sizes[i] < RC_HUGE_PAGE) ck_assert_uint_eq(memory.memory, RINGCAST_MEMORY_PAGES);
    check_data(&memory, sizes[i]);
    rc_memory_destroy(&memory);
  }
}

LOOP_TEST(nobody_can_map_the_data_writable_or_change_its_size, 0, 2) {
  const uint32_t kinds[] = {RINGCAST_MEMORY_PAGES, RINGCAST_MEMORY_AUTO};
  struct rc_memory memory, view;
  char path[40];
  void *mapped;
  ck_assert_int_eq(create(4 * MIB, kinds[_i], &memory), 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", memory.fd);
  int fd = open(path, O_RDWR);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(rc_os.map(NULL, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, &mapped),
                   -EPERM);
  ck_assert_int_eq(ftruncate(fd, 0), -1);
  ck_assert_int_eq(ftruncate(fd, (off_t)(8 * MIB)), -1);
  ck_assert_int_lt(write(fd, "x", 1), 0);
  ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  ck_assert_int_ne(
      fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)memory.bytes), 0);
  ck_assert_int_eq(rc_memory_map_data(fd, memory.bytes, memory.page_size, &view), 0);
  memory.base[5] = 7;
  ck_assert_uint_eq(view.base[5], 7);
  ck_assert_uint_eq(view.base[view.bytes + 5], 7);
  ck_assert_int_ne(mprotect(view.base, view.bytes, PROT_READ | PROT_WRITE), 0);
  close(fd);
  rc_memory_destroy(&view);
  rc_memory_destroy(&memory);
}

/* More could be added, or all punched out. */
LOOP_TEST(a_file_without_the_seals_is_refused, 0, 3) {
  static const int seals[] = {0, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK};
  const uint64_t bytes = RC_BACKING_CHUNK;
  struct rc_memory view = {.fd = -1};
  int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
  ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals[_i]), 0);
  ck_assert_int_eq(rc_memory_map_data(fd, bytes, 4096, &view), -EPROTO);
  ck_assert_int_eq(rc_memory_map_spill(fd, bytes, false, &view), -EPROTO);
  ck_assert_int_eq(rc_memory_map_control(fd, bytes, &view), _i == 1 ? 0 : -EPROTO);
  ck_assert_int_eq(view.base != NULL, _i == 1);
  rc_memory_destroy(&view);
  close(fd);
}

/* ---- Each kind, got or refused --------------------------------------------------------------- */

static long read_number(const char *path) {
  long number = -1;
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  if (fscanf(file, "%ld", &number) != 1) number = -1;
  fclose(file);
  return number;
}

static bool write_number(const char *path, long number) {
  FILE *file = fopen(path, "we");
  if (!file) return false;
  bool written = fprintf(file, "%ld", number) > 0;
  return fclose(file) == 0 && written;
}

static const char pool[] = "/proc/sys/vm/nr_hugepages";

/* Makes the pool `pages` larger. Returns its size before, or -1 and says so where that can't be. */
static long grow_pool(const char *test, long pages) {
  long before = read_number(pool);
  if (rc_feature_disabled("hugetlb")) {
    tell_skipped(test, "RINGCAST_DISABLE has hugetlb");
    return -1;
  }
  if (before >= 0 && write_number(pool, before + pages) && read_number(pool) >= before + pages)
    return before;
  if (before >= 0) write_number(pool, before);
  tell_skipped(test, "can't reserve 2 MiB pages here (not root, or no free memory)");
  return -1;
}

TEST(hugetlb_is_taken_when_the_pool_has_pages) {
  struct rc_memory memory;
  long before = grow_pool(__func__, 4);
  if (before < 0) return;
  int result = create(4 * MIB, RINGCAST_MEMORY_AUTO, &memory);
  if (result == 0) {
    ck_assert_uint_eq(memory.memory, RINGCAST_MEMORY_HUGETLB);
    ck_assert_uint_eq(memory.page_size, RC_HUGE_PAGE);
    check_data(&memory, 4 * MIB);
    rc_memory_destroy(&memory);
  }
  write_number(pool, before);
  ck_assert_int_eq(result, 0);
}

TEST(a_pool_with_fewer_pages_than_needed_is_as_an_empty_one) {
  struct rc_memory memory, held;
  int by_name = 0, by_default = -1;
  uint32_t got = 0;
  long before = grow_pool(__func__, 1);
  if (before < 0) return;
  if (before == 0) {
    by_name = create(4 * MIB, RINGCAST_MEMORY_HUGETLB, &memory);
    by_default = create(4 * MIB, RINGCAST_MEMORY_AUTO, &memory);
    if (by_default == 0) got = memory.memory;
    if (by_default == 0) rc_memory_destroy(&memory);
    if (create(2 * MIB, RINGCAST_MEMORY_HUGETLB, &held) ==
        0) /* the failed attempt gave its page back */
      rc_memory_destroy(&held);
    else got = 0;
  }
  write_number(pool, before);
  if (before > 0) {
    tell_skipped(__func__, "this machine has 2 MiB pages reserved");
    return;
  }
  ck_assert_int_eq(by_name, -ENOMEM);
  ck_assert_int_eq(by_default, 0);
  ck_assert(got == RINGCAST_MEMORY_SHMEM_HUGE || got == RINGCAST_MEMORY_PAGES);
}

TEST(an_empty_pool_is_an_error_only_if_asked_for_by_name) {
  struct rc_memory memory;
  if (rc_feature_disabled("hugetlb") || read_number(pool) > 0) {
    tell_skipped(__func__, rc_feature_disabled("hugetlb")
                               ? "RINGCAST_DISABLE has hugetlb"
                               : "this machine has 2 MiB pages reserved");
    return;
  }
  ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_HUGETLB, &memory), -ENOMEM);
  ck_assert_ptr_nonnull(strstr(rc_error_text(), "nr_hugepages"));
  ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_AUTO, &memory), 0);
  ck_assert_uint_ne(memory.memory, RINGCAST_MEMORY_HUGETLB);
  rc_memory_destroy(&memory);
}

/* What smaps says under `key`, in bytes, of the mapping that begins at `start`. */
static uint64_t mapped_bytes(const void *start, const char *key) {
  char line[512], first[32];
  bool inside = false;
  unsigned long kib = 0;
  FILE *file = fopen("/proc/self/smaps", "re");
  snprintf(first, sizeof first, "%08lx-", (unsigned long)(uintptr_t)start);
  while (kib == 0 && fgets(line, sizeof line, file)) {
    if (inside && strncmp(line, "VmFlags:", 8) == 0) break;
    inside |= strncmp(line, first, strlen(first)) == 0;
    if (inside && strncmp(line, key, strlen(key)) == 0) sscanf(line + strlen(key), ": %lu", &kib);
  }
  fclose(file);
  return (uint64_t)kib << 10;
}

TEST(huge_pages_of_shared_memory_are_huge_for_writer_and_reader) {
  struct rc_memory memory, view;
  int result = create(8 * MIB, RINGCAST_MEMORY_SHMEM_HUGE, &memory);
  if (result != 0) {
    tell_skipped(__func__, rc_error_text());
    return;
  }
  ck_assert_uint_eq(memory.page_size, RC_HUGE_PAGE);
  ck_assert_int_eq(rc_memory_map_data(memory.fd, memory.bytes, memory.page_size, &view), 0);
  for (int i = 0; i < 2; i++) {
    ck_assert_uint_eq(mapped_bytes(memory.base + (uint64_t)i * memory.bytes, "ShmemPmdMapped"),
                      memory.bytes);
    ck_assert_uint_eq(mapped_bytes(view.base + (uint64_t)i * view.bytes, "ShmemPmdMapped"),
                      view.bytes);
  }
  check_data(&memory, 8 * MIB);
  rc_memory_destroy(&view);
  rc_memory_destroy(&memory);
}

TEST(no_page_fault_is_left_for_the_first_lap) {
  struct rc_memory memory, view;
  ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_PAGES, &memory), 0);
  ck_assert_int_eq(rc_memory_map_data(memory.fd, memory.bytes, memory.page_size, &view), 0);
  for (int i = 0; i < 2; i++) {
    ck_assert_uint_eq(mapped_bytes(memory.base + (uint64_t)i * memory.bytes, "Rss"), memory.bytes);
    ck_assert_uint_eq(mapped_bytes(view.base + (uint64_t)i * view.bytes, "Rss"), view.bytes);
  }
  rc_memory_destroy(&view);
  rc_memory_destroy(&memory);
}

static int busy_left;

static int busy_collapse(void *address, size_t bytes, int advice) {
  return advice == MADV_COLLAPSE && busy_left-- > 0 ? -EAGAIN : real.advise(address, bytes, advice);
}

TEST(a_page_that_is_busy_for_a_moment_is_tried_again) {
  struct rc_memory memory;
  rc_os.advise = busy_collapse;
  if (create(4 * MIB, RINGCAST_MEMORY_SHMEM_HUGE, &memory) != 0) {
    tell_skipped(__func__, rc_error_text());
    return;
  }
  rc_memory_destroy(&memory);
  busy_left = 2;
  ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_SHMEM_HUGE, &memory), 0);
  rc_memory_destroy(&memory);
  busy_left = 1000; /* never "try later" to the caller */
  ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_SHMEM_HUGE, &memory), -ENOMEM);
}

static int no_collapse(void *address, size_t bytes, int advice) {
  return advice == MADV_COLLAPSE || advice == MADV_HUGEPAGE ? -EINVAL
                                                            : real.advise(address, bytes, advice);
}

TEST(without_huge_pages_plain_ones_are_taken) {
  struct rc_memory memory;
  int expected = rc_feature_disabled("shmem-huge") ? -ENOSYS : -EINVAL;
  rc_os.advise = no_collapse;
  disable_too("hugetlb");
  ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_SHMEM_HUGE, &memory), expected);
  ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_AUTO, &memory), 0);
  ck_assert_uint_eq(memory.memory, RINGCAST_MEMORY_PAGES);
  ck_assert_uint_eq(memory.page_size, rc_small_page());
  check_data(&memory, 4 * MIB);
  rc_memory_destroy(&memory);
}

static int old_kernel(void *address, size_t bytes, int advice) {
  (void)address, (void)bytes, (void)advice;
  return -EINVAL;
}

TEST(before_populate_existed_the_pages_are_still_put_in_place) {
  struct rc_memory memory;
  rc_os.advise = old_kernel;
  ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_AUTO, &memory), 0);
  check_data(&memory, 4 * MIB);
  rc_memory_destroy(&memory);
}

/* ---- Whatever the kernel refuses is an error at creation, and nothing stays behind ----------- */

static int calls_until_failure;

static int count_down(void) { return --calls_until_failure == 0; }

static int failing_memfd(const char *name, unsigned flags) {
  return count_down() ? -EMFILE : real.memfd_create(name, flags);
}
static int failing_truncate(int fd, uint64_t bytes) {
  return count_down() ? -ENOSPC : real.truncate(fd, bytes);
}
static int failing_map(void *address, size_t bytes, int protection, int flags, int fd, void **out) {
  return count_down() ? -ENOMEM : real.map(address, bytes, protection, flags, fd, out);
}
static int failing_advise(void *address, size_t bytes, int advice) {
  return count_down() ? -EFAULT : real.advise(address, bytes, advice);
}
static int failing_seal(int fd, int seals) { return count_down() ? -EINVAL : real.seal(fd, seals); }

TEST(each_refusal_is_an_error_and_leaves_nothing) {
  const struct {
    struct rc_os os;
    int result;
  } cases[] = {
      {.os = {.memfd_create = failing_memfd}, .result = -EMFILE},
      {.os = {.truncate = failing_truncate}, .result = -ENOSPC},
      {.os = {.map = failing_map}, .result = -ENOMEM},
      {.os = {.advise = failing_advise}, .result = -ENOMEM},
      {.os = {.seal = failing_seal}, .result = -EINVAL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int nth = 1;; nth++) {
      struct rc_memory memory;
      rc_os = real;
      if (cases[i].os.memfd_create) rc_os.memfd_create = cases[i].os.memfd_create;
      if (cases[i].os.truncate) rc_os.truncate = cases[i].os.truncate;
      if (cases[i].os.map) rc_os.map = cases[i].os.map;
      if (cases[i].os.advise) rc_os.advise = cases[i].os.advise;
      if (cases[i].os.seal) rc_os.seal = cases[i].os.seal;
      calls_until_failure = nth;
      int result = create(65536, RINGCAST_MEMORY_AUTO, &memory);
      if (calls_until_failure > 0) { /* no call was left to fail */
        ck_assert_int_eq(result, 0);
        rc_memory_destroy(&memory);
        ck_assert_int_gt(nth, 1);
        break;
      }
      ck_assert_int_eq(result, cases[i].result);
      ck_assert_str_ne(rc_error_text(), "");
      nothing_is_left();
    }
  }
}

RUN_TESTS("memory", begin, end)
