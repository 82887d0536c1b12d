/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way between two processes on two CPUs: half of a round trip. There are three kinds of trip:
 *   RING    a frame there over one ring, and a frame back over another ring; written and read in full, and checked. The
 *           answering side reads the question, commits the answer, and only then releases the question and reserves
 *           room for the next answer
 *   FLOOR   the bare ping-pong: two cache lines, each written by one side and read by the other, like a ring's lines
 *   LINE    one cache line that both sides write in turn. A ring can't do so, since its readers don't write the
 *           writer's lines. On some CPUs a read fetches the line together with the right to write: then this kind is
 *           faster.
 */
#ifndef TOOLS_MEASURE_TRIP_H
#define TOOLS_MEASURE_TRIP_H

#include "tools/perf.h"

enum trip_kind { TRIP_RING, TRIP_FLOOR, TRIP_LINE, TRIP_KINDS };
enum { TRIP_MOST = 512 /* round trips of a block */, TRIP_GROUP = 8 /* the usual group */, TRIP_COLD = 4 };

struct trips;

/* Makes the rings and the answering process, and further readers that only read. Each process needs a CPU. Ends the
 * process if that fails. `options`: size, capacity, readers, the CPUs, and the walk of cold trips. */
struct trips *trips_make(const struct perf_options *options);
void trips_destroy(struct trips *trips);

/* A block of `count` round trips, after some that are not counted. A reading of the clock takes as long as a part of a
 * trip, so the clock is read once in `group` trips: `ns` gets one way, by groups, without the time of the reading. */
void trips_run(struct trips *trips, enum trip_kind kind, int count, int group, double *ns);

/* TRIP_COLD round trips. Both processes walk over a large block before each trip (tools/measure/walk.h), and the time
 * of a trip starts when both have walked. */
void trips_run_cold(struct trips *trips, enum trip_kind kind, double *ns);

const struct perf_clock *trips_clock(const struct trips *trips);
struct ringcast_info trips_info(const struct trips *trips);

#endif
