# SPDX-License-Identifier: Apache-2.0
"""What is received on one stream, and used on another: whose order holds, and when its memory goes."""

import contextlib
import ctypes
import gc

import device_peers as peers
import numpy as np
import pytest
from device_exchange import exchange
from device_peers import MEGABYTE, Gate, capture, failing, on_device, pair
from peers import WATCHDOG

import ringcast

WAITS = "cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree", "fake_host_waits"


def copied(torch, tensor):
    """A copy of it, on the current stream."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
    with torch._on(0):
        at = ctypes.c_uint64(copy.data_ptr()), ctypes.c_uint64(tensor.data_ptr())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        nbytes = ctypes.c_size_t(tensor.numel() * tensor.dtype.itemsize)
        torch.check(torch.driver().cuMemcpyDtoDAsync_v2(*at, nbytes, stream))
    return copy


def receive_other(state, array):
    """A DeviceTensor, which has memory of ours, by the legacy stream."""
    state["writer"].send({"o": peers.Other(on_device(state, array))}, WATCHDOG)
    return state["reader"].recv(WATCHDOG)["o"]


# ---- Memory of ours --------------------------------------------------------------------------------------------------


def use_on_another(state):
    """Its last holder goes while a copy of it has still to be made, on another stream than the one that it came by."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    pair(state)
    for i in range(3):
        received = receive_other(state, np.full(50000, float(i)))
        before = peers.calls(*WAITS)
        with torch.cuda.stream(side):
            tensor = torch.from_dlpack(received)
            assert i > 0 or gate.close_for(side) is None
            copy = copied(torch, tensor)
            del tensor, received
            gc.collect()
        assert peers.calls(*WAITS) == before, "the host waits"
        gate.open()
        with torch.cuda.stream(side):
            assert (copy.numpy() == i).all()
    gate.end()


def test_memory_that_another_stream_uses_goes_when_that_has_done(alone):
    alone(use_on_another)


def hand_over(state):
    """What has not come yet is handed to another stream, which waits for it in the device's order."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    pair(state)
    receive_other(state, np.zeros(3))
    state["writer"].send({"o": peers.Other(on_device(state, np.arange(50000.0)))}, WATCHDOG)
    gate.close_for(None)
    received = state["reader"].recv(WATCHDOG)["o"]
    before = peers.calls(*WAITS)
    with torch.cuda.stream(side):
        copy = copied(torch, torch.from_dlpack(received))
        waits = peers.calls(*WAITS) != before
        gate.open()
        same = (copy.numpy() == np.arange(50000.0)).all()
    gate.end()
    return waits, same


def test_what_is_handed_to_another_stream_is_waited_for_there(alone):
    assert alone(hand_over) == (False, True)


def hand_to(state, asked):
    """The stream that a capsule is asked for; DLPack's 1 is the legacy one, which these come by, 2 each thread's."""
    torch, side = state["torch"], state["torch"].cuda.Stream()
    pair(state)
    receive_other(state, np.zeros(3))
    received = receive_other(state, np.arange(5000.0))
    before = peers.calls("cuStreamSynchronize")[0]
    with capture(torch, side) if asked == "captures" else contextlib.nullcontext():
        capsule = received.__dlpack__(stream=side.cuda_stream if asked == "captures" else asked)
    waits = peers.calls("cuStreamSynchronize")[0] - before
    same = (torch.from_dlpack(capsule).numpy() == np.arange(5000.0)).all()
    del capsule
    return waits, same


@pytest.mark.parametrize(("asked", "waits"), [("captures", 1), (2, 1), (1, 0), (None, 0), (-1, 0)])
def test_the_host_waits_for_a_stream_that_can_t_be_told_to(alone, asked, waits):
    assert alone(hand_to, asked) == (waits, True)


def drop_in_capture(state):
    torch, side = state["torch"], state["torch"].cuda.Stream()
    pair(state)
    receive_other(state, np.zeros(3))
    gc.collect()
    torch._forget_dropped()
    torch.cuda.synchronize()
    before, left = peers.live("allocations"), []
    for _ in range(3):
        received = receive_other(state, np.arange(5000.0))
        with torch.cuda.stream(side):
            tensor = torch.from_dlpack(received)
            copied(torch, tensor)
        with capture(torch, side):
            del tensor, received
            gc.collect()
        torch._forget_dropped()
        torch.cuda.synchronize()
        left.append(peers.live("allocations") - before)
    receive_other(state, np.zeros(3))
    gc.collect()
    torch._forget_dropped()
    torch.cuda.synchronize()
    return left, peers.live("allocations") - before


def test_memory_that_is_dropped_in_a_capture_goes_after_it(alone):
    assert alone(drop_in_capture) == ([1, 1, 1], 0)


def drop_where_calls_fail(state, nth):
    """Its stream can't be told to wait for the other one: for want of memory, once, or as long as that is."""
    torch, side, left = state["torch"], state["torch"].cuda.Stream(), []
    pair(state)
    receive_other(state, np.zeros(3))

    def count():
        gc.collect()
        torch._forget_dropped()
        torch.cuda.synchronize()
        left.append(peers.live("allocations"))

    received = receive_other(state, np.arange(5000.0))
    with torch.cuda.stream(side):
        tensor = torch.from_dlpack(received)
        copy = copied(torch, tensor)
    count()
    waits = peers.calls("cuStreamSynchronize")[0]
    with failing("cuDevicePrimaryCtxRetain", 2, nth):
        del tensor, received
        gc.collect()
        waits = peers.calls("cuStreamSynchronize")[0] - waits
        count()
    receive_other(state, np.zeros(3))
    count()
    with torch.cuda.stream(side):
        same = (copy.numpy() == np.arange(5000.0)).all()
    return same, waits, left[1] - left[0], left[2] - left[0]


