/* SPDX-License-Identifier: Apache-2.0 */
/* Large frames and those who do not just read them: followers, taps, enemies, children. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/fence.h"
#include "tests/support/children.h"
#include "tests/support/spill.h"
#include "tests/support/switches.h"

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
    if (!closed)
      ck_assert_int_eq(ringcast_writer_abort(writer), 0);
    else
      ringcast_writer_close(writer);
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

START_TEST(who_passes_a_frame_that_was_taken_back_wakes_the_writer) {
  ringcast_writer *writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach(writer, 1), *follower = attach_follower(writer);
  struct rc_event *room = &rc_segment_control(&writer->segment)->room;
  struct ringcast_span span;
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 7 * MIB, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_publish(writer, MIB, 3), 0);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 7 * MIB, 0, &span), -EAGAIN);
  rc_event_prepare(room); /* as if it slept until there is room */
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
  ck_assert(!rc_event_is_asleep(room));
  rc_event_prepare(room); /* the other one still stands in its way */
  ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), -EAGAIN);
  ck_assert(!rc_event_is_asleep(room));
  ck_assert_int_eq(ringcast_writer_reserve(writer, 7 * MIB, 0, &span), 0);
  ringcast_reader_close(reader);
  ringcast_reader_close(follower);
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
  const uint64_t bad[][3] = {
      {good[0], 6 * MIB, RC_SPILL_WHOLE}, {good[0] + 64, good[1], good[2]}, {good[0], 10, 11}, {3, 3, 3}};
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
  ck_assert_uint_eq(bytes, RC_FRAME_ALIGN);
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

static bool is_readable(int fd, int timeout_ms) {
  struct pollfd wanted = {.fd = fd, .events = POLLIN};
  return poll(&wanted, 1, timeout_ms) == 1;
}

START_TEST(a_descriptor_waits_for_the_rest_of_a_frame) {
  if (_i == 1) disable_too("io_uring");
  ringcast_writer *writer = make_writer(16 * MIB);
  ringcast_reader *follower = attach_follower(writer);
  struct ringcast_frame frame;
  struct ringcast_span span;
  size_t there;
  int fd = ringcast_reader_fd(follower);
  ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), -EAGAIN);
  for (int round = 0; round < 3; round++) {
    ck_assert(!is_readable(fd, 0));
    ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 0, &span), 0);
    ck_assert_int_eq(ringcast_writer_publish(writer, 0, 3), 0);
    ck_assert(is_readable(fd, -1));
    ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), 0);
    for (size_t upto = 1; upto < 50; upto++) {
      ck_assert_int_eq(ringcast_reader_await(follower, &frame, upto, 0, &there), -EAGAIN);
      ck_assert(!is_readable(fd, 0));
      ck_assert_int_eq(ringcast_writer_publish(writer, upto, 3), 0);
      ck_assert(is_readable(fd, -1));
      ck_assert_int_eq(ringcast_reader_await(follower, &frame, upto, 0, &there), 0);
    }
    ck_assert_int_eq(ringcast_reader_await(follower, &frame, SIZE_MAX, 0, &there), -EAGAIN);
    ck_assert(!is_readable(fd, 0));
    if (round == 0) ck_assert_int_eq(ringcast_writer_commit(writer, 5 * MIB, 3), 0);
    else if (round == 1) ck_assert_int_eq(ringcast_writer_abort(writer), 0);
    else ringcast_writer_close(writer);
    ck_assert(is_readable(fd, -1));
    int result = ringcast_reader_await(follower, &frame, SIZE_MAX, 0, &there);
    ck_assert_int_eq(result, round == 0 ? 0 : -ECONNABORTED);
    ck_assert_int_eq(ringcast_reader_release(follower, &frame), 0);
    if (round < 2) ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), -EAGAIN);
  }
  ck_assert_int_eq(ringcast_reader_next(follower, 0, &frame), -EPIPE);
  ringcast_reader_close(follower);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("spill_others");
  TCase *tests = add_case(suite, "spill_others");
  unsetenv("RINGCAST_SPILL_BYTES");
  tcase_add_checked_fixture(tests, remember, nothing_is_left);
  tcase_add_test(tests, a_reader_that_asked_for_it_follows_the_writer_through_a_frame);
  tcase_add_test(tests, a_frame_that_is_taken_back_is_told_to_those_who_follow_alone);
  tcase_add_test(tests, who_passes_a_frame_that_was_taken_back_wakes_the_writer);
  tcase_add_test(tests, a_length_that_changes_its_mind_is_refused);
  tcase_add_test(tests, a_tap_copies_spilled_frames_and_counts_those_it_lost);
  tcase_add_test(tests, a_note_that_cannot_be_right_is_told_and_harms_nobody);
  tcase_add_test(tests, a_damaged_word_about_spill_memory_is_refused_at_attach);
  tcase_add_test(tests, taking_a_frame_back_wakes_readers_and_going_over_it_the_writer);
  tcase_add_test(tests, a_forked_child_leaves_an_open_reservation_alone);
  tcase_add_loop_test(tests, a_descriptor_waits_for_the_rest_of_a_frame, 0, 2);
  return run_suite(suite);
}
