/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nested values, from a stream of tokens (ringcast/object.h).
 *
 * The stream lies in the decoder's own memory, so checked bytes stay checked. Tensors, long text
 * and pickled values are complete already. A container is made after its contents, so none needs a
 * later fix. A hostile stream's demands are bounded: a count by the bytes left; all counts together
 * by the stream's bytes, because nested containers could otherwise each demand room for the whole
 * rest; the depth by RINGCAST_MAX_DEPTH. A part is used once, and a class must be one with
 * instances that travel (ringcast/_classes.py).
 *
 * Python code may run in the middle: of an imported class, of a Struct being made, of the
 * collector. An unfinished list or tuple is hidden from the collector, so that such code can't find
 * it. An unfinished dict or set is valid at any time, and may be found.
 */
#include "python/extension/codec/stack.h"
#include "python/extension/codec/array.h"
#include "python/extension/codec/kinds.h"
#include "python/extension/codec/token_read.h"
#include "python/extension/codec/torch_names.h"

enum {
  DICT_PRESIZED_MOST = 1 << 16,
  KEYS_KNOWN_MOST =
      RC_PY_KEYS / 4 /* the keys of a larger dict would drive all others out of the cache */
};

static PyObject *get_value(struct rc_py_token_reader *getting, int depth);

/* ---- Text and numbers ------------------------------------------------------------------------ */

static inline PyObject *get_ascii(struct rc_py_token_reader *getting, const uint8_t *data,
                                  size_t bytes) {
  if (!rc_py_is_ascii(data, bytes)) return stream_damaged(getting, "its text is no ASCII");
  PyObject *text = PyUnicode_New((Py_ssize_t)bytes, 127);
  if (text && bytes > 0) memcpy(PyUnicode_1BYTE_DATA(text), data, bytes);
  return text;
}

static PyObject *get_again(struct rc_py_token_reader *getting, uint64_t text) {
  if (text >= getting->text_count)
    return stream_damaged(getting, "a text that was not there before");
  return rc_py_ref(getting->texts[text]);
}

static PyObject *get_record(struct rc_py_token_reader *getting, uint64_t number, int depth);

/* As get_value: numbers, records and shared texts, which are many, without a token. */
static PyObject *get_frequent(struct rc_py_token_reader *getting, uint8_t tag, int depth) {
  const uint8_t *data = getting->object.at + 1;
  size_t left = (size_t)(getting->object.end - data);
  uint32_t bits;
  switch (tag) {
  case RINGCAST_TAG_INT8:
  case RINGCAST_TAG_INT16:
  case RINGCAST_TAG_INT32:
    if (left < sizeof bits) break; /* at the stream's end */
    memcpy(&bits, data, sizeof bits);
    unsigned bytes = 1u << (tag - RINGCAST_TAG_INT8),
             shift = 32 - 8 * bytes; /* which extends the sign */
    getting->object.at = data + bytes;
    return PyLong_FromLong((int32_t)(bits << shift) >> shift);
  case RINGCAST_TAG_FLOAT:
    if (left < sizeof(double)) break;
    getting->object.at = data + sizeof(double);
    return get_float(data);
  case RINGCAST_TAG_NAMED:
    if (left < 1 || *data >= 252 || *data > left - 1) break;
    getting->object.at = data + 1 + *data;
    return rc_py_text_named(getting, data + 1, *data);
  case RINGCAST_TAG_AGAIN:
    if (left < 1 || *data >= 252) break;
    getting->object.at = data + 1;
    return get_again(getting, *data);
  case RINGCAST_TAG_RECORD:
    if (left < 1 || *data >= 252 || *data >= getting->shape_count || depth >= RC_PY_DEPTH_UNSEEN)
      break;
    getting->object.at = data + 1;
    return get_record(getting, *data, depth + 1);
  default: break;
  }
  return get_value(getting, depth);
}

