/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One writer, some readers, frames in sequence, as fast as it goes: each reader checks the number,
 * the length and every byte of every frame. What is counted is what all readers have released after
 * they checked it.
 *
 *   soak_frames [--frames N] [--seconds N] [--readers N] [--quiet]
 *
 * It ends when either is used up. Exit status 1 if a frame was wrong, a party ended as it should
 * not, or none got on for a minute.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ringcast/ringcast.h"
#include "tests/support/pattern.h"

enum { MOST_READERS = 16, TELL_EVERY = 1 << 14 };
#define HANG_S   60.0
#define CAPACITY ((size_t)1 << 20) /* frames of more than half of it go through spill memory */

/* Shared by all; each line has one writer. */
struct count {
  _Alignas(64) _Atomic uint64_t frames; /* sent, or checked and released */
  uint64_t bytes;
  bool fine;
};
struct board {
  struct count participants[MOST_READERS + 1]; /* the writer is the last one */
  _Alignas(64) _Atomic bool stop;
};

static struct board *board;
static uint64_t frames = UINT64_MAX;

/* ---- Frames ---------------------------------------------------------------------------------- */

/* Mostly 8 to 36 bytes, the same for some in a row; one in 4096 up to 8 KiB, one in 4 million
 * beside the ring. */
static size_t bytes_of(uint64_t number) {
  if ((number & 4095) != 4095) return 8 + (number >> 7 & 7) * (number >> 10 & 1) * 4;
  uint64_t random = pattern_word(number, 0) >> 20;
  return (number & 0x3fffff) == 0x3fffff ? CAPACITY + random % CAPACITY : 8 + random % 8184;
}

/* ---- Parties --------------------------------------------------------------------------------- */

static int fail(const char *who, uint64_t number, const char *what) {
  fprintf(stderr, "soak_frames: %s, at frame %" PRIu64 ": %s\n", who, number, what);
  return 1;
}

static void tell(struct count *count, uint64_t number) {
  atomic_store_explicit(&count->frames, number, memory_order_relaxed);
}

static int be_writer(ringcast_writer *writer, uint32_t readers) {
  struct count *count = &board->participants[MOST_READERS];
  struct ringcast_span span;
  uint64_t number = 0;
  if (ringcast_writer_wait_readers(writer, readers, RINGCAST_FOREVER) < 0)
    return fail("writer", 0, ringcast_last_error());
  for (; number < frames; number++) {
    size_t bytes = bytes_of(number);
    if (ringcast_writer_reserve(writer, bytes, RINGCAST_FOREVER, &span) != 0)
      return fail("writer", number, ringcast_last_error());
    pattern_fill(span.data, bytes, number);
    if (ringcast_writer_commit(writer, bytes, (uint16_t)number) != 0)
      return fail("writer", number, ringcast_last_error());
    if (number % TELL_EVERY != 0) continue;
    tell(count, number);
    if (atomic_load_explicit(&board->stop, memory_order_relaxed)) {
      number++;
      break;
    }
  }
  tell(count, number);
  count->fine = true;
  return 0;
}

static int be_reader(const char *handle, struct count *count) {
  struct ringcast_frame frame;
  ringcast_reader *reader;
  uint64_t number = 0;
  int result;
  if (ringcast_reader_attach(handle, &reader) != 0) return fail("reader", 0, ringcast_last_error());
  for (; (result = ringcast_reader_next(reader, RINGCAST_FOREVER, &frame)) == 0; number++) {
    if (frame.bytes != bytes_of(number) || frame.kind != (uint16_t)number)
      return fail("reader", number, "another frame");
    if (!pattern_matches(frame.data, frame.bytes, number))
      return fail("reader", number, "a byte is wrong");
    count->bytes += frame.bytes;
    if (ringcast_reader_release(reader, &frame) != 0)
      return fail("reader", number, ringcast_last_error());
    if (number % TELL_EVERY == 0) tell(count, number + 1);
  }
  tell(count, number);
  if (result != -EPIPE) return fail("reader", number, ringcast_last_error());
  count->fine = true;
  ringcast_reader_close(reader);
  return 0;
}

static pid_t start_reader(const char *handle, struct count *count) {
  pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(be_reader(handle, count));
}

