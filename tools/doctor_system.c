/* SPDX-License-Identifier: Apache-2.0 */
/* The machine: a ring made for proof, huge pages, limits, NUMA; the kernel, cores, waiting; the environment. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "shm/options.h"
#include "tools/cli.h"
#include "tools/doctor.h"

#define HUGE_DIR     "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define SWITCHED_OFF ", and switched off by RINGCAST_DISABLE"
#define MIB          ((int64_t)1 << 20)

/* ---- Files of the kernel ---------------------------------------------------------------------------------------- */

/* The number at the start of a file; -1 for a file without a number ("max" too). */
static int64_t read_number(const char *path) {
  char text[128], *end;
  cli_read_line(path, text, sizeof text);
  long long value = strtoll(text, &end, 10);
  return end == text ? -1 : value;
}

/* Whether `list` ("cpu,cpuacct") names `controller`. */
static bool names(const char *list, size_t length, const char *controller) {
  size_t wanted = strlen(controller);
  while (length >= wanted) {
    const char *comma = memchr(list, ',', length);
    size_t word = comma ? (size_t)(comma - list) : length;
    if (word == wanted && memcmp(list, controller, wanted) == 0) return true;
    if (!comma) return false;
    length -= word + 1;
    list = comma + 1;
  }
  return false;
}

/* The file `name` of this process's control group, in `controller`'s hierarchy (or the only one, of version 2).
 * False if there is no such file. A container often sees its own group as the root of the hierarchy, whatever
 * /proc/self/cgroup says: both are tried. */
static bool cgroup_path(const char *controller, const char *name, char *out, size_t size) {
  char line[512], group[512] = "", root[64] = "/sys/fs/cgroup";
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file && fgets(line, sizeof line, file)) {
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) continue;
    path[strcspn(path, "\n")] = '\0';
    if (path == list + 1 && !*group) snprintf(group, sizeof group, "%s", path + 1);
    if (!names(list + 1, (size_t)(path - list - 1), controller)) continue;
    snprintf(group, sizeof group, "%s", path + 1);
    snprintf(root, sizeof root, "/sys/fs/cgroup/%s", controller);
    break;
  }
  if (file) fclose(file);
  snprintf(out, size, "%s%s/%s", root, group, name);
  if ((file = fopen(out, "re")) == NULL) {
    snprintf(out, size, "%s/%s", root, name);
    file = fopen(out, "re");
  }
  if (!file) return false;
  fclose(file);
  return true;
}

/* ---- A ring ----------------------------------------------------------------------------------------------------- */

static int64_t open_files(void) {
  DIR *dir = opendir("/proc/self/fd");
  int64_t count = 0;
  if (!dir) return -1;
  while (readdir(dir)) count++;
  closedir(dir);
  return count;
}

struct attach {
  char handle[128];
  int result;
  char words[256];
};

/* In another process, as a reader would. */
static void attach(void *context) {
  struct attach *attach = context;
  ringcast_reader *reader;
  attach->result = ringcast_reader_attach(attach->handle, &reader);
  if (attach->result == 0) ringcast_reader_close(reader);
  else snprintf(attach->words, sizeof attach->words, "%s", ringcast_last_error());
}

static void probe_attach(struct doctor *doctor, const char *handle) {
  char end[160];
  struct attach *shared = doctor_shared(sizeof *shared);
  if (!shared) return;
  snprintf(shared->handle, sizeof shared->handle, "%s", handle);
  doctor_await(doctor_start(attach, shared), end, sizeof end);
  if (shared->result == 0 && !*end) {
    doctor_add(doctor, "attach", DOCTOR_OK, "another process of this user has attached to that ring");
  } else {
    doctor_add(doctor, "attach", DOCTOR_PROBLEM, "another process can't attach: %s", *end ? end : shared->words);
    doctor_mend(doctor, "%s",
                shared->result == -EMFILE
                    ? "ulimit -n 1024"
                    : "attaching opens /proc/<pid>/fd/<n> of the writer: same user, group and capabilities, same PID "
                      "namespace, /proc mounted, and a writer that is dumpable (not set-uid, no PR_SET_DUMPABLE 0)");
  }
  munmap(shared, sizeof *shared);
}

/* Whether the process `name` is of this user and not dumpable: the kernel gives the private part of
 * its folder to root then. */
