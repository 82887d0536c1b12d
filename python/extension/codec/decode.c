/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a frame to a Python object that owns all its memory.
 *
 * The entries are read once, in order. Text and scalars are made at once. For tensors, arrays,
 * bytes, buffers and the streams of nested values, memory is allocated and the copy is put on a
 * list; the list is then executed without the GIL. Only then is the pickle loaded, from a copy too,
 * the leaves filled in and the nested values made (token_read.c). So code that runs during decoding
 * finds its parts complete and out of the sender's reach. Before that, the decoder checks whether
 * the reader was evicted during the copies.
 *
 * For a view, arrays and tensors are made over the frame's own memory, without a copy (view.c). For
 * a single item of a dict, only the item's entries are read (inspect.c).
 *
 * The decoder trusts nothing in the frame. The library checks that an entry lies within the frame.
 * The decoder checks that the entries fit together, and that keys, text and all copies add up to no
 * more than the frame's size: entries with shared bytes could otherwise demand any amount of
 * memory.
 */
#include "python/extension/codec/copy.h"
#include "python/extension/codec/decode.h"
#include "python/extension/codec/device.h"
#include "python/extension/codec/leaves.h"

/* How much of a refused pickle is searched for the names of globals. */
enum { REFUSED_BYTES = 1 << 16 };

static bool is_spilled(const struct rc_py_holder *holder, const struct ringcast_frame *frame) {
  return holder && frame->bytes > holder->ring_frame;
}

static void copy_all(const struct rc_py_decoding *decoding) {
  bool spilled = is_spilled(decoding->holder, decoding->whole);
  for (size_t i = 0; i < decoding->copy_count; i++) {
    const struct rc_py_copy *copy = &decoding->copies[i];
    bool is_large = spilled && copy->bytes >= RC_PY_RECEIVED_PAST_CACHE;
    rc_py_copy_of(is_large, copy->to, copy->from, copy->bytes);
  }
}

/* ---- Entries --------------------------------------------------------------------------------- */

static bool raise_sent_error(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  PyObject *text = rc_py_make_text(decoding, item->data, item->bytes);
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
      (struct rc_py_decoded_leaf){.key = rc_py_ref(key), .index = index};
  return true;
}

static bool nested_add(struct rc_py_decoding *decoding, PyObject *key,
                       const struct ringcast_item *item) {
  void **nested = (void **)&decoding->nested;
  if (!rc_py_grow(nested, decoding->nested_count, &decoding->nested_room, sizeof *decoding->nested))
    return false;
  if (!rc_py_copy_add(decoding, item->data, item->bytes)) return false;
  uint8_t *stream = PyMem_Malloc(item->bytes);
  if (!stream) {
    PyErr_NoMemory();
    return false;
  }
  rc_py_copy_to(decoding, stream);
  struct rc_py_nested *added = &decoding->nested[decoding->nested_count++];
  *added = (struct rc_py_nested){.key = rc_py_ref(key), .stream = stream, .bytes = item->bytes};
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
  PyObject *part = rc_py_make_value(decoding, item);
  if (part) decoding->parts[decoding->part_count++] = part;
  return part;
}

static PyObject *make_key(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  char copy[RC_PY_KEY_MOST];
  if (item->key_bytes <= sizeof copy && rc_py_take_bytes(decoding, item->key_bytes)) {
    memcpy(copy, item->key, item->key_bytes);
    PyObject *key = rc_py_key(decoding->state, copy, item->key_bytes);
    if (key) return key;
    decoding->taken -= item->key_bytes;
  }
  return PyErr_Occurred() ? NULL : rc_py_make_text(decoding, item->key, item->key_bytes);
}

static bool take_keyed(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  PyObject *key = make_key(decoding, item);
  PyObject *value = key ? rc_py_make_value(decoding, item) : NULL;
  bool ok = value && PyDict_SetItem(decoding->result, key, value) == 0;
  if (ok && item->kind == RINGCAST_ITEM_LEAF) ok = leaf_add(decoding, key, item->scalar.i);
  if (ok && item->kind == RINGCAST_ITEM_OBJECT) ok = nested_add(decoding, key, item);
  Py_XDECREF(key);
  Py_XDECREF(value);
  if (ok && PyDict_GET_SIZE(decoding->result) != (Py_ssize_t)++decoding->items) {
    return rc_py_damaged(decoding, "a key twice");
  }
  return ok;
}

/* Raises PickleRefused with the keys of the leaves and the names in the pickle's beginning. */
static bool refuse_pickle(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  struct rc_py_state *state = decoding->state;
  if (!state->refuse_frame &&
      !(state->refuse_frame = rc_py_import("ringcast._pickling", "refuse_frame")))
    return false;
  Py_ssize_t bytes = item->bytes < REFUSED_BYTES ? (Py_ssize_t)item->bytes : REFUSED_BYTES;
  PyObject *data = PyBytes_FromStringAndSize(item->data, bytes);
  PyObject *keys = data ? PyList_New(0) : NULL;
  bool ok = keys;
  for (size_t i = 0; ok && i < decoding->leaf_count; i++)
    ok = PyList_Append(keys, decoding->leaves[i].key) == 0;
  PyObject *none = ok ? PyObject_CallFunctionObjArgs(state->refuse_frame, keys, data, NULL) : NULL;
  Py_XDECREF(none);
  Py_XDECREF(keys);
  Py_XDECREF(data);
  return false;
}

static bool take_pickle(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (!decoding->allow_pickle) return refuse_pickle(decoding, item);
  decoding->phase = RC_PY_BUFFERS;
  decoding->pickle = rc_py_make_bytes(decoding, item);
  return decoding->pickle && (decoding->buffers = PyList_New(0));
}

