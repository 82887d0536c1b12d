# SPDX-License-Identifier: Apache-2.0
"""The report of run.py's rows: which goals are reached, where a peer wins, and the pages.

report.py [--results FILE]   prints the goals, the short table, the cells won by peers, and the tested claims
report.py --page             also fills the measured blocks of docs/peers.md, docs/claims.md and README.md, and draws
                             the pictures
"""

import argparse
import json
import pathlib
import sys

import report_claims
from report_goals import goal_table
from report_pictures import draw
from report_rows import ROOT, fill, table, three
from report_rows import load as load_rows
from report_tables import (
    absent_table,
    beforehand,
    counts,
    group_name,
    headline_table,
    listing,
    matrix,
    own_queue,
    pauses,
    short_table,
    win_table,
)

NOT = "Not measured yet."
NONE = "This run has no such row. [What could not be measured](#what-could-not-be-measured)."
# The messages of the tables; the rest is in results.csv.
SIZES = ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-16Mi", "bytes-64Mi"]
SIZES_C = ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-4Mi", "bytes-64Mi"]
STREAMED = ["bytes-64", "bytes-4Ki", "bytes-64Ki", "bytes-1Mi", "bytes-16Mi", "metadata"]
OBJECTS = ["metadata", "scheduler-64", "records-10", "records-10000", "records-10000-array", "features"]
CALLED = ["metadata", "scheduler-256", "records-10", "records-1000", "records-10000", "features"]
CODED = ["metadata", "scheduler-64", "records-10", "records-1000", "records-10000", "records-1000-array"]
GROUPED = ["bytes-64", "bytes-64Ki", "metadata"]


def facts(meta):
    if not meta:
        return NOT
    known = dict.fromkeys(("date", "commit", "cpu", "cpus", "kernel", "python", "rounds"), "not noted")
    known.update((key, value) for key, value in meta.items() if value is not None)
    load = "not noted" if meta.get("load_before") is None else three(meta["load_before"])
    told = (
        "{date:.10}, commit {commit:.12}; {cpus} CPUs of {cpu}; Linux {kernel}; Python {python}; "
        "{rounds} round{s} in {minutes:.0f} minutes; load before: {load}."
    ).format(minutes=(meta.get("seconds") or 0) / 60, load=load, s="s" * (known["rounds"] != 1), **known)
    return told + (" A quick run: few messages." if meta.get("quick") else "")


def versions(rows):
    found = {f"{row['family']} {row['version']}" for row in rows if row.get("version") and row.get("status") == "ok"}
    return ", ".join(sorted(found)) + "." if found else ""


def picture(name, words):
    return f"![{words}]({name})"


PICTURES = {
    "peers-bytes.svg": "Time of one way by the size of a message, in C and in Python",
    "peers-objects.svg": "Objects written and read, beside pickle over the best transport",
    "peers-cpu.svg": "CPU and time of one way with a message every 25 ms",
}


def detail_blocks(rows):
    """{block: text} of docs/peers.md; the text is empty where the run has no row."""
    two = {"processes": 2}
    objects = {"reading": "objects", "language": "python", **two}
    plain = {"scenario": "one-way", "reading": ["bytes", None], **two}
    c, python = {"language": "c"}, {"language": "python"}
    return {
        "versions": versions(rows),
        "goals": goal_table(rows),
        "headline": headline_table(rows),
        "bytes-c": matrix(rows, "p50_us", payloads=SIZES_C, **c, **plain),
        "bytes-python": matrix(rows, "p50_us", payloads=SIZES, **python, **plain),
        "in-place": matrix(rows, "p50_us", payloads=SIZES_C, scenario="in-place", **two),
        "objects": matrix(rows, "p50_us", payloads=OBJECTS, scenario="one-way", **objects),
        "beforehand": matrix([row for row in rows if beforehand(row)], "p50_us", **python, **plain),
        "written": matrix(rows, "write_us", payloads=CALLED, scenario="call", **objects),
        "read": matrix(rows, "read_us", payloads=CALLED, scenario="call", **objects),
        "codec-written": matrix(rows, "write_us", payloads=CODED, scenario="codec"),
        "codec-read": matrix(rows, "read_us", payloads=CODED, scenario="codec"),
        "groups": matrix(rows, "p50_us", group_name, GROUPED, scenario="one-way", processes=[4, 8]),
        "stream-c": matrix(rows, "messages_per_s", scenario="stream", **c, **two),
        "stream-python": matrix(rows, "messages_per_s", payloads=STREAMED, scenario="stream", **python, **two),
        "gpu": matrix(rows, "bytes_per_s", scenario="copy"),
        "memory": matrix(rows, "rss_mb", scenario="one-way", payload="features", **two),
        "batch": matrix(rows, "messages_per_s", scenario="batch"),
        "slow": listing(rows, ["p50_us", "p99_us", "write_us"], scenario="slow"),
        "pauses-c": pauses(rows, "c"),
        "pauses-python": pauses(rows, "python"),
        "idle": listing(rows, ["p50_us", "cpu"], scenario="idle"),
        "shared": matrix(rows, "read_us", scenario="shared"),
        "cold": matrix(rows, "p50_us", scenario="cold"),
        "gil": matrix(rows, "gil_share", scenario="gil"),
        "counts": counts(rows),
        "wins": win_table(rows),
        "absent": absent_table(rows),
    }


def readme_block(rows, picture, meta):
    table = short_table(rows, "docs/peers.md#the-ways", 5)
    return "\n\n".join(part for part in (picture, table, own_queue(rows), f"Measured: {facts(meta)}") if part)


def blocks_of(results):
    """{page: {block: text}}."""
    rows = load_rows(results)
    pictures = [picture(*item) for item in PICTURES.items()]
    short = {"short": short_table(rows, "#the-ways"), "pictures": "\n\n".join(pictures)} if rows else {}
    details = {name: text or NONE for name, text in detail_blocks(rows).items()}
    peers = {"short": NOT, "pictures": NOT, **details, **short}
    peers = {"machine": facts(results["meta"]), **(peers if rows else dict.fromkeys(peers, NOT))}
    first = pictures[0].replace("peers-bytes", "docs/peers-bytes")
    readme = readme_block(rows, first, results["meta"]) if rows else NOT
    claims = {f"claim {name}": report_claims.block(rows, name) for name in report_claims.CLAIMS}
    return {"docs/peers.md": peers, "docs/claims.md": claims, "README.md": {"peers": readme}}


def write_pages(results, root):
    for name, blocks in blocks_of(results).items():
        path = root / name
        try:
            text = fill(path.read_text(encoding="utf-8"), blocks)
            if name.endswith("claims.md"):
                lines, counted = report_claims.summary(text)
                text = fill(text, {"claims": f"{counted}\n\n{table(['claim', 'verdict', 'measured'], lines)}"})
        except ValueError as error:
            sys.exit(f"report: {name} has {error}")
        path.write_text(text, encoding="utf-8")


def text(rows):
    parts = {
        "Goals": goal_table(rows),
        "Beside the best peers": short_table(rows, "docs/peers.md#the-ways"),
        "Where a peer wins": win_table(rows),
        "What could not be measured": absent_table(rows),
        "Claims": "\n".join(report_claims.lines_of(rows)),
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
