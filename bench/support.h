/* SPDX-License-Identifier: Apache-2.0 */
/* What the cases share beside the tool's own means (tools/perf.h): they measure in the same way as `ringcast perf`. */
#ifndef BENCH_SUPPORT_H
#define BENCH_SUPPORT_H

#include "bench/harness.h"
#include "tools/perf.h"

#define BENCH_SPIN_NS ((int64_t)3600000000000) /* where the sleep is not what is measured */

extern bool bench_dry;

/* The CPUs that may be used; the other fields are zero. */
const struct perf_options *bench_options(void);

/* False, and skips: there are fewer CPUs than processes. */
bool bench_has_cpus(uint32_t parties);

/* False, and skips: frames of this size ask for more memory than is free, or for more than a dry run should take. */
bool bench_has_memory(size_t frame);

/* NULL, and skips: there is no such ring here, or it does not take frames of `frame` bytes. */
ringcast_writer *bench_writer(const struct ringcast_writer_options *options, size_t frame);

/* Seconds since `start`, which perf_now_ns gave. */
double bench_seconds_since(int64_t start);

#endif
