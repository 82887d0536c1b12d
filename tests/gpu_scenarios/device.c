/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs about the device: streams, captures, kernels, words, calls that fail; and what the
 * environment says. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "tests/gpu_scenarios/scenario.h"
#include "tests/support/cuda_more.h"

static rc_cu_context context;
static _Atomic uint64_t
    *turn; /* streams wait for it in `hold`; behind it is the word that kernels look at */
static rc_cu_ptr turn_address;
static bool is_abandoned;

const struct rc_cuda *cuda;
rc_cu_ptr source, target;
static struct named_stream {
  char name[16];
  rc_cu_stream stream;
} streams[STREAMS] = {{.name = "main"}};
rc_cu_stream stream;

/* ---- The device ------------------------------------------------------------------------------ */

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

static long do_device(void) {
  open_device();
  return 0;
}

static struct named_stream *find_stream(const char *name) {
  for (int i = 0; i < STREAMS; i++)
    if (strcmp(streams[i].name, name) == 0) return &streams[i];
  return NULL;
}

static rc_cu_stream stream_at(int word) {
  const char *name = *words->at[word] ? words->at[word] : "main";
  struct named_stream *found = find_stream(name);
  open_device();
  if (strcmp(name, "legacy") == 0) return NULL;
  if (strcmp(name, "per-thread") == 0) return (rc_cu_stream)(uintptr_t)2;
  if (!found) wrong("there is no stream '%s'", name);
  return found->stream;
}

static long do_stream(void) {
  struct named_stream *made = find_stream("");
  open_device();
  must(made);
  snprintf(made->name, sizeof made->name, "%s", words->at[1]);
  return cuda->stream_create(&made->stream, RC_CU_STREAM_NON_BLOCKING);
}

static long do_destroy(void) {
  struct named_stream *found = find_stream(words->at[1]);
  must(found);
  found->name[0] = '\0';
  return cuda->stream_destroy(found->stream);
}

static long do_on(void) {
  stream = stream_at(1);
  return 0;
}

static long do_sync(void) { return cuda->stream_synchronize(stream_at(1)); }
static long do_query(void) { return cuda->stream_query(stream_at(1)); }
static long do_follow(void) { return ringcast_gpu_stream_follow(0, stream_at(1), stream_at(2)); }

static _Atomic uint32_t *spin_word(void) { return (_Atomic uint32_t *)(void *)(turn + 8); }

static long do_hold(void) {
  return cuda->wait_value64(stream_at(1), turn_address, *turn + 1, RC_CU_STREAM_WAIT_VALUE_GEQ);
}

static long do_go(void) {
  rc_store_release(turn, *turn + 1);
  rc_store_release(spin_word(), 1);
  return 0;
}

/* In the mode GLOBAL. */
static long do_capture(void) {
  rc_cu_result (*begin)(rc_cu_stream stream, int mode), (*end)(rc_cu_stream stream, void **graph);
  bool on = strcmp(words->at[2], "on") == 0;
  void *graph;
  if (!is_real) return fake_cuda()->capture(stream_at(1), on);
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void *found[2] = {dlsym(library, "cuStreamBeginCapture_v2"),
                    dlsym(library, "cuStreamEndCapture")};
  if (!found[0] || !found[1]) skip("this driver captures no graphs");
  memcpy(&begin, &found[0], sizeof begin);
  memcpy(&end, &found[1], sizeof end);
  return on ? begin(stream_at(1), 0) : end(stream_at(1), &graph);
}

