/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds a frame front to back, in one pass over three regions: entries, then meta (keys and
 * dimensions), then data.
 *
 * The plan has counted the entries, so the offsets of all three regions are known at the start.
 * Each call appends to the regions in the same order and with the same rounding as the plan, so the
 * plan and the frame end at the same byte. The builder writes every byte and fills gaps with zeros:
 * the memory may hold bytes of an earlier frame, and equal content must give equal bytes.
 */
#include "ring/frame.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static void plan_add(struct ringcast_frame_plan *plan, uint64_t data_bytes, uint64_t alignment) {
  if (plan->count < UINT32_MAX) plan->count++;
  if (data_bytes > 0) plan->data = rc_add(rc_align(plan->data, alignment), data_bytes);
}

void ringcast_plan_tensor(struct ringcast_frame_plan *plan, size_t key_bytes, int32_t ndim,
                          uint64_t data_bytes) {
  plan->meta = rc_add(plan->meta, key_bytes);
  if (ndim < 0 || ndim > RINGCAST_MAX_NDIM) {
    plan->meta = UINT64_MAX; /* no frame has so many dimensions */
  } else if (ndim > 0) {
    uint64_t dims = rc_align(plan->meta, RC_PAYLOAD_ALIGN);
    plan->meta = rc_add(dims, (uint64_t)ndim * 2 * sizeof(int64_t));
  }
  plan_add(plan, data_bytes, RC_PAYLOAD_LINE);
}

void ringcast_plan_item(struct ringcast_frame_plan *plan, size_t key_bytes, uint64_t data_bytes) {
  plan->meta = rc_add(plan->meta, key_bytes);
  plan_add(plan, data_bytes, RC_PAYLOAD_ALIGN);
}

void ringcast_plan_device_tensor(struct ringcast_frame_plan *plan, size_t key_bytes, int32_t ndim) {
  ringcast_plan_tensor(plan, key_bytes, ndim, 0);
}

uint64_t ringcast_plan_bytes(const struct ringcast_frame_plan *plan) {
  if (plan->count > RINGCAST_MAX_ENTRIES) return UINT64_MAX;
  uint64_t meta_end = rc_add(rc_payload_meta(plan->count), plan->meta);
  /* The offsets of keys and dimensions have 32 bits. */
  if (meta_end > UINT32_MAX) return UINT64_MAX;
  if (plan->data == 0) return meta_end;
  return rc_add(rc_payload_line(meta_end), plan->data);
}

int ringcast_build_begin(struct ringcast_frame_builder *builder, void *memory, size_t bytes,
                         const struct ringcast_frame_plan *plan, enum ringcast_root root,
                         uint32_t tag) {
  if (!memory || (root != RINGCAST_ROOT_DICT && root != RINGCAST_ROOT_VALUE)) return -EINVAL;
  if (root == RINGCAST_ROOT_VALUE && plan->count == 0) return -EINVAL;
  uint64_t need = ringcast_plan_bytes(plan);
  if (need == UINT64_MAX || need > bytes) return -EMSGSIZE;
  uint64_t meta = rc_payload_meta(plan->count);
  struct ringcast_frame_header header = {.magic = RINGCAST_FRAME_MAGIC,
                                         .version = RC_PAYLOAD_OLDEST, /* see need_version */
                                         .root = (uint16_t)root,
                                         .tag = tag,
                                         .count = plan->count,
                                         .meta_bytes = plan->meta};
  /* Until ringcast_build_end, `bytes` is 0, and readers refuse the frame. */
  memcpy(memory, &header, sizeof header);
  *builder = (struct ringcast_frame_builder){.base = memory,
                                             .capacity = need,
                                             .count = plan->count,
                                             .meta = meta,
                                             .meta_end = meta + plan->meta,
                                             .data = meta + plan->meta};
  return 0;
}

/* By copies: the memory need not be aligned. */
static struct ringcast_frame_header header_of(const struct ringcast_frame_builder *builder) {
  struct ringcast_frame_header header;
  memcpy(&header, builder->base, sizeof header);
  return header;
}

static void header_put(struct ringcast_frame_builder *builder,
                       const struct ringcast_frame_header *header) {
  memcpy(builder->base, header, sizeof *header);
}

/* Raises the version that a reader must support. */
static void need_version(struct ringcast_frame_builder *builder, uint16_t version) {
  struct ringcast_frame_header header = header_of(builder);
  if (header.version >= version) return;
  header.version = version;
  header_put(builder, &header);
}

/* The offset of the next data of `kind`. The first data of a frame starts on a line, whatever the
 * kind. */
