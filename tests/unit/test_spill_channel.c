/* SPDX-License-Identifier: Apache-2.0 */
/* Frames larger than the ring, by the public API within one process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "channel/channel.h"
#include "shm/error.h"
#include "shm/os.h"
#include "tests/support/children.h"
#include "tests/support/fake_files.h"
#include "tests/support/leaks.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

static const uint64_t MIB = 1 << 20;
static int descriptors, mappings;

static void remember(void) {
  descriptors = open_descriptors();
  mappings = ring_mappings();
}

static void nothing_is_left(void) {
  ck_assert_int_eq(open_descriptors(), descriptors);
  ck_assert_int_eq(ring_mappings(), mappings);
}

static int create(uint64_t spill_bytes, ringcast_writer **out) {
  struct ringcast_writer_options options = {
      .size = sizeof options, .capacity = 65536, .readers = 4, .spill_bytes = spill_bytes};
  return ringcast_writer_create_ex(&options, out);
}

static ringcast_writer *make_writer(uint64_t spill_bytes) {
  ringcast_writer *writer = NULL;
  ck_assert_int_eq(create(spill_bytes, &writer), 0);
  return writer;
}

static ringcast_reader *attach(ringcast_writer *writer, uint32_t leases) {
  ringcast_reader *reader = NULL;
  struct ringcast_reader_options options = {.size = sizeof options, .leases = leases, .name = "rank 3"};
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), 0);
  return reader;
}

static struct ringcast_info info_of(ringcast_writer *writer) {
  struct ringcast_info info;
  ck_assert_int_eq(ringcast_writer_info(writer, &info), 0);
  return info;
}

static void ck_says(const char *word) {
  ck_assert_msg(strstr(ringcast_last_error(), word), "expected '%s' in: %s", word, ringcast_last_error());
}

static int send(ringcast_writer *writer, uint64_t number, size_t bytes) {
  struct ringcast_span span;
  int result = ringcast_writer_reserve(writer, bytes, 0, &span);
  if (result != 0) return result;
  ck_assert_uint_eq((uintptr_t)span.data % 64, 16);
  ck_assert_uint_eq(span.bytes, bytes);
  pattern_fill(span.data, bytes, number);
  return ringcast_writer_commit(writer, bytes, (uint16_t)number);
}

static struct ringcast_frame expect(ringcast_reader *reader, uint64_t number, size_t bytes) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_uint_eq((uintptr_t)frame.data % 64, 16);
  ck_assert_uint_eq(frame.kind, (uint16_t)number);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert(pattern_matches(frame.data, bytes, number));
  return frame;
}

static void read_one(ringcast_reader *reader, uint64_t number, size_t bytes) {
  struct ringcast_frame frame = expect(reader, number, bytes);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

/* ---- How much there is ------------------------------------------------------------------------------------------ */

