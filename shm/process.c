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
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/environment.h"
#include "shm/os.h"

/* Why /proc/<pid>/stat can't be opened. Only ESRCH from the kernel counts as death: in a chroot, or with /proc hidden,
 * the file is missing although the process lives. */
static int why_missing(int32_t pid, int error) {
  if (error != ENOENT) return -error;
  return kill(pid, 0) != 0 && errno == ESRCH ? -ENOENT : -EIO;
}

/* Reads the state and the start time. The program's name, in parentheses, may contain blanks and parentheses, so fields
 * are counted from the last closing parenthesis. A thread group leader that has exited is a zombie (Z) while further
 * threads run; the number of threads is then above 1. */
static int read_stat(int32_t pid, enum rc_process_state *out, uint64_t *start) {
  char path[40], text[1024], state;
  if (pid <= 0) return -ENOENT; /* not a pid: kill(2) would address a process group */
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return why_missing(pid, errno);
  ssize_t bytes = read(fd, text, sizeof text - 1);
  int error = errno;
  close(fd);
  if (bytes <= 0) return bytes < 0 && error == ESRCH ? -ENOENT : -EIO;
  text[bytes] = '\0';
  const char *after = strrchr(text, ')');
  unsigned long long ticks;
  long threads;
  if (!after || sscanf(after + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
                       &state, &threads, &ticks) != 3)
    return -EIO;
  bool ended = state == 'X' || state == 'x' || (state == 'Z' && threads <= 1);
  *out = ended ? RC_PROCESS_ENDED : state == 'T' || state == 't' ? RC_PROCESS_STOPPED : RC_PROCESS_RUNNING;
  *start = ticks;
  return 0;
}

int rc_process_find(int32_t pid, struct rc_process *out) {
  enum rc_process_state state;
  uint64_t start;
  int result = read_stat(pid, &state, &start);
  if (result == 0 && state == RC_PROCESS_ENDED) result = -ENOENT;
  if (result == 0) *out = (struct rc_process){.pid = pid, .start = start};
  return result;
}

int rc_process_self(struct rc_process *out) { return rc_process_find(getpid(), out); }

const char *rc_process_hint(int code) {
  switch (code) {
  case -EIO:
  case -ENOENT:
  case -ENOTDIR:
  case -EACCES:
  case -EPERM: return "; ringcast needs /proc";
  case -EMFILE: return "; raise the limit of open files (ulimit -n)";
  default: return "";
  }
}

enum rc_process_state rc_process_look(int32_t pid, uint64_t start_bits, uint64_t mask) {
  enum rc_process_state state = RC_PROCESS_RUNNING;
  uint64_t start = 0;
  int result = read_stat(pid, &state, &start);
  if (result == -ENOENT) return RC_PROCESS_ENDED;
  if (result != 0) return RC_PROCESS_RUNNING;
  return (start & mask) == start_bits ? state : RC_PROCESS_ENDED;
}

const char *rc_process_in_words(const struct rc_process *process) {
  static const char *const words[] = {"dead", "alive", "stopped by a signal or a debugger"};
  return words[rc_process_look(process->pid, process->start, UINT64_MAX)];
}

/* ---- Watching --------------------------------------------------------------------------------------------------- */

void rc_watch_init(struct rc_watch *watch, int32_t pid, uint64_t start_bits, uint64_t mask) {
  *watch = (struct rc_watch){.pid = pid, .start = start_bits, .mask = mask, .fd = RC_WATCH_NEW};
}

void rc_watch_close(struct rc_watch *watch) {
  if (watch->fd >= 0) close(watch->fd);
  watch->fd = RC_WATCH_NEW;
}

/* Opens the pidfd first and then checks the start time, because a later process may have the pid. If /proc does not
 * show the process, the pidfd may belong to a later process: the end is then reported late, but never falsely. */
static int open_watch(const struct rc_watch *watch) {
  int fd = rc_feature_disabled("pidfd") ? -ENOSYS : rc_os.pidfd_open(watch->pid);
  if (rc_process_is_alive_by(watch->pid, watch->start, watch->mask)) {
    bool short_of = fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM; /* passes; /proc can't be read meanwhile */
    return fd >= 0 ? fd : short_of ? RC_WATCH_NEW : RC_WATCH_REFUSED;
  }
  if (fd >= 0) close(fd);
  return RC_WATCH_ENDED;
}

int rc_watch_fd(struct rc_watch *watch) {
  if (watch->fd == RC_WATCH_NEW) watch->fd = open_watch(watch);
  return watch->fd;
}

/* Some programs close all unknown descriptors, for example to become a daemon. A process must not count as dead then:
 * a readable descriptor is checked to be a pidfd. If not, the number belongs to the program now and is not closed. */
bool rc_watch_is_alive(struct rc_watch *watch) {
  int fd = rc_watch_fd(watch);
  if (fd >= 0) {
    struct pollfd look = {.fd = fd, .events = POLLIN};
    if (poll(&look, 1, 0) <= 0) return true;
    bool is_pidfd = look.revents != POLLNVAL && (syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0 || errno != EBADF);
    watch->fd = is_pidfd ? fd : RC_WATCH_REFUSED;
    if (watch->fd == fd) return false;
  }
  return watch->fd != RC_WATCH_ENDED && rc_process_is_alive_by(watch->pid, watch->start, watch->mask);
}

/* ---- Threads ---------------------------------------------------------------------------------------------------- */

int rc_thread_start(void *(*body)(void *), void *context, pthread_t *out) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int result = -pthread_create(out, NULL, body, context);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return result;
}

/* ---- Forks ------------------------------------------------------------------------------------------------------ */

uint32_t rc_forks_seen;

static void count_fork(void) { rc_forks_seen++; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }
