/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's segments: made by the writer, found by readers through the writer's handle. */
#ifndef RC_SHM_SEGMENT_H
#define RC_SHM_SEGMENT_H

#include "ring/layout.h"
#include "shm/memory.h"
#include "shm/process.h"

/* ---- Handles --------------------------------------------------------------------------------- */

/* A ring's handle as text: rc1:<pid>:<start>:<control fd>:<data fd>:<token>, numbers in decimal,
 * the token in hex. */
#define RC_HANDLE_MAX 96 /* with its terminator */

struct rc_handle {
  struct rc_process writer;
  int32_t control_fd, data_fd; /* in the writer's process */
  uint64_t token[2];
};

void rc_handle_format(const struct rc_handle *handle, char out[RC_HANDLE_MAX]);

/* Accepts exactly the output of rc_handle_format, and reads at most RC_HANDLE_MAX bytes of `text`.
 * -EINVAL: not a handle. */
int rc_handle_parse(const char *text, struct rc_handle *out);

/* ---- Segments -------------------------------------------------------------------------------- */

/* The values set at creation: a private copy of the shared control page's. */
struct rc_segment {
  struct rc_memory control, data;
  struct rc_memory spill; /* 0 bytes: no spill memory. A tap has the file open, and no mapping */
  int spill_error;        /* why there is no spill memory although the options allow it, or 0 */
  struct rc_process writer;
  uint64_t capacity;
  uint32_t slots; /* for readers */
  char name[RC_RING_NAME];
};

static inline struct rc_control *rc_segment_control(const struct rc_segment *segment) {
  return (struct rc_control *)segment->control.base;
}

/* The spill memory that the options ask for. */
struct rc_spill_wish {
  uint64_t bytes; /* a multiple of RC_HUGE_PAGE; 0: none */
  bool must;      /* true: without spill memory, rc_segment_create fails */
};

/* Makes the segments and fills in the identity. `name` is valid (rc_name_check) or NULL. Sets the
 * error text. */
int rc_segment_create(uint64_t capacity, uint32_t slots, const char *name,
                      const struct rc_memory_wish *wish, const struct rc_spill_wish *spill,
                      struct rc_segment *out, struct rc_handle *handle);

/* Opens and maps the segments, and checks them against the handle and this build. Readers
 * and taps differ in the spill memory. -EINVAL, -ENOENT, -EACCES, -EPROTO, -ENOMEM, -EMFILE. Sets
 * the error text. */
enum rc_attach {
  RC_ATTACH_READER,
  RC_ATTACH_RETAINER, /* a reader that keeps spill.fd */
  RC_ATTACH_TAP,
};
int rc_segment_attach(const char *handle, enum rc_attach as, struct rc_segment *out);

/* Opens a further file of the writer, named by the control page, and maps it as a control
 * segment. -ENOENT, -EACCES, -EPROTO, -ENOMEM, -EMFILE. Sets the error text. */
int rc_segment_attach_more(const struct rc_process *writer, int32_t fd, uint64_t inode,
                           uint64_t bytes, struct rc_memory *out);

void rc_segment_destroy(struct rc_segment *segment);

/* ---- Names, and the search for rings --------------------------------------------------------- */

/* The names of rings, and the search for rings in /proc, where each writer shows the memfd of its
 * control segment. */

/* 0; -EINVAL, with the error text: `name` is not a name for a ring. */
int rc_name_check(const char *name);

/* Copies a name from shared memory; an invalid name becomes "?". */
void rc_name_copy(const char from[RC_RING_NAME], char to[RC_RING_NAME]);

struct rc_found {
  int32_t pid;
  char name[RC_RING_NAME];
  bool compatible; /* false: another layout; the name and the handle are unknown */
  struct rc_handle handle;
};

/* 0; -EIO, with the error text: /proc is of another PID namespace, and shows other processes under
 * the pids of this one. */
int rc_proc_check(void);

/* Calls `found` for each ring; a result other than 0 ends the search and is returned. -EIO: /proc
 * can't be read; -EMFILE and other codes of the kernel. Sets the error text, but not for the
 * results of `found`. */
int rc_find_rings(int (*found)(void *context, const struct rc_found *ring), void *context);

#endif
