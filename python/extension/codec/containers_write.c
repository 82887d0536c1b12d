/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nested values, to a stream of tokens (ringcast/object.h).
 *
 * A single walk visits each value once. The stream is written to the encoder's own memory, which is
 * reused for each frame and stays in the cache, and is copied into the ring in one go. So the
 * length is known before a reservation, and walked values can't change any more. Copying 12 KB
 * takes some 0.2 us, whereas a preceding walk to measure takes as long as the walk itself. Long
 * text, bytes and tensors do not go through the stream: each becomes a part, copied straight into
 * the ring.
 *
 * A value that occurs more than once is written once, and then as the number of its MARK
 * (references_write.c).
 *
 * Exact types only: a subclass may mean more than its contents.
 */
#include "python/extension/codec/containers.h"

#include "python/extension/codec/arrays.h"
#include "python/extension/codec/classes.h"
#include "python/extension/codec/kinds.h"
#include "python/extension/codec/leaves.h"
#include "python/extension/codec/parts.h"
#include "python/extension/codec/references.h"
#include "python/extension/codec/scalars.h"

enum { PACKED_LEAST = 3 }; /* numbers in a list to be packed */

/* ---- Containers ------------------------------------------------------------------------------ */

static enum rc_py_put put_value(struct rc_py_encoding *encoding, PyObject *value,
                                struct rc_py_step *step);

/* For a value that is a tag and nothing else. */
static inline bool small_tag(PyObject *value, uint8_t *out) {
  if (value == Py_None) {
    *out = RINGCAST_TAG_NONE;
  } else if (value == Py_False) {
    *out = RINGCAST_TAG_FALSE;
  } else if (value == Py_True) {
    *out = RINGCAST_TAG_TRUE;
  } else {
    int64_t number;
    if (!PyLong_CheckExact(value) || !rc_py_int_value(value, &number)) return false;
    if (number < 0 || number >= RINGCAST_TAG_TEXT) return false;
    *out = (uint8_t)number;
  }
  return true;
}

static enum rc_py_put put_leaf(struct rc_py_encoding *encoding, PyObject *value,
                               struct rc_py_step *step) {
  Py_ssize_t leaf = rc_py_leaf_add(encoding, value, step);
  if (leaf < 0) return RC_PY_PUT_RAISED;
  return rc_py_put_head(encoding, RINGCAST_TAG_LEAF, (uint64_t)leaf);
}

/* Writes a value inside the container of `step`. Consumes a reference to the value, because Python
 * code deeper down could drop the container's. A value without a native form becomes a leaf. */
static inline enum rc_py_put put_inner(struct rc_py_encoding *encoding, PyObject *value,
                                       struct rc_py_step *step) {
  uint8_t tag;
  if (small_tag(value, &tag)) {
    Py_DECREF(value);
    return rc_py_put_tag(encoding, tag);
  }
  enum rc_py_put put = put_value(encoding, value, step);
  if (put == RC_PY_PUT_LEAF) put = put_leaf(encoding, value, step);
  Py_DECREF(value);
  return rc_py_put_done(put);
}

static enum rc_py_put raise_too_deep(struct rc_py_step *step) {
  PyObject *place = rc_py_step_path(step);
  if (place) {
    PyErr_Format(PyExc_RecursionError,
                 "%U is nested too deep for what is left of this thread's stack: give the thread a "
                 "larger one (threading.stack_size), or nest less",
                 place);
  }
  Py_XDECREF(place);
  return RC_PY_PUT_RAISED;
}

/* Makes the container a further step, and decides whether to write the container: as rc_py_mark.
 * LEAF: too deep. After DONE, a caller that can't write the container calls rc_py_unmark. */
