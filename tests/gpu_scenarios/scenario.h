/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios of device tensors, as text: what is set up, which calls fail, what is done, and what
 * comes of it. A file of this folder (*.txt) holds scenarios; main.c runs them, each in a process
 * of its own, with the tests' own driver:
 *
 *   a lease is of one stream     the scenario's name, at the start of a line
 *     pair                       its steps, indented: a verb and its words; the verbs are listed at
 *                                the ends of device.c, writer.c, reader.c and expect.c
 *     draft a 1000; abort        several, with semicolons
 *     commit a = EINVAL          what the call gives: 0 where nothing is said; one of A|B
 *     comes writer slots_used=0  what soon is so, by another thread's doing
 *
 *   each CALL cuMemAlloc cuIpcGetMemHandle    the scenario once for each of them, which is $CALL in
 *                                             its steps
 *   each CALL/SAYS cuMemAlloc/memory ...      the same; values of two variables have a slash
 * between
 *     + cuMemcpyHtoDAsync                     the line before goes on
 *   times 5                                   the lines below that are indented more, five times;
 *                                             $i counts from 0
 *   again STEP                                until the step gives what it should
 *   child STEP                                in a child of a fork
 *   interrupt STEP                            while signals come
 *   - STEP                                    nothing
 *   meanwhile STEP ... join                   in a thread; `join = X`: the thread's step gave X
 *   r: STEP                                   in a process r of its own, which opens the driver
 *                                             itself; the step has ended when the next one begins,
 *                                             but for `r& STEP ... r: join = X`
 *   kill r; stop r; continue r                by a signal
 *   exit r; exit-at-once r                    by itself; where it hangs in that for long, the
 *                                             scenario goes on
 *   figure NAME STEP                          how long the step takes, and what it gives; any
 * result will do
 *
 * A name in quotation marks may have spaces. A number may be a sum of products, with K and M: 2M+1.
 * Frames, leases, holds and memory are named by letters. What a scenario leaves open is closed at
 * its end, where the driver must have nothing left.
 */
#ifndef RC_TESTS_GPU_SCENARIO_H
#define RC_TESTS_GPU_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "gpu/reader.h"
#include "gpu/writer.h"
#include "tests/support/fake_controls.h"

/* ---- Steps: read.c, main.c ------------------------------------------------------------------- */

enum { MOST_WORDS = 16, MOST_TEXT = 1280 };
struct step {
  int line; /* in its file */
  char text[MOST_TEXT];
};

/* The scenarios, one of each of the values of its `each` lines; and the steps of one of them. */
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
extern const char *file_name; /* the file that is at work */
void read_file(char *file);
/* Adds the lines from `from` on that are indented so far as steps; `i` is for $i, NULL: none. */
void unfold(const struct run *run, int from, int indent, const char *i);
/* The next word, or NULL; *text goes on behind it. Quotation marks hold a word together. */
char *next_word(char **text);

/* The words of a step, as its verb finds them; [0] is the verb. "" is what is not there. */
struct words {
  char *at[MOST_WORDS + 1];
  int count;
  char storage[MOST_TEXT];
};
extern _Thread_local struct words *words;

extern bool is_real; /* the driver is that of a device */

/* The step that this thread does is wrong: tells so, with where it stands, and ends the test. */
_Noreturn void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What the scenario needs is not here: as `wrong`, on a device; the fake has all. */
_Noreturn void skip(const char *why);
#define must(condition) \
  if (!(condition)) wrong("%s:%d: %s", __FILE__, __LINE__, #condition)
#define driver(call) must((call) == RC_CU_SUCCESS)

/* Does a step and gives its result. */
long do_step(struct words *step);
long do_text(const char *text);

/* Shared by the processes of a scenario: the handle, words that each may register, and figures. */
enum { MOST_FIGURES = 1024 };
struct board {
  _Alignas(4096) char words[4096];
  char handle[128];
  _Atomic int figure_count;
  struct figure {
    char name[64];
    double value;
  } figures[MOST_FIGURES];
};
extern struct board *board;

/* A figure: several of one name become their median and the most. */
void note(const char *name, const char *suffix, double value);
double now_us(void);

/* ---- Verbs ----------------------------------------------------------------------------------- */

struct verb {
  const char *name;
  long (*verb)(void);
};
extern const struct verb device_verbs[], writer_verbs[], reader_verbs[],
    expect_verbs[]; /* the last has no name */

enum {
  SOURCE_BYTES = 1 << 20,
  ITEM_BYTES = 1024 /* between the tensors of one frame */,
  STREAMS = 8
};
extern const struct rc_cuda *cuda; /* NULL: not opened yet */
extern rc_cu_ptr source, target;   /* the source's byte i is (uint8_t)(7 * i) */
extern rc_cu_stream stream;        /* that the steps send and receive on */

/* What a writer and a reader of this process have open. */
extern struct side {
  ringcast_writer *writer;
  ringcast_gpu_writer *gpu_writer;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu_reader;
} side;

void open_device(void);
/* Gives back what is left in this process; the driver must be empty then. */
void finish(void);
/* Has the library give back what was left, where that can be by now. */
void tidy(void);
void close_reader(void);
void close_writer(void);
struct ringcast_gpu_info info_of(bool is_writer);
/* The target's bytes from `offset` on, once the stream has come so far, are those of the source
 * from `at` on. */
void target_holds(uint64_t at, uint64_t bytes, uint64_t offset);
struct ringcast_tensor bytes_at(rc_cu_ptr memory, int64_t *shape);

uint64_t number(const char *text);
/* "EINVAL", "POOL", "3": whether the result is so. */
bool is_result(long result, const char *text);

static inline int letter(const char *name) {
  if (name[0] < 'a' || name[0] > 'h' || name[1] != '\0') wrong("'%s' is no letter", name);
  return name[0] - 'a';
}
#define LETTER(word) letter(words->at[word])
#define NUMBER(word) number(words->at[word])

static inline bool has_word(const char *word) {
  for (int i = 1; i < words->count; i++)
    if (strcmp(words->at[i], word) == 0) return true;
  return false;
}

/* What follows "NAME=" in one of the words, or NULL. */
static inline const char *option(const char *name) {
  size_t length = strlen(name);
  for (int i = 1; i < words->count; i++)
    if (strncmp(words->at[i], name, length) == 0 && words->at[i][length] == '=')
      return words->at[i] + length + 1;
  return NULL;
}

static inline uint64_t number_of(const char *name, uint64_t otherwise) {
  const char *text = option(name);
  return text ? number(text) : otherwise;
}

#endif
