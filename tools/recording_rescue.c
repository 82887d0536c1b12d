/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a file after an error of the disk: whole records are kept. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/disk.h"
#include "tools/recording.h"
#include "tools/recording_hash.h"

enum { PLACES = 64 };

/* Between two records, with the frames before. */
struct place {
  uint64_t at, number;
  struct recording_sum sum;
};

/* The last places, the latest first. Returns their number. */
static int find_places(struct recording *recording, struct place places[PLACES]) {
  struct recording_item item;
  uint64_t count = 0, number = 0;
  int found;
  do {
    places[count++ % PLACES] =
        (struct place){.at = recording_at(recording), .number = number, .sum = recording_facts_of(recording)->sum};
    found = recording_next(recording, &item);
    if (found == RECORDING_FOUND_FRAME) {
      number = item.record.number + 1;
      if (recording_pass(recording) < 0) break;
    }
  } while (found == RECORDING_FOUND_FRAME || found == RECORDING_FOUND_GAP);
  struct place ordered[PLACES] = {{0}};
  int kept = count < PLACES ? (int)count : PLACES;
  for (int i = 0; i < kept; i++) ordered[i] = places[(count - 1 - (uint64_t)i) % PLACES];
  memcpy(places, ordered, sizeof ordered);
  return kept;
}

static bool put_end(int fd, uint64_t id, const struct place *place) {
  struct {
    struct recording_record record;
    struct recording_end end;
    uint64_t hash, zero;
  } all = {.record = {.magic = RECORDING_RECORD_MAGIC,
                      .type = RECORDING_END,
                      .bytes = sizeof all.end,
                      .number = place->number,
                      .time = place->sum.last},
           .end = {.index = RECORDING_UNKNOWN,
                   .frames = place->sum.frames,
                   .bytes = place->sum.bytes,
                   .gaps = place->sum.gaps,
                   .digest = place->sum.digest,
                   .first = place->sum.first,
                   .last = place->sum.last}};
  _Static_assert(sizeof all == 2 * RECORDING_LINE, "as recording_length says");
  all.record.check = recording_record_check(&all.record, id, place->at);
  all.hash = XXH3_64bits(&all.end, sizeof all.end);
  return pwrite(fd, &all, sizeof all, (off_t)place->at) == (ssize_t)sizeof all;
}

/* At the last place with room: frames are given up for an end. */
static void end_at_last_place(int fd, uint64_t id, const struct place *places, int count, struct recording_sum *sum) {
  for (int i = 0; i < count; i++) {
    if (ftruncate(fd, (off_t)places[i].at) != 0 || !put_end(fd, id, &places[i])) continue;
    *sum = places[i].sum;
    return;
  }
  if (ftruncate(fd, (off_t)places[0].at) == 0) *sum = places[0].sum;
}

int recording_rescue(struct disk *disk, struct recording_sum *sum, int why) {
  struct place places[PLACES];
  struct recording *recording;
  char path[64], words[256];
  int fd = disk_fd(disk);
  uint64_t good = disk_good(disk) & ~(uint64_t)(RECORDING_LINE - 1);
  *sum = (struct recording_sum){0};
  disk_make_plain(disk);
  if (good < RECORDING_BLOCK || ftruncate(fd, (off_t)good) != 0) return why;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (recording_open(path, &recording, words) != 0) return why;
  int count = find_places(recording, places);
  uint64_t id = recording_header_of(recording)->id;
  recording_close(recording);
  end_at_last_place(fd, id, places, count, sum);
  return why;
}