/* As get_value: what most values are, without a token. */
static inline __attribute__((always_inline)) PyObject *get_inner(struct rc_py_token_reader *getting,
                                                                 int depth) {
  struct ringcast_object *object = &getting->object;
  if (object->at == object->end) return get_value(getting, depth);
  uint8_t tag = *object->at;
  if (tag < RINGCAST_TAG_TEXT) {
    object->at++;
    return PyLong_FromLong(tag);
  }
  if (tag < RINGCAST_TAG_NONE) {
    const uint8_t *data = object->at + 1;
    size_t bytes = tag - RINGCAST_TAG_TEXT;
    if (bytes > (size_t)(object->end - data)) return stream_damaged(getting, "it is cut off");
    object->at += 1 + bytes;
    return get_ascii(getting, data, bytes);
  }
  if (tag > RINGCAST_TAG_TRUE) return get_frequent(getting, tag, depth);
  object->at++;
  return rc_py_ref(tag == RINGCAST_TAG_NONE   ? Py_None
                   : tag == RINGCAST_TAG_TRUE ? Py_True
                                              : Py_False);
}

/* ---- Containers ------------------------------------------------------------------------------ */

/* Counts `count` values towards the stream's limit. */
static inline bool take_values(struct rc_py_token_reader *getting, uint64_t count) {
  if (count > getting->values_left)
    return stream_damaged(getting, "a container counts more than there is");
  getting->values_left -= count;
  return true;
}

static PyObject *get_list(struct rc_py_token_reader *getting, uint64_t count, int depth) {
  if (!take_values(getting, count)) return NULL;
  PyObject *list = PyList_New((Py_ssize_t)count);
  if (!list || count == 0) return list;
  PyObject_GC_UnTrack(list);
  for (uint64_t i = 0; i < count; i++) {
    PyObject *item = get_inner(getting, depth);
    if (!item) {
      Py_DECREF(list);
      return NULL;
    }
    PyList_SET_ITEM(list, (Py_ssize_t)i, item);
  }
  PyObject_GC_Track(list);
  return list;
}

static PyObject *get_tuple(struct rc_py_token_reader *getting, uint64_t count, int depth) {
  if (!take_values(getting, count)) return NULL;
  PyObject *tuple = PyTuple_New((Py_ssize_t)count);
  if (!tuple || count == 0) return tuple; /* the empty tuple is shared */
  PyObject_GC_UnTrack(tuple);
  for (uint64_t i = 0; i < count; i++) {
    PyObject *item = get_inner(getting, depth);
    if (!item) {
      Py_DECREF(tuple);
      return NULL;
    }
    PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, item);
  }
  PyObject_GC_Track(tuple);
  return tuple;
}

/* The next value, if it is a short str in the tag, as most keys are, or one that was there before;
 * the first is looked up in the cache of short strs. NULL, with nothing raised: read the value by
 * other means. */
static inline PyObject *get_short_key(struct rc_py_token_reader *getting) {
  const uint8_t *at = getting->object.at;
  size_t left = (size_t)(getting->object.end - at);
  if (left >= 2 && *at == RINGCAST_TAG_AGAIN && at[1] < 252 && at[1] < getting->text_count) {
    getting->object.at += 2;
    return rc_py_ref(getting->texts[at[1]]);
  }
  if (left == 0 || *at < RINGCAST_TAG_TEXT || *at >= RINGCAST_TAG_NONE) return NULL;
  size_t bytes = *at - RINGCAST_TAG_TEXT;
  PyObject *key = bytes < left ? rc_py_key(getting->state, at + 1, bytes) : NULL;
  if (key) getting->object.at += 1 + bytes;
  return key;
}

/* A key that may be hashed. */
static inline PyObject *get_key(struct rc_py_token_reader *getting, bool is_short, int depth) {
  PyObject *key = is_short ? get_short_key(getting) : NULL;
  if (key) return key;
  struct rc_py_span outer = rc_py_span_begin(getting->marked, depth);
  key = get_inner(getting, depth);
  if (key && !rc_py_may_hash(getting, key, depth)) Py_CLEAR(key);
  rc_py_span_end(getting->marked, &outer);
  return key;
}

/* A dict with room for `count` items, if Python offers a way. */
static PyObject *dict_new(uint64_t count) {
#if PY_VERSION_HEX < 0x030d0000
  if (count > 5 && count <= DICT_PRESIZED_MOST) return _PyDict_NewPresized((Py_ssize_t)count);
#endif
  (void)count;
  return PyDict_New();
}

