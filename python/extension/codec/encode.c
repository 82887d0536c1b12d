/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a Python object to a frame, in two passes.
 *
 * Measure: a dict with str keys becomes one part for each item, in order; any other object is a
 * single part, the whole value. Scalars, text, bytes, tensors and arrays are parts of their own;
 * any other value with a native form becomes a stream (containers_write.c), followed by its tensors
 * and long text as further parts. Values without a native form go into one list, pickled by
 * protocol 5, with the out-of-band buffers at the end. All Python code of the encoding runs in the
 * first pass, and may change any object: the parts hold references of their own. Then the frame's
 * size is known to the byte.
 *
 * Write: first the entries are built, which fixes each part's place in the ring; then all data is
 * copied in one go, without the GIL if large. With hashes, tensors are copied one by one, and
 * hashlib is called (hash.c), which runs no user code. No other Python code runs, and the only
 * other failure is a mismatch between the library's plan and build.
 */
#include "python/extension/codec/encode.h"

#include "python/extension/codec/containers.h"
#include "python/extension/codec/device.h"
#include "python/extension/codec/hash.h"
#include "python/extension/codec/leaves.h"
#include "python/extension/codec/references.h"
#include "python/extension/spans.h"

/* A larger dict is a nested value, unless it is a dict of tensors: entries of 64 bytes are for
 * receivers that look for single keys, and a tensor needs an entry anyway. */
enum { MOST_ITEMS = 64 };
/* Of so many records the keys are told once, in place of an entry for each record. */
enum { RECORDS_LEAST = 8 };

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Memory kept for the next frame, at most. */
enum { STREAM_KEPT = 1 << 18, PARTS_KEPT = 256 };

void rc_py_parts_begin(struct rc_py_encoding *encoding) {
  struct rc_py_spare *spare = &encoding->state->spare;
  encoding->parts = spare->parts;
  encoding->room = spare->part_room;
  encoding->stream = spare->stream;
  encoding->stream_room = spare->stream_room;
  encoding->texts = spare->texts;
  encoding->repeats = spare->repeats;
  *spare = (struct rc_py_spare){0};
}

/* Drops all parts, leaves and notes, and keeps the memory. */
static void parts_drop(struct rc_py_encoding *encoding) {
  for (size_t i = 0; i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    rc_py_source_clear(&part->source);
    Py_XDECREF(part->key);
    Py_XDECREF(part->value);
  }
  encoding->count = 0;
  encoding->stream_bytes = 0;
  encoding->on_device = 0;
  encoding->has_streams = false;
  encoding->is_loose = false;
  Py_CLEAR(encoding->leaves);
  Py_CLEAR(encoding->leaf_containers);
  encoding->noted = 0;
  if (encoding->repeats) rc_py_repeats_clear(encoding->repeats);
}

static void give_memory(struct rc_py_encoding *encoding) {
  struct rc_py_spare *spare = &encoding->state->spare;
  if (!spare->stream && encoding->stream_room <= STREAM_KEPT) {
    spare->stream = encoding->stream;
    spare->stream_room = encoding->stream_room;
  } else {
    PyMem_Free(encoding->stream);
  }
  if (!spare->parts && encoding->room <= PARTS_KEPT) {
    spare->parts = encoding->parts;
    spare->part_room = encoding->room;
  } else {
    PyMem_Free(encoding->parts);
  }
  if (!spare->texts) {
    spare->texts = encoding->texts;
  } else {
    PyMem_Free(encoding->texts);
  }
  if (!spare->repeats) {
    spare->repeats = encoding->repeats;
  } else {
    rc_py_repeats_free(encoding->repeats);
  }
  encoding->stream = NULL;
  encoding->parts = NULL;
  encoding->texts = NULL;
  encoding->repeats = NULL;
}

void rc_py_encoding_clear(struct rc_py_encoding *encoding) {
  parts_drop(encoding);
  give_memory(encoding);
  Py_CLEAR(encoding->class_cache);
}

