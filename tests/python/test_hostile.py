# SPDX-License-Identifier: Apache-2.0
"""
Frames that no writer of ringcast's sends, of tests/vectors/hostile.py: each is refused by an error
of ringcast's, whatever is in it, and the ring goes on; nothing that a peer can do to a frame's bytes
does harm.
"""

import array
import collections
import contextlib
import datetime
import decimal
import pathlib
import re
import subprocess
import sys
import uuid

import hostile
import natives
import numpy as np
import pytest
import values
from hostile import DAY, STR, VALUE, entry, frame_of, nested
from hypothesis import given, settings
from hypothesis import strategies as st
from natives import Bare, Bits, Color, Plain, SlotsAlone
from needs import needs_torch, torch
from peers import send_frame, still_works

import ringcast

pytestmark = pytest.mark.alike
FUZZ = pathlib.Path(__file__).parents[1] / "fuzz"


def unpack(tokens, **more):
    return ringcast.unpack(nested(tokens, **more), classes=["natives"])


def attempt(data):
    """What it holds, or what it is refused by: nothing else may come of it."""
    try:
        return ringcast.unpack(data, allow_pickle=False)
    except (ringcast.Error, ImportError) as error:
        return error


def not_refused(receive, rows, errors=ringcast.ProtocolError):
    """The names of the rows of which something came, or another error."""
    found = []
    for name, row in rows.items():
        try:
            receive(row)
        except errors:
            continue
        except Exception as error:
            found.append((name, error))
        else:
            found.append((name, "was received"))
    return found


# ---- Frames --------------------------------------------------------------------------------------

LIES, GOOD, ELSEWHERE = {}, {}, {}
for _name, _raw, _expected in hostile.cases():
    if _name.startswith("host"):
        (GOOD if _expected == "good" else LIES)[_name] = _raw
    elif _expected != "good":
        ELSEWHERE[_name] = _raw
# How a frame is missed without torch.
OF_TORCH = ["gradient of integers", "a dtype of nobody", "int4 bit on bit"]
WRONG = {name: raw for name, raw in hostile.WRONG.items() if torch or name not in OF_TORCH}


@pytest.mark.parametrize("call", ["recv", "view"])
@pytest.mark.parametrize("table", [LIES, WRONG], ids=["lies", "wrong"])
def test_a_damaged_frame_is_refused_and_the_ring_goes_on(ring, table, call):
    writer, reader = ring

    def receive(raw):
        send_frame(writer, raw)
        getattr(reader, call)(0)

    assert not_refused(receive, table) == []
    assert reader.lag == 0 and still_works(writer, reader)


def test_a_damaged_frame_of_a_device_is_refused(ring):
    """Some of them for a tensor before the damage, whose memory is not here."""
    assert not_refused(ringcast.unpack, ELSEWHERE, (ringcast.Error, ImportError)) == []


def test_the_same_frames_are_otherwise_good(ring):
    writer, reader = ring
    for raw in GOOD.values():
        send_frame(writer, raw)
        reader.recv(0)
    got = ringcast.unpack(hostile.HONEST["host"])
    assert [got[key] for key in ("int", "str", "bool", "", "leaf", "object")] == [
        *(42, "hello", True, None, "x", ["a part", None])
    ]
    assert got["tensor"].shape == (2, 3) and got["array"] == array.array("q", [0])
    send_frame(writer, frame_of(VALUE, [entry(STR, size=2)], b"ab"))
    assert reader.recv(0) == "ab"
    assert ringcast.unpack(hostile.two_objects(2, 3)) == {"a": "a part", "b": "a part"}


@needs_torch
@pytest.mark.parametrize(
    "flags, dtype, told",
    [
        (hostile.TORCH, (1, 4, 1), "torch.uint4"),
        (0, (0, 1, 1), "torch.int1"),
        (hostile.NUMPY, (1, 4, 1), "NumPy"),
        (hostile.TORCH, (1, 8, 1), "share"),
        (hostile.TORCH, (1, 3, 2), "6 bits|dtype"),
        (None, (3, 2, 4), "torch.bits2x4"),
    ],
)
def test_elements_in_bytes_of_their_own(flags, dtype, told):
    if told.startswith("torch.") and not hasattr(torch, told[6:]):
        pytest.skip("this torch has no dtypes of bits")
    flags = 0 if flags is None else flags | hostile.PADDED
    frame = frame_of(VALUE, [entry(hostile.TENSOR, flags, size=1, dtype=dtype)], b"\3", version=2)
    if not told.startswith("torch."):
        with pytest.raises(ringcast.ProtocolError, match=told):
            ringcast.unpack(frame)
        return
    got = ringcast.unpack(frame)
    assert str(got.dtype) == told and got.shape == () and got.view(torch.uint8).tolist() == 3


