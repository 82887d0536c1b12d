/* SPDX-License-Identifier: Apache-2.0 */
/* The facts of all ways. The calls are weak: NULL if CMake has left a way's file out. */
#include <string.h>

#include "way.h"

#define CALLS(name) extern const struct way_calls name __attribute__((weak))

CALLS(ringcast_calls);
CALLS(ringcast_default_calls);
CALLS(unix_calls);
CALLS(unix_polled_calls);
CALLS(pipe_calls);
CALLS(zmq_calls);
CALLS(mpi_calls);
CALLS(ucx_calls);
CALLS(aeron_calls);
CALLS(atomic_queue_calls);
CALLS(line_calls);
CALLS(in_place_calls);
CALLS(memcpy_calls);

#ifndef PEERS_MPIEXEC_OPENMPI
#define PEERS_MPIEXEC_OPENMPI "mpiexec.openmpi"
#endif
#ifndef PEERS_MPIEXEC_MPICH
#define PEERS_MPIEXEC_MPICH "mpiexec.mpich"
#endif

static const char *const openmpi[] = {
    PEERS_MPIEXEC_OPENMPI, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", NULL};
static const char *const mpich[] = {PEERS_MPIEXEC_MPICH, NULL};
static const char mpi_note[] =
    "MPI_Bcast; MPI_Ibcast and sched_yield with more processes than CPUs";
static const char slots_note[] =
    "slots in as much memory as ringcast's default ring, and two counters";

const struct way peers_ways[] = {
    {.name = "c-ringcast",
     .family = "ringcast",
     .calls = &ringcast_calls,
     .needs = "libringcast.a (RINGCAST_BUILD=folder)",
     .note = "spins for up to 1 s; in place, a ring of 16 messages from 1 MiB on"},
    {.name = "c-ringcast-default",
     .family = "ringcast",
     .calls = &ringcast_default_calls,
     .needs = "libringcast.a (RINGCAST_BUILD=folder)"},
    {.name = "c-unix-socket",
     .family = "unix-socket",
     .flags = WAY_COPYING,
     .calls = &unix_calls,
     .note = "a stream socket for each reader; blocking calls"},
    {.name = "c-unix-socket-polled",
     .family = "unix-socket",
     .flags = WAY_COPYING,
     .calls = &unix_polled_calls,
     .note = "a stream socket for each reader; the reader polls without sleeping"},
    {.name = "c-pipe",
     .family = "pipe",
     .flags = WAY_COPYING,
     .calls = &pipe_calls,
     .note = "a pipe of 1 MiB for each reader; blocking calls"},
    {.name = "c-zmq-push",
     .family = "zmq",
     .flags = WAY_COPYING,
     .calls = &zmq_calls,
     .needs = "libzmq (Debian: libzmq3-dev)",
     .note = "a PUSH socket for each reader, over ipc"},
    {.name = "c-openmpi-bcast",
     .family = "openmpi",
     .flags = WAY_COPYING | WAY_COLLECTIVE,
     .calls = &mpi_calls,
     .needs = "Open MPI (Debian: libopenmpi-dev openmpi-bin)",
     .program = "peers_native_openmpi",
     .launcher = openmpi,
     .note = mpi_note},
    {.name = "c-mpich-bcast",
     .family = "mpich",
     .flags = WAY_COPYING | WAY_COLLECTIVE,
     .calls = &mpi_calls,
     .needs = "MPICH (Debian: libmpich-dev mpich)",
     .program = "peers_native_mpich",
     .launcher = mpich,
     .note = mpi_note},
    {.name = "c-ucx-tag",
     .family = "ucx",
     .flags = WAY_COPYING,
     .calls = &ucx_calls,
     .needs = "UCX (Debian: libucx-dev)",
     .note = "a tagged send to each reader, over shared memory"},
    {.name = "c-aeron-ipc",
     .family = "aeron",
     .calls = &aeron_calls,
     .needs = "Aeron's C client and media driver (a folder of CMAKE_PREFIX_PATH)",
     .largest = 16 << 20,
     .largest_in_place = 65472,
     .note = "claims up to the MTU of 64 KiB, fragments above; the driver's CPU counts as the "
             "writer's"},
    {.name = "c-atomic-queue",
     .family = "atomic-queue",
     .flags = WAY_IN_PROCESS | WAY_COPYING,
     .calls = &atomic_queue_calls,
     .needs = "atomic_queue (Debian: libatomic-queue-dev)",
     .largest = 64,
     .note = "two threads of one process"},
    {.name = "c-cache-line",
     .family = "floor",
     .flags = WAY_FLOOR | WAY_NO_QUEUE,
     .calls = &line_calls,
     .largest = 64,
     .note = "one cache line, no queue"},
    {.name = "c-in-place",
     .family = "floor",
     .flags = WAY_FLOOR,
     .calls = &in_place_calls,
     .note = slots_note},
    {.name = "c-memcpy",
     .family = "floor",
     .flags = WAY_FLOOR | WAY_COPYING,
     .calls = &memcpy_calls,
     .note = slots_note},
};

const size_t peers_way_count = sizeof peers_ways / sizeof *peers_ways;

const struct way *peers_find_way(const char *name) {
  for (size_t i = 0; i < peers_way_count; i++)
    if (strcmp(peers_ways[i].name, name) == 0) return &peers_ways[i];
  return NULL;
}
