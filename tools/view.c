/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/view.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/text.h"

/* ---- Finding --------------------------------------------------------------------------------- */

int view_rings(struct ringcast_ring **out) {
  struct ringcast_ring *rings = NULL;
  int count = 0, room;
  do {
    room = count + 16;
    rings = cli_resize(rings, (size_t)room, sizeof *rings);
    rings->size = sizeof *rings;
    count = ringcast_rings(rings, (uint32_t)room);
  } while (count > room);
  if (count < 0) free(rings);
  else *out = rings;
  return count;
}

static bool is_named(const struct ringcast_ring *ring) {
  return *ring->name != '\0' && strcmp(ring->name, "?") != 0;
}

/* "?" is the name of a ring with an invalid name in its control page. */
void view_label(const struct ringcast_ring *rings, int count, int index,
                char out[RINGCAST_HANDLE_BYTES]) {
  const struct ringcast_ring *ring = &rings[index];
  int of_process = 0, of_name = 0;
  for (int i = 0; i < count; i++) {
    of_process += rings[i].pid == ring->pid;
    of_name += rings[i].pid == ring->pid && strcmp(rings[i].name, ring->name) == 0;
  }
  if (is_named(ring) && of_name == 1)
    snprintf(out, RINGCAST_HANDLE_BYTES, "%s@%" PRId32, ring->name, ring->pid);
  else if (of_process == 1 || *ring->handle == '\0')
    snprintf(out, RINGCAST_HANDLE_BYTES, "@%" PRId32, ring->pid);
  else snprintf(out, RINGCAST_HANDLE_BYTES, "%s", ring->handle);
}

static void read_command(int32_t pid, char out[64]) {
  char path[64], line[16];
  snprintf(path, sizeof path, "/proc/%" PRId32 "/comm", pid);
  text_clean(cli_read_line(path, line, sizeof line), out, 64);
}

int view_find(const char *ring, char handle[RINGCAST_HANDLE_BYTES]) {
  int result = ringcast_find(ring, handle);
  if (result == 0) return CLI_GO_ON;
  return cli_fail(cli_status(result), "%s", ringcast_last_error());
}

/* ---- Looking --------------------------------------------------------------------------------- */

static void look_at_process(struct view *view) {
  char path[64], line[512];
  read_command(view->ring.pid, view->command);
  snprintf(path, sizeof path, "/proc/%" PRId32 "/stat", view->ring.pid);
  /* A name may have brackets, too. */
  const char *end = strrchr(cli_read_line(path, line, sizeof line), ')');
  view->writer = (char)(end && end[1] == ' ' ? end[2] : 0);
}

static int read_peers(ringcast_tap *tap, struct look *look) {
  int count = 0;
  do {
    look->room = (uint32_t)count > look->info.readers ? (uint32_t)count : look->info.readers + 2;
    look->peers = cli_resize(look->peers, look->room, sizeof *look->peers);
    look->peers->size = sizeof *look->peers;
    count = ringcast_tap_peers(tap, look->peers, look->room);
  } while (count > (int)look->room);
  if (count < 0) return count;
  look->count = (uint32_t)count;
  for (uint32_t i = 0; i < look->count; i++)
    look->peers[i].name[sizeof look->peers->name - 1] = '\0';
  return 0;
}

static int read_ring(ringcast_tap *tap, struct look *look) {
  look->info.size = sizeof look->info;
  look->stats.size = sizeof look->stats;
  int result = ringcast_tap_info(tap, &look->info);
  if (result == 0) result = ringcast_tap_stats(tap, &look->stats);
  if (result == 0) result = read_peers(tap, look);
  look->at_ns = cli_now_ns();
  return result;
}

void view_label_as_given(struct view *view, const char *ring) {
  if (strcmp(ring, view->ring.handle) == 0)
    memcpy(view->label, view->ring.handle, sizeof view->label);
}

/* Into `next`. Sets view->error and view->why. */
static void look_at_ring(struct view *view, struct look *next) {
  ringcast_tap *tap = NULL;
  if (*view->ring.handle == '\0') {
    view->error = -EPROTO;
    snprintf(view->why, sizeof view->why, "its writer uses an incompatible release of ringcast");
    return;
  }
  view->error = ringcast_tap_attach(view->ring.handle, &tap);
  if (view->error == 0) view->error = read_ring(tap, next);
  if (view->error != 0) snprintf(view->why, sizeof view->why, "%s", ringcast_last_error());
  ringcast_tap_close(tap);
}

