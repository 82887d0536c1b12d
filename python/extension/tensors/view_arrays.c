/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays and tensors over memory of the ring: for views, and in retained frames.
 *
 * Each array keeps a `hold`, which keeps the memory mapped, and nothing else of the Reader's: a closed Reader leaves
 * the ring at once, and the last holder unmaps the memory. A torch tensor may die in any thread, with the GIL or
 * without. So an atomic counts the users of a hold, which is no Python object.
 *
 * A retained frame (ringcast_reader_retain) needs no Reader: the hold is then of the frame alone, which ends with its
 * arrays.
 */
#include "python/extension/tensors/view_arrays.h"

#include <stdatomic.h>

/* ---- The hold of mapped memory ----------------------------------------------------------------------------------- */

struct rc_py_hold {
  _Atomic uint64_t count;
  ringcast_reader *reader; /* NULL: of ... */
  ringcast_retained *kept; /* ... or this */
};

struct rc_py_hold *rc_py_hold_new(ringcast_reader *reader) {
  struct rc_py_hold *hold = PyMem_RawMalloc(sizeof *hold);
  if (!hold) return NULL;
  atomic_init(&hold->count, 1);
  hold->reader = reader;
  hold->kept = NULL;
  return hold;
}

struct rc_py_hold *rc_py_hold_retained(ringcast_reader *reader, struct ringcast_frame *frame) {
  struct rc_py_hold *hold = rc_py_hold_new(NULL);
  void *data;
  if (hold && ringcast_reader_retain(reader, frame, &hold->kept, &data) != 0) {
    PyMem_RawFree(hold);
    return NULL;
  }
  if (hold) frame->data = data;
  return hold;
}

/* Relaxed: the caller, or the Reader, has a reference already. */
static struct rc_py_hold *hold_take(struct rc_py_hold *hold) {
  atomic_fetch_add_explicit(&hold->count, 1, memory_order_relaxed);
  return hold;
}

/* The last drop (acquire) pairs with all earlier drops (release): other users' accesses to the memory, and the Reader's
 * use of the handle, happen before the end. */
void rc_py_hold_drop(struct rc_py_hold *hold) {
  if (atomic_fetch_sub_explicit(&hold->count, 1, memory_order_acq_rel) > 1) return;
  ringcast_reader_close(hold->reader);
  ringcast_retained_release(hold->kept);
  PyMem_RawFree(hold);
}

bool rc_py_hold_is_shared(struct rc_py_hold *hold) {
  return atomic_load_explicit(&hold->count, memory_order_relaxed) > 1; /* relaxed: the caller has made all references */
}

/* ---- Arrays over a hold ------------------------------------------------------------------------------------------ */

/* The base of a NumPy array: a buffer, read-only unless the frame is retained. */
struct lent {
  PyObject_HEAD struct rc_py_hold *hold;
  const void *data;
  Py_ssize_t bytes;
};

static PyObject *lent_new(struct rc_py_state *state, struct rc_py_hold *hold, const void *data, uint64_t bytes) {
  struct lent *self = (struct lent *)state->lent_type->tp_alloc(state->lent_type, 0);
  if (!self) return NULL;
  self->hold = hold_take(hold);
  self->data = data;
  self->bytes = (Py_ssize_t)bytes;
  return (PyObject *)self;
}

static void lent_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  rc_py_hold_drop(((struct lent *)object)->hold);
  type->tp_free(object);
  Py_DECREF(type);
}

static int lent_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  struct lent *self = (struct lent *)object;
  return PyBuffer_FillInfo(view, object, (void *)self->data, self->bytes, !self->hold->kept, flags);
}

static Py_ssize_t lent_length(PyObject *object) { return ((struct lent *)object)->bytes; }

static PyType_Slot lent_slots[] = {
    {Py_tp_doc, (void *)"Memory of a ring under an array, mapped as long as the array lives."},
    {Py_tp_dealloc, lent_dealloc},
    {Py_bf_getbuffer, lent_get_buffer},
    {Py_sq_length, lent_length},
    {0, NULL},
};
PyType_Spec rc_py_lent_spec = {"ringcast._ringcast.Lent", sizeof(struct lent), 0, Py_TPFLAGS_DEFAULT, lent_slots};

PyObject *rc_py_buffer_over(struct rc_py_state *state, const void *data, uint64_t bytes, struct rc_py_hold *hold) {
  return hold->kept && bytes < RC_PY_RETAIN_LEAST ? NULL : lent_new(state, hold, data, bytes);
}

static void give_hold(void *hold) { rc_py_hold_drop(hold); }

static PyObject *array_over(struct rc_py_state *state, const struct ringcast_item *item, uint64_t bytes,
                            struct rc_py_hold *hold) {
  PyObject *lent = lent_new(state, hold, item->data, bytes);
  PyObject *array = lent ? rc_py_numpy_over(state, item, lent) : NULL;
  Py_XDECREF(lent);
  return array;
}

PyObject *rc_py_array_over(struct rc_py_state *state, const struct ringcast_item *item, uint64_t bytes,
                           struct rc_py_hold *hold, bool to_torch) {
  if (to_torch && bytes == 0) return NULL; /* nothing to look at */
  if (hold->kept && bytes < RC_PY_RETAIN_LEAST) return NULL;
  return to_torch ? rc_py_torch_over(state, item, give_hold, hold_take(hold)) : array_over(state, item, bytes, hold);
}
