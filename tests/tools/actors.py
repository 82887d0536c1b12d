# SPDX-License-Identifier: Apache-2.0
"""Processes with rings and readers, which the tests of the command line look at (ring_actor.c)."""

import os
import signal
import subprocess
import time

from case import ACTOR

DEADLINE_S = 60  # for what happens at once on a machine that is not loaded


def await_until(condition, what):
    """Returns what `condition` gives, once that is true."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"after {DEADLINE_S} s: {what}")
        time.sleep(0.005)


def state_of(pid):
    """The letter of proc(5); "" if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def spell(name):
    """A name for a line of the actor's."""
    raw = name if isinstance(name, bytes) else (name or "").encode()
    return raw.hex() or "-"


def scribble(actor, where, data, number=0):
    """
    Overwrites bytes in the control page of a ring of the process: at an offset, or over bytes that
    are there.
    """
    folder = f"/proc/{actor.pid}/fd"
    names = (f"{folder}/{name}" for name in sorted(os.listdir(folder), key=int))
    path = [name for name in names if "memfd:ringcast.control" in os.readlink(name)][number]
    with open(path, "r+b", buffering=0) as file:
        offset = where if isinstance(where, int) else file.read().index(where)
        file.seek(offset)
        file.write(data)


class Actor:
    """One process; `with` ends it."""

    def __init__(self):
        self.process = subprocess.Popen(
            [ACTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def ask(self, *words):
        self.tell(*words)
        answer = self.process.stdout.readline().rstrip("\n")
        if not answer or answer.startswith("error"):
            raise AssertionError(f"{words}: {answer or 'no answer'}")
        return answer

    def ring(self, name=None, capacity=65536, slow_ns=0):
        """
        Makes a ring and returns the handle. Readers that are in the way for `slow_ns` are evicted;
        0: none.
        """
        return self.ask("ring", spell(name), capacity, slow_ns)

    def read(self, handle, name=None):
        """Attaches a reader and returns its number."""
        return int(self.ask("read", handle, spell(name)))

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        await_until(lambda: state_of(self.pid) == "T", "the process is not stopped")

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def die(self):
        """Kills the process, and leaves it as a zombie."""
        os.kill(self.pid, signal.SIGKILL)
        await_until(lambda: state_of(self.pid) in ("Z", ""), "the process does not end")

    def kill(self):
        self.process.kill()
        self.process.wait()
