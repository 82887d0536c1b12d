# SPDX-License-Identifier: Apache-2.0
"""Compares two results of run.py.

compare.py OLD NEW          rows with main figures that differ by more than the rounds of either run, and by 10 %
compare.py --all OLD NEW    all rows in both

Rows in C are compared in the same state of the cache line, near or far: see report_rows.py.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from report_rows import set_states  # noqa: E402

Row = Dict[str, Any]

KEY = ("peer", "payload", "scenario", "processes", "reading", "round")
MAIN = ("p50_us", "messages_per_s", "read_us", "write_us")  # the first figure in both rows is compared
LEAST = 1.1  # a smaller difference does not count


class Change(NamedTuple):
    key: Tuple[Any, ...]
    figure: str
    old: float
    new: float
    faster: float  # 2: twice as fast as before
    certain: bool  # more than the rounds differ


def by_key(rows: List[Row]) -> Dict[Tuple[Any, ...], Row]:
    return {tuple(row.get(name) for name in KEY): row for row in rows}


def change(key: Tuple[Any, ...], old: Row, new: Row) -> Optional[Change]:
    for name in MAIN:
        if old.get(name) and new.get(name):
            ratio = new[name] / old[name] if name == "messages_per_s" else old[name] / new[name]
            least = max(LEAST, old.get("spread") or 1, new.get("spread") or 1)
            return Change(key, name, old[name], new[name], ratio, max(ratio, 1 / ratio) > least)
    return None


def moved(old: Row, new: Row) -> str:
    """In words, if the line's cost was not the same in both runs."""
    states = [row.get("state") for row in (old, new)]
    if None in states or (states[0] == states[1] and "changed" not in states):
        return ""
    return f"not compared: the cache line was {states[0]}, is {states[1]}"


def compare(old: List[Row], new: List[Row], one_machine: bool = True) -> Tuple[List[Change], List[str], List[str]]:
    """The changes of figures, the largest first; and in words, the rows in a single result, and the rows with two
    states of the line. On the same machine the least line of both results is the measure."""
    for rows in [old + new] if one_machine else [old, new]:
        set_states(rows)
    before, after = by_key(old), by_key(new)
    changes, words, apart = [], [], []
    for key in {**before, **after}:
        statuses = [rows[key]["status"] if key in rows else "not there" for rows in (before, after)]
        if statuses[0] != statuses[1]:
            words.append(f"{text(key)}: was {statuses[0]!r}, is {statuses[1]!r}")
        elif statuses[0] == "ok" and moved(before[key], after[key]):
            apart.append(f"{text(key)}: {moved(before[key], after[key])}")
        elif statuses[0] == "ok":
            found = change(key, before[key], after[key])
            changes += [found] if found else []
    changes.sort(key=lambda one: -max(one.faster, 1 / one.faster))
    return changes, words, apart


def text(key: Tuple[Any, ...]) -> str:
    return " ".join(f"{part} processes" if isinstance(part, int) else str(part) for part in key if part is not None)


def line(one: Change) -> str:
    how = f"{one.faster:.2f} x faster" if one.faster >= 1 else f"{1 / one.faster:.2f} x slower"
    doubt = "" if one.certain else "  (no more than the rounds differ)"
    return f"{how:15}  {one.old:12.6g} -> {one.new:12.6g} {one.figure:14}  {text(one.key)}{doubt}"


def heading(name: str, meta: Dict[str, Any]) -> str:
    return f"{name}: {meta.get('date')}  {(meta.get('commit') or '')[:7]}  {meta.get('cpu')}, {meta.get('cpus')} CPUs"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="also rows that differ by no more than the rounds do")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    old, new = (json.loads(path.read_text()) for path in (options.old, options.new))
    print(heading("old", old["meta"]))
    print(heading("new", new["meta"]))
    one_machine = old["meta"].get("cpu") == new["meta"].get("cpu")
    if not one_machine:
        print("The CPUs differ: the figures say little about the code.")
    changes, words, apart = compare(old["rows"], new["rows"], one_machine)
    shown = [one for one in changes if one.certain or options.all]
    print(*map(line, shown), *words, *(apart if options.all else []), sep="\n")
    print(
        f"{len(shown)} of {len(changes)} figures shown; {len(words)} rows that only one run has, or that failed in one"
    )
    if apart:
        print(f"{len(apart)} rows in C not compared: a cache line cost more in one run, or changed (--all lists them)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
