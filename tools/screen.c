/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"

/* The other screen, hidden cursor, no line wrap; and back. */
#define ENTER "\033[?1049h\033[?25l\033[?7l"
#define LEAVE "\033[?7h\033[?25h\033[?1049l"

static struct {
  bool full, blocks; /* blocks: one was shown */
  bool keys;         /* stdin is a terminal, and `saved` its settings */
  struct termios saved;
  FILE *block; /* being printed */
  char *text;
  size_t size;
} screen;

static volatile sig_atomic_t stopped, resized, suspended;

/* A stop interrupts a write to a pipe that is full. The print then goes on, and may wait again: so
 * a second later, and each second, the program ends if stdout takes nothing. */
static void on_signal(int signal) {
  if (signal == SIGWINCH) resized = 1;
  else if (signal == SIGTSTP) suspended = 1;
  else {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (signal == SIGALRM && poll(&out, 1, 0) == 0) {
      if (screen.full && screen.keys) tcsetattr(STDIN_FILENO, TCSANOW, &screen.saved);
      _exit(CLI_FAILED);
    }
    stopped = 1;
    alarm(1);
  }
}

static void catch (int signal, int flags) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags}, old;
  if (sigaction(signal, NULL, &old) == 0 && old.sa_handler == SIG_IGN && signal == SIGHUP)
    return; /* nohup */
  sigaction(signal, &action, NULL);
}

void screen_catch_stops(void) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) catch (signals[i], 0);
}

bool screen_is_stopped(void) { return stopped; }

/* ---- The terminal ---------------------------------------------------------------------------- */

static void send(const char *text) {
  fputs(text, stdout);
  fflush(stdout);
}

/* Keys come one by one and are not shown; Ctrl-C and Ctrl-Z stay signals. */
static void enter(void) {
  if (screen.keys) {
    struct termios raw = screen.saved;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  }
  send(ENTER);
}

static void leave(void) {
  send(LEAVE);
  if (screen.keys) tcsetattr(STDIN_FILENO, TCSADRAIN, &screen.saved);
}

void screen_open(bool full) {
  screen_catch_stops();
  screen.full = full && isatty(STDOUT_FILENO);
  if (screen.full) {
    catch (SIGWINCH, SA_RESTART);
    catch (SIGTSTP, SA_RESTART);
  }
  if (!screen.full) return;
  screen.keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &screen.saved) == 0;
  atexit(screen_close);
  enter();
}

void screen_close(void) {
  if (screen.full) leave();
  screen.full = false;
}

bool screen_is_full(void) { return screen.full; }

static struct winsize window_size(void) {
  struct winsize window = {0};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_row == 0 || window.ws_col == 0)
    window = (struct winsize){.ws_row = 24, .ws_col = 80};
  return window;
}

int screen_columns(void) { return screen.full ? window_size().ws_col : 0; }

static void suspend(void) {
  leave();
  suspended = 0;
  raise(SIGSTOP);
  enter();
  resized = 1;
}

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

static void draw(void) {
  const struct winsize window = window_size();
  const char *line = screen.text;
  fputs("\033[H", stdout);
  for (int row = 0; row < window.ws_row && line && *line; row++) {
    size_t length = strcspn(line, "\n");
    printf("%s%.*s\033[K", row > 0 ? "\n" : "", (int)cut(line, length, window.ws_col), line);
    line += length + (line[length] == '\n');
  }
  fputs("\033[J", stdout);
}

bool screen_show(void) {
  if (screen.block) fclose(screen.block);
  screen.block = NULL;
  if (screen.full) draw();
  else printf("%s%s", screen.blocks ? "\n" : "", screen.text ? screen.text : "");
  screen.blocks = true;
  return fflush(stdout) == 0 && !ferror(stdout);
}

void screen_repeat(void) {
  if (screen.text) fputs(screen.text, stdout);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static bool is_quit(void) {
  char key;
  ssize_t got = read(STDIN_FILENO, &key, 1);
  if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
    screen.keys = false; /* the terminal is gone */
  return got == 1 && (key == 'q' || key == 'Q');
}

/* Waits for a key or a signal. Signals are held from the look at the flags to the sleep, so that
 * none is missed. */
static int await_key(double seconds) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP};
  struct pollfd key = {.fd = STDIN_FILENO, .events = POLLIN};
  struct timespec time = {.tv_sec = (time_t)seconds,
                          .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
  sigset_t held, usual;
  sigemptyset(&held);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaddset(&held, signals[i]);
  sigprocmask(SIG_BLOCK, &held, &usual);
  bool is_due = stopped || resized || suspended;
  int ready = is_due ? 0 : ppoll(&key, screen.full && screen.keys ? 1 : 0, &time, &usual);
  sigprocmask(SIG_SETMASK, &usual, NULL);
  return ready;
}

bool screen_wait(double seconds) {
  double end = now() + seconds, left;
  while (!stopped && (left = end - now()) > 0) {
    int ready = await_key(left);
    if (suspended) suspend();
    if (ready > 0 && is_quit()) return false;
    if (resized && screen.full) end = 0; /* what is shown depends on the width */
    resized = 0;
  }
  return !stopped;
}