static bool is_closed(int proc, const char *name) {
  char path[300];
  struct stat process, files;
  snprintf(path, sizeof path, "%s/fd", name);
  return name[strspn(name, "0123456789")] == '\0' && fstatat(proc, name, &process, 0) == 0 &&
         process.st_uid == geteuid() && fstatat(proc, path, &files, 0) == 0 && files.st_uid != process.st_uid;
}

/* What prctl(PR_SET_DUMPABLE) and a change of the user do to attaching. */
static void probe_dumpable(struct doctor *doctor) {
  char list[96] = "";
  size_t used = 0;
  int64_t count = 0;
  DIR *dir = opendir("/proc");
  const int proc = dir ? dirfd(dir) : -1;
  for (struct dirent *entry; proc >= 0 && (entry = readdir(dir)) != NULL;) {
    if (!is_closed(proc, entry->d_name)) continue;
    if (used + sizeof ", 2147483647" < sizeof list) /* the first ones, whole */
      used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", count > 0 ? ", " : "", entry->d_name);
    count++;
  }
  if (dir) closedir(dir);
  if (count == 0) {
    doctor_add(doctor, "dumpable", DOCTOR_OK, "all processes of this user let readers attach");
  } else {
    doctor_add(doctor, "dumpable", DOCTOR_NOTE,
               "%lld processes of this user are not dumpable, so no reader could attach to a ring of theirs: %s",
               (long long)count, list);
    doctor_mend(doctor,
                "of importance only if one of them is a writer: it should not set PR_SET_DUMPABLE to 0, and set "
                "it to 1 where it changes its user");
  }
  doctor_facts(doctor, FACTS({"closed", count}));
}

static void tell_large_frames(struct doctor *doctor) {
  const struct ringcast_info *ring = &doctor->ring;
  if (ring->spill_bytes != 0) {
    doctor_add(doctor, "large frames", DOCTOR_OK,
               "up to %lld KiB stay in that ring; larger ones, up to %lld MiB, go through spill "
               "memory, which is taken from the machine as it is needed",
               (long long)(ring->ring_frame >> 10), (long long)(ring->max_frame >> 20));
  } else {
    doctor_add(doctor, "large frames", DOCTOR_NOTE,
               "up to %lld KiB; larger ones are refused: there is no spill memory%s%s",
               (long long)(ring->ring_frame >> 10), ring->spill_error ? ", which can't be had: " : "",
               ring->spill_error ? strerror(-ring->spill_error) : "");
    doctor_mend(doctor, "%s",
                ring->spill_error == -EFBIG    ? "ulimit -f unlimited; or a larger ring (capacity)"
                : ring->spill_error == -ENOMEM ? "ulimit -v unlimited; or set RINGCAST_SPILL_BYTES to less"
                                               : "set RINGCAST_SPILL_BYTES, or make a larger ring (capacity)");
  }
  doctor_facts(doctor, FACTS({"spill_bytes", (int64_t)ring->spill_bytes}));
}

/* Sends a large frame to a reader of its own, which keeps it. What ringcast_reader_retain gave, or another error. */
static int keep_one(void) {
  struct ringcast_writer_options options = {
      .size = sizeof options, .capacity = 65536, .spill_bytes = 4 * (uint64_t)MIB};
  struct ringcast_reader_options keeps = {.size = sizeof keeps, .flags = RINGCAST_READER_RETAIN};
  ringcast_writer *writer = NULL;
  ringcast_reader *reader = NULL;
  ringcast_retained *kept = NULL;
  struct ringcast_frame frame;
  struct ringcast_span span;
  void *data;
  int result = ringcast_writer_create_ex(&options, &writer);
  if (result == 0) result = ringcast_reader_attach_ex(ringcast_writer_handle(writer), &keeps, &reader);
  if (result == 0) result = ringcast_writer_reserve(writer, (size_t)MIB, 0, &span);
  if (result == 0) memset(span.data, 'x', span.bytes);
  if (result == 0) result = ringcast_writer_commit(writer, span.bytes, 0);
  if (result == 0) result = ringcast_reader_next(reader, 0, &frame);
  if (result == 0) result = ringcast_reader_retain(reader, &frame, &kept, &data);
  if (result == 0) *(char *)data = 'y'; /* the ring must not show this byte */
  if (result == 0 && *(const char *)frame.data != 'x') result = -EIO;
  ringcast_retained_release(kept);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  return result;
}

