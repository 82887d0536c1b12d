/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board: shared memory of the program and the members of a run. It holds the step to run, a
 * barrier, a seat for each member, and the times. It is a memfd: a member that mpiexec has started
 * maps it by /proc.
 */
#ifndef PEERS_BOARD_H
#define PEERS_BOARD_H

#include <stdatomic.h>
#include <time.h>

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
  _Alignas(PEERS_LINE) _Atomic uint64_t read;   /* messages read by the member */
  _Alignas(PEERS_LINE) _Atomic uint32_t failed; /* the reason is whole */
  char reason[PEERS_TEXT];
  double cpu_s;               /* from `begin` to `finish` */
  int64_t begin, finish;      /* clock_ns: the end of the warm-up, and of the scenario */
  struct peers_blob blobs[2]; /* of an instance each */
};

struct board {
  struct peers_step step;
  uint64_t entries;  /* of a column */
  uint64_t sum;      /* of a message with the number 0 */
  uint64_t measured; /* messages after the warm-up: the clock may end a run early */
  uint32_t cpus;
  int32_t pid; /* of the program */
  bool both;   /* there is a stream in each direction */
  char version[PEERS_TEXT];
  double line_ns[2]; /* half the round trip of a bare line, before and after the scenario */
  _Alignas(2 * PEERS_LINE) _Atomic uint64_t line;
  _Alignas(2 * PEERS_LINE) _Atomic uint32_t arrived;
  _Alignas(PEERS_LINE) _Atomic uint32_t phase;
  struct peers_seat seats[PEERS_SEATS];
  _Alignas(PEERS_LINE) int64_t times[]; /* see the columns below */
};

/* Columns of times, each of `entries`: when a write began and ended, or how long a block of round
 * trips took; then for each member when it has read the message. */
enum { COLUMN_STARTED, COLUMN_WRITTEN, COLUMN_READ };

static inline int64_t *board_column(struct board *board, uint32_t column) {
  return board->times + column * board->entries;
}

struct board *board_make(const struct peers_step *step, int *fd);
struct board *board_map(const char *path);

/* Measures board->line_ns[which], by ranks 0 and 1. On a virtual machine the host moves the CPUs,
 * and a line can cost 25 ns in one second and 180 ns in the next: figures are comparable where the
 * lines are alike. */
void board_measure_line(struct board *board, uint32_t rank, int which);

/* Waits until all members are here. */
void board_barrier(struct board *board);

static inline int64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The ends of a run, before prepare. */
void member_ends(struct board *board, const struct way *way, struct end *there, struct end *back);

/* Runs the board's step as member `rank`, and returns at the end. */
void member_run(struct board *board, const struct end *there, const struct end *back,
                uint32_t rank);

bool scenario_exists(const char *name);

enum { ROUNDS = 100 }; /* round trips in a block */

#endif
