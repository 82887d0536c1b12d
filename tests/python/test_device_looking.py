# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device, beyond send() and recv(): views, Frames, packed frames, Taps, asyncio,
and tensors that Writer.empty makes in the pool. And that nothing of a device is kept."""

import asyncio
import ctypes
import errno
import os
import sys

import looks
import numpy as np
import pytest
from device_peers import COPIES, INLINE, MEGABYTE, VALUES, calls, live, moved, seen
from peers import WATCHDOG

import ringcast

pytestmark = pytest.mark.alike

pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def is_read_only(tensor):
    """By DLPack's flags, behind the version, a pointer of the maker's, and the deleter."""
    capsule = tensor.__dlpack__(stream=-1, max_version=(1, 0))
    at = pointer_of(capsule, b"dltensor_versioned") + 8 + 2 * 8
    return ctypes.c_uint64.from_address(at).value == 1


def test_the_place_of_a_capsule_is_checked(gpu):
    writer, reader = gpu.pair()
    writer.send(gpu.other(np.arange(3)), WATCHDOG)
    tensor = reader.recv(WATCHDOG)
    for how, error in (
        ({"dl_device": [2, 0]}, TypeError),
        ({"dl_device": (2,)}, TypeError),
        ({"dl_device": (1, 0)}, BufferError),
        ({"copy": True}, BufferError),
    ):
        with pytest.raises(error):
            tensor.__dlpack__(**how)
    tensor.__dlpack__(dl_device=(2, 0), copy=False)
    assert not is_read_only(tensor)


# ---- Views and frames ----------------------------------------------------------------------------


def test_a_view_s_tensors_lie_in_the_pool_and_keep_their_place(gpu):
    writer, reader = gpu.opened()
    value = VALUES["mixed"](gpu)
    writer.send(value, WATCHDOG)
    with gpu.counting(*COPIES) as copies, reader.view(WATCHDOG) as got:
        kept = got["x"]
    assert not any(copies) and seen(got) == seen(value) and is_read_only(got["o"])
    del got
    for i in range(5):  # none of them takes its place
        gpu.passes(writer, reader, {"x": gpu.cuda(np.full(100000, i))})
    gpu.settle()
    assert writer.gpu.slots_used >= 1 and seen(kept) == seen(value["x"])
    del kept
    gpu.await_until(lambda: writer.gpu.slots_used == 0)


def test_a_frame_can_be_looked_into(gpu):
    writer, reader = gpu.pair(leases=3)
    value = VALUES["mixed"](gpu)
    for _ in range(3):  # through the ring, and then by the pool
        writer.send(value, WATCHDOG)
        with reader.next(WATCHDOG) as frame:
            with gpu.counting("*") as called:
                assert (frame.keys(), "x" in frame, "y" in frame) == (list(value), True, False)
            assert called == [0]
            assert {key: seen(frame[key]) for key in frame.keys()} == seen(value)
            with gpu.on_side():
                assert seen(ringcast.unpack(frame)) == seen(value)
    gpu.settle()
    assert (writer.gpu.pool_frames, writer.gpu.slots_used) == (2, 0)


def test_a_frame_whose_tensors_are_in_the_pool_is_not_passed_on(gpu):
    writer, reader = gpu.opened()
    other, its = gpu.pair()
    writer.send(VALUES["mixed"](gpu), WATCHDOG)
    with reader.next(WATCHDOG) as frame:
        kind, span = frame.kind, other.reserve(len(frame), 0)
        with memoryview(span) as to, memoryview(frame) as data:
            to[:] = data
    for end in (span, other):
        with pytest.raises(ringcast.Error) as raised:
            end.commit(kind=kind)
        assert raised.value.errno == errno.ENOTSUP
    span.commit()  # it is open still
    with its.next(0) as frame:
        assert frame.kind == ringcast.KIND_BYTES


def test_a_packed_frame_has_the_bytes_and_arrives_on_the_device(gpu):
    writer, reader = gpu.pair()
    value = {**VALUES["mixed"](gpu), "u": gpu.cupy(np.arange(3.0)), "j": gpu.jax(np.arange(3.0))}
    packed = ringcast.pack(value, hash="sha256")
    assert set(packed.hashes) == {*value} - {"i"}
    assert seen(ringcast.unpack(packed)["x"]) == moved(seen(value["x"]), "cpu")
    writer.send(packed, WATCHDOG)
    assert seen(reader.recv(WATCHDOG)) == seen(value)


def test_a_tap_gives_what_the_ring_has_on_the_cpu(gpu):
    writer, reader = gpu.pair()
    value = VALUES["large"](gpu)
    with ringcast.Tap(writer.handle) as tap:
        gpu.passes(writer, reader, value)
        assert seen(tap.recv(0)) == moved(seen(value), "cpu")
        gpu.passes(writer, reader, value)
        with pytest.raises(ringcast.Error, match="device memory"):
            tap.recv(0)


def test_tasks_send_and_receive(gpu):
    """A large host array fills the ring: some of its sends wait for room."""
    writer, reader = gpu.opened()

    async def send(value):
        for _ in range(10):
            await writer.asend(value, WATCHDOG)

    async def both(value):
        task = asyncio.create_task(send(value))
        got = [seen(await reader.arecv(WATCHDOG)) for _ in range(10)]
        await task
        return got

    for fill, all_by_pool in ((0, True), (50000, False)):
        value, before = {**VALUES["mixed"](gpu), "fill": np.zeros(fill)}, writer.gpu.pool_frames
        assert asyncio.run(both(value)) == [seen(value)] * 10
        # What waits was packed as it was asked, and is no frame of tensors to the Writer.
        assert (writer.gpu.pool_frames - before == 10) == all_by_pool


# ---- Tensors in the pool, by Writer.empty --------------------------------------------------------


def test_a_tensor_in_the_pool_is_sent_without_a_copy_where_that_can_be(gpu):
    writer, reader = gpu.pair()
    made = writer.empty(iter((4, 6)), gpu.torch.float32)
    assert (made.shape, made.stride(), made.dtype.name) == ((4, 6), (6, 1), "float32")
    assert str(made.device) == "cuda:0" and made.is_contiguous()

    def copies_of(tensor):
        with gpu.counting(*COPIES) as copies:
            writer.send(tensor, WATCHDOG)
            gpu.settle()
        return copies

    def comes(value, shape=(4, 6)):
        assert seen(reader.recv(WATCHDOG)) == seen(gpu.cuda(np.full(shape, value, np.float32)))
        gpu.settle()

    made.fill_(5)
    assert copies_of(made) == [0, 0, 1]  # no reader has the pool: through the ring
    comes(5)
    for value in range(3):
        made.fill_(value)
        assert copies_of(made) == [0, 0, 0]
        comes(value)
    assert copies_of(made[2]) == [0, 0, 0]
    comes(2, (6,))
    assert [copies_of(made) for _ in range(2)] == [[0, 0, 0], [1, 0, 0]]  # the first is unread
    comes(2)
    comes(2)
    assert (writer.gpu.pool_frames, writer.gpu.inline_frames) == (6, 1)


@pytest.mark.parametrize(
    "options, shape, device, error, word",
    [
        ({}, (1 << 30,), None, ringcast.Error, "pool"),
        ({}, (3,), "cpu", ValueError, "cpu"),
        ({}, (3,), "cuda:1", ValueError, "device 1"),
        (INLINE, (3,), None, TimeoutError, "no device pool"),
    ],
)
def test_what_can_not_be_made_is_refused(gpu, options, shape, device, error, word):
    writer, _ = gpu.pair(options)
    with pytest.raises(error, match=word):
        writer.empty(shape, gpu.torch.uint8, device)
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.empty((1,), gpu.torch.uint8)


def test_a_full_pool_makes_no_tensor(gpu):
    writer, _ = gpu.pair({"gpu_pool_bytes": 2 * MEGABYTE})
    kept = [writer.empty((MEGABYTE,), gpu.torch.uint8) for _ in range(2)]
    with pytest.raises(TimeoutError, match="full"):
        writer.empty((1,), gpu.torch.uint8)
    del kept


def refusal(state):
    with ringcast.Writer(MEGABYTE) as writer, pytest.raises(ringcast.Error) as raised:
        writer.empty((3,), state["torch"].uint8)
    return raised.value.errno


def test_without_a_device_none_is_made(no_gpu):
    assert no_gpu.call(refusal) == errno.ENODEV


@pytest.mark.parametrize("gpu", [{}], indirect=True)  # a process of its own, with the memory left
def test_a_tensor_in_the_pool_outlives_its_writer(gpu):
    writer, _ = gpu.pair()
    tensor = writer.empty((6,), gpu.torch.float32)
    writer.close()
    assert tensor.fill_(3).numpy().tolist() == [3.0] * 6 and live("allocations") > 0
    gpu.leaves = True


# ---- Nothing is kept -----------------------------------------------------------------------------


def arrive(gpu, value, pooled, inline):
    """In each way that there is."""
    writer, reader = pooled
    for _ in range(2):
        writer.send(value, WATCHDOG)
    reader.recv(WATCHDOG)
    with reader.view(WATCHDOG) as got:
        gpu.torch.from_dlpack(got["other"])
        kept = got["large"]
    del got, kept
    for _ in range(2):
        writer.send(value, WATCHDOG)
    with reader.next(WATCHDOG) as frame:
        with gpu.on_side():
            gpu.torch.from_dlpack(frame["other"])
        ringcast.unpack(frame)
    reader.next(WATCHDOG)  # dropped
    for each in (value, ringcast.pack(value)):
        inline[0].send(each, WATCHDOG)
        inline[1].recv(WATCHDOG)


def measure(gpu, known):
    gpu.settle()
    made, gone = calls("cuEventCreate", "cuEventDestroy")
    of_device = "allocations", "imports", "registered", "streams", "contexts", "queued"
    descriptors = len(os.listdir("/proc/self/fd"))
    counted = (*map(live, of_device), made - gone, descriptors)
    return counted, looks.measure(), list(map(sys.getrefcount, known))


@pytest.mark.unwatched  # AddressSanitizer keeps what is freed for a while
@pytest.mark.parametrize("gpu", [{}], indirect=True)
def test_memory_references_and_descriptors_stay_as_they_are(gpu):
    ends = (
        gpu.pair({"gpu_pool_bytes": 4 * MEGABYTE}, leases=2),
        gpu.pair(INLINE, map_location="cpu"),
    )
    value = {
        **VALUES["of torch"](gpu),  # these lie together, and arrive together
        "nested": VALUES["mixed"](gpu),
        "large": gpu.cuda(np.zeros(140_000)),
        "strided": gpu.strided("cuda", (3, 4), (1, 3)),
        **{kind: getattr(gpu, kind)(np.arange(9.0)) for kind in ("other", "cupy", "jax")},
        "empty": gpu.cuda(np.empty(0)),
    }
    known = [*value.values(), gpu.torch.Tensor, gpu.torch.float64, ringcast.DeviceTensor, None, ()]
    found = []
    for _ in range(6):
        for _ in range(looks.ROUNDS):
            arrive(gpu, value, *ends)
        found.append(measure(gpu, known))
    counted, memory, references = zip(*found)
    # What goes some rounds later is more at one look and less at the next; a leak grows by ROUNDS.
    for each in zip(*counted[1:]):
        steps = sorted(now - then for then, now in zip(each, each[1:]))
        assert steps[1] < looks.ROUNDS // 2, counted
    looks.check(list(memory))
    # From look to look, as a leak grows: an allocator takes another piece now and then.
    grown = sorted(now[1] - then[1] for then, now in zip(memory[1:], memory[2:]))
    assert grown[len(grown) // 2] * len(grown) < MEGABYTE // 2, grown
    changed = [abs(last - first) for first, last in zip(references[1], references[-1])]
    assert max(changed) < looks.ROUNDS, changed
