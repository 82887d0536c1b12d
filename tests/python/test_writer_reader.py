# SPDX-License-Identifier: Apache-2.0
"""Bytes, spans, frames that are held, and where a Reader starts: the ring as Python sees it."""

import asyncio
import errno
import fractions
import gc

import numpy as np
import pytest
from needs import needs_torch
from peers import WATCHDOG, Peer, Runs, is_in_use, until
from receiving import Receiving

import ringcast

# ---- Bytes ---------------------------------------------------------------------------------------

BUFFERS = {
    "empty": b"",
    "large": b"x" * 100_000,
    "bytearray": bytearray(b"abc"),
    "strided": memoryview(b"abcdef")[::2],
    "transposed": np.arange(6).reshape(2, 3).T,
    "0-d": np.array(1.5),
}


@pytest.mark.parametrize("data", BUFFERS.values(), ids=BUFFERS)
def test_bytes_of_any_buffer_arrive(ring, data):
    writer, reader = ring
    writer.send_bytes(data, 0)
    assert reader.recv(0) == memoryview(data).tobytes()


def of_another():
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
        writer.close()
        return reader.recv()


@pytest.mark.parametrize("way", ["reader", "tap", "async"])
def test_iterating_ends_with_the_writer_and_not_with_that_of_another_ring(ring, way):
    async def anext_of(reader):
        return await reader.__anext__()

    writer, reader = ring
    runs = Runs(of_another)
    with ringcast.Tap(writer.handle) as tap:
        for value in ("first", runs, "last"):
            writer.send(value, 0)
        writer.close()
        steps = iter(tap if way == "tap" else reader)
        if way == "async":
            steps = iter(lambda: asyncio.run(anext_of(reader)), "none")
        assert next(steps) == "first"
        with pytest.raises(ringcast.WriterGone):
            next(steps)
        assert next(steps) == "last"
        with pytest.raises(StopAsyncIteration if way == "async" else StopIteration):
            next(steps)


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
    with pytest.raises(ValueError, match="more than"):
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
    frame.release()
    for use in (len, memoryview):
        with pytest.raises(ValueError, match="released"):
            use(frame)
        with pytest.raises(ValueError, match="committed"):
            use(span)
    with pytest.raises(ValueError, match="committed"):
        span.commit()


def test_the_writer_commits_a_span_that_was_dropped(ring):
    writer, reader = ring
    memoryview(writer.reserve(3))[:] = b"abc"
    writer.commit()
    assert reader.recv(0) == b"abc"
    writer.reserve(3)
    writer.abort()
    for end in (writer.commit, writer.abort, lambda: writer.commit(5)):
        with pytest.raises(ValueError, match="no reservation"):
            end()


def test_a_block_commits_and_aborts_after_an_exception(ring):
    writer, reader = ring
    with writer.reserve(16) as span, memoryview(span) as view:
        view[:] = b"x" * 16
    with reader.next(0) as frame, memoryview(frame) as view:
        assert view == b"x" * 16
    with pytest.raises(KeyError), writer.reserve(3):
        raise KeyError
    with pytest.raises(KeyError), writer.reserve(3) as span:
        view = memoryview(span)
        raise KeyError
    with pytest.raises(ringcast.Error):  # the view still sees the ring
        writer.reserve(3)
    view.release()
    writer.send_bytes(b"next", 0)
    assert reader.recv(0) == b"next" and reader.lag == 0


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


def test_views_in_use_hold_up_their_end_and_what_was_closed_says_so(ring):
    writer, reader = ring
    span = writer.reserve(8)
    views = [memoryview(span), np.asarray(span)]
    for end in (span.commit, span.abort, writer.commit, writer.abort, writer.close):
        with pytest.raises(BufferError, match="2 memoryviews of the Span"):
            end()
    views.clear()
    span.commit()
    span, frame = writer.reserve(4), reader.next(0)
    view = memoryview(frame)
    for end in (frame.release, reader.close):
        with pytest.raises(BufferError, match="1 memoryview of the Frame"):
            end()
    view.release()
    writer.close()
    reader.close()
    for use in (span.commit, span.abort, lambda: len(span), lambda: memoryview(span)):
        with pytest.raises(ValueError, match="Writer was closed"):
            use()
    for use in (lambda: len(frame), lambda: memoryview(frame)):
        with pytest.raises(ValueError, match="Reader was closed"):
            use()


