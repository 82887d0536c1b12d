/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a recording, and a thread of its own that writes it with pwrite, in whole chunks of
 * memory that is used in turn; with O_DIRECT if the file system takes the flag. Bytes are written
 * in their order, and none twice. The memory is this process's, not the ring's: a frame must be
 * given back before a slow disk takes the bytes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/recording.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { CHUNKS = 4, DISK_BLOCK = 4096 /* writes are of whole blocks */ };

static const uint64_t LARGEST_CHUNK = 16 << 20;

/* The file grows in steps: a write that lengthens a file is slow. */
static const uint64_t STEP = 256 << 20;

struct disk {
  int fd;
  uint8_t *memory; /* the byte at offset n of the file is at n % bytes */
  uint64_t bytes, chunk;
  uint64_t seen; /* `written`, when the recorder looked last */

  pthread_t thread;
  bool has_thread;
  pthread_mutex_t lock; /* guards what follows, and `changed` tells of it */
  pthread_cond_t changed;
  uint64_t due, written; /* offsets: bytes before are to be written, and are written */
  int error;
  bool ends;

  uint64_t grown; /* of the thread: the end of the file */
  bool direct, grows;
};

/* ---- The disk: its thread -------------------------------------------------------------------- */

static void grow(struct disk *disk, uint64_t end) {
  while (disk->grows && disk->grown < end) {
    /* No room, or a file system without fallocate: the writes lengthen the file, and report
     * errors. */
    disk->grows = fallocate(disk->fd, 0, (off_t)disk->grown, (off_t)STEP) == 0;
    disk->grown += STEP;
  }
}

/* Larger blocks, or a file system that refuses O_DIRECT only now. */
static bool make_plain(struct disk *disk) {
  int flags = fcntl(disk->fd, F_GETFL);
  bool was_direct = disk->direct;
  disk->direct = false;
  return was_direct && flags >= 0 && fcntl(disk->fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

static int write_part(struct disk *disk, uint64_t from, uint64_t end) {
  grow(disk, end);
  while (from < end) {
    ssize_t result = pwrite(disk->fd, disk->memory + from % disk->bytes, end - from, (off_t)from);
    if (result < 0) {
      int error = errno;
      if (error == EINTR || error == EAGAIN) continue;
      if (error == EINVAL && make_plain(disk)) continue;
      return -error;
    }
    if (result < DISK_BLOCK) return -ENOSPC;
    from += (uint64_t)result &
            ~(uint64_t)(DISK_BLOCK - 1); /* after a short write the next one gives the reason */
  }
  return 0;
}

static void *write_due(void *context) {
  struct disk *disk = context;
  pthread_mutex_lock(&disk->lock);
  for (;;) {
    while (disk->written == disk->due && !disk->ends)
      pthread_cond_wait(&disk->changed, &disk->lock);
    if (disk->written == disk->due || disk->error != 0) break;
    uint64_t from = disk->written, end = from - from % disk->chunk + disk->chunk;
    if (end > disk->due) end = disk->due;
    pthread_mutex_unlock(&disk->lock);
    int result = write_part(disk, from, end);
    pthread_mutex_lock(&disk->lock);
    if (result == 0) disk->written = end;
    else disk->error = result;
    pthread_cond_broadcast(&disk->changed);
  }
  pthread_mutex_unlock(&disk->lock);
  return NULL;
}

/* Signals are the first thread's: they end its waits. */
static int start_thread(struct disk *disk) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int result = pthread_create(&disk->thread, NULL, write_due, disk);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  disk->has_thread = result == 0;
  return -result;
}

/* ---- The disk: its file ---------------------------------------------------------------------- */

static int fail(int result, char why[256], const char *what, const char *path) {
  snprintf(why, 256, "%s %.180s: %s", what, path, strerror(-result));
  return result;
}

/* A new file, for this user alone: frames may hold what nobody else may see. A name that is there
 * is refused, also a link that leads nowhere. */
static int open_file(struct disk *disk, const char *path, char why[256]) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  disk->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (disk->fd < 0 && errno == EEXIST) {
    snprintf(why, 256, "%.180s exists, and is not overwritten: give another file", path);
    return -EEXIST;
  }
  if (disk->fd < 0) return fail(-errno, why, "can't make", path);
  disk->direct = fcntl(disk->fd, F_SETFL, O_DIRECT) == 0; /* some file systems do without */
  fcntl(disk->fd, F_OFD_SETLK, &lock);                    /* and some without locks */
  return 0;
}