@pytest.mark.parametrize(("nth", "waits", "kept"), [(1, 1, 0), (0, 0, 1)])
def test_where_its_stream_can_t_wait_the_host_does_or_the_memory_stays(alone, nth, waits, kept):
    assert alone(drop_where_calls_fail, nth) == (True, waits, kept - 1, -1)


def use_failing_events(state):
    torch, side = state["torch"], state["torch"].cuda.Stream()
    pair(state)
    seen = []
    for i in range(3):
        received = receive_other(state, np.full(50000, float(i)))
        before = peers.calls("cuStreamSynchronize")
        with torch.cuda.stream(side):
            tensor = torch.from_dlpack(received)
            copy = copied(torch, tensor)
            del tensor, received
            gc.collect()
            seen.append((peers.calls("cuStreamSynchronize")[0] - before[0], (copy.numpy() == i).all()))
    state.pop("reader").close()
    state.pop("writer").close()
    return seen


def test_where_an_event_fails_the_host_waits():
    peer = peers.start(FAKE_CUDA_JITTER="5", FAKE_CUDA_FAIL="cuEventRecord:0:2")
    try:
        assert peer.call(use_failing_events) == [(2, True)] * 3  # before and after
    finally:
        peer.stop()


# ---- Streams that are destroyed --------------------------------------------------------------------------------------


def by_recv(state, cupy):
    with cupy.cuda.Stream():
        got = state["reader"].recv(WATCHDOG)["c"]
    return got, contextlib.nullcontext()


def by_view(state, cupy):
    with cupy.cuda.Stream(), state["reader"].view(WATCHDOG) as value:
        got = value["c"]
    return got, contextlib.nullcontext()


def by_frame(state, cupy):
    """The take of the frame is open until the frame is released."""
    frame = state["reader"].next(WATCHDOG)
    with cupy.cuda.Stream():
        got = frame["c"]
    return got, frame


def drop_after_its_stream(state, receive):
    import cupy

    torch = state["torch"]
    writer, reader = pair(state)
    receive_other(state, np.zeros(3))
    assert reader.prepare_gpu()
    streams, strays = peers.live("streams"), peers.live("strays")
    for i in range(2):
        writer.send({"c": cupy.ndarray(on_device(state, np.full(5000, float(i))))}, WATCHDOG)
        got, frame = receive(state, cupy)
        gc.collect()
        kept = peers.live("streams") - streams
        assert (got.tensor.numpy() == i).all()
        with frame:
            pass
        del got, frame
        gc.collect()
        torch._forget_dropped()
    torch.cuda.synchronize()
    left = peers.live("streams") - streams
    return kept, left, peers.live("strays") - strays, writer.gpu.slots_used


