/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ringcast takes memory from the kernel, and why.
 *
 * Anonymous files (memfd) have no name in any file system. A dead process therefore leaves no file
 * behind, and the size of /dev/shm is no limit. A lack of memory must be an error at creation,
 * where a plain store would end in SIGBUS. So creation allocates all pages by MADV_POPULATE_WRITE
 * (Linux 5.14), which reports the error. On older kernels, fallocate allocates the pages and stores
 * map them. The mirror and a reader's mapping are populated at once too, so that the first lap has
 * no page faults.
 *
 * Mirror. The file is mapped twice in a row, so a frame that reaches over the end of the first
 * mapping continues at the file's start in the second. The address space is reserved first and then
 * overlaid, so no other mapping can slip in.
 *
 * Seals. SHRINK and GROW fix the size: no process can truncate the file under a reader, which would
 * cause SIGBUS. FUTURE_WRITE (Linux 5.1) keeps the writer's mapping, and refuses later writable
 * mappings and writes through a file descriptor. SEAL fixes the set of seals. The seals also work
 * on huge pages.
 *
 * Spill memory is different: most pages are absent. The file has its maximum size from the start,
 * and the writer provides a part when a frame needs it (shm/backing.c), by the calls above.
 * Huge pages make this cheap enough: a collapse clears 32 MiB in 6 ms and a reader maps them in
 * 25 us, against 41 ms and 8 ms with small pages.
 *   - Spill memory has no FUTURE_WRITE seal, because the kernel would then refuse to punch holes
 *     and used pages could never return to the machine. Instead the file's mode is 0400 and readers
 *     open the file for reading. This prevents accidents. It does not stop a hostile process of the
 *     same user (or root), which could trace the writer anyway.
 *   - Spill memory is left out of core dumps.
 *   - After mlockall(MCL_FUTURE), a plain mapping would allocate all pages. So the file is mapped
 *     without access, unlocked, and then made accessible.
 *
 * Huge pages. If the pool is empty, creating a hugetlb file succeeds and mapping the file fails; so
 * the test is to map. For transparent huge pages, MADV_COLLAPSE (Linux 6.1) is the test: the call
 * succeeds only if the whole range is huge afterwards. MADV_COLLAPSE works if shmem_enabled is
 * "never", the usual setting, and fails if the setting is "deny". One small page of each huge page
 * is touched first: a collapse needs a page to start from, and copying 512 small pages costs more
 * than clearing a huge one. If the touch already got a huge page, the collapse only checks. Readers
 * then map huge pages too.
 *
 * NUMA. The policy is set on the mapping before any page is allocated. The kernel stores it with
 * the file, so it holds for every process that touches a page. A collapsed page stays
 * on the node of the touched small page. The kernel interleaves by small pages; make_huge chooses
 * the small pages so that the huge pages interleave as well.
 *
 * Limits. Before a call that the kernel would answer with a signal, ringcast checks RLIMIT_FSIZE
 * (SIGXFSZ) and the free memory of the machine and its cgroups (the OOM killer). The free memory
 * may change after the check, and no call can reserve it.
 */
#define _GNU_SOURCE
#include "shm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring/point.h"
#include "shm/options.h"
#include "shm/error.h"
#include "shm/topology.h"
#include "shm/os.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

