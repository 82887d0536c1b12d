# SPDX-License-Identifier: Apache-2.0
"""slowest.py FILE...: the ten slowest tests of JUnit files (empty: its run was broken off)."""

import pathlib
import sys
import xml.etree.ElementTree as xml

tests = []
for path in filter(lambda path: path.stat().st_size, map(pathlib.Path, sys.argv[1:])):
    step = path.name.partition(".")[0]
    for case in xml.parse(path).iter("testcase"):
        file = case.get("classname", "").rpartition(".")[2]
        name = case.get("name") if file in ("", case.get("name")) else f"{file}::{case.get('name')}"
        tests.append((float(case.get("time", 0)), step, name))
print("The slowest ten:")
for seconds, step, name in sorted(tests, reverse=True)[:10]:
    print(f"  {seconds:6.1f} s  {step}: {name}")
