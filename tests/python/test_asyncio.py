# SPDX-License-Identifier: Apache-2.0
"""
Sending and receiving in an event loop: whole, in order, once; nothing of who is cancelled; the others
get their turns; and nothing stays behind in a loop. (What ends a wait: test_waiting.py.)
"""

import asyncio
import contextlib
import ctypes
import errno
import gc
import os
import platform
import random
import re
import resource
import struct
import sys


import numpy as np
import pytest
from loops import LOOPS, is_let_go, is_out_of, new_loop, run, run_in, turns, waits
from peers import WATCHDOG, in_a_fork, make_writer
from receiving import Receiving

import ringcast
from ringcast._asyncio import Wake

pytestmark = pytest.mark.parametrize("loop", LOOPS)
either_side = pytest.mark.parametrize("side", ["reader", "writer"])


def fill(writer):
    with contextlib.suppress(TimeoutError):
        while True:
            writer.send_bytes(b"", 0)


def drain(reader):
    received = []
    with contextlib.suppress(TimeoutError):
        while True:
            received.append(reader.recv(0))
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


def begin(side, writer, reader, value=None):
    """A call that waits, what it waits on, and its descriptor."""
    if side == "reader":
        return reader.arecv(), reader, reader.fileno
    fill(writer)
    return writer.asend(value), writer, writer.room_fileno


async def serve(side, writer, reader, task, value):
    """What the other side has then received."""
    if side == "writer":
        return await drain_until(reader, task)
    writer.send(value)
    return [await task]


# ---- Turns ---------------------------------------------------------------------------------------

FRAMES = 10_000


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


@pytest.mark.parametrize("capacity", [1 << 12, 1 << 20])
def test_four_readers_get_all_of_a_writer_in_the_same_loop(loop, capacity):
    counted = [0]

    async def send_all(writer):
        for number in range(FRAMES):
            await writer.asend({"number": number, "data": np.full(number % 50, number)})
        writer.close()

    async def receive_all(reader):
        return [received async for received in reader]

    async def main():
        other = start(count_turns(counted))
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(ringcast.Writer(capacity))
            readers = [stack.enter_context(ringcast.Reader(writer.handle)) for _ in range(4)]
            *received, _ = await asyncio.gather(*map(receive_all, readers), send_all(writer))
        other.cancel()
        return received

    for received in run(loop, main()):
        assert [one["number"] for one in received] == list(range(FRAMES))
        assert all(
            one["data"].tolist() == [one["number"]] * (one["number"] % 50) for one in received
        )
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


def test_where_there_is_room_it_is_sent_at_once_and_others_run_now_and_then(loop):
    counted = [0]

    async def main():
        with ringcast.Writer(1 << 16) as writer, ringcast.Tap(writer.handle) as tap:
            assert awaited_at_once(writer.asend("at once", tag=9)) == (None, 0)
            assert tap.recv_tagged(0) == ("at once", 9)
            other = start(count_turns(counted))
            for number in range(1000):  # to nobody: there is always room
                await writer.asend(number)
            other.cancel()
            assert writer.stats().frames == 1001

    run(loop, main())
    assert counted[0] >= 1000 // 64


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
        task = start(receive(100))
        for number in range(100):
            await waits(reader)
            writer.send(number)
        assert await task == list(range(100))
        await is_let_go(reader)  # for whom nobody waits keeps no loop busy
        assert is_out_of(running, reader.fileno())
        for number in range(2):
            writer.send(number)
        assert [await reader.arecv() for _ in range(2)] == [0, 1]
        task = start(reader.arecv())
        await waits(reader)
        writer.send(3)
        assert await task == 3

    run(loop, main())
    assert len(added) == 2 * (loop == "asyncio")


async def test_calls_that_wait_for_room_are_served_in_their_order(loop, small):
    writer, reader = small
    fill(writer)
    tasks = start(*(writer.asend(number) for number in range(200)))
    await waits(writer, 200)
    assert await drain_until(reader, tasks[-1]) == list(range(200))
    await asyncio.gather(*tasks)
    await is_let_go(writer)
    assert is_out_of(asyncio.get_running_loop(), writer.room_fileno())
    fill(writer)
    first = start(writer.asend("first"))
    await waits(writer)
    drain(reader)  # there is room now, of which the first one does not know yet
    await asyncio.gather(first, start(writer.asend("second")))
    assert drain(reader) == ["first", "second"]


