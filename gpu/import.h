/* SPDX-License-Identifier: Apache-2.0 */
/* One reader's import of a writer's pool. */
#ifndef RC_GPU_IMPORT_H
#define RC_GPU_IMPORT_H

#include <pthread.h>

#include "channel/channel.h"
#include "gpu/pool.h"
#include "gpu/worker.h"

/* This reader's last take of a slot. Guarded by the mutex. */
struct rc_taken {
  uint64_t generation; /* 0: no take yet */
  rc_cu_stream stream;
  uint32_t holds; /* tensors that are read in place */
  bool open;      /* the take has not ended */
  bool acked;     /* `ack` is enqueued, or stored, or pending */
  bool pending;   /* the stream captured a graph when `ack` was to be enqueued */
};

struct rc_import {
  struct rc_device device;
  struct rc_gpu_segment segment;
  rc_cu_ptr pool;
  uint64_t pool_bytes;
  bool by_handle;    /* CUDA has opened the pool; else this process has allocated the pool */
  uint64_t owner;    /* of the reader in the ring, and ... */
  uint32_t importer; /* ... its slot */
  uint32_t turn;     /* of the importer's place */
  uint32_t forks;
  struct rc_taken *taken; /* of each slot */
  uint32_t acking;        /* threads that are enqueuing an `ack`; guarded by the mutex */
  uint32_t pending;       /* the number of pending `ack`s; guarded by the mutex */
  pthread_mutex_t mutex;
  _Atomic uint32_t dead;    /* the writer has died, or its pool has failed */
  _Atomic uint32_t missing; /* a stream's wait was released, and the tensors never came */
  /* A call of the driver has failed, and the reader goes on without the pool. */
  _Atomic uint32_t failed;
  _Atomic uint32_t holders; /* the reader, the worker, and each tensor that is read in place */
  bool closing;             /* guarded by the mutex: the reader has closed */
  bool posted;              /* guarded by the mutex: the worker has the import */
  bool unmapped;            /* guarded by the mutex: the semaphores must not be read any more */
  struct rc_import *before; /* the reader's earlier import, closed */
  struct rc_watched writer;
  struct rc_job acks; /* enqueues the pending `ack`s */
  struct rc_job job;  /* closes the import */
  int64_t looked;     /* the job's */
};

/* Opens the pool that the ring's control page names, tries the pool, and stores the result for the
 * writer. 0; -ENOENT: there is no pool now; -EAGAIN: not yet (a closed reader still has the place);
 * else the reason, with the error text. `device`'s context is current. */
int rc_import_open(ringcast_reader *reader, const struct rc_device *device,
                   const struct rc_gpu_place *place, struct rc_import **out);

/* Drops one holder; the last one frees the import. */
void rc_import_drop(struct rc_import *import);

/* Hands the import to the worker, which closes the import once the reader's streams are done, and
 * no tensor is read in place. The call waits for the worker for at most `patience_ns`. The reader
 * stays a holder. */
void rc_import_close(struct rc_import *import, int64_t patience_ns);

/* Records a take before the wait is enqueued, so that a death of the writer releases the wait.
 * -EPIPE, -EPROTO. */
int rc_import_take(struct rc_import *import, uint32_t slot, uint64_t generation,
                   rc_cu_stream stream);
/* Removes the record, as nothing was enqueued: the frame may be taken again, or passed. */
void rc_import_forget(struct rc_import *import, uint32_t slot);
/* Ends the take of that generation, if open, and enqueues `ack` unless tensors are read in place.
 * The context is current, and the stream does not capture. Returns CUDA's result. */
rc_cu_result rc_import_end(struct rc_import *import, uint32_t slot, uint64_t generation);
/* Acknowledges a frame for which nothing was enqueued. */
void rc_import_pass(struct rc_import *import, uint32_t slot, uint64_t generation);
/* One more tensor of the slot, which has an open take, or one less, is read in place. */
void rc_import_hold(struct rc_import *import, uint32_t slot);
void rc_import_unhold(struct rc_import *import, uint32_t slot);

/* Whether the writer expects this reader to read a frame at the position. */
bool rc_import_is_expected(const struct rc_import *import, uint64_t position);

/* Whether a wait of this reader's streams was released, and the tensors never came. *has_ended,
 * unless NULL: the import is closed and the streams are done, so the answer is final. */
bool rc_import_is_missing(struct rc_import *import, bool *has_ended);

/* A call of the driver failed: the reader leaves the pool. If the device is lost, the received
 * frames of the pool count as missing, and the writer does not wait for this reader's streams. */
void rc_import_lose(struct rc_import *import, int reason);

#endif
