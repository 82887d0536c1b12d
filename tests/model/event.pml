/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping and waking (ring/eventcount.h). Each signaller does its thing ROUNDS times; each sleeper wants to see the
 * first, second, ... thing of all signallers. Nothing else wakes a sleeper, so a lost wake-up is an invalid end state.
 *
 *   -DSIGNALLERS=n -DSLEEPERS=n -DROUNDS=n
 *   -DWANTED    a signaller wakes only once its thing is enough (wake_sleeper in channel/reader.c)
 *   -DTIMEOUTS  a wait may end without a signal; then the sleeper takes its announcement back
 *   -DUNFENCED  signallers leave E5 out, and may even do E6 before E4; sleepers settle (E9): the first sleep may end
 *               without a signal once all things that signallers had begun when it began are in memory
 *   -DCANCEL    another party cancels the wait, which nothing else would end (rc_eventcount_nudge)
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

#define SLEEPER 1 /* the word counts epochs and, below them, sleepers */
#define COUNT   3
#define EPOCH   4

inline arrived(x, news) { skip }
#include "memory.pml"

bit sleeping[PROCESSES];
#ifdef UNFENCED
#define WEAK_E5
byte begun[SIGNALLERS];   /* the newest thing of which E4 or E6 is done */
byte awaited[PROCESSES]; /* by a sleeper: the things begun before its first sleep, one digit for each signaller */
#define BEGIN(p, thing) begun[p] = thing
#if SIGNALLERS == 2
#define ALL_BEGUN     (begun[0] + 16 * begun[1])
#define HAS_SETTLED(p) (mem[THING(0)] >= (awaited[p] & 15) && mem[THING(1)] >= (awaited[p] >> 4))
#else
#define ALL_BEGUN     (begun[0])
#define HAS_SETTLED(p) (mem[THING(0)] >= awaited[p])
#endif
#else
#define BEGIN(p, thing) skip
#endif
#ifdef TIMEOUTS
byte timeouts = TIMEOUTS;
#endif

/* A read-modify-write that can't fail; `result` gets what it stored. */
inline change(p, how, more, result) {
  atomic {
    !(exclusive & EXCLUSIVE(WORD)) && held[p] < DEPTH;
    result = LOAD(p, WORD) + more;
    exclusive = exclusive | EXCLUSIVE(WORD);
    push(p, (how) | CAS, WORD, result)
  }
}

/* E8: an exchange that is tried until it succeeds, or has nothing to do. */
#ifdef WEAK_E8
#define IS_COUNTED(p, value) (LOAD(p, WORD) & COUNT)
#else
#define IS_COUNTED(p, value) ((LOAD(p, WORD) & COUNT) && (LOAD(p, WORD) & ~COUNT) == (value & ~COUNT))
#endif
inline withdraw(p, value) {
  atomic {
    !(exclusive & EXCLUSIVE(WORD)) && held[p] < DEPTH;
    if
    :: IS_COUNTED(p, value) ->
       value = LOAD(p, WORD) - SLEEPER;
       exclusive = exclusive | EXCLUSIVE(WORD);
       push(p, RELEASE | CAS, WORD, value)
    :: else
    fi;
    value = 0
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
  do
  :: i > ROUNDS -> break
  :: else ->
#ifdef UNFENCED
     if
     :: atomic { word = LOAD(me, WORD); BEGIN(me, i) }; /* E6 before E4 */
        store_release(me, THING(me), i)
     :: atomic { store_release(me, THING(me), i); BEGIN(me, i) };
        word = LOAD(me, WORD)
     fi;
#else
     store_release(me, THING(me), i); /* E4 */
#ifndef WEAK_E5
     fence_full(me); /* E5 */
#endif
#ifdef WEAK_E6
     wish = LOAD(me, WISH);
#endif
     word = LOAD(me, WORD); /* E6 */
#endif
     if
     :: word & COUNT ->
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
           :: word & COUNT -> exchange(me, RELEASE, WORD, word, (word + EPOCH) & ~COUNT, won) /* E7 */
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

proctype sleeper(byte me) {
  byte t = 1, value;
  do
  :: t > ROUNDS + CANCELS -> break
  :: else ->
     do
     :: DONE(t) -> break
     :: else ->
#ifdef WANTED
        store_relaxed(me, WISH, t);
#endif
#ifdef WEAK_E1
        change(me, RELAXED, SLEEPER, value);
#else
        change(me, RELEASE, SLEEPER, value); /* E1 */
#endif
#ifndef WEAK_E2
        fence_full(me); /* E2 */
#endif
        if
        :: DONE(t) /* E3 */
        :: else ->
           atomic { /* the kernel compares and sleeps in one step */
             fence_full(me);
             if
             :: (mem[WORD] & ~COUNT) == (value & ~COUNT) ->
                sleeping[me] = 1;
#ifdef UNFENCED
                awaited[me] = ALL_BEGUN
#endif
             :: else
             fi
           };
           if
           :: !sleeping[me]
#ifdef UNFENCED
           :: atomic { sleeping[me] && HAS_SETTLED(me) -> sleeping[me] = 0; awaited[me] = 0 };
#ifdef WEAK_STANDS
              withdraw(me, value);
              change(me, RELEASE, SLEEPER, value);
              fence_full(me);
#endif
#ifndef WEAK_E9
              if
              :: DONE(t) -> goto over
              :: else
              fi;
#endif
              atomic {
                fence_full(me);
                if
                :: (mem[WORD] & ~COUNT) == (value & ~COUNT) -> sleeping[me] = 1
                :: else
                fi
              };
              !sleeping[me];
            over:
              skip
#endif
#ifdef TIMEOUTS
           :: atomic { sleeping[me] && timeouts > 0 -> timeouts--; sleeping[me] = 0 }
#endif
           fi
        fi;
        withdraw(me, value)
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
  change(CANCELLER, RELAXED, 0, word);
#else
  change(CANCELLER, RELEASE, EPOCH, word);
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
