# SPDX-License-Identifier: Apache-2.0
"""The commands that go on until they are stopped, in a pipe: rates, and how each of them ends."""

import fcntl
import json
import os
import signal
import subprocess

from actors import Actor, await_until
from case import TOOL, Case
from test_stat import Ring

NAME = f"watch{os.getpid()}"
COMMANDS = [
    [*words, *form]
    for words in (["stat", NAME, "--watch=0.05"], ["top", "--interval", "0.05"], ["hz", NAME])
    for form in ([], ["--format", "json"])
]
# hz has a line a second: two tests take one form of it alone.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(words, **options):
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([TOOL, *words], **{**pipe, **options})


class Watch(Case):
    def end(self, process, status):
        """What it said at the end."""
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, status, said)
        return said

    def test_a_stop_is_a_usual_end(self):
        for stop in STOPS:
            with self.subTest(stop=stop), Actor() as writer:
                writer.ring(NAME)
                processes = [start(words) for words in COMMANDS]
                for process in processes:
                    process.stdout.readline()
                    process.send_signal(stop)
                    self.assertEqual(self.end(process, 0), "", process.args)

    def test_the_writers_end_is_told(self):
        for words in [words for words in COMMANDS if words[0] != "top"]:
            for happens in (Actor.die, lambda writer: writer.ask("close", 0)):
                with self.subTest(words=words), Actor() as writer:
                    writer.ring(NAME)
                    process = start(words)
                    process.stdout.readline()
                    happens(writer)
                    said = f"ringcast: the writer of {NAME}@{writer.pid} is gone\n"
                    self.assertEqual(self.end(process, 5), said)

    def test_a_closed_pipe_ends_it(self):
        for words in COMMANDS[:5]:
            for status, restored in (-signal.SIGPIPE, True), (1, False):
                with self.subTest(words=words, restored=restored), Actor() as writer:
                    writer.ring(NAME)
                    process = start(words, restore_signals=restored)
                    process.stdout.readline()
                    process.stdout.close()
                    said = process.stderr.read()
                    self.assertEqual(process.wait(timeout=60), status)
                    self.assertIn("" if restored else "can't write", said)
                    process.stderr.close()

    def stop_while_the_pipe_is_full(self, words, stop):
        """The exit status."""
        reading, writing = os.pipe()
        os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)))
        process = start(words, stdout=writing, stderr=subprocess.DEVNULL)
        os.close(writing)

        def is_writing():
            with open(f"/proc/{process.pid}/wchan", encoding="ascii") as file:
                return file.read() in ("anon_pipe_write", "pipe_write", "pipe_wait")

        await_until(is_writing, "it does not wait for room in the pipe")
        await_until(
            lambda: process.poll() is not None or process.send_signal(stop), "it does not end"
        )
        os.close(reading)
        return process.returncode

    def test_stops_end_it_while_the_pipe_is_full(self):
        """One is enough where the print is no longer than what one write puts into the pipe."""
        with Actor() as writer:
            for number in range(16):
                writer.ring(f"{NAME}.{number}" if number else NAME)
            for words in COMMANDS[:5]:
                for stop in STOPS:
                    with self.subTest(words=words, stop=stop):
                        self.assertIn(self.stop_while_the_pipe_is_full(words, stop), (1, -stop))

    def test_blocks_are_plain_and_have_rates_from_the_second_on(self):
        with Ring(NAME) as ring:
            ring.second.ask("follow", ring.slow)
            ring.writer.ask("stream", 0, 1000, 1000)
            for words, ends, rate in (
                (COMMANDS[0], "1  rank 2", "\nnow "),
                (COMMANDS[1], "}\n", "frames_per_s"),
                (COMMANDS[2], ring.label, "MB/S"),
            ):
                with self.subTest(words=words), start(words) as process:
                    blocks = ["", ""]
                    for number in range(2):
                        while ends not in blocks[number]:
                            line = process.stdout.readline()
                            self.assertTrue(line, blocks)
                            blocks[number] += line
                    process.send_signal(signal.SIGINT)
                    self.end(process, 0)
                    self.assertNotIn("\x1b", blocks[1])
                    self.assertIn(rate, blocks[1])
                    if words[0] == "stat":
                        self.assertNotIn(rate, blocks[0])

    def test_json_is_an_object_on_each_line(self):
        with Ring(NAME) as ring, start(COMMANDS[1]) as process:
            found = [json.loads(process.stdout.readline()) for _ in range(2)]
            self.assertIn("bytes_per_s", found[1]["readers"][1])
            ring.writer.die()
            self.end(process, 5)
