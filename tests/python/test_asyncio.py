# SPDX-License-Identifier: Apache-2.0
"""Receiving in an event loop: whole, in order, once, whoever is cancelled; and the others get their
turns."""

import asyncio
import contextlib
import errno
import os
import random
import resource
import sys
import threading

import numpy as np
import pytest
from loops import LOOPS, is_let_go, is_out_of, new_loop, run, run_in, turns, waits
from peers import WATCHDOG, in_a_fork, make_writer

import ringcast

pytestmark = pytest.mark.parametrize("loop", LOOPS)


async def receive_all(reader):
    return [received async for received in reader]


async def count_turns(counted):
    while True:
        counted[0] += 1
        await asyncio.sleep(0)


def awaited_at_once(coroutine):
    """What a coroutine gives that does not wait; how often it lets others run."""
    passed = 0
    while True:
        try:
            assert coroutine.send(None) is None
        except StopIteration as stop:
            return stop.value, passed
        passed += 1


# ---- Many frames ---------------------------------------------------------------------------------

FRAMES = 10_000


def send_numbered(state, count, readers):
    state["writer"].wait_readers(readers, WATCHDOG)
    for number in range(count):
        state["writer"].send({"number": number, "data": np.full(number % 50, number)}, WATCHDOG)
    state["writer"].close()


def are_numbered(received):
    return [one["number"] for one in received] == list(range(FRAMES)) and all(
        len(one["data"]) == one["number"] % 50 and (one["data"] == one["number"]).all()
        for one in received
    )


@pytest.mark.parametrize("capacity", [1 << 12, 1 << 20])
def test_four_readers_get_all_of_a_writer_in_the_same_loop(loop, capacity):
    counted = [0]

    async def send_all(writer):
        for number in range(FRAMES):
            await writer.asend({"number": number, "data": np.full(number % 50, number)})
        writer.close()

    async def main():
        other = asyncio.ensure_future(count_turns(counted))
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(ringcast.Writer(capacity))
            readers = [stack.enter_context(ringcast.Reader(writer.handle)) for _ in range(4)]
            *received, _ = await asyncio.gather(*map(receive_all, readers), send_all(writer))
        other.cancel()
        return received

    assert all(map(are_numbered, run(loop, main())))
    assert counted[0] >= FRAMES // 100


def test_what_is_there_is_had_at_once_and_others_run_now_and_then(loop, ring):
    writer, reader = ring
    passed, most, in_a_row = 0, 0, 0
    for number in range(300):
        writer.send(number, tag=number)
        received, times = awaited_at_once(reader.arecv_tagged() if number % 2 else reader.arecv())
        assert received == ((number, number) if number % 2 else number)
        passed += times
        in_a_row = 0 if times else in_a_row + 1
        most = max(most, in_a_row)
    assert passed == 300 // 64 and most == 64
    for _ in range(5):  # large ones take more time each
        writer.send(np.zeros(1 << 18, np.uint8))
        passed += awaited_at_once(reader.arecv())[1]
    assert passed >= 300 // 64 + 1
    assert reader._watch is None  # no descriptor was needed


# ---- Waiting -------------------------------------------------------------------------------------


def test_a_task_that_waits_is_woken_and_its_registration_stays(loop, ring):
    writer, reader = ring
    added = []

    async def receive(count):
        return [await reader.arecv() for _ in range(count)]

    async def main():
        running = asyncio.get_running_loop()
        if loop == "asyncio":
            add = running.add_reader
            running.add_reader = lambda *args: added.append(args) or add(*args)
        task = asyncio.ensure_future(receive(100))
        for number in range(100):
            await waits(reader)
            writer.send(number)
        assert await task == list(range(100))
        await is_let_go(reader)
        assert is_out_of(running, reader.fileno())
        writer.send("later")
        assert await reader.arecv() == "later"

    run(loop, main())
    assert len(added) == (loop == "asyncio")


