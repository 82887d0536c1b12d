/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: that every way of reading gets the same messages in order, what is held, and what a
 * failure leaves. */
#include <errno.h>
#include <pthread.h>

#include "ringcast/batch.h"
#include "ringcast/frame.h"
#include "tests/support/channel.h"
#include "tests/support/pattern.h"

enum { ROOM = 1 << 16, MOST = 200, LARGE = 100000 };

static uint16_t kind_of(uint64_t number) { return mix(number + 1) % 4 == 0 ? 2 : 0; }

/* Mostly small, some of a frame of their own, a few in spill memory. */
static size_t bytes_of(uint64_t number) {
  uint64_t random = mix(number + 2);
  return random % 97 == 0 ? LARGE + random % 1000 : random % 11 == 0 ? random % 3000 : random % 70;
}

static struct ringcast_message messages[MOST];

/* The messages with these numbers. */
static const struct ringcast_message *batch_of(uint64_t first, uint32_t count,
                                               size_t (*bytes)(uint64_t)) {
  static uint8_t *room;
  static size_t size;
  size_t total = 0;
  for (uint32_t i = 0; i < count; i++) total += bytes(first + i);
  if (total > size) room = realloc(room, size = total);
  uint8_t *at = room;
  for (uint32_t i = 0; i < count; at += messages[i++].bytes) {
    messages[i] = (struct ringcast_message){
        .data = at, .bytes = bytes(first + i), .kind = kind_of(first + i)};
    pattern_fill(at, messages[i].bytes, first + i);
  }
  return messages;
}

static size_t of_16(uint64_t number) { return 16 + 0 * number; }

static int send_batch(ringcast_writer *writer, uint64_t first, uint32_t count) {
  return ringcast_writer_send_many(writer, batch_of(first, count, of_16), count, 0);
}

static void is_message(const struct ringcast_frame *frame, uint64_t number,
                       size_t (*bytes)(uint64_t)) {
  ck_assert_uint_eq(frame->bytes, bytes(number));
  ck_assert_uint_eq(frame->kind, kind_of(number));
  ck_assert_msg(pattern_matches(frame->data, frame->bytes, number), "not message %llu",
                (unsigned long long)number);
  ck_assert_uint_eq((uintptr_t)frame->data % (frame->kind == RINGCAST_KIND_BYTES ? 8 : 64),
                    frame->kind ? 16 : 0);
}

static struct ringcast_frame next_is(ringcast_reader *reader, uint64_t number) {
  struct ringcast_frame frame;
  int result = ringcast_reader_next(reader, 0, &frame);
  ck_assert_msg(result == 0, "message %llu: %d, %s", (unsigned long long)number, result,
                ringcast_last_error());
  is_message(&frame, number, of_16);
  return frame;
}

/* ---- The same messages for all --------------------------------------------------------------- */

/* Holds some, and gives them back in any order. */
struct holder {
  ringcast_reader *reader;
  struct ringcast_frame held[8][32];
  uint32_t counts[8], holds;
  uint64_t next, groups; /* the next message's number; groups of more than one */
};

static void give_back(struct holder *holder, uint64_t random) {
  uint32_t i = (uint32_t)(random % holder->holds), count = holder->counts[i];
  if (count == 1 && random % 2)
    ck_assert_int_eq(ringcast_reader_release(holder->reader, holder->held[i]), 0);
  else ck_assert_int_eq(ringcast_reader_release_many(holder->reader, holder->held[i], count), 0);
  holder->counts[i] = holder->counts[--holder->holds];
  memcpy(holder->held[i], holder->held[holder->holds], sizeof holder->held[i]);
}

/* `most` 0: by ringcast_reader_next. */
static bool take(struct holder *holder, uint32_t most) {
  struct ringcast_frame *frames = holder->held[holder->holds];
  int count = 1, result = most == 0 ? ringcast_reader_next(holder->reader, 0, frames)
                                    : ringcast_reader_next_many(holder->reader, 0, frames, most);
  if (result > 0) count = result;
  else if (result < 0 || most != 0) {
    ck_assert_int_eq(result, -EAGAIN);
    return false;
  }
  for (int i = 0; i < count; i++) is_message(&frames[i], holder->next++, bytes_of);
  holder->groups += count > 1;
  if (count > 1 && holder->next % 7 == 0) { /* some of them were not read */
    uint32_t keep = (uint32_t)(holder->next / 7 % (uint64_t)count);
    ck_assert_int_eq(ringcast_reader_release_many(holder->reader, frames, keep), 0);
    holder->next -= (uint64_t)count - keep;
    return true;
  }
  holder->counts[holder->holds++] = (uint32_t)count;
  return true;
}

