/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that mean harm, as the public API meets them: files that change while they are looked at,
 * slots that lie. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/os.h"
#include "tests/support/channel.h"

/* ---- Files ----------------------------------------------------------------------------------- */

enum { DATA, CONTROL, SPILL, FILES }; /* in the order in which they are sealed */
static int (*true_seal)(int fd, int seals), (*true_seals)(int fd);
static int unsealed, sealed, late_fd, late_seals;

static int seal_all_but_one(int fd, int seals) {
  if (sealed++ != unsealed) return true_seal(fd, seals);
  late_fd = fd;
  late_seals = seals;
  return 0;
}

/* The writer cuts the file short when its size has been looked at, and seals it only then. */
static int seals_of_a_file_cut_short(int fd) {
  struct stat file, late;
  ck_assert_int_eq(fstat(fd, &file) | fstat(late_fd, &late), 0);
  if (file.st_ino != late.st_ino) return true_seals(fd);
  ck_assert_int_eq(ftruncate(late_fd, late.st_size / 2), 0);
  ck_assert_int_eq(true_seal(late_fd, late_seals), 0);
  return true_seals(fd);
}

static ringcast_writer *make_with_one_unsealed(int which) {
  true_seal = rc_os.seal;
  true_seals = rc_os.seals;
  unsealed = which;
  sealed = 0;
  rc_os.seal = seal_all_but_one;
  ringcast_writer *writer =
      writer_of(.capacity = 8192, .readers = 64, .memory = RINGCAST_MEMORY_PAGES,
                .spill_bytes = (uint64_t)4 << 20);
  ck_assert_int_eq(sealed, FILES);
  return writer;
}

/* To read what was cut off would be SIGBUS. */
LOOP_TEST(a_file_that_is_cut_short_before_it_is_sealed_is_refused, 0, 2 * FILES) {
  SCOPED_WRITER writer = make_with_one_unsealed(_i / 2);
  ringcast_reader *reader = NULL;
  ringcast_tap *tap = NULL;
  rc_os.seals = seals_of_a_file_cut_short;
  int result = _i % 2 == 0 ? ringcast_reader_attach(ringcast_writer_handle(writer), &reader)
                           : ringcast_tap_attach(ringcast_writer_handle(writer), &tap);
  ck_assert_int_eq(result, _i / 2 == CONTROL ? -ENOENT : -EPROTO);
  ck_says(_i / 2 == CONTROL ? "gone" : "another size");
  ck_assert(!reader && !tap);
  rc_segment_destroy(&writer->segment); /* its mappings are no longer good for closing */
  writer->forks--;
}

LOOP_TEST(a_file_that_is_not_sealed_is_refused, 0, FILES) {
  SCOPED_WRITER writer = make_with_one_unsealed(_i);
  ringcast_reader *reader = NULL;
  ringcast_tap *tap = NULL;
  int expected = _i == CONTROL ? -ENOENT : -EPROTO;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), expected);
  ck_says(_i == CONTROL ? "gone" : "not sealed");
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), expected);
}

/* Opening a pipe tells its other end that somebody is there. */
TEST(a_handle_that_names_a_pipe_does_not_open_it) {
  SCOPED_WRITER writer = make_writer(4096, 1);
  ringcast_reader *reader = NULL;
  struct rc_handle handle;
  char folder[] = "/tmp/hostile.XXXXXX", path[64], text[RC_HANDLE_MAX];
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/pipe", folder);
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  struct pollfd pipe = {.fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), .events = POLLIN};
  ck_assert_int_eq(unlink(path) | rmdir(folder), 0);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(rc_handle_parse(ringcast_writer_handle(writer), &handle), 0);
    *(i == 0 ? &handle.control_fd : &handle.data_fd) = pipe.fd;
    rc_handle_format(&handle, text);
    ck_assert_int_eq(ringcast_reader_attach(text, &reader), -ENOENT);
    ck_assert_int_eq(poll(&pipe, 1, 0), 0); /* POLLHUP: a writer has come and gone */
  }
  close(pipe.fd);
}

static int (*true_advise)(void *address, size_t bytes, int advice);
static int advise_on_a_full_machine(void *address, size_t bytes, int advice) {
  return advice == MADV_POPULATE_READ ? -EFAULT : true_advise(address, bytes, advice);
}

/* It may not have put its memory in place, and then there may be none left when it is read. */
TEST(memory_that_can_not_be_read_is_an_error_and_no_signal) {
  SCOPED_WRITER writer = make_writer(4096, 1);
  ringcast_reader *reader = NULL;
  true_advise = rc_os.advise;
  rc_os.advise = advise_on_a_full_machine;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -ENOMEM);
  ck_says("can't read all");
  ck_assert_ptr_null(reader);
}

/* ---- Slots ----------------------------------------------------------------------------------- */

static ringcast_writer *make_writer_that(uint32_t on_death) {
  return writer_of(.capacity = 4096, .readers = 2, .on_death = on_death);
}

static int send_some(ringcast_writer *writer, int frames) {
  int result = 0;
  for (int i = 0; i < frames && result == 0; i++)
    result = ringcast_writer_send(writer, "12345678", 8, 0, RINGCAST_FOREVER);
  return result;
}

