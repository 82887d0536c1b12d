# SPDX-License-Identifier: Apache-2.0
"""Tells what run.py has found: a table, a picture, and the tables of docs/engines.md.

report.py [FILE]            prints the table, and draws build/engines/engines.svg
report.py --page [FILE]     also writes the tables between the markers of docs/engines.md, and the picture beside it
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from tables import fill  # noqa: E402

PAGE = ROOT / "docs" / "engines.md"
RESULTS = ROOT / "build" / "engines" / "results.json"
PICTURE = "engines.svg"
HEAD = ["engine", "case", "way", "p50 ms", "p99 ms", "tokens/s", "CPU %", "tokens", "ok"]
KEYS = ["engine", "case", "way", "p50_ms", "p99_ms", "tokens_per_s", "cpu_percent", "token_hash", "ok"]


def machine():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else os.uname().machine,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }


def three(value):
    """Three digits that count."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cells(row):
    found = [three(row[key]) if isinstance(row[key], (int, float)) else row[key] or "" for key in KEYS[:-1]]
    return [*found, "yes" if row["ok"] else "NO"]


def line(row):
    """One row of one round."""
    words = [row["case"]]
    for key, unit in (
        ("p50_ms", "ms p50"),
        ("p99_ms", "ms p99"),
        ("tokens_per_s", "tokens/s"),
        ("cpu_percent", "% CPU"),
    ):
        if row.get(key) is not None:
            words.append(f"{three(row[key])} {unit}")
    words += [str(row[key]) for key in ("token_hash", "note") if row.get(key)]
    return ", ".join(words) + ("" if row["ok"] else ": NOT OK")


def text(rows):
    """All rows, in columns."""
    lines = [HEAD, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    numbers = range(3, 7)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(words, widths))
        ).rstrip()
        for words in lines
    )


# ---- What was to be shown --------------------------------------------------------------------------------------------

IDLE, STEP, FIRST = 10, 1.02, 0.95  # % of a CPU in pauses; of the engine's own way: a step, the first token


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
        if row["way"] == "ringcast" and row.get("idle_percent") is not None:
            idle = row["idle_percent"]
            yield f"{row['engine']}, {row['case']}: {idle} % of a CPU when idle; at most {IDLE}: {said(idle <= IDLE)}"
        if row["way"] == "ringcast" and row["case"].endswith(("request", "requests", "1.5 s")):
            ways = by_round(results["rounds"], row["engine"], row["case"])
            if ways and ": " not in row["case"]:
                ratio = statistics.median(ringcast / own for own, ringcast in ways)
                same = noise([own for own, _ in ways])
                most = FIRST if "pauses" in row["case"] else max(STEP, same)
                yield (
                    f"{row['engine']}, {row['case']}: {ratio:.2f} of the engine's own time; own rounds differ by a "
                    f"factor of {same:.2f}; at most {most:.2f}: {said(ratio <= most)}"
                )


def said(good):
    return "yes" if good else "NO"


# ---- The page --------------------------------------------------------------------------------------------------------


def pairs(rows, name):
    """Of one engine: (case, the row of the own runs, the row with ringcast)."""
    found = {(row["case"], row["way"]): row for row in rows if row["engine"] == name}
    for case in dict.fromkeys(case for case, _ in found):
        if (case, "own") in found and (case, "ringcast") in found:
            yield case, found[case, "own"], found[case, "ringcast"]


def markdown(head, lines):
    return "\n".join(["| " + " | ".join(words) + " |" for words in [head, ["---"] * len(head), *lines]])


def of_engine(rows, name):
    """Both ways side by side, "own / ringcast"."""

    def both(key):
        values = [three(row.get(key)) for row in (own, ringcast)]
        return " / ".join(values) if any(values) else ""

    lines = []
    for case, own, ringcast in pairs(rows, name):
        if own.get("to_us") is not None:
            continue  # has a table of its own
        ratio = f"{ringcast['p50_ms'] / own['p50_ms']:.2f}" if own["p50_ms"] and ringcast["p50_ms"] else ""
        good = (
            "yes" if own["ok"] and ringcast["ok"] else "no: " + "; ".join(filter(None, [own["note"], ringcast["note"]]))
        )
        rest = map(both, ("tokens_per_s", "cpu_percent", "idle_percent"))
        lines.append([case, *map(both, ("p50_ms", "p99_ms")), ratio, *rest, good])
    version = next(row["version"] for row in rows if row["engine"] == name)
    head = [
        f"{name} {version}",
        "p50 ms",
        "p99 ms",
        "of own",
        "tokens/s",
        "% of a CPU",
        "in the pauses",
        "as it should be",
    ]
    return markdown(head, lines)


