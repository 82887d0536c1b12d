/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's side of ringcast/gpu.h: which readers may get frames by the pool, how large the pool
 * is, frames by the pool, frames by the ring, and a dict in one call. */
#include "gpu/writer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/options.h"
#include "shm/error.h"
#include "shm/wait.h"

#define DEFAULT_SLOTS 128u
#define ASK_NS        ((int64_t)1000 * 1000) /* between two looks for the dead, 10 us each */
#define DEFAULT_POOL  ((uint64_t)256 << 20)
#define PAUSE_NS      (20 * 1000)
#define LOOK_NS       (1000 * 1000) /* between two checks whether the device has failed */

/* ---- The context, and a device that fails ---------------------------------------------------- */

/* The failed device may never write the semaphores for which readers' streams wait. Releases each
 * wait, as the watchers do after a death of the writer (import.c, X0 and X1). */
static void release_waits(ringcast_gpu_writer *gpu) {
  const struct rc_gpu_segment *segment = &gpu->exported->segment;
  rc_store_release(&rc_gpu_control(segment)->dead, 1); /* X0 -> the readers' next look */
  for (uint32_t i = 0; i < gpu->pool.slot_count; i++) {
    const struct rc_pool_slot *slot = &gpu->pool.slots[i];
    struct rc_semaphore *ready = rc_gpu_ready(segment, i);
    if (slot->state == RC_POOL_SENT && !rc_semaphore_has_reached(ready, slot->generation))
      rc_semaphore_store(ready, rc_semaphore_released(slot->generation)); /* X1 */
  }
}

/* Called after a failed call, with the call's code. An unexpected failure of the driver (-EIO)
 * makes the pool dead. Returns the code, and leaves the error text. */
static int note_loss(ringcast_gpu_writer *gpu, int code) {
  if (code != -EIO || gpu->is_lost) return code;
  gpu->is_lost = true;
  strncpy(gpu->why, rc_error_text(), sizeof gpu->why - 1);
  if (gpu->exported) release_waits(gpu);
  return code;
}

/* Makes the device's context current; `relaxes` as rc_device_enter. */
static int enter(ringcast_gpu_writer *gpu, bool relaxes, struct rc_cuda_entry *entry) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  return note_loss(gpu, rc_device_enter(&gpu->device, relaxes, entry));
}

/* Whether the device has failed: asks the driver. What was enqueued may then never come. */
static bool look_for_loss(ringcast_gpu_writer *gpu) {
  if (gpu->exported && !gpu->is_lost && rc_device_is_lost(&gpu->device))
    note_loss(gpu, rc_fail_as(-EIO, "the device has failed"));
  return gpu->is_lost;
}

/* ---- Importers: the readers that have opened the pool ---------------------------------------- */

/*
 * The importers of the pool, as the writer sees them.
 *
 *   writer, publishing                            reader, opening (import.c)
 *   D1  load the ring's slot, `opened` and turn   O1  take the place: owner, a new turn
 *       not opened? then INLINE                   O2  open the pool, try the pool
 *   D2  store expected: the turn, this position   O3  store-release opened = owner word      -> D1
 *   D3  copy, write ready, commit the frame       O4  a frame: load-acquire expected         <- D2
 *                                                     a different turn, or a later position?
 *                                                     then pass over
 *
 * A frame goes by the pool only if at D1 all ACTIVE and JOINING readers have opened the pool: a
 * joining reader may stand for long between the find of the first frame and the state ACTIVE. So a
 * reader gets at most one frame that does not expect the reader: the frame that was being published
 * when the reader claimed the slot. O4 detects this frame, as the writer stores the expected turn
 * and position before the commit of the first frame that expects the reader; a reader that passes
 * over the frame acts as if attached a moment later. The turn identifies the reader: between D1 and
 * D2 a reader may leave the place and a different reader take the place, which must not act as the
 * expected reader. (tests/model/device.pml has the protocol.)
 *
 * A slot is free when its own copies are done (`ready`) and each importer that the frame expects
 * has read the extent (`ack`), has left in order (the place has a different owner or none: a
 * reader's leave waits for the reader's streams), or has ended as a process: while the process
 * lives, the process's device may still read, whatever the state of the reader in the ring. The
 * writer loads the semaphores, and never waits for a semaphore.
 */

static struct rc_gpu_importer *importer_at(const ringcast_gpu_writer *gpu, uint32_t index) {
  return &rc_gpu_control(&gpu->exported->segment)->importers[index];
}

static void expect(ringcast_gpu_writer *gpu, uint32_t index, uint64_t owner, uint32_t turn) {
  uint64_t position = gpu->writer->ring.tail;
  gpu->expected[index] = (struct rc_expected){.owner = owner, .from = position, .turn = turn};
  struct rc_gpu_importer *importer = importer_at(gpu, index);
  rc_store_relaxed(&importer->expected_from, position); /* relaxed: the release below */
  rc_store_release(&importer->expected_turn, turn);     /* D2 -> O4 */
  RC_POINT(EXPECTED);
}

/* The turn of the importer that has opened the pool as `owner`; 0: not opened. The turn is loaded
 * between two loads of `opened`, as the next reader may take the place meanwhile. */
static uint32_t opened_turn(struct rc_gpu_importer *place, uint64_t owner) {
  if (rc_load_acquire(&place->opened) != owner) return 0; /* D1 <- O3 */
  uint32_t turn = rc_load_acquire(&place->turn); /* <- O1: the earlier importer has left by then */
  return rc_load_relaxed(&place->opened) == owner ? turn : 0; /* relaxed: the acquire above */
}

/* POOL, WAITING or REFUSED, by the answers of the attached readers; for the last two the reader and
 * the reason. From now on frames expect each reader that has opened the pool. */
