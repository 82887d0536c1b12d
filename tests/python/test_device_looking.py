# SPDX-License-Identifier: Apache-2.0
"""Tensors of a CUDA device, beyond send() and recv(): views, Frames, packed frames, hashes, asyncio, Taps, and what is
left when somebody dies."""

import asyncio
import errno
import gc
import re

import device_peers as peers
import numpy as np
import pytest
from device_exchange import exchange, expected, told
from device_peers import COPIES, MEGABYTE, handle_of, kill, on_device, pair
from peers import WATCHDOG

import ringcast
from ringcast import _asyncio

VALUE = {
    "x": ("cuda", np.arange(12, dtype=np.float32).reshape(3, 4)),
    "n": {"deep": [("cuda", np.arange(30000))]},
    "o": ("other", np.arange(5, dtype=np.int16)),
    "host": np.arange(4),
    "i": 7,
}


def pooled(rings, readers=1, reader_options=None):
    """A ring on which the next frame goes by the pool."""
    writer, others = rings(readers, None, reader_options)
    exchange(writer, others, {"x": ("cuda", np.arange(3))})
    return writer, others


# ---- Views ---------------------------------------------------------------------------------------------------------


def view(state, keep=None):
    before = peers.calls(*COPIES)
    with state["reader"].view(WATCHDOG) as value:
        copies = [now - then for now, then in zip(peers.calls(*COPIES), before)]
        told = peers.seen(value)
        if keep:
            state["kept"] = value[keep]
        read_only = value["o"].__cuda_array_interface__["data"][1]
    return copies, told, read_only


def release_retained(state):
    told = peers.seen(state.pop("kept"))
    gc.collect()
    return told


def synchronize(state):
    state["torch"].cuda.synchronize()


def test_a_view_s_tensors_lie_in_the_pool(rings):
    writer, (reader,) = pooled(rings)
    for _ in range(3):
        writer.call(peers.send, VALUE)
        assert reader.call(view) == ([0, 0, 0], expected(VALUE), True)
    reader.call(synchronize)
    assert writer.call(peers.gpu).slots_used == 0


def test_a_tensor_that_outlives_its_view_keeps_its_place(rings):
    writer, (reader,) = pooled(rings)
    writer.call(peers.send, VALUE)
    assert reader.call(view, "x")[1] == expected(VALUE)
    for i in range(5):  # none of them takes its place
        value = {"x": ("cuda", np.full(100000, i))}
        assert exchange(writer, [reader], value) == [expected(value)]
    reader.call(synchronize)
    assert writer.call(peers.gpu).slots_used == 1
    assert reader.call(release_retained) == told(*VALUE["x"])
    reader.call(synchronize)
    assert writer.call(peers.gpu).slots_used == 0


def test_a_view_of_a_frame_that_came_through_the_ring(rings):
    writer, (reader,) = rings()
    writer.call(peers.send, VALUE)
    copies, got, read_only = reader.call(view)
    assert got == expected(VALUE) and copies[1] > 0 and not read_only


# ---- Frames --------------------------------------------------------------------------------------------------------


def look(state):
    frame = state["reader"].next(WATCHDOG)
    before = peers.calls("*")
    keys = frame.keys(), "x" in frame, "y" in frame, frame.hashes
    untouched = peers.calls("*") == before
    items = {key: peers.seen(frame[key]) for key in keys[0]}
    again = peers.seen(frame["x"])
    whole = peers.seen(ringcast.unpack(frame))
    frame.release()
    return keys, untouched, items, again, whole


def test_a_frame_can_be_looked_into(rings):
    writer, (reader,) = rings(1, None, {"leases": 3})
    for _ in range(3):  # through the ring, and then by the pool
        writer.call(peers.send, VALUE)
        keys, untouched, items, again, whole = reader.call(look)
        assert keys == (["x", "n", "o", "host", "i"], True, False, {}) and untouched
        assert items == whole == expected(VALUE) and again == items["x"]
    reader.call(synchronize)
    info = writer.call(peers.gpu)
    assert (info.pool_frames, info.slots_used) == (2, 0)


def pass_on(state):
    pair(state)
    tensor = on_device(state, np.arange(5.0))
    with ringcast.Writer(MEGABYTE) as other, ringcast.Reader(other.handle) as its:
        for _ in range(2):
            state["writer"].send({"x": tensor}, WATCHDOG)
            state["reader"].recv(WATCHDOG)
        state["writer"].send({"x": tensor}, WATCHDOG)
        with state["reader"].next(WATCHDOG) as frame:
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
            kind = frame.kind
    state["torch"].cuda.synchronize()
    return kind == ringcast.KIND_BYTES, state["writer"].gpu.epoch != 1


