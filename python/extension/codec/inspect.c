/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking into a frame: the keys, a single item, or the hashes, without reading the rest.
 *
 * The items of a dict stand in entries of 64 bytes, in order. To get an item, only its entries are
 * read: the item's own; the parts of a nested value; and, if the stream of a nested value has
 * leaves, the pickle with its buffers. decode.c decodes the selected entries as it would a frame
 * with nothing else in it.
 *
 * A dict without entries for its items (many items that are no tensors, or keys that are no str) is
 * a single nested value or a pickle, and is read as a whole.
 *
 * As in decode.c, what is read adds up to no more than the frame's size: entries with shared bytes
 * could otherwise take any amount of memory and time. A signal ends each loop.
 */
#include "python/extension/codec/inspect.h"

#include "python/extension/codec/scalars.h"

struct look {
  const struct rc_py_inspector *how;
  struct ringcast_frame_reader frame;
  uint64_t taken; /* bytes of keys and streams read so far */
};

static bool damaged(const struct look *look, const char *what) {
  rc_py_raise_damaged(look->how->state, what);
  return false;
}

static int raise_damaged(const struct look *look, const char *what) {
  damaged(look, what);
  return -1;
}

static bool get_entry(const struct look *look, uint32_t index, struct ringcast_item *out) {
  return ringcast_frame_item(&look->frame, index, out) == 0 ||
         damaged(look, "an entry points outside it");
}

static bool take_bytes(struct look *look, uint64_t bytes) {
  if (bytes > look->frame.bytes - look->taken)
    return damaged(look, "its entries share their bytes");
  look->taken += bytes;
  return true;
}

static PyObject *read_by(const struct look *look, const struct rc_py_selection *selection) {
  const struct rc_py_inspector *how = look->how;
  const struct rc_py_decode_options options = {.reader = how->reader,
                                               .receiver = how->receiver,
                                               .classes = how->classes,
                                               .allow_pickle = how->allow_pickle,
                                               .selection = selection};
  uint32_t tag;
  return rc_py_decode(how->state, how->frame, &options, &tag);
}

static int raise_no_dict(const char *what) {
  PyErr_Format(PyExc_TypeError,
               "this frame holds %.100s, not a dict: it has no keys; ringcast.unpack() reads it",
               what);
  return -1;
}

/* 1: the items are entries; 0: read the whole frame; -1: raised, as the frame can't be a dict. */
static int open_dict(struct look *look) {
  const struct ringcast_frame *frame = look->how->frame;
  struct ringcast_item item;
  if (frame->kind == RINGCAST_KIND_BYTES) return raise_no_dict("bytes");
  if (frame->kind != RINGCAST_KIND_TENSORS) return 0;
  /* decode.c raises for a frame that can't be opened. */
  if (ringcast_frame_open(&look->frame, frame->data, frame->bytes) < 0) return 0;
  if (look->frame.root == RINGCAST_ROOT_DICT) return 1;
  if (look->frame.count == 0) return 0;
  if (!get_entry(look, 0, &item)) return -1;
  bool may_be = item.kind == RINGCAST_ITEM_OBJECT || item.kind == RINGCAST_ITEM_PICKLE ||
                item.kind == RINGCAST_ITEM_ERROR;
  if (may_be) return 0;
  return raise_no_dict("a single value");
}

/* The dict, of which all is read. */
static PyObject *whole_dict(const struct look *look) {
  PyObject *value = read_by(look, NULL);
  if (!value || PyDict_Check(value)) return value;
  raise_no_dict(Py_TYPE(value)->tp_name);
  Py_DECREF(value);
  return NULL;
}

