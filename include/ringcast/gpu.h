/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device tensors: a frame that holds tensors of a CUDA device.
 *
 * Promise. The tensor's bytes go once, from the caller's memory to the writer's device pool, on the caller's stream; no
 * call waits for the device. Each reader opens the pool once, and once more when the pool has grown; a reader's copy,
 * or its kernels, wait on the reader's stream for the writer's, and say on that stream when they have done. Without a
 * pool, the same frame carries the bytes itself (INLINE), and the reader's device gets the bytes by one copy.
 *
 * What is proven where: docs/gpu.md. Whole programs: examples/gpu.c, and examples/kernel.cu in CUDA C.
 *
 * No CUDA is linked, and none is needed to build: the driver is opened when it is first asked for. Without a driver, or
 * a device, open gives -ENODEV and all else of ringcast works as before; ringcast_gpu_status says why.
 *
 * The two placements of a tensor in a frame (enum ringcast_placement):
 *   INLINE  the bytes are in the frame
 *   POOL    the bytes are in the writer's pool: the frame says where, and which words say when
 *
 * How a frame is written (ringcast_gpu_send does it all for a dict of tensors):
 *
 *     rc = ringcast_gpu_lease(writer, bytes, count, offsets, &lease) where in the pool; -EAGAIN: write it INLINE
 *     ringcast_writer_reserve; ringcast_build_begin, _device, _device_tensor(.., offsets[i]), ..., _end
 *     ringcast_gpu_commit(writer, &lease, puts, count, stream, frame_bytes)   the copies, `ready`, then the frame
 *
 * A kernel writes a tensor into the pool itself: at ringcast_gpu_lease_address, and `puts` leaves the tensor out; or in
 * memory of ringcast_gpu_allocate, which stays the caller's from frame to frame.
 *
 * and read:
 *
 *     ringcast_gpu_next(reader, timeout, &frame)
 *     ringcast_gpu_begin(reader, &frame, stream, &take)              the stream waits for `ready`
 *     ringcast_gpu_copy_out(reader, &take, &item, to)                or _map: the tensor where it lies
 *     ringcast_gpu_end(reader, &take)                                `ack`; the frame is given back
 *
 * A device tensor for _device_tensor has RINGCAST_ITEM_CUDA in `flags`; without the flag the call gives -EINVAL. The
 * functions of ringcast/frame.h leave ringcast_last_error() unchanged.
 *
 * Caveats.
 *   Streams  Everything is ordered by the streams given. The writer's caller may write to its tensor again, or free it,
 *            in the order of its stream; the reader's may use what was copied in the order of its own. Streams are
 *            CUstream, of the device's primary context, which the CUDA runtime, torch and CuPy use (cudaStream_t is the
 *            same); NULL is the legacy default stream. CU_STREAM_PER_THREAD is -EINVAL: the handle means a different
 *            stream in each thread.
 *   Groups   A frame goes by way of the pool only while all readers that are attached have opened it. A reader does so
 *            at its first frame with a device tensor, which is therefore INLINE. One without a GPU, or that can't open
 *            the pool, keeps the group INLINE as long as it is attached; so does one in the slot of a reader that has
 *            closed and holds a view (_map) still, until that is taken back: the place in the pool is that one's.
 *   Death    The pool is lost when the writer dies: the waits of the readers' streams are released, the data counts
 *            as invalid, and the next call gives -EPIPE; so do unread frames of the pool. The writer does not wait for
 *            a reader after the end of the reader's process.
 *   Close    The pool's memory is given back when the last reader that has opened it has closed; until then it stays
 *            allocated, beyond ringcast_gpu_writer_close, and the next open or close of this process looks again. The
 *            memory goes with the process: if a writer closes in order and the process exits, the unread frames are
 *            lost, as if the writer had died. So let the process live until the readers have read all frames:
 *            ringcast_gpu_writer_info, before the close, has slots_used 0 then.
 *   Fork     As in ringcast.h, and CUDA itself can't be used by the child of a process that has used it: -ECHILD.
 *   Threads  One thread at a time per handle: the thread that uses the ringcast_writer or _reader of the handle. A
 *            process that reads a pool has one thread that sleeps until a writer dies; and a process that frees, or
 *            closes, what a stream still uses has one thread that waits for that.
 *   Capture  -EBUSY while the stream captures a CUDA graph: nothing is enqueued. A capture of a graph on a
 *            different stream, in any thread and mode, is not spoilt by calls of this header or by the library's own
 *            threads, but for ringcast_gpu_run_when_idle.
 *   Files    A writer with a pool holds one descriptor more; a reader one more while it has a pool open, and the
 *            writer's pidfd; such a process one more for the thread that watches writers.
 *   Trust    As for the ring: a process that may attach may read and write the words and the pool. A hostile process
 *            can make readers read other bytes, make a reader's stream wait until the reader closes, make a reader
 * close the pool while its stream still reads the pool, and have a writer free memory that readers have open.
 *
 * Results are as in ringcast.h, and: -ENODEV (CPU mode), -EIO (the driver fails: ringcast_last_error has its words),
 * -ENOTSUP (this memory, or this machine, can't do that), -EBUSY (not now, and nothing was done: the stream captures a
 * CUDA graph, or what is asked for is in use; each call says what).
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

