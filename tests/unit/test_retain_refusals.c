/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that can't be kept, by the public API within one process: they are refused, and held as
 * before. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "channel/reader.h"
#include "tests/support/retain.h"
#include "tests/support/switches.h"

/* ---- What can't be kept ---------------------------------------------------------------------- */

static void must_not_be_kept(ringcast_reader *reader, const struct ringcast_frame *frame, int code,
                             const char *word) {
  ringcast_retained *retained = NULL;
  void *data = NULL;
  ck_assert_int_eq(ringcast_reader_retain(reader, frame, &retained, &data), code);
  ck_says(word);
  ck_assert(!retained && !data);
}

/* The next frame: it is refused, and held as before. */
static void must_be_copied(ringcast_reader *reader, uint64_t number, size_t bytes) {
  struct ringcast_frame frame = expect(reader, number, bytes);
  must_not_be_kept(reader, &frame, -ENOTSUP, "copy it");
  ck_assert(pattern_matches(frame.data, bytes, number));
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

TEST(what_lies_in_the_ring_is_to_be_copied_and_says_nothing_of_what_does_not) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  size_t most = (size_t)info_of(writer).ring_frame;
  ck_assert_int_eq(send(writer, 1, most), 0);
  must_be_copied(reader, 1, most);
  struct retained retained = send_and_keep(writer, reader, 2, most + 1);
  drop(&retained);
}

TEST(a_quarter_of_the_memory_is_kept_and_no_more) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  ck_assert_int_eq(send(writer, 1, MIB + 1), 0);
  must_be_copied(reader, 1, MIB + 1);
  ck_assert_int_eq(let_it_keep(writer, reader), 4);
  struct retained retained = send_and_keep(writer, reader, 2, MIB);
  drop(&retained);
  find_nothing(reader);
  ck_assert_int_eq(ringcast_reader_retains(reader), 1);
}

/* What was dropped counts, too, until the reader's next call; and what has become the reader's own
 * does not. */
TEST(two_that_fit_into_a_quarter_are_kept_and_the_third_is_not) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct retained retained[3];
  for (uint64_t i = 0; i < 2; i++) { retained[i] = send_and_keep(writer, reader, i, MIB); }
  ck_assert_int_eq(send(writer, 2, 40000), 0);
  must_be_copied(reader, 2, 40000);
  ck_assert_int_eq(let_it_keep(writer, reader), 4);
  ck_assert_int_eq(send(writer, 3, 40000), 0);
  struct ringcast_frame frame = expect(reader, 3, 40000);
  drop(&retained[0]);
  must_not_be_kept(reader, &frame, -ENOTSUP, "copy it");
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  ck_assert_int_eq(let_it_keep(writer, reader), 4);
  retained[0] = send_and_keep(writer, reader, 4, MIB);
  want_all(writer, reader);
  let_it_keep(writer, reader);
  ck_assert_int_eq(send(writer, 5, 4 * MIB), 0);
  frame = expect(reader, 5, 4 * MIB); /* lies where those two were kept: so the next one does not */
  retained[2] = send_and_keep(writer, reader, 6, 2 * MIB);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  for (int i = 0; i < 3; i++) drop(&retained[i]);
}

