# SPDX-License-Identifier: Apache-2.0
"""The rows of results.json for report.py: which rows are compared, and which figure of a row counts.

A cell is a language, a payload, a scenario, a number of processes and a reading. Ways in the same cell are compared;
the ways of the family "ringcast" are "ours", the rest but the floors are peers.

A row in C says what half a round trip of a bare cache line took just before and after (`line_ns`, `line_after_ns`). On
a virtual machine the line has two costs, near and far, as the host moves the CPUs. A row's state is "near" if both are
below twice the least line of the whole result, "far" if neither is, else "changed". Rows of one state are compared.
"""

import collections
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from measured import fill  # noqa: E402, F401
from tables import ns, rate_of, ratio, size_of, table, three  # noqa: E402, F401

OURS = "ringcast"
HANDS_OVER = ("mp-queue",)  # the call of the writer leaves pickling to a thread
OBJECTS = ["records-10", "records-100", "records-1000", "records-10000", "metadata"]
SCHEDULER = ["scheduler-1", "scheduler-64", "scheduler-256"]
RECORDS = OBJECTS[:4]


def spent_us(row):
    """The calls of write and read together; the read of a collective way includes the write."""
    calls = [row.get("read_us")] if row.get("collective") else [row.get("write_us"), row.get("read_us")]
    return None if None in calls else sum(calls)


def cpu_percent(row):
    """Of a CPU, writer and readers together."""
    parts = [row.get("cpu_writer_s"), row.get("cpu_reader_s"), row.get("seconds")]
    return None if None in parts or not parts[2] else 100 * (parts[0] + parts[1]) / parts[2]


def plain(key):
    return lambda row: row.get(key)


def as_us(value):
    return ns(1000 * value)


# Name of a figure: the function of a row, whether more is better, the form.
FIGURES = {
    "p50_us": (plain("p50_us"), False, as_us),
    "p99_us": (plain("p99_us"), False, as_us),
    "write_us": (plain("write_us"), False, as_us),
    "read_us": (plain("read_us"), False, as_us),
    "spent_us": (spent_us, False, as_us),
    "cpu": (cpu_percent, False, lambda share: f"{three(share)} %"),
    "rss_mb": (plain("rss_mb"), False, "{:.0f} MB".format),
    "gil_share": (plain("gil_share"), False, lambda share: f"{100 * share:.0f} %"),
    "messages_per_s": (plain("messages_per_s"), True, lambda rate: f"{rate_of(rate)}/s"),
    "bytes_per_s": (
        plain("bytes_per_s"),
        True,
        lambda rate: f"{rate / 1e9:.2f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.0f} MB/s",
    ),
}

# The figures by which a way can win a cell; in the scenarios left out, by p50.
DECIDES = {
    "call": ["write_us", "read_us"],
    "codec": ["write_us", "read_us"],
    "shared": ["read_us"],
    "stream": ["messages_per_s"],
    "batch": ["messages_per_s"],
    "slow": ["p50_us", "write_us"],
    **dict.fromkeys(["idle", "every5", "every25"], ["p50_us", "cpu"]),
    "gil": [],
}

STATES = ("far", "changed", "near")  # by the number of lines that are near
COMPARED = ("near", "far", None)  # None: the line was not measured. The first state that both sides have counts
FLOOR = "c-in-place"  # the same bytes in a shared buffer, without a queue
LINE = "c-cache-line"


def value_of(row, figure):
    return FIGURES[figure][0](row)


def shown(value, figure):
    return "" if value is None else FIGURES[figure][2](value)


def payload_name(row):
    name = str(row.get("payload"))
    return size_of(row["bytes"]) if name.startswith("bytes-") and row.get("bytes") else name


def size_order(row):
    return (row.get("bytes") or 0, str(row.get("payload")))


def ours(row):
    return row.get("family") == OURS


def in_process(row):
    """Whether the way joins threads of a process: no border is crossed, and the way is no rival of a broadcast."""
    return "threads of one process" in (row.get("note") or "")


