# SPDX-License-Identifier: Apache-2.0
"""As much of CuPy as ringcast looks at, over the fake torch's tensors. Its current stream is its own."""

import contextlib
import ctypes
import types

import torch

asked = []  # the streams that capsules were asked for


class ndarray:
    def __init__(self, tensor):
        self.tensor = tensor

    @property
    def device(self):
        return cuda.Device(self.tensor.get_device())

    def __dlpack_device__(self):
        return 2, self.tensor.get_device()

    def __dlpack__(self, *, stream=None):
        asked.append(stream)
        return self.tensor.__dlpack__()


def ascontiguousarray(array):
    return ndarray(array.tensor.contiguous())


def from_dlpack(source):
    capsule = source.__dlpack__(stream=cuda.get_current_stream().ptr or 1)
    return ndarray(torch.from_dlpack(capsule))


class _Stream:
    """Destroyed with the object, and current within `with`."""

    def __init__(self):
        self.ptr = self.cuda_stream = torch.cuda.Stream().cuda_stream

    def __enter__(self):
        self.before, cuda.stream = cuda.stream, self
        return self

    def __exit__(self, *_):
        cuda.stream = self.before

    def __del__(self):
        with torch._on(0):
            torch.check(torch.driver().cuStreamDestroy_v2(ctypes.c_void_p(self.ptr)))


class _Cuda(types.ModuleType):
    stream, ordinal = None, 0
    Stream = _Stream

    @staticmethod
    @contextlib.contextmanager
    def Device(ordinal):
        before, cuda.ordinal = cuda.ordinal, ordinal
        try:
            yield
        finally:
            cuda.ordinal = before

    def get_current_stream(self):
        if isinstance(self.stream, _Stream):
            return self.stream
        return types.SimpleNamespace(ptr=self.stream.cuda_stream if self.stream else 0)


cuda = _Cuda("cupy.cuda")
