# SPDX-License-Identifier: Apache-2.0
"""
Packs and unpacks values of every native type, over and over, in all the ways that can fail too, and
fails if memory grows: blocks of Python's allocator, or the process's resident memory.

    build/venv/bin/python tests/python/leaks.py --frames 1000000
"""

import argparse
import collections
import contextlib
import fractions
import pathlib
import pickle
import sys
import types

import natives
import numpy as np
from looks import ROUNDS, check, measure
from needs import torch

import ringcast

sys.path.append(str(pathlib.Path(__file__).parents[1] / "vectors"))
from hostile import nested  # noqa: E402


def good():
    """Values that arrive."""
    text = "a text that stands here twice"
    values = [
        None,
        7,
        2**70,
        1.5,
        1j,
        "x",
        text * 100,
        b"y" * 3000,
        bytearray(5000),
        [1, 2, 300],
        (0.5, 1.5, 2.5),
        {
            "ids": [text, text],
            "counts": {1, 2},
            "more": frozenset([(1, "a")]),
            5: {"deep": [[[None]]]},
        },
        [
            natives.Plain(1, natives.Frozen(text)),
            natives.Inherited([1]),
            natives.WithSlots(1, {}),
            natives.Empty(),
        ],
        [
            natives.Pair(1),
            natives.Typed([2]),
            natives.Color.RED,
            natives.Bits.A,
            natives.Outer.Inner(text),
        ],
        [range(5), slice(1, None), np.float32(1), np.True_, np.arange(5), {"x": np.zeros((2, 3))}],
        {
            "leaf": [natives.Bits(3), {natives.Permission(0): 1}],
            "date": [np.datetime64("2020-01-01")],
        },
        ["\ud800", "\xe9" * 300, {f"key-{number}": str(number) for number in range(100)}],
    ]
    other = natives.Plain(1)
    other.__dict__ = {"a": [2.5], "another": 1}  # as many fields, and not the same
    values += [[other], natives.Bare(**{f"name {number}": text for number in range(300)})]
    values += [
        natives.make(natives.SlotsMore, {"a": text, "d": [text]}),
        natives.make(natives.SlotsAlone, {"b": 2.5}),
    ]
    values += [
        types.SimpleNamespace(a=[1]),
        collections.UserDict(a=[1]),
        natives.make(natives.SlotsAlone, {}),
    ]
    values += [cls(a=text, b=[1]) for cls in natives.PLAIN_CLASSES + natives.STRUCT_CLASSES]
    if torch:
        values += [[torch.float32, torch.device("cpu"), torch.Size([2]), torch.arange(3)]]
    return values


class Refuses:
    def __reduce__(self):
        raise LookupError("not this one")


class NoHashHere:
    """Has a hash where it is sent, and none where it arrives."""

    arrives = False

    def __hash__(self):
        if NoHashHere.arrives:
            raise TypeError("no hash")
        return 1

    def __reduce__(self):
        return NoHashHere, ()


def too_deep(levels=1025):
    value = 7
    for _ in range(levels):
        value = (value,)
    return value


def bad():
    """Values that can't be packed, each by another way."""
    cycle = [1]
    cycle.append({"x": cycle})
    values = [
        [1, {"x": natives.Plain(Refuses())}],
        {"x": {Refuses(): 1}},
        [[1, 2, lambda: None]],
        too_deep(200_000),
    ]
    return values, [
        [fractions.Fraction(1)],
        {"x": [cycle]},
        {"y": natives.Plain({1: Refuses()})},
        too_deep(),
    ]


