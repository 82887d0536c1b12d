# SPDX-License-Identifier: Apache-2.0
"""
Counts the lines of each part, and of the files over 500 lines, and holds them against the figures below. No line of
our own code is longer than 120 columns.

    budget.py           a part above its figure fails, and so does one so far below it that the figure should follow
    budget.py --lower   lowers the figures to what is there and one per cent

The figures only go down. A commit that has to raise one says which promise to users needs these lines.
"""

import pathlib
import re
import sys

from repository import ROOT, files

# Part: its folders, and the lines that it may have at most. Some parts are larger than was once aimed at (core 8,000,
# package 6,720, measuring 5,000, tests 38,000), for promises that would go with the lines: in the core waits left to
# the CPU, NUMA, quotas of cgroups, descriptors without io_uring, names of rings and observers; in the package several
# machines, point to point and deaths told by name, traces; in measuring GPUs, the drop-ins beside what they stand in
# for, and a model of more readers and machines than are at hand. The command line looks at rings, and records and
# replays what they carry. The peers are the comparison with 30 other ways, each with an adapter, and the pages made of
# it. The build makes wheels, Debian packages and the site, and runs the tests.
PARTS = {
    "headers": ("include", 2100),
    "core": ("ring shm channel", 10360),
    "gpu": ("gpu", 4560),
    "extension": ("python/extension", 14390),
    "package": ("python/ringcast", 12840),
    "command line": ("tools", 10030),
    "measuring": ("bench python/ringcast/bench", 5350),
    "profile": ("python/ringcast/profile", 3440),
    "peers": ("bench/peers", 10020),
    "build": ("cmake debian .github", 3960),
    "tests": ("tests", 64900),
    "tests of gpu": ("tests", 17310),
}
SLACK = 3  # a part may be so many per cent below its figure before the figure must follow

# Files of more than 500 lines: what they may have at most.
LONG = {
    "include/ringcast/ringcast.h": 511,
    "python/ringcast/_ringcast.pyi": 910,
    "tests/fake_cuda/streams.c": 505,
    "tests/model/ring.pml": 614,
    "tests/python/device_dropins.py": 524,
}
MOST = 500
COLUMNS = 120

DATA = {".md", ".txt", ".json", ".supp", ".yml"}  # may be as long, and as wide, as they like
SUFFIXES = {".c", ".h", ".hpp", ".cc", ".cu", ".py", ".pyi", ".sh", ".pml", ".cmake"} | DATA
ME = "tests/lint/budget.py"
OF_THE_GPU = re.compile(r"^tests/.*(gpu|cuda|device|fake_torch)")


def tracked():
    return [name for name in files() if pathlib.Path(name).suffix in SUFFIXES]


def part_of(name):
    """The part that counts this file, or None. Where two folders of the table contain a file, the inner one counts."""
    if OF_THE_GPU.search(name):
        return "tests of gpu"
    parts = {folder: part for part, (folders, _) in reversed(PARTS.items()) for folder in folders.split()}
    return parts.get(max((folder for folder in parts if name.startswith(folder + "/")), default=None))


def too_wide(names):
    """A complaint for each line that is too long."""
    for name in names:
        if pathlib.Path(name).suffix in DATA and not name.endswith("CMakeLists.txt"):
            continue
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").split("\n"), 1):
            if len(line) > COLUMNS:
                yield f"{name}:{number}: {len(line)} columns, at most {COLUMNS}: wrap it"


def lower(found, long):
    """Rewrites the figures of this file."""
    path = pathlib.Path(__file__)
    text = path.read_text(encoding="utf-8")
    for part, (folders, most) in PARTS.items():
        figure = min(most, -(-found[part] * 101 // 1000) * 10)
        text = text.replace(f'"{part}": ("{folders}", {most})', f'"{part}": ("{folders}", {figure})')
    for name, most in LONG.items():
        if name not in long:
            text = text.replace(f'    "{name}": {most},\n', "")
        elif long[name] < most:
            text = text.replace(f'"{name}": {most},', f'"{name}": {long[name]},')
    path.write_text(text, encoding="utf-8")


def main():
    lines = {name: (ROOT / name).read_bytes().count(b"\n") for name in tracked()}
    found = dict.fromkeys(PARTS, 0)
    for name, count in lines.items():
        if part_of(name):
            found[part_of(name)] += count
    long = {name: count for name, count in lines.items() if count > MOST and pathlib.Path(name).suffix not in DATA}
    if sys.argv[1:] == ["--lower"]:
        lower(found, long)
        return 0
    wrong = list(too_wide(lines))
    for part, (folders, most) in PARTS.items():
        if found[part] > most:
            wrong.append(f"{part} ({folders}): {found[part]} lines, at most {most}: raise it only with the reason")
        elif found[part] < most * (100 - SLACK) / 100:
            wrong.append(f"{part} ({folders}): {found[part]} lines, {most} are allowed: run {ME} --lower")
    for name, count in long.items():
        if count > LONG.get(name, MOST):
            wrong.append(f"{name}: {count} lines, at most {LONG.get(name, MOST)}: split it by what a reader looks for")
    for name, most in LONG.items():
        if name not in long:
            wrong.append(f"{name} is gone or has at most {MOST} lines, {most} are allowed: run {ME} --lower")
    print("\n".join(wrong + [f"{part}: {found[part]} of {most} lines" for part, (_, most) in PARTS.items()]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
