/* SPDX-License-Identifier: Apache-2.0 */
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
#ifndef RC_SHM_SIZED_H
#define RC_SHM_SIZED_H

#include <stddef.h>
#include <stdint.h>

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
