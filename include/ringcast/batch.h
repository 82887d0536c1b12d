/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: many messages in one call.
 *
 * Readers get each message of a batch as a frame, in order: by ringcast_reader_next or
 * ringcast_reader_next_many, taps by ringcast_tap_next. A batch costs less than single messages: up
 * to 8 KiB of small messages form a part, with one header in the ring, one commit, one wake-up and
 * one cursor store. A small message takes 8 bytes besides its own, rounded up to 8.
 *
 * Small is at most 1 KiB; in a ring of less than 64 KiB, at most a 64th of the ring. Larger
 * messages of the batch go as ringcast_writer_send sends frames, in their turn. With options.ahead
 * all messages go so, and each counts for the bound.
 *
 * Messages of RINGCAST_KIND_TENSORS also go one by one, because a reader may start at the newest
 * frame with a tag. A reader that starts at the newest frame gets all messages of the newest part.
 *
 * ringcast_frame.data of a small message of RINGCAST_KIND_BYTES is at a multiple of 8; of other
 * kinds, 16 bytes into a 64-byte line.
 */
#ifndef RINGCAST_BATCH_H
#define RINGCAST_BATCH_H

#include "ringcast/ringcast.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ringcast_message {
  const void *data;
  size_t bytes;
  uint16_t kind; /* enum ringcast_kind */
};

/* Sends `count` messages, in parts of up to 8 KiB, or an eighth of the ring if less. A part is sent
 * whole or not at all. Returns the number of messages sent. If it is less than `count`, the next
 * message could not be sent: call again with the rest, and the call returns the reason. So no
 * message is lost or sent twice. After an error no message was sent. `timeout_ns` is for the whole
 * batch. A writer that dies in the call has sent whole parts. Errors as ringcast_writer_send, and
 * -EINVAL for more than INT32_MAX messages. */
RINGCAST_API int ringcast_writer_send_many(ringcast_writer *writer,
                                           const struct ringcast_message *messages, uint32_t count,
                                           int64_t timeout_ns);

/* Leases the available frames together, in order, at least one and at most `capacity`, and returns
 * their number. Waits for the first as ringcast_reader_next does. The frames count as one held
 * frame (options.leases), and ringcast_reader_release_many gives them back together. Some calls
 * return fewer frames than are available. A frame in spill memory comes alone, as if by
 * ringcast_reader_next. If earlier calls returned the beginning of a part of a batch, the rest of
 * the part comes in a separate call. Functions that need a frame with a separate lease refuse these
 * frames: ringcast_reader_retain (-ENOTSUP), ringcast_gpu_begin (-EINVAL). Errors as
 * ringcast_reader_next, and -EINVAL if `capacity` is 0. */
RINGCAST_API int ringcast_reader_next_many(ringcast_reader *reader, int64_t timeout_ns,
                                           struct ringcast_frame *frames, uint32_t capacity);

/* Gives back the frames of one ringcast_reader_next_many. If `count` is less than the number of
 * frames, the caller has not read the rest: the next call returns the rest again. Only the latest
 * group can be divided, before any other call takes a frame. Errors as ringcast_reader_release;
 * -EINVAL also for more frames than the call returned; -EPROTO. */
RINGCAST_API int ringcast_reader_release_many(ringcast_reader *reader,
                                              const struct ringcast_frame *frames, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
