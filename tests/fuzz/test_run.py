# SPDX-License-Identifier: Apache-2.0
"""The runner of the fuzz targets fails when it must: with programs that only say what a target would."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LOG = "echo 'stat::number_of_executed_units: 7'; echo 'frames fuzzed: 5'; "
# What a target does; the status that is to come of it, and what is to be said.
CASES = {
    "well": (LOG, 0, r"^fuzzed frames: 5 \(in 7 executions\)$"),
    "skipped": ("echo 'SKIPPED fuzz_frame: not here'", 0, r"^SKIPPED fuzz_frame: not here$"),
    "skipped, and died": ("echo 'SKIPPED fuzz_frame: not here'; kill -9 $$", 1, r"^frame: ended with status -9$"),
    "died": (LOG + "exit 3", 1, r"^frame: ended with status 3$"),
    "left an input": (
        LOG + 'for word; do case $word in -artifact_prefix=*) : >"${word#*=}x";; esac; done',
        1,
        r"^frame: fails on .*frame-x; to try again: ",
    ),
}


def call(folder, *targets):
    command = [sys.executable, "-B", HERE / "run.py", "--programs", folder, "--crashes", folder / "crashes", *targets]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def complain(what, done, status, pattern):
    if done.returncode == status and re.search(pattern, done.stdout, re.M):
        return 0
    print(f"a target that {what}: status {done.returncode}, not {status} with '{pattern}':\n{done.stdout}")
    return 1


def main():
    wrong = 0
    for what, (script, status, pattern) in CASES.items():
        with tempfile.TemporaryDirectory() as name:
            program = pathlib.Path(name, "fuzz_frame")
            program.write_text(f"#!/bin/sh\n{script}\n")
            os.chmod(program, 0o755)
            wrong += complain(f"went: {what}", call(program.parent, "frame"), status, pattern)
    with tempfile.TemporaryDirectory() as name:
        for targets in [], ["frame"]:
            wrong += complain("is not there", call(pathlib.Path(name), *targets), 1, "fuzz_frame is not there: cmake ")
        wrong += complain("may be missing", call(pathlib.Path(name), "python"), 0, "^SKIPPED fuzz_python: ")
    print(f"{len(CASES) + 3} cases, {wrong} wrong")
    return 1 if wrong else 0


sys.exit(main())
