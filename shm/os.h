/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The boundary to the kernel: the calls that can be missing, refused or short of resources, as far
 * as a test has to force that. Tests replace functions in the table to force each failure and each
 * fallback.
 *
 * The functions return 0 or a result >= 0, or a negative errno, and callers do not use errno.
 * Pointers are returned through `out`.
 */
#ifndef RC_SHM_OS_H
#define RC_SHM_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

/* Advice that older headers lack. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

struct rc_os {
  int (*memfd_create)(const char *name, unsigned flags);
  int (*truncate)(int fd, uint64_t bytes);
  /* Reserves memory for a range of the file. */
  int (*allocate)(int fd, uint64_t offset, uint64_t bytes);
  /* Frees a range, which then reads as zero. */
  int (*punch)(int fd, uint64_t offset, uint64_t bytes);
  int (*map)(void *address, size_t bytes, int protection, int flags, int fd, void **out);
  int (*advise)(void *address, size_t bytes, int advice);
  int (*seal)(int fd, int seals);
  int (*seals)(int fd); /* the seals of the file */
  /* If *word == value, sleeps until a wake, at most timeout_ns. 0, -EAGAIN (another value),
   * -ETIMEDOUT, -EINTR. Works across processes. */
  int (*futex_wait)(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns);
  int (*futex_wake)(_Atomic uint32_t *word, int count);
  int (*pidfd_open)(int32_t pid);
  uint64_t (*pid_namespace)(void); /* the inode of this process's namespace; 0: unknown */
  void (*yield)(void);             /* sched_yield: the CPU's other runnable threads run first */
  int (*online_cpus)(void);
  /* A bit for each CPU of this thread; -EINVAL: too few bytes. */
  int (*affinity)(uint64_t *set, size_t bytes);
  int (*current_cpu)(int *node); /* the number of the CPU, and its NUMA node */
  long (*configured)(int name);  /* sysconf */
  /* The file's start and a 0; returns the length. */
  int (*read_file)(const char *path, char *text, size_t bytes);
  /* Requests NUMA nodes for uncommitted pages: in turns if interleaved, otherwise the first node.
   * -ENOSYS: a kernel without NUMA. -EPERM: forbidden (containers). -EINVAL: a node is missing. */
  int (*place)(void *address, size_t bytes, const unsigned long *nodes, unsigned count,
               bool interleaved);
  int (*pagemap)(void);      /* a descriptor of this process's /proc/self/pagemap */
  uint32_t (*seconds)(void); /* of a monotonic clock */
  int64_t (*now_ns)(void);   /* rc_now_ns */
};

extern struct rc_os rc_os;

/* ---- Descriptors ----------------------------------------------------------------------------- */

/* Programs write to 0, 1 and 2, whatever is open there, and close numbers that are not theirs: a
 * daemon closes all. So every descriptor that may be written through, or that is kept, is made by
 * rc_fd_above_2. A kept one also has an identity, and the library uses its number only while
 * rc_fd_is says that it is the same file: else the number may belong to a file of the program by
 * now. A file that is opened for reading and closed in the same call needs neither: nobody can
 * write through it. */

/* `made` is the result of a system call that makes a descriptor. Returns the descriptor, moved to 3
 * or above, or a negative errno. */
int rc_fd_above_2(int made);

struct rc_fd_id {
  uint64_t device, inode;
  int mark; /* on the open file: eventfds, epolls and the like have one inode for all */
};
void rc_fd_identify(int fd, struct rc_fd_id *out);
bool rc_fd_is(int fd, const struct rc_fd_id *id);    /* false for a negative fd too */
void rc_fd_close(int fd, const struct rc_fd_id *id); /* if rc_fd_is */

#endif