static enum ringcast_gpu_way look_at_importers(ringcast_gpu_writer *gpu, uint32_t *reader,
                                               int32_t *pid, int32_t *reason) {
  const struct rc_ring *ring = &gpu->writer->ring.view;
  for (uint32_t i = 0; i < ring->slots; i++) {
    uint64_t owner = rc_load_acquire(&ring->control->slots[i].owner); /* pairs with J4 */
    enum rc_slot_state state = rc_owner_state(owner);
    if (state != RC_SLOT_ACTIVE && state != RC_SLOT_JOINING) continue;
    struct rc_gpu_importer *importer = importer_at(gpu, i);
    uint32_t turn = opened_turn(importer, owner);
    if (turn != 0) {
      const struct rc_expected *expected = &gpu->expected[i];
      if (expected->owner != owner || expected->turn != turn) expect(gpu, i, owner, turn);
      continue;
    }
    *reader = i;
    *pid = (int32_t)rc_owner_pid(owner);
    *reason = rc_load_relaxed(&importer->reason); /* relaxed: for the error text only */
    return rc_load_acquire(&importer->refused) == owner ? RINGCAST_GPU_WAY_REFUSED
                                                        : RINGCAST_GPU_WAY_WAITING;
  }
  return RINGCAST_GPU_WAY_POOL;
}

/* The text of a reader's reason. The peer may have stored any number. strerror's text of some codes
 * would mislead. */
static const char *words_of(int32_t reason) {
  if (reason > 0) return rc_cuda_name(reason);
  if (reason == -EAGAIN) return "the reader's device is busy; the reader tries again";
  if (reason == -ENOMEM)
    return "the reader's process has no memory or no thread left; the reader tries again";
  if (reason == -ETIMEDOUT) return "the reader's streams are not woken by the host's store";
  return reason < 0 && reason > -4096 ? strerror(-reason) : "the reader gives no reason";
}

/* Fills in way, reader and why; NO_READER too. */
static void tell_importers(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *info) {
  int32_t reason = 0;
  info->way = look_at_importers(gpu, &info->reader, &info->reader_pid, &reason);
  if (info->way == RINGCAST_GPU_WAY_WAITING)
    snprintf(info->why, sizeof info->why, "reader %u (pid %d) has not opened the pool",
             info->reader, info->reader_pid);
  else if (info->way == RINGCAST_GPU_WAY_REFUSED)
    snprintf(info->why, sizeof info->why, "reader %u (pid %d) can't open the pool: %s",
             info->reader, info->reader_pid, words_of(reason));
  else if (rc_peer_count(&gpu->writer->ring.view) == 0) info->way = RINGCAST_GPU_WAY_NO_READER;
}

/* Whether importer `index` may still read the frame at `position`. */
static bool is_awaited(ringcast_gpu_writer *gpu, uint32_t index, uint64_t position, bool ask) {
  struct rc_expected *expected = &gpu->expected[index];
  if (expected->owner == 0 || expected->dead || expected->from > position) return false;
  /* Acquire: pairs with the store by which the importer leaves, after the importer's streams are
   * done. */
  uint64_t owner = rc_load_acquire(&importer_at(gpu, index)->owner);
  if (owner != expected->owner) return false;
  /* A different turn: the importer has left, after its streams were done, and come back. Acquire:
   * pairs with O1. */
  if (rc_load_acquire(&importer_at(gpu, index)->turn) != expected->turn) return false;
  if (ask && rc_owner_is_dead(expected->owner)) expected->dead = true;
  return !expected->dead;
}

static bool is_done(ringcast_gpu_writer *gpu, uint32_t number, bool ask) {
  const struct rc_gpu_segment *segment = &gpu->exported->segment;
  const struct rc_pool_slot *slot = &gpu->pool.slots[number];
  if (!rc_semaphore_has_reached(rc_gpu_ready(segment, number), slot->generation)) return false;
  if (slot->state == RC_POOL_DROPPED) return slot->frame == 0;
  for (uint32_t i = 0; i < segment->importers; i++) {
    if (gpu->expected[i].owner == 0 || gpu->expected[i].from > slot->position) continue;
    if (rc_semaphore_has_reached(rc_gpu_ack(segment, number, i), slot->generation)) continue;
    if (is_awaited(gpu, i, slot->position, ask)) return false;
  }
  return true;
}

/* Frees the slots that all importers have read. `all`: also checks whether importers that have not
 * read have died. */
static void reclaim_read(ringcast_gpu_writer *gpu, bool all) {
  struct rc_pool *pool = &gpu->pool;
  int64_t now = rc_now_ns();
  bool ask = all && now - gpu->asked >= ASK_NS;
  if (ask) gpu->asked = now;
  if (now - gpu->tidied >= ASK_NS) { /* an importer may have closed an earlier pool meanwhile */
    gpu->tidied = now;
    rc_exported_tidy(0);
  }
  for (bool again = true; again;) {
    again = false; /* true only if the freed slot's frame referred to kept memory */
    for (uint32_t i = 0; i < pool->slot_count && pool->used > 0; i++) {
      struct rc_pool_slot *slot = &pool->slots[i];
      if ((slot->state != RC_POOL_SENT && slot->state != RC_POOL_DROPPED) || !is_done(gpu, i, ask))
        continue;
      again |= slot->attached > 0;
      rc_pool_give(pool, i);
    }
  }
}

/* ---- The size of the pool -------------------------------------------------------------------- */

/*
 * The size of the writer's pool over time. A size that is given, by options or environment, is
 * allocated at open. Otherwise the first pool has 32 MiB, and a pool without room for a frame gives
 * way to one of twice the size, or more, up to 256 MiB:
 *
 *   1  a lease finds no room: the worker begins to make the next pool; the frame goes INLINE
 *   2  a later lease finds the pool made, tells the readers, and leaves the old pool
 *   3  each reader opens the next pool at its next frame, and closes the old pool once the reader's
 *      streams are done
 *
 * Readers need no rule for growth: a reader sees a pool of a later epoch, as after the writer was
 * closed and opened. A reader opens the next pool once the frames of the old pool are behind the
 * reader; until all readers have, frames go INLINE; the old pool is freed when no reader has the
 * pool open (pool.c). A death at any step, on either side, is a death beside one pool or the other.
 *
 * Step 2 waits until the old pool has no lease, and until the copies to it have come: afterwards
 * the writer would not notice that the device fails before them, nor release the readers' waits.
 * Memory of ringcast_gpu_allocate is a lease that lasts; so the first such call makes the pool as
 * large as a pool may be, at once, and waits for copies to the old pool. If a lease is open, the
 * call is refused. If the pool can't be made, a pool with such memory stays, and no next one is
 * made.
 *
 * A lease must not wait for the device, so the worker makes the pool. If memory is lacking, or the
 * device is busy, the writer keeps the pool that there is, or sends INLINE, and later leases try
 * again, half as often after each failure (shm/wait.h). A failure of another kind, as of a
 * driver that can't export, ends the tries.
 */

