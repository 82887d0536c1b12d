# SPDX-License-Identifier: Apache-2.0
"""ringcast.torch.prepare(): the first broadcast is like every other; and all ranks prepare, or none
does."""

import functools
import resource
from typing import Tuple

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import check_usable, on_ranks, text_of
from test_torch_broadcast import forbid_collectives

import ringcast
import ringcast.torch as rt

pytestmark = pytest.mark.alike


def mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:ringcast" in line for line in maps)


def cost_of_a_broadcast(size: int) -> Tuple[int, int]:
    """The new mappings, and the page faults."""
    value = {"ids": torch.arange(64), "names": ["a", "b"], "x": torch.ones(size, dtype=torch.uint8)}
    dist.barrier()
    before = mappings()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    got = rt.broadcast_object(value if dist.get_rank() == 0 else None)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    assert got["x"].all() and len(got["x"]) == size
    return mappings() - before, faults


@pytest.mark.parametrize("size", [0, 20 << 20])
@on_ranks(3)
def test_the_first_broadcast_makes_nothing_and_touches_no_new_page(size: int) -> None:
    rt.prepare(nbytes=size, timeout=60)
    assert list(rt.rings()) == [0] and mappings() > 0
    prepared = cost_of_a_broadcast(size)
    assert prepared[0] == 0 and prepared[1] < 10, prepared
    rt.close()
    dist.barrier()
    cold = cost_of_a_broadcast(size)
    assert cold[0] > 0 and cold[1] > prepared[1], cold  # what is counted is there to be counted


@on_ranks(2)
def test_after_it_torch_distributed_is_left_alone() -> None:
    rt.prepare()
    with pytest.MonkeyPatch.context() as patch:
        forbid_collectives(patch)
        check_usable()
        if dist.get_rank() == 0:
            rt.prepare()  # alone: there is nothing to do
        check_usable()


@on_ranks(2)
def test_each_source_is_prepared_for_itself_and_again_for_more() -> None:
    check_usable(1)  # a ring is there already
    made = rt.rings()[1]
    for nbytes in (0, 0, 100, 10):
        rt.prepare(src=1, nbytes=nbytes)
    assert rt.rings() == {1: made}
    check_usable(1)
    rt.prepare()
    assert sorted(rt.rings()) == [0, 1]
    check_usable()
    rt.close()
    rt.prepare()
    assert sorted(rt.rings()) == [0]
    check_usable()


@on_ranks(3)
def test_a_rank_that_does_not_come_is_named_on_all_ranks() -> None:
    group = dist.new_group([0, 1, 2])
    alone = dist.get_rank() == 2
    for _ in range(2):
        if alone:
            dist.barrier()
        assert "rank 2 did not call prepare() within 0.1 s; nothing was prepared" in text_of(
            TimeoutError, lambda: rt.prepare(group, 1, timeout=60 if alone else 0.1)
        )
        if not alone:
            dist.barrier()
        assert rt.rings(group) == {}
    dist.barrier()
    rt.prepare(group, 1, timeout=60)
    check_usable(1, group)


@on_ranks(2)
def test_a_ring_that_is_there_is_prepared_by_all_ranks_or_by_none() -> None:
    check_usable()  # a ring is there already
    for nbytes in (0, 1 << 20):
        alone = dist.get_rank() == 1
        if alone:
            dist.barrier()
        prepare = functools.partial(rt.prepare, nbytes=nbytes, timeout=60 if alone else 0.1)
        assert "rank 1 did not call" in text_of(TimeoutError, prepare)
        if not alone:
            dist.barrier()
        check_usable()
        rt.prepare(nbytes=nbytes, timeout=60)
        check_usable()


@on_ranks(4)
def test_ranks_are_named_by_their_global_number() -> None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    if rank < 3:
        mine = groups[rank % 2]
        if rank == 1:
            assert "rank 3 did not" in text_of(TimeoutError, lambda: rt.prepare(mine, timeout=0.1))
        else:
            rt.prepare(mine, timeout=60)
            check_usable(0, mine)
    dist.barrier()


@on_ranks(2)
def test_wrong_arguments_are_refused_before_anything_is_done() -> None:
    for wrong in (
        dict(nbytes=-1),
        dict(timeout=0),
        dict(timeout=-1),
        dict(timeout=float("nan")),
        dict(src=2),
    ):
        text_of(ValueError, lambda wrong=wrong: rt.prepare(**wrong))
    for wrong in (dict(nbytes="1"), dict(src="0"), dict(group="tp"), dict(timeout="1")):
        text_of(TypeError, lambda wrong=wrong: rt.prepare(**wrong))
    assert rt.rings() == {}
    rt.prepare()
    check_usable()


@on_ranks(2)
def test_what_is_too_large_is_told_and_the_ring_goes_on() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGCAST_SPILL_BYTES", "0")
        expected = ringcast.FrameTooLarge if dist.get_rank() == 0 else ringcast.SendError
        assert "RINGCAST_SPILL_BYTES" in text_of(expected, lambda: rt.prepare(nbytes=1 << 30))
    check_usable()
    rt.prepare()
    check_usable()


@on_ranks(1)
def test_alone_there_is_nothing_to_prepare() -> None:
    rt.prepare()
    assert rt.rings() == {}
