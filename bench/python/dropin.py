# SPDX-License-Identifier: Apache-2.0
"""
From process to process: the drop-ins beside gloo's, vLLM's and SGLang's own broadcasts, and objects
by a ring beside pickle 5 by the same ring. One way is from the call on rank 0 to the moment when
the last of the other ranks has the object, by the clock that the processes of a machine share.

One message at a time. Each receiver drops the object, then answers on a ring of its own; when all
have answered, and the gap that --gap asks for is over (harness.py), rank 0 sends the next message.
That is the same for all ways, and in no figure but the CPU time, which is that of a process with
all its threads. Waits spin and sleep as each way's defaults say; those of the ring of objects spin
for SPIN_OF_OBJECTS seconds before they sleep.

Each rank has a CPU of its own where there are enough. Kernels of virtual machines may pack
processes that sleep most of the time onto one CPU, on which a receiver can run only when the source
sleeps; and which processes are packed changes from second to second.

A stream of objects is sent without answers, and counted where the objects arrive, from the first to
the last.
"""

import contextlib
import functools
import gc
import os
import statistics
import tempfile
import time
from importlib import util
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import ringcast

from bench.python import cases, harness, ways
from bench.python.harness import (
    LIMIT,
    Failed,
    Plan,
    Processes,
    Table,
    in_turns,
    percentile,
    rest_of,
    say,
)

RANKS = (2, 4)
CPUS = sorted(os.sched_getaffinity(0))
# How long the source looks for an answer before it sleeps, where each rank has a CPU: longer than a
# small object takes, so that no receiver waits for a sleeping source; not longer, since on a busy
# machine a spinning source keeps a receiver from the CPU.
SPIN = 100e-6
IN_GROUPS = ("dropin", "cadence")  # commands with a group of torch.distributed
SPIN_OF_OBJECTS = (
    0.01  # of the ring of objects, where each rank has a CPU: far longer than most answers take
)


class Case(NamedTuple):
    value: Callable[[], Any]
    ways: Dict[str, ways.Way]
    ratios: Dict[str, str]  # name of another way: ringcast's way to compare it with
    use: Optional[Callable[[Any], Any]] = (
        None  # run by each receiver before the object counts as had
    )
    stream: bool = False  # measured too


def read_tensors(value: Dict[str, Any]) -> float:
    """Reads each byte of the tensors."""
    return sum(float(item.sum()) for item in value.values() if hasattr(item, "dtype"))


QUEUES: Dict[str, ways.Way] = {"ringcast": ways.ringcast_queue, "vllm": ways.vllm_queue}
GROUPS: Dict[str, ways.Way] = {**QUEUES, "vllm-group": ways.vllm_group_queue}
OBJECTS = {"ringcast-object": ways.ringcast_object, "gloo": ways.gloo_object}
TENSORS: Dict[str, ways.Way] = {
    "ringcast": ways.ringcast_tensor_dict,
    "gloo": ways.gloo_tensor_dict,
}
PYOBJS: Dict[str, ways.Way] = {"ringcast": ways.ringcast_pyobj, "sglang": ways.gloo_pickle}
TO_GROUPS = {"vllm": "ringcast", "vllm-group": "ringcast"}
CASES: Dict[str, Case] = {
    "metadata": Case(
        cases.CASES["metadata"],
        {**QUEUES, **OBJECTS, "ring": ways.ring},
        {"gloo": "ringcast-object", "vllm": "ringcast", "ring": "ringcast-object"},
    ),
    "scheduler-256": Case(cases.CASES["scheduler-256"], QUEUES, {"vllm": "ringcast"}),
    "tensor-dict": Case(cases.CASES["tensor-dict"], TENSORS, {"gloo": "ringcast"}),
    "features": Case(cases.CASES["features"], GROUPS, TO_GROUPS),
    # ringcast's receivers get a tensor without a copy; these receivers read every byte.
    "features-read": Case(cases.CASES["features"], GROUPS, TO_GROUPS, read_tensors),
    "pyobj": Case(lambda: [cases.metadata()], PYOBJS, {"sglang": "ringcast"}),
}
RINGS: Dict[str, ways.Way] = {"ringcast": ways.ring, "pickle": ways.ring_of_pickles}
BY_RING = {
    name: Case(value, RINGS, {"pickle": "ringcast"}, stream=True)
    for name, value in cases.CASES.items()
    if name in cases.ON_RINGS
}
BY_CADENCE: Dict[str, ways.Way] = {
    **QUEUES,
    "vllm-2ms": ways.vllm_queue_of_2_ms,
    "pipes": ways.pipes,
}
CADENCE = {"metadata": Case(cases.CASES["metadata"], BY_CADENCE, {})}
# What each command measures.
COMMANDS = {"dropin": CASES, "object": BY_RING}


