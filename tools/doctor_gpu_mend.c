/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice for tensors of a GPU that don't go through the pool. The library's reasons contain the names of CUDA's
 * results; docs/gpu.md has the same advice as a table.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "tools/doctor.h"

#define BY_THE_RING "; until then tensors go through the ring"
#define OUT_OF_MEMORY                                                                                                 \
  "free memory of the device (nvidia-smi lists the processes; vLLM: --gpu-memory-utilization), or ask for a smaller " \
  "pool by RINGCAST_GPU_POOL_BYTES"
#define NAMESPACES \
  "one container for both processes, or one IPC and one PID namespace; and one MIG instance" BY_THE_RING
#define NO_SHARING                                                                                               \
  "nothing of ringcast's: this kind of machine (as some virtual GPUs) lets no process share a device's memory; " \
  "tensors go through the ring"
#define NO_REGISTERING                                                                                       \
  "nothing of ringcast's: this kind of machine (as some virtual GPUs) registers no host memory; tensors go " \
  "through the ring, and copies wait for the device"
#define NO_WORDS                                                                                                      \
  "nothing of ringcast's: this device, or this kind of machine, has no stream operations on host memory; tensors go " \
  "through the ring"
#define STUCK \
  "another version of the driver: this one says that it can, and a store of the CPU's wakes no stream" BY_THE_RING
#define BUSY                                                                                                     \
  "ask doctor again when others leave the device time (nvidia-smi lists them). A reader tries again by itself; " \
  "a writer that was opened meanwhile has no pool until it is opened anew" BY_THE_RING
#define TAKES_NOBODY                                                                                      \
  "nvidia-smi -c DEFAULT (as root), or CUDA's MPS, where its compute mode (nvidia-smi -q -d COMPUTE) is " \
  "EXCLUSIVE_PROCESS, and another process has it, or PROHIBITED"
#define NOT_VISIBLE "the same CUDA_VISIBLE_DEVICES for both processes, in any order" BY_THE_RING

/* The first match counts. */
static const struct {
  const char *says, *mend;
} causes[] = {
    {"RINGCAST_DISABLE", NULL}, /* the user asked for these two */
    {"RINGCAST_GPU_POOL_BYTES is 0", NULL},
    {"device is busy", BUSY},
    {"CUDA_ERROR_DEVICE_UNAVAILABLE", TAKES_NOBODY},
    {"CUDA_ERROR_INVALID_DEVICE", TAKES_NOBODY}, /* so older drivers; of opening a pool, see below */
    {"cuMemHostRegister", "ulimit -l unlimited, where the limit is what forbids it" BY_THE_RING},
    {"CUDA_ERROR_OUT_OF_MEMORY", OUT_OF_MEMORY},
    {"not woken by the host's store", STUCK},
    {"stream operation", NO_WORDS},
    {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "nothing of ringcast's: one device has no access to the other's memory (nvidia-smi topo -p2p r); tensors of these "
     "two go through the ring"},
    {"CUDA_ERROR_TOO_MANY_PEERS",
     "fewer devices that a process has to do with: a device has so many peers and no more" BY_THE_RING},
    {"CUDA_ERROR_INVALID_CONTEXT", "one PID namespace for both processes: the driver takes them for one" BY_THE_RING},
    {"CUDA_ERROR_ALREADY_MAPPED", "close what else has opened that memory in the reader's process" BY_THE_RING},
    {"CUDA_ERROR_INVALID_VALUE", NAMESPACES},
    {"CUDA_ERROR_INVALID_HANDLE", NAMESPACES},
    {"CUDA_ERROR_MAP_FAILED", NAMESPACES},
    {"CUDA_ERROR_NOT_SUPPORTED", NO_SHARING},
    {"CUDA_ERROR_NOT_PERMITTED", NO_SHARING},
};

const char *doctor_gpu_mend(const char *why) {
  if (strstr(why, "CUDA_ERROR_INVALID_DEVICE") && strstr(why, "pool")) return NOT_VISIBLE;
  for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
    if (strstr(why, causes[i].says)) return causes[i].mend;
  return "docs/gpu.md has what the driver may say, and what to do";
}

static const char *mend_words(int version, const struct ringcast_gpu_device_info *device) {
  if (device->words == -EAGAIN) return BUSY;
  if (version < 12000) return "a driver for CUDA 12.0 or newer" BY_THE_RING;
  return device->words == -ETIMEDOUT ? STUCK : NO_WORDS;
}

const char *doctor_gpu_mend_device(int version, const struct ringcast_gpu_device_info *device) {
  if (device->registers == -ENOTSUP) return NO_REGISTERING;
  if (device->registers < 0)
    return "ulimit -l unlimited, where the limit is what forbids it; until then tensors go through the ring, and "
           "copies wait for the device";
  if (device->registers == 1 && device->words != 1) return mend_words(version, device);
  if (device->exports == -ENOMEM) return OUT_OF_MEMORY;
  return device->exports < 0 ? NO_SHARING : NULL;
}
