/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes values of the standard library's types from their states. A state comes from an untrusted
 * frame: its exact type and range are checked before a type is called with the state, and no code
 * but the standard library's runs. A ZoneInfo is looked up by its key, which opens only files below
 * the folders of zones (rc_py_is_zone_key).
 */
#include "python/extension/codec/kinds.h"

#include <datetime.h>

static PyObject *damaged(struct rc_py_state *state) {
  return rc_py_raise_damaged(state, "a state that its type lacks");
}

/* Turns the type's own complaint about the state into ProtocolError. Consumes `made`. */
static PyObject *made_or_damaged(struct rc_py_state *state, PyObject *made) {
  if (!made) rc_py_protocol_from_current(state, "a state that its type lacks");
  return made;
}

static bool has_datetime(void) {
  if (!PyDateTimeAPI) PyDateTime_IMPORT;
  return PyDateTimeAPI;
}

static PyObject *call_one(struct rc_py_state *state, int number, PyObject *argument) {
  PyTypeObject *type = rc_py_standard_type(state, number);
  if (!type) return NULL;
  return made_or_damaged(state, PyObject_CallOneArg((PyObject *)type, argument));
}

static PyObject *call_two(struct rc_py_state *state, int number, PyObject *first,
                          PyObject *second) {
  PyTypeObject *type = rc_py_standard_type(state, number);
  if (!type) return NULL;
  return PyObject_CallFunctionObjArgs((PyObject *)type, first, second, NULL);
}

/* The two values of a tuple. */
static bool take_pair(PyObject *plain, PyObject **first, PyObject **second) {
  if (!PyTuple_CheckExact(plain) || PyTuple_GET_SIZE(plain) != 2) return false;
  *first = PyTuple_GET_ITEM(plain, 0);
  *second = PyTuple_GET_ITEM(plain, 1);
  return true;
}

/* ---- Containers ------------------------------------------------------------------------------ */

static PyObject *make_defaultdict(struct rc_py_state *state, PyObject *plain) {
  PyObject *factory, *dict;
  if (!take_pair(plain, &factory, &dict) || !PyDict_CheckExact(dict)) return damaged(state);
  if (factory != Py_None) {
    if (!PyUnicode_CheckExact(factory)) return damaged(state);
    factory = (PyObject *)rc_py_factory_of(factory);
    if (!factory) return damaged(state);
  }
  return call_two(state, RINGCAST_STANDARD_DEFAULTDICT, factory, dict);
}

/* Without __init__, which would count the items of the state. */
static PyObject *make_counter(struct rc_py_state *state, PyObject *plain) {
  if (!PyDict_CheckExact(plain)) return damaged(state);
  PyTypeObject *type = rc_py_standard_type(state, RINGCAST_STANDARD_COUNTER);
  if (!type) return NULL;
  PyObject *made = PyDict_Type.tp_new(type, state->no_arguments, NULL);
  if (made && PyDict_Merge(made, plain, 1) < 0) Py_CLEAR(made);
  return made;
}

/* Item by item: OrderedDict(dict) takes six times as long. */
static PyObject *make_ordered(struct rc_py_state *state, PyObject *plain) {
  if (!PyDict_CheckExact(plain)) return damaged(state);
  PyObject *made = PyODict_New(), *key, *value;
  Py_ssize_t position = 0;
  while (made && PyDict_Next(plain, &position, &key, &value)) {
    Py_INCREF(key);
    Py_INCREF(value);
    if (PyODict_SetItem(made, key, value) < 0) Py_CLEAR(made);
    Py_DECREF(key);
    Py_DECREF(value);
  }
  return made;
}

static PyObject *make_deque(struct rc_py_state *state, PyObject *plain) {
  PyObject *most, *list;
  if (!take_pair(plain, &most, &list) || !PyList_CheckExact(list)) return damaged(state);
  if (most != Py_None) {
    if (!PyLong_CheckExact(most)) return damaged(state);
    Py_ssize_t count = PyLong_AsSsize_t(most);
    PyErr_Clear(); /* OverflowError: the result is -1 then */
    if (count < PyList_GET_SIZE(list)) return damaged(state);
  }
  return call_two(state, RINGCAST_STANDARD_DEQUE, list, most);
}

