/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs: the driver, what each device can do, and which way a tensor of one goes from a process to another.
 *
 * Child processes do the work, each with a time limit: a process that has used CUDA can't be forked, and a broken
 * driver may never return. A machine without a GPU has no problem.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ringcast/gpu.h"
#include "tools/cuda.h"
#include "tools/doctor.h"

enum { DEVICES = 8, LIMIT_S = 60, FRAMES = 4, TENSOR = 65536 };

/* ---- Processes -------------------------------------------------------------------------------------------------- */

static void *shared(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

/* Runs `body` in a child. When the time is up a signal ends the child, also within the driver. */
static pid_t start(void (*body)(void *), void *context) {
  fflush(NULL); /* what is buffered must not be printed by the child too */
  pid_t pid = fork();
  if (pid != 0) return pid;
  signal(SIGALRM, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(LIMIT_S);
  body(context);
  _exit(0);
}

/* How the child ended: "" if well. */
static const char *await(pid_t pid, char *words, size_t size) {
  int status = 0;
  words[0] = '\0';
  if (pid < 0 || waitpid(pid, &status, 0) != pid)
    snprintf(words, size, "no process could be started for it: %s", strerror(errno));
  else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    snprintf(words, size, "the driver does not answer within %d s", LIMIT_S);
  else if (WIFSIGNALED(status)) snprintf(words, size, "the process that tried it ended by signal %d", WTERMSIG(status));
  else if (WEXITSTATUS(status) != 0)
    snprintf(words, size, "the process that tried it ended with status %d", WEXITSTATUS(status));
  return words;
}

/* ---- The driver and the devices --------------------------------------------------------------------------------- */

struct survey {
  struct ringcast_gpu_driver status;
  char pool_words[256]; /* what is wrong with RINGCAST_GPU_POOL_BYTES */
  int count;            /* devices looked at so far */
  struct {
    int result;
    bool mended; /* the line of the device says how to mend the obstacle to the pool */
    char words[256];
    struct ringcast_gpu_device_info found;
  } devices[DEVICES];
};

/* The library checks RINGCAST_GPU_POOL_BYTES before the device's number. No device has this number, so nothing is
 * opened. "" if the value is valid. */
static void check_pool_bytes(char *words, size_t size) {
  struct ringcast_writer_options options = {.size = sizeof options, .capacity = 1 << 16, .readers = 1};
  struct ringcast_gpu_writer_options gpu = {.size = sizeof gpu, .device = INT32_MAX};
  ringcast_writer *ring;
  ringcast_gpu_writer *writer;
  if (ringcast_writer_create_ex(&options, &ring) != 0) return;
  if (ringcast_gpu_writer_open(ring, &gpu, &writer) == 0) ringcast_gpu_writer_close(writer);
  else if (strstr(ringcast_last_error(), "RINGCAST_GPU_POOL_BYTES")) snprintf(words, size, "%s", ringcast_last_error());
  ringcast_writer_close(ring);
}

static void look(void *context) {
  struct survey *survey = context;
  survey->status.size = sizeof survey->status;
  check_pool_bytes(survey->pool_words, sizeof survey->pool_words);
  if (ringcast_gpu_status(&survey->status) != 0 || !survey->status.ready) return;
  for (int i = 0; i < survey->status.devices && i < DEVICES; i++) {
    survey->devices[i].found.size = sizeof survey->devices[i].found;
    survey->devices[i].result = ringcast_gpu_device(i, 1, &survey->devices[i].found);
    if (survey->devices[i].result < 0)
      snprintf(survey->devices[i].words, sizeof survey->devices[i].words, "%s", ringcast_last_error());
    survey->count = i + 1;
  }
}

static void tell_driver(struct doctor *doctor, const struct survey *survey, const char *end) {
  const struct ringcast_gpu_driver *status = &survey->status;
  int major = status->version / 1000, minor = status->version % 1000 / 10;
  if (*end && !status->ready)
    doctor_add(doctor, "GPU", DOCTOR_NOTE, "can't be told: %s; tensors of a GPU can't be sent", end);
  else if (!status->ready)
    doctor_add(doctor, "GPU", DOCTOR_NOTE, "none is used: %s. Everything but tensors of a GPU works", status->why);
  else
    doctor_add(doctor, "GPU", *end ? DOCTOR_NOTE : DOCTOR_OK, "%d device%s, a driver for CUDA %d.%d%s%s",
               status->devices, status->devices == 1 ? "" : "s", major, minor, *end ? "; " : "", end);
  doctor_facts(doctor, FACTS({"ready", status->ready}, {"version", status->version}, {"devices", status->devices},
                             {"result", status->result}));
}

/* ": " and the reason for a negative result; else nothing. */
struct reason {
  char text[80];
};
static struct reason reason_of(int32_t result) {
  struct reason reason = {""};
  if (result < 0) snprintf(reason.text, sizeof reason.text, ": %s", strerror(-result));
  return reason;
}

static void say_words(const struct ringcast_gpu_device_info *device, char *out, size_t size) {
  if (device->words == 1) snprintf(out, size, "its streams wait for words of host memory");
  else if (doctor_is_disabled("cuda_register"))
    snprintf(out, size, "whether its streams can wait for words of host memory was not tried");
  else if (device->words == -EAGAIN)
    snprintf(out, size, "whether its streams can wait for words of host memory can't be told: the device is busy");
  else
    snprintf(out, size, "its streams can't wait for words of host memory%s",
             device->words == -ETIMEDOUT ? ": the host's store wakes none" : reason_of(device->words).text);
}

static void say_registers(const struct ringcast_gpu_device_info *device, char *out, size_t size) {
  if (doctor_is_disabled("cuda_register"))
    snprintf(out, size, "registering the ring's memory was not tried (RINGCAST_DISABLE=cuda_register)");
  else if (device->registers == 1) snprintf(out, size, "the ring's memory can be registered");
  else snprintf(out, size, "the ring's memory can't be registered%s", reason_of(device->registers).text);
}

static void say_exports(const struct ringcast_gpu_device_info *device, char *out, size_t size) {
  if (doctor_is_disabled("cuda_pool")) snprintf(out, size, "exporting was not tried (RINGCAST_DISABLE=cuda_pool)");
  else
    snprintf(out, size, "its memory can%s be exported%s", device->exports == 1 ? "" : "'t",
             reason_of(device->exports).text);
}

/* The bytes of a writer's pool, by the rules of ringcast_gpu_writer_open; 0: no pool; -1: no writer would open. */
static int64_t pool_bytes(const struct survey *survey) {
  const char *text = getenv("RINGCAST_GPU_POOL_BYTES");
  const int64_t granule = 2 << 20;
  if (*survey->pool_words) return -1;
  return text && *text ? (strtoll(text, NULL, 10) + granule - 1) / granule * granule : 256 << 20;
}

/* Returns false if the device has no room for the pool. The line `GPU settings` reports a wrong number. */
static bool say_pool(int64_t pool, uint64_t free_bytes, char *out, size_t size) {
  bool fits = pool <= 0 || (uint64_t)pool <= free_bytes;
  out[0] = '\0';
  if (pool == 0) snprintf(out, size, "; no pool, as RINGCAST_GPU_POOL_BYTES says");
  if (pool > 0)
    snprintf(out, size, "; a pool takes %.1f MiB%s", (double)pool / (1 << 20),
             fits ? "" : ", which is more than is free");
  return fits;
}

/* Adds the mend to the line; returns false if there is no mend. */
static bool mend_by(struct doctor *doctor, const char *mend) {
  if (mend) doctor_mend(doctor, "%s", mend);
  return mend;
}

static void tell_device(struct doctor *doctor, struct survey *survey, int index) {
  static const char *const names[DEVICES] = {"GPU 0", "GPU 1", "GPU 2", "GPU 3", "GPU 4", "GPU 5", "GPU 6", "GPU 7"};
  const struct ringcast_gpu_device_info *device = &survey->devices[index].found;
  char words[192], registers[160], exports[160], pool_words[96];
  if (survey->devices[index].result < 0) {
    doctor_add(doctor, names[index], DOCTOR_NOTE, "can't be used: %s", survey->devices[index].words);
    survey->devices[index].mended = mend_by(doctor, doctor_gpu_mend(survey->devices[index].words));
    return;
  }
  bool has_all = device->words == 1 && device->registers == 1 && device->exports == 1;
  say_words(device, words, sizeof words);
  say_registers(device, registers, sizeof registers);
  say_exports(device, exports, sizeof exports);
  int64_t pool = pool_bytes(survey);
  bool room = say_pool(pool, device->free_bytes, pool_words, sizeof pool_words);
  doctor_add(doctor, names[index], has_all && room ? DOCTOR_OK : DOCTOR_NOTE,
             "%s, GPU-%02x%02x%02x%02x, %.1f GiB, %.1f of them free; %s; %s; %s%s", device->name, device->uuid[0],
             device->uuid[1], device->uuid[2], device->uuid[3], (double)device->total_bytes / (1 << 30),
             (double)device->free_bytes / (1 << 30), words, registers, exports, pool_words);
  survey->devices[index].mended = mend_by(doctor, doctor_gpu_mend_device(survey->status.version, device));
  if (!survey->devices[index].mended && !room)
    doctor_mend(doctor, "a smaller RINGCAST_GPU_POOL_BYTES, or leave more free (vLLM: --gpu-memory-utilization); until "
                        "then tensors go through the ring");
  doctor_facts(doctor, FACTS({"total_bytes", (int64_t)device->total_bytes}, {"free_bytes", (int64_t)device->free_bytes},
                             {"words", device->words}, {"registers", device->registers}, {"exports", device->exports},
                             {"pool_bytes", pool}));
}

/* ---- The environment -------------------------------------------------------------------------------------------- */

static bool pool_is_none(void) {
  const char *text = getenv("RINGCAST_GPU_POOL_BYTES");
  return text && *text && strspn(text, "0") == strlen(text);
}

/* The variables that change the defaults. The line `GPU tensors` reports the size of the pool. */
static void tell_settings(struct doctor *doctor, const struct survey *survey) {
  const char *way = getenv("RINGCAST_GPU");
  if (*survey->pool_words) {
    doctor_add(doctor, "GPU settings", DOCTOR_PROBLEM, "%s", survey->pool_words);
    doctor_mend(doctor, "unset RINGCAST_GPU_POOL_BYTES, or set it to a whole number of bytes; 0: no pool");
  }
  if (!way || !*way || strcmp(way, "1") == 0) return;
  if (strcmp(way, "0") == 0) {
    doctor_add(doctor, "GPU settings", DOCTOR_NOTE,
               "RINGCAST_GPU is 0: with ringcast.torch, .vllm and .sglang no tensor goes by a pool");
  } else {
    doctor_add(doctor, "GPU settings", DOCTOR_PROBLEM, "RINGCAST_GPU is '%.40s': it must be 0 or 1", way);
    doctor_mend(doctor, "unset RINGCAST_GPU, or set it to 0 or 1");
  }
}

/* ---- A tensor from one process to another ----------------------------------------------------------------------- */

/* Shared by the two processes, with the results of both. */
struct pair {
  int devices[2];        /* the writer's, the reader's */
  int there[2], back[2]; /* pipes: the handle; a byte for each frame that was read */
  int64_t open_ns;       /* the first frame's begin, less the second's: the time to open the pool */
  struct ringcast_gpu_info writer, reader;
  int sent, wrong;    /* frames; tensors that arrived damaged */
  char words[2][256]; /* the error of each process, or "" */
};

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

__attribute__((format(printf, 3, 4), noreturn)) static void give_up(struct pair *pair, int side, const char *format,
                                                                    ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(pair->words[side], sizeof pair->words[side], format, arguments);
  va_end(arguments);
  _exit(0);
}

static void must(struct pair *pair, int side, int result, const char *what) {
  if (result < 0) give_up(pair, side, "%s: %s", what, ringcast_last_error());
}

static void must_cuda(struct pair *pair, int side, struct cuda *cuda, int result, const char *what) {
  if (!cuda_did(cuda, result, what)) give_up(pair, side, "%s", cuda->failed);
}

/* The bytes of the tensor number `number`. */
static void fill(uint8_t *bytes, int number) {
  for (int i = 0; i < TENSOR; i++) bytes[i] = (uint8_t)(i * 131 + number * 17 + 7);
}

static void send_all(void *context) {
  struct pair *pair = context;
  static uint8_t bytes[TENSOR];
  struct cuda cuda;
  ringcast_device_ptr memory;
  ringcast_writer *ring;
  ringcast_gpu_writer *writer;
  const int64_t shape[1] = {TENSOR};
  struct ringcast_writer_options options = {.size = sizeof options, .capacity = 1 << 20, .readers = 1};
  struct ringcast_gpu_writer_options gpu = {
      .size = sizeof gpu, .device = pair->devices[0], .pool_bytes = pool_is_none() ? RINGCAST_NO_POOL : 2 << 20};
  close(pair->there[0]);
  close(pair->back[1]);
  if (!cuda_open(&cuda, pair->devices[0])) give_up(pair, 0, "%s", cuda.failed);
  must_cuda(pair, 0, &cuda, cuda.alloc(&memory, TENSOR), "cuMemAlloc");
  must(pair, 0, ringcast_writer_create_ex(&options, &ring), "can't make a ring");
  must(pair, 0, ringcast_gpu_writer_open(ring, &gpu, &writer), "can't add the device to it");
  const char *handle = ringcast_writer_handle(ring);
  if (write(pair->there[1], handle, strlen(handle) + 1) < 0) give_up(pair, 0, "no pipe: %s", strerror(errno));
  for (char byte; pair->sent < FRAMES && read(pair->back[0], &byte, 1) == 1; pair->sent++) {
    const struct ringcast_gpu_item item = {.key = "x",
                                           .key_bytes = 1,
                                           .on_device = 1,
                                           .tensor = {.data = (const void *)(uintptr_t)memory,
                                                      .dtype = {1, 8, 1},
                                                      .ndim = 1,
                                                      .shape = shape,
                                                      .flags = RINGCAST_ITEM_CUDA}};
    fill(bytes, pair->sent);
    must_cuda(pair, 0, &cuda, cuda.htod(memory, bytes, TENSOR, NULL), "cuMemcpyHtoDAsync");
    must(pair, 0, ringcast_gpu_send(writer, &item, 1, 0, 0, NULL, (int64_t)LIMIT_S * 1000000000), "can't send");
  }
  pair->writer.size = sizeof pair->writer;
  for (char byte; read(pair->back[0], &byte, 1) == 1;) { /* it has all, and stays until this end is closed */
    ringcast_gpu_writer_info(writer, &pair->writer);
    close(pair->there[1]);
  }
  ringcast_gpu_writer_close(writer);
  ringcast_writer_close(ring);
}

/* Reads the tensor of a frame into `memory`; returns how long the call took that opens the pool, if it has to. */
static int64_t receive(struct pair *pair, ringcast_gpu_reader *reader, ringcast_device_ptr memory) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader tensors;
  struct ringcast_gpu_take take;
  struct ringcast_item item;
  must(pair, 1, ringcast_gpu_next(reader, (int64_t)LIMIT_S * 1000000000, &frame), "can't receive");
  int64_t begun = now_ns();
  must(pair, 1, ringcast_gpu_begin(reader, &frame, NULL, &take), "can't begin");
  begun = now_ns() - begun;
  must(pair, 1, ringcast_frame_open(&tensors, frame.data, frame.bytes), "no frame of tensors");
  must(pair, 1, ringcast_frame_find(&tensors, "x", 1, &item), "no tensor");
  if (item.bytes != TENSOR) give_up(pair, 1, "a tensor of %llu bytes came", (unsigned long long)item.bytes);
  must(pair, 1, ringcast_gpu_copy_out(reader, &take, &item, memory), "can't copy");
  must(pair, 1, ringcast_gpu_end(reader, &take), "can't end");
  return begun;
}

static void receive_all(void *context) {
  struct pair *pair = context;
  static uint8_t came[TENSOR], wanted[TENSOR];
  struct cuda cuda;
  ringcast_device_ptr memory;
  ringcast_reader *ring;
  ringcast_gpu_reader *reader;
  struct ringcast_gpu_reader_options gpu = {.size = sizeof gpu, .device = pair->devices[1]};
  char handle[128] = "";
  close(pair->there[1]);
  close(pair->back[0]);
  if (!cuda_open(&cuda, pair->devices[1])) give_up(pair, 1, "%s", cuda.failed);
  must_cuda(pair, 1, &cuda, cuda.alloc(&memory, TENSOR), "cuMemAlloc");
  if (read(pair->there[0], handle, sizeof handle - 1) <= 0) give_up(pair, 1, "%s", "");
  must(pair, 1, ringcast_reader_attach(handle, &ring), "can't attach");
  must(pair, 1, ringcast_gpu_reader_open(ring, &gpu, &reader), "can't add the device");
  int64_t first = 0;
  for (int i = 0; i < FRAMES; i++) {
    if (write(pair->back[1], "", 1) < 0) give_up(pair, 1, "%s", "");
    int64_t took = receive(pair, reader, memory);
    if (i == 0) first = took;
    if (i == 1) pair->open_ns = first > took ? first - took : 0;
    must_cuda(pair, 1, &cuda, cuda.dtoh(came, memory, TENSOR, NULL), "cuMemcpyDtoHAsync");
    must_cuda(pair, 1, &cuda, cuda.stream_synchronize(NULL), "cuStreamSynchronize");
    fill(wanted, i);
    pair->wrong += memcmp(came, wanted, TENSOR) != 0;
  }
  pair->reader.size = sizeof pair->reader;
  ringcast_gpu_reader_info(reader, &pair->reader);
  if (write(pair->back[1], "", 1) < 0 || read(pair->there[0], handle, 1) != 0) give_up(pair, 1, "%s", "");
  close(pair->back[1]);
  ringcast_gpu_reader_close(reader);
  ringcast_reader_close(ring);
}

/* The first error of the pair, in the words of the process that met the error; "" if there was none. */
static const char *run_pair(struct pair *pair, char *words, size_t size) {
  char ends[2][160];
  if (pipe(pair->there) != 0 || pipe(pair->back) != 0) {
    snprintf(words, size, "no pipe: %s", strerror(errno));
    return words;
  }
  pid_t writer = start(send_all, pair), reader = start(receive_all, pair);
  for (int i = 0; i < 2; i++) close(pair->there[i]), close(pair->back[i]);
  await(writer, ends[0], sizeof ends[0]);
  await(reader, ends[1], sizeof ends[1]);
  snprintf(words, size, "%s",
           *pair->words[0]   ? pair->words[0]
           : *pair->words[1] ? pair->words[1]
           : *ends[0]        ? ends[0]
                             : ends[1]);
  return words;
}

/* The reason for INLINE. The writer knows that a reader has no pool; the reader knows the words of the driver. */
static const char *why_inline(const struct pair *pair) {
  if (pool_is_none()) return "RINGCAST_GPU_POOL_BYTES is 0";
  if (pair->reader.way == RINGCAST_GPU_WAY_REFUSED && *pair->reader.why) return pair->reader.why;
  return *pair->writer.why ? pair->writer.why : "no process says why";
}

/* `mended`: the line of one of the two devices says how. */
static void tell_inline(struct doctor *doctor, const char *name, const struct pair *pair, bool mended) {
  const char *why = why_inline(pair);
  const char *off = doctor_is_disabled("cuda_pool") && !strstr(why, "RINGCAST_DISABLE") ? DOCTOR_SWITCHED_OFF : "";
  if (pool_is_none()) doctor_add(doctor, name, DOCTOR_NOTE, "INLINE: %s", why);
  else
    doctor_add(doctor, name, DOCTOR_NOTE, "INLINE: %d tensors went through the ring, by the CPU%s: %s", FRAMES, off,
               why);
  if (!*off && !mended) mend_by(doctor, doctor_gpu_mend(why));
}

static void tell_pair(struct doctor *doctor, const char *name, const struct pair *pair, const char *words,
                      bool mended) {
  const struct ringcast_gpu_info *writer = &pair->writer, *reader = &pair->reader;
  if (*words) {
    doctor_add(doctor, name, DOCTOR_NOTE, "tensors can't be sent: %s", words);
    if (!mended && strstr(words, "CUDA_ERROR_")) mend_by(doctor, doctor_gpu_mend(words));
  } else if (pair->wrong) {
    doctor_add(doctor, name, DOCTOR_PROBLEM, "%d of %d tensors came with other bytes than were sent", pair->wrong,
               FRAMES);
    doctor_mend(doctor, "RINGCAST_DISABLE=cuda_pool; and please report it, with all that is printed here");
  } else if (writer->pool_frames > 0) {
    doctor_add(doctor, name, DOCTOR_OK,
               "POOL: of %d tensors, %llu went from process to process within the device, after "
               "%llu through the ring, with which the reader opened the pool (%.1f ms)",
               FRAMES, (unsigned long long)writer->pool_frames, (unsigned long long)writer->inline_frames,
               (double)pair->open_ns / 1e6);
  } else {
    tell_inline(doctor, name, pair, mended);
  }
  doctor_facts(doctor, FACTS({"pool_frames", (int64_t)writer->pool_frames},
                             {"inline_frames", (int64_t)writer->inline_frames}, {"way", writer->way},
                             {"registered", writer->registered && reader->registered}, {"open_ns", pair->open_ns}));
}

static void probe_pair(struct doctor *doctor, const char *name, const struct survey *survey, int from, int to) {
  char words[256];
  struct pair *pair = shared(sizeof *pair);
  if (!pair) return;
  *pair = (struct pair){.devices = {from, to}};
  run_pair(pair, words, sizeof words);
  tell_pair(doctor, name, pair, words, survey->devices[from].mended || survey->devices[to].mended);
  munmap(pair, sizeof *pair);
}

void doctor_probe_gpu(struct doctor *doctor) {
  char end[160];
  struct survey *survey = shared(sizeof *survey);
  if (!survey) return;
  await(start(look, survey), end, sizeof end);
  tell_driver(doctor, survey, end);
  tell_settings(doctor, survey);
  for (int i = 0; i < survey->count; i++) tell_device(doctor, survey, i);
  if (survey->count > 0 && doctor->can_make) probe_pair(doctor, "GPU tensors", survey, 0, 0);
  if (survey->count > 1 && doctor->can_make) probe_pair(doctor, "GPU 0 to 1", survey, 0, 1);
  munmap(survey, sizeof *survey);
}