uint64_t rc_small_page(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

const char *ringcast_memory_name(uint32_t memory) {
  static const char *const names[] = {"auto", "hugetlb", "shmem-huge", "pages"};
  return memory < sizeof names / sizeof *names ? names[memory] : NULL;
}

/* ---- Mapping --------------------------------------------------------------------------------- */

/* Maps the file once, at the address `at`. */
static int map_once(const struct rc_memory *memory, uint8_t *at, int protection) {
  void *mapped;
  int flags = (memory->private_map ? MAP_PRIVATE : MAP_SHARED) | MAP_FIXED;
  if (!memory->sparse) return rc_os.map(at, memory->bytes, protection, flags, memory->fd, &mapped);
  int result = rc_os.map(at, memory->bytes, PROT_NONE, flags | MAP_NORESERVE, memory->fd, &mapped);
  if (result != 0) return result;
  munlock(at, memory->bytes); /* cannot fail: the range is one mapping */
  if (mprotect(at, memory->bytes, protection) != 0) return -errno;
  rc_os.advise(at, memory->bytes, MADV_DONTDUMP);
  return 0;
}

/* Reserves mappings * bytes of address space, aligned for the pages, and overlays the range with
 * the file. */
static int map_file(struct rc_memory *memory, int protection) {
  uint64_t alignment = memory->bytes >= RC_HUGE_PAGE ? RC_HUGE_PAGE : memory->page_size;
  uint64_t wanted = memory->bytes * memory->mappings;
  void *reserved;
  int result = rc_os.map(NULL, wanted + alignment, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, &reserved);
  /* The limit of mlockall is reached; elsewhere -EAGAIN means "try later". */
  if (result == -EAGAIN) return -ENOMEM;
  if (result != 0) return result;
  uint8_t *start = reserved;
  uint8_t *base = (uint8_t *)(((uintptr_t)start + alignment - 1) & ~(uintptr_t)(alignment - 1));
  if (base > start) munmap(start, (size_t)(base - start));
  uint8_t *end = start + wanted + alignment;
  if (end > base + wanted) munmap(base + wanted, (size_t)(end - (base + wanted)));
  for (uint32_t i = 0; i < memory->mappings && result == 0; i++)
    result = map_once(memory, base + i * memory->bytes, protection);
  if (result != 0) munmap(base, wanted);
  else memory->base = base;
  return result;
}

void rc_memory_keep(struct rc_memory *memory, int fd) {
  memory->fd = fd;
  rc_fd_identify(fd, &memory->id);
}

int rc_memory_check_file(const struct rc_memory *memory) {
  return rc_fd_is(memory->fd, &memory->id) ? 0 : -EBADF;
}

int rc_memory_punch(const struct rc_memory *memory, uint64_t offset, uint64_t bytes) {
  int result = rc_memory_check_file(memory);
  if (result != 0) return result;
  return rc_os.punch(memory->fd, offset, bytes);
}

void rc_memory_destroy(struct rc_memory *memory) {
  if (memory->base) munmap(memory->base, memory->bytes * memory->mappings);
  rc_fd_close(memory->fd, &memory->id);
  memory->base = NULL;
  memory->fd = -1;
}

/* ---- Placement ------------------------------------------------------------------------------- */

/* The parameters of creation besides the kind. */
struct plan {
  uint32_t numa, node;
  int numa_error;
  struct rc_nodes nodes; /* requested nodes; empty: no request */
  struct rc_room room;
};

static int resolve_place(const struct rc_memory_wish *wish, struct plan *plan) {
  struct rc_nodes nodes;
  rc_topology_nodes(&nodes);
  if (wish->numa > RINGCAST_NUMA_NODE)
    return rc_fail(-EINVAL, "%u is not a NUMA policy", wish->numa);
  if (wish->numa == RINGCAST_NUMA_NODE && !rc_nodes_have(&nodes, wish->node))
    return rc_fail(-EINVAL,
                   "this process may not use memory on NUMA node %u: choose one of "
                   "Mems_allowed_list in /proc/self/status that has memory",
                   wish->node);
  *plan = (struct plan){.numa = RINGCAST_NUMA_NONE};
  if (wish->numa == RINGCAST_NUMA_NONE || nodes.count < 2) return 0;
  if (rc_feature_disabled("numa")) {
    plan->numa_error = -ENOSYS;
    return 0;
  }
  int node = (int)wish->node;
  if (wish->numa == RINGCAST_NUMA_LOCAL && rc_os.current_cpu(&node) < 0) {
    plan->numa_error = -ENOSYS;
    return 0;
  }
  plan->numa = wish->numa;
  if (wish->numa == RINGCAST_NUMA_INTERLEAVED) {
    plan->nodes = nodes;
  } else {
    plan->node = (uint32_t)node;
    rc_nodes_add(&plan->nodes, plan->node);
  }
  return 0;
}

static void place(const struct plan *plan, struct rc_memory *memory) {
  int result = plan->numa_error;
  if (plan->numa != RINGCAST_NUMA_NONE)
    result = rc_os.place(memory->base, memory->bytes, plan->nodes.bits, RC_MAX_NODES,
                         plan->numa == RINGCAST_NUMA_INTERLEAVED);
  memory->numa_error = result;
  memory->numa = RINGCAST_NUMA_NONE;
  memory->node = 0;
  if (result != 0) return;
  memory->numa = plan->numa;
  memory->node = plan->node;
}

/* ---- Making ---------------------------------------------------------------------------------- */

/* Allocates every page of a range, and populates both mappings if the range is the whole file. */
static int touch(struct rc_memory *memory, uint64_t offset, uint64_t bytes) {
  uint8_t *start = memory->base + offset;
  int result = rc_os.advise(start, bytes * memory->mappings, MADV_POPULATE_WRITE);
  if (result == -EFAULT) return -ENOMEM; /* a store would be SIGBUS */
  if (result != -EINVAL && result != -ENOSYS) return result;
  result = rc_memory_check_file(memory);
  if (result == 0) result = rc_os.allocate(memory->fd, offset, bytes);
  for (uint64_t i = 0; result == 0 && i < bytes; i += memory->page_size) start[i] = 0;
  return result;
}

static int make_file(struct rc_memory *memory, const char *name, unsigned flags,
                     const struct plan *plan) {
  struct rlimit limit;
  bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0;
  if (limited && memory->bytes > limit.rlim_cur) return -EFBIG; /* else SIGXFSZ */
  int fd = rc_os.memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd < 0) return fd;
  rc_memory_keep(memory, fd);
  int result = rc_os.truncate(memory->fd, memory->bytes);
  if (result == 0) result = map_file(memory, PROT_READ | PROT_WRITE);
  if (result == 0) place(plan, memory);
  return result;
}