async def test_one_task_at_a_time_waits_for_a_frame(loop, ring):
    writer, reader = ring
    first = start(reader.arecv())
    await waits(reader)
    for second in (reader.arecv(), reader.arecv_tagged(0), reader.arecv(1)):
        with pytest.raises(RuntimeError, match="another task"):
            await second
    with pytest.raises(TimeoutError):
        reader.recv(0)  # a task that does not wait may look
    for number in range(2):
        writer.send(number)
    assert await first == 0 and await reader.arecv() == 1


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
    packed = start(writer.asend(ringcast.pack({"a": 1})))
    assert Counted.pickles == 2  # once in vain, once to keep
    value["list"].append(3)
    value["array"][:] = 0
    value["new"] = True
    for _ in range(5):  # woken for nothing
        asyncio.get_running_loop().call_soon(writer._watch.ready)
        await turns()
    received, late = await drain_until(reader, packed)
    assert Counted.pickles == 2 and task.done() and late == {"a": 1}
    assert received.pop("array").tolist() == [0, 1, 2, 3]
    assert received == {"list": [1, 2], "counted": "counted"}


async def test_what_can_never_be_sent_is_refused_at_once(loop):
    options = {"allow_pickle": False, "spill_bytes": 0}
    with ringcast.Writer(1 << 12, **options) as writer, ringcast.Reader(writer.handle) as reader:
        with pytest.raises(ringcast.FrameTooLarge):
            await writer.asend(bytes(1 << 16))
        for is_full in (False, True):
            with pytest.raises(ringcast.PickleRefused):
                await writer.asend(re.compile("x"))
            fill(writer)
            first = start(writer.asend("first"))
            await waits(writer)
            too_large = start(writer.asend(bytes(1 << 16)))
            assert await drain_until(reader, first) == ["first"]
            with pytest.raises(ringcast.FrameTooLarge) as raised:
                await too_large
            assert raised.value.errno == errno.EMSGSIZE


async def test_errors_of_a_frame_are_raised_and_the_next_one_is_received(loop, ring):
    writer, reader = ring
    task = start(reader.arecv())
    await waits(reader)
    writer.send_error("nothing to send")
    with pytest.raises(ringcast.SendError, match="nothing"):
        await task
    writer.send("next")
    assert await reader.arecv() == "next"


def test_arguments_are_looked_at_when_it_is_called(loop, small):
    writer, reader = small
    for wrong, error in (
        (lambda: writer.asend(), TypeError),
        (lambda: writer.asend(1, -1), ValueError),
        (lambda: writer.asend(1, "soon"), TypeError),
        (lambda: writer.asend(1, tag=1 << 32), ValueError),
        (lambda: writer.asend(1, 1, 2), TypeError),
        (lambda: writer.asend(1, hurry=True), TypeError),
        (lambda: reader.arecv(-1), ValueError),
        (lambda: reader.arecv(float("nan")), ValueError),
        (lambda: reader.arecv("1"), TypeError),
        (lambda: reader.arecv_tagged(1, 2), TypeError),
    ):
        with pytest.raises(error):
            wrong()


# ---- Timeouts, cancelling ------------------------------------------------------------------------


async def test_timeouts_say_why_and_leave_nothing_in_the_loop(loop, small):
    writer, reader = small
    running = asyncio.get_running_loop()
    for timeout in (0, 1e-9, 0.01):
        for wait in (reader.arecv, reader.arecv_tagged, reader.arecv_many):
            with pytest.raises(TimeoutError):
                await wait(timeout)
            assert is_out_of(running, reader.fileno())
    with pytest.raises(TimeoutError, match=rf"{os.getpid()}.*alive"):
        await reader.arecv(0.001)
    writer.send("late", tag=4)
    assert await reader.arecv_tagged(0) == ("late", 4)
    fill(writer)
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="'rank 1'" if timeout else None):
            await writer.asend("no", timeout)
        assert is_out_of(running, writer.room_fileno())
    first = start(writer.asend("first"))
    await waits(writer)
    for timeout in (0, 0.001):
        with pytest.raises(TimeoutError, match="came before"):
            await writer.asend("no", timeout)
    assert await drain_until(reader, first) == ["first"]


