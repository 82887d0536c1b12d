/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to spin. A spin saves the 25 us of a sleep and a wake-up, and is wasted if the wait ends in
 * sleep anyway. So a waiter keeps a credit: each wait that ends as awaited within the spin time
 * adds one, each other wait takes one, and without credit the waiter sleeps at once. From the time
 * of a wait with a sleep, the estimated cost of the wake-up is subtracted: so a waiter that only
 * sleeps also notices when the stream becomes fast again. The estimate adapts: a spin in vain,
 * after sleeps had earned credit, lowers it, and each sleep without a spin raises it for a later
 * try.
 *
 * If messages are rare but regular, the waiter sleeps until the next message is due and spins then:
 * shm/cadence.c.
 *
 * With fewer CPUs than participants a waiter never spins: the awaited process needs the CPU. The
 * waiter yields instead, by the same credit, for 50 us, or for as long as the user asked to spin.
 * While all participants yield, they take turns of one or two microseconds, without wake-ups. A
 * process that computes on the same CPU keeps it for milliseconds when a waiter yields, but is
 * interrupted when a waiter is woken. So a waiter that has lost the CPU, by a yield or in a window,
 * sleeps at once in the next waits, and in twice as many after each further loss. A window begins
 * with a yield, to find out. A spin that others interrupt, in a window or asked for, yields between
 * its looks from then on: threads that are no participants need the CPU (on 2 CPUs a step of
 * vLLM's, whose ranks reduce by gloo's threads, took half as long again beside a spin of 30 ms that
 * did not).
 *
 * Reading a clock takes as long as moving a cache line from core to core. So the path that returns
 * a message reads no clock: the message counts as seen at the last clock read. A caller whose waits
 * often end within a microsecond polls before calling rc_wait, as long as rc_waiter_is_eager.
 */
#include "shm/wait.h"

#include <errno.h>
#include <limits.h>

#include "ring/point.h"
#include "ringcast/ringcast.h"
#include "shm/topology.h"
#include "shm/options.h"
#include "shm/error.h"
#include "shm/os.h"

#define MOST_CREDIT 8u
#define YIELD_NS    ((int64_t)50 * 1000)  /* the longest time of yields before a sleep */
#define LOST_NS     ((int64_t)250 * 1000) /* a longer yield has lost the CPU to a busy process */
/* A longer look has lost the CPU to a thread that soon sleeps again. */
#define INTERRUPTED_NS ((int64_t)20 * 1000)
#define FIRST_WARM     ((int64_t)40 * 1000) /* the time that `warm` is expected to take */
/* Estimates of a wake-up, from the signal to running again. */
#define MOST_COST  ((int64_t)60 * 1000)
#define LEAST_COST ((int64_t)5 * 1000)

/* Percent of a CPU for spinning when a message is due, by enum ringcast_wait_mode. */
static const uint32_t percents[] = {
    [RINGCAST_WAIT_BALANCED] = 5, [RINGCAST_WAIT_LATENCY] = 25, [RINGCAST_WAIT_POWER] = 0};

int64_t rc_now_ns(void) { return rc_os.now_ns(); }

/* ---- Whether to spin ------------------------------------------------------------------------- */

/* *out keeps its value where RINGCAST_SPIN_US says nothing. */
static int spin_from_environment(int64_t *out) {
  uint64_t microseconds;
  int result =
      rc_environment_number("RINGCAST_SPIN_US", 1000000, "microseconds", "never", &microseconds);
  if (result < 0) return result;
  if (result == 1) *out = microseconds > 0 ? (int64_t)microseconds * 1000 : -1;
  return 0;
}

static int mode_from_environment(uint32_t *mode) {
  static const char *const names[] = {"balanced", "latency", "power"};
  int result = rc_environment_choice("RINGCAST_WAIT", names, sizeof names / sizeof *names, mode);
  return result < 0 ? result : 0;
}

int rc_waiter_init(struct rc_waiter *waiter, struct rc_eventcount *event, struct rc_cpus *cpus,
                   int64_t spin_ns, uint32_t mode) {
  if (mode > RINGCAST_WAIT_POWER)
    return rc_fail(-EINVAL, "options.wait is %u: it must be a value of enum ringcast_wait_mode",
                   mode);
  int result = 0;
  if (mode == RINGCAST_WAIT_BALANCED) result = mode_from_environment(&mode);
  if (result == 0 && spin_ns == 0) result = spin_from_environment(&spin_ns);
  if (result != 0) return result;
  *waiter = (struct rc_waiter){.event = event,
                               .cpus = cpus,
                               .spin_asked = spin_ns != 0,
                               .cpu_wait = rc_cpu_wait_choose(),
                               .spin_credit = MOST_CREDIT / 2,
                               .wake_cost = MOST_COST,
                               .warm_ns = FIRST_WARM};
  if (waiter->spin_asked) {
    waiter->may_yield = spin_ns > 0;
  } else {
    waiter->may_yield = !rc_feature_disabled("spin");
    if (waiter->may_yield && rc_os.online_cpus() > 1) spin_ns = RC_DEFAULT_SPIN_NS;
  }
  if (spin_ns > 0) {
    waiter->spin_ns = spin_ns;
    waiter->percent = percents[mode];
  }
  rc_cadence_init(&waiter->cadence);
  return 0;
}

