/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaching goes through named states, each of which can refuse:
 *
 *   the handle's text
 *   the writer's process: pid and start time
 *   the writer's files, by /proc/<pid>/fd, which the kernel opens only for processes that may trace
 *     the writer: owner and seals
 *   control: magic, ready, layout, token, sizes
 *   data and spill: inode, size, seals
 *
 * If the writer has closed and reused a file descriptor since, the seal, magic, token or inode is
 * wrong. Attach opens all files at once, so that committed frames stay readable after the writer's
 * death.
 */
#define _GNU_SOURCE
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring/point.h"
#include "shm/error.h"
#include "shm/os.h"

void rc_segment_destroy(struct rc_segment *segment) {
  rc_memory_destroy(&segment->spill);
  rc_memory_destroy(&segment->data);
  rc_memory_destroy(&segment->control);
}

static int inode_of(int fd, uint64_t *out) {
  struct stat file;
  if (fstat(fd, &file) != 0) return rc_fail(-errno, "can't look at a segment: %s", strerror(errno));
  *out = file.st_ino;
  return 0;
}

static int fill_identity(struct rc_segment *segment, struct rc_handle *handle) {
  struct rc_identity *id = &rc_segment_control(segment)->id;
  int result = rc_proc_check();
  if (result != 0) return result;
  result = rc_process_self(&segment->writer);
  if (result != 0)
    return rc_fail(result, "can't read /proc/self/stat: %s%s", strerror(-result),
                   rc_process_hint(result));
  result = inode_of(segment->data.fd, &id->data_inode);
  if (result == 0 && segment->spill.bytes != 0)
    result = inode_of(segment->spill.fd, &id->spill_inode);
  if (result != 0) return result;
  if (getrandom(id->token, sizeof id->token, 0) != sizeof id->token)
    return rc_fail(-errno, "can't get random bytes: %s", strerror(errno));
  id->magic = RC_MAGIC;
  id->layout = RC_LAYOUT;
  id->capacity = segment->capacity;
  id->page_size = segment->data.page_size;
  id->pid_namespace = rc_os.pid_namespace();
  id->slots = segment->slots;
  id->memory = segment->data.memory;
  id->control_fd = segment->control.fd;
  id->data_fd = segment->data.fd;
  id->writer_pid = segment->writer.pid;
  id->writer_start = segment->writer.start;
  memcpy(id->name, segment->name, sizeof id->name);
  id->spill_fd = segment->spill.fd;
  id->spill_bytes = segment->spill.bytes;
  id->spill_error = segment->spill_error;
  id->numa = segment->data.numa;
  id->numa_node = segment->data.node;
  id->numa_error = segment->data.numa_error;
  RC_POINT(IDENTIFIED);
  /* Pairs with the load in check_identity: the fields above are complete. */
  rc_store_release(&id->ready, RC_READY);
  RC_POINT(READY);
  *handle = (struct rc_handle){.writer = segment->writer,
                               .control_fd = segment->control.fd,
                               .data_fd = segment->data.fd,
                               .token = {id->token[0], id->token[1]}};
  return 0;
}

/* A failure is an error only if the options ask for spill memory. */
static int create_spill(const struct rc_spill_wish *wish, struct rc_segment *segment) {
  if (wish->bytes == 0) return 0;
  int result = rc_memory_create_spill(wish->bytes, &segment->data, &segment->spill);
  if (result == 0 || wish->must) return result;
  segment->spill = (struct rc_memory){.fd = -1}; /* a failed seal leaves the size set */
  segment->spill_error = result;
  return 0;
}

