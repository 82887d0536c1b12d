# SPDX-License-Identifier: Apache-2.0
"""
The registry: the name of each way, and the place of the class. A module is imported when a way is
used: a missing peer is a reason in a row and no end of the run.
"""

import importlib
import importlib.util
from typing import Dict, Type

from adapters.base import LeftOut, Way

WAYS: Dict[str, str] = {
    "ringcast": "ringcast_ways:Ringcast",
    "ringcast-copy": "ringcast_ways:Copy",
    "ringcast-pickled": "ringcast_ways:Pickled",
    "ringcast-view": "ringcast_ways:View",
    "zmq-push": "pyzmq_ways:Push",
    "zmq-pub": "pyzmq_ways:Pub",
    "mp-pipe": "stdlib:Pipe",
    "mp-shared-memory": "stdlib:SharedMemory",
    "mpi4py-bcast": "mpi:Bcast",
    "mpi4py-pkl5": "mpi:Pkl5",
    "mpi4py-Bcast": "mpi:UpperBcast",
    "mpi4py-send": "mpi:Send",
    "lmdb": "lmdb_way:Lmdb",
    "faster-fifo": "fifo:FasterFifo",
    "gloo-object": "torch_ways:GlooObject",
    "gloo-padded": "torch_ways:GlooPadded",
    "nccl-object": "torch_ways:NcclObject",
    "vllm-queue": "engines:VllmQueue",
    "vllm-queue-2ms": "engines:VllmQueue2ms",
    "vllm-queue-arena": "engines:VllmQueueArena",
    "sglang-queue": "engines:SglangQueue",
    "sglang-pyobj": "engines:SglangPyobj",
    "iceoryx2": "iceoryx:Iceoryx2",
    "iceoryx2-event": "iceoryx:Iceoryx2Event",
    "ecal": "ecal_way:Ecal",
    "ray-channel": "ray_way:RayChannel",
}


def find(name: str) -> Type[Way]:
    """
    The class of a way; LeftOut if the adapter can't be imported. A name such as "module:Class" is
    that of a class outside of the registry.
    """
    module, _, attribute = WAYS.get(name, name).partition(":")
    try:
        found: Type[Way] = getattr(
            importlib.import_module(f"adapters.{module}" if name in WAYS else module), attribute
        )
    except Exception as error:
        reason = " ".join(str(error).split())
        raise LeftOut(f"the adapter can't be imported: {type(error).__name__}: {reason}") from None
    return found


def way_class(name: str) -> Type[Way]:
    """The same; LeftOut if the way can't be used here."""
    found = find(name)
    for (
        needed
    ) in found.requires:  # not imported: some peers read the environment, which initialize() sets
        if importlib.util.find_spec(needed.partition(".")[0]) is None:
            raise LeftOut(f"needs {needed}, which is not installed")
    found.check()
    return found
