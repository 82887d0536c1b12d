/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python's decoder, in a Python of our own: any bytes at all are received as an object, or refused
 * by one of ringcast's own exceptions. What is received is packed, received again and packed again:
 * the same bytes come of it, but for the order of sets. Nothing is leaked. The same bytes are
 * looked into by key, and viewed in place, which gives what receiving them gives. Pickles are not
 * allowed, as for a reader that does not trust its sender; torch, which a frame could only ask to
 * be imported, is not there.
 */
#include "python/extension/codec/inspect.h"
#include "python/extension/tensors.h"
#include "ringcast/object.h"

#include "tests/fuzz/fuzz.h"

PyMODINIT_FUNC PyInit__ringcast(void);
__attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes(void);

/* Python keeps memory to its end. What the decoder leaks is found below. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }

static struct rc_py_state *state;
static PyObject *pack_function, *own_error, *classes;

static int give_up(const char *reason) {
  PyErr_Print();
  fprintf(stderr, "\nSKIPPED fuzz_python: %s\n", reason);
  exit(0);
}

static const char without_torch[] = "import sys\n"
                                    "class WithoutTorch:\n"
                                    "    def find_spec(name, path=None, target=None):\n"
                                    "        if name == 'torch': raise ImportError(name)\n"
                                    "sys.meta_path.insert(0, WithoutTorch)\n";

/* The allocator of C, for the address sanitizer to see each object. */
static void start_python(void) {
  PyPreConfig before;
  PyConfig config;
  PyPreConfig_InitPythonConfig(&before);
  before.allocator = PYMEM_ALLOCATOR_MALLOC;
  before.parse_argv = 0;
  require(!PyStatus_Exception(Py_PreInitialize(&before)));
  require(PyImport_AppendInittab("ringcast._ringcast", PyInit__ringcast) == 0);
  PyConfig_InitPythonConfig(&config);
  config.parse_argv = 0;
  config.install_signal_handlers = 0;
  config.write_bytecode = 0;
  PyStatus status = Py_InitializeFromConfig(&config);
  if (PyStatus_Exception(status)) give_up("Python does not start here");
  PyConfig_Clear(&config);
}

/* An older Python looks for what is built in at the top only, and not in a package. */
static const char found_in_package[] =
    "import sys\n"
    "from importlib.machinery import BuiltinImporter\n"
    "class FoundInPackage:\n"
    "    def find_spec(name, path=None, target=None):\n"
    "        return BuiltinImporter.find_spec(name) if name == 'ringcast._ringcast' else None\n"
    "sys.meta_path.insert(0, FoundInPackage)\n";

int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  start_python();
  require(PyRun_SimpleString(found_in_package) == 0);
  if (!PyImport_ImportModule("numpy")) give_up("there is no NumPy for this Python (PYTHONPATH)");
  PyObject *module = PyImport_ImportModule("ringcast._ringcast");
  if (!module) give_up("the package ringcast is not on PYTHONPATH");
  require(PyRun_SimpleString(without_torch) == 0);
  state = PyModule_GetState(module);
  pack_function = PyObject_GetAttrString(module, "pack");
  own_error = rc_py_import("ringcast.exceptions", "Error");
  require(state && pack_function && own_error);
  /* Whose bounds a sanitizer knows. */
  PyObject *fresh = PyObject_CallMethod(module, "_recycling", "i", 0);
  require(fresh);
  Py_DECREF(fresh);
  return 0;
}

/* What reading a frame may raise is taken away; also `more`, if that is not NULL. */
static void clear_expected(PyObject *more) {
  bool expected = PyErr_ExceptionMatches(own_error) || PyErr_ExceptionMatches(PyExc_ImportError) ||
                  (more && PyErr_ExceptionMatches(more));
  if (!expected) PyErr_Print();
  require(expected);
  PyErr_Clear();
}

static PyObject *decode(const void *data, size_t bytes) {
  const struct ringcast_frame frame = {.data = data, .bytes = bytes, .kind = RINGCAST_KIND_TENSORS};
  const struct rc_py_decode_options options = {.classes = &classes, .allow_pickle = false};
  uint32_t tag;
  fuzzed_frames++;
  PyObject *object = rc_py_decode(state, &frame, &options, &tag);
  require(!object == !!PyErr_Occurred());
  if (!object) clear_expected(NULL);
  return object;
}

/* The bytes of a frame made of it. */
static PyObject *packed(PyObject *object) {
  PyObject *frame = PyObject_CallOneArg(pack_function, object);
  if (!frame) PyErr_Print();
  require(frame);
  PyObject *bytes = PyBytes_FromObject(frame);
  require(bytes);
  Py_DECREF(frame);
  return bytes;
}

/* A set has no order: numbers whose hashes collide stand in it as they came. So the same bytes
 * stand elsewhere. */
