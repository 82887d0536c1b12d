/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: anonymous files of the largest pages available. A ring's data is mapped twice in a
 * row. */
#ifndef RC_SHM_MEMORY_H
#define RC_SHM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "ring/spill.h"
#include "ringcast/ringcast.h"
#include "shm/os.h"

#define RC_HUGE_PAGE ((uint64_t)2 << 20)

/* The requested kind and place of memory. */
struct rc_memory_wish {
  uint32_t memory; /* enum ringcast_memory */
  uint32_t numa;   /* enum ringcast_numa */
  uint32_t node;   /* for RINGCAST_NUMA_NODE */
};

/* `bytes` of an anonymous file, mapped at base and, if mirrored, also at base + bytes. */
struct rc_memory {
  uint8_t *base;
  uint64_t bytes;
  uint64_t page_size;
  int fd; /* -1: only the mapping is kept */
  struct rc_fd_id id;
  /* The functions that create memory set the fields below. The functions that map a peer's file set
   * only `mappings`, `sparse` and `private_map`; the caller sets the others. */
  uint32_t memory;   /* enum ringcast_memory */
  uint32_t mappings; /* 1, or 2 if mirrored */
  bool sparse;       /* spill memory: mapping must allocate no page */
  bool private_map;  /* mapped copy-on-write */
  bool huge;         /* spill memory: try huge pages */
  uint32_t numa; /* enum ringcast_numa: the policy in force; NONE also on a machine with one node */
  uint32_t node; /* for LOCAL and NODE */
  /* Why `numa` is NONE despite the request, or 0. -ENOSYS: no NUMA, or disabled. -EPERM: forbidden,
   * as in many containers. Other errors come from the kernel. */
  int32_t numa_error;
};

/* Creates a ring's data: at least `bytes` (a power of two) of the requested kind, mirrored, zero,
 * with all pages. The memory is writable here and sealed: the size is fixed, and no process can map
 * the file writable later.
 *
 * AUTO tries hugetlb, shmem-huge and pages in this order; the first two only from 2 MiB on, and not
 * if RINGCAST_DISABLE names them. If the NUMA policy is not available, the call succeeds and `out`
 * holds the reason.
 *
 * -EINVAL: the node does not exist. -ENOMEM: also if the OOM killer of the machine or container
 * would act. -EFBIG: the file exceeds RLIMIT_FSIZE. Sets the error text. */
int rc_memory_create_data(uint64_t bytes, const struct rc_memory_wish *wish, struct rc_memory *out);

/* Creates a segment of plain pages, mapped once: "control", or "device" for the words of device
 * tensors. All processes with the file may write; the size is sealed. */
int rc_memory_create_small(const char *what, uint64_t bytes, struct rc_memory *out);

/* Creates spill memory: `bytes`, a multiple of RC_HUGE_PAGE, mapped once, writable here, on the
 * same node as `data`. No page is there yet (shm/backing.c). The size is sealed. */
int rc_memory_create_spill(uint64_t bytes, const struct rc_memory *data, struct rc_memory *out);

/* Provides a range of whole huge pages that are not there yet: later writes cannot fail. On
 * -ENOMEM, -ENOSPC and other errors of the kernel, no page of the range is there. */
int rc_memory_provide(struct rc_memory *memory, uint64_t offset, uint64_t bytes);

/* Maps a peer's sealed file of `bytes`, a multiple of page_size: data mirrored and read-only,
 * control read-write, spill memory read-only or private, that is, copy-on-write. The caller keeps
 * fd. */
int rc_memory_map_data(int fd, uint64_t bytes, uint64_t page_size, struct rc_memory *out);
int rc_memory_map_control(int fd, uint64_t bytes, struct rc_memory *out);
int rc_memory_map_spill(int fd, uint64_t bytes, bool private_map, struct rc_memory *out);

/* -EPROTO: the file of spill memory lacks the seals, or has another size. */
int rc_memory_check_spill(int fd, uint64_t bytes);

/* Takes the descriptor over. */
void rc_memory_keep(struct rc_memory *memory, int fd);

/* -EBADF: the program has closed the descriptor, and the number may belong to another file. The
 * mapping stays valid. */
int rc_memory_check_file(const struct rc_memory *memory);

/* Gives pages of spill memory back, which read as 0 then. -EBADF, and errors of the kernel. */
int rc_memory_punch(const struct rc_memory *memory, uint64_t offset, uint64_t bytes);

void rc_memory_destroy(struct rc_memory *memory);

uint64_t rc_small_page(void);

/* ---- Which parts of spill memory have pages -------------------------------------------------- */

/* backing.c begins with the reasons. */
#define RC_BACKING_CHUNK  RC_HUGE_PAGE
#define RC_BACKING_IDLE_S 10u
/* The first bytes stay backed: frames are placed there first. */
#define RC_BACKING_KEEP ((uint64_t)64 << 20)

