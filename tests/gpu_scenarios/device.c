/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs about the device: streams, captures, calls that fail; and about what the environment says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>
#include "tests/gpu_scenarios/world.h"
#include "tests/support/cuda_more.h"

static rc_cu_context context;
static _Atomic uint64_t *turn; /* streams wait for it in `hold` */
static rc_cu_ptr turn_address;
static bool is_abandoned;

const struct rc_cuda *cuda;
rc_cu_ptr source, target;
static struct named_stream {
  char name[16];
  rc_cu_stream stream;
} streams[STREAMS] = {{.name = "main"}};
rc_cu_stream stream;

/* ---- The device ------------------------------------------------------------------------------------------------- */

#define driver(call) must((call) == RC_CU_SUCCESS)

void open_device(void) {
  static uint8_t bytes[SOURCE_BYTES];
  if (cuda) return;
  cuda = rc_cuda();
  must(cuda);
  driver(cuda->primary_retain(&context, 0));
  driver(cuda->ctx_push(context));
  driver(cuda->stream_create(&streams[0].stream, RC_CU_STREAM_NON_BLOCKING));
  stream = streams[0].stream;
  driver(cuda->mem_alloc(&source, SOURCE_BYTES));
  driver(cuda->mem_alloc(&target, SOURCE_BYTES));
  for (int i = 0; i < SOURCE_BYTES; i++) bytes[i] = (uint8_t)(7 * i);
  driver(cuda->copy_htod(source, bytes, SOURCE_BYTES, stream));
  driver(cuda->stream_synchronize(stream));
  turn = aligned_alloc(4096, 4096);
  must(turn);
  memset((void *)turn, 0, 4096);
  driver(cuda->host_register((void *)turn, 4096, RC_CU_MEMHOSTREGISTER_DEVICEMAP));
  driver(cuda->host_get_device_pointer(&turn_address, (void *)turn, 0));
}

static struct named_stream *find_stream(const char *name) {
  for (int i = 0; i < STREAMS; i++)
    if (strcmp(streams[i].name, name) == 0) return &streams[i];
  return NULL;
}

rc_cu_stream stream_of(const char *name) {
  struct named_stream *found = find_stream(*name ? name : "main");
  open_device();
  if (strcmp(name, "legacy") == 0) return NULL;
  if (strcmp(name, "per-thread") == 0) return (rc_cu_stream)(uintptr_t)2;
  if (!found) wrong("there is no stream '%s'", name);
  return found->stream;
}

static long do_device(struct words *words) { return (void)words, open_device(), 0; }
static long do_on(struct words *words) { return stream = stream_of(words->at[1]), 0; }
static long do_sync(struct words *words) { return cuda->stream_synchronize(stream_of(words->at[1])); }
static long do_query(struct words *words) { return cuda->stream_query(stream_of(words->at[1])); }
/* `turn`, and behind it the word that kernels look at. */
static _Atomic uint32_t *spin_word(void) { return (_Atomic uint32_t *)(void *)(turn + 8); }
static long do_go(struct words *words) {
  (void)words;
  rc_store_release(turn, *turn + 1);
  rc_store_release(spin_word(), 1);
  return 0;
}
static long do_hold(struct words *words) {
  return cuda->wait_value64(stream_of(words->at[1]), turn_address, *turn + 1, RC_CU_STREAM_WAIT_VALUE_GEQ);
}

static long do_stream(struct words *words) {
  struct named_stream *made = find_stream("");
  open_device();
  must(made);
  snprintf(made->name, sizeof made->name, "%s", words->at[1]);
  return cuda->stream_create(&made->stream, RC_CU_STREAM_NON_BLOCKING);
}

static long do_destroy(struct words *words) {
  struct named_stream *found = find_stream(words->at[1]);
  must(found);
  found->name[0] = '\0';
  return cuda->stream_destroy(found->stream);
}

/* In the mode GLOBAL. */
rc_cu_result set_capture(rc_cu_stream captor, bool on) {
  rc_cu_result (*begin)(rc_cu_stream stream, int mode), (*end)(rc_cu_stream stream, void **graph);
  void *library, *found[2] = {NULL, NULL}, *graph;
  if (!is_real) return fake_cuda()->capture(captor, on);
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library) found[0] = dlsym(library, "cuStreamBeginCapture_v2"), found[1] = dlsym(library, "cuStreamEndCapture");
  if (!found[0] || !found[1]) skip("this driver captures no graphs");
  memcpy(&begin, &found[0], sizeof begin);
  memcpy(&end, &found[1], sizeof end);
  return on ? begin(captor, 0) : end(captor, &graph);
}
static long do_capture(struct words *words) {
  return set_capture(stream_of(words->at[1]), strcmp(words->at[2], "on") == 0);
}

