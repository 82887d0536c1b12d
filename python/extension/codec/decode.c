/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a frame to a Python object that owns all its memory.
 *
 * The entries are read once, in order. Text and scalars are made at once. For tensors, arrays,
 * bytes, buffers and the streams of nested values, memory is allocated and the copy is put on a
 * list; the list is then executed, without the GIL if large. Only then is the pickle loaded, from a
 * copy too, the leaves filled in and the nested values made (containers_read.c). So code that runs
 * during decoding finds its parts complete and out of the sender's reach. Before that, the decoder
 * checks whether the reader was evicted during the copies; a frame without such code is checked by
 * its release.
 *
 * For a view, arrays and tensors are made over the frame's own memory, without a copy
 * (view_arrays.c). For a single item of a dict, only the item's entries are read (inspect.c).
 *
 * The decoder trusts nothing in the frame. The library checks that an entry lies within the frame.
 * The decoder checks that the entries fit together, and that keys, text and all copies add up to no
 * more than the frame's size: entries with shared bytes could otherwise demand any amount of
 * memory.
 */
#include "python/extension/codec/decode.h"

#include "python/extension/codec/arrays.h"
#include "python/extension/codec/classes.h"
#include "python/extension/codec/containers.h"
#include "python/extension/codec/device.h"
#include "python/extension/codec/leaves.h"
#include "python/extension/codec/references.h"
#include "python/extension/codec/scalars.h"
#include "python/extension/tensors.h"

/* How much of a refused pickle is searched for the names of globals. */
enum { REFUSED_BYTES = 1 << 16 };

/* ---- The value of an entry ------------------------------------------------------------------- */

/* Notes a copy. To be called before its memory is allocated, with copy_to afterwards. */
static bool copy_add(struct rc_py_decoding *decoding, const void *from, uint64_t bytes) {
  if (!rc_py_take_bytes(decoding, bytes)) return false;
  if (!rc_py_grow((void **)&decoding->copies, decoding->copy_count, &decoding->copy_room,
                  sizeof *decoding->copies)) {
    return false;
  }
  decoding->copy_bytes += bytes;
  decoding->copies[decoding->copy_count++] =
      (struct rc_py_pending_copy){.from = from, .bytes = bytes};
  return true;
}

static inline void copy_to(struct rc_py_decoding *decoding, void *to) {
  decoding->copies[decoding->copy_count - 1].to = to;
}

/* Decodes a copy: Python's decoder reads the input more than once, and the ring could change in
 * between. */
static PyObject *make_text(struct rc_py_decoding *decoding, const void *data, uint64_t bytes) {
  char small[256];
  if (!rc_py_take_bytes(decoding, bytes)) return NULL;
  char *copy = small;
  if (bytes > sizeof small) copy = PyMem_Malloc(bytes);
  if (!copy) return PyErr_NoMemory();
  memcpy(copy, data, bytes);
  PyObject *text = PyUnicode_DecodeUTF8(copy, (Py_ssize_t)bytes, NULL);
  if (copy != small) PyMem_Free(copy);
  if (!text) rc_py_protocol_from_current(decoding->state, "its text is no UTF-8");
  return text;
}

static PyObject *make_bytes(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (!copy_add(decoding, item->data, item->bytes)) return NULL;
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)item->bytes);
  if (bytes) copy_to(decoding, PyBytes_AS_STRING(bytes));
  return bytes;
}

/* For the buffer of a pickled array: the pickle builds an array over the memory. NULL, with nothing
 * raised: too small, or no such memory. */
static PyObject *make_memory(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  void *out;
  if (!(item->flags & RINGCAST_ITEM_NUMPY)) return NULL;
  PyObject *memory = rc_py_memory_take(decoding->state, item->bytes, &out);
  if (!memory) return NULL;
  if (!copy_add(decoding, item->data, item->bytes)) {
    Py_DECREF(memory);
    return NULL;
  }
  copy_to(decoding, out);
  return memory;
}

