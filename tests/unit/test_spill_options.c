/* SPDX-License-Identifier: Apache-2.0 */
/* How much spill memory a ring has: asked for, by default, and where it can't be had. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "shm/os.h"
#include "tests/support/children.h"
#include "tests/support/fake_files.h"
#include "tests/support/spill.h"

TEST(the_default_is_a_bound_and_no_memory) {
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
    ck_assert_uint_eq(info.ring_frame, 32768 - 144);
    ck_assert_uint_eq(info.max_frame, cases[i].bytes ? cases[i].bytes - 16 : info.ring_frame);
    ck_assert_uint_eq(info.spill_used, 0);
    ck_assert_int_eq(info.spill_error, 0);
    ringcast_writer_close(writer);
  }
}

TEST(it_can_be_chosen_and_left_out_by_option_and_by_environment) {
  ringcast_writer *writer = make_writer(1);
  ck_assert_uint_eq(info_of(writer).spill_bytes, 2 * MIB);
  ck_assert_uint_eq(info_of(writer).max_frame, 2 * MIB - 16);
  ringcast_reader *reader = attach(writer, 1);
  struct ringcast_info info = {.size = sizeof info};
  ck_assert_int_eq(ringcast_reader_info(reader, &info), 0);
  ck_assert_uint_eq(info.max_frame, 2 * MIB - 16);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  setenv("RINGCAST_SPILL_BYTES", "0", 1);
  writer = make_writer(0);
  ck_assert_uint_eq(info_of(writer).spill_bytes, 0);
  ck_assert_int_eq(send(writer, 0, 32768), -EMSGSIZE);
  ck_says("it has no spill memory; make it with some");
  ck_says("more than twice the largest frame");
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
  const char *bad[] = {
      "much", "-1", "+1", "1M", " 5", "5 ", "0x10", "99999999999999999999999", "1099511627777"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    setenv("RINGCAST_SPILL_BYTES", bad[i], 1);
    ck_assert_int_eq(create(0, &writer), -EINVAL);
    ck_says("RINGCAST_SPILL_BYTES is '");
    ck_says("it must be a whole number of bytes, 0 (");
  }
  ck_assert_int_eq(create(UINT64_MAX - 1, &writer), -EINVAL);
  ck_says("spill_bytes");
}

static int refused_memfd(const char *name, unsigned flags) {
  return strstr(name, "spill") ? -ENFILE : memfd_create(name, flags);
}

TEST(a_default_that_cannot_be_had_is_told_and_a_wish_is_an_error) {
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
  ck_assert_int_eq(send(writer, 1, 32768 - 144), 0);
  read_one(reader, 1, 32768 - 144);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

static void with_small_files(void *context) {
  (void)context;
  SCOPED_WRITER writer = NULL;
  child_must(setrlimit(RLIMIT_FSIZE, &(struct rlimit){MIB, MIB}) == 0);
  child_must(create(4 * MIB, &writer) == -EFBIG);
  child_must(strstr(ringcast_last_error(), "ulimit -f"));
  child_must(create(0, &writer) == 0);
  child_must(info_of(writer).spill_bytes == 0 && info_of(writer).spill_error == -EFBIG);
}

TEST(a_limit_of_file_sizes_leaves_a_ring_without) {
  child_must_succeed(start_child(with_small_files, NULL));
}

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

TEST(a_limit_of_addresses_leaves_a_ring_without_and_refuses_a_reader) {
  if (cannot_under("qemu", __func__, "qemu keeps no limit of the address space")) return;
  SCOPED_WRITER writer = make_writer(256 * MIB);
  child_must_succeed(start_child(with_few_addresses, (void *)ringcast_writer_handle(writer)));
}
#endif

static int seals_done;

/* Of the three files the last one. */
static int refused_third_seal(int fd, int seals) {
  return seals_done++ == 2 ? -EPERM : fcntl(fd, F_ADD_SEALS, seals) == 0 ? 0 : -errno;
}

TEST(a_default_that_cannot_be_sealed_leaves_a_ring_without) {
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

int main(void) {
  unsetenv("RINGCAST_SPILL_BYTES");
#if defined(__SANITIZE_ADDRESS__)
  tell_skipped("a_limit_of_addresses_leaves_a_ring_without_and_refuses_a_reader",
               "AddressSanitizer takes too many");
#endif
  return run_tests("spill_options", remember, nothing_is_left);
}
