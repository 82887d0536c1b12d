/* SPDX-License-Identifier: Apache-2.0 */
/* What the writing and the reading of a recording share. */
#include "tools/recording.h"

#include "tools/recording_hash.h"

uint64_t recording_header_check(const struct recording_header *header) {
  return XXH3_64bits(header, offsetof(struct recording_header, check));
}

uint64_t recording_record_check(const struct recording_record *record, uint64_t id, uint64_t offset) {
  return XXH3_64bits_withSeed(record, offsetof(struct recording_record, check), id + offset);
}

uint64_t recording_mix(uint64_t number, uint64_t hash) { return XXH3_64bits_withSeed(&hash, sizeof hash, number); }

void recording_sum_add(struct recording_sum *sum, const struct recording_record *record, uint64_t hash) {
  if (sum->frames == 0) sum->first = record->time;
  sum->last = record->time;
  sum->digest += recording_mix(record->number, hash);
  sum->frames++;
  sum->bytes += record->bytes;
}
