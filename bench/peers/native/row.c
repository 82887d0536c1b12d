/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "row.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios.h"

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static void put_text(const char *key, const char *text) {
  printf("\"%s\": \"", key);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
  printf("\", ");
}

static void put_number(const char *key, double value) {
  if (isfinite(value)) printf("\"%s\": %.6g, ", key, value);
  else printf("\"%s\": null, ", key);
}

static void put_count(const char *key, uint64_t value) { printf("\"%s\": %" PRIu64 ", ", key, value); }

static void put_boolean(const char *key, bool value) { printf("\"%s\": %s, ", key, value ? "true" : "false"); }

static void put_payload(uint64_t bytes) {
  char text[32];
  if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) snprintf(text, sizeof text, "bytes-%" PRIu64 "Mi", bytes >> 20);
  else if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) snprintf(text, sizeof text, "bytes-%" PRIu64 "Ki", bytes >> 10);
  else snprintf(text, sizeof text, "bytes-%" PRIu64, bytes);
  put_text("payload", text);
}

/* ---- Figures ---------------------------------------------------------------------------------------------------- */

struct figures {
  double p50_us, p99_us, mean_us, write_us, half_round_trip_ns, line_ns, line_after_ns;
  double messages_per_s, bytes_per_s, cpu_writer_s, cpu_reader_s, rss_mb, seconds;
  uint64_t messages, lost, torn;
};

static int compare(const void *left, const void *right) {
  int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return (a > b) - (a < b);
}

/* In nanoseconds; the values are sorted. */
static double quantile(const int64_t *sorted, size_t count, double share, double ns_per_tick) {
  return count == 0 ? NAN : (double)sorted[(size_t)(share * (double)(count - 1) + 0.5)] * ns_per_tick;
}

/* When the last reader has read message n. */
static int64_t last_read(struct board *board, uint64_t n) {
  int64_t last = INT64_MIN;
  for (uint32_t rank = 1; rank < board->step.processes; rank++) {
    int64_t read = board_column(board, COLUMN_READ + rank)[n];
    if (read > last) last = read;
  }
  return last;
}

/* From the start of a write until the last reader has the message. */
static void find_one_way(struct figures *figures, struct board *board, double ns_per_tick) {
  uint64_t messages = board->measured;
  const int64_t *started = board_column(board, COLUMN_STARTED), *written = board_column(board, COLUMN_WRITTEN);
  int64_t *times = malloc(messages * sizeof *times);
  double sum = 0;
  if (!times) return;
  for (uint64_t n = 0; n < messages; n++) {
    times[n] = last_read(board, n) - started[n];
    sum += (double)times[n];
  }
  qsort(times, messages, sizeof *times, compare);
  figures->p50_us = quantile(times, messages, 0.5, ns_per_tick) / 1e3;
  figures->p99_us = quantile(times, messages, 0.99, ns_per_tick) / 1e3;
  figures->mean_us = sum / (double)messages * ns_per_tick / 1e3;
  for (uint64_t n = 0; n < messages; n++) times[n] = written[n] - started[n];
  qsort(times, messages, sizeof *times, compare);
  figures->write_us = quantile(times, messages, 0.5, ns_per_tick) / 1e3;
  free(times);
}

/* The median of the means of BLOCK rounds: the counter of some CPUs goes on in steps of 10 ns, too coarse for one. */
static void find_round_trip(struct figures *figures, struct board *board, double ns_per_tick) {
  enum { BLOCK = 100 };
  uint64_t messages = board->rounds, blocks = messages / BLOCK;
  const int64_t *rounds = board_column(board, COLUMN_ROUND);
  int64_t *sums = calloc(blocks + 1, sizeof *sums);
  for (uint64_t n = 0; sums && n < blocks * BLOCK; n++) sums[n / BLOCK] += rounds[n];
  if (sums) qsort(sums, blocks, sizeof *sums, compare);
  if (sums) figures->half_round_trip_ns = quantile(sums, blocks, 0.5, ns_per_tick) / BLOCK / 2;
  free(sums);
}

static void find_rate(struct figures *figures, struct board *board, double ns_per_tick) {
  int64_t end = 0;
  uint64_t lost = 0; /* or overwritten, by the reader with the most of them */
  for (uint32_t rank = 1; rank < board->step.processes; rank++) {
    const struct peers_seat *seat = &board->seats[rank];
    if (seat->end > end) end = seat->end;
    if (seat->lost + seat->torn > lost) lost = seat->lost + seat->torn;
  }
  double seconds = (double)(end - *board_column(board, COLUMN_STARTED)) * ns_per_tick * 1e-9;
  figures->messages_per_s = (double)(board->measured - lost) / seconds;
  figures->bytes_per_s = figures->messages_per_s * (double)board->step.bytes;
}

