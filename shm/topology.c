/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All of it is text in /proc and /sys, read through rc_os. What can't be read is told as not known, never as an error:
 * a container may hide any of it.
 *
 * Room. Memory that the kernel has promised and does not have is paid for by the OOM killer, at the first touch, with a
 * process of its choice. So room is looked at before: that of the machine (MemAvailable), and that of each memory
 * cgroup we are in, from ours to the root (version 2, or 1). Within a cgroup the page cache of files counts as free:
 * the kernel drops it first. Swap counts too. The result errs towards too much: it refuses what can't fit, and promises
 * nothing.
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

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

/* The number at the start of a file. False if there is none ("max"). */
static bool read_number(const char *path, uint64_t *out) {
  char text[64], *end;
  if (rc_os.read_file(path, text, sizeof text) <= 0) return false;
  uint64_t number = strtoull(text, &end, 10);
  if (end == text) return false;
  *out = number << (*end == 'K' ? 10 : *end == 'M' ? 20 : 0);
  return true;
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
  *first = *last = strtoul(*list, &end, 10);
  if (end == *list) return false;
  *list = end;
  if (*end != '-') return true;
  *last = strtoul(end + 1, &end, 10);
  *list = end;
  return *last >= *first;
}

/* ---- Cache ------------------------------------------------------------------------------------------------------ */

static bool read_cache(int cpu, int index, struct rc_l3 *out) {
  static const char format[] = "/sys/devices/system/cpu/cpu%d/cache/index%d/%s";
  char path[96], text[1024];
  uint64_t level, bytes;
  snprintf(path, sizeof path, format, cpu, index, "level");
  if (!read_number(path, &level) || level != 3) return false;
  snprintf(path, sizeof path, format, cpu, index, "size");
  if (!read_number(path, &bytes)) return false;
  *out = (struct rc_l3){.bytes = bytes};
  snprintf(path, sizeof path, format, cpu, index, "shared_cpu_list");
  if (rc_os.read_file(path, text, sizeof text) <= 0) return true;
  unsigned long first, last;
  for (const char *list = text; next_range(&list, &first, &last);) out->cpus += (uint32_t)(last - first + 1);
  return true;
}

void rc_topology_l3(struct rc_l3 *out) {
  int node, cpu = rc_os.current_cpu(&node);
  *out = (struct rc_l3){0};
  for (int index = 0; index < 8; index++)
    if (read_cache(cpu < 0 ? 0 : cpu, index, out)) return;
  long bytes = rc_os.configured(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) out->bytes = (uint64_t)bytes;
}

/* A quarter of the cache leaves room for what writer and readers work on beside the ring, and for a second ring. The
 * bounds: below 4 MiB a few frames of a usual size fill the ring and the writer waits; above 32 MiB nothing gets
 * faster, and the number is often nonsense: a virtual machine with two CPUs reports the 480 MiB of its host's whole
 * processor, shared with everybody else there. */
uint64_t rc_default_capacity(void) {
  const uint64_t least = 4 * MIB, most = 32 * MIB, unknown = 16 * MIB;
  struct rc_l3 cache;
  rc_topology_l3(&cache);
  if (cache.bytes == 0) return unknown;
  uint64_t capacity = least;
  while (capacity < most && capacity * 2 <= cache.bytes / 4) capacity *= 2;
  return capacity;
}

/* ---- NUMA ------------------------------------------------------------------------------------------------------- */

#define WORD_BITS (8 * sizeof(unsigned long))

bool rc_nodes_have(const struct rc_nodes *nodes, uint32_t node) {
  return node < RC_MAX_NODES && (nodes->bits[node / WORD_BITS] >> node % WORD_BITS & 1);
}

void rc_nodes_describe(const struct rc_nodes *nodes, char *text, size_t bytes) {
  size_t used = 0;
  text[0] = 0;
  for (uint32_t node = 0; node < RC_MAX_NODES && used < bytes; node++) {
    if (!rc_nodes_have(nodes, node)) continue;
    uint32_t first = node;
    while (rc_nodes_have(nodes, node + 1)) node++;
    const char *comma = used ? "," : "";
    int length = first == node ? snprintf(text + used, bytes - used, "%s%" PRIu32, comma, node)
                               : snprintf(text + used, bytes - used, "%s%" PRIu32 "-%" PRIu32, comma, first, node);
    used += (size_t)length;
  }
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
    for (unsigned long node = first; node <= last && node < RC_MAX_NODES; node++) rc_nodes_add(out, (uint32_t)node);
}

