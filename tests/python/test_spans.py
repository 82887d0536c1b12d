# SPDX-License-Identifier: Apache-2.0
"""
Spans: each way of sending and receiving records its call and phases; without a subscriber nothing
is recorded.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from peers import WATCHDOG, is_in_use, until
from recording import BYTES_SENT, RECEIVED, SENT, check, recorded

import ringcast
from ringcast import _spans

pytestmark = pytest.mark.alike


def token(handle):
    return int(handle[-32:-16], 16)


# ---- Ways ----------------------------------------------------------------------------------------


def test_a_value_has_all_phases_and_both_sides_name_the_same_frame(ring):
    writer, reader = ring
    with recorded() as spans:
        for step in range(3):
            writer.send({"step": step, "array": np.arange(100)})
            with reader.next() as frame:
                size = len(memoryview(frame))
                position = int(repr(frame).split("at ")[1].split(",")[0])
            writer.send({"step": step})
            assert reader.recv() == {"step": step}
            _spans.flush()
            ours = [span for span in spans if span.position == position]
            assert [span.kind for span in ours] == SENT + RECEIVED
            assert {span.bytes for span in ours} == {size}
    check(spans)
    assert spans.kinds() == (SENT + RECEIVED) * 6
    assert {span.ring for span in spans} == {token(writer.handle)}


ARRAY = np.zeros(1 << 20)  # for spill memory
PACKED = ringcast.pack({"a": np.ones(5)})
SENDS = {
    "a value": (lambda writer: writer.send([1, 2]), SENT),
    "an array": (lambda writer: writer.send(ARRAY), SENT),
    "an array with a hash": (lambda writer: writer.send(ARRAY, hash="sha256"), SENT),
    "an error": (lambda writer: writer.send_error("no"), SENT),
    "a packed frame": (lambda writer: writer.send(PACKED), BYTES_SENT),
    "bytes": (lambda writer: writer.send_bytes(b"x" * 100), BYTES_SENT),
    "bytes with gaps": (lambda writer: writer.send_bytes(memoryview(bytes(200))[::2]), BYTES_SENT),
    "much": (lambda writer: writer.send_bytes(b"y" * 100_000), BYTES_SENT),
}
RECEIVES = {
    "recv": lambda reader: reader.recv(),
    "recv_tagged": lambda reader: reader.recv_tagged(),
    "iteration": next,
    "next": lambda reader: reader.next().release(),
    "view": lambda reader: reader.view().__exit__(),
}


def pair(sending, receiving):
    """A ring of 1 MiB; both calls; their spans."""
    with (
        ringcast.Writer(1 << 20) as writer,
        ringcast.Reader(writer.handle, leases=4) as reader,
        recorded() as spans,
    ):
        sending(writer)
        with contextlib.suppress(ringcast.SendError):
            receiving(reader)
    return spans


@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)
@pytest.mark.parametrize("send, phases", SENDS.values(), ids=SENDS)
def test_each_way_has_its_phases(send, phases, receive):
    spans = pair(send, receive)
    check(spans)
    assert spans.kinds() == phases + RECEIVED
    assert {(span.position, span.bytes) for span in spans} == {(0, spans[0].bytes)}


@pytest.mark.parametrize("options", [{}, {"gpu_pool_bytes": 0}], ids=["pool", "inline"])
def test_tensors_of_a_device(gpu, options):
    with ringcast.Writer(1 << 20, **options) as writer, ringcast.Reader(writer.handle) as reader:
        for _ in range(3):  # the pool is open from the second frame on
            with recorded() as spans:
                writer.send({"x": gpu.cuda(np.arange(1000.0))}, WATCHDOG)
                reader.recv(WATCHDOG)
            check(spans)
            assert spans.kinds() == SENT + RECEIVED
            assert len({(span.position, span.bytes) for span in spans}) == 1
        assert (writer.gpu.pool_frames > 0) == (not options)


def test_a_frame_written_in_place():
    def send(writer):
        with writer.reserve(100):
            pass
        with writer.compose({"x": ringcast.empty(10, "float32"), "y": 1}) as frame:
            frame["x"] = 1

    spans = pair(send, lambda reader: (reader.recv(), reader.recv()))
    # The room is one call, the commit another.
    assert (
        spans.kinds()
        == ["wait_room", "publish", "send", *SENT[:4], "publish", "send"] + 2 * RECEIVED
    )
    first, second = spans.of("recv")
    assert [span.position for span in spans] == [first.position] * 3 + [second.position] * 6 + [
        0
    ] * 3 + [second.position] * 3
    assert spans[0].bytes == first.bytes == 100


BATCHES = {
    "bytes": [b"x" * size for size in (0, 1, 8, 9, 100, 1000, 1024)] * 7,
    "mixed": [
        b"a",
        b"b" * 30,
        {"k": 2},
        b"d",
        b"e" * 2000,
        b"f",
        None,
        b"g" * 20_000,
        *[b"h" * 900] * 20,
    ],
    "values": [1, "two", [3], np.arange(2000)],
    "long": [b"z" * 40] * 700,
}


@pytest.mark.parametrize("receive", ["recv", "recv_many"])
@pytest.mark.parametrize(
    "options", [{"capacity": 1 << 20}, {"capacity": 1 << 17}, {"ahead": 1000}], ids=str
)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_is_one_publish_at_its_first_frame(batch, options, receive):
    values, received = BATCHES[batch], []
    with (
        ringcast.Writer(**{"capacity": 1 << 20, **options}) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        with recorded() as spans:
            writer.send(0)
            writer.send_many(values)
            while len(received) <= len(values):
                received += [reader.recv()] if receive == "recv" else reader.recv_many()
    check(spans)
    decoded, sent = spans.of("decode")[1:], spans.of("publish")[1:]
    assert len(decoded) == len(values) == len({span.position for span in decoded})
    send = spans.of("send")[1]
    assert send.position == sent[0].position and send.bytes == sum(span.bytes for span in decoded)
    # The frames of a batch are alone, or packed with the first message 16 bytes on.
    starts = [span.position - span.position % 128 for span in decoded]
    assert decoded[0].position - starts[0] in (0, 16) and {span.position for span in sent} <= set(
        starts
    )
    assert sent[0].position == starts[0]
    assert (
        len(spans.of("recv")) == len(values) + 1
        if receive == "recv"
        else len(spans.of("recv")) < len(values)
    )


def test_tasks_of_an_event_loop_record_what_they_get_and_not_their_tries(ring):
    writer, reader = ring

    async def main():
        task = asyncio.ensure_future(reader.arecv())
        await asyncio.sleep(0)  # it waits
        await writer.asend([1])
        assert await task == [1]
        task = asyncio.ensure_future(reader.arecv_many())
        await asyncio.sleep(0)
        await writer.asend_many([b"a", b"b"])
        return await task

    with recorded() as spans:
        received = asyncio.run(main())
    assert received == [b"a", b"b"]
    check(spans)
    assert len(spans.of("send")) == 2 and len(spans.of("recv")) in (2, 3)
    assert all(span.position >= 0 for span in spans)
    decoded = [span.position for span in spans.of("decode")]
    assert [span.position for span in spans.of("publish")] == [decoded[0], decoded[1] - 16]


def test_a_task_that_waits_for_room(ring):
    writer, reader = ring

    async def main():
        while True:
            try:
                await writer.asend(b"x" * 100_000, 0)
            except TimeoutError:
                break
        task = asyncio.ensure_future(writer.asend({"last": 1}))
        await asyncio.sleep(0)
        count = 1
        while await reader.arecv(WATCHDOG) != {"last": 1}:
            count += 1
        await task
        return count

    with recorded() as spans:
        count = asyncio.run(main())
    check(spans)
    assert len(spans.of("send")) == len(spans.of("recv")) == count
    assert [span.position for span in spans.of("send")] == [
        span.position for span in spans.of("recv")
    ]


# ---- Nothing -------------------------------------------------------------------------------------


def test_a_try_that_gives_nothing_is_no_span_and_a_wait_is_one(ring):
    writer, reader = ring
    with recorded() as spans:
        for call in (lambda: reader.recv(0), lambda: reader.recv_many(0), lambda: reader.next(0)):
            with pytest.raises(TimeoutError):
                call()
        while True:
            try:
                writer.send(b"x" * 100_000, 0)
            except TimeoutError:
                break
        tries = len(spans)
        for call in (
            lambda: writer.send_bytes(b"x" * 100_000, 0),
            lambda: writer.reserve(100_000, 0),
        ):
            with pytest.raises(TimeoutError):
                call()
        _spans.flush()
        before = len(spans)
        with pytest.raises(TimeoutError):
            writer.send_bytes(b"x" * 100_000, 0.001)
        _spans.flush()
        failed = spans[before:]
        with pytest.raises(ValueError):
            writer.commit(1)
    assert tries <= before == len(spans) - len(failed)
    assert [span.kind for span in failed] == ["wait_room", "send"]
    assert all(span.position == -1 and span.bytes == 0 for span in failed)
    assert all(span.end_ns - span.start_ns > 900_000 for span in failed)


class Unsendable:
    def __reduce__(self):
        raise TypeError("not this one")


def test_a_value_that_is_refused_is_a_span_in_a_try_too(ring):
    writer, _ = ring
    with recorded() as spans:
        for call in (
            lambda: writer.send(Unsendable(), 0),
            lambda: writer.send_many([Unsendable()], 0),
            lambda: writer.send_bytes("text", 0),
        ):
            with pytest.raises((TypeError, ringcast.SendError)):
                call()
    assert [span.kind for span in spans if span.kind == "send"] == ["send"] * 3
    assert all(span.position == -1 for span in spans)


def test_the_wait_for_a_frame_is_the_waits_and_not_the_decoding(ring):
    writer, reader = ring

    def send():
        until(lambda: is_in_use(reader))
        writer.send(1)

    with recorded() as spans:
        thread = threading.Thread(target=send)
        thread.start()
        assert reader.recv(WATCHDOG) == 1
        thread.join()
    (wait,), (whole,), (publish,) = (spans.of(kind) for kind in ("wait_frame", "recv", "publish"))
    assert wait.start_ns < publish.start_ns < wait.end_ns <= whole.end_ns
    assert publish.start_ns <= spans.of("decode")[0].start_ns
    assert publish.thread != wait.thread


def test_the_wait_for_room_of_a_batch():
    received = []
    with (
        ringcast.Writer(1 << 16) as writer,
        ringcast.Reader(writer.handle) as reader,
        recorded() as spans,
    ):

        def receive():
            until(lambda: reader.lag > writer.capacity - (1 << 14))
            received.extend(reader.recv(WATCHDOG) for _ in range(100))

        thread = threading.Thread(target=receive)
        thread.start()
        writer.send_many([b"x" * 1000] * 100)
        thread.join()
    assert len(received) == 100
    (send,), first = spans.of("send"), spans.of("decode")[0]
    assert any(wait.start_ns < first.start_ns < wait.end_ns for wait in spans.of("wait_room"))
    (publish,) = spans.of("publish")
    assert first.position - 16 == send.position == publish.position


OFF = """
import sys
import ringcast
assert not {"ringcast._spans", "ringcast.trace", "multiprocessing", "json"} & set(sys.modules), sys.modules
with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
    writer.send({"a": 1})
    reader.recv()
