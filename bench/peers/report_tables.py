# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/peers.md and README.md, from rows. A table without lines is an empty text."""

import collections

from report_duel import cpu_duel, duel, headline_duel, to_line, told_cheap
from report_goals import FIRST, figures, way_of
from report_pictures import pause_payload
from report_rows import (
    FIGURES,
    best,
    in_process,
    label,
    lossy,
    ours,
    payload_name,
    ranked,
    ratio,
    reading,
    select,
    shown,
    size_order,
    table,
    three,
    value_of,
)
from report_wins import absent, below_line, wins

# ---- The short table -------------------------------------------------------------------------------------------------


TWICE = "among ways at most twice as slow"


def pauses_cell(rows):
    pause = pause_payload(rows) or "metadata"
    made = "bytes" if pause.startswith("bytes-") else "objects"
    return {**way_of("python", pause, reading=made), "scenario": "every25"}


def short(rows):
    """[(what, duel)]; the README has the first five."""
    call = {**way_of("python", "records-10000", reading="objects"), "scenario": "call"}
    in_place = {**way_of("c", "bytes-4Mi", reading="in-place"), "scenario": "in-place"}

    def p50(**cell):
        return duel(rows, "p50_us", **cell)

    return [
        ("64 B one way, C", headline_duel(rows, **FIRST)),
        ("64 KiB one way, C", p50(**way_of("c", "bytes-64Ki", reading="bytes"))),
        ("metadata dict one way, Python", p50(**way_of("python", "metadata", reading="objects"))),
        ("scheduler output of 64 requests one way, Python", p50(**way_of("python", "scheduler-64", reading="objects"))),
        (f"CPU every 25 ms, Python, {TWICE}", cpu_duel(rows, **pauses_cell(rows))[0]),
        ("64 KiB one way, Python", p50(**way_of("python", "bytes-64Ki", reading="bytes"))),
        ("4 MiB written and read in place, C", p50(**in_place)),
        ("10,000 records read, Python", duel(rows, "read_us", **call)),
        ("10,000 records written, Python", duel(rows, "write_us", **call)),
        ("10 MB of features one way, Python", p50(**way_of("python", "features", reading="objects"))),
        (
            "16 B in batches, beside threads of one process",
            duel(rows, "messages_per_s", in_process, scenario="batch", payload="bytes-16"),
        ),
    ]


def short_table(rows, names, count=None):
    """`names`: where the ways are explained. The README leaves out cells without a figure."""
    lines = []
    for what, found in short(rows)[:count]:
        if found is not None and found.ratio is not None:
            less = found.theirs / found.mine if FIGURES[found.figure][1] else found.ratio
            lines.append([what, *figures(found), ratio(less)])
        elif count is None:
            lines.append([what, found.note if found else "not measured", "", ""])
    text = table(["", "ringcast", "best peer", "ratio"], lines)
    words = f"Times are medians. Ratio: below 1, ringcast is better. [The names of the ways]({names})."
    cheap = told_cheap(cpu_duel(rows, **pauses_cell(rows))[2], most=2)
    return f"{text}\n\n{words}" + (f" {cheap[:1].upper()}{cheap[1:]}." if cheap else "")


def own_queue(rows):
    """A sentence for the README: what vLLM's queue needs for the objects of its table."""
    told = []
    for payload, what in (("metadata", "the metadata dict"), ("scheduler-64", "the scheduler output")):
        row = best(select(rows, peer="vllm-queue", **way_of("python", payload, reading="objects")), "p50_us")
        told += [f"{shown(value_of(row, 'p50_us'), 'p50_us')} for {what}"] if row else []
    return f"vLLM's own queue takes {' and '.join(told)}." if told else ""


# ---- Details ---------------------------------------------------------------------------------------------------------


def group_name(row):
    return f"{payload_name(row)}, {row['processes']} processes"


def beforehand(row):
    """Whether an object was made bytes before the clock started."""
    return reading(row) == "bytes" and not str(row.get("payload")).startswith("bytes-")


def way_name(row):
    name = f"`{row['peer']}`" + label(row)[len(row["peer"]) :]
    name += ", pickled beforehand" if beforehand(row) else ""
    name = f"**{name}**" if ours(row) else f"*{name}*" if row.get("floor") else name
    return (
        name
        + (" (lossy)" if lossy(row) and not row.get("floor") else "")
        + (" (collective)" if row.get("collective") else "")
    )


REST = "Further messages are in `build/peers/results.csv`."


def matrix(rows, figure, column=payload_name, payloads=None, **wanted):
    """Ways by payloads, or by `column` of a row; ringcast in bold. Of the `payloads` alone, if given. Figures of a far
    line are marked beside figures of a near line."""
    every = [row for row in select(rows, floors=True, **wanted) if value_of(row, figure) is not None]
    found = [row for row in every if payloads is None or row["payload"] in payloads]
    if not found:
        return REST if every else ""
    found.sort(key=lambda row: (row.get("processes") or 0, size_order(row)))
    columns, lines = list(dict.fromkeys(map(column, found))), collections.defaultdict(dict)
    states, marks = {row.get("state") for row in found} - {None}, {}
    for row in found:
        lines[way_name(row)][column(row)] = value_of(row, figure)
        marks[way_name(row), column(row)] = mark(row) if len(states) > 1 else ""
    cells = [
        [name, *(shown(lines[name].get(key), figure) + marks.get((name, key), "") for key in columns)]
        for name in ranked(lines, FIGURES[figure][1])
    ]
    crowded = sorted({row["processes"] for row in found if row.get("oversubscribed")})
    notes = [f"The line was {states.pop()} in all rows in C."] if len(states) == 1 else []
    notes += [f"More processes than CPUs: {' and '.join(map(str, crowded))}."] if crowded else []
    notes += [REST] if len(found) < len(every) else []
    return table(["way", *columns], cells) + (f"\n\n{' '.join(notes)}" if notes else "")


