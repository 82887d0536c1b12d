/* SPDX-License-Identifier: Apache-2.0 */
/* Frames larger than the ring, by the public API within one process: sending, waiting, growing,
 * giving back. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shm/os.h"
#include "tests/support/spill.h"

/* ---- Sending --------------------------------------------------------------------------------- */

TEST(the_largest_frame_of_all_fits_and_one_byte_more_does_not) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  size_t most = (size_t)info_of(writer).max_frame;
  struct ringcast_span span;
  for (uint64_t i = 0; i < 3; i++) {
    ck_assert_int_eq(send(writer, i, most), 0);
    ck_assert_int_eq(send(writer, i, 40000), -EAGAIN);
    read_one(reader, i, most);
  }
  const size_t too_many[] = {most + 1, 5 * MIB, SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 4096};
  for (size_t i = 0; i < sizeof too_many / sizeof *too_many; i++) {
    ck_assert_int_eq(ringcast_writer_reserve(writer, too_many[i], 0, &span), -EMSGSIZE);
    ck_says("spill memory than 4194304 bytes");
  }
  ck_assert_int_eq(ringcast_writer_commit(writer, 0, 0), -EINVAL); /* nothing is open */
}

TEST(a_full_budget_holds_the_writer_back_and_names_who_does) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach(writer, 2);
  struct ringcast_span span;
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(send(writer, 0, 3 * MIB), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 0, &span), -EAGAIN);
  ck_says("spill memory is full");
  ck_assert_uint_eq(rc_load_relaxed(&writer->ring.view.control->wanted), RC_FRAME_ALIGN);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 1000000, &span), -ETIMEDOUT);
  ck_says("spill memory (4194304 bytes) is full");
  ck_says("rank 3");
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_uint_eq(peer.stalls, 1);
  ck_assert_uint_eq(rc_load_relaxed(&writer->ring.view.control->wanted), 0); /* it waits no more */
  ck_assert_int_eq(send(writer, 1, 100), 0); /* small frames go on */
  struct ringcast_frame first = expect(reader, 0, 3 * MIB);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 0, &span), -EAGAIN); /* held */
  ck_assert_int_eq(ringcast_reader_release(reader, &first), 0);
  read_one(reader, 1, 100);
  ck_assert_int_eq(send(writer, 2, 2 * MIB), 0);
  read_one(reader, 2, 2 * MIB);
  /* The ring itself can be what is full. */
  while (send(writer, 3, 30) == 0) {}
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 1000000, &span), -ETIMEDOUT);
  ck_says("the ring is full");
  ringcast_reader_close(reader);
  ck_assert_int_eq(send(writer, 4, 4 * MIB - 16), 0);
}

TEST(a_reservation_grows_out_of_the_ring_and_on) {
  SCOPED_WRITER writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 2);
  struct ringcast_span span, grown;
  for (uint64_t round = 0; round < 4; round++) {
    if (round == 2) ck_assert_int_eq(send(writer, 9, 5 * MIB), 0); /* in the way, the third time */
    size_t bytes = 10, moves = 0;
    ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, 0, &span), 0);
    pattern_fill(span.data, bytes, round);
    while (bytes < 20 * MIB) {
      size_t more = bytes + bytes / 3 + 1;
      ck_assert_int_eq(ringcast_writer_grow(writer, more, 0, &grown), 0);
      ck_assert_uint_eq((uintptr_t)grown.data % 64, 16);
      moves += grown.data != span.data;
      for (size_t i = bytes & ~(size_t)7; i < more; i += 8) {
        uint64_t word = pattern_word(round, i);
        memcpy((uint8_t *)grown.data + i, &word, more - i < 8 ? more - i : 8);
      }
      bytes = more;
      span = grown;
    }
    ck_assert_uint_le(moves, 2);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes + 1, 0), -EINVAL);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes, (uint16_t)round), 0);
    if (round == 2) read_one(reader, 9, 5 * MIB);
    read_one(reader, round, bytes);
  }
}

TEST(a_grow_that_fails_leaves_the_reservation_as_it_was) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_span span, grown = {0};
  ck_assert_int_eq(send(writer, 0, 2 * MIB), 0);
  for (uint64_t i = 1; i < 3; i++) { /* from the ring, and in spill memory */
    size_t bytes = i == 1 ? 10 : 50000;
    ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, 0, &span), 0);
    pattern_fill(span.data, bytes, i);
    ck_assert_int_eq(ringcast_writer_grow(writer, 3 * MIB, 0, &grown), -EAGAIN);
    ck_assert_int_eq(ringcast_writer_grow(writer, 5 * MIB, 0, &grown), -EMSGSIZE);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes + 1, 0), -EINVAL);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes, (uint16_t)i), 0);
  }
  ck_assert_ptr_null(grown.data);
  read_one(reader, 0, 2 * MIB);
  read_one(reader, 1, 10);
  read_one(reader, 2, 50000);
  ck_assert_int_eq(ringcast_writer_grow(writer, 3 * MIB, 0, &grown), -EINVAL);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 3 * MIB, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 3 * MIB, 0, &span), -EBUSY);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 3, 0, &span), -EBUSY);
  ck_assert_int_eq(ringcast_writer_grow(writer, 10, 0, &grown), 0); /* stays where it is */
  ck_assert_ptr_eq(span.data, grown.data);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ck_assert_int_eq(ringcast_writer_abort(writer), -EINVAL);
  ck_assert_int_eq(send(writer, 4, 100), 0);
  read_one(reader, 4, 100);
  ck_assert_int_eq(send(writer, 3, 4 * MIB - 16), 0);
  read_one(reader, 3, 4 * MIB - 16);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 3 * MIB, 0, &span),
                   0); /* still open when it is closed */
}

