# SPDX-License-Identifier: Apache-2.0
"""Each promise in docs/reliability.md names what shows it, and all that the page names is there."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
PROMISES = re.compile(r"^## What is promised\n(.*?)^## ", re.M | re.S)
TEST = re.compile(r"`((?:test|soak|lint|gpu)_\w+|kill_campaign)`")
FILE = re.compile(r"`(tests/[\w/.]+)`")
RUN = re.compile(r"`((?:ring|event|tap|spill|device) [a-z-]+)`")


def exists(name):
    """Whether there is a test of that name for ctest."""
    if any((ROOT / "tests" / folder / f"{name}.c").exists() for folder in ("unit", "process")):
        return True
    lists = re.sub(r"\s+", " ", (ROOT / "tests" / "CMakeLists.txt").read_text(encoding="utf-8"))
    return f"add_test(NAME {name} " in lists or f"function({name}_as " in lists


def main():
    text = PAGE.read_text(encoding="utf-8")
    models = (ROOT / "tests" / "model" / "run.py").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in PROMISES.search(text)[1].splitlines() if line.startswith("|")][2:]
    shown = ""
    complaints = []
    for row in rows:
        shown = shown if row[-1] == "the same" else row[-1]
        if not (TEST.search(shown) or FILE.search(shown) or RUN.search(shown)):
            complaints.append(f"nothing is named that shows '{row[0]}'")
    tests, files, runs = ({*kind.findall(text)} for kind in (TEST, FILE, RUN))
    complaints += [f"there is no test {name}" for name in sorted(tests) if not exists(name)]
    complaints += [f"there is no {name}" for name in sorted(files) if not (ROOT / name).exists()]
    complaints += [f"tests/model/run.py has no '{name}'" for name in sorted(runs) if f'"{name}": ' not in models]
    for complaint in complaints:
        print(f"docs/reliability.md: {complaint}")
    print(
        f"{len(rows)} promises; {len(tests)} tests, {len(files)} files and {len(runs)} models named; "
        f"{len(complaints)} wrong"
    )
    return 1 if complaints or not rows else 0


sys.exit(main())
