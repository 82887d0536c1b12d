# SPDX-License-Identifier: Apache-2.0
"""broadcast_pyobj, point_to_point_pyobj and broadcast_tensor_dict, with SGLang's contracts."""

import contextlib
from collections.abc import Sized
from typing import Any, Dict, List, NamedTuple, Optional

import torch.distributed as dist

import ringcast
from ringcast._group import p2p
from ringcast._group.apart import broadcast_dict
from ringcast._group.endpoint import PYOBJ, SEND_OBJECT, End, Source, broadcast_into
from ringcast._group.ranks import global_ranks
from ringcast._group.rings import end_of


def broadcast_pyobj(
    data: Any,
    rank: int,
    dist_group: Any = None,
    src: int = 0,
    force_cpu_device: bool = True,
) -> Any:
    """Broadcast a list of objects from `src`, a GLOBAL rank, to the ranks of `dist_group`.

    The source gets `data` itself back, every other rank an equal list; a receiver's `data` is
    ignored. Any empty container, and None, arrives as []. rank: this process's global rank.
    dist_group: a ProcessGroup, or None for the default group. force_cpu_device: ignored; SGLang's
    pickle would lie on that device. Values without a form in the ring, such as tensors on a device,
    go as a pickle, as all values do in SGLang; with RINGCAST_GPU_POOL_BYTES tensors on a CUDA
    device have a form, and arrive on the receiver's current device.

    ValueError: torch.distributed is not initialised; `src` is not in the group; `rank` is not this
    process's rank. TypeError: `data` has no length, on the source. Other errors as in
    ringcast.torch. Contract: SGLang's broadcast_pyobj (August 2026), both of srt and of
    multimodal_gen.
    """
    ring = end_of(dist_group, _rank_in(dist_group, src), engine="sglang")
    if ring is None:  # a group of one
        return data
    if isinstance(ring, Source) != (rank == src):
        here = ring.rank
        wrong = ValueError(
            f"rank={rank} and src={src} here, on rank {here}: rank must be this process's global "
            f"rank, {here}"
        )
        if isinstance(ring, Source):
            ring.refuse(wrong, PYOBJ)
        else:
            with contextlib.suppress(ringcast.Error):
                ring.receive(PYOBJ)  # an error leaves no frame for the next call
        raise wrong
    if isinstance(ring, Source):
        ring.send(_checked(ring, data), PYOBJ)
        return data
    return ring.broadcast(None, PYOBJ)


class P2PWork(NamedTuple):
    """As SGLang's. work.wait() returns when the receiver can take the list."""

    work: p2p.Handle
    payload: None = None  # the list was copied


def point_to_point_pyobj(
    data: Any,
    rank: int,
    group: Any = None,
    src: int = 0,
    dst: int = 1,
    async_send: bool = False,
) -> Any:
    """Send a list of objects from `src` to `dst`, GLOBAL ranks in `group`; every other rank does
    nothing, and gets [].

    `dst` gets the list. `src` gets [] once the receiver can take the list; async_send: [a P2PWork]
    at once. The list is copied, and may change. Any empty container arrives as []. Errors as in
    ringcast.vllm.group's send_object and recv_object. Contract: SGLang's point_to_point_pyobj
    (0.5.23).
    """
    if rank not in (src, dst):
        return []
    group = dist.group.WORLD if group is None else group
    ranks = global_ranks(group)
    if rank == dst != src:
        return p2p.receiver(group, ranks, ranks.index(dst), ranks.index(src)).recv(
            group, SEND_OBJECT
        )
    sender = p2p.sender(group, ranks, ranks.index(src), ranks.index(dst), "sglang")
    handle = sender.isend(group, data if len(data) else [], SEND_OBJECT)
    if async_send:
        return [P2PWork(handle)]
    handle.wait()
    return []


def broadcast_list(objects: List[Any], src: int, group: Any) -> None:
    """
    As torch.distributed.broadcast_object_list: fill `objects` from `src`, a GLOBAL rank, in place.
    """
    broadcast_into(end_for_lists(group, src), objects)


def end_for_lists(group: Any, src: int) -> Optional[End]:
    return end_of(group, _rank_in(group, src), engine="sglang")


def _rank_in(group: Any, src: int) -> int:
    """The rank in the group of a global rank."""
    if not dist.is_available() or (group is None and not dist.is_initialized()):
        raise ValueError(
            "broadcast_pyobj needs torch.distributed: call torch.distributed.init_process_group "
            "first"
        )
    if not isinstance(group, dist.ProcessGroup):
        return src  # of the default group; end_of() refuses an invalid group
    ranks = global_ranks(group)
    if src not in ranks:
        raise ValueError(f"src is a global rank in the group, one of {ranks}, not {src}")
    found: int = ranks.index(src)
    return found


def _checked(ring: Source, data: Any) -> Any:
    """The value to send."""
    try:
        if data is not None and not isinstance(data, Sized):
            raise TypeError(f"broadcast_pyobj needs a list, not {type(data).__name__}")
        return [] if data is None or len(data) == 0 else data
    except Exception as error:
        ring.refuse(error, PYOBJ)
        raise


# ---- Tensor dicts --------------------------------------------------------------------------------


def broadcast_tensor_dict(
    tensor_dict: Optional[Dict[Any, Any]] = None,
    src: int = 0,
    group: Any = None,
    metadata_group: Any = None,
) -> Optional[Dict[Any, Any]]:
    """
    Broadcast a dict of tensors and other values from `src`, a rank in `group`, as ringcast.torch's
    function does.

    Tensors on a device, in the dict or in dicts inside, go by torch.distributed.broadcast over
    `group`, as in SGLang, and arrive on the receiver's current device; RINGCAST_GPU_POOL_BYTES asks
    for another way (docs/dropins.md). Contract: SGLang's GroupCoordinator.broadcast_tensor_dict
    (August 2026).
    """
    ring = end_of(group, src, metadata_group, engine="sglang")
    if ring is None:
        return tensor_dict
    group = dist.group.WORLD if group is None else group
    return broadcast_dict(ring, tensor_dict, src, group, True)
