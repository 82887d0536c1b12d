/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer: its life, and the way of a message into the ring.
 *
 *   reserve   takes room at once while the last grant lasts; else reserve.c asks for another,
 *             waits for room, or takes spill memory
 *   fill      the caller writes into the span
 *   commit    stores the commit word (rc_ring_publish), counts, and wakes readers that sleep
 *
 * send does the three, send_many does them for many small messages at once.
 */
#include "channel/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "channel/channel.h"
#include "channel/liveness.h"
#include "channel/stats.h"
#include "ringcast/batch.h"
#include "ringcast/estimate.h"
#include "ringcast/frame.h"
#include "shm/error.h"
#include "shm/memory.h"
#include "shm/options.h"
#include "shm/segment.h"
#include "shm/topology.h"

#define DEFAULT_READERS 64u

/* ---- Options --------------------------------------------------------------------------------- */

/* RINGCAST_MEMORY replaces AUTO, for users that can't change the program. */
static int memory_from_environment(uint32_t *memory) {
  if (*memory != RINGCAST_MEMORY_AUTO) return 0;
  const char *names[RINGCAST_MEMORY_PAGES + 1];
  for (uint32_t i = 0; i <= RINGCAST_MEMORY_PAGES; i++) names[i] = ringcast_memory_name(i);
  int result = rc_environment_choice("RINGCAST_MEMORY", names, RINGCAST_MEMORY_PAGES + 1, memory);
  return result < 0 ? result : 0;
}

/* RINGCAST_SPILL_BYTES replaces the default; 0 in the variable means no spill memory. */
static int spill_from_environment(uint64_t *bytes) {
  if (*bytes != 0) return 0;
  int result = rc_environment_number("RINGCAST_SPILL_BYTES", RC_MAX_BYTES, "bytes", "none", bytes);
  if (result == 1 && *bytes == 0) *bytes = RINGCAST_NO_SPILL;
  return result < 0 ? result : 0;
}

/* A large default does no harm: it is only a bound. The memory is taken when a frame needs it. */
static uint64_t default_spill_bytes(void) {
  const uint64_t most = (uint64_t)4 << 30;
  struct rc_room room;
  rc_topology_room(&room);
  uint64_t half = room.bytes / 2 & ~(RC_HUGE_PAGE - 1);
  return half < most ? half : most;
}

static struct rc_spill_wish spill_wish(uint64_t asked) {
  if (asked == RINGCAST_NO_SPILL) return (struct rc_spill_wish){0};
  if (asked == 0) return (struct rc_spill_wish){.bytes = default_spill_bytes()};
  return (struct rc_spill_wish){.bytes = (asked + RC_HUGE_PAGE - 1) & ~(RC_HUGE_PAGE - 1),
                                .must = true};
}

static uint64_t round_capacity(uint64_t bytes) {
  uint64_t capacity = rc_small_page();
  while (capacity < bytes) capacity *= 2;
  return capacity;
}

static int check_policies(const struct ringcast_writer_options *options) {
  if (options->on_death > RINGCAST_EVICT || options->on_slow > RINGCAST_EVICT)
    return rc_fail(-EINVAL,
                   "options.on_death is %u and on_slow %u: each must be one of enum "
                   "ringcast_policy",
                   options->on_death, options->on_slow);
  if (options->slow_ns < 0)
    return rc_fail(-EINVAL, "options.slow_ns is %lld: it must be 0 (no deadline) or more",
                   (long long)options->slow_ns);
  if (options->on_slow == RINGCAST_EVICT && options->slow_ns == 0)
    return rc_fail_as(-EINVAL,
                      "options.on_slow is RINGCAST_EVICT, but options.slow_ns is 0: set it to the "
                      "longest time that a reader may block");
  return 0;
}

static int check_sizes(const struct ringcast_writer_options *options) {
  if (options->readers > RC_MAX_SLOTS)
    return rc_fail(-EINVAL, "%u readers are more than a ring can have (%u)", options->readers,
                   RC_MAX_SLOTS);
  if (options->capacity > RC_MAX_BYTES)
    return rc_fail(-EINVAL, "a capacity of %llu bytes is more than a ring can have (%llu)",
                   (unsigned long long)options->capacity, (unsigned long long)RC_MAX_BYTES);
  if (options->spill_bytes > RC_MAX_BYTES && options->spill_bytes != RINGCAST_NO_SPILL)
    return rc_fail(-EINVAL,
                   "options.spill_bytes is %llu: it must be at most %llu, or RINGCAST_NO_SPILL",
                   (unsigned long long)options->spill_bytes, (unsigned long long)RC_MAX_BYTES);
  return 0;
}