@pytest.mark.parametrize("receive", [by_recv, by_view, by_frame])
def test_cupy_s_stream_is_kept_as_long_as_what_came_by_it(alone, receive):
    assert alone(drop_after_its_stream, receive) == (1, 0, 0, 0)


def raw_copy(torch, stream, made, pointer, nbytes):
    with torch._on(0):
        at = ctypes.c_uint64(made.data_ptr()), ctypes.c_uint64(pointer)
        torch.check(torch.driver().cuMemcpyDtoDAsync_v2(*at, ctypes.c_size_t(nbytes), ctypes.c_void_p(stream)))


def come(torch, reached):
    """Waits for what another thread brings about; the caller's watchdog ends the wait else."""
    while not reached():
        torch._forget_dropped()


def use_by_a_stranger(state, looks, asked):
    """A library that is not known has its streams: it names one, uses two, and destroys them before the memory goes."""
    torch, gate = state["torch"], Gate(state["torch"])
    writer, reader = pair(state)
    receive_other(state, np.zeros(3))
    torch._forget_dropped()
    torch.cuda.synchronize()
    assert reader.prepare_gpu()
    before, strays = peers.live("allocations"), peers.live("strays")
    named, used = torch.cuda.Stream(), torch.cuda.Stream()
    copy = torch.empty((5000,), torch.float64, "cuda")
    writer.send({"o": peers.Other(on_device(state, np.arange(5000.0)))}, WATCHDOG)
    if looks:
        with reader.view(WATCHDOG) as value:
            received = value["o"]
        del value
    else:
        received = reader.recv(WATCHDOG)["o"]
    torch._forget_dropped()
    torch.cuda.synchronize()
    if asked == "interface":
        assert received.__cuda_array_interface__["version"] == 3
    else:
        capsule = received.__dlpack__(stream=named.cuda_stream if asked == "named" else -1)
    gate.close_for(used)
    raw_copy(torch, used.cuda_stream, copy, received.data_ptr, 40000)
    with torch._on(0):
        for stream in named, used:
            torch.check(torch.driver().cuStreamDestroy_v2(ctypes.c_void_p(stream.cuda_stream)))
    had = peers.live("allocations"), writer.gpu.slots_used
    waits, synchronized = peers.calls("fake_own_waits", "cuCtxSynchronize")
    if asked != "interface":
        del capsule
    del received
    gc.collect()
    come(torch, lambda: peers.calls("cuCtxSynchronize")[0] > synchronized)
    is_held = had == (peers.live("allocations"), writer.gpu.slots_used) and had[1] == looks
    waits = peers.calls("fake_own_waits")[0] != waits
    gate.open()
    torch.cuda.synchronize()
    same = (copy.numpy() == np.arange(5000.0)).all()
    del copy
    come(torch, lambda: writer.gpu.slots_used == 0 if looks else peers.live("allocations") == before)
    gate.end()
    return same, is_held, waits, peers.live("strays") - strays


@pytest.mark.parametrize("asked", ["named", "unsaid", "interface"])
@pytest.mark.parametrize("looks", [False, True])
def test_memory_that_a_stranger_s_streams_use_goes_when_the_device_has_done(alone, looks, asked):
    assert alone(use_by_a_stranger, looks, asked) == (True, True, False, 0)


# ---- torch's memory --------------------------------------------------------------------------------------------------


def look_into_used_memory(state, is_there):
    """On another stream than the look before; and torch gives out memory that its stream has still to write to."""
    torch, gate, side = state["torch"], Gate(state["torch"]), state["torch"].cuda.Stream()
    writer, reader = pair(state)
    large = torch.segment(np.arange(200000.0))
    if is_there:
        writer.empty((1,), torch.uint8)
    assert reader.prepare_gpu() == is_there
    writer.send({"x": on_device(state, np.arange(3)), "y": large}, WATCHDOG)
    with reader.next(WATCHDOG) as frame:
        peers.seen(frame["x"])
        with torch.cuda.stream(side):
            before = on_device(state, np.full(200000, -1.0))
            torch.cuda.synchronize()
            gate.close_for(side)
            used = copied(torch, before)
            made, torch._DeviceMemory = torch._DeviceMemory, lambda *_: used.memory
            try:
                got = frame["y"]
            finally:
                torch._DeviceMemory = made
        for _ in range(1000):  # for what does not wait
            torch.driver().cuStreamQuery(None)
        gate.open()
        with torch.cuda.stream(side):
            same = (got.numpy() == np.arange(200000.0)).all()
    gate.end()
    return same, writer.gpu.pool_frames


