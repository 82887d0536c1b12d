/* SPDX-License-Identifier: Apache-2.0 */
/* Readers keep frames, and other threads look at them, write to them and drop them, while the
 * writer goes on with too little spill memory: it waits for what is kept again and again. All bytes
 * are checked. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "tests/support/children.h"
#include "tests/support/retain.h"
#include "tests/support/switches.h"

enum { READERS = 2, QUEUE = 6, STAY = 100, LEAST = 33000 };

static int frames;

static size_t bytes_of(uint64_t number) { return LEAST + (size_t)(mix(number) % 100000); }

/* What a reader hands to the thread that drops it, oldest first or not. */
struct party {
  const char *handle;
  ringcast_reader *reader;
  pthread_t reads, drops;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  struct retained queue[QUEUE];
  int count;
  bool ended;
  _Atomic int dropped;
  int retained,
      own; /* frames that were kept; and after how many there were some that had become its own */
  int life_kept, life_dropped; /* kept since it attached, and what `dropped` was then */
};

static void hand_over(struct party *party, struct retained retained) {
  pthread_mutex_lock(&party->mutex);
  while (party->count == QUEUE) pthread_cond_wait(&party->changed, &party->mutex);
  party->queue[party->count++] = retained;
  pthread_cond_broadcast(&party->changed);
  pthread_mutex_unlock(&party->mutex);
}

static bool take_over(struct party *party, uint64_t random, struct retained *out) {
  pthread_mutex_lock(&party->mutex);
  while (!party->ended && party->count == 0) pthread_cond_wait(&party->changed, &party->mutex);
  bool took = party->count > 0;
  if (took) {
    int which = (int)(random % (uint64_t)party->count);
    *out = party->queue[which];
    party->queue[which] = party->queue[--party->count];
    pthread_cond_broadcast(&party->changed);
  }
  pthread_mutex_unlock(&party->mutex);
  return took;
}

static void *drop_all(void *context) {
  struct party *party = context;
  struct retained retained;
  for (uint64_t random = 3; take_over(party, random, &retained); random = mix(random)) {
    child_must(is_whole(&retained));
    if (random % 64 == 0) write_to(&retained); /* in every page, which teaches the reader to copy */
    if (random % 4 == 1) {                     /* in one */
      retained.data[0] ^= 1;
      child_must(!is_whole(&retained));
      retained.data[0] ^= 1;
    }
    if (random % 8 == 0) sched_yield();
    child_must(is_whole(&retained));
    rc_add_acq_rel(&party->dropped,
                   1); /* before it is: who counts what was given back finds no fewer */
    ringcast_retained_release(retained.handle);
  }
  return NULL;
}

/* More was given back than has been dropped, although what was kept before it attached may count
 * among that. */
static bool has_owned(const struct party *party) {
  int given_back = party->life_kept - (int)party->reader->retained;
  return given_back > rc_load_acquire(&party->dropped) - party->life_dropped;
}

static int read_one_frame(struct party *party, uint64_t *least) {
  struct ringcast_frame frame;
  ringcast_retained *retained;
  void *data;
  int result = ringcast_reader_next(party->reader, RINGCAST_FOREVER, &frame);
  if (result != 0) return result;
  uint64_t n = frame.kind;
  party->own += has_owned(party);
  child_must(n >= *least && frame.bytes == bytes_of(n));
  *least = n + 1;
  if (ringcast_reader_retain(party->reader, &frame, &retained, &data) == 0) {
    hand_over(party, (struct retained){
                         .handle = retained, .data = data, .number = n, .bytes = frame.bytes});
    party->retained++, party->life_kept++;
    return 0;
  }
  child_must(pattern_matches(frame.data, frame.bytes, n));
  return ringcast_reader_release(party->reader, &frame);
}

/* Who attaches anew has learned nothing, and what was kept before is still there. */
static void *read_all(void *context) {
  struct party *party = context;
  struct ringcast_reader_options options = {.size = sizeof options,
                                            .flags = RINGCAST_READER_RETAIN};
  uint64_t least = 0;
  for (int result = 0; result == 0;) {
    party->life_kept = 0;
    party->life_dropped = rc_load_acquire(&party->dropped); /* as above */
    for (int i = 0; i < STAY && result == 0; i++) result = read_one_frame(party, &least);
    child_must(result == 0 || result == -EPIPE);
    ringcast_reader_close(party->reader);
    if (result == 0) result = ringcast_reader_attach_ex(party->handle, &options, &party->reader);
  }
  pthread_mutex_lock(&party->mutex);
  party->ended = true;
  pthread_cond_broadcast(&party->changed);
  pthread_mutex_unlock(&party->mutex);
  return NULL;
}

TEST(all_bytes_are_right_whoever_drops_them_and_when) {
  frames = share_of(4000);
#if defined(__SANITIZE_THREAD__)
  frames /= 5;
  /* It does not see liburing unmap one's ring before another's lies there. */
  disable_too("io_uring");
#endif
  ringcast_writer *writer = make_writer(2 * MIB);
  struct party participants[READERS];
  char handle[96];
  strcpy(handle, ringcast_writer_handle(writer)); /* which lives as long as the writer */
  memset(participants, 0, sizeof participants);
  for (int i = 0; i < READERS; i++) {
    struct party *party = &participants[i];
    party->handle = handle;
    party->reader = attach_retainer(writer);
    pthread_mutex_init(&party->mutex, NULL);
    pthread_cond_init(&party->changed, NULL);
    ck_assert_int_eq(pthread_create(&party->reads, NULL, read_all, party), 0);
    ck_assert_int_eq(pthread_create(&party->drops, NULL, drop_all, party), 0);
  }
  for (uint64_t n = 0; n < (uint64_t)frames; n++) {
    struct ringcast_span span;
    ck_assert_int_eq(ringcast_writer_reserve(writer, bytes_of(n), RINGCAST_FOREVER, &span), 0);
    pattern_fill(span.data, bytes_of(n), n);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes_of(n), (uint16_t)n), 0);
  }
  ringcast_writer_close(writer);
  for (int i = 0; i < READERS; i++) {
    ck_assert_int_eq(pthread_join(participants[i].reads, NULL), 0);
    ck_assert_int_eq(pthread_join(participants[i].drops, NULL), 0);
    ck_assert_int_gt(participants[i].retained, 0);
    ck_assert_int_gt(participants[i].own, 0);
    pthread_cond_destroy(&participants[i].changed);
    pthread_mutex_destroy(&participants[i].mutex);
  }
}

int main(void) {
  if (!can_retain("test_retain_threads")) return EXIT_SUCCESS;
  unsetenv("RINGCAST_SPILL_BYTES");
  return run_tests("retain_threads", remember, nothing_is_left);
}
