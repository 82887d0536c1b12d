/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device tensors: a frame that holds tensors of a CUDA device.
 *
 * Promise. The tensor's bytes go once, from the caller's memory to the writer's device pool, on the
 * caller's stream; no call waits for the device. Each reader opens the pool once, and once more
 * when the pool has grown. The reader's stream waits for the writer's copy, then runs the reader's
 * copy or kernels, and then signals the end. Without a pool, the frame itself carries the bytes
 * (INLINE), and the reader's device gets the bytes by one copy.
 *
 * What is proven where: docs/gpu.md. No real GPU has run these functions; until one has, a minor
 * version may change the functions and structs of this header (version.h). Whole programs:
 * examples/gpu.c, and examples/kernel.cu in CUDA C.
 *
 * No CUDA is linked, and none is needed to build: the driver is opened when it is first asked for.
 * Without a driver, or a device, open gives -ENODEV and all else of ringcast works as before;
 * ringcast_gpu_status says why.
 *
 * The two placements of a tensor in a frame (enum ringcast_placement):
 *   INLINE  the bytes are in the frame
 *   POOL    the bytes are in the writer's pool: the frame says where, and which words say when
 *
 * How a frame is written (ringcast_gpu_send does it all for a dict of tensors):
 *
 *     ringcast_gpu_lease(writer, bytes, count, offsets, &lease)
 *         where in the pool; -EAGAIN: write the frame INLINE
 *     ringcast_writer_reserve; ringcast_build_begin, _device, _device_tensor(.., offsets[i]), _end
 *     ringcast_gpu_commit(writer, &lease, puts, count, stream, frame_bytes)
 *         the copies, `ready`, then the frame
 *
 * A kernel writes a tensor into the pool itself: at ringcast_gpu_lease_address, and `puts` leaves
 * the tensor out; or in memory of ringcast_gpu_allocate, which stays the caller's from frame to
 * frame.
 *
 * and read:
 *
 *     ringcast_gpu_next(reader, timeout, &frame)
 *     ringcast_gpu_begin(reader, &frame, stream, &take)    the stream waits for `ready`
 *     ringcast_gpu_copy_out(reader, &take, &item, to)      or _map: the tensor where it lies
 *     ringcast_gpu_end(reader, &take)                      `ack`; the frame is given back
 *
 * A device tensor for _device_tensor has RINGCAST_ITEM_CUDA in `flags`; without it the call gives
 * -EINVAL. The functions of ringcast/frame.h leave ringcast_last_error() unchanged.
 *
 * Caveats.
 *   Streams  Everything is ordered by the streams given. The writer's caller may write to the
 *            tensor again, or free it, in the order of the writer's stream. The reader's
 *            caller may use the copy in the order of the reader's stream. Streams are CUstream, of
 *            the device's primary context, which the CUDA runtime, torch and CuPy use (cudaStream_t
 *            is the same); NULL is the legacy default stream. CU_STREAM_PER_THREAD is -EINVAL: the
 *            handle means a different stream in each thread.
 *   Groups   A frame goes by way of the pool only while all attached readers have opened the pool.
 *            A reader opens it at the first frame with a device tensor, which is therefore INLINE.
 *            A reader without a GPU, or without access to the pool, keeps the group INLINE as long
 *            as it is attached. A reader that closes and still holds a view (_map)
 *            keeps its place in the pool: a new reader in the same slot keeps the group INLINE
 *            until the view is gone.
 *   Death    The pool is lost when the writer dies: the waits of the readers' streams are released,
 *            the data counts as invalid, and the next call gives -EPIPE; so do unread frames of the
 *            pool. The writer does not wait for a reader after the end of the reader's process.
 *   Close    The pool's memory is given back when the last reader that has opened it has closed;
 *            until then it stays allocated, beyond ringcast_gpu_writer_close, and the next open or
 *            close of this process looks again. The memory goes with the process: if a writer
 *            closes in order and the process exits, the unread frames are lost, as if the writer
 *            had died. So let the process live until the readers have read all frames:
 *            ringcast_gpu_writer_info, before the close, has slots_used 0 then.
 *   Fork     As in ringcast.h. CUDA itself does not work in a child if the parent has used CUDA
 *            before the fork: -ECHILD.
 *   Threads  One thread at a time per handle: the thread that uses the ringcast_writer or _reader
 *            of the handle. A process that reads a pool has one thread that sleeps until a writer
 *            dies. A process that frees or closes memory while a stream uses the memory has one
 *            thread that waits for the stream.
 *   Capture  -EBUSY while the stream captures a CUDA graph: nothing is enqueued. On another stream,
 *            in any thread and mode, neither the calls of this header nor the library's threads
 *            spoil a capture. The exception is ringcast_gpu_run_when_idle.
 *   Files    A writer with a pool holds one descriptor more. A reader with an open pool holds one
 *            more and the writer's pidfd, and the reader's process one more for the thread that
 *            watches writers.
 *   Trust    As for the ring: a process that may attach may read and write the words and the pool.
 *            A hostile process can make readers read wrong bytes, and make a reader's stream wait
 *            until the reader closes. It can make a reader close the pool while its stream still
 *            reads the pool, and make a writer free memory that readers have open.
 *
 * Results are as in ringcast.h, and: -ENODEV (CPU mode), -EIO (the driver fails:
 * ringcast_last_error has its words), -ENOTSUP (the memory or the machine does not support the
 * operation), -EBUSY (not now, and nothing was done: the stream captures a CUDA graph, or the
 * object is in use; each call says more).
 */