static PyObject *make_bytearray(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (!copy_add(decoding, item->data, item->bytes)) return NULL;
  PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)item->bytes);
  if (bytes) copy_to(decoding, PyByteArray_AS_STRING(bytes));
  return bytes;
}

/* An array's buffer in place. NULL, with nothing raised: the caller must copy. */
static PyObject *view_buffer(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (!decoding->hold || !(item->flags & RINGCAST_ITEM_NUMPY) ||
      !rc_py_take_bytes(decoding, item->bytes))
    return NULL;
  PyObject *buffer = rc_py_buffer_over(decoding->state, item->data, item->bytes, decoding->hold);
  if (!buffer) decoding->taken -= item->bytes;
  return buffer;
}

/* A pickle's buffer: bytes, memory that an array can own, or a bytearray. */
static PyObject *make_buffer(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  bool is_large = item->flags & RINGCAST_ITEM_NUMPY && item->bytes >= RC_PY_RETAIN_LEAST;
  if (is_large) decoding->arrays += item->bytes;
  PyObject *viewed = view_buffer(decoding, item);
  if (viewed || PyErr_Occurred()) return viewed;
  if (item->flags & RINGCAST_ITEM_READONLY) return make_bytes(decoding, item);
  PyObject *memory = make_memory(decoding, item);
  if (memory || PyErr_Occurred()) return memory;
  return make_bytearray(decoding, item);
}

/* array.array, or bytes. */
static PyObject *make_array_or_bytes(struct rc_py_decoding *decoding,
                                     const struct ringcast_item *item) {
  enum { AT_ONCE_MOST = 1 << 20 };
  uint8_t typecode = RINGCAST_ITEM_TYPECODE(item->flags);
  void *out;
  if (typecode == 0 || item->bytes == 0) return make_bytes(decoding, item);
  if (item->bytes < AT_ONCE_MOST) {
    if (!rc_py_take_bytes(decoding, item->bytes)) return NULL;
    return rc_py_array_copy(decoding->state, typecode, item->data, item->bytes);
  }
  if (!copy_add(decoding, item->data, item->bytes)) return NULL;
  PyObject *array = rc_py_array_new(decoding->state, typecode, item->bytes, &out);
  if (array) copy_to(decoding, out);
  return array;
}

/* An array in place. As rc_py_array_over. */
static PyObject *view_array(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                            uint64_t bytes) {
  if (!rc_py_take_bytes(decoding, bytes)) return NULL;
  PyObject *array =
      rc_py_array_over(decoding->state, item, bytes, decoding->hold, rc_py_goes_to_torch(item));
  if (!array) decoding->taken -= bytes;
  return array;
}

/* A tensor with gaps, which no writer of ringcast's makes: packed in C order at once. */
static PyObject *make_packed(struct rc_py_decoding *decoding, const struct ringcast_tensor *tensor,
                             struct ringcast_item *item, uint64_t bytes) {
  int64_t stride = 1;
  void *out = NULL;
  if (!rc_py_take_bytes(decoding, bytes)) return NULL;
  for (int32_t i = item->ndim; i-- > 0; stride *= item->shape[i]) item->strides[i] = stride;
  PyObject *array = rc_py_make_array(decoding->state, item, bytes, &out);
  if (!array || ringcast_tensor_pack(tensor, out) == 0) return array;
  Py_DECREF(array);
  rc_py_damaged(decoding, "a tensor's strides make no sense");
  return NULL;
}

