/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping, parked and in slices: either way the event, a death, cancelling, a signal and the time limit end it. */
#define _GNU_SOURCE
#include "shm/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "ringcast/ringcast.h"
#include "shm/fence.h"
#include "shm/os.h"
#include "shm/uring.h"
#include "tests/support/children.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"
#include "tests/support/switches.h"

enum { PARKED, SLICED, WAYS, PARKED_UNLESS_IT_WATCHES };

static int uring_result; /* found out before any test, in the process above theirs */

static struct rc_os real;

/* Whether the test can run this way. */
static bool choose(int way, const char *test) {
  real = rc_os;
  if (way == SLICED) {
    disable_too("io_uring");
    return true;
  }
  char reason[100] = "";
  if (uring_result != 0) snprintf(reason, sizeof reason, "no io_uring: %s", strerror(-uring_result));
  else if (!rc_fence_register()) snprintf(reason, sizeof reason, "no membarrier, so nobody parks");
  else if (way == PARKED && !has_pidfds()) snprintf(reason, sizeof reason, "no pidfds, so who watches does not park");
  if (*reason) tell_skipped(test, reason);
  return !*reason;
}

struct target {
  struct rc_event event;
  struct rc_crowd crowd;
  struct rc_waiter waiter;
  struct rc_watch watch;
  _Atomic uint64_t value;
  uint64_t wanted;
  int checks;
};

static int poll_target(void *context) {
  struct target *target = context;
  return rc_load_acquire(&target->value) >= target->wanted ? 0 : -EAGAIN;
}

static int check_target(void *context) {
  struct target *target = context;
  target->checks++;
  return target->watch.pid == 0 || rc_watch_is_alive(&target->watch) ? -EAGAIN : -EOWNERDEAD;
}

static struct rc_watch *watch_target(void *context) {
  struct rc_watch *watch = &((struct target *)context)->watch;
  return watch->pid ? watch : NULL;
}

/* The last wait counts as long, so that the next one parks at once. */
static int wait_for(struct target *target, int64_t timeout_ns) {
  const struct rc_wait how = {
      .poll = poll_target, .check = check_target, .whom = watch_target, .context = target, .sole = true};
  target->waiter.waited_ns = RC_UNPARKED_NS;
  return rc_wait(&target->waiter, &how, timeout_ns);
}

/* Shared with children. peer 0: nobody. */
static struct target *make(pid_t peer) {
  struct target *target = mmap(NULL, sizeof *target, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  struct rc_process process = {0};
  ck_assert_ptr_ne(target, MAP_FAILED);
  target->wanted = 1;
  if (peer) ck_assert_int_eq(rc_process_find(peer, &process), 0);
  rc_watch_init(&target->watch, process.pid, process.start, UINT64_MAX);
  ck_assert_int_eq(rc_waiter_init(&target->waiter, &target->event, &target->crowd, -1), 0);
  if (!rc_fence_register()) rc_event_fence(&target->event); /* for those who will signal it */
  return target;
}

static void destroy(struct target *target) {
  rc_waiter_destroy(&target->waiter);
  rc_watch_close(&target->watch);
  munmap(target, sizeof *target);
}

#define must_have_slept(target, way) \
  ck_assert_uint_eq((target)->waiter.waiting, (way) == PARKED ? RINGCAST_WAIT_URING : RINGCAST_WAIT_FUTEX)

static void signal_value(struct target *target, uint64_t value) {
  rc_store_release(&target->value, value);
  rc_wake(&target->event);
}

/* ---- Once the sleeper has looked for the last time, and is about to sleep, something happens, once. ---------------- */

static void (*happening)(void *context);
static void *of_it;

static void happen(void) {
  void (*what)(void *) = happening;
  happening = NULL;
  if (what) what(of_it);
}

static int happen_and_poll(struct pollfd *files, unsigned count, int64_t timeout_ns) {
  if (timeout_ns > 0) happen();
  return real.poll(files, count, timeout_ns);
}

static int happen_and_wait(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  happen();
  return real.futex_wait(word, value, timeout_ns);
}

static int wait_until_it_happens(struct target *target, int64_t timeout_ns, void (*what)(void *), void *context) {
  rc_os.poll = happen_and_poll;
  rc_os.futex_wait = happen_and_wait;
  happening = what;
  of_it = context;
  int result = wait_for(target, timeout_ns);
  ck_assert(!happening);
  rc_os = real;
  return result;
}

static void live_for_ever(void *context) {
  (void)context;
  for (;;) pause();
}

static void do_nothing(void *context) { (void)context; }

static void give(void *context) { signal_value(context, 1); }

START_TEST(the_event_ends_it) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(getppid());
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, give, target), 0);
  must_have_slept(target, _i);
  ck_assert_uint_eq(target->waiter.sleeps, 1);
  destroy(target);
}
END_TEST