uint64_t rc_gpu_first_pool = (uint64_t)32 << 20;

static void note_failure(ringcast_gpu_writer *gpu, int failed, const char *why) {
  rc_holdoff_learn(&gpu->holdoff, false, 4, 4096, 1);
  if (!rc_gpu_is_for_now(failed)) gpu->most_bytes = gpu->pool.bytes; /* no further tries */
  if (!gpu->exported) snprintf(gpu->why, sizeof gpu->why, "%s", why);
}

/* Memory of ringcast_gpu_allocate is in the pool. */
static bool is_kept(const ringcast_gpu_writer *gpu) {
  bool is_kept = false;
  for (uint32_t i = 0; i < gpu->pool.slot_count; i++)
    is_kept |= gpu->pool.slots[i].state == RC_POOL_LEASED && gpu->pool.slots[i].is_kept;
  return is_kept;
}

/* Step 1. */
static void make_pool(ringcast_gpu_writer *gpu, uint64_t bytes, bool at_once) {
  gpu->next = NULL;
  int failed = rc_exported_new(gpu->device.ordinal, gpu->writer, bytes, gpu->slots, &gpu->next);
  if (failed != 0) note_failure(gpu, failed, rc_error_text());
  else if (at_once) rc_exported_make(gpu->next, rc_gpu_busy_ns);
  else rc_exported_make_soon(gpu->next);
}

/* There was no room for `bytes`: the worker makes a larger pool, unless the pool is as large as a
 * pool may be. */
static void want_pool(ringcast_gpu_writer *gpu, uint64_t bytes) {
  uint64_t next = gpu->first_bytes;
  if (gpu->next || gpu->is_lost || gpu->pool.bytes >= gpu->most_bytes) return;
  if (is_kept(gpu) || !rc_holdoff_try(&gpu->holdoff))
    return; /* with kept memory, no pool can be left */
  while (next < gpu->most_bytes && (next <= gpu->pool.bytes || next < bytes)) next *= 2;
  make_pool(gpu, next < gpu->most_bytes ? next : gpu->most_bytes, false);
}

/* Step 2 may be done now. 0: each `ready` has come, as the pool has no lease, which gets `ready` by
 * commit or drop, and no copy that is under way. -EBUSY: there is a lease. -ETIMEDOUT: a copy is
 * under way, and stays so until then, or the device has failed. */
static int check_left(ringcast_gpu_writer *gpu, int64_t until_ns) {
  for (int64_t looked = rc_now_ns();; nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL)) {
    int failed = 0;
    for (uint32_t i = 0; i < gpu->pool.slot_count; i++) {
      const struct rc_pool_slot *slot = &gpu->pool.slots[i];
      bool has_come =
          rc_semaphore_has_reached(rc_gpu_ready(&gpu->exported->segment, i), slot->generation);
      if (slot->state == RC_POOL_FREE || has_come) continue;
      if (slot->state != RC_POOL_SENT && slot->state != RC_POOL_DROPPED) return -EBUSY;
      failed = -ETIMEDOUT;
    }
    int64_t now = rc_now_ns();
    if (failed == 0 || now >= until_ns) return failed;
    if (now - looked < LOOK_NS) continue;
    looked = now;
    if (look_for_loss(gpu)) return failed;
  }
}

/* The next pool becomes the writer's. False: not now. */
static bool adopt(ringcast_gpu_writer *gpu) {
  struct rc_exported *before = gpu->exported;
  struct rc_pool pool;
  if (gpu->is_lost || check_left(gpu, 0) != 0 ||
      rc_pool_init(&pool, gpu->next->pool_bytes, gpu->slots) != 0)
    return false;
  rc_pool_free(&gpu->pool);
  gpu->pool = pool;
  gpu->look_at = 0;
  gpu->exported = gpu->next;
  /* Of the old pool's places. */
  memset(gpu->expected, 0, gpu->writer->ring.view.slots * sizeof *gpu->expected);
  gpu->exported->place.position = gpu->writer->ring.tail;
  RC_POINT(POOL_MADE);
  rc_gpu_place_write(&gpu->writer->ring.view.control->device, &gpu->exported->place);
  RC_POINT(POOL_TOLD);
  if (before) rc_exported_leave(before, false, 0);
  gpu->holdoff = (struct rc_holdoff){.left = 0};
  return true;
}

/* If the worker has made the next pool, the writer goes on with it. */
static void look_for_pool(ringcast_gpu_writer *gpu) {
  struct rc_exported *next = gpu->next;
  if (!next || rc_load_acquire(&next->is_making)) return; /* pairs with the store of end_making */
  if (next->failed != 0) {
    note_failure(gpu, next->failed, next->why);
    rc_exported_leave(next, false, 0);
  } else if (!adopt(gpu)) {
    return;
  }
  gpu->next = NULL;
}

/* At open, with options.pool_bytes. -EINVAL: this size, or the environment's, is invalid. */
static int make_first_pool(ringcast_gpu_writer *gpu, uint64_t asked) {
  uint64_t given = asked;
  int found = asked != 0;
  if (!found)
    found =
        rc_environment_number("RINGCAST_GPU_POOL_BYTES", RC_GPU_MAX_POOL, "bytes", "none", &given);
  if (found < 0) return found;
  if (found && (given == 0 || given == RINGCAST_NO_POOL)) {
    snprintf(gpu->why, sizeof gpu->why,
             given == 0 ? "RINGCAST_GPU_POOL_BYTES is 0: no device pool"
                        : "no device pool is asked for, by the options or RINGCAST_GPU_POOL_BYTES");
    return 0;
  }
  if (given > RC_GPU_MAX_POOL)
    return rc_fail(-EINVAL,
                   "options.pool_bytes is %llu: it must be at most %llu, or RINGCAST_NO_POOL",
                   (unsigned long long)given, (unsigned long long)RC_GPU_MAX_POOL);
  given = (given + RC_GPU_GRANULE - 1) & ~(RC_GPU_GRANULE - 1);
  gpu->first_bytes = found ? given : rc_gpu_first_pool;
  gpu->most_bytes = found ? given : DEFAULT_POOL;
  make_pool(gpu, gpu->first_bytes, true);
  look_for_pool(gpu);
  return 0;
}

