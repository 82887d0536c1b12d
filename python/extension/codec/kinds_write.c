/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the states of the standard library's types as tokens. Each function returns LEAF before
 * writing anything. */
#include "python/extension/codec/kinds.h"

#include "python/extension/codec/scalars.h"

#include <datetime.h>

enum { STATE_MOST = 20 }; /* bytes of a state of bytes */

/* ---- Tokens ---------------------------------------------------------------------------------- */

static enum rc_py_put put_kind(struct rc_py_encoding *encoding, int number) {
  return rc_py_put_tag_of(encoding, RINGCAST_TAG_KIND, number);
}

static enum rc_py_put put_kind_of_bytes(struct rc_py_encoding *encoding, int number,
                                        const uint8_t *data, size_t bytes) {
  enum rc_py_put put = put_kind(encoding, number);
  if (put != RC_PY_PUT_DONE) return put;
  return rc_py_put_data(encoding, RINGCAST_TAG_BYTES, data, bytes);
}

/* Takes the text over. NULL: raised. */
static enum rc_py_put put_kind_of_text(struct rc_py_encoding *encoding, int number,
                                       PyObject *text) {
  if (!text) return RC_PY_PUT_RAISED;
  enum rc_py_put put = RC_PY_PUT_LEAF;
  if (PyUnicode_CheckExact(text)) {
    put = put_kind(encoding, number);
    if (put == RC_PY_PUT_DONE) put = rc_py_put_text(encoding, text);
  }
  Py_DECREF(text);
  return put;
}

/* For a failed attribute or method: the value is left to pickle. */
static enum rc_py_put leaf_unless_fatal(void) {
  if (!rc_py_clear_passing()) return RC_PY_PUT_RAISED;
  return RC_PY_PUT_LEAF;
}

/* ---- Times ----------------------------------------------------------------------------------- */

/* The state of a tzinfo. */
struct zone {
  int number; /* TIMEZONE, ZONEINFO; 0: None */
  int64_t offset;
  PyObject *name; /* new: of a TIMEZONE, or NULL; the key of a ZONEINFO */
};

static uint8_t *write_micro(uint8_t *at, int microsecond) {
  *at++ = (uint8_t)(microsecond >> 16);
  *at++ = (uint8_t)(microsecond >> 8);
  *at++ = (uint8_t)microsecond;
  return at;
}

/* Whether the exact type is the one of datetime's C API: only then may the C API's macros read the
 * value. */
static bool is_in_c(int number, const PyObject *value) {
  const PyTypeObject *type = Py_TYPE(value);
  if (!PyDateTimeAPI) PyDateTime_IMPORT;
  if (!PyDateTimeAPI) {
    PyErr_Clear();
    return false;
  }
  switch (number) {
  case RINGCAST_STANDARD_DATETIME: return type == PyDateTimeAPI->DateTimeType;
  case RINGCAST_STANDARD_DATE: return type == PyDateTimeAPI->DateType;
  case RINGCAST_STANDARD_TIME: return type == PyDateTimeAPI->TimeType;
  case RINGCAST_STANDARD_TIMEDELTA: return type == PyDateTimeAPI->DeltaType;
  default: return type == Py_TYPE(PyDateTimeAPI->TimeZone_UTC);
  }
}

static enum rc_py_put take_timezone(PyObject *object, struct zone *out) {
  PyObject *offset, *name = NULL;
  out->number = RINGCAST_STANDARD_TIMEZONE;
  if (object == PyDateTimeAPI->TimeZone_UTC) return RC_PY_PUT_DONE;
  PyObject *arguments = PyObject_CallMethod(object, "__getinitargs__", NULL);
  if (!arguments) return leaf_unless_fatal();
  bool ok = PyTuple_CheckExact(arguments) && PyArg_ParseTuple(arguments, "O|O", &offset, &name) &&
            is_in_c(RINGCAST_STANDARD_TIMEDELTA, offset) && (!name || PyUnicode_CheckExact(name));
  if (ok) {
    int64_t seconds =
        (int64_t)PyDateTime_DELTA_GET_DAYS(offset) * 86400 + PyDateTime_DELTA_GET_SECONDS(offset);
    out->offset = seconds * 1000000 + PyDateTime_DELTA_GET_MICROSECONDS(offset);
    out->name = Py_XNewRef(name);
  }
  Py_DECREF(arguments);
  if (PyErr_Occurred()) return leaf_unless_fatal();
  if (!ok) return RC_PY_PUT_LEAF;
  return RC_PY_PUT_DONE;
}

