/* SPDX-License-Identifier: Apache-2.0 */
/* PackedFrame: a frame in private memory, made once and sent on several rings. */
#include "python/extension/handles/packed.h"

#include "python/extension/codec/decode.h"
#include "python/extension/codec/encode.h"
#include "python/extension/codec/hash.h"
#include "python/extension/codec/inspect.h"
#include "python/extension/errors.h"
#include "python/extension/handles/reader.h"

#include "python/docstrings.h"

#include <structmember.h>

/* A frame starts PHASE bytes into a line, which puts the tensors on lines. */
enum { LINE = 64, PHASE = 16 };

static bool make_room(struct rc_py_packed *self, size_t bytes) {
  void *start;
  self->block = rc_py_block_take(bytes + PHASE);
  if (self->block) {
    start = rc_py_block_data(self->block);
  } else {
    self->memory = PyMem_RawMalloc(bytes + LINE + PHASE);
    start = self->memory;
  }
  if (!start) {
    PyErr_NoMemory();
    return false;
  }
  self->data = (uint8_t *)(((uintptr_t)start + LINE - 1) & ~(uintptr_t)(LINE - 1)) + PHASE;
  return true;
}

static bool fill(struct rc_py_packed *self, struct rc_py_encoding *encoding) {
  uint64_t bytes = ringcast_plan_bytes(&encoding->plan);
  if (bytes > PTRDIFF_MAX / 2) {
    rc_py_raise_text(encoding->state, EMSGSIZE, "the value has more bytes than fit in any ring");
    return false;
  }
  if (!make_room(self, bytes)) return false;
  const struct ringcast_span span = {.data = self->data, .bytes = bytes};
  if (encoding->on_device) {
    int rc = rc_py_encoding_write_device(encoding, NULL, &span, 0, NULL, &self->bytes);
    if (rc < 0) rc_py_raise(encoding->state, rc);
    return rc == 0;
  }
  int rc = rc_py_encoding_write(encoding, false, &span, 0, &self->bytes);
  if (rc == 0 || rc == RC_PY_RAISED) return rc == 0;
  rc_py_raise_text(encoding->state, -rc,
                   "the value does not fit the frame that was planned for it (%s)", strerror(-rc));
  return false;
}

PyObject *rc_py_packed_refuse(struct rc_py_state *state, const struct rc_py_packed *packed) {
  const struct ringcast_frame frame = {
      .data = packed->data, .bytes = packed->bytes, .kind = RINGCAST_KIND_TENSORS};
  const struct rc_py_decode_options options = {.classes = &state->unpack_classes,
                                               .allow_pickle = false};
  uint32_t tag;
  PyObject *object = rc_py_decode(state, &frame, &options, &tag); /* stops at the pickle */
  Py_XDECREF(object);
  return NULL;
}

static PyObject *repack(struct rc_py_state *state, PyObject *object, bool allow_pickle) {
  const struct rc_py_packed *packed = (struct rc_py_packed *)object;
  if (packed->pickled && !allow_pickle) return rc_py_packed_refuse(state, packed);
  return Py_NewRef(object);
}

/* `values` as pack()'s arguments. */
static PyObject *pack(struct rc_py_state *state, PyObject *const *values, int32_t sends_from) {
  struct rc_py_encoding encoding;
  bool allow_pickle;
  uint32_t hash;
  if (!rc_py_allow_pickle(state, values[1], &allow_pickle)) return NULL;
  if (!rc_py_hash_argument(state, values[2], &hash)) return NULL;
  if (Py_TYPE(values[0]) == state->packed_type) {
    if (hash) return rc_py_hash_of_packed();
    return repack(state, values[0], allow_pickle);
  }
  if (!rc_py_encoding_measure(&encoding, state, values[0], allow_pickle, sends_from, false)) {
    return NULL;
  }
  encoding.hash = hash;
  struct rc_py_packed *self =
      (struct rc_py_packed *)state->packed_type->tp_alloc(state->packed_type, 0);
  if (self && !fill(self, &encoding)) Py_CLEAR(self);
  if (self) self->pickled = encoding.pickled;
  rc_py_encoding_clear(&encoding);
  return (PyObject *)self;
}

PyObject *rc_py_pack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                     PyObject *keywords) {
  static const char *const names[] = {"obj", "allow_pickle", "hash", NULL};
  PyObject *values[3] = {NULL};
  if (!rc_py_arguments("pack", names, 1, 1, args, count, keywords, values)) return NULL;
  return pack(PyModule_GetState(module), values, RC_PY_FROM_EACH);
}

PyObject *rc_py_pack_of_cpu(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "_pack_of_cpu() takes a value and a hash");
  PyObject *const values[] = {args[0], NULL, args[1]};
  return pack(PyModule_GetState(module), values, RC_PY_FROM_NONE);
}

/* The Frame behind the bytes of a memoryview or a NumPy array, directly or through each other.
 * NULL: no Frame. Each object keeps the next in the chain alive, so a borrowed reference is
 * enough. */
static PyObject *lender_of(struct rc_py_state *state, PyObject *object) {
  while (object && Py_TYPE(object) != state->frame_type) {
    if (PyMemoryView_Check(object)) object = PyMemoryView_GET_BASE(object);
    else object = rc_py_numpy_base(state, object);
  }
  return object;
}

