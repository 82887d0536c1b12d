# SPDX-License-Identifier: Apache-2.0
"""ringcast hz: not how fast, only that the figures are those of the frames that were sent."""

import itertools
import json
import os
import signal
import subprocess

from actors import Actor, await_until, state_of
from case import TOOL, Case, run

NAME = f"hz{os.getpid()}"


class Hz(Case):
    def start(self, *words):
        return subprocess.Popen(
            [TOOL, "hz", NAME, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def check(self, found):
        gap = found["gap_ns"]
        self.positive(found["frames_per_s"])
        self.positive(found["bytes_per_s"])
        self.assertLessEqual(gap["min"], gap["mean"] * 1.001)
        self.assertLessEqual(gap["mean"], gap["max"] * 1.001)
        self.assertGreaterEqual(gap["stddev"], 0)
        self.ratio(found["frames_per_s"], 1e9, gap["mean"])

    def test_count_ends_with_a_summary(self):
        with Actor() as writer:
            writer.ring(NAME, 1 << 26)  # nothing is lost on a machine that is busy for a minute
            writer.ask("stream", 0, 1000, 1000)
            (found,) = [
                line
                for line in map(
                    json.loads,
                    self.succeed("hz", NAME, "--count", "50", "--format", "json").splitlines(),
                )
                if line["summary"]
            ]
            self.assertEqual([found["frames"], found["bytes"]], [50, 50000])
            self.assertEqual([found["lost_bytes"], found["lost_gaps"]], [0, 0])
            self.ratio(found["bytes_per_s"], 1000 * 49, found["seconds"])
            self.check(found)
            text = self.succeed("hz", NAME, "--count", "50")
            self.assertIn(f"{NAME}@{writer.pid}: 50 frames, 48.8 KiB in ", text)
            self.assertRegex(text, r"(?m)^[\d.]+ frames/s, [\d.]+ MB/s; gap mean .*\(50 frames\)$")

    def test_lines_are_of_the_frames_since_the_last_one_until_an_interrupt(self):
        with Actor() as writer:
            writer.ring(NAME)
            writer.ask("stream", 0, 100, 1000)
            process = self.start("--format", "json")
            lines = map(json.loads, iter(process.stdout.readline, ""))
            told = list(itertools.islice((line for line in lines if line["frames"] > 1), 2))
            for line in told:
                self.assertEqual([line["summary"], line["bytes"]], [False, 100 * line["frames"]])
                self.check(line)
            process.send_signal(signal.SIGINT)
            rest, said = process.communicate(timeout=60)
            self.assertEqual([process.returncode, said], [0, ""])
            summary = json.loads(rest.splitlines()[-1])
            self.assertIs(summary["summary"], True)
            self.assertGreaterEqual(summary["frames"], sum(line["frames"] for line in told))

    def test_a_ring_without_frames(self):
        with Actor() as writer:
            writer.ring(NAME)
            process = self.start()
            self.assertEqual(process.stdout.readline(), "no new frame\n")
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)
            self.assertIn(f"{NAME}@{writer.pid}: 0 frames, 0 B in 0 s\n", rest)
            self.assertTrue(rest.endswith("no rate\n"))

    def test_frames_that_it_was_too_slow_for_are_counted_as_lost(self):
        with Actor() as writer:
            writer.ring(NAME, 1 << 24)  # room for a minute of the stream
            with self.start("--count", "2") as process:
                self.assertEqual(process.stdout.readline(), "no new frame\n")
                os.kill(process.pid, signal.SIGSTOP)
                await_until(lambda: state_of(process.pid) == "T", "the command is not stopped")
                writer.ask("send", 0, 20000, 1000)
                os.kill(process.pid, signal.SIGCONT)
                writer.ask("stream", 0, 1000, 10000)
                rest, said = process.communicate(timeout=60)
            self.assertEqual([process.returncode, said], [0, ""])
            self.assertRegex(rest, r"; lost [\d.]+ [KM]iB, in 1 places")

    def test_it_holds_nothing_back(self):
        with Actor() as writer:
            writer.ring(NAME, 65536)
            with self.start() as process:
                process.stdout.readline()
                os.kill(process.pid, signal.SIGSTOP)
                self.assertEqual(writer.ask("send", 0, 1000, 1000), "sent")
                self.assertEqual(self.json("stat", NAME)["readers"], [])
                process.kill()

    def test_wrong_words_are_refused(self):
        self.refused("hz", says="say which ring")
        self.refused("hz", "a", "b", says="unexpected argument 'b'")
        for value in ("0", "-1", "x", "1.5", "1000000001", ""):
            self.refused("hz", "a", "--count", value, says="1 to 1000000000")
        self.assertEqual(run("hz", f"{NAME}.none").returncode, 3)
        with Actor() as one, Actor() as two:
            one.ring(NAME)
            two.ring(NAME)
            self.assertEqual(run("hz", NAME).returncode, 4)