static int make_memory(struct disk *disk, uint64_t bytes) {
  disk->chunk = bytes / CHUNKS < LARGEST_CHUNK ? bytes / CHUNKS : LARGEST_CHUNK;
  disk->chunk &= ~(uint64_t)(DISK_BLOCK - 1);
  disk->bytes = bytes - bytes % disk->chunk;
  disk->memory =
      mmap(NULL, disk->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (disk->memory == MAP_FAILED) return -ENOMEM;
  madvise(disk->memory, disk->bytes, MADV_HUGEPAGE);
  memset(disk->memory, 0, disk->bytes); /* now, and not while frames wait */
  return 0;
}

static void disk_close(struct disk *disk) {
  if (disk->has_thread) {
    pthread_mutex_lock(&disk->lock);
    disk->ends = true;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
    pthread_join(disk->thread, NULL);
  }
  pthread_cond_destroy(&disk->changed);
  pthread_mutex_destroy(&disk->lock);
  if (disk->memory != MAP_FAILED) munmap(disk->memory, disk->bytes);
  if (disk->fd >= 0) close(disk->fd);
  free(disk);
}

/* Makes the file, and locks it for writing until close, for readers to know. */
static int disk_open(const char *path, uint64_t memory, struct disk **out, char why[256]) {
  struct disk *disk = calloc(1, sizeof *disk);
  if (!disk) return fail(-ENOMEM, why, "can't write", path);
  *disk = (struct disk){.fd = -1, .grows = true, .memory = MAP_FAILED};
  pthread_mutex_init(&disk->lock, NULL);
  pthread_cond_init(&disk->changed, NULL);
  int result = open_file(disk, path, why);
  if (result == 0) {
    result = make_memory(disk, memory);
    if (result == 0) result = start_thread(disk);
    if (result != 0) {
      fail(result, why, "can't write", path);
      unlink(path);
    }
  }
  if (result == 0) *out = disk;
  else disk_close(disk);
  return result;
}

/* ---- The disk: its memory -------------------------------------------------------------------- */

/* The memory for the bytes of the file from `offset` on, at least one: `*room` of them are
 * contiguous. Waits for the disk if all memory is in use; of bytes that no disk_write was told,
 * that is at most a half. -errno of a write that failed. */
static int disk_room(struct disk *disk, uint64_t offset, uint8_t **out, size_t *room) {
  int result = 0;
  if (offset - disk->seen == disk->bytes) {
    pthread_mutex_lock(&disk->lock);
    while (offset - disk->written == disk->bytes && disk->error == 0)
      pthread_cond_wait(&disk->changed, &disk->lock);
    disk->seen = disk->written;
    result = disk->error;
    pthread_mutex_unlock(&disk->lock);
  }
  uint64_t at = offset % disk->bytes, left = disk->seen + disk->bytes - offset;
  *out = disk->memory + at;
  *room = left < disk->bytes - at ? left : disk->bytes - at;
  return result;
}

/* Begins to write what lies before `end`: whole chunks, or, with `all`, all of it, whole blocks.
 * From then on these bytes may not change. -errno of a write that failed. */
static int disk_write(struct disk *disk, uint64_t end, bool all) {
  if (!all) end -= end % disk->chunk;
  pthread_mutex_lock(&disk->lock);
  if (end > disk->due) {
    disk->due = end;
    pthread_cond_broadcast(&disk->changed);
  }
  int result = disk->error;
  pthread_mutex_unlock(&disk->lock);
  return result;
}

/* Waits until what has begun has ended. */
static int disk_drain(struct disk *disk) {
  pthread_mutex_lock(&disk->lock);
  while (disk->written < disk->due && disk->error == 0)
    pthread_cond_wait(&disk->changed, &disk->lock);
  int result = disk->error;
  pthread_mutex_unlock(&disk->lock);
  return result;
}

/* ---- The writer ------------------------------------------------------------------------------ */

enum { HASH_BLOCK = 32768 /* is copied, and then hashed while in the cache */ };

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
  bool is_out; /* bytes after the mark are under way already */
  bool is_cut; /* and were dropped: the file ends at the mark */
  bool is_flushed;
  XXH3_state_t state; /* on a line of 64 bytes, as xxHash asks */
};

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* The memory for the next bytes of the file, at least one. What is not kept yet can be taken back,
 * and so stays in memory; a frame that would fill half of the memory is on its way before it is
 * kept. */
