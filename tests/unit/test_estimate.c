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

/* So many frames of these sizes, one after the other, and what the estimate then fits. */
static const struct {
  struct {
    uint64_t bytes;
    int times;
  } frames[4];
  uint64_t fits;
} histories[] = {
    {{{0, 100}}, 0},
    {{{50000, 1}}, 50000}, /* one is enough to know its like */
    {{{1000, 1000}, {90000, 1}, {80000, 1}}, 1000},
    {{{1000, 1000}, {90000, 1}, {80000, 1}, {85000, 1}}, 80000}, /* rises with the third */
    {{{90000, 5 * EPOCH}, {1000, EPOCH - 1}}, 90000},
    {{{90000, 5 * EPOCH}, {1000, 2 * EPOCH}}, 1000}, /* sinks when none came for two epochs */
    {{{1000, 3}, {90000, 1}}, 90000},                /* few can't tell what is an accident */
    {{{1000, 3}, {90000, 1}, {1000, EPOCH - 4}}, 1000},
};

LOOP_TEST(it_follows_what_is_usual, 0, sizeof histories / sizeof *histories) {
  for (int i = 0; i < 4; i++) learn(histories[_i].frames[i].bytes, histories[_i].frames[i].times);
  ck_fits(histories[_i].fits);
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

TEST(sizes_of_nothing_and_of_everything_do_no_harm) {
  learn(0, 100);
  learn(UINT64_MAX, 3);
  ck_assert_uint_eq(estimate(), UINT64_MAX);
  ck_assert_uint_eq(rc_estimate_of(&estimates, TAG, 4096), 4096);
  ck_assert_uint_eq(rc_estimate_of(&estimates, TAG, 0), 0);
}

TEST(each_tag_has_a_history_of_its_own) {
  enum { TAGS = RC_ESTIMATE_SETS * RC_ESTIMATE_WAYS };
  uint32_t known = 0;
  for (uint32_t tag = 0; tag < 8; tag++)
    rc_estimate_learn(&estimates, tag * 0x10001u, 16000 * (tag + 1));
  for (uint32_t tag = 0; tag < 8; tag++)
    ck_assert_uint_eq(rc_estimate_of(&estimates, tag * 0x10001u, UINT64_MAX),
                      17000 * (tag + 1) + 64);
  /* Tags in a row spread over the sets. */
  forget_all();
  for (uint32_t tag = 0; tag < TAGS; tag++) rc_estimate_learn(&estimates, tag, 50000);
  for (uint32_t tag = 0; tag < TAGS; tag++)
    known += rc_estimate_of(&estimates, tag, UINT64_MAX) > 50000;
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

/* What a scheduler tells its workers at each step: some bytes for each running request, which come
 * and go, and now and then the tokens of a new prompt. */
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

/* ---- Of a writer ----------------------------------------------------------------------------- */

static struct ringcast_span reserved(ringcast_writer *writer, size_t bytes) {
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_writer_reserve(writer, bytes, 0, &span), 0);
  return span;
}

static void write_frame(ringcast_writer *writer, uint32_t tag, size_t bytes) {
  struct ringcast_span span = reserved(writer, RINGCAST_ESTIMATE_OF(tag));
  if (span.bytes < bytes) ck_assert_int_eq(ringcast_writer_grow(writer, bytes, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_commit(writer, bytes, 0), 0);
}

TEST(commit_teaches_the_tag_that_was_reserved_by_and_no_other) {
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 20, .readers = 1);
  ck_assert_uint_eq(ringcast_writer_estimate(writer, TAG), RC_ESTIMATE_DEFAULT);
  ck_assert_uint_eq(reserved(writer, RINGCAST_ESTIMATE).bytes, RC_ESTIMATE_DEFAULT);
  ck_assert_int_eq(ringcast_writer_commit(writer, 100, 0), 0);
  ck_assert_uint_eq(ringcast_writer_estimate(writer, 0), 100 + 6 + 64);
  ck_assert_uint_eq(ringcast_writer_estimate(writer, TAG), RC_ESTIMATE_DEFAULT);
  write_frame(writer, UINT32_MAX, 20000);
  ck_assert_uint_eq(ringcast_writer_estimate(writer, UINT32_MAX), 20000 + 1250 + 64);
  ck_assert_uint_eq(reserved(writer, RINGCAST_ESTIMATE_OF(UINT32_MAX)).bytes, 20000 + 1250 + 64);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
}

TEST(a_size_that_the_caller_names_teaches_nothing) {
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 20, .readers = 1);
  write_frame(writer, 0, 100);
  size_t estimate = ringcast_writer_estimate(writer, 0);
  reserved(writer, RINGCAST_ESTIMATE);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0); /* nor does what was aborted */
  reserved(writer, 50000);
  ck_assert_int_eq(ringcast_writer_commit(writer, 50000, 0), 0);
  ck_assert_int_eq(ringcast_writer_send(writer, "", 1, 0, 0), 0);
  ck_assert_uint_eq(ringcast_writer_estimate(writer, 0), estimate);
  ck_assert_uint_eq(stats_of_writer(writer).estimate_hits, 1);
}

