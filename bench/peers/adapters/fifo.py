# SPDX-License-Identifier: Apache-2.0
"""faster-fifo: a queue in shared memory for each reader. The pickle is made once, and put into each
queue.

As on the page of the package (pypi.org/project/faster-fifo); `dumps` and `loads` are the
constructor's own arguments. By design child processes inherit the package's queues. The members of
a group are not children of a member: a queue reaches the reader as a pickle in which file
descriptors stand as paths in /proc.
"""

import os
import pickle
from multiprocessing import context, reduction
from typing import Any

from adapters.base import Way

WAIT = 3600.0  # seconds; without a given timeout, a put or get gives up after 10 s


class Opened:
    """In the pickle of a queue: a file descriptor of the writer, which the reader opens anew."""

    def __init__(self, path: str) -> None:
        self.path = path

    def detach(self) -> int:
        return os.open(self.path, os.O_RDWR)


class Handover:
    """Stands in for the child process of multiprocessing while a queue is pickled."""

    DupFd = Opened

    @staticmethod
    def duplicate_for_child(descriptor: int) -> str:
        return f"/proc/{os.getpid()}/fd/{descriptor}"


def pickled(queue: Any) -> str:
    context.set_spawning_popen(Handover)
    try:
        return bytes(reduction.ForkingPickler.dumps(queue)).hex()
    finally:
        context.set_spawning_popen(None)


def same(data: Any) -> Any:
    return data


class FasterFifo(Way):
    family = "faster-fifo"
    requires = ("faster_fifo",)

    def initialize(self) -> None:
        from faster_fifo import Queue

        if self.me.rank:
            self.queue = pickle.loads(bytes.fromhex(self.me.wait_for(f"queue-{self.me.rank}")))
            return
        size = max(16 << 20, 2 * self.me.largest + (1 << 20))
        self.queues = [Queue(size, loads=bytes, dumps=same) for _ in range(self.me.readers)]
        for reader, queue in enumerate(self.queues, 1):
            self.me.publish(f"queue-{reader}", pickled(queue))

    def write(self, data: Any) -> None:
        for queue in self.queues:
            queue.put(data, timeout=WAIT)

    def read(self) -> Any:
        return self.queue.get(timeout=WAIT)
