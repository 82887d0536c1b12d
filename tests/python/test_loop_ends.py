# SPDX-License-Identifier: Apache-2.0
"""
Waits in an event loop whose descriptor is lost, whose owner goes to another loop or is collected,
and of which a fork has a copy.
"""

import asyncio
import ctypes
import errno
import gc
import os
import platform
import struct
import threading

import pytest
from loops import LOOPS, is_out_of, new_loop, run, run_in, waits
from peers import in_a_fork
from test_asend import drain_until, fill, start

import ringcast
from ringcast._asyncio import Wake

pytestmark = pytest.mark.parametrize("loop", LOOPS)

# ---- The descriptor is lost ----------------------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES, SECCOMP, BY_FILTER = 38, 22, 2
LOAD, IS, RETURN, REFUSED, ALLOWED = 0x20, 0x15, 0x06, 0x00050000, 0x7FFF0000
CLONE = {"x86_64": 56, "aarch64": 220}
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
    outcome = []

    def act():
        forbid(
            {
                IO_URING_SETUP: errno.EPERM,
                IO_URING_ENTER: errno.EPERM,
                CLONE3: errno.ENOSYS,
                CLONE[platform.machine()]: errno.EAGAIN,
            }
        )
        try:
            call()
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert isinstance(outcome[0], ringcast.Error) and outcome[0].errno == errno.ENOBUFS, outcome
    assert "can't wait any more" in str(outcome[0])


def has_uring():
    def target(number):
        try:
            return os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            return ""

    return any("io_uring" in target(number) for number in os.listdir("/proc/self/fd"))


@pytest.fixture
def waiting(ring):
    """A ring whose Reader has a descriptor that can be lost."""
    ring[1].fileno()
    if not has_uring():
        pytest.skip("the descriptor has a thread here, not io_uring: it can't be lost")
    if platform.machine() not in CLONE:
        pytest.skip(f"the number of clone() on {platform.machine()} is not known here")
    return ring


@pytest.mark.parametrize("call", ["recv", "next", "recv_tagged"])
async def test_a_task_that_waits_outlives_the_loss_of_the_descriptor(loop, waiting, call):
    writer, reader = waiting
    task = asyncio.ensure_future(reader.arecv())
    await waits(reader)
    lose(lambda: getattr(reader, call)(0))
    await waits(reader)
    with pytest.raises(RuntimeError, match="another task waits"):
        await reader.arecv()
    writer.send(1)
    assert await task == 1


@pytest.mark.parametrize("call", ["send", "send_bytes", "reserve"])
async def test_so_do_those_that_wait_for_room_in_their_order(loop, waiting, call):
    writer, reader = waiting
    calls = {
        "send": lambda: writer.send(0, 0),
        "send_bytes": lambda: writer.send_bytes(b"", 0),
        "reserve": lambda: writer.reserve(1, 0),
    }
    fill(writer)
    first = start(writer.asend("first"))
    await waits(writer)
    lose(calls[call])
    second = start(writer.asend("second"))
    await waits(writer, 2)
    assert await drain_until(reader, second) == ["first", "second"]
    await first


# ---- Loops come and go ---------------------------------------------------------------------------

either_side = pytest.mark.parametrize("side", ["reader", "writer"])


def begin(side, writer, reader, value):
    """A call that waits, and what it waits on."""
    if side == "reader":
        return reader.arecv(), reader
    fill(writer)
    return writer.asend(value), writer


@either_side
def test_one_goes_from_loop_to_loop(loop, side):
    first, second = new_loop(loop), new_loop("asyncio")

    async def wait_and_receive(number):
        call, owner = begin(side, writer, reader, number)
        task = start(call)
        await waits(owner)
        if side == "writer":
            return await drain_until(reader, task)
        writer.send(number)
        return [await task]

    with ringcast.Writer(1 << 12) as writer, ringcast.Reader(writer.handle) as reader:
        for number, each in enumerate([first, first, second, first, second]):
            assert run_in(each, wait_and_receive(number)) == [number]
        first.close()  # while one is registered there
        second.close()
        assert run(loop, wait_and_receive(6)) == [6]


@either_side
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_wait_that_was_given_up_with_its_loop_leaves_nothing(loop, side, caplog):
    def leave_behind():
        abandoned = new_loop(loop)
        writer = ringcast.Writer(1 << 12)
        reader = ringcast.Reader(writer.handle)
        tasks, owner = [], None
        for number in range(1 if side == "reader" else 2):
            call, owner = begin(side, writer, reader, number)
            tasks.append(abandoned.create_task(call))
        run_in(abandoned, waits(owner, len(tasks)))
        abandoned.close()
        if side == "writer":
            reader.close()

    leave_behind()
    gc.collect()  # the descriptors are gone then: the fixture of all tests looks
    assert "Task was destroyed" in caplog.text


# ---- The owner is collected ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Reader", "Writer"])
async def test_one_that_the_collector_finds_is_out_of_the_loop(loop, kind):
    """In a cycle, made after it: then the collector clears it before its last reference goes."""
    with ringcast.Writer(1 << 12) as other:
        one = ringcast.Reader(other.handle) if kind == "Reader" else ringcast.Writer(1 << 12)
        reader = None if kind == "Reader" else ringcast.Reader(one.handle)
        if reader:
            fill(one)
        task = start(one.asend(1) if reader else one.arecv())
        await waits(one)
        if reader:
            await drain_until(reader, task)
        else:
            other.send(1)
        await task
        fd, watch = one.room_fileno() if reader else one.fileno(), one._watch
        if not watch.registered:
            watch.register()  # the loop was quick
        cycle = [one]
        cycle.append(cycle)
        del one, task, cycle
        gc.collect()
        assert watch.fd is None and not watch.registered
        assert is_out_of(asyncio.get_running_loop(), fd)
        if reader:
            reader.close()


# ---- A fork has a copy ---------------------------------------------------------------------------


async def test_a_forked_child_that_drops_its_copy_of_a_wait_takes_nothing_from_the_parent(
    loop, ring
):
    writer, reader = ring
    task = asyncio.ensure_future(reader.arecv())
    await waits(reader)
    in_a_fork(task.get_coro().close)  # as the collector does, and the end of the interpreter
    writer.send(1)
    assert await task == 1


# ---- Another thread ------------------------------------------------------------------------------


async def test_who_is_woken_by_another_thread_just_when_it_begins_to_wait_is_woken(loop):
    class Late(Wake):
        __slots__ = ()

        def add_done_callback(self, callback, *, context=None):
            thread = threading.Thread(target=self.wake_soon)
            thread.start()
            thread.join()
            super().add_done_callback(callback, context=context)

    await Late(asyncio.get_running_loop())
