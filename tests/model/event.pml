/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping and waking (ring/event.h, shm/fence.c). Each signaller does its thing ROUNDS times; each sleeper wants to
 * see all signallers' first, second, ... thing done. Nothing else wakes it, so a wake-up that is lost is an
 * invalid end state.
 *
 *   -DSIGNALLERS=n -DSLEEPERS=n -DROUNDS=n
 *   and how the fence is had:
 *   (none)      sleepers call membarrier, which reaches all signallers
 *   -DSHY       membarrier reaches no signaller: they set FENCED before their first signal
 *   -DCROWDED   sleepers set FENCED, and call membarrier once each
 *   -DSLICED    sleepers can't call membarrier: they set FENCED, and a time slice may end the sleep, once per signaller
 *   and
 *   -DWANTED    a signaller wakes only once what it did is enough (wake_sleeper in channel/reader.c)
 *   -DCANCEL    somebody cancels the wait, which nobody else would end (rc_event_nudge)
 */
#ifndef SIGNALLERS
#define SIGNALLERS 1
#endif
#ifndef SLEEPERS
#define SLEEPERS 1
#endif
#ifndef CANCEL
#define CANCELS 0
#else
#define CANCELS 1
#endif

#define THING(i)   (i)
#define FIRST_WORD SIGNALLERS
#define WORD       FIRST_WORD
#define WISH       (SIGNALLERS + 1)
#define CANCELLED  (SIGNALLERS + 2)
#define PLACES     (SIGNALLERS + 3)
#define PROCESSES  (SIGNALLERS + SLEEPERS + CANCELS)
#define DEPTH      3

#define ASLEEP 1
#define FENCED 2
#define EPOCH  4

inline arrived(x, news) { skip }
#include "memory.pml"

bit sleeping[PROCESSES];
#ifdef SLICED
byte slices = SIGNALLERS;
bit told_to_fence[SIGNALLERS]; /* has seen FENCED: from then on nothing may be lost */
#if SIGNALLERS == 2
#define MAY_END (EMPTY(0) && EMPTY(1) && !(told_to_fence[0] && told_to_fence[1])) /* a slice is long for a store */
#else
#define MAY_END (EMPTY(0) && !told_to_fence[0])
#endif
#endif

/* A read-modify-write that can't fail; `result` gets what it stored. */
inline change(p, how, more, bits, result) {
  atomic {
    !(exclusive & EXCLUSIVE(WORD)) && held[p] < DEPTH;
    result = (LOAD(p, WORD) + more) | bits;
    exclusive = exclusive | EXCLUSIVE(WORD);
    push(p, (how) | CAS, WORD, result)
  }
}

#if SLEEPERS == 2
#define WAKE_ALL sleeping[SIGNALLERS] = 0; sleeping[SIGNALLERS + 1] = 0
#else
#define WAKE_ALL sleeping[SIGNALLERS] = 0
#endif

proctype signaller(byte me) {
  byte i = 1, word, wish;
  bit won;
#ifdef SHY
  change(me, RELEASE, 0, (FENCED), word);
#endif
  do
  :: i > ROUNDS -> break
  :: else ->
#ifdef WEAK_E5
     word = LOAD(me, WORD);
     store_release(me, THING(me), i); /* the compiler has moved it */
#else
     store_release(me, THING(me), i); /* E4 */
#ifdef WEAK_E6
     wish = LOAD(me, WISH);
#endif
     word = LOAD(me, WORD); /* E5, E6 */
#endif
     if
     :: word & FENCED ->
#ifdef SLICED
        told_to_fence[me] = 1;
#endif
#ifndef WEAK_E5_FENCED
        fence_full(me);
#endif
        word = LOAD(me, WORD)
     :: else
     fi;
     if
     :: word & ASLEEP ->
#ifdef WANTED
#ifndef WEAK_E6
        wish = LOAD(me, WISH);
#endif
        if
        :: i >= wish -> skip
        :: else -> goto next
        fi;
#endif
#ifdef WEAK_E7
        atomic { fence_full(me); WAKE_ALL };
#else
        do
        :: word = LOAD(me, WORD);
           if
           :: word & ASLEEP -> exchange(me, RELEASE, WORD, word, (word + EPOCH) & ~ASLEEP, won) /* E7 */
           :: else -> break
           fi;
           if
           :: won -> atomic { fence_full(me); WAKE_ALL; won = 0; break }
           :: else
           fi
        od
#endif
     :: else
     fi;
  next:
     atomic { i++; word = 0; wish = 0 }
  od
}