/* Makes the pool as large as a pool may be, at once: waits for copies. If the pool can't be made,
 * the pool stays as it is. -EAGAIN: a lease is open. */
static int make_whole_pool(ringcast_gpu_writer *gpu) {
  int64_t until = rc_now_ns() + rc_gpu_busy_ns;
  look_for_pool(gpu);
  if (gpu->is_lost || gpu->pool.bytes >= gpu->most_bytes || is_kept(gpu)) return 0;
  if (!rc_holdoff_try(&gpu->holdoff)) return 0;
  int failed = check_left(gpu, until);
  if (failed == -EBUSY)
    return rc_fail_as(
        -EAGAIN,
        "the device pool can't grow for memory that is kept while a lease is open: commit or "
        "drop the lease first");
  if (failed != 0) return 0;
  if (gpu->next && gpu->next->pool_bytes < gpu->most_bytes) {
    rc_exported_leave(gpu->next, false, 0);
    gpu->next = NULL;
  }
  if (!gpu->next) make_pool(gpu, gpu->most_bytes, true);
  /* Pairs as in look_for_pool. */
  while (gpu->next && rc_load_acquire(&gpu->next->is_making) && rc_now_ns() < until)
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
  look_for_pool(gpu);
  return 0;
}

static void leave_pool(ringcast_gpu_writer *gpu) {
  if (gpu->next) rc_exported_leave(gpu->next, false, rc_gpu_close_ns);
  gpu->next = NULL;
  if (!gpu->exported) return;
  rc_gpu_place_write(&gpu->writer->ring.view.control->device, &(struct rc_gpu_place){.epoch = 0});
  rc_exported_leave(gpu->exported, is_kept(gpu), rc_gpu_close_ns); /* from now on it may be freed */
  gpu->exported = NULL;
}

/* ---- Frames by the pool ---------------------------------------------------------------------- */

/*
 * Frames by the pool, as the writer sends them: from the caller's tensor to the pool, on the
 * caller's stream.
 *
 *   lease      Q1  a free slot, and an extent (slots that all importers have read become free)
 *   commit     Q2  enqueue: tensor -> extent, for each tensor
 *              Q3  enqueue: ready = generation       -> the wait of the reader's stream (import.c,
 * U2) Q4  commit the frame, which names slot, epoch and generation
 *
 * Q3 is enqueued before Q4, so each `ready` for which a reader's stream waits will be written,
 * unless the device fails or the writer dies before the stream comes to Q3: then the process that
 * detects the failure releases the wait. The host does not wait. Work that the caller enqueues on
 * the stream after the commit comes after Q2.
 */

static int fail_too_large(uint64_t bytes, uint64_t most) {
  return rc_fail(-EMSGSIZE, "%llu bytes do not fit the device pool (%llu)",
                 (unsigned long long)bytes, (unsigned long long)most);
}

/* The offset of each tensor in the extent, and the bytes of the extent. */
static int lay_out(const uint64_t *bytes, uint32_t count, uint64_t most, uint64_t *offsets,
                   uint64_t *out) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (bytes[i] > most || total > most) return fail_too_large(bytes[i], most);
    offsets[i] = total;
    *out = total + bytes[i];
    total += (bytes[i] + RC_GPU_ALIGN - 1) & ~(uint64_t)(RC_GPU_ALIGN - 1);
  }
  return total <= most ? 0 : fail_too_large(total, most);
}

/* A stream's write of `ready` comes after the copies of the same stream only. */
static int fail_other_stream(void) {
  return rc_fail_as(
      -EINVAL, "a lease is filled and committed on one stream, and this is a different stream");
}

static rc_cu_ptr address_of(const ringcast_gpu_writer *gpu, uint32_t slot) {
  const struct rc_gpu_segment *segment = &gpu->exported->segment;
  return segment->address + rc_gpu_ready_at(segment->importers, slot);
}

/* Q3. The stream of the slot does not capture; the context is current. */
static int enqueue_ready(ringcast_gpu_writer *gpu, uint32_t slot) {
  const struct rc_pool_slot *own = &gpu->pool.slots[slot];
  /* Q3 -> U2 */
  rc_cu_result result =
      rc_semaphore_write(gpu->device.cuda, own->stream, address_of(gpu, slot), own->generation);
  return rc_cuda_code(result, "cuStreamWriteValue of a pool's word");
}

/* Gives back a slot that was filled and not sent. -EBUSY: the slot's stream captures a graph. */
static int drop_by_stream(ringcast_gpu_writer *gpu, uint32_t slot) {
  struct rc_cuda_entry entry;
  int failed = enter(gpu, false, &entry);
  if (failed != 0) return failed;
  failed = rc_device_check_stream(&gpu->device, gpu->pool.slots[slot].stream);
  if (failed == 0) failed = enqueue_ready(gpu, slot);
  rc_cuda_leave(&entry);
  return note_loss(gpu, failed);
}

/* Retries for slots that were dropped while their streams captured a graph. */
static void drop_again(ringcast_gpu_writer *gpu) {
  for (uint32_t i = 0; i < gpu->pool.slot_count; i++) {
    struct rc_pool_slot *slot = &gpu->pool.slots[i];
    if (slot->state != RC_POOL_OWED) continue;
    int failed = drop_by_stream(gpu, i);
    if (failed != -EBUSY) slot->state = failed == 0 ? RC_POOL_DROPPED : RC_POOL_LOST;
  }
}

