# SPDX-License-Identifier: Apache-2.0
"""ringcast.vllm.group among the ranks of gloo groups; test_all_dropins.py has what all drop-ins
promise. "Apart" are tensors that a test has travel as those on a device would: by a second group.
"""

import contextlib
import os
import sys
import types
import weakref
from typing import Any, Iterator, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from _dist import on_ranks, text_of
from dropins import opened, payload
from peers import names_of_rings
from sending import end_to
from values import assert_same

import ringcast
from ringcast._group import p2p
from ringcast.vllm import MessageQueue
from ringcast.vllm.group import Group

pytestmark = pytest.mark.alike


@contextlib.contextmanager
def group_of_all(apart: bool) -> Iterator[Group]:
    """With `apart`, what is of float32 travels so."""
    with opened("vllm apart" if apart else "vllm") as way:
        yield way.group


@pytest.fixture(params=[False, True], ids=["in the frame", "apart"])
def apart(request):
    return request.param


# ---- Broadcasts ----------------------------------------------------------------------------------


@on_ranks(4)
def test_a_tensor_is_filled_in_place_from_any_source(apart: bool) -> None:
    with group_of_all(apart) as group:
        for src in range(group.world_size):
            for dtype in torch.float32, torch.int8, torch.bfloat16:
                tensor = torch.full(
                    (3, 2), src + 1 if group.rank_in_group == src else 0, dtype=dtype
                )
                assert group.broadcast(tensor, src) is tensor and bool((tensor == src + 1).all())


def ranks_apart_is_apart() -> List[int]:
    with group_of_all(True) as group:
        sizes = []
        for dtype in torch.float32, torch.float64:
            group.broadcast_tensor_dict({"x": torch.zeros(10_000, dtype=dtype)})
            end = ringcast.torch.rings(group.cpu_group)[0]
            sizes.append(end.stats().bytes)
        return sizes


def test_what_travels_apart_is_not_in_the_frame(ranks):
    first, both = ranks.run(2, ranks_apart_is_apart)[0]
    assert first < 1000 < 80_000 < both


@on_ranks(2)
def test_what_is_wrong_in_a_broadcast_is_said_on_all_ranks_and_the_next_works() -> None:
    group = Group()
    names = "broadcast broadcast_object broadcast_object_list broadcast_tensor_dict"
    for function in [getattr(group, name) for name in names.split()]:
        assert "(2)" in text_of(AssertionError, lambda function=function: function([], 2))
    mine = group.rank_in_group == 0
    if mine:
        assert "list" in text_of(AssertionError, lambda: group.broadcast_tensor_dict([1]))
    else:
        text_of(ringcast.SendError, group.broadcast_tensor_dict)
    tensor = torch.ones(3 if mine else 4)
    if mine:
        group.broadcast(tensor)
    else:
        assert "(3,) of torch.float32" in text_of(ValueError, lambda: group.broadcast(tensor))
        assert bool((tensor == 1).all())
    if mine:
        group.broadcast(tensor)
    else:
        assert "was broadcast; here" in text_of(RuntimeError, group.broadcast_object)


@on_ranks(1)
def test_a_rank_that_is_alone_gets_its_input_back() -> None:
    group = Group()
    obj: Any = {"x": torch.ones(2)}
    names = "broadcast broadcast_object broadcast_object_list broadcast_tensor_dict"
    for name in names.split():
        assert getattr(group, name)(obj) is obj
    assert group.send_tensor_dict(obj) is obj and group.isend_tensor_dict(obj) == []
    assert group.recv_tensor_dict() is None and group.irecv_tensor_dict() == (None, [], [])
    assert group.all_gather(obj["x"]) is obj["x"]
    text_of(AssertionError, lambda: group.send_object(obj, 0))
    assert "same ranks" not in text_of(TypeError, lambda: Group(dist.group.WORLD, "nccl"))


# ---- From one rank to another --------------------------------------------------------------------


@on_ranks(4)
def test_dicts_go_around_the_ring_of_ranks(apart: bool) -> None:
    """All send before any receives."""
    with group_of_all(apart) as group:
        for step in range(5):
            given = payload()
            handles = group.isend_tensor_dict(given)
            assert len(handles) == (4 if apart else 1)
            got, waits, postprocess = group.irecv_tensor_dict()
            assert len(waits) == len(handles) - 1 and postprocess == []
            for handle in waits + waits + handles + handles:
                handle.wait()
                assert handle.is_completed()
            assert_same(got, payload())