static void probe_keeping(struct doctor *doctor) {
  const char *off = rc_feature_disabled("retain") ? SWITCHED_OFF : "";
  int result = keep_one(), pages = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), lacks = pages < 0 ? errno : 0;
  if (pages >= 0) close(pages);
  if (result == 0)
    doctor_add(doctor, "copy-on-write", DOCTOR_OK,
               "a reader has kept a frame of 1 MiB without a copy (ringcast_reader_retain), and written to it");
  else if (result != -ENOTSUP)
    doctor_add(doctor, "copy-on-write", DOCTOR_NOTE, "it could not be seen whether large frames can be kept: %s",
               strerror(-result));
  else
    doctor_add(doctor, "copy-on-write", DOCTOR_NOTE,
               "a reader that was to keep a frame of 1 MiB had to copy it: /proc/self/pagemap %s%s, pages of %ld KiB%s",
               lacks ? "can't be opened: " : "is there", lacks ? strerror(lacks) : "", sysconf(_SC_PAGESIZE) >> 10,
               off);
  if (result == -ENOTSUP && !*off)
    doctor_mend(doctor, "needs /proc with its pagemap (CONFIG_PROC_PAGE_MONITOR), pages of 4 KiB, and addresses for "
                        "the spill memory twice (ulimit -v)");
  doctor_facts(doctor, FACTS({"works", result == 0 ? 1 : result == -ENOTSUP ? 0 : -1}));
}

static void probe_ring(struct doctor *doctor) {
  ringcast_writer *writer;
  int64_t files = open_files();
  int result = ringcast_writer_create(&writer);
  if (result != 0) {
    doctor_add(doctor, "ring", DOCTOR_PROBLEM, "can't make a ring: %s", ringcast_last_error());
    doctor_mend(doctor, "the sentence says what is missing; the lines below say how much of it there is");
    return;
  }
  int64_t held = open_files() - files;
  doctor->ring.size = sizeof doctor->ring;
  doctor->can_make = ringcast_writer_info(writer, &doctor->ring) == 0;
  const struct ringcast_info *ring = &doctor->ring;
  doctor_add(
      doctor, "ring", DOCTOR_OK,
      "a ring with default options gets %lld MiB of memory (%s, pages of %lld KiB); its waits spin for at most %.0f "
      "us before they sleep",
      (long long)((int64_t)ring->capacity / MIB), ringcast_memory_name(ring->memory),
      (long long)(ring->page_size >> 10), (double)ring->spin_ns / 1000);
  doctor_facts(doctor,
               FACTS({"capacity", (int64_t)ring->capacity}, {"page_size", (int64_t)ring->page_size}, {"files", held}));
  tell_large_frames(doctor);
  probe_attach(doctor, ringcast_writer_handle(writer));
  probe_dumpable(doctor);
  ringcast_writer_close(writer);
  probe_keeping(doctor);
}

/* ---- Huge pages ------------------------------------------------------------------------------------------------- */

static void probe_pool(struct doctor *doctor) {
  int64_t pool = read_number(HUGE_DIR "nr_hugepages"), spare = read_number(HUGE_DIR "free_hugepages");
  int64_t reserved = read_number(HUGE_DIR "resv_hugepages");
  const char *switched = rc_feature_disabled("hugetlb") ? SWITCHED_OFF : "";
  bool huge = doctor->can_make && doctor->ring.memory != RINGCAST_MEMORY_PAGES;
  long long wanted = (long long)(doctor->ring.capacity / (2 * (uint64_t)MIB));
  char gets[128] = "it could not be seen what a default ring gets, because no ring could be made";
  if (pool < 0) {
    doctor_add(doctor, "huge pages", DOCTOR_NOTE, "this kernel has no pool of 2 MiB pages%s", switched);
    return;
  }
  if (reserved > 0) spare -= reserved;
  if (doctor->can_make)
    snprintf(gets, sizeof gets, "a default ring would take %lld of them, and gets %s", wanted,
             doctor->ring.memory == RINGCAST_MEMORY_HUGETLB ? "them" : ringcast_memory_name(doctor->ring.memory));
  doctor_add(doctor, "huge pages", huge ? DOCTOR_OK : DOCTOR_NOTE, "%lld pages of 2 MiB in the pool, %lld free%s; %s",
             (long long)pool, (long long)spare, switched, gets);
  if (doctor->can_make && !huge && !*switched)
    doctor_mend(doctor,
                "as root: echo %lld > /proc/sys/vm/nr_hugepages (more for more rings); in a container also "
                "raise its hugetlb.2MB.max",
                (long long)pool + wanted);
}

