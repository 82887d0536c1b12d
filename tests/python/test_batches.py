# SPDX-License-Identifier: Apache-2.0
"""
Batches: every way of receiving gives the same values in order, and a failure in mid-batch loses and
repeats none.
"""

import asyncio
import itertools
import threading

import numpy as np
import pytest
from peers import WATCHDOG, Runs

import ringcast

SMALL = [
    b"",
    b"x" * 16,
    b"y" * 1024,
    7,
    -1.5,
    None,
    True,
    "text",
    [1, 2],
    {"a": 1},
    (3, "four"),
    {5},
    2**200,
]
LARGE = [
    b"z" * 1025,
    b"w" * 2_000_000,
    np.arange(5000),
    {"array": np.ones((3, 100_000)), "step": 3},
]
MIXED = list(itertools.chain.from_iterable(zip(SMALL, itertools.cycle(LARGE)))) + SMALL


def same(one, other):
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    return type(one) is type(other) and one == other


def all_same(some, others):
    return len(some) == len(others) and all(map(same, some, others))


# ---- What arrives --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"retain": True}, {"leases": 4}], ids=["plain", "retain", "leases"]
)
@pytest.mark.parametrize("values", [SMALL, LARGE, MIXED], ids=["small", "large", "mixed"])
def test_values_arrive_in_order_each_way(values, options):
    with ringcast.Writer(1 << 20, readers=3) as writer, ringcast.Tap(writer.handle) as tap:
        one, many, few = (ringcast.Reader(writer.handle, **options) for _ in range(3))
        for _ in range(3):
            writer.send_many(values, 0)
            assert all_same([one.recv(0) for _ in values], values)
            assert all_same(many.recv_many(0), values)
            received = []
            while len(received) < len(values):
                part = few.recv_many(0, most=3)
                assert 1 <= len(part) <= 3
                received += part
            assert all_same(received, values)
            assert all_same([tap.recv(0) for _ in values], values)
        assert writer.stats().frames == one.stats().frames == many.stats().frames == 3 * len(values)
        for reader in (one, many, few):
            with pytest.raises(TimeoutError):
                reader.recv_many(0)
            reader.close()


def test_frames_and_views_of_a_batch_are_read_in_place(ring):
    writer, reader = ring
    writer.send_many([b"first", {"array": np.arange(7)}, b"last"], 0)
    with reader.next(0) as frame:
        assert bytes(frame) == b"first" and frame.kind == ringcast.KIND_BYTES
    with reader.view(0) as view:
        assert (view["array"] == np.arange(7)).all() and view["array"].ctypes.data % 64 == 0
    assert reader.recv_many(0) == [b"last"]


def test_values_of_one_call_have_one_tag(ring):
    writer, reader = ring
    writer.send_many([b"x", 1], 0, tag=9)
    assert [reader.recv_tagged(0) for _ in range(2)] == [(b"x", 9), (1, 9)]


def test_packed_frames_and_any_iterable_are_taken(ring):
    writer, reader = ring
    writer.send_many((ringcast.pack(i) if i % 2 else i for i in range(10)), 0, tag=3)
    assert [reader.recv_tagged(0) for _ in range(10)] == [(i, 3) for i in range(10)]


def test_an_empty_batch_sends_nothing(ring):
    writer, reader = ring
    writer.send_many([])
    assert writer.stats().frames == 0
    with pytest.raises(TimeoutError):
        reader.recv_many(0.001)


def test_a_batch_larger_than_the_ring_goes_in_parts():
    values = [b"%d" % i * (i % 40) for i in range(20_000)]
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle) as reader:
        thread = threading.Thread(target=writer.send_many, args=(values, WATCHDOG))
        thread.start()
        received = []
        while len(received) < len(values):
            received += reader.recv_many(WATCHDOG)
        thread.join()
        assert received == values


# ---- Failures in mid-batch -----------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.01])
@pytest.mark.parametrize("values", [[b"x" * 16] * 5000, [{"n": 1}] * 1000], ids=["bytes", "dicts"])
def test_a_full_ring_says_how_many_were_sent(values, timeout):
    values = [(i if isinstance(value, dict) else b"%016d" % i) for i, value in enumerate(values)]
    with ringcast.Writer(1 << 13) as writer, ringcast.Reader(writer.handle) as reader:
        received, left = [], values
        while left:
            try:
                writer.send_many(left, timeout)
                left = []
            except TimeoutError as full:
                assert 0 < full.sent < len(left)
                left = left[full.sent :]
            received += reader.recv_many(0)
        assert received == values


