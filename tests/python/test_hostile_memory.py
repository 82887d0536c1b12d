# SPDX-License-Identifier: Apache-2.0
"""What a nested value by hand can make a reader allocate: memory in proportion to the frame."""

import collections
import gc
import struct
import threading
import tracemalloc
from decimal import Decimal
from pathlib import PurePosixPath

import pytest
from natives import Bare, ByIdentity, Plain
from test_hostile_frames import BYTES
from test_hostile_kinds import COUNTER, DECIMAL, DEFAULTDICT, DEQUE, KIND, ORDERED, POSIX, WINDOWS
from test_hostile_objects import (
    ABSENT,
    AGAIN,
    BACK,
    BIGINT,
    BYTEARRAY,
    DATACLASS,
    DICT,
    ENUM,
    FREE,
    FROZENSET,
    INSTANCE,
    INT32,
    LIST,
    MARK,
    NAMED,
    NAMEDTUPLE,
    NONE,
    PACKED_LIST,
    PART,
    RANGE,
    RECORD,
    SCALAR,
    SET,
    SHAPE,
    SLICE,
    SLOTS,
    TUPLE,
    attempt,
    class_token,
    count,
    frame,
    unpack,
)

import ringcast

pytestmark = pytest.mark.alike

ROOM = 60_000
PLAIN = class_token(DATACLASS, "natives", "Empty")
NUMBERS = [bytes([INT32, *struct.pack("<i", number)]) for number in range(ROOM // 8)]
# Full of whatever takes most memory for its bytes; refused or not.
HUNGRY = {
    "lists": [LIST, *count(ROOM // 2), *[LIST, 0] * (ROOM // 2)],
    "dicts": [LIST, *count(ROOM // 2), *[DICT, 0] * (ROOM // 2)],
    "dicts of one": [LIST, *count(ROOM // 4), *[DICT, 1, 1, 1] * (ROOM // 4)],
    "sets": [LIST, *count(ROOM // 2), *[SET, 0] * (ROOM // 2)],
    "frozensets": [LIST, *count(ROOM // 2), *[FROZENSET, 0] * (ROOM // 2)],
    "instances": [LIST, *count(ROOM // 2), *PLAIN, *[INSTANCE, 0] * (ROOM // 2)],
    "bytearrays": [LIST, *count(ROOM // 2), *[BYTEARRAY, 0] * (ROOM // 2)],
    "slices": [LIST, *count(ROOM // 4), *[SLICE, 1, 1, 1] * (ROOM // 4)],
    "ranges": [LIST, *count(ROOM // 4), *[RANGE, 1, 1, 1] * (ROOM // 4)],
    "numbers": [PACKED_LIST, 0x11, *count(ROOM), *[0x80] * ROOM],
    "texts": [LIST, *count(ROOM // 2), *[0x81, 0x61] * (ROOM // 2)],
    "names": [LIST, *count(ROOM // 3), *[NAMED, 1, 0x61] * (ROOM // 3)],
    "a dict of numbers": [DICT, *count(ROOM // 8), *b"".join(number + b"\1" for number in NUMBERS)],
    "a set of numbers": [SET, *count(ROOM // 8), *b"".join(NUMBERS)],
    "scalars": [LIST, *count(ROOM // 6), *[SCALAR, 0, 8, 1, 0, 1] * (ROOM // 6)],
    "states": [LIST, *count(ROOM // 4), *FREE, *[INSTANCE, 0, DICT, 0] * (ROOM // 4)],
    "slots": [
        LIST,
        *count(ROOM // 6),
        *SLOTS,
        *[INSTANCE, 0, ABSENT, ABSENT, ABSENT, NONE] * (ROOM // 6),
    ],
    "classes": [*class_token(ENUM, "natives", "Color") * 255, NONE],
    "records": [LIST, *count(ROOM // 3), SHAPE, 1, 0x81, 0x61, *[RECORD, 0, 1] * (ROOM // 3)],
    "records of nothing": [LIST, *count(ROOM // 2), SHAPE, 0, *[RECORD, 0] * (ROOM // 2)],
    "shapes": [
        *[SHAPE, *count(200), *b"".join(b"\x82" + bytes(divmod(key, 100)) for key in range(200))]
        * 99,
        NONE,
    ],
    "marks": [LIST, *count(ROOM // 2), *[MARK, 1] * (ROOM // 2)],
    "the same again": [LIST, *count(ROOM // 2), MARK, LIST, 0, *[BACK, 0] * (ROOM // 2 - 1)],
    # These claim what is not there.
    "records in records": [
        SHAPE,
        *count(99),
        *b"".join(b"\x81" + bytes([key]) for key in range(99)),
    ]
    + [RECORD, 0] * 900
    + [1] * 50_000,
    "lists in lists": [LIST, *count(50_000)] * 1000 + [1] * 50_000,
    "tuples in tuples": [TUPLE, *count(50_000)] * 1000 + [1] * 50_000,
    "dicts in dicts": [DICT, *count(25_000), 1] * 1000 + [1] * 50_000,
    "packed in lists": ([LIST, *count(50_000)] + [PACKED_LIST, 0x01, *count(10), *[1] * 10]) * 1000
    + [1] * 50_000,
    "instances in lists": [*PLAIN, *([LIST, *count(40_000)] * 1000), *[INSTANCE, 0] * 20_000],
}
MOST = 128


@pytest.mark.parametrize("name", HUNGRY)
def test_memory_is_in_proportion_to_the_stream(name):
    data = frame(HUNGRY[name])
    attempt(data)  # what is imported and kept
    tracemalloc.start()
    try:
        got = attempt(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST * len(data) + (1 << 16), (peak, len(data), peak / len(data))
    assert isinstance(got, ringcast.ProtocolError) == (" in " in name), got


def test_a_stream_that_shares_its_bytes_with_parts_is_refused():
    stream = bytes([LIST, 200]) + bytes([PART]) * 200
    data = bytearray(frame(stream, parts=[BYTES] * 200))
    for index in range(200):
        place = 48 + 64 * (index + 1) + 32
        data[place : place + 8] = struct.pack("<Q", len(stream))
    assert isinstance(attempt(data), ringcast.ProtocolError)


def doubled(times):
    """A tuple of 2^times places: each level holds the one below twice."""
    tokens = [TUPLE, 2, 1, 1]
    for level in range(times):
        tokens = [TUPLE, 2, MARK, *tokens, BACK, level]
    return tokens


def chain(length, first, link, *last):
    """A list of links, each marked, that name the one before; then further values."""
    return [LIST, *count(length + 2), MARK, *first, *[MARK, *link] * length, *last]


KEYS = {
    "a key": [DICT, 1, *doubled(60), NONE],
    "a member": [SET, 1, *doubled(60)],
    "a bound": [SET, 1, SLICE, 1, 1, *doubled(60)],
    "a frozenset in a key": [SET, 1, TUPLE, 1, FROZENSET, 1, *doubled(60)],
    "a field": [
        *class_token(DATACLASS, "natives", "Frozen", "a", "b"),
        SET,
        1,
        INSTANCE,
        0,
        *doubled(60),
        NONE,
    ],
    "keys of many dicts": [LIST, 200, MARK, *doubled(18), *[DICT, 1, BACK, 18, NONE] * 199],
    "a key after larger sums": chain(
        65, [TUPLE, 2, NONE, NONE], [TUPLE, 2, BACK, 1, BACK, 1], DICT, 1, BACK, 10, NONE
    ),
    "members after larger sums": [SET, 2, *doubled(70), *doubled(40)],
    "a large int": [
        LIST,
        2,
        MARK,
        BIGINT,
        *count(4000),
        *[0x55] * 4000,
        DICT,
        *count(6000),
        *[BACK, 0, NONE] * 6000,
    ],
}


@pytest.mark.parametrize("name", KEYS)
def test_no_key_is_hashed_for_hours(name):
    with pytest.raises(ringcast.ProtocolError, match="too often"):
        unpack(KEYS[name])


ONE = [TUPLE, 1, BACK, 1]
PAIR = class_token(NAMEDTUPLE, "natives", "Pair", "a", "b")
DEEP = {
    "a key": chain(150_000, [TUPLE, 1, NONE], ONE, DICT, 1, BACK, 0, NONE),
    "a member": chain(1025, [TUPLE, 1, NONE], ONE, SET, 1, BACK, 0),
    "a frozenset of a tuple": chain(1025, [TUPLE, 1, NONE], ONE, FROZENSET, 1, TUPLE, 1, BACK, 0),
    "a key of long links": chain(
        50, [TUPLE, 1, NONE], [TUPLE, 1] * 100 + [BACK, 1], DICT, 1, BACK, 0, NONE
    ),
    "a frozenset": chain(150_000, [FROZENSET, 0], [FROZENSET, 1, BACK, 1], DICT, 1, BACK, 0, NONE),
    "an instance": [*PAIR, *chain(150_000, [NONE], [INSTANCE, 0, BACK, 1, 1], SET, 1, BACK, 0)],
    "slices": chain(300_000, [SLICE, 1, 1, 1], [SLICE, BACK, 1, 1, 1], NONE),
    "slices of deep tuples": chain(1025, [TUPLE, 1, NONE], ONE, SLICE, 1, 1, BACK, 0),
    "deques": chain(300_000, [LIST, 0], [KIND, DEQUE, TUPLE, 2, NONE, LIST, 1, BACK, 1], NONE),
    "defaultdicts": chain(
        300_000, [LIST, 0], [KIND, DEFAULTDICT, TUPLE, 2, NONE, DICT, 1, 1, BACK, 1], NONE
    ),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_would_overflow_the_stack_is_refused(name):
    with pytest.raises(
        ringcast.ProtocolError, match="a key, slice or deque that is nested too deep"
    ):
        unpack(DEEP[name])


def test_a_deep_key_in_a_thread_of_a_small_stack_raises():
    data = frame(chain(900, [TUPLE, 1, NONE], ONE, DICT, 1, BACK, 0, NONE))
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


NUMBERED = [
    MARK,
    DICT,
    *count(300),
    *b"".join(bytes([0xC4, *divmod(key, 256), 1]) for key in range(300)),
]
LONG = [NAMED, *count(5000), *[0x31] * 5000]
ELSEWHERE = {
    "a Counter": [*NUMBERED, KIND, COUNTER, BACK, 0],
    "an OrderedDict": [*NUMBERED, KIND, ORDERED, BACK, 0],
    "a defaultdict": [*NUMBERED, KIND, DEFAULTDICT, TUPLE, 2, NONE, BACK, 0],
    "a defaultdict's state": [MARK, TUPLE, 2, NONE, *NUMBERED[1:], KIND, DEFAULTDICT, BACK, 0],
    "a deque": [MARK, LIST, 1, 1, KIND, DEQUE, TUPLE, 2, NONE, BACK, 0],
    "a deque's state": [MARK, TUPLE, 2, NONE, LIST, 1, 1, KIND, DEQUE, BACK, 0],
    "behind a shape": [*NUMBERED, KIND, COUNTER, SHAPE, 1, 0x81, 0x61, BACK, 0],
    "attributes": [MARK, DICT, 1, 0x81, 0x61, 1, *FREE, INSTANCE, 0, BACK, 0],
    "a Decimal": [*LONG, KIND, DECIMAL, AGAIN, 0],
    "a Decimal by a mark": [MARK, *LONG, KIND, DECIMAL, BACK, 0],
    "a path": [*LONG, KIND, POSIX, AGAIN, 0],
    "a path of Windows": [*LONG, KIND, WINDOWS, TUPLE, 2, AGAIN, 0, AGAIN, 0],
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_state_is_no_copy_of_what_stands_elsewhere(name):
    with pytest.raises(ringcast.ProtocolError, match="a state that stands elsewhere"):
        unpack([LIST, 2, *ELSEWHERE[name]])


def test_states_that_share_values_arrive():
    words, number, path = ["a"], Decimal("1" * 20000), PurePosixPath("a/" * 2000)
    value = [
        words,
        collections.deque([words]),
        Bare(a=words),
        {"a": words},
        collections.OrderedDict(a=words),
    ]
    value += [
        vars(value[2]),
        Bare(a=words),
        [number, Decimal(number)],
        number,
        path,
        str(path),
        PurePosixPath(path),
    ]
    value += [collections.defaultdict(list, a=words), collections.Counter("aab"), value[1]]
    got = ringcast.unpack(ringcast.pack(value), allow_pickle=False)
    assert got[0] is got[1][0] is got[2].a is got[6].a is got[12]["a"] and got[1] is got[14]
    assert [got[place] for place in (7, 8, 9, 10, 11, 13)] == [
        value[place] for place in (7, 8, 9, 10, 11, 13)
    ]


def seen_by_the_collector(data):
    """How many tuples with a hole the collector shows while the frame is decoded."""
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
    return len(holes)


def test_the_keys_of_a_shape_are_hidden_until_complete():
    keys = b"".join(b"\x82%02d" % key for key in range(7))
    assert seen_by_the_collector(frame([*[SHAPE, 7, *keys] * 50, RECORD, 0, *[0] * 7])) == 0


def linked(link, count=3000):
    nodes = [None]
    for _ in range(count):
        nodes.append(link(nodes[-1]))
    return nodes


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
    nodes = linked(LINKS[name])
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