/* Touches one small page of each huge page: of huge page i the small page p with
 * (512 i + p) mod nodes = i mod nodes. A huge page has 512 small pages, or fewer if the small pages
 * are larger than 4 KiB. */
static int seed_huge(const struct rc_memory *memory, uint64_t offset, uint64_t bytes) {
  uint64_t page = rc_small_page(), pages = RC_HUGE_PAGE / page;
  struct rc_nodes nodes = {.count = 1};
  if (memory->numa == RINGCAST_NUMA_INTERLEAVED) rc_topology_nodes(&nodes);
  for (uint64_t i = offset / RC_HUGE_PAGE; i < (offset + bytes) / RC_HUGE_PAGE; i++) {
    uint64_t seed = i * (pages * (nodes.count - 1) + 1) % nodes.count % pages;
    uint8_t *at = memory->base + i * RC_HUGE_PAGE + seed * page;
    int result = rc_os.advise(at, page, MADV_POPULATE_WRITE);
    if (result == -EFAULT) return -ENOMEM;
    if (result != 0) return result;
  }
  return 0;
}

/* Makes a range of huge pages out of a range without pages. */
static int make_huge(const struct rc_memory *memory, uint64_t offset, uint64_t bytes) {
  int result = seed_huge(memory, offset, bytes);
  if (result != 0) return result;
  result = -EAGAIN;
  for (int i = 0; i < 3 && result == -EAGAIN; i++) /* a page was busy for a moment */
    result = rc_os.advise(memory->base + offset, bytes, MADV_COLLAPSE);
  return result;
}

/* Makes all of the memory huge pages. */
static int make_all_huge(struct rc_memory *memory) {
  int result = rc_os.advise(memory->base, memory->bytes, MADV_HUGEPAGE);
  if (result != 0) return result;
  return make_huge(memory, 0, memory->bytes);
}

