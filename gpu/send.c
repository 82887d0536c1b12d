/* SPDX-License-Identifier: Apache-2.0 */
/* ringcast_gpu_send: a dict of tensors in one call, made of the other public calls. */
#include "gpu/writer.h"

#include <errno.h>
#include <stdlib.h>

#include "shm/error.h"

struct sending {
  ringcast_gpu_writer *gpu;
  const struct ringcast_gpu_item *items;
  uint32_t count;
  uint64_t *bytes;               /* of each item */
  uint64_t *offsets;             /* of each item in the pool */
  uint64_t *there;               /* 1 + the leased slot that contains the item's memory; 0: the item is copied */
  struct ringcast_gpu_put *puts; /* the copies to the pool */
  uint32_t put_count;
  bool by_pool;
  struct ringcast_gpu_extent lease;
};

/* Whether the item's bytes lie in the pool, not in the frame. */
static bool is_apart(const struct sending *sending, uint32_t i) {
  return sending->by_pool && sending->items[i].on_device && sending->bytes[i] > 0;
}

static int measure(struct sending *sending) {
  int failed = 0;
  for (uint32_t i = 0; i < sending->count && failed == 0; i++) {
    const struct ringcast_gpu_item *item = &sending->items[i];
    if (ringcast_tensor_bytes(&item->tensor, &sending->bytes[i]) < 0)
      return rc_fail(-EINVAL, "item %u: its dtype, shape or strides make no tensor", i);
    if (item->on_device) failed = rc_device_check_order(&item->tensor);
  }
  return failed;
}

static uint64_t at_of(const struct sending *sending, uint32_t i) {
  return (uint64_t)(uintptr_t)sending->items[i].tensor.data - sending->gpu->exported->memory;
}

/* A tensor in memory of ringcast_gpu_allocate needs no copy, unless a frame still refers to the memory. */
static void find_there(struct sending *sending, uint32_t i) {
  if (!sending->gpu->exported) return;
  int slot = rc_pool_find(&sending->gpu->pool, at_of(sending, i), sending->bytes[i]);
  if (slot >= 0 && sending->gpu->pool.slots[slot].frame != 0) rc_importers_reclaim(sending->gpu, true);
  if (slot >= 0 && sending->gpu->pool.slots[slot].frame == 0) sending->there[i] = (uint64_t)slot + 1;
}

/* Leases a place for the items that need a copy: gathers their sizes, and distributes the offsets. */
static int take_lease(struct sending *sending) {
  uint64_t *rows = sending->offsets;
  uint32_t used = 0, row = 0;
  for (uint32_t i = 0; i < sending->count; i++)
    if (sending->items[i].on_device && !sending->there[i] && sending->bytes[i] > 0) rows[used++] = sending->bytes[i];
  uint64_t *placed = rows + sending->count;
  int failed = ringcast_gpu_lease(sending->gpu, rows, used, placed, &sending->lease);
  if (failed != 0) return failed;
  for (uint32_t i = 0; i < sending->count; i++) {
    if (!sending->items[i].on_device || sending->bytes[i] == 0) continue;
    rows[i] = sending->there[i] ? at_of(sending, i) : placed[row++];
    if (sending->there[i]) rc_pool_attach(&sending->gpu->pool, (uint32_t)sending->there[i] - 1, sending->lease.slot);
  }
  sending->by_pool = true;
  return 0;
}

static size_t plan(const struct sending *sending, struct ringcast_frame_plan *out) {
  for (uint32_t i = 0; i < sending->count; i++) {
    const struct ringcast_gpu_item *item = &sending->items[i];
    if (is_apart(sending, i)) ringcast_plan_device_tensor(out, item->key_bytes, item->tensor.ndim);
    else ringcast_plan_tensor(out, item->key_bytes, item->tensor.ndim, sending->bytes[i]);
  }
  return ringcast_plan_bytes(out);
}

