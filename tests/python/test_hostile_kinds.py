# SPDX-License-Identifier: Apache-2.0
"""States of the standard library's types that no writer of ringcast's sends: refused, with nothing
run."""

import array
import collections
import datetime
import decimal
import pathlib
import struct
import sys
import uuid

import numpy as np
import pytest
from test_hostile_frames import BYTES, STR, VALUE, entry, frame_of
from test_hostile_objects import (
    BIGINT,
    BYTEARRAY,
    DICT,
    LIST,
    NONE,
    OBJECT,
    PACKED_LIST,
    PART,
    SET,
    TRUE,
    TUPLE,
    WTF8,
    unpack,
)

import ringcast

pytestmark = pytest.mark.alike

KIND, ARRAY, PART_ARRAY, BYTES_TOKEN = 0xEA, 0xEB, 0xEC, 0xCD
(
    DEFAULTDICT,
    ORDERED,
    DEQUE,
    COUNTER,
    UUID,
    POSIX,
    PATH,
    WINDOWS,
    DATETIME,
    DATE,
    TIME,
    TIMEDELTA,
    TIMEZONE,
    ZONEINFO,
    DECIMAL,
    DTYPE,
) = range(1, 17)


def with_part(stream, kind, flags, size=8):
    """A frame of this stream, whose first bytes are its only part too."""
    stream = bytes(stream) + bytes(16)
    length = len(stream) - 16
    entries = [entry(OBJECT, scalar=1 | 1 << 32, size=length), entry(kind, flags=flags, size=size)]
    data = bytearray(frame_of(VALUE, entries, stream))
    data[4:6] = struct.pack("<H", 2)
    return ringcast.unpack(bytes(data), allow_pickle=False)


def test_the_arrays_by_hand_are_otherwise_good():
    assert unpack([ARRAY, ord("h"), 4, 1, 0, 2, 0]) == array.array("h", [1, 2])
    assert with_part([PART_ARRAY, ord("b")], BYTES, ord("b") << 24, 2) == array.array(
        "b", [PART_ARRAY - 256, ord("b")]
    )


