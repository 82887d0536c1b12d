# SPDX-License-Identifier: Apache-2.0
"""python -m bench.python: each command runs once with all that it measures, and the values arrive as they were sent.
How long anything takes is not looked at."""

import dataclasses
import json
import os
import pathlib
import sys

import pytest
from needs import needs_torch
from values import assert_same

import ringcast

sys.path.append(str(pathlib.Path(__file__).parents[2]))

from bench.python import __main__ as command_line
from bench.python import cases, death, engine, harness, requests

pytestmark = pytest.mark.alike

SHORT = ["--seconds", "0.001"]
ONCE = ["--rounds", "1"]
COMMANDS = {
    "codec": SHORT,
    "object": SHORT,
    "batch": SHORT,
    "asyncio": ONCE,
    "packed": ONCE,
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
    "command", [pytest.param(name, marks=[needs_torch] if name in NEEDS_TORCH else []) for name in COMMANDS]
)
def test_each_command_measures_each_of_its_cases(monkeypatch, capsys, command):
    monkeypatch.setattr(harness, "SLEEP", 1e-6)
    monkeypatch.setattr(harness, "block_bytes", lambda: 4096)
    monkeypatch.setattr(requests, "QUICK", requests.Plan(0.1, 5, 1, (1.0,)))
    monkeypatch.setattr(death, "WAYS", {"MessageQueue": death.WAYS["MessageQueue"]})
    command_line.main([command, *COMMANDS[command], "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    names = {case.get("name", "2 ranks") if isinstance(case, dict) else case for case in found["cases"]}
    assert names and names | set(found["left_out"]) >= set(command_line.CASES.get(command, []))
    texts = command_line.tables_of(found, command_line.tables.text)
    assert all(name in "\n".join(texts) for name in names)


@pytest.mark.parametrize("bad", [["codec", "--case", "no"], ["object", "--seconds", "0"], ["death", "--rounds", "x"]])
def test_bad_arguments_are_refused(capsys, bad):
    with pytest.raises(SystemExit) as left:
        command_line.main(bad)
    assert left.value.code == 2 and bad[1] in capsys.readouterr().err


def parts(value):
    """What assert_same looks into: dataclasses as their class and fields, sets in order."""
    if dataclasses.is_dataclass(value):
        return type(value), {field.name: parts(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, engine.KwargsItem):
        return type(value), parts(value.data)
    if isinstance(value, dict):
        return {key: parts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(parts(item) for item in value)
    return (set, sorted(value)) if isinstance(value, set) else value


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[needs_torch] if name in {"tensor-dict", "features"} else []) for name in cases.CASES],
)
def test_a_case_arrives_as_it_was_sent_and_is_the_same_each_time(ring, name):
    writer, reader = ring
    sent = cases.CASES[name]()
    writer.send(sent, 10)
    for got in (reader.recv(10), ringcast.unpack(ringcast.pack(sent)), cases.CASES[name]()):
        assert_same(parts(got), parts(sent))
