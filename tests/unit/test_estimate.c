/* SPDX-License-Identifier: Apache-2.0 */
/* The estimate: when it rises and sinks, what it forgets, and how often one reservation does. */
#include "ring/estimate.h"

#include <stdbool.h>
#include <string.h>

#include "channel/channel.h"
#include "tests/support/pattern.h"
#include "tests/support/handles.h"

enum { TAG = 7, EPOCH = RC_ESTIMATE_EPOCH };

static struct rc_estimates estimates;

static void forget_all(void) { memset(&estimates, 0, sizeof estimates); }

static void learn(uint64_t bytes, int times) {
  for (int i = 0; i < times; i++) rc_estimate_learn(&estimates, TAG, bytes);
}

static uint64_t estimate(void) { return rc_estimate_of(&estimates, TAG, UINT64_MAX); }

#define ck_enough_for(bytes) ck_assert_uint_ge(estimate(), (bytes))
/* Enough, and not much more. */
#define ck_fits(bytes)                                                              \
  do {                                                                              \
    ck_enough_for(bytes);                                                           \
    ck_assert_uint_le(estimate(), (uint64_t)(bytes) + (uint64_t)(bytes) / 16 + 64); \
  } while (0)

TEST(a_tag_that_is_not_known_gets_the_default) {
  ck_assert_uint_eq(estimate(), RC_ESTIMATE_DEFAULT);
  rc_estimate_learn(&estimates, TAG + 1, 100000);
  ck_assert_uint_eq(estimate(), RC_ESTIMATE_DEFAULT);
  ck_assert_uint_eq(rc_estimate_of(&estimates, TAG, 1000), 1000);
}

TEST(one_frame_is_enough_to_know_its_like) {
  learn(50000, 1);
  ck_fits(50000);
}

TEST(sizes_that_vary_by_a_sixteenth_never_exceed_it) {
  learn(16000, 1);
  for (uint64_t i = 0; i < 10000; i++) {
    uint64_t bytes = 16000 + mix(i) % 1000;
    ck_enough_for(bytes);
    ck_assert_uint_le(estimate(), 17000 + 17000 / 16 + 64);
    learn(bytes, 1);
  }
}

TEST(it_rises_with_the_third_large_frame) {
  learn(1000, 1000);
  learn(90000, 1);
  learn(80000, 1);
  ck_fits(1000);
  learn(85000, 1);
  ck_fits(80000);
}

TEST(it_sinks_when_large_frames_have_not_come_for_two_epochs) {
  learn(90000, 5 * EPOCH);
  learn(1000, EPOCH - 1);
  ck_enough_for(90000);
  learn(1000, EPOCH + 1);
  ck_fits(1000);
}

TEST(a_rare_big_frame_moves_nothing) {
  learn(2000, EPOCH);
  for (int i = 0; i < 100; i++) {
    learn(UINT64_MAX, 1);
    for (int k = 0; k < EPOCH; k++) {
      ck_fits(2000);
      learn(2000, 1);
    }
  }
}

/* Few can't tell what is an accident. */
TEST(a_big_frame_among_the_first_counts_until_enough_are_known) {
  learn(1000, 3);
  learn(90000, 1);
  ck_fits(90000);
  learn(1000, EPOCH - 4);
  ck_fits(1000);
}

TEST(sizes_of_nothing_and_of_everything_do_no_harm) {
  learn(0, 100);
  ck_fits(0);
  learn(UINT64_MAX, 3);
  ck_assert_uint_eq(estimate(), UINT64_MAX);
  ck_assert_uint_eq(rc_estimate_of(&estimates, TAG, 4096), 4096);
  ck_assert_uint_eq(rc_estimate_of(&estimates, TAG, 0), 0);
}

TEST(each_tag_has_a_history_of_its_own) {
  enum { TAGS = RC_ESTIMATE_SETS * RC_ESTIMATE_WAYS };
  uint32_t known = 0;
  for (uint32_t tag = 0; tag < 8; tag++) rc_estimate_learn(&estimates, tag * 0x10001u, 16000 * (tag + 1));
  for (uint32_t tag = 0; tag < 8; tag++)
    ck_assert_uint_eq(rc_estimate_of(&estimates, tag * 0x10001u, UINT64_MAX), 17000 * (tag + 1) + 64);
  /* Tags in a row spread over the sets. */
  forget_all();
  for (uint32_t tag = 0; tag < TAGS; tag++) rc_estimate_learn(&estimates, tag, 50000);
  for (uint32_t tag = 0; tag < TAGS; tag++) known += rc_estimate_of(&estimates, tag, UINT64_MAX) > 50000;
  ck_assert_uint_ge(known, TAGS * 3 / 4);
}