int rc_segment_create(uint64_t capacity, uint32_t slots, const char *name,
                      const struct rc_memory_wish *wish, const struct rc_spill_wish *spill,
                      struct rc_segment *out, struct rc_handle *handle) {
  struct rc_segment segment = {
      .control = {.fd = -1}, .data = {.fd = -1}, .spill = {.fd = -1}, .slots = slots};
  if (name) memcpy(segment.name, name, strlen(name));
  int result = rc_memory_create_data(capacity, wish, &segment.data);
  if (result != 0) return result;
  segment.capacity = segment.data.bytes;
  RC_POINT(DATA_MADE);
  result = rc_memory_create_small("control", rc_control_bytes(slots), &segment.control);
  RC_POINT(CONTROL_MADE);
  if (result == 0) result = create_spill(spill, &segment);
  RC_POINT(SPILL_MADE);
  if (result == 0) result = fill_identity(&segment, handle);
  if (result != 0) rc_segment_destroy(&segment);
  else *out = segment;
  return result;
}

/* ---- Attaching ------------------------------------------------------------------------------- */

static int fail_gone(const struct rc_handle *handle) {
  return rc_fail(-ENOENT,
                 "the ring is gone: process %d has closed it (or dropped its Writer), and may have "
                 "other files in its place",
                 handle->writer.pid);
}

/* Whether the link of a descriptor names a file of ringcast. True if the link can't be read. */
static bool may_be_ours(const char *path) {
  static const char ours[] = "/memfd:ringcast.";
  char target[64];
  ssize_t length = readlink(path, target, sizeof target);
  if (length < 0) return true;
  return length >= (ssize_t)sizeof ours - 1 && memcmp(target, ours, sizeof ours - 1) == 0;
}

/* The kernel gives the private part of /proc to root if a process is not dumpable. Where the writer
 * is root's, this does not tell. */
static bool is_dumpable(int32_t pid) {
  char path[40];
  struct stat process, files;
  snprintf(path, sizeof path, "/proc/%d", pid);
  if (stat(path, &process) != 0) return true;
  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  return stat(path, &files) != 0 || process.st_uid == files.st_uid;
}

static int fail_to_open(const struct rc_handle *handle, const char *path, int error) {
  if (error == EMFILE || error == ENFILE || error == ENOMEM)
    return rc_fail(-error, "can't open the ring: %s", strerror(error));
  if ((error != EACCES && error != EPERM) || !may_be_ours(path)) return fail_gone(handle);
  if (!is_dumpable(handle->writer.pid))
    return rc_fail(-EACCES,
                   "process %d is not dumpable, so no other process may look into it: it has "
                   "changed its user, or set PR_SET_DUMPABLE to 0; it may set it to 1 (prctl)",
                   handle->writer.pid);
  return rc_fail(-EACCES,
                 "process %d may not be looked into: attaching takes the same user and group, the "
                 "same user namespace, all capabilities of that process, a process that is "
                 "dumpable, and ptrace that is not forbidden",
                 handle->writer.pid);
}

/* Opens a file of the writer. Returns the descriptor. Checks the type of the file before opening:
 * a handle may name any descriptor of the process, and opening a pipe or a device has side
 * effects. */
static int open_file(const struct rc_handle *handle, int32_t number, int flags, struct stat *file) {
  char path[48];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->writer.pid, number);
  if (stat(path, file) != 0) return fail_to_open(handle, path, errno);
  if (!S_ISREG(file->st_mode)) return fail_gone(handle);
  int fd = rc_fd_above_2(open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (fd < 0) return fail_to_open(handle, path, -fd);
  if (fstat(fd, file) != 0 || !S_ISREG(file->st_mode) || file->st_size <= 0) {
    close(fd);
    return fail_gone(handle);
  }
  if (file->st_uid != geteuid()) {
    close(fd);
    return rc_fail(-EACCES,
                   "the ring belongs to user %u, and this process runs as user %u: both must be "
                   "the same",
                   (unsigned)file->st_uid, (unsigned)geteuid());
  }
  return fd;
}