static int build_item(struct sending *sending, struct ringcast_frame_builder *builder, uint32_t i,
                      ringcast_stream stream, bool *fetched) {
  const struct ringcast_gpu_item *item = &sending->items[i];
  struct ringcast_tensor tensor = item->tensor;
  void *place;
  uint64_t bytes;
  if (!item->on_device) return ringcast_build_tensor(builder, item->key, item->key_bytes, &tensor);
  tensor.flags |= RINGCAST_ITEM_CUDA;
  if (is_apart(sending, i)) {
    if (!sending->there[i])
      sending->puts[sending->put_count++] =
          (struct ringcast_gpu_put){.tensor = &item->tensor, .offset = sending->offsets[i]};
    return ringcast_build_device_tensor(builder, item->key, item->key_bytes, &tensor, sending->offsets[i]);
  }
  int rc = ringcast_build_tensor_in_place(builder, item->key, item->key_bytes, &tensor, &place, &bytes);
  if (rc < 0 || bytes == 0) return rc;
  *fetched = true;
  return ringcast_gpu_fetch(sending->gpu, &tensor, place, stream);
}

/* Into the span that is reserved. */
static int fill(struct sending *sending, const struct ringcast_span *span, const struct ringcast_frame_plan *planned,
                uint32_t tag, ringcast_stream stream, size_t *out_bytes) {
  struct ringcast_frame_builder builder;
  bool fetched = false;
  int rc = ringcast_build_begin(&builder, span->data, span->bytes, planned, RINGCAST_ROOT_DICT, tag);
  for (uint32_t i = 0; i < sending->count && rc == 0; i++) rc = build_item(sending, &builder, i, stream, &fetched);
  const struct ringcast_gpu_extent *lease = &sending->lease;
  if (rc == 0 && sending->by_pool) rc = ringcast_build_device(&builder, lease->slot, lease->epoch, lease->generation);
  if (rc == 0) rc = ringcast_build_end(&builder, out_bytes);
  if (fetched) { /* also after a failure: the copies to the ring's memory must be complete */
    int waited = ringcast_gpu_wait(sending->gpu, stream);
    if (rc == 0) rc = waited;
  }
  return rc;
}

static int send_planned(struct sending *sending, uint32_t tag, ringcast_stream stream, int64_t timeout_ns) {
  struct ringcast_frame_plan planned = {0};
  struct ringcast_span span;
  size_t bytes = plan(sending, &planned);
  int rc = ringcast_writer_reserve(sending->gpu->writer, bytes, timeout_ns, &span);
  if (rc == 0) {
    rc = fill(sending, &span, &planned, tag, stream, &bytes);
    if (rc == 0 && sending->by_pool)
      rc = ringcast_gpu_commit(sending->gpu, &sending->lease, sending->puts, sending->put_count, stream, bytes);
    else if (rc == 0) rc = ringcast_writer_commit(sending->gpu->writer, bytes, RINGCAST_KIND_TENSORS);
    if (rc != 0) ringcast_writer_abort(sending->gpu->writer);
  }
  if (rc != 0 && sending->by_pool) ringcast_gpu_drop(sending->gpu, &sending->lease);
  return rc;
}

int ringcast_gpu_send(ringcast_gpu_writer *gpu, const struct ringcast_gpu_item *items, uint32_t count, uint32_t tag,
                      uint32_t flags, ringcast_stream stream, int64_t timeout_ns) {
  struct sending sending = {.gpu = gpu, .items = items, .count = count};
  bool on_device = false;
  if ((flags & ~RINGCAST_GPU_NO_INLINE) != 0) return rc_fail(-EINVAL, "flags are 0x%x: one is not known", flags);
  uint64_t *memory = calloc((size_t)count * 6 + 1, sizeof *memory); /* a put has two words */
  if (!memory) return rc_fail(-ENOMEM, "out of memory");
  sending.puts = (struct ringcast_gpu_put *)(memory + (size_t)count * 4);
  sending.bytes = memory;
  sending.there = memory + count;
  sending.offsets = memory + (size_t)count * 2;
  int rc = measure(&sending);
  for (uint32_t i = 0; i < count && rc == 0; i++) {
    if (!items[i].on_device || sending.bytes[i] == 0) continue;
    on_device = true;
    find_there(&sending, i);
  }
  if (rc == 0 && on_device) {
    rc = take_lease(&sending);
    bool may_inline = !(flags & RINGCAST_GPU_NO_INLINE);
    if (may_inline && (rc == -EAGAIN || rc == -EMSGSIZE)) rc = 0;
  }
  if (rc == 0) rc = send_planned(&sending, tag, stream, timeout_ns);
  free(memory);
  return rc;
}
