/* SPDX-License-Identifier: Apache-2.0 */
/* Copies past the cache, alone and as a part of ringcast_writer_send. */
#include "channel/channel.h"
#include "shm/memory.h"
#include "shm/topology.h"
#include "tests/support/spill.h"

enum { MOST = 64 * 5 };

TEST(a_copy_past_the_cache_writes_these_bytes_and_no_others) {
  static uint8_t source[MOST + 64], target[MOST + 128];
  for (size_t i = 0; i < sizeof source; i++) source[i] = (uint8_t)(i * 7 + 1);
  for (size_t shift = 0; shift < 64; shift += 3)
    for (size_t bytes = 0; bytes <= MOST; bytes++) {
      memset(target, 0, sizeof target);
      rc_copy_past_cache(target + shift, source + shift / 2, bytes);
      ck_assert_mem_eq(target + shift, source + shift / 2, bytes);
      for (size_t i = 0; i < sizeof target; i++)
        if (i < shift || i >= shift + bytes) ck_assert_uint_eq(target[i], 0);
    }
}

TEST(a_large_payload_arrives_the_same_past_the_cache) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  ck_assert_uint_eq(writer->past_cache, rc_past_cache_bytes());
  writer->past_cache = 4096;
  uint8_t *source = malloc(3 * MIB);
  for (size_t i = 0; i < 3 * MIB; i++) source[i] = (uint8_t)(i * 131 + i / 251);
  const size_t sizes[] = {0, 1, 4095, 4096, 4097, 3 * MIB - 1};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    struct ringcast_frame frame;
    ck_assert_int_eq(ringcast_writer_send(writer, source + 1, sizes[i], 0, 0), 0);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
    ck_assert_uint_eq(frame.bytes, sizes[i]);
    ck_assert_mem_eq(frame.data, source + 1, sizes[i]);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  }
  free(source);
}

RUN_TESTS("copy", NULL, NULL)
