# SPDX-License-Identifier: Apache-2.0
"""Tensors of a device and the order of streams: what is received on one stream and used on another,
what a capture forbids and puts off, and calls that wait for a device while other threads run."""

import contextlib
import ctypes
import gc
import os
import signal
from unittest import mock

import numpy as np
import pytest
from device_peers import INLINE, VALUES, WAITS, calls, driver, live, opens_once_others_run, seen
from peers import WATCHDOG

import ringcast

pytestmark = pytest.mark.alike


def receive_other(gpu, ends, array):
    """A DeviceTensor, which has memory of ours, by the legacy stream."""
    writer, reader = ends
    writer.send({"o": gpu.other(array)}, WATCHDOG)
    return reader.recv(WATCHDOG)["o"]


# ---- Several streams -----------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["arriving", "used"])
def test_memory_that_another_stream_uses_is_in_order_there(gpu, held):
    """A copy of it is made on the side stream, and its last holder goes, before either stream has
    come so far: the one that it comes by, or the one that uses it."""
    writer, reader = gpu.opened()
    for i in range(3):
        writer.send({"o": gpu.other(np.full(50000, float(i)))}, WATCHDOG)
        gpu.settle()
        with gpu.gate(None if held == "arriving" else gpu.side):
            received = reader.recv(WATCHDOG)["o"]
            with gpu.on_side(), gpu.counting(*WAITS) as waits:
                tensor = gpu.torch.from_dlpack(received)
                copy = gpu.copied(tensor)
                del tensor, received
                gc.collect()
        assert not any(waits)
        with gpu.on_side():
            assert (copy.numpy() == i).all()


# DLPack's 1 is the legacy stream, which these come by, 2 each thread's.
@pytest.mark.parametrize("asked, waits", [("captures", 1), (2, 1), (1, 0), (None, 0), (-1, 0)])
def test_the_host_waits_for_a_stream_that_can_t_be_told_to(gpu, asked, waits):
    received = receive_other(gpu, gpu.opened(), np.arange(5000.0))
    stream = gpu.side.cuda_stream if asked == "captures" else asked
    with gpu.capture() if asked == "captures" else contextlib.nullcontext():
        with gpu.counting("cuStreamSynchronize") as counted:
            capsule = received.__dlpack__(stream=stream)
    assert counted == [waits]
    assert (gpu.torch.from_dlpack(capsule).numpy() == np.arange(5000.0)).all()


def test_the_sender_may_write_to_its_tensor_at_once_in_the_order_of_its_stream(gpu):
    writer, reader = gpu.opened()
    with gpu.on_side():
        tensor = gpu.cuda(np.zeros(50000, np.float32))
        for i in range(40):
            tensor.fill_(i)
            writer.send(tensor, WATCHDOG)
        tensor.fill_(-1)
    with gpu.on(gpu.torch.cuda.Stream()):
        for i in range(40):
            with gpu.counting(*WAITS) as waits:
                got = reader.recv(WATCHDOG)
            assert not any(waits) and set(got.numpy().tolist()) == {float(i)}
    assert writer.gpu.pool_frames == 40


def test_the_sender_may_drop_its_tensor_before_the_stream_has_copied_it(gpu):
    writer, reader = gpu.opened()
    for i in range(10):
        tensor = gpu.cuda(np.full(50000, float(i)))
        gpu.settle()
        with gpu.gate(gpu.side):
            with gpu.on_side():
                writer.send([tensor], WATCHDOG)
            del tensor  # torch gives its memory back in the order of the stream that it came by
        (got,) = reader.recv(WATCHDOG)
        assert set(got.tolist()) == {float(i)}


def test_a_frame_of_several_streams_goes_through_the_ring(gpu):
    import cupy

    writer, reader = gpu.opened()
    for inline in (2, 3):
        value = {"c": gpu.cupy(np.arange(30000.0)), "t": gpu.cuda(np.arange(30000.0))}
        gpu.settle()
        with cupy.cuda.Stream(), gpu.counting("cuStreamSynchronize") as waits:
            writer.send(value, WATCHDOG)
            assert cupy.asked[-1] == cupy.cuda.get_current_stream().ptr
        assert waits == [2]  # for each
        assert seen(reader.recv(WATCHDOG)) == seen(value)
        assert writer.gpu.inline_frames == inline