static inline enum rc_py_put step_into(struct rc_py_encoding *encoding, PyObject *container,
                                       struct rc_py_step *up, struct rc_py_step *out) {
  out->up = up;
  out->container = container;
  out->depth = up->depth + 1;
  encoding->entered++;
  if (out->depth > RC_PY_DEPTH_UNSEEN) {
    if (out->depth > RINGCAST_MAX_DEPTH) return RC_PY_PUT_LEAF;
    if (!rc_py_stack_has_room(&encoding->stack_floor, 0)) return raise_too_deep(up);
  }
  return rc_py_mark(encoding, container, up);
}

/* After a failure: the value is left to pickle, unless an exception says otherwise. */
static enum rc_py_put left_or_raised(void) {
  if (PyErr_Occurred()) return RC_PY_PUT_RAISED;
  return RC_PY_PUT_LEAF;
}

static enum rc_py_put changed(void) {
  PyErr_SetString(PyExc_RuntimeError, "the value has changed while it was sent");
  return RC_PY_PUT_RAISED;
}

/* The items of a list or tuple, whose tag is given. LEAF: not numbers of a kind, or too few. */
static inline enum rc_py_put put_numbers(struct rc_py_encoding *encoding, uint8_t tag,
                                         PyObject *const *items, Py_ssize_t count) {
  if (count < PACKED_LEAST) return RC_PY_PUT_LEAF;
  uint8_t packed_tag = RINGCAST_TAG_PACKED_TUPLE;
  if (tag == RINGCAST_TAG_LIST) packed_tag = RINGCAST_TAG_PACKED_LIST;
  return rc_py_put_packed(encoding, packed_tag, items, (size_t)count);
}

/* Writes a list or tuple of numbers whole, even at the depth limit; of any other, writes the head
 * and returns DONE, for the caller to go on. BACK: written. */
static inline enum rc_py_put put_items_head(struct rc_py_encoding *encoding, uint8_t tag,
                                            PyObject *container, PyObject *const *items,
                                            Py_ssize_t count, struct rc_py_step *step,
                                            struct rc_py_step *up) {
  enum rc_py_put put = step_into(encoding, container, up, step);
  if (put == RC_PY_PUT_DONE || put == RC_PY_PUT_LEAF) {
    enum rc_py_put packed = put_numbers(encoding, tag, items, count);
    if (packed == RC_PY_PUT_DONE) return RC_PY_PUT_BACK;
    if (packed != RC_PY_PUT_LEAF) return packed;
  }
  if (put != RC_PY_PUT_DONE) return put;
  return rc_py_put_head(encoding, tag, (uint64_t)count);
}

static inline enum rc_py_put put_list_items(struct rc_py_encoding *encoding, PyObject *list,
                                            Py_ssize_t count, struct rc_py_step *step) {
  enum rc_py_put put = RC_PY_PUT_DONE;
  for (step->index = 0; put == RC_PY_PUT_DONE && step->index < count; step->index++) {
    if (PyList_GET_SIZE(list) != count) return changed();
    put = put_inner(encoding, Py_NewRef(PyList_GET_ITEM(list, step->index)), step);
  }
  return put;
}

static enum rc_py_put put_list(struct rc_py_encoding *encoding, PyObject *list,
                               struct rc_py_step *up) {
  struct rc_py_step step;
  Py_ssize_t count = PyList_GET_SIZE(list);
  PyObject **items = ((PyListObject *)list)->ob_item;
  enum rc_py_put put = put_items_head(encoding, RINGCAST_TAG_LIST, list, items, count, &step, up);
  if (put != RC_PY_PUT_DONE) return put;
  return put_list_items(encoding, list, count, &step);
}

static enum rc_py_put put_tuple(struct rc_py_encoding *encoding, PyObject *tuple,
                                struct rc_py_step *up) {
  struct rc_py_step step;
  Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  PyObject **items = ((PyTupleObject *)tuple)->ob_item;
  if (count == 0)
    return rc_py_put_head(encoding, RINGCAST_TAG_TUPLE, 0); /* the empty tuple is a singleton */
  enum rc_py_put put = put_items_head(encoding, RINGCAST_TAG_TUPLE, tuple, items, count, &step, up);
  for (step.index = 0; put == RC_PY_PUT_DONE && step.index < count; step.index++) {
    put = put_inner(encoding, Py_NewRef(PyTuple_GET_ITEM(tuple, step.index)), &step);
  }
  return put;
}

