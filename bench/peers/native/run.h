/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a step: makes the board, starts the members, waits for them, prints the row. */
#ifndef PEERS_RUN_H
#define PEERS_RUN_H

#include "board.h"

/* For the repeats of runs in which a cache line was far, see run.c. */
struct run_limits {
  uint32_t attempts; /* of a step */
  int64_t extra_ns;  /* of repeats and pauses, of the way's steps so far; the last repeat may exceed the limit */
  int64_t *spent_ns; /* of extra_ns */
};

void run_start(void); /* once: measures the clock */
bool run_accepts(const struct peers_step *step);
/* False: the step ran, and failed. */
bool run_step(const struct peers_step *step, const struct run_limits *limits, uint32_t round);
void run_list(const struct way *way);
const char *run_missing(const struct way *way); /* why the way can't run here, or NULL */

#endif
