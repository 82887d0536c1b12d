/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first call opens the driver, once; calls of other threads wait meanwhile.
 *
 * A fork copies the state, but the driver does not work in the child. So the state records the
 * process that opened the driver, as the number of forks that led to the process, before the
 * opening thread takes the lock: a child that is forked while another thread opens the driver sees
 * the record without the lock, which no thread of the child would ever release. A failure to open
 * (no library, no device) stays true in a child.
 */
#include "gpu/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ring/atomics.h"
#include "ringcast/gpu.h"
#include "shm/options.h"
#include "shm/error.h"
#include "shm/process.h"

#define LIBRARY "libcuda.so.1"
#define VERSION 12000 /* of the meanings in driver.h */

/* cuGetProcAddress_v2, which fills the table. */
typedef rc_cu_result (*proc_address)(const char *name, void **out, int version, uint64_t flags,
                                     int *why);

static const struct entry {
  const char *name;
  size_t offset; /* in struct rc_cuda */
} entries[] = {
#define ENTRY(field, name, symbol, arguments) {#name, offsetof(struct rc_cuda, field)},
    RC_CUDA_FUNCTIONS(ENTRY)
#undef ENTRY
};

static struct {
  /* 1 + the forks that led to the process that opened the driver; 0: none yet. */
  _Alignas(64) _Atomic uint32_t begun;
  _Atomic uint32_t done; /* table and status are final */
  pthread_mutex_t lock;
  struct rc_cuda table;
  struct rc_cuda_status status;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const struct rc_cuda_status forked = {
    .mode = RC_CUDA_FORKED,
    .result = RC_CU_NOT_INITIALIZED,
    .why = "CUDA was in use before this process was forked, and does not work here: start "
           "processes by spawn or exec",
};

/* ---- Opening --------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void
conclude(enum rc_cuda_mode mode, rc_cu_result result, const char *format, ...) {
  va_list arguments;
  driver.status.mode = mode;
  driver.status.result = result;
  va_start(arguments, format);
  vsnprintf(driver.status.why, sizeof driver.status.why, format, arguments);
  va_end(arguments);
}

/* Fills the table. Returns the name of a function that the driver lacks, or NULL. */
static const char *find_functions(void *library) {
  void *function = dlsym(library, "cuGetProcAddress_v2");
  proc_address get;
  if (!function) return "cuGetProcAddress_v2";
  memcpy(&get, &function, sizeof get);
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    int why = 0;
    rc_cu_result result =
        get(entries[i].name, &function, VERSION, RC_CU_GET_PROC_ADDRESS_LEGACY_STREAM, &why);
    if (result != RC_CU_SUCCESS || !function) return entries[i].name;
    memcpy((char *)&driver.table + entries[i].offset, &function, sizeof function);
  }
  return NULL;
}

static void start_failed(rc_cu_result result) {
  const char *name = rc_cuda_name(result);
  switch (result) {
  case RC_CU_STUB_LIBRARY:
    conclude(RC_CUDA_STUB, result,
             LIBRARY " is a toolkit's stub, made to link against (%s, %d): have the driver's own "
                     "library found first (LD_LIBRARY_PATH, ldconfig)",
             name, result);
    break;
  case RC_CU_NO_DEVICE:
    conclude(RC_CUDA_NO_DEVICE, result,
             "the driver finds no device (%s, %d): see nvidia-smi, CUDA_VISIBLE_DEVICES, "
             "and the devices of the container (docker run --gpus)",
             name, result);
    break;
  case RC_CU_NOT_INITIALIZED:
    driver.status = forked;
    break; /* other code used CUDA in the parent */
  default:
    conclude(
        RC_CUDA_BROKEN, result,
        "the driver does not start: cuInit gives %s (%d); see nvidia-smi and the kernel's "
        "log: kernel module and library must have the same version, and /dev/nvidia-uvm must exist",
        name, result);
  }
}

static void start(void) {
  const struct rc_cuda *cuda = &driver.table;
  int count = 0;
  rc_cu_result result = cuda->init(0);
  if (cuda->driver_get_version(&driver.status.version) != RC_CU_SUCCESS) driver.status.version = 0;
  if (result == RC_CU_SUCCESS) result = cuda->device_get_count(&count);
  if (result == RC_CU_SUCCESS && count < 1) result = RC_CU_NO_DEVICE;
  if (result != RC_CU_SUCCESS) {
    start_failed(result);
    return;
  }
  driver.status.devices = count;
}

/* The library stays open, as the driver's threads may run, and the table points into the library.
 * Only a library of which no function was called is closed. */
static void open_driver(void) {
  if (rc_feature_disabled("cuda")) {
    conclude(RC_CUDA_SWITCHED_OFF, 0, "switched off by RINGCAST_DISABLE=cuda");
    return;
  }
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    conclude(RC_CUDA_NO_LIBRARY, 0,
             "no driver: %.120s; install NVIDIA's, or give the container its GPUs "
             "(docker run --gpus all)",
             why ? why : LIBRARY " can't be opened");
    return;
  }
  const char *missing = find_functions(library);
  if (missing) {
    memset(&driver.table, 0, sizeof driver.table);
    dlclose(library);
    conclude(RC_CUDA_TOO_OLD, RC_CU_NOT_FOUND,
             "the driver is too old: it has no %s; install a driver of CUDA 12 or newer", missing);
    return;
  }
  start();
}

/* The status; the first call opens the driver. A thread that loads `done` sees all writes before
 * the store. */
