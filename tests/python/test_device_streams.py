# SPDX-License-Identifier: Apache-2.0
"""Tensors of a device and the order of streams: what is received on one stream and used on another, what a capture
forbids and puts off, and calls that wait for a device while other threads run."""

import contextlib
import ctypes
import gc
import os
import signal
from unittest import mock

import numpy as np
import pytest
from device_peers import Other, calls, live, opens_once_others_run, seen
from peers import WATCHDOG
from test_device import INLINE, WAITS

import ringcast

pytestmark = pytest.mark.alike


def receive_other(gpu, ends, array):
    """A DeviceTensor, which has memory of ours, by the legacy stream."""
    writer, reader = ends
    writer.send({"o": Other(gpu.tensor(array))}, WATCHDOG)
    return reader.recv(WATCHDOG)["o"]


# ---- Memory of ours --------------------------------------------------------------------------------------------------


def test_memory_that_another_stream_uses_goes_when_that_has_done(gpu):
    """Its last holder goes while a copy of it has still to be made, on another stream than the one that it came by."""
    ends = gpu.pair()
    for i in range(3):
        received = receive_other(gpu, ends, np.full(50000, float(i)))
        with gpu.on_side(), gpu.gate(gpu.side), gpu.counting(*WAITS) as waits:
            tensor = gpu.torch.from_dlpack(received)
            copy = gpu.copied(tensor)
            del tensor, received
            gc.collect()
        assert not any(waits) and (copy.numpy() == i).all()


def test_what_is_handed_to_another_stream_is_waited_for_there(gpu):
    writer, reader = gpu.opened()
    writer.send({"o": Other(gpu.tensor(np.arange(50000.0)))}, WATCHDOG)
    with gpu.gate(None):
        received = reader.recv(WATCHDOG)["o"]
        with gpu.on_side(), gpu.counting(*WAITS) as waits:
            copy = gpu.copied(gpu.torch.from_dlpack(received))
    assert not any(waits) and (copy.numpy() == np.arange(50000.0)).all()


@pytest.mark.parametrize(("asked", "waits"), [("captures", 1), (2, 1), (1, 0), (None, 0), (-1, 0)])
def test_the_host_waits_for_a_stream_that_can_t_be_told_to(gpu, asked, waits):
    """The stream that a capsule is asked for; DLPack's 1 is the legacy one, which these come by, 2 each thread's."""
    received = receive_other(gpu, gpu.opened(), np.arange(5000.0))
    stream = gpu.side.cuda_stream if asked == "captures" else asked
    with gpu.capture() if asked == "captures" else contextlib.nullcontext():
        with gpu.counting("cuStreamSynchronize") as counted:
            capsule = received.__dlpack__(stream=stream)
    assert counted == [waits] and (gpu.torch.from_dlpack(capsule).numpy() == np.arange(5000.0)).all()


def test_memory_that_is_dropped_in_a_capture_goes_after_it(gpu):
    ends = gpu.opened()
    gpu.settle()
    before = live("allocations")
    for _ in range(3):
        received = receive_other(gpu, ends, np.arange(5000.0))
        with gpu.on_side():
            tensor = gpu.torch.from_dlpack(received)
            gpu.copied(tensor)
        gpu.settle()
        with gpu.capture():
            del tensor, received
            gpu.collect()
            assert live("allocations") == before + 1
        gpu.await_until(lambda: live("allocations") == before)


# ---- Streams that are destroyed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["recv", "view", "next"])
def test_cupy_s_stream_is_kept_as_long_as_what_came_by_it(gpu, how):
    import cupy

    writer, reader = gpu.pair()
    receive_other(gpu, (writer, reader), np.zeros(3))
    assert reader.prepare_gpu()
    streams, strays = live("streams"), live("strays")
    for i in range(2):
        writer.send(gpu.make({"c": ("cupy", np.full(5000, float(i)))}), WATCHDOG)
        frame = reader.next(WATCHDOG) if how == "next" else None
        with cupy.cuda.Stream():
            if how == "view":
                with reader.view(WATCHDOG) as value:
                    got = value["c"]
                del value
            else:
                got = (frame or reader.recv(WATCHDOG))["c"]
        gc.collect()
        assert live("streams") == streams + 1
        gpu.torch.cuda.synchronize()
        assert (got.tensor.numpy() == i).all()
        if frame:  # whose take is open until then
            frame.release()
        del got, frame
        gpu.settle()
    assert (live("streams"), live("strays"), writer.gpu.slots_used) == (streams, strays, 0)


