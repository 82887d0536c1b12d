/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a word within the CPU: x86's umonitor and umwait (WAITPKG, Intel), monitorx and
 * mwaitx (AMD), Arm's ldaxr and wfet. The core, or the thread of one, does nothing until the word's
 * line is written, an interrupt comes, or about a microsecond has passed; so it draws less power
 * than a loop of pauses, and a sibling thread runs faster.
 *
 *   rc_cpu_watch(how, word);  look; nothing there? then  rc_cpu_wait(how);  and look again.
 *
 * What is written after the watch ends the wait, so nothing is missed between the look and the
 * wait.
 */
#ifndef RC_SHM_CPU_WAIT_H
#define RC_SHM_CPU_WAIT_H

enum rc_cpu_wait { RC_CPU_PAUSE = 0, RC_CPU_UMWAIT, RC_CPU_MWAITX, RC_CPU_WFET };

/* The best that this CPU has, asked once: under a hypervisor the CPU's answer takes 20 us or more.
 * RC_CPU_PAUSE with RINGCAST_DISABLE=cpu_wait. Not for the hot path. */
enum rc_cpu_wait rc_cpu_wait_choose(void);

/* Not for RC_CPU_PAUSE. The word is only read. */
void rc_cpu_watch(enum rc_cpu_wait how, const void *word);
void rc_cpu_wait(enum rc_cpu_wait how);

#endif
