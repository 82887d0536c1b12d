/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of probes.txt: what only a device can show. A figure has no right answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>

#include "gpu/semaphore.h"
#include "tests/gpu_scenarios/world.h"
#include "tests/support/cuda_more.h"

enum { PAGE = 4096, TRIED = 65536 /* bytes of exported memory that have the pattern */ };

/* ---- Words that all processes of the scenario share ---------------------------------------------------------------
 */

static rc_cu_ptr words_address;

static rc_cu_ptr word_address(uint64_t number) {
  open_device();
  if (!words_address) {
    driver(cuda->host_register(board->words, PAGE, RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP));
    driver(cuda->host_get_device_pointer(&words_address, board->words, 0));
  }
  return words_address + number * sizeof(struct rc_semaphore);
}

void close_words(void) {
  if (words_address) driver(cuda->host_unregister(board->words));
}

static struct rc_semaphore *word(uint64_t number) { return (struct rc_semaphore *)(void *)board->words + number; }
static long do_wait_word(struct words *words) {
  return rc_semaphore_wait(cuda, stream, word_address(NUMBER(1)), NUMBER(2));
}
static long do_write_word(struct words *words) {
  return rc_semaphore_write(cuda, stream, word_address(NUMBER(1)), NUMBER(2));
}
static long do_store_word(struct words *words) { return rc_semaphore_store(word(NUMBER(1)), NUMBER(2)), 0; }
static long do_wake(struct words *words) {
  rc_semaphore_store(word(NUMBER(1)), NUMBER(3));
  while (!rc_semaphore_has_reached(word(NUMBER(2)), NUMBER(3))) sched_yield();
  return 0;
}

/* ---- Calls of the driver ------------------------------------------------------------------------------------------
 */

static rc_cu_ptr memory, from, to;
static rc_cu_stream created;
static rc_cu_event event;
static void *page;

static rc_cu_result query(void) {
  rc_cu_result result = cuda->stream_query(stream);
  return result == RC_CU_NOT_READY ? RC_CU_SUCCESS : result;
}
static rc_cu_result synchronise(void) { return cuda->stream_synchronize(stream); }
static rc_cu_result synchronise_all(void) { return rc_cuda()->ctx_synchronize(); }
static rc_cu_result allocate(void) { return cuda->mem_alloc(&memory, 4 << 20); }
static rc_cu_result give_back(void) { return cuda->mem_free(memory); }
static rc_cu_result put_on_list(void) { return cuda->host_register(page, PAGE, 0); }
static rc_cu_result take_off_list(void) { return cuda->host_unregister(page); }
static rc_cu_result create(void) { return cuda->stream_create(&created, RC_CU_STREAM_NON_BLOCKING); }
static rc_cu_result destroy(void) { return cuda->stream_destroy(created); }
static rc_cu_result copy_on_default(void) { return cuda->copy_htod(to, page, 64, NULL); }
static rc_cu_result write_word(void) { return rc_semaphore_write(cuda, stream, word_address(2), 1); }
static rc_cu_result wait_for_past(void) { return rc_semaphore_wait(cuda, stream, word_address(1), 0); }
static rc_cu_result copy_small(void) { return cuda->copy_dtod(to, from, 1024, stream); }
static rc_cu_result record(void) { return cuda->event_record(event, stream); }
static rc_cu_result is_capturing(void) {
  int unused;
  return cuda->stream_is_capturing(stream, &unused);
}
static rc_cu_result exchange_mode(void) {
  rc_cu_capture_mode mode = RC_CU_STREAM_CAPTURE_MODE_RELAXED;
  return cuda->exchange_capture_mode(&mode);
}
static rc_cu_result get_current(void) {
  rc_cu_context unused;
  return cuda->ctx_get_current(&unused);
}
static rc_cu_result ask_for_memory(void) {
  size_t unused[2];
  return cuda->mem_get_info(&unused[0], &unused[1]);
}
static rc_cu_result export(void) {
  rc_cu_ipc_handle unused;
  return cuda->ipc_get_handle(&unused, from);
}

