/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that are kept, by the public API within one process and its children: what they are, and which can't be. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "tests/support/children.h"
#include "tests/support/keep.h"
#include "tests/support/switches.h"

/* ---- What is kept ----------------------------------------------------------------------------------------------- */

START_TEST(what_is_kept_is_the_readers_own) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach(writer, 1), *first = attach_keeper(writer), *second = attach_keeper(writer);
  ck_assert_int_eq(send(writer, 1, MIB + 5), 0);
  struct kept one = keep(first, 1, MIB + 5), other = keep(second, 1, MIB + 5);
  write_to(&one);
  ck_assert(is_whole(&one) && is_whole(&other));
  read_one(reader, 1, MIB + 5);
  ck_assert_uint_eq(first->ring.kept, 1);
  drop(&one);
  settle(first);
  ck_assert_uint_eq(first->ring.kept, 0);
  ck_assert(is_whole(&other));
  drop(&other);
  ringcast_kept_drop(NULL);
  struct ringcast_stats stats;
  ck_assert_int_eq(ringcast_reader_stats(first, &stats), 0);
  ck_assert_uint_eq(stats.frames, 1);
  ck_assert_uint_eq(stats.bytes, MIB + 5);
  ringcast_reader_close(reader);
  ringcast_reader_close(first);
  ringcast_reader_close(second);
  ringcast_writer_close(writer);
}
END_TEST

static struct rc_os real;

