/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the writer has lent, as a reader opens and closes it. What is said of it, and when, is told atop
 * lend.c. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "gpu/import.h"
#include "gpu/writer.h"
#include "ring/point.h"
#include "shm/error.h"
#include "shm/os.h"

#define PAUSE_NS 20000
#define GONE_NS  ((int64_t)1000 * 1000 * 1000)

static int fail_wrong(void) { return rc_fail_as(-EPROTO, "the frame names lent memory that can't be right"); }

/* Of a writer in this very process there is nothing to open: CUDA can't. */
static rc_cu_result open_lent_memory(struct rc_import *import, uint32_t place, const rc_cu_ipc_handle *handle,
                                     rc_cu_ptr *out) {
  if (!import->by_handle) {
    const struct rc_gpu_identity *id = &rc_gpu_control(&import->segment)->id;
    *out = rc_estate_find_lent(id->token, import->segment.epoch, &import->device, place);
    return *out ? RC_CU_SUCCESS : RC_CU_INVALID_HANDLE;
  }
  return import->device.cuda->ipc_open_handle(out, *handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

/* Of a writer that is being killed nothing can be opened any more; it is dead only when its last thread has gone. */
static bool is_writer_gone(struct rc_import *import) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  const struct rc_watch *writer = &import->writer; /* its process: the descriptor is the watcher's */
  for (int64_t until = rc_now_ns() + GONE_NS;; nanosleep(&pause, NULL)) {
    if (rc_load_acquire(&import->dead)) return true; /* pairs with X0 */
    if (!rc_process_is_alive_by(writer->pid, writer->start, writer->mask)) break;
    if (!import->by_handle || rc_now_ns() >= until) return false;
  }
  rc_import_mark_dead(import);
  return true;
}

static void say_closed(struct rc_import *import, uint32_t place) {
  rc_os.lock(import->segment.memory.fd, rc_import_lock_of(import, 1 + place), false);
  rc_and_acq_rel(&rc_import_place(import)->lent, ~((uint64_t)1 << place));
}

/* By the reader's own thread, which alone opens: to open may take long, and is not done under the mutex. */
static int open_lent(struct rc_import *import, uint32_t place, uint32_t serial, struct rc_lent *out) {
  struct rc_gpu_lent *shared = &rc_gpu_control(&import->segment)->lent[place];
  const struct rc_cuda *cuda = import->device.cuda;
  struct rc_gpu_consumer *own = rc_import_place(import);
  uint64_t bit = (uint64_t)1 << place;
  rc_cu_ipc_handle handle;
  rc_cu_ptr base;
  size_t bytes;
  if (rc_load_acquire(&shared->serial) != serial) return fail_wrong(); /* pairs with the store of lend */
  rc_or_acq_rel(&own->lent, bit); /* before it is open, as it is cleared after it was closed */
  rc_os.lock(import->segment.memory.fd, rc_import_lock_of(import, 1 + place), true); /* as in take_place */
  RC_POINT(LENT_NOTED);
  rc_fence_full(); /* <-> is_taken_back in lend.c */
  memcpy(&handle, &shared->handle, sizeof handle);
  rc_cu_result result = RC_CU_INVALID_HANDLE;
  *out = (struct rc_lent){.serial = serial, .bytes = shared->bytes};
  if (rc_load_acquire(&shared->serial) == serial) /* as above */
    result = open_lent_memory(import, place, &handle, &out->base);
  if (result != RC_CU_SUCCESS) {
    say_closed(import, place);
    if (is_writer_gone(import)) return rc_import_fail_dead();
    return rc_cuda_fail(result, "cuIpcOpenMemHandle of memory that the writer has lent");
  }
  RC_POINT(LENT_OPENED);
  /* What the writer says of its size is not to be relied on, where the driver knows it. */
  if (cuda->mem_get_address_range(&base, &bytes, out->base) == RC_CU_SUCCESS && bytes < out->bytes) out->bytes = bytes;
  return 0;
}

int rc_import_lent(struct rc_import *import, uint64_t number, uint64_t offset, uint64_t bytes, rc_cu_ptr *out) {
  uint32_t place = rc_gpu_lent_place(number), serial = rc_gpu_lent_serial(number);
  if (place >= RC_GPU_MAX_LENT || number > UINT32_MAX) return fail_wrong();
  rc_import_lock_to_begin(import); /* what is being closed is open no more: its place may have other memory */
  struct rc_lent lent = import->lent[place];
  pthread_mutex_unlock(&import->mutex);
  if (lent.base != 0 && lent.serial != serial) return fail_wrong();
  if (lent.base == 0) {
    int failed = open_lent(import, place, serial, &lent);
    if (failed != 0) return failed;
    rc_import_lock_to_begin(import);
    import->lent[place] = lent;
    pthread_mutex_unlock(&import->mutex);
  }
  if (offset > lent.bytes || bytes > lent.bytes - offset) return fail_wrong();
  *out = lent.base + offset;
  return 0;
}

/* Under the mutex: no stream of this reader waits for the writer, nor will one as long as the mutex is held. */
static bool has_no_wait(const struct rc_import *import) {
  for (uint32_t slot = 0; slot < import->segment.slots; slot++) {
    uint64_t generation = import->taken[slot].generation;
    if (generation == 0) continue;
    if (!rc_word_has_reached(rc_gpu_ready(&import->segment, slot), import->segment.word_bits, generation)) return false;
  }
  return true;
}

void rc_import_lock_to_begin(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  while (import->is_closing_lent) pthread_cond_wait(&import->change, &import->mutex);
}

/* Whether lent memory may be closed, which goes on until told. */
static bool begin_to_close(struct rc_import *import, bool all) {
  pthread_mutex_lock(&import->mutex);
  bool may = import->is_closing_lent = all || has_no_wait(import);
  pthread_mutex_unlock(&import->mutex);
  return may;
}

static void tell_closed(struct rc_import *import) {
  pthread_mutex_lock(&import->mutex);
  import->is_closing_lent = false;
  pthread_cond_broadcast(&import->change);
  pthread_mutex_unlock(&import->mutex);
}

/* An errand of the watcher's alone closes, or its end, and nobody opens meanwhile; the watcher looks what is open. */
bool rc_import_close_lent(struct rc_import *import, bool all) {
  if (!begin_to_close(import, all)) return false;
  for (uint32_t place = 0; place < RC_GPU_MAX_LENT; place++) {
    if (import->lent[place].base == 0) continue;
    struct rc_gpu_lent *shared = &rc_gpu_control(&import->segment)->lent[place];
    if (!all && rc_load_acquire(&shared->serial) == import->lent[place].serial) continue; /* pairs with unlend's */
    if (import->by_handle) import->device.cuda->ipc_close_handle(import->lent[place].base);
    pthread_mutex_lock(&import->mutex);
    import->lent[place].base = 0;
    pthread_mutex_unlock(&import->mutex);
    RC_POINT(LENT_CLOSED);
    say_closed(import, place);
  }
  tell_closed(import);
  return true;
}
