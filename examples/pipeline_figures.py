# SPDX-License-Identifier: Apache-2.0
"""For pipeline.py: the figures of some runs of each mode: speed-up, theory, the times of each block, memory, goals."""

import itertools
import statistics
from typing import Any, Dict, List, Sequence

import numpy as np
from pipeline_graph import Settings, make_plans, workers_of
from pipeline_modes import Outcome, Span

ATOL = 1e-4
MODES = ("sequential", "threads", "asyncio", "processes")
BARE = "bare"


def difference(left: Outcome, right: Outcome) -> float:
    """The largest difference of a pair of results; infinite if shapes differ or a value is no number."""
    worst = 0.0
    for subgraph in left.results.keys() | right.results.keys():
        one, other = (outcome.results.get(subgraph) for outcome in (left, right))
        if one is None or other is None or one.shape != other.shape:
            return float("inf")
        if one.size:
            worst = max(worst, float(np.nan_to_num(np.abs(one - other), nan=np.inf).max()))
    return worst


def compare(turn: Dict[str, Outcome]) -> List[Dict[str, Any]]:
    """All pairs of modes of one turn."""
    found = []
    for one, other in itertools.combinations(turn, 2):
        worst = difference(turn[one], turn[other])
        equal = all(
            np.allclose(turn[one].results[subgraph], turn[other].results.get(subgraph, np.nan), rtol=0, atol=ATOL)
            for subgraph in turn[one].results
        )
        found.append({"pair": [one, other], "difference": worst, "equal": equal and worst != float("inf")})
    return found


# ---- Theory ----------------------------------------------------------------------------------------------------------


def theory(spans: Sequence[Span], settings: Settings, cores: int) -> Dict[str, float]:
    """Seconds by the CPU times of the sequential run: with a device for each worker, and with so many cores at most.
    Handing on costs nothing here, and the GIL is left out."""
    work = start = end = 0.0
    for plan in make_plans(settings):
        own = [span for span in spans if span.block.startswith(plan.name)]
        count = max(1, len(plan.subgraphs))
        seconds = {
            stage: sum(span.cpu for span in own if span.kind == "stage" and span.stage == stage) / count
            for stage in range(1, 8)
        }
        loading = sum(span.cpu for span in own if span.kind == "load") / count
        blocks = [sum(seconds[stage] for stage in block.stages) * max(block.shares) for block in plan.blocks]
        blocks[0] += loading
        finished = [start] * len(blocks)
        for _ in plan.subgraphs:
            before = 0.0
            for number, duration in enumerate(blocks):
                before = finished[number] = max(before, finished[number]) + duration
        work += (loading + sum(seconds.values())) * len(plan.subgraphs)
        start, end = finished[0], max(end, finished[-1])  # the next plan begins when the first block has ended
    return {"devices": work / max(end, 1e-9), "cores": work / max(end, work / cores, 1e-9)}


# ---- Figures ---------------------------------------------------------------------------------------------------------


def of_block(spans: Sequence[Span], subgraphs: int) -> Dict[str, float]:
    """Milliseconds, summed over the workers of a block. `execution` is the time from the start of the block's first
    stage to the end of the last; less CPU time and less waiting for a CPU, the rest is waiting for the GIL."""
    sums = {
        kind: 1e3 * sum(span.end - span.start for span in spans if span.kind == kind)
        for kind in ("block", "wait", "load", "send", "recv")
    }
    blocks = [span for span in spans if span.kind == "block"]
    cpu, queue = (1e3 * sum(getattr(span, name) for span in blocks) for name in ("cpu", "queue"))
    return {
        "execution_ms": sums["block"],
        "average_ms": sums["block"] / max(1, subgraphs),
        "input_wait_ms": sums["wait"],
        "load_ms": sums["load"],
        "hand_over_ms": sums["send"] + sums["recv"],
        "cpu_ms": cpu,
        "cpu_wait_ms": min(queue, max(0.0, sums["block"] - cpu)),
        "gil_wait_ms": max(0.0, sums["block"] - cpu - queue),
    }


