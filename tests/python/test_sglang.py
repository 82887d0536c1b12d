# SPDX-License-Identifier: Apache-2.0
"""ringcast.sglang as SGLang calls it, and in its place; test_all_dropins.py has what all drop-ins
promise. SGLang itself is not installed: its modules are stubs that have its names and signatures of
August 2026."""

import sys
from typing import Any, List, Optional, Tuple

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import on_ranks, text_of
from peers import names_of_rings
from sglang_stubs import RECEIVER, load, write_stubs
from values import assert_same

import ringcast
from ringcast._group import rings
from ringcast.sglang import broadcast_pyobj, broadcast_tensor_dict, install, uninstall

pytestmark = pytest.mark.alike


class Request:
    """Of a class that only pickle can send, as SGLang's are."""

    def __init__(self, rid: str, feature: Any = None) -> None:
        self.rid, self.feature = rid, feature

    def __reduce__(self) -> Any:
        return Request, (self.rid, self.feature)


def told(requests: Optional[List[Request]]) -> Any:
    return requests and [(request.rid, request.feature.tolist()) for request in requests]


def some(count: int, name: str = "r") -> List[Request]:
    return [Request(f"{name}{index}", torch.arange(index + 1)) for index in range(count)]


def group_of(*groups: List[int]) -> Tuple[Any, List[int]]:
    """This rank's group of them, all of which all ranks make; and its ranks."""
    made = [dist.new_group(members) for members in groups]
    # who has its group and goes could else close a connection that gloo is still making
    dist.barrier()
    (mine,) = [index for index, members in enumerate(groups) if dist.get_rank() in members]
    return made[mine], groups[mine]


# ---- As SGLang calls broadcast_pyobj: who has what, and who gets what ----------------------------


def ranks_receiving_requests() -> None:
    """
    request_receiver: the first rank has polled, the others have None; most polls give nothing.
    """
    rank = dist.get_rank()
    group, _ = group_of([0, 1, 2, 3])
    for count in 0, 0, 3, 0, 1, 20:
        sent = some(count) if rank == 0 else None
        got = broadcast_pyobj(sent, rank, group, src=0)
        assert type(got) is list and told(got) == told(some(count))
        assert rank != 0 or got is sent
        got.append("its own")


def ranks_receiving_by_parts() -> None:
    """request_receiver with data-parallel attention: work along two groups, control over all."""
    rank = dist.get_rank()
    attn_tp, tp_ranks = group_of([0, 1], [2, 3])
    attn_cp, cp_ranks = group_of([0, 2], [1, 3])
    for count in 2, 0, 1:
        work, control = (some(count, "w"), some(1 - count % 2, "c")) if rank == 0 else (None, None)
        if rank in (0, 1):
            work = broadcast_pyobj(work, rank, attn_tp, src=tp_ranks[0])
        work = broadcast_pyobj(work, rank, attn_cp, src=cp_ranks[0])
        control = broadcast_pyobj(control, rank, dist.group.WORLD, src=0)
        assert told(work + control) == told(some(count, "w") + some(1 - count % 2, "c"))


def ranks_in_a_pipeline() -> None:
    """
    scheduler_pp_mixin: in each stage from its first rank, whose global rank is not its rank in the
    group.
    """
    rank = dist.get_rank()
    stage, members = group_of([1, 0], [3, 2])
    lengths, latencies = broadcast_pyobj([[64, 128], [0.5, 1.5]], rank, stage, src=members[0])
    assert (lengths, latencies) == ([64, 128], [0.5, 1.5])
    data = [["rid", members[0]], {"batch": torch.arange(3)}] if rank == members[0] else None
    got = broadcast_pyobj(data, rank, stage, src=members[0])
    assert_same(got, [["rid", members[0]], {"batch": torch.arange(3)}])


def ranks_with_a_seed() -> None:
    """tp_worker: every rank has a list, the first one's counts."""
    seed = broadcast_pyobj([1000 + dist.get_rank()], dist.get_rank(), dist.group.WORLD, src=0)[0]
    assert seed == 1000
    assert broadcast_pyobj([2000 + dist.get_rank()], dist.get_rank())[0] == 2000


