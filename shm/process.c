/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/options.h"
#include "shm/os.h"

/* Why /proc/<pid>/stat can't be opened. Only ESRCH from the kernel counts as death: in a chroot, or
 * with /proc hidden, the file is missing although the process lives. */
static int why_missing(int32_t pid, int error) {
  if (error != ENOENT) return -error;
  return kill(pid, 0) != 0 && errno == ESRCH ? -ENOENT : -EIO;
}

/* The descriptor of /proc/<pid>/stat, which shows this process and no later one with the pid. */
static int open_stat(int32_t pid) {
  char path[40];
  if (pid <= 0) return -ENOENT; /* not a pid: kill(2) would address a process group */
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = rc_fd_above_2(open(path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return why_missing(pid, -fd);
  return fd;
}

/* Reads the state and the start time. The program's name, in parentheses, may contain blanks and
 * parentheses, so fields are counted from the last closing parenthesis. A thread group leader that
 * has exited is a zombie (Z) while further threads run; the number of threads is then above 1. */
static int read_stat(int fd, enum rc_process_state *out, uint64_t *start) {
  char text[1024], state;
  ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
  if (bytes < 0 && errno == ESRCH) return -ENOENT;
  if (bytes <= 0) return -EIO;
  text[bytes] = '\0';
  const char *after = strrchr(text, ')');
  unsigned long long ticks;
  long threads;
  if (!after) return -EIO;
  int read = sscanf(after + 1,
                    " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d "
                    "%llu",
                    &state, &threads, &ticks);
  if (read != 3) return -EIO;
  *out = RC_PROCESS_RUNNING;
  if (state == 'T' || state == 't') *out = RC_PROCESS_STOPPED;
  if (state == 'X' || state == 'x') *out = RC_PROCESS_ENDED;
  if (state == 'Z' && threads <= 1) *out = RC_PROCESS_ENDED;
  *start = ticks;
  return 0;
}

static int find(int32_t pid, enum rc_process_state *state, uint64_t *start) {
  int fd = open_stat(pid);
  if (fd < 0) return fd;
  int result = read_stat(fd, state, start);
  close(fd);
  return result;
}

int rc_process_find(int32_t pid, struct rc_process *out) {
  enum rc_process_state state;
  uint64_t start;
  int result = find(pid, &state, &start);
  if (result != 0) return result;
  if (state == RC_PROCESS_ENDED) return -ENOENT;
  *out = (struct rc_process){.pid = pid, .start = start};
  return 0;
}

int rc_process_self(struct rc_process *out) { return rc_process_find(getpid(), out); }

bool rc_process_has_other_clock(int32_t pid) {
  char path[40];
  struct stat ours, theirs;
  snprintf(path, sizeof path, "/proc/%d/ns/time", pid);
  if (stat("/proc/self/ns/time", &ours) != 0 || stat(path, &theirs) != 0) return false;
  return ours.st_ino != theirs.st_ino;
}

const char *rc_process_hint(int code) {
  switch (code) {
  case -EIO:
  case -ENOENT:
  case -ENOTDIR:
  case -EACCES:
  case -EPERM: return "; ringcast needs /proc";
  case -ENFILE:
  case -EMFILE: return "; raise the limit of open files (ulimit -n)";
  default: return "";
  }
}

/* Asks for a byte at `from`. -ESRCH: the process has no memory; the main thread has exited. */
static int read_byte(int32_t pid, void *from) {
  char byte;
  const struct iovec here = {&byte, 1}, there = {from, 1};
  if (process_vm_readv(pid, &here, 1, &there, 1, 0) < 0) return -errno;
  return 0;
}

/* Whether all threads have ended of a process whose main thread has. -EIO: nothing tells. The links
 * of the folder "task" are those of an empty folder, 2, and one for each thread. */
static int have_all_ended(int32_t pid) {
  char path[40];
  struct stat folder;
  siginfo_t child = {0};
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  if (stat(path, &folder) == 0 && folder.st_nlink > 2) return folder.st_nlink <= 3;
  if (waitid(P_PID, (id_t)pid, &child, WEXITED | WNOHANG | WNOWAIT) != 0) return -EIO;
  return child.si_pid == pid;
}

/* /proc/<pid>/stat can't be read, because of `error`. What tells without a descriptor: a signal
 * finds no process, or the process has no memory. The first look, at this process, shows whether
 * the call is allowed at all. */
static int look_without_proc(int32_t pid, int error) {
  char byte = 0;
  const bool is_short = error == -EMFILE || error == -ENFILE || error == -ENOMEM;
  const int unknown = is_short ? error : -EIO;
  if (kill(pid, 0) != 0 && errno == ESRCH) return RC_PROCESS_ENDED;
  if (read_byte(getpid(), &byte) != 0) return unknown;
  if (read_byte(pid, NULL) != -ESRCH) return RC_PROCESS_RUNNING;
  int ended = have_all_ended(pid);
  if (ended < 0) return unknown;
  return ended ? RC_PROCESS_ENDED : RC_PROCESS_RUNNING;
}

int rc_process_look(int32_t pid, uint64_t start_bits, uint64_t mask) {
  enum rc_process_state state;
  uint64_t start;
  int result = find(pid, &state, &start);
  if (result == -ENOENT) return RC_PROCESS_ENDED;
  if (result != 0) return look_without_proc(pid, result);
  if ((start & mask) != start_bits) return RC_PROCESS_ENDED; /* a later process */
  return (int)state;
}

const char *rc_process_in_words(const struct rc_process *process) {
  static const char *const words[] = {"dead", "alive", "stopped by a signal or a debugger"};
  int state = rc_process_look(process->pid, process->start, UINT64_MAX);
  return state < 0 ? "in an unknown state" : words[state];
}

/* ---- Watching -------------------------------------------------------------------------------- */

void rc_watch_init(struct rc_watch *watch, int32_t pid, uint64_t start_bits, uint64_t mask) {
  *watch = (struct rc_watch){.pid = pid, .start = start_bits, .mask = mask, .fd = -1};
}

void rc_watch_close(struct rc_watch *watch) {
  rc_fd_close(watch->fd, &watch->id);
  watch->fd = -1;
}

static void keep(struct rc_watch *watch, int fd, bool is_pidfd) {
  watch->fd = fd;
  watch->is_pidfd = is_pidfd;
  rc_fd_identify(fd, &watch->id);
}

/* The file of /proc shows the right process; while it does, a pidfd that was opened later is of the
 * same process. If /proc does not show the process, the pidfd may be a later process's: the end is
 * then reported late, never falsely. */
static void open_watch(struct rc_watch *watch) {
  enum rc_process_state state;
  uint64_t start;
  int fd = -1, file = open_stat(watch->pid), result = file;
  if (file >= 0) result = read_stat(file, &state, &start);
  if (result != -ENOENT && !rc_feature_disabled("pidfd")) fd = rc_os.pidfd_open(watch->pid);
  if (result == 0 && fd >= 0) result = read_stat(file, &state, &start);
  watch->ended = result == -ENOENT;
  if (result == 0 && state == RC_PROCESS_ENDED) watch->ended = true;
  if (result == 0 && (start & watch->mask) != watch->start) watch->ended = true;
  const bool keeps_pidfd = !watch->ended && fd >= 0;
  const bool keeps_file = !watch->ended && fd < 0 && result == 0;
  if (fd >= 0 && !keeps_pidfd) close(fd);
  if (file >= 0 && !keeps_file) close(file);
  if (keeps_pidfd) keep(watch, fd, true);
  if (keeps_file) keep(watch, file, false);
}

static bool must_open(struct rc_watch *watch) {
  if (!rc_fd_is(watch->fd, &watch->id)) watch->fd = -1;
  return watch->fd < 0 && !watch->ended;
}

int rc_watch_fd(struct rc_watch *watch) {
  if (must_open(watch)) open_watch(watch);
  return watch->is_pidfd ? watch->fd : -1;
}

/* Where RLIMIT_NOFILE is 0, poll refuses even one descriptor, and select does not. */
static int look_at_pidfd(int fd) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  int ready = poll(&one, 1, 0);
  if (ready < 0 && fd < FD_SETSIZE) {
    struct timeval at_once = {0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    ready = select(fd + 1, &set, NULL, NULL, &at_once);
  }
  if (ready < 0) return -errno;
  return ready > 0 ? RC_PROCESS_ENDED : RC_PROCESS_RUNNING;
}

static int look_at_stat(int fd) {
  enum rc_process_state state;
  uint64_t start;
  int result = read_stat(fd, &state, &start);
  if (result == -ENOENT) return RC_PROCESS_ENDED;
  if (result != 0) return result;
  return (int)state;
}

int rc_watch_look(struct rc_watch *watch) {
  if (must_open(watch)) open_watch(watch);
  if (watch->ended) return RC_PROCESS_ENDED;
  int state = -EBADF;
  if (watch->fd >= 0) state = watch->is_pidfd ? look_at_pidfd(watch->fd) : look_at_stat(watch->fd);
  if (state < 0) state = rc_process_look(watch->pid, watch->start, watch->mask);
  watch->unknown = state < 0 ? state : 0;
  return state;
}

/* ---- Threads --------------------------------------------------------------------------------- */

int rc_thread_start(void *(*body)(void *), void *context, pthread_t *out) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int result = -pthread_create(out, NULL, body, context);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return result;
}

/* ---- Forks ----------------------------------------------------------------------------------- */

uint32_t rc_forks_seen;

static void count_fork(void) { rc_forks_seen++; }

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(NULL, NULL, count_fork);
}