static int silent_pagemap(void) { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

/* A few bytes are written to some of its pages, or to all, or to none. The second time nothing tells which they are. */
START_TEST(where_something_was_kept_the_next_frame_is_seen) {
  enum { ROUNDS = 40 };
  if (_i == 1) rc_os.pagemap = silent_pagemap;
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  const void *places[ROUNDS];
  int again = 0;
  for (uint64_t i = 0; i < ROUNDS; i++) {
    size_t bytes = MIB + (size_t)(mix(i) % MIB);
    ck_assert_int_eq(send(writer, i, bytes), 0);
    struct kept kept = keep(reader, i, bytes);
    places[i] = kept.place;
    for (uint64_t j = 0; j < i; j++) again += places[j] == places[i];
    for (size_t at = 0; i % 3 && at < bytes; at += 4096 * (i % 3 == 1 ? 1 : 1 + mix(at + i) % 9)) kept.data[at] ^= 1;
    if (i % 3) ck_assert(!is_whole(&kept));
    ringcast_kept_drop(kept.handle);
    settle(reader);
  }
  ck_assert_int_gt(again, 0);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

static void *drop_there(void *kept) {
  drop(kept);
  return NULL;
}

START_TEST(it_outlives_the_reader_and_the_writer_and_is_dropped_by_any_thread) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  struct kept kept[3];
  pthread_t thread;
  for (uint64_t i = 0; i < 3; i++) {
    ck_assert_int_eq(send(writer, i, MIB), 0);
    kept[i] = keep(reader, i, MIB);
  }
  write_to(&kept[1]);
  if (_i == 0) ringcast_reader_close(reader);
  for (uint64_t i = 0; i < 20 && _i == 0; i++) ck_assert_int_eq(send(writer, 50 + i, 2 * MIB), 0);
  ringcast_writer_close(writer);
  for (int i = 0; i < 3; i++) ck_assert(is_whole(&kept[i]));
  drop(&kept[0]);
  ck_assert_int_eq(pthread_create(&thread, NULL, drop_there, &kept[2]), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  struct ringcast_frame frame;
  if (_i == 1) ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -EPIPE);
  if (_i == 1) ringcast_reader_close(reader);
  write_to(&kept[1]);
  drop(&kept[1]);
}
END_TEST

/* ---- What can't be kept ----------------------------------------------------------------------------------------- */

static void must_not_be_kept(ringcast_reader *reader, const struct ringcast_frame *frame, int code, const char *word) {
  ringcast_kept *kept = NULL;
  void *data = NULL;
  ck_assert_int_eq(ringcast_reader_keep(reader, frame, &kept, &data), code);
  ck_says(word);
  ck_assert(!kept && !data);
}

/* The next frame: it is refused, and held as before. */
static void must_be_copied(ringcast_reader *reader, uint64_t number, size_t bytes) {
  struct ringcast_frame frame = expect(reader, number, bytes);
  must_not_be_kept(reader, &frame, -ENOTSUP, "copy it");
  ck_assert(pattern_matches(frame.data, bytes, number));
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

START_TEST(what_lies_in_the_ring_or_takes_half_of_the_memory_is_to_be_copied) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  size_t most = (size_t)info_of(writer).ring_frame;
  ck_assert_int_eq(send(writer, 1, most), 0);
  must_be_copied(reader, 1, most);
  ck_assert_int_eq(send(writer, 2, most + 1), 0);
  struct kept kept = keep(reader, 2, most + 1);
  drop(&kept);
  ck_assert_int_eq(send(writer, 3, 2 * MIB + 1), 0);
  must_be_copied(reader, 3, 2 * MIB + 1);
  ck_assert_int_eq(send(writer, 4, 2 * MIB), 0);
  kept = keep(reader, 4, 2 * MIB);
  drop(&kept);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(so_many_are_kept_at_once_and_no_more) {
  ringcast_writer *writer = make_writer(16 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  struct kept kept[RC_MAX_KEPT], last;
  uint64_t n = 0;
  for (int i = 0; i < (int)RC_MAX_KEPT; i++, n++) {
    ck_assert_int_eq(send(writer, n, 40000), 0);
    kept[i] = keep(reader, n, 40000);
    ck_assert_int_eq(send(writer, 7, 10), 0);
    read_one(reader, 7, 10); /* what comes between them is in nobody's way */
  }
  ck_assert_int_eq(ringcast_reader_keeps(reader), 1);
  ck_assert_int_eq(send(writer, n, 40000), 0);
  must_be_copied(reader, n++, 40000);
  drop(&kept[20]);
  ck_assert_int_eq(send(writer, n, 40000), 0);
  last = keep(reader, n, 40000);
  ck_assert_int_eq(send(writer, n, 40000), 0);
  must_be_copied(reader, n, 40000);
  for (int i = 0; i < (int)RC_MAX_KEPT; i++)
    if (i != 20) drop(&kept[i]);
  drop(&last);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

/* Sends a frame of 4 KiB whose note says whatever a hostile writer likes. */
static struct rc_spilled *lie(ringcast_writer *writer, uint64_t offset, uint64_t bytes) {
  struct rc_spilled *note;
  void *out;
  ck_assert_int_eq(rc_ring_reserve(&writer->ring, sizeof *note, &out), 0);
  ck_assert_int_eq(rc_ring_commit_spilled(&writer->ring, offset, bytes, RC_SPILL_WHOLE, 9, &note), 0);
  return note;
}

START_TEST(what_overlaps_with_what_is_kept_is_to_be_copied) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  struct ringcast_frame frame;
  ck_assert_int_eq(send(writer, 1, MIB), 0);
  struct kept kept = keep(reader, 1, MIB);
  uint64_t offset = (uint64_t)((const uint8_t *)kept.place - reader->segment.spill.base);
  const uint64_t bad[][2] = {{offset, MIB}, {offset + 4096, 64}, {offset + MIB - 64, 4096}, {16, 3 * MIB}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    lie(writer, bad[i][0], bad[i][1]);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
    must_not_be_kept(reader, &frame, -ENOTSUP, "copy it");
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  }
  drop(&kept);
  settle(reader);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_note_that_changes_after_it_was_read_harms_nobody) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  struct ringcast_frame frame;
  struct rc_spilled *note = lie(writer, 16, MIB);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  const struct {
    uint64_t offset, bytes;
    int code;
    const char *word;
  } lies[] = {{16, MIB + 1, -EPROTO, "damaged"},
              {4096 + 16, MIB, -EPROTO, "damaged"},
              {8 * MIB - 48, 8, -EPROTO, "damaged"},
              {3, MIB, -EPROTO, "damaged"},
              {16, 8, -ENOTSUP, "copy it"}}; /* else it would be read beyond what is kept */
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    rc_store_relaxed(&note->offset, lies[i].offset);
    rc_store_relaxed(&note->bytes, lies[i].bytes);
    must_not_be_kept(reader, &frame, lies[i].code, lies[i].word);
  }
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(a_frame_in_part_is_kept_once_it_is_there_and_told) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach_as(writer, RINGCAST_READER_KEEP | RINGCAST_READER_CUT_THROUGH);
  struct ringcast_span span;
  struct ringcast_frame frame;
  ringcast_kept *kept;
  void *data;
  size_t there;
  for (int round = 0; round < 2; round++) {
    ck_assert_int_eq(ringcast_writer_reserve(writer, 2 * MIB, 0, &span), 0);
    pattern_fill(span.data, 2 * MIB, 4);
    ck_assert_int_eq(ringcast_writer_publish(writer, MIB, 3), 0);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
    must_not_be_kept(reader, &frame, -ENOTSUP, "copy it");
    if (round == 1) break;
    ck_assert_int_eq(ringcast_writer_commit(writer, MIB + 7, 3), 0);
    must_not_be_kept(reader, &frame, -ENOTSUP, "copy it");
    ck_assert_int_eq(ringcast_reader_await(reader, &frame, SIZE_MAX, 0, &there), 0);
    ck_assert_int_eq(ringcast_reader_keep(reader, &frame, &kept, &data), 0);
    ck_assert(pattern_matches(data, MIB + 7, 4));
    ringcast_kept_drop(kept);
  }
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  must_not_be_kept(reader, &frame, -ENOTSUP, "copy it");
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(what_is_not_held_is_not_kept_and_what_is_kept_is_not_released) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  ringcast_kept *kept;
  void *data;
  for (uint64_t i = 0; i < 2; i++) ck_assert_int_eq(send(writer, i, MIB), 0);
  struct ringcast_frame frame = expect(reader, 0, MIB), bogus = frame;
  bogus.position += 64;
  must_not_be_kept(reader, &bogus, -EINVAL, "not held");
  ck_assert_int_eq(ringcast_reader_keep(reader, &frame, &kept, &data), 0);
  must_not_be_kept(reader, &frame, -EINVAL, "not held");
  for (int more = 0; more < 2; more++) {
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), -EINVAL);
    ck_says("not held");
    if (more == 0) bogus = expect(reader, 1, MIB);
  }
  ck_assert_int_eq(ringcast_reader_release(reader, &bogus), 0);
  must_not_be_kept(reader, &bogus, -EINVAL, "not held");
  ringcast_kept_drop(kept);
  settle(reader);
  must_not_be_kept(reader, &frame, -EINVAL, "not held");
  ringcast_reader_leave(reader);
  must_not_be_kept(reader, &frame, -EINVAL, "left its ring");
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(who_was_evicted_keeps_nothing_more) {
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .capacity = 65536,
                                            .spill_bytes = 4 * MIB,
                                            .slow_ns = 1,
                                            .on_slow = RINGCAST_EVICT};
  ringcast_writer *writer;
  ck_assert_int_eq(ringcast_writer_create_ex(&options, &writer), 0);
  ringcast_reader *reader = attach_keeper(writer);
  for (uint64_t i = 0; i < 2; i++) ck_assert_int_eq(send(writer, i, MIB), 0);
  struct kept kept = keep(reader, 0, MIB);
  struct ringcast_frame frame = expect(reader, 1, MIB);
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 4 * MIB - 16, RINGCAST_FOREVER, &span), 0);
  must_not_be_kept(reader, &frame, -ESTALE, "evicted");
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -ESTALE);
  ringcast_kept_drop(kept.handle);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -ESTALE);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

