/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast dump`: frames in words. dump.c has the command, dump_frame.c frames, dump_value.c
 * nested values. A frame is hostile: every field is checked, and all text is escaped for the
 * terminal. */
#ifndef TOOLS_DUMP_H
#define TOOLS_DUMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringcast/object.h"

/* Text of limited length. */
struct dump_text {
  size_t used;
  bool is_cut;
  char data[400];
};

__attribute__((format(printf, 2, 3))) void dump_put(struct dump_text *text, const char *format,
                                                    ...);
/* In quotes, escaped, at most `most` bytes. */
void dump_quote(struct dump_text *text, const void *data, uint64_t bytes, size_t most);

/* "int64"; "float8_e4m3fn"; "int64x2" for lanes. */
void dump_dtype(struct dump_text *text, struct ringcast_dtype dtype);
void dump_shape(struct dump_text *text, const struct ringcast_item *item); /* "[2, 3]" */

/* The value that an OBJECT entry holds. Pickles are not loaded. */
void dump_value(struct dump_text *text, const struct ringcast_frame_reader *reader,
                const struct ringcast_item *item);

/* The contents of a frame of RINGCAST_KIND_TENSORS, on stdout: as text behind the line's beginning,
 * or as JSON's members. */
void dump_tensors(const void *data, size_t bytes, bool json);

bool dump_is_stopped(void); /* by a signal */

#endif
