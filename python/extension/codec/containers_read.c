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
#include "python/extension/codec/containers.h"

#include "python/extension/codec/arrays.h"
#include "python/extension/codec/classes.h"
#include "python/extension/codec/kinds.h"
#include "python/extension/codec/references.h"
#include "python/extension/codec/scalars.h"

enum {
  DICT_PRESIZED_MOST = 1 << 16,
  /* The keys of a larger dict would drive all others out of the cache. */
  KEYS_KNOWN_MOST = RC_PY_KEYS / 4,
};

static PyObject *get_value(struct rc_py_token_reader *reader, int depth);

/* ---- Text and numbers ------------------------------------------------------------------------ */

static inline PyObject *get_ascii(struct rc_py_token_reader *reader, const uint8_t *data,
                                  size_t bytes) {
  if (!rc_py_is_ascii(data, bytes)) return rc_py_stream_damaged(reader, "its text is no ASCII");
  PyObject *text = PyUnicode_New((Py_ssize_t)bytes, 127);
  if (text && bytes > 0) memcpy(PyUnicode_1BYTE_DATA(text), data, bytes);
  return text;
}

static PyObject *get_again(struct rc_py_token_reader *reader, uint64_t text) {
  if (text >= reader->text_count)
    return rc_py_stream_damaged(reader, "a text that was not there before");
  return Py_NewRef(reader->texts[text]);
}

static PyObject *get_record(struct rc_py_token_reader *reader, uint64_t number, int depth);

/* As get_value: numbers, records and shared texts, which are many, without a token. */
static PyObject *get_frequent(struct rc_py_token_reader *reader, uint8_t tag, int depth) {
  const uint8_t *data = reader->object.at + 1;
  size_t left = (size_t)(reader->object.end - data);
  uint32_t bits;
  switch (tag) {
  case RINGCAST_TAG_INT8:
  case RINGCAST_TAG_INT16:
  case RINGCAST_TAG_INT32:
    if (left < sizeof bits) break; /* at the stream's end */
    memcpy(&bits, data, sizeof bits);
    unsigned bytes = 1u << (tag - RINGCAST_TAG_INT8);
    unsigned shift = 32 - 8 * bytes; /* which extends the sign */
    reader->object.at = data + bytes;
    return PyLong_FromLong((int32_t)(bits << shift) >> shift);
  case RINGCAST_TAG_FLOAT:
    if (left < sizeof(double)) break;
    reader->object.at = data + sizeof(double);
    return rc_py_get_float(data);
  case RINGCAST_TAG_NAMED:
    if (left < 1 || *data >= 252 || *data > left - 1) break;
    reader->object.at = data + 1 + *data;
    return rc_py_text_named(reader, data + 1, *data);
  case RINGCAST_TAG_AGAIN:
    if (left < 1 || *data >= 252) break;
    reader->object.at = data + 1;
    return get_again(reader, *data);
  case RINGCAST_TAG_RECORD:
    if (left < 1 || *data >= 252 || *data >= reader->shape_count || depth >= RC_PY_DEPTH_UNSEEN)
      break;
    reader->object.at = data + 1;
    return get_record(reader, *data, depth + 1);
  default: break;
  }
  return get_value(reader, depth);
}

/* As get_value: what most values are, without a token. */
static inline __attribute__((always_inline)) PyObject *get_inner(struct rc_py_token_reader *reader,
                                                                 int depth) {
  struct ringcast_object *object = &reader->object;
  if (object->at == object->end) return get_value(reader, depth);
  uint8_t tag = *object->at;
  if (tag < RINGCAST_TAG_TEXT) {
    object->at++;
    return PyLong_FromLong(tag);
  }
  if (tag < RINGCAST_TAG_NONE) {
    const uint8_t *data = object->at + 1;
    size_t bytes = tag - RINGCAST_TAG_TEXT;
    if (bytes > (size_t)(object->end - data)) return rc_py_stream_damaged(reader, "it is cut off");
    object->at += 1 + bytes;
    return get_ascii(reader, data, bytes);
  }
  if (tag > RINGCAST_TAG_TRUE) return get_frequent(reader, tag, depth);
  object->at++;
  if (tag == RINGCAST_TAG_NONE) return Py_NewRef(Py_None);
  if (tag == RINGCAST_TAG_TRUE) return Py_NewRef(Py_True);
  return Py_NewRef(Py_False);
}

