/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD: counts the blocks copied by a process, for overheads.py. Copies by
 * loops of the caller, or by code inlined for a constant size, are not counted.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static _Atomic size_t least = SIZE_MAX;
static _Atomic uint64_t copied;

/* From now on counts the bytes of blocks of `bytes` or more. Returns the count so far, and starts
 * anew. */
uint64_t copies_count(size_t bytes) {
  atomic_store_explicit(&least, bytes, memory_order_relaxed);
  return atomic_exchange_explicit(&copied, 0, memory_order_relaxed);
}

static void note(size_t bytes) {
  if (bytes >= atomic_load_explicit(&least, memory_order_relaxed))
    atomic_fetch_add_explicit(&copied, bytes, memory_order_relaxed);
}

/* The compiler would replace a loop by a call of the function itself. */
void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
  void *result = to;
  note(bytes);
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  return result;
}

void *memmove(void *to, const void *from, size_t bytes) {
  if ((uintptr_t)to - (uintptr_t)from >= bytes) return memcpy(to, from, bytes);
  void *result = to;
  note(bytes);
  to = (uint8_t *)to + bytes - 1;
  from = (const uint8_t *)from + bytes - 1;
  __asm__ volatile("std\n\trep movsb\n\tcld" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  return result;
}
