# SPDX-License-Identifier: Apache-2.0
"""The rows of results.json for report.py: which are compared, and which figure counts.

A cell is a language, a payload, a scenario, a number of processes and a reading. Ways in the same
cell are compared; the ways of the family "ringcast" are "ours", the rest but the floors are peers.

A row in C says what half a round trip of a bare cache line took just before and after. On a virtual
machine the line has two costs, near and far, as the host moves the CPUs. A row's state is "near" if
both are below twice the least line of the whole result, "far" if neither is, else "changed". Rows
of one state are compared.
"""

import collections
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench.tables import ns, rate_of, size_of, three  # noqa: E402


def cpu_percent(row):
    """Of a CPU, writer and readers together."""
    parts = [row.get("cpu_writer_s"), row.get("cpu_reader_s"), row.get("seconds")]
    return None if None in parts or not parts[2] else 100 * (parts[0] + parts[1]) / parts[2]


def time_of(us):
    return ns(1000 * us)


# How a figure is shown, and whether more is better.
FIGURES = {
    "p50_us": (time_of, False),
    "p99_us": (time_of, False),
    "write_us": (time_of, False),
    "read_us": (time_of, False),
    "cpu": (lambda share: f"{three(share)} %", False),
    "gil_share": (lambda share: f"{100 * share:.0f} %", False),
    "messages_per_s": (lambda rate: f"{rate_of(rate)}/s", True),
}
STATES = ("far", "changed", "near")  # by how many of the two lines are near
COMPARED = ("near", "far", None)  # None: not measured. The first state that both sides have counts


def value_of(row, figure):
    return cpu_percent(row) if figure == "cpu" else row.get(figure)


def shown(value, figure):
    return "" if value is None else FIGURES[figure][0](value)


def payload_name(row):
    name = str(row.get("payload"))
    return size_of(row["bytes"]) if name.startswith("bytes-") and row.get("bytes") else name


def ours(row):
    return row.get("family") == "ringcast"


def crossing(row):
    """A rival of a broadcast: between threads of one process no border is crossed."""
    return not row.get("in_process")


def set_states(rows):
    least = min((row["line_ns"] for row in rows if row.get("line_ns")), default=0)
    for row in rows:
        lines = row.get("line_ns"), row.get("line_after_ns")
        row["state"] = STATES[sum(line < 2 * least for line in lines)] if all(lines) else None


def headline(rounds):
    """A row of the rounds of a way: the median of the near rounds, or of the far ones if there are
    none."""
    for state in (*COMPARED, "changed"):
        times = [row["p50_us"] for row in rounds if row["state"] == state]
        if times:
            return {
                **rounds[0],
                "p50_us": statistics.median(times),
                "state": state,
                "rounds": len(times),
            }
    return rounds[0]


def load(results):
    """The rows with their states; of the rounds of "round-trip" a row for each way."""
    rows = [dict(row) for row in results["rows"]]
    set_states(rows)
    ways = collections.defaultdict(list)
    for row in rows:
        if row["scenario"] == "round-trip" and row["status"] == "ok":
            ways[row["peer"]].append(row)
    return [row for row in rows if row["scenario"] != "round-trip"] + list(
        map(headline, ways.values())
    )


def cell(row):
    names = ("language", "payload", "scenario", "processes", "state", "reading")
    return tuple(row.get(name) for name in names)


def select(rows, floors=False, **wanted):
    """The good rows with the wanted fields; a list stands for any value in the list."""

    def fits(row):
        for key, want in wanted.items():
            have = row.get(key)
            if have not in want if isinstance(want, list) else have != want:
                return False
        return True

    good = [row for row in rows if row.get("status") == "ok"]
    return [row for row in good if (floors or not row.get("floor")) and fits(row)]


def best(rows, figure):
    """The best row by the figure, if there is a row."""
    found = [row for row in rows if value_of(row, figure) is not None]
    sign = -1 if FIGURES[figure][1] else 1
    return min(found, key=lambda row: sign * value_of(row, figure), default=None)


def ranked(lines, more=False):
    """
    Names from the best to the worst: by the mean ratio to the best figure of each column, so that a
    name with few figures is not favoured. `lines`: {name: {column: figure}}; `more`: more is
    better.
    """
    top = {}
    for cells in lines.values():
        for key, value in cells.items():
            if value > 0:
                top[key] = (max if more else min)(value, top.get(key, value))

    def mean(name):
        ratios = [math.log(value / top[key]) for key, value in lines[name].items() if value > 0]
        found = statistics.fmean(ratios) if ratios else math.inf
        return -found if more else found

    return sorted(lines, key=lambda name: (mean(name), name))
