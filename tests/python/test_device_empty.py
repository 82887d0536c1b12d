# SPDX-License-Identifier: Apache-2.0
"""Tensors that Writer.empty makes in the pool: they are sent without a copy, as often as readers have read them."""

import errno
import gc

import device_peers as peers
import numpy as np
import pytest
from device_exchange import expected, told
from device_peers import COPIES
from peers import WATCHDOG
from test_device_looking import hashes_of_next

import ringcast

pytestmark = pytest.mark.alike
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


def make(state, shape=VALUES.shape, kind="float32", name="x"):
    state.setdefault("made", {})[name] = state["writer"].empty(iter(shape), getattr(state["torch"], kind))
    tensor = state["made"][name]
    return tuple(tensor.shape), tensor.stride(), tensor.dtype.name, str(tensor.device), tensor.is_contiguous()


def compute(state, value, name="x"):
    """In place of a kernel of the caller's."""
    state["made"][name].fill_(value)


def send(state, part=None):
    """The copies that the Writer has made for it."""
    tensor = state["made"]["x"]
    before = peers.calls(*COPIES)
    state["writer"].send({"x": tensor if part is None else tensor[part]}, WATCHDOG)
    state["torch"].cuda.synchronize()
    return [now - then for now, then in zip(peers.calls(*COPIES), before)]


def forget(state):
    state.pop("made", None)
    state["torch"]._forget_dropped()
    gc.collect()


def used(state):
    gpu = state["writer"].gpu
    return gpu.slots_used, gpu.bytes_used


def receive(state):
    got = peers.seen(state["reader"].recv(WATCHDOG))
    state["torch"].cuda.synchronize()
    return got


def prepare(state):
    return state["reader"].prepare_gpu()


def filled(value, shape=VALUES.shape):
    return {"x": told("cuda", np.full(shape, value, np.float32))}


@pytest.fixture
def making(rings):
    """As rings; what the writers have made goes before they close."""
    writers = []

    def make_rings(*options):
        made = rings(*options)
        writers.append(made[0])
        return made

    yield make_rings
    for writer in writers:
        writer.call(forget)


@pytest.mark.parametrize("readers", [1, 3])
def test_it_is_sent_without_a_copy_again_and_again(making, readers):
    writer, others = making(readers)
    assert writer.call(make) == ((4, 6), (6, 1), "float32", "cuda:0", True)
    assert [reader.call(prepare) for reader in others] == [True] * readers
    for value in range(3):
        writer.call(compute, value)
        assert writer.call(send) == [0, 0, 0]
        assert [reader.call(receive) for reader in others] == [filled(value)] * readers
    assert writer.call(send, 2) == [0, 0, 0]  # a row
    assert others[0].call(receive) == filled(2, (6,))
    info = writer.call(peers.gpu)
    assert (info.pool_frames, info.pool_bytes_sent, info.inline_frames) == (4, 0, 0)


def test_it_is_copied_while_a_frame_of_it_is_unread_or_no_reader_has_the_pool(making):
    writer, (reader,) = making()
    writer.call(make)
    writer.call(compute, 5)
    assert writer.call(send) == [0, 0, 1]  # through the ring
    assert reader.call(receive) == filled(5)
    assert writer.call(send) == [0, 0, 0]
    assert writer.call(send) == [1, 0, 0]
    assert [reader.call(receive) for _ in range(2)] == [filled(5)] * 2


def count(state):
    """Each element of x differs from the others."""
    for i, row in enumerate(VALUES):
        for j, value in enumerate(row):
            state["made"]["x"][i][j].fill_(value)


def send_parts(state, how=None):
    """Parts of x, beside arrays that lie elsewhere, and y if it was made. Tensors of torch that are transposed are made
    contiguous before anything else; those of other libraries are not."""
    x, y = (state["made"].get(name) for name in "xy")
    turned, plain = x.as_strided((6, 4), (1, 6)), peers.on_device(state, PLAIN)
    value = {"t": turned, "o": peers.Other(turned), "row": x[1], "n": [x[2]], "host": PLAIN, "plain": plain}
    state["writer"].send({**value, **({} if y is None else {"y": y})}, WATCHDOG, hash=how)


def view(state):
    with state["reader"].view(WATCHDOG) as value:
        return peers.seen(value)


PLAIN = np.arange(1000, dtype=np.int32)
ARRAYS = {"t": VALUES.T, "o": VALUES.T, "row": VALUES[1], "n": [VALUES[2]], "host": PLAIN, "plain": PLAIN}
ON_DEVICE = {key: ("cuda", ARRAYS[key]) for key in ("t", "row", "plain")}
PARTS = expected({**ON_DEVICE, "o": ("other", VALUES.T), "n": [("cuda", VALUES[2])], "host": PLAIN})


