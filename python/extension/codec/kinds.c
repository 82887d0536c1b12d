/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the standard library that travel by their state: where each is found, and which
 * values a state may have. */
#include "python/extension/codec/kinds.h"

static const struct {
  const char *module, *name;
} standard[RC_PY_STANDARD] = {
    [RINGCAST_STANDARD_DEFAULTDICT] = {"collections", "defaultdict"},
    [RINGCAST_STANDARD_ORDEREDDICT] = {"collections", "OrderedDict"},
    [RINGCAST_STANDARD_DEQUE] = {"collections", "deque"},
    [RINGCAST_STANDARD_COUNTER] = {"collections", "Counter"},
    [RINGCAST_STANDARD_UUID] = {"uuid", "UUID"},
    [RINGCAST_STANDARD_PUREPOSIXPATH] = {"pathlib", "PurePosixPath"},
    [RINGCAST_STANDARD_POSIXPATH] = {"pathlib", "PosixPath"},
    [RINGCAST_STANDARD_PUREWINDOWSPATH] = {"pathlib", "PureWindowsPath"},
    [RINGCAST_STANDARD_DATETIME] = {"datetime", "datetime"},
    [RINGCAST_STANDARD_DATE] = {"datetime", "date"},
    [RINGCAST_STANDARD_TIME] = {"datetime", "time"},
    [RINGCAST_STANDARD_TIMEDELTA] = {"datetime", "timedelta"},
    [RINGCAST_STANDARD_TIMEZONE] = {"datetime", "timezone"},
    [RINGCAST_STANDARD_ZONEINFO] = {"zoneinfo", "ZoneInfo"},
    [RINGCAST_STANDARD_DECIMAL] = {"decimal", "Decimal"},
    [RINGCAST_STANDARD_DTYPE] = {"numpy", "dtype"},
    [RC_PY_ARRAY] = {"array", "array"},
};
_Static_assert(RC_PY_STANDARD == RC_PY_ARRAY + 1, "a place for each type");

/* ---- Found ----------------------------------------------------------------------------------- */

/* The last part of a type's name: a static type's name starts with the module. */
static const char *bare_name(const PyTypeObject *type) {
  const char *dot = strrchr(type->tp_name, '.');
  if (!dot) return type->tp_name;
  return dot + 1;
}

/* New. NULL, also with nothing raised: the module is not imported, or lacks the name. */
static PyObject *find_imported(const char *module_name, const char *name) {
  PyObject *text = PyUnicode_FromString(module_name);
  if (!text) return NULL;
  PyObject *module = PyImport_GetModule(text);
  Py_DECREF(text);
  if (!module) return NULL;
  PyObject *found = PyObject_GetAttrString(module, name);
  Py_DECREF(module);
  if (!found && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
  return found;
}

/* Each NumPy dtype has a type of its own, which only NumPy's code can derive. */
static bool is_found(int number, PyTypeObject *type, PyObject *found) {
  if (number != RINGCAST_STANDARD_DTYPE) return found == (PyObject *)type;
  return found && PyType_Check(found) && PyType_IsSubtype(type, (PyTypeObject *)found);
}

/* Whether the type with the number may be this one, by its name. */
static bool may_be(int number, const PyTypeObject *type, const char *name) {
  if (number == RINGCAST_STANDARD_DTYPE) return strncmp(type->tp_name, "numpy.", 6) == 0;
  return strcmp(standard[number].name, name) == 0;
}

int rc_py_standard_of(struct rc_py_state *state, PyTypeObject *type) {
  const char *name = bare_name(type);
  for (int i = 1; i < RC_PY_STANDARD; i++) {
    if (!may_be(i, type, name)) continue;
    PyObject *found = find_imported(standard[i].module, standard[i].name);
    if (!found && PyErr_Occurred()) return -1;
    bool is_it = is_found(i, type, found);
    if (is_it && !state->standard[i]) state->standard[i] = Py_NewRef(found);
    is_it = is_it && state->standard[i] == found;
    Py_XDECREF(found);
    if (is_it) return i;
  }
  return 0;
}

PyTypeObject *rc_py_standard_type(struct rc_py_state *state, int number) {
  PyObject **known = &state->standard[number];
  if (!*known) {
    PyObject *found = rc_py_import(standard[number].module, standard[number].name);
    if (found && !PyType_Check(found)) {
      PyErr_Format(PyExc_TypeError, "%s.%s is no type", standard[number].module,
                   standard[number].name);
      Py_CLEAR(found);
    }
    if (!*known) {
      *known = found;
    } else {
      Py_XDECREF(found); /* the import ran code that came here and stored the type */
    }
  }
  return (PyTypeObject *)*known;
}

/* ---- The values of a state ------------------------------------------------------------------- */

PyTypeObject *rc_py_factory_of(PyObject *name) {
  static PyTypeObject *const factories[] = {
      &PyList_Type,  &PyDict_Type,      &PyLong_Type,    &PySet_Type,
      &PyFloat_Type, &PyUnicode_Type,   &PyTuple_Type,   &PyBool_Type,
      &PyBytes_Type, &PyByteArray_Type, &PyComplex_Type, &PyFrozenSet_Type,
  };
  for (size_t i = 0; i < sizeof factories / sizeof *factories; i++) {
    if (PyUnicode_CompareWithASCIIString(name, factories[i]->tp_name) == 0) return factories[i];
  }
  return NULL;
}

/* The characters of an ASCII str; NULL: not ASCII. */
static const char *ascii_of(PyObject *text) {
  if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text)) return NULL;
  return (const char *)PyUnicode_1BYTE_DATA(text);
}

bool rc_py_is_zone_key(PyObject *key) {
  enum { ZONE_KEY_MOST = 255 };
  static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+/";
  const char *text = ascii_of(key);
  if (!text) return false;
  size_t length = (size_t)PyUnicode_GET_LENGTH(key);
  if (length == 0 || length > ZONE_KEY_MOST || strspn(text, good) != length) return false;
  return text[0] != '/' && text[length - 1] != '/' && !strstr(text, "//");
}

enum { DIGITS_MOST = 9, LETTERS_MOST = 7 }; /* of a dtype's text */
static const char numbers[] = "0123456789";

/* The end of "[10ns]" or "[ns]" at `text`; NULL: no such unit. NumPy takes a count of 0, and then
 * divides by it. */
static const char *unit_end(const char *text) {
  const char *at = text + 1;
  size_t count = strspn(at, numbers);
  if (*at == '0' || count > DIGITS_MOST) return NULL;
  at += count;
  size_t letters = strspn(at, "abcdefghijklmnopqrstuvwxyzDMWY");
  if (letters == 0 || letters > LETTERS_MOST || at[letters] != ']') return NULL;
  return at + letters + 1;
}

bool rc_py_is_dtype_text(PyObject *object) {
  const char *text = ascii_of(object), *end = text;
  if (!text) return false;
  if (*end && strchr("<>=|", *end)) end++;
  if (!*end || !strchr("?bBiufcmMOSUVT", *end)) return false;
  end++;
  size_t digits = strspn(end, numbers);
  end += digits;
  if (*end == '[') end = unit_end(end);
  if (!end) return false;
  return digits <= DIGITS_MOST && end == text + PyUnicode_GET_LENGTH(object);
}
