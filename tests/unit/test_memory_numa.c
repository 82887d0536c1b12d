/* SPDX-License-Identifier: Apache-2.0 */
/* Where a ring's data lies: what is asked of the kernel, on machines of one node and of several,
 * and what is told. */
#define _GNU_SOURCE
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/error.h"
#include "shm/topology.h"
#include "shm/memory.h"
#include "tests/support/fake_files.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"

static const uint64_t MIB = 1 << 20;
static struct rc_os real;

static const struct fake_file one_node[] = {{"/sys/devices/system/node/has_memory", "0\n"},
                                            {"/proc/self/status", "\nMems_allowed_list:\t0\n"},
                                            {0}};
static const struct fake_file two_nodes[] = {{"/sys/devices/system/node/has_memory", "0-1\n"},
                                             {"/proc/self/status", "\nMems_allowed_list:\t0-1\n"},
                                             {0}};
static const struct fake_file three_nodes[] = {{"/sys/devices/system/node/has_memory", "0,2-3\n"},
                                               {"/proc/self/status", "\nMems_allowed_list:\t0-7\n"},
                                               {0}};

/* What was asked for last. */
static struct {
  int calls, result;
  unsigned long nodes;
  bool interleaved, untouched;
} asked;

static int fake_place(void *address, size_t bytes, const unsigned long *nodes, unsigned count,
                      bool interleaved) {
  unsigned char *state = malloc(bytes / rc_small_page());
  ck_assert_int_eq(mincore(address, bytes, state), 0);
  asked.untouched = true;
  for (size_t i = 0; i < bytes / rc_small_page(); i++) asked.untouched &= !(state[i] & 1);
  free(state);
  ck_assert_uint_eq(count, RC_MAX_NODES);
  asked.calls++;
  asked.nodes = nodes[0];
  asked.interleaved = interleaved;
  return asked.result;
}

static int on_node_1(int *node) {
  *node = 1;
  return 0;
}

static void prepare(void) {
  unsetenv("RINGCAST_DISABLE");
  real = rc_os;
  rc_os.place = fake_place;
  rc_os.current_cpu = on_node_1;
  remember();
}

static struct rc_memory make(uint32_t kind, uint32_t numa, uint32_t node) {
  struct rc_memory memory;
  struct rc_memory_wish wish = {.memory = kind, .numa = numa, .node = node};
  ck_assert_int_eq(rc_memory_create_data(4 * MIB, &wish, &memory), 0);
  memory.base[0] = 1;
  rc_memory_destroy(&memory);
  return memory;
}

TEST(the_kernel_is_asked_before_any_page_is_there) {
  const struct {
    uint32_t numa, node;
    unsigned long nodes;
    bool interleaved;
  } cases[] = {{RINGCAST_NUMA_LOCAL, 0, 1 << 1, false},
               {RINGCAST_NUMA_NODE, 0, 1 << 0, false},
               {RINGCAST_NUMA_NODE, 1, 1 << 1, false},
               {RINGCAST_NUMA_INTERLEAVED, 0, 3, true}};
  use_fake_files(two_nodes);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    asked.calls = 0;
    struct rc_memory memory = make(RINGCAST_MEMORY_PAGES, cases[i].numa, cases[i].node);
    ck_assert_int_eq(asked.calls, 1);
    ck_assert(asked.untouched);
    ck_assert_uint_eq(asked.nodes, cases[i].nodes);
    ck_assert_int_eq(asked.interleaved, cases[i].interleaved);
    ck_assert_uint_eq(memory.numa, cases[i].numa);
    ck_assert_int_eq(memory.numa_error, 0);
    if (!cases[i].interleaved) ck_assert_uint_eq(1ul << memory.node, cases[i].nodes);
  }
}

TEST(nothing_is_asked_where_there_is_no_choice_or_none_is_wanted) {
  use_fake_files(one_node);
  for (uint32_t numa = RINGCAST_NUMA_LOCAL; numa <= RINGCAST_NUMA_NODE; numa++) {
    struct rc_memory memory = make(RINGCAST_MEMORY_AUTO, numa, 0);
    ck_assert_uint_eq(memory.numa, RINGCAST_NUMA_NONE);
    ck_assert_int_eq(memory.numa_error, 0);
  }
  use_fake_files(two_nodes);
  make(RINGCAST_MEMORY_AUTO, RINGCAST_NUMA_NONE, 0);
  ck_assert_int_eq(asked.calls, 0);
}

TEST(a_refusal_is_told_and_the_ring_is_made) {
  const int refusals[] = {-EPERM, -ENOSYS, -EINVAL};
  use_fake_files(two_nodes);
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    asked.result = refusals[i];
    struct rc_memory memory = make(RINGCAST_MEMORY_AUTO, RINGCAST_NUMA_LOCAL, 0);
    ck_assert_uint_eq(memory.numa, RINGCAST_NUMA_NONE);
    ck_assert_uint_eq(memory.node, 0);
    ck_assert_int_eq(memory.numa_error, refusals[i]);
  }
}

