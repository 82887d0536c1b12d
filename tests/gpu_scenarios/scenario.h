/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios of device tensors, as text: what is set up, which calls fail, what is done, and what comes of it. A file
 * of this folder (*.txt) holds scenarios; main.c reads and runs them, each in a process of its own, with the tests'
 * own driver:
 *
 *   a lease is of one stream     the scenario's name, at the start of a line
 *     pair                       its steps, indented: a verb and its words; the verbs are listed at
 *                                the ends of device.c, handles.c, send.c, receive.c and expect.c
 *     draft a 1000; abort        several, with semicolons
 *     commit a = EINVAL          what the call gives: 0 where nothing is said; one of A|B
 *     comes writer slots_used=0  what soon is so, by another thread's doing
 *
 *   each CALL cuMemAlloc cuIpcGetMemHandle    the scenario once for each of them, which is $CALL in its steps; values
 *   each CALL/SAYS cuMemAlloc/memory ...      of two variables have a slash between them
 *     + cuMemcpyHtoDAsync                     the line before goes on
 *   times 5                                   the lines below that are indented more, five times; $i counts from 0
 *   again STEP                                until the step gives what it should
 *   child STEP                                in a child of a fork
 *   interrupt STEP                            while signals come
 *   - STEP                                    nothing
 *   meanwhile STEP ... join                   in a thread; `join = X`: the thread's step gave X
 *   r: STEP                                   in a process r of its own, which opens the driver itself; the step has
 *                                             ended when the next one begins, but for `r& STEP ... r: join = X`
 *   kill r; stop r; continue r                by a signal
 *   exit r; exit-at-once r                    by itself; where it hangs in that for long, the scenario goes on
 *   figure NAME STEP                          how long the step takes, and what it gives; any result will do
 *   number NAME STEP                          what it gives
 *   measures                                  first of all: any end of the scenario will do
 *
 * A name in quotation marks may have spaces. A number may be a sum of products, with K and M: 2M+1. Frames, leases,
 * holds and memory are named by letters. What a scenario leaves open is closed at its end, where the driver must have
 * nothing left.
 */
#ifndef RC_TESTS_GPU_SCENARIO_H
#define RC_TESTS_GPU_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/driver.h"
#include "ringcast/gpu.h"

enum { MOST_WORDS = 16, MOST_TEXT = 1280 };

struct step {
  int line; /* in its file */
  char text[MOST_TEXT];
};

/* read.c: the scenarios, one of each of the values of its `each` lines; and the steps of one of them. */
enum { MOST_RUNS = 1024, MOST_LINES = 64, MOST_STEPS = 512 };
struct run {
  const char *file;
  char name[160];
  struct step lines[MOST_LINES]; /* as they are in the file, indented */
  int line_count;
};
extern struct run *runs[MOST_RUNS];
extern struct step steps[MOST_STEPS];
extern int run_count, step_count;
extern const char *file_name; /* main.c: the file that is at work */
void read_file(char *file);
/* Adds the lines from `from` on that are indented so far as steps; `i` is for $i, NULL: none. */
void unfold(const struct run *run, int from, int indent, const char *i);
/* The next word, or NULL; *text goes on behind it. Quotation marks hold a word together. */
char *next_word(char **text);

/* The words of a step, as a verb gets them; [0] is the verb. "" is what is not there. */
struct words {
  char *at[MOST_WORDS + 1];
  int count;
  char storage[MOST_TEXT];
};

/* Shared by the processes of a scenario: handles, words that each may register, and figures. */
enum { MOST_FIGURES = 1024 };
struct board {
  _Alignas(4096) char words[4096];
  char handle[128];
  rc_cu_ipc_handle exports[8];
  _Atomic int child; /* that `child` has left */
  _Atomic int figure_count;
  struct figure {
    char name[64], text[64]; /* "": the value */
    double value;
  } figures[MOST_FIGURES];
};
extern struct board *board;

extern int why_fd, answer_fd; /* main.c */
extern bool is_real;          /* the driver is that of a device */

/* The step that this thread does is wrong: tells so, with where it stands, and ends the test. */
_Noreturn void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What the scenario needs is not here: as `wrong`, on a device; the fake has all. */
_Noreturn void skip(const char *why);
#define must(condition) \
  if (!(condition)) wrong("%s:%d: %s", __FILE__, __LINE__, #condition)

/* Does a step and gives its result; `expected` is what comes after its '=' ("" where nothing does). */
long do_step(struct words *words);
/* Gives back what is left in this process; the driver must be empty then. */
void finish(void);
/* Has the library give back what was left, where that can be by now. */
void tidy(void);

/* A figure: several of one name become their median and the most. A result of the driver is one by its name. */
void note(const char *name, const char *suffix, double value);
void note_result(const char *name, long result);
double now_us(void);
void print_figures(void);
void print_quoted(const char *text);

/* What a writer and a reader of this process have open. */
struct side {
  ringcast_writer *writer;
  ringcast_gpu_writer *gpu_writer;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu_reader;
};
extern struct side side;
struct ringcast_gpu_info info_of(bool is_writer);

uint64_t number(const char *text);
/* "EINVAL", "POOL", "3": whether the result is so. */
bool is_result(long result, const char *text);

/* The verbs of each file; the last has no name. */
struct verb {
  const char *name;
  long (*verb)(struct words *words);
};
extern const struct verb device_verbs[], handles_verbs[], send_verbs[], receive_verbs[], expect_verbs[], probe_verbs[];

#endif
