/* SPDX-License-Identifier: Apache-2.0 */
/* Frames larger than the ring, by the public API: how much spill memory a ring has, sending,
 * waiting, growing, giving back; taps, damage and forked children. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/memory.h"
#include "shm/os.h"
#include "shm/topology.h"
#include "tests/support/children.h"
#include "tests/support/fake_files.h"
#include "tests/support/spill.h"

static struct rc_os real;

static void begin(void) {
  unsetenv("RINGCAST_SPILL_BYTES");
  real = rc_os;
  remember();
}

static void end(void) {
  rc_os = real;
  nothing_is_left();
}

/* ---- How much there is ----------------------------------------------------------------------- */

/* The option, the environment, and what a ring gets; 0 in the option: the default. */
static const struct {
  uint64_t option;
  const char *environment;
  int64_t result; /* bytes, or an error that names the one of the two that is wrong */
} wishes[] = {
    {1, "", 2 * MIB},
    {0, "0", 0},
    {4 * MIB, "0", 4 * MIB},
    {0, "3000000", 4 * MIB},
    {RINGCAST_NO_SPILL, "3000000", 0},
    {UINT64_MAX - 1, "", -EINVAL},
    {0, "much", -EINVAL},
    {0, "-1", -EINVAL},
    {0, "+1", -EINVAL},
    {0, "1M", -EINVAL},
    {0, " 5", -EINVAL},
    {0, "5 ", -EINVAL},
    {0, "0x10", -EINVAL},
    {0, "99999999999999999999999", -EINVAL},
    {0, "1099511627777", -EINVAL},
};

LOOP_TEST(it_is_as_the_option_says_and_then_the_environment, 0, sizeof wishes / sizeof *wishes) {
  SCOPED_WRITER writer = NULL;
  setenv("RINGCAST_SPILL_BYTES", wishes[_i].environment, 1);
  int result = create(wishes[_i].option, &writer);
  ck_assert_int_eq(result, wishes[_i].result < 0 ? wishes[_i].result : 0);
  if (result != 0) ck_says(wishes[_i].option != 0 ? "spill_bytes" : "RINGCAST_SPILL_BYTES");
  if (result != 0) return;
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_info info = info_of(writer), seen = {.size = sizeof seen};
  ck_assert_int_eq(ringcast_reader_info(reader, &seen), 0);
  ck_assert_int_eq((int64_t)info.spill_bytes, wishes[_i].result);
  ck_assert_uint_eq(info.max_frame, info.spill_bytes ? info.spill_bytes - 16 : 32768 - 144);
  ck_assert_uint_eq(seen.max_frame, info.max_frame);
  if (info.spill_bytes == 0) ck_assert_int_eq(send(writer, 0, 32768), -EMSGSIZE);
}

TEST(the_default_is_a_bound_and_no_memory) {
  const struct {
    const char *meminfo;
    uint64_t bytes;
  } cases[] = {{"MemAvailable: 1000000 kB\n", 488 * MIB},
               {"MemAvailable: 1000000000 kB\n", 4096 * MIB},
               {"MemAvailable: 4000 kB\n", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const struct fake_file files[] = {{"/proc/meminfo", cases[i].meminfo}, {0}};
    use_fake_files(files);
    ringcast_writer *writer = make_writer(0);
    rc_os = real;
    struct ringcast_info info = info_of(writer);
    ck_assert_uint_eq(info.spill_bytes, cases[i].bytes);
    ck_assert_uint_eq(info.spill_used, 0);
    ck_assert_int_eq(info.spill_error, 0);
    ringcast_writer_close(writer);
  }
}

static int refused_memfd(const char *name, unsigned flags) {
  return strstr(name, "spill") ? -ENFILE : memfd_create(name, flags);
}
static void refuse_files(void) { rc_os.memfd_create = refused_memfd; }

static int refused_seal(int fd, int seals) {
  char path[40], target[64] = "";
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "spill")) return -EPERM;
  return real.seal(fd, seals);
}
static void refuse_seals(void) { rc_os.seal = refused_seal; }

static void limit_files(void) {
  child_must(setrlimit(RLIMIT_FSIZE, &(struct rlimit){MIB, MIB}) == 0);
}

