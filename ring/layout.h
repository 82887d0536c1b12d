/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every byte that processes share, except a frame's payload (ringcast/frame.h).
 *
 * A ring has up to three segments. All processes map CONTROL read-write. The writer fills DATA, and
 * readers map DATA read-only. SPILL is optional: the writer puts payloads there that are too large
 * for DATA. The segments hold numbers and offsets, never pointers. The comment on a field that
 * changes names the process that writes it. No line has two regular writers.
 *
 * Glossary
 *   frame     one message: a header and a payload in DATA
 *   position  bytes since the ring was made; only grows; position mod capacity is the offset in
 *             DATA
 *   line      64 bytes, a cache line; frames start at even lines
 *   lap       one capacity of positions: a frame and the frame one lap later share their bytes of
 *             DATA
 *   tail      the position after the last committed frame
 *   limit     the writer may fill positions up to the limit and overwrite bytes below limit -
 *             capacity at any moment
 *   cursor    the position below which a reader has released all frames
 *   lease     the caller's right to read a frame, from next to release
 *   pin       a reason besides the lease to hold a frame; the cursor stops at the oldest frame with
 *             a lease or a pin
 *   slot      one reader's entry in CONTROL
 *   spill     of a frame: the payload lies in SPILL, and a descriptor in DATA gives the offset and
 *             the length
 *   packed    of a frame: the payload is many small messages (ring/packed.h)
 *
 * Labels. A store, load or fence that another side relies on has a letter and a number, and
 * `X -> Y` says that Y sees what X stored. Where they are explained:
 *   W R A G J   publishing, reading, releasing, room, joining: ring.c
 *   L V         the limit and eviction: slot.c, with R3 and A0
 *   T           taps: tap.h
 *   S           spill memory: spill.c
 *   N           the newest frame of a tag: newest.c
 *   E           sleeping and waking: eventcount.h
 *   K           retained frames: docs/memory-order.md
 * C0 stores `closed` after the last commit; C1 loads it and then looks for a frame once more.
 */
#ifndef RC_RING_LAYOUT_H
#define RC_RING_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "ring/atomics.h"

#define RC_LINE        64u
#define RC_FRAME_ALIGN 128u                /* frames start at multiples; see ring.h */
#define RC_MAGIC       0x74736163676e6972u /* "ringcast", little-endian */
#define RC_MAX_SLOTS   1024u
#define RC_MIN_BYTES   4096u /* the smallest and the largest ring */
#define RC_MAX_BYTES   ((uint64_t)1 << 40)
#define RC_NAME_MAX    32u
#define RC_RING_NAME   48u /* bytes of a ring's name, with the final zero */
/* Never reached: a tail above is invalid, and sums do not overflow. */
#define RC_MAX_POSITION ((uint64_t)1 << 62)

/* At the start of each frame, in DATA. The writer stores the fields, commit last. */
struct rc_frame_header {
  _Atomic uint64_t commit; /* 0: not committed. Otherwise the position after the frame */
  union {
    /* Bytes, kind and flags in one store: the CPU's store buffer bounds how many cache misses
     * overlap, so saving a store is worth as much as saving an instruction. */
    _Atomic uint64_t meta;
    struct {
      _Atomic uint32_t bytes; /* of the payload, which follows */
      _Atomic uint16_t kind;  /* enum ringcast_kind */
      _Atomic uint16_t flags; /* RC_FRAME_SPILLED, RC_FRAME_PACKED, or 0 */
    };
  };
};

static inline uint64_t rc_meta_make(uint32_t bytes, uint16_t kind, uint16_t flags) {
  return bytes | (uint64_t)kind << 32 | (uint64_t)flags << 48;
}
static inline uint32_t rc_meta_bytes(uint64_t meta) { return (uint32_t)meta; }
static inline uint16_t rc_meta_kind(uint64_t meta) { return (uint16_t)(meta >> 32); }
static inline uint16_t rc_meta_flags(uint64_t meta) { return (uint16_t)(meta >> 48); }
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "rc_meta_bytes, _kind and _flags match the fields");

/* The descriptor of a spilled frame: the payload's place in SPILL, 16 bytes into a line as in
 * DATA. */
#define RC_FRAME_SPILLED 1u
#define RC_FRAME_PACKED  2u
struct rc_spilled {
  _Atomic uint64_t offset, bytes;
};

/* The ring's sizes and files. The writer stores them once, before ready. The handle names the
 * writer's process. */
