/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every byte that processes share, but for a frame's payload (ringcast/frame.h).
 *
 * Three segments. CONTROL is mapped read-write by all. DATA is the writer's: readers map it read-only. SPILL, which a
 * ring may lack, is the writer's too: frames that are too large for DATA lie there. All hold numbers and offsets, never
 * pointers; each field that changes says who writes it. No line has two regular writers.
 *
 * Glossary
 *   position  bytes since the ring was made; only grows; position mod capacity is the place in DATA
 *   line      64 bytes; frames start on every second one
 *   tail      the position after the last committed frame
 *   limit     the writer may fill up to here; below limit - capacity, bytes may be overwritten at any moment
 *   cursor    a reader has released everything below it
 *   slot      one reader's place in CONTROL
 *   spilled   of a frame: its payload lies in SPILL, and a note in DATA says where
 */
#ifndef RC_RING_LAYOUT_H
#define RC_RING_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "ring/atomics.h"

#define RC_LINE         64u
#define RC_FRAME_ALIGN  128u                /* frames start at multiples; see ring.h */
#define RC_MAGIC        0x74736163676e6972u /* "ringcast", little-endian */
#define RC_MAX_SLOTS    1024u
#define RC_MIN_BYTES    4096u /* the smallest and the largest ring */
#define RC_MAX_BYTES    ((uint64_t)1 << 40)
#define RC_MAX_POSITION ((uint64_t)1 << 62) /* never reached: a tail above it can't be right; sums do not overflow */
#define RC_NAME_MAX     32u

/* At the start of each frame, in DATA. The writer writes it; commit last. */
struct rc_frame_header {
  _Atomic uint64_t commit; /* 0: not committed. Else the position after this frame */
  union {
    _Atomic uint64_t about; /* all three, in one store: a frame costs as many cache misses at once as the CPU's store
                             * buffer has room for, so each store less is worth as much as an instruction less */
    struct {
      _Atomic uint32_t bytes; /* of the payload, which follows */
      _Atomic uint16_t kind;  /* enum ringcast_kind */
      _Atomic uint16_t flags; /* RC_FRAME_SPILLED, or 0 */
    };
  };
};

static inline uint64_t rc_about_make(uint32_t bytes, uint16_t kind, uint16_t flags) {
  return bytes | (uint64_t)kind << 32 | (uint64_t)flags << 48;
}
static inline uint32_t rc_about_bytes(uint64_t about) { return (uint32_t)about; }
static inline uint16_t rc_about_kind(uint64_t about) { return (uint16_t)(about >> 32); }
static inline uint16_t rc_about_flags(uint64_t about) { return (uint16_t)(about >> 48); }
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "about's fields lie as these functions say");

/* The payload of a spilled frame, its note: where the payload lies in SPILL, 16 bytes into a line as in DATA. */
#define RC_FRAME_SPILLED 1u
struct rc_spilled {
  _Atomic uint64_t offset, bytes;
};

/* Who made this ring, and how. Written once, before ready; never again. */
struct rc_identity {
  uint64_t magic;
  uint32_t layout;        /* RC_LAYOUT of the writer's build */
  _Atomic uint32_t ready; /* RC_READY, stored last */
  uint64_t token[2];      /* random; the handle holds the same */
  uint64_t capacity;      /* bytes of DATA */
  uint64_t page_size;
  uint64_t writer_start; /* in clock ticks since boot: tells the writer from a later process with its pid */
  int32_t writer_pid;
  uint32_t slots;
  uint32_t memory;          /* enum ringcast_memory */
  int32_t spill_fd;         /* SPILL's descriptor in the writer's process */
  uint64_t data_inode;      /* of DATA's file: tells it from one that took its descriptor's number later */
  uint32_t numa, numa_node; /* enum ringcast_numa; both to look at only */
  int32_t numa_error;
  int32_t spill_error;               /* to look at only */
  uint64_t spill_bytes, spill_inode; /* of SPILL; 0 bytes: there is none */
  uint64_t pid_namespace;            /* inode of the writer's; 0: not known */
  uint64_t reserved;
};

