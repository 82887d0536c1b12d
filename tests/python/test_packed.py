# SPDX-License-Identifier: Apache-2.0
"""Frames that are packed once, and sizes that are learned."""

import copy
import pickle
import threading

import numpy as np
import pytest
import values
from hypothesis import given, settings
from needs import needs_torch, torch

import ringcast


@pytest.fixture(scope="module")
def two():
    """Two rings, each with a reader."""
    with ringcast.Writer(1 << 24) as one, ringcast.Writer(1 << 24) as other:
        with ringcast.Reader(one.handle) as first, ringcast.Reader(other.handle) as second:
            yield (one, first), (other, second)


@settings(max_examples=150, deadline=None)
@given(values.dicts | values.nested)
def test_every_ring_gets_what_send_would_have_given(two, recipe):
    packed = ringcast.pack(values.cook(recipe))
    for tag, (writer, reader) in enumerate(two):
        writer.send(packed, 0, tag=tag)
        got, arrived_tag = reader.recv_tagged(0)
        values.assert_same(got, values.cook(recipe))
        assert arrived_tag == tag
        writer.send(values.cook(recipe), 0, tag=tag)
        with reader.next(0) as frame:
            assert len(frame) == packed.nbytes


def test_a_packed_frame_is_what_send_writes(two):
    (writer, reader), _ = two
    value = {"a": np.arange(1000), "b": [1, {"x"}], "c": "text"}
    packed = ringcast.pack(value)
    writer.send(value, 0)
    with reader.next(0) as frame:
        assert bytes(frame) == bytes(packed)


def test_a_packed_frame_does_not_follow_its_source():
    array = np.arange(100_000)
    packed = ringcast.pack({"a": array, "in": [array]})
    before = bytes(packed)
    array[:] = 7
    assert bytes(packed) == before


def test_the_bytes_of_a_packed_frame_can_be_looked_at():
    packed = ringcast.pack({"a": 1})
    view = memoryview(packed)
    assert view.readonly and view.nbytes == packed.nbytes == len(packed) == len(bytes(packed)) > 0
    assert repr(packed) == f"<ringcast.PackedFrame of {packed.nbytes} bytes>"
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(AttributeError):
        packed.nbytes = 5
    del packed
    assert view[0] == ord("R")  # a view keeps it
    assert np.asarray(ringcast.pack(np.arange(9.0))).ctypes.data % 64 == 16
    assert np.asarray(ringcast.pack(np.arange(90_000.0))).ctypes.data % 64 == 16


def test_packing_twice_is_packing_once():
    packed = ringcast.pack(5)
    assert ringcast.pack(packed) is packed


def test_what_cannot_be_packed_is_told_as_by_send():
    with pytest.raises(TypeError, match=r"value\['a'\]\[1\]: cannot pickle"):
        ringcast.pack({"a": [1, threading.Lock()]})
    for wrong in ((), (1, 2)):
        with pytest.raises(TypeError):
            ringcast.pack(*wrong)
    with pytest.raises(TypeError):
        ringcast.PackedFrame()
    if torch:
        with pytest.raises(TypeError, match="meta"):
            ringcast.pack(torch.empty(1, device="meta"))


def test_a_packed_frame_goes_by_itself_only(ring):
    writer, reader = ring
    packed = ringcast.pack(1)
    for use in (pickle.dumps, copy.copy, lambda packed: writer.send([packed], 0)):
        with pytest.raises(TypeError, match="can't be pickled"):
            use(packed)
    with pytest.raises(TimeoutError):
        reader.recv(0)


@needs_torch
def test_tensors_are_packed(two):
    tensor = torch.nn.Parameter(torch.arange(100_000.0).reshape(10, -1).T)
    packed = ringcast.pack({"t": tensor})
    for writer, reader in two:
        writer.send(packed, 0)
        values.assert_same(reader.recv(0)["t"], tensor)


# ---- Estimates and growing -----------------------------------------------------------------------------------------


def test_a_span_grows_and_keeps_what_was_written(ring):
    writer, reader = ring
    span = writer.reserve(4)
    view = memoryview(span)
    view[:] = b"abcd"
    with pytest.raises(BufferError, match="can't grow"):
        span.grow(8)
    view.release()
    span.grow(8, timeout=0)
    assert len(span) == 8
    with memoryview(span) as view:
        assert view[:4] == b"abcd"
        view[4:] = b"efgh"
    with pytest.raises(ringcast.FrameTooLarge) as raised:
        span.grow(1 << 50)
    assert raised.value.spill_bytes is None and len(span) == 8
    for wrong, error in ((-1, ValueError), ("8", TypeError), (None, TypeError)):
        with pytest.raises(error):
            span.grow(wrong)
    span.commit()
    with pytest.raises(ValueError, match="committed or aborted"):
        span.grow(9)
    assert reader.recv(0) == b"abcdefgh"


@pytest.fixture
def bounded():
    """A ring of 1 MiB that has spill memory of 8."""
    with ringcast.Writer(1 << 20, spill_bytes=8 << 20) as writer, ringcast.Reader(writer.handle) as reader:
        yield writer, reader


def test_a_writer_learns_how_much_to_reserve(bounded):
    writer, reader = bounded
    assert writer.estimate(3) == 4096
    for size in (20_000, 21_000, 20_500) * 20:
        writer.learn(3, size)
    writer.learn(3, 400_000)
    assert 21_000 <= writer.estimate(3) < 23_000
    assert writer.estimate(tag=4) == 4096
    for _ in range(3):
        writer.learn(tag=3, n=1 << 40)
    assert writer.estimate(3) == writer.max_frame
    with writer.reserve(writer.estimate(3), 0) as span:
        span.commit(0)
    for tag, error in ((-1, ValueError), (1 << 32, ValueError), (1.0, TypeError), (None, TypeError)):
        with pytest.raises(error):
            writer.estimate(tag)
        with pytest.raises(error):
            writer.learn(tag, 1)
    for size, error in ((-1, ValueError), (1 << 64, ValueError), ("1", TypeError)):
        with pytest.raises(error):
            writer.learn(1, size)
