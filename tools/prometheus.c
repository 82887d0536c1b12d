/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast stat --prometheus`: the text exposition format, each metric once, with a line for each ring or reader. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "tools/stat.h"
#include "tools/text.h"

enum shape { COUNT32, COUNT64, SECONDS }; /* of the field: uint32_t, uint64_t, uint64_t of nanoseconds */

struct metric {
  const char *name, *type, *help;
  enum shape shape;
  size_t field;
};

#define WRITER(member) offsetof(struct look, member)
#define READER(member) offsetof(struct ringcast_peer, member)

static const struct metric of_ring[] = {
    {"ringcast_frames_total", "counter", "Frames sent.", COUNT64, WRITER(stats.frames)},
    {"ringcast_bytes_total", "counter", "Payload bytes sent.", COUNT64, WRITER(stats.bytes)},
    {"ringcast_waits_total", "counter", "Waits of the writer for room.", COUNT64, WRITER(stats.waits)},
    {"ringcast_waited_seconds_total", "counter", "Time that the writer has waited for room.", SECONDS,
     WRITER(stats.waited_ns)},
    {"ringcast_wakes_total", "counter", "System calls of the writer to wake readers.", COUNT64, WRITER(stats.wakes)},
    {"ringcast_capacity_bytes", "gauge", "Bytes of the ring.", COUNT64, WRITER(info.capacity)},
    {"ringcast_spill_limit_bytes", "gauge", "Spill memory that the ring may use.", COUNT64, WRITER(info.spill_bytes)},
    {"ringcast_spill_used_bytes", "gauge", "Spill memory that the ring uses now.", COUNT64, WRITER(info.spill_used)},
    {"ringcast_slots", "gauge", "Readers that the ring has room for.", COUNT32, WRITER(info.readers)},
};

static const struct metric of_reader[] = {
    {"ringcast_reader_lag_frames", "gauge", "Frames sent and not released by the reader.", COUNT64, READER(lag_frames)},
    {"ringcast_reader_lag_bytes", "gauge", "Bytes sent and not released by the reader.", COUNT64, READER(lag)},
    {"ringcast_reader_blocked_seconds", "gauge", "How long the writer has been waiting for the reader; 0: it is not.",
     SECONDS, READER(blocked_ns)},
    {"ringcast_reader_stalls_total", "counter", "Waits of the writer for the reader.", COUNT64, READER(stalls)},
    {"ringcast_reader_frames_total", "counter", "Frames released by the reader.", COUNT64, READER(stats.frames)},
    {"ringcast_reader_bytes_total", "counter", "Payload bytes released by the reader.", COUNT64, READER(stats.bytes)},
};

/* ---- Lines ------------------------------------------------------------------------------------------------------ */

static void print_head(const char *name, const char *type, const char *help) {
  printf("# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Quotation marks and backslashes are escaped as the format asks; what controls a terminal has become \xNN before. */
static void print_label(const char *separator, const char *key, const char *value) {
  char clean[512];
  printf("%s%s=\"", separator, key);
  for (const char *at = text_clean(value, clean, sizeof clean); *at; at++)
    printf(*at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
  putchar('"');
}

/* A ring without a name of its own in its process is told from the others by the words that stand for the ring. */
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

static void print_value(const void *record, const struct metric *metric) {
  uint64_t value = 0;
  uint32_t small;
  if (metric->shape == COUNT32) {
    memcpy(&small, (const char *)record + metric->field, sizeof small);
    value = small;
  } else memcpy(&value, (const char *)record + metric->field, sizeof value);
  if (metric->shape == SECONDS) printf("} %.9g\n", (double)value / 1e9);
  else printf("} %" PRIu64 "\n", value);
}

/* Rings of an incompatible release have no handle, so several of one process have one label, and one series. */
static bool is_told(const struct view *views, const struct view *view) {
  for (const struct view *other = views; other < view; other++)
    if (other->ring.pid == view->ring.pid && strcmp(other->label, view->label) == 0) return true;
  return false;
}

/* ---- Metrics ---------------------------------------------------------------------------------------------------- */

static void print_info(const struct view *views, int count) {
  print_head("ringcast_rings", "gauge", "Rings found.");
  printf("ringcast_rings %d\n", count);
  print_head("ringcast_up", "gauge", "1: the ring could be looked at.");
  for (const struct view *view = views; view < views + count; view++) {
    if (is_told(views, view)) continue;
    fputs("ringcast_up", stdout);
    print_ring(view);
    printf("} %d\n", view->error == 0);
  }
  print_head("ringcast_writer_info", "gauge", "1, with the name of the writer's program.");
  for (const struct view *view = views; view < views + count; view++) {
    if (is_told(views, view)) continue;
    fputs("ringcast_writer_info", stdout);
    print_ring(view);
    print_label(",", "command", view->command);
    puts("} 1");
  }
  print_head("ringcast_readers", "gauge", "Readers attached.");
  for (const struct view *view = views; view < views + count; view++) {
    if (view->error) continue;
    fputs("ringcast_readers", stdout);
    print_ring(view);
    printf("} %" PRIu32 "\n", view->now.count);
  }
  print_head("ringcast_writer_stopped", "gauge", "1: the writer's process is stopped by a signal or a debugger.");
  for (const struct view *view = views; view < views + count; view++) {
    if (view->error) continue;
    fputs("ringcast_writer_stopped", stdout);
    print_ring(view);
    printf("} %d\n", view->writer == 'T' || view->writer == 't');
  }
}

static void print_states(const struct view *views, int count) {
  print_head("ringcast_reader_state", "gauge", "1 for the state that the reader is in.");
  for (const struct view *view = views; view < views + count; view++)
    for (uint32_t i = 0; i < view->now.count; i++) {
      fputs("ringcast_reader_state", stdout);
      print_reader(view, &view->now.peers[i]);
      print_label(",", "state", view_state(view->now.peers[i].state));
      puts("} 1");
    }
}

void stat_print_prometheus(const struct view *views, int count) {
  print_info(views, count);
  for (size_t i = 0; i < sizeof of_ring / sizeof *of_ring; i++) {
    print_head(of_ring[i].name, of_ring[i].type, of_ring[i].help);
    for (const struct view *view = views; view < views + count; view++) {
      if (view->error) continue;
      fputs(of_ring[i].name, stdout);
      print_ring(view);
      print_value(&view->now, &of_ring[i]);
    }
  }
  for (size_t i = 0; i < sizeof of_reader / sizeof *of_reader; i++) {
    print_head(of_reader[i].name, of_reader[i].type, of_reader[i].help);
    for (const struct view *view = views; view < views + count; view++)
      for (uint32_t peer = 0; peer < view->now.count; peer++) {
        fputs(of_reader[i].name, stdout);
        print_reader(view, &view->now.peers[peer]);
        print_value(&view->now.peers[peer], &of_reader[i]);
      }
  }
  print_states(views, count);
}
