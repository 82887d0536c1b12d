/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/gpu/probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
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

#include "ringcast/ringcast.h"
#include "tests/gpu/run.h"

/* ---- Text ------------------------------------------------------------------------------------------------------- */

void text_add(struct text *text, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  size_t length = (size_t)vsnprintf(NULL, 0, format, arguments);
  text->bytes = realloc(text->bytes, text->used + length + 1);
  if (!text->bytes) abort();
  vsnprintf(text->bytes + text->used, length + 1, format, again);
  text->used += length;
  va_end(again);
  va_end(arguments);
}

void text_quote(struct text *text, const char *value) {
  text_add(text, "\"");
  for (const unsigned char *at = (const unsigned char *)value; *at; at++) {
    if (*at == '"' || *at == '\\') text_add(text, "\\%c", *at);
    else if (*at < 32) text_add(text, "\\u%04x", *at);
    else text_add(text, "%c", *at);
  }
  text_add(text, "\"");
}

/* ---- Reports ---------------------------------------------------------------------------------------------------- */

static struct helper *within; /* this process is a helper */

void *shared_memory(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) failed("can't map %zu bytes: %s", bytes, strerror(errno));
  return memory;
}

struct report *probe_report(void) {
  static struct report *report;
  if (!report) report = shared_memory(sizeof *report);
  return report;
}

void probe_end(const char *result, const char *why) {
  struct report *report = probe_report();
  snprintf(report->why, sizeof report->why, "%s", why);
  snprintf(report->result, sizeof report->result, "%s", result);
  _exit(0);
}

static void end(const char *result, const char *format, va_list arguments) {
  char why[511]; /* as many words as fit with the letter */
  vsnprintf(why, sizeof why, format, arguments);
  if (!within) probe_end(result, why);
  snprintf(within->words, 512, "%c%s", *result, why);
  _exit(1);
}

void failed(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  end("failed", format, arguments);
  abort();
}

void skipped(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  end("skipped", format, arguments);
  abort();
}

void no_pool(const char *why) {
  const char *known = getenv("GPU_PROBE_INLINE");
  if (known) skipped("no pool (%s), as doctor says too: %s", why, known);
  failed("no pool: %s", *why ? why : "nobody says why");
}

void must(rc_cu_result result, const char *what) {
  if (result != RC_CU_SUCCESS) failed("%s: %s (%d)", what, rc_cuda_name(result), result);
}

void must_ringcast(int result, const char *what) {
  if (result < 0) failed("%s: %d, %s", what, result, ringcast_last_error());
}

/* A figure more than there is room for is no figure. */
static void add_figure(const char *key, const char *value) {
  struct report *report = probe_report();
  struct text text = {0};
  size_t used = strlen(report->figures);
  text_add(&text, "%s", used ? ", " : "");
  text_quote(&text, key);
  text_add(&text, ": %s", value);
  if (!within && used + text.used < sizeof report->figures) memcpy(report->figures + used, text.bytes, text.used + 1);
  free(text.bytes);
}

void figure_integer(const char *key, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  add_figure(key, text);
}

void figure_number(const char *key, double value) {
  char text[32] = "null";
  if (isfinite(value)) snprintf(text, sizeof text, "%.5g", value);
  add_figure(key, text);
}

void figure_text(const char *key, const char *value) {
  struct text text = {0};
  text_quote(&text, value);
  add_figure(key, text.bytes);
  free(text.bytes);
}

void figure_result(const char *key, rc_cu_result result) {
  char text[96];
  snprintf(text, sizeof text, "%d %s", result, result == RC_CU_SUCCESS ? "success" : rc_cuda_name(result));
  figure_text(key, text);
}

static int compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

void figure_spread(const char *key, double *values, size_t count) {
  char name[96];
  qsort(values, count, sizeof *values, compare);
  snprintf(name, sizeof name, "%s_p50", key);
  figure_number(name, count ? values[count / 2] : NAN);
  snprintf(name, sizeof name, "%s_max", key);
  figure_number(name, count ? values[count - 1] : NAN);
}

bool is_little(void) { return getenv("GPU_PROBE_LITTLE") != NULL; }
int rounds(int full) { return is_little() && full > 3 ? 3 : full; }

/* ---- Helpers ---------------------------------------------------------------------------------------------------- */

struct helper helper_start(void (*body)(struct helper *me, void *context), void *context) {
  int there[2], back[2];
  struct helper helper = {.words = shared_memory(512)};
  if (pipe2(there, O_CLOEXEC) != 0 || pipe2(back, O_CLOEXEC) != 0) failed("no pipe: %s", strerror(errno));
  pid_t parent = getpid();
  if ((helper.pid = fork()) < 0) failed("can't fork: %s", strerror(errno));
  if (helper.pid == 0) {
    struct helper me = {.to = back[1], .from = there[0], .words = helper.words};
    within = &me;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(there[1]);
    close(back[0]);
    body(&me, context);
    _exit(0);
  }
  helper.to = there[1];
  helper.from = back[0];
  close(there[0]);
  close(back[1]);
  return helper;
}

