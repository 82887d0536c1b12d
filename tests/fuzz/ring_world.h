/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring between guards, for fuzz_ring.c: one writer, readers, a tap, and a peer that stores what
 * it likes where it likes. What the writer has sent is written down beside it, so that a reader
 * that was not touched must get just that.
 */
#ifndef RC_TESTS_RING_WORLD_H
#define RC_TESTS_RING_WORLD_H

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring/ring.h"
#include "ring/spill.h"
#include "ring/tap.h"
#include "tests/fuzz/fuzz.h"

enum {
  SLOTS = 4,
  READERS = 3,
  LARGEST = 16384, /* capacity */
  UNITS = 16,
  SPILL = UNITS * RC_SPILL_UNIT,
  TRUTHS = LARGEST / RC_FRAME_ALIGN,
  GUARD = 1 << 16,
};

/* A frame as it was sent. */
struct truth {
  uint64_t position, bytes, number;
  bool spilled;
};

struct party {
  struct rc_ring_reader reader;
  bool joined;
  bool sane;    /* its slot was not touched, nor what it started from */
  bool evicted; /* the same, but the writer has gone on without it */
  uint32_t held;
  uint64_t positions[RC_MAX_LEASES];
  uint32_t
      counts[RC_MAX_LEASES]; /* frames and messages lent together, at the position of the first */
};

static struct world {
  uint8_t *data, *spill_memory; /* mapped once, for good */
  struct rc_control *control;
  uint64_t capacity;
  struct rc_ring_writer writer;
  struct rc_spill spill;
  struct party participants[READERS];
  struct rc_ring_tap tap;
  struct truth truths[TRUTHS];
  uint64_t number; /* of the next frame */
  bool attacked;   /* by now */
  bool data_hurt;  /* somebody else has written to DATA: a writer that means harm */
  bool tail_hurt;  /* a reader that joins now starts wherever */
  uint8_t copy[1 << 17];
} world;

