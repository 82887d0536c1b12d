# SPDX-License-Identifier: Apache-2.0
"""The report of run.py's rows: which goals are reached, where a peer wins, and the pages.

report.py [--results FILE]   prints the goals, the short table and the cells won by peers
report.py --page             also fills the measured blocks of docs/peers.md, docs/claims.md, docs/choosing.md and
                             README.md, and draws the pictures
"""

import argparse
import collections
import json
import pathlib
import re
import sys

import report_claims
from report_duel import cpu_duel, duel, floor_note, headline_duel, missing, to_line, told_cheap
from report_pictures import draw, pause_payload
from report_rows import (
    FIGURES,
    RECORDS,
    ROOT,
    SCHEDULER,
    crossing,
    in_process,
    label,
    lossy,
    ours,
    payload_name,
    ranked,
    ratio,
    reading,
    select,
)
from report_rows import load as load_rows
from report_rows import shown, size_of, size_order, table, three, value_of
from report_wins import absent, wins

NOT = "Not measured yet."

# ---- Goals -----------------------------------------------------------------------------------------------------------

Goal = collections.namedtuple("Goal", "name text good why")  # good: None: can't be told, for the reason `why`


def goal(name, found, most=None, least=None, why="", floor=""):
    if found is None:
        return Goal(name, f"{name}: not measured: {why}", None, why)
    if found.ratio is None:
        return Goal(name, f"{name}: {found.note}", None, found.note)
    good = found.ratio <= most if least is None else found.ratio >= least
    mine, theirs = shown(found.mine, found.figure), shown(found.theirs, found.figure)
    wanted = f"at most {most:.2f}" if least is None else f"at least {least:.2f}"
    notes = [note for note in (found.note, "" if good else floor) if note]
    words = f"`{label(found.ours)}` {mine}, best `{found.peer['peer']}` {theirs}: {ratio(found.ratio)}, {wanted}: "
    words += ("yes" if good else "NO") + (f" ({'; '.join(notes)})" if notes else "")
    return Goal(name, f"{name}: {words}", good, "")


def judged(rows, name, figure, rival=crossing, most=None, least=None, **cell):
    found = duel(rows, figure, rival, **cell)
    floor = floor_note(rows, found, **cell) if found and cell.get("language") == "c" else ""
    return goal(name, found, most, least, "" if found else missing(rows, rival, **cell), floor)


FIRST = {"language": "c", "payload": "bytes-64", "processes": 2}


def way_of(language, payload, **other):
    return {"language": language, "payload": payload, "scenario": "one-way", "processes": 2, **other}


def goals(rows):
    """The goals, each with both figures."""
    name = "64 B one way, C, best lossless peer"
    first = headline_duel(rows, **FIRST)
    yield goal(name, first, 1.05, why=missing(rows, scenario="headline", **FIRST))
    inside = headline_duel(rows, lambda row: in_process(row) and not lossy(row), **FIRST)
    if inside and inside.ratio is not None:
        words = f"with queues between threads of one process: `{inside.peer['peer']}` "
        words += f"{shown(inside.theirs, 'p50_us')}: {ratio(inside.ratio)} (not counted: no process border is crossed)"
        yield Goal("in one process", words, None, "")
    for language, name in (("c", "C"), ("python", "Python")):
        cell = way_of(language, "bytes-64Ki", reading="bytes")
        for copying, most in ((False, 1.0), (True, 0.5)):

            def rival(row, copying=copying):
                return crossing(row) and bool(row.get("copying", True)) is copying

            kind = "copying" if copying else "zero-copy"
            yield judged(rows, f"64 KiB one way, {name}, best {kind} peer", "p50_us", rival, most, **cell)
        cell = {**way_of(language, "bytes-4Mi", reading="in-place"), "scenario": "in-place"}
        yield judged(rows, f"4 MiB in place, {name}", "p50_us", most=1.1, **cell)
    yield from object_goals(rows)
    yield from cpu_goals(rows)
    for payload in ("bytes-16", "bytes-64"):
        cell = {"scenario": "batch", "payload": payload}
        name = f"{size_of(payload[6:])} in batches, messages/s, best queue within a process"
        yield judged(rows, name, "messages_per_s", in_process, least=0.7, **cell)