static void limit_addresses(void) {
  unsigned long pages;
  char text[64];
  child_must(rc_os.read_file("/proc/self/statm", text, sizeof text) > 0);
  child_must(sscanf(text, "%lu", &pages) == 1);
  uint64_t most = pages * rc_small_page() + 64 * MIB;
  child_must(setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) == 0);
}

static const struct lack {
  void (*refuse)(void);
  int result;
  const char *word;
} lacks[] = {
    {refuse_files, -ENFILE, "spill"},
    {refuse_seals, -EPERM, "spill"},
    {limit_files, -EFBIG, "ulimit -f"},
    {limit_addresses, -ENOMEM, "ulimit -v"},
};

struct lacking {
  const struct lack *lack;
  const char *handle; /* of a ring that was made before */
};

/* What was asked for is an error; by default the ring is made without, and says why. */
static void do_without(void *context) {
  const struct lacking *lacking = context;
  const struct lack *lack = lacking->lack;
  SCOPED_WRITER writer = NULL;
  ringcast_reader *reader;
  ringcast_tap *tap;
  lack->refuse();
  child_must(create(256 * MIB, &writer) == lack->result);
  child_must(strstr(ringcast_last_error(), lack->word));
  child_must(create(0, &writer) == 0);
  child_must(info_of(writer).spill_bytes == 0 && info_of(writer).spill_error == lack->result);
  child_must(send(writer, 0, 32768) == -EMSGSIZE);
  child_must(strstr(ringcast_last_error(), strerror(-lack->result)));
  child_must(send(writer, 1, 32768 - 144) == 0);
  child_must(ringcast_reader_attach(ringcast_writer_handle(writer), &reader) == 0);
  ringcast_reader_close(reader);
  int result = ringcast_reader_attach(lacking->handle, &reader);
  child_must(result == (lack->refuse == limit_addresses ? -ENOMEM : 0));
  if (result == 0) ringcast_reader_close(reader);
  child_must(ringcast_tap_attach(lacking->handle, &tap) == 0); /* it maps none */
  ringcast_tap_close(tap);
}

LOOP_TEST(a_wish_that_cannot_be_had_is_an_error_and_a_default_is_told, 0,
          sizeof lacks / sizeof *lacks) {
  struct lacking lacking = {.lack = &lacks[_i]};
  if (lacks[_i].refuse == limit_addresses) {
    if (cannot_under("qemu", __func__, "qemu keeps no limit of the address space")) return;
#if defined(__SANITIZE_ADDRESS__)
    tell_skipped(__func__, "AddressSanitizer's shadow takes more addresses than there may be");
    return;
#endif
  }
  SCOPED_WRITER writer = make_writer(256 * MIB);
  lacking.handle = ringcast_writer_handle(writer);
  child_must_succeed(start_child(do_without, &lacking));
}

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
    ck_says("4194304");
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
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 1000000, &span), -ETIMEDOUT);
  ck_says("spill memory");
  ck_says("rank 3");
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_uint_eq(peer.stalls, 1);
  ck_assert_int_eq(send(writer, 1, 100), 0); /* small frames go on */
  struct ringcast_frame first = expect(reader, 0, 3 * MIB);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 0, &span), -EAGAIN); /* held */
  ck_assert_int_eq(ringcast_reader_release(reader, &first), 0);
  read_one(reader, 1, 100);
  ck_assert_int_eq(send(writer, 2, 2 * MIB), 0);
  read_one(reader, 2, 2 * MIB);
  while (send(writer, 3, 30) == 0) {} /* the ring itself can be what is full */
  ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 1000000, &span), -ETIMEDOUT);
  ck_says("the ring is full");
  ringcast_reader_close(reader);
  ck_assert_int_eq(send(writer, 4, 4 * MIB - 16), 0);
}

