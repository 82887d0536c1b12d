# SPDX-License-Identifier: Apache-2.0
"""As much of torch as ringcast looks at, with tensors on a CUDA device: those lie in the memory of the driver that is
there, which in the tests is the fake one (tests/fake_cuda). torch's own build for the CPU can't make any.

What it has of a device is real to the driver: memory that is ordered by streams, copies on the current stream, DLPack
capsules. All else is NumPy's.
"""

import contextlib
import ctypes
import sys
import threading
import types

import numpy as np

# ---- dtypes ----------------------------------------------------------------------------------------------------------


class dtype:
    def __init__(self, name, code, itemsize, held):
        self.name, self.code, self.itemsize, self.held = name, code, itemsize, np.dtype(held)

    def __repr__(self):
        return "torch." + self.name

    def __reduce__(self):
        return self.name


_DTYPES = {
    name: dtype(name, code, np.dtype(held).itemsize, held)
    for name, code, held in [
        ("bool", 6, "bool"),
        ("uint8", 1, "uint8"),
        ("int8", 0, "int8"),
        ("int16", 0, "int16"),
        ("int32", 0, "int32"),
        ("int64", 0, "int64"),
        ("float16", 2, "float16"),
        ("bfloat16", 4, "uint16"),
        ("float32", 2, "float32"),
        ("float64", 2, "float64"),
        ("complex64", 5, "complex64"),
        ("float8_e4m3fn", 10, "uint8"),
    ]
}
globals().update(_DTYPES)
strided = object()


class Size(tuple):
    pass


class device:
    def __init__(self, text, index=None):
        kind, _, number = str(text).partition(":")
        self.type = kind
        self.index = index if index is not None else int(number) if number else None

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"

    __repr__ = __str__

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))


# ---- The driver ------------------------------------------------------------------------------------------------------

_driver = None
_contexts = {}
_here = threading.local()


def driver():
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL("libcuda.so.1")
        check(_driver.cuInit(0))
    return _driver


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


def _captures(stream):
    capturing = ctypes.c_int()
    return driver().cuStreamIsCapturing(stream, ctypes.byref(capturing)) == 0 and capturing.value != 0


class _DeviceMemory:
    """Goes in the order of the stream that it was allocated on; after what that captures, as a graph can't free it."""

    kept = []  # pointer, device and stream of what a stream that captured could not free

    def __init__(self, ordinal, nbytes):
        self.device, self.stream, self.pointer = ordinal, _stream_of(ordinal), 0
        self.recorded = set()
        if nbytes:
            made = ctypes.c_uint64()
            with _on(ordinal):
                check(driver().cuMemAllocAsync(ctypes.byref(made), ctypes.c_size_t(nbytes), self._stream()))
            self.pointer = made.value

    def _stream(self):
        return ctypes.c_void_p(self.stream.cuda_stream)

    def __del__(self):
        if self.pointer:
            self.kept.append((self.pointer, self.device, self._stream()))
        taken = []
        with contextlib.suppress(IndexError):  # another thread may do the same: each takes what it frees
            while True:
                taken.append(self.kept.pop())
        for memory in taken:
            pointer, device, stream = memory
            with _on(device):
                if _captures(stream):
                    self.kept.append(memory)
                else:
                    driver().cuMemFreeAsync(ctypes.c_uint64(pointer), stream)


class _Segment(_DeviceMemory):
    """As torch's allocator has it from cudaMalloc, and hands it out in pieces."""

    def __init__(self, ordinal, nbytes):
        self.device, self.stream, self.pointer = ordinal, None, 0
        made = ctypes.c_uint64()
        with _on(ordinal):
            check(driver().cuMemAlloc_v2(ctypes.byref(made), ctypes.c_size_t(nbytes)))
        self.pointer = made.value

    def __del__(self):
        with _on(self.device):
            check(driver().cuMemFree_v2(ctypes.c_uint64(self.pointer)))


def segment(array, ordinal=0):
    """A tensor that is all of one."""
    host = from_numpy(array)
    tensor = Tensor._made(_Segment(ordinal, array.nbytes), host.dtype, array.shape, _strides(array.shape))
    with _on(ordinal):
        at = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_void_p(host.data_ptr())
        check(driver().cuMemcpyHtoDAsync_v2(*at, ctypes.c_size_t(array.nbytes), ctypes.c_void_p()))
        check(driver().cuCtxSynchronize())
    return tensor


