/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the reader's side, and those of either side's end. */
#include "tests/gpu_scenarios/scenario.h"

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
static ringcast_gpu_memory *memories[8];
static uint8_t host[SOURCE_BYTES];
#define FRAME(word) (&frames[LETTER(word)])

struct side side;

/* ---- Handles --------------------------------------------------------------------------------- */

static long do_ring_reader(void) {
  const struct ringcast_reader_options options = {.size = sizeof options};
  return ringcast_reader_attach_ex(board->handle, &options, &side.reader);
}

static long do_gpu_reader(void) {
  struct ringcast_gpu_reader_options options = {.size = (uint32_t)number_of("size", sizeof options),
                                                .device =
                                                    (int32_t)number_of("device", (uint64_t)-1),
                                                .flags = (uint32_t)number_of("flags", 0),
                                                .reserved = (uint32_t)number_of("reserved", 0)};
  ringcast_gpu_reader *opened = NULL;
  int rc = ringcast_gpu_reader_open(side.reader, has_word("default") ? NULL : &options, &opened);
  must((rc == 0) == (opened != NULL));
  if (rc == 0) side.gpu_reader = opened;
  return rc;
}

static long do_reader(void) {
  open_device();
  long rc = do_ring_reader();
  return rc != 0 ? rc : do_gpu_reader();
}

static long do_prepare(void) { return ringcast_gpu_reader_prepare(side.gpu_reader); }
static long do_check(void) { return ringcast_gpu_check(side.gpu_reader); }
static long do_held(void) { return (long)rc_ring_held(&side.reader->ring); }

static long do_leave(void) {
  ringcast_reader_leave(side.reader);
  return 0;
}

static void close_gpu_reader(void) {
  ringcast_gpu_reader_close(side.gpu_reader);
  side.gpu_reader = NULL;
}

static void close_gpu_writer(void) {
  ringcast_gpu_writer_close(side.gpu_writer);
  side.gpu_writer = NULL;
}

static void close_ring_reader(void) {
  ringcast_reader_close(side.reader);
  side.reader = NULL;
}

static void close_ring(void) {
  ringcast_writer_close(side.writer);
  side.writer = NULL;
}

void close_reader(void) {
  close_gpu_reader();
  close_ring_reader();
}

void close_writer(void) {
  close_gpu_writer();
  close_ring();
}

static long do_close(void) {
  static const struct {
    const char *what;
    void (*close)(void);
  } closes[] = {{"reader", close_reader},           {"gpu-reader", close_gpu_reader},
                {"ring-reader", close_ring_reader}, {"writer", close_writer},
                {"gpu-writer", close_gpu_writer},   {"ring", close_ring}};
  for (size_t i = 0; i < sizeof closes / sizeof *closes; i++) {
    if (strcmp(closes[i].what, words->at[1]) != 0) continue;
    closes[i].close();
    return 0;
  }
  wrong("close what?");
}

void tidy(void) { rc_exported_tidy(rc_gpu_close_ns); }

