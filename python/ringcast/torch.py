# SPDX-License-Identifier: Apache-2.0
"""Broadcasts among the ranks of a torch.distributed group, through shared memory.

    from ringcast.torch import broadcast_tensor_dict
    inputs = broadcast_tensor_dict(inputs if rank == 0 else None, src=0, group=tp_group)

The functions have the contracts of vLLM's GroupCoordinator (parallel_state.py, August 2026). Each (group, src) has a
ring of its own, made when it is first used, by two exchanges over the group itself; every rank of the group must take
part in that call. From then on torch.distributed is not touched. The source goes on at once; it waits only when the
slowest rank is a whole ring behind.

All ranks must make the same calls in the same order, as with every collective; a frame carries the operation and the
number of the call, and a rank that finds another one than its own raises RuntimeError. When the source can't send what
it was given, it raises what was wrong, every other rank raises ringcast.SendError with the same text, and the next call
works again. When the source closes its ring, exits or dies, the others get ringcast.WriterGone, which names it; when
another rank dies, all others get ringcast.ReaderDied, which names that one, also those that wait in a call.

A group may span machines: each has a ring, and what is sent goes to each other machine once, by torch.distributed's
point to point (docs/machines.md).

A group's rings go when it is destroyed, or by close(). In a forked child they raise ringcast.ForkedError.

None of the calls takes a timeout: a rank that is stopped, or a source that skips a call, blocks those who wait for it,
as in any collective.

The environment, such as RINGCAST_CAPACITY and RINGCAST_ON_DEATH, is in docs/torch.md.
"""

from typing import Any, Dict, List, Optional, Union

import ringcast

try:
    import torch.distributed  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("ringcast.torch needs torch: python -m pip install torch") from error

from ringcast._group import rings as _rings
from ringcast._group.endpoint import OBJECT, OBJECT_LIST, TENSOR_DICT, Source
from ringcast._group.rings import end_of

__all__ = ["broadcast_object", "broadcast_object_list", "broadcast_tensor_dict", "close", "rings"]


def broadcast_tensor_dict(
    tensor_dict: Optional[Dict[Any, Any]] = None,
    src: int = 0,
    group: Any = None,
    metadata_group: Any = None,
) -> Optional[Dict[Any, Any]]:
    """Broadcast a dict of tensors and other values from `src`, a rank in `group`.

    The source gets `tensor_dict` itself back, every other rank a new dict with the keys in the same order; what it gave
    as `tensor_dict` is not looked at. Tensors arrive equal in dtype, shape, values and requires_grad, contiguous,
    writable, and alias nothing. Values may be any object that can be pickled, with tensors in it.

    group: a ProcessGroup, or None for the default group. metadata_group: a CPU group of the same ranks, which the
    first call takes instead of `group`, and what goes to other machines.
    Without torch.distributed initialised, or in a group of one rank, the input is returned.

    Tensors on a CUDA device arrive on the receiver's current one (docs/torch.md).

    TypeError: not a dict on the source, or a tensor in it that is on any other device. ValueError: `src` is no rank of
    the group, or this process is not in it. Others as in this module's docstring.
    """
    ring = end_of(group, src, metadata_group)
    if ring is None:
        return tensor_dict
    if isinstance(ring, Source):
        ring.send(tensor_dict, TENSOR_DICT, dict)
        return tensor_dict
    received: Dict[Any, Any] = ring.receive(TENSOR_DICT)
    return received


def broadcast_object(obj: Optional[Any] = None, src: int = 0, group: Any = None) -> Any:
    """Broadcast any object that can be pickled from `src`, a rank in `group`; return it on every rank.

    The source gets `obj` itself back, every other rank an equal object of its own. Arguments and errors as
    broadcast_tensor_dict.
    """
    ring = end_of(group, src)
    if ring is None:
        return obj
    if isinstance(ring, Source):
        ring.send(obj, OBJECT)
        return obj
    return ring.receive(OBJECT)


def broadcast_object_list(obj_list: List[Any], src: int = 0, group: Any = None) -> List[Any]:
    """Broadcast the elements of a list from `src`, a rank in `group`; fill `obj_list` with them in place and return it.

    ValueError: the list is not as long as the source's; it stays as it was, and the next call works. TypeError: not a
    list. Arguments and other errors as broadcast_tensor_dict.
    """
    ring = end_of(group, src)
    if ring is None:
        return obj_list
    if isinstance(ring, Source):
        ring.send(obj_list, OBJECT_LIST, list)
        return obj_list
    received = ring.receive(OBJECT_LIST)  # whatever is wrong with obj_list: this call's frame is this call's
    if not isinstance(obj_list, list):
        raise TypeError(f"broadcast_object_list needs a list to fill, not {type(obj_list).__name__}")
    if len(obj_list) != len(received):
        raise ValueError(
            f"the source, rank {ring.source}, broadcast a list of {len(received)}, but the list to be filled here has "
            f"{len(obj_list)}: give one of the same length"
        )
    obj_list[:] = received
    return obj_list


def close(group: Any = None) -> None:
    """Close this process's rings of `group` (None: the default group), also those of ringcast.vllm's and SGLang's
    functions; the next use makes new ones.

    Call it on all ranks of the group. What the source has sent is still received by those who have not closed.
    """
    _rings.close(group)


def rings(group: Any = None) -> Dict[int, Union[ringcast.Writer, ringcast.Reader]]:
    """This process's end of each ring of `group` made so far, by src: to look at (memory, lag, readers), not to use."""
    return {src: ring.ring for (stream, src), ring in _rings.ends_if_any(group).items() if stream == "broadcast"}
