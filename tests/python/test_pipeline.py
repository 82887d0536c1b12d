# SPDX-License-Identifier: Apache-2.0
"""
examples/pipeline: all modes have equal results, and a run ends with an error when a stage fails, a
result differs, a worker dies or hangs.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
from peers import WATCHDOG

pytestmark = pytest.mark.alike

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "pipeline"
SMALL = "--subgraphs 4 --edges 600 --nodes 60 --width 8 --hidden 16".split()
MODES = ["sequential", "threads", "asyncio", "processes", "bare"]

# The processes of a run import the program that they were started by, so each of them has the
# change.
CHANGED = """
import os, sys, threading, time
sys.path.insert(0, {folder!r})
import pipeline, graph, modes, ranks

compute, run, this = modes.compute, graph.Releasing.run, threading.local()
def computing(*arguments):
    this.worker = arguments[-1].worker
    return compute(*arguments)
def changed(self, stage):
    if getattr(this, "worker", "") == {worker!r} and stage == {stage}:
        {action}
    run(self, stage)
modes.compute, graph.Releasing.run = computing, changed
if __name__ == "__main__":
    sys.exit(pipeline.main())
"""


def run(*arguments, program=FOLDER / "pipeline.py"):
    command = [sys.executable, program, *SMALL, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)


def test_all_modes_have_equal_results_and_their_figures_add_up(tmp_path):
    done = run("--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    settings = found["settings"]
    sent = settings["subgraphs"] * settings["nodes"] * (settings["hidden"] + settings["width"]) * 4
    assert list(found["gil"]) == ["hold", "release"]
    for each in found["gil"].values():
        assert (list(each["modes"]), each["pairs"], each["unequal"]) == (MODES, 10, [])
        for mode, of in each["modes"].items():
            assert (
                of["seconds"] > 0 and of["of_bare"] > 0 and list(of["plan_seconds"]) == ["A", "B"]
            )
            assert of["speedup"] == pytest.approx(
                each["modes"]["sequential"]["seconds"] / of["seconds"]
            )
            assert list(of["blocks"]) == ["A1", "A2", "B1", "B2"]
            for block in of["blocks"].values():
                waits = block["CPU"] + block["wait for CPU"] + block["wait for GIL"]
                assert 0 < block["CPU"] and waits >= block["execution"] - 1e-6
            assert (
                of["processes"] == {"processes": 7, "bare": 2}.get(mode, 1)
                and 0 < of["pss"] <= of["rss"]
            )
            assert (
                sent <= of["sent_bytes"] <= sent + 12 * 1024
                if mode == "processes"
                else of["sent_bytes"] == 0
            )


@pytest.mark.parametrize("arguments", ["--mode sequential,processes", "--story"])
def test_a_worker_without_nodes_and_loading_in_a_loop(tmp_path, arguments):
    size = "--edges 3 --nodes 1 --prepare runtime --mapping loop --gil release --format json"
    done = run(*size.split(), *arguments.split())
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["gil"]["release"]["modes"]
    assert len(cases) == (6 if arguments == "--story" else 3)
    first = list(cases.values())[:2]  # these load while they run
    assert all(of["blocks"]["A1"]["load"] > 0 for of in first)


def test_text_has_tables_and_a_gantt_chart_and_a_picture_needs_matplotlib(tmp_path):
    there = importlib.util.find_spec("matplotlib") is not None
    path = tmp_path / "gantt.svg"
    done = run("--mode", "threads", "--gil", "release", "--bare", "0", "--picture", path)
    assert done.returncode == (0 if there else 1), done.stderr
    assert path.exists() is there
    lines = done.stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("threads, "))
    wanted = ["A1 CPU", "A1 GPU", "A2 NPU", "B1 CPU", "B2 GPU", "B2 NPU"]
    assert [line[2:8] for line in lines[start + 1 : start + 7]] == wanted


BAD = ["--subgraphs 1", "--edges 0", "--repeat 0", "--deadline 0", "--mode fibres"]
BAD += ["--picture gantt.pdf"]


@pytest.mark.parametrize("bad", BAD)
def test_bad_options_are_named(bad):
    done = run(*bad.split())
    assert done.returncode == 2 and bad.split()[0] in done.stderr


A2, A1, B1 = ("A2 NPU", 6), ("A1 GPU", 3), ("B1 CPU", 2)
FAIL = "raise LookupError('no such node')"
DIFFER = "self.nodes.current = self.nodes.current + 0.5"
KILL = "os.kill(os.getpid(), 9)"
# The mode, the worker and its stage, what that does, and what is told.
FAULTS = {
    "fails in a thread": ("threads", A1, FAIL, "A1 GPU, subgraph 0, stage 3: LookupError"),
    "fails in a task": ("asyncio", A1, FAIL, "A1 GPU, subgraph 0, stage 3: LookupError"),
    "fails in a process": ("processes", A2, FAIL, "A2 NPU, subgraph 0, stage 6: LookupError"),
    "differs": ("processes", A2, DIFFER, "the results of sequential and processes differ"),
    "is killed first": ("processes", B1, KILL, "processes: B1 CPU: the process died (SIGKILL)"),
    "is killed last": ("processes", A2, KILL, "processes: A2 NPU: the process died (SIGKILL)"),
    "hangs": ("processes --deadline 5", A2, "time.sleep(1000)", "in time"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_fails_ends_the_run_and_is_named(tmp_path, fault):
    """Not in its warm-up."""
    mode, (worker, stage), action, told = FAULTS[fault]
    program = tmp_path / "changed.py"
    changed = CHANGED.format(folder=str(FOLDER), worker=worker, stage=stage, action=action)
    program.write_text(changed)
    done = run("--gil", "release", "--bare", "0", "--mode", *mode.split(), program=program)
    assert done.returncode == 1 and told in done.stderr, done.stderr
    assert done.stdout == "" or fault == "differs"
