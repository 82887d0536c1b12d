/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring's code with threads that sleep: readers until something comes, the writer until there is
 * room. They sleep by futex until they are woken, however long, so a wake-up that is lost is a
 * hang. And what the waiting itself keeps is looked at by ThreadSanitizer, also when another thread
 * ends a wait.
 */
#include "shm/wait.h"
#include "tests/support/sleep.h"
#include "tests/support/threads.h"

enum { READERS = 3 };

static struct rc_waiter waiters[READERS];
static _Atomic uint64_t sleeps;

static int count_sleeps(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  sleeps++;
  return wait_without_end(word, value, timeout_ns);
}

static int nothing_more(void *context) {
  (void)context;
  return -EAGAIN;
}

struct sending {
  struct rc_ring_writer writer;
  struct rc_spill spill;
  uint64_t number;
  void *out;
};

static int poll_room(void *context) {
  struct sending *sending = context;
  return reserve(&sending->writer, &sending->spill, sending->number, &sending->out);
}

static void *write_frames(void *nothing) {
  struct sending sending = {0};
  struct rc_waiter waiter;
  const struct rc_wait how = {.poll = poll_room, .check = nothing_more, .context = &sending};
  rc_ring_writer_init(&sending.writer, ring);
  rc_spill_init(&sending.spill, SPILL);
  if (rc_waiter_init(&waiter, &ring.control->not_full, &ring.control->cpus, -1, 0) != 0) abort();
  for (; sending.number < frames; sending.number++) {
    int result = poll_room(&sending);
    if (result == -EAGAIN) result = rc_wait(&waiter, &how, -1);
    if (result != 0) abort();
    fill_and_commit(&sending.writer, &sending.spill, sending.number, sending.out);
    rc_wake(&ring.control->not_empty);
  }
  return nothing;
}

struct receiving {
  struct rc_ring_reader reader;
  struct rc_ring_frame frame;
};

static int poll_frame(void *context) {
  struct receiving *receiving = context;
  return rc_ring_next(&receiving->reader, &receiving->frame);
}

/* Reads all frames, and then waits for one more until that is cancelled. */
static void *read_frames(void *context) {
  struct receiving *receiving = context;
  struct rc_waiter *waiter = &waiters[receiving->reader.slot];
  const struct rc_wait how = {.poll = poll_frame, .check = nothing_more, .context = receiving};
  for (uint64_t n = 0; n < frames; n++) {
    int result = poll_frame(receiving);
    if (result == -EAGAIN) result = rc_wait(waiter, &how, -1);
    if (result != 0 || !is_whole(&receiving->frame, n)) abort();
    if (rc_ring_release(&receiving->reader, receiving->frame.position) != 0) abort();
    rc_wake(&ring.control->not_full);
  }
  if (rc_wait(waiter, &how, -1) != -ECANCELED) abort();
  rc_slot_free(&ring, receiving->reader.slot, receiving->reader.owner);
  return NULL;
}

TEST(no_wake_up_is_lost_between_threads) {
  pthread_t writer, readers[READERS];
  struct receiving receiving[READERS];
  sleep_without_slices();
  rc_os.futex_wait = count_sleeps;
  send_so_many(50000);
  make_ring();
  for (int i = 0; i < READERS; i++) {
    receiving[i].reader = join(1);
    ck_assert_int_eq(
        rc_waiter_init(&waiters[i], &ring.control->not_empty, &ring.control->cpus, -1, 0), 0);
  }
  for (int i = 0; i < READERS; i++) start(&readers[i], read_frames, &receiving[i]);
  start(&writer, write_frames, NULL);
  pthread_join(writer, NULL);
  for (int i = 0; i < READERS; i++) rc_waiter_cancel(&waiters[i]);
  /* It ends only waits that have to wait, and that comes after all frames. */
  for (int i = 0; i < READERS; i++) pthread_join(readers[i], NULL);
  printf("%llu frames, %llu sleeps\n", (unsigned long long)frames, (unsigned long long)sleeps);
  ck_assert_uint_gt(sleeps, 0);
  free_ring();
}

RUN_TESTS("ring_threads, asleep", NULL, NULL)
