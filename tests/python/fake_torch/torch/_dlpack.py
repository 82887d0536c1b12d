# SPDX-License-Identifier: Apache-2.0
"""Capsules: of a tensor, and what another library has put into one."""

import ctypes
import sys

import numpy as np


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
        self._take(ctypes.cast(_GET(capsule, b"dltensor"), ctypes.POINTER(_Managed)))
        _RENAME(capsule, _USED)

    def _take(self, managed):
        self.managed = managed
        tensor = managed.contents.tensor
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