# ---- Several streams -------------------------------------------------------------------------------------------------


def test_the_sender_may_write_to_its_tensor_at_once_in_the_order_of_its_stream(gpu):
    writer, reader = gpu.opened()
    with gpu.on_side():
        tensor = gpu.tensor(np.zeros(50000, np.float32))
        for i in range(40):
            tensor.fill_(i)
            writer.send({"i": i, "x": tensor}, WATCHDOG)
        tensor.fill_(-1)
    with gpu.on(gpu.torch.cuda.Stream()):
        for i in range(40):
            with gpu.counting(*WAITS) as waits:
                got = reader.recv(WATCHDOG)
            assert not any(waits) and got["i"] == i and set(got["x"].numpy().tolist()) == {float(i)}
    assert writer.gpu.pool_frames == 40


def test_of_a_mixed_frame_all_goes_by_torch_s_stream(gpu):
    """What torch's stream is held up with is still to use the memory that torch gives out anew."""
    writer, reader = gpu.pair()
    for i in range(3):
        with gpu.on_side():
            value = {"o": Other(gpu.tensor(np.full(5, i))), "t": gpu.tensor(np.full(9, i))}
            gpu.torch.cuda.synchronize()
            writer.send(value, WATCHDOG)
            with gpu.counting("fake_own_waits") as waits:
                got = reader.recv(WATCHDOG)
            assert i == 0 or waits == [0]
            assert got["o"].__cuda_array_interface__["stream"] == gpu.side.cuda_stream
            assert got["t"].numpy().tolist() == [i] * 9 and seen(got["o"])[2] == (5,)


# ---- A device that is slow -------------------------------------------------------------------------------------------

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


@pytest.mark.uncounted  # coverage.py runs code in the thread that sends the signal, which then waits for the GIL
@pytest.mark.parametrize("call", ["recv", "view"])
def test_ctrl_c_ends_the_wait_for_a_device_and_the_frame_is_the_next_one(gpu, call):
    """The ring has room for two of the frames, and each is given back before the device has come to it."""
    writer, reader = gpu.pair(INLINE)
    sent = [gpu.tensor(np.full(25000, float(i))) for i in range(CHUNKS + 1)]
    got = []
    gpu.settle()
    with gpu.gate(gpu.side) as gate:
        for i in range(CHUNKS):
            writer.send({"x": sent[i]}, WATCHDOG)
            with gpu.on_side():
                got.append(reader.recv(0)["x"])
        assert reader.gpu.syncs == 0 and reader.gpu.registered
        writer.send({"x": sent[CHUNKS]}, WATCHDOG)
        with gpu.on_side():
            with opens_once_others_run(Interrupts("cuEventQuery")), pytest.raises(KeyboardInterrupt):
                getattr(reader, call)(WATCHDOG)
            with opens_once_others_run(gate):
                got.append(reader.recv(WATCHDOG)["x"])
    assert [int(each.numpy()[0]) for each in got] == list(range(CHUNKS + 1))


# ---- Captures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8])  # 8: torch packs them
@pytest.mark.parametrize("options", [{}, INLINE])
@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("is_strided", [False, True])
def test_a_send_into_a_capture_touches_nothing(gpu, is_strided, is_opened, options, count):
    writer, reader = (gpu.opened if is_opened else gpu.pair)(options)
    strides = (1, 3) if is_strided else (4, 1)
    tensors = [gpu.tensor(np.arange(12.0) + i).as_strided((3, 4), strides, 0) for i in range(count)]
    gpu.settle()
    with gpu.on_side(), gpu.capture(), pytest.raises(ringcast.Error, match="captures a CUDA graph"):
        with gpu.counting("cuMemAlloc_v2", "cuMemAllocAsync", "cuStreamSynchronize") as counted:
            with mock.patch.object(gpu.torch, "zeros") as packs:
                writer.send(tensors, WATCHDOG)
    assert not any(counted) and not packs.called
    writer.send(tensors, WATCHDOG)
    assert [got.numpy().tolist() for got in reader.recv(WATCHDOG)] == [sent.numpy().tolist() for sent in tensors]


