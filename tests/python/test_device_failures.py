# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device: what is kept, skipped, polled, waited for, and sent on."""

import ctypes
import errno
import gc
import re
import types

import device_peers as peers
import numpy as np
import pytest
from device_peers import MEGABYTE, Gate, capture, failing, kill, on_device, opens_once_others_run, pair
from peers import WATCHDOG, send_frame

import ringcast

ROOT = peers.HERE.parents[1]


# ---- Keeping -------------------------------------------------------------------------------------------------------


def keep_on_device(state):
    writer, reader = pair(state, retain=True, map_location="cuda")
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
        send_frame(writer, data)
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
    return function()


def receive_what_comes_after():
    """Of a pool that this Reader was never told of: the frame was under way when it attached."""
    data = (ROOT / "tests" / "vectors" / "pool.bin").read_bytes()
    with ringcast.Writer(MEGABYTE) as writer, ringcast.Reader(writer.handle) as reader:
        send_frame(writer, data)
        writer.send("after", 0)
        return reader.recv(0)


def test_a_frame_that_was_under_way_to_others_is_passed_over(gpus, no_gpu):
    for peer in (gpus[0], no_gpu):
        assert peer.call(run, receive_what_comes_after) == "after"


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
    writer, reader = (peers.start(FAKE_CUDA_JITTER="7") for _ in range(2))
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


# ---- Other threads -------------------------------------------------------------------------------------------------


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


def drop_writer_behind_gate(state):
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state)
    tensor = on_device(state, np.arange(1000.0))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        writer.send({"x": tensor}, WATCHDOG)
        reader.recv(WATCHDOG)
        gate.close_for(side)
        writer.send({"x": tensor}, WATCHDOG)
        assert writer.gpu.pool_frames == 1
        state.pop("reader").close()
        with opens_once_others_run(gate):
            del state["writer"], writer
            gc.collect()
    gate.end()


def test_others_run_while_a_writer_that_is_dropped_waits(alone):
    alone(drop_writer_behind_gate)


