/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's two segments: made by the writer, found by readers through the writer's handle. */
#ifndef RC_SHM_SEGMENT_H
#define RC_SHM_SEGMENT_H

#include "ring/layout.h"
#include "shm/handle.h"
#include "shm/memory.h"

/* What was agreed on at creation, kept apart from the shared page that says the same. */
struct rc_segment {
  struct rc_memory control, data;
  struct rc_process writer;
  uint64_t capacity;
  uint32_t slots;
};

static inline struct rc_control *rc_segment_control(const struct rc_segment *segment) {
  return (struct rc_control *)segment->control.base;
}

/* Makes both segments and fills in the identity. Sets the error text. */
int rc_segment_create(uint64_t capacity, uint32_t slots, const struct rc_memory_wish *wish, struct rc_segment *out,
                      struct rc_handle *handle);

/* Opens and maps both, and checks that they are what the handle and this build expect. -EINVAL, -ENOENT, -EACCES,
 * -EPROTO, -ENOMEM, -EMFILE. Sets the error text. */
int rc_segment_attach(const char *handle, struct rc_segment *out);

void rc_segment_destroy(struct rc_segment *segment);

#endif
