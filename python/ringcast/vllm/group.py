# SPDX-License-Identifier: Apache-2.0
"""The functions of vLLM's GroupCoordinator that carry objects and dicts of tensors, through shared
memory. docs/vllm.md.

    from ringcast.vllm.group import Group
    pp = Group(cpu_group, device_group)
    pp.send_tensor_dict({"hidden": hidden})         # to the next rank
    inputs = pp.recv_tensor_dict()                  # from the previous one

Names, arguments, results and defaults are those of vLLM 0.33.0. Ranks are ranks in the group.
Broadcasts go by the ring of (cpu_group, src), as those of ringcast.torch; from one rank to another
goes a ring of these two ranks alone (ringcast._group.p2p). vLLM's own queue (mq_broadcaster) and
its CPU communicator's way for dicts are not used.

Tensors on a device go by `device_group`, as in vLLM; the frame in the ring then holds the tensor's
type of device, dtype and shape. With RINGCAST_GPU_POOL_BYTES on all ranks, tensors on a CUDA device
go by the rings where the rings can carry them (docs/dropins.md), and arrive on the receiver's
current device, in the order of its current stream.

Errors beside those of ringcast.torch: AssertionError where vLLM has an assert, a rank out of range
or a broadcast of no dict; ringcast.ReaderDied if the receiver has died or left, ringcast.WriterGone
if the sender has. Both name the rank and its pid.
"""

from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

import ringcast.torch as _broadcasts
from ringcast._group import apart as _apart
from ringcast._group import p2p as _p2p
from ringcast._group.endpoint import (
    OBJECT,
    SEND_OBJECT,
    SEND_TENSOR_DICT,
    TENSOR,
    TENSOR_DICT,
    Source,
    broadcast_into,
)
from ringcast._group.p2p import Handle
from ringcast._group.ranks import global_ranks
from ringcast._group.rings import end_of

__all__ = ["Group", "GroupOperations", "Handle"]


# ---- Tensors that travel apart -------------------------------------------------------------------


class _Work(Handle):
    """
    A work of torch.distributed, and the tensor that must live as long. Some works can be waited for
    only once.
    """

    def __init__(self, work: Any, tensor: Any) -> None:
        self._work = work
        self._tensor = tensor

    def is_completed(self) -> bool:
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.wait()
        self._tensor = None


def _is_gathered(
    key: Any, numel: int, all_gather_group: Any, all_gather_tensors: Optional[Dict[str, bool]]
) -> bool:
    """Whether each rank of `all_gather_group` gets a part of the tensor, and the ranks gather the
    whole."""
    if all_gather_group is None:
        return False
    divisible: bool = numel % all_gather_group.world_size == 0
    return divisible if all_gather_tensors is None else all_gather_tensors.get(key, divisible)


def _part(tensor: Any, all_gather_group: Any) -> Any:
    return tensor.reshape(all_gather_group.world_size, -1)[all_gather_group.rank_in_group]


def _check_src(group: Any, src: int) -> None:
    if not src < group.world_size:
        raise AssertionError(f"Invalid src rank ({src}): the group has {group.world_size} ranks")


def _sender(group: Any, dst: int) -> _p2p.Sender:
    _check_peer(group, dst, "destination")
    return _p2p.sender(group.cpu_group, group.ranks, group.rank_in_group, dst, "vllm")


def _receiver(group: Any, src: int) -> _p2p.Receiver:
    _check_peer(group, src, "source")
    return _p2p.receiver(group.cpu_group, group.ranks, group.rank_in_group, src)


def _check_peer(group: Any, peer: int, what: str) -> None:
    if not 0 <= peer < group.world_size:
        raise AssertionError(
            f"Invalid {what} rank ({peer}): the group has {group.world_size} ranks"
        )
    if peer == group.rank_in_group:
        raise AssertionError(f"Invalid {what} rank ({peer}): it is the rank that calls")


def _forget_completed(beside: Deque[Handle]) -> None:
    """A tensor under way is kept even if the caller drops the handle."""
    while beside and beside[0].is_completed():
        beside.popleft()


