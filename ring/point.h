/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named points: places in the code where a process that dies or is stopped leaves the ring in a
 * state of its own. tests/process/kill kills and stops a process at each point. Objects compiled
 * with RINGCAST_POINTS call rc_test_point; in the library a point is empty.
 *
 * Each name has a label for the process that passes the point, and when:
 *   CREATES  WRITES  CLOSES   the writer, creating the ring, sending, closing the ring
 *   ATTACHES  READS  LEAVES   a reader, attaching, reading, closing
 *   WAITS                     the sleeper, or the signaller
 *   POLLS                     a reader that sleeps on its file descriptor
 *   MOURNS                    a reader that finds the writer dead
 *   REAPS                     the writer, for a dead reader
 *   EVICTS                    the writer, for a slow reader
 *   STALE                     a reader after its eviction
 *   REFUSES                   the writer, for a reader stopped while joining
 *   REFUSED                   that reader
 */
#ifndef RC_RING_POINT_H
#define RC_RING_POINT_H

/* clang-format off */
#define RC_ALL_POINTS(X) \
  /* Publishing, and room: atop ring.c. */ \
  X(PUBLISH, WRITES) X(W0_DONE, WRITES) X(W1_DONE, WRITES) X(W2_DONE, WRITES) X(W3_DONE, WRITES) \
  X(ZEROED_AHEAD, WRITES) X(GRANT, WRITES) X(L0_DONE, WRITES) X(L1_DONE, WRITES) \
  X(ABORTED, WRITES) X(TAG_EMPTIED, WRITES) X(TAG_NOTED, WRITES) X(PACKED, WRITES) \
  /* Spilled frames: atop spill.c; and committing SPILL's memory. */ \
  X(DESCRIPTOR_ROOM, WRITES) X(RECLAIM, WRITES) X(S0_DONE, WRITES) X(S1_DONE, WRITES) \
  X(PROVIDE, WRITES) X(PROVIDED, WRITES) X(MOVED, WRITES) X(DESCRIPTOR_WRITTEN, WRITES) \
  X(DESCRIPTOR_PUBLISHED, WRITES) X(PUNCH, WRITES) X(PUNCHED, WRITES) X(EPOCH_DONE, WRITES) \
  /* Reading. */ \
  X(R2_DONE, READS) X(SPILL_CHECKED, READS) X(RELEASE, READS) X(A0_DONE, READS) X(A1_DONE, READS) \
  X(CURSOR_MOVED, READS) X(RETAINED, READS) X(UNSHARE, READS) X(UNSHARED, READS) \
  X(MOURN, MOURNS) X(MOURNED, MOURNS) X(TOLD_STALE, STALE) \
  /* Sleeping and waking: atop eventcount.h. */ \
  X(E1_DONE, WAITS) X(E2_DONE, WAITS) X(E3_DONE, WAITS) X(SLEPT, WAITS) X(E8_DONE, WAITS) \
  X(E6_DONE, WAITS) X(E7_DONE, WAITS) X(WOKEN, WAITS) X(POLL, POLLS) X(POLL_ARMED, POLLS) \
  /* The ring's beginning and end. */ \
  X(DATA_MADE, CREATES) X(CONTROL_MADE, CREATES) X(SPILL_MADE, CREATES) X(UNSEALED, CREATES) \
  X(IDENTIFIED, CREATES) X(READY, CREATES) X(CREATED, CREATES) \
  X(CLOSE, CLOSES) X(DROPPED, CLOSES) X(CLOSED, CLOSES) X(CLOSE_TOLD, CLOSES) X(UNMAPPED, CLOSES) \
  /* Slots: atop slot.c. */ \
  X(CONTROL_MAPPED, ATTACHES) X(DATA_MAPPED, ATTACHES) X(SPILL_MAPPED, ATTACHES) X(JOIN, ATTACHES) \
  X(J1_DONE, ATTACHES) X(NAMED, ATTACHES) X(J2_DONE, ATTACHES) X(J3_DONE, ATTACHES) \
  X(CURSOR_STANDS, ATTACHES) X(J4_DONE, ATTACHES) X(JOINED, ATTACHES) X(JOIN_TOLD, ATTACHES) \
  X(LEAVE, LEAVES) X(FREED, LEAVES) X(LEAVE_TOLD, LEAVES) X(REAP, REAPS) X(REAPED, REAPS) \
  X(EVICT, EVICTS) X(V1_DONE, EVICTS) X(EVICT_COUNTED, EVICTS) X(EVICT_TOLD, EVICTS) \
  X(REFUSE, REFUSES) X(REFUSE_DONE, REFUSES) X(CLAIM_LOST, REFUSED) X(CLAIM_GIVEN_UP, REFUSED)
/* clang-format on */

enum rc_point {
#define RC_POINT_OF(name, passer) RC_POINT_##name,
  RC_ALL_POINTS(RC_POINT_OF)
#undef RC_POINT_OF
      RC_POINT_COUNT
};

#ifdef RINGCAST_POINTS
void rc_test_point(unsigned point); /* enum rc_point, or a number above; defined by the test */
#define RC_POINT(name) rc_test_point(RC_POINT_##name)
#else
#define RC_POINT(name) ((void)0)
#endif

#endif
