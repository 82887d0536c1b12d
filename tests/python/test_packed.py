# SPDX-License-Identifier: Apache-2.0
"""Frames that are packed once, and sizes that are learned."""

import copy
import pickle
import threading

import numpy as np
import pytest
from needs import torch

import ringcast


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


def test_a_packed_frame_is_what_send_writes(ring):
    writer, reader = ring
    value = {"a": np.arange(1000), "b": [1, {"x"}], "c": "text"}
    packed = ringcast.pack(value)
    assert ringcast.pack(packed) is packed
    writer.send(value, 0)
    with reader.next(0) as frame:
        assert bytes(frame) == bytes(packed)


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


# ---- Estimates and growing -----------------------------------------------------------------------


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
    with (
        ringcast.Writer(1 << 20, spill_bytes=8 << 20) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        yield writer, reader


def write(writer, n, tag=0):
    """A frame of `n` bytes, whose size is known only when it is written."""
    span = writer.reserve(timeout=0, tag=tag)
    if n > len(span):
        span.grow(n, 0)
    with memoryview(span) as view:
        view[:n] = bytes(n)
    span.commit(n)


def estimate(writer, tag=0):
    span = writer.reserve(timeout=0, tag=tag)
    size = len(span)
    span.abort()
    return size


def test_a_writer_learns_how_much_to_reserve(bounded):
    writer, reader = bounded
    assert estimate(writer, 3) == estimate(writer) == 4096
    for size in (20_000, 21_000, 20_500) * 20 + (400_000,):
        write(writer, size, 3)
        assert len(reader.recv(0)) == size
    assert 21_000 <= estimate(writer, 3) < 23_000
    assert estimate(writer) == estimate(writer, 4) == 4096
    stats = writer.stats()
    assert (stats.estimate_hits, stats.grown) == (59, 2)  # the first, and the last
    assert stats.wasted_bytes < 62 * (21_000 / 16 + 64 + 1000)
    writer.send_bytes(b"abc")  # a known size teaches nothing
    with writer.reserve(10):
        pass
    assert estimate(writer) == 4096 and writer.stats()[:2] != stats[:2]
    assert writer.stats()[-3:] == stats[-3:] == (*stats[-3:-1], stats.wasted_bytes)
    for reader_stats in (peer.stats for peer in writer.peers()):
        assert reader_stats[-3:] == (0, 0, 0)


def test_the_end_of_an_estimated_reservation_tells_its_size(bounded):
    writer, reader = bounded
    span = writer.reserve()
    for commit in (span.commit, writer.commit, lambda: span.commit(None)):
        with pytest.raises(
            ValueError, match=r"is an estimate: tell how many bytes are the frame's, by commit\(n\)"
        ):
            commit()
    span.commit(5)
    with pytest.raises(ValueError, match="is an estimate"), writer.reserve() as span:
        pass
    writer.commit(6)
    with writer.reserve() as span:
        span.commit(7)
    with pytest.raises(ZeroDivisionError), writer.reserve():
        raise ZeroDivisionError
    with writer.reserve(8):
        pass
    assert [len(reader.recv(0)) for _ in range(4)] == [5, 6, 7, 8]


def test_what_reserve_refuses(bounded):
    writer, reader = bounded
    for tag, error in (
        (-1, ValueError),
        (1 << 32, ValueError),
        (1.0, TypeError),
        (None, TypeError),
    ):
        with pytest.raises(error):
            writer.reserve(tag=tag)
    with pytest.raises(ValueError, match="takes n or tag, not both"):
        writer.reserve(5, tag=1)
    with pytest.raises(TypeError):
        writer.reserve(None, 0, 1)
    for size in (2**63, 2**64 - 1, 2**64 - 2**32, 2**64):  # no number is an estimate
        with pytest.raises((ValueError, ringcast.FrameTooLarge)):
            writer.reserve(size)
    writer.reserve().abort()
