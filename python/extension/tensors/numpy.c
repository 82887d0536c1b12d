/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy arrays, through the buffer protocol: no build against NumPy, and the export keeps the
 * memory in place. */
#include "python/extension/tensors.h"

static bool numpy_load(struct rc_py_state *state, PyObject *module) {
  struct rc_py_numpy *numpy = &state->numpy;
  PyObject *ndarray = PyObject_GetAttrString(module, "ndarray");
  PyObject *make_dtype = PyObject_GetAttrString(module, "dtype");
  if (!numpy->empty) numpy->empty = PyObject_GetAttrString(module, "empty");
  if (!numpy->frombuffer) numpy->frombuffer = PyObject_GetAttrString(module, "frombuffer");
  bool ok = ndarray && make_dtype && numpy->empty && numpy->frombuffer;
  for (int i = 0; ok && i < RC_PY_DTYPES; i++) {
    if (!rc_py_dtypes[i].numpy || numpy->dtypes[i]) continue;
    numpy->dtypes[i] = PyObject_CallFunction(make_dtype, "s", rc_py_dtypes[i].numpy);
    ok = numpy->dtypes[i] != NULL;
  }
  Py_XDECREF(make_dtype);
  if (ok && !numpy->ndarray) numpy->ndarray = Py_NewRef(ndarray);
  Py_XDECREF(ndarray);
  return ok;
}

/* Without an imported module, no array exists; during the import neither. */
static bool numpy_seen(struct rc_py_state *state) {
  if (state->numpy.ndarray) return true;
  PyObject *module = PyImport_GetModule(state->names.numpy);
  bool seen = module && numpy_load(state, module);
  if (!seen) PyErr_Clear();
  Py_XDECREF(module);
  return seen;
}

/* DLPack's code of a buffer's format; -1: none. */
static int code_of(char format, bool is_complex) {
  if (is_complex) return strchr("fd", format) ? 5 : -1;
  if (strchr("bhilq", format)) return 0;
  if (strchr("BHILQ", format)) return 1;
  if (strchr("efd", format)) return 2;
  return format == '?' ? RC_PY_BOOL_CODE : -1;
}

/* The dtype of a buffer's format, in native byte order. False: no dtype of a frame. */
static bool format_dtype(const char *format, Py_ssize_t size, struct ringcast_dtype *out) {
  if (!format) return false;
  bool is_complex = format[0] == 'Z';
  if (is_complex) format++;
  if (format[0] == '\0' || format[1] != '\0') return false;
  int code = code_of(format[0], is_complex);
  if (code < 0 || size > 16) return false;
  *out = (struct ringcast_dtype){.code = (uint8_t)code, .bits = (uint8_t)(size * 8), .lanes = 1};
  return rc_py_dtype_find(*out) >= 0;
}

/* Sets the shape and, unless the array is in C order, the strides, counted in elements. 0: a stride
 * is no multiple, or an element is misaligned. */
static int fill_dims(struct rc_py_source *source) {
  const Py_buffer *view = &source->view;
  size_t ndim = (size_t)view->ndim;
  if (view->ndim > RINGCAST_MAX_NDIM || view->itemsize <= 0) return 0;
  uintptr_t alignment = view->itemsize > 8 ? 8 : (uintptr_t)view->itemsize;
  if ((uintptr_t)view->buf % alignment != 0) return 0;
  int64_t *dims = PyMem_New(int64_t, 2 * ndim + 1);
  if (!dims) {
    PyErr_NoMemory();
    return -1;
  }
  source->dims = dims;
  source->tensor.shape = dims;
  if (ndim > 0) memcpy(dims, view->shape, ndim * sizeof *dims);
  if (PyBuffer_IsContiguous(view, 'C')) return 1;
  source->tensor.strides = dims + ndim;
  for (size_t i = 0; i < ndim; i++) {
    if (view->strides[i] % view->itemsize) return 0;
    dims[ndim + i] = view->strides[i] / view->itemsize;
  }
  return 1;
}

static bool get_buffer(PyObject *array, int flags, Py_buffer *view) {
  if (PyObject_GetBuffer(array, view, flags) == 0) return true;
  view->obj = NULL;
  PyErr_Clear(); /* datetimes and the like have no buffer */
  return false;
}

/* The index of NumPy's own object for a plain number, which most arrays have; -1: another
 * object. */
static int plain_index(const struct rc_py_numpy *numpy, const PyObject *dtype) {
  for (int i = 0; i < RC_PY_DTYPES; i++) {
    if (numpy->dtypes[i] == dtype) return i;
  }
  return -1;
}

