# SPDX-License-Identifier: Apache-2.0
"""
ringcast perf, but for what it says of GPUs: not how fast, only that the figures are there and make
sense.
"""

import signal
import subprocess

from case import CPUS, TOOL, Case, run

SHORT = ["--seconds", "0.05", "--capacity", "1M"]


class Perf(Case):
    def measure(self, name, *arguments):
        found = self.json("perf", name, *SHORT, *arguments)
        self.assertEqual(found["measurement"], name)
        self.assertTrue(found["version"] and found["cpu"] and found["memory"])
        self.assertEqual(found["capacity"], 1 << 20)
        self.assertTrue(set(found["cpus"]) <= set(CPUS) and found["cpus"])
        self.assertIsInstance(found["pinned"], bool)
        return found

    def test_latency(self):
        if len(CPUS) < 2:
            done = run("perf", "latency", *SHORT)
            self.assertEqual(done.returncode, 1)
            self.assertIn("needs a CPU for each", done.stderr)
            return
        found = self.measure("latency")
        self.assertIs(found["pinned"], True)
        self.assertEqual(found["cpus"], [CPUS[0], CPUS[-1]])
        for key in ("one_way_ns", "floor_ns", "line_ns"):
            for percentile in ("p50", "p99", "p999"):
                self.positive(found[key][percentile])
            self.assertLessEqual(found[key]["p99"], found[key]["p999"])  # p50 is of other trips
        self.ratio(found["ratio"], found["one_way_ns"]["p50"], found["floor_ns"]["p50"])
        self.ratio(found["ratio_line"], found["one_way_ns"]["p50"], found["line_ns"]["p50"])
        self.assertGreater(found["round_trips"], 0)

    def test_latency_refuses_more_processes_than_cpus(self):
        done = run("perf", "latency", *SHORT, "--readers", str(min(len(CPUS), 256)))
        self.assertEqual(done.returncode, 1)
        self.assertIn("needs a CPU for each", done.stderr)

    def test_throughput(self):
        for size in ("8", "40", "64K", "100003"):
            found = self.measure("throughput", "--size", size)
            # A busy machine: so few that the faults of starting are one for each.
            if found["frames_per_s"] < 20000:
                found = self.measure("throughput", "--size", size, "--seconds", "1")
            for key in (
                "frames_per_s",
                "bytes_per_s",
                "memcpy_bytes_per_s",
                "memcpy_alone_bytes_per_s",
            ):
                self.positive(found[key])
            self.assertAlmostEqual(
                found["bytes_per_s"] / (found["frames_per_s"] * found["size"]), 1, delta=0.01
            )
            self.ratio(found["ratio"], found["bytes_per_s"], found["memcpy_bytes_per_s"])
            for key in ("writer_faults_per_frame", "reader_faults_per_frame"):
                self.assertLess(
                    found[key], 1, "the memory of a ring is there before the first frame"
                )

    def test_throughput_of_frames_that_fill_half_the_ring(self):
        found = self.measure("throughput", "--size", str((1 << 19) - 80))
        self.ratio(found["ratio"], found["bytes_per_s"], found["memcpy_bytes_per_s"])

    def test_throughput_with_more_readers_than_cpus(self):
        found = self.measure("throughput", "--readers", str(min(len(CPUS), 8)))
        self.positive(found["frames_per_s"])

    def test_a_frame_that_does_not_fit_is_told(self):
        words = "perf throughput --size 1G --capacity 64K --seconds 0.05".split()
        done = run(*words, RINGCAST_SPILL_BYTES=str(64 << 20))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertIn("RINGCAST_SPILL_BYTES", done.stderr)

    def test_a_capacity_that_is_told_for_a_frame_is_enough(self):
        def throughput(capacity):
            words = "perf throughput --size 1M --seconds 0.05 --capacity".split()
            return run(*words, capacity, RINGCAST_SPILL_BYTES="0")

        for capacity in ("1M", "2M"):
            done = throughput(capacity)
            self.assertEqual(done.returncode, 1)
            self.assertIn("--capacity to more than twice the frame, by 1K or so", done.stderr)
        self.assertEqual(throughput(str((2 << 20) + 1024)).returncode, 0)

    def test_wake(self):
        for readers in (1, 3):
            found = self.measure("wake", "--readers", str(readers))
            self.assertEqual(found["readers"], readers)
            for key in ("wake_us", "futex_us"):
                self.positive(found[key]["p50"])
                self.assertLessEqual(found[key]["p50"], found[key]["p99"])
            self.ratio(found["ratio"], found["wake_us"]["p50"], found["futex_us"]["p50"])
            for key in ("idle_cpu_percent", "futex_idle_cpu_percent"):
                self.assertGreaterEqual(found[key], 0)
                self.assertLessEqual(found[key], 100)
            self.assertGreater(found["messages"], 0)

    def test_cadence(self):
        for readers in (1, 8):
            with self.subTest(readers=readers):
                found = self.measure("cadence", "--gap", "5", "--readers", str(readers))
                self.assertEqual(found["gap_ms"], 5)
                for key in ("wake_us", "futex_us", "spin_us"):
                    self.positive(found[key]["p50"])
                    self.assertLessEqual(found[key]["p50"], found[key]["p99"])
                for key in (
                    "commit_us",
                    "slowest_us",
                    "futex_commit_us",
                    "futex_slowest_us",
                    "spin_slowest_us",
                ):
                    self.positive(found[key]["p50"])
                self.assertGreaterEqual(
                    found["slowest_us"]["p50"], found["wake_us"]["p50"] if readers == 1 else 0
                )
                for key in ("reader_cpu_percent", "futex_cpu_percent", "spin_cpu_percent"):
                    self.positive(found[key])
                self.assertGreaterEqual(found["system_calls_per_message"], 0)
                self.ratio(found["ratio"], found["wake_us"]["p50"], found["futex_us"]["p50"])
                self.assertGreaterEqual(found["messages"], 10)

    def test_text_has_the_figures_too(self):
        """A line for each figure of the whole, a row for each object; an object of an array has its
        first figure's."""
        for name, rows in (
            ("latency", ["one_way_ns", "ratio_line"]),
            ("throughput", ["bytes_per_s", "ratio"]),
            ("wake", ["wake_us", "idle_cpu_percent"]),
            ("cadence", ["slowest_us", "system_calls_per_message"]),
        ):
            if name == "latency" and len(CPUS) < 2:
                continue
            text = self.succeed("perf", name, *SHORT)
            for row in ["capacity +1048576", *(rf"{row} +[0-9.]+" for row in rows)]:
                self.assertRegex(text, rf"(?m)^{row}\b")
        self.assertRegex(text, r"(?m)^ +p50 +p99$")

    def test_an_interrupt_ends_it_and_its_readers(self):
        process = subprocess.Popen(
            [TOOL, "perf", "wake", "--seconds", "600", "--readers", "2"], stderr=subprocess.PIPE
        )
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        readers = []
        while len(readers) < 2 and process.poll() is None:
            with open(children, encoding="ascii") as file:
                readers = file.read().split()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertIn(b"interrupted", said)
        for reader in readers:
            await_end(int(reader))


def await_end(pid):
    """
    Returns when the process is gone; a process that never goes ends the test by its time limit.
    """
    while True:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return
        except (FileNotFoundError, ProcessLookupError):
            return
