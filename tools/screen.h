/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output that goes on until interrupted. On a terminal a full screen, redrawn in place; elsewhere
 * plain blocks with an empty line between. The terminal is as before after screen_close, on exit(),
 * and while the program is suspended (Ctrl-Z). Ctrl-C and 'q' end the output, and that is no
 * failure.
 */
#ifndef TOOLS_SCREEN_H
#define TOOLS_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* From here on SIGINT, SIGTERM, SIGHUP and SIGQUIT set a flag instead of ending the program; but
 * the program ends by itself, with status 1, if stdout then takes nothing for a second. */
void screen_catch_stops(void);
bool screen_is_stopped(void);

/* A full screen if `full` and stdout is a terminal. */
void screen_open(bool full);
void screen_close(void);
bool screen_is_full(void);
int screen_columns(void); /* of the full screen; 0: none, and a line may be as long as it likes */

/* Where the next block goes: print there, then call screen_show. Returns NULL without memory. */
FILE *screen_begin(void);
/* Shows the block, cut to the window's size. False: stdout can't be written. */
bool screen_show(void);

/* Waits, but not on when the window changes: the next block is for the new size. False:
 * interrupted, or 'q'. */
bool screen_wait(double seconds);

/* The last block once more, for the terminal that screen_close has restored. */
void screen_repeat(void);

#endif
