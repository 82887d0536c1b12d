/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a frame to a Python object that owns all its memory.
 *
 * The entries are read once, in order. Text and scalars are made on the spot; for tensors, arrays, bytes, buffers and
 * the streams of nested values the memory is allocated and the copy put on a list, and the list is worked off without
 * the GIL. Only then is the pickle loaded, from a copy too, and are the leaves filled in and the nested values made
 * (get.c): whatever code runs then finds its parts complete, and nobody can change them any more. Before that the
 * reader is asked whether it was evicted while all that was copied.
 *
 * For a view, arrays and tensors are made over the frame's own memory, and are on no list (view.c). For one item of a
 * dict, its entries are all that is read (look.c).
 *
 * Nothing that the sender says is believed: the library checks that an entry lies within the frame; here it is checked
 * that the entries make sense together, and that keys, text and all the copies are together no larger than the frame
 * they come from: entries that share their bytes could else ask for any amount of memory.
 */
#include "get.h"
#include "view.h"

struct copy {
  void *to;
  const void *from;
  uint64_t bytes;
};

/* How much of a pickle that is refused is looked at, for the names that it asks for. */
enum { REFUSED_BYTES = 1 << 16 };

struct leaf {
  PyObject *key; /* NULL: none */
  int64_t index;
};

/* A nested value. */
struct nested {
  PyObject *key; /* NULL: it is the value itself */
  uint8_t *stream;
  size_t bytes;
  uint32_t first_part, parts;
};

/* What the next entry may be: parts follow the items, and buffers the pickle, at the end. */
enum phase { ITEMS, PARTS, BUFFERS };

struct decoding {
  struct rc_py_state *state;
  struct ringcast_frame_reader frame;
  uint32_t items; /* values seen so far */
  enum phase phase;
  PyObject *result; /* the dict, or the value */
  struct copy *copies;
  size_t copy_count, copy_room;
  uint64_t taken; /* bytes of the frame that keys, text and copies were made of */
  uint64_t copy_bytes;
  struct leaf *leaves;
  size_t leaf_count, leaf_room;
  struct nested *nested;
  size_t nested_count, nested_room;
  PyObject **parts;
  size_t part_count, part_room;
  uint32_t first_part; /* its entry */
  PyObject **classes;
  const ringcast_reader *reader; /* NULL: nobody can write to the frame */
  bool allow_pickle;
  struct rc_py_hold *hold;                 /* see rc_py_decoder */
  const struct rc_py_selection *selection;
  PyObject *pickle, *buffers; /* bytes and a list; NULL: no pickle */
};

static bool damaged(struct decoding *decoding, const char *what) {
  rc_py_raise_text(decoding->state, EPROTO, "the frame is damaged or of another build: %s", what);
  return false;
}

/* Room for one more of `size` bytes each. */
static bool grow(void **array, size_t count, size_t *room, size_t size) {
  if (count < *room) return true;
  size_t larger = *room ? *room * 2 : 16;
  void *grown = PyMem_Realloc(*array, larger * size);
  if (!grown) {
    PyErr_NoMemory();
    return false;
  }
  *array = grown;
  *room = larger;
  return true;
}

static bool take_bytes(struct decoding *decoding, uint64_t bytes) {
  if (bytes > decoding->frame.bytes - decoding->taken) return damaged(decoding, "its entries share their bytes");
  decoding->taken += bytes;
  return true;
}

/* To be called before the memory at `to` is allocated, with `to` set afterwards: see copy_to. */
static bool copy_add(struct decoding *decoding, const void *from, uint64_t bytes) {
  if (!take_bytes(decoding, bytes)) return false;
  if (!grow((void **)&decoding->copies, decoding->copy_count, &decoding->copy_room, sizeof *decoding->copies)) {
    return false;
  }
  decoding->copy_bytes += bytes;
  decoding->copies[decoding->copy_count++] = (struct copy){.from = from, .bytes = bytes};
  return true;
}

static void copy_to(struct decoding *decoding, void *to) {
  decoding->copies[decoding->copy_count - 1].to = to;
}

static void copy_all(const struct decoding *decoding) {
  for (size_t i = 0; i < decoding->copy_count; i++) {
    const struct copy *copy = &decoding->copies[i];
    if (copy->bytes) memcpy(copy->to, copy->from, copy->bytes);
  }
}

