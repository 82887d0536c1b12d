# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over gloo: bytes in two broadcasts, objects, a pickle padded to an estimate, and vLLM's way with
dicts of tensors.

As in PyTorch's documentation (docs.pytorch.org, "Distributed communication package"). The parts in
ringcast's own benchmark, ringcast.bench.ways, are used from there.
"""

import ctypes
import os
from typing import Any

from adapters.base import Way


class Gloo(Way):
    """The common part of the ways of gloo: the group, by a file in the group's folder."""

    family = "gloo"
    requires = ("torch.distributed", "numpy")
    collective = True

    @classmethod
    def version(cls) -> str:
        from importlib.metadata import version

        return f"torch {version('torch')}"

    def initialize(self) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        where = f"file://{self.me.folder}/gloo"
        dist.init_process_group("gloo", init_method=where, rank=self.me.rank, world_size=self.me.processes)
        dist.barrier()

    def cleanup(self) -> None:
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


class Broadcast(Gloo):
    """Two broadcasts: the size, then the bytes."""

    name = "gloo-broadcast"

    def initialize(self) -> None:
        super().initialize()
        import torch

        self.size = torch.zeros(1, dtype=torch.long)
        self.buffer = torch.empty(self.me.largest, dtype=torch.uint8)

    def write(self, data: Any) -> None:
        import torch.distributed as dist

        self.size[0] = len(data)
        dist.broadcast(self.size, 0)
        dist.broadcast(tensor_of(data), 0)

    def read(self) -> memoryview:
        import torch
        import torch.distributed as dist

        dist.broadcast(self.size, 0)
        size = int(self.size)
        if size > self.buffer.numel():
            self.buffer = torch.empty(size, dtype=torch.uint8)
        message = self.buffer[:size]
        dist.broadcast(message, 0)
        return memoryview(message.numpy())


def tensor_of(data: Any) -> Any:
    """Over the same memory. broadcast() at the source only reads the tensor."""
    import numpy
    import torch

    array = numpy.frombuffer(data, numpy.uint8)
    if not array.flags.writeable:  # torch would warn of it
        memory = (ctypes.c_ubyte * array.size).from_address(array.ctypes.data)
        array = numpy.frombuffer(memory, numpy.uint8)
    return torch.from_numpy(array)


class Object(Gloo):
    """broadcast_object_list: torch pickles, and broadcasts the sizes, then the pickle."""

    name = "gloo-object"

    def initialize(self) -> None:
        super().initialize()
        from ringcast.bench import ways

        self.call = ways.gloo_object(ways.Member(self.me.rank, self.me.processes, None))

    def write(self, data: Any) -> None:
        self.call(data)

    def read(self) -> Any:
        return self.call()

    write_object = write
    read_object = read


class TensorDict(Object):
    """All but the tensors in broadcast_object_list, then a broadcast for each tensor, as in vLLM. NumPy arrays at
    the top of a dict are made tensors, and arrays again, without a copy."""

    name = "gloo-tensor-dict"
    readings = ("objects",)
    payloads = ("records-", "metadata", "features")

    def initialize(self) -> None:
        super().initialize()
        from ringcast.bench import ways

        self.call = ways.gloo_tensor_dict(ways.Member(self.me.rank, self.me.processes, None))

    def write_object(self, value: Any) -> None:
        self.call({key: as_tensor(item) for key, item in value.items()})

    def read_object(self) -> Any:
        return {key: as_array(item) for key, item in self.call().items()}


def as_tensor(item: Any) -> Any:
    import numpy
    import torch

    plain = isinstance(item, numpy.ndarray) and item.dtype.kind in "biuf"
    return torch.from_numpy(item) if plain else item


def as_array(item: Any) -> Any:
    import torch

    return item.numpy() if isinstance(item, torch.Tensor) else item


HEAD = 8  # bytes of the message's size in front of the message
LEAST = 1024  # bytes of the first estimate


def estimate(size: int) -> int:
    """Of the next message, from the size of the present message: an eighth more, in steps of 256 bytes."""
    return max(LEAST, -(-(size + size // 8) // 256) * 256)


class Padded(Gloo):
    """One broadcast of the expected size of a message, the real size in front. Only the rest, if any, goes
    in a second broadcast. All ranks estimate the same, from the message before."""

    name = "gloo-padded"

    def initialize(self) -> None:
        super().initialize()
        self.expected = LEAST
        self.buffer = self.grown(HEAD + LEAST)

    @staticmethod
    def grown(size: int) -> Any:
        import torch

        return torch.empty(size, dtype=torch.uint8)

    def write(self, data: Any) -> None:
        import torch.distributed as dist

        size = len(data)
        self.fit(size)
        memory = memoryview(self.buffer.numpy())
        memory[:HEAD] = size.to_bytes(HEAD, "little")
        memory[HEAD : HEAD + size] = data
        dist.broadcast(self.buffer[: HEAD + self.expected], 0)
        if size > self.expected:
            dist.broadcast(self.buffer[HEAD + self.expected : HEAD + size], 0)
        self.expected = estimate(size)

    def read(self) -> memoryview:
        import torch.distributed as dist

        self.fit(0)
        dist.broadcast(self.buffer[: HEAD + self.expected], 0)
        size = int.from_bytes(memoryview(self.buffer[:HEAD].numpy()), "little")
        if size > self.expected:
            self.fit(size)
            dist.broadcast(self.buffer[HEAD + self.expected : HEAD + size], 0)
        self.expected = estimate(size)
        return memoryview(self.buffer.numpy())[HEAD : HEAD + size]

    def fit(self, size: int) -> None:
        """Room for a message of the size, and for the expected size; the contents are kept."""
        need = HEAD + max(size, self.expected)
        if need > self.buffer.numel():
            old, self.buffer = self.buffer, self.grown(need)
            self.buffer[: old.numel()] = old
