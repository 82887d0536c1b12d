/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a Python object to a frame, in two passes.
 *
 * Measure: a dict with str keys becomes one part for each item, in order; anything else is one part, the whole value.
 * Scalars, text, bytes, tensors and arrays are parts of their own; what is left goes into one list, pickled by protocol
 * 5, whose out-of-band buffers follow as parts. All Python code that there is to run runs here, and may do as it likes:
 * the parts hold references of their own. Then the frame's size is known to the byte.
 *
 * Write: the entries are built, which only finds each part's place in the ring; then all the data is copied there in
 * one go, without the GIL if it is much. No Python code runs and nothing is allocated, so the only way to fail is to
 * find the library's plan and build at odds.
 */
#include "extension.h"

struct rc_py_part {
  PyObject *key;   /* a str, or NULL */
  PyObject *value; /* holds what `utf8` and `data` point to */
  const char *utf8;
  Py_ssize_t utf8_bytes;
  enum ringcast_item_kind kind;
  uint32_t flags;
  union {
    int64_t i;
    double f;
  } scalar;
  struct rc_py_source source; /* of a tensor; of a buffer, the view alone */
  const void *data;
  uint64_t bytes;
  void *out; /* where in the ring the data goes */
};

/* Takes over nothing: key and value are referenced anew. */
static struct rc_py_part *part_add(struct rc_py_encoding *encoding, PyObject *key, PyObject *value) {
  if (encoding->count == encoding->room) {
    size_t room = encoding->room ? encoding->room * 2 : 16;
    struct rc_py_part *parts = PyMem_Resize(encoding->parts, struct rc_py_part, room);
    if (!parts) {
      PyErr_NoMemory();
      return NULL;
    }
    encoding->parts = parts;
    encoding->room = room;
  }
  struct rc_py_part *part = &encoding->parts[encoding->count++];
  memset(part, 0, sizeof *part);
  part->key = rc_py_ref(key);
  part->value = rc_py_ref(value);
  return part;
}

void rc_py_encoding_clear(struct rc_py_encoding *encoding) {
  for (size_t i = 0; i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    rc_py_source_clear(&part->source);
    Py_XDECREF(part->key);
    Py_XDECREF(part->value);
  }
  PyMem_Free(encoding->parts);
  encoding->parts = NULL;
  encoding->count = encoding->room = 0;
}

/* ---- Measure ---------------------------------------------------------------------------------------------------- */

/* Takes the dict's items before any Python code can change it. 1: done; 0: a key is no str that UTF-8 can hold, or
 * there are more items than a frame has entries; -1: raised. */
static int take_items(struct rc_py_encoding *encoding, PyObject *dict) {
  PyObject *key, *value;
  Py_ssize_t position = 0;
  if (PyDict_GET_SIZE(dict) >= (Py_ssize_t)RINGCAST_MAX_ENTRIES / 2) return 0;
  while (PyDict_Next(dict, &position, &key, &value)) {
    if (!PyUnicode_CheckExact(key)) return 0;
    struct rc_py_part *part = part_add(encoding, key, value);
    if (!part) return -1;
    part->utf8 = PyUnicode_AsUTF8AndSize(key, &part->utf8_bytes);
    if (part->utf8) continue;
    if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return -1;
    PyErr_Clear();
    return 0;
  }
  return 1;
}

static PyObject *where(void *context) {
  struct rc_py_part *part = context;
  return part->key ? PyUnicode_FromFormat("value[%R]", part->key) : PyUnicode_FromString("value");
}

/* 1, or 0: the str has no UTF-8, -1. */
static int describe_text(struct rc_py_part *part) {
  Py_ssize_t bytes;
  part->data = PyUnicode_AsUTF8AndSize(part->value, &bytes);
  if (!part->data) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return -1;
    PyErr_Clear();
    return 0;
  }
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

/* Exact types only: a subclass may mean more than its bytes. 1, 0 (not one of these), -1. */
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