@pytest.mark.parametrize("is_there", [False, True])
def test_torch_s_memory_is_written_to_in_the_order_of_its_stream(alone, is_there):
    assert alone(look_into_used_memory, is_there) == (True, int(is_there))


def send_conjugated(state):
    """What torch copies before it is sent, on another stream than its own."""
    torch, side, seen = state["torch"], state["torch"].cuda.Stream(), []
    pair(state)
    tensor = on_device(state, np.arange(8).astype("complex64"))
    state["writer"].send({"x": tensor}, WATCHDOG)
    state["reader"].recv(WATCHDOG)
    assert tensor.memory.recorded == {(0, 0)}
    lazy, plain = tensor.as_strided((8,), (1,)), torch.Tensor.is_conj

    def resolve(self):
        seen.append(self is lazy and (0, side.cuda_stream) in self.memory.recorded)
        return on_device(state, np.arange(8).astype("complex64") + 1)

    torch.Tensor.is_conj, torch.Tensor.resolve_conj = lambda self: self is lazy, resolve
    try:
        with torch.cuda.stream(side):
            state["writer"].send({"x": lazy}, WATCHDOG)
            with capture(torch, side), pytest.raises(ringcast.Error, match="captures a CUDA graph"):
                state["writer"].send({"x": lazy}, WATCHDOG)
    finally:
        torch.Tensor.is_conj, torch.Tensor.resolve_conj = plain, torch.Tensor.detach
    return seen, state["reader"].recv(WATCHDOG)["x"].numpy().tolist() == list(range(1, 9))


def test_torch_is_told_of_what_it_copies_before_it_does(alone):
    assert alone(send_conjugated) == ([True], True)


# ---- Views of the pool -----------------------------------------------------------------------------------------------


def view_on_another(state, kind):
    torch, side = state["torch"], state["torch"].cuda.Stream()
    gate = state["gate"] = Gate(torch)
    with on_cupy_s(side if kind == "cupy" else None), state["reader"].view(WATCHDOG) as value, torch.cuda.stream(side):
        tensor = value["o"].tensor if kind == "cupy" else torch.from_dlpack(value["o"])
        gate.close_for(side)
        state["copy"], state["side"] = copied(torch, tensor), side
        del tensor, value
        gc.collect()


@contextlib.contextmanager
def on_cupy_s(stream):
    import cupy

    cupy.cuda.stream = stream
    try:
        yield
    finally:
        cupy.cuda.stream = None


def open_and_look(state):
    state["gate"].open()
    with state["torch"].cuda.stream(state["side"]):
        seen = state.pop("copy").numpy()
    state.pop("gate").end()
    return seen.min(), seen.max()


@pytest.mark.parametrize("kind", ["other", "cupy"])
def test_a_place_in_the_pool_that_another_stream_reads_is_kept(rings, kind):
    """CuPy names its current stream, and the frame came by torch's."""
    writer, (reader,) = rings(1, {"gpu_pool_bytes": 2 * MEGABYTE})
    beside = {"t": ("cuda", np.arange(3))} if kind == "cupy" else {}
    value = [{"o": (kind, np.full(150000, float(i))), **beside} for i in range(5)]  # two have no room in the pool
    exchange(writer, [reader], value[0])
    writer.call(peers.send, value[1])
    assert writer.call(peers.gpu).pool_frames == 1
    reader.call(view_on_another, kind)
    for each in value[2:]:
        writer.call(peers.send, each)
    assert writer.call(peers.gpu).pool_frames == 1  # nothing else has had its place
    assert reader.call(open_and_look) == (1, 1)
    for _ in value[2:]:
        reader.call(peers.receive)
