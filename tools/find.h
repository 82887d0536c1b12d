/* SPDX-License-Identifier: Apache-2.0 */
/* The ring that a command line names. */
#ifndef TOOLS_FIND_H
#define TOOLS_FIND_H

#include <stdbool.h>

#include "ringcast/ringcast.h"

enum { FIND_NONE = 3, FIND_SEVERAL = 4, FIND_WRITER_GONE = 5 };

/* 0, or an exit status after an error text on stderr. */
int find_ring(const char *ring, char handle[RINGCAST_HANDLE_BYTES]);

bool find_asks_help(int argc, char **argv);

#endif