START_TEST(the_default_is_a_bound_and_no_memory) {
  struct rc_os real = rc_os;
  const struct fake_file little[] = {{"/proc/meminfo", "MemAvailable: 1000000 kB\n"}, {0}};
  const struct fake_file much[] = {{"/proc/meminfo", "MemAvailable: 1000000000 kB\n"}, {0}};
  const struct fake_file none[] = {{"/proc/meminfo", "MemAvailable: 4000 kB\n"}, {0}};
  const struct {
    const struct fake_file *files;
    uint64_t bytes;
  } cases[] = {{little, 488 * MIB}, {much, 4096 * MIB}, {none, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    use_fake_files(cases[i].files);
    ringcast_writer *writer = make_writer(0);
    rc_os = real;
    struct ringcast_info info = info_of(writer);
    ck_assert_uint_eq(info.spill_bytes, cases[i].bytes);
    ck_assert_uint_eq(info.ring_frame, 32768 - 80);
    ck_assert_uint_eq(info.max_frame, cases[i].bytes ? cases[i].bytes - 16 : info.ring_frame);
    ck_assert_uint_eq(info.spill_used, 0);
    ck_assert_int_eq(info.spill_error, 0);
    ringcast_writer_close(writer);
  }
}
END_TEST

START_TEST(it_can_be_chosen_and_left_out_by_option_and_by_environment) {
  ringcast_writer *writer = make_writer(1);
  ck_assert_uint_eq(info_of(writer).spill_bytes, 2 * MIB);
  ck_assert_uint_eq(info_of(writer).max_frame, 2 * MIB - 16);
  ringcast_reader *reader = attach(writer, 1);
  struct ringcast_info info;
  ck_assert_int_eq(ringcast_reader_info(reader, &info), 0);
  ck_assert_uint_eq(info.max_frame, 2 * MIB - 16);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  setenv("RINGCAST_SPILL_BYTES", "0", 1);
  writer = make_writer(0);
  ck_assert_uint_eq(info_of(writer).spill_bytes, 0);
  ck_assert_int_eq(send(writer, 0, 32768), -EMSGSIZE);
  ck_says("it has no spill memory; make it with some");
  ringcast_writer_close(writer);
  writer = make_writer(4 * MIB); /* the option goes first */
  ck_assert_uint_eq(info_of(writer).spill_bytes, 4 * MIB);
  ringcast_writer_close(writer);
  setenv("RINGCAST_SPILL_BYTES", "3000000", 1);
  writer = make_writer(0);
  ck_assert_uint_eq(info_of(writer).spill_bytes, 4 * MIB);
  ringcast_writer_close(writer);
  writer = make_writer(RINGCAST_NO_SPILL);
  ck_assert_uint_eq(info_of(writer).spill_bytes, 0);
  ringcast_writer_close(writer);
  const char *bad[] = {"much", "-1", "1M", " 5", "99999999999999999999999", "1099511627777"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    setenv("RINGCAST_SPILL_BYTES", bad[i], 1);
    ck_assert_int_eq(create(0, &writer), -EINVAL);
    ck_says("RINGCAST_SPILL_BYTES");
  }
  ck_assert_int_eq(create(UINT64_MAX - 1, &writer), -EINVAL);
  ck_says("spill_bytes");
}
END_TEST

static int refused_memfd(const char *name, unsigned flags) {
  return strstr(name, "spill") ? -ENFILE : memfd_create(name, flags);
}

START_TEST(a_default_that_cannot_be_had_is_told_and_a_wish_is_an_error) {
  struct rc_os real = rc_os;
  ringcast_writer *writer;
  rc_os.memfd_create = refused_memfd;
  ck_assert_int_eq(create(8 * MIB, &writer), -ENFILE);
  ck_says("spill");
  writer = make_writer(0);
  rc_os = real;
  ck_assert_uint_eq(info_of(writer).spill_bytes, 0);
  ck_assert_int_eq(info_of(writer).spill_error, -ENFILE);
  ck_assert_int_eq(send(writer, 0, 32768), -EMSGSIZE);
  ck_says(strerror(ENFILE));
  ringcast_reader *reader = attach(writer, 1);
  ck_assert_int_eq(send(writer, 1, 32768 - 80), 0);
  read_one(reader, 1, 32768 - 80);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

static int seals_done;

/* Of the three files the last one. */
static int refused_third_seal(int fd, int seals) {
  return seals_done++ == 2 ? -EPERM : fcntl(fd, F_ADD_SEALS, seals) == 0 ? 0 : -errno;
}

START_TEST(a_default_that_cannot_be_sealed_leaves_a_ring_without) {
  struct rc_os real = rc_os;
  ringcast_writer *writer;
  rc_os.seal = refused_third_seal;
  seals_done = 0;
  ck_assert_int_eq(create(8 * MIB, &writer), -EPERM);
  seals_done = 0;
  writer = make_writer(0);
  rc_os = real;
  ck_assert_uint_eq(info_of(writer).spill_bytes, 0);
  ck_assert_int_eq(info_of(writer).spill_error, -EPERM);
  ck_assert_int_eq(send(writer, 0, 32768), -EMSGSIZE);
  ringcast_reader_close(attach(writer, 1));
  ringcast_writer_close(writer);
}
END_TEST

static void with_small_files(void *context) {
  (void)context;
  ringcast_writer *writer;
  child_must(setrlimit(RLIMIT_FSIZE, &(struct rlimit){MIB, MIB}) == 0);
  child_must(create(4 * MIB, &writer) == -EFBIG);
  child_must(strstr(ringcast_last_error(), "ulimit -f"));
  child_must(create(0, &writer) == 0);
  child_must(info_of(writer).spill_bytes == 0 && info_of(writer).spill_error == -EFBIG);
  ringcast_writer_close(writer);
}

START_TEST(a_limit_of_file_sizes_leaves_a_ring_without) { child_must_succeed(start_child(with_small_files, NULL)); }
END_TEST

#if !defined(__SANITIZE_ADDRESS__) /* whose shadow takes more addresses than there may be */
static void with_few_addresses(void *context) {
  ringcast_writer *writer;
  ringcast_reader *reader;
  unsigned long pages;
  char text[64];
  child_must(rc_os.read_file("/proc/self/statm", text, sizeof text) > 0);
  child_must(sscanf(text, "%lu", &pages) == 1);
  uint64_t most = pages * rc_small_page() + 64 * MIB;
  child_must(setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) == 0);
  child_must(create(256 * MIB, &writer) == -ENOMEM);
  child_must(strstr(ringcast_last_error(), "ulimit -v"));
  setenv("RINGCAST_SPILL_BYTES", "", 1);
  child_must(create(0, &writer) == 0);
  child_must(info_of(writer).spill_bytes == 0 && info_of(writer).spill_error == -ENOMEM);
  ringcast_writer_close(writer);
  child_must(ringcast_reader_attach(context, &reader) == -ENOMEM);
  child_must(strstr(ringcast_last_error(), "ulimit -v"));
  child_must(strstr(ringcast_last_error(), "spill"));
  ringcast_tap *tap;
  child_must(ringcast_tap_attach(context, &tap) == 0); /* it maps none */
  ringcast_tap_close(tap);
}

START_TEST(a_limit_of_addresses_leaves_a_ring_without_and_refuses_a_reader) {
  ringcast_writer *writer = make_writer(256 * MIB);
  child_must_succeed(start_child(with_few_addresses, (void *)ringcast_writer_handle(writer)));
  ringcast_writer_close(writer);
}
END_TEST
#endif

/* ---- Sending ---------------------------------------------------------------------------------------------------- */

START_TEST(frames_of_all_sizes_arrive_in_order) {
  ringcast_writer *writer = make_writer(16 * MIB);
  ringcast_reader *readers[3];
  uint64_t bytes = 0;
  for (int i = 0; i < 3; i++) readers[i] = attach(writer, 1);
  for (uint64_t n = 0; n < 300; n++) {
    size_t size = n % 5 == 0 ? (size_t)(mix(n) % (5 * MIB)) : n % 5 == 1 ? 32768 - 80 + n % 3 : (size_t)(mix(n) % 2000);
    ck_assert_int_eq(send(writer, n, size), 0);
    for (int i = 0; i < 3; i++) read_one(readers[i], n, size);
    bytes += size;
  }
  struct ringcast_stats stats;
  ck_assert_int_eq(ringcast_writer_stats(writer, &stats), 0);
  ck_assert_uint_eq(stats.frames, 300);
  ck_assert_uint_eq(stats.bytes, bytes);
  ck_assert_int_eq(ringcast_reader_stats(readers[1], &stats), 0);
  ck_assert_uint_eq(stats.bytes, bytes);
  ck_assert_uint_gt(info_of(writer).spill_used, 0);
  ck_assert_uint_le(info_of(writer).spill_used, 8 * MIB); /* the same again and again */
  for (int i = 0; i < 3; i++) ringcast_reader_close(readers[i]);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(the_largest_frame_of_all_fits_and_one_byte_more_does_not) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach(writer, 1);
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
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_full_budget_holds_the_writer_back_and_names_who_does) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach(writer, 2);
  struct ringcast_span span;
  struct ringcast_peer peer;
  ck_assert_int_eq(send(writer, 0, 3 * MIB), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 0, &span), -EAGAIN);
  ck_says("spill memory is full");
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 1000000, &span), -ETIMEDOUT);
  ck_says("spill memory (4194304 bytes) is full");
  ck_says("rank 3");
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_uint_eq(peer.stalls, 1);
  ck_assert_uint_eq(rc_load_relaxed(&writer->ring.ring.control->wanted), 64);
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
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(leases_over_spilled_frames_are_released_in_any_order) {
  enum { HELD = 6 };
  ringcast_writer *writer = make_writer(16 * MIB);
  ringcast_reader *reader = attach(writer, HELD);
  struct ringcast_frame frames[HELD];
  uint64_t random = 7;
  for (uint64_t round = 0; round < 30; round++) {
    size_t bytes[HELD];
    for (uint64_t i = 0; i < HELD; i++) {
      bytes[i] = (size_t)((random = mix(random)) % 3 ? random % (2 * MIB) : random % 1000);
      ck_assert_int_eq(send(writer, i, bytes[i]), 0);
      frames[i] = expect(reader, i, bytes[i]);
    }
    for (uint64_t left = HELD; left > 0; left--) {
      uint64_t which = (random = mix(random)) % left;
      for (uint64_t i = 0; i < HELD; i++) /* what is held stays, whatever is sent meanwhile */
        if (frames[i].data) ck_assert(pattern_matches(frames[i].data, frames[i].bytes, i));
      for (uint64_t i = 0; i < HELD; i++)
        if (frames[i].data && which-- == 0) {
          ck_assert_int_eq(ringcast_reader_release(reader, &frames[i]), 0);
          frames[i].data = NULL;
        }
    }
  }
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_reservation_grows_out_of_the_ring_and_on) {
  ringcast_writer *writer = make_writer(64 * MIB);
  ringcast_reader *reader = attach(writer, 2);
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
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_reservation_that_grows_over_itself_keeps_what_was_written) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach(writer, 1);
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
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_grow_that_fails_leaves_the_reservation_as_it_was) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach(writer, 1);
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
  ck_assert_int_eq(ringcast_writer_reserve(writer, 3 * MIB, 0, &span), 0); /* still open when it is closed */
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
static struct rc_os real_os;
static int refused_advice;