/* ---- Values ----------------------------------------------------------------------------------------------------- */

/* Decodes a copy: the decoder of Python looks at its input more than once, and the ring could change in between. */
static PyObject *make_text(struct decoding *decoding, const void *data, uint64_t bytes) {
  char small[256];
  if (!take_bytes(decoding, bytes)) return NULL;
  char *copy = bytes <= sizeof small ? small : PyMem_Malloc(bytes);
  if (!copy) return PyErr_NoMemory();
  memcpy(copy, data, bytes);
  PyObject *text = PyUnicode_DecodeUTF8(copy, (Py_ssize_t)bytes, NULL);
  if (copy != small) PyMem_Free(copy);
  if (!text) rc_py_protocol_from_current(decoding->state, "its text is no UTF-8");
  return text;
}

static PyObject *make_bytes(struct decoding *decoding, const struct ringcast_item *item) {
  if (!copy_add(decoding, item->data, item->bytes)) return NULL;
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)item->bytes);
  if (bytes) copy_to(decoding, PyBytes_AS_STRING(bytes));
  return bytes;
}

/* For a buffer that was an array's: what its pickle makes of it is an array again. NULL, with nothing raised: it is
 * small, or there is no such memory. */
static PyObject *make_memory(struct decoding *decoding, const struct ringcast_item *item) {
  void *out;
  if (!(item->flags & RINGCAST_ITEM_NUMPY)) return NULL;
  PyObject *memory = rc_py_memory_new(decoding->state, item->bytes, &out);
  if (!memory) return NULL;
  if (!copy_add(decoding, item->data, item->bytes)) {
    Py_DECREF(memory);
    return NULL;
  }
  copy_to(decoding, out);
  return memory;
}

static PyObject *make_bytearray(struct decoding *decoding, const struct ringcast_item *item) {
  if (!copy_add(decoding, item->data, item->bytes)) return NULL;
  PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)item->bytes);
  if (bytes) copy_to(decoding, PyByteArray_AS_STRING(bytes));
  return bytes;
}

/* As whom it was sent; of a sender who does not say, NumPy's if NumPy has the dtype. */
static bool goes_to_torch(const struct ringcast_item *item) {
  int index = rc_py_dtype_of(item);
  return item->flags & RINGCAST_ITEM_TORCH ||
         (!(item->flags & RINGCAST_ITEM_NUMPY) && index >= 0 && !rc_py_dtypes[index].numpy);
}

static PyObject *make_array(struct decoding *decoding, const struct ringcast_item *item, uint64_t bytes, void **out) {
  return goes_to_torch(item) ? rc_py_torch_make(decoding->state, item, bytes, out)
                             : rc_py_numpy_make(decoding->state, item, bytes, out);
}

/* Where it lies. As rc_py_array_over. */
static PyObject *view_array(struct decoding *decoding, const struct ringcast_item *item, uint64_t bytes) {
  if (!take_bytes(decoding, bytes)) return NULL;
  PyObject *array = rc_py_array_over(decoding->state, item, bytes, decoding->hold, goes_to_torch(item));
  if (!array) decoding->taken -= bytes;
  return array;
}

static PyObject *make_tensor(struct decoding *decoding, const struct ringcast_item *item) {
  const struct ringcast_tensor tensor = {
      .data = item->data,
      .dtype = item->dtype,
      .ndim = item->ndim,
      .shape = item->shape,
      .strides = item->strides,
      .flags = item->flags,
  };
  uint64_t bytes;
  bool packed = rc_py_is_c_order(item->ndim, item->shape, item->strides);
  /* Strides other than C order's may make more of the bytes than there are: copy_add sees to it that not too much. */
  if (ringcast_tensor_bytes(&tensor, &bytes) < 0 || (packed && bytes != item->bytes)) {
    damaged(decoding, "a tensor's shape and size disagree");
    return NULL;
  }
  if (decoding->hold && packed) {
    PyObject *viewed = view_array(decoding, item, bytes);
    if (viewed || PyErr_Occurred()) return viewed;
  }
  if (!copy_add(decoding, item->data, bytes)) return NULL;
  void *out = NULL;
  PyObject *array = make_array(decoding, item, bytes, &out);
  if (!array) return NULL;
  copy_to(decoding, out);
  if (packed) return array;
  decoding->copies[decoding->copy_count - 1].bytes = 0; /* the copy is made here */
  if (ringcast_tensor_pack(&tensor, out) == 0) return array;
  Py_DECREF(array);
  damaged(decoding, "a tensor's strides make no sense");
  return NULL;
}

