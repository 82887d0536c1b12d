# SPDX-License-Identifier: Apache-2.0
"""The drop-ins as a table of ways: each carries a value from one rank of the default group, the
source, to all others.

    with opened("torch", PAIRS) as way:             # on every rank
        got = way("broadcast_object", value, src)   # on every rank with an equal value, which the source alone sends

PAIRS: which ranks share a machine; without it, all do.
"""

import contextlib
import gc
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy
import pytest
import torch
import torch.distributed as dist

import ringcast
import ringcast.torch as rt
from ringcast import sglang
from ringcast._group import apart as travelling
from ringcast._group import rings
from ringcast.vllm import MessageQueue
from ringcast.vllm.group import Group

Machines = Optional[Tuple[Tuple[int, ...], ...]]
PAIRS = ((0, 1), (2, 3))


# ---- What is sent --------------------------------------------------------------------------------


@dataclass
class Request:
    name: str
    tokens: List[int]


def payload() -> Dict[Any, Any]:
    base = torch.arange(24)
    return {
        "zeta first": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "none": None,
        "flag": True,
        "int": 2**80,
        "text": "é\n\0",
        "bytes": b"\0\1",
        "float": -0.0,
        "0-d": torch.tensor(2.5),
        "empty": torch.empty((0, 5), dtype=torch.int16),
        "empty floats": torch.empty((0, 5)),
        "transposed": base.reshape(4, 6).T,
        "every third": base[::3],
        "expanded": torch.tensor([[1.5], [2.5]]).expand(2, 4),
        "bool": torch.tensor([True, False, True]),
        "int8": base.to(torch.int8),
        "bf16": base.to(torch.bfloat16),
        "f16": base.to(torch.float16),
        "fp8 e4m3": base.to(torch.float32).to(torch.float8_e4m3fn),
        "fp8 e5m2": base.to(torch.float32).to(torch.float8_e5m2),
        "complex": torch.complex(torch.arange(3.0), -torch.arange(3.0)),
        "conjugated": torch.complex(torch.arange(3.0), torch.ones(3)).conj(),
        "requires grad": torch.ones(3, dtype=torch.float64).requires_grad_(),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.float64),
        "large": torch.arange(300_000, dtype=torch.int32),
        "nested": {"b": torch.ones(2), "a": [torch.zeros(0), (1, {"c": torch.arange(3)})], "d": {}},
        "array": numpy.arange(6.0).reshape(2, 3).T,
        "request": Request("r1", [1, 2]),
        7: {1: torch.ones(2), None: 3},
        "": set("abc"),
    }


def values() -> List[Any]:
    return [
        payload(),
        {},
        {"k": {}},
        None,
        7,
        "text",
        b"",
        [],
        (torch.ones(2), None),
        torch.arange(3),
        Request("", []),
    ]


# ---- The ways ------------------------------------------------------------------------------------


class Way:
    """functions: as the errors name the calls. device_group: for tensors that travel apart."""

    functions: Tuple[str, ...] = (
        "broadcast_tensor_dict",
        "broadcast_object",
        "broadcast_object_list",
    )

    def __init__(self, device_group: Any) -> None:
        self.group = Group(None, device_group)

    def __call__(self, function: str, value: Any, src: int = 0) -> Any:
        is_source, is_dict = dist.get_rank() == src, function.endswith("dict")
        is_list = function in ("broadcast_object_list", "broadcast_pyobj")
        wrapped = is_list or is_dict and not isinstance(value, dict)
        given = [value] if is_list else {0: value} if wrapped else value
        nothing = [None] if function == "broadcast_object_list" else None
        got = self.call(function, given if is_source else nothing, src)
        assert got is given or not is_source
        return got[0] if wrapped else got

    def call(self, function: str, given: Any, src: int) -> Any:
        return getattr(self.group, function)(given, src)

    def check(self, src: int = 0) -> None:
        """It works, by each function."""
        for function in self.functions:
            value = {"still": torch.arange(4)}
            assert self(function, value, src)["still"].tolist() == [0, 1, 2, 3]

    def check_path(self, machines: Tuple[Tuple[int, ...], ...], pids: List[int]) -> None:
        """
        By what each end says that it uses: the source's ring on its machine, links and another ring
        beyond.
        """
        rank = dist.get_rank()
        for (stream, src), end in rings.ends(dist.group.WORLD).items():
            if stream in ("to", "from"):
                continue
            if src == rank:
                assert len(end.links) == len(machines) - 1, (src, end.links)
            else:
                assert (end.ring.writer_pid == pids[src]) == share_one(machines, rank, src), (
                    rank,
                    src,
                )

    def lost(self) -> Optional[str]:
        """Which death rank 0, as the source, knows of."""
        found: Optional[str] = rings.ends_if_any(None)["broadcast", 0].lost
        return found

    def close(self) -> None:
        self.group.close()


class Torch(Way):
    """Tensors apart go by the group itself."""

    def call(self, function: str, given: Any, src: int) -> Any:
        return getattr(rt, function)(given, src)


class Sglang(Way):
    functions = ("broadcast_tensor_dict", "broadcast_pyobj")

    def call(self, function: str, given: Any, src: int) -> Any:
        if function == "broadcast_pyobj":
            return sglang.broadcast_pyobj(given, dist.get_rank(), None, src)
        return sglang.broadcast_tensor_dict(given, src)


