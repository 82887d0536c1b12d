/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the reader's side. */
#include "tests/gpu_scenarios/world.h"

enum { MOST_COPIES = 8 };
static struct received {
  struct ringcast_frame frame;
  struct ringcast_frame_reader opened;
  struct ringcast_item item; /* the first */
  struct ringcast_gpu_take take;
  struct ringcast_gpu_copy copies[MOST_COPIES];
} frames[8];
static struct held {
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
} holds[8];
static struct allocated {
  ringcast_gpu_memory *memory;
  ringcast_device_ptr where;
} memories[8];
#define FRAME(word) (&frames[letter(words->at[word])])

/* ---- Receiving -------------------------------------------------------------------------------------------------- */

static long do_next(struct words *words) {
  struct received *out = FRAME(1);
  int rc = ringcast_gpu_next(side.gpu_reader, has_word(words, "wait") ? RINGCAST_FOREVER : 0, &out->frame);
  memset(out->copies, 0, sizeof out->copies);
  bool is_dict = rc == 0 && ringcast_frame_open(&out->opened, out->frame.data, out->frame.bytes) == 0;
  if (is_dict && out->opened.count > 0) must(ringcast_frame_item(&out->opened, 0, &out->item) == 0);
  return rc;
}

static long do_begin(struct words *words) {
  int64_t timeout_ns = (int64_t)number_of(words, "timeout", (uint64_t)RINGCAST_FOREVER);
  int rc = ringcast_gpu_begin(side.gpu_reader, &FRAME(1)->frame, stream, &FRAME(1)->take);
  if (option(words, "timeout")) FRAME(1)->take.timeout_ns = timeout_ns;
  return rc;
}

static long do_timeout(struct words *words) { return FRAME(1)->take.timeout_ns = (int64_t)NUMBER(2), 0; }

/* All of its tensors, each ITEM_BYTES behind the one before. */
static long copy_all(struct received *received, uint64_t to) {
  int rc = 0;
  for (uint32_t i = 0; i < received->opened.count && rc == 0; i++) {
    struct ringcast_item item = received->item;
    if (i > 0) must(ringcast_frame_item(&received->opened, i, &item) == 0);
    rc = ringcast_gpu_copy_out(side.gpu_reader, &received->take, &item, target + to + ITEM_BYTES * i);
  }
  return rc;
}

/* Bytes of the frame, or of the pool. */
static int copy_bytes(struct received *received, bool in_pool, uint64_t offset, uint64_t bytes, uint64_t to) {
  struct ringcast_gpu_copy copy = {.offset = offset, .bytes = bytes, .to = target + to, .in_pool = in_pool};
  return ringcast_gpu_copy_all(side.gpu_reader, &received->take, &copy, 1, 0);
}

/* As copy_all, by one call, which goes on where it was. */
static long copy_last(struct received *received, uint32_t flags) {
  for (uint32_t i = 0; i < received->opened.count; i++) {
    struct ringcast_item item;
    must(i < MOST_COPIES && ringcast_frame_item(&received->opened, i, &item) == 0);
    bool in_pool = item.placement == RINGCAST_PLACEMENT_POOL;
    uint64_t offset = in_pool || item.bytes == 0
                          ? item.device_offset
                          : (uint64_t)((const uint8_t *)item.data - (const uint8_t *)received->frame.data);
    received->copies[i].offset = offset;
    received->copies[i].bytes = item.bytes;
    received->copies[i].to = target + ITEM_BYTES * i;
    received->copies[i].in_pool = in_pool;
  }
  return ringcast_gpu_copy_all(side.gpu_reader, &received->take, received->copies, received->opened.count, flags);
}

static long do_last(struct words *words) { return copy_last(FRAME(1), (uint32_t)number_of(words, "flags", 1)); }
static long do_copy(struct words *words) { return copy_all(FRAME(1), number_of(words, "to", 0)); }
static long do_end(struct words *words) { return ringcast_gpu_end(side.gpu_reader, &FRAME(1)->take); }
static long do_release(struct words *words) { return ringcast_gpu_release(side.gpu_reader, &FRAME(1)->frame); }
static long do_ring_release(struct words *words) { return ringcast_reader_release(side.reader, &FRAME(1)->frame); }
static long do_copied(struct words *words) { return (long)FRAME(1)->take.copied; }
static long do_placement(struct words *words) { return FRAME(1)->item.placement; }
static long do_same_frame(struct words *words) { return *FRAME(2) = *FRAME(1), 0; }

/* Gives back unread what there is. */
static long do_drain(struct words *words) {
  struct ringcast_frame frame;
  (void)words;
  while (ringcast_gpu_next(side.gpu_reader, 0, &frame) == 0) must(ringcast_gpu_release(side.gpu_reader, &frame) == 0);
  return 0;
}

/* AT: the next frame holds what was sent from there on. Gives where it was. */
long do_recv(struct words *words) {
  struct words of_h = {.count = 2, .at = {"", "h", words->at[2]}};
  struct received *received = &frames[7];
  for (int i = 3; i <= MOST_WORDS; i++) of_h.at[i] = "";
  if (*words->at[2]) of_h.count = 3;
  long rc = do_next(&of_h);
  if (rc == 0) rc = do_begin(&of_h);
  if (rc == 0) rc = copy_last(received, RINGCAST_GPU_LAST);
  if (rc == 0) rc = do_end(&of_h);
  if (rc != 0) return rc;
  for (uint32_t i = 0; i < received->opened.count; i++) {
    uint64_t bytes = received->opened.count == 1 ? received->item.bytes : 1;
    target_holds(NUMBER(1) + ITEM_BYTES * i, bytes, ITEM_BYTES * i);
  }
  return received->item.placement;
}

