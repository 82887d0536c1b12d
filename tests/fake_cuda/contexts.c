/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's start, devices, and contexts. Only primary contexts exist. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

enum { DEPTH = 16 };
static _Thread_local struct rc_cu_context *stack[DEPTH];
static _Thread_local int depth;

/* ---- Start ----------------------------------------------------------------------------------- */

static int number(const char *name, int otherwise) {
  const char *text = fake_setting(name);
  return text ? atoi(text) : otherwise;
}

static void read_settings(void) {
  struct fake_settings *settings = &fake.settings;
  const char *visible = fake_setting("FAKE_CUDA_VISIBLE");
  int there = number("FAKE_CUDA_DEVICES", 1);
  for (settings->devices = 0; settings->devices < MOST_DEVICES;) {
    char *rest = NULL;
    int device = visible ? (int)strtol(visible, &rest, 10) : settings->devices;
    if (device < 0 || device >= there || (visible && rest == visible)) break;
    settings->visible[settings->devices++] = device;
    if (visible) visible = rest + (*rest == ',');
  }
  settings->no_peer = number("FAKE_CUDA_NO_PEER", 0);
  settings->same_handle = number("FAKE_CUDA_SAME_HANDLE", 0);
  settings->stuck_words = number("FAKE_CUDA_STUCK_WORDS", 0);
  settings->jitter = (unsigned)number("FAKE_CUDA_JITTER", 0);
  settings->queues = (unsigned)number("FAKE_CUDA_QUEUES", 0);
}

