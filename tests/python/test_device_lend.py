# SPDX-License-Identifier: Apache-2.0
"""Tensors that a Writer has lent, which readers copy from where they lie: which go so, and what can not be lent."""

import errno
import re

import device_peers as peers
import numpy as np
import pytest
from device_exchange import exchange, told
from device_peers import COPIES, MEGABYTE, handle_of
from lent_tensors import (
    LARGE,
    LITTLE,
    SMALL,
    close_loans,
    close_reader,
    forget,
    lend,
    loan_is,
    part,
    prepare,
    segments,
    send_of,
    view,
)
from peers import WATCHDOG, call_all

import ringcast

pytestmark = pytest.mark.alike

# ---- Where it lies ---------------------------------------------------------------------------------------------------


def receive_counted(state):
    before = peers.calls(*COPIES)
    got = peers.seen(state["reader"].recv(WATCHDOG))
    return got, peers.calls(COPIES[0])[0] - before[0]


@pytest.mark.parametrize("readers", [1, 3])
def test_it_is_not_copied_by_the_writer_and_once_by_each_reader(lending, readers):
    writer, others = lending(LARGE, readers)
    for _ in range(3):
        assert writer.call(send_of, {"x": ("x",)}) == [0, 0, 0]
        assert call_all(others, receive_counted) == [({"x": told("cuda", LARGE)}, 1)] * readers
    info = writer.call(peers.gpu)
    assert (info.pool_frames, info.pool_bytes_sent, info.inline_frames) == (3, 0, 0)


def test_parts_of_it_arrive_as_what_they_are_beside_all_else(lending):
    writer, (reader,) = lending(SMALL)
    other = {"h": np.arange(3), "i": 7}
    values = {
        "x": ("x",),
        "row": ("x", {"shape": (6,), "strides": (1,), "offset": 12}),
        "e": ("x", {"shape": (0, 3), "strides": (3, 1), "offset": 24}),
        "last": ("x", {"shape": (1,), "strides": (1,), "offset": 23}),
    }
    assert writer.call(send_of, values, other) == [0, 0, 0]
    assert reader.call(peers.receive) == {
        "x": told("cuda", SMALL),
        "row": told("cuda", SMALL[2]),
        "e": told("cuda", SMALL[:0, :3]),
        "last": told("cuda", SMALL[3, 5:]),
        "h": ("numpy", "int64", (3,), np.arange(3).tobytes()),
        "i": 7,
    }


def send_nested(state):
    import cupy

    x, pooled = part(state), state["torch"].from_numpy(SMALL + 1).cuda()
    state["writer"].send([{"a": [x, pooled]}, cupy.ndarray(x)], WATCHDOG)


def test_what_is_nested_and_what_is_an_array_of_another_library(lending):
    writer, (reader,) = lending(SMALL)
    writer.call(send_nested)
    x = told("cuda", SMALL)
    assert reader.call(peers.receive) == [{"a": [x, told("cuda", SMALL + 1)]}, ("cupy", *x[1:])]
    info = writer.call(peers.gpu)
    assert (info.pool_frames, info.pool_bytes_sent, info.inline_frames) == (1, SMALL.nbytes, 0)


def test_on_the_cpu_and_in_a_view(lending):
    writer, (host, viewer) = lending(SMALL, 2, None, {"map_location": "cpu"})
    viewer.call(close_reader)
    viewer.call(peers.attach, writer.call(handle_of))
    assert viewer.call(prepare)
    writer.call(send_of, {"x": ("x",)})
    assert host.call(peers.receive) == {"x": told("cpu", SMALL)}
    assert viewer.call(view) == {"x": told("cuda", SMALL)}


def test_what_is_not_in_order_or_not_inside_is_copied(lending):
    writer, (reader,) = lending(SMALL)
    for how, wanted in [
        ({"shape": (6, 4), "strides": (1, 6)}, SMALL.T),
        ({"shape": (4, 3), "strides": (6, 1)}, SMALL[:, :3]),
        ({"shape": (2, 6), "strides": (0, 1)}, SMALL[[0, 0]]),
    ]:
        writer.call(send_of, {"t": ("x", how)})
        assert reader.call(peers.receive) == {"t": told("cuda", wanted)}
        assert writer.call(peers.gpu).pool_bytes_sent > 0
    assert writer.call(loan_is, "idle")


def send_other(state):
    turned = part(state, "x", {"shape": (6, 4), "strides": (1, 6)})
    state["writer"].send([peers.Other(turned), peers.Other(part(state))], WATCHDOG)


def test_what_an_unknown_library_has_not_in_order_is_copied(lending):
    writer, (reader,) = lending(SMALL)
    writer.call(send_other)
    assert reader.call(peers.receive) == [told("other", SMALL.T), told("other", SMALL)]
    assert writer.call(peers.gpu).pool_bytes_sent == SMALL.nbytes


def lend_half(state, array):
    tensor = state["torch"].segment(np.concatenate([array, array]))
    half = tensor.as_strided(array.shape, tensor.strides, 0)
    state["loans"]["half"] = state["writer"].lend(half)
    state["other half"] = tensor.as_strided(array.shape, tensor.strides, array.size)


def send_other_half(state):
    tensor = state.pop("other half")
    state["writer"].send({"x": tensor}, WATCHDOG)
    tensor.fill_(-1)
    state["torch"].cuda.synchronize()


def test_another_tensor_of_the_same_allocation_may_be_written_to_at_once(lending):
    writer, (reader,) = lending(SMALL)
    writer.call(lend_half, SMALL)
    writer.call(send_other_half)
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}