/* Whether the identity's sizes can be right; `bytes` are the control segment's. */
static bool has_valid_sizes(const struct rc_identity *id, uint64_t bytes) {
  uint64_t capacity = id->capacity, page = id->page_size;
  if (capacity < RC_MIN_BYTES || capacity > RC_MAX_BYTES) return false;
  if ((capacity & (capacity - 1)) != 0) return false;
  if (page != rc_small_page() && page != RC_HUGE_PAGE) return false;
  if (capacity % page != 0) return false;
  if (id->slots < 1 || id->slots > RC_MAX_SLOTS || rc_control_bytes(id->slots) > bytes)
    return false;
  if (id->memory < RINGCAST_MEMORY_HUGETLB || id->memory > RINGCAST_MEMORY_PAGES) return false;
  return id->spill_bytes <= RC_MAX_BYTES && id->spill_bytes % RC_HUGE_PAGE == 0;
}

/* Checks the control page against the handle and this build, and takes over the sizes. `id` is a
 * copy of the checked identity. */
static int check_identity(const struct rc_handle *handle, struct rc_segment *segment,
                          struct rc_identity *id) {
  struct rc_identity *shared = &rc_segment_control(segment)->id;
  uint32_t ready = rc_load_acquire(&shared->ready); /* pairs with fill_identity */
  memcpy(id, shared, sizeof *id); /* checked and used: later changes of the page don't matter */
  rc_fence_light();               /* from here on `id`, never the page again */
  if (id->magic != RC_MAGIC || ready != RC_READY) return fail_gone(handle);
  if (id->layout != RC_LAYOUT)
    return rc_fail(-EPROTO,
                   "the writer's ringcast lays memory out in another way (%08" PRIx32
                   ", here %08" PRIx32 "): install the same version (here %s) on both sides",
                   id->layout, (uint32_t)RC_LAYOUT, RINGCAST_VERSION);
  if (memcmp(id->token, handle->token, sizeof id->token) != 0) return fail_gone(handle);
  uint64_t here = rc_os.pid_namespace();
  if (id->pid_namespace != 0 && here != 0 && id->pid_namespace != here)
    return rc_fail(-EPROTO,
                   "the ring's writer, process %d, is in another PID namespace (%llu, here %llu): "
                   "each would take the other's pid for somebody else's; run both in one",
                   handle->writer.pid, (unsigned long long)id->pid_namespace,
                   (unsigned long long)here);
  if (!has_valid_sizes(id, segment->control.bytes))
    return rc_fail(-EPROTO, "the ring's control page is damaged: its sizes can't be right");
  segment->writer = handle->writer;
  segment->capacity = id->capacity;
  segment->slots = id->slots;
  rc_name_copy(id->name, segment->name);
  segment->spill_error = id->spill_error;
  return 0;
}

/* Before the magic and the token are checked, any fault of the file means that the writer's file is
 * gone. */
static int attach_control(const struct rc_handle *handle, struct rc_segment *segment,
                          struct rc_identity *id) {
  struct stat file;
  int fd = open_file(handle, handle->control_fd, O_RDWR, &file);
  if (fd < 0) return fd;
  uint64_t bytes = (uint64_t)file.st_size;
  int result = -EPROTO;
  if (bytes >= sizeof(struct rc_control) && bytes % rc_small_page() == 0)
    result = rc_memory_map_control(fd, bytes, &segment->control);
  close(fd);
  if (result == -EPROTO) return fail_gone(handle);
  if (result != 0) return result;
  return check_identity(handle, segment, id);
}

/* Opens a file that the control page names. Returns the descriptor. */
static int open_told_file(const struct rc_handle *handle, int32_t number, int flags,
                          uint64_t inode) {
  struct stat file;
  int fd = open_file(handle, number, flags, &file);
  if (fd < 0 || file.st_ino == inode) return fd;
  close(fd);
  return fail_gone(handle); /* closed since the control segment was opened */
}

