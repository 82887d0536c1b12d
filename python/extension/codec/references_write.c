/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repeats in a frame: a value that occurs again is written as the number of its mark, a dict's keys
 * as the number of their shape.
 *
 * Only a value with more references than its container's own can occur twice, so only such a value
 * gets a note. The frame holds a reference to each noted value: otherwise code that runs meanwhile
 * could drop the value, and a new value could get the same address. Notes form a list in the order
 * of the stream, with a hash table by address.
 *
 * Keys are compared by address. A shape is defined at the second dict with the same number of keys
 * and the same first key: a frame with a single dict of a kind pays for no shape.
 */
#include "python/extension/codec/references.h"

enum {
  NOTES_LEAST = 32,
  NOTES_KEPT = 4096,   /* for the next frame */
  SHAPE_TABLE = 64,    /* a power of 2 */
  SHAPE_PROBES = 4,    /* a shape's possible places in the table */
  SHAPE_KEYS_MOST = 64 /* a dict of more keys has no shape */
};

/* A value, and its number: of the mark, or of the item's entry. */
struct note {
  PyObject *value;
  uint32_t number;
  bool is_item;
};

/* Dicts met in stream `serial`. */
struct seen_shape {
  const PyObject *first; /* key; only compared */
  uint64_t serial;
  uint32_t count;
  uint32_t number; /* of the shape; NO_SHAPE: only one dict met, or unfit keys */
};
#define NO_SHAPE UINT32_MAX

struct rc_py_repeats {
  struct note *notes;
  size_t note_count, note_room;
  uint32_t *places; /* 2 * note_room: the place in `notes`, plus 1 */
  uint32_t marks;   /* of the frame */
  uint32_t shape_count;
  PyObject *shapes[RINGCAST_MAX_SHAPES]; /* tuples of keys */
  struct seen_shape table[SHAPE_TABLE];
};

/* ---- Values ---------------------------------------------------------------------------------- */

static bool is_on_the_way(const struct rc_py_step *step, PyObject *container) {
  for (; step; step = step->up) {
    if (step->container == container) return true;
  }
  return false;
}

static inline uint32_t *place_of(const struct rc_py_repeats *repeats, PyObject *value) {
  size_t mask = 2 * repeats->note_room - 1;
  size_t at = ((uintptr_t)value >> 4 ^ (uintptr_t)value >> 12) & mask;
  while (repeats->places[at] && repeats->notes[repeats->places[at] - 1].value != value)
    at = (at + 1) & mask;
  return &repeats->places[at];
}

static bool notes_grow(struct rc_py_repeats *repeats) {
  size_t room = NOTES_LEAST;
  if (repeats->note_room > 0) room = repeats->note_room * 2;
  struct note *notes = PyMem_Resize(repeats->notes, struct note, room);
  if (!notes) {
    PyErr_NoMemory();
    return false;
  }
  repeats->notes = notes;
  uint32_t *places = PyMem_Calloc(2 * room, sizeof *places);
  if (!places) {
    PyErr_NoMemory();
    return false;
  }
  PyMem_Free(repeats->places);
  repeats->places = places;
  repeats->note_room = room;
  for (size_t i = 0; i < repeats->note_count; i++)
    *place_of(repeats, notes[i].value) = (uint32_t)i + 1;
  return true;
}

/* Finds the note of the value; if there is none, adds a note with `number` and gives NULL. False:
 * raised. */
static bool look_up(struct rc_py_repeats *repeats, PyObject *value, bool is_item, uint32_t number,
                    const struct note **out) {
  if (repeats->note_count == repeats->note_room && !notes_grow(repeats)) return false;
  uint32_t *place = place_of(repeats, value);
  *out = NULL;
  if (*place) {
    *out = &repeats->notes[*place - 1];
    return true;
  }
  repeats->notes[repeats->note_count++] =
      (struct note){.value = Py_NewRef(value), .number = number, .is_item = is_item};
  *place = (uint32_t)repeats->note_count;
  return true;
}

static bool repeats_new(struct rc_py_encoding *encoding) {
  if (encoding->repeats) return true;
  encoding->repeats = PyMem_Calloc(1, sizeof *encoding->repeats);
  if (!encoding->repeats) PyErr_NoMemory();
  return encoding->repeats;
}

bool rc_py_repeats_item(struct rc_py_encoding *encoding, PyObject *value, size_t index) {
  const struct note *known;
  return repeats_new(encoding) && look_up(encoding->repeats, value, true, (uint32_t)index, &known);
}

bool rc_py_is_repeated(const struct rc_py_encoding *encoding, PyObject *value) {
  const struct rc_py_repeats *repeats = encoding->repeats;
  return repeats && repeats->note_count > 0 && *place_of(repeats, value);
}

enum rc_py_put rc_py_mark_shared(struct rc_py_encoding *encoding, PyObject *value,
                                 const struct rc_py_step *up) {
  struct rc_py_repeats *repeats = encoding->repeats;
  const struct note *known;
  if (value == encoding->object) {
    bool is_within = up && (up->up || up->container);
    if (is_within) return RC_PY_PUT_CYCLE;
    return RC_PY_PUT_DONE;
  }
  if (!look_up(repeats, value, false, repeats->marks, &known)) return RC_PY_PUT_RAISED;
  if (!known) {
    repeats->marks++;
    return rc_py_put_tag(encoding, RINGCAST_TAG_MARK);
  }
  enum rc_py_put put;
  if (known->is_item) {
    put = rc_py_put_head(encoding, RINGCAST_TAG_ITEM, known->number);
  } else {
    if (is_on_the_way(up, value)) return RC_PY_PUT_CYCLE;
    put = rc_py_put_head(encoding, RINGCAST_TAG_BACK, repeats->marks - 1 - known->number);
  }
  if (put == RC_PY_PUT_DONE) return RC_PY_PUT_BACK;
  return put;
}