@pytest.mark.parametrize("moment", [None, 0, 1, 2, 3])
async def test_who_is_cancelled_has_lost_nothing_and_left_nothing(loop, ring, moment):
    """`moment`: so many turns after the frame was sent; None: before it is."""
    writer, reader = ring
    for number in range(50):
        task = start(reader.arecv())
        await waits(reader)
        if moment is not None:  # the descriptor is readable by now, or will be soon
            writer.send(number)
            await turns(moment)
        if not task.cancel():  # it has the frame
            assert await task == number
            continue
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_out_of(asyncio.get_running_loop(), reader.fileno())
        if moment is None:
            writer.send(number)
        assert await reader.arecv() == number


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
    assert is_out_of(asyncio.get_running_loop(), writer.room_fileno())
    assert drain(reader) == []


def send_numbered(state, count):
    state["writer"].wait_readers(1, WATCHDOG)
    for number in range(count):
        state["writer"].send({"number": number, "data": np.full(number % 50, number)}, WATCHDOG)
    state["writer"].close()


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
            task = start(reader.arecv())
            await turns(chance.randrange(4))
            return await task if task.done() or not task.cancel() else await task
        async with asyncio.timeout(moment(chance)):
            return await reader.arecv()

    async def main():
        chance, received = random.Random(7), []
        with ringcast.Reader(crew[0].call(make_writer, 1 << 12)) as reader:
            crew[0].start(send_numbered, 2000)
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


# ---- The handle ends -----------------------------------------------------------------------------


@either_side
@pytest.mark.parametrize(
    "end, error", [("close", ValueError), ("cancel", ringcast.Cancelled)], ids=["close", "cancel"]
)
async def test_closing_and_cancelling_end_the_waits(loop, small, side, end, error):
    writer, reader = small
    call, owner, fileno = begin(side, writer, reader)
    tasks = [start(call)] + ([start(writer.asend(2))] if side == "writer" else [])
    await waits(owner, len(tasks))
    fd = fileno()
    if end == "close":
        owner.close()
    else:
        Receiving(owner.cancel).finish()  # from any thread
    for task in tasks:
        with pytest.raises(error):
            await task
    assert is_out_of(asyncio.get_running_loop(), fd)
    with pytest.raises(error):
        await (reader.arecv() if side == "reader" else writer.asend(3))


async def test_one_that_is_evicted_while_it_waits_is_told(loop):
    with ringcast.Writer(1 << 12, on_slow="evict", slow=0.001) as writer:
        with ringcast.Reader(writer.handle, leases=4) as reader:
            writer.send_bytes(b"held")
            frame = reader.next()  # so it is in the way although it waits
            task = start(reader.arecv())
            await waits(reader)
            while writer.check() is None:
                writer.send_bytes(bytes(100), WATCHDOG)
            with pytest.raises(ringcast.Evicted):
                while True:  # what was sent meanwhile is there, and was not made sure of
                    reader.recv(0)
            with pytest.raises(ringcast.Evicted):
                await task
            with pytest.raises(ringcast.Evicted):
                frame.release()


@pytest.mark.parametrize("kind", ["reader", "writer"])
async def test_one_that_the_collector_finds_is_out_of_the_loop(loop, kind):
    """In a cycle, made after it: then the collector clears it before its last reference goes."""
    with contextlib.ExitStack() as stack:
        writer = ringcast.Writer(1 << 12)
        reader = ringcast.Reader(writer.handle)
        call, owner, fileno = begin(kind, writer, reader, 1)
        stack.enter_context(writer if kind == "reader" else reader)
        task = start(call)
        await waits(owner)
        await serve(kind, writer, reader, task, 1)
        await task
        fd, watch = fileno(), owner._watch
        if not watch.registered:
            watch.register()  # the loop was quick
        cycle = [owner]
        cycle.append(cycle)
        del owner, writer, reader, call, fileno, task, cycle
        gc.collect()
        assert watch.fd is None and is_out_of(asyncio.get_running_loop(), fd)


# ---- The descriptor is lost ----------------------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES, SECCOMP, BY_FILTER = 38, 22, 2
LOAD, IS, RETURN, REFUSED, ALLOWED = 0x20, 0x15, 0x06, 0x00050000, 0x7FFF0000
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
CLONE3, IO_URING_SETUP, IO_URING_ENTER = 435, 425, 426


