/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a frame that another process wrote and may still be changing.
 *
 * A check and the use of the checked value never see two different values: the reader copies the
 * header (in open) and an entry with its dimensions (in item) out of the frame once, and uses only
 * the copy. Offsets are compared by subtracting within known bounds, and never summed. A field that
 * the entry's kind does not use must be zero, so that a later version may give the field a meaning.
 */
#include "ring/frame.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* Copies from memory that may change. Without the barrier, the compiler may read `from` again
 * instead of `to`. */
static inline void copy_once(void *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
  __asm__ volatile("" : : "r"(to) : "memory");
}

static bool lies_within(uint64_t offset, uint64_t bytes, uint64_t from, uint64_t to) {
  return offset >= from && offset <= to && bytes <= to - offset;
}

/* The fields that name the words of device tensors' completion: all set or all zero, since version
 * 3. */
static bool device_words_are_valid(const struct ringcast_frame_header *header) {
  if (header->device_epoch == 0) return header->device_slot == 0 && header->device_generation == 0;
  return header->version >= 3 && header->device_generation != 0;
}

int ringcast_frame_open(struct ringcast_frame_reader *reader, const void *data, size_t bytes) {
  struct ringcast_frame_header header;
  if (bytes < sizeof header) return -EPROTO;
  copy_once(&header, data, sizeof header);
  if (header.magic != RINGCAST_FRAME_MAGIC || header.version < RC_PAYLOAD_OLDEST) return -EPROTO;
  if (header.version > RINGCAST_FRAME_VERSION) {
    *reader = (struct ringcast_frame_reader){.version = header.version};
    return -EPROTONOSUPPORT;
  }
  if (header.root != RINGCAST_ROOT_DICT && header.root != RINGCAST_ROOT_VALUE) return -EPROTO;
  if (header.root == RINGCAST_ROOT_VALUE && header.count == 0) return -EPROTO;
  if (!device_words_are_valid(&header)) return -EPROTO;
  if (header.bytes != bytes || header.count > RINGCAST_MAX_ENTRIES) return -EPROTO;
  if (!lies_within(rc_payload_meta(header.count), header.meta_bytes, 0, bytes)) return -EPROTO;
  *reader = (struct ringcast_frame_reader){.base = data,
                                           .bytes = bytes,
                                           .meta_bytes = header.meta_bytes,
                                           .count = header.count,
                                           .tag = header.tag,
                                           .root = header.root,
                                           .version = header.version,
                                           .device_slot = header.device_slot,
                                           .device_epoch = header.device_epoch,
                                           .device_generation = header.device_generation};
  return 0;
}

static uint64_t meta_end(const struct ringcast_frame_reader *reader) {
  return rc_payload_meta(reader->count) + reader->meta_bytes;
}

static void entry_copy(const struct ringcast_frame_reader *reader, uint32_t index,
                       struct ringcast_frame_entry *out) {
  copy_once(out, reader->base + rc_payload_meta(index), sizeof *out);
}

/* Whether a range lies in the meta region: keys and dimensions. */
static bool is_in_meta(const struct ringcast_frame_reader *reader, uint64_t offset,
                       uint64_t bytes) {
  return lies_within(offset, bytes, rc_payload_meta(reader->count), meta_end(reader));
}

/* The functions below check a part of an entry. False: the frame is damaged. */

/* NULL in `*out`: the entry has no key. */
static bool entry_key(const struct ringcast_frame_reader *reader,
                      const struct ringcast_frame_entry *entry, const char **out) {
  *out = NULL;
  if (!(entry->flags & RINGCAST_ITEM_KEYED)) return entry->key_offset == 0 && entry->key_bytes == 0;
  if (reader->root != RINGCAST_ROOT_DICT) return false;
  uint64_t offset = entry->key_offset;
  if (entry->key_bytes == 0) {
    if (offset != 0) return false;
    offset = RC_PAYLOAD_NOWHERE;
  } else if (!is_in_meta(reader, offset, entry->key_bytes)) {
    return false;
  }
  *out = (const char *)reader->base + offset;
  return true;
}

/* Of a tensor whose bytes are on a device. */
static bool device_data_is_valid(const struct ringcast_frame_reader *reader,
                                 const struct ringcast_frame_entry *entry) {
  if (entry->placement != RINGCAST_PLACEMENT_POOL) return false;
  if (reader->device_epoch == 0 || !(entry->flags & RINGCAST_ITEM_CUDA)) return false;
  return rc_payload_device_range(entry);
}

