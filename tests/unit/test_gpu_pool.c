/* SPDX-License-Identifier: Apache-2.0 */
/* Slots and extents of the pool, against a model that looks at every place. */
#include <errno.h>

#include "gpu/layout.h"
#include "gpu/pool.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

enum { SLOTS = 24, UNITS = 64 }; /* of RC_GPU_ALIGN bytes */

/* The slot that has each unit, by its number + 1; 0: the unit is free. */
static uint8_t units[UNITS];
static uint64_t generations[SLOTS];
static bool used[SLOTS];

static bool is_free(uint64_t from, uint64_t count) {
  for (uint64_t i = from; i < from + count; i++)
    if (units[i] != 0) return false;
  return true;
}

static int model_take(uint64_t bytes, uint64_t *base) {
  uint64_t count = (bytes + RC_GPU_ALIGN - 1) / RC_GPU_ALIGN, at = 0;
  int slot = 0;
  while (slot < SLOTS && used[slot]) slot++;
  if (slot == SLOTS) return -EAGAIN;
  if (count > 0)
    while (at + count <= UNITS && !is_free(at, count)) at++;
  if (at + count > UNITS) return -EAGAIN;
  for (uint64_t i = at; i < at + count; i++) units[i] = (uint8_t)(slot + 1);
  used[slot] = true;
  *base = at * RC_GPU_ALIGN;
  return slot;
}

static void model_give(int slot) {
  used[slot] = false;
  for (int i = 0; i < UNITS; i++)
    if (units[i] == slot + 1) units[i] = 0;
}

static uint64_t model_used_bytes(void) {
  uint64_t sum = 0;
  for (int i = 0; i < UNITS; i++) sum += units[i] != 0;
  return sum * RC_GPU_ALIGN;
}

static uint64_t random_bytes(uint64_t random) {
  switch (random % 8) {
  case 0: return 0;
  case 1: return random / 8 % (UNITS * RC_GPU_ALIGN + 1000);
  case 2: return (random / 8 % UNITS) * RC_GPU_ALIGN;
  default: return random / 8 % (UNITS * RC_GPU_ALIGN / 12);
  }
}

LOOP_TEST(it_does_what_a_search_of_every_place_does, 0, 4) {
  struct rc_pool pool;
  uint32_t full = 0, count = 0;
  memset(units, 0, sizeof units);
  ck_assert_int_eq(rc_pool_init(&pool, UNITS * RC_GPU_ALIGN, SLOTS), 0);
  for (uint64_t step = 0; step < 20000; step++) {
    uint64_t random = mix((uint64_t)_i << 32 | step), base = 0;
    int slot = (int)(random / 4096 % SLOTS);
    /* Now and then most are given back, so that all of it is come by. */
    if (random % 1000 < (step / 200 % 2 ? 520u : 350u)) {
      if (!used[slot]) continue;
      rc_pool_give(&pool, (uint32_t)slot);
      model_give(slot);
      count--;
    } else {
      uint64_t bytes = random_bytes(random >> 20);
      int expected = model_take(bytes, &base), got = rc_pool_take(&pool, bytes);
      ck_assert_int_eq(got, expected);
      full += got < 0;
      if (got < 0) continue;
      count++;
      ck_assert_uint_eq(pool.slots[got].state, RC_POOL_LEASED);
      ck_assert_uint_eq(pool.slots[got].generation, ++generations[got]);
      if (bytes > 0) ck_assert_uint_eq(pool.slots[got].base, base);
      ck_assert_uint_ge(pool.slots[got].bytes, bytes);
    }
    ck_assert(rc_pool_is_valid(&pool));
    ck_assert_uint_eq(pool.used, count);
    ck_assert_uint_eq(pool.used_bytes, model_used_bytes());
  }
  ck_assert_uint_gt(full, 100);
  rc_pool_free(&pool);
}

TEST(what_is_larger_than_the_pool_never_fits) {
  struct rc_pool pool;
  ck_assert_int_eq(rc_pool_init(&pool, 4 * RC_GPU_ALIGN, 2), 0);
  ck_assert_int_eq(rc_pool_take(&pool, 4 * RC_GPU_ALIGN + 1), -EAGAIN);
  ck_assert_int_eq(rc_pool_take(&pool, UINT64_MAX), -EAGAIN);
  ck_assert_int_eq(rc_pool_take(&pool, UINT64_MAX - RC_GPU_ALIGN + 2), -EAGAIN);
  ck_assert_int_eq(rc_pool_take(&pool, 4 * RC_GPU_ALIGN), 0);
  ck_assert_int_eq(rc_pool_take(&pool, 1), -EAGAIN);
  ck_assert_int_eq(rc_pool_take(&pool, 0), 1); /* nothing takes no room, but a slot */
  ck_assert_int_eq(rc_pool_take(&pool, 0), -EAGAIN);
  rc_pool_give(&pool, 0);
  ck_assert_int_eq(rc_pool_take(&pool, 4 * RC_GPU_ALIGN), 0);
  ck_assert_uint_eq(pool.slots[0].generation, 2);
  rc_pool_free(&pool);
}

RUN_TESTS("gpu pool", NULL, NULL)
