/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk has 2 MiB: large enough for a small table of chunks and for a huge page, small enough to commit little memory
 * for nothing.
 *
 * Writer. Before a commit the writer reads the room of the machine and of the container, as for a ring: without room
 * the kernel would kill instead of refusing. Reading the room takes some 50 us, and clearing the pages of one chunk
 * takes several hundred (shm/memory.c). Committed memory costs nothing.
 *
 * Reader. A hole must not be a signal at the first load. MADV_POPULATE_READ (Linux 5.14) reports an error instead, and
 * fills the page tables in one go. Over full page tables the call costs as much again (1.7 ms for 32 MiB of small
 * pages, more than to write them). So a reader skips a chunk that the reader has populated before, until the writer
 * gives memory back and advances the epoch. The epoch is stored before the commit of any frame in newly committed
 * memory, so a reader of such a frame has seen the epoch. The reader populates whole chunks, also for a part of one: an
 * honest writer commits whole chunks.
 *
 * Populating a hole allocates memory, charged to the reader. A look for holes (SEEK_HOLE) would not prevent that: a
 * hostile writer can punch the hole after the look, and then each load allocates a page, or is a signal where the
 * machine has no memory left. docs/reliability.md says so.
 */
#include "shm/commit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ring/point.h"
#include "shm/error.h"
#include "shm/topology.h"
#include "shm/os.h"

static uint64_t first_chunk(uint64_t offset) { return offset / RC_COMMIT_CHUNK; }

/* The chunk behind the last one of a range. */
static uint64_t end_chunk(uint64_t end) { return (end + RC_COMMIT_CHUNK - 1) / RC_COMMIT_CHUNK; }

/* ---- Writer ----------------------------------------------------------------------------------------------------- */

int rc_commit_init(struct rc_commit *commit, struct rc_memory *memory) {
  *commit = (struct rc_commit){.memory = memory, .keep = RC_COMMIT_RETAIN};
  if (memory->bytes == 0) return 0;
  commit->used = calloc(first_chunk(memory->bytes), sizeof *commit->used);
  return commit->used ? 0 : rc_fail(-ENOMEM, "out of memory");
}

void rc_commit_free(struct rc_commit *commit) {
  free(commit->used);
  commit->used = NULL;
}

static int fail_to_provide(int code, uint64_t bytes) {
  return rc_fail(code, "can't get %llu bytes more of spill memory for this frame: %s; free memory or raise the limit",
                 (unsigned long long)bytes, strerror(-code));
}

/* Commits a run of chunks, none of which is committed. */
static int provide_run(struct rc_commit *commit, uint64_t first, uint64_t end) {
  uint64_t offset = first * RC_COMMIT_CHUNK, bytes = (end - first) * RC_COMMIT_CHUNK;
  struct rc_room room;
  rc_topology_room(&room);
  if (bytes > room.bytes)
    return rc_fail(
        -ENOMEM,
        "can't get %llu bytes more of spill memory for this frame: %s has room for %llu; free memory or raise "
        "the limit",
        (unsigned long long)bytes, room.limit, (unsigned long long)room.bytes);
  int result = rc_memory_provide(commit->memory, offset, bytes);
  if (result != 0) return fail_to_provide(result, bytes);
  commit->in_place += bytes;
  for (uint64_t i = first; i < end; i++)
    if (i * RC_COMMIT_CHUNK >= commit->keep) commit->excess += RC_COMMIT_CHUNK;
  return 0;
}

static void stamp(struct rc_commit *commit, uint64_t offset, uint64_t bytes, uint32_t now) {
  for (uint64_t i = first_chunk(offset); i < end_chunk(offset + bytes); i++) commit->used[i] = now + 1;
}

