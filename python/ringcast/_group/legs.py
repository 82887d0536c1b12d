# SPDX-License-Identifier: Apache-2.0
"""Messages over a transport where the receiver names the size of a message beforehand, as
torch.distributed's.

A message is one piece: head, body, data and padding. Both ends know the size of the piece from the
message before. If a message does not fit, body and data follow as a second piece, and the head
tells the size of the second piece.

Each head tells the room for the body and data of the next message. If the next message waits
already, the room is the size of that message; else an estimate (ring/estimate.c) from the sizes of
the messages that did not wait. So the pieces of a large frame, which follow one another, need no
padding, and do not raise the estimate. A head counts only when the message was sent: after a
message that could not be made, both ends still have the same room.
"""

import struct
from typing import Any, Callable, List, NamedTuple, Optional

from ringcast._group.framing import PIECE_BYTES, Malformed
from ringcast._ringcast import add_size

# The letter; the room for the next message; the bytes of this message's body, and of its data.
HEAD = struct.Struct("<c3xIII")
# For the first message: the estimate without a history.
FIRST_ROOM = 4096
# A longer padding of small messages would cost more than the second piece of a large one.
MOST_ESTIMATE = 1 << 16
# More than any message of framing.py. The receiver provides the memory before anything comes.
MOST_ROOM = 2 * PIECE_BYTES
_MOST_BYTES = 1 << 30


class Message(NamedTuple):
    letter: bytes
    body: Any = b""
    data: Any = b""

    @property
    def size(self) -> int:
        return len(self.body) + len(self.data)


class SendingEnd:
    """put: sends the pieces of a message."""

    def __init__(self, put: Callable[[List[bytearray]], None]) -> None:
        self._put = put
        self._history = bytearray(64)
        self._estimate = self._room = FIRST_ROOM
        self._is_exact = False  # the room is the next message's size

    def send(self, message: Message, following: Optional[Message] = None) -> None:
        """following: the next message, if that waits already."""
        size, room = message.size, self._room
        if size and not self._is_exact:
            self._estimate = min(add_size(self._history, size), MOST_ESTIMATE)
        next_room = self._estimate if following is None else min(following.size, MOST_ROOM)
        head = HEAD.pack(message.letter, next_room, len(message.body), len(message.data))
        if size <= room:
            self._put([bytearray().join((head, message.body, message.data, bytes(room - size)))])
        else:
            self._put(
                [
                    bytearray().join((head, bytes(room))),
                    bytearray().join((message.body, message.data)),
                ]
            )
        self._room, self._is_exact = next_room, following is not None


class ReceivingEnd:
    """get: receives a piece of so many bytes."""

    def __init__(self, get: Callable[[int], memoryview]) -> None:
        self._get = get
        self._room = FIRST_ROOM

    def receive(self) -> Message:
        """Malformed: an invalid head."""
        first, room = self._get(HEAD.size + self._room), self._room
        letter, next_room, body, data = HEAD.unpack_from(first)
        size = body + data
        if next_room > MOST_ROOM or size > _MOST_BYTES:
            raise Malformed("a head that tells of more bytes than a message may have")
        whole = first[HEAD.size : HEAD.size + size] if size <= room else self._get(size)
        if size < room // 2:
            whole = memoryview(bytes(whole))  # messages may wait for long: without their padding
        self._room = next_room
        return Message(letter, whole[:body], whole[body:])