def ranks_of_stages() -> None:
    """multimodal_gen: None is nothing; keywords; a batch, or what went wrong with it."""
    rank = dist.get_rank()
    group, members = group_of([0, 1], [2, 3])
    assert broadcast_pyobj(None, rank, group, src=members[0]) == (
        None if rank == members[0] else []
    )
    objects = [{"latents": torch.ones(2, 3)}] if rank == members[0] else []
    got = broadcast_pyobj(
        objects, rank=rank, dist_group=group, src=members[0], force_cpu_device=False
    )
    assert_same(got[0]["latents"], torch.ones(2, 3))
    worked, error = broadcast_pyobj(
        [False, ValueError("no")] if rank == 0 else [], rank=rank, src=0
    )
    assert not worked and type(error) is ValueError and str(error) == "no"


CALLERS = [
    ranks_receiving_requests,
    ranks_receiving_by_parts,
    ranks_in_a_pipeline,
    ranks_with_a_seed,
    ranks_of_stages,
]


@pytest.mark.parametrize("caller", CALLERS)
def test_each_caller_gets_what_sglang_gives_it(ranks, caller):
    ranks.run(4, caller)


@on_ranks(2)
def test_odd_data_goes_as_it_does_in_sglang_and_what_cannot_be_sent_is_told() -> None:
    rank = dist.get_rank()
    for empty in (), {}, "", None:
        got = broadcast_pyobj(empty if rank == 0 else None, rank)
        assert got is empty if rank == 0 else got == []
    for odd in ("a", 1), {"a": 1}, "text", {1, 2}, range(3):
        got = broadcast_pyobj(odd if rank == 0 else [], rank)
        assert got == odd and type(got) is type(odd)
    text = text_of(ringcast.SendError if rank else TypeError, lambda: broadcast_pyobj(7, rank))
    assert "needs a list, not int" in text
    assert broadcast_pyobj([rank], rank) == [0]


@on_ranks(2)
def test_after_a_wrong_rank_the_next_call_gets_its_own_data() -> None:
    rank = dist.get_rank()
    for step in range(3):
        if (rank, step) == (1, 1):
            assert "on rank 1" in text_of(ValueError, lambda: broadcast_pyobj([], 0))
        else:
            assert broadcast_pyobj([step] if rank == 0 else [], rank) == [step]


@on_ranks(4)
def test_a_wrong_rank_is_told() -> None:
    rank = dist.get_rank()
    group, members = group_of([0, 2], [1, 3])
    other = 1 - members[0]
    assert "one of [" in text_of(ValueError, lambda: broadcast_pyobj([], rank, group, src=other))
    if rank in (0, 2):
        # Rank 0 takes itself for rank 2, which takes it for the source.
        text = text_of(
            ValueError if rank == 0 else ringcast.SendError,
            lambda: broadcast_pyobj([1], 2, group, src=0),
        )
        assert "rank=2 and src=0 here, on rank 0" in text
        assert broadcast_pyobj([rank], rank, group, src=0) == [0]
        if rank == 2:
            assert "on rank 2" in text_of(ValueError, lambda: broadcast_pyobj([1], 0, group, src=0))
        else:
            broadcast_pyobj([1], 0, group, src=0)
        alone = dist.new_group([rank], use_local_synchronization=True)
        data = [rank]
        assert broadcast_pyobj(data, rank, alone, src=rank) is data
    assert "must be a torch.distributed.ProcessGroup" in text_of(
        TypeError, lambda: broadcast_pyobj([], rank, "tp")
    )


def test_without_a_group_it_says_what_to_call():
    with pytest.raises(ValueError, match="init_process_group"):
        broadcast_pyobj([1], 0)


# ---- Tensor dicts --------------------------------------------------------------------------------


def tensors() -> Any:
    deep = {"b": torch.ones(3), "c": {"d": torch.zeros(0, 2), "e": 1}}
    return {"a": torch.arange(6).reshape(2, 3), "deep": deep, "f": {}}


@on_ranks(3)
def test_a_tensor_dict_goes_in_a_group_of_its_own() -> None:
    rank, group = dist.get_rank(), dist.new_group([1, 2])
    if rank in (1, 2):
        sent = tensors() if rank == 2 else None
        got = broadcast_tensor_dict(
            sent, 1, group, dist.new_group([1, 2], use_local_synchronization=True)
        )
        assert_same(got, tensors())
        assert rank != 2 or got is sent


# ---- In SGLang's place (test_sglang_install.py has what is put there) ----------------------------


