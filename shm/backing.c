/* SPDX-License-Identifier: Apache-2.0 */
/*
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
 * the reader has populated before, until the writer gives memory back and advances the epoch. The
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
                   "%llu; free memory or "
                   "raise the limit",
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

bool rc_backing_has(const struct rc_backing *backing, uint64_t offset, uint64_t bytes) {
  for (uint64_t i = first_chunk(offset); i < end_chunk(offset + bytes); i++)
    if (backing->used[i] == 0) return false;
  return true;
}

int rc_backing_provide(struct rc_backing *backing, uint64_t offset, uint64_t bytes) {
  uint64_t first = first_chunk(offset), end = end_chunk(offset + bytes);
  uint32_t now = rc_os.seconds();
  for (uint64_t i = first, run; i < end; i = run + 1) {
    for (run = i; run < end && backing->used[run] == 0;) run++;
    int result = run > i ? provide_run(backing, i, run, now) : 0;
    if (result != 0) return result;
  }
  stamp(backing, first, end, now);
  return 0;
}

/* Gives back the idle chunks from `first` on, up to the first busy chunk. Returns the busy
 * chunk. */
static uint64_t trim_run(struct rc_backing *backing, uint64_t first, uint64_t chunks,
                         uint32_t now) {
  uint64_t end = first, bytes = 0;
  /* Chunks that are not backed are punched too: a reader may have loaded from one, and so allocated
   * a page. */
  for (; end < chunks &&
         (backing->used[end] == 0 || now + 1 - backing->used[end] >= RC_BACKING_IDLE_S);
       end++)
    bytes += backing->used[end] != 0 ? RC_BACKING_CHUNK : 0;
  if (bytes == 0) return end;
  RC_POINT(PUNCH);
  if (rc_memory_punch(backing->memory, first * RC_BACKING_CHUNK,
                      (end - first) * RC_BACKING_CHUNK) != 0)
    return end;
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
  for (uint64_t i = end_chunk(backing->keep); i < chunks; i++)
    i = trim_run(backing, i, chunks, now);
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

int rc_backing_view_check(struct rc_backing_view *view, uint64_t offset, uint64_t bytes,
                          uint32_t epoch) {
  const struct rc_memory *memory = view->memory;
  if (epoch != view->epoch)
    memset(view->seen, 0, (first_chunk(memory->bytes) / 64 + 1) * sizeof *view->seen);
  view->epoch = epoch;
  uint64_t end = end_chunk(offset + bytes);
  for (uint64_t i = first_chunk(offset), run; i < end; i = run + 1) {
    for (run = i; run < end && !has_seen(view, run);) run++;
    if (run == i) continue;
    int result = rc_os.advise(memory->base + i * RC_BACKING_CHUNK, (run - i) * RC_BACKING_CHUNK,
                              MADV_POPULATE_READ);
    if (result != 0 && result != -EINVAL && result != -ENOSYS)
      return result; /* an older kernel maps as it is read */
    for (uint64_t chunk = i; chunk < run; chunk++)
      view->seen[chunk / 64] |= (uint64_t)1 << chunk % 64;
  }
  return 0;
}
