# SPDX-License-Identifier: Apache-2.0
"""
python -m bench.python: each command runs once with all that it measures. How long anything takes is
not looked at.
"""

import json
import os
import pathlib
import sys

import pytest
from needs import needs_torch

sys.path.append(str(pathlib.Path(__file__).parents[2]))

from bench.python import __main__ as command_line
from bench.python import death, harness, requests

pytestmark = pytest.mark.alike

SHORT = ["--seconds", "0.001"]
ONCE = ["--rounds", "1"]
COMMANDS = {
    "codec": SHORT,
    "object": SHORT,
    "batch": SHORT,
    "asyncio": ONCE,
    "dropin": [*SHORT, "--ranks", "2", "--cold", "sleep", "--gap", "0.001"],
    "cadence": [*SHORT, "--gap", "0.1", "--ranks", "2"],
    "death": ONCE,
    "requests": ["--ranks", "2", "--quick"],
}
NEEDS_TORCH = {"dropin", "cadence", "death", "requests"}


@pytest.fixture(autouse=True)
def may_run_where_it_might_before():
    before = os.sched_getaffinity(0)
    yield
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=[needs_torch] if name in NEEDS_TORCH else []) for name in COMMANDS],
)
def test_each_command_measures_each_of_its_cases(monkeypatch, capsys, command):
    monkeypatch.setattr(harness, "SLEEP", 1e-6)
    monkeypatch.setattr(harness, "block_bytes", lambda: 4096)
    monkeypatch.setattr(requests, "QUICK", requests.Plan(0.1, 5, 1, (1.0,)))
    monkeypatch.setattr(death, "WAYS", {"MessageQueue": death.WAYS["MessageQueue"]})
    command_line.main([command, *COMMANDS[command], "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    names = {
        case.get("name", "2 ranks") if isinstance(case, dict) else case for case in found["cases"]
    }
    assert names and names | set(found["left_out"]) >= set(command_line.CASES.get(command, []))
    texts = command_line.tables_of(found, command_line.tables.text)
    assert all(name in "\n".join(texts) for name in names)