static int describe_tensor(struct rc_py_state *state, struct rc_py_part *part) {
  int described = rc_py_torch_describe(state, part->value, where, part, &part->source);
  if (described == 0) described = rc_py_numpy_describe(state, part->value, &part->source);
  if (described <= 0) return described;
  part->kind = RINGCAST_ITEM_TENSOR;
  if (ringcast_tensor_bytes(&part->source.tensor, &part->bytes) == 0) return 1;
  PyObject *place = where(part);
  if (place) rc_py_raise_text(state, EMSGSIZE, "%U has more bytes than can be counted", place);
  Py_XDECREF(place);
  return -1;
}

static bool add_buffer(struct rc_py_encoding *encoding, PyObject *buffer) {
  struct rc_py_part *part = part_add(encoding, NULL, NULL);
  if (!part) return false;
  Py_buffer *view = &part->source.view;
  if (PyObject_GetBuffer(buffer, view, PyBUF_FULL_RO) < 0) {
    view->obj = NULL;
    return false;
  }
  part->kind = RINGCAST_ITEM_BUFFER;
  bool is_array = view->obj && (PyObject *)Py_TYPE(view->obj) == encoding->state->numpy.ndarray;
  part->flags = (view->readonly ? RINGCAST_ITEM_READONLY : 0) | (is_array ? RINGCAST_ITEM_NUMPY : 0);
  part->data = view->buf;
  part->bytes = (uint64_t)view->len;
  return true;
}

/* Raises PickleRefused of a part that has no kind of its own. */
static bool refuse(struct rc_py_encoding *encoding, struct rc_py_part *part) {
  struct rc_py_state *state = encoding->state;
  if (!state->refuse_value && !(state->refuse_value = rc_py_import("ringcast._pickling", "refuse_value"))) return false;
  PyObject *place = where(part);
  PyObject *none = place ? PyObject_CallFunctionObjArgs(state->refuse_value, place, part->value, NULL) : NULL;
  Py_XDECREF(none);
  Py_XDECREF(place);
  return false;
}

/* Pickles `object` into part `index` and adds its buffers behind all that is there. `keys` (or NULL) name the elements
 * of a list of leaves. */
static bool add_pickle(struct rc_py_encoding *encoding, size_t index, PyObject *object, PyObject *keys) {
  struct rc_py_state *state = encoding->state;
  encoding->pickled = true;
  if (!state->dumps && !(state->dumps = rc_py_import("ringcast._pickling", "dumps"))) return false;
  PyObject *pair = PyObject_CallFunctionObjArgs(state->dumps, object, keys ? keys : Py_None, NULL);
  PyObject *data, *buffers;
  bool ok = pair && PyArg_ParseTuple(pair, "SO!", &data, &PyList_Type, &buffers);
  if (ok) {
    struct rc_py_part *part = &encoding->parts[index];
    Py_XSETREF(part->value, rc_py_ref(data));
    part->kind = RINGCAST_ITEM_PICKLE;
    part->data = PyBytes_AS_STRING(data);
    part->bytes = (uint64_t)PyBytes_GET_SIZE(data);
  }
  for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(buffers); i++) {
    ok = add_buffer(encoding, PyList_GET_ITEM(buffers, i));
  }
  Py_XDECREF(pair);
  return ok;
}

/* What has no kind of its own becomes a LEAF: an index into the list that is pickled last. */
static bool measure_dict(struct rc_py_encoding *encoding) {
  size_t items = encoding->count;
  PyObject *leaves = PyList_New(0), *keys = PyList_New(0);
  bool ok = leaves && keys;
  for (size_t i = 0; ok && i < items; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    int described = describe_scalar(part);
    if (described == 0) described = describe_tensor(encoding->state, part);
    ok = described >= 0;
    if (described != 0) continue;
    if (!encoding->allow_pickle) {
      ok = refuse(encoding, part);
      break;
    }
    part->kind = RINGCAST_ITEM_LEAF;
    part->scalar.i = PyList_GET_SIZE(leaves);
    ok = PyList_Append(leaves, part->value) == 0 && PyList_Append(keys, part->key) == 0;
  }
  if (ok && PyList_GET_SIZE(leaves)) ok = part_add(encoding, NULL, NULL) && add_pickle(encoding, items, leaves, keys);
  Py_XDECREF(leaves);
  Py_XDECREF(keys);
  return ok;
}

