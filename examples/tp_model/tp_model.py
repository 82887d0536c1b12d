#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A transformer split over processes: tensor parallel, pipeline parallel, and each step's metadata
from rank 0.

The ranks are processes of one machine with a thread each, in a gloo group of torch.distributed. As
in an engine, a step begins with a broadcast: rank 0 sends all ranks the step's token ids,
positions, block tables and sampling parameters, through ringcast or in the way of vLLM with gloo.
The first step of a batch is a prefill, the later steps decode.

Rank 0 compares the run's logits and tokens with the results of the whole model in one process
(--check, --no-check). If the two differ, the exit status is 1. With --profile, the run is a
workload for ringcast.profile.

  --compare    TP 1, 2, 4 and PP 2 in turns, with both ways of the metadata: times, speed-up,
               efficiency, rating, the share of communication, memory
"""

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ranks import cpu_model, exit_without, run_ranks

try:
    import torch
    import torch.distributed as dist
    from net import BLOCK, Inputs, Links, Model, Place, Shape, padded
    from tp_workers import WAYS
except ModuleNotFoundError as error:
    exit_without(error)

Figures = Dict[str, Any]
CHECKED_WORK = 4e11  # floating-point operations of a check without --check
TOLERANCE = 1e-3  # of logits with a standard deviation of about 1
KINDS = ("all_reduce", "gather", "send_recv", "metadata")
LAYOUTS = ((1, 1), (2, 1), (4, 1), (1, 2))  # (TP, PP)
RATINGS = {"tp": (0.75, 0.50), "pp": (0.60, 0.40)}  # of the efficiency: excellent above, good from
SIZES = {  # option: default, least, most, meaning
    "layers": (4, 1, 256, "layers of the model"),
    "hidden": (512, 8, 16384, "numbers for each token between the layers"),
    "heads": (8, 1, 128, "attention heads"),
    "vocab": (1024, 2, 1 << 20, "tokens in the vocabulary"),
    "batch": (4, 1, 256, "sequences in a batch"),
    "seq": (256, 128, 8192, "tokens of each sequence before the first step"),
    "tokens": (16, 1, 4096, "steps of a batch, of which the first is a prefill"),
    "steps": (48, 1, 1_000_000, "measured steps, each way"),
    "warmup": (16, 0, 1_000_000, "steps before the measured steps"),
}

# ---- The steps -----------------------------------------------------------------------------------


class Turn(NamedTuple):
    """
    A step: the prefill of a batch (`index` 0), or a decode step, with one token for each sequence.
    """

    way: str
    measured: bool
    batch: int
    index: int


def schedule(options: argparse.Namespace, ways: List[str]) -> Iterator[Turn]:
    """The same on all ranks. Several ways of the metadata get the same batches in turns, so that a
    slow moment of the machine slows each way."""
    for measured, steps in (False, options.warmup), (True, options.steps):
        for batch, first in enumerate(range(0, steps, options.tokens)):
            for way in ways if batch % 2 == 0 else reversed(ways):
                for index in range(min(options.tokens, steps - first)):
                    yield Turn(way, measured, batch, index)


def make_inputs(
    options: argparse.Namespace, step: int, turn: Turn, tokens: Optional[torch.Tensor]
) -> Inputs:
    """
    The inputs of a step, as an engine sends them. tokens: the last step's, one for each sequence.
    """
    sequences, room = options.batch, padded(options.seq + options.tokens)
    length = options.seq + turn.index
    if tokens is None:
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + turn.batch)
        ids = torch.randint(options.vocab, (sequences, options.seq), generator=generator)
        positions = torch.arange(options.seq).repeat(sequences, 1)
    else:
        ids = tokens[:, None]
        positions = torch.full((sequences, 1), length - 1)
    blocks = torch.arange(sequences * room // BLOCK, dtype=torch.int32).view(sequences, -1)
    return {
        "step": step,
        "request_ids": [
            f"cmpl-{options.seed}-{turn.batch * sequences + index:08x}"
            for index in range(sequences)
        ],
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


# ---- A rank --------------------------------------------------------------------------------------


class Took(NamedTuple):
    turn: Turn
    seconds: float
    calls: List[Any]


class Nothing:
    """Stands in for a profile."""

    def step(self) -> None:
        pass

    def region(self, name: str) -> Any:
        return contextlib.nullcontext()


def profile_of(options: argparse.Namespace) -> Any:
    if options.profile is None:
        return contextlib.nullcontext(Nothing())
    from ringcast.profile import profile

    return profile(dir=options.profile, warmup=options.warmup)


class Runner:
    """A rank on its way through the steps."""

    def __init__(self, options: argparse.Namespace, place: Place) -> None:
        self.options, self.place, self.profiler = options, place, Nothing()
        self.links = Links(place)
        self.model = model_of(options, self.links)
        self.took: List[Took] = []
        self.tokens: List[torch.Tensor] = []  # of each measured step, on rank 0
        self.logits: List[torch.Tensor] = []  # of each measured step, on the sampling rank

    def run(self, ways: List[str], profiler: Any) -> None:
        self.profiler, tokens = profiler, None
        for step, turn in enumerate(schedule(self.options, ways)):
            self.links.calls, start = [], time.perf_counter()
            tokens = self.step(step, turn, None if turn.index == 0 else tokens)
            self.took.append(Took(turn, time.perf_counter() - start, self.links.calls))
            if turn.measured and tokens is not None:
                self.tokens.append(tokens)
            self.profiler.step()

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


def run_group(options: argparse.Namespace, ways: List[str]) -> Optional[List[Figures]]:
    """
    All ranks of the default group call this function. Returns the figures of each way, on rank 0.

    SystemExit: the results are not the results of TP 1.
    """
    place = Place(options.tp, options.pp, dist.get_rank())
    runner = Runner(options, place)
    with profile_of(options) as profiler:
        runner.run(ways, profiler)
    with open("/proc/self/status") as status:
        rss = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))
    mine = {
        "took": runner.took,
        "logits": runner.logits,
        "rss": rss,
        "model": runner.model.nbytes(),
    }
    ranks = [None] * dist.get_world_size() if place.rank == 0 else None
    dist.gather_object(mine, ranks)
    dist.barrier()  # no rank leaves while another receives
    if ranks is None:
        return None
    difference = (
        check(options, ways, runner.tokens, ranks[place.sampler]["logits"])
        if options.check
        else None
    )
    return [{**figures_of(options, way, ranks), "difference": difference} for way in ways]


def in_group(options: argparse.Namespace, ways: List[str], **group: Any) -> Optional[List[Figures]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.deadline), **group)
    try:
        return run_group(options, ways)
    finally:
        dist.destroy_process_group()


def run_rank(
    rank: int, options: argparse.Namespace, ways: List[str], store: str
) -> Optional[List[Figures]]:
    return in_group(
        options, ways, init_method=f"file://{store}", rank=rank, world_size=options.tp * options.pp
    )


def run(options: argparse.Namespace, ways: List[str]) -> List[Figures]:
    """
    Starts the ranks. SystemExit: a rank failed or died, or the results are not the results of TP 1.
    """
    return run_ranks(run_rank, [(options, ways)] * (options.tp * options.pp), options.deadline)[0]


# ---- The check -----------------------------------------------------------------------------------


def work_of_check(options: argparse.Namespace) -> float:
    shape = Shape(options.layers, options.hidden, options.heads, options.vocab, options.seed)
    tokens = options.batch * options.seq * (options.steps / options.tokens + 1)
    return 2.0 * shape.weights * tokens + 4.0 * shape.layers * shape.hidden * options.seq * tokens


def check(
    options: argparse.Namespace, ways: List[str], tokens: List[Any], logits: List[Any]
) -> float:
    """
    The greatest difference of the logits from the logits of the whole model after the same tokens.
    SystemExit: the difference is too great, or leads to other tokens.
    """
    model = model_of(options, Links(Place(1, 1)))
    greatest = 0.0
    for step, turn in enumerate(turn for turn in schedule(options, ways) if turn.measured):
        inputs = make_inputs(options, step, turn, tokens[step - 1] if turn.index else None)
        wanted = model.forward(inputs, Nothing().region)
        where = (
            f"TP {options.tp}, PP {options.pp}, metadata by {turn.way}: batch {turn.batch}, step "
            f"{turn.index}"
        )
        greatest = max(greatest, difference(logits[step], wanted, tokens[step], where))
    return greatest


def difference(got: torch.Tensor, wanted: torch.Tensor, tokens: torch.Tensor, where: str) -> float:
    most = float((got - wanted).abs().max())
    if not torch.allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE):
        raise SystemExit(
            f"not the results of TP 1: {where}: the logits differ by {most:.2g}, and rounding "
            f"explains {TOLERANCE}: a "
            "rank has other inputs or weights, or a sum lacks a rank"
        )
    chosen = wanted.gather(1, tokens[:, None])[
        :, 0
    ]  # of two logits within rounding, either may be chosen
    if not bool((chosen >= wanted.amax(dim=-1) - 2 * TOLERANCE).all()):
        raise SystemExit(
            f"not the results of TP 1: {where}: other tokens, though the logits are equal"
        )
    return most


# ---- The figures ---------------------------------------------------------------------------------


def figures_of(options: argparse.Namespace, way: str, ranks: List[Dict[str, Any]]) -> Figures:
    """Of the measured steps of a way. The shares are means over the ranks of the time in calls."""
    steps = [
        [took for took in rank["took"] if took.turn.measured and took.turn.way == way]
        for rank in ranks
    ]  # of each rank
    seconds: Dict[str, List[float]] = {"prefill": [], "decode": []}
    for took in steps[0]:
        seconds["decode" if took.turn.index else "prefill"].append(took.seconds)
    spent = dict.fromkeys(KINDS, 0.0)
    for call in (call for rank in steps for took in rank for call in took.calls):
        spent[call.kind] += (call.end - call.start) / 1e9
    metadata = []
    for at_once in zip(*steps):
        calls = [call for took in at_once for call in took.calls if call.kind == "metadata"]
        if calls:  # from rank 0's call, or a later rank's own, to the return
            metadata.append(max(call.end - max(call.start, calls[0].start) for call in calls) / 1e3)
    total = len(ranks) * sum(took.seconds for took in steps[0])
    return {
        "tp": options.tp,
        "pp": options.pp,
        "metadata": way if len(ranks) > 1 else None,
        "ranks": len(ranks),
        "seconds": seconds,
        "shares": {kind: value / total for kind, value in spent.items()},
        "metadata_us": statistics.median(metadata) if metadata else None,
        **{name: max(rank[name] for rank in ranks) for name in ("rss", "model")},
    }


def compare(options: argparse.Namespace) -> List[Figures]:
    found: Dict[Any, List[Figures]] = {}
    for round in range(options.rounds):
        for tp, pp in LAYOUTS if round % 2 == 0 else LAYOUTS[::-1]:
            parts = options.parts if pp > 1 else 1
            layout = argparse.Namespace(**{**vars(options), "tp": tp, "pp": pp, "parts": parts})
            layout.check = options.check and round == 0
            for figures in run(layout, list(WAYS) if tp * pp > 1 else [options.metadata]):
                found.setdefault((tp, pp, figures["metadata"]), []).append(figures)
    rows = [row_of(options, of_all(rounds)) for rounds in found.values()]
    rows.sort(key=lambda row: (row["pp"], row["tp"], row["metadata"] != "ringcast"))
    for row in rows:
        rate(row, rows[0])
    return rows


def of_all(rounds: List[Figures]) -> Figures:
    """All rounds of a layout together."""
    whole = dict(rounds[0])
    for name in "seconds", "shares":
        values = {kind: [each[name][kind] for each in rounds] for kind in rounds[0][name]}
        join = (
            statistics.mean
            if name == "shares"
            else lambda lists: [each for times in lists for each in times]
        )
        whole[name] = {kind: join(each) for kind, each in values.items()}
    for name in "metadata_us", "rss", "model":
        values = [each[name] for each in rounds]
        whole[name] = None if None in values else statistics.median(values)
    return whole


def row_of(options: argparse.Namespace, figures: Figures) -> Figures:
    prefill, decode = (
        statistics.median(times) if times else None for times in figures["seconds"].values()
    )
    steps = min(options.tokens, options.steps)
    seconds = prefill + (steps - 1) * (decode or 0)
    return {
        **{name: figures[name] for name in ("tp", "pp", "metadata", "ranks")},
        "prefill_s": prefill,
        "decode_s": decode,
        "tokens_per_s": options.batch * steps / seconds,
        "speedup": None,
        "efficiency": None,
        "rating": None,
        "communication_share": sum(figures["shares"].values()),
        **{f"{kind}_share": share for kind, share in figures["shares"].items()},
        "metadata_us": figures["metadata_us"],
        "rss_bytes": figures["rss"],
        "model_bytes": figures["model"],
        "difference": figures["difference"],
        "note": f"{figures['ranks']} ranks on {cpus()} CPUs" if figures["ranks"] > cpus() else "",
    }


def rate(row: Figures, base: Figures) -> None:
    row["speedup"] = row["tokens_per_s"] / base["tokens_per_s"]
    row["efficiency"] = row["speedup"] / row["ranks"]
    if row["ranks"] > 1:
        excellent, good = RATINGS["pp" if row["pp"] > 1 else "tp"]
        found = row["efficiency"]
        row["rating"] = (
            "excellent" if found > excellent else "good" if found >= good else "to be improved"
        )


def cpus() -> int:
    return len(os.sched_getaffinity(0))


# ---- The tables ----------------------------------------------------------------------------------


def table(columns: str, rows: List[List[str]]) -> str:
    """In Markdown, for people too. The first column is text."""
    heads = columns.split(",")
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    lines = [heads, [widths[0] * "-", *((width - 1) * "-" + ":" for width in widths[1:])], *rows]
    padded = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def number(value: Any, factor: float, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value * factor:,.{digits}f}{unit}"


def show(options: argparse.Namespace, rows: List[Figures]) -> None:
    model = {name: getattr(options, name) for name in (*SIZES, "seed", "parts")}
    machine = f"{cpu_model()}, {cpus()} CPUs; torch {torch.__version__}, a thread for each rank"
    if options.format == "json":
        print(json.dumps({"machine": machine, "model": model, "rows": rows}, indent=2))
        return
    times, costs = [], []
    for row in rows:
        split = [f"{kind.upper()} {row[kind]}" for kind in ("tp", "pp") if row[kind] > 1] or [
            "TP 1"
        ]
        name = f"{', '.join(split)}, {row['metadata']}" if row["metadata"] else split[0]
        times.append([name, number(row["prefill_s"], 1e3, 1), number(row["decode_s"], 1e3, 2)])
        times[-1] += [number(row["tokens_per_s"], 1, 0), number(row["speedup"], 1, 2)]
        times[-1] += [number(row["efficiency"], 100, 0, " %"), row["rating"] or "-", row["note"]]
        shares = [number(row[f"{kind}_share"], 100, 1, " %") for kind in (*KINDS, "communication")]
        sizes = [number(row[f"{what}_bytes"], 2**-20, 0) for what in ("rss", "model")]
        costs.append([name, *shares, number(row["metadata_us"], 1, 0), *sizes])
    print(
        table(
            "layout and metadata,prefill ms,decode ms,tokens/s,speed-up,efficiency,rating,", times
        )
    )
    print("\nCommunication, as a share of the time of a step, and memory of a rank:\n")
    print(
        table(
            "layout and metadata,all_reduce,gather,send/recv,metadata,in all,metadata us,RSS "
            "MiB,model MiB",
            costs,
        )
    )
    checked = [row["difference"] for row in rows if row["difference"] is not None]
    told = (
        f"the results of TP 1; the logits differ by {max(checked):.1g} at most"
        if checked
        else "not compared"
    )
    print(
        f"\n{machine}; {', '.join(f'{name} {value}' for name, value in model.items())}\nchecked: "
        f"{told}"
    )


# ---- The options ---------------------------------------------------------------------------------


def parser_of_options() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument(
        "--tp", type=int, choices=(1, 2, 4), default=1, help="ranks that share the heads (1)"
    )
    parser.add_argument(
        "--pp", type=int, choices=(1, 2), default=1, help="ranks that share the layers (1)"
    )
    for name, (default, _, _, help) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{help} ({default})")
    parser.add_argument(
        "--micro-batches", type=int, help="parts of a batch, one after the other, with --pp 2 (2)"
    )
    parser.add_argument(
        "--metadata", choices=tuple(WAYS), default="ringcast", help="of each step (ringcast)"
    )
    parser.add_argument("--seed", type=int, default=1, help="for the weights and sequences (1)")
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help=f"compare with TP 1 (by default, if {CHECKED_WORK:.0e} floating-point operations are "
        f"enough)",
    )
    parser.add_argument(
        "--profile", metavar="DIR", help="profile the run with ringcast.profile, into this folder"
    )
    parser.add_argument("--compare", action="store_true", help="all layouts, in turns")
    parser.add_argument(
        "--rounds", type=int, default=3, help="with --compare: turns of each layout (3)"
    )
    parser.add_argument(
        "--deadline", type=float, default=300, help="seconds after which a run is ended (300)"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text: tables in Markdown (text)"
    )
    return parser


def refuse(options: argparse.Namespace) -> Optional[str]:
    """The reason why the options can't be used, or None."""
    for name, (_, least, most, _) in SIZES.items():
        if not least <= getattr(options, name) <= most:
            return (
                f"--{name} takes a whole number from {least} to {most}, not "
                f"{getattr(options, name)}"
            )
    tp, pp = (4, 2) if options.compare else (options.tp, options.pp)
    for name, divisor in ("hidden", 2 * options.heads), ("heads", tp), ("vocab", options.heads):
        if getattr(options, name) % divisor:
            return f"--{name} {getattr(options, name)} must be a multiple of {divisor}"
    if options.layers < pp:
        return f"--layers {options.layers} can't be shared by {pp} ranks: give at least {pp}"
    if pp == 1 and options.micro_batches is not None:
        return "--micro-batches goes with --pp 2 or --compare"
    options.parts = 1
    if pp > 1:
        options.parts = (
            (2 - options.batch % 2) if options.micro_batches is None else options.micro_batches
        )
    if options.parts < 1 or options.batch % options.parts:
        return (
            f"--batch {options.batch} can't be divided into {options.parts} equal micro-batches: "
            "see --micro-batches"
        )
    if options.rounds < 1 or not options.deadline > 0:
        return "--rounds and --deadline take more than 0"
    if options.compare and (options.tp, options.pp, options.profile) != (1, 1, None):
        return (
            "--compare chooses --tp and --pp itself, and can't be profiled: leave out --tp, --pp "
            "and --profile"
        )
    world = int(os.environ.get("WORLD_SIZE", "0"))
    if world and (options.compare or options.tp * options.pp != world):
        return (
            f"torchrun has started {world} ranks: give --tp and --pp for as many, and no --compare"
        )
    return None


def main() -> None:
    parser = parser_of_options()
    options = parser.parse_args()
    if wrong := refuse(options):
        parser.error(wrong)
    if options.check is None:
        options.check = work_of_check(options) <= CHECKED_WORK
    if options.compare:
        show(options, compare(options))
    elif "WORLD_SIZE" in os.environ:
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
            # Otherwise gloo resolves the host's name.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        found = in_group(options, [options.metadata])
        if found is not None:
            show(options, [row_of(options, found[0])])
    else:
        show(options, [row_of(options, run(options, [options.metadata])[0])])


if __name__ == "__main__":
    main()
