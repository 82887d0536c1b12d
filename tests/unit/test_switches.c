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
#include "ringcast/inspect.h"
#include "shm/wait.h"
#include "shm/options.h"
#include "shm/error.h"
#include "shm/os.h"
#include "tests/support/fake_files.h"
#include "tests/support/channel.h"
#include "tests/support/switches.h"
#include "tests/support/uring.h"

static int uring_result; /* found out before any test, see tests/support/poller.h */
static struct rc_os real;
static int calls;

static void prepare(void) {
  unsetenv("RINGCAST_MEMORY");
  unsetenv("RINGCAST_SPIN_US");
  real = rc_os;
  calls = 0;
}

TEST(each_name_is_one_that_the_library_knows) {
  static const char known[] = ",hugetlb,shmem-huge,numa,io_uring,pidfd,cpu_wait,spin,retain,cuda,"
                              "cuda_register,";
  const char *list = getenv("RINGCAST_DISABLE");
  char copy[256], word[270], *rest = copy;
  snprintf(copy, sizeof copy, "%s", list ? list : "");
  for (char *name; (name = strtok_r(rest, " ,", &rest));) {
    snprintf(word, sizeof word, ",%s,", name);
    ck_assert_msg(strstr(known, word), "RINGCAST_DISABLE has '%s', which switches nothing off",
                  name);
  }
}

TEST(a_name_that_the_library_does_not_know_is_refused_in_words) {
  static const char *const unknown[] = {"io-uring", "foo",  "io_urin",
                                        "spins",    "SPIN", "hugetlb;numa"};
  ringcast_writer *writer = make_writer(4096, 4), *refused = NULL;
  ringcast_reader *reader = NULL;
  ringcast_tap *tap = NULL;
  char *retained = getenv("RINGCAST_DISABLE") ? strdup(getenv("RINGCAST_DISABLE")) : NULL;
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    char list[64], words[64];
    snprintf(list, sizeof list, "hugetlb, %s,,spin", unknown[i]);
    snprintf(words, sizeof words, "RINGCAST_DISABLE has '%s'", unknown[i]);
    setenv("RINGCAST_DISABLE", list, 1);
    for (int who = 0; who < 3; who++) {
      int result = who == 0   ? ringcast_writer_create(&refused)
                   : who == 1 ? ringcast_reader_attach(ringcast_writer_handle(writer), &reader)
                              : ringcast_tap_attach(ringcast_writer_handle(writer), &tap);
      ck_assert_int_eq(result, -EINVAL);
      ck_assert_ptr_nonnull(strstr(ringcast_last_error(), words));
      ck_assert_ptr_nonnull(strstr(ringcast_last_error(), "io_uring, pidfd"));
    }
    ck_assert(!refused && !reader && !tap);
  }
  setenv("RINGCAST_DISABLE",
         " ,hugetlb, shmem-huge numa,io_uring,,pidfd,cpu_wait,spin,retain,"
         "cuda, cuda_register",
         1);
  ringcast_reader_close(attach(writer));
  if (retained) setenv("RINGCAST_DISABLE", retained, 1);
  free(retained);
  ringcast_writer_close(writer);
}

/* RINGCAST_TEST_MEMORY says what it must be, for runs on a machine that was made to have it. */
LOOP_TEST(a_ring_is_of_the_best_memory_that_is_not_switched_off, 0, 2) {
  if (_i == 1) disable_too("hugetlb,shmem-huge");
  static const uint32_t kinds[] = {RINGCAST_MEMORY_SHMEM_HUGE, RINGCAST_MEMORY_HUGETLB};
  const char *expected = getenv("RINGCAST_TEST_MEMORY");
  uint32_t best = RINGCAST_MEMORY_PAGES;
  for (int i = 0; i < 2; i++) {
    struct rc_memory memory;
    int result =
        rc_memory_create_data(4 << 20, &(struct rc_memory_wish){.memory = kinds[i]}, &memory);
    if (rc_feature_disabled(ringcast_memory_name(kinds[i]))) {
      ck_assert_int_eq(result, -ENOSYS);
      ck_assert_ptr_nonnull(strstr(rc_error_text(), "RINGCAST_DISABLE"));
    } else if (result != 0) {
      tell_skipped(__func__, rc_error_text());
    } else {
      best = kinds[i];
      rc_memory_destroy(&memory);
    }
  }
  SCOPED_WRITER writer = make_writer(4 << 20, 4);
  struct ringcast_info info = info_of(writer);
  ck_assert_str_eq(ringcast_memory_name(info.memory), ringcast_memory_name(best));
  if (expected && _i == 0) ck_assert_str_eq(ringcast_memory_name(info.memory), expected);
}

static int count_places(void *address, size_t bytes, const unsigned long *nodes, unsigned count,
                        bool interleaved) {
  (void)address, (void)bytes, (void)nodes, (void)count, (void)interleaved;
  calls++;
  return 0;
}

LOOP_TEST(a_node_is_asked_for_unless_switched_off, 0, 2) {
  if (_i == 1) disable_too("numa");
  static const struct fake_file two_nodes[] = {{"/sys/devices/system/node/has_memory", "0-1\n"},
                                               {"/proc/self/status", "\nMems_allowed_list:\t0-1\n"},
                                               {0}};
  use_fake_files(two_nodes);
  rc_os.place = count_places;
  SCOPED_WRITER writer = writer_of(.numa = RINGCAST_NUMA_NODE, .numa_node = 1);
  struct ringcast_info info = info_of(writer);
  ck_assert_int_eq(calls > 0, !rc_feature_disabled("numa"));
  ck_assert_uint_eq(info.numa,
                    rc_feature_disabled("numa") ? RINGCAST_NUMA_NONE : RINGCAST_NUMA_NODE);
  ck_assert_int_eq(info.numa_error, rc_feature_disabled("numa") ? -ENOSYS : 0);
}