static void drain(struct holder *holder, uint64_t random) {
  for (uint64_t i = random % 40; i > 0; i--) {
    random = mix(random);
    while (holder->holds == 8 || (holder->holds > 0 && random % 3 == 0))
      give_back(holder, random = mix(random));
    if (!take(holder, random / 16 % 2 ? (uint32_t)(random / 32 % 32) : 0)) return;
  }
}

static uint64_t tapped(ringcast_tap *tap, uint64_t number) {
  struct ringcast_frame frame;
  for (; ringcast_tap_next(tap, 0, &frame) == 0; number++) {
    ck_assert_uint_eq(frame.bytes, bytes_of(number));
    ck_assert_uint_eq(frame.kind, kind_of(number));
    ck_assert(pattern_matches(frame.data, frame.bytes, number));
  }
  return number;
}

TEST(every_reader_gets_every_message_in_order_whatever_is_held) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 3);
  struct holder holders[3] = {{0}};
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  for (int i = 0; i < 3; i++) holders[i].reader = reader_of(writer, .leases = 8);
  uint64_t sent = 0, seen = 0, parts = 0, random = 1;
  for (int step = 0; step < 6000; step++) {
    random = mix(random);
    uint32_t count = (uint32_t)(random % 5 == 0 ? random / 5 % MOST : random / 5 % 9);
    int result = ringcast_writer_send_many(writer, batch_of(sent, count, bytes_of), count, 0);
    if (result < 0) ck_assert_int_eq(result, -EAGAIN);
    else sent += (uint32_t)result;
    parts += result >= 0 && (uint32_t)result < count;
    seen = tapped(tap, seen);
    for (int i = 0; i < 3; i++) drain(&holders[i], random = mix(random));
  }
  ck_assert_uint_eq(seen, sent);
  ck_assert_uint_gt(parts, 10);
  for (int i = 0; i < 3; i++) {
    do
      while (holders[i].holds > 0) give_back(&holders[i], 0);
    while (take(&holders[i], 16));
    ck_assert_uint_eq(holders[i].next, sent);
    ck_assert_uint_gt(holders[i].groups, 100);
    ck_assert_uint_eq(stats_of_reader(holders[i].reader).frames, sent);
    ringcast_reader_close(holders[i].reader);
  }
  ck_assert_uint_eq(stats_of_writer(writer).frames, sent);
  ringcast_tap_close(tap);
}

enum { STREAMED = 100000 };

/* Gives back what it has read at random: a part of a group, or all. */
static void *read_stream(void *context) {
  ringcast_reader *reader = context;
  struct ringcast_frame frames[64];
  for (uint64_t number = 0, random = 5; number < STREAMED; random = mix(random)) {
    int count =
        ringcast_reader_next_many(reader, RINGCAST_FOREVER, frames, 1 + (uint32_t)(random % 64));
    if (count <= 0) return NULL;
    uint32_t keep =
        random / 64 % 4 == 0 ? (uint32_t)(random / 256 % (uint64_t)(count + 1)) : (uint32_t)count;
    for (uint32_t i = 0; i < keep; i++, number++)
      if (frames[i].bytes != 16 || !pattern_matches(frames[i].data, 16, number)) return NULL;
    if (ringcast_reader_release_many(reader, frames, keep) != 0) return NULL;
  }
  return context;
}

TEST(a_thread_reads_what_another_sends_in_batches) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  SCOPED_READER reader = attach(writer);
  pthread_t thread;
  void *whole;
  ck_assert_int_eq(pthread_create(&thread, NULL, read_stream, reader), 0);
  for (uint64_t sent = 0, random = 6; sent < STREAMED; random = mix(random)) {
    uint32_t count = (uint32_t)(random % MOST) + 1, left = (uint32_t)(STREAMED - sent);
    if (count > left) count = left;
    ck_assert_int_eq(
        ringcast_writer_send_many(writer, batch_of(sent, count, of_16), count, RINGCAST_FOREVER),
        count);
    sent += count;
  }
  ck_assert_int_eq(pthread_join(thread, &whole), 0);
  ck_assert_ptr_nonnull(whole);
}

/* ---- What a batch costs, and what is held ---------------------------------------------------- */

