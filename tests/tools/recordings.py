# SPDX-License-Identifier: Apache-2.0
"""What the tests of recordings share: the program at the other end of a ring, and a recorder."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from case import ACTOR as PEER
from case import TOOL, Case, run

SECONDS = 60


def until(condition, what):
    """Waits for the condition's first true value, and returns it."""
    end = time.monotonic() + SECONDS
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {SECONDS} s")
        time.sleep(0.005)
    return found


class Process:
    """A program that tells and is told lines."""

    def __init__(self, *command, **options):
        environment = {**os.environ, **options.pop("environment", {})}
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(
            [str(word) for word in command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
            **options,
        )

    def line(self):
        return self.popen.stdout.readline().rstrip("\n")

    def tell(self):
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def kill(self, number):
        os.kill(self.popen.pid, number)

    def end(self):
        """Returns the exit status, stdout and stderr."""
        self.popen.stdin.close()
        # communicate() would lose what line() has read on.
        out, err = (
            self.popen.stdout.read(),
            self.popen.stderr.read(),
        )
        return self.popen.wait(timeout=SECONDS), out, err

    def close(self):
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            stream.close()


class Recordings(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "ring.rcrec"

    def process(self, *command, **options):
        started = Process(*command, **options)
        self.addCleanup(started.close)
        return started

    def writer(self, **options):
        """A writer with a ring, at rest until told."""
        words = [f"{name}={value}" for name, value in options.items()]
        writer = self.process(PEER, "write", *words)
        writer.handle = writer.line()
        self.assertTrue(writer.handle.startswith("rc"), writer.popen.poll())
        return writer

    def reader(self, handle, **options):
        reader = self.process(
            PEER, "read", handle, *(f"{name}={value}" for name, value in options.items())
        )
        self.assertEqual(reader.line(), "attached")
        return reader

    def recorder(self, handle, *options, file=None, environment=None, **more):
        """A recorder that has attached."""
        command = [TOOL, "record", handle, file or self.file, "--format", "json", *options]
        recorder = self.process(*command, environment=environment or {}, **more)
        self.assertIn("recording", recorder.popen.stderr.readline())
        return recorder

    def finish(self, recorder, status=0):
        """The summary of a recorder that ends by itself or was told to."""
        code, out, err = recorder.end()
        self.assertEqual(code, status, err)
        return json.loads(out)

    def record(self, *options, environment=None, **source):
        """
        Records all that a writer sends. Returns what it says it sent, and the recorder's summary.
        """
        writer = self.writer(**source)
        recorder = self.recorder(writer.handle, "--lossless", *options, environment=environment)
        writer.tell()
        sent = writer.line()
        writer.tell()
        self.assertEqual(writer.end()[0], 0)
        return sent, self.finish(recorder)

    def expected(self, frames, **source):
        """What a writer says after so many frames."""
        writer = self.writer(count=frames, **source)
        writer.tell()
        sent = writer.line()
        writer.tell()
        return sent

    def dump(self, *options, status=0, file=None):
        """The objects that dump prints: head, frames and more, summary."""
        done = run("dump", str(file or self.file), "--format", "json", *options)
        self.assertEqual(done.returncode, status, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual((lines[0]["type"], lines[-1]["type"]), ("recording", "summary"))
        return lines

    def replay(self, *options, status=0, file=None):
        """What a reader gets of a replay, and the replay's summary."""
        command = [
            TOOL,
            "replay",
            file or self.file,
            "--fast",
            "--readers",
            "1",
            "--format",
            "json",
            *options,
        ]
        replay = self.process(*command)
        reader = self.reader(json.loads(replay.line())["handle"])
        code, out, err = replay.end()
        self.assertEqual(code, status, err)
        got = reader.line()
        self.assertEqual(reader.end()[0], 0)
        return got, json.loads(out)

    def whole(self, **source):
        """A recording, and where its frames' records are in the file: pairs of start and end."""
        _, summary = self.record(**source)
        data = self.file.read_bytes()
        return data, records(data), summary


def records(data):
    """The records of frames in a file that is whole, from what docs/recording.md says."""
    found, at = [], 4096
    while at < len(data):
        size = int.from_bytes(data[at + 8 : at + 16], "little")
        length = (48 + (size + 7) // 8 * 8 + 8 + 63) // 64 * 64
        if int.from_bytes(data[at + 4 : at + 6], "little") == 1:
            found.append((at, at + length))
        at += length
    return found


def of_type(lines, kind):
    return [line for line in lines if line["type"] == kind]


KILL, STOP, GO_ON, INTERRUPT, TERMINATE = (
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCONT,
    signal.SIGINT,
    signal.SIGTERM,
)
