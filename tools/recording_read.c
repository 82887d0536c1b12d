/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a recording, and trusts no byte. A record counts if its checksum is right, which depends on
 * the file's id and the record's place: a recording inside a frame's payload, or a block in the
 * wrong place, is never taken for a record of this file. Where there is no record, the reader looks
 * for the next record, line by line. The file is read, not mapped: a file that becomes shorter
 * meanwhile is an end and no signal.
 *
 * Nor is a length trusted: a file of a few blocks can have any size, by holes. A record is one only
 * where its bytes are.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/recording.h"

/* XXH3, whole in its header: nothing is linked. */
#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- What the writer has too ----------------------------------------------------------------- */

uint64_t recording_header_check(const struct recording_header *header) {
  return XXH3_64bits(header, offsetof(struct recording_header, check));
}

uint64_t recording_record_check(const struct recording_record *record, uint64_t id,
                                uint64_t offset) {
  return XXH3_64bits_withSeed(record, offsetof(struct recording_record, check), id + offset);
}

static uint64_t mix(uint64_t number, uint64_t hash) {
  return XXH3_64bits_withSeed(&hash, sizeof hash, number);
}

void recording_sum_add(struct recording_sum *sum, const struct recording_record *record,
                       uint64_t hash) {
  if (sum->frames == 0) sum->first = record->time;
  sum->last = record->time;
  sum->digest += mix(record->number, hash);
  sum->frames++;
  sum->bytes += record->bytes;
}

enum {
  WINDOW = 1 << 20,
  LEAST_BELIEVED = 64 << 20,
  LAST = 128 /* bytes of the record at the end */
};
_Static_assert(sizeof(struct recording_record) + sizeof(struct recording_end) + 8 <= LAST,
               "a line more or less");

struct recording {
  int fd;
  const volatile sig_atomic_t *stop;
  bool at_frame, is_broken; /* a frame is to be read; was read and is not whole */
  uint64_t size;
  uint64_t believed;
  struct recording_header header;
  struct recording_record record; /* the frame's */
  uint64_t at;                    /* the frame's record, or the next one */
  uint64_t number;                /* of the next frame */
  struct recording_facts facts;
  uint8_t *window;
  uint64_t window_at;
  size_t window_bytes;
};

