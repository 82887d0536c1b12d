/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named points: places in the code where it would matter if the process died, or was stopped, just there. They are for
 * tests/process/kill, which does that at each of them. Objects that are compiled with RINGCAST_POINTS call it there; in
 * the library a point is nothing.
 *
 * With each name stands who comes by, and when:
 *   WRITES     the writer, while it sends      READS     a reader, while it reads
 *   CREATES    the writer, making the ring     ATTACHES  a reader, attaching
 *   CLOSES     the writer, closing it          LEAVES    a reader, closing
 *   WAITS      whoever waits, or wakes another MOURNS    a reader that finds the writer dead
 *   REAPS      the writer, for a dead reader   POLLS     a reader that sleeps by its descriptor
 *   EVICTS     the writer, for a slow reader   STALE     a reader that was evicted
 *   REFUSES    the writer, for one that is stopped while it joins
 *   REFUSED    that one
 *   GPU_WRITES, GPU_READS   the writer, or a reader, of device tensors (tests/process/gpu_kill)
 *   GPU_MOURNS              such a reader that finds the writer dead
 */
#ifndef RC_RING_POINT_H
#define RC_RING_POINT_H

/* clang-format off */
#define RC_ALL_POINTS(X)                                                                                            \
  /* Publishing, and room: atop ring.c. */                                                                          \
  X(PUBLISH, WRITES) X(W0_DONE, WRITES) X(W1_DONE, WRITES) X(W2_DONE, WRITES) X(ZEROED_AHEAD, WRITES)               \
  X(W3_DONE, WRITES) X(GRANT, WRITES) X(L0_DONE, WRITES) X(L1_DONE, WRITES) X(ABORTED, WRITES)                      \
  /* Beside the ring: atop spill.c; and its memory. */                                                              \
  X(NOTE_ROOM, WRITES) X(RECLAIM, WRITES) X(S0_DONE, WRITES) X(S1_DONE, WRITES) X(PROVIDE, WRITES)                  \
  X(PROVIDED, WRITES) X(MOVED, WRITES) X(NOTE_WRITTEN, WRITES) X(NOTE_PUBLISHED, WRITES)                            \
  X(PUNCH, WRITES) X(PUNCHED, WRITES) X(EPOCH_DONE, WRITES)                                                         \
  /* Reading. */                                                                                                    \
  X(R2_DONE, READS) X(SPILL_CHECKED, READS) X(RELEASE, READS) X(A0_DONE, READS) X(A1_DONE, READS)                   \
  X(SETTLED, READS) X(KEPT, READS) X(OWN, READS) X(OWNED, READS)                 \
  X(MOURN, MOURNS) X(MOURNED, MOURNS) X(TOLD_STALE, STALE)                                                           \
  /* Sleeping and waking: atop eventcount.h. */                                                                      \
  X(E1_DONE, WAITS) X(E2_DONE, WAITS) X(E3_DONE, WAITS) X(SLEPT, WAITS) X(E8_DONE, WAITS) X(E6_DONE, WAITS)          \
  X(E7_DONE, WAITS) X(WOKEN, WAITS) X(POLL, POLLS) X(POLL_ARMED, POLLS)                                             \
  /* The ring's beginning and end. */                                                                               \
  X(DATA_MADE, CREATES) X(CONTROL_MADE, CREATES) X(SPILL_MADE, CREATES) X(UNSEALED, CREATES)                        \
  X(IDENTIFIED, CREATES) X(READY, CREATES) X(CREATED, CREATES) X(CLOSE, CLOSES) X(DROPPED, CLOSES)                  \
  X(CLOSED, CLOSES) X(CLOSE_TOLD, CLOSES) X(UNMAPPED, CLOSES)                                                       \
  /* Slots: atop slot.c. */                                                                                         \
  X(CONTROL_MAPPED, ATTACHES) X(DATA_MAPPED, ATTACHES) X(SPILL_MAPPED, ATTACHES) X(JOIN, ATTACHES)                  \
  X(J1_DONE, ATTACHES) X(NAMED, ATTACHES) X(J2_DONE, ATTACHES) X(J3_DONE, ATTACHES) X(CURSOR_STANDS, ATTACHES)      \
  X(J4_DONE, ATTACHES) X(JOINED, ATTACHES) X(JOIN_TOLD, ATTACHES) X(LEAVE, LEAVES)                          \
  X(FREED, LEAVES) X(LEAVE_TOLD, LEAVES) X(REAP, REAPS) X(REAPED, REAPS) X(EVICT, EVICTS) X(V1_DONE, EVICTS)        \
  X(EVICT_COUNTED, EVICTS) X(EVICT_TOLD, EVICTS) X(REFUSE, REFUSES) X(REFUSE_DONE, REFUSES) X(CLAIM_LOST, REFUSED)  \
  X(CLAIM_GIVEN_UP, REFUSED)
/* clang-format on */

/* The device pool: atop gpu/writer.c, consumers.c and import.c. */
/* clang-format off */
#define RC_GPU_POINTS(X)                                                                                            \
  X(POOL_MADE, GPU_WRITES) X(POOL_TOLD, GPU_WRITES) X(POOL_LEFT, GPU_WRITES) X(COUNTED, GPU_WRITES)                 \
  X(LEASED, GPU_WRITES) X(COPIED_IN, GPU_WRITES) X(READY_ENQUEUED, GPU_WRITES) X(COMMITTED, GPU_WRITES)             \
  X(LENT, GPU_WRITES) X(TAKING_BACK, GPU_WRITES) X(TAKEN_BACK, GPU_WRITES) X(PLACE_TAKEN, GPU_READS)                \
  X(POOL_OPENED, GPU_READS) X(POOL_TRIED, GPU_READS) X(OPENED_TOLD, GPU_READS) X(TAKE_NOTED, GPU_READS)             \
  X(WAIT_ENQUEUED, GPU_READS) X(LENT_NOTED, GPU_READS) X(LENT_OPENED, GPU_READS) X(COPIED_OUT, GPU_READS)           \
  X(ACK_ENQUEUED, GPU_READS) X(LENT_CLOSED, GPU_READS)                                                              \
  X(IMPORT_CLOSED, GPU_READS) X(PLACE_LEFT, GPU_READS) X(DEATH_SEEN, GPU_MOURNS) X(WAITS_RELEASED, GPU_MOURNS)
/* clang-format on */

enum rc_point {
#define RC_POINT_OF(name, who) RC_POINT_##name,
  RC_ALL_POINTS(RC_POINT_OF) RC_POINT_COUNT,
  RC_GPU_POINTS(RC_POINT_OF)
#undef RC_POINT_OF
      RC_GPU_POINT_COUNT
};

#ifdef RINGCAST_POINTS
void rc_test_point(enum rc_point point); /* the test's */
#define RC_POINT(name) rc_test_point(RC_POINT_##name)
#else
#define RC_POINT(name) ((void)0)
#endif

#endif