/* Nobody could ever be waited for: pid 0 is no process, and the pid of another has not this
 * start. */
LOOP_TEST(a_slot_that_names_no_process_holds_nobody_up, 0, 4) {
  const uint64_t owners[] = {
      rc_owner_make(0, 0, 0, RC_SLOT_ACTIVE), rc_owner_make(1, 12345678, 3, RC_SLOT_ACTIVE),
      rc_owner_make(0, 5, 1, RC_SLOT_JOINING), rc_owner_make(0, 5, 1, RC_SLOT_EVICTED)};
  ringcast_writer *writer = make_writer_that(RINGCAST_EVICT);
  _Atomic uint64_t *owner = &rc_segment_control(&writer->segment)->slots[1].owner;
  rc_store_release(owner, owners[_i]);
  ck_assert_int_eq(send_some(writer, 100), 0);
  ck_assert(rc_owner_state(rc_load_acquire(owner)) == RC_SLOT_FREE || _i == 3);
  ringcast_writer_close(writer);
  if (rc_owner_state(owners[_i]) != RC_SLOT_ACTIVE) return;
  writer = make_writer_that(RINGCAST_FAIL);
  rc_store_release(&rc_segment_control(&writer->segment)->slots[1].owner, owners[_i]);
  ck_assert_int_eq(send_some(writer, 100), -EOWNERDEAD);
  ck_says("has died");
  ringcast_writer_close(writer);
}

TEST(a_long_name_is_cut_between_characters) {
  SCOPED_WRITER writer = make_writer_that(RINGCAST_FAIL);
  struct ringcast_reader_options options = {.size = sizeof options,
                                            .name = "0123456789012345678901234567\u4e2d\u4e2d"};
  struct ringcast_peer peer = {.size = sizeof peer};
  ringcast_reader *reader;
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), 0);
  ck_assert_int_eq(ringcast_writer_peers(writer, &peer, 1), 1);
  ck_assert_str_eq(peer.name, "0123456789012345678901234567\u4e2d");
  ringcast_reader_close(reader);
  options.name = "01234567890123456789012345678\u4e2d";
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &reader), 0);
  ck_assert_int_eq(ringcast_writer_peers(writer, &peer, 1), 1);
  ck_assert_str_eq(peer.name, "01234567890123456789012345678");
  ringcast_reader_close(reader);
}

/* One that is attached may write to all of them. */
TEST(what_stands_in_a_slot_is_shown_and_harms_nobody) {
  SCOPED_WRITER writer = make_writer_that(RINGCAST_FAIL);
  ringcast_reader *reader = attach(writer);
  struct rc_control *control = rc_segment_control(&writer->segment);
  struct rc_slot *slot = &control->slots[0];
  struct ringcast_peer peers[2] = {{.size = sizeof *peers}};
  uint64_t lag;
  ck_assert_int_eq(send_some(writer, 3), 0);
  memset(slot->name, 'x', sizeof slot->name);
  memcpy(slot->name, "a\nb\x1b[31m\x7f", 9);
  memset((void *)&slot->counts, 0xff, sizeof slot->counts);
  memset((void *)&slot->waits, 0xff, sizeof slot->waits);
  memset((void *)&control->cpus, 0xff, sizeof control->cpus);
  slot->stalls = UINT64_MAX;
  slot->cursor = (uint64_t)1 << 40;
  ck_assert_int_eq(ringcast_writer_peers(writer, peers, 2), 1);
  ck_assert_str_eq(peers[0].name, "a\\x0ab\\x1b[31m\\x7fxxxxxxxxxxxxx");
  ck_assert_uint_eq(peers[0].lag, 0);
  ck_assert_int_eq(ringcast_writer_slowest(writer, peers), 1);
  stats_of_reader(reader);
  ck_assert_int_eq(ringcast_reader_lag(reader, &lag), 0);
  ck_assert_uint_eq(lag, 3 * RC_FRAME_ALIGN); /* by what it knows itself */
  control->tail = 5;
  ck_assert_int_eq(ringcast_reader_lag(reader, &lag), 0);
  ck_assert_uint_eq(lag, 5);
  ck_assert_int_eq(send_some(writer, 100), -EPROTO);
  ck_says("'a\\x0ab\\x1b[31m\\x7f");
  ringcast_reader_close(reader);
  ck_assert_int_eq(send_some(writer, 100), 0);
}

/* A peer has set the count of sleepers so high that the next announcement makes it 0. */
TEST(a_descriptor_is_not_left_asleep_by_a_wrong_count_of_sleepers) {
  ringcast_writer *writer;
  ringcast_reader *reader;
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_writer_create(&writer), 0);
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), 0);
  struct pollfd file = {.fd = ringcast_reader_fd(reader), .events = POLLIN};
  _Atomic uint64_t *state = &writer->ring.view.control->not_empty.state;
  rc_store_release(state, rc_load_relaxed(state) | (uint64_t)UINT32_MAX << 32);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, RINGCAST_KIND_BYTES, 0), 0);
  ck_assert_int_eq(poll(&file, 1, 10000), 1);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

RUN_TESTS("channel, hostile", remember, nothing_is_left)