/* For a zone in ZoneInfo's cache: the key then gives the same object. */
static enum rc_py_put take_zoneinfo(PyObject *zoneinfo, struct zone *out) {
  PyObject *unpickle, *key, *is_cached;
  PyObject *reduced = PyObject_CallMethod(zoneinfo, "__reduce__", NULL);
  if (!reduced) return leaf_unless_fatal();
  bool ok = PyTuple_CheckExact(reduced) &&
            PyArg_ParseTuple(reduced, "O(OO)", &unpickle, &key, &is_cached) &&
            rc_py_is_yes(Py_NewRef(is_cached)) == 1 && rc_py_is_zone_key(key);
  if (ok) {
    out->number = RINGCAST_STANDARD_ZONEINFO;
    out->name = Py_NewRef(key);
  }
  Py_DECREF(reduced);
  if (PyErr_Occurred()) return leaf_unless_fatal();
  if (!ok) return RC_PY_PUT_LEAF;
  return RC_PY_PUT_DONE;
}

static enum rc_py_put take_zone(struct rc_py_state *state, PyObject *tzinfo, struct zone *out) {
  *out = (struct zone){0};
  if (tzinfo == Py_None) return RC_PY_PUT_DONE;
  if (is_in_c(RINGCAST_STANDARD_TIMEZONE, tzinfo)) return take_timezone(tzinfo, out);
  bool is_known = state->standard[RINGCAST_STANDARD_ZONEINFO] == (PyObject *)Py_TYPE(tzinfo);
  if (is_known) return take_zoneinfo(tzinfo, out);
  int number = rc_py_standard_of(state, Py_TYPE(tzinfo));
  if (number < 0) return RC_PY_PUT_RAISED;
  if (number != RINGCAST_STANDARD_ZONEINFO) return RC_PY_PUT_LEAF;
  return take_zoneinfo(tzinfo, out);
}

/* Takes the zone's name over. */
static enum rc_py_put put_zone(struct rc_py_encoding *encoding, struct zone *zone) {
  enum rc_py_put put = put_kind(encoding, zone->number);
  if (zone->number == RINGCAST_STANDARD_TIMEZONE) {
    PyObject *offset = PyLong_FromLongLong(zone->offset);
    if (!offset) put = RC_PY_PUT_RAISED;
    if (put == RC_PY_PUT_DONE && zone->name) put = rc_py_put_head(encoding, RINGCAST_TAG_TUPLE, 2);
    if (put == RC_PY_PUT_DONE) put = rc_py_put_int(encoding, offset);
    Py_XDECREF(offset);
  }
  if (put == RC_PY_PUT_DONE && zone->name) put = rc_py_put_text(encoding, zone->name);
  Py_CLEAR(zone->name);
  return put;
}

/* A datetime or time, with its zone. */
static enum rc_py_put put_zoned(struct rc_py_encoding *encoding, int number, PyObject *tzinfo,
                                const uint8_t *data, size_t bytes) {
  struct zone zone;
  enum rc_py_put put = take_zone(encoding->state, tzinfo, &zone);
  if (put != RC_PY_PUT_DONE) return put;
  if (zone.number == 0) return put_kind_of_bytes(encoding, number, data, bytes);
  put = put_kind(encoding, number);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_head(encoding, RINGCAST_TAG_TUPLE, 2);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_data(encoding, RINGCAST_TAG_BYTES, data, bytes);
  if (put == RC_PY_PUT_DONE) return put_zone(encoding, &zone);
  Py_CLEAR(zone.name);
  return put;
}

