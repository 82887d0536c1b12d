/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the machine, read from other machines' /proc and /sys. */
#define _GNU_SOURCE
#include "shm/topology.h"

#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/fake_files.h"
#include "tests/support/suite.h"

static const uint64_t KIB = 1 << 10, MIB = 1 << 20;
static const struct fake_file none[] = {{0}};

/* ---- Cache and capacity ---------------------------------------------------------------------- */

static int on_cpu_9(int *node) {
  *node = 1;
  return 9;
}

static long l3_by_libc;
static long configured(int name) { return name == _SC_LEVEL3_CACHE_SIZE ? l3_by_libc : -1; }

#define CACHE "/sys/devices/system/cpu/cpu9/cache/"

static void use_cache(const char *size) {
  static struct fake_file files[8];
  const struct fake_file cache[] = {
      {CACHE "index0/level", "1\n"},
      {CACHE "index0/size", "32K\n"},
      {CACHE "index2/level", "2\n"},
      {CACHE "index2/size", "1024K\n"},
      {CACHE "index3/level", "3\n"},
      {CACHE "index3/size", size},
      {0},
  };
  memcpy(files, cache, sizeof cache);
  use_fake_files(files);
  rc_os.current_cpu = on_cpu_9;
  rc_os.configured = configured;
  l3_by_libc = 0;
}

TEST(where_sysfs_is_hidden_the_c_library_tells_the_cache) {
  use_cache("");
  use_fake_files(none);
  l3_by_libc = (long)(96 * MIB);
  ck_assert_uint_eq(rc_default_capacity(), 16 * MIB); /* a quarter is 24 MiB; powers of two only */
}

TEST(the_default_capacity_is_a_quarter_of_the_cache_within_bounds) {
  const struct {
    const char *size;
    uint64_t capacity;
  } cases[] = {{"2048K\n", 4 * MIB},    {"16M\n", 4 * MIB},      {"32768K\n", 8 * MIB},
               {"36608K\n", 8 * MIB},   {"98304K\n", 16 * MIB},  {"128M\n", 32 * MIB},
               {"491520K\n", 32 * MIB}, {"nonsense\n", 16 * MIB}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    use_cache(cases[i].size);
    ck_assert_uint_eq(rc_default_capacity(), cases[i].capacity);
    ck_assert_uint_eq(rc_past_cache_bytes(), 2 * cases[i].capacity);
  }
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

static struct rc_nodes find_nodes(const char *memory, const char *status) {
  struct fake_file files[] = {
      {"/sys/devices/system/node/has_memory", memory}, {"/proc/self/status", status}, {0}};
  struct rc_nodes nodes;
  use_fake_files(files);
  rc_topology_nodes(&nodes);
  return nodes;
}

TEST(the_nodes_are_those_with_memory_that_we_may_use) {
  struct rc_nodes nodes = find_nodes(
      "0-3,8\n", "Name:\tx\nMems_allowed:\tff\nMems_allowed_list:\t1-2,5,8-1023\nx:\t1\n");
  ck_assert_uint_eq(nodes.count, 3);
  ck_assert(!rc_nodes_have(&nodes, 0));
  ck_assert(rc_nodes_have(&nodes, 1));
  ck_assert(rc_nodes_have(&nodes, 2));
  ck_assert(!rc_nodes_have(&nodes, 5));
  ck_assert(!rc_nodes_have(&nodes, RC_MAX_NODES));
  ck_assert(rc_nodes_have(&nodes, 8));
}

TEST(a_kernel_that_does_not_say_has_one_node) {
  const char *const lists[] = {"", "\n", "2-1\n", "x\n", "99999999999999999999-1\n"};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    struct rc_nodes nodes = find_nodes(lists[i], "\nMems_allowed_list:\t0-7\n");
    ck_assert_uint_eq(nodes.count, 1);
    ck_assert(rc_nodes_have(&nodes, 0));
  }
  ck_assert_uint_eq(find_nodes("0-3\n", "Name:\tx\n").count, 1);
}

