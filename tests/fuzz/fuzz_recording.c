/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recordings (tools/recording_read.c): any bytes at all are read as a file, frame by frame. The
 * first byte of an input says how:
 *   1    checksums of all that looks like a record are made right, and of the header
 *   2    so are the hashes of payloads
 *   4    payloads are loaded, into a block of just their size; 8 passed without a look; else
 *        checked
 *   16   the first bytes after it replace those of the header
 */
#define _GNU_SOURCE
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <sys/mman.h>

#include "tools/recording.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { RIGHT = 1, HASHED = 2, LOAD = 4, PASS = 8, HEADER = 16, HEADER_BYTES = 136 };

static void make_right(uint8_t *file, size_t bytes, unsigned flags) {
  struct recording_header *header = (struct recording_header *)(void *)file;
  header->check = recording_header_check(header);
  for (size_t at = RECORDING_BLOCK; at + sizeof(struct recording_record) <= bytes;
       at += RECORDING_LINE) {
    struct recording_record *record = (struct recording_record *)(void *)(file + at);
    if (record->magic != RECORDING_RECORD_MAGIC) continue;
    record->check = recording_record_check(record, header->id, at);
    if (!(flags & HASHED) || record->bytes > bytes || recording_length(record->bytes) > bytes - at)
      continue;
    uint64_t hash = XXH3_64bits(file + at + sizeof *record, record->bytes);
    memcpy(file + at + recording_hash_at(record->bytes), &hash, sizeof hash);
  }
}

/* A file of the input. Returns its descriptor. */
static int make_file(const uint8_t *data, size_t bytes, unsigned flags) {
  size_t header = flags & HEADER ? (bytes < HEADER_BYTES ? bytes : HEADER_BYTES) : 0,
         rest = bytes - header;
  size_t size = RECORDING_BLOCK + rest, room = (size + 63) & ~(size_t)63;
  uint8_t *file = aligned_alloc(64, room);
  memset(file, 0, room);
  struct recording_header *start = (struct recording_header *)(void *)file;
  *start = (struct recording_header){.version = RECORDING_VERSION,
                                     .header_bytes = RECORDING_BLOCK,
                                     .line = RECORDING_LINE,
                                     .record_bytes = sizeof(struct recording_record),
                                     .id = 7};
  memcpy(start->magic, RECORDING_MAGIC, sizeof start->magic);
  memcpy(file, data, header);
  memcpy(file + RECORDING_BLOCK, data + header, rest);
  if (flags & RIGHT) make_right(file, size, flags);
  int fd = memfd_create("recording", MFD_CLOEXEC);
  require(fd >= 0 && write(fd, file, size) == (ssize_t)size);
  free(file);
  return fd;
}

static int read_frame(struct recording *recording, const struct recording_record *record,
                      unsigned flags) {
  if (flags & PASS) return recording_pass(recording);
  if (!(flags & LOAD)) return recording_check(recording);
  uint8_t *payload = malloc(record->bytes ? record->bytes : 1);
  int result = recording_load(recording, payload);
  if (result == 0) touch_all(payload, record->bytes);
  free(payload);
  return result;
}

static void check_facts(const struct recording_facts *facts, size_t size) {
  require(facts->sum.bytes <= size && facts->sum.frames <= size / RECORDING_LINE);
  require(facts->damaged_bytes <= size && facts->torn_bytes <= size &&
          facts->unwritten_bytes <= size);
}

static void read_file(struct recording *recording, size_t size, unsigned flags) {
  struct recording_item item;
  uint64_t most = size / RECORDING_LINE + 2, at = recording_at(recording);
  int found;
  require(at >= RECORDING_BLOCK && at <= size);
  do {
    require(most-- > 0); /* each step goes on in the file */
    found = recording_next(recording, &item);
    require(found >= 0);
    require(found == RECORDING_FOUND_END || (item.offset >= at && item.offset <= size));
    if (found == RECORDING_FOUND_FRAME) {
      fuzzed_frames++;
      require(recording_length(item.record.bytes) <= size - item.offset);
      int result = read_frame(recording, &item.record, flags);
      require(result == 0 || result == 1);
    }
    at = found == RECORDING_FOUND_FRAME ? item.offset : recording_at(recording);
  } while (found != RECORDING_FOUND_END);
  require(recording_at(recording) <= size);
  check_facts(recording_facts_of(recording), size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  struct recording *recording;
  char path[64], why[256];
  if (bytes == 0) return 0;
  int lowest = lowest_descriptor(), fd = make_file(data + 1, bytes - 1, *data);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int result = recording_open(path, NULL, &recording, why);
  allowed(result, -EPROTO, -EPROTONOSUPPORT);
  if (result == 0) {
    read_file(recording, (size_t)lseek(fd, 0, SEEK_END), *data);
    recording_close(recording);
  }
  close(fd);
  require(lowest_descriptor() == lowest);
  return 0;
}
