/* SPDX-License-Identifier: Apache-2.0 */
/* A small ring with policies, and readers that die. */
#ifndef RC_TESTS_LOST_H
#define RC_TESTS_LOST_H

#include <errno.h>

#include "shm/os.h"
#include "shm/wait.h"
#include "tests/support/channel.h"
#include "tests/support/children.h"

#define SECOND ((int64_t)1000000000)

static inline ringcast_writer *make(uint32_t on_death, uint32_t on_slow, int64_t slow_ns) {
  return writer_of(.capacity = 4096, .readers = 4, .on_death = on_death, .on_slow = on_slow,
                   .slow_ns = slow_ns);
}

static inline int fill(ringcast_writer *writer, int64_t timeout_ns) {
  int result = 0;
  for (int i = 0; i < 100 && result == 0; i++)
    result = ringcast_writer_send(writer, "frame", 5, 0, timeout_ns);
  return result;
}

/* The deadline comes near only once the ring is full: else a busy machine can let it pass in
 * between. */
static inline void fill_and_hurry(ringcast_writer *writer) {
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  writer->liveness.slow_ns = SECOND / 100;
}

/* A clock of the test's own, which stands still when the process does: it goes on by a microsecond
 * with each look, and by each sleep. */
static int64_t own_now;

static inline int64_t look_at_own_clock(void) { return own_now += 1000; }

static inline int sleep_by_own_clock(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word, (void)value;
  own_now += timeout_ns;
  return -ETIMEDOUT;
}

static inline void use_own_clock(void) {
  own_now = rc_now_ns();
  rc_os.now_ns = look_at_own_clock;
  rc_os.futex_wait = sleep_by_own_clock;
}

struct party {
  const char *handle;
  struct gate there;
};

static inline void read_nothing(void *context) {
  struct party *party = context;
  reader_at(party->handle, .name = "rank 2");
  gate_open(&party->there);
  for (;;) pause();
}

static inline pid_t start_reader(ringcast_writer *writer) {
  struct party party = {.handle = ringcast_writer_handle(writer), .there = gate_make()};
  pid_t pid = start_child(read_nothing, &party);
  gate_wait(&party.there);
  gate_free(&party.there);
  return pid;
}

static inline void ck_told(ringcast_writer *writer, uint32_t state, pid_t pid) {
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(ringcast_writer_check(writer, &peer), 1);
  ck_assert_uint_eq(peer.state, state);
  ck_assert_int_eq(peer.pid, pid);
}

static inline void ck_all_well(ringcast_writer *writer) {
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(ringcast_writer_check(writer, &peer), 0);
}

#endif
