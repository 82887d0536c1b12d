# SPDX-License-Identifier: Apache-2.0
"""What a nested value by hand can make a reader allocate: memory in proportion to the frame."""

import struct
import tracemalloc

import pytest
from natives import ByIdentity
from test_hostile_frames import BYTES
from test_hostile_objects import (
    ABSENT,
    BACK,
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
    "slots": [LIST, *count(ROOM // 6), *SLOTS, *[INSTANCE, 0, ABSENT, ABSENT, ABSENT, NONE] * (ROOM // 6)],
    "classes": [*class_token(ENUM, "natives", "Color") * 255, NONE],
    "records": [LIST, *count(ROOM // 3), SHAPE, 1, 0x81, 0x61, *[RECORD, 0, 1] * (ROOM // 3)],
    "records of nothing": [LIST, *count(ROOM // 2), SHAPE, 0, *[RECORD, 0] * (ROOM // 2)],
    "shapes": [*[SHAPE, *count(200), *b"".join(b"\x82" + bytes(divmod(key, 100)) for key in range(200))] * 99, NONE],
    "marks": [LIST, *count(ROOM // 2), *[MARK, 1] * (ROOM // 2)],
    "the same again": [LIST, *count(ROOM // 2), MARK, LIST, 0, *[BACK, 0] * (ROOM // 2 - 1)],
    # These claim what is not there.
    "records in records": [SHAPE, *count(99), *b"".join(b"\x81" + bytes([key]) for key in range(99))]
    + [RECORD, 0] * 900
    + [1] * 50_000,
    "lists in lists": [LIST, *count(50_000)] * 1000 + [1] * 50_000,
    "tuples in tuples": [TUPLE, *count(50_000)] * 1000 + [1] * 50_000,
    "dicts in dicts": [DICT, *count(25_000), 1] * 1000 + [1] * 50_000,
    "packed in lists": ([LIST, *count(50_000)] + [PACKED_LIST, 0x01, *count(10), *[1] * 10]) * 1000 + [1] * 50_000,
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


KEYS = {
    "a key": [DICT, 1, *doubled(60), NONE],
    "a member": [SET, 1, *doubled(60)],
    "a bound": [SET, 1, SLICE, 1, 1, *doubled(60)],
    "a frozenset in a key": [SET, 1, TUPLE, 1, FROZENSET, 1, *doubled(60)],
    "a field": [*class_token(DATACLASS, "natives", "Frozen", "a", "b"), SET, 1, INSTANCE, 0, *doubled(60), NONE],
    "keys of many dicts": [LIST, 200, MARK, *doubled(18), *[DICT, 1, BACK, 18, NONE] * 199],
}


@pytest.mark.parametrize("name", KEYS)
def test_no_key_is_hashed_for_hours(name):
    with pytest.raises(ringcast.ProtocolError, match="too often"):
        unpack(KEYS[name])


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
