/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The typed layout of a tensor dict: what a frame of kind RINGCAST_KIND_TENSORS holds. Nested
 * values within it are in ringcast/object.h.
 *
 * Promise. No parsing: a fixed header, fixed entries, then keys and dimensions, then data. Sizes
 * are exact before the first byte is written (plan -> reserve -> build -> commit). The reader
 * trusts no field: each entry is copied out, checked against the frame's end, and only then
 * returned. A hostile frame gives -EPROTO and never a pointer outside the frame, even if the frame
 * changes during the read.
 *
 * No function here allocates, locks, calls the kernel or sets ringcast_last_error(); all are
 * wait-free, and thread-safe on different objects.
 *
 * A frame may also be built in private memory, at any address, and sent on several rings, each time
 * with ringcast_writer_send(writer, memory, bytes, RINGCAST_KIND_TENSORS, ...). It is serialised
 * once, and in each ring the tensors are on lines. Only a frame that is read where it was built
 * must start 16 bytes into a line.
 *
 * The layout. Little-endian. All offsets count bytes from the header's start. A frame's payload
 * starts 16 bytes into a 64-byte line (the ring's own header comes before it), so "on a line" means
 * offset mod 64 == 48.
 *
 *     0   header                       48 bytes
 *    48   entry[0] .. entry[count-1]   64 bytes each
 *         keys                         UTF-8, no terminator
 *         dimensions                   for each tensor shape[ndim], strides[ndim]: int64, 8-byte
 *                                      aligned
 *         data                         from the next line on: tensors each on a line, other bytes
 *                                      on 8
 *
 * tests/vectors holds frames with their meaning beside them, for other implementations.
 */
#ifndef RINGCAST_FRAME_H
#define RINGCAST_FRAME_H

#include "ringcast/ringcast.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RINGCAST_FRAME_MAGIC 0x31464352u /* "RCF1" */
/* The newest version of the layout. A frame names the oldest version that has all features of the
 * frame: version 1 has no OBJECT entries, parts, hashes or PADDED tensors; version 2 has no tensors
 * of devices. */
#define RINGCAST_FRAME_VERSION 3
#define RINGCAST_MAX_NDIM      64
#define RINGCAST_MAX_ENTRIES   (1u << 24)

/* What the entries form together. */
enum ringcast_root {
  /* a dict: its items are the entries with RINGCAST_ITEM_KEYED set, in order */
  RINGCAST_ROOT_DICT = 1,
  /* one value: entry 0; further entries are its parts */
  RINGCAST_ROOT_VALUE = 2,
};

enum ringcast_item_kind {
  RINGCAST_ITEM_NONE = 1,
  RINGCAST_ITEM_BOOL = 2,   /* scalar.i is 0 or 1 */
  RINGCAST_ITEM_INT = 3,    /* scalar.i */
  RINGCAST_ITEM_FLOAT = 4,  /* scalar.f */
  RINGCAST_ITEM_STR = 5,    /* data: UTF-8 */
  RINGCAST_ITEM_BYTES = 6,  /* data */
  RINGCAST_ITEM_TENSOR = 7, /* data, dtype, shape, strides */
  /* data: a pickle; the BUFFER entries after it are its out-of-band buffers, in order */
  RINGCAST_ITEM_PICKLE = 8,
  RINGCAST_ITEM_BUFFER = 9, /* data: bytes that a PICKLE refers to */
  RINGCAST_ITEM_LEAF = 10,  /* scalar.i: an index into the list that the PICKLE entry holds */
  RINGCAST_ITEM_ERROR = 11, /* data: UTF-8; why the sender could not send the value at this place */
  /* From version 2 on. data: a nested value, see ringcast/object.h; scalar.i: the entry of its
   * first part in the low 32 bits, and the number of parts in the high 32 */
  RINGCAST_ITEM_OBJECT = 12,
};

/* Entries stand in this order:
 *   - the items of the dict, or the value
 *   - parts: TENSOR, STR and BYTES entries without a key, each used by one OBJECT entry, in the
 *     order of the OBJECT entries
 *   - the PICKLE, and its BUFFERs */

/* Flags of an entry. */
#define RINGCAST_ITEM_KEYED         1u  /* the entry is an item of the root dict */
#define RINGCAST_ITEM_NUMPY         2u  /* the tensor was a NumPy array */
#define RINGCAST_ITEM_TORCH         4u  /* the tensor was a torch.Tensor */
#define RINGCAST_ITEM_REQUIRES_GRAD 8u  /* ... that requires a gradient */
#define RINGCAST_ITEM_PARAMETER     16u /* ... and is a torch.nn.Parameter */
#define RINGCAST_ITEM_READONLY      32u /* the buffer was read-only at the sender: bytes */
/* From version 2 on; at most one of the two, on a TENSOR: the entry has a hash of the bytes in C
 * order. SHA256: the first 8 bytes of the SHA-256, as a big-endian number. XXH3: the 64-bit XXH3
 * with seed 0. */
#define RINGCAST_ITEM_SHA256 64u
#define RINGCAST_ITEM_XXH3   128u
/* From version 2 on: elements, of no whole number of bytes each, are padded to bytes. */
#define RINGCAST_ITEM_PADDED 256u
/* From version 2 on: the highest byte of the flags. The BYTES are of an array.array of Python with
 * this typecode; 0: of none. */
#define RINGCAST_ITEM_TYPECODE(flags)         ((uint8_t)((flags) >> 24))
#define RINGCAST_ITEM_WITH_TYPECODE(typecode) ((uint32_t)(typecode) << 24)
/* From version 3 on. */
#define RINGCAST_ITEM_CUDA 512u  /* the tensor was in the memory of a CUDA device */
#define RINGCAST_ITEM_CUPY 1024u /* ... as a CuPy array */
#define RINGCAST_ITEM_JAX  2048u /* ... as a JAX array */

/* Where a tensor's bytes are. */
enum ringcast_placement {
  RINGCAST_PLACEMENT_INLINE = 0, /* in this frame */
  /* From version 3 on, for a CUDA tensor with bytes: ringcast/gpu.h. */
  RINGCAST_PLACEMENT_POOL = 1, /* at `offset` in the writer's device pool */
};

/* The bytes of an element of an array.array, on this machine; 0: no typecode that is known. */
static inline uint32_t ringcast_typecode_bytes(uint8_t typecode) {
  switch (typecode) {
  case 'b':
  case 'B': return 1;
  case 'h':
  case 'H':
  case 'e': return 2;
  case 'u':
  case 'w':
  case 'i':
  case 'I':
  case 'f': return 4;
  case 'l':
  case 'L': return sizeof(long);
  case 'q':
  case 'Q':
  case 'd':
  case 'F': return 8;
  case 'D': return 16;
  default: return 0;
  }
}

/* DLPack's DLDataType: code 0 int, 1 uint, 2 float, 3 opaque, 4 bfloat, 5 complex, 6 bool, 7..17
 * fp8, fp6, fp4. */
struct ringcast_dtype {
  uint8_t code;
  uint8_t bits; /* of one lane */
  uint16_t lanes;
};

/* ---- The bytes themselves -------------------------------------------------------------------- */

struct ringcast_frame_header {
  uint32_t magic;
  uint16_t version;
  uint16_t root;  /* enum ringcast_root */
  uint32_t tag;   /* a number of the sender's; a reader can start at the newest frame of a tag */
  uint32_t count; /* entries */
  uint64_t bytes; /* of the frame, this header included */
  uint64_t meta_bytes; /* keys and dimensions: they start at 48 + 64 * count */
  /* From version 3 on, 0 unless a tensor is in a pool: the words that say when the tensor is ready.
   * Then neither the epoch nor the generation is 0. */
  uint32_t device_slot, device_epoch;
  uint64_t device_generation;
};

struct ringcast_frame_entry {
  uint32_t key_offset, key_bytes;
  uint16_t kind; /* enum ringcast_item_kind */
  uint8_t ndim;
  uint8_t placement; /* enum ringcast_placement */
  struct ringcast_dtype dtype;
  uint32_t dims_offset;
  uint32_t flags;
  uint64_t offset, bytes; /* data */
  uint64_t scalar;        /* of BOOL, INT, LEAF, OBJECT; the bits of FLOAT */
  uint64_t hash;          /* 0 unless a flag says which hash */
  uint64_t reserved;      /* 0 */
};

/* ---- Building -------------------------------------------------------------------------------- */

/* A flag of struct ringcast_tensor alone: the tensor stays in the order in which it lies in memory
 * (Fortran order, torch's channels_last). The entry has its strides, and the data is a plain copy
 * of its memory. It has no gaps: its strides are those of C order with the axes permuted, else
 * -EINVAL. Not for a tensor of a device. */
#define RINGCAST_TENSOR_DENSE (1u << 23)

/* A tensor to send. Strides are in elements and may be 0 (expanded) or negative; NULL means C
 * order. Without RINGCAST_TENSOR_DENSE the tensor is packed in C order while it is copied. Elements
 * of no whole number of bytes are packed bit by bit, and must be in C order; with
 * RINGCAST_ITEM_PADDED each element is padded to whole bytes, as torch stores int1 to int7. */
struct ringcast_tensor {
  const void *data;
  struct ringcast_dtype dtype;
  int32_t ndim;
  const int64_t *shape;
  const int64_t *strides;
  /* RINGCAST_TENSOR_DENSE, RINGCAST_ITEM_NUMPY, _TORCH, _REQUIRES_GRAD, _PARAMETER, _PADDED, _CUDA,
   * _CUPY, _JAX. */
  uint32_t flags;
};

/* Bytes of a tensor packed in C order. -EINVAL: ndim, dtype, shape or strides out of range, too
 * large to count, RINGCAST_TENSOR_DENSE with gaps, or RINGCAST_ITEM_PADDED without bits to pad. */
RINGCAST_API int ringcast_tensor_bytes(const struct ringcast_tensor *tensor, uint64_t *out);

/* Adds up the size of a frame. Start from all zero; then one call for each entry, in the order of
 * building. `data_bytes` is 0 for scalars. Tensors start on lines. */
struct ringcast_frame_plan {
  uint32_t count;
  uint64_t meta, data;
};
RINGCAST_API void ringcast_plan_tensor(struct ringcast_frame_plan *plan, size_t key_bytes,
                                       int32_t ndim, uint64_t data_bytes);
RINGCAST_API void ringcast_plan_item(struct ringcast_frame_plan *plan, size_t key_bytes,
                                     uint64_t data_bytes);
/* A tensor with bytes outside the frame (POOL). */
RINGCAST_API void ringcast_plan_device_tensor(struct ringcast_frame_plan *plan, size_t key_bytes,
                                              int32_t ndim);
/* The frame's exact size: the bytes to reserve. */
RINGCAST_API uint64_t ringcast_plan_bytes(const struct ringcast_frame_plan *plan);

/* The state of a frame under construction; the fields are private. */
struct ringcast_frame_builder {
  uint8_t *base;
  uint64_t capacity;
  uint32_t count, next;
  uint64_t meta, meta_end, data;
};

/* Begins a frame in `memory`, which has room for `bytes`. -EMSGSIZE if the plan needs more. */
RINGCAST_API int ringcast_build_begin(struct ringcast_frame_builder *builder, void *memory,
                                      size_t bytes, const struct ringcast_frame_plan *plan,
                                      enum ringcast_root root, uint32_t tag);

/* Each adds one entry. `key` NULL: no item of the dict (RINGCAST_ITEM_KEYED is not set). -ENOSPC:
 * the plan has no room for the entry. _tensor copies. After _tensor_in_place the caller writes
 * `*out_bytes` bytes to `*out`: in C order, or, for a RINGCAST_TENSOR_DENSE tensor, in the order of
 * the tensor's memory. */
RINGCAST_API int ringcast_build_tensor(struct ringcast_frame_builder *builder, const char *key,
                                       size_t key_bytes, const struct ringcast_tensor *tensor);
RINGCAST_API int ringcast_build_tensor_in_place(struct ringcast_frame_builder *builder,
                                                const char *key, size_t key_bytes,
                                                const struct ringcast_tensor *tensor, void **out,
                                                uint64_t *out_bytes);
/* A tensor with its bytes in the writer's device pool, packed in C order. `tensor->data` is not
 * used. -EINVAL: no bytes (a tensor without bytes is INLINE), no RINGCAST_ITEM_CUDA, or an end
 * beyond UINT64_MAX. */
RINGCAST_API int ringcast_build_device_tensor(struct ringcast_frame_builder *builder,
                                              const char *key, size_t key_bytes,
                                              const struct ringcast_tensor *tensor,
                                              uint64_t offset);
/* Names the words (of ringcast_gpu_lease) that say when the device tensors are ready. A frame with
 * a device tensor needs this call, before or after the tensor. -EINVAL: epoch or generation 0. */
RINGCAST_API int ringcast_build_device(struct ringcast_frame_builder *builder, uint32_t slot,
                                       uint32_t epoch, uint64_t generation);
/* Kinds with data: STR, BYTES, PICKLE, BUFFER, ERROR. `data` NULL: the caller writes to `*out`
 * (else `out` may be NULL). */
RINGCAST_API int ringcast_build_data(struct ringcast_frame_builder *builder,
                                     enum ringcast_item_kind kind, const char *key,
                                     size_t key_bytes, const void *data, uint64_t bytes,
                                     uint32_t flags, void **out);
/* The OBJECT: `data` as above; the parts are built after all items, from entry `first_part` on. */
RINGCAST_API int ringcast_build_object(struct ringcast_frame_builder *builder, const char *key,
                                       size_t key_bytes, const void *data, uint64_t bytes,
                                       uint32_t first_part, uint32_t parts, void **out);
/* Kinds without data: NONE, BOOL, INT, LEAF (`value`), and FLOAT. */
RINGCAST_API int ringcast_build_scalar(struct ringcast_frame_builder *builder,
                                       enum ringcast_item_kind kind, const char *key,
                                       size_t key_bytes, int64_t value);
RINGCAST_API int ringcast_build_float(struct ringcast_frame_builder *builder, const char *key,
                                      size_t key_bytes, double value);
/* Sets the hash of entry number `entry`, a TENSOR that has been built: a caller that writes the
 * data in place knows the hash only afterwards. A second call replaces the hash. `flag` is
 * RINGCAST_ITEM_SHA256 or _XXH3. -EINVAL: another flag, or entry `entry` is not a tensor built so
 * far. */
RINGCAST_API int ringcast_build_hash(struct ringcast_frame_builder *builder, uint32_t entry,
                                     uint32_t flag, uint64_t hash);
/* Ends the frame; commit `*out_bytes`. -EINVAL if the plan named more entries than were built, or
 * if the frame has a device tensor and ringcast_build_device was not called. */
RINGCAST_API int ringcast_build_end(struct ringcast_frame_builder *builder, size_t *out_bytes);

/* Copies `tensor` to `out`, packed in C order, or, of a RINGCAST_TENSOR_DENSE one, as it lies.
 * `out` has room for ringcast_tensor_bytes. -EINVAL as ringcast_tensor_bytes. */
RINGCAST_API int ringcast_tensor_pack(const struct ringcast_tensor *tensor, void *out);

/* ---- Reading --------------------------------------------------------------------------------- */

struct ringcast_frame_reader {
  const uint8_t *base;
  uint64_t bytes, meta_bytes;
  uint32_t count;
  uint32_t tag;
  uint16_t root; /* enum ringcast_root */
  uint16_t version;
  uint32_t device_slot, device_epoch; /* epoch 0: no tensor of the frame is in a pool */
  uint64_t device_generation;
};

/* One entry, copied and checked: key and data lie within the frame, and so does every element of
 * a tensor. Packed, a tensor is no larger than its data. But entries may share bytes: a caller
 * that copies all entries adds up their bytes, and treats a sum above the frame's own bytes as
 * damage. */
struct ringcast_item {
  const char *key; /* not terminated; NULL if the entry has none */
  size_t key_bytes;
  uint16_t kind;
  uint32_t flags;
  const void *data; /* NULL unless INLINE */
  uint64_t bytes;
  union {
    int64_t i;
    double f;
  } scalar;
  uint64_t hash; /* as the sender says, not checked; 0 unless a flag says which hash */
  struct ringcast_dtype dtype;
  int32_t ndim;
  int64_t shape[RINGCAST_MAX_NDIM];
  /* Elements; 0 or more, and not always C order's: RINGCAST_TENSOR_DENSE. */
  int64_t strides[RINGCAST_MAX_NDIM];
  uint8_t placement;      /* enum ringcast_placement */
  uint64_t device_offset; /* of POOL; not checked against the size of the pool */
};

/* Opens a frame. -EPROTONOSUPPORT: the frame is of a later version (stored in reader->version);
 * -EPROTO: not a tensor frame, or damaged. */
RINGCAST_API int ringcast_frame_open(struct ringcast_frame_reader *reader, const void *data,
                                     size_t bytes);
/* Copies out entry `index`. -ENOENT past the last entry, -EPROTO if it is damaged or of an unknown
 * kind. */
RINGCAST_API int ringcast_frame_item(const struct ringcast_frame_reader *reader, uint32_t index,
                                     struct ringcast_item *out);
/* Finds the entry of the dict with the given key, and copies it out. -ENOENT, -EPROTO. */
RINGCAST_API int ringcast_frame_find(const struct ringcast_frame_reader *reader, const char *key,
                                     size_t key_bytes, struct ringcast_item *out);

#ifdef __cplusplus
}
#endif
#endif