static enum rc_py_put put_shape(struct rc_py_encoding *encoding, PyObject *keys) {
  Py_ssize_t count = PyTuple_GET_SIZE(keys);
  enum rc_py_put put = rc_py_put_head(encoding, RINGCAST_TAG_SHAPE, (uint64_t)count);
  for (Py_ssize_t i = 0; put == RC_PY_PUT_DONE && i < count; i++) {
    put = rc_py_put_text(encoding, PyTuple_GET_ITEM(keys, i));
  }
  return put;
}

/* Writes the values of a dict with a known shape. */
static enum rc_py_put put_record(struct rc_py_encoding *encoding, PyObject *dict,
                                 const struct rc_py_shape_known *shape, struct rc_py_step *step) {
  PyObject *key, *value, *keys = shape->keys;
  Py_ssize_t position = 0, count = PyTuple_GET_SIZE(keys), done = 0;
  enum rc_py_put put = RC_PY_PUT_DONE;
  if (shape->is_new) put = put_shape(encoding, keys);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_head(encoding, RINGCAST_TAG_RECORD, shape->number);
  step->index = RC_PY_STEP_KEY;
  for (; put == RC_PY_PUT_DONE && done < count; done++) {
    bool is_same =
        PyDict_Next(dict, &position, &key, &value) && key == PyTuple_GET_ITEM(keys, done);
    if (!is_same) return changed();
    step->key = key;
    put = put_inner(encoding, Py_NewRef(value), step);
  }
  if (put == RC_PY_PUT_DONE && PyDict_GET_SIZE(dict) != count) return changed();
  return put;
}

/* Writes the keys and values of a dict. `place` is the kind of each value's step: RC_PY_STEP_KEY,
 * or RC_PY_STEP_FIELD if the dict holds the attributes of an instance. */
static enum rc_py_put put_pairs(struct rc_py_encoding *encoding, PyObject *dict,
                                struct rc_py_step *step, Py_ssize_t place) {
  PyObject *key, *value;
  Py_ssize_t position = 0, count = PyDict_GET_SIZE(dict), done = 0;
  enum rc_py_put put = rc_py_put_head(encoding, RINGCAST_TAG_DICT, (uint64_t)count);
  while (put == RC_PY_PUT_DONE && PyDict_Next(dict, &position, &key, &value)) {
    done++;
    if (done > count) break;
    Py_INCREF(value);
    step->key = Py_NewRef(key);
    if (PyUnicode_CheckExact(key)) {
      put = rc_py_put_text(encoding, key);
      step->index = place;
    } else {
      step->index = RC_PY_STEP_OF_KEY;
      put = put_inner(encoding, Py_NewRef(key), step);
      step->index = RC_PY_STEP_KEY;
    }
    if (put == RC_PY_PUT_DONE) {
      put = put_inner(encoding, value, step);
    } else {
      Py_DECREF(value);
    }
    Py_DECREF(key);
  }
  if (put != RC_PY_PUT_DONE) return put;
  if (done != count || PyDict_GET_SIZE(dict) != count) return changed();
  return RC_PY_PUT_DONE;
}

static enum rc_py_put put_dict(struct rc_py_encoding *encoding, PyObject *dict,
                               struct rc_py_step *up) {
  struct rc_py_step step;
  struct rc_py_shape_known shape;
  enum rc_py_put put = step_into(encoding, dict, up, &step);
  if (put != RC_PY_PUT_DONE) return put;
  if (step.depth > 1) { /* else no dict was before it */
    put = rc_py_shape_of(encoding, dict, &shape);
    if (put == RC_PY_PUT_DONE) return put_record(encoding, dict, &shape, &step);
    if (put != RC_PY_PUT_LEAF) return put;
  }
  return put_pairs(encoding, dict, &step, RC_PY_STEP_KEY);
}

