/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors and arrays in a nested value: each is a part. An array of strings, times or structs is a
 * KIND, whose part has the bytes of the elements. */
#include "python/extension/codec/kinds.h"
#include "python/extension/codec/token_write.h"

static enum rc_py_token_writer put_part(struct rc_py_encoding *encoding, PyObject *value,
                                        struct rc_py_source *source, uint64_t bytes) {
  struct rc_py_part *part = rc_py_part_add(encoding, NULL, value);
  if (!part) {
    rc_py_source_clear(source);
    return RC_PY_PUT_RAISED;
  }
  part->kind = RINGCAST_ITEM_TENSOR;
  part->source = *source;
  part->bytes = bytes;
  return put_tag(encoding, RINGCAST_TAG_PART);
}

/* An array of strings, times, structs: its dtype, and its elements as bytes. */
static enum rc_py_token_writer put_ndarray(struct rc_py_encoding *encoding, PyObject *array,
                                           struct rc_py_step *step) {
  struct rc_py_source source = {.keep = NULL};
  uint64_t bytes;
  if (step->depth > RINGCAST_MAX_DEPTH - RC_PY_STATE_DEPTH) return RC_PY_PUT_LEAF;
  PyObject *text = rc_py_numpy_describe_bytes(encoding->state, array, &source);
  if (!text) {
    rc_py_source_clear(&source);
    return PyErr_Occurred() ? RC_PY_PUT_RAISED : RC_PY_PUT_LEAF;
  }
  bool is_plain = (PyObject *)Py_TYPE(array) == encoding->state->numpy.ndarray;
  int number = is_plain ? RINGCAST_STANDARD_NDARRAY : RINGCAST_STANDARD_RECARRAY;
  enum rc_py_token_writer put = put_tag_of(encoding, RINGCAST_TAG_KIND, number);
  if (put == RC_PY_PUT_DONE) put = put_head(encoding, RINGCAST_TAG_TUPLE, 2);
  if (put == RC_PY_PUT_DONE) put = rc_py_token_write_text(encoding, text);
  Py_DECREF(text);
  if (put != RC_PY_PUT_DONE || !rc_py_source_finish(encoding, &source, step, &bytes)) {
    rc_py_source_clear(&source);
    return RC_PY_PUT_RAISED;
  }
  return put_part(encoding, array, &source, bytes);
}

enum rc_py_token_writer rc_py_token_write_tensor(struct rc_py_encoding *encoding, PyObject *value,
                                                 struct rc_py_step *step) {
  struct rc_py_source source = {.keep = NULL};
  uint64_t bytes;
  enum rc_py_token_writer put = mark(encoding, value, step);
  if (put != RC_PY_PUT_DONE) return put;
  int described = rc_py_part_tensor(encoding, value, step, &source, &bytes);
  if (described != 0)
    return described < 0 ? RC_PY_PUT_RAISED : put_part(encoding, value, &source, bytes);
  put = put_ndarray(encoding, value, step);
  return put == RC_PY_PUT_LEAF ? rc_py_unmark(encoding, value) : put;
}
