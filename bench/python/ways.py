# SPDX-License-Identifier: Apache-2.0
"""The ways from rank 0 to the other ranks that are measured: ringcast's, pickle's by a ring, and
gloo's, vLLM's and SGLang's own.

All ranks of a group make a way at once. Rank 0 gets the function that sends, a call with the
object; each other rank gets the function that receives, a call that returns the object.
"""

import importlib
import os
import pickle
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from bench.python.cases import LeftOut

VLLM_QUEUE = "vllm.distributed.device_communicators.shm_broadcast"

Call = Callable[..., Any]


class Member(NamedTuple):
    """One of the ranks of a group."""

    rank: int
    ranks: int
    group: Any
    vllm: Optional[str] = None  # a folder with vLLM's source
    ring: Any = None  # the Writer, or a Reader, of a ring from rank 0 to the others


Way = Callable[[Member], Call]


def needs(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LeftOut(
            f"needs {module.partition('.')[0]}, which can't be imported here: {error}"
        ) from None


# ---- A ring --------------------------------------------------------------------------------------


def ring(me: Member) -> Call:
    return me.ring.recv if me.rank else me.ring.send  # type: ignore[no-any-return]


def ring_of_pickles(me: Member) -> Call:
    """In functions: pickle pays for one call of a function more."""
    if me.rank:
        recv, loads = me.ring.recv, pickle.loads
        return lambda: loads(recv())
    send_bytes, dumps = me.ring.send_bytes, pickle.dumps
    return lambda value: send_bytes(dumps(value, 5))


# ---- gloo ----------------------------------------------------------------------------------------


def gloo_object(me: Member) -> Call:
    import torch.distributed as dist

    broadcast, group = dist.broadcast_object_list, me.group

    def send(value: Any) -> None:
        broadcast([value], 0, group)

    def receive() -> Any:
        box = [None]
        broadcast(box, 0, group)
        return box[0]

    return receive if me.rank else send


class Blank(NamedTuple):
    """Stands in the metadata where a tensor goes."""

    dtype: Any
    shape: Tuple[int, ...]


def gloo_tensor_dict(me: Member) -> Call:
    """
    vLLM's way: all but the tensors, with their types and shapes, as an object; then a broadcast for
    each tensor, all begun before the first wait.
    """
    import torch
    import torch.distributed as dist

    group = me.group

    def send(value: Dict[str, Any]) -> None:
        tensors = [item for item in value.values() if isinstance(item, torch.Tensor)]
        plan = [
            (key, Blank(item.dtype, tuple(item.shape)) if isinstance(item, torch.Tensor) else item)
            for key, item in value.items()
        ]
        dist.broadcast_object_list([plan], 0, group)
        share(tensors)

    def receive() -> Dict[str, Any]:
        box: List[Any] = [None]
        dist.broadcast_object_list(box, 0, group)
        value = {
            key: torch.empty(item.shape, dtype=item.dtype) if isinstance(item, Blank) else item
            for key, item in box[0]
        }
        share([item for item in value.values() if isinstance(item, torch.Tensor)])
        return value

    def share(tensors: List[Any]) -> None:
        for work in [
            dist.broadcast(tensor, 0, group, async_op=True) for tensor in tensors if tensor.numel()
        ]:
            work.wait()

    return receive if me.rank else send


def gloo_pickle(me: Member) -> Call:
    """SGLang's way: the pickle's length, then the pickle, each by a broadcast."""
    import numpy
    import torch
    import torch.distributed as dist

    group = me.group

    def send(value: List[Any]) -> None:
        data = pickle.dumps(value)
        bytes_of = torch.from_numpy(numpy.frombuffer(data, numpy.uint8).copy())
        dist.broadcast(torch.tensor([len(data)]), 0, group)
        dist.broadcast(bytes_of, 0, group)

    def receive() -> Any:
        size = torch.zeros(1, dtype=torch.long)
        dist.broadcast(size, 0, group)
        data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0, group)
        return pickle.loads(data.numpy().tobytes())

    return receive if me.rank else send


# ---- Pipes ---------------------------------------------------------------------------------------


