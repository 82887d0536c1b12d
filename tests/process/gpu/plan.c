/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/process/gpu/broadcast.h"

enum { MOST_STRIDED = 64 }; /* elements */

static const struct ringcast_dtype dtypes[] = {
    {2, 32, 1}, {4, 16, 1}, {2, 16, 1}, {2, 64, 1}, {0, 8, 1},  {0, 32, 1}, {0, 64, 1},
    {1, 8, 1},  {6, 8, 1},  {5, 64, 1}, {2, 32, 4}, {10, 8, 1}, {0, 4, 1},  {1, 16, 1},
};

/* Any shape of about so many elements. */
static void make_shape(struct item *item, struct dice *dice, uint64_t elements) {
  uint64_t left = elements;
  item->tensor.ndim = 1 + (int32_t) throw(dice, MOST_DIMS);
  for (int32_t i = 0; i < item->tensor.ndim; i++) {
    uint64_t most = left < 8 ? left : 8;
    item->shape[i] = i + 1 < item->tensor.ndim ? 1 + (int64_t) throw(dice, most) : (int64_t)left;
    left /= (uint64_t)item->shape[i];
  }
}

/* Dimensions lie in memory in any order, with gaps, backwards, or all in one place. */
static void make_strides(struct item *item, struct dice *dice) {
  int32_t order[MOST_DIMS], dims = item->tensor.ndim;
  int64_t step = 1, first = 0;
  for (int32_t i = 0; i < dims; i++) {
    int32_t other = (int32_t) throw(dice, (uint64_t)i + 1);
    order[i] = order[other];
    order[other] = i;
  }
  for (int32_t i = 0; i < dims; i++) {
    int32_t dim = order[i];
    int64_t stride = step * (one_of(dice, 4) ? 2 : 1);
    if (one_of(dice, 6)) {
      item->strides[dim] = 0;
      continue;
    }
    bool backwards = one_of(dice, 4);
    item->strides[dim] = backwards ? -stride : stride;
    if (backwards) first += stride * (item->shape[dim] - 1);
    step = stride * item->shape[dim];
  }
  uint64_t bytes = (uint64_t)item->tensor.dtype.bits * item->tensor.dtype.lanes / 8;
  item->tensor.strides = item->strides;
  item->span = (uint64_t)step * bytes;
  item->first = (uint64_t)first * bytes;
}

static void make_item(struct item *item, struct dice *dice, uint64_t message, uint32_t index, uint64_t bytes) {
  *item = (struct item){.number = mix(options.seed * 1000003 + message * 16 + index), .on_device = !one_of(dice, 4)};
  snprintf(item->key, sizeof item->key, "t%u", index);
  item->tensor.dtype = dtypes[throw(dice, sizeof dtypes / sizeof *dtypes)];
  item->tensor.shape = item->shape;
  uint32_t bits = (uint32_t)item->tensor.dtype.bits * item->tensor.dtype.lanes;
  uint64_t elements = bytes * 8 / bits;
  bool strided = !item->on_device && bits % 8 == 0 && one_of(dice, 2);
  if (!one_of(dice, 12)) make_shape(item, dice, elements > 0 ? elements : 1); /* else it has no dimension */
  if (item->tensor.ndim > 0 && one_of(dice, 16)) item->shape[throw(dice, (uint64_t)item->tensor.ndim)] = 0;
  must(ringcast_tensor_bytes(&item->tensor, &item->bytes) == 0);
  item->span = item->bytes;
  if (item->bytes > 0 && strided && item->bytes * 8 / bits <= MOST_STRIDED) make_strides(item, dice);
}

/* One tensor of so many bytes, on the device. */
static void make_one(struct plan *plan, uint64_t bytes) {
  struct item *item = &plan->items[0];
  *item = (struct item){.key = "t0", .on_device = true, .number = mix(options.seed + plan->message)};
  item->shape[0] = (int64_t)bytes;
  item->tensor = (struct ringcast_tensor){.dtype = {0, 8, 1}, .ndim = 1};
  item->bytes = item->span = bytes;
  plan->count = 1;
}

void plan_make(struct plan *plan, uint64_t message) {
  struct dice dice = dice_of(1, message);
  *plan = (struct plan){.message = message};
  if (message == 0) {
    make_one(plan, 100); /* by it consumers learn of the pool */
  } else if (options.huge != 0 && message % options.huge == options.huge - 1) {
    make_one(plan, options.pool + (message / options.huge % 2 != 0 ? 0 : 4096)); /* it just fits, or does not */
  } else {
    plan->count = (uint32_t) throw(&dice, MOST_TENSORS);
    for (uint32_t i = 0; i < plan->count; i++) {
      uint64_t most = one_of(&dice, 2) ? 512 : one_of(&dice, 8) ? options.typical * 8 : options.typical;
      make_item(&plan->items[i], &dice, message, i, throw(&dice, most));
    }
  }
  for (uint32_t i = 0; i < plan->count; i++) {
    struct item *item = &plan->items[i];
    item->tensor.shape = item->shape;
    if (item->on_device) plan->device_bytes += item->bytes;
  }
}

uint64_t plan_most(void) {
  uint64_t tensors = MOST_TENSORS * (options.typical * 8 + (1 << 16));
  uint64_t huge = options.huge != 0 ? options.pool + 8192 : 0;
  return ((tensors > huge ? tensors : huge) + 4095) & ~(uint64_t)4095;
}

void plan_image(const struct item *item, void *out) { pattern_fill(out, item->span, item->number); }

bool plan_matches(const struct item *item, const void *packed) {
  if (!item->tensor.strides) return pattern_matches(packed, item->bytes, item->number);
  uint8_t *image = malloc(item->span + item->bytes), *expected = image + item->span;
  struct ringcast_tensor tensor = item->tensor;
  plan_image(item, image);
  tensor.data = image + item->first;
  must(ringcast_tensor_pack(&tensor, expected) == 0);
  bool matches = memcmp(expected, packed, item->bytes) == 0;
  free(image);
  return matches;
}