/* ---- What there is ---------------------------------------------------------------------------------------------- */

struct ringcast_gpu_driver {
  uint32_t size;   /* set it to sizeof the struct: see Sizes in ringcast.h */
  int32_t ready;   /* 1: there is a driver with a device; 0: CPU mode */
  int32_t version; /* of the driver: 1000 * major + 10 * minor; 0: none */
  int32_t devices;
  int32_t result; /* CUDA's code of the failed call, or 0 */
  char why[256];  /* in words; empty when ready */
};

/* Opens the driver at the first call, which takes 0.1 s or more the first time, but makes no context. -EINVAL. */
RINGCAST_API int ringcast_gpu_status(struct ringcast_gpu_driver *out);

struct ringcast_gpu_device_info {
  uint32_t size; /* as above */
  char name[128];
  uint8_t uuid[16];
};

/* Device `ordinal` of this process. Makes no context. -ENODEV, -EINVAL, -EIO. */
RINGCAST_API int ringcast_gpu_device(int32_t ordinal, struct ringcast_gpu_device_info *out);

/* ---- Writer ----------------------------------------------------------------------------------------------------- */

struct ringcast_gpu_writer_options {
  uint32_t size;
  int32_t device;      /* ordinal: 0 is the first device, and no default; -1, or NULL options: that of the context that
                        * is current, else 0 */
  uint64_t pool_bytes; /* at most 1 TiB, rounded up to 2 MiB, and allocated at open; 0: RINGCAST_GPU_POOL_BYTES, else
                        * 32 MiB, and up to 256 MiB when frames find no room; RINGCAST_NO_POOL: none, all is INLINE */
  uint32_t slots;      /* the most frames under way in the pool; 0: 128; at most 1024 */
  uint32_t flags;      /* must be 0 */
};
#define RINGCAST_NO_POOL UINT64_MAX

/* Adds device tensors to a writer, and allocates the pool. NULL for the defaults. Failure to make the pool is no error:
 * all is INLINE, and ringcast_gpu_writer_info says why. If memory is lacking, or the device does not come to a new
 * stream for ten seconds, or a driver forbids the allocation while a graph is captured, later leases try again, by a
 * thread of the library. -ENODEV, -EINVAL, -EBUSY (this writer has one already), -ENOMEM, -EIO, -ECHILD. Blocks while
 * the driver works. */
RINGCAST_API int ringcast_gpu_writer_open(ringcast_writer *writer, const struct ringcast_gpu_writer_options *options,
                                          ringcast_gpu_writer **out);

