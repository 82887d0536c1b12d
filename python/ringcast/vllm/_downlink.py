# SPDX-License-Identifier: Apache-2.0
"""A reader's side of the leg between machines: it finds the ring of its machine, or makes it and becomes the relay,
which puts what comes from the writer's machine into that ring."""

import contextlib
import os
import threading
import time
from typing import Any, Dict, Optional, Tuple

import zmq
from zmq.utils import z85

import ringcast
from ringcast.vllm import _wire
from ringcast.vllm._pieces import Inlet
from ringcast.vllm._wire import Address, Malformed

# A relay acknowledges so many bytes, or what there is when it has had no message for so long: each of these wakes the
# writer's side.
_ACK_BYTES = 1 << 20
_ACK_MILLISECONDS = 50
# Messages that are taken in before it looks at all else.
_TURN_MESSAGES = 64
_GOODBYE_SECONDS = 1.0
# A connection that was lost is not made anew: the writer's side has forgotten this one by then.
_NEVER_MILLISECONDS = 24 * 3600 * 1000
_MONITORED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Connection:
    """A socket to the writer's side."""

    def __init__(self, address: Address, ipv6: bool) -> None:
        self.address = address
        self._lost = False
        self._context = zmq.Context()
        try:
            self.sock = self._context.socket(zmq.DEALER)
            _wire.prepare(self.sock, ipv6)
            self.sock.setsockopt(zmq.RECONNECT_IVL, _NEVER_MILLISECONDS)
            self.sock.setsockopt(zmq.SNDTIMEO, 0)
            if address.key:
                self.sock.curve_serverkey = z85.encode(bytes.fromhex(address.key))
                self.sock.curve_publickey, self.sock.curve_secretkey = zmq.curve_keypair()
            self.monitor = self.sock.get_monitor_socket(_MONITORED)
            self.sock.connect(address.endpoint)
        except BaseException:
            self._context.destroy(0)
            raise

    def lost(self) -> bool:
        self._lost = len(list(_wire.connection_events(self.monitor))) > 0 or self._lost
        return self._lost

    def say(self, body: bytes) -> None:
        """Whom it does not reach any more, the monitor tells of: after damage there may be nothing left to send on."""
        with contextlib.suppress(zmq.Again):
            self.sock.send(body)

    def ask(self, body: bytes, deadline: float) -> Tuple[bytes, Dict[str, Any]]:
        """Send it, and wait for the answer: its letter and words."""
        self.say(body)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"the writer at {self.address.endpoint} has not answered within {_wire.ANSWER_SECONDS} s: is it "
                    "stopped, or does a firewall stand between?"
                )
            _wire.wait_for([self.sock, self.monitor], int(left * 1000) + 1)
            lost = self.lost()
            with contextlib.suppress(zmq.Again):
                return _understand(self.sock.recv_multipart(zmq.NOBLOCK))
            if lost:
                raise _wire.gone(
                    f"there is no writer at {self.address.endpoint}, or it does not speak as its address says: has it "
                    "ended? Is the address that of this run?"
                )

    def close(self) -> None:
        self.sock.disable_monitor()
        self.monitor.close()
        self._context.destroy(0)


def _understand(parts: Any) -> Tuple[bytes, Dict[str, Any]]:
    letter, body = parts[0][:1], parts[0][1:]
    if letter == b"D":
        return letter, {}
    if letter == b"W":
        words = _wire.unpack_words(body, relays=list, capacity=int, spill=int, readers=int, pid=int, host=str)
        return letter, words
    if letter in (b"E", b"N"):
        return letter, _wire.unpack_words(body, why=str)
    raise Malformed("a message that is no answer")


def join(connection: Connection, rank: int) -> "Tuple[ringcast.Reader, Optional[Relay]]":
    """This process's reader of its machine's ring, and the relay, if it has become that."""
    name = f"rank {rank}"
    deadline = time.monotonic() + _wire.ANSWER_SECONDS
    letter, words = connection.ask(_wire.pack_hello(connection.address, _wire.me(rank)), deadline)
    with contextlib.ExitStack() as undo:
        while letter == b"W":
            welcome = words
            writer = None
            reader = _attach(welcome["relays"], name)
            if reader is None:
                writer = undo.enter_context(_make_ring(welcome))
                reader = ringcast.Reader(writer.handle, name=name, keep=True)
            undo.enter_context(reader)
            decided = _wire.pack_words(b"S" if writer is None else b"R", handle=reader.handle)
            letter, words = connection.ask(decided, deadline)
            if letter == b"D":
                undo.pop_all()
                source = f"pid {welcome['pid']} on {_wire.printable(welcome['host'], 64)}"
                return reader, None if writer is None else Relay(connection, writer, rank, source)
            undo.close()  # the relay has gone meanwhile: welcomed again
    why = _wire.printable(str(words.get("why")), 500)
    raise ConnectionRefusedError(f"the writer's side, at {connection.address.endpoint}, refuses: {why}")


def _attach(handles: Any, name: str) -> Optional[ringcast.Reader]:
    """To the ring that is of this machine. None: none is."""
    for handle in handles:
        with contextlib.suppress(ringcast.Error, ValueError, TypeError):
            return ringcast.Reader(handle, name=name, keep=True)
    return None


