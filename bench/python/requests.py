# SPDX-License-Identifier: Apache-2.0
"""Requests with features that every rank has and needs the hash of: how many a second the ranks
prepare, and what a request takes, phase by phase.

The ranks' schedulers are a stand-in for SGLang's (standin.py), with gloo and with ringcast in
place, and loops around share_hash and share_once. Requests arrive at a rate, whether the ranks keep
up or not. Rank 0 takes in all that have arrived, at most MOST_AT_ONCE, and broadcasts the list;
each rank then prepares the requests in order. A request takes from its arrival until the last rank
has the features and the right hash, which is checked. The figures of a rate are the medians of
rounds, and all ways are in turns.

The rates are multiples of what the ranks reach each for itself when all requests are there at once,
which is saturation. Where hashing is all that there is, sharing can gain a factor of N on N ranks:
with a CPU for each rank all hash at a time, and with fewer CPUs each request is hashed once and not
N times.
"""

import contextlib
import functools
import gc
import os
import statistics
import tempfile
import time
import warnings
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from bench.python import harness, standin
from bench.python.harness import Processes, Table, percentile, say

RANKS = (2, 4)
DIFFERENT = 4  # features that the requests have in turn
MOST_AT_ONCE = 16
EACH = "each for itself"
# gloo, and the drop-in with a broadcast: SGLang's --enable-broadcast-mm-inputs-process.
WAYS = (EACH, "gloo", "drop-in, broadcast", "drop-in", "share_hash", "share_once")
PHASES = ("hash", "pickle", "transport", "unpickle")


class Plan(NamedTuple):
    megabytes: float = 10.0  # of a request
    requests: int = 40  # of a round
    rounds: int = 5
    offered: Sequence[float] = (0.5, 1.0, 1.5, 2.0, 3.0)


QUICK = Plan(requests=24, rounds=3, offered=(1.0, 2.0))


# ---- A rank --------------------------------------------------------------------------------------


