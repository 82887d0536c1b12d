/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/cadence.h"

#define ENOUGH     4u /* gaps learnt before the first window */
#define WEIGHT     8  /* a gap moves the mean by an eighth */
#define STRANGE    4u /* clipped errors in a row that start a new cadence */
#define SAVED      4  /* messages for which the budget is saved at most */
#define LEAST_GAP  ((int64_t)200 * 1000)
#define MARGIN     ((int64_t)3 * 1000)    /* added to each side of a window */
#define MOST_HALF  ((int64_t)1000 * 1000) /* a longer spin costs more than the wake-up saved, and delays signals */
#define FIRST_LEAD ((int64_t)60 * 1000)   /* Linux's timer slack is 50 us */
#define MOST_LEAD  ((int64_t)300 * 1000)  /* a longer delay means a busy CPU */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

void rc_cadence_init(struct rc_cadence *cadence) {
  *cadence = (struct rc_cadence){.known = UINT32_MAX, .lead = FIRST_LEAD};
}

static void begin(struct rc_cadence *cadence, int64_t gap) {
  cadence->gap = gap;
  cadence->error = 0;
  cadence->known = 1;
  cadence->strange = 0;
}

static void learn(struct rc_cadence *cadence, int64_t gap) {
  int64_t error = gap - cadence->gap, limit = 4 * cadence->error + cadence->gap / 32;
  bool strange = cadence->known >= ENOUGH && (error > limit || error < -limit);
  cadence->strange = strange ? cadence->strange + 1 : 0;
  bool unlike = cadence->known < ENOUGH && (error > cadence->gap / 2 || error < -cadence->gap / 2);
  if (unlike || cadence->strange == STRANGE) {
    begin(cadence, gap);
    return;
  }
  if (strange) error = error > 0 ? limit : -limit;
  int64_t weight = least(++cadence->known, WEIGHT);
  cadence->gap += error / weight;
  /* The first error sets the mean in full; each later error counts by the number of errors so far. */
  cadence->error += ((error < 0 ? -error : error) - cadence->error) / most(weight - 1, 1);
}

void rc_cadence_came(struct rc_cadence *cadence, int64_t now) {
  int64_t gap = now - cadence->came;
  if (cadence->known != 0 && cadence->known != UINT32_MAX && gap < cadence->gap / 4) return; /* of the same burst */
  cadence->came = now;
  if (cadence->known == UINT32_MAX) cadence->known = 0;
  else if (cadence->known == 0) begin(cadence, gap);
  else learn(cadence, gap);
}

void rc_cadence_woke(struct rc_cadence *cadence, int64_t wake, int64_t now) {
  int64_t more = least(now - wake, MOST_LEAD) - cadence->lead;
  cadence->lead += more > 0 ? more / 4 : more / 16; /* too early is better than too late */
}

bool rc_cadence_window(struct rc_cadence *cadence, int64_t now, uint32_t percent, struct rc_window *out) {
  int64_t budget = cadence->gap / 100 * percent, due = cadence->came + cadence->gap;
  if (cadence->known == UINT32_MAX || cadence->known < ENOUGH || cadence->gap < LEAST_GAP || budget == 0 ||
      cadence->error > budget)
    return false;
  int64_t passed = least(now - cadence->refilled, SAVED * cadence->gap);
  cadence->saved = least(cadence->saved + passed / 100 * percent, SAVED * budget);
  cadence->refilled = now;
  int64_t half = 2 * cadence->error + MARGIN;
  if (half > MOST_HALF) return false;
  half = least(half, budget);
  int64_t wake = due - half - cadence->lead, start = now < wake ? due - half : now;
  if (now >= due + half || start + cadence->saved < due + half) return false;
  *out = (struct rc_window){.wake = wake, .until = due + half};
  return true;
}
