/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share. Each is one file with one function, which libFuzzer calls with ever
 * new bytes; where there is no libFuzzer, replay.c calls it with the bytes that are kept in
 * corpus/. Whatever the bytes are, the target returns, and nothing that it claims by `require` is
 * false.
 */
#ifndef RC_TESTS_FUZZ_H
#define RC_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ringcast/ringcast.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerInitialize(int *count, char ***arguments); /* where a target has one */

#define require(condition)                                                      \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                  \
    }                                                                           \
  } while (0)

/* Nothing but 0 and the codes that are named, of a call of the library; any other is told with its
 * sentence. */
#define allowed(result, ...) require(is_one_of((result), (const int[]){__VA_ARGS__, 0}))
static inline bool is_one_of(int result, const int *codes) {
  for (; *codes != 0; codes++)
    if (result == *codes) return true;
  if (result != 0) fprintf(stderr, "%d: %s\n", result, ringcast_last_error());
  return result == 0;
}

/* ---- Taking an input apart ------------------------------------------------------------------- */

struct input {
  const uint8_t *at;
  size_t left;
};

/* The next number of 1 to 8 bytes. What is not there any more is 0. */
static inline uint64_t take(struct input *input, size_t bytes) {
  uint64_t value = 0;
  size_t there = bytes < input->left ? bytes : input->left;
  if (there == 0) return 0;
  memcpy(&value, input->at, there);
  input->at += there;
  input->left -= there;
  return value;
}

/* ---- Counting -------------------------------------------------------------------------------- */

/* Frames that a peer which means harm had a hand in and that one of our functions looked at. run.py
 * adds them up. */
static uint64_t fuzzed_frames;

static inline void tell_frames(void) {
  fprintf(stderr, "frames fuzzed: %llu\n", (unsigned long long)fuzzed_frames);
}

__attribute__((constructor)) static void tell_frames_at_exit(void) { atexit(tell_frames); }

/* Reads every byte, for the address sanitizer to look on. */
static uint64_t fuzz_touched;
static inline void touch_all(const void *data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i++) sum += ((const uint8_t *)data)[i];
  *(volatile uint64_t *)&fuzz_touched += sum;
}

/* The same before and after says that none was left open. */
static inline int lowest_descriptor(void) {
  int fd = dup(STDERR_FILENO);
  close(fd);
  return fd;
}

#endif