static int full_machine(void *address, size_t bytes, int advice) {
  return advice == refused_advice ? -ENOMEM : real_os.advise(address, bytes, advice);
}

START_TEST(a_machine_that_is_full_is_an_error_at_reserve_and_nothing_is_lost) {
  ringcast_writer *writer = make_writer(64 * MIB);
  ringcast_reader *reader = attach(writer, 1);
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
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(memory_that_a_reader_cannot_read_is_an_error_and_no_signal) {
  ringcast_writer *writer = make_writer(64 * MIB);
  ringcast_reader *reader = attach(writer, 1);
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
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

/* ---- Cut-through ------------------------------------------------------------------------------------------------ */

static ringcast_reader *attach_follower(ringcast_writer *writer) {
  ringcast_reader *reader = NULL;
  struct ringcast_reader_options options = {.size = sizeof options, .flags = RINGCAST_READER_CUT_THROUGH};
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), 0);
  return reader;
}

START_TEST(a_reader_that_asked_for_it_follows_the_writer_through_a_frame) {
  ringcast_writer *writer = make_writer(64 * MIB);
  ringcast_reader *reader = attach(writer, 1), *follower = attach_follower(writer);
  struct ringcast_span span, grown;
  struct ringcast_frame frame, other;
  ringcast_tap *tap;
  size_t there = 0;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(ringcast_writer_publish(writer, 0, 0), -EINVAL);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 0, &span), 0);
  pattern_fill(span.data, 5 * MIB, 3);
  ck_assert_int_eq(ringcast_writer_publish(writer, 5 * MIB + 1, 3), -EINVAL);
  ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_publish(writer, MIB, 3), 0);
  ck_assert_int_eq(ringcast_writer_publish(writer, MIB - 1, 3), -EINVAL);
  ck_assert_int_eq(ringcast_writer_publish(writer, MIB, 4), -EINVAL);
  ck_assert_int_eq(ringcast_writer_grow(writer, 6 * MIB, 0, &grown), -EBUSY);
  ck_says("published");
  ck_assert_int_eq(ringcast_writer_reserve(writer, 1, 0, &grown), -EBUSY);
  ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), 0);
  ck_assert(frame.bytes == 5 * MIB && frame.kind == 3);
  ck_assert_int_eq(ringcast_reader_await(follower, &frame, 1, 0, &there), 0);
  ck_assert_uint_eq(there, MIB);
  ck_assert(pattern_matches(frame.data, there, 3));
  ck_assert_int_eq(ringcast_reader_await(follower, &frame, MIB + 1, 0, &there), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_await(follower, &frame, MIB + 1, 1000000, &there), -ETIMEDOUT);
  ck_says("only 1048576 bytes");
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &other), -EAGAIN);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &other), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_commit(writer, MIB - 1, 3), -EINVAL);
  ck_says("published");
  ck_assert_int_eq(ringcast_writer_commit(writer, 4 * MIB, 2), -EINVAL);
  ck_assert_int_eq(ringcast_writer_commit(writer, 4 * MIB, 3), 0);
  ck_assert_int_eq(ringcast_reader_await(follower, &frame, SIZE_MAX, 0, &there), 0);
  ck_assert(there == 4 * MIB && frame.bytes == 4 * MIB && pattern_matches(frame.data, there, 3));
  struct ringcast_frame bogus = frame;
  bogus.position += 64;
  ck_assert_int_eq(ringcast_reader_await(follower, &bogus, 1, 0, &there), -EINVAL);
  ck_assert_int_eq(ringcast_reader_release(follower, &frame), 0);
  read_one(reader, 3, 4 * MIB);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &other), 0);
  ck_assert(other.bytes == 4 * MIB && pattern_matches(other.data, other.bytes, 3));
  /* A small frame is there as a whole, published or not. */
  ck_assert_int_eq(ringcast_writer_reserve(writer, 100, 0, &span), 0);
  pattern_fill(span.data, 100, 7);
  ck_assert_int_eq(ringcast_writer_publish(writer, 101, 7), -EINVAL);
  ck_assert_int_eq(ringcast_writer_publish(writer, 50, 7), 0);
  ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_commit(writer, 100, 7), 0);
  ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), 0);
  ck_assert_int_eq(ringcast_reader_await(follower, &frame, SIZE_MAX, 0, &there), 0);
  ck_assert_uint_eq(there, 100);
  ringcast_reader_close(follower);
  /* Nobody follows any more: nothing is published before the commit. */
  ck_assert_int_eq(ringcast_writer_reserve(writer, MIB, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_publish(writer, MIB / 2, 0), 0);
  ck_assert_int_eq(ringcast_writer_grow(writer, 2 * MIB, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ringcast_tap_close(tap);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_frame_that_is_taken_back_is_told_to_those_who_follow_alone) {
  ringcast_writer *writer = make_writer(64 * MIB);
  ringcast_reader *reader = attach(writer, 1), *follower = attach_follower(writer);
  struct ringcast_span span;
  struct ringcast_frame frame;
  ringcast_tap *tap;
  size_t there = 0;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  for (int closed = 0; closed < 2; closed++) {
    ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 0, &span), 0);
    ck_assert_int_eq(ringcast_writer_publish(writer, MIB, 3), 0);
    ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), 0);
    if (!closed) ck_assert_int_eq(ringcast_writer_abort(writer), 0);
    else ringcast_writer_close(writer);
    ck_assert_int_eq(ringcast_reader_await(follower, &frame, MIB, RINGCAST_FOREVER, &there), -ECONNABORTED);
    ck_says("taken");
    ck_assert_uint_eq(there, 0);
    ck_assert_int_eq(ringcast_reader_release(follower, &frame), 0);
    if (closed) break;
    ck_assert_int_eq(send(writer, 8, 40000), 0);
    read_one(reader, 8, 40000);
    read_one(follower, 8, 40000);
    ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
    ck_assert_uint_eq(frame.bytes, 40000);
  }
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -EPIPE);
  ck_assert_int_eq(ringcast_reader_next(follower, RINGCAST_FOREVER, &frame), -EPIPE);
  ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), -EPIPE);
  uint64_t bytes, gaps;
  ck_assert_int_eq(ringcast_tap_lost(tap, &bytes, &gaps), 0);
  ck_assert_uint_eq(gaps, 0);
  ringcast_tap_close(tap);
  ringcast_reader_close(reader);
  ringcast_reader_close(follower);
}
END_TEST

