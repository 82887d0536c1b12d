/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/wait.h"

#include "ring/atomics.h"
#include "shm/options.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <x86intrin.h>

/* Of the time stamp counter, which runs at 1 to 5 GHz: a microsecond, more or less. */
#define TICKS 3000u

/* Bits of CPUID's ecx: Intel's manual, volume 2A, leaf 7; AMD's, volume 3, leaf 8000_0001. */
#define WAITPKG (1u << 5)
#define MWAITX  (1u << 29)

#define UMWAIT_SHALLOW     1u    /* C0.1: back sooner than from C0.2 */
#define MWAITX_SHALLOW     0xf0u /* no C-state */
#define MWAITX_WITH_A_TIME 2u

static enum rc_cpu_wait find(void) {
  uint32_t eax, ebx, ecx, edx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ecx & WAITPKG) return RC_CPU_UMWAIT;
  if (__get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx) && ecx & MWAITX) return RC_CPU_MWAITX;
  return RC_CPU_PAUSE;
}

__attribute__((target("waitpkg"))) static void watch_by_umonitor(const void *word) {
  _umonitor((void *)(uintptr_t)word);
}
__attribute__((target("waitpkg"))) static void wait_by_umwait(void) {
  _umwait(UMWAIT_SHALLOW, __rdtsc() + TICKS);
}
__attribute__((target("mwaitx"))) static void watch_by_monitorx(const void *word) {
  _mm_monitorx((void *)(uintptr_t)word, 0, 0);
}
__attribute__((target("mwaitx"))) static void wait_by_mwaitx(void) {
  _mm_mwaitx(MWAITX_WITH_A_TIME, MWAITX_SHALLOW, TICKS);
}

void rc_cpu_watch(enum rc_cpu_wait how, const void *word) {
  if (how == RC_CPU_UMWAIT) watch_by_umonitor(word);
  else watch_by_monitorx(word);
}

void rc_cpu_wait(enum rc_cpu_wait how) {
  if (how == RC_CPU_UMWAIT) wait_by_umwait();
  else wait_by_mwaitx();
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

#define WFXT (1ul << 31) /* HWCAP2_WFXT of asm/hwcap.h; older headers lack it */

/* Without a time of its own, wfe may come back 100 us late. */
static enum rc_cpu_wait find(void) {
  return getauxval(AT_HWCAP2) & WFXT ? RC_CPU_WFET : RC_CPU_PAUSE;
}

/* A write to the line takes the exclusive load back, which is an event. */
void rc_cpu_watch(enum rc_cpu_wait how, const void *word) {
  uint32_t value;
  (void)how;
  __asm__ volatile("ldaxr %w0, [%1]" : "=&r"(value) : "r"(word) : "memory");
}

void rc_cpu_wait(enum rc_cpu_wait how) {
  uint64_t frequency, now;
  (void)how;
  __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(frequency));
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now) : : "memory");
  register uint64_t until __asm__("x0") = now + frequency / 1000000 + 1;
  __asm__ volatile(".inst 0xd5031000" : : "r"(until) : "memory"); /* wfet x0 */
}

#else

static enum rc_cpu_wait find(void) { return RC_CPU_PAUSE; }

void rc_cpu_watch(enum rc_cpu_wait how, const void *word) {
  (void)how;
  (void)word;
}

void rc_cpu_wait(enum rc_cpu_wait how) { (void)how; }

#endif

enum rc_cpu_wait rc_cpu_wait_choose(void) {
  static _Atomic int found = -1;     /* not asked yet */
  int how = rc_load_relaxed(&found); /* relaxed: the number is all there is */
  if (how < 0) {
    how = (int)find();
    rc_store_relaxed(&found, how);
  }
  if (rc_feature_disabled("cpu_wait")) return RC_CPU_PAUSE;
  return (enum rc_cpu_wait)how;
}
