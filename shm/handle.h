/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's handle as text: rc1:<pid>:<start>:<control fd>:<data fd>:<token>, numbers in decimal,
 * the token in hex. */
#ifndef RC_SHM_HANDLE_H
#define RC_SHM_HANDLE_H

#include "shm/process.h"

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

#endif
