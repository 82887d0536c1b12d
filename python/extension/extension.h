/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by all files of the extension, which uses only the library's public headers; except that
 * handles/reader.c includes channel/reader.h, to hear when the next frame is due (warm.c).
 *
 *   state.h, errors.h           the module's state; errno -> exception
 *   spans.h                     when calls began and ended, for traces and profiles
 *   call.h                      arguments, a handle's turn, waiting
 *   tensors.h, tensors/         memory of tensors: torch, NumPy, DLPack, a CUDA device
 *   codec/                      objects and frames
 *   handles/                    Writer, Reader and the other types that Python's users hold:
 *     gpu.h       the gpu part of both
 *     status.h    what is seen of rings; Tap
 *     reader.h    Reader, Frame and View
 *     packed.h    PackedFrame
 *     writer.h    Writer and Span
 *   module.c                    the module
 *
 * Each entry of the list is a room: files that one reads together. A room includes and calls only
 * the rooms above it (tests/lint/circles.py).
 *
 * Every wait and every large copy runs without the GIL. A handle serves one thread at a time:
 * `busy` is set as long as a call may let other Python code run, and a second caller gets a
 * RuntimeError. Any thread may release or drop a Frame.
 */
#ifndef RC_EXTENSION_H
#define RC_EXTENSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "ringcast/frame.h"
#include "ringcast/gpu.h"
#include "ringcast/ringcast.h"

/* Results beside 0 and -errno; no errno has the values. */
enum {
  /* A Python exception is set already. */
  RC_PY_RAISED = INT_MIN,
  /* A reader has blocked the writer for longer than allowed. */
  RC_PY_TOO_SLOW,
  /* A Python exception is set already, which came up in the value, and not in a wait. */
  RC_PY_OF_VALUE,
  /* The frame is not for the calling Reader, which goes on to the next frame. */
  RC_PY_SKIPPED,
};
/* No ring has more bytes, nor more spill memory. */
#define RC_PY_MOST_BYTES (UINT64_C(1) << 40)
/* Copying fewer bytes takes less time than handing the GIL over and back. */
#define RC_PY_COPY_WITH_GIL 8192

struct rc_py_state;

#endif
