# SPDX-License-Identifier: Apache-2.0
"""
The figures of some runs of each mode, the tables, and the Gantt chart as text or as a picture.
"""

import itertools
import statistics
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np
from graph import Settings, make_plans, workers_of
from modes import Outcome, Span

Turn = Dict[str, Outcome]  # by the name of the case
ATOL = 1e-4
KINDS = {"hold": "Stages that hold the GIL", "release": "Stages that release the GIL"}

# ---- Figures -------------------------------------------------------------------------------------


def unequal(turn: Turn) -> List[Tuple[str, str]]:
    """The pairs of runs with results that differ."""

    def equal(left: Dict[int, Any], right: Dict[int, Any]) -> bool:
        if left.keys() != right.keys():
            return False
        return all(
            left[each].shape == right[each].shape
            and np.allclose(left[each], right[each], rtol=0, atol=ATOL)
            for each in left
        )

    pairs = itertools.combinations(turn, 2)
    return [
        (one, other) for one, other in pairs if not equal(turn[one].results, turn[other].results)
    ]


def theory(spans: Sequence[Span], settings: Settings, cores: int) -> float:
    """
    The speed-up by the CPU times of the sequential run, with a device for each worker, and no more
    than the cores allow. Handing over costs nothing here, and the GIL is left out.
    """
    work = start = end = 0.0
    for plan in make_plans(settings):
        own = [span for span in spans if span.block.startswith(plan.name)]
        count = max(1, len(plan.subgraphs))
        seconds = [
            sum(span.cpu for span in own if span.stage == stage) / count for stage in range(8)
        ]
        loading = sum(span.cpu for span in own if span.kind == "load") / count
        blocks = [
            sum(seconds[stage] for stage in block.stages) * max(block.shares)
            for block in plan.blocks
        ]
        blocks[0] += loading
        finished = [start] * len(blocks)
        for _ in plan.subgraphs:
            before = 0.0
            for number, duration in enumerate(blocks):
                before = finished[number] = max(before, finished[number]) + duration
        work += (loading + sum(seconds[1:])) * len(plan.subgraphs)
        # The next plan begins when the first block has ended.
        start, end = (
            finished[0],
            max(end, finished[-1]),
        )
    return work / max(end, work / cores, 1e-9)


def of_block(spans: Sequence[Span], subgraphs: int) -> Dict[str, float]:
    """Milliseconds, summed over the workers of a block. Execution is the time from the start of the
    block's first stage to the end of the last; less CPU time and less waiting for a CPU, the rest
    is waiting for the GIL."""
    sums = dict.fromkeys(("block", "wait", "load", "send", "recv", "stage"), 0.0)
    for span in spans:
        sums[span.kind] += 1e3 * (span.end - span.start)
    cpu = 1e3 * sum(span.cpu for span in spans if span.kind == "block")
    queue = 1e3 * sum(span.queue for span in spans)
    return {
        "execution": sums["block"],
        "per subgraph": sums["block"] / max(1, subgraphs),
        "wait for input": sums["wait"],
        "load": sums["load"],
        "hand over": sums["send"] + sums["recv"],
        "CPU": cpu,
        "wait for CPU": min(queue, max(0.0, sums["block"] - cpu)),
        "wait for GIL": max(0.0, sums["block"] - cpu - queue),
    }


def of_run(outcome: Outcome, settings: Settings, cores: int) -> Dict[str, Any]:
    blocks, plan_seconds = {}, {}
    for plan in make_plans(settings):
        own = [span for span in outcome.spans if span.block.startswith(plan.name)]
        plan_seconds[plan.name] = max(span.end for span in own) - min(span.start for span in own)
        for block in sorted({span.block for span in own}):
            blocks[block] = of_block(
                [span for span in own if span.block == block], len(plan.subgraphs)
            )
    sums = {key: sum(block[key] for block in blocks.values()) for key in blocks["A1"]}
    busy = max(sums["execution"] + sums["load"] + sums["hand over"], 1e-9)
    return {
        "seconds": outcome.seconds,
        "prepare_seconds": outcome.prepare_seconds,
        "plan_seconds": plan_seconds,
        "blocks": blocks,
        "gil_wait_share": sums["wait for GIL"] / busy,
        "cpu_wait_share": sums["wait for CPU"] / busy,
        "stolen_share": outcome.stolen / max(outcome.seconds, 1e-9) / cores,
        "hand_over_ms": sums["hand over"],
        "sent_bytes": outcome.sent_bytes,
        "processes": len(outcome.memory),
        "rss": sum(process["rss"] for process in outcome.memory),
        "pss": sum(process["pss"] for process in outcome.memory),
    }


