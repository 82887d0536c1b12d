/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/disk.h"
#include "tools/recording.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
  MOST_ENTRIES = 16384, /* of the index: then every second entry goes */
  FIRST_STRIDE = 64,    /* frames from one entry to the next */
  HASH_BLOCK = 32768    /* is copied, and then hashed while in the cache */
};

/* A place to go back to. */
struct mark {
  uint64_t end;
  struct recording_sum sum;
};

struct recording_writer {
  struct disk *disk;
  uint64_t id;
  uint64_t end;
  struct recording_sum sum;
  struct mark mark;
  bool is_out;       /* bytes after the mark are under way already */
  uint64_t *footer;  /* the hash of the last frame, ... */
  uint64_t unfooter; /* ... and the replacement if the frame is taken back */
  bool is_flushed;
  struct recording_entry *index;
  uint64_t entries, stride, next_entry; /* the number of the frame that has the next entry */
  struct recording_entry first;         /* the first frame after the mark */
  XXH3_state_t state;                   /* on a line of 64 bytes, as xxHash asks */
};

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* The memory for the next bytes of the file, at least one. What is not kept yet can be taken back,
 * and so stays in memory; a frame that would fill half of the memory is on its way before it is
 * kept. */
static int find_room(struct recording_writer *writer, uint8_t **at, size_t *room) {
  if (writer->end - writer->mark.end >= disk_half(writer->disk)) {
    int result = disk_write(writer->disk, writer->end, false);
    if (result != 0) return result;
    writer->is_out = true;
  }
  return disk_room(writer->disk, writer->end, at, room);
}

/* `data` may be NULL: zeros. */
static int put(struct recording_writer *writer, const void *data, uint64_t bytes) {
  const uint8_t *from = data;
  while (bytes > 0) {
    uint8_t *to;
    size_t room;
    int result = find_room(writer, &to, &room);
    if (result != 0) return result;
    if (room > bytes) room = (size_t)bytes;
    if (from) {
      memcpy(to, from, room);
      from += room;
    } else {
      memset(to, 0, room);
    }
    writer->end += room;
    bytes -= room;
  }
  return 0;
}

static int put_hashed(struct recording_writer *writer, const void *data, uint64_t bytes,
                      uint64_t *hash) {
  const uint8_t *from = data;
  XXH3_64bits_reset(&writer->state);
  while (bytes > 0) {
    uint8_t *to;
    size_t room;
    int result = find_room(writer, &to, &room);
    if (result != 0) return result;
    if (room > HASH_BLOCK) room = HASH_BLOCK;
    if (room > bytes) room = (size_t)bytes;
    memcpy(to, from, room);
    XXH3_64bits_update(&writer->state, to,
                       room); /* of the copy: the frame may change during the copy */
    writer->end += room;
    from += room;
    bytes -= room;
  }
  *hash = XXH3_64bits_digest(&writer->state);
  return 0;
}

/* ---- Records --------------------------------------------------------------------------------- */

static int put_head(struct recording_writer *writer, struct recording_record *record) {
  record->magic = RECORDING_RECORD_MAGIC;
  record->check = recording_record_check(record, writer->id, writer->end);
  writer->is_flushed = false;
  return put(writer, record, sizeof *record);
}

/* The hash is within a line, which is contiguous. */
static int put_tail(struct recording_writer *writer, uint64_t bytes, uint64_t hash) {
  uint8_t *at;
  size_t room;
  int result = put(writer, NULL, -bytes & 7);
  if (result == 0) result = find_room(writer, &at, &room);
  if (result != 0) return result;
  memcpy(at, &hash, sizeof hash);
  writer->footer = (uint64_t *)(void *)at;
  writer->end += sizeof hash;
  return put(writer, NULL, -writer->end & (RECORDING_LINE - 1));
}

static int put_record(struct recording_writer *writer, enum recording_type type, int64_t time,
                      const void *data, uint64_t bytes) {
  struct recording_record record = {
      .type = (uint16_t)type, .bytes = bytes, .number = writer->sum.frames, .time = time};
  uint64_t hash = data ? XXH3_64bits(data, bytes) : 0;
  int result = put_head(writer, &record);
  if (result == 0) result = put(writer, data, bytes);
  return result == 0 ? put_tail(writer, bytes, hash) : result;
}

/* A frame that fits in contiguous memory: the same bytes without a loop. */
static uint64_t put_small(struct recording_writer *writer, const struct recording_record *record,
                          const void *data, uint8_t *at) {
  uint64_t length = recording_length(record->bytes), place = recording_hash_at(record->bytes);
  memcpy(at, record, sizeof *record);
  memcpy(at + sizeof *record, data, record->bytes);
  uint64_t hash = XXH3_64bits(at + sizeof *record, record->bytes);
  memset(at + sizeof *record + record->bytes, 0, length - sizeof *record - record->bytes);
  memcpy(at + place, &hash, sizeof hash);
  writer->footer = (uint64_t *)(void *)(at + place);
  writer->end += length;
  writer->is_flushed = false;
  return hash;
}