static PyObject *get_dict(struct rc_py_token_reader *getting, uint64_t count, int depth) {
  if (!take_values(getting, 2 * count)) return NULL;
  PyObject *dict = dict_new(count);
  for (uint64_t i = 0; dict && i < count; i++) {
    PyObject *key =
        rc_py_heed_signals(i) ? get_key(getting, count <= KEYS_KNOWN_MOST, depth) : NULL;
    PyObject *value = key ? get_inner(getting, depth) : NULL;
    bool ok = value && PyDict_SetItem(dict, key, value) == 0;
    if (value && !ok) stream_refused(getting, "a key of a dict");
    Py_XDECREF(key);
    Py_XDECREF(value);
    if (!ok) Py_CLEAR(dict);
  }
  return dict;
}

static PyObject *get_set(struct rc_py_token_reader *getting, const struct ringcast_token *token,
                         int depth) {
  PyObject *set = token->tag == RINGCAST_TAG_SET ? PySet_New(NULL) : PyFrozenSet_New(NULL);
  for (uint64_t i = 0; set && i < token->count; i++) {
    PyObject *member = rc_py_heed_signals(i) ? get_key(getting, false, depth) : NULL;
    bool ok = member && PySet_Add(set, member) == 0;
    if (member && !ok) stream_refused(getting, "a member of a set");
    Py_XDECREF(member);
    if (!ok) Py_CLEAR(set);
  }
  return set;
}

static bool is_text_next(const struct rc_py_token_reader *getting) {
  struct ringcast_object rest = getting->object;
  struct ringcast_token token;
  return ringcast_token_read(&rest, &token) == 0 && ringcast_token_is_text(&token);
}

/* Defines a shape: a prefix, not a value. */
static bool take_shape(struct rc_py_token_reader *getting, uint64_t count) {
  if (!take_values(getting, count)) return false;
  if (getting->shape_count == RINGCAST_MAX_SHAPES)
    return stream_damaged(getting, "it has too many shapes");
  struct rc_py_shape *shape = &getting->shapes[getting->shape_count];
  *shape = (struct rc_py_shape){.keys = PyTuple_New((Py_ssize_t)count)};
  getting->shape_count++;
  if (shape->keys && count > 0)
    PyObject_GC_UnTrack(shape->keys); /* a tuple of strs needs no collector */
  shape->dict = shape->keys ? PyDict_New() : NULL;
  if (!shape->dict) return false;
  for (uint64_t i = 0; i < count; i++) {
    if (!is_text_next(getting)) return stream_damaged(getting, "a key of a shape that is no str");
    PyObject *key = get_key(getting, true, 0);
    if (!key) return false;
    PyTuple_SET_ITEM(shape->keys, (Py_ssize_t)i, key);
    if (PyDict_SetItem(shape->dict, key, Py_None) < 0) return false;
  }
  return PyDict_GET_SIZE(shape->dict) == (Py_ssize_t)count ||
         stream_damaged(getting, "a key of a shape twice");
}

/* A copy of the shape's dict has the complete table of keys, and need not grow. */
static PyObject *get_record(struct rc_py_token_reader *getting, uint64_t number, int depth) {
  if (number >= getting->shape_count)
    return stream_damaged(getting, "a shape that was not there before");
  const struct rc_py_shape *shape = &getting->shapes[number];
  Py_ssize_t count = PyTuple_GET_SIZE(shape->keys);
  if (!take_values(getting, (uint64_t)count)) return NULL;
  PyObject *dict = PyDict_Copy(shape->dict);
  for (Py_ssize_t i = 0; dict && i < count; i++) {
    PyObject *value = get_inner(getting, depth);
    if (!value || PyDict_SetItem(dict, PyTuple_GET_ITEM(shape->keys, i), value) < 0) Py_CLEAR(dict);
    Py_XDECREF(value);
  }
  return dict;
}

/* Into `out`, all or nothing. */
static bool get_values(struct rc_py_token_reader *getting, Py_ssize_t count, int depth,
                       PyObject **out) {
  for (Py_ssize_t i = 0; i < count; i++) {
    out[i] = get_inner(getting, depth);
    if (out[i]) continue;
    while (i-- > 0) Py_DECREF(out[i]);
    return false;
  }
  return true;
}

