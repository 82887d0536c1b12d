# SPDX-License-Identifier: Apache-2.0
"""A page of words in memory shared by the members of a group: how far each member is. The page is
apart from the measured way, which has to carry no word of the harness.

Each word has one writer. A store of 8 aligned bytes is one store on the CPUs of Python.
"""

import mmap
import select
import time
from pathlib import Path

LINE = 8  # words in a cache line
ARRIVED, DONE = range(2)  # words of a member: barriers reached, messages read in the present step
STARTED, WRITTEN, LAST = range(3)  # words of the writer, in the first line: messages
NAP = 50e-6  # seconds


class Board:
    def __init__(self, path: Path, processes: int, rank: int, spin: bool) -> None:
        """`spin`: there is a CPU for each member."""
        self.processes, self.rank, self.spin = processes, rank, spin
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), self.bytes(processes))).cast("Q")
        self.own = LINE * (1 + rank)
        self.others = [LINE * (1 + reader) + DONE for reader in range(1, processes)]
        self.barriers = 0
        self.nothing = select.poll()

    @staticmethod
    def bytes(processes: int) -> int:
        return 8 * LINE * (1 + processes)

    def barrier(self) -> None:
        """Wait for all members; between two steps, so the wait only sleeps."""
        self.barriers += 1
        self.words[self.own + ARRIVED] = self.barriers
        for rank in range(self.processes):
            while self.words[LINE * (1 + rank) + ARRIVED] < self.barriers:
                time.sleep(4 * NAP)

    def clear(self) -> None:
        """Begin a step: called by each member between two barriers."""
        self.words[self.own + DONE] = 0
        if self.rank == 0:
            self.words[STARTED] = self.words[WRITTEN] = self.words[LAST] = 0

    def done(self, count: int) -> None:
        self.words[self.own + DONE] = count

    def wait_word(
        self, word: int, count: int, seconds: float = float("inf"), spin: bool = True
    ) -> bool:
        """Wait until a word has come to `count`; False: not within so many seconds."""
        words, end = self.words, time.monotonic() + seconds
        spin = spin and self.spin
        while words[word] < count:
            if spin:
                # Threads of the process have the GIL for a moment, as some peers send from a
                # thread. A sleep of 0 s would take 50 us and more.
                self.nothing.poll(0)
            else:
                time.sleep(NAP)
            if time.monotonic() > end:
                return False
        return True

    def wait_readers(self, count: int, spin: bool = True) -> None:
        """Wait until every reader has read `count` messages."""
        for word in self.others:
            self.wait_word(word, count, spin=spin)
