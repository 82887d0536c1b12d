/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>

#include "tests/process/gpu/broadcast.h"

enum { CHECKS = 6 };

/* A message that was copied out, and is looked at when its stream has come so far. */
struct check {
  bool busy;
  uint64_t message, value;
  uint32_t items; /* a bit for each that was copied */
  uint64_t at[MOST_TENSORS];
  rc_cu_ptr device;
  uint8_t *host;
};

struct consumer {
  struct stage stage;
  struct views *views;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct dice dice;
  struct check checks[CHECKS];
  uint32_t next_check;
  uint64_t first, expected, last; /* messages; `first` + 1: has received one */
  bool is_guest, has_one;
  uint64_t frames; /* that a guest stays for */
};

static void open_all(struct consumer *consumer, uint32_t index) {
  *consumer = (struct consumer){.dice = dice_of(4, index), .is_guest = index > options.consumers};
  consumer->frames = 5 + throw(&consumer->dice, options.messages / 4 + 1);
  while (!atomic_load(&board->has_handle)) nap(500);
  stage_open(&consumer->stage, index);
  consumer->views = views_start(&consumer->stage, CHECKS);
  for (int i = 0; i < CHECKS; i++) {
    must(consumer->stage.cuda->mem_alloc(&consumer->checks[i].device, plan_most()) == 0);
    consumer->checks[i].host = stage_host(&consumer->stage, plan_most());
  }
  int rc = ringcast_reader_attach(board->handle, &consumer->reader);
  if (rc == -ENOENT && consumer->is_guest) exit(0); /* it came too late */
  if (rc != 0) give_up("can't attach: %s", ringcast_last_error());
  must(ringcast_gpu_reader_open(consumer->reader, NULL, &consumer->gpu) == 0);
}

/* ---- Checking --------------------------------------------------------------------------------------------------- */

static void finish_check(struct consumer *consumer, struct check *check) {
  struct plan plan;
  bool corrupt = false;
  if (!check->busy) return;
  stage_await(&consumer->stage, (uint32_t)(check - consumer->checks), check->value);
  plan_make(&plan, check->message);
  for (uint32_t i = 0; i < plan.count; i++) {
    if (!(check->items >> i & 1)) continue;
    self->checked++;
    corrupt |= !plan_matches(&plan.items[i], check->host + check->at[i]);
  }
  self->corrupt += corrupt;
  check->busy = false;
}

/* What the frame says of a tensor, without its bytes. */
static void look_at_item(const struct item *item, const struct ringcast_item *found) {
  bool same = found->kind == RINGCAST_ITEM_TENSOR && found->bytes == item->bytes &&
              memcmp(&found->dtype, &item->tensor.dtype, sizeof found->dtype) == 0 &&
              found->ndim == item->tensor.ndim && found->key_bytes == strlen(item->key) &&
              memcmp(found->key, item->key, found->key_bytes) == 0 &&
              memcmp(found->shape, item->shape, (size_t)found->ndim * sizeof *found->shape) == 0 &&
              !(found->flags & RINGCAST_ITEM_CUDA) == !item->on_device;
  bool placed = found->placement == RINGCAST_PLACEMENT_INLINE || (item->on_device && item->bytes > 0);
  if (!same || !placed) give_up("an item is not what was sent");
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

/* It is read where it lies: later, or at once, and then let go of while the take goes on. */
static bool try_view(struct consumer *consumer, struct check *check, struct ringcast_gpu_take *take,
                     const struct ringcast_item *item, const struct plan *plan, uint32_t index, uint64_t at) {
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  if (item->placement != RINGCAST_PLACEMENT_POOL || !one_of(&consumer->dice, options.views) ||
      !views_have_room(consumer->views))
    return false;
  must(ringcast_gpu_map(consumer->gpu, take, item, &where, &hold) == 0);
  self->views++;
  if (!one_of(&consumer->dice, 3)) {
    views_add(consumer->views, hold, where, take->stream, plan->message, index);
    return true;
  }
  must(consumer->stage.cuda->copy_dtoh(check->host + at, where, item->bytes, take->stream) == 0);
  ringcast_gpu_unmap(hold);
  check->items |= 1u << index;
  check->at[index] = at;
  return true;
}

/* From the device to where it is checked, and then written over: all in the order of the stream. */
static void check_later(struct consumer *consumer, struct check *check, struct ringcast_gpu_take *take,
                        const struct ringcast_item *item, uint32_t index, uint64_t at) {
  rc_cu_ptr to = check->device + at;
  if (item->bytes > 0) must(consumer->stage.cuda->copy_dtoh(check->host + at, to, item->bytes, take->stream) == 0);
  stage_spoil(&consumer->stage, to, item->bytes, take->stream);
  check->items |= 1u << index;
  check->at[index] = at;
}

/* Whether the reader has its pinned buffer. */
static bool has_buffer(const struct consumer *consumer) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  must(ringcast_gpu_reader_info(consumer->gpu, &info) == 0);
  return info.registered;
}