static int make_kind(uint64_t bytes, uint32_t kind, const struct plan *plan,
                     struct rc_memory *out) {
  const bool hugetlb = kind == RINGCAST_MEMORY_HUGETLB;
  const bool collapsed = kind == RINGCAST_MEMORY_SHMEM_HUGE;
  if (hugetlb || collapsed) {
    if (rc_feature_disabled(ringcast_memory_name(kind))) return -ENOSYS;
    if (bytes < RC_HUGE_PAGE) bytes = RC_HUGE_PAGE;
  }
  if (!hugetlb && bytes > plan->room.bytes) return -ENOMEM; /* hugetlb pages are reserved already */
  struct rc_memory memory = {.bytes = bytes, .fd = -1, .memory = kind, .mappings = 2};
  memory.page_size = hugetlb ? RC_HUGE_PAGE : rc_small_page();
  int result = make_file(&memory, "ringcast.data", hugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0, plan);
  if (result == 0 && collapsed) result = make_all_huge(&memory);
  if (result == 0) result = touch(&memory, 0, bytes);
  if (result == 0) {
    if (collapsed) memory.page_size = RC_HUGE_PAGE;
    *out = memory;
    return 0;
  }
  rc_memory_destroy(&memory);
  return result == -EAGAIN ? -ENOMEM : result; /* elsewhere -EAGAIN means "try later" */
}

static const char *hint_for(int code, uint32_t kind) {
  static const char *const hints[] = {
      [RINGCAST_MEMORY_HUGETLB] =
          "reserve 2 MiB pages with /proc/sys/vm/nr_hugepages, or ask for memory \"auto\"",
      [RINGCAST_MEMORY_SHMEM_HUGE] =
          "transparent huge pages need Linux 6.1, free memory, and a shmem_enabled other than "
          "\"deny\" in /sys/kernel/mm/transparent_hugepage; provide these, or ask for memory "
          "\"auto\"",
      [RINGCAST_MEMORY_PAGES] =
          "free memory, raise the limit (ulimit -v, ulimit -l, the container's memory), or ask "
          "for less",
  };
  if (code == -EFBIG)
    return "raise the limit of file sizes (ulimit -f), which applies to shared memory too";
  if (code == -EMFILE) return "raise the limit of open files (ulimit -n)";
  if (kind == RINGCAST_MEMORY_PAGES && (code == -EPERM || code == -EACCES || code == -ENOSYS))
    return "a sandbox (seccomp) may refuse memfd_create, ftruncate, fallocate or mmap: allow these";
  if (code == -ENOSYS && kind != RINGCAST_MEMORY_PAGES &&
      rc_feature_disabled(ringcast_memory_name(kind)))
    return "RINGCAST_DISABLE in the environment disables this kind: remove it there, or ask for "
           "another kind";
  return hints[kind];
}

static int fail_to_make(int code, uint32_t kind, uint64_t bytes, const struct rc_room *room) {
  if (code == -ENOMEM && kind != RINGCAST_MEMORY_HUGETLB && bytes > room->bytes)
    return rc_fail(code,
                   "can't get %llu bytes of %s memory: %s has room for %llu; free memory, raise "
                   "the limit, or ask for less",
                   (unsigned long long)bytes, ringcast_memory_name(kind), room->limit,
                   (unsigned long long)room->bytes);
  return rc_fail(code, "can't get %llu bytes of %s memory: %s; %s", (unsigned long long)bytes,
                 ringcast_memory_name(kind), strerror(-code), hint_for(code, kind));
}

static int seal(struct rc_memory *memory, int seals, const char *what) {
  RC_POINT(UNSEALED);
  int result = rc_os.seal(memory->fd, seals);
  if (result == 0) return 0;
  rc_memory_destroy(memory);
  return rc_fail(result, "can't seal the %s segment: %s; ringcast needs Linux 5.1 or newer", what,
                 strerror(-result));
}

