/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reservations by estimate, if the size of a frame is known only after the write.
 *
 *     ringcast_writer_reserve(writer, RINGCAST_ESTIMATE, ...)
 *     write; ringcast_writer_grow() if the span is too small
 *     ringcast_writer_commit(writer, used, ...)
 *
 * Commit learns the frame's size and trims the reservation: an estimate that is too large pads
 * nothing. The estimate is a little more than the third largest of the last 32 to 64 sizes, so a
 * rare large frame does not change it. ringcast_stats counts how often an estimate was enough.
 */
#ifndef RINGCAST_ESTIMATE_H
#define RINGCAST_ESTIMATE_H

#include "ringcast/ringcast.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In place of the size, for ringcast_writer_reserve alone. Frames of different kinds differ in
 * size: the caller may number the kinds by tags. RINGCAST_ESTIMATE is tag 0. The writer remembers
 * about 64 tags, the latest. No frame is so large, and no small number below zero becomes this
 * size. */
#define RINGCAST_ESTIMATE         ((size_t)1 << 63)
#define RINGCAST_ESTIMATE_OF(tag) (RINGCAST_ESTIMATE | (uint32_t)(tag))

/* The bytes that RINGCAST_ESTIMATE_OF(tag) reserves now: 4096 for an unknown tag, and never more
 * than the ring can hold. Wait-free; for the one thread that uses the handle. */
RINGCAST_API size_t ringcast_writer_estimate(const ringcast_writer *writer, uint32_t tag);

/* The same estimate for messages without a ring. A history of sizes is private; all zero: no sizes
 * yet. */
struct ringcast_sizes {
  uint64_t words[8];
};

/* Adds the size of a message to the history, and returns the estimate for the next message.
 * Wait-free; thread-safe on different histories. */
RINGCAST_API uint64_t ringcast_sizes_add(struct ringcast_sizes *sizes, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