static int check_placement(const struct ringcast_writer_options *options) {
  if (!ringcast_memory_name(options->memory))
    return rc_fail(-EINVAL, "options.memory is %u: it must be one of enum ringcast_memory",
                   options->memory);
  if (options->numa > RINGCAST_NUMA_NODE)
    return rc_fail(-EINVAL, "options.numa is %u: it must be one of enum ringcast_numa",
                   options->numa);
  return 0;
}

/* Checks the caller's options and fills in the defaults. */
static int resolve_options(const struct ringcast_writer_options *given,
                           struct ringcast_writer_options *out) {
  struct ringcast_writer_options options;
  int result = rc_sized_read("ringcast_writer_options", given, &options, sizeof options);
  if (result != 0) return result;
  if (options.flags != 0)
    return rc_fail(-EINVAL, "options.flags is 0x%x: no flags are known, it must be 0",
                   options.flags);
  if (options.readers == 0) options.readers = DEFAULT_READERS;
  if (options.capacity == 0) options.capacity = rc_default_capacity();
  result = check_sizes(&options);
  if (result == 0) result = rc_check_spin(options.spin_ns);
  if (result == 0) result = check_policies(&options);
  if (result == 0 && options.name) result = rc_name_check(options.name);
  if (result == 0) result = rc_features_check();
  if (result == 0) result = memory_from_environment(&options.memory);
  if (result == 0) result = spill_from_environment(&options.spill_bytes);
  if (result == 0) result = check_placement(&options);
  if (result != 0) return result;
  options.capacity = round_capacity(options.capacity);
  *out = options;
  return 0;
}

/* ---- Lifecycle ------------------------------------------------------------------------------- */

static void dismantle(ringcast_writer *writer) {
  rc_backing_free(&writer->backing);
  rc_watch_close(&writer->blocker);
  rc_poller_close(writer->poller);
  rc_poller_close(writer->liveness.poller);
  rc_segment_destroy(&writer->segment);
  RC_POINT(UNMAPPED);
  free(writer);
}

static int create_segment(ringcast_writer *writer, const struct ringcast_writer_options *options) {
  const struct rc_memory_wish memory = {
      .memory = options->memory, .numa = options->numa, .node = options->numa_node};
  const struct rc_spill_wish spill = spill_wish(options->spill_bytes);
  struct rc_handle handle;
  int result = rc_segment_create(options->capacity, options->readers, options->name, &memory,
                                 &spill, &writer->segment, &handle);
  if (result == 0) rc_handle_format(&handle, writer->handle);
  return result;
}

/* The segment exists, and no other process has its handle yet. */
static int set_up(ringcast_writer *writer, const struct ringcast_writer_options *options) {
  struct rc_control *control = rc_segment_control(&writer->segment);
  rc_watch_init(&writer->blocker, 0, 0, 0);
  int result = rc_backing_init(&writer->backing, &writer->segment.spill);
  if (result != 0) return result;
  result = rc_waiter_init(&writer->waiter, &control->not_full, &control->cpus, options->spin_ns,
                          options->wait);
  if (result != 0) return result;
  writer->liveness = (struct rc_liveness){
      .on_death = options->on_death, .on_slow = options->on_slow, .slow_ns = options->slow_ns};
  rc_ring_writer_init(&writer->ring, rc_segment_ring(&writer->segment));
  writer->ring.ahead = options->ahead;
  rc_spill_init(&writer->spill, writer->segment.spill.bytes);
  writer->ring_frame = rc_ring_max_frame(writer->segment.capacity);
  writer->past_cache = rc_past_cache_bytes();
  rc_ring_participants(&writer->ring.view);
  rc_cpus_enter(&control->cpus);
  /* Relaxed: no process has the handle yet. */
  rc_store_relaxed(&control->evicts, options->on_slow == RINGCAST_EVICT);
  writer->forks = rc_forks_seen;
  return 0;
}

int ringcast_writer_create(ringcast_writer **out) { return ringcast_writer_create_ex(NULL, out); }

int ringcast_writer_create_ex(const struct ringcast_writer_options *given, ringcast_writer **out) {
  struct ringcast_writer_options options = {0};
  int result = resolve_options(given, &options);
  if (result != 0) return result;
  ringcast_writer *writer = calloc(1, sizeof *writer);
  if (!writer) return rc_fail(-ENOMEM, "out of memory");
  result = create_segment(writer, &options);
  if (result != 0) {
    free(writer);
    return result;
  }
  result = set_up(writer, &options);
  if (result != 0) {
    dismantle(writer);
    return result;
  }
  RC_POINT(CREATED);
  *out = writer;
  return 0;
}

