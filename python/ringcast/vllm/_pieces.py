# SPDX-License-Identifier: Apache-2.0
"""Frames out of a ring into messages, and out of messages into another ring, byte for byte.

Small ones go together in a message, as many as are there; large ones in pieces.
"""

import collections
import contextlib
from typing import Any, Deque, List, Optional, Tuple

import zmq

import ringcast
from ringcast.vllm._wire import PIECE_BYTES, Head, Malformed, cost, pack_heads, unpack_heads

# Frames that may be held at once; a Reader's most.
LEASES = 64
_TOGETHER_BYTES = 1 << 18


class Message:
    """What goes to each machine: copied once, however many there are."""

    def __init__(self, heads: List[Head], data: Any) -> None:
        self.heads = pack_heads(heads)
        self.data = zmq.Frame(data, copy=True)
        self.cost = cost(len(heads), len(self.data))


class Outlet:
    """Takes frames out of a ring."""

    def __init__(self, reader: ringcast.Reader) -> None:
        self._reader = reader
        self._large: Optional[ringcast.Frame] = None
        self._offset = 0
        self._error: Optional[ringcast.Error] = None

    def take(self) -> Optional[Message]:
        """None: there is nothing now. ringcast.Error: nor will there be."""
        if self._large is None and self._error is None:
            frames = self._gather()
            if frames:
                return self._join(frames)
        if self._large is not None:
            return self._cut(self._large)
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        if self._large is not None:
            with contextlib.suppress(ringcast.Error):
                self._large.release()
        self._large = None

    def _gather(self) -> List[ringcast.Frame]:
        frames: List[ringcast.Frame] = []
        size = 0
        try:
            while len(frames) < LEASES - 1 and size < _TOGETHER_BYTES:
                frame = self._reader.next(0)
                if len(frame) > PIECE_BYTES:
                    self._large, self._offset = frame, 0
                    break
                frames.append(frame)
                size += len(frame)
        except TimeoutError:
            pass
        except ringcast.Error as error:
            self._error = error
        return frames

    def _join(self, frames: List[ringcast.Frame]) -> Message:
        heads = [Head(frame.kind, len(frame), len(frame)) for frame in frames]
        message = Message(heads, frames[0] if len(frames) == 1 else b"".join(frames))
        for frame in frames:
            frame.release()  # Evicted: the copy may be torn
        return message

    def _cut(self, frame: ringcast.Frame) -> Message:
        whole = len(frame)
        end = min(whole, self._offset + PIECE_BYTES)
        with memoryview(frame) as view, view[self._offset : end] as piece:
            message = Message([Head(frame.kind, len(piece), whole)], piece)
        self._offset = end
        if end == whole:
            self._large = None
            frame.release()
        return message


class Inlet:
    """Puts frames into a ring."""

    def __init__(self, writer: ringcast.Writer) -> None:
        self._writer = writer
        self._waiting: Deque[Tuple[Head, Any]] = collections.deque()
        self._span: Optional[ringcast.Span] = None
        self._kind = 0
        self._filled = 0

    def give(self, heads: Any, data: Any) -> int:
        """Takes a message; returns what it counts for in the window. Malformed."""
        view = memoryview(data)
        found = unpack_heads(heads, len(view))
        start = 0
        for head in found:
            self._waiting.append((head, view[start : start + head.here]))
            start += head.here
        return cost(len(found), len(view))

    def publish(self) -> bool:
        """Whether all that was given is in the ring; False: there is no room. Malformed; ringcast.Error."""
        while self._waiting:
            head, data = self._waiting[0]
            if self._span is None:
                try:
                    self._span = self._writer.reserve(head.whole, 0)
                except TimeoutError:
                    return False
                self._kind, self._filled = head.kind, 0
            self._fill(self._span, head, data)
            self._waiting.popleft()
        return True

    def _fill(self, span: ringcast.Span, head: Head, data: Any) -> None:
        end = self._filled + head.here
        if (head.kind, head.whole) != (self._kind, len(span)) or end > head.whole:
            raise Malformed("a piece that is none of the frame before")
        with memoryview(span) as view:
            view[self._filled : end] = data
        self._filled = end
        if end == head.whole:
            self._span = None
            span.commit(kind=self._kind)

    def abandon(self) -> None:
        """What was begun and will never be whole."""
        self._waiting.clear()
        if self._span is not None:
            self._span.abort()
            self._span = None
