# SPDX-License-Identifier: Apache-2.0
"""For tp_model.py: the steps of a run, the check of the results, and the figures."""

import argparse
import contextlib
import datetime
import os
import statistics
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from ranks import run_ranks
from tp_model_net import BLOCK, Call, Inputs, Links, Model, Place, Shape, padded

Figures = Dict[str, Any]
CHECKED_WORK = 4e11  # floating-point operations of a check without --check
TOLERANCE = 1e-3  # of logits with a standard deviation of about 1
KINDS = {"all_reduce": "all_reduce", "gather": "gather", "metadata": "metadata"}  # the rest: send_recv


# ---- The order of the steps ------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """A step: the prefill of a batch (`index` 0), or a decode step, with one token for each sequence."""

    way: str
    measured: bool
    batch: int
    index: int


def schedule(options: argparse.Namespace, ways: List[str]) -> Iterator[Turn]:
    """The same on all ranks. Several ways of the metadata get the same batches in turns, so that a slow moment of the
    machine slows each way."""
    for measured, steps in (False, options.warmup), (True, options.steps):
        for batch, first in enumerate(range(0, steps, options.tokens)):
            for way in ways if batch % 2 == 0 else reversed(ways):
                for index in range(min(options.tokens, steps - first)):
                    yield Turn(way, measured, batch, index)


