/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringcast: one process writes a message once, into shared memory; every other process of the
 * machine reads it there.
 *
 * Promise. One writer, up to `readers` readers at a time, each at its own pace. Every reader gets
 * every frame that was committed after the reader attached, or from the newest on (options.start):
 * whole, in order, once. No process waits for the group: the writer waits only when the slowest
 * reader is a whole ring behind, a reader only when there is no new frame. Readers come and go at
 * any time.
 *
 * Caveats.
 *   Crash    A writer that dies leaves only whole frames; readers drain them and then get -EPIPE.
 *            If a reader dies, a writer that has to wait returns -EOWNERDEAD or goes on without it
 *            (options.on_death); ringcast_writer_check() finds dead readers at any time. No
 *            files are left behind: the memory is anonymous and goes with the last process that
 *            maps it.
 *   Slow     A live reader may block the writer without limit, unless options.slow_ns sets a limit.
 *            An evicted reader gets -ESTALE from its next call: the writer may have overwritten the
 *            frames that it held. Data read in place is therefore certain only after
 *            release, or ringcast_reader_check, has returned 0.
 *   Fork     A handle belongs to the process that made it. In a child made by fork() every call on
 *            the handle gives -ECHILD, except close, which frees the child's own memory and leaves
 *            the parent's ring alone. ringcast does not notice a child made without the C library
 *            (a raw clone, _Fork): the child must not touch the handle.
 *   Threads  One thread at a time per handle, except for cancel. Different handles are independent.
 *            A wait that finds another thread waiting gives -EDEADLK; the hot path does not check.
 *   Signals  A signal handler that runs while a wait sleeps ends it with -EINTR. No data is lost;
 *            call again. While it spins, or just before it sleeps, the wait goes on. Signal
 *            handlers must not call ringcast.
 *   Leases   A frame's bytes do not change until the frame is released, a span's until commit or
 *            abort. A hostile writer can change them: a reader that distrusts the writer copies the
 *            frame first and checks the copy.
 *   Large    A frame that is too large for the ring goes through spill memory, without action by
 *            the caller. Spill memory lies beside the ring. The writer takes it from the machine
 *            when it first needs it, reuses it when all readers have passed, and gives it back when
 *            idle. If spill memory is used up (options.spill_bytes), the writer waits, as with a
 *            full ring.
 *   Files    A writer holds three descriptors. A reader that retains frames holds one, and so does
 *            a tap of a ring with spill memory; every other reader holds none. A handle that has
 *            waited holds one more (the peer's pidfd); ringcast_writer_check and _fd hold two, and
 *            one for each reader; ringcast_reader_fd and ringcast_writer_room_fd up to five each.
 *            Closing the handle closes them. None has a number below 3; one that the program closes
 *            is lost, and the library does not touch the file that has the number then.
 *   Trust    Only processes of the same user that may read the writer's /proc entry can open a
 *            ring.
 *
 * Lifecycle. The writer: ringcast_writer_create, then ringcast_writer_handle, a short string to
 * hand over by any means. Each reading process: ringcast_reader_attach. The writer again:
 * ringcast_writer_wait_readers, so that every reader gets the first frame.
 *
 * Hot path. The writer: reserve, write into the span, commit. A reader: next, read in place,
 * release.
 *
 * Pointers must not be NULL, unless the function's comment allows NULL.
 *
 * Sizes. Options, info, stats and peers begin with `size`: set `size` to sizeof the struct before
 * the call. A later release may add fields at the end; a program and a library of different
 * releases still work together. Options: fields that the caller's struct lacks are zero, the
 * default; if a field unknown to the library is not zero, the call gives -E2BIG. Info, stats and
 * peers: the library fills `size` bytes and sets unknown fields to zero. In an array, the first
 * element's `size` applies to all elements. A size of less than 8 (also 0) is -EINVAL.
 *
 * Results. Every function returns 0 or a count, or a negative errno with the one meaning given
 * here; ringcast_last_error() gives the same in words. Outputs are set only on success. A failed
 * create or attach leaves nothing to close. Some codes are not in the comments of the functions: a
 * call with a timeout may also give -ECANCELED, -EDEADLK, and -EINVAL if the timeout is negative; a
 * call with a struct that begins with `size` -EINVAL, and with options -E2BIG; a call on a reader
 * after ringcast_reader_leave -EINVAL.
 *   -EAGAIN      timeout 0: no frame to read, or no room to write, right now
 *   -ETIMEDOUT   no frame, or no room, until the end of the timeout; or a reader blocked the writer
 *                for longer than options.slow_ns
 *   -EINTR       a signal handler ran during the wait
 *   -EPIPE       the writer is gone and everything it committed has been read
 *   -EOWNERDEAD  the ring is full and a reader has died: either the dead reader is the blocker, or
 *                the blocker may be waiting for the dead reader
 *   -ESTALE      this reader was evicted: the writer goes on without it. Close it; a new one may
 *                attach
 *   -EMSGSIZE    the frame is larger than the ring and its spill memory can ever hold
 *   -EBUSY       a reservation is open already, or as many frames are held as the options allow
 *   -ECANCELED   the handle was cancelled, and the call would have had to wait
 *   -EDEADLK     another thread waits on this handle, or the same thread does and a signal handler
 *                called; or a waiting thread was cancelled or left the wait by longjmp: then only
 *                close the handle
 *   -EINVAL      an argument is out of range
 *   -E2BIG       a struct sets fields that this library does not know (see Sizes)
 *   -ENOENT      the ring that the handle names no longer exists
 *   -EACCES      the ring belongs to another user, or the caller may not read the writer's /proc
 *                entry
 *   -EUSERS      all reader slots are taken
 *   -ENODATA     attach: there is no frame with options.tag to start at (enum ringcast_start)
 *   -EPROTO      the peer is of an incompatible build, in another PID or time namespace, or wrote
 *                invalid data
 *   -ENOBUFS     a descriptor of the handle can't wait any more, and is closed: a try with timeout
 *                0 could not arm it (ringcast_reader_fd, ringcast_writer_room_fd), or the program
 *                has closed a descriptor of the library. Call the function again for a new
 *                descriptor
 *   -ECHILD      the parent process made the handle before a fork
 *   -EBADF       the program has closed the descriptor by which a tap reads large frames: attach
 *                again
 *   -EMFILE, -ENFILE, -ENOMEM, -EIO
 *                a wait: nothing tells whether the awaited process lives, as no descriptor is free
 *                or /proc is hidden, and the process may have died. Rare: a handle keeps a
 *                descriptor for it from attach on
 *   -ENOMEM, -ENOSPC, -EMFILE, -ENOSYS and other codes of the kernel, unchanged
 *                at create or attach, or when the machine can't provide spill memory, or no thread
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

/* Timeouts are nanoseconds of CLOCK_MONOTONIC. 0 tries once and never sleeps; RINGCAST_FOREVER
 * waits without limit. Any other negative number is -EINVAL: a deadline in the past must not become
 * a wait without limit. */
#define RINGCAST_FOREVER ((int64_t)-1)

#define RINGCAST_NAME_BYTES   48 /* of a ring's name, with the final zero */
#define RINGCAST_HANDLE_BYTES 96 /* of a handle, with the final zero */

/* Which memory holds a ring's data. AUTO takes the first kind, in this order, that the machine can
 * provide now. */
enum ringcast_memory {
  RINGCAST_MEMORY_AUTO = 0,
  /* 2 MiB pages from the reserved pool (/proc/sys/vm/nr_hugepages) */
  RINGCAST_MEMORY_HUGETLB = 1,
  /* 2 MiB pages of ordinary shared memory (transparent huge pages) */
  RINGCAST_MEMORY_SHMEM_HUGE = 2,
  /* the machine's small pages */
  RINGCAST_MEMORY_PAGES = 3,
};

/* Where a ring's data lies on a machine of several NUMA nodes. A node that does not exist is an
 * error. If the kernel does not allow the choice, ringcast_info says so. */
enum ringcast_numa {
  RINGCAST_NUMA_LOCAL = 0,       /* on the node of the CPU that creates the ring */
  RINGCAST_NUMA_NONE = 1,        /* wherever the kernel puts it */
  RINGCAST_NUMA_INTERLEAVED = 2, /* on all nodes in turn */
  RINGCAST_NUMA_NODE = 3,        /* on node `numa_node` */
};

/* What a writer does about a dead, invalid or slow reader. */
enum ringcast_policy {
  /* the blocked wait returns an error that names the reader */
  RINGCAST_FAIL = 0,
  /* the writer goes on without the reader, and ringcast_writer_check reports it */
  RINGCAST_EVICT = 1
};

/* How much CPU time a wait may spend to end sooner. A waiter learns the interval between messages.
 * If they come regularly, it sleeps until shortly before the next one is due and then spins, within
 * a share of a CPU on average. Without a regular interval, or with fewer CPUs than participants, it
 * just sleeps. */
enum ringcast_wait_mode {
  /* as RINGCAST_WAIT in the environment says (latency, balanced, power), else at most 5 % of a
   * CPU */
  RINGCAST_WAIT_BALANCED = 0,
  /* at most 25 % */
  RINGCAST_WAIT_LATENCY = 1,
  /* none: always sleeps */
  RINGCAST_WAIT_POWER = 2
};

/* What a frame's bytes are: an agreement between sender and receiver. A program may use the numbers
 * from 2 to 0xFEFF for kinds of its own; the numbers from 0xFF00 to 0xFFFF are reserved for
 * ringcast. */
enum ringcast_kind {
  RINGCAST_KIND_BYTES = 0,  /* the caller's own */
  RINGCAST_KIND_TENSORS = 1 /* a typed frame (ringcast/frame.h), with or without tensors */
};

/* Options: set `size` to sizeof the struct and the rest to zero, which means the default; then set
 * the fields of interest. See Sizes, above. */
struct ringcast_writer_options {
  uint32_t size;
  uint32_t readers; /* the most readers attached at once; default 64, at most 1024 */
  /* Bytes of the ring; rounded up to a power of two of whole pages. Default: a quarter of the L3
   * cache, from 4 to 32 MiB, because a ring larger than the cache is several times slower. */
  uint64_t capacity;
  /* enum ringcast_memory; an explicit kind that the machine can't provide is an error. */
  uint32_t memory;
  uint32_t flags; /* must be 0 */
  /* How long a wait spins before it sleeps. 0: RINGCAST_SPIN_US, if set, as if given here; else
   * adaptive, at most 20 us; with fewer CPUs than parties, yields for at most 50 us. -1: never
   * spins or yields. More: always spins so long. Once another thread has interrupted the spin, or
   * with fewer CPUs than participants, it yields between two looks. */
  int64_t spin_ns;
  uint32_t numa;      /* enum ringcast_numa */
  uint32_t numa_node; /* for RINGCAST_NUMA_NODE; -EINVAL if there is no such node */
  /* The most memory for frames too large for the ring; rounded up to 2 MiB. 0:
   * RINGCAST_SPILL_BYTES, else 4 GiB or half of the free memory of the machine or container; none
   * if the kernel refuses. RINGCAST_NO_SPILL: none. Spill memory costs addresses in every process,
   * and memory only when used. */
  uint64_t spill_bytes;
  /* enum ringcast_policy, for a reader that has died (FAIL: -EOWNERDEAD) or has written invalid
   * data (FAIL: -EPROTO). */
  uint32_t on_death;
  /* enum ringcast_policy, for a reader that has blocked the writer for slow_ns: FAIL is
   * -ETIMEDOUT. */
  uint32_t on_slow;
  /* How long a reader may block the writer: from the first reserve that finds no room, over all
   * calls until one succeeds. A reader that keeps releasing is never evicted, however slow: it sets
   * the writer's pace. 0: no limit, only the timeout of each call. */
  int64_t slow_ns;
  uint32_t wait; /* enum ringcast_wait_mode */
  /* The most frames that a reader may have left to take: then reserve waits as for room. A frame is
   * taken when it is released, or when the reader calls ringcast_reader_next again. 0: no bound but
   * the ring's bytes. Taps do not count. */
  uint32_t ahead;
  /* For tools (ringcast/inspect.h): 1 to 47 letters, digits and any of ._:+-; NULL: no name. */
  const char *name;
};

#define RINGCAST_NO_SPILL UINT64_MAX

/* A reader's flag: ringcast_reader_retain works on frames in spill memory, if the machine supports
 * it. */
#define RINGCAST_READER_RETAIN 1u

/* Where a reader starts. LATEST: at the newest frame, so a reader that comes late, or comes back,
 * has the last value at once; then every later frame follows. With options.tag, at the newest frame
 * that has the tag in its typed header (ringcast/frame.h), which the ring remembers for about 64
 * tags. From the start on, the reader holds the writer back as any reader does, so the frame is
 * neither torn nor skipped.
 *
 * There may be no such frame:
 *   - No frame was committed yet: the reader starts at the first one; with a tag, attach gives
 *     -ENODATA.
 *   - The ring may overwrite a frame once more than half the ring was committed since its start.
 *     The newest frame is never so old; for the newest of a tag, attach then gives -ENODATA.
 *   - A frame in spill memory goes after all readers have released it: when the writer needs the
 *     memory, or gives it back to the machine, as reserve may before the next commit. The reader
 *     then starts at the next frame; with a tag, attach gives -ENODATA. */
enum ringcast_start {
  RINGCAST_START_NEXT = 0, /* at the next frame to be committed */
  RINGCAST_START_LATEST = 1
};

struct ringcast_reader_options {
  uint32_t size;
  uint32_t flags;  /* RINGCAST_READER_RETAIN, or 0 */
  int64_t spin_ns; /* as above */
  /* Shown in peers and error texts ("rank 3"), where 31 bytes have room; NULL: none. */
  const char *name;
  uint32_t leases; /* the most frames held at a time; default 1, at most 64 */
  uint32_t wait;   /* enum ringcast_wait_mode */
  uint32_t start;  /* enum ringcast_start */
  uint32_t tag;    /* for RINGCAST_START_LATEST: the tag of the frame to start at; 0: any frame */
};

/* Memory leased to the writer, in the ring or in spill memory: write here. */
struct ringcast_span {
  void *data; /* 16 bytes into a 64-byte line */
  size_t bytes;
};

/* A frame leased to a reader, in the ring or in spill memory: read here. */
struct ringcast_frame {
  const void *data; /* 16 bytes into a 64-byte line */
  size_t bytes;
  /* Where the frame starts, in bytes since the ring was made; it names the frame in error texts. */
  uint64_t position;
  uint16_t kind; /* enum ringcast_kind, as committed */
};

enum ringcast_peer_state {
  /* nothing tells whether it lives: no descriptor is free, or /proc is hidden */
  RINGCAST_PEER_UNKNOWN = 0,
  RINGCAST_PEER_JOINING = 1,
  RINGCAST_PEER_ACTIVE = 2,
  RINGCAST_PEER_DEAD = 3,
  RINGCAST_PEER_STOPPED = 4, /* by a signal (SIGSTOP) or a debugger: slow, not dead */
  RINGCAST_PEER_EVICTED = 5  /* alive; the reader keeps its slot until it closes */
};

/* What one participant has done since it began. Each number was true at some moment, and only
 * grows. */
struct ringcast_stats {
  uint32_t size, reserved;
  uint64_t frames, bytes; /* committed by the writer, or released by the reader; payload bytes */
  /* Waits for room (over all calls until one succeeds), or calls that waited for a frame; without
   * those of less than a few microseconds. */
  uint64_t waits;
  uint64_t sleeps; /* how often a wait slept in the kernel */
  uint64_t wakes;  /* system calls made to wake the other side */
  uint64_t waited_ns;
  /* Of the waits: [i] took less than 2^i us and not less than 2^(i-1); [15] the longer ones. */
  uint32_t histogram[16];
  /* Of frames reserved by RINGCAST_ESTIMATE; 0 of a reader. */
  uint64_t estimate_hits; /* frames that needed no grow */
  uint64_t grown;         /* frames that needed one */
  uint64_t wasted_bytes;  /* reserved bytes that commit gave back to the ring */
  uint64_t later[1]; /* 0. Room for new counts: a ringcast_peer contains a whole ringcast_stats */
};

/* One reader as seen at one moment; the reader may have moved on since. */
struct ringcast_peer {
  uint32_t size;
  uint32_t slot;
  int32_t pid;
  uint32_t state;    /* enum ringcast_peer_state */
  uint64_t position; /* the reader has released everything below */
  uint64_t lag;      /* bytes committed and not yet released */
  uint64_t stalls;   /* how often the writer waited for the reader */
  struct ringcast_stats stats;
  char name[32]; /* options.name at attach, or empty */
  /* How long the writer has been waiting for this reader; 0: it does not wait for it. */
  uint64_t blocked_ns;
  /* Frames committed and not yet released; those of one part of a batch (ringcast/batch.h) count as
   * one. Of ringcast_writer_peers and ringcast_tap_peers; else 0. */
  uint64_t lag_frames;
};

struct ringcast_info {
  uint32_t size;
  uint32_t readers;   /* slots */
  uint64_t capacity;  /* bytes of the ring, all usable */
  uint64_t max_frame; /* payload bytes of the largest frame, spill memory included */
  uint64_t tail;      /* bytes committed so far, headers and rounding included */
  uint32_t memory;    /* enum ringcast_memory: the kind in use */
  uint64_t page_size; /* of the data, bytes */
  int32_t writer_pid;
  int64_t spin_ns; /* of this handle */
  /* enum ringcast_numa: the policy that the kernel accepted; NONE on a machine of one node. */
  uint32_t numa;
  uint32_t numa_node; /* for LOCAL and NODE */
  /* Why `numa` is NONE although the options ask for more: a negative errno, or 0. */
  int32_t numa_error;
  /* Why there is no spill memory although the options allow it: a negative errno, or 0. */
  int32_t spill_error;
  uint64_t ring_frame;            /* payload bytes of the largest frame that fits in the ring */
  uint64_t spill_bytes;           /* the limit of spill memory; 0: there is none */
  uint64_t spill_used;            /* bytes of spill memory that the ring uses now */
  char name[RINGCAST_NAME_BYTES]; /* options.name, or empty */
};

/* ---- Writer: lifecycle ----------------------------------------------------------------------- */

/* Makes a ring with default options, or with `options` (NULL = defaults). Blocks while the kernel
 * provides and clears the memory. The call reserves all memory of the ring: a frame in the ring
 * can't fail later for lack of memory. -EINVAL, -ENOMEM, -ENOSPC, -EFBIG (RLIMIT_FSIZE), -EMFILE,
 * -ENOSYS. Any thread. */
RINGCAST_API int ringcast_writer_create(ringcast_writer **out);
RINGCAST_API int ringcast_writer_create_ex(const struct ringcast_writer_options *options,
                                           ringcast_writer **out);

/* Ends the stream and frees the handle. Readers drain the committed frames, then get -EPIPE. Aborts
 * an open reservation, and ends an open ringcast_gpu_writer, which may wait for the device after
 * the readers were told. Never blocks otherwise. NULL is allowed. */
RINGCAST_API void ringcast_writer_close(ringcast_writer *writer);

/* The ring's handle: printable, at most 95 bytes, valid as long as the writer. Owned by the writer.
 * Wait-free. */
RINGCAST_API const char *ringcast_writer_handle(const ringcast_writer *writer);

/* Blocks until at least `count` readers are attached and alive; returns their number. -EAGAIN,
 * -ETIMEDOUT, -EINTR, -EINVAL if `count` is more than the slots, -ECHILD. */
RINGCAST_API int ringcast_writer_wait_readers(ringcast_writer *writer, uint32_t count,
                                              int64_t timeout_ns);

/* Ends another thread's wait on this handle with -ECANCELED; every later call that would have to
 * wait returns -ECANCELED too. Any thread, while the handle is open. Never blocks. */
RINGCAST_API void ringcast_writer_cancel(ringcast_writer *writer);

/* ---- Writer: hot path ------------------------------------------------------------------------ */

/* Leases `bytes`, contiguous, to the writer; RINGCAST_ESTIMATE (ringcast/estimate.h): a guess, if
 * the size is known only after the write. Wait-free while the room already granted lasts; else
 * reads the readers' cursors, and blocks up to the timeout if the slowest reader is a ring behind,
 * or options.ahead frames. Readers see nothing before commit. More than ringcast_info.ring_frame
 * comes from spill memory: reserve then always reads the cursors, and blocks while spill memory is
 * used up, and in the kernel while the machine provides memory (-ENOMEM, -ENOSPC: the machine has
 * none; no frame is lost). -EMSGSIZE, -EBUSY, -EAGAIN, -ETIMEDOUT, -EINTR, -EOWNERDEAD, -EPROTO,
 * -ENOBUFS, -ECHILD. A call that fails opens no reservation. */
RINGCAST_API int ringcast_writer_reserve(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                                         struct ringcast_span *out);

/* A descriptor for poll, epoll and asyncio: readable when a reserve or grow with timeout 0 that
 * gave -EAGAIN may give another result: room, or another end of a wait (a reader's death,
 * options.slow_ns, cancel). Then call again with timeout 0. Each -EAGAIN arms the descriptor again,
 * for the bytes of that call, and costs some microseconds from here on. It may become readable
 * without cause, and does so every 50 ms while there is no room. Only poll it: the writer owns it,
 * and every call returns the same one, until a reserve or grow gives -ENOBUFS. At first it is
 * readable. Returns the descriptor, or -EMFILE, -ENFILE, -ENOMEM, -ECHILD. Needs no thread where
 * io_uring has futex waits. */
RINGCAST_API int ringcast_writer_room_fd(ringcast_writer *writer);

/* Makes the open reservation `bytes` long in total and preserves its contents; from here on use the
 * new span, which may have moved. A reservation that outgrows the ring, or its place in spill
 * memory, is copied to a place where it can double. Errors as reserve; -EINVAL if none is open.
 * After an error the reservation is unchanged. */
RINGCAST_API int ringcast_writer_grow(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                                      struct ringcast_span *out);

/* Publishes the first `bytes` of the reservation as one frame of `kind`, and closes it; the rest
 * returns to the ring. A caller that wrote with non-temporal stores issues a store fence (sfence)
 * first. -EINVAL if none is open, or `bytes` is more than the reservation (which stays open);
 * -ECHILD. Wait-free, except for one wake-up call to the kernel when a reader sleeps. */
RINGCAST_API int ringcast_writer_commit(ringcast_writer *writer, size_t bytes, uint16_t kind);

/* Cancels the reservation; readers see nothing. -EINVAL if none is open, -ECHILD. Wait-free. */
RINGCAST_API int ringcast_writer_abort(ringcast_writer *writer);

/* reserve + memcpy + commit. Errors as reserve. Several threads may send the same `data` on several
 * writers at the same time: build a frame once, in private memory (ringcast/frame.h), and send it
 * on any number of rings. */
RINGCAST_API int ringcast_writer_send(ringcast_writer *writer, const void *data, size_t bytes,
                                      uint16_t kind, int64_t timeout_ns);

/* ---- Writer: introspection ------------------------------------------------------------------- */

/* Fills up to `capacity` peers and returns the number of readers. Racy by nature: each peer was
 * true at some moment. Never waits for a peer; asks the kernel whether each process is alive.
 * -EINVAL, -ECHILD. */
RINGCAST_API int ringcast_writer_peers(ringcast_writer *writer, struct ringcast_peer *peers,
                                       uint32_t capacity);

/* The reader that is furthest behind: after -ETIMEDOUT, the cause (after -EOWNERDEAD,
 * ringcast_writer_check names the dead reader). Returns 1, or 0 if there is no reader. Errors as
 * ringcast_writer_peers. */
RINGCAST_API int ringcast_writer_slowest(ringcast_writer *writer, struct ringcast_peer *out);

/* Checks whether all readers are alive, before a dead reader blocks a wait. Returns 0 if all are
 * well, or 1 and one reader that is dead or was evicted. With EVICT the call reports each such
 * reader once, including readers that a wait removed (of more than 64, the latest 64); so call
 * again until the result is 0. With FAIL every call reports a dead reader, until its slot is free.
 * One system call while all are alive, with pidfds (Linux 5.3) and one descriptor for each reader;
 * without pidfds the call reads /proc. -EMFILE, -ENFILE, -ENOMEM, -EIO, -ENOBUFS, -ECHILD. */
RINGCAST_API int ringcast_writer_check(ringcast_writer *writer, struct ringcast_peer *out);

/* A descriptor for poll, epoll and asyncio: readable when a reader has died, or a wait has removed
 * a reader that ringcast_writer_check has not yet reported; then call ringcast_writer_check until
 * the result is 0. Only poll it: the writer owns it, and every call returns the same one. A reader
 * that attaches later is watched from the next call of this function, check or wait_readers on.
 * Returns the descriptor. Errors as check. */
RINGCAST_API int ringcast_writer_fd(ringcast_writer *writer);

/* What the writer has done so far, and what the ring is. -EINVAL, -ECHILD. */
RINGCAST_API int ringcast_writer_stats(const ringcast_writer *writer, struct ringcast_stats *out);
RINGCAST_API int ringcast_writer_info(const ringcast_writer *writer, struct ringcast_info *out);

/* ---- Reader: lifecycle ----------------------------------------------------------------------- */

/* Attaches to the ring that `handle` names; the reader's first frame is the next frame to be
 * committed, unless options.start says otherwise. -EINVAL (not a handle), -ENOENT (the ring is
 * gone), -EACCES, -EPROTO (a different build or PID namespace), -EUSERS, -ENODATA (no frame with
 * options.tag to start at), -ENOMEM, -EMFILE. Any thread. Blocks only in the kernel, to map the
 * memory. */
RINGCAST_API int ringcast_reader_attach(const char *handle, ringcast_reader **out);
RINGCAST_API int ringcast_reader_attach_ex(const char *handle,
                                           const struct ringcast_reader_options *options,
                                           ringcast_reader **out);

/* Leaves the ring and frees the handle. Releases the frames that are held. First ends an open
 * ringcast_gpu_reader, which waits up to two seconds for the device. Never blocks otherwise. NULL
 * is allowed. */
RINGCAST_API void ringcast_reader_close(ringcast_reader *reader);

/* Leaves the ring as close does, but keeps the memory mapped until the handle is closed, for
 * callers that may still read where released frames were. The reader no longer blocks the writer.
 * The mapped memory may change at any time, but reading it is safe, whatever happens to the writer:
 * the ring's memory is never taken away, and spill memory that was given back to the machine reads
 * as zeros. Such a read makes the kernel provide pages anew; only a machine without free memory can
 * answer with a signal. Leave closes the descriptors. From here on only ringcast_reader_close is
 * allowed, from any thread; every other call is -EINVAL. A second leave does nothing. Blocks as
 * close does. */
RINGCAST_API void ringcast_reader_leave(ringcast_reader *reader);

/* As ringcast_writer_cancel: next still returns frames that are already in the ring. */
RINGCAST_API void ringcast_reader_cancel(ringcast_reader *reader);

/* ---- Reader: hot path ------------------------------------------------------------------------ */

/* Leases the next frame. Wait-free if a frame is available, except for one call to the kernel at
 * the first read of a place in spill memory. Else blocks up to the timeout. -EAGAIN, -ETIMEDOUT,
 * -EINTR, -EPIPE, -EBUSY, -ESTALE, -EPROTO, -ENOBUFS, -ECHILD; -ENOMEM and other codes of the
 * kernel if spill memory can't be read: the frame is then still the next frame. */
RINGCAST_API int ringcast_reader_next(ringcast_reader *reader, int64_t timeout_ns,
                                      struct ringcast_frame *out);

/* A descriptor for poll, epoll and asyncio: readable when next may return a frame or the end of the
 * writer. Then call next with timeout 0 until it gives -EAGAIN, which arms the descriptor again.
 * Only poll it: the reader owns it, and every call returns the same one, until next gives -ENOBUFS.
 * At first it is readable, and later also once a second without cause, in case a faulty process has
 * lost a wake-up. Returns the descriptor, or -EMFILE, -ENFILE, -ENOMEM, -ECHILD. Needs no thread
 * where io_uring has futex waits (Linux 6.7). */
RINGCAST_API int ringcast_reader_fd(ringcast_reader *reader);

/* Gives the frame back. The writer may overwrite it once all older frames are given back too.
 * Frames may be released in any order. -EINVAL if the frame is not held, -ECHILD. -ESTALE: this
 * reader was evicted, and the writer may have overwritten the frame during the read: discard every
 * result made from it. Wait-free, except for one wake-up call to the kernel when the writer sleeps
 * waiting for this reader. */
RINGCAST_API int ringcast_reader_release(ringcast_reader *reader,
                                         const struct ringcast_frame *frame);

/* Checks that everything read from held frames before this call was whole. -ESTALE: this reader was
 * evicted. For callers that must know before they act on the data, and do not want to release yet.
 * Wait-free. -ECHILD. */
RINGCAST_API int ringcast_reader_check(const ringcast_reader *reader);

/* ---- Reader: retaining ----------------------------------------------------------------------- */

/* A retained frame: private memory of the caller without a copy, readable and writable until its
 * release. */
typedef struct ringcast_retained ringcast_retained;

/* For a reader with RINGCAST_READER_RETAIN and a frame that it holds, instead of release. From here
 * on the frame's bytes are at *data, frame->data is invalid, and the frame no longer counts as
 * held. Other processes do not see what the caller writes there. *data stays valid after the reader
 * has closed and the writer has gone.
 *
 * The memory returns to the ring at the reader's next call of next() after
 * ringcast_retained_release. It returns earlier if the ring advances by a quarter of the capacity,
 * if spilled frames of a quarter of the spill memory come, or if the writer waits for the memory.
 * Then next(), also while waiting, copies the unmodified pages, one at a time, which takes several
 * times as long as copying the frame up front. So a reader retains fewer frames after a copy, and
 * after frames with mostly modified pages. fork copies all retained frames; so does closing the
 * reader, unless the writer has closed. While the reader makes no call, frames retained, and frames
 * released since the last call, block the writer as held frames do.
 *
 * -ENOTSUP: the frame is still held; copy it. Causes: the frame lies in the ring. With this frame,
 * more than a quarter of the spill memory would be retained and not copied, or released since the
 * last call of next(). A retained frame lies in the same place, or in 32 others. Recent frames were
 * retained for too long. The writer evicts slow readers (options.on_slow). The mapping is not
 * available (RINGCAST_DISABLE=retain, no /proc/self/pagemap, pages of more than 4 KiB). -EINVAL:
 * the frame is not held, or retained already. -EPROTO, -ESTALE, -ENOMEM, -ECHILD.
 *
 * A hostile writer can change the unmodified pages. Memory: after the reader has closed, one
 * retained frame, however small, keeps all spill memory of the ring until its release: copy a small
 * array that lives long. Kernel I/O: vmsplice, MSG_ZEROCOPY and O_DIRECT take pages, not addresses.
 * Suppose that such a call still reads a retained frame when the reader copies the frame: the call
 * goes on with the ring's page, which the writer may overwrite. Copy the frame's bytes before
 * passing them to such a call. */
RINGCAST_API int ringcast_reader_retain(ringcast_reader *reader, const struct ringcast_frame *frame,
                                        ringcast_retained **out, void **data);

/* 1 if ringcast_reader_retain is likely to succeed for a frame in spill memory, else 0.
 * Wait-free. */
RINGCAST_API int ringcast_reader_retains(const ringcast_reader *reader);

/* Ends the use of the memory. NULL is allowed. Any thread. Never blocks, except for a moment in
 * which the reader or a fork copies. */
RINGCAST_API void ringcast_retained_release(ringcast_retained *retained);

/* ---- Reader: introspection ------------------------------------------------------------------- */

/* Bytes committed and not yet released by this reader; meaningless after eviction. Wait-free.
 * -ECHILD. */
RINGCAST_API int ringcast_reader_lag(const ringcast_reader *reader, uint64_t *out);

/* What the reader has done so far, and what the ring is. -EINVAL, -ECHILD. */
RINGCAST_API int ringcast_reader_stats(const ringcast_reader *reader, struct ringcast_stats *out);
RINGCAST_API int ringcast_reader_info(const ringcast_reader *reader, struct ringcast_info *out);

/* ---- In words -------------------------------------------------------------------------------- */

/* The cause of this thread's last failed call, and what to do, as a sentence. Never NULL; valid
 * until this thread's next call. */
RINGCAST_API const char *ringcast_last_error(void);

/* "hugetlb", "shmem-huge", "pages"; "auto". NULL for any other number. */
RINGCAST_API const char *ringcast_memory_name(uint32_t memory);

/* RINGCAST_VERSION of the library that is loaded. */
RINGCAST_API const char *ringcast_version(void);

#ifdef __cplusplus
}
#endif
#endif
