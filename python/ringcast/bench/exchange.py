# SPDX-License-Identifier: Apache-2.0
"""From object to object between two processes, by two rings, one for each direction.

One way is half of a round trip: from the call of send() to the moment when recv() has given the object, and the same
back. Both sides send the same value, each its own, and drop a received object while the other side works. Beside it, in
turns and on the same rings: pickle.dumps, send_bytes, recv, pickle.loads, in two functions, so that pickle pays for two
calls of a function more; and dumps and loads alone, in one process. A stream is counted where it arrives, from the
first object to the last one, without answers. Each process has a CPU of its own, where there are two, and its waits
spin for SPIN seconds before they sleep.
"""

import contextlib
import os
import pickle
import statistics
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import ringcast
from ringcast.bench import cases, codec
from ringcast.bench.harness import Plan, Processes, in_turns, percentile, rest_of

SPIN = 0.01  # far longer than an answer takes, but for the largest

Rest = Optional[Callable[[], None]]  # between two messages
Ends = Tuple[Callable[[Any], Any], Callable[[], Any]]  # sends an object; receives an object
Loop = Callable[[ringcast.Writer, ringcast.Reader, Any, int, Rest], Any]


def plain(writer: ringcast.Writer, reader: ringcast.Reader) -> Ends:
    return writer.send, reader.recv


def pickled(writer: ringcast.Writer, reader: ringcast.Reader) -> Ends:
    send_bytes, recv, dumps, loads = writer.send_bytes, reader.recv, pickle.dumps, pickle.loads
    return lambda value: send_bytes(dumps(value, 5)), lambda: loads(recv())


# ---- Loops: the first argument makes the two ends --------------------------------------------------------------------


def ask(ends: Callable[..., Ends], writer: Any, reader: Any, value: Any, rounds: int, rest: Rest) -> List[int]:
    (send, recv), now = ends(writer, reader), time.perf_counter_ns
    taken, got = [], None
    for _ in range(rounds):
        if rest:
            rest()
        start = now()
        send(value)
        got = None
        got = recv()
        taken.append(now() - start)
    del got
    return taken


def answer(ends: Callable[..., Ends], writer: Any, reader: Any, value: Any, rounds: int, rest: Rest) -> None:
    (send, recv), got = ends(writer, reader), None
    for _ in range(rounds):
        got = recv()
        send(value)
        got = None
        if rest:
            rest()
    del got


def pour(ends: Callable[..., Ends], writer: Any, reader: Any, value: Any, rounds: int, rest: Rest) -> float:
    send, _ = ends(writer, reader)
    for _ in range(rounds):
        send(value)
    return reader.recv()  # type: ignore[no-any-return]


def drain(ends: Callable[..., Ends], writer: Any, reader: Any, value: Any, rounds: int, rest: Rest) -> None:
    _, recv = ends(writer, reader)
    recv()
    start = time.perf_counter()
    for _ in range(rounds - 1):
        recv()
    writer.send((rounds - 1) / (time.perf_counter() - start))


# The loop of this process, and the other process's loop.
LOOPS: Dict[str, Tuple[Loop, Loop]] = {
    "ringcast": (partial(ask, plain), partial(answer, plain)),
    "pickle": (partial(ask, pickled), partial(answer, pickled)),
    "ringcast stream": (partial(pour, plain), partial(drain, plain)),
    "pickle stream": (partial(pour, pickled), partial(drain, pickled)),
}


# ---- The two processes -----------------------------------------------------------------------------------------------