static bool take_buffer(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (decoding->phase != RC_PY_BUFFERS) return rc_py_damaged(decoding, "a buffer without a pickle");
  PyObject *buffer = rc_py_make_buffer(decoding, item);
  bool ok = buffer && PyList_Append(decoding->buffers, buffer) == 0;
  Py_XDECREF(buffer);
  return ok;
}

static bool take_value(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (item->kind == RINGCAST_ITEM_LEAF) return rc_py_damaged(decoding, "a leaf of nothing");
  decoding->items++;
  if (item->kind == RINGCAST_ITEM_OBJECT) return nested_add(decoding, NULL, item);
  decoding->result = rc_py_make_value(decoding, item);
  return decoding->result != NULL;
}

static bool take_entry(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                       uint32_t index) {
  if (item->kind == RINGCAST_ITEM_ERROR) return raise_sent_error(decoding, item);
  if (item->kind == RINGCAST_ITEM_BUFFER) return take_buffer(decoding, item);
  if (decoding->phase == RC_PY_BUFFERS) return rc_py_damaged(decoding, "an entry after the pickle");
  bool is_dict = decoding->frame.root == RINGCAST_ROOT_DICT;
  if (item->kind == RINGCAST_ITEM_PICKLE) {
    bool may = is_dict || decoding->nested_count > 0 || !decoding->items++;
    return may ? take_pickle(decoding, item) : rc_py_damaged(decoding, "two values");
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
  int rc = decoding->reader ? ringcast_reader_check(decoding->reader) : 0;
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
  struct rc_py_token_reader getting; /* the classes are filled in by the tokens */
  getting.state = decoding->state;
  getting.object =
      (struct ringcast_object){.at = nested->stream, .end = nested->stream + nested->bytes};
  getting.parts =
      nested->parts ? decoding->parts + (nested->first_part - decoding->first_part) : NULL;
  getting.part_count = nested->parts;
  getting.next_part = 0;
  getting.marked = &decoding->marked;
  getting.leaves = leaves;
  getting.may_import = decoding->allow_pickle;
  getting.classes = rc_py_class_cache(decoding->classes);
  PyObject *value = getting.classes ? rc_py_token_read(&getting) : NULL;
  Py_XDECREF(getting.classes);
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
  decoding->marked.dict =
      decoding->selection || decoding->frame.root != RINGCAST_ROOT_DICT ? NULL : decoding->result;
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

static void finish_copies(const struct rc_py_decoding *decoding) {
  PyThreadState *thread = decoding->copy_bytes > RC_PY_COPY_WITH_GIL ? PyEval_SaveThread() : NULL;
  copy_all(decoding);
  if (thread) PyEval_RestoreThread(thread);
}

static bool finish(struct rc_py_decoding *decoding) {
  if (decoding->device && !rc_py_device_copy(decoding)) return !(decoding->device_failed = true);
  finish_copies(decoding);
  if (!decoding->buffers && decoding->nested_count == 0 && decoding->leaf_count == 0) {
    return decoding->result || rc_py_damaged(decoding, "no value");
  }
  if (!was_whole(decoding)) return false;
  if (decoding->buffers) decoding->state->ran_code++;
  PyObject *loaded = decoding->buffers
                         ? rc_py_leaves_load(decoding->state, decoding->pickle, decoding->buffers)
                         : NULL;
  if (decoding->buffers && !loaded) return false;
  if (decoding->frame.root == RINGCAST_ROOT_VALUE && decoding->nested_count == 0) {
    decoding->result = loaded;
    return true;
  }
  bool ok =
      !loaded || PyList_CheckExact(loaded) || rc_py_damaged(decoding, "its pickle is no list");
  ok = ok && fill_leaves(decoding, loaded) && fill_nested(decoding, loaded);
  Py_XDECREF(loaded);
  return ok;
}

static bool open_frame(struct rc_py_decoding *decoding, const struct ringcast_frame *frame) {
  int rc = ringcast_frame_open(&decoding->frame, frame->data, frame->bytes);
  if (rc == 0) return true;
  if (rc != -EPROTONOSUPPORT) return rc_py_damaged(decoding, "its header makes no sense");
  rc_py_raise_text(decoding->state, EPROTO,
                   "the frame is of version %d of the layout, and ringcast %s reads up to version "
                   "%d: this process "
                   "needs the ringcast of the sender, or a later one",
                   decoding->frame.version, ringcast_version(), RINGCAST_FRAME_VERSION);
  return false;
}

static void decoding_clear(struct rc_py_decoding *decoding) {
  for (size_t i = 0; i < decoding->leaf_count; i++) Py_DECREF(decoding->leaves[i].key);
  for (size_t i = 0; i < decoding->part_count; i++) Py_DECREF(decoding->parts[i]);
  for (size_t i = 0; i < decoding->nested_count; i++) {
    Py_XDECREF(decoding->nested[i].key);
    PyMem_Free(decoding->nested[i].stream);
  }
  rc_py_marked_clear(&decoding->marked);
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
                                    .holder = options->holder,
                                    .whole = frame,
                                    .classes = options->classes,
                                    .allow_pickle = options->allow_pickle,
                                    .hold = options->hold,
                                    .is_last = options->is_last,
                                    .selection = options->selection};
  bool ok = open_frame(&decoding, frame);
  if (ok && decoding.frame.root == RINGCAST_ROOT_DICT)
    ok = (decoding.result = PyDict_New()) != NULL;
  ok = ok && take_all(&decoding) && finish(&decoding);
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
  bool spilled = is_spilled(options->holder, frame);
  if (bytes) rc_py_copy(spilled, PyBytes_AS_STRING(bytes), frame->data, frame->bytes);
  return bytes;
}
