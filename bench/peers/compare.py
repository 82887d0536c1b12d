# SPDX-License-Identifier: Apache-2.0
"""Compares two results of run.py.

    compare.py OLD NEW          rows with main figures that differ by more than the rounds of either run, and by 10 %
    compare.py --all OLD NEW    all rows in both

Rows in C are compared in the same state of the cache line, near or far: see rows.py.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import KEY, MAIN  # noqa: E402
from rows import load  # noqa: E402

LEAST = 1.1  # a smaller difference does not count


def by_key(results):
    return {tuple(row.get(name) for name in KEY): row for row in load(results)}


def change(old, new):
    """(faster, figure): 2 is twice as fast as before; None: no figure is in both."""
    for name in MAIN:
        if old.get(name) and new.get(name):
            ratio = old[name] / new[name]
            return (1 / ratio if name == "messages_per_s" else ratio), name
    return None


def compare(old, new, everything):
    """The lines of the changes, the largest first, then those of the rows that one run has, or that failed."""
    found, words = [], []
    before, after = by_key(old), by_key(new)
    for key in {**before, **after}:
        text = " ".join(str(part) for part in key if part is not None)
        one, other = before.get(key, {}), after.get(key, {})
        statuses = [row.get("status", "not there") for row in (one, other)]
        if statuses[0] != statuses[1]:
            words.append(f"{text}: was {statuses[0]!r}, is {statuses[1]!r}")
        elif statuses[0] == "ok" and one["state"] == other["state"] != "changed" and change(one, other):
            faster, name = change(one, other)
            size = max(faster, 1 / faster)
            if everything or size > max(LEAST, one.get("spread") or 1, other.get("spread") or 1):
                how = "faster" if faster >= 1 else "slower"
                figures = f"{one[name]:12.6g} -> {other[name]:12.6g} {name:14}"
                found.append((size, f"{size:.2f} x {how}  {figures}  {text}"))
    return [text for _, text in sorted(found, reverse=True)] + words


def main(arguments=None):
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="also rows that differ by no more than the rounds do")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    results = [json.loads(path.read_text()) for path in (options.old, options.new)]
    for name, of in zip(("old", "new"), results):
        meta = of["meta"]
        print(f"{name}: {meta.get('date')}  {(meta.get('commit') or '')[:7]}  {meta.get('cpu')}")
    if results[0]["meta"].get("cpu") != results[1]["meta"].get("cpu"):
        print("The CPUs differ: the figures say little about the code.")
    print(*compare(*results, options.all), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
