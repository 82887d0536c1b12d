# SPDX-License-Identifier: Apache-2.0
"""Tensors that a Writer has lent, which readers copy from where they lie."""

import errno
import os
import re
import signal
import time

import device_peers as peers
import numpy as np
import pytest
from lent_tensors import (
    close_loans,
    close_reader,
    forget,
    handle_of,
    imports,
    lend,
    loan_do,
    loan_is,
    part,
    prepare,
    raises_timeout,
    segments,
    send_of,
    synchronize,
    view,
)
from peers import WATCHDOG, call_all
from test_device import COPIES, MEGABYTE, exchange, rings, told  # noqa: F401
from test_device_looking import mortal  # noqa: F401

import ringcast

pytestmark = pytest.mark.alike

LARGE = np.arange(700000, dtype=np.float64)  # more than the pool has, and the ring
SMALL = np.arange(24, dtype=np.float32).reshape(4, 6)
LITTLE = {"capacity": MEGABYTE, "gpu_pool_bytes": 2 * MEGABYTE, "spill_bytes": 0}


@pytest.fixture
def lending(rings):  # noqa: F811
    """Makes a ring whose writer has lent something, as "x", and whose readers have opened its pool."""
    made = []

    def make(array=LARGE, readers=1, options=None, reader_options=None):
        writer, others = rings(readers, {**LITTLE, **(options or {})}, reader_options)
        made.append((writer, others))
        writer.call(lend, array)
        assert [reader.call(prepare) for reader in others] == [True] * readers
        return writer, others

    yield make
    for writer, others in made:
        for reader in others:  # what a test that fails has left unread is waited for else
            reader.call(peers.close)
        writer.call(close_loans)
        assert writer.call(segments) == 0


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


def test_before_the_readers_have_opened_the_pool_it_goes_through_the_ring(rings):  # noqa: F811
    writer, (reader,) = rings(1, {"gpu_lend": True})
    assert reader.call(prepare) is False  # there is none yet
    writer.call(lend, SMALL)
    for i in range(3):
        writer.call(send_of, {"x": ("x",)})
        assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
        info = writer.call(peers.gpu)
        assert (info.inline_frames, info.pool_frames, info.pool_bytes_sent) == (1, i, 0)
    writer.call(close_loans)


def test_too_large_for_the_ring_before_that(rings):  # noqa: F811
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


# ---- Taking it back --------------------------------------------------------------------------------------------------


def test_it_is_idle_when_all_have_read_it(lending):
    writer, others = lending(SMALL, 2)
    assert writer.call(loan_is, "idle")
    writer.call(loan_do, "wait")
    writer.call(send_of, {"x": ("x",)})
    for reader in others:
        assert writer.call(loan_is, "idle") is False
        for timeout in (0, 0.01):
            assert "has not read all" in writer.call(raises_timeout, "wait", timeout)
        reader.call(peers.receive)
        reader.call(synchronize)
    writer.call(loan_do, "wait", WATCHDOG)
    assert writer.call(loan_is, "idle")


def test_closing_waits_until_no_reader_has_it_open_and_then_gives_the_tensor_up(lending):
    writer, (reader,) = lending(SMALL)
    writer.call(send_of, {"x": ("x",)})
    for timeout in (0, 0.01):
        said = writer.call(raises_timeout, "close", timeout)
        assert said.startswith(f"reader 0 (pid {reader.pid})") and "still has its memory open" in said
    assert writer.call(segments) == 1 and not writer.call(loan_is, "closed")
    writer.start(loan_do, "close", WATCHDOG)
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    writer.finish()
    assert reader.call(imports) == 1  # the pool
    assert writer.call(segments) == 0
    assert writer.call(loan_is, "closed") and writer.call(loan_is, "idle")
    writer.call(loan_do, "close")
    writer.call(loan_do, "wait")


def test_what_is_being_taken_back_is_copied(lending):
    writer, (reader,) = lending(SMALL)
    writer.call(send_of, {"x": ("x",)})
    assert writer.call(raises_timeout, "close", 0)
    assert writer.call(send_of, {"x": ("x",)}) == [1, 0, 0]
    for _ in range(2):
        assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}


