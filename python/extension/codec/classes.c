/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes whose instances travel by name and fields. Which do, ringcast/_classes.py decides, once for each; here is
 * what is done with each instance, as unpickling would do it: no __init__ is run but a Struct's, which its own pickle
 * runs too.
 */
#include "python/extension/codec/classes.h"
#include "python/extension/codec/kinds.h"

#include <structmember.h>

static const char capsule_name[] = "ringcast.class";

/* Beyond so many classes a cache begins anew: who makes classes at run time has no leak of us. */
enum { MOST_KNOWN = 1024 };

PyObject *rc_py_class_cache(PyObject **cache) {
  if (!*cache || PyDict_GET_SIZE(*cache) >= MOST_KNOWN) {
    bool is_plain = !*cache || PyDict_CheckExact(*cache);
    PyObject *anew = is_plain ? PyDict_New() : PyObject_CallMethod(*cache, "anew", NULL);
    if (!anew) return NULL;
    Py_XSETREF(*cache, anew);
  }
  return rc_py_ref(*cache);
}

static void class_free(struct rc_py_class *class) {
  Py_XDECREF(class->type);
  Py_XDECREF(class->names);
  Py_XDECREF(class->text);
  PyMem_Free(class->offsets);
  PyMem_Free(class);
}

static void capsule_free(PyObject *capsule) { class_free(PyCapsule_GetPointer(capsule, capsule_name)); }

/* Where the field of that name stands in an instance; -1: in no slot of its own. */
static Py_ssize_t slot_offset(PyTypeObject *type, PyObject *name) {
  PyObject *found = PyObject_GetAttr((PyObject *)type, name);
  if (!found) {
    PyErr_Clear();
    return -1;
  }
  Py_ssize_t offset = -1;
  if (Py_TYPE(found) == &PyMemberDescr_Type) {
    const PyMemberDescrObject *member = (PyMemberDescrObject *)found;
    bool is_ours = PyType_IsSubtype(type, PyDescr_TYPE(found)) && member->d_member->type == T_OBJECT_EX;
    if (is_ours) offset = member->d_member->offset;
  }
  Py_DECREF(found);
  return offset;
}

/* Finds the offsets, if the fields have slots. False: some have none although they should, or raised. */
static bool class_layout(struct rc_py_class *class) {
  Py_ssize_t count = PyTuple_GET_SIZE(class->names);
  if (class->kind != RINGCAST_CLASS_STRUCT && class->kind != RINGCAST_CLASS_DATACLASS) return true;
  if (class->kind == RINGCAST_CLASS_DATACLASS && class->type->tp_dictoffset != 0) return true;
  class->offsets = PyMem_New(Py_ssize_t, (size_t)count + 1);
  if (!class->offsets) {
    PyErr_NoMemory();
    return false;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    class->offsets[i] = slot_offset(class->type, PyTuple_GET_ITEM(class->names, i));
    if (class->offsets[i] < 0) return false;
  }
  return true;
}

static bool runs_code(const struct rc_py_class *class) {
  const char *meta = Py_TYPE(class->type)->tp_name;
  if (class->kind == RINGCAST_CLASS_ENUM) return strcmp(meta, "EnumType") != 0 && strcmp(meta, "EnumMeta") != 0;
  return class->kind == RINGCAST_CLASS_STRUCT || class->type->tp_finalize || class->type->tp_del;
}

/* A capsule with the class that `description` of _classes.py tells of; NULL without an exception: its slots can't be
 * found. */