/* ---- Measure --------------------------------------------------------------------------------- */

static bool has_many(const struct rc_py_state *state, PyObject *dict) {
  PyObject *key, *value;
  Py_ssize_t position = 0;
  if (PyDict_GET_SIZE(dict) <= MOST_ITEMS || !PyDict_Next(dict, &position, &key, &value))
    return false;
  if (PyDict_GET_SIZE(dict) >= (Py_ssize_t)RINGCAST_MAX_ENTRIES / 2) return true;
  const PyObject *type = (PyObject *)Py_TYPE(value);
  return type != state->torch.tensor && type != state->torch.parameter &&
         type != state->numpy.ndarray;
}

static bool is_plain(PyObject *value) {
  if (PyUnicode_CheckExact(value)) return PyUnicode_GET_LENGTH(value) <= RINGCAST_TAG_TEXT_MOST;
  return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
         PyFloat_CheckExact(value);
}

/* Whether the first two values are dicts with the same keys, and the first one's own values are
 * plain: as one nested value, the dict's values are records. */
static bool has_records(PyObject *dict) {
  PyObject *key, *first, *second, *other, *value;
  Py_ssize_t position = 0, at = 0, at_other = 0;
  if (PyDict_GET_SIZE(dict) < RECORDS_LEAST || !PyDict_Next(dict, &position, &key, &first))
    return false;
  if (!PyDict_CheckExact(first) || !PyDict_Next(dict, &position, &key, &second)) return false;
  if (!PyDict_CheckExact(second) || PyDict_GET_SIZE(first) != PyDict_GET_SIZE(second)) return false;
  while (PyDict_Next(second, &at_other, &other, &value)) {
    if (!PyDict_Next(first, &at, &key, &value) || key != other || !is_plain(value)) return false;
  }
  return at > 0;
}

/* Takes the dict's items before any Python code can change it. 1: done; 0: a key is no str
 * with UTF-8, or too many items; -1: raised. */
static int take_items(struct rc_py_encoding *encoding, PyObject *dict) {
  PyObject *key, *value;
  Py_ssize_t position = 0;
  if (has_many(encoding->state, dict) || has_records(dict)) return 0;
  while (PyDict_Next(dict, &position, &key, &value)) {
    if (!PyUnicode_CheckExact(key)) return 0;
    struct rc_py_part *part = rc_py_part_add(encoding, key, value);
    if (!part) return -1;
    int has_text = rc_py_utf8(key, &part->utf8, &part->utf8_bytes);
    if (has_text <= 0) return has_text;
  }
  return 1;
}

/* 1, or 0: the str has no UTF-8, -1. */
static int describe_text(struct rc_py_part *part) {
  const char *text;
  Py_ssize_t bytes;
  int has_text = rc_py_utf8(part->value, &text, &bytes);
  if (has_text <= 0) return has_text;
  part->data = text;
  part->kind = RINGCAST_ITEM_STR;
  part->bytes = (uint64_t)bytes;
  return 1;
}

/* 1, or 0: the int is too large for 64 bits. */
static int describe_int(struct rc_py_part *part) {
  int overflow;
  part->scalar.i = PyLong_AsLongLongAndOverflow(part->value, &overflow);
  part->kind = RINGCAST_ITEM_INT;
  return !overflow;
}

/* Exact types only: a subclass may mean more than its bytes. 1, 0 (no scalar), -1. */
static int describe_scalar(struct rc_py_part *part) {
  PyObject *value = part->value;
  if (value == Py_None) {
    part->kind = RINGCAST_ITEM_NONE;
  } else if (PyBool_Check(value)) {
    part->kind = RINGCAST_ITEM_BOOL;
    part->scalar.i = value == Py_True;
  } else if (PyLong_CheckExact(value)) {
    return describe_int(part);
  } else if (PyFloat_CheckExact(value)) {
    part->kind = RINGCAST_ITEM_FLOAT;
    part->scalar.f = PyFloat_AS_DOUBLE(value);
  } else if (PyUnicode_CheckExact(value)) {
    return describe_text(part);
  } else if (PyBytes_CheckExact(value)) {
    part->kind = RINGCAST_ITEM_BYTES;
    part->data = PyBytes_AS_STRING(value);
    part->bytes = (uint64_t)PyBytes_GET_SIZE(value);
  } else {
    return 0;
  }
  return 1;
}

