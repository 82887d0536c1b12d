# SPDX-License-Identifier: Apache-2.0
"""The ways of the standard library: a multiprocessing.Pipe for each reader, and shared_memory."""

import contextlib
import os
import pickle
import platform
import time
from typing import Any

from adapters.base import Way

LINE = 64  # bytes of a cache line
SPINS = 2000  # looks at a word before a reader or a writer begins to sleep between looks
NAP = 50e-6  # seconds


class Stdlib(Way):
    family = "multiprocessing"

    @classmethod
    def version(cls) -> str:
        return f"Python {platform.python_version()}"


class Pipe(Stdlib):
    """multiprocessing.Pipe(duplex=False) for each reader. Connection.send() pickles the objects."""

    def initialize(self) -> None:
        from multiprocessing import Pipe
        from multiprocessing.connection import Connection

        if self.me.rank:
            end = os.open(self.me.wait_for(f"pipe-{self.me.rank}"), os.O_RDONLY)
            self.end = Connection(end, writable=False)
        else:
            pairs = [Pipe(duplex=False) for _ in range(self.me.readers)]
            self.ends = [ours for _, ours in pairs]
            for rank, (theirs, _) in enumerate(pairs, 1):
                self.me.publish(f"pipe-{rank}", f"/proc/{os.getpid()}/fd/{theirs.fileno()}")
        self.me.barrier("pipes")
        if not self.me.rank:
            for theirs, _ in pairs:
                theirs.close()

    def write(self, data: Any) -> None:
        for end in self.ends:
            end.send_bytes(data)

    def read(self) -> Any:
        return self.end.recv_bytes()

    def read_object(self) -> Any:
        return self.end.recv()  # write_object() of Way has pickled the object once for all readers


class SharedMemory(Stdlib):
    """One slot in a SharedMemory, lossless: a message is written once every reader has acknowledged
    the last.

    The slot begins with the number of the newest message and its length, then each reader's
    acknowledgement in a cache line of its own. The writer waits for the acknowledgements, copies
    the bytes, stores the length, then the number; a reader waits for the number, copies the bytes
    out, then acknowledges. Each word has one writer, and the CPU must keep the order of stores, as
    x86 does; elsewhere this takes a lock, which shared_memory does not bring. A wait spins, then
    sleeps 50 us at a time: shared_memory has no means to wait by.
    """

    note = (
        "one slot; a write waits until the last message is read; waits spin, then poll every 50 us"
    )

    def initialize(self) -> None:
        from multiprocessing import resource_tracker, shared_memory

        self.count = 0
        if self.me.rank:
            self.memory = shared_memory.SharedMemory(self.me.wait_for("memory"))
            # Only the writer unlinks it; Python 3.13 has track=False for this.
            with contextlib.suppress(Exception):
                resource_tracker.unregister(self.memory._name, "shared_memory")  # type: ignore[attr-defined]
        else:
            self.memory = shared_memory.SharedMemory(
                create=True, size=LINE * (1 + self.me.processes) + self.me.largest
            )
            self.me.publish("memory", self.memory.name)
        self.begin = LINE * (1 + self.me.processes)
        self.words = self.memory.buf[: self.begin].cast("Q")
        self.data = self.memory.buf[self.begin :]
        self.me.barrier("memory")

    def wait(self, word: int) -> None:
        words, count = self.words, self.count
        for _ in range(SPINS):
            if words[word] >= count:
                return
        while words[word] < count:
            time.sleep(NAP)

    def write(self, data: Any) -> None:
        for rank in range(1, self.me.processes):
            self.wait(rank * LINE // 8)
        self.data[: len(data)] = data
        self.words[1] = len(data)
        self.count += 1
        self.words[0] = self.count

    def read(self) -> Any:
        self.count += 1
        self.wait(0)
        data = bytes(self.data[: self.words[1]])
        self.words[self.me.rank * LINE // 8] = self.count
        return data

    def read_object(self) -> Any:
        self.count += 1
        self.wait(0)
        value = pickle.loads(self.data[: self.words[1]])
        self.words[self.me.rank * LINE // 8] = self.count
        return value

    def cleanup(self) -> None:
        self.words.release()
        self.data.release()
        self.memory.close()
        if not self.me.rank:
            self.memory.unlink()
