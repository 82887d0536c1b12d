/* SPDX-License-Identifier: Apache-2.0 */
/* Words for people: names that other processes chose, numbers with units, tables. And reports, for
 * people and programs. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Copies `text` for a terminal (ringcast_printable). Returns `out`. */
char *text_clean(const char *text, char *out, size_t size);
enum { TEXT_CLEAN = 4 }; /* by how many times the copy may be longer */

/* Prints a JSON string, in quotes. What ringcast_printable does not show becomes \uXXXX; a byte
 * that is not valid UTF-8 becomes U+FFFD, the replacement character. */
void text_json(const char *text, size_t bytes, FILE *out);

/* Numbers, with three digits or so. */
struct text_number {
  char text[32];
};
struct text_number text_bytes(double bytes);     /* "1.21 MiB" */
struct text_number text_duration(double ns);     /* "3.21 s"; below 1 ns: "-" */
struct text_number text_rate(double per_second); /* "1234", "9.5"; not a number: "-" */

/* Prints lines; one of more than `columns` is broken at blanks, and goes on `indent` columns
 * further in. 0 columns: as they are. */
void text_wrap(const char *text, int columns, int indent, FILE *out);

/* A table: rows of cells below heads. A head that starts with '>' is of a column that is
 * right-aligned. */
enum { TEXT_COLUMNS = 16 };
struct text_table {
  int columns;
  int most; /* columns of the screen; 0: any. In a table that is wider the last column gets lines of
               its own, each after its row; then columns of `drops` go, and at last the cells of the
               first one lose their middles */
  const char *drops; /* the digits of columns, the first to go first; NULL: none */
  size_t cells, room;
  bool right[TEXT_COLUMNS];
  char **cell;
};
void text_table_open(struct text_table *table, const char *const heads[], int columns);
/* The next cell, row by row; control characters are made visible. */
__attribute__((format(printf, 2, 3))) void text_table_add(struct text_table *table,
                                                          const char *format, ...);
void text_table_print(struct text_table *table, FILE *out); /* and frees the cells */
/* ---- Reports --------------------------------------------------------------------------------- */

/*
 * Prints figures as they come, each described once, as JSON or as text. A NULL key stands for an
 * element of an array, or the whole. As text, a figure of the whole is a line with its key; an
 * object within is a row of a table, below its keys; and an object in an array is named by its
 * first figure.
 */
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
