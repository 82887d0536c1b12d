# SPDX-License-Identifier: Apache-2.0
"""
Looking into a frame: its keys, and one item of it, with what belongs to that item and nothing else.
"""

import collections
import contextlib
import dataclasses
import pickle
import re
import signal
import struct
import time
import tracemalloc

import numpy as np
import pytest
import values
from hostile import DICT, KEYED, LEAF, NONE, NUMPY, OBJECT, PICKLE, TENSOR, WRONG, XXH3
from hostile import entry, frame_of
from hypothesis import given, settings
from needs import needs_torch, torch
from peers import WATCHDOG, Runs, send_frame, still_works
from receiving import Receiving
from test_hostile_memory import BOMBS

import ringcast

pytestmark = pytest.mark.alike


@dataclasses.dataclass
class Step:
    number: int
    array: np.ndarray


class Odd:
    """What only pickle can send."""

    def __init__(self, array):
        self.array = array


def trap():
    """A value, and how often it was loaded."""
    loaded = []
    return Runs(lambda: loaded.append(1) or "loaded"), loaded


VALUE_OF = {
    "ids": np.arange(8),
    "step": 7,
    "text": "x" * 3000,
    "none": None,
    "": b"empty key",
    "schlüssel": 1.5,
    "nested": [np.ones(3), {"deep": (np.zeros((2, 2)), "y" * 2000)}, bytearray(b"z" * 900)],
    "plain list": [1, 2, 3],
    "class": Step(3, np.arange(4)),
    "counter": collections.Counter("abca"),
    "with leaves": [1, Odd(np.arange(5)).__class__, collections.Counter("x")],
}


@contextlib.contextmanager
def lent(value, how, **options):
    """The frame that `value` makes: lent by a Reader, or packed."""
    if how == "packed":
        yield ringcast.pack(value)
        return
    with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle, **options) as reader:
        writer.send(value, 0)
        with reader.next(0) as frame:
            yield frame
        assert reader.lag == 0 and still_works(writer, reader)


either = pytest.mark.parametrize("how", ["lent", "packed"])


@either
def test_keys_and_items(how):
    with lent(VALUE_OF, how) as frame:
        assert frame.keys() == list(VALUE_OF)
        whole = ringcast.unpack(frame)
        for key in reversed(VALUE_OF):
            assert key in frame
            assert bytes(ringcast.pack(frame[key])) == bytes(ringcast.pack(whole[key]))
        assert type(frame["class"]) is Step and frame["counter"] == VALUE_OF["counter"]
        assert list(dict(frame)) == list(VALUE_OF)
        first, second = frame["ids"], frame["ids"]
        first[0] = 99
        assert second[0] == 0 == frame["ids"][0] and first.flags.owndata | (first.base is not None)
        for key in "nothing", "id", "idss", "\ud800":
            assert key not in frame
            with pytest.raises(KeyError) as raised:
                frame[key]
            assert raised.value.args == (key,)
        assert 7 not in frame and None not in frame and b"ids" not in frame
        with pytest.raises(TypeError, match="keys of a frame are str, not int"):
            frame[0]
        with pytest.raises(TypeError):
            iter(frame)
        assert len(frame) == len(bytes(frame))


@needs_torch
@either
def test_tensors(how):
    sent = {
        "t": torch.arange(6).reshape(2, 3).t(),
        "p": torch.nn.Parameter(torch.ones(2)),
        "l": [torch.zeros(2)],
    }
    with lent(sent, how) as frame:
        for key in sent:
            values.assert_same(frame[key], sent[key])
        frame["t"][0] = 9
        assert frame["t"][0, 0] == 0


@settings(max_examples=150, deadline=None)
@given(values.dicts)
def test_each_item_is_what_unpack_gives(recipe):
    packed = ringcast.pack(values.cook(recipe))
    whole = ringcast.unpack(packed)
    assert packed.keys() == list(whole)
    for key in whole:
        values.assert_same(packed[key], whole[key])


