# SPDX-License-Identifier: Apache-2.0
"""The relay between machines: frames of one ring, byte for byte and in order, into a ring on each
other machine.

On the writer's machine a Hub is an ordinary reader of the ring, in a thread, and forwards each
frame once per machine. On every other machine a Relay, in a thread, publishes the frames into a
ring of its own for the readers there. Errors and notices of deaths are frames, and cross like all
others. A transport carries the messages: ZeroMQ (zmq_hub.py and zmq_transport.py in ringcast.vllm)
or torch.distributed (torch_transport.py).

A message is a letter, a body, and for F the frames' bytes:

    relay -> hub                                        hub -> relay
    A  acknowledge: so many bytes are in my ring        F  frames, or a piece of a large frame
    L  loss: a reader here has died                     E  end: nothing more comes, and why
    B  goodbye                                          D  done, the answer to a goodbye
                                                        C  check: one more reader is on your ring

Flow control: the relay acknowledges the bytes in its ring. With WINDOW_BYTES unacknowledged the hub
stops reading, the writer's ring fills, and the writer waits. Loss: both sides report a connection
that breaks or falls silent, by the name of the peer. All input is checked; invalid input raises
Malformed, which ends the connection.

The transport finds silence. torch.distributed has no heartbeats, so torch_transport.py sends its
own; ZeroMQ keeps its heartbeats, because ZeroMQ's own thread answers them while the relay's thread
copies a large frame or waits for room.
"""

import contextlib
import os
import queue
import struct
import sys
import threading
import time
import types
import weakref
from typing import Any, Callable, List, Optional

import ringcast
from ringcast._allowed import printable
from ringcast._group.config import MOST_CHARACTERS
from ringcast._group.framing import LEASES, Inlet, Malformed, Outlet, Wake, pack_words, unpack_words

WINDOW_BYTES = 64 << 20
# Messages that are sent before the hub listens again, or received before a side sends again.
_TURN_SENT = 16
TURN_HEARD = 256
_TURN_TAKEN = 64
# A relay acknowledges so many bytes, or all after so long without a message: each acknowledgement
# wakes the hub.
_ACK_BYTES = 1 << 20
_ACK_MILLISECONDS = 50
_ACK = struct.Struct("<Q")


class Lost(Exception):
    """The connection to the peer is lost. The text says why, and follows the peer's name."""


# ---- The writer's side ---------------------------------------------------------------------------


class Peer:
    """A relay as the hub sees it. `name` names its process."""

    def __init__(self, name: Any) -> None:
        self.name = name
        self.sent = self.acknowledged = 0
        self.left = False

    def describe_loss(self, why: str) -> str:
        return f"{self.name} {why}"


