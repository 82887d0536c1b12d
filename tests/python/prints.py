# SPDX-License-Identifier: Apache-2.0
"""A fingerprint that two values share if they are the same in value and in type."""

import array
import collections
import copyreg
import datetime
import decimal
import enum
import pathlib
import struct
import uuid

import numpy as np
import values
from needs import torch


def fields_of(value):
    """What an instance has, by name: in its slots and in its __dict__."""
    slots = getattr(type(value), "__struct_fields__", None) or copyreg._slotnames(type(value))
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def is_instance(value):
    """Whether it is an instance of a class of ours, or of one that is like these."""
    cls = type(value)
    of_ours = (
        hasattr(cls, "__struct_fields__") or hasattr(value, "__dict__") or copyreg._slotnames(cls)
    )
    others = (
        type,
        enum.Enum,
        pathlib.PurePath,
        uuid.UUID,
        decimal.Decimal,
        *([torch.Tensor] if torch else []),
    )
    return bool(of_ours) and not isinstance(value, others)


def form_of(dtype):
    """All that a dtype of structs is."""
    if dtype.subdtype:
        return [form_of(dtype.subdtype[0]), dtype.subdtype[1]]
    fields = dtype.names and [
        (name, *map(str, dtype.fields[name][1:]), form_of(dtype[name])) for name in dtype.names
    ]
    return dtype, dtype.str, dtype.type, dtype.isalignedstruct, dtype.itemsize, fields


def print_of(value):
    """What two values have in common that are the same."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<2d", value.real, value.imag)
    if isinstance(value, enum.Enum):
        return kind, id(value)
    if torch and isinstance(value, torch.Tensor):
        return kind, value.dtype, value.shape, value.requires_grad, values.tensor_bytes(value)
    if isinstance(value, np.ndarray) and (value.dtype.names or value.dtype.char in "gG"):
        # Between its fields and in its elements are bytes that mean nothing.
        return kind, form_of(value.dtype), value.shape, repr(value.tolist())
    if isinstance(value, np.ndarray):
        return (
            kind,
            value.dtype.newbyteorder("="),
            value.shape,
            value.astype(value.dtype.newbyteorder("=")).tobytes(),
        )
    if isinstance(value, np.generic):
        kind = np.dtype(
            value.dtype.str
        ).type  # of two that are one, such as longlong and int64, a pickle has the other
        return kind, value.dtype, value.tobytes() if value.dtype.char not in "gG" else repr(value)
    if isinstance(value, type):
        return kind, id(value)
    if isinstance(value, dict):
        items = [(print_of(key), print_of(item)) for key, item in value.items()]
        return kind, items, getattr(value, "default_factory", None)
    if isinstance(value, (set, frozenset)):
        return kind, sorted((print_of(item) for item in value), key=repr)
    if isinstance(value, (list, tuple)):
        return (
            kind,
            [print_of(item) for item in value],
            print_of(getattr(value, "__dict__", None) or 0),
        )
    if kind is array.array:
        return kind, value.typecode, value.tobytes()
    if kind is collections.deque:
        return kind, value.maxlen, [print_of(item) for item in value]
    if kind in (datetime.datetime, datetime.time):
        return kind, repr(value), value.fold, print_of(value.tzinfo)
    if kind in (datetime.timezone, decimal.Decimal):
        return kind, repr(value)
    if isinstance(value, pathlib.PurePath):  # its slots keep what was asked for before
        return kind, str(value)
    if kind is uuid.UUID:
        return kind, value.int, value.is_safe
    if isinstance(value, (range, slice)):
        return kind, print_of(value.start), print_of(value.stop), print_of(value.step)
    if is_instance(value):
        return kind, [(name, print_of(item)) for name, item in fields_of(value).items()]
    return kind, value