TEST(a_batch_is_one_frame_of_the_ring_and_one_store_of_the_cursor) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  SCOPED_READER reader = attach(writer);
  const struct rc_slot *slot = reader->ring.own;
  ck_assert_int_eq(ringcast_writer_send_many(writer, batch_of(0, 100, of_16), 100, 0), 100);
  ck_assert_uint_eq(rc_load_relaxed(&writer->ring.view.control->tail), writer->ring.tail);
  struct rc_ring_frame whole;
  uint64_t end;
  ck_assert_int_eq(rc_ring_read(&reader->ring.view, 0, &whole, &end), 0);
  ck_assert(whole.packed);
  ck_assert_uint_eq(end, writer->ring.tail);
  for (uint64_t i = 0; i < 100; i++) {
    struct ringcast_frame frame = next_is(reader, i);
    ck_assert_uint_eq(rc_load_relaxed((_Atomic uint64_t *)&slot->cursor), 0);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), -EINVAL);
  }
  ck_assert_uint_eq(rc_load_relaxed((_Atomic uint64_t *)&slot->cursor), end);
  ck_assert_uint_eq(stats_of_reader(reader).frames, 100);
  ck_assert_uint_eq(stats_of_reader(reader).bytes, 1600);
  ck_assert_uint_eq(stats_of_writer(writer).bytes, 1600);
}

TEST(a_batch_wakes_those_asleep_once) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  struct rc_eventcount *event = &writer->ring.view.control->not_empty;
  uint32_t word = rc_eventcount_prepare(event);
  send_batch(writer, 0, 100);
  ck_assert_uint_ne(rc_load_relaxed(&event->word), word);
  ck_assert_uint_eq(stats_of_writer(writer).wakes, 1);
  send_batch(writer, 0, 100);
  ck_assert_uint_eq(stats_of_writer(writer).wakes, 1);
}

TEST(a_reader_may_start_at_a_typed_message_of_a_batch) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  struct ringcast_frame_header headers[4] = {
      {.tag = 7}, {.tag = 7, .count = 1}, {.tag = 8}, {.tag = 0}};
  struct ringcast_frame frame;
  for (int i = 0; i < 4; i++)
    messages[i] = (struct ringcast_message){&headers[i], sizeof *headers, RINGCAST_KIND_TENSORS};
  ck_assert_int_eq(ringcast_writer_send_many(writer, messages, 4, 0), 4);
  SCOPED_READER reader = reader_of(writer, .start = RINGCAST_START_LATEST, .tag = 7);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_mem_eq(frame.data, &headers[1], sizeof *headers);
}

TEST(an_empty_batch_sends_nothing_and_no_room_is_refused) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  SCOPED_READER reader = attach(writer);
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_writer_send_many(writer, NULL, 0, 0), 0);
  ck_assert_uint_eq(writer->ring.tail, 0);
  ck_assert_int_eq(ringcast_writer_send_many(writer, messages, (uint32_t)INT32_MAX + 1, 0),
                   -EINVAL);
  ck_assert_int_eq(ringcast_writer_send_many(writer, messages, 1, -2), -EINVAL);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, &frame, 0), -EINVAL);
  ck_says("room for 0 frames");
  ck_assert_int_eq(ringcast_reader_next_many(reader, -2, &frame, 1), -EINVAL);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, &frame, 1), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 1000, &frame, 1), -ETIMEDOUT);
  ck_assert_int_eq(ringcast_reader_release_many(reader, &frame, 0), -EINVAL);
}

TEST(a_frame_from_spill_memory_can_be_left_for_the_next_call) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1, .spill_bytes = 4 << 20);
  SCOPED_READER reader = attach(writer);
  struct ringcast_frame frame, again;
  struct ringcast_span span;
  for (size_t bytes = 10; bytes <= 8 * ROOM;
       bytes += 8 * ROOM - 10) { /* small only by its commit, and large */
    ck_assert_int_eq(ringcast_writer_reserve(writer, 8 * ROOM, 0, &span), 0);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes, 0), 0);
    ck_assert_int_eq(ringcast_reader_next_many(reader, 0, &frame, 1), 1);
    ck_assert_int_eq(ringcast_reader_release_many(reader, &frame, 0), 0);
    ck_assert_int_eq(ringcast_reader_release_many(reader, &frame, 0), -EINVAL);
    ck_assert_int_eq(ringcast_reader_next_many(reader, 0, &again, 1), 1);
    ck_assert_uint_eq(again.position, frame.position);
    ck_assert_uint_eq(again.bytes, bytes);
    ck_assert_int_eq(ringcast_reader_release_many(reader, &again, 1), 0);
    ck_assert_uint_eq(reader->ring.cursor, writer->ring.tail);
  }
}

