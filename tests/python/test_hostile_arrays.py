# SPDX-License-Identifier: Apache-2.0
"""Arrays whose dtype no writer of ringcast's says so: refused, and nothing is read beyond the
elements."""

import itertools
import json
import struct

import numpy as np
import pytest
from hostile import NO_UNITS, NUMPY, OBJECT, TENSOR, VALUE, entry, frame_of, stream, text

import ringcast

pytestmark = pytest.mark.alike


def of(text_of_dtype, kind="ndarray", shape=(4, 6), strides=(6, 1), dtype=(1, 8, 1)):
    """A frame of this array, of 24 bytes of elements: the first of the stream itself."""
    tokens = f"KIND {kind} TUPLE 2 ~{text(text_of_dtype).hex()} PART"
    return with_elements(tokens, shape, strides, dtype)


def with_elements(tokens, shape=(4, 6), strides=(6, 1), dtype=(1, 8, 1)):
    tokens, dims = stream(tokens), struct.pack(f"<{2 * len(shape)}q", *shape, *strides)
    entries = [
        entry(OBJECT, scalar=1 | 1 << 32, size=len(tokens)),
        entry(TENSOR, NUMPY, size=24, dtype=dtype, dims=(len(shape), 0)),
    ]
    return frame_of(VALUE, entries, tokens + bytes(48), dims, version=2)


def fields(**changes):
    state = {"names": ["a"], "formats": ["<i4"], "offsets": [2], "titles": [None], "itemsize": 6}
    return json.dumps({**state, "aligned": False, "record": False, **changes})


def test_such_a_frame_is_well():
    first = stream("KIND ndarray TUPLE 2") + text("|V6")[:3]
    assert ringcast.unpack(of("|V6")).tobytes()[:7] == first
    wanted = np.dtype({"names": ["a"], "formats": ["<i4"], "offsets": [2], "itemsize": 6})
    assert ringcast.unpack(of(fields())).dtype == wanted
    turned = ringcast.unpack(of("<i2", shape=(3, 4, 2), strides=(2, 6, 1)))
    assert turned.shape == (3, 4) and turned.strides == (2, 6)
    assert type(ringcast.unpack(of(fields(record=True), "recarray"))) is np.recarray


DEEP = "<i4"
for _ in range(40):
    DEEP = [DEEP, [1]]
BRACKETS = []
for _ in range(100):
    BRACKETS = [BRACKETS]
HOSTILE = {
    "objects": of("|O", shape=(3, 8), strides=(8, 1)),
    "objects by name": of("object", shape=(3, 8), strides=(8, 1)),
    "strings elsewhere": of("|T16", shape=(1, 24), strides=(24, 1)),
    "a field of objects": of(fields(formats=["|O"], itemsize=10)),
    "too large an element": of("|S7"),
    "too small an element": of("|S5"),
    "an element of a part": of("|S3"),
    "an element of the whole": of("|S24"),
    "no element": of("|V0", shape=(24, 1), strides=(1, 1)),
    "several dtypes": of("i2,i4"),
    "code": of("__import__('os')"),
    "no dtype": of(""),
    "no such unit": of("<M8[eon]"),
    **{f"{unit} of time": of(unit, shape=(3, 8), strides=(8, 1)) for unit in NO_UNITS},
    "a field of 0 s": of(fields(formats=["<M8[0s]"], itemsize=10), shape=(2, 10), strides=(10, 1)),
    "elements that are numbers": of("<i4", dtype=(0, 32, 1), shape=(6,), strides=(1,)),
    "an axis too few": of("<i4", shape=(), strides=()),
    "elements apart": of("|S6", shape=(6, 4), strides=(1, 6)),
    "a field beyond the end": of(fields(offsets=[3])),
    "a field before the start": of(fields(offsets=[-2])),
    "a field that is too wide": of(fields(formats=["<i8"])),
    **{
        f"a field at {offset}": of(fields(formats=["|u1"], offsets=[offset]))
        for offset in (2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1, -(2**31), True, 2.0, "2", None)
    },
    "a nested field beyond the end": of(
        fields(formats=[json.loads(fields(offsets=[2**31 - 4]))], offsets=[0])
    ),
    "a field of more bytes than a C int counts": of(fields(formats=["|V4294967298"])),
    "a field that is too wide by its axes": of(fields(formats=[["<i4", [2**31 - 1, 2**31 + 1]]])),
    "more axes than NumPy has": of(fields(formats=[["<i4", [1] * 65]])),
    "a title that is a name": of(fields(titles=["a"])),
    "a number of many digits": of(fields(itemsize=6).replace("6", "6" * 5000)),
    "an unclosed string of quotes": of('{"' + '\\"' * 4000),
    "a long text": of(fields(names=["a" * (1 << 16)])),
    "an element of less than its fields": of(fields(itemsize=5)),
    "an element of less than nothing": of(fields(itemsize=-6)),
    "misaligned": of(fields(aligned=True)),
    "two of a name": of(
        fields(names=["a", "a"], formats=["i1", "i1"], offsets=[0, 1], titles=[None, None])
    ),
    "a name too many": of(fields(names=["a", "b"])),
    "a name that is none": of(fields(names=[[]])),
    "titles that are none": of(fields(titles=5)),
    "fields that are missing": of("{}"),
    "no JSON": of("{"),
    "JSON that is too deep": of('{"formats":' + "[" * 20000),
    "JSON beside the fields that is too deep": of(fields(beside=BRACKETS)),
    "fields that are too deep": of(fields(formats=[DEEP])),
    "axes of less than nothing": of(fields(formats=[["<i4", [-1]]])),
    "axes beyond all memory": of(fields(formats=[["<i4", [1 << 40, 1 << 40]]])),
    "an int for elements": with_elements("LIST 2 PART KIND ndarray TUPLE 2 '|S6' 5"),
    "bytes for a dtype": with_elements("KIND ndarray TUPLE 2 BYTES 3 ~7c5336 PART"),
    "a list": with_elements("KIND ndarray LIST 2 '|S6' PART"),
    "elements and nothing": with_elements("KIND ndarray TUPLE 1 PART"),
}


def test_brackets_in_names_are_no_nest():
    for name in ("[{" * 200, '"' + "[" * 200, "\\" + "[" * 200):
        assert ringcast.unpack(of(fields(names=[name]))).dtype.names == (name,)


def test_a_dtype_that_is_named_again_has_names_of_its_own():
    """A few bytes name a text once more: the fields are shared, but not their names."""
    sent = np.zeros(3, [("a", "<i4"), ("b", "S2")])
    first, second = ringcast.unpack(ringcast.pack([sent, sent.copy()]))
    first.dtype.names = ("x", "y")
    assert (first.dtype.names, second.dtype.names) == (("x", "y"), ("a", "b"))


@pytest.mark.parametrize("name", HOSTILE)
def test_another_state_is_refused(name):
    with pytest.raises(ringcast.ProtocolError):
        ringcast.unpack(HOSTILE[name])


def test_mutated_states_do_no_harm():
    """Of any text that is one byte off: refused, or an array within the elements."""
    texts = [fields(), fields(formats=[["<i2", [2]]], aligned=True), "<M8[25us]", "|S6"]
    made = 0
    for whole in texts:
        for at, byte in itertools.product(range(len(whole)), b'0189-"[]{},:|<OSVUTm \0'):
            try:
                got = ringcast.unpack(of(whole[:at] + chr(byte) + whole[at + 1 :]))
            except ringcast.ProtocolError:
                continue
            made += 1
            assert not got.dtype.hasobject and got.dtype.itemsize == 6 and got.nbytes == 24
    assert made > 10
