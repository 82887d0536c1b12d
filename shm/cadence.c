/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/wait.h"

#define ENOUGH    4u /* gaps learnt before the first window */
#define WEIGHT    8  /* a gap moves the mean by an eighth */
#define SPREAD    32 /* and the spread by a thirty-second */
#define BURST     8u /* messages, without those that follow each other within LEAST_GAP */
#define STRANGE   4u /* clipped errors in a row that start a new cadence */
#define SAVED     4  /* messages for which the budget is saved at most */
#define LEAST_GAP ((int64_t)200 * 1000)
#define MARGIN    ((int64_t)3 * 1000) /* added to each side of a window */
/* A longer spin costs more than the wake-up saved, and delays signals. */
#define MOST_HALF  ((int64_t)1000 * 1000)
#define FIRST_LEAD ((int64_t)60 * 1000)  /* Linux's timer slack is 50 us */
#define MOST_LEAD  ((int64_t)300 * 1000) /* a longer delay means a busy CPU */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

void rc_cadence_init(struct rc_cadence *cadence) {
  *cadence = (struct rc_cadence){.known = UINT32_MAX, .lead = FIRST_LEAD};
}

static void begin(struct rc_cadence *cadence, int64_t gap) {
  cadence->gap = gap;
  cadence->spread = 0;
  cadence->known = 1;
  cadence->strange = 0;
}

/* At first the spread is the largest of the last errors, about. Later seven small steps in and one
 * large step out are as long, so one error of eight is larger than the spread, however large that
 * error is. */
static void learn_spread(struct rc_cadence *cadence, int64_t error) {
  int64_t step = cadence->spread / least(cadence->known, SPREAD) + 1;
  if (cadence->known <= WEIGHT) cadence->spread = most(cadence->spread / 2, error);
  else if (error > cadence->spread) cadence->spread += 7 * step;
  else cadence->spread -= least(step, cadence->spread);
}

static void learn(struct rc_cadence *cadence, int64_t gap) {
  int64_t error = gap - cadence->gap, distance = error < 0 ? -error : error;
  int64_t limit = 2 * cadence->spread + cadence->gap / 32;
  bool strange = cadence->known >= ENOUGH && distance > limit;
  if (strange) cadence->strange++;
  else cadence->strange = 0;
  bool unlike = cadence->known < ENOUGH && distance > cadence->gap / 2;
  if (unlike || cadence->strange == STRANGE) {
    begin(cadence, gap);
    return;
  }
  if (strange) distance = limit;
  cadence->known++;
  cadence->gap += (error < 0 ? -distance : distance) / least(cadence->known, WEIGHT);
  learn_spread(cadence, distance);
}

void rc_cadence_came(struct rc_cadence *cadence, int64_t now) {
  int64_t gap = now - cadence->came, step = now - cadence->last;
  bool first = cadence->known == UINT32_MAX;
  cadence->last = now;
  if (!first && step < LEAST_GAP) return; /* of a burst */
  if (!first && cadence->known != 0 && gap < cadence->gap / 4) {
    cadence->burst++;
    if (cadence->burst < BURST) return;
    gap = step;
    cadence->known = 0;
  }
  cadence->came = now;
  cadence->burst = 0;
  if (first) cadence->known = 0;
  else if (cadence->known == 0) begin(cadence, gap);
  else learn(cadence, gap);
}

void rc_cadence_woke(struct rc_cadence *cadence, int64_t wake, int64_t now) {
  int64_t more = least(now - wake, MOST_LEAD) - cadence->lead;
  cadence->lead += more > 0 ? more / 4 : more / 16; /* too early is better than too late */
}

bool rc_cadence_window(struct rc_cadence *cadence, int64_t now, uint32_t percent,
                       struct rc_window *out) {
  if (cadence->known == UINT32_MAX || cadence->known < ENOUGH) return false;
  int64_t budget = cadence->gap / 100 * percent, most_half = least(budget, MOST_HALF);
  if (budget == 0 || cadence->spread > 2 * most_half) return false;
  int64_t passed = least(now - cadence->refilled, SAVED * cadence->gap);
  cadence->saved = least(cadence->saved + passed / 100 * percent, SAVED * budget);
  cadence->refilled = now;
  int64_t half = least(cadence->spread + MARGIN, most_half), due = cadence->came + cadence->gap;
  *out = (struct rc_window){.wake = due - half - cadence->lead, .due = due, .until = due + half};
  if (now >= out->until) return false;
  int64_t start = now < out->wake ? due - half : now;
  return start + cadence->saved >= out->until;
}