/* In all rounds the same, but in the third a large frame is in the way. */
TEST(a_reservation_grows_out_of_the_ring_and_on) {
  SCOPED_WRITER writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 2);
  struct ringcast_span span, grown;
  for (uint64_t round = 0; round < 4; round++) {
    if (round == 2) ck_assert_int_eq(send(writer, 9, 5 * MIB), 0);
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

/* Of a reservation in the ring, and of one in spill memory. */
TEST(a_grow_that_fails_leaves_the_reservation_as_it_was) {
  static const size_t sizes[] = {10, 50000};
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_span span, grown = {0};
  ck_assert_int_eq(ringcast_writer_grow(writer, 3 * MIB, 0, &grown), -EINVAL);
  ck_assert_int_eq(send(writer, 9, 2 * MIB), 0);
  for (uint64_t i = 0; i < 2; i++) {
    ck_assert_int_eq(ringcast_writer_reserve(writer, sizes[i], 0, &span), 0);
    ck_assert_int_eq(ringcast_writer_reserve(writer, 3, 0, &grown), -EBUSY);
    pattern_fill(span.data, sizes[i], i);
    ck_assert_int_eq(ringcast_writer_grow(writer, 3 * MIB, 0, &grown), -EAGAIN);
    ck_assert_int_eq(ringcast_writer_grow(writer, 5 * MIB, 0, &grown), -EMSGSIZE);
    ck_assert_ptr_null(grown.data);
    ck_assert_int_eq(ringcast_writer_commit(writer, sizes[i] + 1, 0), -EINVAL);
    ck_assert_int_eq(ringcast_writer_commit(writer, sizes[i], (uint16_t)i), 0);
  }
  read_one(reader, 9, 2 * MIB);
  for (uint64_t i = 0; i < 2; i++) read_one(reader, i, sizes[i]);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 3 * MIB, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_grow(writer, 10, 0, &grown), 0); /* stays where it is */
  ck_assert_ptr_eq(span.data, grown.data);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ck_assert_int_eq(ringcast_writer_abort(writer), -EINVAL);
  ck_assert_int_eq(send(writer, 3, 4 * MIB - 16), 0);
  read_one(reader, 3, 4 * MIB - 16);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 3 * MIB, 0, &span), 0); /* open at its close */
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

/* ---- Copies past the cache ------------------------------------------------------------------- */

TEST(a_copy_past_the_cache_writes_these_bytes_and_no_others) {
  enum { MOST = 64 * 5 };
  static uint8_t source[MOST + 64], target[MOST + 128];
  for (size_t i = 0; i < sizeof source; i++) source[i] = (uint8_t)(i * 7 + 1);
  for (size_t shift = 0; shift < 64; shift += 3)
    for (size_t bytes = 0; bytes <= MOST; bytes++) {
      memset(target, 0, sizeof target);
      rc_copy_past_cache(target + shift, source + shift / 2, bytes);
      ck_assert_mem_eq(target + shift, source + shift / 2, bytes);
      ck_assert_uint_eq(others_than(0, target, shift), 0);
      ck_assert_uint_eq(others_than(0, target + shift + bytes, sizeof target - shift - bytes), 0);
    }
}

TEST(a_large_payload_arrives_the_same_past_the_cache) {
  static uint8_t source[3 * 1024 * 1024];
  const size_t sizes[] = {0, 1, 4095, 4096, 4097, sizeof source - 1};
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  ck_assert_uint_eq(writer->past_cache, rc_past_cache_bytes());
  writer->past_cache = 4096;
  for (size_t i = 0; i < sizeof source; i++) source[i] = (uint8_t)(i * 131 + i / 251);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    struct ringcast_frame frame;
    ck_assert_int_eq(ringcast_writer_send(writer, source + 1, sizes[i], 0, 0), 0);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
    ck_assert_uint_eq(frame.bytes, sizes[i]);
    ck_assert_mem_eq(frame.data, source + 1, sizes[i]);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  }
}

/* ---- Memory of the machine ------------------------------------------------------------------- */

static int refused_advice, checks;
static uint32_t now = 1000;

static int advise(void *address, size_t bytes, int advice) {
  checks += advice == MADV_POPULATE_READ;
  return advice == refused_advice ? -ENOMEM : real.advise(address, bytes, advice);
}

static uint32_t fake_seconds(void) { return now; }

