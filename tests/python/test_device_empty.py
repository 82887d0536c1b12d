# SPDX-License-Identifier: Apache-2.0
"""Tensors that Writer.empty makes in the pool: they are sent without a copy, as often as readers have read them."""

import errno

import device_peers as peers
import numpy as np
import pytest
from device_peers import COPIES, MEGABYTE, expected, live, seen, told
from needs import needs_torch, torch
from peers import WATCHDOG
from test_device import INLINE

import ringcast

pytestmark = pytest.mark.alike
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)
PLAIN = np.arange(1000, dtype=np.int32)


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


def make(state):
    state["made"] = state["writer"].empty(VALUES.shape, state["torch"].float32)


def compute_and_send(state, value):
    state["made"].fill_(value)
    state["torch"].cuda.synchronize()
    before = peers.calls(*COPIES)
    state["writer"].send({"x": state["made"]}, WATCHDOG)
    return before == peers.calls(*COPIES)


def forget(state):
    del state["made"]
    state["torch"]._forget_dropped()


def prepare(state):
    return state["reader"].prepare_gpu()


def receive(state):
    got = peers.receive(state)
    state["torch"].cuda.synchronize()
    return got


def test_several_processes_read_it_before_it_is_sent_again(rings):
    writer, others = rings(3)
    writer.call(make)
    assert [reader.call(prepare) for reader in others] == [True] * 3
    for value in range(3):
        assert writer.call(compute_and_send, value)
        assert [reader.call(receive) for reader in others] == [filled(value)] * 3
    writer.call(forget)


def test_it_is_copied_while_a_frame_of_it_is_unread_or_no_reader_has_the_pool(gpu):
    writer, reader = gpu.pair()
    made = writer.empty((4, 6), gpu.torch.float32).fill_(5)
    assert sent(gpu, writer, made) == [0, 0, 1] and received(gpu, reader) == filled(5)  # through the ring
    assert [sent(gpu, writer, made) for _ in range(2)] == [[0, 0, 0], [1, 0, 0]]
    assert [received(gpu, reader) for _ in range(2)] == [filled(5)] * 2


def counted(gpu, writer):
    """Each element differs from the others."""
    made = writer.empty(VALUES.shape, gpu.torch.float32)
    for i, row in enumerate(VALUES):
        for j, value in enumerate(row):
            made[i][j].fill_(value)
    return made


def parts(gpu, made):
    """Parts of a tensor, beside arrays that lie elsewhere. What is transposed is made contiguous first."""
    turned = made.as_strided((6, 4), (1, 6))
    value = {"t": turned, "o": peers.Other(turned), "row": made[1], "n": [made[2]]}
    return {**value, "host": PLAIN, "plain": gpu.tensor(PLAIN)}


PARTS = {"t": ("cuda", VALUES.T), "o": ("other", VALUES.T), "row": ("cuda", VALUES[1]), "n": [("cuda", VALUES[2])]}
PARTS = expected({**PARTS, "host": PLAIN, "plain": ("cuda", PLAIN)})


def viewed(reader, timeout):
    with reader.view(timeout) as value:
        return seen(value)


@pytest.mark.parametrize("is_viewed_first", [False, True])
def test_parts_of_it_beside_other_tensors(gpu, is_viewed_first):
    writer, reader = gpu.pair()
    made = counted(gpu, writer)
    assert reader.prepare_gpu()
    writer.send(parts(gpu, made), WATCHDOG)
    copied = writer.gpu.pool_bytes_sent
    other = writer.empty((7,), gpu.torch.float32).fill_(9)
    writer.send({**parts(gpu, made), "y": other}, WATCHDOG)  # the first is under way, and the other is not
    # t, plain and o; t, row, the one in n, plain and o: torch's small ones first. Each begins at a multiple of 256.
    assert (copied, writer.gpu.pool_bytes_sent - copied) == (256 + 4096 + 96, 3 * 256 + 4096 + 96)
    ways = [viewed, lambda reader, timeout: seen(reader.recv(timeout))]
    assert ways[not is_viewed_first](reader, WATCHDOG) == PARTS
    assert ways[is_viewed_first](reader, WATCHDOG) == {**PARTS, "y": told("cuda", np.full(7, 9, np.float32))}


def test_it_goes_through_the_ring_with_a_hash(gpu):
    writer, reader = gpu.pair()
    made = counted(gpu, writer)
    assert reader.prepare_gpu()
    writer.send(parts(gpu, made), WATCHDOG, hash="sha256")
    arrays = {"t": VALUES.T, "o": VALUES.T, "row": VALUES[1], "n": [VALUES[2]], "host": PLAIN, "plain": PLAIN}
    with reader.next(WATCHDOG) as frame:
        assert frame.hashes == ringcast.pack(arrays, hash="sha256").hashes and seen(ringcast.unpack(frame)) == PARTS
    assert (writer.gpu.pool_frames, writer.gpu.inline_frames) == (0, 1)


def test_its_memory_is_used_again_when_it_is_gone_and_was_read(gpu):
    writer, reader = gpu.pair()
    made = writer.empty((4, 6), gpu.torch.float32).fill_(7)
    assert reader.prepare_gpu() and sent(gpu, writer, made) == [0, 0, 0]
    del made
    gpu.settle()
    other = writer.empty((1,), gpu.torch.uint8)  # by this call the memory of the first is dropped
    assert (writer.gpu.slots_used, writer.gpu.bytes_used) == (3, 512)  # it, the frame, and the other
    assert received(gpu, reader) == filled(7)
    assert (writer.gpu.slots_used, writer.gpu.bytes_used) == (1, 256)
    del other


def test_scalars_and_tensors_of_no_bytes(gpu):
    writer, reader = gpu.pair()
    for shape, strides in (((), ()), ((0, 3), (3, 1))):
        made = writer.empty(shape, gpu.torch.float32)
        assert (tuple(made.shape), made.stride(), made.is_contiguous()) == (shape, strides, True)
    assert sent(gpu, writer, made) == [0, 0, 0]
    assert received(gpu, reader) == {"x": told("cuda", np.empty((0, 3), np.float32))}


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


@needs_torch
@pytest.mark.parametrize("device", [None, "cuda:1"])
def test_it_is_refused_where_torch_finds_no_device(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with ringcast.Writer(1 << 16) as writer, pytest.raises(ringcast.Error, match="torch finds none") as raised:
        writer.empty((3,), torch.float32, device)
    assert raised.value.errno == errno.ENODEV


@pytest.mark.parametrize("gpu", [{}], indirect=True)  # a process of its own, in which the memory is left
def test_it_outlives_its_writer(gpu):
    writer, _ = gpu.pair()
    tensor = writer.empty((6,), gpu.torch.float32)
    writer.close()
    assert tensor.fill_(3).numpy().tolist() == [3.0] * 6 and live("allocations") > 0
    gpu.leaves = True
