/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes with instances that travel by name and state. ringcast/_classes.py decides once for each
 * class; the functions here handle each instance. No __init__ and no __post_init__ runs: the state
 * is set as it was. (Unpickling does so too, except for a Struct, whose __post_init__ it runs on
 * values that have passed it before.)
 *
 * An instance has slots and a __dict__. If all slots are set, and the keys of the __dict__ are
 * those of a shape, the instance is sent by the shape: a class of the stream with all names, of
 * slots and keys (RINGCAST_CLASS_DATACLASS). Any other instance is sent by its slots, some of which
 * may be absent, and its dict (RINGCAST_CLASS_INSTANCE).
 */
#include "python/extension/codec/classes.h"
#include "python/extension/codec/kinds.h"

#include <structmember.h>

static const char capsule_name[] = "ringcast.class";

enum {
  /* Two for a class. A larger cache starts anew: classes made at run time are no leak. */
  MOST_KNOWN = 2048,
  SHAPES_MOST = 8,  /* shapes tried per class: instances of further shapes go with their dict */
  SHAPE_MOST = 200, /* names of a shape, as _classes.py has it */
};

static PyObject *cache_anew(PyObject *cache) {
  if (!cache || PyDict_CheckExact(cache)) return PyDict_New();
  return PyObject_CallMethod(cache, "anew", NULL);
}

PyObject *rc_py_class_cache(PyObject **cache) {
  if (!*cache || PyDict_GET_SIZE(*cache) >= MOST_KNOWN) {
    PyObject *anew = cache_anew(*cache);
    if (!anew) return NULL;
    Py_XSETREF(*cache, anew);
  }
  return Py_NewRef(*cache);
}

static void class_free(struct rc_py_class *class) {
  if (class->shapes) class_free(class->shapes);
  Py_XDECREF(class->type);
  Py_XDECREF(class->names);
  Py_XDECREF(class->text);
  PyMem_Free(class->offsets);
  PyMem_Free(class);
}

static void capsule_free(PyObject *capsule) {
  class_free(PyCapsule_GetPointer(capsule, capsule_name));
}

/* The offset of the field's slot in an instance; -1: no slot of its own. */
static Py_ssize_t slot_offset(PyTypeObject *type, PyObject *name) {
  PyObject *found = PyObject_GetAttr((PyObject *)type, name);
  if (!found) {
    PyErr_Clear();
    return -1;
  }
  Py_ssize_t offset = -1;
  if (Py_TYPE(found) == &PyMemberDescr_Type) {
    const PyMemberDescrObject *member = (PyMemberDescrObject *)found;
    bool is_ours =
        PyType_IsSubtype(type, PyDescr_TYPE(found)) && member->d_member->type == T_OBJECT_EX;
    if (is_ours) offset = member->d_member->offset;
  }
  Py_DECREF(found);
  return offset;
}

/* Finds the offsets of the names that are slots. False: a slot is missing, or raised. */
static bool class_layout(struct rc_py_class *class, PyObject *slots) {
  Py_ssize_t count = PyTuple_GET_SIZE(class->names);
  class->slots = PyTuple_GET_SIZE(slots);
  class->offsets = PyMem_New(Py_ssize_t, (size_t)count + 1);
  if (!class->offsets) PyErr_NoMemory();
  for (Py_ssize_t i = 0; class->offsets && i < count; i++) {
    PyObject *name = PyTuple_GET_ITEM(class->names, i);
    int is_slot = PySequence_Contains(slots, name);
    if (is_slot < 0) return false;
    class->offsets[i] = -1;
    if (is_slot) class->offsets[i] = slot_offset(class->type, name);
    if (is_slot && class->offsets[i] < 0) return false;
  }
  return class->offsets;
}