TEST(a_node_is_counted_once_and_within_bounds) {
  struct rc_nodes nodes = {0};
  for (uint32_t node = 0; node < RC_MAX_NODES; node += 2) rc_nodes_add(&nodes, node);
  rc_nodes_add(&nodes, RC_MAX_NODES - 1);
  rc_nodes_add(&nodes, RC_MAX_NODES);
  rc_nodes_add(&nodes, 0);
  ck_assert_uint_eq(nodes.count, RC_MAX_NODES / 2 + 1);
}

/* ---- Room ------------------------------------------------------------------------------------ */

static const char meminfo[] =
    "MemTotal: 99 kB\nMemFree: 5 kB\nMemAvailable:    4096 kB\nSwapFree:    1024 kB\n";

static struct rc_room find_room(const struct fake_file *files) {
  struct rc_room room;
  use_fake_files(files);
  rc_topology_room(&room);
  return room;
}

TEST(room_is_what_the_machine_has_available_with_swap) {
  struct rc_room room = find_room((struct fake_file[]){{"/proc/meminfo", meminfo}, {0}});
  ck_assert_uint_eq(room.bytes, 5 * MIB);
  ck_assert_str_eq(room.limit, "the machine's memory");
  ck_assert_uint_eq(find_room(none).bytes, UINT64_MAX);
}

TEST(the_narrowest_cgroup_up_to_the_root_sets_the_room) {
  struct rc_room room = find_room((struct fake_file[]){
      {"/proc/self/cgroup", "9:name=systemd:/other\n0::/outer/inner\n"},
      {"/proc/meminfo", "MemAvailable: 99999999 kB\n"},
      {"/sys/fs/cgroup/outer/inner/memory.max", "max\n"},
      {"/sys/fs/cgroup/outer/memory.max", "4194304\n"},
      {"/sys/fs/cgroup/outer/memory.current", "3145728\n"},
      {"/sys/fs/cgroup/outer/memory.stat",
       "anon 5\nfile 2097152\nx_file 1\nshmem 1048576\nslab_reclaimable 4096\n"},
      {"/sys/fs/cgroup/memory.max", "1073741824\n"},
      {"/sys/fs/cgroup/memory.current", "4096\n"},
      {0},
  });
  ck_assert_uint_eq(room.bytes,
                    2 * MIB +
                        4 * KIB); /* 4 - 3 + 1 of cache that is no shared memory, and the slab */
  ck_assert_str_eq(room.limit, "the memory limit of the container");
}

TEST(a_container_that_sees_itself_as_the_root_finds_its_limit) {
  const struct fake_file limit = {"/sys/fs/cgroup/memory.max", "1048576\n"};
  const struct fake_file usage = {"/sys/fs/cgroup/memory.current", "2097152\n"};
  struct rc_room at_root =
      find_room((struct fake_file[]){{"/proc/self/cgroup", "0::/\n"}, limit, usage, {0}});
  ck_assert_uint_eq(at_root.bytes, 0); /* over its limit already */
  struct rc_room unseen =
      find_room((struct fake_file[]){{"/proc/self/cgroup", "0::/docker/ab\n"}, limit, usage, {0}});
  ck_assert_uint_eq(unseen.bytes, 0);
}

