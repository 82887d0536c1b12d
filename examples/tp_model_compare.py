# SPDX-License-Identifier: Apache-2.0
"""For tp_model.py: runs of all layouts in turns, and the tables of the results."""

import argparse
import csv
import datetime
import io
import json
import statistics
import time
from typing import Any, Dict, Iterator, List, Tuple

import torch
import torch.distributed as dist
from ranks import cpu_model, run_ranks
from tp_model_net import Links, Place
from tp_model_run import Figures, Turn, cpus, make_inputs, run
from tp_workers import WAYS

LAYOUTS = ((1, 1), (2, 1), (4, 1), (1, 2))  # (TP, PP)
RATINGS = {
    "tp": (0.75, 0.50),
    "pp": (0.60, 0.40),
}  # of the scaling efficiency: excellent above the first, good from the second on
STEP_MS = (5, 10, 25)
SHARE_STEPS, SHARE_BLOCKS, SHARE_WARMUP = 20, 3, 10


# ---- The runs --------------------------------------------------------------------------------------------------------


def compare(options: argparse.Namespace) -> Figures:
    found: Dict[Tuple[int, int, Any], List[Figures]] = {}
    for round in range(options.rounds):
        for tp, pp in LAYOUTS if round % 2 == 0 else LAYOUTS[::-1]:
            layout = argparse.Namespace(**vars(options))
            layout.tp, layout.pp, layout.parts = tp, pp, options.parts if pp > 1 else 1
            layout.check = options.check and round == 0
            for figures in run(layout, list(WAYS) if tp * pp > 1 else [options.metadata]):
                found.setdefault((tp, pp, figures["metadata"]), []).append(figures)
    rows = [row_of(options, of_all(rounds)) for rounds in found.values()]
    rows.sort(key=lambda row: (row["pp"], row["tp"], row["metadata"] != "ringcast"))
    (base,) = [row for row in rows if row["ranks"] == 1]
    for row in rows:
        rate(row, base)
    return {**about(options), "rows": rows, "metadata_share": [each for tp in (2, 4) for each in shares(options, tp)]}


def single(options: argparse.Namespace, figures: Figures) -> Figures:
    return {**about(options), "rows": [row_of(options, figures)]}


def about(options: argparse.Namespace) -> Figures:
    names = "layers hidden heads vocab batch seq tokens steps warmup seed parts".split()
    return {
        "machine": f"{cpu_model()}, {cpus()} CPUs",
        "torch": torch.__version__,
        "model": {name: getattr(options, name) for name in names},
        "threads_per_rank": 1,
    }


def of_all(rounds: List[Figures]) -> Figures:
    """All rounds of a layout together."""
    whole = dict(rounds[0])
    whole["seconds"] = {
        kind: [each for figures in rounds for each in figures["seconds"][kind]] for kind in whole["seconds"]
    }
    for name in "shares", "metadata_us", "rss", "own", "model":
        values = [figures[name] for figures in rounds]
        if name == "shares":
            whole[name] = {kind: statistics.mean(shares[kind] for shares in values) for kind in values[0]}
        elif None not in values:
            whole[name] = statistics.median(values)
    return whole


def row_of(options: argparse.Namespace, figures: Figures) -> Figures:
    prefill, decode = (statistics.median(times) if times else None for times in figures["seconds"].values())
    steps = min(options.tokens, options.steps)
    seconds = prefill + (steps - 1) * decode if decode is not None else prefill
    shares = figures["shares"]
    return {
        "tp": figures["tp"],
        "pp": figures["pp"],
        "metadata": figures["metadata"],
        "ranks": figures["ranks"],
        "prefill_s": prefill,
        "decode_s": decode,
        "tokens_per_s": options.batch * steps / seconds,
        "speedup": None,
        "efficiency": None,
        "rating": None,
        "communication_share": sum(share for kind, share in shares.items() if kind != "waiting"),
        **{f"{kind}_share": share for kind, share in shares.items()},
        "metadata_us": figures["metadata_us"],
        "rss_bytes": figures["rss"],
        "own_bytes": figures["own"],
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
        row["rating"] = "excellent" if found > excellent else "good" if found >= good else "to be improved"


# ---- The share of a broadcast in a step ------------------------------------------------------------------------------


def shares(options: argparse.Namespace, ranks: int) -> List[Figures]:
    found = run_ranks(run_burning, [(options, ranks)] * ranks, options.deadline)
    rows = []
    for step_ms in STEP_MS:
        for way in WAYS:
            times: List[List[Tuple[int, int]]] = [rank[step_ms, way] for rank in found]
            costs = []
            for calls in zip(*times):
                ready = calls[0][0]  # when rank 0 begins
                costs.append(max(end - max(start, ready) for start, end in calls))
            cost = statistics.median(costs)
            rows.append(
                {
                    "ranks": ranks,
                    "step_ms": step_ms,
                    "metadata": way,
                    "metadata_us": cost / 1e3,
                    "share": cost / (cost + step_ms * 1e6),
                    "note": f"{ranks} ranks on {cpus()} CPUs" if ranks > cpus() else "",
                }
            )
    return rows


def run_burning(rank: int, options: argparse.Namespace, ranks: int, store: str) -> Dict[Any, List[Tuple[int, int]]]:
    """The times of the rank's calls, by step_ms and way. After each broadcast the rank computes for step_ms."""
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=options.deadline)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)
    try:
        return burn_group(options, Links(Place(ranks, 1, rank)))
    finally:
        dist.destroy_process_group()