/* NULL in `*out`: the entry's bytes are not in the frame. */
static bool entry_data(const struct ringcast_frame_reader *reader,
                       const struct ringcast_frame_entry *entry, const void **out) {
  uint64_t offset = entry->offset;
  *out = NULL;
  if (entry->reserved != 0) return false;
  if (entry->placement != RINGCAST_PLACEMENT_INLINE) return device_data_is_valid(reader, entry);
  if (entry->bytes == 0) {
    if (offset != 0) return false;
    offset = RC_PAYLOAD_NOWHERE;
  } else {
    uint64_t data = rc_payload_line(meta_end(reader));
    if (!lies_within(offset, entry->bytes, data, reader->bytes)) return false;
    uint64_t line = entry->kind == RINGCAST_ITEM_TENSOR ? RC_PAYLOAD_LINE : RC_PAYLOAD_ALIGN;
    if ((offset + RC_PAYLOAD_PHASE) % line != 0) return false;
  }
  *out = reader->base + offset;
  return true;
}

/* The bytes from the first element to the end of the last. The tensor is not empty, and an element
 * has whole bytes. */
static bool tensor_extent(int32_t ndim, const int64_t *shape, const int64_t *strides, int64_t item,
                          uint64_t *out) {
  int64_t last = 0, step;
  for (int32_t i = 0; i < ndim; i++) {
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &step)) return false;
    if (__builtin_add_overflow(last, step, &last)) return false;
  }
  if (__builtin_add_overflow(last, 1, &last)) return false;
  if (__builtin_mul_overflow(last, item, &last)) return false;
  *out = (uint64_t)last;
  return true;
}

/* The data must have exactly the bytes of the shape and strides: no element lies outside, and no
 * byte is unused. */
static bool tensor_is_valid(const struct ringcast_frame_entry *entry, const int64_t *shape,
                            const int64_t *strides) {
  uint32_t bits = rc_element_bits(entry->dtype, entry->flags);
  uint64_t packed, extent;
  int64_t count;
  if (bits == 0 || rc_shape_layout(entry->ndim, shape, NULL, &count) < 0) return false;
  for (int32_t i = 0; i < entry->ndim; i++)
    if (strides[i] < 0) return false;
  if (rc_packed_bytes(bits, count, &packed) < 0) return false;
  if (rc_strides_are_c(entry->ndim, shape, strides)) return entry->bytes == packed;
  if (entry->placement != RINGCAST_PLACEMENT_INLINE || bits % 8 != 0) return false;
  if (!tensor_extent(entry->ndim, shape, strides, bits / 8, &extent)) return false;
  /* With a stride of 0, one byte could describe 2^60: a packed copy must not need more memory than
   * was sent. */
  return entry->bytes == extent && packed <= extent;
}

static bool item_tensor(const struct ringcast_frame_reader *reader,
                        const struct ringcast_frame_entry *entry, struct ringcast_item *out) {
  int64_t dims[2 * RINGCAST_MAX_NDIM];
  size_t bytes = entry->ndim * sizeof *dims;
  if (entry->ndim > RINGCAST_MAX_NDIM || entry->scalar) return false;
  if (entry->ndim == 0) {
    if (entry->dims_offset != 0) return false;
  } else {
    if (entry->dims_offset % RC_PAYLOAD_ALIGN != 0) return false;
    if (!is_in_meta(reader, entry->dims_offset, 2 * bytes)) return false;
    copy_once(dims, reader->base + entry->dims_offset, 2 * bytes);
  }
  if (!tensor_is_valid(entry, dims, dims + entry->ndim)) return false;
  out->dtype = entry->dtype;
  out->ndim = entry->ndim;
  memcpy(out->shape, dims, bytes);
  memcpy(out->strides, dims + entry->ndim, bytes);
  return true;
}

/* The parts of an object are entries of the same frame. */
static bool object_is_valid(const struct ringcast_frame_reader *reader,
                            const struct ringcast_frame_entry *entry) {
  uint32_t first = (uint32_t)entry->scalar, parts = (uint32_t)(entry->scalar >> 32);
  if (reader->version < 2 || entry->bytes == 0) return false;
  return lies_within(first, parts, 0, reader->count);
}