/* Frees all slots that can be free by now. */
static void reclaim(ringcast_gpu_writer *gpu) {
  drop_again(gpu);
  reclaim_read(gpu, true);
}

/* Reclaims slots when no slot is free, and from time to time before. */
static int take_slot(ringcast_gpu_writer *gpu, uint64_t bytes) {
  struct rc_pool *pool = &gpu->pool;
  if (pool->used >= gpu->look_at) {
    reclaim_read(gpu, false);
    gpu->look_at = pool->used + pool->slot_count / 8 + 1;
  }
  int slot = rc_pool_take(pool, bytes);
  if (slot >= 0) return slot;
  reclaim(gpu);
  slot = rc_pool_take(pool, bytes);
  if (slot >= 0) return slot;
  gpu->full++;
  if (pool->used < pool->slot_count) want_pool(gpu, bytes);
  return rc_fail(-EAGAIN,
                 "the device pool is full: %u of %u slots and %llu of %llu bytes are under way",
                 pool->used, pool->slot_count, (unsigned long long)pool->used_bytes,
                 (unsigned long long)pool->bytes);
}

static int check_pool(ringcast_gpu_writer *gpu) {
  if (gpu->is_lost) return rc_fail(-EAGAIN, "the device pool is dead: %s", gpu->why);
  look_for_pool(gpu);
  if (gpu->exported) return 0;
  want_pool(gpu, 0);
  return rc_fail(-EAGAIN, "there is no device pool: %s", gpu->why);
}

static struct ringcast_gpu_extent lease_of(const ringcast_gpu_writer *gpu, uint32_t number,
                                           uint64_t bytes) {
  const struct rc_pool_slot *slot = &gpu->pool.slots[number];
  return (struct ringcast_gpu_extent){.slot = number,
                                      .epoch = gpu->exported->segment.epoch,
                                      .generation = slot->generation,
                                      .base = slot->base,
                                      .bytes = bytes};
}

int ringcast_gpu_lease(ringcast_gpu_writer *gpu, const uint64_t *bytes, uint32_t count,
                       uint64_t *offsets, struct ringcast_gpu_extent *out) {
  uint64_t total = 0;
  uint32_t reader;
  int32_t pid, reason;
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = check_pool(gpu);
  if (failed == 0 && look_at_importers(gpu, &reader, &pid, &reason) != RINGCAST_GPU_WAY_POOL)
    failed = rc_fail_as(-EAGAIN, "a reader has not opened the device pool");
  if (failed == 0) failed = lay_out(bytes, count, gpu->most_bytes, offsets, &total);
  if (failed != 0) return failed;
  int slot = take_slot(gpu, total);
  if (slot < 0) return slot;
  *out = lease_of(gpu, (uint32_t)slot, total);
  for (uint32_t i = 0; i < count; i++) offsets[i] += out->base;
  RC_POINT(LEASED);
  return 0;
}

/* The slot of an open lease. NULL: the lease is not open. */
static struct rc_pool_slot *slot_of(const ringcast_gpu_writer *gpu,
                                    const struct ringcast_gpu_extent *lease) {
  if (!gpu->exported || lease->epoch != gpu->exported->segment.epoch ||
      lease->slot >= gpu->pool.slot_count)
    return NULL;
  struct rc_pool_slot *slot = &gpu->pool.slots[lease->slot];
  return slot->state == RC_POOL_LEASED && slot->generation == lease->generation ? slot : NULL;
}

static int fail_no_lease(void) {
  return rc_fail_as(-EINVAL, "the lease is not open: lease a place first");
}

int ringcast_gpu_lease_address(ringcast_gpu_writer *gpu, const struct ringcast_gpu_extent *lease,
                               uint64_t offset, ringcast_stream stream, ringcast_device_ptr *out) {
  struct rc_pool_slot *slot = slot_of(gpu, lease);
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  if (!slot) return fail_no_lease();
  if (offset < slot->base || offset - slot->base > lease->bytes)
    return rc_fail_as(-EINVAL, "the offset does not lie within its lease");
  if (slot->copied && slot->stream != stream) return fail_other_stream();
  slot->stream = stream;
  slot->copied = true;
  *out = gpu->exported->memory + offset;
  return 0;
}

int ringcast_gpu_allocate(ringcast_gpu_writer *gpu, uint64_t bytes, ringcast_stream stream,
                          ringcast_device_ptr *out, struct ringcast_gpu_extent *lease) {
  uint64_t offset, total;
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) drop_again(gpu);
  if (failed == 0) failed = make_whole_pool(gpu);
  if (failed == 0) failed = check_pool(gpu);
  if (failed == 0) failed = lay_out(&bytes, 1, gpu->most_bytes, &offset, &total);
  if (failed != 0) return failed;
  int slot = take_slot(gpu, bytes);
  if (slot < 0) return slot;
  gpu->pool.slots[slot].is_kept = true;
  *lease = lease_of(gpu, (uint32_t)slot, bytes);
  return ringcast_gpu_lease_address(gpu, lease, lease->base, stream, out);
}

int ringcast_gpu_attach(ringcast_gpu_writer *gpu, const struct ringcast_gpu_extent *lease,
                        const struct ringcast_gpu_extent *memory) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  if (!slot_of(gpu, lease) || !slot_of(gpu, memory) || lease->slot == memory->slot)
    return fail_no_lease();
  if (rc_pool_attach(&gpu->pool, memory->slot, lease->slot)) return 0;
  reclaim_read(gpu, true); /* the earlier frame may have been read by now */
  if (rc_pool_attach(&gpu->pool, memory->slot, lease->slot)) return 0;
  return rc_fail_as(-EBUSY, "an earlier frame with this memory of the pool is still under way");
}

/* Q2. The context is current, and the stream is the slot's. */
static int put(ringcast_gpu_writer *gpu, struct rc_pool_slot *slot,
               const struct ringcast_gpu_extent *lease, uint64_t offset,
               const struct ringcast_tensor *tensor) {
  uint64_t bytes;
  if (ringcast_tensor_bytes(tensor, &bytes) < 0)
    return rc_fail_as(-EINVAL, "the tensor's dtype or shape is invalid");
  if (offset < slot->base || offset - slot->base > lease->bytes ||
      bytes > lease->bytes - (offset - slot->base))
    return rc_fail_as(-EINVAL, "the tensor does not lie within its lease");
  int failed =
      rc_device_copy(&gpu->device, tensor, gpu->exported->memory + offset, NULL, slot->stream);
  RC_POINT(COPIED_IN);
  return failed;
}