/* Pickles `object` into part `index` and appends its buffers. `root`: the value whose leaves
 * `object` lists, or NULL. DONE, RAISED, or CYCLE: the pickle met a container of the leaves. */
static enum rc_py_put add_pickle(struct rc_py_encoding *encoding, size_t index, PyObject *object,
                                 PyObject *root) {
  encoding->pickled = true;
  PyObject *data, *buffers;
  int dumped =
      rc_py_leaves_dump(encoding->state, object, root, encoding->leaf_containers, &data, &buffers);
  if (dumped < 0) return RC_PY_PUT_RAISED;
  if (dumped == 0) return RC_PY_PUT_CYCLE;
  struct rc_py_part *part = &encoding->parts[index];
  Py_XSETREF(part->value, data);
  part->kind = RINGCAST_ITEM_PICKLE;
  part->data = PyBytes_AS_STRING(data);
  part->bytes = (uint64_t)PyBytes_GET_SIZE(data);
  bool ok = true;
  for (Py_ssize_t i = 0; buffers && ok && i < PyList_GET_SIZE(buffers); i++) {
    ok = rc_py_part_add_buffer(encoding, PyList_GET_ITEM(buffers, i), RINGCAST_ITEM_BUFFER);
  }
  Py_XDECREF(buffers);
  if (!ok) return RC_PY_PUT_RAISED;
  return RC_PY_PUT_DONE;
}

/* Describes part `index`, an item of the root or the root itself, if the value fits into an entry:
 * 1. 0: the value is an OBJECT or a leaf; -1: raised. */
static int describe_plain(struct rc_py_encoding *encoding, size_t index, struct rc_py_step *step) {
  struct rc_py_part *part = &encoding->parts[index];
  int described = describe_scalar(part);
  if (described != 0) return described;
  struct rc_py_source source = {.keep = NULL};
  part->kind = RINGCAST_ITEM_OBJECT; /* or a LEAF, as is known once its stream is written */
  described = rc_py_part_tensor(encoding, part->value, step, &source, &part->bytes);
  if (described > 0) {
    part->kind = RINGCAST_ITEM_TENSOR;
    part->source = source;
  }
  return described;
}

/* Writes the stream of the OBJECT at part `index`. As rc_py_write_tokens. */
static enum rc_py_put describe_nested(struct rc_py_encoding *encoding, size_t index,
                                      struct rc_py_step *step) {
  struct rc_py_part *part = &encoding->parts[index];
  size_t start = encoding->stream_bytes, first_part = encoding->count;
  enum rc_py_put put = rc_py_write_tokens(encoding, part->value, step);
  if (put != RC_PY_PUT_DONE) return put;
  part = &encoding->parts[index]; /* the array may have moved */
  part->kind = RINGCAST_ITEM_OBJECT;
  part->scalar.i = (int64_t)start;
  part->bytes = encoding->stream_bytes - start;
  part->first_part = (uint32_t)first_part;
  part->parts = (uint32_t)(encoding->count - first_part);
  return RC_PY_PUT_DONE;
}

static enum rc_py_put add_leaves(struct rc_py_encoding *encoding, PyObject *root) {
  if (!encoding->leaves) return RC_PY_PUT_DONE;
  size_t index = encoding->count;
  if (!rc_py_part_add(encoding, NULL, NULL)) return RC_PY_PUT_RAISED;
  return add_pickle(encoding, index, encoding->leaves, root);
}