/* Whether object.__new__ may make an instance of the class. */
static bool is_made_plainly(const struct rc_py_class *class) {
  bool is_instance =
      class->kind == RINGCAST_CLASS_INSTANCE || class->kind == RINGCAST_CLASS_DATACLASS;
  return !is_instance || !PyType_HasFeature(class->type, Py_TPFLAGS_HEAPTYPE) ||
         class->type->tp_new == PyBaseObject_Type.tp_new;
}

static bool runs_code(const struct rc_py_class *class) {
  const char *meta = Py_TYPE(class->type)->tp_name;
  if (class->kind == RINGCAST_CLASS_ENUM)
    return strcmp(meta, "EnumType") != 0 && strcmp(meta, "EnumMeta") != 0;
  return class->type->tp_finalize || class->type->tp_del;
}

/* The class from _classes.py's description; NULL without an exception: a slot was not found. */
static struct rc_py_class *class_new(PyTypeObject *type, PyObject *description) {
  int kind, code = 0, bits = 0;
  PyObject *names, *text, *dtype, *slots;
  if (!PyArg_ParseTuple(description, "iO!SOO!", &kind, &PyTuple_Type, &names, &text, &dtype,
                        &PyTuple_Type, &slots)) {
    return NULL;
  }
  if (dtype != Py_None && !PyArg_ParseTuple(dtype, "ii", &code, &bits)) return NULL;
  struct rc_py_class *class = PyMem_Calloc(1, sizeof *class);
  if (!class) {
    PyErr_NoMemory();
    return NULL;
  }
  class->type = (PyTypeObject *)Py_NewRef((PyObject *)type);
  class->kind = (uint8_t)kind;
  class->runs_code = runs_code(class);
  class->names = Py_NewRef(names);
  class->text = Py_NewRef(text);
  class->dtype = (struct ringcast_dtype){(uint8_t)code, (uint8_t)bits, 1};
  class->has_post_init = PyObject_HasAttrString((PyObject *)type, "__post_init__");
  bool ok = is_made_plainly(class) && class_layout(class, slots);
  if (ok) return class;
  class_free(class);
  return NULL;
}

static PyObject *capsule_new(PyTypeObject *type, PyObject *description) {
  struct rc_py_class *class = class_new(type, description);
  if (!class) return NULL;
  PyObject *capsule = PyCapsule_New(class, capsule_name, capsule_free);
  if (!capsule) class_free(class);
  return capsule;
}

/* Borrowed from the cache. An existing entry stays, as callers may be using it: Python code has run
 * since the look-up, and may have met the same class. */
static PyObject *cache_add(PyObject *cache, PyObject *key, PyObject *value) {
  if (!value) return NULL;
  PyObject *kept = PyDict_SetDefault(cache, key, value);
  Py_DECREF(value);
  return kept;
}

/* ---- To send --------------------------------------------------------------------------------- */

static PyObject *describe_standard(struct rc_py_state *state, PyTypeObject *type) {
  int number = rc_py_standard_of(state, type);
  if (number <= 0) return NULL;
  PyObject *description = Py_BuildValue("(iOy(ii)O)", RC_PY_CLASS_STANDARD, state->no_arguments, "",
                                        number, 0, state->no_arguments);
  if (!description) return NULL;
  PyObject *capsule = capsule_new(type, description);
  Py_DECREF(description);
  return capsule;
}

/* A function of _classes.py. */
static bool has_function(PyObject **function, const char *name) {
  return rc_py_import_once(function, "ringcast._classes", name);
}

/* Adds the shape for a __dict__ with `keys`, or, for None, the shape of a dataclass's fields.
 * False: no such shape, or not found now. */
static bool shape_add(struct rc_py_state *state, struct rc_py_class *class, PyObject *keys) {
  if (!has_function(&state->class_shape, "shape")) return false;
  PyObject *description =
      PyObject_CallFunctionObjArgs(state->class_shape, (PyObject *)class->type, keys, NULL);
  struct rc_py_class *shape = NULL;
  if (description && description != Py_None) shape = class_new(class->type, description);
  Py_XDECREF(description);
  if (!shape) return false;
  shape->shapes = class->shapes;
  class->shapes = shape;
  return true;
}

