/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: publish, room, join, leave, evict, reap (ring/ring.c). One writer, two readers, CELLS places for frames.
 * A frame takes one cell (or two, with -DSIZES); a cell has a commit word and a payload, which is the frame's position:
 * who finds another there has read a torn frame. It starts in the second lap, with the first lap's words still
 * lying there.
 *
 *   -DFRAMES=n    how many are written
 *   -DJOINS=n     how often each reader attaches; without: attached from the start
 *   -DEVICTIONS=n how many the writer may evict   -DDEATHS=n   how many readers may be killed, between any two steps
 *   -DKILL_WRITER the writer may be killed  -DSLOTS=n     1 or 2     -DLEAVES  readers leave whenever they like
 *   -DREADERS=n   1 or 2                    -DPINS   a reader may pin a frame, and read it again after its lease
 *   -DLATEST      readers start at the newest frame, or at the newest that the writer has given a tag
 */
#ifndef CELLS
#define CELLS 4
#endif
#ifndef GRANT
#define GRANT (CELLS / 2)
#endif
#ifndef READERS
#define READERS 2
#endif
#ifndef SLOTS
#define SLOTS READERS
#endif
#ifndef JOINS
#define JOINS 0
#define ATTACHED 1
#else
#define ATTACHED 0
#endif
#ifndef EVICTIONS
#define EVICTIONS 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#ifdef SIZES
#define TWO_CELLS 1
#else
#define TWO_CELLS 0
#endif
#define BASE (CELLS + 1)
#define LAST (BASE + FRAMES)
#define JUNK 200 /* a payload, where a commit word may lie at another time */

/* Places. */
#define COMMIT(p)  ((p) % CELLS)
#define DATA(p)    (CELLS + (p) % CELLS)
#define TAIL       (2 * CELLS)
#define CLOSED     (2 * CELLS + 1)
#ifdef LATEST
#define NEWEST     (2 * CELLS + 2)
#define TAGGED     (2 * CELLS + 3)
#define FIRST_WORD (2 * CELLS + 4)
#else
#define FIRST_WORD (2 * CELLS + 2)
#endif
#define OWNER(s)   (FIRST_WORD + (s))
#define CURSOR(s)  (FIRST_WORD + SLOTS + (s))
#define PLACES     (FIRST_WORD + 2 * SLOTS)
#define PROCESSES  (1 + READERS)

/* Owner words: whose | turn | state. */
#define FREE    0
#define JOINING 1
#define ACTIVE  2
#define EVICTED 3
#define STATE(w) ((w) & 3)
#define WHO(w)   ((w) >> 4)
#ifdef WEAK_TURN
#define CLAIMED(w, me) ((me) << 4 | JOINING)
#define FREED(w)       FREE
#else
#define CLAIMED(w, me) ((me) << 4 | (((w) + 4) & 12) | JOINING)
#define FREED(w)       ((w) & 12)
#endif
#define AS(w, state)   (((w) & 252) | (state))

byte published = BASE; /* what the newest commit word in memory says */
bit dead[PROCESSES];
byte deaths = DEATHS;
bit killed[PROCESSES];
#ifdef WEAK_TURN
byte turns[SLOTS], turn_meant; /* counted beside the protocol */
#endif

inline arrived(x, news) {
  if
  :: (x) < CELLS && news != JUNK && news > published -> published = news
#ifdef WEAK_TURN
  :: (x) >= FIRST_WORD && (x) < CURSOR(0) && STATE(news) == JOINING -> turns[(x) - FIRST_WORD]++
#endif
  :: else
  fi
}

#include "memory.pml"

/* What must not be; named by who finds it. */
hidden byte torn_frame_taken, overwritten_frame_taken, ring_found_broken, frame_read_twice, cursor_found_broken,
  frame_lost, slot_disturbed, wrong_reader_evicted, older_than_the_newest;
#define MUST(x, name) if :: (x) :: else -> name = 1; assert(!name) fi

/* ---- Writer ----------------------------------------------------------------------------------------------------- */

#define W 0
byte tail = BASE, limit = BASE; /* the writer's own; global, so that few processes have locals that differ */

#define NEED(n) (tail + (n) + 1)
#define HELD_BY(s, n) \
  (STATE(mem[OWNER(s)]) == JOINING || (STATE(mem[OWNER(s)]) == ACTIVE && mem[CURSOR(s)] + CELLS < NEED(n)))
#if SLOTS == 2
#define ROOM_FOR(n) (!HELD_BY(0, n) && !HELD_BY(1, n))
#else
#define ROOM_FOR(n) (!HELD_BY(0, n))
#endif

#ifdef WEAK_TURN
#define BLOCKED_BY(s) blocker = s; blocking = owner; turn_meant = turns[s]
#else
#define BLOCKED_BY(s) blocker = s; blocking = owner
#endif