def median(values: Sequence[Any]) -> Any:
    """Of numbers, or of dicts of numbers, key by key."""
    if isinstance(values[0], dict):
        return {key: median([value[key] for value in values]) for key in values[0]}
    return statistics.median(values)


def figures(turns: List[Turn], settings: Settings, cores: int, first: str) -> Dict[str, Any]:
    """
    Of all runs with one kind of stages: medians over the turns. first: the case that speed-ups are
    relative to.
    """
    cases = {
        name: median([of_run(turn[name], settings, cores) for turn in turns]) for name in turns[0]
    }
    possible = median([theory(turn[first].spans, settings, cores) for turn in turns])
    for name, found in cases.items():
        found["speedup"] = cases[first]["seconds"] / found["seconds"]
        found["efficiency"] = None if name == first else found["speedup"] / possible
        found["of_bare"] = cases["bare"]["seconds"] / found["seconds"] if "bare" in cases else None
    return {
        "theory": possible,
        "modes": cases,
        "pairs": sum(len(turn) * (len(turn) - 1) // 2 for turn in turns),
        "unequal": [pair for turn in turns for pair in unequal(turn)],
    }


# ---- Tables --------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    lines = [
        " | ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:])),
            ]
        )
        for row in [columns, *rows]
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join(rule), *lines[1:]])


def percent(share: Any) -> str:
    return "" if share is None else f"{share * 100:.1f} %"


def tables(found: Dict[str, Any]) -> Iterator[str]:
    for gil, each in found["gil"].items():
        yield f"**{KINDS[gil]}**; at best {each['theory']:.2f} times the speed on these cores"
        columns = [
            "mode",
            "seconds",
            "speed-up",
            "efficiency",
            "of bare",
            "waiting for GIL",
            "for CPU",
            "taken by host",
        ]
        columns += ["prepare s", "processes", "RSS MB", "PSS MB", "sent MB", "handing over ms"]
        rows = []
        for mode, of in each["modes"].items():
            shares = (of[f"{name}_share"] for name in ("gil_wait", "cpu_wait", "stolen"))
            megabytes = (f"{of[name] / 1e6:.0f}" for name in ("rss", "pss", "sent_bytes"))
            rows.append(
                [mode, f"{of['seconds']:.2f}", f"{of['speedup']:.2f}", percent(of["efficiency"])]
            )
            rows[-1] += [
                percent(of["of_bare"]),
                *map(percent, shares),
                f"{of['prepare_seconds']:.2f}",
            ]
            rows[-1] += [str(of["processes"]), *megabytes, f"{of['hand_over_ms']:.1f}"]
        yield table(columns, rows)
        yield f"Of {each['pairs']} pairs of results {len(each['unequal'])} differ."
        yield f"**{KINDS[gil]}: what each block did**; ms, all its workers"
        blocks = [
            (f"{mode} {name}", of)
            for mode, all in each["modes"].items()
            for name, of in all["blocks"].items()
        ]
        yield table(
            ["block", *blocks[0][1]],
            [[name, *(f"{ms:.0f}" for ms in of.values())] for name, of in blocks],
        )
    loop, vectorised = (found["mapping_ms"][name] for name in ("loop", "vectorised"))
    yield (
        f"The edges of a subgraph mapped: {loop:.1f} ms in a loop, {vectorised:.3f} ms vectorised."
    )


# ---- Gantt ---------------------------------------------------------------------------------------

COLUMNS = 96
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def names_of(outcome: Outcome, settings: Settings) -> List[str]:
    """The workers of a run, in the order of the plans."""
    there = {span.worker for span in outcome.spans}
    workers = [str(worker) for plan in make_plans(settings) for worker in workers_of(plan)]
    return [name for name in workers if name in there] or sorted(there)


def gantt(outcome: Outcome, names: Sequence[str]) -> str:
    """A line for each worker: the subgraph in its stages (0-9, a-z), + loading, ~ handing over, .
    waiting for input."""
    scale = COLUMNS / max(outcome.seconds, 1e-9)
    lines = []
    for name in names:
        weights: List[Dict[str, float]] = [{} for _ in range(COLUMNS)]
        for span in outcome.spans:
            if span.worker == name and span.kind != "stage":
                mark = {"block": DIGITS[span.subgraph % 36], "load": "+", "wait": "."}.get(
                    span.kind, "~"
                )
                begin, end = ((moment - outcome.began) * scale for moment in (span.start, span.end))
                for column in range(max(0, int(begin)), min(COLUMNS, int(end) + 1)):
                    part = min(end, column + 1) - max(begin, column)
                    weights[column][mark] = weights[column].get(mark, 0.0) + part
        marks = "".join(
            max(weight, key=lambda mark: weight[mark]) if weight else " " for weight in weights
        )
        lines.append(f"  {name:8} {marks.rstrip()}")
    return "\n".join(lines)


