# SPDX-License-Identifier: Apache-2.0
"""
ringcast.torch when a rank dies: all others hear of it at once, whatever they wait for, and who it
was.
"""

import contextlib
import os
import signal
import threading
import time
import warnings
from typing import Any, List

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import check_usable, meet, text_of
from peers import WATCHDOG
from queues import the_watching_thread  # noqa: F401

import ringcast
import ringcast.torch as rt
from ringcast import _watch
from ringcast._group import endpoint, rings


def ranks_going_on() -> List[str]:
    rank = dist.get_rank()
    rt.prepare(on_death="evict")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        meet()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        while rank == 0 and not caught:
            time.sleep(0)  # for the watching thread
        for _ in range(3):
            check_usable()
    assert all(one.category is RuntimeWarning for one in caught)
    return [str(one.message) for one in caught]


def test_the_others_go_on_without_a_rank_that_dies_if_they_are_to(mortals):
    (warning,), other, _ = mortals.run(3, ranks_going_on, dying=2)
    assert "rank 2 (pid " in warning and "go on without it" in warning
    assert other == []


def ranks_of_a_source_that_waits() -> str:
    """All wait for the source, and the source for the rank that dies."""
    rank = dist.get_rank()
    check_usable()
    meet()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        text_of(RuntimeError, lambda: dist.recv(torch.zeros(1), src=1))  # gloo's, when rank 1 ends
        return text_of(ringcast.ReaderDied, lambda: rt.broadcast_object(1))
    text = text_of(ringcast.ReaderDied, rt.broadcast_object)
    dist.destroy_process_group()
    return text


def test_a_death_is_told_while_the_source_calls_nothing(mortals):
    source, other, _ = mortals.run(3, ranks_of_a_source_that_waits, dying=2)
    assert source == other and source.startswith("rank 2 (pid ") and "on_death=evict" in source


def ranks_without_room(received: bool, watched: bool, ahead: str) -> str:
    """
    Rank 1 does not receive, so the ring is full; rank 2, which has received all or nothing, dies.
    """
    rank = dist.get_rank()
    if rank == 0:
        os.environ["RINGCAST_CAPACITY"] = "65536"
        os.environ["RINGCAST_AHEAD"] = ahead
    check_usable()
    pids: List[Any] = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    meet()
    if rank == 2:
        for _ in rt.rings()[0] if received else ():
            pass
        dist.recv(torch.zeros(1), src=1)
    if rank == 1:
        dist.recv(torch.zeros(1), src=0)
        os.kill(pids[2], signal.SIGKILL)
        dist.recv(torch.zeros(1), src=0)
        text = text_of(ringcast.ReaderDied, lambda: [rt.broadcast_object() for _ in range(100_000)])
        dist.send(torch.zeros(1), dst=0)
        return text
    source = rings._rings[dist.group.WORLD]["broadcast", 0]
    if not watched:
        source._unwatch()
    for size in (1000, 0):  # then there is no room for the least
        with contextlib.suppress(TimeoutError):
            while True:
                source.ring.send(bytes(size), 0, tag=endpoint.OBJECT << 24 | source._call)
                source._call += 1
    dist.send(torch.zeros(1), dst=1)
    text = text_of(ringcast.ReaderDied, lambda: rt.broadcast_object(1))
    assert text == text_of(ringcast.ReaderDied, lambda: rt.broadcast_object(1))
    dist.send(torch.zeros(1), dst=1)
    dist.recv(torch.zeros(1), src=1)  # the ring is still there
    return text


@pytest.mark.parametrize(
    "received, watched, ahead",
    [(True, True, "0"), (False, False, "0"), (True, True, "4")],
    ids=["by the thread", "by the ring", "few frames"],
)
def test_a_death_is_known_on_all_ranks_although_there_is_no_room_to_tell(
    mortals, received, watched, ahead
):
    source, other, _ = mortals.run(3, ranks_without_room, received, watched, ahead, dying=2)
    who, *_ = source.partition(":")
    assert who.startswith("rank 2 (pid ") and other.startswith(who) and "rank 0 (pid " in other