/* Before ringcast_writer_close, which else ends all but the handle: calls give -EINVAL then, and only this one frees
 * it. NULL is allowed. What was committed
 * stays readable as long as this process lives. Never waits for readers; but where the pool's memory can be freed, or
 * the ring's was registered, CUDA itself may wait, without limit, for what this process's own streams on the device are
 * still to do. */
RINGCAST_API void ringcast_gpu_writer_close(ringcast_gpu_writer *writer);

/* A place in the pool for the device tensors of one frame, and the words that say when they are there. */
struct ringcast_gpu_extent {
  uint32_t slot, epoch; /* these three for ringcast_build_device */
  uint64_t generation;
  uint64_t base, bytes; /* in the pool */
};

/* A place for `count` tensors of so many bytes each; *offsets says where in the pool each goes, on 256 bytes. With a
 * `count` of 0, for a frame of attached memory alone. Reads the readers' answers, and does not wait.
 * -EAGAIN: send INLINE, or later: the pool is full, there is none, or not all readers have opened it
 * (which ringcast_gpu_writer_info tells apart). Where the pool may grow, a lease without room begins the growth: frames
 * are INLINE until a larger pool is made and each reader has opened that. -EMSGSIZE: no pool of this writer can hold so
 * much. -ECHILD. */
RINGCAST_API int ringcast_gpu_lease(ringcast_gpu_writer *writer, const uint64_t *bytes, uint32_t count,
                                    uint64_t *offsets, struct ringcast_gpu_extent *out);

/* In place of a copy: the device's address of `offset`, for kernels of the caller's that write a tensor there, in C
 * order, on `stream`, on which the lease is also committed or dropped. -EINVAL: not in the lease, or other stream. */
RINGCAST_API int ringcast_gpu_lease_address(ringcast_gpu_writer *writer, const struct ringcast_gpu_extent *lease,
                                            uint64_t offset, ringcast_stream stream, ringcast_device_ptr *out);

/* Memory in the pool that the caller keeps: kernels write a tensor there, and frames refer to the memory without a
 * copy, one frame at a time. *lease is for ringcast_gpu_attach and ringcast_gpu_drop, after which the memory is used
 * again when `stream` has come so far and the readers have read the frame. If the writer closes before, the pool stays
 * allocated as long as the process lives. Do not write to the memory while a frame refers to it: the readers read it
 * there. Asks no reader. A pool that may grow does so at the first call, to its full size: the call blocks while the
 * driver works, and until copies to the pool are done, ten seconds for each at most.
 * -EAGAIN: the pool is full, or there is none, or the pool is to grow and a lease is open. -EMSGSIZE, -ECHILD. */
RINGCAST_API int ringcast_gpu_allocate(ringcast_gpu_writer *writer, uint64_t bytes, ringcast_stream stream,
                                       ringcast_device_ptr *out, struct ringcast_gpu_extent *lease);
/* The frame of `lease` refers to tensors in `memory`, which stays as long as the readers read the frame: once, before
 * the commit. ringcast_build_device_tensor takes memory->base plus the tensor's offset from there. -EBUSY: another
 * frame refers to the memory, which the readers have not all read. -EINVAL: one of the two is not open. */
RINGCAST_API int ringcast_gpu_attach(ringcast_gpu_writer *writer, const struct ringcast_gpu_extent *lease,
                                     const struct ringcast_gpu_extent *memory);

/* A device tensor, in C order, that is copied to `offset` of the pool. */
struct ringcast_gpu_put {
  const struct ringcast_tensor *tensor;
  uint64_t offset;
};
/* Enqueues the copies and then `ready`, and commits the frame that is open in the ring, as ringcast_writer_commit: a
 * call of the driver for each copy, and three more. Does not wait. The lease is used up. On an error nothing was sent,
 * the reservation is still open, and so may be the lease: drop both, or commit on the same stream again. -EINVAL (no
 * such tensor; not in the lease; another stream), -ENOTSUP (a tensor is not in C order: make it contiguous first),
 * -EBUSY (capture), -EIO, and as ringcast_writer_commit. */
