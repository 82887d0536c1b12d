/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings by environment variables, for users who can't change a program's code. An absent or
 * empty variable says nothing and leaves *out as set before. For setup, not for the hot path.
 */
#ifndef RC_SHM_ENVIRONMENT_H
#define RC_SHM_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

/* A whole number from 0 to `most`. `unit` ("bytes") and `zero` ("none": the meaning of 0) are
 * words for the error text. 1: *out is set. 0: the variable says nothing. -EINVAL, with the error
 * text. */
int rc_environment_number(const char *name, uint64_t most, const char *unit, const char *zero,
                          uint64_t *out);

/* The index of one of `count` names. Returns as rc_environment_number. */
int rc_environment_choice(const char *name, const char *const *names, uint32_t count,
                          uint32_t *out);

/* RINGCAST_DISABLE: a comma-separated list of the machine's features that the library leaves
 * unused, such as "io_uring,pidfd". The list helps to track down a fault, and tests force every
 * fallback by the list. Spaces around a name do not count. */
bool rc_feature_disabled(const char *what);

/* 0, or -EINVAL with the error text if the list has an unknown name. */
int rc_features_check(void);

#endif
