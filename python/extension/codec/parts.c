/* SPDX-License-Identifier: Apache-2.0 */
#include "python/extension/codec/parts.h"

#include "python/extension/codec/device.h"

/* Beyond any address space; below the limit, sums can't overflow. */
#define MOST_BYTES (UINT64_C(1) << 48)

/* ---- Where in the value ---------------------------------------------------------------------- */

enum {
  KEY_SHOWN = 60,   /* characters of a key */
  STEPS_SHOWN = 32, /* of the way, from the root */
};

/* repr(key), shortened; if repr() fails, the key's type. */
static PyObject *key_text(PyObject *key) {
  PyObject *text = PyObject_Repr(key);
  if (!text) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyErr_Clear();
    return PyUnicode_FromFormat("<%s>", Py_TYPE(key)->tp_name);
  }
  if (PyUnicode_GET_LENGTH(text) <= KEY_SHOWN) return text;
  PyObject *start = PyUnicode_Substring(text, 0, KEY_SHOWN);
  Py_DECREF(text);
  if (!start) return NULL;
  PyObject *shortened = PyUnicode_FromFormat("%U...", start);
  Py_DECREF(start);
  return shortened;
}

static PyObject *path_with_key(PyObject *way, PyObject *key) {
  PyObject *text = key_text(key);
  if (!text) return NULL;
  PyObject *path = PyUnicode_FromFormat("%U[%U]", way, text);
  Py_DECREF(text);
  return path;
}

static PyObject *path_with(PyObject *way, const struct rc_py_step *step) {
  if (!step->up) return path_with_key(way, step->key);
  switch (step->index) {
  case RC_PY_STEP_KEY: return path_with_key(way, step->key);
  case RC_PY_STEP_FIELD: return PyUnicode_FromFormat("%U.%U", way, step->key);
  case RC_PY_STEP_MEMBER: return PyUnicode_FromFormat("%U{...}", way);
  case RC_PY_STEP_OF_KEY: return PyUnicode_FromFormat("a key of %U", way);
  default: return PyUnicode_FromFormat("%U[%zd]", way, step->index);
  }
}

/* From the root down; a very long path is cut after its first steps. */
PyObject *rc_py_step_path(void *context) {
  const struct rc_py_step *shown[STEPS_SHOWN];
  int steps = 0;
  for (const struct rc_py_step *step = context; step; step = step->up) {
    shown[steps % STEPS_SHOWN] = step;
    steps++;
  }
  PyObject *path = PyUnicode_FromString("value");
  for (int i = 1; path && i <= steps && i <= STEPS_SHOWN; i++) {
    const struct rc_py_step *step = shown[(steps - i) % STEPS_SHOWN];
    if (step->up || step->key) Py_SETREF(path, path_with(path, step));
  }
  if (path && steps > STEPS_SHOWN) {
    Py_SETREF(path, PyUnicode_FromFormat("%U... (%d levels down)", path, steps - 1));
  }
  return path;
}

/* ---- Parts ----------------------------------------------------------------------------------- */

struct rc_py_part *rc_py_part_add(struct rc_py_encoding *encoding, PyObject *key, PyObject *value) {
  if (!rc_py_grow((void **)&encoding->parts, encoding->count, &encoding->room,
                  sizeof *encoding->parts))
    return NULL;
  struct rc_py_part *part = &encoding->parts[encoding->count++];
  memset(part, 0, sizeof *part);
  part->key = Py_XNewRef(key);
  part->value = Py_XNewRef(value);
  return part;
}

bool rc_py_part_add_buffer(struct rc_py_encoding *encoding, PyObject *buffer,
                           enum ringcast_item_kind kind) {
  struct rc_py_part *part = rc_py_part_add(encoding, NULL, NULL);
  if (!part) return false;
  Py_buffer *view = &part->source.view;
  part->kind = kind;
  if (PyObject_GetBuffer(buffer, view, PyBUF_FULL_RO) < 0) {
    view->obj = NULL;
    return false;
  }
  if (kind == RINGCAST_ITEM_BUFFER) {
    bool is_array = view->obj && (PyObject *)Py_TYPE(view->obj) == encoding->state->numpy.ndarray;
    if (view->readonly) part->flags |= RINGCAST_ITEM_READONLY;
    if (is_array) part->flags |= RINGCAST_ITEM_NUMPY;
  }
  part->data = view->buf;
  part->bytes = (uint64_t)view->len;
  return true;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* A BufferError of an array's own __dlpack__ names the reason; this adds the array's place in the
 * value. */
static int place_buffer_error(struct rc_py_step *step) {
  PyObject *type, *error, *traceback;
  if (!PyErr_ExceptionMatches(PyExc_BufferError)) return -1;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  PyObject *place = rc_py_step_path(step);
  if (place) PyErr_Format(PyExc_BufferError, "%U: %S", place, error);
  Py_XDECREF(place);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  return -1;
}

/* A tensor without gaps keeps its order of memory. In C order, it needs no strides. */
static void keep_order(struct rc_py_source *source) {
  struct ringcast_tensor *tensor = &source->tensor;
  uint64_t bytes;
  if (source->is_on_device || !tensor->strides) return;
  if (rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides)) {
    tensor->strides = NULL;
  } else if (rc_py_is_dense(tensor, &bytes)) {
    tensor->flags |= RINGCAST_TENSOR_DENSE;
  }
}