/* "always [never] advise" -> "never". */
static const char *chosen(char *text) {
  char *open = strchr(text, '['), *end = open ? strchr(open, ']') : NULL;
  if (!end) return "unknown";
  *end = '\0';
  return open + 1;
}

static bool can_make_of(uint32_t memory) {
  struct ringcast_writer_options options = {.size = sizeof options, .memory = memory, .capacity = 2 * (uint64_t)MIB};
  ringcast_writer *writer;
  if (ringcast_writer_create_ex(&options, &writer) != 0) return false;
  ringcast_writer_close(writer);
  return true;
}

static void probe_transparent(struct doctor *doctor) {
  char text[256];
  const char *shmem = chosen(cli_read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", text, sizeof text));
  bool works = can_make_of(RINGCAST_MEMORY_SHMEM_HUGE), off = rc_feature_disabled("shmem-huge");
  bool seen = works || can_make_of(RINGCAST_MEMORY_PAGES); /* else it is not for want of huge pages */
  doctor_add(doctor, "shmem huge", works ? DOCTOR_OK : DOCTOR_NOTE,
             "transparent huge pages of shared memory%s: shmem_enabled is '%s', and %s", off ? SWITCHED_OFF : "", shmem,
             works  ? "a ring of 2 MiB that asks for them gets them (MADV_COLLAPSE)"
             : seen ? "a ring of 2 MiB that asks for them does not get them"
                    : "it could not be seen whether a ring gets them, because no ring could be made");
  if (seen && !works && !off)
    doctor_mend(doctor, "needs Linux 6.1 with CONFIG_TRANSPARENT_HUGEPAGE, shmem_enabled other than 'deny', and free "
                        "memory that is not in pieces (echo 1 > /proc/sys/vm/compact_memory)");
  doctor_facts(doctor, FACTS({"works", seen ? works : -1}));
}

/* ---- Limits ----------------------------------------------------------------------------------------------------- */

static int64_t limit_of(int resource) {
  struct rlimit limit;
  return getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY
             ? -1
             : (int64_t)limit.rlim_cur;
}

static void probe_files(struct doctor *doctor) {
  int64_t limit = limit_of(RLIMIT_NOFILE), used = open_files();
  bool few = limit >= 0 && limit - used < 64;
  doctor_add(doctor, "open files", few ? DOCTOR_NOTE : DOCTOR_OK,
             "at most %lld (ulimit -n), %lld open; each writer keeps some open ('files' of the line 'ring' in --format "
             "json)",
             (long long)limit, (long long)used);
  if (few) doctor_mend(doctor, "ulimit -n 1024");
}

static void probe_group_memory(struct doctor *doctor) {
  char path[640];
  int64_t limit = -1, used = -1, ring = doctor->can_make ? (int64_t)doctor->ring.capacity : 16 * MIB;
  if (cgroup_path("memory", "memory.max", path, sizeof path) ||
      cgroup_path("memory", "memory.limit_in_bytes", path, sizeof path))
    limit = read_number(path);
  if (cgroup_path("memory", "memory.current", path, sizeof path) ||
      cgroup_path("memory", "memory.usage_in_bytes", path, sizeof path))
    used = read_number(path);
  if (limit > INT64_MAX / 2) limit = -1; /* how version 1 says that there is none */
  if (limit < 0) {
    doctor_add(doctor, "container memory", DOCTOR_OK, "the control group sets no limit that this process can see");
  } else {
    bool tight = used >= 0 && limit - used < 4 * ring;
    doctor_add(doctor, "container memory", tight ? DOCTOR_NOTE : DOCTOR_OK,
               "the control group allows %lld MiB, of which %lld are in use; the whole ring counts from the "
               "moment when the ring is made",
               (long long)(limit / MIB), (long long)(used / MIB));
    if (tight) doctor_mend(doctor, "give the container more memory (docker run --memory), or make smaller rings");
  }
}

/* ---- NUMA ------------------------------------------------------------------------------------------------------- */

static void probe_numa(struct doctor *doctor) {
  const char *off = rc_feature_disabled("numa") ? SWITCHED_OFF : "";
  int64_t nodes = 0;
  DIR *dir = opendir("/sys/devices/system/node");
  for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;)
    nodes += strncmp(entry->d_name, "node", 4) == 0 && entry->d_name[4] >= '0' && entry->d_name[4] <= '9';
  if (dir) closedir(dir);
  if (nodes > 1) {
    doctor_add(doctor, "NUMA", DOCTOR_NOTE, "%lld nodes; a ring lies on the node of the CPU that makes it%s",
               (long long)nodes, off);
    doctor_mend(doctor, "make the ring on the node where its writer runs: numactl --cpunodebind=0 ...");
  } else {
    doctor_add(doctor, "NUMA", DOCTOR_OK, "one node, so a ring has no choice of nodes%s", off);
  }
}

