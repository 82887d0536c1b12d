# SPDX-License-Identifier: Apache-2.0
"""ringcast top: by blocks where stdout is a pipe, and on a terminal, in place."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios

from actors import Actor, await_until
from case import TOOL, Case
from test_stat import Ring, await_held_back, await_said

NAME = f"top{os.getpid()}"


class Top(Case):
    def labels(self, *words):
        """The rings in the order of one block."""
        (line,) = self.succeed(
            "top", "--once", "--interval", "0.05", "--format", "json", *words
        ).splitlines()
        return [ring["ring"] for ring in json.loads(line)["rings"]]

    def test_once_is_one_block_with_rates(self):
        with Ring(NAME) as ring:
            ring.second.ask("follow", ring.slow)
            ring.writer.ask("stream", 0, 1000, 1000)
            row = rf"(?m)^{NAME}@{ring.writer.pid} +[1-9][\d.]* +[\d.]+ +2 +\d+ +[\d.]+ \w+ +-$"
            text = await_said(self, row, "top", "--once", "--interval", "0.2")
            self.assertRegex(
                text,
                r"\A\d\d:\d\d:\d\d  \d+ rings?, \d+ held back, \d+ with .*\nRING +FRAMES/S +MB/S +READERS ",
            )
            self.assertEqual(text.count("RING"), 1)

    def test_a_ring_that_is_held_back_stands_first_and_a_busy_one_next(self):
        names = [f"{NAME}.{name}" for name in ("a-quiet", "b-busy", "c-held", "d-lockstep")]
        quiet_name, busy_name, held_name, lockstep_name = names
        with (
            Ring(held_name) as held,
            Ring(busy_name) as busy,
            Actor() as quiet,
            Ring(lockstep_name) as lockstep,
        ):
            quiet.ring(quiet_name)
            busy.second.ask("follow", busy.slow)
            busy.writer.ask("stream", 0, 100, 100)
            held.second.stop()
            held.fill()
            lockstep.writer.ask("send", 0, 1, 1000)
            lockstep.second.stop()
            await_held_back(self, held_name)
            label = f"{held_name}@{held.writer.pid}"
            own = [
                label,
                f"{lockstep_name}@{lockstep.writer.pid}",
                f"{busy_name}@{busy.writer.pid}",
                f"{quiet_name}@{quiet.pid}",
            ]
            # A writer that has no CPU meanwhile is neither busy nor seen to wait.
            await_until(
                lambda: [name for name in self.labels() if name in own] == own,
                "the order is another",
            )
            row = rf"(?m)^{label} +0 +0 +2 +\d+ +[\d.]+ KiB +[\d.]+ m?s  reader 1 'rank 2' "
            row += rf"\(pid {held.second.pid}, stopped\)$"
            text = await_said(self, row, "top", "--once", "--interval", "0.05")
            said = rf"stopped: reader 1 'rank 2' \(pid {lockstep.second.pid}\)"
            self.assertRegex(text, rf"(?m)^{own[1]} +0 +0 +2 +1 +1.00 KiB +-  {said}$")
            head = text.splitlines()[0]
            self.assertRegex(
                head, r", [1-9]\d* held back, ([2-9]|\d\d+) with a reader stopped, dead or evicted$"
            )

    def test_rings_of_one_name_in_one_process_have_short_rows(self):
        with Actor() as writer:
            for name in (NAME, NAME, None, None):
                writer.ring(name)
            text = self.succeed("top", "--once", "--interval", "0.01")
            for label in (f"{NAME}@{writer.pid}", f"@{writer.pid}"):
                self.assertEqual(
                    len([line for line in text.splitlines() if line.startswith(f"{label} ")]), 2
                )

    def test_rings_that_come_and_go_are_followed(self):
        process = subprocess.Popen(
            [TOOL, "top", "--interval", "0.05", "--format", "json"],
            stdout=subprocess.PIPE,
            text=True,
        )

        def next_labels():
            return [ring["ring"] for ring in json.loads(process.stdout.readline())["rings"]]

        with Actor() as writer:
            label = f"{NAME}@{writer.pid}"
            self.assertNotIn(label, next_labels())
            writer.ring(NAME)
            await_until(lambda: label in next_labels(), "the new ring is not shown")
            writer.die()
            await_until(lambda: label not in next_labels(), "the ring is still shown")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)

    def test_blocks_are_plain_in_a_pipe(self):
        process = subprocess.Popen(
            [TOOL, "top", "--interval", "0.05"], stdout=subprocess.PIPE, text=True
        )
        lines = [process.stdout.readline()]
        while lines.count("\n") < 2:
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertNotIn("\x1b", "".join(lines))
        for line in (lines[0], lines[lines.index("\n") + 1]):
            self.assertRegex(line, r"^\d\d:\d\d:\d\d  \d+ rings?, ")

    def test_a_closed_pipe_ends_it(self):
        process = subprocess.Popen([TOOL, "top", "--interval", "0.05"], stdout=subprocess.PIPE)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), -signal.SIGPIPE)

    def stop_while_the_pipe_is_full(self, words, stop):
        """The exit status."""
        reading, writing = os.pipe()
        os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)))
        process = subprocess.Popen([TOOL, *words], stdout=writing, stderr=subprocess.DEVNULL)
        os.close(writing)

        def is_writing():
            with open(f"/proc/{process.pid}/wchan", encoding="ascii") as file:
                return file.read() in ("anon_pipe_write", "pipe_write", "pipe_wait")

        await_until(is_writing, "it does not wait for room in the pipe")
        await_until(
            lambda: process.poll() is not None or process.send_signal(stop), "it does not end"
        )
        status = process.returncode
        os.close(reading)
        return status

    def test_stops_end_it_while_the_pipe_is_full(self):
        """One is enough where the print is no longer than what one write puts into the pipe."""
        ways = [["top", "--interval", "0.01"], ["top", "--interval", "0.01", "--format", "json"]]
        ways += [
            ["stat", NAME, "--watch"],
            ["stat", NAME, "--watch", "--format", "json"],
            ["hz", NAME],
        ]
        with Actor() as writer:
            for number in range(16):
                writer.ring(f"{NAME}.{number}" if number else NAME)
            for words in ways:
                for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    with self.subTest(words=words, stop=stop):
                        self.assertIn(self.stop_while_the_pipe_is_full(words, stop), (1, -stop))

    def test_wrong_words_are_refused(self):
        self.refused("top", "camera", says="unexpected argument 'camera'")
        self.refused(
            "top",
            "--interval",
            "0",
            says="'0' is not valid for --interval: it takes a number of seconds",
        )


class Terminal:
    """
    A terminal of the test's own, with the command in it, and rows for the rings of all other tests.
    """

    def __init__(self, *words, rows=1000, columns=200):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.shown = ""
        self.process = subprocess.Popen(
            [TOOL, *words],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(
                0, termios.TIOCSCTTY, 0
            ),  # Ctrl-C is sent to its session
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        while select.select([self.master], [], [], 0)[0]:
            self.shown += os.read(self.master, 65536).decode()
        return self.shown

    def await_shown(self, wanted):
        """
        Waits until the pattern is found in what was shown, and forgets what stands before its end.
        """
        found = await_until(lambda: re.search(wanted, self.read(), re.S), f"{wanted} is not shown")
        self.shown = self.shown[found.end() :]
        return found

    def end(self):
        """The exit status; meanwhile what is printed is read, as a terminal does."""
        await_until(
            lambda: self.read() is None or self.process.poll() is not None,
            "the command does not end",
        )
        self.read()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


class Screen(Case):
    def test_a_stop_is_no_failure(self):
        ways = {
            "Ctrl-C": lambda terminal: os.write(terminal.master, b"\x03"),
            "SIGTERM": lambda terminal: terminal.process.send_signal(signal.SIGTERM),
            "SIGHUP": lambda terminal: terminal.process.send_signal(signal.SIGHUP),
        }
        for words in (["top"], ["stat", NAME, "--watch"]):
            for way, end in ways.items():
                with self.subTest(words=words, way=way), Actor() as writer:
                    writer.ring(NAME)
                    with Terminal(*words) as terminal:
                        terminal.await_shown(NAME)
                        end(terminal)
                        self.assertEqual(terminal.end(), 0)

    def test_the_last_block_stays_when_the_watched_writer_goes(self):
        with Actor() as writer:
            writer.ring(NAME)
            with Terminal("stat", NAME, "--watch=0.05") as terminal:
                terminal.await_shown("memory")
                writer.die()
                self.assertEqual(terminal.end(), 5)
                self.assertRegex(terminal.shown, r"\r\n[^\x1b]*is gone")

    def test_it_is_redrawn_in_place_and_follows_the_window(self):
        with Actor() as writer:
            writer.ring(NAME)
            with Terminal("top", "--interval", "3600", rows=3, columns=20) as terminal:
                terminal.await_shown(re.escape("\x1b[H"))
                block = terminal.await_shown(r"(.*?)\x1b\[J")[1].replace("\x1b[K", "").split("\r\n")
                self.assertLessEqual(len(block), 3)
                self.assertTrue(all(len(line) <= 20 for line in block), block)
                self.assertTrue(block[1].startswith("RING"))
                terminal.resize(1000, 150)
                terminal.process.send_signal(signal.SIGWINCH)
                terminal.await_shown(re.escape("\x1b[H"))
                block = terminal.await_shown(r"(.*?)\x1b\[J")[1]
                self.assertIn("BLOCKED", block)
                self.assertIn(NAME, block)

    def test_a_narrow_window_has_the_whole_name_pid_and_state(self):
        with Ring() as ring:
            ring.second.stop()
            ring.fill()
            await_held_back(self, ring.name)
            by = f"reader 1 'rank 2' (pid {ring.second.pid}, stopped"
            for words, columns, wanted in (
                (["top", "--interval", "0.05"], 80, f"\r\n  BY {by})"),
                (["stat", ring.name, "--watch=0.05"], 60, f"held back by {by} by a signal) for "),
            ):

                def shows(terminal, words=words, columns=columns, wanted=wanted):
                    block = terminal.await_shown(r"\x1b\[H(.*?)\x1b\[J")[1].replace("\x1b[K", "")
                    self.assertLessEqual(max(map(len, block.split("\r\n"))), columns)
                    return wanted in (block if words[0] == "top" else re.sub(r"\r\n +", " ", block))

                with self.subTest(words=words), Terminal(*words, columns=columns) as terminal:
                    await_until(lambda: shows(terminal), f"{wanted} is not shown")

    def test_in_a_very_narrow_window_the_ring_and_its_trouble_stay(self):
        long = f"{NAME}.a-name-wider-than-the-window"
        for name, label in ((NAME, f"{NAME}@PID"), (long, rf"{NAME}\S*\.\.\.\S*@PID")):
            with Ring(name) as ring, Terminal("top", "--interval", "0.05", columns=40) as terminal:
                ring.second.stop()
                ring.fill()
                row = re.compile(
                    label.replace("PID", str(ring.writer.pid)) + r" .*\d (us|ms|s|min)"
                )

                def shows(terminal=terminal, row=row):
                    block = (
                        terminal.await_shown(r"\x1b\[H(.*?)\x1b\[J")[1]
                        .replace("\x1b[K", "")
                        .split("\r\n")
                    )
                    self.assertLessEqual(max(map(len, block)), 40)
                    return any(map(row.fullmatch, block))

                with self.subTest(name=name):
                    await_until(shows, f"{label} is not shown")

    def test_names_do_not_control_the_terminal(self):
        with (
            Ring(NAME, second="\u202egnp.exe\x9b2J") as ring,
            Terminal("top", "--interval", "0.05") as terminal,
        ):
            ring.second.stop()
            ring.fill()
            shown = terminal.await_shown(rf"reader 1 '([^']*)' \(pid {ring.second.pid}")[1]
            self.assertNotIn("\u202e", shown)
            self.assertNotIn("\x9b", shown)
            self.assertIn("gnp.exe", shown)
            os.write(terminal.master, b"\x03")
            self.assertEqual(terminal.end(), 0)