/* ---- Death ------------------------------------------------------------------------------------------------------ */

static void kill_peer(void *context) { ck_assert_int_eq(kill(*(pid_t *)context, SIGKILL), 0); }

static void kill_and_wait(void *context) { kill_child(*(pid_t *)context); }

START_TEST(the_death_of_the_peer_ends_it) {
  if (!choose(_i, __func__)) return;
  for (int waited_for = 0; waited_for < 2; waited_for++) {
    pid_t peer = start_child(live_for_ever, NULL);
    struct target *target = make(peer);
    void (*what)(void *) = waited_for ? kill_and_wait : kill_peer;
    ck_assert_int_eq(wait_for(target, 1000), -ETIMEDOUT); /* it has just been seen alive */
    uint64_t sleeps = target->waiter.sleeps;
    ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, what, &peer), -EOWNERDEAD);
    must_have_slept(target, _i);
    if (_i == PARKED) ck_assert_uint_eq(target->waiter.sleeps - sleeps, 1); /* told, not found out after a slice */
    ck_assert_int_eq(wait_for(target, RINGCAST_FOREVER), -EOWNERDEAD); /* and again */
    if (!waited_for) ck_assert_int_eq(waitpid(peer, NULL, 0), peer);
    destroy(target);
  }
}
END_TEST

static void kill_then_give(void *context) {
  struct target *target = context;
  kill_child(target->watch.pid);
  rc_store_release(&target->value, 1); /* without a signal, as if it had died on the way to it */
}

START_TEST(what_it_gave_before_it_died_is_had) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(start_child(live_for_ever, NULL));
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, kill_then_give, target), 0);
  destroy(target);
}
END_TEST

static void stop_peer(void *context) {
  pid_t peer = *(pid_t *)context;
  ck_assert_int_eq(kill(peer, SIGSTOP), 0);
  ck_assert_int_eq(waitpid(peer, NULL, WUNTRACED), peer);
}

START_TEST(a_stopped_peer_does_not_end_it) {
  if (!choose(_i, __func__)) return;
  pid_t peer = start_child(live_for_ever, NULL);
  struct target *target = make(peer);
  ck_assert_int_eq(wait_until_it_happens(target, 120000000, stop_peer, &peer), -ETIMEDOUT);
  kill_child(peer);
  destroy(target);
}
END_TEST

/* ---- Cancelling, signals, being stopped --------------------------------------------------------------------------- */

static void *cancel(void *context) {
  rc_waiter_cancel(&((struct target *)context)->waiter);
  return NULL;
}

static void cancel_elsewhere(void *context) {
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, cancel, context), 0);
  pthread_join(thread, NULL);
}

START_TEST(cancelling_ends_it) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(getppid());
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, cancel_elsewhere, target), -ECANCELED);
  must_have_slept(target, _i);
  destroy(target);
}
END_TEST

static int wake_nobody(_Atomic uint32_t *word, int count) {
  (void)word, (void)count;
  return 0;
}

START_TEST(a_canceller_that_is_killed_on_the_way_costs_others_no_wake_up) {
  choose(SLICED, __func__);
  struct target *target = make(0);
  uint32_t value = rc_event_prepare(&target->event); /* another waiter, asleep on this from here on */
  rc_os.futex_wake = wake_nobody;                    /* as far as it comes */
  rc_waiter_cancel(&target->waiter);
  rc_os = real;
  ck_assert_uint_ne(target->event.word, value);
  ck_assert(rc_event_is_asleep(&target->event));
  ck_assert(rc_wake(&target->event));
}
END_TEST

