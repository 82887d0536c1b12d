/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "gpu/writer.h"
#include "tests/process/gpu/broadcast.h"

struct producer {
  struct stage stage;
  ringcast_writer *writer;
  ringcast_gpu_writer *gpu;
  struct dice dice;
  rc_cu_ptr sources[STREAMS]; /* the tensors of one message each, written over and over */
  void *image;
  uint64_t on_device, by_pool; /* messages with tensors of a device, since the first that went by the pool */
};

/* As if the pool had been in use for long: the slots' words, and what is known of them. */
static void set_generation(ringcast_gpu_writer *gpu, uint64_t generation) {
  for (uint32_t i = 0; generation != 0 && i < gpu->pool.slot_count; i++) {
    gpu->pool.slots[i].generation = generation;
    rc_semaphore_store(rc_gpu_ready(&gpu->exported->segment, i), generation);
  }
}

static void open_all(struct producer *producer) {
  struct ringcast_writer_options ring = {
      .size = sizeof ring, .readers = 24, .capacity = options.ring, .on_death = RINGCAST_EVICT};
  struct ringcast_gpu_writer_options gpu = {.size = sizeof gpu,
                                            .device = -1,
                                            .pool_bytes = options.pool != 0 ? options.pool : RINGCAST_NO_POOL,
                                            .slots = (uint32_t)options.slots};
  *producer = (struct producer){.dice = dice_of(2, 0)};
  stage_open(&producer->stage, 0);
  for (int i = 0; i < STREAMS; i++) must(producer->stage.cuda->mem_alloc(&producer->sources[i], plan_most()) == 0);
  producer->image = malloc(plan_most());
  must(ringcast_writer_create_ex(&ring, &producer->writer) == 0);
  must(ringcast_gpu_writer_open(producer->writer, &gpu, &producer->gpu) == 0);
  if (producer->gpu->exported) set_generation(producer->gpu, options.generation);
  strcpy(board->handle, ringcast_writer_handle(producer->writer));
  atomic_store(&board->has_handle, true);
}

static struct ringcast_gpu_info look(struct producer *producer) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  must(ringcast_gpu_writer_info(producer->gpu, &info) == 0);
  return info;
}

/* Puts the tensors where they are sent from, in the order of the stream; those of the host behind each other. */
static void lay_out(struct producer *producer, const struct plan *plan, int stream, uint8_t *host,
                    struct ringcast_gpu_item *out) {
  uint64_t at = 0;
  for (uint32_t i = 0; i < plan->count; i++) {
    const struct item *item = &plan->items[i];
    out[i] = (struct ringcast_gpu_item){.key = item->key, .key_bytes = strlen(item->key), .tensor = item->tensor};
    out[i].on_device = item->on_device;
    uint8_t *image = item->on_device ? producer->image : host + at;
    plan_image(item, image);
    rc_cu_ptr source = producer->sources[stream] + at;
    if (item->on_device && item->span > 0)
      must(producer->stage.cuda->copy_htod(source, image, item->span, producer->stage.streams[stream]) == 0);
    out[i].tensor.data = item->on_device ? (const void *)(uintptr_t)(source + item->first) : image + item->first;
    at += (item->span + 255) & ~(uint64_t)255;
  }
}

/* A place in the pool that comes to nothing, mostly with a copy into it that may be late. */
static void lease_and_drop(struct producer *producer) {
  struct ringcast_gpu_extent lease;
  uint64_t bytes = 1 + throw(&producer->dice, options.typical < JUNK_BYTES ? options.typical : JUNK_BYTES), offset;
  int stream = (int) throw(&producer->dice, STREAMS);
  rc_cu_stream on = producer->stage.streams[stream];
  if (one_of(&producer->dice, 3)) {
    if (ringcast_gpu_lease(producer->gpu, &bytes, 1, &offset, &lease) != 0) return;
  } else {
    ringcast_device_ptr to;
    if (ringcast_gpu_allocate(producer->gpu, bytes, on, &to, &lease) != 0) return;
    stage_delay(&producer->stage, stream);
    must(producer->stage.cuda->copy_dtod(to, producer->stage.junk, bytes, on) == 0);
  }
  ringcast_gpu_drop(producer->gpu, &lease);
  self->drops++;
}

/* With a pool that is never full it is the words alone that hold anybody up. */
static void keep_below(struct producer *producer) {
  if (options.flood || !one_of(&producer->dice, 3)) return;
  for (struct ringcast_gpu_info info = look(producer);
       info.slots_used * 4 > info.slots * 3 || info.bytes_used * 2 > info.pool_bytes; info = look(producer))
    nap(200);
}

