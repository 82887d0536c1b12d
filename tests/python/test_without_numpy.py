# SPDX-License-Identifier: Apache-2.0
"""Where NumPy can't be imported, all that is not NumPy's goes and arrives."""

import subprocess
import sys

import numpy as np
import pytest
from needs import needs_torch

import ringcast

BEGIN = """
import sys


class Blocks:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError("blocked", name=name)


sys.meta_path.insert(0, Blocks())
import array, dataclasses, decimal, enum, fractions
import ringcast


def arrives(value):
    frames = ringcast.Reader(writer.handle, retain=True), ringcast.Tap(writer.handle)
    with frames[0] as other, frames[1] as tap:
        writer.send(value, 3)
        assert reader.recv(3) == value
        assert other.recv(3) == value and tap.recv(3) == value
    writer.send({"x": value}, 3)
    with reader.view(3) as seen:
        assert seen == {"x": value}
    writer.send({"x": value, "y": 7}, 3)
    with reader.next(3) as frame:
        assert frame["x"] == value and frame["y"] == 7 and ringcast.unpack(frame) == {"x": value, "y": 7}
    return ringcast.unpack(ringcast.pack(value)) == value


Member = enum.Enum("Member", "A")
Data = dataclasses.make_dataclass("Data", ["a"])
Member.__module__ = Data.__module__ = "__main__"
VALUES = [
    {"a": [1, {2: "x"}], 3: None},
    [b"b" * 100_000, bytearray(b"c" * 5000), "text" * 9000, 2**70, 1.5, 2j, {1, (2, 3)}, range(9), slice(1)],
    [array.array("d", [1.0]), array.array("i", range(90_000)), decimal.Decimal(1), Member.A, Data([1])],
    [fractions.Fraction(1, 3), Data(fractions.Fraction(2, 3))],
]
"""
PLAIN = """
with ringcast.Writer(1 << 22) as writer, ringcast.Reader(writer.handle) as reader:
    print(all(arrives(value) for value in VALUES), "numpy" in sys.modules)
"""
WITH_TORCH = """
import torch

value = {"x": torch.arange(9.0), "large": torch.ones(90_000, dtype=torch.bfloat16), "step": 7}
with ringcast.Writer(1 << 22) as writer, ringcast.Reader(writer.handle) as reader:
    writer.send(value, 3)
    got = [reader.recv(3), ringcast.unpack(ringcast.pack(value))]
same = [all(torch.equal(each[key], value[key]) for key in ("x", "large")) and each["step"] == 7 for each in got]
print(same, "numpy" in sys.modules)
"""
RECEIVES = """
with ringcast.Reader(sys.argv[1]) as reader:
    got = None
    while got != "end":
        try:
            got = reader.recv(60)
            print(got)
        except ImportError as error:
            print(type(error).__name__, error)
"""


def start(script, *arguments):
    command = [sys.executable, "-c", BEGIN + script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_what_is_not_numpys_arrives_in_all_ways():
    with start(PLAIN) as child:
        assert child.communicate(timeout=120)[0] == "True False\n"


@needs_torch
def test_tensors_arrive():
    with start(WITH_TORCH) as child:
        assert child.communicate(timeout=120)[0] == "[True, True] False\n"


TOLD = "ImportError the frame holds NumPy arrays or numbers, and NumPy can't be imported here"
FRAMES = {
    "array": (np.arange(3), TOLD),
    "item": ({"a": np.ones(100_000), "b": 1}, TOLD),
    "nested": ([np.arange(3)], TOLD),
    "number": ([np.float32(1)], TOLD),
    "dtype": (np.dtype("i4"), "ModuleNotFoundError blocked"),
    "pickle": ([np.array([{}])], "ModuleNotFoundError blocked"),
}


@pytest.mark.parametrize("value, told", FRAMES.values(), ids=FRAMES)
def test_a_frame_with_numpys_is_an_import_error_and_the_next_one_arrives(value, told):
    with ringcast.Writer(1 << 22) as writer, start(RECEIVES, writer.handle) as child:
        writer.wait_readers(1, 60)
        for sent in (value, "end"):
            writer.send(sent, 60)
        error, last = child.communicate(timeout=120)[0].splitlines()
        assert error.startswith(told) and last == "end"
