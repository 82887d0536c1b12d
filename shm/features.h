/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RINGCAST_DISABLE: a comma-separated list of what the library shall do without although the machine offers it, such as
 * "io_uring,pidfd". For those who track down a fault, and for tests, which force every fallback with it.
 */
#ifndef RC_SHM_FEATURES_H
#define RC_SHM_FEATURES_H

#include <stdbool.h>

/* Reads the environment at each call: for setup, not for the hot path. Spaces around a name do not count. */
bool rc_feature_disabled(const char *what);

/* That it names only what there is to switch off: 0, or -EINVAL with its text. */
int rc_features_check(void);

#endif
