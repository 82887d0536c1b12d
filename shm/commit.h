/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parts of a ring's spill memory are committed. The writer commits a part before a frame needs the part, and
 * gives idle parts back to the machine. A reader makes sure of a part before lending a frame there. Writer and reader
 * work in chunks, and each keeps a table of chunks.
 */
#ifndef RC_SHM_COMMIT_H
#define RC_SHM_COMMIT_H

#include "ring/spill.h"
#include "shm/memory.h"

#define RC_COMMIT_CHUNK  RC_HUGE_PAGE
#define RC_COMMIT_RETAIN ((uint64_t)64 << 20) /* the first bytes stay committed: frames are placed there first */
#define RC_COMMIT_IDLE_S 10u

/* The writer's. */
struct rc_commit {
  struct rc_memory *memory;
  uint32_t *used;    /* for each chunk: 0 if uncommitted, else 1 + the second of the last use */
  uint64_t in_place; /* bytes */
  uint64_t excess;   /* committed bytes that may be given back */
  uint64_t keep;     /* RC_COMMIT_RETAIN, but in tests */
  uint32_t looked;   /* second of the last look for idle chunks */
};

/* `memory` must outlive `commit`, and may have 0 bytes. -ENOMEM. */
int rc_commit_init(struct rc_commit *commit, struct rc_memory *memory);
void rc_commit_free(struct rc_commit *commit);

/* Commits a range: from then on no write to the range fails. A committed range costs nothing. -ENOMEM, -ENOSPC and
 * other errors of the kernel, with the error text; then nothing has changed. */
int rc_commit_provide(struct rc_commit *commit, uint64_t offset, uint64_t bytes);

/* Gives idle chunks back, at most once a second; true if there were any. Chunks that `spill` uses are not idle. */
bool rc_commit_trim(struct rc_commit *commit, const struct rc_spill *spill);

/* The reader's. */
struct rc_commit_view {
  const struct rc_memory *memory;
  uint64_t *seen; /* a bit for each chunk: populated in this epoch */
  uint32_t epoch;
};

int rc_commit_view_init(struct rc_commit_view *view, const struct rc_memory *memory); /* as rc_commit_init */
void rc_commit_view_free(struct rc_commit_view *view);

/* Makes a range readable without a signal, and maps the range in one go. `epoch` is the writer's spill_epoch. A
 * negative errno of the kernel: the range is not readable. */
int rc_commit_view_check(struct rc_commit_view *view, uint64_t offset, uint64_t bytes, uint32_t epoch);

#endif