@pytest.mark.parametrize("options", [{}, INLINE])
@pytest.mark.parametrize("how", ["release", "drop", "receive"])
def test_a_frame_that_comes_or_goes_in_a_capture_is_received_and_given_back_after_it(gpu, how, options):
    """A Reader of one lease: what is not given back is in the way of the next frame."""
    writer, reader = gpu.opened(options)
    tensor = gpu.tensor(np.arange(1000.0))
    captures = pytest.raises(ringcast.Error, match="captures a CUDA graph")
    gpu.settle()
    for i in range(3):
        with gpu.on_side():
            writer.send({"x": tensor}, WATCHDOG)
            if how == "receive":
                with gpu.capture():
                    for _ in range(2):
                        with captures:
                            reader.recv(WATCHDOG)
                got = reader.recv(0)["x"]
            else:
                frame = reader.next(WATCHDOG)
                got = frame["x"]
                with gpu.capture():
                    if how == "release":
                        frame.release()
                        with pytest.raises(TimeoutError) if options else captures:
                            reader.recv(0)
                    del frame
                    gc.collect()
            assert (got.numpy() == np.arange(1000.0)).all()
        writer.send(i, WATCHDOG)
        assert reader.recv(WATCHDOG) == i
    gpu.settle()
    assert (writer.gpu.slots_used, writer.gpu.pool_frames) == (0, 0 if options else 3)


def test_a_view_that_was_dropped_in_a_capture_is_given_back_without_a_call(gpu):
    writer, reader = gpu.opened()
    with gpu.on_side():
        writer.send({"x": gpu.tensor(np.arange(1000.0))}, WATCHDOG)
        with reader.view(WATCHDOG) as value:
            kept = value["x"]
        del value
        with gpu.capture():
            del kept
            gpu.collect()
            assert writer.gpu.slots_used == 1
    gpu.await_until(lambda: writer.gpu.slots_used == 0)


# ---- Threads: others run while a call of the driver waits ------------------------------------------------------------


class Held:
    """A call of the driver's that another thread of the program holds up."""

    def __init__(self, name, nth):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.fake_cuda_hold(name, ctypes.c_long(nth))

    def open(self):
        self.driver.fake_cuda_hold(None, ctypes.c_long(0))


class Called:
    """A call that the driver holds up until another thread of this process has run."""

    def __init__(self, name):
        self.held = Held(name.encode(), 1)
        self.name, self.before = name, calls(name)

    def open(self):
        while calls(self.name) == self.before:  # the call has begun
            pass
        self.held.open()


# Each of these makes ready what is then called, and tells which function of the driver is called for it.


def allocating(gpu, writer, reader):
    writer.send({"o": Other(gpu.tensor(np.arange(1000.0)))}, WATCHDOG)
    return "cuMemAllocAsync", lambda: reader.recv(WATCHDOG)


def freeing_a_tensor(gpu, writer, reader):
    return "cuMemFreeAsync", [receive_other(gpu, (writer, reader), np.arange(1000.0))].clear


def giving_a_view_back(gpu, writer, reader):
    writer.send({"o": Other(gpu.tensor(np.arange(1000.0)))}, WATCHDOG)
    with reader.view(WATCHDOG) as value:
        return "cuStreamWriteValue64", [value.pop("o")].clear


def beginning(gpu, writer, reader):
    writer.send({"x": gpu.tensor(np.arange(3))}, WATCHDOG)
    return "cuStreamIsCapturing", lambda: reader.recv(WATCHDOG)


def sending(gpu, writer, reader):
    tensor = gpu.tensor(np.arange(3))
    return "cuStreamWriteValue64", lambda: writer.send({"x": tensor}, WATCHDOG)


def closing_the_writer(gpu, writer, reader):
    reader.close()
    return "cuMemHostUnregister", writer.close


def closing_the_reader(gpu, writer, reader):
    return "cuMemHostUnregister", reader.close


def opening_the_reader(gpu, writer, reader):
    reader.close()
    gpu.ends.append(ringcast.Reader(writer.handle))
    return "cuDevicePrimaryCtxRetain", gpu.ends[-1].prepare_gpu


CALLS = (
    *(allocating, freeing_a_tensor, giving_a_view_back, beginning, sending),
    *(closing_the_writer, closing_the_reader, opening_the_reader),
)


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_others_run_while_the_driver_holds_a_call_up(gpu, make):
    writer, reader = gpu.pair()
    value = {"x": ("cuda", np.zeros(3)), "o": ("other", np.zeros(3))}
    writer.send(gpu.make(value), WATCHDOG)
    reader.recv(WATCHDOG)
    assert reader.prepare_gpu()
    gpu.settle()
    name, call = make(gpu, writer, reader)
    with opens_once_others_run(Called(name)):
        call()