def burn_group(options: argparse.Namespace, links: Links) -> Dict[Any, List[Tuple[int, int]]]:
    found: Dict[Any, List[Tuple[int, int]]] = {}
    tokens = torch.zeros(options.batch, dtype=torch.int64)
    for step_ms, way, steps in turns_of_burning():
        calls = found.setdefault((step_ms, way), [])
        for step in range(steps):
            inputs = make_inputs(options, step, Turn(way, True, 0, 1), tokens) if links.place.rank == 0 else None
            links.calls.clear()
            links.metadata(way, inputs)
            calls.append((links.calls[0].start, links.calls[0].end))
            until = time.perf_counter_ns() + step_ms * 1_000_000
            while time.perf_counter_ns() < until:
                pass
            dist.barrier()
        if steps == SHARE_WARMUP:
            calls.clear()
    dist.barrier()
    return found


def turns_of_burning() -> Iterator[Tuple[int, str, int]]:
    for step_ms in STEP_MS:
        for way in WAYS:
            yield step_ms, way, SHARE_WARMUP
        for block in range(SHARE_BLOCKS):
            for way in WAYS if block % 2 == 0 else reversed(list(WAYS)):
                yield step_ms, way, SHARE_STEPS


# ---- The tables ------------------------------------------------------------------------------------------------------

Table = List[List[str]]


def layout_of(row: Figures) -> List[str]:
    both = f"TP {row['tp']}, PP {row['pp']}"
    name = f"PP {row['pp']}" if row["tp"] == 1 and row["pp"] > 1 else both if row["pp"] > 1 else f"TP {row['tp']}"
    return [name, row["metadata"] or "none"]


def cells_of_times(rows: List[Figures]) -> Table:
    table = [["layout", "metadata", "prefill ms", "decode ms", "tokens/s", "speed-up", "efficiency", "rating", ""]]
    for row in rows:
        line = [
            number(row["prefill_s"], 1e3, 1),
            number(row["decode_s"], 1e3, 2),
            number(row["tokens_per_s"], 1, 0),
            number(row["speedup"], 1, 2),
            number(row["efficiency"], 100, 0, " %"),
            row["rating"] or "-",
            row["note"],
        ]
        table.append(layout_of(row) + line)
    return table


def cells_of_communication(rows: List[Figures]) -> Table:
    heads = "layout,metadata,all_reduce,gather,send/recv,metadata,in all,of it waiting,metadata µs,RSS MiB,model MiB"
    table = [heads.split(",")]
    for row in rows:
        kinds = "all_reduce gather send_recv metadata communication waiting".split()
        line = [number(row[f"{kind}_share"], 100, 1, " %") for kind in kinds] + [number(row["metadata_us"], 1, 0)]
        line += [number(row[f"{name}_bytes"], 2**-20, 0) for name in ("rss", "model")]
        table.append(layout_of(row) + line)
    return table


def cells_of_shares(rows: List[Figures]) -> Table:
    table = [["ranks", "step", *(f"{way} {unit}" for way in WAYS for unit in ("µs", "share")), ""]]
    for ranks, step_ms in dict.fromkeys((row["ranks"], row["step_ms"]) for row in rows):
        line, note = [str(ranks), f"{step_ms} ms"], ""
        for row in rows:
            if (row["ranks"], row["step_ms"]) == (ranks, step_ms):
                line += [number(row["metadata_us"], 1, 0), number(row["share"], 100, 2, " %")]
                note = row["note"]
        table.append([*line, note])
    return table


def number(value: Any, factor: float, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value * factor:,.{digits}f}{unit}"


def as_text(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)).rstrip() for line in table]
    return "\n".join(lines)


def as_markdown(table: Table) -> str:
    head, *body = ["| " + " | ".join(line) + " |" for line in table]
    return "\n".join([head, "|" + "---|" * len(table[0]), *body])


def as_csv(rows: List[Figures]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def show(summary: Figures, format: str) -> None:
    if format == "json":
        print(json.dumps(summary, indent=2))
        return
    if format == "csv":
        print(as_csv(summary["rows"]), end="")
        if "metadata_share" in summary:
            print("\n" + as_csv(summary["metadata_share"]), end="")
        return
    table = as_text if format == "text" else as_markdown
    print(table(cells_of_times(summary["rows"])))
    print("\nCommunication, as a share of the time of a step, and memory of a rank:\n")
    print(table(cells_of_communication(summary["rows"])))
    if "metadata_share" in summary:
        print("\nThe broadcast of the metadata, and its share of a step:\n")
        print(table(cells_of_shares(summary["metadata_share"])))
    print("\n" + told(summary))


def told(summary: Figures) -> str:
    """The machine and the model."""
    model = ", ".join(f"{name} {value}" for name, value in summary["model"].items())
    differences = [row["difference"] for row in summary["rows"] if row["difference"] is not None]
    checked = "not compared with TP 1: --check does"
    if differences:
        checked = f"the logits and tokens of TP 1 in all layouts; the logits differ by {max(differences):.1g} at most"
    return f"{summary['machine']}; torch {summary['torch']}, a thread for each rank; {model}\nchecked: {checked}"
