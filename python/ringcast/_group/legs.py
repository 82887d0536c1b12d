# SPDX-License-Identifier: Apache-2.0
"""Between machines: one ring on each, and legs from the source's machine to every other one.

A leg runs between the source and the leader of another machine, point to point over the group's CPU backend. At the
source it is a reader of the ring, in a thread, and passes each frame on as it stands there; at the leader a Relay, in a
thread, publishes it into the ring of that machine, of which the leader is a reader like all others. So errors and
notices of deaths cross as any frame does, each machine is as far behind as it is, and nobody waits for the group.

A leg that breaks, since a process died, raises at both ends at once. A machine that disappears is noticed by its
silence: the source says something at least every third of the group's timeout. The waits have no timeout of
torch.distributed's, which would break the group for all others too; a thread at each end looks at the clock.
"""

import contextlib
import os
import struct
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, List, Tuple

import torch

import ringcast
from ringcast._group.endpoint import GONE, NOTICE, Source, WriterEnd

_FRAME, _BEAT, _LOST, _BYE = range(4)
# The first message of each has this size, and holds the whole if that fits.
_FIRST_BYTES = 8192
_HEAD = struct.Struct("<BBxxxxxxQ")  # what it is, the frame's kind, bytes
_FOREVER = timedelta(days=10_000)
_JOIN_SECONDS = 30.0


class Wire:
    """Messages to and from one other rank. peer: its rank in the group. tags: what is sent with, what is received."""

    def __init__(self, backend: Any, peer: int, tags: Tuple[int, int]) -> None:
        self._backend = backend
        self._peer = peer
        self._sends, self._receives = tags
        self._posted: List[Any] = []
        self.pid = os.getpid()  # in a child the connections are its parent's

    def send(self, what: int, data: bytes = b"", kind: int = 0) -> None:
        for work, _ in self._start(what, data, kind):
            work.wait(_FOREVER)

    def post(self, what: int, text: str = "") -> None:
        """Without waiting until it is sent. From any thread, seldom: the memory is kept."""
        with contextlib.suppress(RuntimeError):  # who receives finds out by itself
            self._posted += self._start(what, text.encode(), 0)

    def receive(self) -> Tuple[int, memoryview, int]:
        first = self._take(_FIRST_BYTES)
        what, kind, size = _HEAD.unpack_from(first)
        whole = first[_HEAD.size :] if size <= _FIRST_BYTES - _HEAD.size else self._take(size)
        return what, whole[:size], kind

    def _start(self, what: int, data: bytes, kind: int) -> List[Any]:
        first = bytearray(_FIRST_BYTES)
        _HEAD.pack_into(first, 0, what, kind, len(data))
        if len(data) <= _FIRST_BYTES - _HEAD.size:
            first[_HEAD.size : _HEAD.size + len(data)] = data
            parts = [first]
        else:
            parts = [first, bytearray(data)]
        tensors = [torch.frombuffer(part, dtype=torch.uint8) for part in parts]
        return [(self._backend.send([tensor], self._peer, self._sends), tensor) for tensor in tensors]

    def _take(self, size: int) -> memoryview:
        memory = bytearray(size)
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        self._backend.recv([tensor], self._peer, self._receives).wait(_FOREVER)
        return memoryview(memory)


def _start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _why(error: Exception) -> str:
    return str(error).partition("] ")[2].partition(". ")[0] or str(error)