static const struct rc_cuda_status *look(void) {
  uint32_t self = rc_forks_seen + 1, begun = 0;
  if (!rc_load_acquire(&driver.done)) {
    if (!rc_cas_strong_acq_rel(&driver.begun, &begun, self) && begun != self) return &forked;
    pthread_mutex_lock(&driver.lock);
    if (!rc_load_relaxed(&driver.done)) { /* relaxed: `done` is written under the lock */
      open_driver();
      rc_store_release(&driver.done, 1);
    }
    pthread_mutex_unlock(&driver.lock);
  }
  /* relaxed: `begun` was written before `done` */
  bool ours = rc_load_relaxed(&driver.begun) == self;
  return ours || driver.status.mode != RC_CUDA_READY ? &driver.status : &forked;
}

const struct rc_cuda *rc_cuda(void) { return look()->mode == RC_CUDA_READY ? &driver.table : NULL; }

const struct rc_cuda_status *rc_cuda_status(void) { return look(); }

bool rc_cuda_is_open(void) {
  return rc_load_acquire(&driver.done) && look()->mode == RC_CUDA_READY;
}

/* ---- The status ------------------------------------------------------------------------------ */

int ringcast_gpu_status(struct ringcast_gpu_driver *out) {
  int failed = rc_sized_check("ringcast_gpu_driver", out ? out->size : 0);
  if (!out || failed != 0) return failed;
  const struct rc_cuda_status *status = rc_cuda_status();
  struct ringcast_gpu_driver found = {
      .ready = status->mode == RC_CUDA_READY,
      .version = status->version,
      .devices = status->devices,
      .result = status->result,
  };
  snprintf(found.why, sizeof found.why, "%s", status->why);
  rc_sized_write(out, out->size, &found, sizeof found);
  return 0;
}

/* ---- Results in words ------------------------------------------------------------------------ */

/* Also called by the thread that starts the driver, before the start is complete. */
const char *rc_cuda_name(rc_cu_result result) {
  const char *name = NULL;
  if (driver.table.get_error_name && driver.table.get_error_name(result, &name) == RC_CU_SUCCESS &&
      name)
    return name;
  return "an error without a name"; /* no driver is open, or the result is newer than the driver */
}

static int code_of(rc_cu_result result) {
  switch (result) {
  case RC_CU_OUT_OF_MEMORY: return -ENOMEM;
  case RC_CU_NOT_SUPPORTED:
  case RC_CU_NOT_PERMITTED: return -ENOTSUP;
  case RC_CU_STREAM_CAPTURE_UNSUPPORTED:
  case RC_CU_STREAM_CAPTURE_INVALIDATED:
  case RC_CU_STREAM_CAPTURE_ISOLATION:
  case RC_CU_STREAM_CAPTURE_IMPLICIT:
  case RC_CU_CAPTURED_EVENT:
  case RC_CU_STREAM_CAPTURE_WRONG_THREAD: return -EBUSY;
  case RC_CU_NOT_INITIALIZED: return look()->mode == RC_CUDA_FORKED ? -ECHILD : -EIO;
  default: return -EIO;
  }
}

_Thread_local rc_cu_result rc_cuda_last_failure;

int rc_cuda_code(rc_cu_result result, const char *what, ...) {
  char text[256];
  if (result == RC_CU_SUCCESS) return 0;
  rc_cuda_last_failure = result;
  va_list arguments;
  va_start(arguments, what);
  vsnprintf(text, sizeof text, what, arguments);
  va_end(arguments);
  return rc_fail(code_of(result), "%s: %s (%d)", text, rc_cuda_name(result), result);
}

/* ---- Contexts, and captures ------------------------------------------------------------------ */

/* A capture in CUDA's default mode, GLOBAL, which PyTorch uses, is invalidated by calls that no
 * graph can hold (allocations, registrations, queries of a stream), made by any thread and about
 * any stream, unless the thread is RELAXED: a RELAXED thread declares that no call belongs to a
 * graph, which is true of ringcast's calls. The mode does not permit calls about a capturing
 * stream, or about the whole context of one: ringcast does not make those calls. */
void rc_cuda_relax(struct rc_cuda_entry *entry) {
  const struct rc_cuda *cuda = &driver.table;
  entry->pushed = false;
  entry->mode = RC_CU_STREAM_CAPTURE_MODE_RELAXED;
  entry->relaxed = cuda->exchange_capture_mode(&entry->mode) == RC_CU_SUCCESS;
}

rc_cu_result rc_cuda_enter(rc_cu_context context, struct rc_cuda_entry *entry) {
  struct rc_cuda_entry relaxed;
  rc_cuda_relax(&relaxed);
  rc_cu_result result = rc_cuda_enter_context(context, entry);
  if (result != RC_CU_SUCCESS) rc_cuda_leave(&relaxed);
  entry->relaxed = result == RC_CU_SUCCESS && relaxed.relaxed;
  entry->mode = relaxed.mode;
  return result;
}

rc_cu_result rc_cuda_enter_context(rc_cu_context context, struct rc_cuda_entry *entry) {
  rc_cu_context current = NULL;
  *entry = (struct rc_cuda_entry){.pushed = false};
  rc_cu_result result = driver.table.ctx_get_current(&current);
  if (result == RC_CU_SUCCESS && current != context) {
    result = driver.table.ctx_push(context);
    entry->pushed = result == RC_CU_SUCCESS;
  }
  return result;
}

void rc_cuda_leave(struct rc_cuda_entry *entry) {
  rc_cu_context left;
  if (entry->pushed) driver.table.ctx_pop(&left);
  if (entry->relaxed) driver.table.exchange_capture_mode(&entry->mode);
  entry->pushed = entry->relaxed = false;
}
