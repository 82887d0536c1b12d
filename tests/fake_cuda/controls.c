/* SPDX-License-Identifier: Apache-2.0 */
/* What each call begins with: counters and faults. And what a test can ask. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

enum { MOST_FAULTS = 32, ALL = FAKE_FUNCTIONS, NONE = -1 };

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static const char *const names[] = {
#define NAME(field, name, symbol, arguments) #name,
    FAKE_CUDA_FUNCTIONS(NAME)
#undef NAME
};

static struct fault {
  int function; /* or ALL */
  bool each;
  long left; /* calls until the one that fails */
  rc_cu_result result;
  bool is_own; /* of the thread that has set it alone */
  pthread_t setter;
} faults[MOST_FAULTS];
static size_t fault_count;
static bool faults_read;
static int failed = NONE; /* the function whose call was the last to fail by a fault */

static int find(const char *name, size_t length) {
  if (length == 1 && *name == '*') return ALL;
  for (int i = 0; i < FAKE_FUNCTIONS; i++)
    if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return i;
  return NONE;
}

const char *fake_setting(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

bool fake_is_listed(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; at && (at = strstr(at, name)); at += length)
    if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return true;
  return false;
}

/* ---- Faults ---------------------------------------------------------------------------------- */

static void add_fault(struct fault fault) {
  if (fault.function == NONE || fault_count == MOST_FAULTS) {
    fprintf(stderr,
            "fake CUDA: a fault for a function that it does not have, or too many faults\n");
    abort();
  }
  fault.each = fault.left == 0;
  fault.setter = pthread_self();
  faults[fault_count++] = fault;
}

/* Once, at the first call of all. */
void fake_read_faults(void) {
  const char *text = fake_setting("FAKE_CUDA_FAIL");
  if (faults_read) return;
  faults_read = true;
  while (text && *text) {
    char *rest;
    size_t length = strcspn(text, ":");
    long call = text[length] == ':' ? strtol(text + length + 1, &rest, 10) : 1;
    long result = text[length] == ':' && *rest == ':' ? strtol(rest + 1, &rest, 10) : 999;
    add_fault((struct fault){
        .function = find(text, length), .left = call, .result = (rc_cu_result)result});
    text += strcspn(text, ",");
    text += *text == ',';
  }
}

static bool is_meant(const struct fault *fault, enum fake_function function) {
  if (fault->is_own && !pthread_equal(fault->setter, pthread_self())) return false;
  return fault->function == ALL ? function != FAKE_exchange_capture_mode
                                : fault->function == (int)function;
}

static rc_cu_result fault_of(enum fake_function function) {
  rc_cu_result result = RC_CU_SUCCESS;
  for (size_t i = 0; i < fault_count; i++)
    if (is_meant(&faults[i], function) && (faults[i].each || --faults[i].left == 0) &&
        result == RC_CU_SUCCESS)
      result = faults[i].result;
  return result;
}

static int held = NONE;
static long held_call;

static void wait_if_held(enum fake_function function) {
  bool is_it = held == (int)function && fake.calls[function] == held_call;
  while (is_it && held != NONE) pthread_cond_wait(&fake.changed, &fake.lock);
}

void fake_cuda_hold(const char *name, long nth) {
  pthread_mutex_lock(&fake.lock);
  held = name ? find(name, strlen(name)) : NONE;
  if (held != NONE) held_call = fake.calls[held] + nth;
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
}

_Thread_local long fake_own_waits;

/* In a child of who called cuInit the lock may be held for ever, and nothing of what is known is
 * true. */
rc_cu_result fake_begin(enum fake_function function, enum fake_need need,
                        struct rc_cu_context **out) {
  struct rc_cu_context *context = NULL;
  rc_cu_result result = RC_CU_SUCCESS, fault;
  if (fake.pid != 0 && fake.pid != getpid()) return RC_CU_NOT_INITIALIZED;
  pthread_mutex_lock(&fake.lock);
  fake_own_waits += function == FAKE_stream_synchronize || function == FAKE_ctx_synchronize ||
                    function == FAKE_mem_alloc || function == FAKE_mem_free;
  fake_read_faults();
  fake.calls[function]++;
  fake.all_calls += function != FAKE_exchange_capture_mode;
  fault = fault_of(function); /* counts calls without a context too */
  wait_if_held(function);
  if (need >= FAKE_READY && fake.pid == 0) return fake_end(RC_CU_NOT_INITIALIZED);
  if (need >= FAKE_CURRENT) {
    context = fake_current();
    if (!context || context->references == 0) return fake_end(RC_CU_INVALID_CONTEXT);
    while (context->is_full && !pthread_equal(context->filler, pthread_self()))
      pthread_cond_wait(&fake.changed, &fake.lock);
    if (need == FAKE_CURRENT) result = context->broken;
  }
  if (result == RC_CU_SUCCESS && fault != RC_CU_SUCCESS) {
    result = fault;
    failed = (int)function;
    if (result == RC_CU_ILLEGAL_ADDRESS)
      fake_break_context(fake_current()); /* which no call would survive */
  }
  if (result == RC_CU_SUCCESS) result = fake_check_captures(function);
  if (result != RC_CU_SUCCESS) return fake_end(result);
  if (out) *out = context;
  return RC_CU_SUCCESS;
}