static uint8_t *map_between_guards(uint64_t bytes, int times) {
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  require(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
  uint8_t *base = mmap(NULL, (uint64_t)times * bytes + 2 * GUARD, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(base != MAP_FAILED);
  for (int i = 0; i < times; i++)
    require(mmap(base + GUARD + (uint64_t)i * bytes, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
  close(fd);
  return base + GUARD;
}

static inline struct rc_ring world_ring(void) {
  return (struct rc_ring){.control = world.control,
                          .data = world.data,
                          .capacity = world.capacity,
                          .spill = world.spill_memory,
                          .spill_bytes = SPILL,
                          .slots = SLOTS};
}

static int fetch_from_spill(void *context, uint64_t offset, void *to, uint64_t bytes) {
  (void)context;
  require(offset <= SPILL && bytes <= SPILL - offset);
  memcpy(to, world.spill_memory + offset, bytes);
  return 0;
}

static inline void watch_tap(void) {
  struct rc_ring ring = world_ring();
  rc_tap_init(&world.tap, &ring);
  world.tap.fetch = fetch_from_spill;
}

/* A new ring of 4096 or 16384 bytes, in the same memory. */
static inline void world_begin(bool large) {
  static uint8_t *data[2];
  for (int i = 0; i < 2; i++)
    if (!data[i]) data[i] = map_between_guards(i == 0 ? RC_MIN_BYTES : LARGEST, 2);
  uint8_t *spill = world.spill_memory ? world.spill_memory : map_between_guards(SPILL, 1);
  struct rc_control *control = world.control;
  if (!control) control = aligned_alloc(RC_LINE, rc_control_bytes(SLOTS)); /* of just its size */
  memset((void *)control, 0, rc_control_bytes(SLOTS));
  memset(&world, 0, offsetof(struct world, copy));
  world.control = control;
  world.spill_memory = spill;
  world.data = data[large];
  world.capacity = large ? LARGEST : RC_MIN_BYTES;
  memset(world.data, 0, world.capacity);
  rc_ring_writer_init(&world.writer, world_ring());
  rc_spill_init(&world.spill, SPILL);
  watch_tap();
}

/* ---- What was sent, and whether it came ------------------------------------------------------ */

/* The first and the last bytes of a frame follow from its number. */
static inline void stamp(uint8_t *to, uint64_t bytes, uint64_t number) {
  if (bytes < 16) return;
  memcpy(to, &number, 8);
  memcpy(to + bytes - 8, &number, 8);
}

static inline bool is_stamped(const uint8_t *from, uint64_t bytes, uint64_t number) {
  return bytes < 16 || (memcmp(from, &number, 8) == 0 && memcmp(from + bytes - 8, &number, 8) == 0);
}

static inline struct truth *truth_at(uint64_t position) {
  return &world.truths[position / RC_FRAME_ALIGN % TRUTHS];
}

static inline void was_sent(uint64_t position, uint64_t bytes, bool spilled) {
  *truth_at(position) = (struct truth){
      .position = position, .bytes = bytes, .number = world.number++, .spilled = spilled};
}

/* What is lent lies where frames may lie, whatever anybody has done; and is what was sent, if
 * nobody has. */
static inline void must_be_lent(const struct party *party, const struct rc_ring_frame *frame) {
  const uint8_t *from = frame->data, *base = frame->spilled ? world.spill_memory : world.data;
  uint64_t area = frame->spilled ? SPILL : 2 * world.capacity;
  require(from >= base && from <= base + area && frame->bytes <= area - (uint64_t)(from - base));
  require(frame->spilled || frame->bytes <= rc_ring_max_frame(world.capacity));
  if (frame->bytes != 0) touch_all(from, 1), touch_all(from + frame->bytes - 1, 1);
  if (!party || !party->sane || world.data_hurt) return;
  const struct truth *truth = truth_at(frame->position);
  require(truth->position == frame->position && truth->spilled == frame->spilled);
  require(truth->bytes == frame->bytes && frame->kind == (uint16_t)truth->number);
  require(is_stamped(from, frame->bytes, truth->number));
}

/* A message of a packed frame is stamped with its own position. */
static inline uint16_t message_kind(uint64_t bytes) { return (uint16_t)(bytes % 3); }

static inline void must_be_message(const struct party *party,
                                   const struct ringcast_frame *message) {
  const uint8_t *from = message->data;
  require(from >= world.data &&
          message->bytes <= 2 * world.capacity - (uint64_t)(from - world.data));
  if (message->bytes != 0) touch_all(from, 1), touch_all(from + message->bytes - 1, 1);
  if (!party->sane || world.data_hurt) return;
  require(message->kind == message_kind(message->bytes));
  require(is_stamped(from, message->bytes, message->position));
}

/* The writer was lent room for `bytes`: nothing there is needed by a reader that nobody has
 * touched. */
static inline void may_be_written(uint64_t bytes, const uint8_t *to) {
  const struct rc_ring_writer *writer = &world.writer;
  require(to >= world.data && to <= world.data + world.capacity &&
          bytes <= rc_ring_max_frame(world.capacity));
  for (int i = 0; i < READERS; i++) {
    const struct party *party = &world.participants[i];
    if (party->joined && party->sane)
      require(writer->tail + rc_frame_footprint(bytes) + RC_FRAME_ALIGN <=
              party->reader.cursor + world.capacity);
  }
}

static inline void may_be_spilled_to(uint64_t offset, uint64_t bytes) {
  require(offset % RC_SPILL_UNIT == 0 && offset <= SPILL && rc_spill_room(bytes) <= SPILL - offset);
  for (int i = 0; i < READERS && !world.data_hurt; i++) {
    struct party *party = &world.participants[i];
    for (uint32_t k = 0; party->joined && party->sane && k < party->held; k++) {
      struct rc_ring_frame frame;
      if (rc_ring_look(&party->reader, party->positions[k], &frame) != 0 || !frame.spilled)
        continue;
      require(frame.offset >= offset + rc_spill_room(bytes) ||
              frame.offset + frame.bytes <= offset);
    }
  }
}

#endif