/* False: a call has waited for the device, for all that is known. */
static bool read_items(struct consumer *consumer, struct check *check, const struct ringcast_frame_reader *frame,
                       struct ringcast_gpu_take *take, const struct plan *plan) {
  bool all_later = true, has_copied = false;
  uint64_t at = 0;
  for (uint32_t i = 0; i < plan->count; i++) {
    const struct item *planned = &plan->items[i];
    struct ringcast_item item;
    must(ringcast_frame_item(frame, i, &item) == 0);
    look_at_item(planned, &item);
    if (!planned->on_device && one_of(&consumer->dice, 2)) {
      self->checked++;
      self->corrupt += !plan_matches(planned, item.data);
    } else if (!try_view(consumer, check, take, &item, plan, i, at)) {
      has_copied |= item.placement == RINGCAST_PLACEMENT_INLINE && item.bytes > 0;
      must(ringcast_gpu_copy_out(consumer->gpu, take, &item, check->device + at) == 0);
      check_later(consumer, check, take, &item, i, at);
    }
    at += (planned->bytes + 255) & ~(uint64_t)255;
  }
  if (one_of(&consumer->dice, 2)) must(ringcast_gpu_copy_all(consumer->gpu, take, NULL, 0, RINGCAST_GPU_LAST) == 0);
  if (has_copied) all_later = has_buffer(consumer);
  return all_later;
}

static void take_frame(struct consumer *consumer, const struct ringcast_frame *frame,
                       const struct ringcast_frame_reader *opened, const struct plan *plan) {
  struct check *check = &consumer->checks[consumer->next_check++ % CHECKS];
  struct ringcast_gpu_take take;
  int stream = (int) throw(&consumer->dice, STREAMS);
  rc_cu_stream on = consumer->stage.streams[stream];
  finish_check(consumer, check);
  stage_delay(&consumer->stage, stream);
  long opens = fake_cuda()->calls("cuIpcOpenMemHandle"), waits = waits_so_far();
  int rc = ringcast_gpu_begin(consumer->gpu, frame, on, &take);
  if (rc == -ECONNABORTED && !consumer->has_one) { /* the one that was being sent when it attached, and no other */
    self->passed++;
    must(ringcast_gpu_release(consumer->gpu, frame) == 0);
    return;
  }
  if (rc != 0) give_up("message %llu: begin: %d: %s", (unsigned long long)plan->message, rc, ringcast_last_error());
  if (fake_cuda()->calls("cuIpcOpenMemHandle") != opens) waits = waits_so_far(); /* to open it is to try it */
  *check = (struct check){
      .busy = true, .message = plan->message, .value = check->value + 1, .device = check->device, .host = check->host};
  bool may_not_wait = read_items(consumer, check, opened, &take, plan);
  stage_mark(&consumer->stage, (uint32_t)(check - consumer->checks), check->value, on);
  if (self->dies && consumer->frames == 0) raise(SIGKILL);
  rc = ringcast_gpu_end(consumer->gpu, &take);
  if (rc != 0) give_up("message %llu: end: %d: %s", (unsigned long long)plan->message, rc, ringcast_last_error());
  if (may_not_wait && waits_so_far() != waits) give_up("a frame was read, and the host has waited for the device");
  self->by_pool += opened->device_epoch != 0;
  self->by_ring += opened->device_epoch == 0 && plan->device_bytes > 0;
}

/* False: there is no more for it. */
static bool read_one(struct consumer *consumer) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader opened;
  struct plan plan;
  int rc = ringcast_gpu_next(consumer->gpu, RINGCAST_FOREVER, &frame);
  if (rc == -EPIPE && (consumer->is_guest || consumer->expected == options.messages)) return false;
  if (rc != 0) give_up("next: %d: %s", rc, ringcast_last_error());
  must(ringcast_frame_open(&opened, frame.data, frame.bytes) == 0);
  if (consumer->has_one && opened.tag != consumer->expected)
    give_up("message %u came in place of %llu", opened.tag, (unsigned long long)consumer->expected);
  consumer->expected = opened.tag + 1;
  plan_make(&plan, opened.tag);
  must(opened.count == plan.count);
  if (consumer->is_guest && consumer->frames > 0) consumer->frames--;
  if (one_of(&consumer->dice, 8)) nap(throw(&consumer->dice, options.slow + 1));
  if (plan.message > 0 && one_of(&consumer->dice, options.releases)) {
    must(ringcast_gpu_release(consumer->gpu, &frame) == 0);
    self->released++;
  } else {
    take_frame(consumer, &frame, &opened, &plan);
  }
  consumer->has_one = true;
  self->messages++;
  step();
  return consumer->expected < options.messages && !(consumer->is_guest && consumer->frames == 0 && !self->dies);
}

static void close_gpu(struct consumer *consumer) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  must(ringcast_gpu_reader_info(consumer->gpu, &info) == 0);
  long opens = fake_cuda()->calls("cuIpcOpenMemHandle");
  if (opens > 1 || (self->by_pool > 0 && opens != 1) || (long)info.opens != opens)
    give_up("the pool was opened %ld times", opens);
  must(ringcast_gpu_check(consumer->gpu) == 0);
  ringcast_gpu_reader_close(consumer->gpu);
}

static void close_all(struct consumer *consumer) {
  bool before = one_of(&consumer->dice, 2); /* while tensors may be looked at still */
  if (before) close_gpu(consumer);
  if (before) ringcast_reader_close(consumer->reader);
  views_end(consumer->views);
  for (int i = 0; i < CHECKS; i++) finish_check(consumer, &consumer->checks[i]);
  if (!before) close_gpu(consumer);
  if (!before) ringcast_reader_close(consumer->reader);
  for (int i = 0; i < CHECKS; i++) {
    must(consumer->stage.cuda->mem_free(consumer->checks[i].device) == 0);
    stage_host_free(&consumer->stage, consumer->checks[i].host, plan_most());
  }
  stage_close(&consumer->stage);
}

void be_consumer(uint32_t index) {
  static struct consumer consumer;
  open_all(&consumer, index);
  while (read_one(&consumer)) continue;
  for (int i = 0; i < CHECKS; i++) finish_check(&consumer, &consumer.checks[i]);
  atomic_store(&self->has_read, true);
  close_all(&consumer);
  exit(0);
}