#ifndef RINGCAST_GPU_H
#define RINGCAST_GPU_H

#include "ringcast/frame.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t ringcast_device_ptr; /* CUdeviceptr */
typedef void *ringcast_stream;        /* CUstream */

typedef struct ringcast_gpu_writer ringcast_gpu_writer;
typedef struct ringcast_gpu_reader ringcast_gpu_reader;

/* ---- What there is --------------------------------------------------------------------------- */

struct ringcast_gpu_driver {
  uint32_t size;   /* set it to sizeof the struct: see Sizes in ringcast.h */
  int32_t ready;   /* 1: there is a driver with a device; 0: CPU mode */
  int32_t version; /* of the driver: 1000 * major + 10 * minor; 0: none */
  int32_t devices;
  int32_t result; /* CUDA's code of the failed call, or 0 */
  char why[256];  /* in words; empty when ready */
};

/* Opens the driver at the first call, which takes 0.1 s or more the first time, but makes no
 * context. -EINVAL. */
RINGCAST_API int ringcast_gpu_status(struct ringcast_gpu_driver *out);

struct ringcast_gpu_device_info {
  uint32_t size; /* as above */
  char name[128];
  uint8_t uuid[16];
};

/* Device `ordinal` of this process. Makes no context. -ENODEV, -EINVAL, -EIO. */
RINGCAST_API int ringcast_gpu_device(int32_t ordinal, struct ringcast_gpu_device_info *out);

/* ---- Writer ---------------------------------------------------------------------------------- */

struct ringcast_gpu_writer_options {
  uint32_t size;
  /* Ordinal: 0 is the first device, and no default; -1, or NULL options: that of the context that
   * is current, else 0. */
  int32_t device;
  /* At most 1 TiB, rounded up to 2 MiB, and allocated at open. 0: RINGCAST_GPU_POOL_BYTES (where 0
   * is none, for readers too), else 32 MiB, and up to 256 MiB when frames find no room.
   * RINGCAST_NO_POOL: none, all is INLINE. */
  uint64_t pool_bytes;
  uint32_t slots; /* the most frames under way in the pool; 0: 128; at most 1024 */
  uint32_t flags; /* must be 0 */
};
#define RINGCAST_NO_POOL UINT64_MAX

/* Adds device tensors to a writer, and allocates the pool. NULL for the defaults. Failure to make
 * the pool is no error: all is INLINE, and ringcast_gpu_writer_info says why. Later leases try
 * again, by a thread of the library, in three cases: memory is lacking, the device does not come to
 * a new stream for ten seconds, or a driver forbids the allocation while a graph is captured.
 * -ENODEV, -EINVAL, -EBUSY (this writer has a pool already), -ENOMEM, -EIO, -ECHILD. Blocks while
 * the driver works. */
