# SPDX-License-Identifier: Apache-2.0
"""Functions of torch.distributed over rings, with the same contracts, for SGLang's own methods
(_install.py).

SGLang's asserts, errors and order of calls stay. Asynchronous calls, tensors on a device, groups on
several machines and elastic groups stay with torch.distributed.
"""

import functools
from typing import Any, List, Optional

import torch
import torch.distributed as dist

from ringcast._group import gather
from ringcast.sglang.pyobj import broadcast_list

# Larger tensors are left to torch.distributed: here each rank receives the tensors of all ranks.
_MOST_REDUCED_BYTES = 64 << 10


def broadcast_object_list(
    object_list: List[Any],
    src: Optional[int] = None,
    group: Any = None,
    device: Any = None,
    group_src: Optional[int] = None,
) -> None:
    if group_src is not None or device is not None:
        dist.broadcast_object_list(object_list, src, group, device, group_src)
    else:
        broadcast_list(object_list, 0 if src is None else src, group)


def all_gather_object(object_list: List[Any], obj: Any, group: Any = None) -> None:
    everyone = gather.all_gather(group, obj)
    if everyone is None:
        dist.all_gather_object(object_list, obj, group)
    else:
        for rank, value in enumerate(everyone):
            object_list[rank] = value


def barrier(group: Any = None, async_op: bool = False, *more: Any, **named: Any) -> Any:
    """With `timeout`, or any argument besides the group, torch.distributed's own."""
    if async_op or more or named or not gather.barrier(group):
        return dist.barrier(group, async_op, *more, **named)
    return None


def all_reduce(
    tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    """By rings: the maximum of a few whole numbers."""
    is_whole = (
        not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
        and tensor.device.type == "cpu"
    )
    if async_op or op != dist.ReduceOp.MAX or not is_whole or tensor.nbytes > _MOST_REDUCED_BYTES:
        return dist.all_reduce(tensor, op, group, async_op)
    everyone = gather.tensors(group, tensor)
    if everyone is None:
        return dist.all_reduce(tensor, op, group, async_op)
    tensor.copy_(functools.reduce(torch.maximum, everyone))
    return None