/* The ring itself goes on, and what was open stays as it was. */
TEST(a_machine_that_is_full_is_an_error_and_no_signal_and_nothing_is_lost) {
  SCOPED_WRITER writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_span span;
  struct ringcast_frame frame;
  rc_os.advise = advise;
  refused_advice = MADV_POPULATE_WRITE;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 1000000, &span), -ENOMEM);
  ck_says("spill memory");
  ck_assert_int_eq(ringcast_writer_commit(writer, 0, 0), -EINVAL);
  ck_assert_int_eq(send(writer, 0, 1000), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 100, 0, &span), 0);
  pattern_fill(span.data, 100, 1);
  ck_assert_int_eq(ringcast_writer_grow(writer, 5 * MIB, 1000000, &span), -ENOMEM);
  ck_assert_int_eq(ringcast_writer_commit(writer, 100, 1), 0);
  refused_advice = MADV_POPULATE_READ;
  ck_assert_int_eq(send(writer, 2, 5 * MIB), 0);
  read_one(reader, 0, 1000);
  read_one(reader, 1, 100);
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -ENOMEM);
    ck_says("spill memory");
  }
  refused_advice = -1;
  read_one(reader, 2, 5 * MIB); /* it is still the next one */
}

static uint64_t in_place(ringcast_writer *writer) {
  struct stat file;
  ck_assert_int_eq(fstat(writer->segment.spill.fd, &file), 0);
  ck_assert_uint_eq((uint64_t)file.st_blocks * 512, info_of(writer).spill_used);
  return info_of(writer).spill_used;
}

TEST(idle_memory_goes_back_to_the_machine_while_small_frames_are_sent) {
  if (cannot_under("qemu", __func__, "qemu passes no advice about memory on to the kernel")) return;
  SCOPED_WRITER writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_info info = {.size = sizeof info};
  rc_os.seconds = fake_seconds;
  rc_os.advise = advise;
  refused_advice = -1;
  writer->backing.keep = 4 * MIB;
  for (uint64_t round = 0; round < 3; round++) {
    ck_assert_int_eq(send(writer, 0, 20 * MIB), 0);
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
    ck_assert_int_eq(ringcast_reader_info(reader, &info), 0);
    ck_assert_uint_eq(info.spill_used, 4 * MIB);
  }
}

/* ---- Taps, damage, forks --------------------------------------------------------------------- */

static void tap_one(ringcast_tap *tap, uint64_t number, size_t bytes) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  ck_assert(frame.kind == number && frame.bytes == bytes &&
            pattern_matches(frame.data, bytes, number));
}

static void ck_gaps(ringcast_tap *tap, uint64_t expected) {
  uint64_t bytes, gaps;
  ck_assert_int_eq(ringcast_tap_lost(tap, &bytes, &gaps), 0);
  ck_assert_uint_eq(gaps, expected);
}

TEST(a_tap_copies_spilled_frames_and_counts_those_it_lost) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach(writer, 8);
  ringcast_tap *tap;
  struct ringcast_frame frame, held;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  for (uint64_t i = 0; i < 10; i++) {
    ck_assert_int_eq(send(writer, i, 3 * MIB + i), 0);
    tap_one(tap, i, 3 * MIB + i);
    read_one(reader, i, 3 * MIB + i);
  }
  /* What a reader holds is there for the tap, too. */
  ck_assert_int_eq(send(writer, 0, 3 * MIB), 0);
  ck_assert_int_eq(send(writer, 1, 4 * MIB), 0);
  read_one(reader, 0, 3 * MIB);
  held = expect(reader, 1, 4 * MIB);
  ck_assert_int_eq(send(writer, 2, 1 * MIB), 0); /* over the first */
  ck_assert_int_eq(send(writer, 3, 10), 0);
  tap_one(tap, 1, 4 * MIB);
  ck_gaps(tap, 1);
  tap_one(tap, 2, MIB);
  tap_one(tap, 3, 10);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EAGAIN);
  /* Without a reader each is gone with the next, and the last one stays. */
  ck_assert_int_eq(ringcast_reader_release(reader, &held), 0);
  ringcast_reader_close(reader);
  for (uint64_t i = 0; i < 20; i++) ck_assert_int_eq(send(writer, i, 5 * MIB), 0);
  tap_one(tap, 19, 5 * MIB);
  ck_gaps(tap, 20);
  ringcast_writer_close(writer);
  ck_assert_int_eq(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), -EPIPE);
  ringcast_tap_close(tap);
}

