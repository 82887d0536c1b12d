/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about the machine are text in /proc and /sys, read through rc_os. An unreadable file makes
 * a fact unknown and is never an error: a container may hide any file.
 *
 * Room. The kernel promises more memory than the machine has. At the first touch of a page that
 * does not fit, the OOM killer ends a process of the kernel's choice. So the library reads the room
 * beforehand: the machine's (MemAvailable), and the room of each memory cgroup from this process's
 * cgroup up to the root (version 2, or 1). Within a cgroup the page cache of files counts as free,
 * since the kernel drops the cache first. Swap counts as free too. The result errs towards too
 * much: it refuses only what can't fit, and promises nothing.
 *
 * CPU quota. Each cgroup from this process's cgroup up to the root may set a quota; the smallest
 * one counts.
 *
 * A cgroup's path that does not exist belongs to another namespace. The root, which is then this
 * process's own cgroup, comes last in every walk.
 */
#define _GNU_SOURCE
#include "shm/topology.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/os.h"

#define MIB ((uint64_t)1 << 20)

/* ---- Reading --------------------------------------------------------------------------------- */

/* The number at the start of a file. False if the file has none ("max", "-1"). */
static bool read_number(const char *path, uint64_t *out) {
  char text[64], *end;
  if (rc_os.read_file(path, text, sizeof text) <= 0 || *text == '-') return false;
  uint64_t number = strtoull(text, &end, 10);
  if (end == text) return false;
  if (*end == 'K') number <<= 10;
  if (*end == 'M') number <<= 20;
  *out = number;
  return true;
}

static bool read_in(const char *directory, const char *name, uint64_t *out) {
  char file[896];
  snprintf(file, sizeof file, "%s/%s", directory, name);
  return read_number(file, out);
}

/* The number after `key` at the start of a line, or 0. */
static uint64_t find_number(const char *text, const char *key) {
  size_t length = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    if (strncmp(line, key, length) == 0) return strtoull(line + length, NULL, 10);
  }
  return 0;
}

/* Steps through a list such as "0-3,8". */
static bool next_range(const char **list, unsigned long *first, unsigned long *last) {
  char *end;
  *list += **list == ',';
  *first = strtoul(*list, &end, 10);
  *last = *first;
  if (end == *list) return false;
  *list = end;
  if (*end != '-') return true;
  *last = strtoul(end + 1, &end, 10);
  *list = end;
  return *last >= *first;
}

/* ---- Cache ----------------------------------------------------------------------------------- */

/* The bytes of the level 3 cache of the calling thread's CPU. 0: unknown to both sysfs and the C
 * library. */
static uint64_t l3_bytes(void) {
  int node, cpu = rc_os.current_cpu(&node);
  char directory[64];
  uint64_t level, bytes;
  for (int index = 0; index < 8; index++) {
    snprintf(directory, sizeof directory, "/sys/devices/system/cpu/cpu%d/cache/index%d",
             cpu < 0 ? 0 : cpu, index);
    if (read_in(directory, "level", &level) && level == 3 && read_in(directory, "size", &bytes))
      return bytes;
  }
  long known = rc_os.configured(_SC_LEVEL3_CACHE_SIZE);
  return known > 0 ? (uint64_t)known : 0;
}

/* A quarter of the cache leaves room for the working data of writer and readers, and for a second
 * ring. Below 4 MiB a few frames of a usual size fill the ring, and the writer waits. Above 32 MiB
 * nothing gets faster, and the number is often nonsense: a virtual machine with two CPUs reports
 * the 480 MiB of the host's whole processor, which all other virtual machines share. */
uint64_t rc_default_capacity(void) {
  const uint64_t least = 4 * MIB, most = 32 * MIB, unknown = 16 * MIB;
  uint64_t cache = l3_bytes();
  if (cache == 0) return unknown;
  uint64_t capacity = least;
  while (capacity < most && capacity * 2 <= cache / 4) capacity *= 2;
  return capacity;
}

/* Half of the cache, within bounds. A smaller frame may still be in the cache when the reader
 * comes. memcpy of the C library has a threshold too, but from the size that a virtual machine
 * reports: 192 MiB where the cache has 32. */
