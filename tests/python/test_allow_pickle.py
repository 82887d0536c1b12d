# SPDX-License-Identifier: Apache-2.0
"""
Where pickles are turned off nothing is sent or loaded that needs one: the error names it, and the
ring goes on.
"""

import collections
import dataclasses
import errno
import functools
import ipaddress
import os
import pickle
import random
import re
import struct
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hostile import PICKLE, VALUE, entry, frame_of
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import torch
from peers import send_frame, still_works

import ringcast

pytestmark = pytest.mark.alike


@pytest.fixture
def ends():
    """A ring whose writer sends pickles and whose reader loads none."""
    with (
        ringcast.Writer(1 << 20) as writer,
        ringcast.Reader(writer.handle, allow_pickle=False) as reader,
    ):
        yield writer, reader


class Trap:
    """A pickle of it leaves a mark where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@dataclasses.dataclass
class Counted:
    by: object


class Unspeakable:
    def __repr__(self):
        raise LookupError("no words")

    def __getstate__(self):
        return None


PLAIN = {"n": None, "b": True, "i": 7, "f": 0.5, "s": "text", "y": b"bytes", "a": np.arange(3)}
NESTED = [{1: (2, {3}), "i": 2**63, "s": "\ud800"}, [Counted([1, 2]), range(3)], bytearray(b"x")]
LEAF, OF_CLASS, OWN = struct.Struct("<i"), Counted(Fraction(1)), []
OWN.append(OWN)
NEEDY = [
    (
        {"cfg": Fraction(1)},
        "value['cfg'] is of type fractions.Fraction (an instance of a class that says",
    ),
    (
        {**PLAIN, "ids": [1, Fraction(1)]},
        "value['ids'][1] is of type fractions.Fraction (an instance of ",
    ),
    (
        {"d": {"x": ({1: OF_CLASS},)}},
        "value['d']['x'][0][1].by is of type fractions.Fraction (an instance of ",
    ),
    ({"s": {1, (2, LEAF)}}, "value['s']{...}[1] is of type _struct.Struct, "),
    ({"a": np.array([1], object)}, "value['a'] is a numpy.ndarray of dtype object, "),
    ({"a": [np.array([1], object)]}, "value['a'][0] is a numpy.ndarray of dtype object, "),
    ({1: {LEAF: 2}}, "a key of value[1] is of type _struct.Struct, "),
    ({"k" * 100: LEAF}, "value['" + "k" * 59 + "...] is of type _struct.Struct, "),
    (
        [{Unspeakable(): LEAF}],
        "a key of value[0] is of type test_allow_pickle.Unspeakable (an instance of a class that ",
    ),
    (
        {"l": OWN},
        "value is a dict that holds itself, is nested too deep or stands in the value too often, ",
    ),
    (slice(0, LEAF), "value.stop is of type _struct.Struct, "),
    (LEAF, "value is of type _struct.Struct, "),
]
if torch:
    NEEDY += [({"t": torch.eye(2).to_sparse()}, "value['t'] is a torch.Tensor of torch.float32, ")]


class Text(str):
    pass


# As docs/codec.md lists them.
BY_PICKLE = [
    *(
        re.compile("a"),
        Fraction(1, 3),
        ipaddress.ip_address("::1"),
        random.Random(1),
        ValueError("x"),
    ),
    *(int, dataclasses.dataclass, len, functools.partial(len), collections.defaultdict(lambda: 0)),
    *(
        Text("a"),
        type("Dict", (dict,), {})(),
        type("List", (list,), {})(),
        ...,
        np.ma.array([1]),
        np.array([{}]),
    ),
]


@pytest.mark.parametrize("value", BY_PICKLE, ids=lambda value: type(value).__name__)
def test_what_the_page_of_the_codec_says_needs_a_pickle(value):
    with pytest.raises(
        ringcast.PickleRefused, match=r"no __reduce__, __getstate__ or the like \(docs/codec.md\)$"
    ):
        ringcast.pack([value], allow_pickle=False)


@pytest.mark.parametrize("value, text", NEEDY, ids=[text for _, text in NEEDY])
def test_a_writer_names_what_it_would_have_to_pickle(value, text):
    with (
        ringcast.Writer(1 << 20, allow_pickle=False) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        for send in (writer.send, lambda value: ringcast.pack(value, allow_pickle=False)):
            with pytest.raises(ringcast.PickleRefused) as raised:
                send(value)
            assert str(raised.value).startswith(text) and raised.value.errno == errno.EOPNOTSUPP
        assert reader.lag == 0
        for plain in (PLAIN, {}, NESTED, {"x": NESTED}, *NESTED, *PLAIN.values()):
            writer.send(plain, 0)
            writer.send(ringcast.pack(plain, allow_pickle=False), 0)
            assert repr(reader.recv(0)) == repr(reader.recv(0)) == repr(plain)
        writer.send_bytes(b"any", 0)
        assert reader.recv(0) == b"any" and still_works(writer, reader)


def test_a_reader_refuses_a_pickle_unseen_and_goes_on(ends, tmp_path):
    writer, reader = ends
    for index, value in enumerate(
        (Trap(str(tmp_path / "value")), {"n": 1, "trap": Trap(str(tmp_path / "item"))})
    ):
        writer.send(value, 0, tag=7)
        with pytest.raises(ringcast.PickleRefused) as raised:
            reader.recv_tagged(0)
        text = str(raised.value)
        assert (
            "the frame holds a pickle, for 'trap', " if index else "the frame holds a pickle, "
        ) in text
        assert "which asks for posix.mkdir; " in text and "allow_pickle=False" in text
        assert raised.value.errno == errno.EOPNOTSUPP and reader.lag == 0
    assert list(tmp_path.iterdir()) == [] and still_works(writer, reader)


def test_a_tap_refuses_it_too(ends, tmp_path):
    writer, _ = ends
    with ringcast.Tap(writer.handle, allow_pickle=False) as tap:
        writer.send(Trap(str(tmp_path / "x")), 0)
        writer.send(7, 0)
        with pytest.raises(ringcast.PickleRefused, match="posix.mkdir"):
            tap.recv(0)
        assert tap.recv(0) == 7 and list(tmp_path.iterdir()) == []


def test_what_was_packed_with_a_pickle_is_refused():
    packed = ringcast.pack({"n": 1, "c": Fraction(1)})
    with (
        ringcast.Writer(1 << 20, allow_pickle=False) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        for send in (writer.send, lambda value: ringcast.pack(value, allow_pickle=False)):
            with pytest.raises(
                ringcast.PickleRefused, match="for 'c', which asks for fractions.Fraction"
            ):
                send(packed)
        writer.send(ringcast.pack(PLAIN), 0)
        assert list(reader.recv(0)) == list(PLAIN) and still_works(writer, reader)
        deep = ringcast.pack({"n": 1, "c": [{"x": Fraction(1)}]})
        for send in (writer.send, lambda value: ringcast.pack(value, allow_pickle=False)):
            with pytest.raises(ringcast.PickleRefused, match="which asks for fractions.Fraction"):
                send(deep)
    assert ringcast.pack(packed) is packed


# ---- What is told of a pickle --------------------------------------------------------------------


def refusal_of(ends, data):
    writer, reader = ends
    send_frame(writer, frame_of(VALUE, [entry(PICKLE, size=len(data))], data))
    with pytest.raises(ringcast.PickleRefused) as raised:
        reader.recv(0)
    return str(raised.value).partition("; ")[0]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_names_that_a_pickle_asks_for_are_told(ends, protocol):
    twice = [collections.OrderedDict(), collections.OrderedDict(), np.dtype("int8")]
    assert refusal_of(ends, pickle.dumps(twice, protocol)) == (
        "the frame holds a pickle, which asks for collections.OrderedDict and numpy.dtype"
    )
    assert refusal_of(ends, pickle.dumps([1, "a.b", {2: None}], protocol)).endswith(
        "which is of built-in types alone"
    )


def test_names_are_found_in_the_memo_and_beside_others(ends):
    assert "asks for os.system" in refusal_of(
        ends, b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93."
    )
    assert "asks for os.system" in refusal_of(
        ends, b"\x80\x04\x8c\x02os\x940\x8c\x06system\x940h\x00h\x01\x93."
    )
    assert "asks for os.system" in refusal_of(ends, b"(S'id'\nios\nsystem\n.")
    assert "asks for extension 7 of copyreg" in refusal_of(ends, b"\x80\x02\x82\x07.")
    assert "asks for a persistent object" in refusal_of(ends, b"Pid\n.")


def test_a_pickle_of_many_or_long_names_makes_no_long_message(ends):
    many = b"\x80\x02" + b"".join(b"cm%d\nn\n0" % index for index in range(5000)) + b"N."
    assert " and 4992 more" in refusal_of(ends, many)
    assert len(refusal_of(ends, b"\x80\x02c" + b"m" * 50_000 + b"\nn\n.")) < 300
    assert "a\\x0ab.é" in refusal_of(ends, b"\x80\x04\x8c\x03a\nb\x8c\x02\xc3\xa9\x93.")
    beyond = b"\x80\x02cos\nsystem\n0" + b"N0" * 100_000 + b"."
    assert refusal_of(ends, beyond).endswith("asks for os.system, as far as it was looked at")


@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=200)
    | st.text("(}]acdehijlopqrstuN0123456789\n'ISUVXZ.").map(str.encode)
)
def test_whatever_stands_for_a_pickle_is_refused(distrustful, data):
    refusal_of(distrustful, data)


# ---- For the whole process -----------------------------------------------------------------------

ONE, TWO = [Fraction(1)], {"x": Fraction(2)}


def test_the_environment_turns_pickles_off(monkeypatch):
    monkeypatch.setenv("RINGCAST_ALLOW_PICKLE", "0")
    with ringcast.Writer(1 << 16) as writer, ringcast.Writer(1 << 16, allow_pickle=True) as free:
        with pytest.raises(ringcast.PickleRefused):
            writer.send(ONE)
        with pytest.raises(ringcast.PickleRefused):
            ringcast.pack(ONE)
        with pytest.raises(ringcast.PickleRefused):
            ringcast.unpack(ringcast.pack(ONE, allow_pickle=True))
        with (
            ringcast.Reader(free.handle) as reader,
            ringcast.Reader(free.handle, allow_pickle=True) as other,
        ):
            with ringcast.Tap(free.handle) as tap:
                free.send(ONE, 0)
                free.send(ringcast.pack(TWO, allow_pickle=True), 0)
                for end in (reader, tap):
                    with pytest.raises(ringcast.PickleRefused):
                        end.recv(0)
                assert other.recv(0) == ONE and other.recv(0) == TWO


@pytest.mark.parametrize("text", ["", "1", None])
def test_the_environment_allows_pickles(monkeypatch, text):
    monkeypatch.delenv("RINGCAST_ALLOW_PICKLE", raising=False)
    if text is not None:
        monkeypatch.setenv("RINGCAST_ALLOW_PICKLE", text)
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
        writer.send(ONE, 0)
        assert reader.recv(0) == ONE
        with ringcast.Reader(writer.handle, allow_pickle=False) as strict:
            writer.send(ONE, 0)
            with pytest.raises(ringcast.PickleRefused):
                strict.recv(0)


def test_the_environment_is_heeded_as_it_is_at_each_call(monkeypatch):
    """Also where other variables come and go."""
    names = ["RINGCAST_ALLOW_PICKLE", "RINGCAST_TEST_A", "RINGCAST_TEST_B"]
    for name in names:
        monkeypatch.setenv(name, "")  # as it was, afterwards
    order = random.Random(1)
    for _ in range(300):
        name, text = order.choice(names), order.choice(["0", "1", "", None])
        os.environ.pop(name, None)
        if text is not None:
            os.environ[name] = text
        for _ in range(2):
            if os.environ.get(names[0]) == "0":
                with pytest.raises(ringcast.PickleRefused):
                    ringcast.pack(ONE)
            else:
                ringcast.pack(ONE)


def test_without_pythons_own_environ_the_process_environment_counts():
    code = "import fractions, os, ringcast; os.environ = dict(os.environ); ringcast.pack(fractions.Fraction(1))"
    environment = {
        **os.environ,
        "RINGCAST_ALLOW_PICKLE": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "PickleRefused" in done.stderr


@pytest.mark.parametrize("text", ["no", "2", " 0", "true"])
def test_a_word_that_is_neither_0_nor_1_is_refused(monkeypatch, text):
    with ringcast.Writer(1 << 16) as writer:
        monkeypatch.setenv("RINGCAST_ALLOW_PICKLE", text)
        makers = (
            lambda: ringcast.Writer(1 << 16),
            lambda: ringcast.Reader(writer.handle),
            lambda: ringcast.pack(1),
        )
        for make in makers:
            with pytest.raises(
                ValueError, match=f"RINGCAST_ALLOW_PICKLE is '{text}': it must be 0"
            ):
                make()


@pytest.mark.parametrize("wrong", [0, 1, "no", []])
def test_allow_pickle_is_a_bool(ring, wrong):
    handle = ring[0].handle
    for make in (
        lambda: ringcast.Writer(1 << 16, allow_pickle=wrong),
        lambda: ringcast.Reader(handle, allow_pickle=wrong),
        lambda: ringcast.Tap(handle, allow_pickle=wrong),
        lambda: ringcast.pack(1, allow_pickle=wrong),
    ):
        with pytest.raises(TypeError, match="allow_pickle must be True, False or None"):
            make()