def test_a_frame_of_an_unknown_kind_can_be_looked_at_but_not_received(ring):
    writer, reader = ring
    send_frame(writer, b"abc", 77)
    send_frame(writer, b"abc", 77)
    with pytest.raises(ringcast.ProtocolError, match="77"):
        reader.recv(0)
    with reader.next(0) as frame:
        assert (frame.kind, bytes(frame)) == (77, b"abc")


# ---- Nested values -------------------------------------------------------------------------------

REFUSED = {**hostile.REFUSED, **hostile.WRONG_STREAMS}
# One typecode came with Python 3.13, the other goes with 3.16.
for code in set("uw") - set(array.typecodes):
    REFUSED[f"a typecode of other Pythons, {code}"] = f"ARRAY ~{ord(code):x} 4 ~00000000"
with contextlib.suppress(ValueError):
    # Python 3.11.2 of Debian 12 takes it for no permission, as any bit above the flag's own.
    natives.Permission(1 << 24)
    REFUSED.pop("a member of a flag that is none")


def test_a_damaged_stream_is_refused():
    assert not_refused(unpack, REFUSED, (ringcast.ProtocolError, ImportError)) == []


def test_parts_that_do_not_fit_are_refused():
    frames = {name: nested(*row) for name, row in hostile.WRONG_PARTS.items()}
    for first in (0, 2, 2**32 - 1):
        frames[f"that begin at {first}"] = nested("PART", [STR], first=first)
    errors = ringcast.ProtocolError, ringcast.PickleRefused
    assert not_refused(lambda raw: ringcast.unpack(raw, allow_pickle=False), frames, errors) == []


SLOTS = "instance/natives/SlotsAlone/a/b/_SlotsAlone__private"
MANY = [f"n{n}" for n in range(200)]
SHARED = SlotsAlone.__new__(SlotsAlone)
SHARED.a, SHARED._SlotsAlone__private = 1, 3
STREAMS = [
    ("LIST 2 5 NONE", [5, None]),
    ("dataclass/natives/Plain/a/b INSTANCE 0 1 2", Plain(1, 2)),
    ("enum/natives/Color MEMBER 0 'RED'", Color.RED),
    ("enum/natives/Bits MEMBER 0 3", Bits.A | Bits.B),
    ("LIST 2 SHAPE 1 'a' RECORD 0 7 RECORD 0 8", [{"a": 7}, {"a": 8}]),
    (f"{SLOTS} INSTANCE 0 1 ABSENT 3 NONE", SHARED),
    ("instance/natives/Bare INSTANCE 0 NONE", Bare()),
    ("instance/natives/Bare INSTANCE 0 DICT 2 'a' 1 5 6", Bare(**{"a": 1})),
    ("/".join(["dataclass/natives/Bare", *MANY]) + " INSTANCE 0" + " 1" * 200, Bare()),
    ("ARRAY ~68 4 1 0 2 0", array.array("h", [1, 2])),
    (
        "KIND defaultdict TUPLE 2 'list' DICT 1 1 2",
        collections.defaultdict(list, {1: 2}),
    ),
    ("KIND ordered DICT 1 1 2", collections.OrderedDict({1: 2})),
    ("KIND deque TUPLE 2 2 LIST 2 1 2", collections.deque([1, 2], 2)),
    ("KIND counter DICT 1 1 2", collections.Counter({1: 2})),
    ("KIND uuid BYTES 16 ~" + "05" * 16, uuid.UUID(bytes=b"\5" * 16)),
    ("KIND posix 'a'", pathlib.PurePosixPath("a")),
    ("KIND path 'a'", pathlib.PosixPath("a")),
    ("KIND windows TUPLE 1 'a'", pathlib.PureWindowsPath("a")),
    (
        f"KIND datetime BYTES 10 {hostile.MOMENT}",
        datetime.datetime(2000, 1, 2, 3, 4, 5, 6),
    ),
    ("KIND date BYTES 4 ~07d00102", datetime.date(2000, 1, 2)),
    ("KIND time BYTES 6 ~030405000006", datetime.time(3, 4, 5, 6)),
    ("KIND timedelta BYTES 12 1 ~" + "00" * 11, datetime.timedelta(1)),
    (
        f"KIND timezone ={1 - DAY}",
        datetime.timezone(datetime.timedelta(microseconds=1 - DAY)),
    ),
    ("KIND decimal '1.5'", decimal.Decimal("1.5")),
    ("KIND npdtype '<i4'", np.dtype("i4")),
    ("KIND npdtype '<m8[999999999us]'", np.dtype("m8[999999999us]")),
]


