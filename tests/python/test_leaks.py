# SPDX-License-Identifier: Apache-2.0
"""
Nothing that is packed or unpacked is kept, whether that ends well or not. At length: leaks.py.
"""

import enum
import gc
import sys

import leaks
import natives
import numpy as np
import pytest
from looks import forget_names
from needs import torch

import ringcast

pytestmark = pytest.mark.alike

# Held by many, and the same objects everywhere: what a reference too few would end the process for.
KNOWN = [
    None,
    True,
    False,
    (),
    "",
    "a",
    "request-17",
    1,
    300.25,
    int,
    float,
    np.float32,
    np.bool_,
    np.dtype("float32"),
]
KNOWN += [
    np.dtype("int64"),
    np.ndarray,
    range,
    slice,
    bytearray,
    enum.Enum,
    natives.Color,
    natives.Color.RED,
    "RED",
]
KNOWN += [
    natives.Plain,
    natives.Frozen,
    natives.WithSlots,
    natives.Pair,
    natives.Typed,
    natives.Empty,
    "a",
    "b",
]
KNOWN += natives.STRUCT_CLASSES + natives.PLAIN_CLASSES
if torch:
    KNOWN += [torch.float32, torch.dtype, torch.device, torch.Size, torch.Tensor]
ROUNDS = 300


def counts():
    gc.collect()
    forget_names()  # of other tests' classes, which these rounds would drive out of Python's cache
    return [sys.getrefcount(known) for known in KNOWN]


def test_references_are_exact():
    rounds = leaks.Rounds()
    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        for _ in range(3):
            rounds.arrive(writer, reader)
            rounds.fail()
        before = counts()
        for _ in range(ROUNDS):
            rounds.arrive(writer, reader)
            rounds.fail()
        after = counts()
    # What caches hold may change by a few; what is lost or kept each time, by hundreds.
    changed = {repr(known): now - then for known, now, then in zip(KNOWN, after, before)}
    assert not {known: by for known, by in changed.items() if abs(by) > ROUNDS // 10}


def test_what_arrives_is_the_receivers_alone():
    for value in leaks.good():
        got, new = ringcast.unpack(ringcast.pack([value])), [[]]
        kept, inner = got[0], new[0]
        assert sys.getrefcount(got) == sys.getrefcount(new)
        if isinstance(kept, (list, dict, set, bytearray, np.ndarray, natives.Plain)):
            assert sys.getrefcount(kept) == sys.getrefcount(inner), kept


@pytest.mark.unwatched  # AddressSanitizer keeps what is freed for a while
def test_memory_stays_as_it_is():
    leaks.run(20_000)