class Hub:
    """
    The thread of the writer's side. A transport's subclass sends and receives; the thread does not
    refer to the owner, which calls close() when collected.

    lost: called with a text that names a dead process, in one thread for all such calls; a method's
    object is held weakly.
    """

    linger_seconds = 30.0
    _takes_newcomers = False  # else the hub ends with its last peer
    _copy: Callable[[Any], Any] = bytes

    def __init__(self, handle: str, name: str, lost: Callable[[str], None]) -> None:
        self.changed = threading.Condition()
        self.complete = self.over = False  # all peers are there; the thread has ended
        self.trouble = ""
        self._lost = (
            weakref.WeakMethod(lost) if isinstance(lost, types.MethodType) else lambda: lost
        )
        self._pid = os.getpid()
        self._peers: List[Any] = []  # the relays that receive: of a transport's class
        self._ended = False
        self._close_by: Optional[float] = None
        self._wake = Wake()
        self._reports: "queue.SimpleQueue[Optional[str]]" = queue.SimpleQueue()
        self._reporter: Optional[threading.Thread] = None
        try:
            self._reader = ringcast.Reader(handle, name=name, leases=LEASES)
        except BaseException:
            self._wake.close()
            raise
        self._ring = self._reader.fileno()
        self._outlet = Outlet(self._reader, type(self)._copy)
        self._thread = threading.Thread(target=self._run, name="ringcast-hub", daemon=True)

    # A transport has these.

    def _send(self, peer: Any, letter: bytes, body: bytes = b"", data: Any = None) -> None:
        """Without waiting. _listen() reports a peer out of reach."""
        raise NotImplementedError

    def _poll(self, descriptors: List[int], milliseconds: int) -> List[Any]:
        """Wait for a descriptor or a message; returns the ready descriptors."""
        raise NotImplementedError

    def _listen(self) -> None:
        """Call _understand() for each message, and _drop() for each lost peer."""
        raise NotImplementedError

    def _farewell(self) -> Optional[str]:
        """The text of the reader's death that closed the ring. None: no death did."""
        return None

    def _close_transport(self) -> None:
        raise NotImplementedError

    # For other threads.

    def close(self, linger: Optional[float] = None) -> None:
        """Forward the frames in the ring, and the end; wait at most `linger` seconds (None: the
        transport's linger_seconds) until the peers have all frames. Then each reader receives the
        rest, and raises WriterGone."""
        if os.getpid() != self._pid:
            return  # the thread is the parent's
        with self.changed:
            # Before all peers are there nothing is forwarded.
            linger = self.linger_seconds if linger is None else linger
            self._close_by = time.monotonic() + (linger if self.complete else 0.0)
            self.changed.notify_all()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._finished():
                self._turn()
        except Exception as error:
            self._report(f"the relay to other machines has failed: {type(error).__name__}: {error}")
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )
        finally:
            self._outlet.close()
            self._reader.close()
            self._close_transport()
            self._wake.close()
            self._reports.put(None)
            with self.changed:
                self.over = True
                self.changed.notify_all()

    def _finished(self) -> bool:
        if not self._peers and not self._takes_newcomers:
            return True
        if self._close_by is None:
            return False
        return time.monotonic() >= self._close_by or (self._ended and not self._peers)

    def _turn(self) -> None:
        more = self._forward()
        if self._finished():  # that was the last: nobody is there to wait for
            return
        descriptors = [self._wake.descriptor, *([self._ring] if self._may_forward() else [])]
        if self._wake.descriptor in self._poll(descriptors, 0 if more else self._patience()):
            self._wake.clear()
        self._listen()

    def _patience(self) -> int:
        """Milliseconds until the next deadline; -1: no deadline."""
        return (
            -1
            if self._close_by is None
            else max(0, int((self._close_by - time.monotonic()) * 1000) + 1)
        )

    def _may_forward(self) -> bool:
        if self._ended:
            return False
        if self._close_by is not None:
            return True  # the rest, and the end
        return self.complete and all(
            peer.sent - peer.acknowledged < WINDOW_BYTES for peer in self._peers
        )

    def _forward(self) -> bool:
        """Whether the ring may have more."""
        for _ in range(_TURN_SENT):
            if not self._may_forward():
                return False
            # Before the look at the ring, which then sees all frames.
            closes = self._close_by is not None
            try:
                message = self._outlet.take()
            except ringcast.WriterGone:
                self._end("")
                return False
            except ringcast.Error as error:
                self._report(f"nothing more reaches the readers on other machines: {error}")
                self._end(f"the writer could not send on to this machine: {error}")
                return False
            if message is None:
                if closes:
                    self._end("")
                return False
            for peer in self._peers:
                peer.sent += message.cost
                self._send(peer, b"F", message.heads, message.data)
        return True

    def _end(self, why: str) -> None:
        """The relays tell their readers, and say goodbye."""
        self._ended = True
        death = self._farewell()
        for peer in self._peers:
            self._send(peer, b"E", pack_words(why=death or why, died=bool(death)))

    def _understand(self, peer: Peer, letter: bytes, body: Any) -> None:
        if letter == b"A":
            if len(body) != _ACK.size:
                raise Malformed("an acknowledgement of a wrong length")
            (total,) = _ACK.unpack(body)
            if not peer.acknowledged <= total <= peer.sent:
                raise Malformed("an acknowledgement of more than was sent")
            peer.acknowledged = total
        elif letter == b"L":
            self._report(printable(unpack_words(body, text=str)["text"], 1000))
        elif letter == b"B":
            peer.left = True
            self._send(peer, b"D")
            self._drop(peer, "")
        else:
            raise Malformed("a message out of turn")

    def _drop(self, peer: Peer, why: str) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
            if not peer.left and not self._ended:
                self._report(peer.describe_loss(why))

    def _report(self, text: str) -> None:
        """In another thread: the callee may send, and wait for room that this thread makes."""
        with self.changed:
            self.trouble = self.trouble or text
            self.changed.notify_all()
        self._reports.put(text)
        if self._reporter is None:
            self._reporter = threading.Thread(
                target=_tell, args=(self._reports, self._lost), name="ringcast-lost", daemon=True
            )
            self._reporter.start()


def _tell(reports: "queue.SimpleQueue[Optional[str]]", callee: Callable[[], Any]) -> None:
    """Each report, until None. callee: gives `lost`, or None if its object is gone."""
    while (text := reports.get()) is not None:
        lost = callee()
        try:
            if lost is not None:
                lost(text)
        except Exception:  # such as a warning that is an error; the next report is told, too
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )
        del lost  # while this thread waits, it holds no object


# ---- The side of another machine -----------------------------------------------------------------