static PyObject *get_bounds(struct rc_py_token_reader *getting, const struct ringcast_token *token,
                            int depth) {
  PyObject *bounds[3], *made;
  struct rc_py_span outer = rc_py_span_begin(getting->marked, depth);
  if (!get_values(getting, 3, depth, bounds)) return NULL;
  if (token->tag == RINGCAST_TAG_SLICE) {
    made = rc_py_is_shallow(getting, depth) ? PySlice_New(bounds[0], bounds[1], bounds[2]) : NULL;
  } else {
    made = PyObject_CallFunctionObjArgs((PyObject *)&PyRange_Type, bounds[0], bounds[1], bounds[2],
                                        NULL);
    if (!made) stream_refused(getting, "the bounds of a range");
  }
  for (int i = 0; i < 3; i++) Py_DECREF(bounds[i]);
  rc_py_span_end(getting->marked, &outer);
  return made;
}

static PyObject *get_kind(struct rc_py_token_reader *getting, uint8_t number, int depth) {
  if (!take_values(getting, 1)) return NULL;
  struct rc_py_span outer = rc_py_span_begin(getting->marked, depth);
  const uint8_t *from = getting->object.at;
  PyObject *plain = get_inner(getting, depth);
  bool recurses =
      number == RINGCAST_STANDARD_DEQUE || number == RINGCAST_STANDARD_DEFAULTDICT; /* at its end */
  bool ok = plain && (!recurses || rc_py_is_shallow(getting, depth)) &&
            rc_py_state_is_in_place(getting, number, plain, from);
  PyObject *made =
      ok ? rc_py_standard_make(getting->state, number, plain, &getting->marked->dtypes) : NULL;
  rc_py_span_end(getting->marked, &outer);
  Py_XDECREF(plain);
  return made;
}

/* ---- Instances ------------------------------------------------------------------------------- */

/* Defines a class: a prefix, not a value. get_value loops over such prefixes, as a stream can have
 * many in a row at any depth. */
static bool take_class(struct rc_py_token_reader *getting, const struct ringcast_token *token) {
  if (getting->class_count == RINGCAST_MAX_CLASSES)
    return stream_damaged(getting, "it has too many classes");
  struct rc_py_class *class = rc_py_class_find(getting->state, getting->classes, token->kind,
                                               token->data, token->count, getting->may_import);
  if (class) getting->class[getting->class_count++] = class;
  else stream_refused(getting, "a class");
  return class;
}

static PyObject *get_member(struct rc_py_token_reader *getting, const struct rc_py_class *class,
                            int depth) {
  PyObject *name = get_inner(getting, depth);
  if (name && !PyUnicode_CheckExact(name)) {
    PyObject *composite = PyLong_CheckExact(name)
                              ? rc_py_class_member(getting->state, class, name)
                              : stream_damaged(getting, "the name of an enum's member");
    Py_DECREF(name);
    return composite;
  }
  if (class->runs_code) getting->state->ran_code++;
  PyObject *members =
      name ? PyObject_GetAttr((PyObject *)class->type, getting->state->names._member_map_) : NULL;
  PyObject *member = NULL;
  if (members && PyDict_CheckExact(members)) {
    member = rc_py_ref(PyDict_GetItemWithError(members, name));
  }
  if (members && !member && !PyErr_Occurred()) {
    rc_py_raise_text(getting->state, EPROTO,
                     "the frame holds the member %.100R of %R, and there is none here", name,
                     class->type);
  }
  Py_XDECREF(name);
  Py_XDECREF(members);
  return member;
}

/* Into `out`, all or nothing. A slot of an INSTANCE may be absent. */
static bool get_fields(struct rc_py_token_reader *getting, const struct rc_py_class *class,
                       int depth, PyObject **out) {
  struct ringcast_object *object = &getting->object;
  Py_ssize_t count = PyTuple_GET_SIZE(class->names);
  if (class->kind != RINGCAST_CLASS_INSTANCE) return get_values(getting, count, depth, out);
  for (Py_ssize_t i = 0; i <= count; i++) {
    bool is_absent = i < count && object->at < object->end && *object->at == RINGCAST_TAG_ABSENT;
    object->at += is_absent;
    out[i] = is_absent ? NULL : get_inner(getting, depth);
    if (out[i] && i == count && !rc_py_is_in_place(getting, out[i])) Py_CLEAR(out[i]);
    if (out[i] || is_absent) continue;
    while (i-- > 0) Py_XDECREF(out[i]);
    return false;
  }
  return true;
}

