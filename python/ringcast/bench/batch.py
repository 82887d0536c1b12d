# SPDX-License-Identifier: Apache-2.0
"""Small values one by one and in batches, in a stream from one process to another: values per second, from the first
call until the receiver has the last value. The ways take turns."""

import statistics
import time
from typing import Any, Callable, Dict, List, Sequence

import ringcast
from ringcast.bench.harness import Processes, in_turns

BATCH = 256  # values of one call
DEADLINE = 60.0
CASES: Dict[str, Any] = {"bytes-16": b"x" * 16, "bytes-256": b"x" * 256, "str-16": "x" * 16, "int": 1 << 40}


def _receive(rank: int, pipe: Any, handle: str) -> None:
    with ringcast.Reader(handle) as reader:
        while True:
            in_batches, count = pipe.recv()
            if in_batches:
                while count > 0:
                    count -= len(reader.recv_many(DEADLINE))
            else:
                for _ in range(count):
                    reader.recv(DEADLINE)
            pipe.send(None)


def _ways(writer: ringcast.Writer, processes: Processes, value: Any) -> Dict[str, Callable[[int], float]]:
    def way(send: Callable[[], Any], calls: int) -> Callable[[int], float]:
        def measure(rounds: int) -> float:
            processes.tell((calls == 1, rounds * BATCH))
            start = time.perf_counter()
            for _ in range(rounds * calls):
                send()
            processes.hear()
            return rounds * BATCH / (time.perf_counter() - start)

        return measure

    values = [value] * BATCH
    ways = {"send": way(lambda: writer.send(value), BATCH), "send_many": way(lambda: writer.send_many(values), 1)}
    if isinstance(value, bytes):
        ways["send_bytes"] = way(lambda: writer.send_bytes(value), BATCH)
    return ways


def run(names: Sequence[str], seconds: float) -> Dict[str, Any]:
    """Medians of the turns. ratio: send_many's rate to send_bytes', or to send's for what is no bytes."""
    found: Dict[str, Any] = {"batch": BATCH, "cases": {}, "left_out": {}}
    with ringcast.Writer(1 << 20) as writer, Processes(1, _receive, writer.handle) as processes:
        writer.wait_readers(1, DEADLINE)
        for name in names:
            turns: Dict[str, List[float]] = in_turns(_ways(writer, processes, CASES[name]), seconds)
            rates = {f"{way}_per_s": statistics.median(each) for way, each in turns.items()}
            single = rates.get("send_bytes_per_s", rates["send_per_s"])
            found["cases"][name] = {**rates, "ratio": rates["send_many_per_s"] / single}
    return found
