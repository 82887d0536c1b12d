/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints figures as they come, each described once, as JSON or as text. A NULL key stands for an
 * element of an array, or the whole. As text, a figure of the whole is a line with its key; an
 * object within is a row of a table, below its keys; and an object in an array is named by its
 * first figure.
 */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include <stdbool.h>
#include <stdint.h>

struct report {
  bool json, line; /* line: JSON on one line, for a stream of objects */
  int depth;
  bool follows; /* JSON: something stands before in the same object or array */
  struct {
    bool is_array;
    char name[64];
  } around[6]; /* text: the objects and arrays that are open */
  char title[64], keys[512], cells[512],
      top[512]; /* text: the row so far, and the keys above the last row */
};

void report_open(struct report *report, const char *key, char bracket); /* '{' or '[' */
void report_close(struct report *report);
void report_string(struct report *report, const char *key, const char *value);
void report_integer(struct report *report, const char *key, int64_t value);
void report_number(struct report *report, const char *key,
                   double value); /* four digits; not a number: null */
void report_boolean(struct report *report, const char *key, bool value);
void report_null(struct report *report, const char *key);
void report_percentiles(struct report *report, const char *key, double p50, double p99);

#endif