static int attach_data(const struct rc_handle *handle, const struct rc_identity *id,
                       struct rc_segment *segment) {
  int fd = open_told_file(handle, handle->data_fd, O_RDONLY, id->data_inode);
  if (fd < 0) return fd;
  int result = rc_memory_map_data(fd, segment->capacity, id->page_size, &segment->data);
  close(fd);
  segment->data.memory = id->memory;
  segment->data.numa = id->numa;
  segment->data.node = id->numa_node;
  segment->data.numa_error = id->numa_error;
  return result;
}

static int attach_spill(const struct rc_handle *handle, const struct rc_identity *id,
                        enum rc_attach as, struct rc_segment *segment) {
  if (id->spill_bytes == 0) return 0;
  int fd = open_told_file(handle, id->spill_fd, O_RDONLY, id->spill_inode);
  if (fd < 0) return fd;
  int result;
  if (as == RC_ATTACH_TAP) result = rc_memory_check_spill(fd, id->spill_bytes);
  else result = rc_memory_map_spill(fd, id->spill_bytes, false, &segment->spill);
  if (as == RC_ATTACH_READER || result != 0) {
    close(fd);
    return result;
  }
  if (as == RC_ATTACH_TAP)
    segment->spill = (struct rc_memory){.bytes = id->spill_bytes, .page_size = rc_small_page()};
  rc_memory_keep(&segment->spill, fd);
  return 0;
}

int rc_segment_attach_more(const struct rc_process *writer, int32_t number, uint64_t inode,
                           uint64_t bytes, struct rc_memory *out) {
  const struct rc_handle handle = {.writer = *writer};
  if (bytes == 0 || bytes > RC_MAX_BYTES || bytes % rc_small_page() != 0)
    return rc_fail(-EPROTO, "the ring's control page is damaged: a size can't be right");
  int fd = open_told_file(&handle, number, O_RDWR, inode);
  if (fd < 0) return fd;
  int result = rc_memory_map_control(fd, bytes, out);
  if (result == 0) rc_memory_keep(out, fd);
  else close(fd);
  return result;
}

/* Whether the writer's process is there. */
static int find_writer(const struct rc_process *writer) {
  struct rc_process found = {0};
  int result = rc_proc_check();
  if (result != 0) return result;
  result = rc_process_find(writer->pid, &found);
  if (result != 0 && result != -ENOENT)
    return rc_fail(result, "can't look at process %d in /proc: %s%s", writer->pid,
                   strerror(-result), rc_process_hint(result));
  if (result == 0 && found.start == writer->start) return 0;
  if (result == 0 && rc_process_has_other_clock(found.pid))
    return rc_fail(-EPROTO,
                   "the writer, process %d, is in another time namespace: writer and readers must "
                   "share one",
                   found.pid);
  return rc_fail(-ENOENT,
                 "the ring is gone: its writer, process %d, has exited (or is in another PID "
                 "namespace: writer and readers must share one)",
                 writer->pid);
}

int rc_segment_attach(const char *text, enum rc_attach as, struct rc_segment *out) {
  struct rc_handle handle;
  if (rc_handle_parse(text, &handle) != 0)
    return rc_fail(-EINVAL,
                   "not a ringcast handle: it should look like rc1:<pid>:...; take the writer's "
                   "handle whole");
  int result = find_writer(&handle.writer);
  if (result != 0) return result;
  struct rc_segment segment = {.control = {.fd = -1}, .data = {.fd = -1}, .spill = {.fd = -1}};
  struct rc_identity id = {0};
  result = attach_control(&handle, &segment, &id);
  RC_POINT(CONTROL_MAPPED);
  if (result == 0) result = attach_data(&handle, &id, &segment);
  RC_POINT(DATA_MAPPED);
  if (result == 0) result = attach_spill(&handle, &id, as, &segment);
  RC_POINT(SPILL_MAPPED);
  if (result != 0) rc_segment_destroy(&segment);
  else *out = segment;
  return result;
}
