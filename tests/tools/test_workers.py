# SPDX-License-Identifier: Apache-2.0
"""examples/tp_workers.py with a worker stopped: `stat`, `top` and the driver's error name the same
rank. The Python of build/venv runs the example; where it has no ringcast.torch, the line SKIPPED
says so.

test_workers.py <path of the tool> <folder of the tests' own CUDA drivers> <path of ring_actor>
[unittest's arguments]
"""

import os
import pathlib
import signal
import subprocess
import unittest

from actors import DEADLINE_S, await_until, state_of
from case import Case

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "venv" / "bin" / "python"
EXAMPLE = [
    PYTHON,
    ROOT / "examples" / "tp_workers.py",
    "--world",
    "3",
    "--steps",
    "0",
    "--deadline",
    "600",
]


def parent_of(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


class Workers(Case):
    def label_of(self, process):
        """
        The ring of the driver, which is a child of the process, once each worker has taken a frame.
        """
        own = [
            ring["ring"]
            for ring in self.json("list")["rings"]
            if parent_of(ring["pid"]) == process.pid
        ]
        readers = self.json("stat", own[0])["readers"] if own else []
        return len(readers) == 2 and all(reader["frames"] for reader in readers) and own[0]

    def test_a_stopped_worker_is_named_by_stat_top_and_the_driver(self):
        if (
            subprocess.run(
                [PYTHON, "-c", "import ringcast.torch"], capture_output=True, check=False
            ).returncode
            != 0
        ):
            print("SKIPPED tools_workers: build/venv has no ringcast.torch")
            return
        with subprocess.Popen(
            EXAMPLE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                self.check(process)
            finally:
                process.kill()

    def check(self, process):
        label = await_until(lambda: self.label_of(process), "the example does not get under way")
        (pid,) = [
            reader["pid"]
            for reader in self.json("stat", label)["readers"]
            if reader["name"] == "rank 2"
        ]
        os.kill(pid, signal.SIGSTOP)
        await_until(lambda: state_of(pid) == "T", "the worker is not stopped")
        text = self.succeed("stat", label)
        for word in ("'rank 2'", f"(pid {pid})", "stopped", f"kill -CONT {pid}"):
            self.assertIn(word, text)
        self.assertRegex(
            self.succeed("top", "--once", "--interval", "0.05"),
            rf"(?m)^{label} .*'rank 2' \(pid {pid}\)$",
        )
        process.send_signal(signal.SIGINT)
        told, failed = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(told, "")
        self.assertIn(f"rank 2 is stopped (pid {pid}", failed)


if __name__ == "__main__":
    unittest.main()
