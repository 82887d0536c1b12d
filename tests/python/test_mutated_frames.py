# SPDX-License-Identifier: Apache-2.0
"""
Some rounds of tests/fuzz/mutate.py: frames of each kind of value, mutated, are values or refused.
"""

import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.alike

SCRIPT = pathlib.Path(__file__).parents[1] / "fuzz/mutate.py"
COMMAND = [sys.executable, "-B", str(SCRIPT), "--jobs", "1"]


def test_mutated_frames_are_values_or_refused():
    """Two blocks; of the second each round's memory is counted."""
    done = subprocess.run([*COMMAND, "--rounds", "2000"], capture_output=True, text=True)
    told = re.fullmatch(
        r"mutated frames: 2000, of which (\d+) were values, .*", done.stdout.strip()
    )
    assert done.returncode == 0 and told, done.stdout + done.stderr
    assert 0 < int(told[1]) < 2000


def test_a_block_that_fails_is_named():
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); import mutate; mutate.ALLOWED = (); sys.exit(mutate.main())"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(SCRIPT.parent), "--block", "7"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "FAILED with status 1: --seed 1 --block 7\n" in done.stdout
    assert "ProtocolError" in done.stderr
