/* SPDX-License-Identifier: Apache-2.0 */
/* A probe adds one line: a name, a level, the finding, the way to mend a fault, and the numbers. */
#ifndef TOOLS_DOCTOR_H
#define TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ringcast/ringcast.h"

enum doctor_level { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_PROBLEM };
enum { DOCTOR_LINES = 48, DOCTOR_FACTS = 8 };

struct doctor_fact {
  const char *key;
  int64_t value; /* -1: unknown, or no limit */
};

struct doctor_line {
  const char *name;
  enum doctor_level level;
  char found[384];
  char mend[384];                             /* empty: nothing to mend */
  struct doctor_fact facts[DOCTOR_FACTS + 1]; /* the last one has no key */
};

struct doctor {
  struct doctor_line lines[DOCTOR_LINES];
  size_t count;
  bool can_make;             /* a ring was made */
  struct ringcast_info ring; /* the facts of the ring */
};

/* doctor_add adds a line; the others add to the last line. */
__attribute__((format(printf, 4, 5))) void doctor_add(struct doctor *doctor, const char *name,
                                                      enum doctor_level level, const char *format,
                                                      ...);
__attribute__((format(printf, 2, 3))) void doctor_mend(struct doctor *doctor, const char *format,
                                                       ...);
void doctor_facts(struct doctor *doctor, const struct doctor_fact facts[]);
#define FACTS(...)               \
  (const struct doctor_fact[]) { \
    __VA_ARGS__, { NULL, 0 }     \
  }

/* Work in a child process, since a process that has used CUDA can't be forked, and a broken driver
 * may never return: memory that both share (NULL: none), the start, and how the child ended: "" if
 * well. */
enum { DOCTOR_LIMIT_S = 60 };
void *doctor_shared(size_t bytes);
pid_t doctor_start(void (*body)(void *context), void *context);
const char *doctor_await(pid_t pid, char *words, size_t size);

/* Adds the lines of the GPUs. */
void doctor_check_gpus(struct doctor *doctor);

#endif