/* Tries the shape of a dataclass's fields for an INSTANCE. False: raised. */
static bool has_first_shape(struct rc_py_state *state, PyObject *capsule) {
  struct rc_py_class *class = PyCapsule_GetPointer(capsule, capsule_name);
  if (class->kind != RINGCAST_CLASS_INSTANCE) return true;
  return shape_add(state, class, Py_None) || !PyErr_Occurred();
}

/* A capsule, or None. NULL without an exception: unknown for now; a later attempt may succeed, as
 * the stack was nearly used up, or the module only half imported. */
static PyObject *describe(struct rc_py_state *state, PyTypeObject *type) {
  PyObject *standard = describe_standard(state, type);
  if (standard || PyErr_Occurred()) return standard;
  if (!has_function(&state->describe_class, "describe")) return NULL;
  PyObject *description = PyObject_CallOneArg(state->describe_class, (PyObject *)type);
  PyObject *capsule = NULL;
  if (description && description != Py_None) capsule = capsule_new(type, description);
  Py_XDECREF(description);
  if (capsule && !has_first_shape(state, capsule)) Py_CLEAR(capsule);
  if (capsule) return capsule;
  if (!PyErr_Occurred()) Py_RETURN_NONE;
  rc_py_clear_passing();
  return NULL;
}

struct rc_py_class *rc_py_class_of(struct rc_py_state *state, PyObject *cache, PyTypeObject *type) {
  PyObject *known = PyDict_GetItemWithError(cache, (PyObject *)type);
  if (!known && !PyErr_Occurred())
    known = cache_add(cache, (PyObject *)type, describe(state, type));
  if (!known) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_TypeError))
      PyErr_Clear(); /* a metaclass without a hash */
    return NULL;
  }
  if (known == Py_None) return NULL;
  struct rc_py_class *class = PyCapsule_GetPointer(known, capsule_name);
  bool is_it = class && class->type == type; /* a metaclass may declare two classes equal */
  if (!is_it) return NULL;
  return class;
}

bool rc_py_fields_alloc(struct rc_py_fields *fields, Py_ssize_t count) {
  fields->values = fields->at_hand;
  if (count > RC_PY_FIELDS_AT_HAND) fields->values = PyMem_New(PyObject *, (size_t)count);
  if (!fields->values) PyErr_NoMemory();
  return fields->values;
}

/* Borrowed references to the values of the slots. False: a slot is not set. */
static bool take_slots(const struct rc_py_class *class, PyObject *instance, PyObject **out) {
  bool all = true;
  for (Py_ssize_t i = 0; i < class->slots; i++) {
    out[i] = *(PyObject **)((char *)instance + class->offsets[i]);
    all = all && out[i];
  }
  return all;
}

/* Most instances of a class have the same slots and __dict__ keys; a shape sends the names once.
 * False: the instance has other names, or in another order. */
static bool take_shape(const struct rc_py_class *shape, PyObject *instance, PyObject *dict,
                       PyObject **out) {
  Py_ssize_t count = PyTuple_GET_SIZE(shape->names), index = shape->slots, position = 0;
  PyObject *key;
  if (!take_slots(shape, instance, out)) return false;
  while (index < count && PyDict_Next(dict, &position, &key, &out[index])) {
    if (key != PyTuple_GET_ITEM(shape->names, index)) return false;
    index++;
  }
  return true;
}

/* Whether a shape for the __dict__ was added. */
static bool shape_of(struct rc_py_state *state, struct rc_py_class *class, PyObject *dict) {
  if (class->looked >= SHAPES_MOST) return false;
  PyObject *list = PyDict_Keys(dict), *keys = NULL;
  if (list) keys = PyList_AsTuple(list);
  bool added = keys && shape_add(state, class, keys);
  Py_XDECREF(list);
  Py_XDECREF(keys);
  if (PyErr_Occurred()) {
    rc_py_clear_passing();
  } else {
    class->looked++;
  }
  return added;
}

