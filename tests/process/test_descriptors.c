/* SPDX-License-Identifier: Apache-2.0 */
/* Other people's descriptors: the library makes none below 3, and touches no file of the program
 * that has got the number of one of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include "gpu/worker.h"
#include "tests/support/children.h"
#include "tests/support/handles.h"
#include "tests/support/switches.h"

enum { NUMBERS = 64, OFFSETS = 24, LARGE = 1 << 20 };

static struct {
  ringcast_writer *writer;
  ringcast_reader *reader;
  ringcast_tap *tap;
} all;

/* The GPU code's thread, which has an eventfd. */
static void ignore(struct rc_watched *watched) { (void)watched; }
static struct rc_watched watched[2] = {{.died = ignore}, {.died = ignore}};

static void watch_parent(void) {
  static int count;
  struct rc_watched *one = &watched[count++];
  struct rc_process parent;
  child_must(rc_process_find(getppid(), &parent) == 0);
  rc_watch_init(&one->process, parent.pid, parent.start, UINT64_MAX);
  child_must(rc_watcher_add(one) == 0);
}

static void send_one(size_t bytes) {
  struct ringcast_span span;
  child_must(ringcast_writer_reserve(all.writer, bytes, 0, &span) == 0);
  memset(span.data, 7, bytes);
  child_must(ringcast_writer_commit(all.writer, bytes, 0) == 0);
}

static void take_one_of(size_t bytes) {
  struct ringcast_frame frame;
  child_must(ringcast_reader_next(all.reader, 0, &frame) == 0);
  child_must(frame.bytes == bytes && others_than(7, frame.data, bytes) == 0);
  child_must(ringcast_reader_release(all.reader, &frame) == 0);
}

/* Opens what holds descriptors, and waits once with each handle, which opens a pidfd of the
 * peer. */
static void open_all(void) {
  static const struct ringcast_reader_options retains = {.size = sizeof retains,
                                                         .flags = RINGCAST_READER_RETAIN};
  const struct ringcast_writer_options options = {.size = sizeof options, .capacity = 1 << 16};
  struct ringcast_peer peer = {.size = sizeof peer};
  struct ringcast_frame frame;
  struct ringcast_span span;
  child_must(ringcast_writer_create_ex(&options, &all.writer) == 0);
  child_must(ringcast_reader_attach_ex(ringcast_writer_handle(all.writer), &retains, &all.reader) ==
             0);
  child_must(ringcast_tap_attach(ringcast_writer_handle(all.writer), &all.tap) == 0);
  child_must(ringcast_reader_next(all.reader, 1, &frame) == -ETIMEDOUT);
  child_must(ringcast_tap_next(all.tap, 1, &frame) == -ETIMEDOUT);
  int sent = 0;
  for (; ringcast_writer_reserve(all.writer, 10000, 1, &span) == 0; sent++)
    child_must(ringcast_writer_commit(all.writer, 10000, 0) == 0);
  for (; sent > 0; sent--) {
    child_must(ringcast_reader_next(all.reader, 0, &frame) == 0 &&
               ringcast_reader_release(all.reader, &frame) == 0);
    child_must(ringcast_tap_next(all.tap, 0, &frame) == 0);
  }
  watch_parent();
  child_must(ringcast_writer_check(all.writer, &peer) == 0);
  child_must(ringcast_writer_fd(all.writer) > 2 && ringcast_writer_room_fd(all.writer) > 2);
  child_must(ringcast_reader_fd(all.reader) > 2);
}

static void close_all(void) {
  ringcast_tap_close(all.tap);
  ringcast_reader_close(all.reader);
  ringcast_writer_close(all.writer);
}

/* ---- 0, 1 and 2 ------------------------------------------------------------------------------ */

static const char *const without[] = {"", "io_uring", "pidfd"};

static void live_without_standard_files(void *switched_off) {
  disable_too(switched_off);
  for (int fd = 0; fd < 3; fd++) close(fd);
  open_all();
  send_one(LARGE);
  take_one_of(LARGE);
  child_must(ringcast_rings(NULL, 0) >= 1);
  for (int fd = 0; fd < 3; fd++) child_must(fcntl(fd, F_GETFD) == -1);
  close_all();
}

LOOP_TEST(a_daemon_without_standard_files_gets_none_of_the_ring_there, 0,
          sizeof without / sizeof *without) {
  child_must_succeed(start_child(live_without_standard_files, (void *)without[_i]));
}

/* ---- Numbers that the program has closed ----------------------------------------------------- */

enum { A_FILE, AN_EVENTFD, AN_EPOLL, A_TIMER, KINDS };

