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

/* ---- The board's life ------------------------------------------------------------------------ */

static struct board *map_or_exit(int fd, size_t bytes) {
  void *memory = MAP_FAILED;
  if (fd >= 0) memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory != MAP_FAILED) return memory;
  fprintf(stderr, "peers_native: no board of %zu bytes: %s\n", bytes, strerror(errno));
  exit(1);
}

struct board *board_make(const struct peers_step *step, int *fd) {
  cpu_set_t allowed;
  uint64_t entries = strcmp(step->scenario, "stream") == 0 ? 1 : step->messages;
  size_t bytes = sizeof(struct board) + (COLUMN_READ + step->processes) * entries * sizeof(int64_t);
  *fd = memfd_create("peers-board", MFD_CLOEXEC);
  if (*fd >= 0 && ftruncate(*fd, (off_t)bytes) != 0) *fd = -1;
  struct board *board = map_or_exit(*fd, bytes);
  board->step = *step;
  board->entries = entries;
  board->cpus = 1;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    board->cpus = (uint32_t)CPU_COUNT(&allowed);
  board->pid = getpid();
  return board;
}

struct board *board_map(const char *path) {
  struct stat about = {0};
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, &about) != 0) fd = -1;
  return map_or_exit(fd, (size_t)about.st_size);
}

void board_barrier(struct board *board) {
  uint32_t phase = atomic_load_explicit(&board->phase, memory_order_relaxed);
  uint32_t before = atomic_fetch_add_explicit(&board->arrived, 1, memory_order_acq_rel);
  if (before + 1 == board->step.processes) {
    atomic_store_explicit(&board->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&board->phase, phase + 1, memory_order_release);
    return;
  }
  while (atomic_load_explicit(&board->phase, memory_order_acquire) == phase) sched_yield();
}

/* The least of the blocks: other programs may take the CPU in between. */
void board_measure_line(struct board *board, uint32_t rank, int which) {
  enum { BLOCKS = 20, TURNS = 100 };
  uint64_t turn = (uint64_t)which * BLOCKS * TURNS;
  if (rank > 1) return;
  for (int block = 0; block < BLOCKS; block++) {
    int64_t start = clock_ns();
    for (uint64_t end = turn + TURNS; turn < end; turn++) {
      if (turn % 2 == rank) {
        atomic_store_explicit(&board->line, turn + 1, memory_order_release);
        continue;
      }
      while (atomic_load_explicit(&board->line, memory_order_acquire) != turn + 1)
        peers_relax(false);
    }
    double took = (double)(clock_ns() - start) / TURNS;
    if (rank == 0 && (block == 0 || took < board->line_ns[which])) board->line_ns[which] = took;
  }
}

/* ---- What ways use --------------------------------------------------------------------------- */

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
  while (atomic_load_explicit(&blob->bytes, memory_order_acquire) == 0) sched_yield();
  size_t bytes = atomic_load_explicit(&blob->bytes, memory_order_relaxed) - 1;
  if (bytes > room) peers_die(end, "the address of member %u is too long", rank);
  if (bytes > 0) memcpy(data, blob->data, bytes);
  return bytes;
}

const char *peers_stream_name(const struct end *end, char *text, size_t size) {
  snprintf(text, size, "peers-%d-%u", end->board->pid, end->instance);
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

/* Reads a byte of each page. */
void peers_touch(void *memory, size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const volatile uint8_t *data = memory;
  for (size_t at = 0; at < bytes; at += page) (void)data[at];
}

void *peers_memory(const struct end *end, size_t bytes) {
  size_t room = (bytes + PEERS_LINE - 1) / PEERS_LINE * PEERS_LINE;
  void *memory = aligned_alloc(PEERS_LINE, room);
  if (!memory) peers_die(end, "no memory for %zu bytes", bytes);
  memset(memory, 1, room);
  return memory;
}