def test_a_frame_can_be_passed_on_to_another_ring(ring):
    writer, reader = ring
    with ringcast.Writer(1 << 16) as second, ringcast.Reader(second.handle) as end:
        writer.send({"a": np.arange(5), "b": [1, 2]}, 0, tag=9)
        with reader.next(0) as frame, second.reserve(len(frame)) as span:
            memoryview(span)[:] = frame
            span.commit(kind=frame.kind)
        got, tag = end.recv_tagged(0)
    assert tag == 9 and got["b"] == [1, 2] and got["a"].tolist() == [0, 1, 2, 3, 4]


# ---- Several frames are held ---------------------------------------------------------------------


@pytest.fixture
def four():
    """A ring, and a reader that may hold four frames."""
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle, leases=4) as reader:
        yield writer, reader


def test_frames_are_released_in_any_order_and_receiving_goes_on(four):
    writer, reader = four
    writer.send({"n": 0}, 0)
    held = reader.next(0)
    writer.send({"n": 1}, 0)
    assert reader.recv(0) == {"n": 1} and reader.lag > 0
    del held
    assert reader.lag == 0
    for number in range(5):
        writer.send_bytes(b"%d" % number, 0)
    frames = [reader.next(0) for _ in range(4)]
    with pytest.raises(ringcast.Error, match="4 frames") as raised:
        reader.next(0)
    assert raised.value.errno == errno.EBUSY
    lag = reader.lag
    frames[2].release()
    frames[1].release()
    assert reader.lag == lag  # the oldest is held still
    assert [bytes(frames[0]), bytes(frames[3])] == [b"0", b"3"]
    frames[0].release()
    assert reader.lag < lag
    frames[0].release()
    with pytest.raises(ValueError, match="released"):
        bytes(frames[1])
    frames[3].release()
    assert reader.recv(0) == b"4" and reader.lag == 0


def test_after_an_exception_each_frame_goes_with_its_own_last_view(four):
    writer, reader = four
    writer.send_many([b"1", b"2"], 0)
    with pytest.raises(KeyError), reader.next(0) as first:
        view = memoryview(first)
        raise KeyError
    with reader.next(0) as second:
        assert (bytes(second), bytes(view)) == (b"2", b"1")
    assert reader.lag > 0
    view.release()
    assert reader.lag == 0


@pytest.mark.parametrize("drops", [True, False])
def test_a_frame_that_is_given_up_while_another_thread_waits_makes_room(four, drops):
    writer, reader = four
    large, held = bytes(writer.info().ring_frame), []
    with pytest.raises(TimeoutError):  # what is held is in the way
        for _ in range(4):
            writer.send_bytes(large, 0)
            held.append(reader.next(0))
    waiting = Receiving(lambda: reader.recv(WATCHDOG))
    until(lambda: is_in_use(reader))
    if not drops:
        for frame in held:
            frame.release()
        with pytest.raises(ValueError, match="released"):
            bytes(held[0])
    held.clear()
    writer.send_bytes(large, WATCHDOG / 4)
    assert waiting.finish() == large and reader.lag == 0
    for number in range(8):  # none of the four places is lost
        writer.send_bytes(b"%d" % number, 0)
    assert len([reader.next(0) for _ in range(4)]) == 4


def test_a_frame_dropped_by_what_is_unpickled_is_released(four):
    writer, reader = four
    held = []
    runs = Runs(held.clear)
    writer.send_bytes(b"1", 0)
    writer.send(runs, 0)
    held.append(reader.next(0))
    assert reader.recv(0) is None and held == [] and reader.lag == 0