bool rc_py_source_finish(struct rc_py_encoding *encoding, struct rc_py_source *out,
                         struct rc_py_step *step, uint64_t *bytes) {
  if (ringcast_tensor_bytes(&out->tensor, bytes) == 0) {
    keep_order(out);
    return true;
  }
  rc_py_source_clear(out);
  PyObject *place = rc_py_step_path(step);
  if (place)
    rc_py_raise_text(encoding->state, EMSGSIZE, "%U has more bytes than can be counted", place);
  Py_XDECREF(place);
  return false;
}

/* Asks the one library whose type it is; NumPy also last, as it may have been imported since. */
static int describe_by_type(struct rc_py_state *state, PyObject *value, bool takes_cuda,
                            struct rc_py_step *step, struct rc_py_source *out) {
  if ((PyObject *)Py_TYPE(value) == state->numpy.ndarray) {
    return rc_py_numpy_describe(state, value, out);
  }
  int described = rc_py_torch_describe(state, value, takes_cuda, rc_py_step_path, step, out);
  if (described != 0) return described;
  return rc_py_numpy_describe(state, value, out);
}

/* A placeholder is described by an array or tensor of its shape, which has a single element in
 * memory. */
static int describe_empty(struct rc_py_state *state, PyObject *placeholder, struct rc_py_step *step,
                          struct rc_py_source *out) {
  PyObject *like = PyObject_GetAttr(placeholder, state->names.like);
  if (!like) return -1;
  int described = describe_by_type(state, like, true, step, out);
  Py_DECREF(like);
  out->is_empty = described > 0;
  return described;
}

/* A tensor on any device, or an array. */
static int describe_data(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                         struct rc_py_source *out) {
  struct rc_py_state *state = encoding->state;
  bool takes_cuda = encoding->sends_from != RC_PY_FROM_NONE;
  int described = describe_by_type(state, value, takes_cuda, step, out);
  if (described == 0 && takes_cuda) {
    described = rc_py_cuda_describe(state, value, out);
    if (described < 0) return place_buffer_error(step);
  }
  if (described <= 0 || !out->is_on_device) return described;
  return rc_py_device_note(encoding, value, rc_py_step_path, step, out);
}

int rc_py_part_tensor(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                      struct rc_py_source *out, uint64_t *bytes) {
  struct rc_py_state *state = encoding->state;
  bool is_empty = encoding->takes_empty && (PyObject *)Py_TYPE(value) == state->empty_type;
  int described;
  if (is_empty) {
    described = describe_empty(state, value, step, out);
  } else {
    described = describe_data(encoding, value, step, out);
  }
  if (described <= 0) return described;
  if (!rc_py_source_finish(encoding, out, step, bytes)) return -1;
  return 1;
}

/* ---- The frame's size ------------------------------------------------------------------------ */

bool rc_py_encoding_plan(struct rc_py_encoding *encoding) {
  uint64_t total = 0;
  encoding->plan = (struct ringcast_frame_plan){0};
  for (size_t i = 0; i < encoding->count; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    if (part->bytes > MOST_BYTES || total > MOST_BYTES) {
      rc_py_raise_text(encoding->state, EMSGSIZE, "the value has more bytes than fit in any ring");
      return false;
    }
    total += part->bytes;
    if (encoding->in_pool && rc_py_is_on_device(part)) {
      ringcast_plan_device_tensor(&encoding->plan, (size_t)part->utf8_bytes,
                                  part->source.tensor.ndim);
    } else if (part->kind == RINGCAST_ITEM_TENSOR) {
      ringcast_plan_tensor(&encoding->plan, (size_t)part->utf8_bytes, part->source.tensor.ndim,
                           part->bytes);
    } else {
      ringcast_plan_item(&encoding->plan, (size_t)part->utf8_bytes, part->bytes);
    }
  }
  encoding->copy_bytes = total;
  return true;
}

bool rc_py_device_plan(struct rc_py_encoding *encoding, const uint64_t *offsets) {
  rc_py_device_place(encoding, offsets);
  return rc_py_encoding_plan(encoding);
}
