/* SPDX-License-Identifier: Apache-2.0 */
/* The public API within one process: what it promises, what it refuses, and in which words. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel/channel.h"
#include "shm/machine.h"
#include "tests/support/leaks.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

static int descriptors, mappings;

static void remember(void) {
  descriptors = open_descriptors();
  mappings = ring_mappings();
}

static void nothing_is_left(void) {
  ck_assert_int_eq(open_descriptors(), descriptors);
  ck_assert_int_eq(ring_mappings(), mappings);
}

static ringcast_writer *make_writer(uint64_t capacity, uint32_t readers) {
  ringcast_writer *writer = NULL;
  struct ringcast_writer_options options = {.size = sizeof options, .capacity = capacity, .readers = readers};
  ck_assert_int_eq(ringcast_writer_create_ex(&options, &writer), 0);
  return writer;
}

static ringcast_reader *attach(ringcast_writer *writer) {
  ringcast_reader *reader = NULL;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), 0);
  return reader;
}

static void ck_says(const char *word) {
  ck_assert_msg(strstr(ringcast_last_error(), word), "expected '%s' in: %s", word, ringcast_last_error());
}

START_TEST(defaults_are_as_documented) {
  ringcast_writer *writer;
  struct ringcast_info info;
  ck_assert_int_eq(ringcast_writer_create(&writer), 0);
  ck_assert_int_eq(ringcast_writer_info(writer, &info), 0);
  ck_assert_uint_eq(info.capacity, rc_default_capacity());
  ck_assert(info.capacity >= 4 << 20 && info.capacity <= 32 << 20);
  ck_assert_uint_le(info.numa, RINGCAST_NUMA_NODE);
  ck_assert_uint_eq(info.readers, 64);
  ck_assert_int_eq(info.writer_pid, getpid());
  ck_assert_ptr_nonnull(ringcast_memory_name(info.memory));
  ck_assert_uint_eq(strlen(ringcast_writer_handle(writer)) < 96, 1);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(options_out_of_range_are_refused_in_words) {
  ringcast_writer *writer = NULL;
  ringcast_reader *reader = NULL;
  struct ringcast_writer_options bad[] = {
      {.size = 3},
      {.size = sizeof *bad, .flags = 1},
      {.size = sizeof *bad, .readers = 1025},
      {.size = sizeof *bad, .capacity = UINT64_MAX},
      {.size = sizeof *bad, .memory = 9},
      {.size = sizeof *bad, .numa = 4},
      {.size = sizeof *bad, .numa = RINGCAST_NUMA_NODE, .numa_node = 1000},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert_int_eq(ringcast_writer_create_ex(&bad[i], &writer), -EINVAL);
    ck_assert_ptr_null(writer);
    ck_assert_str_ne(ringcast_last_error(), "");
  }
  writer = make_writer(4096, 1);
  struct ringcast_reader_options flags = {.size = sizeof flags, .flags = 2};
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &flags, &reader), -EINVAL);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, 0), -EINVAL);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(memory_can_be_chosen_by_environment) {
  ringcast_writer *writer;
  struct ringcast_info info;
  setenv("RINGCAST_MEMORY", "pages", 1);
  ck_assert_int_eq(ringcast_writer_create(&writer), 0);
  ringcast_writer_info(writer, &info);
  ck_assert_uint_eq(info.memory, RINGCAST_MEMORY_PAGES);
  ringcast_writer_close(writer);
  setenv("RINGCAST_MEMORY", "fast", 1);
  ck_assert_int_eq(ringcast_writer_create(&writer), -EINVAL);
  ck_says("RINGCAST_MEMORY");
}
END_TEST

START_TEST(frames_go_from_the_writer_to_every_reader) {
  ringcast_writer *writer = make_writer(8192, 4);
  ringcast_reader *readers[3];
  for (int i = 0; i < 3; i++) readers[i] = attach(writer);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 3, 0), 3);
  for (uint64_t n = 0; n < 300; n++) {
    struct ringcast_span span;
    size_t bytes = pattern_bytes(n, 3000);
    ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, 0, &span), 0);
    ck_assert_uint_eq((uintptr_t)span.data % 64, 16);
    pattern_fill(span.data, bytes, n);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes, 5), 0);
    for (int i = 0; i < 3; i++) {
      struct ringcast_frame frame;
      ck_assert_int_eq(ringcast_reader_next(readers[i], 0, &frame), 0);
      ck_assert_uint_eq(frame.bytes, bytes);
      ck_assert_uint_eq(frame.kind, 5);
      ck_assert(pattern_matches(frame.data, bytes, n));
      ck_assert_int_eq(ringcast_reader_release(readers[i], &frame), 0);
    }
  }
  for (int i = 0; i < 3; i++) ringcast_reader_close(readers[i]);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(an_empty_ring_says_so_and_a_closed_one_differently) {
  ringcast_writer *writer = make_writer(4096, 1);
  ringcast_reader *reader = attach(writer);
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_next(reader, 1000000, &frame), -ETIMEDOUT);
  ck_says("alive");
  ck_assert_int_eq(ringcast_writer_send(writer, "last", 4, 0, 0), 0);
  ringcast_writer_close(writer);
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), 0);
  ck_assert_mem_eq(frame.data, "last", 4);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -EPIPE);
    ck_says("gone");
  }
  ringcast_reader_close(reader);
}
END_TEST

START_TEST(a_full_ring_names_who_holds_it_back) {
  ringcast_writer *writer = make_writer(4096, 4);
  ringcast_reader *reader;
  struct ringcast_reader_options options = {.size = sizeof options, .name = "rank 3"};
  struct ringcast_peer peer, peers[4];
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 0);
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), 0);
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
  ck_assert_uint_eq(peer.lag, (uint64_t)sent * 64);
  ck_assert_int_eq(ringcast_writer_peers(writer, peers, 4), 1);
  ck_assert_int_eq(ringcast_writer_peers(writer, NULL, 0), 1);
  uint64_t lag;
  ck_assert_int_eq(ringcast_reader_lag(reader, &lag), 0);
  ck_assert_uint_eq(lag, peer.lag);
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, 0), 0);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(calls_out_of_order_are_refused_in_words_and_harm_nothing) {
  ringcast_writer *writer = make_writer(4096, 4);
  ringcast_reader *reader = attach(writer);
  struct ringcast_span span;
  struct ringcast_frame frame, other;
  ck_assert_int_eq(ringcast_writer_commit(writer, 0, 0), -EINVAL);
  ck_assert_int_eq(ringcast_writer_abort(writer), -EINVAL);
  ck_assert_int_eq(ringcast_writer_grow(writer, 5, 0, &span), -EINVAL);
  ck_assert_int_eq(ringcast_writer_reserve(writer, SIZE_MAX, 0, &span), -EMSGSIZE);
  ck_says("spill_bytes");
  ck_assert_int_eq(ringcast_writer_reserve(writer, 8, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 8, 0, &span), -EBUSY);
  ck_says("commit or abort");
  ck_assert_int_eq(ringcast_writer_commit(writer, 9, 0), -EINVAL);
  memcpy(span.data, "12345678", 8);
  ck_assert_int_eq(ringcast_writer_commit(writer, 8, 0), 0);
  ck_assert_int_eq(ringcast_writer_send(writer, "next", 4, 0, 0), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &other), -EBUSY);
  ck_says("release one first");
  other = frame;
  other.position += 64;
  ck_assert_int_eq(ringcast_reader_release(reader, &other), -EINVAL);
  ck_assert_mem_eq(frame.data, "12345678", 8);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), -EINVAL);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_mem_eq(frame.data, "next", 4);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(more_readers_than_slots_are_refused) {
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *first = attach(writer), *second = attach(writer), *third = NULL;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &third), -EUSERS);
  ck_says("2 reader slots");
  ck_assert_ptr_null(third);
  ringcast_reader_close(first);
  first = attach(writer);
  ringcast_reader_close(first);
  ringcast_reader_close(second);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(handles_that_name_no_ring_are_refused) {
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *reader;
  struct rc_handle handle, other;
  char text[RC_HANDLE_MAX];
  ck_assert_int_eq(ringcast_reader_attach("hello", &reader), -EINVAL);
  ck_assert_int_eq(ringcast_reader_attach(NULL, &reader), -EINVAL);
  ck_assert_int_eq(rc_handle_parse(ringcast_writer_handle(writer), &handle), 0);

  other = handle, other.token[1] ^= 1;
  rc_handle_format(&other, text);
  ck_assert_int_eq(ringcast_reader_attach(text, &reader), -ENOENT);
  other = handle, other.writer.start++;
  rc_handle_format(&other, text);
  ck_assert_int_eq(ringcast_reader_attach(text, &reader), -ENOENT);
  other = handle, other.control_fd = 1; /* standard output: no file of ours */
  rc_handle_format(&other, text);
  ck_assert_int_lt(ringcast_reader_attach(text, &reader), 0);
  other = handle, other.control_fd = 999;
  rc_handle_format(&other, text);
  ck_assert_int_eq(ringcast_reader_attach(text, &reader), -ENOENT);
  ringcast_writer *twin = make_writer(4096, 2); /* as large, so its data would fit */
  struct rc_handle of_twin;
  ck_assert_int_eq(rc_handle_parse(ringcast_writer_handle(twin), &of_twin), 0);
  other = handle, other.data_fd = of_twin.data_fd;
  rc_handle_format(&other, text);
  ck_assert_int_eq(ringcast_reader_attach(text, &reader), -ENOENT);
  ringcast_writer_close(twin);
  other = handle, other.data_fd = handle.control_fd; /* a real segment, but not the data */
  rc_handle_format(&other, text);
  ck_assert_int_lt(ringcast_reader_attach(text, &reader), 0);

  strcpy(text, ringcast_writer_handle(writer));
  ringcast_writer_close(writer);
  ck_assert_int_eq(ringcast_reader_attach(text, &reader), -ENOENT);
  ck_says("gone");
  writer = make_writer(4096, 2); /* most likely takes the same descriptors */
  ck_assert_int_eq(ringcast_reader_attach(text, &reader), -ENOENT);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(another_builds_layout_and_damaged_sizes_are_refused) {
  ringcast_writer *writer = make_writer(8192, 2);
  ringcast_reader *reader;
  struct rc_identity *id = &rc_segment_control(&writer->segment)->id, good = *id;
  id->layout++;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
  ck_says("same version");
  *id = good;
  const uint64_t capacities[] = {0, 4096, 8191, 16384, (uint64_t)1 << 63, UINT64_MAX};
  for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++) {
    id->capacity = capacities[i];
    ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
  }
  *id = good;
  const uint32_t slots[] = {0, 1000, 1025, UINT32_MAX};
  for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
    id->slots = slots[i];
    ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
  }
  *id = good;
  id->memory = 77;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
  *id = good;
  rc_segment_control(&writer->segment)->tail = 1;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
  rc_segment_control(&writer->segment)->tail = 0;
  id->page_size = 3;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
  *id = good;
  id->ready = 0;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -ENOENT);
  *id = good;
  reader = attach(writer);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_damaged_frame_and_a_damaged_cursor_are_told) {
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *reader = attach(writer);
  struct ringcast_frame frame;
  struct ringcast_span span;
  struct rc_frame_header *header = (struct rc_frame_header *)writer->segment.data.base;
  ck_assert_int_eq(ringcast_writer_send(writer, "abc", 3, 0, 0), 0);
  header->bytes = 1000000;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EPROTO);
  ck_says("damaged");
  header->bytes = 3;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  rc_segment_control(&writer->segment)->slots[0].cursor = 1 << 20;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1900, 0, &span), 0); /* within what was granted */
  ck_assert_int_eq(ringcast_writer_commit(writer, 1900, 0), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1900, 0, &span), -EPROTO);
  ck_says("cursor");
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1900, 0, &span), 0);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_forked_child_is_refused_and_leaves_the_ring_alone) {
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *reader = attach(writer);
  pid_t pid = fork();
  if (pid == 0) {
    struct ringcast_span span;
    struct ringcast_frame frame = {0};
    struct ringcast_info info;
    struct ringcast_peer peer;
    uint64_t lag;
    int refused = ringcast_writer_reserve(writer, 1, 0, &span) == -ECHILD &&
                  ringcast_writer_grow(writer, 1, 0, &span) == -ECHILD &&
                  ringcast_writer_commit(writer, 0, 0) == -ECHILD && ringcast_writer_abort(writer) == -ECHILD &&
                  ringcast_writer_send(writer, "", 0, 0, 0) == -ECHILD &&
                  ringcast_writer_wait_readers(writer, 1, 0) == -ECHILD &&
                  ringcast_writer_peers(writer, &peer, 1) == -ECHILD &&
                  ringcast_writer_slowest(writer, &peer) == -ECHILD &&
                  ringcast_writer_info(writer, &info) == -ECHILD && ringcast_reader_next(reader, 0, &frame) == -ECHILD &&
                  ringcast_reader_release(reader, &frame) == -ECHILD && ringcast_reader_lag(reader, &lag) == -ECHILD &&
                  ringcast_reader_info(reader, &info) == -ECHILD && strstr(ringcast_last_error(), "fork");
    ringcast_reader_close(reader);
    ringcast_writer_close(writer);
    _exit(refused && ring_mappings() == 0 ? 0 : 1);
  }
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_writer_send(writer, "still here", 10, 0, 0), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 0), 1);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(waiting_for_readers_in_vain_says_how_many_came) {
  ringcast_writer *writer = make_writer(4096, 4);
  ringcast_reader *reader = attach(writer);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, 1000000), -ETIMEDOUT);
  ck_says("1 of 2");
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, 0), -EAGAIN);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

