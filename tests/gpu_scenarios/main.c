/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the scenarios of the files that are named (`writer` is writer.txt of this folder), and runs them;
 * `writer:a_lease` runs those alone that have "a lease" in their name. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/gpu_scenarios/scenario.h"
#include "tests/support/children.h"
#include "tests/support/gpu.h"

enum { MOST_RUNS = 1024, MOST_LINES = 64, MOST_STEPS = 512, MOST_PEERS = 4 };

static struct run {
  const char *file;
  char name[160];
  struct step lines[MOST_LINES]; /* as they are in the file, indented */
  int line_count;
} * runs[MOST_RUNS];
static int run_count;
static struct step steps[MOST_STEPS];
static int step_count;
static const char *file_name, *run_name = "";
static _Thread_local const struct step *at_step;
struct board *board;

void wrong(const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s.txt:%d: %s: '%s': %s\n", file_name, at_step ? at_step->line : 0, run_name,
          at_step ? at_step->text : "the end", text);
  _exit(1);
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

static int indent_of(const char *text) { return (int)strspn(text, " "); }

/* The next word, or NULL; *text goes on behind it. Quotation marks hold a word together. */
static char *next_word(char **text) {
  char *word = *text + strspn(*text, " ");
  if (*word == '\0') return NULL;
  bool is_quoted = *word == '"';
  word += is_quoted;
  char *end = word + strcspn(word, is_quoted ? "\"" : " ");
  *text = *end ? end + 1 : end;
  *end = '\0';
  return word;
}

/* Replaces $NAME by a value wherever it is. */
static void substitute(char text[MOST_TEXT], const char *name, const char *value) {
  char pattern[32], copy[MOST_TEXT];
  snprintf(pattern, sizeof pattern, "$%s", name);
  for (char *found; (found = strstr(text, pattern));) {
    strcpy(copy, found + strlen(pattern));
    int room = MOST_TEXT - (int)(found - text);
    must(snprintf(found, (size_t)room, "%s%s", value, copy) < room);
  }
}

/* One of the values of `each A/B x/y z/w`, in all lines of the run. */
static void substitute_each(struct run *run, const char *names, const char *values) {
  char left[MOST_TEXT], right[MOST_TEXT], *rest = left, *others = right;
  strcpy(left, names);
  strcpy(right, values);
  while (rest && others) {
    const char *name = strsep(&rest, "/"), *value = strsep(&others, "/");
    for (int i = 0; i < run->line_count; i++) substitute(run->lines[i].text, name, value);
  }
}

/* The run, and instead of one with `each` lines those of its values. */
static void add_runs(struct run *run) {
  int each = 0;
  while (each < run->line_count && strncmp(run->lines[each].text, "  each ", 7) != 0) each++;
  if (each == run->line_count) {
    must(run_count < MOST_RUNS);
    runs[run_count++] = run;
    return;
  }
  char values[MOST_TEXT], *text = values + 7, *value;
  strcpy(values, run->lines[each].text);
  memmove(&run->lines[each], &run->lines[each + 1], sizeof *run->lines * (size_t)(--run->line_count - each));
  const char *names = next_word(&text);
  while ((value = next_word(&text))) {
    struct run *copy = malloc(sizeof *copy);
    *copy = *run;
    snprintf(copy->name + strlen(copy->name), sizeof copy->name - strlen(copy->name), ", %s", value);
    substitute_each(copy, names, value);
    add_runs(copy);
  }
  free(run);
}