static uint64_t data_place(const struct ringcast_frame_builder *builder, uint16_t kind) {
  if (kind == RINGCAST_ITEM_TENSOR || builder->data == builder->meta_end)
    return rc_payload_line(builder->data);
  return rc_align(builder->data, RC_PAYLOAD_ALIGN);
}

static void zero(struct ringcast_frame_builder *builder, uint64_t from, uint64_t to) {
  memset(builder->base + from, 0, to - from);
}

/* Whether the entry's data is in the frame. */
static bool has_data(const struct ringcast_frame_entry *entry) {
  return entry->bytes > 0 && entry->placement == RINGCAST_PLACEMENT_INLINE;
}

/* Sets the entry's offsets of key, dimensions and data from their sizes. An empty part has offset
 * 0. */
static int entry_place(const struct ringcast_frame_builder *builder,
                       struct ringcast_frame_entry *entry) {
  uint64_t key = builder->meta, dims = key + entry->key_bytes, end = dims;
  if (entry->ndim > 0) {
    dims = rc_align(dims, RC_PAYLOAD_ALIGN);
    end = dims + (uint64_t)entry->ndim * 2 * sizeof(int64_t);
  }
  if (builder->next >= builder->count || end > builder->meta_end) return -ENOSPC;
  if (has_data(entry)) {
    entry->offset = data_place(builder, entry->kind);
    if (entry->offset > builder->capacity || entry->bytes > builder->capacity - entry->offset)
      return -ENOSPC;
  }
  if (entry->key_bytes > 0) entry->key_offset = (uint32_t)key;
  if (entry->ndim > 0) entry->dims_offset = (uint32_t)dims;
  return 0;
}

/* The strides of the data: of C order, or the tensor's own. */
static void strides_choose(const struct ringcast_tensor *tensor, int64_t *out) {
  int64_t count;
  rc_shape_layout(tensor->ndim, tensor->shape, out, &count);
  if (!(tensor->flags & RINGCAST_TENSOR_DENSE) || !tensor->strides) return;
  if (rc_strides_are_c(tensor->ndim, tensor->shape, tensor->strides)) return;
  /* Where the size is 1, the stride may be anything. */
  for (int32_t i = 0; i < tensor->ndim; i++)
    out[i] = tensor->strides[i] < 0 ? 1 : tensor->strides[i];
}

static int flags_check(const struct ringcast_frame_entry *entry) {
  uint32_t typecode = entry->flags & RC_ITEM_TYPECODE;
  if (typecode && !rc_typecode_fits(entry->kind, entry->flags, entry->bytes)) return -EINVAL;
  if (entry->flags & ~(RC_ITEM_FLAGS | typecode)) return -EINVAL;
  if (entry->flags & RINGCAST_ITEM_KEYED) return -EINVAL;
  if (!(entry->flags & (RC_ITEM_DEVICES | RINGCAST_ITEM_PADDED))) return 0;
  if (entry->kind != RINGCAST_ITEM_TENSOR) return -EINVAL;
  uint32_t devices = entry->flags & RC_ITEM_DEVICES;
  if (devices && !(devices & RINGCAST_ITEM_CUDA)) return -EINVAL;
  return devices == RC_ITEM_DEVICES ? -EINVAL : 0; /* of two libraries */
}

/* Appends the dimensions, and the gap before them. Inline: a call costs a small frame 2 %. */
__attribute__((always_inline)) static inline void
dims_put(struct ringcast_frame_builder *builder, const struct ringcast_tensor *tensor,
         const struct ringcast_frame_entry *entry) {
  int64_t strides[RINGCAST_MAX_NDIM];
  size_t bytes = entry->ndim * sizeof *strides;
  strides_choose(tensor, strides);
  zero(builder, builder->meta, entry->dims_offset);
  memcpy(builder->base + entry->dims_offset, tensor->shape, bytes);
  memcpy(builder->base + entry->dims_offset + bytes, strides, bytes);
  builder->meta = entry->dims_offset + 2 * bytes;
}

/* Appends an entry with the given kind, flags, dtype, ndim, bytes and scalar, and sets *out to the
 * place of the data. An error changes nothing. The caller has checked the tensor, which is NULL
 * unless the entry has dimensions. */