static bool is_readable(int fd, int timeout_ms) { return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, timeout_ms) == 1; }

/* By io_uring where it is to be had, and by a thread. */
START_TEST(a_descriptor_tells_when_to_look) {
  if (_i == 1) setenv("RINGCAST_DISABLE", "io_uring", 1);
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *reader = attach(writer);
  struct ringcast_frame frame;
  int fd = ringcast_reader_fd(reader);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(ringcast_reader_fd(reader), fd);
  ck_assert(is_readable(fd, 0));
  for (int i = 0; i < 200; i++) {
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
    ck_assert(!is_readable(fd, 0));
    for (int k = 0; k <= i % 3; k++) ck_assert_int_eq(ringcast_writer_send(writer, &i, sizeof i, 0, 0), 0);
    ck_assert(is_readable(fd, -1));
    for (int k = 0; k <= i % 3; k++) {
      ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
      ck_assert_mem_eq(frame.data, &i, sizeof i);
      ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
    }
  }
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
  ringcast_writer_close(writer);
  ck_assert(is_readable(fd, -1));
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EPIPE);
  ringcast_reader_close(reader);
}
END_TEST

START_TEST(as_many_frames_are_held_as_was_asked_for) {
  ringcast_writer *writer = make_writer(8192, 2);
  ringcast_reader *reader;
  struct ringcast_reader_options options = {.size = sizeof options, .leases = 3};
  struct ringcast_frame frames[3], more;
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), 0);
  for (char c = 'a'; c < 'e'; c++) ck_assert_int_eq(ringcast_writer_send(writer, &c, 1, 0, 0), 0);
  for (int i = 0; i < 3; i++) ck_assert_int_eq(ringcast_reader_next(reader, 0, &frames[i]), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &more), -EBUSY);
  ck_says("3 frames");
  ck_assert_int_eq(ringcast_reader_release(reader, &frames[1]), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &more), -EBUSY); /* its place is taken until the older one goes */
  ck_assert_int_eq(ringcast_reader_release(reader, &frames[0]), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &more), 0);
  ck_assert_mem_eq(more.data, "d", 1);
  ck_assert_mem_eq(frames[2].data, "c", 1);
  ringcast_reader_close(reader); /* with frames held */
  options.leases = 65;
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), -EINVAL);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_tap_sees_all_and_takes_no_slot) {
  ringcast_writer *writer = make_writer(65536, 1);
  ringcast_reader *reader = attach(writer);
  ringcast_tap *tap;
  struct ringcast_frame frame;
  struct ringcast_info info;
  struct ringcast_stats stats;
  struct ringcast_peer peer;
  uint64_t bytes, gaps;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EAGAIN);
  ck_assert_int_eq(ringcast_tap_next(tap, 1000, &frame), -ETIMEDOUT);
  for (uint64_t i = 0; i < 40; i++) {
    uint8_t data[20000];
    size_t size = (size_t)(mix(i) % sizeof data);
    pattern_fill(data, size, i);
    ck_assert_int_eq(ringcast_writer_send(writer, data, size, (uint16_t)i, 0), 0);
    ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), 0);
    ck_assert(frame.bytes == size && frame.kind == i && pattern_matches(frame.data, size, i));
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
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
  for (int i = 0; i < 100; i++) ck_assert_int_eq(ringcast_writer_send(writer, "0123456789", 10, 0, 0), 0);
  for (int i = 0; i < 5; i++) ck_assert_int_eq(ringcast_writer_send(writer, NULL, 0, 1, 0), 0);
  ringcast_writer_close(writer);
  for (int i = 0; i < 105; i++) ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), 0);
  ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), -EPIPE);
  ringcast_tap_close(tap);
  ringcast_tap_close(NULL);
  ck_assert_int_eq(ringcast_tap_attach("rc1:", &tap), -EINVAL);
}
END_TEST