TEST(the_counts_tell_how_often_an_estimate_was_enough) {
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 20, .readers = 1);
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  write_frame(writer, TAG, 4096);
  ck_assert_uint_eq(stats_of_writer(writer).wasted_bytes, 0);
  write_frame(writer, TAG, 4000);
  write_frame(writer, TAG, 5000);
  struct ringcast_span span = reserved(writer, RINGCAST_ESTIMATE_OF(TAG));
  ck_assert_int_eq(ringcast_writer_grow(writer, 10, 0, &span), 0); /* less than is reserved */
  ck_assert_int_eq(ringcast_writer_commit(writer, span.bytes + 100000, 0), -EINVAL);
  ck_assert_int_eq(ringcast_writer_commit(writer, 10, 0), 0);
  struct ringcast_stats stats = stats_of_writer(writer), seen = {.size = sizeof seen};
  ck_assert_uint_eq(stats.estimate_hits, 3);
  ck_assert_uint_eq(stats.grown, 1);
  ck_assert_uint_eq(stats.wasted_bytes, (4096 + 256 + 64 - 4000) + (5000 + 312 + 64 - 10));
  ck_assert_int_eq(ringcast_tap_stats(tap, &seen), 0);
  ck_assert_mem_eq(&stats, &seen, sizeof stats);
  ringcast_tap_close(tap);
}

TEST(a_writer_estimates_within_what_its_ring_can_hold) {
  SCOPED_WRITER writer =
      writer_of(.capacity = 4096, .readers = 1, .spill_bytes = RINGCAST_NO_SPILL);
  struct ringcast_info info = info_of(writer);
  ck_assert_uint_eq(ringcast_writer_estimate(writer, TAG),
                    info.max_frame); /* less than the default */
  write_frame(writer, TAG, info.max_frame);
  write_frame(writer, TAG, info.max_frame);
  ck_assert_uint_eq(stats_of_writer(writer).estimate_hits, 2);
}

TEST(frames_beside_the_ring_are_estimated_too) {
  SCOPED_WRITER writer = writer_of(.capacity = 64 << 10, .readers = 1, .spill_bytes = 8 << 20);
  write_frame(writer, TAG, 1 << 20);
  ck_assert_uint_ge(reserved(writer, RINGCAST_ESTIMATE_OF(TAG)).bytes, 1 << 20);
  ck_assert_int_eq(ringcast_writer_commit(writer, 100, 0),
                   0); /* in spill memory, though it would fit the ring */
  struct ringcast_stats stats = stats_of_writer(writer);
  ck_assert_uint_eq(stats.estimate_hits, 1);
  ck_assert_uint_eq(stats.grown, 1);
}

TEST(a_large_message_once_keeps_no_small_one_from_the_ring) {
  SCOPED_WRITER writer = writer_of(.capacity = 64 << 10, .readers = 1, .spill_bytes = 8 << 20);
  SCOPED_READER reader = reader_of(writer);
  struct ringcast_frame held;
  write_frame(writer, TAG, 6 << 20);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &held), 0);
  /* For which spill memory has no room now. */
  struct ringcast_span span = reserved(writer, RINGCAST_ESTIMATE_OF(TAG));
  ck_assert_uint_eq(span.bytes, info_of(writer).ring_frame);
  ck_assert_int_eq(ringcast_writer_commit(writer, 10, 0), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &held), 0);
}

TEST(an_estimate_is_refused_as_any_size_is) {
  struct ringcast_span span;
  SCOPED_WRITER writer =
      writer_of(.capacity = 4096, .readers = 1, .spill_bytes = RINGCAST_NO_SPILL);
  reserved(writer, RINGCAST_ESTIMATE);
  ck_assert_int_eq(ringcast_writer_reserve(writer, RINGCAST_ESTIMATE, 0, &span), -EBUSY);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, RINGCAST_ESTIMATE, -2, &span), -EINVAL);
  ck_assert_int_eq(ringcast_writer_send(writer, "", RINGCAST_ESTIMATE, 0, 0), -EMSGSIZE);
  ck_assert_int_eq(ringcast_writer_send(writer, "", RINGCAST_ESTIMATE_OF(UINT32_MAX), 0, 0),
                   -EMSGSIZE);
  const size_t no_estimates[] = {SIZE_MAX, SIZE_MAX - UINT32_MAX, RINGCAST_ESTIMATE - 1,
                                 RINGCAST_ESTIMATE_OF(-1) + 1};
  for (size_t i = 0; i < 4; i++)
    ck_assert_int_eq(ringcast_writer_reserve(writer, no_estimates[i], 0, &span), -EMSGSIZE);
  reserved(writer, 10);
  ck_assert_int_eq(ringcast_writer_grow(writer, RINGCAST_ESTIMATE, 0, &span), -EMSGSIZE);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  SCOPED_READER reader = reader_of(writer);
  for (int i = 0; i < 3; i++) {
    reserved(writer, 1000);
    ck_assert_int_eq(ringcast_writer_commit(writer, 1000, 0), 0);
  }
  ck_assert_int_eq(ringcast_writer_reserve(writer, RINGCAST_ESTIMATE, 0, &span), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_abort(writer), -EINVAL);
}

/* ---- Without a writer ------------------------------------------------------------------------ */

TEST(a_history_of_sizes_needs_no_writer) {
  struct ringcast_sizes sizes = {{0}};
  uint64_t estimated = 0;
  for (uint64_t i = 0; i < 1000; i++) {
    uint64_t bytes = mix(i) % 100000;
    estimated = ringcast_sizes_add(&sizes, bytes);
    learn(bytes, 1);
    ck_assert_uint_eq(estimated, estimate());
  }
}

/* A history may come from anywhere. */
TEST(any_bytes_are_a_history) {
  for (uint64_t i = 0; i < 10000; i++) {
    struct ringcast_sizes sizes;
    for (int k = 0; k < 8; k++) sizes.words[k] = mix(i * 8 + (uint64_t)k);
    for (int k = 0; k < 40; k++) ringcast_sizes_add(&sizes, 100);
    for (int k = 0; k < 2 * EPOCH; k++) ck_assert_uint_ge(ringcast_sizes_add(&sizes, 100), 100);
    ck_assert_uint_eq(ringcast_sizes_add(&sizes, 100), 100 + 6 + 64);
  }
}

RUN_TESTS("estimate", forget_all, NULL)
