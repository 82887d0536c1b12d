/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for the other side: spin for a moment, if that has lately been enough, then sleep on an event, and spin once
 * more when the next message is due (shm/cadence.h). The sleep is a futex, in slices; between two slices the waiter
 * looks whether the other side still lives.
 */
#ifndef RC_SHM_WAIT_H
#define RC_SHM_WAIT_H

#include <stdint.h>

#include "ring/eventcount.h"
#include "shm/cadence.h"
#include "shm/cpu_wait.h"
#include "shm/process.h"

#define RC_SLICE_NS                                                                                                \
  ((int64_t)50 * 1000 * 1000)                         /* the longest sleep: a sleeper notices a death as soon, ... \
                                                       * ... and a wake-up that was lost with its signaller */
#define RC_CHECK_NS        ((int64_t)5 * 1000 * 1000) /* how soon a death is noticed while spinning */
#define RC_DEFAULT_SPIN_NS ((int64_t)20 * 1000)

/* A handle's way of waiting, and what it has learnt. One thread at a time, but for cancelling. */
struct rc_waiter {
  struct rc_eventcount *event; /* what it sleeps on */
  struct rc_cpus *cpus;
  int64_t spin_ns;       /* 0: never spins */
  uint32_t percent;      /* of a CPU: the budget for spinning when a message is due */
  bool spin_asked;       /* by option or environment: then each wait spins, whatever the last ones were like */
  bool may_yield;        /* in a crowd */
  bool oversubscribed;   /* fewer CPUs than parties, when last looked */
  uint32_t participants; /* when last looked */
  uint32_t uncounted;    /* 1: this one is none of the parties counted, and takes a CPU all the same */
  uint32_t credit;       /* how many of the last waits spinning was, or would have been, enough for */
  int64_t wake_cost;     /* what a wake-up takes, by experience with the credit */
  uint32_t shunned;      /* waits still to be made without yields or windows, and ... */
  uint32_t shun;         /* ... how many they were, when one last cost the CPU; 0: that is long ago */
  uint32_t kept;         /* waits with yields or windows that have not, since */
  struct rc_cadence cadence;
  int64_t checked;           /* when a check last had nothing to say */
  uint64_t waits, sleeps;    /* counted */
  enum rc_cpu_wait cpu_wait; /* between two looks, once the first microsecond is over */
  uint64_t waited_ns;        /* how long the last one took, to a microsecond or so */
  _Atomic uint32_t cancelled;
  _Atomic uint32_t inside; /* 1: a thread is in rc_wait */
};

/* One wait. `poll` returns -EAGAIN to go on waiting, anything else to end with that. `check` does too, and looks at
 * what takes longer (does the other side live?); it is asked now and then, counted across waits, also while spinning;
 * a verdict other than -EAGAIN is not kept back. */
struct rc_wait {
  int (*poll)(void *context);
  int (*check)(void *context);
  const void *(*word)(void *context); /* what poll will see change, while spinning; NULL, or a NULL from it: it can't
                                       * say */
  int64_t (*slice)(void *context);    /* asked before each sleep: the longest one now; NULL: RC_SLICE_NS, the most */
  void *context;
  bool dear; /* poll asks the kernel: not to be spun with */
};

#define RC_LOOKS 64 /* between two looks at the clock: one to three microseconds */

/* Between two looks. */
static inline void rc_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory"); /* yield does nothing on most cores; isb stalls for about as long as pause */
#endif
}

/* Whether spinning promises something now. */
static inline bool rc_waiter_is_eager(const struct rc_waiter *waiter) {
  if (waiter->spin_ns == 0 || (waiter->credit == 0 && !waiter->spin_asked)) return false;
  /* Relaxed: advice. A number of parties not seen yet is for rc_wait to look at. */
  return !waiter->oversubscribed && waiter->participants == rc_load_relaxed(&waiter->cpus->participants);
}

/* `spin_ns` is the option: -1 never, 0 the default (RINGCAST_SPIN_US, else 20 us, but none on a machine of one CPU), or
 * a time. `mode` is enum ringcast_wait_mode; for BALANCED, RINGCAST_WAIT decides. -EINVAL, with its text: `mode`,
 * RINGCAST_SPIN_US or RINGCAST_WAIT is not one of its values. */
int rc_waiter_init(struct rc_waiter *waiter, struct rc_eventcount *event, struct rc_cpus *cpus, int64_t spin_ns,
                   uint32_t mode);

/* Waits at most timeout_ns (0: tries once; negative: for ever). -EAGAIN (timeout 0), -ETIMEDOUT, -EINTR, -ECANCELED, or
 * what poll or check gave; -EDEADLK: another thread is in here. */
int rc_wait(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t timeout_ns);

/* Ends the wait that another thread is in, and every later one that would have to wait, with -ECANCELED. Any thread. */
void rc_waiter_cancel(struct rc_waiter *waiter);

/* Whether it was. After an announcement: it is, or the event's word is no longer what was announced. */
static inline bool rc_waiter_is_cancelled(const struct rc_waiter *waiter) {
  return rc_load_acquire(&waiter->cancelled) != 0; /* pairs with the store in rc_waiter_cancel */
}

/* Wakes all that sleep on the event, if any do: one system call then, none else. True if it made it. */
bool rc_wake(struct rc_eventcount *event);

int64_t rc_now_ns(void);

#endif