def object_goals(rows):
    def pickled(row):
        return crossing(row) and row.get("serialiser") == "pickle5"

    for payload in RECORDS:
        cell = {**way_of("python", payload, reading="objects"), "scenario": "call"}
        for figure, most in (("read_us", 0.6 if payload == "records-10000" else 0.8), ("write_us", 0.5)):
            word = "read" if figure == "read_us" else "written"
            yield judged(rows, f"{payload} {word}, best peer with pickle", figure, pickled, most, **cell)
    for payload in ["metadata", *SCHEDULER]:
        cell = way_of("python", payload, reading="objects")
        yield judged(rows, f"{payload} one way", "p50_us", most=1.0, **cell)


def cpu_goals(rows):
    cells = {
        (row["scenario"], row["language"], row["payload"], reading(row))
        for row in select(rows, scenario=["idle", "every25"], processes=2)
        if ours(row)
    }
    for scenario, language, payload, kind in sorted(cells, key=str):
        cell = {**way_of(language, payload, reading=kind), "scenario": scenario}
        found, why, cheap = cpu_duel(rows, **cell)
        name = f"CPU {'idle' if scenario == 'idle' else 'every 25 ms'}, {language}, {payload}"
        told = goal(name, found, 1.0, why=why)
        yield told._replace(text=told.text + told_cheap(cheap), why=told.why and told.why + told_cheap(cheap))
    for scenario in sorted({"idle", "every25"} - {cell[0] for cell in cells}):
        name = f"CPU {scenario.replace('every25', 'every 25 ms')}"
        yield Goal(name, f"{name}: not measured: ringcast has no such row", None, "ringcast has no such row")


def goal_lines(rows):
    """The goals with a figure, then the others by reason."""
    lines, unknown = [], collections.defaultdict(list)
    for found in goals(rows):
        if found.why:
            unknown[found.why].append(found.name)
        else:
            lines.append(found.text)
    return lines + [f"no verdict, as {why}: {'; '.join(names)}" for why, names in unknown.items()]


# ---- The short table -------------------------------------------------------------------------------------------------


def pauses_cell(rows):
    pause = pause_payload(rows) or "metadata"
    return {**way_of("python", pause, reading=["objects", "bytes"]), "scenario": "every25"}


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
        ("CPU with a message every 25 ms, Python", cpu_duel(rows, **pauses_cell(rows))[0]),
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


def short_table(rows, count=None):
    lines = []
    for what, found in short(rows)[:count]:
        if found is None or found.ratio is None:
            lines.append([what, *[found.note if found else "not measured", "", ""]])
            continue
        ways = zip((found.mine, found.theirs), (label(found.ours), label(found.peer)))
        figures = [f"{shown(value, found.figure)} (`{name}`)" for value, name in ways]
        less = found.theirs / found.mine if FIGURES[found.figure][1] else found.ratio
        lines.append([what, *figures, ratio(less)])
    text = table(["", "ringcast", "best peer", "ratio"], lines)
    cheap = told_cheap(cpu_duel(rows, **pauses_cell(rows))[2], most=2)
    words = "Ratio: below 1, ringcast is better. For CPU the peers are those whose p50 is at most twice ringcast's"
    return f"{text}\n\n{words}{cheap}."


# ---- Details ---------------------------------------------------------------------------------------------------------


def group_name(row):
    more = ", more than CPUs" if row.get("oversubscribed") else ""
    return f"{payload_name(row)}, {row['processes']} processes{more}"


def way_name(row):
    name = f"`{row['peer']}`" + label(row)[len(row["peer"]) :]
    name = f"**{name}**" if ours(row) else f"*{name}*" if row.get("floor") else name
    return (
        name
        + (" (lossy)" if lossy(row) and not row.get("floor") else "")
        + (" (collective)" if row.get("collective") else "")
    )


def matrix(rows, figure, column=payload_name, **wanted):
    """Ways by payloads, or by `column` of a row; ringcast in bold. Figures of a far line are marked where near ones
    stand beside."""
    found = [row for row in select(rows, floors=True, **wanted) if value_of(row, figure) is not None]
    if not found:
        return NOT
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
    only = f"\n\nThe line was {states.pop()} in all rows in C." if len(states) == 1 else ""
    return table(["way", *columns], cells) + only


