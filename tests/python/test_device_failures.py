# SPDX-License-Identifier: Apache-2.0
"""Tensors of a device where something fails: calls of the driver, libraries, and processes that die. Which results the
library takes as what, gpu_scenarios shows (ends.txt)."""

import errno
import gc
import re
import types

import device_peers as peers
import numpy as np
import pytest
from device_peers import MEGABYTE, Gate, expected, failing, kill
from peers import WATCHDOG, send_frame
from test_device import INLINE, passed

import ringcast

VECTORS = peers.HERE.parent / "vectors"
VALUE = {"x": ("cuda", np.arange(1000.0)), "o": ("other", np.arange(5))}


# ---- Calls of the driver ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, result, side, options, error",
    [
        ("cuMemcpyDtoDAsync", 999, "send", {}, "the copy of 8000 bytes: CUDA_ERROR_UNKNOWN"),
        ("cuStreamWriteValue64", 999, "send", {}, "CUDA_ERROR_UNKNOWN"),
        ("cuMemcpyDtoHAsync", 999, "send", INLINE, "CUDA_ERROR_UNKNOWN"),
        ("cuMemcpyDtoDAsync", 999, "recv", {}, "CUDA_ERROR_UNKNOWN"),
        ("cuMemcpyHtoDAsync", 999, "recv", INLINE, "CUDA_ERROR_UNKNOWN"),
        ("cuMemAllocAsync", 2, "recv", {}, "CUDA error 2"),  # torch's own
    ],
)
def test_a_failure_of_the_driver_is_raised_and_the_next_call_works(gpu, name, result, side, options, error):
    writer, reader = gpu.opened(options)
    made = gpu.make({"x": ("cuda", np.arange(1000.0))})
    if side == "recv":
        writer.send(made, WATCHDOG)
    gpu.settle()
    with failing(name, result), pytest.raises((ringcast.Error, RuntimeError), match=re.escape(error)):
        writer.send(made, WATCHDOG) if side == "send" else reader.recv(WATCHDOG)
    gpu.drain(reader)
    for _ in range(2):
        assert passed(gpu, writer, reader, VALUE) == expected(VALUE)


def test_what_has_no_room_in_the_ring_gives_its_place_in_the_pool_back(gpu):
    writer, _ = gpu.opened({"spill_bytes": 0})
    for size in (100000, 1000, 1):
        with pytest.raises(TimeoutError):
            while True:
                writer.send(bytes(size), 0)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            writer.send(gpu.make(VALUE), 0)
    gpu.settle()
    assert (writer.gpu.slots_used, writer.gpu.bytes_used) == (0, 0)


# ---- Libraries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", [{}], indirect=True)  # what torch was built with is asked once
def test_a_torch_without_cuda_is_told_of(gpu):
    """On a machine that has a driver."""
    writer, reader = gpu.pair()
    gpu.torch.backends = types.SimpleNamespace(cuda=types.SimpleNamespace(is_built=lambda: False))
    said = 'torch of this process is built without CUDA: .*map_location="cpu"'
    with ringcast.Reader(writer.handle, map_location="cuda") as other:
        for _ in range(2):
            writer.send(gpu.make(VALUE), WATCHDOG)
            for each in (reader, other):
                with pytest.raises(ringcast.Error, match=said) as raised:
                    each.recv(WATCHDOG)
                assert raised.value.errno == errno.ENODEV
    with ringcast.Reader(writer.handle, map_location="cpu") as other:
        writer.send(gpu.make(VALUE), WATCHDOG)
        assert (other.recv(WATCHDOG)["x"].numpy() == np.arange(1000.0)).all()


@pytest.mark.parametrize("gpu", [{}], indirect=True)  # which does not know yet what devices there are
def test_a_device_that_is_not_there_is_named(gpu):
    writer, _ = gpu.pair()
    missing = "'cuda:9': this process sees 1 device$"
    with ringcast.Reader(writer.handle, map_location="cuda:9") as reader:
        writer.send(gpu.make(VALUE), WATCHDOG)
        for ask in (lambda: reader.recv(WATCHDOG), reader.prepare_gpu):
            with pytest.raises(ringcast.Error, match=missing) as raised:
                ask()
            assert raised.value.errno == errno.EINVAL
    assert ringcast.gpu_status().ready
    with pytest.raises(ValueError, match="map_location is " + missing):
        ringcast.Reader(writer.handle, map_location="cuda:9")


# ---- Frames that are passed over -------------------------------------------------------------------------------------


def pass_over(state):
    """A frame of a pool that this Reader was never told of: it was under way when the Reader attached."""
    data = (VECTORS / "pool.bin").read_bytes()
    with ringcast.Writer(MEGABYTE) as writer, ringcast.Reader(writer.handle) as reader:
        send_frame(writer, data)
        writer.send("after", 0)
        assert reader.recv(0) == "after"
    with ringcast.Writer(MEGABYTE) as writer:
        writer.send("settings", 0, tag=7)
        send_frame(writer, data)
        send_frame(writer, data)
        writer.send("after", 0)
        with ringcast.Reader(writer.handle, start="latest", tag=7) as reader:
            assert [reader.recv(0), reader.recv(0)] == ["settings", "after"]
    with ringcast.Writer(MEGABYTE) as writer, ringcast.Reader(writer.handle, leases=2) as reader:
        send_frame(writer, data)
        with reader.next(0) as frame, pytest.raises(ringcast.Error, match="has not opened|was under way"):
            ringcast.unpack(frame)
        writer.send_error("could not send", 0)  # which is not hidden by what the frame was refused for
        writer.send("after", 0)
        with pytest.raises(ringcast.SendError):
            reader.recv(0)
        assert reader.recv(0) == "after"


def test_a_frame_that_was_under_way_to_others_is_passed_over(gpus, no_gpu):
    for peer in (gpus[0], no_gpu):
        peer.call(pass_over)


# ---- The writer's death ----------------------------------------------------------------------------------------------


def send_behind_gate(state):
    torch, side = state["torch"], state["torch"].cuda.Stream()
    state["gate"] = Gate(torch)
    tensor = torch.from_numpy(np.arange(1000.0)).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        state["gate"].close_for(side)
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
    gc.collect()
    return got


def test_a_tensor_that_never_came_is_told_of_before_what_came_after(gpus, mortal):
    reader = gpus[1]
    reader.call(peers.attach, mortal.call(peers.make_writer, MEGABYTE))
    mortal.call(peers.send, VALUE)
    reader.call(peers.receive)
    mortal.call(send_behind_gate)
    reader.call(receive_begun)
    kill(mortal)
    assert reader.call(receive_rest) == [{"cpu": 0}, {"cpu": 1}, {"cpu": 2}]
    assert reader.call(peers.left) == (0, 0, 0)
