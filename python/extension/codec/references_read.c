/* SPDX-License-Identifier: Apache-2.0 */
/* Reading references: marked values, texts, items of the root dict, parts, leaves. */
#include "python/extension/codec/references.h"

/* The hash of a tuple asks every value in it, at each place where the value stands: BACKs
 * let a frame of 200 bytes name a key of 2^40 places. So what BACKs add to all keys of a frame is
 * bounded: by HASHED_MOST bytes of tokens, and HASHED_PER_BYTE more for each byte of the frame. A
 * hash also goes down by recursion, as does the end of a slice, and a value of BACKs can be far
 * deeper than its tokens: in such places the height is bounded too. */
enum {
  HASHED_MOST = 1 << 24,
  HASHED_PER_BYTE = 256,
  TEXT_AGAIN_MOST = 4096, /* of a path; longer ones stand in place */
  STACK_PER_LEVEL = 1024  /* of a hash in Python */
};

/* ---- Repeated values ------------------------------------------------------------------------- */

Py_ssize_t rc_py_mark_begin(struct rc_py_token_reader *reader, int depth,
                            struct rc_py_scope *outer) {
  struct rc_py_marked *marked = reader->marked;
  if (!rc_py_grow((void **)&marked->marks, marked->count, &marked->room, sizeof *marked->marks))
    return -1;
  /* Until the end, where the value began. */
  marked->marks[marked->count] = (struct rc_py_mark){.weight = (uintptr_t)reader->object.at};
  *outer = rc_py_scope_begin(marked, depth);
  return (Py_ssize_t)marked->count++;
}

void rc_py_mark_end(struct rc_py_token_reader *reader, Py_ssize_t number, PyObject *value,
                    int depth, const struct rc_py_scope *outer) {
  struct rc_py_marked *marked = reader->marked;
  struct rc_py_mark *mark = &marked->marks[number];
  mark->value = Py_XNewRef(value);
  mark->weight = rc_py_sum(marked->scope.named, (uintptr_t)reader->object.at - mark->weight);
  mark->height = marked->scope.deepest - (uint64_t)depth;
  rc_py_scope_end(marked, outer);
}

static void reach(struct rc_py_marked *marked, uint64_t depth) {
  if (marked->scope.deepest < depth) marked->scope.deepest = depth;
}

PyObject *rc_py_get_back(struct rc_py_token_reader *reader, uint64_t back, int depth) {
  struct rc_py_marked *marked = reader->marked;
  const struct rc_py_mark *mark = NULL;
  if (back < marked->count) mark = &marked->marks[marked->count - 1 - back];
  if (!mark || !mark->value)
    return rc_py_stream_damaged(reader, "a value that was not there before, or holds itself");
  marked->scope.named = rc_py_sum(marked->scope.named, mark->weight);
  reach(marked, (uint64_t)depth + mark->height);
  marked->last = mark->value;
  return Py_NewRef(mark->value);
}

static bool raise_no_stack(void) {
  PyErr_SetString(PyExc_RecursionError,
                  "the frame's value is nested too deep for what is left of this thread's stack: "
                  "give the thread a larger one (threading.stack_size)");
  return false;
}

bool rc_py_may_go_deep(struct rc_py_token_reader *reader, int depth) {
  if (depth == RINGCAST_MAX_DEPTH) return rc_py_stream_damaged(reader, "it is nested too deep");
  reach(reader->marked, (uint64_t)depth);
  return rc_py_stack_has_room(&reader->stack_floor, 0) || raise_no_stack();
}

bool rc_py_is_shallow(struct rc_py_token_reader *reader, int depth) {
  bool is_shallow = reader->marked->scope.deepest - (uint64_t)depth <= RINGCAST_MAX_DEPTH;
  return is_shallow ||
         rc_py_stream_damaged(reader, "a key, slice or deque that is nested too deep");
}

bool rc_py_key_is_light(struct rc_py_token_reader *reader, int depth) {
  struct rc_py_marked *marked = reader->marked;
  marked->hashed = rc_py_sum(marked->hashed, marked->scope.named);
  if (marked->hashed > HASHED_MOST + HASHED_PER_BYTE * marked->frame->bytes) {
    return rc_py_stream_damaged(reader, "keys that hold the same values too often");
  }
  if (!rc_py_is_shallow(reader, depth)) return false;
  size_t height = marked->scope.deepest - (uint64_t)depth;
  return height < RC_PY_DEPTH_UNSEEN ||
         rc_py_stack_has_room(&reader->stack_floor, height * STACK_PER_LEVEL) || raise_no_stack();
}

bool rc_py_is_in_place(struct rc_py_token_reader *reader, PyObject *container) {
  bool is_other = container == reader->marked->last &&
                  (PyDict_Check(container) || PyList_Check(container) ||
                   (PyTuple_Check(container) && PyTuple_GET_SIZE(container) > 0));
  return !is_other || rc_py_stream_damaged(reader, "a state that stands elsewhere");
}

