# SPDX-License-Identifier: Apache-2.0
"""SGLang's MessageQueue, as SGLang's groups of ranks make the queue, and broadcast_pyobj over gloo, by which the
schedulers share the requests.

As in SGLang's own srt/distributed/parallel_state.py and srt/managers (github.com/sgl-project/sglang), from an unpacked
wheel or source. The queue is an old version of vLLM's: a reader spins until the message is there.
"""

from typing import Any

from adapters.base import LeftOut
from adapters.gloo import Gloo
from adapters.vllm import Queue as EngineQueue
from adapters.vllm import module_of, version_of

QUEUE = "sglang.srt.distributed.device_communicators.shm_broadcast"


class Queue(EngineQueue):
    name = "sglang-queue"
    family = "sglang"
    chunks = (1 << 22, 6)  # as in SGLang's groups; a larger message goes through a socket
    note = "a reader spins without an end; messages of 4 MiB or more go through a socket"

    @classmethod
    def version(cls) -> str:
        return version_of("sglang")

    def queue_class(self) -> Any:
        found = module_of(self.me.sglang, QUEUE).MessageQueue
        if found.__module__ != QUEUE:
            raise LeftOut(f"SGLang's MessageQueue is not its own here, but that of {found.__module__}")
        return found

    def write(self, data: Any) -> None:
        self.queue.enqueue(data)


class Pyobj(Gloo):
    """A broadcast for the size of the pickle of a list, and a broadcast for the pickle."""

    name = "sglang-pyobj"
    family = "sglang"

    @classmethod
    def version(cls) -> str:
        return version_of("sglang")

    def initialize(self) -> None:
        self.call = module_of(self.me.sglang, "sglang.srt.utils.common").broadcast_pyobj
        super().initialize()

    def write(self, data: Any) -> None:
        self.call([data], 0)

    def read(self) -> Any:
        return self.call([], self.me.rank)[0]

    write_object = write
    read_object = read