TRANSPORT = ["to, own", "to, ringcast", "back, own", "back, ringcast", "rank's ms, own", "rank's ms, ringcast"]


def transport(rows):
    """Of a call: the way to the last rank and the way back, in microseconds; a rank's own work in a step."""
    lines = []
    for name in dict.fromkeys(row["engine"] for row in rows):
        for case, own, ringcast in pairs(rows, name):
            if own.get("to_us") is not None:
                times = [way.get(key) for key in ("to_us", "from_us", "rank_ms") for way in (own, ringcast)]
                lines.append([name, case.partition(": ")[2], *map(three, times)])
    return markdown(["engine", "", *TRANSPORT], lines)


def by_process(rows):
    """Percent of a CPU by process, for the cases that have it."""
    lines = [
        [
            row["engine"],
            row["case"],
            row["way"],
            ", ".join(f"{who} {share}" for who, share in row["by_process"].items()),
        ]
        for row in rows
        if row.get("by_process")
    ]
    return markdown(["engine", "case", "way", "% of a CPU"], lines)


def facts(results):
    found = results["machine"]
    return (
        f"{found['cores']} CPUs of {found['cpu']}; load average before the runs {found['load_average']:.1f}; "
        f"medians of {1 + max(row['round'] for row in results['rounds'])} rounds, where a part has so many."
    )


def write_page(results):
    rows = results["rows"]
    engines = "\n\n".join(of_engine(rows, name) for name in dict.fromkeys(row["engine"] for row in rows))
    shown = "\n".join(f"- {line}" for line in verdicts(results))
    blocks = {
        "machine": facts(results),
        "engines": f"{engines}\n\n![Both ways side by side]({PICTURE})\n\n{shown}",
        "processes": by_process(rows),
        "transport": transport(rows),
    }
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), blocks), encoding="utf-8")


def is_main(case, word):
    """Whether the case is one of the part "cases", which has no title, and is of this kind."""
    return word in case and ": " not in case


def draw(rows, file):
    """Three rows of bars for each engine: the step, the first token after a pause, the CPU in pauses."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["engine"] for row in rows))
    kinds = [
        ("request", "p50_ms", "a step, ms"),
        ("pauses", "p50_ms", "first token, ms"),
        ("pauses", "cpu_percent", "CPU, %"),
    ]
    figure, axes = pyplot.subplots(len(names), len(kinds), figsize=(10, 3 * len(names)), squeeze=False)
    for name, row_of_axes in zip(names, axes):
        for (word, key, label), place in zip(kinds, row_of_axes):
            found = [pair for pair in pairs(rows, name) if is_main(pair[0], word) and pair[1][key] and pair[2][key]]
            for shift, way, color in ((-0.2, 1, "grey"), (0.2, 2, "firebrick")):
                heights = [pair[way][key] for pair in found]
                place.bar(
                    [x + shift for x in range(len(found))],
                    heights,
                    0.38,
                    color=color,
                    label=["own", "ringcast"][way - 1],
                )
            place.set_xticks(range(len(found)), [pair[0].replace("pauses of ", "") for pair in found], fontsize=8)
            place.set_title(f"{name}: {label}", fontsize=9)
    axes[0][0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--page", action="store_true")
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    results = json.loads(arguments.file.read_text())
    print(text(results["rows"]), *verdicts(results), sep="\n")
    draw(results["rows"], RESULTS.parent / PICTURE)
    if arguments.page:
        write_page(results)
        draw(results["rows"], PAGE.parent / PICTURE)


if __name__ == "__main__":
    main()
