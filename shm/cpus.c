/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/cpus.h"

#include "shm/os.h"
#include "shm/topology.h"

#define MAX_CPUS 32768u /* four times Linux's limit; the kernel refuses a set smaller than the kernel's own */

void rc_cpus_enter(struct rc_cpus *cpus) {
  uint64_t allowed[MAX_CPUS / 64] = {0};
  if (rc_os.affinity(allowed, sizeof allowed) < 0) return;
  for (uint32_t i = 0; i < MAX_CPUS / 64; i++)
    /* CPUs beyond the last shared bit share bits with earlier CPUs: a process with so many CPUs has enough. */
    if (allowed[i] != 0) rc_or_acq_rel(&cpus->cpus[i % RC_CPU_WORDS], allowed[i]);
}

uint32_t rc_cpus_count(struct rc_cpus *cpus) {
  uint32_t count = 0, quota = rc_topology_cpu_quota();
  for (uint32_t i = 0; i < RC_CPU_WORDS; i++) /* relaxed: no process ever clears a bit, so the count may be too high */
    count += (uint32_t)__builtin_popcountll(rc_load_relaxed(&cpus->cpus[i]));
  return quota < count ? quota : count;
}