static _Atomic bool over;
static pthread_t interrupter;

/* Until it is over: the first ones may come before the sleep. */
static void *interrupt(void *context) {
  pthread_t sleeper = *(pthread_t *)context;
  while (!rc_load_acquire(&over)) {
    pthread_kill(sleeper, SIGUSR1);
    sched_yield();
  }
  return NULL;
}

static void start_interrupting(void *context) {
  ck_assert_int_eq(pthread_create(&interrupter, NULL, interrupt, context), 0);
}

static void note_signal(int number) { (void)number; }

START_TEST(a_signal_handler_ends_it_also_one_with_restart) {
  if (!choose(_i % WAYS, __func__)) return;
  struct target *target = make(getppid());
  pthread_t self = pthread_self();
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = note_signal, .sa_flags = _i / WAYS ? SA_RESTART : 0}, NULL);
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, start_interrupting, &self), -EINTR);
  rc_store_release(&over, true);
  pthread_join(interrupter, NULL);
  must_have_slept(target, _i % WAYS);
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, give, target), 0); /* and nothing is lost */
  destroy(target);
}
END_TEST

static char state_of(pid_t pid) {
  char path[40], text[256] = "";
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "re");
  child_must(fgets(text, sizeof text, file));
  fclose(file);
  return strrchr(text, ')')[2];
}

/* Once the parent sleeps it is stopped, continued, and, when it sleeps again, given what it waits for. */
static void stop_parent_and_go_on(void *context) {
  pid_t parent = getppid();
  while (state_of(parent) != 'S') sched_yield();
  child_must(kill(parent, SIGSTOP) == 0);
  while (state_of(parent) != 'T') sched_yield();
  child_must(kill(parent, SIGCONT) == 0);
  while (state_of(parent) == 'T') sched_yield();
  while (state_of(parent) != 'S') sched_yield();
  signal_value(context, 1);
}

static void start_stopper(void *context) { start_child(stop_parent_and_go_on, context); }

START_TEST(being_stopped_and_continued_does_not_end_it) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(getppid());
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, start_stopper, target), 0);
  must_have_slept(target, _i);
  if (_i == PARKED) ck_assert_uint_eq(target->waiter.sleeps, 1);
  int status;
  ck_assert_int_gt(wait(&status), 0);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  destroy(target);
}
END_TEST

/* ---- Time ------------------------------------------------------------------------------------------------------- */

START_TEST(it_lasts_as_long_as_it_may_and_sleeps_no_more_than_it_must) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(getppid());
  const int64_t timeouts[] = {1, 1000, 1000000, 3000000, 20000000};
  for (int i = 0; i < 100; i++) {
    int64_t timeout_ns = timeouts[i % 5], began = rc_now_ns();
    uint64_t sleeps = target->waiter.sleeps;
    ck_assert_int_eq(wait_for(target, timeout_ns), -ETIMEDOUT);
    ck_assert_int_ge(rc_now_ns() - began, timeout_ns);
    ck_assert_uint_le(target->waiter.sleeps - sleeps, 1); /* what an earlier sleep left behind wakes nobody */
  }
  must_have_slept(target, _i);
  ck_assert_int_le(rc_os.futex_wake(&target->event.word, INT_MAX), 1); /* the last sleep's wait at most is left in the kernel */
  destroy(target);
}
END_TEST

START_TEST(parked_it_sleeps_once_however_long_unless_it_may_miss_a_killed_signaller) {
  if (!choose(PARKED, __func__)) return;
  struct target *target = make(getppid());
  ck_assert_int_eq(wait_for(target, 4 * RC_SLICE_NS), -ETIMEDOUT);
  ck_assert_uint_eq(target->waiter.sleeps, 1);
  target->watch.pid = 0; /* nobody's death is told: a slice ends each sleep */
  uint64_t sleeps = target->waiter.sleeps;
  ck_assert_int_eq(wait_for(target, RC_LONG_SLICE_NS + RC_SLICE_NS), -ETIMEDOUT);
  ck_assert_uint_ge(target->waiter.sleeps - sleeps, 2);
  ck_assert_uint_eq(target->waiter.waiting, RINGCAST_WAIT_URING);
  destroy(target);
}
END_TEST

