/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: a thread each, and what it has to do, in order. The legacy stream waits for what is
 * queued in the blocking ones, and they for what is queued in it.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/fake_cuda/fake.h"

#define LOOK_NS 20000 /* how often a waiting stream looks */
enum { STREAM_DEPTH = 1024 };

enum kind { COPY, WRITE_WORD, WAIT_WORD, SPIN, FAULT, FREE, MARK };

/* One side of a copy: memory of a device, of the host, or bytes that were read when the call was
 * made. */
struct side {
  rc_cu_ptr device;
  uint8_t *host;
  bool registered; /* host memory that must be so still */
};

struct fake_operation {
  struct fake_operation *next;
  enum kind kind;
  struct side to, from;
  size_t bytes;
  void *staged;
  rc_cu_ptr word;
  uint64_t value; /* or the turns of a spin */
  struct fake_memory *memory;
  struct after {
    struct rc_cu_stream *stream;
    uint64_t done;
  } * after; /* what other streams have to have done, up to one without a stream */
};

/* ---- Doing ----------------------------------------------------------------------------------- */

static bool is_dropped(const struct rc_cu_stream *stream) {
  return stream->context->broken != RC_CU_SUCCESS || stream->context->references == 0;
}

/* Gives the lock up. */
static void pause_for(long nanoseconds) {
  pthread_mutex_unlock(&fake.lock);
  nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
  pthread_mutex_lock(&fake.lock);
}

static void delay(struct rc_cu_stream *stream) {
  if (fake.settings.jitter == 0) return;
  uint64_t mixed = fake.settings.jitter + stream->number * 0x9e3779b97f4a7c15ull + stream->done;
  mixed *= 0xbf58476d1ce4e5b9ull;
  mixed ^= mixed >> 29;
  if (mixed % 3 != 0) pause_for((long)(mixed % 300000));
}

static bool has_come(const struct fake_operation *operation, uint8_t *word) {
  return (int64_t)(atomic_load_explicit((_Atomic uint64_t *)word, memory_order_acquire) -
                   operation->value) >= 0;
}

static bool wait_for_word(struct rc_cu_stream *stream, const struct fake_operation *operation) {
  struct fake_memory *memory;
  for (; !is_dropped(stream); pause_for(LOOK_NS)) {
    uint8_t *word = fake_resolve(operation->word, sizeof operation->value, &memory);
    if (!word) return false;
    if (fake.settings.stuck_words ? stream->destroyed : has_come(operation, word)) break;
  }
  return true;
}

static bool spin(struct rc_cu_stream *stream, const struct fake_operation *operation) {
  struct fake_memory *memory;
  for (uint64_t turn = 0; turn < operation->value && !is_dropped(stream); turn++) {
    uint8_t *word = operation->word ? fake_resolve(operation->word, 4, &memory) : NULL;
    if (operation->word && !word) return false;
    if (word && atomic_load_explicit((_Atomic uint32_t *)word, memory_order_acquire) != 0) break;
    pause_for(LOOK_NS);
  }
  return true;
}

static bool write_word(const struct fake_operation *operation) {
  struct fake_memory *memory;
  uint8_t *word = fake_resolve(operation->word, sizeof operation->value, &memory);
  if (!word) return false;
  atomic_store_explicit((_Atomic uint64_t *)word, operation->value, memory_order_release);
  return true;
}

/* Where it lies now, pinned, or NULL. */
static uint8_t *pin(const struct side *side, size_t bytes, struct fake_memory **memory) {
  bool outside = false;
  uint8_t *host = side->host;
  *memory = NULL;
  if (!host) {
    host = fake_resolve(side->device, bytes, memory);
  } else if (side->registered) {
    *memory = fake_host_memory(host, bytes, &outside);
    if (!*memory || outside) return NULL;
  }
  if (host && *memory) (*memory)->pins++;
  return host;
}