RINGCAST_API int ringcast_gpu_writer_open(ringcast_writer *writer,
                                          const struct ringcast_gpu_writer_options *options,
                                          ringcast_gpu_writer **out);

/* Call this before ringcast_writer_close. After that only the handle is left: calls give -EINVAL,
 * and only this call frees it. NULL is allowed. Committed frames stay readable as long as this
 * process lives. The call never waits for readers. But if the pool's memory can be freed, or the
 * ring's memory was registered, CUDA itself may wait, without limit, for the process's own streams
 * on the device. */
RINGCAST_API void ringcast_gpu_writer_close(ringcast_gpu_writer *writer);

/* A place in the pool for the device tensors of one frame, and the words that say when the tensors
 * are there. */
struct ringcast_gpu_extent {
  uint32_t slot, epoch; /* these three for ringcast_build_device */
  uint64_t generation;
  uint64_t base, bytes; /* in the pool */
};

/* Leases a place for `count` tensors of the given bytes; *offsets gives each tensor's place in the
 * pool, at a multiple of 256 bytes. A `count` of 0 is for a frame with only attached memory. Reads
 * the readers' answers, and does not wait. -EAGAIN: send INLINE, or later: the pool is full, there
 * is no pool, or a reader has not opened the pool (ringcast_gpu_writer_info says which). If the
 * pool may grow, a lease without room begins the growth: frames are INLINE until a larger pool is
 * made and each reader has opened the larger pool. -EMSGSIZE: larger than any pool of this writer.
 * -ECHILD. */
RINGCAST_API int ringcast_gpu_lease(ringcast_gpu_writer *writer, const uint64_t *bytes,
                                    uint32_t count, uint64_t *offsets,
                                    struct ringcast_gpu_extent *out);

/* In place of a copy: the device's address of `offset`. The caller's kernels write a tensor there,
 * in C order, on `stream`; the lease is committed or dropped on the same stream. -EINVAL: not in
 * the lease, or a different stream. */
RINGCAST_API int ringcast_gpu_lease_address(ringcast_gpu_writer *writer,
                                            const struct ringcast_gpu_extent *lease,
                                            uint64_t offset, ringcast_stream stream,
                                            ringcast_device_ptr *out);

/* Memory in the pool that the caller keeps: kernels write a tensor there, and frames refer to the
 * memory without a copy, one frame at a time. *lease is for ringcast_gpu_attach and
 * ringcast_gpu_drop. After the drop the memory is used again when `stream` has reached the drop and
 * the readers have read the frame. If the writer closes before, the pool stays allocated as long as
 * the process lives. Do not write to the memory while a frame refers to it: the readers read it
 * there. Asks no reader. A pool that may grow does so at the first call, to its full size: the call
 * blocks while the driver works, and until copies to the pool are done, ten seconds for each at
 * most. -EAGAIN: the pool is full, or there is none, or the pool is to grow and a lease is open.
 * -EMSGSIZE, -ECHILD. */
RINGCAST_API int ringcast_gpu_allocate(ringcast_gpu_writer *writer, uint64_t bytes,
                                       ringcast_stream stream, ringcast_device_ptr *out,
                                       struct ringcast_gpu_extent *lease);
/* Makes the frame of `lease` refer to tensors in `memory`, which stays as long as the readers read
 * the frame. Call this once, before the commit. ringcast_build_device_tensor takes memory->base
 * plus the tensor's offset from there. -EBUSY: an earlier frame refers to the memory, and a reader
 * has not read the frame. -EINVAL: `lease` or `memory` is not open. */
RINGCAST_API int ringcast_gpu_attach(ringcast_gpu_writer *writer,
                                     const struct ringcast_gpu_extent *lease,
                                     const struct ringcast_gpu_extent *memory);

