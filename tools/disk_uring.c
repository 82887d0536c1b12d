/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/disk_way.h"

#include <errno.h>

#if RINGCAST_HAVE_LIBURING

#include <liburing.h>
#include <stdlib.h>

struct disk_uring {
  struct io_uring ring;
  int fd;
  bool registered;
};

int disk_uring_open(int fd, const struct iovec *buffers, uint32_t count, uint32_t depth, struct disk_uring **out,
                    bool *registered) {
  struct disk_uring *uring = calloc(1, sizeof *uring);
  if (!uring) return -ENOMEM;
  /* The kernel completes a write when this thread asks, and so never interrupts the thread that takes frames. */
  struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
  int result = io_uring_queue_init_params(depth, &uring->ring, &params);
  if (result == -EINVAL) result = io_uring_queue_init(depth, &uring->ring, 0); /* before Linux 6.1 */
  if (result < 0) {
    free(uring);
    return result;
  }
  uring->fd = fd;
  /* Memory that is registered counts as locked (RLIMIT_MEMLOCK); where that is too little, writes work without. */
  uring->registered = io_uring_register_buffers(&uring->ring, buffers, count) == 0;
  *registered = uring->registered;
  *out = uring;
  return 0;
}

void disk_uring_close(struct disk_uring *uring) {
  io_uring_queue_exit(&uring->ring);
  free(uring);
}

int disk_uring_submit(struct disk_uring *uring, const struct disk_job *job) {
  struct io_uring_sqe *entry = io_uring_get_sqe(&uring->ring);
  if (!entry) return -EBUSY; /* never: there are no more jobs than entries */
  if (uring->registered)
    io_uring_prep_write_fixed(entry, uring->fd, job->memory, job->bytes, job->offset, (int)job->buffer);
  else io_uring_prep_write(entry, uring->fd, job->memory, job->bytes, job->offset);
  io_uring_sqe_set_data64(entry, job->number);
  int result = io_uring_submit(&uring->ring);
  return result < 0 ? result : 0;
}

int disk_uring_reap(struct disk_uring *uring, bool wait, struct disk_done *out) {
  struct io_uring_cqe *entry;
  int result = io_uring_peek_cqe(&uring->ring, &entry);
  if (result == -EAGAIN) {
    result = wait ? io_uring_wait_cqe(&uring->ring, &entry) : io_uring_get_events(&uring->ring);
    if (!wait && result >= 0) result = io_uring_peek_cqe(&uring->ring, &entry);
  }
  if (result == -EAGAIN || result == -EINTR) return 0;
  if (result < 0) return result;
  *out = (struct disk_done){.number = (uint32_t)io_uring_cqe_get_data64(entry), .result = entry->res};
  io_uring_cqe_seen(&uring->ring, entry);
  return 1;
}

#else

int disk_uring_open(int fd, const struct iovec *buffers, uint32_t count, uint32_t depth, struct disk_uring **out,
                    bool *registered) {
  (void)fd, (void)buffers, (void)count, (void)depth, (void)out, (void)registered;
  return -ENOSYS;
}

void disk_uring_close(struct disk_uring *uring) { (void)uring; }

int disk_uring_submit(struct disk_uring *uring, const struct disk_job *job) {
  (void)uring, (void)job;
  return -ENOSYS;
}

int disk_uring_reap(struct disk_uring *uring, bool wait, struct disk_done *out) {
  (void)uring, (void)wait, (void)out;
  return -ENOSYS;
}

#endif