static bool copy(const struct fake_operation *operation) {
  struct fake_memory *to_memory, *from_memory = NULL;
  const uint8_t *from = NULL;
  uint8_t *to = pin(&operation->to, operation->bytes, &to_memory);
  if (to) from = pin(&operation->from, operation->bytes, &from_memory);
  bool may = to && from;
  if (may) {
    pthread_mutex_unlock(&fake.lock);
    memmove(to, from, operation->bytes);
    pthread_mutex_lock(&fake.lock);
  }
  if (to && to_memory) to_memory->pins--;
  if (from && from_memory) from_memory->pins--;
  return may;
}

static bool perform(struct rc_cu_stream *stream, const struct fake_operation *operation) {
  switch (operation->kind) {
  case COPY: return copy(operation);
  case WRITE_WORD: return write_word(operation);
  case WAIT_WORD: return wait_for_word(stream, operation);
  case SPIN: return spin(stream, operation);
  case FREE:
    fake_overwrite(operation->memory);
    fake_memory_drop(operation->memory);
    return true;
  case MARK: return true;
  case FAULT: break;
  }
  return false;
}

static void wait_for_others(struct rc_cu_stream *stream, const struct fake_operation *operation) {
  for (const struct after *after = operation->after; after && after->stream; after++)
    while (after->stream->done < after->done && !is_dropped(stream))
      pthread_cond_wait(&fake.changed, &fake.lock);
}

static void discard(struct fake_operation *operation) {
  free(operation->staged);
  free(operation->after);
  free(operation);
}

static void *work(void *context) {
  struct rc_cu_stream *stream = context;
  pthread_mutex_lock(&fake.lock);
  for (;;) {
    while (!stream->first && !stream->destroyed && stream->context->references > 0)
      pthread_cond_wait(&fake.changed, &fake.lock);
    struct fake_operation *operation = stream->first;
    if (!operation) break;
    wait_for_others(stream, operation);
    if (!is_dropped(stream)) delay(stream);
    bool performs = !is_dropped(stream) || operation->kind == FREE;
    if (performs && !perform(stream, operation)) fake_break_context(stream->context);
    stream->first = operation->next;
    if (!stream->first) stream->last = &stream->first;
    discard(operation);
    stream->done++;
    pthread_cond_broadcast(&fake.changed);
  }
  pthread_mutex_unlock(&fake.lock);
  return NULL;
}

/* ---- Streams --------------------------------------------------------------------------------- */

/* A signal of the program is not for these threads. */
static bool start_thread(struct rc_cu_stream *stream) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  stream->started = pthread_create(&stream->thread, NULL, work, stream) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return stream->started;
}

rc_cu_result fake_stream_make(struct rc_cu_context *context, bool blocking,
                              struct rc_cu_stream **out) {
  static unsigned numbers;
  struct rc_cu_stream *stream = calloc(1, sizeof *stream);
  if (!stream) return RC_CU_OUT_OF_MEMORY;
  stream->context = context;
  stream->blocking = blocking;
  stream->number = ++numbers;
  stream->last = &stream->first;
  stream->next = context->streams;
  context->streams = stream;
  *out = stream;
  return RC_CU_SUCCESS;
}

/* NULL and 1 are the legacy stream of the context. A thread's own default stream (2) does not
 * exist. */
struct rc_cu_stream *fake_stream_find(struct rc_cu_context *context, rc_cu_stream stream) {
  if ((uintptr_t)stream <= 1) return context->legacy;
  struct rc_cu_stream *found = context->streams;
  while (found && found != stream) found = found->next;
  fake.strays += found && found->destroyed;
  return found && !found->destroyed ? found : NULL;
}

static void wait_for(const struct rc_cu_stream *stream, uint64_t done) {
  while (stream->done < done) pthread_cond_wait(&fake.changed, &fake.lock);
}

void fake_streams_wait(struct rc_cu_context *context) {
  for (struct rc_cu_stream *stream = context->streams; stream; stream = stream->next)
    wait_for(stream, stream->queued);
}

