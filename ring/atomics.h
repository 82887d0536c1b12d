/* SPDX-License-Identifier: Apache-2.0 */
/* C11 atomics with the order in the name. A load or store without a named order is missing on
 * purpose: each use names the order that the algorithm needs. */
#ifndef RC_RING_ATOMICS_H
#define RC_RING_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "shared memory needs lock-free atomics");

#define rc_load_relaxed(p)     atomic_load_explicit((p), memory_order_relaxed)
#define rc_load_acquire(p)     atomic_load_explicit((p), memory_order_acquire)
#define rc_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define rc_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define rc_add_acq_rel(p, v)   atomic_fetch_add_explicit((p), (v), memory_order_acq_rel)
#define rc_sub_acq_rel(p, v)   atomic_fetch_sub_explicit((p), (v), memory_order_acq_rel)
#define rc_swap_acquire(p, v)  atomic_exchange_explicit((p), (v), memory_order_acquire)
#define rc_or_acq_rel(p, v)    atomic_fetch_or_explicit((p), (v), memory_order_acq_rel)

/* Weak: may fail without cause, so call it in a loop. On failure *expected is the value found. */
#define rc_cas_acq_rel(p, expected, v)                                              \
  atomic_compare_exchange_weak_explicit((p), (expected), (v), memory_order_acq_rel, \
                                        memory_order_relaxed)

/* Strong: fails only if the value found is not *expected. */
#define rc_cas_strong_acq_rel(p, expected, v)                                         \
  atomic_compare_exchange_strong_explicit((p), (expected), (v), memory_order_acq_rel, \
                                          memory_order_relaxed)

/* Stores before it become visible before any store after it. */
static inline void rc_fence_release(void) { atomic_thread_fence(memory_order_release); }

/* Loads before it are done before any access after it. */
static inline void rc_fence_acquire(void) { atomic_thread_fence(memory_order_acquire); }

/* The compiler moves no access across it; the CPU may. For a store that the other side waits out
 * (ring/eventcount.h, E9), and where a value must be loaded again. */
static inline void rc_fence_light(void) { atomic_signal_fence(memory_order_seq_cst); }

/* Orders a store before a later load. If two sides each store a word, fence, and load the other
 * side's word, at least one side sees the other's store. */
static inline void rc_fence_full(void) { atomic_thread_fence(memory_order_seq_cst); }

#endif