START_TEST(taking_a_frame_back_wakes_readers_and_going_over_it_the_writer) {
  ringcast_writer *writer = make_writer(64 * MIB);
  ringcast_reader *reader = attach(writer, 2), *follower = attach_follower(writer);
  struct rc_control *control = writer->ring.ring.control;
  struct ringcast_span span;
  struct ringcast_frame frame, held;
  for (int holds = 0; holds < 2; holds++) {
    if (holds) {
      ck_assert_int_eq(send(writer, 8, 100), 0);
      held = expect(reader, 8, 100);
    }
    ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 0, &span), 0);
    ck_assert_int_eq(ringcast_writer_publish(writer, MIB, 3), 0);
    rc_event_announce(&control->data, false); /* somebody sleeps, and may be following */
    ck_assert_int_eq(ringcast_writer_abort(writer), 0);
    ck_assert(!rc_event_is_asleep(&control->data));
    /* As the writer does when it goes to sleep until all are past it. */
    rc_store_relaxed(&control->wanted, writer->ring.tail);
    rc_event_announce(&control->room, false);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN); /* one is held, two may be */
    ck_assert_int_eq(rc_event_is_asleep(&control->room), holds);
    if (!holds) continue;
    ck_assert_int_eq(ringcast_reader_release(reader, &held), 0);
    ck_assert(!rc_event_is_asleep(&control->room));
  }
  ringcast_reader_close(follower);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_length_that_changes_its_mind_is_refused) {
  ringcast_writer *writer = make_writer(64 * MIB);
  ringcast_reader *follower = attach_follower(writer);
  struct ringcast_span span;
  struct ringcast_frame frame;
  size_t there;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_publish(writer, MIB, 3), 0);
  ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), 0);
  struct rc_spilled *note = writer->spill.note;
  const uint64_t good[3] = {note->offset, note->bytes, note->progress};
  const uint64_t bad[][3] = {{good[0], 6 * MIB, RC_SPILL_WHOLE}, {good[0] + 64, good[1], good[2]}, {good[0], 10, 11}, {3, 3, 3}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    note->offset = bad[i][0];
    note->bytes = bad[i][1];
    note->progress = bad[i][2];
    ck_assert_int_eq(ringcast_reader_await(follower, &frame, 1, 0, &there), -EPROTO);
    ck_says("damaged");
  }
  note->offset = good[0];
  note->bytes = good[1];
  note->progress = good[2];
  ck_assert_int_eq(ringcast_reader_await(follower, &frame, 1, 0, &there), 0);
  ringcast_reader_close(follower);
  ringcast_writer_close(writer);
}
END_TEST