/* ---- Times ----------------------------------------------------------------------------------- */

/* The bytes of a state of exactly `bytes`; NULL: another state. */
static const uint8_t *bytes_of(PyObject *plain, Py_ssize_t bytes) {
  if (!PyBytes_CheckExact(plain) || PyBytes_GET_SIZE(plain) != bytes) return NULL;
  return (const uint8_t *)PyBytes_AS_STRING(plain);
}

/* The bytes of a state and the zone beside the bytes; without a zone: None. */
static const uint8_t *zoned_of(struct rc_py_state *state, PyObject *plain, Py_ssize_t bytes,
                               PyObject **zone) {
  PyObject *data;
  *zone = Py_None;
  if (!PyTuple_CheckExact(plain)) return bytes_of(plain, bytes);
  if (!take_pair(plain, &data, zone)) return NULL;
  const PyObject *type = (PyObject *)Py_TYPE(*zone);
  bool is_zone = type == (PyObject *)Py_TYPE(PyDateTimeAPI->TimeZone_UTC) ||
                 type == state->standard[RINGCAST_STANDARD_ZONEINFO];
  if (!is_zone) return NULL;
  return bytes_of(data, bytes);
}

static int micro_of(const uint8_t *at) { return at[0] << 16 | at[1] << 8 | at[2]; }
static int year_of(const uint8_t *at) { return at[0] << 8 | at[1]; }

/* The C API checks the ranges as the types themselves do. */
static PyObject *make_datetime(struct rc_py_state *state, PyObject *plain) {
  PyObject *zone;
  const uint8_t *at = zoned_of(state, plain, 10, &zone);
  if (!at) return damaged(state);
  PyObject *made = PyDateTimeAPI->DateTime_FromDateAndTimeAndFold(
      year_of(at), at[2] & 0x7f, at[3], at[4], at[5], at[6], micro_of(at + 7), zone, at[2] >> 7,
      PyDateTimeAPI->DateTimeType);
  return made_or_damaged(state, made);
}

static PyObject *make_date(struct rc_py_state *state, PyObject *plain) {
  const uint8_t *at = bytes_of(plain, 4);
  if (!at) return damaged(state);
  return made_or_damaged(state, PyDate_FromDate(year_of(at), at[2], at[3]));
}

static PyObject *make_time(struct rc_py_state *state, PyObject *plain) {
  PyObject *zone;
  const uint8_t *at = zoned_of(state, plain, 6, &zone);
  if (!at) return damaged(state);
  PyObject *made = PyDateTimeAPI->Time_FromTimeAndFold(at[0] & 0x7f, at[1], at[2], micro_of(at + 3),
                                                       zone, at[0] >> 7, PyDateTimeAPI->TimeType);
  return made_or_damaged(state, made);
}

static PyObject *make_timedelta(struct rc_py_state *state, PyObject *plain) {
  enum { DAYS_MOST = 999999999 };
  int32_t parts[3];
  const uint8_t *at = bytes_of(plain, sizeof parts);
  if (!at) return damaged(state);
  memcpy(parts, at, sizeof parts);
  bool ok = parts[0] >= -DAYS_MOST && parts[0] <= DAYS_MOST && parts[1] >= 0 && parts[1] < 86400 &&
            parts[2] >= 0 && parts[2] < 1000000;
  if (!ok) return damaged(state);
  return PyDelta_FromDSU(parts[0], parts[1], parts[2]);
}

