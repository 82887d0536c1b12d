/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: anonymous files of the largest pages available. A ring's data is mapped twice in a
 * row. */
#ifndef RC_SHM_MEMORY_H
#define RC_SHM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringcast/ringcast.h"
#include "shm/os.h"

#define RC_HUGE_PAGE ((uint64_t)2 << 20)

/* The requested kind and place of memory. */
struct rc_memory_wish {
  uint32_t memory; /* enum ringcast_memory */
  uint32_t numa;   /* enum ringcast_numa */
  uint32_t node;   /* for RINGCAST_NUMA_NODE */
};

/* `bytes` of an anonymous file, mapped at base and, if mirrored, also at base + bytes. */
struct rc_memory {
  uint8_t *base;
  uint64_t bytes;
  uint64_t page_size;
  int fd; /* -1: only the mapping is kept */
  struct rc_fd_id id;
  /* The functions that create memory set the fields below. The functions that map a peer's file set
   * only `mappings`, `sparse` and `private_map`; the caller sets the others. */
  uint32_t memory;   /* enum ringcast_memory */
  uint32_t mappings; /* 1, or 2 if mirrored */
  bool sparse;       /* spill memory: mapping must allocate no page */
  bool private_map;  /* mapped copy-on-write */
  bool huge;         /* spill memory: try huge pages */
  uint32_t numa; /* enum ringcast_numa: the policy in force; NONE also on a machine with one node */
  uint32_t node; /* for LOCAL and NODE */
  int32_t numa_error; /* the reason why `numa` is NONE despite the request, or 0. -ENOSYS: no NUMA,
                         or disabled. -EPERM: forbidden, as in many containers. Other errors come
                         from the kernel */
};

/* Creates a ring's data: at least `bytes` (a power of two) of the requested kind, mirrored, zero,
 * with all pages. The memory is writable here and sealed: the size is fixed, and no process can map
 * the file writable later.
 *
 * AUTO tries hugetlb, shmem-huge and pages in this order; the first two only from 2 MiB on, and not
 * if RINGCAST_DISABLE names them. If the NUMA policy is not available, the call succeeds and `out`
 * holds the reason.
 *
 * -EINVAL: the node does not exist. -ENOMEM: also if the OOM killer of the machine or container
 * would act. -EFBIG: the file exceeds RLIMIT_FSIZE. Sets the error text. */
int rc_memory_create_data(uint64_t bytes, const struct rc_memory_wish *wish, struct rc_memory *out);

/* Creates a segment of plain pages, mapped once: "control", or "device" for the words of device
 * tensors. All processes with the file may write; the size is sealed. */
int rc_memory_create_small(const char *what, uint64_t bytes, struct rc_memory *out);

/* Creates spill memory: `bytes`, a multiple of RC_HUGE_PAGE, mapped once, writable here, on the
 * same node as `data`. No page is there yet (shm/backing.h). The size is sealed. */
int rc_memory_create_spill(uint64_t bytes, const struct rc_memory *data, struct rc_memory *out);

/* Provides a range of whole huge pages that are not there yet: later writes cannot fail. On
 * -ENOMEM, -ENOSPC and other errors of the kernel, no page of the range is there. */
int rc_memory_provide(struct rc_memory *memory, uint64_t offset, uint64_t bytes);

/* Maps a peer's sealed file of `bytes`, a multiple of page_size: data mirrored and read-only,
 * control read-write, spill memory read-only or private, that is, copy-on-write. The caller keeps
 * fd. */
int rc_memory_map_data(int fd, uint64_t bytes, uint64_t page_size, struct rc_memory *out);
int rc_memory_map_control(int fd, uint64_t bytes, struct rc_memory *out);
int rc_memory_map_spill(int fd, uint64_t bytes, bool private_map, struct rc_memory *out);

/* -EPROTO: the file of spill memory lacks the seals, or has another size. */
int rc_memory_check_spill(int fd, uint64_t bytes);

/* Takes the descriptor over. */
void rc_memory_keep(struct rc_memory *memory, int fd);

/* -EBADF: the program has closed the descriptor, and the number may belong to another file. The
 * mapping stays valid. */
int rc_memory_check_file(const struct rc_memory *memory);

/* Gives pages of spill memory back, which read as 0 then. -EBADF, and errors of the kernel. */
int rc_memory_punch(const struct rc_memory *memory, uint64_t offset, uint64_t bytes);

void rc_memory_destroy(struct rc_memory *memory);

uint64_t rc_small_page(void);

#endif
