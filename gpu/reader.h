/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the reader's side share. */
#ifndef RC_GPU_READER_H
#define RC_GPU_READER_H

#include <errno.h>

#include "gpu/import.h"
#include "ringcast/gpu.h"

/* A frame of the ring that a device still copies from. */
struct rc_deferred {
  struct ringcast_frame frame; /* data NULL: free */
};

/* A take that has not ended, and whose stream was told to read the ring. */
struct rc_ring_take {
  struct ringcast_frame frame;
  rc_cu_stream stream;
  bool used;
  bool marked, pinned; /* of a rest: its word is enqueued; the ring's reader knows of it */
};

/* How many frames are deferred at most, and how many such takes are known; a word for each of both. */
#define RC_GPU_MAX_DEFERRED (RC_MAX_DEFERRED / 2)
#define RC_GPU_MARKS        (2 * RC_GPU_MAX_DEFERRED)

struct ringcast_gpu_reader {
  struct rc_rest rest; /* the first: see rest.c */
  bool is_rest;        /* it has closed, and a device reads the ring still */
  struct rc_seldom seldom; /* its thread's */
  ringcast_reader *reader;
  struct rc_device device;
  struct rc_import *import; /* NULL: no pool is open */
  struct rc_import *before; /* the last of those it had before, whose streams may wait still; NULL: none */
  uint32_t failed;          /* the epoch of a pool that could not be opened when it was last tried; 0: none yet */
  uint32_t refused;         /* the same, and it never can be here */
  int64_t not_before;       /* one that took long in vain is not tried again by frames until then */
  uint32_t forks;
  char why[200];            /* why not, of `failed` */
  /* deferred.c */
  struct rc_word *marks;    /* of deferred frames, then of takes; registered. NULL: not yet, or it can't be */
  rc_cu_ptr marks_address;
  uint64_t mark[RC_GPU_MAX_DEFERRED]; /* what each is waited to reach */
  struct rc_deferred deferred[RC_GPU_MAX_DEFERRED];
  struct rc_ring_take taken[RC_GPU_MAX_DEFERRED];
  bool registered, tried_to_register; /* the ring */
  int64_t asked_ns; /* when it was last asked whether the device is lost that is to read them */
  bool is_behind; /* a whole slack_ns was waited in vain for the device, and it has read no frame since */
  uint32_t stuck; /* takes that are not known, and whose streams may read the ring still: nobody can ask these */
  bool missing; /* as rc_import_was_missing, of those that have ended */
  uint64_t begun[RC_MAX_LEASES]; /* 1 + the position of each frame whose take is open; 0: none */
  uint64_t pool_frames, pool_bytes, inline_frames, opens, syncs;
};

int rc_gpu_reader_enter(const ringcast_gpu_reader *reader, struct rc_cuda_entry *entry);
/* After a failed call, with its code: finds out whether nothing works any more. Returns the code. */
int rc_gpu_reader_failed(ringcast_gpu_reader *reader, int code);

/* The pool that the writer has now, if it can be opened. What is open of an earlier one is closed. Why it can't be now,
 * with its text; 0 also where there is nothing to be opened. The context is current. _look: not again at once what took
 * long in vain. */
void rc_gpu_reader_look_for_pool(ringcast_gpu_reader *reader);
int rc_gpu_reader_open_pool(ringcast_gpu_reader *reader);

/* ---- deferred.c: frames whose bytes are copied to a device from the ring itself ---- */

/* How long is waited for a stream that reads the ring, by a call that has no timeout: ten seconds, but in tests. */
extern int64_t rc_ring_patience_ns;
/* And by the end of a take, so that what is deferred holds no more than a quarter of the ring, and by closing: a
 * second. */
extern int64_t rc_ring_slack_ns;
/* -ETIMEDOUT: after that time it does so still. -EBUSY: it captures a graph by now, and can't be asked. -EIO. The
 * context is current. */
int rc_ring_await(ringcast_gpu_reader *reader, rc_cu_stream stream, int64_t patience_ns);

/* Of these two: the device may read it still. */
static inline bool rc_ring_is_not_yet_read(int failed) { return failed == -ETIMEDOUT || failed == -EBUSY; }

/* Whether the device reads those bytes where they lie, when its stream gets there; else they are read before, or as,
 * the call returns, or when the stream is waited for. The context is current. */
bool rc_ring_is_registered(ringcast_gpu_reader *reader, const void *data, uint64_t bytes);
/* In place of releasing it: it is released once the stream has come as far as it is now. -ETIMEDOUT, -EBUSY: it can't
 * be yet, and nothing was done. With a patience of 0 nothing is waited for. The context is current. */
int rc_deferred_add(ringcast_gpu_reader *reader, const struct ringcast_frame *frame, rc_cu_stream stream,
                    int64_t patience_ns);
/* Releases what is done, and all if it waits for a device that is lost. `slack`: waits until those left lie within so
 * many bytes of the ring, and behind all spilled frames; UINT64_MAX: waits for nothing. -EAGAIN, without a text: they
 * do not yet, and it is `until` (of rc_now_ns). */
int rc_deferred_settle(ringcast_gpu_reader *reader, uint64_t slack, int64_t until);
/* For who waits for frames, and not for the device: the writer may be waiting for what is deferred. */
void rc_deferred_look_for_loss(ringcast_gpu_reader *reader);
/* Releases all, of a device that is lost. */
void rc_deferred_drop(ringcast_gpu_reader *reader);

/* Words by which a stream says how far it has come. False: there are none here. The context is current. */
bool rc_marks_make(ringcast_gpu_reader *reader);
static inline uint32_t rc_marks_bits(const ringcast_gpu_reader *reader) {
  return reader->device.cuda->write_value64 ? 64 : 32;
}

/* ---- rest.c: what a device reads of the ring when the reader closes ---- */

/* Notes that the stream is told to read the ring for a take; false: too many are open, and the stream is to be waited
 * for at once. */
bool rc_ring_take_note(ringcast_gpu_reader *reader, const struct ringcast_frame *frame, rc_cu_stream stream);
void rc_ring_take_end(ringcast_gpu_reader *reader, uint64_t position);

/* Waits for what reads the ring, rc_ring_slack_ns at most, and gives up what was needed for it. NULL: done. Else what
 * is left is for rc_reader_end_gpu, and so is this handle. */
struct rc_rest *rc_rest_of(ringcast_gpu_reader *reader);
/* Once more, without waiting, as long as it is the reader's. True: it is no more. */
bool rc_rest_try_to_end(struct rc_rest *rest);

#endif
