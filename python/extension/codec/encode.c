/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a Python object to a frame, in two passes.
 *
 * Measure: a dict with str keys becomes one part for each item, in order; any other object is a
 * single part, the whole value. Scalars, text, bytes, tensors and arrays are parts of their own;
 * any other value with a native form becomes a stream (token_write.c), followed by its tensors and
 * long text as further parts. Values without a native form go into one list, pickled by protocol 5,
 * with the out-of-band buffers at the end. All Python code of the encoding runs in the first pass,
 * and may change any object: the parts hold references of their own. Then the frame's size is known
 * to the byte.
 *
 * Write: see write.c.
 */
#include "python/extension/codec/classes.h"
#include "python/extension/codec/leaves.h"
#include "python/extension/codec/device.h"
#include "python/extension/codec/encode.h"

/* A larger dict is a nested value, unless it is a dict of tensors: entries of 64 bytes are for
 * receivers that look for single keys, and a tensor needs an entry anyway. */
enum { MOST_ITEMS = 64 };
enum {
  RECORDS_LEAST = 8
}; /* of so many records the keys are told once, in place of an entry for each record */

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

/* Takes the dict's items before any Python code can change the dict. 1: done; 0: a key is no str
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

/* Pickles `object` into part `index` and appends the pickle's buffers. `root`: the value whose
 * leaves `object` lists, or NULL. DONE, RAISED, or CYCLE: the pickle met a container of the
 * leaves. */
static enum rc_py_token_writer add_pickle(struct rc_py_encoding *encoding, size_t index,
                                          PyObject *object, PyObject *root) {
  encoding->pickled = true;
  PyObject *data, *buffers;
  int dumped = rc_py_leaves_dump(encoding->state, object, root, encoding->holders, &data, &buffers);
  if (dumped <= 0) return dumped < 0 ? RC_PY_PUT_RAISED : RC_PY_PUT_CYCLE;
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
  return ok ? RC_PY_PUT_DONE : RC_PY_PUT_RAISED;
}

/* Describes part `index`, an item of the root or the root itself, if the value fits into an entry:
 * 1. 0: the value is an OBJECT or a leaf; -1: raised. */
static int describe_plain(struct rc_py_encoding *encoding, size_t index, struct rc_py_step *step) {
  struct rc_py_part *part = &encoding->parts[index];
  int described = describe_scalar(part);
  if (described != 0) return described;
  struct rc_py_source source = {.keep = NULL};
  described = rc_py_part_tensor(encoding, part->value, step, &source, &part->bytes);
  part->kind = described > 0 ? RINGCAST_ITEM_TENSOR : RINGCAST_ITEM_OBJECT;
  if (described > 0) part->source = source;
  return described;
}

/* Writes the stream of the OBJECT at part `index`. As rc_py_token_writer. */
static enum rc_py_token_writer describe_nested(struct rc_py_encoding *encoding, size_t index,
                                               struct rc_py_step *step) {
  struct rc_py_part *part = &encoding->parts[index];
  size_t start = encoding->stream_bytes, first_part = encoding->count;
  enum rc_py_token_writer put = rc_py_token_writer(encoding, part->value, step);
  if (put != RC_PY_PUT_DONE) return put;
  part = &encoding->parts[index]; /* the array may have moved */
  part->kind = RINGCAST_ITEM_OBJECT;
  part->scalar.i = (int64_t)start;
  part->bytes = encoding->stream_bytes - start;
  part->first_part = (uint32_t)first_part;
  part->parts = (uint32_t)(encoding->count - first_part);
  return RC_PY_PUT_DONE;
}

static enum rc_py_token_writer add_leaves(struct rc_py_encoding *encoding, PyObject *root) {
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
  for (size_t i = 0; i < items; i++) {
    struct rc_py_step step = {.container = dict, .key = encoding->parts[i].key};
    PyObject *value = encoding->parts[i].value;
    if (rc_py_is_repeated(encoding, value)) {
      encoding->parts[i].kind = RINGCAST_ITEM_OBJECT; /* an ITEM and nothing else */
      continue;
    }
    int described = describe_plain(encoding, i, &step);
    if (described < 0) return false;
    /* Two references are the dict's and the part's. */
    bool is_noted =
        described > 0 && Py_REFCNT(value) > 2 && is_worth_a_reference(&encoding->parts[i]);
    if (is_noted && !rc_py_repeats_item(encoding, value, i)) return false;
  }
  return true;
}

static enum rc_py_token_writer measure_dict(struct rc_py_encoding *encoding, PyObject *dict) {
  size_t items = encoding->count;
  if (!measure_plain_items(encoding, dict)) return RC_PY_PUT_RAISED;
  for (size_t i = 0; i < items; i++) {
    if (encoding->parts[i].kind != RINGCAST_ITEM_OBJECT) continue;
    struct rc_py_step step = {.container = dict, .key = encoding->parts[i].key};
    enum rc_py_token_writer put = describe_nested(encoding, i, &step);
    if (put == RC_PY_PUT_DONE) continue;
    if (put != RC_PY_PUT_LEAF) return put;
    Py_ssize_t leaf = rc_py_leaf_add(encoding, encoding->parts[i].value, &step);
    if (leaf < 0) return RC_PY_PUT_RAISED;
    encoding->parts[i].kind = RINGCAST_ITEM_LEAF;
    encoding->parts[i].scalar.i = leaf;
  }
  return add_leaves(encoding, dict);
}

static enum rc_py_token_writer measure_value(struct rc_py_encoding *encoding, PyObject *object) {
  struct rc_py_step step = {.container = NULL};
  if (!rc_py_part_add(encoding, NULL, object)) return RC_PY_PUT_RAISED;
  int described = describe_plain(encoding, 0, &step);
  if (described != 0) return described < 0 ? RC_PY_PUT_RAISED : RC_PY_PUT_DONE;
  enum rc_py_token_writer put = describe_nested(encoding, 0, &step);
  if (put != RC_PY_PUT_DONE) return put;
  return add_leaves(encoding, object);
}

/* The whole in a pickle. */
static bool measure_pickle(struct rc_py_encoding *encoding, PyObject *object) {
  struct rc_py_step step = {.container = NULL};
  rc_py_parts_drop(encoding);
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
  enum rc_py_token_writer put;
  int taken = PyDict_CheckExact(object) ? take_items(encoding, object) : 0;
  if (taken < 0) return false;
  if (taken > 0) {
    encoding->root = RINGCAST_ROOT_DICT;
    put = measure_dict(encoding, object);
  } else {
    rc_py_parts_drop(encoding);
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
  encoding->class_cache = rc_py_class_cache(&state->classes);
  if (!encoding->class_cache) return false;
  rc_py_parts_begin(encoding);
  bool ok = measure(encoding, object) && rc_py_encoding_plan(encoding);
  if (ok) {
    place_streams(encoding);
  } else {
    rc_py_encoding_clear(encoding);
  }
  return ok;
}
