/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast stat`: its options, and looking again. */
#include "tools/stat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/screen.h"

static const char usage[] = "usage: ringcast stat RING [--watch[=SECONDS]] [--format text|json]\n"
                            "       ringcast stat [RING] --prometheus\n";

static const char help[] =
    "\n"
    "One ring at this moment. The first line names the reader that holds the ring back, and says for how long, or one\n"
    "that is stopped, dead or evicted; below are the writer and each reader. RING is a name, NAME@PID where several\n"
    "rings have the name, @PID for the only ring of a process, or a handle. Looking changes nothing and holds nothing\n"
    "back.\n"
    "\n"
    "READERS\n"
    "  STATE          active; joining; stopped (by a signal or a debugger); dead; evicted: the writer goes on without\n"
    "                 the reader\n"
    "  FRAMES BEHIND  frames that were sent and that the reader has not released (a batch counts as one), and bytes\n"
    "  BLOCKED        for how long the writer has been waiting for the reader\n"
    "  STALLS         how often the writer has waited for the reader\n"
    "  FRAMES, BYTES  released by the reader since it attached\n"
    "\n"
    "OPTIONS\n"
    "  --watch[=SECONDS]  look again every second, or so many seconds (0.01 to 86400), and show rates; on a\n"
    "                     terminal in place, else block by block, or an object on each line for json. Ends by Ctrl-C\n"
    "                     or 'q', or when the writer goes\n"
    "  --prometheus       Prometheus' text format, of RING or of all rings: for node_exporter's textfile collector\n"
    "  --format FORMAT    text or json (default text)\n"
    "  --help             this text\n"
    "\n"
    "EXIT STATUS\n"
    "  0 well; 1 failed; 2 wrong command line; 3 no such ring; 4 RING stands for several rings, which are listed;\n"
    "  5 the writer went while --watch was watching\n"
    "\n"
    "EXAMPLES\n"
    "  ringcast stat camera\n"
    "  ringcast stat camera --watch=0.5\n"
    "  ringcast stat camera --format json\n"
    "  ringcast stat --prometheus\n";

struct choice {
  const char *ring;
  double watch; /* seconds; 0: once */
  bool prometheus, json;
};

static bool parse_watch(const char *text, void *out) {
  if (text) return cli_parse_seconds(text, out);
  *(double *)out = 1;
  return true;
}

/* Shows the ring once. False: stdout can't be written. */
static bool show(const struct choice *choice, const struct view *view) {
  if (choice->json) {
    struct report report = {.json = true, .line = choice->watch > 0};
    view_report(&report, NULL, view);
    return fflush(stdout) == 0 && !ferror(stdout);
  }
  FILE *out = screen_begin();
  if (!out) return false;
  stat_print_text(out, view);
  return screen_show();
}

/* Looks and shows until interrupted, or until the ring can't be seen any more. */
static int watch(const struct choice *choice, struct view *view) {
  bool written;
  screen_open(!choice->json);
  do { written = show(choice, view); } while (written && screen_wait(choice->watch) && view_look(view) == 0);
  bool full = screen_is_full();
  screen_close();
  if (full) screen_repeat();
  int result = cli_finish(stdout, CLI_OK);
  if (result != CLI_OK || view->error == 0) return result;
  if (view->error != -ENOENT) return cli_fail(CLI_FAILED, "%s", view->why);
  return cli_fail(CLI_GONE, "the writer of %s is gone", view->label);
}

static int stat_one(const struct choice *choice) {
  struct view view = {0};
  int result = view_find(choice->ring, view.ring.handle);
  if (result != CLI_GO_ON) return result;
  view_label_as_given(&view, choice->ring);
  if (view_look(&view) != 0)
    return cli_fail(view.error == -ENOENT ? CLI_NO_RING : CLI_FAILED, "%s", view.why); /* nothing to close */
  if (choice->watch > 0) {
    result = watch(choice, &view);
  } else {
    if (choice->prometheus) stat_print_prometheus(&view, 1);
    else show(choice, &view);
    result = cli_finish(stdout, CLI_OK);
  }
  view_close(&view);
  return result;
}

static int stat_all(void) {
  struct view *views = NULL;
  int count = view_all(&views, 0);
  if (count < 0) return cli_fail(CLI_FAILED, "%s", ringcast_last_error());
  stat_print_prometheus(views, count);
  view_close_all(views, count);
  return cli_finish(stdout, CLI_OK);
}

int stat_main(int argc, char **argv) {
  struct choice choice = {0};
  const struct cli_option options[] = {{"watch", parse_watch, &choice.watch, CLI_SECONDS, true},
                                       {.name = "prometheus", .out = &choice.prometheus},
                                       {"format", cli_parse_format, &choice.json, CLI_FORMATS, false}};
  int result = cli_parse(argc, argv, &(struct cli_texts){usage, help}, options, 3, &choice.ring, 1);
  if (result != CLI_GO_ON) return result;
  if (choice.prometheus && (choice.json || choice.watch > 0))
    return cli_misused(usage, "--prometheus has a format of its own and looks once: leave out --format and --watch");
  if (!choice.ring && choice.prometheus) return stat_all();
  if (!choice.ring) return cli_misused(usage, "say which ring; 'ringcast list' shows all");
  return stat_one(&choice);
}
