/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output that goes on until interrupted. On a terminal it is redrawn in place; elsewhere it is
 * plain blocks with an empty line between.
 */
#ifndef TOOLS_SCREEN_H
#define TOOLS_SCREEN_H

#include <stdbool.h>
#include <stdio.h>

/* Catches stops (tools/cli.h). Redraws in place if `full` and stdout is a terminal. */
void screen_open(bool full);
void screen_close(void); /* what was shown last stays on the terminal */
bool screen_is_full(void);
int screen_columns(void); /* of the terminal; 0: none, and a line may be as long as it likes */

/* Where the next block goes: print there, then call screen_show. Returns NULL without memory. */
FILE *screen_begin(void);
/* Shows the block, cut to the window's size. False: stdout can't be written. */
bool screen_show(void);

/* Waits, but not on when the window changes: the next block is for the new size. False: stopped. */
bool screen_wait(double seconds);

#endif
