/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device pool (gpu/): one writer and its stream, one place for readers, who come one after the other, and their
 * streams. The host's loads and stores are in order here; what is modelled is that streams come as late as they like.
 * Whoever reads must find what was sent.
 *
 *   -DFRAMES=n how many are sent     -DSLOTS=n of the pool     -DLIVES=n readers, one after the other
 *   -DOPENS=n times that one opens the pool                    -DDEATHS they may be killed, -DKILL_WRITER it may be
 *   -DSTREAMS=2 of the writer, in turns
 */
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef LIVES
#define LIVES 1
#endif
#ifndef OPENS
#define OPENS 1
#endif
#ifndef STREAMS
#define STREAMS 1
#endif
#if STREAMS == 1
#define NONE_WRITTEN empty(writing[0])
#else
#define NONE_WRITTEN (empty(writing[0]) && empty(writing[1]))
#endif
#define JUNK 99
#define INLINE 1
#define POOL   2

/* The ring: frames, and the reader's slot in it. */
byte kind[FRAMES], frame_slot[FRAMES], frame_generation[FRAMES];
byte tail, joining, attached;
bool writer_done, writer_dead, writer_gone;
/* The pool, its words, and the place. */
byte content[SLOTS], ready[SLOTS], ack[SLOTS];
byte owner, opened, turn, counted_for, counted;
/* Readers that were killed, and whose process has gone: from then on their streams do nothing. */
bool killed[LIVES + 1], gone[LIVES + 1];
/* The import: what its streams still have to do. */
byte taken[SLOTS];
bool dead, missing;

mtype = { COPY, READY, WAIT, READ, ACK };
chan writing[STREAMS] = [8] of { mtype, byte, byte }; /* what, slot, value */
chan reading = [8] of { mtype, byte, byte, byte, byte }; /* the same, the frame, and whose */

hidden byte other_bytes_read, a_frame_lost, a_slot_never_back;
#define MUST(x, name) if :: (x) :: else -> name = 1; assert(!name) fi

/* ---- The devices ---- */

proctype writing_stream(byte own) {
  byte slot, value;
  do
  :: atomic { !writer_gone && writing[own]?[COPY, slot, value] -> writing[own]?COPY, slot, value; content[slot] = JUNK }
     content[slot] = value /* it takes a while */
  :: atomic {
       !writer_gone && writing[own]?[READY, slot, value] -> writing[own]?READY, slot, value; ready[slot] = value
     }
  :: atomic { writer_gone -> break }
  :: atomic { writer_done && empty(writing[own]) -> break }
  od
}

#define IS_GONE gone[whose]
proctype reading_stream() {
  mtype what;
  byte slot, value, frame, whose;
end:
  do
  :: atomic { reading?what, slot, value, frame, whose };
     if
     :: IS_GONE -> skip
     :: what == WAIT && !IS_GONE -> (ready[slot] >= value || IS_GONE)
     :: what == READ && !IS_GONE ->
        atomic {
          if
          :: missing || IS_GONE || killed[whose] -> skip
          :: else -> MUST(content[slot] == frame + 1, other_bytes_read)
          fi
        }
     :: what == ACK && !IS_GONE -> ack[slot] = value
     fi;
     atomic { what = COPY; slot = 0; value = 0; frame = 0; whose = 0 }
  od
}

/* ---- The writer ---- */

byte generation[SLOTS], position[SLOTS];
bool in_use[SLOTS];
byte counted_owner, counted_turn, counted_from;

#define COUNTS(s) (counted_owner != 0 && counted_from <= position[s])
#ifdef WEAK_ACK
#define ACKED(s) true
#else
#define ACKED(s) (ack[s] >= generation[s])
#endif
#ifdef WEAK_READY
#define COPIED(s) true
#else
#define COPIED(s) (ready[s] >= generation[s])
#endif
#ifdef WEAK_GENERATION
#define NEXT(s) (generation[s] + (generation[s] == 0))
#else
#define NEXT(s) (generation[s] + 1)
#endif
#define DONE(s) (COPIED(s) && (!COUNTS(s) || ACKED(s) || owner != counted_owner || gone[counted_owner]))

#ifdef WEAK_JOINING
#define JOINS false
#else
#define JOINS (joining != 0)
#endif

proctype writer() {
  byte s, who, seen;
  bool by_pool;
  do
  :: tail == FRAMES -> break
  :: tail < FRAMES ->
     by_pool = true;
     atomic {
       who = attached; /* D1: one look at the slot's owner word */
       if
       :: JOINS -> by_pool = false; who = 0
       :: else
       fi
     };
     if
     :: who == 0 -> skip
     :: else ->
        if
        :: opened == who -> seen = turn
        :: else
        fi;
        if
#ifndef WEAK_LOOK
        :: opened != who -> seen = 0
#endif
        :: else
        fi;
        if
        :: seen != 0 && (counted_owner != who || counted_turn != seen) ->
           counted_owner = who; counted_turn = seen; counted_from = tail;
#ifndef WEAK_D2
           counted = tail; counted_for = seen /* D2 */
#endif
        :: seen == 0 ->
#ifndef WEAK_D1
           by_pool = false
#endif
        :: else
        fi
     fi;
     s = 0;
     if
     :: by_pool ->
        do
        :: s < SLOTS && (!in_use[s] || DONE(s)) -> break
        :: s < SLOTS && in_use[s] && !DONE(s) -> s++
        :: s == SLOTS -> by_pool = false; break
        od
     :: else
     fi;
     if
     :: by_pool ->
        generation[s] = NEXT(s);
        in_use[s] = true;
        position[s] = tail;
#ifdef WEAK_Q3
        ready[s] = generation[s];
#endif
        writing[tail % STREAMS]!COPY, s, tail + 1; /* Q2 */
        writing[tail % STREAMS]!READY, s, generation[s]; /* Q3 */
        atomic { frame_slot[tail] = s; frame_generation[tail] = generation[s]; kind[tail] = POOL; tail++ } /* Q4 */
     :: else -> atomic { kind[tail] = INLINE; tail++ }
     fi;
     atomic { s = 0; who = 0; seen = 0; by_pool = false }
#ifdef KILL_WRITER
  :: tail > 0 -> atomic { writer_dead = true; goto killed_here }
#endif
  od;
  writer_done = true;
  goto done;
killed_here:
  writer_gone = true; /* its stream goes on until here */
done:
  skip
}

