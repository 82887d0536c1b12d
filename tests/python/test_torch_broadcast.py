# SPDX-License-Identifier: Apache-2.0
"""
ringcast.torch among the ranks of gloo groups; test_all_dropins.py has what all drop-ins promise.
"""

import hashlib
from typing import Any

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from _dist import check_usable, meet, on_ranks, text_of
from peers import in_a_fork, names_of_rings
from values import assert_same

import ringcast
import ringcast.torch as rt
from ringcast._group import endpoint, rings


# ---- What arrives --------------------------------------------------------------------------------


def ranks_hashed() -> Any:
    ring = rings.end_of(None, 0)
    tensor = torch.arange(5)
    if isinstance(ring, endpoint.Source):
        dist.barrier()
        ring.send({"x": tensor}, endpoint.SHARE, hash="sha256")
        ring.send({"x": tensor}, endpoint.SHARE)
        ring.send("else", endpoint.OBJECT)
        dist.barrier()
        return int.from_bytes(hashlib.sha256(tensor.numpy().tobytes()).digest()[:8], "big")
    assert ring.take_hashed(endpoint.SHARE) is None
    dist.barrier()
    dist.barrier()
    value, hashes = ring.take_hashed(endpoint.SHARE)
    assert torch.equal(value["x"], tensor)
    assert not ring.take_hashed(endpoint.SHARE)[1]
    assert "was broadcast_object;" in text_of(
        RuntimeError, lambda: ring.take_hashed(endpoint.SHARE)
    )
    return hashes["x"]


def test_a_value_arrives_with_the_hashes_that_it_was_sent_with(ranks):
    source, other = ranks.run(2, ranks_hashed)
    assert source == other


@on_ranks(4)
def test_a_list_is_filled_in_place() -> None:
    wanted = [1, "two", torch.arange(3), None]
    for src in range(dist.get_world_size()):
        mine = list(wanted) if dist.get_rank() == src else [None] * 4
        assert rt.broadcast_object_list(mine, src=src) is mine
        assert_same(mine, wanted)
    assert rt.broadcast_object_list([]) == []


# ---- Groups --------------------------------------------------------------------------------------


def check_nothing_is_done(**where: Any) -> None:
    value, items = {"a": torch.ones(1)}, [1]
    assert rt.broadcast_tensor_dict(value, **where) is value
    assert rt.broadcast_object(value, **where) is value
    assert rt.broadcast_object_list(items, **where) is items
    assert rt.broadcast_tensor_dict(**where) is None
    rt.close(**where) if "src" not in where else rt.close()
    assert rt.rings() == {}


def test_without_torch_distributed_the_input_comes_back():
    assert not dist.is_initialized()
    check_nothing_is_done(src=5)


@on_ranks(1)
def test_in_a_world_of_one_the_input_comes_back() -> None:
    for group in (None, dist.new_group([0])):
        check_nothing_is_done(group=group)


@on_ranks(4)
def test_rings_are_named_after_the_group_and_the_global_rank_of_the_source() -> None:
    rank, group = dist.get_rank(), dist.new_group([0, 2, 3])
    rt.broadcast_object(7, 1)
    if rank != 1:
        rt.broadcast_object_list([7], 1, group)
    made = {1: "default.1", 2: f"{getattr(group, 'group_name', 'none here')}.2"}
    assert names_of_rings() == ([f"torch.{made[rank]}"] if rank in made else [])
    dist.barrier()


