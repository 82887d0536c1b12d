/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the CPU's own ways to wait is taken. */
#include "shm/cpu_wait.h"

#include <string.h>

#include "tests/support/suite.h"

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
