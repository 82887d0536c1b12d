/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tap (ring/tap.h): it holds nobody back, so it may lose frames, but must never take one that was overwritten, and
 * must never find the ring broken. The ring is that of ring.pml without readers. Frames have two cells, of five, so
 * that a frame ends in the middle of an earlier one.
 *   -DFRAMES=n how many are written
 */
#define CELLS 5
#define GRANT 3
#define BASE  (CELLS + 1)
#define LAST  (BASE + 2 * FRAMES)
#define JUNK  200

#define COMMIT(p)  ((p) % CELLS)
#define DATA(p)    (CELLS + (p) % CELLS)
#define TAIL       (2 * CELLS)
#define LIMIT      (2 * CELLS + 1)
#define FIRST_WORD PLACES
#define PLACES     (2 * CELLS + 2)
#define PROCESSES  2
#define DEPTH      4

inline arrived(x, news) { skip }
#include "memory.pml"

hidden byte overwritten_frame_taken, ring_found_broken;
#define MUST(x, name) if :: (x) :: else -> name = 1; assert(!name) fi

#define W 0
proctype writer() {
  byte tail = BASE, limit = BASE;
  do
  :: tail == LAST -> break
  :: tail < LAST ->
     if
     :: tail + 3 <= limit -> skip
     :: else ->
        fence_full(W); /* G0 */
        limit = tail + GRANT;
#ifndef WEAK_L0
        store_relaxed(W, LIMIT, limit); /* L0 */
#endif
#ifndef WEAK_L1
        fence_release(W) /* L1 */
#endif
     fi;
     store_relaxed(W, DATA(tail), tail); /* W1, and L2 */
     store_relaxed(W, COMMIT(tail + 1), JUNK);
     store_relaxed(W, DATA(tail + 1), tail);
     store_relaxed(W, COMMIT(tail + 2), 0); /* W0 */
     store_release(W, COMMIT(tail), tail + 2); /* W2 */
#ifdef WEAK_L0
     store_relaxed(W, LIMIT, limit);
#endif
     store_release(W, TAIL, tail + 2); /* W3 */
     tail = tail + 2
  od
}

#define T 1
#define WHOLE(limit) (limit <= next + CELLS)

proctype tap() {
  byte next = BASE, end, data, limit, tail;
again:
  if
  :: next >= LAST -> goto done
  :: else
  fi;
#ifdef WEAK_T2
  limit = mem[LIMIT];
#endif
#ifdef WEAK_T1
  data = mem[DATA(next)];
#endif
  end = mem[COMMIT(next)]; /* T1 */
#ifndef WEAK_T1
  data = mem[DATA(next)];
#endif
#ifdef WEAK_T3
  tail = mem[TAIL];
#endif
#ifndef WEAK_T2
  limit = mem[LIMIT]; /* T2, T3 */
#endif
  if
  :: WHOLE(limit) ->
     if
     :: end == 0 ->
        atomic { end = 0; data = 0; limit = 0; tail = 0; (mem[COMMIT(next)] != 0 || !WHOLE(mem[LIMIT])) -> goto again }
     :: else ->
        atomic {
          MUST(end == next + 2, ring_found_broken); MUST(data == next, overwritten_frame_taken); next = next + 2
        }
     fi
  :: else ->
#ifndef WEAK_T3
     tail = mem[TAIL];
#endif
     atomic { MUST(tail > next, ring_found_broken); next = tail }
  fi;
  atomic { end = 0; data = 0; limit = 0; tail = 0; goto again };
done:
  skip
}

init {
  atomic {
    byte i = 1;
    do
    :: i < BASE -> mem[COMMIT(i)] = JUNK; mem[DATA(i)] = JUNK; i++
    :: else -> break
    od;
    mem[COMMIT(BASE)] = 0;
    mem[TAIL] = BASE;
    mem[LIMIT] = BASE + 1;
    i = 0;
    run writer();
    run buffer(W);
    run tap()
  }
}