/* With NO_INLINE: again until there is room. But a consumer that has just come opens the pool only by a frame. */
static int send_somehow(struct producer *producer, const struct ringcast_gpu_item *items, uint32_t count,
                        uint64_t message, rc_cu_stream stream) {
  uint32_t flags = options.no_inline ? RINGCAST_GPU_NO_INLINE : 0;
  for (;;) {
    int rc = ringcast_gpu_send(producer->gpu, items, count, (uint32_t)message, flags, stream, RINGCAST_FOREVER);
    if (rc == 0 || !options.no_inline || flags == 0) return rc;
    if (rc == -EMSGSIZE || look(producer).way != RINGCAST_GPU_WAY_POOL) flags = 0;
    else if (rc != -EAGAIN) return rc;
    else nap(200);
  }
}

static void send_one(struct producer *producer, uint64_t message) {
  struct ringcast_gpu_item items[MOST_TENSORS];
  struct plan plan;
  int stream = (int) throw(&producer->dice, STREAMS);
  rc_cu_stream on = producer->stage.streams[stream];
  uint8_t *host = malloc(plan_most());
  plan_make(&plan, message);
  stage_delay(&producer->stage, stream);
  lay_out(producer, &plan, stream, host, items);
  uint64_t by_pool = producer->gpu->pool_frames;
  long waits = waits_so_far();
  int rc = send_somehow(producer, items, plan.count, message, on);
  if (rc != 0) give_up("message %llu: %d: %s", (unsigned long long)message, rc, ringcast_last_error());
  bool went = producer->gpu->pool_frames != by_pool;
  if ((went || plan.device_bytes == 0) && waits_so_far() != waits)
    give_up("a send by the pool has waited for a device");
  if (plan.device_bytes > 0 && (went || producer->by_pool > 0)) producer->on_device++;
  if (went) producer->by_pool++;
  stage_spoil(&producer->stage, producer->sources[stream], plan_most(), on);
  memset(host, 0xe7, plan_most());
  free(host);
  self->messages++;
  self->by_pool += went;
  self->by_ring += !went && plan.device_bytes > 0;
  atomic_store(&board->sent, message + 1);
  step();
}

/* Until what was sent has come: all slots are free again. */
static void await_readers(struct producer *producer) {
  for (uint64_t i = 1; i <= options.consumers; i++)
    while (!atomic_load(&board->participants[i].has_read)) nap(500);
  while (look(producer).slots_used > 0) {
    struct ringcast_gpu_info info = look(producer);
    snprintf(self->text, sizeof self->text, "%llu slots and %llu bytes are under way still",
             (unsigned long long)info.slots_used, (unsigned long long)info.bytes_used);
    nap(500);
  }
  self->text[0] = '\0';
}

static void close_all(struct producer *producer) {
  self->full = producer->gpu->full;
  if (options.kills > 0 || one_of(&producer->dice, 2)) await_readers(producer);
  ringcast_gpu_writer_close(producer->gpu);
  ringcast_writer_close(producer->writer);
  for (uint64_t i = 1; i <= options.consumers + options.guests; i++)
    while (!atomic_load(&board->participants[i].has_left)) nap(500);
  rc_exported_tidy(rc_gpu_close_ns); /* as the next open does */
  for (int i = 0; i < STREAMS; i++) must(producer->stage.cuda->mem_free(producer->sources[i]) == 0);
  free(producer->image);
  stage_close(&producer->stage);
}

void be_producer(void) {
  static struct producer producer;
  open_all(&producer);
  must(ringcast_writer_wait_readers(producer.writer, (uint32_t)options.consumers, RINGCAST_FOREVER) >= 0);
  bool has_pool = options.pool != 0 && producer.gpu->exported;
  for (uint64_t message = 0; message < options.messages; message++) {
    send_one(&producer, message);
    if (message == 0 && has_pool)
      while (look(&producer).way != RINGCAST_GPU_WAY_POOL) nap(500);
    if (one_of(&producer.dice, options.drops)) lease_and_drop(&producer);
    if (has_pool) keep_below(&producer);
  }
  if (producer.by_pool * 100 < producer.on_device * options.expect_pool)
    give_up("only %llu of %llu frames went by the pool", (unsigned long long)producer.by_pool,
            (unsigned long long)producer.on_device);
  if (options.expect_full && producer.gpu->full == 0) give_up("the pool was never full");
  close_all(&producer);
  exit(0);
}
