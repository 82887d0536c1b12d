/* SPDX-License-Identifier: Apache-2.0 */
/* Text that is not ASCII, or that occurs again; and a cache of short strs. */
#include "python/extension/codec/token_read.h"

/* The beginning, middle and end of a text: all of it, if it has no more than 24 bytes. */
struct words {
  uint64_t first, middle, last;
};

static inline struct words words_of(const uint8_t *text, size_t bytes) {
  struct words out = {0};
  uint32_t halves[2];
  if (bytes >= 8) {
    memcpy(&out.first, text, 8);
    memcpy(&out.middle, text + (bytes - 8) / 2, 8);
    memcpy(&out.last, text + bytes - 8, 8);
  } else if (bytes >= 4) {
    memcpy(&halves[0], text, 4);
    memcpy(&halves[1], text + bytes - 4, 4);
    memcpy(&out.first, halves, 8);
  } else {
    out.first =
        (uint64_t)text[0] | (uint64_t)text[bytes / 2] << 8 | (uint64_t)text[bytes - 1] << 16;
  }
  return out;
}

static inline bool is_text(PyObject *known, const uint8_t *text, size_t bytes,
                           const struct words *words) {
  if (!known || (size_t)PyUnicode_GET_LENGTH(known) != bytes) return false;
  const uint8_t *data = PyUnicode_1BYTE_DATA(known);
  struct words has = words_of(data, bytes);
  return has.first == words->first && has.middle == words->middle && has.last == words->last &&
         (bytes <= sizeof has || memcmp(data, text, bytes) == 0);
}

/* Request ids and dict keys repeat from frame to frame: a cached str needs no allocation, and has
 * its hash already. NULL, with nothing raised: the caller makes the str. */
PyObject *rc_py_key(struct rc_py_state *state, const void *text, size_t bytes) {
  if (bytes == 0 || bytes > RC_PY_KEY_MOST) return NULL;
  struct words words = words_of(text, bytes);
  uint64_t hash = ((words.first ^ bytes) * UINT64_C(0x9e3779b97f4a7c15) ^ words.middle) *
                      UINT64_C(0xff51afd7ed558ccd) ^
                  words.last;
  PyObject **place = &state->keys[hash * UINT64_C(0x9e3779b97f4a7c15) >> (64 - RC_PY_KEYS_BITS)];
  PyObject *known = *place;
  if (is_text(known, text, bytes, &words)) return rc_py_ref(known);
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

PyObject *rc_py_text(struct rc_py_token_reader *getting, const uint8_t *data, size_t bytes,
                     const char *errors) {
  PyObject *text = PyUnicode_DecodeUTF8((const char *)data, (Py_ssize_t)bytes, errors);
  return text ? text : stream_refused(getting, "its text is no UTF-8");
}

PyObject *rc_py_text_named(struct rc_py_token_reader *getting, const uint8_t *data, size_t bytes) {
  PyObject *text = rc_py_key(getting->state, data, bytes);
  if (!text) text = rc_py_text(getting, data, bytes, NULL);
  return text ? rc_py_text_note(getting, text) : NULL;
}
