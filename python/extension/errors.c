/* SPDX-License-Identifier: Apache-2.0 */
/* From errno to exception. The classes are Python's, in ringcast/exceptions.py; the sentences are
 * the library's. */
#include "python/extension/errors.h"

#include <stdarg.h>

#include "ringcast/inspect.h"

PyObject *rc_py_import(const char *module_name, const char *name) {
  PyObject *module = PyImport_ImportModule(module_name);
  if (!module) return NULL;
  PyObject *object = PyObject_GetAttrString(module, name);
  Py_DECREF(module);
  return object;
}

/* The import may run code that comes here and keeps the object first. */
bool rc_py_import_once(PyObject **kept, const char *module_name, const char *name) {
  if (*kept) return true;
  PyObject *object = rc_py_import(module_name, name);
  if (!object) return false;
  if (*kept) Py_DECREF(object);
  else *kept = object;
  return true;
}

bool rc_py_clear_passing(void) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  if (PyErr_ExceptionMatches(PyExc_MemoryError)) return false;
  PyErr_Clear();
  return true;
}

int rc_py_errors_init(struct rc_py_state *state) {
  static const char *const module = "ringcast.exceptions";
  state->error = rc_py_import(module, "Error");
  if (!state->error) return -1;
  state->error_by_errno = rc_py_import(module, "_BY_ERRNO");
  if (!state->error_by_errno) return -1;
  state->writer_gone = rc_py_import(module, "WriterGone");
  return state->writer_gone ? 0 : -1;
}