RINGCAST_API int ringcast_gpu_commit(ringcast_gpu_writer *writer, struct ringcast_gpu_extent *lease,
                                     const struct ringcast_gpu_put *puts, uint32_t count, ringcast_stream stream,
                                     size_t frame_bytes);

/* Gives back a lease that is not committed, or memory of ringcast_gpu_allocate. The call may wait for the device; if
 * the stream captures a graph then, the place stays taken until a later lease or info finds that the capture has ended:
 * the stream must exist till then. */
RINGCAST_API void ringcast_gpu_drop(ringcast_gpu_writer *writer, struct ringcast_gpu_extent *lease);

/* The other way: copies a device tensor to host memory (the place that ringcast_build_tensor_in_place gave) on the
 * stream; `wait` after the last one, before the frame is committed: it waits for the device. Errors as commit. */
RINGCAST_API int ringcast_gpu_fetch(ringcast_gpu_writer *writer, const struct ringcast_tensor *tensor, void *to,
                                    ringcast_stream stream);
RINGCAST_API int ringcast_gpu_wait(ringcast_gpu_writer *writer, ringcast_stream stream);

/* A dict of tensors, of the host and of the device, in one call: POOL if it can be, else INLINE, else, with
 * RINGCAST_GPU_NO_INLINE, -EAGAIN. Device tensors are in C order (-ENOTSUP). A tensor in memory of
 * ringcast_gpu_allocate is not copied. Errors as ringcast_writer_reserve, ringcast_gpu_lease and ringcast_gpu_commit;
 * after one nothing was sent. */
struct ringcast_gpu_item {
  const char *key;
  size_t key_bytes;
  struct ringcast_tensor tensor;
  uint32_t on_device; /* 1: tensor.data is a ringcast_device_ptr */
};
#define RINGCAST_GPU_NO_INLINE 1u
RINGCAST_API int ringcast_gpu_send(ringcast_gpu_writer *writer, const struct ringcast_gpu_item *items, uint32_t count,
                                   uint32_t tag, uint32_t flags, ringcast_stream stream, int64_t timeout_ns);

enum ringcast_gpu_way {
  RINGCAST_GPU_WAY_POOL = 1,      /* the next frame would go by the pool, if it has room */
  RINGCAST_GPU_WAY_NO_POOL = 2,   /* there is none: `why` */
  RINGCAST_GPU_WAY_NO_READER = 3, /* no reader is attached */
  RINGCAST_GPU_WAY_WAITING = 4,   /* a reader (`reader`) has not opened it yet, and perhaps never will */
  RINGCAST_GPU_WAY_REFUSED = 5,   /* a reader can't, or could not when it last tried: `why`, of which the writer knows
                                   * CUDA's result or an errno, and ringcast_gpu_reader_info there has the words */
  RINGCAST_GPU_WAY_LOST = 6,      /* a call of the driver has failed unexpectedly: `why`. Tensors go INLINE */
};
struct ringcast_gpu_info {
  uint32_t size; /* as above */
  uint32_t way;  /* enum ringcast_gpu_way; of a reader, POOL: the pool is open, else NO_POOL, REFUSED or LOST */
  int32_t device;
  uint32_t reserved;   /* 0 */
  uint64_t pool_bytes; /* now */
  uint32_t slots;
  uint32_t epoch;     /* of the pool; a pool that has grown has a new one */
  uint32_t reader;    /* its slot, and ... */
  int32_t reader_pid; /* ... process; 0: no reader in particular */
  /* Counted since open: */
  uint64_t pool_frames, pool_bytes_sent; /* ... or received */
  uint64_t inline_frames;                /* frames with device tensors in them */
  uint64_t full;                         /* times that the pool had no room */
  uint64_t opens;                        /* pools opened, ... */
  uint64_t syncs;                        /* ... and times that a call waited for the device, after open */
  uint64_t slots_used, bytes_used;       /* now */
  uint32_t registered; /* 1: bytes go between ring and device by pinned memory: the writer has registered the ring,
                        * the reader has its buffer. 0: not yet, or there is none */
  char why[256];
};
/* How the next frame would go, why, and what was sent so far. -EINVAL, -ECHILD. */
RINGCAST_API int ringcast_gpu_writer_info(ringcast_gpu_writer *writer, struct ringcast_gpu_info *out);

