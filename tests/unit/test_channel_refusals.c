/* SPDX-License-Identifier: Apache-2.0 */
/* What the public API refuses, in which words, and that nothing is harmed by it. */
#define _GNU_SOURCE
#include <errno.h>
#include <unistd.h>

#include "tests/support/channel.h"
#include "tests/support/children.h"

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
  struct ringcast_reader_options flags = {.size = sizeof flags,
                                          .flags = RINGCAST_READER_RETAIN << 1};
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &flags, &reader),
                   -EINVAL);
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

#define TOKEN "0123456789abcdef0123456789abcdef"

TEST(a_handle_that_is_formatted_is_parsed_back) {
  const struct rc_handle handles[] = {
      {.writer = {1, 0}},
      {.writer = {INT32_MAX, UINT64_MAX},
       .control_fd = INT32_MAX,
       .data_fd = INT32_MAX,
       .token = {UINT64_MAX, UINT64_MAX}},
      {.writer = {4711, 123456}, .control_fd = 3, .data_fd = 4, .token = {0x0123456789abcdef, 0}},
  };
  for (size_t i = 0; i < sizeof handles / sizeof *handles; i++) {
    char text[RC_HANDLE_MAX];
    struct rc_handle parsed;
    rc_handle_format(&handles[i], text);
    ck_assert_uint_lt(strlen(text), RC_HANDLE_MAX - 1);
    ck_assert_int_eq(rc_handle_parse(text, &parsed), 0);
    ck_assert_int_eq(parsed.writer.pid, handles[i].writer.pid);
    ck_assert_uint_eq(parsed.writer.start, handles[i].writer.start);
    ck_assert_int_eq(parsed.control_fd, handles[i].control_fd);
    ck_assert_int_eq(parsed.data_fd, handles[i].data_fd);
    ck_assert_mem_eq(parsed.token, handles[i].token, sizeof parsed.token);
  }
}

TEST(what_is_no_handle_is_refused) {
  static const char *const texts[] = {
      "",
      "rc1",
      "rc1:",
      "rc2:1:2:3:4:" TOKEN,
      "rc1:1:2:3:4:",
      "rc1:1:2:3:4:" TOKEN "0",
      "rc1:1:2:3:4:" TOKEN " ",
      "rc1:1:2:3:4:0123456789abcdef0123456789abcde",
      "rc1:1:2:3:4:0123456789ABCDEF0123456789abcdef",
      "rc1:0:2:3:4:" TOKEN,
      "rc1:-1:2:3:4:" TOKEN,
      "rc1:+1:2:3:4:" TOKEN,
      "rc1: 1:2:3:4:" TOKEN,
      "rc1:01:2:3:4:" TOKEN,
      "rc1:2147483648:2:3:4:" TOKEN,
      "rc1:1:18446744073709551616:3:4:" TOKEN,
      "rc1:1:2:2147483648:4:" TOKEN,
      "rc1:1::3:4:" TOKEN,
      "rc1:1:2:3:4:" TOKEN ":5",
  };
  struct rc_handle handle;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    ck_assert_msg(rc_handle_parse(texts[i], &handle) == -EINVAL, "accepted: %s", texts[i]);
  ck_assert_int_eq(rc_handle_parse(NULL, &handle), -EINVAL);
  ck_assert_int_eq(rc_handle_parse("rc1:1:2:3:4:" TOKEN, &handle), 0);
}

TEST(endless_garbage_is_refused_after_a_glance) {
  /* No terminator: reading further is caught by the address sanitizer. */
  char *text = malloc(RC_HANDLE_MAX);
  memset(text, '1', RC_HANDLE_MAX);
  memcpy(text, "rc1:", 4);
  struct rc_handle handle;
  ck_assert_int_eq(rc_handle_parse(text, &handle), -EINVAL);
  free(text);
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
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1700, 0, &span),
                   0); /* within what was granted */
  ck_assert_int_eq(ringcast_writer_commit(writer, 1700, 0), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1700, 0, &span), -EPROTO);
  ck_says("cursor");
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1700, 0, &span), 0);
}

struct both {
  ringcast_writer *writer;
  ringcast_reader *reader;
};

static void must_be_refused(void *context) {
  const struct both *both = context;
  ringcast_writer *writer = both->writer;
  ringcast_reader *reader = both->reader;
  struct ringcast_span span;
  struct ringcast_frame frame = {0};
  struct ringcast_info info = {.size = sizeof info};
  struct ringcast_peer peer = {.size = sizeof peer};
  struct ringcast_stats stats = {.size = sizeof stats};
  uint64_t lag;
  const int results[] = {ringcast_writer_reserve(writer, 1, 0, &span),
                         ringcast_writer_grow(writer, 1, 0, &span),
                         ringcast_writer_commit(writer, 0, 0),
                         ringcast_writer_abort(writer),
                         ringcast_writer_send(writer, "", 0, 0, 0),
                         ringcast_writer_wait_readers(writer, 1, 0),
                         ringcast_writer_peers(writer, &peer, 1),
                         ringcast_writer_slowest(writer, &peer),
                         ringcast_writer_check(writer, &peer),
                         ringcast_writer_fd(writer),
                         ringcast_writer_room_fd(writer),
                         ringcast_writer_stats(writer, &stats),
                         ringcast_writer_info(writer, &info),
                         ringcast_reader_check(reader),
                         ringcast_reader_fd(reader),
                         ringcast_reader_stats(reader, &stats),
                         ringcast_reader_next(reader, 0, &frame),
                         ringcast_reader_release(reader, &frame),
                         ringcast_reader_lag(reader, &lag),
                         ringcast_reader_info(reader, &info)};
  child_must(strstr(ringcast_last_error(), "fork"));
  for (size_t i = 0; i < sizeof results / sizeof *results; i++) child_must(results[i] == -ECHILD);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  child_must(ring_mappings() == 0);
}

TEST(a_forked_child_is_refused_and_leaves_the_ring_alone) {
  SCOPED_WRITER writer = make_writer(4096, 2);
  SCOPED_READER reader = attach(writer);
  child_must_succeed(start_child(must_be_refused, &(struct both){writer, reader}));
  ck_assert_int_eq(ringcast_writer_send(writer, "still here", 10, 0, 0), 0);
  take_one(reader);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 0), 1);
}

TEST(no_more_descriptors_is_what_it_says) {
  ringcast_writer *writer = make_writer(4096, 2), *other = NULL;
  ringcast_reader *reader = NULL;
  rlim_t most = limit_descriptors(0);
  int attached = ringcast_reader_attach(ringcast_writer_handle(writer), &reader);
  int made = ringcast_writer_create(&other);
  limit_descriptors(most);
  ck_assert_int_eq(attached, -EMFILE);
  ck_assert_int_eq(made, -EMFILE);
  ringcast_writer_close(writer);
}

RUN_TESTS("channel, refusals", remember, nothing_is_left)
