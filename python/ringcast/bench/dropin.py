# SPDX-License-Identifier: Apache-2.0
"""The drop-ins beside what they stand in for: from the call on rank 0 to the moment when the last of the other ranks
has the object, by the clock that the processes of a machine share.

One message at a time. Each receiver drops what it got, then answers on a ring of its own; when all have answered, and
the gap that was asked for is over (ringcast.bench.cold), the next one is sent. That is the same for all ways, and in no
figure but the CPU time, which is that of a process with all its threads. Waits spin and sleep as each way sees fit, and
no process is put on a CPU. All ranks are there from the start; a smaller group is made of some of them, and the others
sleep.
"""

import contextlib
import datetime
import functools
import gc
import multiprocessing
import multiprocessing.connection
import os
import statistics
import tempfile
import time
import traceback
from importlib import util
from types import TracebackType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

import ringcast
from ringcast.bench import cases, cold, report, ways
from ringcast.bench.exchange import percentile
from ringcast.bench.turns import Failed, in_turns

RANKS = (2, 4)
# How long the source looks for an answer before it sleeps, where each rank has a CPU: longer than what is small takes,
# so that no receiver waits for a source that is to be woken; not longer, since on a busy machine it keeps out the
# receiver.
SPIN = 100e-6
START = 300.0  # seconds: importing vLLM takes some, on each rank


class Case(NamedTuple):
    value: Callable[[], Any]
    ways: Dict[str, Callable[[ways.Member], ways.Call]]
    ratios: Dict[str, str]  # of which way to which: the other one's name, then ringcast's
    use: Optional[Callable[[Any], Any]] = None  # what each receiver does with the object before it counts as had


def read_tensors(value: Dict[str, Any]) -> float:
    """Each byte of them."""
    return sum(float(item.sum()) for item in value.values() if hasattr(item, "dtype"))


QUEUES = {"ringcast": ways.ringcast_queue, "vllm": ways.vllm_queue, "vllm-group": ways.vllm_group_queue}
CASES: Dict[str, Case] = {
    "metadata": Case(
        cases.CASES["metadata"],
        {
            "ringcast": ways.ringcast_queue,
            "ringcast-object": ways.ringcast_object,
            "gloo": ways.gloo_object,
            "vllm": ways.vllm_queue,
        },
        {"gloo": "ringcast-object", "vllm": "ringcast"},
    ),
    "scheduler-256": Case(
        cases.CASES["scheduler-256"], {"ringcast": ways.ringcast_queue, "vllm": ways.vllm_queue}, {"vllm": "ringcast"}
    ),
    "tensor-dict": Case(
        cases.CASES["tensor-dict"],
        {"ringcast": ways.ringcast_tensor_dict, "gloo": ways.gloo_tensor_dict},
        {"gloo": "ringcast"},
    ),
    "features": Case(cases.CASES["features"], QUEUES, {"vllm": "ringcast", "vllm-group": "ringcast"}),
    # ringcast's receivers get a tensor that was not copied; these are made to read it.
    "features-read": Case(
        cases.CASES["features"], QUEUES, {"vllm": "ringcast", "vllm-group": "ringcast"}, read_tensors
    ),
    "pyobj": Case(
        lambda: [cases.metadata()],
        {"ringcast": ways.ringcast_pyobj, "sglang": ways.gloo_pickle},
        {"sglang": "ringcast"},
    ),
}


def same(one: Any, other: Any) -> bool:
    """Also of tensors, whose == is no bool."""
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
        answer()  # it is about to receive
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
    """Where there are too few CPUs, who waits for an answer must not keep a receiver from running; nor be asleep, for
    the first to answer would then wake it, in the way of the other receivers."""
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
        self.crowded = me.ranks > len(os.sched_getaffinity(0))
        self.writer = ringcast.Writer(1 << 16) if me.rank else None
        handles: List[Any] = [None] * me.ranks
        dist.all_gather_object(handles, self.writer.handle if self.writer else None, me.group)
        self.readers = [] if me.rank else [ringcast.Reader(handle, spin=SPIN) for handle in handles[1:]]
        if self.writer:
            self.writer.wait_readers(1, START)

    def run(
        self, call: ways.Call, case: Case, value: Any, rounds: int, rest: Optional[Callable[[], None]]
    ) -> Tuple[List[int], float]:
        """When each was sent, or had, and the microseconds of CPU for one, those of a rest included."""
        start = time.process_time()
        if self.writer:
            times = receive_all(call, case.use, self.writer.send, rounds, rest)
        else:
            times = send_all(call, [self.answer(reader) for reader in self.readers], value, rounds, rest)
        return times, (time.process_time() - start) * 1e6 / rounds

    def answer(self, reader: ringcast.Reader) -> Callable[[], Any]:
        return functools.partial(await_among_many, reader) if self.crowded else reader.recv

    def is_true(self, call: ways.Call, value: Any) -> bool:
        if self.me.rank:
            return same(call(), value)
        call(value)
        return True


class Rank:
    """Does what the pipe says."""

    def __init__(self, rank: int, most: int, store: str, vllm: Optional[str]) -> None:
        import torch
        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        limit = datetime.timedelta(seconds=START)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=most, timeout=limit)
        self.rank, self.vllm = rank, vllm
        self.teams: Dict[int, Team] = {}
        self.name, self.value = "", None
        self.rest: Optional[Callable[[], None]] = None

    def prepare(self, plan: cold.Plan) -> None:
        self.rest = cold.rest_of(plan, source=self.rank == 0)

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
        """Makes ready for a case; whether what arrives here by each of the ways is what was sent."""
        if self.name != name:
            self.name, self.value = name, CASES[name].value()
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