/* A word to sleep on, and how many do; see ring/eventcount.h. */
struct rc_eventcount {
  union {
    _Atomic uint64_t state; /* the count in the high half */
    _Atomic uint32_t word;  /* the low half: what the kernel's futex compares */
  };
};
_Static_assert(sizeof(struct rc_eventcount) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the word is the low half");

/* Who shares the CPUs; see shm/cpus.h. */
#define RC_CPU_WORDS 15u
struct rc_cpus {
  _Atomic uint32_t participants; /* the writer and the readers attached; whoever counted last */
  uint32_t reserved;
  _Atomic uint64_t cpus[RC_CPU_WORDS]; /* a bit for each CPU that any of them may run on */
};

/* Where the writer's device words are (gpu/layout.h), a file of its own. The writer writes it: first epoch 0, then the
 * others, then the epoch; who reads it looks at the epoch once more afterwards. */
struct rc_device_place {
  _Atomic uint32_t epoch; /* 0: there is none. Each pool of this ring has another */
  _Atomic int32_t fd;     /* in the writer's process */
  _Atomic uint64_t inode, bytes;
  _Atomic uint64_t position; /* of the ring, when it was made: from here on no frame names an earlier pool */
};

/* What one party has done so far; written by it alone, read by anybody. */
struct rc_counts {
  _Atomic uint64_t frames, bytes; /* committed, or released */
  _Atomic uint64_t waits;         /* times that it had to wait */
  _Atomic uint64_t sleeps, wakes; /* times that it slept, or woke others by a system call */
  _Atomic uint64_t waited_ns;
};

/* How long waits took: the i-th counts those below 2^i us, and not below 2^(i-1); the last one all that took longer. */
#define RC_BUCKETS 16u
struct rc_histogram {
  _Atomic uint32_t counts[RC_BUCKETS];
};

/* One reader. Its states, and who moves it between them, are told atop ring/slot.c. */
struct rc_slot {
  _Alignas(RC_LINE) _Atomic uint64_t cursor;   /* the reader */
  struct rc_counts counts;                     /* the reader */
  _Alignas(RC_LINE) _Atomic uint64_t owner;    /* see ring/slot.h */
  char name[RC_NAME_MAX];                      /* the reader, while joining */
  _Atomic uint64_t stalls;                     /* the writer: times that it waited for this reader */
  _Atomic uint32_t retains;                    /* the reader: how many retained frames have a pin */
  _Alignas(RC_LINE) struct rc_histogram waits; /* the reader */
  _Alignas(RC_LINE) uint8_t unused[RC_LINE];   /* CPUs fetch lines in pairs: a cursor shares none with another reader */
};

struct rc_control {
  struct rc_identity id;
  _Alignas(RC_LINE) _Atomic uint64_t tail;   /* the writer */
  struct rc_counts counts;                   /* the writer */
  _Alignas(RC_LINE) _Atomic uint32_t closed; /* the writer, once, or who finds it dead: 1 = no more will come */
  _Atomic uint32_t spill_epoch;              /* the writer: times that it gave memory of SPILL back to the machine */
  _Atomic uint64_t spill_floor;              /* the writer: spilled frames below this position may be overwritten */
  _Atomic uint64_t spill_used;               /* the writer: bytes of SPILL that are in place, to look at only */
  _Atomic uint32_t evicts;                   /* the writer, at first: 1 = it goes on without readers that are slow */
  _Atomic uint64_t limit;                    /* the writer, seldom: apart from tail, which each frame moves */
  _Alignas(RC_LINE) struct rc_eventcount not_empty; /* readers sleep here until the writer commits or closes */
  _Alignas(RC_LINE) struct rc_eventcount not_full;  /* the writer sleeps here until readers release, join or leave */
  _Atomic uint64_t wanted;                          /* the writer: it can go on once no cursor is below this */
  _Alignas(RC_LINE) struct rc_cpus cpus;            /* all, seldom */
  _Alignas(RC_LINE) struct rc_histogram waits;      /* the writer */
  _Alignas(RC_LINE) struct rc_device_place device;  /* the writer, seldom */
  struct rc_slot slots[];
};

#define RC_READY 1u

_Static_assert(sizeof(struct rc_frame_header) == 16, "a frame's header");
_Static_assert(offsetof(struct rc_frame_header, kind) == 12 && offsetof(struct rc_frame_header, flags) == 14, "about");
_Static_assert(sizeof(struct rc_spilled) == 16, "a spilled frame's note");
_Static_assert(sizeof(struct rc_identity) == 128, "identity: two lines");
_Static_assert(sizeof(struct rc_slot) == 256, "slot: two pairs of lines");
_Static_assert(sizeof(struct rc_counts) == 48 && sizeof(struct rc_histogram) == 64, "counts");
_Static_assert(offsetof(struct rc_slot, owner) == 64, "the cursor has a line of its own");
_Static_assert(offsetof(struct rc_control, tail) == 128, "tail");
_Static_assert(offsetof(struct rc_control, closed) == 192, "closed");
_Static_assert(offsetof(struct rc_control, not_empty) == 256, "data");
_Static_assert(offsetof(struct rc_control, not_full) == 320, "room");
_Static_assert(sizeof(struct rc_cpus) == 128, "crowd: two lines");
_Static_assert(offsetof(struct rc_control, cpus) == 384, "crowd");
_Static_assert(offsetof(struct rc_control, waits) == 512, "waits");
_Static_assert(offsetof(struct rc_control, device) == 576 && sizeof(struct rc_device_place) == 32, "device");
_Static_assert(offsetof(struct rc_control, slots) == 640, "slots: at a pair of lines");

/* Tells builds apart that lay memory out differently. Raise RC_LAYOUT_REVISION when a field changes its meaning. */
#define RC_LAYOUT_REVISION 17u
#define RC_LAYOUT                                                                            \
  ((uint32_t)(RC_LAYOUT_REVISION * 0x1000003u ^ sizeof(struct rc_control) * 0x101u ^         \
              sizeof(struct rc_slot) * 0x10001u ^ sizeof(struct rc_frame_header) * 0x1001u ^ \
              offsetof(struct rc_control, not_full) * 0x11u ^ offsetof(struct rc_slot, name) * 0x100001u))

static inline uint64_t rc_control_bytes(uint32_t slots) {
  return sizeof(struct rc_control) + (uint64_t)slots * sizeof(struct rc_slot);
}

#endif
