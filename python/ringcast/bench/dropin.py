# SPDX-License-Identifier: Apache-2.0
"""The drop-ins beside gloo's, vLLM's and SGLang's own broadcasts: from the call on rank 0 to the moment when the last
of the other ranks has the object, by the clock that the processes of a machine share.

One message at a time. Each receiver drops the object, then answers on a ring of its own; when all have answered, and
the gap that --gap asks for is over (ringcast.bench.harness), rank 0 sends the next message. That is the same for all
ways, and in no figure but the CPU time, which is that of a process with all its threads. Waits spin and sleep as each
way's defaults say. All ranks run from the start; a smaller group is made of some ranks, and the other ranks sleep.

Each rank has a CPU of its own where there are enough. Kernels of virtual machines may pack processes that sleep most of
the time onto one CPU, on which a receiver can run only when the source sleeps; and which processes are packed changes
from second to second.
"""

import contextlib
import datetime
import functools
import gc
import os
import statistics
import tempfile
import time
from importlib import util
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import ringcast
from ringcast.bench import cases, report, ways
from ringcast.bench.harness import LIMIT, Failed, Plan, Processes, in_turns, percentile, rest_of

RANKS = (2, 4)
CPUS = sorted(os.sched_getaffinity(0))
# How long the source looks for an answer before it sleeps, where each rank has a CPU: longer than a small object takes,
# so that no receiver waits for a sleeping source; not longer, since on a busy machine a spinning source keeps a
# receiver from the CPU.
SPIN = 100e-6


class Case(NamedTuple):
    value: Callable[[], Any]
    ways: Dict[str, ways.Way]
    ratios: Dict[str, str]  # name of another way: ringcast's way to compare it with
    use: Optional[Callable[[Any], Any]] = None  # run by each receiver before the object counts as had


def read_tensors(value: Dict[str, Any]) -> float:
    """Reads each byte of the tensors."""
    return sum(float(item.sum()) for item in value.values() if hasattr(item, "dtype"))


QUEUES: Dict[str, ways.Way] = {"ringcast": ways.ringcast_queue, "vllm": ways.vllm_queue}
GROUPS: Dict[str, ways.Way] = {**QUEUES, "vllm-group": ways.vllm_group_queue}
OBJECTS = {"ringcast-object": ways.ringcast_object, "gloo": ways.gloo_object}
TENSORS: Dict[str, ways.Way] = {"ringcast": ways.ringcast_tensor_dict, "gloo": ways.gloo_tensor_dict}
PYOBJS: Dict[str, ways.Way] = {"ringcast": ways.ringcast_pyobj, "sglang": ways.gloo_pickle}
TO_GROUPS = {"vllm": "ringcast", "vllm-group": "ringcast"}
CASES: Dict[str, Case] = {
    "metadata": Case(cases.CASES["metadata"], {**QUEUES, **OBJECTS}, {"gloo": "ringcast-object", "vllm": "ringcast"}),
    "scheduler-256": Case(cases.CASES["scheduler-256"], QUEUES, {"vllm": "ringcast"}),
    "tensor-dict": Case(cases.CASES["tensor-dict"], TENSORS, {"gloo": "ringcast"}),
    "features": Case(cases.CASES["features"], GROUPS, TO_GROUPS),
    # ringcast's receivers get a tensor without a copy; these receivers read every byte.
    "features-read": Case(cases.CASES["features"], GROUPS, TO_GROUPS, read_tensors),
    "pyobj": Case(lambda: [cases.metadata()], PYOBJS, {"sglang": "ringcast"}),
}


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; tensors too, whose == gives a tensor."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if hasattr(one, "dtype"):
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    return bool(one == other)


# ---- A rank ----------------------------------------------------------------------------------------------------------


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
    """With too few CPUs the source must not keep a receiver from running; nor sleep, for the first answer would then
    wake the source, in the way of the other receivers."""
    while True:
        try:
            return reader.recv(0)
        except TimeoutError:
            os.sched_yield()


