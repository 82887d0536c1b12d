# SPDX-License-Identifier: Apache-2.0
"""ringcast.torch.prepare(): the first broadcast is like every other; and all ranks prepare, or none
does."""

import resource
from typing import Any, Tuple

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


def cost_of_a_broadcast(size: int) -> Tuple[int, int]:
    """The new mappings of rings, and the page faults."""

    def now() -> Tuple[int, int]:
        with open("/proc/self/maps") as maps:
            mappings = sum("memfd:ringcast" in line for line in maps)
        return mappings, resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    value = {"ids": torch.arange(64), "names": ["a", "b"], "x": torch.ones(size, dtype=torch.uint8)}
    dist.barrier()
    mappings, faults = now()
    got = rt.broadcast_object(value if dist.get_rank() == 0 else None)
    more_mappings, more_faults = now()
    assert got["x"].all() and len(got["x"]) == size
    return more_mappings - mappings, more_faults - faults


@pytest.mark.parametrize("size", [0, 20 << 20])
@on_ranks(3)
def test_the_first_broadcast_makes_nothing_and_touches_no_new_page(size: int) -> None:
    rt.prepare(nbytes=size, timeout=60)
    assert list(rt.rings()) == [0]
    with pytest.MonkeyPatch.context() as patch:
        forbid_collectives(patch)
        check_usable()
        if dist.get_rank() == 0:
            rt.prepare(nbytes=size)  # alone: there is nothing to do
        check_usable()
    prepared = cost_of_a_broadcast(size)
    assert prepared[0] == 0 and prepared[1] < 10, prepared
    rt.close()
    dist.barrier()
    cold = cost_of_a_broadcast(size)
    assert cold[0] > 0 and cold[1] > prepared[1], cold  # what is counted is there to be counted


@on_ranks(2)
def test_each_source_is_prepared_for_itself_and_again_for_more() -> None:
    check_usable(1)  # a ring is there already
    made = rt.rings()[1]
    for nbytes in (0, 0, 100, 10):
        rt.prepare(src=1, nbytes=nbytes)
    assert rt.rings() == {1: made}
    rt.prepare()
    assert sorted(rt.rings()) == [0, 1]
    for src in 0, 1:
        check_usable(src)
    rt.close()
    rt.prepare()
    assert sorted(rt.rings()) == [0]
    check_usable()


@pytest.mark.parametrize("is_made", [False, True])
@on_ranks(4)
def test_all_ranks_prepare_or_none_does_and_who_is_missing_is_named(is_made: bool) -> None:
    """By the global rank; the one that comes too late hears of it as well."""
    group = dist.new_group([0, 1, 3])
    rank, late = dist.get_rank(), dist.get_rank() == 3
    if is_made and rank != 2:
        check_usable(1, group)
    for nbytes in (0, 1 << 20):
        if late:
            dist.barrier()
        if rank != 2:
            missing = text_of(
                TimeoutError,
                lambda: rt.prepare(group, 1, nbytes=nbytes, timeout=60 if late else 0.1),  # noqa: B023
            )
            assert "rank 3 did not call prepare()" in missing
        if not late:
            dist.barrier()
        if rank != 2:
            assert bool(rt.rings(group)) == is_made
    dist.barrier()
    if rank != 2:
        rt.prepare(group, 1, timeout=60)
        check_usable(1, group)
    dist.barrier()


WRONG: Any = {
    ValueError: [("nbytes", -1), ("timeout", 0), ("timeout", -1), ("timeout", float("nan"))],
    TypeError: [("nbytes", "1"), ("src", "0"), ("group", "tp"), ("timeout", "1")],
}
WRONG[ValueError].append(("src", 2))


@on_ranks(2)
def test_what_can_not_be_prepared_is_told_and_the_ring_goes_on() -> None:
    for error, wrong in WRONG.items():
        for name, value in wrong:
            text_of(error, lambda: rt.prepare(**{name: value}))  # noqa: B023
    assert rt.rings() == {}
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
