# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device: what is kept, skipped, polled, waited for, and sent on."""

import contextlib
import ctypes
import gc
import mmap
import re
import sys
import threading

import device_peers as peers
import numpy as np
import pytest
from peers import WATCHDOG
from test_device import MEGABYTE
from test_device_more import kill

import ringcast

ROOT = peers.HERE.parents[1]


class Gate:
    """A word that streams wait for until it is opened."""

    def __init__(self, torch):
        self.torch, self.driver = torch, torch.driver()
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)))
        torch._enter(0)
        torch.check(self.driver.cuMemHostRegister_v2(address, ctypes.c_size_t(mmap.PAGESIZE), 3))
        self.word = ctypes.c_uint64()
        torch.check(self.driver.cuMemHostGetDevicePointer_v2(ctypes.byref(self.word), address, 0))
        self.address = address

    def close_for(self, stream):
        handle = ctypes.c_void_p(stream.cuda_stream if stream else 0)
        self.torch.check(self.driver.cuStreamWaitValue32_v2(handle, self.word, ctypes.c_uint32(1), 0))

    def open(self):
        self.memory[:4] = b"\1\0\0\0"

    def end(self):
        self.torch.cuda.synchronize()
        self.torch.check(self.driver.cuMemHostUnregister(self.address))


@contextlib.contextmanager
def opens_once_others_run(gate):
    """The gate is opened by another thread, which gets the GIL only when this one gives it up by itself."""
    go, interval = threading.Lock(), sys.getswitchinterval()

    def wait_and_open():
        with go:
            gate.open()

    with go:
        opener = threading.Thread(target=wait_and_open)
        opener.start()
        sys.setswitchinterval(WATCHDOG)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        opener.join()


def on_device(state, array):
    return state["torch"].from_numpy(np.asarray(array)).cuda()


def pair(state, options=None, **reader_options):
    state["writer"] = ringcast.Writer(MEGABYTE, **(options or {}))
    state["reader"] = ringcast.Reader(state["writer"].handle, **reader_options)
    return state["writer"], state["reader"]


def close_reader(state):
    """First, as the pool goes when nobody reads it any more."""
    if "reader" in state:
        state.pop("reader").close()


@pytest.fixture
def alone(gpus):
    """Calls a function in a process that has a device, and closes what it opened."""

    def call(function, *args):
        try:
            return gpus[0].call(function, *args)
        finally:
            gpus[0].call(close_reader)
            gpus[0].call(peers.close)

    yield call
    assert gpus[0].call(peers.left) == (0, 0, 0)


# ---- Keeping -------------------------------------------------------------------------------------------------------


def keep_on_device(state):
    writer, reader = pair(state, keep=True, map_location="cuda")
    tensor = state["torch"].from_numpy(np.arange(1 << 18, dtype=np.float64))
    for i in range(100):
        writer.send({"x": tensor, "n": np.arange(1 << 18), "i": i}, WATCHDOG)
        got = reader.recv(WATCHDOG)
        assert str(got["x"].device) == "cuda:0" and got["i"] == i
    return reader.gpu.inline_frames


def test_who_keeps_gives_back_what_went_to_a_device(alone):
    assert alone(keep_on_device) == 100


# ---- Skipping ------------------------------------------------------------------------------------------------------


def look_and_receive():
    data = (ROOT / "tests" / "vectors" / "pool.bin").read_bytes()
    with ringcast.Writer(MEGABYTE) as writer, ringcast.Reader(writer.handle, leases=2) as reader:
        span = writer.reserve(len(data), 0)
        memoryview(span)[:] = data
        span.commit(kind=ringcast.KIND_TENSORS)
        with reader.next(0) as frame, pytest.raises(ringcast.Error, match="has not opened"):
            ringcast.unpack(frame)
        writer.send_error("could not send", 0)
        writer.send("after", 0)
        with pytest.raises(ringcast.SendError):
            reader.recv(0)
        assert reader.recv(0) == "after"