/* The copies and the `ready` of a slot are on one stream. */
static int choose_stream(ringcast_gpu_writer *gpu, struct rc_pool_slot *slot,
                         ringcast_stream stream) {
  if (slot->copied && slot->stream != stream) return fail_other_stream();
  int failed = rc_device_check_stream(&gpu->device, stream);
  if (failed != 0) return failed;
  slot->stream = stream;
  slot->copied = true;
  return 0;
}

int ringcast_gpu_commit(ringcast_gpu_writer *gpu, struct ringcast_gpu_extent *lease,
                        const struct ringcast_gpu_put *puts, uint32_t count, ringcast_stream stream,
                        size_t frame_bytes) {
  struct rc_cuda_entry entry;
  struct rc_pool_slot *slot = slot_of(gpu, lease);
  if (!slot) return fail_no_lease();
  int failed = enter(gpu, false, &entry);
  if (failed != 0) return failed;
  failed = choose_stream(gpu, slot, stream);
  for (uint32_t i = 0; i < count && failed == 0; i++)
    failed = put(gpu, slot, lease, puts[i].offset, puts[i].tensor);
  if (failed == 0) failed = enqueue_ready(gpu, lease->slot);
  rc_cuda_leave(&entry);
  if (failed != 0) return note_loss(gpu, failed);
  RC_POINT(READY_ENQUEUED);
  slot->position = gpu->writer->ring.tail;
  failed = ringcast_writer_commit(gpu->writer, frame_bytes, RINGCAST_KIND_TENSORS); /* Q4 */
  RC_POINT(COMMITTED);
  slot->state = failed == 0 ? RC_POOL_SENT : RC_POOL_DROPPED;
  if (failed != 0) return failed;
  gpu->pool_frames++;
  gpu->pool_bytes += lease->bytes;
  return 0;
}

/* No frame names this generation. The next lease takes the same generation, as readers accept only
 * the next one. */
static void give_unused(ringcast_gpu_writer *gpu, uint32_t number) {
  gpu->pool.slots[number].generation--;
  rc_pool_give(&gpu->pool, number);
}

void ringcast_gpu_drop(ringcast_gpu_writer *gpu, struct ringcast_gpu_extent *lease) {
  struct rc_pool_slot *slot = slot_of(gpu, lease);
  if (!slot || gpu->forks != rc_forks_seen) return;
  if (!slot->copied) {
    give_unused(gpu, lease->slot);
    return;
  }
  int failed = drop_by_stream(gpu, lease->slot);
  slot->state = RC_POOL_LOST;
  if (failed == 0) slot->state = RC_POOL_DROPPED;
  if (failed == -EBUSY) slot->state = RC_POOL_OWED;
}

/* ---- Frames by the ring ---------------------------------------------------------------------- */

/* Registers the ring with the driver, once, at the first copy to the ring: the driver copies to
 * unregistered memory by way of a staging buffer. The ring's second mapping follows the first. */
static void register_ring(ringcast_gpu_writer *gpu) {
  const struct rc_ring *ring = &gpu->writer->ring.view;
  if (gpu->tried_to_register) return;
  gpu->tried_to_register = true;
  if (rc_feature_disabled("cuda_register")) return;
  gpu->registered =
      gpu->device.cuda->host_register(ring->data, 2 * ring->capacity,
                                      RC_CU_MEMHOSTREGISTER_PORTABLE) == RC_CU_SUCCESS;
}

