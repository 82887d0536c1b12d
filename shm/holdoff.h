/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to try again what went badly. After a failure the next tries are skipped, and twice as many
 * after each further failure, until enough tries in a row went well. One thread at a time.
 */
#ifndef RC_SHM_HOLDOFF_H
#define RC_SHM_HOLDOFF_H

#include <stdbool.h>
#include <stdint.h>

struct rc_holdoff {
  uint32_t left;   /* tries still to skip */
  uint32_t length; /* tries skipped after the last failure; 0: no recent failure */
  uint32_t well;   /* tries in a row that went well */
};

/* A try is at hand. False: skip it. */
static inline bool rc_holdoff_permits(struct rc_holdoff *holdoff) {
  if (holdoff->left == 0) return true;
  holdoff->left--;
  return false;
}

/* A failure skips `least` tries, at first. */
static inline void rc_holdoff_learn(struct rc_holdoff *holdoff, bool well, uint32_t least,
                                    uint32_t most, uint32_t enough) {
  if (!well) {
    holdoff->length = holdoff->length == 0     ? least
                      : holdoff->length < most ? 2 * holdoff->length
                                               : most;
    holdoff->left = holdoff->length;
    holdoff->well = 0;
  } else if (++holdoff->well >= enough) {
    holdoff->length = 0;
  }
}

#endif
