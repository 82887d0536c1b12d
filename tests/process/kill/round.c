/* SPDX-License-Identifier: Apache-2.0 */
/* One ring's life. Whatever is struck, the others must be told, or go on, and say the same of what
 * was sent. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "tests/process/kill/referee.h"

#define PATIENCE ((uint64_t)700 * 1000 * 1000) /* for a party to come by a point */

/* Who comes by a point, and when (ring/point.h). */
enum who {
  WRITES,
  READS,
  CREATES,
  ATTACHES,
  CLOSES,
  LEAVES,
  WAITS,
  MOURNS,
  REAPS,
  POLLS,
  EVICTS,
  STALE,
  REFUSES,
  REFUSED
};
static const enum who who_passes[RC_POINT_COUNT] = {
#define WHO(name, who) [RC_POINT_##name] = who,
    RC_ALL_POINTS(WHO)
#undef WHO
};

enum {
  CHURNER = WRITER + 1,
  SUITED
}; /* readers: attaches again and again; as the point of the round needs it */

static int suited_for; /* the point that the round is made for, -1: none */
static bool over;      /* the writer is dead, or has ended the ring */

/* ---- What is waited for ---------------------------------------------------------------------- */

static bool is_told(const struct party *party) { return atomic_load(&party->stage) >= TOLD; }

static bool has_handle(const void *context) {
  (void)context;
  return atomic_load(&board->has_handle) || is_told(&board->participants[WRITER]);
}

static bool is_at_work(const void *context) {
  return atomic_load(&((const struct party *)context)->stage) >= AT_WORK;
}

/* The writer has gone once around since, and more: then no reader holds it back, unless it has
 * ended. The board's tail is stored after a whole batch, which may be several laps of a small ring
 * behind. */
static bool went_around(const void *context) {
  enum { LONGEST_BATCH = MOST_BATCH * 2048 };
  uint64_t since = *(const uint64_t *)context;
  return atomic_load(&board->tail) >= since + 2 * board->capacity + LONGEST_BATCH ||
         is_told(&board->participants[WRITER]);
}

static bool has_timed_out(const void *context) {
  return atomic_load(&board->participants[WRITER].timeouts) > *(const uint64_t *)context ||
         is_told(&board->participants[WRITER]);
}

static bool is_alive(const struct party *party) {
  return party->pid != 0 && !party->dead && !party->stopped;
}

static bool have_caught_up(const void *context) {
  for (int i = WRITER + 1; i < PARTIES; i++) {
    const struct party *party = &board->participants[i];
    if (is_alive(party) && atomic_load(&party->upto) < *(const uint64_t *)context &&
        !is_told(party))
      return false;
  }
  return true;
}

static bool all_told(const void *context) {
  (void)context;
  for (int i = 0; i < PARTIES; i++)
    if (is_alive(&board->participants[i]) && !is_told(&board->participants[i])) return false;
  return true;
}

static bool all_catch_up(void) {
  uint64_t target = atomic_load(&board->committed);
  return until(have_caught_up, &target, "all readers have got what was sent");
}

static bool goes_around(void) {
  uint64_t tail = atomic_load(&board->tail);
  return until(went_around, &tail,
               "the writer has gone on without a reader that is dead or stopped");
}

static void wrong(int index, const char *what) {
  note_wrong(&board->participants[index], &board->counts.unexpected, "%s", what);
}

/* ---- What follows ---------------------------------------------------------------------------- */

static bool restart_reader(int index) {
  if (!bury(index)) return false;
  start_party(index);
  return until(is_at_work, &board->participants[index],
               "a reader that was started anew has attached");
}

/* `sure`: it was attached, and not evicted. */
static bool reader_died(int index, bool sure) {
  struct party *writer = &board->participants[WRITER];
  if (draw(2) && !bury(index)) return false; /* else it stays a zombie for now */
  if (!goes_around()) return false;
  over = is_told(writer);
  if (over && writer->verdict != -EOWNERDEAD)
    wrong(WRITER, "the writer has ended without a reason");
  if (over) return true;
  /* One that was held up by the machine may have been evicted before, and not know it. */
  if (sure && board->on_death == RINGCAST_FAIL && board->on_slow == RINGCAST_FAIL)
    wrong(WRITER, "the writer went on over what a dead reader holds");
  return restart_reader(index);
}

