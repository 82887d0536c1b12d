# SPDX-License-Identifier: Apache-2.0
"""
A stand-in for the part of SGLang that the ranks' multimodal inputs go through: which function calls
which, and what each passes on, as in SGLang 0.5.23. The text is this project's own.
ringcast.sglang.install() replaces its functions as SGLang's.
"""

import contextlib
import os
import sys
import tempfile
from typing import Any, Iterator

MODULES = {
    "srt/utils/common.py": """
import pickle
import numpy
import torch
import torch.distributed as dist

def broadcast_pyobj(data: list, rank: int, dist_group=None, src: int = 0, force_cpu_device=True):
    size = torch.zeros(1, dtype=torch.long)
    if rank == src:
        pickled = torch.from_numpy(numpy.frombuffer(pickle.dumps(data), numpy.uint8).copy())
        size[0] = len(pickled)
    dist.broadcast(size, src, dist_group)
    if rank != src:
        pickled = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(pickled, src, dist_group)
    return data if rank == src else pickle.loads(pickled.numpy().tobytes())
""",
    "srt/managers/mm_utils.py": """
import hashlib

def hash_feature(f):
    digest = hashlib.sha256(memoryview(f.contiguous().numpy()).cast('B')).digest()
    return int.from_bytes(digest[:8], 'big')
""",
    "srt/managers/schedule_batch.py": """
class MultimodalDataItem:
    def __init__(self, feature):
        self.feature = feature
        self.precomputed_embeddings = self.hash = self.pad_value = None
    def is_valid(self):
        return True
    def set_pad_value(self):
        from sglang.srt.managers.mm_utils import hash_feature
        if self.pad_value is None:
            self.hash = hash_feature(self.feature)
            self.pad_value = self.hash % (1 << 30)

class MultimodalInputs:
    def __init__(self, mm_items):
        self.mm_items = mm_items
    @staticmethod
    def from_processor_output(raw):
        for item in raw.mm_items:
            item.set_pad_value()
        return MultimodalInputs(raw.mm_items)
""",
    "srt/managers/scheduler.py": """
import torch
from sglang.srt.managers.schedule_batch import MultimodalInputs
from sglang.srt.utils.common import broadcast_pyobj

class Scheduler:
    def __init__(self, group, enable_broadcast_mm_inputs_process):
        self.dp_tp_cpu_group = group
        self.broadcasts = enable_broadcast_mm_inputs_process
        self.handled = lambda request: None
    def recv_requests(self, recv_reqs):
        return broadcast_pyobj(recv_reqs, self.dp_tp_cpu_group.rank(), self.dp_tp_cpu_group)
    def process_input_requests(self, recv_reqs):
        for recv_req in recv_reqs:
            recv_req.mm_inputs = self._get_multimodal_inputs(recv_req.mm_inputs)
            self.handled(recv_req)
    def _get_multimodal_inputs(self, mm_inputs):
        if self.broadcasts:
            return self._process_and_broadcast_mm_inputs(mm_inputs)
        return MultimodalInputs.from_processor_output(mm_inputs)
    def _process_and_broadcast_mm_inputs(self, raw_mm_inputs):
        told = [None]
        if self.dp_tp_cpu_group.rank() == 0:
            told = [MultimodalInputs.from_processor_output(raw_mm_inputs)]
        torch.distributed.broadcast_object_list(told, src=0, group=self.dp_tp_cpu_group)
        return told[0]
""",
}


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """While the stand-in is the package sglang."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in MODULES.items():
            file = os.path.join(folder, "sglang", path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "w", encoding="utf-8") as opened:
                opened.write(text)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
                del sys.modules[name]


def load(name: str) -> Any:
    __import__(f"sglang.srt.{name}")
    return sys.modules[f"sglang.srt.{name}"]
