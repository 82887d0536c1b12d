# SPDX-License-Identifier: Apache-2.0
"""The rows of results.json for report.py: which rows are compared, and which figure of a row counts.

A cell is a language, a payload, a scenario, a number of processes and a reading. Ways in the same cell are compared;
the ways of the family "ringcast" are "ours", the rest but the floors are peers.
"""

import collections
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from tables import ns, rate_of, ratio, size_of, table, three  # noqa: E402, F401

OURS = "ringcast"
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
    "cpu": (cpu_percent, False, "{:.2f} %".format),
    "rss_mb": (plain("rss_mb"), False, "{:.0f} MB".format),
    "gil_share": (plain("gil_share"), False, lambda share: f"{100 * share:.0f} %"),
    "messages_per_s": (plain("messages_per_s"), True, lambda rate: f"{rate_of(rate)}/s"),
    "bytes_per_s": (plain("bytes_per_s"), True, lambda rate: f"{rate / 1e9:.2f} GB/s"),
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
    "gil": ["gil_share"],
}


def value_of(row, figure):
    return FIGURES[figure][0](row)


def shown(value, figure):
    return "" if value is None else FIGURES[figure][2](value)


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


def load(results):
    """The rows, and a row of each way for the headline: half of a round trip of 64 B, the median of the rounds. The
    rows of the alternating rounds have a field `round`, and are in no cell beside."""
    rows = [dict(row) for row in results["rows"] if row.get("round") is None]
    for row in rows:
        if row.get("reading") == "in-place":
            row["scenario"] = "in-place"
    trips = [row for row in results["rows"] if row.get("half_round_trip_ns") is not None and row["status"] == "ok"]
    alternating = [row for row in trips if row.get("round") is not None]
    ways = collections.defaultdict(list)
    for row in alternating or trips:
        ways[row["peer"], row["bytes"], row["processes"]].append(row)
    for found in ways.values():
        times = [row["half_round_trip_ns"] for row in found]
        middle = {"p50_us": statistics.median(times) / 1000, "spread": max(times) / min(times), "rounds": len(times)}
        rows.append({**found[0], "scenario": "headline", **middle})
    return rows


def reading(row):
    """Typed frames are how ringcast sends objects without a pickle: rows of one cell."""
    return "objects" if row.get("reading") == "typed" else row.get("reading")


def cell(row):
    return (row["language"], row.get("payload"), row["scenario"], row.get("processes"), reading(row))


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


Duel = collections.namedtuple("Duel", "ours peer figure mine theirs ratio")


def duel(rows, figure, rival=lambda row: True, **wanted):
    """The best of our ways against the best rival in a cell, if there are both. Ratio: ours to the rival's."""
    found = select(rows, **wanted)
    one = best([row for row in found if ours(row)], figure)
    other = best([row for row in found if not ours(row) and rival(row)], figure)
    if one is None or other is None:
        return None
    mine, theirs = value_of(one, figure), value_of(other, figure)
    return Duel(one, other, figure, mine, theirs, mine / theirs if theirs else math.inf)


def near(rows, **wanted):
    """A rival for CPU: a way with a p50 of at most twice that of our way with the least CPU."""
    one = best([row for row in select(rows, **wanted) if ours(row)], "cpu")
    most = 2 * (one["p50_us"] or 0) if one else 0
    return lambda row: row.get("p50_us") is not None and row["p50_us"] <= most


def geometric(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def ranked(lines):
    """Names in the order of the mean ratios to the least figures, so that a name with few figures is not favoured."""
    columns = collections.defaultdict(list)
    for cells in lines.values():
        for key, value in cells.items():
            columns[key].append(value)
    least = {key: min(value for value in values if value > 0) for key, values in columns.items() if max(values) > 0}

    def mean(name):
        ratios = [value / least[key] for key, value in lines[name].items() if value > 0 and key in least]
        return geometric(ratios) if ratios else math.inf

    return sorted(lines, key=lambda name: (mean(name), name))


# ---- Absent ways, and ways that beat ringcast ------------------------------------------------------------------------


def absent(rows):
    """[(ways, reason)] of the ways without a good row; and [(scenario, reason, ways)] of single cells."""
    has = {row["peer"] for row in rows if row.get("status") == "ok"}
    whole, parts = collections.defaultdict(list), collections.defaultdict(list)
    for row in rows:
        if row.get("status") == "ok":
            continue
        if row["peer"] not in has:
            whole[row["status"] or "no reason given"].append(row["peer"])
        else:
            more = f", {row['processes']} processes" if (row.get("processes") or 2) > 2 else ""
            parts[f"{row.get('scenario')}{more}", row["status"] or "no reason given"].append(row["peer"])

    def names(found):
        return ", ".join(sorted(set(found)))

    return (
        sorted((names(found), reason) for reason, found in whole.items()),
        sorted((scenario, reason, names(found)) for (scenario, reason), found in parts.items()),
    )


def cause(row, figure):
    """Why a way wins, if known."""
    peer, family, scenario = row["peer"], row["family"], row["scenario"]
    paused = scenario in ("every5", "every25", "idle")
    known = [
        (in_process(row), "threads of one process, and messages of one size"),
        (not row.get("lossless", True), "the writer overwrites, and waits for no reader: messages may be lost"),
        (scenario == "in-place", "a place for each message, taken and given back by its index"),
        (family == "lmdb" and scenario in ("call", "shared"), "a read is a look into a mapped file, without a queue"),
        (family == "pyzmq" and figure in ("write_us", "messages_per_s"), "a thread of ZeroMQ does the rest meanwhile"),
        (paused and figure == "cpu" and peer.startswith(("mp-p", "mp-q", "faster")), "the reader sleeps at once"),
        (paused and figure == "p50_us" and (cpu_percent(row) or 0) > 50, "a process spins between the messages"),
        (peer in ("codec-msgspec", "codec-msgpack"), "MessagePack has fewer types, and no object twice"),
    ]
    return next((text for fits, text in known if fits), "not known")


Win = collections.namedtuple("Win", "row figure ratio cause")


def wins(rows):
    """Each way with a better figure than the best of ours in the same cell. Ratio: below 1, the way's time to ours, or
    ours to the way's where more is better."""
    cells = collections.defaultdict(list)
    for row in select(rows):
        cells[cell(row)].append(row)
    for found in cells.values():
        for figure in DECIDES.get(found[0]["scenario"], ["p50_us"]):
            mine = best([row for row in found if ours(row)], figure)
            for row in found:
                value = value_of(row, figure)
                if mine is None or value is None or ours(row):
                    continue
                pair = value, value_of(mine, figure)
                less, more = reversed(pair) if FIGURES[figure][1] else pair
                if less < more:
                    yield Win(row, figure, less / more, cause(row, figure))
