# SPDX-License-Identifier: Apache-2.0
"""As much of torch as ringcast looks at, with tensors on a CUDA device: those lie in the memory of
the driver that is there, which in the tests is the fake one (tests/fake_cuda). torch's own build
for the CPU can't make any.

What it has of a device is real to the driver: memory that is ordered by streams, copies on the
current stream, DLPack capsules. All else is NumPy's. The names with an underscore that stand here
are for the tests and the stand-ins beside it.
"""

import ctypes
import math
import types

import numpy as np

from ._driver import call as _call
from ._driver import cuda
from ._memory import DeviceMemory, HostMemory, exchange_api, export, taken_over
from ._memory import forget_dropped as _forget_dropped  # noqa: F401


class dtype:
    __module__ = "torch"  # where pickle looks for it by its name

    def __init__(self, name, code, held=None):
        self.name, self.code, self.held = name, code, np.dtype(held or name)
        self.itemsize = self.held.itemsize

    def __repr__(self):
        return "torch." + self.name

    def __reduce__(self):
        return self.name


_DTYPES = {name: dtype(name, 0) for name in ("int8", "int16", "int32", "int64")}
_DTYPES.update({name: dtype(name, 2) for name in ("float16", "float32", "float64")})
_DTYPES.update(uint8=dtype("uint8", 1), bool=dtype("bool", 6), complex64=dtype("complex64", 5))
_DTYPES.update(bfloat16=dtype("bfloat16", 4, "uint16"))
_DTYPES.update(float8_e4m3fn=dtype("float8_e4m3fn", 10, "uint8"))
globals().update(_DTYPES)
strided = object()


class Size(tuple):
    pass


class device:
    def __init__(self, text, index=None):
        self.type, _, number = str(text).partition(":")
        self.index = index if index is not None else int(number) if number else None

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


def _strides(shape):
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


# ---- Tensors -----------------------------------------------------------------------------------


class _Storage:
    def __init__(self, memory):
        self.memory = memory


class Tensor:
    layout, is_nested, requires_grad = strided, False, False

    @classmethod
    def _made(cls, memory, kind, shape, strides=None, offset=0):
        self = object.__new__(cls)
        self.memory, self.dtype, self.shape, self.offset = memory, kind, Size(shape), offset
        self.strides = _strides(self.shape) if strides is None else tuple(strides)
        return self

    is_cpu = property(lambda self: self.memory.device is None)
    is_cuda = property(lambda self: self.memory.device is not None)
    device = property(
        lambda self: device("cpu") if self.is_cpu else device("cuda", self.get_device())
    )

    def __reduce__(self):
        """By value, and to the device of that number, as torch's own."""
        return _rebuilt, (self.numpy(), self.dtype, self.get_device())

    def __len__(self):
        return self.shape[0]

    def stride(self):
        return self.strides

    def get_device(self):
        return -1 if self.is_cpu else self.memory.device

    def data_ptr(self):
        return self.memory.pointer + self.offset * self.dtype.itemsize if self.memory.pointer else 0

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self.dtype.itemsize

    def is_contiguous(self):
        return self.strides == _strides(self.shape) or 0 in self.shape

    def is_neg(self):
        return False

    def _itself(self):
        return self

    is_conj = is_neg
    resolve_neg = resolve_conj = detach = _itself

    def requires_grad_(self, wanted=True):
        self.requires_grad = wanted
        return self

    def record_stream(self, stream):
        self.memory.recorded.add(stream.cuda_stream)

    def untyped_storage(self):
        return _Storage(self.memory)

    def set_(self, storage, offset, shape, strides):
        self.memory, self.offset = storage.memory, offset
        self.shape, self.strides = Size(shape), tuple(strides)
        return self

    def view(self, what):
        """Of another shape, or of another dtype."""
        assert self.is_contiguous()
        if isinstance(what, tuple):
            return Tensor._made(self.memory, self.dtype, what, None, self.offset)
        nbytes, start = self.numel() * self.dtype.itemsize, self.offset * self.dtype.itemsize
        assert len(self.shape) == 1 and nbytes % what.itemsize == start % what.itemsize == 0
        return Tensor._made(
            self.memory, what, (nbytes // what.itemsize,), None, start // what.itemsize
        )

    def reshape(self, size):
        return self.view((self.numel(),) if size == -1 else size)

    def as_strided(self, shape, strides, offset=0):
        return Tensor._made(self.memory, self.dtype, shape, strides, offset)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return self.as_strided((min(i.stop, self.shape[0]),), (1,), self.offset)
        return self.as_strided(self.shape[1:], self.strides[1:], self.offset + i * self.strides[0])

    def _copy(self, name, to, start, nbytes):
        """On the current stream of the device that is in it."""
        stream = cuda.current_stream(self.get_device())
        call = name, to, start, nbytes, stream.cuda_stream
        _call(*call, on=self.get_device())
        return stream

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
            ends = flat.ctypes.data, self.data_ptr(), flat.nbytes
            self._copy("cuMemcpyDtoHAsync_v2", *ends).synchronize()
        steps = [step * kind.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, steps).copy()

    def item(self):
        return self.numpy().item()

    def tolist(self):
        return self.numpy().tolist()

    def cpu(self):
        return from_numpy(self.numpy(), self.dtype)

    def to(self, where):
        where = device(where)
        return self.cpu() if where.type == "cpu" else self.cuda(where.index)

    def cuda(self, ordinal=None):
        array = self.numpy()
        moved = empty(self.shape, dtype=self.dtype, device=device("cuda", ordinal))
        if array.nbytes:
            moved._copy("cuMemcpyHtoDAsync_v2", moved.data_ptr(), array.ctypes.data, array.nbytes)
        return moved

    def contiguous(self):
        return self if self.is_contiguous() else self.to(self.device)

    def copy_(self, other):
        assert self.is_contiguous() and (self.numel(), self.dtype) == (other.numel(), other.dtype)
        other = other.to(self.device).contiguous()
        ends = self.data_ptr(), other.data_ptr(), self.numel() * self.dtype.itemsize
        if self.is_cpu:
            ctypes.memmove(*ends)
        else:
            self._copy("cuMemcpyDtoDAsync_v2", *ends)
        return self

    def fill_(self, value):
        return self.copy_(from_numpy(np.full(self.shape, value, self.dtype.held), self.dtype))

    def __dlpack__(self, *, stream=None):
        return export(self)


class Parameter(Tensor):
    def __new__(cls, tensor, requires_grad=True):
        made = cls._made(tensor.memory, tensor.dtype, tensor.shape, tensor.strides, tensor.offset)
        return made.requires_grad_(requires_grad)


nn = types.ModuleType("torch.nn")
nn.Parameter = Parameter
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(is_built=lambda: True))


