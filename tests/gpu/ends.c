/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "tests/gpu/ends.h"

enum { FILLED = 99 };

/* ---- A reader --------------------------------------------------------------------------------------------------- */

struct opened open_reader(struct helper *writer) {
  struct opened opened = {0};
  struct ringcast_gpu_reader_options options = {.size = sizeof options, .device = 0};
  char handle[96];
  helper_hear(writer, handle, sizeof handle);
  opened.gpu = gpu_open();
  opened.mine = gpu_alloc(&opened.gpu, BYTES);
  must_ringcast(ringcast_reader_attach(handle, &opened.ring), "attach");
  must_ringcast(ringcast_gpu_reader_open(opened.ring, &options, &opened.reader), "ringcast_gpu_reader_open");
  return opened;
}

void close_reader(struct opened *opened) {
  ringcast_gpu_reader_close(opened->reader);
  ringcast_reader_close(opened->ring);
}

int say_attached(struct helper *me) {
  char byte = 1;
  int count;
  helper_tell(me, &byte, 1);
  helper_hear(me, &count, sizeof count);
  return count;
}

uint32_t read_one(struct opened *opened, int number) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader tensors;
  struct ringcast_gpu_take take;
  struct ringcast_item item;
  ringcast_gpu_hold *hold;
  ringcast_device_ptr at;
  must_ringcast(ringcast_gpu_next(opened->reader, LIMIT_NS, &frame), "ringcast_gpu_next");
  must_ringcast(ringcast_gpu_begin(opened->reader, &frame, opened->gpu.stream, &take), "ringcast_gpu_begin");
  must_ringcast(ringcast_frame_open(&tensors, frame.data, frame.bytes), "ringcast_frame_open");
  must_ringcast(ringcast_frame_item(&tensors, 0, &item), "ringcast_frame_item");
  if (item.bytes != BYTES) failed("a tensor of %llu bytes came", (unsigned long long)item.bytes);
  if (number % 3 == 2 && item.placement == RINGCAST_PLACEMENT_POOL) {
    must_ringcast(ringcast_gpu_map(opened->reader, &take, &item, &at, &hold), "ringcast_gpu_map");
    must(opened->gpu.cuda->copy_dtod(opened->mine, at, BYTES, opened->gpu.stream), "cuMemcpyDtoDAsync");
    ringcast_gpu_unmap(hold);
  } else {
    must_ringcast(ringcast_gpu_copy_out(opened->reader, &take, &item, opened->mine), "ringcast_gpu_copy_out");
  }
  must_ringcast(ringcast_gpu_end(opened->reader, &take), "ringcast_gpu_end");
  return tensors.tag;
}

void tell_wrong(struct helper *me, struct opened *opened, uint32_t seed) {
  uint64_t wrong = gpu_differing(&opened->gpu, opened->mine, BYTES, seed);
  helper_tell(me, &wrong, sizeof wrong);
}

/* Says of each when it is enqueued, and how many bytes of it were wrong. */
void read_all(struct helper *me, void *context) {
  const struct job *job = context;
  struct opened opened = open_reader(me);
  struct ringcast_gpu_info info = {.size = sizeof info};
  int count = say_attached(me);
  char byte = 1;
  if (job->on_null_stream) opened.gpu.stream = NULL;
  for (int i = 0; i < count; i++) {
    uint32_t seed = read_one(&opened, i);
    if (job->says_enqueued) helper_tell(me, &byte, 1);
    tell_wrong(me, &opened, seed);
  }
  must_ringcast(ringcast_gpu_reader_info(opened.reader, &info), "ringcast_gpu_reader_info");
  helper_tell(me, &info, sizeof info);
  helper_hear(me, &byte, 1);
  close_reader(&opened);
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

struct world open_writer(uint32_t *spin, uint64_t pool_bytes, uint32_t flags) {
  struct world world = {.spin = spin, .gpu = gpu_open()};
  struct ringcast_writer_options ring = {
      .size = sizeof ring, .capacity = 8 << 20, .readers = 8, .on_death = RINGCAST_EVICT};
  struct ringcast_gpu_writer_options options = {.size = sizeof options, .pool_bytes = pool_bytes, .flags = flags};
  gpu_alloc(&world.gpu, BYTES / 2); /* the driver gives out parts of blocks: the source is not the first of one */
  world.source = gpu_alloc(&world.gpu, BYTES);
  world.filler = gpu_alloc(&world.gpu, BYTES);
  gpu_fill(&world.gpu, world.filler, BYTES, FILLED);
  for (unsigned i = 0; i < SEEDS; i++) gpu_fill(&world.gpu, world.patterns[i] = gpu_alloc(&world.gpu, BYTES), BYTES, i);
  world.spin_address = gpu_register(&world.gpu, spin, PAGE);
  must_ringcast(ringcast_writer_create_ex(&ring, &world.ring), "ringcast_writer_create_ex");
  must_ringcast(ringcast_gpu_writer_open(world.ring, &options, &world.writer), "ringcast_gpu_writer_open");
  return world;
}

void close_writer(struct world *world) {
  ringcast_gpu_writer_close(world->writer);
  ringcast_writer_close(world->ring);
}

struct ringcast_gpu_info info_of(struct world *world) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  must_ringcast(ringcast_gpu_writer_info(world->writer, &info), "ringcast_gpu_writer_info");
  return info;
}