LACKED = set("uw") - set(array.typecodes)  # one came with Python 3.13, the other goes with 3.16
REFUSED = {
    "no typecode": [ARRAY],
    "a typecode of nothing": [ARRAY, ord("z"), 0],
    "no count": [ARRAY, ord("q")],
    "part of an element": [ARRAY, ord("q"), 7, *bytes(7)],
    "fewer bytes": [ARRAY, ord("b"), 7, *bytes(6)],
    "more bytes than all": [ARRAY, ord("b"), 254, *b"\xff" * 7, 0x7F, 1],
    "a part that is not there": [PART_ARRAY, ord("q")],
    "a part of no typecode": [PART_ARRAY, 0],
    **{f"a typecode of other Pythons, {code}": [ARRAY, ord(code), 4, *bytes(4)] for code in LACKED},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_array_is_refused(name):
    with pytest.raises(ringcast.ProtocolError, match="the frame "):
        unpack(REFUSED[name])


PARTS = {
    "bytes of no array": ([PART_ARRAY, ord("q")], BYTES, 0, 8),
    "another typecode": ([PART_ARRAY, ord("q")], BYTES, ord("d") << 24, 8),
    "text": ([PART_ARRAY, ord("q")], STR, 0, 2),
    "text with a typecode": ([PART], STR, ord("q") << 24, 8),
    "a typecode of nothing": ([PART_ARRAY, ord("q")], BYTES, ord("z") << 24, 8),
    "part of an element": ([PART_ARRAY, ord("q")], BYTES, ord("q") << 24, 7),
    "another flag": ([PART_ARRAY, ord("q")], BYTES, 1 << 20 | ord("q") << 24, 8),
    "an array for a bytearray": ([LIST, 1, 0xE0], BYTES, ord("q") << 24, 8),
    **{
        f"a typecode of other Pythons, {code}": ([PART_ARRAY, ord(code)], BYTES, ord(code) << 24, 8)
        for code in LACKED
    },
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_no_such_array_is_refused(name):
    with pytest.raises(ringcast.ProtocolError, match="the frame "):
        with_part(*PARTS[name])


# ---- States --------------------------------------------------------------------------------------


def text(of):
    data = of.encode()
    return [0xCB, 253, *len(data).to_bytes(4, "little"), *data]


def raw(*data):
    return [BYTES_TOKEN, len(data), *data]


UTC = [KIND, TIMEZONE, 0]
DAY = 86400 * 10**6


def number(value):
    data = value.to_bytes(17, "little", signed=True)
    return [BIGINT, len(data), *data]


GOOD = [
    (
        [KIND, DEFAULTDICT, TUPLE, 2, *text("list"), DICT, 1, 1, 2],
        collections.defaultdict(list, {1: 2}),
    ),
    ([KIND, ORDERED, DICT, 1, 1, 2], collections.OrderedDict({1: 2})),
    ([KIND, DEQUE, TUPLE, 2, 2, LIST, 2, 1, 2], collections.deque([1, 2], 2)),
    ([KIND, COUNTER, DICT, 1, 1, 2], collections.Counter({1: 2})),
    ([KIND, UUID, *raw(*range(16))], uuid.UUID(bytes=bytes(range(16)))),
    ([KIND, POSIX, *text("a")], pathlib.PurePosixPath("a")),
    ([KIND, PATH, *text("a")], pathlib.PosixPath("a")),
    ([KIND, WINDOWS, TUPLE, 1, *text("a")], pathlib.PureWindowsPath("a")),
    (
        [KIND, DATETIME, *raw(7, 208, 1, 2, 3, 4, 5, 0, 0, 6)],
        datetime.datetime(2000, 1, 2, 3, 4, 5, 6),
    ),
    ([KIND, DATE, *raw(7, 208, 1, 2)], datetime.date(2000, 1, 2)),
    ([KIND, TIME, *raw(3, 4, 5, 0, 0, 6)], datetime.time(3, 4, 5, 6)),
    ([KIND, TIMEDELTA, *raw(1, *[0] * 11)], datetime.timedelta(1)),
    (
        [KIND, TIMEZONE, *number(-DAY + 1)],
        datetime.timezone(datetime.timedelta(microseconds=1 - DAY)),
    ),
    ([KIND, DECIMAL, *text("1.5")], decimal.Decimal("1.5")),
    ([KIND, DTYPE, *text("<i4")], np.dtype("i4")),
    ([KIND, DTYPE, *text("<m8[999999999us]")], np.dtype("m8[999999999us]")),
]


@pytest.mark.parametrize("stream, value", GOOD, ids=[type(value).__name__ for _, value in GOOD])
def test_the_states_by_hand_are_otherwise_good(stream, value):
    got = unpack(stream)
    assert type(got) is type(value) and repr(got) == repr(value)


# NumPy divides by a count of 0, which ends the process.
NO_UNITS = [
    "M8[0s]",
    "<m8[0s]",
    "M8[00s]",
    "M8[01s]",
    "M8[0generic]",
    "M8[5]",
    "M8[]",
    "M8[9999999999s]",
    "M8[s]s",
    "M8[",
]
STATES = {
    "a factory that is none of the known": [DEFAULTDICT, TUPLE, 2, *text("eval"), DICT, 0],
    "a factory of another module": [DEFAULTDICT, TUPLE, 2, *text("collections.deque"), DICT, 0],
    "a factory that is a type of no use": [DEFAULTDICT, TUPLE, 2, *text("type"), DICT, 0],
    "a factory that is no text": [DEFAULTDICT, TUPLE, 2, 5, DICT, 0],
    "a factory that is no UTF-8": [DEFAULTDICT, TUPLE, 2, WTF8, 3, 0xED, 0xA0, 0x80, DICT, 0],
    "a factory with more behind it": [DEFAULTDICT, TUPLE, 2, *text("list\0"), DICT, 0],
    "a defaultdict of a list": [DEFAULTDICT, TUPLE, 2, NONE, LIST, 0],
    "a defaultdict of a defaultdict": [DEFAULTDICT, TUPLE, 2, NONE, KIND, ORDERED, DICT, 0],
    "a defaultdict of three": [DEFAULTDICT, TUPLE, 3, NONE, DICT, 0, 1],
    "an OrderedDict of pairs": [ORDERED, LIST, 1, TUPLE, 2, 1, 2],
    "an OrderedDict of one": [ORDERED, KIND, ORDERED, DICT, 0],
    "a Counter of a text": [COUNTER, *text("aab")],
    "a Counter of a number": [COUNTER, 5],
    "a key without a hash": [COUNTER, DICT, 1, LIST, 0, 1],
    "a deque longer than it may be": [DEQUE, TUPLE, 2, 1, LIST, 2, 1, 2],
    "a deque of a length below 0": [DEQUE, TUPLE, 2, 0xC3, 0xFF, LIST, 0],
    "a deque of a length beyond all": [DEQUE, TUPLE, 2, *number(1 << 64), LIST, 0],
    "a deque of a length that is True": [DEQUE, TUPLE, 2, TRUE, LIST, 0],
    "a deque of a text": [DEQUE, TUPLE, 2, NONE, *text("abc")],
    "a deque of a set": [DEQUE, TUPLE, 2, NONE, SET, 0],
    "a UUID of 15 bytes": [UUID, *raw(*range(15))],
    "a UUID of 18 bytes": [UUID, *raw(*range(18))],
    "a UUID of a number": [UUID, 5],
    "a UUID of a bytearray": [UUID, BYTEARRAY, 16, *range(16)],
    "a UUID of no safety": [UUID, *raw(*range(16), 2)],
    "a path of bytes": [POSIX, *raw(65)],
    "a path of a path": [PATH, KIND, POSIX, *text("a")],
    "a path of a list": [WINDOWS, LIST, 0],
    "a path of parts that are none": [WINDOWS, TUPLE, 2, *text("a"), 5],
    "a datetime in month 13": [DATETIME, *raw(7, 208, 13, 2, 3, 4, 5, 0, 0, 6)],
    "a datetime in month 0": [DATETIME, *raw(7, 208, 0x80, 2, 3, 4, 5, 0, 0, 6)],
    "a datetime of February 30": [DATETIME, *raw(7, 208, 2, 30, 3, 4, 5, 0, 0, 6)],
    "a datetime in year 0": [DATETIME, *raw(0, 0, 2, 1, 3, 4, 5, 0, 0, 6)],
    "a datetime in year 65535": [DATETIME, *raw(255, 255, 2, 1, 3, 4, 5, 0, 0, 6)],
    "a datetime at 24:00": [DATETIME, *raw(7, 208, 1, 2, 24, 0, 0, 0, 0, 0)],
    "a datetime of a million microseconds": [
        DATETIME,
        *raw(7, 208, 1, 2, 3, 4, 5, 0x0F, 0x42, 0x40),
    ],
    "a datetime of 9 bytes": [DATETIME, *raw(*range(1, 10))],
    "a datetime in no zone": [DATETIME, TUPLE, 2, *raw(7, 208, 1, 2, 3, 4, 5, 0, 0, 6), NONE],
    "a datetime in a zone that is a text": [
        DATETIME,
        TUPLE,
        2,
        *raw(7, 208, 1, 2, 3, 4, 5, 0, 0, 6),
        *text("UTC"),
    ],
    "a datetime in two zones": [
        DATETIME,
        TUPLE,
        3,
        *raw(7, 208, 1, 2, 3, 4, 5, 0, 0, 6),
        *UTC,
        *UTC,
    ],
    "a date of day 0": [DATE, *raw(7, 208, 1, 0)],
    "a date of 5 bytes": [DATE, *raw(7, 208, 1, 1, 1)],
    "a time at 23:60": [TIME, *raw(23, 60, 0, 0, 0, 0)],
    "a time at 127:00": [TIME, *raw(127, 0, 0, 0, 0, 0)],
    "a time in a zone that is a date": [
        TIME,
        TUPLE,
        2,
        *raw(3, 4, 5, 0, 0, 6),
        KIND,
        DATE,
        *raw(7, 208, 1, 2),
    ],
    "a timedelta of too many days": [TIMEDELTA, *raw(*struct.pack("<3i", 10**9, 0, 0))],
    "a timedelta of too few days": [TIMEDELTA, *raw(*struct.pack("<3i", -(10**9), 0, 0))],
    "a timedelta of a day of seconds": [TIMEDELTA, *raw(*struct.pack("<3i", 0, 86400, 0))],
    "a timedelta of seconds below 0": [TIMEDELTA, *raw(*struct.pack("<3i", 0, -1, 0))],
    "a timedelta of a million microseconds": [TIMEDELTA, *raw(*struct.pack("<3i", 0, 0, 10**6))],
    "a timezone of a day": [TIMEZONE, *number(DAY)],
    "a timezone of a day back": [TIMEZONE, *number(-DAY)],
    "a timezone of years": [TIMEZONE, *number(1 << 100)],
    "a timezone of True": [TIMEZONE, TRUE],
    "a timezone with a name that is none": [TIMEZONE, TUPLE, 2, 0, 1],
    "a Decimal of a float": [DECIMAL, 0xC8, *bytes(8)],
    "a Decimal of words": [DECIMAL, *text("many")],
    "a Decimal with too large an exponent": [DECIMAL, *text("1E+99999999999999999999")],
    "a dtype of several": [DTYPE, *text("i4,f8")],
    "a dtype that is repeated": [DTYPE, *text("(2,3)i4")],
    "a dtype of code": [DTYPE, *text("__import__('os')")],
    "a dtype of no letter": [DTYPE, *text("<")],
    "a dtype by name": [DTYPE, *text("float32")],
    "a dtype of no size": [DTYPE, *text("i3")],
    "a dtype of too large a size": [DTYPE, *text("S9999999999")],
    "a dtype of no unit": [DTYPE, *text("M8[eon]")],
    **{f"a dtype of time, {unit}": [DTYPE, *text(unit)] for unit in NO_UNITS},
    "a dtype of a number": [DTYPE, 5],
    "no kind": [0, NONE],
    "a kind that is yet to come": [17, NONE],
    "the last kind": [255, NONE],
}
ZONE_KEYS = [
    "",
    "/etc/passwd",
    "../x",
    "Europe/../../x",
    "Europe/",
    "a//b",
    ".",
    "a b",
    "a\0b",
    "é",
    "a" * 256,
    "a.b",
]


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_its_type_lacks_is_refused(name):
    with pytest.raises(ringcast.ProtocolError, match="^the frame is damaged "):
        unpack([KIND, *STATES[name]])


@pytest.mark.parametrize("key", ZONE_KEYS)
def test_a_time_zone_is_looked_for_where_zones_are(key):
    with pytest.raises(ringcast.ProtocolError, match="^the frame is damaged "):
        unpack([KIND, ZONEINFO, *text(key)])


def test_a_time_zone_that_is_not_here_is_told():
    for key in ("Mars/Olympus", "Europe"):
        with pytest.raises(
            ringcast.ProtocolError, match=f"holds the time zone '{key}', and there is none here"
        ):
            unpack([KIND, ZONEINFO, *text(key)])


def test_any_state_of_any_kind_does_no_harm():
    plain = [
        [NONE],
        [5],
        text("i4"),
        raw(*range(1, 11)),
        raw(*range(16)),
        [LIST, 0],
        [DICT, 0],
        [TUPLE, 2, NONE, LIST, 0],
    ]
    plain += [
        [TUPLE, 2, NONE, DICT, 0],
        [PACKED_LIST, 1, 3, 1, 2, 3],
        [KIND, TIMEZONE, 0],
        [TUPLE, 1, *text("a")],
    ]
    plain += [
        [SET, 0],
        [TUPLE, 2, *raw(*range(1, 11)), *UTC],
        number(-1),
        [ARRAY, ord("b"), 1, 1],
        [],
    ]
    made = 0
    for kind in range(256):
        for state in plain:
            try:
                unpack([KIND, kind, *state])
                made += 1
            except ringcast.ProtocolError:
                pass
    assert made > 10


def test_a_nest_of_kinds_is_as_deep_as_any():
    assert unpack([LIST, 1] * 1022 + [KIND, ORDERED, DICT, 0])
    for stream in ([KIND, ORDERED] * 1025 + [DICT, 0], [LIST, 1] * 1024 + [KIND, TIMEZONE, 0]):
        with pytest.raises(ringcast.ProtocolError, match="nested too deep"):
            unpack(stream)


def test_a_frame_of_kinds_imports_no_numpy_but_for_a_dtype(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    for stream, value in GOOD[:-2]:
        assert unpack(stream) == value
