/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking into a frame: the entries, as ringcast/_looking.py reads them to find keys, a single item, or the hashes.
 * decode.c decodes the selected entries as it would a frame with nothing else in it.
 */
#include "python/extension/codec/copy.h"
#include "python/extension/codec/inspect.h"

static bool get_entry(const struct rc_py_inspector *how, const struct ringcast_frame_reader *frame, uint32_t index,
                      struct ringcast_item *out) {
  if (ringcast_frame_item(frame, index, out) == 0) return true;
  rc_py_raise_damaged(how->state, "an entry points outside it");
  return false;
}

/* From a copy: the ring may change during the read. None: no key. */
static PyObject *make_key(const struct rc_py_inspector *how, const struct ringcast_item *item) {
  if (!item->key) return rc_py_ref(Py_None);
  PyObject *copy = PyBytes_FromStringAndSize(item->key, (Py_ssize_t)item->key_bytes);
  if (!copy) return NULL;
  const char *text = PyBytes_AS_STRING(copy);
  PyObject *key = rc_py_key(how->state, text, item->key_bytes);
  if (!key && !PyErr_Occurred()) key = PyUnicode_DecodeUTF8(text, PyBytes_GET_SIZE(copy), NULL);
  Py_DECREF(copy);
  if (!key) rc_py_protocol_from_current(how->state, "its text is no UTF-8");
  return key;
}

static PyObject *make_entry(const struct rc_py_inspector *how, const struct ringcast_item *item) {
  bool has_hash = item->flags & (RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3);
  uint32_t parts = 0, first = item->kind == RINGCAST_ITEM_OBJECT ? rc_py_first_part(item, &parts) : 0;
  PyObject *hash = has_hash ? PyLong_FromUnsignedLongLong(item->hash) : rc_py_ref(Py_None);
  PyObject *key = hash ? make_key(how, item) : NULL;
  if (key) return Py_BuildValue("(NiNII)", key, (int)item->kind, hash, (unsigned)first, (unsigned)parts);
  Py_XDECREF(hash);
  return NULL;
}

PyObject *rc_py_inspect_entries(const struct rc_py_inspector *how, PyObject *Py_UNUSED(argument)) {
  struct ringcast_frame_reader frame;
  struct ringcast_item item;
  if (how->frame->kind == RINGCAST_KIND_BYTES) Py_RETURN_NONE;
  if (how->frame->kind != RINGCAST_KIND_TENSORS) Py_RETURN_FALSE;
  if (ringcast_frame_open(&frame, how->frame->data, how->frame->bytes) < 0) Py_RETURN_FALSE;
  PyObject *entries = PyList_New(0);
  uint64_t taken = 0; /* bytes turned into keys so far */
  for (uint32_t i = 0; entries && i < frame.count; i++) {
    bool ok = get_entry(how, &frame, i, &item);
    if (ok) taken += item.key_bytes;
    if (ok && taken > frame.bytes) {
      rc_py_raise_damaged(how->state, "its entries share their bytes");
      ok = false;
    }
    PyObject *entry = ok ? make_entry(how, &item) : NULL;
    if (!entry || PyList_Append(entries, entry) < 0) Py_CLEAR(entries);
    Py_XDECREF(entry);
  }
  return entries ? Py_BuildValue("(ON)", frame.root == RINGCAST_ROOT_DICT ? Py_True : Py_False, entries) : NULL;
}

/* Whether _looking.py wants the token; `*is_marked`: the value of a MARK comes. */
static bool is_wanted(const struct ringcast_token *token, bool *is_marked) {
  bool was_marked = *is_marked;
  switch (token->tag) {
  case RINGCAST_TAG_CLASS:
  case RINGCAST_TAG_SHAPE: return false;
  case RINGCAST_TAG_MARK: return *is_marked = true;
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY:
  case RINGCAST_TAG_PART_ARRAY:
  case RINGCAST_TAG_ITEM:
  case RINGCAST_TAG_BACK: *is_marked = false; return true;
  default: *is_marked = false; return was_marked;
  }
}

static PyObject *list_tokens(const void *stream, size_t bytes) {
  struct ringcast_object object = {.at = stream, .end = (const uint8_t *)stream + bytes};
  struct ringcast_token token;
  bool is_marked = false;
  PyObject *list = PyList_New(0);
  while (list && ringcast_token_read(&object, &token) == 0) {
    if (!is_wanted(&token, &is_marked)) continue;
    PyObject *pair = Py_BuildValue("(iK)", (int)token.tag, (unsigned long long)token.count);
    if (!pair || PyList_Append(list, pair) < 0) Py_CLEAR(list);
    Py_XDECREF(pair);
  }
  return list;
}

PyObject *rc_py_inspect_tokens(const struct rc_py_inspector *how, PyObject *number) {
  struct ringcast_frame_reader frame;
  struct ringcast_item item;
  struct ringcast_object_needs needs;
  uint64_t index;
  if (!rc_py_integer("entry", number, 0, UINT32_MAX, &index)) return NULL;
  if (ringcast_frame_open(&frame, how->frame->data, how->frame->bytes) < 0) {
    return rc_py_raise_damaged(how->state, "its header makes no sense");
  }
  if (!get_entry(how, &frame, (uint32_t)index, &item)) return NULL;
  size_t bytes = item.kind == RINGCAST_ITEM_OBJECT ? item.bytes : 0;
  PyObject *copy = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes), *tokens = NULL; /* it is read more than once */
  if (!copy) return NULL;
  const char *stream = PyBytes_AS_STRING(copy);
  rc_py_copy(false, PyBytes_AS_STRING(copy), item.data, bytes);
  if (ringcast_object_check(stream, bytes, &needs) == 0) {
    tokens = list_tokens(stream, bytes);
  } else {
    rc_py_raise_damaged(how->state, "a nested value is cut off, or of a kind that this version does not know");
  }
  Py_DECREF(copy);
  if (!tokens) return NULL;
  return Py_BuildValue("(KKIKN)", (unsigned long long)(needs.before + needs.items), (unsigned long long)needs.leaves,
                       (unsigned)needs.parts, (unsigned long long)needs.values, tokens);
}

PyObject *rc_py_inspect_read(const struct rc_py_inspector *how, PyObject *runs) {
  struct rc_py_selection selection = {.count = 0};
  const struct rc_py_decode_options options = {.reader = how->reader,
                                               .holder = how->holder,
                                               .classes = how->classes,
                                               .allow_pickle = how->allow_pickle,
                                               .selection = PyObject_IsTrue(runs) > 0 ? &selection : NULL};
  uint32_t tag;
  if (!PyTuple_Check(runs)) return PyErr_Format(PyExc_TypeError, "the runs are a tuple");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs) && i < 3; i++) {
    uint32_t *first = &selection.runs[i].first, *end = &selection.runs[i].end;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(runs, i), "II", first, end)) return NULL;
    selection.count++;
  }
  return rc_py_decode(how->state, how->frame, &options, &tag);
}
