# SPDX-License-Identifier: Apache-2.0
"""States of the standard library's types that no writer of ringcast's sends: refused, with nothing run."""

import array
import struct

import pytest
from test_hostile_frames import BYTES, STR, VALUE, entry, frame_of
from test_hostile_objects import LIST, OBJECT, PART, unpack

import ringcast

pytestmark = pytest.mark.alike

ARRAY, PART_ARRAY = 0xEB, 0xEC


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
    assert with_part([PART_ARRAY, ord("b")], BYTES, ord("b") << 24, 2) == array.array("b", [PART_ARRAY - 256, ord("b")])


REFUSED = {
    "no typecode": [ARRAY],
    "a typecode of nothing": [ARRAY, ord("z"), 0],
    "no count": [ARRAY, ord("q")],
    "part of an element": [ARRAY, ord("q"), 7, *bytes(7)],
    "fewer bytes": [ARRAY, ord("b"), 7, *bytes(6)],
    "more bytes than all": [ARRAY, ord("b"), 254, *b"\xff" * 7, 0x7F, 1],
    "a part that is not there": [PART_ARRAY, ord("q")],
    "a part of no typecode": [PART_ARRAY, 0],
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
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_no_such_array_is_refused(name):
    with pytest.raises(ringcast.ProtocolError, match="the frame "):
        with_part(*PARTS[name])