static long do_tidy(void) {
  tidy();
  return 0;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static long do_next(void) {
  struct received *out = FRAME(1);
  int rc = ringcast_gpu_next(side.gpu_reader, has_word("wait") ? RINGCAST_FOREVER : 0, &out->frame);
  memset(out->copies, 0, sizeof out->copies);
  bool is_dict =
      rc == 0 && ringcast_frame_open(&out->opened, out->frame.data, out->frame.bytes) == 0;
  if (is_dict && out->opened.count > 0) must(ringcast_frame_item(&out->opened, 0, &out->item) == 0);
  return rc;
}

static long do_begin(void) {
  struct received *out = FRAME(1);
  int rc = ringcast_gpu_begin(side.gpu_reader, &out->frame, stream, &out->take);
  if (option("timeout")) out->take.timeout_ns = (int64_t)number_of("timeout", 0);
  return rc;
}

static long do_timeout(void) {
  FRAME(1)->take.timeout_ns = (int64_t)NUMBER(2);
  return 0;
}

/* All of its tensors, each ITEM_BYTES behind the one before. */
static long do_copy(void) {
  struct received *received = FRAME(1);
  int rc = 0;
  for (uint32_t i = 0; i < received->opened.count && rc == 0; i++) {
    struct ringcast_item item = received->item;
    if (i > 0) must(ringcast_frame_item(&received->opened, i, &item) == 0);
    rc = ringcast_gpu_copy_out(side.gpu_reader, &received->take, &item,
                               target + number_of("to", 0) + ITEM_BYTES * i);
  }
  return rc;
}

/* Bytes of the frame, or of the pool. */
static int copy_bytes(struct received *received, bool in_pool, uint64_t offset, uint64_t bytes,
                      uint64_t to) {
  struct ringcast_gpu_copy copy = {
      .offset = offset, .bytes = bytes, .to = target + to, .in_pool = in_pool};
  return ringcast_gpu_copy_all(side.gpu_reader, &received->take, &copy, 1, 0);
}

/* As `copy`, by one call, which goes on where it was. */
static long do_last(void) {
  struct received *received = FRAME(1);
  for (uint32_t i = 0; i < received->opened.count; i++) {
    struct ringcast_gpu_copy *copy = &received->copies[i];
    struct ringcast_item item;
    must(i < MOST_COPIES && ringcast_frame_item(&received->opened, i, &item) == 0);
    copy->in_pool = item.placement == RINGCAST_PLACEMENT_POOL;
    copy->offset = item.device_offset;
    if (!copy->in_pool && item.bytes > 0)
      copy->offset = (uint64_t)((const uint8_t *)item.data - (const uint8_t *)received->frame.data);
    copy->bytes = item.bytes;
    copy->to = target + ITEM_BYTES * i;
  }
  return ringcast_gpu_copy_all(side.gpu_reader, &received->take, received->copies,
                               received->opened.count, RINGCAST_GPU_LAST);
}

static long do_end(void) { return ringcast_gpu_end(side.gpu_reader, &FRAME(1)->take); }
static long do_release(void) { return ringcast_gpu_release(side.gpu_reader, &FRAME(1)->frame); }
static long do_ring_release(void) { return ringcast_reader_release(side.reader, &FRAME(1)->frame); }
static long do_copied(void) { return (long)FRAME(1)->take.copied; }
static long do_placement(void) { return FRAME(1)->item.placement; }

static long do_same_frame(void) {
  *FRAME(2) = *FRAME(1);
  return 0;
}

static long do_drain(void) {
  struct ringcast_frame frame;
  while (ringcast_gpu_next(side.gpu_reader, 0, &frame) == 0)
    must(ringcast_gpu_release(side.gpu_reader, &frame) == 0);
  return 0;
}

static long do_recv(void) {
  struct received *received = &frames[letter("h")];
  long rc = do_text(has_word("wait") ? "next h wait" : "next h");
  if (rc == 0) rc = do_text("begin h");
  if (rc == 0) rc = do_text("last h");
  if (rc == 0) rc = do_text("end h");
  if (rc != 0) return rc;
  for (uint32_t i = 0; i < received->opened.count; i++) {
    uint64_t bytes = received->opened.count == 1 ? received->item.bytes : 1;
    target_holds(NUMBER(1) + ITEM_BYTES * i, bytes, ITEM_BYTES * i);
  }
  return received->item.placement;
}

/* By an item that says so, by copy-pool, to the host, and mapped; all must say so. */
static long do_copy_pool(void) {
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  struct received *received = FRAME(1);
  struct ringcast_item item = received->item;
  item.device_offset = NUMBER(2);
  item.bytes = NUMBER(3);
  int rc = ringcast_gpu_copy_out(side.gpu_reader, &received->take, &item, target);
  must(copy_bytes(received, true, item.device_offset, item.bytes, 0) == rc);
  must(ringcast_gpu_copy_to_host(side.gpu_reader, &received->take, &item, host) == rc);
  must(ringcast_gpu_map(side.gpu_reader, &received->take, &item, &where, &hold) == rc);
  return rc;
}

static long do_copy_frame(void) {
  struct received *received = FRAME(1);
  const uint8_t *frame = received->frame.data, *from = frame;
  if (has_word("tensor")) from = received->item.data;
  if (option("end")) from += received->frame.bytes;
  from += NUMBER(2);
  if (!has_word("item"))
    return copy_bytes(received, false, (uint64_t)(from - frame), NUMBER(3), number_of("to", 0));
  struct ringcast_item item = received->item;
  item.placement = RINGCAST_PLACEMENT_INLINE;
  item.data = from;
  item.bytes = NUMBER(3);
  int rc = ringcast_gpu_copy_out(side.gpu_reader, &received->take, &item, target);
  must(ringcast_gpu_copy_to_host(side.gpu_reader, &received->take, &item, host) == rc);
  return rc;
}

static long do_to_host(void) {
  struct received *received = FRAME(1);
  int rc = ringcast_gpu_copy_to_host(side.gpu_reader, &received->take, &received->item, host);
  for (uint64_t i = 0; rc == 0 && i < received->item.bytes; i++)
    must(host[i] == (uint8_t)(7 * (NUMBER(2) + i)));
  return rc;
}

static long do_map(void) {
  struct held *held = &holds[LETTER(2)];
  return ringcast_gpu_map(side.gpu_reader, &FRAME(1)->take, &FRAME(1)->item, &held->where,
                          &held->hold);
}

static long do_unmap(void) {
  ringcast_gpu_unmap(holds[LETTER(1)].hold);
  return 0;
}

static long do_look(void) {
  driver(cuda->copy_dtod(target, holds[LETTER(1)].where, NUMBER(3), stream));
  target_holds(NUMBER(2), NUMBER(3), 0);
  return 0;
}

static long do_alloc(void) {
  ringcast_device_ptr where;
  return ringcast_gpu_memory_alloc(side.gpu_reader, NUMBER(2), stream, &where,
                                   &memories[LETTER(1)]);
}

static long do_free(void) {
  ringcast_gpu_memory_free(memories[LETTER(1)]);
  return 0;
}

const struct verb reader_verbs[] = {
    {"ring-reader", do_ring_reader},
    {"gpu-reader", do_gpu_reader}, /* device=N flags=N reserved=N size=N default */
    {"reader", do_reader},         /* both */
    {"prepare", do_prepare},
    {"check", do_check},
    {"held", do_held}, /* = N: how many frames the ring holds for its reader */
    {"leave", do_leave},
    {"close", do_close}, /* reader, gpu-reader, ring-reader, writer, gpu-writer or ring */
    {"tidy", do_tidy},
    {"next", do_next},       /* LETTER [wait] */
    {"begin", do_begin},     /* LETTER [timeout=NS] */
    {"timeout", do_timeout}, /* LETTER NS */
    {"copy", do_copy},       /* LETTER [to=N]: all its tensors, to the target */
    {"last", do_last},       /* LETTER: the same by one call, with `ack`; again: the rest */
    {"end", do_end},
    {"release", do_release},
    {"drain", do_drain}, /* gives back unread what there is */
    {"ring-release", do_ring_release},
    {"copied", do_copied},         /* LETTER = BYTES */
    {"placement", do_placement},   /* LETTER = POOL|INLINE */
    {"same-frame", do_same_frame}, /* LETTER LETTER: a copy of the structs */
    {"recv", do_recv},             /* AT [wait] = POOL|INLINE: next, begin, last, end, and holds */
    {"copy-pool", do_copy_pool},   /* LETTER OFFSET BYTES */
    {"copy-frame", do_copy_frame}, /* LETTER OFFSET BYTES [end=0] [tensor] [to=N] [item] */
    {"to-host", do_to_host},       /* LETTER AT: there are these bytes of the source */
    {"map", do_map},               /* FRAME HOLD: the tensor is looked at where it lies */
    {"unmap", do_unmap},           /* HOLD */
    {"look", do_look},             /* HOLD AT BYTES: where it lies are these bytes of the source */
    {"alloc", do_alloc},           /* LETTER BYTES: a reader's memory */
    {"free", do_free},
    {NULL, NULL},
};
