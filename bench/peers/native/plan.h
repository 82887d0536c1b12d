/* SPDX-License-Identifier: Apache-2.0 */
/* Which ways run which steps, in which order. */
#ifndef PEERS_PLAN_H
#define PEERS_PLAN_H

#include "board.h"

/* Of the random order of the ways in each step and round. */
void plan_seed(uint64_t seed);

/* `only`: the name of the one way to run, or NULL. They return an exit status. */
int plan_run(bool quick, const char *only);
int plan_headline(uint32_t rounds, const char *only);
int plan_selfcheck(const char *only);

/* Sets the number of messages, if it is 0, and the warm-up. */
void plan_messages(const struct way *way, struct peers_step *step, bool quick);

#endif