/* A device tensor, in C order, that is copied to `offset` of the pool. */
struct ringcast_gpu_put {
  const struct ringcast_tensor *tensor;
  uint64_t offset;
};
/* Enqueues the copies and then `ready`, and commits the frame that is open in the ring, as
 * ringcast_writer_commit: a call of the driver for each copy, and three more. Does not wait. The
 * lease is used up. On an error nothing was sent, the reservation is still open, and the lease may
 * be open: drop both, or commit on the same stream again. -EINVAL (no such tensor; not in the
 * lease; a different stream), -ENOTSUP (a tensor is not in C order: make it contiguous first),
 * -EBUSY (capture), -EIO, and as ringcast_writer_commit. */
RINGCAST_API int ringcast_gpu_commit(ringcast_gpu_writer *writer, struct ringcast_gpu_extent *lease,
                                     const struct ringcast_gpu_put *puts, uint32_t count,
                                     ringcast_stream stream, size_t frame_bytes);

/* Gives back a lease that is not committed, or memory of ringcast_gpu_allocate. The call may wait
 * for the device; if the stream captures a graph then, the place stays taken until a later lease or
 * info finds that the capture has ended: the stream must exist till then. */
RINGCAST_API void ringcast_gpu_drop(ringcast_gpu_writer *writer, struct ringcast_gpu_extent *lease);

/* The INLINE way: copies a device tensor to host memory (the place from
 * ringcast_build_tensor_in_place) on the stream. Call `wait` after the last copy, before the frame
 * is committed: `wait` waits for the device. Errors as commit. */
RINGCAST_API int ringcast_gpu_fetch(ringcast_gpu_writer *writer,
                                    const struct ringcast_tensor *tensor, void *to,
                                    ringcast_stream stream);
RINGCAST_API int ringcast_gpu_wait(ringcast_gpu_writer *writer, ringcast_stream stream);

/* A dict of tensors, of the host and of the device, in one call: POOL if possible, else INLINE, or,
 * with RINGCAST_GPU_NO_INLINE, -EAGAIN. Device tensors are in C order (-ENOTSUP). A tensor in
 * memory of ringcast_gpu_allocate is not copied. Errors as ringcast_writer_reserve,
 * ringcast_gpu_lease and ringcast_gpu_commit; after an error nothing was sent. */
struct ringcast_gpu_item {
  const char *key;
  size_t key_bytes;
  struct ringcast_tensor tensor;
  uint32_t on_device; /* 1: tensor.data is a ringcast_device_ptr */
};
#define RINGCAST_GPU_NO_INLINE 1u
RINGCAST_API int ringcast_gpu_send(ringcast_gpu_writer *writer,
                                   const struct ringcast_gpu_item *items, uint32_t count,
                                   uint32_t tag, uint32_t flags, ringcast_stream stream,
                                   int64_t timeout_ns);

enum ringcast_gpu_way {
  RINGCAST_GPU_WAY_POOL = 1,      /* the next frame would go by the pool, if it has room */
  RINGCAST_GPU_WAY_NO_POOL = 2,   /* there is none: `why` */
  RINGCAST_GPU_WAY_NO_READER = 3, /* no reader is attached */
  /* a reader (`reader`) has not opened it yet, and perhaps never will */
  RINGCAST_GPU_WAY_WAITING = 4,
  /* a reader can't, or could not when it last tried: `why`, of which the writer knows CUDA's result
   * or an errno, and ringcast_gpu_reader_info there has the words */
  RINGCAST_GPU_WAY_REFUSED = 5,
  /* a call of the driver has failed unexpectedly: `why`. Tensors go INLINE */
  RINGCAST_GPU_WAY_LOST = 6,
};
struct ringcast_gpu_info {
  uint32_t size; /* as above */
  /* enum ringcast_gpu_way; of a reader, POOL: the pool is open, else NO_POOL, REFUSED or LOST. */
  uint32_t way;
  int32_t device;
  uint32_t reserved;   /* 0 */
  uint64_t pool_bytes; /* now */
  uint32_t slots;
  uint32_t epoch;     /* of the pool; a pool that has grown has a new one */
  uint32_t reader;    /* its slot, and ... */
  int32_t reader_pid; /* ... process; 0: no reader in particular */
  /* Counted since open. */
  uint64_t pool_frames, pool_bytes_sent; /* ... or received */
  uint64_t inline_frames;                /* frames with device tensors in them */
  uint64_t full;                         /* times that the pool had no room */
  uint64_t opens;                        /* pools opened */
  uint64_t syncs;                        /* times that a call waited for the device, after open */
  uint64_t slots_used, bytes_used;       /* now */
  /* 1: bytes go between ring and device by pinned memory: the writer has registered the ring, the
   * reader has its buffer. 0: not yet, or there is none. */
  uint32_t registered;
  char why[256];
};
/* How the next frame would go, why, and what was sent so far. -EINVAL, -ECHILD. */
RINGCAST_API int ringcast_gpu_writer_info(ringcast_gpu_writer *writer,
                                          struct ringcast_gpu_info *out);

