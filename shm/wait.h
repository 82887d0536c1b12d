/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a peer: the waiter spins for a moment, if short spins have lately been enough, then
 * sleeps on an event, and spins once more when the next message is due (shm/cadence.c). The sleep
 * is a futex wait, in slices; between two slices the waiter checks whether the peer is alive.
 *
 *   cadence.c   when the next message is due
 *   cpu_wait.c  waiting for a word within the CPU, while spinning
 *   wait.c      the waiter, waking, and the clock
 *
 * What holds a bad try off is inline.
 */
#ifndef RC_SHM_WAIT_H
#define RC_SHM_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/eventcount.h"
#include "shm/process.h"

/* The longest sleep. It limits how late a sleeper notices a death, which the library promises to
 * tell within 100 ms, or a wake-up lost with a dead signaller. An idle waiter takes CPU time for
 * its slices alone. */
#define RC_SLICE_NS        ((int64_t)90 * 1000 * 1000)
#define RC_CHECK_NS        ((int64_t)5 * 1000 * 1000) /* till a spin notices a death */
#define RC_DEFAULT_SPIN_NS ((int64_t)20 * 1000)
/* E9's: a thousand times what a store buffer takes to drain. */
#define RC_SETTLE_NS ((int64_t)100 * 1000)
_Static_assert(RC_SLICE_NS + RC_CHECK_NS < (int64_t)100 * 1000 * 1000,
               "a death is told within 100 ms");

/* ---- When the next message is due ------------------------------------------------------------ */

/*
 * Predicts when the next message is due. Serving engines send a message every few milliseconds, at
 * nearly constant intervals. A waiter notes the arrival times, sleeps until shortly before the next
 * message is due, spins for a window that covers most arrivals, and sleeps on. A message in the
 * window needs no wake-up.
 *
 * Pure arithmetic on times in nanoseconds, of one clock; no system call. One thread at a time.
 *
 *   gap         the mean gap between messages, moved by an eighth of each error. An error is
 *               clipped to twice the spread, plus 1/32 of the gap, so a single pause moves little.
 *               Four clipped errors in a row start a new cadence, learnt from the beginning.
 *   spread      the distance from the mean gap that seven of eight messages keep, learnt from the
 *               number of messages beyond it and not from their distance: a few very late messages
 *               do not widen the window
 *   burst       a message belongs to a burst, and is not counted, within 200 us after the last
 *               message or within a quarter of the gap after the last counted message. Eight
 *               messages in a quarter of the gap, each 200 us after the last, are no burst, but a
 *               faster cadence after pauses
 *   window      the spread, plus a margin, before and after the due time; each side at most the
 *               budget of one gap, and a millisecond. If the spread is over twice as long, or the
 *               saved budget does not last to the end of the window, the waiter has no window:
 *               irregular and rare messages cost a plain sleep
 *   budget      a share of the elapsed time. The unused budget is saved, for a few messages at
 *               most; the time spun in a window is subtracted, so the share holds on average
 *   lead        the learnt delay between the requested and the actual end of a sleep (timer slack,
 *               scheduling)
 */

struct rc_cadence {
  int64_t came; /* when the last counted message came */
  int64_t last; /* when the last message came */
  int64_t gap, spread;
  uint32_t known;   /* number of gaps learnt; UINT32_MAX: before the first message */
  uint32_t strange; /* clipped errors in a row */
  uint32_t burst;   /* messages within a quarter of the gap */
  int64_t lead;
  int64_t saved, refilled; /* the saved budget, and when the budget was last updated */
};

struct rc_window {
  int64_t wake;  /* sleep until then, for the sleep ends late, ... */
  int64_t due;   /* ... the message is expected here ... */
  int64_t until; /* ... and spin until then */
};

void rc_cadence_init(struct rc_cadence *cadence);

/* A message came. */
void rc_cadence_came(struct rc_cadence *cadence, int64_t now);

/* A sleep that was to end at `wake` ended now. */
void rc_cadence_woke(struct rc_cadence *cadence, int64_t wake, int64_t now);

/* The window of the next message, within a budget of `percent` of a CPU. False: no window is
 * ahead. */
bool rc_cadence_window(struct rc_cadence *cadence, int64_t now, uint32_t percent,
                       struct rc_window *out);

/* `ns` of a window were spun. */
static inline void rc_cadence_spun(struct rc_cadence *cadence, int64_t ns) { cadence->saved -= ns; }

