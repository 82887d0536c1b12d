/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/tap.h"

#include <errno.h>
#include <string.h>

void rc_tap_init(struct rc_ring_tap *tap, const struct rc_ring *ring) {
  uint64_t tail = rc_load_acquire(&ring->control->tail); /* <- W3: the word at the tail is 0, or committed since */
  *tap = (struct rc_ring_tap){.view = *ring, .next = tail & ~(uint64_t)(RC_FRAME_ALIGN - 1)};
}

/* Whether the bytes that the tap has loaded from `next` on are the committed bytes. */
static bool is_whole(const struct rc_ring_tap *tap) {
  rc_fence_acquire(); /* T2 <- L1 */
  /* T3: acquire, for skip. G0 is a full fence, so a tap that sees this limit finds the tail of its grant or a newer. */
  uint64_t limit = rc_load_acquire(&tap->view.control->limit);
  return limit <= tap->next + tap->view.capacity;
}

/* Moves the tap to the tail. False: the tail is invalid. */
static bool skip(struct rc_ring_tap *tap) {
  uint64_t tail = rc_load_acquire(&tap->view.control->tail); /* <- W3 */
  if (tail % RC_FRAME_ALIGN != 0 || tail <= tap->next || tail > RC_MAX_POSITION) return false;
  tap->lost_bytes += tail - tap->next;
  tap->gaps++;
  tap->next = tail;
  return true;
}

/* The writer may store to the same bytes. ThreadSanitizer need not report this race: is_whole discards such a copy. */
__attribute__((no_sanitize("thread"))) static void copy(void *to, const void *from, uint64_t bytes) {
#if defined(__SANITIZE_THREAD__)
  for (uint64_t i = 0; i < bytes; i++) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
#else
  if (bytes != 0) memcpy(to, from, bytes);
#endif
}

#define PIECE ((uint64_t)1 << 20) /* bytes of a spilled payload to copy between two loads of the floor */

/* Copies a spilled payload. -ESTALE: the payload may have been overwritten. */
static int fetch(const struct rc_ring_tap *tap, const struct rc_ring_frame *frame, uint8_t *to) {
  for (uint64_t done = 0;;) {
    rc_fence_acquire();                                                /* T5 <- S1 */
    uint64_t floor = rc_load_relaxed(&tap->view.control->spill_floor); /* T6: relaxed, ordered by the fence T5 */
    if (floor > frame->position) return -ESTALE;
    if (done == frame->bytes) return 0;
    uint64_t piece = frame->bytes - done < PIECE ? frame->bytes - done : PIECE;
    int result = tap->fetch(tap->context, frame->offset + done, to + done, piece); /* T4 */
    if (result != 0) return result;
    done += piece;
  }
}

/* Skips the frame at `next` after the loss of its payload alone. */
static void pass(struct rc_ring_tap *tap, uint64_t end) {
  tap->lost_bytes += end - tap->next;
  tap->gaps++;
  tap->next = end;
}

/* Counts the bytes of a lost frame. False: more than a lap in one call; otherwise a hostile writer could make a tap
 * skip lost frames without end. */
static bool count_passed(const struct rc_ring_tap *tap, uint64_t end, uint64_t *passed) {
  *passed += end - tap->next;
  return *passed <= tap->view.capacity;
}

int rc_tap_next(struct rc_ring_tap *tap, void *buffer, uint64_t room, struct rc_ring_frame *out) {
  const struct rc_ring *ring = &tap->view;
  uint64_t passed = 0;
  for (int tries = 0; tries < 3;) { /* if the writer laps the tap each time, give up for now */
    const struct rc_frame_header *frame =
        (const struct rc_frame_header *)(ring->data + (tap->next & (ring->capacity - 1)));
    uint64_t end = rc_load_acquire(&frame->commit); /* T1 <- W2 */
    uint64_t meta = rc_load_relaxed(&frame->meta);
    uint32_t bytes = rc_meta_bytes(meta);
    uint16_t flags = rc_meta_flags(meta);
    struct rc_ring_frame found = {.data = buffer, .position = tap->next, .bytes = bytes, .kind = rc_meta_kind(meta)};
    /* Used only after is_whole has found the descriptor intact. */
    int descriptor = flags == 0 ? 0
                     : flags == RC_FRAME_SPILLED
                         ? rc_spilled_read(ring, bytes, (const struct rc_spilled *)(frame + 1), &found)
                         : -EPROTO;
    if (!is_whole(tap)) {
      if (!skip(tap)) return -EPROTO;
      tries++;
      continue;
    }
    if (end == 0) return -EAGAIN;
    if (end - tap->next != rc_frame_lines(bytes) || bytes > rc_ring_max_frame(ring->capacity) || descriptor != 0)
      return -EPROTO;
    *out = found;
    if (found.bytes > room) return -EMSGSIZE;
    int result = 0;
    if (found.spilled) result = fetch(tap, &found, buffer);
    else copy(buffer, frame + 1, bytes);
    if (result != 0 && result != -ESTALE) return result;
    if (result == -ESTALE) {
      if (!count_passed(tap, end, &passed)) return -EAGAIN;
      pass(tap, end);
    } else if (found.spilled || is_whole(tap)) {
      tap->next = end;
      return 0;
    } else {
      if (!skip(tap)) return -EPROTO;
      tries++;
    }
  }
  return -EAGAIN;
}