/* ---- Reader ---------------------------------------------------------------------------------- */

struct ringcast_gpu_reader_options {
  uint32_t size;
  int32_t device; /* where tensors are to be read: as above */
  uint32_t flags; /* must be 0 */
  uint32_t reserved;
};

/* Adds device tensors to a reader. The first frame with a device tensor opens the pool. -ENODEV,
 * -EINVAL, -EBUSY (this reader has one already), -ENOMEM, -EIO, -ECHILD. */
RINGCAST_API int ringcast_gpu_reader_open(ringcast_reader *reader,
                                          const struct ringcast_gpu_reader_options *options,
                                          ringcast_gpu_reader **out);

/* Opens the writer's current pool before the first frame with a device tensor, so that this frame
 * already goes by the pool. -EAGAIN: there is no pool now, or frames of an earlier pool are to be
 * read first, or the pool can't be opened now: descriptors or memory lack, a thread captures a
 * graph, or the device stays busy for two seconds. A later frame tries again; until then
 * ringcast_gpu_reader_info says REFUSED, and the reason. -ENOTSUP: this reader can't open the pool.
 * Blocks. */
RINGCAST_API int ringcast_gpu_reader_prepare(ringcast_gpu_reader *reader);

/* Call this before ringcast_reader_close and _leave. After them only the handle is left: calls give
 * -EINVAL, and only this call frees it. NULL is allowed. Gives back the places in the pool
 * that takes hold. A frame with an open take stays held: release the frame by
 * ringcast_reader_release. Waits a second at most until the reader's streams have done their
 * enqueued reads of the pool; the streams must still exist. Then a thread of this process goes on
 * waiting, and the streams may be destroyed; a stream that captures a graph must exist until the
 * capture has ended. Waits of streams for a dead writer are released. Memory of _map stays open
 * until _unmap. If a stream has yet to read the reader's pinned buffer, the call waits for a
 * second; then a thread of this process frees the buffer. */
RINGCAST_API void ringcast_gpu_reader_close(ringcast_gpu_reader *reader);

/* As ringcast_reader_next. */
RINGCAST_API int ringcast_gpu_next(ringcast_gpu_reader *reader, int64_t timeout_ns,
                                   struct ringcast_frame *out);

/* A frame being read. Private, but for `frame`, `stream`, `epoch`, and these two: */
struct ringcast_gpu_take {
  struct ringcast_frame frame;
  ringcast_stream stream;
  /* How long a copy of bytes of the frame waits at most; RINGCAST_FOREVER unless the caller sets it
   * after begin. */
  int64_t timeout_ns;
  uint64_t copied;      /* how many bytes of the last such copy were enqueued */
  uint32_t slot, epoch; /* of the pool; epoch 0: nothing of this frame is there */
  uint64_t generation;
  uint32_t state;
  uint32_t maps;
};

/* Begins to read a held frame: the stream waits until the writer's stream has copied the frame's
 * tensors into the pool. Opens the pool if necessary; then the call blocks. On an error the frame
 * is still held. -ECONNABORTED: the frame was under way when this reader attached, and the frame's
 * device tensors are not for this reader: release the frame and go on. From here to the take's
 * first copy or map, the stream must not begin to capture a graph: the copy or map does not check
 * again, and its copies would become the graph's. -EPIPE: the writer or its device is gone, and the
 * pool too. -EBUSY: capture, or the frame's take is open already. -EINVAL: the frame is not held,
 * or has no tensors. -EPROTO, -EIO. */
