# SPDX-License-Identifier: Apache-2.0
"""
What is one object in a value: values whose parts stand in them several times, and which of them do.
"""

import array
import collections
import datetime
import decimal
import pathlib
import uuid

import natives
from prints import fields_of, is_instance
import numpy as np
from hypothesis import strategies as st
from needs import torch

LONG = 2048  # longer text and bytes are one object where they are one in what was sent
PLAIN = (
    *(
        list,
        dict,
        set,
        bytearray,
        collections.deque,
        array.array,
        np.ndarray,
        uuid.UUID,
        decimal.Decimal,
    ),
    *(
        datetime.date,
        datetime.time,
        datetime.timedelta,
        pathlib.PurePath,
        *([torch.Tensor] if torch else []),
    ),
)


def _children(value):
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, collections.deque)):
        return [*value]
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    return (
        [item for _, item in sorted(fields_of(value).items(), key=lambda pair: pair[0])]
        if is_instance(value)
        else []
    )


def _has_identity(value):
    if isinstance(value, (str, bytes)):
        return len(value) > LONG
    if isinstance(value, tuple):  # of torch.Size, nothing can change, and two are as good as one
        return len(value) > 0 and (type(value) is tuple or hasattr(value, "_fields"))
    return isinstance(value, PLAIN) or is_instance(value)


def identities_of(value):
    """For each place in a walk that holds something of an identity, the first place that holds the
    same one."""
    first, found, todo = {}, [], [value]
    while todo:
        value = todo.pop()
        if _has_identity(value):
            is_new = id(value) not in first
            found.append(first.setdefault(id(value), len(found)))
            if not is_new:
                continue
        todo.extend(_children(value))
    return found


KINDS = ["list", "tuple", "dict", "slice", "instance", "deque", "defaultdict"]


def _made(draw, kind, items):
    if kind in ("tuple", "list", "slice"):
        return (
            tuple(items)
            if kind == "tuple"
            else items
            if kind == "list"
            else slice(*(items * 3)[:3] or [None])
        )
    if kind == "deque":
        return collections.deque(items)
    if kind.endswith("dict"):
        made = dict(zip(draw(st.permutations("abcdef")), items))
        return made if kind == "dict" else collections.defaultdict(list, made)
    classes = [natives.Pair, *natives.PLAIN_CLASSES[:3], *natives.STRUCT_CLASSES[:1]]
    return draw(st.sampled_from(classes))(items[0], items[-1]) if items else []


@st.composite
def shared(draw):
    """A value whose parts stand in it several times, in containers and in the items of a dict."""
    pool = [draw(natives.natives) for _ in range(draw(st.integers(1, 3)))] + [
        "x" * (LONG + 1),
        [1, 2, 3],
    ]
    for _ in range(draw(st.integers(1, 8))):
        items = [pool[index] for index in draw(st.lists(st.integers(0, len(pool) - 1), max_size=5))]
        pool.append(_made(draw, draw(st.sampled_from(KINDS)), items))
    value = pool[-1]
    return (
        {"x": value, "y": pool[-2], "z": [value, pool[0]], "w": pool[0]}
        if draw(st.booleans())
        else value
    )
