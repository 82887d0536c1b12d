/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash of each sent tensor: of the bytes in C order, as in the frame.
 *
 * The bytes are copied to the frame piece by piece, and each piece of the copy is hashed while in
 * the cache; a tensor in another order is copied first. So the hash is true of the sent bytes even
 * if another thread changes the tensor meanwhile. XXH3 needs no GIL. SHA-256 is hashlib's, which
 * uses the CPU's instructions and releases the GIL while hashing. Its pieces are larger, as each
 * piece takes the GIL once more, and other threads may delay that.
 */
#include "python/extension/codec/hash.h"
#include "python/extension/tensors.h"

#ifdef RINGCAST_HAVE_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>
#if XXH_VERSION_NUMBER < 800 /* XXH3 was not final */
#undef RINGCAST_HAVE_XXHASH
#endif
#endif

enum { SHA_PIECE = 1 << 20, XXH_PIECE = 1 << 18 };

static bool raise_unknown(PyObject *object) {
  PyObject *type = PyExc_TypeError;
  if (PyUnicode_Check(object)) type = PyExc_ValueError;
  PyErr_Format(type, "hash must be \"sha256\", \"xxh3\" or None, not %R", object);
  return false;
}

bool rc_py_hash_argument(struct rc_py_state *state, PyObject *object, uint32_t *out) {
  *out = 0;
  if (!object || object == Py_None) return true;
  if (PyUnicode_Check(object)) {
    if (PyUnicode_CompareWithASCIIString(object, "sha256") == 0) *out = RINGCAST_ITEM_SHA256;
    if (PyUnicode_CompareWithASCIIString(object, "xxh3") == 0) *out = RINGCAST_ITEM_XXH3;
  }
  if (!*out) return raise_unknown(object);
#ifndef RINGCAST_HAVE_XXHASH
  if (*out == RINGCAST_ITEM_XXH3) {
    rc_py_raise_text(state, ENOTSUP,
                     "this build of ringcast has no \"xxh3\": it was built without xxHash's "
                     "header. Install that (Debian: libxxhash-dev; 0.8 or later) and ringcast "
                     "anew, or use hash=\"sha256\"");
    return false;
  }
#endif
  if (*out != RINGCAST_ITEM_SHA256) return true;
  return rc_py_import_once(&state->sha256, "hashlib", "sha256");
}

PyObject *rc_py_hash_of_packed(void) {
  PyErr_SetString(PyExc_ValueError,
                  "a PackedFrame is sent with the hashes that it was packed with: pass hash= to "
                  "ringcast.pack() of the object");
  return NULL;
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* The rest of a tensor. */
struct pieces {
  const uint8_t *from;
  uint8_t *to; /* equal to `from`: in place already */
  uint64_t most, left;
};

/* Copies a tensor that is not in C order. 0, -errno. */
static int pieces_begin(struct pieces *pieces, const struct ringcast_tensor *tensor, uint64_t bytes,
                        uint64_t most, void *to) {
  bool is_plain = bytes == 0 || !tensor->strides ||
                  rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides);
  *pieces = (struct pieces){.from = to, .to = to, .most = most, .left = bytes};
  if (is_plain) {
    pieces->from = tensor->data;
    return 0;
  }
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_tensor_pack(tensor, to);
  Py_END_ALLOW_THREADS
  return rc;
}

/* Copies the next piece to `*out`. Returns the size of the piece, 0 at the end. */
static size_t pieces_next(struct pieces *pieces, const uint8_t **out) {
  size_t bytes = pieces->most;
  if (pieces->left < bytes) bytes = pieces->left;
  *out = pieces->to;
  if (bytes == 0) return 0;
  if (pieces->to != pieces->from) memcpy(pieces->to, pieces->from, bytes);
  pieces->from += bytes;
  pieces->to += bytes;
  pieces->left -= bytes;
  return bytes;
}

