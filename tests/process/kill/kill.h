/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kill campaign: a writer and some readers under load, each in a process of its own, of which
 * one after the other is killed or stopped: at a random moment, or at a named point of the
 * library's code (ring/point.h). After each strike it is seen that the others are told, or go on;
 * what every reader has read is checked byte for byte.
 *
 *   main.c     options, the order of the strikes, the summary
 *   round.c    one ring's life: starts the parties, strikes, sees what becomes of the others
 *   referee.c  what the rounds are made of: starting, striking, waiting until something is so
 *   leaks.c    what the dead may have left behind
 *   writer.c, reader.c  the parties; frames.c what they send
 *   points.c   where the library's code calls: a party that was told to strikes itself there
 *
 * The board is memory that all share, apart from any ring: what a party has written there outlives
 * it.
 */
#ifndef RC_TESTS_KILL_H
#define RC_TESTS_KILL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ring/point.h"
#include "ringcast/ringcast.h"
#include "tests/support/pattern.h"

enum { MOST_BATCH = 40 };
enum { READERS = 4, PARTIES = READERS + 1, MOST_DELAYS = 1 << 16, TEXT = 256 };
#define WRITER 0 /* the index of the writer among the parties; readers follow */

/* How a party waits. */
enum mode { BY_DEFAULT, ASLEEP, WITHOUT_PIDFD, WITHOUT_ALL, SPINNING, BY_DESCRIPTOR, MODES };
extern const char *const mode_names[MODES];

enum stage { STARTING, AT_WORK, TOLD, ENDED };

/* One party: what it shall be like, and what has become of it. */
struct party {
  /* The referee's word. */
  enum mode mode;
  uint32_t leases;
  bool keeps, churns, dawdles;
  _Atomic uint32_t armed;  /* a point + 1: strike yourself there, 0: nowhere ... */
  _Atomic uint32_t passes; /* ... once you have passed it so many times */
  _Atomic int32_t signal;
  /* The party's own. */
  _Atomic uint64_t struck_ns; /* when it was struck, by itself or by the referee */
  _Atomic uint32_t stage;
  _Atomic bool attached;     /* surely: not while attaching, nor from the begin of closing on */
  _Atomic uint64_t upto;     /* it has got, or could not have got, all frames up to this number */
  _Atomic uint64_t called;   /* it has been waiting since; 0: it is not */
  _Atomic uint64_t final;    /* the last frame's number at the ring's end, 0: none */
  _Atomic uint64_t timeouts; /* writer: -ETIMEDOUT for a reader that is too slow */
  _Atomic int32_t verdict;   /* how its ring ended for it: a negative errno, 0: not yet */
  char text[TEXT];           /* the first thing that was wrong */
  /* The referee's own. */
  pid_t pid; /* 0: none, or waited for */
  bool stopped, dead;
};

struct counts {
  _Atomic uint64_t frames, bytes, spilled, kept;
  _Atomic uint64_t corrupt, missing, unexpected, torn; /* torn: and told so in time */
  _Atomic uint64_t lives, pipe, owner_dead, stale, timed_out,
      refused;                                     /* refused: -EUSERS, for a moment */
  _Atomic uint64_t descriptors, mappings, threads; /* left by a party that ended by itself */
};

struct board {
  /* Of the round. */
  uint64_t seed;
  uint64_t capacity;
  uint32_t slots;
  uint32_t on_death, on_slow;
  int64_t slow_ns;
  bool storms; /* the writer never pauses: it waits for room, and the readers seldom for a frame */
  bool trims;  /* spill memory is given back as soon as it can be */
  bool large;  /* many frames go beside the ring */
  char handle[96];
  _Atomic bool has_handle, stop;
  _Atomic uint64_t sending,
      committed; /* frames' numbers, from 1 on: stored before and after a commit */
  _Atomic uint64_t tail;
  _Atomic uint64_t writer_struck, reader_struck; /* when it was killed, 0: it was not */
  struct party participants[PARTIES];
  /* Of the campaign. */
  struct counts counts;
  _Atomic uint64_t passed[RC_POINT_COUNT];
  _Atomic uint32_t delays; /* from a death to when a party that waited was told */
  struct delay {
    uint64_t ns;
    bool writer; /* which was told of a reader's death */
  } delay[MOST_DELAYS];
};

extern struct board *board;

/* points.c */
extern struct party *self; /* NULL: this process is no party, and is struck nowhere */
void strike_self(int signal);

/* frames.c: a frame says in its first three words which one it is; all others follow from these. */
struct head {
  uint64_t number, bytes, attempt;
};
uint16_t kind_of(uint64_t number);
void fill_frame(void *data, size_t from, size_t to, const struct head *head);
bool frame_matches(const void *data, size_t from, size_t to, const struct head *head);

/* Parties: never return. */
_Noreturn void be_writer(uint64_t random);
_Noreturn void be_reader(uint64_t random);

/* leaks.c: of a party, about itself, once it has closed all; and of the referee, about what the
 * dead have left. */
struct before {
  int descriptors, mappings, threads;
};
struct before look_before(void);
void look_after(const struct before *before);
struct leaks {
  uint64_t processes, files, descriptors, mappings;
  long shared_kb; /* how much more shared memory the machine has in use than before */
};
void leaks_begin(void);
void leaks_after_round(struct leaks *leaks);
void leaks_end(struct leaks *leaks);

/* referee.c */
uint64_t now_ns(void);
uint64_t draw(uint64_t below); /* from the campaign's seed */
void draw_from(uint64_t seed);
void note_delay(uint64_t since, uint64_t struck, bool writer);
void note_wrong(struct party *party, _Atomic uint64_t *count, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void set_mode(enum mode mode, int64_t *spin_ns);

/* round.c */
struct strike {
  int point; /* -1: at a random moment */
  int signal;
  bool done;
};
struct tally {
  uint64_t rounds, kills, stops, killed_stopped, at_points, writers, readers, hangs, slow,
      modes[MODES];
  uint64_t killed_at[RC_POINT_COUNT], stopped_at[RC_POINT_COUNT];
  uint64_t longest_ns; /* that the referee waited for anything */
};
extern struct tally tally;
extern const uint64_t hang_ns; /* it is a hang from here on */
/* The round is made for the first strike; sets `done` in those that were met. False: something
 * hung. */
bool play_round(struct strike *strikes, int count);
/* Whether a point is come by so often that a round need not be made for it. */
bool is_common(int point);

#endif
