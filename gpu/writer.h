/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the writer's side. */
#ifndef RC_GPU_WRITER_H
#define RC_GPU_WRITER_H

#include "gpu/pool.h"
#include "ringcast/gpu.h"
#include "shm/wait.h"

/* An importer that frames expect, in the writer's private memory. */
struct rc_expected {
  uint64_t owner; /* the importer's owner word; 0: no importer was expected here */
  uint64_t from;  /* frames from this position on expect the importer */
  uint32_t turn;  /* of the place: a reader that closes the pool and opens the pool again has the
                     same owner word */
  bool dead;
};

struct ringcast_gpu_writer {
  ringcast_writer *writer;
  struct rc_device device;
  struct rc_exported *exported;     /* NULL: there is no pool */
  struct rc_exported *next;         /* to take its place: in the making, or made; NULL: none */
  struct rc_pool pool;              /* of no slots where there is none */
  uint64_t first_bytes, most_bytes; /* the size of the first pool, and of the largest; 0: no pool */
  uint32_t slots;                   /* of each pool */
  struct rc_holdoff holdoff;        /* of tries to make a pool */
  struct rc_expected *expected;
  uint32_t forks;
  bool is_lost;
  bool registered, tried_to_register; /* the ring */
  uint32_t look_at; /* the number of used slots from which on a lease reclaims slots */
  int64_t asked;    /* the time of the last check which importers live ... */
  int64_t tidied;   /* ... and of that which earlier pools importers have open */
  char why[200];    /* there is no pool, or the pool is lost */
  uint64_t pool_frames, pool_bytes, inline_frames, full, syncs;
};

/* The size of the first pool where none is given: 32 MiB, but in tests. */
extern uint64_t rc_gpu_first_pool;

#endif