def lend_again(state):
    state["loans"]["again"] = state["writer"].lend(part(state))


def test_it_can_be_lent_again_and_twice(lending):
    writer, (reader,) = lending(SMALL)
    writer.call(lend_again)
    writer.call(send_of, {"x": ("x",)})
    assert writer.call(raises_timeout_of, "again")
    reader.call(peers.receive)
    writer.call(loan_close, "again")  # the other one still has it
    assert writer.call(segments) == 1 and reader.call(imports) == 2
    assert writer.call(send_of, {"x": ("x",)}) == [0, 0, 0]
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    writer.call(lend_again)
    writer.call(loan_close, "x", True)
    assert writer.call(raises_closed) and writer.call(segments) == 0


def raises_timeout_of(state, name):
    return raises_timeout(state, "close", 0, name)


def loan_close(state, name, all_of_them=False):
    for loan in [state["loans"][name], *(state["loans"].values() if all_of_them else [])]:
        loan.close(WATCHDOG)


def raises_closed(state):
    with pytest.raises(ValueError, match="this Loan is closed"), state["loans"]["x"]:
        pass
    return repr(state["loans"]["x"]) == "<ringcast.Loan, closed>"


def in_a_block(state, fails):
    loan = state["loans"]["x"]
    assert repr(loan) == f"<ringcast.Loan, {SMALL.nbytes} bytes, open>"
    try:
        with loan as same:
            assert same is loan
            state["writer"].send({"x": part(state)}, WATCHDOG)
            if fails:
                raise KeyError("mine")
    except KeyError as error:
        assert error.args == ("mine",)
    return loan.closed


def test_a_block_takes_it_back(lending):
    writer, (reader,) = lending(SMALL)
    writer.start(in_a_block, False)
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    assert writer.finish() and writer.call(segments) == 0


def test_a_block_that_fails_waits_for_nobody_and_the_tensor_stays_meanwhile(lending):
    writer, (reader,) = lending(SMALL)
    assert writer.call(in_a_block, True)
    writer.call(forget)
    assert writer.call(segments) == 1
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    value = {"y": ("cuda", np.arange(3))}
    until = time.monotonic() + WATCHDOG
    while writer.call(segments) and time.monotonic() < until:
        assert exchange(writer, [reader], value) == [{"y": told("cuda", np.arange(3))}]
    assert writer.call(segments) == 0


def test_what_a_block_that_fails_has_lent_is_not_idle_before_it_is_read(lending):
    writer, (reader,) = lending(SMALL)
    assert writer.call(in_a_block, True)
    assert writer.call(loan_is, "closed") and not writer.call(loan_is, "idle")
    pid = reader.pid
    assert writer.call(raises_timeout, "wait", 0) == (
        f"reader 0 (pid {pid}) has not read all that was sent of the lent tensor"
    )
    reader.call(peers.receive)
    reader.call(synchronize)
    writer.call(loan_do, "wait", WATCHDOG)
    assert writer.call(loan_is, "idle")
    writer.call(loan_do, "close", WATCHDOG)
    assert writer.call(segments) == 0 and writer.call(loan_is, "idle")


def close_writer_before_it_is_read(state):
    writer, loan = state["writer"], state["loans"]["x"]
    writer.close()
    with pytest.raises(ValueError, match="closed before all was read of it"):
        loan.wait()
    loan.close()
    return loan.idle, loan.closed


def test_what_nobody_can_be_asked_about_any_more_is_not_idle(gpus, mortal):  # noqa: F811
    mortal.call(peers.make_writer, MEGABYTE)
    mortal.call(lend, SMALL)
    reader = gpus[1]
    reader.call(peers.attach, mortal.call(handle_of))
    assert reader.call(prepare)
    assert mortal.call(in_a_block, True)
    assert mortal.call(close_writer_before_it_is_read) == (False, True)
    reader.call(close_reader)


