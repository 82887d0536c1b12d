# SPDX-License-Identifier: Apache-2.0
"""What a frame by hand can make a reader allocate, hash or recurse: in proportion to the frame."""

import collections
import contextlib
import gc
import struct
import threading
import tracemalloc
from decimal import Decimal
from pathlib import PurePosixPath

import numpy as np
import pytest
from hostile import BUFFER, BYTES, DICT, INT64, KEYED, NONE, NUMPY, OBJECT, PICKLE, STR, TENSOR
from hostile import TORCH, VALUE, entry, frame_of, nested, stream
from natives import Bare, ByIdentity, Plain
from needs import needs_torch
from peers import send_frame, still_works

import ringcast

pytestmark = pytest.mark.alike
MIB = 1 << 20


def attempt(frame):
    """What it is, or by what it is refused."""
    try:
        return ringcast.unpack(frame, allow_pickle=False)
    except (ringcast.Error, ImportError) as error:
        return error


def with_peak(frame):
    """The same, and the most bytes of Python's and NumPy's that were allocated meanwhile."""
    tracemalloc.start()
    try:
        return attempt(frame), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ---- Entries -------------------------------------------------------------------------------------

NAMES = b"".join(b"%08d" % index for index in range(1000))
KEYS = [(8 * index, 8) for index in range(1000)]
LINE = {"dtype": (1, 8, 1), "dims": (1, 8000)}
# Each would make a reader allocate a thousand times the frame.
BOMBS = {
    "texts": (DICT, [entry(STR, KEYED, size=MIB, key=key) for key in KEYS], b"x" * MIB, NAMES),
    "bytes": (DICT, [entry(BYTES, KEYED, size=MIB, key=key) for key in KEYS], b"x" * MIB, NAMES),
    "arrays": (
        DICT,
        [entry(TENSOR, KEYED | NUMPY, size=MIB, key=key, **LINE) for key in KEYS],
        b"x" * MIB,
        NAMES + struct.pack("<2q", MIB, 1),
    ),
    "keys": (
        DICT,
        [entry(NONE, KEYED, key=(index, MIB)) for index in range(1000)],
        b"",
        b"x" * MIB + NAMES,
    ),
    "buffers": (
        VALUE,
        [entry(PICKLE, size=4)] + [entry(BUFFER, size=MIB)] * 1000,
        b"N." + bytes(MIB),
    ),
    "an expanded array": (
        VALUE,
        [entry(TENSOR, NUMPY, size=8, dtype=INT64, dims=(2, 0))],
        bytes(8),
        struct.pack("<4q", MIB, MIB, 0, 0),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_entries_that_share_their_bytes_are_refused_before_they_take_memory(ring, name):
    writer, reader = ring
    frame = frame_of(*BOMBS[name])
    send_frame(writer, frame)
    tracemalloc.start()
    try:
        with pytest.raises(ringcast.ProtocolError, match=" share their bytes"):
            reader.recv(0)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(frame) + MIB
    finally:
        tracemalloc.stop()
    assert still_works(writer, reader)


def test_a_stream_that_shares_its_bytes_with_parts_is_refused():
    tokens = stream("LIST 200 " + "PART " * 200)
    entries = [entry(OBJECT, scalar=1 | 200 << 32, size=len(tokens))]
    frame = frame_of(VALUE, entries + [entry(BYTES, size=len(tokens))] * 200, tokens, version=2)
    assert isinstance(attempt(frame), ringcast.ProtocolError)


MOST = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
ARRAYS = {"flags": KEYED | NUMPY, "dtype": INT64}
SMALL = {
    "nothing": [entry(NONE, KEYED, key=key) for key in KEYS],
    "empty bytes": [entry(BYTES, KEYED, key=key) for key in KEYS],
    "empty arrays": [entry(TENSOR, key=key, dims=(2, 8000), **ARRAYS) for key in KEYS],
    "arrays of all dimensions": [
        entry(TENSOR, key=key, dims=(MOST, 8000), **ARRAYS) for key in KEYS
    ],
}


@pytest.mark.parametrize("name", SMALL)
def test_many_small_entries_take_memory_in_proportion_to_the_frame(name):
    frame = frame_of(DICT, SMALL[name], b"", NAMES + struct.pack("<128q", *[0] * 128))
    result, peak = with_peak(frame)
    assert len(result) == 1000 and peak < 32 * len(frame) + MIB


@pytest.mark.parametrize("flags", [NUMPY, pytest.param(TORCH, marks=needs_torch)])
@pytest.mark.parametrize(
    "shape", [(0,), (0, 2**62), (2**62, 0), (2**40, 2**40, 0), (0, *[2**62] * 63), (1, 0) * 32]
)
def test_shapes_that_hold_nothing_do_no_harm(flags, shape):
    dims = struct.pack(f"<{2 * len(shape)}q", *shape, *[0] * len(shape))
    entries = [entry(TENSOR, flags, dtype=INT64, dims=(len(shape), 0))]
    with contextlib.suppress(ringcast.ProtocolError):
        assert tuple(ringcast.unpack(frame_of(VALUE, entries, b"", dims)).shape) == shape


# ---- Streams -------------------------------------------------------------------------------------

ROOM = 60_000
EMPTY = "dataclass/natives/Empty"
SLOTS = "instance/natives/SlotsAlone/a/b/_SlotsAlone__private"
NUMBERS = [f"INT32 ~{number:08x}" for number in range(ROOM // 8)]


def many(what, bytes_each, before=""):
    """A list full of what takes so many bytes."""
    times = ROOM // bytes_each
    return f"LIST #{times} {before} " + f"{what} " * times


def within(what, before="", after="1 " * 50_000, times=1000):
    """Containers in containers that all claim what follows, and so what is not there."""
    return f"{before} " + f"{what} " * times + after


# Full of whatever takes most memory for its bytes; those that claim too much are refused.
HUNGRY = {
    "lists": many("LIST 0", 2),
    "dicts": many("DICT 0", 2),
    "dicts of one": many("DICT 1 1 1", 4),
    "sets": f"LIST #{100_000} " + "SET 0 " * 100_000,
    "frozensets": many("FROZENSET 0", 2),
    "instances": many("INSTANCE 0", 2, EMPTY),
    "bytearrays": many("BYTEARRAY 0", 2),
    "slices": many("SLICE 1 1 1", 4),
    "ranges": many("RANGE 1 1 1", 4),
    "numbers": f"PACKED_LIST 0x11 #{ROOM} ~" + "80" * ROOM,
    "texts": many("'a'", 2),
    "names": many("NAMED 1 97", 3),
    "a dict of numbers": f"DICT #{len(NUMBERS)} " + " 1 ".join(NUMBERS) + " 1",
    "a set of numbers": f"SET #{len(NUMBERS)} " + " ".join(NUMBERS),
    "scalars": many("SCALAR 0 8 1 0 1", 6),
    "states": many("INSTANCE 0 DICT 0", 4, "instance/natives/Bare"),
    "slots": many("INSTANCE 0 ABSENT ABSENT ABSENT NONE", 6, SLOTS),
    "classes": "enum/natives/Color " * 255 + "NONE",
    "records": many("RECORD 0 1", 3, "SHAPE 1 'a'"),
    "records of nothing": many("RECORD 0", 2, "SHAPE 0"),
    "shapes": ("SHAPE #200 " + "".join(f"0x82 {key // 100} {key % 100} " for key in range(200)))
    * 99
    + "NONE",
    "marks": many("MARK 1", 2),
    "the same again": f"LIST #{ROOM // 2} MARK LIST 0 " + "BACK 0 " * (ROOM // 2 - 1),
    "records in records": within(
        "RECORD 0", "SHAPE 99 " + "".join(f"0x81 {key} " for key in range(99)), times=900
    ),
    "lists in lists": within("LIST #50000"),
    "tuples in tuples": within("TUPLE #50000"),
    "dicts in dicts": within("DICT #25000 1"),
    "packed in lists": within("LIST #50000 PACKED_LIST 1 10 " + "1 " * 10),
    "instances in lists": within("LIST #40000", EMPTY, "INSTANCE 0 " * 20_000),
}


@pytest.mark.parametrize("name", HUNGRY)
def test_memory_is_in_proportion_to_the_stream(name):
    data = nested(HUNGRY[name])
    attempt(data)  # what is imported and kept
    got, peak = with_peak(data)
    assert peak < 130 * len(data) + (1 << 16), (peak, len(data), peak / len(data))
    assert isinstance(got, ringcast.ProtocolError) == (" in " in name), got


def doubled(times):
    """A tuple of 2^times places: each level holds the one below twice."""
    return (
        "TUPLE 2 MARK " * times
        + "TUPLE 2 1 1"
        + "".join(f" BACK {level}" for level in range(times))
    )


def chain(length, first, link, last):
    """A list of links, each marked, that name the one before; then further values."""
    return f"LIST #{length + 2} MARK {first} " + f"MARK {link} " * length + last


LARGE = "MARK BIGINT #4000 ~" + "55" * 4000
TOO_HEAVY = {
    "a key": f"DICT 1 {doubled(60)} NONE",
    "a member": f"SET 1 {doubled(60)}",
    "a bound": f"SET 1 SLICE 1 1 {doubled(60)}",
    "a frozenset in a key": f"SET 1 TUPLE 1 FROZENSET 1 {doubled(60)}",
    "a field": f"dataclass/natives/Frozen/a/b SET 1 INSTANCE 0 {doubled(60)} NONE",
    "keys of many dicts": f"LIST 200 MARK {doubled(18)}" + " DICT 1 BACK 18 NONE" * 199,
    "a key after larger sums": chain(
        65, "TUPLE 2 NONE NONE", "TUPLE 2 BACK 1 BACK 1", "DICT 1 BACK 10 NONE"
    ),
    "members after larger sums": f"SET 2 {doubled(70)} {doubled(40)}",
    "a large int": f"LIST 2 {LARGE} DICT #6000" + " BACK 0 NONE" * 6000,
}
UNIT, ONE = "TUPLE 1 NONE", "TUPLE 1 BACK 1"
DEQUE, DEFAULTDICT = "KIND deque TUPLE 2 NONE", "KIND defaultdict TUPLE 2 NONE"
TOO_DEEP = {
    "a key": chain(150_000, UNIT, ONE, "DICT 1 BACK 0 NONE"),
    "a member": chain(1025, UNIT, ONE, "SET 1 BACK 0"),
    "a frozenset of a tuple": chain(1025, UNIT, ONE, "FROZENSET 1 TUPLE 1 BACK 0"),
    "a key of long links": chain(50, UNIT, "TUPLE 1 " * 100 + "BACK 1", "DICT 1 BACK 0 NONE"),
    "a frozenset": chain(150_000, "FROZENSET 0", "FROZENSET 1 BACK 1", "DICT 1 BACK 0 NONE"),
    "an instance": "namedtuple/natives/Pair/a/b "
    + chain(150_000, "NONE", "INSTANCE 0 BACK 1 1", "SET 1 BACK 0"),
    "slices": chain(300_000, "SLICE 1 1 1", "SLICE BACK 1 1 1", "NONE"),
    "slices of deep tuples": chain(1025, UNIT, ONE, "SLICE 1 1 BACK 0"),
    "deques": chain(300_000, "LIST 0", f"{DEQUE} LIST 1 BACK 1", "NONE"),
    "defaultdicts": chain(300_000, "LIST 0", f"{DEFAULTDICT} DICT 1 1 BACK 1", "NONE"),
}
NUMBERED = "DICT #300 " + "".join(f"INT16 ~{key:04x} 1 " for key in range(300))
LONG = "NAMED #5000 ~" + "31" * 5000
ELSEWHERE = {
    "a Counter": f"MARK {NUMBERED} KIND counter BACK 0",
    "an OrderedDict": f"MARK {NUMBERED} KIND ordered BACK 0",
    "a defaultdict": f"MARK {NUMBERED} {DEFAULTDICT} BACK 0",
    "a defaultdict's state": f"MARK TUPLE 2 NONE {NUMBERED} KIND defaultdict BACK 0",
    "a deque": f"MARK LIST 1 1 {DEQUE} BACK 0",
    "a deque's state": "MARK TUPLE 2 NONE LIST 1 1 KIND deque BACK 0",
    "behind a shape": f"MARK {NUMBERED} KIND counter SHAPE 1 'a' BACK 0",
    "attributes": "MARK DICT 1 'a' 1 instance/natives/Bare INSTANCE 0 BACK 0",
    "a Decimal": f"{LONG} KIND decimal AGAIN 0",
    "a Decimal by a mark": f"MARK {LONG} KIND decimal BACK 0",
    "a path": f"{LONG} KIND posix AGAIN 0",
    "a path of Windows": f"{LONG} KIND windows TUPLE 2 AGAIN 0 AGAIN 0",
}
# A key would be hashed for hours, the stack be overflown, a state be copied many times.
REFUSED = [
    *((f"{name} is too heavy", tokens, "too often") for name, tokens in TOO_HEAVY.items()),
    *((f"{name} is too deep", tokens, "nested too deep") for name, tokens in TOO_DEEP.items()),
    *((name, f"LIST 2 {tokens}", "stands elsewhere") for name, tokens in ELSEWHERE.items()),
]


@pytest.mark.parametrize(
    "tokens, word", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_names_a_value_again_does_not_multiply_it(tokens, word):
    with pytest.raises(ringcast.ProtocolError, match=word):
        ringcast.unpack(nested(tokens), classes=["natives"])


def test_a_deep_key_in_a_thread_of_a_small_stack_raises():
    data = nested(chain(900, UNIT, ONE, "DICT 1 BACK 0 NONE"))
    assert len(ringcast.unpack(data)) == 902
    got = []

    def receive():
        with pytest.raises(RecursionError, match="of this thread's stack"):
            ringcast.unpack(data)
        got.append(True)

    before = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=receive)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert got


def test_the_keys_of_a_shape_are_hidden_until_complete():
    """How many tuples with a hole the collector shows while the frame is decoded."""
    keys = "".join(f"'{key:02}' " for key in range(7))
    data = nested(f"SHAPE 7 {keys}" * 50 + "RECORD 0" + " 0" * 7)
    holes = []

    def look(_phase, _info):
        tuples = [found for found in gc.get_objects() if type(found) is tuple and len(found) == 7]
        holes.extend(1 for found in tuples if "NULL" in repr(found))

    threshold = gc.get_threshold()
    gc.callbacks.append(look)
    gc.set_threshold(1)
    try:
        ringcast.unpack(data)
    finally:
        gc.callbacks.remove(look)
        gc.set_threshold(*threshold)
    assert holes == []


# ---- What is honest ------------------------------------------------------------------------------


def test_states_that_share_values_arrive():
    words, number, path = ["a"], Decimal("1" * 20000), PurePosixPath("a/" * 2000)
    bare, deque = Bare(a=words), collections.deque([words])
    value = [words, deque, bare, {"a": words}, collections.OrderedDict(a=words), vars(bare)]
    value += [Bare(a=words), collections.defaultdict(list, a=words), deque]
    plain = [[number, Decimal(number)], number, path, str(path), PurePosixPath(path)]
    got = ringcast.unpack(ringcast.pack([*value, *plain]), allow_pickle=False)
    assert got[0] is got[1][0] is got[2].a is got[6].a is got[7]["a"] and got[1] is got[8]
    assert got[9:] == plain


LINKS = {
    "instances": lambda last: Bare(last=last),
    "instances of deques": lambda last: Bare(last=collections.deque([last])),
    "dataclasses of slices": lambda last: Plain(slice(last), 1),
    "lists": lambda last: [last],
    "tuples that are no keys": lambda last: (last,),
    "keys by identity": lambda last: ByIdentity({(last,): 1}),
}


@pytest.mark.parametrize("name", LINKS)
def test_long_chains_arrive(name):
    nodes = [None]
    for _ in range(3000):
        nodes.append(LINKS[name](nodes[-1]))
    got = ringcast.unpack(ringcast.pack(nodes), allow_pickle=False)
    assert [type(node) for node in got] == [type(node) for node in nodes]


def test_keys_that_share_values_arrive():
    shared = tuple(range(1000))
    value = {(index, shared): shared for index in range(2000)}
    got = ringcast.unpack(ringcast.pack(value, allow_pickle=False), allow_pickle=False)
    assert got == value and len({id(key[1]) for key in got}) == 1


def test_a_key_by_identity_is_no_walk():
    node = ByIdentity(None, None)
    for _ in range(60):
        node = ByIdentity(node, node)
    (key,) = ringcast.unpack(ringcast.pack({(node, 1)}))
    assert key[0].a is key[0].b
