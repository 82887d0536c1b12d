# SPDX-License-Identifier: Apache-2.0
"""vLLM's MessageQueue among the ranks of a torch.distributed group. A function whose name starts with `ranks_` runs on
every rank."""

from typing import Any, List, Tuple

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import torch
import torch.distributed as dist
from values import assert_same

from ringcast.vllm import MessageQueue

pytestmark = pytest.mark.alike

ranks = pytest.fixture(_dist.four_ranks, scope="module")


def ranks_broadcast() -> Tuple[List[int], Any]:
    group = dist.new_group([3, 1, 2, 0])  # torch sorts them
    found = []
    for writer in range(4):
        queue = MessageQueue.create_from_process_group(group, 40 * 1024, 2, writer)
        payload = {"mid": torch.arange(100_000), "half": torch.ones(8, dtype=torch.bfloat16), "n": writer}
        got = queue.broadcast_object(payload if dist.get_rank() == writer else None)
        assert_same(got, payload)
        found.append(queue.local_reader_rank)
        dist.barrier()  # no writer goes before all have what it sent
    return found


def test_any_rank_of_a_group_may_be_the_writer(ranks):
    assert ranks.run(4, ranks_broadcast) == [[-1, 0, 0, 0], [0, -1, 1, 1], [1, 1, -1, 2], [2, 2, 2, -1]]


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
