# SPDX-License-Identifier: Apache-2.0
"""torch.distributed: objects over gloo, a pickle padded to an estimate over gloo, and objects over
NCCL.

As in PyTorch's documentation (docs.pytorch.org, "Distributed communication package").
"""

import os
from typing import Any, List

from adapters.base import LeftOut, Way

HEAD = 8  # bytes of the message's size in front of a padded message
LEAST = 1024  # bytes of the first estimate


class Torch(Way):
    """The common part: the group, by a file in the group's folder."""

    packages = ("torch",)
    requires = ("torch.distributed", "numpy")
    collective = True
    backend = "gloo"

    def initialize(self) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        where = f"file://{self.me.folder}/{self.backend}"
        dist.init_process_group(
            self.backend, init_method=where, rank=self.me.rank, world_size=self.me.processes
        )
        dist.barrier()

    def cleanup(self) -> None:
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


class GlooObject(Torch):
    """broadcast_object_list: torch pickles, and broadcasts the sizes, then the pickle."""

    family = "gloo"

    def write(self, data: Any) -> None:
        import torch.distributed as dist

        dist.broadcast_object_list([data], 0)

    def read(self) -> Any:
        import torch.distributed as dist

        box: List[Any] = [None]
        dist.broadcast_object_list(box, 0)
        return box[0]

    write_object = write
    read_object = read


class NcclObject(GlooObject):
    """
    The same by NCCL, which wants a GPU for each process: copies to the GPU and back belong to it.
    """

    family = "nccl"
    backend = "nccl"

    @classmethod
    def check(cls) -> None:
        import torch

        if not torch.cuda.is_available():
            raise LeftOut(f"no GPU: torch {torch.__version__} finds none")

    def initialize(self) -> None:
        import torch

        gpus = torch.cuda.device_count()
        if gpus < self.me.processes:
            raise LeftOut(
                f"needs a GPU for each of {self.me.processes} processes, and there are {gpus}"
            )
        torch.cuda.set_device(self.me.rank)
        super().initialize()


class GlooPadded(Torch):
    """
    One broadcast of the expected size of a message, the real size in front. Only the rest, if any,
    goes in a second broadcast. All ranks estimate the same, from the message before: an eighth
    more, in steps of 256 bytes.
    """

    family = "gloo"

    def initialize(self) -> None:
        import torch

        super().initialize()
        self.expected = LEAST
        self.buffer = torch.empty(HEAD + LEAST, dtype=torch.uint8)

    def write(self, data: Any) -> None:
        import torch.distributed as dist

        size = len(data)
        self.fit(size)
        memory = memoryview(self.buffer.numpy())
        memory[:HEAD] = size.to_bytes(HEAD, "little")
        memory[HEAD : HEAD + size] = data
        dist.broadcast(self.buffer[: HEAD + self.expected], 0)
        self.rest(size)

    def read(self) -> memoryview:
        import torch.distributed as dist

        self.fit(0)
        dist.broadcast(self.buffer[: HEAD + self.expected], 0)
        size = int.from_bytes(memoryview(self.buffer[:HEAD].numpy()), "little")
        self.fit(size)
        self.rest(size)
        return memoryview(self.buffer.numpy())[HEAD : HEAD + size]

    def rest(self, size: int) -> None:
        import torch.distributed as dist

        if size > self.expected:
            dist.broadcast(self.buffer[HEAD + self.expected : HEAD + size], 0)
        self.expected = max(LEAST, -(-(size + size // 8) // 256) * 256)

    def fit(self, size: int) -> None:
        """Room for a message of the size, and for the expected size; the contents are kept."""
        import torch

        need = HEAD + max(size, self.expected)
        if need > self.buffer.numel():
            old, self.buffer = self.buffer, torch.empty(need, dtype=torch.uint8)
            self.buffer[: old.numel()] = old
