/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Probes for bpftrace, perf and SystemTap (USDT): a nop each, which the tracer replaces while it
 * looks. Without <sys/sdt.h> (Debian: systemtap-sdt-dev) at build time, or with RINGCAST_NO_PROBES,
 * there are none. docs/cli.md has examples.
 *
 *   ringcast:commit(handle, end, bytes)      a frame, or a batch, was published; `end` is the
 * position after it ringcast:stall(handle, pid, ns)          a wait for room has ended with room,
 * after `ns` over all calls; `pid` of the reader in the way ringcast:evict(handle, pid, dead) the
 * writer goes on without a reader ringcast:spill(handle, end, bytes)       a frame was published in
 * spill memory; commit follows ringcast:wake(handle)                    a commit called the kernel
 * to wake readers
 *
 * `handle` is the ring's, a string.
 */
#ifndef RC_CHANNEL_PROBE_H
#define RC_CHANNEL_PROBE_H

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

#endif
