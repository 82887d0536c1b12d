# SPDX-License-Identifier: Apache-2.0
"""How long a call waits for a device: no longer than it may; and what is given back while a graph is captured."""

import asyncio
import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import threading

import device_peers as peers
import numpy as np
import pytest
from device_peers import Gate, calls, capture, on_device, opens_once_others_run, pair
from peers import WATCHDOG

import ringcast
from ringcast._ringcast import _tidy_readers

# ---- A device that is slow -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def held_up(state, count=None):
    """A ring whose frames a device has still to read: as many, or all that there is room for."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state, {"gpu_pool_bytes": 0})
    tensor = on_device(state, np.arange(25000.0))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        writer.send({"x": tensor}, WATCHDOG)
        reader.recv(WATCHDOG)
        side.synchronize()
        with pytest.raises(TimeoutError):
            reader.recv(0)  # gives that frame back
        gate.close_for(side)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while count is None or sent < count:
            writer.send({"x": tensor}, 0)
            sent += 1
    with torch.cuda.stream(side):
        kept = [reader.recv(0)["x"] for _ in range(sent)]
    try:
        yield writer, reader, gate, tensor
    finally:
        gate.open()
    gate.end()
    assert all((each.numpy() == np.arange(25000.0)).all() for each in kept)


def wait_in_vain(state):
    with held_up(state) as (_, reader, _, _):
        for timeout in (0, 1e-9, 0.01, 0.1):
            with pytest.raises(TimeoutError):
                reader.recv(timeout)
            with pytest.raises(TimeoutError):
                reader.next(timeout)


def test_a_call_waits_no_longer_for_a_device_than_it_may(alone):
    alone(wait_in_vain)


def receive_meanwhile(state):
    """Sent by another thread, which gets to run when this one has found nothing and waits."""
    with held_up(state, 3) as (writer, reader, _, _):

        class Sender:
            def open(self):
                writer.send("cpu", 0)

        with opens_once_others_run(Sender()):
            return reader.recv(WATCHDOG)


def test_what_comes_while_a_device_is_slow_is_received(alone):
    assert alone(receive_meanwhile) == "cpu"


def poll(state):
    with held_up(state) as (writer, reader, gate, tensor):
        fd = reader.fileno()
        for _ in range(3):  # nothing comes, and still it is to look again
            assert select.select([fd], [], [], WATCHDOG)[0]
            with pytest.raises(TimeoutError):
                reader.recv(0)
            with pytest.raises(TimeoutError):
                writer.send({"x": tensor}, 0)
        gate.open()
        sent = False
        while not sent:
            assert select.select([fd], [], [], WATCHDOG)[0]
            with pytest.raises(TimeoutError):
                reader.recv(0)
            with contextlib.suppress(TimeoutError):
                writer.send("small", 0)
                sent = True
        assert select.select([fd], [], [], WATCHDOG)[0] and reader.recv(0) == "small"
        with pytest.raises(TimeoutError):
            reader.recv(0)
        while select.select([fd], [], [], 0)[0]:  # it ends
            with pytest.raises(TimeoutError):
                reader.recv(0)


def test_who_polls_by_the_descriptor_looks_again_until_the_device_has_read_enough(alone):
    alone(poll)


def poll_beside_another_thread(state):
    with held_up(state) as (_, reader, gate, _), opens_once_others_run(gate):
        for _ in range(10000):
            with pytest.raises(TimeoutError):
                reader.recv(0)
            if gate.memory[0]:
                return True


def test_who_polls_lets_others_run(alone):
    assert alone(poll_beside_another_thread)


def wait_as_tasks(state):
    async def main(writer, reader, gate, tensor):
        with pytest.raises(TimeoutError):
            await reader.arecv(0.05)
        receiving = asyncio.ensure_future(reader.arecv(WATCHDOG))
        sending = asyncio.ensure_future(writer.asend(b"w" * 100000, WATCHDOG))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not receiving.done()
        gate.open()
        await sending
        return len(await receiving)

    with held_up(state) as ends:
        return asyncio.run(main(*ends))


def test_a_loop_goes_on_while_a_device_is_slow(alone):
    assert alone(wait_as_tasks) == 100000


# ---- Who sleeps elsewhere --------------------------------------------------------------------------------------------


def receive_and_wait(state, count):
    got = [state["reader"].recv(WATCHDOG)["x"] for _ in range(count)]
    state["torch"].cuda.synchronize()
    return [int(each.numpy()[0]) for each in got]


def test_a_reader_that_sleeps_elsewhere_leaves_the_writer_room(rings):
    """It has received all, the device has copied all, and it makes no other call."""
    writer, (reader,) = rings(1, {"gpu_pool_bytes": 0})
    for _ in range(3):
        for i in range(2):
            writer.call(peers.send, {"x": ("cuda", np.full(50000, float(i)))})
        assert reader.call(receive_and_wait, 2) == [0, 1]


def send_beside_idle_reader(state):
    """The Reader could give nothing back when it was called last, and nobody calls it any more."""
    with held_up(state) as (writer, _, gate, tensor):
        behind = _tidy_readers()
        with pytest.raises(TimeoutError):
            writer.send({"x": tensor}, 0.01)
        gate.open()
        for _ in range(2):
            writer.send({"x": tensor}, WATCHDOG)
        with writer.reserve(1000, WATCHDOG) as span:
            span.grow(200000, WATCHDOG)
        state["torch"].cuda.synchronize()
        return behind, _tidy_readers()


def test_who_waits_for_room_gives_back_what_idle_readers_of_the_process_hold(alone):
    assert alone(send_beside_idle_reader) == (True, False)


def tidy_in_a_child(state):
    """It has the Reader of its parent, whose device it can't use."""
    with held_up(state):
        pid = os.fork()
        if pid == 0:
            os._exit(_tidy_readers())
        return os.waitpid(pid, 0)[1], _tidy_readers()


