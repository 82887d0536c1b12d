/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the fake driver share. One lock for all that they know, and one condition that
 * is signalled at each change: it need not be fast. Copies are made without the lock, by threads
 * that have pinned what they copy.
 */
#ifndef FAKE_CUDA_FAKE_H
#define FAKE_CUDA_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/fake_cuda/fake_cuda.h"

#define FAKE_API __attribute__((visibility("default")))

/* The functions, by the name that is in driver.h. */
#define FAKE_PROTOTYPE(field, name, symbol, arguments) FAKE_API rc_cu_result symbol arguments;
FAKE_CUDA_FUNCTIONS(FAKE_PROTOTYPE)
#undef FAKE_PROTOTYPE

enum fake_function {
#define FAKE_NUMBER(field, name, symbol, arguments) FAKE_##field,
  FAKE_CUDA_FUNCTIONS(FAKE_NUMBER)
#undef FAKE_NUMBER
      FAKE_FUNCTIONS
};

enum { MOST_DEVICES = 8 };

/* Bits of an address that no host has: they tell memory of a device, and registered memory as a
 * device sees it. */
#define FAKE_TAG_MASK       0xffff000000000000ull
#define FAKE_TAG_DEVICE     0x005a000000000000ull
#define FAKE_TAG_REGISTERED 0x006b000000000000ull

struct rc_cu_stream {
  struct rc_cu_stream *next;
  struct rc_cu_context *context;
  pthread_t thread;
  struct fake_operation *first, **last;
  uint64_t queued, done; /* operations since the start */
  unsigned number;       /* for the delays */
  bool started, blocking /* for the legacy stream */, destroyed;
  enum { CAPTURES_NOT, CAPTURES, CAPTURE_SPOILT } capturing; /* as cuStreamIsCapturing says it */
  pthread_t captor;                                          /* the thread */
};

struct rc_cu_context {
  int device; /* as this process counts */
  int references;
  bool ending; /* its last reference has gone, and what was in it is going */
  rc_cu_result broken;
  struct rc_cu_stream *streams; /* all, also destroyed ones, until the context ends */
  struct rc_cu_stream *legacy;
  bool is_full;     /* a call waits for room in a stream, and ... */
  pthread_t filler; /* ... this thread makes it */
};

/* Memory of a device, or of the host as a device sees it. */
enum fake_kind { FAKE_ALLOCATED, FAKE_IMPORTED, FAKE_REGISTERED };
struct fake_memory {
  struct fake_memory *next;
  enum fake_kind kind;
  struct rc_cu_context *context;
  uint8_t *host; /* where it lies in this process */
  size_t bytes;
  int fd;       /* ALLOCATED */
  dev_t volume; /* of the memfd */
  ino_t inode;
  int references; /* IMPORTED: times opened */
  int pins;       /* copies that are being made */
  bool exportable, going;
  bool is_own; /* REGISTERED: memory of cuMemHostAlloc */
};

struct fake_settings {
  int devices, visible[MOST_DEVICES];
  bool no_peer, same_handle, stuck_words;
  unsigned jitter, queues; /* 0: none, one for each stream */
};

extern struct fake {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pid_t pid; /* of who called cuInit; 0: nobody has */
  struct fake_settings settings;
  struct rc_cu_context contexts[MOST_DEVICES];
  struct fake_memory *memory;
  rc_cu_event events; /* all there are */
  long calls[FAKE_FUNCTIONS], all_calls, host_waits, contexts_made, lost, spoilt, strays;
} fake;

extern char fake_kernel, fake_fault; /* the addresses of the kernels `spin` and `fault` */

/* How often this thread has called what waits for a device, or may. */
extern _Thread_local long fake_own_waits;

/* ---- controls.c: what every call begins with ------------------------------------------------- */

/* Takes the lock, counts the call, and says whether it fails at once. FAKE_ANY: also before cuInit;
 * FAKE_READY: after it; FAKE_CURRENT: with a context, which it gives; FAKE_GIVES_BACK: the same,
 * also in a broken one. */
enum fake_need { FAKE_ANY, FAKE_READY, FAKE_CURRENT, FAKE_GIVES_BACK };
rc_cu_result fake_begin(enum fake_function function, enum fake_need need,
                        struct rc_cu_context **out);

/* The same at the start of a function, which ends if the call fails at once. */
#define BEGIN(function, need)                                        \
  __attribute__((unused)) struct rc_cu_context *context = NULL;      \
  rc_cu_result result = fake_begin(FAKE_##function, need, &context); \
  if (result != RC_CU_SUCCESS) return result

/* Gives the lock back and returns `result`: return fake_end(RC_CU_SUCCESS). */
rc_cu_result fake_end(rc_cu_result result);

const char *fake_setting(const char *name);
bool fake_is_listed(const char *list, const char *name);
void fake_read_faults(void);

/* ---- The rest; with the lock held ------------------------------------------------------------ */

struct rc_cu_context *fake_current(void);
void fake_break_context(struct rc_cu_context *context);

/* streams.c */
rc_cu_result fake_stream_make(struct rc_cu_context *context, bool blocking,
                              struct rc_cu_stream **out);
struct rc_cu_stream *fake_stream_find(struct rc_cu_context *context, rc_cu_stream stream);
void fake_streams_wait(struct rc_cu_context *context); /* for all of them */
/* Drops what is queued; gives the lock up meanwhile. */
void fake_streams_end(struct rc_cu_context *context);
rc_cu_result fake_free_in_order(struct rc_cu_stream *stream, struct fake_memory *memory);
long fake_count_events(void);

/* captures.c: what streams that capture a graph forbid; what is forbidden spoils them. */
rc_cu_result
fake_check_captures(enum fake_function function); /* to this thread, whatever it is about */
rc_cu_result
fake_check_capture_of(const struct rc_cu_context *context); /* what is about all of a context */
rc_cu_result fake_check_work(struct rc_cu_stream *stream);  /* what is about a stream */

/* memory.c */
uint8_t *fake_resolve(rc_cu_ptr pointer, size_t bytes,
                      struct fake_memory **out); /* NULL: not all of it is there */
struct fake_memory *fake_host_memory(const void *host, size_t bytes,
                                     bool *outside); /* registered; see there */
struct fake_memory *fake_memory_add(struct fake_memory memory);
/* Waits until it is not pinned, then gives it up. */
void fake_memory_drop(struct fake_memory *memory);
void fake_overwrite(struct fake_memory *memory);     /* which is ALLOCATED */
void fake_memory_end(struct rc_cu_context *context); /* counts what is left as lost */
rc_cu_ptr fake_pointer(const struct fake_memory *memory);

#endif
