/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Throughput, by the size of a frame, beside memcpy of the same bytes into the same kind of memory, read by the other
 * in the same way. `spill` takes two sizes that lie next to each other: the largest that fits in the ring, and one that
 * does not. `pages` takes the same stream through memory of each kind.
 */
#include "bench/stream.h"

#define KI (1 << 10)
#define MI (1 << 20)
#define RING_BYTES MI
#define IN_RING    (RING_BYTES / 2 - 2 * 64) /* of payload: half the ring, less two headers' lines */

#define SIZE(text, bytes)                                     \
  STREAM_CASE("stream/ring/" text, bytes, .readers = 1),      \
      STREAM_CASE("stream/memcpy/" text, bytes, .readers = 1, .bare = true)

#define PAGES(text, kind)                                                                                  \
  STREAM_CASE("pages/" text "/40", 40, .readers = 1, .capacity = 64 * MI, .memory = kind),                 \
      STREAM_CASE("pages/" text "/65536", 64 * KI, .readers = 1, .capacity = 64 * MI, .memory = kind)

static const struct bench_case cases[] = {
    SIZE("16", 16),
    SIZE("40", 40),
    SIZE("64", 64),
    SIZE("256", 256),
    SIZE("1024", KI),
    SIZE("4096", 4 * KI),
    SIZE("16384", 16 * KI),
    SIZE("65536", 64 * KI),
    SIZE("262144", 256 * KI),
    SIZE("1048576", MI),
    SIZE("4194304", 4 * MI),
    SIZE("16777216", 16 * MI),
    SIZE("67108864", 64 * MI),
    SIZE("268435456", 256 * MI),
    SIZE("1073741824", 1024 * MI),
    STREAM_CASE("spill/in_the_ring", IN_RING, .readers = 1, .capacity = RING_BYTES),
    STREAM_CASE("spill/beside_the_ring", IN_RING + 4 * KI, .readers = 1, .capacity = RING_BYTES),
    STREAM_CASE("spill/memcpy", IN_RING + 4 * KI, .readers = 1, .capacity = RING_BYTES, .bare = true),
    PAGES("hugetlb", RINGCAST_MEMORY_HUGETLB),
    PAGES("shmem-huge", RINGCAST_MEMORY_SHMEM_HUGE),
    PAGES("small", RINGCAST_MEMORY_PAGES),
};
const struct bench_group bench_stream = BENCH_GROUP(cases);
