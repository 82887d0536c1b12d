/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: anonymous files of the largest pages to be had; a ring's data is mapped twice in a row. */
#ifndef RC_SHM_MEMORY_H
#define RC_SHM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringcast/ringcast.h"

#define RC_HUGE_PAGE ((uint64_t)2 << 20)

/* What is asked for. */
struct rc_memory_wish {
  uint32_t memory; /* enum ringcast_memory */
  uint32_t numa;   /* enum ringcast_numa */
  uint32_t node;   /* for RINGCAST_NUMA_NODE */
};

/* `bytes` of an anonymous file, mapped at base and, if mirrored, again at base + bytes. */
struct rc_memory {
  uint8_t *base;
  uint64_t bytes;
  uint64_t page_size;
  int fd; /* -1 where only the mapping is kept */
  /* From here on, what was got; mapping somebody's file leaves it to the caller, but for `mappings`. */
  uint32_t memory;    /* enum ringcast_memory */
  uint32_t mappings;  /* 1, or 2 if mirrored */
  bool sparse;        /* spill memory: mapping it must put no page in place */
  bool private_map;   /* mapped copy-on-write */
  bool huge;          /* of it, huge pages are worth a try */
  uint32_t numa;      /* enum ringcast_numa: what the kernel took on; NONE also where one node leaves nothing to
                       * choose */
  uint32_t node;      /* for LOCAL and NODE */
  int32_t numa_error; /* why NUMA is NONE although more was asked for, or 0: -ENOSYS no libnuma or switched off,
                       * -EPERM forbidden, as in many containers, others as the kernel gives them */
};

/* Makes a ring's data: at least `bytes` (a power of two) of memory of the kind asked for, mirrored, writable here,
 * zero, with every page in place, and sealed: its size is fixed, and nobody can map it writable any more.
 * AUTO: hugetlb -> shmem-huge -> pages; the first two only from 2 MiB on, and not if RINGCAST_DISABLE names them.
 * A place that can't be had is no error and told in `out`; a node that does not exist is -EINVAL. -ENOMEM also where
 * the machine or a container would kill for want of memory; -EFBIG where RLIMIT_FSIZE would. Sets the error text. */
int rc_memory_create_data(uint64_t bytes, const struct rc_memory_wish *wish, struct rc_memory *out);

/* Makes a control segment: plain pages, once, writable here and for those who are given it, its size sealed. */
int rc_memory_create_control(uint64_t bytes, struct rc_memory *out);
int rc_memory_create_device(uint64_t bytes, struct rc_memory *out); /* the same for device words, by another name */

/* Makes spill memory: `bytes`, a multiple of RC_HUGE_PAGE, mapped once, writable here, of which nothing is in place yet
 * (shm/commit.h), on the same node as `data`. Its size is sealed. */
int rc_memory_create_spill(uint64_t bytes, const struct rc_memory *data, struct rc_memory *out);

/* Puts a part of it in place, in whole huge pages of which nothing is there yet: writing to it can't fail from then on.
 * -ENOMEM, -ENOSPC and others of the kernel; then nothing is there again. */
int rc_memory_provide(struct rc_memory *memory, uint64_t offset, uint64_t bytes);

/* Maps somebody's sealed file of `bytes`, which must be a multiple of page_size. Takes no ownership of fd. */
int rc_memory_map_data(int fd, uint64_t bytes, uint64_t page_size, struct rc_memory *out); /* mirrored, read-only */
int rc_memory_map_control(int fd, uint64_t bytes, struct rc_memory *out);                  /* once, read-write */
int rc_memory_map_spill(int fd, uint64_t bytes, struct rc_memory *out);                    /* once, read-only */
int rc_memory_map_spill_cow(int fd, uint64_t bytes, struct rc_memory *out);                /* once, copy-on-write */

/* 0, or -EPROTO if a file of spill memory is not sealed, or not as large, as it should be. */
int rc_memory_check_spill(int fd, uint64_t bytes);

void rc_memory_destroy(struct rc_memory *memory);

uint64_t rc_small_page(void);

#endif
