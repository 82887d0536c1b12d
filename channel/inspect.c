/* SPDX-License-Identifier: Apache-2.0 */
/* Finding rings by name. */
#include "ringcast/inspect.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/error.h"
#include "shm/segment.h"
#include "shm/options.h"

_Static_assert(RINGCAST_NAME_BYTES == RC_RING_NAME && RINGCAST_HANDLE_BYTES == RC_HANDLE_MAX,
               "sizes of texts");

struct rings {
  struct ringcast_ring *all;
  uint32_t count, room;
};

static int collect(void *context, const struct rc_found *found) {
  struct rings *rings = context;
  if (rings->count == rings->room) {
    uint32_t room = 2 * rings->room + 16;
    struct ringcast_ring *all = realloc(rings->all, room * sizeof *all);
    if (!all) return rc_fail(-ENOMEM, "out of memory");
    rings->all = all;
    rings->room = room;
  }
  struct ringcast_ring *ring = &rings->all[rings->count++];
  *ring = (struct ringcast_ring){.size = sizeof *ring, .pid = found->pid};
  memcpy(ring->name, found->name, sizeof ring->name);
  if (found->compatible) rc_handle_format(&found->handle, ring->handle);
  return 0;
}

static int by_name(const void *a, const void *b) {
  const struct ringcast_ring *first = a, *second = b;
  int order = strcmp(first->name, second->name);
  if (order == 0) order = (first->pid > second->pid) - (first->pid < second->pid);
  return order != 0 ? order : strcmp(first->handle, second->handle);
}

/* The caller frees rings->all, also after an error. */
static int find_all(struct rings *rings) {
  *rings = (struct rings){0};
  int result = rc_find_rings(collect, rings);
  if (result == 0 && rings->count > 1) qsort(rings->all, rings->count, sizeof *rings->all, by_name);
  return result;
}

int ringcast_rings(struct ringcast_ring *out, uint32_t capacity) {
  if (!out && capacity != 0) return rc_fail(-EINVAL, "rings is NULL, but its capacity is not 0");
  const uint32_t size = capacity == 0 ? 0 : out->size;
  int result = capacity == 0 ? 0 : rc_sized_check("ringcast_ring", size);
  if (result != 0) return result;
  struct rings rings;
  result = find_all(&rings);
  for (uint32_t i = 0; result == 0 && i < rings.count && i < capacity; i++)
    rc_sized_write((uint8_t *)out + (size_t)i * size, size, &rings.all[i], sizeof rings.all[i]);
  free(rings.all);
  return result != 0 ? result : (int)rings.count;
}

/* ---- One ring -------------------------------------------------------------------------------- */

/* What the text of a caller asks for. */
struct wish {
  char name[RC_RING_NAME]; /* "": any */
  int32_t pid;             /* 0: any */
};

/* 0: the text is no pid. */
static int32_t pid_of(const char *text) {
  size_t digits = strspn(text, "0123456789");
  return digits > 0 && digits < 10 && text[digits] == '\0' ? (int32_t)strtol(text, NULL, 10) : 0;
}

static int parse(const char *text, struct wish *out) {
  *out = (struct wish){0};
  const char *at = strrchr(text, '@');
  size_t length = at ? (size_t)(at - text) : strlen(text);
  if (at) out->pid = pid_of(at + 1);
  if (length < sizeof out->name && (at ? out->pid > 0 : length > 0)) {
    memcpy(out->name, text, length);
    if (length == 0 || rc_name_check(out->name) == 0) return 0;
  }
  return rc_fail(-EINVAL,
                 "'%.96s' is not a ring: it should be NAME, NAME@PID, @PID or a handle (rc1:...)",
                 text);
}

static bool matches(const struct wish *wish, const struct ringcast_ring *ring) {
  return (*wish->name == '\0' || strcmp(wish->name, ring->name) == 0) &&
         (wish->pid == 0 || wish->pid == ring->pid);
}

/* Whether NAME@PID stands for several rings. */
static bool is_twin(const struct rings *rings, const struct ringcast_ring *ring) {
  for (uint32_t i = 0; i < rings->count; i++) {
    const struct ringcast_ring *other = &rings->all[i];
    if (other != ring && other->pid == ring->pid && strcmp(other->name, ring->name) == 0)
      return true;
  }
  return false;
}

/* Lists the rings, as far as the text has room. */
static int fail_several(const char *text, const struct wish *wish, const struct rings *rings,
                        uint32_t count) {
  char list[256] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < rings->count && used < sizeof list; i++) {
    const struct ringcast_ring *ring = &rings->all[i];
    if (!matches(wish, ring)) continue;
    const char *comma = used > 0 ? ", " : "";
    bool by_handle = is_twin(rings, ring);
    used +=
        (size_t)(by_handle ? snprintf(list + used, sizeof list - used, "%s%s", comma, ring->handle)
                           : snprintf(list + used, sizeof list - used, "%s%s@%" PRId32, comma,
                                      ring->name, ring->pid));
  }
  return rc_fail(-ENOTUNIQ, "'%.80s' stands for %u rings: take one of %s%s", text, count, list,
                 used >= sizeof list ? "..." : "");
}

static int choose(const char *text, const struct rings *rings, char handle[RINGCAST_HANDLE_BYTES]) {
  struct wish wish;
  int result = parse(text, &wish);
  if (result != 0) return result;
  const struct ringcast_ring *chosen = NULL;
  uint32_t count = 0;
  for (uint32_t i = 0; i < rings->count; i++)
    if (matches(&wish, &rings->all[i]) && count++ == 0) chosen = &rings->all[i];
  if (count == 0)
    return rc_fail(-ENOENT,
                   "there is no ring '%.80s' of this user: 'ringcast list' shows all; its writer "
                   "must live, in this PID "
                   "namespace",
                   text);
  if (count > 1) return fail_several(text, &wish, rings, count);
  if (*chosen->handle == '\0')
    return rc_fail(-EPROTO,
                   "process %" PRId32 " uses an incompatible release of ringcast (here %s)",
                   chosen->pid, RINGCAST_VERSION);
  memcpy(handle, chosen->handle, RINGCAST_HANDLE_BYTES);
  return 0;
}

int ringcast_find(const char *ring, char handle[RINGCAST_HANDLE_BYTES]) {
  struct rc_handle parsed;
  struct rings rings;
  if (rc_handle_parse(ring, &parsed) == 0) {
    rc_handle_format(&parsed, handle);
    return 0;
  }
  int result = find_all(&rings);
  if (result == 0) result = choose(ring, &rings, handle);
  free(rings.all);
  return result;
}