/* Of an entry without dimensions. */
static bool plain_is_valid(const struct ringcast_frame_reader *reader,
                           const struct ringcast_frame_entry *entry) {
  if (entry->ndim || entry->dims_offset) return false;
  if (entry->dtype.code || entry->dtype.bits || entry->dtype.lanes) return false;
  switch (entry->kind) {
  case RINGCAST_ITEM_NONE: return entry->bytes == 0 && entry->scalar == 0;
  case RINGCAST_ITEM_BOOL: return entry->bytes == 0 && entry->scalar <= 1;
  case RINGCAST_ITEM_LEAF: return entry->bytes == 0 && entry->scalar <= INT64_MAX;
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_FLOAT: return entry->bytes == 0;
  case RINGCAST_ITEM_STR:
  case RINGCAST_ITEM_BYTES:
  case RINGCAST_ITEM_PICKLE:
  case RINGCAST_ITEM_BUFFER:
  case RINGCAST_ITEM_ERROR: return entry->scalar == 0;
  case RINGCAST_ITEM_OBJECT: return object_is_valid(reader, entry);
  default: return false;
  }
}

/* Only tensors are padded, have one hash, since version 2, and are of at most one device library,
 * since version 3. Only bytes have a typecode, since version 2. The caller compares a hash with the
 * data. */
static bool flags_are_valid(const struct ringcast_frame_reader *reader,
                            const struct ringcast_frame_entry *entry) {
  const bool is_tensor = entry->kind == RINGCAST_ITEM_TENSOR;
  const uint32_t flags = entry->flags, hashes = flags & RC_ITEM_HASHES;
  const uint32_t devices = flags & RC_ITEM_DEVICES;
  if (flags & ~(RC_ITEM_FLAGS | RC_ITEM_HASHES | RC_ITEM_TYPECODE)) return false;
  if (flags & RC_ITEM_TYPECODE) {
    if (reader->version < 2 || !rc_typecode_fits(entry->kind, flags, entry->bytes)) return false;
  }
  if (flags & RINGCAST_ITEM_PADDED) {
    if (reader->version < 2 || !is_tensor) return false;
  }
  if (hashes == 0) {
    if (entry->hash) return false;
  } else {
    if (reader->version < 2 || !is_tensor || hashes == RC_ITEM_HASHES) return false;
  }
  if (devices == 0) return true;
  if (reader->version < 3 || !is_tensor) return false;
  return devices & RINGCAST_ITEM_CUDA && devices != RC_ITEM_DEVICES;
}

/* `entry` is the caller's copy. */
static int item_fill(const struct ringcast_frame_reader *reader,
                     const struct ringcast_frame_entry *entry, struct ringcast_item *out) {
  const char *key;
  const void *data;
  if (!flags_are_valid(reader, entry)) return -EPROTO;
  if (!entry_key(reader, entry, &key) || !entry_data(reader, entry, &data)) return -EPROTO;
  if (entry->kind == RINGCAST_ITEM_TENSOR) {
    if (!item_tensor(reader, entry, out)) return -EPROTO;
  } else {
    if (!plain_is_valid(reader, entry)) return -EPROTO;
    out->dtype = (struct ringcast_dtype){0};
    out->ndim = 0;
  }
  out->key = key;
  out->key_bytes = entry->key_bytes;
  out->kind = entry->kind;
  out->flags = entry->flags;
  out->data = data;
  out->bytes = entry->bytes;
  memcpy(&out->scalar, &entry->scalar, sizeof out->scalar);
  out->hash = entry->hash;
  out->placement = entry->placement;
  out->device_offset = data ? 0 : entry->offset;
  return 0;
}

int ringcast_frame_item(const struct ringcast_frame_reader *reader, uint32_t index,
                        struct ringcast_item *out) {
  struct ringcast_frame_entry entry;
  if (index >= reader->count) return -ENOENT;
  entry_copy(reader, index, &entry);
  return item_fill(reader, &entry, out);
}

int ringcast_frame_find(const struct ringcast_frame_reader *reader, const char *key,
                        size_t key_bytes, struct ringcast_item *out) {
  struct ringcast_frame_entry entry;
  const char *found;
  if (!key) return -ENOENT;
  for (uint32_t i = 0; i < reader->count; i++) {
    entry_copy(reader, i, &entry);
    if (!entry_key(reader, &entry, &found)) return -EPROTO;
    if (!found || entry.key_bytes != key_bytes || memcmp(found, key, key_bytes) != 0) continue;
    return item_fill(reader, &entry, out);
  }
  return -ENOENT;
}
