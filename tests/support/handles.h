/* SPDX-License-Identifier: Apache-2.0 */
/* Writers and readers that close at the end of a block, and a check that a test leaves nothing of a
 * ring behind. */
#ifndef RC_TESTS_HANDLES_H
#define RC_TESTS_HANDLES_H

#include <poll.h>

#include "channel/channel.h"
#include "ringcast/inspect.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"

/* Variables whose writer or reader closes at the end of their block, the last declared variable
 * first. */
#define SCOPED_WRITER __attribute__((cleanup(close_scoped_writer))) ringcast_writer *
#define SCOPED_READER __attribute__((cleanup(close_scoped_reader))) ringcast_reader *

static inline void close_scoped_writer(ringcast_writer **writer) { ringcast_writer_close(*writer); }
static inline void close_scoped_reader(ringcast_reader **reader) { ringcast_reader_close(*reader); }

/* A writer of these options, writer_of(.capacity = 4096, .readers = 2), and a reader of the writer
 * or of its handle. */
#define writer_of(...)                                                                            \
  make_writer_of((struct ringcast_writer_options){.size = sizeof(struct ringcast_writer_options), \
                                                  __VA_ARGS__})
#define reader_of(writer, ...) reader_at(ringcast_writer_handle(writer), __VA_ARGS__)
#define reader_at(handle, ...)                        \
  attach_at(handle, (struct ringcast_reader_options){ \
                        .size = sizeof(struct ringcast_reader_options), __VA_ARGS__})

static inline ringcast_writer *make_writer_of(struct ringcast_writer_options options) {
  ringcast_writer *writer = NULL;
  int result = ringcast_writer_create_ex(&options, &writer);
  ck_assert_msg(result == 0, "no writer: %d, %s", result, ringcast_last_error());
  return writer;
}

static inline ringcast_reader *attach_at(const char *handle,
                                         struct ringcast_reader_options options) {
  ringcast_reader *reader = NULL;
  int result = ringcast_reader_attach_ex(handle, &options, &reader);
  ck_assert_msg(result == 0, "no reader: %d, %s", result, ringcast_last_error());
  return reader;
}

static inline struct ringcast_info info_of(ringcast_writer *writer) {
  struct ringcast_info info = {.size = sizeof info};
  ck_assert_int_eq(ringcast_writer_info(writer, &info), 0);
  return info;
}

static inline struct ringcast_stats stats_of_writer(ringcast_writer *writer) {
  struct ringcast_stats stats = {.size = sizeof stats};
  ck_assert_int_eq(ringcast_writer_stats(writer, &stats), 0);
  return stats;
}

static inline struct ringcast_stats stats_of_reader(ringcast_reader *reader) {
  struct ringcast_stats stats = {.size = sizeof stats};
  ck_assert_int_eq(ringcast_reader_stats(reader, &stats), 0);
  return stats;
}

/* A frame that is there. */
static inline void take_one(ringcast_reader *reader) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

static inline bool is_readable(int fd, int timeout_ms) {
  return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, timeout_ms) == 1;
}

static inline void ck_says(const char *word) {
  ck_assert_msg(strstr(ringcast_last_error(), word), "expected '%s' in: %s", word,
                ringcast_last_error());
}

#endif