rc_cu_result fake_end(rc_cu_result result) {
  pthread_mutex_unlock(&fake.lock);
  return result;
}

/* ---- Finding functions ----------------------------------------------------------------------- */

static const struct {
  const char *name;
  rc_cu_result (*function)(void);
} functions[] = {
#define FUNCTION(field, name, symbol, arguments) {#name, (rc_cu_result(*)(void))(void *)symbol},
    FAKE_CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

FAKE_API rc_cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                          int *why);
FAKE_API rc_cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                          int *why) {
  const char *without = fake_setting("FAKE_CUDA_WITHOUT");
  if (version < 12000 || flags != RC_CU_GET_PROC_ADDRESS_LEGACY_STREAM) return RC_CU_INVALID_VALUE;
  *out = NULL;
  int found = find(name, strlen(name));
  if (found < 0 || found == ALL || fake_is_listed(without, name)) {
    if (why) *why = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    return RC_CU_NOT_FOUND;
  }
  if (why) *why = 0;
  memcpy(out, &functions[found].function, sizeof *out);
  return RC_CU_SUCCESS;
}

/* ---- What a test can ask --------------------------------------------------------------------- */

long fake_cuda_calls(const char *name) {
  int found = find(name, strlen(name));
  pthread_mutex_lock(&fake.lock);
  long calls = strcmp(name, "fake_host_waits") == 0  ? fake.host_waits
               : strcmp(name, "fake_own_waits") == 0 ? fake_own_waits
               : found == NONE                       ? -1
               : found == ALL                        ? fake.all_calls
                                                     : fake.calls[found];
  pthread_mutex_unlock(&fake.lock);
  return calls;
}

static long count_memory(enum fake_kind kind) {
  long count = 0;
  for (struct fake_memory *memory = fake.memory; memory; memory = memory->next)
    count += memory->kind == kind;
  return count;
}

static long count_bytes(void) {
  size_t bytes = 0;
  for (struct fake_memory *memory = fake.memory; memory; memory = memory->next)
    if (memory->kind == FAKE_ALLOCATED) bytes += memory->bytes;
  return (long)bytes;
}

long fake_cuda_live(const char *what) {
  long contexts = 0, streams = 0, queued = 0, found = -1;
  pthread_mutex_lock(&fake.lock);
  for (int i = 0; i < MOST_DEVICES; i++) {
    contexts += fake.contexts[i].references > 0;
    for (struct rc_cu_stream *stream = fake.contexts[i].streams; stream; stream = stream->next) {
      streams += !stream->destroyed && stream != fake.contexts[i].legacy;
      queued += (long)(stream->queued - stream->done);
    }
  }
  const struct {
    const char *name;
    long count;
  } live[] = {{"allocations", count_memory(FAKE_ALLOCATED)},
              {"imports", count_memory(FAKE_IMPORTED)},
              {"registered", count_memory(FAKE_REGISTERED)},
              {"bytes", count_bytes()},
              {"streams", streams},
              {"queued", queued},
              {"contexts", contexts},
              {"events", fake_count_events()},
              {"contexts made", fake.contexts_made},
              {"lost", fake.lost},
              {"spoilt", fake.spoilt},
              {"strays", fake.strays}};
  for (size_t i = 0; i < sizeof live / sizeof *live; i++)
    if (strcmp(live[i].name, what) == 0) found = live[i].count;
  pthread_mutex_unlock(&fake.lock);
  return found;
}

void fake_cuda_fault(const char *name, long nth, rc_cu_result result) {
  pthread_mutex_lock(&fake.lock);
  fake_read_faults();
  if (!name) {
    fault_count = 0;
  } else {
    add_fault((struct fault){
        .function = find(name, strlen(name)), .left = nth, .result = result, .is_own = nth > 0});
  }
  pthread_mutex_unlock(&fake.lock);
}

const char *fake_cuda_failed(void) {
  pthread_mutex_lock(&fake.lock);
  const char *name = failed == NONE ? "" : names[failed];
  pthread_mutex_unlock(&fake.lock);
  return name;
}

void fake_cuda_break_context(rc_cu_context context) {
  pthread_mutex_lock(&fake.lock);
  fake_break_context(context ? context : fake_current());
  pthread_mutex_unlock(&fake.lock);
}
