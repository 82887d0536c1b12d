/* SPDX-License-Identifier: Apache-2.0 */
/* The two ends of a ring with device tensors, in processes of their own, and what the writer and its readers tell each
 * other beside it. The tensors are patterns; a frame's tag says which. */
#ifndef TESTS_GPU_ENDS_H
#define TESTS_GPU_ENDS_H

#include "ringcast/gpu.h"
#include "tests/gpu/probe.h"

enum { PAGE = 4096, BYTES = 1 << 20, SEEDS = 8, MOST_READERS = 3 };
static const int64_t LIMIT_NS = 20000000000;
static const uint64_t BOUND_NS = 20000000000; /* of a kernel that nobody releases */

/* ---- A reader --------------------------------------------------------------------------------------------------- */

struct job {
  uint32_t *spin; /* on a page of its own */
  bool says_enqueued, on_null_stream;
};

struct opened {
  struct gpu gpu;
  ringcast_reader *ring;
  ringcast_gpu_reader *reader;
  rc_cu_ptr mine;
};

struct opened open_reader(struct helper *writer); /* who tells the handle */
void close_reader(struct opened *opened);
int say_attached(struct helper *me); /* how many it is to read */

/* Enqueues all of it; returns the tag. Every third tensor is read where it lies, if it is in the pool. */
uint32_t read_one(struct opened *opened, int number);
void tell_wrong(struct helper *me, struct opened *opened, uint32_t seed); /* how many bytes; waits */

/* A reader's whole life: as many as it is told, of a `struct job`. */
void read_all(struct helper *me, void *context);

/* ---- The writer ------------------------------------------------------------------------------------------------- */

struct world {
  struct gpu gpu;
  ringcast_writer *ring;
  ringcast_gpu_writer *writer;
  rc_cu_ptr source, patterns[SEEDS], filler, spin_address;
  uint32_t *spin;
  uint32_t sent;
};

struct world open_writer(uint32_t *spin, uint64_t pool_bytes, uint32_t flags);
void close_writer(struct world *world);
struct ringcast_gpu_info info_of(struct world *world);

/* On the stream: the next pattern to the tensor, the send, and other bytes to the tensor again. */
int try_to_send(struct world *world, uint32_t flags);
void send_one(struct world *world);

void tell_handle(struct world *world, struct helper *reader);
void introduce(struct world *world, struct helper *helpers, int readers, int count);
void hear_all(struct helper *helpers, int readers); /* of each that no byte is wrong */

/* Ends those that `read_all`, and the writer; all has to have gone by the pool, waited for by nobody. Returns the
 * writer's counts. */
struct ringcast_gpu_info finish(struct world *world, struct helper *helpers, int readers);

#endif
