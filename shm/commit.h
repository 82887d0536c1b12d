/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a ring's spill memory is in place. The writer puts parts of it there before a frame needs them and gives back
 * to the machine what has lain idle; a reader makes sure of a part before it lends it. Both go by chunks, and remember.
 */
#ifndef RC_SHM_COMMIT_H
#define RC_SHM_COMMIT_H

#include "ring/spill.h"
#include "shm/memory.h"

#define RC_COMMIT_CHUNK  RC_HUGE_PAGE
#define RC_COMMIT_RETAIN ((uint64_t)64 << 20) /* not given back, from the start on, where frames are placed first */
#define RC_COMMIT_IDLE_S 10u

/* The writer's. */
struct rc_commit {
  struct rc_memory *memory;
  uint32_t *used;    /* for each chunk: 0 if it is not in place, else 1 + the second of its last use */
  uint64_t in_place; /* bytes */
  uint64_t excess;   /* bytes of it that may be given back */
  uint64_t keep;     /* RC_COMMIT_RETAIN, but in tests */
  uint32_t looked;   /* second of the last look at what is idle */
};

/* `memory` must outlive it, and may be of 0 bytes. -ENOMEM. */
int rc_commit_init(struct rc_commit *commit, struct rc_memory *memory);
void rc_commit_free(struct rc_commit *commit);

/* Puts a range in place: writing to it can't fail from then on. Free when it is already. -ENOMEM, -ENOSPC and others of
 * the kernel, with the error text; then nothing has changed. */
int rc_commit_provide(struct rc_commit *commit, uint64_t offset, uint64_t bytes);

/* Gives back what is idle, at most once a second: true if that was anything. What `spill` has in use is not idle. */
bool rc_commit_trim(struct rc_commit *commit, const struct rc_spill *spill);

/* A reader's. */
struct rc_commit_view {
  const struct rc_memory *memory;
  uint64_t *seen; /* a bit for each chunk: it has been made sure of, in this epoch */
  uint32_t epoch;
};

int rc_commit_view_init(struct rc_commit_view *view, const struct rc_memory *memory); /* as rc_commit_init */
void rc_commit_view_free(struct rc_commit_view *view);

/* Makes sure that a range can be read without a signal, and maps it in one go. `epoch` is the writer's spill_epoch.
 * Negative errno of the kernel: it can't. */
int rc_commit_view_check(struct rc_commit_view *view, uint64_t offset, uint64_t bytes, uint32_t epoch);

#endif