def ranks_isend_first(count: int, size: int, capacity: str) -> List[int]:
    """
    Both send all before either receives, three times: before there is a ring, while it begins, and
    in it.
    """
    os.environ["RINGCAST_CAPACITY"] = capacity
    os.environ["RINGCAST_SPILL_BYTES"] = "0"
    group = Group()
    peer = 1 - group.rank_in_group
    queued = []
    for turn in range(3):
        handles = [group.isend_object([turn, step, bytes(size)], peer) for step in range(count)]
        queued.append(sum(isinstance(handle, p2p._Queued) for handle in handles))
        if turn == 0:
            assert not any(handle.is_completed() for handle in handles)
        dist.barrier()
        for step in range(count):
            assert group.recv_object(peer)[:2] == [turn, step]
        for handle in handles if turn else ():  # those of the first turn are dropped
            handle.wait()
            handle.wait()
            assert handle.is_completed()
        dist.barrier()
    end = end_to(group, peer)
    with end._lock:
        assert end._on_ring and not end.posted and not end._outbox and end._thread is None
    return queued


# How many, of how many bytes, in which ring; and whether that is full.
@pytest.mark.parametrize(
    "count, size, capacity, full", [(300, 10, 1 << 20, 0), (100, 5000, 1 << 16, 1)]
)
def test_both_may_send_any_number_before_either_receives(ranks, count, size, capacity, full):
    for before, *later in ranks.run(2, ranks_isend_first, count, size, str(capacity)):
        assert (
            before == 0 and [queued > 50 if full else queued == 0 for queued in later] == [True] * 2
        )


@on_ranks(2)
def test_other_traffic_on_the_group_is_not_disturbed() -> None:
    """On the same group, and in another with the same ranks."""
    first, second = Group(), Group(dist.new_group())
    me = first.rank_in_group
    for step in range(6):
        if me == 0:
            tensor = torch.full((4,), float(step))
            first.isend_object(("a", step), 1)
            work = dist.isend(tensor, dst=1)
            second.isend_object(("b", step), 1)
            first.isend_object(("c", step), 1)
            work.wait()
        else:
            tensor = torch.zeros(4)
            dist.recv(tensor, src=0)
            assert tensor.tolist() == [float(step)] * 4
            assert second.recv_object(0) == ("b", step)
            assert first.recv_object(0) == ("a", step)
            assert first.recv_object(0) == ("c", step)
    dist.barrier()


@on_ranks(2)
def test_groups_may_be_destroyed_and_made_anew() -> None:
    """Groups are destroyed with messages under way, and made anew."""
    os.environ.update(RINGCAST_CAPACITY=str(1 << 20), RINGCAST_SPILL_BYTES="0")
    for turn in range(3):
        group = Group(dist.new_group())
        me = group.rank_in_group
        for step in range(4):
            if me == 0:
                group.send_object((turn, step), 1)
            else:
                assert group.recv_object(0) == (turn, step)
        dist.barrier()
        if me == 0:
            handles = [group.isend_object("lost", 1)]
            while turn == 2 and handles[-1].is_completed():  # until the ring is full
                handles.append(group.isend_object(bytes(1 << 16), 1))
        dist.barrier()  # a sender that looks for the receiver finds it
        if turn == 1:  # closed, and used again
            if me == 1:
                assert group.recv_object(0) == "lost"
            dist.barrier()
            group.close()
            dist.barrier()
            for step in range(4):
                if me == 0:
                    group.send_object(step, 1)
                else:
                    assert group.recv_object(0) == step
            dist.barrier()  # what gloo has sent is lost when the sender leaves first
        if me == 0 or turn < 2:
            dist.destroy_process_group(group.cpu_group)
            del group
    if me == 0:
        text_of(ringcast.ReaderDied, handles[-1].wait)
    dist.barrier()


@on_ranks(2)
def test_who_cannot_attach_receives_all_the_same() -> None:
    group = Group()
    peer = 1 - group.rank_in_group
    with pytest.MonkeyPatch.context() as patch:
        if peer == 0:

            def refuse(*_: Any, **__: Any) -> Any:
                raise ringcast.RingNotFound(2, "no such ring")

            patch.setattr(ringcast, "Reader", refuse)
        for step in range(5):
            handle = group.isend_tensor_dict(payload(), peer)[0]
            assert_same(group.recv_tensor_dict(peer), payload())
            handle.wait()
            dist.barrier()
    end = end_to(group, peer)
    assert end._on_ring == (peer == 0) and end.ring.closed == (peer == 1) and len(end.posted) <= 1


# ---- Gathered ------------------------------------------------------------------------------------


