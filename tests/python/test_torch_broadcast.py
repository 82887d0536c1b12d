# SPDX-License-Identifier: Apache-2.0
"""ringcast.torch among the ranks of gloo groups. A function whose name starts with `ranks_` runs on every rank."""

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import Any, Dict, List

import needs
import numpy
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from _dist import check_usable, text_of
from values import assert_same, scribble

import ringcast
import ringcast.torch as rt
from ringcast._group import endpoint, rings


ranks = pytest.fixture(_dist.four_ranks, scope="module")


# ---- What is sent -----------------------------------------------------------------------------------------------


@dataclass
class Request:
    name: str
    tokens: List[int]


def with_grad(tensor: Any) -> Any:
    return tensor.requires_grad_()


def tensors() -> Dict[str, Any]:
    base = torch.arange(24)
    return {
        "zeta first": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "0-d": torch.tensor(7),
        "empty": torch.empty((0, 5), dtype=torch.int16),
        "transposed": base.reshape(4, 6).T,
        "every third": base[::3],
        "expanded": torch.tensor([[1.5], [2.5]]).expand(2, 4),
        "bool": torch.tensor([True, False, True]),
        "bf16": base.to(torch.bfloat16),
        "f16": base.to(torch.float16),
        "fp8 e4m3": base.to(torch.float32).to(torch.float8_e4m3fn),
        "fp8 e5m2": base.to(torch.float32).to(torch.float8_e5m2),
        "complex": torch.complex(torch.arange(3.0), -torch.arange(3.0)),
        "conjugated": torch.complex(torch.arange(3.0), torch.ones(3)).conj(),
        "requires grad": with_grad(torch.ones(3)),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.float64),
        "uint8": base.to(torch.uint8),
        "large": torch.arange(300_000, dtype=torch.int32),
    }


def payload() -> Dict[str, Any]:
    inputs: Dict[str, Any] = {
        "none": None,
        "flag": True,
        "int": 2**80,
        "text": "é\n\0",
        "bytes": b"\0\1",
        "float": -0.0,
    }
    inputs.update(tensors())
    inputs["nested"] = {"b": torch.ones(2), "a": [torch.zeros(0), (1, {"c": torch.arange(3)})]}
    inputs["array"] = numpy.arange(6.0).reshape(2, 3).T
    inputs["request"] = Request("r1", [1, 2])
    inputs[""] = set("abc")
    return inputs


# ---- What arrives ----------------------------------------------------------------------------------------------------


def ranks_tensor_dict() -> None:
    for src in range(dist.get_world_size()):
        mine = payload() if dist.get_rank() == src else None
        got = rt.broadcast_tensor_dict(mine, src=src)
        if mine is not None:
            assert got is mine
            continue
        assert_same(got, payload())
        for name in tensors():
            assert got[name].is_contiguous(), name
        scribble(got)


@pytest.mark.parametrize("world", [2, 4])
def test_a_dict_arrives_equal_in_order_and_writable_from_any_source(ranks, world):
    ranks.run(world, ranks_tensor_dict)


def ranks_own_memory() -> None:
    os.environ["RINGCAST_CAPACITY"] = "65536"
    kept = [rt.broadcast_tensor_dict({"x": torch.full((1000,), step)}) for step in range(300)]
    for step, got in enumerate(kept):
        assert_same(got, {"x": torch.full((1000,), step)})


def test_what_was_received_is_not_touched_by_later_frames(ranks):
    ranks.run(2, ranks_own_memory)


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
    assert "was broadcast_object;" in text_of(RuntimeError, lambda: ring.take_hashed(endpoint.SHARE))
    return hashes["x"]


def test_a_value_arrives_with_the_hashes_that_it_was_sent_with(ranks):
    source, other = ranks.run(2, ranks_hashed)
    assert source == other