def test_what_a_frame_was_refused_for_does_not_hide_the_next_error(no_gpu):
    no_gpu.call(run, look_and_receive)


def run(state, function):
    function()


# ---- The writer's death --------------------------------------------------------------------------------------------


def send_behind_gate(state):
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    state["gate"] = gate
    tensor = on_device(state, np.arange(1000.0))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        gate.close_for(side)
        state["writer"].send({"x": tensor}, WATCHDOG)
    for i in range(3):
        state["writer"].send({"cpu": i}, WATCHDOG)


def receive_begun(state):
    state["x"] = state["reader"].recv(WATCHDOG)["x"]


def receive_rest(state):
    state["torch"].cuda.synchronize()  # what its stream waits for is released by then
    with pytest.raises(ringcast.WriterGone):
        state["reader"].recv(WATCHDOG)
    got = [state["reader"].recv(WATCHDOG) for _ in range(3)]
    with pytest.raises(ringcast.WriterGone):
        state["reader"].recv(WATCHDOG)
    del state["x"]
    state.pop("reader").close()
    return got


def test_a_tensor_that_never_came_is_told_of_before_what_came_after(fake_driver):
    writer, reader = (peers.start(fake_driver, FAKE_CUDA_JITTER="7") for _ in range(2))
    reader.call(peers.attach, writer.call(peers.make_writer, MEGABYTE))
    writer.call(peers.send, {"x": ("cuda", np.arange(3))})
    reader.call(peers.receive)
    writer.call(send_behind_gate)
    reader.call(receive_begun)
    kill(writer)
    assert reader.call(receive_rest) == [{"cpu": 0}, {"cpu": 1}, {"cpu": 2}]
    reader.stop()
    writer.pipe.close()
    writer.process.close()


# ---- Polling, and other threads ------------------------------------------------------------------------------------


def poll_behind_gate(state):
    """The gate is opened by a thread, so one that polls with the GIL would never see it open."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state, {"gpu_pool_bytes": 0})
    tensor = on_device(state, np.arange(25000.0))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        writer.send({"x": tensor}, WATCHDOG)
        reader.recv(WATCHDOG)
        gate.close_for(side)
    count = 0
    with pytest.raises(TimeoutError):
        while count < 100:
            writer.send({"x": tensor}, 0)
            count += 1
    with torch.cuda.stream(side):
        kept = [reader.recv(0) for _ in range(count)]
        with opens_once_others_run(gate), pytest.raises(TimeoutError):
            reader.recv(0)
    writer.send({"x": tensor}, 0)  # there is room, as what was read was given back
    gate.end()
    return len(kept) == count > 1


def test_who_polls_gives_back_what_the_writer_needs_and_lets_others_run(alone):
    assert alone(poll_behind_gate)


def drop_reader_behind_gate(state):
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state, {"gpu_pool_bytes": 0})
    tensor = on_device(state, np.arange(25000.0))
    torch.cuda.synchronize()
    writer.send({"x": tensor}, WATCHDOG)
    with torch.cuda.stream(side):
        gate.close_for(side)
        got = reader.recv(WATCHDOG)
        with opens_once_others_run(gate):
            del state["reader"], reader
    gate.end()
    return got["x"].numpy().tolist() == list(range(25000))


def test_others_run_while_a_reader_that_is_dropped_waits(alone):
    assert alone(drop_reader_behind_gate)


# ---- Captures ------------------------------------------------------------------------------------------------------


def send_captured(state, how, opened):
    torch = state["torch"]
    writer, reader = pair(state)
    tensor = on_device(state, np.arange(12.0)).as_strided((3, 4), (1, 3) if how else (4, 1), 0)
    if opened:
        writer.send({"x": tensor}, WATCHDOG)
        reader.recv(WATCHDOG)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    driver = ctypes.CDLL("libcuda.so.1")
    before = peers.calls("cuMemAlloc_v2", "cuMemAllocAsync", "cuStreamSynchronize")
    with torch.cuda.stream(side):
        torch._enter(0)
        driver.fake_cuda_capture(ctypes.c_void_p(side.cuda_stream), True)
        with pytest.raises(ringcast.Error, match="captures a CUDA graph"):
            writer.send({"x": tensor}, WATCHDOG)
        driver.fake_cuda_capture(ctypes.c_void_p(side.cuda_stream), False)
    after = peers.calls("cuMemAlloc_v2", "cuMemAllocAsync", "cuStreamSynchronize")
    writer.send({"x": tensor}, WATCHDOG)
    return before == after, reader.recv(WATCHDOG)["x"].numpy().tolist() == tensor.numpy().tolist()


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("is_strided", [False, True])
def test_a_send_into_a_capture_touches_nothing(alone, is_strided, opened):
    assert alone(send_captured, is_strided, opened) == (True, True)


# ---- Other libraries -----------------------------------------------------------------------------------------------


def mix(state):
    """What torch's stream is held up with is still to use the memory that torch gives out anew."""
    torch, side = state["torch"], state["torch"].cuda.Stream()
    writer, reader = pair(state)
    for i in range(3):
        with torch.cuda.stream(side):
            value = {"o": peers.Other(on_device(state, np.full(5, i))), "t": on_device(state, np.full(9, i))}
            torch.cuda.synchronize()
            writer.send(value, WATCHDOG)
            waits = peers.calls("cuCtxSynchronize")
            got = reader.recv(WATCHDOG)
            assert peers.calls("cuCtxSynchronize") == waits  # all of it goes by torch's stream
            stream = got["o"].__cuda_array_interface__["stream"]
            assert stream == side.cuda_stream
            assert got["t"].numpy().tolist() == [i] * 9 and peers.seen(got["o"])[2] == (5,)
    return True