int rc_waiter_init_tap(struct rc_waiter *waiter, struct rc_eventcount *event,
                       struct rc_cpus *cpus) {
  int result = rc_waiter_init(waiter, event, cpus, -1, RINGCAST_WAIT_POWER);
  waiter->naps = true;
  return result;
}

static void check_oversubscribed(struct rc_waiter *waiter) {
  uint32_t participants = rc_load_relaxed(&waiter->cpus->participants); /* relaxed: advice */
  if (participants == waiter->participants) return;
  waiter->participants = participants;
  waiter->oversubscribed = participants > rc_cpus_count(waiter->cpus);
}

static bool should_spin(struct rc_waiter *waiter) {
  check_oversubscribed(waiter);
  return rc_waiter_is_eager(waiter);
}

static bool should_yield(struct rc_waiter *waiter) {
  if (!waiter->may_yield || !waiter->oversubscribed) return false;
  if (waiter->spin_credit == 0 && !waiter->spin_asked) return false;
  return rc_holdoff_try(&waiter->holdoff);
}

/* After a loss by a yield, 16 to 16,384 waits go without yields. */
static void learn_yields(struct rc_waiter *waiter, bool well) {
  rc_holdoff_learn(&waiter->holdoff, well, 16, 16384, 256);
}

/* The same for windows, which are rare. */
static void learn_window(struct rc_waiter *waiter, bool well) {
  rc_holdoff_learn(&waiter->holdoff, well, 2, 1024, 8);
}

