# SPDX-License-Identifier: Apache-2.0
"""Unpacks mutated frames, with an extension that AddressSanitizer and UndefinedBehaviorSanitizer
watch:

    cmake/python-asan.sh --run tests/fuzz/mutate.py --rounds 10000000

The frames are packed from values of each kind that goes without a pickle, and from the streams by
hand of tests/vectors/hostile.py; a round changes some bytes, cuts, repeats, or joins
two frames. A frame is unpacked without pickles, and what comes of it is packed again, which reads
every byte. Only ringcast's own errors may be raised. One block of rounds in TRACED counts what a
round allocates: in proportion to its frame. The rounds of a block depend on the seed and the block
alone, so a block that fails is run again by `--seed S --block B`.
"""

import array
import collections
import datetime
import decimal
import functools
import pathlib
import resource
import sys
import tracemalloc
import types
import uuid

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "tests/vectors"), str(ROOT)]

import leaks  # noqa: E402
import natives  # noqa: E402
from needs import torch  # noqa: E402
import hostile  # noqa: E402
import rounds  # noqa: E402

import ringcast  # noqa: E402
from bench.python import cases, engine  # noqa: E402
from rounds import BLOCK  # noqa: E402

TRACED = 16
LONGEST = 8192  # bytes of a frame: shorter ones are unpacked in less time, and have the same tokens
# What a round may allocate: the most that a byte of a frame becomes is an empty set's share, and a
# damaged frame is told of in words. What a process may have above its first block: AddressSanitizer
# keeps freed memory for a while.
PER_BYTE, AND = 300, 1 << 20
RESIDENT = 512 << 20
RESIDENT_FIRST = []
ALLOWED = (ringcast.Error, ImportError)
TAGS = bytes([*range(0xC0, 0xED), 0, 1, 2, 0x7F, 0x80, 0xFC, 0xFD, 0xFE, 0xFF])


class Plain:
    """Its instances are a class and a __dict__."""


class Child(natives.Plain):
    """An undecorated subclass, with a __dict__ that may have more."""


def instance(cls, **names):
    made = cls.__new__(cls)
    made.__dict__.update(names)
    return made


def values():
    shared = [1, "a", 2.5]
    cycle = {"of": shared}
    cycle["itself"] = [cycle, shared]
    zone = datetime.timezone(datetime.timedelta(hours=2), "Z")
    fields = [("a", "<i4"), ("b", "S5"), ("c", [("d", "<f8", (2,))])]
    structured = np.zeros(3, fields)
    yield from leaks.good()
    yield from (
        cases.decode_step(4),
        cases.looked_up(cases.decode_step(64)),
        cases.metadata(),
        cases.records(5),
    )
    yield from (
        [{"x": i, "y": str(i)} for i in range(9)],
        [shared, shared, cycle],
        [cycle, (shared, {"s": shared})],
    )
    yield [array.array(code, [1, 2, 3]) for code in "bBhHiIlLqQfd"]
    yield [
        collections.OrderedDict(b=1, a=2),
        collections.Counter("abca"),
        collections.deque([1, [2]], 5),
    ]
    yield [
        collections.defaultdict(list, a=[1]),
        collections.UserDict(a=shared),
        collections.UserList([1, shared]),
    ]
    yield [
        uuid.UUID(int=5),
        pathlib.PurePosixPath("/a/b"),
        pathlib.Path("c"),
        decimal.Decimal("1.50"),
    ]
    yield [
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, zone),
        datetime.date(2026, 1, 2),
        datetime.time(1, 2, fold=1),
        zone,
    ]
    yield [
        datetime.timedelta(1, 2, 3),
        natives.Permission(3),
        natives.Bits(3),
        types.SimpleNamespace(a=1, b=shared),
    ]
    yield [instance(Plain, a=1, b=shared), instance(Child, a=1, b=2, c=3), instance(Plain)]
    yield engine.KwargsItem({"x": engine.FieldElem(np.arange(4.0), engine.BatchedField())})
    yield [
        np.array([b"ab", b"c"]),
        np.array(["ab", "c"]),
        np.array(["2026-01-02"], "M8[D]"),
        np.array([1], "m8[s]"),
    ]
    yield [
        structured,
        structured.view(np.recarray),
        np.dtype(fields),
        np.asfortranarray(np.ones((3, 4))),
    ]
    if torch:
        yield [torch.float32, torch.device("cpu"), torch.Size([2, 3]), torch.arange(4)]
    yield {
        "a": np.arange(6).reshape(2, 3),
        "b": np.float32(1),
        "c": [np.zeros((2, 0)), np.arange(3)[::-1]],
    }


