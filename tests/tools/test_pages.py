# SPDX-License-Identifier: Apache-2.0
"""The man pages, docs/cli.md and other pages: every example runs, with rings of the names in the examples, and ends
with the status that the page says.

test_pages.py <path of the tool> <folder of the tests' own CUDA drivers> <path of ring_actor> [unittest's arguments]
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from actors import Actor, spell
from case import ACTOR, CPUS, FAKES, TOOL, Case

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAN = ROOT / "docs" / "man"
PAGES = [*sorted(MAN.glob("*.md"))]
PAGES += [ROOT / "docs" / f"{name}.md" for name in ("cli", "containers", "start", "tuning")]

# Languages of fenced blocks: examples to run; and text that is no example, is run elsewhere (python: test_docs.py), or
# needs what a test lacks, such as the network or a daemon (bash).
EXAMPLES, OTHERS = {"sh", "console"}, {"text", "python", "bash", "yaml", "ini"}

# The rings of the examples, and the programs and pids that the pages give to their processes: the writer's, then each
# reader's.
RINGS = [
    ("camera", "driver", 4242, {"viewer": 4243, "detector": 4244}),
    ("vllm.mq.calls", "VLLM::EngineCor", 4711, {"rank 0": 4712, "rank 1": 4713}),
    ("hello", "python", 6516, {"receiver": 6523}),
    ("lidar", "driver", 4801, {}),
    ("lidar", "driver", 4802, {}),
]

# Commands that go on until interrupted.
FOREVER = re.compile(r"^ringcast (top(?!.*--once)|stat .*--watch|hz(?!.*--count))")


class Example:
    """A fenced block: its commands, each with the output that the page shows."""

    def __init__(self, page, line, language, lines):
        self.where, self.language, self.text = f"{page.name}:{line}", language, "\n".join(lines)
        self.commands = []  # [command, lines of output]
        more = False
        for text in lines:
            if more:
                self.commands[-1][0] += "\n" + text
            elif text.startswith("$ "):
                self.commands.append([text[2:], []])
            elif self.commands:
                self.commands[-1][1].append(text)
            more = text.endswith("\\") and (more or text.startswith("$ "))


def blocks(page):
    language, start, lines = None, 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            if language is not None:
                lines.append(line)
        elif language is None:
            language, start, lines = line[3:], number, []
        else:
            yield Example(page, start, language, lines)
            language = None


class Stage:
    """The processes of the examples. Names get a suffix of this process, so that no other ring has them."""

    def __init__(self, folder):
        self.folder, self.pids, self.actors = folder, {}, {}
        with contextlib.ExitStack() as stack:
            for name, program, pid, readers in RINGS:
                writer = self.add(stack, pid)
                writer.ask("call", spell(program))
                handle = writer.ring(self.suffixed(name), 1 << 20)
                for reader, reader_pid in readers.items():
                    actor = self.add(stack, reader_pid)
                    actor.ask("follow", actor.read(handle, reader))
                if readers:
                    writer.ask("stream", 0, 16384, 10000)
            self.stack = stack.pop_all()

    def add(self, stack, pid):
        self.actors[pid] = stack.enter_context(Actor())
        self.pids[pid] = self.actors[pid].pid
        return self.actors[pid]

    @staticmethod
    def suffixed(name):
        return f"{name}.{os.getpid()}"

    def translate(self, command):
        for name in {name for name, *_ in RINGS}:
            command = re.sub(rf"(?<![\w.:+-]){re.escape(name)}(?![\w.:+-])", self.suffixed(name), command)
        return re.sub(r"\b\d{4}\b", lambda found: str(self.pids.get(int(found[0]), found[0])), command)

    def start(self, command):
        environment = {**os.environ, "PATH": f"{os.path.dirname(TOOL)}:{os.environ['PATH']}"}
        if "perf gpu" in command:
            environment["LD_LIBRARY_PATH"] = os.path.join(FAKES, "new")
        return subprocess.Popen(
            ["bash", "-c", self.translate(command)],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command):
        """The output and the exit status; of a command that goes on, after its first output."""
        with self.start(command) as process:
            if not FOREVER.search(command):
                return process.communicate(timeout=120)[0], process.returncode
            first = process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
            ends = {0, -signal.SIGINT, 128 + signal.SIGINT} if "|" in command else {0}  # as the shell and the pipe end
            return first + rest, 0 if first and process.returncode in ends else process.returncode or 1

    def close(self):
        self.stack.close()


def why_no_tracer():
    if b"stapsdt" not in pathlib.Path(ACTOR).read_bytes():
        return "no probes: built without <sys/sdt.h> (Debian: systemtap-sdt-dev)"
    if not shutil.which("bpftrace") or os.geteuid() != 0:
        return "bpftrace is not here, or this is not root"
    tried = subprocess.run(["bpftrace", "-e", "BEGIN { exit(); }"], capture_output=True, text=True, timeout=60)
    return None if tried.returncode == 0 else f"bpftrace can't trace here: {tried.stderr.splitlines()[-1:]}"


def expected_status(commands, index):
    """What the page says by "echo $?", else 0."""
    if index + 1 < len(commands) and commands[index + 1][0] == "echo $?":
        return {int(commands[index + 1][1][0])}
    if commands[index][0].startswith("ringcast doctor"):
        return {0, 1}  # as the machine is
    return {1} if "perf latency" in commands[index][0] and len(CPUS) < 2 else {0}


class Examples(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        os.symlink(ROOT / "tools", os.path.join(cls.folder, "tools"))
        cls.stage = Stage(cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.stage.close()
        shutil.rmtree(cls.folder)

    def check(self, example):
        self.assertTrue(example.commands, "an example has no line with '$ ', and so nothing of it is run")
        for index, (command, _) in enumerate(example.commands):
            if command == "echo $?":
                continue  # checked with the command before
            lacking = why_no_tracer() if command.startswith("bpftrace ") else None
            if lacking:
                print(f"SKIPPED tools_pages: {example.where}: {lacking}")
                continue
            output, status = self.stage.run(command)
            said = f"{example.where}: {command}\n{output}"
            self.assertIn(status, expected_status(example.commands, index), said)

    def test_every_example_runs(self):
        count = 0
        for page in PAGES:
            for example in blocks(page):
                with self.subTest(where=example.where):
                    self.assertIn(example.language, EXAMPLES | OTHERS, "a block of this language is not run")
                    if example.language in OTHERS:
                        self.assertNotRegex(
                            example.text, r"(?m)^(\$ (?!python|torchrun)|ringcast )", "an example that is not run"
                        )
                        continue
                    self.check(example)
                    count += 1
        self.assertGreater(count, len(PAGES))


if __name__ == "__main__":
    unittest.main()