/* ---- Kernel ----------------------------------------------------------------------------------------------------- */

static void probe_kernel(struct doctor *doctor) {
  struct utsname name;
  int major = 0, minor = 0;
  uname(&name);
  if (sscanf(name.release, "%d.%d", &major, &minor) != 2) major = minor = 0;
  int version = major * 1000 + minor;
  doctor_add(doctor, "kernel",
             version < 5001   ? DOCTOR_PROBLEM
             : version < 6001 ? DOCTOR_NOTE
                              : DOCTOR_OK,
             "%s %s on %s; 5.1 is needed to seal a ring's memory, 5.14 to fill it quickly, 6.1 for transparent huge "
             "pages",
             name.sysname, name.release, name.machine);
  if (version < 6001) doctor_mend(doctor, "a newer kernel");
  doctor_facts(doctor, FACTS({"major", major}, {"minor", minor}));
}

/* ---- Cores ------------------------------------------------------------------------------------------------------ */

/* How many CPUs' worth of time the control group grants; INFINITY if it sets no limit. */
static double cpu_quota(void) {
  char path[640], text[64];
  double quota, period;
  if (cgroup_path("cpu", "cpu.max", path, sizeof path))
    return sscanf(cli_read_line(path, text, sizeof text), "%lf %lf", &quota, &period) == 2 && period > 0
               ? quota / period
               : INFINITY;
  if (!cgroup_path("cpu", "cpu.cfs_quota_us", path, sizeof path)) return INFINITY;
  quota = (double)read_number(path);
  if (!cgroup_path("cpu", "cpu.cfs_period_us", path, sizeof path)) return INFINITY;
  period = (double)read_number(path);
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

static void probe_cores(struct doctor *doctor) {
  cpu_set_t allowed;
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  int usable = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : (int)online;
  double quota = cpu_quota(), least = quota < usable ? ceil(quota) : usable;
  char limit[64] = "no quota";
  if (isfinite(quota)) snprintf(limit, sizeof limit, "a quota of %.2f CPUs", quota);
  doctor_add(doctor, "cores", least < 2 ? DOCTOR_NOTE : DOCTOR_OK,
             "%ld CPUs online, %d allowed to this process, %s: a writer and %d reader%s can spin at the same time",
             online, usable, limit, least < 2 ? 0 : (int)least - 1, (int)least == 2 ? "" : "s");
  if (least < 2)
    doctor_mend(
        doctor,
        "with one CPU every wait must sleep, which takes some 10 us a frame; allow two or more (taskset, docker "
        "run --cpus and --cpuset-cpus)");
  doctor_facts(doctor, FACTS({"online", online}, {"allowed", usable}));
}

/* ---- Waiting ---------------------------------------------------------------------------------------------------- */

static void probe_wait(struct doctor *doctor) {
  bool waitpkg = false, monitorx = false, wfet = false;
#if defined(__x86_64__) || defined(__i386__)
  unsigned a, b, c, d;
  waitpkg = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 5));
  monitorx = __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & (1u << 29));
#elif defined(__aarch64__)
  wfet = getauxval(AT_HWCAP2) & (1ul << 31); /* HWCAP2_WFXT */
