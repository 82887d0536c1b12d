/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringcast doctor`: the machine, as far as rings depend on it, a line for each finding. A ring
 * made for proof, huge pages, limits, NUMA; the kernel, cores, waiting; the environment.
 * doctor_gpu.c has the GPUs.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "shm/options.h"
#include "tools/cli.h"
#include "tools/doctor.h"
#include "tools/text.h"

static const char help[] =
    "usage: ringcast doctor [--format text|json]\n"
    "\n"
    "What this machine offers, what ringcast makes of it, and how to mend what is missing.\n"
    "Changes no setting of the machine.\n"
    "\n"
    "  --format FORMAT   text or json (default text)\n";

static const char *const levels[] = {"ok", "note", "problem"};

/* ---- Lines ----------------------------------------------------------------------------------- */

void doctor_add(struct doctor *doctor, const char *name, enum doctor_level level,
                const char *format, ...) {
  if (doctor->count == DOCTOR_LINES) abort();
  struct doctor_line *line = &doctor->lines[doctor->count++];
  va_list arguments;
  line->name = name;
  line->level = level;
  va_start(arguments, format);
  vsnprintf(line->found, sizeof line->found, format, arguments);
  va_end(arguments);
}

void doctor_mend(struct doctor *doctor, const char *format, ...) {
  struct doctor_line *line = &doctor->lines[doctor->count - 1];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line->mend, sizeof line->mend, format, arguments);
  va_end(arguments);
}

void doctor_facts(struct doctor *doctor, const struct doctor_fact facts[]) {
  struct doctor_fact *out = doctor->lines[doctor->count - 1].facts;
  for (int i = 0; i < DOCTOR_FACTS && facts[i].key; i++) out[i] = facts[i];
}

/* ---- Processes ------------------------------------------------------------------------------- */

void *doctor_shared(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  return memory;
}

/* When the time is up a signal ends the child, also within the driver. */
pid_t doctor_start(void (*body)(void *context), void *context) {
  fflush(NULL); /* what is buffered must not be printed by the child too */
  pid_t pid = fork();
  if (pid != 0) return pid;
  signal(SIGALRM, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(DOCTOR_LIMIT_S);
  body(context);
  _exit(0);
}

const char *doctor_await(pid_t pid, char *words, size_t size) {
  int status = 0;
  words[0] = '\0';
  if (pid < 0 || waitpid(pid, &status, 0) != pid)
    snprintf(words, size, "no process could be started for it: %s", strerror(errno));
  else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    snprintf(words, size, "no answer within %d s", DOCTOR_LIMIT_S);
  else if (WIFSIGNALED(status))
    snprintf(words, size, "the process that tried it ended by signal %d", WTERMSIG(status));
  else if (WEXITSTATUS(status) != 0)
    snprintf(words, size, "the process that tried it ended with status %d", WEXITSTATUS(status));
  return words;
}

#define HUGE_DIR     "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define SWITCHED_OFF ", and switched off by RINGCAST_DISABLE"
#define MIB          ((int64_t)1 << 20)

/* ---- Files of the kernel --------------------------------------------------------------------- */

/* The number at the start of a file; -1 for a file without a number ("max" too). */
static int64_t read_number(const char *path) {
  char text[128], *end;
  cli_read_line(path, text, sizeof text);
  long long value = strtoll(text, &end, 10);
  if (end == text) return -1;
  return value;
}

static const char *switched(const char *feature) {
  if (rc_feature_disabled(feature)) return SWITCHED_OFF;
  return "";
}

/* Adds to a list with commas, unless the list is full. */
__attribute__((format(printf, 3, 4))) static void append(char *list, size_t size,
                                                         const char *format, ...) {
  char word[100];
  size_t used = strlen(list);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(word, sizeof word, format, arguments);
  va_end(arguments);
  if (used + strlen(word) + sizeof ", " > size) return;
  snprintf(list + used, size - used, "%s%s", used > 0 ? ", " : "", word);
}

static enum doctor_level note_if(bool is_unusual) { return is_unusual ? DOCTOR_NOTE : DOCTOR_OK; }

/* Whether the list ("cpu,cpuacct"), up to a colon, names `controller`. */
static bool names(const char *list, const char *controller) {
  while (true) {
    size_t word = strcspn(list, ",:");
    if (word == strlen(controller) && memcmp(list, controller, word) == 0) return true;
    if (list[word] != ',') return false;
    list += word + 1;
  }
}

/* The file `name` of this process's control group, in `controller`'s hierarchy (or the only one, of
 * version 2). False if there is no such file. A container often sees its own group as the root of
 * the hierarchy, whatever /proc/self/cgroup says: both are tried. */
static bool cgroup_path(const char *controller, const char *name, char *out, size_t size) {
  char line[512], group[512] = "", root[64] = "/sys/fs/cgroup";
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file && fgets(line, sizeof line, file)) {
    char *list = strchr(line, ':'), *path = NULL;
    if (list) path = strchr(list + 1, ':');
    if (!path) continue;
    path[strcspn(path, "\n")] = '\0';
    if (path == list + 1 && !*group) snprintf(group, sizeof group, "%s", path + 1);
    if (!names(list + 1, controller)) continue;
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

/* ---- A ring ---------------------------------------------------------------------------------- */

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
    doctor_add(doctor, "attach", DOCTOR_OK,
               "another process of this user has attached to that ring");
  } else {
    doctor_add(doctor, "attach", DOCTOR_PROBLEM, "another process can't attach: %s",
               *end ? end : shared->words);
    doctor_mend(doctor, "attaching opens /proc/<pid>/fd/<n> of the writer: same user, group and "
                        "capabilities, same PID namespace, /proc mounted, and a writer that is "
                        "dumpable (not set-uid, no PR_SET_DUMPABLE 0)");
    if (shared->result == -EMFILE) doctor_mend(doctor, "ulimit -n 1024");
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
         process.st_uid == geteuid() && fstatat(proc, path, &files, 0) == 0 &&
         files.st_uid != process.st_uid;
}

/* What prctl(PR_SET_DUMPABLE) and a change of the user do to attaching. */
static void probe_dumpable(struct doctor *doctor) {
  char list[96] = "";
  int64_t count = 0;
  DIR *dir = opendir("/proc");
  const int proc = dir ? dirfd(dir) : -1;
  for (struct dirent *entry; proc >= 0 && (entry = readdir(dir)) != NULL;) {
    if (!is_closed(proc, entry->d_name)) continue;
    append(list, sizeof list, "%s", entry->d_name);
    count++;
  }
  if (dir) closedir(dir);
  if (count == 0) {
    doctor_add(doctor, "dumpable", DOCTOR_OK, "all processes of this user let readers attach");
  } else {
    doctor_add(doctor, "dumpable", DOCTOR_NOTE,
               "%lld processes of this user are not dumpable, so no reader could attach to a ring "
               "of theirs: %s",
               (long long)count, list);
    doctor_mend(doctor, "of importance only if one of them is a writer: it should not set "
                        "PR_SET_DUMPABLE to 0, and set it to 1 where it changes its user");
  }
  doctor_facts(doctor, FACTS({"closed", count}));
}

static void tell_large_frames(struct doctor *doctor) {
  const struct ringcast_info *ring = &doctor->ring;
  long long kib = (long long)(ring->ring_frame >> 10), mib = (long long)(ring->max_frame >> 20);
  if (ring->spill_bytes != 0) {
    doctor_add(doctor, "large frames", DOCTOR_OK,
               "up to %lld KiB stay in that ring; larger ones, up to %lld MiB, go through spill "
               "memory, which is taken from the machine as it is needed",
               kib, mib);
  } else {
    const char *why = "it was not asked for";
    if (ring->spill_error) why = strerror(-ring->spill_error);
    const char *mend = "set RINGCAST_SPILL_BYTES, or make a larger ring (capacity)";
    if (ring->spill_error == -EFBIG) mend = "ulimit -f unlimited; or a larger ring (capacity)";
    if (ring->spill_error == -ENOMEM)
      mend = "ulimit -v unlimited; or set RINGCAST_SPILL_BYTES to less";
    doctor_add(doctor, "large frames", DOCTOR_NOTE,
               "up to %lld KiB; larger ones are refused: there is no spill memory: %s", kib, why);
    doctor_mend(doctor, "%s", mend);
  }
  doctor_facts(doctor, FACTS({"spill_bytes", (int64_t)ring->spill_bytes}));
}

/* Sends a large frame to a reader of its own, which keeps it. What ringcast_reader_retain gave, or
 * another error. */
static int keep_one(void) {
  struct ringcast_writer_options options = {
      .size = sizeof options, .capacity = 65536, .spill_bytes = 4 * (uint64_t)MIB};
  struct ringcast_reader_options keeps = {.size = sizeof keeps, .flags = RINGCAST_READER_RETAIN};
  ringcast_writer *writer = NULL;
  ringcast_reader *reader = NULL;
  ringcast_retained *kept = NULL;
  struct ringcast_frame frame;
  struct ringcast_span span;
  void *data = NULL;
  int result = ringcast_writer_create_ex(&options, &writer);
  if (result == 0)
    result = ringcast_reader_attach_ex(ringcast_writer_handle(writer), &keeps, &reader);
  if (result == 0) result = ringcast_writer_reserve(writer, (size_t)MIB, 0, &span);
  if (result == 0) memset(span.data, 'x', span.bytes);
  if (result == 0) result = ringcast_writer_commit(writer, span.bytes, 0);
  if (result == 0) result = ringcast_reader_next(reader, 0, &frame);
  if (result == 0) result = ringcast_reader_retain(reader, &frame, &kept, &data);
  if (result == 0 && data) *(char *)data = 'y'; /* the ring must not show this byte */
  if (result == 0 && *(const char *)frame.data != 'x') result = -EIO;
  ringcast_retained_release(kept);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  return result;
}

static void probe_keeping(struct doctor *doctor) {
  const char *off = switched("retain");
  int result = keep_one();
  if (result == 0)
    doctor_add(doctor, "copy-on-write", DOCTOR_OK,
               "a reader has kept a frame of 1 MiB without a copy (ringcast_reader_retain), and "
               "written to it");
  else if (result != -ENOTSUP)
    doctor_add(doctor, "copy-on-write", DOCTOR_NOTE,
               "it could not be seen whether large frames can be kept: %s", strerror(-result));
  else
    doctor_add(doctor, "copy-on-write", DOCTOR_NOTE,
               "a reader that was to keep a frame of 1 MiB had to copy it%s", off);
  if (result == -ENOTSUP && !*off)
    doctor_mend(doctor, "needs /proc with its pagemap (CONFIG_PROC_PAGE_MONITOR) that can be "
                        "opened, pages of 4 KiB, and addresses for the spill memory twice "
                        "(ulimit -v)");
  int64_t works = result == 0;
  if (result != 0 && result != -ENOTSUP) works = -1;
  doctor_facts(doctor, FACTS({"works", works}));
}

static void probe_ring(struct doctor *doctor) {
  ringcast_writer *writer;
  int64_t files = open_files();
  int result = ringcast_writer_create(&writer);
  if (result != 0) {
    doctor_add(doctor, "ring", DOCTOR_PROBLEM, "can't make a ring: %s", ringcast_last_error());
    doctor_mend(doctor,
                "the sentence says what is missing; the lines below say how much of it there is");
    return;
  }
  int64_t held = open_files() - files;
  doctor->ring.size = sizeof doctor->ring;
  doctor->can_make = ringcast_writer_info(writer, &doctor->ring) == 0;
  const struct ringcast_info *ring = &doctor->ring;
  doctor_add(doctor, "ring", DOCTOR_OK,
             "a ring with default options gets %lld MiB of memory (%s, pages of %lld KiB); its "
             "waits spin for at most %.0f us before they sleep",
             (long long)((int64_t)ring->capacity / MIB), ringcast_memory_name(ring->memory),
             (long long)(ring->page_size >> 10), (double)ring->spin_ns / 1000);
  doctor_facts(doctor, FACTS({"capacity", (int64_t)ring->capacity},
                             {"page_size", (int64_t)ring->page_size}, {"files", held}));
  tell_large_frames(doctor);
  probe_attach(doctor, ringcast_writer_handle(writer));
  probe_dumpable(doctor);
  ringcast_writer_close(writer);
  probe_keeping(doctor);
}

/* ---- Huge pages ------------------------------------------------------------------------------ */

static void probe_pool(struct doctor *doctor) {
  const struct ringcast_info *ring = &doctor->ring;
  int64_t pool = read_number(HUGE_DIR "nr_hugepages"),
          spare = read_number(HUGE_DIR "free_hugepages");
  int64_t reserved = read_number(HUGE_DIR "resv_hugepages");
  const char *off = switched("hugetlb");
  bool huge = doctor->can_make && ring->memory != RINGCAST_MEMORY_PAGES;
  long long wanted = (long long)(ring->capacity / (2 * (uint64_t)MIB));
  char gets[128] = "it could not be seen what a default ring gets, because no ring could be made";
  if (pool < 0) {
    doctor_add(doctor, "huge pages", DOCTOR_NOTE, "this kernel has no pool of 2 MiB pages%s", off);
    return;
  }
  if (reserved > 0) spare -= reserved;
  if (doctor->can_make)
    snprintf(gets, sizeof gets, "a default ring would take %lld of them, and gets %s", wanted,
             ringcast_memory_name(ring->memory));
  doctor_add(doctor, "huge pages", note_if(!huge),
             "%lld pages of 2 MiB in the pool, %lld free%s; %s", (long long)pool, (long long)spare,
             off, gets);
  if (doctor->can_make && !huge && !*off)
    doctor_mend(doctor,
                "as root: echo %lld > /proc/sys/vm/nr_hugepages (more for more rings); in a "
                "container also raise its hugetlb.2MB.max",
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
  struct ringcast_writer_options options = {
      .size = sizeof options, .memory = memory, .capacity = 2 * (uint64_t)MIB};
  ringcast_writer *writer;
  if (ringcast_writer_create_ex(&options, &writer) != 0) return false;
  ringcast_writer_close(writer);
  return true;
}

static void probe_transparent(struct doctor *doctor) {
  char text[256];
  const char *shmem =
      chosen(cli_read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", text, sizeof text));
  const char *off = switched("shmem-huge");
  const char *found = "a ring of 2 MiB that asks for them gets them (MADV_COLLAPSE)";
  int64_t works = can_make_of(RINGCAST_MEMORY_SHMEM_HUGE);
  if (!works) found = "a ring of 2 MiB that asks for them does not get them";
  if (!works && !can_make_of(RINGCAST_MEMORY_PAGES)) { /* so it is not for want of huge pages */
    found = "it could not be seen whether a ring gets them, because no ring could be made";
    works = -1;
  }
  doctor_add(doctor, "shmem huge", note_if(works != 1),
             "transparent huge pages of shared memory%s: shmem_enabled is '%s', and %s", off, shmem,
             found);
  if (works == 0 && !*off)
    doctor_mend(doctor, "needs Linux 6.1 with CONFIG_TRANSPARENT_HUGEPAGE, shmem_enabled other "
                        "than 'deny', and free memory that is not in pieces (echo 1 > "
                        "/proc/sys/vm/compact_memory)");
  doctor_facts(doctor, FACTS({"works", works}));
}

/* ---- Limits ---------------------------------------------------------------------------------- */

static int64_t limit_of(int resource) {
  struct rlimit limit;
  if (getrlimit((__rlimit_resource_t)resource, &limit) != 0) return -1;
  if (limit.rlim_cur == RLIM_INFINITY) return -1;
  return (int64_t)limit.rlim_cur;
}

static void probe_files(struct doctor *doctor) {
  int64_t limit = limit_of(RLIMIT_NOFILE), used = open_files();
  bool few = limit >= 0 && limit - used < 64;
  doctor_add(doctor, "open files", note_if(few),
             "at most %lld (ulimit -n), %lld open; each writer keeps some open ('files' of the "
             "line 'ring' in --format json)",
             (long long)limit, (long long)used);
  if (few) doctor_mend(doctor, "ulimit -n 1024");
}

static void probe_group_memory(struct doctor *doctor) {
  char path[640];
  int64_t limit = -1, used = -1,
          ring = doctor->can_make ? (int64_t)doctor->ring.capacity : 16 * MIB;
  if (cgroup_path("memory", "memory.max", path, sizeof path) ||
      cgroup_path("memory", "memory.limit_in_bytes", path, sizeof path))
    limit = read_number(path);
  if (cgroup_path("memory", "memory.current", path, sizeof path) ||
      cgroup_path("memory", "memory.usage_in_bytes", path, sizeof path))
    used = read_number(path);
  if (limit > INT64_MAX / 2) limit = -1; /* how version 1 says that there is none */
  if (limit < 0) {
    doctor_add(doctor, "container memory", DOCTOR_OK,
               "the control group sets no limit that this process can see");
  } else {
    bool tight = used >= 0 && limit - used < 4 * ring;
    doctor_add(doctor, "container memory", note_if(tight),
               "the control group allows %lld MiB, of which %lld are in use; the whole ring counts "
               "from the moment when the ring is made",
               (long long)(limit / MIB), (long long)(used / MIB));
    if (tight)
      doctor_mend(doctor,
                  "give the container more memory (docker run --memory), or make smaller rings");
  }
}

/* ---- NUMA ------------------------------------------------------------------------------------ */

static void probe_numa(struct doctor *doctor) {
  const char *off = switched("numa");
  int64_t nodes = 0;
  DIR *dir = opendir("/sys/devices/system/node");
  for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;)
    nodes += strncmp(entry->d_name, "node", 4) == 0 && entry->d_name[4] >= '0' &&
             entry->d_name[4] <= '9';
  if (dir) closedir(dir);
  if (nodes > 1) {
    doctor_add(doctor, "NUMA", DOCTOR_NOTE,
               "%lld nodes; a ring lies on the node of the CPU that makes it%s", (long long)nodes,
               off);
    doctor_mend(doctor,
                "make the ring on the node where its writer runs: numactl --cpunodebind=0 ...");
  } else {
    doctor_add(doctor, "NUMA", DOCTOR_OK, "one node, so a ring has no choice of nodes%s", off);
  }
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

static void probe_kernel(struct doctor *doctor) {
  struct utsname name;
  int major = 0, minor = 0;
  uname(&name);
  sscanf(name.release, "%d.%d", &major, &minor);
  int version = major * 1000 + minor;
  enum doctor_level level = note_if(version < 6001);
  if (version < 5001) level = DOCTOR_PROBLEM;
  doctor_add(doctor, "kernel", level,
             "%s %s on %s; 5.1 is needed to seal a ring's memory, 5.14 to fill it quickly, 6.1 for "
             "transparent huge pages",
             name.sysname, name.release, name.machine);
  if (version < 6001) doctor_mend(doctor, "a newer kernel");
  doctor_facts(doctor, FACTS({"major", major}, {"minor", minor}));
}

/* ---- Cores ----------------------------------------------------------------------------------- */

/* How many CPUs' worth of time the control group grants; INFINITY if it sets no limit. */
static double cpu_quota(void) {
  char path[640], text[64];
  double quota = -1, period = 0;
  if (cgroup_path("cpu", "cpu.max", path, sizeof path)) {
    sscanf(cli_read_line(path, text, sizeof text), "%lf %lf", &quota, &period);
  } else if (cgroup_path("cpu", "cpu.cfs_quota_us", path, sizeof path)) {
    quota = (double)read_number(path);
    if (cgroup_path("cpu", "cpu.cfs_period_us", path, sizeof path))
      period = (double)read_number(path);
  }
  if (quota > 0 && period > 0) return quota / period;
  return INFINITY;
}

static void probe_cores(struct doctor *doctor) {
  cpu_set_t allowed;
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  int usable = (int)online;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) usable = CPU_COUNT(&allowed);
  double quota = cpu_quota(), least = quota < usable ? ceil(quota) : usable;
  char limit[64] = "no quota";
  if (isfinite(quota)) snprintf(limit, sizeof limit, "a quota of %.2f CPUs", quota);
  doctor_add(doctor, "cores", note_if(least < 2),
             "%ld CPUs online, %d allowed to this process, %s: a writer and %d reader%s can spin "
             "at the same time",
             online, usable, limit, least < 2 ? 0 : (int)least - 1, (int)least == 2 ? "" : "s");
  if (least < 2)
    doctor_mend(doctor, "with one CPU every wait must sleep, which takes some 10 us a frame; allow "
                        "two or more (taskset, docker run --cpus and --cpuset-cpus)");
  doctor_facts(doctor, FACTS({"online", online}, {"allowed", usable}));
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static void probe_wait(struct doctor *doctor) {
  const char *name = "none";
#if defined(__x86_64__) || defined(__i386__)
  unsigned a, b, c, d;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d) && (c & (1u << 29))) name = "mwaitx";
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 5))) name = "umwait";
#elif defined(__aarch64__)
  if (getauxval(AT_HWCAP2) & (1ul << 31)) name = "wfet"; /* HWCAP2_WFXT */
#endif
  bool off = rc_feature_disabled("cpu_wait"), used = strcmp(name, "none") != 0 && !off;
  const char *how = "use pause instructions";
  if (off) how = "use pause instructions, as RINGCAST_DISABLE asks";
  if (used) how = "use such instructions after the first microsecond";
  doctor_add(doctor, "CPU wait", DOCTOR_OK,
             "instructions that wait at low power: %s; spinning waits %s", name, how);
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
  const char *off = switched("pidfd"), *found = error ? strerror(error) : "available";
  const char *how = "the kernel reports when a peer's process ends";
  bool used = error == 0 && !*off;
  if (!used) how = "a waiter looks in /proc, several times a second, for the peer's process";
  doctor_add(doctor, "pidfd", DOCTOR_OK, "%s%s: %s", found, off, how);
  if (error)
    doctor_mend(doctor, "Linux 5.3 or newer, and a seccomp profile that lets pidfd_open through");
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
  if (error == 0 && !has_pidfd) return ", but not used without pidfds";
  return "";
}

static void probe_io_uring(struct doctor *doctor) {
  static struct uring_probe probe;
  uint64_t params[15] = {0}; /* struct io_uring_params is 120 bytes */
  int64_t disabled = read_number("/proc/sys/kernel/io_uring_disabled");
  int fd = (int)syscall(SYS_io_uring_setup, 2, params), error = fd < 0 ? errno : 0;
  bool futex = fd >= 0 && syscall(SYS_io_uring_register, fd, REGISTER_PROBE, &probe, PROBED) == 0 &&
               probe.last_op >= OP_FUTEX_WAIT && (probe.ops[OP_FUTEX_WAIT].flags & OP_SUPPORTED);
  if (fd >= 0) close(fd);
  bool watches = pidfd_error() == 0 && !rc_feature_disabled("pidfd");
  bool used = futex && watches && RINGCAST_HAVE_LIBURING && !rc_feature_disabled("io_uring");
  const char *found = "available, without FUTEX_WAIT (Linux 6.7)";
  if (futex) found = "available, with FUTEX_WAIT";
  if (error != 0) found = strerror(error);
  doctor_add(doctor, "io_uring", DOCTOR_OK, "%s%s: %s waits behind a reader's pollable descriptor",
             found, why_no_uring(error, disabled, watches), used ? "io_uring" : "a helper thread");
  if (!futex)
    doctor_mend(doctor, "Linux 6.7 or newer, sysctl kernel.io_uring_disabled=0, and a seccomp "
                        "profile that lets io_uring_setup through");
  doctor_facts(doctor,
               FACTS({"futex_wait", futex}, {"liburing", RINGCAST_HAVE_LIBURING}, {"used", used}));
}

/* ---- The environment ------------------------------------------------------------------------- */

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
  /* Settings follow, as in RINGCAST_VLLM=1,on_death=evict. */
  size_t length = strcspn(variable, ",");
  for (size_t i = 0; i < sizeof on / sizeof *on; i++)
    if (strlen(on[i]) == length && memcmp(variable, on[i], length) == 0) return true;
  return false;
}

static void probe_environment(struct doctor *doctor) {
  char known[256] = "", unknown[192] = ""; /* with their values; the names alone */
  int64_t count = 0, switches = 0, strange = 0;
  for (char **at = environ; *at; at++) {
    int length = (int)strcspn(*at, "=");
    if (strncmp(*at, "RINGCAST_", strlen("RINGCAST_")) != 0) continue;
    if (!is_variable(*at, (size_t)length)) {
      append(unknown, sizeof unknown, "%.*s", length, *at);
      strange++;
    } else if (is_switch(*at)) {
      append(known, sizeof known, "%s (the drop-in is on)", *at);
      switches++;
    } else {
      append(known, sizeof known, "%s", *at);
      count++;
    }
  }
  if (count + switches + strange == 0) append(known, sizeof known, "no RINGCAST_ variable is set");
  const char *then = "";
  if (strange > 0) then = *known ? "; unknown to ringcast: " : "unknown to ringcast: ";
  doctor_add(doctor, "environment", note_if(count + strange > 0), "%s%s%s", known, then, unknown);
  if (count > 0)
    doctor_mend(doctor, "these variables change what is said above, or what the Python package "
                        "does; unset those that are not intended");
  else if (strange > 0)
    doctor_mend(doctor, "check the spelling of the name: an unknown variable changes nothing");
  doctor_facts(doctor, FACTS({"unknown", strange}));
}

/* Told only where there is something to tell. */
static void probe_clock(struct doctor *doctor) {
  FILE *file = fopen("/proc/self/timens_offsets", "re");
  long monotonic = 0, boottime = 0;
  if (!file) return;
  bool read = fscanf(file, "monotonic %ld %*d boottime %ld", &monotonic, &boottime) == 2;
  fclose(file);
  if (!read || (monotonic == 0 && boottime == 0)) return;
  const char *so = "how long a writer outside of it waits is not shown";
  if (boottime) so = "no ring outside of it can be attached to";
  doctor_add(doctor, "clock", DOCTOR_NOTE,
             "a time namespace moves monotonic time by %ld s and boot time by %ld s: %s", monotonic,
             boottime, so);
  doctor_mend(doctor, "writer and readers in one time namespace");
}

/* ---- All ------------------------------------------------------------------------------------- */

static void (*const checks[])(struct doctor *doctor) = {
    probe_ring,  probe_kernel,   probe_pool,        probe_transparent, probe_group_memory,
    probe_files, probe_numa,     probe_cores,       probe_wait,        probe_clock,
    probe_pidfd, probe_io_uring, doctor_check_gpus, probe_environment, NULL};

/* ---- Printing -------------------------------------------------------------------------------- */

static void print_json(const struct doctor *doctor, bool healthy) {
  struct report report = {.json = true};
  char cpu[256];
  report_open(&report, NULL, '{');
  report_string(&report, "version", ringcast_version());
  report_string(&report, "cpu", cli_cpu_model(cpu, sizeof cpu));
  report_boolean(&report, "healthy", healthy);
  report_open(&report, "lines", '[');
  for (const struct doctor_line *line = doctor->lines; line < doctor->lines + doctor->count;
       line++) {
    report_open(&report, NULL, '{');
    report_string(&report, "name", line->name);
    report_string(&report, "level", levels[line->level]);
    report_string(&report, "found", line->found);
    report_string(&report, "mend", line->mend);
    report_open(&report, "facts", '{');
    for (const struct doctor_fact *fact = line->facts; fact->key; fact++)
      report_integer(&report, fact->key, fact->value);
    report_close(&report);
    report_close(&report);
  }
  report_close(&report);
  report_close(&report);
}

static void print_text(const struct doctor *doctor, bool healthy) {
  enum { INDENT = 27, WIDTH = INDENT + 90 };
  char text[512];
  printf("ringcast %s on %s\n\n", ringcast_version(), cli_cpu_model(text, sizeof text));
  for (const struct doctor_line *line = doctor->lines; line < doctor->lines + doctor->count;
       line++) {
    snprintf(text, sizeof text, "%-8s  %-16s %s", levels[line->level], line->name, line->found);
    text_wrap(text, WIDTH, INDENT, stdout);
    snprintf(text, sizeof text, "%*sto mend: %s", INDENT, "", line->mend);
    if (*line->mend) text_wrap(text, WIDTH, INDENT, stdout);
  }
  if (!doctor->can_make) puts("\nRings can't be used here: see the problems above.");
  else if (healthy) puts("\nRings can be made here.");
  else puts("\nRings can be made here, but see the problems above.");
}

/* ---- Command line ---------------------------------------------------------------------------- */

int doctor_main(int argc, char **argv) {
  static struct doctor doctor;
  bool json = false, healthy = true;
  const struct cli_option options[] = {{"format", parse_format, &json, PARSE_FORMAT, false}};
  int result = cli_parse(argc, argv, help, options, 1, NULL, 0);
  if (result != CLI_GO_ON) return result;
  for (size_t i = 0; checks[i]; i++) checks[i](&doctor);
  for (size_t i = 0; i < doctor.count; i++) healthy &= doctor.lines[i].level != DOCTOR_PROBLEM;
  if (json) print_json(&doctor, healthy);
  else print_text(&doctor, healthy);
  return cli_finish(stdout, healthy ? CLI_OK : CLI_FAILED);
}
