# SPDX-License-Identifier: Apache-2.0
"""Bytes, spans, frames, waiting and signals: the ring as Python sees it."""

import asyncio
import errno
import os

import numpy as np
import pytest

import ringcast

# ---- Bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 100_000,
        bytearray(b"abc"),
        memoryview(b"abcdef")[::2],
        np.arange(6).reshape(2, 3).T,
        np.array(1.5),
    ],
    ids=["empty", "large", "bytearray", "strided", "transposed", "0-d"],
)
def test_bytes_of_any_buffer_arrive(ring, data):
    writer, reader = ring
    writer.send_bytes(data, 0)
    assert reader.recv(0) == memoryview(data).tobytes()


def test_iterating_ends_with_the_writer(ring):
    writer, reader = ring
    for i in range(3):
        writer.send(i, 0)
    writer.close()
    assert list(reader) == [0, 1, 2]
    with pytest.raises(ringcast.WriterGone) as raised:
        reader.recv()
    assert raised.value.errno == errno.EPIPE and str(os.getpid()) in str(raised.value)


class OfAnother:
    """Its unpickling uses another ring, whose writer is gone."""

    def __reduce__(self):
        return of_another, ()


def of_another():
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
        writer.close()
        return reader.recv()


@pytest.mark.parametrize("way", ["reader", "tap", "async"])
def test_iterating_does_not_end_with_the_writer_of_another_ring(ring, way):
    writer, reader = ring
    with ringcast.Tap(writer.handle) as tap:
        writer.send(OfAnother(), 0)
        writer.send("last", 0)
        writer.close()
        if way == "async":
            steps = iter(lambda: asyncio.run(anext_of(reader)), "none")
        else:
            steps = iter(reader if way == "reader" else tap)
        with pytest.raises(ringcast.WriterGone):
            next(steps)
        assert next(steps) == "last"
        with pytest.raises(StopAsyncIteration if way == "async" else StopIteration):
            next(steps)


async def anext_of(reader):
    return await reader.__anext__()


# ---- In place ------------------------------------------------------------------------------------


def test_a_span_is_written_in_place_and_a_frame_read_in_place(ring):
    writer, reader = ring
    span = writer.reserve(1000)
    array = np.asarray(span)
    array[:] = 7
    assert len(span) == 1000 and array.ctypes.data % 64 == 16
    with pytest.raises(ringcast.Error) as raised:
        writer.reserve(1)
    assert raised.value.errno == errno.EBUSY
    del array
    with pytest.raises(ValueError, match="more than was reserved"):
        span.commit(1001)
    span.commit(10)
    with reader.next(0) as frame:
        assert (len(frame), frame.kind, frame.position) == (10, ringcast.KIND_BYTES, 0)
        assert bytes(frame) == b"\7" * 10
        with memoryview(frame) as view:
            assert view.readonly
        with pytest.raises(ringcast.Error) as raised:
            reader.recv(0)
        assert raised.value.errno == errno.EBUSY
    for use in (len, memoryview):
        with pytest.raises(ValueError, match="released"):
            use(frame)
        with pytest.raises(ValueError, match="committed or aborted"):
            use(span)
    frame.release()
    with pytest.raises(ValueError, match="committed or aborted"):
        span.commit()


def test_the_writer_commits_a_span_that_was_dropped(ring):
    writer, reader = ring
    memoryview(writer.reserve(3))[:] = b"abc"
    writer.commit()
    assert reader.recv(0) == b"abc"
    writer.reserve(3)
    writer.abort()
    for end in (writer.commit, writer.abort, lambda: writer.commit(5)):
        with pytest.raises(ValueError, match="^no reservation is open$"):
            end()


def test_the_forms_that_the_docstrings_show_work(ring):
    writer, reader = ring
    with writer.reserve(16) as span, memoryview(span) as view:
        view[:] = b"x" * 16
    with reader.next(0) as frame, memoryview(frame) as view:
        assert view == b"x" * 16
    assert reader.lag == 0
    for kind in (ringcast.Span, ringcast.Frame):
        assert ", memoryview(" in kind.__doc__ and "BufferError" in kind.__doc__


def test_after_a_buffererror_the_span_and_the_frame_are_still_open(ring):
    writer, reader = ring
    with pytest.raises(BufferError), writer.reserve(4) as span:
        view = memoryview(span)
        view[:] = b"abcd"
    view[:2] = b"AB"
    with pytest.raises(TimeoutError):
        reader.recv(0)
    view.release()
    span.commit()
    with pytest.raises(BufferError), reader.next(0) as frame:
        array = np.asarray(frame)
    assert bytes(array) == b"ABcd"
    del array
    frame.release()
    assert reader.lag == 0


def test_a_span_or_a_frame_of_what_was_closed_says_so(ring):
    writer, reader = ring
    writer.send_bytes(b"x", 0)
    span, frame = writer.reserve(4), reader.next(0)
    writer.close()
    reader.close()
    for use in (span.commit, span.abort, lambda: len(span), lambda: memoryview(span)):
        with pytest.raises(ValueError, match="the Writer was closed"):
            use()
    for use in (lambda: len(frame), lambda: memoryview(frame)):
        with pytest.raises(ValueError, match="the Reader was closed"):
            use()


def test_a_span_commits_at_the_end_of_its_block_and_aborts_after_an_exception(ring):
    writer, reader = ring
    with writer.reserve(3) as span:
        memoryview(span)[:] = b"abc"
    assert reader.recv(0) == b"abc"
    with pytest.raises(KeyError), writer.reserve(3):
        raise KeyError
    with pytest.raises(KeyError), writer.reserve(3) as span:
        view = memoryview(span)
        raise KeyError
    with pytest.raises(ringcast.Error):  # the view still sees the ring
        writer.reserve(3)
    view.release()
    writer.send_bytes(b"next", 0)
    assert reader.recv(0) == b"next"


def test_views_in_use_hold_up_their_end_and_say_so(ring):
    writer, reader = ring
    span = writer.reserve(8)
    views = [memoryview(span), np.asarray(span)]
    for end in (span.commit, span.abort, writer.commit, writer.abort, writer.close):
        with pytest.raises(BufferError, match="2 memoryviews of the Span are in use"):
            end()
    views.clear()
    span.commit()
    frame = reader.next(0)
    view = memoryview(frame)
    for end in (frame.release, reader.close):
        with pytest.raises(BufferError, match="1 memoryview of the Frame is in use"):
            end()
    view.release()
    frame.release()


def test_a_frame_can_be_passed_on_to_another_ring(ring):
    writer, reader = ring
    value = {"a": np.arange(5), "b": [1, 2]}
    with ringcast.Writer(1 << 16) as second, ringcast.Reader(second.handle) as end:
        writer.send(value, 0, tag=9)
        with reader.next(0) as frame, second.reserve(len(frame)) as span:
            memoryview(span)[:] = frame
            span.commit(kind=frame.kind)
        got, tag = end.recv_tagged(0)
    assert tag == 9 and got["b"] == [1, 2] and got["a"].tolist() == [0, 1, 2, 3, 4]
