/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recording: the frames of a ring in a file. docs/recording.md tells every byte and how a file is
 * read; here are the layouts in C, the writing (recording_write.c) and the reading
 * (recording_read.c).
 *
 * A file is a header block and then records, one after the other. No byte is written twice: if a
 * record must reach the disk before the block is full, padding follows up to the next block. So a
 * recorder that is killed leaves whole records, and at most one torn place, where a write was under
 * way.
 */
#ifndef TOOLS_RECORDING_H
#define TOOLS_RECORDING_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDING_MAGIC        "RCREC\r\n\x1a"
#define RECORDING_VERSION      1u
#define RECORDING_RECORD_MAGIC 0x44524352u /* "RCRD" */
#define RECORDING_BLOCK        4096u       /* of the header; writes are of whole blocks */
#define RECORDING_LINE         64u         /* records begin on lines */
#define RECORDING_UNKNOWN      UINT64_MAX

/* ---- The bytes, little-endian ---------------------------------------------------------------- */

struct recording_header {
  char magic[8];
  uint32_t version, header_bytes, line, record_bytes; /* sizes: BLOCK, LINE, of a record's header */
  uint64_t id;                   /* random; the checksums of this file's records depend on it */
  uint64_t capacity;             /* of the ring */
  int64_t wall_ns, monotonic_ns; /* both clocks at the start */
  int32_t writer_pid;
  uint32_t reserved;
  char name[48];     /* of the ring; zeros: it has none */
  char ringcast[16]; /* the release that made the file */
  char zeros[RECORDING_BLOCK - 136];
  uint64_t check; /* XXH3 of the bytes before */
};

enum recording_type {
  RECORDING_FRAME = 1,
  RECORDING_GAP = 2, /* payload: struct recording_gap */
  RECORDING_PAD = 3, /* payload: zeros, without a hash */
  RECORDING_END = 5, /* payload: struct recording_end; the last of a file that was ended well */
};

/* Then the payload, zeros up to a multiple of 8, the payload's hash (8 bytes), and zeros up to the
 * next line. */
struct recording_record {
  uint32_t magic;
  uint16_t type; /* enum recording_type */
  uint16_t kind; /* of a frame: enum ringcast_kind */
  uint64_t bytes;
  uint64_t number;   /* of a frame: counted from 0; of other types: the number of the next frame */
  uint64_t position; /* of the frame in the ring; of other types 0 */
  int64_t time;      /* CLOCK_MONOTONIC, nanoseconds: when the recorder took the frame */
  uint64_t check; /* XXH3 of the bytes before, seeded with the file's id plus the record's offset in
                     the file */
};

enum recording_reason {
  RECORDING_LOST = 1 /* overwritten before the recorder had copied it */
};

struct recording_gap {
  uint64_t from, to;    /* positions: of the last frame before the gap, and of the first frame after
                           (or unknown) */
  int64_t began, ended; /* CLOCK_MONOTONIC */
  uint64_t reason;      /* enum recording_reason */
  uint64_t zeros;
};

struct recording_end {
  uint64_t ones; /* RECORDING_UNKNOWN */
  uint64_t frames, bytes, gaps;
  uint64_t digest; /* of all frames: the sum of their shares */
  int64_t first, last;
  uint64_t zeros;
};

_Static_assert(sizeof(struct recording_header) == RECORDING_BLOCK, "the header is a block");
_Static_assert(offsetof(struct recording_header, name) == 64 &&
                   offsetof(struct recording_header, zeros) == 128,
               "the layout in docs/recording.md");
_Static_assert(sizeof(struct recording_record) == 48 && sizeof(struct recording_gap) == 48,
               "the same");
_Static_assert(sizeof(struct recording_end) == 64, "the same");

/* Where the payload's hash is, counted from the record, and how long the record is. `bytes` is less
 * than 2^62. */
static inline uint64_t recording_hash_at(uint64_t bytes) {
  return sizeof(struct recording_record) + ((bytes + 7) & ~UINT64_C(7));
}
static inline uint64_t recording_length(uint64_t bytes) {
  return (recording_hash_at(bytes) + sizeof(uint64_t) + RECORDING_LINE - 1) &
         ~(uint64_t)(RECORDING_LINE - 1);
}

uint64_t recording_header_check(const struct recording_header *header);
uint64_t recording_record_check(const struct recording_record *record, uint64_t id,
                                uint64_t offset);