static int find_room(struct recording_writer *writer, uint8_t **at, size_t *room) {
  if (writer->end - writer->mark.end >= writer->disk->bytes / 2) {
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

int recording_keep(struct recording_writer *writer) { return set_mark(writer); }

void recording_drop(struct recording_writer *writer) {
  writer->is_cut = writer->is_out;
  writer->sum = writer->mark.sum;
  writer->end = writer->mark.end;
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

static void make_header(const struct recording_header *facts, struct recording_header *out) {
  *out = *facts;
  memcpy(out->magic, RECORDING_MAGIC, sizeof out->magic);
  out->version = RECORDING_VERSION;
  out->header_bytes = RECORDING_BLOCK;
  out->line = RECORDING_LINE;
  out->record_bytes = sizeof(struct recording_record);
  out->check = recording_header_check(out);
}

int recording_create(const char *path, uint64_t memory, const struct recording_header *facts,
                     struct recording_writer **out, char why[256]) {
  struct recording_writer *writer =
      aligned_alloc(_Alignof(struct recording_writer), sizeof *writer);
  struct recording_header header;
  if (!writer) return fail(-ENOMEM, why, "can't write", path);
  *writer = (struct recording_writer){.id = facts->id};
  int result = disk_open(path, memory, &writer->disk, why);
  if (result != 0) {
    free(writer);
    return result;
  }
  make_header(facts, &header);
  result = put(writer, &header, sizeof header);
  if (result == 0) result = write_all(writer);
  if (result == 0) result = disk_drain(writer->disk); /* now it is a recording to other programs */
  if (result != 0) {
    recording_destroy(writer);
    unlink(path);
    return fail(result, why, "can't write", path);
  }
  writer->is_flushed = true;
  *out = writer;
  return 0;
}

void recording_destroy(struct recording_writer *writer) {
  disk_close(writer->disk);
  free(writer);
}

bool recording_is_empty(const struct recording_writer *writer) {
  struct stat file;
  return fstat(writer->disk->fd, &file) == 0 && file.st_size <= RECORDING_BLOCK;
}

static int put_end(struct recording_writer *writer) {
  const struct recording_sum *sum = &writer->sum;
  const struct recording_end end = {.ones = RECORDING_UNKNOWN,
                                    .frames = sum->frames,
                                    .bytes = sum->bytes,
                                    .gaps = sum->gaps,
                                    .digest = sum->digest,
                                    .first = sum->first,
                                    .last = sum->last};
  return put_record(writer, RECORDING_END, sum->last, &end, sizeof end);
}

/* The end, and zeros up to a block, which are cut off once they are written. */
int recording_finish(struct recording_writer *writer) {
  int result = writer->is_cut ? 0 : put_end(writer);
  uint64_t end = writer->end;
  if (result == 0 && !writer->is_cut) result = put(writer, NULL, -end & (RECORDING_BLOCK - 1));
  if (result == 0 && !writer->is_cut) result = write_all(writer);
  int drained = disk_drain(writer->disk), fd = writer->disk->fd;
  if (result == 0) result = drained;
  if (result == 0 && (ftruncate(fd, (off_t)end) != 0 || fdatasync(fd) != 0)) return -errno;
  return result;
}
