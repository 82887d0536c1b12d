# SPDX-License-Identifier: Apache-2.0
"""How long a call waits for a device: no longer than it may; and what is given back while a graph is captured."""

import contextlib
import ctypes
import errno
import gc
import os
import signal
import sys
import threading

import numpy as np
import pytest
from device_peers import Gate, Other, calls, capture, failing, on_device, opens_once_others_run, pair
from peers import WATCHDOG

import ringcast

# ---- A device that is slow, and tensors that come through the ring ---------------------------------------------------

CHUNKS = 16  # of a Reader's pinned buffer: as many frames are copied without a wait


class Interrupts:
    """Ctrl-C, while the driver is asked whether a stream has come so far."""

    def __init__(self, function):
        self.function = function

    def open(self):
        (asked,) = calls(self.function)
        while calls(self.function)[0] < asked + 10:
            pass
        os.kill(os.getpid(), signal.SIGINT)


def tensors_for_slow_device(state, interrupted):
    """The ring has room for two of the frames, and each is given back before the device has come to it."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state, {"gpu_pool_bytes": 0})
    sent = [on_device(state, np.full(25000, float(i))) for i in range(CHUNKS + 1)]
    got = []
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        gate.close_for(side)
    for i in range(CHUNKS):
        writer.send({"x": sent[i]}, WATCHDOG)
        with torch.cuda.stream(side):
            got.append(reader.recv(0)["x"])
    assert reader.gpu.syncs == 0 and reader.gpu.registered
    if interrupted:
        writer.send({"x": sent[CHUNKS]}, WATCHDOG)
        with torch.cuda.stream(side):
            with opens_once_others_run(Interrupts("cuEventQuery")), pytest.raises(KeyboardInterrupt):
                getattr(reader, interrupted)(WATCHDOG)
            with opens_once_others_run(gate):
                got.append(reader.recv(WATCHDOG)["x"])
    gate.open()
    gate.end()
    return [int(each.numpy()[0]) for each in got] == list(range(len(got)))


def test_a_frame_is_given_back_before_the_device_has_come_to_its_copy(alone):
    assert alone(tensors_for_slow_device, None)


@pytest.mark.parametrize("call", ["recv", "view"])
def test_ctrl_c_ends_the_wait_for_a_device_and_the_frame_is_the_next_one(alone, call):
    assert alone(tensors_for_slow_device, call)


class Busy:
    """Its unpickling raises what looks like the error of a capture."""

    def __reduce__(self):
        return be_busy, ()


def be_busy():
    raise ringcast.Error(errno.EBUSY, "another handle is busy")


def receive_busy(state):
    writer, reader = pair(state, {})
    writer.send({"x": on_device(state, np.arange(1000.0))}, WATCHDOG)
    reader.recv(WATCHDOG)
    writer.send(Busy(), WATCHDOG)
    writer.send("next", WATCHDOG)
    with pytest.raises(ringcast.Error, match="another handle"):
        reader.recv(WATCHDOG)
    return reader.recv(WATCHDOG)


def test_a_frame_whose_code_says_busy_is_received_once(alone):
    assert alone(receive_busy) == "next"


def receive_pageable(state):
    """No pinned memory: the stream is waited for before the copy, and Ctrl-C ends that too."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state, {"gpu_pool_bytes": 0})
    writer.send({"x": on_device(state, np.arange(1000.0))}, WATCHDOG)
    with torch.cuda.stream(side), failing("cuMemHostAlloc", 2):
        gate.close_for(side)
        with opens_once_others_run(Interrupts("cuStreamQuery")), pytest.raises(KeyboardInterrupt):
            reader.recv(WATCHDOG)
        with opens_once_others_run(gate):
            got = reader.recv(WATCHDOG)["x"]
    gate.end()
    return reader.gpu.registered, (got.numpy() == np.arange(1000.0)).all()


def test_without_pinned_memory_the_copy_is_waited_for(alone):
    assert alone(receive_pageable) == (False, True)


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
            got = how(reader, capture(torch, side), pooled)
            seen.append((got.numpy() == np.arange(1000.0)).all())
        writer.send(i, WATCHDOG)
        seen.append(reader.recv(WATCHDOG) == i)
    side.synchronize()
    return all(seen), writer.gpu.slots_used, writer.gpu.pool_frames