struct rc_identity {
  uint64_t magic;
  uint32_t layout;        /* RC_LAYOUT of the writer's build */
  _Atomic uint32_t ready; /* RC_READY, stored last */
  uint64_t token[2];      /* random; the handle holds the same number */
  uint64_t capacity;      /* bytes of DATA */
  uint64_t page_size;
  uint32_t slots;           /* for readers */
  uint32_t memory;          /* enum ringcast_memory */
  int32_t spill_fd;         /* SPILL's descriptor in the writer's process */
  uint32_t numa, numa_node; /* enum ringcast_numa; these and the errors are for information only */
  int32_t numa_error, spill_error;
  int32_t data_fd;                   /* DATA's descriptor in the writer's process */
  uint64_t data_inode;               /* a later file with the same descriptor number has another */
  uint64_t spill_bytes, spill_inode; /* of SPILL; 0 bytes: the ring has no SPILL */
  uint64_t pid_namespace;            /* inode of the writer's namespace; 0: not known */
  uint64_t writer_start; /* the writer's process: a forked child has the same descriptors */
  int32_t writer_pid;
  int32_t control_fd;      /* CONTROL's descriptor there: duplicates are not counted as rings */
  char name[RC_RING_NAME]; /* of the ring, or "" */
  uint64_t reserved[10];
};

