/* SPDX-License-Identifier: Apache-2.0 */
/* The result of a run: a line of JSON. */
#ifndef PEERS_ROW_H
#define PEERS_ROW_H

#include "board.h"

/* What a run ended with: `status` is "ok", or the reason why there are no figures. `round` is not printed if 0. */
struct peers_outcome {
  const char *status;
  double ns_per_tick;
  uint32_t attempts; /* see run.c */
  uint32_t round;
};

/* `board` may be NULL, if nothing ran. */
void row_print(const struct way *way, const struct peers_step *step, struct board *board,
               const struct peers_outcome *outcome);

/* The entry of --list. */
void row_print_way(const struct way *way, const char *status);

#endif
