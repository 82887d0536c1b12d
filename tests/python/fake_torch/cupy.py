# SPDX-License-Identifier: Apache-2.0
"""As much of CuPy as ringcast looks at, over the fake torch's tensors. Its current stream is its
own."""

import contextlib
import types

import torch

asked = []  # the streams that capsules were asked for


class ndarray:
    def __init__(self, tensor):
        self.tensor = tensor
        self.device = cuda.Device(tensor.get_device())

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


class Stream:
    """Destroyed with the object, and current within `with`."""

    def __init__(self):
        self.ptr = torch.cuda.Stream().cuda_stream

    def __enter__(self):
        self.before, cuda.stream = cuda.stream, self

    def __exit__(self, *_):
        cuda.stream = self.before

    def __del__(self):
        torch._call("cuStreamDestroy_v2", self.ptr)


cuda = types.SimpleNamespace(stream=types.SimpleNamespace(ptr=0), Stream=Stream)
cuda.Device = lambda ordinal: contextlib.nullcontext()
cuda.get_current_stream = lambda: cuda.stream