static PyObject *make_tensor(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  const struct ringcast_tensor tensor = rc_py_tensor_of(item);
  uint64_t bytes;
  bool is_dense = rc_py_is_dense(&tensor, &bytes);
  bool makes_sense;
  if (is_dense) {
    makes_sense = bytes == item->bytes;
  } else { /* it may need more bytes than its entry has; take_bytes limits the total */
    makes_sense = ringcast_tensor_bytes(&tensor, &bytes) == 0;
  }
  if (!makes_sense) {
    rc_py_damaged(decoding, "a tensor's shape and size disagree");
    return NULL;
  }
  if (rc_py_device_wants(decoding, item)) {
    PyObject *made = rc_py_device_make(decoding, item, bytes);
    decoding->device_failed = !made && PyErr_Occurred();
    if (made || decoding->device_failed) return made;
  }
  if (!is_dense) {
    struct ringcast_item packed = *item;
    return make_packed(decoding, &tensor, &packed, bytes);
  }
  if (bytes >= RC_PY_RETAIN_LEAST) decoding->arrays += bytes;
  if (decoding->hold) {
    PyObject *viewed = view_array(decoding, item, bytes);
    if (viewed || PyErr_Occurred()) return viewed;
  }
  if (!copy_add(decoding, item->data, bytes)) return NULL;
  void *out = NULL;
  PyObject *array = rc_py_make_array(decoding->state, item, bytes, &out);
  if (array) copy_to(decoding, out);
  return array;
}

/* The value of an entry, or NULL with an exception; None for a value that can only be made after
 * all copies. */
static PyObject *make_value(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  switch (item->kind) {
  case RINGCAST_ITEM_NONE:
  case RINGCAST_ITEM_LEAF:
  case RINGCAST_ITEM_OBJECT: return Py_NewRef(Py_None);
  case RINGCAST_ITEM_BOOL: return PyBool_FromLong(item->scalar.i != 0);
  case RINGCAST_ITEM_INT: return PyLong_FromLongLong(item->scalar.i);
  case RINGCAST_ITEM_FLOAT: return PyFloat_FromDouble(item->scalar.f);
  case RINGCAST_ITEM_STR: return make_text(decoding, item->data, item->bytes);
  case RINGCAST_ITEM_BYTES: return make_array_or_bytes(decoding, item);
  case RINGCAST_ITEM_TENSOR: return make_tensor(decoding, item);
  default:
    rc_py_raise_text(decoding->state, EPROTO,
                     "the frame is of another build: it holds an item of kind %d", item->kind);
    return NULL;
  }
}

/* ---- Entries --------------------------------------------------------------------------------- */

static bool raise_sent_error(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  PyObject *text = make_text(decoding, item->data, item->bytes);
  if (text) rc_py_raise_lines(decoding->state, EREMOTEIO, text);
  Py_XDECREF(text);
  return false;
}

/* Notes the leaf for the key in the dict. */
static bool leaf_add(struct rc_py_decoding *decoding, PyObject *key, int64_t index) {
  if (!rc_py_grow((void **)&decoding->leaves, decoding->leaf_count, &decoding->leaf_room,
                  sizeof *decoding->leaves)) {
    return false;
  }
  decoding->leaves[decoding->leaf_count++] =
      (struct rc_py_decoded_leaf){.key = Py_XNewRef(key), .index = index};
  return true;
}

static bool nested_add(struct rc_py_decoding *decoding, PyObject *key,
                       const struct ringcast_item *item) {
  void **nested = (void **)&decoding->nested;
  if (!rc_py_grow(nested, decoding->nested_count, &decoding->nested_room, sizeof *decoding->nested))
    return false;
  if (!copy_add(decoding, item->data, item->bytes)) return false;
  uint8_t *stream = PyMem_Malloc(item->bytes);
  if (!stream) {
    PyErr_NoMemory();
    return false;
  }
  copy_to(decoding, stream);
  struct rc_py_nested *added = &decoding->nested[decoding->nested_count++];
  *added = (struct rc_py_nested){.key = Py_XNewRef(key), .stream = stream, .bytes = item->bytes};
  added->first_part = rc_py_first_part(item, &added->parts);
  return true;
}