static enum rc_py_put put_set(struct rc_py_encoding *encoding, PyObject *set, struct rc_py_step *up,
                              uint8_t tag) {
  struct rc_py_step step;
  Py_ssize_t count = PySet_GET_SIZE(set), done = 0;
  enum rc_py_put put = step_into(encoding, set, up, &step);
  if (put != RC_PY_PUT_DONE) return put;
  PyObject *members = PyObject_GetIter(set);
  if (!members) return RC_PY_PUT_RAISED;
  put = rc_py_put_head(encoding, tag, (uint64_t)count);
  step.index = RC_PY_STEP_MEMBER;
  while (put == RC_PY_PUT_DONE) {
    PyObject *member = PyIter_Next(members);
    if (!member) break;
    done++;
    put = put_inner(encoding, member, &step);
  }
  Py_DECREF(members);
  if (put != RC_PY_PUT_DONE) return put;
  if (PyErr_Occurred()) return RC_PY_PUT_RAISED;
  if (done != count) return changed();
  return RC_PY_PUT_DONE;
}

/* range and slice. */
static enum rc_py_put put_bounds(struct rc_py_encoding *encoding, PyObject *bounds,
                                 struct rc_py_step *up, uint8_t tag) {
  static const char *const names[] = {"start", "stop", "step"};
  struct rc_py_step step;
  enum rc_py_put put = step_into(encoding, bounds, up, &step);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_tag(encoding, tag);
  step.index = RC_PY_STEP_FIELD;
  for (int i = 0; put == RC_PY_PUT_DONE && i < 3; i++) {
    step.key = PyUnicode_FromString(names[i]);
    if (!step.key) return RC_PY_PUT_RAISED;
    PyObject *bound = PyObject_GetAttr(bounds, step.key);
    put = RC_PY_PUT_RAISED;
    if (bound) put = put_inner(encoding, bound, &step);
    Py_DECREF(step.key);
  }
  return put;
}

/* ---- Types of the standard library ----------------------------------------------------------- */

/* The list of a state: no other place refers to it. */
static enum rc_py_put put_own_list(struct rc_py_encoding *encoding, PyObject *list,
                                   struct rc_py_step *step) {
  Py_ssize_t count = PyList_GET_SIZE(list);
  enum rc_py_put put =
      put_numbers(encoding, RINGCAST_TAG_LIST, ((PyListObject *)list)->ob_item, count);
  if (put != RC_PY_PUT_LEAF) return put;
  put = rc_py_put_head(encoding, RINGCAST_TAG_LIST, (uint64_t)count);
  if (put != RC_PY_PUT_DONE) return put;
  return put_list_items(encoding, list, count, step);
}

static enum rc_py_put put_contents(struct rc_py_encoding *encoding, int number,
                                   const struct rc_py_contents *contents, struct rc_py_step *step) {
  PyObject *items = contents->items;
  enum rc_py_put put = rc_py_put_tag_of(encoding, RINGCAST_TAG_KIND, number);
  if (put == RC_PY_PUT_DONE && contents->head) {
    put = rc_py_put_head(encoding, RINGCAST_TAG_TUPLE, 2);
    if (put == RC_PY_PUT_DONE) put = put_inner(encoding, Py_NewRef(contents->head), step);
  }
  if (put != RC_PY_PUT_DONE) return put;
  if (PyList_CheckExact(items)) return put_own_list(encoding, items, step);
  return put_pairs(encoding, items, step, RC_PY_STEP_KEY);
}

static enum rc_py_put put_plain_standard(struct rc_py_encoding *encoding, PyObject *value,
                                         int number) {
  enum rc_py_put put = rc_py_mark(encoding, value, NULL);
  if (put != RC_PY_PUT_DONE) return put;
  put = rc_py_put_standard(encoding, number, value);
  if (put == RC_PY_PUT_LEAF) return rc_py_unmark(encoding, value);
  return put;
}