/* ---- Where it can't be had -------------------------------------------------------------------------------------- */

static int no_pagemap(void) { return -EACCES; }

static int map_nothing_private(void *address, size_t bytes, int protection, int flags, int fd, void **out) {
  return flags & MAP_PRIVATE && fd >= 0 ? -ENOMEM : real.map(address, bytes, protection, flags, fd, out);
}

enum { SWITCHED_OFF, NO_PAGEMAP, NO_MAPPING, NOT_ASKED_FOR, NO_SPILL_MEMORY, LACKS };

START_TEST(where_it_cannot_be_had_all_is_to_be_copied) {
  real = rc_os;
  ringcast_writer *writer = make_writer(_i == NO_SPILL_MEMORY ? RINGCAST_NO_SPILL : 4 * MIB);
  size_t bytes = _i == NO_SPILL_MEMORY ? 20000 : MIB;
  if (_i == SWITCHED_OFF) disable_too("cow");
  if (_i == NO_PAGEMAP) rc_os.pagemap = no_pagemap;
  if (_i == NO_MAPPING) rc_os.map = map_nothing_private;
  ringcast_reader *reader = _i == NOT_ASKED_FOR ? attach(writer, 1) : attach_keeper(writer);
  ck_assert_int_eq(ringcast_reader_keeps(reader), 0);
  ck_assert_int_eq(send(writer, 1, bytes), 0);
  must_be_copied(reader, 1, bytes);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  rc_os = real;
}
END_TEST