def test_a_frame_whose_tensors_are_in_the_pool_is_not_passed_on(alone):
    assert alone(pass_on) == (True, True)


def hold_and_drop(state):
    reader = state["reader"]
    frames = [reader.next(WATCHDOG) for _ in range(3)]
    told = [peers.seen(frame["x"]) for frame in (frames[2], frames[0])]
    with pytest.raises(ringcast.Error):
        reader.next(0)
    del frames
    gc.collect()
    return told


def test_frames_that_are_dropped_are_given_back_read_or_not(rings):
    writer, (reader,) = pooled(rings, 1, {"leases": 3})
    for i in range(3):
        writer.call(peers.send, {"x": ("cuda", np.full(9, i))})
    assert reader.call(hold_and_drop) == [told("cuda", np.full(9, 2)), told("cuda", np.full(9, 0))]
    reader.call(synchronize)
    assert writer.call(peers.gpu).slots_used == 0
    assert exchange(writer, [reader], VALUE) == [expected(VALUE)]


# ---- Packed frames, hashes, Taps -----------------------------------------------------------------------------------


def pack_and_send(state, value, options):
    packed = ringcast.pack(peers.make(state["torch"], value), **options)
    state["writer"].send(packed, WATCHDOG)
    return packed.hashes, peers.seen(ringcast.unpack(packed))


def test_a_packed_frame_has_the_bytes_and_arrives_on_the_device(rings):
    writer, others = rings(2)
    value = {key: VALUE[key] for key in ("x", "n", "host", "i")}
    value["o"] = VALUE["o"]
    value["c"] = ("cupy", np.arange(3.0))
    value["j"] = ("jax", np.arange(3.0))
    hashes, unpacked = writer.call(pack_and_send, value, {"hash": "sha256"})
    assert set(hashes) == {"x", "n", "host", "o", "c", "j"}
    assert unpacked["x"] == ("cpu", *told(*VALUE["x"])[1:])
    for reader in others:
        assert reader.call(peers.receive) == expected(value)


def send_and_tell_hashes(state, value):
    made = peers.make(state["torch"], value)
    state["writer"].send(made, WATCHDOG, hash="sha256")
    return ringcast.pack(made, hash="sha256").hashes


def hashes_of_next(state):
    with state["reader"].next(WATCHDOG) as frame:
        return frame.hashes, peers.seen(ringcast.unpack(frame))


def test_hashes_are_of_the_tensors_bytes(rings):
    writer, (reader,) = pooled(rings)
    value = {**VALUE, "t": ("cuda", np.arange(24.0), {"shape": (4, 5), "strides": (1, 4)})}
    expected_hashes = writer.call(send_and_tell_hashes, value)
    hashes, got = reader.call(hashes_of_next)
    assert hashes == expected_hashes and set(hashes) == {"x", "n", "host", "o", "t"} and got == expected(value)


def tap(state, handle):
    state["tap"] = ringcast.Tap(handle)


def from_tap(state):
    return peers.seen(state["tap"].recv(0))


def close_tap(state):
    state.pop("tap").close()


def test_a_tap_gives_what_the_ring_has_on_the_cpu(rings):
    writer, (reader, other) = rings(2)
    value = {"x": VALUE["x"]}
    other.call(tap, writer.call(handle_of))
    exchange(writer, [reader, other], value)
    assert other.call(from_tap) == {"x": ("cpu", *told(*VALUE["x"])[1:])}
    exchange(writer, [reader, other], value)
    with pytest.raises(ringcast.Error, match="in the writer's device memory"):
        other.call(from_tap)
    other.call(close_tap)


# ---- asyncio -------------------------------------------------------------------------------------------------------


def send_as_tasks(state, value, times):
    """How many of them were packed first, as their task had to wait for room: the Writer counts such as no tensors."""
    pack, packed = _asyncio.pack, []

    async def main():
        made = peers.make(state["torch"], value)
        for _ in range(times):
            await state["writer"].asend(made, WATCHDOG)

    _asyncio.pack = lambda *args, **options: packed.append(args) or pack(*args, **options)
    try:
        asyncio.run(main())
    finally:
        _asyncio.pack = pack
    return len(packed)


def receive_as_a_task(state, times):
    async def main():
        return [peers.seen(await state["reader"].arecv(WATCHDOG)) for _ in range(times)]

    return asyncio.run(main())


def test_a_task_that_waits_for_room_sends_what_was_there_when_it_was_asked(rings):
    writer, (reader,) = pooled(rings)
    writer.start(send_as_tasks, {**VALUE, "fill": np.zeros(50000)}, 10)  # they wait until somebody reads
    assert reader.call(receive_as_a_task, 10) == [expected({**VALUE, "fill": np.zeros(50000)})] * 10
    packed, info = writer.finish(), writer.call(peers.gpu)
    assert packed > 0 and info.pool_frames + info.inline_frames == 1 + 10 - packed