static PyObject *get_instance(struct rc_py_token_reader *getting,
                              const struct ringcast_token *token, int depth) {
  if (token->count >= getting->class_count)
    return stream_damaged(getting, "a class that it has not told of");
  const struct rc_py_class *class = getting->class[token->count];
  if ((class->kind == RINGCAST_CLASS_ENUM) != (token->tag == RINGCAST_TAG_MEMBER)) {
    return stream_damaged(getting, "an enum that is none");
  }
  if (class->kind == RINGCAST_CLASS_ENUM) return get_member(getting, class, depth);
  struct rc_py_fields fields;
  PyObject *made = NULL;
  Py_ssize_t count = rc_py_class_values(class);
  if (!take_values(getting, (uint64_t)count) || !rc_py_fields_alloc(&fields, count)) return NULL;
  struct rc_py_span before = getting->marked->span;
  if (get_fields(getting, class, depth, fields.values))
    made = rc_py_class_make(getting->state, class, fields.values);
  hashfunc hash = class->type->tp_hash;
  bool is_opaque = hash == PyBaseObject_Type.tp_hash || hash == PyObject_HashNotImplemented;
  if (is_opaque) getting->marked->span = before; /* no hash looks inside */
  rc_py_fields_free(&fields);
  return made;
}

/* ---- Any value ------------------------------------------------------------------------------- */

static PyObject *get_container(struct rc_py_token_reader *getting,
                               const struct ringcast_token *token, int depth) {
  if (depth >= RC_PY_DEPTH_UNSEEN && !rc_py_may_go_deep(getting, depth)) return NULL;
  switch (token->tag) {
  case RINGCAST_TAG_LIST: return get_list(getting, token->count, depth + 1);
  case RINGCAST_TAG_TUPLE: return get_tuple(getting, token->count, depth + 1);
  case RINGCAST_TAG_DICT: return get_dict(getting, token->count, depth + 1);
  case RINGCAST_TAG_RECORD: return get_record(getting, token->count, depth + 1);
  case RINGCAST_TAG_SET:
  case RINGCAST_TAG_FROZENSET: return get_set(getting, token, depth + 1);
  case RINGCAST_TAG_RANGE:
  case RINGCAST_TAG_SLICE: return get_bounds(getting, token, depth + 1);
  case RINGCAST_TAG_KIND: return get_kind(getting, token->kind, depth + 1);
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER: return get_instance(getting, token, depth + 1);
  default: return stream_damaged(getting, "a container of a kind that this version does not know");
  }
}

static PyObject *get_rare(struct rc_py_token_reader *getting, const struct ringcast_token *token) {
  switch (token->tag) {
  case RINGCAST_TAG_BIGINT: return rc_py_token_read_bigint(getting, token);
  case RINGCAST_TAG_COMPLEX: return rc_py_token_read_complex(token);
  case RINGCAST_TAG_WTF8: return rc_py_text(getting, token->data, token->count, "surrogatepass");
  case RINGCAST_TAG_BYTEARRAY:
    return PyByteArray_FromStringAndSize((const char *)token->data, (Py_ssize_t)token->count);
  case RINGCAST_TAG_SCALAR: return rc_py_token_read_scalar(getting, token);
  case RINGCAST_TAG_DTYPE: return rc_py_torch_dtype(getting->state, token->data, token->count);
  case RINGCAST_TAG_DEVICE: return rc_py_torch_device(getting->state, token->data, token->count);
  case RINGCAST_TAG_SIZE: return rc_py_token_read_size(getting, token);
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY: return rc_py_token_read_part(getting, token);
  case RINGCAST_TAG_ARRAY:
    return rc_py_array_of(getting->state, token->kind, token->data, token->count);
  case RINGCAST_TAG_PART_ARRAY: return rc_py_token_read_part_array(getting, token->kind);
  case RINGCAST_TAG_LEAF: return rc_py_token_read_leaf(getting, token->count);
  case RINGCAST_TAG_ITEM: return rc_py_token_read_item(getting, token->count);
  default: return stream_damaged(getting, "a value of a kind that this version does not know");
  }
}

static bool next_token(struct rc_py_token_reader *getting, struct ringcast_token *out) {
  if (ringcast_token_read(&getting->object, out) == 0) return true;
  stream_damaged(getting, "a value is cut off, or of a kind that this version does not know");
  return false;
}

