# SPDX-License-Identifier: Apache-2.0
"""Barriers, all-gathers and small all-reduces by the rings of a group, and what of them stays
torch.distributed's."""

import datetime
import os
import re
import signal
from typing import Any, List

import needs
import numpy as np
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import meet, on_ranks, text_of
from dropins import PAIRS, on_machines, values
from peers import names_of_rings
from values import assert_same, scribble

import ringcast
from ringcast._group import gather, rings
from ringcast._group.torch_transport import seconds_of
from ringcast.sglang import transports

pytestmark = pytest.mark.alike

MINUTE = datetime.timedelta(minutes=1)
_TORCHS = "all_gather_object", "barrier", "all_reduce"


def called_of_torch(patch: pytest.MonkeyPatch) -> List[str]:
    """From now on: the functions of torch.distributed that are called."""
    called: List[str] = []

    def seeing(name: str, function: Any) -> Any:
        def see(*args: Any, **keywords: Any) -> Any:
            called.append(name)
            return function(*args, **keywords)

        return see

    for name in _TORCHS:
        patch.setattr(dist, name, seeing(name, getattr(dist, name)))
    return called


def gathered(value: Any, group: Any = None) -> List[Any]:
    everyone: List[Any] = [None] * dist.get_world_size(group)
    transports.all_gather_object(everyone, value, group)
    return everyone


@on_ranks(4)
def test_every_rank_gets_a_copy_of_the_value_of_each() -> None:
    rank = dist.get_rank()
    gathered(None)  # makes the rings
    assert names_of_rings() == [f"sglang.default.{rank}.gather"]
    with pytest.MonkeyPatch.context() as patch:
        called = called_of_torch(patch)
        for value in [*values(), bytes(3 << 20)]:
            given = {"of": rank, "value": value}
            everyone = gathered(given)
            assert everyone[rank] is not given
            for each, got in enumerate(everyone):
                assert got["of"] == each
                assert_same(got["value"], value)
            scribble(everyone)
        for dtype in torch.int32, torch.uint8, torch.bool:
            failed = torch.zeros(5, dtype=dtype)
            failed[rank] = 1
            transports.all_reduce(failed, op=dist.ReduceOp.MAX)
            assert failed.tolist() == [1, 1, 1, 1, 0]
        assert called == []
    alone = dist.new_group([rank], use_local_synchronization=True)
    assert gathered("alone", alone) == ["alone"]
    transports.barrier(group=alone)


def ranks_at_barriers(file: str) -> None:
    rank = dist.get_rank()
    counts = np.memmap(file, np.int64, "r+", shape=3)
    for step in range(1, 100):
        counts[rank] = step
        transports.barrier()
        assert (counts >= step).all()
        gathered(bytes(1 << 20) if step % 50 == rank else None)


def test_no_rank_leaves_a_barrier_before_the_last_has_come(ranks, tmp_path):
    (tmp_path / "counts").write_bytes(bytes(24))
    ranks.run(3, ranks_at_barriers, str(tmp_path / "counts"))


class Refusing:
    def __reduce__(self) -> Any:
        raise ValueError("not this one")


@on_ranks(4)
def test_what_a_rank_can_not_send_is_told_to_all_and_the_next_call_works() -> None:
    rank = dist.get_rank()
    for odd in range(4):
        error = ValueError if rank == odd else ringcast.SendError
        assert "not this one" in text_of(error, lambda: gathered(Refusing() if rank == odd else 1))  # noqa: B023
        assert gathered(rank) == [0, 1, 2, 3]
    text_of(RuntimeError, transports.barrier if rank == 2 else lambda: gathered(1))


