# SPDX-License-Identifier: Apache-2.0
"""Tells what run.py has found, and writes the tables of docs/engines.md.

report.py [FILE]            prints the table
report.py --page [FILE]     also writes the tables between the markers of docs/engines.md
"""

import argparse
import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench import tables  # noqa: E402
from bench.machine import machine  # noqa: E402, F401

PAGE = ROOT / "docs" / "engines.md"
RESULTS = ROOT / "build" / "engines" / "results.json"
FIGURES = {
    "p50_ms": "p50 ms", "p99_ms": "p99 ms", "tokens_per_s": "tokens/s", "cpu_percent": "CPU %",
    "idle_percent": "in the pauses",
}  # fmt: skip


def figure(value):
    return "" if value is None else tables.any_of(value)


def line(row):
    """One row of one round."""
    words = [
        row["case"],
        *(
            f"{figure(row[key])} {unit}"
            for key, unit in FIGURES.items()
            if row.get(key) is not None
        ),
    ]
    words += [str(row[key]) for key in ("token_hash", "note") if row.get(key)]
    return ", ".join(words) + ("" if row["ok"] else ": NOT OK")


def text(rows):
    lines = [
        [
            f"{row['engine']}, {row['case']}, {row['way']}",
            *(figure(row.get(key)) for key in FIGURES),
        ]
        + [row["token_hash"] or "", tables.any_of(row["ok"])]
        for row in rows
    ]
    return tables.text(["case", *FIGURES.values(), "tokens", "ok"], lines)


# ---- What was to be shown ------------------------------------------------------------------------

# % of a CPU in pauses; of the engine's own way: a step, the first token.
IDLE, STEP, FIRST = (
    10,
    1.02,
    0.95,
)


def by_round(rounds, name, case):
    """(p50 of the own runs, p50 with ringcast) of each round with both."""
    found = {}
    for row in rounds:
        if (row["engine"], row["case"]) == (name, case) and row.get("p50_ms"):
            found.setdefault(row["round"], {})[row["way"]] = row["p50_ms"]
    return [(both["own"], both["ringcast"]) for both in found.values() if len(both) == 2]


def noise(values):
    """By what factor two halves of one way's rounds differ, every other round in each."""
    if len(values) < 2:
        return 1.0
    one, other = statistics.median(values[::2]), statistics.median(values[1::2])
    return max(one, other) / min(one, other)


def verdicts(results):
    """A sentence for each figure that ringcast promises for whole engines."""
    for row in results["rows"]:
        of = f"{row['engine']}, {row['case']}"
        if row["way"] != "ringcast" or ": " in row["case"]:
            continue
        if row.get("idle_percent") is not None:
            idle = row["idle_percent"]
            told = tables.any_of(idle <= IDLE)
            yield f"{of}: {idle} % of a CPU when idle; at most {IDLE}: {told}"
        ways = by_round(results["rounds"], row["engine"], row["case"])
        if ways and row["case"].endswith(("request", "requests", "1.5 s")):
            ratio = statistics.median(ringcast / own for own, ringcast in ways)
            same = noise([own for own, _ in ways])
            most = FIRST if "pauses" in row["case"] else max(STEP, same)
            yield (
                f"{of}: {ratio:.2f} of the engine's own time; own rounds differ by a factor of "
                f"{same:.2f}; "
                f"at most {most:.2f}: {tables.any_of(ratio <= most)}"
            )


# ---- The page ------------------------------------------------------------------------------------


def pairs(rows, name):
    """Of one engine: (case, the row of the own runs, the row with ringcast)."""
    found = {(row["case"], row["way"]): row for row in rows if row["engine"] == name}
    for case in dict.fromkeys(case for case, _ in found):
        if (case, "own") in found and (case, "ringcast") in found:
            yield case, found[case, "own"], found[case, "ringcast"]


def of_engine(rows, name):
    """Both ways side by side, "own / ringcast"."""
    lines = []
    for case, own, ringcast in pairs(rows, name):
        if own.get("to_us") is not None:
            continue  # has a table of its own
        both = {key: [figure(row.get(key)) for row in (own, ringcast)] for key in FIGURES}
        told = {key: " / ".join(values) if any(values) else "" for key, values in both.items()}
        ratio = (
            f"{ringcast['p50_ms'] / own['p50_ms']:.2f}"
            if own["p50_ms"] and ringcast["p50_ms"]
            else ""
        )
        wrong = "; ".join(row["note"] or "NO" for row in (own, ringcast) if not row["ok"])
        lines.append([case, *told.values(), ratio, wrong or "yes"])
    version = next(row["version"] for row in rows if row["engine"] == name)
    return tables.table(
        [f"{name} {version}", *FIGURES.values(), "of own", "as it should be"], lines
    )


def transport(rows):
    """Of a call: the way to the last rank and the way back, in microseconds; a rank's own work in a
    step."""
    names = {"to_us": "to", "from_us": "back", "rank_ms": "rank's ms"}
    lines = [
        [
            name,
            case.partition(": ")[2],
            *(figure(way.get(key)) for key in names for way in (own, ringcast)),
        ]
        for name in dict.fromkeys(row["engine"] for row in rows)
        for case, own, ringcast in pairs(rows, name)
        if own.get("to_us") is not None
    ]
    head = [f"{what}, {way}" for what in names.values() for way in ("own", "ringcast")]
    return tables.table(["engine", "", *head], lines)


def by_process(rows):
    lines = [
        [
            row["engine"],
            row["case"],
            row["way"],
            ", ".join(f"{who} {part}" for who, part in row["by_process"].items()),
        ]
        for row in rows
        if row.get("by_process")
    ]
    return tables.table(["engine", "case", "way", "% of a CPU"], lines)


def write_page(results):
    rows, found = results["rows"], results["machine"]
    engines = "\n\n".join(
        of_engine(rows, name) for name in dict.fromkeys(row["engine"] for row in rows)
    )
    shown = "\n".join(f"- {line}" for line in verdicts(results))
    blocks = {
        "machine": f"{found['cores']} CPUs of {found['cpu']}; load average before the runs "
        f"{found['load_average']:.1f}; medians of "
        f"{1 + max(row['round'] for row in results['rounds'])} rounds, where a "
        "part has so many.",
        "engines": f"{engines}\n\n{shown}",
        "processes": by_process(rows),
        "transport": transport(rows),
    }
    PAGE.write_text(tables.fill(PAGE.read_text(encoding="utf-8"), blocks), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--page", action="store_true")
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    results = json.loads(arguments.file.read_text())
    print(text(results["rows"]), *verdicts(results), sep="\n")
    if arguments.page:
        write_page(results)


if __name__ == "__main__":
    main()