def make_inputs(options: argparse.Namespace, step: int, turn: Turn, tokens: Optional[torch.Tensor]) -> Inputs:
    """The inputs of a step, as an engine sends them. tokens: the last step's, one for each sequence."""
    sequences, room = options.batch, padded(options.seq + options.tokens)
    length = options.seq + turn.index
    if tokens is None:
        seed = options.seed * 1_000_003 + turn.batch
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(options.vocab, (sequences, options.seq), generator=generator)
        positions = torch.arange(options.seq).repeat(sequences, 1)
    else:
        ids = tokens[:, None]
        positions = torch.full((sequences, 1), length - 1)
    blocks = torch.arange(sequences * room // BLOCK, dtype=torch.int32).view(sequences, -1)
    return {
        "step": step,
        "request_ids": [f"cmpl-{options.seed}-{turn.batch * sequences + index:08x}" for index in range(sequences)],
        "is_prompt": turn.index == 0,
        "num_prefill_tokens": ids.numel() if turn.index == 0 else 0,
        "lora": None,
        "input_ids": ids,
        "positions": positions,
        "slot_mapping": positions + room * torch.arange(sequences)[:, None],
        "block_tables": blocks[:, : padded(length) // BLOCK].contiguous(),
        "seq_lens": torch.full((sequences,), length),
        "temperature": torch.zeros(sequences),  # greedy
        "top_p": torch.ones(sequences),
        "top_k": torch.full((sequences,), -1, dtype=torch.int32),
    }


# ---- A rank ----------------------------------------------------------------------------------------------------------


class Took(NamedTuple):
    turn: Turn
    start: int
    end: int
    calls: Tuple[int, int]  # the step's calls: index of the first, and after the last


class Nothing:
    """Stands in for a profile."""

    def step(self, label: str) -> None:
        pass

    def region(self, name: str) -> Any:
        return contextlib.nullcontext()


def profile_of(options: argparse.Namespace) -> Any:
    if options.profile is None:
        return contextlib.nullcontext(Nothing())
    from ringcast.profile import profile

    return profile(dir=options.profile, warmup=options.warmup, intercept=True)


class Runner:
    """A rank on its way through the steps."""

    def __init__(self, options: argparse.Namespace, place: Place) -> None:
        self.options, self.place, self.profiler = options, place, None
        self.links = Links(place)
        self.model = model_of(options, self.links)
        self.took: List[Took] = []
        self.tokens: List[torch.Tensor] = []  # of each measured step, on rank 0
        self.logits: List[torch.Tensor] = []  # of each measured step, on the sampling rank

    def run(self, ways: List[str], profiler: Any) -> None:
        self.profiler, tokens = profiler, None
        for step, turn in enumerate(schedule(self.options, ways)):
            calls, start = len(self.links.calls), time.perf_counter_ns()
            tokens = self.step(step, turn, None if turn.index == 0 else tokens)
            self.took.append(Took(turn, start, time.perf_counter_ns(), (calls, len(self.links.calls))))
            if turn.measured and tokens is not None:
                self.tokens.append(tokens)
            self.profiler.step("decode" if turn.index else "prefill")
        self.memory = {**memory(), "model": self.model.nbytes()}

    def step(self, step: int, turn: Turn, tokens: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """The step's tokens, on rank 0."""
        region, rank = self.profiler.region, self.place.rank
        with region("metadata"):
            inputs = make_inputs(self.options, step, turn, tokens) if rank == 0 else None
            inputs = self.links.metadata(turn.way, inputs)
        logits = self.model.forward(inputs, region)
        if logits is not None and turn.measured and self.options.check:
            self.logits.append(logits)
        with region("sample"):
            return self.sample(logits)

    def sample(self, logits: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        sampler, tokens = self.place.sampler, None
        if logits is not None:
            tokens = logits.argmax(dim=-1)
            if sampler != 0:
                self.links.send(tokens, 0)
                self.links.finish_sending()
        elif self.place.rank == 0:
            tokens = self.links.recv((self.options.batch,), torch.int64, sampler)
        return tokens if self.place.rank == 0 else None


def model_of(options: argparse.Namespace, links: Links) -> Model:
    shape = Shape(options.layers, options.hidden, options.heads, options.vocab, options.seed)
    parts = options.parts if links.place.pp > 1 else 1
    return Model(shape, links, options.batch, padded(options.seq + options.tokens), parts)


def memory() -> Dict[str, int]:
    """Bytes of this process: all, and its own (anonymous) memory."""
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return {name: int(lines[key].split()[0]) << 10 for name, key in (("rss", "VmRSS"), ("own", "RssAnon"))}


def run_group(options: argparse.Namespace, ways: List[str]) -> Optional[List[Figures]]:
    """All ranks of the default group call this function. Returns the figures of each way, on rank 0.

    SystemExit: the results are not the results of TP 1."""
    place = Place(options.tp, options.pp, dist.get_rank())
    runner = Runner(options, place)
    with profile_of(options) as profiler:
        runner.run(ways, profiler)
    mine = {"took": runner.took, "calls": runner.links.calls, "logits": runner.logits, "memory": runner.memory}
    ranks = [None] * dist.get_world_size() if place.rank == 0 else None
    dist.gather_object(mine, ranks)
    dist.barrier()  # no rank leaves while another receives
    if ranks is None:
        return None
    difference = check(options, ways, runner.tokens, ranks[place.sampler]["logits"]) if options.check else None
    return [{**figures_of(options, way, ranks), "difference": difference} for way in ways]


def run_rank(rank: int, options: argparse.Namespace, ways: List[str], store: str) -> Optional[List[Figures]]:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=options.deadline)
    world = options.tp * options.pp
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
    try:
        return run_group(options, ways)
    finally:
        dist.destroy_process_group()


def run(options: argparse.Namespace, ways: List[str]) -> List[Figures]:
    """Starts the ranks. SystemExit: a rank failed or died, or the results are not the results of TP 1."""
    found = run_ranks(run_rank, [(options, ways)] * (options.tp * options.pp), options.deadline)
    return found[0]  # type: ignore[no-any-return]


def run_under_torchrun(options: argparse.Namespace) -> Optional[List[Figures]]:
    torch.set_num_threads(1)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo resolves the host's name
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.deadline))
    try:
        return run_group(options, [options.metadata])
    finally:
        dist.destroy_process_group()


# ---- The check -------------------------------------------------------------------------------------------------------


def work_of_check(options: argparse.Namespace) -> float:
    shape = Shape(options.layers, options.hidden, options.heads, options.vocab, options.seed)
    tokens = options.batch * options.seq * (options.steps / options.tokens + 1)
    return 2.0 * shape.weights * tokens + 4.0 * shape.layers * shape.hidden * options.seq * tokens


def check(options: argparse.Namespace, ways: List[str], tokens: List[Any], logits: List[Any]) -> float:
    """The greatest difference of the logits from the logits of the whole model after the same tokens. SystemExit: the
    difference is too great, or leads to other tokens."""
    model = model_of(options, Links(Place(1, 1)))
    turns = [turn for turn in schedule(options, ways) if turn.measured]
    split = f"TP {options.tp}, PP {options.pp}"
    greatest = 0.0
    for step, turn in enumerate(turns):
        inputs = make_inputs(options, step, turn, tokens[step - 1] if turn.index else None)
        wanted = model.forward(inputs, Nothing().region)
        where = f"{split}, metadata by {turn.way}: batch {turn.batch}, step {turn.index}"
        greatest = max(greatest, difference(logits[step], wanted, tokens[step], where))
    return greatest


def difference(got: torch.Tensor, wanted: torch.Tensor, tokens: torch.Tensor, where: str) -> float:
    if not torch.allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE):
        sequence = int((got - wanted).abs().amax(dim=-1).argmax())
        most = float((got - wanted).abs().max())
        raise SystemExit(
            f"not the results of TP 1: {where}: the logits of sequence {sequence} differ by {most:.2g}, and rounding "
            f"explains {TOLERANCE}: a rank has other inputs or weights, or a sum lacks a rank"
        )
    chosen = wanted.gather(1, tokens[:, None])[:, 0]  # of two logits within rounding, either may be chosen
    if not bool((chosen >= wanted.amax(dim=-1) - 2 * TOLERANCE).all()):
        raise SystemExit(f"not the results of TP 1: {where}: other tokens, though the logits are equal")
    return float((got - wanted).abs().max())


