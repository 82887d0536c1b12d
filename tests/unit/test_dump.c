/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringcast dump` says of a frame is no longer than the frame allows, and controls no
 * terminal. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ringcast/inspect.h"
#include "tests/support/frame_items.h"
#include "tests/support/suite.h"
#include "tools/dump.h"

enum { ENTRIES = 1000, LONG = 1 << 16, MOST = 1 << 20 };

static char text[MOST + 1];

/* What is printed, as a text. */
static void dump(const void *frame, size_t bytes, bool json) {
  int screen = memfd_create("screen", MFD_CLOEXEC), before = dup(STDOUT_FILENO);
  fflush(stdout);
  ck_assert_int_eq(dup2(screen, STDOUT_FILENO), STDOUT_FILENO);
  dump_tensors(frame, bytes, json);
  fflush(stdout);
  ck_assert_int_eq(dup2(before, STDOUT_FILENO), STDOUT_FILENO);
  ssize_t length = pread(screen, text, MOST, 0);
  ck_assert_int_lt(length, MOST);
  text[length] = '\0';
  close(screen);
  close(before);
}

/* A dict of such entries. */
static uint8_t *build(const struct ringcast_item *items, int count, size_t *bytes) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  for (int i = 0; i < count; i++) item_plan(&plan, &items[i]);
  *bytes = ringcast_plan_bytes(&plan);
  uint8_t *frame = malloc(*bytes);
  ck_assert_int_eq(ringcast_build_begin(&builder, frame, *bytes, &plan, RINGCAST_ROOT_DICT, 5), 0);
  for (int i = 0; i < count; i++) ck_assert_int_eq(item_build(&builder, &items[i]), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, bytes), 0);
  return frame;
}

/* All entries have the long key, or the long value, of the first one. */
LOOP_TEST(bytes_that_entries_share_are_damage, 0, 4) {
  static struct ringcast_item items[ENTRIES];
  static char data[LONG], names[ENTRIES][16];
  struct ringcast_frame_entry first, entry;
  bool of_key = _i % 2 == 0;
  size_t bytes;
  memset(data, 'a', sizeof data);
  for (int i = 0; i < ENTRIES; i++) {
    snprintf(names[i], sizeof names[i], "%d", i);
    items[i] =
        (struct ringcast_item){.kind = RINGCAST_ITEM_STR,
                               .flags = RINGCAST_ITEM_KEYED,
                               .key = i == 0 && of_key ? data : names[i],
                               .key_bytes = i == 0 && of_key ? LONG : (uint32_t)strlen(names[i]),
                               .data = data,
                               .bytes = i == 0 && !of_key ? LONG : 1};
  }
  uint8_t *frame = build(items, ENTRIES, &bytes);
  memcpy(&first, frame + sizeof(struct ringcast_frame_header), sizeof first);
  for (int i = 1; i < ENTRIES; i++) {
    uint8_t *at = frame + sizeof(struct ringcast_frame_header) + (size_t)i * sizeof entry;
    memcpy(&entry, at, sizeof entry);
    if (of_key) entry.key_offset = first.key_offset, entry.key_bytes = first.key_bytes;
    else entry.offset = first.offset, entry.bytes = first.bytes;
    memcpy(at, &entry, sizeof entry);
  }
  dump(frame, bytes, _i < 2);
  ck_assert_uint_lt(strlen(text), 2 * bytes);
  ck_assert_ptr_nonnull(strstr(text, _i < 2 ? "\"damaged_entries\": 99" : "damaged entries"));
  free(frame);
}

TEST(keys_and_values_do_not_control_the_terminal) {
  static const char hostile[] = "\u202e\u2028\U000e0041\xc2\x9b\x1b\xff\u00e9";
  const struct ringcast_item item = {.kind = RINGCAST_ITEM_STR,
                                     .flags = RINGCAST_ITEM_KEYED,
                                     .key = hostile,
                                     .key_bytes = sizeof hostile - 1,
                                     .data = hostile,
                                     .bytes = sizeof hostile - 1};
  size_t bytes;
  uint8_t *frame = build(&item, 1, &bytes);
  for (int json = 0; json < 2; json++) {
    char shown[4096];
    dump(frame, bytes, json == 1);
    ck_assert_uint_eq(ringcast_printable(text, strlen(text), shown, sizeof shown), strlen(text));
    if (json)
      ck_assert_ptr_nonnull(
          strstr(text, "\"\\u202e\\u2028\\udb40\\udc41\\u009b\\u001b\\ufffd\u00e9\""));
  }
  free(frame);
}

RUN_TESTS("dump", NULL, NULL)