/* `came`: what the waiter waited for. A short timeout that passes says nothing for spinning. */
static void learn(struct rc_waiter *waiter, int64_t waited, bool came, bool spun, bool slept) {
  waiter->waited_ns = (uint64_t)waited;
  if (slept) {
    if (spun) waiter->wake_cost += (LEAST_COST - waiter->wake_cost) / 4;
    else waiter->wake_cost += (MOST_COST - waiter->wake_cost) / 64;
    waited -= waiter->wake_cost;
  }
  int64_t most = waiter->oversubscribed ? YIELD_NS : waiter->spin_ns;
  if (came && waited <= most) waiter->spin_credit += waiter->spin_credit < MOST_CREDIT;
  else waiter->spin_credit -= waiter->spin_credit > 0;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

bool rc_wake(struct rc_eventcount *event) {
  if (!rc_eventcount_is_asleep(event)) return false;
  RC_POINT(E6_DONE);
  if (!rc_eventcount_advance(event)) return false;
  RC_POINT(E7_DONE);
  rc_os.futex_wake(&event->word, INT_MAX);
  RC_POINT(WOKEN);
  return true;
}

void rc_waiter_cancel(struct rc_waiter *waiter) {
  rc_store_release(&waiter->cancelled, 1); /* pairs with the load of rc_waiter_is_cancelled */
  rc_eventcount_nudge(waiter->event); /* further sleepers of the event wake, look, and sleep on */
  rc_os.futex_wake(&waiter->event->word, INT_MAX);
  if (waiter->naps) rc_os.futex_wake(&waiter->cancelled, INT_MAX);
}

static int look(struct rc_waiter *waiter, const struct rc_wait *wait) {
  int result = wait->poll(wait->context);
  return result == -EAGAIN && rc_waiter_is_cancelled(waiter) ? -ECANCELED : result;
}

/* Calls check if RC_CHECK_NS has passed since check last returned -EAGAIN. */
static int check_now_and_then(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t now) {
  if (now - waiter->checked < RC_CHECK_NS) return -EAGAIN;
  int result = wait->check(wait->context);
  if (result == -EAGAIN) waiter->checked = now;
  return result;
}

/* Two looks, and between them a wait for the word within the CPU. */
static int look_at_word(struct rc_waiter *waiter, const struct rc_wait *wait, const void *word) {
  rc_cpu_watch(waiter->cpu_wait, word);
  int result = look(waiter, wait);
  if (result != -EAGAIN) return result;
  rc_cpu_wait(waiter->cpu_wait);
  return look(waiter, wait);
}

/* About a microsecond of looks. */
static int look_a_while(struct rc_waiter *waiter, const struct rc_wait *wait) {
  if (waiter->cpu_wait != RC_CPU_PAUSE && wait->word) {
    const void *word = wait->word(wait->context);
    if (word) return look_at_word(waiter, wait, word);
  }
  int result = -EAGAIN;
  for (int i = 0; i < RC_LOOKS && result == -EAGAIN; i++) {
    rc_relax();
    result = look(waiter, wait);
  }
  return result;
}

/* *now is the time of the last clock read. A spin that loses the CPU ends, unless the user asked
 * for spinning. */
static int spin(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t until, int64_t *now,
                bool *lost) {
  bool takes_turns = false;
  do {
    if (takes_turns) rc_os.yield();
    int result = look_a_while(waiter, wait);
    if (result != -EAGAIN) return result;
    int64_t before = *now;
    *now = rc_now_ns();
    *lost = *now - before > LOST_NS && !waiter->spin_asked;
    takes_turns |= *now - before > INTERRUPTED_NS;
    result = check_now_and_then(waiter, wait, *now);
    if (result != -EAGAIN) return result;
  } while (*now < until && !*lost);
  return -EAGAIN;
}

/* As spin, but a process that is ready to run on this CPU runs between two looks from the start. */
static int yield(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t until,
                 int64_t *now) {
  int result;
  bool lost;
  do {
    /* The time of the look does not count: it may be long without a loss. */
    int64_t before = rc_now_ns();
    rc_os.yield();
    *now = rc_now_ns();
    lost = *now - before > LOST_NS;
    result = look(waiter, wait);
    if (result == -EAGAIN) result = check_now_and_then(waiter, wait, *now);
  } while (result == -EAGAIN && !lost && *now < until);
  learn_yields(waiter, !lost);
  return result;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* One sleep of at most `most`, under the announcement `word`. *settled: E9's time has passed since
 * the announcement. */
static int doze(struct rc_waiter *waiter, const struct rc_wait *wait, uint32_t word, int64_t most,
                bool *settled) {
  int64_t slice = RC_SLICE_NS;
  if (wait->before_sleep) slice = least(wait->before_sleep(wait->context, settled), RC_SLICE_NS);
  if (!*settled) slice = RC_SETTLE_NS;
  waiter->sleeps++;
  RC_POINT(E3_DONE);
  int slept = rc_os.futex_wait(&waiter->event->word, word, least(most, slice));
  RC_POINT(SLEPT);
  *settled |= slept == -ETIMEDOUT;
  int result = look(waiter, wait);
  if (result == -EAGAIN && slept == -EINTR) return -EINTR;
  return result;
}

/* The sleep is not announced, and not on the event's word: a signaller would call the kernel for
 * the tap. */
static int nap_until(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t *now,
                     int64_t deadline) {
  int64_t nap = RC_NAP_NS;
  int result = -EAGAIN;
  while (result == -EAGAIN && *now < deadline) {
    waiter->sleeps++;
    int slept = rc_os.futex_wait(&waiter->cancelled, 0, least(nap, deadline - *now));
    *now = rc_now_ns();
    result = look(waiter, wait);
    if (result == -EAGAIN) result = check_now_and_then(waiter, wait, *now);
    if (result == -EAGAIN && slept == -EINTR) result = -EINTR;
    nap = least(2 * nap, RC_MOST_NAP_NS);
  }
  return result;
}

/* The announcement stands from slice to slice, until a signal takes it back. */
static int sleep_until(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t *now,
                       int64_t deadline) {
  if (*now >= deadline) return -EAGAIN;
  if (waiter->naps) return nap_until(waiter, wait, now, deadline);
  uint32_t word = rc_eventcount_prepare(waiter->event);
  bool settled = !wait->unfenced;
  int result = look(waiter, wait);
  while (result == -EAGAIN && *now < deadline) {
    result = doze(waiter, wait, word, deadline - *now, &settled);
    *now = rc_now_ns();
    if (result == -EAGAIN) result = check_now_and_then(waiter, wait, *now);
    if (result != -EAGAIN) break;
    if (rc_load_acquire(&waiter->event->word) != word) { /* E7: look after a new E1 */
      word = rc_eventcount_prepare(waiter->event);
      settled = !wait->unfenced;
      result = look(waiter, wait);
    }
  }
  rc_eventcount_withdraw(waiter->event, word); /* E8 */
  RC_POINT(E8_DONE);
  return result;
}

/* Whether to call `warm` before the next message: the call may take a quarter of the budget. */
static bool should_warm(const struct rc_waiter *waiter) {
  return waiter->warm && 4 * waiter->warm_ns <= waiter->cadence.gap / 100 * waiter->percent;
}

/* The estimate follows a longer call at once, and shorter ones from message to message. */
static void warm(struct rc_waiter *waiter, int64_t *now) {
  int64_t began = *now;
  waiter->warm(waiter->warm_context);
  *now = rc_now_ns();
  if (*now - began > waiter->warm_ns) waiter->warm_ns = *now - began;
}

/* The window in which to spin for the next message. False: there is none, or it is skipped. */
static bool plan_window(struct rc_waiter *waiter, int64_t now, struct rc_window *out) {
  if (waiter->percent == 0 || waiter->oversubscribed) return false;
  if (!rc_cadence_window(&waiter->cadence, now, waiter->percent, out)) return false;
  waiter->warm_ns -= waiter->warm_ns / 64;
  if (should_warm(waiter)) out->wake -= waiter->warm_ns;
  return rc_holdoff_try(&waiter->holdoff);
}

/* Sleeps until the window begins, and spins in it. */
static int meet(struct rc_waiter *waiter, const struct rc_wait *wait,
                const struct rc_window *window, int64_t *now, int64_t deadline) {
  int result = -EAGAIN;
  if (*now < window->wake) {
    result = sleep_until(waiter, wait, now, least(window->wake, deadline));
    if (result == -EAGAIN && *now >= window->wake)
      rc_cadence_woke(&waiter->cadence, window->wake, *now);
  }
  if (result != -EAGAIN || *now >= least(window->until, deadline)) return result;
  int64_t began = *now;
  rc_os.yield();
  *now = rc_now_ns();
  bool lost = *now - began > LOST_NS;
  if (!lost && should_warm(waiter) && *now + waiter->warm_ns <= window->due) warm(waiter, now);
  if (!lost) result = spin(waiter, wait, least(window->until, deadline), now, &lost);
  rc_cadence_spun(&waiter->cadence, *now - began);
  learn_window(waiter, !lost);
  return result;
}

static int64_t after(int64_t now, int64_t ns) {
  if (ns < 0 || ns > INT64_MAX - now) return INT64_MAX;
  return now + ns;
}

/* What comes before a sleep: a spin, or yields, or nothing. */
static int wait_awake(struct rc_waiter *waiter, const struct rc_wait *wait, bool spins,
                      int64_t *now, int64_t deadline) {
  if (spins) {
    bool lost = false;
    return spin(waiter, wait, least(after(*now, waiter->spin_ns), deadline), now, &lost);
  }
  if (!should_yield(waiter)) return -EAGAIN;
  int64_t most = waiter->spin_asked ? waiter->spin_ns : YIELD_NS;
  return yield(waiter, wait, least(after(*now, most), deadline), now);
}

/* The first look found nothing. */
static int wait_on(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t timeout_ns) {
  int result = -EAGAIN;
  int64_t began = rc_now_ns(), now = began, deadline = after(began, timeout_ns);
  uint64_t sleeps = waiter->sleeps;
  bool spun = false;
  if (!wait->sleep_only) {
    struct rc_window window;
    spun = should_spin(waiter);
    result = wait_awake(waiter, wait, spun, &now, deadline);
    if (result == -EAGAIN && plan_window(waiter, now, &window))
      result = meet(waiter, wait, &window, &now, deadline);
  }
  if (result == -EAGAIN) result = sleep_until(waiter, wait, &now, deadline);
  if (result == 0 && !wait->sleep_only) rc_cadence_came(&waiter->cadence, now);
  learn(waiter, now - began, result == 0, spun, waiter->sleeps != sleeps);
  if (result != -EAGAIN && result != -EINTR) return result;
  /* Also after a signal, as signals may come more often than a slice ends. */
  int checked = check_now_and_then(waiter, wait, now);
  if (checked != -EAGAIN) return checked;
  return result == -EINTR ? -EINTR : -ETIMEDOUT;
}

static int wait_alone(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t timeout_ns) {
  int result = look(waiter, wait);
  if (result != -EAGAIN) return result;
  if (timeout_ns == 0) return check_now_and_then(waiter, wait, rc_now_ns());
  const uint64_t sleeps = waiter->sleeps;
  result = wait_on(waiter, wait, timeout_ns);
  if (wait->count) wait->count(wait->context, waiter->sleeps - sleeps);
  return result;
}

/* A waiter's counts are for one thread, so rc_wait refuses a second. The hot path, which does not
 * call rc_wait, goes without the test, which would cost too much there. */
int rc_wait(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t timeout_ns) {
  if (rc_swap_acquire(&waiter->inside, 1) != 0) return -EDEADLK; /* pairs with the store below */
  int result = wait_alone(waiter, wait, timeout_ns);
  rc_store_release(&waiter->inside, 0);
  return result;
}