uint64_t rc_past_cache_bytes(void) { return 2 * rc_default_capacity(); }

/* ---- NUMA ------------------------------------------------------------------------------------ */

#define WORD_BITS (8 * sizeof(unsigned long))

bool rc_nodes_have(const struct rc_nodes *nodes, uint32_t node) {
  return node < RC_MAX_NODES && (nodes->bits[node / WORD_BITS] >> node % WORD_BITS & 1);
}

void rc_nodes_add(struct rc_nodes *nodes, uint32_t node) {
  if (node >= RC_MAX_NODES || rc_nodes_have(nodes, node)) return;
  nodes->bits[node / WORD_BITS] |= 1ul << node % WORD_BITS;
  nodes->count++;
}

static void nodes_parse(const char *list, struct rc_nodes *out) {
  unsigned long first, last;
  *out = (struct rc_nodes){0};
  while (next_range(&list, &first, &last))
    for (unsigned long node = first; node <= last && node < RC_MAX_NODES; node++)
      rc_nodes_add(out, (uint32_t)node);
}

void rc_topology_nodes(struct rc_nodes *out) {
  static const char key[] = "\nMems_allowed_list:";
  struct rc_nodes memory, allowed;
  char text[8192];
  *out = (struct rc_nodes){0};
  if (rc_os.read_file("/sys/devices/system/node/has_memory", text, sizeof text) > 0) {
    nodes_parse(text, &memory);
    const char *list = NULL;
    if (rc_os.read_file("/proc/self/status", text, sizeof text) > 0) list = strstr(text, key);
    nodes_parse(list ? list + sizeof key - 1 : "", &allowed);
    for (uint32_t node = 0; node < RC_MAX_NODES; node++)
      if (rc_nodes_have(&memory, node) && rc_nodes_have(&allowed, node)) rc_nodes_add(out, node);
  }
  if (out->count == 0) rc_nodes_add(out, 0);
}

/* ---- cgroups --------------------------------------------------------------------------------- */

/* Whether a list of controllers such as "cpu,cpuacct" has `controller`. In version 2 list and name
 * are empty. */
static bool has_controller(const char *list, size_t length, const char *controller) {
  size_t wanted = strlen(controller);
  const char *word = list;
  while (word <= list + length) {
    size_t here = strcspn(word, ",:");
    if (here == wanted && memcmp(word, controller, wanted) == 0) return true;
    word += here + 1;
  }
  return false;
}

/* The path of this process's cgroup in the hierarchy of `controller`. False if no line of the table
 * has one. */
static bool find_cgroup(const char *controller, const char *table, char *path, size_t bytes) {
  for (const char *line = table; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    const char *list = line + strspn(line, "0123456789");
    if (*list != ':') continue;
    list++;
    size_t length = strcspn(list, ":\n");
    if (list[length] != ':' || !has_controller(list, length, controller)) continue;
    const char *start = list + length + 1;
    int end = (int)strcspn(start, "\n");
    return snprintf(path, bytes, "%.*s", end, start) < (int)bytes;
  }
  return false;
}

typedef void visit_cgroup(const char *directory, void *context);

/* Visits the directories of this process's cgroup and of all above, up to the root. `controller`:
 * "" for version 2. */
static void walk_cgroups(const char *controller, const char *mount, visit_cgroup *visit,
                         void *context) {
  char table[4096], path[768], directory[832];
  if (rc_os.read_file("/proc/self/cgroup", table, sizeof table) <= 0) return;
  if (!find_cgroup(controller, table, path, sizeof path)) return;
  for (;;) {
    snprintf(directory, sizeof directory, "%s%s", mount, path);
    visit(directory, context);
    char *slash = strrchr(path, '/');
    if (!slash) return;
    *slash = 0;
  }
}

/* ---- Room ------------------------------------------------------------------------------------ */

/* One version's names of the same facts. */
struct memory_names {
  const char *controller, *mount, *limit, *usage, *cache, *slab, *shared;
};