static PyObject *class_new(PyTypeObject *type, PyObject *description) {
  int kind, code = 0, bits = 0;
  PyObject *names, *text, *dtype;
  if (!PyArg_ParseTuple(description, "iO!SO", &kind, &PyTuple_Type, &names, &text, &dtype)) return NULL;
  if (dtype != Py_None && !PyArg_ParseTuple(dtype, "ii", &code, &bits)) return NULL;
  struct rc_py_class *class = PyMem_Calloc(1, sizeof *class);
  if (!class) return PyErr_NoMemory();
  class->type = (PyTypeObject *)rc_py_ref((PyObject *)type);
  class->kind = (uint8_t)kind;
  class->runs_code = runs_code(class);
  class->names = rc_py_ref(names);
  class->text = rc_py_ref(text);
  class->dtype = (struct ringcast_dtype){(uint8_t)code, (uint8_t)bits, 1};
  PyObject *capsule = class_layout(class) ? PyCapsule_New(class, capsule_name, capsule_free) : NULL;
  if (!capsule) class_free(class);
  return capsule;
}

/* Borrowed from the cache. What is there stays, for others may be using it: Python code ran since it was missed, and
 * may have met the same class. */
static PyObject *cache_add(PyObject *cache, PyObject *key, PyObject *value) {
  PyObject *kept = value ? PyDict_SetDefault(cache, key, value) : NULL;
  Py_XDECREF(value);
  return kept;
}

/* ---- To send ---------------------------------------------------------------------------------------------------- */

static PyObject *describe_standard(struct rc_py_state *state, PyTypeObject *type) {
  int number = rc_py_standard_of(state, type);
  if (number <= 0) return NULL;
  PyObject *description = Py_BuildValue("(iOy(ii))", RC_PY_CLASS_STANDARD, state->no_arguments, "", number, 0);
  PyObject *capsule = description ? class_new(type, description) : NULL;
  Py_XDECREF(description);
  return capsule;
}

/* Whatever a strange class raises while it is looked at, pickle may have an answer. */
static PyObject *describe(struct rc_py_state *state, PyTypeObject *type) {
  PyObject *standard = describe_standard(state, type);
  if (standard || PyErr_Occurred()) return standard;
  if (!state->describe_class && !(state->describe_class = rc_py_import("ringcast._classes", "describe"))) return NULL;
  PyObject *description = PyObject_CallOneArg(state->describe_class, (PyObject *)type);
  PyObject *capsule = description && description != Py_None ? class_new(type, description) : NULL;
  Py_XDECREF(description);
  if (capsule) return capsule;
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_Clear();
  }
  return rc_py_ref(Py_None);
}

struct rc_py_class *rc_py_class_of(struct rc_py_state *state, PyObject *cache, PyTypeObject *type) {
  PyObject *known = PyDict_GetItemWithError(cache, (PyObject *)type);
  if (!known && !PyErr_Occurred()) known = cache_add(cache, (PyObject *)type, describe(state, type));
  if (!known) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear(); /* a metaclass without a hash */
    return NULL;
  }
  struct rc_py_class *class = known == Py_None ? NULL : PyCapsule_GetPointer(known, capsule_name);
  return class && class->type == type ? class : NULL; /* a metaclass may say that two classes are equal */
}

/* ---- Received --------------------------------------------------------------------------------------------------- */

static PyObject *find(struct rc_py_state *state, PyObject *cache, uint8_t kind, PyObject *key, bool may_import) {
  if (!state->find_class && !(state->find_class = rc_py_import("ringcast._classes", "find"))) return NULL;
  PyObject *text = PyBytes_FromStringAndSize(PyBytes_AS_STRING(key) + 1, PyBytes_GET_SIZE(key) - 1);
  PyObject *number = PyLong_FromLong(kind);
  PyObject *pair = NULL, *capsule = NULL, *description;
  PyTypeObject *type;
  if (text && number) {
    pair = PyObject_CallFunctionObjArgs(state->find_class, number, text, may_import ? Py_True : Py_False, cache, NULL);
  }
  if (pair && PyArg_ParseTuple(pair, "O!O!", &PyType_Type, &type, &PyTuple_Type, &description)) {
    capsule = class_new(type, description);
    if (!capsule && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "its class has lost its slots");
  }
  Py_XDECREF(pair);
  Py_XDECREF(text);
  Py_XDECREF(number);
  return capsule;
}

