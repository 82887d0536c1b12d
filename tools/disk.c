/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNKS = 4 };

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

/* ---- The thread ------------------------------------------------------------------------------ */

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

static int write_all(struct disk *disk, uint64_t from, uint64_t end) {
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

static void *run(void *context) {
  struct disk *disk = context;
  pthread_mutex_lock(&disk->lock);
  for (;;) {
    while (disk->written == disk->due && !disk->ends)
      pthread_cond_wait(&disk->changed, &disk->lock);
    if (disk->written == disk->due || disk->error != 0) break;
    uint64_t from = disk->written, end = from - from % disk->chunk + disk->chunk;
    if (end > disk->due) end = disk->due;
    pthread_mutex_unlock(&disk->lock);
    int result = write_all(disk, from, end);
    pthread_mutex_lock(&disk->lock);
    if (result == 0) disk->written = end;
    else disk->error = result;
    pthread_cond_broadcast(&disk->changed);
  }
  pthread_mutex_unlock(&disk->lock);
  return NULL;
}

/* Signals are the first thread's: they end its waits. */
static int start(struct disk *disk) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int result = pthread_create(&disk->thread, NULL, run, disk);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  disk->has_thread = result == 0;
  return -result;
}

/* ---- The file -------------------------------------------------------------------------------- */

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

int disk_open(const char *path, uint64_t memory, struct disk **out, char why[256]) {
  struct disk *disk = calloc(1, sizeof *disk);
  if (!disk) return fail(-ENOMEM, why, "can't write", path);
  *disk = (struct disk){.fd = -1, .grows = true, .memory = MAP_FAILED};
  pthread_mutex_init(&disk->lock, NULL);
  pthread_cond_init(&disk->changed, NULL);
  int result = open_file(disk, path, why);
  if (result == 0) {
    result = make_memory(disk, memory);
    if (result == 0) result = start(disk);
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

int disk_fd(const struct disk *disk) { return disk->fd; }

/* ---- Bytes ----------------------------------------------------------------------------------- */

int disk_room(struct disk *disk, uint64_t offset, uint8_t **out, size_t *room) {
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

uint64_t disk_half(const struct disk *disk) { return disk->bytes / 2; }

int disk_write(struct disk *disk, uint64_t end, bool all) {
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

int disk_drain(struct disk *disk) {
  pthread_mutex_lock(&disk->lock);
  while (disk->written < disk->due && disk->error == 0)
    pthread_cond_wait(&disk->changed, &disk->lock);
  int result = disk->error;
  pthread_mutex_unlock(&disk->lock);
  return result;
}

bool disk_is_idle(struct disk *disk) {
  pthread_mutex_lock(&disk->lock);
  bool idle = disk->written == disk->due;
  pthread_mutex_unlock(&disk->lock);
  return idle;
}