static long do_mode(void) {
  rc_cu_capture_mode mode = RC_CU_STREAM_CAPTURE_MODE_RELAXED;
  driver(cuda->exchange_capture_mode(&mode));
  rc_cu_capture_mode again = mode;
  driver(cuda->exchange_capture_mode(&again));
  return mode;
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

void target_holds(uint64_t at, uint64_t bytes, uint64_t offset) {
  uint8_t *host = malloc(bytes + 1);
  driver(cuda->copy_dtoh(host, target + offset, bytes, stream));
  for (uint64_t i = 0; i < bytes; i++)
    if (host[i] != (uint8_t)(7 * (at + i)))
      wrong("byte %llu is not what was sent", (unsigned long long)i);
  free(host);
}

static long do_holds(void) {
  target_holds(NUMBER(1), NUMBER(2), number_of("to", 0));
  return 0;
}

static long do_put(void) { return cuda->copy_dtod(target, source + NUMBER(1), NUMBER(2), stream); }

/* The caller's own work on the first half of the source: other bytes are there now; or, of the
 * other half, which has the same bytes, those that were there. */
static long do_scribble(void) {
  return cuda->copy_dtod(source, source + SOURCE_BYTES / 2 + 1, SOURCE_BYTES / 2 - 1, stream);
}
static long do_restore(void) {
  return cuda->copy_dtod(source, source + SOURCE_BYTES / 2, SOURCE_BYTES / 2, stream);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* PTX, which the driver translates for whatever device it is: one kernel runs until the word is not
 * 0, or so many nanoseconds have gone, the other stores to an address that is none. */
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

static long launch(const char *name, void **arguments) {
  enum { JIT_COMPILER_NOT_FOUND = 221, JIT_COMPILATION_DISABLED = 223 };
  static rc_cu_module module;
  rc_cu_function kernel;
  rc_cu_stream where = stream_at(1);
  rc_cu_result result = module ? RC_CU_SUCCESS : cuda_more()->module_load_data(&module, ptx);
  if (result >= JIT_COMPILER_NOT_FOUND && result <= JIT_COMPILATION_DISABLED)
    skip("the driver translates no PTX");
  driver(result);
  driver(cuda_more()->module_get_function(&kernel, module, name));
  return cuda_more()->launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, where, arguments, NULL);
}

static long do_spin(void) {
  stream_at(1);
  rc_cu_ptr word = turn_address + 64;
  uint64_t bound = is_real ? 20000000000 : UINT64_MAX;
  rc_store_release(spin_word(), 0);
  return launch("spin", (void *[]){&word, &bound});
}

static long do_fault(void) {
  is_abandoned = true;
  return launch("fault", (void *[]){NULL});
}

/* ---- Words that all processes of the scenario share ------------------------------------------ */

static rc_cu_ptr words_address;

static rc_cu_ptr word_address(uint64_t number) {
  open_device();
  if (!words_address) {
    unsigned flags = RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP;
    driver(cuda->host_register(board->words, sizeof board->words, flags));
    driver(cuda->host_get_device_pointer(&words_address, board->words, 0));
  }
  return words_address + number * sizeof(struct rc_semaphore);
}

static struct rc_semaphore *word(uint64_t number) {
  return (struct rc_semaphore *)(void *)board->words + number;
}
static long do_wait_word(void) {
  return rc_semaphore_wait(cuda, stream, word_address(NUMBER(1)), NUMBER(2));
}
static long do_write_word(void) {
  return rc_semaphore_write(cuda, stream, word_address(NUMBER(1)), NUMBER(2));
}

static long do_store_word(void) {
  rc_semaphore_store(word(NUMBER(1)), NUMBER(2));
  return 0;
}

static long do_wake(void) {
  rc_semaphore_store(word(NUMBER(1)), NUMBER(3));
  while (!rc_semaphore_has_reached(word(NUMBER(2)), NUMBER(3))) sched_yield();
  return 0;
}

/* ---- Figures of the driver ------------------------------------------------------------------- */

static rc_cu_event event;

static rc_cu_result query(void) {
  rc_cu_result result = cuda->stream_query(stream);
  return result == RC_CU_NOT_READY ? RC_CU_SUCCESS : result;
}
static rc_cu_result write_word(void) {
  return rc_semaphore_write(cuda, stream, word_address(2), 1);
}
static rc_cu_result wait_for_past(void) {
  return rc_semaphore_wait(cuda, stream, word_address(1), 0);
}
static rc_cu_result copy_small(void) { return cuda->copy_dtod(target, source, 1024, stream); }
static rc_cu_result record(void) { return cuda->event_record(event, stream); }
static rc_cu_result is_capturing(void) { return cuda->stream_is_capturing(stream, (int[]){0}); }
static rc_cu_result exchange_mode(void) {
  return cuda->exchange_capture_mode((int[]){RC_CU_STREAM_CAPTURE_MODE_RELAXED});
}
static rc_cu_result get_current(void) { return cuda->ctx_get_current((rc_cu_context[]){NULL}); }
static rc_cu_result ask_for_memory(void) {
  return cuda->mem_get_info((size_t[]){0}, (size_t[]){0});
}

/* Behind a wait: the host's time for so many calls, then the device's from the store that ends the
 * wait. */
static long do_cost_of_calls(void) {
  enum { COUNT = 200, ROUNDS = 5 };
  static const struct {
    const char *name;
    rc_cu_result (*call)(void);
    bool on_device;
  } calls[] = {
      {"write", write_word, true},
      {"wait_for_past", wait_for_past, true},
      {"copy_1_KiB", copy_small, true},
      {"event_record", record, true},
      {"is_capturing", is_capturing, false},
      {"exchange_mode", exchange_mode, false},
      {"get_current", get_current, false},
      {"stream_query", query, false},
      {"mem_get_info", ask_for_memory, false},
  };
  uint64_t value = 0;
  open_device();
  driver(cuda->event_create(&event, RC_CU_EVENT_DISABLE_TIMING));
  for (size_t i = 0; i < sizeof calls / sizeof *calls * ROUNDS; i++) {
    driver(rc_semaphore_wait(cuda, stream, word_address(0), ++value));
    double begun = now_us();
    for (int k = 0; k < COUNT; k++) driver(calls[i / ROUNDS].call());
    note(calls[i / ROUNDS].name, "_host_us", (now_us() - begun) / COUNT);
    begun = now_us();
    rc_semaphore_store(word(0), value);
    driver(cuda->stream_synchronize(stream));
    if (calls[i / ROUNDS].on_device)
      note(calls[i / ROUNDS].name, "_device_us", (now_us() - begun) / COUNT);
  }
  return cuda->event_destroy(event);
}

static _Atomic bool has_ended_wait;
static _Atomic uint64_t enqueued;

static void *end_wait(void *unused) {
  usleep(is_real ? 1500000 : 300000);
  has_ended_wait = true;
  rc_semaphore_store(word(0), UINT64_MAX >> 2);
  return unused;
}

static void *fill_stream(void *unused) {
  driver(cuda->ctx_push(context));
  for (uint64_t i = 1; i <= 1 << 16 && !has_ended_wait; i++) {
    driver(rc_semaphore_write(cuda, stream, word_address(1), i));
    enqueued = i;
  }
  driver(cuda->ctx_pop((rc_cu_context[]){NULL}));
  return unused;
}

/* After how many operations a call blocks, and whether another stream's does with it. */
static long do_operations_behind_a_wait(void) {
  rc_cu_stream other;
  pthread_t thread, ender;
  uint64_t last = 0;
  word_address(0);
  driver(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING));
  driver(rc_semaphore_wait(cuda, stream, word_address(0), 1));
  must(pthread_create(&ender, NULL, end_wait, NULL) == 0);
  must(pthread_create(&thread, NULL, fill_stream, NULL) == 0);
  for (double since = now_us(); now_us() - since < 200e3 && enqueued < 1 << 16;) {
    if (enqueued != last) since = now_us();
    last = enqueued;
  }
  note("operations", "", (double)last);
  note("a_call_blocked", "", last < 1 << 16);
  driver(rc_semaphore_write(cuda, other, word_address(2), 1));
  note("another_stream_blocked_too", "", has_ended_wait);
  must(pthread_join(ender, NULL) == 0 && pthread_join(thread, NULL) == 0);
  driver(cuda->stream_synchronize(stream));
  return cuda->stream_destroy(other);
}