int ringcast_gpu_fetch(ringcast_gpu_writer *gpu, const struct ringcast_tensor *tensor, void *to,
                       ringcast_stream stream) {
  struct rc_cuda_entry entry;
  int failed = enter(gpu, true, &entry);
  if (failed != 0) return failed;
  register_ring(gpu);
  failed = rc_device_check_stream(&gpu->device, stream);
  if (failed == 0) failed = rc_device_copy(&gpu->device, tensor, 0, to, stream);
  if (failed != 0) note_loss(gpu, failed);
  rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_wait(ringcast_gpu_writer *gpu, ringcast_stream stream) {
  struct rc_cuda_entry entry;
  int failed = enter(gpu, true, &entry);
  if (failed != 0) return failed;
  /* A wait would invalidate the capture. */
  if (rc_device_check_stream(&gpu->device, stream) == -EBUSY) {
    failed = -EBUSY;
  } else {
    rc_cu_result result = gpu->device.cuda->stream_synchronize(stream);
    gpu->syncs++;
    gpu->inline_frames++;
    if (result != RC_CU_SUCCESS)
      failed = note_loss(gpu, rc_cuda_code(result, "cuStreamSynchronize"));
  }
  rc_cuda_leave(&entry);
  return failed;
}

/* ---- A dict of tensors in one call, made of the calls above ---------------------------------- */

struct sending {
  ringcast_gpu_writer *gpu;
  const struct ringcast_gpu_item *items;
  uint32_t count;
  uint64_t *bytes;   /* of each item */
  uint64_t *offsets; /* of each item in the pool */
  uint64_t *there; /* 1 + the leased slot that contains the item's memory; 0: the item is copied */
  struct ringcast_gpu_put *puts; /* the copies to the pool */
  uint32_t put_count;
  bool by_pool;
  struct ringcast_gpu_extent lease;
};

/* Whether the item's bytes lie in the pool, not in the frame. */
static bool is_apart(const struct sending *sending, uint32_t i) {
  return sending->by_pool && sending->items[i].on_device && sending->bytes[i] > 0;
}

static int measure(struct sending *sending) {
  int failed = 0;
  for (uint32_t i = 0; i < sending->count && failed == 0; i++) {
    const struct ringcast_gpu_item *item = &sending->items[i];
    if (ringcast_tensor_bytes(&item->tensor, &sending->bytes[i]) < 0)
      return rc_fail(-EINVAL, "item %u: its dtype, shape or strides make no tensor", i);
    if (item->on_device) failed = rc_device_check_order(&item->tensor);
  }
  return failed;
}

static uint64_t at_of(const struct sending *sending, uint32_t i) {
  return (uint64_t)(uintptr_t)sending->items[i].tensor.data - sending->gpu->exported->memory;
}

/* A tensor in memory of ringcast_gpu_allocate needs no copy, unless a frame still refers to the
 * memory. */
static void find_there(struct sending *sending, uint32_t i) {
  if (!sending->gpu->exported) return;
  int slot = rc_pool_find(&sending->gpu->pool, at_of(sending, i), sending->bytes[i]);
  if (slot >= 0 && sending->gpu->pool.slots[slot].frame != 0) reclaim_read(sending->gpu, true);
  if (slot >= 0 && sending->gpu->pool.slots[slot].frame == 0)
    sending->there[i] = (uint64_t)slot + 1;
}

/* Leases a place for the items that need a copy: gathers their sizes, and distributes the
 * offsets. */
static int take_lease(struct sending *sending) {
  uint64_t *rows = sending->offsets;
  uint32_t used = 0, row = 0;
  for (uint32_t i = 0; i < sending->count; i++)
    if (sending->items[i].on_device && !sending->there[i] && sending->bytes[i] > 0)
      rows[used++] = sending->bytes[i];
  uint64_t *placed = rows + sending->count;
  int failed = ringcast_gpu_lease(sending->gpu, rows, used, placed, &sending->lease);
  if (failed != 0) return failed;
  for (uint32_t i = 0; i < sending->count; i++) {
    if (!sending->items[i].on_device || sending->bytes[i] == 0) continue;
    rows[i] = sending->there[i] ? at_of(sending, i) : placed[row++];
    if (sending->there[i])
      rc_pool_attach(&sending->gpu->pool, (uint32_t)sending->there[i] - 1, sending->lease.slot);
  }
  sending->by_pool = true;
  return 0;
}

static size_t plan(const struct sending *sending, struct ringcast_frame_plan *out) {
  for (uint32_t i = 0; i < sending->count; i++) {
    const struct ringcast_gpu_item *item = &sending->items[i];
    if (is_apart(sending, i)) ringcast_plan_device_tensor(out, item->key_bytes, item->tensor.ndim);
    else ringcast_plan_tensor(out, item->key_bytes, item->tensor.ndim, sending->bytes[i]);
  }
  return ringcast_plan_bytes(out);
}

static int build_item(struct sending *sending, struct ringcast_frame_builder *builder, uint32_t i,
                      ringcast_stream stream, bool *fetched) {
  const struct ringcast_gpu_item *item = &sending->items[i];
  struct ringcast_tensor tensor = item->tensor;
  void *place;
  uint64_t bytes;
  if (!item->on_device) return ringcast_build_tensor(builder, item->key, item->key_bytes, &tensor);
  tensor.flags |= RINGCAST_ITEM_CUDA;
  if (is_apart(sending, i)) {
    if (!sending->there[i])
      sending->puts[sending->put_count++] =
          (struct ringcast_gpu_put){.tensor = &item->tensor, .offset = sending->offsets[i]};
    return ringcast_build_device_tensor(builder, item->key, item->key_bytes, &tensor,
                                        sending->offsets[i]);
  }
  int rc =
      ringcast_build_tensor_in_place(builder, item->key, item->key_bytes, &tensor, &place, &bytes);
  if (rc < 0 || bytes == 0) return rc;
  *fetched = true;
  return ringcast_gpu_fetch(sending->gpu, &tensor, place, stream);
}

/* Into the span that is reserved. */
static int fill(struct sending *sending, const struct ringcast_span *span,
                const struct ringcast_frame_plan *planned, uint32_t tag, ringcast_stream stream,
                size_t *out_bytes) {
  struct ringcast_frame_builder builder;
  bool fetched = false;
  int rc =
      ringcast_build_begin(&builder, span->data, span->bytes, planned, RINGCAST_ROOT_DICT, tag);
  for (uint32_t i = 0; i < sending->count && rc == 0; i++)
    rc = build_item(sending, &builder, i, stream, &fetched);
  const struct ringcast_gpu_extent *lease = &sending->lease;
  if (rc == 0 && sending->by_pool)
    rc = ringcast_build_device(&builder, lease->slot, lease->epoch, lease->generation);
  if (rc == 0) rc = ringcast_build_end(&builder, out_bytes);
  if (fetched) { /* also after a failure: the copies to the ring's memory must be complete */
    int waited = ringcast_gpu_wait(sending->gpu, stream);
    if (rc == 0) rc = waited;
  }
  return rc;
}

static int send_planned(struct sending *sending, uint32_t tag, ringcast_stream stream,
                        int64_t timeout_ns) {
  struct ringcast_frame_plan planned = {0};
  struct ringcast_span span;
  size_t bytes = plan(sending, &planned);
  int rc = ringcast_writer_reserve(sending->gpu->writer, bytes, timeout_ns, &span);
  if (rc == 0) {
    rc = fill(sending, &span, &planned, tag, stream, &bytes);
    if (rc == 0 && sending->by_pool)
      rc = ringcast_gpu_commit(sending->gpu, &sending->lease, sending->puts, sending->put_count,
                               stream, bytes);
    else if (rc == 0)
      rc = ringcast_writer_commit(sending->gpu->writer, bytes, RINGCAST_KIND_TENSORS);
    if (rc != 0) ringcast_writer_abort(sending->gpu->writer);
  }
  if (rc != 0 && sending->by_pool) ringcast_gpu_drop(sending->gpu, &sending->lease);
  return rc;
}

int ringcast_gpu_send(ringcast_gpu_writer *gpu, const struct ringcast_gpu_item *items,
                      uint32_t count, uint32_t tag, uint32_t flags, ringcast_stream stream,
                      int64_t timeout_ns) {
  struct sending sending = {.gpu = gpu, .items = items, .count = count};
  bool on_device = false;
  if ((flags & ~RINGCAST_GPU_NO_INLINE) != 0)
    return rc_fail(-EINVAL, "flags are 0x%x: one is not known", flags);
  uint64_t *memory = calloc((size_t)count * 6 + 1, sizeof *memory); /* a put has two words */
  if (!memory) return rc_fail(-ENOMEM, "out of memory");
  sending.puts = (struct ringcast_gpu_put *)(memory + (size_t)count * 4);
  sending.bytes = memory;
  sending.there = memory + count;
  sending.offsets = memory + (size_t)count * 2;
  int rc = measure(&sending);
  for (uint32_t i = 0; i < count && rc == 0; i++) {
    if (!items[i].on_device || sending.bytes[i] == 0) continue;
    on_device = true;
    find_there(&sending, i);
  }
  if (rc == 0 && on_device) {
    rc = take_lease(&sending);
    bool may_inline = !(flags & RINGCAST_GPU_NO_INLINE);
    if (may_inline && (rc == -EAGAIN || rc == -EMSGSIZE)) rc = 0;
  }
  if (rc == 0) rc = send_planned(&sending, tag, stream, timeout_ns);
  free(memory);
  return rc;
}

/* ---- Open, close ----------------------------------------------------------------------------- */

static int resolve_options(const struct ringcast_gpu_writer_options *given,
                           struct ringcast_gpu_writer_options *out) {
  struct ringcast_gpu_writer_options options;
  int failed = rc_sized_read("ringcast_gpu_writer_options", given, &options, sizeof options);
  if (failed != 0) return failed;
  if (!given) options.device = -1;
  if (options.flags != 0)
    return rc_fail(-EINVAL, "options.flags is 0x%x: no flag is known", options.flags);
  if (options.slots > RC_GPU_MAX_SLOTS)
    return rc_fail(-EINVAL, "options.slots is %u: at most %u frames can be under way",
                   options.slots, RC_GPU_MAX_SLOTS);
  if (options.slots == 0) options.slots = DEFAULT_SLOTS;
  *out = options;
  return rc_features_check();
}

static void unregister_ring(ringcast_gpu_writer *gpu) {
  struct rc_cuda_entry entry;
  if (!gpu->registered || rc_cuda_enter(gpu->device.context, &entry) != RC_CU_SUCCESS) return;
  gpu->device.cuda->host_unregister(gpu->writer->ring.view.data);
  rc_cuda_leave(&entry);
}

/* Ends everything except the handle; calls with the handle give -EINVAL from here on. */
static void detach(void *context) {
  ringcast_gpu_writer *gpu = context;
  look_for_loss(gpu); /* once this handle has gone nothing would find that out */
  leave_pool(gpu);
  unregister_ring(gpu);
  rc_device_close(&gpu->device);
  gpu->forks = RC_LEFT;
}

int ringcast_gpu_writer_open(ringcast_writer *writer,
                             const struct ringcast_gpu_writer_options *given,
                             ringcast_gpu_writer **out) {
  struct ringcast_gpu_writer_options options = {0};
  int failed = rc_check_fork(writer->forks);
  if (failed == 0) failed = resolve_options(given, &options);
  if (failed != 0) return failed;
  if (writer->attachment.detach)
    return rc_fail_as(-EBUSY, "this writer has a ringcast_gpu_writer already: close that first");
  ringcast_gpu_writer *gpu = calloc(1, sizeof *gpu);
  struct rc_expected *expected = calloc(writer->ring.view.slots, sizeof *expected);
  if (!gpu || !expected) {
    free(gpu);
    free(expected);
    return rc_fail(-ENOMEM, "out of memory");
  }
  *gpu = (ringcast_gpu_writer){
      .writer = writer, .expected = expected, .forks = rc_forks_seen, .slots = options.slots};
  failed = rc_device_open(options.device, &gpu->device);
  if (failed == 0) rc_exported_tidy(rc_gpu_close_ns); /* only where there is a driver */
  if (failed == 0) failed = make_first_pool(gpu, options.pool_bytes);
  if (failed != 0) {
    leave_pool(gpu);
    rc_device_close(&gpu->device);
    free(gpu->expected);
    free(gpu);
    return failed;
  }
  writer->attachment = (struct rc_attachment){.detach = detach, .context = gpu};
  *out = gpu;
  return 0;
}

void ringcast_gpu_writer_close(ringcast_gpu_writer *gpu) {
  if (!gpu) return;
  /* In a forked child the parent owns everything but the handle. */
  if (gpu->forks == rc_forks_seen) {
    gpu->writer->attachment.detach = NULL;
    detach(gpu);
  }
  rc_pool_free(&gpu->pool);
  free(gpu->expected);
  free(gpu);
}

/* ---- Introspection --------------------------------------------------------------------------- */

static void say_way(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *info) {
  if (gpu->is_lost) {
    info->way = RINGCAST_GPU_WAY_LOST;
    snprintf(info->why, sizeof info->why, "the device has failed: %s", gpu->why);
  } else if (!gpu->exported) {
    info->way = RINGCAST_GPU_WAY_NO_POOL;
    snprintf(info->why, sizeof info->why, "%s", gpu->why);
  } else {
    tell_importers(gpu, info);
  }
}

int ringcast_gpu_writer_info(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *out) {
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = rc_sized_check("ringcast_gpu_info", out->size);
  if (failed != 0) return failed;
  look_for_pool(gpu);
  if (gpu->exported) reclaim(gpu);
  struct ringcast_gpu_info info = {
      .device = gpu->device.ordinal,
      .pool_bytes = gpu->pool.bytes,
      .slots = gpu->pool.slot_count,
      .slots_used = gpu->pool.used,
      .bytes_used = gpu->pool.used_bytes,
      .epoch = gpu->exported ? gpu->exported->segment.epoch : 0,
      .pool_frames = gpu->pool_frames,
      .pool_bytes_sent = gpu->pool_bytes,
      .inline_frames = gpu->inline_frames,
      .full = gpu->full,
      .syncs = gpu->syncs,
      .registered = gpu->registered,
  };
  say_way(gpu, &info);
  rc_sized_write(out, out->size, &info, sizeof info);
  return 0;
}