int try_to_send(struct world *world, uint32_t flags) {
  const int64_t shape[1] = {BYTES};
  uint32_t seed = world->sent++ % SEEDS;
  const struct ringcast_gpu_item item = {.key = "x",
                                         .key_bytes = 1,
                                         .on_device = 1,
                                         .tensor = {.data = (const void *)(uintptr_t)world->source,
                                                    .dtype = {1, 8, 1},
                                                    .ndim = 1,
                                                    .shape = shape,
                                                    .flags = RINGCAST_ITEM_CUDA}};
  must(world->gpu.cuda->copy_dtod(world->source, world->patterns[seed], BYTES, world->gpu.stream), "cuMemcpyDtoDAsync");
  int result = ringcast_gpu_send(world->writer, &item, 1, seed, flags, world->gpu.stream, LIMIT_NS);
  must(world->gpu.cuda->copy_dtod(world->source, world->filler, BYTES, world->gpu.stream), "cuMemcpyDtoDAsync");
  return result;
}

void send_one(struct world *world) { must_ringcast(try_to_send(world, 0), "ringcast_gpu_send"); }

void tell_handle(struct world *world, struct helper *reader) {
  char handle[96] = "";
  snprintf(handle, sizeof handle, "%s", ringcast_writer_handle(world->ring));
  helper_tell(reader, handle, sizeof handle);
}

void introduce(struct world *world, struct helper *helpers, int readers, int count) {
  char byte;
  for (int i = 0; i < readers; i++) tell_handle(world, &helpers[i]);
  for (int i = 0; i < readers; i++) helper_hear(&helpers[i], &byte, 1);
  for (int i = 0; i < readers; i++) helper_tell(&helpers[i], &count, sizeof count);
}

void hear_all(struct helper *helpers, int readers) {
  for (int i = 0; i < readers; i++) {
    uint64_t wrong;
    helper_hear(&helpers[i], &wrong, sizeof wrong);
    if (wrong) failed("reader %d: %llu bytes of a tensor are wrong", i, (unsigned long long)wrong);
  }
}

static void figures_of_writer(const struct ringcast_gpu_info *writer) {
  figure_integer("pool_frames", (int64_t)writer->pool_frames);
  figure_integer("inline_frames", (int64_t)writer->inline_frames);
  figure_integer("writer_syncs", (int64_t)writer->syncs);
  figure_integer("full", (int64_t)writer->full);
  if (*writer->why) figure_text("why", writer->why);
}

/* It has opened the pool once, and waited for no device; but where the ring's memory is not registered, for each frame
 * that came by the ring. */
static void must_have_read_by_pool(const struct ringcast_gpu_info *reader, int number) {
  uint64_t syncs = reader->registered ? 0 : reader->inline_frames;
  if (reader->opens != 1)
    failed("reader %d has opened %llu handles, and not 1", number, (unsigned long long)reader->opens);
  if (reader->syncs > syncs)
    failed("reader %d has waited for its device %llu times", number, (unsigned long long)reader->syncs);
}

/* What all must show: frames by the pool, and that the writer has waited for the device only for what went INLINE. */
static void must_have_sent_by_pool(const struct ringcast_gpu_info *writer) {
  if (writer->pool_frames == 0) no_pool(writer->why);
  if (writer->syncs != writer->inline_frames)
    failed("the writer has waited for the device %llu times, with %llu frames that went INLINE",
           (unsigned long long)writer->syncs, (unsigned long long)writer->inline_frames);
}

struct ringcast_gpu_info finish(struct world *world, struct helper *helpers, int readers) {
  struct ringcast_gpu_info writer = info_of(world), read[MOST_READERS];
  uint64_t opens = 0, syncs = 0;
  char byte = 1;
  figures_of_writer(&writer);
  for (int i = 0; i < readers; i++) {
    helper_hear(&helpers[i], &read[i], sizeof read[i]);
    opens += read[i].opens;
    syncs += read[i].syncs;
    helper_tell(&helpers[i], &byte, 1);
    helper_end(&helpers[i]);
  }
  figure_integer("readers", readers);
  figure_integer("readers_opens", (int64_t)opens);
  figure_integer("readers_syncs", (int64_t)syncs);
  must_have_sent_by_pool(&writer);
  for (int i = 0; i < readers; i++) must_have_read_by_pool(&read[i], i);
  close_writer(world);
  return writer;
}