class Team:
    """This rank's part in the group of the first `ranks` ones."""

    def __init__(self, me: ways.Member) -> None:
        import torch.distributed as dist

        self.me = me
        self.calls: Dict[Any, ways.Call] = {}
        self.oversubscribed = me.ranks > len(CPUS)
        self.writer = ringcast.Writer(1 << 16) if me.rank else None
        handles: List[Any] = [None] * me.ranks
        dist.all_gather_object(handles, self.writer.handle if self.writer else None, me.group)
        self.readers = [] if me.rank else [ringcast.Reader(handle, spin=SPIN) for handle in handles[1:]]
        if self.writer:
            self.writer.wait_readers(1, LIMIT)

    def run(
        self, call: ways.Call, case: Case, value: Any, rounds: int, rest: Optional[Callable[[], None]]
    ) -> Tuple[List[int], float]:
        """The time of each send, or arrival, and the CPU's microseconds for a message, a rest included."""
        start = time.process_time()
        if self.writer:
            times = receive_all(call, case.use, self.writer.send, rounds, rest)
        else:
            times = send_all(call, [self.answer(reader) for reader in self.readers], value, rounds, rest)
        return times, (time.process_time() - start) * 1e6 / rounds

    def answer(self, reader: ringcast.Reader) -> Callable[[], Any]:
        return functools.partial(await_among_many, reader) if self.oversubscribed else reader.recv

    def is_true(self, call: ways.Call, value: Any) -> bool:
        if self.me.rank:
            return same(call(), value)
        call(value)
        return True


class Rank:
    """A rank: the pipe names the methods."""

    def __init__(self, rank: int, most: int, store: str, vllm: Optional[str]) -> None:
        import torch
        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        limit = datetime.timedelta(seconds=LIMIT)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=most, timeout=limit)
        self.rank, self.vllm = rank, vllm
        self.teams: Dict[int, Team] = {}
        self.name, self.value = "", None
        self.rest: Optional[Callable[[], None]] = None

    def prepare(self, plan: Plan) -> None:
        self.rest = rest_of(plan, source=self.rank == 0)

    def look(self) -> Optional[str]:
        """Why vLLM's queue is left out."""
        try:
            ways.vllm_class(self.vllm)
        except cases.LeftOut as why:
            return str(why)
        return None

    def form(self, ranks: int) -> None:
        import torch.distributed as dist

        group = dist.new_group(list(range(ranks)))
        if self.rank < ranks:
            self.teams[ranks] = Team(ways.Member(self.rank, ranks, group, self.vllm))

    def take(self, name: str, ranks: int, chosen: List[str]) -> bool:
        """Prepares a case; returns whether the value arrives unchanged by each of the ways."""
        if self.name != name:
            self.name, self.value = name, CASES[name].value()
        os.sched_setaffinity(0, {CPUS[self.rank]} if ranks <= len(CPUS) else CPUS)
        team, true = self.teams[ranks], True
        for way in chosen:
            make = CASES[name].ways[way]
            if make not in team.calls:
                team.calls[make] = make(team.me)
            true = team.is_true(team.calls[make], self.value) and true
        return true

    def run(self, ranks: int, way: str, rounds: int) -> Tuple[List[int], float]:
        team = self.teams[ranks]
        case = CASES[self.name]
        return team.run(team.calls[case.ways[way]], case, self.value, rounds, self.rest)

    def end(self) -> None:
        import torch.distributed as dist

        self.teams.clear()
        gc.collect()
        dist.destroy_process_group()


def serve(rank: int, pipe: Any, most: int, store: str, vllm: Optional[str]) -> None:
    served = Rank(rank, most, store, vllm)
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            command, *arguments = pipe.recv()
            pipe.send(getattr(served, command)(*arguments))
    served.end()


