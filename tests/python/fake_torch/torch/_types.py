# SPDX-License-Identifier: Apache-2.0
"""What a tensor is of: its dtype, its shape and its device."""

import numpy as np


class dtype:
    __module__ = "torch"  # where pickle looks for it by its name

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


def _strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)