@needs_torch
def test_a_held_frame_is_decoded_again_and_no_array_is_copied(ring):
    import torch

    writer, reader = ring
    writer.send({"step": [1], "x": np.arange(10_000), "t": torch.arange(1000)})
    with reader.next(0) as frame:
        place = np.asarray(frame)
        one, two = frame.view(), frame.view()
        for value in (one, two):
            assert np.shares_memory(value["x"], place) and not value["x"].flags.writeable
            assert value["x"].sum() == 49_995_000 and value["step"] == [1]
        assert one["step"] is not two["step"]
        assert one["t"].data_ptr() == two["t"].data_ptr() != frame["t"].data_ptr()
        assert not np.shares_memory(ringcast.unpack(frame)["x"], place)
        del place
    with pytest.raises(ValueError, match="released"):
        frame.view()
    writer.send(fractions.Fraction(1, 3))
    assert reader.recv(0) == fractions.Fraction(1, 3)
    with ringcast.Reader(writer.handle, allow_pickle=False) as other:
        writer.send(fractions.Fraction(1, 3))
        with other.next(0) as frame, pytest.raises(ringcast.PickleRefused):
            frame.view()
    gc.collect()


# ---- A Reader starts at the newest frame, or at the newest of a tag ------------------------------


def test_the_newest_frame_comes_at_once_and_then_every_later_one():
    with (
        ringcast.Writer(1 << 16) as writer,
        ringcast.Reader(writer.handle, start="latest") as early,
    ):
        for step in range(3):
            writer.send(step)
        with ringcast.Reader(writer.handle, start="latest") as reader:
            writer.send(3)
            assert reader.recv_many(0) == [2, 3]
        assert early.recv_many(0) == [0, 1, 2, 3]


def test_the_newest_of_a_tag_and_what_came_after_it():
    with ringcast.Writer(1 << 16) as writer:
        writer.send("old", tag=7)
        writer.send("settings", tag=7)
        writer.send_bytes(b"raw")
        writer.send("step", tag=8)
        with ringcast.Reader(writer.handle, start="latest", tag=7) as reader:
            came = [reader.recv_tagged(0) for _ in range(3)]
            assert came == [("settings", 7), (b"raw", 0), ("step", 8)]
        writer.send(ringcast.pack("packed"), tag=7)
        writer.send_error("why not", tag=8)
        with ringcast.Reader(writer.handle, start="latest", tag=7) as reader:
            assert reader.recv(0) == "packed"
        with ringcast.Reader(writer.handle, start="latest", tag=8) as reader:
            with pytest.raises(ringcast.SendError):
                reader.recv(0)


def test_a_tag_that_the_ring_does_not_have_any_more_is_named():
    with ringcast.Writer(1 << 12) as writer:
        for sent in ([], ["settings"]):
            for value in sent:
                writer.send(value, tag=7)
                for _ in range(3):
                    writer.send_bytes(bytes(1000))
            with pytest.raises(ringcast.Error, match="tag 7") as raised:
                ringcast.Reader(writer.handle, start="latest", tag=7)
            assert raised.value.errno == errno.ENODATA


def work(state, handle):
    """A worker: needs the settings, then does each step."""
    with ringcast.Reader(handle, start="latest", tag=1, name="worker") as reader:
        for value in reader:
            state["pipe"].send(value)


def test_a_worker_that_is_started_again_has_the_settings_at_once():

    with ringcast.Writer(1 << 16, on_death="evict") as writer:
        writer.send({"scale": 2}, tag=1)
        for life in range(2):
            with Peer() as worker:
                worker.start(work, writer.handle)
                for value in ({"scale": 2}, *range(life)):
                    worker.reach(value)
                writer.send(life)
                worker.reach(life)
                worker.end("killed")
