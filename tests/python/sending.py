# SPDX-License-Identifier: Apache-2.0
"""
What the tests of ringcast.vllm.group share: pairs of ranks, of which the first sends to the second.
"""

import torch.distributed as dist

from ringcast._group import p2p, rings
from ringcast.vllm.group import Group


def end_to(group: Group, dst: int) -> p2p.Sender:
    return rings.ends(group.cpu_group)["to", dst]


def send_some(group: Group, count: int = 3) -> None:
    """Three are enough for the next one to go into the ring."""
    for step in range(count):
        if group.rank_in_group == 0:
            group.send_object(step, 1)
        else:
            assert group.recv_object(0) == step
        dist.barrier()