def test_of_a_mixed_frame_all_goes_by_torch_s_stream(gpu):
    """Work that waits on torch's stream is still to use the memory that torch gives out anew."""
    writer, reader = gpu.opened()
    for i in range(3):
        with gpu.on_side():
            value = {"o": gpu.other(np.full(5, i)), "t": gpu.cuda(np.full(9, i))}
            gpu.torch.cuda.synchronize()
            writer.send(value, WATCHDOG)
            with gpu.counting("fake_own_waits") as waits:
                got = reader.recv(WATCHDOG)
            assert waits == [0] and seen(got) == seen(value)
            assert got["o"].__cuda_array_interface__["stream"] == gpu.side.cuda_stream


@pytest.mark.parametrize("how", ["recv", "view"])
def test_cupy_s_stream_is_kept_as_long_as_what_came_by_it(gpu, how):
    import cupy

    writer, reader = gpu.opened()
    streams, strays = live("streams"), live("strays")
    for i in range(2):
        writer.send([gpu.cupy(np.full(5000, float(i)))], WATCHDOG)
        with cupy.cuda.Stream():
            if how == "view":
                with reader.view(WATCHDOG) as value:
                    got = value.pop()
            else:
                got = reader.recv(WATCHDOG).pop()
        gc.collect()
        assert live("streams") == streams + 1
        gpu.torch.cuda.synchronize()
        assert (got.tensor.numpy() == i).all()
        del got
        gpu.settle()
    assert (live("streams"), live("strays"), writer.gpu.slots_used) == (streams, strays, 0)


# ---- Captures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, INLINE])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("strides, count", [((4, 1), 1), ((4, 1), 8), ((1, 3), 1)])  # 8: are packed
def test_a_send_into_a_capture_touches_nothing(gpu, strides, count, opened, options):
    writer, reader = (gpu.opened if opened else gpu.pair)(options)
    tensors = [gpu.strided("cuda", (3, 4), strides, i) for i in range(count)]
    gpu.settle()
    refused = pytest.raises(ringcast.Error, match="captures")
    with gpu.on_side(), gpu.capture(), refused, mock.patch.object(gpu.torch, "zeros") as packs:
        with gpu.counting("cuMemAlloc_v2", "cuMemAllocAsync", "cuStreamSynchronize") as counted:
            writer.send(tensors, WATCHDOG)
    assert not any(counted) and not packs.called
    gpu.passes(writer, reader, tensors)


@pytest.mark.parametrize("options", [{}, INLINE])
@pytest.mark.parametrize("how", ["release", "receive"])
def test_a_frame_that_comes_or_goes_in_a_capture_does_so_after_it(gpu, how, options):
    """A Reader of one lease: what is not given back is in the way of the next frame."""
    writer, reader = gpu.opened(options)
    value = VALUES["large"](gpu)
    gpu.settle()
    for i in range(3):
        with gpu.on_side():
            writer.send(value, WATCHDOG)
            if how == "receive":
                with gpu.capture(), pytest.raises(ringcast.Error, match="captures"):
                    reader.recv(WATCHDOG)
                got = reader.recv(0)["x"]
            else:
                frame = reader.next(WATCHDOG)
                got = frame["x"]
                with gpu.capture():
                    frame.release()
            assert seen(got) == seen(value["x"])
        gpu.passes(writer, reader, i)
    gpu.settle()
    assert (writer.gpu.slots_used, writer.gpu.pool_frames) == (0, 0 if options else 3)


def dropped_copy(gpu, writer, reader):
    """Of memory that the side stream has used, and that the device has still."""
    tensor = gpu.torch.from_dlpack(receive_other(gpu, (writer, reader), np.arange(5000.0)))
    gpu.copied(tensor)
    return [tensor], lambda: live("allocations")