static long do_mode(struct words *words) {
  rc_cu_capture_mode mode = RC_CU_STREAM_CAPTURE_MODE_RELAXED, unused;
  (void)words;
  driver(cuda->exchange_capture_mode(&mode));
  unused = mode;
  driver(cuda->exchange_capture_mode(&unused));
  return mode;
}

/* The target's bytes, once the stream has come so far, are those of the source from `at` on. */
void target_holds(uint64_t at, uint64_t bytes, uint64_t offset) {
  uint8_t *host = malloc(bytes + 1);
  driver(cuda->copy_dtoh(host, target + offset, bytes, stream));
  for (uint64_t i = 0; i < bytes; i++)
    if (host[i] != (uint8_t)(7 * (at + i))) wrong("byte %llu is not what was sent", (unsigned long long)i);
  free(host);
}

static long do_holds(struct words *words) { return target_holds(NUMBER(1), NUMBER(2), number_of(words, "to", 0)), 0; }

/* The caller's own work on the first half of the source: other bytes are there now; or, of the other half, which has
 * the same bytes, those that were there. */
static long do_scribble(struct words *words) {
  (void)words;
  return cuda->copy_dtod(source, source + SOURCE_BYTES / 2 + 1, SOURCE_BYTES / 2 - 1, stream);
}
static long do_restore(struct words *words) {
  (void)words;
  return cuda->copy_dtod(source, source + SOURCE_BYTES / 2, SOURCE_BYTES / 2, stream);
}
static long do_put(struct words *words) { return cuda->copy_dtod(target, source + NUMBER(1), NUMBER(2), stream); }
static long do_follow(struct words *words) {
  return ringcast_gpu_stream_follow(0, stream_of(words->at[1]), stream_of(words->at[2]));
}
static long do_pause(struct words *words) { return usleep((useconds_t)NUMBER(1)); }

/* ---- Kernels ---------------------------------------------------------------------------------------------------- */

/* PTX, which the driver translates for whatever device it is: one kernel runs until the word is not 0, or so many
 * nanoseconds have gone, the other stores to an address that is none. */
static const char ptx[] = ".version 6.4\n.target sm_70\n.address_size 64\n"
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

static rc_cu_function find_kernel(const char *name) {
  enum { JIT_COMPILER_NOT_FOUND = 221, JIT_COMPILATION_DISABLED = 223 };
  static rc_cu_module module;
  rc_cu_function kernel;
  rc_cu_result result = module ? RC_CU_SUCCESS : cuda_more()->module_load_data(&module, ptx);
  if (result >= JIT_COMPILER_NOT_FOUND && result <= JIT_COMPILATION_DISABLED) skip("the driver translates no PTX");
  driver(result);
  driver(cuda_more()->module_get_function(&kernel, module, name));
  return kernel;
}

static long launch(const char *name, const char *on, void **arguments) {
  rc_cu_stream where = stream_of(on);
  return cuda_more()->launch_kernel(find_kernel(name), 1, 1, 1, 1, 1, 1, 0, where, arguments, NULL);
}

static long do_spin(struct words *words) {
  stream_of(words->at[1]);
  rc_cu_ptr word = turn_address + 64;
  uint64_t bound = is_real ? 20000000000 : UINT64_MAX;
  rc_store_release(spin_word(), 0);
  return launch("spin", words->at[1], (void *[]){&word, &bound});
}

/* ---- Faults ----------------------------------------------------------------------------------------------------- */

static long do_fail(struct words *words) {
  return fake_cuda()->fault(words->at[1], (long)NUMBER(2), (rc_cu_result)NUMBER(3)), 0;
}
static long do_no_fail(struct words *words) {
  if (!is_real) fake_cuda()->fault(NULL, 0, 0);
  return (void)words, 0;
}
static long do_live(struct words *words) { return fake_cuda()->live(words->at[1]); }
static long do_break(struct words *words) {
  return (void)words, is_abandoned = true, fake_cuda()->break_context(context), 0;
}

static long do_fault(struct words *words) {
  is_abandoned = true;
  return launch("fault", words->at[1], (void *[]){NULL});
}

/* The process leaves a child, which has all that is its parent's and uses nothing of CUDA. */
static long do_leave_child(struct words *words) {
  pid_t pid = fork();
  (void)words;
  must(pid >= 0);
  if (pid > 0) {
    board->child = pid;
    return 0;
  }
  close(why_fd);    /* all but this, which tells that the scenario has ended, ... */
  close(answer_fd); /* ... and this, that its parent has */
  for (;;) usleep(1000000);
}
static long do_child_lives(struct words *words) {
  return strcmp(words->at[1], "leave-child") == 0 && (board->child == 0 || kill(board->child, 0) != 0);
}

