/* SPDX-License-Identifier: Apache-2.0 */
/* A reader in a process of its own, which is told when to go on: a handle is opened by others only. */
#ifndef RC_TESTS_GPU_TALK_H
#define RC_TESTS_GPU_TALK_H

#include "tests/support/children.h"
#include "tests/support/gpu_channel.h"

static struct talk { int handle[2], told[2], go[2]; } talk;

static inline void say(int fd) { child_must(write(fd, "x", 1) == 1); }
static inline void hear(int fd) {
  char byte;
  child_must(read(fd, &byte, 1) == 1);
}

static inline pid_t start_reader(void (*body)(void *)) {
  ck_assert(pipe(talk.handle) == 0 && pipe(talk.told) == 0 && pipe(talk.go) == 0);
  return start_child(body, NULL);
}

static inline void tell_handle(void) {
  char handle[96] = "";
  strcpy(handle, ringcast_writer_handle(writer));
  ck_assert_int_eq(write(talk.handle[1], handle, sizeof handle), sizeof handle);
  hear(talk.told[0]); /* it has attached */
}

/* In the reader's process. */
static inline void attach_by_told_handle(void) {
  char handle[96];
  child_must(read(talk.handle[0], handle, sizeof handle) == (ssize_t)sizeof handle);
  open_device();
  child_must(ringcast_reader_attach(handle, &reader) == 0);
  child_must(ringcast_gpu_reader_open(reader, NULL, &gpu_reader) == 0);
  say(talk.told[1]);
}

/* As next_frame, in a child, however long that takes. */
static inline void child_next_frame(struct received *out) {
  child_must(ringcast_gpu_next(gpu_reader, RINGCAST_FOREVER, &out->frame) == 0);
  child_must(ringcast_frame_open(&out->opened, out->frame.data, out->frame.bytes) == 0);
  child_must(ringcast_frame_item(&out->opened, 0, &out->item) == 0);
}

#endif