static int drop_nothing(void *address, size_t bytes, int advice) {
  return advice == MADV_DONTNEED ? -EINVAL : real.advise(address, bytes, advice);
}

START_TEST(where_pages_cannot_be_dropped_nothing_more_is_kept) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  real = rc_os;
  rc_os.advise = drop_nothing;
  ck_assert_int_eq(send(writer, 0, MIB), 0);
  struct kept kept = keep(reader, 0, MIB);
  kept.data[MIB / 2] ^= 1;
  ringcast_kept_drop(kept.handle);
  settle(reader);
  for (uint64_t i = 1; i < 9; i++) {
    ck_assert_int_eq(send(writer, i, MIB), 0);
    must_be_copied(reader, i, MIB);
  }
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
  rc_os = real;
}
END_TEST

/* ---- Forks and locked memory ------------------------------------------------------------------------------------ */

struct family {
  ringcast_writer *writer;
  ringcast_reader *reader;
  struct kept kept[3];
  struct gate overwritten;
};

/* What this process has of a kind, in bytes, as /proc/self/status tells: "VmLck:", "RssAnon:". */
static uint64_t have(const char *kind) {
  char text[4096], *line;
  child_must(rc_os.read_file("/proc/self/status", text, sizeof text) > 0);
  child_must((line = strstr(text, kind)) != NULL);
  return strtoull(line + strlen(kind), NULL, 10) << 10;
}

static void look_in_child(void *context) {
  struct family *family = context;
  struct ringcast_frame frame = {0};
  ringcast_kept *none;
  void *data;
  gate_wait(&family->overwritten);
  child_must(ringcast_reader_keep(family->reader, &frame, &none, &data) == -ECHILD);
  child_must(ringcast_reader_next(family->reader, 0, &frame) == -ECHILD);
  ringcast_reader_close(family->reader);
  for (int i = 0; i < 2; i++) child_must(is_whole(&family->kept[i]));
  write_to(&family->kept[0]);
  for (int i = 0; i < 2; i++) child_must(is_whole(&family->kept[i]));
  uint64_t before = have("RssAnon:");
  ringcast_kept_drop(family->kept[0].handle);
  child_must(before - have("RssAnon:") > MIB / 2); /* not only once all of them are dropped */
  ringcast_kept_drop(family->kept[1].handle);
  ringcast_writer_close(family->writer);
  child_must(ring_mappings() == 0);
  gate_free(&family->overwritten);
  child_must(open_descriptors() == descriptors);
}

START_TEST(a_forked_child_has_what_was_kept_whatever_becomes_of_it) {
  struct family family = {.writer = make_writer(8 * MIB), .overwritten = gate_make()};
  family.reader = attach_keeper(family.writer);
  for (uint64_t i = 0; i < 3; i++) {
    ck_assert_int_eq(send(family.writer, i, MIB), 0);
    family.kept[i] = keep(family.reader, i, MIB);
  }
  memset(family.kept[1].data, 0, MIB / 2);
  pattern_fill(family.kept[1].data, MIB, family.kept[1].number += 7);
  ringcast_kept_drop(family.kept[2].handle); /* and not settled when the child is made */
  pid_t pid = start_child(look_in_child, &family);
  drop(&family.kept[0]);
  for (uint64_t i = 0; i < 40; i++) {
    ck_assert_int_eq(send(family.writer, 50 + i, MIB), 0);
    read_one(family.reader, 50 + i, MIB);
  }
  ck_assert(is_whole(&family.kept[1]));
  gate_open(&family.overwritten);
  child_must_succeed(pid);
  ck_assert(is_whole(&family.kept[1]));
  drop(&family.kept[1]);
  gate_free(&family.overwritten);
  ringcast_reader_close(family.reader);
  ringcast_writer_close(family.writer);
}
END_TEST