class Rank:
    """A rank: the pipe names the methods."""

    def __init__(self, rank: int, ranks: int, store: str, nbytes: int) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.group, self.dist = rank, harness.join(rank, ranks, store), dist
        random = torch.Generator().manual_seed(1)
        # Memory that torch does not own, as received features have: no rank remembers a hash.
        self.calls = 0
        self.features = [
            torch.from_numpy(torch.randn(nbytes // 4, generator=random).numpy().copy())
            for _ in range(DIFFERENT)
        ]
        self.module = standin.load("managers.schedule_batch")
        self.hashes = [
            standin.load("managers.mm_utils").hash_feature(feature) for feature in self.features
        ]

    def request(self, index: int) -> Any:
        item = self.module.MultimodalDataItem(self.features[index % DIFFERENT])
        return SimpleNamespace(
            rid=f"request {index}", index=index, mm_inputs=SimpleNamespace(mm_items=[item])
        )

    def run(self, way: str, rate: float, count: int) -> Tuple[List[float], List[float], float]:
        """When each request arrived (rank 0) and was prepared, and the CPU seconds of this rank."""
        with self.scheduler(way) as (receive, process, handled):
            self.dist.barrier()
            gc.collect()
            self.dist.barrier()
            cpu, begun = time.process_time(), time.monotonic()
            arrivals = [begun + (index / rate if rate else 0.0) for index in range(count)]
            done: List[float] = [0.0] * count
            seen = 0

            def prepared(request: Any) -> None:
                done[request.index] = time.monotonic()
                (item,) = request.mm_inputs.mm_items
                if item.hash != self.hashes[request.index % DIFFERENT]:
                    raise SystemExit(f"{way}: request {request.index} has a wrong hash")

            handled(prepared)
            while seen < count:
                batch: Any = []
                if self.rank == 0:
                    time.sleep(max(0.0, arrivals[seen] - time.monotonic()))
                    now = time.monotonic()
                    batch = [index for index in range(seen, count) if arrivals[index] <= now][
                        :MOST_AT_ONCE
                    ]
                batch = receive(batch)
                process([self.request(index) for index in batch])
                seen += len(batch)
            self.dist.barrier()
            return arrivals, done, time.process_time() - cpu  # without uninstall()

    @contextlib.contextmanager
    def scheduler(
        self, way: str
    ) -> Iterator[Tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]]:
        import ringcast.sglang

        if way in ("share_hash", "share_once"):
            handlers: List[Callable[[Any], None]] = []
            yield (
                lambda batch: ringcast.sglang.broadcast_pyobj(batch, self.rank, self.group),
                lambda requests: getattr(self, way)(requests, handlers[0]),
                handlers.append,
            )
            return
        if way.startswith("drop-in"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the stand-in is of no tested version
                standin.load("managers.scheduler")
                ringcast.sglang.install()
            scheduler = standin.load("managers.scheduler").Scheduler
            replaced = (
                scheduler.process_input_requests,
                standin.load("managers.mm_utils").hash_feature,
            )
            if not all(hasattr(each, "__wrapped__") for each in replaced):
                raise SystemExit(f"{way}: ringcast is not in the place of SGLang's functions")
        try:
            made = standin.load("managers.scheduler").Scheduler(
                self.group, way in ("gloo", "drop-in, broadcast")
            )
            yield (
                made.recv_requests,
                made.process_input_requests,
                lambda function: setattr(made, "handled", function),
            )
        finally:
            ringcast.sglang.uninstall()

    def share_hash(self, requests: Sequence[Any], handled: Callable[[Any], None]) -> None:
        import ringcast.sglang

        features = [request.mm_inputs.mm_items[0].feature for request in requests]
        self.calls += 1
        shared = ringcast.sglang.share_hash(features, key=str(self.calls), group=self.group)
        for request, hash in zip(requests, shared.result()[1]):
            request.mm_inputs.mm_items[0].hash = hash
            handled(request)

    def share_once(self, requests: Sequence[Any], handled: Callable[[Any], None]) -> None:
        """As where a single rank has the features of a request."""
        import ringcast.sglang

        shared = []
        for request in requests:
            (item,) = request.mm_inputs.mm_items
            make: Any = functools.partial(dict, feature=item.feature)
            shared.append(ringcast.sglang.share_once(make, item.feature.nbytes, how="share"))
        for request, each in zip(requests, shared):
            (item,) = request.mm_inputs.mm_items
            value, hashes = each.result()
            item.feature = value["feature"]
            item.hash = hashes["feature"]
            handled(request)

    # ---- Phases ----

    def phases(self, way: str, rounds: int) -> Dict[str, float]:
        """
        Seconds of each phase here; of the transport: rank 0 when the bytes were sent, others when
        they were there.
        """
        phases = {EACH: self.hashed, "gloo": self.phases_of_gloo}[way]
        times: List[Dict[str, float]] = []
        for index in range(rounds + 1):
            self.dist.barrier()
            times.append(phases(self.features[index % DIFFERENT]))
        return {key: statistics.median(each[key] for each in times[1:]) for key in times[0]}

    def hashed(self, feature: Any) -> Dict[str, float]:
        begun = time.monotonic()
        standin.load("managers.mm_utils").hash_feature(feature)
        return {"hash": time.monotonic() - begun}

    def phases_of_gloo(self, feature: Any) -> Dict[str, float]:
        import pickle

        import numpy
        import torch

        found = self.hashed(feature) if self.rank == 0 else {}
        value = [{"feature": feature, "hash": 1}]
        size = torch.zeros(1, dtype=torch.long)
        begun = time.monotonic()
        if self.rank == 0:
            data = torch.from_numpy(numpy.frombuffer(pickle.dumps(value), numpy.uint8).copy())
            found["pickle"] = time.monotonic() - begun
            size[0] = len(data)
        self.dist.broadcast(size, 0)
        if self.rank:
            data = torch.empty(int(size), dtype=torch.uint8)
        self.dist.barrier()
        begun = time.monotonic()
        self.dist.broadcast(data, 0)
        found["transport"] = time.monotonic() - begun
        if self.rank:
            begun = time.monotonic()
            pickle.loads(data.numpy().tobytes())
            found["unpickle"] = time.monotonic() - begun
        return found

    def end(self) -> None:
        self.dist.destroy_process_group()


def serve(rank: int, pipe: Any, ranks: int, store: str, nbytes: int) -> None:
    with standin.in_place():
        served = Rank(rank, ranks, store, nbytes)
        pipe.send(rank)
        harness.serve(served, pipe)


# ---- Figures -------------------------------------------------------------------------------------


def measure(ranks: Processes, way: str, rate: float, count: int) -> Dict[str, float]:
    told = ranks.ask(("run", way, rate, count))
    arrivals = told[0][0]
    done = [max(times) for times in zip(*(times for _, times, _ in told))]
    spans = [int((end - begun) * 1e9) for begun, end in zip(arrivals, done)]
    return {
        "per_s": count / (max(done) - arrivals[0]),
        "p50_ms": statistics.median(spans) / 1e6,
        "p99_ms": percentile(spans, 0.99) / 1e6,
        "cpu_ms": sum(cpu for _, _, cpu in told) * 1e3 / count,
    }


def in_turns(ranks: Processes, rate: float, plan: Plan) -> Dict[str, Dict[str, float]]:
    """The medians of the rounds, by way."""
    turns: Dict[str, List[Dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(plan.rounds):
        for way in WAYS if turn % 2 == 0 else reversed(WAYS):
            turns[way].append(measure(ranks, way, rate, plan.requests))
    return {
        way: {key: statistics.median(each[key] for each in turns[way]) for key in turns[way][0]}
        for way in WAYS
    }


def rates_of(ranks: Processes, plan: Plan) -> Dict[str, Any]:
    say(f"requests, {ranks.count} ranks: at once")
    for way in WAYS:  # makes the rings
        measure(ranks, way, 0.0, 2 * ranks.count)
    saturated = in_turns(ranks, 0.0, plan)
    base = saturated[EACH]["per_s"]
    offered: List[Dict[str, Any]] = []
    for multiple in plan.offered:
        say(f"requests, {ranks.count} ranks: {multiple * base:.1f} a second")
        ways = in_turns(ranks, multiple * base, plan)
        offered.append({"multiple": multiple, "per_s": multiple * base, "ways": ways})
    ratios = {way: saturated[way]["per_s"] / base for way in WAYS}
    return {"at_once": saturated, "ratios": ratios, "offered": offered}


def phases_of(ranks: Processes, rounds: int) -> Dict[str, Dict[str, float]]:
    """Milliseconds by way and phase: of the slowest rank, as that is when all have the request."""
    found = {}
    for way in (EACH, "gloo"):
        told = ranks.ask(("phases", way, rounds))
        found[way] = {key: 1e3 * max(each.get(key, 0.0) for each in told) for key in PHASES}
        found[way]["sum"] = sum(found[way].values())
    return found


def run(sizes: Sequence[int], plan: Plan) -> Dict[str, Any]:
    nbytes = int(plan.megabytes * 1e6) // 16 * 16
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            with Processes(size, serve, size, os.path.join(folder, "store"), nbytes) as ranks:
                ranks.hear()
                say(f"requests, {size} ranks: phases")
                phases = phases_of(ranks, 5 * plan.rounds)
                found.append({"ranks": size, "phases_ms": phases, **rates_of(ranks, plan)})
    return {
        "megabytes": plan.megabytes,
        "requests": plan.requests,
        "rounds": plan.rounds,
        "cases": found,
        "left_out": {},
    }


# ---- As tables -----------------------------------------------------------------------------------


def tables(found: Dict[str, Any]) -> List[Table]:
    made: List[Table] = []
    for case in found["cases"]:
        ranks = f"{case['ranks']} ranks"
        made.append(
            (
                f"{ranks}: ms of a request",
                [(key, key) for key in (*PHASES, "sum")],
                case["phases_ms"],
            )
        )
        rows = {
            way: {
                **{
                    f"{each['per_s']:.1f}/s": each["ways"][way]["per_s"] for each in case["offered"]
                },
                **{
                    f"{each['per_s']:.1f}/s, p50": each["ways"][way]["p50_ms"]
                    for each in case["offered"]
                },
                "at once": case["at_once"][way]["per_s"],
                "ratio": case["ratios"][way],
                "CPU, ms": case["at_once"][way]["cpu_ms"],
            }
            for way in WAYS
        }
        # A rate in a title has a point, which is no path of keys.
        columns: List[Any] = [(key, lambda figures, key=key: figures[key]) for key in rows[EACH]]
        made.append((f"{ranks}: requests/s at an offered rate, and ms", columns, rows))
    return made