/* What each is looked at for: `c` beside a capture, `w` beside a wait, `t` its time, `d` its time on the device too. */
static const struct call {
  const char *name, *of;
  rc_cu_result (*call)(void), (*before)(void), (*after)(void);
} calls[] = {{"write", "td", write_word, NULL, NULL},
             {"wait_for_past", "td", wait_for_past, NULL, NULL},
             {"copy_1_KiB", "td", copy_small, NULL, NULL},
             {"event_record", "td", record, NULL, NULL},
             {"is_capturing", "t", is_capturing, NULL, NULL},
             {"exchange_mode", "t", exchange_mode, NULL, NULL},
             {"get_current", "t", get_current, NULL, NULL},
             {"stream_query", "tc", query, NULL, NULL},
             {"stream_synchronize", "c", synchronise, NULL, NULL},
             {"ctx_synchronize", "c", synchronise_all, NULL, NULL},
             {"mem_get_info", "tc", ask_for_memory, NULL, NULL},
             {"mem_alloc", "cw", allocate, NULL, give_back},
             {"mem_free", "cw", give_back, allocate, NULL},
             {"host_register", "cw", put_on_list, NULL, take_off_list},
             {"host_unregister", "cw", take_off_list, put_on_list, NULL},
             {"stream_create", "cw", create, NULL, destroy},
             {"stream_destroy", "cw", destroy, create, NULL},
             {"ipc_get_handle", "w", export, NULL, NULL},
             {"copy_on_the_default_stream", "w", copy_on_default, NULL, NULL}};
enum { CALLS = sizeof calls / sizeof *calls };

static void prepare_calls(void) {
  open_device();
  page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(page != MAP_FAILED);
  from = source;
  to = target;
  driver(cuda->event_create(&event, RC_CU_EVENT_DISABLE_TIMING));
}

static void end_calls(void) {
  munmap(page, PAGE);
  driver(cuda->event_destroy(event));
}

/* Ends what the call may wait for, after a while: for a call that comes back only then. */
static struct later {
  pthread_t thread;
  _Atomic bool is_over, has_ended_it;
} later;

static void *end_wait(void *unused) {
  for (int ms = 0; ms < (is_real ? 1500 : 300) && !later.is_over; ms++) usleep(1000);
  later.has_ended_it = !later.is_over;
  rc_semaphore_store(word(0), UINT64_MAX >> 2);
  return unused;
}

static void begin_wait(void) {
  rc_semaphore_store(word(0), 0);
  driver(rc_semaphore_wait(cuda, stream, word_address(0), 1));
  later.is_over = later.has_ended_it = false;
  must(pthread_create(&later.thread, NULL, end_wait, NULL) == 0);
}

/* Whether the wait had to be ended for a call to come back. */
static bool was_held_up(void) {
  later.is_over = true;
  must(pthread_join(later.thread, NULL) == 0);
  return later.has_ended_it;
}

static long do_calls_beside_a_wait(struct words *words) {
  (void)words;
  prepare_calls();
  for (const struct call *call = calls; call < calls + CALLS; call++) {
    if (!strchr(call->of, 'w')) continue;
    if (call->before) driver(call->before());
    begin_wait();
    double begun = now_us();
    rc_cu_result result = call->call();
    note(call->name, "_us", now_us() - begun);
    note(call->name, "_waited_for_the_wait", was_held_up());
    if (result != RC_CU_SUCCESS) note_result(call->name, result);
    else if (call->after) driver(call->after());
    driver(cuda->stream_synchronize(stream));
  }
  return end_calls(), 0;
}

/* PREFIX STREAM: what a graph came to with each of the calls beside its capture. */
static long do_calls_beside_a_capture(struct words *words) {
  char name[64];
  rc_cu_stream graph = stream_of(words->at[2]);
  prepare_calls();
  for (const struct call *call = calls; call < calls + CALLS; call++) {
    if (!strchr(call->of, 'c')) continue;
    if (call->before) driver(call->before());
    driver(set_capture(graph, true));
    rc_cu_result result = call->call();
    snprintf(name, sizeof name, "%s_%s", words->at[1], call->name);
    note_result(name, set_capture(graph, false));
    if (result == RC_CU_SUCCESS && call->after) driver(call->after());
    if (result != RC_CU_SUCCESS && call->before) driver(call->call()); /* it did nothing */
  }
  return end_calls(), 0;
}

static long do_relax(struct words *words) { return (void)words, exchange_mode(); }