def test_a_dict_of_many_tensors_is_looked_into_by_entries():
    packed = ringcast.pack({f"layer{number}": np.full(1 << 15, number) for number in range(100)})
    tracemalloc.start()
    try:
        assert packed["layer42"][0] == 42 and len(packed.keys()) == 100
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()


@either
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_a_dict_that_travels_as_one_value_is_looked_into_too(how, kind):
    sent = kind((f"k{number}", [number, np.full(3, number)]) for number in range(100))
    with lent(sent, how) as frame:
        assert frame.keys() == list(sent) and "k99" in frame and "k100" not in frame
        assert frame["k42"][0] == 42 and frame["k42"][1].tolist() == [42] * 3
        with pytest.raises(KeyError):
            frame["k100"]
    with lent({"\ud800": 1, "a": 2}, how) as frame:
        assert frame.keys() == ["\ud800", "a"] and frame["\ud800"] == 1 and frame["a"] == 2
    with lent({1: "one", "a": 2}, how) as frame:
        with pytest.raises(TypeError, match="has a key that is no str but int"):
            frame.keys()
        assert frame["a"] == 2 and "a" in frame and 1 not in frame


NO_DICTS = {
    "list": [{"a": 1}],
    "int": 5,
    "array": np.arange(3),
    "text": "abc",
    "Counter's kin": Odd(1),
    "dataclass": Step(1, np.arange(2)),
}


@either
@pytest.mark.parametrize("name", NO_DICTS)
def test_what_is_no_dict_has_no_keys(how, name):
    with lent(NO_DICTS[name], how) as frame:
        for look in frame.keys, lambda: frame["a"], lambda: "a" in frame:
            with pytest.raises(TypeError, match="this frame holds .*, not a dict: it has no keys"):
                look()


def test_frames_of_other_kinds(ring):
    writer, reader = ring
    writer.send_bytes(b"abc", 0)
    with reader.next(0) as frame:
        with pytest.raises(TypeError, match="holds bytes, not a dict"):
            frame.keys()
        assert frame.hashes is None and ringcast.unpack(frame) == b"abc"
    writer.send_error("nothing today", 0)
    with reader.next(0) as frame, pytest.raises(ringcast.SendError, match="nothing today"):
        frame["a"]
    send_frame(writer, b"abc", 77)
    with reader.next(0) as frame:
        for look in (
            frame.keys,
            lambda: frame["a"],
            lambda: frame.hashes,
            lambda: ringcast.unpack(frame),
        ):
            with pytest.raises(ringcast.ProtocolError):
                look()
    for look in frame.keys, lambda: frame["a"], lambda: frame.hashes, lambda: "a" in frame:
        with pytest.raises(ValueError, match="released already"):
            look()
    assert reader.lag == 0


# ---- Only what is asked for ----------------------------------------------------------------------


@pytest.mark.parametrize("allow_pickle", [True, False])
def test_the_pickle_is_loaded_for_items_that_have_leaves_alone_and_if_it_may(allow_pickle):
    one, loaded = trap()
    other, _ = trap()
    sent = {"a": [np.arange(3)], "b": {"deep": other}, "c": one, "d": 5}
    with lent(sent, "lent", allow_pickle=allow_pickle) as frame:
        assert frame["a"][0].sum() == 3 and frame["d"] == 5
        assert frame.keys() == list("abcd") and "c" in frame and loaded == []
        if allow_pickle:
            assert frame["c"] == "loaded" and loaded == [1]
            assert frame["b"] == {"deep": "loaded"}
            return
        looks = [lambda: frame["b"], lambda: frame["c"]]
        for look in [*looks, lambda: ringcast.unpack(frame, allow_pickle=True)]:
            with pytest.raises(ringcast.PickleRefused):
                look()
        assert loaded == []


