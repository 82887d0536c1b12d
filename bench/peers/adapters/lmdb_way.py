# SPDX-License-Identifier: Apache-2.0
"""LMDB: a log of messages in an environment in a folder of tmpfs, written without a sync.

As in the documentation of lmdb for Python (lmdb.readthedocs.io): writemap, sync off, an environment
for each process, reads from the map without a copy. LMDB is a store and wakes no reader: readers
poll for the number of the next message. LMDB does not know slow readers either: each reader writes
the number of the messages read, once in half a log, and the writer overwrites a message after all
readers. So no message is lost.
"""

import os
import time
from typing import Any

from adapters.base import Way

LARGE = 1 << 20  # bytes; a log of larger messages is short
POLL = 0.001  # seconds of polls without a sleep
PAUSE = 0.00005  # seconds between polls afterwards


def number(data: Any) -> int:
    return int.from_bytes(data, "little") if data else 0


def as_bytes(count: int) -> bytes:
    return count.to_bytes(8, "little")


class Lmdb(Way):
    family = "lmdb"
    requires = ("lmdb",)
    copying = False
    note = "a reader polls, 1 ms without a sleep, then every 50 us; and writes how far it has come"

    def initialize(self) -> None:
        import lmdb

        self.slots = 4 if self.me.largest > LARGE else 16
        place = self.me.folder / "lmdb"  # goes with the folder
        if self.me.rank:
            self.me.wait_for("place")
        else:
            place.mkdir()
            self.me.publish("place", "")
        # A reader's snapshot keeps the pages of messages overwritten since.
        room = (2 * self.slots + 4) * (self.me.largest + (1 << 16)) + (64 << 20)
        self.environment = lmdb.open(
            str(place), map_size=room, writemap=True, sync=False, metasync=False
        )
        self.next = 1  # the number of the next message
        self.least = 0  # the newest message read by all
        self.snapshot: Any = None  # a reader's transaction, which holds the latest message
        self.me.barrier("open")

    def slot(self, count: int) -> bytes:
        return b"message-%d" % (count % self.slots)

    def write(self, data: Any) -> None:
        while self.next - self.least > self.slots:
            self.look_for_room()
        with self.environment.begin(write=True) as transaction:
            transaction.put(self.slot(self.next), data)
            transaction.put(b"newest", as_bytes(self.next))
        self.next += 1

    def look_for_room(self) -> None:
        with self.environment.begin() as transaction:
            self.least = min(
                number(transaction.get(b"done-%d" % rank)) for rank in range(1, self.me.processes)
            )
        if self.next - self.least > self.slots:
            time.sleep(PAUSE)

    def read(self) -> Any:
        self.leave()
        end = time.monotonic() + POLL
        self.snapshot = self.environment.begin(buffers=True)
        while number(self.snapshot.get(b"newest")) < self.next:
            self.snapshot.abort()
            if time.monotonic() < end:
                os.sched_yield()
            else:
                time.sleep(PAUSE)
            self.snapshot = self.environment.begin(buffers=True)
        self.next += 1
        return self.snapshot.get(self.slot(self.next - 1))

    def leave(self) -> None:
        """Let the newest message go; say so every half a log."""
        if self.snapshot is None:
            return
        self.snapshot.abort()
        self.snapshot = None
        done = self.next - 1
        if done % (self.slots // 2) == 0:
            with self.environment.begin(write=True) as transaction:
                transaction.put(b"done-%d" % self.me.rank, as_bytes(done))

    def cleanup(self) -> None:
        if self.snapshot is not None:
            self.snapshot.abort()
        self.environment.close()