/* Commits nothing more, and tells the readers. */
static void close_ring(ringcast_writer *writer) {
  struct rc_control *control = rc_segment_control(&writer->segment);
  RC_POINT(CLOSE);
  rc_writer_abort_large(writer);
  RC_POINT(DROPPED);
  rc_store_release(&control->closed, 1); /* C0 -> C1: all commits came before */
  RC_POINT(CLOSED);
  rc_wake(&control->not_empty);
  RC_POINT(CLOSE_TOLD);
}

void ringcast_writer_close(ringcast_writer *writer) {
  if (!writer) return;
  if (writer->forks == rc_forks_seen) { /* in a forked child the ring stays the parent's */
    close_ring(writer);
    rc_detach(&writer->attachment); /* it may wait; the readers know by now */
  }
  dismantle(writer);
}

const char *ringcast_writer_handle(const ringcast_writer *writer) { return writer->handle; }

void ringcast_writer_cancel(ringcast_writer *writer) { rc_waiter_cancel(&writer->waiter); }

/* ---- Estimates ------------------------------------------------------------------------------- */

/* A reservation whose size is an estimate (ring/estimate.c) remembers its tag. The commit teaches
 * the tag the size of the frame, and counts whether the first reservation was enough, and how many
 * of its bytes went back to the ring. Nothing else teaches a tag: a caller that knows the size
 * reserves that size. */

static bool is_estimate(size_t bytes) { return bytes >> 32 == RINGCAST_ESTIMATE >> 32; }

size_t ringcast_writer_estimate(const ringcast_writer *writer, uint32_t tag) {
  return rc_estimate_of(&writer->estimates, tag, rc_max_frame(&writer->segment));
}

static int reserve_estimate(ringcast_writer *writer, uint32_t tag, int64_t timeout_ns,
                            struct ringcast_span *out) {
  size_t bytes = ringcast_writer_estimate(writer, tag);
  int result = -EAGAIN;
  if (bytes > writer->ring_frame) { /* no wait for spill memory that the message may not need */
    /* An invalid timeout stays invalid. */
    const int64_t once = timeout_ns < RINGCAST_FOREVER ? timeout_ns : 0;
    result = ringcast_writer_reserve(writer, bytes, once, out);
    if (result != 0) bytes = writer->ring_frame;
  }
  if (result != 0) result = ringcast_writer_reserve(writer, bytes, timeout_ns, out);
  if (result != 0) return result;
  writer->estimated = (struct rc_estimated){.open = true, .tag = tag, .bytes = bytes};
  return 0;
}

/* The reservation, made by estimate, is committed with `bytes`. */
static void learn(ringcast_writer *writer, size_t bytes) {
  struct rc_estimated *estimated = &writer->estimated;
  struct rc_estimate_counts *counts = &writer->ring.view.control->estimates;
  estimated->open = false;
  rc_estimate_learn(&writer->estimates, estimated->tag, bytes);
  rc_count(estimated->grew ? &counts->grown : &counts->hits, 1);
  rc_count(&counts->wasted, estimated->bytes - bytes);
}

/* Copies: a caller's memory may have any alignment and content. */
_Static_assert(sizeof(struct ringcast_sizes) == sizeof(struct rc_estimate), "a history of sizes");

uint64_t ringcast_sizes_add(struct ringcast_sizes *sizes, uint64_t bytes) {
  struct rc_estimate estimate;
  memcpy(&estimate, sizes, sizeof estimate);
  rc_estimate_add(&estimate, bytes);
  memcpy(sizes, &estimate, sizeof estimate);
  return rc_estimate_next(&estimate);
}

/* ---- Reserve --------------------------------------------------------------------------------- */

static rc_slow int reserve_slowly(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                                  struct ringcast_span *out) {
  if (is_estimate(bytes)) return reserve_estimate(writer, (uint32_t)bytes, timeout_ns, out);
  return rc_writer_reserve_slowly(writer, bytes, timeout_ns, false, out);
}

int ringcast_writer_reserve(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                            struct ringcast_span *out) {
  if (rc_unlikely(timeout_ns < RINGCAST_FOREVER || writer->forks != rc_forks_seen))
    return reserve_slowly(writer, bytes, timeout_ns, out);
  if (rc_unlikely(bytes > writer->ring_frame || writer->is_large ||
                  !rc_ring_has_room(&writer->ring, bytes)))
    return reserve_slowly(writer, bytes, timeout_ns, out);
  *out = (struct ringcast_span){.data = rc_ring_open(&writer->ring, bytes), .bytes = bytes};
  return 0;
}