static bool writer_stopped(void) {
  let_pass(1000000 + draw(60000000));
  for (int i = WRITER + 1; i < PARTIES; i++)
    if (is_alive(&board->participants[i]) && is_told(&board->participants[i]))
      wrong(i, "told of an end; the writer is stopped");
  if (draw(5) == 0) {
    strike(WRITER, SIGKILL);
    tally.killed_stopped++;
    over = true;
    return true;
  }
  go_on(WRITER);
  return all_catch_up();
}

static bool reader_stopped(int index) {
  struct party *party = &board->participants[index], *writer = &board->participants[WRITER];
  bool sure = atomic_load(&party->attached);
  uint64_t timeouts = atomic_load(&writer->timeouts);
  if (board->on_slow == RINGCAST_EVICT) {
    if (!goes_around()) return false;
    sure = false;
  } else if (board->slow_ns != 0 && sure) {
    if (!until(has_timed_out, &timeouts, "the writer is told that a reader is too slow"))
      return false;
  } else {
    let_pass(1000000 + draw(40000000));
  }
  if (draw(5) == 0) {
    strike(index, SIGKILL);
    tally.killed_stopped++;
    return reader_died(index, sure);
  }
  go_on(index);
  return all_catch_up();
}

static bool follow_up(int index, int signal) {
  if (signal == SIGSTOP) {
    if (!await_stopped(index)) return false;
    return index == WRITER ? writer_stopped() : reader_stopped(index);
  }
  if (index == WRITER) {
    over = true;
    return true;
  }
  return reader_died(index, atomic_load(&board->participants[index].attached));
}

/* ---- Strikes --------------------------------------------------------------------------------- */

static bool is_of_use(const struct party *party, bool churns) {
  return is_alive(party) && !is_told(party) && (!churns || party->churns);
}

static int some_reader(bool churns) {
  int index;
  bool any = false;
  for (int i = WRITER + 1; i < PARTIES; i++) any |= is_of_use(&board->participants[i], churns);
  do index = WRITER + 1 + (int)draw(READERS);
  while (any && !is_of_use(&board->participants[index], churns));
  return any ? index : -1;
}

/* At a random moment; now and then two at once. */
static bool strike_at_random(struct strike *what) {
  int index = draw(3) == 0 ? WRITER : some_reader(false), second;
  if (index < 0) return true;
  let_pass(draw(3000000));
  if (index != WRITER && is_told(&board->participants[WRITER])) return true;
  strike(index, what->signal);
  what->done = true;
  if (index == WRITER && what->signal == SIGKILL && draw(4) == 0 &&
      (second = some_reader(false)) > 0)
    strike(second, SIGKILL);
  return follow_up(index, what->signal);
}

static int reader_for(int point) {
  return point == suited_for && is_of_use(&board->participants[SUITED], false) ? SUITED
                                                                               : some_reader(false);
}

/* Whoever comes by it, in the round as it is. */
static bool strike_who_passes(struct strike *what, int index, uint32_t passes) {
  if (index < 0) return true;
  arm(index, what->point, what->signal, passes);
  if (!has_struck(index, PATIENCE)) return true;
  note_struck(index, what->point, what->signal);
  what->done = true;
  return follow_up(index, what->signal);
}

/* The writer, in what it does about a reader that is dead or stopped. */
static bool strike_in_judgement(struct strike *what, int signal) {
  int index = some_reader(false);
  if (index < 0) return true;
  struct party *reader = &board->participants[index];
  arm(WRITER, what->point, what->signal, 0);
  strike(index, signal);
  bool sure = atomic_load(&reader->attached);
  what->done = has_struck(WRITER, PATIENCE);
  if (!what->done) return follow_up(index, signal);
  note_struck(WRITER, what->point, what->signal);
  if (!follow_up(WRITER, what->signal)) return false;
  if (over) return true;
  return signal == SIGKILL ? reader_died(index, sure) : reader_stopped(index);
}

/* A reader, in what it does once it has been evicted. */
static bool strike_evicted(struct strike *what) {
  int index = some_reader(false);
  if (index < 0) return true;
  strike(index, SIGSTOP);
  if (!await_stopped(index) || !goes_around()) return false;
  arm(index, what->point, what->signal, 0);
  go_on(index);
  what->done = has_struck(index, PATIENCE);
  if (!what->done) return all_catch_up();
  note_struck(index, what->point, what->signal);
  if (what->signal == SIGKILL) return reader_died(index, false);
  return follow_up(index, what->signal);
}

static bool has_any_struck(const void *context) {
  (void)context;
  for (int i = WRITER + 1; i < PARTIES; i++)
    if (atomic_load(&board->participants[i].struck_ns) != 0) return true;
  return false;
}

/* A reader, as it finds the writer dead; the others must find it all the same. The first one to
 * find it tells them, so any may be that one. */
