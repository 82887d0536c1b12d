/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a frame that is measured: memory, buffers, leaves, and the frame's size. */
#include "python/extension/codec/device.h"
#include "python/extension/codec/encode.h"

/* Memory kept for the next frame, at most. */
enum { STREAM_KEPT = 1 << 18, PARTS_KEPT = 256 };

struct rc_py_part *rc_py_part_add(struct rc_py_encoding *encoding, PyObject *key, PyObject *value) {
  if (!rc_py_grow((void **)&encoding->parts, encoding->count, &encoding->room,
                  sizeof *encoding->parts))
    return NULL;
  struct rc_py_part *part = &encoding->parts[encoding->count++];
  memset(part, 0, sizeof *part);
  part->key = rc_py_ref(key);
  part->value = rc_py_ref(value);
  return part;
}

void rc_py_parts_drop(struct rc_py_encoding *encoding) {
  for (size_t i = 0; i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    rc_py_source_clear(&part->source);
    Py_XDECREF(part->key);
    Py_XDECREF(part->value);
  }
  encoding->count = 0;
  encoding->stream_bytes = 0;
  encoding->on_device = 0;
  encoding->has_streams = encoding->is_loose = false;
  Py_CLEAR(encoding->leaves);
  Py_CLEAR(encoding->holders);
  encoding->noted = 0;
  if (encoding->repeats) rc_py_repeats_clear(encoding->repeats);
}

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
  rc_py_parts_drop(encoding);
  give_memory(encoding);
  Py_CLEAR(encoding->class_cache);
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
    part->flags =
        (view->readonly ? RINGCAST_ITEM_READONLY : 0) | (is_array ? RINGCAST_ITEM_NUMPY : 0);
  }
  part->data = view->buf;
  part->bytes = (uint64_t)view->len;
  return true;
}

/* ---- Leaves ---------------------------------------------------------------------------------- */

void rc_py_refuse(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step) {
  struct rc_py_state *state = encoding->state;
  if (!state->refuse_value &&
      !(state->refuse_value = rc_py_import("ringcast._pickling", "refuse_value")))
    return;
  PyObject *place = rc_py_step_path(step);
  PyObject *none =
      place ? PyObject_CallFunctionObjArgs(state->refuse_value, place, value, NULL) : NULL;
  Py_XDECREF(none);
  Py_XDECREF(place);
}

/* Whether the container has references besides its own container's and the walk's. */
static bool is_known_elsewhere(const struct rc_py_step *step) {
  if (Py_REFCNT(step->container) > (step->up ? 2 : 1)) return true;
  return PyType_SUPPORTS_WEAKREFS(Py_TYPE(step->container)) &&
         *PyObject_GET_WEAKREFS_LISTPTR(step->container);
}

/* Notes the containers of a leaf: if the leaf's pickle meets one of the containers, the container
 * contains itself by way of the leaf. If no container was entered since the last leaf, all are
 * noted already. */
static bool note_holders(struct rc_py_encoding *encoding, const struct rc_py_step *step) {
  if (encoding->noted == encoding->entered + 1) return true;
  encoding->noted = encoding->entered + 1;
  if (!encoding->holders && !(encoding->holders = PyList_New(0))) return false;
  for (; step; step = step->up) {
    if (!step->container || !is_known_elsewhere(step)) continue;
    if (PyList_Append(encoding->holders, step->container) < 0) return false;
  }
  return true;
}

Py_ssize_t rc_py_leaf_add(struct rc_py_encoding *encoding, PyObject *value,
                          struct rc_py_step *step) {
  if (!encoding->allow_pickle) {
    rc_py_refuse(encoding, value, step);
    return -1;
  }
  if (!encoding->leaves && !(encoding->leaves = PyList_New(0))) return -1;
  if (!note_holders(encoding, step)) return -1;
  return PyList_Append(encoding->leaves, value) == 0 ? PyList_GET_SIZE(encoding->leaves) - 1 : -1;
}

/* ---- Size ------------------------------------------------------------------------------------ */

bool rc_py_encoding_plan(struct rc_py_encoding *encoding) {
  uint64_t total = 0;
  encoding->plan = (struct ringcast_frame_plan){0};
  for (size_t i = 0; i < encoding->count; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    /* Beyond any address space; below the limit, sums can't overflow. */
    if (part->bytes > UINT64_C(1) << 48 || total > UINT64_C(1) << 48) {
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
