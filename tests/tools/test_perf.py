# SPDX-License-Identifier: Apache-2.0
"""
ringcast perf, but for what it says of GPUs: not how fast, only that the figures are there and make
sense.
"""

import signal
import subprocess

from actors import await_until, state_of
from case import CPUS, TOOL, Case, run

SHORT = ["--seconds", "0.05", "--capacity", "1M"]
SPREAD = ("p50", "p99")
# The measurement, its options; what must be above 0; a ratio and what it is of.
MEASUREMENTS = (
    ("latency", [], ["round_trips", *(f"{of} {at}" for of in ("one_way_ns", "floor_ns", "line_ns")
     for at in (*SPREAD, "p999"))], ("one_way_ns p50", "floor_ns p50")),
    *(("throughput", ["--size", size],
       ["frames_per_s", "memcpy_bytes_per_s", "memcpy_alone_bytes_per_s"],
       ("bytes_per_s", "memcpy_bytes_per_s")) for size in ("8", "40", "100003", str((1 << 19) - 80))),
    ("throughput", ["--readers", str(min(len(CPUS), 8))], ["frames_per_s"],
     ("bytes_per_s", "memcpy_bytes_per_s")),
    *(("wake", ["--readers", readers],
       ["messages", *(f"{of} {at}" for of in ("wake_us", "futex_us") for at in SPREAD)],
       ("wake_us p50", "futex_us p50")) for readers in ("1", "3")),
    *(("cadence", ["--gap", "5", "--readers", readers],
       ["messages", "reader_cpu_percent", "futex_cpu_percent", "spin_cpu_percent",
        *(f"{of}_us {at}" for of in ("wake", "futex", "spin", "commit", "slowest", "futex_commit",
                                     "futex_slowest", "spin_slowest") for at in SPREAD)],
       ("wake_us p50", "futex_us p50")) for readers in ("1", "8")),
)  # fmt: skip


def figure(found, name):
    for key in name.split():
        found = found[key]
    return found


class Perf(Case):
    def test_each_measurement_has_its_figures(self):
        for name, options, positive, ratio in MEASUREMENTS:
            if name == "latency" and len(CPUS) < 2:
                continue
            with self.subTest(name=name, options=options):
                found = self.json("perf", name, *SHORT, *options)
                self.assertEqual([found["measurement"], found["capacity"]], [name, 1 << 20])
                self.assertTrue(found["version"] and found["cpu"] and found["memory"])
                self.assertTrue(found["cpus"] and set(found["cpus"]) <= set(CPUS))
                for key in positive:
                    self.positive(figure(found, key))
                above, below = (figure(found, key) for key in ratio)
                self.ratio(found["ratio"], above, below)

    def test_the_memory_of_a_ring_is_there_before_the_first_frame(self):
        for size in ("8", "64K"):
            found = self.json("perf", "throughput", *SHORT, "--size", size)
            # A busy machine: so few that the faults of starting are one for each.
            if found["frames_per_s"] < 20000:
                found = self.json("perf", "throughput", "--size", size, "--seconds", "1")
            for key in ("writer_faults_per_frame", "reader_faults_per_frame"):
                self.assertLess(found[key], 1)

    def test_text_has_the_figures_too(self):
        """A line for each figure of the whole, a row for each object."""
        text = self.succeed("perf", "wake", *SHORT)
        for row in (r"capacity +1048576", r"wake_us +[\d.]+", r"ratio +[\d.]+", r" +p50 +p99$"):
            self.assertRegex(text, rf"(?m)^{row}")

    def test_what_can_not_be_measured_is_said(self):
        many = str(min(len(CPUS), 256))
        for words, spill, says in (
            (["latency", *SHORT, "--readers", many], "", "a CPU for each"),
            (["throughput", "--size", "1G", "--capacity", "64K"], 64 << 20, "RINGCAST_SPILL_BYTES"),
            (["throughput", "--size", "1M", "--capacity", "2M"], 0, "--capacity"),
        ):
            environment = {} if spill == "" else {"RINGCAST_SPILL_BYTES": str(spill)}
            done = run("perf", *words, **environment)
            self.assertEqual([done.returncode, done.stdout], [1, ""])
            self.assertIn(says, done.stderr)
        enough = ["--size", "1M", "--seconds", "0.05", "--capacity", str((2 << 20) + 1024)]
        self.succeed("perf", "throughput", *enough, RINGCAST_SPILL_BYTES="0")

    def test_an_interrupt_ends_it_and_its_readers(self):
        words = [TOOL, "perf", "wake", "--seconds", "600", "--readers", "2"]
        process = subprocess.Popen(words, stderr=subprocess.PIPE)

        def both():
            with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
                readers = file.read().split()
            return len(readers) == 2 and readers

        readers = await_until(both, "there are no two readers")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertIn(b"interrupted", said)
        await_until(
            lambda: all(state_of(int(pid)) in ("Z", "X", "") for pid in readers), "they live on"
        )