static PyObject *make_timezone(struct rc_py_state *state, PyObject *plain) {
  PyObject *offset = plain, *name = NULL;
  if (PyTuple_CheckExact(plain) && !take_pair(plain, &offset, &name)) return damaged(state);
  if (!PyLong_CheckExact(offset) || (name && !PyUnicode_CheckExact(name))) return damaged(state);
  const int64_t day = INT64_C(86400) * 1000000;
  int overflow;
  int64_t all = PyLong_AsLongLongAndOverflow(offset, &overflow);
  if (overflow || all <= -day || all >= day) return damaged(state);
  int64_t days = -(all < 0), rest = all - days * day;
  PyObject *delta = PyDelta_FromDSU((int)days, (int)(rest / 1000000), (int)(rest % 1000000));
  if (!delta) return NULL;
  PyObject *made = PyDateTimeAPI->TimeZone_FromTimeZone(delta, name);
  Py_DECREF(delta);
  return made_or_damaged(state, made);
}

static PyObject *make_zoneinfo(struct rc_py_state *state, PyObject *plain) {
  if (!rc_py_is_zone_key(plain)) return damaged(state);
  PyTypeObject *type = rc_py_standard_type(state, RINGCAST_STANDARD_ZONEINFO);
  if (!type) return NULL;
  PyObject *made = PyObject_CallOneArg((PyObject *)type, plain);
  bool is_missing =
      !made && (PyErr_ExceptionMatches(PyExc_KeyError) || PyErr_ExceptionMatches(PyExc_OSError) ||
                PyErr_ExceptionMatches(PyExc_ValueError));
  if (!is_missing || !rc_py_is_of_libraries()) return made;
  PyErr_Clear();
  return rc_py_raise_text(state, EPROTO, "the frame holds the time zone %R, and there is none here",
                          plain);
}

/* ---- Further types --------------------------------------------------------------------------- */

static PyObject *int_of_halves(uint64_t high, uint64_t low) {
  PyObject *bits = PyLong_FromLong(64), *top = PyLong_FromUnsignedLongLong(high);
  PyObject *bottom = PyLong_FromUnsignedLongLong(low);
  PyObject *shifted = NULL, *whole = NULL;
  if (bits && top) shifted = PyNumber_Lshift(top, bits);
  if (shifted && bottom) whole = PyNumber_Or(shifted, bottom);
  Py_XDECREF(bits);
  Py_XDECREF(top);
  Py_XDECREF(bottom);
  Py_XDECREF(shifted);
  return whole;
}

/* uuid.SafeUUID's member for the byte behind a UUID's own 16; -1: there is none. New. */
static PyObject *safety_of(struct rc_py_state *state, int safety) {
  static const char *const names[] = {"unknown", "safe", "unsafe"};
  if (safety < 0 && state->uuid_unknown) return Py_NewRef(state->uuid_unknown);
  PyObject *members = rc_py_import("uuid", "SafeUUID");
  if (!members) return NULL;
  PyObject *member = PyObject_GetAttrString(members, names[safety + 1]);
  Py_DECREF(members);
  if (member && safety < 0) state->uuid_unknown = Py_NewRef(member);
  return member;
}

/* By object.__new__ and object.__setattr__, as UUID's own pickle does. */
static PyObject *make_uuid(struct rc_py_state *state, PyObject *plain) {
  int safety = -1;
  const uint8_t *at = bytes_of(plain, 17);
  if (at) safety = at[16];
  if (!at) at = bytes_of(plain, 16);
  if (!at || safety > 1) return damaged(state);
  uint64_t high, low;
  memcpy(&high, at, 8);
  memcpy(&low, at + 8, 8);
  PyTypeObject *type = rc_py_standard_type(state, RINGCAST_STANDARD_UUID);
  if (!type) return NULL;
  PyObject *value = int_of_halves(__builtin_bswap64(high), __builtin_bswap64(low));
  PyObject *is_safe = safety_of(state, safety);
  PyObject *name = PyUnicode_InternFromString("int"), *made = NULL;
  if (value && is_safe && name) made = PyBaseObject_Type.tp_new(type, state->no_arguments, NULL);
  bool ok = made && PyObject_GenericSetAttr(made, name, value) == 0 &&
            PyObject_GenericSetAttr(made, state->names.is_safe, is_safe) == 0;
  if (!ok) Py_CLEAR(made);
  Py_XDECREF(value);
  Py_XDECREF(is_safe);
  Py_XDECREF(name);
  return made;
}

