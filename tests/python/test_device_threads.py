# SPDX-License-Identifier: Apache-2.0
"""Tensors of a device and the threads of a process: others run while a call of the driver waits."""

import contextlib
import ctypes
import gc

import numpy as np
import pytest
from device_peers import Other, calls, failing, opens_once_others_run
from peers import WATCHDOG
from test_device import INLINE
from test_device_captures import release_in_capture
from test_device_streams import receive_other

import ringcast

pytestmark = pytest.mark.alike


@pytest.mark.parametrize("dropped", ["reader", "writer", "tensor"])
def test_others_run_while_what_is_dropped_waits(gpu, dropped):
    writer, reader = gpu.opened(INLINE if dropped == "reader" else {})
    del gpu.ends[:]
    received = receive_other(gpu, (writer, reader), np.arange(25000.0))
    kept, tensor = {}, gpu.tensor(np.arange(25000.0))
    if dropped == "reader":
        writer.send({"x": tensor}, WATCHDOG)
    gpu.settle()
    # cuMemFree, in place of what frees in a stream's order, waits for the whole device.
    failed = failing("cuMemFreeAsync", 400) if dropped == "tensor" else contextlib.nullcontext()
    with gpu.on_side(), gpu.gate(gpu.side) as gate, failed:
        if dropped == "reader":
            kept = reader.recv(WATCHDOG)
        if dropped == "writer":
            writer.send({"x": tensor}, WATCHDOG)
            reader.close()
        with opens_once_others_run(gate):
            if dropped == "reader":
                del reader
            elif dropped == "writer":
                del writer
            else:
                del received
            gc.collect()
    assert not kept or kept["x"].numpy().tolist() == list(range(25000))


class Held:
    """A call of the driver's that another thread of the program holds up."""

    def __init__(self, name, nth):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.fake_cuda_hold(name, ctypes.c_long(nth))

    def open(self):
        self.driver.fake_cuda_hold(None, ctypes.c_long(0))


def test_others_run_while_the_driver_holds_up_what_is_owed(gpu):
    writer, reader = gpu.opened(leases=2)
    with gpu.on_side():
        with release_in_capture(gpu, writer, reader, gpu.tensor(np.arange(1000.0))):
            pass
        with opens_once_others_run(Held(b"cuStreamIsCapturing", 1)), pytest.raises(TimeoutError):
            reader.recv(0)
        writer.send("after it", WATCHDOG)
        assert reader.recv(WATCHDOG) == "after it"


@pytest.mark.parametrize("call", ["recv", "release"])
def test_others_run_while_the_driver_holds_up_what_a_capture_put_off(gpu, call):
    writer, reader = gpu.opened(leases=2)
    with gpu.on_side():
        writer.send({"x": gpu.tensor(np.arange(1000.0))}, WATCHDOG)
        writer.send(0, WATCHDOG)
        with reader.view(WATCHDOG) as value:
            kept = value["x"]
        del value
        frame = reader.next(WATCHDOG)
        with gpu.capture():
            del kept
            gpu.collect()
        with opens_once_others_run(Held(b"cuStreamIsCapturing", 1)):
            if call == "release":
                frame.release()
            else:
                with pytest.raises(TimeoutError):
                    reader.recv(0)


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


def freeing_a_capsule(gpu, writer, reader):
    return "cuMemFreeAsync", [receive_other(gpu, (writer, reader), np.arange(1000.0)).__dlpack__()].clear


def giving_a_view_back(gpu, writer, reader):
    writer.send({"o": Other(gpu.tensor(np.arange(1000.0)))}, WATCHDOG)
    with reader.view(WATCHDOG) as value:
        return "cuStreamWriteValue64", [value.pop("o")].clear


def handing_over(gpu, writer, reader):
    got = receive_other(gpu, (writer, reader), np.arange(1000.0))
    return "cuEventCreate", lambda: got.__dlpack__(stream=gpu.side.cuda_stream)


def beginning(gpu, writer, reader):
    writer.send({"x": gpu.tensor(np.arange(3))}, WATCHDOG)
    return "cuStreamIsCapturing", lambda: reader.recv(WATCHDOG)


def sending(gpu, writer, reader):
    tensor = gpu.tensor(np.arange(3))
    return "cuStreamWriteValue64", lambda: writer.send({"x": tensor}, WATCHDOG)


def giving_memory_of_the_pool_back(gpu, writer, reader):
    writer.empty((5,), gpu.torch.float32)
    tensor = gpu.tensor(np.arange(3))
    return "cuStreamIsCapturing", lambda: writer.send({"x": tensor}, WATCHDOG)


def looking_after_a_capture(gpu, writer, reader):
    """Memory that was dropped in a capture is given back by a look at the Writer's figures."""
    with gpu.on_side():
        tensor, other = writer.empty((5,), gpu.torch.float32), gpu.tensor(np.arange(3))
        with gpu.capture():
            del tensor
            with pytest.raises(ringcast.Error, match="captures a CUDA graph"):
                writer.send({"x": other}, WATCHDOG)
    return "cuStreamIsCapturing", lambda: writer.gpu


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
    *(allocating, freeing_a_tensor, freeing_a_capsule, giving_a_view_back, handing_over, beginning, sending),
    *(giving_memory_of_the_pool_back, looking_after_a_capture),
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
