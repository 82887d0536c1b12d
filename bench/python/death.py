# SPDX-License-Identifier: Apache-2.0
"""The time until the other processes know of a death: one process of a group is killed, under each
drop-in.

The victim is a receiver that waits, or the source. The time is from just before the SIGKILL to the
moment when the last other process holds an exception that names the victim; a source calls every
millisecond, receivers wait in a call.
"""

import importlib
import os
import signal
import statistics
import tempfile
import time
from typing import Any, Callable, Dict, Tuple

from bench.python import ways
from bench.python.harness import Processes, join
from bench.python.ways import Member

PAUSE = 0.001  # seconds between the calls of a source
WARM_UP = 20  # calls; the first few of a pair go by another way

# Each process calls the way once, with its rank, and then calls the result until an exception.
Way = Callable[[Member], Callable[[], Any]]


def calls(way: ways.Way, value: Any) -> Way:
    """One of the ways that `dropin` measures, with this value."""

    def made(me: Member) -> Callable[[], Any]:
        call = way(me)
        return call if me.rank else lambda: call(value)

    return made


def object_(me: Member) -> Callable[[], Any]:
    import ringcast.torch

    return lambda: ringcast.torch.broadcast_object({"step": 1} if me.rank == 0 else None)


def tensor_dict(me: Member) -> Callable[[], Any]:
    import torch

    import ringcast.torch

    given = {"ids": torch.arange(64), "step": 1} if me.rank == 0 else None
    return lambda: ringcast.torch.broadcast_tensor_dict(given)


def pairs(me: Member) -> Callable[[], Any]:
    """Point to point, from rank 0 to the last rank."""
    from ringcast.vllm import Group

    group = Group(me.group)
    return (
        (lambda: group.recv_object(0))
        if me.rank
        else (lambda: group.send_object({"step": 1}, me.ranks - 1))
    )


# The way, the number of processes, and the module that the way needs.
WAYS: Dict[str, Tuple[Way, int, str]] = {
    "MessageQueue": (calls(ways.ringcast_queue, {"step": 1}), 4, "ringcast.vllm"),
    "broadcast_object": (object_, 4, "ringcast.torch"),
    "broadcast_tensor_dict": (tensor_dict, 4, "ringcast.torch"),
    "broadcast_pyobj": (calls(ways.ringcast_pyobj, [{"step": 1}]), 4, "ringcast.sglang"),
    "send_object": (pairs, 2, "ringcast.vllm"),
}


def work(rank: int, pipe: Any, way: Way, world: int, store: str) -> None:
    """In a process of its own: answers with the error that the process caught, and when."""
    call = way(Member(rank, world, join(rank, world, store), None))
    for _ in range(WARM_UP):
        call()
    pipe.send(os.getpid())
    try:
        while True:
            call()
            if rank == 0:
                time.sleep(PAUSE)
    except Exception as error:
        pipe.send((time.monotonic_ns(), type(error).__name__, str(error)))
    pipe.recv()  # no process goes before the parent has all answers


def once(way: Way, world: int, victim: int) -> Dict[str, Any]:
    """The figures of one kill."""
    with tempfile.TemporaryDirectory() as folder:
        with Processes(
            world, work, way, world, os.path.join(folder, "store"), method="fork"
        ) as processes:
            pids = processes.hear()
            start = time.monotonic_ns()
            os.kill(pids[victim], signal.SIGKILL)
            heard = [answer for answer in processes.hear(without=victim) if answer]
    return {
        "ms": (max(when for when, _, _ in heard) - start) / 1e6,
        "errors": sorted({kind for _, kind, _ in heard}),
        "named": all(str(pids[victim]) in text for _, _, text in heard),
    }


def run(rounds: int) -> Dict[str, Any]:
    found: Dict[str, Any] = {"cases": {}, "left_out": {}}
    for name, (way, world, module) in WAYS.items():
        try:
            importlib.import_module("torch.distributed")
            importlib.import_module(module)
        except ImportError as error:
            found["left_out"][name] = str(error)
            continue
        for whom, victim in ("a receiver", world - 1), ("the source", 0):
            taken = [once(way, world, victim) for _ in range(rounds)]
            times = sorted(one["ms"] for one in taken)
            found["cases"][f"{name}, {whom}"] = {
                "ranks": world,
                "kills": rounds,
                "p50_ms": statistics.median(times),
                "max_ms": times[-1],
                "all_named": all(one["named"] for one in taken),
                "error": ", ".join(sorted({error for one in taken for error in one["errors"]})),
            }
    return found