static pid_t start_writer(uint32_t readers) {
  int ends[2];
  char handle[96];
  if (pipe(ends) != 0) return -1;
  pid_t pid = fork();
  if (pid != 0) {
    bool there = pid > 0 && read(ends[0], handle, sizeof handle) == sizeof handle;
    close(ends[0]);
    close(ends[1]);
    for (uint32_t i = 0; there && i < readers; i++)
      there = start_reader(handle, &board->participants[i]) > 0;
    return there ? pid : -1;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const struct ringcast_writer_options options = {.size = sizeof options,
                                                  .capacity = CAPACITY,
                                                  .readers = readers,
                                                  .spill_bytes = (uint64_t)64 << 20};
  ringcast_writer *writer;
  if (ringcast_writer_create_ex(&options, &writer) != 0)
    _exit(fail("writer", 0, ringcast_last_error()));
  strcpy(handle, ringcast_writer_handle(writer));
  if (write(ends[1], handle, sizeof handle) != sizeof handle) _exit(1);
  int result = be_writer(writer, readers);
  ringcast_writer_close(writer);
  _exit(result);
}

/* ---- The whole ------------------------------------------------------------------------------- */

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t checked_by_all(uint32_t readers) {
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < readers; i++) {
    uint64_t one = atomic_load_explicit(&board->participants[i].frames, memory_order_relaxed);
    if (one < least) least = one;
  }
  return least;
}

static uint64_t steps_of_all(void) {
  uint64_t sum = 0;
  for (int i = 0; i <= MOST_READERS; i++)
    sum += atomic_load_explicit(&board->participants[i].frames, memory_order_relaxed);
  return sum;
}

/* Until all have ended: a progress line every ten seconds, the sign to stop when the time is up.
 * How many failed. */
static int watch(uint32_t readers, double seconds, bool quiet) {
  double began = now_s(), next = 10, moved = 0;
  uint64_t steps = 0;
  uint32_t ended = 0;
  int failed = 0, status;
  while (ended < readers + 1) {
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      ended++;
      failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
      if (failed) atomic_store(&board->stop, true);
      continue;
    }
    double passed = now_s() - began;
    if (passed >= seconds) atomic_store(&board->stop, true);
    if (steps_of_all() != steps) {
      steps = steps_of_all();
      moved = passed;
    }
    if (passed - moved > HANG_S)
      return fail("all", checked_by_all(readers), "nobody has got on for a minute: it hangs");
    if (passed >= next && !quiet) {
      uint64_t done = checked_by_all(readers);
      printf("soak_frames: %5.0f s  %.3e frames in sequence, %.1f million/s\n", passed,
             (double)done, (double)done / passed / 1e6);
      fflush(stdout);
      next += 10;
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  }
  return failed;
}

static int summarise(uint32_t readers, int failed, double took) {
  uint64_t done = checked_by_all(readers), sent = board->participants[MOST_READERS].frames, sum = 0,
           bytes = 0;
  bool fine = failed == 0 && done == sent && board->participants[MOST_READERS].fine;
  for (uint32_t i = 0; i < readers; i++) {
    sum += board->participants[i].frames;
    bytes += board->participants[i].bytes;
    fine &= board->participants[i].fine && board->participants[i].frames == sent;
  }
  printf("soak_frames: %" PRIu64 " frames sent in sequence, %" PRIu64
         " checked by each of %u readers (%" PRIu64 " checks, %" PRIu64
         " MiB), %.0f s, %.1f million/s: %s\n",
         sent, done, readers, sum, bytes >> 20, took, (double)done / took / 1e6,
         fine ? "all whole" : "FAILED");
  return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}

static uint64_t number_of(const char *option, const char *text) {
  char *end = NULL;
  double number = text ? strtod(text, &end) : 0; /* 1e10, too */
  if (text && end != text && *end == '\0' && number >= 1 && number <= 1e18) return (uint64_t)number;
  fprintf(stderr, "soak_frames: %s takes a whole number of 1 or more, not '%s'\n", option,
          text ? text : "");
  exit(2);
}

int main(int count, char **words) {
  double seconds = 1e18;
  cpu_set_t cpus;
  bool quiet = false;
  int usable = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 2;
  uint32_t readers = usable <= 2 ? 1 : usable > 4 ? 3 : (uint32_t)usable - 1;
  for (int i = 1; i < count; i++) {
    const char *word = words[i];
    if (strcmp(word, "--quiet") == 0) quiet = true;
    else if (strcmp(word, "--frames") == 0) frames = number_of(word, words[++i]);
    else if (strcmp(word, "--seconds") == 0) seconds = (double)number_of(word, words[++i]);
    else if (strcmp(word, "--readers") == 0) readers = (uint32_t)number_of(word, words[++i]);
    else {
      fprintf(stderr, "usage: soak_frames [--frames N] [--seconds N] [--readers 1..%d] [--quiet]\n",
              MOST_READERS);
      return 2;
    }
  }
  if (readers > MOST_READERS) readers = MOST_READERS;
  if (frames == UINT64_MAX && seconds > 1e17) seconds = 60;
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED) return fail("main", 0, strerror(errno));
  double began = now_s();
  if (start_writer(readers) < 0) return fail("main", 0, "could not start the parties");
  int failed = watch(readers, seconds, quiet);
  return summarise(readers, failed, now_s() - began);
}
