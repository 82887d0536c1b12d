/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs: the driver, what each device can do, and which way a tensor of one goes from a process to
 * another. docs/gpu.md has the advice given here as a table, with the reasons. A machine without a
 * GPU has no problem.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/cuda.h"
#include "tools/doctor.h"

enum { DEVICES = 8, FRAMES = 4, TENSOR = 65536 };

/* ---- Advice ---------------------------------------------------------------------------------- */

#define BY_THE_RING "; until then tensors go through the ring"
#define NOT_HERE    "nothing of ringcast's: this kind of machine (as some virtual GPUs) "
#define NO_SHARING  NOT_HERE "lets no process share a device's memory; tensors go through the ring"
#define NAMESPACES                                                                   \
  "one container for both processes, or one IPC and one PID namespace; and one MIG " \
  "instance" BY_THE_RING
#define TAKES_NO_MORE                                                                         \
  "nvidia-smi -c DEFAULT (as root), or CUDA's MPS, where its compute mode (nvidia-smi -q -d " \
  "COMPUTE) is EXCLUSIVE_PROCESS, and another process has it, or PROHIBITED"

/* By what the library's words say. The first match counts; NULL: nothing to mend, since the user
 * asked for it. */
static const struct {
  const char *says, *mend;
} causes[] = {
    {"cuMemHostRegister of the words: CUDA_ERROR_NOT_SUPPORTED", NOT_HERE
     "registers no host memory; tensors go through the ring, and copies wait for the device"},
    {"RINGCAST_DISABLE", NULL},
    {"RINGCAST_GPU_POOL_BYTES is 0", NULL},
    {"device is busy",
     "ask doctor again when others leave the device time (nvidia-smi lists them). A reader tries "
     "again by itself; a writer that was opened meanwhile has no pool until it is opened "
     "anew" BY_THE_RING},
    {"CUDA_ERROR_DEVICE_UNAVAILABLE", TAKES_NO_MORE},
    {"CUDA_ERROR_INVALID_DEVICE", TAKES_NO_MORE}, /* so older drivers; of a pool, see below */
    {"cuMemHostRegister", "ulimit -l unlimited, where the limit is what forbids it" BY_THE_RING},
    {"CUDA_ERROR_OUT_OF_MEMORY",
     "free memory of the device (nvidia-smi lists the processes; vLLM: --gpu-memory-utilization), "
     "or ask for a smaller pool by RINGCAST_GPU_POOL_BYTES" BY_THE_RING},
    {"not woken by the host's store",
     "another version of the driver: this one says that it can, and a store of the CPU's wakes no "
     "stream" BY_THE_RING},
    {"stream operation",
     NOT_HERE "has no stream operations on host memory; tensors go through the ring"},
    {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "nothing of ringcast's: one device has no access to the other's memory (nvidia-smi topo -p2p "
     "r); tensors of these two go through the ring"},
    {"CUDA_ERROR_TOO_MANY_PEERS",
     "fewer devices in one process: a device has so many peers and no more" BY_THE_RING},
    {"CUDA_ERROR_INVALID_CONTEXT",
     "one PID namespace for both processes: the driver takes them for one" BY_THE_RING},
    {"CUDA_ERROR_ALREADY_MAPPED",
     "close what else has opened that memory in the reader's process" BY_THE_RING},
    {"CUDA_ERROR_INVALID_VALUE", NAMESPACES},
    {"CUDA_ERROR_INVALID_HANDLE", NAMESPACES},
    {"CUDA_ERROR_MAP_FAILED", NAMESPACES},
    {"CUDA_ERROR_NOT_SUPPORTED", NO_SHARING},
    {"CUDA_ERROR_NOT_PERMITTED", NO_SHARING},
    {"", "docs/gpu.md has what the driver may say, and what to do"},
};

static const char *mend_of(const char *why) {
  if (strstr(why, "CUDA_ERROR_INVALID_DEVICE") && strstr(why, "pool"))
    return "the same CUDA_VISIBLE_DEVICES for both processes, in any order" BY_THE_RING;
  for (size_t i = 0;; i++)
    if (strstr(why, causes[i].says)) return causes[i].mend;
}