/* From a copy: the ring may change during the read. */
static PyObject *make_key(struct look *look, const struct ringcast_item *item) {
  if (!take_bytes(look, item->key_bytes)) return NULL;
  PyObject *copy = PyBytes_FromStringAndSize(item->key, (Py_ssize_t)item->key_bytes);
  if (!copy) return NULL;
  const char *text = PyBytes_AS_STRING(copy);
  PyObject *key = rc_py_key(look->how->state, text, item->key_bytes);
  if (!key && !PyErr_Occurred()) key = PyUnicode_DecodeUTF8(text, PyBytes_GET_SIZE(copy), NULL);
  Py_DECREF(copy);
  if (!key) rc_py_protocol_from_current(look->how->state, "its text is no UTF-8");
  return key;
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* The keys of all entries that are items. */
static PyObject *entry_keys(struct look *look) {
  struct ringcast_item item;
  PyObject *keys = PyDict_New();
  bool ok = keys;
  for (uint32_t i = 0; ok && i < look->frame.count; i++) {
    ok = rc_py_heed_signals(i) && get_entry(look, i, &item);
    if (!ok || !item.key) break;
    PyObject *key = make_key(look, &item);
    ok = key && PyDict_SetItem(keys, key, Py_None) == 0;
    Py_XDECREF(key);
    if (ok && PyDict_GET_SIZE(keys) != (Py_ssize_t)i + 1) ok = damaged(look, "a key twice");
  }
  PyObject *list = NULL;
  if (ok) list = PySequence_List(keys);
  Py_XDECREF(keys);
  return list;
}

static bool are_text(PyObject *keys) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys); i++) {
    PyObject *key = PyList_GET_ITEM(keys, i);
    if (PyUnicode_Check(key)) continue;
    PyErr_Format(
        PyExc_TypeError,
        "the dict in this frame has a key that is no str but %.100s: ringcast.unpack() reads it",
        Py_TYPE(key)->tp_name);
    return false;
  }
  return true;
}

PyObject *rc_py_inspect_keys(const struct rc_py_inspector *looking, PyObject *Py_UNUSED(key)) {
  struct look look = {.how = looking};
  int opened = open_dict(&look);
  if (opened < 0) return NULL;
  if (opened > 0) return entry_keys(&look);
  PyObject *dict = whole_dict(&look);
  PyObject *keys = dict ? PySequence_List(dict) : NULL;
  Py_XDECREF(dict);
  if (keys && !are_text(keys)) Py_CLEAR(keys);
  return keys;
}

/* ---- A single item --------------------------------------------------------------------------- */

/* 1: found, as entry `*index`; 0: no such key; -1: raised. */
static int find(const struct look *look, PyObject *key, uint32_t *index,
                struct ringcast_item *item) {
  Py_ssize_t bytes;
  const char *text;
  int has_text = rc_py_utf8(key, &text, &bytes);
  if (has_text <= 0) return has_text;
  for (*index = 0; *index < look->frame.count; ++*index) {
    if (!rc_py_heed_signals(*index) || !get_entry(look, *index, item)) return -1;
    if (!item->key) return 0;
    if (item->key_bytes == (size_t)bytes && memcmp(item->key, text, (size_t)bytes) == 0) return 1;
  }
  return 0;
}

/* A copy of a nested value's stream, because the stream is read more than once; and the needs of
 * the stream. */
static PyObject *stream_of(struct look *look, const struct ringcast_item *item,
                           struct ringcast_object_needs *needs) {
  if (!take_bytes(look, item->bytes)) return NULL;
  PyObject *copy = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)item->bytes);
  if (!copy) return NULL;
  rc_py_copy_maybe_without_gil(false, PyBytes_AS_STRING(copy), item->data, item->bytes);
  if (ringcast_object_check(PyBytes_AS_STRING(copy), item->bytes, needs) == 0) return copy;
  Py_DECREF(copy);
  damaged(look, "a nested value is cut off, or of a kind that this version does not know");
  return NULL;
}

/* The needs of the item, beside its own entry and parts. */
static bool needs_of(struct look *look, const struct ringcast_item *item,
                     struct ringcast_object_needs *out) {
  *out = (struct ringcast_object_needs){.leaves = item->kind == RINGCAST_ITEM_LEAF};
  if (item->kind != RINGCAST_ITEM_OBJECT) return true;
  PyObject *stream = stream_of(look, item, out);
  Py_XDECREF(stream);
  return stream;
}

