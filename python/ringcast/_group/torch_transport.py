# SPDX-License-Identifier: Apache-2.0
"""
The relay's messages (relay.py) by a torch.distributed group's point to point, on its CPU backend.

If a process dies, the connection breaks and raises at both ends at once. If a machine disappears,
its silence tells: each side sends a beat at least every third of the group's timeout. The waits of
the backend are unlimited, since a timeout there would break the group for all ranks: two threads
wait in the backend, and the relay's thread checks the clock.
"""

import collections
import contextlib
import queue
import select
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Deque, List, Optional, Tuple

import torch

import ringcast
from ringcast._group.endpoint import GONE, NOTICE, Source
from ringcast._group.framing import Malformed, Wake
from ringcast._group.legs import Message, ReceivingEnd, SendingEnd
from ringcast._group.relay import TURN_HEARD, Hub, Lost, Peer, Relay

_BEAT = Message(b".")
_CLOSE = Message(b"")  # is not sent
_FOREVER = timedelta(days=10_000)
_LINGER_SECONDS = 30.0


class Link:
    """The connection to one rank. peer: a rank in the group. tags: to send with, to receive with.
    last: the last letters to be sent and received. unreachable: the words for a lost peer."""

    goodbye_seconds = _LINGER_SECONDS

    def __init__(
        self,
        backend: Any,
        peer: int,
        tags: Tuple[int, int],
        seconds: float,
        last: Tuple[bytes, bytes],
        unreachable: str = "can't be reached",
    ) -> None:
        self._backend, self._peer = backend, peer
        self._send_tag, self._receive_tag = tags
        self._last_sent, self._last_received = last
        self._seconds, self._unreachable = seconds, unreachable
        self._to_send: "queue.SimpleQueue[Message]" = queue.SimpleQueue()
        self._received: Deque[Message] = collections.deque()
        self._failure: Optional[str] = None
        self._sending_since = 0.0  # 0: nothing is being sent
        self._heard = time.monotonic()
        self._wake = Wake()
        runs = self._send_all, self._receive_all
        self._threads = [
            threading.Thread(target=run, name="ringcast-link", daemon=True) for run in runs
        ]
        for thread in self._threads:
            thread.start()

    def send(self, letter: bytes, body: bytes = b"", data: Any = b"") -> None:
        self._to_send.put(Message(letter, body, data))

    def poll(self, descriptors: List[int], milliseconds: int, listens: bool) -> List[Any]:
        most = int(self._seconds * 100)  # then the clock is to be checked
        poll = select.poll()
        for descriptor in [*descriptors, *([self._wake.descriptor] if listens else [])]:
            poll.register(descriptor, select.POLLIN)
        ready = [
            descriptor
            for descriptor, _ in poll.poll(most if milliseconds < 0 else min(milliseconds, most))
        ]
        if self._wake.descriptor in ready:
            self._wake.clear()
        return ready

    def take(self) -> Optional[Message]:
        # Before the look: messages from before a failure come first.
        failure, now = (
            self._failure,
            time.monotonic(),
        )
        if self._received:
            return self._received.popleft()
        since = self._sending_since
        if failure is None and since and now - since > self._seconds * 2 / 3:
            failure = f"it has not answered for {self._seconds * 2 / 3:.4g} s"
        if failure is None and now - self._heard > self._seconds:
            failure = f"it has said nothing for {self._seconds:.4g} s"
        if failure is not None:
            raise Lost(f"{self._unreachable}: {failure}")
        return None

    def close(self, cut_off: bool) -> None:
        """cut_off: the peer is out of reach: do not wait, and leave the threads in the backend."""
        self._to_send.put(_CLOSE)
        if not cut_off:
            for thread in self._threads:
                thread.join(_LINGER_SECONDS)
        self._wake.close()

    # The threads.

    def _send_all(self) -> None:
        end, following = SendingEnd(self._put), None
        # The other thread raises too, and stores the reason.
        with contextlib.suppress(RuntimeError):
            while True:
                message = following or self._waiting(self._seconds / 3) or _BEAT
                if message is _CLOSE:
                    return
                following = self._waiting(0)
                self._sending_since = time.monotonic()
                end.send(message, following)
                self._sending_since = 0.0
                if message.letter == self._last_sent:
                    return

    def _waiting(self, seconds: float) -> Optional[Message]:
        with contextlib.suppress(queue.Empty):
            return self._to_send.get(timeout=seconds)
        return None

    def _put(self, pieces: List[bytearray]) -> None:
        for work in [
            self._backend.send([_tensor(piece)], self._peer, self._send_tag) for piece in pieces
        ]:
            work.wait(_FOREVER)

    def _get(self, size: int) -> memoryview:
        memory = bytearray(size)
        self._backend.recv([_tensor(memory)], self._peer, self._receive_tag).wait(_FOREVER)
        return memoryview(memory)

    def _receive_all(self) -> None:
        try:
            end, letter = ReceivingEnd(self._get), b""
            while letter != self._last_received:
                message = end.receive()
                letter = message.letter
                self._heard = time.monotonic()
                if letter != _BEAT.letter:
                    self._received.append(message)
                    self._wake.set()
        except (RuntimeError, Malformed) as error:
            self._failure = str(error).partition("] ")[2].partition(". ")[0] or str(error)
            self._wake.set()


