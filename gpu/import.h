/* SPDX-License-Identifier: Apache-2.0 */
/* A writer's pool as one reader has it open. */
#ifndef RC_GPU_IMPORT_H
#define RC_GPU_IMPORT_H

#include <pthread.h>

#include "channel/channel.h"
#include "gpu/segment.h"
#include "gpu/watcher.h"
#include "gpu/worker.h"

/* What this reader reads of a slot. Guarded by the mutex. */
struct rc_taken {
  uint64_t generation; /* 0: nothing yet */
  rc_cu_stream stream;
  uint32_t holds; /* tensors that lie in the pool */
  bool open;      /* the take has not ended */
  bool acked;     /* `ack` is enqueued, or stored, or pending */
  bool pending;   /* the stream captured a graph when `ack` was to be enqueued */
};

struct rc_import {
  struct rc_device device;
  struct rc_gpu_segment segment;
  rc_cu_ptr pool;
  uint64_t pool_bytes;
  bool by_handle;    /* CUDA has opened the pool; else the pool is this process's own */
  uint64_t owner;    /* of the reader in the ring, and ... */
  uint32_t consumer; /* ... its slot */
  uint32_t turn;     /* of its place */
  uint32_t forks;
  struct rc_taken *taken; /* of each slot */
  uint32_t acking;        /* threads that are enqueuing an `ack`; guarded by the mutex */
  pthread_mutex_t mutex;
  _Atomic uint32_t dead;    /* the writer has died, or its pool has failed */
  _Atomic uint32_t missing; /* something that a stream waited for was released, and never came */
  _Atomic uint32_t failed;  /* a call of the driver's has failed, and the reader goes on without the pool */
  _Atomic uint32_t pending; /* how many `ack`s are */
  _Atomic uint32_t holders; /* the reader, the worker, and each tensor that lies in the pool */
  bool closing;             /* guarded by the mutex: the reader has closed */
  bool posted;              /* guarded by the mutex: the worker closes it */
  bool unmapped;            /* guarded by the mutex: nothing may look at the words any more */
  bool ended;               /* guarded by the mutex: all is closed */
  struct rc_import *before; /* the reader's: the import that the reader had before this one, closed */
  struct rc_watched writer;
  struct rc_job job;
  int64_t looked; /* the job's */
};

static inline struct rc_gpu_consumer *rc_import_place(const struct rc_import *import) {
  return &rc_gpu_control(&import->segment)->consumers[import->consumer];
}
static inline struct rc_word *rc_import_ack(const struct rc_import *import, uint32_t slot) {
  return rc_gpu_ack(&import->segment, slot, import->consumer);
}
static inline rc_cu_ptr rc_import_address(const struct rc_import *import, uint64_t at) {
  return import->segment.address + at;
}

/* ---- opening.c ---- */

/* Opens the pool that the reader's control page names, tries it, and tells the writer. 0; -ENOENT: there is none now;
 * -EAGAIN: not yet (another reader still has the place); else why it can't be opened, with its text: the writer is
 * told, too. `device`'s context is current. */
int rc_import_open(ringcast_reader *reader, const struct rc_device *device, const struct rc_gpu_place *place,
                   struct rc_import **out);

/* ---- import.c ---- */

struct rc_import *rc_import_new(ringcast_reader *reader);
/* One holder less. */
void rc_import_drop(struct rc_import *import);

/* Leaves the place in the segment. Release: pairs with the acquire of the next taker, and of the writer. */
void rc_import_leave_place(struct rc_import *import);
/* Closes what was opened, the place last. The context is current. */
void rc_import_close_all(struct rc_import *import);
/* Tells the writer why this reader does without the pool, so that the writer does not wait for the reader. */
void rc_import_refuse(struct rc_import *import, int failed);

/* -EPIPE: what a frame has in the pool went with its writer. */
int rc_import_fail_dead(void);

/* The reader does without it. The worker closes it as soon as this reader's streams, and all that hold tensors in it,
 * have done; the call waits for that for rc_gpu_close_ns at most. The reader holds it still. */
void rc_import_close(struct rc_import *import);

/* Notes that a frame is being read: before anything is enqueued, so that a death of the writer releases the wait.
 * -EPIPE, -EPROTO. */
int rc_import_take(struct rc_import *import, uint32_t slot, uint64_t generation, rc_cu_stream stream);
/* Takes that back, as nothing was enqueued: the frame may be taken again, or passed. */
void rc_import_forget(struct rc_import *import, uint32_t slot);
/* The take, if it is the one that is open, has ended; `ack` is enqueued unless tensors are held. `has_entered`: the
 * context is current, and the stream was seen not to capture. Returns CUDA's result of that. */
rc_cu_result rc_import_end(struct rc_import *import, uint32_t slot, uint64_t generation, bool has_entered);
/* Nothing was enqueued for the frame, and nothing will be: it counts as read. */
void rc_import_pass(struct rc_import *import, uint32_t slot, uint64_t generation);
/* A tensor more, or less, that lies in the slot. */
bool rc_import_hold(struct rc_import *import, uint32_t slot, uint64_t generation);
void rc_import_unhold(struct rc_import *import, uint32_t slot);
/* Enqueues each `ack` whose stream captured a graph when the `ack` was due, and does not any more. */
void rc_import_ack_pending(struct rc_import *import);

/* Whether the writer counts on this reader for a frame at that position. */
bool rc_import_counts(const struct rc_import *import, uint64_t position);

/* Whether something that a stream of this reader waited for was released, and never came. */
bool rc_import_is_missing(struct rc_import *import);
/* The same of one that is closed, whose words may be gone by now. *has_ended: its streams have done, so the answer is
 * final. */
bool rc_import_was_missing(struct rc_import *import, bool *has_ended);

/* A call of the driver failed: the reader leaves the pool. If the device is lost, what was received of the pool counts
 * as missing, and the writer waits for none of this reader's streams. */
void rc_import_lose(struct rc_import *import, int reason);

/* The writer is dead: releases all that streams of this reader wait for. Calls nothing of the driver. */
void rc_import_mark_dead(struct rc_import *import);

#endif