# ---- The operations ------------------------------------------------------------------------------


class GroupOperations:
    """
    vLLM's functions, for a class with these attributes. Each function can be put on another class
    alone.
    """

    rank_in_group: int
    world_size: int
    ranks: List[int]
    cpu_group: Any
    device_group: Any

    def broadcast(self, input_: Any, src: int = 0) -> Any:
        """Fill `input_` with the source's tensor, and return `input_`. On a device: in the order of
        the current stream.

        ValueError: the source's tensor has another dtype or number of elements; `input_` is
        unchanged.
        """
        _check_src(self, src)
        if self.world_size == 1:
            return input_
        is_apart = (
            isinstance(input_, torch.Tensor)
            and _apart.travels_apart(input_)
            and self.device_group is not None
        )
        if is_apart and (not input_.is_cuda or torch.cuda.is_current_stream_capturing()):
            return _broadcast_apart(self, input_, src)
        ring = end_of(self.cpu_group, src, engine="vllm")
        if ring is None:
            return input_
        if is_apart and not ring.carries_cuda:
            return _broadcast_apart(self, input_, src)
        if isinstance(ring, Source):
            if is_apart and _apart.goes_apart(input_, ring):  # as only the source knows
                ring.send(None, TENSOR)
                return _broadcast_apart(self, input_, src)
            ring.send(input_, TENSOR, torch.Tensor)
            return input_
        received = ring.receive(TENSOR)
        if received is None:
            return _broadcast_apart(self, input_, src)
        if not isinstance(input_, torch.Tensor):
            raise TypeError(f"broadcast needs a tensor to fill, not {type(input_).__name__}")
        if input_.dtype != received.dtype or input_.numel() != received.numel():
            raise ValueError(
                f"the source, rank {self.ranks[src]}, broadcast {tuple(received.shape)} of "
                f"{received.dtype}, but the "
                f"tensor to be filled here is {tuple(input_.shape)} of {input_.dtype}: give one "
                f"like the source's"
            )
        input_.detach().copy_(received.detach().view(input_.shape))
        return input_

    def broadcast_object(self, obj: Optional[Any] = None, src: int = 0) -> Any:
        """The source's object on every rank; on the source, the very object."""
        _check_src(self, src)
        ring = end_of(self.cpu_group, src, engine="vllm") if self.world_size > 1 else None
        return obj if ring is None else ring.broadcast(obj, OBJECT)

    def broadcast_object_list(
        self, obj_list: List[Any], src: int = 0, group: Any = None
    ) -> List[Any]:
        """
        Fill `obj_list` with the source's elements, and return the list. `group` is ignored, as in
        vLLM.
        """
        _check_src(self, src)
        ring = end_of(self.cpu_group, src, engine="vllm") if self.world_size > 1 else None
        return broadcast_into(ring, obj_list)

    def broadcast_tensor_dict(
        self,
        tensor_dict: Optional[Dict[Any, Any]] = None,
        src: int = 0,
        group: Any = None,
        metadata_group: Any = None,
    ) -> Optional[Dict[Any, Any]]:
        """The source's dict on every rank, keys in the same order; on the source, the very dict.

        The groups given are ignored, as in vLLM. A tensor on a device arrives on the current device
        of the same type.
        """
        if self.world_size == 1:
            return tensor_dict
        _check_src(self, src)
        ring = end_of(self.cpu_group, src, engine="vllm")
        if ring is None:
            return tensor_dict
        if isinstance(ring, Source) and not isinstance(tensor_dict, dict):
            ring.refuse(
                TypeError(f"the source must give a dict, not {type(tensor_dict).__name__}"),
                TENSOR_DICT,
            )
            raise AssertionError(f"Expecting a dictionary, got {type(tensor_dict)}")
        return _apart.broadcast_dict(ring, tensor_dict, src, self.device_group, False)

    def send_object(self, obj: Any, dst: int) -> None:
        """Send an object to one rank, and wait until the rank can receive the object."""
        _sender(self, dst).isend(self.cpu_group, obj, SEND_OBJECT).wait()

    def isend_object(self, obj: Any, dst: int) -> Handle:
        """The same without waiting. The object is copied and may change at once, on a device in the
        order of the current stream."""
        return _sender(self, dst).isend(self.cpu_group, obj, SEND_OBJECT)

    def recv_object(self, src: int) -> Any:
        """The next object that rank `src` sends here."""
        return _receiver(self, src).recv(self.cpu_group, SEND_OBJECT)

    def send_tensor_dict(
        self,
        tensor_dict: Dict[Any, Any],
        dst: Optional[int] = None,
        all_gather_group: Any = None,
        all_gather_tensors: Optional[Dict[str, bool]] = None,
    ) -> Optional[Dict[Any, Any]]:
        """Send a dict to one rank (None: the next), and wait until the rank can receive all of the
        dict.

        all_gather_group, for tensors that travel apart: each rank of this group sends the same dict
        to another receiver, but only a part of each such tensor, and the receivers gather the
        whole. all_gather_tensors, by key: whether to divide the tensor; by default every tensor
        that can be divided. Tensors in the frame go whole: a collective would copy more than the
        frame does.

        In a group of one rank, the dict is returned.
        """
        if self.world_size == 1:
            return tensor_dict
        for handle in _isend_tensor_dict(
            self, tensor_dict, dst, all_gather_group, all_gather_tensors
        ):
            handle.wait()
        return None

    def isend_tensor_dict(
        self,
        tensor_dict: Dict[Any, Any],
        dst: Optional[int] = None,
        all_gather_group: Any = None,
        all_gather_tensors: Optional[Dict[str, bool]] = None,
    ) -> List[Handle]:
        """The same without waiting: the frame's handle, then a handle for each tensor that travels
        apart. Before the handle's wait() such a tensor must not be written to; all others may, on a
        device in the order of the current stream. Handles may be dropped."""
        if self.world_size <= 1:
            return []
        return _isend_tensor_dict(self, tensor_dict, dst, all_gather_group, all_gather_tensors)

    def recv_tensor_dict(
        self,
        src: Optional[int] = None,
        all_gather_group: Any = None,
        all_gather_tensors: Optional[Dict[str, bool]] = None,
    ) -> Optional[Dict[Any, Any]]:
        """
        The next dict that rank `src` (None: the previous) sends here. In a group of one rank, None.
        """
        if self.world_size == 1:
            return None
        received, handles, postprocess = _irecv_tensor_dict(
            self, src, all_gather_group, all_gather_tensors
        )
        for handle in handles:
            handle.wait()
        for function in postprocess:
            function()
        return received

    def irecv_tensor_dict(
        self,
        src: Optional[int] = None,
        all_gather_group: Any = None,
        all_gather_tensors: Optional[Dict[str, bool]] = None,
    ) -> Tuple[Optional[Dict[Any, Any]], List[Handle], List[Callable[[], None]]]:
        """
        The same as soon as the frame is there: (dict, handles, functions). The tensors that travel
        apart are whole once the caller has waited for the handles and then called the functions.
        """
        if self.world_size == 1:
            return None, [], []
        return _irecv_tensor_dict(self, src, all_gather_group, all_gather_tensors)