/* The frames of a file, or of a part. */
struct recording_sum {
  uint64_t frames, bytes, gaps, digest;
  int64_t first, last; /* times of the first and the last frame */
};
void recording_sum_add(struct recording_sum *sum, const struct recording_record *record,
                       uint64_t hash);

/* ---- Writing (recording_write.c) ------------------------------------------------------------- */

struct recording_writer;

#define RECORDING_LEAST (UINT64_C(1) << 16) /* bytes of memory */
#define RECORDING_MOST  (UINT64_C(4) << 30)

/* Makes the file, which must not exist, with `memory` bytes for what is not on the disk yet.
 * `facts`: id, capacity, the clocks, writer_pid, name and ringcast. -errno, and in words in `why`.
 */
int recording_create(const char *path, uint64_t memory, const struct recording_header *facts,
                     struct recording_writer **out, char why[256]);
void recording_destroy(struct recording_writer *writer);

/* All frames since the last keep are kept or dropped together: a reader that gives frames back
 * learns whether the copies are good. Between two keeps: frames of together an eighth of the memory
 * at most, or one larger frame. recording_copy waits while all memory is under way to the disk.
 * After an error of the disk each call returns the same -errno. After recording_drop comes
 * recording_finish: if a part of the frame is in the file already, the file is cut off there, and
 * has no end. */
int recording_copy(struct recording_writer *writer, uint16_t kind, const void *data, uint64_t bytes,
                   uint64_t position, int64_t time);
int recording_keep(struct recording_writer *writer);
void recording_drop(struct recording_writer *writer);

/* Between a keep and the next copy. */
int recording_put_gap(struct recording_writer *writer, const struct recording_gap *gap);
int recording_flush(struct recording_writer *writer); /* begins to write all that is kept */

const struct recording_sum *recording_sum_of(const struct recording_writer *writer);
/* On the disk, but for the header. */
bool recording_is_empty(const struct recording_writer *writer);

/* Ends the file. After an error of the disk the file stays as a killed recorder leaves it, without
 * an end, and the first error is returned. */
int recording_finish(struct recording_writer *writer);

/* ---- Reading (recording_read.c) -------------------------------------------------------------- */

struct recording;

/* -errno, and in words in `why`. `stop` may be NULL; once `*stop` is not 0, reading ends with
 * -ECANCELED. */
int recording_open(const char *path, const volatile sig_atomic_t *stop, struct recording **out,
                   char why[256]);
void recording_close(struct recording *recording);
const struct recording_header *recording_header_of(const struct recording *recording);
/* Bytes: what the file's blocks hold, 64 MiB at least. A longer record counts only if it has no
 * hole; a shorter one may have holes, which are zeros in a copy that was made sparse. */
uint64_t recording_believed(const struct recording *recording);

enum recording_found {
  RECORDING_FOUND_FRAME,     /* `record` is the frame's; next: recording_load or recording_pass */
  RECORDING_FOUND_GAP,       /* `gap` is set */
  RECORDING_FOUND_DAMAGE,    /* `bytes` at `offset` hold no record; `missing` frames */
  RECORDING_FOUND_UNWRITTEN, /* the same, but with blocks of zeros in a file without an end: the
                                recorder died first, or still writes here */
  RECORDING_FOUND_TORN,      /* the same, up to the end of a file without an end */
  RECORDING_FOUND_END
};

struct recording_item {
  uint64_t offset, bytes;
  uint64_t missing; /* frames, or unknown */
  struct recording_record record;
  struct recording_gap gap;
};

/* The next frame, gap or damage in the file. -ECANCELED, -EIO and other codes of reading. */
int recording_next(struct recording *recording, struct recording_item *out);

/* The frame's payload: copied to `to`, which has room (_load), or only looked at (_check). 0:
 * whole. 1: not whole, and the next recording_next tells the cause. -EIO and other codes of
 * reading. */
int recording_load(struct recording *recording, void *to);
int recording_check(struct recording *recording);
/* Goes on without a look at the payload, which counts as whole. Results as above. */
int recording_pass(struct recording *recording);
uint64_t recording_at(const struct recording *recording); /* where the next record is */

/* The findings so far. */
struct recording_facts {
  struct recording_sum sum;
  uint64_t damages, damaged_bytes; /* places */
  uint64_t missing;                /* frames, as far as known */
  uint64_t unwritten_bytes, torn_bytes;
  uint64_t gap_bytes; /* of the ring */
  bool is_ended;      /* the file has its end */
  bool is_live; /* a recorder wrote the file when it was opened: the end is how far the recorder has
                   come */
};
const struct recording_facts *recording_facts_of(const struct recording *recording);

#endif
