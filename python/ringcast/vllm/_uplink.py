# SPDX-License-Identifier: Apache-2.0
"""The writer's side of the leg between machines: a reader of the writer's ring that forwards each frame's bytes.

One process of each other machine, its relay, gets them. Who shares a machine is found out by trying: a newcomer is told
the rings of the relays that there are, attaches to the one that it can, or becomes a relay itself. Newcomers decide one
after the other, or two of a machine would both become relays.

Forwarding begins when all have come. A relay acknowledges what it has put into its ring; with WINDOW_BYTES under way to
one of them nothing is forwarded, the writer's ring fills, and holds the writer back.
"""

import collections
import contextlib
import errno
import os
import socket
import sys
import threading
import time
import types
import weakref
from typing import Callable, Deque, Dict, List, Optional, Set

import zmq
from zmq.utils import z85

import ringcast
from ringcast.vllm import _wire
from ringcast.vllm._pieces import LEASES, Message, Outlet
from ringcast.vllm._wire import Malformed, Person

WINDOW_BYTES = 64 << 20
LINGER_SECONDS = 5.0
# Messages that are forwarded before the relays are heard again, and that are heard before more is forwarded.
_TURN_MESSAGES = 16
_TURN_HEARD = 256
# How many are kept of who sends more than is heard, and he waits.
_KEPT_MESSAGES = 128
_MONITORED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class _Peer:
    """A process of another machine that has said who it is."""

    def __init__(self, identity: bytes, person: Person, descriptor: int) -> None:
        self.identity = identity
        self.person = person
        self.descriptor = descriptor
        self.handle = ""  # of its ring, once it is a relay
        self.served: List[Person] = []
        self.sent = 0
        self.acknowledged = 0
        self.left = False

    def __str__(self) -> str:
        others = f", which receives for {', '.join(map(str, self.served))} too" if self.served else ""
        return f"{self.person}{others}"


