/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device segment: every byte that a writer's device pool shares with the readers, except the
 * pool itself. The segment is a file that all processes may write, found by way of
 * rc_control.device. Each process registers the file with the driver, as streams wait for
 * semaphores in the file.
 *
 * Glossary
 *   pool        device memory of the writer, allocated once, exported once
 *   slot        of the pool: a place for the tensors of one frame, and the semaphores of the place
 *   generation  how often a slot was used; from 1 on
 *   importer    a reader that has opened the pool; the number is the reader's slot in the ring
 *   epoch       the number of the pool; a later pool of the ring has a different epoch
 *
 * A slot has one semaphore `ready`, which the writer's stream writes, and one semaphore `ack` for
 * each importer, which the importer's stream writes. Behind the slots' semaphores each importer has
 * two for the trial at open.
 */
#ifndef RC_GPU_LAYOUT_H
#define RC_GPU_LAYOUT_H

#include "gpu/device.h"

#define RC_GPU_MAGIC     0x6c6f6f7070636772u /* "rgcppool", little-endian */
#define RC_GPU_READY     1u
#define RC_GPU_MAX_SLOTS 1024u
#define RC_GPU_ALIGN     256u                /* of a tensor in the pool */
#define RC_GPU_GRANULE   ((uint64_t)2 << 20) /* what device memory is allocated in */
/* Bytes behind the pool that readers read at open, as a trial. */
#define RC_GPU_PATTERN  RC_GPU_ALIGN
#define RC_GPU_MAX_POOL ((uint64_t)1 << 40)

/* Written once, before ready. */
struct rc_gpu_identity {
  uint64_t magic;
  uint32_t layout; /* RC_GPU_LAYOUT */
  _Atomic uint32_t ready;
  uint64_t token[2]; /* the ring's */
  uint32_t epoch, slots, importers, unused;
  uint64_t pool_bytes; /* for tensors; the pattern is behind these bytes */
  uint8_t uuid[16];
  rc_cu_ipc_handle handle;
  uint64_t seed; /* of the pattern */
  uint64_t reserved[14];
};

struct rc_gpu_importer {
  /* Written by the importer: */
  /* The importer's owner word in the ring; 0: the place is free. */
  _Alignas(RC_LINE) _Atomic uint64_t owner;
  _Atomic uint64_t opened;  /* the owner word, once the importer has opened and tried the pool */
  _Atomic uint64_t refused; /* the owner word of a reader that can't open the pool, and ... */
  _Atomic int32_t reason;   /* ... why: CUDA's result, or a negative errno; for error texts only */
  _Atomic uint32_t turn;    /* how often the place was taken */
  /* Written by the writer, which expects the importer of this turn to read, from this position of
   * the ring on: */
  _Alignas(RC_LINE) _Atomic uint32_t expected_turn;
  uint32_t reserved;
  _Atomic uint64_t expected_from;
};

struct rc_gpu_control {
  struct rc_gpu_identity id;
  /* 1: set by a writer with a failed pool, or by a reader of a dead writer. */
  _Alignas(RC_LINE) _Atomic uint32_t dead;
  _Atomic uint32_t closed;            /* 1: set by the writer */
  struct rc_gpu_importer importers[]; /* the semaphores follow */
};

_Static_assert(sizeof(struct rc_gpu_identity) == 4 * (size_t)RC_LINE, "identity: four lines");
_Static_assert(sizeof(struct rc_gpu_importer) == 2 * (size_t)RC_LINE, "importer: two lines");
_Static_assert(offsetof(struct rc_gpu_control, dead) == 256, "dead");
_Static_assert(offsetof(struct rc_gpu_control, importers) == 320, "importers");
_Static_assert(sizeof(struct rc_gpu_control) % RC_LINE == 0, "the importers begin on a line");

#define RC_GPU_LAYOUT_REVISION 3ull
#define RC_GPU_LAYOUT                                                                        \
  ((uint32_t)(RC_GPU_LAYOUT_REVISION * 0x1000003u ^ sizeof(struct rc_gpu_control) * 0x101u ^ \
              sizeof(struct rc_gpu_importer) * 0x10001u ^ RC_GPU_PATTERN * 0x11ull))

/* Offsets from the segment's start. `slots` and `importers` are within bounds. */
static inline uint64_t rc_gpu_semaphores_at(uint32_t importers) {
  return sizeof(struct rc_gpu_control) + (uint64_t)importers * sizeof(struct rc_gpu_importer);
}
static inline uint64_t rc_gpu_ready_at(uint32_t importers, uint32_t slot) {
  return rc_gpu_semaphores_at(importers) +
         (uint64_t)slot * (1 + importers) * sizeof(struct rc_semaphore);
}
static inline uint64_t rc_gpu_ack_at(uint32_t importers, uint32_t slot, uint32_t importer) {
  return rc_gpu_ready_at(importers, slot) + (1 + (uint64_t)importer) * sizeof(struct rc_semaphore);
}
static inline uint64_t rc_gpu_try_at(uint32_t slots, uint32_t importers, uint32_t importer) {
  return rc_gpu_ready_at(importers, slots) + 2 * (uint64_t)importer * sizeof(struct rc_semaphore);
}
static inline uint64_t rc_gpu_segment_bytes(uint32_t slots, uint32_t importers) {
  return rc_gpu_try_at(slots, importers, importers);
}

/* Number i of the pattern. Neither zeros nor the pattern of an earlier pool match. */
static inline uint64_t rc_gpu_pattern(uint64_t seed, uint32_t i) {
  uint64_t x = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  return x ^ x >> 27;
}

#endif