# ---- A rank --------------------------------------------------------------------------------------


def send_all(
    send: ways.Call,
    answers: Sequence[Callable[[], Any]],
    value: Any,
    rounds: int,
    rest: Optional[Callable[[], None]] = None,
) -> List[int]:
    now = time.monotonic_ns
    begun = []
    for answer in answers:
        answer()  # the receiver is ready
    for _ in range(rounds):
        if rest:
            rest()
        start = now()
        send(value)
        begun.append(start)
        for answer in answers:
            answer()
    return begun


def receive_all(
    receive: ways.Call,
    use: Optional[Callable[[Any], Any]],
    answer: Callable[[Any], None],
    rounds: int,
    rest: Optional[Callable[[], None]] = None,
) -> List[int]:
    now = time.monotonic_ns
    had, got = [], None
    answer(None)
    for _ in range(rounds):
        if rest:
            rest()
        got = receive()
        if use is not None:
            use(got)
        had.append(now())
        got = None
        answer(None)
    del got
    return had


def await_among_many(reader: ringcast.Reader) -> Any:
    """With too few CPUs the source must not keep a receiver from running; nor sleep, for the first
    answer would then wake the source, in the way of the other receivers."""
    while True:
        try:
            return reader.recv(0)
        except TimeoutError:
            os.sched_yield()


def pour(send: ways.Call, value: Any, rounds: int) -> float:
    for _ in range(rounds):
        send(value)
    return 0.0


def drain(receive: ways.Call, rounds: int) -> float:
    """Objects a second."""
    receive()
    start = time.perf_counter()
    for _ in range(rounds - 1):
        receive()
    return (rounds - 1) / (time.perf_counter() - start)