static void add_run(struct rc_py_selection *selection, uint64_t first, uint64_t end) {
  if (first == end) return;
  selection->runs[selection->count].first = (uint32_t)first;
  selection->runs[selection->count++].end = (uint32_t)end;
}

/* Adds the pickle and its buffers, at the end of the frame. If a leaf has no pickle, decode.c
 * raises. */
static bool add_pickle(const struct look *look, struct rc_py_selection *selection) {
  struct ringcast_item item;
  for (uint32_t i = look->frame.count; i-- > 0;) {
    if (!get_entry(look, i, &item)) return false;
    if (item.kind == RINGCAST_ITEM_PICKLE) add_run(selection, i, look->frame.count);
    if (item.kind != RINGCAST_ITEM_BUFFER) break;
  }
  return true;
}

/* 1; 0: the item refers to other items, so all must be read; -1: raised. */
static int select_item(struct look *look, uint32_t index, const struct ringcast_item *item,
                       struct rc_py_selection *out) {
  struct ringcast_object_needs needs;
  if (!needs_of(look, item, &needs)) return -1;
  if (needs.before > 0 || needs.items > 0) return 0;
  uint32_t parts;
  uint64_t first = rc_py_first_part(item, &parts);
  add_run(out, index, (uint64_t)index + 1);
  if (item->kind == RINGCAST_ITEM_OBJECT && parts > 0) {
    if (first <= index || first + parts > look->frame.count)
      return raise_damaged(look, "parts in disorder");
    add_run(out, first, first + parts);
  }
  if (needs.leaves > 0 && !add_pickle(look, out)) return -1;
  return 1;
}

static int find_in_whole(const struct look *look, PyObject *key, PyObject **out) {
  PyObject *dict = whole_dict(look);
  if (!dict) return -1;
  PyObject *value = Py_XNewRef(PyDict_GetItemWithError(dict, key));
  Py_DECREF(dict);
  if (!value && PyErr_Occurred()) return -1;
  if (!value) return 0;
  if (out) *out = value;
  else Py_DECREF(value);
  return 1;
}

/* As find; also gives the value in `*out`, unless NULL. */
static int find_entry(struct look *look, PyObject *key, PyObject **out) {
  struct rc_py_selection selection = {.count = 0};
  struct ringcast_item item;
  uint32_t index;
  int found = find(look, key, &index, &item);
  if (found <= 0 || !out) return found;
  int selected = select_item(look, index, &item, &selection);
  if (selected < 0) return -1;
  if (selected == 0) return find_in_whole(look, key, out);
  PyObject *dict = read_by(look, &selection);
  if (!dict) return -1;
  /* Take the only item, whatever its key: the ring may have changed meanwhile. */
  Py_ssize_t position = 0;
  PyObject *other, *value = NULL;
  if (PyDict_Check(dict)) PyDict_Next(dict, &position, &other, &value);
  *out = Py_XNewRef(value);
  Py_DECREF(dict);
  if (!value) return raise_damaged(look, "it changes while it is read");
  return 1;
}

static int look_for(const struct rc_py_inspector *looking, PyObject *key, PyObject **out) {
  struct look look = {.how = looking};
  int opened = open_dict(&look);
  if (opened < 0) return -1;
  if (opened == 0) return find_in_whole(&look, key, out);
  return find_entry(&look, key, out);
}

PyObject *rc_py_inspect_item(const struct rc_py_inspector *looking, PyObject *key) {
  PyObject *value = NULL;
  if (!PyUnicode_Check(key)) {
    return PyErr_Format(PyExc_TypeError, "the keys of a frame are str, not %.100s",
                        Py_TYPE(key)->tp_name);
  }
  if (look_for(looking, key, &value) == 0) PyErr_SetObject(PyExc_KeyError, key);
  return value;
}

PyObject *rc_py_inspect_contains(const struct rc_py_inspector *looking, PyObject *key) {
  if (!PyUnicode_Check(key)) Py_RETURN_FALSE;
  int found = look_for(looking, key, NULL);
  if (found < 0) return NULL;
  return PyBool_FromLong(found);
}