def broken():
    """
    Streams that end in the middle of each kind of container, after a value that is nobody else's.
    """
    number = "FLOAT ~3132333435363738"
    yield from (f"{tag} 2 {number} 255" for tag in ("LIST", "TUPLE", "SET", "FROZENSET"))
    yield from (
        f"DICT 1 {items}" for items in (f"{number} 255", f"255 {number}", f"LIST 0 {number}")
    )
    for tag in ("SLICE", "RANGE"):
        yield from (f"{tag} {number} {number} {last}" for last in (255, 0))
    yield "LIST 2 NAMED 1 ~61 AGAIN 1"
    state = "instance/natives/SlotsMore/c/a/b/_SlotsAlone__private INSTANCE 0"
    for rest in ("255", "LIST 0", number, f"DICT 1 {number} 255"):
        yield f"{state} {number} ABSENT {number} ABSENT {rest}"
    names = ["dataclass/natives/Plain", "dataclass/natives/WithSlots", "namedtuple/natives/Pair"]
    for name in [*names, *(["struct/natives/Struct"] if natives.STRUCT_CLASSES else [])]:
        yield f"{name}/a/b INSTANCE 0 {number} 255"
        yield f"LIST 2 {name}/a/b INSTANCE 0 {number} {number} INSTANCE 1"


def damaged():
    """Frames that can't be unpacked, each by another way."""
    whole = bytes(ringcast.pack(good()[11:15]))
    frames = [whole[:place] for place in range(48, len(whole), 37)]
    for place in range(112, len(whole), 11):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        frames.append(bytes(changed))
    for old, new in (
        (b"Plain", b"Pluin"),
        (b"natives", b"nothing"),
        (b"RED", b"RAD"),
        (b"Color", b"Plain"),
    ):
        frames.append(whole.replace(old, new))
    frames += [nested(tokens) for tokens in broken()]
    return frames, bytes(ringcast.pack([{NoHashHere(): natives.Plain(1)}, {1: {NoHashHere()}}]))


class Rounds:
    def __init__(self):
        self.good = good()
        self.whole = {
            "all": self.good,
            **{f"item {index}": value for index, value in enumerate(self.good)},
        }
        self.pickled, self.refused = bad()
        self.damaged, self.unhashable = damaged()
        self.frames = 0

    def arrive(self, writer, reader):
        for value in self.good:
            ringcast.unpack(ringcast.pack(value))
            writer.send(value, 0)
            reader.recv(0)
        writer.send(self.whole, 0)
        reader.recv(0)
        self.frames += 2 * len(self.good) + 1

    def fail(self):
        for value in self.pickled:
            with contextlib.suppress(
                LookupError, AttributeError, RecursionError, pickle.PicklingError
            ):
                ringcast.pack(value)
                raise SystemExit("what can't be pickled was")
        for value in self.refused:
            with contextlib.suppress(ringcast.PickleRefused):
                ringcast.pack(value, allow_pickle=False)
                raise SystemExit("what needs a pickle was packed")
        NoHashHere.arrives = True
        for frame in (*self.damaged, self.unhashable):
            with contextlib.suppress(ringcast.Error, ImportError, LookupError, TypeError):
                ringcast.unpack(frame, allow_pickle=frame is self.unhashable)
        NoHashHere.arrives = False
        self.frames += len(self.pickled) + len(self.refused) + len(self.damaged) + 1


def run(frames, say=lambda text: None):
    """The number of frames, and what Python's blocks and the memory have grown by."""
    rounds = Rounds()
    looks = []
    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        while rounds.frames < frames or len(looks) < 5:
            for _ in range(ROUNDS):
                rounds.arrive(writer, reader)
                rounds.fail()
            looks.append(measure())
            if len(looks) % 10 == 0:
                say(f"{rounds.frames} frames, {looks[-1][0]} blocks, {looks[-1][1] >> 10} KiB")
    return rounds.frames, check(looks)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=1_000_000, help="(default: %(default)s)")
    frames, (blocks, memory) = run(parser.parse_args().frames, lambda text: print(text, flush=True))
    since = f"{blocks:+} blocks, {memory >> 10:+} KiB since a quarter of them"
    print(f"leaks: {frames} frames packed and unpacked; {since}")


if __name__ == "__main__":
    main()