def mark(row):
    return f" ({row['state']})" if row.get("state") in ("far", "changed") else ""


def headline_table(rows):
    found = sorted(select(rows, floors=True, scenario="headline"), key=lambda row: row["p50_us"])
    lines = []
    for row in found:
        share = to_line(rows, row)
        rounds = f"{row['rounds']}{' ' + row['state'] if row['state'] else ''}"
        lines.append([way_name(row), shown(row["p50_us"], "p50_us"), three(share) if share else "", rounds])
    return table(["way", "one way", "to the bare line", "rounds"], lines) if lines else NOT


def listing(rows, figures, **wanted):
    """A line for each row: what, and its figures."""
    found = [row for row in select(rows, floors=True, **wanted) if value_of(row, figures[0]) is not None]
    found.sort(key=lambda row: (group_name(row), value_of(row, figures[0])))
    lines = [
        [group_name(row), way_name(row), *(shown(value_of(row, key), key) for key in figures), row.get("note") or ""]
        for row in found
    ]
    heads = [key.removesuffix("_us").replace("_per_", "/").replace("_", " ") for key in figures]
    return table(["message", "way", *heads, "note"], lines) if lines else NOT


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
    return table(["object", "way", *(key.replace("_", " ") for key in keys)], lines) if lines else NOT


def win_table(rows):
    """Cells won by a peer, by way, scenario and cause."""
    groups = collections.defaultdict(list)
    for win in wins(rows):
        groups[win.row["peer"], win.row["language"], win.row["scenario"], win.figure, win.cause].append(win)
    lines = []
    for (peer, language, scenario, figure, cause), found in sorted(groups.items()):
        cells = ", ".join(dict.fromkeys(f"{payload_name(win.row)}/{win.row.get('processes')}" for win in found))
        low, high = min(win.ratio for win in found), max(win.ratio for win in found)
        ratios = ratio(low) if len(found) == 1 else f"{ratio(low)} to {ratio(high)}"
        lines.append([f"`{peer}`", language, scenario, figure.removesuffix("_us"), cells, ratios, cause])
    head = ["way", "language", "scenario", "figure", "messages/processes", "to ringcast's", "why"]
    return table(head, lines) if lines else "No way beats ringcast in any cell of this run." if rows else NOT


def absent_table(rows):
    lines = absent(rows)
    return table(["way", "scenario", "reason"], lines) if lines else "Everything was measured." if rows else NOT


def facts(meta):
    if not meta:
        return NOT
    known = dict.fromkeys(("date", "commit", "cpu", "cpus", "kernel", "python", "rounds"), "not noted")
    known.update((key, value) for key, value in meta.items() if value is not None)
    load = "not noted" if meta.get("load_before") is None else three(meta["load_before"])
    told = (
        "{date:.10}, commit {commit:.12}; {cpus} CPUs of {cpu}; Linux {kernel}; Python {python}; "
        "{rounds} rounds in {minutes:.0f} minutes; load before: {load}."
    ).format(minutes=(meta.get("seconds") or 0) / 60, load=load, **known)
    return told + (" A quick run: few messages." if meta.get("quick") else "")


def versions(rows):
    found = {f"{row['family']} {row['version']}" for row in rows if row.get("version") and row.get("status") == "ok"}
    return ", ".join(sorted(found)) + "." if found else NOT


def picture(name, words):
    return f"![{words}]({name})"


