# SPDX-License-Identifier: Apache-2.0
"""No line of our own code is longer than 120 columns. Prints each that is; what is generated or read by machines alone
is not looked at."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 120
FOLDERS = "bench channel cmake docs examples gpu include python ring shm tests tools".split()
SUFFIXES = {f".{suffix}" for suffix in "c h cc cpp cu cuh py pyi sh pml cmake".split()}
NAMES = {"CMakeLists.txt", "Makefile"}


def main():
    files = complaints = 0
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    for path in sorted(ROOT.glob("*")) + paths:
        if not (path.suffix in SUFFIXES or path.name in NAMES) or not path.is_file():
            continue
        files += 1
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if len(line) > COLUMNS:
                complaints += 1
                print(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns, at most {COLUMNS}: wrap it")
    print(f"{files} files, {complaints} lines too long")
    return 1 if complaints or not files else 0


sys.exit(main())
