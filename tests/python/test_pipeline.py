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


def run_changed(folder, mode, worker, stage, action, *arguments):
    """
    A run of a mode in which a stage of a worker does something else first; not in its warm-up.
    """
    program = folder / "changed.py"
    program.write_text(
        CHANGED.format(folder=str(FOLDER), worker=worker, stage=stage, action=action)
    )
    return run("--mode", mode, "--gil", "release", "--bare", "0", *arguments, program=program)


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


BAD = [
    "--subgraphs 1",
    "--edges 0",
    "--repeat 0",
    "--deadline 0",
    "--mode fibres",
    "--picture gantt.pdf",
]


@pytest.mark.parametrize("bad", BAD)
def test_bad_options_are_named(bad):
    done = run(*bad.split())
    assert done.returncode == 2 and bad.split()[0] in done.stderr


@pytest.mark.parametrize(
    ("mode", "worker"), [("threads", "A1 GPU"), ("asyncio", "A1 GPU"), ("processes", "A2 NPU")]
)
def test_a_broken_stage_fails_the_run_and_is_named(tmp_path, mode, worker):
    stage = 3 if worker == "A1 GPU" else 6
    done = run_changed(tmp_path, mode, worker, stage, "raise LookupError('no such node')")
    assert done.returncode == 1 and done.stdout == ""
    assert f"{worker}, subgraph 0, stage {stage}: LookupError" in done.stderr


def test_a_result_that_differs_fails_the_run_and_names_the_pair(tmp_path):
    done = run_changed(
        tmp_path, "processes", "A2 NPU", 6, "self.nodes.current = self.nodes.current + 0.5"
    )
    assert done.returncode == 1 and "the results of sequential and processes differ" in done.stderr


@pytest.mark.parametrize(("worker", "stage"), [("B1 CPU", 2), ("A2 NPU", 6)])
def test_a_killed_worker_is_named(tmp_path, worker, stage):
    done = run_changed(tmp_path, "processes", worker, stage, "os.kill(os.getpid(), 9)")
    assert done.returncode == 1 and done.stdout == ""
    assert f"processes: {worker}: the process died (SIGKILL)" in done.stderr, done.stderr


def test_the_deadline_ends_a_run_that_hangs(tmp_path):
    done = run_changed(tmp_path, "processes", "A2 NPU", 6, "time.sleep(1000)", "--deadline", 5)
    assert done.returncode == 1 and "in time" in done.stderr