int rc_memory_create_data(uint64_t bytes, const struct rc_memory_wish *wish,
                          struct rc_memory *out) {
  uint32_t first = wish->memory, last = wish->memory;
  if (wish->memory == RINGCAST_MEMORY_AUTO) {
    first = bytes >= RC_HUGE_PAGE ? RINGCAST_MEMORY_HUGETLB : RINGCAST_MEMORY_PAGES;
    last = RINGCAST_MEMORY_PAGES;
  }
  struct plan plan = {0};
  int result = resolve_place(wish, &plan);
  if (result != 0) return result;
  rc_topology_room(&plan.room);
  for (uint32_t kind = first; kind <= last; kind++) {
    result = make_kind(bytes, kind, &plan, out);
    if (result == 0) return seal(out, SIZE_SEALS | F_SEAL_FUTURE_WRITE, "data");
  }
  return fail_to_make(result, last, bytes, &plan.room);
}

int rc_memory_create_small(const char *what, uint64_t bytes, struct rc_memory *out) {
  static const struct plan plan = {.numa = RINGCAST_NUMA_NONE, .room = {.bytes = UINT64_MAX}};
  uint64_t page = rc_small_page();
  struct rc_memory memory = {
      .bytes = (bytes + page - 1) & ~(page - 1), .page_size = page, .fd = -1, .mappings = 1};
  char name[32];
  snprintf(name, sizeof name, "ringcast.%s", what);
  int result = make_file(&memory, name, 0, &plan);
  if (result == 0) result = touch(&memory, 0, memory.bytes);
  if (result != 0) {
    rc_memory_destroy(&memory);
    return fail_to_make(result, RINGCAST_MEMORY_PAGES, memory.bytes, &plan.room);
  }
  *out = memory;
  return seal(out, SIZE_SEALS, what);
}

/* The wish that leads to the place of `data`. */
static struct rc_memory_wish wish_for_same_place(const struct rc_memory *data) {
  struct rc_memory_wish wish = {.numa = data->numa, .node = data->node};
  /* The thread may run on another node by now. */
  if (wish.numa == RINGCAST_NUMA_LOCAL) wish.numa = RINGCAST_NUMA_NODE;
  return wish;
}

/* Whether spill memory may have huge pages. */
static bool may_be_huge(void) {
  return !rc_feature_disabled(ringcast_memory_name(RINGCAST_MEMORY_SHMEM_HUGE));
}

int rc_memory_create_spill(uint64_t bytes, const struct rc_memory *data, struct rc_memory *out) {
  struct plan plan = {0};
  struct rc_memory_wish wish = wish_for_same_place(data);
  struct rc_memory memory = {
      .bytes = bytes, .page_size = rc_small_page(), .fd = -1, .mappings = 1, .sparse = true};
  int result = resolve_place(&wish, &plan);
  if (result == 0) result = make_file(&memory, "ringcast.spill", 0, &plan);
  if (result == 0 && fchmod(memory.fd, S_IRUSR) != 0) result = -errno;
  if (result != 0) {
    rc_memory_destroy(&memory);
    const char *hint = hint_for(result, RINGCAST_MEMORY_PAGES);
    if (result == -ENOMEM)
      hint = "raise the limit (ulimit -v, ulimit -l), or ask for less (options.spill_bytes)";
    return rc_fail(result, "can't get %llu bytes of spill memory: %s; %s",
                   (unsigned long long)bytes, strerror(-result), hint);
  }
  memory.huge = may_be_huge();
  /* shmem_enabled may ignore it. */
  if (memory.huge) rc_os.advise(memory.base, memory.bytes, MADV_HUGEPAGE);
  *out = memory;
  return seal(out, SIZE_SEALS, "spill");
}

/* Where the range does not become huge pages, it gets small ones. */
int rc_memory_provide(struct rc_memory *memory, uint64_t offset, uint64_t bytes) {
  if (memory->huge) {
    int result = make_huge(memory, offset, bytes);
    /* This kernel or its settings forbid it. */
    if (result == -EINVAL || result == -ENOSYS) memory->huge = false;
  }
  int result = touch(memory, offset, bytes);
  if (result != 0) rc_memory_punch(memory, offset, bytes); /* the pages provided so far */
  return result;
}

