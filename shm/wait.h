/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a peer: the waiter spins for a moment, if short spins have lately been enough, then
 * sleeps on an event, and spins once more when the next message is due (shm/cadence.h). The sleep
 * is a futex wait, in slices; between two slices the waiter checks whether the peer is alive.
 */
#ifndef RC_SHM_WAIT_H
#define RC_SHM_WAIT_H

#include <stdint.h>

#include "ring/eventcount.h"
#include "shm/cadence.h"
#include "shm/cpu_wait.h"
#include "shm/holdoff.h"
#include "shm/process.h"

/* The longest sleep. It limits how late a sleeper notices a death, which the library promises to
 * tell within 100 ms, or a wake-up lost with a dead signaller. An idle waiter takes CPU time for
 * its slices alone. */
#define RC_SLICE_NS ((int64_t)90 * 1000 * 1000)
#define RC_SETTLE_NS \
  ((int64_t)100 * 1000) /* E9's: a thousand times what a store buffer takes to drain */
#define RC_CHECK_NS        ((int64_t)5 * 1000 * 1000) /* till a spin notices a death */
#define RC_DEFAULT_SPIN_NS ((int64_t)20 * 1000)
_Static_assert(RC_SLICE_NS + RC_CHECK_NS < (int64_t)100 * 1000 * 1000,
               "a death is told within 100 ms");

/* How a handle waits, and the statistics from earlier waits. One thread at a time, except for
 * cancel. */
struct rc_waiter {
  struct rc_eventcount *event; /* the event to sleep on */
  struct rc_cpus *cpus;
  int64_t spin_ns;       /* 0: never spins */
  uint32_t percent;      /* of a CPU: the budget for spinning when a message is due */
  bool spin_asked;       /* by option or environment: each wait spins, whatever the credit */
  bool may_yield;        /* when oversubscribed */
  bool oversubscribed;   /* fewer CPUs than participants, at the last check */
  uint32_t participants; /* at the last check; a dead reader counts until the writer removes it */
  bool naps; /* a tap: sleeps unannounced: signallers don't wake this waiter, and pay nothing */
  uint32_t credit; /* up by one per wait that a spin ended or would have ended, else down by one */
  int64_t wake_cost;         /* the estimated time of a wake-up */
  struct rc_holdoff holdoff; /* of yields and windows, after one that lost the CPU */
  struct rc_cadence cadence;
  void (*warm)(void *context); /* called before a window; NULL: nothing to call */
  void *warm_context;
  int64_t warm_ns;           /* how long such a call takes */
  int64_t checked;           /* when `check` last returned -EAGAIN */
  uint64_t waits, sleeps;    /* counted */
  enum rc_cpu_wait cpu_wait; /* the pause between two looks, while spinning */
  uint64_t waited_ns;        /* duration of the last wait, to about a microsecond */
  _Atomic uint32_t cancelled;
  _Atomic uint32_t inside; /* 1: a thread is in rc_wait */
};

/* One wait. `poll` and `check` return -EAGAIN to go on waiting; any other result ends the wait.
 * `check` makes the slow checks (is the peer alive?), at most every RC_CHECK_NS across waits, also
 * while spinning, and before a wait ends by its timeout or by a signal. Only a result of -EAGAIN
 * postpones the next check. */
struct rc_wait {
  int (*poll)(void *context);
  int (*check)(void *context);
  const void *(*word)(void *context); /* the memory whose change `poll` will see, while spinning;
                                         NULL, or a result of NULL: not known */
  /* The longest next sleep, asked before each; NULL: RC_SLICE_NS, the limit. Sets *settled to false
   * if `poll` now waits for something else: the sleep settles anew. */
  int64_t (*slice)(void *context, bool *settled);
  void *context;
  bool
      unfenced; /* the signallers leave E5 out: the first sleep settles (E9 in ring/eventcount.h) */
  bool sleep_only; /* `poll` makes a system call: never spin with `poll` */
};

/* The first and the longest sleep of a waiter that naps. */
#define RC_NAP_NS      ((int64_t)125 * 1000)
#define RC_MOST_NAP_NS ((int64_t)2 * 1000 * 1000)

#define RC_LOOKS 64 /* looks between two clock reads: one to three microseconds */

/* The pause between two looks. */
static inline void rc_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile(
      "isb" ::
          : "memory"); /* yield does nothing on most cores; isb stalls for about as long as pause */
#endif
}

/* Whether spinning is likely to pay off now. */
static inline bool rc_waiter_is_eager(const struct rc_waiter *waiter) {
  if (waiter->spin_ns == 0 || (waiter->credit == 0 && !waiter->spin_asked)) return false;
  /* Relaxed: advice. If the number of participants has changed, rc_wait decides. */
  return !waiter->oversubscribed &&
         waiter->participants == rc_load_relaxed(&waiter->cpus->participants);
}

/* `spin_ns` is the option: -1 never, 0 the default (RINGCAST_SPIN_US, else 20 us, but no spin on a
 * machine of one CPU), or a time. `mode` is enum ringcast_wait_mode; for BALANCED, RINGCAST_WAIT
 * decides. -EINVAL, with the error text: `mode`, RINGCAST_SPIN_US or RINGCAST_WAIT has an invalid
 * value. */
int rc_waiter_init(struct rc_waiter *waiter, struct rc_eventcount *event, struct rc_cpus *cpus,
                   int64_t spin_ns, uint32_t mode);

/* As rc_waiter_init, for a tap: never spins, and sleeps unannounced. */
int rc_waiter_init_tap(struct rc_waiter *waiter, struct rc_eventcount *event, struct rc_cpus *cpus);

/* Waits at most timeout_ns (0: tries once; negative: for ever). -EAGAIN (timeout 0), -ETIMEDOUT,
 * -EINTR, -ECANCELED, or the result of poll or check; -EDEADLK: a thread waits here already. */
int rc_wait(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t timeout_ns);

/* Ends the current wait of a waiter, and every later wait that would block, with -ECANCELED. Any
 * thread. */
void rc_waiter_cancel(struct rc_waiter *waiter);

/* Whether the waiter was cancelled. After rc_eventcount_prepare, a cancel shows here or changes the
 * event's word. */
static inline bool rc_waiter_is_cancelled(const struct rc_waiter *waiter) {
  return rc_load_acquire(&waiter->cancelled) != 0; /* pairs with the store in rc_waiter_cancel */
}

/* Wakes all sleepers of the event. One system call if a waiter may be asleep, else none. True: the
 * call was made. */
bool rc_wake(struct rc_eventcount *event);

int64_t rc_now_ns(void);

#endif
