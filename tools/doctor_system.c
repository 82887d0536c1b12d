/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel and the CPU: cores, waiting, io_uring, sandboxes; the environment. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "tools/cli.h"
#include "tools/doctor.h"

/* ---- Kernel ----------------------------------------------------------------------------------------------------- */

void doctor_probe_kernel(struct doctor *doctor) {
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
  if (doctor_cgroup_path("cpu", "cpu.max", path, sizeof path))
    return sscanf(cli_read_line(path, text, sizeof text), "%lf %lf", &quota, &period) == 2 && period > 0
               ? quota / period
               : INFINITY;
  if (!doctor_cgroup_path("cpu", "cpu.cfs_quota_us", path, sizeof path)) return INFINITY;
  quota = (double)doctor_read_number(path);
  if (!doctor_cgroup_path("cpu", "cpu.cfs_period_us", path, sizeof path)) return INFINITY;
  period = (double)doctor_read_number(path);
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
  bool off = cli_is_disabled("cpu_wait"), used = (waitpkg || monitorx || wfet) && !off;
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
  bool off = cli_is_disabled("pidfd"), used = error == 0 && !off;
  doctor_add(doctor, "pidfd", DOCTOR_OK, "%s%s: %s", error ? strerror(error) : "available",
             off ? DOCTOR_SWITCHED_OFF : "",
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
  if (cli_is_disabled("io_uring")) return DOCTOR_SWITCHED_OFF;
  if (error != 0 && disabled > 0) return ", kernel.io_uring_disabled is set";
  if (error == EPERM) return ", perhaps a container's seccomp profile";
  if (!RINGCAST_HAVE_LIBURING) return ", and liburing is not built in";
  return error == 0 && !has_pidfd ? ", but not used without pidfds" : "";
}

static void probe_io_uring(struct doctor *doctor) {
  static struct uring_probe probe;
  uint64_t params[15] = {0}; /* struct io_uring_params is 120 bytes */
  int64_t disabled = doctor_read_number("/proc/sys/kernel/io_uring_disabled");
  int fd = (int)syscall(SYS_io_uring_setup, 2, params), error = errno;
  bool futex = fd >= 0 && syscall(SYS_io_uring_register, fd, REGISTER_PROBE, &probe, PROBED) == 0 &&
               probe.last_op >= OP_FUTEX_WAIT && (probe.ops[OP_FUTEX_WAIT].flags & OP_SUPPORTED);
  if (fd >= 0) close(fd);
  bool watches = pidfd_error() == 0 && !cli_is_disabled("pidfd");
  bool used = futex && watches && RINGCAST_HAVE_LIBURING && !cli_is_disabled("io_uring");
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
      "RINGCAST_MEMORY",  "RINGCAST_SPIN_US",        "RINGCAST_SPILL_BYTES",  "RINGCAST_DISABLE", "RINGCAST_CAPACITY",
      "RINGCAST_AHEAD",   "RINGCAST_GPU_POOL_BYTES", "RINGCAST_ALLOW_PICKLE", "RINGCAST_VLLM",    "RINGCAST_SGLANG",
      "RINGCAST_CURVE",   "RINGCAST_HEARTBEAT",      "RINGCAST_WAIT",         "RINGCAST_CLASSES", "RINGCAST_TRACE",
      "RINGCAST_PROFILE", "RINGCAST_PROFILE_STEP",   "RINGCAST_PROFILE_FIRST"};
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

void doctor_probe_environment(struct doctor *doctor) {
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

void doctor_probe_system(struct doctor *doctor) {
  probe_cores(doctor);
  probe_wait(doctor);
  probe_clock(doctor);
  probe_pidfd(doctor);
  probe_io_uring(doctor);
}
