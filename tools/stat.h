/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast stat`: how a ring is shown. */
#ifndef TOOLS_STAT_H
#define TOOLS_STAT_H

#include <stdio.h>

#include "tools/view.h"

/* Prometheus' text exposition format, of all rings or one. */
void stat_print_prometheus(const struct view *views, int count);

/* "reader 1 'rank 2'", for a terminal. Returns `out`. */
enum { STAT_WHICH = 192 };
char *stat_which(const struct ringcast_peer *peer, char out[STAT_WHICH]);

#endif
