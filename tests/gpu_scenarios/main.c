/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the scenarios of the files that are named (`writer` is writer.txt of this folder), and runs
 * them; `writer:a_lease` runs those alone that have "a lease" in their name.
 *
 *   --real [--after FILE]   with the driver of a device: leaves those scenarios out that need the
 *                           fake, and prints a line of JSON for each, but for those that FILE has a
 *                           line of: {"probe", "result", "why", "figures"}. Results: "ok";
 *                           "failed", which makes the program fail; "skipped": something is not
 *                           here. What needs a pool is skipped where GPU_PROBE_INLINE has the
 *                           reason, of doctor, why there is none.
 *   --json                  the same lines with the fake
 *
 * Without check or anything else, as a device may be where nothing can be installed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include "tests/gpu_scenarios/scenario.h"

enum { MOST_PEERS = 4, LIMIT_S = 600, REAL_LIMIT_S = 90, EXIT_S = 5 };
enum { EXIT = -1, EXIT_AT_ONCE = -2 }; /* for a peer, in place of a step's number */
#define SKIPPED "skipped: "

const char *file_name;
static const char *run_name = "";
static _Thread_local const struct step *at_step;
_Thread_local struct words *words;
struct board *board;
bool is_real;
static int answer_fd; /* of a peer */
static int why_fd;    /* what was wrong, to the process that has started all */

void wrong(const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  dprintf(why_fd, "%s.txt:%d: %s: '%s': %s\n", file_name, at_step ? at_step->line : 0, run_name,
          at_step ? at_step->text : "the end", text);
  _exit(1);
}

void skip(const char *why) {
  dprintf(why_fd, SKIPPED "%s\n", why);
  _exit(1);
}

/* ---- Doing ----------------------------------------------------------------------------------- */

static void split(const char *text, struct words *out) {
  char *rest = out->storage, *word;
  out->count = 0;
  strcpy(out->storage, text);
  while ((word = next_word(&rest))) {
    must(out->count < MOST_WORDS);
    out->at[out->count++] = word;
  }
  for (int i = out->count; i <= MOST_WORDS; i++) out->at[i] = "";
}

long do_step(struct words *step) {
  static const struct verb *const tables[] = {device_verbs, writer_verbs, reader_verbs,
                                              expect_verbs};
  struct words *before = words;
  if (strcmp(step->at[0], "-") == 0) return 0;
  words = step;
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    for (const struct verb *verb = tables[i]; verb->name; verb++) {
      if (strcmp(verb->name, step->at[0]) != 0) continue;
      long result = verb->verb();
      words = before;
      return result;
    }
  }
  wrong("there is no verb '%s'", step->at[0]);
}

long do_text(const char *text) {
  struct words step;
  split(text, &step);
  return do_step(&step);
}

/* Cuts "= RESULT" off, and gives it. */
static const char *cut_result(struct words *step) {
  if (step->count < 3 || strcmp(step->at[step->count - 2], "=") != 0) return "0";
  const char *result = step->at[step->count - 1];
  step->count -= 2;
  step->at[step->count] = "";
  step->at[step->count + 1] = "";
  return result;
}

static void shift(struct words *step) {
  memmove(step->at, step->at + 1, sizeof step->at - sizeof *step->at);
  step->at[MOST_WORDS] = "";
  step->count--;
}

static void result_must_be(long result, const char *expected) {
  if (!is_result(result, expected))
    wrong("%ld (%s), and not %s", result, result < 0 ? ringcast_last_error() : "", expected);
}

static void do_in_child(struct words *step, const char *expected) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    result_must_be(do_step(step), expected);
    _exit(0);
  }
  must(waitpid(pid, &status, 0) == pid && status == 0);
}

static struct {
  pthread_t thread;
  const struct step *step;
  struct words words;
  bool runs;
} meanwhile;

static void *do_meanwhile(void *unused) {
  (void)unused;
  at_step = meanwhile.step;
  return (void *)do_step(&meanwhile.words);
}

static long join(void) {
  void *result = NULL;
  must(meanwhile.runs && pthread_join(meanwhile.thread, &result) == 0);
  meanwhile.runs = false;
  return (long)(intptr_t)result;
}

static _Atomic bool has_returned;
static void notice(int signal) { (void)signal; }

static void *signal_again_and_again(void *thread) {
  while (!has_returned) {
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  }
  return NULL;
}

static long do_interrupted(struct words *step) {
  struct sigaction action = {.sa_handler = notice, .sa_flags = SA_RESTART};
  pthread_t self = pthread_self(), thread;
  must(sigaction(SIGUSR1, &action, NULL) == 0);
  must(pthread_create(&thread, NULL, signal_again_and_again, &self) == 0);
  long result = do_step(step);
  has_returned = true;
  must(pthread_join(thread, NULL) == 0);
  return result;
}

