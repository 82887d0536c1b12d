/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast list`. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/text.h"
#include "tools/view.h"

static const char help[] =
    "usage: ringcast list [--names] [--format text|json]\n"
    "\n"
    "The rings of this user, in this PID namespace, with live writers.\n"
    "\n"
    "  --names           only what a RING argument takes, a ring on each line\n"
    "  --format FORMAT   text or json (default text); json has the handles too\n";

static int print_names(void) {
  struct ringcast_ring *rings;
  char label[RINGCAST_HANDLE_BYTES];
  int count = view_rings(&rings);
  if (count < 0) return cli_fail(CLI_FAILED, "%s", ringcast_last_error());
  for (int i = 0; i < count; i++) {
    bool alone =
        (i == 0 || strcmp(rings[i - 1].name, rings[i].name) != 0) &&
        (i == count - 1 || strcmp(rings[i + 1].name, rings[i].name) != 0); /* sorted by name */
    view_label(rings, count, i, label);
    if (*rings[i].handle)
      puts(alone && label[0] != '@' && strchr(label, '@') ? rings[i].name : label);
  }
  free(rings);
  return cli_finish(stdout, CLI_OK);
}

/* Nothing shorter stands for this ring alone. */
static bool is_handle(const struct view *view) { return !strchr(view->label, '@'); }

static void print_text(const struct view *views, int count) {
  static const char *const heads[] = {"NAME",      ">PID",   "COMMAND", ">READERS",
                                      ">CAPACITY", "MEMORY", "HANDLE"};
  struct text_table table;
  bool handles = false; /* needed: a column more */
  for (int i = 0; i < count; i++) handles |= is_handle(&views[i]);
  if (count == 0)
    puts("no rings: no process of this user, in this PID namespace, has a ring open for writing");
  else {
    text_table_open(&table, heads, handles ? 7 : 6);
    for (const struct view *view = views; view < views + count; view++) {
      const struct ringcast_info *info = &view->now.info;
      text_table_add(&table, "%s", *view->ring.name ? view->ring.name : "-");
      text_table_add(&table, "%" PRId32, view->ring.pid);
      text_table_add(&table, "%s", view->command);
      text_table_add(&table, view->error ? "-" : "%" PRIu32, view->now.count);
      text_table_add(&table, "%s", view->error ? "-" : text_bytes((double)info->capacity).text);
      text_table_add(&table, "%s", view->error ? "-" : ringcast_memory_name(info->memory));
      if (handles) text_table_add(&table, "%s", is_handle(view) ? view->label : "");
    }
    text_table_print(&table, stdout);
  }
  for (const struct view *view = views; view < views + count; view++)
    if (view->error) printf("%s: %s\n", view->label, view->why);
}

static void print_json(const struct view *views, int count) {
  struct report report = {.json = true};
  report_open(&report, NULL, '{');
  report_open(&report, "rings", '[');
  for (const struct view *view = views; view < views + count; view++) {
    report_open(&report, NULL, '{');
    report_string(&report, "ring", view->label);
    report_string(&report, "name", view->ring.name);
    report_integer(&report, "pid", view->ring.pid);
    report_string(&report, "command", view->command);
    report_string(&report, "handle", view->ring.handle);
    if (view->error) report_string(&report, "error", view->why);
    else {
      report_integer(&report, "readers", view->now.count);
      view_report_memory(&report, &view->now.info);
    }
    report_close(&report);
  }
  report_close(&report);
  report_close(&report);
}

int list_main(int argc, char **argv) {
  bool names = false, json = false;
  const struct cli_option options[] = {{.name = "names", .out = &names},
                                       {"format", parse_format, &json, PARSE_FORMAT, false}};
  int result = cli_parse(argc, argv, help, options, 2, NULL, 0);
  if (result != CLI_GO_ON) return result;
  if (names && json)
    return cli_misused(help, "--names prints names alone: leave out --format json");
  if (names) return print_names();
  struct view *views = NULL;
  int count = view_all(&views, 0);
  if (count < 0) return cli_fail(CLI_FAILED, "%s", ringcast_last_error());
  if (json) print_json(views, count);
  else print_text(views, count);
  view_close_all(views, count);
  return cli_finish(stdout, CLI_OK);
}