def _tensor(memory: bytearray) -> Any:
    return torch.frombuffer(memory, dtype=torch.uint8)


class TorchHub(Hub):
    """The hub for one machine. leader: the relay's rank, pid and host."""

    def __init__(
        self, source: Source, backend: Any, peer: int, tag: int, leader: str, seconds: float
    ) -> None:
        super().__init__(source.ring.handle, leader, source.lose)
        self._source = weakref.ref(source)
        self._link = Link(backend, peer, (tag, tag + 1), seconds, (b"D", b"B"))
        self._peers = [Peer(leader)]
        self.complete = True
        self._cut_off = False
        self._thread.start()

    def _send(self, peer: Any, letter: bytes, body: bytes = b"", data: Any = None) -> None:
        self._link.send(letter, body, data or b"")

    def _poll(self, descriptors: List[int], milliseconds: int) -> List[Any]:
        return self._link.poll(descriptors, milliseconds, True)

    def _listen(self) -> None:
        try:
            for _ in range(TURN_HEARD):
                message = self._link.take() if self._peers else None
                if message is None:
                    return
                self._understand(self._peers[0], *message[:2])
        except (Lost, Malformed) as error:
            self._cut_off = True
            why = str(error) if isinstance(error, Lost) else f"has sent an invalid message: {error}"
            self._drop(self._peers[0], why)

    def _farewell(self) -> Optional[str]:
        source = self._source()
        return source.lost if source is not None else None

    def _close_transport(self) -> None:
        self._link.close(self._cut_off or bool(self._peers))


def make_relay(
    writer: ringcast.Writer,
    backend: Any,
    peer: int,
    tag: int,
    leader: str,
    source: str,
    seconds: float,
) -> Relay:
    """leader, source: this rank and the source, by name."""

    def announce(text: str, died: bool) -> None:
        writer.send(text, 0, tag=NOTICE if died else GONE)

    link = Link(
        backend, peer, (tag + 1, tag), seconds, (b"B", b"D"), f"can't be reached from {leader}"
    )
    return Relay(link, writer, leader, f"the source, {source},", announce)


def cpu_backend(group: Any) -> Any:
    """The group's backend for memory of the CPU, or None."""
    try:
        return group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None


def seconds_of(backend: Any) -> float:
    """The group's timeout."""
    try:
        seconds: float = backend.options._timeout.total_seconds()
        return seconds
    except (AttributeError, RuntimeError):
        return 1800.0
