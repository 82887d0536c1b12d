/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of the members.
 *   one-way   one message in flight: the writer starts the next when all readers have said on the board: read.
 *             Messages of 64 B also go there and back, through two streams: half the round trip is the time of a
 *             message without a board. The board's lines disturb the way's lines.
 *   in-place  as one-way, but only the first and last word of a message are written, and read, where the message lies
 *   stream    messages back to back
 *   batch     the same in calls of many messages, for ways with calls for batches
 *   every5, every25, idle   as one-way, with a message every 5 ms, 25 ms, 10 s by the clock
 *   check     every byte of every message is compared; nothing is measured
 */
#ifndef PEERS_SCENARIOS_H
#define PEERS_SCENARIOS_H

#include "member.h"

void scenario_run(struct member *member);

bool scenario_exists(const char *name);
bool scenario_is(const struct peers_step *step, const char *name);
bool scenario_streams(const struct peers_step *step);      /* messages go back to back */
bool scenario_compares(const struct peers_step *step);     /* readers need the contents */
bool scenario_goes_back(const struct peers_step *step);    /* there is a stream in each direction */
size_t scenario_batch(const struct peers_step *step);      /* messages in a call */
int64_t scenario_period_ns(const struct peers_step *step); /* 0: no clock */

/* Why the way can't run the step, or NULL. */
const char *scenario_refuses(const struct way *way, const struct peers_step *step);

#endif
