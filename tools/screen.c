/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/screen.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"

static struct {
  bool full, blocks; /* blocks: one was shown */
  FILE *block;       /* being printed */
  char *text;
  size_t size;
} screen;

static volatile sig_atomic_t resized;

static void on_resize(int number) {
  (void)number;
  resized = 1;
}

static struct winsize window_size(void) {
  struct winsize window = {0};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_row == 0 || window.ws_col == 0)
    window = (struct winsize){.ws_row = 24, .ws_col = 80};
  return window;
}

void screen_open(bool full) {
  const struct sigaction action = {.sa_handler = on_resize, .sa_flags = SA_RESTART};
  cli_catch_stops();
  screen.full = full && isatty(STDOUT_FILENO);
  if (!screen.full) return;
  sigaction(SIGWINCH, &action, NULL);
  for (int row = window_size().ws_row; row > 1; row--)
    putchar('\n'); /* what was there scrolls up */
}

void screen_close(void) {
  if (screen.full) putchar('\n');
  screen.full = false;
}

bool screen_is_full(void) { return screen.full; }

int screen_columns(void) { return screen.full ? window_size().ws_col : 0; }

/* ---- Blocks ---------------------------------------------------------------------------------- */

FILE *screen_begin(void) {
  free(screen.text);
  screen.text = NULL;
  screen.block = open_memstream(&screen.text, &screen.size);
  if (!screen.block) cli_fail(CLI_FAILED, "out of memory");
  return screen.block;
}

/* As much of a line as the window is wide. */
static size_t cut(const char *line, size_t length, int columns) {
  size_t end = 0;
  for (int width = 0; end < length; end++) {
    if (((unsigned char)line[end] & 0xc0) != 0x80 && width++ == columns) break;
  }
  return end;
}

/* Each line is cleared before it is printed: clearing after a full line would take its last
 * character on some terminals. */
static void draw(void) {
  const struct winsize window = window_size();
  const char *line = screen.text;
  fputs("\033[H", stdout);
  for (int row = 0; row < window.ws_row && line && *line; row++) {
    size_t length = strcspn(line, "\n");
    printf("%s\033[K%.*s", row > 0 ? "\n" : "", (int)cut(line, length, window.ws_col), line);
    line += length + (line[length] == '\n');
  }
  fputs("\033[J", stdout);
}

bool screen_show(void) {
  if (screen.block) fclose(screen.block);
  screen.block = NULL;
  if (screen.full) draw();
  else {
    if (screen.blocks) putchar('\n');
    if (screen.text) fputs(screen.text, stdout);
  }
  screen.blocks = true;
  return fflush(stdout) == 0 && !ferror(stdout);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Signals are held from the look at the flags to the sleep, so that none is missed. */
static void sleep_for(int64_t ns) {
  const struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  sigset_t all, usual;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &usual);
  if (!cli_stop && !resized) ppoll(NULL, 0, &time, &usual);
  sigprocmask(SIG_SETMASK, &usual, NULL);
}

bool screen_wait(double seconds) {
  int64_t end = cli_now_ns() + (int64_t)(seconds * 1e9), left = end - cli_now_ns();
  while (!cli_stop && !resized && left > 0) {
    sleep_for(left);
    left = end - cli_now_ns();
  }
  resized = 0;
  return !cli_stop;
}
