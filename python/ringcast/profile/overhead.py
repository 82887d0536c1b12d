# SPDX-License-Identifier: Apache-2.0
"""What a profile costs: a step of an engine's shape, with a profile and without, in turns.

A step sends and receives metadata by ringcast, computes for a fixed time by the clock of the CPU that the thread used,
in regions, and with torch has an all_reduce of 16 KiB in a group of one in each region.
"""

import argparse
import contextlib
import json
import statistics
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import ringcast
from ringcast.profile import profile

TURN = 40  # steps
REGIONS = 4


@contextlib.contextmanager
def _all_reduce() -> Iterator[Optional[Callable[[], Any]]]:
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        yield None
        return
    store = dist.HashStore()  # type: ignore[attr-defined,unused-ignore]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    tensor = torch.ones(4096)
    yield lambda: dist.all_reduce(tensor)
    dist.destroy_process_group()


def compute(seconds: float) -> int:
    """Additions for so long, by the CPU time of this thread: another process's load does not shorten the work."""
    until, sums = time.thread_time() + seconds, 0
    while time.thread_time() < until:
        sums += sum(range(50))
    return sums


def _step(writer: Any, reader: Any, reduce: Optional[Callable[[], Any]], seconds: float, number: int, p: Any) -> None:
    writer.send({"step": number, "ids": list(range(64)), "tables": {"a": [1, 2, 3], "b": "text"}})
    reader.recv()
    for index in range(REGIONS):
        with p.region(f"layers.{index}") if p is not None else contextlib.nullcontext():
            compute(seconds / REGIONS)
            if reduce is not None:
                reduce()


def measure(seconds: float, computing: float) -> Dict[str, Any]:
    times: Dict[str, List[float]] = {"off": [], "on": []}
    with ringcast.Writer() as writer, ringcast.Reader(writer.handle) as reader, _all_reduce() as reduce:
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until or number < 4:
            way = ("off", "on")[number % 2]
            with profile(None, warmup=0) if way == "on" else contextlib.nullcontext() as p:
                for index in range(TURN):
                    start = time.perf_counter()
                    _step(writer, reader, reduce, computing, index, p)
                    if p is not None:
                        p.step()
                    times[way].append(time.perf_counter() - start)
            number += 1
    medians = {way: 1e3 * statistics.median(each) for way, each in times.items()}
    # Of the quietest fifth: what other load does to single steps is not in it.
    quiet = {way: 1e3 * statistics.mean(sorted(each)[: max(1, len(each) // 5)]) for way, each in times.items()}
    return {
        "steps": len(times["off"]), "operations_a_step": 2 + REGIONS * (reduce is not None), "regions_a_step": REGIONS,
        "off_ms": medians["off"], "on_ms": medians["on"], "overhead_us": 1e3 * (quiet["on"] - quiet["off"]),
        "overhead_percent": 100 * (medians["on"] / medians["off"] - 1),
        "overhead_percent_quiet": 100 * (quiet["on"] / quiet["off"] - 1),
    }  # fmt: skip


def main(options: argparse.Namespace) -> int:
    found = measure(options.seconds, options.compute_ms / 1e3)
    if options.format == "json":
        print(json.dumps(found, indent=2))
        return 0
    print(f"a step with {found['operations_a_step']} operations and {found['regions_a_step']} regions, medians of "
          f"{found['steps']} steps each: {found['off_ms']:.3f} ms without a profile, {found['on_ms']:.3f} with "
          f"({found['overhead_percent']:+.2f} %); the quietest fifth: {found['overhead_us']:+.0f} us "
          f"({found['overhead_percent_quiet']:+.2f} %)")  # fmt: skip
    return 0
