# SPDX-License-Identifier: Apache-2.0
"""How far a sender may run ahead of the slowest receiver: of a ring, of a group's broadcasts, of a
queue."""

import itertools
import os
from typing import Any, Optional

import needs
import pytest
from queues import make_ready, the_watching_thread  # noqa: F401

import ringcast


def sent_until_full(send: Any, most: int = 1000) -> int:
    """How many values are sent before one has to wait."""
    for count in itertools.count():
        try:
            send(count)
        except TimeoutError:
            return count
        if count + 1 == most:
            return most
    raise AssertionError


def test_a_ring_has_the_bound_that_is_asked_for():
    writer = ringcast.Writer(ahead=3)
    fast, slow = ringcast.Reader(writer.handle), ringcast.Reader(writer.handle, name="slow")
    tap = ringcast.Tap(writer.handle)  # does not count
    assert sent_until_full(lambda value: writer.send(value, timeout=0)) == 3
    assert [fast.recv(timeout=0) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(
        TimeoutError, match=r"3 frames are not taken yet \(ahead\): reader 1 'slow' .* blocks"
    ):
        writer.send("no", timeout=0.001)
    assert slow.recv(timeout=0) == 0
    writer.send("yes", timeout=0)
    tap.close()


def test_a_queue_has_room_for_as_many_messages_as_the_caller_says():
    writer, *readers = make_ready(2, max_chunks=4)
    assert sent_until_full(lambda value: writer.enqueue(value, timeout=0.001)) == 4
    assert [queue.dequeue(timeout=0) for queue in (*readers, readers[0])] == [0, 0, 1]
    assert sent_until_full(lambda value: writer.enqueue(value, timeout=0.001)) == 1


if needs.torch is not None:
    import torch.distributed as dist

    from ringcast._group import endpoint, rings


def ranks_ahead(setting: Optional[str], stream: str) -> int:
    if setting is not None:
        os.environ["RINGCAST_AHEAD"] = setting
    end = rings.end_of(None, 0, stream=stream)
    sent = 0
    if isinstance(end, endpoint.Source):
        sent = sent_until_full(lambda value: end.send(value, endpoint.OBJECT, timeout=0))
    dist.barrier()
    if isinstance(end, endpoint.Receiver):
        end.receive(endpoint.OBJECT)
    dist.barrier()
    if isinstance(end, endpoint.Source) and sent < 1000:
        assert sent_until_full(lambda value: end.send(value, endpoint.OBJECT, timeout=0)) == 1
    os.environ.pop("RINGCAST_AHEAD", None)
    return sent


@needs.needs_torch
@pytest.mark.parametrize(
    "setting, stream, sent",
    [
        (None, "broadcast", 8),
        ("3", "broadcast", 3),
        ("0", "broadcast", 1000),
        (None, "share", 1000),
    ],
)
def test_a_source_is_a_few_broadcasts_ahead(ranks, setting, stream, sent):
    assert ranks.run(2, ranks_ahead, setting, stream) == [sent, 0]