enum rc_py_put rc_py_unmark(struct rc_py_encoding *encoding, PyObject *value) {
  struct rc_py_repeats *repeats = encoding->repeats;
  if (repeats->note_count == 0 || repeats->notes[repeats->note_count - 1].value != value)
    return RC_PY_PUT_LEAF;
  *place_of(repeats, value) = 0; /* the last note, so no probe sequence continues behind it */
  repeats->note_count--;
  repeats->marks--;
  encoding->stream_bytes--;
  Py_DECREF(value);
  return RC_PY_PUT_LEAF;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* Whether they are all its keys but the first, which ends at `position`. */
static bool has_keys(PyObject *dict, Py_ssize_t position, PyObject *keys) {
  PyObject *key, *value;
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(keys); i++) {
    if (!PyDict_Next(dict, &position, &key, &value) || key != PyTuple_GET_ITEM(keys, i))
      return false;
  }
  return true;
}

/* NULL, with nothing raised: a key is unfit for a shape. */
static PyObject *keys_of(PyObject *dict) {
  PyObject *key, *value, *keys = PyTuple_New(PyDict_GET_SIZE(dict));
  Py_ssize_t position = 0;
  for (Py_ssize_t i = 0; keys && PyDict_Next(dict, &position, &key, &value); i++) {
    if (PyUnicode_CheckExact(key) && PyUnicode_GET_LENGTH(key) <= INLINE_MOST / 4) {
      PyTuple_SET_ITEM(keys, i, Py_NewRef(key));
    } else {
      Py_CLEAR(keys);
    }
  }
  return keys;
}

/* As rc_py_shape_of. */
static enum rc_py_put define(struct rc_py_repeats *repeats, PyObject *dict,
                             struct seen_shape *seen) {
  if (repeats->shape_count == RINGCAST_MAX_SHAPES) return RC_PY_PUT_LEAF;
  PyObject *keys = keys_of(dict);
  if (!keys && PyErr_Occurred()) return RC_PY_PUT_RAISED;
  if (!keys) return RC_PY_PUT_LEAF;
  seen->number = repeats->shape_count;
  repeats->shapes[repeats->shape_count++] = keys;
  return RC_PY_PUT_DONE;
}

enum rc_py_put rc_py_shape_of(struct rc_py_encoding *encoding, PyObject *dict,
                              struct rc_py_shape_known *out) {
  struct rc_py_repeats *repeats = encoding->repeats;
  PyObject *first, *value;
  Py_ssize_t position = 0;
  uint64_t count = (uint64_t)PyDict_GET_SIZE(dict);
  if (count > SHAPE_KEYS_MOST || !PyDict_Next(dict, &position, &first, &value))
    return RC_PY_PUT_LEAF;
  if (!PyUnicode_CheckExact(first)) return RC_PY_PUT_LEAF;
  size_t at = (uintptr_t)first >> 4 ^ (uintptr_t)first >> 10 ^ count;
  for (size_t i = 0; i < SHAPE_PROBES; i++) {
    struct seen_shape *seen = &repeats->table[(at + i) & (SHAPE_TABLE - 1)];
    if (seen->serial != encoding->serial) {
      *seen = (struct seen_shape){
          .first = first, .serial = encoding->serial, .count = (uint32_t)count, .number = NO_SHAPE};
      return RC_PY_PUT_LEAF;
    }
    if (seen->first != first || seen->count != count) continue;
    out->is_new = seen->number == NO_SHAPE;
    if (out->is_new) {
      enum rc_py_put put = define(repeats, dict, seen);
      if (put != RC_PY_PUT_DONE) return put;
    }
    out->number = seen->number;
    out->keys = repeats->shapes[seen->number];
    if (out->is_new || has_keys(dict, position, out->keys)) return RC_PY_PUT_DONE;
  }
  return RC_PY_PUT_LEAF;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void drop_shapes(struct rc_py_repeats *repeats) {
  while (repeats->shape_count > 0) Py_DECREF(repeats->shapes[--repeats->shape_count]);
}

bool rc_py_repeats_begin(struct rc_py_encoding *encoding) {
  if (!repeats_new(encoding)) return false;
  drop_shapes(encoding->repeats);
  return true;
}

void rc_py_repeats_clear(struct rc_py_repeats *repeats) {
  drop_shapes(repeats);
  while (repeats->note_count > 0) { /* backwards, so that place_of never meets a gap */
    PyObject *value = repeats->notes[repeats->note_count - 1].value;
    *place_of(repeats, value) = 0;
    repeats->note_count--;
    Py_DECREF(value);
  }
  repeats->marks = 0;
  if (repeats->note_room > NOTES_KEPT) {
    PyMem_Free(repeats->notes);
    PyMem_Free(repeats->places);
    repeats->notes = NULL;
    repeats->places = NULL;
    repeats->note_room = 0;
  }
}

void rc_py_repeats_free(struct rc_py_repeats *repeats) {
  if (!repeats) return;
  rc_py_repeats_clear(repeats);
  PyMem_Free(repeats->notes);
  PyMem_Free(repeats->places);
  PyMem_Free(repeats);
}
