# SPDX-License-Identifier: Apache-2.0
"""bench/peers: each adapter runs once in the smallest form, and the report is written. No speed is
asserted."""

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

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

way, group.SETUP, plan.WARM = sys.argv[1], 120.0, 1 << 10
usual = {"bytes": "bytes-64", "in-place": "bytes-4Ki"}
of = find(way)
wished = []
for reading in of.readings:
    payload = usual.get(reading, "metadata")
    if of.payloads:
        payload = next(name for name in of.payloads if name.startswith("bytes-") == (reading == "bytes"))
    wished += [(payload, scenario, reading) for scenario in ("one-way", "call")]
steps = [
    plan.Step(payload, scenario, reading, 12, payloads.bytes_of(payload), 0.1) for payload, scenario, reading in wished
]
print(json.dumps(run.rows_of(plan.Group(way, 2, steps), run.options_of([]))))
"""


def run(code: str, *arguments: str) -> Any:
    """What the code prints, as JSON."""
    paths = [str(PEERS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


WAYS = re.findall(r'^    "([\w-]+)": ', (PEERS / "adapters" / "__init__.py").read_text(), re.M)


@pytest.mark.parametrize("way", WAYS)
def test_each_adapter_runs(way: str) -> None:
    rows = run(RUN, way)
    if rows[0]["scenario"] == "all" and rows[0]["status"].startswith(("needs ", "no GPU")):
        pytest.skip(rows[0]["status"])
    assert [row["status"] for row in rows] == ["ok"] * len(rows) and len(rows) >= 2


REPORT = """
import json, sys
import report, rows

found = rows.load({"rows": json.loads(sys.argv[1])})
meta = dict.fromkeys(("date", "commit", "cpu", "cores", "linux", "python"), "x")
blocks = report.blocks_of(found, {**meta, "rounds": 1, "load_average": 0.5})
print(json.dumps(blocks))
"""


def test_the_report_has_a_block_for_each_place_of_the_page() -> None:
    made = [row for way in ("ringcast", "mp-pipe") for row in run(RUN, way)]
    blocks = run(REPORT, json.dumps(made))
    places = re.findall(r"<!-- measured: (\S+) -->", (ROOT / "docs" / "peers.md").read_text())
    assert sorted(blocks) == sorted(places)
    assert "`mp-pipe`" in blocks["objects"] and "**`ringcast`**" in blocks["objects"]