TEST(a_group_is_given_back_as_it_was_lent_and_counts_as_one_held_frame) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  SCOPED_READER reader = attach(writer);
  struct ringcast_frame frames[64], frame;
  send_batch(writer, 0, 10);
  for (uint64_t i = 10; i < 13; i++) send_batch(writer, i, 1); /* frames of their own */
  send_batch(writer, 13, 10);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames, 20),
                   20); /* it ends within the second batch */
  for (uint64_t i = 0; i < 20; i++) is_message(&frames[i], i, of_16);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EBUSY);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames + 20, 1), -EBUSY);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 21), -EINVAL);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, UINT32_MAX), -EINVAL);
  ck_assert_int_eq(ringcast_reader_release(reader, frames), -EINVAL);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames + 1, 19), -EINVAL);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 20), 0);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 20), -EINVAL);
  frame = next_is(reader, 20); /* one way and the other in turns */
  ck_assert_int_eq(ringcast_reader_release_many(reader, &frame, 1), 0);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames, 64), 2);
  is_message(&frames[1], 22, of_16);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 2), 0);
  ck_assert_uint_eq(reader->ring.cursor, writer->ring.tail);
}

/* A group of each size, from each place, of which each number is given back. */
TEST(the_rest_of_a_group_can_be_read_again) {
  enum { ALL = 27, MIDST = 12 };
  for (uint32_t before = 0; before < ALL; before++)
    for (uint32_t size = 1; size <= ALL - before; size++)
      for (uint32_t given = 0; given <= size; given++) {
        SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 1);
        SCOPED_READER reader = reader_of(writer, .leases = 2);
        struct ringcast_frame frames[ALL];
        send_batch(writer, 0, MIDST);
        for (uint64_t i = MIDST; i < MIDST + 3; i++) send_batch(writer, i, 1);
        send_batch(writer, MIDST + 3, ALL - MIDST - 3);
        for (uint32_t i = 0; i < before; i++) take_one(reader);
        int count = ringcast_reader_next_many(reader, 0, frames, size);
        if (count < (int)given) continue; /* it ends with the batch that was begun */
        ck_assert_int_eq(ringcast_reader_release_many(reader, frames, given), 0);
        for (uint64_t i = before + given; i < ALL; i++) {
          struct ringcast_frame frame = next_is(reader, i);
          ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
        }
        ck_assert_uint_eq(reader->ring.cursor, writer->ring.tail);
        ck_assert_uint_eq(stats_of_reader(reader).frames, ALL);
      }
}

TEST(a_group_is_no_longer_the_latest_after_another_call) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  SCOPED_READER reader = reader_of(writer, .leases = 2);
  struct ringcast_frame frames[12], frame;
  send_batch(writer, 0, 20);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames, 8), 8);
  frame = next_is(reader, 8);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 5), -EINVAL);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 5), -EINVAL);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames + 8, 4), 4);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 5), -EINVAL);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 8), 0);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames + 8, 1), 0);
  next_is(reader, 10);
}

TEST(a_held_message_blocks_the_writer_and_stays_as_it_is) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  SCOPED_READER reader = reader_of(writer, .leases = 2);
  uint64_t sent = (uint64_t)send_batch(writer, 0, MOST), read = 3;
  take_one(reader);
  struct ringcast_frame held = next_is(reader, 1);
  take_one(reader);
  for (int result; (result = send_batch(writer, sent, MOST)) != -EAGAIN; sent += (uint64_t)result)
    ck_assert_int_gt(result, 0);
  for (; read < sent; read++) {
    struct ringcast_frame frame = next_is(reader, read);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  }
  ck_assert_int_eq(send_batch(writer, sent, MOST), -EAGAIN);
  ck_says("full");
  is_message(&held, 1, of_16);
  ck_assert_int_eq(ringcast_reader_release(reader, &held), 0);
  ck_assert_int_gt(send_batch(writer, sent, MOST), 0);
  next_is(reader, sent);
}

TEST(a_message_cannot_be_retained) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  SCOPED_READER reader = reader_of(writer, .leases = 1, .flags = RINGCAST_READER_RETAIN);
  ringcast_retained *retained;
  struct ringcast_frame frames[4];
  void *data;
  send_batch(writer, 0, 5);
  frames[0] = next_is(reader, 0);
  ck_assert_int_eq(ringcast_reader_retain(reader, frames, &retained, &data), -ENOTSUP);
  ck_assert_int_eq(ringcast_reader_release(reader, frames), 0);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames, 4), 4);
  ck_assert_int_eq(ringcast_reader_retain(reader, frames, &retained, &data), -ENOTSUP);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 4), 0);
}

