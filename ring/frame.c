/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The payload of a typed frame, whose layout ringcast/frame.h describes; the ring's own frame
 * header is in layout.h. First what both sides share: the offsets in the payload, and the bytes of
 * tensors. Then the builder, and last the reader, who trusts nothing.
 */
#include "ring/frame.h"

#include <errno.h>
#include <string.h>

/* ---- Offsets --------------------------------------------------------------------------------- */

/* The oldest readable version; a frame has a later one only where the content needs it. */
#define RC_PAYLOAD_OLDEST 1
#define RC_PAYLOAD_LINE   64
#define RC_PAYLOAD_PHASE  16 /* a frame's payload starts this far into a line */
#define RC_PAYLOAD_ALIGN  8  /* dimensions, and data other than tensors */
/* An empty key or empty data has offset 0 in the entry; the reader returns this offset, which is on
 * a line. */
#define RC_PAYLOAD_NOWHERE (RC_PAYLOAD_LINE - RC_PAYLOAD_PHASE)

#define RC_ITEM_FLAGS                                                                              \
  (RINGCAST_ITEM_KEYED | RINGCAST_ITEM_NUMPY | RINGCAST_ITEM_TORCH | RINGCAST_ITEM_REQUIRES_GRAD | \
   RINGCAST_ITEM_PARAMETER | RINGCAST_ITEM_READONLY | RINGCAST_ITEM_PADDED | RC_ITEM_DEVICES)
/* Of TENSOR, from version 3 on. */
#define RC_ITEM_DEVICES (RINGCAST_ITEM_CUDA | RINGCAST_ITEM_CUPY | RINGCAST_ITEM_JAX)
/* Of BYTES, from version 2 on. */
#define RC_ITEM_TYPECODE (255u << 24)
/* Set by ringcast_build_hash only. */
#define RC_ITEM_HASHES (RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the layout is little-endian");

/* The offsets of the fields are held by the frames of tests/vectors. */
_Static_assert(sizeof(struct ringcast_dtype) == 4, "dtype");
_Static_assert(sizeof(struct ringcast_frame_header) == 48, "header");
_Static_assert(sizeof(struct ringcast_frame_entry) == 64, "entry");

