/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast top`: all rings, the worst first. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/cli.h"
#include "tools/screen.h"
#include "tools/text.h"
#include "tools/view.h"

static const char help[] =
    "usage: ringcast top [--interval SECONDS] [--once] [--format text|json]\n"
    "\n"
    "All rings of this user, live: first those that a reader holds back, then those with a reader\n"
    "that is stopped, dead or evicted, then by rate. Ctrl-C ends it.\n"
    "\n"
    "  --interval SECONDS  from one look to the next, 0.01 to 86400 (default 1)\n"
    "  --once              one block, of the rates of one interval\n"
    "  --format FORMAT     text or json (default text)\n";

struct choice {
  double interval;
  bool once, json;
};

/* ---- The order ------------------------------------------------------------------------------- */

static double frames_per_s(const struct view *view) {
  double rate = view_rate(view, view->now.stats.frames, view->before.stats.frames);
  return isfinite(rate) ? rate : -1;
}

static uint64_t blocked_ns(const struct view *view) {
  const struct ringcast_peer *blocker = view_blocker(&view->now);
  return blocker ? blocker->blocked_ns : 0;
}

static int by_trouble(const void *a, const void *b) {
  const struct view *first = a, *second = b;
  uint64_t blocked = blocked_ns(first), other = blocked_ns(second);
  if (blocked != other) return blocked < other ? 1 : -1;
  bool suspect = view_suspect(&first->now), other_suspect = view_suspect(&second->now);
  if (suspect != other_suspect) return other_suspect ? 1 : -1;
  double rate = frames_per_s(first), other_rate = frames_per_s(second);
  if (rate < other_rate || rate > other_rate) return rate < other_rate ? 1 : -1;
  return strcmp(first->label, second->label);
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* Who is in the way. */
static void add_trouble(struct text_table *table, const struct view *view,
                        const struct ringcast_peer *blocker) {
  const struct ringcast_peer *suspect = view_suspect(&view->now);
  char which[VIEW_WHICH];
  if (view->error) text_table_add(table, "%s", view->why);
  else if (blocker)
    text_table_add(table, "%s (pid %" PRId32 ", %s)", view_which(blocker, which), blocker->pid,
                   view_state(blocker->state));
  else if (suspect)
    text_table_add(table, "%s: %s (pid %" PRId32 ")", view_state(suspect->state),
                   view_which(suspect, which), suspect->pid);
  else if (view->writer == 'T' || view->writer == 't') text_table_add(table, "(writer stopped)");
  else text_table_add(table, "%s", "");
}

static void add_row(struct text_table *table, const struct view *view) {
  static const struct ringcast_peer none;
  const struct ringcast_stats *now = &view->now.stats, *before = &view->before.stats;
  const struct ringcast_peer *blocker = view_blocker(&view->now);
  const struct ringcast_peer *slowest = view_slowest(&view->now);
  if (!slowest) slowest = &none;
  if (strchr(view->label, '@')) text_table_add(table, "%s", view->label);
  else text_table_add(table, "%s@%" PRId32, view->ring.name, view->ring.pid); /* not the handle */
  text_table_add(table, "%s", text_rate(view_rate(view, now->frames, before->frames)).text);
  text_table_add(table, "%s", text_rate(view_rate(view, now->bytes, before->bytes) / 1e6).text);
  text_table_add(table, "%" PRIu32, view->now.count);
  text_table_add(table, "%" PRIu64, slowest->lag_frames);
  text_table_add(table, "%s", text_bytes((double)slowest->lag).text);
  text_table_add(table, "%s", text_duration((double)blocked_ns(view)).text);
  add_trouble(table, view, blocker);
}

static void print_text(FILE *out, const struct view *views, int count) {
  static const char *const heads[] = {"RING",           ">FRAMES/S", ">MB/S",    ">READERS",
                                      ">FRAMES BEHIND", ">BEHIND",   ">BLOCKED", "BY"};
  struct text_table table;
  int blocked = 0, suspect = 0;
  time_t now = time(NULL);
  char clock[16] = "";
  struct tm local;
  for (int i = 0; i < count; i++) {
    blocked += blocked_ns(&views[i]) > 0;
    suspect += view_suspect(&views[i].now) != NULL;
  }
  if (localtime_r(&now, &local)) strftime(clock, sizeof clock, "%H:%M:%S", &local);
  fprintf(out, "%s  %d ring%s, %d held back, %d with a reader stopped, dead or evicted\n", clock,
          count, count == 1 ? "" : "s", blocked, suspect);
  if (count == 0) return;
  text_table_open(&table, heads, 8);
  table.most = screen_columns();
  table.drops = "34251"; /* the ring, and for how long its writer has been waiting, stay */
  for (int i = 0; i < count; i++) add_row(&table, &views[i]);
  text_table_print(&table, out);
}

/* ---- Looking --------------------------------------------------------------------------------- */

/* False: stdout can't be written. */
static bool show(const struct choice *choice, const struct view *views, int count) {
  if (choice->json) {
    struct report report = {.json = true, .line = true};
    report_open(&report, NULL, '{');
    report_open(&report, "rings", '[');
    for (int i = 0; i < count; i++) view_report(&report, NULL, &views[i]);
    report_close(&report);
    report_close(&report);
    return fflush(stdout) == 0 && !ferror(stdout);
  }
  FILE *out = screen_begin();
  if (!out) return false;
  print_text(out, views, count);
  return screen_show();
}

int top_main(int argc, char **argv) {
  struct choice choice = {.interval = 1};
  const struct cli_option options[] = {
      {"interval", parse_interval, &choice.interval, PARSE_INTERVAL, false},
      {.name = "once", .out = &choice.once},
      {"format", parse_format, &choice.json, PARSE_FORMAT, false}};
  int result = cli_parse(argc, argv, help, options, 3, NULL, 0);
  if (result != CLI_GO_ON) return result;
  struct view *views = NULL;
  int count = view_all(&views, 0);
  bool first = true, plain = choice.json || choice.once;
  screen_open(!plain);
  while (count >= 0) {
    if (count > 1) qsort(views, (size_t)count, sizeof *views, by_trouble);
    if ((!first || screen_is_full()) && !show(&choice, views, count)) break;
    if ((choice.once && !first) || !screen_wait(choice.interval)) break;
    int found = view_all(&views, count);
    if (found < 0) view_close_all(views, count);
    count = found;
    first = false;
  }
  screen_close();
  if (count < 0) return cli_fail(CLI_FAILED, "%s", ringcast_last_error());
  view_close_all(views, count);
  return cli_finish(stdout, CLI_OK);
}