static long do_abandon(struct words *words) { return (void)words, is_abandoned = true, 0; }

static long do_hold_call(struct words *words) { return fake_cuda()->hold(words->at[1], (long)NUMBER(2)), 0; }
static long do_go_call(struct words *words) { return (void)words, fake_cuda()->hold(NULL, 0), 0; }

/* ---- Settings --------------------------------------------------------------------------------------------------- */

static long do_env(struct words *words) { return setenv(words->at[1], words->at[2], 1); }
/* What the whole run is forced to do without stays switched off. */
static long do_disable(struct words *words) {
  const char *before = getenv("RINGCAST_DISABLE");
  char list[256];
  snprintf(list, sizeof list, "%s,%s", before ? before : "", words->at[1]);
  return setenv("RINGCAST_DISABLE", list, 1);
}

/* Milliseconds that the library waits for a device that does not come. */
static long do_patience(struct words *words) {
  if (option(words, "close")) rc_gpu_close_ns = (int64_t)number_of(words, "close", 0) * 1000000;
  if (option(words, "words")) rc_semaphore_patience_ns = (int64_t)number_of(words, "words", 0) * 1000000;
  if (option(words, "open")) rc_gpu_busy_ns = (int64_t)number_of(words, "open", 0) * 1000000;
  return 0;
}

/* ---- The end ---- */

static void close_device(void) {
  static const char *const kinds[] = {"allocations", "imports", "registered", "streams", "events",
                                      "contexts",    "queued",  "lost",       "spoilt"};
  for (int i = 0; i < STREAMS; i++) {
    if (!*streams[i].name) continue;
    driver(cuda->stream_synchronize(streams[i].stream));
    driver(cuda->stream_destroy(streams[i].stream));
  }
  driver(cuda->mem_free(source));
  driver(cuda->mem_free(target));
  driver(cuda->host_unregister((void *)turn));
  close_words();
  driver(cuda->ctx_pop(&context));
  driver(cuda->primary_release(0));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !is_real; i++)
    while (tidy(), fake_cuda()->live(kinds[i]) != 0) usleep(200);
}

void finish(void) {
  if (!cuda && !side.writer && !side.reader) return;
  do_no_fail(NULL);
  if (turn) do_go(NULL);
  close_reader();
  close_writer();
  if (cuda && !is_abandoned) close_device();
  if (cuda && is_abandoned) {
    driver(cuda->ctx_pop(&context));
    driver(cuda->primary_release(0));
  }
  while (cuda && is_abandoned && !is_real && fake_cuda()->live("contexts") != 0) usleep(200), tidy();
  free((void *)turn);
}

const struct verb device_verbs[] = {
    {"device", do_device},     /* opens it: `writer` and `reader` do, too */
    {"stream", do_stream},     /* NAME: makes one beside `main` */
    {"destroy", do_destroy},   /* NAME */
    {"on", do_on},             /* NAME: what follows is on that stream; also `legacy`, `per-thread` */
    {"hold", do_hold},         /* NAME: the stream does nothing more ... */
    {"go", do_go},             /* ... until then */
    {"sync", do_sync},         /* NAME */
    {"query", do_query},       /* NAME = 600: it has something to do still */
    {"capture", do_capture},   /* NAME on|off */
    {"mode", do_mode},         /* the thread's capture mode */
    {"scribble", do_scribble}, /* over half of the source, in the order of the stream */
    {"restore", do_restore},   /* that half */
    {"put", do_put},           /* AT BYTES: of the source, to the target */
    {"follow", do_follow},     /* NAME NAME: the stream waits for what the other has to do */
    {"pause", do_pause},       /* US: for a figure; nothing may depend on it */
    {"spin", do_spin},         /* NAME: a kernel that runs until `go` */
    {"fault", do_fault},       /* NAME: a kernel after which the context has failed */
    {"leave-child", do_leave_child},
    {"child-lives", do_child_lives}, /* leave-child: that which it has left; any other word: nothing */
    {"holds", do_holds},             /* AT BYTES [to=N]: what was copied there is the source from AT on */
    {"fail", do_fail},               /* CALL NTH RESULT: as fault() of fake_cuda.h */
    {"no-fail", do_no_fail},
    {"live", do_live},           /* WHAT: how many of them there are, as its result */
    {"break", do_break},         /* the context */
    {"abandon", do_abandon},     /* at the end the context alone is given back */
    {"hold-call", do_hold_call}, /* CALL NTH: it waits ... */
    {"go-call", do_go_call},     /* ... until then */
    {"env", do_env},             /* NAME VALUE */
    {"disable", do_disable},     /* NAME in RINGCAST_DISABLE */
    {"patience", do_patience},   /* close=MS, open=MS of a writer, words=MS of a reader */
    {NULL, NULL},
};