/* The value of an entry, or NULL with an exception; None for what is only made when all is copied. */
static PyObject *make_value(struct decoding *decoding, const struct ringcast_item *item) {
  switch (item->kind) {
  case RINGCAST_ITEM_NONE:
  case RINGCAST_ITEM_LEAF:
  case RINGCAST_ITEM_OBJECT:
    return rc_py_ref(Py_None);
  case RINGCAST_ITEM_BOOL:
    return PyBool_FromLong(item->scalar.i != 0);
  case RINGCAST_ITEM_INT:
    return PyLong_FromLongLong(item->scalar.i);
  case RINGCAST_ITEM_FLOAT:
    return PyFloat_FromDouble(item->scalar.f);
  case RINGCAST_ITEM_STR:
    return make_text(decoding, item->data, item->bytes);
  case RINGCAST_ITEM_BYTES:
    return make_bytes(decoding, item);
  case RINGCAST_ITEM_TENSOR:
    return make_tensor(decoding, item);
  default:
    rc_py_raise_text(decoding->state, EPROTO, "the frame is of another build: it holds an item of kind %d", item->kind);
    return NULL;
  }
}

/* ---- Entries ---------------------------------------------------------------------------------------------------- */

static bool raise_sent_error(struct decoding *decoding, const struct ringcast_item *item) {
  PyObject *text = make_text(decoding, item->data, item->bytes);
  if (text) rc_py_raise_text(decoding->state, EREMOTEIO, "%U", text);
  Py_XDECREF(text);
  return false;
}

/* Notes the leaf in the dict whose key this is. */
static bool leaf_add(struct decoding *decoding, PyObject *key, int64_t index) {
  if (!grow((void **)&decoding->leaves, decoding->leaf_count, &decoding->leaf_room, sizeof *decoding->leaves)) {
    return false;
  }
  decoding->leaves[decoding->leaf_count++] = (struct leaf){.key = rc_py_ref(key), .index = index};
  return true;
}

static bool nested_add(struct decoding *decoding, PyObject *key, const struct ringcast_item *item) {
  if (!grow((void **)&decoding->nested, decoding->nested_count, &decoding->nested_room, sizeof *decoding->nested)) {
    return false;
  }
  if (!copy_add(decoding, item->data, item->bytes)) return false;
  uint8_t *stream = PyMem_Malloc(item->bytes);
  if (!stream) {
    PyErr_NoMemory();
    return false;
  }
  copy_to(decoding, stream);
  decoding->nested[decoding->nested_count++] = (struct nested){.key = rc_py_ref(key),
                                                               .stream = stream,
                                                               .bytes = item->bytes,
                                                               .first_part = (uint32_t)item->scalar.i,
                                                               .parts = (uint32_t)((uint64_t)item->scalar.i >> 32)};
  return true;
}

/* Of a nested value, in the order of the entries. */
static bool take_part(struct decoding *decoding, const struct ringcast_item *item, uint32_t index) {
  bool is_part = item->kind == RINGCAST_ITEM_TENSOR || item->kind == RINGCAST_ITEM_STR ||
                 item->kind == RINGCAST_ITEM_BYTES;
  if (!is_part || item->flags & RINGCAST_ITEM_KEYED || decoding->nested_count == 0) {
    return damaged(decoding, "an item that is nobody's");
  }
  if (decoding->phase == ITEMS) decoding->first_part = index;
  decoding->phase = PARTS;
  if (!grow((void **)&decoding->parts, decoding->part_count, &decoding->part_room, sizeof *decoding->parts)) {
    return false;
  }
  PyObject *part = make_value(decoding, item);
  if (part) decoding->parts[decoding->part_count++] = part;
  return part;
}

