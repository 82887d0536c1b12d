/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/tap.h"

#include <errno.h>
#include <string.h>

void rc_tap_init(struct rc_ring_tap *tap, const struct rc_ring *ring) {
  uint64_t tail = rc_load_acquire(&ring->control->tail); /* <- W3: the header at the tail is zero, or committed since */
  *tap = (struct rc_ring_tap){.ring = *ring, .next = tail & ~(uint64_t)(RC_LINE - 1)};
}

/* Whether all that was read from `next` on, up to now, was still what had been committed there. */
static bool is_whole(const struct rc_ring_tap *tap) {
  rc_fence_acquire();                                             /* T2 <- L1 */
  uint64_t limit = rc_load_relaxed(&tap->ring.control->limit); /* T3: relaxed, the fence before it orders it */
  return limit <= tap->next + tap->ring.capacity;
}

/* Goes on at the tail. False if that is no place to go on from. */
static bool skip(struct rc_ring_tap *tap) {
  uint64_t tail = rc_load_acquire(&tap->ring.control->tail); /* <- W3 */
  if (tail % RC_LINE != 0 || tail <= tap->next) return false;
  tap->lost_bytes += tail - tap->next;
  tap->gaps++;
  tap->next = tail;
  return true;
}

/* The writer may be at work on the very bytes: that is what is_whole is for, and no race to be told of. */
__attribute__((no_sanitize("thread"))) static void copy(void *to, const void *from, uint64_t bytes) {
#if defined(__SANITIZE_THREAD__)
  for (uint64_t i = 0; i < bytes; i++) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
#else
  if (bytes != 0) memcpy(to, from, bytes);
#endif
}

int rc_tap_next(struct rc_ring_tap *tap, void *buffer, uint64_t room, struct rc_ring_frame *out) {
  const struct rc_ring *ring = &tap->ring;
  for (int tries = 0; tries < 3; tries++) { /* a writer that laps us each time leaves us nothing to say for now */
    const struct rc_frame_header *frame =
        (const struct rc_frame_header *)(ring->data + (tap->next & (ring->capacity - 1)));
    uint64_t end = rc_load_acquire(&frame->commit); /* T1 <- W2 */
    uint32_t bytes = rc_load_relaxed(&frame->bytes);
    uint16_t kind;
    copy(&kind, &frame->kind, sizeof kind);
    if (!is_whole(tap)) {
      if (!skip(tap)) return -EPROTO;
      continue;
    }
    if (end == 0) return -EAGAIN;
    if (end - tap->next != rc_frame_lines(bytes) || bytes > rc_ring_max_frame(ring->capacity)) return -EPROTO;
    *out = (struct rc_ring_frame){.data = buffer, .position = tap->next, .bytes = bytes, .kind = kind};
    if (bytes > room) return -EMSGSIZE;
    copy(buffer, frame + 1, bytes);
    if (is_whole(tap)) {
      tap->next = end;
      return 0;
    }
    if (!skip(tap)) return -EPROTO;
  }
  return -EAGAIN;
}