/* (Each wrong note is in test_spill.) A hole reads as zeros. */
TEST(a_note_that_cannot_be_right_is_told_and_harms_nobody) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  ringcast_tap *tap;
  struct ringcast_frame frame;
  struct rc_frame_header *header = (struct rc_frame_header *)writer->segment.data.base;
  struct rc_spilled *note = (struct rc_spilled *)(header + 1);
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(send(writer, 0, MIB), 0);
  note->bytes = 4 * MIB;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EPROTO);
  ck_says("damaged");
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EPROTO);
  note->offset = 2 * MIB + 16;
  note->bytes = MIB;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_uint_eq(others_than(0, frame.data, frame.bytes), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ringcast_tap_close(tap);
}

/* Of this very size, and sealed as it should be. */
static int another_file(uint64_t bytes, uint64_t *inode) {
  struct stat file;
  int fd = memfd_create("ringcast.test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
  ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  ck_assert_int_eq(fstat(fd, &file), 0);
  *inode = file.st_ino;
  return fd;
}

TEST(a_damaged_word_about_spill_memory_is_refused_at_attach) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  ringcast_reader *reader;
  ringcast_tap *tap;
  struct rc_identity *id = &rc_segment_control(&writer->segment)->id, good = *id, other = *id;
  other.spill_bytes = 4 * MIB + 4096;
  other.spill_fd = another_file(other.spill_bytes, &other.spill_inode);
  const struct {
    int32_t fd;
    uint64_t bytes, inode;
    int result; /* 0: any error */
  } cases[] = {
      {good.spill_fd, 2 * MIB, good.spill_inode, -EPROTO},
      {good.spill_fd, 6 * MIB, good.spill_inode, -EPROTO},
      {good.spill_fd, 4 * MIB + 1, good.spill_inode, -EPROTO},
      {good.spill_fd, RC_MAX_BYTES + 2 * MIB, good.spill_inode, -EPROTO},
      {good.spill_fd, UINT64_MAX, good.spill_inode, -EPROTO},
      {good.spill_fd, (uint64_t)1 << 63, good.spill_inode, -EPROTO},
      {good.spill_fd, 4 * MIB, good.spill_inode + 1, -ENOENT},
      {other.spill_fd, other.spill_bytes, other.spill_inode, -EPROTO},
      {-1, 4 * MIB, good.spill_inode, 0},
      {999, 4 * MIB, good.spill_inode, 0},
      {1 << 30, 4 * MIB, good.spill_inode, 0},
      {INT32_MIN, 4 * MIB, good.spill_inode, 0},
      {good.spill_fd - 1, 4 * MIB, good.spill_inode, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    id->spill_fd = cases[i].fd;
    id->spill_bytes = cases[i].bytes;
    id->spill_inode = cases[i].inode;
    int result = ringcast_reader_attach(ringcast_writer_handle(writer), &reader);
    int of_tap = ringcast_tap_attach(ringcast_writer_handle(writer), &tap);
    ck_assert_msg(result < 0 && of_tap < 0, "case %zu: %d, %d", i, result, of_tap);
    if (cases[i].result != 0) ck_assert_int_eq(result, cases[i].result);
  }
  close(other.spill_fd);
  *id = good;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ringcast_tap_close(tap);
  ringcast_reader_close(attach(writer, 1));
}

static void must_not_end_it(void *writer) {
  child_must(ringcast_writer_commit(writer, MIB, 0) == -ECHILD);
  child_must(ringcast_writer_abort(writer) == -ECHILD);
  ringcast_writer_close(writer);
}

TEST(a_forked_child_leaves_an_open_reservation_alone) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, MIB, 0, &span), 0);
  pattern_fill(span.data, MIB, 5);
  child_must_succeed(start_child(must_not_end_it, writer));
  ck_assert_int_eq(ringcast_writer_commit(writer, MIB, 5), 0);
  read_one(reader, 5, MIB);
}

RUN_TESTS("spill_channel", begin, end)
