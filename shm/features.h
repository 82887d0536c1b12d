/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RINGCAST_DISABLE: a comma-separated list of the machine's features that the library leaves unused, such as
 * "io_uring,pidfd". The list helps to track down a fault, and tests force every fallback by the list.
 */
#ifndef RC_SHM_FEATURES_H
#define RC_SHM_FEATURES_H

#include <stdbool.h>

/* Reads the environment at each call: for setup, not for the hot path. Spaces around a name do not count. */
bool rc_feature_disabled(const char *what);

/* 0, or -EINVAL with the error text if the list has an unknown name. */
int rc_features_check(void);

#endif