def check_mm_inputs(module: Any, rank: int) -> None:
    scheduler = module.Scheduler(dist.group.WORLD)
    theirs = dist.broadcast_object_list
    dist.broadcast_object_list = None  # not called
    try:
        inputs = scheduler._process_and_broadcast_mm_inputs(torch.arange(4))
        assert_same(inputs.mm_items, [torch.arange(4) * 2, True])
        for raw, words in (
            ("bad", "failed on the first rank: ValueError('not an image')"),
            ("too large", "lambda"),
        ):
            error = text_of(
                module._MultimodalInputProcessingError,
                lambda: scheduler._process_and_broadcast_mm_inputs(raw),  # noqa: B023
            )
            assert words in error
        assert_same(
            scheduler._process_and_broadcast_mm_inputs(torch.ones(2)).mm_items,
            [torch.ones(2) * 2, True],
        )
        assert load("srt.managers.schedule_batch").MultimodalInputs.made == (0 if rank else 4)
        assert module.Scheduler(None)._process_and_broadcast_mm_inputs(1).mm_items == [2, True]
    finally:
        dist.broadcast_object_list = theirs


def check_groups(coordinator: Any, rank: int) -> None:
    assert coordinator.broadcast_object({"of": rank}, 1) == {"of": 1}
    assert coordinator.all_gather_object([rank]) == [[0], [1], [2]]
    coordinator.barrier()
    assert "Invalid src rank (3)" in text_of(
        AssertionError, lambda: coordinator.broadcast_object(1, 3)
    )


def check_point_to_point(rank: int) -> None:
    """From stage to stage, as scheduler_pp_mixin does: each sends first, and the last sends to the
    first."""
    exchange = load("srt.utils.common").point_to_point_pyobj
    world = dist.group.WORLD
    for count in 0, 2, 0, 1:
        sent = exchange(some(count, f"{rank}"), rank, world, rank, (rank + 1) % 3, async_send=True)
        before = (rank - 1) % 3
        assert told(exchange([], rank, world, before, rank)) == told(some(count, f"{before}"))
        for each in sent:
            each.work.wait()
    for step in range(3):  # the last ones by the ring
        got = exchange([step] if rank == 2 else [], rank, world, 2, 0)
        assert got == ([step] if rank == 0 else [])
        if rank == 0:
            assert exchange([got], rank, world, 0, 2) == []
        elif rank == 2:
            assert exchange([], rank, world, 0, 2) == [[step]]
    assert {"to", "from"} <= {which for which, _ in rings.ends(world)}
    dist.barrier()  # a rank that leaves resets gloo's connections, with what is still on the way


def check_names(rank: int) -> None:
    """ "default" is what came before there was a coordinator."""
    sent = (["sglang.default.0", "sglang.tp.0-2"], ["sglang.tp.1"], [])[rank]
    dist.barrier()
    found = names_of_rings()
    assert found == sorted(
        [*sent, f"sglang.tp.{rank}-{(rank + 1) % 3}", f"sglang.tp.{rank}.gather"]
    ), found
    dist.barrier()


def ranks_installed(folder: str) -> None:
    rank = dist.get_rank()
    sys.path.insert(0, folder)
    try:
        install()
        assert load("srt.managers.scheduler_components.request_receiver").send(
            [rank, 5], rank, None
        ) == [0, 5]
        coordinator = load("srt.distributed.parallel_state").GroupCoordinator(dist.group.WORLD)
        check_groups(coordinator, rank)
        got = coordinator.broadcast_tensor_dict({"a": torch.ones(2)} if rank == 1 else None, 1)
        assert_same(got, {"a": torch.ones(2)})
        check_mm_inputs(load("srt.managers.scheduler"), rank)
        check_point_to_point(rank)
        receiver = load(RECEIVER).SchedulerRequestReceiver(dist.group.WORLD)
        assert receiver._finalize_shm_features([2, 5, 0]) == [1, 0, 1]
        with pytest.MonkeyPatch.context() as patch:
            for name in "broadcast_object_list", "all_gather_object", "barrier", "all_reduce":
                patch.setattr(dist, name, None)  # not called
            assert receiver._finalize_shm_features([5, 2]) == [0, 1]
            check_groups(coordinator, rank)
        check_names(rank)
        uninstall()
        scheduler = load("srt.managers.scheduler").Scheduler
        assert not hasattr(scheduler._process_and_broadcast_mm_inputs, "__wrapped__")
    finally:
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
            del sys.modules[name]


def test_in_place_they_work(ranks, tmp_path):
    write_stubs(tmp_path)
    ranks.run(3, ranks_installed, str(tmp_path))