static bool strike_mourner(struct strike *what) {
  for (int i = WRITER + 1; i < PARTIES; i++)
    if (is_of_use(&board->participants[i], false)) arm(i, what->point, what->signal, 0);
  strike(WRITER, SIGKILL);
  over = true;
  within(PATIENCE, has_any_struck, NULL);
  for (int i = WRITER + 1; i < PARTIES; i++) {
    if (!is_of_use(&board->participants[i], false) || !has_struck(i, 0)) continue;
    note_struck(i, what->point, what->signal);
    what->done = true;
    if (what->signal == SIGSTOP && !await_stopped(i)) return false;
  }
  return true;
}

static bool strike_in_closing(struct strike *what) {
  arm(WRITER, what->point, what->signal, 0);
  atomic_store(&board->stop, true);
  what->done = has_struck(WRITER, PATIENCE);
  over = true;
  if (!what->done) return true;
  note_struck(WRITER, what->point, what->signal);
  if (what->signal == SIGSTOP && !await_stopped(WRITER)) return false;
  if (what->signal == SIGSTOP) go_on(WRITER);
  return true;
}

/* A reader is stopped in the middle of joining. Struck is the writer when it refuses it for that,
 * or the reader itself when it finds out. */
static bool strike_in_refusal(struct strike *what, bool writer) {
  int index = some_reader(true);
  if (index < 0) return true;
  struct strike stop = {.point = RC_POINT_J1_DONE, .signal = SIGSTOP};
  arm(index, stop.point, stop.signal, 0);
  if (writer) arm(WRITER, what->point, what->signal, 0);
  if (!has_struck(index, PATIENCE)) {
    disarm(WRITER);
    return true;
  }
  note_struck(index, stop.point, stop.signal);
  if (!await_stopped(index)) return false;
  if (writer) {
    what->done = has_struck(WRITER, PATIENCE);
    if (what->done) note_struck(WRITER, what->point, what->signal);
    if (what->done && !follow_up(WRITER, what->signal)) return false;
    return over || reader_stopped(index);
  }
  if (!goes_around()) return false;
  arm(index, what->point, what->signal, 0);
  go_on(index);
  what->done = has_struck(index, PATIENCE);
  if (!what->done) return all_catch_up();
  note_struck(index, what->point, what->signal);
  return follow_up(index, what->signal);
}

static bool strike_once(struct strike *what) {
  if (what->point < 0) return strike_at_random(what);
  switch (who_passes[what->point]) {
  case WRITES:
    return strike_who_passes(what, WRITER, (uint32_t)draw(is_common(what->point) ? 40 : 3));
  case READS:
    return strike_who_passes(what, reader_for(what->point),
                             (uint32_t)draw(is_common(what->point) ? 20 : 2));
  case POLLS: return strike_who_passes(what, reader_for(what->point), (uint32_t)draw(4));
  case ATTACHES:
  case LEAVES: return strike_who_passes(what, some_reader(true), (uint32_t)draw(3));
  case WAITS:
    return strike_who_passes(
        what, what->point != suited_for && draw(2) ? WRITER : reader_for(what->point),
        (uint32_t)draw(4));
  case REAPS: return board->on_death == RINGCAST_EVICT ? strike_in_judgement(what, SIGKILL) : true;
  case EVICTS: return board->on_slow == RINGCAST_EVICT ? strike_in_judgement(what, SIGSTOP) : true;
  case STALE: return board->on_slow == RINGCAST_EVICT ? strike_evicted(what) : true;
  case REFUSES: return strike_in_refusal(what, true);
  case REFUSED: return strike_in_refusal(what, false);
  case MOURNS: return strike_mourner(what);
  case CLOSES: return strike_in_closing(what);
  default: return true; /* only at the beginning */
  }
}

/* ---- The round ------------------------------------------------------------------------------- */

/* What a point needs of its round, lest it be waited for in vain. */
static void suit(int point) {
  struct party *party = &board->participants[SUITED];
  suited_for = point;
  if (point >= RC_POINT_DESCRIPTOR_ROOM && point <= RC_POINT_EPOCH_DONE) board->large = true;
  switch (point) {
  case RC_POINT_PROVIDE:
  case RC_POINT_PROVIDED:
  case RC_POINT_PUNCH:
  case RC_POINT_PUNCHED:
  case RC_POINT_EPOCH_DONE: board->trims = true; break;
  case RC_POINT_CURSOR_MOVED: party->leases = 3; break;
  case RC_POINT_SPILL_CHECKED: board->large = true; break;
  case RC_POINT_RETAINED:
  case RC_POINT_UNSHARE:
  case RC_POINT_UNSHARED:
    party->keeps = board->large = true;
    board->on_slow = RINGCAST_FAIL; /* else nothing is kept */
    break;
  case RC_POINT_POLL:
  case RC_POINT_POLL_ARMED:
    party->mode = BY_DESCRIPTOR;
    party->leases = 1;
    board->storms = false;
    break;
  default: break;
  }
}