/* ---- SHA-256 --------------------------------------------------------------------------------- */

/* Releases the view at the end: code that got hold of it (by the collector, or a replaced hashlib)
 * can't use the ring's memory afterwards. */
static bool update(struct rc_py_state *state, PyObject *hasher, const uint8_t *data, size_t bytes) {
  PyObject *view = PyMemoryView_FromMemory((char *)data, (Py_ssize_t)bytes, PyBUF_READ);
  if (!view) return false;
  PyObject *none = PyObject_CallMethodOneArg(hasher, state->names.update, view), *released = NULL;
  if (none) released = PyObject_CallMethodNoArgs(view, state->names.release);
  Py_XDECREF(released);
  Py_XDECREF(none);
  Py_DECREF(view);
  return released;
}

static bool take_digest(struct rc_py_state *state, PyObject *hasher, uint64_t *out) {
  PyObject *digest = PyObject_CallMethodNoArgs(hasher, state->names.digest);
  bool ok = digest && PyBytes_Check(digest) && PyBytes_GET_SIZE(digest) >= (Py_ssize_t)sizeof *out;
  if (ok) {
    memcpy(out, PyBytes_AS_STRING(digest), sizeof *out);
    *out = __builtin_bswap64(*out); /* from big-endian: hosts are little-endian */
  } else if (digest) {
    PyErr_SetString(PyExc_TypeError, "hashlib.sha256 gives no digest");
  }
  Py_XDECREF(digest);
  return ok;
}

static int pack_sha256(struct rc_py_state *state, struct pieces *pieces, uint64_t *out) {
  const uint8_t *piece;
  PyObject *hasher = PyObject_CallNoArgs(state->sha256);
  if (!hasher) return RC_PY_RAISED;
  bool ok = true;
  size_t bytes = pieces_next(pieces, &piece);
  while (ok && bytes > 0) {
    ok = update(state, hasher, piece, bytes);
    bytes = pieces_next(pieces, &piece);
  }
  ok = ok && take_digest(state, hasher, out);
  Py_DECREF(hasher);
  if (!ok) return RC_PY_RAISED;
  return 0;
}

/* ---- XXH3 ------------------------------------------------------------------------------------ */

#ifdef RINGCAST_HAVE_XXHASH
static int pack_xxh3(struct pieces *pieces, uint64_t *out) {
  const uint8_t *piece;
  size_t bytes = pieces_next(pieces, &piece);
  if (pieces->left == 0) { /* a single piece: the one-shot function is faster for small data */
    *out = XXH3_64bits(piece, bytes);
    return 0;
  }
  XXH3_state_t hasher;
  XXH3_64bits_reset(&hasher);
  while (bytes > 0) {
    XXH3_64bits_update(&hasher, piece, bytes);
    bytes = pieces_next(pieces, &piece);
  }
  *out = XXH3_64bits_digest(&hasher);
  return 0;
}
#else
static int pack_xxh3(struct pieces *pieces, uint64_t *out) {
  (void)pieces;
  (void)out;
  return -ENOTSUP; /* the argument was refused */
}
#endif

int rc_py_hash_pack(struct rc_py_state *state, const struct ringcast_tensor *tensor, uint64_t bytes,
                    void *to, uint32_t which, uint64_t *out) {
  struct pieces pieces;
  uint64_t most = XXH_PIECE;
  if (which == RINGCAST_ITEM_SHA256) most = SHA_PIECE;
  int rc = pieces_begin(&pieces, tensor, bytes, most, to);
  if (rc < 0) return rc;
  if (which == RINGCAST_ITEM_SHA256) return pack_sha256(state, &pieces, out);
  if (bytes <= RC_PY_COPY_WITH_GIL) return pack_xxh3(&pieces, out);
  Py_BEGIN_ALLOW_THREADS
  rc = pack_xxh3(&pieces, out);
  Py_END_ALLOW_THREADS
  return rc;
}