static PyObject *make_windows_path(struct rc_py_state *state, PyObject *plain) {
  if (!PyTuple_CheckExact(plain)) return damaged(state);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain); i++) {
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(plain, i))) return damaged(state);
  }
  PyTypeObject *type = rc_py_standard_type(state, RINGCAST_STANDARD_PUREWINDOWSPATH);
  if (!type) return NULL;
  return made_or_damaged(state, PyObject_CallObject((PyObject *)type, plain));
}

static PyObject *make_decimal(struct rc_py_state *state, PyObject *plain) {
  PyObject *made = call_one(state, RINGCAST_STANDARD_DECIMAL, plain);
  if (made || !PyErr_ExceptionMatches(PyExc_ArithmeticError) || !rc_py_is_of_libraries())
    return made;
  PyErr_Clear();
  return damaged(state);
}

static PyObject *make_of_text(struct rc_py_state *state, int number, PyObject *plain) {
  if (!PyUnicode_CheckExact(plain)) return damaged(state);
  if (number == RINGCAST_STANDARD_DECIMAL) return make_decimal(state, plain);
  if (number == RINGCAST_STANDARD_DTYPE && !rc_py_is_dtype_text(plain)) return damaged(state);
  return call_one(state, number, plain);
}

static PyObject *make_time_kind(struct rc_py_state *state, int number, PyObject *plain) {
  if (!has_datetime()) return NULL;
  switch (number) {
  case RINGCAST_STANDARD_DATETIME: return make_datetime(state, plain);
  case RINGCAST_STANDARD_DATE: return make_date(state, plain);
  case RINGCAST_STANDARD_TIME: return make_time(state, plain);
  case RINGCAST_STANDARD_TIMEDELTA: return make_timedelta(state, plain);
  default: return make_timezone(state, plain);
  }
}

static PyObject *make_ndarray(struct rc_py_state *state, PyObject *plain, bool is_record,
                              PyObject **dtypes) {
  PyObject *text, *elements;
  if (!take_pair(plain, &text, &elements) || !PyUnicode_CheckExact(text)) return damaged(state);
  return rc_py_numpy_of_bytes(state, text, elements, is_record, dtypes);
}

PyObject *rc_py_standard_make(struct rc_py_state *state, int number, PyObject *plain,
                              PyObject **dtypes) {
  switch (number) {
  case RINGCAST_STANDARD_DEFAULTDICT: return make_defaultdict(state, plain);
  case RINGCAST_STANDARD_ORDEREDDICT: return make_ordered(state, plain);
  case RINGCAST_STANDARD_DEQUE: return make_deque(state, plain);
  case RINGCAST_STANDARD_COUNTER: return make_counter(state, plain);
  case RINGCAST_STANDARD_UUID: return make_uuid(state, plain);
  case RINGCAST_STANDARD_PUREPOSIXPATH:
  case RINGCAST_STANDARD_POSIXPATH:
  case RINGCAST_STANDARD_DECIMAL:
  case RINGCAST_STANDARD_DTYPE: return make_of_text(state, number, plain);
  case RINGCAST_STANDARD_PUREWINDOWSPATH: return make_windows_path(state, plain);
  case RINGCAST_STANDARD_DATETIME:
  case RINGCAST_STANDARD_DATE:
  case RINGCAST_STANDARD_TIME:
  case RINGCAST_STANDARD_TIMEDELTA:
  case RINGCAST_STANDARD_TIMEZONE: return make_time_kind(state, number, plain);
  case RINGCAST_STANDARD_ZONEINFO: return make_zoneinfo(state, plain);
  case RINGCAST_STANDARD_NDARRAY: return make_ndarray(state, plain, false, dtypes);
  case RINGCAST_STANDARD_RECARRAY: return make_ndarray(state, plain, true, dtypes);
  default: return rc_py_raise_damaged(state, "a type that this version does not know");
  }
}