/* The matching shape, and the values. NULL: no match, or raised. */
static struct rc_py_class *find_shape(struct rc_py_state *state, struct rc_py_class *class,
                                      PyObject *instance, PyObject *dict,
                                      struct rc_py_fields *fields) {
  Py_ssize_t count = class->slots + PyDict_GET_SIZE(dict);
  if (count > SHAPE_MOST || !rc_py_fields_alloc(fields, count)) return NULL;
  do {
    for (struct rc_py_class *shape = class->shapes; shape; shape = shape->shapes) {
      if (PyTuple_GET_SIZE(shape->names) != count ||
          !take_shape(shape, instance, dict, fields->values))
        continue;
      for (Py_ssize_t i = 0; i < count; i++) Py_INCREF(fields->values[i]);
      return shape;
    }
  } while (shape_of(state, class, dict) && PyDict_GET_SIZE(dict) + class->slots == count);
  rc_py_fields_free(fields);
  return NULL;
}

/* Whether the __dict__ has a method for pickling, which pickle would take from the instance. */
static bool has_ways(PyObject *dict) {
  static const char *const ways[] = {"__reduce_ex__", "__reduce__",        "__getstate__",
                                     "__setstate__",  "__getnewargs_ex__", "__getnewargs__",
                                     "__class__"};
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) {
    if (!PyUnicode_Check(key) || PyUnicode_GET_LENGTH(key) < 9 ||
        PyUnicode_READ_CHAR(key, 1) != '_')
      continue;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
      if (PyUnicode_CompareWithASCIIString(key, ways[i]) == 0) return true;
    }
  }
  return false;
}

/* By the slots, and the __dict__ or None. NULL: raised. */
static struct rc_py_class *take_apart(struct rc_py_class *class, PyObject *instance, PyObject *dict,
                                      struct rc_py_fields *fields) {
  if (!rc_py_fields_alloc(fields, class->slots + 1)) return NULL;
  take_slots(class, instance, fields->values);
  for (Py_ssize_t i = 0; i < class->slots; i++) Py_XINCREF(fields->values[i]);
  fields->values[class->slots] = Py_XNewRef(dict);
  return class;
}

static struct rc_py_class *take_instance(struct rc_py_state *state, struct rc_py_class *class,
                                         PyObject *instance, struct rc_py_fields *fields) {
  bool has_dict = class->type->tp_dictoffset != 0;
  PyObject *dict;
  if (has_dict) {
    dict = PyObject_GenericGetDict(instance, NULL);
  } else {
    dict = PyDict_New();
  }
  struct rc_py_class *found = NULL;
  if (dict && PyDict_CheckExact(dict)) {
    found = find_shape(state, class, instance, dict, fields);
    if (!found && !PyErr_Occurred() && !has_ways(dict))
      found = take_apart(class, instance, has_dict ? dict : Py_None, fields);
  }
  Py_XDECREF(dict);
  return found;
}

/* Whether a Struct is its fields. Its own pickle leaves out the __dict__, which unpickling fills
 * only by __post_init__; a cached property has its value again when it is asked for. False: no, or
 * raised. */
static bool is_its_fields(struct rc_py_state *state, const struct rc_py_class *class,
                          PyObject *instance) {
  if (!class->has_post_init) return true;
  PyObject **dict = _PyObject_GetDictPtr(instance), *key;
  Py_ssize_t position = 0;
  if (!dict || !*dict || PyDict_GET_SIZE(*dict) == 0) return true;
  if (!rc_py_import_once(&state->cached_property, "functools", "cached_property")) return false;
  while (*dict && PyDict_Next(*dict, &position, &key, NULL)) {
    if (!PyUnicode_CheckExact(key)) return false;
    PyObject *found = _PyType_Lookup(class->type, key); /* runs no code */
    if (!found || (PyObject *)Py_TYPE(found) != state->cached_property) return false;
  }
  return true;
}

