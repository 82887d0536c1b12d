/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel of the writer writes its result into the pool, and a kernel of the reader, in another process, reads the
 * result there: the tensor is copied nowhere, and no process waits for the other's device. Without a usable GPU, prints
 * the reason.
 *
 *   nvcc kernel.cu -o kernel $(pkg-config --cflags --libs ringcast) && ./kernel    (hello.c: how pkg-config finds it)
 *
 * Nothing of CUDA is called before the fork. gpu.c is the same with a copy on each side, and needs no toolkit.
 */
#include <ringcast/gpu.h>
#include <ringcast/ringcast.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

static const int frames = 3, blocks = 256, threads = 256;
static const int64_t minute = INT64_C(60000000000), shape[1] = {blocks * threads};

/* Any negative result ends the program with the sentence that says why. */
static int check(int result) {
  if (result >= 0) return result;
  fprintf(stderr, "kernel: %s\n", ringcast_last_error());
  exit(1);
}

static void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  fprintf(stderr, "kernel: %s\n", cudaGetErrorString(result));
  exit(1);
}

/* One byte to the other process, and from it. False: the other process has ended. */
static bool tell(int pipe) { return write(pipe, "", 1) == 1; }
static bool is_told(int pipe) {
  char byte;
  return read(pipe, &byte, 1) == 1;
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

__global__ void fill(float *out, float first) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = first + i;
}

/* One tensor, "x", made where the readers read it. */
static void write_one(ringcast_gpu_writer *gpu, cudaStream_t stream, float first) {
  ringcast_device_ptr place;
  ringcast_gpu_extent memory;
  ringcast_gpu_item item = {};
  check(ringcast_gpu_allocate(gpu, blocks * threads * sizeof(float), stream, &place, &memory));
  fill<<<blocks, threads, 0, stream>>>((float *)place, first);
  check(cudaGetLastError());
  item.key = "x";
  item.key_bytes = 1;
  item.on_device = 1;
  item.tensor.data = (const void *)place;
  item.tensor.dtype = {2, 32, 1}; /* DLPack's code of float, bits, lanes */
  item.tensor.ndim = 1;
  item.tensor.shape = shape;
  check(ringcast_gpu_send(gpu, &item, 1, 0, RINGCAST_GPU_NO_INLINE, stream, minute)); /* finds `place` in the pool */
  ringcast_gpu_drop(gpu, &memory); /* the memory is used again when all readers have read the frame */
}

static void write_all(ringcast_writer *writer, int from_reader, int to_reader) {
  ringcast_gpu_driver driver = {};
  ringcast_gpu_writer *gpu;
  cudaStream_t stream;
  driver.size = sizeof driver;
  check(ringcast_gpu_status(&driver));
  if (!driver.ready) {
    printf("no GPU is used: %s\n", driver.why);
    return;
  }
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(ringcast_gpu_writer_open(writer, NULL, &gpu));
  if (tell(to_reader) && is_told(from_reader)) { /* the reader has opened the pool */
    for (int i = 0; i < frames; i++) write_one(gpu, stream, (float)i);
    is_told(from_reader); /* the memory of the pool goes with this process: not before all is read */
  }
  ringcast_gpu_writer_close(gpu);
}

/* ---- The reader ------------------------------------------------------------------------------------------------- */

__global__ void count_wrong(const float *in, float first, int *wrong) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (in[i] != first + i) atomicAdd(wrong, 1);
}

static void read_one(ringcast_gpu_reader *gpu, cudaStream_t stream, float first, int *wrong) {
  ringcast_frame frame;
  ringcast_gpu_take take;
  ringcast_frame_reader tensors;
  ringcast_item item;
  ringcast_device_ptr place;
  ringcast_gpu_hold *hold;
  check(ringcast_gpu_next(gpu, minute, &frame));
  check(ringcast_gpu_begin(gpu, &frame, stream, &take)); /* the stream waits for the writer's */
  if (ringcast_frame_open(&tensors, frame.data, frame.bytes) < 0 || ringcast_frame_find(&tensors, "x", 1, &item) < 0 ||
      item.bytes != blocks * threads * sizeof(float))
    exit(1); /* not the frame that the writer above sends */
  check(ringcast_gpu_map(gpu, &take, &item, &place, &hold));
  count_wrong<<<blocks, threads, 0, stream>>>((const float *)place, first, wrong);
  check(cudaGetLastError());
  ringcast_gpu_unmap(hold);
  check(ringcast_gpu_end(gpu, &take)); /* the stream tells the writer's when the kernel has read */
}

static void read_all(const char *handle, int from_writer, int to_writer) {
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  cudaStream_t stream;
  int *wrong, found;
  check(ringcast_reader_attach(handle, &reader));
  if (is_told(from_writer)) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaMalloc(&wrong, sizeof *wrong));
    check(cudaMemsetAsync(wrong, 0, sizeof *wrong, stream));
    check(ringcast_gpu_reader_open(reader, NULL, &gpu));
    check(ringcast_gpu_reader_prepare(gpu)); /* opens the pool, so that the first frame goes by the pool already */
    tell(to_writer);
    for (int i = 0; i < frames; i++) read_one(gpu, stream, (float)i, wrong);
    check(cudaMemcpyAsync(&found, wrong, sizeof found, cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    check(ringcast_gpu_check(gpu)); /* the writer lives: what was read is what was sent */
    printf("%d of %d numbers in %d tensors are wrong\n", found, frames * blocks * threads, frames);
    ringcast_gpu_reader_close(gpu);
    if (found != 0) exit(1);
  }
  ringcast_reader_close(reader);
}

int main() {
  ringcast_writer *writer;
  int status = 1, to_reader[2], to_writer[2];
  check(ringcast_writer_create(&writer));
  if (pipe(to_reader) != 0 || pipe(to_writer) != 0) return 1;
  pid_t child = fork();
  if (child == 0) {
    close(to_reader[1]);
    close(to_writer[0]);
    read_all(ringcast_writer_handle(writer), to_reader[0], to_writer[1]);
    return 0;
  }
  close(to_reader[0]);
  close(to_writer[1]);
  if (child > 0) {
    write_all(writer, to_writer[0], to_reader[1]);
    close(to_reader[1]);
    waitpid(child, &status, 0);
  }
  ringcast_writer_close(writer);
  return status != 0;
}
