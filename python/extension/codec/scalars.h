/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, text and bytes, and torch's names (torch.dtype, torch.device, torch.Size), as tokens. */
#ifndef RC_EXTENSION_SCALARS_H
#define RC_EXTENSION_SCALARS_H

#include "python/extension/codec/tokens.h"

/* ---- Written --------------------------------------------------------------------------------- */

/* The value of an exact int. False: more than 64 bits. */
static inline bool rc_py_int_value(PyObject *value, int64_t *out) {
#if PY_VERSION_HEX >= 0x030c0000
  if (PyUnstable_Long_IsCompact((PyLongObject *)value)) {
    *out = PyUnstable_Long_CompactValue((PyLongObject *)value);
    return true;
  }
#elif PY_VERSION_HEX >= 0x030b0000
  Py_ssize_t digits = Py_SIZE(value); /* negative: so is the int */
  if (digits >= -1 && digits <= 1) {
    *out = digits * (int64_t)((PyLongObject *)value)->ob_digit[0];
    return true;
  }
#endif
  int overflow;
  *out = PyLong_AsLongLongAndOverflow(value, &overflow);
  return !overflow;
}

enum rc_py_put rc_py_put_int(struct rc_py_encoding *encoding, PyObject *value);
enum rc_py_put rc_py_put_float(struct rc_py_encoding *encoding, PyObject *value);
enum rc_py_put rc_py_put_complex(struct rc_py_encoding *encoding, PyObject *value);
/* Long text and bytes become a part. */
enum rc_py_put rc_py_put_text(struct rc_py_encoding *encoding, PyObject *text);
enum rc_py_put rc_py_put_bytes(struct rc_py_encoding *encoding, PyObject *bytes);
enum rc_py_put rc_py_put_bytearray(struct rc_py_encoding *encoding, PyObject *value);
/* Three or more items of a list or tuple. LEAF: the items are not numbers of one kind, and nothing
 * was written. */
enum rc_py_put rc_py_put_packed(struct rc_py_encoding *encoding, uint8_t tag,
                                PyObject *const *items, size_t count);
/* A torch.dtype, torch.device or torch.Size. LEAF: none of the three. */
enum rc_py_put rc_py_put_torch_name(struct rc_py_encoding *encoding, PyObject *value);

/* ---- Read ------------------------------------------------------------------------------------ */

/* A short ASCII str that is likely to repeat: the cached object, or a new one. NULL, with nothing
 * raised: too long or not ASCII; make the str by other means. */
PyObject *rc_py_key(struct rc_py_state *state, const void *text, size_t bytes);

/* A str of UTF-8, or, with errors "surrogatepass", of WTF-8; and one that AGAIN may refer to. NULL:
 * raised. */
PyObject *rc_py_text(struct rc_py_token_reader *reader, const uint8_t *data, size_t bytes,
                     const char *errors);
PyObject *rc_py_text_named(struct rc_py_token_reader *reader, const uint8_t *data, size_t bytes);

static inline bool rc_py_is_ascii(const uint8_t *data, size_t bytes) {
  uint64_t all = 0, word;
  const uint8_t *end = data + bytes;
  if (bytes >= 8) { /* the last word may overlap the one before */
    for (; end - data > 8; data += 8) {
      memcpy(&word, data, 8);
      all |= word;
    }
    memcpy(&word, end - 8, 8);
    return !((all | word) & UINT64_C(0x8080808080808080));
  }
  for (; data < end; data++) all |= *data;
  return !(all & 0x80);
}

static inline PyObject *rc_py_get_float(const uint8_t *data) {
  double value;
  memcpy(&value, data, sizeof value);
  return PyFloat_FromDouble(value);
}

PyObject *rc_py_get_bigint(struct rc_py_token_reader *reader, const struct ringcast_token *token);
PyObject *rc_py_get_complex(const struct ringcast_token *token);
/* A NumPy scalar. */
PyObject *rc_py_get_scalar(struct rc_py_token_reader *reader, const struct ringcast_token *token);
PyObject *rc_py_get_packed(const struct ringcast_token *token);
PyObject *rc_py_get_torch_dtype(struct rc_py_token_reader *reader,
                                const struct ringcast_token *token);
PyObject *rc_py_get_torch_device(struct rc_py_token_reader *reader,
                                 const struct ringcast_token *token);
PyObject *rc_py_get_torch_size(struct rc_py_token_reader *reader,
                               const struct ringcast_token *token);

#endif
