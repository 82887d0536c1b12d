/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of device tensors: open, close, and the pools that the reader opens. take.c has the frames. */
#include "gpu/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/options.h"
#include "shm/error.h"

#define LONG_NS ((int64_t)100 * 1000 * 1000)
#define SELDOM  9 /* failed attempts take at most a tenth of the time */

static int enter(const ringcast_gpu_reader *gpu, bool relaxes, struct rc_cuda_entry *entry) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  return rc_device_enter(&gpu->device, relaxes, entry);
}

int rc_gpu_reader_enter(const ringcast_gpu_reader *gpu, struct rc_cuda_entry *entry) { return enter(gpu, true, entry); }

int rc_gpu_reader_enter_context(const ringcast_gpu_reader *gpu, struct rc_cuda_entry *entry) {
  return enter(gpu, false, entry);
}

int rc_gpu_reader_failed(ringcast_gpu_reader *gpu, int code) {
  if (code != -EIO || !gpu->import) return code;
  strncpy(gpu->why, rc_error_text(), sizeof gpu->why - 1);
  rc_import_lose(gpu->import, code);
  return code;
}

/* ---- The pool --------------------------------------------------------------------------------------------------- */

static void note_failure(ringcast_gpu_reader *gpu, uint32_t epoch, bool for_now) {
  gpu->failed = epoch;
  if (!for_now) gpu->refused = epoch;
  strncpy(gpu->why, rc_error_text(), sizeof gpu->why - 1);
}

/* Closes the import and keeps it in the list of earlier imports, as streams may still wait for its semaphores. */
static void put_aside(ringcast_gpu_reader *gpu, int64_t patience_ns) {
  struct rc_import *import = gpu->import;
  if (!import) return;
  rc_import_close(import, patience_ns);
  import->before = gpu->before;
  gpu->before = import;
  gpu->import = NULL;
}

/* Drops the imports with no stream at work; with `all`, each import. */
static void forget_imports(ringcast_gpu_reader *gpu, bool all) {
  for (struct rc_import **at = &gpu->before; *at;) {
    struct rc_import *import = *at;
    bool has_ended, was_missing = rc_import_is_missing(import, &has_ended);
    if (!has_ended && !all) {
      at = &import->before;
      continue;
    }
    gpu->missing |= was_missing;
    *at = import->before;
    rc_import_drop(import);
  }
}

/* As look_for_pool, but at once. 0 also if the writer has no pool; else the reason, with the error text. */
static int open_pool(ringcast_gpu_reader *gpu) {
  struct rc_gpu_place place;
  if (rc_gpu_place_read(&gpu->reader->ring.view.control->device, &place) != 0) return 0;
  /* Frames of an earlier pool may still be unread. */
  if (gpu->reader->ring.cursor < place.position) return 0;
  if (gpu->import && gpu->import->segment.epoch == place.epoch) return 0;
  if (gpu->refused == place.epoch) return 0;
  struct rc_cuda_entry relaxed;
  rc_cuda_relax(&relaxed);
  put_aside(gpu, 0);
  forget_imports(gpu, false);
  uint64_t bytes;
  int found = rc_environment_number("RINGCAST_GPU_POOL_BYTES", RC_GPU_MAX_POOL, "bytes", "none", &bytes);
  int failed = found < 0                  ? found
               : found != 0 && bytes == 0 ? rc_fail_as(-ENOTSUP, "RINGCAST_GPU_POOL_BYTES is 0: no device pool")
                                          : rc_import_open(gpu->reader, &gpu->device, &place, &gpu->import);
  rc_cuda_leave(&relaxed);
  if (failed == 0) gpu->opens++;
  else note_failure(gpu, place.epoch, rc_gpu_is_for_now(failed));
  return failed;
}

/* Each attempt takes long while the device is busy, and frames must not wait for one attempt after the other. */
void rc_gpu_reader_look_for_pool(ringcast_gpu_reader *gpu) {
  int64_t began = rc_now_ns();
  if (began < gpu->not_before || open_pool(gpu) == 0) return;
  int64_t now = rc_now_ns();
  if (now - began > LONG_NS) gpu->not_before = now + SELDOM * (now - began);
}

int ringcast_gpu_reader_prepare(ringcast_gpu_reader *gpu) {
  struct rc_cuda_entry entry;
  int failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  bool has_failed = open_pool(gpu) != 0;
  rc_cuda_leave(&entry);
  uint32_t epoch = rc_load_relaxed(&gpu->reader->ring.view.control->device.epoch); /* relaxed: only compared */
  if (epoch != 0 && gpu->import && gpu->import->segment.epoch == epoch) return 0;
  if (epoch != 0 && gpu->refused == epoch) return rc_fail(-ENOTSUP, "the writer's pool can't be opened: %s", gpu->why);
  if (has_failed) return rc_fail(-EAGAIN, "the writer's pool can't be opened now: %s", gpu->why);
  return rc_fail_as(-EAGAIN, "the writer has no device pool now, or frames of an earlier pool must be read first");
}

/* ---- Open, close ------------------------------------------------------------------------------------------------ */