/* What mlockall(MCL_CURRENT) does to the mapping of what is kept, which is the child's own then, all of it, with what
 * the file had there; and not to the rest, for a sanitizer's shadow is larger than any machine. (AddressSanitizer makes
 * it do nothing, and munlock.) */
static bool lock_mapping(const struct ringcast_reader *reader, const struct kept *kept) {
  const uint8_t *start = kept->data - ((const uint8_t *)kept->place - reader->segment.spill.base);
  return mlock(start, reader->segment.spill.bytes) == 0;
}

static void lock_what_is_there(void *context) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach_keeper(writer);
  (void)context;
  for (uint64_t i = 0; i < 12; i++) {
    child_must(send(writer, i, MIB) == 0);
    struct kept kept = keep(reader, i, MIB);
    if (i % 4 == 3 && !lock_mapping(reader, &kept)) _exit(2);
    if (i % 2) kept.data[5000] ^= 1;
    ringcast_kept_drop(kept.handle);
    settle(reader);
    if (i % 4 == 1 && !lock_mapping(reader, &kept)) _exit(2);
  }
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

static void lock_what_will_be(void *context) {
  ringcast_writer *writer = make_writer(512 * MIB);
  (void)context;
  if (mlockall(MCL_FUTURE) != 0) _exit(2);
  ringcast_reader *reader = attach_keeper(writer);
  child_must(reader->keeper != NULL);
  child_must(have("VmLck:") < 64 * MIB);
  child_must(info_of(writer).spill_used == 0);
  child_must(send(writer, 1, MIB) == 0);
  struct kept kept = keep(reader, 1, MIB);
  drop(&kept);
}

START_TEST(a_process_that_locks_its_memory_sees_the_right_bytes_and_does_not_get_all_of_them) {
  int status;
  pid_t pid = start_child(_i == 0 ? lock_what_is_there : lock_what_will_be, NULL);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) tell_skipped(__func__, "no right to lock so much (ulimit -l)");
  else ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status 0x%x", status);
}
END_TEST

int main(void) {
  if (!can_keep("test_keep")) return EXIT_SUCCESS;
  Suite *suite = suite_create("keep");
  TCase *tests = add_case(suite, "keep");
  unsetenv("RINGCAST_SPILL_BYTES");
  tcase_add_checked_fixture(tests, remember, nothing_is_left);
  tcase_add_test(tests, what_is_kept_is_the_readers_own);
  tcase_add_loop_test(tests, where_something_was_kept_the_next_frame_is_seen, 0, 2);
  tcase_add_loop_test(tests, it_outlives_the_reader_and_the_writer_and_is_dropped_by_any_thread, 0, 2);
  tcase_add_test(tests, what_lies_in_the_ring_or_takes_half_of_the_memory_is_to_be_copied);
  tcase_add_test(tests, so_many_are_kept_at_once_and_no_more);
  tcase_add_test(tests, what_overlaps_with_what_is_kept_is_to_be_copied);
  tcase_add_test(tests, a_note_that_changes_after_it_was_read_harms_nobody);
  tcase_add_test(tests, a_frame_in_part_is_kept_once_it_is_there_and_told);
  tcase_add_test(tests, what_is_not_held_is_not_kept_and_what_is_kept_is_not_released);
  tcase_add_test(tests, who_was_evicted_keeps_nothing_more);
  tcase_add_loop_test(tests, where_it_cannot_be_had_all_is_to_be_copied, 0, LACKS);
  tcase_add_test(tests, where_pages_cannot_be_dropped_nothing_more_is_kept);
  tcase_add_test(tests, a_forked_child_has_what_was_kept_whatever_becomes_of_it);
  tcase_add_loop_test(tests, a_process_that_locks_its_memory_sees_the_right_bytes_and_does_not_get_all_of_them, 0, 2);
  return run_suite(suite);
}