def serve(rank: int, most: int, store: str, vllm: Optional[str], pipe: Any) -> None:
    os.dup2(2, 1)  # what is printed to the standard output is the figures alone
    try:
        served = Rank(rank, most, store, vllm)
        pipe.send((True, None))
        with contextlib.suppress(EOFError):
            while True:
                command, arguments = pipe.recv()
                pipe.send((True, getattr(served, command)(*arguments)))
        served.end()
    except KeyboardInterrupt:
        return
    except Exception:
        with contextlib.suppress(OSError):
            pipe.send((False, traceback.format_exc()))


# ---- All ranks -------------------------------------------------------------------------------------------------------


class Ranks:
    """The processes, told by this one, which is none of them, what to do."""

    def __init__(self, most: int, vllm: Optional[str]) -> None:
        self.most, self.vllm = most, vllm
        self.workers: List[Tuple[Any, Any]] = []

    def __enter__(self) -> "Ranks":
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        try:
            for rank in range(self.most):
                ours, theirs = context.Pipe()
                store = os.path.join(self.folder.name, "store")
                process = context.Process(target=serve, args=(rank, self.most, store, self.vllm, theirs), daemon=True)
                self.workers.append((process, ours))
                process.start()
                theirs.close()
            self.answers(self.most)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self,
        exception_type: Optional[Type[BaseException]],
        exception: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        for process, pipe in self.workers:
            pipe.close()
            if exception_type and process.pid:
                process.kill()  # the others may wait for the one that failed
        for process, _ in self.workers:
            if process.pid:
                process.join()
                process.close()
        self.workers.clear()
        self.folder.cleanup()

    def tell(self, ranks: int, command: str, *arguments: Any) -> List[Any]:
        """Has the first `ranks` ones do it; what each answers."""
        for rank, (_, pipe) in enumerate(self.workers[:ranks]):
            try:
                pipe.send((command, arguments))
            except OSError:
                raise Failed(f"rank {rank} has ended; if it said why, that is above") from None
        return self.answers(ranks)

    def answers(self, ranks: int) -> List[Any]:
        results: List[Any] = [None] * ranks
        waiting: Dict[Any, int] = {pipe: rank for rank, (_, pipe) in enumerate(self.workers[:ranks])}
        while waiting:
            ready: List[Any] = multiprocessing.connection.wait(list(waiting), START)
            if not ready:
                raise Failed(f"of ranks {sorted(waiting.values())} nothing was heard for {START:.0f} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    good, results[rank] = pipe.recv()
                except (EOFError, OSError):
                    raise Failed(f"rank {rank} has ended; if it said why, that is above") from None
                if not good:
                    raise Failed(f"rank {rank} failed:\n{results[rank]}")
        return results


# ---- Figures ---------------------------------------------------------------------------------------------------------


def spans(turn: List[Tuple[List[int], float]]) -> List[int]:
    """Of each message, from the times that the ranks took down."""
    begun, *had = [times for times, _ in turn]
    return [max(ends) - start for start, *ends in zip(begun, *had)]


def measure(ranks: Ranks, name: str, size: int, chosen: List[str], seconds: float) -> Dict[str, Any]:
    if not all(ranks.tell(size, "take", name, size, chosen)):
        raise Failed(f"{name}, {size} ranks: what arrived is not what was sent")

    def way(which: str) -> Callable[[int], Any]:
        def run(rounds: int) -> Any:
            more = 1 + rounds // 10  # in the first ones the caches still hold something else
            turn = ranks.tell(size, "run", size, which, rounds + more)
            return spans(turn)[more:], [cpu for _, cpu in turn]

        return run

    turns = in_turns({which: way(which) for which in chosen}, seconds)
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
    plan: cold.Plan = cold.Plan(),
    vllm: Optional[str] = None,
) -> Dict[str, Any]:
    """The figures of each case with each number of ranks, and why vLLM's queue is left out, if it is."""
    if util.find_spec("torch") is None:
        raise Failed("dropin needs torch, which is not installed here: pip install torch")
    if vllm is not None:
        vllm = os.path.abspath(vllm)
        if not os.path.isfile(os.path.join(vllm, *ways.VLLM_QUEUE.split(".")) + ".py"):
            raise Failed(f"--vllm takes the folder of an unpacked vLLM, with vllm/ in it, and {vllm!r} is none")
    found: Dict[str, Any] = {"cases": [], "left_out": {}}
    with Ranks(max(sizes), vllm) as ranks:
        its = [way for way in ("vllm", "vllm-group") if any(way in CASES[name].ways for name in chosen)]
        if its:
            report.say("dropin: looking for vLLM's queue")
            why = [reason for reason in ranks.tell(ranks.most, "look") if reason]
            found["left_out"] = dict.fromkeys(its, why[0]) if why else {}
        ranks.tell(ranks.most, "prepare", plan)
        for size in sizes:
            ranks.tell(ranks.most, "form", size)
        for name in chosen:
            there = [way for way in CASES[name].ways if way not in found["left_out"]]
            for size in sizes:
                report.say(f"dropin {name}, {size} ranks")
                found["cases"].append(measure(ranks, name, size, there, seconds))
    return found


def rows(found: Sequence[Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """One for each way, for the table."""
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