/* G1 and G2 of one slot. */
inline look(slot) {
  atomic {
#ifdef WEAK_G1
    if
    :: cursor = LOAD(W, CURSOR(slot)); early = 1
    :: early = 0
    fi
  }
  atomic {
#endif
    owner = LOAD(W, OWNER(slot)); /* G1 */
    if
    :: STATE(owner) == JOINING -> BLOCKED_BY(slot); joining = 1
    :: else
    fi
  }
  atomic {
    if
    :: STATE(owner) == ACTIVE ->
#ifdef WEAK_G1
       if
       :: early
       :: else -> cursor = LOAD(W, CURSOR(slot))
       fi;
#else
       cursor = LOAD(W, CURSOR(slot)); /* G2 */
#endif
       MUST(cursor <= tail && tail - cursor <= CELLS, cursor_found_broken);
       if
       :: cursor < lowest -> lowest = cursor; BLOCKED_BY(slot)
       :: else
       fi
    :: else
    fi;
    owner = 0; cursor = 0
  }
}

/* Looks at all, and sets the limit. */
inline grant() {
#ifndef WEAK_G0
  fence_full(W); /* G0 */
#endif
  atomic { lowest = tail; blocking = 0; joining = 0 }
  look(0);
#if SLOTS == 2
  look(1);
#endif
  atomic {
    if
    :: joining
    :: else ->
       if
       :: lowest + CELLS < tail + GRANT -> lowest = lowest + CELLS
       :: else -> lowest = tail + GRANT
       fi;
       if
       :: lowest > limit -> limit = lowest
       :: else
       fi
    fi;
    lowest = 0
  }
#ifndef WEAK_L1
  fence_release(W) /* L1 */
#endif
}

/* What stands in the way is waited for, reaped or evicted. */
inline wait_for_room(size) {
  if
  :: ROOM_FOR(size) || mem[OWNER(blocker)] != blocking || !HELD_BY(blocker, size) -> skip
  :: dead[WHO(blocking)] -> exchange(W, RELEASE, OWNER(blocker), blocking, FREED(blocking), won)
#if EVICTIONS > 0
  :: evictions > 0 && !dead[WHO(blocking)] ->
     evictions--;
#ifdef WEAK_EVICTED
     exchange(W, RELEASE, OWNER(blocker), blocking, FREED(blocking), won); /* as if it were dead */
#else
     exchange(W, RELEASE, OWNER(blocker), blocking, AS(blocking, EVICTED), won); /* V1 */
#endif
#ifdef WEAK_TURN
     MUST(!won || turn_meant == turns[blocker], wrong_reader_evicted)
#endif
#endif
  fi
}

inline publish(size) {
  store_relaxed(W, DATA(tail), tail); /* W1 */
#ifdef SIZES
  if
  :: size == 2 ->
     store_relaxed(W, COMMIT(tail + 1), JUNK);
     store_relaxed(W, DATA(tail + 1), tail)
  :: else
  fi;
#endif
#ifndef WEAK_W0
  if
  :: zeroed != size -> store_relaxed(W, COMMIT(tail + size), 0); zeroed = size /* W0 */
  :: else
  fi;
#endif
#ifdef WEAK_W2
  store_relaxed(W, COMMIT(tail), tail + size);
#else
  store_release(W, COMMIT(tail), tail + size); /* W2 */
#endif
#ifdef WEAK_W0
  if
  :: zeroed != size -> store_relaxed(W, COMMIT(tail + size), 0); zeroed = size
  :: else
  fi;
#endif
#ifdef LATEST
#ifdef WEAK_N0
  store_relaxed(W, NEWEST, tail);
#else
  store_release(W, NEWEST, tail); /* N0 */
#endif
#endif
#ifdef WEAK_W3
  store_relaxed(W, TAIL, tail + size);
#else
  store_release(W, TAIL, tail + size); /* W3 */
#endif
#ifdef LATEST
  if
  :: store_release(W, TAGGED, tail) /* N4: the frame has the tag */
  :: skip
  fi;
#endif
  if
  :: tail + size + size + 1 <= limit -> store_relaxed(W, COMMIT(tail + size + size), 0) /* W0 of the next */
  :: else -> zeroed = 0
  fi;
  tail = tail + size
}

proctype writer() {
  byte n = 1, zeroed, lowest, owner, cursor, blocker, blocking, evictions = EVICTIONS;
  bit joining, won;
#ifdef WEAK_G1
  bit early;
#endif
  {
    do
    :: tail < LAST ->
#ifdef SIZES
       if
       :: n = 1
       :: tail + 2 <= LAST -> n = 2
       fi;
#endif
       do
       :: NEED(n) <= limit -> break
       :: else ->
          grant();
          if
          :: NEED(n) <= limit -> break
          :: else -> wait_for_room(n)
          fi
       od;
       publish(n)
    :: else -> break
    od;
#ifdef WEAK_C0
    store_relaxed(W, CLOSED, 1)
#else
    store_release(W, CLOSED, 1) /* C0 */
#endif
  } unless { killed[W] -> dead_writer: EMPTY(W); dead[W] = 1 }
}

