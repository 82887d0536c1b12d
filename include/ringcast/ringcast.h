/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringcast: one process writes a message once, into shared memory; every other process of the machine reads it there.
 *
 * Promise. One writer, up to `readers` readers at a time, each at its own pace. Every reader gets every frame that was
 * committed after it attached: whole, in order, once. Nobody waits for the group: the writer waits only when the
 * slowest reader is a whole ring behind, and a reader only when there is nothing new. Readers come and go at any time.
 *
 * Caveats.
 *   Crash    A writer that dies leaves only whole frames; readers drain them and then get -EPIPE. A reader that dies
 *            makes a writer that has to wait return -EOWNERDEAD, or the writer goes on without it (options.on_death);
 *            ringcast_writer_check() finds the dead at any time. Nothing is left behind: the memory is anonymous and
 *            goes with the last process that maps it.
 *   Slow     A reader that is alive holds the writer back for as long as it likes, unless options.slow_ns says how long
 *            it may. One that is evicted then gets -ESTALE from its next call: what it was reading may have been
 *            overwritten meanwhile, so what is read in place is only sure once release has returned 0.
 *   Fork     A handle belongs to the process that made it. In a child made by fork() every call on it gives -ECHILD,
 *            except close, which frees the child's own memory and leaves the parent's ring alone. A child made past the
 *            C library (a raw clone, _Fork) is not noticed: it must not touch the handle.
 *   Threads  One thread at a time per handle, but for cancel. Different handles are independent. A wait that finds
 *            another thread waiting gives -EDEADLK; on the hot path nobody looks.
 *   Signals  A signal handler that runs while a wait sleeps ends it with -EINTR. Nothing is lost; call again. While it
 *            spins, or just before it sleeps, it goes on. No function may be called from a signal handler.
 *   Lending  A frame's bytes stay as they are until it is released; a span's until it is committed or aborted. The
 *            writer can change what it has written: a reader that distrusts it copies first and checks the copy.
 *   Large    A frame that is too large for the ring goes through spill memory, without the caller's doing: memory of
 *            its own beside the ring, taken from the machine when it is first needed, used again when all readers have
 *            passed, and given back when it has lain idle. The writer waits when it is used up (options.spill_bytes),
 *            as it does when the ring is full.
 *   Files    A ring holds three descriptors for its writer, none for a reader; a handle that has waited holds one more
 *            (the other side's pidfd); ringcast_writer_check and _fd hold two, and one for each reader;
 *            ringcast_reader_fd and ringcast_writer_room_fd up to five each. Closing the handle closes them.
 *   Trust    A ring is open to processes of the same user that may look into the writer's /proc entry, and to
 *            no others.
 *
 * Lifecycle. ringcast_writer_create -> ringcast_writer_handle, a short string to hand over by any means ->
 *   ringcast_reader_attach in each reading process -> ringcast_writer_wait_readers, so that nobody misses
 *   the first frame.
 * Hot path.  Writer: reserve, write into the span, commit. Reader: next, read in place, release.
 *
 * Pointers must not be NULL, unless it says that they may.
 *
 * Sizes. Options, info, stats and peers begin with `size`: set it to sizeof the struct before the call. A later release
 * may add fields at the end, and a program and a library of different releases go on together. Options: fields that the
 * caller's struct lacks are zero, the default; fields that the library does not know must be zero, or the call gives
 * -E2BIG. Info, stats and peers: the library fills `size` bytes, and sets fields that it does not know to zero; of an
 * array, the first element's `size` is that of all. A size of less than 8, 0 among them, is -EINVAL.
 *
 * Results. Every function returns 0 or a count, or a negative errno with the one meaning given here;
 * ringcast_last_error() tells the same in words. Outputs are set only on success. A failed create or attach leaves
 * nothing to close. What blocks may also give -ECANCELED and -EDEADLK, where it is not said again.
 *   -EAGAIN      nothing to read, or no room to write, right now (asked with timeout 0)
 *   -ETIMEDOUT   the same when the time was up, or a reader was in the way for longer than options.slow_ns
 *   -EINTR       a signal handler ran while waiting
 *   -EPIPE       the writer is gone and everything it committed has been read
 *   -EOWNERDEAD  the writer had to wait, and a reader has died: in its way, or such that who is may wait for it
 *   -ESTALE      this reader was evicted: the writer goes on without it. Close it; a new one may attach
 *   -EMSGSIZE    the frame is larger than the ring and its spill memory can ever hold
 *   -EBUSY       a reservation is open already, or as many frames are held as the options allow
 *   -ECANCELED   the handle was cancelled, and the call would have had to wait
 *   -EDEADLK     another thread is waiting on this handle, or the very thread is, in a signal handler; or one was
 *                cancelled while it waited, or left by longjmp: then only close
 *   -EINVAL      an argument is out of range, or the handle is not one of ringcast's
 *   -E2BIG       a struct has fields that this library does not know, and they are set (see Sizes)
 *   -ENOENT      the ring that the handle names is no longer there
 *   -EACCES      the ring belongs to another user, or its process may not be looked into
 *   -EUSERS      all the reader slots are taken
 *   -EPROTO      the other side is of an incompatible build or in another PID namespace, or has written
 *                what it must not
 *   -ENOBUFS     the descriptor of ringcast_reader_fd or ringcast_writer_room_fd can't wait any more; ask for it anew
 *   -ECHILD      the handle was made before a fork, by the parent
 *   -ENOMEM, -ENOSPC, -EMFILE, -ENOSYS and others of the kernel, as it gave them at creation or attaching, or when
 *                spill memory was needed that the machine does not have
 */
#ifndef RINGCAST_RINGCAST_H
#define RINGCAST_RINGCAST_H

#include <stddef.h>
#include <stdint.h>

#include "ringcast/version.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RINGCAST_API __attribute__((visibility("default")))
#else
#define RINGCAST_API
#endif

typedef struct ringcast_writer ringcast_writer;
typedef struct ringcast_reader ringcast_reader;

/* Timeouts are nanoseconds of CLOCK_MONOTONIC. 0 tries once and never sleeps; RINGCAST_FOREVER waits without end; any
 * other negative number is -EINVAL, so that a deadline that has passed is not taken for no deadline. */
#define RINGCAST_FOREVER ((int64_t)-1)

/* Which memory holds a ring's data. AUTO takes the first of the others, in this order,
 * that the machine can give now. */
enum ringcast_memory {
  RINGCAST_MEMORY_AUTO = 0,
  RINGCAST_MEMORY_HUGETLB = 1,    /* 2 MiB pages from the reserved pool (/proc/sys/vm/nr_hugepages) */
  RINGCAST_MEMORY_SHMEM_HUGE = 2, /* 2 MiB pages of ordinary shared memory (transparent huge pages) */
  RINGCAST_MEMORY_PAGES = 3,      /* the machine's small pages */
};

/* Where a ring's data lies on a machine of several NUMA nodes. A node that is not there is an error; where the kernel
 * does not let us choose, ringcast_info tells. */
enum ringcast_numa {
  RINGCAST_NUMA_LOCAL = 0,       /* on the node of the CPU that makes it */
  RINGCAST_NUMA_NONE = 1,        /* wherever the kernel puts it */
  RINGCAST_NUMA_INTERLEAVED = 2, /* on all nodes in turns */
  RINGCAST_NUMA_NODE = 3,        /* on the node that is named */
};

/* What a writer does about a reader that it can't wait for. */
enum ringcast_policy {
  RINGCAST_FAIL = 0, /* the wait that the reader holds up returns an error that names it */
  RINGCAST_EVICT = 1 /* the writer goes on without it, and ringcast_writer_check tells */
};

/* What a wait may spend to be over sooner. A waiter learns how long after one another messages come. Where they come
 * regularly, the waiter sleeps until shortly before the next one is due, and spins then, for a share of a CPU that it
 * keeps to on average; elsewhere, and with fewer CPUs than parties, it just sleeps. */
enum ringcast_wait_mode {
  RINGCAST_WAIT_BALANCED = 0, /* as RINGCAST_WAIT in the environment says (latency, balanced, power), else 5 % */
  RINGCAST_WAIT_LATENCY = 1,  /* 25 % */
  RINGCAST_WAIT_POWER = 2     /* 0 */
};

/* What a frame's bytes are. The library itself reads none of them; those who send and receive agree by it. */
enum ringcast_kind {
  RINGCAST_KIND_BYTES = 0,  /* the caller's own */
  RINGCAST_KIND_TENSORS = 1 /* the typed layout of ringcast/frame.h */
};

/* Options: set `size` to sizeof the struct and the rest to zero, which means the default; then set what you want. See
 * Sizes, above. */
struct ringcast_writer_options {
  uint32_t size;
  uint32_t readers;     /* the most readers attached at once; default 64, at most 1024 */
  uint64_t capacity;    /* bytes of the ring; rounded up to a power of two of whole pages; default: a quarter of the L3
                         * cache, from 4 to 32 MiB, since a ring that leaves the cache is several times slower */
  uint32_t memory;      /* enum ringcast_memory; a kind that is asked for by name and can't be had is an error */
  uint32_t flags;       /* must be 0 */
  int64_t spin_ns;      /* how long a wait spins before it sleeps. 0: as experience and the number of CPUs tell, at most
                         * 20 us or RINGCAST_SPIN_US, or, with fewer CPUs than parties, yields for at most 50 us; -1:
                         * neither, ever; more: always spins that long, or, with fewer CPUs than parties, yields */
  uint32_t numa;        /* enum ringcast_numa */
  uint32_t numa_node;   /* for RINGCAST_NUMA_NODE; -EINVAL if there is no such node */
  uint64_t spill_bytes; /* the most memory for frames that are too large for the ring; rounded up to 2 MiB. 0: what
                         * RINGCAST_SPILL_BYTES says, else 4 GiB or half of what the machine or the container has free,
                         * and none if that can't be had; RINGCAST_NO_SPILL: none. It costs addresses in every process,
                         * and memory only as it is used */
  uint32_t on_death;    /* enum ringcast_policy, for a reader that has died, or has written what it must not: FAIL is
                         * -EOWNERDEAD, or -EPROTO */
  uint32_t on_slow;     /* enum ringcast_policy, for one that has been in the way for slow_ns: FAIL is -ETIMEDOUT */
  int64_t slow_ns;      /* how long a reader may be in the way: from the first reserve that finds no room, over all
                         * calls until one succeeds. 0: for ever, or as each call's timeout says */
  uint32_t wait;        /* enum ringcast_wait_mode */
  uint32_t reserved;    /* must be 0 */
};

#define RINGCAST_NO_SPILL UINT64_MAX

/* Flags of a reader. KEEP: frames in spill memory can be kept (ringcast_reader_retain), where the machine allows it. */
#define RINGCAST_READER_RETAIN 1u

struct ringcast_reader_options {
  uint32_t size;
  uint32_t flags;   /* RINGCAST_READER_RETAIN */
  int64_t spin_ns;  /* as above */
  const char *name; /* shown where the reader is spoken of ("rank 3"); the first 31 bytes count; NULL = none */
  uint32_t leases;  /* the most frames held at once; default 1, at most 64 */
  uint32_t wait;    /* enum ringcast_wait_mode */
};

/* Memory lent to the writer, in the ring or in spill memory: write here. */
struct ringcast_span {
  void *data; /* 16 bytes into a 64-byte line */
  size_t bytes;
};

/* A frame lent to a reader, in the ring or in spill memory: read here. */
struct ringcast_frame {
  const void *data; /* 16 bytes into a 64-byte line */
  size_t bytes;
  uint64_t position; /* where the frame starts, in bytes since the ring was made; names it in messages */
  uint16_t kind;     /* enum ringcast_kind, as committed */
};

enum ringcast_peer_state {
  RINGCAST_PEER_JOINING = 1,
  RINGCAST_PEER_ACTIVE = 2,
  RINGCAST_PEER_DEAD = 3,
  RINGCAST_PEER_STOPPED = 4, /* by a signal (SIGSTOP) or a debugger: it is slow, not dead */
  RINGCAST_PEER_EVICTED = 5  /* it lives; its slot is its own until it closes */
};

/* What one party has done since it began. Each number is true of some moment, and only grows. */
struct ringcast_stats {
  uint32_t size, reserved;
  uint64_t frames, bytes; /* committed by the writer, or released by the reader; payload bytes */
  uint64_t waits;         /* times that there was no room, or no frame, and the call waited for more than some
                           * microseconds */
  uint64_t sleeps;        /* times that a wait slept in the kernel */
  uint64_t wakes;         /* system calls made to wake others */
  uint64_t waited_ns;
  uint32_t histogram[16]; /* of the waits: [i] took less than 2^i us and not less than 2^(i-1); [15] all that took
                           * longer */
  uint64_t later[4];      /* 0. New counts take this place: a ringcast_peer contains a whole ringcast_stats */
};

/* One reader as seen at one moment; it may have moved on since. */
struct ringcast_peer {
  uint32_t size;
  uint32_t slot;
  int32_t pid;
  uint32_t state;    /* enum ringcast_peer_state */
  uint64_t position; /* up to here it has released */
  uint64_t lag;      /* bytes committed that it has not released */
  uint64_t stalls;   /* times that the writer waited for it */
  struct ringcast_stats stats;
  char name[32];       /* as it gave it at attach, or empty */
  uint64_t blocked_ns; /* for how long the writer has been waiting for it by now; 0: it has not, or a tap asks */
};

struct ringcast_info {
  uint32_t size;
  uint32_t readers;   /* slots */
  uint64_t capacity;  /* bytes of the ring, all usable */
  uint64_t max_frame; /* the largest frame's bytes, spill memory included */
  uint64_t tail;      /* bytes committed so far, headers and rounding included */
  uint32_t memory;    /* enum ringcast_memory: what was got */
  uint64_t page_size; /* of the data, bytes */
  int32_t writer_pid;
  int64_t spin_ns;      /* of this handle */
  uint32_t numa;        /* enum ringcast_numa: what the kernel took on; NONE where one node leaves nothing to choose */
  uint32_t numa_node;   /* for LOCAL and NODE */
  int32_t numa_error;   /* why NUMA is NONE although more was asked for: a negative errno, or 0 */
  int32_t spill_error;  /* why there is no spill memory although none was asked to be left out: a negative errno,
                         * or 0 */
  uint64_t ring_frame;  /* the largest frame's bytes that stays in the ring */
  uint64_t spill_bytes; /* the most spill memory there can be; 0: there is none */
  uint64_t spill_used;  /* how much of it the ring has from the machine now */
};

/* ---- Writer: lifecycle ------------------------------------------------------------------------------------------ */

/* Makes a ring with default options, or with `options` (NULL = defaults). Blocks while the kernel hands out and clears
 * the memory, all of which is reserved here: a frame that stays in the ring never meets a full machine later.
 * -EINVAL, -ENOMEM, -ENOSPC, -EFBIG (RLIMIT_FSIZE), -EMFILE, -ENOSYS. Any thread. */
RINGCAST_API int ringcast_writer_create(ringcast_writer **out);
RINGCAST_API int ringcast_writer_create_ex(const struct ringcast_writer_options *options, ringcast_writer **out);

/* Says that no more comes and frees the handle. Readers drain what was committed, then get -EPIPE. NULL is allowed.
 * An open reservation is aborted. Never blocks. What a ringcast_gpu_writer is made of is freed when that is closed. */
RINGCAST_API void ringcast_writer_close(ringcast_writer *writer);

/* The ring's handle: printable, at most 95 bytes, valid as long as the writer. Owned by the writer. Wait-free. */
RINGCAST_API const char *ringcast_writer_handle(const ringcast_writer *writer);

/* Blocks until at least `count` readers are attached and alive; returns how many are. -EAGAIN, -ETIMEDOUT, -EINTR,
 * -EINVAL if `count` is more than the slots, -ECHILD. */
RINGCAST_API int ringcast_writer_wait_readers(ringcast_writer *writer, uint32_t count, int64_t timeout_ns);

/* Makes the wait that another thread is in on this handle, and every later call that would have to wait, return
 * -ECANCELED. Any thread, while the handle is open. Never blocks. */
RINGCAST_API void ringcast_writer_cancel(ringcast_writer *writer);

/* ---- Writer: hot path ------------------------------------------------------------------------------------------- */

/* Lends `bytes`, contiguous. Wait-free while the room already granted lasts; else looks at the readers' cursors, and
 * blocks up to the timeout when the slowest is a ring behind. No reader sees anything before commit. More than
 * ringcast_info.ring_frame is lent of spill memory: then it always looks at the cursors, blocks while that is used up,
 * and in the kernel while the machine hands it out (-ENOMEM, -ENOSPC: it can't; nothing is lost). -EMSGSIZE, -EBUSY,
 * -EAGAIN, -ETIMEDOUT, -EINTR, -EOWNERDEAD, -EPROTO, -ECHILD. After an error nothing is open. */
RINGCAST_API int ringcast_writer_reserve(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                                         struct ringcast_span *out);

/* A descriptor for poll, epoll, asyncio and the like: readable when a reserve or grow that has given -EAGAIN (it was
 * called with timeout 0) may give something else: room, or what else ends a wait (a reader's death, options.slow_ns,
 * cancel). Then try again with timeout 0; each -EAGAIN makes the descriptor wait again, for what that call wanted, and
 * costs some microseconds from here on. It may become readable for nothing, and while there is no room it does so every
 * 50 ms. Poll it, never read or close it: it belongs to the writer, and is the same at each call. It starts readable.
 * Returns it, or -EMFILE, -ENFILE, -ENOMEM, -ECHILD. No thread is needed where io_uring has futex waits. */
RINGCAST_API int ringcast_writer_room_fd(ringcast_writer *writer);

/* Makes the open reservation `bytes` long in all, keeping what was written; use the new span from here on: it may have
 * moved. What outgrows the ring, or its place in spill memory, is copied, to where it can double. Errors as reserve;
 * -EINVAL if none is open. After an error the reservation is as it was. */
RINGCAST_API int ringcast_writer_grow(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                                      struct ringcast_span *out);

/* Publishes the first `bytes` of the reservation as one frame of `kind`, and closes it; what is left over returns to
 * the ring. -EINVAL if none is open or `bytes` is more than was reserved (it stays open), -ECHILD. Wait-free, but for
 * one wake-up call to the kernel when a reader sleeps. */
RINGCAST_API int ringcast_writer_commit(ringcast_writer *writer, size_t bytes, uint16_t kind);

/* Gives the reservation back unseen. -EINVAL if none is open, -ECHILD. Wait-free. */
RINGCAST_API int ringcast_writer_abort(ringcast_writer *writer);

/* reserve + memcpy + commit. Errors as reserve. `data` may be sent on several writers, by several threads at once: a
 * frame that is built once, in memory of one's own (ringcast/frame.h), goes out on any number of rings. */
RINGCAST_API int ringcast_writer_send(ringcast_writer *writer, const void *data, size_t bytes, uint16_t kind,
                                      int64_t timeout_ns);

/* For who learns a frame's size only by writing it: how much to reserve, so that growing is seldom needed. Nothing is
 * padded by it, for commit trims. `tag` is a number of the caller's own that says which frames are alike; the writer
 * remembers the 64 tags, about, that were learned last.
 *
 *     size_t bytes = ringcast_writer_estimate(writer, tag);
 *     ringcast_writer_reserve(writer, bytes, ...) -> write, ringcast_writer_grow() if it does not do -> commit(used)
 *     ringcast_writer_learn(writer, tag, used);
 *
 * It is a little more than the third largest of the last 32 to 64 sizes, so a rare big frame does not move it; 4096 for
 * a tag that is not known; never more than the ring can hold. No call on the ring learns by itself. Both are
 * wait-free, and for the one thread that has the handle. */
RINGCAST_API size_t ringcast_writer_estimate(const ringcast_writer *writer, uint32_t tag);
RINGCAST_API void ringcast_writer_learn(ringcast_writer *writer, uint32_t tag, size_t bytes);

/* ---- Writer: introspection -------------------------------------------------------------------------------------- */

/* Fills up to `capacity` peers and returns how many readers there are. Racy by nature: each is true of some moment.
 * Wait-free, but asks the kernel whether each process lives. -EINVAL, -ECHILD. */
RINGCAST_API int ringcast_writer_peers(ringcast_writer *writer, struct ringcast_peer *peers, uint32_t capacity);

/* The reader that is furthest behind: after -ETIMEDOUT, the one to blame (after -EOWNERDEAD, ringcast_writer_check
 * tells). Returns 1, or 0 if there is no reader. As ringcast_writer_peers. */
RINGCAST_API int ringcast_writer_slowest(ringcast_writer *writer, struct ringcast_peer *out);

/* Looks whether all readers live, without waiting to be held back by a dead one. Returns 1 and tells of one that does
 * not, or was evicted: with EVICT each is told once, also those that a wait went on without (of more than 64, the
 * latest); so call again until it returns 0: all is well. With FAIL a dead reader is told at each call, until it is not
 * attached any more. One system call while all live, where there are pidfds (Linux 5.3), and one descriptor for each
 * reader; else /proc is read. -EMFILE, -ENFILE, -ENOMEM, -ECHILD. */
RINGCAST_API int ringcast_writer_check(ringcast_writer *writer, struct ringcast_peer *out);

/* A descriptor for poll, epoll, asyncio and the like: readable when a reader has died, or a wait went on without one
 * and ringcast_writer_check has not told of it yet; then call that until it returns 0. Poll it, never read or close it:
 * it belongs to the writer, and is the same at each call. A reader that attaches later is watched from the next call of
 * this, check or wait_readers on. Errors as check. */
RINGCAST_API int ringcast_writer_fd(ringcast_writer *writer);

RINGCAST_API int ringcast_writer_stats(const ringcast_writer *writer, struct ringcast_stats *out);
RINGCAST_API int ringcast_writer_info(const ringcast_writer *writer, struct ringcast_info *out);

/* ---- Reader: lifecycle ------------------------------------------------------------------------------------------ */

/* Attaches to the ring that `handle` names; the reader's first frame is the next one to be committed.
 * -EINVAL (not a handle), -ENOENT (its ring is gone), -EACCES, -EPROTO (another build or PID namespace), -EUSERS,
 * -ENOMEM, -EMFILE. Any thread. Blocks only in the kernel, to map the memory. */
RINGCAST_API int ringcast_reader_attach(const char *handle, ringcast_reader **out);
RINGCAST_API int ringcast_reader_attach_ex(const char *handle, const struct ringcast_reader_options *options,
                                           ringcast_reader **out);

/* Leaves the ring and frees the handle; a frame still held is released, but for what a device may still read (see
 * ringcast_gpu_reader_close). NULL is allowed. Never blocks. */
RINGCAST_API void ringcast_reader_close(ringcast_reader *reader);

/* Leaves the ring as close does, but keeps its memory mapped until the handle is closed: for who may still look at
 * where frames were, after they have been released or with this call. The writer is held back by nothing any more (but,
 * as with close, by what a device may still read), and what is looked at changes at any time; but to look is safe,
 * whatever becomes of the writer: memory of the ring is never taken away, and spill memory that was given back to the
 * machine reads as zeros, in pages that looking puts in place anew (only where the machine has none left can that be a
 * signal). The descriptors are closed. From here on the handle is good for ringcast_reader_close alone, from any
 * thread; all else is -EINVAL. A second time does nothing. Never blocks. */
RINGCAST_API void ringcast_reader_leave(ringcast_reader *reader);

/* As ringcast_writer_cancel: frames that are there can still be had. */
RINGCAST_API void ringcast_reader_cancel(ringcast_reader *reader);

/* ---- Reader: hot path ------------------------------------------------------------------------------------------- */

/* Lends the next frame. Wait-free when one is there, but for one call to the kernel when it lies in spill memory that
 * this reader has not read from before; else blocks up to the timeout. -EAGAIN, -ETIMEDOUT, -EINTR, -EPIPE, -EBUSY,
 * -ESTALE, -EPROTO, -ECHILD; -ENOMEM and others of the kernel if spill memory can't be read: then the frame is still
 * the next one. */
RINGCAST_API int ringcast_reader_next(ringcast_reader *reader, int64_t timeout_ns, struct ringcast_frame *out);

/* A descriptor for poll, epoll, asyncio and the like: readable when next may have something to give (a frame, or the
 * writer's end). Then call next with timeout 0 until it says -EAGAIN, which makes the descriptor wait again. Poll
 * it, never read or close it: it belongs to the reader, and is the same at each call. It starts readable, and is so for
 * nothing as long as a device copies frames (gpu.h) that the writer may come to wait for, as they are given back by
 * calls. Returns it, or -EMFILE, -ENFILE, -ENOMEM, -ECHILD. No thread is
 * needed where io_uring has futex waits (Linux 6.7). */
RINGCAST_API int ringcast_reader_fd(ringcast_reader *reader);

/* Gives the frame back: from here on the writer may overwrite it, and what follows once all older ones are given back
 * too. Frames that are held may be released in any order. -EINVAL if that frame is not held, -ECHILD; -ESTALE: this
 * reader was evicted, and the frame may have been overwritten while it was read: drop what was made of it.
 * Wait-free, but for one wake-up call to the kernel when the writer sleeps waiting for this reader. */
RINGCAST_API int ringcast_reader_release(ringcast_reader *reader, const struct ringcast_frame *frame);

/* 0: all that was read of held frames before this call was whole. -ESTALE: this reader was evicted. For who must know
 * before it acts on what it has read, and would rather not release yet. Wait-free. -ECHILD. */
RINGCAST_API int ringcast_reader_check(const ringcast_reader *reader);

/* ---- Reader: keeping -------------------------------------------------------------------------------------------- */

/* A frame's memory, kept for as long as one likes: the caller's own, to read and to write to, although it was not
 * copied. */
typedef struct ringcast_retained ringcast_retained;

/* For a reader with KEEP, and a frame that it holds: in place of releasing it. *data is
 * where the frame's bytes are from here on, frame->data is of no use any more, and the frame is not among those held.
 * What is written there nobody else sees. It stays valid after the reader has closed and the writer has gone.
 * The ring has its memory back once it was dropped, at the reader's next call of next; or before, when the ring has
 * gone on by a quarter, or the writer waits for it: then next, in whatever wait it is, copies what was not written to,
 * one page at a time, which takes several times as long as to copy the frame before would have; so a reader that has
 * had to, or whose frames were mostly written to, leaves frames uncopied less often from then on. fork copies all that
 * is kept, and so does closing the reader unless the writer has closed. While this reader calls nothing, what it has
 * kept or dropped holds the writer back as frames that are held do.
 * -ENOTSUP: copy this frame, it is held as before: it lies in the ring; with what is kept and not copied, or dropped
 * since the last call of next, it is more than a quarter of the spill memory; where it lies, or at 32 other places,
 * something is kept; frames were kept for long of late; the writer evicts slow readers (options.on_slow); the mapping
 * can't be had (RINGCAST_DISABLE=cow, no
 * /proc/self/pagemap, pages of more than 4 KiB). -EINVAL: it is not held, or is kept. -EPROTO, -ESTALE, -ENOMEM,
 * -ECHILD. A writer that is hostile can change what was not written to.
 * Memory: after the reader has closed, one retained frame, however small, keeps all spill memory of the ring until the
 * drop: copy a small array that lives long. Kernel I/O: vmsplice, MSG_ZEROCOPY and O_DIRECT take pages, not addresses.
 * If such a call still reads a retained frame when the reader copies it, the call goes on with the ring's page, which
 * the writer may overwrite: before the frame's bytes go to such a call, copy them. */
RINGCAST_API int ringcast_reader_retain(ringcast_reader *reader, const struct ringcast_frame *frame,
                                        ringcast_retained **out, void **data);

/* Whether it is worth a try, with a frame in spill memory: 1 or 0. Wait-free. */
RINGCAST_API int ringcast_reader_retains(const ringcast_reader *reader);

/* The memory is not used any more. NULL is allowed. Any thread. Never blocks, but for a moment in which the reader, or
 * a fork, copies. */
RINGCAST_API void ringcast_retained_release(ringcast_retained *kept);

/* ---- Reader: introspection -------------------------------------------------------------------------------------- */

/* Bytes committed and not yet released by this reader; of no meaning once it was evicted. Wait-free. -ECHILD. */
RINGCAST_API int ringcast_reader_lag(const ringcast_reader *reader, uint64_t *out);

RINGCAST_API int ringcast_reader_stats(const ringcast_reader *reader, struct ringcast_stats *out);
RINGCAST_API int ringcast_reader_info(const ringcast_reader *reader, struct ringcast_info *out);

/* ---- Tap -------------------------------------------------------------------------------------------------------- */

/* An observer that nobody waits for: it copies frames, takes no slot, and when it is too slow it loses some and counts
 * them. It never falls behind by more than a ring, and loses nothing as long as it is less than half a ring behind; but
 * for frames in spill memory, which it may lose as soon as all readers have released them. */
typedef struct ringcast_tap ringcast_tap;

/* As ringcast_reader_attach, but for -EUSERS: there is always room for a tap. */
RINGCAST_API int ringcast_tap_attach(const char *handle, ringcast_tap **out);
RINGCAST_API void ringcast_tap_close(ringcast_tap *tap);

/* Copies the next frame; the copy is valid until the next call on this tap. Blocks up to the timeout when there is
 * none. -EAGAIN, -ETIMEDOUT, -EINTR, -EPIPE, -EPROTO, -ENOMEM, -ECHILD. */
RINGCAST_API int ringcast_tap_next(ringcast_tap *tap, int64_t timeout_ns, struct ringcast_frame *out);

/* Bytes of the ring (headers and rounding included) that were overwritten before this tap had copied them, and how many
 * gaps they make. -ECHILD. */
RINGCAST_API int ringcast_tap_lost(const ringcast_tap *tap, uint64_t *bytes, uint64_t *gaps);

/* The ring as ringcast_writer_info, _stats and _peers show it to the writer itself. */
RINGCAST_API int ringcast_tap_info(const ringcast_tap *tap, struct ringcast_info *out);
RINGCAST_API int ringcast_tap_stats(const ringcast_tap *tap, struct ringcast_stats *out);
RINGCAST_API int ringcast_tap_peers(const ringcast_tap *tap, struct ringcast_peer *peers, uint32_t capacity);

/* ---- In words --------------------------------------------------------------------------------------------------- */

/* What went wrong in this thread's last failed call, as a sentence that says what to do. Never NULL; valid until this
 * thread's next call. */
RINGCAST_API const char *ringcast_last_error(void);

/* "hugetlb", "shmem-huge", "pages"; "auto". NULL for a number that is none of them. */
RINGCAST_API const char *ringcast_memory_name(uint32_t memory);

/* RINGCAST_VERSION of the library that is loaded. */
RINGCAST_API const char *ringcast_version(void);

#ifdef __cplusplus
}
#endif
#endif
