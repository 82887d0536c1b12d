# SPDX-License-Identifier: Apache-2.0
"""The report of run.py's rows: ringcast beside the best peer, where a peer wins, and all figures.

report.py [--results FILE]   prints the short table, the cells won by peers, and what could not be
measured report.py --page             also fills the measured blocks of docs/peers.md and README.md,
and draws the picture
"""

import argparse
import collections
import json
import pathlib

from picture import draw
from rows import (
    COMPARED,
    FIGURES,
    ROOT,
    best,
    cell,
    cpu_percent,
    crossing,
    load,
    ours,
    payload_name,
    ranked,
    select,
    shown,
    value_of,
)

from bench.tables import fill, ratio, table, three

NONE = "This run has no such row: [what could not be measured](#what-could-not-be-measured)."
REST = "Further messages are in `build/peers/results.csv`."
PICTURE = "Time of one way by the size of a message, in C and in Python"
# The messages of the tables.
SIZES = ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-16Mi", "bytes-64Mi"]
SIZES_C = ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-4Mi", "bytes-64Mi"]
OBJECTS = "metadata scheduler-64 records-10 records-10000 records-10000-array features".split()
CALLED = "metadata scheduler-256 records-10 records-1000 records-10000 features".split()
GROUPED = ["bytes-64", "bytes-64Ki", "metadata"]

C, PYTHON = {"language": "c", "processes": 2}, {"language": "python", "processes": 2}
PLAIN = {"scenario": "one-way", "reading": "bytes"}
MADE = {**PYTHON, "reading": "objects"}


# ---- Ringcast beside the best peer ---------------------------------------------------------------


def duel(rows, figure, **wanted):
    """(ours, theirs): the best rows of a cell in the first state that both have; None if there is
    none."""
    found = select(rows, **wanted)
    for state in COMPARED:
        alike = [row for row in found if row["state"] == state]
        mine = best([row for row in alike if ours(row)], figure)
        other = best([row for row in alike if not ours(row) and crossing(row)], figure)
        if mine and other:
            return mine, other
    return None


PAUSED = {**MADE, "scenario": "every25", "payload": "metadata"}


def cpu_duel(rows):
    """
    Of CPU with pauses: the way that a user gets without an option, and the peers with at most twice
    its p50. And in words the peers that take less CPU, but longer.
    """
    rows = [row for row in select(rows, **PAUSED) if value_of(row, "cpu") and row["p50_us"]]
    mine = best([row for row in rows if row["peer"] == "ringcast"], "cpu")
    if mine is None:
        return None, []
    others = [row for row in rows if not ours(row)]
    late = [row for row in others if row["p50_us"] > 2 * mine["p50_us"]]
    cheap = sorted((row for row in late if cpu_percent(row) < cpu_percent(mine)), key=cpu_percent)
    words = [
        f"`{row['peer']}` {shown(cpu_percent(row), 'cpu')} and {shown(row['p50_us'], 'p50_us')}"
        for row in cheap
    ]
    other = best([row for row in others if row not in late], "cpu")
    return (mine, other) if other else None, words


def short(rows):
    """[(what, figure, duel)]; the README has the first five."""
    call = {**MADE, "payload": "records-10000", "scenario": "call"}
    one_way = {**MADE, "scenario": "one-way"}
    in_place = {**PYTHON, "payload": "bytes-4Mi", "scenario": "in-place"}
    cells = [
        ("64 B one way, C", "p50_us", {**C, "payload": "bytes-64", "scenario": "round-trip"}),
        ("64 KiB one way, C", "p50_us", {**C, **PLAIN, "payload": "bytes-64Ki"}),
        ("metadata dict one way, Python", "p50_us", {**one_way, "payload": "metadata"}),
        (
            "scheduler output of 64 requests one way, Python",
            "p50_us",
            {**one_way, "payload": "scheduler-64"},
        ),
        ("64 KiB one way, Python", "p50_us", {**PYTHON, **PLAIN, "payload": "bytes-64Ki"}),
        ("4 MiB written and read in place, Python", "p50_us", in_place),
        ("10,000 records read, Python", "read_us", call),
        ("10,000 records written, Python", "write_us", call),
        ("10 MB of features one way, Python", "p50_us", {**one_way, "payload": "features"}),
    ]
    found = [(what, figure, duel(rows, figure, **of)) for what, figure, of in cells]
    cpu = "CPU every 25 ms, Python, among ways at most twice as slow"
    return [*found[:4], (cpu, "cpu", cpu_duel(rows)[0]), *found[4:]]