static uint8_t *write_date(uint8_t *at, PyObject *date) {
  *at++ = (uint8_t)(PyDateTime_GET_YEAR(date) >> 8);
  *at++ = (uint8_t)PyDateTime_GET_YEAR(date);
  *at++ = (uint8_t)PyDateTime_GET_MONTH(date);
  *at++ = (uint8_t)PyDateTime_GET_DAY(date);
  return at;
}

static enum rc_py_put put_datetime(struct rc_py_encoding *encoding, PyObject *value) {
  uint8_t data[STATE_MOST], *at = write_date(data, value);
  if (PyDateTime_DATE_GET_FOLD(value)) data[2] |= 0x80;
  *at++ = (uint8_t)PyDateTime_DATE_GET_HOUR(value);
  *at++ = (uint8_t)PyDateTime_DATE_GET_MINUTE(value);
  *at++ = (uint8_t)PyDateTime_DATE_GET_SECOND(value);
  at = write_micro(at, PyDateTime_DATE_GET_MICROSECOND(value));
  return put_zoned(encoding, RINGCAST_STANDARD_DATETIME, PyDateTime_DATE_GET_TZINFO(value), data,
                   (size_t)(at - data));
}

static enum rc_py_put put_time(struct rc_py_encoding *encoding, PyObject *value) {
  uint8_t data[STATE_MOST], *at = data;
  *at++ = (uint8_t)PyDateTime_TIME_GET_HOUR(value);
  if (PyDateTime_TIME_GET_FOLD(value)) data[0] |= 0x80;
  *at++ = (uint8_t)PyDateTime_TIME_GET_MINUTE(value);
  *at++ = (uint8_t)PyDateTime_TIME_GET_SECOND(value);
  at = write_micro(at, PyDateTime_TIME_GET_MICROSECOND(value));
  return put_zoned(encoding, RINGCAST_STANDARD_TIME, PyDateTime_TIME_GET_TZINFO(value), data,
                   (size_t)(at - data));
}

static enum rc_py_put put_timedelta(struct rc_py_encoding *encoding, PyObject *value) {
  const int32_t parts[3] = {PyDateTime_DELTA_GET_DAYS(value), PyDateTime_DELTA_GET_SECONDS(value),
                            PyDateTime_DELTA_GET_MICROSECONDS(value)};
  return put_kind_of_bytes(encoding, RINGCAST_STANDARD_TIMEDELTA, (const uint8_t *)parts,
                           sizeof parts);
}

static enum rc_py_put put_tzinfo(struct rc_py_encoding *encoding, PyObject *value) {
  struct zone zone;
  enum rc_py_put put = take_zone(encoding->state, value, &zone);
  if (put != RC_PY_PUT_DONE) return put;
  return put_zone(encoding, &zone);
}

static enum rc_py_put put_of_datetime(struct rc_py_encoding *encoding, int number,
                                      PyObject *value) {
  if (!is_in_c(number, value)) return RC_PY_PUT_LEAF;
  uint8_t data[STATE_MOST];
  switch (number) {
  case RINGCAST_STANDARD_DATETIME: return put_datetime(encoding, value);
  case RINGCAST_STANDARD_DATE:
    return put_kind_of_bytes(encoding, number, data, (size_t)(write_date(data, value) - data));
  case RINGCAST_STANDARD_TIME: return put_time(encoding, value);
  case RINGCAST_STANDARD_TIMEDELTA: return put_timedelta(encoding, value);
  default: return put_tzinfo(encoding, value);
  }
}

/* ---- Further types --------------------------------------------------------------------------- */

/* The high and low halves of an int of 128 bits. False: not such an int, or raised. */
static bool halves_of(PyObject *value, uint64_t *high, uint64_t *low) {
  if (!PyLong_CheckExact(value)) return false;
  PyObject *bits = PyLong_FromLong(64);
  if (!bits) return false;
  PyObject *shifted = PyNumber_Rshift(value, bits);
  Py_DECREF(bits);
  if (!shifted) return false;
  *high = PyLong_AsUnsignedLongLong(shifted);
  *low = PyLong_AsUnsignedLongLongMask(value);
  Py_DECREF(shifted);
  return !PyErr_Occurred();
}

