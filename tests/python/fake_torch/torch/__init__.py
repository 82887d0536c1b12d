# SPDX-License-Identifier: Apache-2.0
"""As much of torch as ringcast looks at, with tensors on a CUDA device: those lie in the memory of the driver that is
there, which in the tests is the fake one (tests/fake_cuda). torch's own build for the CPU can't make any.

What it has of a device is real to the driver: memory that is ordered by streams, copies on the current stream, DLPack
capsules. All else is NumPy's.

The names with an underscore that stand here are for the tests and the stand-ins beside it.
"""

import ctypes
import types

import numpy as np

from ._dlpack import _Borrowed, _export, _forget_dropped  # noqa: F401
from ._driver import _on, _stream_of, check, cuda, driver
from ._exchange import _offered
from ._memory import _DeviceMemory, _HostMemory, _Segment
from ._types import _DTYPES, Size, _strides, device, dtype, strided  # noqa: F401

globals().update(_DTYPES)

# ---- Tensors ---------------------------------------------------------------------------------------------------------


class _Storage:
    def __init__(self, memory):
        self.memory = memory


def _rebuilt(array, kind, ordinal):
    tensor = from_numpy(array, kind)
    return tensor if ordinal < 0 else tensor.cuda(ordinal)


class Tensor:
    layout, is_nested, requires_grad = strided, False, False

    @classmethod
    def _made(cls, memory, kind, shape, strides, offset=0):
        self = object.__new__(cls)
        self.memory, self.dtype, self.shape, self.strides, self.offset = memory, kind, Size(shape), strides, offset
        return self

    is_cpu = property(lambda self: self.memory.device is None)
    is_cuda = property(lambda self: self.memory.device is not None)
    device = property(lambda self: device("cpu") if self.is_cpu else device("cuda", self.memory.device))

    def __reduce__(self):
        """By value, and to the device of that number, as torch's own."""
        return _rebuilt, (self.numpy(), self.dtype, self.get_device())

    def stride(self):
        return self.strides

    def get_device(self):
        return -1 if self.is_cpu else self.memory.device

    def data_ptr(self):
        return self.memory.pointer + self.offset * self.dtype.itemsize if self.memory.pointer else 0

    def is_neg(self):
        return False

    is_conj = is_neg

    def _itself(self):
        return self

    resolve_neg = resolve_conj = detach = _itself

    def requires_grad_(self, wanted=True):
        self.requires_grad = wanted
        return self

    def is_contiguous(self):
        return self.strides == _strides(self.shape) or 0 in self.shape

    def numel(self):
        return int(np.prod(self.shape, dtype=np.int64))

    def view(self, what):
        """Of another shape, or of another dtype."""
        assert self.is_contiguous()
        kind, shape = (self.dtype, what) if isinstance(what, tuple) else (what, None)
        if shape is None:
            assert len(self.shape) == 1 and self.shape[0] * self.dtype.itemsize % kind.itemsize == 0
            shape = (self.shape[0] * self.dtype.itemsize // kind.itemsize,)
        made = Tensor._made(
            self.memory, kind, shape, _strides(shape), self.offset * self.dtype.itemsize // kind.itemsize
        )
        assert made.numel() * kind.itemsize == self.numel() * self.dtype.itemsize
        return made

    def reshape(self, size):
        assert size == -1
        return self.view((self.numel(),))

    def __getitem__(self, i):
        if isinstance(i, slice):
            return Tensor._made(self.memory, self.dtype, (min(i.stop, self.shape[0]),), (1,), self.offset)
        shape, strides = self.shape[1:], self.strides[1:]
        return Tensor._made(self.memory, self.dtype, shape, strides, self.offset + i * self.strides[0])

    def record_stream(self, stream):
        self.memory.recorded.add((stream.device, stream.cuda_stream))

    def untyped_storage(self):
        return _Storage(self.memory)

    def set_(self, storage, offset, shape, strides):
        assert isinstance(storage, _Storage)
        self.memory, self.offset, self.shape, self.strides = storage.memory, offset, Size(shape), tuple(strides)
        return self

    def as_strided(self, shape, strides, offset=0):
        return Tensor._made(self.memory, self.dtype, shape, strides, offset)

    def numpy(self):
        """Of a device: waits for the current stream, and copies what spans all elements."""
        kind = self.dtype.held
        if 0 in self.shape:
            return np.empty(self.shape, kind)
        span = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides))
        flat = np.empty(span, kind)
        if self.is_cpu:
            ctypes.memmove(flat.ctypes.data, self.data_ptr(), flat.nbytes)
        else:
            stream = _stream_of(self.memory.device)
            with _on(self.memory.device):
                at = ctypes.c_uint64(self.data_ptr()), ctypes.c_size_t(flat.nbytes)
                copied = driver().cuMemcpyDtoHAsync_v2(
                    ctypes.c_void_p(flat.ctypes.data), *at, ctypes.c_void_p(stream.cuda_stream)
                )
                check(copied)
            stream.synchronize()
        steps = [step * kind.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, steps).copy()

    def cpu(self):
        return from_numpy(self.numpy(), self.dtype)

    def to(self, where):
        where = device(where)
        if where.type == "cpu":
            return self.cpu()
        array = self.numpy()
        moved = empty(self.shape, dtype=self.dtype, device=where)
        if array.nbytes:
            ordinal = moved.memory.device
            stream = ctypes.c_void_p(_stream_of(ordinal).cuda_stream)
            with _on(ordinal):
                at = ctypes.c_uint64(moved.data_ptr()), ctypes.c_void_p(array.ctypes.data)
                check(driver().cuMemcpyHtoDAsync_v2(*at, ctypes.c_size_t(array.nbytes), stream))
        return moved

    def cuda(self, ordinal=None):
        return self.to(device("cuda", cuda.current_device() if ordinal is None else ordinal))

    def contiguous(self):
        return self if self.is_contiguous() else self.to(self.device)

    def fill_(self, value):
        """On a device as a copy on the current stream, of memory that stays as long."""
        filled = from_numpy(np.full(self.shape, value, self.dtype.held), self.dtype).to(self.device)
        stream = ctypes.c_void_p(_stream_of(self.memory.device).cuda_stream)
        with _on(self.memory.device):
            at = ctypes.c_uint64(self.data_ptr()), ctypes.c_uint64(filled.data_ptr())
            nbytes = ctypes.c_size_t(self.numel() * self.dtype.itemsize)
            check(driver().cuMemcpyDtoDAsync_v2(*at, nbytes, stream))
        return self

    def __dlpack__(self, *, stream=None):
        return _export(self)

    def element_size(self):
        return self.dtype.itemsize