@pytest.mark.parametrize("tokens, value", STREAMS, ids=lambda value: str(value)[:30])
def test_the_streams_by_hand_are_otherwise_good(tokens, value):
    got = unpack(tokens)
    assert type(got) is type(value)
    if type(value) is SlotsAlone:
        assert (got.a, got._SlotsAlone__private, hasattr(got, "b")) == (1, 3, False)
    elif type(value) is Bare:
        assert vars(got) in ({}, {"a": 1, 5: 6}, dict.fromkeys(MANY, 1))
    else:
        assert repr(got) == repr(value)


def test_what_stands_elsewhere_by_hand_is_otherwise_good():
    first, second = unpack("LIST 2 MARK LIST 0 BACK 0")
    assert first is second == []
    assert unpack("LIST 2 'a' PART_BYTEARRAY", parts=[hostile.BYTES]) == ["a", bytearray(b"abc")]
    part = [(hostile.BYTES, hostile.TYPECODE["b"], b"ab")]
    assert unpack("PART_ARRAY ~62", parts=part) == array.array("b", b"ab")
    assert unpack("LIST 1 " * 1022 + "KIND ordered DICT 0")


def test_a_frame_of_kinds_imports_no_numpy_but_for_a_dtype(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    for tokens, value in STREAMS:
        if "KIND" in tokens and "npdtype" not in tokens:
            assert unpack(tokens) == value


def test_a_time_zone_that_is_not_here_is_told():
    for key in ("Mars/Olympus", "Europe"):
        with pytest.raises(ringcast.ProtocolError, match=f"'{key}'"):
            unpack(f"KIND zoneinfo '{key}'")


# ---- Any bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest", [b"", b"\0", b"\1" * 40, b"\xff" * 40, b"\xfd" * 40, b"\xe1\0" * 40], ids=bytes.hex
)
def test_every_tag_before_anything_does_no_harm(rest):
    for tag in range(256):
        for before in ("", "LIST 3", "DICT 1"):
            attempt(nested(hostile.stream(before) + bytes([tag]) + rest))


def test_any_state_of_any_kind_does_no_harm():
    states = [tokens.split(" ", 2)[2] for tokens, _ in STREAMS if tokens.startswith("KIND")]
    states += [
        "NONE",
        "5",
        "LIST 0",
        "DICT 0",
        "SET 0",
        "=-1",
        "ARRAY ~62 1 1",
        "KIND timezone 0",
        "",
    ]
    states += ["PACKED_LIST 1 3 1 2 3", f"TUPLE 2 BYTES 10 {hostile.MOMENT} {hostile.UTC}"]
    made = 0
    for kind in range(256):
        for state in states:
            made += not isinstance(attempt(nested(f"KIND {kind} {state}")), Exception)
    assert made > 10


def edits(frame):
    """Places and what to put there: most in the header and the entries, where each byte means
    something."""
    end = st.integers(0, len(frame) - 1)
    start = st.integers(0, min(len(frame) - 1, 500))
    byte = st.integers(0, 255) | st.sampled_from((0, 1, 0x7F, 0x80, 0xFF))
    return st.lists(st.tuples(start | end, byte), max_size=6)


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


@pytest.mark.parametrize(
    "script, rounds, told",
    [
        ("mutate.py", 2000, r"mutated frames: 2000, of which [1-9]\d* were values"),
        ("dtypes.py", 3000, "hostile dtypes: 3000"),
    ],
)
def test_frames_at_random_are_values_or_refused(script, rounds, told):
    """Of mutate.py two blocks; of the second each round's memory is counted."""
    command = [sys.executable, "-B", str(FUZZ / script), "--jobs=1", f"--rounds={rounds}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and re.search(told, done.stdout), done.stdout + done.stderr
