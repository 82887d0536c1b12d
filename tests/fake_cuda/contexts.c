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

/* ---- Start ------------------------------------------------------------------------------------------------------ */

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
  rc_cu_result result = fake_begin(FAKE_init, FAKE_ANY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if (flags != 0) return fake_end(RC_CU_INVALID_VALUE);
  result = number("FAKE_CUDA_INIT", RC_CU_SUCCESS);
  if (result != RC_CU_SUCCESS || fake.pid != 0) return fake_end(result);
  read_settings();
  for (int i = 0; i < MOST_DEVICES; i++) fake.contexts[i].device = i;
  fake.pid = getpid();
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuDriverGetVersion(int *out) {
  rc_cu_result result = fake_begin(FAKE_driver_get_version, FAKE_ANY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  *out = 13000;
  return fake_end(RC_CU_SUCCESS);
}

static const struct {
  rc_cu_result result;
  const char *name;
} names[] = {
    {RC_CU_SUCCESS, "CUDA_SUCCESS"},
    {RC_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {RC_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {RC_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {RC_CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED"},
    {RC_CU_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {RC_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {RC_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {RC_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {RC_CU_MAP_FAILED, "CUDA_ERROR_MAP_FAILED"},
    {RC_CU_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED"},
    {RC_CU_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
    {RC_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {RC_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {RC_CU_NOT_READY, "CUDA_ERROR_NOT_READY"},
    {RC_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {RC_CU_TOO_MANY_PEERS, "CUDA_ERROR_TOO_MANY_PEERS"},
    {RC_CU_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {RC_CU_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {RC_CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
    {RC_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    {RC_CU_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {RC_CU_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {RC_CU_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

/* Takes no lock, counts nothing, and works in a child too: reports of failures call this function. */
rc_cu_result cuGetErrorName(rc_cu_result wanted, const char **out) {
  *out = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].result == wanted) *out = names[i].name;
  return *out ? RC_CU_SUCCESS : RC_CU_INVALID_VALUE;
}

/* ---- Devices ---------------------------------------------------------------------------------------------------- */

static bool is_device(int device) { return device >= 0 && device < fake.settings.devices; }

rc_cu_result cuDeviceGetCount(int *out) {
  rc_cu_result result = fake_begin(FAKE_device_get_count, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  *out = fake.settings.devices;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuDeviceGet(rc_cu_device *out, int ordinal) {
  rc_cu_result result = fake_begin(FAKE_device_get, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if (!is_device(ordinal)) return fake_end(RC_CU_INVALID_DEVICE);
  *out = ordinal;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuDeviceGetName(char *out, int bytes, rc_cu_device device) {
  rc_cu_result result = fake_begin(FAKE_device_get_name, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  snprintf(out, (size_t)bytes, "Fake GPU %d", fake.settings.visible[device]);
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuDeviceGetUuid_v2(rc_cu_uuid *out, rc_cu_device device) {
  rc_cu_result result = fake_begin(FAKE_device_get_uuid, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  memcpy(out->bytes, "fake-cuda-gpu-0", 16);
  out->bytes[14] = (char)('0' + fake.settings.visible[device]);
  return fake_end(RC_CU_SUCCESS);
}

/* As of a data-centre card in a PCIe slot: no host page tables, so no registering of read-only memory. */
static const struct {
  int number, value;
} attributes[] = {{1, 1024} /* threads of a block */,
                  {16, 132} /* multiprocessors */,
                  {40, 3} /* copy engines */,
                  {41, 1} /* one address space with the host */,
                  {75, 9} /* compute capability 9.0 */,
                  {76, 0},
                  {91, 0} /* registered memory has another address than the host's */,
                  {99, 1} /* host memory can be registered */,
                  {100, 0} /* host page tables */,
                  {RC_CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0},
                  {115, 1} /* memory pools */,
                  {122, 1} /* stream operations on words of 64 bits */};

rc_cu_result cuDeviceGetAttribute(int *out, rc_cu_device_attribute attribute, rc_cu_device device) {
  rc_cu_result result = fake_begin(FAKE_device_get_attribute, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  bool is_known = false;
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
    if (attributes[i].number == attribute) is_known = true, *out = attributes[i].value;
  return fake_end(is_known ? RC_CU_SUCCESS : RC_CU_INVALID_VALUE);
}

/* ---- Contexts --------------------------------------------------------------------------------------------------- */

struct rc_cu_context *fake_current(void) {
  return depth > 0 ? stack[depth - 1] : NULL;
}

void fake_break_context(struct rc_cu_context *context) {
  if (context && context->broken == RC_CU_SUCCESS) context->broken = RC_CU_ILLEGAL_ADDRESS;
  pthread_cond_broadcast(&fake.changed);
}

rc_cu_result cuDevicePrimaryCtxRetain(rc_cu_context *out, rc_cu_device device) {
  rc_cu_result result = fake_begin(FAKE_primary_retain, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  struct rc_cu_context *context = &fake.contexts[device];
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
  rc_cu_result result = fake_begin(FAKE_primary_release, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if (!is_device(device)) return fake_end(RC_CU_INVALID_DEVICE);
  struct rc_cu_context *context = &fake.contexts[device];
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

rc_cu_result cuCtxPushCurrent_v2(rc_cu_context context) {
  rc_cu_result result = fake_begin(FAKE_ctx_push, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  bool known = context >= fake.contexts && context < fake.contexts + MOST_DEVICES && context->references > 0;
  if (!known || depth == DEPTH) return fake_end(known ? RC_CU_OUT_OF_MEMORY : RC_CU_INVALID_CONTEXT);
  stack[depth++] = context;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxPopCurrent_v2(rc_cu_context *out) {
  rc_cu_result result = fake_begin(FAKE_ctx_pop, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if (depth == 0) return fake_end(RC_CU_INVALID_CONTEXT);
  *out = stack[--depth];
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxGetCurrent(rc_cu_context *out) {
  rc_cu_result result = fake_begin(FAKE_ctx_get_current, FAKE_READY, NULL);
  if (result != RC_CU_SUCCESS) return result;
  *out = fake_current();
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxGetDevice(rc_cu_device *out) {
  struct rc_cu_context *context;
  rc_cu_result result = fake_begin(FAKE_ctx_get_device, FAKE_CURRENT, &context);
  if (result != RC_CU_SUCCESS) return result;
  *out = context->device;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuCtxSynchronize(void) {
  struct rc_cu_context *context;
  rc_cu_result result = fake_begin(FAKE_ctx_synchronize, FAKE_CURRENT, &context);
  if (result != RC_CU_SUCCESS) return result;
  result = fake_check_capture_of(context);
  if (result != RC_CU_SUCCESS) return fake_end(result);
  fake_streams_wait(context);
  return fake_end(context->broken);
}

/* ---- Modules ---------------------------------------------------------------------------------------------------- */

static char the_module;
char fake_kernel, fake_fault;

rc_cu_result cuModuleLoadData(rc_cu_module *out, const void *image) {
  rc_cu_result result = fake_begin(FAKE_module_load_data, FAKE_CURRENT, NULL);
  if (result != RC_CU_SUCCESS) return result;
  *out = (rc_cu_module)(void *)&the_module;
  return fake_end(image ? RC_CU_SUCCESS : RC_CU_INVALID_VALUE);
}

rc_cu_result cuModuleGetFunction(rc_cu_function *out, rc_cu_module module, const char *name) {
  rc_cu_result result = fake_begin(FAKE_module_get_function, FAKE_CURRENT, NULL);
  if (result != RC_CU_SUCCESS) return result;
  if ((void *)module != &the_module) return fake_end(RC_CU_INVALID_HANDLE);
  bool faults = strcmp(name, "fault") == 0;
  *out = (rc_cu_function)(void *)(faults ? &fake_fault : &fake_kernel);
  return fake_end(faults || strcmp(name, "spin") == 0 ? RC_CU_SUCCESS : RC_CU_NOT_FOUND);
}
