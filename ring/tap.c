/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/tap.h"

#include <string.h>

void rc_tap_init(struct rc_ring_tap *tap, const struct rc_ring *ring) {
  /* <- W3: the word at the tail is 0, or committed since. */
  uint64_t tail = rc_load_acquire(&ring->control->tail);
  *tap = (struct rc_ring_tap){.view = *ring, .next = tail & ~(uint64_t)(RC_FRAME_ALIGN - 1)};
}

/* Whether the bytes that the tap has loaded from `next` on are the committed bytes. */
static bool is_whole(const struct rc_ring_tap *tap) {
  rc_fence_acquire(); /* T2 <- L1 */
  /* T3: acquire, for skip. G0 is a full fence, so a tap that sees this limit finds the tail of its
   * grant or a newer. */
  uint64_t limit = rc_load_acquire(&tap->view.control->limit);
  return limit <= tap->next + tap->view.capacity;
}

/* Goes on at `next`, which the caller has checked to lie ahead. */
static void lose(struct rc_ring_tap *tap, uint64_t next) {
  tap->lost_bytes += next - tap->next;
  tap->missed += next - tap->next;
  tap->gaps++;
  tap->next = next;
}

/* Goes on at the tail. False: the tail is invalid. */
static bool skip(struct rc_ring_tap *tap) {
  uint64_t tail = rc_load_acquire(&tap->view.control->tail); /* <- W3 */
  if (tail % RC_FRAME_ALIGN != 0 || tail <= tap->next || tail > RC_MAX_POSITION) return false;
  lose(tap, tail);
  return true;
}

/* The writer may store to the same bytes. ThreadSanitizer need not report this race: is_whole
 * discards such a copy. */
__attribute__((no_sanitize("thread"))) static void copy(void *to, const void *from,
                                                        uint64_t bytes) {
#if defined(__SANITIZE_THREAD__)
  for (uint64_t i = 0; i < bytes; i++) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
#else
  if (bytes != 0) memcpy(to, from, bytes);
#endif
}

/* What became of one try to copy the frame at `next`; negative: an error. */
enum { COPIED, FRAME_LOST, PAYLOAD_LOST };

/* Bytes of a spilled payload to copy between two loads of the floor. */
#define PIECE ((uint64_t)1 << 20)

static int fetch(struct rc_ring_tap *tap, const struct rc_ring_frame *frame, uint8_t *to) {
  uint64_t done = 0;
  for (;;) {
    rc_fence_acquire(); /* T5 <- S1 */
    /* T6: relaxed, ordered by the fence T5. */
    uint64_t floor = rc_load_relaxed(&tap->view.control->spill_floor);
    if (floor > frame->position) return PAYLOAD_LOST;
    if (done == frame->bytes) return COPIED;
    uint64_t left = frame->bytes - done, piece = left < PIECE ? left : PIECE;
    int result = tap->fetch(tap->context, frame->offset + done, to + done, piece); /* T4 */
    if (result != 0) return result;
    done += piece;
    tap->copied += piece;
  }
}

/* Tries to copy the frame at `next`; *end is the position after it. */
static int try_copy(struct rc_ring_tap *tap, void *buffer, uint64_t room, struct rc_ring_frame *out,
                    uint64_t *end) {
  struct rc_ring_frame found;
  int result = rc_ring_read(&tap->view, tap->next, &found, end); /* T1 */
  if (!is_whole(tap)) return FRAME_LOST; /* the header read is not believed */
  if (result != 0) return result;
  const void *data = found.data;
  found.data = buffer;
  *out = found;
  if (found.bytes > room) return -EMSGSIZE;
  if (found.spilled) return fetch(tap, &found, buffer);
  copy(buffer, data, found.bytes);
  return is_whole(tap) ? COPIED : FRAME_LOST;
}

int rc_tap_next(struct rc_ring_tap *tap, void *buffer, uint64_t room, struct rc_ring_frame *out) {
  uint64_t start = tap->next, end;
  int laps = 0;
  while (laps < 3) { /* if the writer laps the tap each time, give up for now */
    int outcome = try_copy(tap, buffer, room, out, &end);
    if (outcome < 0) return outcome;
    if (outcome == COPIED) {
      tap->copied += end - tap->next;
      tap->next = end;
      return 0;
    }
    if (outcome == PAYLOAD_LOST) {
      /* Or a hostile writer could make a tap skip lost frames without end. */
      if (end - start > tap->view.capacity) return -EAGAIN;
      lose(tap, end);
      tap->missed += out->bytes;
      continue;
    }
    if (!skip(tap)) return -EPROTO;
    start = tap->next;
    laps++;
  }
  return -EAGAIN;
}
