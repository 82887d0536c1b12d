/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays and tensors over memory of the ring: for views, and in retained frames.
 *
 * Each array keeps a `hold`, which keeps the memory mapped, and nothing else of the Reader's: a
 * closed Reader leaves the ring at once, and the last holder unmaps the memory. A torch tensor may
 * die in any thread, with the GIL or without. So an atomic counts the users of a hold, which is no
 * Python object.
 *
 * A retained frame (ringcast_reader_retain) needs no Reader: the hold is then of the frame alone,
 * which ends with its arrays.
 */
#include "python/extension/tensors.h"

#include <stdatomic.h>

/* ---- The hold of mapped memory --------------------------------------------------------------- */

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

/* The last drop (acquire) pairs with all earlier drops (release): other users' accesses to the
 * memory, and the Reader's use of the handle, happen before the end. */
void rc_py_hold_drop(void *dropped) {
  struct rc_py_hold *hold = dropped;
  if (atomic_fetch_sub_explicit(&hold->count, 1, memory_order_acq_rel) > 1) return;
  ringcast_reader_close(hold->reader);
  ringcast_retained_release(hold->kept);
  PyMem_RawFree(hold);
}

bool rc_py_hold_is_shared(struct rc_py_hold *hold) {
  return atomic_load_explicit(&hold->count, memory_order_relaxed) >
         1; /* relaxed: the caller has made all references */
}

/* ---- Arrays over a hold ---------------------------------------------------------------------- */

/* The base of a NumPy array: read-only unless the frame is retained. */
static PyObject *lend(struct rc_py_state *state, struct rc_py_hold *hold, const void *data,
                      uint64_t bytes) {
  return rc_py_memory_new(state, (struct rc_py_buffer){.data = (void *)data,
                                                       .bytes = bytes,
                                                       .is_read_only = !hold->kept,
                                                       .give = rc_py_hold_drop,
                                                       .owner = hold_take(hold)});
}

PyObject *rc_py_buffer_over(struct rc_py_state *state, const void *data, uint64_t bytes,
                            struct rc_py_hold *hold) {
  return hold->kept && bytes < RC_PY_RETAIN_LEAST ? NULL : lend(state, hold, data, bytes);
}

static PyObject *array_over(struct rc_py_state *state, const struct ringcast_item *item,
                            uint64_t bytes, struct rc_py_hold *hold) {
  PyObject *lent = lend(state, hold, item->data, bytes);
  PyObject *array = lent ? rc_py_numpy_over(state, item, lent) : NULL;
  Py_XDECREF(lent);
  return array;
}

PyObject *rc_py_array_over(struct rc_py_state *state, const struct ringcast_item *item,
                           uint64_t bytes, struct rc_py_hold *hold, bool to_torch) {
  if (to_torch && bytes == 0) return NULL; /* nothing to look at */
  if (hold->kept && bytes < RC_PY_RETAIN_LEAST) return NULL;
  return to_torch ? rc_py_torch_over(state, item, rc_py_hold_drop, hold_take(hold))
                  : array_over(state, item, bytes, hold);
}
