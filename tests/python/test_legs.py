# SPDX-License-Identifier: Apache-2.0
"""
A hostile peer, or a connection that breaks, between the machines of a group. test_torch_machines.py
has messages of any sizes.
"""

import collections
import queue
import random

import needs
import pytest

import ringcast
from ringcast._group import legs
from ringcast._group.framing import Malformed

# ---- A hostile peer ------------------------------------------------------------------------------

ABSURD = [
    (legs.MOST_ROOM + 1, 0, 0),
    (2**32 - 1, 0, 0),
    (2**32 - 1, 2**32 - 1, 2**32 - 1),
    (64, 2**32 - 1, 0),
    (64, 0, (1 << 30) + 1),
    (64, 1 << 29, (1 << 29) + 1),
]


@pytest.mark.parametrize("room, body, data", ABSURD)
def test_a_head_with_absurd_numbers_is_refused_before_memory_is_taken(room, body, data):
    asked = []

    def get(size):
        asked.append(size)
        return memoryview(legs.HEAD.pack(b"F", room, body, data) + bytes(legs.FIRST_ROOM))

    with pytest.raises(Malformed, match="more bytes than a message may have"):
        legs.ReceivingEnd(get).receive()
    assert asked == [legs.HEAD.size + legs.FIRST_ROOM]


def test_a_history_of_another_length_is_refused():
    for wrong, error in (
        (bytearray(63), ValueError),
        (bytearray(), ValueError),
        (bytes(64), TypeError),
    ):
        with pytest.raises(error):
            ringcast._ringcast.add_size(wrong, 1)
    for _ in range(1000):  # any bytes are a history
        assert (
            ringcast._ringcast.add_size(bytearray(random.randbytes(64)), random.getrandbits(64))
            >= 0
        )


# ---- Over a backend ------------------------------------------------------------------------------


class Backend:
    """
    As a ProcessGroup's between two: pieces by tag; a wrong size breaks it for both, as gloo's does.
    """

    def __init__(self):
        self.by_tag = collections.defaultdict(queue.Queue)
        self.sizes = []
        self.left = None  # how many pieces can still be sent

    def send(self, tensors, peer, tag):
        if self.left == 0:
            self.by_tag[tag].put(None)
            raise RuntimeError("the connection is closed")
        if self.left is not None:
            self.left -= 1
        self.sizes.append(tensors[0].numel())
        self.by_tag[tag].put(tensors[0].clone())
        return Done(lambda: None)

    def recv(self, tensors, peer, tag):
        def take():
            piece = self.by_tag[tag].get()
            if piece is None or piece.numel() != tensors[0].numel():
                raise RuntimeError("the connection is closed")
            tensors[0].copy_(piece)

        return Done(take)


class Done:
    def __init__(self, take):
        self.wait = lambda timeout: take()


@pytest.fixture
def links():
    if needs.torch is None:
        pytest.skip("torch is not installed here")
    from ringcast._group import torch_transport

    backend = Backend()
    near = torch_transport.Link(backend, 1, (0, 1), 60.0, (b"D", b"B"))
    far = torch_transport.Link(backend, 0, (1, 0), 60.0, (b"B", b"D"))
    yield backend, near, far
    for link, last in (near, b"D"), (far, b"B"):
        backend.left = None
        link.send(last)
    for link in near, far:
        backend.by_tag[0].put(None)
        backend.by_tag[1].put(None)
        link.close(False)


def taken(link):
    from ringcast._group.relay import Lost

    while True:
        try:
            message = link.take()
        except Lost as lost:
            return str(lost)
        if message is not None:
            return message
        link.poll([], -1, True)


def test_a_connection_that_breaks_within_a_message_is_lost(links):
    backend, near, far = links
    near.send(b"F", b"whole", b"")
    assert taken(far).body == b"whole"
    backend.left = 1  # the second piece fails
    near.send(b"F", b"", bytes(100_000))
    assert "the connection is closed" in taken(far)


def test_an_invalid_head_is_a_lost_connection(links):
    import torch

    backend, near, far = links
    head = legs.HEAD.pack(b"F", 2**32 - 1, 0, 0) + bytes(legs.FIRST_ROOM)
    backend.by_tag[0].put(torch.frombuffer(bytearray(head), dtype=torch.uint8))
    assert "a head that tells of more bytes than a message may have" in taken(far)