static bool measure_value(struct rc_py_encoding *encoding, PyObject *object) {
  struct rc_py_part *part = part_add(encoding, NULL, object);
  if (!part) return false;
  int described = describe_scalar(part);
  if (described == 0) described = describe_tensor(encoding->state, part);
  if (described) return described > 0;
  return encoding->allow_pickle ? add_pickle(encoding, 0, object, NULL) : refuse(encoding, part);
}

static bool make_plan(struct rc_py_encoding *encoding) {
  uint64_t total = 0;
  for (size_t i = 0; i < encoding->count; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    /* No address space is larger, and what is below can be added up. */
    if (part->bytes > UINT64_C(1) << 48 || total > UINT64_C(1) << 48) {
      rc_py_raise_text(encoding->state, EMSGSIZE, "the value has more bytes than fit in any ring");
      return false;
    }
    total += part->bytes;
    if (part->kind == RINGCAST_ITEM_TENSOR) {
      ringcast_plan_tensor(&encoding->plan, (size_t)part->utf8_bytes, part->source.tensor.ndim, part->bytes);
    } else {
      ringcast_plan_item(&encoding->plan, (size_t)part->utf8_bytes, part->bytes);
    }
  }
  encoding->copy_bytes = total;
  return true;
}

bool rc_py_encoding_measure(struct rc_py_encoding *encoding, struct rc_py_state *state, PyObject *object,
                            bool allow_pickle) {
  memset(encoding, 0, sizeof *encoding);
  encoding->state = state;
  encoding->allow_pickle = allow_pickle;
  encoding->root = RINGCAST_ROOT_DICT;
  int taken = PyDict_CheckExact(object) ? take_items(encoding, object) : 0;
  bool ok;
  if (taken > 0) {
    ok = measure_dict(encoding);
  } else {
    rc_py_encoding_clear(encoding);
    encoding->root = RINGCAST_ROOT_VALUE;
    ok = taken == 0 && measure_value(encoding, object);
  }
  if (ok) ok = make_plan(encoding);
  if (!ok) rc_py_encoding_clear(encoding);
  return ok;
}

/* ---- Write ------------------------------------------------------------------------------------------------------ */

static int build_part(struct ringcast_frame_builder *builder, struct rc_py_part *part) {
  uint64_t bytes;
  size_t key_bytes = (size_t)part->utf8_bytes;
  switch (part->kind) {
  case RINGCAST_ITEM_TENSOR:
    return ringcast_build_tensor_in_place(builder, part->utf8, key_bytes, &part->source.tensor, &part->out, &bytes);
  case RINGCAST_ITEM_FLOAT:
    return ringcast_build_float(builder, part->utf8, key_bytes, part->scalar.f);
  case RINGCAST_ITEM_NONE:
  case RINGCAST_ITEM_BOOL:
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_LEAF:
    return ringcast_build_scalar(builder, part->kind, part->utf8, key_bytes, part->scalar.i);
  default:
    return ringcast_build_data(builder, part->kind, part->utf8, key_bytes, NULL, part->bytes, part->flags, &part->out);
  }
}

static int copy_parts(const struct rc_py_encoding *encoding) {
  int rc = 0;
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    if (!part->bytes) continue;
    if (part->kind == RINGCAST_ITEM_TENSOR) {
      rc = ringcast_tensor_pack(&part->source.tensor, part->out);
    } else {
      memcpy(part->out, part->data, part->bytes);
    }
  }
  return rc;
}

int rc_py_encoding_write(struct rc_py_encoding *encoding, const struct ringcast_span *span, uint32_t tag,
                         size_t *out_bytes) {
  struct ringcast_frame_builder builder;
  int rc = ringcast_build_begin(&builder, span->data, span->bytes, &encoding->plan, encoding->root, tag);
  for (size_t i = 0; i < encoding->count && rc == 0; i++) rc = build_part(&builder, &encoding->parts[i]);
  if (rc < 0) return rc;
  if (encoding->copy_bytes <= RC_PY_COPY_WITH_GIL) {
    rc = copy_parts(encoding);
  } else {
    Py_BEGIN_ALLOW_THREADS rc = copy_parts(encoding);
    Py_END_ALLOW_THREADS
  }
  return rc < 0 ? rc : ringcast_build_end(&builder, out_bytes);
}