/* ---- Reader ----------------------------------------------------------------------------------------------------- */

struct ringcast_gpu_reader_options {
  uint32_t size;
  int32_t device; /* where tensors are to be read: as above */
  uint32_t flags; /* must be 0 */
  uint32_t reserved;
};

/* Adds device tensors to a reader. The first frame with a device tensor opens the pool. -ENODEV, -EINVAL (also: the
 * reader is an observer), -EBUSY (this reader has one already), -ENOMEM, -EIO, -ECHILD. */
RINGCAST_API int ringcast_gpu_reader_open(ringcast_reader *reader, const struct ringcast_gpu_reader_options *options,
                                          ringcast_gpu_reader **out);

/* Opens the pool that the writer has now, not only with the first frame that has a device tensor: so that this can go
 * by the pool already. -EAGAIN: there is none now, or frames of an earlier one are to be read first, or it can't be
 * opened now, as descriptors or memory lack, a thread captures a graph, or the device is busy, which is waited for two
 * seconds: it is tried again with a later frame, and until then ringcast_gpu_reader_info says REFUSED, and why.
 * -ENOTSUP: it can't be opened here. Blocks. */
RINGCAST_API int ringcast_gpu_reader_prepare(ringcast_gpu_reader *reader);

/* Before ringcast_reader_close and _leave, which else end all but the handle: calls give -EINVAL then, and only this
 * function frees it. NULL is allowed. Gives back what takes hold of the pool; a frame whose take has not ended is held
 * still, and for ringcast_reader_release. Waits a second at most until the reader's streams have read what they were
 * told to read of the pool; the streams must still exist. Then a thread of this process goes on waiting, and the
 * streams may be destroyed, but for one that captures a graph, before that has ended. What streams wait for of a writer
 * that has died is released. Memory that _map has given and _unmap not yet taken back stays open until then: see there.
 * If a stream has yet to read the reader's pinned buffer, the call waits for a second; then a
 * thread of this process frees the buffer. */
RINGCAST_API void ringcast_gpu_reader_close(ringcast_gpu_reader *reader);

/* As ringcast_reader_next. */
RINGCAST_API int ringcast_gpu_next(ringcast_gpu_reader *reader, int64_t timeout_ns, struct ringcast_frame *out);

/* A frame being read. Private, but for `frame`, `stream`, `epoch`, and these two: */
struct ringcast_gpu_take {
  struct ringcast_frame frame;
  ringcast_stream stream;
  int64_t timeout_ns;   /* how long a copy of bytes of the frame waits at most; RINGCAST_FOREVER unless the caller sets
                         * it after begin */
  uint64_t copied;      /* how many bytes of the last such copy were enqueued */
  uint32_t slot, epoch; /* of the pool; epoch 0: nothing of this frame is there */
  uint64_t generation;
  uint32_t state;
  uint32_t maps;
};

/* Begins to read a frame that is held: the stream waits until the writer's has copied what the frame has in the pool.
 * Opens the pool if need be (then it blocks). On an error the frame is still held.
 * -ECONNABORTED: the frame was under way when this reader attached, and the frame's device tensors are not for this
 * reader: release the frame and go on.
 * From here to the take's first copy or map, the stream must not begin to capture a graph: that call does not ask
 * again, and its copies would be the graph's. -EPIPE: the writer, or its device, is gone, and the pool with it. -EBUSY:
 * capture, or its take is open already. -EINVAL: it is not held, or holds no tensors. -EPROTO, -EIO. */
