# SPDX-License-Identifier: Apache-2.0
"""
A Reader decodes the last small frame again shortly before the next is due, and runs no code of the
user twice.
"""

import enum
import itertools
import os
import threading
import time
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import ringcast
from needs import needs_torch

pytestmark = pytest.mark.alike  # without spins nothing is warmed

GAP = 0.002
LIMIT = 60  # seconds; a window comes after some messages, on a busy machine after some more

made = itertools.count()


class Meta(enum.EnumMeta):
    def __getattribute__(cls, name):
        if name == "_member_map_" and threading.current_thread() is threading.main_thread():
            next(made)
        return super().__getattribute__(name)


class Member(enum.Enum, metaclass=Meta):
    A = 1


@dataclass(frozen=True)
class Hashed:
    value: int

    def __hash__(self):
        next(made)
        return 1


class Struct(msgspec.Struct):
    value: int

    def __post_init__(self):
        next(made)


@dataclass
class Finalized:
    value: int

    def __del__(self):
        next(made)


class Pickled:
    def __init__(self):
        self.value = 3

    def __setstate__(self, state):
        next(made)


@pytest.fixture
def cadence():
    """cadence(value): a Reader to which a thread sends the value every 2 ms."""
    over = threading.Event()
    threads = []

    def begin(value, mode="latency"):
        writer = ringcast.Writer(1 << 16)
        reader = ringcast.Reader(writer.handle, wait=mode)

        def send():
            while not over.wait(GAP):
                writer.send(value, timeout=LIMIT)
            writer.close()

        threads.append(threading.Thread(target=send))
        threads[-1].start()
        return reader

    yield begin
    over.set()
    for thread in threads:
        thread.join()


@needs_torch
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU no wait spins")
def test_the_last_small_frame_is_decoded_before_the_next_one(cadence):
    import torch
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        """Counts what is called for each received tensor that requires a gradient."""

        count = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.count += function.__name__ == "requires_grad_"
            return function(*args, **(kwargs or {}))

    with cadence({"x": torch.zeros(3, requires_grad=True)}) as reader, Counting() as mode:
        end = time.monotonic() + LIMIT
        for received in itertools.count(1):
            assert reader.recv()["x"].tolist() == [0, 0, 0]
            if mode.count > received:
                break
            assert time.monotonic() < end, f"{received} messages, and none was decoded twice"

    with cadence({"x": torch.zeros(3, requires_grad=True)}, "power") as reader, Counting() as mode:
        for _ in range(100):
            reader.recv()
    assert mode.count == 100


VALUES = {
    "struct": Struct(1),
    "finalizer": Finalized(2),
    "pickle": Pickled(),
    "enum": Member.A,
    "key": {Hashed(1): 1},
    "tuple in a set": {(Hashed(1), 1)},
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_code_of_the_user_runs_once_for_a_frame(cadence, value):
    def runs(mode):
        with cadence({"value": value, "array": np.arange(3)}, mode) as reader:
            reader.recv()
            before = next(made)
            for _ in range(100):
                reader.recv()
            return next(made) - before

    assert runs("latency") == runs("power")