RINGCAST_API int ringcast_gpu_begin(ringcast_gpu_reader *reader, const struct ringcast_frame *frame,
                                    ringcast_stream stream, struct ringcast_gpu_take *out);

/* Enqueues a copy of the item's bytes, packed in C order, to device memory of this reader, for
 * both placements. -EINVAL (the take is not open), -EPROTO (the item points outside), -EBUSY
 * (capture: nothing was enqueued), -EIO.
 *
 * Bytes of the frame (INLINE) go through the reader's pinned buffer of 8 MiB: when the call
 * returns, the bytes have been copied there. If the stream is behind and the buffer is full, the
 * call waits, as the take's `timeout_ns` says. -ETIMEDOUT (-EAGAIN for 0), -EINTR (a signal): the
 * first `copied` bytes are enqueued, and ringcast_gpu_copy_all takes the rest later. Where no
 * pinned memory is available, the call waits for the stream before the copy, and then for the
 * copy. */
RINGCAST_API int ringcast_gpu_copy_out(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take,
                                       const struct ringcast_item *item, ringcast_device_ptr to);
/* Bytes that lie in a row: of a tensor, or of several. Set `copied` to 0, and `reserved`. */
struct ringcast_gpu_copy {
  /* Of the pool (ringcast_item.device_offset), or, in the frame (INLINE), from frame.data. */
  uint64_t offset;
  uint64_t bytes;
  ringcast_device_ptr to;
  /* How many of the bytes earlier calls have enqueued: a call goes on from there, and counts it
   * up. */
  uint64_t copied;
  uint32_t in_pool;  /* 1: of the pool; 0: in the frame */
  uint32_t reserved; /* 0 */
};
#define RINGCAST_GPU_LAST 1u
/* All copies of a frame in one call: a call of the driver for each, and two or three more. Errors
 * as _copy_out; after -ETIMEDOUT, -EAGAIN and -EINTR the same call with the same copies goes on.
 * With RINGCAST_GPU_LAST in `flags`, these are the take's last copies, and `ack` is enqueued behind
 * the copies: then only _end is left, which does not call the driver. */
RINGCAST_API int ringcast_gpu_copy_all(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take,
                                       struct ringcast_gpu_copy *copies, uint32_t count,
                                       uint32_t flags);
/* Copies the item's bytes to host memory, and waits for the device. As _copy_out, and, for bytes in
 * the pool, -EPIPE and -ESTALE as ringcast_gpu_check. */
RINGCAST_API int ringcast_gpu_copy_to_host(ringcast_gpu_reader *reader,
                                           struct ringcast_gpu_take *take,
                                           const struct ringcast_item *item, void *to);

/* Gives the item's place in the pool, to read, never to write to, on the take's stream, until
 * _unmap. Only for POOL; -ENOTSUP: the item is not in the pool. *hold is for _unmap, one for each
 * map. -EINVAL: the take is not open. -ENOMEM. */
typedef struct ringcast_gpu_hold ringcast_gpu_hold;
RINGCAST_API int ringcast_gpu_map(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take,
                                  const struct ringcast_item *item, ringcast_device_ptr *out,
                                  ringcast_gpu_hold **hold);
/* Once the last hold of a frame has gone, and the take has ended, `ack` is enqueued on the take's
 * stream, which must still exist. Any thread; also after the reader was closed. NULL is allowed. */
RINGCAST_API void ringcast_gpu_unmap(ringcast_gpu_hold *hold);

/* Ends the take: enqueues `ack`, and releases the frame, as ringcast_reader_release. Does not wait.
 * -ESTALE, -EIO: the take has ended all the same. -EINVAL: it had ended before, perhaps by a copy
 * of the struct. -EBUSY (capture): nothing was enqueued, and the take is still open: end it after
 * the capture. */
RINGCAST_API int ringcast_gpu_end(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take);

