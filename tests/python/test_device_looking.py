# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device, beyond send() and recv(): views, Frames, packed frames, Taps, asyncio, and tensors that
Writer.empty makes in the pool."""

import asyncio
import ctypes
import errno
from unittest import mock

import numpy as np
import pytest
from device_peers import COPIES, MEGABYTE, calls, expected, live, seen, told
from peers import WATCHDOG
from test_device import INLINE, VALUE, passed

import ringcast
from ringcast import _asyncio

pytestmark = pytest.mark.alike

GET = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def dlpack_flags(tensor):
    """They stand behind the version, a pointer of the maker's, and the deleter."""
    capsule = tensor.__dlpack__(stream=-1, max_version=(1, 0))
    return ctypes.c_uint64.from_address(GET(capsule, b"dltensor_versioned") + 8 + 2 * 8).value


def test_a_place_for_a_capsule_is_checked(gpu):
    writer, reader = gpu.pair()
    writer.send(gpu.make(("other", np.arange(3))), WATCHDOG)
    tensor = reader.recv(WATCHDOG)
    for place in ([2, 0], 3, (2,)):
        with pytest.raises(TypeError):
            tensor.__dlpack__(dl_device=place)
    for how in ({"dl_device": (1, 0)}, {"copy": True}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**how)
    tensor.__dlpack__(dl_device=(2, 0), copy=False)
    assert dlpack_flags(tensor) == 0


# ---- Views and frames ------------------------------------------------------------------------------------------------


def test_a_view_s_tensors_lie_in_the_pool_and_keep_their_place(gpu):
    writer, reader = gpu.opened()
    for _ in range(3):
        writer.send(gpu.make(VALUE), WATCHDOG)
        before = calls(*COPIES)
        with reader.view(WATCHDOG) as value:
            assert calls(*COPIES) == before and seen(value) == expected(VALUE)
            assert value["o"].__cuda_array_interface__["data"][1] and dlpack_flags(value["o"]) == 1  # read-only
            kept = value["x"]
        del value
    for i in range(5):  # none of them takes its place
        passed(gpu, writer, reader, {"x": ("cuda", np.full(100000, i))})
    gpu.settle()
    assert writer.gpu.slots_used == 1 and seen(kept) == told(*VALUE["x"])
    del kept
    gpu.settle()
    assert writer.gpu.slots_used == 0


def test_a_frame_can_be_looked_into(gpu):
    writer, reader = gpu.pair(leases=3)
    for _ in range(3):  # through the ring, and then by the pool
        writer.send(gpu.make(VALUE), WATCHDOG)
        with reader.next(WATCHDOG) as frame:
            before = calls("*")
            assert (frame.keys(), "x" in frame, "y" in frame, frame.hashes) == (list(VALUE), True, False, {})
            assert calls("*") == before
            assert {key: seen(frame[key]) for key in frame.keys()} == expected(VALUE)
            with gpu.on_side():
                assert seen(frame["n"]) == expected(VALUE["n"]) and seen(ringcast.unpack(frame)) == expected(VALUE)
    gpu.settle()
    assert (writer.gpu.pool_frames, writer.gpu.slots_used) == (2, 0)


def test_a_frame_whose_tensors_are_in_the_pool_is_not_passed_on(gpu):
    writer, reader = gpu.opened()
    other, its = gpu.pair()
    writer.send(gpu.make(VALUE), WATCHDOG)
    with reader.next(WATCHDOG) as frame:
        kind, span = frame.kind, other.reserve(len(frame), 0)
        with memoryview(span) as to, memoryview(frame) as data:
            to[:] = data
    with pytest.raises(ringcast.Error, match="device memory of the Writer that it came from") as raised:
        span.commit(kind=kind)
    assert raised.value.errno == errno.ENOTSUP
    with pytest.raises(ringcast.Error):
        other.commit(kind=kind)
    span.commit()  # it is open still
    with its.next(0) as frame:
        assert frame.kind == ringcast.KIND_BYTES


# ---- Packed frames, hashes, Taps, asyncio ----------------------------------------------------------------------------


def test_a_packed_frame_has_the_bytes_and_arrives_on_the_device(gpu):
    writer, reader = gpu.pair()
    value = {**VALUE, "u": ("cupy", np.arange(3.0)), "j": ("jax", np.arange(3.0))}
    packed = ringcast.pack(gpu.make(value), hash="sha256")
    assert set(packed.hashes) == {*value} - {"i"}
    assert seen(ringcast.unpack(packed))["x"] == ("cpu", *told(*VALUE["x"])[1:])
    writer.send(packed, WATCHDOG)
    assert seen(reader.recv(WATCHDOG)) == expected(value)