static enum rc_py_put put_standard(struct rc_py_encoding *encoding, PyObject *value, int number,
                                   struct rc_py_step *up) {
  struct rc_py_step step;
  struct rc_py_contents contents;
  if (number == RC_PY_ARRAY) return rc_py_put_array(encoding, value);
  if (up->depth > RINGCAST_MAX_DEPTH - RC_PY_STATE_DEPTH) return RC_PY_PUT_LEAF;
  if (number > RINGCAST_STANDARD_COUNTER) return put_plain_standard(encoding, value, number);
  enum rc_py_put put = step_into(encoding, value, up, &step);
  if (put != RC_PY_PUT_DONE) return put;
  int has = rc_py_contents(number, value, &contents);
  if (has < 0) return RC_PY_PUT_RAISED;
  if (has == 0) return rc_py_unmark(encoding, value);
  step.depth += 1 + (contents.head != NULL); /* the state's own containers */
  put = put_contents(encoding, number, &contents, &step);
  Py_XDECREF(contents.head);
  Py_DECREF(contents.items);
  return put;
}

/* ---- Instances ------------------------------------------------------------------------------- */

/* Writes the class, unless the stream has it already. LEAF: too many classes. */
static inline enum rc_py_put put_class(struct rc_py_encoding *encoding, struct rc_py_class *class) {
  if (class->serial == encoding->serial) return RC_PY_PUT_DONE;
  if (encoding->classes == RINGCAST_MAX_CLASSES) return RC_PY_PUT_LEAF;
  size_t bytes = (size_t)PyBytes_GET_SIZE(class->text);
  uint8_t *at = rc_py_stream_at(encoding, HEAD + 1 + bytes);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = RINGCAST_TAG_CLASS;
  *at++ = class->kind;
  at = rc_py_write_count(at, bytes);
  memcpy(at, PyBytes_AS_STRING(class->text), bytes);
  class->serial = encoding->serial;
  class->number = encoding->classes++;
  return rc_py_stream_end(encoding, at + bytes);
}

/* Writes a composite member of a Flag by its value. LEAF: any other member that the class has under
 * no name. */
static enum rc_py_put put_composite(struct rc_py_encoding *encoding, PyObject *member,
                                    struct rc_py_class *class) {
  PyObject *value = rc_py_class_composite(encoding->state, member);
  if (!value) return left_or_raised();
  enum rc_py_put put = put_class(encoding, class);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_head(encoding, RINGCAST_TAG_MEMBER, class->number);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_int(encoding, value);
  Py_DECREF(value);
  return put;
}

static enum rc_py_put put_member_of(struct rc_py_encoding *encoding, PyObject *member,
                                    struct rc_py_class *class, PyObject *name, PyObject *members) {
  bool is_known = PyUnicode_CheckExact(name) && PyDict_CheckExact(members) &&
                  PyDict_GetItemWithError(members, name) == member;
  if (!is_known) {
    PyErr_Clear(); /* a foreign key among the members raised in its own comparison */
    return put_composite(encoding, member, class);
  }
  enum rc_py_put put = put_class(encoding, class);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_head(encoding, RINGCAST_TAG_MEMBER, class->number);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_text(encoding, name);
  return put;
}

/* Writes a member of an enum by its name. The name is a value inside, so a member is as deep as a
 * container. */
static enum rc_py_put put_member(struct rc_py_encoding *encoding, PyObject *member,
                                 struct rc_py_class *class, const struct rc_py_step *up) {
  struct rc_py_state *state = encoding->state;
  if (up->depth == RINGCAST_MAX_DEPTH) return RC_PY_PUT_LEAF;
  PyObject *members = PyObject_GetAttr((PyObject *)class->type, state->names._member_map_);
  if (!members) return RC_PY_PUT_RAISED;
  PyObject *name = PyObject_GetAttr(member, state->names._name_);
  enum rc_py_put put = RC_PY_PUT_RAISED;
  if (name) put = put_member_of(encoding, member, class, name, members);
  Py_DECREF(members);
  Py_XDECREF(name);
  return put;
}