def test_tasks_send_and_receive(rings):
    writer, others = rings(2)
    for reader in others:
        reader.start(receive_as_a_task, 30)
    packed = writer.call(send_as_tasks, VALUE, 30)
    for reader in others:
        assert reader.finish() == [expected(VALUE)] * 30
    info = writer.call(peers.gpu)
    assert info.pool_frames > 0 and info.pool_frames + info.inline_frames + packed == 30


# ---- Who dies, who comes late --------------------------------------------------------------------------------------


def send_many(state, times):
    tensor = state["torch"].from_numpy(np.arange(1000)).cuda()
    for i in range(times):
        state["writer"].send({"x": tensor, "i": i}, WATCHDOG)
    state["torch"].cuda.synchronize()


def receive_to_the_end(state):
    got = []
    try:
        while True:
            got.append(peers.seen(state["reader"].recv(WATCHDOG))["i"])
    except ringcast.WriterGone as error:
        return got, str(error)


def test_a_reader_of_a_writer_that_was_killed_is_told(gpus, mortal):
    reader = gpus[1]
    reader.call(peers.attach, mortal.call(peers.make_writer, MEGABYTE))
    mortal.call(send_many, 3)
    assert [reader.call(peers.receive)["i"] for _ in range(2)] == [0, 1]
    mortal.call(send_many, 2)
    kill(mortal)
    got, why = reader.call(receive_to_the_end)
    assert set(got) <= {0, 1, 2} and why
    reader.call(peers.close)
    assert reader.call(peers.left) == (0, 0, 0)


def test_a_reader_that_was_killed_gives_its_places_back(gpus, mortal):
    writer, reader = gpus[0], gpus[1]
    options = {"capacity": MEGABYTE, "on_death": "evict", "gpu_pool_bytes": 2 * MEGABYTE}
    handle = writer.call(peers.make_writer_with, options)
    for peer in (reader, mortal):
        peer.call(peers.attach, handle)
    value = {"x": ("cuda", np.arange(60000.0))}
    exchange(writer, [reader, mortal], value)
    for _ in range(2):
        writer.call(peers.send, value)
        assert reader.call(peers.receive) == expected(value)
    kill(mortal)
    for _ in range(10):
        assert exchange(writer, [reader], value) == [expected(value)]
    info = writer.call(peers.gpu)
    assert info.pool_frames >= 10 and info.way == "pool"
    for peer in (reader, writer):
        peer.call(peers.close)


def test_one_that_comes_later_has_the_group_go_through_the_ring_once(rings, gpus):
    writer, (reader,) = pooled(rings)
    exchange(writer, [reader], VALUE)
    late = gpus[4]
    late.call(peers.attach, writer.call(handle_of))
    for pool_frames in (1, 2):
        assert exchange(writer, [reader, late], VALUE) == [expected(VALUE)] * 2
        assert writer.call(peers.gpu).pool_frames == pool_frames
    late.call(peers.close)


def reopen(state, handle):
    with ringcast.Reader(handle) as reader:
        state["again"] = reader.gpu
    return state["again"]


def test_a_closed_reader_and_a_new_one(rings):
    writer, (reader,) = pooled(rings)
    for _ in range(3):
        assert exchange(writer, [reader], VALUE) == [expected(VALUE)]
        reader.call(peers.close)
        assert reader.call(peers.left) == (0, 0, 0)
        reader.call(peers.attach, writer.call(handle_of))
        exchange(writer, [reader], VALUE)
    assert reader.call(reopen, writer.call(handle_of)) is None


# ---- Not on a CUDA device ------------------------------------------------------------------------------------------


class Elsewhere:
    def __dlpack_device__(self):
        return 10, 0

    def __dlpack__(self, **_):
        raise AssertionError("nobody should ask")


class Broken(Elsewhere):
    def __dlpack_device__(self):
        raise ValueError("on several devices")


@pytest.mark.parametrize("kind", [Elsewhere, Broken])
def test_what_is_on_no_cuda_device_goes_by_pickle(ring, kind):
    writer, reader = ring
    writer.send({"x": kind(), "y": [kind()]}, 0)
    got = reader.recv(0)
    assert type(got["x"]) is kind and type(got["y"][0]) is kind


def test_options_are_checked():
    with pytest.raises((ValueError, OverflowError), match="gpu_pool_bytes"):
        ringcast.Writer(gpu_pool_bytes=-1)
    with pytest.raises(TypeError):
        ringcast.Writer(gpu_pool_bytes="1")