class Relay:
    """
    The thread of the other side. The thread does not refer to the owner, which calls leave() when
    collected.

    link: the transport's connection. me, source: this process and the writer's, by name. announce:
    sends the readers of this machine the text that nothing more comes and why, and whether for a
    death, without waiting (TimeoutError). leaving: the text when this process leaves.
    """

    def __init__(
        self,
        link: Any,
        writer: ringcast.Writer,
        me: Any,
        source: str,
        announce: Callable[[str, bool], None],
        leaving: str = "",
    ) -> None:
        self._link = link
        self._writer = writer
        self._inlet = Inlet(writer)
        self._me, self._source, self._leaving = me, source, leaving
        self._announce = announce
        self._pid = os.getpid()
        self._taken = self._acknowledged = self._published = 0
        self._why: Optional[str] = None  # the end is near; "": an orderly end
        self._died = self._cut_off = self._stopping = False
        self._wake = Wake()
        self._deaths, self._room = writer.fileno(), writer.room_fileno()
        self._thread = threading.Thread(target=self._run, name="ringcast-relay", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """From any thread; does not wait."""
        if os.getpid() == self._pid:  # else the thread is the parent's
            self._stopping = True
            self._wake.set()

    def close(self) -> None:
        self.leave()
        if os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping and not self._turn():
                pass
            if self._stopping and self._why is None:
                self._why = self._leaving
        except Malformed as error:
            self._why = f"{self._source} has sent an invalid message: {error}"
        except Exception as error:  # above all, no memory for a frame
            self._why = (
                f"{self._me}, which receives for this machine, has failed: {type(error).__name__}: "
                f"{error}"
            )
            self._report(self._why)
        finally:
            self._end()

    def _turn(self) -> bool:
        """True: all is done."""
        room = self._inlet.publish()
        if room:
            self._published = self._taken
            room = self._take_in()
        if room and self._why is not None:
            return True
        behind = self._published != self._acknowledged
        descriptors = [self._wake.descriptor, self._deaths, *([] if room else [self._room])]
        ready = self._link.poll(descriptors, _ACK_MILLISECONDS if behind else -1, room)
        if behind and not ready:
            self._acknowledge()
        if self._deaths in ready:
            self._report_deaths()
        if self._wake.descriptor in ready:
            self._wake.clear()
        return False

    def _take_in(self) -> bool:
        """Take in the messages, or some; False: the ring has no room."""
        for _ in range(_TURN_TAKEN):
            if self._why is not None:
                break
            try:
                message = self._link.take()
            except Lost as lost:
                self._cut_off = True
                self._why = f"{self._source} {lost}"[:MOST_CHARACTERS]
                break
            if message is None:
                break
            letter, body, data = message
            if letter == b"F":
                self._taken += self._inlet.give(body, data)
                if not self._inlet.publish():
                    return False
                self._published = self._taken
                if self._published - self._acknowledged >= _ACK_BYTES:
                    self._acknowledge()
            elif letter == b"C":
                self._report_deaths()  # check() also begins to watch the new reader
            elif letter == b"E":
                words = unpack_words(body, why=str, died=bool)
                self._why, self._died = printable(words["why"], MOST_CHARACTERS), words["died"]
            elif letter == b"N":  # the hub has dropped this relay: no goodbye
                self._cut_off = True
                self._why = printable(unpack_words(body, why=str)["why"], MOST_CHARACTERS)
            else:
                raise Malformed("a message out of turn")
        return True

    def _acknowledge(self) -> None:
        self._acknowledged = self._published
        self._link.send(b"A", _ACK.pack(self._published))

    def _report_deaths(self) -> None:
        while (lost := self._writer.check()) is not None:
            what = (
                "has died"
                if lost.state == "dead"
                else "is alive, but wrote invalid data into its ring"
            )
            self._report(f"{lost.name} (pid {lost.pid} on {os.uname().nodename}) {what}")

    def _report(self, text: str) -> None:
        self._link.send(b"L", pack_words(text=text))

    def _end(self) -> None:
        """The readers of this machine receive the rest, then the reason for the end."""
        try:
            self._inlet.abandon()
            if self._why:
                self._announce_end(self._why)
        except ringcast.Error:
            pass  # the ring itself has failed: the readers learn that from the ring
        finally:
            self._writer.close()
            self._say_goodbye()
            self._link.close(self._cut_off)
            self._wake.close()

    def _announce_end(self, text: str) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                return self._announce(text, self._died)
            if self._stopping:
                return
            self._link.poll([self._wake.descriptor, self._room, self._deaths], -1, False)
            self._wake.clear()
            self._report_deaths()

    def _say_goodbye(self) -> None:
        """And wait for the answer; the hub takes an end without goodbye for a death."""
        if self._cut_off:
            return
        self._link.send(b"B")
        deadline = time.monotonic() + self._link.goodbye_seconds
        with contextlib.suppress(Lost, Malformed):
            while (left := deadline - time.monotonic()) > 0:
                while (message := self._link.take()) is not None:  # first: a loss may be known
                    if message[0] == b"D":
                        return
                self._link.poll([], int(left * 1000) + 1, True)