static struct rc_os real_os;
static int refused_advice;

static int full_machine(void *address, size_t bytes, int advice) {
  return advice == refused_advice ? -ENOMEM : real_os.advise(address, bytes, advice);
}

TEST(a_machine_that_is_full_is_an_error_at_reserve_and_nothing_is_lost) {
  SCOPED_WRITER writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_span span;
  real_os = rc_os;
  refused_advice = MADV_POPULATE_WRITE;
  rc_os.advise = full_machine;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 1000000, &span), -ENOMEM);
  ck_says("6291456 bytes more of spill memory");
  ck_assert_int_eq(ringcast_writer_commit(writer, 0, 0), -EINVAL);
  ck_assert_int_eq(send(writer, 0, 1000), 0); /* the ring goes on */
  ck_assert_int_eq(ringcast_writer_reserve(writer, 100, 0, &span), 0);
  pattern_fill(span.data, 100, 1);
  ck_assert_int_eq(ringcast_writer_grow(writer, 5 * MIB, 1000000, &span), -ENOMEM);
  ck_assert_int_eq(ringcast_writer_commit(writer, 100, 1), 0);
  rc_os = real_os;
  ck_assert_int_eq(send(writer, 2, 5 * MIB), 0);
  read_one(reader, 0, 1000);
  read_one(reader, 1, 100);
  read_one(reader, 2, 5 * MIB);
}

TEST(memory_that_a_reader_cannot_read_is_an_error_and_no_signal) {
  SCOPED_WRITER writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_frame frame;
  ck_assert_int_eq(send(writer, 0, 5 * MIB), 0);
  real_os = rc_os;
  refused_advice = MADV_POPULATE_READ;
  rc_os.advise = full_machine;
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -ENOMEM);
    ck_says("5242880 bytes of spill memory");
  }
  rc_os = real_os;
  read_one(reader, 0, 5 * MIB); /* it is still the next one */
}

/* ---- Giving back ----------------------------------------------------------------------------- */

static uint32_t now = 1000;
static uint32_t fake_seconds(void) { return now; }

static uint64_t in_place(ringcast_writer *writer) {
  struct stat file;
  ck_assert_int_eq(fstat(writer->segment.spill.fd, &file), 0);
  ck_assert_uint_eq((uint64_t)file.st_blocks * 512, info_of(writer).spill_used);
  return info_of(writer).spill_used;
}

static int checks;

static int advise_counted(void *address, size_t bytes, int advice) {
  checks += advice == MADV_POPULATE_READ;
  return real_os.advise(address, bytes, advice);
}

TEST(idle_memory_goes_back_to_the_machine_while_small_frames_are_sent) {
  if (cannot_under("qemu", __func__, "qemu passes no advice about memory on to the kernel")) return;
  real_os = rc_os;
  rc_os.seconds = fake_seconds;
  rc_os.advise = advise_counted;
  SCOPED_WRITER writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  writer->backing.keep = 4 * MIB;
  checks = 0; /* attaching looks at the ring's data */
  for (uint64_t round = 0; round < 3; round++) {
    ck_assert_int_eq(send(writer, 0, 20 * MIB), 0);
    ck_assert_uint_eq(in_place(writer), 22 * MIB);
    now += 60; /* held, not idle, however long */
    for (int i = 0; i < 100; i++) ck_assert_int_eq(send(writer, 1, 500), 0);
    ck_assert_uint_eq(in_place(writer), 22 * MIB);
    read_one(reader, 0, 20 * MIB);
    ck_assert_int_eq(checks, (int)round + 1); /* what has been given back is looked at anew */
    for (int i = 0; i < 100; i++) read_one(reader, 1, 500);
    now += 11;
    for (int i = 0; i < 200; i++) { /* a grant comes by */
      ck_assert_int_eq(send(writer, 2, 500), 0);
      read_one(reader, 2, 500);
    }
    ck_assert_uint_eq(in_place(writer), 4 * MIB);
    struct ringcast_info info = {.size = sizeof info};
    ck_assert_int_eq(ringcast_reader_info(reader, &info), 0);
    ck_assert_uint_eq(info.spill_used, 4 * MIB);
  }
  rc_os = real_os;
}

TEST(a_smaller_frame_lets_the_rest_go) {
  struct rc_os real = rc_os;
  rc_os.seconds = fake_seconds;
  SCOPED_WRITER writer = make_writer(64 * MIB);
  writer->backing.keep = 0;
  ck_assert_int_eq(send(writer, 0, 20 * MIB), 0);
  now += 10;
  ck_assert_int_eq(send(writer, 1, 3 * MIB), 0);
  ck_assert_uint_eq(in_place(writer), 4 * MIB);
  rc_os = real;
}

TEST(a_reservation_that_grows_over_itself_keeps_what_was_written) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_span span, grown;
  ck_assert_int_eq(send(writer, 1, 2 * MIB - 16), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 4 * MIB, 0, &span), 0);
  pattern_fill(span.data, 4 * MIB, 2);
  ck_assert_int_eq(ringcast_writer_grow(writer, 7 * MIB, 0, &grown), -EAGAIN);
  read_one(reader, 1, 2 * MIB - 16);
  ck_assert_int_eq(ringcast_writer_grow(writer, 7 * MIB, 0, &grown), 0);
  ck_assert_ptr_eq((uint8_t *)grown.data + 2 * MIB, span.data); /* half of it lay there */
  ck_assert_int_eq(ringcast_writer_commit(writer, 4 * MIB, 2), 0);
  read_one(reader, 2, 4 * MIB);
}

int main(void) {
  unsetenv("RINGCAST_SPILL_BYTES");
  return run_tests("spill_channel", remember, nothing_is_left);
}