/* ---- Hashes ---------------------------------------------------------------------------------- */

/* None: no hash. */
static PyObject *hash_of(const struct ringcast_item *item) {
  bool has = item->flags & (RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3);
  if (!has) Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(item->hash);
}

/* The search through a nested value's tokens, with state of the frame so far: */
struct walk {
  struct look *look;
  PyObject *marked;    /* for each mark: the tensor's hash, or None */
  uint64_t next;       /* parts from here on have not been used */
  PyObject *found;     /* the hashes of the nested value */
  bool any, is_marked; /* a hash was found; the next token is marked */
};

static bool walk_add(struct walk *walk, PyObject *hash) {
  bool ok = hash && PyList_Append(walk->found, hash) == 0;
  walk->any = walk->any || hash != Py_None;
  return ok;
}

static bool walk_entry(struct walk *walk, uint64_t index) {
  struct ringcast_item item;
  if (!get_entry(walk->look, (uint32_t)index, &item)) return false;
  if (item.kind != RINGCAST_ITEM_TENSOR) return true;
  PyObject *hash = hash_of(&item);
  bool ok = walk_add(walk, hash);
  if (ok && walk->is_marked) {
    ok = PyList_SetItem(walk->marked, PyList_GET_SIZE(walk->marked) - 1, Py_NewRef(hash)) == 0;
  }
  Py_XDECREF(hash);
  return ok;
}

/* A repeated container's hashes were added at its first occurrence. */
static bool walk_back(struct walk *walk, uint64_t back) {
  Py_ssize_t marks = PyList_GET_SIZE(walk->marked);
  if (back >= (uint64_t)marks) return damaged(walk->look, "a value that was not there before");
  PyObject *hash = PyList_GET_ITEM(walk->marked, marks - 1 - (Py_ssize_t)back);
  return hash == Py_None || walk_add(walk, hash);
}

static bool walk_token(struct walk *walk, const struct ringcast_token *token, uint64_t *part) {
  bool ok = true;
  switch (token->tag) {
  case RINGCAST_TAG_CLASS:
  case RINGCAST_TAG_SHAPE: return true; /* no value: a mark is of the next one */
  case RINGCAST_TAG_MARK:
    walk->is_marked = PyList_Append(walk->marked, Py_None) == 0;
    return walk->is_marked;
  case RINGCAST_TAG_PART:
    ok = walk_entry(walk, *part);
    ++*part;
    break;
  case RINGCAST_TAG_PART_BYTEARRAY:
  case RINGCAST_TAG_PART_ARRAY: ++*part; break;
  case RINGCAST_TAG_ITEM: ok = walk_entry(walk, token->count); break;
  case RINGCAST_TAG_BACK: ok = walk_back(walk, token->count); break;
  default: break;
  }
  walk->is_marked = false;
  return ok;
}

/* Whether the item's parts follow those used so far. False: raised. */
static bool take_parts(struct walk *walk, const struct ringcast_item *item, uint64_t needed) {
  uint32_t parts;
  uint64_t first = rc_py_first_part(item, &parts);
  if (needed != parts) return damaged(walk->look, "parts in disorder");
  if (parts == 0) return true;
  if (first < walk->next || first + parts > walk->look->frame.count)
    return damaged(walk->look, "parts in disorder");
  walk->next = first + parts;
  return true;
}

/* Searches the item's stream, of the bytes `stream`, into walk->found. */
static bool walk_stream(struct walk *walk, const struct ringcast_item *item, PyObject *stream) {
  struct ringcast_token token;
  uint32_t parts;
  uint64_t part = rc_py_first_part(item, &parts);
  const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(stream);
  struct ringcast_object object = {.at = data, .end = data + item->bytes};
  walk->any = false;
  walk->is_marked = false;
  for (uint64_t i = 0; ringcast_token_read(&object, &token) == 0; i++) {
    if (!rc_py_heed_signals(i) || !walk_token(walk, &token, &part)) return false;
  }
  return true;
}