rc_cu_result cuInit(unsigned flags) {
  BEGIN(init, FAKE_ANY);
  if (flags != 0) return fake_end(RC_CU_INVALID_VALUE);
  result = number("FAKE_CUDA_INIT", RC_CU_SUCCESS);
  if (result != RC_CU_SUCCESS || fake.pid != 0) return fake_end(result);
  read_settings();
  for (int i = 0; i < MOST_DEVICES; i++) fake.contexts[i].device = i;
  fake.pid = getpid();
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuDriverGetVersion(int *out) {
  BEGIN(driver_get_version, FAKE_ANY);
  *out = 13000;
  return fake_end(RC_CU_SUCCESS);
}

/* clang-format off */
#define NAMES(X) \
  X(INVALID_VALUE) X(OUT_OF_MEMORY) X(NOT_INITIALIZED) X(DEINITIALIZED) X(STUB_LIBRARY) \
  X(NO_DEVICE) X(INVALID_DEVICE) X(INVALID_CONTEXT) X(MAP_FAILED) X(ALREADY_MAPPED) \
  X(PEER_ACCESS_UNSUPPORTED) X(INVALID_HANDLE) X(NOT_FOUND) X(NOT_READY) X(ILLEGAL_ADDRESS) \
  X(TOO_MANY_PEERS) X(HOST_MEMORY_ALREADY_REGISTERED) X(HOST_MEMORY_NOT_REGISTERED) \
  X(NOT_PERMITTED) X(NOT_SUPPORTED) X(STREAM_CAPTURE_UNSUPPORTED) X(STREAM_CAPTURE_INVALIDATED) \
  X(STREAM_CAPTURE_IMPLICIT)
/* clang-format on */

/* Takes no lock, counts nothing, and works in a child too: reports of failures call this
 * function. */
rc_cu_result cuGetErrorName(rc_cu_result wanted, const char **out) {
  *out = NULL;
  if (wanted == RC_CU_SUCCESS) *out = "CUDA_SUCCESS";
  if (wanted == 46) *out = "CUDA_ERROR_DEVICE_UNAVAILABLE";
  if (wanted == 999) *out = "CUDA_ERROR_UNKNOWN";
#define LOOK(name) \
  if (wanted == RC_CU_##name) *out = "CUDA_ERROR_" #name;
  NAMES(LOOK)
#undef LOOK
  return *out ? RC_CU_SUCCESS : RC_CU_INVALID_VALUE;
}

/* ---- Devices --------------------------------------------------------------------------------- */

static bool is_device(int device) { return device >= 0 && device < fake.settings.devices; }

rc_cu_result cuDeviceGetCount(int *out) {
  BEGIN(device_get_count, FAKE_READY);
  *out = fake.settings.devices;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuDeviceGet(rc_cu_device *out, int ordinal) {
  BEGIN(device_get, FAKE_READY);
  if (!is_device(ordinal)) return fake_end(RC_CU_INVALID_DEVICE);
  *out = ordinal;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuDeviceGetName(char *out, int bytes, rc_cu_device device) {
  BEGIN(device_get_name, FAKE_READY);
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  snprintf(out, (size_t)bytes, "Fake GPU %d", fake.settings.visible[device]);
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuDeviceGetUuid_v2(rc_cu_uuid *out, rc_cu_device device) {
  BEGIN(device_get_uuid, FAKE_READY);
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  memcpy(out->bytes, "fake-cuda-gpu-0", 16);
  out->bytes[14] = (char)('0' + fake.settings.visible[device]);
  return fake_end(RC_CU_SUCCESS);
}

/* As of a data-centre card in a PCIe slot: no host page tables, so no registering of read-only
 * memory. */
static const struct {
  int number, value;
} attributes[] = {{41, 1},  {91, 0},
                  {99, 1},  {RC_CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0},
                  {115, 1}, {122, 1}};

rc_cu_result cuDeviceGetAttribute(int *out, rc_cu_device_attribute attribute, rc_cu_device device) {
  BEGIN(device_get_attribute, FAKE_READY);
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  bool is_known = false;
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
    if (attributes[i].number == attribute) is_known = true, *out = attributes[i].value;
  return fake_end(is_known ? RC_CU_SUCCESS : RC_CU_INVALID_VALUE);
}

/* ---- Contexts -------------------------------------------------------------------------------- */

struct rc_cu_context *fake_current(void) {
  return depth > 0 ? stack[depth - 1] : NULL;
}

void fake_break_context(struct rc_cu_context *context) {
  if (context && context->broken == RC_CU_SUCCESS) context->broken = RC_CU_ILLEGAL_ADDRESS;
  pthread_cond_broadcast(&fake.changed);
}

rc_cu_result cuDevicePrimaryCtxRetain(rc_cu_context *out, rc_cu_device device) {
  BEGIN(primary_retain, FAKE_READY);
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  context = &fake.contexts[device];
  while (context->ending) pthread_cond_wait(&fake.changed, &fake.lock);
  if (context->references == 0) {
    context->broken = RC_CU_SUCCESS;
    result = fake_stream_make(context, true, &context->legacy);
    if (result != RC_CU_SUCCESS) return fake_end(result);
    fake.contexts_made++;
  }
  context->references++;
  *out = context;
  return fake_end(RC_CU_SUCCESS);
}

/* The last one ends it, with all that is in it, and waits for nothing but what is under way. */
rc_cu_result cuDevicePrimaryCtxRelease_v2(rc_cu_device device) {
  BEGIN(primary_release, FAKE_READY);
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  context = &fake.contexts[device];
  if (context->references == 0) return fake_end(RC_CU_INVALID_CONTEXT);
  if (--context->references == 0) {
    context->ending = true;
    fake_streams_end(context);
    fake_memory_end(context);
    context->ending = false;
    pthread_cond_broadcast(&fake.changed);
  }
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxPushCurrent_v2(rc_cu_context pushed) {
  BEGIN(ctx_push, FAKE_READY);
  bool known =
      pushed >= fake.contexts && pushed < fake.contexts + MOST_DEVICES && pushed->references > 0;
  if (!known || depth == DEPTH)
    return fake_end(known ? RC_CU_OUT_OF_MEMORY : RC_CU_INVALID_CONTEXT);
  stack[depth++] = pushed;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxPopCurrent_v2(rc_cu_context *out) {
  BEGIN(ctx_pop, FAKE_READY);
  if (depth == 0) return fake_end(RC_CU_INVALID_CONTEXT);
  *out = stack[--depth];
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxGetCurrent(rc_cu_context *out) {
  BEGIN(ctx_get_current, FAKE_READY);
  *out = fake_current();
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxGetDevice(rc_cu_device *out) {
  BEGIN(ctx_get_device, FAKE_CURRENT);
  *out = context->device;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxSynchronize(void) {
  BEGIN(ctx_synchronize, FAKE_CURRENT);
  result = fake_check_capture_of(context);
  if (result != RC_CU_SUCCESS) return fake_end(result);
  fake_streams_wait(context);
  return fake_end(context->broken);
}

/* ---- Modules --------------------------------------------------------------------------------- */

static char the_module;
char fake_kernel, fake_fault;

rc_cu_result cuModuleLoadData(rc_cu_module *out, const void *image) {
  BEGIN(module_load_data, FAKE_CURRENT);
  *out = (rc_cu_module)(void *)&the_module;
  return fake_end(image ? RC_CU_SUCCESS : RC_CU_INVALID_VALUE);
}

rc_cu_result cuModuleGetFunction(rc_cu_function *out, rc_cu_module module, const char *name) {
  BEGIN(module_get_function, FAKE_CURRENT);
  if ((void *)module != &the_module) return fake_end(RC_CU_INVALID_HANDLE);
  bool faults = strcmp(name, "fault") == 0;
  *out = (rc_cu_function)(void *)(faults ? &fake_fault : &fake_kernel);
  return fake_end(faults || strcmp(name, "spin") == 0 ? RC_CU_SUCCESS : RC_CU_NOT_FOUND);
}
