# SPDX-License-Identifier: Apache-2.0
"""
What the drop-ins give is not copied where that can be avoided, and stays right for as long as the
caller has it.

All results are the same where nothing can be kept, as with RINGCAST_DISABLE=retain.
"""

import gc
import os
from typing import Any, Dict, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from dropins import WAYS, opened
from keeping import KEEPS, MIB, is_kept, is_some, tensor
from peers import WATCHDOG
from queues import SMALL, make_ready, the_watching_thread, watchdog  # noqa: F401


COUNT = 40


def value_of(number: int) -> Dict[str, Any]:
    return {
        "x": tensor(number),
        "n": number,
        "y": tensor(number + COUNT, 1),
        "small": torch.full((9,), number),
    }


def is_value(got: Dict[str, Any], number: int) -> bool:
    large = is_some(got["x"], number) and is_some(got["y"], number + COUNT, 1)
    return large and got["n"] == number and got["small"].tolist() == [number] * 9


def any_is_kept(values: List[Dict[str, Any]]) -> bool:
    assert not any(is_kept(got["small"]) for got in values)
    return any(is_kept(got["x"]) for got in values)


def ranks_holding(name: str) -> List[bool]:
    """Of each function: whether anything that it gave was kept."""
    os.environ["RINGCAST_SPILL_BYTES"], os.environ["RINGCAST_CAPACITY"] = str(16 * MIB), "65536"
    return [hold_all(name, function) for function in WAYS[name].functions]


def hold_all(name: str, function: str) -> bool:
    with opened(name) as way:
        values = [way(function, value_of(number), 1) for number in range(COUNT)]
        kept = any_is_kept(values)
        assert all(is_value(got, number) for number, got in enumerate(values))
        for got in values[::2]:
            got["x"].fill_(dist.get_rank())
        dist.barrier()  # nobody has gone before all have written
        assert all(
            int(got["x"].max()) == int(got["x"].min()) == dist.get_rank() for got in values[::2]
        )
        assert all(is_value(got, 2 * number + 1) for number, got in enumerate(values[1::2]))
        del values[:], got
        gc.collect()
        dist.barrier()
        return kept


@pytest.mark.parametrize("way", WAYS)
def test_all_that_was_sent_stays_right(ranks, way):
    by_rank = ranks.run(3, ranks_holding, way)
    assert by_rank == [
        [rank != 1 and KEEPS and way != "share_once"] * len(by_rank[0]) for rank in range(3)
    ]


# ---- Step after step -----------------------------------------------------------------------------


def test_what_a_queue_gives_is_kept_step_after_step(monkeypatch):
    monkeypatch.setenv("RINGCAST_SPILL_BYTES", str(64 * MIB))
    writer, reader = make_ready(**SMALL)
    for number in range(COUNT):
        writer.enqueue(value_of(number), timeout=WATCHDOG)
        got = reader.dequeue(timeout=WATCHDOG)
        assert is_value(got, number) and is_kept(got["x"]) == (KEEPS and number > 0)
