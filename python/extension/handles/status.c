/* SPDX-License-Identifier: Apache-2.0 */
/* The status of Writer, Reader, Tap and ring: the C structs as the named tuples of _status.py. */
#include "python/extension/errors.h"
#include "python/extension/handles/status.h"

static PyObject *make_stats(struct rc_py_state *state, const struct ringcast_stats *stats) {
  const Py_ssize_t buckets = sizeof stats->histogram / sizeof *stats->histogram;
  PyObject *histogram = PyTuple_New(buckets);
  for (Py_ssize_t i = 0; histogram && i < buckets; i++) {
    PyObject *count = PyLong_FromUnsignedLong(stats->histogram[i]);
    if (!count) {
      Py_CLEAR(histogram);
      break;
    }
    PyTuple_SET_ITEM(histogram, i, count);
  }
  if (!histogram) return NULL;
  return PyObject_CallFunction(
      state->stats, "KKKKKKNKKK", (unsigned long long)stats->frames,
      (unsigned long long)stats->bytes, (unsigned long long)stats->waits,
      (unsigned long long)stats->sleeps, (unsigned long long)stats->wakes,
      (unsigned long long)stats->waited_ns, histogram, (unsigned long long)stats->estimate_hits,
      (unsigned long long)stats->grown, (unsigned long long)stats->wasted_bytes);
}

static PyObject *make_info(struct rc_py_state *state, const struct ringcast_info *info) {
  const char *memory =
      ringcast_memory_name(info->memory); /* NULL for a number of a later release */
  static const char *const numa[] = {"local", "none", "interleaved", "node"};
  return PyObject_CallFunction(
      state->info, "KKKIsKiLsIiiKKKs", (unsigned long long)info->capacity,
      (unsigned long long)info->max_frame, (unsigned long long)info->tail, (unsigned)info->readers,
      memory ? memory : "unknown", (unsigned long long)info->page_size, (int)info->writer_pid,
      (long long)info->spin_ns, info->numa < 4 ? numa[info->numa] : "unknown",
      (unsigned)info->numa_node, (int)info->numa_error, (int)info->spill_error,
      (unsigned long long)info->ring_frame, (unsigned long long)info->spill_bytes,
      (unsigned long long)info->spill_used, info->name);
}

PyObject *rc_py_status(struct rc_py_state *state, const struct rc_py_status *status, int rc) {
  if (rc < 0) return rc_py_raise(state, rc);
  PyObject *info = make_info(state, &status->info),
           *stats = info ? make_stats(state, &status->stats) : NULL;
  if (!stats) Py_CLEAR(info);
  return stats ? Py_BuildValue("(NNKK)", info, stats, (unsigned long long)status->counts[0],
                               (unsigned long long)status->counts[1])
               : NULL;
}

PyObject *rc_py_peer(struct rc_py_state *state, const struct ringcast_peer *peer) {
  static const char *const states[] = {"unknown", "joining", "active",
                                       "dead",    "stopped", "evicted"};
  const char *text = states[peer->state < 6 ? peer->state : 0];
  PyObject *name = PyUnicode_DecodeUTF8(
      peer->name, (Py_ssize_t)strnlen(peer->name, sizeof peer->name), "ignore");
  PyObject *stats = name ? make_stats(state, &peer->stats) : NULL;
  if (!stats) {
    Py_XDECREF(name);
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
  PyObject *list = count < 0 ? rc_py_raise(state, count) : PyList_New(0);
  for (int i = 0; list && i < count; i++) {
    PyObject *peer = rc_py_peer(state, &peers[i]);
    if (!peer || PyList_Append(list, peer) < 0) Py_CLEAR(list);
    Py_XDECREF(peer);
  }
  PyMem_Free(peers);
  return list;
}
