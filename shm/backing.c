/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parts of a ring's spill memory are backed by pages. The writer provides a part before a
 * frame needs it, and gives idle parts back to the machine. A reader makes sure of a part before
 * lending a frame there. Writer and reader work in chunks, and each keeps a table of them.
 *
 * A chunk has 2 MiB: large enough for a small table of chunks and for a huge page, small enough to
 * provide little memory for nothing.
 *
 * Writer. Before providing memory the writer reads the room of the machine and of the container, as
 * for a ring: without room the kernel would kill instead of refusing. Reading the room takes some
 * 50 us, and clearing the pages of one chunk takes several hundred (shm/memory.c). Committed memory
 * costs nothing.
 *
 * Reader. A hole must not be a signal at the first load. MADV_POPULATE_READ (Linux 5.14) reports an
 * error instead, and fills the page tables in one go. Over full page tables the call costs as much
 * again (1.7 ms for 32 MiB of small pages, more than to write them). So a reader skips a chunk that
 * it has populated before, until the writer gives memory back and advances the epoch. The
 * epoch is stored before the commit of any frame in newly provided memory, so a reader of such a
 * frame has seen the epoch. The reader populates whole chunks, also for a part of one: an honest
 * writer provides whole chunks.
 *
 * Populating a hole allocates memory, charged to the reader. A look for holes (SEEK_HOLE) would not
 * prevent that: a hostile writer can punch the hole after the look, and then each load allocates a
 * page, or is a signal where the machine has no memory left. docs/reliability.md says so.
 */
#include "shm/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ring/point.h"
#include "shm/error.h"
#include "shm/topology.h"
#include "shm/os.h"

static uint64_t first_chunk(uint64_t offset) { return offset / RC_BACKING_CHUNK; }

/* The chunk behind the last one of a range. */
static uint64_t end_chunk(uint64_t end) { return (end + RC_BACKING_CHUNK - 1) / RC_BACKING_CHUNK; }

/* ---- Writer ---------------------------------------------------------------------------------- */

int rc_backing_init(struct rc_backing *backing, struct rc_memory *memory) {
  *backing = (struct rc_backing){.memory = memory, .keep = RC_BACKING_KEEP};
  if (memory->bytes == 0) return 0;
  backing->used = calloc(first_chunk(memory->bytes), sizeof *backing->used);
  return backing->used ? 0 : rc_fail(-ENOMEM, "out of memory");
}

void rc_backing_free(struct rc_backing *backing) {
  free(backing->used);
  backing->used = NULL;
}

static void stamp(struct rc_backing *backing, uint64_t first, uint64_t end, uint32_t now) {
  for (uint64_t i = first; i < end; i++) backing->used[i] = now + 1;
}

static void stamp_region(struct rc_backing *backing, const struct rc_spill_region *region,
                         uint32_t now) {
  stamp(backing, first_chunk(region->offset), end_chunk(region->offset + region->bytes), now);
}

/* Backs a run of chunks, none of which is backed. */
static int provide_run(struct rc_backing *backing, uint64_t first, uint64_t end, uint32_t now) {
  uint64_t offset = first * RC_BACKING_CHUNK, bytes = (end - first) * RC_BACKING_CHUNK;
  struct rc_room room;
  RC_POINT(PROVIDE);
  rc_topology_room(&room);
  if (bytes > room.bytes)
    return rc_fail(-ENOMEM,
                   "can't get %llu bytes more of spill memory for this frame: %s has room for "
                   "%llu; free memory or raise the limit",
                   (unsigned long long)bytes, room.limit, (unsigned long long)room.bytes);
  int result = rc_memory_provide(backing->memory, offset, bytes);
  if (result != 0)
    return rc_fail(result,
                   "can't get %llu bytes more of spill memory for this frame: %s; free memory or "
                   "raise the limit",
                   (unsigned long long)bytes, strerror(-result));
  stamp(backing, first, end, now);
  backing->in_place += bytes;
  for (uint64_t i = first; i < end; i++)
    if (i * RC_BACKING_CHUNK >= backing->keep) backing->excess += RC_BACKING_CHUNK;
  RC_POINT(PROVIDED);
  return 0;
}

