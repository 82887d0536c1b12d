/* SPDX-License-Identifier: Apache-2.0 */
/* The two ways of writing that tools/disk.c chooses from. Both take jobs at once, and hand back the results. */
#ifndef TOOLS_DISK_WAY_H
#define TOOLS_DISK_WAY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct disk_job {
  uint32_t number;
  uint32_t buffer; /* the index of the buffer that contains `memory` */
  const void *memory;
  uint32_t bytes;
  uint64_t offset;
};

struct disk_done {
  uint32_t number;
  int64_t result; /* bytes, or -errno */
};

/* io_uring. `*registered`: the buffers are known to the kernel. -ENOSYS: a build or a kernel without io_uring; -EPERM
 * and other codes of the kernel. */
struct disk_uring;
int disk_uring_open(int fd, const struct iovec *buffers, uint32_t count, uint32_t depth, struct disk_uring **out,
                    bool *registered);
void disk_uring_close(struct disk_uring *uring);
int disk_uring_submit(struct disk_uring *uring, const struct disk_job *job);
int disk_uring_reap(struct disk_uring *uring, bool wait, struct disk_done *out); /* 1, 0: none, -errno */

/* A thread of its own. */
struct disk_thread;
int disk_thread_open(int fd, uint32_t depth, struct disk_thread **out);
void disk_thread_close(struct disk_thread *thread);
int disk_thread_submit(struct disk_thread *thread, const struct disk_job *job);
int disk_thread_reap(struct disk_thread *thread, bool wait, struct disk_done *out);

#endif
