# SPDX-License-Identifier: Apache-2.0
"""Tensors of a device while a stream captures a CUDA graph: what is refused, and what is given back after it."""

import contextlib
import gc
import sys
import threading
from unittest import mock

import numpy as np
import pytest
from device_peers import live
from peers import WATCHDOG
from test_device import INLINE

import ringcast

pytestmark = pytest.mark.alike


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


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("how", ["recv", "view", "take", "lease"])
def test_cupy_s_stream_is_kept_until_what_was_dropped_in_its_capture_is_given_back(gpu, how, is_closed):
    """CuPy has dropped it too, once it captures no more, and nothing is called after that."""
    import cupy

    writer, reader = gpu.opened()
    assert reader.prepare_gpu()
    gpu.settle()
    before, streams, strays = live("allocations"), live("streams"), live("strays")
    writer.send(gpu.make({"c": ("cupy", np.arange(5000.0))}), WATCHDOG)
    with cupy.cuda.Stream() as stream:
        if how == "view":
            with reader.view(WATCHDOG) as value:
                kept = value["c"]
            del value
        else:
            kept = reader.recv(WATCHDOG)["c"] if how == "recv" else reader.next(WATCHDOG)
            assert how == "recv" or kept["c"]
    gpu.settle()
    with gpu.capture(stream):
        if how == "take":
            kept.release()
        if how != "lease":
            del kept
        gpu.collect()
        assert live("streams") == streams + 1
        if is_closed:
            references = sys.getrefcount(stream)
            reader.close()
            assert sys.getrefcount(stream) == references
        else:
            writer.send(0, WATCHDOG)
            assert how in ("take", "lease") or reader.recv(WATCHDOG) == 0
    del stream
    gc.collect()
    if how in ("take", "lease") and not is_closed:
        assert live("streams") == streams + 1
        if how == "lease":
            kept.release()
        assert reader.recv(WATCHDOG) == 0
    gpu.await_until(lambda: (live("streams"), writer.gpu.slots_used) == (streams, 0))
    gpu.settle()
    assert (live("allocations"), live("strays")) == (before, strays)


@pytest.mark.parametrize("lend", [ringcast.Reader.next, ringcast.Reader.view])
def test_what_could_not_be_copied_in_a_capture_is_lent_once(gpu, lend):
    """By the next call; after it come the others."""
    writer, reader = gpu.opened(leases=3)
    got = []
    with gpu.on_side():
        for i in (1, 2, 3):
            writer.send({"i": i, "x": gpu.tensor(np.full(3, float(i)))}, WATCHDOG)
        gpu.side.synchronize()
        with gpu.capture(), pytest.raises(ringcast.Error, match="captures a CUDA graph"):
            reader.recv(WATCHDOG)
        for _ in range(2):
            with lend(reader, WATCHDOG) as lent:
                got.append(lent["i"])
        got.append(reader.recv(WATCHDOG)["i"])
    with pytest.raises(TimeoutError):
        reader.recv(0)
    assert got == [1, 2, 3]


def release_in_capture(gpu, writer, reader, tensor):
    """A frame whose tensor was read before; in the capture that goes on in the block."""
    writer.send({"x": tensor}, WATCHDOG)
    frame = reader.next(WATCHDOG)
    kept = frame["x"]
    captured = contextlib.ExitStack()
    captured.enter_context(gpu.capture())
    captured.kept = kept
    frame.release()
    return captured


def test_a_sleeper_gives_back_what_a_capture_kept(gpu):
    """A thread sleeps in recv() while that capture ends, and only the frame that it kept is in the writer's way."""
    writer, reader = gpu.opened(leases=2)
    begun, interval, received = threading.Lock(), sys.getswitchinterval(), []

    def sleep():
        begun.release()
        received.append(reader.recv(WATCHDOG))

    with gpu.on_side(), release_in_capture(gpu, writer, reader, gpu.tensor(np.arange(25000.0))):
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
    assert received[0][:1] == b"y"