/* Of a nested value, in the order of the entries. */
static bool take_part(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                      uint32_t index) {
  bool is_part = item->kind == RINGCAST_ITEM_TENSOR || item->kind == RINGCAST_ITEM_STR ||
                 item->kind == RINGCAST_ITEM_BYTES;
  if (!is_part || item->flags & RINGCAST_ITEM_KEYED || decoding->nested_count == 0) {
    return rc_py_damaged(decoding, "an item that is nobody's");
  }
  if (decoding->phase == RC_PY_ITEMS) decoding->first_part = index;
  decoding->phase = RC_PY_PARTS;
  if (!rc_py_grow((void **)&decoding->parts, decoding->part_count, &decoding->part_room,
                  sizeof *decoding->parts)) {
    return false;
  }
  PyObject *part = make_value(decoding, item);
  if (part) decoding->parts[decoding->part_count++] = part;
  return part;
}

static PyObject *make_key(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  char copy[RC_PY_KEY_MOST];
  if (item->key_bytes <= sizeof copy) {
    if (!rc_py_take_bytes(decoding, item->key_bytes)) return NULL;
    memcpy(copy, item->key, item->key_bytes);
    PyObject *key = rc_py_key(decoding->state, copy, item->key_bytes);
    if (key) return key;
    decoding->taken -= item->key_bytes;
  }
  return make_text(decoding, item->key, item->key_bytes);
}

static bool take_keyed(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  PyObject *key = make_key(decoding, item);
  if (!key) return false;
  PyObject *value = make_value(decoding, item);
  bool ok = value && PyDict_SetItem(decoding->result, key, value) == 0;
  if (ok && item->kind == RINGCAST_ITEM_LEAF) ok = leaf_add(decoding, key, item->scalar.i);
  if (ok && item->kind == RINGCAST_ITEM_OBJECT) ok = nested_add(decoding, key, item);
  Py_DECREF(key);
  Py_XDECREF(value);
  if (!ok) return false;
  decoding->items++;
  if (PyDict_GET_SIZE(decoding->result) == (Py_ssize_t)decoding->items) return true;
  return rc_py_damaged(decoding, "a key twice");
}

static PyObject *leaf_keys(const struct rc_py_decoding *decoding) {
  PyObject *keys = PyList_New(0);
  for (size_t i = 0; keys && i < decoding->leaf_count; i++) {
    if (PyList_Append(keys, decoding->leaves[i].key) < 0) Py_CLEAR(keys);
  }
  return keys;
}

/* Raises PickleRefused with the keys of the leaves and the names in the pickle's beginning. */
static bool refuse_pickle(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  struct rc_py_state *state = decoding->state;
  if (!rc_py_import_once(&state->refuse_frame, "ringcast._pickling", "refuse_frame")) return false;
  PyObject *keys = leaf_keys(decoding);
  if (!keys) return false;
  size_t bytes = REFUSED_BYTES;
  if (bytes > item->bytes) bytes = item->bytes;
  PyObject *data = PyBytes_FromStringAndSize(item->data, (Py_ssize_t)bytes);
  if (data) Py_XDECREF(PyObject_CallFunctionObjArgs(state->refuse_frame, keys, data, NULL));
  Py_XDECREF(data);
  Py_DECREF(keys);
  return false;
}

static bool take_pickle(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (!decoding->allow_pickle) return refuse_pickle(decoding, item);
  decoding->phase = RC_PY_BUFFERS;
  decoding->pickle = make_bytes(decoding, item);
  if (!decoding->pickle) return false;
  decoding->buffers = PyList_New(0);
  return decoding->buffers;
}

static bool take_buffer(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (decoding->phase != RC_PY_BUFFERS) return rc_py_damaged(decoding, "a buffer without a pickle");
  PyObject *buffer = make_buffer(decoding, item);
  bool ok = buffer && PyList_Append(decoding->buffers, buffer) == 0;
  Py_XDECREF(buffer);
  return ok;
}