def test_a_packed_frame_goes_by_the_environment(monkeypatch):
    packed = ringcast.pack({"c": re.compile("a"), "n": 1})
    monkeypatch.setenv("RINGCAST_ALLOW_PICKLE", "0")
    assert packed["n"] == 1
    with pytest.raises(ringcast.PickleRefused):
        packed["c"]
    monkeypatch.setenv("RINGCAST_ALLOW_PICKLE", "1")
    assert packed["c"].pattern == "a"


def test_the_size_of_other_items_does_not_matter():
    sent = {f"big{number}": [np.zeros(1 << 18), "x" * (1 << 20)] for number in range(8)}
    sent["small"] = [np.arange(4), 1]
    packed = ringcast.pack(sent)
    tracemalloc.start()
    try:
        assert packed["small"][0].tolist() == [0, 1, 2, 3] and packed.keys() == list(sent)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_one_call_at_a_time(ring):
    writer, reader = ring
    outcome = []

    def look_at_it():
        for call in frame.keys, reader.close:
            try:
                call()
            except RuntimeError as error:
                outcome.append(error)
        return "done"

    runs = Runs(look_at_it)
    writer.send({"m": runs}, 0)
    with reader.next(0) as frame:
        assert frame["m"] == "done" and len(outcome) == 2
        Receiving(frame.keys).finish()
    assert reader.lag == 0


def test_a_pickle_that_drops_the_frame_does_no_harm(ring):
    writer, reader = ring
    held = []
    runs = Runs(held.clear)
    writer.send({"m": runs}, 0)
    held.append(reader.next(0))
    assert held[0]["m"] is None and held == []
    assert reader.lag == 0 and still_works(writer, reader)


# ---- Readers that were evicted, and frames that mean harm ----------------------------------------


def test_who_was_evicted_is_told_before_any_code_runs():
    one, loaded = trap()
    sent = {"a": np.arange(10), "t": one, "n": [1, one]}
    with ringcast.Writer(1 << 16, on_slow="evict", slow=0.01) as writer:
        with ringcast.Reader(writer.handle) as reader:
            writer.send(sent, 0)
            frame = reader.next(0)
            while writer.check() is None:
                with writer.reserve(1000, WATCHDOG) as span:  # overwrites nothing
                    if writer.peers()[0].state == "evicted":
                        span.abort()
            looks = [
                frame.keys,
                lambda: frame.hashes,
                lambda: ringcast.unpack(frame),
                lambda: "a" in frame,
                *(lambda key=key: frame[key] for key in (*sent, "nothing")),
                frame.release,
            ]
            for look in looks:
                with pytest.raises(ringcast.Evicted):
                    look()
            assert loaded == []


def each_look(frame):
    """What looking gave: nothing but values and errors that are ringcast's, or say that there is
    nothing."""
    answers = []
    keys = []
    for look in frame.keys, lambda: frame.hashes, lambda: "a" in frame:
        try:
            answers.append(look())
        except (ringcast.Error, TypeError) as error:
            answers.append(error)
    if isinstance(answers[0], list):
        keys = answers[0]
    for key in ["a", "", *keys[:20]]:
        try:
            values.scribble(frame[key])
        except (ringcast.Error, TypeError, KeyError) as error:
            answers.append(error)
    return answers


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_frame_does_no_harm(ring, name):
    writer, reader = ring
    send_frame(writer, WRONG[name])
    with reader.next(0) as frame:
        each_look(frame)
    assert still_works(writer, reader)


LIST = pickle.dumps(["x"])