/* Adds the mend to the last line, if there is one. */
static void mend_by(struct doctor *doctor, const char *mend) {
  if (mend) doctor_mend(doctor, "%s", mend);
}

/* ---- The driver and the devices -------------------------------------------------------------- */

struct survey {
  struct ringcast_gpu_driver status;
  int count; /* devices looked at so far */
  struct ringcast_gpu_device_info devices[DEVICES];
};

static void look(void *context) {
  struct survey *survey = context;
  survey->status.size = sizeof survey->status;
  if (ringcast_gpu_status(&survey->status) != 0 || !survey->status.ready) return;
  for (int i = 0; i < survey->status.devices && i < DEVICES; i++) {
    survey->devices[i].size = sizeof survey->devices[i];
    if (ringcast_gpu_device(i, &survey->devices[i]) != 0) return;
    survey->count = i + 1;
  }
}

static void tell_driver(struct doctor *doctor, const struct survey *survey, const char *end) {
  const struct ringcast_gpu_driver *status = &survey->status;
  int major = status->version / 1000, minor = status->version % 1000 / 10;
  if (*end && !status->ready)
    doctor_add(doctor, "GPU", DOCTOR_NOTE, "can't be told: %s; tensors of a GPU can't be sent",
               end);
  else if (!status->ready)
    doctor_add(doctor, "GPU", DOCTOR_NOTE,
               "none is used: %s. Everything but tensors of a GPU works", status->why);
  else
    doctor_add(doctor, "GPU", *end ? DOCTOR_NOTE : DOCTOR_OK,
               "%d device%s, a driver for CUDA %d.%d%s%s", status->devices,
               status->devices == 1 ? "" : "s", major, minor, *end ? "; " : "", end);
  doctor_facts(doctor, FACTS({"ready", status->ready}, {"version", status->version},
                             {"devices", status->devices}, {"result", status->result}));
}

static void tell_device(struct doctor *doctor, const struct survey *survey, int index) {
  static const char *const names[DEVICES] = {"GPU 0", "GPU 1", "GPU 2", "GPU 3",
                                             "GPU 4", "GPU 5", "GPU 6", "GPU 7"};
  const struct ringcast_gpu_device_info *device = &survey->devices[index];
  doctor_add(doctor, names[index], DOCTOR_OK, "%s, GPU-%02x%02x%02x%02x", device->name,
             device->uuid[0], device->uuid[1], device->uuid[2], device->uuid[3]);
}

/* ---- Tensors from one process to another ----------------------------------------------------- */

/* Shared by the two processes, with the results of both. */
struct pair {
  int devices[2];  /* the writer's, the reader's */
  int ends[2];     /* of a socket: the handle to the reader; a byte back for each frame read */
  int64_t open_ns; /* what the first frame took longer than the second: the time to open the pool */
  struct ringcast_gpu_info info[2];
  int wrong;          /* tensors that arrived damaged */
  char words[2][256]; /* the error of each process, or "" */
};

__attribute__((format(printf, 3, 4), noreturn)) static void give_up(struct pair *pair, int side,
                                                                    const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(pair->words[side], sizeof pair->words[side], format, arguments);
  va_end(arguments);
  _exit(0);
}

static void must(struct pair *pair, int side, int result, const char *what) {
  if (result < 0) give_up(pair, side, "%s: %s", what, ringcast_last_error());
}

static void must_cuda(struct pair *pair, int side, struct cuda *cuda, int result,
                      const char *what) {
  if (!cuda_did(cuda, result, what)) give_up(pair, side, "%s", cuda->failed);
}

/* Both processes: the device, and memory of it. */
static ringcast_device_ptr open_device(struct pair *pair, int side, struct cuda *cuda) {
  ringcast_device_ptr memory;
  close(pair->ends[!side]);
  if (!cuda_open(cuda, pair->devices[side])) give_up(pair, side, "%s", cuda->failed);
  must_cuda(pair, side, cuda, cuda->alloc(&memory, TENSOR), "cuMemAlloc");
  pair->info[side].size = sizeof pair->info[side];
  return memory;
}

/* The bytes of the tensor number `number`. */
static void fill(uint8_t *bytes, int number) {
  for (int i = 0; i < TENSOR; i++) bytes[i] = (uint8_t)(i * 131 + number * 17 + 7);
}