TEST(so_many_are_kept_at_once_and_no_more) {
  SCOPED_WRITER writer = make_writer(16 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct retained retained[RC_MAX_RETAINED], last;
  uint64_t n = 0;
  for (int i = 0; i < (int)RC_MAX_RETAINED; i++, n++) {
    retained[i] = send_and_keep(writer, reader, n, 40000);
    ck_assert_int_eq(send(writer, 7, 10), 0);
    read_one(reader, 7, 10); /* what comes between them is in nobody's way */
  }
  ck_assert_int_eq(ringcast_reader_retains(reader), 1);
  ck_assert_int_eq(send(writer, n, 40000), 0);
  must_be_copied(reader, n++, 40000);
  drop(&retained[20]);
  ck_assert_int_eq(let_it_keep(writer, reader), 4);
  ck_assert_int_eq(send(writer, n, 40000), 0);
  last = keep(reader, n, 40000);
  ck_assert_int_eq(send(writer, n, 40000), 0);
  must_be_copied(reader, n, 40000);
  for (int i = 0; i < (int)RC_MAX_RETAINED; i++)
    if (i != 20) drop(&retained[i]);
  drop(&last);
}

/* Sends a frame of 4 KiB whose note says whatever a hostile writer likes. */
static struct rc_spilled *lie(ringcast_writer *writer, uint64_t offset, uint64_t bytes) {
  void *out;
  ck_assert_int_eq(rc_ring_reserve(&writer->ring, sizeof(struct rc_spilled), &out), 0);
  ck_assert_int_eq(rc_ring_commit_spilled(&writer->ring, offset, bytes, 9), 0);
  return out;
}

TEST(what_overlaps_with_what_is_kept_is_to_be_copied) {
  SCOPED_WRITER writer = make_writer(16 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct ringcast_frame frame;
  void *data;
  struct retained retained = send_and_keep(writer, reader, 1, MIB);
  uint64_t offset = (uint64_t)((const uint8_t *)retained.place - reader->segment.spill.base);
  const uint64_t bad[][2] = {
      {offset, MIB}, {offset + 4096, 64}, {offset + MIB - 64, 4096}, {16, 3 * MIB}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    let_it_keep(writer, reader);
    lie(writer, bad[i][0], bad[i][1]);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
    must_not_be_kept(reader, &frame, -ENOTSUP, "copy it");
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  }
  drop(&retained);
  let_it_keep(writer, reader);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) { /* nothing else was wrong with them */
    lie(writer, bad[i][0], bad[i][1]);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
    ck_assert_int_eq(ringcast_reader_retain(reader, &frame, &retained.handle, &data), 0);
    ringcast_retained_release(retained.handle);
  }
  find_nothing(reader);
}

TEST(a_note_that_changes_after_it_was_read_harms_nobody) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
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
  ck_assert_int_eq(ringcast_reader_retains(reader), 1); /* which says nothing of the next one */
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

TEST(what_is_not_held_is_not_kept_and_what_is_kept_is_not_released) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  ringcast_retained *retained;
  void *data;
  for (uint64_t i = 0; i < 2; i++) ck_assert_int_eq(send(writer, i, MIB), 0);
  struct ringcast_frame frame = expect(reader, 0, MIB), bogus = frame;
  bogus.position += 64;
  must_not_be_kept(reader, &bogus, -EINVAL, "not held");
  ck_assert_int_eq(ringcast_reader_retain(reader, &frame, &retained, &data), 0);
  must_not_be_kept(reader, &frame, -EINVAL, "not held");
  for (int more = 0; more < 2; more++) {
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), -EINVAL);
    ck_says("not held");
    if (more == 0) bogus = expect(reader, 1, MIB);
  }
  ck_assert_int_eq(ringcast_reader_release(reader, &bogus), 0);
  must_not_be_kept(reader, &bogus, -EINVAL, "not held");
  ringcast_retained_release(retained);
  find_nothing(reader);
  must_not_be_kept(reader, &frame, -EINVAL, "not held");
  ringcast_reader_leave(reader);
  must_not_be_kept(reader, &frame, -EINVAL, "left its ring");
}

/* Not for being slow, as then nothing is kept: its cursor can't be right, so it is as good as
 * dead. */