def short_table(rows, names, count=None):
    """`names`: where the ways are explained."""
    lines = []
    for what, figure, pair in short(rows)[:count]:
        if pair is None:
            lines.append([what, "not measured", "", ""])
            continue
        values = [value_of(row, figure) for row in pair]
        sides = [f"{shown(value, figure)} (`{row['peer']}`)" for value, row in zip(values, pair)]
        less, more = reversed(values) if FIGURES[figure][1] else values
        lines.append([what, *sides, ratio(less / more)])
    words = [
        f"Times are medians. Ratio: below 1, ringcast is better. [The names of the ways]({names})."
    ]
    cheap = cpu_duel(rows)[1]
    if cheap:
        more = [f"and {len(cheap) - 2} more ways"] if len(cheap) > 2 else []
        words.append(f"Less CPU but a longer median: {', '.join(cheap[:2] + more)}.")
    return f"{table(['', 'ringcast', 'best peer', 'ratio'], lines)}\n\n{' '.join(words)}"


def own_queue(rows):
    """A sentence for the README: what vLLM's queue needs for the objects of its table."""
    told = []
    for payload, what in (
        ("metadata", "the metadata dict"),
        ("scheduler-64", "the scheduler output"),
    ):
        row = best(
            select(rows, **MADE, peer="vllm-queue", payload=payload, scenario="one-way"), "p50_us"
        )
        told += [f"{shown(row['p50_us'], 'p50_us')} for {what}"] if row else []
    return f"vLLM's own queue takes {' and '.join(told)}." if told else ""


# ---- Where a peer wins, and why ------------------------------------------------------------------

# The figures by which a way can win a cell; elsewhere p50.
DECIDES = {
    "call": ["write_us", "read_us"],
    "stream": ["messages_per_s"],
    "slow": ["p50_us", "write_us"],
    "idle": ["p50_us", "cpu"],
    "every25": ["p50_us", "cpu"],
    "gil": [],
}
SCENARIOS = {
    "round-trip": "half a round trip",
    "one-way": "one way",
    "in-place": "written and read in place",
    "call": "a call alone",
    "stream": "in a stream",
    "every25": "a message every 25 ms",
    "idle": "after 10 s of rest",
    "slow": "one slow reader of four",
}
WORDS = {
    "p50_us": "time",
    "write_us": "write",
    "read_us": "read",
    "cpu": "CPU",
    "messages_per_s": "messages/s",
}
# Each cause can be seen in the adapter or in the peer's code. (starts of ways, scenarios, figures,
# words)
PAUSES = ("every25", "idle")
CAUSES = [
    (("c-atomic",), None, None, "threads of one process, and messages of one size"),
    (("lmdb",), ("call",), None, "a read is a look into a mapped file, without a queue"),
    (("zmq",), None, ("write_us", "messages_per_s"), "a thread of ZeroMQ does the rest meanwhile"),
    (("ecal",), None, ("read_us",), "a thread of eCAL has taken the message before the call"),
    (("mp-pipe", "faster", "c-pipe", "c-unix"), PAUSES, ("cpu",), "the reader sleeps at once"),
    (("iceoryx2",), ("in-place",), None, "a place for each message, handed over by its index"),
]


def cause(row, figure, mine):
    """Why a way wins against our row, if known."""
    for ways, scenarios, figures, words in CAUSES:
        fits = row["peer"].startswith(ways) and (scenarios is None or row["scenario"] in scenarios)
        if fits and (figures is None or figure in figures):
            return words
    if row["scenario"] in PAUSES and (cpu_percent(row) or 0) > 50 >= (cpu_percent(mine) or 0):
        return "a process spins between the messages"
    if row["family"] == "mpi4py" and row["oversubscribed"]:
        return "MPI's processes poll and yield all the time; ringcast's readers have to be woken"
    if row["family"] in ("aeron", "openmpi", "mpich", "ucx") and (row["bytes"] or 0) >= 1 << 20:
        return (
            "the reader begins before the writer has ended; a ringcast message is published whole"
        )
    return "not known"