/* ---- Containers ------------------------------------------------------------------------------ */

/* Counts `count` values towards the stream's limit. */
static inline bool take_values(struct rc_py_token_reader *reader, uint64_t count) {
  if (count > reader->values_left)
    return rc_py_stream_damaged(reader, "a container counts more than there is");
  reader->values_left -= count;
  return true;
}

static PyObject *get_list(struct rc_py_token_reader *reader, uint64_t count, int depth) {
  if (!take_values(reader, count)) return NULL;
  PyObject *list = PyList_New((Py_ssize_t)count);
  if (!list || count == 0) return list;
  PyObject_GC_UnTrack(list);
  for (uint64_t i = 0; i < count; i++) {
    PyObject *item = get_inner(reader, depth);
    if (!item) {
      Py_DECREF(list);
      return NULL;
    }
    PyList_SET_ITEM(list, (Py_ssize_t)i, item);
  }
  PyObject_GC_Track(list);
  return list;
}

static PyObject *get_tuple(struct rc_py_token_reader *reader, uint64_t count, int depth) {
  if (!take_values(reader, count)) return NULL;
  PyObject *tuple = PyTuple_New((Py_ssize_t)count);
  if (!tuple || count == 0) return tuple; /* the empty tuple is shared */
  PyObject_GC_UnTrack(tuple);
  for (uint64_t i = 0; i < count; i++) {
    PyObject *item = get_inner(reader, depth);
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
static inline PyObject *get_short_key(struct rc_py_token_reader *reader) {
  const uint8_t *at = reader->object.at;
  size_t left = (size_t)(reader->object.end - at);
  if (left >= 2 && *at == RINGCAST_TAG_AGAIN && at[1] < 252 && at[1] < reader->text_count) {
    reader->object.at += 2;
    return Py_NewRef(reader->texts[at[1]]);
  }
  if (left == 0 || *at < RINGCAST_TAG_TEXT || *at >= RINGCAST_TAG_NONE) return NULL;
  size_t bytes = *at - RINGCAST_TAG_TEXT;
  if (bytes >= left) return NULL;
  PyObject *key = rc_py_key(reader->state, at + 1, bytes);
  if (key) reader->object.at += 1 + bytes;
  return key;
}

/* A key that may be hashed. */
static inline PyObject *get_key(struct rc_py_token_reader *reader, bool is_short, int depth) {
  if (is_short) {
    PyObject *known = get_short_key(reader);
    if (known) return known;
  }
  struct rc_py_scope outer = rc_py_scope_begin(reader->marked, depth);
  PyObject *key = get_inner(reader, depth);
  if (key && !rc_py_may_hash(reader, key, depth)) Py_CLEAR(key);
  rc_py_scope_end(reader->marked, &outer);
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

static inline bool get_pair(struct rc_py_token_reader *reader, PyObject *dict, bool is_short,
                            int depth) {
  PyObject *key = get_key(reader, is_short, depth);
  if (!key) return false;
  PyObject *value = get_inner(reader, depth);
  bool ok = value && PyDict_SetItem(dict, key, value) == 0;
  if (value && !ok) rc_py_stream_refused(reader, "a key of a dict");
  Py_DECREF(key);
  Py_XDECREF(value);
  return ok;
}

static PyObject *get_dict(struct rc_py_token_reader *reader, uint64_t count, int depth) {
  if (!take_values(reader, 2 * count)) return NULL;
  PyObject *dict = dict_new(count);
  bool is_short = count <= KEYS_KNOWN_MOST;
  for (uint64_t i = 0; dict && i < count; i++) {
    if (!rc_py_heed_signals(i) || !get_pair(reader, dict, is_short, depth)) Py_CLEAR(dict);
  }
  return dict;
}

static bool add_member(struct rc_py_token_reader *reader, PyObject *set, int depth) {
  PyObject *member = get_key(reader, false, depth);
  if (!member) return false;
  bool ok = PySet_Add(set, member) == 0;
  if (!ok) rc_py_stream_refused(reader, "a member of a set");
  Py_DECREF(member);
  return ok;
}

static PyObject *get_set(struct rc_py_token_reader *reader, const struct ringcast_token *token,
                         int depth) {
  PyObject *set;
  if (token->tag == RINGCAST_TAG_SET) {
    set = PySet_New(NULL);
  } else {
    set = PyFrozenSet_New(NULL);
  }
  for (uint64_t i = 0; set && i < token->count; i++) {
    if (!rc_py_heed_signals(i) || !add_member(reader, set, depth)) Py_CLEAR(set);
  }
  return set;
}

static bool is_text_next(const struct rc_py_token_reader *reader) {
  struct ringcast_object rest = reader->object;
  struct ringcast_token token;
  return ringcast_token_read(&rest, &token) == 0 && ringcast_token_is_text(&token);
}

/* Defines a shape: a prefix, not a value. */
static bool take_shape(struct rc_py_token_reader *reader, uint64_t count) {
  if (!take_values(reader, count)) return false;
  if (reader->shape_count == RINGCAST_MAX_SHAPES)
    return rc_py_stream_damaged(reader, "it has too many shapes");
  struct rc_py_shape *shape = &reader->shapes[reader->shape_count];
  *shape = (struct rc_py_shape){.keys = PyTuple_New((Py_ssize_t)count)};
  reader->shape_count++;
  if (!shape->keys) return false;
  if (count > 0) PyObject_GC_UnTrack(shape->keys); /* a tuple of strs needs no collector */
  shape->dict = PyDict_New();
  if (!shape->dict) return false;
  for (uint64_t i = 0; i < count; i++) {
    if (!is_text_next(reader))
      return rc_py_stream_damaged(reader, "a key of a shape that is no str");
    PyObject *key = get_key(reader, true, 0);
    if (!key) return false;
    PyTuple_SET_ITEM(shape->keys, (Py_ssize_t)i, key);
    if (PyDict_SetItem(shape->dict, key, Py_None) < 0) return false;
  }
  return PyDict_GET_SIZE(shape->dict) == (Py_ssize_t)count ||
         rc_py_stream_damaged(reader, "a key of a shape twice");
}

/* A copy of the shape's dict has the complete table of keys, and need not grow. */
static PyObject *get_record(struct rc_py_token_reader *reader, uint64_t number, int depth) {
  if (number >= reader->shape_count)
    return rc_py_stream_damaged(reader, "a shape that was not there before");
  const struct rc_py_shape *shape = &reader->shapes[number];
  Py_ssize_t count = PyTuple_GET_SIZE(shape->keys);
  if (!take_values(reader, (uint64_t)count)) return NULL;
  PyObject *dict = PyDict_Copy(shape->dict);
  for (Py_ssize_t i = 0; dict && i < count; i++) {
    PyObject *value = get_inner(reader, depth);
    if (!value || PyDict_SetItem(dict, PyTuple_GET_ITEM(shape->keys, i), value) < 0) Py_CLEAR(dict);
    Py_XDECREF(value);
  }
  return dict;
}

/* Always false. */
static bool drop_values(PyObject **values, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) Py_XDECREF(values[i]);
  return false;
}

/* Into `out`, all or nothing. */
static bool get_values(struct rc_py_token_reader *reader, Py_ssize_t count, int depth,
                       PyObject **out) {
  for (Py_ssize_t i = 0; i < count; i++) {
    out[i] = get_inner(reader, depth);
    if (!out[i]) return drop_values(out, i);
  }
  return true;
}

static PyObject *get_bounds(struct rc_py_token_reader *reader, const struct ringcast_token *token,
                            int depth) {
  PyObject *bounds[3], *made = NULL;
  struct rc_py_scope outer = rc_py_scope_begin(reader->marked, depth);
  if (!get_values(reader, 3, depth, bounds)) return NULL;
  if (token->tag == RINGCAST_TAG_SLICE) {
    if (rc_py_is_shallow(reader, depth)) made = PySlice_New(bounds[0], bounds[1], bounds[2]);
  } else {
    made = PyObject_CallFunctionObjArgs((PyObject *)&PyRange_Type, bounds[0], bounds[1], bounds[2],
                                        NULL);
    if (!made) rc_py_stream_refused(reader, "the bounds of a range");
  }
  for (int i = 0; i < 3; i++) Py_DECREF(bounds[i]);
  rc_py_scope_end(reader->marked, &outer);
  return made;
}

/* False: raised. */
static bool state_is_good(struct rc_py_token_reader *reader, uint8_t number, PyObject *plain,
                          const uint8_t *from, int depth) {
  bool recurses = /* when it is dropped */
      number == RINGCAST_STANDARD_DEQUE || number == RINGCAST_STANDARD_DEFAULTDICT;
  if (recurses && !rc_py_is_shallow(reader, depth)) return false;
  return rc_py_state_is_in_place(reader, number, plain, from);
}

static PyObject *get_kind(struct rc_py_token_reader *reader, uint8_t number, int depth) {
  if (!take_values(reader, 1)) return NULL;
  struct rc_py_scope outer = rc_py_scope_begin(reader->marked, depth);
  const uint8_t *from = reader->object.at;
  PyObject *plain = get_inner(reader, depth), *made = NULL;
  if (plain && state_is_good(reader, number, plain, from, depth)) {
    made = rc_py_standard_make(reader->state, number, plain, &reader->marked->dtypes);
  }
  rc_py_scope_end(reader->marked, &outer);
  Py_XDECREF(plain);
  return made;
}

/* ---- Instances ------------------------------------------------------------------------------- */

/* Defines a class: a prefix, not a value. get_value loops over such prefixes, as a stream can have
 * many in a row at any depth. */
static bool take_class(struct rc_py_token_reader *reader, const struct ringcast_token *token) {
  if (reader->class_count == RINGCAST_MAX_CLASSES)
    return rc_py_stream_damaged(reader, "it has too many classes");
  struct rc_py_class *class = rc_py_class_find(reader->state, reader->classes, token->kind,
                                               token->data, token->count, reader->may_import);
  if (!class) return rc_py_stream_refused(reader, "a class");
  reader->class[reader->class_count++] = class;
  return true;
}

static PyObject *member_by_name(struct rc_py_token_reader *reader, const struct rc_py_class *class,
                                PyObject *name) {
  struct rc_py_state *state = reader->state;
  if (class->runs_code) state->ran_code++;
  PyObject *members = PyObject_GetAttr((PyObject *)class->type, state->names._member_map_);
  if (!members) return NULL;
  PyObject *member = NULL;
  if (PyDict_CheckExact(members)) member = Py_XNewRef(PyDict_GetItemWithError(members, name));
  Py_DECREF(members);
  if (!member && !PyErr_Occurred()) {
    rc_py_raise_text(state, EPROTO,
                     "the frame holds the member %.100R of %R, and there is none here", name,
                     class->type);
  }
  return member;
}

static PyObject *get_member(struct rc_py_token_reader *reader, const struct rc_py_class *class,
                            int depth) {
  PyObject *name = get_inner(reader, depth), *member;
  if (!name) return NULL;
  if (PyUnicode_CheckExact(name)) {
    member = member_by_name(reader, class, name);
  } else if (PyLong_CheckExact(name)) {
    member = rc_py_class_member(reader->state, class, name);
  } else {
    member = rc_py_stream_damaged(reader, "the name of an enum's member");
  }
  Py_DECREF(name);
  return member;
}

/* Into `out`, all or nothing. A slot of an INSTANCE may be absent. */
static bool get_fields(struct rc_py_token_reader *reader, const struct rc_py_class *class,
                       int depth, PyObject **out) {
  struct ringcast_object *object = &reader->object;
  Py_ssize_t count = PyTuple_GET_SIZE(class->names);
  if (class->kind != RINGCAST_CLASS_INSTANCE) return get_values(reader, count, depth, out);
  for (Py_ssize_t i = 0; i <= count; i++) {
    bool is_absent = i < count && object->at < object->end && *object->at == RINGCAST_TAG_ABSENT;
    if (is_absent) {
      object->at++;
      out[i] = NULL;
      continue;
    }
    out[i] = get_inner(reader, depth);
    if (out[i] && i == count && !rc_py_is_in_place(reader, out[i])) Py_CLEAR(out[i]);
    if (!out[i]) return drop_values(out, i);
  }
  return true;
}

static PyObject *get_instance(struct rc_py_token_reader *reader, const struct ringcast_token *token,
                              int depth) {
  if (token->count >= reader->class_count)
    return rc_py_stream_damaged(reader, "a class that it has not told of");
  const struct rc_py_class *class = reader->class[token->count];
  if ((class->kind == RINGCAST_CLASS_ENUM) != (token->tag == RINGCAST_TAG_MEMBER)) {
    return rc_py_stream_damaged(reader, "an enum that is none");
  }
  if (class->kind == RINGCAST_CLASS_ENUM) return get_member(reader, class, depth);
  struct rc_py_fields fields;
  PyObject *made = NULL;
  Py_ssize_t count = rc_py_class_values(class);
  if (!take_values(reader, (uint64_t)count) || !rc_py_fields_alloc(&fields, count)) return NULL;
  struct rc_py_scope before = reader->marked->scope;
  if (get_fields(reader, class, depth, fields.values))
    made = rc_py_class_make(reader->state, class, fields.values);
  hashfunc hash = class->type->tp_hash;
  bool is_opaque = hash == PyBaseObject_Type.tp_hash || hash == PyObject_HashNotImplemented;
  if (is_opaque) reader->marked->scope = before; /* no hash looks inside */
  rc_py_fields_free(&fields);
  return made;
}

/* ---- Any value ------------------------------------------------------------------------------- */

static PyObject *get_container(struct rc_py_token_reader *reader,
                               const struct ringcast_token *token, int depth) {
  if (depth >= RC_PY_DEPTH_UNSEEN && !rc_py_may_go_deep(reader, depth)) return NULL;
  switch (token->tag) {
  case RINGCAST_TAG_LIST: return get_list(reader, token->count, depth + 1);
  case RINGCAST_TAG_TUPLE: return get_tuple(reader, token->count, depth + 1);
  case RINGCAST_TAG_DICT: return get_dict(reader, token->count, depth + 1);
  case RINGCAST_TAG_RECORD: return get_record(reader, token->count, depth + 1);
  case RINGCAST_TAG_SET:
  case RINGCAST_TAG_FROZENSET: return get_set(reader, token, depth + 1);
  case RINGCAST_TAG_RANGE:
  case RINGCAST_TAG_SLICE: return get_bounds(reader, token, depth + 1);
  case RINGCAST_TAG_KIND: return get_kind(reader, token->kind, depth + 1);
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER: return get_instance(reader, token, depth + 1);
  default:
    return rc_py_stream_damaged(reader, "a container of a kind that this version does not know");
  }
}

static PyObject *get_rare(struct rc_py_token_reader *reader, const struct ringcast_token *token) {
  switch (token->tag) {
  case RINGCAST_TAG_BIGINT: return rc_py_get_bigint(reader, token);
  case RINGCAST_TAG_COMPLEX: return rc_py_get_complex(token);
  case RINGCAST_TAG_WTF8: return rc_py_text(reader, token->data, token->count, "surrogatepass");
  case RINGCAST_TAG_BYTEARRAY:
    return PyByteArray_FromStringAndSize((const char *)token->data, (Py_ssize_t)token->count);
  case RINGCAST_TAG_SCALAR: return rc_py_get_scalar(reader, token);
  case RINGCAST_TAG_DTYPE: return rc_py_get_torch_dtype(reader, token);
  case RINGCAST_TAG_DEVICE: return rc_py_get_torch_device(reader, token);
  case RINGCAST_TAG_SIZE: return rc_py_get_torch_size(reader, token);
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY: return rc_py_get_part(reader, token);
  case RINGCAST_TAG_ARRAY:
    return rc_py_array_of(reader->state, token->kind, token->data, token->count);
  case RINGCAST_TAG_PART_ARRAY: return rc_py_get_part_array(reader, token->kind);
  case RINGCAST_TAG_LEAF: return rc_py_get_leaf(reader, token->count);
  case RINGCAST_TAG_ITEM: return rc_py_get_item(reader, token->count);
  default: return rc_py_stream_damaged(reader, "a value of a kind that this version does not know");
  }
}

static bool next_token(struct rc_py_token_reader *reader, struct ringcast_token *out) {
  if (ringcast_token_read(&reader->object, out) == 0) return true;
  rc_py_stream_damaged(reader, "a value is cut off, or of a kind that this version does not know");
  return false;
}

/* The value of a token, if the token is a value. */
static inline PyObject *get_token(struct rc_py_token_reader *reader,
                                  const struct ringcast_token *token, int depth) {
  switch (token->tag) {
  case RINGCAST_TAG_INT64: return PyLong_FromLongLong(token->i);
  case RINGCAST_TAG_ASCII: return get_ascii(reader, token->data, token->count);
  case RINGCAST_TAG_UTF8: return rc_py_text(reader, token->data, token->count, NULL);
  case RINGCAST_TAG_NAMED: return rc_py_text_named(reader, token->data, token->count);
  case RINGCAST_TAG_AGAIN: return get_again(reader, token->count);
  case RINGCAST_TAG_NONE: return Py_NewRef(Py_None);
  case RINGCAST_TAG_FALSE: return Py_NewRef(Py_False);
  case RINGCAST_TAG_TRUE: return Py_NewRef(Py_True);
  case RINGCAST_TAG_FLOAT: return rc_py_get_float(token->data);
  case RINGCAST_TAG_BYTES:
    return PyBytes_FromStringAndSize((const char *)token->data, (Py_ssize_t)token->count);
  case RINGCAST_TAG_BACK: return rc_py_get_back(reader, token->count, depth);
  case RINGCAST_TAG_PACKED_LIST:
  case RINGCAST_TAG_PACKED_TUPLE: return rc_py_get_packed(token);
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
  case RINGCAST_TAG_MEMBER: return get_container(reader, token, depth);
  default: return get_rare(reader, token);
  }
}

static inline bool is_prefix(uint8_t tag) {
  return tag == RINGCAST_TAG_MARK || tag == RINGCAST_TAG_CLASS || tag == RINGCAST_TAG_SHAPE;
}

/* The value behind prefixes. A loop, as there can be many in a row at any depth. */
static PyObject *get_prefixed(struct rc_py_token_reader *reader, struct ringcast_token *token,
                              int depth) {
  Py_ssize_t number = -1;
  struct rc_py_scope outer;
  while (is_prefix(token->tag)) {
    if (token->tag == RINGCAST_TAG_MARK) {
      if (number >= 0) return rc_py_stream_damaged(reader, "a mark of a mark");
      number = rc_py_mark_begin(reader, depth, &outer);
      if (number < 0) return NULL;
    } else if (token->tag == RINGCAST_TAG_CLASS) {
      if (!take_class(reader, token)) return NULL;
    } else {
      if (!take_shape(reader, token->count)) return NULL;
    }
    if (!next_token(reader, token)) return NULL;
  }
  if (number >= 0 && token->tag == RINGCAST_TAG_BACK)
    return rc_py_stream_damaged(reader, "a mark of what was marked");
  PyObject *value = get_token(reader, token, depth);
  if (value && number >= 0) rc_py_mark_end(reader, number, value, depth, &outer);
  return value;
}

static PyObject *get_value(struct rc_py_token_reader *reader, int depth) {
  struct ringcast_token token;
  if (!next_token(reader, &token)) return NULL;
  if (is_prefix(token.tag)) return get_prefixed(reader, &token, depth);
  return get_token(reader, &token, depth);
}

PyObject *rc_py_read_tokens(struct rc_py_token_reader *reader) {
  reader->texts = NULL;
  reader->text_count = reader->text_room = 0;
  reader->values_left = (uint64_t)(reader->object.end - reader->object.at);
  reader->stack_floor = 0;
  reader->class_count = reader->shape_count = 0;
  PyObject *value = get_inner(reader, 0);
  for (uint32_t i = 0; i < reader->shape_count; i++) {
    Py_XDECREF(reader->shapes[i].keys);
    Py_XDECREF(reader->shapes[i].dict);
  }
  for (size_t i = 0; i < reader->text_count; i++) Py_DECREF(reader->texts[i]);
  PyMem_Free(reader->texts);
  if (!value) return NULL;
  if (reader->object.at != reader->object.end || reader->next_part != reader->part_count) {
    Py_DECREF(value);
    return rc_py_stream_damaged(reader, "there is more in it than its value");
  }
  return value;
}
