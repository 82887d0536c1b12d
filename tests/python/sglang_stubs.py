# SPDX-License-Identifier: Apache-2.0
"""
SGLang's modules as stubs, with the names and signatures that the real ones had in August 2026.
"""

import sys
from types import MappingProxyType
from typing import Any, Mapping

PYOBJ = "def broadcast_pyobj(data: list, rank: int, dist_group=None, src: int = 0, force_cpu_device: bool = True):\n"
P2P = """
def point_to_point_pyobj(data: list, rank: int, group=None, src: int = 0, dst: int = 1, async_send: bool = False):
    return 'original'
"""
COORDINATOR = """
import torch
import weakref
_groups = {}
class GroupCoordinator:
    def __init__(self, group):
        _groups['tp:0'] = weakref.ref(self)
        self.device_group = self.cpu_group = group
        self.world_size = group.size()
    def broadcast_tensor_dict(self, tensor_dict=None, src: int = 0, group=None, metadata_group=None):
        return 'original'
    def broadcast_object(self, obj=None, src: int = 0):
        assert src < self.world_size, f'Invalid src rank ({src})'
        told = [obj]
        torch.distributed.broadcast_object_list(told, src=src, group=self.cpu_group)
        return told[0]
    def all_gather_object(self, obj):
        everyone = [None] * self.world_size
        torch.distributed.all_gather_object(everyone, obj, group=self.cpu_group)
        return everyone
    def barrier(self):
        torch.distributed.barrier(group=self.cpu_group)
"""
QUEUE = """
from dataclasses import dataclass, field
@dataclass
class Handle:
    connect_ip: str
    local_reader_ranks: list = field(default_factory=list)
    buffer: object = None
    local_subscribe_port: object = None
    remote_subscribe_port: object = None
class MessageQueue:
    def __init__(self, n_reader, n_local_reader, local_reader_ranks=None, max_chunk_bytes=10485760, max_chunks=10,
                 connect_ip=None): pass
    def export_handle(self): pass
    @staticmethod
    def create_from_handle(handle, rank): pass
    def wait_until_ready(self): pass
    def enqueue(self, obj): return obj
    def dequeue(self): pass
    def broadcast_object(self, obj=None): pass
    @staticmethod
    def create_from_process_group(pg, max_chunk_bytes, max_chunks, writer_rank=0): pass
"""
# As in 0.5.23: of all ranks, then of each group, and a queue for each.
ELASTIC = """
def _try_recover_world(global_ranks):
    return bool(global_ranks)
def _join_world_group():
    pass
def _maybe_create_message_queue(group):
    from sglang.srt.distributed.device_communicators.shm_broadcast import MessageQueue
    group.mq_broadcaster = MessageQueue.create_from_process_group(group.cpu_group, 1 << 22, 6)
def try_recover_ranks(global_ranks, groups):
    if not _try_recover_world(global_ranks):
        return False
    for group in groups:
        _maybe_create_message_queue(group)
    return True
"""
STUBS = {
    "srt/utils/common.py": PYOBJ + "    return 'original'\n" + P2P,
    "srt/utils/__init__.py": "from sglang.srt.utils.common import *\n",
    "srt/distributed/parallel_state.py": COORDINATOR,
    # As in 0.5.23: a barrier, then what each rank does for itself, then what has failed anywhere.
    "srt/managers/scheduler_components/request_receiver.py": """
import torch
from torch.distributed import ReduceOp, all_reduce, barrier
from sglang.srt.utils import broadcast_pyobj as send
class SchedulerRequestReceiver:
    def __init__(self, group):
        self.group = group
    def _finalize_shm_features(self, recv_reqs):
        barrier(group=self.group)
        failed = torch.zeros(len(recv_reqs), dtype=torch.int32)
        for index, request in enumerate(recv_reqs):
            failed[index] = request == self.group.rank()
        all_reduce(failed, op=ReduceOp.MAX, group=self.group)
        return failed.tolist()
""",
    "srt/managers/schedule_batch.py": """
class MultimodalInputs:
    made = 0
    def __init__(self, mm_items):
        self.mm_items = mm_items
    @staticmethod
    def from_processor_output(raw, requires_mm_token_modalities=False):
        MultimodalInputs.made += 1
        if raw == 'bad':
            raise ValueError('not an image')
        items = [(lambda: raw) if raw == 'too large' else raw * 2]
        return MultimodalInputs([*items, requires_mm_token_modalities])
""",
    # As in 0.5.23 as far as hashing goes: of an item without a hash, when a request is processed.
    "srt/managers/mm_utils.py": """
import hashlib
hashed = []
def hash_feature(f):
    hashed.append(f)
    return int.from_bytes(hashlib.sha256(memoryview(f.contiguous().numpy()).cast('B')).digest()[:8], 'big')
""",
    # As in 0.5.23: the first rank makes them or tells why not, and one class of errors ends a
    # request alone.
    "srt/managers/scheduler.py": """
import torch
from types import SimpleNamespace
from sglang.srt.managers.schedule_batch import MultimodalInputs
class _MultimodalInputProcessingError(RuntimeError):
    pass
class Scheduler:
    def __init__(self, group):
        self.dp_tp_cpu_group = group
        self.model_config = SimpleNamespace(requires_mm_token_modalities=True)
    def _process_and_broadcast_mm_inputs(self, raw_mm_inputs):
        told = [None]
        if self.dp_tp_cpu_group is None or self.dp_tp_cpu_group.rank() == 0:
            try:
                modalities = self.model_config.requires_mm_token_modalities
                told = [MultimodalInputs.from_processor_output(raw_mm_inputs, requires_mm_token_modalities=modalities)]
            except Exception as error:
                told = ['failed on the first rank: ' + repr(error)]
        if self.dp_tp_cpu_group is not None:
            torch.distributed.broadcast_object_list(told, src=0, group=self.dp_tp_cpu_group)
        if isinstance(told[0], str):
            raise _MultimodalInputProcessingError(told[0])
        return told[0]
    def process_input_requests(self, recv_reqs):
        from sglang.srt.managers.mm_utils import hash_feature
        for request in recv_reqs:
            for item in request.mm_inputs.mm_items:
                if item.pad_value is None:
                    item.hash = hash_feature(item.feature) if item.hash is None else item.hash
                    item.pad_value = item.hash % (1 << 30)
""",
    "srt/distributed/device_communicators/shm_broadcast.py": QUEUE,
    "multimodal_gen/runtime/utils/distributed.py": PYOBJ + "    return 'original'\n",
    "multimodal_gen/runtime/distributed/group_coordinator.py": COORDINATOR,
}


