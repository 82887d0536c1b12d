# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device are sent and received, on a driver that is a fake: what arrives, which
way it goes, and what happens where something fails. A test with the argument `gpu` runs in a
process that has a device. Which results of the driver the library takes as what, gpu_scenarios
shows."""

import errno
import gc
import os
import signal
from unittest import mock

import device_peers as peers
import numpy as np
import pytest
from device_peers import COPIES, INLINE, MEGABYTE, VALUES, WAITS, Gate, exchange, failing, seen
from peers import WATCHDOG, send_frame
from read_frame import stored

import ringcast

POOL = {"gpu_pool_bytes": 2 * MEGABYTE}


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, way", [({}, "pool"), (INLINE, "no_pool")])
@pytest.mark.parametrize("readers", [1, 4])
def test_values_arrive_equal(rings, readers, options, way):
    writer, others = rings(readers, options)
    for name in VALUES:
        exchange(writer, others, name)
    told = writer.call(peers.info)
    frames = told.pool_frames if way == "pool" else told.inline_frames
    assert told.way == way and frames >= len(VALUES) // 2
    if way == "pool":
        assert [reader.call(peers.info, "reader").opens for reader in others] == [1] * readers


@pytest.mark.parametrize("options", [{}, INLINE])
@pytest.mark.parametrize("location, where", [("cpu", "cpu"), ("cuda", "cuda:0")])
def test_values_arrive_where_map_location_says(rings, options, location, where):
    writer, others = rings(1, options, {"map_location": location})
    for name in ("mixed", "mixed", "on the host", "cupy", "jax"):
        exchange(writer, others, name, where)


def use_device(state, ordinal):
    state["torch"].cuda.set_device(ordinal)


def test_several_devices(two_devices):
    """torch moves its tensors to the Writer's device; for others it can't."""
    writer, reader, third = two_devices
    handle = writer.call(peers.make_writer)
    reader.call(peers.attach, handle, {"map_location": "cuda:1"})
    third.call(use_device, 1)
    third.call(peers.attach, handle)
    for _ in range(3):
        exchange(writer, [reader, third], "both", "cuda:1")
    with pytest.raises(TypeError, match=r"value\['o'\].*'cuda:0'.*'cuda:1'"):
        writer.call(peers.send, "other on the first")
    assert writer.call(peers.info).device == 1
    for peer in (reader, third, writer):
        peer.call(peers.close)


@pytest.mark.parametrize("location", ["cud", "cuda:", "cuda:x", "mps", 3, "cuda:-1", "cuda:1024"])
def test_another_map_location_is_refused(ring, location):
    with pytest.raises(ValueError, match="map_location"):
        ringcast.Reader(ring[0].handle, map_location=location)


# ---- The way -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked, options, names, way, pool_frames",
    [
        ("", {}, ["one"] * 3, "no_pool", 0),
        ("0", {}, ["one"] * 3, "no_pool", 0),
        ("0", POOL, ["one"] * 3, "waiting", 0),  # of the readers, which may not open it
        ("", POOL, ["one"] * 3, "pool", 2),  # the first goes before a reader has opened it
        ("2097152", {}, ["one"] * 3, "pool", 2),
        ("", POOL, ["one", "too large", "one"], "pool", 1),
    ],
)
def test_which_way_a_frame_goes(gpu, asked, options, names, way, pool_frames):
    with mock.patch.dict(os.environ, RINGCAST_GPU_POOL_BYTES=asked):
        writer, reader = gpu.pair(options)
        for name in names:
            gpu.passes(writer, reader, name)
        told = writer.gpu
    assert (told.way, told.pool_frames) == (way, pool_frames)
    assert told.pool_frames + told.inline_frames == len(names)


def test_what_has_no_room_goes_through_the_ring_and_then_not_at_all(gpu):
    writer, reader = gpu.opened({**POOL, "spill_bytes": 0})
    value = VALUES["large"](gpu)
    for _ in range(5):  # of which four fill the pool
        writer.send(value, WATCHDOG)
    assert (writer.gpu.pool_frames, writer.gpu.full) == (4, 1)
    for _ in range(5):
        assert seen(reader.recv(WATCHDOG)) == seen(value)
    gpu.settle()
    for size in (100000, 1000, 1):
        with pytest.raises(TimeoutError):
            while True:
                writer.send(bytes(size), 0)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            writer.send(value, 0)
    gpu.settle()
    assert (writer.gpu.slots_used, writer.gpu.bytes_used) == (0, 0)


@pytest.mark.parametrize("options", [{}, INLINE])
def test_nothing_waits_for_the_device_and_small_tensors_are_one_copy(gpu, options):
    writer, reader = gpu.opened(options)
    value = VALUES["many"](gpu)
    if not options:
        value.append(gpu.cuda(np.arange(400000, dtype=np.float32)))
    gpu.passes(writer, reader, value)
    gpu.torch._packed.copies = 0  # in place of kernels of torch's
    with gpu.counting(*WAITS, *COPIES) as sent:
        for _ in range(10):
            writer.send(value, WATCHDOG)
    sent[len(WAITS)] -= gpu.torch._packed.copies
    with gpu.counting(*WAITS, *COPIES) as came:
        got = [reader.recv(WATCHDOG) for _ in range(10)]
    assert seen(got) == [seen(value)] * 10
    if options:  # who sends through the ring waits, and who receives does not
        assert came == [0, 0, 0, 0, 0, 0, 10, 0]
    else:  # each time the small ones together, and the large one
        assert sent == [0, 0, 0, 0, 0, 20, 0, 0] and came == [0, 0, 0, 0, 0, 20, 0, 0]


# ---- Other libraries -----------------------------------------------------------------------------


def test_what_its_library_refuses_stays_a_device_tensor(gpu):
    """As JAX does where it is for the CPU alone; the frame is not lost."""
    import cupy
    import jax.dlpack

    writer, reader = gpu.pair()
    refuse = mock.Mock(side_effect=RuntimeError("Unknown backend: 'cuda' requested"))
    for library, module in (("jax", jax.dlpack), ("cupy", cupy)):
        with mock.patch.object(module, "from_dlpack", refuse):
            writer.send([getattr(gpu, library)(np.arange(3.0)), 1], WATCHDOG)
            got = reader.recv(WATCHDOG)
        with pytest.raises(TypeError, match="map_location"):
            np.asarray(got[0])
        assert seen(got) == seen([gpu.other(np.arange(3.0)), 1])


class Foreign:
    def __init__(self, *place):
        self.place = place

    def __dlpack_device__(self):
        return self.place or 1 / 0

    def __dlpack__(self, *, stream=None):
        raise BufferError("it is busy")


def test_an_array_that_refuses_is_named_and_what_is_on_no_cuda_device_goes_by_pickle(ring):
    writer, reader = ring
    with pytest.raises(BufferError, match=r"^value\['a'\]\[1\]: it is busy$"):
        writer.send({"a": [0, Foreign(2, 0)]}, 0)
    for place in ((10, 0), ()):
        writer.send([Foreign(*place)], 0)
        assert reader.recv(0)[0].place == place


# ---- Without a device ----------------------------------------------------------------------------


def handle_of(state):
    return state["writer"].handle


def status_of(state):
    return ringcast.gpu_status()


def test_a_writer_that_may_not_use_a_device_says_why(no_gpu, gpus):
    no_gpu.call(peers.make_writer)
    for name in ("large", "other"):
        with pytest.raises(TypeError, match=r"value\[.*'cuda:0'.*RINGCAST_DISABLE"):
            no_gpu.call(peers.send, name)
    assert no_gpu.call(peers.info) is None
    no_gpu.call(peers.close)
    status = no_gpu.call(status_of)
    assert not status.ready and "RINGCAST_DISABLE" in status.why
    status = gpus[0].call(status_of)
    assert (status.ready, status.why, status.devices) == (True, "", 1)


def test_a_reader_without_one_holds_the_others_to_the_ring_while_it_is_there(rings, no_gpu):
    writer, others = rings()
    handle = writer.call(handle_of)
    for options, where in (({}, None), ({"map_location": "cpu"}, "cpu")):
        no_gpu.call(peers.attach, handle, options)
        for _ in range(3):
            exchange(writer, others, "large")
            if where:
                no_gpu.call(peers.receive)
            else:
                with pytest.raises(ringcast.Error, match="map_location"):
                    no_gpu.call(peers.receive)
        assert writer.call(peers.info).pool_frames == 0
        no_gpu.call(peers.close)
    for _ in range(2):
        exchange(writer, others, "large")
    assert writer.call(peers.info).pool_frames == 2


def no_torch(gpu):
    gpu.torch.backends.cuda.is_built = lambda: False


@pytest.mark.parametrize("gpu", [{}], indirect=True)  # of what torch and the driver say once
@pytest.mark.parametrize(
    "prepare, location, code, word",
    [
        (no_torch, None, errno.ENODEV, 'without CUDA.*map_location="cpu"'),
        (no_torch, "cuda", errno.ENODEV, 'without CUDA.*map_location="cpu"'),
        (None, "cuda:9", errno.EINVAL, "'cuda:9'"),
    ],
)
def test_what_can_not_arrive_is_told_and_arrives_on_the_cpu(gpu, prepare, location, code, word):
    writer, _ = gpu.pair()
    if prepare:
        prepare(gpu)
    with ringcast.Reader(writer.handle, map_location=location) as reader:
        with ringcast.Reader(writer.handle, map_location="cpu") as other:
            for _ in range(2):
                writer.send(VALUES["large"](gpu), WATCHDOG)
                with pytest.raises(ringcast.Error, match=word) as raised:
                    reader.recv(WATCHDOG)
                assert raised.value.errno == code
                assert (other.recv(WATCHDOG)["x"].numpy() == np.arange(60000.0)).all()


# ---- Failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, result, side, options",
    [
        ("cuMemcpyDtoDAsync", 999, "send", {}),
        ("cuStreamWriteValue64", 999, "send", {}),
        ("cuMemcpyDtoHAsync", 999, "send", INLINE),
        ("cuMemcpyDtoDAsync", 999, "recv", {}),
        ("cuMemcpyHtoDAsync", 999, "recv", INLINE),
        ("cuMemAllocAsync", 2, "recv", {}),  # torch's own
    ],
)
def test_a_failure_is_raised_and_the_next_call_works(gpu, name, result, side, options):
    writer, reader = gpu.opened(options)
    value = VALUES["large"](gpu)
    if side == "recv":
        writer.send(value, WATCHDOG)
    gpu.settle()
    words = "CUDA_ERROR_UNKNOWN" if result == 999 else "CUDA error 2"
    with failing(name, result), pytest.raises((ringcast.Error, RuntimeError), match=words):
        writer.send(value, WATCHDOG) if side == "send" else reader.recv(WATCHDOG)
    with pytest.raises((TimeoutError, ringcast.Error)):
        while True:
            reader.recv(0)
    for _ in range(2):
        gpu.passes(writer, reader, "mixed")


def pass_over(state):
    """Frames of a pool that this Reader was never told of: they were under way as it attached."""
    data = bytes.fromhex(stored()["pool"]["frame"])
    with ringcast.Writer(MEGABYTE) as writer, ringcast.Reader(writer.handle) as reader:
        send_frame(writer, data)
        writer.send("after", 0)
        assert reader.recv(0) == "after"
    with ringcast.Writer(MEGABYTE) as writer:
        writer.send("settings", 0, tag=7)
        for _ in range(2):
            send_frame(writer, data)
        writer.send("after", 0)
        with ringcast.Reader(writer.handle, start="latest", tag=7) as reader:
            assert [reader.recv(0), reader.recv(0)] == ["settings", "after"]


def test_a_frame_that_was_under_way_to_others_is_passed_over(gpus, no_gpu):
    for peer in (gpus[0], no_gpu):
        peer.call(pass_over)


def send_behind_gate(state):
    side = state["torch"].cuda.Stream()
    tensor = peers.Maker(state["torch"]).cuda(np.arange(1000.0))
    state["torch"].cuda.synchronize()
    state["gate"] = Gate(state["torch"])
    with state["torch"].cuda.stream(side):
        state["gate"].close_for(side)
        state["writer"].send({"x": tensor}, WATCHDOG)
    for i in range(3):
        state["writer"].send(i, WATCHDOG)


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
    reader.call(peers.attach, mortal.call(peers.make_writer))
    exchange(mortal, [reader], "mixed")
    mortal.call(send_behind_gate)
    reader.call(receive_begun)
    os.kill(mortal.pid, signal.SIGKILL)
    mortal.process.join(WATCHDOG)
    assert reader.call(receive_rest) == [0, 1, 2]
    assert reader.call(peers.left) == (0, 0, 0)