static enum rc_py_put put_element(struct rc_py_encoding *encoding, struct ringcast_dtype dtype,
                                  const Py_buffer *view) {
  uint8_t *at = rc_py_stream_at(encoding, 1 + sizeof dtype + (size_t)view->len);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = RINGCAST_TAG_SCALAR;
  memcpy(at, &dtype, sizeof dtype);
  memcpy(at + sizeof dtype, view->buf, (size_t)view->len);
  return rc_py_stream_end(encoding, at + sizeof dtype + view->len);
}

/* Of NumPy. */
static enum rc_py_put put_scalar(struct rc_py_encoding *encoding, PyObject *scalar,
                                 const struct rc_py_class *class) {
  Py_buffer view;
  if (PyObject_GetBuffer(scalar, &view, PyBUF_SIMPLE) < 0) {
    PyErr_Clear();
    return RC_PY_PUT_LEAF;
  }
  enum rc_py_put put = RC_PY_PUT_LEAF;
  if (view.len * 8 == class->dtype.bits) put = put_element(encoding, class->dtype, &view);
  PyBuffer_Release(&view);
  return put;
}

/* Writes the __dict__ of an instance: a separate dict, but with values that are attributes of the
 * instance. None: no __dict__. */
static enum rc_py_put put_attributes(struct rc_py_encoding *encoding, PyObject *dict,
                                     struct rc_py_step *step) {
  if (dict == Py_None) return rc_py_put_tag(encoding, RINGCAST_TAG_NONE);
  step->depth++;
  return put_pairs(encoding, dict, step, RC_PY_STEP_FIELD);
}

/* Consumes the references to the values. */
static enum rc_py_put put_fields(struct rc_py_encoding *encoding, struct rc_py_class *class,
                                 struct rc_py_step *step, PyObject **values) {
  Py_ssize_t count = PyTuple_GET_SIZE(class->names);
  bool has_attributes = class->kind == RINGCAST_CLASS_INSTANCE;
  bool is_too_deep = has_attributes && step->depth == RINGCAST_MAX_DEPTH;
  enum rc_py_put put = RC_PY_PUT_LEAF;
  if (!is_too_deep) put = put_class(encoding, class);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_head(encoding, RINGCAST_TAG_OBJECT, class->number);
  step->index = RC_PY_STEP_FIELD;
  for (Py_ssize_t i = 0; i < count; i++) {
    step->key = PyTuple_GET_ITEM(class->names, i);
    if (put != RC_PY_PUT_DONE) {
      Py_XDECREF(values[i]);
    } else if (values[i]) {
      put = put_inner(encoding, values[i], step);
    } else {
      put = rc_py_put_tag(encoding, RINGCAST_TAG_ABSENT);
    }
  }
  if (has_attributes) {
    if (put == RC_PY_PUT_DONE) put = put_attributes(encoding, values[count], step);
    Py_DECREF(values[count]);
  }
  return put;
}

static enum rc_py_put put_instance(struct rc_py_encoding *encoding, PyObject *instance,
                                   struct rc_py_class *class, struct rc_py_step *up) {
  struct rc_py_step step;
  struct rc_py_fields fields;
  enum rc_py_put put = step_into(encoding, instance, up, &step);
  if (put != RC_PY_PUT_DONE) return put;
  class = rc_py_class_take(encoding->state, class, instance, &fields);
  if (class) {
    put = put_fields(encoding, class, &step, fields.values);
    rc_py_fields_free(&fields);
  } else {
    put = left_or_raised();
  }
  if (put == RC_PY_PUT_LEAF) return rc_py_unmark(encoding, instance);
  return put;
}

/* ---- Any value ------------------------------------------------------------------------------- */

