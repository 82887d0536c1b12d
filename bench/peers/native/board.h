/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board: shared memory of the program and the members of a run. The board holds the step to run, a barrier, a seat
 * for each member, and the times. The board is a memfd: a member started by mpiexec can map a memfd by /proc.
 */
#ifndef PEERS_BOARD_H
#define PEERS_BOARD_H

#include <stdatomic.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "way.h"

enum { PEERS_LINE = 64, PEERS_SEATS = 16, PEERS_BLOB = 4096, PEERS_NAME = 48, PEERS_TEXT = 400 };

struct peers_step {
  char way[PEERS_NAME], scenario[PEERS_NAME];
  uint64_t bytes, messages, warm_up; /* messages: measured, after the warm-up */
  uint32_t processes;
};

struct peers_blob {
  _Atomic uint32_t bytes; /* plus one; 0: not yet published */
  uint8_t data[PEERS_BLOB];
};

struct peers_seat {
  _Alignas(PEERS_LINE) _Atomic uint64_t read; /* messages read by the member */
  _Alignas(PEERS_LINE) _Atomic int32_t pid;
  _Atomic uint32_t failed; /* the reason is whole */
  char reason[PEERS_TEXT];
  uint64_t lost, torn;   /* messages of a lossy way */
  double cpu_s;          /* from `begin` to `finish` */
  int64_t begin, finish; /* clock_ns: the end of the warm-up, and of the scenario */
  double rss_mb;
  int64_t end; /* when the last message was read */
  struct peers_blob blobs[2];
};

struct board {
  struct peers_step step;
  uint64_t room;    /* bytes of the whole board */
  uint64_t entries; /* of a column: an entry for each message, or a single entry where messages go back to back */
  uint64_t sum;     /* of a message with the number 0 */
  uint64_t measured, rounds; /* messages after the warm-up, one way and there and back: the clock may end a run early */
  uint32_t run, cpus;
  int32_t pid; /* of the program */
  bool tsc;
  bool both;             /* there is a stream in each direction */
  _Atomic uint64_t sent; /* messages back to back, with the warm-up; 0: not yet the last */
  char version[PEERS_TEXT], failure[PEERS_TEXT];
  double line_ticks[2]; /* half the round trip of a bare line between ranks 0 and 1, before and after the scenario */
  _Alignas(2 * PEERS_LINE) _Atomic uint64_t line;
  _Alignas(2 * PEERS_LINE) _Atomic uint32_t arrived;
  _Alignas(PEERS_LINE) _Atomic uint32_t phase;
  struct peers_seat seats[PEERS_SEATS];
  _Alignas(PEERS_LINE) int64_t times[]; /* see the columns below */
};

/* Columns of times, each of `entries`: started, written, round (in both directions), then for each member
 * when the member has read the message. */
enum { COLUMN_STARTED, COLUMN_WRITTEN, COLUMN_ROUND, COLUMN_READ };

static inline int64_t *board_column(struct board *board, uint32_t column) {
  return board->times + column * board->entries;
}

struct board *board_make(const struct peers_step *step, int *fd);
struct board *board_map(const char *path);
void board_unmake(struct board *board, int fd);
bool board_tsc_is_invariant(void);
uint32_t board_cpus(void); /* allowed to the calling process */

/* From the first end of a member's warm-up to the last member's end. */
double board_seconds(const struct board *board);

/* Measures board->line_ticks[which], by ranks 0 and 1. On a virtual machine the host moves the CPUs, and a line can
 * cost 25 ns in one second and 180 ns in the next: figures are comparable where the lines are alike. */
void board_measure_line(struct board *board, uint32_t rank, int which);

/* Waits until all members are here. */
void board_barrier(struct board *board, bool oversubscribed);

static inline int64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The fence holds the clock back until the message's last word is read. */
static inline int64_t board_ticks(const struct board *board) {
#if defined(__x86_64__)
  if (board->tsc) {
    _mm_lfence();
    return (int64_t)__rdtsc();
  }
#endif
  (void)board;
  return clock_ns();
}

#endif