void fake_streams_end(struct rc_cu_context *context) {
  struct rc_cu_stream *streams = context->streams;
  pthread_cond_broadcast(&fake.changed);
  for (struct rc_cu_stream *stream = streams, *next; stream; stream = next) {
    next = stream->next;
    fake.lost += !stream->destroyed && stream != context->legacy;
    pthread_mutex_unlock(&fake.lock);
    if (stream->started) pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&fake.lock);
  }
  context->streams = context->legacy = NULL;
  for (struct rc_cu_stream *stream = streams, *next; stream; stream = next) {
    next = stream->next;
    free(stream);
  }
}

static bool share_a_queue(const struct rc_cu_stream *one, const struct rc_cu_stream *other) {
  return fake.settings.queues > 0 &&
         one->number % fake.settings.queues == other->number % fake.settings.queues;
}

/* What must be done before this: of all blocking streams for the legacy one, else of that; of those
 * that share its queue; and `done` of `before`, if that has a stream. */
static struct after *list_others(struct rc_cu_stream *stream, struct after before) {
  struct rc_cu_context *context = stream->context;
  size_t count = 2; /* `before`, and the end */
  for (struct rc_cu_stream *other = context->streams; other; other = other->next) count++;
  struct after *after = calloc(count, sizeof *after);
  if (!after) abort();
  count = 0;
  for (struct rc_cu_stream *other = context->streams; other; other = other->next) {
    bool blocks = stream->blocking && other->blocking &&
                  (stream == context->legacy || other == context->legacy);
    bool matters = other != stream && (blocks || share_a_queue(stream, other));
    if (matters && other->done < other->queued)
      after[count++] = (struct after){other, other->queued};
  }
  after[count] = before;
  return after;
}

static void wait_for_room(struct rc_cu_stream *stream) {
  struct rc_cu_context *context = stream->context;
  context->filler = pthread_self();
  context->is_full = true;
  while (stream->queued - stream->done >= STREAM_DEPTH && !is_dropped(stream))
    pthread_cond_wait(&fake.changed, &fake.lock);
  context->is_full = false;
  pthread_cond_broadcast(&fake.changed);
}

static rc_cu_result enqueue_after(struct rc_cu_stream *stream, struct fake_operation operation,
                                  struct after before) {
  wait_for_room(stream);
  if (!stream->started && !start_thread(stream)) {
    free(operation.staged);
    return RC_CU_OUT_OF_MEMORY;
  }
  struct fake_operation *added = malloc(sizeof *added);
  if (!added) abort();
  *added = operation;
  added->after = list_others(stream, before);
  *stream->last = added;
  stream->last = &added->next;
  stream->queued++;
  pthread_cond_broadcast(&fake.changed);
  return RC_CU_SUCCESS;
}

static rc_cu_result enqueue(struct rc_cu_stream *stream, struct fake_operation operation) {
  return enqueue_after(stream, operation, (struct after){0});
}

rc_cu_result fake_free_in_order(struct rc_cu_stream *stream, struct fake_memory *memory) {
  return enqueue(stream, (struct fake_operation){.kind = FREE, .memory = memory});
}

rc_cu_result cuStreamCreate(rc_cu_stream *out, unsigned flags) {
  BEGIN(stream_create, FAKE_CURRENT);
  if (flags > RC_CU_STREAM_NON_BLOCKING) return fake_end(RC_CU_INVALID_VALUE);
  return fake_end(fake_stream_make(context, flags == 0, out));
}

/* Does not wait: what it has to do goes on, and the thread ends after it. */
rc_cu_result cuStreamDestroy_v2(rc_cu_stream stream) {
  BEGIN(stream_destroy, FAKE_GIVES_BACK);
  struct rc_cu_stream *found = fake_stream_find(context, stream);
  if (!found || found == context->legacy) return fake_end(RC_CU_INVALID_HANDLE);
  found->destroyed = true;
  pthread_cond_broadcast(&fake.changed);
  return fake_end(context->broken);
}

