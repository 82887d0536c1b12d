# SPDX-License-Identifier: Apache-2.0
"""
The messages between machines over a transport without sizes of its own (ringcast._group.legs): how
many pieces, how much padding, and ends that stay in step.
"""

import collections
import queue
import random

import needs
import pytest

import ringcast
from ringcast._group import legs
from ringcast._group.framing import Malformed

MARGIN = 16 + 64  # the head, and the estimate's least reserve


class Wire:
    """Both ends, and the pieces of each message in between."""

    def __init__(self):
        self.pieces = collections.deque()
        self.sent = []  # the pieces of each message, by size
        self.broken = None
        self.sending = legs.SendingEnd(self.put)
        self.receiving = legs.ReceivingEnd(self.get)

    def put(self, pieces):
        if self.broken is not None:
            raise self.broken
        self.sent.append([len(piece) for piece in pieces])
        self.pieces.extend(pieces)

    def get(self, size):
        piece = self.pieces.popleft()
        assert len(piece) == size, "the ends are out of step"
        return memoryview(piece)

    def cross(self, size, following=None):
        """Send a message; returns the sizes of its pieces."""
        body, data = random.randbytes(size // 3), random.randbytes(size - size // 3)
        self.sending.send(legs.Message(b"F", body, data), following)
        letter, *parts = self.receiving.receive()
        assert (letter, [bytes(part) for part in parts]) == (b"F", [body, data])
        assert not self.pieces
        return self.sent[-1]


@pytest.fixture
def wire():
    return Wire()


def test_a_usual_object_is_one_message_without_a_minimum(wire):
    for _ in range(100):
        size = random.randrange(40, 42)
        (piece,) = wire.cross(size)
    assert piece <= 41 + 41 // 16 + MARGIN
    wire.cross(20_000)
    for _ in range(40):  # a rare large message changes nothing
        (piece,) = wire.cross(41)
        assert piece <= 42 + 42 // 16 + MARGIN


def test_the_first_message_is_one_piece_up_to_the_default():
    assert len(Wire().cross(legs.FIRST_ROOM)) == 1
    assert len(Wire().cross(legs.FIRST_ROOM + 1)) == 2
    assert len(Wire().cross(0)) == 1
    with ringcast.Writer(1 << 20) as writer:
        assert len(writer.reserve()) == legs.FIRST_ROOM


@pytest.mark.parametrize("small, large", [(50, 50_000), (1, 1_000), (60, 60_000)])
def test_sizes_that_jump_by_a_thousand_times(wire, small, large):
    for _ in range(64):
        wire.cross(small)
    pieces = [len(wire.cross(large)) for _ in range(4)]
    assert pieces == [2, 2, 2, 1]
    # The estimate falls when no large message has come for two epochs.
    assert all(len(wire.cross(small)) == 1 for _ in range(64))
    assert wire.cross(small)[0] <= 2 * small + MARGIN


def test_a_message_that_waits_gets_the_room_of_its_size_and_teaches_nothing(wire):
    for _ in range(64):
        wire.cross(40)
    large = legs.Message(b"F", b"", bytes(1 << 20))
    wire.cross(40, large)
    for left in reversed(range(20)):
        assert wire.cross(large.size, large if left else None) == [legs.HEAD.size + large.size]
    assert wire.cross(40)[0] <= 40 + MARGIN + 3


def test_the_estimate_is_bounded(wire):
    for _ in range(64):
        wire.cross(1 << 20)
    assert wire.cross(40) == [legs.HEAD.size + legs.MOST_ESTIMATE]
    assert wire.cross(40, legs.Message(b"F", b"", bytes(4 * legs.MOST_ROOM)))
    assert wire.cross(4 * legs.MOST_ROOM) == [legs.HEAD.size + legs.MOST_ROOM, 4 * legs.MOST_ROOM]


@pytest.mark.parametrize("error", [RuntimeError("the backend"), MemoryError()])
def test_a_message_that_fails_leaves_both_ends_in_step(wire, error):
    for size in (40, 70_000, 3, 5000):
        wire.cross(40)
        wire.broken = error
        with pytest.raises(type(error)):
            wire.sending.send(
                legs.Message(b"F", b"", bytes(size)), legs.Message(b"F", b"", bytes(9))
            )
        with pytest.raises(TypeError):
            wire.sending.send(legs.Message(b"F", b"", "no bytes"))
        wire.broken = None
        wire.cross(size)


def test_any_sizes_in_any_order(wire):
    sizes = [random.choice([0, 1, 40, 900, 4096, 60_000, 70_000, 300_000]) for _ in range(2000)]
    for size, following in zip(sizes, sizes[1:]):
        wire.cross(
            size, legs.Message(b"F", b"", bytes(following)) if random.random() < 0.5 else None
        )
        if random.random() < 0.5 and following:
            continue
    # What was announced need not come: the room is a bound, not a promise.
    wire.cross(40, legs.Message(b"F", b"", bytes(100)))
    assert len(wire.cross(5)) == 1
    wire.cross(40, legs.Message(b"F"))
    assert wire.cross(5) == [legs.HEAD.size, 5]


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


def test_a_room_of_0_is_a_head_alone(wire):
    for _ in range(3):
        wire.pieces.append(legs.HEAD.pack(b"F", 0, 0, 0) + bytes(legs.FIRST_ROOM))
        assert wire.receiving.receive() == (b"F", b"", b"")
        wire.pieces += [legs.HEAD.pack(b"F", legs.FIRST_ROOM, 2, 3), b"abcde"]
        assert wire.receiving.receive() == (b"F", b"ab", b"cde")


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


def test_messages_cross_whole_and_in_order(links):
    backend, near, far = links
    for i in range(200):
        near.send(b"F", b"%d" % i, bytes(random.choice([0, 24, 900, 5000, 200_000])))
    assert [bytes(taken(far).body) for _ in range(200)] == [b"%d" % i for i in range(200)]
    far.send(b"A", bytes(8))
    assert taken(near) == (b"A", bytes(8), b"")


def test_a_connection_that_breaks_within_a_message_ends_both_ends_and_nothing_wrong_is_understood(
    links,
):
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
