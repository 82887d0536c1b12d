# SPDX-License-Identifier: Apache-2.0
"""Groups that torch.distributed's default group knows nothing of: ranks are the group's own."""

import datetime
import os
from typing import Any

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from _dist import on_ranks, text_of
from torch.distributed import distributed_c10d

import ringcast.torch as rt
from ringcast._group import gather
from ringcast.sglang import pyobj
from ringcast.vllm import MessageQueue
from ringcast.vllm.group import Group

SIZE = 3


def default_group(name: str, rank: int, size: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{name}", rank=rank, world_size=size)


def side_group(name: str, rank: int, is_known: bool = True) -> Any:
    """As trainers make one to their rollout workers, or vLLM's
    stateless_init_torch_distributed_process_group."""
    store = dist.PrefixStore("side", dist.FileStore(name, SIZE))
    timeout = datetime.timedelta(seconds=_dist.JOB_SECONDS)
    backend = distributed_c10d.Backend("gloo")
    group = distributed_c10d._new_process_group_helper(
        SIZE, rank, [], backend, store, "side", timeout=timeout
    )[0]
    if is_known:
        distributed_c10d._world.pg_group_ranks[group] = {each: each for each in range(SIZE)}
    return group


def group_of_kind(kind: str, store: str, rank: int) -> Any:
    if kind == "of a destroyed default group":
        group = dist.new_group()
        dist.destroy_process_group()
        return group
    if kind == "in another order":
        return dist.new_group([2, 0, 1], sort_ranks=False)
    dist.destroy_process_group()
    if kind == "larger than the default group":
        default_group(f"{store}.alone{rank}", 0, 1)
    elif kind == "of a trainer and its workers":
        default_group(
            f"{store}.{'trainer' if rank == 0 else 'workers'}",
            max(0, rank - 1),
            1 if rank == 0 else 2,
        )
    return side_group(f"{store}.side", rank, kind != "unknown to torch")


KINDS = (
    "larger than the default group",
    "of a trainer and its workers",
    "without a default group",
    "unknown to torch",
    "of a destroyed default group",
    "in another order",
)


def queued(value: Any, src: int, group: Any) -> Any:
    return MessageQueue.create_from_process_group(
        group, 1 << 16, 4, writer_rank=src
    ).broadcast_object(value)


def sent(value: Any, src: int, group: Any) -> Any:
    """From `src` to each other rank."""
    ranks = Group(group)
    if ranks.rank_in_group != src:
        return ranks.recv_object(src)
    for dst in set(range(SIZE)) - {src}:
        ranks.send_object(value, dst)
    return value


def point_to_point(value: Any, src: int, group: Any) -> Any:
    """From `src` to the next rank, in the numbers that torch gives the ranks."""
    ranks = Group(group)
    rank, dst = ranks.ranks[ranks.rank_in_group], (src + 1) % SIZE
    got = pyobj.point_to_point_pyobj([value], rank, group, ranks.ranks[src], ranks.ranks[dst])
    return got[0] if ranks.rank_in_group == dst else {"from": src}


def by_global_rank(value: Any, src: int, group: Any) -> Any:
    ranks = Group(group)
    return pyobj.broadcast_pyobj(
        [value], ranks.ranks[ranks.rank_in_group], group, ranks.ranks[src]
    )[0]


def gathered(value: Any, src: int, group: Any) -> Any:
    assert gather.barrier(group)
    return gather.all_gather(group, {"from": group.rank()})[src]


def prepared(value: Any, src: int, group: Any) -> Any:
    rt.close(group)
    rt.prepare(group, src)
    return rt.broadcast_object(value, src, group)


WAYS = (
    lambda value, src, group: rt.broadcast_object(value, src, group),
    lambda value, src, group: rt.broadcast_object_list([value], src, group)[0],
    lambda value, src, group: rt.broadcast_tensor_dict(value, src, group),
    lambda value, src, group: pyobj.broadcast_tensor_dict(value, src, group),
    lambda value, src, group: Group(group).broadcast_object(value, src),
    lambda value, src, group: Group(group).broadcast_tensor_dict(value, src),
    *(prepared, by_global_rank, gathered, sent, point_to_point, queued),
)


@pytest.mark.parametrize("kind", KINDS)
@on_ranks(SIZE)
def test_every_function_gives_the_source_s_value(kind: str) -> None:
    store = os.path.dirname(_dist._places[0])
    group = group_of_kind(kind, os.path.join(store, "made"), dist.get_rank())
    for way in WAYS:
        for src in range(SIZE):
            mine = {"from": src} if group.rank() == src else {}
            assert way(mine, src, group) == {"from": src}, (way, src)
    assert "from 0 to 2" in text_of(ValueError, lambda: rt.broadcast_object(1, SIZE, group))
    _dist.meet()
    rt.close(group)


def test_a_group_of_no_processes_is_refused() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        assert "fake" in text_of(ValueError, lambda: rt.broadcast_object(1))
        assert "fake" in text_of(ValueError, lambda: rt.prepare(nbytes=torch.ones(1).nbytes))
    finally:
        dist.destroy_process_group()
