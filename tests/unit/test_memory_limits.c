/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a limit refuses: an error when the ring is made, in words, and never a signal, then
 * or later. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/error.h"
#include "shm/memory.h"
#include "tests/support/children.h"
#include "tests/support/fake_files.h"
#include "tests/support/seccomp.h"
#include "tests/support/suite.h"

static const uint64_t MIB = 1 << 20;
static const uint32_t kinds[] = {RINGCAST_MEMORY_AUTO, RINGCAST_MEMORY_PAGES};

static int create(uint64_t bytes, uint32_t kind, struct rc_memory *out) {
  return rc_memory_create_data(bytes, &(struct rc_memory_wish){.memory = kind}, out);
}

static void limit(int resource, uint64_t bytes) {
  struct rlimit before;
  child_must(getrlimit(resource, &before) == 0);
  if (bytes > before.rlim_max) bytes = before.rlim_max;
  child_must(setrlimit(resource, &(struct rlimit){bytes, bytes}) == 0);
}

/* In a child: `most` bytes can be had, `more` can't, and the text has `word`. */
static void check_limit(uint64_t most, uint64_t more, int code, const char *word) {
  struct rc_memory memory;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    child_must(create(more, kinds[i], &memory) == code);
    child_must(strstr(rc_error_text(), word));
    child_must(create(most, kinds[i], &memory) == 0);
    memset(memory.base, 1, 2 * memory.bytes);
    rc_memory_destroy(&memory);
  }
}

static void with_few_addresses(void *context) {
  unsigned long pages;
  char text[64];
  (void)context;
  child_must(rc_os.read_file("/proc/self/statm", text, sizeof text) > 0);
  child_must(sscanf(text, "%lu", &pages) == 1);
  limit(RLIMIT_AS, pages * rc_small_page() + 64 * MIB);
  check_limit(4 * MIB, 256 * MIB, -ENOMEM, "ulimit -v");
}

TEST(a_limit_of_the_address_space_is_an_error) {
  if (cannot_under("qemu", __func__, "qemu keeps no limit of the address space")) return;
  child_must_succeed(start_child(with_few_addresses, NULL));
}

static void with_small_files(void *context) {
  (void)context;
  limit(RLIMIT_FSIZE, 2 * MIB);
  check_limit(2 * MIB, 4 * MIB, -EFBIG, "ulimit -f");
}

TEST(a_limit_of_file_sizes_is_an_error_and_no_signal) {
  child_must_succeed(start_child(with_small_files, NULL));
}

static void with_little_locked(void *context) {
  (void)context;
  limit(RLIMIT_MEMLOCK, 8 * MIB);
  if (geteuid() == 0)
    child_must(setresuid(65534, 65534, 65534) == 0); /* root may lock as much as it likes */
  /* Not by libc: AddressSanitizer makes that do nothing. */
  child_must(syscall(SYS_mlockall, MCL_FUTURE) == 0);
  check_limit(64 * 1024, 64 * MIB, -ENOMEM, "ulimit -l");
}

TEST(a_limit_of_locked_memory_is_an_error) {
  child_must_succeed(start_child(with_little_locked, NULL));
}

static void in_a_sandbox(void *context) {
  struct rc_memory memory;
  (void)context;
  child_must(forbid_call(SYS_memfd_create) == 0);
  child_must(create(64 * 1024, RINGCAST_MEMORY_PAGES, &memory) == -EPERM &&
             strstr(rc_error_text(), "seccomp"));
  child_must(rc_memory_create_small("control", 4096, &memory) == -EPERM &&
             strstr(rc_error_text(), "seccomp"));
}

TEST(a_sandbox_without_memfds_is_named) {
  if (cannot_under("qemu", __func__, "qemu has no seccomp")) return;
  child_must_succeed(start_child(in_a_sandbox, NULL));
}

/* ---- Where the kernel would kill ------------------------------------------------------------- */

static int no_memfd(const char *name, unsigned flags) {
  (void)name, (void)flags;
  return -EIO; /* to be seen if it is called */
}

TEST(what_the_machine_or_its_container_has_no_room_for_is_not_begun) {
  const struct fake_file machine[] = {{"/proc/meminfo", "MemAvailable: 1024 kB\n"}, {0}};
  const struct fake_file container[] = {{"/proc/self/cgroup", "0::/\n"},
                                        {"/sys/fs/cgroup/memory.max", "8388608\n"},
                                        {"/sys/fs/cgroup/memory.current", "6291456\n"},
                                        {0}};
  const struct {
    const struct fake_file *files;
    const char *word;
    uint64_t most;
  } cases[] = {{machine, "the machine's memory has room for 1048576", MIB},
               {container, "the container has room for 2097152", 2 * MIB}};
  struct rc_memory memory;
  struct rc_os real = rc_os;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    use_fake_files(cases[i].files);
    ck_assert_int_eq(create(cases[i].most, RINGCAST_MEMORY_PAGES, &memory), 0);
    rc_memory_destroy(&memory);
    rc_os.memfd_create = no_memfd;
    ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_PAGES, &memory), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(rc_error_text(), cases[i].word));
    ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_AUTO, &memory), -ENOMEM);
    /* The pool's pages were set aside before: they are not part of the room. */
    if (create(4 * MIB, RINGCAST_MEMORY_HUGETLB, &memory) != -ENOSYS)
      ck_assert_int_eq(create(4 * MIB, RINGCAST_MEMORY_HUGETLB, &memory), -EIO);
    rc_os = real;
  }
}

/* ---- A real memory cgroup -------------------------------------------------------------------- */

static bool write_file(const char *folder, const char *name, const char *text) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  if (fd >= 0) close(fd);
  return written;
}

static void inside_cgroup(void *folder) {
  child_must(write_file(folder, "cgroup.procs", "0"));
  check_limit(4 * MIB, 64 * MIB, -ENOMEM, "the container");
}

TEST(a_memory_cgroup_refuses_and_does_not_kill) {
  char text[512], folder[560];
  const char *reason = "no cgroup of version 2 below ours can be given a memory limit here";
  ck_assert_int_gt(rc_os.read_file("/proc/self/cgroup", text, sizeof text), 0);
  const char *ours = strstr(text, "0::/");
  if (!ours) {
    tell_skipped(__func__, reason);
    return;
  }
  snprintf(folder, sizeof folder, "/sys/fs/cgroup%.*s/ringcast-test-%d",
           (int)strcspn(ours + 3, "\n"), ours + 3, (int)getpid());
  bool made = mkdir(folder, 0700) == 0;
  if (made && write_file(folder, "memory.max", "33554432"))
    child_must_succeed(start_child(inside_cgroup, folder));
  else tell_skipped(__func__, reason);
  if (made) rmdir(folder);
}

RUN_TESTS("memory, limits", NULL, NULL)