def serve(rank: int, pipe: Any, handle: str, cpu: Optional[int], spin: Optional[float], plan: Plan) -> None:
    """Runs what the pipe says, (loop's name, rounds) or (case's name, None), until the pipe is closed."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    value, rest = None, rest_of(plan, source=False)
    with ringcast.Reader(handle, spin=spin) as reader, ringcast.Writer(spin=spin) as writer:
        pipe.send(writer.handle)
        while True:
            name, rounds = pipe.recv()
            if rounds is None:
                value = cases.CASES[name]()
            writer.send(None)  # ready: from here on both are awake
            if rounds is not None:
                LOOPS[name][1](writer, reader, value, rounds, rest)


class Pair:
    """This process and another one, with a ring each way."""

    def __init__(self, plan: Plan = Plan()) -> None:
        self.plan, self.rest = plan, rest_of(plan, source=True)

    def __enter__(self) -> "Pair":
        allowed = os.sched_getaffinity(0)
        pair = sorted(allowed)[:2]
        self.cpus: List[Optional[int]] = [*pair] if len(pair) == 2 else [None, None]
        self.spin = SPIN if len(pair) == 2 else None
        with contextlib.ExitStack() as stack:
            stack.callback(os.sched_setaffinity, 0, allowed)
            self.writer = stack.enter_context(ringcast.Writer(spin=self.spin))
            arguments = (self.writer.handle, self.cpus[1], self.spin, self.plan)
            self.processes = stack.enter_context(Processes(1, serve, *arguments))
            (handle,) = self.processes.hear()
            self.reader = stack.enter_context(ringcast.Reader(handle, spin=self.spin))
            if self.cpus[0] is not None:
                os.sched_setaffinity(0, {self.cpus[0]})
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def tell(self, name: str, rounds: Optional[int]) -> ringcast.Reader:
        """Returns the reader of the other process's answers once the other process is about to begin."""
        self.processes.tell((name, rounds))
        self.reader.recv()
        return self.reader

    def facts(self) -> Dict[str, Any]:
        info = self.writer.info()
        return {
            "cpus": self.cpus,
            "spin_s": self.spin,
            "ring_bytes": info.capacity,
            "ring_memory": info.memory,
        }

    def measure(self, name: str, value: Any, seconds: float) -> Dict[str, Any]:
        self.tell(name, None)

        def way(loop: str) -> Callable[[int], Any]:
            def run(rounds: int) -> Any:
                more = 1 + rounds // 10  # in the first rounds the caches still hold other data
                reader = self.tell(loop, rounds + more)
                result = LOOPS[loop][0](self.writer, reader, value, rounds + more, self.rest)
                return result[more:] if isinstance(result, list) else result

            return run

        # A stream has no gaps.
        loops = [loop for loop in LOOPS if not (self.rest and "stream" in loop)]
        ways: Dict[str, Callable[[int], Any]] = {loop: way(loop) for loop in loops}
        ways["alone"] = partial(codec.run, "pickle", "encode_decode_us", value)
        return figures(value, in_turns(ways, seconds))


# ---- Figures ---------------------------------------------------------------------------------------------------------


def figures(value: Any, turns: Dict[str, List[Any]]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    tensor_bytes = cases.tensor_bytes(value)
    for name, data in (("ringcast", ringcast.pack(value).nbytes), ("pickle", len(pickle.dumps(value, 5)))):
        trips = [taken for turn in turns[name] for taken in turn]
        found[name] = {
            "one_way_p50_us": statistics.median(trips) / 2e3,
            "one_way_p99_us": percentile(trips, 0.99) / 2e3,
            "bytes": data,
        }
        if f"{name} stream" in turns:
            found[name]["objects_per_s"] = statistics.median(turns[f"{name} stream"])
            if tensor_bytes:
                found[name]["gb_per_s"] = found[name]["objects_per_s"] * tensor_bytes / 1e9
        found[name]["round_trips"] = len(trips)
    found["pickle_alone"] = {"dumps_loads_us": statistics.median(turns["alone"]) * 1e6}
    one_way = found["ringcast"]["one_way_p50_us"]
    found["ratio"] = {
        "one_way": one_way / found["pickle"]["one_way_p50_us"],
        "to_pickle_alone": one_way / found["pickle_alone"]["dumps_loads_us"],
    }
    if tensor_bytes:
        found["tensor_bytes"] = tensor_bytes
    return found
