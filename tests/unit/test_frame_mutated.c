/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from a writer that means harm: mutated at random, and changed while they are read. */
#include <sys/mman.h>

#include "tests/support/children.h"
#include "tests/support/hostile_frame.h"

static uint64_t seed = 0xd1342543de82ef95u;

static uint64_t random_below(uint64_t bound) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return (seed * 0x9e3779b97f4a7c15u >> 16) % bound;
}

static uint64_t random_extreme(size_t bytes) {
  static const uint64_t extremes[] = {0,
                                      1,
                                      7,
                                      8,
                                      47,
                                      48,
                                      63,
                                      64,
                                      255,
                                      65535,
                                      INT32_MAX,
                                      UINT32_MAX,
                                      INT64_MAX,
                                      (uint64_t)1 << 31,
                                      (uint64_t)1 << 32,
                                      (uint64_t)1 << 62,
                                      (uint64_t)1 << 63,
                                      UINT64_MAX,
                                      UINT64_MAX - 7,
                                      UINT64_MAX - 63};
  uint64_t pick = random_below(sizeof extremes / sizeof *extremes + 4);
  return pick < sizeof extremes / sizeof *extremes ? extremes[pick] : bytes - 32 + random_below(64);
}

/* One byte anywhere, or a field of 1, 2, 4 or 8 bytes where entries and dimensions are. */
static void mutate(uint8_t *frame, size_t bytes, size_t meta_end) {
  if (random_below(2)) {
    frame[random_below(4) ? random_below(meta_end) : random_below(bytes)] =
        (uint8_t)random_below(256);
  } else {
    size_t size = (size_t)1 << random_below(4);
    put(frame, random_below(meta_end / size) * size, size, random_extreme(bytes));
  }
}

TEST(mutated_frames_never_lead_out_of_the_frame) {
  size_t bytes;
  uint8_t *sample = sample_new(&bytes);
  size_t meta_end = 48 + 64 * COUNT + get(sample, HEADER(meta_bytes), 8);
  uint64_t opened = 0, refused = 0, good = 0, bad = 0;
  for (int round = 0; round < share_of(200000); round++) {
    uint8_t *frame = malloc(bytes);
    memcpy(frame, sample, bytes);
    for (uint64_t i = random_below(6) + 1; i > 0; i--) mutate(frame, bytes, meta_end);
    if (random_below(4))
      memcpy(frame, sample, 12), put(frame, HEADER(bytes), 8, bytes); /* else few would open */
    int rc = walk(frame, bytes);
    if (rc < 0) refused++;
    else opened++, good += (uint64_t)rc, bad += rc < COUNT;
    free(frame);
  }
  uint64_t many = (uint64_t)share_of(50000), some = (uint64_t)share_of(2000);
  ck_assert(opened > many && refused > some && good > opened &&
            bad > many); /* it did try something */
  free(sample);
}

/* The writing process: lies and takes it back, for ever. */
static void change_for_ever(void *context) {
  uint8_t *frame = context;
  size_t bytes = get(frame, HEADER(bytes), 8),
         meta_end = 48 + 64 * COUNT + get(frame, HEADER(meta_bytes), 8);
  for (;;) {
    size_t size = (size_t)1 << random_below(4), offset = random_below(meta_end / size) * size;
    if (offset < 48) continue;
    uint64_t truth = get(frame, offset, size);
    put(frame, offset, size, random_extreme(bytes));
    __asm__ volatile("" : : : "memory");
    put(frame, offset, size, truth);
  }
}

TEST(a_frame_that_changes_while_it_is_read_never_leads_out_of_it) {
  size_t bytes, page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *sample = sample_new(&bytes);
  ck_assert_uint_le(bytes, page);
  uint8_t *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  ck_assert_int_eq(mprotect(memory + page, page, PROT_NONE),
                   0); /* the frame ends where nothing may be read */
  uint8_t *frame = memory + page - bytes;
  memcpy(frame, sample, bytes);
  pid_t writer = start_child(change_for_ever, frame);
  for (int round = 0; round < share_of(200000); round++) walk(frame, bytes);
  kill_child(writer);
  munmap(memory, 2 * page);
  free(sample);
}

RUN_TESTS("mutated frame", NULL, NULL)
