/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c and probe.c share: where a probe leaves what it has to say, and text as JSON. */
#ifndef TESTS_GPU_RUN_H
#define TESTS_GPU_RUN_H

#include "tests/gpu/probe.h"

/* In memory that the probe's process shares with main's. */
struct report {
  char result[16]; /* empty: it has not come to an end */
  char why[512];
  char figures[8192]; /* JSON: members of an object */
};
struct report *probe_report(void);
__attribute__((noreturn)) void probe_end(const char *result, const char *why);

struct text {
  char *bytes;
  size_t used;
};
__attribute__((format(printf, 2, 3))) void text_add(struct text *text, const char *format, ...);
void text_quote(struct text *text, const char *value);

/* How often a loop runs; a little of it where the point is only that it runs. */
int rounds(int full);
bool is_little(void);

#endif
