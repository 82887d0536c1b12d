/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RINGCAST_DISABLE, by what rings do and not by what they were told: each thing that it names is
 * not used, and each that it does not name is, where the machine has it. Each is also switched off
 * here. The suite is run again under each name: this shows that such a run does force what it says.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "channel/channel.h"
#include "shm/error.h"
#include "shm/wait.h"
#include "tests/support/channel.h"
#include "tests/support/fake_files.h"
#include "tests/support/switches.h"
#include "tests/support/uring.h"

static int uring_result; /* found out before any test, see tests/support/poller.h */
static struct rc_os real;
static int calls;

static void prepare(void) {
  unsetenv("RINGCAST_MEMORY");
  unsetenv("RINGCAST_SPIN_US");
  real = rc_os;
}

/* ---- Each thing: whether this machine has it, and whether a ring uses it ----------------------
 */

static bool is_always_here(void) { return true; }

static bool can_make(uint32_t kind) {
  struct rc_memory memory;
  int result = rc_memory_create_data(4 << 20, &(struct rc_memory_wish){.memory = kind}, &memory);
  if (result == 0) rc_memory_destroy(&memory);
  if (!rc_feature_disabled(ringcast_memory_name(kind))) return result == 0;
  ck_assert_int_eq(result, -ENOSYS);
  ck_assert_ptr_nonnull(strstr(rc_error_text(), "RINGCAST_DISABLE"));
  return false;
}

static bool has_memory(uint32_t kind) {
  SCOPED_WRITER writer = make_writer(4 << 20, 4);
  return info_of(writer).memory == kind;
}

static bool has_hugetlb(void) { return can_make(RINGCAST_MEMORY_HUGETLB); }
static bool uses_hugetlb(void) { return has_memory(RINGCAST_MEMORY_HUGETLB); }
/* Where it is not the second choice. */
static bool has_shmem_huge(void) { return !has_hugetlb() && can_make(RINGCAST_MEMORY_SHMEM_HUGE); }
static bool uses_shmem_huge(void) { return has_memory(RINGCAST_MEMORY_SHMEM_HUGE); }

static int count_places(void *address, size_t bytes, const unsigned long *nodes, unsigned count,
                        bool interleaved) {
  (void)address, (void)bytes, (void)nodes, (void)count, (void)interleaved;
  calls++;
  return 0;
}

static bool uses_numa(void) {
  static const struct fake_file two_nodes[] = {{"/sys/devices/system/node/has_memory", "0-1\n"},
                                               {"/proc/self/status", "\nMems_allowed_list:\t0-1\n"},
                                               {0}};
  use_fake_files(two_nodes);
  rc_os.place = count_places;
  SCOPED_WRITER writer = writer_of(.numa = RINGCAST_NUMA_NODE, .numa_node = 1);
  struct ringcast_info info = info_of(writer);
  ck_assert_uint_eq(info.numa, calls > 0 ? RINGCAST_NUMA_NODE : RINGCAST_NUMA_NONE);
  ck_assert_int_eq(info.numa_error, calls > 0 ? 0 : -ENOSYS);
  return calls > 0;
}

static bool has_uring(void) { return uring_result == 0; }

static bool uses_uring(void) {
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_ge(ringcast_reader_fd(reader), 0);
  return rc_poller_uses_uring(reader->poller);
}

static int count_pidfds(int32_t pid) {
  calls++;
  return real.pidfd_open(pid);
}

/* Each side is kept waiting by the other, and looks whether that lives. */
static bool uses_pidfds(void) {
  struct ringcast_frame frame;
  struct ringcast_span span;
  rc_os.pidfd_open = count_pidfds;
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(ringcast_reader_next(reader, 1000000, &frame), -ETIMEDOUT);
  const int of_reader = calls;
  calls = 0;
  while (ringcast_writer_send(writer, "x", 1, 0, 0) == 0) {}
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1, 1000000, &span), -ETIMEDOUT);
  ck_assert_int_eq(of_reader > 0, calls > 0);
  return calls > 0;
}

/* What this CPU has, whatever is switched off. */
static bool has_cpu_wait(void) {
  const char *list = getenv("RINGCAST_DISABLE");
  char *retained = list ? strdup(list) : NULL;
  unsetenv("RINGCAST_DISABLE");
  enum rc_cpu_wait best = rc_cpu_wait_choose();
  if (retained) setenv("RINGCAST_DISABLE", retained, 1);
  free(retained);
  return best != RC_CPU_PAUSE;
}

static bool uses_cpu_wait(void) {
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(writer->waiter.cpu_wait, reader->waiter.cpu_wait);
  return reader->waiter.cpu_wait != RC_CPU_PAUSE;
}

static int pretended_cpus(void) { return 2; }

static bool uses_spin(void) {
  rc_os.online_cpus = pretended_cpus;
  struct ringcast_info of_reader = {.size = sizeof of_reader};
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(ringcast_reader_info(reader, &of_reader), 0);
  ck_assert_int_eq(of_reader.spin_ns > 0, info_of(writer).spin_ns > 0);
  return of_reader.spin_ns > 0;
}