static void send_all(void *context) {
  struct pair *pair = context;
  static uint8_t bytes[TENSOR];
  struct cuda cuda;
  ringcast_writer *ring;
  ringcast_gpu_writer *writer;
  struct ringcast_writer_options options = {
      .size = sizeof options, .capacity = 1 << 20, .readers = 1};
  struct ringcast_gpu_writer_options gpu = {.size = sizeof gpu, .device = pair->devices[0]};
  ringcast_device_ptr memory = open_device(pair, 0, &cuda);
  char byte;
  must(pair, 0, ringcast_writer_create_ex(&options, &ring), "can't make a ring");
  must(pair, 0, ringcast_gpu_writer_open(ring, &gpu, &writer), "can't add the device to it");
  const char *handle = ringcast_writer_handle(ring);
  if (write(pair->ends[0], handle, strlen(handle) + 1) < 0)
    give_up(pair, 0, "no socket: %s", strerror(errno));
  for (int i = 0; i < FRAMES && read(pair->ends[0], &byte, 1) == 1; i++) {
    fill(bytes, i);
    must_cuda(pair, 0, &cuda, cuda.htod(memory, bytes, TENSOR, NULL), "cuMemcpyHtoDAsync");
    must(pair, 0, cuda_send(writer, memory, TENSOR, 0, NULL), "can't send");
  }
  if (read(pair->ends[0], &byte, 1) == 1)
    ringcast_gpu_writer_info(writer, &pair->info[0]); /* the reader has all */
  shutdown(pair->ends[0], SHUT_WR);                   /* and may go */
  ringcast_gpu_writer_close(writer);
  ringcast_writer_close(ring);
}

static void receive_all(void *context) {
  struct pair *pair = context;
  static uint8_t came[TENSOR], wanted[TENSOR];
  struct cuda cuda;
  ringcast_reader *ring;
  ringcast_gpu_reader *reader;
  struct ringcast_gpu_reader_options gpu = {.size = sizeof gpu, .device = pair->devices[1]};
  char handle[128] = "";
  int64_t took[FRAMES];
  ringcast_device_ptr memory = open_device(pair, 1, &cuda);
  if (read(pair->ends[1], handle, sizeof handle - 1) <= 0) return; /* the writer says why */
  must(pair, 1, ringcast_reader_attach(handle, &ring), "can't attach");
  must(pair, 1, ringcast_gpu_reader_open(ring, &gpu, &reader), "can't add the device");
  for (int i = 0; i < FRAMES; i++) {
    if (write(pair->ends[1], "", 1) < 0) return;
    must(pair, 1, cuda_receive(reader, memory, TENSOR, NULL, &took[i]), "can't receive");
    must_cuda(pair, 1, &cuda, cuda.dtoh(came, memory, TENSOR, NULL), "cuMemcpyDtoHAsync");
    must_cuda(pair, 1, &cuda, cuda.stream_synchronize(NULL), "cuStreamSynchronize");
    fill(wanted, i);
    pair->wrong += memcmp(came, wanted, TENSOR) != 0;
  }
  pair->open_ns = took[0] > took[1] ? took[0] - took[1] : 0;
  ringcast_gpu_reader_info(reader, &pair->info[1]);
  if (write(pair->ends[1], "", 1) < 0 || read(pair->ends[1], handle, 1) != 0) return;
  ringcast_gpu_reader_close(reader);
  ringcast_reader_close(ring);
}

/* The first error of the pair, in the words of the process that met the error; "" if there was
 * none. */
static void run_pair(struct pair *pair, char *words, size_t size) {
  char ends[2][160];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair->ends) != 0) {
    snprintf(words, size, "no socket: %s", strerror(errno));
    return;
  }
  pid_t writer = doctor_start(send_all, pair), reader = doctor_start(receive_all, pair);
  close(pair->ends[0]);
  close(pair->ends[1]);
  doctor_await(writer, ends[0], sizeof ends[0]);
  doctor_await(reader, ends[1], sizeof ends[1]);
  const char *said[] = {pair->words[0], pair->words[1], ends[0], ends[1]};
  int first = 0;
  while (first < 3 && !*said[first]) first++;
  snprintf(words, size, "%s", said[first]);
}