def ranks_large() -> None:
    os.environ["RINGCAST_CAPACITY"] = "65536"
    for step in range(3):  # spill memory is used again
        words = torch.arange(8 << 20, dtype=torch.int64) * (2 * step + 3)  # 64 MiB
        sent = {"x": words, "nested": [words[: 1 << 20]], "step": step}
        got = rt.broadcast_tensor_dict(sent if dist.get_rank() == 0 else None)
        assert got["step"] == step and torch.equal(got["x"], words) and torch.equal(got["nested"][0], words[: 1 << 20])


def test_a_dict_that_is_larger_than_the_ring_arrives(ranks):
    ranks.run(3, ranks_large)


def ranks_odd_dicts() -> None:
    for odd in ({}, {1: torch.ones(2), "a": 2, None: 3}, {"k": {}}):
        got = rt.broadcast_tensor_dict(odd)
        assert_same(got, odd)
        assert (got is odd) == (dist.get_rank() == 0)


def test_dicts_that_are_empty_or_have_other_keys_than_text_arrive(ranks):
    ranks.run(2, ranks_odd_dicts)


def ranks_objects() -> None:
    objects = [None, 7, "text", b"", [], {"a": 1}, (torch.ones(2), None), torch.arange(3), payload(), Request("r", [])]
    for src in range(dist.get_world_size()):
        for wanted in objects:
            got = rt.broadcast_object(wanted if dist.get_rank() == src else None, src=src)
            assert_same(got, wanted)
            assert dist.get_rank() != src or got is wanted


def test_an_object_arrives_on_every_rank_from_any_source(ranks):
    ranks.run(2, ranks_objects)


def ranks_object_list() -> None:
    wanted = [1, "two", torch.arange(3), None]
    for src in range(dist.get_world_size()):
        mine = list(wanted) if dist.get_rank() == src else [None] * 4
        assert rt.broadcast_object_list(mine, src=src) is mine
        assert_same(mine, wanted)
    assert rt.broadcast_object_list([]) == []


def test_a_list_is_filled_in_place(ranks):
    ranks.run(4, ranks_object_list)


def ranks_run_ahead() -> None:
    if dist.get_rank() == 0:
        check_usable()
        for step in range(50):
            rt.broadcast_tensor_dict({"step": step})
        dist.barrier()
    else:
        check_usable()
        dist.barrier()
        assert [rt.broadcast_tensor_dict()["step"] for _ in range(50)] == list(range(50))


def test_the_source_goes_on_while_the_others_are_busy(ranks):
    ranks.run(4, ranks_run_ahead)


# ---- Groups ----------------------------------------------------------------------------------------------------------


def test_without_torch_distributed_the_input_comes_back():
    value: Dict[str, Any] = {"a": 1}
    items = [1]
    assert not dist.is_initialized()
    assert rt.broadcast_tensor_dict(value, src=5) is value
    assert rt.broadcast_object(value) is value
    assert rt.broadcast_object_list(items) is items
    assert rt.broadcast_tensor_dict() is None
    rt.close()
    assert rt.rings() == {}


def ranks_alone() -> None:
    value = {"a": torch.ones(1)}
    items = [1]
    alone = dist.new_group([0])
    for group in (None, alone):
        assert rt.broadcast_tensor_dict(value, group=group) is value
        assert rt.broadcast_object(value, group=group) is value
        assert rt.broadcast_object_list(items, group=group) is items
        assert rt.rings(group) == {}


def test_in_a_world_of_one_the_input_comes_back(ranks):
    ranks.run(1, ranks_alone)


def ranks_sub_groups() -> None:
    odd, even = dist.new_group([1, 3]), dist.new_group([0, 2])
    rank = dist.get_rank()
    mine, other = (odd, even) if rank % 2 else (even, odd)
    metadata = dist.new_group([0, 1, 2, 3])
    assert "same ranks" in text_of(ValueError, lambda: rt.broadcast_tensor_dict({}, 0, mine, metadata))
    for src in (0, 1):
        got = rt.broadcast_tensor_dict({"from": rank}, src=src, group=mine)
        assert got == {"from": rank % 2 + 2 * src}, got
    assert rt.broadcast_object(rank, src=3) == 3  # the default group beside them
    assert "not in the group" in text_of(ValueError, lambda: rt.broadcast_object(1, group=other))
    again = dist.new_group([0, 1, 2, 3])
    before = again._get_sequence_number_for_group()
    assert rt.broadcast_tensor_dict({"from": rank}, 2, again, metadata) == {"from": 2}
    assert again._get_sequence_number_for_group() == before, "the exchange is the metadata group's"


