/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver without a GPU: libcuda.so.1, made by the tests. Device memory is a memfd; a stream
 * is a thread that does one thing after the other; a handle is really opened by another process.
 * What CUDA leaves undefined, it makes show: memory that is freed is overwritten, a device pointer
 * that the host follows faults, an address that is no device's breaks the context for good. Nothing
 * outlives the process but what others have mapped.
 *
 * Where it is stricter than the driver, or simpler:
 *   - The device's address of registered memory is never the host's, and any copy that leaves a
 *     registration at its end is an error, even into the next one.
 *   - A copy to or from registered memory is made when the stream gets there, and breaks the
 *     context if the memory is not registered any more. All other host memory is read when the call
 *     is made, or waits for the stream.
 *   - cuMemFree waits for all streams of the context, cuIpcCloseMemHandle, cuMemHostUnregister and
 *     cuMemFreeHost only for a copy that is being made. What they take away under work that is
 *     queued breaks the context.
 *   - In a broken context calls that give something back do so, and say 700 all the same.
 *   - While a stream captures a graph, all calls but those that are known to be harmless are
 *     forbidden to threads that are not RELAXED; to all, work for that stream (CUDA would make it
 *     part of the graph), asking for it, or for its whole context, and the legacy stream if the one
 *     that captures is blocking. What is forbidden spoils the capture.
 *   - A stream takes 1024 operations before the device has done some of them: a call that adds one
 *     more waits, and all other threads' calls about that context with it.
 *   - Of kernels the driver knows two, whatever the module: spin(word, turns), until the 32-bit
 *     word at this address
 *     (0: none) is not 0, or so many turns; and fault(), which breaks the context.
 *
 * From the environment, read by cuInit:
 *   FAKE_CUDA_INIT=100          what cuInit gives
 *   FAKE_CUDA_DEVICES=2         how many there are (1)
 *   FAKE_CUDA_VISIBLE=1,0       which of them this process sees, in its own order; their UUIDs stay
 *                               theirs
 *   FAKE_CUDA_NO_PEER=1         no device opens memory of another: 217
 *   FAKE_CUDA_FAIL=cuIpcOpenMemHandle:1:217,cuMemAlloc:2:2    the first call of the one, the second
 *                               of the other; call 0: each. The name * counts all calls, of
 *                               whatever function but cuThreadExchangeStreamCaptureMode. The result
 *                               700 breaks the context that is current, too
 *   FAKE_CUDA_SAME_HANDLE=1     memory of one size that is freed and allocated anew has the same
 *                               handle, byte by byte
 *   FAKE_CUDA_STUCK_WORDS=1     a stream that waits for a word does so until it is destroyed
 *   FAKE_CUDA_JITTER=7          delays, by chance with this seed, between what a stream does
 *   FAKE_CUDA_QUEUES=1          streams share so many queues of the device
 *                               (CUDA_DEVICE_MAX_CONNECTIONS): what is enqueued in one is done in
 *                               that order, of whichever stream it is
 * and by cuGetProcAddress:
 *   FAKE_CUDA_WITHOUT=cuStreamWriteValue64,cuStreamWaitValue64    functions that this driver has
 *                                                                 not
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "gpu/driver.h"
#include "tests/support/cuda_more.h"

#define FAKE_CUDA_FUNCTIONS(X) RC_CUDA_FUNCTIONS(X) CUDA_MORE_FUNCTIONS(X)

/* What a test can ask of it, by dlsym: see tests/support/fake_controls.h. */
/* clang-format off */
#define FAKE_CUDA_CONTROLS(X) \
  /* Calls of a function by its name in CUDA since the start; "*": of all; "fake_host_waits": \
   * copies that waited for the stream, as the host's memory was not registered; \
   * "fake_own_waits": these and cuStreamSynchronize, cuCtxSynchronize, cuMemAlloc and \
   * cuMemFree, of this thread. -1: no such name. */ \
  X(long, calls, (const char *name)) \
  /* How many there are now: "allocations" and their "bytes", "imports", "registered", \
   * "streams", "events", "contexts", "queued"; since the start: "contexts made", "lost", what \
   * was left in contexts that have ended, "spoilt", captures, and "strays", calls about a \
   * stream that was destroyed. -1: no such name. */ \
  X(long, live, (const char *what)) \
  /* The nth call from now on of the calling thread gives `result` and does nothing; 0: every \
   * call of all threads. NULL: no call fails any more. */ \
  X(void, fault, (const char *name, long nth, rc_cu_result result)) \
  /* The call that comes `nth` from now waits, without a lock, until NULL is given. */ \
  X(void, hold, (const char *name, long nth)) \
  /* The function whose call was the last to fail by this or the environment; "": none has. */ \
  X(const char *, failed, (void)) \
  /* As after a fault on the device: 700 from now on, and what is queued is dropped. NULL: the \
   * current context. */ \
  X(void, break_context, (rc_cu_context context)) \
  /* As a capture by the calling thread, in the mode GLOBAL; where it ends, 901 says that it \
   * was spoilt. */ \
  X(rc_cu_result, capture, (rc_cu_stream stream, bool on))
/* clang-format on */

#define FAKE_CUDA_DECLARE(type, name, arguments) \
  __attribute__((visibility("default"))) type fake_cuda_##name arguments;
FAKE_CUDA_CONTROLS(FAKE_CUDA_DECLARE)

#endif