def by_release(reader, captured, pooled):
    frame = reader.next(WATCHDOG)
    got = frame["x"]
    error = (ringcast.Error, "captures a CUDA graph") if pooled else (TimeoutError, "")
    with captured:
        frame.release()
        with pytest.raises(error[0], match=error[1]):
            reader.recv(0)
    return got


def by_dropping(reader, captured, pooled):
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


def drop_view_captured(state):
    """A view is dropped in a capture; then the reader only asks for frames, of which none has a device tensor."""
    torch, side = state["torch"], state["torch"].cuda.Stream()
    writer, reader = pair(state)
    tensor = on_device(state, np.arange(1000.0))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for receive in reader.recv, reader.view:
            writer.send({"x": tensor}, WATCHDOG)
            value = receive(WATCHDOG)
        kept = value.__enter__()["x"]
        value.__exit__(None, None, None)
        del value
        with capture(torch, side):
            del kept
            gc.collect()
            torch._forget_dropped()
    held = writer.gpu.slots_used
    with pytest.raises(TimeoutError):
        reader.recv(0)
    side.synchronize()
    return held, writer.gpu.slots_used


def test_a_view_that_was_dropped_in_a_capture_is_given_back_by_a_recv_without_a_frame(alone):
    assert alone(drop_view_captured) == (1, 0)


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
    writer, reader = pair(state, leases=2)
    tensor, side, received = on_device(state, np.arange(25000.0)), torch.cuda.Stream(), []
    torch.cuda.synchronize()
    writer.send({"x": tensor}, WATCHDOG)
    reader.recv(WATCHDOG)
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


class Held:
    """A call of the driver's that another thread of the program holds up."""

    def __init__(self, name, nth):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.fake_cuda_hold(name, ctypes.c_long(nth))

    def open(self):
        self.driver.fake_cuda_hold(None, ctypes.c_long(0))


def owe_beside_others(state):
    torch, side = state["torch"], state["torch"].cuda.Stream()
    writer, reader = pair(state, leases=2)
    tensor = on_device(state, np.arange(1000.0))
    for _ in range(2):
        writer.send({"x": tensor}, WATCHDOG)
    with torch.cuda.stream(side):
        reader.recv(WATCHDOG)
        writer.send({"x": tensor}, WATCHDOG)
        reader.recv(WATCHDOG)
        frame = reader.next(WATCHDOG)
        assert frame["x"].shape == (1000,)
        with capture(torch, side):
            frame.release()
        with opens_once_others_run(Held(b"cuStreamIsCapturing", 1)), pytest.raises(TimeoutError):
            reader.recv(0)
        writer.send("after it", WATCHDOG)
        return reader.recv(WATCHDOG)


def test_others_run_while_the_driver_holds_up_what_is_owed(alone):
    assert alone(owe_beside_others) == "after it"


class Called:
    """A call that the driver holds up until another thread of this process has run."""

    def __init__(self, name):
        self.held = Held(name.encode(), 1)
        self.name, self.before = name, calls(name)

    def open(self):
        while calls(self.name) == self.before:  # the call has begun
            pass
        self.held.open()


def received(state, kind):
    """A DeviceTensor of a frame that was copied, or looked at."""
    state["writer"].send({"o": Other(on_device(state, np.arange(1000.0)))}, WATCHDOG)
    if kind == "copied":
        return state["reader"].recv(WATCHDOG)["o"]
    with state["reader"].view(WATCHDOG) as value:
        return value["o"]


def allocating(state):
    state["writer"].send({"o": Other(on_device(state, np.arange(1000.0)))}, WATCHDOG)
    return "cuMemAllocAsync", lambda: state["reader"].recv(WATCHDOG)


def freeing_a_tensor(state):
    return "cuMemFreeAsync", [received(state, "copied")].clear


def freeing_a_capsule(state):
    return "cuMemFreeAsync", [received(state, "copied").__dlpack__()].clear


def giving_a_view_back(state):
    return "cuStreamWriteValue64", [received(state, "view")].clear


def handing_over(state):
    got, side = received(state, "copied"), state["torch"].cuda.Stream()
    return "cuEventCreate", lambda: got.__dlpack__(stream=side.cuda_stream)