/* What SafeUUID has as a member's value: None, 0, -1. */
static int safety_of_value(PyObject *value) {
  if (value == Py_None) return -1;
  if (!PyLong_CheckExact(value)) return -2;
  switch (PyLong_AsLong(value)) {
  case 0: return 0;
  case -1: return 1;
  default: return -2;
  }
}

/* 0 safe, 1 unsafe; -1: unknown, or raised; -2: anything else. */
static int safety_of(struct rc_py_state *state, PyObject *uuid) {
  PyObject *is_safe = PyObject_GetAttr(uuid, state->names.is_safe);
  if (!is_safe) return -1;
  if (is_safe == state->uuid_unknown) {
    Py_DECREF(is_safe);
    return -1;
  }
  PyObject *value = PyObject_GetAttrString(is_safe, "_value_");
  Py_DECREF(is_safe);
  if (!value) return -1;
  int safety = safety_of_value(value);
  Py_DECREF(value);
  return safety;
}

static enum rc_py_put put_uuid(struct rc_py_encoding *encoding, PyObject *uuid) {
  uint64_t high, low;
  uint8_t data[17];
  int safety = -2;
  PyObject *value = PyObject_GetAttrString(uuid, "int");
  if (value && halves_of(value, &high, &low)) safety = safety_of(encoding->state, uuid);
  Py_XDECREF(value);
  if (PyErr_Occurred()) return leaf_unless_fatal();
  if (safety < -1) return RC_PY_PUT_LEAF;
  high = __builtin_bswap64(high);
  low = __builtin_bswap64(low);
  memcpy(data, &high, 8);
  memcpy(data + 8, &low, 8);
  data[16] = (uint8_t)safety;
  size_t bytes = 17;
  if (safety < 0) bytes = 16; /* unknown, as most are */
  return put_kind_of_bytes(encoding, RINGCAST_STANDARD_UUID, data, bytes);
}

/* The strs of (type of the path, strs); NULL: anything else. */
static PyObject *path_parts(PyObject *path, PyObject *reduced) {
  if (!PyTuple_CheckExact(reduced) || PyTuple_GET_SIZE(reduced) != 2) return NULL;
  PyObject *parts = PyTuple_GET_ITEM(reduced, 1);
  if (PyTuple_GET_ITEM(reduced, 0) != (PyObject *)Py_TYPE(path)) return NULL;
  if (!PyTuple_CheckExact(parts)) return NULL;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++) {
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(parts, i))) return NULL;
  }
  return parts;
}

static enum rc_py_put put_parts(struct rc_py_encoding *encoding, PyObject *parts) {
  Py_ssize_t count = PyTuple_GET_SIZE(parts);
  enum rc_py_put put = put_kind(encoding, RINGCAST_STANDARD_PUREWINDOWSPATH);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_head(encoding, RINGCAST_TAG_TUPLE, (uint64_t)count);
  for (Py_ssize_t i = 0; put == RC_PY_PUT_DONE && i < count; i++) {
    put = rc_py_put_text(encoding, PyTuple_GET_ITEM(parts, i));
  }
  return put;
}

/* The parts, as in WindowsPath's pickle. */
static enum rc_py_put put_windows_path(struct rc_py_encoding *encoding, PyObject *path) {
  PyObject *reduced = PyObject_CallMethod(path, "__reduce__", NULL);
  if (!reduced) return leaf_unless_fatal();
  PyObject *parts = path_parts(path, reduced);
  enum rc_py_put put = RC_PY_PUT_LEAF;
  if (parts) put = put_parts(encoding, parts);
  Py_DECREF(reduced);
  return put;
}

/* Whether the dtype has no more to it than `made`, without metadata: 1, 0, -1. */
static int is_same_dtype(PyObject *made, PyObject *dtype) {
  PyObject *metadata = PyObject_GetAttrString(dtype, "metadata");
  if (!metadata) return -1;
  bool may_be = metadata == Py_None && Py_TYPE(made) == Py_TYPE(dtype);
  Py_DECREF(metadata);
  if (!may_be) return 0;
  return PyObject_RichCompareBool(made, dtype, Py_EQ);
}

