/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs about the device: streams, captures, calls that fail; and about what the environment says. */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <unistd.h>
#include "tests/gpu_scenarios/world.h"

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

static rc_cu_stream stream_of(const char *name) {
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
static long do_go(struct words *words) { return (void)words, rc_store_release(turn, *turn + 1), 0; }
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

static long do_capture(struct words *words) {
  return fake_cuda()->capture(stream_of(words->at[1]), strcmp(words->at[2], "on") == 0);
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

/* The caller's own work on the source: other bytes are there now. */
static long do_scribble(struct words *words) {
  (void)words;
  return cuda->copy_dtod(source, source + SOURCE_BYTES / 2, SOURCE_BYTES / 2, stream);
}

/* ---- Faults ----------------------------------------------------------------------------------------------------- */

static long do_fail(struct words *words) {
  return fake_cuda()->fault(words->at[1], (long)NUMBER(2), (rc_cu_result)NUMBER(3)), 0;
}
static long do_fail_elsewhere(struct words *words) {
  return fake_cuda()->fault(words->at[1], -(long)NUMBER(2), (rc_cu_result)NUMBER(3)), 0;
}
static long do_no_fail(struct words *words) {
  if (!is_real) fake_cuda()->fault(NULL, 0, 0);
  return (void)words, 0;
}
static long do_failed(struct words *words) { return strcmp(fake_cuda()->failed(), words->at[1]); }
static long do_break(struct words *words) {
  return (void)words, is_abandoned = true, fake_cuda()->break_context(context), 0;
}

static bool leaves_all;
static long do_abandon(struct words *words) {
  leaves_all = has_word(words, "all");
  return is_abandoned = true, 0;
}

static long do_hold_call(struct words *words) { return fake_cuda()->hold(words->at[1], (long)NUMBER(2)), 0; }
static long do_go_call(struct words *words) { return (void)words, fake_cuda()->hold(NULL, 0), 0; }

/* As cudaDeviceReset does. */
static long do_end_context(struct words *words) {
  (void)words;
  is_abandoned = true;
  driver(cuda->ctx_pop(&context));
  context = NULL;
  while (cuda->primary_release(0) == RC_CU_SUCCESS) continue;
  return 0;
}

/* ---- Settings --------------------------------------------------------------------------------------------------- */

static long do_env(struct words *words) { return setenv(words->at[1], words->at[2], 1); }
/* What the whole run is forced to do without stays switched off. */
static long do_disable(struct words *words) {
  const char *before = getenv("RINGCAST_DISABLE");
  char list[256];
  snprintf(list, sizeof list, "%s,%s", before ? before : "", words->at[1]);
  return setenv("RINGCAST_DISABLE", list, 1);
}

/* How many descriptors may be open; "back": as many as before. */
static long do_descriptors(struct words *words) {
  static struct rlimit before;
  struct rlimit limit;
  must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (strcmp(words->at[1], "back") == 0) return setrlimit(RLIMIT_NOFILE, &before);
  before = limit;
  limit.rlim_cur = NUMBER(1);
  return setrlimit(RLIMIT_NOFILE, &limit);
}

/* Milliseconds that the library waits for a device that does not come. */
static long do_patience(struct words *words) {
  if (option(words, "close")) rc_gpu_close_ns = (int64_t)number_of(words, "close", 0) * 1000000;
  if (option(words, "words")) rc_words_patience_ns = (int64_t)number_of(words, "words", 0) * 1000000;
  if (option(words, "open")) rc_gpu_busy_ns = (int64_t)number_of(words, "open", 0) * 1000000;
  return 0;
}

static long do_bare(struct words *words) {
  driver(cuda->ctx_pop(&context));
  memmove(words->at, words->at + 1, sizeof words->at - sizeof *words->at);
  words->count--;
  long rc = do_step(words);
  driver(cuda->ctx_push(context));
  return rc;
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
  driver(cuda->ctx_pop(&context));
  driver(cuda->primary_release(0));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !is_real; i++)
    while (tidy(), fake_cuda()->live(kinds[i]) != 0) usleep(200);
}

void finish(void) {
  if (!cuda && !sides[0].writer && !sides[0].reader) return;
  do_no_fail(NULL);
  if (turn) do_go(NULL);
  for (side = sides; side < sides + HANDLES; side++) close_reader(), close_writer();
  if (leaves_all) _exit(0); /* also its threads */
  if (cuda && !is_abandoned) close_device();
  if (cuda && is_abandoned && context) {
    driver(cuda->ctx_pop(&context));
    driver(cuda->primary_release(0));
  }
  while (cuda && is_abandoned && fake_cuda()->live("contexts") != 0) usleep(200), tidy();
  free((void *)turn);
}

const struct verb device_verbs[] = {
    {"device", do_device},                 /* opens it: `writer` and `reader` do, too */
    {"stream", do_stream},                 /* NAME: makes one beside `main` */
    {"destroy", do_destroy},               /* NAME */
    {"on", do_on},                         /* NAME: what follows is on that stream; also `legacy`, `per-thread` */
    {"hold", do_hold},                     /* NAME: the stream does nothing more ... */
    {"go", do_go},                         /* ... until then */
    {"sync", do_sync},                     /* NAME */
    {"query", do_query},                   /* NAME = 600: it has something to do still */
    {"capture", do_capture},               /* NAME on|off */
    {"mode", do_mode},                     /* the thread's capture mode */
    {"scribble", do_scribble},             /* over half of the source, in the order of the stream */
    {"holds", do_holds},                   /* AT BYTES [to=N]: what was copied there is the source from AT on */
    {"fail", do_fail},                     /* CALL NTH RESULT: as fault() of fake_cuda.h */
    {"fail-elsewhere", do_fail_elsewhere}, /* the same of a call of another thread */
    {"no-fail", do_no_fail},
    {"failed", do_failed},           /* CALL: it was the last that was made to fail */
    {"break", do_break},             /* the context */
    {"abandon", do_abandon},         /* at the end the context alone is given back, or nothing with `all` */
    {"hold-call", do_hold_call},     /* CALL NTH: it waits ... */
    {"go-call", do_go_call},         /* ... until then */
    {"end-context", do_end_context}, /* as cudaDeviceReset does */
    {"env", do_env},                 /* NAME VALUE */
    {"disable", do_disable},         /* NAME in RINGCAST_DISABLE */
    {"descriptors", do_descriptors}, /* N, then `back` */
    {"patience", do_patience},       /* close=MS, open=MS of a writer, words=MS of a reader */
    {"bare", do_bare},               /* STEP: with no context that is current */
    {NULL, NULL},
};