bool is_common(int point) { return atomic_load(&board->passed[point]) > 200 * (tally.rounds + 1); }

static void plan(const struct strike *first) {
  enum who who = first->point < 0 ? WRITES : who_passes[first->point];
  memset(board, 0, offsetof(struct board, counts));
  board->capacity = (uint64_t)4096 << draw(5);
  board->slots = READERS + 2 * (uint32_t)draw(2);
  board->on_death = who == REAPS || draw(3) != 0 ? RINGCAST_EVICT : RINGCAST_FAIL;
  board->on_slow = who == EVICTS || who == STALE || draw(3) == 0 ? RINGCAST_EVICT : RINGCAST_FAIL;
  board->slow_ns =
      board->on_slow == RINGCAST_EVICT || draw(2) ? (int64_t)(20 + draw(30)) * 1000000 : 0;
  board->storms = draw(3) == 0;
  board->trims = draw(2) == 0;
  board->large = draw(4) == 0;
  int spinning = draw(4) == 0 ? (int)draw(PARTIES) : -1; /* one at most: each takes a CPU */
  for (int i = 0; i < PARTIES; i++) {
    struct party *party = &board->participants[i];
    do party->mode = i == spinning ? SPINNING : (enum mode)draw(MODES);
    while (party->mode == SPINNING && i != spinning);
    party->leases = draw(2) ? 1 : 1 + (uint32_t)draw(6);
    party->keeps = draw(2) == 0;
    party->churns = i == CHURNER || draw(4) == 0;
    party->dawdles = draw(3) == 0;
  }
  suit(first->point);
}

/* The writer, and what is struck while it makes the ring: then it is made by another one. */
static bool start_writer(struct strike *first) {
  bool strikes = first->point >= 0 && who_passes[first->point] == CREATES;
  if (strikes) arm(WRITER, first->point, first->signal, 0);
  start_party(WRITER);
  if (strikes && (first->done = has_struck(WRITER, PATIENCE))) {
    note_struck(WRITER, first->point, first->signal);
    if (first->signal == SIGKILL) {
      if (!bury(WRITER)) return false;
      atomic_store(&board->writer_struck, 0);
      start_party(WRITER);
    } else {
      if (!await_stopped(WRITER)) return false;
      go_on(WRITER);
    }
  }
  return until(has_handle, NULL, "the writer has made its ring");
}

/* Lets it end, if it has not, and sees that all say the same. */
static bool finish(void) {
  uint64_t final = 0;
  for (int i = 0; i < PARTIES; i++)
    if (board->participants[i].stopped) go_on(i);
  atomic_store(&board->stop, true);
  if (!until(all_told, NULL, "all have been told that the ring has ended")) return false;
  for (int i = 0; i < PARTIES; i++)
    if (!bury(i)) return false;
  for (int i = WRITER + 1; i < PARTIES; i++) {
    uint64_t found = board->participants[i].verdict == -EPIPE ? board->participants[i].final : 0;
    if (found != 0 && final != 0 && found != final)
      note_wrong(&board->participants[i], &board->counts.missing,
                 "frame %llu was the last one for it, and %llu for another",
                 (unsigned long long)found, (unsigned long long) final);
    if (found != 0) final = found;
  }
  return true;
}

static bool play(struct strike *strikes, int count) {
  if (!start_writer(&strikes[0])) return false;
  for (int i = WRITER + 1; i < PARTIES; i++) start_party(i);
  for (int i = WRITER + 1; i < PARTIES; i++)
    if (!until(is_at_work, &board->participants[i], "a reader has attached")) return false;
  uint64_t target = 20 + draw(200);
  if (!until(have_caught_up, &target, "the first frames have been read")) return false;
  for (int i = 0; i < count && !over; i++)
    if (!strikes[i].done && !strike_once(&strikes[i])) return false;
  return finish();
}

bool play_round(struct strike *strikes, int count) {
  plan(&strikes[0]);
  over = false;
  bool fine = play(strikes, count);
  if (!fine) bury_all_by_force();
  tally.rounds++;
  return fine;
}