START_TEST(who_waits_briefly_makes_no_io_uring) {
  if (!choose(PARKED, __func__)) return;
  struct target *target = make(getppid());
  const struct rc_wait how = {
      .poll = poll_target, .check = check_target, .whom = watch_target, .context = target, .sole = true};
  int descriptors = open_descriptors();
  for (int i = 0; i < 10; i++) {
    ck_assert_int_eq(rc_wait(&target->waiter, &how, 1000), -ETIMEDOUT);
    target->waiter.waited_ns = 1000; /* however the machine has held it up */
  }
  ck_assert_ptr_null(target->waiter.park);
  ck_assert_uint_eq(target->waiter.waiting, RINGCAST_WAIT_NONE);
  ck_assert_int_le(open_descriptors(), descriptors + 1); /* the pidfd */
  ck_assert_int_eq(rc_wait(&target->waiter, &how, 3 * RC_UNPARKED_NS), -ETIMEDOUT);
  ck_assert_uint_eq(target->waiter.waiting, RINGCAST_WAIT_URING);
  destroy(target);
  ck_assert_int_eq(open_descriptors(), descriptors);
}
END_TEST

/* ---- No wake-up is lost: two threads hand a number to and fro, and each can only go on when woken ----------------- */

enum { HANDOFFS = 10000 };

static struct target *to, *fro;

static int wait_without_end(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)timeout_ns;
  return real.futex_wait(word, value, (int64_t)1000 * 1000000000);
}

static void *answer(void *nothing) {
  for (uint64_t i = 1; i <= HANDOFFS; i++) {
    to->wanted = i;
    if (wait_for(to, RINGCAST_FOREVER) != 0) abort();
    signal_value(fro, i);
  }
  return nothing;
}

START_TEST(no_wake_up_is_lost) {
  if (!choose(_i, __func__)) return;
  to = make(getppid());
  fro = make(getppid());
  rc_os.futex_wait = wait_without_end;
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, answer, NULL), 0);
  for (uint64_t i = 1; i <= HANDOFFS; i++) {
    signal_value(to, i);
    fro->wanted = i;
    ck_assert_int_eq(wait_for(fro, RINGCAST_FOREVER), 0);
  }
  pthread_join(thread, NULL);
  must_have_slept(to, _i);
  must_have_slept(fro, _i);
  destroy(to);
  destroy(fro);
}
END_TEST

START_TEST(the_end_of_an_earlier_wait_is_not_taken_for_that_of_a_later_one) {
  if (!choose(PARKED_UNLESS_IT_WATCHES, __func__)) return;
  struct rc_uring *uring;
  _Atomic uint32_t one = 0, two = 0;
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ck_assert_int_eq(rc_uring_open(fd, &uring), 0);
  for (uint32_t i = 0; i < 100; i++) {
    ck_assert_int_eq(rc_uring_wait(uring, &one, i), 0);
    rc_store_release(&one, i + 1);
    ck_assert_int_eq(rc_os.futex_wake(&one, 1), 1);
    ck_assert_int_eq(rc_uring_wait(uring, &two, 0), 0); /* here the first one's end comes in */
    ck_assert_int_eq(rc_uring_cancel(uring), 0);
  }
  ck_assert_int_eq(rc_os.futex_wake(&two, 1000), 0);
  rc_uring_close(uring);
  close(fd);
}
END_TEST

/* A signaller may come to its wake only when the sleeper has announced itself anew: then the word does not change. */
static void *wake_late(void *nothing) {
  while (!rc_load_acquire(&over)) {
    rc_os.futex_wake(&to->event.word, INT_MAX);
    rc_os.futex_wake(&fro->event.word, INT_MAX);
  }
  return nothing;
}

START_TEST(a_late_wake_up_takes_no_later_one_with_it) {
  if (!choose(_i, __func__)) return;
  to = make(getppid());
  fro = make(getppid());
  rc_os.futex_wait = wait_without_end;
  pthread_t thread, late;
  ck_assert_int_eq(pthread_create(&late, NULL, wake_late, NULL), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, answer, NULL), 0);
  for (uint64_t i = 1; i <= HANDOFFS; i++) {
    signal_value(to, i);
    fro->wanted = i;
    ck_assert_int_eq(wait_for(fro, RINGCAST_FOREVER), 0);
  }
  rc_store_release(&over, true);
  pthread_join(thread, NULL);
  pthread_join(late, NULL);
  destroy(to);
  destroy(fro);
}
END_TEST