int rc_commit_provide(struct rc_commit *commit, uint64_t offset, uint64_t bytes) {
  uint64_t end = end_chunk(offset + bytes);
  uint32_t now = rc_os.seconds();
  for (uint64_t i = first_chunk(offset); i < end;) {
    uint64_t run = i;
    while (run < end && commit->used[run] == 0) run++;
    if (run > i) RC_POINT(PROVIDE);
    int result = run > i ? provide_run(commit, i, run) : 0;
    if (result != 0) return result;
    if (run > i) RC_POINT(PROVIDED);
    stamp(commit, i * RC_COMMIT_CHUNK, (run - i) * RC_COMMIT_CHUNK, now);
    i = run > i ? run : i + 1;
  }
  stamp(commit, offset, bytes, now);
  return 0;
}

/* Gives back the idle chunks from `first` on, up to the first busy chunk. Returns the busy chunk. */
static uint64_t trim_run(struct rc_commit *commit, uint64_t first, uint64_t chunks, uint32_t now) {
  uint64_t end = first, bytes = 0;
  /* Uncommitted chunks are punched too: a reader may have loaded from one, and so allocated a page. */
  for (; end < chunks && (commit->used[end] == 0 || now + 1 - commit->used[end] >= RC_COMMIT_IDLE_S); end++)
    bytes += commit->used[end] != 0 ? RC_COMMIT_CHUNK : 0;
  if (bytes == 0) return end;
  RC_POINT(PUNCH);
  if (rc_os.punch(commit->memory->fd, first * RC_COMMIT_CHUNK, (end - first) * RC_COMMIT_CHUNK) != 0) return end;
  RC_POINT(PUNCHED);
  memset(&commit->used[first], 0, (end - first) * sizeof *commit->used);
  commit->in_place -= bytes;
  commit->excess -= bytes;
  return end;
}

bool rc_commit_trim(struct rc_commit *commit, const struct rc_spill *spill) {
  if (commit->excess == 0) return false;
  uint32_t now = rc_os.seconds();
  if (now == commit->looked) return false;
  commit->looked = now;
  for (uint32_t i = 0; i < spill->count; i++) {
    const struct rc_spill_region *region = &spill->regions[(spill->first + i) % RC_SPILL_REGIONS];
    stamp(commit, region->offset, region->bytes, now);
  }
  if (spill->is_open) stamp(commit, spill->open.offset, spill->open.bytes, now);
  uint64_t before = commit->in_place, chunks = first_chunk(commit->memory->bytes);
  for (uint64_t i = end_chunk(commit->keep); i < chunks; i++) i = trim_run(commit, i, chunks, now);
  return commit->in_place != before;
}

/* ---- Reader ----------------------------------------------------------------------------------------------------- */

int rc_commit_view_init(struct rc_commit_view *view, const struct rc_memory *memory) {
  *view = (struct rc_commit_view){.memory = memory};
  if (memory->bytes == 0) return 0;
  view->seen = calloc(first_chunk(memory->bytes) / 64 + 1, sizeof *view->seen);
  return view->seen ? 0 : rc_fail(-ENOMEM, "out of memory");
}

void rc_commit_view_free(struct rc_commit_view *view) {
  free(view->seen);
  view->seen = NULL;
}

static bool has_seen(const struct rc_commit_view *view, uint64_t chunk) {
  return view->seen[chunk / 64] >> chunk % 64 & 1;
}

int rc_commit_view_check(struct rc_commit_view *view, uint64_t offset, uint64_t bytes, uint32_t epoch) {
  const struct rc_memory *memory = view->memory;
  if (epoch != view->epoch) memset(view->seen, 0, (first_chunk(memory->bytes) / 64 + 1) * sizeof *view->seen);
  view->epoch = epoch;
  uint64_t end = end_chunk(offset + bytes);
  for (uint64_t i = first_chunk(offset), run; i < end; i = run + 1) {
    for (run = i; run < end && !has_seen(view, run);) run++;
    if (run == i) continue;
    int result = rc_os.advise(memory->base + i * RC_COMMIT_CHUNK, (run - i) * RC_COMMIT_CHUNK, MADV_POPULATE_READ);
    if (result != 0 && result != -EINVAL && result != -ENOSYS) return result; /* an older kernel maps as it is read */
    for (uint64_t chunk = i; chunk < run; chunk++) view->seen[chunk / 64] |= (uint64_t)1 << chunk % 64;
  }
  return 0;
}
