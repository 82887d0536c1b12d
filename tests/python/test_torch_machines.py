# SPDX-License-Identifier: Apache-2.0
"""ringcast.torch in groups that span machines; test_all_dropins.py has what all drop-ins promise.

Ranks that refuse to attach to each other's rings stand for machines first; then namespaces do,
which can disappear.
"""

import contextlib
import datetime
import gc
import os
import threading
from typing import Any, Dict, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import _dist
import machines
import torch
import torch.distributed as dist
from _dist import check_usable, on_ranks, text_of
from dropins import PAIRS, on_machines
from peers import names_of_rings
from values import assert_same

import ringcast
import ringcast.torch as rt
from ringcast._group import rings


pytestmark = pytest.mark.alike


@on_ranks(4)
def test_a_group_that_is_destroyed_leaves_nothing() -> None:
    with on_machines(PAIRS), pytest.MonkeyPatch.context() as patch:
        check_usable()
        patch.setattr(rt, "close", lambda: None)
        _dist.meet()
        dist.destroy_process_group()
        gc.collect()
        for thread in threading.enumerate():
            if thread.name in ("ringcast-hub", "ringcast-link", "ringcast-relay"):
                thread.join(_dist.JOB_SECONDS)
                assert not thread.is_alive(), thread.name


@on_ranks(4)
def test_the_ring_on_another_machine_has_the_name_of_the_sources() -> None:
    with on_machines(PAIRS):
        check_usable(1)
        assert names_of_rings() == {1: ["torch.default.1"], 2: ["torch.default.1.relay"]}.get(
            dist.get_rank(), []
        )
        dist.barrier()


# Small ones, as many as are learned from, a thousand times more, and back; and each size at which a
# message is divided.
STEADY = [*[40] * 64, *[50_000] * 4, *[41] * 64]
DIVIDED = [0, 4096, 4097, 3, 1 << 16, (1 << 16) + 1, 2 << 20, (2 << 20) + 1, 5, 9 << 20, 1]


@on_ranks(4)
def test_values_of_any_sizes_cross_between_machines_in_order() -> None:
    with on_machines(PAIRS):
        for step, size in enumerate([*DIVIDED, *STEADY, *reversed(DIVIDED)]):
            value = step, bytes([step % 256]) * size
            assert rt.broadcast_object(value if dist.get_rank() == 1 else None, 1) == value


def ranks_no_cpu_backend() -> str:
    with on_machines(PAIRS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rings.torch_transport, "cpu_backend", lambda group: None)
            return text_of(RuntimeError, lambda: rt.broadcast_object(1))


def test_a_group_that_cannot_carry_cpu_memory_between_machines_is_told_what_to_give(ranks):
    for text in ranks.run(4, ranks_no_cpu_backend):
        assert "spans machines" in text and "metadata_group" in text


def ranks_that_fall_out() -> List[Any]:
    """Rank 1 is on the source's machine, but can't attach."""
    with (
        pytest.warns(RuntimeWarning)
        if dist.get_rank() == 1
        else contextlib.nullcontext([]) as caught
    ):
        with on_machines(((0,), (1,))), pytest.MonkeyPatch.context() as patch:
            patch.setattr(rings.config, "machine", lambda: "the same")
            check_usable()
    return [str(one.message) for one in caught]


def test_a_rank_of_the_same_machine_that_cannot_attach_says_so(ranks):
    none, (text,) = ranks.run(2, ranks_that_fall_out)
    assert not none and "rank 1" in text and "can't attach" in text


# ---- Namespaces as machines ----------------------------------------------------------------------

SECONDS = 15.0  # the timeout of a group of which a machine is lost


def join_over_network(
    interface: str, first: str, rank: int, world: int, seconds: float = machines.WATCHDOG
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    # All meet there first: one may have imported torch long before another.
    patience = datetime.timedelta(seconds=machines.WATCHDOG)
    store = dist.TCPStore(first, 29500, world, rank == 0, patience)
    if store.add("here", 1) == world:
        store.set("all are here", "")
    store.wait(["all are here"], patience)
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)


def ranks_over_network(interface: str, first: str, rank: int, world: int) -> List[str]:
    join_over_network(interface, first, rank, world)
    for src in range(world):
        for step in range(3):
            value: Dict[str, Any] = {
                "step": step,
                "x": torch.arange(step * 1000),
                "nested": [torch.ones(2, 3).T, b"b"],
            }
            assert_same(rt.broadcast_tensor_dict(value if rank == src else None, src), value)
            assert rt.broadcast_object_list([src] if rank == src else [0], src) == [src]
    text_of(TypeError if rank == 0 else ringcast.SendError, lambda: rt.broadcast_tensor_dict([1]))
    check_usable()
    kinds = [type(ring).__name__ for ring in rt.rings().values()]
    machines.link().send("all is here")
    machines.link().recv()  # what gloo has sent is lost when the sender leaves first
    rt.close()
    dist.destroy_process_group()
    return kinds


def test_broadcasts_over_a_network():
    with machines.machines(2) as (near, far):
        hosts = near, far, far
        jobs = [
            host.start(ranks_over_network, machines.Machine.interface, near.address, rank, 3)
            for rank, host in enumerate(hosts)
        ]
        for job in jobs:
            job.recv()
        for job in jobs:
            job.send("leave")
        for rank, job in enumerate(jobs):
            assert job.result() == ["Writer" if src == rank else "Reader" for src in range(3)]


def ranks_cut_off(interface: str, first: str, rank: int, world: int) -> None:
    join_over_network(interface, first, rank, world, SECONDS)
    check_usable()
    dist.barrier()
    machines.link().send(os.getpid())
    machines.link().recv()  # the cable is out
    if rank == 0:
        with contextlib.suppress(ringcast.ReaderDied):
            while True:
                check_usable()
        text = text_of(ringcast.ReaderDied, lambda: rt.broadcast_object(1))
    else:
        with pytest.raises(ringcast.ReaderDied if rank == 1 else ringcast.WriterGone) as raised:
            while True:
                check_usable()
        text = str(raised.value)
    machines.link().send(text)
    machines.link().recv()
    os._exit(0)  # gloo would wait for the others


def test_a_machine_that_disappears_is_an_error_on_all_ranks():
    with machines.machines(2) as (near, far):
        hosts = near, near, far, far
        jobs = [
            host.start(ranks_cut_off, machines.Machine.interface, near.address, rank, 4)
            for rank, host in enumerate(hosts)
        ]
        pids = [job.recv() for job in jobs]
        far.unplug()
        for job in jobs:
            job.send("out")
        texts = [job.recv() for job in jobs]
        assert texts[0].startswith(f"rank 2 (pid {pids[2]} on {far.host}) can't be reached")
        assert texts[2].startswith(f"the source, rank 0 (pid {pids[0]} on {near.host})")
        assert texts[1] == texts[0] and texts[3] == texts[2]
        for job in jobs:
            job.send("end")