static int make_own(int kind) {
  switch (kind) {
  case A_FILE: return memfd_create("own", 0);
  case AN_EVENTFD: return eventfd(0, EFD_NONBLOCK);
  case AN_EPOLL: return epoll_create1(0);
  default: return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  }
}

/* Files of one kind, one at each number that the handles had. */
static struct stat own[NUMBERS];
static bool is_own[NUMBERS];

static void take_numbers(int kind) {
  for (int fd = 3; fd < NUMBERS; fd++) {
    char path[32], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    is_own[fd] =
        readlink(path, target, sizeof target - 1) > 0 &&
        (strstr(target, "ringcast") || strstr(target, "anon_inode") || strstr(target, "pagemap"));
    if (!is_own[fd]) continue;
    int made = make_own(kind);
    child_must(made >= 0 && dup2(made, fd) == fd && close(made) == 0 && fstat(fd, &own[fd]) == 0);
  }
}

/* Each file is open, and has got no byte, no count, no time and no member. */
static void numbers_are_untouched(int kind) {
  int count = 0;
  for (int fd = 3; fd < NUMBERS; fd++) {
    struct stat now;
    uint64_t value;
    struct itimerspec timer;
    if (!is_own[fd]) continue;
    count++;
    child_must(fstat(fd, &now) == 0 && now.st_ino == own[fd].st_ino && now.st_size == 0 &&
               now.st_blocks == 0);
    child_must(now.st_mode == own[fd].st_mode);
    if (kind == AN_EVENTFD) child_must(read(fd, &value, sizeof value) == -1 && errno == EAGAIN);
    if (kind == A_TIMER)
      child_must(timerfd_gettime(fd, &timer) == 0 &&
                 timer.it_value.tv_sec + timer.it_value.tv_nsec == 0);
  }
  child_must(count >= 5);
}

struct takeover {
  int kind;
  bool forks;
};

static void end_in_child(void *takeover) {
  const struct takeover *how = takeover;
  take_numbers(how->kind);
  close_all();
  numbers_are_untouched(how->kind);
}

static void live_without_own_files(void *takeover) {
  const struct takeover *how = takeover;
  struct ringcast_peer peer = {.size = sizeof peer};
  struct ringcast_frame frame;
  open_all();
  if (how->forks) {
    child_must_succeed(start_child(end_in_child, takeover));
  } else {
    take_numbers(how->kind);
    for (int i = 0; i < 3; i++) { /* the mappings serve as before */
      send_one(LARGE);
      child_must(ringcast_tap_next(all.tap, 0, &frame) == -EBADF);
      take_one_of(LARGE);
    }
    watch_parent(); /* wakes the thread, which has no eventfd any more */
    (void)ringcast_writer_check(all.writer, &peer);
    (void)ringcast_writer_room_fd(all.writer);
    (void)ringcast_reader_fd(all.reader);
    numbers_are_untouched(how->kind);
  }
  send_one(LARGE);
  take_one_of(LARGE);
  close_all();
  if (!how->forks) numbers_are_untouched(how->kind);
}

LOOP_TEST(files_that_have_got_the_numbers_are_left_alone, 0, 4 * KINDS) {
  struct takeover how = {.kind = _i % KINDS, .forks = _i / KINDS % 2};
  if (_i >= 2 * KINDS) disable_too("io_uring");
  child_must_succeed(start_child(live_without_own_files, &how));
}

/* A handle that ends leaves those of a later handle open, which have the same numbers, or some of
 * them: as many more descriptors are open beside the earlier handles as `number_of_others` says. */
static void live_beside_a_later_ring(void *number_of_others) {
  for (int i = *(int *)number_of_others; i > 0; i--) child_must(open("/dev/null", O_RDONLY) >= 0);
  open_all();
  __typeof__(all) first = all, second;
  for (int fd = 3; fd < NUMBERS; fd++) close(fd);
  open_all();
  second = all;
  all = first;
  close_all();
  all = second;
  send_one(LARGE);
  take_one_of(LARGE);
  child_must(ringcast_reader_fd(all.reader) > 2 && ringcast_writer_room_fd(all.writer) > 2);
  ringcast_reader *late;
  child_must(ringcast_reader_attach(ringcast_writer_handle(all.writer), &late) == 0);
  ringcast_reader_close(late);
  close_all();
}

LOOP_TEST(a_later_ring_keeps_its_numbers, 0, 2 * OFFSETS) {
  int number_of_others = _i % OFFSETS;
  if (_i >= OFFSETS) disable_too("pidfd");
  child_must_succeed(start_child(live_beside_a_later_ring, &number_of_others));
}

RUN_TESTS("descriptors", NULL, NULL)
