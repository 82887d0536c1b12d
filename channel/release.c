/* SPDX-License-Identifier: Apache-2.0 */
/* How a reader releases frames, and wakes a writer that waits for room. */
#include <errno.h>

#include "channel/channel.h"
#include "ringcast/batch.h"
#include "shm/error.h"

/* The cursor has moved, and the writer sleeps. Relaxed: E6 comes first. The writer stores `wanted`
 * before E1, or under a standing announcement, and loads the cursors once more after E2 and at E9,
 * which follows either store: so either this load finds the newest `wanted`, or the writer finds
 * the cursor. */
static void wake_sleeper(ringcast_reader *reader) {
  struct rc_control *control = reader->ring.view.control;
  if (reader->ring.cursor >= rc_load_relaxed(&control->wanted) && rc_wake(&control->not_full))
    rc_store_relaxed(&control->slots[reader->ring.slot].counts.wakes,
                     ++reader->wakes); /* relaxed: a count */
}

static inline void wake_for_room(ringcast_reader *reader) {
  if (rc_unlikely(rc_eventcount_is_asleep_unfenced(&reader->ring.view.control->not_full)))
    wake_sleeper(reader);
}

static inline void count_frame(const ringcast_reader *reader, const struct ringcast_frame *frame) {
  rc_count_frame(&reader->ring.view.control->slots[reader->ring.slot].counts, frame->bytes);
}

/* The frame has lost its last lease or pin. */
static void finish_release(ringcast_reader *reader, const struct ringcast_frame *frame,
                           uint64_t cursor_before) {
  count_frame(reader, frame);
  if (reader->ring.cursor != cursor_before)
    wake_for_room(reader); /* else the reader still holds an older frame */
}

static rc_slow int release_slowly(ringcast_reader *reader, const struct ringcast_frame *frame) {
  uint64_t cursor = reader->ring.cursor;
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  result = rc_ring_lent(&reader->ring, frame->position) == 1
               ? rc_ring_release_many(&reader->ring, frame->position, 1)
               : rc_ring_release(&reader->ring, frame->position);
  if (result != 0) return result == -ESTALE ? rc_fail_evicted() : rc_fail_not_held(frame->position);
  finish_release(reader, frame, cursor);
  return 0;
}

void rc_reader_return(ringcast_reader *reader, const struct ringcast_frame *frame) {
  uint64_t cursor = reader->ring.cursor;
  rc_ring_unpin(&reader->ring, frame->position);
  finish_release(reader, frame, cursor);
}

int ringcast_reader_release_many(ringcast_reader *reader, const struct ringcast_frame *frames,
                                 uint32_t count) {
  uint64_t cursor = reader->ring.cursor, bytes = 0;
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  if (rc_ring_lent(&reader->ring, frames->position) == 0) { /* a frame with a lease of its own */
    if (count == 1) return ringcast_reader_release(reader, frames);
    if (count == 0 && rc_ring_unread_newest(&reader->ring, frames->position)) return 0;
  }
  result = rc_ring_release_many(&reader->ring, frames->position, count);
  if (result == -EPROTO) return rc_fail_damaged(frames->position, &reader->segment);
  if (result != 0)
    return result == -ESTALE ? rc_fail_evicted() : rc_fail_not_held(frames->position);
  for (uint32_t i = 0; i < count; i++) bytes += frames[i].bytes;
  rc_count_frames(&reader->ring.view.control->slots[reader->ring.slot].counts, count, bytes);
  if (reader->ring.cursor != cursor) wake_for_room(reader);
  return 0;
}

static rc_slow int released_to_sleeper(ringcast_reader *reader) {
  wake_sleeper(reader);
  return 0;
}

int ringcast_reader_release(ringcast_reader *reader, const struct ringcast_frame *frame) {
  if (rc_unlikely(reader->forks != rc_fork_count() ||
                  !rc_ring_release_only(&reader->ring, frame->position)))
    return release_slowly(reader, frame);
  count_frame(reader, frame);
  if (rc_unlikely(rc_eventcount_is_asleep_unfenced(&reader->ring.view.control->not_full)))
    return released_to_sleeper(reader);
  return 0;
}