static PyObject *make_key(struct decoding *decoding, const struct ringcast_item *item) {
  char copy[RC_PY_KEY_MOST];
  if (item->key_bytes <= sizeof copy && take_bytes(decoding, item->key_bytes)) {
    memcpy(copy, item->key, item->key_bytes);
    PyObject *key = rc_py_key(decoding->state, copy, item->key_bytes);
    if (key) return key;
    decoding->taken -= item->key_bytes;
  }
  return PyErr_Occurred() ? NULL : make_text(decoding, item->key, item->key_bytes);
}

static bool take_keyed(struct decoding *decoding, const struct ringcast_item *item) {
  PyObject *key = make_key(decoding, item);
  PyObject *value = key ? make_value(decoding, item) : NULL;
  bool ok = value && PyDict_SetItem(decoding->result, key, value) == 0;
  if (ok && item->kind == RINGCAST_ITEM_LEAF) ok = leaf_add(decoding, key, item->scalar.i);
  if (ok && item->kind == RINGCAST_ITEM_OBJECT) ok = nested_add(decoding, key, item);
  Py_XDECREF(key);
  Py_XDECREF(value);
  if (ok && PyDict_GET_SIZE(decoding->result) != (Py_ssize_t)++decoding->items) return damaged(decoding, "a key twice");
  return ok;
}

/* Raises PickleRefused, with the keys of the leaves and the names that the pickle's beginning asks for. */
static bool refuse_pickle(struct decoding *decoding, const struct ringcast_item *item) {
  struct rc_py_state *state = decoding->state;
  if (!state->refuse_frame && !(state->refuse_frame = rc_py_import("ringcast._pickling", "refuse_frame"))) return false;
  Py_ssize_t bytes = item->bytes < REFUSED_BYTES ? (Py_ssize_t)item->bytes : REFUSED_BYTES;
  PyObject *data = PyBytes_FromStringAndSize(item->data, bytes);
  PyObject *keys = data ? PyList_New(0) : NULL;
  bool ok = keys;
  for (size_t i = 0; ok && i < decoding->leaf_count; i++) ok = PyList_Append(keys, decoding->leaves[i].key) == 0;
  PyObject *none = ok ? PyObject_CallFunctionObjArgs(state->refuse_frame, keys, data, NULL) : NULL;
  Py_XDECREF(none);
  Py_XDECREF(keys);
  Py_XDECREF(data);
  return false;
}

static bool take_pickle(struct decoding *decoding, const struct ringcast_item *item) {
  if (!decoding->allow_pickle) return refuse_pickle(decoding, item);
  decoding->phase = BUFFERS;
  decoding->pickle = make_bytes(decoding, item);
  return decoding->pickle && (decoding->buffers = PyList_New(0));
}

static bool take_buffer(struct decoding *decoding, const struct ringcast_item *item) {
  if (decoding->phase != BUFFERS) return damaged(decoding, "a buffer without a pickle");
  bool is_readonly = item->flags & RINGCAST_ITEM_READONLY;
  PyObject *buffer = is_readonly ? make_bytes(decoding, item) : make_memory(decoding, item);
  if (!buffer && !PyErr_Occurred()) buffer = make_bytearray(decoding, item);
  bool ok = buffer && PyList_Append(decoding->buffers, buffer) == 0;
  Py_XDECREF(buffer);
  return ok;
}

static bool take_value(struct decoding *decoding, const struct ringcast_item *item) {
  if (item->kind == RINGCAST_ITEM_LEAF) return damaged(decoding, "a leaf of nothing");
  decoding->items++;
  if (item->kind == RINGCAST_ITEM_OBJECT) return nested_add(decoding, NULL, item);
  decoding->result = make_value(decoding, item);
  return decoding->result != NULL;
}