static bool has_pagemap(void) {
  int pagemap = real.pagemap();
  if (pagemap >= 0) close(pagemap);
  return pagemap >= 0 && rc_small_page() == 4096;
}

static int count_pagemaps(void) {
  calls++;
  return real.pagemap();
}

static bool uses_retention(void) {
  enum { LARGE = 1 << 20 };
  struct ringcast_span span;
  struct ringcast_frame frame;
  ringcast_retained *retained = NULL;
  void *data;
  rc_os.pagemap = count_pagemaps;
  SCOPED_WRITER writer = writer_of(.capacity = 65536, .spill_bytes = 4 * LARGE);
  SCOPED_READER reader = reader_of(writer, .flags = RINGCAST_READER_RETAIN);
  ck_assert_int_eq(ringcast_writer_reserve(writer, LARGE, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_commit(writer, LARGE, 0), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  int result = ringcast_reader_retain(reader, &frame, &retained, &data);
  ck_assert_int_eq(result, calls > 0 ? 0 : -ENOTSUP);
  ringcast_retained_release(retained);
  return calls > 0;
}

static const struct thing {
  const char *name;
  bool (*is_here)(void), (*is_used)(void);
} things[] = {
    {"hugetlb", has_hugetlb, uses_hugetlb}, {"shmem-huge", has_shmem_huge, uses_shmem_huge},
    {"numa", is_always_here, uses_numa},    {"io_uring", has_uring, uses_uring},
    {"pidfd", is_always_here, uses_pidfds}, {"cpu_wait", has_cpu_wait, uses_cpu_wait},
    {"spin", is_always_here, uses_spin},    {"retain", has_pagemap, uses_retention},
};
enum { THINGS = sizeof things / sizeof *things };

/* As this run has it, and switched off. */
LOOP_TEST(what_is_here_is_used_unless_it_is_switched_off, 0, 2 * THINGS) {
  const struct thing *thing = &things[_i / 2];
  if (_i % 2) disable_too(thing->name);
  bool is_off = rc_feature_disabled(thing->name), is_here = thing->is_here();
  if (!is_off && !is_here) tell_skipped(thing->name, "not on this machine");
  ck_assert_int_eq(thing->is_used(), is_here && !is_off);
}

/* RINGCAST_TEST_MEMORY says what it must be, for runs on a machine that was made to have it. */
TEST(a_ring_is_of_the_memory_that_the_run_expects) {
  const char *expected = getenv("RINGCAST_TEST_MEMORY");
  SCOPED_WRITER writer = make_writer(4 << 20, 4);
  const char *found = ringcast_memory_name(info_of(writer).memory);
  ck_assert_str_eq(found, expected ? expected : found);
}

/* ---- The list -------------------------------------------------------------------------------- */

static const struct {
  const char *list;
  bool names_uring;
  const char *unknown; /* NULL: each word is known */
} lists[] = {
    {"", false, NULL},
    {",", false, NULL},
    {"numa,spin", false, NULL},
    {"io_uring", true, NULL},
    {"numa,io_uring", true, NULL},
    {"io_uring,numa", true, NULL},
    {" numa , io_uring ", true, NULL},
    {",,io_uring,", true, NULL},
    {" ,hugetlb, shmem-huge numa,io_uring,,pidfd,cpu_wait,spin,retain,cuda, cuda_register", true,
     NULL},
    {"io", false, "io"},
    {"io_uring2", false, "io_uring2"},
    {"spin,xio_uring", false, "xio_uring"},
    {"io,_uring", false, "io"},
    {"hugetlb, IO_URING,,spin", false, "IO_URING"},
    {"io-uring", false, "io-uring"},
    {"hugetlb;numa", false, "hugetlb;numa"},
};

LOOP_TEST(a_list_is_of_words_that_the_library_knows, 0, sizeof lists / sizeof *lists) {
  const char *unknown = lists[_i].unknown;
  unsetenv("RINGCAST_DISABLE");
  ck_assert(!rc_feature_disabled("io_uring"));
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_WRITER other = NULL;
  SCOPED_READER reader = NULL;
  ringcast_tap *tap = NULL;
  const char *handle = ringcast_writer_handle(writer);
  setenv("RINGCAST_DISABLE", lists[_i].list, 1);
  ck_assert_int_eq(rc_feature_disabled("io_uring"), lists[_i].names_uring);
  ck_assert_int_eq(ringcast_writer_create(&other), unknown ? -EINVAL : 0);
  ck_assert_int_eq(ringcast_reader_attach(handle, &reader), unknown ? -EINVAL : 0);
  ck_assert_int_eq(ringcast_tap_attach(handle, &tap), unknown ? -EINVAL : 0);
  if (unknown) ck_says(unknown);
  if (unknown) ck_assert(!other && !reader && !tap);
  ringcast_tap_close(tap);
}

/* Or the run forces nothing. */
TEST(this_runs_list_is_of_words_that_the_library_knows) {
  ck_assert_int_eq(rc_features_check(), 0);
}

int main(void) {
  uring_result = probe_uring();
  return run_tests("switches", prepare, NULL);
}