/* ---- Giving back ------------------------------------------------------------------------------------------------ */

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

START_TEST(idle_memory_goes_back_to_the_machine_while_small_frames_are_sent) {
  real_os = rc_os;
  rc_os.seconds = fake_seconds;
  rc_os.advise = advise_counted;
  ringcast_writer *writer = make_writer(64 * MIB);
  ringcast_reader *reader = attach(writer, 1);
  writer->arena.keep = 4 * MIB;
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
    struct ringcast_info info;
    ck_assert_int_eq(ringcast_reader_info(reader, &info), 0);
    ck_assert_uint_eq(info.spill_used, 4 * MIB);
  }
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  rc_os = real_os;
}
END_TEST

START_TEST(a_smaller_frame_lets_the_rest_go) {
  struct rc_os real = rc_os;
  rc_os.seconds = fake_seconds;
  ringcast_writer *writer = make_writer(64 * MIB);
  writer->arena.keep = 0;
  ck_assert_int_eq(send(writer, 0, 20 * MIB), 0);
  now += 10;
  ck_assert_int_eq(send(writer, 1, 3 * MIB), 0);
  ck_assert_uint_eq(in_place(writer), 4 * MIB);
  ringcast_writer_close(writer);
  rc_os = real;
}
END_TEST

/* ---- Observers and enemies -------------------------------------------------------------------------------------- */

