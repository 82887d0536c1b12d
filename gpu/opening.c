/* SPDX-License-Identifier: Apache-2.0 */
/* The open of a pool by a reader: a place in the segment, and the pool's memory, opened and tried. The essay atop
 * importers.c defines O1 to O4. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "gpu/import.h"
#include "gpu/exported.h"
#include "gpu/point.h"
#include "shm/error.h"

/* ---- The place -------------------------------------------------------------------------------------------------- */

/* O1. The `ack`s of the place may be a dead reader's: they are set to generations of frames that do not expect this
 * reader. */
static int take_place(struct rc_import *import) {
  struct rc_gpu_importer *place = rc_import_place(import);
  uint64_t before = rc_load_acquire(&place->owner); /* pairs with the store by which the earlier reader left */
  if (before != 0 && !rc_owner_is_dead(before))
    return rc_fail_as(-EAGAIN, "an earlier reader in this slot of the ring has not closed the device pool yet");
  if (!rc_cas_strong_acq_rel(&place->owner, &before, import->owner)) /* only after damage */
    return rc_fail_as(-EAGAIN, "a different reader takes this place in the device pool");
  /* The fence: the reader takes the place, then loads `closed`; the writer stores `closed`, then loads the owners. One
   * of the two sees the store of the other. <-> rc_exported_leave */
  rc_fence_full();
  if (rc_load_acquire(&rc_gpu_control(&import->segment)->closed)) { /* pairs with the store of leave */
    rc_import_leave_place(import);
    return rc_fail_as(-ENOENT, "the writer has closed its device pool");
  }
  import->turn = rc_load_relaxed(&place->turn) + 1; /* relaxed: this reader has the place */
  if (import->turn == 0) import->turn = 1;
  /* Release: a writer that loads the turn sees that the earlier reader has left, or never opened the pool. -> D1 */
  rc_store_relaxed(&place->opened, 0); /* relaxed: the release below; a dead reader has left the old value */
  rc_store_release(&place->turn, import->turn);
  rc_store_relaxed(&place->refused, 0); /* relaxed: the release of O3 */
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    uint64_t ready = rc_load_acquire(&rc_gpu_ready(&import->segment, slot)->value); /* pairs with Q3 */
    rc_semaphore_store(rc_import_ack(import, slot), ready);
  }
  RC_POINT(PLACE_TAKEN);
  return 0;
}

/* ---- The memory ------------------------------------------------------------------------------------------------- */

/* As nvidia-smi -L and ringcast doctor begin the devices' names. */
#define NAME_FORMAT "GPU-%02x%02x%02x%02x"

static int open_memory(struct rc_import *import, const struct rc_process *writer, const struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = import->device.cuda;
  const uint8_t *own = import->device.uuid, *theirs = id->uuid;
  struct rc_process self;
  rc_cu_ptr base;
  size_t bytes;
  if (rc_process_self(&self) == 0 && self.pid == writer->pid && self.start == writer->start) {
    import->pool = rc_exported_find(id->token, id->epoch, &import->device);
    if (!import->pool) return rc_fail_as(-ENOTSUP, "the writer is in this very process, on another device");
  } else {
    rc_cu_result result = cuda->ipc_open_handle(&import->pool, id->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    import->by_handle = result == RC_CU_SUCCESS;
    if (result != RC_CU_SUCCESS)
      return rc_cuda_fail(result,
                          "cuIpcOpenMemHandle of the writer's pool, which is on " NAME_FORMAT ", by " NAME_FORMAT,
                          theirs[0], theirs[1], theirs[2], theirs[3], own[0], own[1], own[2], own[3]);
  }
  /* The segment may be damaged, and a read beyond the memory would break the context; the driver knows the size. */
  if (cuda->mem_get_address_range(&base, &bytes, import->pool) != RC_CU_SUCCESS) return 0;
  uint64_t before = import->pool - base;
  if (before <= bytes && bytes - before >= id->pool_bytes + RC_GPU_PATTERN) return 0;
  return rc_fail_as(-EPROTO, "the writer's device segment is damaged: the pool is not as large as the segment says");
}

static int try_memory(const struct rc_import *import, const struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = import->device.cuda;
  uint64_t pattern[RC_GPU_PATTERN / sizeof(uint64_t)] = {0};
  rc_cu_stream stream;
  int failed = rc_stream_make(cuda, rc_semaphore_patience_ns, &stream);
  if (failed != 0) return failed;
  rc_cu_result result = cuda->copy_dtoh(pattern, import->pool + id->pool_bytes, sizeof pattern, stream);
  if (result == RC_CU_SUCCESS) result = rc_stream_await(cuda, stream, rc_semaphore_patience_ns);
  if (result == RC_CU_NOT_READY) return rc_fail_as(-ETIMEDOUT, "the writer's pool could not be read in time");
  cuda->stream_destroy(stream);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "reading the writer's pool");
  for (uint32_t i = 0; i < RC_GPU_PATTERN / sizeof(uint64_t); i++)
    if (pattern[i] != rc_gpu_pattern(id->seed, i))
      return rc_fail_as(-ENOTSUP, "the handle of the writer's pool has opened other memory: the pattern is missing");
  return 0;
}

static int open_and_try(struct rc_import *import, const struct rc_process *writer, const struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = import->device.cuda;
  int failed = rc_gpu_segment_register(&import->segment, cuda);
  if (failed == 0) failed = open_memory(import, writer, id);
  RC_POINT(POOL_OPENED);
  if (failed == 0) failed = try_memory(import, id);
  if (failed == 0) failed = rc_gpu_segment_try(&import->segment, cuda, import->importer, rc_semaphore_patience_ns);
  RC_POINT(POOL_TRIED);
  return failed;
}

/* ---- Life ------------------------------------------------------------------------------------------------------- */

static int set_up(struct rc_import *import, ringcast_reader *reader, const struct rc_gpu_identity *id) {
  import->pool_bytes = id->pool_bytes;
  import->taken = calloc(import->segment.slots, sizeof *import->taken);
  if (!import->taken) return rc_fail(-ENOMEM, "out of memory");
  rc_cuda_last_failure = RC_CU_SUCCESS;
  int failed = take_place(import);
  if (failed != 0) return failed;
  failed = open_and_try(import, &reader->segment.writer, id);
  if (failed == 0) failed = rc_watcher_add(&import->writer);
  if (failed == 0) return 0;
  rc_import_refuse(import, failed);
  if (failed == -ETIMEDOUT) import->device.context = NULL; /* a stream hangs: context and semaphores must stay */
  else rc_import_close_all(import);
  return failed;
}

int rc_import_open(ringcast_reader *reader, const struct rc_device *device, const struct rc_gpu_place *place,
                   struct rc_import **out) {
  struct rc_gpu_identity id;
  struct rc_import *import = rc_import_new(reader);
  if (!import) return rc_fail(-ENOMEM, "out of memory");
  int failed = rc_device_open(device->ordinal, &import->device);
  if (failed == 0)
    failed = rc_gpu_segment_attach(&reader->segment.writer, place, rc_segment_control(&reader->segment)->id.token,
                                   reader->segment.slots, &import->segment, &id);
  if (failed == 0) failed = set_up(import, reader, &id);
  if (failed != 0) {
    if (failed != -ETIMEDOUT) rc_gpu_segment_destroy(&import->segment, device->cuda);
    rc_import_drop(import);
    return failed;
  }
  rc_store_release(&rc_import_place(import)->opened, import->owner); /* O3 -> D1 */
  RC_POINT(OPENED_TOLD);
  *out = import;
  return 0;
}