assert ringcast._ringcast._spans_names() == {}
assert not {"ringcast._spans", "ringcast.trace", "multiprocessing", "json"} & set(sys.modules)
"""


@pytest.mark.uncounted  # coverage.py imports what the test looks for
def test_nothing_is_imported_or_recorded_while_off(ring):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RINGCAST_")
    }
    result = subprocess.run(
        [sys.executable, "-c", OFF], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    writer, reader = ring
    writer.send(1)
    reader.recv()
    with recorded() as spans:
        pass
    assert spans == []


# ---- Two processes -------------------------------------------------------------------------------


def send_and_tell(state, count):
    with recorded() as spans, ringcast.Writer(1 << 20) as writer:
        state["pipe"].send(writer.handle)
        writer.wait_readers(1, WATCHDOG)
        for step in range(count):
            writer.send({"step": step, "data": b"x" * step})
        state.at("sent")
    return list(map(tuple, spans))


def test_the_positions_and_times_of_two_processes_fit(peer):
    peer.start(send_and_tell, 20)
    handle = peer.message()
    with recorded() as spans, ringcast.Reader(handle) as reader:
        for step in range(20):
            assert reader.recv(WATCHDOG)["step"] == step
        peer.reach("sent")
        peer.go_on()
    check(spans)
    theirs = [_spans.Span(*span) for span in peer.finish()]
    published = {(span.ring, span.position): span for span in theirs if span.kind == "publish"}
    assert len(published) == 20 and {span.thread for span in theirs} == {peer.pid}
    for span in spans.of("decode"):
        sent = published.pop((span.ring, span.position))
        assert sent.bytes == span.bytes and sent.start_ns < span.start_ns
    assert not published
