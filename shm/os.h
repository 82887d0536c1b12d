/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The boundary to the kernel: every system call that can be missing, refused or fail for want of something is made
 * here, once. Tests put their own functions into the table to force each failure and each fallback.
 *
 * All return 0 or a result >= 0, or a negative errno; none touches errno for its caller. Memory results
 * come by pointer.
 */
#ifndef RC_SHM_OS_H
#define RC_SHM_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

/* Advice that older headers do not know. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

struct pollfd;

struct rc_os {
  int (*memfd_create)(const char *name, unsigned flags);
  int (*truncate)(int fd, uint64_t bytes);
  int (*allocate)(int fd, uint64_t offset, uint64_t bytes); /* reserves that part of the file's memory */
  int (*punch)(int fd, uint64_t offset, uint64_t bytes);    /* gives it back: it reads as zero from then on */
  int (*map)(void *address, size_t bytes, int protection, int flags, int fd, void **out);
  int (*advise)(void *address, size_t bytes, int advice);
  int (*protect)(void *address, size_t bytes, int protection);
  int (*seal)(int fd, int seals);
  int (*seals)(int fd); /* those that are set */
  /* Sleeps until woken, while *word == value, at most timeout_ns. 0, or -EAGAIN (another value), -ETIMEDOUT, -EINTR.
   * Works across processes. */
  int (*futex_wait)(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns);
  int (*futex_wake)(_Atomic uint32_t *word, int count);
  int (*pidfd_open)(int32_t pid);
  bool (*is_pidfd)(int fd);        /* false: it is something else by now */
  uint64_t (*pid_namespace)(void); /* the inode of this process's; 0: that can't be found out */
  /* As ppoll, with nanoseconds; how many are ready, 0 when the time is up, -EINTR after a signal handler. Being stopped
   * and continued, or traced, does not end it. */
  int (*poll)(struct pollfd *files, unsigned count, int64_t timeout_ns);
  void (*yield)(void); /* sched_yield: whoever else is ready to run on this CPU runs first */
  int (*online_cpus)(void);
  int (*affinity)(uint64_t *set, size_t bytes); /* a bit for each CPU of this thread; -EINVAL: too few bytes */
  int (*file_limit)(uint64_t *out); /* the most bytes a file may have; beyond, a signal kills (RLIMIT_FSIZE) */
  int (*current_cpu)(int *node);    /* its number, and the NUMA node it belongs to */
  long (*configured)(int name);     /* sysconf */
  int (*read_file)(const char *path, char *text, size_t bytes); /* its start, with a 0 after it; returns the length */
  /* Asks for memory of these NUMA nodes for pages that are not there yet: in turns if interleaved, else of the first.
   * -ENOSYS without libnuma or without NUMA, -EPERM where it is forbidden (containers), -EINVAL for a missing node. */
  int (*place)(void *address, size_t bytes, const unsigned long *nodes, unsigned count, bool interleaved);
  /* Locks that are an open file's, and end with it, which nobody else can end: of one byte, for reading. */
  int (*lock)(int fd, uint64_t byte, bool on); /* -EAGAIN: somebody keeps it from that */
  int (*is_locked)(int fd, uint64_t byte);     /* 1: by another open file */
  int (*pagemap)(void);                        /* a descriptor of this process's /proc/self/pagemap */
  uint32_t (*seconds)(void);                   /* of some clock that only goes on */
};

extern struct rc_os rc_os;

#endif
