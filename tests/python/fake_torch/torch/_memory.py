# SPDX-License-Identifier: Apache-2.0
"""What tensors lie in: memory of the host, of the device, or of whoever made a DLPack capsule."""

import ctypes
import sys

from ._driver import call, cuda


class HostMemory:
    device = None

    def __init__(self, array):
        self.array = array
        self.pointer = array.ctypes.data if array.nbytes else 0


class DeviceMemory:
    """Goes in the order of the stream that it was allocated on, and after what the recorded
    streams do with it."""

    def __init__(self, device, nbytes):
        self.device, self.stream, self.pointer = device, cuda.current_stream(device), 0
        self.recorded = set()
        if nbytes:
            made = ctypes.c_uint64()
            to = ctypes.byref(made), nbytes, self.stream.cuda_stream
            call("cuMemAllocAsync", *to, on=device)
            self.pointer = made.value

    def __del__(self):
        for other in self.recorded - {self.stream.cuda_stream}:
            event = ctypes.c_void_p()
            call("cuEventCreate", ctypes.byref(event), 2, on=self.device)  # without timing
            call("cuEventRecord", event, other, on=self.device)
            call("cuStreamWaitEvent", self.stream.cuda_stream, event, 0, on=self.device)
            call("cuEventDestroy_v2", event, on=self.device)
        if self.pointer:
            call("cuMemFreeAsync", self.pointer, self.stream.cuda_stream, on=self.device)


# ---- DLPack ------------------------------------------------------------------------------------


class DLTensor(ctypes.Structure):
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


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
OWNER = [("context", ctypes.c_void_p), ("deleter", Deleter)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), *OWNER]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        *OWNER,
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


class ExchangeApi(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("unused", ctypes.c_void_p * 3),
        ("make", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]


def of_python(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


new_capsule = of_python(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)
pointer_of = of_python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
rename = of_python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
FRESH, USED, API = map(ctypes.c_char_p, (b"dltensor", b"used_dltensor", b"dlpack_exchange_api"))
_exported = {}  # what each capsule has to hold, by the address of its struct; the capsule first


def describe(tensor):
    """A DLTensor, and what it points to."""
    dims = [(ctypes.c_int64 * max(len(each), 1))(*each) for each in (tensor.shape, tensor.strides)]
    place = (1, 0) if tensor.is_cpu else (2, tensor.get_device())
    kind = tensor.dtype.code, tensor.dtype.itemsize * 8, 1
    return DLTensor(tensor.data_ptr(), *place, len(tensor.shape), *kind, *dims, 0), dims


@Deleter
def _forget(address):
    del _exported[address]


def forget_dropped():
    """Capsules that nobody took over, and nobody has: a destructor of Python's would meet
    exceptions that are set."""
    for address in [*_exported]:
        capsule = _exported[address][0]
        if sys.getrefcount(capsule) == 3 and repr(capsule).count('"dltensor"'):
            del _exported[address]


def export(tensor):
    """A capsule over a tensor."""
    forget_dropped()
    described, dims = describe(tensor)
    managed = Managed(described, None, _forget)
    capsule = new_capsule(ctypes.addressof(managed), FRESH, None)
    _exported[ctypes.addressof(managed)] = capsule, managed, dims, tensor
    return capsule


class Borrowed:
    """What a capsule had, or what was handed over without one."""

    def __init__(self, managed):
        self.managed, self.tensor = managed, managed.tensor
        self.pointer, self.recorded = self.tensor.data, set()
        self.device = self.tensor.device_id if self.tensor.device_type == 2 else None

    def __del__(self):
        self.managed.deleter(ctypes.addressof(self.managed))


def taken_over(capsule):
    managed = Managed.from_address(pointer_of(capsule, FRESH))
    rename(capsule, USED)
    return Borrowed(managed)


def exchange_api(over):
    """The capsule of DLPack's table, with `over` for what makes a tensor of memory."""

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
    def make(address, out):
        made = over(Borrowed(Versioned.from_address(address)))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        out[0] = id(made)
        return 0

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
    def describe_to(tensor, out):
        out[0], tensor.dims = describe(tensor)  # live as long
        return 0

    functions = [ctypes.cast(each, ctypes.c_void_p).value for each in (make, describe_to)]
    table = ExchangeApi((1, 3), (None,) * 3, *functions, None)
    exchange_api.kept = table, make, describe_to
    return new_capsule(ctypes.addressof(table), API, None)