/* Text in place has no more characters than bytes. A part, used once, has its bytes elsewhere. */
static bool text_is_in_place(struct rc_py_token_reader *reader, PyObject *plain,
                             const uint8_t *from) {
  size_t length = 0, bytes = (size_t)(reader->object.at - from);
  from += *from == RINGCAST_TAG_MARK;
  if (PyUnicode_Check(plain) && *from != RINGCAST_TAG_PART)
    length = (size_t)PyUnicode_GET_LENGTH(plain);
  for (Py_ssize_t i = 0; PyTuple_Check(plain) && i < PyTuple_GET_SIZE(plain); i++) {
    PyObject *part = PyTuple_GET_ITEM(plain, i);
    if (PyUnicode_Check(part)) length += (size_t)PyUnicode_GET_LENGTH(part);
  }
  return length <= TEXT_AGAIN_MOST + bytes ||
         rc_py_stream_damaged(reader, "a state that stands elsewhere");
}

bool rc_py_state_is_in_place(struct rc_py_token_reader *reader, uint8_t kind, PyObject *plain,
                             const uint8_t *from) {
  switch (kind) {
  case RINGCAST_STANDARD_DEFAULTDICT:
  case RINGCAST_STANDARD_DEQUE:
    if (PyTuple_Check(plain) && PyTuple_GET_SIZE(plain) == 2 &&
        !rc_py_is_in_place(reader, PyTuple_GET_ITEM(plain, 1))) {
      return false;
    }
    return rc_py_is_in_place(reader, plain);
  case RINGCAST_STANDARD_ORDEREDDICT:
  case RINGCAST_STANDARD_COUNTER: return rc_py_is_in_place(reader, plain);
  case RINGCAST_STANDARD_PUREPOSIXPATH:
  case RINGCAST_STANDARD_POSIXPATH:
  case RINGCAST_STANDARD_PUREWINDOWSPATH:
  case RINGCAST_STANDARD_DECIMAL: return text_is_in_place(reader, plain, from);
  default: return true;
  }
}

/* Checks the entry's kind, not the value: None stands for an item that is not made yet. */
PyObject *rc_py_get_item(struct rc_py_token_reader *reader, uint64_t index) {
  struct rc_py_marked *marked = reader->marked;
  struct ringcast_item item;
  if (marked->dict && !marked->items) {
    marked->items = PyDict_Values(marked->dict);
    if (!marked->items) return NULL;
  }
  bool is_there = marked->items && index < (uint64_t)PyList_GET_SIZE(marked->items) &&
                  ringcast_frame_item(marked->frame, (uint32_t)index, &item) == 0 &&
                  (item.kind == RINGCAST_ITEM_TENSOR || item.kind == RINGCAST_ITEM_STR ||
                   item.kind == RINGCAST_ITEM_BYTES);
  if (!is_there) return rc_py_stream_damaged(reader, "an item that it lacks");
  marked->last = PyList_GET_ITEM(marked->items, (Py_ssize_t)index);
  return Py_NewRef(PyList_GET_ITEM(marked->items, (Py_ssize_t)index));
}

void rc_py_marked_clear(struct rc_py_marked *marked) {
  for (size_t i = 0; i < marked->count; i++) Py_XDECREF(marked->marks[i].value);
  PyMem_Free(marked->marks);
  Py_XDECREF(marked->items);
  Py_XDECREF(marked->dtypes);
}

PyObject *rc_py_text_note(struct rc_py_token_reader *reader, PyObject *text) {
  if (!rc_py_grow((void **)&reader->texts, reader->text_count, &reader->text_room,
                  sizeof *reader->texts)) {
    Py_DECREF(text);
    return NULL;
  }
  reader->texts[reader->text_count++] = text;
  return Py_NewRef(text);
}

/* ---- Values beside the stream ---------------------------------------------------------------- */

PyObject *rc_py_next_part(struct rc_py_token_reader *reader) {
  if (reader->next_part < reader->part_count) return reader->parts[reader->next_part++];
  return rc_py_stream_damaged(reader, "a part that it lacks");
}

PyObject *rc_py_get_part(struct rc_py_token_reader *reader, const struct ringcast_token *token) {
  PyObject *part = rc_py_next_part(reader);
  if (!part) return NULL;
  if (token->tag == RINGCAST_TAG_PART) return Py_NewRef(part);
  if (PyBytes_CheckExact(part)) return PyByteArray_FromObject(part);
  return rc_py_stream_damaged(reader, "a part of another kind");
}

PyObject *rc_py_get_leaf(struct rc_py_token_reader *reader, uint64_t index) {
  if (!reader->leaves || index >= (uint64_t)PyList_GET_SIZE(reader->leaves)) {
    return rc_py_stream_damaged(reader, "a leaf that its pickle lacks");
  }
  reader->marked->last = PyList_GET_ITEM(reader->leaves, (Py_ssize_t)index);
  return Py_NewRef(PyList_GET_ITEM(reader->leaves, (Py_ssize_t)index));
}
