/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A way to hand messages from one process to others: the subject of peers_native. The facts of all
 * ways are in ways.c; the calls of a way are in a file w_*, those of a floor in floors.c.
 *
 * An end is one process's part in a stream of messages. A failed call ends the process by
 * peers_die, and the text becomes the status of the row.
 */
#ifndef PEERS_WAY_H
#define PEERS_WAY_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WAY_COLLECTIVE = 1, /* a write waits for the readers */
  WAY_COPYING = 2,    /* read copies into the reader's own memory */
  WAY_IN_PROCESS = 4, /* the members are threads of one process, a writer and a reader */
  WAY_FLOOR = 8,      /* not a peer: the best of the machine */
  WAY_NO_QUEUE = 16,  /* one message at a time */
};

struct board;

struct end {
  const struct way *way;
  struct board *board;
  uint32_t rank, processes;
  uint32_t writer;   /* the rank that writes */
  uint32_t instance; /* 0; 1: the stream of a round trip's way back */
  size_t bytes;      /* of a message */
  bool in_place;     /* messages are written and read where they lie */
  bool oversubscribed;
  void *shared; /* from prepare */
  void *state;  /* from open */
};

/* NULL: the way has no call of the kind. */
struct way_calls {
  void (*version)(char *text, size_t size);
  void (*prepare)(struct end *end); /* before the fork: makes end->shared */
  void (*open)(struct end *end);
  void (*write)(struct end *end, const void *data, size_t bytes);
  const void *(*read)(struct end *end,
                      size_t *bytes); /* waits; the message is valid until release */
  void (*release)(struct end *end);
  void *(*reserve)(struct end *end, size_t bytes); /* memory, later read in place by readers */
  void (*commit)(struct end *end, size_t bytes);
  double (*helpers_cpu_s)(const struct end *end); /* of the processes that this end has started */
  void (*close)(struct end *end);
};

struct way {
  const char *name, *family;
  unsigned flags;
  const struct way_calls *calls; /* NULL: not built */
  const char *needs;             /* missing in the build */
  const char *program;           /* a separate program, ... */
  const char *const *launcher;   /* ... started by this command line in every process */
  size_t largest;                /* bytes of the largest message; 0: no bound */
  size_t largest_in_place;       /* ... without a copy; 0: no bound */
  const char *note;
};

extern const struct way peers_ways[];
extern const size_t peers_way_count;
const struct way *peers_find_way(const char *name);

/* Writes the text on the board and ends the process. */
void peers_die(const struct end *end, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

/* Hands a few bytes (an address) to all members of the stream. */
void peers_publish(const struct end *end, const void *data, size_t bytes);
size_t peers_await(const struct end *end, uint32_t rank, void *data, size_t room);

/* A name for the stream, unique on the machine while the program runs. */
const char *peers_stream_name(const struct end *end, char *text, size_t size);

/* Shared memory, in huge pages where the machine has them, made before the fork. Each member
 * touches the memory once, or the first messages would fault. */
void *peers_shared_memory(const struct end *end, size_t bytes);
void peers_touch(void *memory, size_t bytes);
void *peers_memory(const struct end *end, size_t bytes); /* private, aligned, all pages in place */

/* The order of a reader among the readers, from 0. */
static inline uint32_t peers_reader(const struct end *end) {
  return end->rank - (end->rank > end->writer);
}

/* Between two looks at a word of a different member. */
static inline void peers_relax(bool oversubscribed) {
  if (oversubscribed) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

#ifdef __cplusplus
}
#endif
#endif
