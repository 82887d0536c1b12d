/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a step: makes the board, starts the members, waits for them, prints the row. */
#ifndef PEERS_RUN_H
#define PEERS_RUN_H

#include "board.h"

void run_start(void); /* once: measures the clock */
bool run_accepts(const struct peers_step *step);
bool run_step(const struct peers_step *step, uint32_t round); /* false: it ran, and failed */
void run_list(const struct way *way);
const char *run_missing(const struct way *way); /* why the way can't run on this machine, or NULL */

#endif