async def test_a_descriptor_for_which_nobody_waits_does_not_keep_the_loop_busy(loop, ring):
    writer, reader = ring
    task = asyncio.ensure_future(reader.arecv())
    await waits(reader)
    writer.send(1)
    writer.send(2)
    assert await task == 1
    await is_let_go(reader)
    assert await reader.arecv() == 2
    task = asyncio.ensure_future(reader.arecv())
    await waits(reader)
    writer.send(3)
    assert await task == 3


async def test_timeouts_say_why_and_leave_nothing_in_the_loop(loop, ring):
    writer, reader = ring
    for timeout in (0, 1e-9, 0.01):
        with pytest.raises(TimeoutError, match="frame"):
            await reader.arecv(timeout)
        with pytest.raises(TimeoutError):
            await reader.arecv_tagged(timeout=timeout)
        assert is_out_of(asyncio.get_running_loop(), reader.fileno())
    with pytest.raises(TimeoutError, match=rf"pid {os.getpid()}.*alive"):
        await reader.arecv(0.001)
    writer.send("late", tag=4)
    assert await reader.arecv_tagged(0) == ("late", 4)
    for bad, error in ((-1, ValueError), (float("nan"), ValueError), ("1", TypeError)):
        with pytest.raises(error, match="timeout"):
            reader.arecv(bad)
    with pytest.raises(TypeError, match="arecv_tagged"):
        reader.arecv_tagged(1, 2)


# ---- Cancelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [None, 0, 1, 2, 3])
async def test_who_is_cancelled_has_lost_nothing_and_left_nothing(loop, ring, moment):
    """`moment`: so many turns after the frame was sent; None: before it is."""
    writer, reader = ring
    for number in range(50):
        task = asyncio.ensure_future(reader.arecv())
        await waits(reader)
        if moment is not None:  # the descriptor is readable by now, or will be soon
            writer.send(number)
            await turns(moment)
        if not task.cancel():  # it has the frame
            assert await task == number
            continue
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not reader._watch.registered and not reader._watch.line
        assert is_out_of(asyncio.get_running_loop(), reader.fileno())
        if moment is None:
            writer.send(number)
        assert await reader.arecv() == number


def test_whoever_bounds_the_wait_gets_every_frame_once(loop, crew):
    def moment(chance):
        return chance.choice([0, 1e-6, 1e-5, 1e-4, 1e-3])

    async def bounded(reader, chance):
        way = chance.randrange(4 if sys.version_info >= (3, 11) else 3)
        if way == 0:
            return await reader.arecv(moment(chance))
        if way == 1:
            return await asyncio.wait_for(reader.arecv(), moment(chance))
        if way == 2:
            task = asyncio.ensure_future(reader.arecv())
            await turns(chance.randrange(4))
            return await task if task.done() or not task.cancel() else await task
        async with asyncio.timeout(moment(chance)):
            return await reader.arecv()

    async def main():
        chance, received = random.Random(7), []
        handle = crew[0].call(make_writer, 1 << 12)
        with ringcast.Reader(handle) as reader:
            crew[0].start(send_numbered, 2000, 1)
            while True:
                try:
                    received.append((await bounded(reader, chance))["number"])
                except (TimeoutError, asyncio.TimeoutError):
                    continue
                except asyncio.CancelledError:
                    if asyncio.current_task().done():
                        raise
                except ringcast.WriterGone:
                    return received

    assert run(loop, main()) == list(range(2000))
    crew[0].finish()


async def test_one_task_at_a_time_waits(loop, ring):
    writer, reader = ring
    first = asyncio.ensure_future(reader.arecv())
    await waits(reader)
    for second in (reader.arecv(), reader.arecv_tagged(0), reader.arecv(1)):
        with pytest.raises(RuntimeError, match="another task waits on this Reader"):
            await second
    with pytest.raises(TimeoutError):
        reader.recv(0)  # as it was: a task that does not wait may look
    writer.send(1)
    assert await first == 1
    writer.send(2)
    assert await reader.arecv() == 2


# ---- Ends ----------------------------------------------------------------------------------------


