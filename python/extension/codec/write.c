/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the measured parts to a frame: the second of encode.c's two passes.
 *
 * First the entries are built, which fixes each part's place in the ring; then all data is copied
 * in one go, without the GIL if large. No Python code runs and nothing is allocated. So the only
 * possible failure is a mismatch between the library's plan and build. An exception are hashes:
 * hash.c calls hashlib, which runs no user code.
 */
#include "python/extension/codec/copy.h"
#include "python/extension/codec/device.h"
#include "python/extension/codec/hash.h"
#include "python/extension/spans.h"

static int build_part(struct ringcast_frame_builder *builder, struct rc_py_part *part,
                      bool in_pool) {
  uint64_t bytes;
  size_t key_bytes = (size_t)part->utf8_bytes;
  switch (part->kind) {
  case RINGCAST_ITEM_TENSOR:
    if (in_pool && rc_py_is_on_device(part)) {
      return ringcast_build_device_tensor(builder, part->utf8, key_bytes, &part->source.tensor,
                                          part->scalar.in_pool);
    }
    return ringcast_build_tensor_in_place(builder, part->utf8, key_bytes, &part->source.tensor,
                                          &part->out, &bytes);
  case RINGCAST_ITEM_OBJECT:
    return ringcast_build_object(builder, part->utf8, key_bytes, NULL, part->bytes,
                                 part->first_part, part->parts, &part->out);
  case RINGCAST_ITEM_FLOAT:
    return ringcast_build_float(builder, part->utf8, key_bytes, part->scalar.f);
  case RINGCAST_ITEM_NONE:
  case RINGCAST_ITEM_BOOL:
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_LEAF:
    return ringcast_build_scalar(builder, part->kind, part->utf8, key_bytes, part->scalar.i);
  default:
    return ringcast_build_data(builder, part->kind, part->utf8, key_bytes, NULL, part->bytes,
                               part->flags, &part->out);
  }
}

static bool is_in_order(const struct ringcast_tensor *tensor) {
  if (tensor->flags & RINGCAST_TENSOR_DENSE) return true;
  return tensor->data &&
         (!tensor->strides || rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides));
}

static int copy_parts(const struct rc_py_encoding *encoding, bool is_spilled) {
  int rc = 0;
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    bool is_tensor = part->kind == RINGCAST_ITEM_TENSOR;
    if (!part->bytes || (is_tensor && (part->source.is_on_device || part->source.is_empty)))
      continue;
    if (is_tensor && !is_in_order(&part->source.tensor)) {
      rc = ringcast_tensor_pack(&part->source.tensor, part->out);
    } else {
      rc_py_copy_of(is_spilled, part->out, is_tensor ? part->source.tensor.data : part->data,
                    part->bytes);
    }
  }
  return rc;
}

/* Hashes each tensor while its copy is in the cache. */
static int copy_and_hash(const struct rc_py_encoding *encoding,
                         struct ringcast_frame_builder *builder) {
  int rc = 0;
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    uint64_t hash;
    if (part->kind == RINGCAST_ITEM_TENSOR) {
      struct ringcast_tensor tensor = part->source.tensor;
      if (part->source.is_on_device) { /* on the device, in the pool's layout already */
        tensor.data = part->out;
        tensor.strides = NULL;
      }
      rc = rc_py_hash_pack(encoding->state, &tensor, part->bytes, part->out, encoding->hash, &hash);
      if (rc == 0) rc = ringcast_build_hash(builder, (uint32_t)i, encoding->hash, hash);
    } else if (part->bytes) {
      rc_py_copy(false, part->out, part->data, part->bytes);
    }
  }
  return rc;
}

static int build(struct rc_py_encoding *encoding, struct ringcast_frame_builder *builder,
                 const struct ringcast_span *span, uint32_t tag) {
  int rc =
      ringcast_build_begin(builder, span->data, span->bytes, &encoding->plan, encoding->root, tag);
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    if (encoding->hash)
      encoding->parts[i].source.tensor.flags &= ~RINGCAST_TENSOR_DENSE; /* a hash is of C order */
    rc = build_part(builder, &encoding->parts[i], encoding->in_pool);
  }
  return rc;
}

static int copy_all(const struct rc_py_encoding *encoding, bool is_spilled) {
  int rc;
  if (encoding->copy_bytes <= RC_PY_COPY_WITH_GIL) return copy_parts(encoding, is_spilled);
  Py_BEGIN_ALLOW_THREADS
  rc = copy_parts(encoding, is_spilled);
  Py_END_ALLOW_THREADS
  return rc;
}

int rc_py_encoding_write(struct rc_py_encoding *encoding, bool is_spilled,
                         const struct ringcast_span *span, uint32_t tag, size_t *out_bytes) {
  struct ringcast_frame_builder builder;
  int rc = build(encoding, &builder, span, tag);
  if (rc < 0) return rc;
  rc_py_spans_phase(encoding->call, RC_PY_SPAN_COPY);
  if (encoding->hash) {
    rc = copy_and_hash(encoding, &builder);
    return rc < 0 ? rc : ringcast_build_end(&builder, out_bytes);
  }
  rc = ringcast_build_end(&builder, out_bytes);
  if (rc < 0) return rc;
  return copy_all(encoding, is_spilled);
}

int rc_py_encoding_write_device(struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu,
                                const struct ringcast_span *span, uint32_t tag,
                                const struct ringcast_gpu_extent *lease, size_t *out_bytes) {
  struct ringcast_frame_builder builder;
  int rc = build(encoding, &builder, span, tag);
  if (rc == 0 && lease)
    rc = ringcast_build_device(&builder, lease->slot, lease->epoch, lease->generation);
  rc_py_spans_phase(encoding->call, RC_PY_SPAN_COPY);
  if (rc == 0 && !lease) rc = rc_py_device_fetch(encoding, gpu);
  if (rc < 0) return rc;
  rc = encoding->hash ? copy_and_hash(encoding, &builder) : copy_all(encoding, false);
  return rc < 0 ? rc : ringcast_build_end(&builder, out_bytes);
}
