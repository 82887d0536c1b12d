# SPDX-License-Identifier: Apache-2.0
"""
SGLang's own MessageQueue, and elastic groups: those that go on without the dead, and take ranks in
again. A backend that is gloo under the name of SGLang's elastic one stands for it: a rank can die
of it, but not come back.
"""

import os
import signal
import sys
import warnings
from types import SimpleNamespace
from typing import Any, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import meet, on_ranks, text_of
from sglang_stubs import ELASTIC, write_stubs
from values import assert_same

import ringcast
from ringcast._group import rings
from ringcast.sglang import broadcast_pyobj, install, transports, uninstall
from ringcast.sglang.queue import Handle, MessageQueue

pytestmark = pytest.mark.alike


def elastic() -> Any:
    """A group of all ranks."""

    def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    if "mooncake-cpu" not in dist.Backend.backend_list:
        dist.Backend.register_backend("mooncake-cpu", make, devices=["cpu"])
    return dist.new_group(backend="mooncake-cpu")


@on_ranks(3)
def test_a_queue_is_made_in_a_group_and_by_a_handle() -> None:
    rank = dist.get_rank()
    for writer in 0, 2:
        queue = MessageQueue.create_from_process_group(
            dist.group.WORLD, 1 << 22, 6, writer_rank=writer
        )
        for value in {"a": torch.arange(3)}, bytes(5 << 20), None:
            assert_same(queue.broadcast_object(value if rank == writer else None), value)
    handles: List[Any] = [None]
    if rank == 0:
        queue = MessageQueue(2, 2, [1, 2])
        handles = [queue.export_handle()]
    dist.broadcast_object_list(handles)
    assert type(handles[0]) is Handle
    if rank:
        queue = MessageQueue.create_from_handle(handles[0], rank)
    queue.wait_until_ready()
    for step in range(20):  # more than are held at once
        if rank:
            assert queue.dequeue() == step
        else:
            queue.enqueue(step)


def ranks_going_on() -> List[str]:
    """All of what goes on does so without a word said in the environment; the rest is the elastic
    group's own."""
    rank, group = dist.get_rank(), elastic()
    queue = MessageQueue.create_from_process_group(group, 1 << 22, 6)
    assert broadcast_pyobj([rank], rank, group) == [0]
    assert queue.broadcast_object(rank) == 0
    with pytest.MonkeyPatch.context() as patch:
        called: List[Any] = []
        patch.setattr(dist, "barrier", lambda *args, **keywords: called.append(args))
        transports.barrier(group=group)
        assert called == [(group, False)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        meet()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        for step in range(2000):  # more than a ring holds, without the dead one's place
            assert len(broadcast_pyobj([bytes(10_000)], rank, group)[0]) == 10_000
            assert len(queue.broadcast_object(bytes(10_000))) == 10_000
        while rank == 0 and len(caught) < 2:
            os.sched_yield()  # for the watching thread
    return [str(each.message) for each in caught]


def test_an_elastic_group_goes_on_without_the_dead(mortals):
    source, other, _ = mortals.run(3, ranks_going_on, dying=2)
    assert sorted(text.partition(") ")[2] for text in source) == [
        "has died: the broadcasts go on without it",
        "has died: the queue goes on without it",
    ]
    assert other == []


def ranks_of_another_group() -> str:
    rank = dist.get_rank()
    broadcast_pyobj([rank], rank)
    meet()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return text_of(
        ringcast.ReaderDied, lambda: [broadcast_pyobj([bytes(10_000)], rank) for _ in range(2000)]
    )


def test_another_group_ends_with_a_death(mortals):
    for text in mortals.run(3, ranks_of_another_group, dying=2)[:2]:
        assert "rank 2 (pid " in text


def ranks_recovering(folder: str) -> None:
    rank, group = dist.get_rank(), dist.new_group()
    sys.path.insert(0, folder)
    try:
        from sglang.srt.elastic_ep import elastic_ep

        assert install()
        coordinator = SimpleNamespace(cpu_group=group, device_group=group)
        for _ in range(2):
            broadcast_pyobj([rank], rank)
            broadcast_pyobj([rank], rank, group)
            before = {
                end.ring for each in (dist.group.WORLD, group) for end in rings.ends(each).values()
            }
            assert len(before) == 2
            assert not elastic_ep.try_recover_ranks([], [coordinator])
            assert not any(ring.closed for ring in before)
            dist.barrier()
            assert elastic_ep.try_recover_ranks([1], [coordinator])
            assert all(ring.closed for ring in before)
            assert rings.ends(dist.group.WORLD) == {} == rings.ends(group)
            assert type(coordinator.mq_broadcaster) is MessageQueue
            assert coordinator.mq_broadcaster.broadcast_object(rank) == 0
            assert broadcast_pyobj([rank], rank) == broadcast_pyobj([rank], rank, group) == [0]
        elastic_ep._join_world_group()
        assert rings.ends(dist.group.WORLD) == {}
    finally:
        uninstall()
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
            del sys.modules[name]


def test_a_group_that_takes_ranks_in_makes_new_rings(ranks, tmp_path):
    write_stubs(tmp_path, {"srt/elastic_ep/elastic_ep.py": ELASTIC})
    ranks.run(2, ranks_recovering, str(tmp_path))