int ringcast_writer_grow(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                         struct ringcast_span *out) {
  int result = rc_writer_reserve_slowly(writer, bytes, timeout_ns, true, out);
  if (result != 0) return result;
  struct rc_estimated *estimated = &writer->estimated;
  if (estimated->open && bytes > estimated->bytes) {
    estimated->grew = true;
    estimated->bytes = bytes;
  }
  return 0;
}

int ringcast_writer_abort(ringcast_writer *writer) {
  int result = rc_check_fork(writer->forks);
  if (result != 0) return result;
  if (!rc_writer_is_open(writer)) return rc_fail_as(-EINVAL, "no reservation is open");
  rc_liveness_end(writer);
  writer->estimated.open = false;
  if (writer->is_large) rc_writer_abort_large(writer);
  else rc_ring_abort(&writer->ring);
  return 0;
}

/* ---- Commit ---------------------------------------------------------------------------------- */

/* Returns 0. */
static rc_slow int wake_readers(ringcast_writer *writer) {
  struct rc_control *control = writer->ring.view.control;
  if (!rc_wake(&control->not_empty)) return 0;
  rc_store_relaxed(&control->counts.wakes, ++writer->wakes);
  RC_PROBE1(wake, writer->handle);
  return 0;
}

/* After the commit of a frame of `bytes` in the ring: counts `frames` and `payload` bytes, looks
 * for sleepers, and prepares the next frame. True: readers sleep, and wake_readers must follow. */
static inline bool after_publish(ringcast_writer *writer, uint64_t frames, uint64_t payload,
                                 uint64_t bytes) {
  struct rc_control *control = writer->ring.view.control;
  rc_count_frames(&control->counts, frames, payload);
  RC_PROBE3(commit, writer->handle, writer->ring.tail, payload);
  bool asleep = rc_eventcount_is_asleep(&control->not_empty); /* E5: rc_ring_zero_ahead follows */
  rc_ring_zero_ahead(&writer->ring, bytes);
  return asleep;
}

static rc_slow int fail_to_commit(const ringcast_writer *writer, size_t bytes) {
  if (!rc_writer_is_open(writer)) return rc_fail_as(-EINVAL, "no reservation is open");
  return rc_fail(
      -EINVAL, "can't commit %zu bytes, more than was reserved: grow the reservation first", bytes);
}

/* The frame that was committed at `position` with the payload `data` may have a tag, in the typed
 * layout's header. */
static void note_tag(ringcast_writer *writer, uint64_t position, const void *data, size_t bytes) {
  struct ringcast_frame_header header;
  if (bytes < sizeof header) return;
  memcpy(&header, data, sizeof header);
  if (header.tag != 0) rc_newest_note(writer->ring.view.control, header.tag, position);
}

/* A commit of any kind. Every typed frame, and so each value of Python, comes here, for its tag. In
 * tail position, so the usual commit saves no registers for the calls here. */
static __attribute__((noinline)) int commit_any(ringcast_writer *writer, size_t bytes,
                                                uint16_t kind) {
  if (rc_unlikely(writer->forks != rc_forks_seen)) return rc_check_fork(writer->forks);
  const uint64_t position = writer->ring.tail;
  const void *data = rc_frame_at(&writer->ring.view, position) + 1;
  size_t in_ring = bytes;
  if (writer->is_large) {
    data = rc_writer_spilled(writer);
    in_ring = sizeof(struct rc_spilled);
    if (rc_writer_commit_large(writer, bytes, kind) != 0) return fail_to_commit(writer, bytes);
    RC_PROBE3(spill, writer->handle, writer->ring.tail, bytes);
  } else if (rc_ring_commit(&writer->ring, bytes, kind) != 0) {
    return fail_to_commit(writer, bytes);
  }
  if (kind == RINGCAST_KIND_TENSORS) note_tag(writer, position, data, bytes);
  if (writer->estimated.open) learn(writer, bytes);
  if (rc_unlikely(after_publish(writer, 1, bytes, in_ring))) return wake_readers(writer);
  return 0;
}

int ringcast_writer_commit(ringcast_writer *writer, size_t bytes, uint16_t kind) {
  if (rc_unlikely(writer->forks != rc_forks_seen || writer->is_large || writer->estimated.open ||
                  kind == RINGCAST_KIND_TENSORS))
    return commit_any(writer, bytes, kind);
  if (rc_unlikely(rc_ring_commit(&writer->ring, bytes, kind) != 0))
    return fail_to_commit(writer, bytes);
  if (rc_unlikely(after_publish(writer, 1, bytes, bytes))) return wake_readers(writer);
  return 0;
}

