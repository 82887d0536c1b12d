/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that name another value: one that was there before, an item of the frame's dict, the keys
 * of a dict, a part, a leaf, a text. */
#ifndef RC_EXTENSION_REFERENCES_H
#define RC_EXTENSION_REFERENCES_H

#include "python/extension/codec/tokens.h"

/* ---- Written --------------------------------------------------------------------------------- */

/* Notes a value outside the streams: the root's item `index`. False: raised. */
bool rc_py_repeats_item(struct rc_py_encoding *encoding, PyObject *value, size_t index);
bool rc_py_is_repeated(const struct rc_py_encoding *encoding, PyObject *value);
/* For a new stream. False: raised. */
bool rc_py_repeats_begin(struct rc_py_encoding *encoding);
/* Drops all notes of the frame, and keeps the memory. */
void rc_py_repeats_clear(struct rc_py_repeats *repeats);
void rc_py_repeats_free(struct rc_py_repeats *repeats);

/* For a value with more references than RC_PY_OWN_REFERENCES. BACK: the value is known, and a BACK
 * or ITEM was written. CYCLE: the value is a container around its own occurrence. DONE: a MARK was
 * written, and the value's token must follow; if no token follows, rc_py_unmark removes the MARK.
 * `up` NULL: not a container. */
enum rc_py_put rc_py_mark_shared(struct rc_py_encoding *encoding, PyObject *value,
                                 const struct rc_py_step *up);
/* Removes the MARK that rc_py_mark wrote for the value, if any. Nothing may have been written
 * since. Always LEAF. */
enum rc_py_put rc_py_unmark(struct rc_py_encoding *encoding, PyObject *value);

/* The references of the container and of put_inner. */
enum { RC_PY_OWN_REFERENCES = 2 };
static inline enum rc_py_put rc_py_mark(struct rc_py_encoding *encoding, PyObject *value,
                                        const struct rc_py_step *up) {
  if (Py_REFCNT(value) <= RC_PY_OWN_REFERENCES) return RC_PY_PUT_DONE;
  return rc_py_mark_shared(encoding, value, up);
}

/* Finds the shape of a dict, and writes nothing. LEAF: no shape, for example because the keys are
 * new. */
struct rc_py_shape_known {
  PyObject *keys; /* a borrowed tuple */
  uint32_t number;
  bool is_new; /* not yet defined in the stream */
};
enum rc_py_put rc_py_shape_of(struct rc_py_encoding *encoding, PyObject *dict,
                              struct rc_py_shape_known *out);

/* ---- Read ------------------------------------------------------------------------------------ */

void rc_py_marked_clear(struct rc_py_marked *marked);

/* Starts a scope at the depth, and returns the outer one, for the end. */
static inline struct rc_py_scope rc_py_scope_begin(struct rc_py_marked *marked, int depth) {
  struct rc_py_scope outer = marked->scope;
  marked->scope = (struct rc_py_scope){.deepest = (uint64_t)depth};
  return outer;
}

static inline uint64_t rc_py_sum(uint64_t a, uint64_t b) {
  if (a > UINT64_MAX - b) return UINT64_MAX;
  return a + b;
}

static inline void rc_py_scope_end(struct rc_py_marked *marked, const struct rc_py_scope *outer) {
  marked->scope.named = rc_py_sum(marked->scope.named, outer->named);
  if (marked->scope.deepest < outer->deepest) marked->scope.deepest = outer->deepest;
}

/* The marked value, or the item, once more. */
PyObject *rc_py_get_back(struct rc_py_token_reader *reader, uint64_t back, int depth);
PyObject *rc_py_get_item(struct rc_py_token_reader *reader, uint64_t index);
/* The next part; borrowed, and the same as a value, or as a bytearray. */
PyObject *rc_py_next_part(struct rc_py_token_reader *reader);
PyObject *rc_py_get_part(struct rc_py_token_reader *reader, const struct ringcast_token *token);
PyObject *rc_py_get_leaf(struct rc_py_token_reader *reader, uint64_t index);
/* Numbers a str, and returns a new reference to it. If there is no memory, it is consumed. */
PyObject *rc_py_text_note(struct rc_py_token_reader *reader, PyObject *text);
/* Reserves the place for the marked value, and starts a scope: the mark's number, or -1: raised. */
Py_ssize_t rc_py_mark_begin(struct rc_py_token_reader *reader, int depth,
                            struct rc_py_scope *outer);
void rc_py_mark_end(struct rc_py_token_reader *reader, Py_ssize_t number, PyObject *value,
                    int depth, const struct rc_py_scope *outer);
/* Whether a container or a kind's state, of the tokens from `from`, is complete in the tokens: a
 * copy of what stands elsewhere would let a frame of n bytes make n * n. False: raised. */
bool rc_py_is_in_place(struct rc_py_token_reader *reader, PyObject *container);
bool rc_py_state_is_in_place(struct rc_py_token_reader *reader, uint8_t kind, PyObject *plain,
                             const uint8_t *from);
/* Whether there may be a container at the depth, which is RC_PY_DEPTH_UNSEEN or more. False:
 * raised. */
bool rc_py_may_go_deep(struct rc_py_token_reader *reader, int depth);
/* Whether what the scope has read since the depth is no deeper than a value without BACKs can be.
 * False: raised. */
bool rc_py_is_shallow(struct rc_py_token_reader *reader, int depth);
/* Whether the scope's value, a key, is hashed in bounded time and stack. False: raised. */
bool rc_py_key_is_light(struct rc_py_token_reader *reader, int depth);

/* Whether the scope's value may be hashed. A type outside C may have a hash in Python, a tuple
 * hashes its members, and only str and bytes keep their hash. False: raised. */
static inline bool rc_py_may_hash(struct rc_py_token_reader *reader, PyObject *key, int depth) {
  if (PyUnicode_CheckExact(key) || PyBytes_CheckExact(key)) return true;
  bool is_plain = !PyType_HasFeature(Py_TYPE(key), Py_TPFLAGS_HEAPTYPE) &&
                  !PyTuple_CheckExact(key) && !PyFrozenSet_CheckExact(key) && !PySlice_Check(key);
  if (!is_plain) reader->state->ran_code++;
  return reader->marked->scope.named == 0 || rc_py_key_is_light(reader, depth);
}

#endif