class Rank:
    """
    A rank: the pipe names the methods. Each rank has a ring to the others: rank 0 for objects, the
    others for answers.
    """

    def __init__(
        self, rank: int, ranks: int, store: str, command: str, vllm: Optional[str]
    ) -> None:
        self.rank, self.cases = rank, CADENCE if command == "cadence" else COMMANDS[command]
        self.oversubscribed = ranks > len(CPUS)
        os.sched_setaffinity(0, CPUS if self.oversubscribed else {CPUS[rank]})
        self.spin = None if self.oversubscribed else SPIN_OF_OBJECTS
        # Beside a drop-in the ring waits as the drop-in does.
        self.waits: Dict[str, Any] = (
            {"wait": "latency"} if command in IN_GROUPS else {"spin": self.spin}
        )
        self.writer = ringcast.Writer(1 << 16) if rank else ringcast.Writer(**self.waits)
        self.member = ways.Member(
            rank, ranks, harness.join(rank, ranks, store) if command in IN_GROUPS else None, vllm
        )
        self.calls: Dict[Any, ways.Call] = {}
        self.rest: Optional[Callable[[], None]] = None

    def prepare(self, handles: List[str], plan: Plan) -> None:
        if self.rank:
            self.member = self.member._replace(ring=ringcast.Reader(handles[0], **self.waits))
        else:
            self.member = self.member._replace(ring=self.writer)
            self.answers = [
                self.answer(ringcast.Reader(handle, spin=SPIN)) for handle in handles[1:]
            ]
        self.writer.wait_readers(1 if self.rank else len(handles) - 1, LIMIT)
        self.pace(plan)

    def pace(self, plan: Plan) -> None:
        self.rest = rest_of(plan, source=self.rank == 0)

    def answer(self, reader: ringcast.Reader) -> Callable[[], Any]:
        return functools.partial(await_among_many, reader) if self.oversubscribed else reader.recv

    def take(self, name: str, chosen: List[str]) -> Dict[str, str]:
        """Prepares a case, and passes its value once by each way. Returns why ways are left out."""
        self.case, left_out = self.cases[name], {}
        self.value = self.case.value()
        for way in chosen:
            make = self.case.ways[way]
            try:
                call = self.calls[make] = self.calls.get(make) or make(self.member)
            except cases.LeftOut as why:
                left_out[way] = str(why)
                continue
            got = call() if self.rank else call(self.value)
            if self.rank and not cases.same(got, self.value):
                raise Failed(f"{name}, {way}: what arrived is not what was sent")
        return left_out

    def run(self, way: str, rounds: int) -> Tuple[List[int], float]:
        """The time of each send, or arrival, and the CPU's microseconds for a message, a rest
        included."""
        call = self.calls[self.case.ways[way]]
        start = time.process_time()
        if self.rank:
            times = receive_all(call, self.case.use, self.writer.send, rounds, self.rest)
        else:
            times = send_all(call, self.answers, self.value, rounds, self.rest)
        return times, (time.process_time() - start) * 1e6 / rounds

    def stream(self, way: str, rounds: int) -> float:
        call = self.calls[self.case.ways[way]]
        return drain(call, rounds) if self.rank else pour(call, self.value, rounds)

    def end(self) -> None:
        if self.member.group:
            import torch.distributed as dist

            self.calls.clear()
            gc.collect()
            dist.destroy_process_group()


def serve(rank: int, pipe: Any, ranks: int, store: str, command: str, vllm: Optional[str]) -> None:
    served = Rank(rank, ranks, store, command, vllm)
    pipe.send(served.writer.handle)
    harness.serve(served, pipe)


@contextlib.contextmanager
def all_ranks(
    count: int, plan: Plan, command: str, vllm: Optional[str] = None
) -> Iterator[Processes]:
    with tempfile.TemporaryDirectory() as folder:
        with Processes(count, serve, count, os.path.join(folder, "store"), command, vllm) as ranks:
            ranks.ask(("prepare", ranks.hear(), plan))
            yield ranks


# ---- Figures -------------------------------------------------------------------------------------


class Turn(NamedTuple):
    spans: List[int]  # ns of each counted message
    cpu_us: List[float]  # a message, by rank
    period_us: float  # from a message to the next


def spans(turn: List[Tuple[List[int], float]]) -> List[int]:
    """How long each message took, from the times of all ranks."""
    begun, *had = [times for times, _ in turn]
    return [max(ends) - start for start, *ends in zip(begun, *had)]


def uncounted(rounds: int) -> int:
    return 1 + rounds // 10  # in the first rounds the caches still hold other data


def turn(ranks: Processes, way: str, rounds: int) -> Turn:
    told = ranks.ask(("run", way, rounds + uncounted(rounds)))
    begun = told[0][0]
    period = (begun[-1] - begun[0]) / (len(begun) - 1) / 1e3
    return Turn(spans(told)[uncounted(rounds) :], [cpu for _, cpu in told], period)


def take(ranks: Processes, name: str, case: Case) -> Tuple[List[str], Dict[str, str]]:
    """The ways of the case that all ranks have made, and why the others are left out."""
    told = ranks.ask(("take", name, list(case.ways)))
    left_out = {way: why for of_rank in told for way, why in of_rank.items()}
    return [way for way in case.ways if way not in left_out], left_out