def test_an_iterable_may_use_the_writer_and_may_fail(ring):
    writer, reader = ring

    def numbers(count):
        for i in range(count):
            writer.send_bytes(b"first")
            yield i
        if count == 3:
            raise LookupError

    writer.send_many(numbers(2))
    with pytest.raises(LookupError) as raised:
        writer.send_many(numbers(3))
    assert raised.value.sent == 0
    assert reader.recv_many(0) == [b"first", b"first", 0, 1, b"first", b"first", b"first"]


class Uses:
    writer = None

    def __reduce__(self):
        self.writer.send(1)


def test_a_value_that_uses_the_writer_is_refused(ring):
    Uses.writer, reader = ring
    with pytest.raises(RuntimeError) as raised:
        Uses.writer.send_many([b"a", 2, Uses(), 3])
    assert raised.value.sent == 2 and reader.recv_many(0) == [b"a", 2]
    Uses.writer = None


class Unsendable(Exception):
    def __reduce__(self):
        raise self


@pytest.mark.parametrize("at", [0, 1, 300])
@pytest.mark.parametrize("good", [b"good", "good", np.arange(1000)], ids=["bytes", "str", "array"])
def test_a_value_that_cannot_be_sent_follows_those_before_it(at, good):
    with ringcast.Writer(1 << 23) as writer, ringcast.Reader(writer.handle) as reader:
        with pytest.raises(Unsendable) as raised:
            writer.send_many([good] * at + [Unsendable()] + [good], 0)
        assert raised.value.sent == at
        writer.send("after", 0)
        assert all_same(reader.recv_many(0), [good] * at + ["after"])


