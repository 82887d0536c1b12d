# SPDX-License-Identifier: Apache-2.0
"""
What four pages name is there. docs/memory-order.md and the sources name the same edges, and the mutations of the
page's table are those that tests/model/run.py runs. Each promise in docs/reliability.md names what shows it, and all
tests, files and models that the page names exist. docs/man/ringcast.7.md has each variable of the environment that the
sources read. Each error text that docs/troubleshooting.md quotes is in the sources.
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = re.compile(r"`((?:ring|event|newest|tap|spill|device) [A-Za-z0-9_+-]+)`")

FOLDERS = ["ring", "shm", "channel", "gpu"]
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
EDGE = re.compile(r"\b([WRAGJLNTPSEVCKDOQUX]\d)\b(?!\.\d)")  # C0.1 is a state of a CPU
ROW = re.compile(r"^\| ([A-Z]\d) \|", re.M)

PROMISES = re.compile(r"^## What is promised\n(.*?)^## ", re.M | re.S)
TEST = re.compile(r"`((?:test|soak|lint|gpu)_\w+|kill_campaign)`")
VARIABLE = re.compile(r'"(RINGCAST_[A-Z_]*[A-Z])"')
FILE = re.compile(r"`(tests/[\w/.]+)`")


def runs_of(*tables):
    """The names in these tables of tests/model/run.py."""
    names = set()
    for node in ast.parse((ROOT / "tests" / "model" / "run.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id in tables:
            names.update(key.value for key in node.value.keys)
    return names


def named_in_sources():
    """Each edge, and the files whose comments name it."""
    named = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.[ch]")):
            for comment in COMMENT.findall(file.read_text(encoding="utf-8")):
                for edge in EDGE.findall(comment):
                    named.setdefault(edge, set()).add(str(file.relative_to(ROOT)))
    return named


def memory_order(text):
    """Complaints about docs/memory-order.md."""
    named, rows = named_in_sources(), ROW.findall(text)
    told, run = set(RUN.findall(text)), runs_of("MUTATIONS", "SPARE")
    for edge in sorted(set(named) - set(rows)):
        yield f"{edge}, named in {', '.join(sorted(named[edge]))}, is not in the table"
    yield from (f"{edge} is in the table, and no source names it" for edge in sorted(set(rows) - set(named)))
    yield from (f"{edge} is in the table twice" for edge in sorted(set(rows)) if rows.count(edge) > 1)
    yield from (f"the run '{name}' is not in the table" for name in sorted(run - told))
    yield from (
        f"the table has a run '{name}', which tests/model/run.py lacks"
        for name in sorted(told - run - runs_of("MODELS"))
    )
    if not rows:
        yield "the table of edges is gone"


def exists(name):
    """Whether ctest has a test of that name."""
    if any((ROOT / "tests" / folder / f"{name}.c").exists() for folder in ("unit", "process")):
        return True
    lists = re.sub(r"\s+", " ", (ROOT / "tests" / "CMakeLists.txt").read_text(encoding="utf-8"))
    return f"add_test(NAME {name} " in lists or f"function({name}_as " in lists


def reliability(text):
    """Complaints about docs/reliability.md."""
    rows = [line.strip("| ").split(" | ") for line in PROMISES.search(text)[1].splitlines() if line.startswith("|")][2:]
    shown = ""
    for row in rows:
        shown = shown if row[-1] == "the same" else row[-1]
        if not (TEST.search(shown) or FILE.search(shown) or RUN.search(shown)):
            yield f"nothing is named that shows '{row[0]}'"
    yield from (f"there is no test {name}" for name in sorted({*TEST.findall(text)}) if not exists(name))
    yield from (f"there is no {name}" for name in sorted({*FILE.findall(text)}) if not (ROOT / name).exists())
    yield from (f"tests/model/run.py has no '{name}'" for name in sorted({*RUN.findall(text)} - runs_of("MODELS")))
    if not rows:
        yield "the table of promises is gone"


def environment(text):
    """Complaints about docs/man/ringcast.7.md."""
    sources = [file for folder in [*FOLDERS, "tools", "python"] for file in sorted((ROOT / folder).rglob("*.*"))]
    read = {
        name: str(file.relative_to(ROOT))
        for file in sources
        if file.suffix in (".c", ".h", ".py")
        for name in VARIABLE.findall(file.read_text(encoding="utf-8"))
    }
    told = set(re.findall(r"\*\*(RINGCAST_[A-Z_]+)\*\*", text))
    yield from (f"{name}, which {read[name]} reads, is not told" for name in sorted(set(read) - told))
    yield from (f"{name} is told, and no source reads it" for name in sorted(told - set(read)))


def troubleshooting(text):
    """Complaints about docs/troubleshooting.md. A quoted text has `...` where the sources have a value."""
    files = [file for folder in [*FOLDERS, "python"] for file in sorted((ROOT / folder).rglob("*.*"))]
    sources = "".join(file.read_text(encoding="utf-8") for file in files if file.suffix in (".c", ".py"))
    sources = re.sub(r'"\s+f?"', "", sources).replace("options.", "")  # python/extension/errors.c takes "options." away
    quoted = re.findall(r'"([^"`]+)"', "\n".join(re.findall(r"^\| [^|]*", text, re.M)))
    for part in (part.strip(" '=,") for whole in quoted for part in whole.split("...")):
        if part not in sources:
            yield f"no source has the text '{part}'"
    if not quoted:
        yield "the error texts are gone"


def main():
    wrong = 0
    for name, look in (
        ("docs/memory-order.md", memory_order),
        ("docs/reliability.md", reliability),
        ("docs/man/ringcast.7.md", environment),
        ("docs/troubleshooting.md", troubleshooting),
    ):
        for complaint in look((ROOT / name).read_text(encoding="utf-8")):
            wrong += 1
            print(f"{name}: {complaint}")
    print(f"4 pages, {wrong} names wrong")
    return 1 if wrong else 0


sys.exit(main())
