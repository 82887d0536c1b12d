/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parts of a ring's spill memory are backed by pages. The writer provides a part before a
 * frame needs the part, and gives idle parts back to the machine. A reader makes sure of a part
 * before lending a frame there. Writer and reader work in chunks, and each keeps a table of chunks.
 */
#ifndef RC_SHM_BACKING_H
#define RC_SHM_BACKING_H

#include "ring/spill.h"
#include "shm/memory.h"

#define RC_BACKING_CHUNK RC_HUGE_PAGE
#define RC_BACKING_KEEP \
  ((uint64_t)64 << 20) /* the first bytes stay backed: frames are placed there first */
#define RC_BACKING_IDLE_S 10u

/* The writer's. */
struct rc_backing {
  struct rc_memory *memory;
  uint32_t *used;    /* for each chunk: 0 if not backed, else 1 + the second of the last use */
  uint64_t in_place; /* bytes */
  uint64_t excess;   /* backed bytes that may be given back */
  uint64_t keep;     /* RC_BACKING_KEEP, but in tests */
  uint32_t looked;   /* second of the last look for idle chunks */
};

/* `memory` must outlive `backing`, and may have 0 bytes. -ENOMEM. */
int rc_backing_init(struct rc_backing *backing, struct rc_memory *memory);
void rc_backing_free(struct rc_backing *backing);

/* Whether a range is backed. */
bool rc_backing_has(const struct rc_backing *backing, uint64_t offset, uint64_t bytes);

/* Backs a range: from then on no write to the range fails. A range that is backed costs nothing.
 * -ENOMEM, -ENOSPC and other errors of the kernel, with the error text; a part of the range may be
 * backed then. */
int rc_backing_provide(struct rc_backing *backing, uint64_t offset, uint64_t bytes);

/* Gives idle chunks back, at most once a second; true if there were any. Chunks that `spill` uses
 * are not idle. */
bool rc_backing_trim(struct rc_backing *backing, const struct rc_spill *spill);

/* The reader's. */
struct rc_backing_view {
  const struct rc_memory *memory;
  uint64_t *seen; /* a bit for each chunk: populated in this epoch */
  uint32_t epoch;
};

int rc_backing_view_init(struct rc_backing_view *view,
                         const struct rc_memory *memory); /* as rc_backing_init */
void rc_backing_view_free(struct rc_backing_view *view);

/* Makes a range readable without a signal, and maps the range in one go. `epoch` is the writer's
 * spill_epoch. A negative errno of the kernel: the range is not readable. */
int rc_backing_view_check(struct rc_backing_view *view, uint64_t offset, uint64_t bytes,
                          uint32_t epoch);

#endif