TEST(a_node_that_does_not_exist_is_an_error_that_says_where_to_find_those_that_do) {
  struct rc_memory memory;
  struct rc_memory_wish wish = {.numa = RINGCAST_NUMA_NODE, .node = 1};
  use_fake_files(three_nodes);
  ck_assert_int_eq(rc_memory_create_data(4 * MIB, &wish, &memory), -EINVAL);
  ck_assert_ptr_nonnull(strstr(rc_error_text(), "node 1"));
  ck_assert_ptr_nonnull(strstr(rc_error_text(), "/proc/self/status"));
  use_fake_files(one_node);
  ck_assert_int_eq(rc_memory_create_data(4 * MIB, &wish, &memory), -EINVAL);
  wish = (struct rc_memory_wish){.numa = RINGCAST_NUMA_NODE, .node = UINT32_MAX};
  ck_assert_int_eq(rc_memory_create_data(4 * MIB, &wish, &memory), -EINVAL);
  wish = (struct rc_memory_wish){.numa = RINGCAST_NUMA_NODE + 1};
  ck_assert_int_eq(rc_memory_create_data(4 * MIB, &wish, &memory), -EINVAL);
}

/* ---- Huge pages in turns --------------------------------------------------------------------- */

static uintptr_t seeds[8];
static unsigned seeds_count;

static int note_seeds(void *address, size_t bytes, int advice) {
  if (advice == MADV_POPULATE_WRITE && bytes == rc_small_page() && seeds_count < 8)
    seeds[seeds_count++] = (uintptr_t)address / rc_small_page();
  return advice == MADV_COLLAPSE ? -EINVAL : 0;
}

/* The kernel takes small pages in turns by their number; the collapsed page goes where its touched
 * page is. */
LOOP_TEST(the_touched_pages_of_an_interleaved_ring_take_turns, 0, 2) {
  const struct fake_file *const machines[] = {two_nodes, three_nodes};
  const uint64_t nodes[] = {2, 3}, huge = RC_HUGE_PAGE / rc_small_page();
  struct rc_memory memory;
  struct rc_memory_wish wish = {.memory = RINGCAST_MEMORY_SHMEM_HUGE,
                                .numa = RINGCAST_NUMA_INTERLEAVED};
  use_fake_files(machines[_i]);
  rc_os.advise = note_seeds;
  ck_assert_int_eq(rc_memory_create_data(16 * MIB, &wish, &memory), -EINVAL);
  ck_assert_uint_eq(seeds_count, 8);
  uint64_t start = seeds[0] / huge * huge;
  for (uint64_t i = 0; i < 8; i++) {
    ck_assert_uint_eq((seeds[i] - start) / huge, i);
    ck_assert_uint_eq((seeds[i] - start) % nodes[_i], i % nodes[_i]);
  }
}

/* ---- The real kernel ------------------------------------------------------------------------- */

static int policy_of(void *address) {
  int policy = -1;
  unsigned long nodes[RC_MAX_NODES / (8 * sizeof(unsigned long))];
  ck_assert_int_eq(
      (int)syscall(SYS_get_mempolicy, &policy, nodes, RC_MAX_NODES + 1ul, address, MPOL_F_ADDR), 0);
  return policy;
}

/* On a machine of one node the second one does not exist: the kernel takes the first, and refuses
 * the second. */
LOOP_TEST(the_policy_stays_with_the_file_in_both_mappings, 0, 2) {
  const struct {
    uint32_t numa;
    int policy;
  } cases[] = {{RINGCAST_NUMA_NODE, MPOL_PREFERRED},
               {RINGCAST_NUMA_INTERLEAVED, MPOL_INTERLEAVE},
               {RINGCAST_NUMA_NONE, MPOL_DEFAULT}};
  const uint32_t kinds[] = {RINGCAST_MEMORY_AUTO, RINGCAST_MEMORY_PAGES};
  use_fake_files(two_nodes);
  rc_os.place = real.place;
  struct rc_memory_wish wish = {.memory = kinds[_i]};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct rc_memory memory;
    wish.numa = cases[i].numa;
    ck_assert_int_eq(rc_memory_create_data(4 * MIB, &wish, &memory), 0);
    if (memory.numa_error == -ENOSYS || memory.numa_error == -EPERM) {
      tell_skipped(__func__, "a kernel without NUMA, or mbind is forbidden here");
      rc_memory_destroy(&memory);
      return;
    }
    ck_assert_int_eq(memory.numa_error, 0);
    ck_assert_uint_eq(memory.numa, cases[i].numa);
    ck_assert_int_eq(policy_of(memory.base), cases[i].policy);
    /* The kernel keeps hugetlb's policy with one mapping; all pages are in place by then. */
    if (memory.memory != RINGCAST_MEMORY_HUGETLB)
      ck_assert_int_eq(policy_of(memory.base + memory.bytes + 3 * MIB), cases[i].policy);
    rc_memory_destroy(&memory);
  }
}

TEST(a_node_that_only_the_kernel_knows_not_to_exist_is_told) {
  static const struct fake_file many[] = {{"/sys/devices/system/node/has_memory", "0-1023\n"},
                                          {"/proc/self/status", "\nMems_allowed_list:\t0-1023\n"},
                                          {0}};
  use_fake_files(many);
  rc_os.place = real.place;
  struct rc_memory memory = make(RINGCAST_MEMORY_AUTO, RINGCAST_NUMA_NODE, 1023);
  ck_assert_uint_eq(memory.numa, RINGCAST_NUMA_NONE);
  ck_assert_int_ne(memory.numa_error, 0);
}

RUN_TESTS("memory, NUMA", prepare, nothing_is_left)
