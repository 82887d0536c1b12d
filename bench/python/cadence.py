# SPDX-License-Identifier: Apache-2.0
"""Messages at the cadence of an engine's steps: ringcast's queue beside vLLM's queue, with readers
that spin for one second after each message, and with readers that spin for 2 ms; and beside pickle
by pipes, whose readers only sleep.

A row of the table has one of GAPS and one of RANKS, all ways in turns. Processes, times and answers
are as in dropin.py. The CPU time is the sum of all processes with all threads, in percent of one
CPU, answers included.
"""

import functools
import math
from typing import Any, Callable, Dict, List, Optional, Sequence

from bench.python import dropin
from bench.python.harness import Plan, Processes, Table, in_turns, say

GAPS = (1.0, 5.0, 20.0, 50.0)  # ms
RANKS = (2, 3, 5)  # 1, 2 and 4 readers
SECONDS = 900.0  # for some 600 messages of each way in each row, those of the warm-up left out
OURS = "ringcast"
(NAME,) = dropin.CADENCE
FIGURES = ("p50_us", "p99_us", "cpu_percent")


def seconds_of(gap: float, gaps: Sequence[float], sizes: int, seconds: float) -> float:
    """The seconds of a row: more for longer gaps, and still more messages for shorter ones."""
    return seconds * math.sqrt(gap) / (sum(math.sqrt(each) for each in gaps) * sizes)


def of_row(turns: Dict[str, List[dropin.Turn]]) -> Dict[str, Any]:
    """The figures of the ways of a row, and ringcast's ratio to each other way."""
    found = dropin.figures(turns, {})["ways"]
    for way, its in turns.items():
        cpu = sum(len(turn.spans) * sum(turn.cpu_us) for turn in its)
        wall = sum(len(turn.spans) * turn.period_us for turn in its)
        found[way]["cpu_percent"] = 100 * cpu / wall
    ratios = {
        way: {key: found[OURS][key] / figures[key] for key in FIGURES}
        for way, figures in found.items()
        if way != OURS
    }
    return {"ways": found, "ratios": ratios}


def measure(
    ranks: Processes, chosen: Sequence[str], gaps: Sequence[float], share: Any
) -> List[Dict[str, Any]]:
    found = []
    for gap in gaps:
        say(f"cadence {gap:g} ms, {ranks.count} ranks")
        ranks.ask(("pace", Plan(gap / 1e3)))
        ways: Dict[str, Callable[[int], Any]] = {
            way: functools.partial(dropin.turn, ranks, way) for way in chosen
        }
        turns = in_turns(ways, share(gap), gap / 1e3)
        found.append({"name": f"{gap:g} ms", "gap_ms": gap, "ranks": ranks.count, **of_row(turns)})
    return found


def run(
    gaps: Sequence[float], sizes: Sequence[int], seconds: float, vllm: Optional[str] = None
) -> Dict[str, Any]:
    vllm = dropin.check(vllm)
    found: List[Dict[str, Any]] = []
    left_out: Dict[str, str] = {}
    for size in sizes:
        with dropin.all_ranks(size, Plan(), "cadence", vllm) as ranks:
            chosen, left_out = dropin.take(ranks, NAME, dropin.CADENCE[NAME])
            share = functools.partial(seconds_of, gaps=gaps, sizes=len(sizes), seconds=seconds)
            found += measure(ranks, chosen, gaps, share)
    found.sort(key=lambda row: (row["gap_ms"], row["ranks"]))
    return {"cases": found, "left_out": left_out}


def tables(found: Dict[str, Any]) -> List[Table]:
    rows = {
        f"{row['name']}, {row['ranks']} ranks: {way}": {**figures, "ratio": row["ratios"].get(way)}
        for row in found["cases"]
        for way, figures in row["ways"].items()
    }
    titles = {"p50_us": "p50", "p99_us": "p99", "cpu_percent": "CPU, %"}
    columns = [
        (f"{title}, us" if key != "cpu_percent" else title, key) for key, title in titles.items()
    ]
    columns += [
        (f"ratio of {title.partition(',')[0]}", f"ratio.{key}") for key, title in titles.items()
    ]
    return [("case", [*columns, ("messages", "messages")], rows)]
