# SPDX-License-Identifier: Apache-2.0
"""
The cases of `make engines` with a stand-in engine, and what is said of them; the engines themselves
are too large to run here.
"""

import os
import pathlib
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "engines"))

import registry
import report
import run
import session


class StandIn:
    """One rank, a process that sleeps, and a token for each step. errors: whether a step after the
    rank's death is one."""

    errors, error_seconds = ["builtins.ConnectionError"], 300

    def __init__(self):
        self.rank = subprocess.Popen(["sleep", "600"])

    def workers(self):
        return [self.rank.pid] * registry.RANKS

    def generate(self, prompts, tokens, each_step=None):
        began, arrivals = time.perf_counter(), []
        for step in range(1, tokens + 1):
            if self.rank.poll() is not None:
                raise ConnectionError("the rank is gone")
            while session.usage.is_stopped(self.rank.pid):
                pass
            arrivals.append(time.perf_counter())
            if each_step:
                each_step(step)
            if each_step and step == session.AFTER and tokens == 512:
                self.rank.wait()
        return registry.Generation([[1] * tokens for _ in prompts], began, arrivals)


@pytest.fixture
def engine():
    made = StandIn()
    yield made
    made.rank.kill()
    made.rank.wait()


@pytest.mark.parametrize("case", [case for case in session.CASES if case != "soak"])
def test_each_case_runs_and_its_row_is_told(monkeypatch, engine, case):
    kill, sleep = os.kill, time.sleep

    def kill_and_wait(pid, number):
        """A signal takes effect after kill(2) returns: here it has by then."""
        kill(pid, number)
        while number == session.signal.SIGSTOP and not session.usage.is_stopped(pid):
            pass

    monkeypatch.setattr(session, "STOPPED", 0.01)
    monkeypatch.setattr(session.os, "kill", kill_and_wait)
    monkeypatch.setattr(session.time, "sleep", lambda seconds: sleep(seconds / 100))
    found = {"ok": True, **session.CASES[case](engine, True)}
    assert found["ok"], found
    rounds = [
        {"engine": "vllm", "case": case, "way": way, "round": 0, "token_hash": None, **found}
        for way in registry.WAYS
    ]
    rows = run.medians(rounds)
    assert report.text(rows).count(case) == 2 and f"| {case} | " in report.of_engine(rows, "vllm")
    assert all(
        line.startswith("vllm, ") for line in report.verdicts({"rows": rows, "rounds": rounds})
    )
