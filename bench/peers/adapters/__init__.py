# SPDX-License-Identifier: Apache-2.0
"""The registry: the name of each way, and the place of the class. A module is imported when a way is used: a
missing peer is a reason in a row and no end of the run."""

import importlib
import importlib.util
from typing import Dict, Type

from adapters.base import LeftOut, Way

WAYS: Dict[str, str] = {
    "ringcast": "ringcast_ways:Ringcast",
    "ringcast-copy": "ringcast_ways:Copy",
    "ringcast-view": "ringcast_ways:View",
    "zmq-push": "pyzmq_ways:Push",
    "zmq-pub": "pyzmq_ways:Pub",
    "mp-pipe": "stdlib:Pipe",
    "mp-queue": "stdlib:Queue",
    "mp-shared-memory": "stdlib:SharedMemory",
    "mpi4py-bcast": "mpi:Bcast",
    "mpi4py-pkl5": "mpi:Pkl5",
    "mpi4py-Bcast": "mpi:UpperBcast",
    "mpi4py-send": "mpi:Send",
    "lmdb": "lmdb_way:Lmdb",
    "faster-fifo": "fifo:FasterFifo",
    "gloo-broadcast": "gloo:Broadcast",
    "gloo-object": "gloo:Object",
    "gloo-padded": "gloo:Padded",
    "gloo-tensor-dict": "gloo:TensorDict",
    "pynng": "nng:Pynng",
    "vllm-queue": "vllm:Queue",
    "vllm-queue-2ms": "vllm:Queue2ms",
    "vllm-queue-arena": "vllm:QueueArena",
    "sglang-queue": "sglang:Queue",
    "sglang-pyobj": "sglang:Pyobj",
    "iceoryx2": "iceoryx:Iceoryx2",
    "iceoryx2-event": "iceoryx:Iceoryx2Event",
    "ecal": "ecal_way:Ecal",
    "zenoh-shm": "zenoh_way:ZenohShm",
    "ray-channel": "ray_way:RayChannel",
    "nccl-object": "gpu:NcclObject",
    "nccl-tensor": "gpu:NcclTensor",
    "cuda-ipc": "gpu:CudaIpc",
    "cuda-copy": "gpu:CudaCopy",
}


def find(name: str, where: str = "") -> Type[Way]:
    """The class of a way; LeftOut if the adapter can't be imported. `where` stands in for the registry, for
    tests: "module:Class"."""
    module, _, attribute = (where or WAYS[name]).partition(":")
    try:
        found: Type[Way] = getattr(importlib.import_module(module if where else f"adapters.{module}"), attribute)
        return found
    except LeftOut:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise LeftOut(f"the adapter can't be imported: {type(error).__name__}: {reason}") from None


def way_class(name: str, where: str = "") -> Type[Way]:
    """The same; LeftOut if the way can't be used here."""
    found = find(name, where)
    for (
        needed
    ) in found.requires:  # looked for only: some peers read the environment, which initialize() sets, at import
        if importlib.util.find_spec(needed.partition(".")[0]) is None:
            raise LeftOut(f"needs {needed}, which can't be imported: no module of this name is installed")
    found.check()
    return found