RINGCAST_API int ringcast_gpu_begin(ringcast_gpu_reader *reader, const struct ringcast_frame *frame,
                                    ringcast_stream stream, struct ringcast_gpu_take *out);

/* Enqueues a copy of the item's bytes, packed in C order as they are, to device memory of this reader, wherever the
 * item is placed. -EINVAL (the take is not open), -EPROTO (the item points outside), -EBUSY (capture:
 * nothing was enqueued), -EIO.
 *
 * Bytes of the frame (INLINE) go through a pinned buffer of the reader's, of 8 MiB: when the call returns, they have
 * been copied there. If the device has yet to read all of the buffer, as the stream is behind, the call waits, as the
 * take's `timeout_ns` says. -ETIMEDOUT (-EAGAIN for 0), -EINTR (a signal): the first `copied` bytes are enqueued, and
 * ringcast_gpu_copy_all takes the rest later. Where no pinned memory is available, the call waits for the stream
 * before the copy, and then for the copy. */
RINGCAST_API int ringcast_gpu_copy_out(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take,
                                       const struct ringcast_item *item, ringcast_device_ptr to);
/* Bytes that lie in a row: of a tensor, or of several. Set `copied` to 0, and `reserved`. */
struct ringcast_gpu_copy {
  uint64_t offset; /* of the pool (ringcast_item.device_offset), or, in the frame (INLINE), from frame.data */
  uint64_t bytes;
  ringcast_device_ptr to;
  uint64_t copied;  /* how many of the bytes earlier calls have enqueued: a call goes on from there, and counts it up */
  uint32_t in_pool; /* 1: of the pool; 0: in the frame */
  uint32_t reserved; /* 0 */
};
#define RINGCAST_GPU_LAST 1u
/* All copies of a frame in one call: a call of the driver for each, and two or three more. Errors as _copy_out; after
 * -ETIMEDOUT, -EAGAIN and -EINTR the same call with the same copies goes on. With RINGCAST_GPU_LAST in `flags`, these
 * are the take's last copies, and `ack` is enqueued behind them: then only _end is left, and that calls nothing of the
 * driver. */
RINGCAST_API int ringcast_gpu_copy_all(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take,
                                       struct ringcast_gpu_copy *copies, uint32_t count, uint32_t flags);
/* Copies the item's bytes to host memory: it waits for the device. As _copy_out, and, of what lies in the pool, -EPIPE
 * and -ESTALE as ringcast_gpu_check. */
RINGCAST_API int ringcast_gpu_copy_to_host(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take,
                                           const struct ringcast_item *item, void *to);

/* Where the item lies, to be read, never written to, on the take's stream, until _unmap. POOL alone; -ENOTSUP: it is
 * not there. *hold is for _unmap, one for each map. -EINVAL: the take is not open. -ENOMEM. */
typedef struct ringcast_gpu_hold ringcast_gpu_hold;
RINGCAST_API int ringcast_gpu_map(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take,
                                  const struct ringcast_item *item, ringcast_device_ptr *out, ringcast_gpu_hold **hold);
/* Once the last hold of a frame has gone, and the take has ended, `ack` is enqueued on the take's stream, which must
 * still exist. Any thread; also after the reader was closed. NULL is allowed. */
RINGCAST_API void ringcast_gpu_unmap(ringcast_gpu_hold *hold);

/* Ends a take: enqueues `ack`, and releases the frame, as ringcast_reader_release. Does not wait. -ESTALE, -EIO: the
 * take is used up even so. -EINVAL: it has ended, perhaps by way of a copy of the struct. -EBUSY (capture): nothing was
 * enqueued, and the take is open still: end it after the capture. */
RINGCAST_API int ringcast_gpu_end(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take);

