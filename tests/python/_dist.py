# SPDX-License-Identifier: Apache-2.0
"""Processes that run a function as the ranks of a torch.distributed group: a test that is marked
on_ranks(number), or a function of the tests whose name starts with `ranks_`.

They are forked from a process that has imported torch (see conftest.py), and are kept from test to
test. Each job makes a group of its own and destroys it again. After each job no memory and no
descriptor of a ring may be left. A rank that hangs is killed and shows where it hung.
"""

import contextlib
import datetime
import faulthandler
import gc
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import threading
import time
import traceback
from typing import Any, Callable, List

import pytest
from values import assert_same

JOB_SECONDS = 120


class Ranks:
    def __init__(self, most: int) -> None:
        self._most = most
        self._workers: List[Any] = []
        self._start()

    def run(
        self, world: int, function: Callable[..., Any], *args: Any, dying: int = -1
    ) -> List[Any]:
        """
        function(*args) on each rank of a new gloo group; the results by rank. AssertionError: what
        a rank raised.

        The rank that is `dying` is to end in it, and has no result; these Ranks are of no use
        afterwards.
        """
        with tempfile.TemporaryDirectory() as folder:
            for rank, (_, connection) in enumerate(self._workers[:world]):
                connection.send(
                    (os.path.join(folder, "store"), rank, world, function, args, dying < 0)
                )
            return self._collect(world, dying)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        for _ in range(self._most):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def _collect(self, world: int, dying: int) -> List[Any]:
        results: List[Any] = [None] * world
        waiting = {connection: rank for rank, (_, connection) in enumerate(self._workers[:world])}
        while waiting:
            for connection in multiprocessing.connection.wait(list(waiting)):
                rank = waiting.pop(connection)
                try:
                    ok, results[rank] = connection.recv()
                except (EOFError, ConnectionError):
                    ok, results[rank] = (
                        rank == dying,
                        None if rank == dying else "the process ended; see its output",
                    )
                if not ok:
                    self.stop(seconds=0)  # the other ranks may wait for this one
                    self._start()
                    raise AssertionError(f"on rank {rank} of {world}:\n{results[rank]}")
        return results

    def stop(self, seconds: int = JOB_SECONDS) -> None:
        for _, connection in self._workers:
            connection.close()
        for process, _ in self._workers:
            process.join(seconds)  # one that ends by itself tells what coverage asks for
            process.kill()
            process.join()
            process.close()
        self._workers.clear()


def _serve(connection: Any) -> None:
    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    gc.freeze()  # torch's objects, which a collection takes a second to look through
    with contextlib.suppress(EOFError):
        while True:
            job = connection.recv()
            faulthandler.dump_traceback_later(JOB_SECONDS, exit=True)
            try:
                answer = (True, _run(*job))
            except BaseException:
                answer = (False, traceback.format_exc())
            faulthandler.cancel_dump_traceback_later()
            connection.send(answer)


def _run(
    store: str, rank: int, world: int, function: Callable[..., Any], args: Any, all_live: bool
) -> Any:
    import torch.distributed as dist

    _places[:] = [f"{store}.{each}" for each in (rank, *range(world))]
    before = os.environ.copy()
    join_group(store, rank, world)
    result = function(*args)
    if dist.is_initialized():
        if all_live:
            # what a rank has sent by gloo is lost when it leaves before the other has received it
            meet()
        dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)
    gc.collect()
    # The thread of a leg that was lost may still be about to close its end.
    until = time.monotonic() + JOB_SECONDS / 2
    while memory_of_rings() and threading.active_count() > 1 and time.monotonic() < until:
        os.sched_yield()
    assert not memory_of_rings(), memory_of_rings()
    return result


def join_group(store: str, rank: int, world: int) -> None:
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=JOB_SECONDS)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout
    )
    # one that is done and leaves, while another still connects, is gloo's error there
    dist.barrier()


# Files that show how often this rank, and each, has come to meet().
_places: List[str] = []


def meet() -> None:
    """Returns when all ranks of the job have come here. Who has left it may be killed: none is in
    anything before it.

    A collective of torch's is not enough: who is through it does not know whether another is, and
    gives that one an error when it dies; nor does a rank that is killed in one pass on what the
    others wait for.
    """
    mine, *all_of_them = _places
    with open(mine, "ab") as place:
        place.write(b".")
    times = os.path.getsize(mine)
    for place in all_of_them:
        while not os.path.exists(place) or os.path.getsize(place) < times:
            os.sched_yield()


def memory_of_rings() -> List[str]:
    """What this process has of rings: descriptors, and lines of its memory map."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    with open("/proc/self/maps") as maps:
        found += maps.read().splitlines()
    return [line for line in found if "memfd:ringcast" in line]


# ---- For the tests of ringcast.torch, on the ranks and here --------------------------------------


def on_ranks(world: int) -> Callable[[Any], Any]:
    """
    Makes a test of a function that runs on each of so many ranks, with the test's parameters as its
    arguments.
    """
    return pytest.mark.on_ranks(world)


def text_of(error: type, call: Callable[[], Any]) -> str:
    try:
        value = call()
    except BaseException as raised:
        assert type(raised) is error, f"{raised!r} is not {error}"
        return str(raised)
    raise AssertionError(f"no {error.__name__}: {value!r}")


def check_usable(src: int = 0, group: Any = None) -> None:
    import torch

    import ringcast.torch as rt

    got = rt.broadcast_object({"still": torch.arange(4)}, src, group)
    assert_same(got, {"still": torch.arange(4)})
