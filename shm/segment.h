/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's segments: made by the writer, found by readers through the writer's handle. */
#ifndef RC_SHM_SEGMENT_H
#define RC_SHM_SEGMENT_H

#include "ring/layout.h"
#include "shm/handle.h"
#include "shm/memory.h"

/* The values set at creation: a private copy of the shared control page's. */
struct rc_segment {
  struct rc_memory control, data;
  struct rc_memory
      spill;       /* 0 bytes: no spill memory. A tap has the file open and does not map the file */
  int spill_error; /* why there is no spill memory although the options allow it, or 0 */
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

/* Makes the segments and fills in the identity. `name` is valid (shm/find.h) or NULL. Sets the
 * error text. */
int rc_segment_create(uint64_t capacity, uint32_t slots, const char *name,
                      const struct rc_memory_wish *wish, const struct rc_spill_wish *spill,
                      struct rc_segment *out, struct rc_handle *handle);

/* Opens and maps the segments, and checks the segments against the handle and this build. Readers
 * and taps differ in the spill memory. -EINVAL, -ENOENT, -EACCES, -EPROTO, -ENOMEM, -EMFILE. Sets
 * the error text. */
enum rc_attach {
  RC_ATTACH_READER,
  RC_ATTACH_RETAINER /* a reader that keeps spill.fd */,
  RC_ATTACH_TAP
};
int rc_segment_attach(const char *handle, enum rc_attach as, struct rc_segment *out);

/* Opens a further file of the writer, named by the control page, and maps the file as a control
 * segment. -ENOENT, -EACCES, -EPROTO, -ENOMEM, -EMFILE. Sets the error text. */
int rc_segment_attach_more(const struct rc_process *writer, int32_t fd, uint64_t inode,
                           uint64_t bytes, struct rc_memory *out);

void rc_segment_destroy(struct rc_segment *segment);

#endif
