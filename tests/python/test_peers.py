# SPDX-License-Identifier: Apache-2.0
"""
bench/peers: each adapter runs once in the smallest form, and a way that loses, damages, crashes or
hangs is a row with its reason. No speed is asserted.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any, Dict, List

import pytest

# AddressSanitizer: a step has some seconds, which are too few for it on a loaded machine.
pytestmark = [pytest.mark.alike, pytest.mark.unwatched]
ROOT = pathlib.Path(__file__).parents[2]
PEERS = ROOT / "bench" / "peers"

# The harness runs in a process of its own: its modules have names such as run and plan.
RUN = """
import json, sys
import group, payloads, plan, run
from adapters import find

way, wished, group.SETUP = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
plan.WARM = 1 << 10
if not wished:
    try:
        usual = {"bytes": "bytes-64", "in-place": "bytes-4Ki"}
        of = find(way)
        for reading in of.readings:
            payload = usual.get(reading, "metadata")
            if of.payloads:
                payload = next(name for name in of.payloads if name.startswith("bytes-") == (reading == "bytes"))
            wished += [(payload, scenario, reading) for scenario in ("one-way", "call")]
    except Exception:
        pass
steps = [
    plan.Step(payload, scenario, reading, 12, payloads.bytes_of(payload), 0.1) for payload, scenario, reading in wished
]
print(json.dumps(run.rows_of(plan.Group(way, 2, steps), run.options_of([]))))
"""

FAKES = '''
import os
import time

from adapters.stdlib import Pipe


class Counting(Pipe):
    """Counts the messages of the writer."""

    count = 0

    def write(self, data):
        self.count += 1
        for _ in range(self.times()):
            super().write(data)


class Losing(Counting):
    def times(self):
        return self.count != 7


class Repeating(Counting):
    def times(self):
        return 1 + (self.count == 7)


class Damaging(Pipe):
    def read(self):
        data = bytearray(super().read())
        data[-1] ^= 1
        return data


class Crashing(Pipe):
    def read(self):
        data = super().read()
        if len(data) == 4096:
            os.abort()
        return data


class Hanging(Pipe):
    def read(self):
        super().read()
        time.sleep(3600)


class Missing(Pipe):
    requires = ("no_module_has_this_name",)
'''


def run(code: str, *arguments: str, path: List[pathlib.Path]) -> Any:
    """What the code prints, as JSON."""
    paths = [*map(str, path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(way: str, steps: List[Any], setup: float, *more: pathlib.Path) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = run(RUN, way, json.dumps(steps), str(setup), path=[PEERS, *more])
    return found


WAYS = re.findall(r'^    "([\w-]+)": ', (PEERS / "adapters" / "__init__.py").read_text(), re.M)


@pytest.mark.parametrize("way", WAYS)
def test_each_adapter_runs(way: str) -> None:
    rows = rows_of(way, [], 120.0)
    if rows[0]["scenario"] == "all" and rows[0]["status"].startswith(("needs ", "no GPU")):
        pytest.skip(rows[0]["status"])
    assert [row["status"] for row in rows] == ["ok"] * len(rows) and len(rows) >= 2


@pytest.mark.parametrize(
    "way, reason",
    [
        ("Losing", "was to come"),
        ("Repeating", "was to come"),
        ("Damaging", "other contents"),
        ("Crashing", "SIGABRT"),
        ("Hanging", "no end"),
        ("Missing", "no_module_has_this_name"),
    ],
)
def test_a_way_that_fails_is_a_row_with_its_reason(
    way: str, reason: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "fakes.py").write_text(FAKES)
    sizes = ("bytes-64", "bytes-4Ki", "bytes-64Ki") if way == "Crashing" else ("bytes-4Ki",)
    steps = [(size, "stream", "bytes") for size in sizes]
    rows = rows_of(f"fakes:{way}", steps, 2.0 if way == "Hanging" else 120.0, tmp_path)
    assert reason in rows[len(rows) // 2]["status"]
    assert [row["status"] for row in rows[::2]] == ["ok", "ok"] or len(
        rows
    ) == 1  # the other steps go on


REPORT = """
import json, sys
import report, rows

found = rows.load({"rows": json.loads(sys.argv[1])})
meta = dict.fromkeys(("commit", "cpu", "cpus", "kernel", "python"), "x")
blocks = report.blocks_of(found, {**meta, "date": "2026-11-27", "rounds": 1, "load_before": 0.5})
print(json.dumps(blocks))
"""


def test_the_report_has_a_block_for_each_place_of_the_page() -> None:
    made = [row for way in ("ringcast", "mp-pipe") for row in rows_of(way, [], 120.0)]
    blocks = run(REPORT, json.dumps(made), path=[PEERS])
    places = re.findall(r"<!-- measured: (\S+) -->", (ROOT / "docs" / "peers.md").read_text())
    assert sorted(blocks) == sorted(places)
    assert "`mp-pipe`" in blocks["objects"] and "**`ringcast`**" in blocks["objects"]
