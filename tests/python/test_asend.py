# SPDX-License-Identifier: Apache-2.0
"""Sending in an event loop: in order, as it was when it was asked for, and nothing of who was
cancelled."""

import asyncio
import contextlib
import errno
import re
import selectors
import threading

import numpy as np
import pytest
from loops import LOOPS, is_let_go, is_out_of, run, turns, waits
from peers import WATCHDOG, attach

import ringcast

pytestmark = pytest.mark.parametrize("loop", LOOPS)


def fill(writer):
    """Until there is no room for anything, unless all readers are evicted."""
    with contextlib.suppress(TimeoutError):
        for _ in range(writer.capacity):
            writer.send_bytes(b"", 0)


def drain(reader):
    received = []
    while True:
        try:
            received.append(reader.recv(0))
        except TimeoutError:
            return [one for one in received if one != b""]


async def drain_until(reader, task):
    """Receives until the task has ended."""
    received = []
    while not task.done():
        received += drain(reader)
        await asyncio.sleep(0)
    return received + drain(reader)


def start(*coroutines):
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    return tasks if len(tasks) > 1 else tasks[0]


@pytest.fixture
def small():
    with (
        ringcast.Writer(1 << 12) as writer,
        ringcast.Reader(writer.handle, name="rank 1") as reader,
    ):
        yield writer, reader


# ---- With room -----------------------------------------------------------------------------------


def test_where_there_is_room_it_is_sent_at_once_and_others_run_now_and_then(loop):
    counted = [0]

    async def count():
        while True:
            counted[0] += 1
            await asyncio.sleep(0)

    async def main():
        with ringcast.Writer(1 << 16) as writer, ringcast.Tap(writer.handle) as tap:
            coroutine = writer.asend("at once", tag=9)
            with pytest.raises(StopIteration):
                coroutine.send(None)
            assert tap.recv_tagged(0) == ("at once", 9)
            other = start(count())
            for number in range(1000):  # to nobody: there is always room
                await writer.asend(number)
            other.cancel()
            assert writer.stats().frames == 1001
            assert writer._watch.fd is None  # no descriptor was needed

    run(loop, main())
    assert counted[0] >= 1000 // 64


def test_arguments_are_looked_at_when_it_is_called(loop, small):
    writer, _ = small
    for wrong, error in (
        (lambda: writer.asend(), TypeError),
        (lambda: writer.asend(1, -1), ValueError),
        (lambda: writer.asend(1, "soon"), TypeError),
        (lambda: writer.asend(1, tag=1 << 32), ValueError),
        (lambda: writer.asend(1, 1, 2), TypeError),
        (lambda: writer.asend(1, hurry=True), TypeError),
    ):
        with pytest.raises(error):
            wrong()


# ---- Waiting -------------------------------------------------------------------------------------


async def test_calls_that_wait_are_served_in_their_order(loop, small):
    writer, reader = small
    fill(writer)
    tasks = start(*(writer.asend(number) for number in range(200)))
    await waits(writer, 200)
    received = await drain_until(reader, tasks[-1])
    assert received == list(range(200))
    await asyncio.gather(*tasks)
    await is_let_go(writer)
    assert is_out_of(asyncio.get_running_loop(), writer.room_fileno())


async def test_who_comes_while_others_wait_does_not_overtake_them(loop, small):
    writer, reader = small
    fill(writer)
    first = start(writer.asend("first"))
    await waits(writer)
    drain(reader)  # there is room now, of which the first one does not know yet
    second = start(writer.asend("second"))
    await asyncio.gather(first, second)
    assert drain(reader) == ["first", "second"]


class Counted:
    pickles = 0

    def __reduce__(self):
        Counted.pickles += 1
        return str, ("counted",)


async def test_it_is_sent_as_it_was_and_encoded_no_more_often_while_it_waits(loop, small):
    writer, reader = small
    Counted.pickles = 0
    fill(writer)
    value = {"list": [1, 2], "array": np.arange(4), "counted": Counted()}
    task = start(writer.asend(value, tag=7))
    await waits(writer)
    assert Counted.pickles == 2  # once in vain, once to keep
    value["list"].append(3)
    value["array"][:] = 0
    value["new"] = True
    for _ in range(5):  # woken for nothing
        asyncio.get_running_loop().call_soon(writer._watch.ready)
        await turns()
    assert Counted.pickles == 2
    while not task.done():
        try:
            received, tag = reader.recv_tagged(0)
        except TimeoutError:
            await asyncio.sleep(0)
    while received == b"":
        received, tag = reader.recv_tagged(0)
    assert tag == 7 and received["list"] == [1, 2] and received["array"].tolist() == [0, 1, 2, 3]
    assert sorted(received) == ["array", "counted", "list"]


async def test_a_packed_frame_is_sent_as_it_is(loop, small):
    writer, reader = small
    fill(writer)
    task = start(writer.asend(ringcast.pack({"a": 1})))
    await waits(writer)
    assert await drain_until(reader, task) == [{"a": 1}]


# ---- Timeouts, cancelling ------------------------------------------------------------------------