def test_a_forked_child_leaves_its_parent_s_readers_alone(alone):
    assert alone(tidy_in_a_child) == (0, True)


# ---- Captures --------------------------------------------------------------------------------------------------------


def give_back_captured(state, how, pooled):
    """A Reader of one lease: what is not given back is in the way of the next frame."""
    torch = state["torch"]
    writer, reader = pair(state, {} if pooled else {"gpu_pool_bytes": 0})
    tensor, side = on_device(state, np.arange(1000.0)), torch.cuda.Stream()
    torch.cuda.synchronize()
    seen = []
    with torch.cuda.stream(side):
        writer.send({"x": tensor}, WATCHDOG)
        reader.recv(WATCHDOG)
    for i in range(3):
        with torch.cuda.stream(side):
            writer.send({"x": tensor}, WATCHDOG)
            got = how(reader, capture(torch, side))
            seen.append((got.numpy() == np.arange(1000.0)).all())
        writer.send(i, WATCHDOG)
        seen.append(reader.recv(WATCHDOG) == i)
    side.synchronize()
    return all(seen), writer.gpu.slots_used, writer.gpu.pool_frames


def by_release(reader, captured):
    frame = reader.next(WATCHDOG)
    got = frame["x"]
    with captured:
        frame.release()
        with pytest.raises(ringcast.Error, match="captures a CUDA graph"):
            reader.recv(0)
    return got


def by_dropping(reader, captured):
    frame = reader.next(WATCHDOG)
    got = frame["x"]
    with captured:
        del frame
        gc.collect()
    return got


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("how", [by_release, by_dropping])
def test_a_frame_that_is_released_in_a_capture_is_given_back_after_it(alone, how, pooled):
    assert alone(give_back_captured, how, pooled) == (True, 0, 3 if pooled else 0)


def receive_captured(state, pooled):
    torch = state["torch"]
    writer, reader = pair(state, {} if pooled else {"gpu_pool_bytes": 0})
    tensor, side, seen = on_device(state, np.arange(1000.0)), torch.cuda.Stream(), []
    torch.cuda.synchronize()
    writer.send({"x": tensor}, WATCHDOG)
    reader.recv(WATCHDOG)
    for i in range(3):
        writer.send({"x": tensor, "i": i}, WATCHDOG)
        with torch.cuda.stream(side):
            with capture(torch, side):
                for _ in range(2):
                    with pytest.raises(ringcast.Error, match="captures a CUDA graph"):
                        reader.recv(WATCHDOG)
            got = reader.recv(0)
            seen.append(got["i"] == i and (got["x"].numpy() == np.arange(1000.0)).all())
    side.synchronize()
    return all(seen), writer.gpu.slots_used, writer.gpu.pool_frames


@pytest.mark.parametrize("pooled", [False, True])
def test_a_frame_that_comes_in_a_capture_is_received_after_it(alone, pooled):
    assert alone(receive_captured, pooled) == (True, 0, 3 if pooled else 0)


def lend_after_capture(state, lend):
    """What recv() could not copy is lent by the next call, once: after it come the others."""
    torch, side = state["torch"], state["torch"].cuda.Stream()
    writer, reader = pair(state, leases=3)
    writer.send({"i": 0, "x": on_device(state, np.zeros(3))}, WATCHDOG)
    got = [reader.recv(WATCHDOG)["i"]]
    with torch.cuda.stream(side):
        for i in (1, 2, 3):
            writer.send({"i": i, "x": on_device(state, np.full(3, float(i)))}, WATCHDOG)
        side.synchronize()
        with capture(torch, side), pytest.raises(ringcast.Error, match="captures a CUDA graph"):
            reader.recv(WATCHDOG)
        for _ in range(2):
            with lend(reader, WATCHDOG) as lent:
                got.append(lent["i"])
        got.append(reader.recv(WATCHDOG)["i"])
    with pytest.raises(TimeoutError):
        reader.recv(0)
    side.synchronize()
    return got


@pytest.mark.parametrize("lend", [ringcast.Reader.next, ringcast.Reader.view])
def test_what_could_not_be_copied_in_a_capture_is_lent_once(alone, lend):
    assert alone(lend_after_capture, lend) == [0, 1, 2, 3]


