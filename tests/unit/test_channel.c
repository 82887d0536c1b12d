/* SPDX-License-Identifier: Apache-2.0 */
/* The public API within one process: what it promises. */
#include <errno.h>
#include <unistd.h>

#include "shm/topology.h"
#include "tests/support/channel.h"
#include "tests/support/pattern.h"

TEST(defaults_are_as_documented) {
  SCOPED_WRITER writer = NULL;
  ck_assert_int_eq(ringcast_writer_create(&writer), 0);
  struct ringcast_info info = info_of(writer);
  ck_assert_uint_eq(info.capacity, rc_default_capacity());
  ck_assert(info.capacity >= 4 << 20 && info.capacity <= 32 << 20);
  ck_assert_uint_le(info.numa, RINGCAST_NUMA_NODE);
  ck_assert_uint_eq(info.readers, 64);
  ck_assert_int_eq(info.writer_pid, getpid());
  ck_assert_ptr_nonnull(ringcast_memory_name(info.memory));
  ck_assert_uint_eq(strlen(ringcast_writer_handle(writer)) < 96, 1);
}

TEST(memory_can_be_chosen_by_environment) {
  ringcast_writer *writer;
  struct ringcast_info info = {.size = sizeof info};
  setenv("RINGCAST_MEMORY", "pages", 1);
  ck_assert_int_eq(ringcast_writer_create(&writer), 0);
  ringcast_writer_info(writer, &info);
  ck_assert_uint_eq(info.memory, RINGCAST_MEMORY_PAGES);
  ringcast_writer_close(writer);
  setenv("RINGCAST_MEMORY", "Pages", 1);
  ck_assert_int_eq(ringcast_writer_create(&writer), -EINVAL);
  ck_says("RINGCAST_MEMORY is 'Pages': it must be ");
  ck_says(" or pages");
}

TEST(an_empty_ring_says_so_and_a_closed_one_differently) {
  ringcast_writer *writer = make_writer(4096, 1);
  SCOPED_READER reader = attach(writer);
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_next(reader, 1000000, &frame), -ETIMEDOUT);
  ck_says("alive");
  ck_assert_int_eq(ringcast_writer_send(writer, "last", 4, 0, 0), 0);
  ringcast_writer_close(writer);
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), 0);
  ck_assert_mem_eq(frame.data, "last", 4);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), -EINVAL);
  ck_says("was it released");
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -EPIPE);
    ck_says("gone");
  }
}

TEST(a_full_ring_names_who_holds_it_back) {
  SCOPED_WRITER writer = make_writer(4096, 4);
  struct ringcast_peer peer = {.size = sizeof peer}, peers[4] = {{.size = sizeof *peers}};
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 0);
  ringcast_reader *reader = reader_of(writer, .name = "rank 3");
  int result, sent = 0;
  while ((result = ringcast_writer_send(writer, "x", 1, 0, 0)) == 0) sent++;
  ck_assert_int_eq(result, -EAGAIN);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1, 1000000, &span), -ETIMEDOUT);
  ck_says("rank 3");
  ck_says("active");
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_str_eq(peer.name, "rank 3");
  ck_assert_int_eq(peer.pid, getpid());
  ck_assert_uint_eq(peer.state, RINGCAST_PEER_ACTIVE);
  ck_assert_uint_eq(peer.lag, (uint64_t)sent * RC_FRAME_ALIGN);
  ck_assert_int_eq(ringcast_writer_peers(writer, peers, 4), 1);
  ck_assert_int_eq(ringcast_writer_peers(writer, NULL, 0), 1);
  uint64_t lag;
  ck_assert_int_eq(ringcast_reader_lag(reader, &lag), 0);
  ck_assert_uint_eq(lag, peer.lag);
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, 0), 0);
}