def representative(turns: List[Turn], mode: str) -> Outcome:
    """The run of a mode with the median time, or the next shorter time."""
    outcomes = sorted((turn[mode] for turn in turns), key=lambda outcome: outcome.seconds)
    return outcomes[(len(outcomes) - 1) // 2]


def gantts(
    found: Dict[str, Any], turns: Dict[str, List[Turn]], settings: Settings
) -> Iterator[str]:
    for gil, each in found["gil"].items():
        yield (
            f"{KINDS[gil]}. Digits: the subgraph in its stages; + loads, ~ hands over, . waits for "
            "input."
        )
        for mode, of in each["modes"].items():
            if mode != "bare":
                outcome = representative(turns[gil], mode)
                plans = ", ".join(
                    f"plan {plan} {seconds:.2f}" for plan, seconds in of["plan_seconds"].items()
                )
                yield f"{mode}, {outcome.seconds:.2f} s ({plans})\n" + gantt(
                    outcome, names_of(outcome, settings)
                )


COLOURS = {
    "stages, plan A": "#2f6fb0",
    "stages, plan B": "#2f9060",
    "waits for the GIL": "#d64541",
    "waits for a CPU": "#d0d0d0",
    "loads": "#7a5aa6",
    "hands over": "#f2a33c",
}
SHORTEST = 0.0005  # seconds that can be seen
Bar = Tuple[float, float, str, float]  # start, length, what, opacity


def bars(span: Span) -> Iterator[Bar]:
    """
    Of a block the CPU time first, then the waits: the lengths are measured, the places are not.
    """
    length = span.end - span.start
    if span.kind == "block":
        running = min(length, span.cpu)
        for_cpu = min(length - running, span.queue)
        yield (
            span.start,
            running,
            f"stages, plan {span.block[0]}",
            1.0 if span.subgraph % 2 else 0.6,
        )
        yield span.start + running, for_cpu, "waits for a CPU", 1.0
        yield span.start + running + for_cpu, length - running - for_cpu, "waits for the GIL", 1.0
    elif span.kind in ("load", "send", "recv"):
        yield span.start, length, "loads" if span.kind == "load" else "hands over", 1.0


def draw(
    found: Dict[str, Any], turns: Dict[str, List[Turn]], settings: Settings, path: str
) -> None:
    """ModuleNotFoundError: matplotlib is not installed."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    kinds = list(found["gil"])
    modes = [mode for mode in found["gil"][kinds[0]]["modes"] if mode != "bare"]
    figure = Figure(figsize=(7.5 * len(kinds), 1.0 + 1.75 * len(modes)), layout="constrained")
    axes = figure.subplots(len(modes), len(kinds), squeeze=False, sharex=True)
    for (row, mode), (column, gil) in itertools.product(enumerate(modes), enumerate(kinds)):
        panel(axes[row][column], representative(turns[gil], mode), settings)
        own = found["gil"][gil]["modes"][mode]
        title = f"{mode}, {own['seconds']:.2f} s, {own['speedup']:.2f} times as fast"
        axes[row][column].set_title(
            f"{KINDS[gil]}: {title}" if row == 0 else title, fontsize=10, loc="left"
        )
        axes[-1][column].set_xlabel("seconds")
    handles = [Patch(color=colour, label=what) for what, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 * len(kinds), frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ringcast"}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def panel(axis: Any, outcome: Outcome, settings: Settings) -> None:
    names = names_of(outcome, settings)
    for line, name in enumerate(names):
        found: Dict[Tuple[str, float], List[Tuple[float, float]]] = {}
        for span in outcome.spans:
            for start, length, what, opacity in bars(span) if span.worker == name else ():
                if length > SHORTEST:
                    found.setdefault((what, opacity), []).append((start - outcome.began, length))
        for (what, opacity), places in sorted(found.items()):
            axis.broken_barh(
                places, (line - 0.4, 0.8), facecolor=COLOURS[what], alpha=opacity, linewidth=0
            )
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
