/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A full ring: the writer waits for its slowest reader. A ring of one page takes three frames of 1 KiB, so there is
 * room for the next one only when the reader has just given one back; beside it, the same stream with room enough, and
 * memcpy into three places. Then a reader that takes 2 us for each frame: what the wait adds to those.
 */
#include "bench/stream.h"

#define SLOW_NS 2000

static const struct bench_case cases[] = {
    STREAM_CASE("full/room_enough", 1024, .readers = 1),
    STREAM_CASE("full/room_short", 1024, .readers = 1, .capacity = 4096),
    STREAM_CASE("full/memcpy", 1024, .readers = 1, .capacity = 4096, .bare = true),
    STREAM_CASE("full/slow_reader_2us", 1024, .readers = 1, .capacity = 4096, .work_ns = SLOW_NS),
};
const struct bench_group bench_full = BENCH_GROUP(cases);