START_TEST(a_tap_copies_spilled_frames_and_counts_those_it_lost) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach(writer, 8);
  ringcast_tap *tap;
  struct ringcast_frame frame, held[3];
  uint64_t bytes, gaps;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  for (uint64_t i = 0; i < 10; i++) {
    ck_assert_int_eq(send(writer, i, 3 * MIB + i), 0);
    ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
    ck_assert(frame.kind == i && frame.bytes == 3 * MIB + i && pattern_matches(frame.data, frame.bytes, i));
    read_one(reader, i, 3 * MIB + i);
  }
  /* What a reader holds is there for the tap, too. */
  ck_assert_int_eq(send(writer, 0, 3 * MIB), 0);
  ck_assert_int_eq(send(writer, 1, 4 * MIB), 0);
  for (uint64_t i = 0; i < 2; i++) held[i] = expect(reader, i, (3 + i) * MIB);
  ck_assert_int_eq(ringcast_reader_release(reader, &held[0]), 0);
  ck_assert_int_eq(send(writer, 2, 1 * MIB), 0); /* over the first */
  ck_assert_int_eq(send(writer, 3, 10), 0);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  ck_assert(frame.kind == 1 && frame.bytes == 4 * MIB && pattern_matches(frame.data, frame.bytes, 1));
  ck_assert_int_eq(ringcast_tap_lost(tap, &bytes, &gaps), 0);
  ck_assert_uint_eq(bytes, 64);
  ck_assert_uint_eq(gaps, 1);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  ck_assert(frame.kind == 2 && frame.bytes == MIB && pattern_matches(frame.data, frame.bytes, 2));
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  ck_assert_uint_eq(frame.kind, 3);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EAGAIN);
  /* Nobody reads: each is gone with the next, and the last one stays. */
  ringcast_reader_close(reader);
  for (uint64_t i = 0; i < 20; i++) ck_assert_int_eq(send(writer, i, 5 * MIB), 0);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  ck_assert(frame.kind == 19 && pattern_matches(frame.data, frame.bytes, 19));
  ck_assert_int_eq(ringcast_tap_lost(tap, &bytes, &gaps), 0);
  ck_assert_uint_eq(gaps, 20);
  ringcast_writer_close(writer);
  ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), -EPIPE);
  ringcast_tap_close(tap);
}
END_TEST