@on_ranks(4)
def test_what_rings_do_not_carry_is_torchs() -> None:
    rank = dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        called = called_of_torch(patch)
        for tensor, op in [
            (torch.ones(3), dist.ReduceOp.MAX),
            (torch.ones(3, dtype=torch.int32), dist.ReduceOp.SUM),
            (torch.ones(1 << 20, dtype=torch.int32), dist.ReduceOp.MAX),
        ]:
            transports.all_reduce(tensor, op)
            assert int(tensor[0]) == (4 if op == dist.ReduceOp.SUM else 1)
        transports.all_reduce(
            torch.ones(3, dtype=torch.int32), op=dist.ReduceOp.MAX, async_op=True
        ).wait()
        transports.barrier(async_op=True).wait()
        for args, named in ((None,), {"timeout": MINUTE}), ((None, False, None, MINUTE), {}):
            transports.barrier(*args, **named)
        assert called == ["all_reduce"] * 4 + ["barrier"] * 3
        with on_machines(PAIRS):
            del called[:]
            for _ in range(2):
                assert gathered(rank) == [0, 1, 2, 3]
                transports.barrier()
            assert called[-4:] == ["all_gather_object", "barrier"] * 2
            assert [end.ring.closed for end in rings.ends(dist.group.WORLD).values()] == [True]
    gather._of_torch.clear()


class Late:
    def __reduce__(self) -> Any:
        return _raise_timeout, ()


def _raise_timeout() -> None:
    raise TimeoutError("of the value")


@on_ranks(3)
def test_a_call_ends_with_the_timeout_of_its_group_and_names_the_missing_ranks() -> None:
    rank = dist.get_rank()
    group = dist.new_group(timeout=MINUTE)
    pid = gathered(os.getpid(), group)[1]
    meet()
    if rank != 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gather, "seconds_of", lambda backend: seconds_of(backend) / 600)
            for call in lambda: transports.barrier(group), lambda: gathered(rank, group):
                text = text_of(TimeoutError, call)
                # The other rank that waits may be late, too.
                assert re.search(
                    rf"rank 1 \(pid {pid}, alive\).* ha(s|ve) not come within 0.1 s, the group's",
                    text,
                )
    meet()
    if rank == 1:  # finds what the others have sent
        transports.barrier(group)
        assert gathered(1, group) == [0, 1, 2]
    meet()
    assert gathered(f"now {rank}", group) == ["now 0", "now 1", "now 2"]
    assert "of the value" in text_of(
        TimeoutError, lambda: gathered(Late() if rank == 0 else None, group)
    )


def ranks_of_a_death() -> str:
    transports.barrier()
    meet()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises((ringcast.ReaderDied, ringcast.WriterGone)) as raised:
        transports.barrier()
    return str(raised.value)


def test_a_death_ends_a_barrier_on_every_rank(mortals):
    for text in mortals.run(3, ranks_of_a_death, dying=2)[:2]:
        assert "rank 2 (pid " in text and "has died" in text


class Interrupted(Exception):
    pass


@on_ranks(2)
def test_after_an_interrupted_call_no_value_of_it_is_taken_for_the_next_one() -> None:
    rank = dist.get_rank()

    def interrupt(*_: Any) -> None:
        raise Interrupted

    assert gathered(f"first of {rank}") == ["first of 0", "first of 1"]
    meet()
    if rank == 0:
        before = signal.signal(signal.SIGALRM, interrupt)
        with pytest.raises(Interrupted):
            gathered("second of 0")
        signal.signal(signal.SIGALRM, before)
    else:
        (mine,) = [
            end.ring
            for end in rings.ends(dist.group.WORLD).values()
            if isinstance(end.ring, ringcast.Writer)
        ]
        waits = mine.peers()[0].stats.waits
        while mine.peers()[0].stats.waits == waits:  # counted at the end of each part of a wait
            pass
        os.kill(mine.peers()[0].pid, signal.SIGALRM)
    dist.barrier()
    if rank == 1:
        assert gathered("second of 1") == ["second of 0", "second of 1"]
    for name in "third", "fourth":
        assert gathered(f"{name} of {rank}") == [f"{name} of 0", f"{name} of 1"]
