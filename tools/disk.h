/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a recording: a thread of its own writes it, with pwrite, in whole chunks of memory
 * that is used in turn. O_DIRECT if the file system takes the flag. Bytes are written in their
 * order, and none twice.
 *
 * The memory is this process's, not the ring's: a frame must be given back before a slow disk takes
 * the bytes.
 *
 * One thread uses a disk.
 */
#ifndef TOOLS_DISK_H
#define TOOLS_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DISK_BLOCK 4096u               /* writes are of whole blocks */
#define DISK_LEAST (UINT64_C(1) << 16) /* bytes of memory */
#define DISK_MOST  (UINT64_C(4) << 30)

struct disk;

/* Makes the file, which must not exist, and locks it for writing until close, for readers to know.
 * -errno, and in words in `why`. */
int disk_open(const char *path, uint64_t memory, struct disk **out, char why[256]);
void disk_close(struct disk *disk); /* once the writes that have begun have ended */
int disk_fd(const struct disk *disk);

/* The memory for the bytes of the file from `offset` on, at least one: `*room` of them are
 * contiguous. Waits for the disk if all memory is in use; of bytes that no disk_write was told,
 * that is at most a half. -errno of a write that failed. */
int disk_room(struct disk *disk, uint64_t offset, uint8_t **out, size_t *room);
uint64_t disk_half(const struct disk *disk); /* of the memory, in bytes */

/* Begins to write what lies before `end`: whole chunks, or, with `all`, all of it, whole blocks.
 * From then on these bytes may not change. -errno of a write that failed. */
int disk_write(struct disk *disk, uint64_t end, bool all);
int disk_drain(struct disk *disk); /* waits until what has begun has ended */
bool disk_is_idle(struct disk *disk);

#endif
