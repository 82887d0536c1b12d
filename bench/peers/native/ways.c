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
CALLS(nng_calls);
CALLS(mpi_calls);
CALLS(ucx_calls);
CALLS(aeron_calls);
CALLS(mengrao_calls);
CALLS(atomic_queue_calls);
CALLS(line_calls);
CALLS(in_place_calls);
CALLS(memcpy_calls);
CALLS(past_cache_calls);

#ifndef PEERS_MPIEXEC_OPENMPI
#define PEERS_MPIEXEC_OPENMPI "mpiexec.openmpi"
#endif
#ifndef PEERS_MPIEXEC_MPICH
#define PEERS_MPIEXEC_MPICH "mpiexec.mpich"
#endif

static const char *const openmpi[] = {
    PEERS_MPIEXEC_OPENMPI, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", NULL};
static const char *const mpich[] = {PEERS_MPIEXEC_MPICH, NULL};

enum { L = WAY_LOSSLESS, MI = 1 << 20 };

const struct way peers_ways[] = {
    {.name = "c-ringcast",
     .family = "ringcast",
     .flags = L,
     .calls = &ringcast_calls,
     .needs = "libringcast.a (RINGCAST_BUILD=folder)",
     .note =
         "options.spin_ns = 1 s, but the default with more processes than CPUs; in place, a ring of 16 messages from "
         "1 MiB on"},
    {.name = "c-ringcast-default",
     .family = "ringcast",
     .flags = L,
     .calls = &ringcast_default_calls,
     .needs = "libringcast.a (RINGCAST_BUILD=folder)",
     .note = "default options"},
    {.name = "c-unix-socket",
     .family = "unix-socket",
     .flags = L | WAY_COPYING,
     .calls = &unix_calls,
     .slow = 4,
     .note = "a stream socket for each reader; blocking calls"},
    {.name = "c-unix-socket-polled",
     .family = "unix-socket",
     .flags = L | WAY_COPYING,
     .calls = &unix_polled_calls,
     .slow = 4,
     .note = "a stream socket for each reader; the reader polls without sleeping"},
    {.name = "c-pipe",
     .family = "pipe",
     .flags = L | WAY_COPYING,
     .calls = &pipe_calls,
     .slow = 4,
     .note = "a pipe of 1 MiB for each reader; blocking calls"},
    {.name = "c-zmq-push",
     .family = "zmq",
     .flags = L | WAY_COPYING,
     .calls = &zmq_calls,
     .needs = "libzmq (Debian: libzmq3-dev)",
     .slow = 8,
     .note = "a PUSH socket for each reader, over ipc"},
    {.name = "c-nng-push",
     .family = "nng",
     .flags = L | WAY_COPYING,
     .calls = &nng_calls,
     .needs = "libnng (Debian: libnng-dev)",
     .slow = 16,
     .note = "a push0 socket for each reader, over abstract sockets"},
    {.name = "c-openmpi-bcast",
     .family = "openmpi",
     .flags = L | WAY_COPYING | WAY_COLLECTIVE,
     .calls = &mpi_calls,
     .needs = "Open MPI (Debian: libopenmpi-dev openmpi-bin)",
     .program = "peers_native_openmpi",
     .launcher = openmpi,
     .note = "MPI_Bcast; MPI_Ibcast and sched_yield with more processes than CPUs"},
    {.name = "c-mpich-bcast",
     .family = "mpich",
     .flags = L | WAY_COPYING | WAY_COLLECTIVE,
     .calls = &mpi_calls,
     .needs = "MPICH (Debian: libmpich-dev mpich)",
     .program = "peers_native_mpich",
     .launcher = mpich,
     .note = "MPI_Bcast; MPI_Ibcast and sched_yield with more processes than CPUs"},
    {.name = "c-ucx-tag",
     .family = "ucx",
     .flags = L | WAY_COPYING,
     .calls = &ucx_calls,
     .needs = "UCX (Debian: libucx-dev)",
     .note = "a tagged send to each reader, over shared memory"},
    {.name = "c-iceoryx2",
     .family = "iceoryx2",
     .flags = L,
     .needs = "a C adapter: neither Debian nor the Python wheel of iceoryx2 has the C library"},
    {.name = "c-aeron-ipc",
     .family = "aeron",
     .flags = L,
     .calls = &aeron_calls,
     .needs = "Aeron's C client and media driver (a folder of CMAKE_PREFIX_PATH)",
     .largest = 16 * MI,
     .largest_in_place = 65472,
     .note =
         "an exclusive publication: tryClaim up to the MTU of 64 KiB, offer and a fragment assembler above; the media "
         "driver's CPU time counts for the writer"},
    {.name = "c-spmc-queue",
     .family = "spmc-queue",
     .flags = 0,
     .calls = &mengrao_calls,
     .needs = "MengRao's SPMCQueue.h (PEERS_SPMC_QUEUE=folder)",
     .note = "the writer overwrites messages that a slow reader has not read"},
    {.name = "c-atomic-queue",
     .family = "atomic-queue",
     .flags = L | WAY_IN_PROCESS | WAY_ONE_READER | WAY_COPYING,
     .calls = &atomic_queue_calls,
     .needs = "atomic_queue (Debian: libatomic-queue-dev)",
     .largest = 64,
     .note = "threads of one process, one reader"},
    {.name = "c-cache-line",
     .family = "floor",
     .flags = WAY_FLOOR | WAY_NO_QUEUE,
     .calls = &line_calls,
     .largest = 64,
     .note = "one cache line, no queue"},
    {.name = "c-in-place",
     .family = "floor",
     .flags = L | WAY_FLOOR,
     .calls = &in_place_calls,
     .note = "slots in as much memory as ringcast's default ring, and two counters: memcpy in, read in place"},
    {.name = "c-memcpy",
     .family = "floor",
     .flags = L | WAY_FLOOR | WAY_COPYING,
     .calls = &memcpy_calls,
     .note = "slots in as much memory as ringcast's default ring, and two counters: memcpy in and out"},
    {.name = "c-memcpy-past-cache",
     .family = "floor",
     .flags = L | WAY_FLOOR | WAY_COPYING,
     .calls = &past_cache_calls,
     .note = "slots in twice the last level cache, and two counters: memcpy in and out"},
};

const size_t peers_way_count = sizeof peers_ways / sizeof *peers_ways;

const struct way *peers_find_way(const char *name) {
  for (size_t i = 0; i < peers_way_count; i++)
    if (strcmp(peers_ways[i].name, name) == 0) return &peers_ways[i];
  return NULL;
}
