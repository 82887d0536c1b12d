/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames beside the ring (ring/spill.c, ring/tap.h): one region of SPILL, of two pieces, which one frame after the
 * other takes; a reader that holds the writer back, by its cursor, and can be evicted; and a tap that only has the
 * floor. The notes have a place each, as the ring itself is proven in ring.pml.
 *
 *   -DFRAMES=n how many
 *   -DEVICT    the writer may evict the reader      -DTAP   a tap reads, too
 *   -DLATEST   another reader joins at the newest frame
 */
#define NOTE(p)     (p)                /* its commit word: 0 or 1 */
#define BYTES(p)    (FRAMES + (p))     /* of its note: pieces in all */
#define PIECE(i)    (2 * FRAMES + (i))
#define CURSOR      (2 * FRAMES + 2)
#define FLOOR       (2 * FRAMES + 3)
#define OWNER       (2 * FRAMES + 4)
#define FIRST_WORD  OWNER
#ifdef LATEST
#define LATE        (2 * FRAMES + 5) /* the owner word of the reader that joins, and its cursor */
#define LATE_CURSOR (2 * FRAMES + 6)
#define NEWEST      (2 * FRAMES + 7) /* 1 + the newest frame */
#define PLACES      (2 * FRAMES + 8)
#define PROCESSES   3
#define LET_GO(f)   (mem[LATE] == FREE || (mem[LATE] == ACTIVE && mem[LATE_CURSOR] >= (f))) /* G1, G2 */
#else
#define PLACES      (2 * FRAMES + 5)
#define PROCESSES   2
#define LET_GO(f)   true
#endif
#define DEPTH       4

#define FREE    0
#define ACTIVE  1
#define EVICTED 2
#define JOINING 3

inline arrived(x, news) { skip }
#include "memory.pml"

hidden byte overwritten_frame_taken, length_believed_that_was_wrong;
#define MUST(x, name) if :: (x) :: else -> name = 1; assert(!name) fi
#define TAG(p) ((p) + 1)

#define W 0
#define R 1

proctype writer() {
  byte f;
  bit won;
  do
  :: f == FRAMES -> break
  :: f < FRAMES ->
     /* Room: the region is free once the cursor is past its frame. G0 and G2, as in ring.pml. */
     fence_full(W);
     if
     :: (mem[OWNER] == EVICTED || mem[CURSOR] >= f) && LET_GO(f) -> skip
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
     fence_full(W); /* S1, the look again */
#endif
#ifndef WEAK_LOOK
     LET_GO(f);
#endif
     store_relaxed(W, PIECE(0), TAG(f)); /* S2 */
     store_relaxed(W, PIECE(1), TAG(f));
     store_relaxed(W, BYTES(f), 2);
#ifdef WEAK_W2
     store_relaxed(W, NOTE(f), 1);
#else
     store_release(W, NOTE(f), 1); /* W2 */
#endif
#ifdef LATEST
     store_release(W, NEWEST, f + 1); /* N0 */
#endif
#ifdef WEAK_S0
     store_relaxed(W, FLOOR, f);
#endif
     f++
  od
}

#define MINE (mem[OWNER] == ACTIVE)

proctype reader() {
  byte f, i, piece;
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
     atomic { MUST(mem[BYTES(f)] == 2, length_believed_that_was_wrong) }
     do
     :: i < 2 ->
#ifdef WEAK_A0
        mine = MINE;
#endif
        piece = mem[PIECE(i)];
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
     :: else -> break
     od;
     store_release(R, CURSOR, f + 1); /* A1 */
     atomic { f++; i = 0; piece = 0 }
  od;
done:
  skip
}

#ifdef LATEST
#define L 2
/* Joins once, reads the newest frame, and leaves. */
proctype late() {
  byte f;
  bit won;
  exchange(L, RELEASE, LATE, FREE, JOINING, won); /* J1 */
  fence_full(L);                                  /* J2 */
  f = mem[NEWEST];                                /* J5 */
  if
  :: f == 0 || mem[FLOOR] > f - 1 -> skip /* J6: gone, it starts at the next */
  :: else ->
     store_relaxed(L, LATE_CURSOR, f - 1);
     exchange(L, RELEASE, LATE, JOINING, ACTIVE, won); /* J4 */
     atomic { MUST(mem[PIECE(0)] == TAG(f - 1), overwritten_frame_taken) };
     atomic { MUST(mem[PIECE(1)] == TAG(f - 1), overwritten_frame_taken) }
  fi;
  store_release(L, LATE, FREE)
}
#endif

#ifdef TAP
proctype tap() {
  byte f, i, piece, floor;
  do
  :: f == FRAMES -> break
  :: f < FRAMES ->
     (mem[NOTE(f)] == 1); /* T1, and the note, which is whole: see tap.pml */
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
#ifdef LATEST
    run late();
    run buffer(L);
#endif
#ifdef TAP
    run tap()
#endif
  }
}