TEST(the_environment_names_what_is_switched_off) {
  const char *with[] = {"io_uring", "numa,io_uring", "io_uring,numa", " numa , io_uring ",
                        ",,io_uring,"};
  const char *without[] = {"",          ",",         "io",        "io_uring2",
                           "xio_uring", "numa,spin", "io,_uring", "IO_URING"};
  unsetenv("RINGCAST_DISABLE");
  ck_assert(!rc_feature_disabled("io_uring"));
  for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
    setenv("RINGCAST_DISABLE", with[i], 1);
    ck_assert_msg(rc_feature_disabled("io_uring"), "\"%s\"", with[i]);
  }
  for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
    setenv("RINGCAST_DISABLE", without[i], 1);
    ck_assert_msg(!rc_feature_disabled("io_uring"), "\"%s\"", without[i]);
  }
}

LOOP_TEST(a_descriptor_is_served_by_io_uring_unless_switched_off, 0, 2) {
  if (_i == 1) disable_too("io_uring");
  bool off = rc_feature_disabled("io_uring");
  if (!off && uring_result != 0) {
    tell_skipped(__func__, "this kernel, its sandbox or this build has no io_uring");
    return;
  }
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_ge(ringcast_reader_fd(reader), 0);
  ck_assert_int_eq(rc_poller_uses_uring(reader->poller), !off);
}

static int count_pidfds(int32_t pid) {
  calls++;
  return real.pidfd_open(pid);
}

/* Each side is kept waiting by the other, and looks whether that lives. */
LOOP_TEST(who_waits_asks_for_a_pidfd_unless_switched_off, 0, 2) {
  if (_i == 1) disable_too("pidfd");
  rc_os.pidfd_open = count_pidfds;
  struct ringcast_frame frame;
  struct ringcast_span span;
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(ringcast_reader_next(reader, 1000000, &frame), -ETIMEDOUT);
  ck_assert_int_eq(calls > 0, !rc_feature_disabled("pidfd"));
  calls = 0;
  while (ringcast_writer_send(writer, "x", 1, 0, 0) == 0) {}
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1, 1000000, &span), -ETIMEDOUT);
  ck_assert_int_eq(calls > 0, !rc_feature_disabled("pidfd"));
}

/* What this CPU has, whatever is switched off. */
static enum rc_cpu_wait best_cpu_wait(void) {
  const char *list = getenv("RINGCAST_DISABLE");
  char *retained = list ? strdup(list) : NULL;
  unsetenv("RINGCAST_DISABLE");
  enum rc_cpu_wait best = rc_cpu_wait_choose();
  if (retained) setenv("RINGCAST_DISABLE", retained, 1);
  free(retained);
  return best;
}

LOOP_TEST(waits_are_left_to_the_cpu_unless_switched_off, 0, 2) {
  if (_i == 1) disable_too("cpu_wait");
  enum rc_cpu_wait best = best_cpu_wait(),
                   expected = rc_feature_disabled("cpu_wait") ? RC_CPU_PAUSE : best;
  if (best == RC_CPU_PAUSE)
    tell_skipped(__func__, "this CPU, or its hypervisor, has nothing to switch off");
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(writer->waiter.cpu_wait, expected);
  ck_assert_int_eq(reader->waiter.cpu_wait, expected);
}

static int pretended_cpus(void) { return 2; }

LOOP_TEST(waits_spin_unless_switched_off, 0, 2) {
  if (_i == 1) disable_too("spin");
  rc_os.online_cpus = pretended_cpus;
  struct ringcast_info of_writer = {.size = sizeof of_writer},
                       of_reader = {.size = sizeof of_reader};
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(ringcast_writer_info(writer, &of_writer), 0);
  ck_assert_int_eq(ringcast_reader_info(reader, &of_reader), 0);
  ck_assert_int_eq(of_writer.spin_ns > 0, !rc_feature_disabled("spin"));
  ck_assert_int_eq(of_reader.spin_ns > 0, !rc_feature_disabled("spin"));
}

static int count_pagemaps(void) {
  calls++;
  return real.pagemap();
}

LOOP_TEST(large_frames_are_kept_unless_switched_off, 0, 2) {
  if (_i == 1) disable_too("retain");
  enum { LARGE = 1 << 20 };
  rc_os.pagemap = count_pagemaps;
  struct ringcast_span span;
  struct ringcast_frame frame;
  ringcast_retained *retained = NULL;
  void *data;
  bool off = rc_feature_disabled("retain");
  int pagemap = real.pagemap();
  if (pagemap >= 0) close(pagemap);
  if (!off && (pagemap < 0 || rc_small_page() != 4096)) {
    tell_skipped(__func__, "no /proc/self/pagemap, or pages of more than 4 KiB");
    return;
  }
  ringcast_writer *writer = writer_of(.capacity = 65536, .spill_bytes = 4 * LARGE);
  ringcast_reader *reader = reader_of(writer, .flags = RINGCAST_READER_RETAIN);
  ck_assert_int_eq(ringcast_writer_reserve(writer, LARGE, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_commit(writer, LARGE, 0), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_int_eq(calls > 0, !off);
  ck_assert_int_eq(ringcast_reader_retain(reader, &frame, &retained, &data), off ? -ENOTSUP : 0);
  ringcast_retained_release(retained);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

int main(void) {
  uring_result = probe_uring();
  return run_tests("switches", prepare, NULL);
}