def write_stubs(
    folder: Any, more: Mapping[str, str] = MappingProxyType({}), **changes: str
) -> None:
    """more: modules by path, beside STUBS."""
    for path, text in {**STUBS, **more}.items():
        file = folder / "sglang" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(changes.get(file.stem, text))


def load(name: str) -> Any:
    __import__(f"sglang.{name}")
    return sys.modules[f"sglang.{name}"]


QUEUES = "srt.distributed.device_communicators.shm_broadcast"
RECEIVER = "srt.managers.scheduler_components.request_receiver"
FEATURES = "srt.managers.mm_utils"
NAMES = [
    ("srt.utils.common", "broadcast_pyobj"),
    ("srt.utils", "broadcast_pyobj"),
    (RECEIVER, "send"),
    ("multimodal_gen.runtime.utils.distributed", "broadcast_pyobj"),
    ("srt.utils.common", "point_to_point_pyobj"),
]
CLASSES = [
    *(
        (module, "GroupCoordinator", name)
        for module in (
            "srt.distributed.parallel_state",
            "multimodal_gen.runtime.distributed.group_coordinator",
        )
        for name in ("broadcast_tensor_dict", "broadcast_object", "all_gather_object", "barrier")
    ),
    ("srt.managers.scheduler", "Scheduler", "_process_and_broadcast_mm_inputs"),
    ("srt.managers.scheduler", "Scheduler", "process_input_requests"),
    (RECEIVER, "SchedulerRequestReceiver", "_finalize_shm_features"),
]