/* Sets *error to the current exception as an object, with its traceback; none is set then. */
static void fetch(PyObject **error) {
  PyObject *type, *traceback;
  PyErr_Fetch(&type, error, &traceback);
  PyErr_NormalizeException(&type, error, &traceback);
  if (*error && traceback) PyException_SetTraceback(*error, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
}

/* Consumes `text`. When the interpreter ends, a handle may outlive its module: the state is then
 * NULL or empty. */
static PyObject *raise_errno(struct rc_py_state *state, int errnum, PyObject *text) {
  if (!state || !state->error_by_errno) {
    if (text) PyErr_SetObject(PyExc_OSError, text);
    Py_XDECREF(text);
    return NULL;
  }
  if (!text) return NULL;
  PyObject *type = NULL;
  PyObject *number = PyLong_FromLong(errnum);
  if (number) type = PyDict_GetItemWithError(state->error_by_errno, number);
  if (number && !type && !PyErr_Occurred()) type = state->error;
  if (type) {
    PyObject *exception = PyObject_CallFunctionObjArgs(type, number, text, NULL);
    if (exception) PyErr_SetObject(type, exception);
    Py_XDECREF(exception);
  }
  Py_XDECREF(number);
  Py_DECREF(text);
  return NULL;
}

/* ringcast_last_error() in Python's words: a field of an options struct is an argument in
 * Python. */
static PyObject *last_error(void) {
  static const char *const words[][2] = {{"options.on_death = RINGCAST_EVICT", "on_death='evict'"},
                                         {"options.on_slow = RINGCAST_EVICT", "on_slow='evict'"},
                                         {"options.slow_ns", "slow"},
                                         {"options.", ""}};
  const char *sentence = ringcast_last_error();
  PyObject *text = PyUnicode_DecodeUTF8(sentence, (Py_ssize_t)strlen(sentence), "replace");
  for (size_t i = 0; text && i < sizeof words / sizeof *words; i++) {
    PyObject *plain = PyObject_CallMethod(text, "replace", "ss", words[i][0], words[i][1]);
    Py_DECREF(text);
    text = plain;
  }
  return text;
}

PyObject *rc_py_raise(struct rc_py_state *state, int rc) {
  if (rc == RC_PY_RAISED || rc == RC_PY_OF_VALUE) return NULL;
  PyObject *text = last_error();
  PyObject *type;
  switch (rc) {
  case -EINVAL:
  case -ENOTUNIQ: type = PyExc_ValueError; break;
  case -EAGAIN:
  case -ETIMEDOUT: type = PyExc_TimeoutError; break;
  default: return raise_errno(state, -rc, text);
  }
  if (text) PyErr_SetObject(type, text);
  Py_XDECREF(text);
  return NULL;
}

/* The smallest capacity of a ring for frames of `bytes`; the ring's overhead is the same for every
 * capacity. 0: no ring is so large. */
static uint64_t capacity_for(const struct ringcast_info *info, uint64_t bytes) {
  uint64_t kept = info->capacity / 2 - info->ring_frame;
  uint64_t capacity = info->capacity;
  while (capacity <= RC_PY_MOST_BYTES && capacity / 2 - kept < bytes) capacity *= 2;
  return capacity <= RC_PY_MOST_BYTES ? capacity : 0;
}

/* The least spill memory for a frame of `bytes`: whole pieces of 2 MiB; a frame starts 16 bytes
 * into a cache line. 0: the maximum is exceeded. */
static uint64_t spill_bytes_for(uint64_t bytes) {
  const uint64_t piece = UINT64_C(2) << 20;
  const uint64_t phase = 16;
  if (bytes > RC_PY_MOST_BYTES - phase) return 0;
  return (bytes + phase + piece - 1) & ~(piece - 1);
}

/* Sets an attribute that is a mere hint, unless `number` is 0. */
static void hint(PyObject *exception, const char *name, uint64_t number) {
  if (number == 0) return;
  PyObject *value = PyLong_FromUnsignedLongLong(number);
  if (!value || PyObject_SetAttrString(exception, name, value) < 0) PyErr_Clear();
  Py_XDECREF(value);
}

PyObject *rc_py_raise_of_frame(struct rc_py_state *state, int rc, const struct ringcast_info *info,
                               uint64_t bytes) {
  rc_py_raise(state, rc);
  if (rc != -EMSGSIZE) return NULL;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  hint(value, "spill_bytes", spill_bytes_for(bytes));
  if (info->spill_bytes == 0) hint(value, "capacity", capacity_for(info, bytes));
  PyErr_Restore(type, value, traceback);
  return NULL;
}

/* Of each line, if `has_lines`, or else of the whole. Returns the length of the copy. */
static size_t print_lines(const char *from, size_t left, bool has_lines, char *out, size_t room) {
  size_t used = 0;
  for (;;) {
    const char *end = NULL;
    if (has_lines) end = memchr(from, '\n', left);
    size_t length = end ? (size_t)(end - from) : left;
    used += ringcast_printable(from, length, out + used, room - used);
    if (!end) return used;
    out[used++] = '\n';
    from = end + 1;
    left -= length + 1;
  }
}

PyObject *rc_py_printable(PyObject *text, bool has_lines) {
  PyObject *bytes = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
  if (!bytes) return NULL;
  size_t length = (size_t)PyBytes_GET_SIZE(bytes);
  size_t room = 4 * length + 1;
  char *out = PyMem_Malloc(room);
  PyObject *made = NULL;
  if (out) {
    size_t used = print_lines(PyBytes_AS_STRING(bytes), length, has_lines, out, room);
    made = PyUnicode_DecodeUTF8(out, (Py_ssize_t)used, NULL);
  } else {
    PyErr_NoMemory();
  }
  PyMem_Free(out);
  Py_DECREF(bytes);
  return made;
}

PyObject *rc_py_raise_text(struct rc_py_state *state, int errnum, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyObject *text = PyUnicode_FromFormatV(format, arguments);
  va_end(arguments);
  PyObject *shown = text ? rc_py_printable(text, false) : NULL;
  Py_XDECREF(text);
  return raise_errno(state, errnum, shown);
}

PyObject *rc_py_raise_lines(struct rc_py_state *state, int errnum, PyObject *text) {
  return raise_errno(state, errnum, rc_py_printable(text, true));
}

PyObject *rc_py_raise_damaged(struct rc_py_state *state, const char *what) {
  return rc_py_raise_text(state, EPROTO, "the frame is damaged or of another build: %s", what);
}

/* A subclass of RuntimeError (RecursionError, NotImplementedError, torch.OutOfMemoryError) has a
 * better text than "damaged". */
static bool may_come_of_damage(void) {
  return PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_TypeError) ||
         PyErr_ExceptionMatches(PyExc_OverflowError) || PyErr_Occurred() == PyExc_RuntimeError;
}

