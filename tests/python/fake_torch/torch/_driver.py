# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver that is there: its calls in a context of a device, the streams, and torch.cuda."""

import contextlib
import ctypes
import threading
import types

_opened = None
_contexts = {}
_here = threading.local()


def driver():
    global _opened
    if _opened is None:
        _opened = ctypes.CDLL("libcuda.so.1")
        check(_opened.cuInit(0))
    return _opened


def check(result):
    if result:
        raise RuntimeError(f"CUDA error {result}")


def _enter(ordinal):
    if ordinal not in _contexts:
        _contexts[ordinal] = ctypes.c_void_p()
        check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(_contexts[ordinal]), ordinal))
    check(driver().cuCtxPushCurrent_v2(_contexts[ordinal]))


@contextlib.contextmanager
def _on(ordinal):
    _enter(ordinal)
    try:
        yield
    finally:
        check(driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))


class Stream:
    def __init__(self, device=None, pointer=None):
        self.device = cuda.current_device() if device is None else device
        self.cuda_stream = pointer
        if pointer is None:
            made = ctypes.c_void_p()
            with _on(self.device):
                check(driver().cuStreamCreate(ctypes.byref(made), 1))
            self.cuda_stream = made.value

    def synchronize(self):
        with _on(self.device):
            check(driver().cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream)))


def _stream_of(ordinal):
    return getattr(_here, "streams", {}).get(ordinal) or Stream(ordinal, 0)


@contextlib.contextmanager
def _stream(stream):
    if not hasattr(_here, "streams"):
        _here.streams = {}
    before = _here.streams.get(stream.device)
    _here.streams[stream.device] = stream
    try:
        yield
    finally:
        _here.streams[stream.device] = before


class _Cuda(types.ModuleType):
    Stream = Stream
    stream = staticmethod(_stream)
    ordinal = 0

    def is_available(self):
        return True

    def is_initialized(self):
        return len(_contexts) > 0

    def current_device(self):
        return self.ordinal

    def set_device(self, ordinal):
        self.ordinal = ordinal
        with _on(ordinal):
            pass

    def current_stream(self, ordinal=None):
        return _stream_of(self.ordinal if ordinal is None else ordinal)

    def is_current_stream_capturing(self):
        capturing = ctypes.c_int()
        stream = ctypes.c_void_p(self.current_stream().cuda_stream)
        with _on(self.ordinal):
            check(driver().cuStreamIsCapturing(stream, ctypes.byref(capturing)))
        return capturing.value != 0

    def synchronize(self, ordinal=None):
        with _on(self.ordinal if ordinal is None else ordinal):
            check(driver().cuCtxSynchronize())


cuda = _Cuda("torch.cuda")