def test_damage_that_belongs_to_an_item_is_found(ring):
    writer, reader = ring
    object_ = 12
    frames = {
        "parts beyond the end": [entry(object_, KEYED, 1 | 5 << 32, size=1)],
        "parts that it comes after": [entry(object_, KEYED, 0 | 1 << 32, size=1)],
        "more parts than can be": [entry(object_, KEYED, 0xFFFFFFFF | 0xFFFFFFFF << 32, size=1)],
        "no value": [entry(object_, KEYED, size=1)],
        "a leaf without a pickle": [entry(LEAF, KEYED)],
        "a leaf out of range": [entry(LEAF, KEYED, 3), entry(PICKLE, size=len(LIST))],
        "two of one key": [entry(NONE, KEYED), entry(NONE, KEYED)],
    }
    for name, entries in frames.items():
        data = LIST if len(entries) > 1 else b"\xff"
        send_frame(writer, frame_of(DICT, entries, data, version=2))
        with reader.next(0) as frame:
            look = frame.keys if name == "two of one key" else lambda: frame[""]  # noqa: B023
            with pytest.raises(ringcast.ProtocolError):
                look()
            each_look(frame)


def test_keys_that_share_their_bytes_take_no_memory(ring):
    writer, reader = ring
    send_frame(writer, frame_of(*BOMBS["keys"]))
    with reader.next(0) as frame:
        tracemalloc.start()
        try:
            with pytest.raises(ringcast.ProtocolError, match="share their bytes"):
                frame.keys()
            assert tracemalloc.get_traced_memory()[1] < 4 * len(frame) + (1 << 20)
        finally:
            tracemalloc.stop()


def hashed_frame(objects, values):
    """A dict of a tensor with a hash, and of nested values that share a stream: a list of None."""
    stream = b"\xcf\xfd" + struct.pack("<I", values) + b"\xc0" * values
    keys = [(8 * index, 8) for index in range(objects + 1)]
    names = b"".join(b"%08d" % index for index in range(objects + 1)) + struct.pack("<2q", 1, 1)
    entries = [
        entry(
            TENSOR,
            KEYED | NUMPY | XXH3,
            size=1,
            dtype=(1, 8, 1),
            key=keys[0],
            dims=(1, 8 * len(keys)),
        )
    ]
    entries += [entry(OBJECT, KEYED, size=len(stream), key=key) for key in keys[1:]]
    return frame_of(DICT, entries, stream, names, version=2)


def test_streams_that_share_their_bytes_are_refused_by_each_look(ring):
    writer, reader = ring
    send_frame(writer, hashed_frame(1, 1000))
    send_frame(writer, hashed_frame(2, 1000))
    with reader.next(0) as frame:
        assert frame.hashes == {"00000000": 0}
    with reader.next(0) as frame:
        for look in (lambda: frame.hashes), frame.view, lambda: ringcast.unpack(frame):
            with pytest.raises(ringcast.ProtocolError, match="share their bytes"):
                look()
        assert frame["00000001"] == [None] * 1000


def test_a_signal_ends_the_search_for_hashes(ring):
    data, found = hashed_frame(1, 8_000_000), []
    saved = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError))
    with ringcast.Writer(spill_bytes=1 << 30) as writer, ringcast.Reader(writer.handle) as reader:
        send_frame(writer, data)
        try:
            with reader.next(1) as frame, pytest.raises(InterruptedError):
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                found.append(frame.hashes)
                time.sleep(WATCHDOG)
        finally:
            signal.signal(signal.SIGALRM, saved)
    assert not found


def test_a_frame_has_its_senders_tag(ring):
    writer, reader = ring
    writer.send({"a": 1}, tag=2**32 - 1)
    writer.send_bytes(b"raw")
    with reader.next(0) as frame:
        assert frame.tag == 2**32 - 1
    with reader.next(0) as frame:
        assert frame.tag == 0


def test_a_frame_that_is_sent_is_refused_and_told_what_to_send(ring):
    writer, reader = ring
    writer.send([1])
    with reader.next(0) as frame:
        for value in (frame, [frame]):
            with pytest.raises(
                TypeError, match=r"a Frame can't be pickled, .* send\(unpack\(frame\)\)"
            ):
                writer.send(value, 0)
        writer.send(ringcast.unpack(frame), 0)
