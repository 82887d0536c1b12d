/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy-on-write mapping of spill memory, whose written ranges show the file again when asked to.
 *
 * One mapping of the whole file stays, instead of a mapping for each range in use. The cost is the
 * page table: for 10 MiB of small pages, filling takes 1.0 to 1.7 ms and dropping 0.4 ms, together
 * more than copying pages (0.6 ms). Here the page table is filled once. The remaining work is to
 * find the written pages: /proc/self/pagemap says for each page whether the page is the file's, in
 * 0.08 ms for 10 MiB (PAGEMAP_SCAN, of Linux 6.7, takes twice as long). Only written pages are
 * dropped, and the kernel maps the file there at the next read.
 */
#define _GNU_SOURCE
#include "shm/memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring/atomics.h"
#include "shm/options.h"
#include "shm/os.h"

/* Bits of a pagemap entry. */
#define IS_THERE   (UINT64_C(3) << 62) /* in memory, or swapped out */
#define IS_OF_FILE (UINT64_C(1) << 61)
#define ENTRIES    512u /* per read: one page of entries */

int rc_private_map_open(int fd, uint64_t bytes, struct rc_private_map *out) {
  if (rc_feature_disabled("retain")) return -ENOTSUP;
  struct rc_private_map private_map = {.pagemap = rc_os.pagemap()};
  if (private_map.pagemap < 0) return private_map.pagemap;
  rc_fd_identify(private_map.pagemap, &private_map.id);
  int result = rc_memory_map_spill(fd, bytes, true, &private_map.memory);
  if (result != 0) {
    close(private_map.pagemap);
    return result;
  }
  *out = private_map;
  return 0;
}

void rc_private_map_close(struct rc_private_map *private_map) {
  rc_memory_destroy(&private_map->memory);
  rc_fd_close(private_map->pagemap, &private_map->id);
}

void rc_private_map_forked(struct rc_private_map *private_map) {
  rc_fd_close(private_map->pagemap, &private_map->id);
  private_map->pagemap = -1; /* from here on every page is dropped */
}

/* Writes to each page without changing a byte, also while further threads write there. Not by
 * adding 0: clang turns an addition of 0 into a load. */
static void touch(const struct rc_private_map *private_map, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset; at < offset + bytes; at += rc_small_page()) {
    _Atomic uint8_t *byte = (_Atomic uint8_t *)(private_map->memory.base + at);
    uint8_t was = rc_load_relaxed(byte); /* relaxed: the compare-and-swap checks the value */
    while (!rc_cas_acq_rel(byte, &was, was)) continue;
  }
}

void rc_private_map_unshare(const struct rc_private_map *private_map, uint64_t offset,
                            uint64_t bytes) {
  if (rc_os.advise(private_map->memory.base + offset, bytes, MADV_POPULATE_WRITE) != 0)
    touch(private_map, offset, bytes);
}

static bool is_private(uint64_t entry) { return entry & IS_THERE && !(entry & IS_OF_FILE); }

/* Reads the pagemap entries from page `first` on. Returns how many entries were read: 0 in a child
 * of fork, and where the number belongs to a file of the program, whose bytes are no entries. */
static uint64_t look(const struct rc_private_map *private_map, uint64_t first, uint64_t count,
                     uint64_t *entries) {
  uint64_t number = (uint64_t)(uintptr_t)private_map->memory.base / rc_small_page() + first;
  if (!rc_fd_is(private_map->pagemap, &private_map->id)) return 0;
  ssize_t got = pread(private_map->pagemap, entries, count * sizeof *entries,
                      (off_t)(number * sizeof *entries));
  return got < 0 ? 0 : (uint64_t)got / sizeof *entries;
}

/* The kernel refuses to drop locked pages, so the mapping is unlocked then, as at mapping
 * (shm/memory.c). */
static bool drop(const struct rc_private_map *private_map, uint64_t first, uint64_t count) {
  uint8_t *at = private_map->memory.base + first * rc_small_page();
  if (rc_os.advise(at, count * rc_small_page(), MADV_DONTNEED) == 0) return true;
  munlock(private_map->memory.base, private_map->memory.bytes);
  return rc_os.advise(at, count * rc_small_page(), MADV_DONTNEED) == 0;
}

/* Cleans up to ENTRIES pages from page `first` on. */
static bool clean_some(const struct rc_private_map *private_map, uint64_t first, uint64_t count,
                       uint64_t *dropped) {
  uint64_t entries[ENTRIES], known = look(private_map, first, count, entries), at = 0;
  while (at < count) {
    uint64_t run = at; /* the pages from `at` to `run` are private, or nothing is known of them */
    while (run < count && (run >= known || is_private(entries[run]))) run++;
    if (run > at && !drop(private_map, first + at, run - at)) return false;
    *dropped += run - at;
    at = run + 1;
  }
  return true;
}

bool rc_private_map_clean(const struct rc_private_map *private_map, uint64_t offset, uint64_t bytes,
                          uint64_t *dropped) {
  uint64_t page = rc_small_page(), end = (offset + bytes) / page, pages = 0;
  for (uint64_t at = offset / page; at < end; at += ENTRIES) {
    uint64_t count = end - at < ENTRIES ? end - at : ENTRIES;
    if (!clean_some(private_map, at, count, &pages)) return false;
  }
  *dropped = pages * page;
  return true;
}

/* mlockall makes all pages of a copy-on-write mapping private, from the start on, so the first page
 * of the range shows whether it came so far. */
bool rc_private_map_is_clean(const struct rc_private_map *private_map, uint64_t offset,
                             uint64_t bytes) {
  uint64_t entry, dropped;
  uint64_t known = look(private_map, offset / rc_small_page(), 1, &entry);
  if (known == 1 && !is_private(entry)) return true;
  return rc_private_map_clean(private_map, offset, bytes, &dropped);
}