/* It has ended, or says nothing more: so does the probe. */
__attribute__((noreturn)) static void helper_lost(const struct helper *helper, const char *how) {
  const char *why = helper->words;
  if (*why == 's') skipped("%s", why + 1);
  failed("the other process %s: %s", how, *why ? why + 1 : "it says nothing about it");
}

void helper_tell(struct helper *helper, const void *data, size_t bytes) {
  if (write(helper->to, data, bytes) != (ssize_t)bytes) helper_lost(helper, "is gone");
}

void helper_hear(struct helper *helper, void *data, size_t bytes) {
  for (size_t got = 0; got < bytes;) {
    ssize_t more = read(helper->from, (char *)data + got, bytes - got);
    if (more <= 0) helper_lost(helper, "has ended");
    got += (size_t)more;
  }
}

void helper_kill(struct helper *helper) {
  kill(helper->pid, SIGKILL);
  waitpid(helper->pid, NULL, 0);
}

void helper_end(struct helper *helper) {
  int status;
  close(helper->to);
  if (waitpid(helper->pid, &status, 0) != helper->pid || status != 0) {
    char how[64];
    snprintf(how, sizeof how, "ended with status %#x", (unsigned)status);
    helper_lost(helper, how);
  }
  close(helper->from);
}

/* ---- The device ------------------------------------------------------------------------------------------------- */

struct gpu gpu_open(void) {
  struct gpu gpu = {.cuda = rc_cuda()};
  if (!gpu.cuda) skipped("%s", rc_cuda_status()->why);
  must(gpu.cuda->device_get(&gpu.device, 0), "cuDeviceGet");
  must(gpu.cuda->primary_retain(&gpu.context, gpu.device), "cuDevicePrimaryCtxRetain");
  must(gpu.cuda->ctx_push(gpu.context), "cuCtxPushCurrent");
  must(gpu.cuda->stream_create(&gpu.stream, RC_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return gpu;
}

void *gpu_symbol(const char *symbol) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, symbol) : NULL;
}

/* PTX, which the driver translates for whatever device it is. */
static const char spin_ptx[] = ".version 6.4\n"
                               ".target sm_70\n"
                               ".address_size 64\n"
                               ".visible .entry spin(.param .u64 word, .param .u64 bound)\n"
                               "{\n"
                               "  .reg .pred %p<3>; .reg .b32 %r<2>; .reg .b64 %d<6>;\n"
                               "  ld.param.u64 %d1, [word];\n"
                               "  ld.param.u64 %d2, [bound];\n"
                               "  mov.u64 %d3, %globaltimer;\n"
                               "again:\n"
                               "  ld.volatile.global.u32 %r1, [%d1];\n"
                               "  setp.ne.u32 %p1, %r1, 0;\n"
                               "  @%p1 bra done;\n"
                               "  mov.u64 %d4, %globaltimer;\n"
                               "  sub.u64 %d5, %d4, %d3;\n"
                               "  setp.lt.u64 %p2, %d5, %d2;\n"
                               "  @%p2 bra again;\n"
                               "done:\n"
                               "  ret;\n"
                               "}\n"
                               ".visible .entry fault()\n"
                               "{\n"
                               "  .reg .b32 %r<2>; .reg .b64 %d<2>;\n"
                               "  mov.u64 %d1, 64;\n"
                               "  mov.u32 %r1, 1;\n"
                               "  st.volatile.global.u32 [%d1], %r1;\n"
                               "  ret;\n"
                               "}\n";

static rc_cu_function spin, fault;

void gpu_load_spin(void) {
  enum { JIT_COMPILER_NOT_FOUND = 221, UNSUPPORTED_PTX_VERSION = 222, JIT_COMPILATION_DISABLED = 223 };
  rc_cu_module module;
  rc_cu_result result = cuda_more()->module_load_data(&module, spin_ptx);
  if (result >= JIT_COMPILER_NOT_FOUND && result <= JIT_COMPILATION_DISABLED)
    skipped("the driver translates no PTX: cuModuleLoadData gives %d, %s", result, rc_cuda_name(result));
  must(result, "cuModuleLoadData");
  must(cuda_more()->module_get_function(&spin, module, "spin"), "cuModuleGetFunction");
  must(cuda_more()->module_get_function(&fault, module, "fault"), "cuModuleGetFunction");
}

void gpu_spin(rc_cu_stream stream, rc_cu_ptr word, uint64_t bound_ns) {
  if (!spin) gpu_load_spin();
  void *arguments[] = {&word, &bound_ns};
  if (is_little()) bound_ns /= 100000; /* the fake counts turns */
  must(cuda_more()->launch_kernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL), "cuLaunchKernel");
}

