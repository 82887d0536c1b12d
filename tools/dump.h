/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast dump`: dump.c has the command, dump_frame.c what is in a frame. */
#ifndef TOOLS_DUMP_H
#define TOOLS_DUMP_H

#include <stdbool.h>
#include <stddef.h>

/* The contents of a frame of RINGCAST_KIND_TENSORS, on stdout: as text behind the line's beginning,
 * or as JSON's members. */
void dump_tensors(const void *data, size_t bytes, bool json);

#endif
