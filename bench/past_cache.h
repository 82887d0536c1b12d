/* SPDX-License-Identifier: Apache-2.0 */
/* Two ways to copy a large block. On CPUs other than x86-64 both are memcpy. */
#ifndef BENCH_PAST_CACHE_H
#define BENCH_PAST_CACHE_H

#include <stddef.h>

void bench_copy(void *to, const void *from, size_t bytes);            /* memcpy of the C library */
void bench_copy_past_cache(void *to, const void *from, size_t bytes); /* non-temporal stores of 16 bytes */

#endif
