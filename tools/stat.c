/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast stat`. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/screen.h"
#include "tools/text.h"
#include "tools/view.h"

static const char help[] =
    "usage: ringcast stat RING [--watch[=SECONDS]] [--format text|json]\n"
    "       ringcast stat [RING] --prometheus\n"
    "\n"
    "One ring at this moment: the reader that holds the ring back, or one that is stopped, dead\n"
    "or evicted; the writer; and each reader. RING is a name, NAME@PID, @PID or a handle;\n"
    "'ringcast list' shows all.\n"
    "\n"
    "  --watch[=SECONDS]  look again every second, or so many seconds (0.01 to 86400): shows "
    "rates\n"
    "  --prometheus       Prometheus' text format, of RING or of all rings\n"
    "  --format FORMAT    text or json (default text)\n";

/* ---- For people: the reader that is in the way, then the writer, then each reader ------------ */

static const char *state_in_words(uint32_t state) {
  if (state == RINGCAST_PEER_STOPPED) return "stopped by a signal";
  if (state == RINGCAST_PEER_ACTIVE) return "running";
  return view_state(state);
}

static void print_behind(FILE *out, const struct ringcast_peer *peer) {
  fprintf(out, ": %" PRIu64 " frame%s, %s behind\n", peer->lag_frames,
          peer->lag_frames == 1 ? "" : "s", text_bytes((double)peer->lag).text);
}

static void print_suspect(FILE *out, const struct ringcast_peer *peer) {
  char which[VIEW_WHICH];
  fprintf(out, "%s (pid %" PRId32 ") is %s", view_which(peer, which), peer->pid,
          state_in_words(peer->state));
  if (peer->state == RINGCAST_PEER_EVICTED) fputs(": the writer goes on without the reader\n", out);
  else print_behind(out, peer);
}

/* The reader for which the writer waits; else one that takes nothing: what the writer of a
 * lock-step engine waits for is that reader's answer; else the slowest. */
static void print_verdict(FILE *out, const struct view *view) {
  const struct ringcast_peer *blocker = view_blocker(&view->now),
                             *slowest = view_slowest(&view->now);
  const struct ringcast_peer *suspect = view_suspect(&view->now),
                             *told = blocker ? blocker : suspect;
  char which[VIEW_WHICH];
  fprintf(out, "%s: ", view->label);
  if (blocker) {
    fprintf(out, "held back by %s (pid %" PRId32 ", %s) for %s", view_which(blocker, which),
            blocker->pid, state_in_words(blocker->state),
            text_duration((double)blocker->blocked_ns).text);
    print_behind(out, blocker);
  } else if (suspect) {
    print_suspect(out, suspect);
  } else if (slowest) {
    fprintf(out, "no reader holds the ring back; the slowest is %s (pid %" PRId32 ", %s)",
            view_which(slowest, which), slowest->pid, state_in_words(slowest->state));
    print_behind(out, slowest);
  } else {
    fprintf(out, "no reader holds the ring back; %s\n",
            view->now.count == 0 ? "there is none" : "all have read everything");
  }
  if (told && told->state == RINGCAST_PEER_STOPPED)
    fprintf(out, "to let the reader go on: kill -CONT %" PRId32 "\n", told->pid);
  uint32_t more = view_suspects(&view->now) - (told && view_is_suspect(told));
  if (more > 0)
    fprintf(out, "%" PRIu32 " more reader%s stopped, dead or evicted: see STATE\n", more,
            more == 1 ? " is" : "s are");
}

static void print_writer(FILE *out, const struct view *view) {
  const struct ringcast_stats *stats = &view->now.stats;
  const struct ringcast_info *info = &view->now.info;
  const char *memory = ringcast_memory_name(info->memory);
  fprintf(out, "\nwriter   pid %" PRId32 " (%s), %s%s\n", view->ring.pid, view->command,
          view_writer_state(view->writer), view_blocker(&view->now) ? ", waits for room" : "");
  fprintf(out,
          "sent     %" PRIu64 " frames, %s; %" PRIu64 " waits for room, %s in all; %" PRIu64
          " wakes\n",
          stats->frames, text_bytes((double)stats->bytes).text, stats->waits,
          stats->waited_ns ? text_duration((double)stats->waited_ns).text : "0 s", stats->wakes);
  if (view->before.at_ns != 0)
    fprintf(out, "now      %s frames/s, %s MB/s\n",
            text_rate(view_rate(view, stats->frames, view->before.stats.frames)).text,
            text_rate(view_rate(view, stats->bytes, view->before.stats.bytes) / 1e6).text);
  fprintf(out, "memory   %s, %s, room for %" PRIu32 " readers; ",
          text_bytes((double)info->capacity).text, memory ? memory : "unknown", info->readers);
  fprintf(out, "largest frame %s; ", text_bytes((double)info->max_frame).text);
  if (info->spill_bytes == 0) fputs("no spill memory\n", out);
  else
    fprintf(out, "spill memory %s of %s used\n", text_bytes((double)info->spill_used).text,
            text_bytes((double)info->spill_bytes).text);
}

/* Nothing of it is cut on a narrow screen. */
static void print_head(FILE *out, const struct view *view) {
  char *text = NULL;
  size_t size;
  FILE *head = open_memstream(&text, &size);
  if (!head) return;
  print_verdict(head, view);
  print_writer(head, view);
  if (fclose(head) == 0) text_wrap(text, screen_columns(), 9, out);
  free(text);
}

static void add_peer(struct text_table *table, const struct view *view,
                     const struct ringcast_peer *peer) {
  const struct ringcast_peer *before = view_before(view, peer);
  text_table_add(table, "%" PRIu32, peer->slot);
  text_table_add(table, "%s", *peer->name ? peer->name : "-");
  text_table_add(table, "%" PRId32, peer->pid);
  text_table_add(table, "%s", view_state(peer->state));
  if (peer->state == RINGCAST_PEER_EVICTED) { /* the writer goes on without it: it has no lag */
    text_table_add(table, "-");
    text_table_add(table, "-");
  } else {
    text_table_add(table, "%" PRIu64, peer->lag_frames);
    text_table_add(table, "%s", text_bytes((double)peer->lag).text);
  }
  text_table_add(table, "%s", text_duration((double)peer->blocked_ns).text);
  text_table_add(table, "%" PRIu64, peer->stalls);
  text_table_add(table, "%" PRIu64, peer->stats.frames);
  text_table_add(table, "%s", text_bytes((double)peer->stats.bytes).text);
  if (view->before.at_ns == 0) return;
  text_table_add(table, "%s",
                 before ? text_rate(view_rate(view, peer->stats.frames, before->stats.frames)).text
                        : "-");
  text_table_add(
      table, "%s",
      before ? text_rate(view_rate(view, peer->stats.bytes, before->stats.bytes) / 1e6).text : "-");
}

static void print_text(FILE *out, const struct view *view) {
  static const char *const heads[] = {">SLOT",          "NAME",    ">PID",      "STATE",
                                      ">FRAMES BEHIND", ">BEHIND", ">BLOCKED",  ">STALLS",
                                      ">FRAMES",        ">BYTES",  ">FRAMES/S", ">MB/S"};
  struct text_table table;
  print_head(out, view);
  if (view->now.count == 0) return;
  fputc('\n', out);
  text_table_open(&table, heads, view->before.at_ns == 0 ? 10 : 12);
  for (uint32_t i = 0; i < view->now.count; i++) add_peer(&table, view, &view->now.peers[i]);
  text_table_print(&table, out);
}

/* ---- Prometheus' text format: each metric once, with a line for each ring or reader ---------- */

enum shape { COUNT32, COUNT64, SECONDS, IS_UP, IS_STOPPED };

/* The field is a uint32_t, a uint64_t, or a uint64_t of nanoseconds; IS_UP and IS_STOPPED: see
 * value_of. */
struct metric {
  const char *name, *type, *help;
  enum shape shape;
  size_t field;
};

#define WRITER(member) offsetof(struct view, now.member)
#define READER(member) offsetof(struct ringcast_peer, member)

static const struct metric of_ring[] = {
    {"ringcast_up", "gauge", "1: the ring could be looked at.", IS_UP, 0},
    {"ringcast_writer_stopped", "gauge",
     "1: the writer's process is stopped by a signal or a debugger.", IS_STOPPED, 0},
    {"ringcast_readers", "gauge", "Readers attached.", COUNT32, WRITER(count)},
    {"ringcast_frames_total", "counter", "Frames sent.", COUNT64, WRITER(stats.frames)},
    {"ringcast_bytes_total", "counter", "Payload bytes sent.", COUNT64, WRITER(stats.bytes)},
    {"ringcast_waits_total", "counter", "Waits of the writer for room.", COUNT64,
     WRITER(stats.waits)},
    {"ringcast_waited_seconds_total", "counter", "Time that the writer has waited for room.",
     SECONDS, WRITER(stats.waited_ns)},
    {"ringcast_wakes_total", "counter", "System calls of the writer to wake readers.", COUNT64,
     WRITER(stats.wakes)},
    {"ringcast_capacity_bytes", "gauge", "Bytes of the ring.", COUNT64, WRITER(info.capacity)},
    {"ringcast_spill_limit_bytes", "gauge", "Spill memory that the ring may use.", COUNT64,
     WRITER(info.spill_bytes)},
    {"ringcast_spill_used_bytes", "gauge", "Spill memory that the ring uses now.", COUNT64,
     WRITER(info.spill_used)},
    {"ringcast_slots", "gauge", "Readers that the ring has room for.", COUNT32,
     WRITER(info.readers)},
};

static const struct metric of_reader[] = {
    {"ringcast_reader_lag_frames", "gauge", "Frames sent and not released by the reader.", COUNT64,
     READER(lag_frames)},
    {"ringcast_reader_lag_bytes", "gauge", "Bytes sent and not released by the reader.", COUNT64,
     READER(lag)},
    {"ringcast_reader_blocked_seconds", "gauge",
     "How long the writer has been waiting for the reader; 0: it is not.", SECONDS,
     READER(blocked_ns)},
    {"ringcast_reader_stalls_total", "counter", "Waits of the writer for the reader.", COUNT64,
     READER(stalls)},
    {"ringcast_reader_frames_total", "counter", "Frames released by the reader.", COUNT64,
     READER(stats.frames)},
    {"ringcast_reader_bytes_total", "counter", "Payload bytes released by the reader.", COUNT64,
     READER(stats.bytes)},
};

static void begin_metric(const char *name, const char *type, const char *words) {
  printf("# HELP %s %s\n# TYPE %s %s\n", name, words, name, type);
}

/* Quotation marks and backslashes are escaped as the format asks; what controls a terminal has
 * become \xNN before. */
static void print_label(const char *separator, const char *key, const char *value) {
  char clean[512];
  printf("%s%s=\"", separator, key);
  for (const char *at = text_clean(value, clean, sizeof clean); *at; at++)
    printf(*at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
  putchar('"');
}

/* A ring without a name of its own in its process is told from the others by the words that stand
 * for the ring. */
static void print_ring(const struct view *view) {
  char pid[16];
  bool named = strchr(view->label, '@') && view->label[0] != '@';
  snprintf(pid, sizeof pid, "%" PRId32, view->ring.pid);
  print_label("{", "ring", named ? view->ring.name : view->label);
  print_label(",", "pid", pid);
}

static void print_reader(const struct view *view, const struct ringcast_peer *peer) {
  char number[16];
  print_ring(view);
  print_label(",", "reader", peer->name);
  snprintf(number, sizeof number, "%" PRIu32, peer->slot);
  print_label(",", "slot", number);
  snprintf(number, sizeof number, "%" PRId32, peer->pid);
  print_label(",", "reader_pid", number);
}

static uint64_t value_of(const void *record, const struct metric *metric) {
  const struct view *view = record;
  uint64_t value;
  uint32_t small;
  switch (metric->shape) {
  case IS_UP: return view->error == 0;
  case IS_STOPPED: return view->writer == 'T' || view->writer == 't';
  case COUNT32: memcpy(&small, (const char *)record + metric->field, sizeof small); return small;
  default: memcpy(&value, (const char *)record + metric->field, sizeof value); return value;
  }
}

static void print_value(const void *record, const struct metric *metric) {
  uint64_t value = value_of(record, metric);
  if (metric->shape == SECONDS) printf("} %.9g\n", (double)value / 1e9);
  else printf("} %" PRIu64 "\n", value);
}

/* Rings of an incompatible release have no handle, so several of one process have one label, and
 * one series. */
static bool is_told(const struct view *views, const struct view *view) {
  for (const struct view *other = views; other < view; other++)
    if (other->ring.pid == view->ring.pid && strcmp(other->label, view->label) == 0) return true;
  return false;
}

static void print_of_rings(const struct view *views, int count, const struct metric *metric) {
  begin_metric(metric->name, metric->type, metric->help);
  for (const struct view *view = views; view < views + count; view++) {
    if (is_told(views, view) || (view->error && metric->shape != IS_UP)) continue;
    fputs(metric->name, stdout);
    print_ring(view);
    print_value(view, metric);
  }
}

static void print_of_readers(const struct view *views, int count, const struct metric *metric) {
  begin_metric(metric->name, metric->type, metric->help);
  for (const struct view *view = views; view < views + count; view++)
    for (uint32_t peer = 0; peer < view->now.count; peer++) {
      fputs(metric->name, stdout);
      print_reader(view, &view->now.peers[peer]);
      print_value(&view->now.peers[peer], metric);
    }
}

/* What is said by a label. */
static void print_words(const struct view *views, int count) {
  begin_metric("ringcast_writer_info", "gauge", "1, with the name of the writer's program.");
  for (const struct view *view = views; view < views + count; view++) {
    if (is_told(views, view)) continue;
    fputs("ringcast_writer_info", stdout);
    print_ring(view);
    print_label(",", "command", view->command);
    puts("} 1");
  }
  begin_metric("ringcast_reader_state", "gauge", "1 for the state that the reader is in.");
  for (const struct view *view = views; view < views + count; view++)
    for (uint32_t i = 0; i < view->now.count; i++) {
      fputs("ringcast_reader_state", stdout);
      print_reader(view, &view->now.peers[i]);
      print_label(",", "state", view_state(view->now.peers[i].state));
      puts("} 1");
    }
}

static void print_prometheus(const struct view *views, int count) {
  begin_metric("ringcast_rings", "gauge", "Rings found.");
  printf("ringcast_rings %d\n", count);
  for (size_t i = 0; i < sizeof of_ring / sizeof *of_ring; i++)
    print_of_rings(views, count, &of_ring[i]);
  for (size_t i = 0; i < sizeof of_reader / sizeof *of_reader; i++)
    print_of_readers(views, count, &of_reader[i]);
  print_words(views, count);
}

/* ---- The command ----------------------------------------------------------------------------- */

struct choice {
  const char *ring;
  double watch; /* seconds; 0: once */
  bool prometheus, json;
};

static bool parse_watch(const char *text, void *out) {
  if (text) return parse_interval(text, out);
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
  print_text(out, view);
  return screen_show();
}

/* Looks and shows until interrupted, or until the ring can't be seen any more. */
static int watch(const struct choice *choice, struct view *view) {
  bool written;
  screen_open(!choice->json);
  do {
    written = show(choice, view);
  } while (written && screen_wait(choice->watch) && view_look(view) == 0);
  screen_close();
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
    return cli_fail(cli_status(view.error), "%s", view.why); /* nothing to close */
  if (choice->watch > 0) {
    result = watch(choice, &view);
  } else {
    if (choice->prometheus) print_prometheus(&view, 1);
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
  print_prometheus(views, count);
  view_close_all(views, count);
  return cli_finish(stdout, CLI_OK);
}

int stat_main(int argc, char **argv) {
  struct choice choice = {0};
  const struct cli_option options[] = {{"watch", parse_watch, &choice.watch, PARSE_INTERVAL, true},
                                       {.name = "prometheus", .out = &choice.prometheus},
                                       {"format", parse_format, &choice.json, PARSE_FORMAT, false}};
  int result = cli_parse(argc, argv, help, options, 3, &choice.ring, 1);
  if (result != CLI_GO_ON) return result;
  if (choice.prometheus && (choice.json || choice.watch > 0))
    return cli_misused(
        help,
        "--prometheus has a format of its own and looks once: leave out --format and --watch");
  if (!choice.ring && choice.prometheus) return stat_all();
  if (!choice.ring) return cli_misused(help, "say which ring; 'ringcast list' shows all");
  return stat_one(&choice);
}