static void read_file(char *file) {
  char path[512], text[MOST_TEXT];
  struct run *run = NULL;
  char *only = strchr(file, ':');
  if (only) *only++ = '\0';
  for (char *at = only; at && *at; at++)
    if (*at == '_') *at = ' ';
  snprintf(path, sizeof path, "%s/%s.txt", SCENARIOS, file);
  file_name = file;
  FILE *stream = fopen(path, "re");
  if (!stream) {
    fprintf(stderr, "there are no scenarios %s\n", path);
    exit(2);
  }
  for (int line = 1; fgets(text, sizeof text, stream); line++) {
    must(strchr(text, '\n')); /* else the line is too long */
    text[strcspn(text, "\n")] = '\0';
    if (text[0] == '#' || text[indent_of(text)] == '\0') continue;
    if (text[0] != ' ') {
      if (run) add_runs(run);
      run = only && !strstr(text, only) ? NULL : calloc(1, sizeof *run);
      if (run) run->file = file, strcpy(run->name, text);
      continue;
    }
    if (!run) continue;
    if (strncmp(text + indent_of(text), "+ ", 2) == 0) { /* the line before goes on */
      char *before = run->lines[run->line_count - 1].text;
      must(strlen(before) + strlen(text) < MOST_TEXT);
      strcat(before, text + indent_of(text) + 1);
      continue;
    }
    must(run->line_count < MOST_LINES);
    run->lines[run->line_count] = (struct step){.line = line};
    strcpy(run->lines[run->line_count++].text, text);
  }
  if (run) add_runs(run);
  fclose(stream);
}

/* The next step of a line, or NULL; semicolons in quotation marks are text. */
static char *next_step(char **line) {
  char *step = *line, *end = step;
  if (!step) return NULL;
  for (bool is_quoted = false; *end && (*end != ';' || is_quoted); end++) is_quoted ^= *end == '"';
  *line = *end ? end + 1 : NULL;
  *end = '\0';
  return step;
}

/* The lines from here on that are indented so far, as steps. */
static void unfold(const struct run *run, int from, int indent, const char *i) {
  while (from < run->line_count && indent_of(run->lines[from].text) >= indent) {
    struct step line = run->lines[from++];
    char *rest = line.text + indent_of(line.text), number_text[16];
    if (i) substitute(line.text, "i", i);
    if (strncmp(rest, "times ", 6) == 0) {
      int inner = indent_of(run->lines[from].text), end = from;
      for (uint64_t turn = 0; turn < number(rest + 6); turn++) {
        snprintf(number_text, sizeof number_text, "%d", (int)turn);
        unfold(run, from, inner, number_text);
      }
      while (end < run->line_count && indent_of(run->lines[end].text) >= inner) end++;
      from = end;
      continue;
    }
    for (char *one; (one = next_step(&rest));) {
      must(step_count < MOST_STEPS);
      steps[step_count] = (struct step){.line = line.line};
      strcpy(steps[step_count++].text, one + indent_of(one));
    }
  }
}

/* ---- Doing ------------------------------------------------------------------------------------------------------ */

static void split(const char *text, struct words *out) {
  char *rest = out->storage, *word;
  *out = (struct words){.count = 0};
  strcpy(out->storage, text);
  while ((word = next_word(&rest))) {
    must(out->count < MOST_WORDS);
    out->at[out->count++] = word;
  }
  for (int i = out->count; i <= MOST_WORDS; i++) out->at[i] = "";
}

/* Cuts "= RESULT" off, and gives it. */
static const char *cut_result(struct words *words) {
  if (words->count < 3 || strcmp(words->at[words->count - 2], "=") != 0) return "0";
  const char *result = words->at[words->count - 1];
  words->count -= 2;
  words->at[words->count] = words->at[words->count + 1] = "";
  return result;
}

static void shift(struct words *words) {
  memmove(words->at, words->at + 1, sizeof words->at - sizeof *words->at);
  words->at[MOST_WORDS] = "";
  words->count--;
}

static void result_must_be(long result, const char *expected) {
  if (!is_result(result, expected))
    wrong("%ld (%s), and not %s", result, result < 0 ? ringcast_last_error() : "", expected);
}

static void do_in_child(struct words *words, const char *expected) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    result_must_be(do_step(words), expected);
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

static long do_interrupted(struct words *words) {
  struct sigaction action = {.sa_handler = notice, .sa_flags = SA_RESTART};
  pthread_t self = pthread_self(), thread;
  must(sigaction(SIGUSR1, &action, NULL) == 0);
  must(pthread_create(&thread, NULL, signal_again_and_again, &self) == 0);
  long result = do_step(words);
  has_returned = true;
  must(pthread_join(thread, NULL) == 0);
  return result;
}

