# SPDX-License-Identifier: Apache-2.0
"""
Broadcasts among the ranks of a torch.distributed group, through shared memory. docs/torch.md tells
all.

    from ringcast.torch import broadcast_tensor_dict
    inputs = broadcast_tensor_dict(inputs if rank == 0 else None, src=0, group=tp_group)

The functions have the contracts of vLLM's GroupCoordinator (parallel_state.py, August 2026). The
first call for a (group, src) makes a ring and is a collective of the group; later calls use
torch.distributed only if the group spans machines (docs/machines.md). The source goes on at once,
and waits only if the slowest rank is a whole ring behind.

All ranks make the same calls in the same order, as with every collective; a rank whose call differs
from the source's raises RuntimeError. If the source can't send a value, the source raises the
reason, every other rank raises ringcast.SendError with the same text, and the next call works
again. If the source closes its ring, exits or dies, the others get ringcast.WriterGone; if another
rank dies, all others get ringcast.ReaderDied, also in a call that waits. Both name the rank. No
call takes a timeout: a stopped rank blocks all ranks that wait for a frame or for room.

The rings go with the group, or by close(). In a forked child the calls raise ringcast.ForkedError.
"""

from typing import Any, Dict, List, Optional, Union

import ringcast

try:
    import numpy  # noqa: F401 - torch.distributed.all_gather_object needs it
    import torch.distributed as _dist
except ModuleNotFoundError as error:
    _package = str(error.name).partition(".")[0]
    raise ImportError(
        f"ringcast.torch needs {_package}: python -m pip install {_package}"
    ) from error

from ringcast._group import apart as _apart
from ringcast._group import config as _config
from ringcast._group import prepare as _prepare
from ringcast._group import rings as _rings
from ringcast._group.endpoint import OBJECT, broadcast_into
from ringcast._group.rings import end_of

__all__ = [
    "broadcast_object",
    "broadcast_object_list",
    "broadcast_tensor_dict",
    "close",
    "prepare",
    "rings",
]


def broadcast_tensor_dict(
    tensor_dict: Optional[Dict[Any, Any]] = None,
    src: int = 0,
    group: Any = None,
    metadata_group: Any = None,
) -> Optional[Dict[Any, Any]]:
    """Broadcast a dict of tensors and other values from `src`, a rank in `group`.

    The source gets `tensor_dict` itself back, every other rank a new dict with the keys in the same
    order; a receiver's `tensor_dict` is ignored. Tensors arrive equal in dtype, shape, values and
    requires_grad, contiguous, writable, and alias nothing; tensors on a CUDA device arrive on the
    receiver's current device. Values may be any object that can be pickled, also with tensors
    inside.

    group: a ProcessGroup, or None for the default group. metadata_group: a CPU group of the same
    ranks, for the exchanges of the first call and for the frames to other machines. Without
    torch.distributed initialised, or in a group of one rank, the input is returned.

    TypeError: not a dict on the source, or a tensor on any other kind of device. ValueError: `src`
    is no rank of the group, or this process is not in the group. Other errors as in this module's
    docstring.
    """
    ring = end_of(group, src, metadata_group)
    if ring is None:
        return tensor_dict
    return _apart.broadcast_dict(
        ring, tensor_dict, src, _dist.group.WORLD if group is None else group, True
    )


def broadcast_object(obj: Optional[Any] = None, src: int = 0, group: Any = None) -> Any:
    """
    Broadcast any object that can be pickled from `src`, a rank in `group`; return it on every rank.

    The source gets `obj` itself back, every other rank an equal object of its own. Arguments and
    errors as broadcast_tensor_dict.
    """
    ring = end_of(group, src)
    return obj if ring is None else ring.broadcast(obj, OBJECT)


def broadcast_object_list(obj_list: List[Any], src: int = 0, group: Any = None) -> List[Any]:
    """Broadcast the elements of a list from `src`, a rank in `group`; fill `obj_list` with them in
    place and return it.

    ValueError: the list is not as long as the source's; the list is unchanged, and the next call
    works. TypeError: not a list. Arguments and other errors as broadcast_tensor_dict.
    """
    return broadcast_into(end_of(group, src), obj_list)


def prepare(
    group: Any = None,
    src: int = 0,
    *,
    nbytes: int = 0,
    timeout: float = 300.0,
    metadata_group: Any = None,
    on_death: Optional[str] = None,
) -> None:
    """Make the ring of (group, src) and its memory now, so that the first broadcast is like every
    other.

    All ranks of the group call prepare(), and with the same arguments. Once the ring is there,
    prepare() does nothing, unless `nbytes` is more than before. Other arguments as
    broadcast_tensor_dict.

    nbytes: of the largest tensor that will be broadcast; the ranks broadcast one of this size a few
    times. Memory beside the ring goes back to the machine when idle. timeout: seconds to wait for
    the other ranks. on_death: what the source does when another rank dies: "fail", the default,
    raises ReaderDied on all ranks, "evict" goes on without the dead rank, with a warning. It counts
    for all rings of the group that are made from now on.

    TimeoutError: a rank has not called prepare() in time. Every rank gets this error, which names
    the missing ranks, also a rank that comes late; nothing was prepared, and all ranks may call
    prepare() again. ValueError: an argument is out of range. ringcast.FrameTooLarge on the source,
    ringcast.SendError on the others: `nbytes` is too large for the ring.
    """
    nbytes = _config.whole("nbytes", nbytes)
    if nbytes < 0 or not timeout > 0:
        raise ValueError(
            f"nbytes must be 0 or more, and timeout more than 0, not {nbytes} and {timeout}"
        )
    if on_death not in (None, "fail", "evict"):
        raise ValueError(f"on_death must be 'fail' or 'evict', not {on_death!r:.40}")
    checked = _rings.group_of(group, src)
    if checked is not None:
        _prepare.prepare(*checked, nbytes, timeout, metadata_group, on_death)


def close(group: Any = None) -> None:
    """Close this process's rings of `group` (None: the default group), also of ringcast.vllm's and
    SGLang's functions.

    All ranks of the group call close(); the next use makes new rings. A rank that has not closed
    yet still receives the frames sent before.
    """
    _rings.close(group)


def rings(group: Any = None) -> Dict[int, Union[ringcast.Writer, ringcast.Reader]]:
    """This process's end of each ring of `group`, by src: to look at (memory, lag, readers), not to
    use."""
    return {
        src: ring.ring
        for (stream, src), ring in _rings.ends_if_any(group).items()
        if stream == "broadcast"
    }