/* A buffer's format leaves out the metadata. */
static bool has_metadata(struct rc_py_state *state, PyObject *dtype) {
  PyObject *metadata = PyObject_GetAttr(dtype, state->names.metadata);
  Py_XDECREF(metadata);
  return metadata != Py_None;
}

static bool get_numbers(struct rc_py_state *state, PyObject *array, PyObject *dtype,
                        struct rc_py_source *out) {
  Py_buffer *view = &out->view;
  int index = plain_index(&state->numpy, dtype);
  out->tensor.dtype = rc_py_dtypes[index < 0 ? 0 : index].dtype;
  if (index >= 0) return get_buffer(array, PyBUF_STRIDES, view);
  return !has_metadata(state, dtype) && get_buffer(array, PyBUF_STRIDES | PyBUF_FORMAT, view) &&
         format_dtype(view->format, view->itemsize, &out->tensor.dtype);
}

static int describe(struct rc_py_state *state, PyObject *array, struct rc_py_source *out) {
  PyObject *dtype = PyObject_GetAttr(array, state->names.dtype);
  if (!dtype) return -1;
  bool is_numbers = get_numbers(state, array, dtype, out);
  Py_DECREF(dtype);
  if (!is_numbers) return PyErr_Occurred() ? -1 : 0;
  out->tensor = (struct ringcast_tensor){.data = out->view.buf,
                                         .dtype = out->tensor.dtype,
                                         .ndim = out->view.ndim,
                                         .flags = RINGCAST_ITEM_NUMPY};
  return fill_dims(out);
}

int rc_py_numpy_describe(struct rc_py_state *state, PyObject *object, struct rc_py_source *out) {
  if (!numpy_seen(state) || (PyObject *)Py_TYPE(object) != state->numpy.ndarray) return 0;
  int described = describe(state, object, out);
  if (described <= 0) rc_py_source_clear(out);
  return described;
}

/* Byte by byte: the last axis is an element. */
static bool describe_elements(PyObject *array, struct rc_py_source *out) {
  Py_buffer *view = &out->view;
  if (PyObject_GetBuffer(array, view, PyBUF_STRIDES) < 0) {
    view->obj = NULL;
    return false;
  }
  size_t count = (size_t)view->ndim;
  size_t bytes = count * sizeof *out->dims;
  int64_t *dims = PyMem_New(int64_t, 2 * count + 2);
  if (!dims) {
    PyErr_NoMemory();
    return false;
  }
  out->dims = dims;
  if (count > 0) { /* else there may be no shape to copy from */
    memcpy(dims, view->shape, bytes);
    memcpy(dims + count + 1, view->strides, bytes);
  }
  dims[count] = view->itemsize;
  dims[2 * count + 1] = 1;
  out->tensor = (struct ringcast_tensor){.data = view->buf,
                                         .dtype = {.code = 1, .bits = 8, .lanes = 1},
                                         .ndim = view->ndim + 1,
                                         .shape = dims,
                                         .strides = dims + count + 1,
                                         .flags = RINGCAST_ITEM_NUMPY};
  return true;
}

PyObject *rc_py_numpy_describe_bytes(struct rc_py_state *state, PyObject *object,
                                     struct rc_py_source *out) {
  struct rc_py_numpy *numpy = &state->numpy;
  if (!numpy_seen(state)) return NULL;
  if (!PyObject_TypeCheck(object, (PyTypeObject *)numpy->ndarray)) return NULL;
  if (!numpy->text_of) numpy->text_of = rc_py_import("ringcast._arrays", "text_of");
  if (!numpy->text_of) return NULL;
  PyObject *text = PyObject_CallOneArg(numpy->text_of, object);
  if (text && PyUnicode_Check(text) && describe_elements(object, out)) return text;
  Py_XDECREF(text);
  return NULL;
}

PyObject *rc_py_numpy_of_bytes(struct rc_py_state *state, PyObject *text, PyObject *elements,
                               bool is_record, PyObject **dtypes) {
  struct rc_py_numpy *numpy = &state->numpy;
  if (!numpy->make) numpy->make = rc_py_import("ringcast._arrays", "make");
  if (!numpy->make) return NULL;
  if (!*dtypes) *dtypes = PyDict_New();
  if (!*dtypes) return NULL;
  PyObject *record = is_record ? Py_True : Py_False;
  PyObject *array =
      PyObject_CallFunctionObjArgs(numpy->make, text, elements, record, *dtypes, NULL);
  if (array != Py_None) return array; /* an exception is a signal handler's */
  Py_DECREF(array);
  return rc_py_raise_damaged(state, "a dtype or elements that make no array");
}