/* Behind a wait: the host's time for so many calls, then the device's from the store that ends the wait. */
static long do_cost_of_calls(struct words *words) {
  enum { COUNT = 200, ROUNDS = 5 };
  uint64_t turn = 0;
  (void)words;
  prepare_calls();
  for (const struct call *call = calls; call < calls + CALLS; call++) {
    rc_cu_result result = RC_CU_SUCCESS;
    for (int round = 0; round < ROUNDS && strchr(call->of, 't') && result == RC_CU_SUCCESS; round++) {
      driver(rc_semaphore_wait(cuda, stream, word_address(0), ++turn));
      double begun = now_us();
      for (int i = 0; i < COUNT && result == RC_CU_SUCCESS; i++) result = call->call();
      double host = now_us() - begun;
      begun = now_us();
      rc_semaphore_store(word(0), turn);
      driver(cuda->stream_synchronize(stream));
      if (result != RC_CU_SUCCESS) note_result(call->name, result);
      else note(call->name, "_host_us", host / COUNT);
      if (result == RC_CU_SUCCESS && strchr(call->of, 'd')) note(call->name, "_device_us", (now_us() - begun) / COUNT);
    }
  }
  return end_calls(), 0;
}

/* ---- What a pending wait holds up ---------------------------------------------------------------------------------
 */

/* N: how many streams it holds up, of so many that have a copy to do. Streams share the device's queues. */
static long do_streams_beside_a_wait(struct words *words) {
  enum { MOST = 64 };
  rc_cu_stream others[MOST];
  int count = (int)NUMBER(1), held = count;
  must(count <= MOST);
  open_device();
  for (int i = 0; i < count; i++) driver(cuda->stream_create(&others[i], RC_CU_STREAM_NON_BLOCKING));
  begin_wait();
  double begun = now_us();
  for (int i = 0; i < count; i++) driver(cuda->copy_dtod(target + 64 * (uint64_t)i, source, 64, others[i]));
  note("enqueue", "_us", now_us() - begun);
  for (int now = count; now > 0 && !later.has_ended_it; held = later.has_ended_it ? held : now) {
    now = 0;
    for (int i = 0; i < count; i++) now += cuda->stream_query(others[i]) == RC_CU_NOT_READY;
  }
  bool hung = was_held_up();
  note("held_up", "", held);
  for (int i = 0; i < count; i++) {
    driver(cuda->stream_synchronize(others[i]));
    driver(cuda->stream_destroy(others[i]));
  }
  return !is_real && hung; /* each stream of the fake is a thread */
}

static _Atomic uint64_t enqueued;
static void *fill_stream(void *context) {
  driver(cuda->ctx_push(context));
  for (uint64_t i = 1; i <= 1 << 16 && !later.has_ended_it; i++) {
    driver(rc_semaphore_write(cuda, stream, word_address(1), i));
    enqueued = i;
  }
  driver(cuda->ctx_pop((rc_cu_context[]){NULL}));
  return NULL;
}

/* After how many operations a call blocks, and whether another stream's does with it. */
static long do_operations_behind_a_wait(struct words *words) {
  rc_cu_stream other;
  rc_cu_context context;
  pthread_t thread;
  uint64_t last = 0;
  (void)words;
  word_address(0);
  driver(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING));
  driver(cuda->ctx_get_current(&context));
  begin_wait();
  must(pthread_create(&thread, NULL, fill_stream, context) == 0);
  for (double since = now_us(); now_us() - since < 200e3 && enqueued < 1 << 16;)
    if (enqueued != last) last = enqueued, since = now_us();
  note("operations", "", (double)last);
  note("a_call_blocked", "", last < 1 << 16);
  driver(rc_semaphore_write(cuda, other, word_address(2), 1));
  note("another_stream_blocked_too", "", later.has_ended_it);
  while (!later.has_ended_it) usleep(1000);
  was_held_up();
  must(pthread_join(thread, NULL) == 0);
  driver(cuda->stream_synchronize(stream));
  return cuda->stream_destroy(other);
}

/* ---- Memory of another process ------------------------------------------------------------------------------------
 */

static struct { rc_cu_ptr own, imported; } shares[8];

/* LETTER BYTES: allocates, with a pattern of its own at the beginning, and puts the handle on the board. */
static long do_export(struct words *words) {
  int which = letter(words->at[1]);
  uint8_t seed = (uint8_t)(17 * (which + 1));
  uint8_t *bytes = malloc(TRIED);
  open_device();
  rc_cu_result result = cuda->mem_alloc(&shares[which].own, NUMBER(2));
  if (result == RC_CU_SUCCESS) {
    for (int i = 0; i < TRIED; i++) bytes[i] = (uint8_t)(seed + i * 7);
    driver(cuda->copy_htod(shares[which].own, bytes, TRIED, stream));
    driver(cuda->stream_synchronize(stream));
    result = cuda->ipc_get_handle(&board->exports[which], shares[which].own);
  }
  free(bytes);
  return result;
}

