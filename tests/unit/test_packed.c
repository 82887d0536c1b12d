/* SPDX-License-Identifier: Apache-2.0 */
/* A frame that is built once, in memory of the sender's own, and sent on several rings. */
#include <pthread.h>
#include <string.h>

#include "ringcast/frame.h"
#include "tests/support/suite.h"

enum { RINGS = 3, TIMES = 200, ELEMENTS = 1000 };

static int64_t numbers[ELEMENTS];
static const int64_t shape[] = {ELEMENTS};

/* The frame's bytes; `memory` may start anywhere. */
static size_t build(void *memory, size_t room) {
  const struct ringcast_tensor tensor = {
      .data = numbers, .dtype = {0, 64, 1}, .ndim = 1, .shape = shape};
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  size_t bytes;
  ringcast_plan_tensor(&plan, 3, 1, sizeof numbers);
  ringcast_plan_item(&plan, 4, 0);
  ck_assert_uint_le(ringcast_plan_bytes(&plan), room);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, room, &plan, RINGCAST_ROOT_DICT, 5), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "ids", 3, &tensor), 0);
  ck_assert_int_eq(ringcast_build_scalar(&builder, RINGCAST_ITEM_INT, "step", 4, 7), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  return bytes;
}

static void expect(ringcast_reader *reader) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader content;
  struct ringcast_item item;
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), 0);
  ck_assert_uint_eq(frame.kind, RINGCAST_KIND_TENSORS);
  ck_assert_int_eq(ringcast_frame_open(&content, frame.data, frame.bytes), 0);
  ck_assert_uint_eq(content.tag, 5);
  ck_assert_int_eq(ringcast_frame_find(&content, "ids", 3, &item), 0);
  ck_assert_uint_eq((uintptr_t)item.data % 64, 0);
  ck_assert_mem_eq(item.data, numbers, sizeof numbers);
  ck_assert_int_eq(ringcast_frame_find(&content, "step", 4, &item), 0);
  ck_assert_int_eq(item.scalar.i, 7);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

struct end {
  pthread_t thread;
  ringcast_writer *writer;
  ringcast_reader *reader;
  const void *data;
  size_t bytes;
};

static void *send_often(void *argument) {
  struct end *end = argument;
  for (int i = 0; i < TIMES; i++)
    if (ringcast_writer_send(end->writer, end->data, end->bytes, RINGCAST_KIND_TENSORS,
                             RINGCAST_FOREVER) != 0)
      return NULL;
  return end;
}

/* Wherever the frame lay while it was built, in the ring its tensors are on lines. */
LOOP_TEST(a_packed_frame_goes_out_on_several_rings_by_several_threads, 0, 2) {
  static uint8_t memory[16384];
  struct end ends[RINGS];
  uint8_t *start = memory + (_i == 0 ? 16 : 3);
  for (int i = 0; i < ELEMENTS; i++) numbers[i] = i * i;
  size_t bytes = build(start, sizeof memory - 16);
  for (int i = 0; i < RINGS; i++) {
    struct ringcast_writer_options options = {
        .size = sizeof options, .capacity = 1 << 16, .readers = 1};
    ends[i] = (struct end){.data = start, .bytes = bytes};
    ck_assert_int_eq(ringcast_writer_create_ex(&options, &ends[i].writer), 0);
    ck_assert_int_eq(
        ringcast_reader_attach(ringcast_writer_handle(ends[i].writer), &ends[i].reader), 0);
    ck_assert_int_eq(pthread_create(&ends[i].thread, NULL, send_often, &ends[i]), 0);
  }
  for (int k = 0; k < TIMES; k++)
    for (int i = 0; i < RINGS; i++) expect(ends[i].reader);
  for (int i = 0; i < RINGS; i++) {
    void *sent;
    ck_assert_int_eq(pthread_join(ends[i].thread, &sent), 0);
    ck_assert_ptr_nonnull(sent);
    ringcast_reader_close(ends[i].reader);
    ringcast_writer_close(ends[i].writer);
  }
}

RUN_TESTS("packed", NULL, NULL)