/* ---- Life ------------------------------------------------------------------------------------------------------- */

START_TEST(nothing_leaks_and_nothing_is_handed_on_by_exec) {
  if (!choose(_i, __func__)) return;
  int descriptors = open_descriptors();
  for (int i = 0; i < 200; i++) {
    bool ours[64];
    for (int fd = 0; fd < 64; fd++) ours[fd] = fcntl(fd, F_GETFD) < 0;
    struct target *target = make(getppid());
    if (i % 3) ck_assert_int_eq(wait_for(target, i % 3 * 1000), -ETIMEDOUT);
    if (i % 2) signal_value(target, 0);
    int count = 0;
    for (int fd = 0; fd < 64; fd++)
      if (ours[fd] && fcntl(fd, F_GETFD) >= 0) {
        ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        count++;
      }
    ck_assert_int_eq(count, i % 3 == 0 ? 0 : has_pidfds() + (_i == PARKED ? 2 : 0)); /* a ring and its eventfd */
    destroy(target);
  }
  ck_assert_int_eq(open_descriptors(), descriptors);
}
END_TEST

static void sleep_in_child(void *context) {
  struct target *target = context;
  int descriptors = open_descriptors();
  uint32_t waiting = target->waiter.waiting;
  child_must(wait_for(target, 2000000) == -ETIMEDOUT);
  child_must(target->waiter.waiting == waiting);
  child_must(open_descriptors() == descriptors); /* its own in place of those that it was born with */
  rc_waiter_destroy(&target->waiter);
}

START_TEST(a_forked_child_uses_a_ring_of_its_own_and_the_parents_goes_on) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(getppid()), *copy = malloc(sizeof *copy);
  ck_assert_int_eq(wait_for(target, 1000), -ETIMEDOUT);
  memcpy(copy, target, sizeof *copy); /* not shared, as a handle is not */
  for (int i = 0; i < 3; i++) {
    child_must_succeed(start_child(sleep_in_child, copy));
    target->wanted = (uint64_t)i + 1;
    ck_assert_int_eq(wait_until_it_happens(target, 1000000, do_nothing, NULL), -ETIMEDOUT);
    target->wanted = 1;
    target->value = 0;
    ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, give, target), 0);
    target->value = 0;
  }
  must_have_slept(target, _i);
  free(copy);
  destroy(target);
}
END_TEST

static void *wait_elsewhere(void *context) {
  struct target *target = context;
  target->value = 0;
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, give, target), 0);
  return NULL;
}

START_TEST(it_may_move_from_thread_to_thread_and_gives_up_parking_if_it_often_does) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(getppid());
  int descriptors = open_descriptors();
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_elsewhere, target), 0);
    pthread_join(thread, NULL);
    if (i == 4) must_have_slept(target, _i);
  }
  must_have_slept(target, SLICED);
  ck_assert_int_le(open_descriptors(), descriptors + 1); /* the pidfd */
  destroy(target);
}
END_TEST

/* ---- What can be refused ------------------------------------------------------------------------------------------ */

static int no_membarrier(int command) {
  (void)command;
  return -ENOSYS;
}

static int only_registering(int command) { return command == 0x4 ? real.membarrier(command) : -EPERM; }

static int no_pidfd(int32_t pid) {
  (void)pid;
  return -ENOSYS;
}

static int forbid(uint32_t call) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -errno;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 ? -errno : 0;
}

