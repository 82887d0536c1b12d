/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames beside the ring (ring/spill.c, ring/tap.h): one region of SPILL, of two pieces, which one frame after the
 * other takes; a reader that holds the writer back, by its cursor, and can be evicted; and a tap that only has the
 * floor. The notes have a place each, as the ring itself is proven in ring.pml.
 *
 *   -DFRAMES=n how many
 *   -DCUT      the writer commits the note before it has written anything, and the reader follows
 *   -DEVICT    the writer may evict the reader      -DTAP   a tap reads, too
 *   -DBREAK    it may take a frame back (with CUT)
 */
#define NOTE(p)     (p)                /* its commit word: 0 or 1 */
#define PROGRESS(p) (FRAMES + (p))     /* of its note: pieces there, WHOLE or BROKEN */
#define BYTES(p)    (2 * FRAMES + (p)) /* of its note: pieces in all; the reservation's until it is whole */
#define PIECE(i)    (3 * FRAMES + (i))
#define CURSOR      (3 * FRAMES + 2)
#define FLOOR       (3 * FRAMES + 3)
#define OWNER       (3 * FRAMES + 4)
#define FIRST_WORD  OWNER
#define PLACES      (3 * FRAMES + 5)
#define PROCESSES   2
#define DEPTH       4

#define WHOLE  9
#define BROKEN 8
#define ACTIVE  1
#define EVICTED 2
#define LONG    3 /* what is reserved; a frame has two pieces */

inline arrived(x, news) { skip }
#include "memory.pml"

hidden byte overwritten_frame_taken, length_believed_that_was_wrong;
#define MUST(x, name) if :: (x) :: else -> name = 1; assert(!name) fi
#define TAG(p) ((p) + 1)

#define W 0
#define R 1

inline progress_to(value_now) {
#ifdef WEAK_P1
  store_relaxed(W, PROGRESS(f), value_now)
#else
  store_release(W, PROGRESS(f), value_now) /* P1 */
#endif
}

proctype writer() {
  byte f;
  bit won, breaks;
  do
  :: f == FRAMES -> break
  :: f < FRAMES ->
     /* Room: the region is free once the cursor is past its frame. G0 and G2, as in ring.pml. */
     fence_full(W);
     if
     :: mem[OWNER] == EVICTED || mem[CURSOR] >= f -> skip
#ifdef EVICT
     :: mem[OWNER] == ACTIVE ->
        exchange(W, RELEASE, OWNER, ACTIVE, EVICTED, won); /* V1 */
#ifndef WEAK_G0
        fence_full(W) /* the look that follows */
#endif
#endif
     fi;
#ifndef WEAK_S0
     store_relaxed(W, FLOOR, f); /* S0: frames below it are gone */
#endif
#ifndef WEAK_S1
     fence_release(W); /* S1 */
#endif
#ifdef CUT
     store_relaxed(W, BYTES(f), LONG);
     store_relaxed(W, PROGRESS(f), 0);
     store_release(W, NOTE(f), 1); /* W2 */
     store_relaxed(W, PIECE(0), TAG(f)); /* P0, S2 */
     progress_to(1);
#ifdef BREAK
     if
     :: breaks = 1; progress_to(BROKEN)
     :: skip
     fi;
#endif
     if
     :: breaks -> breaks = 0
     :: else ->
        store_relaxed(W, PIECE(1), TAG(f));
        store_relaxed(W, BYTES(f), 2);
        progress_to(WHOLE)
     fi;
#else
     store_relaxed(W, PIECE(0), TAG(f)); /* S2 */
     store_relaxed(W, PIECE(1), TAG(f));
     store_relaxed(W, BYTES(f), 2);
     store_relaxed(W, PROGRESS(f), WHOLE);
#ifdef WEAK_W2
     store_relaxed(W, NOTE(f), 1);
#else
     store_release(W, NOTE(f), 1); /* W2 */
#endif
#endif
#ifdef WEAK_S0
     store_relaxed(W, FLOOR, f);
#endif
     f++
  od
}

#define MINE (mem[OWNER] == ACTIVE)
#define THERE(v) (v == WHOLE -> 2 : v)

proctype reader() {
  byte f, progress, bytes, i, piece;
#ifdef WEAK_A0
  bit mine;
#endif
  do
  :: f == FRAMES -> break
  :: f < FRAMES ->
     if
     :: mem[NOTE(f)] == 1 /* R1 */
     :: mem[NOTE(f)] == 0 && !MINE -> break
     fi;
  look:
#ifdef WEAK_P2
     bytes = mem[BYTES(f)];
     if
     :: i < 2 -> piece = mem[PIECE(i)]
     :: else
     fi;
     progress = mem[PROGRESS(f)];
#else
     atomic {
       mem[PROGRESS(f)] == WHOLE || mem[PROGRESS(f)] == BROKEN || mem[PROGRESS(f)] > i ->
       progress = mem[PROGRESS(f)] /* P2 */
     }
     bytes = mem[BYTES(f)];
#endif
     atomic {
       MUST(progress != WHOLE || bytes == 2, length_believed_that_was_wrong);
       if
       :: progress == BROKEN -> goto release
       :: else
       fi
     }
     do
     :: i < THERE(progress) ->
#ifdef WEAK_A0
        mine = MINE;
#endif
#ifndef WEAK_P2
        piece = mem[PIECE(i)]; /* P3 */
#endif
        atomic { /* A0 */
          if
#ifdef WEAK_A0
          :: mine -> MUST(piece == TAG(f), overwritten_frame_taken); piece = 0; i++
#else
          :: MINE -> MUST(piece == TAG(f), overwritten_frame_taken); piece = 0; i++
#endif
          :: else -> goto done
          fi
        }
#ifdef WEAK_P2
        break
#endif
     :: else -> break
     od;
     if
     :: i < 2 -> goto look
     :: else
     fi;
  release:
     store_release(R, CURSOR, f + 1); /* A1 */
     atomic { f++; i = 0; bytes = 0; progress = 0; piece = 0 }
  od;
done:
  skip
}

#ifdef TAP
proctype tap() {
  byte f, i, piece, floor;
  do
  :: f == FRAMES -> break
  :: f < FRAMES ->
     (mem[NOTE(f)] == 1); /* T1, and the note, which is whole: see tap.pml */
     if
     :: mem[PROGRESS(f)] == BROKEN -> goto next
     :: mem[PROGRESS(f)] == WHOLE
     fi;
     do
     :: i == 2 -> break
     :: i < 2 ->
#ifdef WEAK_T5
        floor = mem[FLOOR];
#endif
        piece = mem[PIECE(i)]; /* T4 */
#ifndef WEAK_T5
        floor = mem[FLOOR]; /* T5, T6 */
#endif
        atomic {
          if
          :: floor > f -> break /* lost */
          :: else -> MUST(piece == TAG(f), overwritten_frame_taken); i++
          fi
        }
     od;
  next:
     atomic { f++; i = 0; piece = 0; floor = 0 }
  od
}
#endif

init {
  atomic {
    mem[OWNER] = ACTIVE;
    run writer();
    run buffer(W);
    run reader();
    run buffer(R);
#ifdef TAP
    run tap()
#endif
  }
}
