# SPDX-License-Identifier: Apache-2.0
"""
What crosses between machines (relay.py): messages, and frames in messages, out of a ring and into
another ring.

In a message each frame has a head of 16 bytes: its kind, its bytes in this message, and the bytes
of the whole frame. All input is checked; invalid input raises Malformed.
"""

import collections
import contextlib
import json
import os
import struct
import threading
from typing import Any, Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Tuple

import ringcast
from ringcast._files import above_the_streams

# The most bytes of frames in a message; a longer message would delay the heartbeats on a slow
# network.
PIECE_BYTES = 1 << 20
# Small frames are sent together up to this size.
_TOGETHER_BYTES = 1 << 18
# Frames that may be held at once; a Reader's maximum.
LEASES = 64
_HEAD = struct.Struct("<IIQ")
_KINDS = (ringcast.KIND_BYTES, ringcast.KIND_TENSORS)


class Malformed(Exception):
    """The peer sent an invalid message."""


# ---- Messages ------------------------------------------------------------------------------------


def pack_words(**words: Any) -> bytes:
    return json.dumps(words).encode()


def unpack_words(body: Any, **kinds: type) -> Dict[str, Any]:
    """The words named in `kinds`. Malformed: a word is missing or of the wrong type."""
    try:
        words = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise Malformed("the body is no JSON") from None
    if not isinstance(words, dict):
        raise Malformed("the body is no JSON object")
    for name, kind in kinds.items():
        if type(words.get(name)) is not kind:
            raise Malformed(f"{name!r} is missing, or no {kind.__name__}")
    return words


class Head(NamedTuple):
    kind: int
    here: int
    whole: int


def pack_heads(heads: Iterable[Head]) -> bytes:
    return b"".join(_HEAD.pack(*head) for head in heads)


def unpack_heads(body: Any, data: int) -> List[Head]:
    if len(body) % _HEAD.size or not body:
        raise Malformed("heads of frames of a wrong length")
    heads = [Head(*head) for head in _HEAD.iter_unpack(body)]
    if sum(head.here for head in heads) != data:
        raise Malformed("frames of other lengths than their heads say")
    if any(head.kind not in _KINDS or head.here > head.whole for head in heads):
        raise Malformed("an invalid head of a frame")
    return heads


def _cost(number: int, data: int) -> int:
    """
    The bytes of the window for `number` frames with `data` bytes; empty frames take memory, too.
    """
    return number * 64 + data


class Message:
    """Frames for all machines, copied once."""

    def __init__(self, heads: List[Head], data: Any, copy: Callable[[Any], Any]) -> None:
        self.heads = pack_heads(heads)
        self.data = copy(data)
        self.cost = _cost(len(heads), len(self.data))


class Outlet:
    """Takes frames out of a ring: small frames together, large frames in pieces. copy: makes the
    transport's copy."""

    def __init__(self, reader: ringcast.Reader, copy: Callable[[Any], Any]) -> None:
        self._reader = reader
        self._copy = copy
        self._large: Optional[ringcast.Frame] = None
        self._offset = 0
        self._error: Optional[ringcast.Error] = None

    def take(self) -> Optional[Message]:
        """None: the ring is empty now. ringcast.Error: no frame comes any more."""
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
        message = Message(heads, frames[0] if len(frames) == 1 else b"".join(frames), self._copy)
        for frame in frames:
            frame.release()  # Evicted: the copy may be torn
        return message

    def _cut(self, frame: ringcast.Frame) -> Message:
        whole = len(frame)
        end = min(whole, self._offset + PIECE_BYTES)
        with memoryview(frame) as view, view[self._offset : end] as piece:
            message = Message([Head(frame.kind, len(piece), whole)], piece, self._copy)
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
        self._kind = self._filled = 0

    def give(self, heads: Any, data: Any) -> int:
        """Accept a message and return the cost. Malformed."""
        view = memoryview(data)
        found = unpack_heads(heads, len(view))
        start = 0
        for head in found:
            self._waiting.append((head, view[start : start + head.here]))
            start += head.here
        return _cost(len(found), len(view))

    def publish(self) -> bool:
        """Whether all given frames are in the ring; False: no room. Malformed; ringcast.Error."""
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
            raise Malformed("a piece of another frame than the piece before")
        with memoryview(span) as view:
            view[self._filled : end] = data
        self._filled = end
        if end == head.whole:
            self._span = None
            span.commit(kind=self._kind)

    def abandon(self) -> None:
        """Drop an incomplete frame."""
        self._waiting.clear()
        if self._span is not None:
            self._span.abort()
            self._span = None


class Wake:
    """Ends a poll of another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.descriptor, self._near = map(above_the_streams, os.pipe())
        self._closed = False
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._near, False)

    def set(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._closed:
                os.write(self._near, b"w")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)
                os.close(self._near)