async def test_timeouts_name_who_is_in_the_way_and_leave_nothing_in_the_loop(loop, small):
    writer, reader = small
    fill(writer)
    with pytest.raises(TimeoutError):
        await writer.asend("no", 0)
    with pytest.raises(TimeoutError, match="'rank 1'"):
        await writer.asend("no", timeout=0.01)
    assert is_out_of(asyncio.get_running_loop(), writer.room_fileno())
    first = start(writer.asend("first"))
    await waits(writer)
    for timeout in (0, 0.001):
        with pytest.raises(TimeoutError, match="came before"):
            await writer.asend("no", timeout)
    assert await drain_until(reader, first) == ["first"]


@pytest.mark.parametrize("who", [0, 1, 2])
async def test_who_is_cancelled_sends_nothing_and_the_others_go_on(loop, small, who):
    writer, reader = small
    fill(writer)
    tasks = start(*(writer.asend(number) for number in range(3)))
    await waits(writer, 3)
    drain(reader)  # the first one is woken in the same turn, or the next
    tasks[who].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done.pop(who), asyncio.CancelledError) and done == [None, None]
    assert drain(reader) == [number for number in range(3) if number != who]
    fill(writer)
    task = start(writer.asend("no"))
    await waits(writer)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not writer._watch.line and is_out_of(asyncio.get_running_loop(), writer.room_fileno())
    assert drain(reader) == []


# ---- Ends ----------------------------------------------------------------------------------------


def kill(peer):
    peer.process.kill()
    peer.process.join()


@pytest.mark.parametrize("beside", [False, True])
async def test_a_readers_death_ends_the_wait(loop, peer, beside):
    with ringcast.Writer(1 << 12) as writer:
        peer.call(attach, writer.handle, "the late one")
        # It lives, and is in the way too.
        reader = ringcast.Reader(writer.handle) if beside else None
        fill(writer)
        tasks = start(writer.asend(1), writer.asend(2))
        await waits(writer, 2)
        kill(peer)
        for task in tasks:
            with pytest.raises(ringcast.ReaderDied, match="the late one"):
                await task
        if reader:
            reader.close()


async def test_a_writer_that_evicts_goes_on(loop, peer):
    with ringcast.Writer(1 << 12, on_death="evict", on_slow="evict", slow=0.01) as writer:
        peer.call(attach, writer.handle, "the late one")
        fill(writer)
        kill(peer)
        await writer.asend(1)
        assert writer.check().name == "the late one"
        with ringcast.Reader(writer.handle) as slow:
            fill(writer)
            await writer.asend(2)
            assert writer.check().state == "evicted"
            with pytest.raises(ringcast.Evicted):
                while True:
                    slow.recv(0)


async def test_a_reader_that_is_too_slow_ends_the_wait(loop):
    with (
        ringcast.Writer(1 << 12, slow=0.02) as writer,
        ringcast.Reader(writer.handle, name="rank 1"),
    ):
        fill(writer)
        with pytest.raises(
            TimeoutError,
            match=r"rank 1.*longer than a reader may \(slow\); on_slow='evict' goes on",
        ):
            await writer.asend(1)
        assert is_out_of(asyncio.get_running_loop(), writer.room_fileno())


async def test_closing_and_cancelling_end_the_waits(loop, small):
    async def ended(writer, end, error):
        fill(writer)
        tasks = start(writer.asend(1), writer.asend(2))
        await waits(writer, 2)
        end()
        for task in tasks:
            with pytest.raises(error):
                await task
        assert not writer._watch or not writer._watch.registered

    def cancel():
        thread = threading.Thread(target=small[0].cancel)
        thread.start()
        thread.join()

    await ended(small[0], cancel, ringcast.Cancelled)
    with ringcast.Writer(1 << 12) as writer, ringcast.Reader(writer.handle):
        await ended(writer, writer.close, ValueError)


async def test_what_can_never_be_sent_is_refused_at_once(loop):
    class Own:
        pass

    with (
        ringcast.Writer(1 << 12, allow_pickle=False, spill_bytes=0) as writer,
        ringcast.Reader(writer.handle) as r,
    ):
        with pytest.raises(ringcast.PickleRefused):
            await writer.asend(re.compile("x"))
        with pytest.raises(ringcast.FrameTooLarge):
            await writer.asend(bytes(1 << 16))
        fill(writer)
        first = start(writer.asend("first"))
        await waits(writer)
        for value, error in (
            (re.compile("x"), ringcast.PickleRefused),
            (Own(), ringcast.PickleRefused),
        ):
            with pytest.raises(error):
                await writer.asend(value)
        too_large = start(writer.asend(bytes(1 << 16)))
        assert await drain_until(r, first) == ["first"]
        with pytest.raises(ringcast.FrameTooLarge) as raised:
            await too_large
        assert raised.value.errno == errno.EMSGSIZE


# ---- Loops come and go ---------------------------------------------------------------------------


def test_the_descriptor_serves_any_other_loop(loop, small):
    writer, reader = small
    with selectors.DefaultSelector() as selector:
        selector.register(writer.room_fileno(), selectors.EVENT_READ)
        assert selector.select(WATCHDOG)  # it starts readable
        fill(writer)
        drain(reader)
        assert selector.select(WATCHDOG)
        writer.send("again", 0)
    assert drain(reader) == ["again"]
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.room_fileno()