# ---- Which way -------------------------------------------------------------------------------------------------------


def test_before_the_readers_have_opened_the_pool_it_goes_through_the_ring(rings):
    writer, (reader,) = rings(1, {"gpu_lend": True})
    assert reader.call(prepare) is False  # there is none yet
    writer.call(lend, SMALL)
    for i in range(3):
        writer.call(send_of, {"x": ("x",)})
        assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
        info = writer.call(peers.gpu)
        assert (info.inline_frames, info.pool_frames, info.pool_bytes_sent) == (1, i, 0)
    writer.call(close_loans)


def test_too_large_for_the_ring_before_that(rings):
    writer, (reader,) = rings(1, LITTLE)
    writer.call(lend, LARGE)
    with pytest.raises(ringcast.FrameTooLarge):
        writer.call(send_of, {"x": ("x",)})
    assert reader.call(prepare) is True
    writer.call(send_of, {"x": ("x",)})
    assert reader.call(peers.receive) == {"x": told("cuda", LARGE)}
    writer.call(close_loans)


def test_few_bytes_beside_it_do_not_keep_it_from_that_way(lending):
    writer, (reader,) = lending(LARGE, 1, {"gpu_inline_most": 1000})
    writer.call(send_of, {"x": ("x",), "e": ("x", {"shape": (3, 2), "strides": (1, 3)})})
    e = np.lib.stride_tricks.as_strided(LARGE, (3, 2), (8, 24))
    assert reader.call(peers.receive) == {"x": told("cuda", LARGE), "e": told("cuda", e)}


def test_with_hashes_it_goes_through_the_ring(lending):
    writer, (reader,) = lending(SMALL)
    writer.call(send_hashed)
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    assert writer.call(peers.gpu).inline_frames == 1


def send_hashed(state):
    state["writer"].send({"x": part(state)}, WATCHDOG, hash="sha256")


# ---- What can't be lent ----------------------------------------------------------------------------------------------


def refused(state, kind, array, how=None, error=ValueError):
    value = state["torch"].segment(array) if kind == "segment" else peers.make(state["torch"], (kind, array))
    if how:
        value = value.as_strided(*how)
    try:
        state["writer"].lend(value)
    except error as raised:
        return str(raised), getattr(raised, "errno", None)


@pytest.mark.parametrize(
    "kind, array, how, error, match",
    [
        ("cuda", SMALL, None, ringcast.Error, "memory pool, cuMemCreate .PyTorch's expandable_segments"),
        ("cupy", SMALL, None, ringcast.Error, "memory pool"),
        ("segment", SMALL, ((6, 4), (1, 6)), ValueError, "contiguous, and not empty"),
        ("segment", SMALL, ((0, 4), (4, 1)), ValueError, "contiguous, and not empty"),
        ("segment", SMALL, ((1 << 22,), (1,)), ValueError, "not lie in one allocation"),
        ("cpu", SMALL, None, TypeError, "is on 'cpu'"),
        ("numpy", SMALL, None, TypeError, "not tuple"),
    ],
)
def test_what_can_not_be_lent_is_refused_with_the_reason(lending, kind, array, how, error, match):
    writer, _ = lending(SMALL)
    text, number = writer.call(refused, kind, array, how, error)
    assert re.search(match, text) and number == (errno.ENOTSUP if error is ringcast.Error else None)
    assert writer.call(segments) == 1


def test_a_writer_that_has_a_pool_already_must_have_said_that_it_lends(rings):
    for options in ({}, {"gpu_lend": False}, {"gpu_lend": True}):
        writer, others = rings(1, options)
        exchange(writer, others, {"x": ("cuda", np.arange(3))})
        told_why = writer.call(refused, "segment", SMALL)
        if options.get("gpu_lend"):
            assert told_why is None
        else:
            assert "gpu_lend=True" in told_why[0]
        writer.call(forget)
        for peer in (*others, writer):
            peer.call(peers.close)


def test_nothing_is_lent_without_a_pool(rings):
    writer, _ = rings(1, {"gpu_pool_bytes": 0})
    text, number = writer.call(refused, "segment", SMALL, None, ringcast.Error)
    assert number == errno.ENOTSUP and "without a device pool" in text


def test_gpu_lend_is_a_bool():
    with pytest.raises(TypeError, match="gpu_lend must be True or False, not int"):
        ringcast.Writer(1 << 20, gpu_lend=1)


def test_memory_of_another_device(two_devices):
    writer = two_devices[0]
    writer.call(peers.make_writer, MEGABYTE)
    writer.call(lend, SMALL, "x", 1)
    text, number = writer.call(refused, "segment", SMALL, None, ringcast.Error)
    assert number == errno.ENOTSUP and "own device (1)" in text
    writer.call(close_loans)
    writer.call(peers.close)


def test_who_has_no_device(no_gpu):
    no_gpu.call(peers.make_writer, MEGABYTE)
    text, number = no_gpu.call(refused, "segment", SMALL, None, ringcast.Error)
    assert number == errno.ENODEV and "RINGCAST_DISABLE" in text
    no_gpu.call(peers.attach, no_gpu.call(handle_of))
    with pytest.raises(ringcast.Error, match="can't use a CUDA device .*RINGCAST_DISABLE") as raised:
        no_gpu.call(prepare)
    assert raised.value.errno == errno.ENODEV
    no_gpu.call(peers.close)
