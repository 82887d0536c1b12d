#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seconds that each test took into build/test/times.tsv: step, test, seconds; the longest first in a step.

    times.py FOLDER    reads FOLDER/*.xml (JUnit, of ctest and of pytest) and FOLDER/*.result, writes FOLDER/times.tsv

A step STEP has the files STEP.xml and STEP-*.xml of its runs. The test "(wall)" is the time of the whole step, and
"(cpu)" the CPU seconds of its processes, which tests that wait do not use. Prints the seconds that the tests of device
tensors take together, in each step.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree


def tests_of(path):
    """Name and seconds of each test in a JUnit file; nothing of a file that a killed run has left half written."""
    try:
        root = xml.etree.ElementTree.parse(path)
    except xml.etree.ElementTree.ParseError:
        return
    for case in root.iter("testcase"):
        # pytest names the module in the class, ctest repeats the test's name there.
        module = case.get("classname", "").rpartition(".")[2]
        name = case.get("name", "")
        yield name if module in ("", name) else f"{module}::{name}", float(case.get("time") or 0)


OF_DEVICES = re.compile(r"gpu|cuda|device", re.I)


def of_devices(rows):
    """The line about the tests of device tensors."""
    seconds = {}
    for step, name, took in rows:
        if OF_DEVICES.search(name):
            seconds[step] = seconds.get(step, 0) + took
    parts = ", ".join(f"{step} {took:.0f}" for step, took in sorted(seconds.items()))
    return f"The tests of device tensors take {sum(seconds.values()):.0f} s: {parts or 'none has run'}."


def main(folder):
    rows = []
    for result in folder.glob("*.result"):
        words = result.read_text().split()
        if words and words[0] in ("passed", "FAILED"):
            rows.append((result.stem, "(wall)", float(words[1])))
            rows.append((result.stem, "(cpu)", float(words[2])))
    for path in folder.glob("*.xml"):
        step = path.stem.partition(".")[0]
        rows.extend((step, name, seconds) for name, seconds in tests_of(path))
    totals = {step: seconds for step, name, seconds in rows if name == "(wall)"}
    rows.sort(key=lambda row: (-totals.get(row[0], 0), row[0], row[1][0] != "(", -row[2], row[1]))
    with open(folder / "times.tsv", "w", encoding="utf-8") as file:
        file.write("step\ttest\tseconds\n")
        for step, name, seconds in rows:
            file.write(f"{step}\t{name}\t{seconds:.2f}\n")
    print(of_devices(rows))


main(pathlib.Path(sys.argv[1]))