#endif
  bool off = rc_feature_disabled("cpu_wait"), used = (waitpkg || monitorx || wfet) && !off;
  const char *names = waitpkg ? "umwait" : monitorx ? "mwaitx" : wfet ? "wfet" : "none";
  doctor_add(doctor, "CPU wait", DOCTOR_OK, "instructions that wait at low power: %s; spinning waits %s", names,
             used  ? "use such instructions after the first microsecond"
             : off ? "use pause instructions, as RINGCAST_DISABLE asks"
                   : "use pause instructions");
  doctor_facts(doctor, FACTS({"used", used}));
}

/* 0, or why there is no descriptor of a process. */
static int pidfd_error(void) {
  int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
  if (fd < 0) return errno;
  close(fd);
  return 0;
}

static void probe_pidfd(struct doctor *doctor) {
  int error = pidfd_error();
  bool off = rc_feature_disabled("pidfd"), used = error == 0 && !off;
  doctor_add(doctor, "pidfd", DOCTOR_OK, "%s%s: %s", error ? strerror(error) : "available", off ? SWITCHED_OFF : "",
             used ? "the kernel reports when a peer's process ends"
                  : "a waiter looks in /proc, several times a second, for the peer's process");
  if (error) doctor_mend(doctor, "Linux 5.3 or newer, and a seccomp profile that lets pidfd_open through");
  doctor_facts(doctor, FACTS({"used", used}));
}

/* io_uring's numbers, for headers that are older than the kernel. */
enum { REGISTER_PROBE = 8, OP_SUPPORTED = 1, OP_FUTEX_WAIT = 51, PROBED = 64 };

struct uring_probe {
  uint8_t last_op, ops_len;
  uint16_t reserved;
  uint32_t reserved2[3];
  struct {
    uint8_t op, reserved;
    uint16_t flags;
    uint32_t reserved2;
  } ops[PROBED];
};

/* `error`: of io_uring_setup, 0 if it is there. */
static const char *why_no_uring(int error, int64_t disabled, bool has_pidfd) {
  if (rc_feature_disabled("io_uring")) return SWITCHED_OFF;
  if (error != 0 && disabled > 0) return ", kernel.io_uring_disabled is set";
  if (error == EPERM) return ", perhaps a container's seccomp profile";
  if (!RINGCAST_HAVE_LIBURING) return ", and liburing is not built in";
  return error == 0 && !has_pidfd ? ", but not used without pidfds" : "";
}

static void probe_io_uring(struct doctor *doctor) {
  static struct uring_probe probe;
  uint64_t params[15] = {0}; /* struct io_uring_params is 120 bytes */
  int64_t disabled = read_number("/proc/sys/kernel/io_uring_disabled");
  int fd = (int)syscall(SYS_io_uring_setup, 2, params), error = errno;
  bool futex = fd >= 0 && syscall(SYS_io_uring_register, fd, REGISTER_PROBE, &probe, PROBED) == 0 &&
               probe.last_op >= OP_FUTEX_WAIT && (probe.ops[OP_FUTEX_WAIT].flags & OP_SUPPORTED);
  if (fd >= 0) close(fd);
  bool watches = pidfd_error() == 0 && !rc_feature_disabled("pidfd");
  bool used = futex && watches && RINGCAST_HAVE_LIBURING && !rc_feature_disabled("io_uring");
  doctor_add(doctor, "io_uring", DOCTOR_OK, "%s%s: %s",
             fd >= 0 ? futex ? "available, with FUTEX_WAIT" : "available, without FUTEX_WAIT (Linux 6.7)"
                     : strerror(error),
             why_no_uring(fd < 0 ? error : 0, disabled, watches),
             used ? "io_uring waits behind a reader's pollable descriptor"
                  : "a helper thread waits behind a reader's pollable descriptor");
  if (!futex)
    doctor_mend(doctor, "Linux 6.7 or newer, sysctl kernel.io_uring_disabled=0, and a seccomp profile that "
                        "lets io_uring_setup through");
  doctor_facts(doctor, FACTS({"futex_wait", futex}, {"liburing", RINGCAST_HAVE_LIBURING}, {"used", used}));
}

/* ---- The environment -------------------------------------------------------------------------------------------- */