/* The hashes of a nested value's tensors, or None without any hash. */
static PyObject *hashes_of_nested(struct walk *walk, const struct ringcast_item *item) {
  struct ringcast_object_needs needs;
  PyObject *stream = stream_of(walk->look, item, &needs);
  if (!stream) return NULL;
  walk->found = NULL;
  if (take_parts(walk, item, needs.parts)) walk->found = PyList_New(0);
  if (walk->found && !walk_stream(walk, item, stream)) Py_CLEAR(walk->found);
  Py_DECREF(stream);
  if (!walk->found || (walk->any && needs.values > 1)) return walk->found;
  PyObject *hash = Py_NewRef(Py_None);
  if (walk->any) Py_SETREF(hash, Py_NewRef(PyList_GET_ITEM(walk->found, 0))); /* it is a tensor */
  Py_DECREF(walk->found);
  return hash;
}

static PyObject *hashes_of_item(struct walk *walk, const struct ringcast_item *item) {
  if (item->kind == RINGCAST_ITEM_TENSOR) return hash_of(item);
  if (item->kind == RINGCAST_ITEM_OBJECT) return hashes_of_nested(walk, item);
  Py_RETURN_NONE;
}

/* 1, 0, -1: raised. */
static int has_hashes(const struct look *look) {
  struct ringcast_item item;
  for (uint32_t i = 0; i < look->frame.count; i++) {
    if (!rc_py_heed_signals(i) || !get_entry(look, i, &item)) return -1;
    if (item.flags & (RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3)) return 1;
  }
  return 0;
}

/* Adds the item's hashes to the dict, if it has any. */
static bool add_hashes(struct look *look, struct walk *walk, const struct ringcast_item *item,
                       PyObject *dict) {
  PyObject *hashes = hashes_of_item(walk, item), *key = NULL;
  bool ok = hashes;
  if (hashes && hashes != Py_None) {
    key = make_key(look, item);
    ok = key && PyDict_SetItem(dict, key, hashes) == 0;
  }
  Py_XDECREF(key);
  Py_XDECREF(hashes);
  return ok;
}

static PyObject *hashes_of_dict(struct look *look, struct walk *walk) {
  struct ringcast_item item;
  int has = has_hashes(look);
  if (has < 0) return NULL;
  PyObject *dict = PyDict_New();
  bool ok = dict;
  for (uint32_t i = 0; ok && has && i < look->frame.count; i++) {
    ok = rc_py_heed_signals(i) && get_entry(look, i, &item);
    if (!ok || !item.key) break;
    ok = add_hashes(look, walk, &item, dict);
  }
  if (!ok) Py_CLEAR(dict);
  return dict;
}

static PyObject *hashes_of_value(struct look *look, struct walk *walk) {
  struct ringcast_item item;
  int has = has_hashes(look);
  if (has < 0) return NULL;
  if (has == 0) Py_RETURN_NONE;
  if (!get_entry(look, 0, &item)) return NULL;
  return hashes_of_item(walk, &item);
}

PyObject *rc_py_inspect_hashes(const struct rc_py_inspector *looking, PyObject *Py_UNUSED(key)) {
  struct look look = {.how = looking};
  const struct ringcast_frame *frame = looking->frame;
  if (frame->kind == RINGCAST_KIND_BYTES) Py_RETURN_NONE;
  if (frame->kind != RINGCAST_KIND_TENSORS ||
      ringcast_frame_open(&look.frame, frame->data, frame->bytes) < 0) {
    damaged(&look, "its header makes no sense");
    return NULL;
  }
  struct walk walk = {.look = &look, .marked = PyList_New(0)};
  if (!walk.marked) return NULL;
  PyObject *hashes;
  if (look.frame.root == RINGCAST_ROOT_DICT) {
    hashes = hashes_of_dict(&look, &walk);
  } else {
    hashes = hashes_of_value(&look, &walk);
  }
  Py_DECREF(walk.marked);
  return hashes;
}
