/* SPDX-License-Identifier: Apache-2.0 */
/* What Writer() is told, as the library takes it. */
#include "python/extension/handles/writer.h"

static bool memory_number(const char *name, uint32_t *out) {
  for (uint32_t i = 0; ringcast_memory_name(i); i++) {
    if (strcmp(name, ringcast_memory_name(i)) != 0) continue;
    *out = i;
    return true;
  }
  PyErr_Format(PyExc_ValueError, "memory must be 'auto', 'hugetlb', 'shmem-huge' or 'pages', not '%s'", name);
  return false;
}

/* "local", "none", "interleaved", or a node's number. */
static bool numa_number(PyObject *object, uint32_t *numa, uint32_t *node) {
  static const char *const names[] = {
      [RINGCAST_NUMA_LOCAL] = "local", [RINGCAST_NUMA_NONE] = "none", [RINGCAST_NUMA_INTERLEAVED] = "interleaved"};
  uint64_t value;
  if (!PyUnicode_Check(object)) {
    if (!rc_py_integer("numa", object, 0, UINT32_MAX, &value)) return false;
    *numa = RINGCAST_NUMA_NODE;
    *node = (uint32_t)value;
    return true;
  }
  for (uint32_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (PyUnicode_CompareWithASCIIString(object, names[i]) != 0) continue;
    *numa = i;
    return true;
  }
  PyErr_Format(PyExc_ValueError, "numa must be 'local', 'none', 'interleaved' or the number of a node, not %R", object);
  return false;
}

/* None -> 0 (default); 0 -> none; bytes. */
static bool spill_number(PyObject *object, uint64_t *out) {
  if (object == Py_None) return true;
  if (!rc_py_integer("spill_bytes", object, 0, RC_PY_MOST_BYTES, out)) return false;
  if (*out == 0) *out = RINGCAST_NO_SPILL;
  return true;
}

static bool policy_number(const char *name, const char *text, uint32_t *out) {
  static const char *const policies[] = {[RINGCAST_FAIL] = "fail", [RINGCAST_EVICT] = "evict"};
  for (uint32_t i = 0; i < sizeof policies / sizeof *policies; i++) {
    if (strcmp(text, policies[i]) != 0) continue;
    *out = i;
    return true;
  }
  PyErr_Format(PyExc_ValueError, "%s must be 'fail' or 'evict', not '%s'", name, text);
  return false;
}

/* What to do about readers that the writer can't wait for. */
static bool take_policies(const char *on_death, const char *on_slow, PyObject *slow,
                          struct ringcast_writer_options *out) {
  if (!policy_number("on_death", on_death, &out->on_death) || !policy_number("on_slow", on_slow, &out->on_slow)) {
    return false;
  }
  if (!rc_py_slow(slow, &out->slow_ns)) return false;
  if (out->on_slow == RINGCAST_FAIL || out->slow_ns > 0) return true;
  PyErr_SetString(PyExc_ValueError, "on_slow='evict' needs slow, the seconds that a reader may be in the way");
  return false;
}

bool rc_py_writer_options(PyObject *args, PyObject *keywords, struct ringcast_writer_options *out, bool *allow_pickle,
                          uint64_t *gpu_pool_bytes) {
  static char *names[] = {"capacity", "readers", "memory", "spin",           "numa", "spill_bytes", "allow_pickle",
                          "on_death", "on_slow", "slow",   "gpu_pool_bytes", "wait", NULL};
  PyObject *capacity = Py_None, *readers = NULL, *spin = Py_None, *numa = NULL, *spill = Py_None, *pickle = Py_None;
  PyObject *slow = Py_None, *pool = Py_None;
  const char *memory = "auto", *on_death = "fail", *on_slow = "fail", *wait = "balanced";
  uint64_t value = 64;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO$sOOOOssOOs:Writer", names, &capacity, &readers, &memory, &spin,
                                   &numa, &spill, &pickle, &on_death, &on_slow, &slow, &pool, &wait)) {
    return false;
  }
  *out = (struct ringcast_writer_options){.size = sizeof *out};
  if (capacity != Py_None && !rc_py_integer("capacity", capacity, 1, RC_PY_MOST_BYTES, &out->capacity)) return false;
  if (readers && !rc_py_integer("readers", readers, 1, RC_PY_MOST_READERS, &value)) return false;
  out->readers = (uint32_t)value;
  if (numa && !numa_number(numa, &out->numa, &out->numa_node)) return false;
  if (!spill_number(spill, &out->spill_bytes) || !rc_py_allow_pickle(pickle, allow_pickle)) return false;
  if (!take_policies(on_death, on_slow, slow, out)) return false;
  *gpu_pool_bytes = 0;
  if (pool != Py_None) {
    if (!rc_py_integer("gpu_pool_bytes", pool, 0, RC_PY_MOST_BYTES, gpu_pool_bytes)) return false;
    if (*gpu_pool_bytes == 0) *gpu_pool_bytes = RINGCAST_NO_POOL;
  }
  return memory_number(memory, &out->memory) && rc_py_spin(spin, &out->spin_ns) && rc_py_wait_mode(wait, &out->wait);
}