class Core:
    """What the thread has: no Uplink, so that one that is dropped is collected, and ends the thread."""

    def __init__(self, handle: str, remote_readers: int, ip: str, lost: Callable[[str], None]) -> None:
        self.ipv6 = ":" in ip
        self.wanted = remote_readers
        self.changed = threading.Condition()
        self.complete = self.over = False
        self.trouble = ""
        self._lost = weakref.WeakMethod(lost) if isinstance(lost, types.MethodType) else lambda: lost
        self._pid = os.getpid()
        self._peers: Dict[bytes, _Peer] = {}
        self._line: Deque[_Peer] = collections.deque()
        self._deciding: Optional[_Peer] = None
        self._deadline = 0.0
        self._relays: List[_Peer] = []
        self._connections: Set[int] = set()
        self._gone: List[_Peer] = []
        self._ended = False
        self._close_by: Optional[float] = None
        with contextlib.ExitStack() as undo:
            self._reader = undo.enter_context(ringcast.Reader(handle, name="remote machines", leases=LEASES))
            self._outlet = Outlet(self._reader)
            self._context = zmq.Context()
            undo.callback(self._context.destroy, 0)
            self._listen(ip)
            self._ring = self._reader.fileno()
            self._wake = _wire.Wake()
            undo.pop_all()
        self._thread = threading.Thread(target=self._run, name="ringcast-uplink", daemon=True)
        self._thread.start()

    def _listen(self, ip: str) -> None:
        self._router = self._context.socket(zmq.ROUTER)
        _wire.prepare(self._router, self.ipv6)
        self._router.setsockopt(zmq.MAXMSGSIZE, _wire.SMALL_BYTES)
        self._router.setsockopt(zmq.RCVHWM, _KEPT_MESSAGES)
        keys = _wire.new_keys()
        if keys is not None:
            self._router.curve_server = True
            self._router.curve_secretkey = keys[1]
        self._monitor = self._router.get_monitor_socket(_MONITORED)
        try:
            self._router.bind(f"tcp://[{ip}]:*" if self.ipv6 else f"tcp://{ip}:*")
        except zmq.ZMQError as error:
            raise zmq.ZMQError(  # as it is vLLM's, with more words
                error.errno,
                f"connect_ip (or VLLM_HOST_IP) must be an address of this machine that the remote readers reach, and "
                f"{ip!r} can't be listened at: {error.strerror}",
            ) from None
        endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        key = z85.decode(keys[0]).hex() if keys is not None else ""
        self.address = _wire.Address(endpoint, _wire.new_token(), key)

    # ---- For other threads -------------------------------------------------------------------------------------------

    def connected(self) -> List[Person]:
        relays = list(self._relays)
        return sorted([relay.person for relay in relays] + [one for relay in relays for one in list(relay.served)])

    def wait(self, timeout: Optional[float]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.complete or self.over or self.trouble or self._close_by, timeout)
            if self.complete:
                return
            if self.over or self._close_by is not None:
                raise RuntimeError("cancelled")
            if self.trouble:
                raise ringcast.ReaderDied(errno.EOWNERDEAD, self.trouble)
        there = self.connected()
        raise TimeoutError(
            f"{len(there)} of {self.wanted} remote readers have connected to {self.address.endpoint} within {timeout} "
            f"s; {self.wanted - len(there)} are missing, there are: {', '.join(map(str, there)) or 'none'}. What kept "
            "the others is in their own output"
        )

    def describe(self) -> str:
        relays = list(self._relays)
        parts = [f"{relay}: {relay.sent - relay.acknowledged} bytes behind" for relay in relays]
        if not self.complete:
            parts.append(f"{self.wanted - len(self.connected())} of {self.wanted} have not come yet")
        return "; ".join(parts) or "no remote reader is connected any more"

    def stop(self, linger: float) -> None:
        if os.getpid() != self._pid:
            return  # in a child: its parent's
        with self.changed:
            # Nothing was forwarded before all had come, and nothing will be.
            self._close_by = time.monotonic() + (linger if self.complete else 0.0)
            self.changed.notify_all()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # ---- The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._finished():
                self._turn()
        except Exception as error:
            self._report(f"the leg to other machines has failed: {type(error).__name__}: {error}")
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        finally:
            self._outlet.close()
            self._reader.close()
            self._router.disable_monitor()
            self._monitor.close()
            self._context.destroy(0)
            self._wake.close()
            with self.changed:
                self.over = True
                self.changed.notify_all()

    def _finished(self) -> bool:
        if self._close_by is None:
            return False
        return time.monotonic() >= self._close_by or (self._ended and not self._relays)

    def _turn(self) -> None:
        more = self._forward()
        ways = [self._wake.descriptor, self._router, self._monitor]
        if self._may_forward():
            ways.append(self._ring)
        ready = _wire.wait_for(ways, 0 if more or self._gone else self._patience())
        if self._wake.descriptor in ready:
            self._wake.clear()
        if self._monitor in ready:
            self._look_at_connections()
        if (self._router in ready or self._gone) and self._hear():
            for peer in self._gone:
                self._forget(peer)
            self._gone.clear()
        if self._deciding is not None and time.monotonic() >= self._deadline:
            self._refuse(self._deciding, f"has not answered within {_wire.ANSWER_SECONDS} s")

    def _patience(self) -> int:
        """Milliseconds."""
        deadlines = [self._deadline] if self._deciding is not None else []
        if self._close_by is not None:
            deadlines.append(self._close_by)
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1) if deadlines else -1

    # ---- Frames ------------------------------------------------------------------------------------------------------

    def _may_forward(self) -> bool:
        if self._ended:
            return False
        if self._close_by is not None:
            return True  # what is left, and the end
        return self.complete and all(relay.sent - relay.acknowledged < WINDOW_BYTES for relay in self._relays)

    def _forward(self) -> bool:
        """Whether there may be more."""
        for _ in range(_TURN_MESSAGES):
            if not self._may_forward():
                return False
            closes = self._close_by is not None  # before the look: what was sent before that is seen by it
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
            self._send_on(message)
        return True

    def _send_on(self, message: Message) -> None:
        for relay in self._relays:
            relay.sent += message.cost
            self._router.send(relay.identity, zmq.SNDMORE)
            self._router.send(message.heads, zmq.SNDMORE)
            self._router.send(message.data, copy=False)

    def _end(self, why: str) -> None:
        """The relays tell their readers, and say goodbye."""
        self._ended = True
        for relay in self._relays:
            self._say(relay, _wire.pack_words(b"E", why=why))
        for peer in list(self._peers.values()):
            if not peer.handle:
                self._refuse(peer, "comes too late: the writer has closed its ring")

    # ---- What comes in -----------------------------------------------------------------------------------------------

    def _say(self, peer: _Peer, body: bytes) -> None:
        self._router.send_multipart([peer.identity, body])  # whom it does not reach any more, the monitor tells of

    def _look_at_connections(self) -> None:
        for event, descriptor in _wire.connection_events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._connections.add(descriptor)
                continue
            self._connections.discard(descriptor)
            # What it has said before is heard first.
            self._gone += [peer for peer in self._peers.values() if peer.descriptor == descriptor]

    def _hear(self) -> bool:
        """Whether that was all."""
        for _ in range(_TURN_HEARD):
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return True
            if len(parts) != 2:
                continue
            identity, body = parts[0].bytes, parts[1].bytes
            peer = self._peers.get(identity)
            try:
                if peer is not None:
                    self._understand(peer, body[:1], body[1:])
                elif body[:1] == b"H":
                    self._welcome(identity, body[1:], int(parts[1].get(zmq.SRCFD)))
            except Malformed as error:
                if peer is not None:
                    self._refuse(peer, f"has sent what it must not: {error}")
        return False

    def _welcome(self, identity: bytes, body: bytes, descriptor: int) -> None:
        person, why_not = _wire.unpack_hello(body, self.address.token)
        self._look_at_connections()  # or its descriptor may be taken for one that was closed before
        if descriptor not in self._connections:
            return
        peer = _Peer(identity, person, descriptor)
        if not why_not and (self._ended or self._close_by is not None):
            why_not = "the writer has closed its ring"
        if not why_not and self.complete:
            why_not = f"all {self.wanted} remote readers have come already"
        if why_not:
            self._say(peer, _wire.pack_words(b"N", why=why_not))
            return
        self._peers[identity] = peer
        self._line.append(peer)
        self._serve_next()

    def _serve_next(self) -> None:
        if self._deciding is None and self._line:
            self._deciding = self._line.popleft()
            self._deadline = time.monotonic() + _wire.ANSWER_SECONDS
            self._offer(self._deciding)

    def _offer(self, peer: _Peer) -> None:
        info = self._reader.info()
        self._say(
            peer,
            _wire.pack_words(
                b"W",
                relays=[relay.handle for relay in self._relays],
                capacity=info.capacity,
                spill=info.spill_bytes,
                readers=self.wanted,
                pid=os.getpid(),
                host=socket.gethostname(),
            ),
        )

    def _understand(self, peer: _Peer, letter: bytes, body: bytes) -> None:
        if letter == b"A" and peer.handle:
            total = _wire.unpack_ack(body)
            if not peer.acknowledged <= total <= peer.sent:
                raise Malformed("an acknowledgement of what was not sent")
            peer.acknowledged = total
        elif letter == b"L" and peer.handle:
            self._report(_wire.printable(_wire.unpack_words(body, text=str)["text"], 1000))
        elif letter == b"B" and peer.handle:
            peer.left = True
            self._say(peer, b"D")
            self._forget(peer)
        elif letter in (b"S", b"R") and peer is self._deciding:
            self._count(peer, letter, _wire.unpack_words(body, handle=str)["handle"])
        else:
            raise Malformed("a message out of turn")

    def _count(self, peer: _Peer, letter: bytes, handle: str) -> None:
        by_handle = {relay.handle: relay for relay in self._relays}
        if letter == b"S" and handle not in by_handle:
            self._offer(peer)  # that relay has gone meanwhile
            return
        if letter == b"S":
            by_handle[handle].served.append(peer.person)
            self._say(by_handle[handle], b"C")
            del self._peers[peer.identity]  # it has nothing more to say
        elif handle and handle not in by_handle:
            peer.handle = handle
            self._relays.append(peer)
        else:
            raise Malformed("a relay with another's ring")
        self._deciding = None
        with self.changed:
            self.complete = len(self.connected()) >= self.wanted
            self.changed.notify_all()
        self._say(peer, b"D")  # after that: who hears it may have this closed at once, and is to get what was sent
        self._serve_next()

    # ---- Who goes ----------------------------------------------------------------------------------------------------

    def _refuse(self, peer: _Peer, why: str) -> None:
        self._say(peer, _wire.pack_words(b"N", why=f"{peer.person} {why}"))
        self._forget(peer, why)

    def _forget(self, peer: _Peer, why: str = "has died, or its machine can't be reached any more") -> None:
        if self._peers.pop(peer.identity, None) is None:
            return
        if peer in self._line:
            self._line.remove(peer)
        if peer in self._relays:
            self._relays.remove(peer)
            if not peer.left and not self._ended:
                self._report(f"{peer}{',' if peer.served else ''} {why}")
        if peer is self._deciding:
            self._deciding = None
            self._serve_next()

    def _report(self, text: str) -> None:
        """By a thread of its own: who is told may send, and wait for room that this thread makes."""
        with self.changed:
            self.trouble = self.trouble or text
            self.changed.notify_all()
        lost = self._lost()
        if lost is not None:
            threading.Thread(target=lost, args=(text,), name="ringcast-lost", daemon=True).start()