class Pairs(Way):
    """The source sends to each of the others."""

    functions = ("send_tensor_dict", "send_object")

    def call(self, function: str, given: Any, src: int) -> Any:
        if dist.get_rank() != src:
            return getattr(self.group, function.replace("send", "recv"))(src)
        errors = []
        for dst in set(range(dist.get_world_size())) - {src}:
            try:
                getattr(self.group, function)(given, dst)
            except Exception as error:
                errors.append(error)
        for error in errors:
            raise error
        return given

    def check_path(self, machines: Tuple[Tuple[int, ...], ...], pids: List[int]) -> None:
        for (which, peer), end in rings.ends(dist.group.WORLD).items():
            if not share_one(machines, dist.get_rank(), peer):
                assert end.ring is None if which == "from" else not end._on_ring, (which, peer)
            elif which == "from":
                assert end.ring.writer_pid == pids[peer], peer


class Queue(Way):
    """A MessageQueue from each source, made when it is first used."""

    functions = ("broadcast_object",)

    def __init__(self, _: Any) -> None:
        os.environ["VLLM_HOST_IP"] = "127.0.0.1"
        os.environ["RINGCAST_HEARTBEAT"] = "100"  # a rank may stand still
        self.queues: Dict[int, MessageQueue] = {}

    def call(self, function: str, given: Any, src: int) -> Any:
        if src not in self.queues:
            self.queues[src] = MessageQueue.create_from_process_group(
                dist.group.WORLD, 8 << 10, 8, src
            )
        return self.queues[src].broadcast_object(given)

    def check_path(self, machines: Tuple[Tuple[int, ...], ...], pids: List[int]) -> None:
        rank = dist.get_rank()
        for src, queue in self.queues.items():
            if src == rank:
                assert (queue._end.link is not None) == (len(machines) > 1)
            else:
                assert (queue._end.ring.writer_pid == pids[src]) == share_one(
                    machines, rank, src
                ), (rank, src)

    def lost(self) -> Optional[str]:
        found: Optional[str] = self.queues[0]._end.lost
        return found

    def close(self) -> None:
        self.queues.clear()
        gc.collect()


class Share(Way):
    functions = ("share_once",)

    def call(self, function: str, given: Any, src: int) -> Any:
        return sglang.share_once(lambda: given, 1, src=src, how="share", hash=None).result()[0]

    def lost(self) -> Optional[str]:
        found: Optional[str] = rings.ends_if_any(None)["share_once", 0].lost
        return found

    def close(self) -> None:
        rt.close()


WAYS = {
    "torch": Torch,
    "vllm": Way,
    "sglang": Sglang,
    "pairs": Pairs,
    "queue": Queue,
    "share_once": Share,
}
# With tensors of float32 apart from the frame.
APART = ["torch apart", "vllm apart", "sglang apart", "pairs apart"]


@contextlib.contextmanager
def opened(name: str, machines: Machines = None) -> Iterator[Way]:
    """
    At the block's end: fails if what was sent has not gone the way that the name and the machines
    say.
    """
    kind, _, apart = name.partition(" ")
    pids = pids_of_all()
    with contextlib.ExitStack() as stack:
        if machines:
            stack.enter_context(on_machines(machines))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        device_group = dist.new_group() if apart else None
        seen = seen_apart(patch) if apart else []
        way = WAYS[kind](device_group)
        stack.callback(way.close)
        yield way
        way.check_path(machines or (tuple(range(len(pids))),), pids)
        assert bool(seen) == bool(apart), "no tensor has gone by torch.distributed"
        if kind == "pairs":
            # a rank that leaves resets gloo's connections, with what is still on the way
            dist.barrier()


def seen_apart(patch: pytest.MonkeyPatch) -> List[torch.Tensor]:
    """From now on tensors of float32 travel apart, by torch.distributed: those that do, sent or
    received."""
    seen: List[torch.Tensor] = []

    def seeing(call: Any) -> Any:
        def see(tensor: torch.Tensor, *args: Any, **keywords: Any) -> Any:
            seen.append(tensor)
            return call(tensor, *args, **keywords)

        return see

    patch.setattr(travelling, "travels_apart", lambda tensor: tensor.dtype == torch.float32)
    patch.setattr(travelling.Source, "divides", True)  # no Writer refuses a tensor for its dtype
    for name in "broadcast", "isend", "irecv":
        patch.setattr(dist, name, seeing(getattr(dist, name)))
    return seen


def share_one(machines: Tuple[Tuple[int, ...], ...], rank: int, other: int) -> bool:
    return any(rank in machine and other in machine for machine in machines)


@contextlib.contextmanager
def on_machines(of: Tuple[Tuple[int, ...], ...]) -> Iterator[Dict[int, int]]:
    """A Reader finds no ring of a rank that is not of its machine. The ranks' pids."""
    pids = pids_of_all()
    mine = next(machine for machine in of if dist.get_rank() in machine)
    reader = ringcast.Reader

    def attach(handle: str, **keywords: Any) -> ringcast.Reader:
        if int(handle.split(":")[1]) not in [pids[rank] for rank in mine]:
            raise ringcast.RingNotFound(2, "it is on another machine")
        return reader(handle, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ringcast, "Reader", attach)
        patch.setattr(rings.config, "machine", lambda: f"machine {mine}")
        yield dict(enumerate(pids))
        rt.close()


def pids_of_all() -> List[int]:
    pids: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    return pids