START_TEST(a_note_that_cannot_be_right_is_told_and_harms_nobody) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach(writer, 1);
  ringcast_tap *tap;
  struct ringcast_frame frame;
  struct rc_frame_header *header = (struct rc_frame_header *)writer->segment.data.base;
  struct rc_spilled *note = (struct rc_spilled *)(header + 1);
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(send(writer, 0, MIB), 0);
  const uint64_t bad[][2] = {{17, 5}, {0, 5}, {16, 4 * MIB}, {4 * MIB + 16, 0}, {16, UINT64_MAX}, {UINT64_MAX - 47, 48}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    note->offset = bad[i][0];
    note->bytes = bad[i][1];
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EPROTO);
    ck_says("damaged");
    ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EPROTO);
  }
  note->offset = 2 * MIB + 16; /* a hole: zeros */
  note->bytes = MIB;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  for (size_t i = 0; i < frame.bytes; i++) ck_assert_uint_eq(((const uint8_t *)frame.data)[i], 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  header->flags = 4;
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EPROTO);
  ringcast_tap_close(tap);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_damaged_word_about_spill_memory_is_refused_at_attach) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader;
  ringcast_tap *tap;
  struct rc_identity *id = &rc_segment_control(&writer->segment)->id, good = *id;
  const uint64_t sizes[] = {2 * MIB, 6 * MIB, 4 * MIB + 1, RC_MAX_BYTES + 2 * MIB, UINT64_MAX, (uint64_t)1 << 63};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    id->spill_bytes = sizes[i];
    ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
    ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), -EPROTO);
  }
  *id = good;
  struct stat file; /* a file of that very size, sealed as it should be */
  id->spill_fd = memfd_create("ringcast.test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  id->spill_bytes = 4 * MIB + 4096;
  ck_assert_int_eq(ftruncate(id->spill_fd, (off_t)id->spill_bytes), 0);
  ck_assert_int_eq(fcntl(id->spill_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  ck_assert_int_eq(fstat(id->spill_fd, &file), 0);
  id->spill_inode = file.st_ino;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
  close(id->spill_fd);
  *id = good;
  id->spill_inode++;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -ENOENT);
  *id = good;
  const int32_t numbers[] = {-1, 999, 1 << 30, INT32_MIN, good.spill_fd - 1};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    id->spill_fd = numbers[i];
    ck_assert_int_lt(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), 0);
    ck_assert_int_lt(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  }
  *id = good;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ringcast_tap_close(tap);
  ringcast_reader_close(attach(writer, 1));
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_forked_child_leaves_an_open_reservation_alone) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach(writer, 1);
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, MIB, 0, &span), 0);
  pattern_fill(span.data, MIB, 5);
  pid_t pid = fork();
  if (pid == 0) {
    bool refused = ringcast_writer_commit(writer, MIB, 0) == -ECHILD && ringcast_writer_abort(writer) == -ECHILD;
    ringcast_reader_close(reader);
    ringcast_writer_close(writer);
    _exit(refused && ring_mappings() == 0 ? 0 : 1);
  }
  child_must_succeed(pid);
  ck_assert_int_eq(ringcast_writer_commit(writer, MIB, 5), 0);
  read_one(reader, 5, MIB);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("spill_channel");
  TCase *tests = add_case(suite, "spill_channel");
  unsetenv("RINGCAST_SPILL_BYTES");
  tcase_add_checked_fixture(tests, remember, nothing_is_left);
  tcase_add_test(tests, the_default_is_a_bound_and_no_memory);
  tcase_add_test(tests, it_can_be_chosen_and_left_out_by_option_and_by_environment);
  tcase_add_test(tests, a_default_that_cannot_be_had_is_told_and_a_wish_is_an_error);
  tcase_add_test(tests, a_default_that_cannot_be_sealed_leaves_a_ring_without);
  tcase_add_test(tests, a_limit_of_file_sizes_leaves_a_ring_without);
