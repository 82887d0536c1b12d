/* SPDX-License-Identifier: Apache-2.0 */
/* What the public API refuses, in which words, and that nothing is harmed by it. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/channel.h"

TEST(options_out_of_range_are_refused_in_words) {
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
  struct ringcast_reader_options flags = {.size = sizeof flags, .flags = RINGCAST_READER_RETAIN << 1};
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &flags, &reader), -EINVAL);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, 0), -EINVAL);
  ringcast_writer_close(writer);
}

TEST(calls_out_of_order_are_refused_in_words_and_harm_nothing) {
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
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
}

TEST(more_readers_than_slots_are_refused) {
  SCOPED_WRITER writer = make_writer(4096, 2);
  ringcast_reader *first = attach(writer), *second = attach(writer), *third = NULL;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &third), -EUSERS);
  ck_says("2 reader slots");
  ck_assert_ptr_null(third);
  ringcast_reader_close(first);
  first = attach(writer);
  ringcast_reader_close(first);
  ringcast_reader_close(second);
}

TEST(handles_that_name_no_ring_are_refused) {
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
  ck_says("has closed it (or dropped its Writer)");
  writer = make_writer(4096, 2); /* most likely takes the same descriptors */
  ck_assert_int_eq(ringcast_reader_attach(text, &reader), -ENOENT);
  ringcast_writer_close(writer);
}

TEST(another_builds_layout_and_damaged_sizes_are_refused) {
  SCOPED_WRITER writer = make_writer(8192, 2);
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
}

TEST(a_damaged_frame_and_a_damaged_cursor_are_told) {
  SCOPED_WRITER writer = make_writer(4096, 2);
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
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1700, 0, &span), 0); /* within what was granted */
  ck_assert_int_eq(ringcast_writer_commit(writer, 1700, 0), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1700, 0, &span), -EPROTO);
  ck_says("cursor");
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1700, 0, &span), 0);
}

TEST(a_forked_child_is_refused_and_leaves_the_ring_alone) {
  ringcast_writer *writer = make_writer(4096, 2);
  ringcast_reader *reader = attach(writer);
  pid_t pid = fork();
  if (pid == 0) {
    struct ringcast_span span;
    struct ringcast_frame frame = {0};
    struct ringcast_info info = {.size = sizeof info};
    struct ringcast_peer peer = {.size = sizeof peer};
    struct ringcast_stats stats = {.size = sizeof stats};
    uint64_t lag;
    int refused =
        ringcast_writer_reserve(writer, 1, 0, &span) == -ECHILD &&
        ringcast_writer_grow(writer, 1, 0, &span) == -ECHILD && ringcast_writer_commit(writer, 0, 0) == -ECHILD &&
        ringcast_writer_abort(writer) == -ECHILD && ringcast_writer_send(writer, "", 0, 0, 0) == -ECHILD &&
        ringcast_writer_wait_readers(writer, 1, 0) == -ECHILD && ringcast_writer_peers(writer, &peer, 1) == -ECHILD &&
        ringcast_writer_slowest(writer, &peer) == -ECHILD && ringcast_writer_check(writer, &peer) == -ECHILD &&
        ringcast_writer_fd(writer) == -ECHILD && ringcast_writer_room_fd(writer) == -ECHILD &&
        ringcast_writer_stats(writer, &stats) == -ECHILD && ringcast_reader_check(reader) == -ECHILD &&
        ringcast_reader_fd(reader) == -ECHILD && ringcast_reader_stats(reader, &stats) == -ECHILD &&
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

TEST(no_more_descriptors_is_what_it_says) {
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

RUN_TESTS("channel, refusals", remember, nothing_is_left)
