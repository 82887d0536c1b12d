/* SPDX-License-Identifier: Apache-2.0 */
/* The status of Writer, Reader, Tap and ring: the C structs as the named tuples of _status.py. And
 * the rings of the machine, by name. */
#include "python/extension/handles/status.h"

#include "python/extension/errors.h"

#include "ringcast/inspect.h"

static PyObject *make_stats(struct rc_py_state *state, const struct ringcast_stats *stats) {
  const Py_ssize_t buckets = sizeof stats->histogram / sizeof *stats->histogram;
  PyObject *histogram = PyTuple_New(buckets);
  for (Py_ssize_t i = 0; histogram && i < buckets; i++) {
    PyObject *count = PyLong_FromUnsignedLong(stats->histogram[i]);
    if (count) PyTuple_SET_ITEM(histogram, i, count);
    else Py_CLEAR(histogram);
  }
  if (!histogram) return NULL;
  return PyObject_CallFunction(
      state->stats, "KKKKKKNKKK", (unsigned long long)stats->frames,
      (unsigned long long)stats->bytes, (unsigned long long)stats->waits,
      (unsigned long long)stats->sleeps, (unsigned long long)stats->wakes,
      (unsigned long long)stats->waited_ns, histogram, (unsigned long long)stats->estimate_hits,
      (unsigned long long)stats->grown, (unsigned long long)stats->wasted_bytes);
}

static const char *memory_name(const struct ringcast_info *info) {
  const char *name = ringcast_memory_name(info->memory);
  return name ? name : "unknown"; /* a number of a later release */
}

PyObject *rc_py_memory(const struct ringcast_info *info) {
  return PyUnicode_FromString(memory_name(info));
}

static PyObject *make_info(struct rc_py_state *state, const struct ringcast_info *info) {
  static const char *const numas[] = {"local", "none", "interleaved", "node"};
  const char *numa = info->numa < 4 ? numas[info->numa] : "unknown";
  return PyObject_CallFunction(
      state->info, "KKKIsKiLsIiiKKKs", (unsigned long long)info->capacity,
      (unsigned long long)info->max_frame, (unsigned long long)info->tail, (unsigned)info->readers,
      memory_name(info), (unsigned long long)info->page_size, (int)info->writer_pid,
      (long long)info->spin_ns, numa, (unsigned)info->numa_node, (int)info->numa_error,
      (int)info->spill_error, (unsigned long long)info->ring_frame,
      (unsigned long long)info->spill_bytes, (unsigned long long)info->spill_used, info->name);
}

PyObject *rc_py_info(struct rc_py_state *state, const struct ringcast_info *info, int rc) {
  if (rc < 0) return rc_py_raise(state, rc);
  return make_info(state, info);
}

PyObject *rc_py_stats(struct rc_py_state *state, const struct ringcast_stats *stats, int rc) {
  if (rc < 0) return rc_py_raise(state, rc);
  return make_stats(state, stats);
}

PyObject *rc_py_handle_repr(const struct rc_py_handle *handle, const struct ringcast_info *info) {
  const char *type = Py_TYPE((PyObject *)handle)->tp_name;
  const char *now = handle->closed ? "closed" : "open";
  if (!info) return PyUnicode_FromFormat("<%s %R, %s>", type, handle->text, now);
  return PyUnicode_FromFormat("<%s %R, %llu bytes of %s, %s>", type, handle->text,
                              (unsigned long long)info->capacity, memory_name(info), now);
}

PyObject *rc_py_peer(struct rc_py_state *state, const struct ringcast_peer *peer) {
  static const char *const states[] = {"unknown", "joining", "active",
                                       "dead",    "stopped", "evicted"};
  const char *text = states[peer->state < 6 ? peer->state : 0];
  size_t bytes = strnlen(peer->name, sizeof peer->name);
  PyObject *name = PyUnicode_DecodeUTF8(peer->name, (Py_ssize_t)bytes, "ignore");
  if (!name) return NULL;
  PyObject *stats = make_stats(state, &peer->stats);
  if (!stats) {
    Py_DECREF(name);
    return NULL;
  }
  return PyObject_CallFunction(state->reader_status, "IisNKKKNdK", (unsigned)peer->slot,
                               (int)peer->pid, text, name, (unsigned long long)peer->position,
                               (unsigned long long)peer->lag, (unsigned long long)peer->stalls,
                               stats, (double)peer->blocked_ns / 1e9,
                               (unsigned long long)peer->lag_frames);
}

struct ringcast_peer *rc_py_peers_new(uint32_t count) {
  struct ringcast_peer *peers = PyMem_New(struct ringcast_peer, (size_t)count + 1);
  if (peers) peers[0].size = sizeof *peers;
  return peers;
}

PyObject *rc_py_peers(struct rc_py_state *state, struct ringcast_peer *peers, int count) {
  if (!peers) return PyErr_NoMemory();
  PyObject *list = NULL;
  if (count < 0) rc_py_raise(state, count);
  else list = PyList_New(0);
  for (int i = 0; list && i < count; i++) {
    PyObject *peer = rc_py_peer(state, &peers[i]);
    if (!peer || PyList_Append(list, peer) < 0) Py_CLEAR(list);
    Py_XDECREF(peer);
  }
  PyMem_Free(peers);
  return list;
}

/* ---- Rings by name --------------------------------------------------------------------------- */

#define MORE 16 /* rings that may appear between two calls */

/* Sets *out to memory of the rings, for PyMem_RawFree. Returns their number, or the library's
 * error. */
static int list_rings(struct ringcast_ring **out) {
  for (uint32_t capacity = MORE;;) {
    struct ringcast_ring *rings = PyMem_RawCalloc(capacity, sizeof *rings);
    if (!rings) return -ENOMEM;
    rings->size = sizeof *rings;
    int count = ringcast_rings(rings, capacity);
    if (count <= (int)capacity) {
      *out = rings;
      return count;
    }
    PyMem_RawFree(rings);
    capacity = (uint32_t)count + MORE;
  }
}

PyObject *rc_py_rings(PyObject *module, PyObject *Py_UNUSED(unused)) {
  struct rc_py_state *state = PyModule_GetState(module);
  struct ringcast_ring *rings = NULL;
  int count;
  Py_BEGIN_ALLOW_THREADS
  count = list_rings(&rings);
  Py_END_ALLOW_THREADS
  PyObject *list = NULL;
  if (count == -ENOMEM) PyErr_NoMemory();
  else if (count < 0) rc_py_raise(state, count);
  else list = PyList_New(0);
  for (int i = 0; list && i < count; i++) {
    PyObject *ring = PyObject_CallFunction(state->ring, "sis", rings[i].name, (int)rings[i].pid,
                                           rings[i].handle);
    if (!ring || PyList_Append(list, ring) < 0) Py_CLEAR(list);
    Py_XDECREF(ring);
  }
  PyMem_RawFree(rings);
  return list;
}

PyObject *rc_py_find(PyObject *module, PyObject *text) {
  char handle[RINGCAST_HANDLE_BYTES];
  if (!PyUnicode_Check(text)) {
    return PyErr_Format(PyExc_TypeError, "ring must be a str, not %s", Py_TYPE(text)->tp_name);
  }
  const char *ring = PyUnicode_AsUTF8(text);
  if (!ring) return NULL;
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_find(ring, handle);
  Py_END_ALLOW_THREADS
  if (rc < 0) return rc_py_raise(PyModule_GetState(module), rc);
  return PyUnicode_FromString(handle);
}