/* NAME STEP: its time, and its result where that is none. */
static void measure(struct words *step) {
  const char *name = step->at[1];
  shift(step);
  shift(step);
  double begun = now_us();
  long result = do_step(step);
  note(name, "_us", now_us() - begun);
  if (result != 0) note(name, "_result", (double)result);
}

/* A step without a process of its own. */
static void perform(const struct step *step, const char *text) {
  struct words split_up;
  at_step = step;
  split(text, &split_up);
  const char *expected = cut_result(&split_up), *how = split_up.at[0];
  if (strcmp(how, "join") == 0) {
    result_must_be(join(), expected);
  } else if (strcmp(how, "figure") == 0) {
    measure(&split_up);
  } else if (strcmp(how, "child") == 0) {
    shift(&split_up);
    do_in_child(&split_up, expected);
  } else if (strcmp(how, "interrupt") == 0) {
    shift(&split_up);
    result_must_be(do_interrupted(&split_up), expected);
  } else if (strcmp(how, "again") == 0) {
    shift(&split_up);
    while (!is_result(do_step(&split_up), expected))
      nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  } else if (strcmp(how, "meanwhile") == 0) {
    must(!meanwhile.runs);
    split(text, &meanwhile.words);
    shift(&meanwhile.words);
    meanwhile.step = step;
    meanwhile.runs = pthread_create(&meanwhile.thread, NULL, do_meanwhile, NULL) == 0;
    must(meanwhile.runs);
  } else {
    result_must_be(do_step(&split_up), expected);
  }
}

/* ---- Figures --------------------------------------------------------------------------------- */

double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

void note(const char *name, const char *suffix, double value) {
  int number = board->figure_count++;
  must(number < MOST_FIGURES);
  snprintf(board->figures[number].name, sizeof board->figures[number].name, "%s%s", name, suffix);
  board->figures[number].value = value;
}

static int compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

/* All of its name: one as it is, of several the median and the most. Nothing of a name that was
 * printed before. */
static bool print_figure(int first, const char *comma) {
  static double values[MOST_FIGURES];
  const char *name = board->figures[first].name;
  size_t count = 0;
  for (int k = 0; k < board->figure_count; k++) {
    if (strcmp(board->figures[k].name, name) != 0) continue;
    if (k < first) return false;
    values[count++] = board->figures[k].value;
  }
  qsort(values, count, sizeof *values, compare);
  if (count == 1) printf("%s\"%s\": %.7g", comma, name, *values);
  else
    printf("%s\"%s_p50\": %.5g, \"%s_max\": %.5g", comma, name, values[count / 2], name,
           values[count - 1]);
  return true;
}

static void print_quoted(const char *text) {
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
}

static void print_json(const struct run *run, const char *result, const char *why) {
  const char *comma = "";
  printf("{\"probe\": \"scenario %s: ", run->file);
  print_quoted(run->name);
  printf("\", \"result\": \"%s\", \"why\": \"", result);
  print_quoted(why);
  printf("\", \"figures\": {");
  for (int i = 0; i < board->figure_count; i++)
    if (print_figure(i, comma)) comma = ", ";
  printf("}}\n");
  fflush(stdout);
}

/* ---- Other processes ------------------------------------------------------------------------- */

static struct peer {
  char name[16];
  pid_t pid;
  int asks[2], answers[2];
  bool is_busy; /* with a step that is not waited for */
} peers[MOST_PEERS];
static int peer_count;

/* "r: send 1 2" or "r& ...": the process's name, and where its step begins; NULL: it is a step of
 * this one's. */
static const char *peer_step(const char *text, char name[16], bool *is_waited_for) {
  size_t length = strcspn(text, ":& ");
  if ((text[length] != ':' && text[length] != '&') || text[length + 1] != ' ' || length >= 16)
    return NULL;
  snprintf(name, 16, "%.*s", (int)length, text);
  *is_waited_for = text[length] == ':';
  return text + length + 2;
}

/* Does the steps it is asked for, by their numbers, until there are no more. */
_Noreturn static void be_peer(struct peer *peer) {
  int number;
  char name[16], done = 'd';
  bool is_waited_for;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  answer_fd = peer->answers[1];
  for (int i = 0; i < peer_count; i++) {
    close(peers[i].asks[1]);
    if (&peers[i] != peer) close(peers[i].answers[1]);
  }
  while (read(peer->asks[0], &number, sizeof number) == (ssize_t)sizeof number) {
    if (number == EXIT) exit(0);
    if (number == EXIT_AT_ONCE) _exit(0);
    const char *step = peer_step(steps[number].text, name, &is_waited_for);
    perform(&steps[number], step);
    must(write(peer->answers[1], &done, 1) == 1);
  }
  at_step = NULL;
  finish();
  _exit(0);
}