void gpu_fault(rc_cu_stream stream) {
  void *none[] = {NULL};
  if (!fault) gpu_load_spin();
  must(cuda_more()->launch_kernel(fault, 1, 1, 1, 1, 1, 1, 0, stream, none, NULL), "cuLaunchKernel");
}

rc_cu_ptr gpu_register(struct gpu *gpu, void *memory, size_t bytes) {
  rc_cu_ptr address;
  must(gpu->cuda->host_register(memory, bytes, RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP),
       "cuMemHostRegister");
  must(gpu->cuda->host_get_device_pointer(&address, memory, 0), "cuMemHostGetDevicePointer");
  return address;
}

static uint8_t pattern(size_t at, unsigned seed) { return (uint8_t)(at * 131 + (at >> 8) * 7 + seed * 29 + 1); }

void gpu_fill(struct gpu *gpu, rc_cu_ptr memory, size_t bytes, unsigned seed) {
  uint8_t *host = malloc(bytes);
  if (!host) failed("no memory");
  for (size_t i = 0; i < bytes; i++) host[i] = pattern(i, seed);
  must(gpu->cuda->copy_htod(memory, host, bytes, gpu->stream), "cuMemcpyHtoDAsync");
  must(gpu->cuda->stream_synchronize(gpu->stream), "cuStreamSynchronize");
  free(host);
}

size_t gpu_differing(struct gpu *gpu, rc_cu_ptr memory, size_t bytes, unsigned seed) {
  uint8_t *host = malloc(bytes);
  size_t differing = 0;
  if (!host) failed("no memory");
  must(gpu->cuda->copy_dtoh(host, memory, bytes, gpu->stream), "cuMemcpyDtoHAsync");
  must(gpu->cuda->stream_synchronize(gpu->stream), "cuStreamSynchronize");
  for (size_t i = 0; i < bytes; i++) differing += host[i] != pattern(i, seed);
  free(host);
  return differing;
}

void figure_shows(const char *key, struct gpu *gpu, rc_cu_ptr memory, size_t bytes, unsigned seed) {
  uint8_t *host = malloc(bytes);
  if (!host) failed("no memory");
  rc_cu_result result = gpu->cuda->copy_dtoh(host, memory, bytes, gpu->stream);
  if (result == RC_CU_SUCCESS) result = gpu->cuda->stream_synchronize(gpu->stream);
  size_t same = 0;
  while (same < bytes && host[same] == pattern(same, seed)) same++;
  if (result == RC_CU_SUCCESS) figure_integer(key, same == bytes);
  else figure_result(key, result);
  free(host);
}

size_t gpu_free_bytes(struct gpu *gpu) {
  size_t now_free, total;
  must(gpu->cuda->mem_get_info(&now_free, &total), "cuMemGetInfo");
  return now_free;
}

rc_cu_ptr gpu_alloc(struct gpu *gpu, size_t bytes) {
  rc_cu_ptr memory;
  must(gpu->cuda->mem_alloc(&memory, bytes), "cuMemAlloc");
  return memory;
}

/* ---- Time ------------------------------------------------------------------------------------------------------- */

double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

struct later {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct timespec when;
  bool cancelled, called;
  void (*body)(void *context);
  void *context;
};

static void *run_later(void *context) {
  struct later *later = context;
  pthread_mutex_lock(&later->lock);
  while (!later->cancelled && !later->called)
    if (pthread_cond_timedwait(&later->changed, &later->lock, &later->when) == ETIMEDOUT && !later->cancelled) {
      later->called = true;
      later->body(later->context);
    }
  pthread_mutex_unlock(&later->lock);
  return NULL;
}

struct later *later(unsigned ms, void (*body)(void *context), void *context) {
  struct later *later = calloc(1, sizeof *later);
  if (!later) failed("no memory");
  *later = (struct later){.body = body, .context = context};
  pthread_mutex_init(&later->lock, NULL);
  pthread_cond_init(&later->changed, NULL);
  clock_gettime(CLOCK_REALTIME, &later->when);
  later->when.tv_sec += ms / 1000;
  later->when.tv_nsec += (long)(ms % 1000) * 1000000;
  if (later->when.tv_nsec >= 1000000000) later->when.tv_sec++, later->when.tv_nsec -= 1000000000;
  if (pthread_create(&later->thread, NULL, run_later, later) != 0) failed("no thread");
  return later;
}

bool later_cancel(struct later *later) {
  pthread_mutex_lock(&later->lock);
  later->cancelled = true;
  pthread_cond_signal(&later->changed);
  pthread_mutex_unlock(&later->lock);
  pthread_join(later->thread, NULL);
  bool called = later->called;
  free(later);
  return called;
}
