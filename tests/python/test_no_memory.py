# SPDX-License-Identifier: Apache-2.0
"""Memory that runs out. A module of CPython's own tests has the n-th allocation of a call fail, for
each n: the call raises MemoryError, or does without the memory, and the next call works. (Where all
allocations fail from the n-th on, CPython itself may end the process.)"""

import contextlib

import natives
import numpy as np
import pytest
from needs import torch
from values import assert_same

import ringcast

testcapi = pytest.importorskip(
    "_testcapi", reason="this Python has no _testcapi, which has allocations fail"
)
pytestmark = pytest.mark.alike

VALUES = {
    "leaves": [None, True, 7, 1 << 80, 2.5, 1 + 2j, "text", b"bytes" * 40],
    "containers": {"tuple": (1, [2, {"a": 3}]), "set": {4, 5}, 6: frozenset({7})},
    "classes": [
        natives.Plain(1, "b"),
        natives.WithSlots(2, 3),
        natives.Typed(4, 5),
        natives.Color.GREEN,
    ],
    "arrays": {"small": np.arange(8), "large": np.zeros(100_000, np.uint8)},
}
if torch:
    VALUES["tensors"] = {"small": torch.arange(8), "large": torch.zeros(100_000, dtype=torch.uint8)}


MOST = 60  # allocations: twice what one of these calls makes


def sweep(call, before, is_right):
    """The call with one of its allocations failing, for each. How often the call has raised
    MemoryError."""
    before()
    call()  # what is imported and made once is there
    failures = 0
    for number in range(MOST):
        before()
        testcapi.set_nomemory(number, number + 1)
        try:
            got = call()
        except MemoryError:
            failures += 1
            continue
        finally:
            testcapi.remove_mem_hooks()
        assert is_right(got), got
    before()
    assert is_right(call())
    return failures


def same(value):
    return lambda got: assert_same(got, value) is None


def empty(reader):
    """Takes all that is in the ring."""
    with contextlib.suppress(TimeoutError):
        while True:
            reader.recv_many(0)


def calls_of(value, writer, reader):
    """Each call, what is done before it, and whether its result is right."""

    def filled():
        empty(reader)
        writer.send(value)

    packed = ringcast.pack(value)
    return {
        "send": (lambda: writer.send(value, 0), lambda: empty(reader), lambda got: got is None),
        "send_many": (
            lambda: writer.send_many([value] * 3, 0),
            lambda: empty(reader),
            lambda got: got is None,
        ),
        "recv": (lambda: reader.recv(0), filled, same(value)),
        "recv_many": (lambda: reader.recv_many(0), filled, same([value])),
        "pack": (
            lambda: ringcast.pack(value),
            lambda: None,
            lambda got: same(value)(ringcast.unpack(got)),
        ),
        "unpack": (lambda: ringcast.unpack(packed), lambda: None, same(value)),
    }


def without_memory(state, name):
    failures = 0
    for value in VALUES.values():
        with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
            failures += sweep(*calls_of(value, writer, reader)[name])
            empty(reader)
            writer.send(value)
            assert_same(reader.recv(0), value)  # the ring is as good as ever
    return failures


def listed_without_memory(state):
    with ringcast.Writer(1 << 16, name="listed"):
        return sweep(
            ringcast.rings, lambda: None, lambda got: any(ring.name == "listed" for ring in got)
        )


@pytest.mark.parametrize("name", ["send", "send_many", "recv", "recv_many", "pack", "unpack"])
def test_a_call_that_runs_out_of_memory_says_so_and_the_next_one_works(peer, name):
    assert peer.call(without_memory, name) > 0


def test_a_list_of_rings_that_runs_out_of_memory_is_a_memory_error(peer):
    assert peer.call(listed_without_memory) > 0
