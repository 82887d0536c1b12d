# SPDX-License-Identifier: Apache-2.0
"""From object to object between two processes, by two rings, one for each direction.

One way is half of a round trip: from the call of send() to the moment when recv() has given the object, and the same
back. Both sides send the same value, each its own, and drop what they received while the other one works. Beside it, in
turns and on the same rings: pickle.dumps, send_bytes, recv, pickle.loads; and dumps and loads alone, in one process. A
stream is counted where it arrives, from the first object to the last one; nobody answers. Each process has a CPU of its
own, where there are two, and its waits spin for SPIN seconds before they sleep.
"""

import multiprocessing
import os
import pickle
import statistics
import time
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Type

import ringcast
from ringcast.bench import cases, cold
from ringcast.bench.turns import Failed, in_turns

SPIN = 0.01  # far longer than an answer takes, but for the largest
ATTACH = 60.0  # seconds

Rest = Optional[Callable[[], None]]  # between two messages
Loop = Callable[[ringcast.Writer, ringcast.Reader, Any, int, Rest], Any]


# ---- Loops: what is called has a loop of its own for each way, so that none pays for a call that the other has not ---


def ask(writer: ringcast.Writer, reader: ringcast.Reader, value: Any, rounds: int, rest: Rest) -> List[int]:
    send, recv, now = writer.send, reader.recv, time.perf_counter_ns
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


def answer(writer: ringcast.Writer, reader: ringcast.Reader, value: Any, rounds: int, rest: Rest) -> None:
    send, recv, got = writer.send, reader.recv, None
    for _ in range(rounds):
        got = recv()
        send(value)
        got = None
        if rest:
            rest()
    del got


def ask_pickle(writer: ringcast.Writer, reader: ringcast.Reader, value: Any, rounds: int, rest: Rest) -> List[int]:
    send_bytes, recv, now = writer.send_bytes, reader.recv, time.perf_counter_ns
    dumps, loads = pickle.dumps, pickle.loads
    taken, got = [], None
    for _ in range(rounds):
        if rest:
            rest()
        start = now()
        send_bytes(dumps(value, 5))
        got = None
        got = loads(recv())
        taken.append(now() - start)
    del got
    return taken


def answer_pickle(writer: ringcast.Writer, reader: ringcast.Reader, value: Any, rounds: int, rest: Rest) -> None:
    send_bytes, recv, got = writer.send_bytes, reader.recv, None
    dumps, loads = pickle.dumps, pickle.loads
    for _ in range(rounds):
        got = loads(recv())
        send_bytes(dumps(value, 5))
        got = None
        if rest:
            rest()
    del got


def pour(writer: ringcast.Writer, reader: ringcast.Reader, value: Any, rounds: int, rest: Rest) -> float:
    send = writer.send
    for _ in range(rounds):
        send(value)
    return reader.recv()  # type: ignore[no-any-return]


def drain(writer: ringcast.Writer, reader: ringcast.Reader, value: Any, rounds: int, rest: Rest) -> None:
    recv = reader.recv
    recv()
    start = time.perf_counter()
    for _ in range(rounds - 1):
        recv()
    writer.send((rounds - 1) / (time.perf_counter() - start))


def pour_pickle(writer: ringcast.Writer, reader: ringcast.Reader, value: Any, rounds: int, rest: Rest) -> float:
    send_bytes, dumps = writer.send_bytes, pickle.dumps
    for _ in range(rounds):
        send_bytes(dumps(value, 5))
    return reader.recv()  # type: ignore[no-any-return]


def drain_pickle(writer: ringcast.Writer, reader: ringcast.Reader, value: Any, rounds: int, rest: Rest) -> None:
    recv, loads = reader.recv, pickle.loads
    loads(recv())
    start = time.perf_counter()
    for _ in range(rounds - 1):
        loads(recv())
    writer.send((rounds - 1) / (time.perf_counter() - start))