/* Every attribute by its number in CUdevice_attribute; those that ringcast depends on also by
 * name. */
static long do_attributes(void) {
  static const char *const names[160] = {[20] = "_compute_mode",
                                         [41] = "_unified_addressing",
                                         [91] = "_host_pointer_of_registered_memory",
                                         [99] = "_host_register",
                                         [115] = "_memory_pools",
                                         [122] = "_stream_operations_of_64_bits"};
  open_device();
  for (int number = 1; number < 160; number++) {
    char text[16];
    int value;
    snprintf(text, sizeof text, "%d", number);
    if (cuda_more()->device_get_attribute(&value, (rc_cu_device_attribute)number, 0) ==
        RC_CU_SUCCESS)
      note(text, names[number] ? names[number] : "", value);
  }
  return 0;
}

/* What the library finds of the driver. */
static long do_driver(void) {
  double begun = now_us();
  open_device();
  note("start", "_us", now_us() - begun);
  note("version", "", rc_cuda_status()->version);
  note("devices", "", rc_cuda_status()->devices);
  return 0;
}

static long do_free_mib(void) {
  size_t now_free, total;
  driver(cuda->mem_get_info(&now_free, &total));
  note(words->at[1], "", (double)(now_free >> 20));
  return 0;
}

static long do_pause(void) { return usleep((useconds_t)NUMBER(1)); }

/* ---- Faults and settings --------------------------------------------------------------------- */

static long do_fail(void) {
  fake_cuda()->fault(words->at[1], (long)NUMBER(2), (rc_cu_result)NUMBER(3));
  return 0;
}

static long do_no_fail(void) {
  if (!is_real) fake_cuda()->fault(NULL, 0, 0);
  return 0;
}

static long do_break(void) {
  is_abandoned = true;
  fake_cuda()->break_context(context);
  return 0;
}

static long do_hold_call(void) {
  fake_cuda()->hold(words->at[1], (long)NUMBER(2));
  return 0;
}

static long do_go_call(void) {
  fake_cuda()->hold(NULL, 0);
  return 0;
}