TEST(cgroups_of_version_1_are_read_too) {
  struct rc_room room = find_room((struct fake_file[]){
      {"/proc/self/cgroup", "5:cpu:/a\n4:memory:/pod\n0::/\n"},
      {"/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "8388608\n"},
      {"/sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "4194304\n"},
      {"/sys/fs/cgroup/memory/pod/memory.stat", "cache 1\ntotal_cache 1048576\ntotal_shmem 0\n"},
      {0},
  });
  ck_assert_uint_eq(room.bytes, 5 * MIB);
}

/* ---- CPU quota ------------------------------------------------------------------------------- */

/* The CPUs of a process that may run on all that the shared word can name. */
#define ALL_CPUS (RC_CPU_WORDS * 64)
static uint32_t find_quota(const struct fake_file *files) {
  static struct rc_cpus cpus;
  for (uint32_t i = 0; i < RC_CPU_WORDS; i++) rc_store_relaxed(&cpus.cpus[i], UINT64_MAX);
  use_fake_files(files);
  return rc_cpus_count(&cpus);
}

TEST(the_smallest_cpu_quota_up_to_the_root_counts) {
  const struct fake_file own = {"/proc/self/cgroup", "0::/outer/middle/inner\n"};
  const struct fake_file inner = {"/sys/fs/cgroup/outer/middle/inner/cpu.max", "800000 100000\n"};
  const struct fake_file middle = {"/sys/fs/cgroup/outer/middle/cpu.max", "250000 100000\n"};
  const struct fake_file outer = {"/sys/fs/cgroup/outer/cpu.max", "max 100000\n"};
  const struct fake_file root = {"/sys/fs/cgroup/cpu.max", "50000 100000\n"};
  ck_assert_uint_eq(find_quota((struct fake_file[]){own, inner, outer, {0}}), 8);
  ck_assert_uint_eq(find_quota((struct fake_file[]){own, inner, middle, outer, {0}}),
                    3); /* 2.5, rounded up */
  ck_assert_uint_eq(find_quota((struct fake_file[]){own, inner, middle, outer, root, {0}}), 1);
  ck_assert_uint_eq(find_quota((struct fake_file[]){own, outer, {0}}), ALL_CPUS);
  ck_assert_uint_eq(find_quota((struct fake_file[]){own, root, {0}}),
                    1); /* a container that sees itself as the root */
}

TEST(a_cpu_quota_of_version_1_is_found) {
  const struct fake_file own = {"/proc/self/cgroup",
                                "9:cpuset:/x\n8:cpuacct,cpu:/pod/ab\n1:name=systemd:/\n0::/\n"};
  const struct fake_file quota = {"/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "150000\n"};
  const struct fake_file period = {"/sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "50000\n"};
  const struct fake_file none_here = {"/sys/fs/cgroup/cpu/pod/ab/cpu.cfs_quota_us", "-1\n"};
  const struct fake_file period_here = {"/sys/fs/cgroup/cpu/pod/ab/cpu.cfs_period_us", "100000\n"};
  ck_assert_uint_eq(find_quota((struct fake_file[]){own, none_here, period_here, {0}}), ALL_CPUS);
  ck_assert_uint_eq(
      find_quota((struct fake_file[]){own, none_here, period_here, quota, period, {0}}), 3);
}

TEST(nonsense_is_no_cpu_quota) {
  const struct fake_file own = {"/proc/self/cgroup", "0::/\n"};
  const char *const texts[] = {"", "\n", "max\n", "100000\n", "100000 0\n", "0 100000\n", "x y\n"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    ck_assert_uint_eq(
        find_quota((struct fake_file[]){own, {"/sys/fs/cgroup/cpu.max", texts[i]}, {0}}), ALL_CPUS);
  const char *const tables[] = {"",    "\n",     "0\n",   "0:\n",
                                "0::", "x::/\n", ":::\n", "1:cpu\n0:cpu,\n"};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    find_quota((struct fake_file[]){{"/proc/self/cgroup", tables[i]}, {0}});
}

/* ---- This machine ---------------------------------------------------------------------------- */

TEST(this_machine_has_a_node_and_room_and_a_capacity) {
  struct rc_nodes nodes;
  struct rc_room room;
  char text[64];
  int node;
  rc_topology_nodes(&nodes);
  ck_assert_uint_ge(nodes.count, 1);
  rc_topology_room(&room);
  ck_assert_uint_gt(room.bytes, MIB);
  uint64_t capacity = rc_default_capacity();
  ck_assert(capacity >= 4 * MIB && capacity <= 32 * MIB && (capacity & (capacity - 1)) == 0);
  ck_assert_int_ge(rc_os.current_cpu(&node), 0);
  ck_assert_int_eq(rc_os.read_file("/proc/self/status", text, sizeof text), 63);
  ck_assert_uint_eq(strlen(text), 63);
  ck_assert_int_eq(rc_os.read_file("/proc/self/no such file", text, sizeof text), -ENOENT);
}

RUN_TESTS("machine", NULL, NULL)
