/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/disk_way.h"

enum { DEPTH = 64 /* writes under way at most */, FEWEST_CHUNKS = 4, MOST_CHUNKS = DISK_MOST / DISK_CHUNK };

/* The file grows in steps: a write that lengthens a file is slow, since the write excludes other writes. */
static const uint64_t STEP = 256 << 20;

struct piece {
  struct disk_chunk *chunk; /* NULL: the piece is free */
  size_t from, bytes;
};

struct disk {
  int fd;
  bool direct, registered, grows, is_broken;
  struct disk_uring *uring;
  struct disk_thread *thread; /* if there is no uring */
  uint8_t *memory;
  size_t bytes;
  struct disk_chunk *chunks;
  uint32_t count, under_way;
  uint64_t next, grown; /* offsets: of the next chunk; of the end of the file */
  struct piece pieces[DEPTH];
  int error;
};

/* ---- The file --------------------------------------------------------------------------------------------------- */

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

static int make_chunks(struct disk *disk, uint64_t buffer) {
  uint64_t size = buffer / FEWEST_CHUNKS < DISK_CHUNK ? buffer / FEWEST_CHUNKS : DISK_CHUNK;
  size &= ~(uint64_t)(DISK_BLOCK - 1);
  disk->count = (uint32_t)(buffer / size);
  disk->bytes = disk->count * size;
  disk->chunks = calloc(disk->count, sizeof *disk->chunks);
  if (!disk->chunks) return -ENOMEM;
  disk->memory = mmap(NULL, disk->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (disk->memory == MAP_FAILED) return -ENOMEM;
  madvise(disk->memory, disk->bytes, MADV_HUGEPAGE);
  memset(disk->memory, 0, disk->bytes); /* now, and not while frames wait */
  for (uint32_t i = 0; i < disk->count; i++)
    disk->chunks[i] = (struct disk_chunk){.memory = disk->memory + i * size, .size = size, .index = i, .is_free = true};
  return 0;
}

static int choose_way(struct disk *disk) {
  struct iovec buffers[MOST_CHUNKS];
  for (uint32_t i = 0; i < disk->count; i++)
    buffers[i] = (struct iovec){.iov_base = disk->chunks[i].memory, .iov_len = disk->chunks[i].size};
  int result = cli_is_disabled("io_uring")
                   ? -ENOSYS
                   : disk_uring_open(disk->fd, buffers, disk->count, DEPTH, &disk->uring, &disk->registered);
  if (result != 0) result = disk_thread_open(disk->fd, DEPTH, &disk->thread);
  return result;
}

int disk_open(const char *path, uint64_t buffer, struct disk **out, char why[256]) {
  struct disk *disk = calloc(1, sizeof *disk);
  if (!disk) return fail(-ENOMEM, why, "can't write", path);
  *disk = (struct disk){.fd = -1, .grows = true, .memory = MAP_FAILED};
  int result = open_file(disk, path, why);
  if (result == 0) {
    result = make_chunks(disk, buffer);
    if (result == 0) result = choose_way(disk);
    if (result != 0) {
      fail(result, why, "can't write", path);
      unlink(path);
    }
  }
  if (result == 0) *out = disk;
  else disk_close(disk);
  return result;
}

void disk_close(struct disk *disk) {
  disk_drain(disk);
  if (disk->uring) disk_uring_close(disk->uring);
  if (disk->thread) disk_thread_close(disk->thread);
  if (disk->memory != MAP_FAILED) munmap(disk->memory, disk->bytes);
  if (disk->fd >= 0) close(disk->fd);
  free(disk->chunks);
  free(disk);
}

int disk_fd(const struct disk *disk) { return disk->fd; }

const char *disk_way(const struct disk *disk) {
  static char text[64];
  snprintf(text, sizeof text, "%s%s%s", disk->uring ? "io_uring" : "pwrite", disk->direct ? ", O_DIRECT" : "",
           disk->registered ? ", registered memory" : "");
  return text;
}

/* ---- Pieces ----------------------------------------------------------------------------------------------------- */

static int submit(struct disk *disk, uint32_t number) {
  const struct piece *piece = &disk->pieces[number];
  const struct disk_job job = {.number = number,
                               .buffer = piece->chunk->index,
                               .memory = piece->chunk->memory + piece->from,
                               .bytes = (uint32_t)piece->bytes,
                               .offset = piece->chunk->offset + piece->from};
  int result = disk->uring ? disk_uring_submit(disk->uring, &job) : disk_thread_submit(disk->thread, &job);
  disk->is_broken |= result != 0;
  return result;
}

static void fail_with(struct disk *disk, int result) {
  if (disk->error == 0) disk->error = result;
}

static void end_piece(struct disk *disk, struct piece *piece) {
  struct disk_chunk *chunk = piece->chunk;
  piece->chunk = NULL;
  chunk->under_way--;
  disk->under_way--;
  chunk->is_free = chunk->under_way == 0 && chunk->written == chunk->size;
}

/* From here on the file takes plain writes. */
static void make_plain(struct disk *disk) {
  int flags = fcntl(disk->fd, F_GETFL);
  if (disk->direct && flags >= 0) fcntl(disk->fd, F_SETFL, flags & ~O_DIRECT);
  disk->direct = false;
}

static void take_done(struct disk *disk, const struct disk_done *done) {
  struct piece *piece = &disk->pieces[done->number];
  int result = (int)done->result;
  bool again = result == -EAGAIN || result == -EINTR;
  if (result == -EINVAL && disk->direct) { /* larger blocks, or a file system that refuses O_DIRECT only now */
    make_plain(disk);
    again = true;
  }
  if (result > 0) {
    size_t whole = (size_t)result == piece->bytes ? piece->bytes : (size_t)result & ~(size_t)(DISK_BLOCK - 1);
    piece->from += whole;
    piece->bytes -= whole;
    /* A short write: the next write gives the reason. */
    again = piece->bytes > 0 && whole > 0;
    result = piece->bytes == 0 ? 0 : -ENOSPC;
  } else if (result == 0) result = -ENOSPC;
  if (again) {
    result = submit(disk, done->number);
    if (result == 0) return;
  }
  if (result != 0) fail_with(disk, result);
  end_piece(disk, piece);
}

/* Returns whether a write has ended. */
static bool reap(struct disk *disk, bool wait) {
  struct disk_done done;
  int result = disk->uring ? disk_uring_reap(disk->uring, wait, &done) : disk_thread_reap(disk->thread, wait, &done);
  if (result > 0) take_done(disk, &done);
  if (result < 0) { /* the way itself is broken: the state of the writes under way is unknown */
    fail_with(disk, result);
    disk->is_broken = true;
  }
  return result > 0;
}

int disk_look(struct disk *disk) {
  while (disk->under_way > 0 && !disk->is_broken && reap(disk, false)) continue;
  return disk->error;
}

int disk_drain(struct disk *disk) {
  while (disk->under_way > 0 && !disk->is_broken) reap(disk, true);
  return disk->error;
}

bool disk_is_idle(const struct disk *disk) { return disk->under_way == 0; }

/* ---- Chunks ----------------------------------------------------------------------------------------------------- */

static void grow(struct disk *disk, uint64_t end) {
  while (disk->grows && disk->grown < end) {
    /* No room, or a file system without fallocate: the writes lengthen the file, and report errors. */
    disk->grows = fallocate(disk->fd, 0, (off_t)disk->grown, (off_t)STEP) == 0;
    disk->grown += STEP;
  }
}

static struct disk_chunk *find_free(const struct disk *disk) {
  uint32_t wanted = (uint32_t)(disk->next / disk->chunks[0].size % disk->count); /* in turn */
  return disk->chunks[wanted].is_free ? &disk->chunks[wanted] : NULL;
}

uint32_t disk_chunks(const struct disk *disk) { return disk->count; }

int disk_take(struct disk *disk, struct disk_chunk **out) {
  int result = disk_look(disk);
  struct disk_chunk *chunk = find_free(disk);
  while (result == 0 && !chunk) {
    reap(disk, true);
    result = disk->error;
    chunk = find_free(disk);
  }
  if (result != 0) return result;
  grow(disk, disk->next + chunk->size);
  chunk->offset = disk->next;
  chunk->filled = chunk->written = 0;
  chunk->is_free = false;
  disk->next += chunk->size;
  *out = chunk;
  return 0;
}

void disk_untake(struct disk *disk, struct disk_chunk *chunk) {
  disk->next -= chunk->size;
  chunk->is_free = true;
}

static uint32_t find_piece(struct disk *disk) {
  while (disk->under_way == DEPTH && !disk->is_broken) reap(disk, true);
  for (uint32_t i = 0; i < DEPTH; i++)
    if (!disk->pieces[i].chunk) return i;
  return DEPTH;
}

int disk_write(struct disk *disk, struct disk_chunk *chunk) {
  if (disk->error != 0 || chunk->written == chunk->filled) return disk->error;
  uint32_t number = find_piece(disk);
  if (number == DEPTH) return disk->error;
  struct piece *piece = &disk->pieces[number];
  *piece = (struct piece){.chunk = chunk, .from = chunk->written, .bytes = chunk->filled - chunk->written};
  chunk->written = chunk->filled;
  chunk->under_way++;
  disk->under_way++;
  int result = submit(disk, number);
  if (result != 0) {
    fail_with(disk, result);
    end_piece(disk, piece);
  }
  return disk->error;
}
