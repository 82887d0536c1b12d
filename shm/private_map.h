/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second mapping of a spill memory file, copy-on-write: a page that this process writes is
 * private, and a page without writes shows the file. So a caller can own a range of the mapping
 * without a copy, as long as the file does not change there. private_map.c explains how a range
 * shows the file again.
 */
#ifndef RC_SHM_PRIVATE_MAP_H
#define RC_SHM_PRIVATE_MAP_H

#include "shm/memory.h"

struct rc_private_map {
  struct rc_memory memory;
  int pagemap; /* /proc/self/pagemap */
  struct rc_fd_id id;
};

/* Maps the whole file; `fd` stays the caller's. -ENOTSUP: switched off (RINGCAST_DISABLE=retain).
 * Codes of the kernel, unchanged, if the kernel refuses the mapping or /proc/self/pagemap. */
int rc_private_map_open(int fd, uint64_t bytes, struct rc_private_map *out);
void rc_private_map_close(struct rc_private_map *private_map);

/* In a child of fork, before anything else: the pagemap is the parent's. */
void rc_private_map_forked(struct rc_private_map *private_map);

/* Makes every page of a range private; here and below a range is of whole pages. Concurrent reads
 * and writes are safe. If the machine has no memory left for the pages, the kernel acts as for any
 * first write. */
void rc_private_map_unshare(const struct rc_private_map *private_map, uint64_t offset,
                            uint64_t bytes);
/* Makes the range show the file again; writes to the range are lost. *dropped is how many bytes of
 * the range were private. False: the kernel refuses, and the content of the range is undefined. */
bool rc_private_map_clean(const struct rc_private_map *private_map, uint64_t offset, uint64_t bytes,
                          uint64_t *dropped);
/* Makes sure that a range that was clean before, or never used, still shows the file. False: the
 * range does not. */
bool rc_private_map_is_clean(const struct rc_private_map *private_map, uint64_t offset,
                             uint64_t bytes);

#endif