def test_a_tap_gives_what_the_ring_has_on_the_cpu(gpu):
    writer, reader = gpu.pair()
    value = {"x": VALUE["x"]}
    with ringcast.Tap(writer.handle) as tap:
        passed(gpu, writer, reader, value)
        assert seen(tap.recv(0)) == {"x": ("cpu", *told(*VALUE["x"])[1:])}
        passed(gpu, writer, reader, value)
        with pytest.raises(ringcast.Error, match="in the writer's device memory"):
            tap.recv(0)


def test_tasks_send_and_receive(gpu):
    """One that waits for room has packed what was there when it was asked: the Writer counts that as no tensors."""
    writer, reader = gpu.opened()

    async def send(value):
        for _ in range(10):
            await writer.asend(value, WATCHDOG)

    async def receive():
        return [seen(await reader.arecv(WATCHDOG)) for _ in range(10)]

    async def both(value):
        return (await asyncio.gather(receive(), send(value)))[0]

    for value, is_large in ((VALUE, False), ({**VALUE, "fill": np.zeros(50000)}, True)):
        before = writer.gpu
        with mock.patch.object(_asyncio, "pack", wraps=_asyncio.pack) as pack:
            assert asyncio.run(both(gpu.make(value))) == [expected(value)] * 10
        assert (pack.call_count > 0) == is_large
        assert writer.gpu.pool_frames - before.pool_frames == 10 - pack.call_count


# ---- Tensors in the pool, by Writer.empty ----------------------------------------------------------------------------


VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


def filled(value, shape=VALUES.shape):
    return {"x": told("cuda", np.full(shape, value, np.float32))}


def sent(gpu, writer, tensor):
    """The copies that the Writer makes for it."""
    with gpu.counting(*COPIES) as copies:
        writer.send({"x": tensor}, WATCHDOG)
        gpu.settle()
    return copies


def received(gpu, reader):
    got = seen(reader.recv(WATCHDOG))
    gpu.settle()
    return got


def test_it_is_sent_without_a_copy_again_and_again(gpu):
    writer, reader = gpu.pair()
    made = writer.empty(iter((4, 6)), gpu.torch.float32)
    assert (tuple(made.shape), made.stride(), made.dtype.name) == ((4, 6), (6, 1), "float32")
    assert str(made.device) == "cuda:0" and made.is_contiguous() and reader.prepare_gpu()
    for value in range(3):
        made.fill_(value)
        assert sent(gpu, writer, made) == [0, 0, 0] and received(gpu, reader) == filled(value)
    assert sent(gpu, writer, made[2]) == [0, 0, 0] and received(gpu, reader) == filled(2, (6,))
    info = writer.gpu
    assert (info.pool_frames, info.pool_bytes_sent, info.inline_frames) == (4, 0, 0)


def test_it_is_copied_while_a_frame_of_it_is_unread_or_no_reader_has_the_pool(gpu):
    writer, reader = gpu.pair()
    made = writer.empty((4, 6), gpu.torch.float32).fill_(5)
    assert sent(gpu, writer, made) == [0, 0, 1] and received(gpu, reader) == filled(5)  # through the ring
    assert [sent(gpu, writer, made) for _ in range(2)] == [[0, 0, 0], [1, 0, 0]]
    assert [received(gpu, reader) for _ in range(2)] == [filled(5)] * 2


def test_what_can_not_be_made_is_refused(gpu):
    uint8 = gpu.torch.uint8
    writer, _ = gpu.pair({"gpu_pool_bytes": 2 * MEGABYTE})
    with pytest.raises(ringcast.Error) as raised:
        writer.empty((1 << 30,), uint8)
    assert raised.value.errno == errno.EMSGSIZE
    for device in ("cpu", "cuda:1"):
        with pytest.raises(ValueError):
            writer.empty((3,), uint8, device)
    kept = [writer.empty((1 << 20,), uint8) for _ in range(2)]
    with pytest.raises(TimeoutError, match="full"):
        writer.empty((1,), uint8)
    del kept
    with pytest.raises(TimeoutError, match="no device pool"):
        gpu.pair(INLINE)[0].empty((3,), uint8)
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.empty((1,), uint8)


def refusal(state):
    with ringcast.Writer(MEGABYTE) as writer, pytest.raises(ringcast.Error) as raised:
        writer.empty((3,), state["torch"].uint8)
    return raised.value.errno


def test_it_is_refused_without_a_device(no_gpu):
    assert no_gpu.call(refusal) == errno.ENODEV


@pytest.mark.parametrize("gpu", [{}], indirect=True)  # a process of its own, in which the memory is left
def test_it_outlives_its_writer(gpu):
    writer, _ = gpu.pair()
    tensor = writer.empty((6,), gpu.torch.float32)
    writer.close()
    assert tensor.fill_(3).numpy().tolist() == [3.0] * 6 and live("allocations") > 0
    gpu.leaves = True
