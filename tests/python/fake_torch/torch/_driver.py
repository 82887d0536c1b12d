# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver that is there: calls in a context of a device, the streams, and torch.cuda."""

import contextlib
import ctypes
import threading
import types

_contexts = {}
_here = threading.local()


def call(name, *arguments, on=0):
    """A function of the driver's, in that device's context. Any number is of 64 bits."""
    driver = ctypes.CDLL("libcuda.so.1")
    with entered(driver, on):
        whole = [ctypes.c_uint64(each) if type(each) is int else each for each in arguments]
        result = getattr(driver, name)(*whole)
    if result:
        raise RuntimeError(f"CUDA error {result}")


@contextlib.contextmanager
def entered(driver, device):
    if device not in _contexts:
        context = ctypes.c_void_p()
        for result in (
            driver.cuInit(0),
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        ):
            assert result == 0, f"CUDA error {result}"
        _contexts[device] = context
    driver.cuCtxPushCurrent_v2(_contexts[device])
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


class Stream:
    def __init__(self, device=None, cuda_stream=None):
        self.device = cuda.current_device() if device is None else device
        if cuda_stream is None:
            made = ctypes.c_void_p()
            call("cuStreamCreate", ctypes.byref(made), 1, on=self.device)
            cuda_stream = made.value
        self.cuda_stream = cuda_stream

    def synchronize(self):
        call("cuStreamSynchronize", self.cuda_stream, on=self.device)


class _Cuda(types.ModuleType):
    Stream = Stream
    ordinal = 0

    def is_available(self):
        return True

    def is_initialized(self):
        return len(_contexts) > 0

    def current_device(self):
        return self.ordinal

    def set_device(self, ordinal):
        self.ordinal = ordinal
        call("cuCtxGetDevice", ctypes.byref(ctypes.c_int()), on=ordinal)

    def current_stream(self, device=None):
        device = self.ordinal if device is None else device
        return getattr(_here, "streams", {}).get(device) or Stream(device, 0)

    @contextlib.contextmanager
    def stream(self, stream):
        streams = _here.__dict__.setdefault("streams", {})
        before = streams.get(stream.device)
        streams[stream.device] = stream
        try:
            yield
        finally:
            streams[stream.device] = before

    def is_current_stream_capturing(self):
        capturing = ctypes.c_int()
        stream = self.current_stream().cuda_stream
        call("cuStreamIsCapturing", stream, ctypes.byref(capturing), on=self.ordinal)
        return capturing.value != 0

    def synchronize(self):
        call("cuCtxSynchronize", on=self.ordinal)


cuda = _Cuda("torch.cuda")