def test_each_group_and_source_has_a_ring_of_its_own(ranks):
    ranks.run(4, ranks_sub_groups)


def ranks_bad_arguments() -> None:
    for src in (-1, 2, 2**40):
        assert "from 0 to 1" in text_of(ValueError, lambda src=src: rt.broadcast_object(1, src=src))
    text_of(TypeError, lambda: rt.broadcast_object(1, src="0"))
    assert "ProcessGroup" in text_of(TypeError, lambda: rt.broadcast_object(1, group="tp"))
    check_usable()


def test_a_source_out_of_range_or_a_group_that_is_none_is_refused(ranks):
    ranks.run(2, ranks_bad_arguments)


def ranks_count_collectives() -> None:
    group = dist.group.WORLD
    joined = group._get_sequence_number_for_group()
    check_usable()
    exchanged = group._get_sequence_number_for_group()
    assert exchanged - joined == 4, "two all_gather_objects: each of them the sizes, then the objects"
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

    for name in ("all_gather_object", "all_gather", "broadcast", "broadcast_object_list", "all_reduce", "barrier"):
        patch.setattr(dist, name, forbidden)
        patch.setattr(dist.distributed_c10d, name, forbidden)


def test_after_the_first_use_torch_distributed_is_left_alone(ranks):
    ranks.run(2, ranks_count_collectives)


def ranks_again(store: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    check_usable()
    first = rt.rings()[0].handle
    dist.destroy_process_group()
    assert not _dist.memory_of_rings(), _dist.memory_of_rings()
    assert_same(rt.broadcast_object("alone"), "alone")
    _dist.join_group(store, rank, world)
    assert rt.rings() == {}
    check_usable()
    assert rt.rings()[0].handle != first


def test_rings_go_with_their_group_and_a_new_one_has_new_rings(ranks, tmp_path):
    ranks.run(2, ranks_again, str(tmp_path / "again"))


def ranks_sub_group_destroyed() -> None:
    group = dist.new_group([0, 1])
    check_usable(1, group)
    assert len(rt.rings(group)) == 1 and _dist.memory_of_rings()
    dist.destroy_process_group(group)
    del group
    assert not _dist.memory_of_rings(), _dist.memory_of_rings()


def test_destroying_a_sub_group_frees_its_rings(ranks):
    ranks.run(2, ranks_sub_group_destroyed)


def ranks_close() -> None:
    group = dist.new_group([0, 1])
    for src in (0, 1):
        check_usable(src, group)
    check_usable()
    assert sorted(rt.rings(group)) == [0, 1]
    rt.close(group)
    assert rt.rings(group) == {} and len(rt.rings()) == 1
    check_usable(0, group)
    rt.close()
    rt.close()
    check_usable()
    assert group._get_sequence_number_for_group() == 12


def test_closing_frees_the_rings_of_that_group_and_the_next_use_makes_new_ones(ranks):
    ranks.run(2, ranks_close)


def ranks_source_leaves() -> None:
    check_usable()
    if dist.get_rank() == 0:
        rt.broadcast_object("last")
        rt.close()
    else:
        assert rt.broadcast_object() == "last"
        text_of(ringcast.WriterGone, rt.broadcast_object)
    check_usable()


def test_when_the_source_closes_the_others_drain_the_ring_and_are_told(ranks):
    ranks.run(4, ranks_source_leaves)


def ranks_fork() -> None:
    check_usable()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            text_of(ringcast.ForkedError, lambda: rt.broadcast_object(1))
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    check_usable()


def test_in_a_forked_child_the_rings_are_refused_and_the_parents_go_on(ranks):
    ranks.run(2, ranks_fork)