TEST(as_many_frames_are_held_as_was_asked_for) {
  SCOPED_WRITER writer = make_writer(8192, 2);
  ringcast_reader *reader;
  struct ringcast_reader_options options = {.size = sizeof options, .leases = 3};
  struct ringcast_frame frames[3], more;
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), 0);
  for (char c = 'a'; c < 'e'; c++) ck_assert_int_eq(ringcast_writer_send(writer, &c, 1, 0, 0), 0);
  for (int i = 0; i < 3; i++) ck_assert_int_eq(ringcast_reader_next(reader, 0, &frames[i]), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &more), -EBUSY);
  ck_says("3 frames");
  ck_assert_int_eq(ringcast_reader_release(reader, &frames[1]), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &more),
                   0); /* whatever becomes of the older one */
  ck_assert_mem_eq(more.data, "d", 1);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frames[1]), -EBUSY);
  ck_assert_int_eq(ringcast_reader_release(reader, &frames[0]), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frames[1]), -EAGAIN);
  ck_assert_mem_eq(frames[2].data, "c", 1);
  ringcast_reader_close(reader); /* with frames held */
  options.leases = 65;
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader),
                   -EINVAL);
}

TEST(a_tap_sees_all_and_takes_no_slot) {
  ringcast_writer *writer = make_writer(65536, 1);
  ringcast_reader *reader = attach(writer);
  ringcast_tap *tap;
  struct ringcast_frame frame;
  struct ringcast_info info = {.size = sizeof info};
  struct ringcast_stats stats = {.size = sizeof stats};
  struct ringcast_peer peer = {.size = sizeof peer};
  uint64_t bytes, gaps;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EAGAIN);
  ck_assert_int_eq(ringcast_tap_next(tap, 1000, &frame), -ETIMEDOUT);
  for (uint64_t i = 0; i < 40; i++) {
    uint8_t data[20000];
    size_t size = i == 0 ? 0 : (size_t)(mix(i) % sizeof data);
    pattern_fill(data, size, i);
    ck_assert_int_eq(ringcast_writer_send(writer, data, size, (uint16_t)i, 0), 0);
    ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), 0);
    ck_assert_ptr_nonnull(frame.data);
    ck_assert(frame.bytes == size && frame.kind == i && pattern_matches(frame.data, size, i));
    take_one(reader);
  }
  ck_assert_int_eq(ringcast_tap_lost(tap, &bytes, &gaps), 0);
  ck_assert_uint_eq(bytes + gaps, 0);
  ck_assert_int_eq(ringcast_tap_info(tap, &info), 0);
  ck_assert_uint_eq(info.capacity, 65536);
  ck_assert_int_eq(ringcast_tap_stats(tap, &stats), 0);
  ck_assert_uint_eq(stats.frames, 40);
  ck_assert_int_eq(ringcast_tap_peers(tap, &peer, 1), 1);
  ck_assert_uint_eq(peer.stats.frames, 40);
  ringcast_reader_close(reader);
  for (int i = 0; i < 100; i++)
    ck_assert_int_eq(ringcast_writer_send(writer, "0123456789", 10, 0, 0), 0);
  for (int i = 0; i < 5; i++) ck_assert_int_eq(ringcast_writer_send(writer, NULL, 0, 1, 0), 0);
  ringcast_writer_close(writer);
  for (int i = 0; i < 105; i++)
    ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), 0);
  ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), -EPIPE);
  ringcast_tap_close(tap);
  ringcast_tap_close(NULL);
  ck_assert_int_eq(ringcast_tap_attach("rc1:", &tap), -EINVAL);
}

TEST(a_readers_numbers_begin_with_it_and_not_with_the_last_owner_of_its_slot) {
  SCOPED_WRITER writer = make_writer(4096, 1);
  struct ringcast_peer peer = {.size = sizeof peer};
  for (int round = 0; round < 2; round++) {
    ringcast_reader *reader = attach(writer);
    struct ringcast_frame frame;
    ck_assert_int_eq(ringcast_writer_peers(writer, &peer, 1), 1);
    ck_assert_uint_eq(peer.stats.frames, 0);
    ck_assert_uint_eq(peer.stats.bytes, 0);
    ck_assert_uint_eq(peer.stats.waits, 0);
    ck_assert_uint_eq(peer.stalls, 0);
    while (ringcast_writer_send(writer, "frame", 5, 0, 1) == 0) continue;
    ck_assert_int_eq(ringcast_reader_next(reader, 1000, &frame), 0);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
    ringcast_reader_close(reader);
  }
}

TEST(closing_nothing_is_fine) {
  ringcast_writer_close(NULL);
  ringcast_reader_close(NULL);
}

RUN_TESTS("channel", remember, nothing_is_left)