struct rc_py_class *rc_py_class_take(struct rc_py_state *state, struct rc_py_class *class,
                                     PyObject *instance, struct rc_py_fields *fields) {
  if (class->kind == RINGCAST_CLASS_INSTANCE) return take_instance(state, class, instance, fields);
  Py_ssize_t count = PyTuple_GET_SIZE(class->names);
  bool is_tuple = class->kind == RINGCAST_CLASS_NAMEDTUPLE;
  if (!is_tuple && !is_its_fields(state, class, instance)) return NULL;
  if ((is_tuple && PyTuple_GET_SIZE(instance) != count) || !rc_py_fields_alloc(fields, count))
    return NULL;
  if (is_tuple) {
    for (Py_ssize_t i = 0; i < count; i++) fields->values[i] = PyTuple_GET_ITEM(instance, i);
  } else if (!take_slots(class, instance, fields->values)) {
    rc_py_fields_free(fields);
    return NULL;
  }
  for (Py_ssize_t i = 0; i < count; i++) Py_INCREF(fields->values[i]);
  return class;
}

PyObject *rc_py_class_composite(struct rc_py_state *state, PyObject *member) {
  if (!has_function(&state->class_composite, "composite")) return NULL;
  PyObject *value = PyObject_CallOneArg(state->class_composite, member);
  if (!value) rc_py_clear_passing();
  if (value == Py_None) Py_CLEAR(value);
  return value;
}

/* ---- Received -------------------------------------------------------------------------------- */

/* From the class and its description, as _classes.find() gives them. */
static PyObject *capsule_of_pair(PyObject *pair, PyObject *text) {
  PyTypeObject *type;
  PyObject *description;
  if (!PyArg_ParseTuple(pair, "O!O!", &PyType_Type, &type, &PyTuple_Type, &description))
    return NULL;
  PyObject *capsule = capsule_new(type, description);
  if (!capsule) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "its class has lost its slots");
    return NULL;
  }
  struct rc_py_class *class = PyCapsule_GetPointer(capsule, capsule_name);
  Py_SETREF(class->text, Py_NewRef(text));
  return capsule;
}

static PyObject *find(struct rc_py_state *state, PyObject *cache, uint8_t kind, PyObject *key,
                      bool may_import) {
  if (!has_function(&state->find_class, "find")) return NULL;
  PyObject *text = PyBytes_FromStringAndSize(PyBytes_AS_STRING(key) + 1, PyBytes_GET_SIZE(key) - 1);
  PyObject *number = PyLong_FromLong(kind);
  PyObject *may = may_import ? Py_True : Py_False, *pair = NULL, *capsule = NULL;
  if (text && number)
    pair = PyObject_CallFunctionObjArgs(state->find_class, number, text, may, cache, NULL);
  if (pair) capsule = capsule_of_pair(pair, text);
  Py_XDECREF(pair);
  Py_XDECREF(text);
  Py_XDECREF(number);
  return capsule;
}

/* A number from the text's size, middle and end: the hash of a long text would cost more than all
 * else here. Classes may share a number, so the text decides. */
static PyObject *number_of(const uint8_t *text, size_t bytes) {
  uint64_t middle = 0, end = 0;
  if (bytes >= 8) {
    memcpy(&middle, text + (bytes - 8) / 2, 8);
    memcpy(&end, text + bytes - 8, 8);
  }
  return PyLong_FromUnsignedLongLong((middle * UINT64_C(0x9e3779b97f4a7c15) ^ end) + bytes);
}