static const struct memory_names memory_names[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", "file ", "slab_reclaimable ", "shmem "},
    {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_cache ", "(none)", "total_shmem "},
};

struct room_walk {
  const struct memory_names *names;
  uint64_t swap;
  struct rc_room *room;
};

static void narrow(struct rc_room *room, uint64_t bytes, const char *limit) {
  if (bytes < room->bytes) *room = (struct rc_room){.bytes = bytes, .limit = limit};
}

/* The difference, or 0. */
static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static void narrow_by_cgroup(const char *directory, void *context) {
  const struct room_walk *walk = context;
  const struct memory_names *names = walk->names;
  char file[896], text[4096];
  uint64_t limit, usage;
  if (!read_in(directory, names->limit, &limit) || !read_in(directory, names->usage, &usage))
    return;
  snprintf(file, sizeof file, "%s/memory.stat", directory);
  if (rc_os.read_file(file, text, sizeof text) > 0) {
    /* Shared memory counts as cache, and can't be dropped. */
    uint64_t cache = find_number(text, names->cache), shared = find_number(text, names->shared);
    uint64_t droppable = find_number(text, names->slab) + less(cache, shared);
    usage = less(usage, droppable);
  }
  narrow(walk->room, less(limit, usage) + walk->swap, "the memory limit of the container");
}

void rc_topology_room(struct rc_room *out) {
  char text[4096];
  struct room_walk walk = {.room = out};
  *out = (struct rc_room){.bytes = UINT64_MAX, .limit = "nothing known"};
  if (rc_os.read_file("/proc/meminfo", text, sizeof text) > 0) {
    walk.swap = find_number(text, "SwapFree:") << 10;
    uint64_t available = find_number(text, "MemAvailable:") << 10;
    if (available) narrow(out, available + walk.swap, "the machine's memory");
  }
  for (size_t i = 0; i < sizeof memory_names / sizeof *memory_names; i++) {
    walk.names = &memory_names[i];
    walk_cgroups(walk.names->controller, walk.names->mount, narrow_by_cgroup, &walk);
  }
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

static void narrow_by_quota(const char *directory, void *context) {
  uint32_t *least = context;
  char file[896], text[64];
  uint64_t quota, period;
  snprintf(file, sizeof file, "%s/cpu.max", directory); /* version 2's; version 1 has two files */
  bool known;
  if (rc_os.read_file(file, text, sizeof text) > 0)
    known = sscanf(text, "%" SCNu64 " %" SCNu64, &quota, &period) == 2;
  else
    known = read_in(directory, "cpu.cfs_quota_us", &quota) &&
            read_in(directory, "cpu.cfs_period_us", &period);
  if (!known || quota == 0 || period == 0) return;
  uint64_t cpus = (quota - 1) / period + 1;
  if (cpus < *least) *least = (uint32_t)cpus;
}

/* How many CPUs the quotas of this process's cgroups leave, rounded up; UINT32_MAX: no quota. */
static uint32_t cpu_quota(void) {
  uint32_t least = UINT32_MAX;
  walk_cgroups("", "/sys/fs/cgroup", narrow_by_quota, &least);
  walk_cgroups("cpu", "/sys/fs/cgroup/cpu", narrow_by_quota, &least);
  return least;
}

/* Four times Linux's limit; the kernel refuses a set smaller than its own. */
#define MAX_CPUS 32768u

void rc_cpus_enter(struct rc_cpus *cpus) {
  uint64_t allowed[MAX_CPUS / 64] = {0};
  if (rc_os.affinity(allowed, sizeof allowed) < 0) return;
  /* CPUs beyond the last shared bit share bits with earlier CPUs: a process with so many CPUs has
   * enough. */
  for (uint32_t i = 0; i < MAX_CPUS / 64; i++)
    if (allowed[i] != 0) rc_or_acq_rel(&cpus->cpus[i % RC_CPU_WORDS], allowed[i]);
}

uint32_t rc_cpus_count(struct rc_cpus *cpus) {
  uint32_t count = 0, quota = cpu_quota();
  /* Relaxed: no process ever clears a bit, so the count may be too high. */
  for (uint32_t i = 0; i < RC_CPU_WORDS; i++)
    count += (uint32_t)__builtin_popcountll(rc_load_relaxed(&cpus->cpus[i]));
  return quota < count ? quota : count;
}