def alone(value: Any, rounds: int) -> float:
    dumps, loads = pickle.dumps, pickle.loads
    start = time.perf_counter()
    for _ in range(rounds):
        loads(dumps(value, 5))
    return (time.perf_counter() - start) / rounds


# What this process does, and what the other one does meanwhile.
LOOPS: Dict[str, Tuple[Loop, Loop]] = {
    "ringcast": (ask, answer),
    "pickle": (ask_pickle, answer_pickle),
    "ringcast stream": (pour, drain),
    "pickle stream": (pour_pickle, drain_pickle),
}


# ---- The other process -----------------------------------------------------------------------------------------------


def serve(handle: str, pipe: Connection, cpu: Optional[int], spin: Optional[float], plan: cold.Plan) -> None:
    """Does as the pipe says, (loop's name, rounds) or (case's name, None), until it is closed."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    value, rest = None, cold.rest_of(plan, source=False)
    try:
        with ringcast.Reader(handle, spin=spin) as reader, ringcast.Writer(spin=spin) as writer:
            pipe.send(writer.handle)
            while True:
                name, rounds = pipe.recv()
                if rounds is None:
                    value = cases.CASES[name]()
                writer.send(None)  # ready: from here on both are awake
                if rounds is not None:
                    LOOPS[name][1](writer, reader, value, rounds, rest)
    except (EOFError, KeyboardInterrupt, ringcast.WriterGone):
        return


class Pair:
    """This process and another one, with a ring each way."""

    def __init__(self, plan: cold.Plan = cold.Plan()) -> None:
        self.plan, self.rest = plan, cold.rest_of(plan, source=True)

    def __enter__(self) -> "Pair":
        self.allowed: Set[int] = os.sched_getaffinity(0)
        pair = sorted(self.allowed)[:2]
        self.cpus: List[Optional[int]] = [*pair] if len(pair) == 2 else [None, None]
        self.spin = SPIN if len(pair) == 2 else None
        self.writer = ringcast.Writer(spin=self.spin)
        self.reader: Optional[ringcast.Reader] = None
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (self.writer.handle, theirs, self.cpus[1], self.spin, self.plan)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        try:
            self.process.start()
            theirs.close()
            self.reader = ringcast.Reader(self.answer(), spin=self.spin)
            if self.cpus[0] is not None:
                os.sched_setaffinity(0, {self.cpus[0]})
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]],
        exception: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        os.sched_setaffinity(0, self.allowed)
        self.pipe.close()
        self.writer.close()
        if self.reader:
            self.reader.close()
        if self.process.pid:
            self.process.join()
            self.process.close()

    def answer(self) -> str:
        try:
            if self.pipe.poll(ATTACH):
                return self.pipe.recv()  # type: ignore[no-any-return]
        except EOFError:
            raise Failed("the other process ended before it had attached; if it said why, that is above") from None
        raise Failed(f"the other process did not attach within {ATTACH:.0f} s")

    def tell(self, name: str, rounds: Optional[int]) -> ringcast.Reader:
        """Has the other process do it, and gives what it answers on, when it is about to begin."""
        assert self.reader
        try:
            self.pipe.send((name, rounds))
        except OSError:
            raise Failed("the other process has ended; if it said why, that is above") from None
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
                more = 1 + rounds // 10  # in the first ones the caches still hold something else
                reader = self.tell(loop, rounds + more)
                result = LOOPS[loop][0](self.writer, reader, value, rounds + more, self.rest)
                return result[more:] if isinstance(result, list) else result

            return run

        # A stream has no gaps.
        loops = [loop for loop in LOOPS if not (self.rest and "stream" in loop)]
        ways: Dict[str, Callable[[int], Any]] = {loop: way(loop) for loop in loops}
        ways["alone"] = lambda rounds: alone(value, rounds)
        return figures(value, in_turns(ways, seconds))


# ---- Figures ---------------------------------------------------------------------------------------------------------


def percentile(values: List[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


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