int view_look(struct view *view) {
  struct look *next = &view->before; /* its memory is used again */
  look_at_ring(view, next);
  if (view->error == 0) view->ring.pid = next->info.writer_pid;
  look_at_process(view);
  if (view->error != 0) return view->error;
  const struct look now = *next;
  view->before = view->now;
  view->now = now;
  memcpy(view->ring.name, now.info.name, sizeof view->ring.name);
  if (!*view->label) view_label(&view->ring, 1, 0, view->label);
  return 0;
}

void view_close(struct view *view) {
  free(view->now.peers);
  free(view->before.peers);
  *view = (struct view){0};
}

void view_close_all(struct view *views, int count) {
  for (int i = 0; i < count; i++) view_close(&views[i]);
  free(views);
}

/* The view of the ring among those of the last time, or a new one. */
static struct view take_view(struct view *views, int count, const struct ringcast_ring *ring) {
  struct view view = {.ring = *ring};
  for (int i = 0; i < count && *ring->handle; i++)
    if (strcmp(views[i].ring.handle, ring->handle) == 0) {
      view = views[i];
      views[i] = (struct view){0};
      break;
    }
  return view;
}

int view_all(struct view **views, int count) {
  struct ringcast_ring *rings;
  int found = view_rings(&rings);
  if (found < 0) return found;
  struct view *all = cli_resize(NULL, (size_t)found, sizeof *all);
  int kept = 0;
  for (int i = 0; i < found; i++) {
    struct view *view = &all[kept];
    *view = take_view(*views, count, &rings[i]);
    view_label(rings, found, i, view->label);
    if (view_look(view) == -ENOENT) view_close(view); /* gone since it was found */
    else kept++;
  }
  view_close_all(*views, count);
  free(rings);
  *views = all;
  return kept;
}

/* ---- What a look shows ----------------------------------------------------------------------- */

static bool is_before(const struct ringcast_peer *a, const struct ringcast_peer *b) {
  return !b || a->blocked_ns > b->blocked_ns || (a->blocked_ns == b->blocked_ns && a->lag > b->lag);
}

const struct ringcast_peer *view_blocker(const struct look *look) {
  const struct ringcast_peer *blocker = NULL;
  for (const struct ringcast_peer *peer = look->peers; peer < look->peers + look->count; peer++)
    if (peer->blocked_ns > 0 && is_before(peer, blocker)) blocker = peer;
  return blocker;
}

const struct ringcast_peer *view_slowest(const struct look *look) {
  const struct ringcast_peer *slowest = NULL;
  for (const struct ringcast_peer *peer = look->peers; peer < look->peers + look->count; peer++)
    if (peer->lag > 0 && peer->state != RINGCAST_PEER_EVICTED &&
        (!slowest || peer->lag > slowest->lag))
      slowest = peer;
  return slowest;
}

bool view_is_suspect(const struct ringcast_peer *peer) {
  return peer->state == RINGCAST_PEER_STOPPED || peer->state == RINGCAST_PEER_DEAD ||
         peer->state == RINGCAST_PEER_EVICTED;
}

/* Stopped and dead readers by their lag, then those that were evicted. */
static bool is_worse(const struct ringcast_peer *a, const struct ringcast_peer *b) {
  bool evicted = a->state == RINGCAST_PEER_EVICTED;
  if (!b) return true;
  if (evicted != (b->state == RINGCAST_PEER_EVICTED)) return !evicted;
  return a->lag > b->lag;
}

const struct ringcast_peer *view_suspect(const struct look *look) {
  const struct ringcast_peer *worst = NULL;
  for (const struct ringcast_peer *peer = look->peers; peer < look->peers + look->count; peer++)
    if (view_is_suspect(peer) && is_worse(peer, worst)) worst = peer;
  return worst;
}

uint32_t view_suspects(const struct look *look) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < look->count; i++) count += view_is_suspect(&look->peers[i]);
  return count;
}

const char *view_state(uint32_t state) {
  static const char *const states[] = {[RINGCAST_PEER_JOINING] = "joining",
                                       [RINGCAST_PEER_ACTIVE] = "active",
                                       [RINGCAST_PEER_DEAD] = "dead",
                                       [RINGCAST_PEER_STOPPED] = "stopped",
                                       [RINGCAST_PEER_EVICTED] = "evicted"};
  return state < sizeof states / sizeof *states && states[state] ? states[state] : "unknown";
}

const char *view_writer_state(char state) {
  switch (state) {
  case 'T':
  case 't': return "stopped";
  case 'Z':
  case 'X':
  case '\0': return "gone";
  default: return "running";
  }
}

const struct ringcast_peer *view_before(const struct view *view, const struct ringcast_peer *peer) {
  const struct look *look = &view->before;
  for (const struct ringcast_peer *old = look->peers;
       look->at_ns != 0 && old < look->peers + look->count; old++)
    if (old->slot == peer->slot && old->pid == peer->pid && old->stats.frames <= peer->stats.frames)
      return old;
  return NULL;
}

