# SPDX-License-Identifier: Apache-2.0
"""The time from a send until a sleeping receiver in another process has the value: a receiver in recv(), and tasks in
arecv() under asyncio and under uvloop. The receivers take turns, in one run."""

import asyncio
import contextlib
import importlib.util
import statistics
import time
from typing import Any, Dict, List

import ringcast
from ringcast.bench.harness import Processes

WAYS = ("recv", "arecv_asyncio", "arecv_uvloop")
GAP = 0.002  # seconds between two sends: many times a reader's spinning, so each receiver sleeps
DEADLINE = 60.0
WARM_UP = 5  # uncounted rounds: a receiver may still be starting


def _blocking(reader: ringcast.Reader) -> List[int]:
    return [time.monotonic_ns() - sent for sent in reader]


async def _in_a_loop(reader: ringcast.Reader) -> List[int]:
    return [time.monotonic_ns() - sent async for sent in reader]


def _receive(rank: int, pipe: Any, handles: List[str]) -> None:
    way = WAYS[rank]
    with ringcast.Reader(handles[rank], name=way) as reader:
        if way == "recv":
            took = _blocking(reader)
        elif way == "arecv_asyncio":
            took = asyncio.run(_in_a_loop(reader))
        else:
            import uvloop

            loop = uvloop.new_event_loop()
            took = loop.run_until_complete(_in_a_loop(reader))
            loop.close()
        pipe.send((took, reader.stats().sleeps))


def run(rounds: int) -> Dict[str, Any]:
    """Medians of `rounds` wake-ups each. slept: the share of the sends before which the receiver in recv() slept."""
    ways = WAYS if importlib.util.find_spec("uvloop") else WAYS[:-1]
    found: Dict[str, Any] = {"gap_us": GAP * 1e6, "cases": {}, "left_out": {}}
    if len(ways) < len(WAYS):
        found["left_out"][WAYS[-1]] = "needs uvloop, which is not installed here"
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(ringcast.Writer(1 << 16)) for _ in ways]
        processes = stack.enter_context(Processes(len(ways), _receive, [writer.handle for writer in writers]))
        for writer in writers:
            writer.wait_readers(1, DEADLINE)
        for _ in range(rounds + WARM_UP):
            for writer in writers:
                time.sleep(GAP)
                writer.send(time.monotonic_ns(), DEADLINE)
        for writer in writers:
            writer.close()
        for way, (took, sleeps) in zip(ways, processes.hear()):
            found["cases"][way] = {"p50_us": statistics.median(took[WARM_UP:]) / 1000}
            if way == "recv":  # tasks are not counted; on a busy machine a value may be there before the reader sleeps
                found["cases"][way]["slept"] = min(1.0, sleeps / (rounds + WARM_UP))
    return found
