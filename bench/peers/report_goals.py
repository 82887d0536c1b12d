# SPDX-License-Identifier: Apache-2.0
"""The goals of the run for report.py: both figures, the ratio, the aim, and whether the run reaches the aim."""

import collections

from report_duel import cpu_duel, duel, floor_note, headline_duel, missing, told_cheap
from report_rows import (
    RECORDS,
    SCHEDULER,
    crossing,
    in_process,
    label,
    lossy,
    ours,
    ratio,
    reading,
    select,
    shown,
    size_of,
    table,
)

# good: None: can't be told, for the reason `why`
Goal = collections.namedtuple("Goal", "name found aim good note why")
LANGUAGES = {"c": "C", "python": "Python"}


def goal(name, found, most=None, least=None, why="", note=""):
    if found is None or found.ratio is None:
        return Goal(name, None, "", None, note, found.note if found else why)
    good = found.ratio <= most if least is None else found.ratio >= least
    aim = f"at most {most:.2f}" if least is None else f"at least {least:.2f}"
    return Goal(name, found, aim, good, "; ".join(part for part in (found.note, note) if part), "")


def judged(rows, name, figure, rival=crossing, most=None, least=None, **cell):
    found = duel(rows, figure, rival, **cell)
    told = goal(name, found, most, least, "" if found else missing(rows, rival, **cell))
    if told.good is False and cell.get("language") == "c":
        told = goal(name, found, most, least, note=floor_note(rows, found, **cell))
    return told


PAUSED = {"idle": "idle", "every25": "every 25 ms"}
FIRST = {"language": "c", "payload": "bytes-64", "processes": 2}


def way_of(language, payload, **other):
    return {"language": language, "payload": payload, "scenario": "one-way", "processes": 2, **other}


def goals(rows):
    """The goals, each with both figures."""
    name = "64 B one way, C, best lossless peer"
    first = headline_duel(rows, **FIRST)
    inside, beside = headline_duel(rows, lambda row: in_process(row) and not lossy(row), **FIRST), ""
    if inside and inside.ratio is not None:
        beside = f"between threads of one process `{inside.peer['peer']}` {shown(inside.theirs, 'p50_us')}, a ratio of "
        beside += f"{ratio(inside.ratio)}, not counted: no process border is crossed"
    yield goal(name, first, 1.05, why=missing(rows, scenario="headline", **FIRST), note=beside)
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
        size = size_of(payload[6:]) if payload.startswith("bytes-") else payload
        name = f"CPU {PAUSED[scenario]}, {LANGUAGES[language]}, {size}"
        yield goal(name, found, 1.0, why=why, note=told_cheap(cheap, most=4))
    for scenario in sorted({"idle", "every25"} - {cell[0] for cell in cells}):
        yield goal(f"CPU {PAUSED[scenario]}", None, 1.0, why="ringcast has no such row")


def figures(found):
    """Both sides of a comparison, for a table."""
    ways = zip((found.mine, found.theirs), (label(found.ours), label(found.peer)))
    return [f"{shown(value, found.figure)} (`{name}`)" for value, name in ways]


def goal_table(rows):
    """The goals with a figure, unmet goals first; then notes, and the goals without a verdict, by reason."""
    lines, notes, unknown = [], [], collections.defaultdict(list)
    for told in sorted(goals(rows), key=lambda told: told.good is not False):
        if told.why:
            unknown[told.why].append(told.name)
        else:
            met = "yes" if told.good else "**NO**"
            lines.append([told.name, *figures(told.found), ratio(told.found.ratio), told.aim, met])
        if told.note:
            notes.append(f"- {told.name}: {told.note}.")
    parts = [table(["goal", "ringcast", "best peer", "ratio", "aim", "met"], lines)] if lines else []
    parts += ["\n".join(notes)] if notes else []
    parts += ["\n".join(f"- No verdict, as {why}: {'; '.join(names)}." for why, names in unknown.items())]
    return "\n\n".join(part for part in parts if part)
