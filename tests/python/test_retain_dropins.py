# SPDX-License-Identifier: Apache-2.0
"""What the drop-ins give is not copied where that can be avoided, and stays right for as long as the caller has it.
A function whose name starts with `ranks_` runs on every rank of a gloo group.

All results are the same where nothing can be kept, as with RINGCAST_DISABLE=cow."""

import gc
import os
from typing import Any, Dict, List, Tuple

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from keeping import KEEPS, MIB, is_kept, is_some, tensor
from peers import WATCHDOG
from queues import SMALL, make_ready, meanwhile, the_watching_thread, watchdog  # noqa: F401

import ringcast.torch as rt
from ringcast import sglang
from ringcast.vllm.group import Group

ranks = pytest.fixture(_dist.four_ranks, scope="module")

COUNT = 40


def value_of(number: int) -> Dict[str, Any]:
    return {"x": tensor(number), "n": number, "y": tensor(number + COUNT, 1), "small": torch.full((9,), number)}


def is_value(got: Dict[str, Any], number: int) -> bool:
    large = is_some(got["x"], number) and is_some(got["y"], number + COUNT, 1)
    return large and got["n"] == number and got["small"].tolist() == [number] * 9


def any_is_kept(values: List[Dict[str, Any]]) -> bool:
    assert not any(is_kept(got["small"]) for got in values)
    return any(is_kept(got["x"]) for got in values)


# ---- vLLM's queue ----------------------------------------------------------------------------------------------------


def test_all_that_a_queue_has_given_stays_right(monkeypatch):
    monkeypatch.setenv("RINGCAST_SPILL_BYTES", str(16 * MIB))
    writer, one, other = make_ready(2, **SMALL)
    held: Tuple[List[Any], List[Any]] = [], []

    def send() -> None:
        for number in range(COUNT):
            writer.enqueue(("execute_model", (value_of(number),)), timeout=WATCHDOG)

    with meanwhile(send) as outcome:
        for _ in range(COUNT):
            for reader, values in zip((one, other), held):
                values.append(reader.dequeue(timeout=WATCHDOG)[1][0])
    assert outcome == [None]
    for values in held:
        assert any_is_kept(values) == KEEPS
        values[3]["x"].zero_()
    for values in held:
        assert int(values.pop(3)["x"].max()) == 0
        assert all(is_value(got, got["n"]) for got in values)


def test_what_a_queue_gives_is_kept_step_after_step(monkeypatch):
    monkeypatch.setenv("RINGCAST_SPILL_BYTES", str(64 * MIB))
    writer, reader = make_ready(**SMALL)
    for number in range(COUNT):
        writer.enqueue(value_of(number), timeout=WATCHDOG)
        got = reader.dequeue(timeout=WATCHDOG)
        assert is_value(got, number) and is_kept(got["x"]) == (KEEPS and number > 0)


# ---- Groups ----------------------------------------------------------------------------------------------------------


def hold_all(receive: Any) -> bool:
    """Whether anything of it was kept."""
    os.environ["RINGCAST_SPILL_BYTES"], os.environ["RINGCAST_CAPACITY"] = str(16 * MIB), "65536"
    values = [receive(number) for number in range(COUNT)]
    kept = any_is_kept(values)
    assert all(is_value(got, number) for number, got in enumerate(values))
    for got in values[::2]:
        got["x"].fill_(dist.get_rank())
    dist.barrier()  # nobody has gone before all have written
    assert all(int(got["x"].max()) == int(got["x"].min()) == dist.get_rank() for got in values[::2])
    assert all(is_value(got, 2 * number + 1) for number, got in enumerate(values[1::2]))
    del values[:], got
    gc.collect()
    dist.barrier()
    return kept


def ranks_broadcast(name: str) -> bool:
    mine = dist.get_rank() == 1

    def receive(number: int) -> Any:
        if name == "broadcast_pyobj":
            value = [value_of(number)] if mine else []
            return sglang.broadcast_pyobj(value, dist.get_rank(), dist.group.WORLD, 1)[0]
        functions = {
            "broadcast_tensor_dict": rt.broadcast_tensor_dict,
            "broadcast_object": rt.broadcast_object,
            "broadcast_tensor_dict of vLLM's": Group(dist.group.WORLD, None).broadcast_tensor_dict,
            "broadcast_tensor_dict of SGLang's": sglang.broadcast_tensor_dict,
        }
        return functions[name](value_of(number) if mine else None, src=1)

    return hold_all(receive)


@pytest.mark.parametrize(
    "name",
    [
        "broadcast_tensor_dict",
        "broadcast_object",
        "broadcast_pyobj",
        "broadcast_tensor_dict of vLLM's",
        "broadcast_tensor_dict of SGLang's",
    ],
)
def test_all_that_was_broadcast_stays_right(ranks, name):
    assert ranks.run(3, ranks_broadcast, name) == [KEEPS, False, KEEPS]


def ranks_pairs() -> bool:
    group = Group(dist.group.WORLD, None)

    def receive(number: int) -> Any:
        if dist.get_rank() == 1:
            return group.recv_tensor_dict(0)
        group.send_tensor_dict(value_of(number), 1)
        return value_of(number)

    return hold_all(receive)


def test_all_that_one_rank_has_sent_to_another_stays_right(ranks):
    assert ranks.run(2, ranks_pairs) == [False, KEEPS]