def of_run(outcome: Outcome, settings: Settings, cores: int) -> Dict[str, Any]:
    plans = make_plans(settings)
    blocks = {
        f"{plan.name}{number + 1}": of_block(
            [span for span in outcome.spans if span.block == f"{plan.name}{number + 1}"], len(plan.subgraphs)
        )
        for plan in plans
        for number in range(len(plan.blocks))
    }
    sums = {key: sum(block[key] for block in blocks.values()) for key in next(iter(blocks.values()))}
    busy = sums["execution_ms"] + sums["load_ms"] + sums["hand_over_ms"]
    clusters = {}
    for plan in plans:
        own = [span for span in outcome.spans if span.block.startswith(plan.name)]
        clusters[plan.name] = max((span.end for span in own), default=0) - min((span.start for span in own), default=0)
    return {
        "seconds": outcome.seconds,
        "prepare_seconds": outcome.prepare_seconds,
        "plan_seconds": clusters,
        "blocks": blocks,
        "gil_wait_share": sums["gil_wait_ms"] / busy if busy else 0.0,
        "cpu_wait_share": sums["cpu_wait_ms"] / busy if busy else 0.0,
        "stolen_share": outcome.stolen / max(outcome.seconds, 1e-9) / cores,
        "hand_over_ms": sums["hand_over_ms"],
        "hand_over_share": sums["hand_over_ms"] / busy if busy else 0.0,
        "sent_bytes": outcome.sent_bytes,
        "processes": outcome.memory,
        "rss": sum(process["rss"] for process in outcome.memory),
        "pss": sum(process["pss"] for process in outcome.memory),
    }


def median(values: Sequence[Any]) -> Any:
    """Of numbers, or of dicts of numbers, key by key; of all else the first."""
    first = values[0]
    if isinstance(first, dict):
        return {key: median([value[key] for value in values]) for key in first}
    return statistics.median(values) if isinstance(first, (int, float)) else first


def figures(turns: List[Dict[str, Outcome]], settings: Settings, cores: int) -> Dict[str, Any]:
    """Of all runs with one kind of stages: medians over the turns."""
    modes: Dict[str, Any] = {}
    for mode in turns[0]:
        modes[mode] = median([of_run(turn[mode], settings, cores) for turn in turns])
        modes[mode]["all_seconds"] = [turn[mode].seconds for turn in turns]
    possible = median([theory(turn["sequential"].spans, settings, cores) for turn in turns])
    for mode, found in modes.items():
        found["speedup"] = modes["sequential"]["seconds"] / found["seconds"]
        found["efficiency"] = found["speedup"] / (1.0 if mode == "sequential" else possible["cores"])
        found["of_bare"] = (
            found["speedup"] * modes[BARE]["seconds"] / modes["sequential"]["seconds"] if BARE in modes else None
        )
    pairs = [pair for turn in turns for pair in compare(turn)]
    return {
        "theory": possible,
        "modes": modes,
        "equal": {
            "pairs": len(pairs),
            "difference": max((pair["difference"] for pair in pairs), default=0.0),
            "unequal": [pair["pair"] for pair in pairs if not pair["equal"]],
        },
    }


SHORTEST_RUN = 1.0  # seconds; in less, the start of threads and processes counts


def why_not_judged(found: Dict[str, Any]) -> List[str]:
    """Why the figures are no answer to whether the goals are met."""
    reasons = [] if found["repeat"] > 1 else ["there is one turn (--repeat 5 makes five)"]
    shortest = min(each["modes"]["sequential"]["seconds"] for each in found["gil"].values())
    if shortest < SHORTEST_RUN:
        reasons.append(f"the sequential run took {shortest:.2f} s, less than {SHORTEST_RUN:g}")
    return reasons


def goals(found: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Each goal, the figure found, and whether the goal is met; None: not judged."""
    judged = not why_not_judged(found)

    def goal(text: str, value: Any, most: bool, limit: float) -> None:
        if value is not None:
            met = (value <= limit if most else value >= limit) if judged else None
            rows.append({"goal": text, "wanted": f"{'<=' if most else '>='} {limit}", "found": value, "met": met})

    rows: List[Dict[str, Any]] = []
    for gil, each in found["gil"].items():
        modes = each["modes"]
        threads, processes = modes.get("threads", {}), modes.get("processes", {})
        if gil == "hold":
            goal("stages that hold the GIL: speed-up of threads", threads.get("speedup"), True, 1.05)
            goal(
                "stages that hold the GIL: processes, of bare processes' speed-up", processes.get("of_bare"), False, 0.9
            )
        else:
            goal(
                "stages that release the GIL: threads, of bare processes' speed-up", threads.get("of_bare"), False, 0.85
            )
    goal("edges mapped: loop to vectorised", found["mapping"]["ratio"], False, 50)
    return rows


def representative(turns: List[Dict[str, Outcome]], mode: str) -> Outcome:
    """The run of a mode with the median time, or the next shorter time."""
    outcomes = sorted((turn[mode] for turn in turns), key=lambda outcome: outcome.seconds)
    return outcomes[(len(outcomes) - 1) // 2]


def worker_names(settings: Settings, mode: str) -> List[str]:
    plans = make_plans(settings)
    if mode in ("sequential", BARE):
        return [f"{plan.name}{number + 1}" for plan in plans for number in range(len(plan.blocks))]
    return [str(worker) for plan in plans for worker in workers_of(plan)]