/* A step without a process of its own. */
static void perform(const struct step *step, const char *text) {
  struct words words;
  at_step = step;
  split(text, &words);
  const char *expected = cut_result(&words);
  if (strcmp(words.at[0], "child") == 0) {
    shift(&words);
    do_in_child(&words, expected);
  } else if (strcmp(words.at[0], "interrupt") == 0) {
    shift(&words);
    result_must_be(do_interrupted(&words), expected);
  } else if (strcmp(words.at[0], "again") == 0) {
    shift(&words);
    for (struct words copy; split(text, &copy), cut_result(&copy), shift(&copy), !is_result(do_step(&copy), expected);)
      nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  } else if (strcmp(words.at[0], "meanwhile") == 0) {
    must(!meanwhile.runs);
    split(text, &meanwhile.words);
    shift(&meanwhile.words);
    meanwhile.step = step;
    meanwhile.runs = pthread_create(&meanwhile.thread, NULL, do_meanwhile, NULL) == 0;
    must(meanwhile.runs);
  } else {
    result_must_be(strcmp(words.at[0], "join") == 0 ? join() : do_step(&words), expected);
  }
}

/* ---- Other processes -------------------------------------------------------------------------------------------- */

static struct peer {
  char name[16];
  pid_t pid;
  int asks[2], answers[2];
  bool is_busy; /* with a step that is not waited for */
} peers[MOST_PEERS];
static int peer_count;

/* "r: send 1 2" or "r& ...": the process's name, and where its step begins; NULL: it is a step of this one's. */
static const char *peer_step(const char *text, char name[16], bool *is_waited_for) {
  size_t length = strcspn(text, ":& ");
  if ((text[length] != ':' && text[length] != '&') || text[length + 1] != ' ' || length >= 16) return NULL;
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
  for (int i = 0; i < peer_count; i++) {
    close(peers[i].asks[1]);
    if (&peers[i] != peer) close(peers[i].answers[1]);
  }
  while (read(peer->asks[0], &number, sizeof number) == (ssize_t)sizeof number) {
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

/* kill, stop, continue; true: the step was one of these. */
static bool signal_peer(const char *text) {
  static const struct {
    const char *verb;
    int signal, flags;
  } signals[] = {{"kill", SIGKILL, 0}, {"stop", SIGSTOP, WUNTRACED}, {"continue", SIGCONT, WCONTINUED}};
  for (int i = 0; i < 3; i++) {
    size_t length = strlen(signals[i].verb);
    if (strncmp(text, signals[i].verb, length) != 0 || text[length] != ' ') continue;
    struct peer *peer = find_peer(text + length + 1);
    int status;
    must(peer && peer->pid > 0 && kill(peer->pid, signals[i].signal) == 0);
    must(waitpid(peer->pid, &status, signals[i].flags) == peer->pid);
    if (i == 0) peer->pid = 0;
    return true;
  }
  return false;
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

START_TEST(scenario) {
  char name[16];
  bool is_waited_for;
  const struct run *run = runs[_i];
  file_name = run->file;
  run_name = run->name;
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(board, MAP_FAILED);
  unfold(run, 0, 1, NULL);
  start_peers();
  for (int i = 0; i < step_count; i++) {
    at_step = &steps[i];
    const char *step = peer_step(steps[i].text, name, &is_waited_for);
    if (step) ask_peer(find_peer(name), i, step, is_waited_for);
    else if (!signal_peer(steps[i].text)) perform(&steps[i], steps[i].text);
  }
  end_peers();
  at_step = NULL;
  finish();
}
END_TEST

int main(int count, char **files) {
  for (int i = 1; i < count; i++) read_file(files[i]);
  Suite *suite = suite_create("gpu_scenarios");
  TCase *tests = add_case(suite, "scenarios");
  tcase_add_loop_test(tests, scenario, 0, run_count);
  return run_gpu_suite(suite, "test_gpu_scenarios");
}
