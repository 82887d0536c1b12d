/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the CPU's own ways to wait is taken. */
#include "shm/cpu_wait.h"

#include <string.h>

#include "tests/support/suite.h"

/* Another machine's CPUID, as far as it is asked. */
struct machine {
  const char *name;
  uint32_t most, most_extended, leaf7_ecx, extended_ecx;
  enum rc_cpu_wait expected;
};

static const struct machine *machine;

static void fake_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
  memset(out, 0, 4 * sizeof *out);
  if (leaf == 0) out[0] = machine->most;
  else if (leaf == 0x80000000u) out[0] = machine->most_extended;
  else if (leaf == 7 && subleaf == 0) out[2] = machine->leaf7_ecx;
  else if (leaf == 0x80000001u) out[2] = machine->extended_ecx;
}

#if defined(__x86_64__)

/* A leaf beyond the last one is answered with something else (Intel: with the last one's), so it must not be asked. */
static const struct machine machines[] = {
    {"neither", 0x20, 0x8000001f, 0, 0, RC_CPU_PAUSE},
    {"every other bit", 0x20, 0x8000001f, ~(1u << 5), ~(1u << 29), RC_CPU_PAUSE},
    {"Intel with WAITPKG", 0x20, 0x80000008, 1u << 5, 0, RC_CPU_UMWAIT},
    {"AMD with MONITORX", 0x10, 0x8000001f, 0, 1u << 29, RC_CPU_MWAITX},
    {"both", 0x20, 0x80000021, 1u << 5, 1u << 29, RC_CPU_UMWAIT},
    {"no leaf 7", 6, 0x80000008, 1u << 5, 0, RC_CPU_PAUSE},
    {"no extended leaves", 0x20, 0x80000000, 0, 1u << 29, RC_CPU_PAUSE},
    {"extended leaves unknown", 0x20, 0x20, 0, 1u << 29, RC_CPU_PAUSE},
    {"extended leaves unknown, high bits set", 0x20, 0xffffffff, 0, 1u << 29, RC_CPU_PAUSE},
};

LOOP_TEST(what_the_cpu_has_is_taken_and_nothing_else, 0, sizeof machines / sizeof *machines) {
  machine = &machines[_i];
  ck_assert_msg(rc_cpu_wait_of(fake_cpuid) == machine->expected, "%s", machine->name);
}

#else

TEST(what_the_cpu_has_is_taken_and_nothing_else) {
  (void)machine, (void)fake_cpuid;
  tell_skipped(__func__, "CPUID is x86's");
}

#endif

TEST(the_environment_switches_it_off) {
  unsetenv("RINGCAST_DISABLE");
  if (rc_cpu_wait_choose() == RC_CPU_PAUSE) tell_skipped(__func__, "this CPU has nothing to switch off");
  setenv("RINGCAST_DISABLE", "cpu_wait", 1);
  ck_assert_int_eq(rc_cpu_wait_choose(), RC_CPU_PAUSE);
}

TEST(a_wait_in_the_cpu_ends_by_itself_and_reads_the_word_only) {
  unsetenv("RINGCAST_DISABLE");
  enum rc_cpu_wait how = rc_cpu_wait_choose();
  if (how == RC_CPU_PAUSE) {
    tell_skipped(__func__, "this CPU has no umwait, mwaitx or wfet (or a hypervisor hides them)");
    return;
  }
  static const uint64_t word = 7; /* read-only memory, as frames are */
  for (int i = 0; i < 1000; i++) {
    rc_cpu_watch(how, &word);
    rc_cpu_wait(how);
  }
}

RUN_TESTS("cpu_wait", NULL, NULL)