/* The import's watcher. */
proctype watcher() {
  byte s;
end:
  (writer_gone);
  atomic {
    dead = true; /* X0 */
    do
    :: s < SLOTS && taken[s] > ack[s] && ready[s] < taken[s] ->
       missing = true;
#ifndef WEAK_X1
       ready[s] = taken[s]; /* X1 */
#endif
       s++
    :: s < SLOTS && !(taken[s] > ack[s] && ready[s] < taken[s]) -> s++
    :: s == SLOTS -> break
    od
  }
}

/* ---- Readers ---- */

#if SLOTS == 1
#define IDLE (taken[0] <= ack[0])
#else
#define IDLE (taken[0] <= ack[0] && taken[1] <= ack[1])
#endif

inline take_place(me) {
  /* What the one before has left must have come to its end. */
  (owner == 0 || gone[owner]);
  atomic { owner = me }; /* O1 */
  opened = 0;
  turn = turn + 1;
#ifdef WEAK_TURN
  turn = 1;
#endif
  mine = turn;
  atomic {
    s = 0;
    do
    :: s < SLOTS ->
       ack[s] = ready[s];
       taken[s] = 0; s++
    :: s == SLOTS -> break
    od;
    s = 0
  };
  opened = me; /* O3 */
  is_open = true
}

inline close_pool(me) {
  opened = 0;
  atomic {
#ifndef WEAK_CLOSE
    (IDLE);
#endif
    owner = 0; is_open = false
  }
}

#ifdef WEAK_O4
#define COUNTED true
#else
#define COUNTED (counted_for == mine && counted <= next)
#endif

proctype readers() {
  byte me, next, s, opens, passed, mine;
  bool is_open;
another:
  atomic { me++; opens = 0; passed = 0; is_open = false; joining = me };
  next = tail; /* what is committed from now on is its own */
  atomic { attached = me; joining = 0 };
  do
  :: !is_open && opens < OPENS && !dead -> opens++; take_place(me)
  :: is_open && opens < OPENS && next == tail -> close_pool(me)
  :: next < tail && kind[next] == INLINE -> next++
  :: next < tail && kind[next] == POOL ->
     if
     :: is_open && COUNTED && !dead -> /* O4 */
        s = frame_slot[next];
        atomic {
          if
          :: dead -> next++; goto read
          :: else -> taken[s] = frame_generation[next] /* U1 */
          fi
        };
#ifdef WEAK_U4
        reading!WAIT, s, frame_generation[next], next, me;
        ack[s] = frame_generation[next];
        reading!READ, s, 0, next, me;
#else
#ifndef WEAK_U2
        reading!WAIT, s, frame_generation[next], next, me; /* U2 */
#endif
        reading!READ, s, 0, next, me; /* U3 */
        reading!ACK, s, frame_generation[next], next, me; /* U4 */
#endif
        next++;
read:   s = 0
     :: else -> /* it was under way when this one attached, or opened the pool anew, or its writer is dead */
        passed++;
        MUST(passed <= opens + (opens == 0) || dead || writer_dead || OPENS > 1, a_frame_lost);
        next++
     fi
  :: next == tail && (writer_done || writer_gone) -> break
  :: me < LIVES && next == tail -> break
#ifdef DEATHS
  :: me < LIVES -> goto dies
#endif
  od;
  if
  :: is_open -> close_pool(me)
  :: else
  fi;
  attached = 0;
  goto next_life;
#ifdef DEATHS
dies:
  killed[me] = true;
  gone[me] = true; /* its stream, which goes on until here, does nothing more */
  atomic { attached == me -> attached = 0 } /* the writer frees its slot */
#endif
next_life:
  if
  :: me < LIVES -> goto another
  :: else
  fi;
  /* All slots come back: nobody is left who could read them. */
  (writer_done && NONE_WRITTEN || writer_gone);
  atomic {
    s = 0;
    do
    :: s < SLOTS -> MUST(writer_gone || !in_use[s] || ready[s] < generation[s] || DONE(s), a_slot_never_back); s++
    :: s == SLOTS -> break
    od
  }
}

init {
  atomic {
    run writer();
    run writing_stream(0);
#if STREAMS == 2
    run writing_stream(1);
#endif
    run readers();
    run reading_stream();
#ifdef KILL_WRITER
    run watcher()
#endif
  }
}