def measure(
    ranks: Processes, name: str, case: Case, chosen: List[str], seconds: float, gap: float
) -> Dict[str, Any]:
    def stream(which: str, rounds: int) -> float:
        return min(ranks.ask(("stream", which, rounds + uncounted(rounds)))[1:])  # type: ignore[no-any-return]

    turned: Dict[str, Callable[[int], Any]] = {
        which: functools.partial(turn, ranks, which) for which in chosen
    }
    if case.stream and not gap:  # a stream has no gaps
        turned.update({f"{which} stream": functools.partial(stream, which) for which in chosen})
    turns = in_turns(turned, seconds, gap)
    found = figures({which: turns[which] for which in chosen}, case.ratios)
    for which in chosen:
        if f"{which} stream" in turns:
            rate = statistics.median(turns[f"{which} stream"])
            found["ways"][which]["objects_per_s"] = rate
            if name in cases.WITH_TENSORS:
                found["ways"][which]["gb_per_s"] = rate * cases.tensor_bytes(case.value()) / 1e9
    return {"name": name, "ranks": ranks.count, **found}


def figures(turns: Dict[str, List[Turn]], ratios: Dict[str, str]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name, results in turns.items():
        taken = [span for result in results for span in result.spans]
        found[name] = {
            "p50_us": statistics.median(taken) / 1e3,
            "p99_us": percentile(taken, 0.99) / 1e3,
            "cpu_us": [
                statistics.median(of_rank)
                for of_rank in zip(*(result.cpu_us for result in results))
            ],
            "messages": len(taken),
        }
    return {
        "ways": found,
        "ratios": {
            other: found[ours]["p50_us"] / found[other]["p50_us"] if other in found else None
            for other, ours in ratios.items()
        },
    }


def check(vllm: Optional[str]) -> Optional[str]:
    """The folder with vLLM's source."""
    if util.find_spec("torch") is None:
        raise Failed("dropin needs torch, which is not installed here: pip install torch")
    if vllm is not None:
        vllm = os.path.abspath(vllm)
        if not os.path.isfile(os.path.join(vllm, *ways.VLLM_QUEUE.split(".")) + ".py"):
            raise Failed(
                f"--vllm takes the folder of an unpacked vLLM, with vllm/ in it, and {vllm!r} is "
                f"none"
            )
    return vllm


def run(
    command: str,
    chosen: Sequence[str],
    sizes: Sequence[int],
    seconds: float,
    plan: Plan,
    vllm: Optional[str] = None,
) -> Dict[str, Any]:
    """The figures of each case with each number of ranks, and the reasons why some are left out."""
    vllm = check(vllm) if command == "dropin" else None
    found: List[Dict[str, Any]] = []
    there, left_out = cases.there(chosen) if command != "dropin" else (chosen, {})
    for size in sizes:
        with all_ranks(size, plan, command, vllm) as ranks:
            for name in there:
                say(f"{command} {name}, {size} ranks")
                case = COMMANDS[command][name]
                ways_there, without = take(ranks, name, case)
                left_out.update(without)
                found.append(measure(ranks, name, case, ways_there, seconds, plan.gap))
    found.sort(key=lambda each: chosen.index(each["name"]))
    return {"cases": found, "left_out": left_out}


def tables(found: Dict[str, Any]) -> List[Table]:
    rows = {
        f"{case['name']}, {case['ranks']} ranks: {way}": {
            **measured,
            "cpu_source_us": measured["cpu_us"][0],
            "cpu_reader_us": statistics.mean(measured["cpu_us"][1:]),
            "ratio": case["ratios"].get(way),
        }
        for case in found["cases"]
        for way, measured in case["ways"].items()
    }
    columns = [
        ("p50, us", "p50_us"),
        ("p99", "p99_us"),
        ("CPU of the source, us", "cpu_source_us"),
        ("of a reader", "cpu_reader_us"),
        ("ratio", "ratio"),
    ]
    optional = [("objects/s", "objects_per_s"), ("GB/s", "gb_per_s")]
    columns += [
        column for column in optional if any(column[1] in figures for figures in rows.values())
    ]
    return [("case", columns, rows)]