static long do_live(void) { return fake_cuda()->live(words->at[1]); }
static long do_env(void) { return setenv(words->at[1], words->at[2], 1); }

/* What the whole run is forced to do without stays switched off. */
static long do_disable(void) {
  const char *before = getenv("RINGCAST_DISABLE");
  char list[256];
  snprintf(list, sizeof list, "%s,%s", before ? before : "", words->at[1]);
  return setenv("RINGCAST_DISABLE", list, 1);
}

static long do_patience(void) {
  if (option("close")) rc_gpu_close_ns = (int64_t)number_of("close", 0) * 1000000;
  if (option("words")) rc_semaphore_patience_ns = (int64_t)number_of("words", 0) * 1000000;
  if (option("open")) rc_gpu_busy_ns = (int64_t)number_of("open", 0) * 1000000;
  return 0;
}

/* ---- The end --------------------------------------------------------------------------------- */

static void close_device(void) {
  for (int i = 0; i < STREAMS; i++) {
    if (!*streams[i].name) continue;
    driver(cuda->stream_synchronize(streams[i].stream));
    driver(cuda->stream_destroy(streams[i].stream));
  }
  driver(cuda->mem_free(source));
  driver(cuda->mem_free(target));
  driver(cuda->host_unregister((void *)turn));
  if (words_address) driver(cuda->host_unregister(board->words));
}

void finish(void) {
  static const char *const kinds[] = {"contexts", "allocations", "imports", "registered", "streams",
                                      "events",   "queued",      "lost",    "spoilt"};
  if (!cuda && !side.writer && !side.reader) return;
  do_no_fail();
  if (turn) do_go();
  close_reader();
  close_writer();
  if (!cuda) return;
  if (!is_abandoned) close_device();
  driver(cuda->ctx_pop(&context));
  driver(cuda->primary_release(0));
  size_t count =
      is_abandoned
          ? 1
          : sizeof kinds / sizeof *kinds; /* an end with a device that has failed is no tidy one */
  for (size_t i = 0; i < count && !is_real; i++)
    while (tidy(), fake_cuda()->live(kinds[i]) != 0) usleep(200);
  free((void *)turn);
}

const struct verb device_verbs[] = {
    {"device", do_device},   /* opens it: `writer` and `reader` do, too */
    {"stream", do_stream},   /* NAME: makes one beside `main` */
    {"destroy", do_destroy}, /* NAME */
    {"on", do_on},           /* NAME: what follows is on that stream; also `legacy`, `per-thread` */
    {"sync", do_sync},       /* NAME */
    {"query", do_query},     /* NAME = 600: it has something to do still */
    {"follow", do_follow},   /* NAME NAME: the stream waits for what the other has to do */
    {"hold", do_hold},       /* NAME: the stream does nothing more ... */
    {"go", do_go},           /* ... until then */
    {"capture", do_capture}, /* NAME on|off */
    {"mode", do_mode},       /* the thread's capture mode */
    {"holds", do_holds},     /* AT BYTES [to=N]: what was copied there is the source from AT on */
    {"put", do_put},         /* AT BYTES: of the source, to the target */
    {"scribble", do_scribble},     /* over half of the source, in the order of the stream */
    {"restore", do_restore},       /* that half */
    {"spin", do_spin},             /* NAME: a kernel that runs until `go` */
    {"fault", do_fault},           /* NAME: a kernel after which the context has failed */
    {"wait-word", do_wait_word},   /* N VALUE: the stream */
    {"write-word", do_write_word}, /* N VALUE: the stream */
    {"store-word", do_store_word}, /* N VALUE: the host */
    {"wake", do_wake},             /* N M VALUE: stores the one, until the other has come */
    {"cost-of-calls", do_cost_of_calls},
    {"operations-behind-a-wait", do_operations_behind_a_wait},
    {"attributes", do_attributes},
    {"driver", do_driver},
    {"free-mib", do_free_mib}, /* NAME: a figure */
    {"pause", do_pause},       /* US: for a figure; nothing may depend on it */
    {"fail", do_fail},         /* CALL NTH RESULT: as fault() of fake_cuda.h */
    {"no-fail", do_no_fail},
    {"break", do_break},         /* the context */
    {"hold-call", do_hold_call}, /* CALL NTH: it waits ... */
    {"go-call", do_go_call},     /* ... until then */
    {"live", do_live},           /* WHAT: how many of them there are, as its result */
    {"env", do_env},             /* NAME VALUE */
    {"disable", do_disable},     /* NAME in RINGCAST_DISABLE */
    {"patience", do_patience},   /* close=MS, open=MS of a writer, words=MS of a reader */
    {NULL, NULL},
};