def beginning(state):
    state["writer"].send({"x": on_device(state, np.arange(3))}, WATCHDOG)
    return "cuStreamIsCapturing", lambda: state["reader"].recv(WATCHDOG)


def sending(state):
    tensor = on_device(state, np.arange(3))
    return "cuStreamWriteValue64", lambda: state["writer"].send({"x": tensor}, WATCHDOG)


def giving_memory_of_the_pool_back(state):
    state["writer"].empty((5,), state["torch"].float32)
    tensor = on_device(state, np.arange(3))
    return "cuStreamIsCapturing", lambda: state["writer"].send({"x": tensor}, WATCHDOG)


def looking_after_a_capture(state):
    """Memory that was dropped in a capture is given back by whoever looks."""
    torch, side = state["torch"], state["torch"].cuda.Stream()
    with torch.cuda.stream(side):
        tensor, other = state["writer"].empty((5,), torch.float32), on_device(state, np.arange(3))
        with capture(torch, side):
            del tensor
            with pytest.raises(ringcast.Error, match="captures a CUDA graph"):
                state["writer"].send({"x": other}, WATCHDOG)
    return "cuStreamIsCapturing", lambda: state["writer"].gpu


def closing_the_writer(state):
    state.pop("reader").close()
    return "cuMemHostUnregister", state.pop("writer").close


def closing_the_reader(state):
    return "cuMemHostUnregister", state.pop("reader").close


def opening_the_reader(state):
    state.pop("reader").close()
    reader = state["reader"] = ringcast.Reader(state["writer"].handle)
    return "cuDevicePrimaryCtxRetain", reader.prepare_gpu


def call_beside_others(state, make):
    torch = state["torch"]
    writer, reader = pair(state)
    writer.send({"x": on_device(state, np.zeros(3)), "o": Other(on_device(state, np.zeros(3)))}, WATCHDOG)
    reader.recv(WATCHDOG)
    assert reader.prepare_gpu()
    gc.collect()
    torch.cuda.synchronize()
    name, call = make(state)
    with opens_once_others_run(Called(name)):
        call()
    gc.collect()
    torch.cuda.synchronize()
    return True


CALLS = (
    *(allocating, freeing_a_tensor, freeing_a_capsule, giving_a_view_back, handing_over, beginning, sending),
    *(giving_memory_of_the_pool_back, looking_after_a_capture),
    *(closing_the_writer, closing_the_reader, opening_the_reader),
)


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_others_run_while_the_driver_holds_a_call_up(alone, make):
    assert alone(call_beside_others, make)


# ---- How many calls --------------------------------------------------------------------------------------------------

OF_OURS = (
    "cuCtxGetCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemcpyDtoDAsync",
    "cuStreamWaitValue64",
    "cuStreamWriteValue64",
    "cuStreamIsCapturing",
)


def count_calls(state, count, is_late):
    """Calls of the driver that ringcast makes to send a frame of so many tensors, and to receive it."""
    torch, gate = state["torch"], Gate(state["torch"])
    writer, reader = pair(state)
    large = 140000  # so that each has its own memory
    sent = {str(i): on_device(state, np.full(large, float(i))) for i in range(count)}
    writer.send(sent)
    reader.recv(WATCHDOG)
    assert reader.prepare_gpu()
    torch.cuda.synchronize()
    if not is_late:
        gate.close_for(None)
    counts = [sum(calls(*OF_OURS))]
    writer.send(sent)
    counts.append(sum(calls(*OF_OURS)))
    if is_late:
        torch.cuda.synchronize()
    counts.append(sum(calls(*OF_OURS)))
    got = reader.recv(WATCHDOG)
    counts.append(sum(calls(*OF_OURS)))
    gate.open()
    torch.cuda.synchronize()
    same = all((got[key].numpy() == float(key)).all() for key in sent)
    assert reader.gpu.pool_frames == 1
    del got
    state.pop("reader").close()
    state.pop("writer").close()
    gate.end()
    return counts[1] - counts[0], counts[3] - counts[2], same


@pytest.mark.parametrize(("count", "is_late"), [(1, True), (1, False), (5, True), (5, False)])
def test_a_frame_takes_few_calls_of_the_driver(alone, count, is_late):
    sends, receives, same = alone(count_calls, count, is_late)
    assert (sends, receives, same) == (4 + count - 1, 5 + count - 1 + (not is_late), True)