def test_of_a_mixed_frame_all_goes_by_torch_s_stream(alone):
    assert alone(mix)


def send_on(state):
    """The legacy stream is held up: what is sent on goes by the stream that it came by, and is freed in its order."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state)
    second = ringcast.Writer(4 * MEGABYTE)
    other = ringcast.Reader(second.handle)
    second.send({"x": on_device(state, np.arange(3))}, WATCHDOG)
    other.recv(WATCHDOG)
    wrong = 0
    for i in range(5):
        with torch.cuda.stream(side):
            value = {"t": on_device(state, np.zeros(4)), "o": peers.Other(on_device(state, np.full(50000, float(i))))}
            torch.cuda.synchronize()
            writer.send(value, WATCHDOG)
            received = reader.recv(WATCHDOG)["o"]
            side.synchronize()
        gate.close_for(None)
        second.send({"o": received}, WATCHDOG)
        del received
        gc.collect()
        gate.open()
        wrong += not (torch.from_dlpack(other.recv(WATCHDOG)["o"]).numpy() == i).all()
    gate.end()
    other.close()
    second.close()
    return wrong


def test_a_device_tensor_that_is_sent_on_and_dropped_arrives(alone):
    assert alone(send_on) == 0


def fail_after_commit(state):
    writer, reader = pair(state)
    for i in range(2):
        writer.send({"o": peers.Other(on_device(state, np.full(5, i)))}, WATCHDOG)
        reader.recv(WATCHDOG)
    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_cuda_fault(b"cuStreamSynchronize", ctypes.c_long(1), 999)
    value = {"o": peers.Other(on_device(state, np.full(5, 7)))}
    writer.send(value, WATCHDOG)
    got = peers.seen(reader.recv(WATCHDOG)["o"])
    with pytest.raises(ringcast.Error, match=re.escape("after the last frame was sent")):
        writer.send(value, WATCHDOG)
    writer.send(value, WATCHDOG)
    return got == peers.seen(reader.recv(WATCHDOG)["o"])


def test_a_failure_after_the_commit_is_for_the_next_send(alone):
    assert alone(fail_after_commit)