def pipes(me: Member) -> Call:
    """A pipe to each reader, for messages below 64 KiB, one at a time. The reader sleeps in read():
    what any reader waits for its CPU that neither spins nor knows when a message is due."""
    import torch.distributed as dist

    ends = [] if me.rank else [os.pipe() for _ in range(me.ranks - 1)]
    paths = [[f"/proc/{os.getpid()}/fd/{end}" for end, _ in ends]]
    dist.broadcast_object_list(paths, 0, me.group)
    files = (
        [open(paths[0][me.rank - 1], "rb", 0)]
        if me.rank
        else [open(end, "wb", 0) for _, end in ends]
    )
    dist.barrier(me.group)  # until each reader has opened its pipe
    for end, _ in ends:
        os.close(end)

    def send(value: Any) -> None:
        data = pickle.dumps(value, 5)
        data = len(data).to_bytes(8, "little") + data
        for file in files:
            file.write(data)

    def receive() -> Any:
        data = files[0].read(1 << 16)
        while len(data) < 8 + int.from_bytes(data[:8], "little"):
            data += files[0].read(1 << 16)
        return pickle.loads(memoryview(data)[8:])

    return receive if me.rank else send


# ---- Queues --------------------------------------------------------------------------------------


def vllm_class(path: Optional[str]) -> Any:
    """vLLM's own MessageQueue, of the source at `path`, or the installed class."""
    if path is not None and path not in sys.path:
        sys.path.insert(0, path)
    found = needs(VLLM_QUEUE).MessageQueue
    if found.__module__ != VLLM_QUEUE:
        raise LeftOut(f"vLLM's MessageQueue is not its own here, but that of {found.__module__}")
    return found


# Of the queues that vLLM makes: (max_chunk_bytes, max_chunks).
EXECUTOR = (16 << 20, 10)  # from the engine to its workers
GROUP = (4 << 20, 6)  # in a group of ranks; a larger message goes through a socket


def queue(me: Member, message_queue: Any, chunks: Tuple[int, int]) -> Call:
    import torch.distributed as dist

    readers = me.ranks - 1
    made = None if me.rank else message_queue(readers, readers, list(range(1, me.ranks)), *chunks)
    handle = [made.export_handle() if made else None]
    dist.broadcast_object_list(handle, 0, me.group)
    made = made or message_queue.create_from_handle(handle[0], me.rank)
    made.wait_until_ready()
    dist.barrier(me.group)  # a rank that lacks the way drops its end of the queue
    return made.dequeue if me.rank else made.enqueue  # type: ignore[no-any-return]


def vllm_queue(me: Member) -> Call:
    return queue(me, vllm_class(me.vllm), EXECUTOR)


def vllm_queue_of_2_ms(me: Member) -> Call:
    """vLLM's queue, its readers spinning for 2 ms, not 1 s: a common patch, known for vLLM 0.33."""
    call = vllm_queue(me)
    if me.rank:
        condition = call.__self__._spin_condition  # type: ignore[attr-defined]
        if not hasattr(condition, "busy_loop_s"):
            raise LeftOut("the readers of this vLLM's queue have no busy_loop_s to change")
        condition.busy_loop_s = 0.002
    return call


def vllm_group_queue(me: Member) -> Call:
    return queue(me, vllm_class(me.vllm), GROUP)


def ringcast_queue(me: Member) -> Call:
    from ringcast.vllm import MessageQueue

    return queue(me, MessageQueue, EXECUTOR)


# ---- ringcast's functions of groups --------------------------------------------------------------


def ringcast_object(me: Member) -> Call:
    from ringcast.vllm.group import Group

    broadcast = Group(me.group).broadcast_object
    return (lambda: broadcast(None, 0)) if me.rank else (lambda value: broadcast(value, 0))


def ringcast_tensor_dict(me: Member) -> Call:
    from ringcast.vllm.group import Group

    broadcast = Group(me.group).broadcast_tensor_dict
    return (lambda: broadcast(None, 0)) if me.rank else (lambda value: broadcast(value, 0))


def ringcast_pyobj(me: Member) -> Call:
    from ringcast.sglang import broadcast_pyobj

    group, rank = me.group, me.rank
    return (
        (lambda: broadcast_pyobj([], rank, group))
        if rank
        else (lambda value: broadcast_pyobj(value, 0, group))
    )