static struct peer *find_peer(const char *name) {
  for (int i = 0; i < peer_count; i++)
    if (strcmp(peers[i].name, name) == 0) return &peers[i];
  return NULL;
}

static void start_peers(void) {
  char name[16];
  bool is_waited_for;
  for (int i = 0; i < step_count; i++) {
    if (!peer_step(steps[i].text, name, &is_waited_for) || find_peer(name)) continue;
    must(peer_count < MOST_PEERS);
    struct peer *peer = &peers[peer_count++];
    strcpy(peer->name, name);
    must(pipe(peer->asks) == 0 && pipe(peer->answers) == 0);
  }
  for (int i = 0; i < peer_count; i++) {
    peers[i].pid = fork();
    must(peers[i].pid >= 0);
    if (peers[i].pid == 0) be_peer(&peers[i]);
  }
  for (int i = 0; i < peer_count; i++) close(peers[i].answers[1]);
}

static void await_answer(struct peer *peer) {
  char answer;
  if (read(peer->answers[0], &answer, 1) != 1) wrong("process %s has ended", peer->name);
  peer->is_busy = false;
}

static void ask_peer(struct peer *peer, int number, const char *step, bool is_waited_for) {
  must(peer && peer->pid > 0);
  if (peer->is_busy) await_answer(peer);
  if (strcmp(step, "join") == 0) return;
  must(write(peer->asks[1], &number, sizeof number) == (ssize_t)sizeof number);
  peer->is_busy = true;
  if (is_waited_for) await_answer(peer);
}

/* The number of its end in place of a step's. It may hang in that: then the scenario goes on. */
static void end_peer(struct peer *peer, int number) {
  int status;
  pid_t ended = 0;
  must(!peer->is_busy && write(peer->asks[1], &number, sizeof number) == (ssize_t)sizeof number);
  double begun = now_us();
  while (ended == 0 && now_us() - begun < EXIT_S * 1e6) {
    usleep(500);
    ended = waitpid(peer->pid, &status, WNOHANG);
  }
  note("exit", "_us", now_us() - begun);
  must(ended == 0 || (ended == peer->pid && status == 0));
  if (ended != 0) peer->pid = 0;
}

static void signal_peer(struct peer *peer, int signal, int flags) {
  int status;
  must(kill(peer->pid, signal) == 0 && waitpid(peer->pid, &status, flags) == peer->pid);
  if (signal == SIGKILL) peer->pid = 0;
}

/* "kill r", or what else is done to a process; true: the step was one of these. */
static bool do_to_peer(const char *text) {
  char verb[MOST_TEXT], name[16];
  if (sscanf(text, "%s %15s", verb, name) != 2) return false;
  struct peer *peer = find_peer(name);
  if (!peer || peer->pid <= 0) return false;
  if (strcmp(verb, "kill") == 0) signal_peer(peer, SIGKILL, 0);
  else if (strcmp(verb, "stop") == 0) signal_peer(peer, SIGSTOP, WUNTRACED);
  else if (strcmp(verb, "continue") == 0) signal_peer(peer, SIGCONT, WCONTINUED);
  else if (strcmp(verb, "exit") == 0) end_peer(peer, EXIT);
  else if (strcmp(verb, "exit-at-once") == 0) end_peer(peer, EXIT_AT_ONCE);
  else return false;
  return true;
}

/* All that live close what they have at once, as either may wait for the other. */
static void end_peers(void) {
  int status;
  for (int i = 0; i < peer_count; i++) {
    if (peers[i].pid > 0 && peers[i].is_busy) await_answer(&peers[i]);
    close(peers[i].asks[1]);
  }
  for (int i = 0; i < peer_count; i++)
    if (peers[i].pid > 0 && (waitpid(peers[i].pid, &status, 0) != peers[i].pid || status != 0))
      wrong("process %s ended with status 0x%x", peers[i].name, (unsigned)status);
}