#define SHARE shares[letter(words->at[1])]
static long do_unexport(struct words *words) { return cuda->mem_free(SHARE.own); }
static long do_close_import(struct words *words) { return cuda->ipc_close_handle(SHARE.imported); }
static long do_import(struct words *words) {
  return cuda->ipc_open_handle(&SHARE.imported, board->exports[letter(words->at[1])],
                               RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}
static long do_same_handle(struct words *words) {
  return memcmp(&board->exports[letter(words->at[1])], &board->exports[letter(words->at[2])], sizeof *board->exports) ==
         0;
}

/* LETTER OF: whether what was imported as the one is what was exported as the other. */
static long do_shown(struct words *words) {
  uint8_t *bytes = malloc(TRIED), seed = (uint8_t)(17 * (letter(words->at[2]) + 1));
  bool is_it = true;
  rc_cu_result result = cuda->copy_dtoh(bytes, SHARE.imported, TRIED, stream);
  if (result == RC_CU_SUCCESS) result = cuda->stream_synchronize(stream);
  for (int i = 0; i < TRIED; i++) is_it &= bytes[i] == (uint8_t)(seed + i * 7);
  free(bytes);
  return result == RC_CU_SUCCESS ? is_it : -result;
}

/* ---- The device ---------------------------------------------------------------------------------------------------
 */

/* Every attribute by its number in CUdevice_attribute; those that ringcast depends on also by name. */
static long do_attributes(struct words *words) {
  static const char *const names[160] = {
      [20] = "_compute_mode",  [41] = "_unified_addressing", [91] = "_host_pointer_of_registered_memory",
      [99] = "_host_register", [115] = "_memory_pools",      [122] = "_stream_operations_of_64_bits"};
  (void)words;
  open_device();
  for (int number = 1; number < 160; number++) {
    char text[16];
    int value;
    snprintf(text, sizeof text, "%d", number);
    if (cuda_more()->device_get_attribute(&value, (rc_cu_device_attribute)number, 0) == RC_CU_SUCCESS)
      note(text, names[number] ? names[number] : "", value);
  }
  return 0;
}

/* What the library finds of the driver. */
static long do_driver(struct words *words) {
  double begun = now_us();
  (void)words;
  open_device();
  note("start", "_us", now_us() - begun);
  note("version", "", rc_cuda_status()->version);
  note("devices", "", rc_cuda_status()->devices);
  return 0;
}

static long do_free_mib(struct words *words) {
  size_t now_free, total;
  driver(cuda->mem_get_info(&now_free, &total));
  return note(words->at[1], "", (double)(now_free >> 20)), 0;
}

/* A third of the device's memory: it takes the driver a while to give that back. */
static long do_much(struct words *words) {
  size_t now_free, total;
  rc_cu_ptr much;
  (void)words;
  driver(cuda->mem_get_info(&now_free, &total));
  return cuda->mem_alloc(&much, is_real ? now_free / 3 : 64 << 20);
}

const struct verb probe_verbs[] = {
    {"wait-word", do_wait_word},   /* N VALUE: the stream */
    {"write-word", do_write_word}, /* N VALUE: the stream */
    {"store-word", do_store_word}, /* N VALUE: the host */
    {"wake", do_wake},             /* N M VALUE: stores the one, until the other has come */
    {"calls-beside-a-wait", do_calls_beside_a_wait},
    {"calls-beside-a-capture", do_calls_beside_a_capture}, /* PREFIX STREAM */
    {"relax", do_relax},                                   /* the thread's capture mode */
    {"cost-of-calls", do_cost_of_calls},
    {"streams-beside-a-wait", do_streams_beside_a_wait}, /* N */
    {"operations-behind-a-wait", do_operations_behind_a_wait},
    {"export", do_export},     /* LETTER BYTES: memory, for any process of the scenario */
    {"unexport", do_unexport}, /* LETTER: frees it */
    {"import", do_import},     /* LETTER */
    {"close-import", do_close_import},
    {"same-handle", do_same_handle}, /* LETTER LETTER = 1 */
    {"shown", do_shown},             /* LETTER OF = 1 */
    {"attributes", do_attributes},
    {"driver", do_driver},
    {"free-mib", do_free_mib}, /* NAME: a figure */
    {"much", do_much},
    {NULL, NULL},
};