def _broadcast_apart(group: GroupOperations, tensor: Any, src: int) -> Any:
    dist.broadcast(tensor, group_src=src, group=group.device_group)
    return tensor


def _isend_tensor_dict(
    group: GroupOperations,
    tensor_dict: Any,
    dst: Optional[int],
    all_gather_group: Any,
    all_gather_tensors: Optional[Dict[str, bool]],
) -> List[Handle]:
    dst = (group.rank_in_group + 1) % group.world_size if dst is None else dst
    sender = _sender(group, dst)
    # Nested tensors go in the frame.
    divides = group.device_group is not None and isinstance(tensor_dict, dict)
    frame, apart = _apart.take_out(tensor_dict, sender, False) if divides else (tensor_dict, [])
    handles = [sender.isend(group.cpu_group, frame, SEND_TENSOR_DICT)]
    _forget_completed(sender.beside)
    for key, tensor in apart:
        if tensor.numel() == 0:
            continue
        if _is_gathered(key, tensor.numel(), all_gather_group, all_gather_tensors):
            tensor = _part(tensor, all_gather_group)
        tensor = tensor.contiguous()
        work = dist.isend(tensor, group_dst=dst, group=group.device_group)
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        handles.append(_Work(work, tensor))
    sender.beside.extend(handles[1:])
    return handles


