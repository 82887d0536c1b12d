# SPDX-License-Identifier: Apache-2.0
"""
One rank that calls vLLM's GroupCoordinator over gloo, as vLLM is or with ringcast in place: each of
the functions that ringcast replaces, with the kinds of values that vLLM's own test of them sends.
Prints JSON, a line for each case.

python vllm_groups.py ringcast|vllm STORE RANK WORLD
"""

import datetime
import faulthandler
import json
import sys
import traceback

import torch
import torch.distributed as dist
from vllm.distributed import parallel_state

ON_GPU = torch.cuda.device_count() >= int(sys.argv[4]) if len(sys.argv) > 4 else False


def payload(device):
    return {
        "on device": torch.linspace(-3, 3, 24, dtype=torch.float32, device=device),
        "bytes": torch.arange(-8, 8, dtype=torch.int8),
        "text": "some text",
        "list": [4, 5, 6.5],
        "dict": {"x": None, "y": (1, 2)},
        "empty": torch.tensor([], dtype=torch.float32, device=device),
        "half": torch.full((3, 5), 1.5, dtype=torch.bfloat16, device=device),
        "nested": [torch.ones(2, 2)],
    }


def check(got, expected):
    assert list(got) == list(expected), f"keys {list(got)}"
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(got[key], value, rtol=0, atol=0)
            assert got[key].device == value.device and got[key].dtype == value.dtype
        elif key == "nested":
            torch.testing.assert_close(got[key], value)
        else:
            assert got[key] == value, f"{key}: {got[key]!r}"


class Cases:
    """Each case is a collective; a source is a rank in the group."""

    def __init__(self, group, rank, world, sources):
        self.group, self.rank, self.world, self.sources = group, rank, world, sources
        self.device = torch.device("cuda", rank) if ON_GPU else torch.device("cpu")

    def broadcast_tensor_dict(self):
        for src in self.sources:
            mine = payload(self.device) if self.rank == src else None
            got = self.group.broadcast_tensor_dict(mine, src=src)
            assert got is mine or self.rank != src
            check(got, payload(self.device))

    def broadcast_object(self):
        for src in self.sources:
            got = self.group.broadcast_object({"from": src} if self.rank == src else None, src=src)
            assert got == {"from": src}

    def broadcast_object_list(self):
        for src in self.sources:
            objects = [src, "text", None] if self.rank == src else [None] * 3
            assert self.group.broadcast_object_list(objects, src=src) is objects
            assert objects == [src, "text", None]

    def broadcast(self):
        for src in self.sources:
            tensor = torch.full((5,), self.rank, device=self.device)
            assert self.group.broadcast(tensor, src=src) is tensor
            assert tensor.tolist() == [src] * 5

    def send_object(self):
        """Around the ring of ranks."""
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        if self.rank == 0:
            self.group.send_object(["hop"], after)
        got = self.group.recv_object(before)
        if self.rank != 0:
            self.group.send_object([*got, self.rank], after)
        else:
            assert got == ["hop", *range(1, self.world)]

    def isend_object(self):
        if hasattr(self.group, "isend_object"):
            handle = self.group.isend_object(self.rank, (self.rank + 1) % self.world)
            assert (
                self.group.recv_object((self.rank - 1) % self.world) == (self.rank - 1) % self.world
            )
            handle.wait()

    def send_tensor_dict(self):
        """Down a pipeline."""
        if self.rank > 0:
            check(self.group.recv_tensor_dict(), payload(self.device))
        if self.rank < self.world - 1:
            assert self.group.send_tensor_dict(payload(self.device)) is None

    def isend_tensor_dict(self):
        for _ in range(3):
            handles = []
            if self.rank < self.world - 1:
                handles = self.group.isend_tensor_dict(payload(self.device))
            if self.rank > 0:
                got, works, after = self.group.irecv_tensor_dict()
                for work in works:
                    work.wait()
                for function in after:
                    function()
                check(got, payload(self.device))
            for handle in handles:
                handle.wait()


def main():
    which, store, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    faulthandler.dump_traceback_later(120, exit=True)
    if which == "ringcast":
        from ringcast.vllm import install

        assert install()
    if ON_GPU:
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo", f"file://{store}", datetime.timedelta(seconds=100), world, rank)
    for queue in False, True:
        group = parallel_state.GroupCoordinator(
            [list(range(world))],
            rank,
            "nccl" if ON_GPU else "gloo",
            use_device_communicator=False,
            use_message_queue_broadcaster=queue,
        )
        module = type(group).broadcast_object.__module__
        assert module.startswith("ringcast.") == (which == "ringcast"), module
        # With a queue only rank 0 sends objects, in vLLM as it is.
        cases = Cases(group, rank, world, [0] if queue else range(world))
        for name in [name for name in vars(Cases) if not name.startswith("_")]:
            outcome, why = "passed", ""
            try:
                getattr(cases, name)()
            except Exception:
                outcome, why = "failed", traceback.format_exc()
            test = f"{name}[{world} ranks, {'with a queue' if queue else 'no queue'}{', CUDA' if ON_GPU else ''}]"
            print(json.dumps({"test": test, "outcome": outcome, "why": why}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