def blocks_of(results):
    """{page: {block: text}}."""
    rows = load_rows(results)
    two, objects = {"processes": 2}, {"reading": "objects", "language": "python"}
    first = picture("peers-bytes.svg", "Time of one way by the size of a message, in C and in Python")
    pictures = [
        first,
        picture("peers-objects.svg", "Objects written and read, beside pickle over the best transport"),
        picture("peers-cpu.svg", "CPU and time of one way with a message every 25 ms"),
    ]
    plain = {"scenario": "one-way", "reading": ["bytes", None], **two}
    peers = {
        "machine": facts(results["meta"]),
        "versions": versions(rows),
        "short": short_table(rows) if rows else NOT,
        "pictures": "\n\n".join(pictures) if rows else NOT,
        "goals": "\n".join(f"- {line}" for line in goal_lines(rows)) if rows else NOT,
        "headline": headline_table(rows),
        "bytes-c": matrix(rows, "p50_us", language="c", **plain),
        "bytes-python": matrix(rows, "p50_us", language="python", **plain),
        "in-place": matrix(rows, "p50_us", scenario="in-place", **two),
        "objects": matrix(rows, "p50_us", scenario="one-way", **objects, **two),
        "written": matrix(rows, "write_us", scenario="call", **objects, **two),
        "read": matrix(rows, "read_us", scenario="call", **objects, **two),
        "groups": matrix(rows, "p50_us", group_name, scenario="one-way", processes=[4, 8]),
        "stream": matrix(rows, "messages_per_s", group_name, scenario="stream"),
        "stream-bytes": matrix(rows, "bytes_per_s", group_name, scenario="stream"),
        "gpu": matrix(rows, "bytes_per_s", scenario="copy"),
        "memory": matrix(rows, "rss_mb", scenario="one-way", payload="features", **two),
        "batch": matrix(rows, "messages_per_s", scenario="batch"),
        "slow": listing(rows, ["p50_us", "p99_us", "write_us"], scenario="slow"),
        "pauses": listing(rows, ["p50_us", "p99_us", "cpu"], scenario=["every5", "every25"]),
        "idle": listing(rows, ["p50_us", "cpu"], scenario="idle"),
        "shared": matrix(rows, "read_us", group_name, scenario="shared"),
        "cold": matrix(rows, "p50_us", group_name, scenario="cold"),
        "gil": matrix(rows, "gil_share", scenario="gil"),
        "counts": counts(rows),
        "codec-written": matrix(rows, "write_us", scenario="codec"),
        "codec-read": matrix(rows, "read_us", scenario="codec"),
        "wins": win_table(rows),
        "absent": absent_table(rows),
    }
    readme = f"{first.replace('peers-bytes', 'docs/peers-bytes')}\n\n{short_table(rows, 5)}" if rows else NOT
    claims = {f"claim {name}": report_claims.block(rows, name) for name in report_claims.CLAIMS}
    return {
        "docs/peers.md": peers,
        "docs/claims.md": claims,
        "docs/choosing.md": {"choices": short_table(rows) if rows else NOT},
        "README.md": {"peers": readme},
    }


def fill(page, blocks):
    """The page's text with the blocks in place. A block without a place is an error."""
    for name, block in blocks.items():
        new = f"<!-- measured: {name} -->\n{block}\n<!-- end -->"
        page, count = re.subn(rf"<!-- measured: {name} -->.*?<!-- end -->", lambda _, new=new: new, page, flags=re.S)
        if count != 1:
            raise ValueError(f"{count} places for the block '{name}'")
    return page


def write_pages(results, root):
    for name, blocks in blocks_of(results).items():
        path = root / name
        try:
            text = fill(path.read_text(encoding="utf-8"), blocks)
            if name.endswith("claims.md"):
                lines = report_claims.summary(text)
                text = fill(text, {"claims": table(["claim", "verdict"], lines)})
        except ValueError as error:
            sys.exit(f"report: {name} has {error}")
        path.write_text(text, encoding="utf-8")


def text(rows):
    parts = {
        "Goals": "\n".join(goal_lines(rows)),
        "Beside the best peers": short_table(rows),
        "Where a peer wins": win_table(rows),
        "What could not be had": absent_table(rows),
    }
    return "\n\n".join(f"{head}\n{'-' * len(head)}\n{part}" for head, part in parts.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "build/peers/results.json")
    parser.add_argument("--page", action="store_true", help="fill the pages and draw the pictures")
    options = parser.parse_args()
    results = json.loads(options.results.read_text(encoding="utf-8"))
    print(text(load_rows(results)))
    if options.page:
        write_pages(results, ROOT)
        if results["rows"]:
            draw(load_rows(results), ROOT / "docs", options.results.parent)


if __name__ == "__main__":
    main()