/* ---- Reader ----------------------------------------------------------------------------------------------------- */

#define MINE (LOAD(me, OWNER(s)) == own)

proctype reader(byte me) {
  byte r = BASE, s, own, v, d, first, joins = JOINS;
  bit won;
#ifdef PINS
  byte pin; /* the position of a frame with a pin; 0: none */
#endif
  {
    if
    :: ATTACHED -> atomic { s = me - 1; own = me << 4 | ACTIVE }; goto next
    :: else
    fi;

  join:
    atomic {
      if
      :: joins > 0 -> joins--
      :: else -> goto gone
      fi
    }
  claim:
    atomic { /* v: the word found; only a hint */
      if
      :: STATE(LOAD(me, OWNER(0))) == FREE -> s = 0
#if SLOTS == 2
      :: STATE(LOAD(me, OWNER(0))) != FREE && STATE(LOAD(me, OWNER(1))) == FREE -> s = 1
#endif
      :: mem[CLOSED] || dead[W] -> goto gone
      fi;
      v = LOAD(me, OWNER(s))
    }
    exchange(me, RELEASE, OWNER(s), v, CLAIMED(v, me), won); /* J1 */
    atomic {
      if
      :: won -> own = CLAIMED(v, me); v = 0
      :: else -> v = 0; goto claim
      fi
    }
#ifndef WEAK_J2
    fence_full(me); /* J2 */
#endif
#ifdef LATEST
    d = published; /* what is newest here must not be passed over */
#endif
#ifdef WEAK_J3
    atomic { /* the commit word before the tail that says where it is: a guess */
      if
      :: d = 0
      :: d = 1
      :: d = 2
      :: d = 3
      fi;
      first = LOAD(me, COMMIT(d))
    }
#endif
    v = LOAD(me, TAIL); /* J3 */
#ifdef LATEST
    /* first: where the newest starts, or the newest with the tag; 0: nowhere, so it starts at the tail. */
    if
    :: first = LOAD(me, NEWEST); /* J5 */
       atomic {
         if
         :: first != 0 ->
            MUST(first >= v || v - first <= CELLS / 2, ring_found_broken);
            MUST(LOAD(me, COMMIT(first)) == first + 1, ring_found_broken);
            if
#ifndef WEAK_J5_LOOK
            :: LOAD(me, COMMIT(first + 1)) == first + 2 -> first++
#endif
            :: else
            fi;
            MUST(first + 1 >= d, older_than_the_newest)
         :: else
         fi
       }
    :: first = LOAD(me, TAGGED); /* N5 to N8 */
       atomic {
         if
#ifndef WEAK_HALF
         :: first != 0 && first < v && v - first > CELLS / 2 -> first = 0
#endif
         :: else
         fi
       }
    fi;
#endif
    atomic {
      if
#ifdef LATEST
      :: first != 0 -> v = first
#elif defined WEAK_J3
      :: v % CELLS == d && first > v && first <= v + 2 -> v = first
#elif !defined WEAK_J3_LOOK
      :: LOAD(me, COMMIT(v)) > v && LOAD(me, COMMIT(v)) <= v + 2 -> v = LOAD(me, COMMIT(v))
#endif
      :: else
      fi;
#ifdef LATEST
      first = 0; d = 0
#endif
    }
    store_relaxed(me, CURSOR(s), v);
#ifdef WEAK_J4
    exchange(me, RELAXED, OWNER(s), own, AS(own, ACTIVE), won);
#else
    exchange(me, RELEASE, OWNER(s), own, AS(own, ACTIVE), won); /* J4 */
#endif
    atomic {
#ifdef WEAK_J3
      d = 0; first = 0;
#endif
      if
#ifdef LATEST
      :: won -> own = AS(own, ACTIVE); r = v; v = 0
#else
      :: won -> own = AS(own, ACTIVE); MUST(v >= r, frame_read_twice); r = v; v = 0
#endif
      :: else -> v = 0; joins++; goto evicted
      fi
    }

  next:
#ifdef PINS
    if
    :: pin != 0 ->
    unpin:
       d = LOAD(me, DATA(pin));
       atomic { /* A0 */
         if
         :: MINE -> MUST(d == pin, overwritten_frame_taken); d = 0; pin = 0
         :: else -> d = 0; goto evicted
         fi
       }
       store_release(me, CURSOR(s), r) /* A1 */
    :: skip
    fi;
#endif
#ifdef WEAK_R1
    first = LOAD(me, DATA(r));
#endif
    if
    :: r == LAST -> goto leave
#ifdef LEAVES
    :: r < LAST -> goto leave
#endif
    :: r < LAST -> v = LOAD(me, COMMIT(r)) /* R1 */
    fi;
    if
    :: v == 0 ->
       if
       :: LOAD(me, COMMIT(r)) != 0 -> goto next
#ifdef PINS
       :: pin != 0 -> goto unpin /* the writer may be waiting for it */
#endif
       :: !MINE -> goto evicted
       :: MINE && (mem[CLOSED] || dead[W]) -> /* C1 */
#ifndef WEAK_C1
          v = LOAD(me, COMMIT(r)); /* looked again */
#endif
          if
          :: v == 0 -> atomic { MUST(!MINE || r == published, frame_lost); goto leave }
          :: else
          fi
       fi
    :: else
    fi;
#ifdef WEAK_R3
    won = MINE;
#endif
#ifndef WEAK_R1
    first = LOAD(me, DATA(r)); /* R2: what it says of itself */
#endif
    atomic {
      if
      :: first == r && (v == r + 1 || (v == r + 2 && TWO_CELLS)) -> first = 0
#ifdef WEAK_R3
      :: else -> MUST(!won, ring_found_broken); first = 0; v = 0; goto evicted
#else
      :: else -> MUST(!MINE, ring_found_broken); first = 0; v = 0; goto evicted /* R3 */
#endif
      fi
    }

    /* The frame is held, and read in place. */
#ifdef WEAK_A0
    won = MINE;
#endif
#ifdef WEAK_A1
    store_release(me, CURSOR(s), v);
#endif
#ifdef WEAK_LEAVE
    exchange(me, RELAXED, OWNER(s), own, FREED(own), won);
#endif
    d = LOAD(me, DATA(r));
#ifdef SIZES
    atomic {
      if
      :: LOAD(me, DATA(v - 1)) == d
      :: else -> d = JUNK
      fi
    }
#endif
    atomic {
#if !defined WEAK_A0 && !defined WEAK_LEAVE
      won = MINE; /* A0 */
#endif
      if
      :: won -> won = 0; MUST(d == r, overwritten_frame_taken);
#ifdef PINS
         if
         :: pin == 0 -> pin = r
         :: skip
         fi;
#endif
         r = v; v = 0; d = 0
      :: else -> v = 0; d = 0; goto evicted
      fi
    }
#ifdef WEAK_LEAVE
    goto join;
#endif
#ifdef LEAVES
    if
    :: goto leave
    :: skip
    fi;
#endif
#if defined PINS && !defined WEAK_PIN
    if
    :: pin == 0 -> store_release(me, CURSOR(s), r) /* A1 */
    :: else /* the cursor does not move over the frame with the pin */
    fi;
#elif !defined WEAK_A1
    store_release(me, CURSOR(s), r); /* A1 */
#endif
    goto next;

  leave:
#ifdef PINS
    pin = 0;
#endif
    exchange(me, RELEASE, OWNER(s), own, FREED(own), won);
    if
    :: won -> atomic { own = 0; goto join }
    :: else
    fi;

  evicted:
#if EVICTIONS > 0
    exchange(me, RELEASE, OWNER(s), AS(own, EVICTED), FREED(own), won);
    atomic { MUST(won, slot_disturbed); own = 0; goto join };
#else
    assert(false);
#endif

  gone:
    skip
  } unless { killed[me] -> EMPTY(me); dead[me] = 1 }
}

#if DEATHS > 0
proctype killer() {
  if
  :: killed[1] = 1
#if READERS == 2
  :: killed[2] = 1
#endif
  :: skip
  fi
}
#endif
#ifdef KILL_WRITER
proctype writer_killer() { killed[W] = 1 }
#endif

init {
  atomic {
    byte i = 1;
    do
    :: i < BASE -> mem[COMMIT(i)] = i + 1; mem[DATA(i)] = i; i++
    :: else -> break
    od;
    mem[COMMIT(BASE)] = 0;
    mem[TAIL] = BASE;
    i = 0;
    do
    :: i < SLOTS ->
       mem[CURSOR(i)] = ATTACHED * BASE;
       mem[OWNER(i)] = (ATTACHED -> (i + 1) << 4 | ACTIVE : FREE);
       i++
    :: else -> break
    od;
    i = 0;
    run writer();
    run buffer(W);
    run reader(1);
    run buffer(1);
#if READERS == 2
    run reader(2);
    run buffer(2);
#endif
#if DEATHS > 0
    run killer();
#endif
#ifdef KILL_WRITER
    run writer_killer();
#endif
  }
}
