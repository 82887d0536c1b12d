#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of cmake/coverage.sh: a line for C, a line for Python, and the files whose lines are
reached least.

    coverage.py FOLDER [--page]

reads FOLDER/c.json (gcovr --json-summary) and FOLDER/python.json (coverage json). A file below the
threshold has a reason in the table of docs/coverage.md, which is written by hand; --page writes the
figures around the reasons anew. Exit status 1: C or Python is below the threshold.
"""

import argparse
import datetime
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench"))

from tables import fill  # noqa: E402

PAGE = ROOT / "docs" / "coverage.md"
LEAST = 90  # per cent of the lines
ROW = re.compile(r"^\| `([^`]+)` \| \d+ % \| (.+) \|$", re.M)
NO_REASON = "no reason yet"


def of_c(path):
    """Each file, and its lines and branches: how many there are, and how many are reached."""
    for file in json.loads(path.read_text())["files"]:
        yield (
            file["filename"],
            [file[f"{what}_{n}"] for what in ("line", "branch") for n in ("total", "covered")],
        )


def of_python(path):
    for name, file in json.loads(path.read_text())["files"].items():
        counts = "num_statements", "covered_lines", "num_branches", "covered_branches"
        yield name, [file["summary"][count] for count in counts]


def share(total, covered):
    return 100 * covered / total if total else 100.0


def below(files):
    """The files that are below the threshold, and their shares of lines; the least first."""
    shares = {name: share(*counts[:2]) for name, counts in files.items()}
    return sorted(
        ((name, lines) for name, lines in shares.items() if lines < LEAST), key=lambda each: each[1]
    )


def page_of(text, sums, low):
    """The page with the figures of today. low: (file, share of lines, reason)."""
    figures = "; ".join(
        f"{name}: {lines:.1f} % of the lines, {branches:.1f} % of the branches"
        for name, (lines, branches) in sums.items()
    )
    rows = [f"| `{name}` | {lines:.0f} % | {reason} |" for name, lines, reason in low]
    table = "\n".join(["| file | lines | why not more |", "| --- | --- | --- |", *rows])
    return fill(text, {"coverage": f"{datetime.date.today()}. {figures}.\n\n{table}"})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    reasons = dict(ROW.findall(page))
    files = {
        "C": dict(of_c(options.folder / "c.json")),
        "Python": dict(of_python(options.folder / "python.json")),
    }
    sums, low = {}, []
    for name, each in files.items():
        total = [sum(counts) for counts in zip(*each.values())]
        sums[name] = lines, branches = share(*total[:2]), share(*total[2:])
        low += [(file, least, reasons.get(file, NO_REASON)) for file, least in below(each)]
        print(
            f"coverage of {name}: {lines:.1f} % of {total[0]} lines, {branches:.1f} % of "
            f"{total[2]} branches"
        )
    print(f"\nFiles below {LEAST} % of their lines:")
    for name, lines, reason in low:
        print(f"{lines:5.1f} %  {name}: {reason}")
    if options.page:
        PAGE.write_text(page_of(page, sums, low))
    return 0 if all(lines >= LEAST for lines, _ in sums.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
