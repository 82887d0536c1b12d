/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What those who watch see of a participant: probes, counts, info and stats.
 *
 * Probes are for bpftrace, perf and SystemTap (USDT): a nop each, which the tracer replaces while
 * it looks. Without <sys/sdt.h> (Debian: systemtap-sdt-dev) at build time, or with
 * RINGCAST_NO_PROBES, there are none. docs/cli.md has examples.
 *
 *   ringcast:commit(handle, end, bytes)   a frame, or a batch, was published; `end` is the position
 *                                         after it
 *   ringcast:spill(handle, end, bytes)    the frame of the next commit lies in spill memory
 *   ringcast:wake(handle)                 a commit called the kernel to wake readers
 *   ringcast:stall(handle, pid, ns)       a wait for room has ended with room, after `ns` over all
 *                                         calls; `pid` is of the reader that was in the way
 *   ringcast:evict(handle, pid, dead)     the writer goes on without a reader
 *
 * `handle` is the ring's, a string.
 */
#ifndef RC_CHANNEL_STATS_H
#define RC_CHANNEL_STATS_H

#include "channel/channel.h"

#if defined(__has_include) && !defined(RINGCAST_NO_PROBES)
#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#endif
#endif

#ifdef DTRACE_PROBE
#define RC_PROBE1(name, a)       DTRACE_PROBE1(ringcast, name, a)
#define RC_PROBE3(name, a, b, c) DTRACE_PROBE3(ringcast, name, a, b, c)
#else
#define RC_PROBE1(name, a)       ((void)(a))
#define RC_PROBE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#endif

/* ---- Counts ---------------------------------------------------------------------------------- */

/* Counts the waiter's last wait. */
void rc_count_wait_for_frame(ringcast_reader *reader, uint64_t sleeps);

/* Counts a wait for room, of which the waiter's last wait was a part. */
void rc_count_wait_for_room(ringcast_writer *writer, uint64_t sleeps);

/* ---- Info and stats -------------------------------------------------------------------------- */

/* The largest payload of the ring and its spill memory. */
uint64_t rc_max_frame(const struct rc_segment *segment);

/* For the public functions of writer, reader and tap. They respect the `size` of the caller's
 * struct (shm/options.h). */
int rc_info_write(const struct rc_segment *segment, uint64_t tail, const struct rc_waiter *waiter,
                  struct ringcast_info *out);
struct ringcast_stats rc_stats_of(struct rc_counts *counts, struct rc_histogram *histogram);
int rc_writer_stats_write(struct rc_control *control, struct ringcast_stats *out);

#endif