/* Gives back a frame that was not begun: as ringcast_reader_release, and what it has in the pool is not waited for. By
 * ringcast_reader_release itself its place in the pool would stay taken until this reader closes. -EBUSY: its take is
 * open: end that. -EINVAL: it is not held. */
RINGCAST_API int ringcast_gpu_release(ringcast_gpu_reader *reader, const struct ringcast_frame *frame);

/* Checks that all that was copied so far has come, or will. -EPIPE: the writer has died, and something that a stream of
 * this reader waited for was released: it holds no message. -ESTALE: this reader was evicted, as ringcast_reader_check.
 */
RINGCAST_API int ringcast_gpu_check(const ringcast_gpu_reader *reader);

/* Device memory for received tensors, for callers without an allocator. In the order of the stream where the
 * device has memory pools, else alloc and free may wait for the device. `free`: any thread, also after the reader was
 * closed; the stream must still exist, and if it captures a graph then, until the capture has ended. NULL is allowed.
 * -ENOMEM, -EBUSY (capture), -EINVAL, -EIO, -ECHILD. */
typedef struct ringcast_gpu_memory ringcast_gpu_memory;
RINGCAST_API int ringcast_gpu_memory_alloc(ringcast_gpu_reader *reader, uint64_t bytes, ringcast_stream stream,
                                           ringcast_device_ptr *out, ringcast_gpu_memory **memory);
RINGCAST_API void ringcast_gpu_memory_free(ringcast_gpu_memory *memory);
/* Like ringcast_gpu_fetch, without a writer: copies a tensor of device `ordinal` to host memory, and waits for that.
 * -ENODEV, -EINVAL, -ENOTSUP (as ringcast_gpu_commit), -EBUSY, -EIO, -ECHILD. */
RINGCAST_API int ringcast_gpu_copy_back(int32_t ordinal, const struct ringcast_tensor *tensor, void *to,
                                        ringcast_stream stream);
/* Waits until a stream of device `ordinal` has done all its work, for callers that go on by another stream. Not
 * counted. -ENODEV, -EINVAL, -EBUSY (capture), -EIO, -ECHILD. */
RINGCAST_API int ringcast_gpu_stream_wait(int32_t ordinal, ringcast_stream stream);
/* Has a stream of device `ordinal` go on only when another stream has done all its work so far: in the order of
 * the device, where the driver can; else this call waits. Both must exist; where they are one stream, the call only
 * says whether that captures. -EBUSY (one of them captures a graph: nothing was enqueued), -ENODEV, -EINVAL, -EIO,
 * -ECHILD. */
RINGCAST_API int ringcast_gpu_stream_follow(int32_t ordinal, ringcast_stream stream, ringcast_stream before);

/* Has the library's worker thread call run(context) once device `ordinal` is idle: it has done all that this process
 * has enqueued so far, on any stream, also on a stream that was destroyed since. For memory whose users' streams are
 * not known. Does not wait. If another stream of this process captures a graph on that device meanwhile, CUDA may end
 * that capture (cuCtxSynchronize). After a failure of the device, run is called too. -ENOMEM, -ENODEV, -EINVAL, -EIO,
 * -ECHILD: it will not be called. */
RINGCAST_API int ringcast_gpu_run_when_idle(int32_t ordinal, void (*run)(void *context), void *context);
/* Has that thread call run(context), again and again with pauses of 20 ms at most, until the call returns other than 0:
 * for what has to wait until a stream no longer captures a graph. -ENOMEM: it will not be called. */
RINGCAST_API int ringcast_gpu_run_until_done(int (*run)(void *context), void *context);

/* Whether the pool is open, why not, and what was received so far. -EINVAL, -ECHILD. */
RINGCAST_API int ringcast_gpu_reader_info(ringcast_gpu_reader *reader, struct ringcast_gpu_info *out);

#ifdef __cplusplus
}
#endif
#endif
