# SPDX-License-Identifier: Apache-2.0
"""
For pytest, in vLLM's own tests: puts ringcast in place before they are collected, and writes each
test's outcome.

COMPAT_OUTCOMES: the file that gets a line of JSON for each test. COMPAT_WITH: ringcast, or else
vLLM as it is. COMPAT_STAND_INS: gives our queue the private attributes that some tests set, so that
the rest of them can be judged.
"""

import json
import os
import signal
import types

import pytest

# vLLM's longest takes about a minute here.
TEST_SECONDS = 240


def pytest_configure(config):
    if os.environ["COMPAT_WITH"] != "ringcast":
        return
    from ringcast.vllm import MessageQueue
    from ringcast.vllm import install

    if not install():
        pytest.exit("install() left vLLM as it was", 3)
    if os.environ.get("COMPAT_STAND_INS"):
        MessageQueue._spin_condition = types.SimpleNamespace()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """A test that hangs is to fail, and the next is to run."""

    def too_long(*_):
        raise TimeoutError(f"compat: not done after {TEST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(TEST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        why = ""
        if report.outcome == "skipped":
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        elif report.outcome == "failed":
            # What children print tells what went wrong in them.
            why = "\n".join([report.longreprtext, report.capstdout, report.capstderr])
        with open(os.environ["COMPAT_OUTCOMES"], "a") as file:
            json.dump({"test": report.nodeid, "outcome": report.outcome, "why": why}, file)
            file.write("\n")