/* The class that was found last under the number, if it is the one of the text. */
static struct rc_py_class *found_before(PyObject *cache, PyObject *number, uint8_t kind,
                                        const void *text, size_t bytes) {
  PyObject *known = PyDict_GetItemWithError(cache, number);
  if (!known) return NULL;
  struct rc_py_class *class = PyCapsule_GetPointer(known, capsule_name);
  bool is_it = class && class->kind == kind && (size_t)PyBytes_GET_SIZE(class->text) == bytes &&
               memcmp(PyBytes_AS_STRING(class->text), text, bytes) == 0;
  if (!is_it) return NULL;
  return class;
}

/* As rc_py_class_find. Both entries of the class stay, so either keeps the class alive. */
static PyObject *find_by_text(struct rc_py_state *state, PyObject *cache, uint8_t kind,
                              const void *text, size_t bytes, bool may_import) {
  PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes + 1);
  if (!key) return NULL;
  PyBytes_AS_STRING(key)[0] = (char)kind;
  memcpy(PyBytes_AS_STRING(key) + 1, text, bytes);
  PyObject *known = PyDict_GetItemWithError(cache, key);
  if (!known && !PyErr_Occurred())
    known = cache_add(cache, key, find(state, cache, kind, key, may_import));
  Py_DECREF(key);
  return known;
}

struct rc_py_class *rc_py_class_find(struct rc_py_state *state, PyObject *cache, uint8_t kind,
                                     const void *text, size_t bytes, bool may_import) {
  PyObject *number = number_of(text, bytes), *known = NULL;
  if (!number) return NULL;
  struct rc_py_class *class = found_before(cache, number, kind, text, bytes);
  if (!class && !PyErr_Occurred())
    known = find_by_text(state, cache, kind, text, bytes, may_import);
  if (known && PyDict_SetItem(cache, number, known) == 0)
    class = PyCapsule_GetPointer(known, capsule_name);
  Py_DECREF(number);
  return class;
}

bool rc_py_classes_check(struct rc_py_state *state, PyObject *cache, const void *stream,
                         size_t bytes) {
  struct ringcast_object object = {.at = stream, .end = (const uint8_t *)stream + bytes};
  struct ringcast_token token;
  while (ringcast_token_read(&object, &token) == 0) {
    if (token.tag != RINGCAST_TAG_CLASS) continue;
    if (rc_py_class_find(state, cache, token.kind, token.data, token.count, false)) continue;
    rc_py_protocol_from_current(state, "a class");
    return false;
  }
  return true;
}

/* As tuple.__new__(type, fields). tp_alloc is not enough: from Python 3.14 on a tuple caches its
 * hash, and zeroed memory means hash 0. */
static PyObject *make_namedtuple(const struct rc_py_class *class, PyObject **fields,
                                 Py_ssize_t count) {
  PyObject *plain = PyTuple_New(count);
  for (Py_ssize_t i = 0; i < count; i++) {
    if (plain) {
      PyTuple_SET_ITEM(plain, i, fields[i]);
    } else {
      Py_DECREF(fields[i]);
    }
  }
  if (!plain) return NULL;
  PyObject *arguments = PyTuple_Pack(1, plain);
  Py_DECREF(plain);
  if (!arguments) return NULL;
  PyObject *made = PyTuple_Type.tp_new(class->type, arguments, NULL);
  Py_DECREF(arguments);
  return made;
}

PyObject *rc_py_class_member(struct rc_py_state *state, const struct rc_py_class *class,
                             PyObject *value) {
  if (!has_function(&state->class_member, "member_of")) return NULL;
  state->ran_code++;
  PyObject *member =
      PyObject_CallFunctionObjArgs(state->class_member, (PyObject *)class->type, value, NULL);
  if (!member) rc_py_protocol_from_current(state, "a member by value");
  return member;
}