/* Begins a call that adds to what a stream has to do, or asks for it. */
static rc_cu_result begin_work(enum fake_function function, rc_cu_stream stream,
                               struct rc_cu_stream **out) {
  struct rc_cu_context *context;
  rc_cu_result result = fake_begin(function, FAKE_CURRENT, &context);
  if (result != RC_CU_SUCCESS) return result;
  *out = fake_stream_find(context, stream);
  result = *out ? fake_check_work(*out) : RC_CU_INVALID_HANDLE;
  return result == RC_CU_SUCCESS ? RC_CU_SUCCESS : fake_end(result);
}

#define BEGIN_WORK(function)                                         \
  struct rc_cu_stream *found;                                        \
  rc_cu_result result = begin_work(FAKE_##function, stream, &found); \
  if (result != RC_CU_SUCCESS) return result

rc_cu_result cuStreamSynchronize(rc_cu_stream stream) {
  BEGIN_WORK(stream_synchronize);
  wait_for(found, found->queued);
  return fake_end(fake_current()->broken);
}

rc_cu_result cuStreamQuery(rc_cu_stream stream) {
  BEGIN_WORK(stream_query);
  return fake_end(found->done < found->queued ? RC_CU_NOT_READY : RC_CU_SUCCESS);
}

/* ---- Copies ---------------------------------------------------------------------------------- */

rc_cu_result cuMemcpyDtoDAsync_v2(rc_cu_ptr to, rc_cu_ptr from, size_t bytes, rc_cu_stream stream) {
  BEGIN_WORK(copy_dtod);
  if (bytes == 0) return fake_end(RC_CU_SUCCESS);
  struct fake_operation operation = {
      .kind = COPY, .to.device = to, .from.device = from, .bytes = bytes};
  return fake_end(enqueue(found, operation));
}

rc_cu_result cuMemcpyHtoDAsync_v2(rc_cu_ptr to, const void *from, size_t bytes,
                                  rc_cu_stream stream) {
  bool outside;
  BEGIN_WORK(copy_htod);
  if (bytes == 0) return fake_end(RC_CU_SUCCESS);
  uint8_t *host = (uint8_t *)(uintptr_t)from;
  struct fake_operation operation = {
      .kind = COPY, .to.device = to, .from.host = host, .bytes = bytes};
  operation.from.registered = fake_host_memory(from, bytes, &outside);
  if (outside) return fake_end(RC_CU_INVALID_VALUE);
  if (!operation.from.registered) {
    operation.staged = malloc(bytes);
    if (!operation.staged) return fake_end(RC_CU_OUT_OF_MEMORY);
    operation.from.host = memcpy(operation.staged, from, bytes);
  }
  return fake_end(enqueue(found, operation));
}

rc_cu_result cuMemcpyDtoHAsync_v2(void *to, rc_cu_ptr from, size_t bytes, rc_cu_stream stream) {
  bool outside;
  BEGIN_WORK(copy_dtoh);
  if (bytes == 0) return fake_end(RC_CU_SUCCESS);
  struct fake_operation operation = {
      .kind = COPY, .to.host = to, .from.device = from, .bytes = bytes};
  struct fake_memory *memory = fake_host_memory(to, bytes, &outside);
  operation.to.registered = memory != NULL;
  if (outside) return fake_end(RC_CU_INVALID_VALUE);
  result = enqueue(found, operation);
  if (result != RC_CU_SUCCESS || memory) return fake_end(result);
  fake.host_waits++;
  fake_own_waits++;
  wait_for(found, found->queued);
  return fake_end(fake_current()->broken);
}

/* ---- Words ----------------------------------------------------------------------------------- */

static rc_cu_result add_word(enum fake_function function, rc_cu_stream stream, enum kind kind,
                             rc_cu_ptr address, uint64_t value, unsigned flags) {
  struct rc_cu_stream *found;
  rc_cu_result result = begin_work(function, stream, &found);
  if (result != RC_CU_SUCCESS) return result;
  if (flags != 0 || address % sizeof value != 0) return fake_end(RC_CU_INVALID_VALUE);
  struct fake_operation operation = {.kind = kind, .word = address, .value = value};
  return fake_end(enqueue(found, operation));
}

rc_cu_result cuStreamWriteValue64_v2(rc_cu_stream stream, rc_cu_ptr address, uint64_t value,
                                     unsigned flags) {
  return add_word(FAKE_write_value64, stream, WRITE_WORD, address, value, flags);
}

rc_cu_result cuStreamWaitValue64_v2(rc_cu_stream stream, rc_cu_ptr address, uint64_t value,
                                    unsigned flags) {
  return add_word(FAKE_wait_value64, stream, WAIT_WORD, address, value, flags);
}

/* ---- Events ---------------------------------------------------------------------------------- */

struct rc_cu_event {
  struct after recorded;
  struct rc_cu_event *next;
};

rc_cu_result cuEventCreate(rc_cu_event *out, unsigned flags) {
  BEGIN(event_create, FAKE_CURRENT);
  if (flags != RC_CU_EVENT_DISABLE_TIMING) return fake_end(RC_CU_INVALID_VALUE);
  rc_cu_event event = calloc(1, sizeof *event);
  if (!event) return fake_end(RC_CU_OUT_OF_MEMORY);
  event->next = fake.events;
  fake.events = *out = event;
  return fake_end(RC_CU_SUCCESS);
}

long fake_count_events(void) {
  long count = 0;
  for (const struct rc_cu_event *event = fake.events; event; event = event->next) count++;
  return count;
}

rc_cu_result cuEventRecord(rc_cu_event event, rc_cu_stream stream) {
  BEGIN_WORK(event_record);
  result = enqueue(found, (struct fake_operation){.kind = MARK});
  event->recorded = (struct after){found, found->queued};
  return fake_end(result);
}

rc_cu_result cuStreamWaitEvent(rc_cu_stream stream, rc_cu_event event, unsigned flags) {
  BEGIN_WORK(stream_wait_event);
  if (flags != 0) return fake_end(RC_CU_INVALID_VALUE);
  return fake_end(enqueue_after(found, (struct fake_operation){.kind = MARK}, event->recorded));
}

rc_cu_result cuEventQuery(rc_cu_event event) {
  BEGIN(event_query, FAKE_CURRENT);
  struct after recorded = event->recorded;
  bool is_over = !recorded.stream || recorded.stream->done >= recorded.done;
  return fake_end(is_over ? RC_CU_SUCCESS : RC_CU_NOT_READY);
}

/* What waits for it goes on waiting. */
rc_cu_result cuEventDestroy_v2(rc_cu_event event) {
  BEGIN(event_destroy, FAKE_GIVES_BACK);
  rc_cu_event *at = &fake.events;
  while (*at && *at != event) at = &(*at)->next;
  if (!*at) return fake_end(RC_CU_INVALID_HANDLE);
  *at = event->next;
  free(event);
  return fake_end(RC_CU_SUCCESS);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

rc_cu_result cuLaunchKernel(rc_cu_function function, unsigned grid_x, unsigned grid_y,
                            unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, rc_cu_stream stream, void **arguments,
                            void **extra) {
  BEGIN_WORK(launch_kernel);
  bool sound = grid_x && grid_y && grid_z && block_x && block_y && block_z && shared_bytes == 0 &&
               arguments && !extra;
  if ((void *)function == &fake_fault)
    return fake_end(enqueue(found, (struct fake_operation){.kind = FAULT}));
  if ((void *)function != &fake_kernel) return fake_end(RC_CU_INVALID_HANDLE);
  if (!sound) return fake_end(RC_CU_INVALID_VALUE);
  struct fake_operation operation = {.kind = SPIN};
  memcpy(&operation.word, arguments[0], sizeof operation.word);
  memcpy(&operation.value, arguments[1], sizeof operation.value);
  return fake_end(enqueue(found, operation));
}
