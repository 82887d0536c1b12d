# SPDX-License-Identifier: Apache-2.0
"""A value that is packed once goes through every drop-in, on any number of rings, and is not
serialised again."""

import threading
from typing import Any, Callable

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

import numpy as np
import torch
import torch.distributed as dist
from _dist import on_ranks, text_of
from peers import WATCHDOG
from queues import make, the_watching_thread, watchdog  # noqa: F401
from values import assert_same

import ringcast
import ringcast.torch as rt
from ringcast.sglang import broadcast_pyobj
from ringcast.sglang import queue as sglang_queue
from ringcast.sglang.pyobj import point_to_point_pyobj
from ringcast.vllm.group import Group

pytestmark = pytest.mark.alike


class Counted:
    """Counts how often it is pickled."""

    times = 0

    def __reduce__(self) -> Any:
        type(self).times += 1
        return Counted, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted)


def some() -> Any:
    return [
        {"ids": torch.arange(8), "big": torch.arange(500_000), "text": "t"},
        Counted(),
        (1, None),
    ]


def check(call: Callable[[Any], Any]) -> None:
    """The source gets its packed frame back, every other rank the value."""
    before = Counted.times
    packed = ringcast.pack(some())
    for src_has in (packed, packed):
        got = call(src_has)
        if dist.get_rank() == 0:
            assert got is packed
        else:
            assert_same(got, some())
    assert Counted.times == before + 1


@on_ranks(3)
def test_every_broadcast_of_an_object_takes_a_packed_frame() -> None:
    rank = dist.get_rank()
    second, group = dist.new_group([0, 1, 2]), Group()
    check(rt.broadcast_object)
    check(lambda packed: rt.broadcast_object(packed, group=second))
    check(group.broadcast_object)
    check(lambda packed: broadcast_pyobj(packed, rank))
    packed = ringcast.pack(some())
    if rank == 0:
        assert (
            rt.broadcast_object(packed) is packed
            and rt.broadcast_object(packed, group=second) is packed
        )
        group.send_object(packed, 1)
        assert point_to_point_pyobj(packed, 0, src=0, dst=1) == []
    else:
        assert_same(rt.broadcast_object(None), some())
        assert_same(rt.broadcast_object(None, group=second), some())
    if rank == 1:
        assert_same(group.recv_object(0), some())
        assert_same(point_to_point_pyobj(None, 1, src=0, dst=1), some())


@on_ranks(2)
def test_where_a_packed_frame_cannot_go_it_is_refused_by_name() -> None:
    packed = ringcast.pack({"a": 1})
    for call, kind in (
        (lambda: rt.broadcast_tensor_dict(packed), TypeError),
        (lambda: rt.broadcast_object_list([packed]), TypeError),
    ):
        expected = kind if dist.get_rank() == 0 else ringcast.SendError
        assert "PackedFrame" in text_of(expected, call)
    check(rt.broadcast_object)


@on_ranks(1)
def test_alone_a_packed_frame_comes_back() -> None:
    packed = ringcast.pack([1])
    assert rt.broadcast_object(packed) is packed


def test_queues_take_a_packed_frame():
    value, before = [{"x": np.arange(9)}, Counted()], Counted.times
    packed = ringcast.pack(value)
    first, readers = make(2)
    second = sglang_queue.MessageQueue(1, 1)
    late = threading.Thread(target=second.enqueue, args=(packed, WATCHDOG))
    late.start()  # waits for its reader
    readers.append(sglang_queue.MessageQueue.create_from_handle(second.export_handle(), 0))
    late.join()
    first.enqueue(packed)
    for reader in readers:
        assert_same(reader.dequeue(WATCHDOG), value)
    assert first.broadcast_object(packed) is packed
    assert_same(readers[0].broadcast_object(), value)
    assert Counted.times == before + 1