/* ---- Holding off ----------------------------------------------------------------------------- */

/*
 * When to try again what went badly. After a failure the next tries are skipped, and twice as many
 * after each further failure, until enough tries in a row went well. One thread at a time.
 */

struct rc_holdoff {
  uint32_t left;   /* tries still to skip */
  uint32_t length; /* tries skipped after the last failure; 0: no recent failure */
  uint32_t well;   /* tries in a row that went well */
};

/* A try is at hand. False: skip it, which counts. */
static inline bool rc_holdoff_try(struct rc_holdoff *holdoff) {
  if (holdoff->left == 0) return true;
  holdoff->left--;
  return false;
}

/* A failure skips `least` tries, at first, and `most` tries at most. After `enough` tries in a row
 * that went well it is forgotten. */
static inline void rc_holdoff_learn(struct rc_holdoff *holdoff, bool well, uint32_t least,
                                    uint32_t most, uint32_t enough) {
  if (well) {
    holdoff->well++;
    if (holdoff->well >= enough) holdoff->length = 0;
    return;
  }
  if (holdoff->length == 0) holdoff->length = least;
  else if (holdoff->length < most) holdoff->length *= 2;
  else holdoff->length = most;
  holdoff->left = holdoff->length;
  holdoff->well = 0;
}

/* ---- Waiting within the CPU ------------------------------------------------------------------ */

/*
 * Waiting for a word within the CPU: x86's umonitor and umwait (WAITPKG, Intel), monitorx and
 * mwaitx (AMD), Arm's ldaxr and wfet. The core, or the thread of one, does nothing until the word's
 * line is written, an interrupt comes, or about a microsecond has passed; so it draws less power
 * than a loop of pauses, and a sibling thread runs faster.
 *
 *   rc_cpu_watch(how, word);  look; nothing there? then  rc_cpu_wait(how);  and look again.
 *
 * What is written after the watch ends the wait, so nothing is missed between the look and the
 * wait.
 */

enum rc_cpu_wait { RC_CPU_PAUSE = 0, RC_CPU_UMWAIT, RC_CPU_MWAITX, RC_CPU_WFET };

/* The best that this CPU has, asked once: under a hypervisor the CPU's answer takes 20 us or more.
 * RC_CPU_PAUSE with RINGCAST_DISABLE=cpu_wait. Not for the hot path. */
enum rc_cpu_wait rc_cpu_wait_choose(void);

/* Not for RC_CPU_PAUSE. The word is only read. */
void rc_cpu_watch(enum rc_cpu_wait how, const void *word);
void rc_cpu_wait(enum rc_cpu_wait how);

/* ---- A waiter -------------------------------------------------------------------------------- */

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
  bool naps;             /* a tap: sleeps unannounced, so that signallers need not wake it */
  uint32_t spin_credit;  /* up by one per wait that a spin ended or would have ended, else down */
  int64_t wake_cost;     /* the estimated time of a wake-up */
  struct rc_holdoff holdoff; /* of yields and windows, after one that lost the CPU */
  struct rc_cadence cadence;
  void (*warm)(void *context); /* called before a window; NULL: nothing to call */
  void *warm_context;
  int64_t warm_ns;           /* how long such a call takes */
  int64_t checked;           /* when `check` last returned -EAGAIN */
  uint64_t sleeps;           /* counted */
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
  /* The memory whose change `poll` will see, while spinning; NULL, or a result of NULL: not
   * known. */
  const void *(*word)(void *context);
  /* Called before each sleep; returns the longest time for it. NULL: RC_SLICE_NS, the limit. Sets
   * *settled to false if `poll` now waits for something else: the sleep settles anew. */
  int64_t (*before_sleep)(void *context, bool *settled);
  /* Called after a wait, with the number of its sleeps; not after a mere look. NULL: no count. */
  void (*count)(void *context, uint64_t sleeps);
  void *context;
  bool unfenced;   /* the signallers leave E5 out: the first sleep settles (E9 in eventcount.h) */
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
  /* yield does nothing on most cores; isb stalls for about as long as pause. */
  __asm__ volatile("isb" ::: "memory");
#endif
}

/* Whether spinning is likely to pay off now. */
static inline bool rc_waiter_is_eager(const struct rc_waiter *waiter) {
  if (waiter->spin_ns == 0 || (waiter->spin_credit == 0 && !waiter->spin_asked)) return false;
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