/* The writer knows that a reader has no pool; the reader knows the words of the driver. */
static void tell_inline(struct doctor *doctor, const char *name, const struct pair *pair) {
  const struct ringcast_gpu_info *writer = &pair->info[0], *reader = &pair->info[1];
  const char *why =
      reader->way == RINGCAST_GPU_WAY_REFUSED && *reader->why ? reader->why : writer->why;
  doctor_add(doctor, name, DOCTOR_NOTE, "INLINE: %d tensors went through the ring, by the CPU: %s",
             FRAMES, why);
  mend_by(doctor, mend_of(why));
}

static void tell_pair(struct doctor *doctor, const char *name, const struct pair *pair,
                      const char *words) {
  const struct ringcast_gpu_info *writer = &pair->info[0], *reader = &pair->info[1];
  const char *asked = getenv("RINGCAST_GPU_POOL_BYTES");
  if (*words) {
    bool misset = strstr(words, "RINGCAST_GPU_POOL_BYTES is '");
    doctor_add(doctor, name, misset ? DOCTOR_PROBLEM : DOCTOR_NOTE, "tensors can't be sent: %s",
               words);
    if (misset)
      doctor_mend(
          doctor,
          "unset RINGCAST_GPU_POOL_BYTES, or set it to a whole number of bytes; 0: no pool");
    if (strstr(words, "CUDA_ERROR_")) mend_by(doctor, mend_of(words));
  } else if (pair->wrong) {
    doctor_add(doctor, name, DOCTOR_PROBLEM,
               "%d of %d tensors came with other bytes than were sent", pair->wrong, FRAMES);
    doctor_mend(
        doctor,
        "leave RINGCAST_GPU_POOL_BYTES unset; and please report it, with all that is printed here");
  } else if (writer->pool_frames > 0) {
    doctor_add(doctor, name, DOCTOR_OK,
               "POOL: of %d tensors, %llu went from process to process within the device, by a "
               "pool of %llu MiB, after %llu through the ring, with which the reader opened the "
               "pool (%.1f ms)%s",
               FRAMES, (unsigned long long)writer->pool_frames,
               (unsigned long long)(writer->pool_bytes >> 20),
               (unsigned long long)writer->inline_frames, (double)pair->open_ns / 1e6,
               asked && *asked ? ""
                               : "; Python and the engines' drop-ins make a pool only where "
                                 "RINGCAST_GPU_POOL_BYTES above 0 asks for one");
  } else {
    tell_inline(doctor, name, pair);
  }
  doctor_facts(doctor, FACTS({"pool_frames", (int64_t)writer->pool_frames},
                             {"inline_frames", (int64_t)writer->inline_frames},
                             {"way", writer->way}, {"pool_bytes", (int64_t)writer->pool_bytes},
                             {"registered", writer->registered && reader->registered},
                             {"open_ns", pair->open_ns}));
}

static void probe_pair(struct doctor *doctor, const char *name, int to) {
  char words[256] = "";
  struct pair *pair = doctor_shared(sizeof *pair);
  if (!pair) return;
  *pair = (struct pair){.devices = {0, to}};
  run_pair(pair, words, sizeof words);
  tell_pair(doctor, name, pair, words);
  munmap(pair, sizeof *pair);
}

void doctor_check_gpus(struct doctor *doctor) {
  static const char *const pairs[DEVICES] = {"GPU tensors", "GPU 0 to 1", "GPU 0 to 2",
                                             "GPU 0 to 3",  "GPU 0 to 4", "GPU 0 to 5",
                                             "GPU 0 to 6",  "GPU 0 to 7"};
  char end[160];
  struct survey *survey = doctor_shared(sizeof *survey);
  if (!survey) return;
  doctor_await(doctor_start(look, survey), end, sizeof end);
  tell_driver(doctor, survey, end);
  for (int i = 0; i < survey->count; i++) tell_device(doctor, survey, i);
  for (int i = 0; i < survey->count && doctor->can_make; i++) probe_pair(doctor, pairs[i], i);
  munmap(survey, sizeof *survey);
}
