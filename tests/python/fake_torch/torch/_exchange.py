# SPDX-License-Identifier: Apache-2.0
"""DLPack's exchange API, as torch offers it."""

import ctypes

from ._dlpack import _NEW, _Borrowed, _DLTensor


class _Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("unused", ctypes.c_void_p * 3),
        ("make", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [
    ("version", ctypes.c_uint32 * 2),
    ("context", ctypes.c_void_p),
    ("deleter", _DELETER),
    ("flags", ctypes.c_uint64),
    ("tensor", _DLTensor),
]


class _Lent(_Borrowed):
    """What was handed over without a capsule."""

    def __init__(self, managed):
        self._take(managed)


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))
def _describe(tensor, out):
    ndim = len(tensor.shape)
    tensor.dims = [(ctypes.c_int64 * max(ndim, 1))(*each) for each in (tensor.shape, tensor.strides)]  # live as long
    place = (1, 0) if tensor.is_cpu else (2, tensor.get_device())
    kind = tensor.dtype.code, tensor.dtype.itemsize * 8, 1
    shape, strides = (ctypes.cast(each, ctypes.POINTER(ctypes.c_int64)) for each in tensor.dims)
    out[0] = _DLTensor(tensor.data_ptr(), *place, ndim, *kind, shape, strides, 0)
    return 0


def _offered(over):
    """The capsule of a table, with `over` for what makes a tensor of memory."""

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Managed), ctypes.POINTER(ctypes.c_void_p))
    def make(managed, out):
        made = over(_Lent(ctypes.pointer(managed.contents)))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        out[0] = id(made)
        return 0

    functions = [ctypes.cast(each, ctypes.c_void_p).value for each in (make, _describe)]
    _offered.alive = table, name = (
        _Table((1, 3), (None,) * 3, *functions, None),
        ctypes.c_char_p(b"dlpack_exchange_api"),
    )
    _offered.make = make
    return _NEW(ctypes.addressof(table), name, None)