#if !defined(__SANITIZE_ADDRESS__)
  tcase_add_test(tests, a_limit_of_addresses_leaves_a_ring_without_and_refuses_a_reader);
#else
  tell_skipped("a_limit_of_addresses_leaves_a_ring_without_and_refuses_a_reader", "AddressSanitizer takes too many");
#endif
  tcase_add_test(tests, frames_of_all_sizes_arrive_in_order);
  tcase_add_test(tests, the_largest_frame_of_all_fits_and_one_byte_more_does_not);
  tcase_add_test(tests, a_full_budget_holds_the_writer_back_and_names_who_does);
  tcase_add_test(tests, leases_over_spilled_frames_are_released_in_any_order);
  tcase_add_test(tests, a_reservation_grows_out_of_the_ring_and_on);
  tcase_add_test(tests, a_reservation_that_grows_over_itself_keeps_what_was_written);
  tcase_add_test(tests, a_grow_that_fails_leaves_the_reservation_as_it_was);
  tcase_add_test(tests, a_machine_that_is_full_is_an_error_at_reserve_and_nothing_is_lost);
  tcase_add_test(tests, memory_that_a_reader_cannot_read_is_an_error_and_no_signal);
  tcase_add_test(tests, a_reader_that_asked_for_it_follows_the_writer_through_a_frame);
  tcase_add_test(tests, a_frame_that_is_taken_back_is_told_to_those_who_follow_alone);
  tcase_add_test(tests, taking_a_frame_back_wakes_readers_and_going_over_it_the_writer);
  tcase_add_test(tests, a_length_that_changes_its_mind_is_refused);
  tcase_add_test(tests, idle_memory_goes_back_to_the_machine_while_small_frames_are_sent);
  tcase_add_test(tests, a_smaller_frame_lets_the_rest_go);
  tcase_add_test(tests, a_tap_copies_spilled_frames_and_counts_those_it_lost);
  tcase_add_test(tests, a_note_that_cannot_be_right_is_told_and_harms_nobody);
  tcase_add_test(tests, a_damaged_word_about_spill_memory_is_refused_at_attach);
  tcase_add_test(tests, a_forked_child_leaves_an_open_reservation_alone);
  return run_suite(suite);
}
