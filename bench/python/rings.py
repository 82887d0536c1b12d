# SPDX-License-Identifier: Apache-2.0
"""What single features of a ring cost.

batch    small values in a stream to another process, by send, send_bytes and send_many: values a
         second, until the receiver has the last one
asyncio  from a send until a sleeping receiver of another process has the value: in recv(), and in
         arecv() under asyncio and uvloop
"""

import asyncio
import contextlib
import importlib
import statistics
import time
from importlib import util
from typing import Any, Callable, Dict, List, Sequence

import ringcast

from bench.python.harness import Processes, Table, in_turns

DEADLINE = 60.0


# ---- batch ---------------------------------------------------------------------------------------

BATCH = 256  # values of one call
BATCHES: Dict[str, Any] = {
    "bytes-16": b"x" * 16,
    "bytes-256": b"x" * 256,
    "str-16": "x" * 16,
    "int": 1 << 40,
}


def _receive(rank: int, pipe: Any, handle: str) -> None:
    with ringcast.Reader(handle) as reader:
        while True:
            in_batches, count = pipe.recv()
            while in_batches and count > 0:
                count -= len(reader.recv_many(DEADLINE))
            for _ in range(count):
                reader.recv(DEADLINE)
            pipe.send(None)


def batch(names: Sequence[str], seconds: float) -> Dict[str, Any]:
    found: Dict[str, Any] = {"cases": {}, "left_out": {}}
    with ringcast.Writer(1 << 20) as writer, Processes(1, _receive, writer.handle) as processes:
        writer.wait_readers(1, DEADLINE)

        def way(call: Callable[[Any], Any], value: Any, calls: int) -> Callable[[int], float]:
            def measure(rounds: int) -> float:
                processes.tell((calls == 1, rounds * BATCH))
                start = time.perf_counter()
                for _ in range(rounds * calls):
                    call(value)
                processes.hear()
                return rounds * BATCH / (time.perf_counter() - start)

            return measure

        for name in names:
            value = BATCHES[name]
            ways = {
                "send": way(writer.send, value, BATCH),
                "send_many": way(writer.send_many, [value] * BATCH, 1),
            }
            if isinstance(value, bytes):
                ways["send_bytes"] = way(writer.send_bytes, value, BATCH)
            rates = {
                each: statistics.median(turns) for each, turns in in_turns(ways, seconds).items()
            }
            found["cases"][name] = {
                **rates,
                "ratio": rates["send_many"] / rates.get("send_bytes", rates["send"]),
            }
    return found


# ---- asyncio -------------------------------------------------------------------------------------

GAP = 0.002  # seconds between two sends: many times a reader's spinning, so each receiver sleeps
FIRST = 5  # uncounted rounds: a receiver may still be starting
LOOPS = ("recv", "arecv_asyncio", "arecv_uvloop")


def _sleep(rank: int, pipe: Any, handles: List[str]) -> None:
    async def in_a_loop() -> List[int]:
        return [time.monotonic_ns() - sent async for sent in reader]

    with ringcast.Reader(handles[rank], name=LOOPS[rank]) as reader:
        if LOOPS[rank] == "recv":
            took = [time.monotonic_ns() - sent for sent in reader]
        elif LOOPS[rank] == "arecv_asyncio":
            took = asyncio.run(in_a_loop())
        else:
            loop = importlib.import_module("uvloop").new_event_loop()
            took = loop.run_until_complete(in_a_loop())
            loop.close()
        pipe.send((took, reader.stats().sleeps))


def wakeups(rounds: int) -> Dict[str, Any]:
    """
    slept: the share of the sends before which the receiver in recv() slept; tasks are not counted.
    """
    ways = LOOPS if util.find_spec("uvloop") else LOOPS[:-1]
    found: Dict[str, Any] = {
        "cases": {},
        "left_out": {way: "needs uvloop" for way in LOOPS if way not in ways},
    }
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(ringcast.Writer(1 << 16)) for _ in ways]
        processes = stack.enter_context(
            Processes(len(ways), _sleep, [writer.handle for writer in writers])
        )
        for writer in writers:
            writer.wait_readers(1, DEADLINE)
        for _ in range(rounds + FIRST):
            for writer in writers:
                time.sleep(GAP)
                writer.send(time.monotonic_ns(), DEADLINE)
        for writer in writers:
            writer.close()
        for way, (took, sleeps) in zip(ways, processes.hear()):
            found["cases"][way] = {"p50_us": statistics.median(took[FIRST:]) / 1000}
            if way == "recv":
                found["cases"][way]["slept"] = min(1.0, sleeps / (rounds + FIRST))
    return found


# ---- As a table ----------------------------------------------------------------------------------


def tables(found: Dict[str, Any]) -> List[Table]:
    """A column for each figure, the unit in its name."""
    keys = dict.fromkeys(key for figures in found["cases"].values() for key in figures)
    return [
        (
            "case",
            [(key.replace("_us", ", us").replace("_", " "), key) for key in keys],
            found["cases"],
        )
    ]