void rc_topology_nodes(struct rc_nodes *out) {
  static const char key[] = "\nMems_allowed_list:";
  struct rc_nodes memory, allowed;
  char text[8192];
  *out = (struct rc_nodes){0};
  if (rc_os.read_file("/sys/devices/system/node/has_memory", text, sizeof text) > 0) {
    nodes_parse(text, &memory);
    const char *list = rc_os.read_file("/proc/self/status", text, sizeof text) > 0 ? strstr(text, key) : NULL;
    nodes_parse(list ? list + sizeof key - 1 : "", &allowed);
    for (uint32_t node = 0; node < RC_MAX_NODES; node++)
      if (rc_nodes_have(&memory, node) && rc_nodes_have(&allowed, node)) rc_nodes_add(out, node);
  }
  if (out->count == 0) rc_nodes_add(out, 0);
}

/* ---- Room ------------------------------------------------------------------------------------------------------- */

/* One version's names of the same facts. */
struct cgroup_names {
  const char *line; /* what follows the hierarchy's number in /proc/self/cgroup */
  const char *mount, *limit, *usage, *cache, *slab, *shared;
};

static const struct cgroup_names cgroups[] = {
    {"::", "/sys/fs/cgroup", "memory.max", "memory.current", "file ", "slab_reclaimable ", "shmem "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ", "(none)",
     "total_shmem "},
};

/* The room within the cgroup at `path`. False if it sets no limit. */
static bool read_cgroup(const struct cgroup_names *names, const char *path, uint64_t *out) {
  char file[1024], text[4096];
  uint64_t limit, usage;
  snprintf(file, sizeof file, "%s%s/%s", names->mount, path, names->limit);
  if (!read_number(file, &limit)) return false;
  snprintf(file, sizeof file, "%s%s/%s", names->mount, path, names->usage);
  if (!read_number(file, &usage)) return false;
  snprintf(file, sizeof file, "%s%s/memory.stat", names->mount, path);
  if (rc_os.read_file(file, text, sizeof text) > 0) {
    uint64_t cache = find_number(text, names->cache), shared = find_number(text, names->shared);
    uint64_t droppable = cache > shared ? cache - shared : 0; /* shared memory counts as cache, and can't be dropped */
    droppable += find_number(text, names->slab);
    usage -= droppable < usage ? droppable : usage;
  }
  *out = limit > usage ? limit - usage : 0;
  return true;
}

static void narrow(struct rc_room *room, uint64_t bytes, const char *limit) {
  if (bytes < room->bytes) *room = (struct rc_room){.bytes = bytes, .limit = limit};
}

/* Where a version's hierarchy has us. False if it is not in use. */
static bool find_cgroup(const struct cgroup_names *names, const char *table, char *path, size_t bytes) {
  for (const char *line = table; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    const char *after = line + strspn(line, "0123456789");
    if (strncmp(after, names->line, strlen(names->line)) != 0) continue;
    after += strlen(names->line);
    int length = (int)strcspn(after, "\n");
    return snprintf(path, bytes, "%.*s", length, after) < (int)bytes;
  }
  return false;
}

/* All cgroups from ours up. A path that is not there is another namespace's; its root, which is ours, comes last. */
static void narrow_by_cgroups(const struct cgroup_names *names, const char *table, uint64_t swap,
                              struct rc_room *room) {
  char path[768];
  if (!find_cgroup(names, table, path, sizeof path)) return;
  for (;;) {
    uint64_t bytes;
    if (read_cgroup(names, path, &bytes)) narrow(room, bytes + swap, "the memory limit of the container");
    char *slash = strrchr(path, '/');
    if (!slash) return;
    *slash = 0;
  }
}

void rc_topology_room(struct rc_room *out) {
  char text[4096];
  uint64_t swap = 0;
  *out = (struct rc_room){.bytes = UINT64_MAX, .limit = "nothing known"};
  if (rc_os.read_file("/proc/meminfo", text, sizeof text) > 0) {
    swap = find_number(text, "SwapFree:") << 10;
    uint64_t available = find_number(text, "MemAvailable:") << 10;
    if (available) narrow(out, available + swap, "the machine's memory");
  }
  if (rc_os.read_file("/proc/self/cgroup", text, sizeof text) <= 0) return;
  for (size_t i = 0; i < sizeof cgroups / sizeof *cgroups; i++) narrow_by_cgroups(&cgroups[i], text, swap, out);
}