/* ---- Attaching ------------------------------------------------------------------------------- */

/* Checks the seals before the size: an unsealed file can be truncated after the check, and a load
 * beyond its end is SIGBUS. */
static int check_sealed(int fd, int seals, uint64_t bytes, const char *what) {
  struct stat file;
  int found = rc_os.seals(fd);
  if (found < 0 || (found & seals) != seals)
    return rc_fail(-EPROTO,
                   "the %s is not sealed as ringcast seals it: do not trust the process that made "
                   "it",
                   what);
  if (fstat(fd, &file) != 0 || (uint64_t)file.st_size != bytes)
    return rc_fail(-EPROTO,
                   "the %s has another size than the ring says: do not trust the process that "
                   "made it",
                   what);
  return 0;
}

static int fail_to_map(int code, const struct rc_memory *memory) {
  const char *what = "", *hint = "";
  if (memory->sparse) {
    what = " of spill memory";
    hint = ", or make the ring with less (options.spill_bytes, RINGCAST_SPILL_BYTES)";
  }
  return rc_fail(code,
                 "can't map the ring's %llu bytes%s: %s; raise the limit (ulimit -v, ulimit -l)%s",
                 (unsigned long long)memory->bytes, what, strerror(-code), hint);
}

/* The file's descriptor stays the caller's. */
static int map_sealed(struct rc_memory memory, int seals, int protection, struct rc_memory *out) {
  const char *what = memory.sparse ? "spill segment" : "segment";
  int result = check_sealed(memory.fd, seals, memory.bytes, what);
  if (result != 0) return result;
  result = map_file(&memory, protection);
  if (result != 0) return fail_to_map(result, &memory);
  memory.fd = -1;
  *out = memory;
  return 0;
}

int rc_memory_map_data(int fd, uint64_t bytes, uint64_t page_size, struct rc_memory *out) {
  struct rc_memory memory = {.bytes = bytes, .page_size = page_size, .fd = fd, .mappings = 2};
  struct rc_memory mapped = {0};
  int result =
      map_sealed(memory, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, PROT_READ, &mapped);
  if (result != 0) return result;
  /* A correct writer has allocated all pages. A hostile writer may have left holes, where a load
   * could be SIGBUS; MADV_POPULATE_READ reports such holes. */
  result = rc_os.advise(mapped.base, bytes * mapped.mappings, MADV_POPULATE_READ);
  bool is_old = result == -EINVAL || result == -ENOSYS; /* maps each page at its first load */
  if (result == 0 || is_old) {
    *out = mapped;
    return 0;
  }
  rc_memory_destroy(&mapped);
  if (result == -EFAULT) result = -ENOMEM;
  return rc_fail(result,
                 "can't read all of the ring's %llu bytes: %s; free memory, or raise the "
                 "container's limit",
                 (unsigned long long)bytes, strerror(-result));
}

int rc_memory_map_control(int fd, uint64_t bytes, struct rc_memory *out) {
  struct rc_memory memory = {.bytes = bytes, .page_size = rc_small_page(), .fd = fd, .mappings = 1};
  return map_sealed(memory, F_SEAL_SHRINK | F_SEAL_GROW, PROT_READ | PROT_WRITE, out);
}

int rc_memory_check_spill(int fd, uint64_t bytes) {
  return check_sealed(fd, SIZE_SEALS, bytes, "spill segment");
}

int rc_memory_map_spill(int fd, uint64_t bytes, bool private_map, struct rc_memory *out) {
  struct rc_memory memory = {
      .bytes = bytes, .page_size = rc_small_page(), .fd = fd, .mappings = 1, .sparse = true};
  memory.private_map = private_map;
  int protection = private_map ? PROT_READ | PROT_WRITE : PROT_READ;
  int result = map_sealed(memory, SIZE_SEALS, protection, out);
  if (result != 0) return result;
  /* Maps the writer's huge pages as huge pages. */
  if (may_be_huge()) rc_os.advise(out->base, bytes, MADV_HUGEPAGE);
  return 0;
}