def test_a_value_too_large_for_all_ends_the_batch_before_it():
    with (
        ringcast.Writer(1 << 16, spill_bytes=0) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        with pytest.raises(ringcast.FrameTooLarge) as raised:
            writer.send_many([b"a", "b", bytes(1 << 20), b"c"], 0)
        assert raised.value.sent == 2
        assert reader.recv_many(0) == [b"a", "b"]


def test_bad_arguments_send_nothing(ring):
    writer, reader = ring
    for arguments, keywords in [
        ((5,), {}),
        (([1], -1), {}),
        (([1],), {"tag": -1}),
        ((), {}),
        (([1],), {"hash": 1}),
    ]:
        with pytest.raises((TypeError, ValueError)):
            writer.send_many(*arguments, **keywords)
    for most in (0, -1, 1.5, "3"):
        with pytest.raises((TypeError, ValueError)):
            reader.recv_many(0, most)
    assert writer.stats().frames == 0
    writer.close()
    with pytest.raises(ValueError, match="closed") as raised:
        writer.send_many([1])
    assert raised.value.sent == 0


class Unreceivable:
    def __reduce__(self):
        return int, ("no int",)


@pytest.mark.parametrize("fails", [Unreceivable(), None], ids=["decoding", "send_error"])
def test_what_cannot_be_received_is_told_after_what_came_before(ring, fails):
    writer, reader = ring
    for turn in range(3):
        writer.send_many([1, b"2"], 0)
        if fails:
            writer.send_many([fails], 0)
        else:
            writer.send_error("bad luck", 0)
        writer.send_many([3, b"4"], 0)
        assert reader.recv_many(0) == [1, b"2"]
        with pytest.raises((ValueError, ringcast.SendError), match="no int|bad luck"):
            reader.recv_many(0) if turn else reader.recv(0)
        assert reader.recv_many(0) == [3, b"4"]


class Stops(BaseException):
    """As KeyboardInterrupt, which ends a call whatever was received."""


def stop():
    raise Stops


def test_what_was_received_before_an_interrupt_is_handed_over(ring):
    writer, reader = ring
    runs = Runs(stop)
    for receive in (reader.recv_many, lambda: asyncio.run(reader.arecv_many())):
        writer.send_many([1, b"2", runs, 3], 0)
        with pytest.raises(Stops) as raised:
            receive()
        assert raised.value.received == [1, b"2"]
        with pytest.raises(Stops):  # it was not received, and is the next one
            reader.recv(0)
        assert reader.recv(0) == 3


def test_the_bound_in_frames_counts_each_value():
    with ringcast.Writer(1 << 16, ahead=3) as writer, ringcast.Reader(writer.handle) as reader:
        with pytest.raises(TimeoutError) as raised:
            writer.send_many(range(10), 0)
        assert raised.value.sent == 3
        assert reader.recv_many(0) == [0, 1, 2]


def test_an_evicted_reader_is_told():
    with (
        ringcast.Writer(1 << 14, on_slow="evict", slow=0.01) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        writer.send_many([b"x" * 16] * 50)
        assert reader.recv(0) == b"x" * 16
        writer.send_many([b"y" * 16] * 5000)
        with pytest.raises(ringcast.Evicted):
            reader.recv_many(0)


def test_values_of_an_eviction_in_mid_batch_are_dropped():
    with (
        ringcast.Writer(1 << 14, on_slow="evict", slow=0.01) as writer,
        ringcast.Reader(writer.handle) as reader,
    ):
        overwrites = Runs(lambda: writer.send_many([b"z" * 16] * 5000))
        writer.send_many([b"first", b"second", overwrites, b"last"])
        assert reader.recv_many(0) == [b"first", b"second"]  # and nothing of the rest
        with pytest.raises(ringcast.Evicted):
            reader.recv_many(0)


# ---- Other processes -----------------------------------------------------------------------------


def send_for_ever(state):
    for start in itertools.count(step=100):
        state["writer"].send_many([b"%d" % i for i in range(start, start + 100)], WATCHDOG)


def make_endless(state, capacity):
    state["writer"] = ringcast.Writer(capacity)
    return state["writer"].handle


def test_a_writer_killed_in_mid_batch_leaves_whole_values(peer):
    with ringcast.Reader(peer.call(make_endless, 1 << 14)) as reader:
        peer.start(send_for_ever)
        received = reader.recv_many(WATCHDOG)
        while len(received) < 20_000:
            received += reader.recv_many(WATCHDOG)
        peer.process.kill()
        with pytest.raises(ringcast.WriterGone):
            while True:
                received += reader.recv_many(WATCHDOG)
        assert received == [b"%d" % i for i in range(len(received))]


# ---- asyncio -------------------------------------------------------------------------------------


def test_tasks_send_and_receive_batches():
    values = [b"%d" % i if i % 3 else i for i in range(3000)]

    async def receive(reader):
        received = []
        while len(received) < len(values):
            part = await reader.arecv_many(WATCHDOG, 100)
            assert 1 <= len(part) <= 100
            received += part
        return received

    async def both(writer, reader):
        sent = asyncio.ensure_future(writer.asend_many(values, WATCHDOG))
        received = await receive(reader)
        await sent
        return received

    with ringcast.Writer(1 << 13) as writer, ringcast.Reader(writer.handle) as reader:
        assert asyncio.run(both(writer, reader)) == values


def test_a_task_sends_bytes_as_send_many_does():
    values = [b"%d" % i for i in range(3)]
    with ringcast.Writer(1 << 13) as writer, ringcast.Reader(writer.handle, leases=6) as reader:
        writer.send_many(values)
        asyncio.run(writer.asend_many(values))
        frames = [reader.next(0) for _ in range(6)]
        told = [(frame.kind, bytes(frame)) for frame in frames]
        assert told[:3] == told[3:] == [(told[0][0], value) for value in values]
        for frame in frames:
            frame.release()


def test_a_task_that_gives_up_says_how_many_were_sent():
    values = list(range(2000))

    async def send(writer):
        with pytest.raises(TimeoutError) as raised:
            await writer.asend_many(values, 0.01)
        return raised.value.sent

    with ringcast.Writer(1 << 13) as writer, ringcast.Reader(writer.handle) as reader:
        sent = asyncio.run(send(writer))
        assert 0 < sent < len(values)
        assert reader.recv_many(0) == values[:sent]