/* Sums saturate at UINT64_MAX, which no memory can hold. */
static inline uint64_t add(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static inline uint64_t align(uint64_t offset, uint64_t alignment) {
  uint64_t up = add(offset, alignment - 1);
  return up == UINT64_MAX ? UINT64_MAX : up & ~(alignment - 1);
}

/* The first offset on a line, not below `offset`. */
static inline uint64_t on_line(uint64_t offset) {
  uint64_t up = align(add(offset, RC_PAYLOAD_PHASE), RC_PAYLOAD_LINE);
  return up == UINT64_MAX ? UINT64_MAX : up - RC_PAYLOAD_PHASE;
}

static inline uint64_t meta_of(uint32_t count) {
  return sizeof(struct ringcast_frame_header) +
         (uint64_t)count * sizeof(struct ringcast_frame_entry);
}

/* Whether an entry may have the typecode in these flags: BYTES, of whole elements. */
static inline bool typecode_fits(uint16_t kind, uint32_t flags, uint64_t bytes) {
  uint32_t each = ringcast_typecode_bytes(RINGCAST_ITEM_TYPECODE(flags));
  return kind == RINGCAST_ITEM_BYTES && each > 0 && bytes % each == 0;
}

/* Whether the bytes of a tensor that is not INLINE are a valid range: not empty, and without
 * overflow. */
static inline bool is_device_range(const struct ringcast_frame_entry *entry) {
  return entry->bytes > 0 && entry->offset <= UINT64_MAX - entry->bytes;
}

/* ---- The bytes of tensors -------------------------------------------------------------------- */

/* Computed from the dtype, shape and strides. The functions check all three and trust no value. */

#define DTYPE_CODE_MAX 17 /* DLPack 1.1: kDLFloat4_e2m1fn */

uint32_t rc_element_bits(struct ringcast_dtype dtype, uint32_t flags) {
  if (dtype.code > DTYPE_CODE_MAX) return 0;
  uint32_t bits = (uint32_t)dtype.bits * dtype.lanes;
  if (!(flags & RINGCAST_ITEM_PADDED)) return bits;
  if (bits % 8 == 0) return 0;
  return (bits + 7) & ~UINT32_C(7);
}

/* The number of elements, and the strides of C order (`strides` may be NULL). A dimension of 0
 * counts as 1 in the strides, as in torch. -EINVAL: ndim or shape is out of range, or the count,
 * with each 0 taken as 1, exceeds INT64_MAX. */
static int shape_layout(int32_t ndim, const int64_t *shape, int64_t *strides, int64_t *out_count) {
  if (ndim < 0 || ndim > RINGCAST_MAX_NDIM || (ndim > 0 && !shape)) return -EINVAL;
  int64_t count = 1;
  bool empty = false;
  for (int32_t i = ndim - 1; i >= 0; i--) {
    if (shape[i] < 0) return -EINVAL;
    if (strides) strides[i] = count;
    if (shape[i] == 0) empty = true;
    else if (__builtin_mul_overflow(count, shape[i], &count)) return -EINVAL;
  }
  *out_count = empty ? 0 : count;
  return 0;
}

/* The bytes of `count` elements without gaps. -EINVAL: more than INT64_MAX. */
static int packed_bytes(uint32_t bits, int64_t count, uint64_t *out) {
  /* Eight elements have exactly `bits` bytes, so the total in bits need not fit in 64. */
  uint64_t eights = (uint64_t)count / 8, rest = ((uint64_t)count % 8 * bits + 7) / 8, bytes;
  if (__builtin_mul_overflow(eights, bits, &bytes)) return -EINVAL;
  if (__builtin_add_overflow(bytes, rest, &bytes)) return -EINVAL;
  if (bytes > INT64_MAX) return -EINVAL;
  *out = bytes;
  return 0;
}

bool rc_strides_are_c(int32_t ndim, const int64_t *shape, const int64_t *strides) {
  bool chained = true;
  int64_t expected = 1;
  for (int32_t i = ndim - 1; i >= 0; i--) {
    if (shape[i] == 0) return true; /* no elements */
    if (shape[i] == 1) continue;
    if (strides[i] != expected) chained = false;
    expected *= shape[i];
  }
  return chained;
}

/* Whether the tensor has no gaps: the strides are those of C order, with the axes in any order. */
static bool strides_are_dense(int32_t ndim, const int64_t *shape, const int64_t *strides) {
  if (rc_strides_are_c(ndim, shape, strides)) return true;
  int64_t expected = 1, count = 1;
  for (int32_t found = 0; found < ndim; found++) { /* the axes, from the innermost on */
    int32_t i = 0;
    while (i < ndim && (shape[i] == 1 || strides[i] != expected)) i++;
    if (i == ndim) break;
    expected *= shape[i];
  }
  for (int32_t i = 0; i < ndim; i++) count *= shape[i];
  return expected == count;
}

int ringcast_tensor_bytes(const struct ringcast_tensor *tensor, uint64_t *out) {
  int64_t count;
  uint32_t bits = rc_element_bits(tensor->dtype, tensor->flags);
  if (bits == 0) return -EINVAL;
  int rc = shape_layout(tensor->ndim, tensor->shape, NULL, &count);
  if (rc < 0) return rc;
  if (tensor->strides) {
    bool has_address = bits % 8 == 0; /* each element */
    if (!has_address && !rc_strides_are_c(tensor->ndim, tensor->shape, tensor->strides))
      return -EINVAL;
    bool is_dense = tensor->flags & RINGCAST_TENSOR_DENSE;
    if (is_dense && !strides_are_dense(tensor->ndim, tensor->shape, tensor->strides))
      return -EINVAL;
  }
  return packed_bytes(bits, count, out);
}

/* ---- Build ----------------------------------------------------------------------------------- */

/*
 * Builds a frame front to back, in one pass over three regions: entries, then meta (keys and
 * dimensions), then data.
 *
 * The plan has counted the entries, so the offsets of all three regions are known at the start.
 * Each call appends to the regions in the same order and with the same rounding as the plan, so the
 * plan and the frame end at the same byte. The builder writes every byte and fills gaps with zeros:
 * the memory may hold bytes of an earlier frame, and equal content must give equal bytes.
 */

static void plan_add(struct ringcast_frame_plan *plan, uint64_t data_bytes, uint64_t alignment) {
  if (plan->count < UINT32_MAX) plan->count++;
  if (data_bytes > 0) plan->data = add(align(plan->data, alignment), data_bytes);
}

void ringcast_plan_tensor(struct ringcast_frame_plan *plan, size_t key_bytes, int32_t ndim,
                          uint64_t data_bytes) {
  plan->meta = add(plan->meta, key_bytes);
  if (ndim < 0 || ndim > RINGCAST_MAX_NDIM) {
    plan->meta = UINT64_MAX; /* no frame has so many dimensions */
  } else if (ndim > 0) {
    uint64_t dims = align(plan->meta, RC_PAYLOAD_ALIGN);
    plan->meta = add(dims, (uint64_t)ndim * 2 * sizeof(int64_t));
  }
  plan_add(plan, data_bytes, RC_PAYLOAD_LINE);
}

void ringcast_plan_item(struct ringcast_frame_plan *plan, size_t key_bytes, uint64_t data_bytes) {
  plan->meta = add(plan->meta, key_bytes);
  plan_add(plan, data_bytes, RC_PAYLOAD_ALIGN);
}

void ringcast_plan_device_tensor(struct ringcast_frame_plan *plan, size_t key_bytes, int32_t ndim) {
  ringcast_plan_tensor(plan, key_bytes, ndim, 0);
}

uint64_t ringcast_plan_bytes(const struct ringcast_frame_plan *plan) {
  if (plan->count > RINGCAST_MAX_ENTRIES) return UINT64_MAX;
  uint64_t meta_end = add(meta_of(plan->count), plan->meta);
  /* The offsets of keys and dimensions have 32 bits. */
  if (meta_end > UINT32_MAX) return UINT64_MAX;
  if (plan->data == 0) return meta_end;
  return add(on_line(meta_end), plan->data);
}

int ringcast_build_begin(struct ringcast_frame_builder *builder, void *memory, size_t bytes,
                         const struct ringcast_frame_plan *plan, enum ringcast_root root,
                         uint32_t tag) {
  if (!memory || (root != RINGCAST_ROOT_DICT && root != RINGCAST_ROOT_VALUE)) return -EINVAL;
  if (root == RINGCAST_ROOT_VALUE && plan->count == 0) return -EINVAL;
  uint64_t need = ringcast_plan_bytes(plan);
  if (need == UINT64_MAX || need > bytes) return -EMSGSIZE;
  uint64_t meta = meta_of(plan->count);
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
    return on_line(builder->data);
  return align(builder->data, RC_PAYLOAD_ALIGN);
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
    dims = align(dims, RC_PAYLOAD_ALIGN);
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
  shape_layout(tensor->ndim, tensor->shape, out, &count);
  if (!(tensor->flags & RINGCAST_TENSOR_DENSE) || !tensor->strides) return;
  if (rc_strides_are_c(tensor->ndim, tensor->shape, tensor->strides)) return;
  /* Where the size is 1, the stride may be anything. */
  for (int32_t i = 0; i < tensor->ndim; i++)
    out[i] = tensor->strides[i] < 0 ? 1 : tensor->strides[i];
}

static int flags_check(const struct ringcast_frame_entry *entry) {
  uint32_t typecode = entry->flags & RC_ITEM_TYPECODE;
  if (typecode && !typecode_fits(entry->kind, entry->flags, entry->bytes)) return -EINVAL;
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

  memcpy(builder->base + meta_of(builder->next), &entry, sizeof entry);
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
  if (entry->placement != RINGCAST_PLACEMENT_INLINE && !is_device_range(entry)) return -EINVAL;
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
  uint8_t *place = builder->base + meta_of(entry);
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
    memcpy(&entry, builder->base + meta_of(i), sizeof entry);
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

/* ---- Read ------------------------------------------------------------------------------------ */

/*
 * Reads a frame that another process wrote and may still be changing.
 *
 * A check and the use of the checked value never see two different values: the reader copies the
 * header (in open) and an entry with its dimensions (in item) out of the frame once, and uses only
 * the copy. Offsets are compared by subtracting within known bounds, and never summed. A field that
 * the entry's kind does not use must be zero, so that a later version may give the field a meaning.
 */

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
  if (!lies_within(meta_of(header.count), header.meta_bytes, 0, bytes)) return -EPROTO;
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
  return meta_of(reader->count) + reader->meta_bytes;
}

static void entry_copy(const struct ringcast_frame_reader *reader, uint32_t index,
                       struct ringcast_frame_entry *out) {
  copy_once(out, reader->base + meta_of(index), sizeof *out);
}

/* Whether a range lies in the meta region: keys and dimensions. */
static bool is_in_meta(const struct ringcast_frame_reader *reader, uint64_t offset,
                       uint64_t bytes) {
  return lies_within(offset, bytes, meta_of(reader->count), meta_end(reader));
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
  return is_device_range(entry);
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
    uint64_t data = on_line(meta_end(reader));
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
  if (bits == 0 || shape_layout(entry->ndim, shape, NULL, &count) < 0) return false;
  for (int32_t i = 0; i < entry->ndim; i++)
    if (strides[i] < 0) return false;
  if (packed_bytes(bits, count, &packed) < 0) return false;
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
    if (reader->version < 2 || !typecode_fits(entry->kind, flags, entry->bytes)) return false;
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