def wins(rows):
    """
    (row, figure, ratio, cause) of each way with a better figure than the best of ours in the same
    cell.
    """
    cells = collections.defaultdict(list)
    for row in select(rows):
        if row["state"] != "changed":
            cells[cell(row)].append(row)
    for found in cells.values():
        for figure in DECIDES.get(found[0]["scenario"], ["p50_us"]):
            mine = best([row for row in found if ours(row)], figure)
            for row in found if mine else ():
                value = value_of(row, figure)
                if value is None or ours(row):
                    continue
                pair = value, value_of(mine, figure)
                less, more = reversed(pair) if FIGURES[figure][1] else pair
                if less < more:
                    yield row, figure, less / more, cause(row, figure, mine)


def win_table(rows):
    """By way, scenario and cause; the largest loss first."""
    groups = collections.defaultdict(list)
    for row, figure, share, why in wins(rows):
        groups[row["peer"], row["scenario"], figure, why].append((share, row))
    lines = []
    for (peer, scenario, figure, why), found in groups.items():
        shares = sorted({ratio(share) for share, _ in found})
        ends = " to ".join(dict.fromkeys((shares[0], shares[-1])))
        counts = collections.defaultdict(dict)
        for _, row in found:
            counts[row["processes"]][payload_name(row)] = True
        where = "; ".join(
            f"{', '.join(names)}, {count} processes" for count, names in counts.items()
        )
        what = f"{SCENARIOS[scenario]}: {WORDS[figure]}"
        lines.append([f"`{peer}`", what, where, ends, why])
    lines.sort(key=lambda line: line[3])
    head = ["way", "what", "message, processes", "to ringcast's", "why"]
    return table(head, lines) if lines else "No way beats ringcast in any cell of this run."


# ---- All figures ---------------------------------------------------------------------------------


def group_name(row):
    return f"{payload_name(row)}, {row['processes']} processes"


def beforehand(row):
    """Whether an object was made bytes before the clock started."""
    return row["reading"] == "bytes" and not str(row["payload"]).startswith("bytes-")


def way_name(row):
    name = f"`{row['peer']}`"
    name = f"**{name}**" if ours(row) else f"*{name}*" if row["floor"] else name
    return name + (" (collective)" if row["collective"] else "")


def mark(row):
    return f" ({row['state']})" if row["state"] in ("far", "changed") else ""


def matrix(rows, figure, column=payload_name, payloads=None, **wanted):
    """Ways by payloads, or by `column` of a row. Of the `payloads` alone, if given."""
    every = [
        row for row in select(rows, floors=True, **wanted) if value_of(row, figure) is not None
    ]
    found = [row for row in every if payloads is None or row["payload"] in payloads]
    found.sort(key=lambda row: (row["processes"], row["bytes"] or 0, str(row["payload"])))
    values, texts = collections.defaultdict(dict), collections.defaultdict(dict)
    for row in found:
        values[way_name(row)][column(row)] = value_of(row, figure)
        texts[way_name(row)][column(row)] = shown(value_of(row, figure), figure) + mark(row)
    columns = list(dict.fromkeys(map(column, found)))
    names = ranked(values, FIGURES[figure][1])
    cells = [[name, *(texts[name].get(key, "") for key in columns)] for name in names]
    crowded = sorted({row["processes"] for row in found if row["oversubscribed"]})
    notes = [f"More processes than CPUs: {' and '.join(map(str, crowded))}."] if crowded else []
    notes += [REST] if len(found) < len(every) else []
    if not cells:
        return ""
    return "\n\n".join([table(["way", *columns], cells)] + [" ".join(notes)] * bool(notes))


def listing(rows, figures, **wanted):
    """A line for each row: what, the figures, and the note."""
    found = [
        row for row in select(rows, floors=True, **wanted) if value_of(row, figures[0]) is not None
    ]
    found.sort(key=lambda row: (group_name(row), value_of(row, figures[0])))
    lines = []
    for row in found:
        values = [shown(value_of(row, key), key) for key in figures]
        lines.append([group_name(row), way_name(row), *values, row["note"] or ""])
    heads = [key.removesuffix("_us") for key in figures]
    return table(["message", "way", *heads, "note"], lines) if lines else ""


def headline_table(rows):
    found = sorted(select(rows, floors=True, scenario="round-trip"), key=lambda row: row["p50_us"])
    line = next((row for row in found if row["peer"] == "c-cache-line"), None)
    lines = []
    for row in found:
        alike = line and line["state"] == row["state"]
        share = three(row["p50_us"] / line["p50_us"]) if alike else ""
        rounds = f"{row['rounds']} {row['state'] or ''}".strip()
        lines.append([way_name(row), shown(row["p50_us"], "p50_us"), share, rounds])
    return table(["way", "one way", "to the bare line", "rounds"], lines) if lines else ""