/* Writes the rarer kinds. */
static enum rc_py_put put_other(struct rc_py_encoding *encoding, PyObject *value,
                                struct rc_py_step *step) {
  PyTypeObject *type = Py_TYPE(value);
  if (type == &PyComplex_Type) return rc_py_put_complex(encoding, value);
  if (type == &PyByteArray_Type) return rc_py_put_bytearray(encoding, value);
  if (type == &PySet_Type) return put_set(encoding, value, step, RINGCAST_TAG_SET);
  if (type == &PyFrozenSet_Type) return put_set(encoding, value, step, RINGCAST_TAG_FROZENSET);
  if (type == &PyRange_Type) return put_bounds(encoding, value, step, RINGCAST_TAG_RANGE);
  if (type == &PySlice_Type) return put_bounds(encoding, value, step, RINGCAST_TAG_SLICE);
  enum rc_py_put put = rc_py_put_tensor(encoding, value, step);
  if (put != RC_PY_PUT_LEAF) return put;
  return rc_py_put_torch_name(encoding, value);
}

static enum rc_py_put put_by_class(struct rc_py_encoding *encoding, PyObject *value,
                                   struct rc_py_class *class, struct rc_py_step *step) {
  switch (class->kind) {
  case RC_PY_CLASS_SCALAR: return put_scalar(encoding, value, class);
  case RC_PY_CLASS_STANDARD: return put_standard(encoding, value, class->dtype.code, step);
  case RINGCAST_CLASS_ENUM: return put_member(encoding, value, class, step);
  default: return put_instance(encoding, value, class, step);
  }
}

/* LEAF: nothing was written. */
static enum rc_py_put put_value(struct rc_py_encoding *encoding, PyObject *value,
                                struct rc_py_step *step) {
  PyTypeObject *type = Py_TYPE(value);
  if (type == &PyUnicode_Type) return rc_py_put_text(encoding, value);
  if (type == &PyLong_Type) return rc_py_put_int(encoding, value);
  if (type == &PyList_Type) return put_list(encoding, value, step);
  if (type == &PyDict_Type) return put_dict(encoding, value, step);
  if (type == &PyTuple_Type) return put_tuple(encoding, value, step);
  if (type == &PyFloat_Type) return rc_py_put_float(encoding, value);
  if (type == &PyBytes_Type) return rc_py_put_bytes(encoding, value);
  struct rc_py_class *class = rc_py_class_of(encoding->state, encoding->class_cache, type);
  if (class) return put_by_class(encoding, value, class, step);
  if (PyErr_Occurred()) return RC_PY_PUT_RAISED;
  return put_other(encoding, value, step);
}

/* Numbers go on from stream to stream, so that texts of an older stream are known to be old. */
static bool begin_texts(struct rc_py_encoding *encoding) {
  if (encoding->texts && encoding->texts->next > UINT32_MAX / 2) {
    PyMem_Free(encoding->texts);
    encoding->texts = NULL;
  }
  if (!encoding->texts) {
    encoding->texts = PyMem_Calloc(1, sizeof *encoding->texts);
    if (!encoding->texts) {
      PyErr_NoMemory();
      return false;
    }
    encoding->texts->next = 1; /* an empty entry has number 0 */
  }
  encoding->first_text = encoding->texts->next;
  return true;
}

static bool begin_stream(struct rc_py_encoding *encoding) {
  encoding->serial = ++encoding->state->serial;
  encoding->classes = 0;
  if (!encoding->class_cache) {
    encoding->class_cache = rc_py_class_cache(&encoding->state->classes);
    if (!encoding->class_cache) return false;
  }
  return rc_py_repeats_begin(encoding) && begin_texts(encoding);
}

enum rc_py_put rc_py_write_tokens(struct rc_py_encoding *encoding, PyObject *value,
                                  struct rc_py_step *root) {
  if (!begin_stream(encoding)) return RC_PY_PUT_RAISED;
  return rc_py_put_done(put_value(encoding, value, root));
}
