/* SPDX-License-Identifier: Apache-2.0 */
/* Writer.gpu, Reader.gpu, Reader.prepare_gpu() and gpu_status(). */
#include "python/extension/handles/gpu.h"

static PyObject *make_info(struct rc_py_state *state, const struct ringcast_gpu_info *info) {
  static const char *const ways[] = {"unknown", "pool",    "no_pool", "no_reader",
                                     "waiting", "refused", "lost"};
  const char *way = ways[info->way < sizeof ways / sizeof *ways ? info->way : 0];
  PyObject *why =
      PyUnicode_DecodeUTF8(info->why, (Py_ssize_t)strnlen(info->why, sizeof info->why), "replace");
  if (!why) return NULL;
  return PyObject_CallFunction(
      state->gpu_info, "sNiKIIIiKKKKKKKKN", way, why, (int)info->device,
      (unsigned long long)info->pool_bytes, (unsigned)info->slots, (unsigned)info->epoch,
      (unsigned)info->reader, (int)info->reader_pid, (unsigned long long)info->pool_frames,
      (unsigned long long)info->pool_bytes_sent, (unsigned long long)info->inline_frames,
      (unsigned long long)info->full, (unsigned long long)info->opens,
      (unsigned long long)info->syncs, (unsigned long long)info->slots_used,
      (unsigned long long)info->bytes_used, PyBool_FromLong(info->registered != 0));
}

PyObject *rc_py_writer_gpu(PyObject *object, void *Py_UNUSED(closure)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_gpu_info info = {.size = sizeof info};
  if (!self->gpu) Py_RETURN_NONE;
  if (!rc_py_writer_enter(self)) return NULL;
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_writer_info(self->gpu, &info);
  Py_END_ALLOW_THREADS
  rc_py_writer_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : make_info(rc_py_state_of(self), &info);
}

PyObject *rc_py_reader_gpu(PyObject *object, void *Py_UNUSED(closure)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct ringcast_gpu_info info = {.size = sizeof info};
  if (!self->reader || !self->gpu || !self->gpu->reader) Py_RETURN_NONE;
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_gpu_reader_info(self->gpu->reader, &info);
  rc_py_reader_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : make_info(rc_py_state_of(self), &info);
}

PyObject *rc_py_gpu_status(PyObject *module, PyObject *Py_UNUSED(unused)) {
  struct rc_py_state *state = PyModule_GetState(module);
  struct ringcast_gpu_driver status = {.size = sizeof status};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_status(&status);
  Py_END_ALLOW_THREADS
  if (rc < 0) return rc_py_raise(state, rc);
  state->device_is_ready |= status.ready;
  PyObject *why = PyUnicode_DecodeUTF8(
      status.why, (Py_ssize_t)strnlen(status.why, sizeof status.why), "replace");
  if (!why) return NULL;
  return PyObject_CallFunction(state->gpu_state, "NNiii", PyBool_FromLong(status.ready), why,
                               (int)status.version, (int)status.devices, (int)status.result);
}

PyObject *rc_py_reader_prepare_gpu(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = rc_py_gpu_prepare(self);
  rc_py_reader_leave(self);
  if (rc == -EAGAIN) Py_RETURN_FALSE;
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_ref(Py_True);
}
