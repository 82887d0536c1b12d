/* SPDX-License-Identifier: Apache-2.0 */
/* One process (or thread) of a run. */
#ifndef PEERS_MEMBER_H
#define PEERS_MEMBER_H

#include "board.h"

struct member {
  struct board *board;
  struct peers_seat *seat;
  struct end there, back; /* back: the stream from rank 1 to rank 0, if board->both */
  uint8_t *source;        /* the contents to write; NULL: the member only reads */
  uint64_t sum;           /* of a message with the number 0 */
  double cpu_before;      /* when the warm-up ended */
};

/* Runs the board's step as member `rank`, and returns at the end. `there` and `back` are as prepared. */
void member_run(struct board *board, const struct end *there, const struct end *back, uint32_t rank);

/* The ends of a run, before prepare. */
void member_ends(struct board *board, const struct way *way, struct end *there, struct end *back);

/* Fills `bytes` with the contents of a message; the first word, the number, is 0. */
void member_fill(uint8_t *data, size_t bytes);

/* The warm-up is over: the time and the CPU time so far do not count. */
void member_start_measuring(struct member *member);

#endif