/* The writer's. */
struct rc_backing {
  struct rc_memory *memory;
  uint32_t *used;    /* for each chunk: 0 if not backed, else 1 + the second of the last use */
  uint64_t in_place; /* bytes */
  uint64_t excess;   /* backed bytes that may be given back */
  uint64_t keep;     /* RC_BACKING_KEEP, but in tests */
  uint32_t looked;   /* second of the last look for idle chunks */
};

/* `memory` must outlive `backing`, and may have 0 bytes. -ENOMEM. */
int rc_backing_init(struct rc_backing *backing, struct rc_memory *memory);
void rc_backing_free(struct rc_backing *backing);

/* Backs a range: from then on no write to the range fails. A range that is backed costs nothing.
 * -ENOMEM, -ENOSPC and other errors of the kernel, with the error text; a part of the range may be
 * backed then. */
int rc_backing_provide(struct rc_backing *backing, uint64_t offset, uint64_t bytes);

/* Gives idle chunks back, at most once a second; true if there were any. What `spill` uses is not
 * idle. */
bool rc_backing_trim(struct rc_backing *backing, const struct rc_spill *spill);

/* The reader's. */
struct rc_backing_view {
  const struct rc_memory *memory;
  uint64_t *seen; /* a bit for each chunk: populated in this epoch */
  uint32_t epoch;
};

int rc_backing_view_init(struct rc_backing_view *view,
                         const struct rc_memory *memory); /* as rc_backing_init */
void rc_backing_view_free(struct rc_backing_view *view);

/* Makes a range readable without a signal, and maps it in one go. `epoch` is the writer's
 * spill_epoch. A negative errno of the kernel: the range is not readable. */
int rc_backing_view_check(struct rc_backing_view *view, uint64_t offset, uint64_t bytes,
                          uint32_t epoch);

/* ---- A private mapping of spill memory ------------------------------------------------------- */

/* A second mapping of a spill memory file, copy-on-write: a page that this process writes is
 * private, and a page without writes shows the file. So a caller can own a range of the mapping
 * without a copy, as long as the file does not change there. private_map.c explains how a range
 * shows the file again. */
struct rc_private_map {
  struct rc_memory memory;
  int pagemap; /* /proc/self/pagemap */
  struct rc_fd_id id;
};

/* Maps the whole file; `fd` stays the caller's. -ENOTSUP: switched off (RINGCAST_DISABLE=retain).
 * Codes of the kernel, unchanged, if the kernel refuses the mapping or /proc/self/pagemap. */
int rc_private_map_open(int fd, uint64_t bytes, struct rc_private_map *out);
void rc_private_map_close(struct rc_private_map *private_map);

/* In a child of fork, before anything else: the pagemap is the parent's. */
void rc_private_map_forked(struct rc_private_map *private_map);

/* Makes every page of a range private; here and below a range is of whole pages. Concurrent reads
 * and writes are safe. If the machine has no memory left for the pages, the kernel acts as for any
 * first write. */
void rc_private_map_unshare(const struct rc_private_map *private_map, uint64_t offset,
                            uint64_t bytes);
/* Makes the range show the file again; writes to it are lost. *dropped is how many bytes were
 * private. False: the kernel refuses, and the content of the range is undefined. */
bool rc_private_map_clean(const struct rc_private_map *private_map, uint64_t offset, uint64_t bytes,
                          uint64_t *dropped);
/* Makes sure that a range that was clean before, or never used, still shows the file. False: it
 * does not. */
bool rc_private_map_is_clean(const struct rc_private_map *private_map, uint64_t offset,
                             uint64_t bytes);

/* ---- Copying past the cache ------------------------------------------------------------------ */

/*
 * A copy into a large frame, past the cache. An ordinary store fetches the line to be overwritten,
 * and drives another line out of the cache. A non-temporal store of x86-64 does neither. Such
 * stores are weakly ordered: without the fence at the end, a reader could see the commit (W2)
 * before the payload. On other CPUs the copy is memcpy.
 */
#ifdef __SSE2__
static inline void rc_copy_past_cache(void *target, const void *source, size_t bytes) {
  uint8_t *to = target;
  const uint8_t *from = source;
  size_t done = (size_t)(-(uintptr_t)to % sizeof(__m128i));
  if (done > bytes) done = bytes;
  memcpy(to, from, done);
  for (; bytes - done >= sizeof(__m128i); done += sizeof(__m128i))
    _mm_stream_si128((__m128i *)(to + done), _mm_loadu_si128((const __m128i *)(from + done)));
  memcpy(to + done, from + done, bytes - done);
  _mm_sfence(); /* before W2 */
}
#else
static inline void rc_copy_past_cache(void *target, const void *source, size_t bytes) {
  memcpy(target, source, bytes);
}
#endif

#endif