# ---- Made of something -------------------------------------------------------------------------


def from_numpy(array, kind=None):
    array = np.ascontiguousarray(array).reshape(array.shape)
    return Tensor._made(HostMemory(array), kind or _DTYPES[array.dtype.name], array.shape)


def _rebuilt(array, kind, ordinal):
    tensor = from_numpy(array, kind)
    return tensor if ordinal < 0 else tensor.cuda(ordinal)


def tensor(values, dtype):  # noqa: F811, as torch names them
    return from_numpy(np.array(values, dtype.held), dtype)


def frombuffer(buffer, dtype):  # noqa: F811
    array = np.frombuffer(buffer, dtype.held)
    return Tensor._made(HostMemory(array), dtype, array.shape)


def ones(*shape, device="cpu"):  # noqa: F811
    return from_numpy(np.ones(shape, np.float32)).to(device)


def empty(shape, dtype=_DTYPES["float32"], device="cpu"):  # noqa: F811
    return empty_strided((shape,) if isinstance(shape, int) else shape, None, dtype, device)


def empty_strided(shape, strides, dtype, device):  # noqa: F811
    where, nbytes = globals()["device"](device), math.prod(shape) * dtype.itemsize
    if where.type == "cpu":
        memory = HostMemory(np.empty(nbytes, np.uint8))
    else:
        memory = DeviceMemory(cuda.current_device() if where.index is None else where.index, nbytes)
    return Tensor._made(memory, dtype, shape, strides)


def zeros(size, dtype, device="cpu"):  # noqa: F811
    """On a device by a kernel."""
    shape = (size,) if isinstance(size, int) else size
    if globals()["device"](device).type == "cpu":
        return from_numpy(np.zeros(shape, dtype.held), dtype)
    if not hasattr(_packed, "zero"):
        _packed.zero = from_numpy(np.zeros(256, np.uint8)).cuda(device.index)
        cuda.synchronize()
    return _packed([_packed.zero[: shape[0]]], empty(shape, dtype, device))


def _packed(tensors, made):
    """Copies on the current stream, in place of torch's kernels; `_packed.copies` counts them."""
    to = made.data_ptr()
    for each in tensors:
        nbytes = each.numel() * each.dtype.itemsize
        made._copy("cuMemcpyDtoDAsync_v2", to, each.data_ptr(), nbytes)
        to += nbytes
        _packed.copies += 1
    return made


_packed.copies = 0


def cat(tensors):
    """Of one dimension, on one device."""
    size = sum(each.numel() for each in tensors)
    return _packed(tensors, empty((size,), tensors[0].dtype, tensors[0].device))


def from_dlpack(source):
    if hasattr(source, "__dlpack__"):
        kind, ordinal = source.__dlpack_device__()
        source = source.__dlpack__(
            stream=(cuda.current_stream(ordinal).cuda_stream or 1) if kind == 2 else None
        )
    return _over(taken_over(source))


def _over(memory):
    told = memory.tensor
    kinds = [
        kind
        for kind in _DTYPES.values()
        if (kind.code, kind.itemsize * 8) == (told.code, told.bits)
    ]
    shape, strides = told.shape[: told.ndim], told.strides[: told.ndim]
    return Tensor._made(memory, kinds[0], shape, strides, told.byte_offset // kinds[0].itemsize)


Tensor.__dlpack_c_exchange_api__ = exchange_api(_over)