/* The name of the module whose code the traceback's entry is of. NULL: unknown. */
static PyObject *module_of(PyObject *entry) {
  PyObject *globals = NULL, *name = NULL;
  PyObject *frame = PyObject_GetAttrString(entry, "tb_frame");
  if (frame) globals = PyObject_GetAttrString(frame, "f_globals");
  if (globals && PyDict_Check(globals)) name = PyDict_GetItemString(globals, "__name__");
  name = name && PyUnicode_Check(name) ? Py_NewRef(name) : NULL;
  Py_XDECREF(globals);
  Py_XDECREF(frame);
  return name;
}

/* Whether the package is the standard library's, NumPy, torch or this one. */
static bool is_library(PyObject *package) {
  static const char *const others[] = {"ringcast", "numpy", "torch"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (PyUnicode_CompareWithASCIIString(package, others[i]) == 0) return true;
  }
  PyObject *standard = PySys_GetObject("stdlib_module_names");
  return standard && PySequence_Contains(standard, package) > 0;
}

static bool is_of_library(PyObject *entry) {
  PyObject *name = module_of(entry), *parts = NULL;
  if (name) parts = PyObject_CallMethod(name, "partition", "s", ".");
  bool is_one = parts && is_library(PyTuple_GET_ITEM(parts, 0));
  Py_XDECREF(parts);
  Py_XDECREF(name);
  PyErr_Clear();
  return is_one;
}

bool rc_py_is_of_libraries(void) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject *entry = Py_NewRef(traceback ? traceback : Py_None);
  bool all = true;
  while (all && entry && entry != Py_None) {
    all = is_of_library(entry);
    PyObject *next = PyObject_GetAttrString(entry, "tb_next");
    Py_DECREF(entry);
    entry = next;
  }
  Py_XDECREF(entry);
  PyErr_Restore(type, value, traceback);
  return all;
}

/* Makes `cause` the __cause__ of the current exception; consumes `cause`. */
static void set_cause(PyObject *cause) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value && cause) PyException_SetCause(value, cause);
  else Py_XDECREF(cause);
  PyErr_Restore(type, value, traceback);
}

void rc_py_protocol_from_current(struct rc_py_state *state, const char *what) {
  if (!may_come_of_damage() || !rc_py_is_of_libraries()) return;
  PyObject *error;
  fetch(&error);
  rc_py_raise_text(state, EPROTO, "the frame is damaged or of another build: %s: %S", what,
                   error ? error : Py_None);
  set_cause(error);
}

void rc_py_end_iteration(struct rc_py_state *state, bool has_ended) {
  /* Decoding may have raised the WriterGone of another Reader, or the device part its own. */
  if (has_ended && PyErr_ExceptionMatches(state->writer_gone)) {
    PyErr_Clear();
    return;
  }
  if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return;
  PyObject *error;
  fetch(&error);
  PyErr_Format(PyExc_RuntimeError, "a value was not received, as its own code raised %.200R",
               error);
  set_cause(error);
}

PyObject *rc_py_raise_exported(Py_ssize_t exports, const char *verb, const char *what) {
  if (exports == 1) {
    return PyErr_Format(PyExc_BufferError,
                        "can't %s: 1 memoryview of the %s is in use; release() it first, or drop "
                        "every array made of it",
                        verb, what);
  }
  return PyErr_Format(PyExc_BufferError,
                      "can't %s: %zd memoryviews of the %s are in use; release() them first, or "
                      "drop every array made of them",
                      verb, exports, what);
}

/* For a handle that the library refuses; `text` is the handle's UTF-8. */
static PyObject *raise_no_handle(PyObject *handle, const char *text) {
  size_t length = strlen(text);
  const char *start = strstr(text, "rc1:");
  if (start && (start != text || !Py_ISALNUM(text[length - 1]))) {
    return PyErr_Format(PyExc_ValueError,
                        "not a ringcast handle, there is something before or after it: %.150R; "
                        "take the writer's handle whole",
                        handle);
  }
  return PyErr_Format(PyExc_ValueError,
                      "not a ringcast handle: %.150R (it should look like rc1:<pid>:...); take the "
                      "writer's handle whole, or find it by the ring's name: ringcast.find(name)",
                      handle);
}

/* The library may have refused a variable of the environment, and not the handle. */
PyObject *rc_py_raise_of_attach(struct rc_py_state *state, int rc, PyObject *handle,
                                const char *text) {
  bool is_refused = rc == -EINVAL && strstr(ringcast_last_error(), "not a ringcast handle");
  if (is_refused) return raise_no_handle(handle, text);
  return rc_py_raise(state, rc);
}