@pytest.mark.parametrize("first, second", [(receive, view), (view, receive)])
def test_parts_of_it_beside_other_tensors(making, first, second):
    writer, (reader,) = making()
    writer.call(make)
    writer.call(count)
    assert reader.call(prepare)
    writer.call(send_parts)
    writer.call(make, (7,), "float32", "y")
    writer.call(compute, 9, "y")
    copied = writer.call(peers.gpu).pool_bytes_sent
    writer.call(send_parts)  # x is under way, and y is not
    # t, o and plain; t, o, row, plain and the one in n. Each begins at a multiple of 256.
    assert (copied, writer.call(peers.gpu).pool_bytes_sent - copied) == (2 * 256 + 4000, 3 * 256 + 4096 + 24)
    assert reader.call(first) == PARTS
    assert reader.call(second) == {**PARTS, "y": told("cuda", np.full(7, 9, np.float32))}


def test_it_goes_through_the_ring_with_a_hash(making):
    writer, (reader,) = making()
    writer.call(make)
    writer.call(count)
    assert reader.call(prepare)
    writer.call(send_parts, "sha256")
    hashes, got = reader.call(hashes_of_next)
    assert got == PARTS and hashes == ringcast.pack(ARRAYS, hash="sha256").hashes
    info = writer.call(peers.gpu)
    assert (info.pool_frames, info.inline_frames) == (0, 1)


def test_its_memory_is_used_again_when_it_is_gone_and_was_read(making):
    writer, (reader,) = making()
    writer.call(make)
    assert reader.call(prepare)
    writer.call(compute, 7)
    assert writer.call(send) == [0, 0, 0]
    writer.call(forget)
    writer.call(make, (1,), "uint8", "other")  # by this call the memory of the first is dropped
    assert writer.call(used) == (3, 512)  # it, the frame, and the other
    assert reader.call(receive) == filled(7)
    assert writer.call(used) == (1, 256)
    writer.call(forget)


def test_scalars_and_tensors_of_no_bytes(making):
    writer, (reader,) = making()
    assert writer.call(make, ()) == ((), (), "float32", "cuda:0", True)
    writer.call(forget)
    assert writer.call(make, (0, 3))[0] == (0, 3)
    assert writer.call(send) == [0, 0, 0]
    assert reader.call(receive) == {"x": told("cuda", np.empty((0, 3), np.float32))}
    writer.call(forget)


def refusals(state):
    torch, writer = state["torch"], state["writer"]
    said = []
    for shape, kind, device in [((1 << 30,), "uint8", None), ((3,), "uint8", "cpu"), ((3,), "uint8", "cuda:1")]:
        try:
            writer.empty(shape, getattr(torch, kind), device)
        except (ValueError, TimeoutError, ringcast.Error) as error:
            said.append((type(error).__name__, getattr(error, "errno", None)))
    kept = [writer.empty((1 << 20,), torch.uint8) for _ in range(2)]
    try:
        writer.empty((1,), torch.uint8)
    except TimeoutError as error:
        said.append(("TimeoutError", "full" in str(error)))
    del kept
    writer.close()
    try:
        writer.empty((1,), torch.uint8)
    except ValueError as error:
        said.append("closed" in str(error))
    return said


def test_what_can_not_be_made_is_refused(making):
    writer, _ = making(1, {"gpu_pool_bytes": 2 * peers.MEGABYTE})
    said = writer.call(refusals)
    assert said[0][1] == errno.EMSGSIZE and said[1] == said[2] == ("ValueError", None)
    assert said[3:] == [("TimeoutError", True), True]


def refusal(state, options=None):
    with ringcast.Writer(peers.MEGABYTE, **(options or {})) as writer:
        try:
            writer.empty((3,), state["torch"].uint8)
        except (TimeoutError, ringcast.Error) as error:
            return type(error), error.errno, str(error)


def test_it_is_refused_without_a_pool_or_a_device(alone, no_gpu):
    kind, _, text = alone(refusal, {"gpu_pool_bytes": 0})
    assert kind is TimeoutError and "no device pool" in text
    assert no_gpu.call(refusal)[:2] == (ringcast.Error, errno.ENODEV)


def close_before(state):
    """The tensor outlives its Writer, and so does the memory."""
    tensor = state["writer"].empty((6,), state["torch"].float32)
    state["writer"].close()
    tensor.fill_(3)
    return tensor.numpy().tolist(), peers.live("allocations") > 0


def test_it_outlives_its_writer(fake_driver):
    peer = peers.start()
    try:
        peer.call(peers.make_writer, peers.MEGABYTE)
        assert peer.call(close_before) == ([3.0] * 6, True)
    finally:
        peer.stop()
