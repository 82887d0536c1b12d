# SPDX-License-Identifier: Apache-2.0
"""The time until the other processes know of a death: one process of a group is killed, under each drop-in.

The victim is a receiver that waits, or the source. The time is from just before the SIGKILL to the moment when the last
other process holds an exception that names the victim; a source calls every millisecond, receivers wait in a call.
"""

import importlib
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

from ringcast.bench.harness import Processes

WATCHDOG = 60.0  # seconds
PAUSE = 0.001  # seconds between the calls of a source
WARM_UP = 20  # calls; the first few of a pair go by another way

# Each process calls the way once, with its rank, and then calls the result until an exception.
Way = Callable[[int, int, Any], Callable[[], Any]]


def queue(rank: int, world: int, handles: Any) -> Callable[[], Any]:
    """vLLM's MessageQueue: the source enqueues, the others dequeue."""
    from ringcast.vllm import MessageQueue

    if rank == 0:
        writer = MessageQueue(world - 1, world - 1)
        for _ in range(world - 1):
            handles.put(writer.export_handle())
        writer.wait_until_ready()
        return lambda: writer.enqueue({"step": 1}, timeout=WATCHDOG)
    reader = MessageQueue.create_from_handle(handles.get(), rank - 1)
    reader.wait_until_ready()
    return lambda: reader.dequeue(timeout=WATCHDOG)


def object_(rank: int, world: int, _: Any) -> Callable[[], Any]:
    import ringcast.torch

    return lambda: ringcast.torch.broadcast_object({"step": 1} if rank == 0 else None)


def tensor_dict(rank: int, world: int, _: Any) -> Callable[[], Any]:
    import torch

    import ringcast.torch

    given = {"ids": torch.arange(64), "step": 1} if rank == 0 else None
    return lambda: ringcast.torch.broadcast_tensor_dict(given)


def pyobj(rank: int, world: int, _: Any) -> Callable[[], Any]:
    from ringcast.sglang import broadcast_pyobj

    return lambda: broadcast_pyobj([{"step": 1}] if rank == 0 else [], rank)


def pairs(rank: int, world: int, _: Any) -> Callable[[], Any]:
    """Point to point, from rank 0 to the last rank."""
    import torch.distributed as dist

    from ringcast.vllm import Group

    group = Group(dist.group.WORLD)
    if rank == 0:
        return lambda: group.send_object({"step": 1}, world - 1)
    if rank == world - 1:
        return lambda: group.recv_object(0)
    return lambda: group.broadcast_object({"step": 1} if rank == 0 else None)


# The way, the number of processes, and the module that the way needs.
WAYS: Dict[str, Tuple[Way, int, str]] = {
    "MessageQueue": (queue, 4, "ringcast.vllm"),
    "broadcast_object": (object_, 4, "ringcast.torch"),
    "broadcast_tensor_dict": (tensor_dict, 4, "ringcast.torch"),
    "broadcast_pyobj": (pyobj, 4, "ringcast.sglang"),
    "send_object": (pairs, 2, "ringcast.vllm"),
}


def work(rank: int, pipe: Any, way: Way, world: int, store: str, handles: Any) -> None:
    """In a process of its own: answers with the error that the process caught, and when."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if way is not queue:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    call = way(rank, world, handles)
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
    handles = multiprocessing.get_context("fork").Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (way, world, os.path.join(folder, "store"), handles)
        with Processes(world, work, *arguments, method="fork") as processes:
            pids = processes.hear()
            start = time.monotonic_ns()
            os.kill(pids[victim], signal.SIGKILL)
            heard = [answer for answer in processes.hear(without=victim) if answer]
    return {
        "ms": (max(when for when, _, _ in heard) - start) / 1e6,
        "errors": sorted({kind for _, kind, _ in heard}),
        "named": all(str(pids[victim]) in text for _, _, text in heard),
        "text": heard[-1][2],
    }


def run(rounds: int) -> Dict[str, Any]:
    found: Dict[str, Any] = {"ways": {}, "left_out": {}}
    for name, (way, world, module) in WAYS.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            found["left_out"][name] = str(error)
            continue
        for whom, victim in ("a receiver", world - 1), ("the source", 0):
            taken = [once(way, world, victim) for _ in range(rounds)]
            times = sorted(one["ms"] for one in taken)
            found["ways"][f"{name}, {whom}"] = {
                "ranks": world,
                "kills": rounds,
                "p50_ms": statistics.median(times),
                "max_ms": times[-1],
                "all_named": all(one["named"] for one in taken),
                "errors": sorted({error for one in taken for error in one["errors"]}),
                "text": taken[-1]["text"],
            }
    return found


def text(found: Dict[str, Any]) -> str:
    lines: List[str] = [f"{'killed':42} {'kills':>5} {'p50 ms':>8} {'max ms':>8}  named  raised by the others"]
    for name, one in found["ways"].items():
        lines.append(
            f"{name:42} {one['kills']:5} {one['p50_ms']:8.1f} {one['max_ms']:8.1f}  "
            f"{'all' if one['all_named'] else 'NOT ALL':5}  {', '.join(one['errors'])}"
        )
    lines += [f"left out: {name}: {why}" for name, why in found["left_out"].items()]
    return "\n".join([*lines, "", __doc__.strip().split("\n\n")[1]])
