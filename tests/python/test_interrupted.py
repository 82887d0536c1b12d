# SPDX-License-Identifier: Apache-2.0
"""
What a signal handler raises leaves a call that waits, and the call is then made or not made: never
half.
"""

import contextlib
import os
import signal
from typing import Any, Iterator

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import torch
import torch.distributed as dist
from _dist import check_usable, meet, on_ranks
from queues import the_watching_thread  # noqa: F401

import ringcast.torch as rt
from ringcast._group import gather
from ringcast.sglang.pyobj import broadcast_pyobj
from ringcast.vllm import MessageQueue
from ringcast.vllm.group import Group


class TimeLimit(Exception):
    pass


# Of each kind that a call of ours might take for its own: for the time that is up, a value's, the
# ring's.
ERRORS = (TimeLimit, TimeoutError, TypeError, ValueError, RuntimeError, OSError)


@contextlib.contextmanager
def interrupted(kind: type) -> Iterator[None]:
    """
    A handler raises in the block, which is left by that very error. The alarm comes again if it was
    too early.
    """
    raised = kind("of a handler")

    def handle(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise raised

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(kind) as caught:
            yield
        assert caught.value is raised
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


BROADCASTS = {
    "object": lambda value, group: rt.broadcast_object(value),
    "dict": lambda value, group: rt.broadcast_tensor_dict(value),
    "list": lambda value, group: rt.broadcast_object_list([value])[0],
    "pyobj": lambda value, group: broadcast_pyobj([value], dist.get_rank())[0],
    "tensor": lambda value, group: {"n": int(group.broadcast(torch.tensor(value["n"])))},
}


@pytest.mark.parametrize("way", list(BROADCASTS))
@on_ranks(2)
def test_an_interrupted_broadcast_sent_nothing_and_the_next_is_in_step(way: str) -> None:
    os.environ["RINGCAST_AHEAD"] = "2"
    group = Group()
    rt.prepare()
    for kind in ERRORS:
        if dist.get_rank() == 0:
            for number in range(2):
                BROADCASTS[way]({"n": number}, group)
            with interrupted(kind):
                BROADCASTS[way]({"n": 7}, group)
            meet()
            BROADCASTS[way]({"n": 2}, group)
        else:
            meet()
            assert [BROADCASTS[way]({"n": 9}, group)["n"] for _ in range(3)] == [0, 1, 2]
    check_usable()


class Unsendable:
    def __reduce__(self) -> Any:
        raise ValueError("of the value")


@on_ranks(2)
def test_the_word_of_a_refused_value_is_interrupted_as_the_value_would_be() -> None:
    os.environ["RINGCAST_AHEAD"] = "1"
    rt.prepare()
    if dist.get_rank() == 0:
        rt.broadcast_object(0)
        with interrupted(TimeLimit):
            rt.broadcast_object(Unsendable())
        meet()
    else:
        meet()
        assert rt.broadcast_object() == 0
    check_usable()


@on_ranks(2)
def test_an_interrupted_gather_has_been_made_for_the_others() -> None:
    group = dist.group.WORLD
    gather.barrier(group)
    for kind in ERRORS:
        if dist.get_rank() == 0:
            with interrupted(kind):
                gather.all_gather(group, "made")
            meet()
        else:
            meet()
            assert gather.all_gather(group, "late") == ["made", "late"]
        assert gather.all_gather(group, dist.get_rank()) == [0, 1]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_interrupted_call_of_a_queue_sent_and_took_nothing(kind: type) -> None:
    writer = MessageQueue(1, 1, max_chunks=2)
    with interrupted(kind):
        writer.wait_until_ready()
    with interrupted(kind):
        writer.enqueue("before any reader")
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    with interrupted(kind):
        reader.wait_until_ready()
    writer.wait_until_ready()
    reader.wait_until_ready()
    with interrupted(kind):
        reader.dequeue(timeout=60)
    for number in range(2):
        writer.enqueue(number)
    with interrupted(kind):
        writer.enqueue(7, timeout=60)
    assert [reader.dequeue(timeout=60) for _ in range(2)] == [0, 1]
    writer.enqueue(2)
    assert reader.dequeue(timeout=60) == 2
