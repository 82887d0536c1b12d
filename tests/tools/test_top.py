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
            text = await_said(
                self, rf"\n{ring.label} +[1-9][\d.]* ", "top", "--once", "--interval", "0.2"
            )
            self.assertEqual(text.count("RING"), 1)

    def test_a_ring_that_is_held_back_stands_first_and_a_busy_one_next(self):
        names = [f"{NAME}.{name}" for name in ("a-quiet", "b-busy", "c-held", "d-lockstep")]
        with (
            Ring(names[0]) as quiet,
            Ring(names[1]) as busy,
            Ring(names[2]) as held,
            Ring(names[3]) as lockstep,
        ):
            busy.second.ask("follow", busy.slow)
            busy.writer.ask("stream", 0, 100, 100)
            held.second.stop()
            held.fill()
            lockstep.send(1)
            lockstep.second.stop()
            await_held_back(self, held.name)
            own = [ring.label for ring in (held, lockstep, busy, quiet)]
            # A writer that has no CPU meanwhile is neither busy nor seen to wait.
            await_until(
                lambda: [name for name in self.labels() if name in own] == own,
                "the order is another",
            )
            row = rf"\n{held.label} [^\n]*KiB[^\n]* m?s  reader 1 'rank 2' "
            row += rf"\(pid {held.second.pid}, stopped\)\n"
            text = await_said(self, row, "top", "--once", "--interval", "0.05")
            row = rf"\n{lockstep.label} .*stopped: reader 1 'rank 2' \(pid {lockstep.second.pid}\)"
            self.assertRegex(text, row)
            self.assertRegex(text.splitlines()[0], r" [1-9]\d* held back, .*stopped, dead")

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

    def test_wrong_words_are_refused(self):
        self.refused("top", "camera", says="'camera'")
        self.refused("top", "--interval", "0", says="--interval")


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

    def block(self):
        """The lines of the next block, which is drawn in place."""
        block = self.await_shown(r"\x1b\[H(.*?)\x1b\[J")[1]
        return block.replace("\x1b[K", "").split("\r\n")

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
                block = terminal.block()
                self.assertLessEqual(len(block), 3)
                self.assertLessEqual(max(map(len, block)), 20)
                self.assertTrue(block[1].startswith("RING"))
                terminal.resize(1000, 150)
                terminal.process.send_signal(signal.SIGWINCH)
                block = "\n".join(terminal.block())
                self.assertIn("BLOCKED", block)
                self.assertIn(NAME, block)

    def test_a_narrow_window_has_the_ring_and_its_trouble(self):
        """The whole name, pid and state; in a very narrow one the ring and for how long."""
        long = f"{NAME}.a-name-wider-than-the-window"
        by, top = "reader 1 'rank 2' (pid PID, stopped", ["top", "--interval", "0.05"]
        for name, words, columns, wanted in (
            (NAME, top, 80, re.escape(f"\n  BY {by})")),
            (
                NAME,
                ["stat", NAME, "--watch=0.05"],
                60,
                re.escape(f"held back by {by} by a signal) for"),
            ),
            (NAME, top, 40, rf"\n{NAME}@WRITER .*\d (us|ms|s|min)\n"),
            (long, top, 40, rf"\n{NAME}\S*\.\.\.\S*@WRITER .*\d (us|ms|s|min)\n"),
        ):
            with self.subTest(wanted=wanted), Ring(name) as ring:
                ring.second.stop()
                ring.fill()
                await_held_back(self, name)
                pattern = wanted.replace("PID", str(ring.second.pid))
                pattern = pattern.replace("WRITER", str(ring.writer.pid))

                def shows(terminal, pattern=pattern, words=words, columns=columns):
                    block = terminal.block()
                    self.assertLessEqual(max(map(len, block)), columns)
                    text = "\n".join(["", *block, ""])
                    return re.search(pattern, text if words is top else re.sub(r"\n +", " ", text))

                with Terminal(*words, columns=columns) as terminal:
                    await_until(lambda: shows(terminal), f"{pattern} is not shown")

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
