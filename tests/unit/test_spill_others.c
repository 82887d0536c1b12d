/* SPDX-License-Identifier: Apache-2.0 */
/* Large frames and taps, hostile peers, forked children. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/children.h"
#include "tests/support/spill.h"

/* ---- Taps and enemies ------------------------------------------------------------------------ */

TEST(a_tap_copies_spilled_frames_and_counts_those_it_lost) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach(writer, 8);
  ringcast_tap *tap;
  struct ringcast_frame frame, held[3];
  uint64_t bytes, gaps;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  for (uint64_t i = 0; i < 10; i++) {
    ck_assert_int_eq(send(writer, i, 3 * MIB + i), 0);
    ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
    ck_assert(frame.kind == i && frame.bytes == 3 * MIB + i &&
              pattern_matches(frame.data, frame.bytes, i));
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
  ck_assert(frame.kind == 1 && frame.bytes == 4 * MIB &&
            pattern_matches(frame.data, frame.bytes, 1));
  ck_assert_int_eq(ringcast_tap_lost(tap, &bytes, &gaps), 0);
  ck_assert_uint_eq(bytes, RC_FRAME_ALIGN);
  ck_assert_uint_eq(gaps, 1);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  ck_assert(frame.kind == 2 && frame.bytes == MIB && pattern_matches(frame.data, frame.bytes, 2));
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  ck_assert_uint_eq(frame.kind, 3);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EAGAIN);
  /* Without a reader each is gone with the next, and the last one stays. */
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

TEST(a_note_that_cannot_be_right_is_told_and_harms_nobody) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  ringcast_tap *tap;
  struct ringcast_frame frame;
  struct rc_frame_header *header = (struct rc_frame_header *)writer->segment.data.base;
  struct rc_spilled *note = (struct rc_spilled *)(header + 1);
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(send(writer, 0, MIB), 0);
  const uint64_t bad[][2] = {{17, 5},           {0, 5},           {16, 4 * MIB},
                             {4 * MIB + 16, 0}, {16, UINT64_MAX}, {UINT64_MAX - 47, 48}};
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
  ck_assert_uint_eq(others_than(0, frame.data, frame.bytes), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  header->flags = 4;
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EPROTO);
  ringcast_tap_close(tap);
}

TEST(a_damaged_word_about_spill_memory_is_refused_at_attach) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  ringcast_reader *reader;
  ringcast_tap *tap;
  struct rc_identity *id = &rc_segment_control(&writer->segment)->id, good = *id;
  const uint64_t sizes[] = {2 * MIB,    6 * MIB,          4 * MIB + 1, RC_MAX_BYTES + 2 * MIB,
                            UINT64_MAX, (uint64_t)1 << 63};
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
}

static void must_not_end_it(void *writer) {
  child_must(ringcast_writer_commit(writer, MIB, 0) == -ECHILD &&
             ringcast_writer_abort(writer) == -ECHILD);
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

int main(void) {
  unsetenv("RINGCAST_SPILL_BYTES");
  return run_tests("spill_others", remember, nothing_is_left);
}