def close_in_a_child(state):
    """There the Writer is closed, and the memory that the Loan knew of it by is had by others."""
    loan, pid = state["loans"]["x"], os.fork()
    if pid == 0:
        before = loan.closed, repr(loan)
        state["writer"].close()
        blocks = [bytes([7]) * size for size in range(30, 70) for _ in range(500)]
        after = loan.closed, repr(loan)
        loan.__exit__(ValueError, None, None)
        del state["loans"], loan
        same = all(block == bytes([7]) * len(block) for block in blocks)
        is_well = before == (False, f"<ringcast.Loan, {SMALL.nbytes} bytes, open>") and same
        os._exit(0 if is_well and after == (True, "<ringcast.Loan, closed>") else 1)
    return os.waitpid(pid, 0)[1]


def test_a_child_that_closes_the_writer_leaves_its_loans(lending):
    writer, (reader,) = lending(SMALL)
    assert writer.call(close_in_a_child) == 0
    assert writer.call(send_of, {"x": ("x",)}) == [0, 0, 0]
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}


def test_a_loan_that_is_dropped_is_taken_back_by_the_writer(lending):
    writer, (reader,) = lending(SMALL)
    writer.call(send_of, {"x": ("x",)})
    writer.call(forget)
    assert writer.call(segments) == 1
    reader.call(peers.receive)
    reader.call(close_reader)
    writer.call(peers.close)
    assert writer.call(segments) == 0


def test_what_is_not_back_when_the_writer_goes_is_never_freed(gpus, mortal):  # noqa: F811
    mortal.call(peers.make_writer, MEGABYTE)
    mortal.call(lend, SMALL)
    reader = gpus[1]
    reader.call(peers.attach, mortal.call(handle_of))
    assert reader.call(prepare)
    mortal.call(send_of, {"x": ("x",)})
    mortal.call(forget)
    mortal.call(peers.close)
    assert mortal.call(segments) == 1
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    reader.call(peers.close)


def lend_to_itself(state):
    with ringcast.Writer(MEGABYTE) as writer, ringcast.Reader(writer.handle) as reader:
        tensor = state["torch"].segment(SMALL)
        with writer.lend(tensor) as loan:
            assert reader.prepare_gpu()
            writer.send({"x": tensor})
            got = peers.seen(reader.recv(0))
            loan.wait(WATCHDOG)
            return got


def test_a_reader_in_the_same_process(gpus):
    assert gpus[0].call(lend_to_itself) == {"x": told("cuda", SMALL)}


def test_a_writer_with_a_loan_is_not_closed(lending):
    writer, (reader,) = lending(SMALL)
    with pytest.raises(BufferError, match="a Loan of it is open"):
        writer.call(close_writer)
    writer.call(send_of, {"x": ("x",)})
    assert reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    writer.call(loan_do, "close", WATCHDOG)
    reader.call(close_reader)
    writer.call(close_writer)


def close_writer(state):
    state["writer"].close()


def test_a_reader_that_was_killed_is_not_waited_for(lending, mortal):  # noqa: F811
    writer, (reader,) = lending(SMALL)
    mortal.call(peers.attach, writer.call(handle_of))
    assert mortal.call(prepare)
    writer.call(send_of, {"x": ("x",)})
    assert mortal.call(peers.receive) == reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    writer.call(send_of, {"x": ("x",)})
    reader.call(peers.receive)
    assert writer.call(raises_timeout, "close", 0.05)
    os.kill(mortal.pid, signal.SIGKILL)
    mortal.process.join(WATCHDOG)
    writer.call(loan_do, "close", WATCHDOG)
    assert writer.call(segments) == 0


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
        ("cpu", SMALL, None, TypeError, "is on 'cpu'"),
        ("numpy", SMALL, None, TypeError, "not tuple"),
    ],
)
def test_what_can_not_be_lent_is_refused_with_the_reason(lending, kind, array, how, error, match):
    writer, _ = lending(SMALL)
    text, number = writer.call(refused, kind, array, how, error)
    assert re.search(match, text) and number == (errno.ENOTSUP if error is ringcast.Error else None)
    assert writer.call(segments) == 1


def test_a_writer_that_has_a_pool_already_must_have_said_that_it_lends(rings):  # noqa: F811
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


def test_nothing_is_lent_without_a_pool(rings):  # noqa: F811
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
