/* SPDX-License-Identifier: Apache-2.0 */
/* Text that is not ASCII, or that occurs again; and a cache of short strs. */
#include "python/extension/codec/token_read.h"

/* Request ids and dict keys repeat from frame to frame: a cached str needs no allocation, and has its hash already.
 * NULL, with nothing raised: the caller makes the str. */
PyObject *rc_py_key(struct rc_py_state *state, const void *text, size_t bytes) {
  uint64_t first = 0, middle = 0, last = 0;
  if (bytes == 0 || bytes > RC_PY_KEY_MOST) return NULL;
  if (bytes >= 8) {
    memcpy(&first, text, 8);
    memcpy(&middle, (const uint8_t *)text + (bytes - 8) / 2, 8);
    memcpy(&last, (const uint8_t *)text + bytes - 8, 8);
  } else {
    memcpy(&first, text, bytes);
  }
  uint64_t hash = ((first ^ bytes) * UINT64_C(0x9e3779b97f4a7c15) ^ middle) * UINT64_C(0xff51afd7ed558ccd) ^ last;
  PyObject **place = &state->keys[hash * UINT64_C(0x9e3779b97f4a7c15) >> (64 - RC_PY_KEYS_BITS)];
  PyObject *known = *place;
  if (known && (size_t)PyUnicode_GET_LENGTH(known) == bytes && memcmp(PyUnicode_1BYTE_DATA(known), text, bytes) == 0) {
    return rc_py_ref(known);
  }
  if (!rc_py_is_ascii(text, bytes)) return NULL;
  PyObject *key = PyUnicode_New((Py_ssize_t)bytes, 127);
  if (!key) {
    PyErr_Clear();
    return NULL;
  }
  memcpy(PyUnicode_1BYTE_DATA(key), text, bytes);
  *place = rc_py_ref(key);
  Py_XDECREF(known);
  return key;
}

PyObject *rc_py_text(struct rc_py_token_reader *getting, const uint8_t *data, size_t bytes, const char *errors) {
  PyObject *text = PyUnicode_DecodeUTF8((const char *)data, (Py_ssize_t)bytes, errors);
  return text ? text : stream_refused(getting, "its text is no UTF-8");
}

PyObject *rc_py_text_named(struct rc_py_token_reader *getting, const uint8_t *data, size_t bytes) {
  PyObject *text = rc_py_key(getting->state, data, bytes);
  if (!text) text = rc_py_text(getting, data, bytes, NULL);
  return text ? rc_py_text_note(getting, text) : NULL;
}
