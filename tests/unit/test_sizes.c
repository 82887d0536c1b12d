/* SPDX-License-Identifier: Apache-2.0 */
/* A program and a library of different releases: public structs that are shorter or longer than the
 * library's own. */
#include <errno.h>

#include "ringcast/gpu.h"
#include "tests/support/channel.h"

static ringcast_writer *writer;
static ringcast_reader *reader;
static ringcast_tap *tap;
static ringcast_gpu_writer *gpu_writer; /* opened when it is first asked */
static ringcast_gpu_reader *gpu_reader;

static int create(void *options) {
  ringcast_writer *other;
  int result = ringcast_writer_create_ex(options, &other);
  if (result == 0) ringcast_writer_close(other);
  return result;
}

static int attach_as(void *options) {
  ringcast_reader *other;
  int result = ringcast_reader_attach_ex(ringcast_writer_handle(writer), options, &other);
  if (result == 0) ringcast_reader_close(other);
  return result;
}

static int open_gpu_writer(void *options) {
  ringcast_gpu_writer *gpu;
  int result = ringcast_gpu_writer_open(writer, options, &gpu);
  if (result == 0) ringcast_gpu_writer_close(gpu);
  return result;
}

static int open_gpu_reader(void *options) {
  ringcast_gpu_reader *gpu;
  int result = ringcast_gpu_reader_open(reader, options, &gpu);
  if (result == 0) ringcast_gpu_reader_close(gpu);
  return result;
}

static int info_of_gpu_writer(void *out) {
  if (!gpu_writer) ck_assert_int_eq(ringcast_gpu_writer_open(writer, NULL, &gpu_writer), 0);
  return ringcast_gpu_writer_info(gpu_writer, out);
}

static int info_of_gpu_reader(void *out) {
  if (!gpu_reader) ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
  return ringcast_gpu_reader_info(gpu_reader, out);
}

static int ask_writer_info(void *out) { return ringcast_writer_info(writer, out); }
static int ask_reader_info(void *out) { return ringcast_reader_info(reader, out); }
static int ask_tap_info(void *out) { return ringcast_tap_info(tap, out); }
static int ask_writer_stats(void *out) { return ringcast_writer_stats(writer, out); }
static int ask_reader_stats(void *out) { return ringcast_reader_stats(reader, out); }
static int ask_tap_stats(void *out) { return ringcast_tap_stats(tap, out); }
static int ask_writer_peers(void *out) { return ringcast_writer_peers(writer, out, 1); }
static int ask_tap_peers(void *out) { return ringcast_tap_peers(tap, out, 1); }
static int slowest(void *out) { return ringcast_writer_slowest(writer, out); }
static int check_all(void *out) { return ringcast_writer_check(writer, out); }
static int gpu_status(void *out) { return ringcast_gpu_status(out); }
static int gpu_device(void *out) { return ringcast_gpu_device(0, out); }

static const struct call {
  const char *type;
  uint32_t size;
  int (*make)(void *sized);
  int result;
} options[] =
    {
        {"ringcast_writer_options", sizeof(struct ringcast_writer_options), create, 0},
        {"ringcast_reader_options", sizeof(struct ringcast_reader_options), attach_as, 0},
        {"ringcast_gpu_writer_options", sizeof(struct ringcast_gpu_writer_options), open_gpu_writer,
         0},
        {"ringcast_gpu_reader_options", sizeof(struct ringcast_gpu_reader_options), open_gpu_reader,
         0},
},
  results[] = {
      {"ringcast_info", sizeof(struct ringcast_info), ask_writer_info, 0},
      {"ringcast_info", sizeof(struct ringcast_info), ask_reader_info, 0},
      {"ringcast_info", sizeof(struct ringcast_info), ask_tap_info, 0},
      {"ringcast_stats", sizeof(struct ringcast_stats), ask_writer_stats, 0},
      {"ringcast_stats", sizeof(struct ringcast_stats), ask_reader_stats, 0},
      {"ringcast_stats", sizeof(struct ringcast_stats), ask_tap_stats, 0},
      {"ringcast_peer", sizeof(struct ringcast_peer), ask_writer_peers, 1},
      {"ringcast_peer", sizeof(struct ringcast_peer), ask_tap_peers, 1},
      {"ringcast_peer", sizeof(struct ringcast_peer), slowest, 1},
      {"ringcast_gpu_driver", sizeof(struct ringcast_gpu_driver), gpu_status, 0},
      {"ringcast_gpu_device_info", sizeof(struct ringcast_gpu_device_info), gpu_device, 0},
      {"ringcast_gpu_info", sizeof(struct ringcast_gpu_info), info_of_gpu_writer, 0},
      {"ringcast_gpu_info", sizeof(struct ringcast_gpu_info), info_of_gpu_reader, 0},
};

enum {
  OPTIONS = sizeof options / sizeof *options,
  RESULTS = sizeof results / sizeof *results,
  ROOM = 512
};

static void set_up(void) {
  remember();
  writer = make_writer(4096, 2);
  reader = attach(writer);
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
}

