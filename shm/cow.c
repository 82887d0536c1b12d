/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mapping of the file's whole, that stays, and not one for each part that is lent: it is the page table that costs.
 * To fill it for 10 MiB of small pages takes 1.0 to 1.7 ms and to drop it 0.4 ms, together more than to copy them
 * (0.6 ms); here it is filled once. What is left is to find the pages that were written to: /proc/self/pagemap tells
 * for each page whether it is the file's, in 0.08 ms for 10 MiB (PAGEMAP_SCAN, of Linux 6.7, takes twice as long). Those
 * alone are dropped, and the kernel maps the file there when they are next read.
 */
#define _GNU_SOURCE
#include "shm/cow.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/disable.h"
#include "shm/os.h"

/* Of an entry of the pagemap. */
#define IS_THERE  (UINT64_C(3) << 62) /* in memory, or swapped out */
#define IS_OF_FILE (UINT64_C(1) << 61)
#define ENTRIES 512u /* looked at in one go: a page of them */

int rc_cow_open(int fd, uint64_t bytes, struct rc_cow *out) {
  if (rc_disabled("cow")) return -ENOTSUP;
  struct rc_cow cow = {.pagemap = rc_os.pagemap()};
  if (cow.pagemap < 0) return cow.pagemap;
  int result = rc_memory_map_spill_cow(fd, bytes, &cow.memory);
  if (result != 0)
    close(cow.pagemap);
  else
    *out = cow;
  return result;
}

void rc_cow_close(struct rc_cow *cow) {
  rc_memory_destroy(&cow->memory);
  close(cow->pagemap);
}

/* A write that changes nothing, beside whoever else writes there. */
static void touch(const struct rc_cow *cow, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset; at < offset + bytes; at += rc_small_page())
    atomic_fetch_or_explicit((_Atomic uint8_t *)(cow->memory.base + at), 0, memory_order_relaxed);
}

void rc_cow_own(const struct rc_cow *cow, uint64_t offset, uint64_t bytes) {
  if (rc_os.advise(cow->memory.base + offset, bytes, MADV_POPULATE_WRITE) != 0) touch(cow, offset, bytes);
}

static bool is_private(uint64_t entry) { return entry & IS_THERE && !(entry & IS_OF_FILE); }

/* The pages from the first-th on, up to ENTRIES of them. */
static void clean_some(const struct rc_cow *cow, uint64_t first, uint64_t count) {
  uint64_t entries[ENTRIES], page = rc_small_page();
  uint64_t number = (uint64_t)(uintptr_t)cow->memory.base / page + first;
  ssize_t got = pread(cow->pagemap, entries, count * sizeof *entries, (off_t)(number * sizeof *entries));
  uint64_t known = got < 0 ? 0 : (uint64_t)got / sizeof *entries;
  for (uint64_t i = 0, run; i < count; i = run + 1) {
    for (run = i; run < count && (run >= known || is_private(entries[run]));) run++;
    if (run > i) rc_os.advise(cow->memory.base + (first + i) * page, (run - i) * page, MADV_DONTNEED);
  }
}

void rc_cow_clean(const struct rc_cow *cow, uint64_t offset, uint64_t bytes) {
  uint64_t page = rc_small_page(), first = offset / page, end = (offset + bytes) / page;
  for (; first < end; first += ENTRIES) clean_some(cow, first, end - first < ENTRIES ? end - first : ENTRIES);
}