/* `classes` and `are_given` as in rc_py_frame_unpack. */
static PyObject *unpack_buffer(struct rc_py_state *state, PyObject *buffer, PyObject *classes,
                               bool are_given) {
  uint32_t tag;
  Py_buffer view;
  if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) return NULL;
  const struct ringcast_frame frame = {
      .data = view.buf, .bytes = (size_t)view.len, .kind = RINGCAST_KIND_TENSORS};
  PyObject *cache = Py_XNewRef(classes);
  const struct rc_py_decode_options options = {.classes = cache ? &cache : &state->unpack_classes,
                                               .allow_pickle = !cache};
  PyObject *lender = lender_of(state, buffer);
  PyObject *object;
  if (lender) object = rc_py_frame_unpack(lender, &frame, classes, are_given);
  else object = rc_py_decode(state, &frame, &options, &tag);
  PyBuffer_Release(&view);
  Py_XDECREF(cache);
  return object;
}

PyObject *rc_py_unpack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords) {
  static const char *const names[] = {"frame", "allow_pickle", "classes", NULL};
  struct rc_py_state *state = PyModule_GetState(module);
  PyObject *values[3] = {NULL};
  PyObject *classes, *object;
  bool allow_pickle;
  if (!rc_py_arguments("unpack", names, 1, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_classes_allowed(state, values[1], values[2], &allow_pickle, &classes)) return NULL;
  bool are_given = values[2] && values[2] != Py_None;
  bool is_frame = Py_TYPE(values[0]) == state->frame_type;
  if (is_frame) object = rc_py_frame_unpack(values[0], NULL, classes, are_given);
  else object = unpack_buffer(state, values[0], classes, are_given);
  Py_XDECREF(classes);
  return object;
}

static void packed_dealloc(PyObject *object) {
  struct rc_py_packed *self = (struct rc_py_packed *)object;
  PyTypeObject *type = Py_TYPE(object);
  if (self->block) rc_py_block_give(self->block);
  PyMem_RawFree(self->memory);
  type->tp_free(object);
  Py_DECREF(type);
}

static int packed_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  struct rc_py_packed *self = (struct rc_py_packed *)object;
  return PyBuffer_FillInfo(view, object, self->data, (Py_ssize_t)self->bytes, 1, flags);
}

static Py_ssize_t packed_length(PyObject *object) {
  return (Py_ssize_t)((struct rc_py_packed *)object)->bytes;
}

/* No other process can write to the memory, and its maker is the caller: pickles in the frame may
 * be loaded, as by unpack(). */
static PyObject *look(PyObject *object, rc_py_inspect how, PyObject *key) {
  struct rc_py_packed *self = (struct rc_py_packed *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  const struct ringcast_frame frame = {
      .data = self->data, .bytes = self->bytes, .kind = RINGCAST_KIND_TENSORS};
  struct rc_py_inspector looking = {
      .state = state, .frame = &frame, .classes = &state->unpack_classes};
  PyObject *classes;
  if (!rc_py_classes_allowed(state, Py_None, Py_None, &looking.allow_pickle, &classes)) return NULL;
  if (classes) looking.classes = &classes;
  PyObject *found = how(&looking, key);
  Py_XDECREF(classes);
  return found;
}

static PyObject *packed_keys(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return look(object, rc_py_inspect_keys, NULL);
}

static PyObject *packed_item(PyObject *object, PyObject *key) {
  return look(object, rc_py_inspect_item, key);
}

static int packed_contains(PyObject *object, PyObject *key) {
  return rc_py_is_yes(look(object, rc_py_inspect_contains, key));
}

static PyObject *packed_hashes(PyObject *object, void *Py_UNUSED(closure)) {
  return look(object, rc_py_inspect_hashes, NULL);
}

static PyObject *packed_repr(PyObject *object) {
  return PyUnicode_FromFormat("<ringcast.PackedFrame of %zu bytes>",
                              ((struct rc_py_packed *)object)->bytes);
}

static PyObject *packed_reduce(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused)) {
  PyErr_SetString(PyExc_TypeError,
                  "a PackedFrame can't be pickled, nor be sent inside another value: send it by "
                  "itself, by Writer.send(packed), or what it was made of");
  return NULL;
}

static PyMethodDef packed_methods[] = {
    {"__reduce__", packed_reduce, METH_NOARGS, RC_DOC_PackedFrame___reduce__},
    {"keys", packed_keys, METH_NOARGS, RC_DOC_PackedFrame_keys},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef packed_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(struct rc_py_packed, bytes), READONLY,
     RC_DOC_PackedFrame_nbytes},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef packed_properties[] = {
    {"hashes", packed_hashes, NULL, RC_DOC_PackedFrame_hashes, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot packed_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_PackedFrame},
    {Py_tp_dealloc, packed_dealloc},
    {Py_tp_methods, packed_methods},
    {Py_tp_members, packed_members},
    {Py_bf_getbuffer, packed_get_buffer},
    {Py_sq_length, packed_length},
    {Py_tp_repr, packed_repr},
    {Py_tp_getset, packed_properties},
    {Py_mp_subscript, packed_item},
    {Py_sq_contains, packed_contains},
    {0, NULL},
};
PyType_Spec rc_py_packed_spec = {"ringcast.PackedFrame", sizeof(struct rc_py_packed), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 packed_slots};