/* LETTER OFFSET BYTES: of the pool by an item that says so, by copy-pool, to the host, and mapped; all must say so. */
static long do_copy_pool(struct words *words) {
  static uint8_t host[SOURCE_BYTES];
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  ringcast_gpu_reader *gpu = side.gpu_reader;
  struct received *received = FRAME(1);
  struct ringcast_item item = received->item;
  item.device_offset = NUMBER(2);
  item.bytes = NUMBER(3);
  int rc = ringcast_gpu_copy_out(gpu, &received->take, &item, target);
  must(copy_bytes(received, true, item.device_offset, item.bytes, 0) == rc);
  must(ringcast_gpu_copy_to_host(gpu, &received->take, &item, host) == rc);
  must(ringcast_gpu_map(gpu, &received->take, &item, &where, &hold) == rc);
  return rc;
}

/* LETTER OFFSET BYTES: of the frame. As an item too, with `item`. */
static long do_copy_frame(struct words *words) {
  static uint8_t host[SOURCE_BYTES];
  struct received *received = FRAME(1);
  const uint8_t *base = option(words, "end") ? (const uint8_t *)received->frame.data + received->frame.bytes
                                             : (const uint8_t *)received->frame.data;
  if (has_word(words, "tensor")) base = received->item.data;
  const uint8_t *from = base + NUMBER(2) + number_of(words, "end", 0);
  if (!has_word(words, "item"))
    return copy_bytes(received, false, (uint64_t)(from - (const uint8_t *)received->frame.data), NUMBER(3),
                      number_of(words, "to", 0));
  struct ringcast_item item = received->item;
  item.placement = RINGCAST_PLACEMENT_INLINE;
  item.data = from;
  item.bytes = NUMBER(3);
  int rc = ringcast_gpu_copy_out(side.gpu_reader, &received->take, &item, target);
  must(ringcast_gpu_copy_to_host(side.gpu_reader, &received->take, &item, host) == rc);
  return rc;
}

static long do_to_host(struct words *words) {
  static uint8_t host[SOURCE_BYTES];
  struct received *received = FRAME(1);
  int rc = ringcast_gpu_copy_to_host(side.gpu_reader, &received->take, &received->item, host);
  for (uint64_t i = 0; rc == 0 && i < received->item.bytes; i++) must(host[i] == (uint8_t)(7 * (NUMBER(2) + i)));
  return rc;
}

/* FRAME HOLD [AT]: the tensor is looked at where it lies. */
static long do_map(struct words *words) {
  struct held *held = &holds[letter(words->at[2])];
  return ringcast_gpu_map(side.gpu_reader, &FRAME(1)->take, &FRAME(1)->item, &held->where, &held->hold);
}
static long do_unmap(struct words *words) { return ringcast_gpu_unmap(holds[letter(words->at[1])].hold), 0; }
static long do_look(struct words *words) {
  driver(cuda->copy_dtod(target, holds[letter(words->at[1])].where, NUMBER(3), stream));
  return target_holds(NUMBER(2), NUMBER(3), 0), 0;
}

static long do_alloc(struct words *words) {
  struct allocated *out = &memories[letter(words->at[1])];
  return ringcast_gpu_memory_alloc(side.gpu_reader, NUMBER(2), stream, &out->where, &out->memory);
}
static long do_free(struct words *words) { return ringcast_gpu_memory_free(memories[letter(words->at[1])].memory), 0; }

const struct verb receive_verbs[] = {
    {"next", do_next},       /* LETTER [wait] */
    {"begin", do_begin},     /* LETTER [timeout=NS] */
    {"timeout", do_timeout}, /* LETTER NS */
    {"copy", do_copy},       /* LETTER [to=N]: all its tensors, to the target */
    {"last", do_last},       /* LETTER [flags=N]: the same by one call, with `ack`; again: the rest */
    {"end", do_end},
    {"release", do_release},
    {"drain", do_drain},
    {"ring-release", do_ring_release},
    {"copied", do_copied},         /* LETTER = BYTES */
    {"placement", do_placement},   /* LETTER = POOL|INLINE */
    {"same-frame", do_same_frame}, /* LETTER LETTER: a copy of the structs */
    {"recv", do_recv},             /* AT [wait] = POOL|INLINE: next, begin, copy, end, and holds */
    {"copy-pool", do_copy_pool},   /* LETTER OFFSET BYTES */
    {"copy-frame", do_copy_frame}, /* LETTER OFFSET BYTES [end=0] [tensor] [to=N] [item] */
    {"to-host", do_to_host},       /* LETTER AT */
    {"map", do_map},               /* FRAME HOLD */
    {"unmap", do_unmap},           /* HOLD */
    {"look", do_look},             /* HOLD AT BYTES: where it lies are these bytes of the source */
    {"alloc", do_alloc},           /* LETTER BYTES: a reader's memory */
    {"free", do_free},
    {NULL, NULL},
};
