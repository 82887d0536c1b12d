/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A writer of a tensor on a CUDA device, and a reader in another process, by the steps atop
 * ringcast/gpu.h. Prints what arrived, and which way; without a usable GPU, prints the reason.
 *
 *   cc gpu.c -o gpu $(pkg-config --cflags --libs ringcast) -ldl && ./gpu
 *
 * hello.c says how pkg-config finds it.
 *
 * The writer has its memory of CUDA's driver, found as ringcast finds it, so that no toolkit is
 * needed here. A program that has one passes its own device pointers and streams. Nothing of CUDA
 * is called before the fork.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringcast/gpu.h"
#include "ringcast/ringcast.h"

enum { FRAMES = 3, COUNT = 4 };
static const int64_t minute = INT64_C(60000000000), shape[1] = {COUNT};

/* Any negative result ends the program with the sentence that says why. */
static int check(int result) {
  if (result >= 0) return result;
  fprintf(stderr, "gpu: %s\n", ringcast_last_error());
  exit(1);
}

/* For functions of ringcast/frame.h, which set no error text. */
static void check_frame(int result) {
  if (result >= 0) return;
  fprintf(stderr, "gpu: the frame is not what was expected: %s\n", strerror(-result));
  exit(1);
}

/* ---- The reader ------------------------------------------------------------------------------ */

/* On a stream of your own, kernels could use `memory` at once: only the copy to the host waits for
 * the device. */
static void read_one(ringcast_gpu_reader *gpu) {
  struct ringcast_frame frame;
  struct ringcast_gpu_take take;
  struct ringcast_frame_reader tensors;
  struct ringcast_item item;
  ringcast_gpu_memory *memory;
  ringcast_device_ptr where;
  float values[COUNT];
  check(ringcast_gpu_next(gpu, minute, &frame));
  check(ringcast_gpu_begin(gpu, &frame, NULL,
                           &take)); /* the stream (NULL: the default one) waits for the writer's */
  check_frame(ringcast_frame_open(&tensors, frame.data, frame.bytes));
  check_frame(ringcast_frame_find(&tensors, "x", 1, &item));
  check_frame(item.ndim == 1 && item.bytes == sizeof values ? 0 : -EPROTO);
  check(ringcast_gpu_memory_alloc(gpu, item.bytes, NULL, &where, &memory));
  check(ringcast_gpu_copy_out(gpu, &take, &item, where));
  check(ringcast_gpu_end(gpu, &take)); /* the stream tells the writer's when it has copied */
  struct ringcast_tensor copy = {.data = (const void *)(uintptr_t)where,
                                 .dtype = item.dtype,
                                 .ndim = item.ndim,
                                 .shape = item.shape};
  check(ringcast_gpu_copy_back(0, &copy, values, NULL));
  check(ringcast_gpu_check(gpu)); /* the writer lives: the bytes are the bytes sent */
  printf("received %g %g %g %g by the %s\n", values[0], values[1], values[2], values[3],
         item.placement == RINGCAST_PLACEMENT_POOL ? "pool" : "ring");
  ringcast_gpu_memory_free(memory);
}

static void read_all(const char *handle, int told) {
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  check(ringcast_reader_attach(handle, &reader));
  int result = ringcast_gpu_reader_open(reader, NULL, &gpu);
  if (result != -ENODEV) check(result); /* no device: nor has the writer one, which says so */
  for (int i = 0; write(told, "", 1) == 1 && i < FRAMES && result == 0; i++) read_one(gpu);
  if (result == 0) ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
}

/* ---- The writer ------------------------------------------------------------------------------ */

/* A function of CUDA's driver; 0: success. */
#define CUDA(name, arguments, ...) cuda_did(((int(*) arguments)cuda(#name))(__VA_ARGS__), #name)

static void *cuda(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW),
       *function = library ? dlsym(library, name) : NULL;
  if (!function) fprintf(stderr, "gpu: the driver has no %s\n", name), exit(1);
  return function;
}

static void cuda_did(int result, const char *name) {
  if (result != 0) fprintf(stderr, "gpu: %s: %d\n", name, result), exit(1);
}

static ringcast_device_ptr allocate(size_t bytes) {
  ringcast_device_ptr memory;
  void *context;
  int device;
  CUDA(cuInit, (unsigned), 0);
  CUDA(cuDeviceGet, (int *, int), &device, 0);
  CUDA(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
  CUDA(cuCtxPushCurrent_v2, (void *), context);
  CUDA(cuMemAlloc_v2, (ringcast_device_ptr *, size_t), &memory, bytes);
  return memory;
}

static void write_all(ringcast_writer *writer, int told) {
  struct ringcast_gpu_driver driver = {.size = sizeof driver};
  ringcast_gpu_writer *gpu;
  char byte;
  if (read(told, &byte, 1) != 1)
    return; /* what is sent before the reader has attached is not for it */
  check(ringcast_gpu_status(&driver));
  if (!driver.ready) {
    printf("no GPU is used: %s\n", driver.why);
    return;
  }
  ringcast_device_ptr memory = allocate(COUNT * sizeof(float));
  const struct ringcast_gpu_item item = {
      .key = "x",
      .key_bytes = 1,
      .on_device = 1,
      .tensor = {
          .data = (const void *)(uintptr_t)memory, .dtype = {2, 32, 1}, .ndim = 1, .shape = shape}};
  check(ringcast_gpu_writer_open(writer, NULL, &gpu));
  for (int i = 0; i < FRAMES; i++) {
    const float values[COUNT] = {(float)i, (float)i + 1, (float)i + 2, (float)i + 3};
    CUDA(cuMemcpyHtoDAsync_v2, (ringcast_device_ptr, const void *, size_t, void *), memory, values,
         sizeof values, NULL);
    check(ringcast_gpu_send(gpu, &item, 1, 0, 0, NULL, minute));
    if (read(told, &byte, 1) != 1) break; /* only here: the next frame finds the pool open */
  }
  ringcast_gpu_writer_close(gpu);
}

int main(void) {
  ringcast_writer *writer;
  int status = 1,
      told[2]; /* a byte when the reader has attached, and one for each frame that it has read */
  check(ringcast_writer_create(&writer));
  if (pipe(told) != 0) return 1;
  pid_t child = fork();
  if (child == 0) {
    read_all(ringcast_writer_handle(writer), told[1]);
    ringcast_writer_close(writer); /* in a child, closes only the child's own part */
    return 0;
  }
  close(told[1]);
  if (child > 0) {
    write_all(writer, told[0]);
    waitpid(child, &status, 0);
  }
  ringcast_writer_close(writer);
  return status != 0;
}