/* A test compares the names with the sources. */
static bool is_variable(const char *name, size_t length) {
  static const char *const known[] = {
      "RINGCAST_MEMORY",   "RINGCAST_SPIN_US", "RINGCAST_SPILL_BYTES",    "RINGCAST_DISABLE",
      "RINGCAST_CAPACITY", "RINGCAST_AHEAD",   "RINGCAST_GPU_POOL_BYTES", "RINGCAST_ALLOW_PICKLE",
      "RINGCAST_VLLM",     "RINGCAST_SGLANG",  "RINGCAST_CURVE",          "RINGCAST_HEARTBEAT",
      "RINGCAST_WAIT",     "RINGCAST_CLASSES", "RINGCAST_TRACE",          "RINGCAST_PROFILE"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strlen(known[i]) == length && memcmp(known[i], name, length) == 0) return true;
  return false;
}

/* The drop-in for an engine is on, as the engine's user wants: nothing to mend. */
static bool is_switch(const char *variable) {
  static const char *const on[] = {"RINGCAST_VLLM=1", "RINGCAST_VLLM=strict", "RINGCAST_SGLANG=1",
                                   "RINGCAST_SGLANG=strict"};
  size_t length = strcspn(variable, ","); /* settings follow, as in RINGCAST_VLLM=1,on_death=evict */
  for (size_t i = 0; i < sizeof on / sizeof *on; i++)
    if (strlen(on[i]) == length && memcmp(variable, on[i], length) == 0) return true;
  return false;
}

static void probe_environment(struct doctor *doctor) {
  char text[192] = "", strange[160] = ""; /* those that ringcast knows, with their values; and the others' names */
  size_t used = 0, taken = 0;
  int64_t count = 0, switches = 0, unknown = 0;
  for (char **at = environ; *at; at++) {
    int length = (int)strcspn(*at, "=");
    if (strncmp(*at, "RINGCAST_", strlen("RINGCAST_")) != 0) continue;
    if (is_variable(*at, (size_t)length)) {
      bool on = is_switch(*at);
      if (used < sizeof text)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s", count ? ", " : "", *at,
                                 on ? " (the drop-in is on)" : "");
      count++;
      switches += on;
    } else {
      if (taken < sizeof strange)
        taken += (size_t)snprintf(strange + taken, sizeof strange - taken, "%s%.*s", unknown ? ", " : "", length, *at);
      unknown++;
    }
  }
  doctor_add(doctor, "environment", count > switches || unknown ? DOCTOR_NOTE : DOCTOR_OK, "%s%s%s%s",
             count || unknown ? text : "no RINGCAST_ variable is set", count && unknown ? "; " : "",
             unknown ? "unknown to ringcast: " : "", strange);
  if (count > switches)
    doctor_mend(doctor,
                "these variables change what is said above, or what the Python package does; unset those that are not "
                "intended");
  else if (unknown) doctor_mend(doctor, "check the spelling of the name: an unknown variable changes nothing");
  doctor_facts(doctor, FACTS({"unknown", unknown}));
}

/* Told only where there is something to tell. */
static void probe_clock(struct doctor *doctor) {
  FILE *file = fopen("/proc/self/timens_offsets", "re");
  long monotonic = 0, boottime = 0;
  if (!file) return;
  bool read = fscanf(file, "monotonic %ld %*d boottime %ld", &monotonic, &boottime) == 2;
  fclose(file);
  if (!read || (monotonic == 0 && boottime == 0)) return;
  doctor_add(doctor, "clock", DOCTOR_NOTE, "a time namespace moves monotonic time by %ld s and boot time by %ld s: %s",
             monotonic, boottime,
             boottime ? "no ring outside of it can be attached to"
                      : "how long a writer outside of it waits is not shown");
  doctor_mend(doctor, "writer and readers in one time namespace");
}

/* ---- All ---------------------------------------------------------------------------------------- */

void (*const doctor_checks[])(struct doctor *doctor) = {
    probe_ring,  probe_kernel,   probe_pool,        probe_transparent, probe_group_memory,
    probe_files, probe_numa,     probe_cores,       probe_wait,        probe_clock,
    probe_pidfd, probe_io_uring, doctor_check_gpus, probe_environment, NULL};