def _irecv_tensor_dict(
    group: GroupOperations,
    src: Optional[int],
    all_gather_group: Any,
    all_gather_tensors: Optional[Dict[str, bool]],
) -> Tuple[Dict[Any, Any], List[Handle], List[Callable[[], None]]]:
    src = (group.rank_in_group - 1) % group.world_size if src is None else src
    tensor_dict = _receiver(group, src).recv(group.cpu_group, SEND_TENSOR_DICT)
    handles: List[Handle] = []
    postprocess: List[Callable[[], None]] = []
    for key, tensor in _apart.put_back(tensor_dict, False):
        if tensor.numel() == 0:
            continue
        if _is_gathered(key, tensor.numel(), all_gather_group, all_gather_tensors):
            shape, tensor = tensor.shape, _part(tensor, all_gather_group)
            tensor_dict[key] = tensor
            postprocess.append(_gathering(tensor_dict, key, tensor, shape, all_gather_group))
        work = dist.irecv(tensor, group_src=src, group=group.device_group)
        handles.append(_Work(work, tensor))
    return tensor_dict, handles, postprocess


def _gathering(
    tensor_dict: Any, key: Any, part: Any, shape: Any, all_gather_group: Any
) -> Callable[[], None]:
    def gather() -> None:
        tensor_dict[key] = all_gather_group.all_gather(part, dim=0).reshape(shape)

    return gather


class Group(GroupOperations):
    """The operations without a GroupCoordinator, for torch.distributed groups.

    cpu_group: a group with a backend for the CPU, such as gloo; None: the default group.
    device_group: a group of the same ranks, in the same order, for tensors that are not on the CPU;
    None: no such tensors. Drop the Group, or call close() on all ranks, when the groups are
    destroyed.
    """

    def __init__(self, cpu_group: Any = None, device_group: Any = None) -> None:
        if cpu_group is None:
            cpu_group = dist.group.WORLD
            if cpu_group is None:
                raise ValueError(
                    "there is no default group: call torch.distributed.init_process_group() first"
                )
        for name, group in ("cpu_group", cpu_group), ("device_group", device_group or cpu_group):
            if not isinstance(group, dist.ProcessGroup):
                raise TypeError(
                    f"{name} must be a torch.distributed.ProcessGroup, not {type(group).__name__}"
                )
        self.cpu_group, self.device_group = cpu_group, device_group
        self.ranks = global_ranks(cpu_group)
        if device_group is not None and global_ranks(device_group) != self.ranks:
            raise ValueError(
                "device_group must have the same ranks as cpu_group, in the same order"
            )
        self.world_size = len(self.ranks)
        self.rank_in_group = cpu_group.rank()

    def all_gather(self, input_: Any, dim: int = -1) -> Any:
        """The tensors of all ranks, one after another along `dim`: for a Group that is an
        all_gather_group."""
        if self.world_size == 1:
            return input_
        group = (
            self.device_group
            if self.device_group is not None and _apart.travels_apart(input_)
            else self.cpu_group
        )
        parts = [torch.empty_like(input_) for _ in self.ranks]
        dist.all_gather(parts, input_.contiguous(), group=group)
        return torch.cat(parts, dim)

    def close(self) -> None:
        """Close this process's rings of the group. All ranks call close(); the next use makes new
        rings."""
        _broadcasts.close(self.cpu_group)