struct rc_py_class *rc_py_class_find(struct rc_py_state *state, PyObject *cache, uint8_t kind, const void *text,
                                     size_t bytes, bool may_import) {
  PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes + 1);
  if (!key) return NULL;
  PyBytes_AS_STRING(key)[0] = (char)kind;
  memcpy(PyBytes_AS_STRING(key) + 1, text, bytes);
  PyObject *known = PyDict_GetItemWithError(cache, key);
  if (!known && !PyErr_Occurred()) known = cache_add(cache, key, find(state, cache, kind, key, may_import));
  Py_DECREF(key);
  return known ? PyCapsule_GetPointer(known, capsule_name) : NULL;
}

bool rc_py_classes_check(struct rc_py_state *state, PyObject *cache, const void *stream, size_t bytes) {
  struct ringcast_object object = {.at = stream, .end = (const uint8_t *)stream + bytes};
  struct ringcast_token token;
  while (ringcast_token_read(&object, &token) == 0) {
    if (token.tag != RINGCAST_TAG_CLASS) continue;
    if (rc_py_class_find(state, cache, token.kind, token.data, token.count, false)) continue;
    bool is_streams = PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError);
    if (is_streams) rc_py_protocol_from_current(state, "a class");
    return false;
  }
  return true;
}

/* The call takes no reference over. */
static PyObject *make_struct(const struct rc_py_class *class, PyObject **fields, Py_ssize_t count) {
  PyObject *made = PyObject_Vectorcall((PyObject *)class->type, fields, 0, count ? class->names : NULL);
  for (Py_ssize_t i = 0; i < count; i++) Py_DECREF(fields[i]);
  return made;
}

/* As tuple.__new__(type, fields). tp_alloc would not do: from Python 3.14 on a tuple caches its hash, and zeroed memory
 * says that the hash is 0. */
static PyObject *make_namedtuple(const struct rc_py_class *class, PyObject **fields, Py_ssize_t count) {
  PyObject *plain = PyTuple_New(count);
  for (Py_ssize_t i = 0; i < count; i++) {
    if (plain) {
      PyTuple_SET_ITEM(plain, i, fields[i]);
    } else {
      Py_DECREF(fields[i]);
    }
  }
  PyObject *arguments = plain ? PyTuple_Pack(1, plain) : NULL;
  PyObject *made = arguments ? PyTuple_Type.tp_new(class->type, arguments, NULL) : NULL;
  Py_XDECREF(plain);
  Py_XDECREF(arguments);
  return made;
}

/* As object.__new__ and, for each field, object.__setattr__. Never by a __new__ that the class was given since it was
 * looked at: what that made could be anything, and have no such slots. */
static PyObject *make_dataclass(struct rc_py_state *state, const struct rc_py_class *class, PyObject **fields,
                                Py_ssize_t count) {
  PyObject *made = PyBaseObject_Type.tp_new(class->type, state->no_arguments, NULL);
  bool ok = made;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (ok && class->offsets) {
      PyObject **slot = (PyObject **)((char *)made + class->offsets[i]);
      Py_XSETREF(*slot, fields[i]);
      continue;
    }
    if (ok) ok = PyObject_GenericSetAttr(made, PyTuple_GET_ITEM(class->names, i), fields[i]) == 0;
    Py_DECREF(fields[i]);
  }
  if (!ok) Py_CLEAR(made);
  return made;
}

PyObject *rc_py_class_make(struct rc_py_state *state, const struct rc_py_class *class, PyObject **fields) {
  Py_ssize_t count = PyTuple_GET_SIZE(class->names);
  if (class->runs_code) state->ran_code++;
  if (class->kind == RINGCAST_CLASS_STRUCT) return make_struct(class, fields, count);
  if (class->kind == RINGCAST_CLASS_NAMEDTUPLE) return make_namedtuple(class, fields, count);
  return make_dataclass(state, class, fields, count);
}