class _HostMemory:
    def __init__(self, array):
        self.device, self.array = None, array
        self.pointer = array.__array_interface__["data"][0] if array.nbytes else 0


# ---- DLPack ----------------------------------------------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]
_GET = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_RENAME = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_FRESH, _USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")
_exported = {}  # what each has to hold, by its address; the capsule first


@_DELETER
def _forget(managed):
    del _exported[ctypes.addressof(managed.contents)]


def _forget_dropped():
    """Capsules that nobody took over, and nobody has: a destructor of Python's would meet exceptions that are set."""
    for address in [*_exported]:
        if sys.getrefcount(_exported[address][0]) == 2 and repr(_exported[address][0]).count('"dltensor"'):
            del _exported[address]


def _export(tensor):
    """A capsule over a tensor."""
    ndim = len(tensor.shape)
    shape, strides = ((ctypes.c_int64 * max(ndim, 1))(*dims) for dims in (tensor.shape, tensor.strides))
    managed = _Managed()
    managed.tensor = _DLTensor(
        *(tensor.data_ptr(), 2, tensor.get_device(), ndim, tensor.dtype.code, tensor.dtype.itemsize * 8, 1),
        *(shape, strides, 0),
    )
    managed.deleter = _forget
    _forget_dropped()
    capsule = _NEW(ctypes.addressof(managed), _FRESH, None)
    _exported[ctypes.addressof(managed)] = capsule, managed, shape, strides, tensor
    return capsule


class _Borrowed:
    """What a capsule had."""

    def __init__(self, capsule):
        self.managed = ctypes.cast(_GET(capsule, b"dltensor"), ctypes.POINTER(_Managed))
        _RENAME(capsule, _USED)
        tensor = self.managed.contents.tensor
        self.pointer = tensor.data
        self.recorded = set()
        self.device = tensor.device_id if tensor.device_type == 2 else None
        if self.device is None:
            nbytes = _count(tensor) * tensor.bits // 8
            self.array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(tensor.data))

    def __del__(self):
        self.managed.contents.deleter(self.managed)


def _count(tensor):
    count = 1
    for i in range(tensor.ndim):
        count *= tensor.shape[i]
    return count


def from_dlpack(source):
    if hasattr(source, "__dlpack__"):
        kind, ordinal = source.__dlpack_device__()
        stream = _stream_of(ordinal).cuda_stream or 1 if kind == 2 else None
        source = source.__dlpack__(stream=stream)
    memory = _Borrowed(source)
    tensor = memory.managed.contents.tensor
    (kind,) = [
        known
        for known in _DTYPES.values()
        if (known.code, known.itemsize * 8) == (tensor.code, tensor.bits) and known.name != "uint16"
    ]
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    return Tensor._made(memory, kind, shape, strides, tensor.byte_offset // kind.itemsize)


# ---- Tensors ---------------------------------------------------------------------------------------------------------


def _strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


class _Storage:
    def __init__(self, memory):
        self.memory = memory


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

    def view(self, kind):
        assert self.shape[-1] * self.dtype.itemsize % kind.itemsize == 0 and self.offset == 0
        shape = (self.shape[0] * self.dtype.itemsize // kind.itemsize,)
        return Tensor._made(self.memory, kind, shape, (1,))

    def __getitem__(self, i):
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

    def __dlpack__(self):
        return _export(self)

    def element_size(self):
        return self.dtype.itemsize

    def __reduce__(self):
        raise TypeError("a fake tensor is not pickled")


class Parameter(Tensor):
    def __new__(cls, tensor, requires_grad=True):
        made = cls._made(tensor.memory, tensor.dtype, tensor.shape, tensor.strides, tensor.offset)
        return made.requires_grad_(requires_grad)


nn = types.ModuleType("torch.nn")
nn.Parameter = Parameter


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


def empty(shape, dtype=_DTYPES["float32"], device="cpu"):
    where = globals()["device"](device)
    shape = tuple(shape)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if where.type == "cpu":
        return Tensor._made(_HostMemory(np.empty(nbytes, np.uint8)), dtype, shape, _strides(shape))
    ordinal = cuda.current_device() if where.index is None else where.index
    return Tensor._made(_DeviceMemory(ordinal, nbytes), dtype, shape, _strides(shape))