@on_ranks(4)
def test_each_group_and_source_has_a_ring_of_its_own() -> None:
    odd, even = dist.new_group([1, 3]), dist.new_group([0, 2])
    rank = dist.get_rank()
    mine, other = (odd, even) if rank % 2 else (even, odd)
    metadata = dist.new_group([0, 1, 2, 3])
    assert "same ranks" in text_of(
        ValueError, lambda: rt.broadcast_tensor_dict({}, 0, mine, metadata)
    )
    for src in (0, 1):
        got = rt.broadcast_tensor_dict({"from": rank}, src=src, group=mine)
        assert got == {"from": rank % 2 + 2 * src}, got
    assert rt.broadcast_object(rank, src=3) == 3  # the default group beside them
    assert "not in the group" in text_of(ValueError, lambda: rt.broadcast_object(1, group=other))
    again = dist.new_group([0, 1, 2, 3])
    before = again._get_sequence_number_for_group()
    assert rt.broadcast_tensor_dict({"from": rank}, 2, again, metadata) == {"from": 2}
    assert again._get_sequence_number_for_group() == before, "the exchange is the metadata group's"


@on_ranks(2)
def test_a_source_out_of_range_or_a_group_that_is_none_is_refused() -> None:
    for src in (-1, 2, 2**40):
        assert "from 0 to 1" in text_of(ValueError, lambda src=src: rt.broadcast_object(1, src=src))
    text_of(TypeError, lambda: rt.broadcast_object(1, src="0"))
    assert "ProcessGroup" in text_of(TypeError, lambda: rt.broadcast_object(1, group="tp"))
    check_usable()
    text_of(TypeError, lambda: rt.broadcast_object(1, src=0.0))
    check_usable()


@on_ranks(2)
def test_after_the_first_use_torch_distributed_is_left_alone() -> None:
    group = dist.group.WORLD
    joined = group._get_sequence_number_for_group()
    check_usable()
    exchanged = group._get_sequence_number_for_group()
    assert exchanged - joined == 4, "two all_gather_objects, of sizes and of objects"
    with pytest.MonkeyPatch.context() as patch:
        forbid_collectives(patch)
        for step in range(20):
            check_usable()
            rt.broadcast_tensor_dict({"step": step})
            rt.broadcast_object_list([step])
    assert group._get_sequence_number_for_group() == exchanged


def forbid_collectives(patch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: Any, **keywords: Any) -> Any:
        raise AssertionError("a collective was called")

    names = "all_gather_object all_gather broadcast broadcast_object_list all_reduce barrier"
    for name in names.split():
        patch.setattr(dist, name, forbidden)
        patch.setattr(dist.distributed_c10d, name, forbidden)


def ranks_again(store: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    check_usable()
    first, held = rt.rings()[0].handle, dist.group.WORLD
    meet()
    dist.destroy_process_group()
    assert rt.broadcast_object(rank, 0, held) == 0  # the group is used as long as somebody holds it
    del held
    assert not _dist.memory_of_rings(), _dist.memory_of_rings()
    assert_same(rt.broadcast_object("alone"), "alone")
    _dist.join_group(store, rank, world)
    assert rt.rings() == {}
    check_usable()
    assert rt.rings()[0].handle != first


def test_rings_go_with_their_group_and_a_new_one_has_new_rings(ranks, tmp_path):
    ranks.run(2, ranks_again, str(tmp_path / "again"))


@on_ranks(2)
def test_rings_go_when_their_group_is_closed_or_destroyed_and_no_others() -> None:
    group = dist.new_group([0, 1])
    check_usable()
    for _ in range(2):
        for src in (0, 1):
            check_usable(src, group)
        assert sorted(rt.rings(group)) == [0, 1]
        rt.close(group)
        assert rt.rings(group) == {} and len(rt.rings()) == 1
    check_usable(1, group)
    rt.close()
    rt.close()
    meet()
    assert _dist.memory_of_rings()
    dist.destroy_process_group(group)
    del group
    assert not _dist.memory_of_rings(), _dist.memory_of_rings()
    check_usable()


@on_ranks(2)
def test_in_a_forked_child_the_rings_are_refused_and_the_parents_go_on() -> None:
    check_usable()
    in_a_fork(lambda: text_of(ringcast.ForkedError, lambda: rt.broadcast_object(1)))
    check_usable()