/* Gives back a frame that was not begun, as ringcast_reader_release, without waiting for the
 * frame's tensors. After ringcast_reader_release itself the frame's place in the pool would stay
 * taken until this reader closes. -EBUSY: the frame's take is open: end it. -EINVAL: the frame is
 * not held. */
RINGCAST_API int ringcast_gpu_release(ringcast_gpu_reader *reader,
                                      const struct ringcast_frame *frame);

/* Checks the copies so far. 0: all have complete data, or will have. -EPIPE: the writer has died,
 * and a wait of this reader's stream was released: the copied bytes are no message. -ESTALE: this
 * reader was evicted, as ringcast_reader_check. */
RINGCAST_API int ringcast_gpu_check(const ringcast_gpu_reader *reader);

/* Device memory for received tensors, for callers without an allocator. In the order of the stream
 * where the device has memory pools, else alloc and free may wait for the device. `free`: any
 * thread, also after the reader was closed. The stream must still exist; if the stream captures a
 * graph then, the stream must exist until the capture has ended. NULL is allowed. -ENOMEM, -EBUSY
 * (capture), -EINVAL, -EIO, -ECHILD. */
typedef struct ringcast_gpu_memory ringcast_gpu_memory;
RINGCAST_API int ringcast_gpu_memory_alloc(ringcast_gpu_reader *reader, uint64_t bytes,
                                           ringcast_stream stream, ringcast_device_ptr *out,
                                           ringcast_gpu_memory **memory);
RINGCAST_API void ringcast_gpu_memory_free(ringcast_gpu_memory *memory);
/* Like ringcast_gpu_fetch, without a writer: copies a tensor of device `ordinal` to host memory,
 * and waits for the copy. -ENODEV, -EINVAL, -ENOTSUP (as ringcast_gpu_commit), -EBUSY, -EIO,
 * -ECHILD. */
RINGCAST_API int ringcast_gpu_copy_back(int32_t ordinal, const struct ringcast_tensor *tensor,
                                        void *to, ringcast_stream stream);
/* Waits until a stream of device `ordinal` has done all its work, for callers that go on with a
 * second stream. Not counted. -ENODEV, -EINVAL, -EBUSY (capture), -EIO, -ECHILD. */
RINGCAST_API int ringcast_gpu_stream_wait(int32_t ordinal, ringcast_stream stream);
/* Makes `stream` of device `ordinal` go on only when `before` has done all its work so far: in the
 * order of the device, if the driver can; else this call waits. Both streams must exist. If both
 * are the same stream, the call only says whether the stream captures. -EBUSY (a stream captures a
 * graph: nothing was enqueued), -ENODEV, -EINVAL, -EIO, -ECHILD. */
RINGCAST_API int ringcast_gpu_stream_follow(int32_t ordinal, ringcast_stream stream,
                                            ringcast_stream before);

/* Makes the library's worker thread call run(context) once device `ordinal` is idle: once the
 * device has done all work that this process has enqueued so far, on any stream, also on a stream
 * that was destroyed since. The call is for memory with users on unknown streams. Does not wait. If
 * a stream of this process captures a graph on the device meanwhile, CUDA may end the capture
 * (cuCtxSynchronize). After a failure of the device, run is called too. -ENOMEM, -ENODEV, -EINVAL,
 * -EIO, -ECHILD: run will not be called. */
RINGCAST_API int ringcast_gpu_run_when_idle(int32_t ordinal, void (*run)(void *context),
                                            void *context);
/* Makes the worker thread call run(context) repeatedly, with pauses of 20 ms at most, until run
 * returns a value other than 0: for work that has to wait until a stream no longer captures a
 * graph. -ENOMEM: run will not be called. */
RINGCAST_API int ringcast_gpu_run_until_done(int (*run)(void *context), void *context);

/* Whether the pool is open, why not, and what was received so far. -EINVAL, -ECHILD. */
RINGCAST_API int ringcast_gpu_reader_info(ringcast_gpu_reader *reader,
                                          struct ringcast_gpu_info *out);

#ifdef __cplusplus
}
#endif
#endif