static void tear_down(void) {
  ringcast_gpu_reader_close(gpu_reader);
  ringcast_gpu_writer_close(gpu_writer);
  ringcast_tap_close(tap);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  nothing_is_left();
}

/* A struct of `size` bytes that are 0, in memory that a sanitizer watches the end of. */
static uint8_t *make_sized(uint32_t size) {
  uint8_t *sized = calloc(1, size < sizeof size ? sizeof size : size);
  memcpy(sized, &size, sizeof size);
  return sized;
}

LOOP_TEST(options_may_be_shorter_or_longer_with_zeros, 0, OPTIONS) {
  const struct call *call = &options[_i];
  for (int more = -8; more <= 8; more += 8) {
    uint8_t *sized = make_sized(call->size + (uint32_t)more);
    ck_assert_msg(call->make(sized) == 0, "%s %+d: %s", call->type, more, ringcast_last_error());
    free(sized);
  }
}

LOOP_TEST(options_that_the_library_does_not_know_are_refused_when_set, 0, OPTIONS) {
  const struct call *call = &options[_i];
  for (uint32_t byte = call->size; byte < call->size + 8; byte++) {
    uint8_t *sized = make_sized(call->size + 8);
    sized[byte] = 1;
    ck_assert_int_eq(call->make(sized), -E2BIG);
    ck_says(call->type);
    ck_says("later");
    free(sized);
  }
}

TEST(what_a_shorter_struct_has_is_read) {
  struct ringcast_writer_options given = {
      .size = offsetof(struct ringcast_writer_options, slow_ns), .readers = 3, .slow_ns = -1};
  struct ringcast_info info = {.size = sizeof info};
  SCOPED_WRITER other = NULL;
  ck_assert_int_eq(ringcast_writer_create_ex(&given, &other), 0); /* slow_ns lies behind its end */
  ck_assert_int_eq(ringcast_writer_info(other, &info), 0);
  ck_assert_uint_eq(info.readers, 3);
}

/* A result of the caller's size: what the library knows of it, zeros behind, and no byte more. */
LOOP_TEST(results_are_filled_as_far_as_the_caller_has_room, 0, RESULTS) {
  const struct call *call = &results[_i];
  uint8_t whole[ROOM], filled[ROOM];
  for (int more = -8; more <= 8; more += 8) {
    uint32_t size = call->size + (uint32_t)more, known = more < 0 ? size : call->size;
    memset(whole, 0xa5, sizeof whole);
    memset(filled, 0xa5, sizeof filled);
    memcpy(whole, &call->size, sizeof size);
    memcpy(filled, &size, sizeof size);
    ck_assert_int_eq(call->make(whole), call->result);
    ck_assert_msg(call->make(filled) == call->result, "%s %+d: %s", call->type, more,
                  ringcast_last_error());
    ck_assert_mem_eq(filled, &size, sizeof size); /* the caller's own */
    ck_assert_mem_eq(filled + sizeof size, whole + sizeof size, known - sizeof size);
    ck_assert_uint_eq(others_than(0, filled + known, size - known), 0);
    ck_assert_uint_eq(others_than(0xa5, filled + size, sizeof filled - size), 0);
  }
}

LOOP_TEST(a_size_that_was_never_set_is_told, 0, OPTIONS + RESULTS) {
  const uint32_t sizes[] = {0, 7, 4097, UINT32_MAX};
  const struct call *call = _i < OPTIONS ? &options[_i] : &results[_i - OPTIONS];
  for (int i = 0; i < 4; i++) {
    uint8_t sized[ROOM] = {0};
    memcpy(sized, &sizes[i], sizeof *sizes);
    ck_assert_int_eq(call->make(sized), sizes[i] < 8 ? -EINVAL : -E2BIG);
    ck_says(call->type);
    ck_says("set it to sizeof");
    ck_assert_uint_eq(others_than(0, sized + sizeof *sizes, sizeof sized - sizeof *sizes), 0);
  }
  uint32_t none = 0;
  ck_assert_int_eq(check_all(&none), -EINVAL); /* also where there is nothing to tell */
}

TEST(the_first_peers_size_is_that_of_all) {
  enum { LONGER = sizeof(struct ringcast_peer) + 8, SHORTER = sizeof(struct ringcast_peer) - 8 };
  SCOPED_READER second = attach(writer);
  for (uint32_t size = SHORTER; size <= LONGER; size += 8) {
    uint8_t peers[3 * LONGER];
    memset(peers, 0xa5, sizeof peers);
    memcpy(peers, &size, sizeof size);
    ck_assert_int_eq(ringcast_writer_peers(writer, (struct ringcast_peer *)peers, 2), 2);
    for (uint32_t i = 0; i < 2; i++) {
      uint32_t head[2] = {size, i}; /* size, slot */
      ck_assert_mem_eq(peers + (size_t)i * size, head, sizeof head);
    }
    ck_assert_uint_eq(others_than(0xa5, peers + 2 * (size_t)size, sizeof peers - 2 * (size_t)size),
                      0);
  }
  ck_assert_int_eq(ringcast_writer_peers(writer, NULL, 0), 2);
}

RUN_TESTS("sizes", set_up, tear_down)
