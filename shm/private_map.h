/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of spill memory once more, mapped copy-on-write: what is written there is private to this process, and what
 * has not been written to shows the file. So a part of it can be somebody's own memory without a copy, for as long as
 * the file does not change there; private_map.c tells how it becomes the file's again.
 */
#ifndef RC_SHM_PRIVATE_MAP_H
#define RC_SHM_PRIVATE_MAP_H

#include "shm/memory.h"

struct rc_private_map {
  struct rc_memory memory;
  int pagemap; /* /proc/self/pagemap */
};

/* Maps all of the file, and does not take it over. -ENOTSUP: switched off (RINGCAST_DISABLE=cow); and what the kernel
 * gives where it will not map so much, or tell of pages. */
int rc_private_map_open(int fd, uint64_t bytes, struct rc_private_map *out);
void rc_private_map_close(struct rc_private_map *private_map);

/* In a child of fork, before anything else: the pagemap is the parent's. */
void rc_private_map_forked(struct rc_private_map *private_map);

/* Of a range, which is made of whole pages. */
/* Makes each page private that is not yet, whoever reads and writes there meanwhile. Where the machine has no memory
 * left for that, the kernel does as with any first write. */
void rc_private_map_unshare(const struct rc_private_map *private_map, uint64_t offset, uint64_t bytes);
/* Makes it show the file again: whatever was written to it is gone. *dropped is how many bytes of it were private.
 * False: it can't, and shows what it likes. */
bool rc_private_map_clean(const struct rc_private_map *private_map, uint64_t offset, uint64_t bytes, uint64_t *dropped);
/* Makes sure that it shows the file where it was clean before, or never used. False: it does not. */
bool rc_private_map_is_clean(const struct rc_private_map *private_map, uint64_t offset, uint64_t bytes);

#endif