PyObject *rc_py_intern(struct rc_py_state *state, PyObject *name) {
  PyObject *found = Py_NewRef(name);
#if PY_VERSION_HEX >= 0x030c0000 && PY_VERSION_HEX < 0x030d0000
  size_t bytes = (size_t)PyUnicode_GET_LENGTH(name) * PyUnicode_KIND(name) + sizeof(PyASCIIObject);
  if (bytes > RC_PY_INTERNED_MOST - state->interned) return found;
  bool is_new = !PyUnicode_CHECK_INTERNED(name);
  PyUnicode_InternInPlace(&found);
  if (is_new && found == name) state->interned += bytes;
#else
  (void)state;
  PyUnicode_InternInPlace(&found);
#endif
  return found;
}

/* Sets the attributes as unpickling does: into the __dict__, under interned names. */
static bool set_attributes(struct rc_py_state *state, PyObject *instance, PyObject *attributes) {
  Py_ssize_t position = 0;
  PyObject *key, *value;
  if (attributes == Py_None) return true;
  if (!PyDict_Check(attributes) || Py_TYPE(instance)->tp_dictoffset == 0) {
    rc_py_raise_damaged(state, "an instance's attributes");
    return false;
  }
  PyObject *dict = PyObject_GenericGetDict(instance, NULL);
  bool ok = dict;
  while (ok && PyDict_Next(attributes, &position, &key, &value)) {
    Py_INCREF(key);
    Py_INCREF(value);
    if (PyUnicode_CheckExact(key)) Py_SETREF(key, rc_py_intern(state, key));
    ok = PyDict_SetItem(dict, key, value) == 0;
    Py_DECREF(key);
    Py_DECREF(value);
  }
  Py_XDECREF(dict);
  return ok;
}

/* By object.__new__, never by a __new__ that was added to the class later: the result could be any
 * object, without the slots. A Struct as msgspec makes one, before it sets the fields. */
static PyObject *make_empty(struct rc_py_state *state, const struct rc_py_class *class) {
  if (class->kind == RINGCAST_CLASS_STRUCT) return class->type->tp_alloc(class->type, 0);
  const PyTypeObject *maker = &PyBaseObject_Type;
  bool is_static = !PyType_HasFeature(class->type, Py_TPFLAGS_HEAPTYPE);
  if (is_static) maker = class->type;
  return maker->tp_new(class->type, state->no_arguments, NULL);
}

/* A Struct without a field that could be part of a circle is none of the collector's, as msgspec
 * has it. */
static void untrack(const struct rc_py_class *class, PyObject *made) {
  if (!PyObject_IS_GC(made)) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(class->names); i++) {
    PyObject *value = *(PyObject **)((char *)made + class->offsets[i]);
    if (PyObject_IS_GC(value) && (!PyTuple_CheckExact(value) || PyObject_GC_IsTracked(value)))
      return;
  }
  PyObject_GC_UnTrack(made);
}

static PyObject *make_instance(struct rc_py_state *state, const struct rc_py_class *class,
                               PyObject **fields, Py_ssize_t count) {
  PyObject *made = make_empty(state, class);
  bool ok = made;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (ok && class->offsets[i] >= 0) {
      PyObject **slot = (PyObject **)((char *)made + class->offsets[i]);
      Py_XSETREF(*slot, fields[i]);
      continue;
    }
    if (ok) ok = PyObject_GenericSetAttr(made, PyTuple_GET_ITEM(class->names, i), fields[i]) == 0;
    Py_XDECREF(fields[i]);
  }
  if (class->kind == RINGCAST_CLASS_INSTANCE) {
    ok = ok && set_attributes(state, made, fields[count]);
    Py_DECREF(fields[count]);
  }
  if (!ok) Py_CLEAR(made);
  if (made && class->kind == RINGCAST_CLASS_STRUCT) untrack(class, made);
  return made;
}

PyObject *rc_py_class_make(struct rc_py_state *state, const struct rc_py_class *class,
                           PyObject **fields) {
  Py_ssize_t count = PyTuple_GET_SIZE(class->names);
  if (class->runs_code) state->ran_code++;
  if (class->kind == RINGCAST_CLASS_NAMEDTUPLE) return make_namedtuple(class, fields, count);
  return make_instance(state, class, fields, count);
}
