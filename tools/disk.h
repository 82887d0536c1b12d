/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a file in chunks of page-aligned memory, several at a time: with io_uring, or, where that is missing or
 * RINGCAST_DISABLE names it, with pwrite in a thread. O_DIRECT if the file system takes the flag. The chunks follow
 * each other in the file, from offset 0. No byte is written twice, so that writes may end in any order.
 *
 * The chunks are memory of this process, not of the ring: a reader's mapping of a ring can't be registered with
 * io_uring, and a frame must be given back before a slow disk takes the bytes.
 *
 * One thread uses a disk.
 */
#ifndef TOOLS_DISK_H
#define TOOLS_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DISK_BLOCK 4096u /* writes are of whole blocks */
#define DISK_CHUNK (UINT64_C(4) << 20)
#define DISK_LEAST (UINT64_C(1) << 16) /* of the memory of all chunks; no more than DISK_MOST */
#define DISK_MOST  (UINT64_C(4) << 30)

struct disk;

struct disk_chunk {
  uint8_t *memory;
  uint64_t offset;              /* in the file */
  size_t size, filled, written; /* `written`: given to disk_write */
  unsigned index, under_way;    /* `under_way`: writes that have not ended */
  bool is_free;
};

/* Makes the file, which must not exist, and locks it for writing until close, for readers to know. `buffer`: bytes of
 * all chunks together; chunks are of DISK_CHUNK, or less if the buffer is small. -errno, and in words in `why`. */
int disk_open(const char *path, uint64_t buffer, struct disk **out, char why[256]);
void disk_close(struct disk *disk);
int disk_fd(const struct disk *disk);
const char *disk_way(const struct disk *disk); /* in words: "io_uring, O_DIRECT, registered memory" */

/* The next chunk of the file, empty. Waits until one is free. -errno of a write that failed. */
int disk_take(struct disk *disk, struct disk_chunk **out);
uint32_t disk_chunks(const struct disk *disk);                 /* their number */
void disk_untake(struct disk *disk, struct disk_chunk *chunk); /* the chunk taken last, not written */

/* Begins to write what is in the chunk from `written` to `filled`, whole blocks. A chunk that is written to its end is
 * free again, in time. -errno of a write that failed. */
int disk_write(struct disk *disk, struct disk_chunk *chunk);
int disk_look(struct disk *disk);  /* takes note of writes that have ended; never waits */
int disk_drain(struct disk *disk); /* waits for all */
bool disk_is_idle(const struct disk *disk);

#endif