def forbid(calls):
    """This thread must not make them any more: {number: errno}."""
    code = [(LOAD, 0, 0, 0)]
    for call, error in calls.items():
        code += [(IS, 0, 1, call), (RETURN, 0, 0, REFUSED | error)]
    code.append((RETURN, 0, 0, ALLOWED))
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    program = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(filters)))
    for arguments in ((NO_NEW_PRIVILEGES, 1, 0, 0, 0), (SECCOMP, BY_FILTER, program, 0, 0)):
        if LIBC.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def lose(call):
    """
    Calls it in a thread that has neither io_uring nor threads of its own, so that the descriptor is
    lost.
    """

    def act():
        refused = {IO_URING_SETUP: errno.EPERM, IO_URING_ENTER: errno.EPERM}
        forbid({**refused, CLONE3: errno.ENOSYS, CLONE: errno.EAGAIN})
        call()

    with pytest.raises(ringcast.Error) as raised:
        Receiving(act).finish()
    assert raised.value.errno == errno.ENOBUFS


@pytest.fixture
def waiting(ring):
    """A ring whose Reader has a descriptor that can be lost."""
    ring[1].fileno()
    folder = "/proc/self/fd"
    if not any("io_uring" in os.path.realpath(f"{folder}/{n}") for n in os.listdir(folder)):
        pytest.skip("the descriptor has a thread here, not io_uring: it can't be lost")
    if CLONE is None:
        pytest.skip(f"the number of clone() on {platform.machine()} is not known here")
    return ring


@pytest.mark.parametrize("call", ["recv", "next", "recv_tagged"])
async def test_a_task_that_waits_outlives_the_loss_of_the_descriptor(loop, waiting, call):
    writer, reader = waiting
    task = start(reader.arecv())
    await waits(reader)
    lose(lambda: getattr(reader, call)(0))
    await waits(reader)
    with pytest.raises(RuntimeError, match="another task"):
        await reader.arecv()
    writer.send(1)
    assert await task == 1


@pytest.mark.parametrize("call", ["send", "send_bytes", "reserve"])
async def test_so_do_those_that_wait_for_room_in_their_order(loop, waiting, call):
    writer, reader = waiting
    fill(writer)
    first = start(writer.asend("first"))
    await waits(writer)
    lose(lambda: getattr(writer, call)(1 if call == "reserve" else b"", 0))
    second = start(writer.asend("second"))
    await waits(writer, 2)
    assert await drain_until(reader, second) == ["first", "second"]
    await first


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


# ---- Loops, forks and threads come and go --------------------------------------------------------


@either_side
def test_one_goes_from_loop_to_loop(loop, small, side):
    first, second = new_loop(loop), new_loop("asyncio")

    async def wait_and_receive(number):
        call, owner, _ = begin(side, *small, number)
        task = start(call)
        await waits(owner)
        return await serve(side, *small, task, number)

    for number, each in enumerate([first, first, second, first, second]):
        assert run_in(each, wait_and_receive(number)) == [number]
    first.close()  # while one is registered there
    second.close()
    assert run(loop, wait_and_receive(6)) == [6]


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


@either_side
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_wait_that_was_given_up_with_its_loop_leaves_nothing(loop, side, caplog):
    def leave_behind():
        abandoned = new_loop(loop)
        writer = ringcast.Writer(1 << 12)
        reader = ringcast.Reader(writer.handle)
        call, owner, _ = begin(side, writer, reader)
        tasks = [abandoned.create_task(call)]
        if side == "writer":
            tasks.append(abandoned.create_task(writer.asend(2)))
        run_in(abandoned, waits(owner, len(tasks)))
        abandoned.close()
        if side == "writer":
            reader.close()

    leave_behind()
    gc.collect()  # the descriptors are gone then: the fixture of all tests looks
    assert "Task was destroyed" in caplog.text


# What a forked child does with its copy: closes it, or drops the wait, as the collector does.
@pytest.mark.parametrize("copy", ["handle", "wait"])
async def test_a_forked_child_takes_nothing_from_the_parents_wait(loop, ring, copy):
    writer, reader = ring
    task = start(reader.arecv())
    await waits(reader)
    in_a_fork(reader.close if copy == "handle" else task.get_coro().close)
    writer.send(1)
    assert await task == 1


async def test_who_is_woken_by_another_thread_just_when_it_begins_to_wait_is_woken(loop):
    class Late(Wake):
        __slots__ = ()

        def add_done_callback(self, callback, *, context=None):
            Receiving(self.wake_soon).finish()
            super().add_done_callback(callback, context=context)

    await Late(asyncio.get_running_loop())