static int resolve_options(const struct ringcast_gpu_reader_options *given, struct ringcast_gpu_reader_options *out) {
  int failed = rc_sized_read("ringcast_gpu_reader_options", given, out, sizeof *out);
  if (failed != 0) return failed;
  if (!given) out->device = -1;
  if (out->flags != 0 || out->reserved != 0) return rc_fail_as(-EINVAL, "options.flags and reserved must be 0");
  return rc_features_check();
}

/* Ends everything except the handle; calls with the handle give -EINVAL from here on. */
static void detach(void *context) {
  ringcast_gpu_reader *gpu = context;
  put_aside(gpu, rc_gpu_close_ns);
  forget_imports(gpu, true);
  rc_bounce_end(gpu->bounce);
  rc_device_close(&gpu->device);
  gpu->forks = RC_LEFT;
}

int ringcast_gpu_reader_open(ringcast_reader *reader, const struct ringcast_gpu_reader_options *given,
                             ringcast_gpu_reader **out) {
  struct ringcast_gpu_reader_options options;
  int failed = rc_check_fork(reader->forks);
  if (failed == 0) failed = resolve_options(given, &options);
  if (failed != 0) return failed;
  if (reader->attachment.detach)
    return rc_fail_as(-EBUSY, "this reader has a ringcast_gpu_reader already: close that first");
  ringcast_gpu_reader *gpu = calloc(1, sizeof *gpu);
  if (!gpu) return rc_fail(-ENOMEM, "out of memory");
  gpu->reader = reader;
  gpu->forks = rc_fork_count();
  failed = rc_device_open(options.device, &gpu->device);
  if (failed != 0) {
    free(gpu);
    return failed;
  }
  reader->attachment = (struct rc_attachment){.detach = detach, .context = gpu};
  *out = gpu;
  return 0;
}

void ringcast_gpu_reader_close(ringcast_gpu_reader *gpu) {
  if (!gpu) return;
  if (gpu->forks == rc_fork_count()) { /* in a forked child the parent owns everything but the handle */
    gpu->reader->attachment.detach = NULL;
    detach(gpu);
  }
  free(gpu);
}

/* ---- The next frame --------------------------------------------------------------------------------------------- */

int ringcast_gpu_next(ringcast_gpu_reader *gpu, int64_t timeout_ns, struct ringcast_frame *out) {
  int failed = rc_check_wait(gpu->forks, timeout_ns);
  return failed != 0 ? failed : ringcast_reader_next(gpu->reader, timeout_ns, out);
}

/* ---- Introspection ---------------------------------------------------------------------------------------------- */

static bool is_missing(const ringcast_gpu_reader *gpu) {
  bool is_missing = gpu->missing || (gpu->import && rc_import_is_missing(gpu->import, NULL));
  for (struct rc_import *import = gpu->before; import && !is_missing; import = import->before)
    is_missing = rc_import_is_missing(import, NULL);
  return is_missing;
}

int ringcast_gpu_check(const ringcast_gpu_reader *gpu) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  failed = ringcast_reader_check(gpu->reader); /* evicted: the bytes may have been overwritten during the copy */
  if (failed != 0) return failed;
  if (!is_missing(gpu)) return 0;
  return rc_fail_as(-EPIPE, "the writer, or a device, has failed, and device tensors that were being received never "
                            "came: drop these tensors and their copies");
}

/* True too if the writer's present pool can't be opened now. */
static bool has_refused(const ringcast_gpu_reader *gpu) {
  uint32_t epoch = rc_load_relaxed(&gpu->reader->ring.view.control->device.epoch); /* relaxed: only compared */
  return gpu->refused != 0 || (gpu->failed != 0 && gpu->failed == epoch);
}

int ringcast_gpu_reader_info(ringcast_gpu_reader *gpu, struct ringcast_gpu_info *out) {
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = rc_sized_check("ringcast_gpu_info", out->size);
  if (failed != 0) return failed;
  struct rc_import *import = gpu->import;
  bool has_failed = import && rc_load_acquire(&import->failed); /* pairs with the store of lose */
  bool is_lost =
      import && (has_failed || rc_import_is_missing(import, NULL) || rc_load_acquire(&import->dead)); /* X0 */
  uint32_t way = is_lost            ? RINGCAST_GPU_WAY_LOST
                 : import           ? RINGCAST_GPU_WAY_POOL
                 : has_refused(gpu) ? RINGCAST_GPU_WAY_REFUSED
                                    : RINGCAST_GPU_WAY_NO_POOL;
  struct ringcast_gpu_info info = {
      .way = way,
      .device = gpu->device.ordinal,
      .pool_bytes = import ? import->pool_bytes : 0,
      .slots = import ? import->segment.slots : 0,
      .epoch = import ? import->segment.epoch : 0,
      .reader = gpu->reader->ring.slot,
      .pool_frames = gpu->pool_frames,
      .pool_bytes_sent = gpu->pool_bytes,
      .inline_frames = gpu->inline_frames,
      .opens = gpu->opens,
      .syncs = gpu->syncs,
      .registered = gpu->bounce != NULL,
  };
  if (way == RINGCAST_GPU_WAY_REFUSED || has_failed) memcpy(info.why, gpu->why, sizeof gpu->why);
  rc_sized_write(out, out->size, &info, sizeof info);
  return 0;
}