def dropped_view(gpu, writer, reader):
    writer.send({"x": gpu.cuda(np.arange(1000.0))}, WATCHDOG)
    with reader.view(WATCHDOG) as value:
        return [value.pop("x")], lambda: writer.gpu.slots_used


@pytest.mark.parametrize("make", [dropped_copy, dropped_view])
def test_what_is_dropped_in_a_capture_goes_after_it(gpu, make):
    writer, reader = gpu.opened()
    gpu.settle()
    for _ in range(3):
        with gpu.on_side():
            kept, count = make(gpu, writer, reader)
        gpu.settle()
        before = count()
        with gpu.capture():
            kept.clear()
            gpu.collect()
            assert count() == before
        gpu.await_until(lambda count=count, before=before: count() < before)


# ---- A device that is slow -----------------------------------------------------------------------

CHUNKS = 16  # of a Reader's pinned buffer: as many frames are copied without a wait


class Interrupts:
    """Ctrl-C, while the driver is asked whether a stream has come so far."""

    def open(self):
        (asked,) = calls("cuEventQuery")
        while calls("cuEventQuery")[0] < asked + 10:
            pass
        os.kill(os.getpid(), signal.SIGINT)


# coverage.py runs code in the thread that sends the signal, which then waits for the GIL.
@pytest.mark.uncounted
@pytest.mark.parametrize("call", ["recv", "view"])
def test_ctrl_c_ends_the_wait_for_a_device_and_the_frame_is_the_next_one(gpu, call):
    """The ring has room for two of the frames, and each is given back before the device has come
    to it."""
    writer, reader = gpu.pair(INLINE)
    sent = [gpu.cuda(np.full(25000, float(i))) for i in range(CHUNKS + 1)]
    got = []
    gpu.settle()
    with gpu.gate(gpu.side) as gate, gpu.on_side():
        for tensor in sent[:-1]:
            with gpu.on(gpu.torch.cuda.Stream()):
                writer.send(tensor, WATCHDOG)
            got.append(reader.recv(0))
        assert reader.gpu.syncs == 0 and reader.gpu.registered
        with gpu.on(gpu.torch.cuda.Stream()):
            writer.send(sent[-1], WATCHDOG)
        with opens_once_others_run(Interrupts()), pytest.raises(KeyboardInterrupt):
            getattr(reader, call)(WATCHDOG)
        with opens_once_others_run(gate):
            got.append(reader.recv(WATCHDOG))
    assert seen(got) == seen(sent)


# ---- Threads: others run while a call of the driver waits ----------------------------------------


class Called:
    """A call that the driver holds up until another thread of this process has run."""

    def __init__(self, name):
        self.name, self.before = name, calls(name)
        driver().fake_cuda_hold(name.encode(), ctypes.c_long(1))

    def open(self):
        while calls(self.name) == self.before:  # the call has begun
            pass
        driver().fake_cuda_hold(None, ctypes.c_long(0))


def test_others_run_while_the_driver_holds_a_call_up(gpu):
    writer, reader = gpu.opened()
    gpu.passes(writer, reader, "mixed")
    assert reader.prepare_gpu()
    gpu.settle()

    def held(name, call):
        with opens_once_others_run(Called(name)):
            return call()

    tensor, other = gpu.cuda(np.arange(3)), gpu.other(np.arange(1000.0))
    held("cuStreamWriteValue64", lambda: writer.send(tensor, WATCHDOG))
    held("cuStreamIsCapturing", lambda: reader.recv(WATCHDOG))
    for _ in range(2):
        writer.send([other], WATCHDOG)
    kept = held("cuMemAllocAsync", lambda: reader.recv(WATCHDOG))
    held("cuMemFreeAsync", kept.clear)
    with reader.view(WATCHDOG) as value:
        kept.append(value.pop())
    held("cuStreamWriteValue64", kept.clear)
    held("cuMemHostUnregister", reader.close)
    again = ringcast.Reader(writer.handle)
    held("cuDevicePrimaryCtxRetain", again.prepare_gpu)
    again.close()
    held("cuMemHostUnregister", writer.close)