@on_ranks(4)
def test_parts_are_gathered_where_they_travel_apart(apart: bool) -> None:
    """Two stages of two ranks each: 0 and 1 send to 2 and 3."""
    with group_of_all(apart):
        made = {}
        for pair in (0, 1), (2, 3), (0, 2), (1, 3):
            cpu, device = dist.new_group(pair), dist.new_group(pair)
            if dist.get_rank() in pair:
                made["tp" if pair in ((0, 1), (2, 3)) else "pp"] = Group(cpu, device)
        tp, pp = made["tp"], made["pp"]
        tensors = {
            "even": torch.arange(12.0).reshape(3, 4),
            "odd": torch.arange(3.0),
            "own": torch.arange(4.0),
        }
        chosen = {"own": False}
        for step in range(4):
            if pp.rank_in_group == 0:
                tensors["own"] += tp.rank_in_group
                handles = pp.isend_tensor_dict(
                    tensors, all_gather_group=tp, all_gather_tensors=chosen
                )
                assert len(handles) == (4 if apart else 1)
                for handle in handles:
                    handle.wait()
            else:
                got, handles, postprocess = pp.irecv_tensor_dict(
                    all_gather_group=tp, all_gather_tensors=chosen
                )
                assert (len(handles), len(postprocess)) == ((3, 1) if apart else (0, 0))
                if apart:
                    assert got["even"].shape == (6,)
                for handle in handles:
                    handle.wait()
                for function in postprocess:
                    function()
                tensors["own"] += tp.rank_in_group
                assert list(got) == list(tensors)
                assert_same(got, tensors)
        if pp.rank_in_group == 0:
            pp.send_tensor_dict({"x": torch.ones(4)}, all_gather_group=tp)
        else:
            assert_same(pp.recv_tensor_dict(all_gather_group=tp), {"x": torch.ones(4)})


# ---- Queues --------------------------------------------------------------------------------------


def ranks_sub_group() -> Any:
    """Its ranks are other numbers in the group than outside."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = dist.get_rank()
    queue = MessageQueue.create_from_process_group(groups[rank // 2], 1 << 20, 2, 1)
    got = queue.broadcast_object(rank if rank % 2 else None)
    readers = [1, 3]
    answers, handles = MessageQueue.create_from_process_group_single_reader(
        groups[rank // 2], 1 << 20, 6, readers[rank // 2]
    )
    ends = [MessageQueue.create_from_handle(handle, 0) for handle in handles]
    dist.barrier()
    answers.enqueue(rank)
    result = got, [end.dequeue(timeout=_dist.JOB_SECONDS) for end in ends]
    dist.barrier()
    return result


def test_sub_groups_have_queues_of_their_own(ranks):
    assert ranks.run(4, ranks_sub_group) == [(1, []), (1, [0, 1]), (3, []), (3, [2, 3])]


# ---- Names ---------------------------------------------------------------------------------------


@on_ranks(3)
def test_rings_are_named_after_vllms_group_and_the_global_rank() -> None:
    rank = dist.get_rank()
    tp, pp, lone = (
        Group(dist.new_group([0, 2])) if rank != 1 else dist.new_group([0, 2]) for _ in range(3)
    )
    if rank != 1:
        made = types.SimpleNamespace(_groups={"tp:0": weakref.ref(tp), "pp:1": weakref.ref(pp)})
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "vllm.distributed.parallel_state", made)
            tp.broadcast_object(1, 1)
            tp.broadcast_object_list([1], 0)
            pp.broadcast_tensor_dict({}, 1)
            pp.broadcast(torch.ones(1), 0)
            # Of no coordinator, and by another function.
            ringcast.torch.broadcast_object(1, 1, lone.cpu_group)
            lone.broadcast_object(1, 0)
            for group in tp, lone:
                if rank == 0:
                    group.send_object(1, 1)
                else:
                    assert group.recv_object(0) == 1
            queue = MessageQueue.create_from_process_group(tp.cpu_group, 1 << 16, 2, 1)
            single, _ = MessageQueue.create_from_process_group_single_reader(
                pp.cpu_group, 1 << 16, 2
            )
        alone = lone.cpu_group.group_name
        made = {
            0: f"{alone}.0 {alone}.0-2 mq.pp:1.0-0 pp:1.0 tp.0 tp.0-2",
            2: "mq.pp:1.2-0 mq.tp.2 pp:1.2 tp.2",
        }
        others = [f"torch.{alone}.2"] if rank == 2 else []
        assert names_of_rings() == sorted(
            [*others, *(f"vllm.{name}" for name in made[rank].split())]
        )
        assert queue and single
    dist.barrier()