/* ---- Failures -------------------------------------------------------------------------------- */

TEST(a_batch_that_fails_in_its_midst_says_how_much_went_and_goes_on_there) {
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 1);
  SCOPED_READER reader = attach(writer);
  const struct ringcast_message *all = batch_of(0, MOST, of_16);
  uint32_t sent = 0;
  uint64_t read = 0;
  for (int turn = 0; sent < MOST; turn++) { /* a third of the batch fits at a time */
    int result = ringcast_writer_send_many(writer, all + sent, MOST - sent, turn % 2 ? 0 : 1000000);
    ck_assert_int_gt(result, 0);
    sent += (uint32_t)result;
    if (sent == MOST) break;
    ck_assert_int_eq(ringcast_writer_send_many(writer, all + sent, MOST - sent, 0), -EAGAIN);
    ck_assert_int_eq(ringcast_writer_send_many(writer, all + sent, MOST - sent, 1000), -ETIMEDOUT);
    for (; read < sent; read++) {
      struct ringcast_frame frame = next_is(reader, read);
      ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
    }
  }
  for (; read < MOST; read++) {
    struct ringcast_frame frame = next_is(reader, read);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  }
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, (struct ringcast_frame[1]){{0}}, 1),
                   -EAGAIN);
}

TEST(a_message_that_is_too_large_for_all_ends_the_batch_before_it) {
  SCOPED_WRITER writer =
      writer_of(.capacity = 4096, .readers = 1, .spill_bytes = RINGCAST_NO_SPILL);
  SCOPED_READER reader = attach(writer);
  static const uint8_t large[8192];
  const struct ringcast_message some[] = {
      {"a", 1, 0}, {"b", 1, 0}, {large, sizeof large, 0}, {"c", 1, 0}};
  ck_assert_int_eq(ringcast_writer_send_many(writer, some, 4, 0), 2);
  ck_assert_int_eq(ringcast_writer_send_many(writer, some + 2, 2, 0), -EMSGSIZE);
  ck_assert_int_eq(ringcast_writer_send_many(writer, some + 3, 1, 0), 1);
  struct ringcast_frame frames[4];
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames, 4), 3);
  ck_assert(memcmp(frames[2].data, "c", 1) == 0);
}

TEST(an_open_reservation_refuses_a_batch) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1);
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 10, 0, &span), 0);
  ck_assert_int_eq(send_batch(writer, 0, 5), -EBUSY);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ck_assert_int_eq(send_batch(writer, 0, 5), 5);
}

TEST(each_message_counts_for_the_bound_in_frames) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 1, .ahead = 3);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(send_batch(writer, 0, 10), 3);
  ck_assert_int_eq(send_batch(writer, 3, 7), -EAGAIN);
  ck_says("options.ahead");
  struct ringcast_frame frames[8];
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames, 8), 3);
  ck_assert_int_eq(ringcast_reader_release_many(reader, frames, 3), 0);
  ck_assert_int_eq(send_batch(writer, 3, 7), 3);
  next_is(reader, 3);
}

/* Each batch goes in parts, and the parts wait until the reader is evicted. */
TEST(an_evicted_reader_is_told_within_a_batch) {
  for (int way = 0; way < 4; way++) {
    const int64_t timeout = way % 2 ? RINGCAST_FOREVER : INT64_MAX;
    SCOPED_WRITER writer =
        writer_of(.capacity = 4096, .readers = 1, .on_slow = RINGCAST_EVICT, .slow_ns = 1000000);
    SCOPED_READER reader = reader_of(writer, .leases = 2);
    struct ringcast_frame frames[8];
    send_batch(writer, 0, 50);
    ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames, 8), 8);
    for (uint64_t sent = 0; sent < 10000; sent += MOST)
      ck_assert_int_eq(
          ringcast_writer_send_many(writer, batch_of(sent, MOST, of_16), MOST, timeout), MOST);
    int result = way == 0   ? ringcast_reader_next(reader, 0, frames)
                 : way == 1 ? ringcast_reader_next_many(reader, 0, frames, 8)
                 : way == 2 ? ringcast_reader_release_many(reader, frames, 8)
                            : ringcast_reader_check(reader);
    ck_assert_int_eq(result, -ESTALE);
  }
}

RUN_TESTS("batches", remember, nothing_is_left)