double view_rate(const struct view *view, uint64_t now, uint64_t before) {
  int64_t passed = view->now.at_ns - view->before.at_ns;
  if (view->before.at_ns == 0 || passed <= 0 || now < before) return NAN;
  return (double)(now - before) * 1e9 / (double)passed;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void report_count(struct report *report, const char *key, uint64_t value) {
  report_integer(report, key, value > INT64_MAX ? INT64_MAX : (int64_t)value);
}

static void report_writer(struct report *report, const struct view *view) {
  const struct ringcast_stats *stats = &view->now.stats;
  report_open(report, "writer", '{');
  report_integer(report, "pid", view->ring.pid);
  report_string(report, "command", view->command);
  report_string(report, "state", view_writer_state(view->writer));
  report_boolean(report, "waits_for_room", view_blocker(&view->now) != NULL);
  report_count(report, "frames", stats->frames);
  report_count(report, "bytes", stats->bytes);
  report_count(report, "waits", stats->waits);
  report_count(report, "waited_ns", stats->waited_ns);
  report_count(report, "sleeps", stats->sleeps);
  report_count(report, "wakes", stats->wakes);
  if (view->before.at_ns != 0) {
    report_number(report, "frames_per_s",
                  view_rate(view, stats->frames, view->before.stats.frames));
    report_number(report, "bytes_per_s", view_rate(view, stats->bytes, view->before.stats.bytes));
  }
  report_close(report);
}

void view_report_memory(struct report *report, const struct ringcast_info *info) {
  const char *memory = ringcast_memory_name(info->memory);
  report_string(report, "memory", memory ? memory : "unknown");
  report_count(report, "capacity", info->capacity);
  report_count(report, "page_size", info->page_size);
  report_count(report, "largest_frame", info->max_frame);
  report_count(report, "spill_bytes", info->spill_bytes);
  report_count(report, "spill_used", info->spill_used);
  report_integer(report, "slots", info->readers);
}

static void report_peer(struct report *report, const char *key, const struct view *view,
                        const struct ringcast_peer *peer) {
  const struct ringcast_peer *before = view_before(view, peer);
  report_open(report, key, '{');
  report_integer(report, "slot", peer->slot);
  report_string(report, "name", peer->name);
  report_integer(report, "pid", peer->pid);
  report_string(report, "state", view_state(peer->state));
  report_count(report, "lag_frames", peer->lag_frames);
  report_count(report, "lag_bytes", peer->lag);
  report_count(report, "blocked_ns", peer->blocked_ns);
  report_count(report, "stalls", peer->stalls);
  report_count(report, "frames", peer->stats.frames);
  report_count(report, "bytes", peer->stats.bytes);
  report_count(report, "waits", peer->stats.waits);
  report_count(report, "waited_ns", peer->stats.waited_ns);
  report_count(report, "wakes", peer->stats.wakes);
  if (before) {
    report_number(report, "frames_per_s",
                  view_rate(view, peer->stats.frames, before->stats.frames));
    report_number(report, "bytes_per_s", view_rate(view, peer->stats.bytes, before->stats.bytes));
  }
  report_close(report);
}

void view_report(struct report *report, const char *key, const struct view *view) {
  const struct ringcast_peer *blocker = view_blocker(&view->now);
  report_open(report, key, '{');
  report_string(report, "ring", view->label);
  report_string(report, "name", view->ring.name);
  report_string(report, "handle", view->ring.handle);
  if (view->error != 0) {
    report_integer(report, "pid", view->ring.pid);
    report_string(report, "error", view->why);
    report_close(report);
    return;
  }
  if (blocker) report_peer(report, "held_back_by", view, blocker);
  else report_null(report, "held_back_by");
  report_open(report, "suspects", '[');
  for (uint32_t i = 0; i < view->now.count; i++)
    if (view_is_suspect(&view->now.peers[i])) report_peer(report, NULL, view, &view->now.peers[i]);
  report_close(report);
  report_writer(report, view);
  view_report_memory(report, &view->now.info);
  report_open(report, "readers", '[');
  for (uint32_t i = 0; i < view->now.count; i++)
    report_peer(report, NULL, view, &view->now.peers[i]);
  report_close(report);
  report_close(report);
}

char *view_which(const struct ringcast_peer *peer, char out[VIEW_WHICH]) {
  char name[TEXT_CLEAN * sizeof peer->name];
  text_clean(peer->name, name, sizeof name);
  if (*name) snprintf(out, VIEW_WHICH, "reader %" PRIu32 " '%s'", peer->slot, name);
  else snprintf(out, VIEW_WHICH, "reader %" PRIu32, peer->slot);
  return out;
}