def _make_ring(words: Dict[str, Any]) -> ringcast.Writer:
    """As large as the writer's. A reader that dies is in nobody's way: the writer's side is told."""
    readers = max(64, words["readers"])
    try:
        return ringcast.Writer(words["capacity"], readers, spill_bytes=words["spill"], on_death="evict")
    except ringcast.Error:  # less memory here: frames that don't fit are told of
        return ringcast.Writer(words["capacity"], readers, on_death="evict")


class Relay:
    """What the thread has: no Downlink, so that one that is dropped is collected, and ends the thread."""

    def __init__(self, connection: Connection, writer: ringcast.Writer, rank: int, source: str) -> None:
        self._connection = connection
        self._sock = connection.sock
        self._writer = writer
        self._inlet = Inlet(writer)
        self._me = _wire.me(rank)
        self._source = source
        self._pid = os.getpid()
        self._taken = self._acknowledged = self._published = 0
        self._why: Optional[str] = None  # the end is near; empty: an orderly one
        self._lost = self._stopping = False
        self._wake = _wire.Wake()
        self._deaths, self._room = writer.fileno(), writer.room_fileno()
        self._thread = threading.Thread(target=self._run, name="ringcast-relay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if os.getpid() != self._pid:
            return  # in a child: its parent's
        self._stopping = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping and not self._turn():
                pass
            if self._stopping and self._why is None:
                self._why = f"{self._me}, which received for this machine, has closed its queue"
        except Malformed as error:
            self._why = f"the writer's side ({self._source}) has sent what it must not: {error}"
        except Exception as error:  # no memory for a frame, above all
            self._why = f"{self._me}, which receives for this machine, has failed: {type(error).__name__}: {error}"
            self._tell(self._why)
        finally:
            self._leave()

    def _turn(self) -> bool:
        """Whether all is done."""
        room = self._inlet.publish()
        if room:
            self._published = self._taken
            room = self._take_in()
        if room and self._why is not None:
            return True
        ways = [self._wake.descriptor, self._deaths, self._sock if room else self._room]
        if not self._lost:
            ways.append(self._connection.monitor)
        behind = self._published != self._acknowledged
        ready = _wire.wait_for(ways, _ACK_MILLISECONDS if behind else -1)
        if behind and not ready:
            self._acknowledge()
        if self._deaths in ready:
            self._look_for_deaths()
        if self._wake.descriptor in ready:
            self._wake.clear()
        # What came before the connection was lost is taken in first.
        self._lost = self._lost or self._connection.lost()
        return False

    def _take_in(self) -> bool:
        """What is there, or a part; False: there is no room for it."""
        for _ in range(_TURN_MESSAGES):
            if self._why is not None:
                break
            try:
                parts = self._sock.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                if self._lost:
                    self._why = f"the writer ({self._source}) has died, or its machine can't be reached any more"
                break
            if len(parts) == 2 and parts[0].bytes[:1] == b"F":
                self._taken += self._inlet.give(parts[0].buffer[1:], parts[1].buffer)
                if not self._inlet.publish():
                    return False
                self._published = self._taken
                if self._published - self._acknowledged >= _ACK_BYTES:
                    self._acknowledge()
            elif [part.bytes for part in parts] == [b"C"]:
                self._look_for_deaths()  # from then on the new one is watched, too
            else:
                letter, words = _understand([part.bytes for part in parts])
                if letter not in (b"E", b"N"):
                    raise Malformed("a message out of turn")
                self._lost = letter == b"N"  # it has forgotten this one: no goodbye
                self._why = _wire.printable(words["why"], 400)  # fits the smallest of rings in UTF-8
        return True

    def _acknowledge(self) -> None:
        self._acknowledged = self._published
        self._connection.say(_wire.pack_ack(self._published))

    def _look_for_deaths(self) -> None:
        while True:
            lost = self._writer.check()
            if lost is None:
                return
            what = "has died" if lost.state == "dead" else "lives, but has written into its ring what it must not"
            self._tell(f"{lost.name} (pid {lost.pid} on {self._me.host}) {what}")

    def _tell(self, text: str) -> None:
        self._connection.say(_wire.pack_words(b"L", text=text))

    def _leave(self) -> None:
        """The readers of this machine receive what came, then hear why nothing more does."""
        try:
            self._inlet.abandon()
            if self._why:
                self._send_last(self._why)
        except ringcast.Error:
            pass  # it is the ring that has failed, and they hear that from the ring
        finally:
            self._writer.close()
            self._say_goodbye()
            self._connection.close()
            self._wake.close()

    def _say_goodbye(self) -> None:
        """Wait until it is heard: else it would be a death."""
        self._connection.say(b"B")
        deadline = time.monotonic() + _GOODBYE_SECONDS
        while not self._lost and (left := deadline - time.monotonic()) > 0:
            _wire.wait_for([self._sock, self._connection.monitor], int(left * 1000) + 1)
            self._lost = self._connection.lost()
            with contextlib.suppress(zmq.Again):
                while self._sock.recv_multipart(zmq.NOBLOCK, copy=False)[0].bytes != b"D":
                    pass
                return

    def _send_last(self, text: str) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                self._writer.send_error(text, 0)
                return
            if self._stopping:
                return
            _wire.wait_for([self._wake.descriptor, self._room, self._deaths])
            self._wake.clear()
            self._look_for_deaths()
