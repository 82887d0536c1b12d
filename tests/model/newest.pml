/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of tags (ring/newest.c): one entry, which two tags take from each other, and a reader that looks for a tag.
 * What the reader finds must be a frame of its tag, committed, and not older than the entry said when the look began;
 * and an entry that is the tag's must not be passed over. The frame's own memory is proven in ring.pml.
 *
 *   -DFRAMES=n how many are written, each with one of the tags
 */
#define ENTRY_PLACE 0
#define ENTRY_TAG   1
#define COMMIT(n)   (1 + (n))
#define PLACES      (2 + FRAMES)
#define FIRST_WORD  PLACES
#define PROCESSES   1
#define DEPTH       4

inline arrived(x, news) { skip }
#include "memory.pml"

hidden byte frame_of_another_tag, frame_that_is_not_committed, older_than_the_newest, entry_passed_over;
#define MUST(x, name) if :: (x) :: else -> name = 1; assert(!name) fi

byte tags[FRAMES + 1]; /* what the writer gave each frame */

#define W 0
proctype writer() {
  byte n = 1;
  do
  :: n > FRAMES -> break
  :: n <= FRAMES ->
     if
     :: tags[n] = 1
     :: tags[n] = 2
     fi;
     store_release(W, COMMIT(n), 1); /* W2 */
     if
     :: LOAD(W, ENTRY_PLACE) != 0 && LOAD(W, ENTRY_TAG) == tags[n] -> skip
     :: else ->
#ifndef WEAK_N1
        store_relaxed(W, ENTRY_PLACE, 0); /* N1 */
#endif
#ifndef WEAK_N2
        fence_release(W); /* N2 */
#endif
        store_relaxed(W, ENTRY_TAG, tags[n]) /* N3 */
     fi;
#ifdef WEAK_N4
     store_relaxed(W, ENTRY_PLACE, n);
#else
     store_release(W, ENTRY_PLACE, n); /* N4 */
#endif
     n++
  od
}

#define MINE        1
#define IS_MINE(p)  ((p) != 0 && tags[p] == MINE)

proctype reader() {
  byte place, tag, again, least;
  atomic {
    if
    :: IS_MINE(mem[ENTRY_PLACE]) -> least = mem[ENTRY_PLACE]
    :: else
    fi
  }
look:
#ifdef WEAK_N5
  tag = mem[ENTRY_TAG];
#endif
  place = mem[ENTRY_PLACE]; /* N5 */
#if !defined WEAK_N5 && !defined WEAK_N7
  tag = mem[ENTRY_TAG]; /* N6 */
#endif
#ifdef WEAK_N8
  again = place;
#else
  again = mem[ENTRY_PLACE]; /* N8 */
#endif
#ifdef WEAK_N7
  tag = mem[ENTRY_TAG];
#endif
  if
  :: again != place -> goto look
  :: else ->
     if
     :: place != 0 && tag == MINE ->
        MUST(IS_MINE(place), frame_of_another_tag);
        MUST(mem[COMMIT(place)] == 1, frame_that_is_not_committed);
        MUST(place >= least, older_than_the_newest)
     :: else -> MUST(!IS_MINE(place), entry_passed_over)
     fi
  fi
}

init {
  atomic {
    run writer();
    run buffer(W);
    run reader()
  }
}