static void use_up_descriptors(int left) {
  struct rlimit limit;
  int next = dup(0); /* the lowest that is free */
  close(next);
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = (rlim_t)(next + left);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

enum { NO_MEMBARRIER, ONLY_REGISTERING, NO_PIDFD, PIDFD_OFF, NO_EVENTFD, NO_RING, URING_FORBIDDEN, PIDFD_FORBIDDEN, LACKS };

static bool take_away(int what) {
  switch (what) {
  case NO_MEMBARRIER: rc_os.membarrier = no_membarrier; break;
  case ONLY_REGISTERING: rc_os.membarrier = only_registering; break;
  case NO_PIDFD: rc_os.pidfd_open = no_pidfd; break;
  case PIDFD_OFF: disable_too("pidfd"); break;
  case NO_EVENTFD: use_up_descriptors(1); break; /* which is for the pidfd */
  case NO_RING: use_up_descriptors(2); break;
  case URING_FORBIDDEN: return forbid(SYS_io_uring_setup) == 0;
  default: return forbid(SYS_pidfd_open) == 0;
  }
  return true;
}

struct lack {
  struct target *target;
  int what;
};

/* In a child: what membarrier can do is found out once for a process. */
static void do_without(void *context) {
  struct lack *lack = context;
  struct target *target = lack->target;
  if (!take_away(lack->what)) {
    tell_skipped("where_parking_is_refused_it_sleeps_in_slices", "no seccomp");
    return;
  }
  child_must(wait_for(target, 2000000) == -ETIMEDOUT);
  child_must(target->waiter.waiting == RINGCAST_WAIT_FUTEX && !target->waiter.park);
  target->value = 0;
  rc_os.futex_wait = happen_and_wait;
  happening = give;
  of_it = target;
  child_must(wait_for(target, RINGCAST_FOREVER) == 0);
  target->value = 0;
  happening = kill_peer;
  of_it = &target->watch.pid;
  child_must(wait_for(target, RINGCAST_FOREVER) == -EOWNERDEAD);
}

START_TEST(where_parking_is_refused_it_sleeps_in_slices) {
  if (!choose(PARKED_UNLESS_IT_WATCHES, __func__)) return;
  pid_t peer = start_child(live_for_ever, NULL);
  struct lack lack = {.target = make(peer), .what = _i};
  child_must_succeed(start_child(do_without, &lack));
  kill(peer, SIGKILL);
  ck_assert_int_eq(waitpid(peer, NULL, 0), peer);
  destroy(lack.target);
}
END_TEST

int main(void) {
  uring_result = rc_uring_probe();
  Suite *suite = suite_create("wait");
  TCase *tests = add_case(suite, "ends");
  tcase_add_loop_test(tests, the_event_ends_it, 0, WAYS);
  tcase_add_loop_test(tests, the_death_of_the_peer_ends_it, 0, WAYS);
  tcase_add_loop_test(tests, what_it_gave_before_it_died_is_had, 0, WAYS);
  tcase_add_loop_test(tests, a_stopped_peer_does_not_end_it, 0, WAYS);
  tcase_add_loop_test(tests, cancelling_ends_it, 0, WAYS);
  tcase_add_test(tests, a_canceller_that_is_killed_on_the_way_costs_others_no_wake_up);
  tcase_add_loop_test(tests, a_signal_handler_ends_it_also_one_with_restart, 0, 2 * WAYS);
  tcase_add_loop_test(tests, being_stopped_and_continued_does_not_end_it, 0, WAYS);
  tests = add_case(suite, "time");
  tcase_add_loop_test(tests, it_lasts_as_long_as_it_may_and_sleeps_no_more_than_it_must, 0, WAYS);
  tcase_add_test(tests, parked_it_sleeps_once_however_long_unless_it_may_miss_a_killed_signaller);
  tcase_add_test(tests, who_waits_briefly_makes_no_io_uring);
  tcase_add_loop_test(tests, no_wake_up_is_lost, 0, WAYS);
  tcase_add_test(tests, the_end_of_an_earlier_wait_is_not_taken_for_that_of_a_later_one);
  tcase_add_loop_test(tests, a_late_wake_up_takes_no_later_one_with_it, 0, WAYS);
  tests = add_case(suite, "life");
  tcase_add_loop_test(tests, nothing_leaks_and_nothing_is_handed_on_by_exec, 0, WAYS);
  tcase_add_loop_test(tests, a_forked_child_uses_a_ring_of_its_own_and_the_parents_goes_on, 0, WAYS);
  tcase_add_loop_test(tests, it_may_move_from_thread_to_thread_and_gives_up_parking_if_it_often_does, 0, WAYS);
  tcase_add_loop_test(tests, where_parking_is_refused_it_sleeps_in_slices, 0, LACKS);
  return run_suite(suite);
}
