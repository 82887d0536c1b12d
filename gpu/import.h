/* SPDX-License-Identifier: Apache-2.0 */
/* A writer's pool as one reader has it open. */
#ifndef RC_GPU_IMPORT_H
#define RC_GPU_IMPORT_H

#include <pthread.h>

#include "channel/channel.h"
#include "gpu/segment.h"

/* What this reader reads of a slot. Guarded by the mutex. */
struct rc_taken {
  uint64_t generation; /* 0: nothing yet */
  rc_cu_stream stream;
  uint32_t holds; /* tensors that lie in the pool */
  bool open;      /* the take has not ended */
  bool acked;     /* `ack` is enqueued, or stored, or owed */
  /* The watcher is to see to `ack`; SOON: it is at it. */
  enum { RC_OWES_NOTHING = 0, RC_OWES_ACK, RC_OWES_ACK_SOON } owed;
};

struct rc_import {
  struct rc_device device;
  struct rc_gpu_segment segment;
  rc_cu_ptr pool;
  uint64_t pool_bytes;
  bool by_handle;    /* CUDA has opened it; else it is this process's own */
  uint64_t owner;    /* of the reader in the ring, and ... */
  uint32_t consumer; /* ... its slot */
  uint32_t turn;     /* of its place */
  uint32_t forks;
  struct rc_taken *taken;   /* of each slot */
  uint32_t acking;          /* threads that are enqueuing an `ack`; guarded by the mutex */
  bool is_settling;         /* a thread sees to what is owed; guarded by the mutex */
  struct rc_seldom seldom;  /* that thread's */
  bool is_looking, to_look; /* one looks at the device, and is to look again; guarded by the mutex */
  pthread_mutex_t mutex;
  pthread_cond_t change;    /* of `ended` */
  _Atomic uint32_t dead;    /* the writer has died, or its device has failed */
  _Atomic uint32_t missing; /* something that a stream waited for was released, and never came */
  _Atomic uint32_t closing; /* the reader has closed */
  _Atomic uint32_t holders; /* the reader, the watcher, and each tensor that lies in the pool */
  bool unmapped;            /* guarded by the mutex: the words are not to be looked at any more */
  bool ended;               /* guarded by the mutex: all is closed */
  struct rc_import *before; /* the reader's: the one that it had before this one, closed */
  /* The watcher's. */
  struct rc_waiter waiter;
  struct rc_watch writer;
  struct rc_cpus cpus;
};

static inline struct rc_gpu_consumer *rc_import_place(const struct rc_import *import) {
  return &rc_gpu_control(&import->segment)->consumers[import->consumer];
}
static inline uint64_t rc_import_lock_of(const struct rc_import *import) {
  return rc_gpu_lock_of(&import->segment, import->consumer, import->turn);
}
static inline struct rc_word *rc_import_ack(const struct rc_import *import, uint32_t slot) {
  return rc_gpu_ack(&import->segment, slot, import->consumer);
}
static inline rc_cu_ptr rc_import_address(const struct rc_import *import, uint64_t at) {
  return import->segment.address + at;
}

/* ---- opening.c ---- */

/* Opens the pool that the reader's control page tells of, tries it, and tells the writer. 0; -ENOENT: there is none
 * now; -EAGAIN: not yet (the place is another's still); else why it can't be, with its text: the writer is told, too.
 * `device`'s context is current. */
int rc_import_open(ringcast_reader *reader, const struct rc_device *device, const struct rc_gpu_place *place,
                   struct rc_import **out);
/* One holder less. */
void rc_import_drop(struct rc_import *import);
/* The writer shall know why this reader does without, and not wait for it to come round. */
void rc_import_refuse(struct rc_import *import, int failed);
/* For the watcher: closes all. */
void rc_import_finish(struct rc_import *import);

/* ---- import.c ---- */

/* -EPIPE: what a frame has in the pool went with its writer. */
int rc_import_fail_dead(void);

/* The reader does without it. It is closed as soon as this reader's streams, and who holds tensors in it, have done;
 * that is waited for a second at most. The reader holds it still. */
void rc_import_close(struct rc_import *import);

/* Notes that a frame is being read: before anything is enqueued, so that the watcher releases it if it comes to that.
 * -EPIPE, -EPROTO. */
int rc_import_take(struct rc_import *import, uint32_t slot, uint64_t generation, rc_cu_stream stream);
/* Takes that back, as nothing was enqueued: it may be taken again, or passed. */
void rc_import_forget(struct rc_import *import, uint32_t slot);
/* The take, if it is the one that is open, has ended; `ack` is enqueued unless tensors are held. `has_entered`: the
 * context is current, and the stream was seen not to capture. Gives CUDA's result of that; where it can't be, the
 * watcher sees to it. */
rc_cu_result rc_import_end(struct rc_import *import, uint32_t slot, uint64_t generation, bool has_entered);
/* U4. Not while the stream captures a graph. The context is current. */
rc_cu_result rc_import_enqueue_ack(const struct rc_import *import, uint32_t slot, const struct rc_taken *taken);
/* Nothing was enqueued for it, and nothing will be: it counts as read. */
void rc_import_pass(struct rc_import *import, uint32_t slot, uint64_t generation);
/* A tensor more, or less, that lies in the slot. */
bool rc_import_hold(struct rc_import *import, uint32_t slot, uint64_t generation);
void rc_import_unhold(struct rc_import *import, uint32_t slot);

/* Whether the writer counts on this reader for a frame at that position. */
bool rc_import_counts(const struct rc_import *import, uint64_t position);

/* Whether something that a stream of this reader waited for was released, and never came. */
bool rc_import_is_missing(struct rc_import *import);
/* The same of one that is closed, whose words may be gone by now. *has_ended: its streams have done, and so it will
 * stay. */
bool rc_import_was_missing(struct rc_import *import, bool *has_ended);

/* Nothing works any more on this device: what streams waited for is not waited for, and the writer is told. */
void rc_import_lose(struct rc_import *import, int reason);

/* For the watcher: the writer is dead; all is done with, and can be closed. */
void rc_import_mark_dead(struct rc_import *import);
bool rc_import_is_idle(struct rc_import *import);

/* ---- watcher.c ---- */

/* Starts the thread that sees to the writer's death, and to closing. -ENOMEM: there is none to be
 * had; not -EAGAIN, by which the writer takes the device for busy. */
int rc_watcher_start(struct rc_import *import);
/* A thread that nobody joins, and that gets no signals. 0, or what pthread_create gave. */
int rc_thread_start(void *(*body)(void *), void *context);
/* It is to look. */
static inline void rc_watcher_wake(struct rc_import *import) { rc_wake(&rc_gpu_control(&import->segment)->attention); }

#endif