static bool take_value(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (item->kind == RINGCAST_ITEM_LEAF) return rc_py_damaged(decoding, "a leaf of nothing");
  decoding->items++;
  if (item->kind == RINGCAST_ITEM_OBJECT) return nested_add(decoding, NULL, item);
  decoding->result = make_value(decoding, item);
  return decoding->result != NULL;
}

static bool take_entry(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                       uint32_t index) {
  if (item->kind == RINGCAST_ITEM_ERROR) return raise_sent_error(decoding, item);
  if (item->kind == RINGCAST_ITEM_BUFFER) return take_buffer(decoding, item);
  if (decoding->phase == RC_PY_BUFFERS) return rc_py_damaged(decoding, "an entry after the pickle");
  bool is_dict = decoding->frame.root == RINGCAST_ROOT_DICT;
  if (item->kind == RINGCAST_ITEM_PICKLE) {
    bool is_value = !is_dict && decoding->nested_count == 0; /* and not the leaves' pickle */
    if (is_value && decoding->items > 0) return rc_py_damaged(decoding, "two values");
    if (is_value) decoding->items++;
    return take_pickle(decoding, item);
  }
  if (is_dict && item->flags & RINGCAST_ITEM_KEYED && item->key) {
    if (decoding->phase != RC_PY_ITEMS) return rc_py_damaged(decoding, "an item after the parts");
    return take_keyed(decoding, item);
  }
  if (!is_dict && decoding->items == 0) return take_value(decoding, item);
  return take_part(decoding, item, index);
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* Whether the copied data is whole: code runs only if no part was overwritten meanwhile. */
static bool was_whole(const struct rc_py_decoding *decoding) {
  if (!decoding->reader) return true;
  int rc = ringcast_reader_check(decoding->reader);
  if (rc < 0) rc_py_raise(decoding->state, rc);
  return rc >= 0;
}

static bool fill_leaves(struct rc_py_decoding *decoding, PyObject *list) {
  for (size_t i = 0; i < decoding->leaf_count; i++) {
    const struct rc_py_decoded_leaf *leaf = &decoding->leaves[i];
    if (!list || leaf->index < 0 || leaf->index >= PyList_GET_SIZE(list)) {
      return rc_py_damaged(decoding, "a leaf that its pickle lacks");
    }
    if (PyDict_SetItem(decoding->result, leaf->key, PyList_GET_ITEM(list, leaf->index)) < 0)
      return false;
  }
  return true;
}

/* Makes the value of a stream. */
static PyObject *make_nested(struct rc_py_decoding *decoding, const struct rc_py_nested *nested,
                             PyObject *leaves) {
  struct rc_py_token_reader reader; /* the classes are filled in by the tokens */
  reader.state = decoding->state;
  reader.object =
      (struct ringcast_object){.at = nested->stream, .end = nested->stream + nested->bytes};
  reader.parts = NULL;
  if (nested->parts > 0)
    reader.parts = decoding->parts + (nested->first_part - decoding->first_part);
  reader.part_count = nested->parts;
  reader.next_part = 0;
  reader.marked = &decoding->marked;
  reader.leaves = leaves;
  reader.may_import = decoding->allow_pickle;
  reader.classes = rc_py_class_cache(decoding->classes);
  if (!reader.classes) return NULL;
  PyObject *value = rc_py_read_tokens(&reader);
  Py_DECREF(reader.classes);
  return value;
}

/* Whether each part belongs to exactly one nested value, in order. */
static bool parts_make_sense(struct rc_py_decoding *decoding) {
  uint64_t next = decoding->first_part, end = next + decoding->part_count;
  for (size_t i = 0; i < decoding->nested_count; i++) {
    const struct rc_py_nested *nested = &decoding->nested[i];
    if (nested->parts == 0) continue;
    if (nested->first_part != next || nested->parts > end - next)
      return rc_py_damaged(decoding, "parts in disorder");
    next += nested->parts;
  }
  return next == end || rc_py_damaged(decoding, "a part that is nobody's");
}

/* Without pickles: before anything is made, whether all classes of the frame are allowed. */
static bool classes_are_allowed(struct rc_py_decoding *decoding) {
  PyObject *classes = rc_py_class_cache(decoding->classes);
  bool ok = classes;
  for (size_t i = 0; ok && i < decoding->nested_count; i++) {
    ok = rc_py_classes_check(decoding->state, classes, decoding->nested[i].stream,
                             decoding->nested[i].bytes);
  }
  Py_XDECREF(classes);
  return ok;
}

static bool fill_nested(struct rc_py_decoding *decoding, PyObject *leaves) {
  if (!parts_make_sense(decoding)) return false;
  if (!decoding->allow_pickle && !classes_are_allowed(decoding)) return false;
  decoding->marked.frame = &decoding->frame;
  bool is_whole_dict = decoding->frame.root == RINGCAST_ROOT_DICT && !decoding->selection;
  if (is_whole_dict) decoding->marked.dict = decoding->result;
  for (size_t i = 0; i < decoding->nested_count; i++) {
    const struct rc_py_nested *nested = &decoding->nested[i];
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

static bool take_run(struct rc_py_decoding *decoding, uint32_t first, uint32_t end) {
  struct ringcast_item item;
  for (uint32_t i = first; i < end; i++) {
    if (ringcast_frame_item(&decoding->frame, i, &item) < 0)
      return rc_py_damaged(decoding,
                           "an entry points outside it, or its elements share their bytes");
    if (!take_entry(decoding, &item, i)) return false;
  }
  return true;
}

static bool take_all(struct rc_py_decoding *decoding) {
  const struct rc_py_selection *selection = decoding->selection;
  if (!selection) return take_run(decoding, 0, decoding->frame.count);
  bool ok = true;
  for (uint32_t i = 0; ok && i < selection->count; i++) {
    ok = take_run(decoding, selection->runs[i].first, selection->runs[i].end);
  }
  return ok;
}

/* False also without a receiver, whose ring's limit is not known. */
static bool is_spilled(const struct rc_py_receiver *receiver, const struct ringcast_frame *frame) {
  return receiver && frame->bytes > receiver->ring_frame;
}

static void copy_all(const struct rc_py_decoding *decoding) {
  bool spilled = is_spilled(decoding->receiver, decoding->whole);
  for (size_t i = 0; i < decoding->copy_count; i++) {
    const struct rc_py_pending_copy *copy = &decoding->copies[i];
    bool is_large = spilled && copy->bytes >= RC_PY_RECEIVED_PAST_CACHE;
    rc_py_copy_bytes(is_large, copy->to, copy->from, copy->bytes);
  }
}

static void finish_copies(const struct rc_py_decoding *decoding) {
  PyThreadState *thread = NULL;
  if (decoding->copy_bytes > RC_PY_COPY_WITH_GIL) thread = PyEval_SaveThread();
  copy_all(decoding);
  if (thread) PyEval_RestoreThread(thread);
}

/* With the list from the pickle; NULL: no pickle. */
static bool fill(struct rc_py_decoding *decoding, PyObject *leaves) {
  if (leaves && !PyList_CheckExact(leaves)) return rc_py_damaged(decoding, "its pickle is no list");
  return fill_leaves(decoding, leaves) && fill_nested(decoding, leaves);
}

/* What is made of copies only: the pickle's value, and the nested values. */
static bool finish_nested(struct rc_py_decoding *decoding) {
  if (!was_whole(decoding)) return false;
  PyObject *loaded = NULL;
  if (decoding->buffers) {
    decoding->state->ran_code++;
    loaded = rc_py_leaves_load(decoding->state, decoding->pickle, decoding->buffers);
    if (!loaded) return false;
  }
  if (decoding->frame.root == RINGCAST_ROOT_VALUE && decoding->nested_count == 0) {
    decoding->result = loaded;
    return true;
  }
  bool ok = fill(decoding, loaded);
  Py_XDECREF(loaded);
  return ok;
}

static bool finish(struct rc_py_decoding *decoding) {
  if (decoding->device && !rc_py_device_copy(decoding)) {
    decoding->device_failed = true;
    return false;
  }
  finish_copies(decoding);
  if (decoding->buffers || decoding->nested_count > 0 || decoding->leaf_count > 0)
    return finish_nested(decoding);
  return decoding->result || rc_py_damaged(decoding, "no value");
}

static bool open_frame(struct rc_py_decoding *decoding, const struct ringcast_frame *frame) {
  int rc = ringcast_frame_open(&decoding->frame, frame->data, frame->bytes);
  if (rc == 0) return true;
  if (rc != -EPROTONOSUPPORT) return rc_py_damaged(decoding, "its header makes no sense");
  rc_py_raise_text(decoding->state, EPROTO,
                   "the frame is of version %d of the layout, and ringcast %s reads up to version "
                   "%d: this process needs the ringcast of the sender, or a later one",
                   decoding->frame.version, ringcast_version(), RINGCAST_FRAME_VERSION);
  return false;
}

static bool begin(struct rc_py_decoding *decoding) {
  if (decoding->frame.root != RINGCAST_ROOT_DICT) return true;
  decoding->result = PyDict_New();
  return decoding->result;
}

static void decoding_clear(struct rc_py_decoding *decoding) {
  for (size_t i = 0; i < decoding->leaf_count; i++) Py_DECREF(decoding->leaves[i].key);
  for (size_t i = 0; i < decoding->part_count; i++) Py_DECREF(decoding->parts[i]);
  for (size_t i = 0; i < decoding->nested_count; i++) {
    Py_XDECREF(decoding->nested[i].key);
    PyMem_Free(decoding->nested[i].stream);
  }
  if (decoding->nested_count > 0) rc_py_marked_clear(&decoding->marked);
  PyMem_Free(decoding->leaves);
  PyMem_Free(decoding->parts);
  PyMem_Free(decoding->nested);
  PyMem_Free(decoding->copies);
  if (decoding->device) rc_py_device_clear(decoding);
  Py_XDECREF(decoding->pickle);
  Py_XDECREF(decoding->buffers);
}

static PyObject *decode_tensors(struct rc_py_state *state, const struct ringcast_frame *frame,
                                const struct rc_py_decode_options *options, uint32_t *tag) {
  struct rc_py_decoding decoding = {.state = state,
                                    .reader = options->reader,
                                    .receiver = options->receiver,
                                    .whole = frame,
                                    .classes = options->classes,
                                    .allow_pickle = options->allow_pickle,
                                    .hold = options->hold,
                                    .is_last = options->is_last,
                                    .selection = options->selection};
  bool ok =
      open_frame(&decoding, frame) && begin(&decoding) && take_all(&decoding) && finish(&decoding);
  if (!ok) Py_CLEAR(decoding.result);
  decoding_clear(&decoding);
  *tag = decoding.frame.tag;
  if (options->arrays) *options->arrays = decoding.arrays;
  if (options->device_failed) *options->device_failed = decoding.device_failed;
  return decoding.result;
}

PyObject *rc_py_decode(struct rc_py_state *state, const struct ringcast_frame *frame,
                       const struct rc_py_decode_options *options, uint32_t *tag) {
  *tag = 0;
  if (frame->kind == RINGCAST_KIND_TENSORS) return decode_tensors(state, frame, options, tag);
  if (frame->kind != RINGCAST_KIND_BYTES) {
    return rc_py_raise_text(state, EPROTO,
                            "a frame of kind %d came, which this version of ringcast can't read; "
                            "Reader.next() gives its bytes",
                            frame->kind);
  }
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)frame->bytes);
  bool spilled = is_spilled(options->receiver, frame);
  if (bytes)
    rc_py_copy_maybe_without_gil(spilled, PyBytes_AS_STRING(bytes), frame->data, frame->bytes);
  return bytes;
}