static void find_members(struct figures *figures, const struct board *board) {
  figures->seconds = board_seconds(board);
  figures->cpu_writer_s = board->seats[0].cpu_s;
  figures->cpu_reader_s = figures->rss_mb = 0;
  for (uint32_t rank = 0; rank < board->step.processes; rank++) {
    const struct peers_seat *seat = &board->seats[rank];
    if (rank > 0) figures->cpu_reader_s += seat->cpu_s;
    if (seat->rss_mb > figures->rss_mb) figures->rss_mb = seat->rss_mb;
    figures->lost += seat->lost;
    figures->torn += seat->torn;
  }
}

static struct figures find_figures(struct board *board, const struct peers_outcome *outcome) {
  struct figures figures = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0, 0, 0};
  if (!board || strcmp(outcome->status, "ok") != 0) return figures;
  figures.messages = scenario_compares(&board->step) ? board->step.messages : board->measured;
  if (scenario_streams(&board->step)) find_rate(&figures, board, outcome->ns_per_tick);
  else if (!scenario_compares(&board->step)) find_one_way(&figures, board, outcome->ns_per_tick);
  if (board->step.processes <= board->cpus) {
    figures.line_ns = board->line_ticks[0] * outcome->ns_per_tick;
    figures.line_after_ns = board->line_ticks[1] * outcome->ns_per_tick;
  }
  if (board->both) find_round_trip(&figures, board, outcome->ns_per_tick);
  find_members(&figures, board);
  return figures;
}

/* ---- The line --------------------------------------------------------------------------------------------------- */

static void put_way(const struct way *way) {
  put_text("peer", way->name);
  put_text("family", way->family);
  put_text("language", "c");
  put_boolean("lossless", way->flags & WAY_LOSSLESS);
  put_boolean("collective", way->flags & WAY_COLLECTIVE);
  put_boolean("floor", way->flags & WAY_FLOOR);
}

static void put_step(const struct way *way, const struct peers_step *step) {
  bool in_place = scenario_is(step, "in-place");
  put_payload(step->bytes);
  put_count("bytes", step->bytes);
  put_text("scenario", step->scenario);
  put_count("processes", step->processes);
  put_text("reading", in_place ? "in-place" : "bytes");
  put_text("serialiser", "none");
  put_boolean("copying", way->flags & WAY_COPYING || (way->largest_in_place && step->bytes > way->largest_in_place));
}

static void put_figures(const struct figures *figures) {
  put_number("p50_us", figures->p50_us);
  put_number("p99_us", figures->p99_us);
  put_number("mean_us", figures->mean_us);
  put_number("write_us", figures->write_us);
  put_number("half_round_trip_ns", figures->half_round_trip_ns);
  put_number("line_ns", figures->line_ns);
  put_number("line_after_ns", figures->line_after_ns);
  put_number("messages_per_s", figures->messages_per_s);
  put_number("bytes_per_s", figures->bytes_per_s);
  put_number("cpu_writer_s", figures->cpu_writer_s);
  put_number("cpu_reader_s", figures->cpu_reader_s);
  put_number("rss_mb", figures->rss_mb);
  put_count("messages", figures->messages);
}

static void put_note(const struct way *way, const struct peers_step *step, const struct figures *figures) {
  char text[PEERS_TEXT] = "";
  if (way->note) snprintf(text, sizeof text, "%s", way->note);
  if (scenario_is(step, "batch") && way->calls && !way->calls->write_many)
    snprintf(text + strlen(text), sizeof text - strlen(text), "%sno batches: one by one", *text ? "; " : "");
  if (figures->lost || figures->torn)
    snprintf(text + strlen(text), sizeof text - strlen(text),
             "%s%" PRIu64 " messages lost, %" PRIu64 " overwritten while they were read", *text ? "; " : "",
             figures->lost, figures->torn);
  put_text("note", text);
}

void row_print(const struct way *way, const struct peers_step *step, struct board *board,
               const struct peers_outcome *outcome) {
  struct figures figures = find_figures(board, outcome);
  putchar('{');
  put_way(way);
  put_step(way, step);
  put_text("version", board ? board->version : "");
  put_text("status", outcome->status);
  put_figures(&figures);
  put_number("seconds", figures.seconds);
  put_count("attempts", outcome->attempts);
  put_boolean("oversubscribed", board && step->processes > board->cpus);
  put_note(way, step, &figures);
  if (outcome->round > 0) put_count("round", outcome->round);
  puts("\"rounds\": 1}");
  fflush(stdout);
}

void row_print_way(const struct way *way, const char *status) {
  putchar('{');
  put_way(way);
  put_text("note", way->note ? way->note : "");
  printf("\"status\": \"%s\"}\n", status);
}
