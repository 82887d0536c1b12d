/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the reader's side share. */
#ifndef RC_GPU_READER_H
#define RC_GPU_READER_H

#include "gpu/import.h"
#include "ringcast/gpu.h"

/* A frame of the ring that a device still copies from. */
struct rc_deferred {
  struct ringcast_frame frame; /* data NULL: free */
};

/* A take that has not ended, and whose stream was told to read the ring. */
struct rc_ring_take {
  uint64_t position;
  rc_cu_stream stream;
  bool used;
};

struct ringcast_gpu_reader {
  ringcast_reader *reader;
  struct rc_device device;
  struct rc_import *import; /* NULL: no pool is open */
  uint32_t refused;         /* the epoch of a pool that can't be opened here; 0: none yet */
  uint32_t forks;
  char why[200];            /* why not */
  /* deferred.c */
  struct rc_word *marks;    /* one of each deferred frame, registered; NULL: not yet, or it can't be */
  rc_cu_ptr marks_address;
  uint64_t mark[RC_MAX_DEFERRED]; /* what each is waited to reach */
  struct rc_deferred deferred[RC_MAX_DEFERRED];
  struct rc_ring_take taken[RC_MAX_DEFERRED];
  bool registered, read_only, tried_to_register; /* the ring */
  bool missing; /* as rc_import_is_missing, of the imports before this one */
  uint64_t pool_frames, pool_bytes, inline_frames, opens, syncs;
};

int rc_gpu_reader_enter(const ringcast_gpu_reader *reader, struct rc_cuda_entry *entry);
/* After a failed call, with its code: finds out whether nothing works any more. Returns the code. */
int rc_gpu_reader_failed(ringcast_gpu_reader *reader, int code);

/* ---- deferred.c: frames whose bytes are copied to a device from the ring itself ---- */

/* Notes that the stream is told to read the ring for a take; false: too many are open, and the stream is to be waited
 * for at once. */
bool rc_ring_take_note(ringcast_gpu_reader *reader, uint64_t position, rc_cu_stream stream);
void rc_ring_take_end(ringcast_gpu_reader *reader, uint64_t position);
/* Whether the device reads those bytes where they lie, when its stream gets there; else they are read before, or as,
 * the call returns, or when the stream is waited for. The context is current. */
bool rc_ring_is_registered(ringcast_gpu_reader *reader, const void *data, uint64_t bytes);
/* In place of releasing it: it is released once the stream has come as far as it is now. The context is current. */
int rc_deferred_add(ringcast_gpu_reader *reader, const struct ringcast_frame *frame, rc_cu_stream stream);
/* Releases what is done. `slack`: waits until those left lie within so many bytes of the ring, and behind all spilled
 * frames; UINT64_MAX: waits for nothing. -EAGAIN, without a text: they do not yet, and it is `until` (of rc_now_ns). */
int rc_deferred_settle(ringcast_gpu_reader *reader, uint64_t slack, int64_t until);
/* Waits for what reads the ring, ten seconds at most. False: something still does, and what it needs is left behind: so
 * must be the context. Works, as far as it goes, also where the context can't be entered. */
bool rc_deferred_end(ringcast_gpu_reader *reader);

#endif