class Parameter(Tensor):
    def __new__(cls, tensor, requires_grad=True):
        made = cls._made(tensor.memory, tensor.dtype, tensor.shape, tensor.strides, tensor.offset)
        return made.requires_grad_(requires_grad)


nn = types.ModuleType("torch.nn")
nn.Parameter = Parameter


# ---- Made of something -----------------------------------------------------------------------------------------------


def from_numpy(array, kind=None):
    array = np.ascontiguousarray(array).reshape(array.shape)
    kind = kind or _DTYPES[array.dtype.name]
    return Tensor._made(_HostMemory(array), kind, array.shape, _strides(array.shape))


def ones(*shape, device="cpu"):
    """Large ones on a device have a segment of their own, as torch's have."""
    array = np.ones(shape, np.float32)
    if globals()["device"](device).type == "cpu":
        return from_numpy(array)
    return segment(array) if array.nbytes >= 1 << 20 else from_numpy(array).cuda()


def empty(shape, dtype=_DTYPES["float32"], device="cpu"):  # noqa: F811, as torch names them
    return empty_strided(shape, _strides(tuple(shape)), dtype, device)


def empty_strided(shape, strides, dtype, device):  # noqa: F811, as torch names them
    where = globals()["device"](device)
    shape = tuple(shape)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if where.type == "cpu":
        return Tensor._made(_HostMemory(np.empty(nbytes, np.uint8)), dtype, shape, strides)
    ordinal = cuda.current_device() if where.index is None else where.index
    return Tensor._made(_DeviceMemory(ordinal, nbytes), dtype, shape, strides)


def _packed(tensors, made):
    """Copies on the current stream, in place of torch's kernels; `_packed.copies` counts the copies."""
    stream, to = ctypes.c_void_p(_stream_of(made.get_device()).cuda_stream), made.data_ptr()
    with _on(made.get_device()):
        for tensor in tensors:
            nbytes = tensor.numel() * tensor.dtype.itemsize
            at = ctypes.c_uint64(to), ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(nbytes)
            check(driver().cuMemcpyDtoDAsync_v2(*at, stream))
            to += nbytes
    _packed.copies += len(tensors)
    return made


_packed.copies = 0


def zeros(shape, dtype, device):  # noqa: F811, as torch names them
    if "zero" not in _packed.__dict__:
        _packed.zero = segment(np.zeros(256, np.uint8), device.index)
    return _packed([_packed.zero[: shape[0]]], empty(shape, dtype, device))


def cat(tensors):
    """Of one dimension, on one device."""
    return _packed(tensors, empty((sum(each.numel() for each in tensors),), tensors[0].dtype, tensors[0].device))


def segment(array, ordinal=0):
    """A tensor that is all of one."""
    host = from_numpy(array)
    tensor = Tensor._made(_Segment(ordinal, array.nbytes), host.dtype, array.shape, _strides(array.shape))
    with _on(ordinal):
        at = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_void_p(host.data_ptr())
        check(driver().cuMemcpyHtoDAsync_v2(*at, ctypes.c_size_t(array.nbytes), ctypes.c_void_p()))
        check(driver().cuCtxSynchronize())
    return tensor


def from_dlpack(source):
    if hasattr(source, "__dlpack__"):
        kind, ordinal = source.__dlpack_device__()
        stream = _stream_of(ordinal).cuda_stream or 1 if kind == 2 else None
        source = source.__dlpack__(stream=stream)
    return _over(_Borrowed(source))


def _over(memory):
    tensor = memory.managed.contents.tensor
    (kind,) = [
        known
        for known in _DTYPES.values()
        if (known.code, known.itemsize * 8) == (tensor.code, tensor.bits) and known.name != "uint16"
    ]
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    return Tensor._made(memory, kind, shape, strides, tensor.byte_offset // kind.itemsize)


Tensor.__dlpack_c_exchange_api__ = _offered(_over)