/* In one set: the busy one stays, whatever passes by; the quietest goes first. */
TEST(the_tag_that_was_quiet_for_longest_is_forgotten_first) {
  uint32_t same[RC_ESTIMATE_WAYS + 1], found = 0;
  for (uint32_t tag = 0; found <= RC_ESTIMATE_WAYS; tag++) {
    forget_all();
    rc_estimate_learn(&estimates, tag, 1);
    if (estimates.sets[0][0].seen) same[found++] = tag;
  }
  forget_all();
  for (uint32_t i = 0; i < RC_ESTIMATE_WAYS; i++) rc_estimate_learn(&estimates, same[i], 50000);
  rc_estimate_learn(&estimates, same[0], 50000);
  rc_estimate_learn(&estimates, same[RC_ESTIMATE_WAYS], 50000);
  for (uint32_t i = 0; i <= RC_ESTIMATE_WAYS; i++)
    ck_assert_int_eq(rc_estimate_of(&estimates, same[i], UINT64_MAX) > 50000, i != 1);
  for (uint32_t tag = 0; tag < 100000; tag++) {
    rc_estimate_learn(&estimates, tag, 1);
    rc_estimate_learn(&estimates, same[0], 50000);
  }
  ck_assert_uint_gt(rc_estimate_of(&estimates, same[0], UINT64_MAX), 50000);
}

/* What a scheduler tells its workers at each step: some bytes for each running request, which come and go, and now and
 * then the tokens of a new prompt. */
static uint64_t scheduler_bytes(uint64_t step, uint64_t *running) {
  uint64_t random = mix(step);
  if (random % 16 == 0 && *running < 256) ++*running;
  if (random % 17 == 0 && *running > 16) --*running;
  uint64_t prompt = (random >> 8) % 50 == 0 ? 4 * (500 + (random >> 16) % 30000) : 0;
  return 900 + *running * (38 + (random >> 40) % 4) + prompt;
}

static void replay(const char *name, uint64_t (*bytes_of)(uint64_t, uint64_t *), double least) {
  enum { STEPS = 20000 };
  uint64_t running = 64, enough = 0;
  double reserved = 0, used = 0;
  forget_all();
  for (uint64_t step = 0; step < STEPS; step++) {
    uint64_t bytes = bytes_of(step, &running);
    if (estimate() >= bytes) { /* of those that grow, the reservation is exact */
      enough++;
      reserved += (double)estimate();
      used += (double)bytes;
    }
    learn(bytes, 1);
  }
  printf("%s: one reservation was enough for %.1f of 100 frames, at %.2f of their bytes\n", name,
         100.0 * (double)enough / STEPS, reserved / used);
  ck_assert_double_ge((double)enough / STEPS, least);
}

static uint64_t any_order(uint64_t step, uint64_t *unused) {
  (void)unused;
  return 1000 + (mix(step) & 0xfffff);
}

TEST(one_reservation_is_nearly_always_enough) {
  replay("a scheduler's steps, 2 prompts in 100", scheduler_bytes, 0.97);
  replay("sizes from 0 to 1 MiB in any order", any_order, 0.91);
}

TEST(a_writer_estimates_within_what_its_ring_can_hold) {
  struct ringcast_span span;
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 1, .spill_bytes = RINGCAST_NO_SPILL);
  struct ringcast_info info = info_of(writer);
  ck_assert_uint_eq(ringcast_writer_estimate(writer, TAG), info.max_frame); /* less than the default */
  ringcast_writer_learn(writer, TAG, SIZE_MAX);
  ck_assert_int_eq(ringcast_writer_reserve(writer, ringcast_writer_estimate(writer, TAG), 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ringcast_writer_learn(writer, TAG + 1, 100);
  size_t bytes = ringcast_writer_estimate(writer, TAG + 1);
  ck_assert_uint_ge(bytes, 100);
  ck_assert_uint_le(bytes, 200);
  ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_commit(writer, 100, 0), 0);
}

RUN_TESTS("estimate", forget_all, NULL)
