# SPDX-License-Identifier: Apache-2.0
"""What a Reader has kept outlives it, the writer, a fork and other threads' garbage, and holds back
nobody who waits.

All results are the same where nothing can be kept, as with RINGCAST_DISABLE=retain."""

import asyncio
import contextlib
import gc
import os
import queue
import signal
import subprocess
import sys
import threading

import loops
import pytest
from conftest import ring_mappings
from keeping import KEEPS, MIB, is_free, is_kept, is_some, keeping, some, tensor
from needs import needs_torch, torch
from peers import WATCHDOG, forked
from receiving import Receiving

import ringcast

# ---- Whoever waits is not held back --------------------------------------------------------------

ROOM_MIB = 16
# No two of them have room. Those of 3 MiB are kept, and wait for nothing but a call of the
# reader's.
SIZES = (3, 14, 3, 14, 3, 14)


def keep_one(writer, reader):
    writer.send(some(0, 3), 0)
    got = reader.recv(0)
    assert is_kept(got) == KEEPS
    return got


def send_others(writer):
    for number, mib in enumerate(SIZES[1:], 1):
        writer.send(some(number, mib), WATCHDOG)


def are_right(held):
    return len(held) == len(SIZES) and all(
        is_some(held[number], number, mib) for number, mib in enumerate(SIZES)
    )


@contextlib.contextmanager
def once_it_waits(handle):
    with ringcast.Tap(handle) as tap:
        before = tap.peers()[0].stats.waits
        yield
        while tap.peers()[0].stats.waits == before:
            pass


@pytest.mark.parametrize(
    "receive",
    [
        lambda reader: reader.recv(WATCHDOG),
        lambda reader: reader.recv_tagged(WATCHDOG)[0],
        next,
        lambda reader: ringcast.unpack(reader.next(WATCHDOG)),
    ],
    ids=["recv", "recv_tagged", "iteration", "next"],
)
@pytest.mark.parametrize("spin", [0, None])
def test_a_reader_that_waits_gives_the_writer_room(receive, spin):
    with keeping(ROOM_MIB, spin=spin) as (writer, reader):
        held = [keep_one(writer, reader)]
        with once_it_waits(writer.handle):
            receiving = Receiving(lambda: [held.append(receive(reader)) for _ in SIZES[1:]])
        send_others(writer)
        receiving.finish()
        assert are_right(held)


@pytest.mark.parametrize("kind", loops.LOOPS)
def test_a_task_that_waits_gives_the_writer_room(kind):
    with keeping(ROOM_MIB) as (writer, reader):
        held = [keep_one(writer, reader)]

        async def receive():
            for _ in SIZES[1:]:
                held.append(await reader.arecv())

        async def both():
            task = asyncio.ensure_future(receive())
            await loops.waits(reader)
            sending = Receiving(lambda: send_others(writer))  # not by a task of this loop
            await task
            sending.finish()

        loops.run(kind, both())
        assert are_right(held)


# ---- It outlives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["reader", "writer"])
def test_it_outlives_both_ends(first):
    with contextlib.ExitStack() as stack:
        writer, reader = stack.enter_context(keeping())
        held = []
        for number in range(1, 4):
            writer.send(some(number), 0)
            held.append(reader.recv(0))
        for end in (reader, writer) if first == "reader" else (writer, reader):
            end.close()
            assert all(is_some(got, number) for number, got in enumerate(held, 1))
    del end, reader, writer
    gc.collect()
    assert all(map(is_kept, held)) == KEEPS
    held[0][:] = 7
    assert is_some(held[1], 2) and (held[0] == 7).all()
    assert bool(ring_mappings()) == KEEPS
    held.clear()
    assert not ring_mappings()


def make_sender(state):
    state["writer"] = ringcast.Writer(1 << 16, spill_bytes=64 * MIB)
    return state["writer"].handle


def send_some(state, numbers):
    for number in numbers:
        state["writer"].send({"x": some(number)}, 0)


def test_it_outlives_a_writer_that_is_killed(peer):
    with ringcast.Reader(peer.call(make_sender), retain=True) as reader:
        peer.call(send_some, range(4))
        held = [reader.recv(0)["x"] for _ in range(4)]
        os.kill(peer.pid, signal.SIGKILL)
        with pytest.raises(ringcast.WriterGone):
            reader.recv(WATCHDOG)
        assert [is_kept(got) for got in held] == [False] + [KEEPS] * 3
        assert all(is_some(got, number) for number, got in enumerate(held))
    held[2][5] = 1
    assert is_some(held[1], 1) and int(held[2][5]) == 1 and is_some(held[3], 3)