def absent_table(rows):
    """The ways without a good row, then single steps, by reason."""
    good = {row["peer"] for row in rows if row["status"] == "ok"}
    found = collections.defaultdict(dict)
    for row in rows:
        if row["status"] != "ok":
            where = f"{row['scenario']}: {payload_name(row)}" if row["peer"] in good else "all"
            found[where, row["status"]][f"`{row['peer']}`"] = True
    lines = [
        [", ".join(sorted(names)), where, why] for (where, why), names in sorted(found.items())
    ]
    return table(["way", "what", "reason"], lines) if lines else "Everything was measured."


def versions(rows):
    found = {f"{row['family']} {row['version']}" for row in rows if row.get("version")}
    return ", ".join(sorted(found)) + "."


# ---- The pages -----------------------------------------------------------------------------------


def facts(meta):
    minutes = (meta.get("seconds") or 0) / 60
    rounds = f"{meta['rounds']} round{'s' * (meta['rounds'] != 1)} in {minutes:.0f} minutes"
    return (
        f"{meta['date']}, commit {(meta['commit'] or 'not noted'):.12}; {meta['cores']} CPUs of "
        f"{meta['cpu']}; "
        f"Linux {meta['linux']}; Python {meta['python']}; {rounds}; load before: "
        f"{three(meta['load_average'])}."
    )


def blocks_of(rows, meta):
    """{block: text} of docs/peers.md."""
    late = [row for row in rows if beforehand(row)]
    larger = {"scenario": "one-way", "processes": [4, 8]}
    found = {
        "short": short_table(rows, "#the-ways"),
        "machine": facts(meta),
        "picture": f"![{PICTURE}](peers.svg)",
        "versions": versions(rows),
        "headline": headline_table(rows),
        "bytes-c": matrix(rows, "p50_us", payloads=SIZES_C, **C, **PLAIN),
        "bytes-python": matrix(rows, "p50_us", payloads=SIZES, **PYTHON, **PLAIN),
        "in-place": matrix(rows, "p50_us", payloads=SIZES_C, scenario="in-place"),
        "objects": matrix(rows, "p50_us", payloads=OBJECTS, scenario="one-way", **MADE),
        "beforehand": matrix(late, "p50_us", **PYTHON, **PLAIN),
        "written": matrix(rows, "write_us", payloads=CALLED, scenario="call", **MADE),
        "read": matrix(rows, "read_us", payloads=CALLED, scenario="call", **MADE),
        "groups": matrix(rows, "p50_us", group_name, GROUPED, **larger),
        "stream-c": matrix(rows, "messages_per_s", scenario="stream", **C),
        "stream-python": matrix(rows, "messages_per_s", scenario="stream", **PYTHON),
        "pauses": listing(rows, ["p50_us", "cpu"], scenario="every25"),
        "idle": listing(rows, ["p50_us", "cpu"], scenario="idle"),
        "slow": listing(rows, ["p50_us", "p99_us", "write_us"], scenario="slow"),
        "gil": matrix(rows, "gil_share", scenario="gil"),
        "wins": win_table(rows),
        "absent": absent_table(rows),
    }
    return {name: text or NONE for name, text in found.items()}


def write_pages(rows, meta, root):
    short_one = short_table(rows, "docs/peers.md#the-ways", 5)
    parts = [
        f"![{PICTURE}](docs/peers.svg)",
        short_one,
        own_queue(rows),
        f"Measured: {facts(meta)}",
    ]
    readme = "\n\n".join(part for part in parts if part)
    for name, blocks in (
        ("docs/peers.md", blocks_of(rows, meta)),
        ("README.md", {"peers": readme}),
    ):
        path = root / name
        path.write_text(fill(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")
    (root / "docs" / "peers.svg").write_text(draw(rows), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "build/peers/results.json")
    parser.add_argument("--page", action="store_true", help="fill the pages and draw the picture")
    options = parser.parse_args()
    results = json.loads(options.results.read_text(encoding="utf-8"))
    rows = load(results)
    print(
        short_table(rows, "docs/peers.md#the-ways"), win_table(rows), absent_table(rows), sep="\n\n"
    )
    if options.page:
        write_pages(rows, results["meta"], ROOT)


if __name__ == "__main__":
    main()
