/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings by environment variables, for users who can't change a program's code. An absent or
 * empty variable says nothing and leaves *out as set before. For setup, not for the hot path.
 */
#ifndef RC_SHM_OPTIONS_H
#define RC_SHM_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
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

/* ---- Structs that grow ----------------------------------------------------------------------- */

/*
 * Public structs that grow. Each begins with `uint32_t size`, which the caller sets to sizeof the
 * struct in the caller's release; a later release adds fields at the end. So a caller and a library
 * of different releases agree:
 *
 *   options   A smaller struct lacks fields: the library takes the fields as zero, the default. A
 *             larger struct has fields that the library does not know: unknown fields must be zero.
 *   results   The library fills as many bytes as the caller has, and sets unknown fields to zero.
 *
 * `type` names the struct in error texts: "ringcast_info".
 */

#define RC_SIZED_LEAST 8    /* `size` and one field */
#define RC_SIZED_MOST  4096 /* a larger size was never set */

/* 0; -EINVAL: the size is too small (or 0); -E2BIG: the size is too large. */
int rc_sized_check(const char *type, uint32_t size);

/* Takes over the caller's options; NULL: all zero. Sets `out`, of `bytes`, on success only.
 * -EINVAL, -E2BIG. */
int rc_sized_read(const char *type, const void *given, void *out, size_t bytes);

/* Fills the caller's struct, of a `size` that rc_sized_check accepted, from `known`, of `bytes`.
 * The caller's size stays. */
void rc_sized_write(void *out, uint32_t size, const void *known, size_t bytes);

#endif
