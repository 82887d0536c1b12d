/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings as seen from outside. Each look attaches a tap and detaches the tap: between two looks
 * nothing of the ring is held: a ring leaves no memory behind when its writer goes, and a tap never
 * holds the writer back.
 */
#ifndef TOOLS_VIEW_H
#define TOOLS_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringcast/inspect.h"
#include "ringcast/ringcast.h"
#include "tools/text.h"

/* One moment of a ring. */
struct look {
  int64_t at_ns; /* CLOCK_MONOTONIC; 0: there was no look */
  struct ringcast_info info;
  struct ringcast_stats stats; /* of the writer */
  struct ringcast_peer *peers;
  uint32_t count, room; /* of the peers */
};

struct view {
  struct ringcast_ring ring;
  char label[RINGCAST_HANDLE_BYTES]; /* a RING argument that stands for this ring alone: NAME@PID,
                                        @PID, or the handle */
  char command[64];                  /* the writer's program, as the process calls itself */
  char writer; /* the state of the writer's process: 'T', stopped, and others of proc(5) */
  int error;   /* of the last look: a negative errno, and why; `now` is then the look before */
  char why[256];
  struct look now, before;
};

/* All rings of this user, to be freed. Returns their number, or -errno (ringcast_last_error). */
int view_rings(struct ringcast_ring **out);

/* The shortest RING argument that stands for one of all rings alone. */
void view_label(const struct ringcast_ring *rings, int count, int index,
                char out[RINGCAST_HANDLE_BYTES]);

/* The handle of the ring that the user calls `ring`. Returns CLI_GO_ON, or says why not and returns
 * the exit status. */
int view_find(const char *ring, char handle[RINGCAST_HANDLE_BYTES]);

/* If the user gave a handle, the handle stays the label: other rings of the process may have the
 * same name. */
void view_label_as_given(struct view *view, const char *ring);

/* A view starts as zeros with ring.handle. Looks again: `before` becomes the last look. 0; -ENOENT:
 * the writer is gone; or another error, see view->why. */
int view_look(struct view *view);
void view_close(struct view *view);

/* Finds all rings and looks at each; the looks of `views` become those before. Returns the number,
 * or -errno. */
int view_all(struct view **views, int count);
void view_close_all(struct view *views, int count);

/* ---- What a look shows ----------------------------------------------------------------------- */

/* The reader for which the writer has been waiting the longest, NULL if the writer does not
 * wait. */
const struct ringcast_peer *view_blocker(const struct look *look);
/* The reader that is furthest behind, NULL if there is no reader or no lag. */
const struct ringcast_peer *view_slowest(const struct look *look);

/* A reader that takes nothing, being stopped, dead or evicted. The writer need not wait for the
 * reader to make room: a lock-step engine waits for its workers' answers. */
bool view_is_suspect(const struct ringcast_peer *peer);
/* The one that is furthest behind, the evicted last; NULL if there is none. */
const struct ringcast_peer *view_suspect(const struct look *look);
uint32_t view_suspects(const struct look *look); /* how many there are */

const char *view_state(uint32_t state);    /* of a reader, in one word */
const char *view_writer_state(char state); /* of the writer's process: "running", "stopped" */

/* The same reader in the look before, or NULL. */
const struct ringcast_peer *view_before(const struct view *view, const struct ringcast_peer *peer);

/* Growth per second since the look before; NaN if there was none. */
double view_rate(const struct view *view, uint64_t now, uint64_t before);

/* The ring as one JSON object; of its memory alone, the keys. */
void view_report(struct report *report, const char *key, const struct view *view);
void view_report_memory(struct report *report, const struct ringcast_info *info);

/* "reader 1 'rank 2'", for a terminal. Returns `out`. */
enum { VIEW_WHICH = 192 };
char *view_which(const struct ringcast_peer *peer, char out[VIEW_WHICH]);

#endif