def label(row):
    """The name of the way; by ringcast, objects go in typed frames unless the label says otherwise."""
    pickled = ours(row) and row.get("reading") == "objects" and row.get("serialiser") == "pickle5"
    return f"{row['peer']}, pickled" if pickled else row["peer"]


def lossy(row):
    return row.get("lossless") is False


def crossing(row):
    """A rival of a broadcast: delivers every message, from one process to another."""
    return not lossy(row) and not in_process(row)


def set_states(rows):
    least = min((row["line_ns"] for row in rows if row.get("line_ns")), default=0)
    for row in rows:
        lines = row.get("line_ns"), row.get("line_after_ns")
        row["state"] = STATES[sum(line < 2 * least for line in lines)] if all(lines) else None


def headline_row(found):
    """A row of a way: the median of the near rounds, or of the far ones if there are none."""
    trips = collections.defaultdict(dict)
    for number, row in enumerate(found):
        trips[row["state"]][row.get("round") or number] = row["half_round_trip_ns"]
    state = next((state for state in (*COMPARED, "changed") if state in trips))
    times = list(trips[state].values())
    middle = {"p50_us": statistics.median(times) / 1000, "spread": max(times) / min(times), "rounds": len(times)}
    return {**found[0], "scenario": "headline", **middle, "state": state, "trips": dict(trips)}


def load(results):
    """The rows with their states, and a row of each way for the headline: half of a round trip of 64 B. The rows of the
    alternating rounds have a field `round`, and are in no cell beside."""
    every = [dict(row) for row in results["rows"]]
    set_states(every)
    rows = [row for row in every if row.get("round") is None]
    for row in rows:
        if row.get("reading") == "in-place":
            row["scenario"] = "in-place"
        if row["peer"] in HANDS_OVER:
            row["write_us"] = None
    trips = [row for row in every if row.get("half_round_trip_ns") is not None and row["status"] == "ok"]
    alternating = [row for row in trips if row.get("round") is not None]
    ways = collections.defaultdict(list)
    for row in alternating or trips:
        ways[row["peer"], row["bytes"], row["processes"]].append(row)
    return rows + [headline_row(found) for found in ways.values()]


def reading(row):
    """Typed frames are how ringcast sends objects without a pickle: rows of one cell."""
    return "objects" if row.get("reading") == "typed" else row.get("reading")


def cell(row):
    names = (row["language"], row.get("payload"), row["scenario"], row.get("processes"), reading(row))
    return (*names, row.get("state"))


def select(rows, floors=False, **wanted):
    """The good rows with the wanted fields; a list stands for any value in the list."""

    def fits(row):
        for key, want in wanted.items():
            have = reading(row) if key == "reading" else row.get(key)
            if have not in want if isinstance(want, (list, tuple, set)) else have != want:
                return False
        return True

    return [row for row in rows if row.get("status") == "ok" and (floors or not row.get("floor")) and fits(row)]


def best(rows, figure):
    """The best row by the figure, if there is a row."""
    found = [row for row in rows if value_of(row, figure) is not None]
    more = FIGURES[figure][1]
    return min(found, key=lambda row: (-1 if more else 1) * value_of(row, figure), default=None)


def one_state(rows):
    """The rows of the state that most rows with a state have; rows without a state stay."""
    counts = collections.Counter(row["state"] for row in rows if row.get("state"))
    most = counts.most_common(1)[0][0] if counts else None
    return [row for row in rows if row.get("state") in (None, most)]


def geometric(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def ranked(lines, more=False):
    """Names from the best to the worst: by the mean ratios to the best figures, so that a name with few figures is not
    favoured. more: more is better."""
    columns = collections.defaultdict(list)
    for cells in lines.values():
        for key, value in cells.items():
            columns[key].append(value)
    pick = max if more else min
    top = {key: pick(value for value in values if value > 0) for key, values in columns.items() if max(values) > 0}

    def mean(name):
        ratios = [value / top[key] for key, value in lines[name].items() if value > 0 and key in top]
        return geometric([1 / share for share in ratios] if more else ratios) if ratios else math.inf

    return sorted(lines, key=lambda name: (mean(name), name))