int rc_backing_provide(struct rc_backing *backing, uint64_t offset, uint64_t bytes) {
  uint64_t first = first_chunk(offset), end = end_chunk(offset + bytes), at = first;
  uint32_t now = rc_os.seconds();
  while (at < end) {
    uint64_t run = at; /* the chunks from `at` to `run` lack pages */
    while (run < end && backing->used[run] == 0) run++;
    if (run > at) {
      int result = provide_run(backing, at, run, now);
      if (result != 0) return result;
    }
    at = run + 1;
  }
  stamp(backing, first, end, now);
  return 0;
}

/* Whether a chunk is not in use. One that is not backed is punched too: a reader may have loaded
 * from it, and so allocated a page. */
static bool is_idle(const struct rc_backing *backing, uint64_t chunk, uint32_t now) {
  uint32_t used = backing->used[chunk];
  return used == 0 || now + 1 - used >= RC_BACKING_IDLE_S;
}

/* Gives back the idle chunks from `first` on, up to the first busy chunk, which is returned. */
static uint64_t trim_run(struct rc_backing *backing, uint64_t first, uint64_t chunks,
                         uint32_t now) {
  uint64_t end = first, bytes = 0;
  while (end < chunks && is_idle(backing, end, now)) {
    if (backing->used[end] != 0) bytes += RC_BACKING_CHUNK;
    end++;
  }
  if (bytes == 0) return end;
  RC_POINT(PUNCH);
  int result =
      rc_memory_punch(backing->memory, first * RC_BACKING_CHUNK, (end - first) * RC_BACKING_CHUNK);
  if (result != 0) return end;
  RC_POINT(PUNCHED);
  memset(&backing->used[first], 0, (end - first) * sizeof *backing->used);
  backing->in_place -= bytes;
  backing->excess -= bytes;
  return end;
}

bool rc_backing_trim(struct rc_backing *backing, const struct rc_spill *spill) {
  if (backing->excess == 0) return false;
  uint32_t now = rc_os.seconds();
  if (now == backing->looked) return false;
  backing->looked = now;
  for (uint32_t i = 0; i < spill->count; i++)
    stamp_region(backing, &spill->regions[(spill->first + i) % RC_SPILL_REGIONS], now);
  if (spill->is_open) stamp_region(backing, &spill->open, now);
  uint64_t before = backing->in_place, chunks = first_chunk(backing->memory->bytes);
  uint64_t at = end_chunk(backing->keep);
  while (at < chunks) at = trim_run(backing, at, chunks, now) + 1;
  return backing->in_place != before;
}

/* ---- Reader ---------------------------------------------------------------------------------- */

int rc_backing_view_init(struct rc_backing_view *view, const struct rc_memory *memory) {
  *view = (struct rc_backing_view){.memory = memory};
  if (memory->bytes == 0) return 0;
  view->seen = calloc(first_chunk(memory->bytes) / 64 + 1, sizeof *view->seen);
  return view->seen ? 0 : rc_fail(-ENOMEM, "out of memory");
}

void rc_backing_view_free(struct rc_backing_view *view) {
  free(view->seen);
  view->seen = NULL;
}

static bool has_seen(const struct rc_backing_view *view, uint64_t chunk) {
  return view->seen[chunk / 64] >> chunk % 64 & 1;
}

/* Populates a run of chunks, none of which was seen. */
static int populate_run(struct rc_backing_view *view, uint64_t first, uint64_t end) {
  uint8_t *at = view->memory->base + first * RC_BACKING_CHUNK;
  int result = rc_os.advise(at, (end - first) * RC_BACKING_CHUNK, MADV_POPULATE_READ);
  bool is_old = result == -EINVAL || result == -ENOSYS; /* maps each page at its first load */
  if (result != 0 && !is_old) return result;
  for (uint64_t i = first; i < end; i++) view->seen[i / 64] |= (uint64_t)1 << i % 64;
  return 0;
}

int rc_backing_view_check(struct rc_backing_view *view, uint64_t offset, uint64_t bytes,
                          uint32_t epoch) {
  if (epoch != view->epoch)
    memset(view->seen, 0, (first_chunk(view->memory->bytes) / 64 + 1) * sizeof *view->seen);
  view->epoch = epoch;
  uint64_t at = first_chunk(offset), end = end_chunk(offset + bytes);
  while (at < end) {
    uint64_t run = at;
    while (run < end && !has_seen(view, run)) run++;
    if (run > at) {
      int result = populate_run(view, at, run);
      if (result != 0) return result;
    }
    at = run + 1;
  }
  return 0;
}