START_TEST(what_was_done_is_counted) {
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *reader = attach(writer);
  struct ringcast_frame frame;
  struct ringcast_span span;
  struct ringcast_stats stats;
  struct ringcast_peer peer;
  uint64_t sent = 0, waits = 0;
  ck_assert_int_eq(ringcast_reader_next(reader, 2000000, &frame), -ETIMEDOUT);
  while (ringcast_writer_send(writer, "12345", 5, 0, 0) == 0) sent++;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5, 2000000, &span), -ETIMEDOUT);
  ck_assert_int_eq(ringcast_writer_stats(writer, &stats), 0);
  ck_assert_uint_eq(stats.frames, sent);
  ck_assert_uint_eq(stats.bytes, sent * 5);
  ck_assert_uint_eq(stats.waits, 1);
  ck_assert_uint_ge(stats.waited_ns, 2000000);
  ck_assert_uint_ge(stats.sleeps, 1);
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_uint_eq(peer.stalls, 1);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ck_assert_int_eq(ringcast_reader_stats(reader, &stats), 0);
  ck_assert_uint_eq(stats.frames, 1);
  ck_assert_uint_eq(stats.bytes, 5);
  ck_assert_uint_eq(stats.waits, 1);
  for (int i = 0; i < 16; i++) waits += stats.histogram[i];
  ck_assert_uint_eq(waits, 1);
  for (int i = 0; i < 11; i++) ck_assert_uint_eq(stats.histogram[i], 0); /* it took 2 ms at least */
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_cancelled_handle_waits_no_more) {
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *reader = attach(writer);
  struct ringcast_frame frame;
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, 0), 0);
  ringcast_reader_cancel(reader);
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), 0); /* it had not to wait */
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -ECANCELED);
  ck_says("cancelled");
  while (ringcast_writer_send(writer, "x", 1, 0, 0) == 0) {}
  ringcast_writer_cancel(writer);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1, RINGCAST_FOREVER, &span), -ECANCELED);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, RINGCAST_FOREVER), -ECANCELED);
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, 0), 0);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_timeout_that_is_negative_by_mistake_is_refused) {
  ringcast_writer *writer = make_writer(4096, 2), *other = NULL;
  ringcast_reader *reader = attach(writer), *never = NULL;
  struct ringcast_frame frame;
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_reader_next(reader, -2, &frame), -EINVAL);
  ck_says("negative");
  ck_assert_int_eq(ringcast_writer_reserve(writer, 8, INT64_MIN, &span), -EINVAL);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, -3), -EINVAL);
  struct ringcast_writer_options writer_options = {.size = sizeof writer_options, .spin_ns = -2};
  struct ringcast_reader_options reader_options = {.size = sizeof reader_options, .spin_ns = -2};
  ck_assert_int_eq(ringcast_writer_create_ex(&writer_options, &other), -EINVAL);
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &reader_options, &never), -EINVAL);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_readers_name_cannot_break_a_line_of_a_log) {
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *reader;
  struct ringcast_reader_options options = {.size = sizeof options, .name = "evil\n\x1b[31m and far too long for the slot"};
  struct ringcast_peer peer;
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), 0);
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_str_eq(peer.name, "evil??[31m and far too long for");
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(no_more_descriptors_is_what_it_says) {
  ringcast_writer *writer = make_writer(4096, 2), *other = NULL;
  ringcast_reader *reader = NULL;
  struct rlimit limit, none = {0, 0};
  getrlimit(RLIMIT_NOFILE, &limit);
  none.rlim_max = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &none);
  int attached = ringcast_reader_attach(ringcast_writer_handle(writer), &reader);
  int made = ringcast_writer_create(&other);
  setrlimit(RLIMIT_NOFILE, &limit);
  ck_assert_int_eq(attached, -EMFILE);
  ck_assert_int_eq(made, -EMFILE);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(closing_nothing_is_fine) {
  ringcast_writer_close(NULL);
  ringcast_reader_close(NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("channel");
  TCase *tests = add_case(suite, "channel");
  tcase_add_checked_fixture(tests, remember, nothing_is_left);
  tcase_add_test(tests, defaults_are_as_documented);
  tcase_add_test(tests, options_out_of_range_are_refused_in_words);
  tcase_add_test(tests, memory_can_be_chosen_by_environment);
  tcase_add_test(tests, frames_go_from_the_writer_to_every_reader);
  tcase_add_test(tests, an_empty_ring_says_so_and_a_closed_one_differently);
  tcase_add_test(tests, a_full_ring_names_who_holds_it_back);
  tcase_add_test(tests, calls_out_of_order_are_refused_in_words_and_harm_nothing);
  tcase_add_test(tests, more_readers_than_slots_are_refused);
  tcase_add_test(tests, handles_that_name_no_ring_are_refused);
  tcase_add_test(tests, another_builds_layout_and_damaged_sizes_are_refused);
  tcase_add_test(tests, a_damaged_frame_and_a_damaged_cursor_are_told);
  tcase_add_test(tests, a_forked_child_is_refused_and_leaves_the_ring_alone);
  tcase_add_test(tests, waiting_for_readers_in_vain_says_how_many_came);
  tcase_add_loop_test(tests, a_descriptor_tells_when_to_look, 0, 2);
  tcase_add_test(tests, as_many_frames_are_held_as_was_asked_for);
  tcase_add_test(tests, a_tap_sees_all_and_takes_no_slot);
  tcase_add_test(tests, what_was_done_is_counted);
  tcase_add_test(tests, a_cancelled_handle_waits_no_more);
  tcase_add_test(tests, a_timeout_that_is_negative_by_mistake_is_refused);
  tcase_add_test(tests, a_readers_name_cannot_break_a_line_of_a_log);
  tcase_add_test(tests, no_more_descriptors_is_what_it_says);
  tcase_add_test(tests, closing_nothing_is_fine);
  return run_suite(suite);
}
