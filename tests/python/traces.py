# SPDX-License-Identifier: Apache-2.0
"""For the tests of traces: a traced program, and the events of a file."""

import collections
import json
import os
import pathlib
import subprocess
import sys
import textwrap

from peers import WATCHDOG

import ringcast
from ringcast import trace


class Events(list):
    """Of a file, which must be whole."""

    def __init__(self, file):
        whole = json.loads(pathlib.Path(file).read_text())
        assert list(whole) == ["traceEvents"]
        super().__init__(whole["traceEvents"])

    def slices(self, name=None):
        return [event for event in self if event["ph"] == "X" and name in (None, event["name"])]

    def names(self, what="process_name"):
        return {event["pid"]: event["args"]["name"] for event in self if event["name"] == what}

    def flows(self):
        """How many ends each start has; each must lie in a slice of its kind."""
        ends = collections.Counter()
        starts = set()
        for event in self:
            if event["ph"] in "sf":
                name = "publish" if event["ph"] == "s" else "decode"
                assert event["ph"] == "s" or event["bp"] == "e"
                around = [
                    one
                    for one in self.slices()
                    if (one["pid"], one["tid"]) == (event["pid"], event["tid"])
                    and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]
                ]
                assert {one["name"] for one in around} >= {"send" if name == "publish" else "recv"}
                key = event["name"], event["id"]
                if event["ph"] == "s":
                    assert key not in starts
                    starts.add(key)
                else:
                    ends[key] += 1
        assert set(ends) <= starts
        return {key: ends[key] for key in starts}


def run(file, program, **environment):
    """A Python process with RINGCAST_TRACE."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "RINGCAST_TRACE": str(file), **environment},
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result


TO_ITSELF = """
    import ringcast
    with ringcast.Writer(1 << 16) as writer, ringcast.Reader(writer.handle, name="of the test") as reader:
        for step in range(3):
            writer.send({"step": step})
            reader.recv()
"""


def start_patiently(file):
    """The process may end its trace while another process stands still in a flush."""
    trace._WAIT = WATCHDOG
    trace.start(file)


def receive_as_child(handle):
    """What a child of multiprocessing does, which traces by the variable."""
    trace._WAIT = WATCHDOG
    with ringcast.Reader(handle, name="child") as reader:
        reader.recv(WATCHDOG)