/* A word to sleep on and the number of sleepers; see ring/eventcount.h. */
struct rc_eventcount {
  union {
    _Atomic uint64_t state; /* the count in the high half */
    _Atomic uint32_t word;  /* the low half: what the kernel's futex compares */
  };
};
_Static_assert(sizeof(struct rc_eventcount) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the word is the low half");

/* The processes that share the CPUs. */
#define RC_CPU_WORDS 15u
struct rc_cpus {
  _Atomic uint32_t participants; /* the writer and the attached readers; any of them may store it */
  uint32_t reserved;
  _Atomic uint64_t cpus[RC_CPU_WORDS]; /* a bit for each CPU that a participant may run on */
};

/* The file of the words that device tensors are synchronised by (ringcast/gpu.h). The writer stores
 * epoch 0, then the other fields, then the epoch. A reader loads the epoch before and after the
 * other fields. */
struct rc_device_place {
  _Atomic uint32_t epoch; /* 0: no pool. Each pool of this ring has an epoch of its own */
  _Atomic int32_t fd;     /* in the writer's process */
  _Atomic uint64_t inode, bytes;
  /* The ring's, when the pool was made: frames from here on name no earlier pool. */
  _Atomic uint64_t position;
};

/* The counts of one participant. Only the participant stores them; every process may read them. */
struct rc_counts {
  _Atomic uint64_t frames, bytes; /* committed, or released */
  _Atomic uint64_t waits;         /* calls that had to wait */
  _Atomic uint64_t sleeps, wakes; /* sleeps, and wake-ups of others, each a system call */
  _Atomic uint64_t waited_ns;
};

/* The results of the writer's reservations by estimate (ring/estimate.h). */
struct rc_estimate_counts {
  _Atomic uint64_t hits, grown; /* frames that fitted at once, or after the reservation grew */
  _Atomic uint64_t wasted;      /* bytes reserved and not needed */
};

/* Waits by duration: bucket i counts waits from 2^(i-1) up to 2^i us; the last bucket counts all
 * longer waits. */
#define RC_BUCKETS 16u
struct rc_histogram {
  _Atomic uint32_t counts[RC_BUCKETS];
};

/* One reader's entry. The essay atop ring/slot.c describes the states. */
struct rc_slot {
  _Alignas(RC_LINE) _Atomic uint64_t cursor; /* the reader */
  struct rc_counts counts;                   /* the reader */
  _Atomic uint64_t taken; /* the reader, while it holds frames: all below were taken */
  _Alignas(RC_LINE) _Atomic uint64_t owner; /* see ring/ring.h */
  char name[RC_NAME_MAX];                   /* the reader, while joining */
  /* The writer: how often it waited for this reader. The reader, while joining: 0. */
  _Atomic uint64_t stalls;
  _Atomic uint32_t retains;                    /* the reader: how many retained frames have a pin */
  _Alignas(RC_LINE) struct rc_histogram waits; /* the reader */
  /* CPUs fetch lines in pairs: two readers' cursors share no pair. */
  _Alignas(RC_LINE) uint8_t unused[RC_LINE];
};

/* The newest frame of each of some tags; ring/newest.c explains. */
#define RC_NEWEST_TAGS 64u
#define RC_NEWEST_WAYS 4u /* the entries that one tag may take: a line */
struct rc_newest {
  _Atomic uint64_t place; /* the writer: the frame's position + 1; 0: the entry is empty */
  _Atomic uint32_t tag;   /* the writer */
  uint32_t reserved;
};

struct rc_control {
  struct rc_identity id;
  _Alignas(RC_LINE) _Atomic uint64_t tail; /* the writer */
  struct rc_counts counts;                 /* the writer */
  _Atomic uint64_t newest; /* the writer: the start of the last committed frame; 0: or none */
  /* 1: no more frames. The writer, once, or a reader after the writer's death. */
  _Alignas(RC_LINE) _Atomic uint32_t closed;
  _Atomic uint32_t spill_epoch; /* the writer: how often memory of SPILL was given back */
  /* The writer: spilled frames below this position may be overwritten. */
  _Atomic uint64_t spill_floor;
  _Atomic uint64_t spill_used; /* the writer: bytes of SPILL with memory, for information only */
  _Atomic uint32_t evicts;     /* the writer, at creation. 1: the writer evicts slow readers */
  _Atomic uint64_t limit; /* the writer, rarely: not on tail's line, which each frame changes */
  /* Readers sleep here until the writer commits or closes. */
  _Alignas(RC_LINE) struct rc_eventcount not_empty;
  /* The writer sleeps here until readers release, join or leave. */
  _Alignas(RC_LINE) struct rc_eventcount not_full;
  /* The writer: a grant succeeds once no cursor is below this. 0: it does not wait, or for any
   * change at all. RC_WANTED_NONE: it waits, and no cursor matters. */
  _Atomic uint64_t wanted;
  /* The writer, for taps: from when (CLOCK_MONOTONIC; 0: no reserve waits) and until when at least
   * a reserve at the tail blocked_tail waits, and what blocks: cursors below blocked_below, readers
   * that have not taken the frames below blocked_due. */
  _Atomic int64_t blocked_since, blocked_until;
  _Atomic uint64_t blocked_below, blocked_due, blocked_tail;
  _Alignas(RC_LINE) struct rc_cpus cpus;           /* all, rarely */
  _Alignas(RC_LINE) struct rc_histogram waits;     /* the writer */
  _Alignas(RC_LINE) struct rc_device_place device; /* the writer, rarely */
  struct rc_estimate_counts estimates;             /* the writer */
  /* The writer, when it commits a frame with a tag. */
  _Alignas(RC_LINE) struct rc_newest tags[RC_NEWEST_TAGS];
  struct rc_slot slots[];
};

#define RC_READY       1u
#define RC_WANTED_NONE UINT64_MAX

_Static_assert(sizeof(struct rc_frame_header) == 16, "a frame's header");
_Static_assert(offsetof(struct rc_frame_header, kind) == 12 &&
                   offsetof(struct rc_frame_header, flags) == 14,
               "meta");
_Static_assert(sizeof(struct rc_spilled) == 16, "a spilled frame's descriptor");
_Static_assert(sizeof(struct rc_identity) == 256, "identity: four lines");
_Static_assert(sizeof(struct rc_slot) == 256, "slot: two pairs of lines");
_Static_assert(sizeof(struct rc_counts) == 48 && sizeof(struct rc_histogram) == 64, "counts");
_Static_assert(offsetof(struct rc_slot, owner) == 64, "the cursor has a line of its own");
_Static_assert(offsetof(struct rc_control, tail) == 256, "tail");
_Static_assert(offsetof(struct rc_control, newest) == 312, "newest: on the line of tail");
_Static_assert(offsetof(struct rc_control, closed) == 320, "closed");
_Static_assert(offsetof(struct rc_control, not_empty) == 384, "not_empty");
_Static_assert(offsetof(struct rc_control, not_full) == 448, "not_full");
_Static_assert(sizeof(struct rc_cpus) == 128, "cpus: two lines");
_Static_assert(offsetof(struct rc_control, cpus) == 512, "cpus");
_Static_assert(offsetof(struct rc_control, waits) == 640, "waits");
_Static_assert(offsetof(struct rc_control, device) == 704 && sizeof(struct rc_device_place) == 32,
               "device");
_Static_assert(offsetof(struct rc_control, estimates) == 736 &&
                   sizeof(struct rc_estimate_counts) == 24,
               "estimates");
_Static_assert(offsetof(struct rc_control, tags) == 768 && sizeof(struct rc_newest) == 16, "tags");
_Static_assert(offsetof(struct rc_control, slots) == 1792, "slots: at a pair of lines");

/* Builds whose structs differ in size have different fingerprints. For any other change of the
 * layout or of a field's meaning, raise RC_LAYOUT_REVISION. */
#define RC_LAYOUT_REVISION 23ull
#define RC_LAYOUT                                                                            \
  ((uint32_t)(RC_LAYOUT_REVISION * 0x1000003u ^ sizeof(struct rc_control) * 0x101u ^         \
              sizeof(struct rc_slot) * 0x10001u ^ sizeof(struct rc_frame_header) * 0x1001u ^ \
              offsetof(struct rc_control, not_full) * 0x11u ^                                \
              offsetof(struct rc_slot, name) * 0x100001u))

static inline uint64_t rc_control_bytes(uint32_t slots) {
  return sizeof(struct rc_control) + (uint64_t)slots * sizeof(struct rc_slot);
}

#endif
