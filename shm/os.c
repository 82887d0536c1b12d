/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm/os.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring/atomics.h"

static int result_of(long result) {
  if (result < 0) return -errno;
  return (int)result;
}

static int os_memfd_create(const char *name, unsigned flags) {
  return rc_fd_above_2(memfd_create(name, flags));
}

static int os_truncate(int fd, uint64_t bytes) { return result_of(ftruncate(fd, (off_t)bytes)); }

static int os_allocate(int fd, uint64_t offset, uint64_t bytes) {
  return result_of(fallocate(fd, 0, (off_t)offset, (off_t)bytes));
}

static int os_punch(int fd, uint64_t offset, uint64_t bytes) {
  return result_of(
      fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes));
}

static int os_map(void *address, size_t bytes, int protection, int flags, int fd, void **out) {
  void *mapped = mmap(address, bytes, protection, flags, fd, 0);
  if (mapped == MAP_FAILED) return -errno;
  *out = mapped;
  return 0;
}

static int os_advise(void *address, size_t bytes, int advice) {
  return result_of(madvise(address, bytes, advice));
}

static int os_seal(int fd, int seals) { return result_of(fcntl(fd, F_ADD_SEALS, seals)); }

static int os_seals(int fd) { return result_of(fcntl(fd, F_GET_SEALS)); }

static int os_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
  return result_of(syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0));
}

static int os_futex_wake(_Atomic uint32_t *word, int count) {
  return result_of(syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0));
}

/* The kernel sets close-on-exec. */
static int os_pidfd_open(int32_t pid) {
  return rc_fd_above_2((int)syscall(SYS_pidfd_open, pid, 0));
}

static uint64_t os_pid_namespace(void) {
  struct stat file;
  return stat("/proc/self/ns/pid", &file) == 0 ? file.st_ino : 0;
}

static void os_yield(void) { sched_yield(); }

static int os_online_cpus(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

static int os_affinity(uint64_t *set, size_t bytes) {
  return result_of(sched_getaffinity(0, bytes, (cpu_set_t *)set));
}

static int os_current_cpu(int *node) {
  unsigned cpu, of_cpu;
  /* The function came with glibc 2.29. */
  if (syscall(SYS_getcpu, &cpu, &of_cpu, NULL) != 0) return -errno;
  *node = (int)of_cpu;
  return (int)cpu;
}

static long os_configured(int name) { return sysconf(name); }

static int os_read_file(const char *path, char *text, size_t bytes) {
  int fd = rc_fd_above_2(open(path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return fd;
  size_t length = 0;
  ssize_t got = 1;
  while (got > 0 && length < bytes - 1) {
    got = read(fd, text + length, bytes - 1 - length);
    if (got > 0) length += (size_t)got;
  }
  int result = got < 0 ? -errno : (int)length;
  close(fd);
  text[length] = 0;
  return result;
}

/* PREFERRED, not BIND: if the node is full, PREFERRED takes memory of its neighbours and BIND calls
 * the OOM killer. */
static int os_place(void *address, size_t bytes, const unsigned long *nodes, unsigned count,
                    bool interleaved) {
  const long policy = interleaved ? MPOL_INTERLEAVE : MPOL_PREFERRED;
  /* The kernel uses one bit less than the argument. */
  return result_of(syscall(SYS_mbind, address, bytes, policy, nodes, count + 1ul, 0ul));
}

static int os_pagemap(void) {
  return rc_fd_above_2(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
}

static uint32_t os_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint32_t)now.tv_sec;
}

static int64_t os_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

struct rc_os rc_os = {
    .memfd_create = os_memfd_create,
    .truncate = os_truncate,
    .allocate = os_allocate,
    .punch = os_punch,
    .map = os_map,
    .advise = os_advise,
    .seal = os_seal,
    .seals = os_seals,
    .futex_wait = os_futex_wait,
    .futex_wake = os_futex_wake,
    .pidfd_open = os_pidfd_open,
    .pid_namespace = os_pid_namespace,
    .yield = os_yield,
    .online_cpus = os_online_cpus,
    .affinity = os_affinity,
    .current_cpu = os_current_cpu,
    .configured = os_configured,
    .read_file = os_read_file,
    .place = os_place,
    .pagemap = os_pagemap,
    .seconds = os_seconds,
    .now_ns = os_now_ns,
};

/* ---- Descriptors ----------------------------------------------------------------------------- */

int rc_fd_above_2(int made) {
  if (made < 0) return -errno;
  if (made > 2) return made;
  int moved = fcntl(made, F_DUPFD_CLOEXEC, 3);
  int error = errno == EINVAL ? EMFILE : errno; /* EINVAL: the limit of open files is below 3 */
  close(made);
  return moved < 0 ? -error : moved;
}

/* The mark is the signal that F_SETSIG sets, which only a file with O_ASYNC would send. Each
 * descriptor has another mark than the 63 before it. */
void rc_fd_identify(int fd, struct rc_fd_id *out) {
  static _Atomic uint32_t count;
  int mark = 1 + (int)(rc_add_acq_rel(&count, 1) % 64);
  struct stat file = {0};
  fstat(fd, &file);
  if (fcntl(fd, F_SETSIG, mark) != 0) mark = 0;
  *out = (struct rc_fd_id){.device = file.st_dev, .inode = file.st_ino, .mark = mark};
}

bool rc_fd_is(int fd, const struct rc_fd_id *id) {
  struct stat file;
  if (fd < 0 || fstat(fd, &file) != 0) return false;
  if (file.st_dev != id->device || file.st_ino != id->inode) return false;
  return fcntl(fd, F_GETSIG) == id->mark;
}

void rc_fd_close(int fd, const struct rc_fd_id *id) {
  if (rc_fd_is(fd, id)) close(fd);
}