/* ---- Send ------------------------------------------------------------------------------------ */

int ringcast_writer_send(ringcast_writer *writer, const void *data, size_t bytes, uint16_t kind,
                         int64_t timeout_ns) {
  struct ringcast_span span;
  if (rc_unlikely(is_estimate(bytes))) /* -EMSGSIZE */
    return rc_writer_reserve_slowly(writer, bytes, timeout_ns, false, &span);
  int result = ringcast_writer_reserve(writer, bytes, timeout_ns, &span);
  if (result != 0) return result;
  if (rc_unlikely(bytes >= writer->past_cache)) rc_copy_past_cache(span.data, data, bytes);
  else if (bytes != 0) memcpy(span.data, data, bytes);
  return ringcast_writer_commit(writer, bytes, kind);
}

/* A packed frame (ring/packed.h) has at most so many bytes: a reader can begin with one part while
 * the writer fills the next, and both are in the nearest cache. */
#define MOST_PART ((uint64_t)8 << 10)

/* The next messages of a batch that go together. */
struct part {
  uint32_t count;
  uint64_t bytes, payload; /* of the packed frame; of the messages alone */
};

/* As many of the messages as one packed frame holds. Fewer than 2: the next one goes alone. Not
 * inlined: the loop of send_part then has the registers, which saves a sixth for each message. */
static __attribute__((noinline)) struct part
measure(const ringcast_writer *writer, const struct ringcast_message *messages, uint32_t count) {
  const uint64_t eighth = writer->segment.capacity / 8;
  const uint64_t most = eighth < MOST_PART ? eighth : MOST_PART, small = most / 8;
  struct part part = {0};
  if (writer->ring.ahead != 0) return part; /* the bound counts frames */
  for (; part.count < count; part.count++) {
    const struct ringcast_message *message = &messages[part.count];
    /* A typed frame goes alone: a reader may begin at the newest with its tag. */
    if (message->bytes > small || message->kind == RINGCAST_KIND_TENSORS) break;
    uint64_t end = rc_packed_end(part.bytes, message->bytes, message->kind);
    if (end > most) break;
    part.bytes = end;
    part.payload += message->bytes;
  }
  return part;
}

static int send_part(ringcast_writer *writer, const struct ringcast_message *messages,
                     const struct part *part, int64_t timeout_ns) {
  struct ringcast_span span;
  int result = ringcast_writer_reserve(writer, part->bytes, timeout_ns, &span);
  if (result != 0) return result;
  uint64_t at = 0;
  for (uint32_t i = 0; i < part->count; i++)
    at = rc_packed_put(span.data, at, messages[i].data, messages[i].bytes, messages[i].kind);
  RC_POINT(PACKED);
  rc_ring_publish(&writer->ring, part->bytes, RINGCAST_KIND_BYTES, RC_FRAME_PACKED);
  bool asleep = after_publish(writer, part->count, part->payload, part->bytes);
  if (rc_unlikely(asleep)) return wake_readers(writer);
  return 0;
}

/* After the deadline: one more try. */
static int64_t time_left(int64_t deadline) {
  const int64_t left = deadline - rc_now_ns();
  return left < 1 ? 1 : left;
}

int ringcast_writer_send_many(ringcast_writer *writer, const struct ringcast_message *messages,
                              uint32_t count, int64_t timeout_ns) {
  int result = rc_check_wait(writer->forks, timeout_ns);
  if (result != 0) return result;
  if (count > INT32_MAX)
    return rc_fail(-EINVAL, "%u messages are too many for one batch: send at most %d", count,
                   INT32_MAX);
  const int64_t now = timeout_ns > 0 ? rc_now_ns() : 0;
  const int64_t deadline = timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;
  int64_t left = timeout_ns;
  uint32_t sent = 0;
  while (sent < count) {
    const struct ringcast_message *next = &messages[sent];
    const struct part part = measure(writer, next, count - sent);
    if (timeout_ns > 0 && sent > 0) left = time_left(deadline);
    if (part.count > 1) result = send_part(writer, next, &part, left);
    else result = ringcast_writer_send(writer, next->data, next->bytes, next->kind, left);
    if (result != 0) return sent > 0 ? (int)sent : result;
    sent += part.count > 1 ? part.count : 1;
  }
  return (int)sent;
}