/* Whether ITEM may refer to a part: short text and bytes are written again, as within streams. */
static bool is_worth_a_reference(const struct rc_py_part *part) {
  bool is_data = part->kind == RINGCAST_ITEM_STR || part->kind == RINGCAST_ITEM_BYTES;
  return part->kind == RINGCAST_ITEM_TENSOR || (is_data && part->bytes > INLINE_MOST);
}

/* Describes the items without a stream first, as streams may refer to such items. */
static bool measure_plain_items(struct rc_py_encoding *encoding, PyObject *dict) {
  size_t items = encoding->count;
  bool has_notes = false;
  for (size_t i = 0; i < items; i++) {
    struct rc_py_step step = {.container = dict, .key = encoding->parts[i].key};
    PyObject *value = encoding->parts[i].value;
    if (has_notes && rc_py_is_repeated(encoding, value)) {
      encoding->parts[i].kind = RINGCAST_ITEM_OBJECT; /* an ITEM and nothing else */
      continue;
    }
    /* The dict and the part have two; to export an array's buffer adds one, but that comes later.
     */
    bool may_repeat = Py_REFCNT(value) > 2;
    int described = describe_plain(encoding, i, &step);
    if (described < 0) return false;
    bool is_noted = described > 0 && may_repeat && is_worth_a_reference(&encoding->parts[i]);
    if (is_noted && !rc_py_repeats_item(encoding, value, i)) return false;
    has_notes = has_notes || is_noted;
  }
  return true;
}

static enum rc_py_put measure_dict(struct rc_py_encoding *encoding, PyObject *dict) {
  size_t items = encoding->count;
  if (!measure_plain_items(encoding, dict)) return RC_PY_PUT_RAISED;
  for (size_t i = 0; i < items; i++) {
    if (encoding->parts[i].kind != RINGCAST_ITEM_OBJECT) continue;
    struct rc_py_step step = {.container = dict, .key = encoding->parts[i].key};
    enum rc_py_put put = describe_nested(encoding, i, &step);
    if (put == RC_PY_PUT_DONE) continue;
    if (put != RC_PY_PUT_LEAF) return put;
    Py_ssize_t leaf = rc_py_leaf_add(encoding, encoding->parts[i].value, &step);
    if (leaf < 0) return RC_PY_PUT_RAISED;
    encoding->parts[i].kind = RINGCAST_ITEM_LEAF;
    encoding->parts[i].scalar.i = leaf;
  }
  return add_leaves(encoding, dict);
}

static enum rc_py_put measure_value(struct rc_py_encoding *encoding, PyObject *object) {
  struct rc_py_step step = {.container = NULL};
  if (!rc_py_part_add(encoding, NULL, object)) return RC_PY_PUT_RAISED;
  int described = describe_plain(encoding, 0, &step);
  if (described < 0) return RC_PY_PUT_RAISED;
  if (described > 0) return RC_PY_PUT_DONE;
  enum rc_py_put put = describe_nested(encoding, 0, &step);
  if (put != RC_PY_PUT_DONE) return put;
  return add_leaves(encoding, object);
}

/* The whole in a pickle. */
static bool measure_pickle(struct rc_py_encoding *encoding, PyObject *object) {
  struct rc_py_step step = {.container = NULL};
  parts_drop(encoding);
  encoding->root = RINGCAST_ROOT_VALUE;
  if (encoding->allow_pickle) {
    return rc_py_part_add(encoding, NULL, object) &&
           add_pickle(encoding, 0, object, NULL) == RC_PY_PUT_DONE;
  }
  rc_py_refuse(encoding, object, &step);
  return false;
}

/* Sets the streams' addresses: the memory does not move any more. */
static void place_streams(struct rc_py_encoding *encoding) {
  for (size_t i = 0; i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    if (part->kind == RINGCAST_ITEM_OBJECT) part->data = encoding->stream + part->scalar.i;
  }
}