#if SIGNALLERS == 2
#define DONE(t) ((LOAD(me, THING(0)) >= t && LOAD(me, THING(1)) >= t) || LOAD(me, CANCELLED))
#else
#define DONE(t) (LOAD(me, THING(0)) >= t || LOAD(me, CANCELLED))
#endif

/* E2. A membarrier returns once each CPU has passed a barrier: at a moment of its own each signaller's
 * buffer was empty. */
inline reach_all() {
  fence_full(me);
#if !defined SHY && !defined SLICED && !defined WEAK_E2_HEAVY
  EMPTY(0);
#if SIGNALLERS == 2
  EMPTY(1);
#endif
#endif
  fence_full(me)
}

proctype sleeper(byte me) {
  byte t = 1, value;
  bit told;
  do
  :: t > ROUNDS + CANCELS -> break
  :: else ->
     do
     :: DONE(t) -> break
     :: else ->
#ifdef WANTED
        store_relaxed(me, WISH, t);
#endif
#if defined CROWDED
        atomic {
#ifdef WEAK_TOLD
          told = told | ((LOAD(me, WORD) & FENCED) != 0);
#endif
          skip
        }
        change(me, RELEASE, 0, (ASLEEP | FENCED), value); /* E1 */
        if
        :: !told -> reach_all(); told = 1
        :: else -> fence_full(me) /* E2 */
        fi;
#elif defined SLICED
        change(me, RELEASE, 0, (ASLEEP | FENCED), value);
        fence_full(me);
#elif defined WEAK_E1
        change(me, RELAXED, 0, (ASLEEP), value);
        reach_all();
#else
        change(me, RELEASE, 0, (ASLEEP), value); /* E1 */
#ifndef WEAK_E2
        reach_all(); /* E2 */
#endif
#endif
        if
        :: DONE(t) -> break /* E3 */
        :: else
        fi;
        atomic { /* the kernel compares and sleeps in one step */
          fence_full(me);
          if
          :: mem[WORD] == value -> sleeping[me] = 1
          :: else
          fi
        }
        if
        :: !sleeping[me]
#ifdef SLICED
        :: sleeping[me] && slices > 0 && DONE(t) && MAY_END -> atomic { slices--; sleeping[me] = 0 }
#endif
        fi
     od;
     atomic { t++; value = 0 }
  od
}

#ifdef CANCEL
#define CANCELLER (SIGNALLERS + SLEEPERS)
proctype canceller() {
  byte word;
  store_relaxed(CANCELLER, CANCELLED, 1);
#ifdef WEAK_NUDGE
  change(CANCELLER, RELAXED, 0, 0, word);
#else
  change(CANCELLER, RELEASE, EPOCH, 0, word);
#endif
  atomic { fence_full(CANCELLER); WAKE_ALL }
}
#endif

init {
  atomic {
    byte i;
    mem[WISH] = 99; /* left from another wait */
    do
    :: i < SIGNALLERS -> run signaller(i); run buffer(i); i++
    :: else -> break
    od;
    do
    :: i < SIGNALLERS + SLEEPERS -> run sleeper(i); run buffer(i); i++
    :: else -> break
    od;
#ifdef CANCEL
    run canceller();
    run buffer(CANCELLER);
#endif
    i = 0
  }
}
