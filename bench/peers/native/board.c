/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "scenarios.h"

/* ---- The board's life ------------------------------------------------------------------------------------------- */

static void *map(int fd, size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

struct board *board_make(const struct peers_step *step, int *fd) {
  static uint32_t runs;
  uint64_t entries = scenario_streams(step) ? 1 : step->messages;
  size_t bytes = sizeof(struct board) + (COLUMN_READ + step->processes) * entries * sizeof(int64_t);
  *fd = memfd_create("peers-board", MFD_CLOEXEC);
  struct board *board = *fd < 0 || ftruncate(*fd, (off_t)bytes) != 0 ? NULL : map(*fd, bytes);
  if (!board) {
    fprintf(stderr, "peers_native: can't make a board of %zu bytes: %s\n", bytes, strerror(errno));
    exit(1);
  }
  board->step = *step;
  board->room = bytes;
  board->entries = entries;
  board->run = runs++;
  board->cpus = board_cpus();
  board->pid = getpid();
  board->tsc = board_tsc_is_invariant();
  return board;
}

struct board *board_map(const char *path) {
  struct stat about;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  struct board *board = fd < 0 || fstat(fd, &about) != 0 ? NULL : map(fd, (size_t)about.st_size);
  if (!board) {
    fprintf(stderr, "peers_native: can't map the board %s: %s\n", path, strerror(errno));
    exit(1);
  }
  close(fd);
  return board;
}

void board_unmake(struct board *board, int fd) {
  munmap(board, board->room);
  close(fd);
}

/* Invariant: one frequency, in all sleep states, for all CPUs. */
bool board_tsc_is_invariant(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
#else
  return false;
#endif
}

uint32_t board_cpus(void) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return (uint32_t)CPU_COUNT(&allowed);
  fprintf(stderr, "peers_native: can't tell the CPUs: %s\n", strerror(errno));
  exit(1);
}

double board_seconds(const struct board *board) {
  int64_t begin = INT64_MAX, finish = 0;
  for (uint32_t rank = 0; rank < board->step.processes; rank++) {
    const struct peers_seat *seat = &board->seats[rank];
    if (seat->begin < begin) begin = seat->begin;
    if (seat->finish > finish) finish = seat->finish;
  }
  return (double)(finish - begin) * 1e-9;
}

void board_barrier(struct board *board, bool oversubscribed) {
  uint32_t phase = atomic_load_explicit(&board->phase, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&board->arrived, 1, memory_order_acq_rel) + 1 == board->step.processes) {
    atomic_store_explicit(&board->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&board->phase, phase + 1, memory_order_release);
    return;
  }
  while (atomic_load_explicit(&board->phase, memory_order_acquire) == phase) peers_relax(oversubscribed);
}

/* The least of the blocks: other programs may take the CPU in between. */
void board_measure_line(struct board *board, uint32_t rank, int which) {
  enum { BLOCKS = 20, ROUNDS = 50 };
  uint64_t turn = (uint64_t)which * BLOCKS * ROUNDS * 2;
  if (rank > 1) return;
  for (int block = 0; block < BLOCKS; block++) {
    int64_t start = board_ticks(board);
    for (uint64_t end = turn + 2 * ROUNDS; turn < end; turn++) {
      if (turn % 2 == rank) atomic_store_explicit(&board->line, turn + 1, memory_order_release);
      else
        while (atomic_load_explicit(&board->line, memory_order_acquire) != turn + 1) peers_relax(false);
    }
    double ticks = (double)(board_ticks(board) - start) / (2 * ROUNDS);
    if (rank == 0 && (block == 0 || ticks < board->line_ticks[which])) board->line_ticks[which] = ticks;
  }
}

/* ---- What ways use ---------------------------------------------------------------------------------------------- */

void peers_die(const struct end *end, const char *format, ...) {
  struct peers_seat *seat = &end->board->seats[end->rank];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(seat->reason, sizeof seat->reason, format, arguments);
  va_end(arguments);
  atomic_store_explicit(&seat->failed, 1, memory_order_release);
  _exit(1);
}

void peers_publish(const struct end *end, const void *data, size_t bytes) {
  struct peers_blob *blob = &end->board->seats[end->rank].blobs[end->instance];
  if (bytes > sizeof blob->data) peers_die(end, "an address of %zu bytes is too long", bytes);
  if (bytes > 0) memcpy(blob->data, data, bytes);
  atomic_store_explicit(&blob->bytes, (uint32_t)bytes + 1, memory_order_release);
}

size_t peers_await(const struct end *end, uint32_t rank, void *data, size_t room) {
  struct peers_blob *blob = &end->board->seats[rank].blobs[end->instance];
  uint32_t bytes;
  while ((bytes = atomic_load_explicit(&blob->bytes, memory_order_acquire)) == 0) sched_yield();
  if (--bytes > room) peers_die(end, "the address of member %u is too long", rank);
  if (bytes > 0) memcpy(data, blob->data, bytes);
  return bytes;
}

const char *peers_stream_name(const struct end *end, char *text, size_t size) {
  snprintf(text, size, "peers-%d-%u-%u", end->board->pid, end->board->run, end->instance);
  return text;
}

void *peers_shared_memory(const struct end *end, size_t bytes) {
  const size_t huge = 2 << 20;
  const int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ANONYMOUS;
  size_t room = (bytes + huge - 1) / huge * huge;
  void *memory = mmap(NULL, room, protection, flags | MAP_HUGETLB, -1, 0);
  if (memory != MAP_FAILED) return memory;
  memory = mmap(NULL, room + huge, protection, flags, -1, 0);
  if (memory == MAP_FAILED) peers_die(end, "can't map %zu bytes: %s", bytes, strerror(errno));
  memory = (void *)(((uintptr_t)memory + huge - 1) / huge * huge);
  madvise(memory, room, MADV_HUGEPAGE); /* advice: small pages do as well */
  peers_touch(memory, bytes);
  return memory;
}

/* Reads a byte of each page, if the kernel has no MADV_POPULATE_WRITE (before Linux 5.14). */
void peers_touch(void *memory, size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *start = (uint8_t *)((uintptr_t)memory / page * page), *end = (uint8_t *)memory + bytes;
#ifdef MADV_POPULATE_WRITE
  if (madvise(start, (size_t)(end - start), MADV_POPULATE_WRITE) == 0) return;
#endif
  for (volatile const uint8_t *at = memory; at < end; at += page) (void)*at;
}

void *peers_memory(const struct end *end, size_t bytes) {
  size_t room = (bytes + PEERS_LINE - 1) / PEERS_LINE * PEERS_LINE;
  void *memory = aligned_alloc(PEERS_LINE, room);
  if (!memory) peers_die(end, "no memory for %zu bytes", bytes);
  memset(memory, 1, room);
  return memory;
}
