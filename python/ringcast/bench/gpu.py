# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors of torch from one process to another on the same device: through ringcast, and beside it, in turns, by
torch.multiprocessing's CUDA IPC and by NCCL's broadcast.

One way is from the call at the sender until the receiver's device has a tensor of its own. CUDA IPC shares the
sender's memory: there the receiver copies it too, as it can't keep it otherwise. NCCL takes a device for each rank, so
it is left out where there is only one. The sizes are those of `ringcast perf gpu`, which has the plain copies of the
same bytes and what ringcast takes of it without Python: the two belong together.
"""

import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import ringcast
from ringcast.bench.exchange import percentile
from ringcast.bench.turns import Failed
from ringcast.bench.report import Column, of, say
from ringcast.bench.turns import in_turns

CASES = {f"{4**i}K": 1024 * 4**i for i in range(5)} | {f"{4**i}M": (1 << 20) * 4**i for i in range(5)}
WAYS = ("ringcast", "cuda_ipc", "nccl")
DEADLINE = 120.0
WARM_UP = 5  # tensors: the pool is opened, kernels are loaded, connections are made

COLUMNS: List[Column] = [
    ("p50", "one way, us", 12, of("figures", "one_way_p50_us")),
    ("p99", "", 10, of("figures", "one_way_p99_us")),
    ("p50", "sender's call, us", 19, of("figures", "send_p50_us")),
    ("GB/s", "", 9, of("figures", "gb_per_s")),
]


def why_not() -> Optional[str]:
    """Why nothing can be measured here; None if it can."""
    try:
        import torch
    except ImportError as error:
        return f"no torch: {error}"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return None


# ---- The ways: each has a sender's and a receiver's side, made in the process that uses it ---------------------------


class ByRingcast:
    def __init__(self, link: Any, pipe: Any, sends: bool) -> None:
        self.handle: Any = link if sends else ringcast.Reader(link, name="bench")

    def send(self, tensor: Any) -> None:
        self.handle.send(tensor, DEADLINE)

    def recv(self, size: int) -> Any:
        return self.handle.recv(DEADLINE)


class ByIpc:
    def __init__(self, link: Any, pipe: Any, sends: bool) -> None:
        import torch.multiprocessing  # noqa: F401, registers how a tensor is pickled for a process on the same machine

        self.pipe = link

    def send(self, tensor: Any) -> None:
        self.pipe.send(tensor)

    def recv(self, size: int) -> Any:
        return self.pipe.recv().clone()


class ByNccl:
    def __init__(self, link: Any, pipe: Any, sends: bool) -> None:
        import torch
        import torch.distributed

        rank = 0 if sends else 1
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl", init_method=link, rank=rank, world_size=2)
        self.distributed = torch.distributed
        self.memory = None if sends else torch.empty(max(CASES.values()), dtype=torch.uint8, device="cuda")

    def send(self, tensor: Any) -> None:
        self.distributed.broadcast(tensor, 0)

    def recv(self, size: int) -> Any:
        assert self.memory is not None
        self.distributed.broadcast(self.memory[:size], 0)


KINDS: Dict[str, Any] = {"ringcast": ByRingcast, "cuda_ipc": ByIpc, "nccl": ByNccl}


def _receive(way: str, link: Any, pipe: Any) -> None:
    """Says of each tensor when the device has had it."""
    import torch

    torch.zeros(1, device="cuda")  # makes the context
    kind = KINDS[way](link, pipe, False)
    pipe.send("ready")
    while True:
        size, count = pipe.recv()
        if not count:
            return
        for _ in range(count):
            kind.recv(size)
            torch.cuda.synchronize()
            pipe.send(time.monotonic_ns())


def _hear(pipe: Any) -> Any:
    if not pipe.poll(DEADLINE):
        raise Failed("the other process says nothing")
    try:
        return pipe.recv()
    except EOFError:
        raise Failed("the other process has ended; if it said why, that is above") from None


@contextlib.contextmanager
def _pair(way: str, folder: str) -> Iterator[Tuple[Any, Any]]:
    """The sender's side of a way, and a pipe to the process that receives."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with contextlib.ExitStack() as stack:
        sender: Any = None
        if way == "ringcast":
            sender = stack.enter_context(ringcast.Writer(gpu_pool_bytes=4 * max(CASES.values())))
            link: Any = sender.handle
        elif way == "cuda_ipc":
            sender, link = context.Pipe()
        else:
            sender = link = f"file://{os.path.join(folder, 'nccl')}"
        process = context.Process(target=_receive, args=(way, link, theirs), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.kill)
        theirs.close()
        kind = KINDS[way](sender, ours, True)  # NCCL's waits for the other
        _hear(ours)
        yield kind, ours
        ours.send((0, 0))
        process.join(DEADLINE)


# ---- Measuring -------------------------------------------------------------------------------------------------------


def _turn(kind: Any, pipe: Any, tensor: Any, rounds: int) -> List[Tuple[int, int]]:
    """Of each: one way, and the sender's call, in nanoseconds."""
    pipe.send((tensor.nbytes, rounds))
    taken = []
    for _ in range(rounds):
        start = time.monotonic_ns()
        kind.send(tensor)
        sent = time.monotonic_ns()
        taken.append((_hear(pipe) - start, sent - start))
    return taken


def _way(pair: Tuple[Any, Any], tensor: Any) -> Callable[[int], Any]:
    return lambda rounds: _turn(*pair, tensor, rounds)


def _figures(turns: List[List[Tuple[int, int]]], size: int) -> Dict[str, Any]:
    one_way = [taken for turn in turns for taken, _ in turn]
    calls = [taken for turn in turns for _, taken in turn]
    median = statistics.median(one_way)
    return {
        "one_way_p50_us": median / 1e3,
        "one_way_p99_us": percentile(one_way, 0.99) / 1e3,
        "send_p50_us": statistics.median(calls) / 1e3,
        "gb_per_s": size / median,
        "rounds": len(one_way),
    }


def run(names: List[str], seconds: float) -> Dict[str, Any]:
    """The figures of each size and way; "skipped" says why there are none."""
    reason = why_not()
    if reason:
        return {"skipped": reason, "cases": {}, "left_out": {}}
    import torch

    found: Dict[str, Any] = {"device": torch.cuda.get_device_name(0), "cases": {}, "left_out": {}}
    ways = list(WAYS)
    if torch.cuda.device_count() < 2:
        ways.remove("nccl")
        found["left_out"]["nccl"] = "NCCL takes a device for each rank, and there is one"
    elif not torch.distributed.is_nccl_available():
        ways.remove("nccl")
        found["left_out"]["nccl"] = "torch is built without NCCL"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        pairs = {way: stack.enter_context(_pair(way, folder)) for way in ways}
        torch.cuda.set_device(0)
        for name in names:
            say(f"gpu {name}")
            tensor = torch.ones(CASES[name], dtype=torch.uint8, device="cuda:0")
            torch.cuda.synchronize()
            for kind, pipe in pairs.values():
                _turn(kind, pipe, tensor, WARM_UP)
            turns = in_turns({way: _way(pair, tensor) for way, pair in pairs.items()}, seconds)
            found["cases"][name] = {way: _figures(taken, CASES[name]) for way, taken in turns.items()}
            del tensor
        way = pairs["ringcast"][0].handle.gpu
        found["way"] = {"way": way.way, "why": way.why, "pool_frames": way.pool_frames}
    return found


def rows(cases: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
    return {f"{name} {way}": {"figures": figures} for name, ways in cases.items() for way, figures in ways.items()}
