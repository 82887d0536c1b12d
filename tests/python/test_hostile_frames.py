# SPDX-License-Identifier: Apache-2.0
"""
Frames that no writer of ringcast's sends: refused one by one, whatever is in them, and with little
memory.
"""

import contextlib
import errno
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
import values
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs_torch, torch
from peers import send_frame, still_works

import ringcast

pytestmark = pytest.mark.alike


HEADER = struct.Struct("<IHHIIQQQQ")
ENTRY = struct.Struct("<IIHBBBBHIIQQQQQ")
NONE, STR, BYTES, TENSOR, PICKLE, BUFFER, LEAF, ERROR = 1, 5, 6, 7, 8, 9, 10, 11
KEYED, NUMPY, TORCH, REQUIRES_GRAD, PADDED, CUDA, CUPY, JAX = 1, 2, 4, 8, 256, 512, 1024, 2048
DICT, VALUE = 1, 2
INT64 = (0, 64, 1)


def entry(kind, flags=0, scalar=0, size=0, *, dtype=(0, 0, 0), key=(0, 0), dims=(0, 0)):
    """
    An entry of a frame by hand. key: its place in the meta part, and its bytes. dims: how many, and
    their place.
    """
    return kind, flags, scalar, size, dtype, key, dims


def frame_of(root, entries, data=b"", meta=b""):
    """A frame by hand, whose entries have all their data at the same place."""
    start = 48 + 64 * len(entries)
    offset = -(-(start + len(meta) + 16) // 64) * 64 - 16
    frame = bytearray(offset + len(data))
    frame[:48] = HEADER.pack(0x31464352, 1, root, 0, len(entries), len(frame), len(meta), 0, 0)
    for index, (kind, flags, scalar, size, dtype, key, dims) in enumerate(entries):
        frame[48 + 64 * index : 112 + 64 * index] = ENTRY.pack(
            start + key[0] if key[1] else 0,
            key[1],
            kind,
            dims[0],
            0,
            *dtype,
            start + dims[1] if dims[0] else 0,
            flags,
            offset if size else 0,
            size,
            scalar,
            0,
            0,
        )
    frame[start : start + len(meta)] = meta
    frame[offset:] = data
    return bytes(frame)


LIST = pickle.dumps(["x"])
HOSTILE = {
    "nothing": b"",
    "too short": b"RCF1",
    "garbage": b"\xff" * 200,
    "no entries": frame_of(VALUE, []),
    "leaf without pickle": frame_of(DICT, [entry(LEAF, KEYED)]),
    "leaf out of range": frame_of(
        DICT, [entry(LEAF, KEYED, 1), entry(PICKLE, size=len(LIST))], LIST
    ),
    "leaf far out of range": frame_of(
        DICT, [entry(LEAF, KEYED, 2**62), entry(PICKLE, size=len(LIST))], LIST
    ),
    "leaves of no list": frame_of(
        DICT, [entry(LEAF, KEYED), entry(PICKLE, size=4)], pickle.dumps(None, 2)
    ),
    "leaf as the value": frame_of(VALUE, [entry(LEAF), entry(PICKLE, size=len(LIST))], LIST),
    "two pickles": frame_of(DICT, [entry(PICKLE, size=len(LIST))] * 2, LIST),
    "item after the pickle": frame_of(
        DICT, [entry(PICKLE, size=len(LIST)), entry(NONE, KEYED)], LIST
    ),
    "buffer without pickle": frame_of(DICT, [entry(BUFFER, size=4)], b"abcd"),
    "two values": frame_of(VALUE, [entry(NONE)] * 2),
    "item without key": frame_of(DICT, [entry(NONE)]),
    "a key twice": frame_of(DICT, [entry(NONE, KEYED)] * 2),
    "text that is no UTF-8": frame_of(VALUE, [entry(STR, size=2)], b"\xff\xff"),
    "buffers that share their bytes": frame_of(
        VALUE, [entry(PICKLE, size=1000)] + [entry(BUFFER, size=1000)] * 20, bytes(1000)
    ),
    "unknown kind": frame_of(VALUE, [entry(99)]),
    "gradient of integers": frame_of(
        VALUE, [entry(TENSOR, TORCH | REQUIRES_GRAD, size=8, dtype=INT64)], bytes(8)
    ),
    "a dtype of nobody": frame_of(VALUE, [entry(TENSOR, TORCH, size=8, dtype=(2, 8, 8))], bytes(8)),
    "padded, in version 1": frame_of(
        VALUE, [entry(TENSOR, TORCH | PADDED, size=1, dtype=(1, 4, 1))], bytes(1)
    ),
    "int4 bit on bit": frame_of(VALUE, [entry(TENSOR, TORCH, size=1, dtype=(1, 4, 1))], bytes(1)),
    "bfloat16 of NumPy": frame_of(
        VALUE, [entry(TENSOR, NUMPY, size=2, dtype=(4, 16, 1))], bytes(2)
    ),
}


@needs_torch
@pytest.mark.parametrize(
    "flags, dtype, kind",
    [
        (TORCH | PADDED, (1, 4, 1), "torch.uint4"),
        (PADDED, (0, 1, 1), "torch.int1"),
        (PADDED | NUMPY, (1, 4, 1), "NumPy"),
        (PADDED | TORCH, (1, 8, 1), "share"),
        (PADDED | TORCH, (1, 3, 2), "6 bits|dtype"),
        (0, (3, 2, 4), "torch.bits2x4"),
    ],
)
def test_elements_in_bytes_of_their_own(ring, flags, dtype, kind):
    if kind.startswith("torch.") and not hasattr(torch, kind[6:]):
        pytest.skip("this torch has no dtypes of bits")
    writer, reader = ring
    frame = bytearray(frame_of(VALUE, [entry(TENSOR, flags, size=1, dtype=dtype)], b"\3"))
    struct.pack_into("<H", frame, 4, 2)  # the version
    send_frame(writer, frame)
    if kind.startswith("torch."):
        got = reader.recv(0)
        assert str(got.dtype) == kind and got.shape == () and got.view(torch.uint8).tolist() == 3
    else:
        with pytest.raises(ringcast.ProtocolError, match=kind):
            reader.recv(0)
    assert still_works(writer, reader)


@pytest.mark.parametrize("call", ["recv", "view"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_frame_is_refused(ring, name, call):
    if not torch and name in ("gradient of integers", "a dtype of nobody", "int4 bit on bit"):
        pytest.skip("torch is not installed here")
    writer, reader = ring
    send_frame(writer, HOSTILE[name])
    with pytest.raises(ringcast.ProtocolError) as raised:
        getattr(reader, call)(0)
    assert raised.value.errno == errno.EPROTO and reader.lag == 0
    assert still_works(writer, reader)


def test_the_frames_by_hand_are_otherwise_good(ring):
    writer, reader = ring
    send_frame(writer, frame_of(VALUE, [entry(STR, size=2)], b"ab"))
    send_frame(writer, frame_of(DICT, [entry(LEAF, KEYED), entry(PICKLE, size=len(LIST))], LIST))
    send_frame(writer, frame_of(VALUE, [entry(TENSOR, size=8, dtype=INT64)], struct.pack("<q", 7)))
    assert [reader.recv(0) for _ in range(3)] == ["ab", {"": "x"}, np.array(7)]
    keys = [entry(NONE, KEYED, key=(0, 2)), entry(BYTES, KEYED, size=3, key=(2, 1))]
    send_frame(writer, frame_of(DICT, keys, b"xyz", b"abc"))
    assert reader.recv(0) == {"ab": None, "c": b"xyz"}
    dims = struct.pack("<4q", 1, 2, 2, 1)
    send_frame(
        writer,
        frame_of(VALUE, [entry(TENSOR, NUMPY, size=16, dtype=INT64, dims=(2, 0))], bytes(16), dims),
    )
    assert reader.recv(0).shape == (1, 2)


def test_a_frame_of_an_unknown_kind_can_be_looked_at_but_not_received(ring):
    writer, reader = ring
    send_frame(writer, b"abc", 77)
    send_frame(writer, b"abc", 77)
    with pytest.raises(ringcast.ProtocolError, match="77"):
        reader.recv(0)
    with reader.next(0) as frame:
        assert (frame.kind, bytes(frame)) == (77, b"abc")


@pytest.fixture(scope="module")
def distrustful():
    """A ring whose reader loads no pickles: what is damaged of one it may look at."""
    with (
        ringcast.Writer(1 << 24) as writer,
        ringcast.Reader(writer.handle, allow_pickle=False) as reader,
    ):
        assert still_works(writer, reader)  # a first wait opens descriptors
        yield writer, reader


def edits(frame):
    """
    Places and what to put there: most in the header and the entries, where each byte has a meaning.
    """
    end = st.integers(0, len(frame) - 1)
    start = st.integers(0, min(len(frame) - 1, 500))
    return st.lists(
        st.tuples(start | end, st.integers(0, 255) | st.sampled_from((0, 1, 0x7F, 0x80, 0xFF))),
        max_size=6,
    )


@settings(max_examples=400, deadline=None)
@given(values.dicts | values.nested, st.data())
def test_a_damaged_frame_of_any_value_does_no_harm(distrustful, recipe, data):
    writer, reader = distrustful
    frame = bytearray(ringcast.pack(values.cook(recipe)))
    for place, byte in data.draw(edits(frame)):
        frame[place] = byte
    send_frame(writer, frame[: data.draw(st.just(len(frame)) | st.integers(0, len(frame)))])
    with contextlib.suppress(ringcast.ProtocolError, ringcast.SendError, ringcast.PickleRefused):
        values.scribble(reader.recv(0))
    assert reader.lag == 0 and still_works(writer, reader)


# ---- What a frame can make a reader allocate -----------------------------------------------------


def received_with_peak(reader):
    """What recv() gave or raised, and the most bytes of Python's and NumPy's that it had allocated
    meanwhile."""
    tracemalloc.start()
    try:
        result = reader.recv(0)
    except ringcast.Error as error:
        result = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return result, peak


MIB = 1 << 20
NAMES = b"".join(b"%08d" % index for index in range(1000))
KEYS = [(8 * index, 8) for index in range(1000)]
# Each would make a reader allocate a thousand times the frame.
BOMBS = {
    "texts": (DICT, [entry(STR, KEYED, size=MIB, key=key) for key in KEYS], b"x" * MIB, NAMES),
    "bytes": (DICT, [entry(BYTES, KEYED, size=MIB, key=key) for key in KEYS], b"x" * MIB, NAMES),
    "arrays": (
        DICT,
        [
            entry(TENSOR, KEYED | NUMPY, size=MIB, dtype=(1, 8, 1), key=key, dims=(1, 8000))
            for key in KEYS
        ],
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
        b"",
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
    result, peak = received_with_peak(reader)
    assert isinstance(result, ringcast.ProtocolError) and " share their bytes" in str(result)
    assert peak < 4 * len(frame) + MIB
    assert still_works(writer, reader)


OBJECT, VALUES = 12, 100000
# Containers within each other that all count the same values: the tag, and the bytes before the
# next one.
NESTED = {"tuples": (b"\xd0", b""), "lists": (b"\xcf", b""), "dicts": (b"\xd3", b"\0")}


def nested_frame(stream):
    frame = bytearray(frame_of(VALUE, [entry(OBJECT, size=len(stream))], stream))
    frame[4] = 2  # the version
    return bytes(frame)


@pytest.mark.parametrize("name", NESTED)
def test_values_that_are_counted_more_than_once_are_refused_before_they_take_memory(ring, name):
    tag, before = NESTED[name]
    writer, reader = ring
    each = len(tag) + 5 + len(before)
    counts = [
        (each * (1000 - level) + VALUES) // (2 if before else 1) - 8 for level in range(1, 1001)
    ]
    stream = (
        b"".join(tag + b"\xfd" + struct.pack("<I", count) + before for count in counts)
        + b"\xc0" * VALUES
    )
    send_frame(writer, nested_frame(stream))
    result, peak = received_with_peak(reader)
    assert isinstance(result, ringcast.ProtocolError) and "counts more than there is" in str(result)
    assert peak < 20 * len(stream) + MIB
    assert still_works(writer, reader)


def test_empty_sets_take_most_memory_for_their_bytes(ring):
    writer, reader = ring
    stream = b"\xcf\xfd" + struct.pack("<I", VALUES) + b"\xd1\0" * VALUES
    send_frame(writer, nested_frame(stream))
    result, peak = received_with_peak(reader)
    assert result == [set()] * VALUES and peak < 130 * len(stream) + MIB
    assert still_works(writer, reader)


MOST = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
SMALL = {
    "nothing": [entry(NONE, KEYED, key=key) for key in KEYS],
    "empty bytes": [entry(BYTES, KEYED, key=key) for key in KEYS],
    "empty arrays": [
        entry(TENSOR, KEYED | NUMPY, dtype=INT64, key=key, dims=(2, 8000)) for key in KEYS
    ],
    "empty arrays of as many dimensions as NumPy takes": [
        entry(TENSOR, KEYED | NUMPY, dtype=INT64, key=key, dims=(MOST, 8000)) for key in KEYS
    ],
}


@pytest.mark.parametrize("name", SMALL)
def test_many_small_entries_take_memory_in_proportion_to_the_frame(ring, name):
    writer, reader = ring
    frame = frame_of(DICT, SMALL[name], b"", NAMES + struct.pack("<128q", *[0] * 128))
    send_frame(writer, frame)
    result, peak = received_with_peak(reader)
    assert len(result) == 1000 and peak < 32 * len(frame) + MIB
    assert still_works(writer, reader)


@pytest.mark.parametrize("flags", [NUMPY, pytest.param(TORCH, marks=needs_torch)])
@pytest.mark.parametrize(
    "shape", [(0,), (0, 2**62), (2**62, 0), (2**40, 2**40, 0), (0, *[2**62] * 63), (1, 0) * 32]
)
def test_shapes_that_hold_nothing_do_no_harm(ring, flags, shape):
    writer, reader = ring
    dims = struct.pack(f"<{2 * len(shape)}q", *shape, *[0] * len(shape))
    send_frame(
        writer,
        frame_of(VALUE, [entry(TENSOR, flags, dtype=INT64, dims=(len(shape), 0))], b"", dims),
    )
    with contextlib.suppress(ringcast.ProtocolError):
        assert tuple(reader.recv(0).shape) == shape
    assert still_works(writer, reader)