@functools.cache
def seeds():
    """Frames of values, and frames that are damaged already."""
    ringcast._ringcast._recycling(0)
    frames = []
    for value in values():
        try:
            frames.append(bytes(ringcast.pack(value, allow_pickle=False)))
        except (ringcast.Error, TypeError):  # a pickle would be refused unread
            for part in value if isinstance(value, list) else []:
                try:
                    frames.append(bytes(ringcast.pack([part, 1], allow_pickle=False)))
                except ringcast.Error:
                    continue
    return [frame for frame in frames if len(frame) <= LONGEST], [
        *map(hostile.nested, (hostile.REFUSED | hostile.WRONG_STREAMS).values())
    ]


def mutated(chance, frames):
    packed, by_hand = frames
    frames = by_hand if chance.random() < 0.1 else packed
    frame = bytearray(chance.choice(frames))
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        size = len(frame)
        place, kind = int(chance.random() * size), chance.random()
        if not size or kind < 0.1:
            other = chance.choice(frames)
            frame[place:] = other[int(chance.random() * len(other)) :]
        elif kind < 0.5:
            frame[place] = TAGS[int(chance.random() * len(TAGS))]
        elif kind < 0.75:
            frame[place] ^= 1 << int(chance.random() * 8)
        elif kind < 0.8:
            del frame[place:]
        elif kind < 0.9:
            del frame[place : place + 1 + int(chance.random() * 8)]
        else:
            start = int(chance.random() * size)
            frame[place:place] = frame[start : start + 1 + int(chance.random() * 64)]
    return bytes(frame)


def unpack(frame):
    """1 if the frame is a value, 0 if it is refused."""
    try:
        value = ringcast.unpack(frame, allow_pickle=False, **CLASSES)
    except ALLOWED:
        return 0
    try:
        ringcast.pack(value, allow_pickle=False)
    except ALLOWED:
        pass
    return 1


def allowed():
    """The classes that frames may name, where unpack takes them."""
    try:
        ringcast.unpack(ringcast.pack(1), classes=[natives])
    except TypeError:
        return {}
    return {"classes": [natives, engine, Plain, Child]}


CLASSES = allowed()


def allocated(frame):
    """Whether it is a value, and the most that was allocated for it."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    good = unpack(frame)
    return good, tracemalloc.get_traced_memory()[1] - before


def run_block(chance, block):
    """How many frames were values, of how many that were packed."""
    frames = seeds()
    traced = block % TRACED == 1
    good = 0
    if traced:
        tracemalloc.start()
    for number in range(BLOCK):
        frame = mutated(chance, frames)
        if not traced:
            good += unpack(frame)
            continue
        most = PER_BYTE * len(frame) + AND
        # A table of the interpreter's, as that of its interned strings, is made anew now and then,
        # and not twice.
        value, grown = min((allocated(frame) for _ in range(2)), key=lambda found: found[1])
        assert grown <= most, f"round {number}: {grown} bytes of {len(frame)}: {frame.hex()}"
        good += value
    if traced:
        tracemalloc.stop()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    RESIDENT_FIRST.append(most)
    grown = most - RESIDENT_FIRST[0]
    assert grown < RESIDENT, f"{grown} bytes more than after the first block"
    return good, 0


if __name__ == "__main__":
    told = "mutated frames: {}, of which {} were values"
    sys.exit(rounds.main(__doc__, run_block, told))