static bool measure(struct rc_py_encoding *encoding, PyObject *object) {
  enum rc_py_put put;
  int taken = 0;
  if (PyDict_CheckExact(object)) taken = take_items(encoding, object);
  if (taken < 0) return false;
  if (taken > 0) {
    encoding->root = RINGCAST_ROOT_DICT;
    put = measure_dict(encoding, object);
  } else {
    parts_drop(encoding);
    encoding->root = RINGCAST_ROOT_VALUE;
    put = measure_value(encoding, object);
  }
  if (put == RC_PY_PUT_RAISED) return false;
  return put == RC_PY_PUT_DONE || measure_pickle(encoding, object);
}

bool rc_py_encoding_measure(struct rc_py_encoding *encoding, struct rc_py_state *state,
                            PyObject *object, bool allow_pickle, int32_t sends_from,
                            bool takes_empty) {
  memset(encoding, 0, sizeof *encoding);
  encoding->state = state;
  encoding->sends_from = sends_from;
  encoding->object = object;
  encoding->allow_pickle = allow_pickle;
  encoding->takes_empty = takes_empty;
  rc_py_parts_begin(encoding);
  bool ok = measure(encoding, object) && rc_py_encoding_plan(encoding);
  if (ok) {
    place_streams(encoding);
  } else {
    rc_py_encoding_clear(encoding);
  }
  return ok;
}

/* ---- Write ----------------------------------------------------------------------------------- */

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

/* Whether the frame has the tensor's bytes in the order of memory: see rc_py_source_finish. */
static bool is_in_order(const struct ringcast_tensor *tensor) {
  return !tensor->strides || tensor->flags & RINGCAST_TENSOR_DENSE;
}

static int copy_parts(const struct rc_py_encoding *encoding, bool is_spilled) {
  int rc = 0;
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    bool is_tensor = part->kind == RINGCAST_ITEM_TENSOR;
    if (!part->bytes || (is_tensor && (part->source.is_on_device || part->source.is_empty)))
      continue;
    if (!is_tensor) {
      rc_py_copy_bytes(is_spilled, part->out, part->data, part->bytes);
    } else if (is_in_order(&part->source.tensor)) {
      rc_py_copy_bytes(is_spilled, part->out, part->source.tensor.data, part->bytes);
    } else {
      rc = ringcast_tensor_pack(&part->source.tensor, part->out);
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
      rc_py_copy_maybe_without_gil(false, part->out, part->data, part->bytes);
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
  rc_py_spans_phase(encoding->trace, RC_PY_PHASE_COPY);
  if (encoding->hash) {
    rc = copy_and_hash(encoding, &builder);
    if (rc < 0) return rc;
    return ringcast_build_end(&builder, out_bytes);
  }
  /* The header may come before the data: nothing is published before the commit, and then all. */
  rc = ringcast_build_end(&builder, out_bytes);
  if (rc < 0) return rc;
  return copy_all(encoding, is_spilled);
}

int rc_py_encoding_write_device(struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu,
                                const struct ringcast_span *span, uint32_t tag,
                                const struct ringcast_gpu_extent *extent, size_t *out_bytes) {
  struct ringcast_frame_builder builder;
  int rc = build(encoding, &builder, span, tag);
  if (rc == 0 && extent)
    rc = ringcast_build_device(&builder, extent->slot, extent->epoch, extent->generation);
  rc_py_spans_phase(encoding->trace, RC_PY_PHASE_COPY);
  if (rc == 0 && !extent) rc = rc_py_device_fetch(encoding, gpu);
  if (rc < 0) return rc;
  if (encoding->hash) {
    rc = copy_and_hash(encoding, &builder);
  } else {
    rc = copy_all(encoding, false);
  }
  if (rc < 0) return rc;
  return ringcast_build_end(&builder, out_bytes);
}