@contextlib.contextmanager
def all_ranks(most: int, vllm: Optional[str]) -> Iterator[Processes]:
    with tempfile.TemporaryDirectory() as folder:
        with Processes(most, serve, most, os.path.join(folder, "store"), vllm) as ranks:
            ranks.hear()
            yield ranks


# ---- Figures ---------------------------------------------------------------------------------------------------------


def spans(turn: List[Tuple[List[int], float]]) -> List[int]:
    """How long each message took, from the times of all ranks."""
    begun, *had = [times for times, _ in turn]
    return [max(ends) - start for start, *ends in zip(begun, *had)]


def measure(ranks: Processes, name: str, size: int, chosen: List[str], seconds: float, gap: float) -> Dict[str, Any]:
    if not all(ranks.ask(("take", name, size, chosen), size)):
        raise Failed(f"{name}, {size} ranks: what arrived is not what was sent")

    def way(which: str) -> Callable[[int], Any]:
        def run(rounds: int) -> Any:
            more = 1 + rounds // 10  # in the first rounds the caches still hold other data
            turn = ranks.ask(("run", size, which, rounds + more), size)
            return spans(turn)[more:], [cpu for _, cpu in turn]

        return run

    turns = in_turns({which: way(which) for which in chosen}, seconds, gap)
    return {"name": name, "ranks": size, **figures(turns, CASES[name].ratios)}


def figures(turns: Dict[str, List[Tuple[List[int], List[float]]]], ratios: Dict[str, str]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name, results in turns.items():
        taken = [span for turn, _ in results for span in turn]
        found[name] = {
            "p50_us": statistics.median(taken) / 1e3,
            "p99_us": percentile(taken, 0.99) / 1e3,
            "cpu_us": [statistics.median(of_rank) for of_rank in zip(*(cpu for _, cpu in results))],
            "messages": len(taken),
        }
    return {
        "ways": found,
        "ratios": {
            other: found[ours]["p50_us"] / found[other]["p50_us"] if other in found else None
            for other, ours in ratios.items()
        },
    }


def run(
    chosen: Sequence[str],
    sizes: Sequence[int],
    seconds: float,
    plan: Plan = Plan(),
    vllm: Optional[str] = None,
) -> Dict[str, Any]:
    """The figures of each case with each number of ranks, and the reason if vLLM's queue is left out."""
    if util.find_spec("torch") is None:
        raise Failed("dropin needs torch, which is not installed here: pip install torch")
    if vllm is not None:
        vllm = os.path.abspath(vllm)
        if not os.path.isfile(os.path.join(vllm, *ways.VLLM_QUEUE.split(".")) + ".py"):
            raise Failed(f"--vllm takes the folder of an unpacked vLLM, with vllm/ in it, and {vllm!r} is none")
    found: Dict[str, Any] = {"cases": [], "left_out": {}}
    with all_ranks(max(sizes), vllm) as ranks:
        its = [way for way in ("vllm", "vllm-group") if any(way in CASES[name].ways for name in chosen)]
        if its:
            report.say("dropin: looking for vLLM's queue")
            why = [reason for reason in ranks.ask(("look",)) if reason]
            found["left_out"] = dict.fromkeys(its, why[0]) if why else {}
        ranks.ask(("prepare", plan))
        for size in sizes:
            ranks.ask(("form", size))
        for name in chosen:
            there = [way for way in CASES[name].ways if way not in found["left_out"]]
            for size in sizes:
                report.say(f"dropin {name}, {size} ranks")
                found["cases"].append(measure(ranks, name, size, there, seconds, plan.gap))
    return found


def rows(found: Sequence[Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """A row of the table for each way."""
    return {
        f"{case['name']}, {case['ranks']} ranks: {way}": {
            **measured,
            "cpu_source_us": measured["cpu_us"][0],
            "cpu_reader_us": statistics.mean(measured["cpu_us"][1:]),
            "ratio": case["ratios"].get(way),
        }
        for case in found
        for way, measured in case["ways"].items()
    }
