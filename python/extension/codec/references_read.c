/* SPDX-License-Identifier: Apache-2.0 */
/* Reading references: marked values, items of the root dict, parts, leaves. */
#include "python/extension/codec/array.h"
#include "python/extension/codec/token_read.h"

enum { MARKS_AT_HAND = 16 };

/* ---- Repeated values --------------------------------------------------------------------------------------------- */

Py_ssize_t rc_py_mark_begin(struct rc_py_token_reader *getting) {
  struct rc_py_marked *marked = getting->marked;
  if (marked->count == marked->room) {
    size_t room = marked->room ? marked->room * 2 : MARKS_AT_HAND;
    PyObject **values = PyMem_Realloc(marked->values, room * sizeof *values);
    if (!values) {
      PyErr_NoMemory();
      return -1;
    }
    marked->values = values;
    marked->room = room;
  }
  marked->values[marked->count] = NULL;
  return (Py_ssize_t)marked->count++;
}

PyObject *rc_py_token_read_back(struct rc_py_token_reader *getting, uint64_t back) {
  const struct rc_py_marked *marked = getting->marked;
  PyObject *value = back < marked->count ? marked->values[marked->count - 1 - back] : NULL;
  return value ? rc_py_ref(value) : stream_damaged(getting, "a value that was not there before, or holds itself");
}

/* Checks the entry's kind, not the value: None stands for an item that is not made yet. */
PyObject *rc_py_token_read_item(struct rc_py_token_reader *getting, uint64_t index) {
  struct rc_py_marked *marked = getting->marked;
  struct ringcast_item item;
  if (marked->dict && !marked->items && !(marked->items = PyDict_Values(marked->dict))) return NULL;
  bool is_there =
      marked->items && index < (uint64_t)PyList_GET_SIZE(marked->items) &&
      ringcast_frame_item(marked->frame, (uint32_t)index, &item) == 0 &&
      (item.kind == RINGCAST_ITEM_TENSOR || item.kind == RINGCAST_ITEM_STR || item.kind == RINGCAST_ITEM_BYTES);
  if (!is_there) return stream_damaged(getting, "an item that it lacks");
  return rc_py_ref(PyList_GET_ITEM(marked->items, (Py_ssize_t)index));
}

void rc_py_marked_clear(struct rc_py_marked *marked) {
  for (size_t i = 0; i < marked->count; i++) Py_XDECREF(marked->values[i]);
  PyMem_Free(marked->values);
  Py_XDECREF(marked->items);
}

/* ---- Values beside the stream ------------------------------------------------------------------------------------ */

PyObject *rc_py_token_read_part(struct rc_py_token_reader *getting, const struct ringcast_token *token) {
  if (getting->next_part >= getting->part_count) return stream_damaged(getting, "a part that it lacks");
  PyObject *part = getting->parts[getting->next_part++];
  if (token->tag == RINGCAST_TAG_PART) return rc_py_ref(part);
  return PyBytes_CheckExact(part) ? PyByteArray_FromObject(part) : stream_damaged(getting, "a part of another kind");
}

/* The part is an array already, as its entry says. */
PyObject *rc_py_token_read_part_array(struct rc_py_token_reader *getting, uint8_t typecode) {
  if (getting->next_part >= getting->part_count) return stream_damaged(getting, "a part that it lacks");
  PyObject *part = getting->parts[getting->next_part++];
  int fits = rc_py_array_has_typecode(getting->state, part, typecode);
  if (fits < 0) return NULL;
  return fits ? rc_py_ref(part) : stream_damaged(getting, "a part of another kind");
}

PyObject *rc_py_token_read_leaf(struct rc_py_token_reader *getting, uint64_t index) {
  if (!getting->leaves || index >= (uint64_t)PyList_GET_SIZE(getting->leaves)) {
    return stream_damaged(getting, "a leaf that its pickle lacks");
  }
  return rc_py_ref(PyList_GET_ITEM(getting->leaves, (Py_ssize_t)index));
}