TEST(who_was_evicted_keeps_nothing_more) {
  SCOPED_WRITER writer =
      writer_of(.capacity = 65536, .spill_bytes = 4 * MIB, .on_death = RINGCAST_EVICT);
  SCOPED_READER reader = attach_retainer(writer);
  for (uint64_t i = 0; i < 2; i++) ck_assert_int_eq(send(writer, i, MIB), 0);
  struct retained retained = keep(reader, 0, MIB);
  struct ringcast_frame frame = expect(reader, 1, MIB);
  struct ringcast_span span;
  rc_store_relaxed(&reader->ring.own->cursor, 3); /* relaxed: one thread */
  ck_assert_int_eq(ringcast_writer_reserve(writer, 4 * MIB - 16, RINGCAST_FOREVER, &span), 0);
  must_not_be_kept(reader, &frame, -ESTALE, "evicted");
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -ESTALE);
  ringcast_retained_release(retained.handle);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -ESTALE);
}

/* An hour: nobody is evicted here. What would be overwritten as soon as its reader is must not be
 * kept at all. */
LOOP_TEST(where_the_slow_are_evicted_all_is_to_be_copied, 0, 2) {
  SCOPED_WRITER writer =
      writer_of(.capacity = 65536, .spill_bytes = 4 * MIB, .slow_ns = (int64_t)3600 * 1000000000,
                .on_slow = _i == 0 ? RINGCAST_EVICT : RINGCAST_FAIL);
  SCOPED_READER reader = attach_retainer(writer);
  for (uint64_t i = 0; i < 6; i++) {
    ck_assert_int_eq(send(writer, i, 40000), 0);
    if (_i == 0) {
      must_be_copied(reader, i, 40000);
    } else {
      struct retained retained = keep(reader, i, 40000);
      drop(&retained);
    }
  }
}

/* ---- Where it can't be had ------------------------------------------------------------------- */

static int no_pagemap(void) { return -EACCES; }

static struct rc_os real;

static int map_nothing_private(void *address, size_t bytes, int protection, int flags, int fd,
                               void **out) {
  return flags & MAP_PRIVATE && fd >= 0 ? -ENOMEM
                                        : real.map(address, bytes, protection, flags, fd, out);
}

enum { SWITCHED_OFF, NO_PAGEMAP, NO_MAPPING, NOT_ASKED_FOR, NO_SPILL_MEMORY, LACKS };

LOOP_TEST(where_it_cannot_be_had_all_is_to_be_copied, 0, LACKS) {
  real = rc_os;
  SCOPED_WRITER writer = make_writer(_i == NO_SPILL_MEMORY ? RINGCAST_NO_SPILL : 4 * MIB);
  size_t bytes = _i == NO_SPILL_MEMORY ? 20000 : MIB;
  if (_i == SWITCHED_OFF) disable_too("retain");
  if (_i == NO_PAGEMAP) rc_os.pagemap = no_pagemap;
  if (_i == NO_MAPPING) rc_os.map = map_nothing_private;
  SCOPED_READER reader = _i == NOT_ASKED_FOR ? attach(writer, 1) : attach_retainer(writer);
  ck_assert_int_eq(ringcast_reader_retains(reader), 0);
  ck_assert_int_eq(send(writer, 1, bytes), 0);
  must_be_copied(reader, 1, bytes);
  rc_os = real;
}

static int drop_nothing(void *address, size_t bytes, int advice) {
  return advice == MADV_DONTNEED ? -EINVAL : real.advise(address, bytes, advice);
}

TEST(where_pages_cannot_be_dropped_nothing_more_is_kept) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  real = rc_os;
  rc_os.advise = drop_nothing;
  struct retained retained = send_and_keep(writer, reader, 0, MIB);
  retained.data[MIB / 2] ^= 1;
  ringcast_retained_release(retained.handle);
  find_nothing(reader);
  for (uint64_t i = 1; i < 9; i++) {
    let_it_keep(writer, reader);
    ck_assert_int_eq(send(writer, i, MIB), 0);
    must_be_copied(reader, i, MIB);
  }
  rc_os = real;
}

int main(void) {
  if (!can_retain("test_retain_refusals")) return EXIT_SUCCESS;
  unsetenv("RINGCAST_SPILL_BYTES");
  return run_tests("retain_refusals", remember, nothing_is_left);
}
