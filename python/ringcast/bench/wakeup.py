# SPDX-License-Identifier: Apache-2.0
"""What it takes from a send until a receiver of another process, which was asleep, has the value: one that waits in
recv(), and tasks that wait in arecv() under asyncio and under uvloop. All three take turns, in one run."""

import asyncio
import contextlib
import multiprocessing
import statistics
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

import ringcast

WAYS = ("recv", "arecv_asyncio", "arecv_uvloop")
GAP = 0.002  # seconds between two sends: many times what a reader spins, so each receiver sleeps
DEADLINE = 60.0
WARM_UP = 5  # rounds that are not counted: a receiver may be busy with starting


def _blocking(reader: ringcast.Reader) -> List[int]:
    return [time.monotonic_ns() - sent for sent in reader]


async def _in_a_loop(reader: ringcast.Reader) -> List[int]:
    return [time.monotonic_ns() - sent async for sent in reader]


def _receive(way: str, handle: str, pipe: Any) -> None:
    with ringcast.Reader(handle, name=way) as reader:
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


@contextlib.contextmanager
def _receivers(ways: Tuple[str, ...]) -> Iterator[List[Tuple[Any, ringcast.Writer]]]:
    """A process and a ring for each way."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pairs = []
        for way in ways:
            writer = stack.enter_context(ringcast.Writer(1 << 16))
            ours, theirs = context.Pipe()
            process = context.Process(target=_receive, args=(way, writer.handle, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            pairs.append((ours, writer))
        for _, writer in pairs:
            writer.wait_readers(1, DEADLINE)
        yield pairs


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return False
    return True


def run(rounds: int) -> Dict[str, Any]:
    """Medians in microseconds of `rounds` wake-ups each; uvloop's is None where it is not installed. slept: before how
    many of the sends, of 1, the one in recv() did sleep."""
    if rounds < 1:
        raise ValueError(f"rounds must be 1 or more, not {rounds}")
    ways = WAYS if _has_uvloop() else WAYS[:-1]
    results: Dict[str, Optional[float]] = dict.fromkeys(WAYS)
    slept = 0.0
    with _receivers(ways) as pairs:
        for _ in range(rounds + WARM_UP):
            for _, writer in pairs:
                time.sleep(GAP)
                writer.send(time.monotonic_ns(), DEADLINE)
        for way, (pipe, writer) in zip(ways, pairs):
            writer.close()
            if not pipe.poll(DEADLINE):
                raise RuntimeError(f"the receiver by {way} says nothing")
            took, sleeps = pipe.recv()
            if way == "recv":  # tasks are not counted; on a busy machine a value may be there before it sleeps
                slept = min(1.0, sleeps / (rounds + WARM_UP))
            results[way] = statistics.median(took[WARM_UP:]) / 1000
    return {"rounds": rounds, "gap_us": GAP * 1e6, "slept": slept, "median_us": results}