static bool is_stopped(const struct recording *recording) {
  return recording->stop && *recording->stop;
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static int64_t read_at(const struct recording *recording, void *to, uint64_t bytes,
                       uint64_t offset) {
  uint64_t done = 0;
  while (done < bytes) {
    ssize_t result =
        pread(recording->fd, (uint8_t *)to + done, bytes - done, (off_t)(offset + done));
    if (result < 0 && errno == EINTR) continue;
    if (result < 0) return -errno;
    if (result == 0) break;
    done += (uint64_t)result;
  }
  return (int64_t)done;
}

/* 1: `*out` are `bytes` bytes, at most WINDOW, valid until the next look. 0: the file is shorter.
 * -errno. */
static int look(struct recording *recording, uint64_t offset, size_t bytes, const uint8_t **out) {
  *out = recording->window;
  if (offset > recording->size || bytes > recording->size - offset) return 0;
  uint64_t before = offset - recording->window_at;
  if (offset < recording->window_at || before > recording->window_bytes ||
      bytes > recording->window_bytes - before) {
    /* After a jump little is read: of frames that are passed, the payload is not. */
    bool is_jump = offset < recording->window_at || before > recording->window_bytes;
    size_t some = WINDOW;
    if (is_jump && bytes <= RECORDING_BLOCK) some = RECORDING_BLOCK;
    int64_t result = read_at(recording, recording->window, some, offset);
    if (result < 0) return (int)result;
    recording->window_at = offset;
    recording->window_bytes = (size_t)result;
    if ((size_t)result < bytes) return 0;
  }
  *out = recording->window + (offset - recording->window_at);
  return 1;
}

/* ---- Records --------------------------------------------------------------------------------- */

static bool is_record(const struct recording *recording, const uint8_t *at, uint64_t offset,
                      struct recording_record *out) {
  uint32_t magic;
  memcpy(&magic, at, sizeof magic);
  if (magic != RECORDING_RECORD_MAGIC) return false;
  memcpy(out, at, sizeof *out);
  return out->check == recording_record_check(out, recording->header.id, offset);
}

/* Whether all of the record is in the file: whoever reads the record takes memory and time for that
 * many bytes. */
static bool is_within(const struct recording *recording, const struct recording_record *record,
                      uint64_t offset) {
  if (record->bytes >= recording->size) return false;
  uint64_t length = recording_length(record->bytes);
  if (length > recording->size - offset) return false;
  if (length <= recording->believed) return true;
  off_t hole = lseek(recording->fd, (off_t)offset, SEEK_HOLE);
  return hole < 0 || (uint64_t)hole >= offset + length; /* below 0: a file system without holes */
}

/* 1: a record, of which at least the head is there. 0: none. -errno. */
static int read_record(struct recording *recording, uint64_t offset, struct recording_record *out) {
  const uint8_t *at;
  int result = look(recording, offset, sizeof *out, &at);
  if (result != 1) return result;
  return is_record(recording, at, offset, out);
}

static uint64_t end_of(const struct recording *recording, const struct recording_record *record) {
  return recording->at + recording_length(record->bytes);
}

/* A small payload of a record that is within the file. 1: whole. */
static int read_small(struct recording *recording, const struct recording_record *record,
                      uint64_t offset, void *out, size_t bytes) {
  const uint8_t *at;
  uint64_t hash;
  if (record->bytes != bytes || !is_within(recording, record, offset)) return 0;
  int result = look(recording, offset, recording_length(bytes), &at);
  if (result != 1) return result;
  memcpy(&hash, at + recording_hash_at(bytes), sizeof hash);
  memcpy(out, at + sizeof *record, bytes);
  return hash == XXH3_64bits(at + sizeof *record, bytes);
}

/* ---- Where there is no record ---------------------------------------------------------------- */

/* A stretch without a record. */
struct stretch {
  uint64_t end;  /* the next record, or the end of the file */
  uint64_t used; /* behind the last byte that is not zero */
  bool found, has_zero_block;
  struct recording_record next;
};

static bool is_zero(const uint8_t *at, size_t bytes) {
  return at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0;
}

/* `from`: where the next record can be, at the earliest. */
static void look_at_line(struct recording *recording, struct stretch *stretch, uint64_t from,
                         uint64_t offset, const uint8_t *line, uint64_t *zeros) {
  stretch->found = offset >= from && is_record(recording, line, offset, &stretch->next) &&
                   is_within(recording, &stretch->next, offset);
  if (stretch->found) return;
  if (offset % RECORDING_BLOCK == 0) *zeros = 0;
  if (is_zero(line, RECORDING_LINE)) *zeros += RECORDING_LINE;
  else {
    *zeros = 0;
    stretch->used = offset + RECORDING_LINE;
  }
  if (offset % RECORDING_BLOCK == RECORDING_BLOCK - RECORDING_LINE && *zeros >= RECORDING_BLOCK)
    stretch->has_zero_block = true;
}

/* Where the file has bytes again, at or after `offset`: holes are not read. */
static uint64_t skip_hole(struct recording *recording, struct stretch *stretch, uint64_t offset) {
  off_t data = lseek(recording->fd, (off_t)offset, SEEK_DATA);
  if (data < 0 && errno != ENXIO) return offset;
  uint64_t next = recording->size;
  if (data >= 0) next = (uint64_t)data & ~(uint64_t)(RECORDING_LINE - 1);
  if (next <= offset) return offset;
  if (next - offset >= 2 * (uint64_t)RECORDING_BLOCK) stretch->has_zero_block = true;
  return next < recording->size ? next : recording->size;
}

/* From `start` on there is no record before `from`. */
static int search(struct recording *recording, uint64_t start, uint64_t from, struct stretch *out) {
  uint64_t offset = start, zeros = 0;
  *out = (struct stretch){.used = start};
  while (offset < recording->size) {
    const uint8_t *at;
    if (is_stopped(recording)) return -ECANCELED;
    if (offset % WINDOW == 0 || offset == start) offset = skip_hole(recording, out, offset);
    if (offset >= recording->size) break;
    size_t bytes = WINDOW - offset % WINDOW; /* windows are read as wholes */
    if (bytes > recording->size - offset) bytes = (size_t)(recording->size - offset);
    int result = look(recording, offset, bytes, &at);
    if (result < 0) return result;
    if (result == 0) break; /* the file has become shorter */
    for (size_t done = 0; done < bytes; done += RECORDING_LINE, offset += RECORDING_LINE) {
      if (bytes - done < RECORDING_LINE) {
        if (!is_zero(at + done, bytes - done)) out->used = recording->size;
        continue;
      }
      look_at_line(recording, out, from, offset, at + done, &zeros);
      if (out->found) {
        out->end = offset;
        return 0;
      }
    }
  }
  out->end = recording->size;
  return 0;
}

/* The kind of the stretch from `at` on: bytes without a record, or a frame that is not whole. */
static int tell_stretch(struct recording *recording, struct recording_item *out) {
  struct recording_facts *facts = &recording->facts;
  struct stretch stretch;
  uint64_t from = recording->at + RECORDING_LINE;
  if (recording->is_broken) from = end_of(recording, &recording->record);
  recording->is_broken = false;
  if (from > recording->size) from = recording->size;
  int result = search(recording, recording->at, from, &stretch);
  if (result != 0) return result;
  out->offset = recording->at;
  out->bytes = stretch.end - recording->at;
  out->missing = RECORDING_UNKNOWN;
  recording->at = stretch.end;
  /* As far as the recorder has come. */
  if (!stretch.found && (facts->is_live || stretch.used == out->offset)) return RECORDING_FOUND_END;
  if (!stretch.found && !facts->is_ended) {
    out->bytes = (stretch.used > from ? stretch.used : from) - out->offset;
    facts->torn_bytes += out->bytes;
    return RECORDING_FOUND_TORN;
  }
  if (stretch.found && stretch.next.number >= recording->number) {
    out->missing = stretch.next.number - recording->number;
    facts->missing += out->missing;
    recording->number = stretch.next.number;
  }
  if (!facts->is_ended && (stretch.has_zero_block || facts->is_live)) {
    facts->unwritten_bytes += out->bytes;
    return RECORDING_FOUND_UNWRITTEN;
  }
  facts->damages++;
  facts->damaged_bytes += out->bytes;
  return RECORDING_FOUND_DAMAGE;
}

/* ---- The next item --------------------------------------------------------------------------- */

static int take_gap(struct recording *recording, const struct recording_record *record,
                    struct recording_item *out) {
  int result = read_small(recording, record, recording->at, &out->gap, sizeof out->gap);
  if (result != 1) return result;
  recording->facts.sum.gaps++;
  if (out->gap.to != RECORDING_UNKNOWN && out->gap.to > out->gap.from)
    recording->facts.gap_bytes += out->gap.to - out->gap.from;
  return 1;
}

static int take_end(struct recording *recording, const struct recording_record *record) {
  struct recording_end end;
  int result = read_small(recording, record, recording->at, &end, sizeof end);
  if (result == 1) recording->facts.is_ended = true;
  return result;
}

/* One record. -EAGAIN: the record is passed, take the next record. */
static int take_record(struct recording *recording, const struct recording_record *record,
                       struct recording_item *out) {
  int result = 1;
  out->offset = recording->at;
  out->record = *record;
  switch (record->type) {
  case RECORDING_FRAME:
    recording->record = *record;
    recording->at_frame = true;
    return RECORDING_FOUND_FRAME;
  case RECORDING_GAP: result = take_gap(recording, record, out); break;
  case RECORDING_END: result = take_end(recording, record); break;
  case RECORDING_PAD: break;
  default: result = 0;
  }
  if (result < 0) return result;
  if (result == 0) { /* of a later version, or not whole */
    recording->record = *record;
    recording->is_broken = true;
    return tell_stretch(recording, out);
  }
  recording->at = end_of(recording, record);
  if (record->type == RECORDING_GAP) return RECORDING_FOUND_GAP;
  if (record->type == RECORDING_END) return RECORDING_FOUND_END;
  return -EAGAIN;
}

static int next_once(struct recording *recording, struct recording_item *out) {
  struct recording_record record;
  if (recording->is_broken) return tell_stretch(recording, out);
  int result = read_record(recording, recording->at, &record);
  if (result < 0) return result;
  if (result == 1 && is_within(recording, &record, recording->at))
    return take_record(recording, &record, out);
  if (recording->at >= recording->size) return RECORDING_FOUND_END;
  return tell_stretch(recording, out);
}

int recording_next(struct recording *recording, struct recording_item *out) {
  int result = 0;
  if (recording->at_frame) result = recording_pass(recording);
  if (result < 0) return result;
  do {
    if (is_stopped(recording)) return -ECANCELED;
    result = next_once(recording, out);
  } while (result == -EAGAIN);
  return result;
}

/* ---- A frame's payload ----------------------------------------------------------------------- */

/* Goes on behind the frame, if it is whole. */
static int settle(struct recording *recording, bool is_whole, uint64_t hash) {
  const struct recording_record *record = &recording->record;
  recording->at_frame = false;
  recording->is_broken = !is_whole;
  if (!is_whole) return 1;
  recording->at = end_of(recording, record);
  recording_sum_add(&recording->facts.sum, record, hash);
  recording->number = record->number + 1;
  return 0;
}

static int read_hash(struct recording *recording, uint64_t *out) {
  const uint8_t *at;
  int result =
      look(recording, recording->at + recording_hash_at(recording->record.bytes), sizeof *out, &at);
  if (result == 1) memcpy(out, at, sizeof *out);
  return result;
}

/* The payload's next bytes, hashed: into `to`, or if that is NULL into the window. 1, or 0: the
 * file is shorter. */
static int load_some(struct recording *recording, uint64_t done, size_t bytes, uint8_t *to,
                     XXH3_state_t *state) {
  uint64_t offset = recording->at + sizeof recording->record + done;
  const uint8_t *at = to;
  int result;
  if (to && recording->record.bytes > WINDOW / 4) {
    int64_t read = read_at(recording, to, bytes, offset);
    result = read < 0 ? (int)read : (size_t)read == bytes;
  } else {
    result = look(recording, offset, bytes, &at);
    if (result == 1 && to) memcpy(to, at, bytes);
  }
  if (result == 1) XXH3_64bits_update(state, to ? to : at, bytes);
  return result;
}

static int load(struct recording *recording, uint8_t *to) {
  XXH3_state_t state;
  uint64_t bytes = recording->record.bytes, right = 0;
  int result = 1;
  if (!recording->at_frame) return -EINVAL;
  XXH3_64bits_reset(&state);
  for (uint64_t done = 0; done < bytes && result == 1;) {
    if (is_stopped(recording)) return -ECANCELED;
    size_t some = bytes - done < WINDOW / 4 ? (size_t)(bytes - done) : WINDOW / 4;
    result = load_some(recording, done, some, to ? to + done : NULL, &state);
    done += some;
  }
  if (result == 1) result = read_hash(recording, &right);
  if (result < 0) return result;
  uint64_t found = XXH3_64bits_digest(&state);
  return settle(recording, result == 1 && found == right, found); /* 0: the file became shorter */
}

int recording_load(struct recording *recording, void *to) { return load(recording, to); }
int recording_check(struct recording *recording) { return load(recording, NULL); }

int recording_pass(struct recording *recording) {
  uint64_t hash = 0;
  int result = read_hash(recording, &hash);
  if (result < 0) return result;
  return settle(recording, result == 1, hash);
}

uint64_t recording_at(const struct recording *recording) { return recording->at; }
const struct recording_facts *recording_facts_of(const struct recording *recording) {
  return &recording->facts;
}

/* ---- The whole file -------------------------------------------------------------------------- */

static int fail(int result, char why[256], const char *path, const char *what) {
  snprintf(why, 256, "%.120s: %s", path, what);
  return result;
}

/* Text of the header: valid characters of names, or nothing. */
static void tame(char *text, size_t size) {
  static const char allowed[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:+-";
  text[size - 1] = '\0';
  if (text[strspn(text, allowed)] != '\0') *text = '\0';
}

/* A damaged header is enough if the first record agrees with its id. */
static int check_header(struct recording *recording, const char *path, char why[256]) {
  struct recording_header *header = &recording->header;
  struct recording_record record;
  int64_t result = read_at(recording, header, sizeof *header, 0);
  if (result < 0) return fail((int)result, why, path, strerror((int)-result));
  if ((uint64_t)result < sizeof header->magic ||
      memcmp(header->magic, RECORDING_MAGIC, sizeof header->magic) != 0)
    return fail(-EPROTO, why, path, "is not a recording of ringcast");
  if ((uint64_t)result < sizeof *header)
    return fail(-EPROTO, why, path, "is cut off within its first block: there is no frame in it");
  if (header->check != recording_header_check(header)) {
    if (read_record(recording, RECORDING_BLOCK, &record) != 1)
      return fail(-EPROTO, why, path,
                  "its first block is damaged, and no record can be checked without it");
    recording->facts.damages++;
  }
  if (header->version != RECORDING_VERSION || header->header_bytes != RECORDING_BLOCK ||
      header->line != RECORDING_LINE || header->record_bytes != sizeof(struct recording_record))
    return fail(-EPROTONOSUPPORT, why, path,
                "is of another version of the format: read it with a newer ringcast");
  tame(header->name, sizeof header->name);
  tame(header->ringcast, sizeof header->ringcast);
  return 0;
}

/* A lock for reading, which anybody who may read the file can take, makes no recorder. */
static bool is_locked(const struct recording *recording) {
  struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  return fcntl(recording->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK;
}

static void find_end(struct recording *recording) {
  struct recording_end end;
  struct recording_record record;
  uint64_t offset = recording->size - LAST;
  if (recording->size < RECORDING_BLOCK + LAST || recording->size % RECORDING_LINE != 0) return;
  if (read_record(recording, offset, &record) == 1 && record.type == RECORDING_END)
    recording->facts.is_ended = read_small(recording, &record, offset, &end, sizeof end) == 1;
}

static int open_file(struct recording *recording, const char *path, char why[256]) {
  struct stat status;
  recording->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (recording->fd < 0 || fstat(recording->fd, &status) != 0)
    return fail(-errno, why, path, strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail(-EINVAL, why, path, "is not a file");
  recording->facts.is_live = is_locked(recording);
  recording->size = (uint64_t)status.st_size;
  recording->believed = (uint64_t)status.st_blocks * 512;
  if (recording->believed < LEAST_BELIEVED) recording->believed = LEAST_BELIEVED;
  return check_header(recording, path, why);
}

int recording_open(const char *path, const volatile sig_atomic_t *stop, struct recording **out,
                   char why[256]) {
  struct recording *recording = calloc(1, sizeof *recording);
  if (recording) recording->window = malloc(WINDOW);
  if (!recording || !recording->window) {
    free(recording);
    return fail(-ENOMEM, why, path, "no memory");
  }
  recording->stop = stop;
  int result = open_file(recording, path, why);
  if (result != 0) {
    recording_close(recording);
    return result;
  }
  recording->at = RECORDING_BLOCK;
  if (!recording->facts.is_live) find_end(recording);
  *out = recording;
  return 0;
}

void recording_close(struct recording *recording) {
  if (recording->fd >= 0) close(recording->fd);
  free(recording->window);
  free(recording);
}

const struct recording_header *recording_header_of(const struct recording *recording) {
  return &recording->header;
}
uint64_t recording_believed(const struct recording *recording) { return recording->believed; }