PAUSES = {"every5": "5 ms", "every25": "25 ms"}


def pauses(rows, language):
    """Ways with the median and the CPU with a message every 5 and every 25 ms."""
    lines = collections.defaultdict(dict)
    found = select(rows, floors=True, scenario=list(PAUSES), processes=2, language=language)
    found = [row for row in found if row.get("p50_us") is not None]
    states = {row.get("state") for row in found}
    for row in found:
        for figure in ("p50_us", "cpu"):
            more = mark(row) if len(states) > 1 and figure == "p50_us" else ""
            lines[way_name(row)][row["scenario"], figure] = shown(value_of(row, figure), figure) + more
    times = {name: {} for name in lines}
    for row in found:
        times[way_name(row)][row["scenario"]] = row["p50_us"]
    keys = [(scenario, figure) for scenario in PAUSES for figure in ("p50_us", "cpu")]
    keys = [key for key in keys if any(key in cells for cells in lines.values())]
    heads = [f"every {PAUSES[scenario]}: {'p50' if figure == 'p50_us' else 'CPU'}" for scenario, figure in keys]
    cells = [[name, *(lines[name].get(key, "") for key in keys)] for name in ranked(times)]
    below = ", ".join(sorted({f"`{row['peer']}`" for row in found if below_line(rows, row)}))
    notes = [f"The line was {states.pop()} in all rows."] if len(states) == 1 and None not in states else []
    notes += [f"Below the bare line of the same scenario: {below}."] if below else []
    return table(["way", *heads], cells) + (f"\n\n{' '.join(notes)}" if notes else "") if cells else ""


def mark(row):
    return f" ({row['state']})" if row.get("state") in ("far", "changed") else ""


def headline_table(rows):
    found = sorted(select(rows, floors=True, scenario="headline"), key=lambda row: row["p50_us"])
    lines = []
    for row in found:
        share = to_line(rows, row)
        rounds = f"{row['rounds']}{' ' + row['state'] if row['state'] else ''}"
        lines.append([way_name(row), shown(row["p50_us"], "p50_us"), three(share) if share else "", rounds])
    return table(["way", "one way", "to the bare line", "rounds"], lines) if lines else ""


def listing(rows, figures, **wanted):
    """A line for each row: what, and its figures."""
    found = [row for row in select(rows, floors=True, **wanted) if value_of(row, figures[0]) is not None]
    found.sort(key=lambda row: (group_name(row), value_of(row, figures[0])))
    lines = [
        [group_name(row), way_name(row), *(shown(value_of(row, key), key) for key in figures), row.get("note") or ""]
        for row in found
    ]
    heads = [key.removesuffix("_us").replace("_per_", "/").replace("_", " ") for key in figures]
    return table(["message", "way", *heads, "note"], lines) if lines else ""


def counts(rows):
    """The counts per object, under the names of the rows."""
    found = select(rows, scenario="counts")
    known = {"bytes", "processes", "messages", "seconds", "rounds"} if found else set()
    keys = dict.fromkeys(
        key for row in found for key, value in row.items() if type(value) in (int, float) and key not in known
    )
    lines = [
        [payload_name(row), way_name(row), *("" if row.get(key) is None else three(row[key]) for key in keys)]
        for row in found
    ]
    return table(["object", "way", *(key.replace("_", " ") for key in keys)], lines) if lines else ""


SCENARIOS = {
    "headline": "half a round trip",
    "one-way": "one way",
    "in-place": "written and read in place",
    "call": "a call alone",
    "codec": "a serialiser alone",
    "stream": "in a stream",
    "batch": "in batches",
    "every5": "a message every 5 ms",
    "every25": "a message every 25 ms",
    "idle": "after 10 s of rest",
    "cold": "with cold caches",
    "slow": "one slow reader of four",
    "shared": "written once, read often",
}
WORDS = {"p50_us": "time", "write_us": "write", "read_us": "read", "cpu": "CPU", "messages_per_s": "messages/s"}


def of_processes(found):
    """The messages of some wins, by the number of processes."""
    groups = collections.defaultdict(dict)
    for win in found:
        groups[win.row.get("processes")][payload_name(win.row)] = True
    return "; ".join(f"{', '.join(names)}, {count} process{'es' * (count != 1)}" for count, names in groups.items())


def win_table(rows):
    """Cells won by a peer, by way, scenario and cause; the largest loss first."""
    groups = collections.defaultdict(list)
    for win in wins(rows):
        groups[win.row["peer"], win.row["scenario"], win.figure, win.cause].append(win)
    lines = []
    for (peer, scenario, figure, cause), found in groups.items():
        low, high = min(win.ratio for win in found), max(win.ratio for win in found)
        ratios = ratio(low) if len(found) == 1 else f"{ratio(low)} to {ratio(high)}"
        what = f"{SCENARIOS.get(scenario, scenario)}: {WORDS[figure]}"
        lines.append((low, [f"`{peer}`", what, of_processes(found), ratios, cause]))
    lines = [line for _, line in sorted(lines)]
    head = ["way", "what", "message, processes", "to ringcast's", "why"]
    return table(head, lines) if lines else "No way beats ringcast in any cell of this run."


def absent_table(rows):
    lines = absent(rows)
    return table(["way", "scenario", "reason"], lines) if lines else "Everything was measured."