PyObject *rc_py_numpy_base(struct rc_py_state *state, PyObject *object) {
  if (!numpy_seen(state) || (PyObject *)Py_TYPE(object) != state->numpy.ndarray) return NULL;
  PyObject *base = PyObject_GetAttrString(object, "base");
  if (!base) PyErr_Clear();
  Py_XDECREF(base); /* the array keeps `base` */
  return base;
}

/* numpy.ndarray(shape, dtype, memory, 0, strides); `memory` NULL: fresh memory. */
static PyObject *make_over(struct rc_py_state *state, const struct ringcast_item *item,
                           PyObject *dtype, PyObject *memory) {
  bool is_c_order = rc_py_is_c_order(item->ndim, item->shape, item->strides);
  PyObject *shape = rc_py_dims(item->shape, item->ndim, 1);
  PyObject *strides =
      is_c_order ? Py_NewRef(Py_None) : rc_py_dims(item->strides, item->ndim, item->dtype.bits / 8);
  PyObject *array = NULL;
  if (shape && strides && is_c_order && !memory) {
    array = PyObject_CallFunctionObjArgs(state->numpy.empty, shape, dtype, NULL);
  } else if (shape && strides) {
    array = PyObject_CallFunction(state->numpy.ndarray, "OOOiO", shape, dtype,
                                  memory ? memory : Py_None, 0, strides);
  }
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return array;
}

/* With memory of NumPy's. */
static PyObject *make_new(struct rc_py_state *state, const struct ringcast_item *item,
                          PyObject *dtype, void **out) {
  Py_buffer view;
  PyObject *array = make_over(state, item, dtype, NULL);
  if (!array || PyObject_GetBuffer(array, &view, PyBUF_STRIDED) < 0) {
    Py_XDECREF(array);
    return NULL;
  }
  /* The array is new and has no other user, so its memory stays in place without the export. */
  *out = view.buf;
  PyBuffer_Release(&view);
  return array;
}

static bool numpy_needed(struct rc_py_state *state) {
  if (numpy_seen(state)) return true;
  PyObject *module = PyImport_ImportModule("numpy");
  bool loaded = module && numpy_load(state, module);
  Py_XDECREF(module);
  if (loaded || !PyErr_ExceptionMatches(PyExc_ImportError)) return loaded;
  PyErr_SetString(PyExc_ImportError,
                  "the frame holds NumPy arrays or numbers, and NumPy can't be imported here: "
                  "install numpy in this process's environment, or send array.array");
  return false;
}

PyObject *rc_py_numpy_dtype(struct rc_py_state *state, struct ringcast_dtype dtype) {
  int index = rc_py_dtype_find(dtype);
  if (!numpy_needed(state) || index < 0) return NULL;
  return state->numpy.dtypes[index];
}

PyObject *rc_py_numpy_over_bytes(struct rc_py_state *state, PyObject *data, PyObject *dtype) {
  return PyObject_CallFunctionObjArgs(state->numpy.frombuffer, data, dtype, NULL);
}

/* Borrowed. NULL: raised. */
static PyObject *needed_dtype(struct rc_py_state *state, const struct ringcast_item *item) {
  int index = rc_py_dtype_of(item);
  if (!numpy_needed(state)) return NULL;
  if (index >= 0 && state->numpy.dtypes[index]) return state->numpy.dtypes[index];
  return rc_py_raise_text(state, EPROTO,
                          "the frame holds an array of dtype code %d, %d bits, which NumPy lacks",
                          item->dtype.code, item->dtype.bits);
}

PyObject *rc_py_numpy_over(struct rc_py_state *state, const struct ringcast_item *item,
                           PyObject *memory) {
  PyObject *dtype = needed_dtype(state, item);
  if (!dtype) return NULL;
  PyObject *array = make_over(state, item, dtype, memory);
  if (!array) rc_py_protocol_from_current(state, "NumPy can't make its array");
  return array;
}

PyObject *rc_py_numpy_make(struct rc_py_state *state, const struct ringcast_item *item,
                           uint64_t bytes, void **out) {
  PyObject *dtype = needed_dtype(state, item);
  if (!dtype) return NULL;
  PyObject *memory = NULL, *array;
  if (bytes >= RC_PY_RECYCLE_LEAST) memory = rc_py_memory_take(state, bytes, out);
  if (memory) array = make_over(state, item, dtype, memory);
  else array = make_new(state, item, dtype, out);
  Py_XDECREF(memory);
  if (!array) rc_py_protocol_from_current(state, "NumPy can't make its array");
  return array;
}
