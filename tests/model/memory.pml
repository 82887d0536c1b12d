/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weak memory for Spin, which by itself is sequentially consistent.
 *
 * Stores. Each process has a buffer of stores that nobody else sees yet. They reach memory in any order that C11
 * allows: relaxed ones in any order, but for those to one place; a release store after all before it; none over a FENCE
 * mark, which a release fence leaves behind. A full fence waits until the buffer is empty. A compare-exchange decides
 * at once, and keeps others from deciding about that word, but what it stores goes through the buffer as well: later
 * loads may be done before others see it, as on Arm.
 *
 * Loads. One is done where it stands, and finds the newest store of its own process, or else memory. Those that C11
 * allows to be done early, because no acquire stands before them, are written twice in the models: the place where it
 * is to happen, and, under a mutation, the earlier place.
 *
 * A process that is killed leaves its buffer, which still reaches memory: only then the kernel tells of its death.
 */
#ifndef DEPTH
#define DEPTH 4
#endif

#define PLACE   31 /* the bits of an entry that say where to; a FENCE is a place that there is not */
#define FENCE   31
#define RELAXED 0
#define RELEASE 32
#define CAS     64

byte mem[PLACES];
byte at[PROCESSES * DEPTH], is[PROCESSES * DEPTH], held[PROCESSES];
byte exclusive; /* a bit for each word that is being exchanged */
#define EXCLUSIVE(x) (1 << ((x) - FIRST_WORD))

#define AT(p, i)      at[(p) * DEPTH + (i)]
#define IS(p, i)      is[(p) * DEPTH + (i)]
#define TO(p, i, x)   (held[p] > (i) && (AT(p, i) & PLACE) == (x))
#define EMPTY(p)      (held[p] == 0)

#if DEPTH == 4
#define LOAD(p, x) \
  (TO(p, 3, x) -> IS(p, 3) : (TO(p, 2, x) -> IS(p, 2) : (TO(p, 1, x) -> IS(p, 1) : (TO(p, 0, x) -> IS(p, 0) : mem[x]))))
#elif DEPTH == 3
#define LOAD(p, x) (TO(p, 2, x) -> IS(p, 2) : (TO(p, 1, x) -> IS(p, 1) : (TO(p, 0, x) -> IS(p, 0) : mem[x])))
#endif

inline push(p, how, place, value) {
  atomic {
    held[p] < DEPTH;
    AT(p, held[p]) = (how) | (place);
    IS(p, held[p]) = value;
    held[p]++
  }
}

inline store_relaxed(p, place, value) { push(p, RELAXED, place, value) }
inline store_release(p, place, value) { push(p, RELEASE, place, value) }
inline fence_full(p) { EMPTY(p) }
inline fence_release(p) {
  atomic {
    if
    :: EMPTY(p)
    :: !EMPTY(p) && held[p] < DEPTH -> push(p, RELAXED, FENCE, 0)
    fi
  }
}

/* Sets `did`; `how` says what it orders. */
inline exchange(p, how, place, found, value, did) {
  atomic {
    !(exclusive & EXCLUSIVE(place)) && held[p] < DEPTH;
    if
    :: LOAD(p, place) == (found) ->
      exclusive = exclusive | EXCLUSIVE(place); push(p, (how) | CAS, place, value); did = 1
    :: else -> did = 0
    fi
  }
}

/* Whether the i-th may go before those in front of it. */
#define FREE_OF(p, i, j) ((AT(p, j) & PLACE) != FENCE && (AT(p, j) & PLACE) != (AT(p, i) & PLACE))
#define MAY_PASS(p, i)   (held[p] > (i) && !(AT(p, i) & RELEASE) && (AT(p, i) & PLACE) != FENCE)

inline move_up(p, from) {
  k = from;
  do
  :: k + 1 < held[p] -> AT(p, k) = AT(p, k + 1); IS(p, k) = IS(p, k + 1); k++
  :: else -> break
  od;
  held[p]--;
  AT(p, held[p]) = 0;
  IS(p, held[p]) = 0;
  k = 0
}

inline drain(p, i) {
  mem[AT(p, i) & PLACE] = IS(p, i);
  if
  :: AT(p, i) & CAS -> exclusive = exclusive & ~EXCLUSIVE(AT(p, i) & PLACE)
  :: else
  fi;
  arrived(AT(p, i) & PLACE, IS(p, i)); /* for the model to watch what becomes visible */
  move_up(p, i);
  do
  :: held[p] > 0 && AT(p, 0) == FENCE -> move_up(p, 0)
  :: else -> break
  od
}

proctype buffer(byte me) {
  byte k;
end:
  do
  :: d_step { held[me] > 0 -> drain(me, 0); k = 0 }
  :: d_step { MAY_PASS(me, 1) && FREE_OF(me, 1, 0) -> drain(me, 1); k = 0 }
  :: d_step { MAY_PASS(me, 2) && FREE_OF(me, 2, 0) && FREE_OF(me, 2, 1) -> drain(me, 2); k = 0 }
#if DEPTH > 3
  :: d_step { MAY_PASS(me, 3) && FREE_OF(me, 3, 0) && FREE_OF(me, 3, 1) && FREE_OF(me, 3, 2) -> drain(me, 3); k = 0 }
#endif
  od
}