def end_of_wait(loop, reader, end):
    """What a task that waits gets when `end` is called."""

    async def main():
        task = asyncio.ensure_future(reader.arecv())
        await waits(reader)
        fd = reader.fileno()
        end()
        try:
            return await task
        finally:
            assert is_out_of(asyncio.get_running_loop(), fd)

    return run(loop, main())


def test_closing_the_reader_ends_the_wait(loop, ring):
    with pytest.raises(ValueError, match="closed"):
        end_of_wait(loop, ring[1], ring[1].close)
    with pytest.raises(ValueError, match="closed"):
        run(loop, ring[1].arecv())


def test_cancelling_it_ends_the_wait_from_any_thread(loop, ring):
    def cancel():
        thread = threading.Thread(target=ring[1].cancel)
        thread.start()
        thread.join()

    with pytest.raises(ringcast.Cancelled):
        end_of_wait(loop, ring[1], cancel)
    with pytest.raises(ringcast.Cancelled):
        run(loop, ring[1].arecv())


def test_the_end_of_the_writer_ends_the_wait(loop, ring):
    with pytest.raises(ringcast.WriterGone):
        end_of_wait(loop, ring[1], ring[0].close)
    assert run(loop, receive_all(ring[1])) == []


def test_so_does_its_death(loop, peer):
    def kill():
        peer.process.kill()
        peer.process.join()

    with (
        ringcast.Reader(peer.call(make_writer, 1 << 16)) as reader,
        pytest.raises(ringcast.WriterGone),
    ):
        end_of_wait(loop, reader, kill)


def test_one_that_is_evicted_while_it_waits_is_told(loop):
    with ringcast.Writer(1 << 12, on_slow="evict", slow=0.001) as writer:
        with ringcast.Reader(writer.handle, leases=4) as reader:
            writer.send_bytes(b"held")
            frame = reader.next()  # so it is in the way although it waits

            def fill():
                while writer.check() is None:
                    writer.send_bytes(bytes(100), WATCHDOG)
                while True:  # what was sent meanwhile is there, and was not made sure of
                    try:
                        reader.recv(0)
                    except ringcast.Evicted:
                        return

            with pytest.raises(ringcast.Evicted):
                end_of_wait(loop, reader, fill)
            with pytest.raises(ringcast.Evicted):
                frame.release()


async def test_errors_of_a_frame_are_raised_and_the_next_one_is_received(loop, ring):
    writer, reader = ring
    task = asyncio.ensure_future(reader.arecv())
    await waits(reader)
    writer.send_error("nothing to send")
    with pytest.raises(ringcast.SendError, match="nothing to send"):
        await task
    writer.send("next")
    assert await reader.arecv() == "next"


# ---- Loops come and go ---------------------------------------------------------------------------


def test_one_that_waits_in_another_loop_is_refused(loop, ring):
    writer, reader = ring
    first = new_loop(loop)
    task = first.create_task(reader.arecv())
    run_in(first, waits(reader))
    with pytest.raises(RuntimeError, match="another event loop"):
        run(loop, reader.arecv())
    writer.send(1)
    assert run_in(first, task) == 1
    first.close()


async def test_a_forked_child_that_closes_its_copy_takes_nothing_from_the_parent(loop, ring):
    writer, reader = ring
    task = asyncio.ensure_future(reader.arecv())
    await waits(reader)
    in_a_fork(reader.close)
    writer.send(1)
    assert await task == 1


async def test_one_whose_descriptor_was_lost_gets_another(loop, ring):
    """As after ENOBUFS: neither io_uring nor a thread is to be had any more."""
    writer, reader = ring
    task = asyncio.ensure_future(reader.arecv())
    await waits(reader)
    reader._watch.close()
    await waits(reader)
    writer.send(1)
    assert await task == 1


async def test_a_wait_that_finds_no_descriptor_is_told(loop, ring):
    writer, reader = ring
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        with pytest.raises(ringcast.Error) as raised:
            await reader.arecv()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised.value.errno == errno.EMFILE
    writer.send(1)
    assert await reader.arecv(WATCHDOG) == 1