/* Whether NumPy makes the same dtype of the text: 1, 0, -1. */
static int is_its_text(struct rc_py_state *state, PyObject *dtype, PyObject *text) {
  if (!rc_py_is_dtype_text(text)) return 0;
  PyObject *made = PyObject_CallOneArg(state->standard[RINGCAST_STANDARD_DTYPE], text);
  if (!made) return -1;
  int same = made == dtype;
  if (!same) same = is_same_dtype(made, dtype);
  Py_DECREF(made);
  return same;
}

static enum rc_py_put put_dtype(struct rc_py_encoding *encoding, PyObject *dtype) {
  PyObject *text = PyObject_GetAttrString(dtype, "str");
  if (!text) return leaf_unless_fatal();
  int same = is_its_text(encoding->state, dtype, text);
  if (same > 0) return put_kind_of_text(encoding, RINGCAST_STANDARD_DTYPE, text);
  Py_DECREF(text);
  if (same < 0) return leaf_unless_fatal();
  return RC_PY_PUT_LEAF;
}

enum rc_py_put rc_py_put_standard(struct rc_py_encoding *encoding, int number, PyObject *value) {
  switch (number) {
  case RINGCAST_STANDARD_UUID: return put_uuid(encoding, value);
  case RINGCAST_STANDARD_PUREPOSIXPATH:
  case RINGCAST_STANDARD_POSIXPATH:
  case RINGCAST_STANDARD_DECIMAL: return put_kind_of_text(encoding, number, PyObject_Str(value));
  case RINGCAST_STANDARD_PUREWINDOWSPATH: return put_windows_path(encoding, value);
  case RINGCAST_STANDARD_ZONEINFO: return put_tzinfo(encoding, value);
  case RINGCAST_STANDARD_DTYPE: return put_dtype(encoding, value);
  default: return put_of_datetime(encoding, number, value);
  }
}

/* ---- Containers ------------------------------------------------------------------------------ */

/* New. NULL, also with nothing raised: the factory does not travel. */
static PyObject *factory_name(PyObject *defaultdict) {
  PyObject *factory = PyObject_GetAttrString(defaultdict, "default_factory"), *name = NULL;
  if (factory == Py_None) return factory;
  if (factory && PyType_Check(factory)) {
    name = PyUnicode_FromString(((PyTypeObject *)factory)->tp_name);
    if (name && rc_py_factory_of(name) != (PyTypeObject *)factory) Py_CLEAR(name);
  }
  Py_XDECREF(factory);
  return name;
}

/* An OrderedDict has an order apart from its dict's, and may have attributes. NULL, also with
 * nothing raised. */
static PyObject *ordered_items(PyObject *ordered) {
  PyObject *attributes = PyObject_GenericGetDict(ordered, NULL);
  bool has_none = attributes && PyDict_GET_SIZE(attributes) == 0;
  Py_XDECREF(attributes);
  if (!has_none) return NULL;
  return PyObject_CallOneArg((PyObject *)&PyDict_Type, ordered);
}

int rc_py_contents(int number, PyObject *container, struct rc_py_contents *out) {
  *out = (struct rc_py_contents){0};
  bool has_head = true;
  switch (number) {
  case RINGCAST_STANDARD_DEFAULTDICT:
    out->head = factory_name(container);
    out->items = Py_NewRef(container);
    break;
  case RINGCAST_STANDARD_DEQUE:
    out->head = PyObject_GetAttrString(container, "maxlen");
    if (out->head) out->items = PySequence_List(container);
    break;
  case RINGCAST_STANDARD_ORDEREDDICT:
    out->items = ordered_items(container);
    has_head = false;
    break;
  default:
    out->items = Py_NewRef(container);
    has_head = false;
    break;
  }
  if (out->items && (out->head || !has_head)) return 1;
  Py_CLEAR(out->head);
  Py_CLEAR(out->items);
  if (PyErr_Occurred()) return -1;
  return 0;
}