class Leg:
    """The source's end. leader: its rank, pid and host, in words."""

    def __init__(self, source: Source, wire: Wire, leader: str, seconds: float) -> None:
        self._source = weakref.ref(source)  # its end ends the leg, by closing the ring
        self._wire = wire
        self._leader = leader
        self._seconds = seconds
        self._since = 0.0  # when the message began that is being sent; 0: none is
        self._over = threading.Event()
        self._reader = ringcast.Reader(source.ring.handle, name=leader)
        self._threads = [_start_thread(self._pass_on, "ringcast-leg"), _start_thread(self._listen, "ringcast-leg-up")]
        _start_thread(self._look_at_clock, "ringcast-leg-clock")

    def join(self) -> None:
        """Until all has been sent that is in the ring, which is closed."""
        if os.getpid() == self._wire.pid and not self._over.is_set():
            for thread in self._threads:
                thread.join(_JOIN_SECONDS)

    def _pass_on(self) -> None:
        try:
            while True:
                try:
                    with self._reader.next(self._seconds / 3) as frame:
                        message = _FRAME, bytes(memoryview(frame)), frame.kind
                except TimeoutError:
                    message = _BEAT, b"", 0
                except (ringcast.Error, ValueError):  # all was sent; or the other end has left, or is lost
                    break
                self._since = time.monotonic()
                self._wire.send(*message)
                self._since = 0.0
            source = self._source()
            if source is not None and source.lost is not None:
                self._wire.send(_LOST, source.lost.encode())
            del source
            self._wire.send(_BYE)
        except RuntimeError as error:
            self._break(_why(error))
        finally:
            self._reader.close()

    def _listen(self) -> None:
        """What comes the other way: seldom anything."""
        try:
            what, data, _ = self._wire.receive()
            while what != _BYE:
                self._tell(str(data, "utf-8"))
                what, data, _ = self._wire.receive()
            self._over.set()
            with contextlib.suppress(ValueError):
                self._reader.cancel()  # it need not pass on any more
        except RuntimeError as error:
            self._break(_why(error))

    def _look_at_clock(self) -> None:
        while not self._over.wait(self._seconds / 10):
            since = self._since
            if since and time.monotonic() - since > self._seconds * 2 / 3:
                self._break(f"it has not answered for {self._seconds * 2 / 3:.4g} s")

    def _break(self, why: str) -> None:
        if not self._over.is_set():
            self._over.set()
            self._tell(f"{self._leader} can't be reached: {why}")
            with contextlib.suppress(RuntimeError):  # then it is in next(), which ends soon
                self._reader.close()  # or it holds the ring back
            with contextlib.suppress(ValueError):
                self._reader.cancel()

    def _tell(self, who: str) -> None:
        source = self._source()
        if source is not None:
            source.lose(who)


class Relay(WriterEnd):
    """The other machine's end, of its leader: what the source sends, into the ring here. leader, source: in words."""

    def __init__(
        self, writer: ringcast.Writer, goes_on: bool, wire: Wire, leader: str, source: str, seconds: float
    ) -> None:
        self._has_reported = False
        self._wire = wire
        super().__init__(writer, goes_on)
        self._leader = leader
        self._source_name = source
        self._seconds = seconds
        self._heard = time.monotonic()
        self._publishes = False
        self._over = threading.Event()
        self._thread = _start_thread(self._run, "ringcast-relay")
        _start_thread(self._look_at_clock, "ringcast-relay-clock")

    def leave(self) -> None:
        """Have the source say that it is over. From any thread."""
        if os.getpid() == self._wire.pid and not self._over.is_set():
            self._wire.post(_BYE)

    def close(self) -> None:
        if os.getpid() == self._wire.pid and not self._over.is_set():
            self._wire.post(_BYE)
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            what, data, kind = self._wire.receive()
            while what != _BYE:
                self._publishes = True
                if not self.ring.closed:
                    self._publish(what, data, kind)
                self._heard = time.monotonic()
                self._publishes = False
                what, data, kind = self._wire.receive()
            self._wire.post(_BYE)
        except RuntimeError as error:
            self._break(_why(error))
        finally:
            self._over.set()
            self._unwatch()
            self.ring.close()

    def _publish(self, what: int, data: memoryview, kind: int) -> None:
        try:
            if what == _FRAME:
                span = self.ring.reserve(len(data))
                with memoryview(span) as view:
                    view[:] = data
                span.commit(kind=kind)
            elif what == _LOST:
                self.ring.send(str(data, "utf-8"), tag=NOTICE)
            if self._alarm:
                self._catch_up()
        except ringcast.Error as error:  # the dead are in the way, or there is no memory for a large frame
            self._wire.post(_LOST, f"{self._leader} can't pass on what it is sent: {error}")
            self._unwatch()
            self.ring.close()

    def _look_at_clock(self) -> None:
        while not self._over.wait(self._seconds / 10):
            if not self._publishes and time.monotonic() - self._heard > self._seconds:
                self._break(f"it has said nothing for {self._seconds:.4g} s")

    def _break(self, why: str) -> None:
        if not self._over.is_set():
            self._over.set()
            with contextlib.suppress(RuntimeError, ValueError, ringcast.Error, TimeoutError):
                text = f"the source, {self._source_name}, can't be reached from {self._leader}: {why}"
                self.ring.send(text, self._seconds, tag=GONE)
            self._unwatch()
            with contextlib.suppress(RuntimeError):
                self.ring.close()

    def _is_over(self) -> bool:
        return self._has_reported and not self._goes_on

    def _lose(self, who: str, what: str = "") -> None:
        """A reader here has died: the source tells all, these too."""
        self._has_reported = True
        self._wire.post(_LOST, f"{who} {what}")


def cpu_backend(group: Any) -> Any:
    """What of the group sends tensors of the CPU. None: nothing does."""
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