int recording_copy(struct recording_writer *writer, uint16_t kind, const void *data, uint64_t bytes,
                   uint64_t position, int64_t time) {
  struct recording_record record = {.magic = RECORDING_RECORD_MAGIC,
                                    .type = RECORDING_FRAME,
                                    .kind = kind,
                                    .bytes = bytes,
                                    .number = writer->sum.frames,
                                    .position = position,
                                    .time = time};
  uint64_t hash;
  uint8_t *at;
  size_t room;
  int result = find_room(writer, &at, &room);
  if (result != 0) return result;
  record.check = recording_record_check(&record, writer->id, writer->end);
  if (bytes <= HASH_BLOCK && recording_length(bytes) <= room) {
    hash = put_small(writer, &record, data, at);
  } else {
    result = put_head(writer, &record);
    if (result == 0) result = put_hashed(writer, data, bytes, &hash);
    if (result == 0) result = put_tail(writer, bytes, hash);
    if (result != 0) return result;
  }
  writer->unfooter = ~record.check;
  if (record.number == writer->mark.sum.frames)
    writer->first = (struct recording_entry){
        .number = record.number, .position = position, .offset = writer->mark.end, .time = time};
  recording_sum_add(&writer->sum, &record, hash);
  return 0;
}

int recording_put_gap(struct recording_writer *writer, const struct recording_gap *gap) {
  int result = put_record(writer, RECORDING_GAP, gap->ended, gap, sizeof *gap);
  if (result != 0) return result;
  writer->sum.gaps++;
  return recording_keep(writer);
}

/* ---- Keeping and dropping -------------------------------------------------------------------- */

static int set_mark(struct recording_writer *writer) {
  writer->mark = (struct mark){.end = writer->end, .sum = writer->sum};
  writer->is_out = false;
  return disk_write(writer->disk, writer->end, false);
}

static void thin_index(struct recording_writer *writer) {
  for (uint64_t i = 0; i < MOST_ENTRIES / 2; i++) writer->index[i] = writer->index[2 * i];
  writer->entries = MOST_ENTRIES / 2;
  writer->stride *= 2;
}

/* The first frame after the mark, if an entry is due. */
int recording_keep(struct recording_writer *writer) {
  const struct mark *mark = &writer->mark;
  if (writer->sum.frames > mark->sum.frames && mark->sum.frames >= writer->next_entry) {
    if (writer->entries == MOST_ENTRIES) thin_index(writer);
    writer->index[writer->entries++] = writer->first;
    writer->next_entry = mark->sum.frames + writer->stride;
  }
  return set_mark(writer);
}

int recording_drop(struct recording_writer *writer) {
  writer->sum = writer->mark.sum;
  if (writer->is_out) {
    *writer->footer = writer->unfooter;
    return set_mark(writer);
  }
  writer->end = writer->mark.end;
  return 0;
}

/* All that is kept, and the mark behind it. */
static int write_all(struct recording_writer *writer) {
  int result = set_mark(writer);
  return result == 0 ? disk_write(writer->disk, writer->end, true) : result;
}

int recording_flush(struct recording_writer *writer) {
  uint64_t left = -writer->end & (RECORDING_BLOCK - 1);
  int result = disk_write(writer->disk, 0, true); /* tells of an error */
  if (result != 0 || writer->is_flushed) return result;
  if (left > 0) result = put_record(writer, RECORDING_PAD, 0, NULL, left - recording_length(0));
  if (result == 0) result = write_all(writer);
  writer->is_flushed = result == 0;
  return result;
}

const struct recording_sum *recording_sum_of(const struct recording_writer *writer) {
  return &writer->sum;
}

/* ---- The whole file -------------------------------------------------------------------------- */

int recording_create(struct disk *disk, const struct recording_header *header,
                     struct recording_writer **out) {
  struct recording_writer *writer =
      aligned_alloc(_Alignof(struct recording_writer), sizeof *writer);
  if (!writer) return -ENOMEM;
  *writer = (struct recording_writer){.disk = disk, .id = header->id, .stride = FIRST_STRIDE};
  writer->index = calloc(MOST_ENTRIES, sizeof *writer->index);
  int result = writer->index ? 0 : -ENOMEM;
  struct recording_header block = *header;
  memcpy(block.magic, RECORDING_MAGIC, sizeof block.magic);
  block.version = RECORDING_VERSION;
  block.header_bytes = RECORDING_BLOCK;
  block.line = RECORDING_LINE;
  block.record_bytes = sizeof(struct recording_record);
  block.check = recording_header_check(&block);
  if (result == 0) result = put(writer, &block, sizeof block);
  if (result == 0) result = write_all(writer);
  if (result == 0)
    result = disk_drain(disk); /* from now on the file is a recording to other programs */
  writer->is_flushed = true;
  if (result == 0) *out = writer;
  else recording_destroy(writer);
  return result;
}

void recording_destroy(struct recording_writer *writer) {
  free(writer->index);
  free(writer);
}

static int put_end(struct recording_writer *writer) {
  const struct recording_sum *sum = &writer->sum;
  const struct recording_end end = {.index = writer->entries > 0 ? writer->end : RECORDING_UNKNOWN,
                                    .frames = sum->frames,
                                    .bytes = sum->bytes,
                                    .gaps = sum->gaps,
                                    .digest = sum->digest,
                                    .first = sum->first,
                                    .last = sum->last};
  int result = 0;
  if (writer->entries > 0)
    result = put_record(writer, RECORDING_INDEX, sum->last, writer->index,
                        writer->entries * sizeof *writer->index);
  return result == 0 ? put_record(writer, RECORDING_END, sum->last, &end, sizeof end) : result;
}

int recording_finish(struct recording_writer *writer) {
  int result = put_end(writer), fd = disk_fd(writer->disk);
  uint64_t end = writer->end;
  if (result == 0) result = put(writer, NULL, -end & (RECORDING_BLOCK - 1));
  if (result == 0) result = write_all(writer);
  int drained = disk_drain(writer->disk);
  if (result == 0) result = drained;
  if (result == 0 && (ftruncate(fd, (off_t)end) != 0 || fdatasync(fd) != 0)) return -errno;
  return result;
}