def test_a_reader_is_closed_for_all_as_soon_as_it_closes():
    with keeping(512) as (writer, reader):
        held = []
        for number in range(16):
            writer.send(some(number, 4), 0)
            held.append(reader.recv(0))
        started = threading.Event()

        def cancel():
            started.set()
            while True:
                reader.cancel()

        thread = Receiving(cancel)  # which ends by the ValueError
        started.wait(WATCHDOG)
        reader.close()  # which copies all that is kept, while others run
        with pytest.raises(ValueError, match="closed"):
            thread.finish()
        assert all(is_some(got, number, 4) for number, got in enumerate(held))


LIVES_ON = """
import atexit, sys
import numpy as np, ringcast
class Late:
    def __del__(self): self.array = None
with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle, retain=RETAIN) as reader:
    for value in VALUES:
        writer.send(value)
        sys.late = late = Late()
        late.array = reader.recv()
        sys.modules["late" + str(id(late))] = late
        atexit.register(lambda late=late: late.array)
print("done")
"""


@pytest.mark.parametrize("retain", [True, False])  # else its memory is of what was received earlier
@pytest.mark.parametrize("module", ["numpy", pytest.param("torch", marks=needs_torch)])
def test_what_outlives_the_module_does_no_harm(module, retain):
    made = "[MODULE.zeros(1 << 18), {'a': MODULE.zeros(1 << 19)}, [MODULE.ones(1 << 18)], MODULE.ones(1 << 19)]"
    code = "import MODULE" + LIVES_ON.replace("VALUES", made)
    code = code.replace("MODULE", module).replace("RETAIN", str(retain))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WATCHDOG, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# ---- Threads -------------------------------------------------------------------------------------


def test_it_may_be_dropped_in_any_thread():
    held, wrong = queue.SimpleQueue(), []

    def drop():
        for number, got in iter(held.get, None):
            if not is_some(got, number):
                wrong.append(number)
            got[:9] = 7
            del got

    threads = [threading.Thread(target=drop) for _ in range(3)]
    with keeping(16) as (writer, reader):
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 250):
                writer.send((tensor if torch and number % 2 else some)(number), WATCHDOG)
                held.put((number, reader.recv(WATCHDOG)))
        finally:
            for _ in threads:
                held.put(None)
            for thread in threads:
                thread.join()
        assert wrong == [] and is_free(reader)


# ---- Forks ---------------------------------------------------------------------------------------


def test_parent_and_child_of_a_fork_have_values_of_their_own():
    with keeping() as (writer, reader):
        held = {}
        for number in range(1, 5):
            writer.send(some(number), 0)
            held[number] = reader.recv(0)
        held[2][0] = 99
        assert all(map(is_kept, held.values())) == KEEPS

        def child():
            """The parent has overwritten all, and its memory is others' by now."""
            same = [is_some(held[number], number) for number in (1, 3, 4)] + [int(held[2][0])]
            held[3][:] = 5
            del held[1]
            gc.collect()
            reader.close()
            writer.close()
            same += [int(held[3].max()), is_some(held[4], 4)]
            held.clear()
            return same, ring_mappings()

        with forked(child) as answers:
            held[4][:] = 17
            gone = [held.pop(number) for number in (1, 3)]
            del gone
            for number in range(5, 60):
                writer.send(some(number), 0)
                assert is_some(reader.recv(0), number)
        assert answers == [([True, True, True, 99, 5, True], [])]
        assert (
            (held[4] == 17).all() and int(held[2][0]) == 99 and (held[2][1:] == some(2)[1:]).all()
        )


# ---- Beside the other calls ----------------------------------------------------------------------


def test_frames_and_views_are_as_without():
    with keeping() as (writer, reader):
        writer.send(some(1), 0)
        kept = reader.recv(0)
        for number in range(2, 5):  # so far it need not be copied after all
            writer.send({"x": some(number)}, 0)
            writer.send({"x": some(-number)}, 0)
            with reader.view(0) as one:  # what is kept is no lease
                assert (
                    is_some(one["x"], number)
                    and not is_kept(one["x"])
                    and not one["x"].flags.writeable
                )
                with pytest.raises(ringcast.Error, match="1 frame is held"):
                    reader.next(0)
                del one
            with reader.next(0) as frame:
                got = frame["x"]
            assert is_some(got, -number) and not is_kept(got) and is_some(kept, 1)
        writer.send(some(9), 0)
        again = reader.recv(0)
        assert is_kept(again) == KEEPS and is_some(again, 9) and is_some(kept, 1)