def end_behind_sleeper(state):
    """A thread sleeps in recv() while that capture ends, and only the frame that it kept is in the writer's way."""
    torch = state["torch"]
    writer, reader = pair(state, {"gpu_pool_bytes": 0}, leases=2)
    tensor, side, received = on_device(state, np.arange(25000.0)), torch.cuda.Stream(), []
    torch.cuda.synchronize()
    begun, interval = threading.Lock(), sys.getswitchinterval()

    def sleep():
        begun.release()
        received.append(reader.recv(WATCHDOG))

    with torch.cuda.stream(side), capture_after(torch, side, reader, writer, tensor):
        with pytest.raises(TimeoutError):
            while True:
                writer.send(b"x" * 100000, 0)
                reader.recv(0)
        sleeper = threading.Thread(target=sleep)
        with begun:
            sys.setswitchinterval(WATCHDOG)  # it keeps the GIL until it waits
            sleeper.start()
            begun.acquire()
    sys.setswitchinterval(interval)
    writer.send(b"y" * 100000, WATCHDOG)
    sleeper.join()
    return received[0][:1]


@contextlib.contextmanager
def capture_after(torch, side, reader, writer, tensor):
    """A capture, in which a frame is released whose tensor was read before."""
    writer.send({"x": tensor}, WATCHDOG)
    frame = reader.next(WATCHDOG)
    kept = frame["x"]
    with capture(torch, side):
        frame.release()
        yield kept


def test_who_sleeps_gives_back_what_a_capture_kept(alone):
    assert alone(end_behind_sleeper) == b"y"


# ---- A writer that evicts: it would not wait for what a device has yet to read, so that is waited for ----------------


class Interrupts:
    """Ctrl-C, while a stream is asked whether it has come so far."""

    def open(self):
        (asked,) = calls("cuStreamQuery")
        while calls("cuStreamQuery")[0] < asked + 10:
            pass
        os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def evicting(state, **reader_options):
    """Such a writer, a gate, and a stream that is current."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state, {"gpu_pool_bytes": 0, "on_slow": "evict", "slow": 1e6}, **reader_options)
    writer.send({"x": on_device(state, np.arange(1000.0))}, WATCHDOG)
    with torch.cuda.stream(side):
        try:
            yield writer, reader, gate, side
        finally:
            gate.open()
            gate.end()


def owe_behind(state, leases):
    """Released in a capture; when that is over, the device is behind."""
    with evicting(state, leases=leases) as (writer, reader, gate, side):
        frame = reader.next(WATCHDOG)
        gate.close_for(side)
        kept = frame["x"]
        with capture(state["torch"], side):
            frame.release()
        waits = reader.gpu.syncs
        with pytest.raises(TimeoutError):
            reader.recv(0)
        assert reader.gpu.syncs == waits
        with pytest.raises(TimeoutError):
            reader.recv(0.01)
        with opens_once_others_run(Interrupts()), pytest.raises(KeyboardInterrupt):
            reader.recv(WATCHDOG)
        if leases > 1:
            writer.send("beside it", 0)
            assert reader.recv(0) == "beside it"
        writer.send("after it", 0)
        with opens_once_others_run(gate):
            got = reader.recv(WATCHDOG)
        side.synchronize()
        return got, (kept.numpy() == np.arange(1000.0)).all()


@pytest.mark.parametrize("leases", [1, 2])
def test_what_is_owed_holds_up_no_longer_than_may_be(alone, leases):
    assert alone(owe_behind, leases) == ("after it", True)


class Held:
    """A call of the driver's that another thread of the program holds up."""

    def __init__(self, name, nth):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.fake_cuda_hold(name, ctypes.c_long(nth))

    def open(self):
        self.driver.fake_cuda_hold(None, ctypes.c_long(0))


def owe_beside_others(state, name, nth):
    with evicting(state) as (writer, reader, gate, side):
        frame = reader.next(WATCHDOG)
        gate.close_for(side)
        assert frame["x"].shape == (1000,)
        with capture(state["torch"], side):
            frame.release()
        with opens_once_others_run(Held(name, nth)), pytest.raises(TimeoutError):
            reader.recv(0)
        gate.open()
        writer.send("after it", WATCHDOG)
        return reader.recv(WATCHDOG)


@pytest.mark.parametrize(("name", "nth"), [(b"cuStreamIsCapturing", 1), (b"cuStreamQuery", 2), (b"cuStreamQuery", 3)])
def test_others_run_while_the_driver_holds_up_what_is_owed(alone, name, nth):
    assert alone(owe_beside_others, name, nth) == "after it"


def interrupt_release(state):
    with evicting(state) as (writer, reader, gate, side):
        gate.close_for(side)
        with opens_once_others_run(Interrupts()), pytest.raises(KeyboardInterrupt):
            reader.recv(WATCHDOG)
        gate.open()
        writer.send("after it", WATCHDOG)
        return reader.recv(WATCHDOG)


def test_ctrl_c_ends_the_wait_for_a_device(alone):
    assert alone(interrupt_release) == "after it"
