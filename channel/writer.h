/* SPDX-License-Identifier: Apache-2.0 */
/* The writer. reserve.c has the reservations that the hot path, in writer.c, leaves to it: those
 * that wait, and those in spill memory. */
#ifndef RC_CHANNEL_WRITER_H
#define RC_CHANNEL_WRITER_H

#include <stdbool.h>

#include "ringcast/ringcast.h"

/* The slow path of ringcast_writer_reserve, and ringcast_writer_grow. */
int rc_writer_reserve_slowly(ringcast_writer *writer, size_t bytes, int64_t timeout_ns, bool grow,
                             struct ringcast_span *out);

/* The payload of the open reservation in spill memory. */
const void *rc_writer_spilled(const ringcast_writer *writer);

/* Commits or aborts the open reservation in spill memory. Returns as rc_spill_commit. */
int rc_writer_commit_large(ringcast_writer *writer, uint64_t bytes, uint16_t kind);
void rc_writer_abort_large(ringcast_writer *writer);

#endif