static void play(const struct run *run) {
  char name[16];
  bool is_waited_for;
  file_name = run->file;
  run_name = run->name;
  unfold(run, 0, 1, NULL);
  start_peers();
  for (int i = 0; i < step_count; i++) {
    at_step = &steps[i];
    const char *step = peer_step(steps[i].text, name, &is_waited_for);
    if (step) ask_peer(find_peer(name), i, step, is_waited_for);
    else if (!do_to_peer(steps[i].text)) perform(&steps[i], steps[i].text);
  }
  end_peers();
  at_step = NULL;
  finish();
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* "": all went well; else the first thing that was wrong. Its other processes die with the
 * scenario's. */
static const char *why_not(const struct run *run) {
  static char why[4096], rest[512];
  int ends[2], status;
  must(pipe2(ends, O_CLOEXEC) == 0);
  memset(board, 0, sizeof *board);
  fflush(NULL);
  pid_t pid = fork();
  must(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    why_fd = ends[1];
    alarm(is_real ? REAL_LIMIT_S : LIMIT_S);
    play(run);
    exit(0);
  }
  close(ends[1]);
  FILE *said = fdopen(ends[0], "r");
  must(said);
  *why = '\0';
  if (fgets(why, sizeof why, said)) why[strcspn(why, "\n")] = '\0';
  while (fgets(rest, sizeof rest, said)) continue; /* until all of them have gone */
  fclose(said);
  must(waitpid(pid, &status, 0) == pid);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    snprintf(why, sizeof why, "%s.txt: %s: it hangs", run->file, run->name);
  else if (status != 0 && !*why)
    snprintf(why, sizeof why, "%s.txt: %s: status 0x%x", run->file, run->name, (unsigned)status);
  return why;
}

static bool mentions(const struct run *run, const char *const *patterns) {
  for (int line = 0; line < run->line_count; line++)
    for (const char *const *pattern = patterns; *pattern; pattern++)
      if (strstr(run->lines[line].text, *pattern)) return true;
  return false;
}

static bool needs_fake(const struct run *run) {
  static const char *const faked[] = {"fail",     "break",      "hold-call", "capture ",
                                      " driver ", "FAKE_CUDA",  "mode",      "forge ",
                                      "LOST",     "live bytes", NULL};
  return strcmp(run->file, "probes") != 0 && mentions(run, faked);
}

/* What the scenario leaves stays until its process ends, with a stream's thread: ThreadSanitizer
 * calls that a leak. */
static bool is_left_out(const struct run *run) {
#ifdef __SANITIZE_THREAD__
  static const char *const leaving[] = {"exit", NULL};
  if (mentions(run, leaving)) return true;
#endif
  return is_real && needs_fake(run);
}

/* Why it comes to nothing on a device, or NULL. */
static const char *why_skipped(const struct run *run, const char *why) {
  static const char *const of_the_pool[] = {"pool", "POOL", "pair", NULL};
  static char text[512];
  const char *known = getenv("GPU_PROBE_INLINE");
  if (strncmp(why, SKIPPED, strlen(SKIPPED)) == 0) return why + strlen(SKIPPED);
  if (!*why || !known || !mentions(run, of_the_pool)) return NULL;
  snprintf(text, sizeof text, "no pool, as doctor says too: %s", known);
  return text;
}

/* Whether the file has a whole line of it. */
static bool has_run(const struct run *run, const char *path) {
  char line[8192], wanted[256];
  bool found = false;
  FILE *file = path ? fopen(path, "re") : NULL;
  snprintf(wanted, sizeof wanted, "\"scenario %s: %s\"", run->file, run->name);
  while (file && !found && fgets(line, sizeof line, file))
    found = strstr(line, wanted) && strchr(line, '\n');
  if (file) fclose(file);
  return found;
}

int main(int count, char **arguments) {
  const char *after = NULL;
  bool is_json = false;
  int failed = 0, played = 0;
  why_fd = STDERR_FILENO;
  for (int i = 1; i < count; i++) {
    if (strcmp(arguments[i], "--real") == 0) is_real = is_json = true;
    else if (strcmp(arguments[i], "--json") == 0) is_json = true;
    else if (strcmp(arguments[i], "--after") == 0 && i + 1 < count) after = arguments[++i];
    else read_file(arguments[i]);
  }
  if (!is_real && !fake_must_be_found("gpu_scenarios")) return 2;
  /* A fake device that is only late must not count as one that does not come. */
  if (!is_real) rc_semaphore_patience_ns = rc_gpu_close_ns = (int64_t)60 * 1000 * 1000 * 1000;
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(board != MAP_FAILED);
  for (int i = 0; i < run_count; i++) {
    if (is_left_out(runs[i]) || has_run(runs[i], after)) continue;
    const char *why = why_not(runs[i]), *skipped = is_real ? why_skipped(runs[i], why) : NULL;
    failed += *why && !skipped;
    played++;
    if (is_json)
      print_json(runs[i], skipped ? "skipped" : *why ? "failed" : "ok", skipped ? skipped : why);
    else if (*why) fprintf(stderr, "%s\n", why);
  }
  if (!is_json) printf("%d scenarios, %d failed\n", played, failed);
  return failed != 0;
}