static bool is_a_set_reordered(PyObject *first, PyObject *second) {
  const unsigned char *one = (const unsigned char *)PyBytes_AS_STRING(first);
  const unsigned char *other = (const unsigned char *)PyBytes_AS_STRING(second);
  size_t bytes = (size_t)PyBytes_GET_SIZE(first);
  int64_t counts[256] = {0}, differing = 0;
  for (size_t i = 0; i < bytes; i++) {
    counts[one[i]]++;
    counts[other[i]]--;
  }
  for (int i = 0; i < 256; i++) differing += counts[i] != 0;
  return differing == 0 &&
         (memchr(one, RINGCAST_TAG_SET, bytes) || memchr(one, RINGCAST_TAG_FROZENSET, bytes));
}

static void there_and_back(PyObject *object) {
  PyObject *first = packed(object),
           *again = decode(PyBytes_AS_STRING(first), (size_t)PyBytes_GET_SIZE(first));
  require(again && Py_TYPE(again) == Py_TYPE(object));
  PyObject *second = packed(again);
  require(PyBytes_GET_SIZE(first) == PyBytes_GET_SIZE(second));
  bool is_same = memcmp(PyBytes_AS_STRING(first), PyBytes_AS_STRING(second),
                        (size_t)PyBytes_GET_SIZE(first)) == 0;
  require(is_same || is_a_set_reordered(first, second));
  Py_DECREF(second);
  Py_DECREF(again);
  Py_DECREF(first);
}

/* `found`, which is NULL if something was raised. */
static PyObject *expected(PyObject *found, PyObject *more) {
  require(!found == !!PyErr_Occurred());
  if (!found) clear_expected(more);
  return found;
}

/* Whether there are keys to look up: it is a dict whose keys are all str. */
static bool has_keys(PyObject *whole) {
  PyObject *key, *value;
  Py_ssize_t position = 0;
  if (!PyDict_CheckExact(whole)) return false;
  while (PyDict_Next(whole, &position, &key, &value)) {
    if (!PyUnicode_CheckExact(key)) return false;
  }
  return true;
}

/* Each item by its key; `whole` is all of them, or NULL: not all can be read. */
static void look_into(const void *data, size_t bytes, PyObject *whole) {
  const struct ringcast_frame frame = {.data = data, .bytes = bytes, .kind = RINGCAST_KIND_TENSORS};
  const struct rc_py_inspector looking = {.state = state, .frame = &frame, .classes = &classes};
  PyObject *keys = expected(rc_py_inspect_keys(&looking, NULL), PyExc_TypeError);
  PyObject *hashes = expected(rc_py_inspect_hashes(&looking, NULL), NULL);
  require(keys || !whole || !has_keys(whole));
  for (Py_ssize_t i = 0; keys && i < PyList_GET_SIZE(keys) && i < 20; i++) {
    PyObject *item = expected(rc_py_inspect_item(&looking, PyList_GET_ITEM(keys, i)), NULL);
    require(item || !whole);
    Py_XDECREF(item);
  }
  Py_XDECREF(keys);
  Py_XDECREF(hashes);
}

/* `whole` is what receiving gave. */
static void view(const void *data, size_t bytes, PyObject *whole) {
  const struct ringcast_frame frame = {.data = data, .bytes = bytes, .kind = RINGCAST_KIND_TENSORS};
  static struct rc_py_hold *hold; /* has nothing to unmap */
  if (!hold) hold = rc_py_hold_new(NULL);
  require(hold);
  const struct rc_py_decode_options options = {.classes = &classes, .hold = hold};
  uint32_t tag;
  PyObject *viewed = expected(rc_py_decode(state, &frame, &options, &tag), NULL);
  require(!viewed == !whole);
  if (viewed) {
    PyObject *first = packed(viewed), *second = packed(whole);
    require(PyBytes_GET_SIZE(first) == PyBytes_GET_SIZE(second));
    bool is_same = memcmp(PyBytes_AS_STRING(first), PyBytes_AS_STRING(second),
                          (size_t)PyBytes_GET_SIZE(first)) == 0;
    require(is_same || is_a_set_reordered(first, second));
    Py_DECREF(first);
    Py_DECREF(second);
  }
  Py_XDECREF(viewed);
}

static void once(const uint8_t *data, size_t bytes) {
  PyObject *object = decode(data, bytes);
  if (object) there_and_back(object);
  look_into(data, bytes, object);
  view(data, bytes, object);
  Py_XDECREF(object);
}

/* What Python allows itself to keep, for now. */
static void tidy(void) {
  PyGC_Collect();
  PyType_ClearCache(); /* it holds the names that were looked up lately */
}

/* What Python keeps for the next time it keeps once, or a few times. */
static bool leaks(const uint8_t *data, size_t bytes) {
  if (!__sanitizer_get_current_allocated_bytes) return false;
  for (int i = 0; i < 40; i++) {
    if (i > 5) tidy();
    size_t before = __sanitizer_get_current_allocated_bytes();
    once(data, bytes);
    if (i > 5) tidy();
    if (__sanitizer_get_current_allocated_bytes() <= before) return false;
  }
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  uint8_t *frame = malloc(bytes); /* a block of just its size */
  if (bytes != 0) memcpy(frame, data, bytes);
  once(frame, bytes);
  require(!leaks(frame, bytes));
  free(frame);
  return 0;
}
