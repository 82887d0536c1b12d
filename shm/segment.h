/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's segments: made by the writer, found by readers through the writer's handle. */
#ifndef RC_SHM_SEGMENT_H
#define RC_SHM_SEGMENT_H

#include "ring/layout.h"
#include "shm/handle.h"
#include "shm/memory.h"

/* What was agreed on at creation, kept apart from the shared page that says the same. */
struct rc_segment {
  struct rc_memory control, data;
  struct rc_memory spill; /* of 0 bytes where there is none. An observer has its file and does not map it */
  int spill_error;        /* why there is none although there was to be, or 0 */
  struct rc_process writer;
  uint64_t capacity;
  uint32_t slots;
};

static inline struct rc_control *rc_segment_control(const struct rc_segment *segment) {
  return (struct rc_control *)segment->control.base;
}

/* How much spill memory a ring shall have. */
struct rc_spill_wish {
  uint64_t bytes; /* a multiple of RC_HUGE_PAGE; 0: none */
  bool must;      /* without it there shall be no ring either */
};

/* Makes the segments and fills in the identity. Sets the error text. */
int rc_segment_create(uint64_t capacity, uint32_t slots, const struct rc_memory_wish *wish,
                      const struct rc_spill_wish *spill, struct rc_segment *out, struct rc_handle *handle);

/* Opens and maps them, and checks that they are what the handle and this build expect. Readers and observers differ in
 * the spill memory. -EINVAL, -ENOENT, -EACCES, -EPROTO, -ENOMEM, -EMFILE. Sets the error text. */
enum rc_attach { RC_ATTACH_READER, RC_ATTACH_RETAINER /* a reader that keeps spill.fd */, RC_ATTACH_OBSERVER };
int rc_segment_attach(const char *handle, enum rc_attach as, struct rc_segment *out);

/* Opens one more file of the writer's, of which its control page tells, and maps it as a control segment is. -ENOENT,
 * -EACCES, -EPROTO, -ENOMEM, -EMFILE. Sets the error text. */
int rc_segment_attach_more(const struct rc_process *writer, int32_t fd, uint64_t inode, uint64_t bytes,
                           struct rc_memory *out);

void rc_segment_destroy(struct rc_segment *segment);

#endif
