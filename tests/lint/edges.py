# SPDX-License-Identifier: Apache-2.0
"""docs/memory-order.md and the sources name the same edges, and the table's mutations are those that tests/model/run.py
runs."""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "memory-order.md"
FOLDERS = ["ring", "shm", "channel", "gpu"]
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
EDGE = re.compile(r"\b([WRAGJLTPSEVCKDOQUX]\d)\b(?!\.\d)")  # C0.1 is a state of a CPU
ROW = re.compile(r"^\| ([A-Z]\d) \|", re.M)
RUN = re.compile(r"`((?:ring|event|tap|spill|device) [A-Z0-9_+]+)`")


def named_in_sources():
    """Each edge, and the files whose comments name it."""
    named = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.[ch]")):
            for comment in COMMENT.findall(file.read_text(encoding="utf-8")):
                for edge in EDGE.findall(comment):
                    named.setdefault(edge, set()).add(str(file.relative_to(ROOT)))
    return named


def weakened_by_the_runner():
    """The names of its mutations and spare runs."""
    names = set()
    for node in ast.parse((ROOT / "tests" / "model" / "run.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id in ("MUTATIONS", "SPARE"):
            names.update(key.value for key in node.value.keys)
    return names


def main():
    text = TABLE.read_text(encoding="utf-8")
    named, rows = named_in_sources(), ROW.findall(text)
    told, run = set(RUN.findall(text)), weakened_by_the_runner()
    complaints = [
        f"{edge}, named in {', '.join(sorted(named[edge]))}, is not in the table"
        for edge in sorted(set(named) - set(rows))
    ]
    complaints += [f"{edge} is in the table, and no source names it" for edge in sorted(set(rows) - set(named))]
    complaints += [f"{edge} is in the table twice" for edge in sorted(set(rows)) if rows.count(edge) > 1]
    complaints += [f"the run '{name}' is not told of" for name in sorted(run - told)]
    complaints += [f"the table tells of the run '{name}', which there is not" for name in sorted(told - run)]
    for complaint in complaints:
        print(f"docs/memory-order.md: {complaint}")
    print(
        f"{len(named)} edges in the sources, {len(rows)} in docs/memory-order.md; {len(run)} weakenings; "
        f"{len(complaints)} wrong"
    )
    return 1 if complaints or not rows else 0


sys.exit(main())
