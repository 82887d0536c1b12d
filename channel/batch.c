/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's batches: small messages in packed frames (ring/packed.h), larger ones in frames of
 * their own. */
#include "ringcast/batch.h"

#include <errno.h>

#include "channel/channel.h"
#include "shm/error.h"

/* A packed frame has at most so many bytes: a reader can begin with one part while the writer fills
 * the next, and both are in the nearest cache. */
#define MOST_PART ((uint64_t)8 << 10)

struct part {
  uint32_t count;
  uint64_t bytes, payload; /* of the packed frame; of the messages alone */
};

/* As many of the messages as one packed frame holds. */
static struct part measure(const ringcast_writer *writer, const struct ringcast_message *messages,
                           uint32_t count) {
  uint64_t eighth = writer->segment.capacity / 8, most = eighth < MOST_PART ? eighth : MOST_PART,
           small = most / 8;
  struct part part = {0};
  if (writer->ring.ahead != 0) return part; /* the bound counts frames */
  for (; part.count < count; part.count++) {
    const struct ringcast_message *message = &messages[part.count];
    /* A typed frame goes alone: a reader may begin at the newest with its tag. */
    if (message->bytes > small || message->kind == RINGCAST_KIND_TENSORS) break;
    uint64_t end = rc_packed_end(part.bytes, message->bytes, message->kind);
    if (end > most) break;
    part.bytes = end;
    part.payload += message->bytes;
  }
  return part;
}

static int send_part(ringcast_writer *writer, const struct ringcast_message *messages,
                     const struct part *part, int64_t timeout_ns) {
  struct ringcast_span span;
  int result = ringcast_writer_reserve(writer, part->bytes, timeout_ns, &span);
  if (result != 0) return result;
  uint64_t at = 0;
  for (uint32_t i = 0; i < part->count; i++)
    at = rc_packed_put(span.data, at, messages[i].data, messages[i].bytes, messages[i].kind);
  RC_POINT(PACKED);
  rc_ring_publish(&writer->ring, part->bytes, RINGCAST_KIND_BYTES, RC_FRAME_PACKED);
  bool asleep = rc_writer_published(writer, part->count, part->payload, part->bytes);
  return rc_unlikely(asleep) ? rc_writer_wake(writer) : 0;
}

int ringcast_writer_send_many(ringcast_writer *writer, const struct ringcast_message *messages,
                              uint32_t count, int64_t timeout_ns) {
  int result = rc_check_wait(writer->forks, timeout_ns);
  if (result != 0) return result;
  if (count > INT32_MAX)
    return rc_fail(-EINVAL, "%u messages are too many for one batch: send at most %d", count,
                   INT32_MAX);
  const int64_t now = timeout_ns > 0 ? rc_now_ns() : 0;
  const int64_t deadline = timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;
  uint32_t sent = 0;
  while (sent < count) {
    const struct ringcast_message *next = &messages[sent];
    const struct part part = measure(writer, next, count - sent);
    int64_t left = timeout_ns > 0 && sent > 0 ? deadline - rc_now_ns() : timeout_ns;
    if (timeout_ns > 0 && left < 1) left = 1; /* one more try */
    result = part.count > 1
                 ? send_part(writer, next, &part, left)
                 : ringcast_writer_send(writer, next->data, next->bytes, next->kind, left);
    if (result != 0) return sent > 0 ? (int)sent : result;
    sent += part.count > 1 ? part.count : 1;
  }
  return (int)sent;
}
