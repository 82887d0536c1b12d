/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm/cpus.h"

#include <sched.h>
#include <stdio.h>

void rc_cpus_enter(struct rc_cpus *cpus) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
    /* A CPU beyond the last bit shares one: then there are enough of them anyway. */
    if (CPU_ISSET(cpu, &allowed)) rc_or_acq_rel(&cpus->cpus[cpu / 64 % RC_CPU_WORDS], (uint64_t)1 << cpu % 64);
}

/* cgroup v2, as a container sees its own: quota and period in microseconds. 0: no quota, or none to be seen. */
static uint32_t quota_cpus(void) {
  unsigned long quota, period;
  FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
  if (!file) return 0;
  int fields = fscanf(file, "%lu %lu", &quota, &period);
  fclose(file);
  return fields == 2 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}

uint32_t rc_cpus_count(struct rc_cpus *cpus) {
  uint32_t count = 0, quota = quota_cpus();
  for (uint32_t i = 0; i < RC_CPU_WORDS; i++) /* relaxed: bits are only ever added */
    count += (uint32_t)__builtin_popcountll(rc_load_relaxed(&cpus->cpus[i]));
  return quota > 0 && quota < count ? quota : count;
}
