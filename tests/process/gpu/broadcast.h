/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device tensors from one process to several, on the tests' own driver. What a message holds follows from the seed and
 * its number, so each consumer knows every byte that must come. Nobody ever waits for a stream before the call that is
 * to be tested: consumers check on their own streams, some messages later, and streams are held up at random.
 *
 *   main.c      options, and the referee: starts the parties, sees that they go on, sums up
 *   plan.c      what message number so and so holds
 *   stage.c     what a party has of the driver: streams, and who holds them up; its own words; what waits are counted
 *   producer.c  sends, and writes over its tensors right behind each send
 *   consumer.c  reads by copies, checks them, writes over them
 *   views.c     reads tensors where they lie, for a while, and lets go of them in threads of its own
 *
 * The board is memory that all share, apart from any ring.
 */
#ifndef RC_TESTS_BROADCAST_H
#define RC_TESTS_BROADCAST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpu/semaphore.h"
#include "ringcast/gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/pattern.h"

enum { MOST_TENSORS = 6, MOST_DIMS = 5, MOST_PARTICIPANTS = 32, STREAMS = 3, MARKS = 16, TEXT = 256 };
#define PRODUCER 0 /* the index of the producer among the parties; consumers and then guests follow */

struct options {
  uint64_t seed, consumers, messages, guests, kills;
  uint64_t pool, ring, slots;              /* bytes, bytes, number; pool 0: none */
  uint64_t typical;                        /* bytes of a tensor */
  uint64_t generation;                     /* ... that the slots begin with */
  uint64_t delays, slow;                   /* us that a stream is held up, a consumer's host sleeps, at most */
  uint64_t views, releases, drops, huge;   /* one of so many; 0: none */
  uint64_t unregistered, no_inline, flood; /* 1: yes */
  uint64_t expect_pool;                    /* percent */
  uint64_t expect_full;                    /* 1: the pool must have been full */
  uint64_t patience;                       /* seconds without any progress: it hangs */
};
extern struct options options;

struct party {
  _Atomic uint64_t steps;                      /* moves on as long as it does not hang */
  _Atomic uint64_t messages, checked, corrupt; /* corrupt: messages; checked: tensors */
  _Atomic uint64_t by_pool, by_ring, released, passed, views, full, drops;
  _Atomic bool has_read; /* all, and has checked it */
  _Atomic bool has_left;
  char text[TEXT]; /* the first thing that was wrong */
  pid_t pid;       /* the referee's; 0: none */
  bool dies;       /* by its own hand */
};

struct board {
  char handle[96];
  _Atomic bool has_handle;
  _Atomic uint64_t sent;
  struct party participants[MOST_PARTICIPANTS];
};
extern struct board *board;
extern struct party *self;

/* Ends this process, and tells why. */
_Noreturn void give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define must(condition)                                                                                 \
  do {                                                                                                  \
    if (!(condition)) give_up("%s:%d: %s (%s)", __FILE__, __LINE__, #condition, ringcast_last_error()); \
  } while (0)

void nap(uint64_t most_us); /* not to wait for anything: to be slow */
void step(void);            /* it goes on */

struct dice {
  uint64_t state;
};
static inline uint64_t throw(struct dice * dice, uint64_t below) { return (mix(dice->state++) >> 11) % below; }
static inline bool one_of(struct dice *dice, uint64_t so_many) { return so_many != 0 && throw(dice, so_many) == 0; }
static inline struct dice dice_of(uint64_t a, uint64_t b) {
  return (struct dice){mix(mix(options.seed * 0x10001 + a) ^ b)};
}

/* ---- plan.c ----------------------------------------------------------------------------------------------------- */

struct item {
  char key[16];
  struct ringcast_tensor tensor; /* shape and strides are those below */
  int64_t shape[MOST_DIMS], strides[MOST_DIMS];
  bool on_device;
  uint64_t bytes, span, first; /* packed; of the memory it lies in; where in it the first element begins */
  uint64_t number;             /* its bytes follow from it */
};
struct plan {
  uint64_t message;
  uint32_t count;
  struct item items[MOST_TENSORS];
  uint64_t device_bytes; /* 0: nothing of it is on a device */
};
void plan_make(struct plan *plan, uint64_t message);
uint64_t plan_most(void); /* bytes that the tensors of one message take at most, each on a multiple of 256 */
void plan_image(const struct item *item, void *out);            /* the memory it lies in */
bool plan_matches(const struct item *item, const void *packed); /* what has come */

/* ---- stage.c ---------------------------------------------------------------------------------------------------- */

struct stage {
  const struct rc_cuda *cuda;
  rc_cu_context context;
  rc_cu_stream streams[STREAMS];
  struct rc_semaphore *words; /* registered: one of each stream that holds it up, then marks */
  rc_cu_ptr words_address;
  rc_cu_ptr junk;
  struct dice dice;
  _Atomic uint64_t asked[STREAMS];
  _Atomic bool ends;
  pthread_t releaser;
};
enum { JUNK_BYTES = 1 << 16 };
void stage_open(struct stage *stage, uint64_t seed);
void stage_close(struct stage *stage);             /* and sees that the driver has nothing left */
void stage_delay(struct stage *stage, int stream); /* at random */
void stage_spoil(struct stage *stage, rc_cu_ptr memory, uint64_t bytes, rc_cu_stream stream);
void *stage_host(struct stage *stage, uint64_t bytes); /* registered memory */
void stage_host_free(struct stage *stage, void *memory, uint64_t bytes);
/* The stream says when it has come so far, which is waited for then. */
void stage_mark(struct stage *stage, uint32_t mark, uint64_t value, rc_cu_stream stream);
bool stage_is_marked(struct stage *stage, uint32_t mark, uint64_t value);
void stage_await(struct stage *stage, uint32_t mark, uint64_t value);
long waits_so_far(void); /* calls of this thread that wait for a device */

/* ---- The parties ------------------------------------------------------------------------------------------------ */

_Noreturn void be_producer(void);
_Noreturn void be_consumer(uint32_t index); /* among the parties */

struct views; /* views.c */
struct views *views_start(struct stage *stage, uint32_t first_mark);
/* False: there are too many already. Takes the hold over. */
bool views_have_room(struct views *views);
void views_add(struct views *views, ringcast_gpu_hold *hold, rc_cu_ptr where, rc_cu_stream stream, uint64_t message,
               uint32_t item);
void views_end(struct views *views); /* when all have gone */

#endif