@pytest.mark.parametrize("interrupted", [False, True], ids=["waits", "interrupted"])
@pytest.mark.parametrize("then", ["there is room", "it closes"])
def test_a_loss_without_room_is_told_when_there_is_room_and_holds_no_close_up(interrupted, then):
    """The rank that is lost was not a reader of the ring: a hub was for it, and has left."""
    writer = ringcast.Writer(ahead=1)
    source = endpoint.Source(writer, rank=0, goes_on=False)
    with ringcast.Reader(writer.handle) as reader:
        receiver = endpoint.Receiver(reader, rank=1, source=0, sender=0, pids={0: os.getpid()})
        source.send(1, endpoint.OBJECT)
        if interrupted:
            source._interrupt()
        source.lose("rank 2 (pid 7 on another machine)")
        if then == "it closes":
            source.close()
            assert not source._telling.is_alive()
        assert receiver.receive(endpoint.OBJECT) == 1
        error = ringcast.WriterGone if then == "it closes" else ringcast.ReaderDied
        told = text_of(error, lambda: receiver.receive(endpoint.OBJECT))
        if then == "there is room":
            assert told == text_of(ringcast.ReaderDied, lambda: source.send(2, endpoint.OBJECT))
    source.close()


def has_ended(pid: int) -> bool:
    """With all of its threads. A process that is killed lives on for a moment."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state, *fields = stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX" and int(fields[16]) <= 1


class Deadly:
    """Its pickling kills, and takes until the source's watching thread has come. Where there are no
    pidfds that one comes now and then, and may have done so before the death."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __reduce__(self) -> Any:
        source = rings._rings[dist.group.WORLD]["broadcast", 0]
        os.kill(self._pid, signal.SIGKILL)
        while not (source._alarm and has_ended(self._pid)):
            time.sleep(0)
        assert source.lost is None
        return int, (1,)


def ranks_dying_while_a_call_is_made(on_death: str) -> str:
    """The watching thread finds the source in a call, which then looks itself."""
    rank = dist.get_rank()
    os.environ["RINGCAST_VLLM"] = f"0,on_death={on_death}"
    check_usable()
    pids: List[Any] = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    meet()
    if rank == 2:
        signal.pause()  # a death before the call would be told before it
    if rank == 1:
        assert rt.broadcast_object() == 1
        return (
            rt.broadcast_object()
            if on_death == "evict"
            else text_of(ringcast.ReaderDied, rt.broadcast_object)
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rt.broadcast_object(Deadly(pids[2]))
        assert len(caught) == (on_death == "evict")
    if on_death == "evict":
        source = rings._rings[dist.group.WORLD]["broadcast", 0]
        with source._checking:  # not while the watching thread has come again, to find nothing
            assert not source._alarm and source.ring.fileno() in _watch._watcher._watched  # again
        return rt.broadcast_object("on")
    return text_of(ringcast.ReaderDied, lambda: rt.broadcast_object(2))


@pytest.mark.parametrize("on_death", ["fail", "evict"])
def test_a_death_while_the_source_sends_is_told_when_it_has_sent(mortals, on_death):
    source, other, _ = mortals.run(3, ranks_dying_while_a_call_is_made, on_death, dying=2)
    assert source == other


class Seen:
    """A lock that tells when someone has to wait for it."""

    def __init__(self, lock: Any, waits: threading.Event) -> None:
        self._lock, self._waits = lock, waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Slow(endpoint.Source):
    """
    The watching thread has been given the name of the dead, and tells it only when it is let go on.
    """

    def _lose(self, who: str, what: str = "") -> None:
        self.heard.set()
        assert self.go_on.wait(WATCHDOG)
        super()._lose(who, what)

    def check(self) -> None:
        try:
            super().check()
        finally:
            if threading.current_thread().name == "ringcast-watch":
                self.looked.set()


class During:
    """While it is pickled the watching thread goes on, to its end."""

    def __reduce__(self) -> Any:
        source = rings._rings[dist.group.WORLD]["broadcast", 0]
        source.go_on.set()
        assert source.looked.wait(WATCHDOG)
        return int, (2,)


def ranks_dying_while_the_thread_is_slow() -> str:
    rank = dist.get_rank()
    check_usable()
    pids: List[Any] = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    meet()
    if rank == 2:
        signal.pause()
    if rank == 1:
        assert rt.broadcast_object() == 1
        return text_of(ringcast.ReaderDied, rt.broadcast_object)
    source = rings._rings[dist.group.WORLD]["broadcast", 0]
    source.heard, source.go_on, source.looked = (threading.Event() for _ in range(3))
    source._checking = Seen(source._checking, source.go_on)
    source.__class__ = Slow
    os.kill(pids[2], signal.SIGKILL)
    assert source.heard.wait(WATCHDOG)
    rt.broadcast_object(1)
    return text_of(ringcast.ReaderDied, lambda: rt.broadcast_object(During()))


def test_a_call_that_ends_while_the_thread_knows_of_a_death_waits_until_it_has_told(mortals):
    """
    Or it would take it for nothing to tell, and the thread might come while the next call is made.
    """
    source, other, _ = mortals.run(3, ranks_dying_while_the_thread_is_slow, dying=2)
    assert source == other and source.startswith("rank 2 (pid ")