static bool take_entry(struct decoding *decoding, const struct ringcast_item *item, uint32_t index) {
  if (item->kind == RINGCAST_ITEM_ERROR) return raise_sent_error(decoding, item);
  if (item->kind == RINGCAST_ITEM_BUFFER) return take_buffer(decoding, item);
  if (decoding->phase == BUFFERS) return damaged(decoding, "an entry after the pickle");
  bool is_dict = decoding->frame.root == RINGCAST_ROOT_DICT;
  if (item->kind == RINGCAST_ITEM_PICKLE) {
    bool may = is_dict || decoding->nested_count > 0 || !decoding->items++;
    return may ? take_pickle(decoding, item) : damaged(decoding, "two values");
  }
  if (is_dict && item->flags & RINGCAST_ITEM_KEYED && item->key) {
    return decoding->phase == ITEMS ? take_keyed(decoding, item) : damaged(decoding, "an item after the parts");
  }
  if (!is_dict && decoding->items == 0) return take_value(decoding, item);
  return take_part(decoding, item, index);
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

/* Whether all that counts was read whole: code is run only if none of it was overwritten meanwhile. */
static bool was_whole(const struct decoding *decoding) {
  int rc = decoding->reader ? ringcast_reader_check(decoding->reader) : 0;
  if (rc < 0) rc_py_raise(decoding->state, rc);
  return rc >= 0;
}

static PyObject *load_pickle(struct decoding *decoding) {
  struct rc_py_state *state = decoding->state;
  if (!state->loads && !(state->loads = rc_py_import("ringcast._pickling", "loads"))) return NULL;
  return PyObject_CallFunctionObjArgs(state->loads, decoding->pickle, decoding->buffers, NULL);
}

static bool fill_leaves(struct decoding *decoding, PyObject *list) {
  for (size_t i = 0; i < decoding->leaf_count; i++) {
    const struct leaf *leaf = &decoding->leaves[i];
    if (!list || leaf->index < 0 || leaf->index >= PyList_GET_SIZE(list)) {
      return damaged(decoding, "a leaf that its pickle lacks");
    }
    if (PyDict_SetItem(decoding->result, leaf->key, PyList_GET_ITEM(list, leaf->index)) < 0) return false;
  }
  return true;
}

/* The value of one stream. */
static PyObject *make_nested(struct decoding *decoding, const struct nested *nested, PyObject *leaves) {
  struct rc_py_getting getting; /* its table of classes is filled as they come */
  getting.state = decoding->state;
  getting.object = (struct ringcast_object){.at = nested->stream, .end = nested->stream + nested->bytes};
  getting.parts = nested->parts ? decoding->parts + (nested->first_part - decoding->first_part) : NULL;
  getting.part_count = nested->parts;
  getting.next_part = getting.class_count = 0;
  getting.leaves = leaves;
  getting.may_import = decoding->allow_pickle;
  getting.classes = rc_py_class_cache(decoding->classes);
  PyObject *value = getting.classes ? rc_py_get(&getting) : NULL;
  Py_XDECREF(getting.classes);
  return value;
}

/* Each part is one nested value's, in their order. */
static bool parts_make_sense(struct decoding *decoding) {
  uint64_t next = decoding->first_part, end = next + decoding->part_count;
  for (size_t i = 0; i < decoding->nested_count; i++) {
    const struct nested *nested = &decoding->nested[i];
    if (nested->parts == 0) continue;
    if (nested->first_part != next || nested->parts > end - next) return damaged(decoding, "parts in disorder");
    next += nested->parts;
  }
  return next == end || damaged(decoding, "a part that is nobody's");
}

static bool fill_nested(struct decoding *decoding, PyObject *leaves) {
  if (!parts_make_sense(decoding)) return false;
  for (size_t i = 0; i < decoding->nested_count; i++) {
    const struct nested *nested = &decoding->nested[i];
    PyObject *value = make_nested(decoding, nested, leaves);
    if (!value) return false;
    if (!nested->key) {
      decoding->result = value;
      return true;
    }
    int rc = PyDict_SetItem(decoding->result, nested->key, value);
    Py_DECREF(value);
    if (rc < 0) return false;
  }
  return true;
}

static bool take_run(struct decoding *decoding, uint32_t first, uint32_t end) {
  struct ringcast_item item;
  for (uint32_t i = first; i < end; i++) {
    if (ringcast_frame_item(&decoding->frame, i, &item) < 0)
      return damaged(decoding, "an entry points outside it, or its elements share their bytes");
    if (!take_entry(decoding, &item, i)) return false;
  }
  return true;
}

static bool take_all(struct decoding *decoding) {
  const struct rc_py_selection *selection = decoding->selection;
  if (!selection) return take_run(decoding, 0, decoding->frame.count);
  bool ok = true;
  for (uint32_t i = 0; ok && i < selection->count; i++) {
    ok = take_run(decoding, selection->runs[i].first, selection->runs[i].end);
  }
  return ok;
}

static bool finish(struct decoding *decoding) {
  if (decoding->copy_bytes <= RC_PY_COPY_WITH_GIL) {
    copy_all(decoding);
  } else {
    Py_BEGIN_ALLOW_THREADS copy_all(decoding);
    Py_END_ALLOW_THREADS
  }
  if (!decoding->buffers && decoding->nested_count == 0 && decoding->leaf_count == 0) {
    return decoding->result || damaged(decoding, "no value");
  }
  if (!was_whole(decoding)) return false;
  PyObject *loaded = decoding->buffers ? load_pickle(decoding) : NULL;
  if (decoding->buffers && !loaded) return false;
  if (decoding->frame.root == RINGCAST_ROOT_VALUE && decoding->nested_count == 0) {
    decoding->result = loaded;
    return true;
  }
  bool ok = !loaded || PyList_CheckExact(loaded) || damaged(decoding, "its pickle is no list");
  ok = ok && fill_leaves(decoding, loaded) && fill_nested(decoding, loaded);
  Py_XDECREF(loaded);
  return ok;
}

static bool open_frame(struct decoding *decoding, const struct ringcast_frame *frame) {
  int rc = ringcast_frame_open(&decoding->frame, frame->data, frame->bytes);
  if (rc == 0) return true;
  if (rc != -EPROTONOSUPPORT) return damaged(decoding, "its header makes no sense");
  rc_py_raise_text(decoding->state, EPROTO,
                   "the frame is of version %d of the layout, and ringcast %s reads up to version %d: this process "
                   "needs the ringcast of the sender, or a later one",
                   decoding->frame.version, ringcast_version(), RINGCAST_FRAME_VERSION);
  return false;
}

static void decoding_clear(struct decoding *decoding) {
  for (size_t i = 0; i < decoding->leaf_count; i++) Py_DECREF(decoding->leaves[i].key);
  for (size_t i = 0; i < decoding->part_count; i++) Py_DECREF(decoding->parts[i]);
  for (size_t i = 0; i < decoding->nested_count; i++) {
    Py_XDECREF(decoding->nested[i].key);
    PyMem_Free(decoding->nested[i].stream);
  }
  PyMem_Free(decoding->leaves);
  PyMem_Free(decoding->parts);
  PyMem_Free(decoding->nested);
  PyMem_Free(decoding->copies);
  Py_XDECREF(decoding->pickle);
  Py_XDECREF(decoding->buffers);
}

static PyObject *decode_tensors(struct rc_py_state *state, const struct ringcast_frame *frame,
                                const struct rc_py_decoder *decoder, uint32_t *tag) {
  struct decoding decoding = {.state = state,
                              .reader = decoder->reader,
                              .classes = decoder->classes,
                              .allow_pickle = decoder->allow_pickle,
                              .hold = decoder->hold,
                              .selection = decoder->selection};
  bool ok = open_frame(&decoding, frame);
  if (ok && decoding.frame.root == RINGCAST_ROOT_DICT) ok = (decoding.result = PyDict_New()) != NULL;
  ok = ok && take_all(&decoding) && finish(&decoding);
  if (!ok) Py_CLEAR(decoding.result);
  decoding_clear(&decoding);
  *tag = decoding.frame.tag;
  return decoding.result;
}

PyObject *rc_py_decode_by(struct rc_py_state *state, const struct ringcast_frame *frame,
                          const struct rc_py_decoder *decoder, uint32_t *tag) {
  *tag = 0;
  if (frame->kind == RINGCAST_KIND_TENSORS) return decode_tensors(state, frame, decoder, tag);
  if (frame->kind != RINGCAST_KIND_BYTES) {
    return rc_py_raise_text(state, EPROTO,
                            "a frame of kind %d came, which this version of ringcast can't read; "
                            "Reader.next() gives its bytes",
                            frame->kind);
  }
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)frame->bytes);
  if (bytes) rc_py_copy(PyBytes_AS_STRING(bytes), frame->data, frame->bytes);
  return bytes;
}

PyObject *rc_py_decode(struct rc_py_state *state, const struct ringcast_frame *frame, const ringcast_reader *reader,
                       PyObject **classes, bool allow_pickle, uint32_t *tag) {
  const struct rc_py_decoder decoder = {.reader = reader, .classes = classes, .allow_pickle = allow_pickle};
  return rc_py_decode_by(state, frame, &decoder, tag);
}
