/* SPDX-License-Identifier: Apache-2.0 */
/* Frames built of items as they are read: what is read of such a frame is the same items. */
#ifndef RC_TESTS_FRAME_ITEMS_H
#define RC_TESTS_FRAME_ITEMS_H

#include "ringcast/object.h"
#include "tests/support/suite.h"

#define HASHES ((uint32_t)(RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3))

/* Of an item with a key, and with more flags or 0. */
#define KEY(text, more) \
  .key = (text), .key_bytes = sizeof(text) - 1, .flags = RINGCAST_ITEM_KEYED | (more)

static inline void item_plan(struct ringcast_frame_plan *plan, const struct ringcast_item *item) {
  if (item->placement != RINGCAST_PLACEMENT_INLINE)
    ringcast_plan_device_tensor(plan, item->key_bytes, item->ndim);
  else if (item->kind == RINGCAST_ITEM_TENSOR)
    ringcast_plan_tensor(plan, item->key_bytes, item->ndim, item->bytes);
  else ringcast_plan_item(plan, item->key_bytes, item->bytes);
}

/* The item's data is in C order. */
static inline struct ringcast_tensor tensor_of(const struct ringcast_item *item) {
  return (struct ringcast_tensor){.data = item->data,
                                  .dtype = item->dtype,
                                  .ndim = item->ndim,
                                  .shape = item->shape,
                                  .flags = item->flags & ~(HASHES | RINGCAST_ITEM_KEYED)};
}

static inline int tensor_build(struct ringcast_frame_builder *builder,
                               const struct ringcast_item *item) {
  struct ringcast_tensor tensor = tensor_of(item);
  int rc = item->placement == RINGCAST_PLACEMENT_INLINE
               ? ringcast_build_tensor(builder, item->key, item->key_bytes, &tensor)
               : ringcast_build_device_tensor(builder, item->key, item->key_bytes, &tensor,
                                              item->device_offset);
  if (rc < 0 || !(item->flags & HASHES)) return rc;
  return ringcast_build_hash(builder, builder->next - 1, item->flags & HASHES, item->hash);
}

static inline int item_build(struct ringcast_frame_builder *builder,
                             const struct ringcast_item *item) {
  switch (item->kind) {
  case RINGCAST_ITEM_TENSOR: return tensor_build(builder, item);
  case RINGCAST_ITEM_FLOAT:
    return ringcast_build_float(builder, item->key, item->key_bytes, item->scalar.f);
  case RINGCAST_ITEM_NONE:
  case RINGCAST_ITEM_BOOL:
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_LEAF:
    return ringcast_build_scalar(builder, item->kind, item->key, item->key_bytes, item->scalar.i);
  case RINGCAST_ITEM_OBJECT:
    return ringcast_build_object(builder, item->key, item->key_bytes, item->data, item->bytes,
                                 (uint32_t)item->scalar.i,
                                 (uint32_t)((uint64_t)item->scalar.i >> 32), NULL);
  default:
    return ringcast_build_data(builder, item->kind, item->key, item->key_bytes, item->data,
                               item->bytes, item->flags & ~RINGCAST_ITEM_KEYED, NULL);
  }
}

#endif