def drop_tensor_behind_gate(state):
    """Its memory can't go in the order of a stream, and cuMemFree waits for the whole device."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state)
    writer.send({"o": peers.Other(on_device(state, np.arange(4.0)))}, WATCHDOG)
    received = reader.recv(WATCHDOG)["o"]
    torch.cuda.synchronize()
    gate.close_for(side)
    with failing("cuMemFreeAsync", 400), opens_once_others_run(gate):
        del received
    gate.end()


def test_others_run_while_a_tensor_that_is_dropped_waits(alone):
    alone(drop_tensor_behind_gate)


# ---- What is not sent ------------------------------------------------------------------------------------------------


def send_without_room(state):
    writer, reader = pair(state, {"spill_bytes": 0})
    tensor = on_device(state, np.arange(1000.0))
    writer.send({"x": tensor}, WATCHDOG)
    reader.recv(WATCHDOG)
    for size in (100000, 1000, 1):
        with pytest.raises(TimeoutError):
            while True:
                writer.send(bytes(size), 0)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            writer.send({"x": tensor}, 0)
    state["torch"].cuda.synchronize()
    return writer.gpu.slots_used, writer.gpu.bytes_used


def test_what_has_no_room_in_the_ring_gives_its_place_in_the_pool_back(alone):
    assert alone(send_without_room) == (0, 0)


class Pickled(peers.Other):
    """It has a tensor of a device, and as well a pickle."""

    def __reduce__(self):
        return str, ("pickled",)


class Holding:
    pass


def send_in_a_circle(state):
    """What holds itself goes by one pickle, and what was seen on a device before that was found out goes with it."""
    writer, reader = pair(state)
    value = {"x": Pickled(on_device(state, np.arange(3))), "y": Holding()}
    value["y"].whole = value
    writer.send(value, WATCHDOG)
    got = reader.recv(WATCHDOG)
    return got["x"], got["y"].whole is got, writer.gpu, reader.gpu


def test_what_goes_by_pickle_in_the_end_touches_no_device(alone):
    assert alone(send_in_a_circle) == ("pickled", True, None, None)


# ---- Captures ------------------------------------------------------------------------------------------------------


def send_captured(state, how, opened, pooled):
    torch = state["torch"]
    writer, reader = pair(state, {} if pooled else {"gpu_pool_bytes": 0})
    tensor = on_device(state, np.arange(12.0)).as_strided((3, 4), (1, 3) if how else (4, 1), 0)
    if opened:
        writer.send({"x": tensor}, WATCHDOG)
        reader.recv(WATCHDOG)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    before = peers.calls("cuMemAlloc_v2", "cuMemAllocAsync", "cuStreamSynchronize")
    with torch.cuda.stream(side), capture(torch, side), pytest.raises(ringcast.Error, match="captures a CUDA graph"):
        writer.send({"x": tensor}, WATCHDOG)
    after = peers.calls("cuMemAlloc_v2", "cuMemAllocAsync", "cuStreamSynchronize")
    writer.send({"x": tensor}, WATCHDOG)
    return before == after, reader.recv(WATCHDOG)["x"].numpy().tolist() == tensor.numpy().tolist()


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("is_strided", [False, True])
def test_a_send_into_a_capture_touches_nothing(alone, is_strided, opened, pooled):
    assert alone(send_captured, is_strided, opened, pooled) == (True, True)


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
            waits = peers.calls("fake_own_waits")
            got = reader.recv(WATCHDOG)
            assert i == 0 or peers.calls("fake_own_waits") == waits  # all of it goes by torch's stream
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


# ---- Where tensors can't arrive ------------------------------------------------------------------------------------


def receive_without_cuda(state):
    """torch is built without it, on a machine that has a driver."""
    torch = state["torch"]
    writer, reader = pair(state)
    torch.backends = types.SimpleNamespace(cuda=types.SimpleNamespace(is_built=lambda: False))
    said = []
    for options in ({}, {"map_location": "cuda"}):
        with ringcast.Reader(writer.handle, **options) as other:
            for i in range(2):
                writer.send({"x": on_device(state, np.arange(3)), "i": i}, WATCHDOG)
                with pytest.raises(ringcast.Error) as raised:
                    other.recv(WATCHDOG)
                said.append((raised.value.errno, str(raised.value)))
                with pytest.raises(ringcast.Error):
                    reader.recv(WATCHDOG)
    with ringcast.Reader(writer.handle, map_location="cpu") as other:
        writer.send({"x": on_device(state, np.arange(3))}, WATCHDOG)
        got = other.recv(WATCHDOG)["x"].numpy().tolist()
    return said, got


def test_a_torch_without_cuda_is_told_of(fake_driver):
    peer = peers.start()
    try:
        said, got = peer.call(receive_without_cuda)
    finally:
        peer.call(peers.close)
        peer.stop()
    assert got == [0, 1, 2] and len({*said}) == 1 and said[0][0] == errno.ENODEV
    assert re.search('torch of this process is built without CUDA: .*map_location="cpu"', said[0][1])


def prepare_on_busy_device(state):
    """It comes to no new stream; then it does. What both sides say meanwhile and after."""
    writer, reader = pair(state)
    made = writer.empty((1000,), state["torch"].float64)
    with failing("cuStreamQuery", 600, 0):
        said = [reader.prepare_gpu(), reader.gpu.way, reader.gpu.why, writer.gpu.why]
    said += [reader.prepare_gpu(), reader.gpu.way, reader.gpu.why]
    del made
    return said


def test_a_device_that_is_busy_is_told_to_who_asks(alone):
    opened, way, why, told, *then = alone(prepare_on_busy_device)
    assert (opened, way) == (False, "refused")
    assert why.startswith("the device is busy: it has not come to a new stream")
    assert told.endswith("can't open the pool: the reader's device is busy; the reader tries again")
    assert then == [True, "pool", ""]


def name_missing_device(state, is_known):
    with ringcast.Writer(MEGABYTE) as writer:
        if is_known:
            assert ringcast.gpu_status().ready
            with pytest.raises(ValueError, match="map_location is 'cuda:9': this process sees 1 device$"):
                ringcast.Reader(writer.handle, map_location="cuda:9")
            return True
        with ringcast.Reader(writer.handle, map_location="cuda:9") as reader:
            writer.send({"x": on_device(state, np.arange(3))}, WATCHDOG)
            for ask in (lambda: reader.recv(WATCHDOG), reader.prepare_gpu):
                with pytest.raises(ringcast.Error, match="'cuda:9': this process sees 1 device$") as why:
                    ask()
                assert why.value.errno == errno.EINVAL
        return True


def test_a_device_that_is_not_there_is_named(fake_driver):
    peer = peers.start()
    try:
        assert peer.call(name_missing_device, False) and peer.call(name_missing_device, True)
    finally:
        peer.stop()


def receive_what_its_library_refuses(state):
    """JAX is for the CPU alone here; the frame is not lost."""
    import cupy
    import jax.dlpack

    def refuse(_):
        raise RuntimeError("Unknown backend: 'cuda' requested")

    writer, reader = pair(state)
    tensor, kept = on_device(state, np.arange(3.0)), (jax.dlpack.from_dlpack, cupy.from_dlpack)
    jax.dlpack.from_dlpack = cupy.from_dlpack = refuse
    try:
        writer.send({"j": jax.Array(tensor), "c": cupy.ndarray(tensor), "n": 1}, WATCHDOG)
        got = reader.recv(WATCHDOG)
    finally:
        jax.dlpack.from_dlpack, cupy.from_dlpack = kept
    for function in (np.asarray, np.array):
        with pytest.raises(TypeError, match='map_location="cpu"'):
            function(got["j"])
    return peers.seen(got)


def test_what_its_library_refuses_stays_a_device_tensor(alone):
    told = "DeviceTensor", "float64", (3,), np.arange(3.0).tobytes()
    assert alone(receive_what_its_library_refuses) == {"j": told, "c": told, "n": 1}


class Refusing:
    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None):
        raise BufferError("it is busy")


def test_what_an_array_refuses_is_said_with_its_place():
    with ringcast.Writer(MEGABYTE) as writer, pytest.raises(BufferError, match=r"^value\['a'\]\[1\]: it is busy$"):
        writer.send({"a": [0, Refusing()]}, 0)


def view_after_failure(state):
    """from_dlpack() fails once, for a reason that passes."""
    torch, fails = state["torch"], []
    make = torch.from_dlpack

    def from_dlpack(source):
        if fails:
            raise fails.pop()
        return make(source)

    torch.from_dlpack = from_dlpack  # before ringcast has looked for it
    writer, reader = pair(state)
    kinds = []
    for error in (RuntimeError("not now"), None, MemoryError(), None):
        for kind in ("cuda", "cpu"):
            writer.send({"x": peers.make(torch, (kind, np.arange(5.0)))}, WATCHDOG)
            if not kinds:
                reader.recv(WATCHDOG)  # opens the pool
                writer.send({"x": peers.make(torch, (kind, np.arange(5.0)))}, WATCHDOG)
            fails += [error] if error else []
            with reader.view(WATCHDOG) as value:
                kinds.append(type(value["x"].memory).__name__)
            del value
    return kinds


def test_one_failure_of_from_dlpack_is_not_for_good(fake_driver):
    peer = peers.start()
    try:
        failed, looked = ["_DeviceMemory", "_HostMemory"], ["_Borrowed"] * 2
        assert peer.call(view_after_failure) == failed + looked + failed + looked
    finally:
        peer.call(peers.close)
        peer.stop()
