# SPDX-License-Identifier: Apache-2.0
"""Loans: when a tensor that a Writer has lent is idle, and how it is taken back."""

import os
import time

import device_peers as peers
import numpy as np
import pytest
from device_exchange import exchange, told
from device_peers import MEGABYTE, handle_of, kill
from lent_tensors import (
    SMALL,
    close_reader,
    forget,
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
)
from peers import WATCHDOG

import ringcast

pytestmark = pytest.mark.alike


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


def test_what_nobody_can_be_asked_about_any_more_is_not_idle(gpus, mortal):
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


def test_what_is_not_back_when_the_writer_goes_is_never_freed(gpus, mortal):
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


def test_a_reader_that_was_killed_is_not_waited_for(lending, mortal):
    writer, (reader,) = lending(SMALL)
    mortal.call(peers.attach, writer.call(handle_of))
    assert mortal.call(prepare)
    writer.call(send_of, {"x": ("x",)})
    assert mortal.call(peers.receive) == reader.call(peers.receive) == {"x": told("cuda", SMALL)}
    writer.call(send_of, {"x": ("x",)})
    reader.call(peers.receive)
    assert writer.call(raises_timeout, "close", 0.05)
    kill(mortal)
    writer.call(loan_do, "close", WATCHDOG)
    assert writer.call(segments) == 0
