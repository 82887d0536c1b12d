# SPDX-License-Identifier: Apache-2.0
"""The comparisons of report.py: ringcast's best way against the best rival in a cell, in rows of the same state."""

import collections
import math
import statistics

from report_rows import COMPARED, FLOOR, LINE, best, cpu_percent, crossing, label, ours, ratio, select, shown, value_of

# ratio: ours to the rival's; None: no state is common to both. note: facts for the reader of the verdict.
Duel = collections.namedtuple("Duel", "ours peer figure mine theirs ratio note")
APART = "not comparable: near and far"


def duel(rows, figure, rival=crossing, way=ours, **wanted):
    """The best of our ways against the best rival in a cell, if there are both."""
    found = [row for row in select(rows, **wanted) if value_of(row, figure) is not None]
    mine = [row for row in found if ours(row) and way(row)]
    others = [row for row in found if not ours(row) and rival(row)]
    if not mine or not others:
        return None
    for state in COMPARED:
        one, other = (best([row for row in side if row.get("state") == state], figure) for side in (mine, others))
        if one and other:
            return met(figure, one, other, value_of(one, figure), value_of(other, figure), note_of(others, state))
    return Duel(best(mine, figure), best(others, figure), figure, None, None, None, APART)


def met(figure, one, other, mine, theirs, note):
    return Duel(one, other, figure, mine, theirs, mine / theirs if theirs else math.inf, note)


def note_of(others, state):
    """The state if it is far, and the rivals that have no row of the state."""
    if state is None:
        return ""
    without = {row["peer"] for row in others} - {row["peer"] for row in others if row["state"] == state}
    names = ", ".join(f"`{name}`" for name in sorted(without))
    told = ["both far"] * (state == "far") + [f"no {state} row of {names}"] * bool(names)
    return "; ".join(told)


def missing(rows, rival=crossing, way=ours, **wanted):
    """Why a cell has no comparison."""
    if not any(ours(row) and way(row) for row in select(rows, **wanted)):
        return "ringcast has no such row"
    cell = {key: value for key, value in wanted.items() if key != "reading"}
    failed = [dict(row, status="ok") for row in rows if row.get("status") != "ok" and rival(row)]
    said = {row["peer"] for row in select(failed, **cell) if not ours(row)}
    names = ", ".join(f"`{name}`" for name in sorted(said))
    return "no rival has such a row" + (f" ({names}: see what could not be measured)" if said else "")


# ---- The headline: alternating rounds --------------------------------------------------------------------------------


def common_rounds(state, *ways):
    rounds = [set(way["trips"].get(state, ())) for way in ways]
    return sorted(set.intersection(*rounds))


def middle(way, state, rounds):
    """In us."""
    return statistics.median(way["trips"][state][number] for number in rounds) / 1000


def headline_duel(rows, rival=crossing, **wanted):
    """Of the rounds in which both ways' lines were near, or far if there are none: the medians of each."""
    found = select(rows, scenario="headline", **wanted)
    mine, others = [row for row in found if ours(row)], [row for row in found if not ours(row) and rival(row)]
    if not mine or not others:
        return None
    for state in COMPARED:
        sides = [[row for row in side if row["trips"].get(state)] for side in (mine, others)]
        if not all(sides):
            continue
        one, other = (min(side, key=lambda row: middle(row, state, row["trips"][state])) for side in sides)
        rounds = common_rounds(state, one, other)
        if rounds:
            note = rounds_note(rows, state, one, other, rounds)
            return met("p50_us", one, other, middle(one, state, rounds), middle(other, state, rounds), note)
    return Duel(mine[0], others[0], "p50_us", None, None, None, APART)


def rounds_note(rows, state, one, other, rounds):
    every = len({number for found in one["trips"].values() for number in found})
    told = f"{len(rounds)} {state + ' ' if state else ''}rounds of {every}"
    lines = select(rows, floors=True, scenario="headline", peer=LINE)
    rounds = common_rounds(state, one, other, lines[0]) if lines else []
    if not rounds:
        return told
    shares = [ratio(middle(way, state, rounds) / middle(lines[0], state, rounds)) for way in (one, other)]
    return f"{told}; {shares[0]} and {shares[1]} of the bare line"


def to_line(rows, row):
    """A way's median to that of the bare line in the same rounds; None: no common rounds."""
    lines = select(rows, floors=True, scenario="headline", peer=LINE)
    rounds = common_rounds(row["state"], row, lines[0]) if lines else []
    return middle(row, row["state"], rounds) / middle(lines[0], row["state"], rounds) if rounds else None


# ---- CPU -------------------------------------------------------------------------------------------------------------


def users_way(row):
    """The way that a user gets without an option."""
    return ours(row) and label(row) == ("c-ringcast-default" if row["language"] == "c" else "ringcast")


def cpu_duel(rows, **wanted):
    """Rivals are the ways with a p50 of at most twice that of the user's way. (duel or None, reason, words for each
    peer with less CPU and a longer p50)"""
    found = [row for row in select(rows, **wanted) if cpu_percent(row) is not None and row.get("p50_us") is not None]
    one = best([row for row in found if users_way(row)], "cpu")
    if one is None:
        return None, "ringcast has no such row", []
    most = 2 * one["p50_us"]

    def rival(row):
        return crossing(row) and row.get("p50_us") is not None and row["p50_us"] <= most

    found = [row for row in found if not ours(row) and crossing(row) and row.get("state") == one.get("state")]
    cheap = [row for row in found if row["p50_us"] > most and cpu_percent(row) < cpu_percent(one)]
    cheap.sort(key=cpu_percent)
    words = [f"`{label(row)}` {shown(cpu_percent(row), 'cpu')} and {shown(row['p50_us'], 'p50_us')}" for row in cheap]
    result = duel(rows, "cpu", rival, users_way, **wanted)
    return result, f"no peer's p50 is within twice ringcast's, {shown(one['p50_us'], 'p50_us')}", words


def told_cheap(words, most=None):
    if not words:
        return ""
    more = [f"and {len(words) - most} more ways"] if most and len(words) > most else []
    return "less CPU but a longer median: " + ", ".join(words[:most] + more)


def floor_note(rows, found, **wanted):
    """The floor beside a duel, in the same state."""
    floors = [row for row in select(rows, floors=True, peer=FLOOR, **wanted) if row["state"] == found.ours["state"]]
    floor = best(floors, found.figure)
    return f"floor `{FLOOR}` {shown(value_of(floor, found.figure), found.figure)}" if floor else ""