static int entry_put(struct ringcast_frame_builder *builder, const char *key, size_t key_bytes,
                     const struct ringcast_tensor *tensor, struct ringcast_frame_entry entry,
                     uint8_t **out) {
  int rc = flags_check(&entry);
  if (rc < 0) return rc;
  if (key && header_of(builder).root != RINGCAST_ROOT_DICT) return -EINVAL;
  if (!key && key_bytes > 0) return -EINVAL;
  if (key_bytes > UINT32_MAX) return -ENOSPC;
  if (key) entry.flags |= RINGCAST_ITEM_KEYED;
  entry.key_bytes = (uint32_t)key_bytes;
  rc = entry_place(builder, &entry);
  if (rc < 0) return rc;

  memcpy(builder->base + rc_payload_meta(builder->next), &entry, sizeof entry);
  builder->next++;
  if (key_bytes > 0) memcpy(builder->base + builder->meta, key, key_bytes);
  builder->meta += key_bytes;
  if (tensor && entry.ndim > 0) dims_put(builder, tensor, &entry);
  *out = builder->base + RC_PAYLOAD_NOWHERE;
  if (has_data(&entry)) {
    zero(builder, builder->data, entry.offset);
    *out = builder->base + entry.offset;
    builder->data = entry.offset + entry.bytes;
  }
  return 0;
}

/* Appends a tensor's entry. The caller sets placement and offset in `*entry`. */
static int tensor_put(struct ringcast_frame_builder *builder, const char *key, size_t key_bytes,
                      const struct ringcast_tensor *tensor, struct ringcast_frame_entry *entry,
                      uint8_t **out) {
  int rc = ringcast_tensor_bytes(tensor, &entry->bytes);
  if (rc < 0) return rc;
  if (tensor->flags & RINGCAST_TENSOR_DENSE && tensor->flags & RC_ITEM_DEVICES) return -EINVAL;
  if (entry->placement != RINGCAST_PLACEMENT_INLINE && !rc_payload_device_range(entry))
    return -EINVAL;
  entry->kind = RINGCAST_ITEM_TENSOR;
  entry->dtype = tensor->dtype;
  entry->flags = tensor->flags & ~RINGCAST_TENSOR_DENSE;
  entry->ndim = (uint8_t)tensor->ndim;
  rc = entry_put(builder, key, key_bytes, tensor, *entry, out);
  if (rc < 0) return rc;
  if (entry->flags & RINGCAST_ITEM_PADDED) need_version(builder, 2);
  if (entry->flags & RC_ITEM_DEVICES) need_version(builder, 3);
  return 0;
}

int ringcast_build_tensor_in_place(struct ringcast_frame_builder *builder, const char *key,
                                   size_t key_bytes, const struct ringcast_tensor *tensor,
                                   void **out, uint64_t *out_bytes) {
  struct ringcast_frame_entry entry = {.placement = RINGCAST_PLACEMENT_INLINE};
  uint8_t *place;
  int rc = tensor_put(builder, key, key_bytes, tensor, &entry, &place);
  if (rc < 0) return rc;
  *out = place;
  *out_bytes = entry.bytes;
  return 0;
}

int ringcast_build_device_tensor(struct ringcast_frame_builder *builder, const char *key,
                                 size_t key_bytes, const struct ringcast_tensor *tensor,
                                 uint64_t offset) {
  struct ringcast_frame_entry entry = {.placement = RINGCAST_PLACEMENT_POOL, .offset = offset};
  uint8_t *place;
  if (!(tensor->flags & RINGCAST_ITEM_CUDA)) return -EINVAL;
  return tensor_put(builder, key, key_bytes, tensor, &entry, &place);
}

int ringcast_build_device(struct ringcast_frame_builder *builder, uint32_t slot, uint32_t epoch,
                          uint64_t generation) {
  if (epoch == 0 || generation == 0) return -EINVAL;
  need_version(builder, 3);
  struct ringcast_frame_header header = header_of(builder);
  header.device_slot = slot;
  header.device_epoch = epoch;
  header.device_generation = generation;
  header_put(builder, &header);
  return 0;
}

int ringcast_build_tensor(struct ringcast_frame_builder *builder, const char *key, size_t key_bytes,
                          const struct ringcast_tensor *tensor) {
  struct ringcast_frame_builder before = *builder;
  void *place;
  uint64_t bytes;
  int rc = ringcast_build_tensor_in_place(builder, key, key_bytes, tensor, &place, &bytes);
  if (rc < 0) return rc;
  rc = ringcast_tensor_pack(tensor, place);
  if (rc < 0) *builder = before;
  return rc;
}

/* Appends an entry and its data. Without `data`, the caller writes the data to *out. */
static int data_put(struct ringcast_frame_builder *builder, const char *key, size_t key_bytes,
                    struct ringcast_frame_entry entry, const void *data, void **out) {
  uint8_t *place;
  if (!data && !out && entry.bytes > 0) return -EINVAL;
  int rc = entry_put(builder, key, key_bytes, NULL, entry, &place);
  if (rc < 0) return rc;
  if (data && entry.bytes > 0) memcpy(place, data, entry.bytes);
  if (out) *out = place;
  if (entry.flags & RC_ITEM_TYPECODE) need_version(builder, 2);
  return 0;
}