# ---- The figures -----------------------------------------------------------------------------------------------------


def figures_of(options: argparse.Namespace, way: str, ranks: List[Dict[str, Any]]) -> Figures:
    """Of the measured steps of a way. The shares are means over the ranks of the time in calls."""
    steps = [took for took in ranks[0]["took"] if took.turn.measured and took.turn.way == way]
    seconds = {kind: [] for kind in ("prefill", "decode")}
    for took in steps:
        seconds["decode" if took.turn.index else "prefill"].append((took.end - took.start) / 1e9)
    waits, costs = waits_of(ranks)
    spent = {kind: 0 for kind in ("all_reduce", "gather", "send_recv", "metadata", "waiting")}
    metadata = []
    for rank, result in enumerate(ranks):
        for took in result["took"]:
            if not (took.turn.measured and took.turn.way == way):
                continue
            for index in range(*took.calls):
                call = result["calls"][index]
                spent[KINDS.get(call.kind, "send_recv")] += call.end - call.start
                spent["waiting"] += waits[rank][index]
                if rank == 0 and call.kind == "metadata":
                    metadata.append(costs[index])
    total = len(ranks) * sum(took.end - took.start for took in steps)
    return {
        "tp": options.tp,
        "pp": options.pp,
        "metadata": way if len(ranks) > 1 else None,
        "ranks": len(ranks),
        "seconds": seconds,
        "shares": {kind: nanoseconds / total for kind, nanoseconds in spent.items()},
        "metadata_us": statistics.median(metadata) if metadata else None,
        **{name: max(result["memory"][name] for result in ranks) for name in ("rss", "own", "model")},
    }


def waits_of(ranks: List[Dict[str, Any]]) -> Tuple[List[List[int]], Dict[int, float]]:
    """For each rank and call, the nanoseconds of waiting: until the last participant, or the source, begins its call.
    For each of rank 0's broadcasts of metadata, the microseconds from the source's call to the last rank's return,
    without the delay of a late rank."""
    meetings: Dict[Any, List[List[Tuple[int, int, Call]]]] = {}
    for rank, result in enumerate(ranks):
        seen: Dict[Any, int] = {}
        for index, call in enumerate(result["calls"]):
            key = ("transfer" if call.kind in ("send", "recv") else call.kind, call.among)
            turn = seen[key] = seen.get(key, -1) + 1
            groups = meetings.setdefault(key, [])
            if turn == len(groups):
                groups.append([])
            groups[turn].append((rank, index, call))
    waits = [[0] * len(result["calls"]) for result in ranks]
    costs: Dict[int, float] = {}
    for (kind, among), groups in meetings.items():
        for group in groups:
            late = [call.start for rank, _, call in group if kind not in ("transfer", "metadata") or rank == among[0]]
            ready = max(late)
            for rank, index, call in group:
                waits[rank][index] = max(0, min(call.end, ready) - call.start)
            if kind == "metadata":
                took = [call.end - max(call.start, ready) for _, _, call in group]
                costs[group[0][1]] = max(took) / 1e3
    return waits, costs


def warn_of_few_cpus(ranks: int) -> None:
    if ranks > cpus():
        print(
            f"note: {ranks} ranks on {cpus()} CPUs: the ranks take turns, so more of them can't make a step faster",
            file=sys.stderr,
        )


def cpus() -> int:
    return len(os.sched_getaffinity(0))