/* The value of a token, if the token is a value. */
static inline PyObject *get_token(struct rc_py_token_reader *getting,
                                  const struct ringcast_token *token, int depth) {
  switch (token->tag) {
  case RINGCAST_TAG_INT64: return PyLong_FromLongLong(token->i);
  case RINGCAST_TAG_ASCII: return get_ascii(getting, token->data, token->count);
  case RINGCAST_TAG_UTF8: return rc_py_text(getting, token->data, token->count, NULL);
  case RINGCAST_TAG_NAMED: return rc_py_text_named(getting, token->data, token->count);
  case RINGCAST_TAG_AGAIN: return get_again(getting, token->count);
  case RINGCAST_TAG_NONE: return rc_py_ref(Py_None);
  case RINGCAST_TAG_FALSE: return rc_py_ref(Py_False);
  case RINGCAST_TAG_TRUE: return rc_py_ref(Py_True);
  case RINGCAST_TAG_FLOAT: return get_float(token->data);
  case RINGCAST_TAG_BYTES:
    return PyBytes_FromStringAndSize((const char *)token->data, (Py_ssize_t)token->count);
  case RINGCAST_TAG_BACK: return rc_py_token_read_back(getting, token->count, depth);
  case RINGCAST_TAG_PACKED_LIST:
  case RINGCAST_TAG_PACKED_TUPLE: return rc_py_token_read_packed(token);
  case RINGCAST_TAG_LIST:
  case RINGCAST_TAG_TUPLE:
  case RINGCAST_TAG_DICT:
  case RINGCAST_TAG_RECORD:
  case RINGCAST_TAG_SET:
  case RINGCAST_TAG_FROZENSET:
  case RINGCAST_TAG_RANGE:
  case RINGCAST_TAG_SLICE:
  case RINGCAST_TAG_KIND:
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER: return get_container(getting, token, depth);
  default: return get_rare(getting, token);
  }
}

static inline bool is_prefix(uint8_t tag) {
  return tag == RINGCAST_TAG_MARK || tag == RINGCAST_TAG_CLASS || tag == RINGCAST_TAG_SHAPE;
}

/* The value behind prefixes. A loop, as there can be many in a row at any depth. */
static PyObject *get_prefixed(struct rc_py_token_reader *getting, struct ringcast_token *token,
                              int depth) {
  Py_ssize_t number = -1;
  struct rc_py_span outer;
  for (; is_prefix(token->tag);) {
    if (token->tag == RINGCAST_TAG_MARK) {
      if (number >= 0) return stream_damaged(getting, "a mark of a mark");
      if ((number = rc_py_mark_begin(getting, depth, &outer)) < 0) return NULL;
    } else if (token->tag == RINGCAST_TAG_CLASS ? !take_class(getting, token)
                                                : !take_shape(getting, token->count)) {
      return NULL;
    }
    if (!next_token(getting, token)) return NULL;
  }
  if (number >= 0 && token->tag == RINGCAST_TAG_BACK)
    return stream_damaged(getting, "a mark of what was marked");
  PyObject *value = get_token(getting, token, depth);
  if (value && number >= 0) rc_py_mark_end(getting, number, value, depth, &outer);
  return value;
}

static PyObject *get_value(struct rc_py_token_reader *getting, int depth) {
  struct ringcast_token token;
  if (!next_token(getting, &token)) return NULL;
  return is_prefix(token.tag) ? get_prefixed(getting, &token, depth)
                              : get_token(getting, &token, depth);
}

PyObject *rc_py_token_read(struct rc_py_token_reader *getting) {
  getting->texts = NULL;
  getting->text_count = getting->text_room = 0;
  getting->values_left = (uint64_t)(getting->object.end - getting->object.at);
  getting->stack_floor = 0;
  getting->class_count = getting->shape_count = 0;
  PyObject *value = get_inner(getting, 0);
  while (getting->shape_count > 0) {
    const struct rc_py_shape *shape = &getting->shapes[--getting->shape_count];
    Py_XDECREF(shape->keys);
    Py_XDECREF(shape->dict);
  }
  for (size_t i = 0; i < getting->text_count; i++) Py_DECREF(getting->texts[i]);
  PyMem_Free(getting->texts);
  if (!value) return NULL;
  if (getting->object.at != getting->object.end || getting->next_part != getting->part_count) {
    Py_DECREF(value);
    return stream_damaged(getting, "there is more in it than its value");
  }
  return value;
}