int ringcast_build_data(struct ringcast_frame_builder *builder, enum ringcast_item_kind kind,
                        const char *key, size_t key_bytes, const void *data, uint64_t bytes,
                        uint32_t flags, void **out) {
  const struct ringcast_frame_entry entry = {
      .kind = (uint16_t)kind, .flags = flags, .bytes = bytes};
  switch (kind) {
  case RINGCAST_ITEM_STR:
  case RINGCAST_ITEM_BYTES:
  case RINGCAST_ITEM_PICKLE:
  case RINGCAST_ITEM_BUFFER:
  case RINGCAST_ITEM_ERROR: return data_put(builder, key, key_bytes, entry, data, out);
  default: return -EINVAL;
  }
}

int ringcast_build_object(struct ringcast_frame_builder *builder, const char *key, size_t key_bytes,
                          const void *data, uint64_t bytes, uint32_t first_part, uint32_t parts,
                          void **out) {
  const struct ringcast_frame_entry entry = {
      .kind = RINGCAST_ITEM_OBJECT, .bytes = bytes, .scalar = (uint64_t)parts << 32 | first_part};
  if (bytes == 0 || first_part > builder->count || parts > builder->count - first_part)
    return -EINVAL;
  int rc = data_put(builder, key, key_bytes, entry, data, out);
  if (rc == 0) need_version(builder, 2);
  return rc;
}

int ringcast_build_scalar(struct ringcast_frame_builder *builder, enum ringcast_item_kind kind,
                          const char *key, size_t key_bytes, int64_t value) {
  struct ringcast_frame_entry entry = {.kind = (uint16_t)kind};
  switch (kind) {
  case RINGCAST_ITEM_NONE: break;
  case RINGCAST_ITEM_BOOL: entry.scalar = value != 0; break;
  case RINGCAST_ITEM_INT: entry.scalar = (uint64_t)value; break;
  case RINGCAST_ITEM_LEAF:
    if (value < 0) return -EINVAL;
    entry.scalar = (uint64_t)value;
    break;
  default: return -EINVAL;
  }
  return data_put(builder, key, key_bytes, entry, NULL, NULL);
}

int ringcast_build_float(struct ringcast_frame_builder *builder, const char *key, size_t key_bytes,
                         double value) {
  struct ringcast_frame_entry entry = {.kind = RINGCAST_ITEM_FLOAT};
  memcpy(&entry.scalar, &value, sizeof value);
  return data_put(builder, key, key_bytes, entry, NULL, NULL);
}

int ringcast_build_hash(struct ringcast_frame_builder *builder, uint32_t entry, uint32_t flag,
                        uint64_t hash) {
  struct ringcast_frame_entry built;
  if (entry >= builder->next || (flag != RINGCAST_ITEM_SHA256 && flag != RINGCAST_ITEM_XXH3))
    return -EINVAL;
  uint8_t *place = builder->base + rc_payload_meta(entry);
  memcpy(&built, place, sizeof built);
  if (built.kind != RINGCAST_ITEM_TENSOR) return -EINVAL;
  built.flags = (built.flags & ~RC_ITEM_HASHES) | flag;
  built.hash = hash;
  memcpy(place, &built, sizeof built);
  need_version(builder, 2);
  return 0;
}

/* Whether a tensor's data is on a device and the header names no words that signal its
 * completion. */
static bool lacks_words(const struct ringcast_frame_builder *builder) {
  const struct ringcast_frame_header header = header_of(builder);
  struct ringcast_frame_entry entry;
  if (header.version < 3 || header.device_epoch != 0) return false;
  for (uint32_t i = 0; i < builder->next; i++) {
    memcpy(&entry, builder->base + rc_payload_meta(i), sizeof entry);
    if (entry.placement != RINGCAST_PLACEMENT_INLINE) return true;
  }
  return false;
}

int ringcast_build_end(struct ringcast_frame_builder *builder, size_t *out_bytes) {
  if (builder->next != builder->count || lacks_words(builder)) return -EINVAL;
  zero(builder, builder->meta, builder->meta_end); /* planned but unused bytes */
  builder->meta = builder->meta_end;
  struct ringcast_frame_header header = header_of(builder);
  header.bytes = builder->data;
  *out_bytes = builder->data;
  header_put(builder, &header);
  return 0;
}
