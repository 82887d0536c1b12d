# SPDX-License-Identifier: Apache-2.0
"""
The relay's messages (ringcast._group.relay) over ZeroMQ: addresses, sockets, and a reader's side.
zmq_hub.py has the writer's side.
"""

import contextlib
import errno
import math
import operator
import os
import re
import socket
import time
from typing import Any, Dict, Generator, Iterator, List, NamedTuple, Optional, Sequence, Tuple

try:
    import zmq as zmq
    from zmq.utils import z85 as z85
    from zmq.utils.monitor import recv_monitor_message
except ImportError as error:
    raise ImportError(
        "a MessageQueue with readers on other machines needs pyzmq: pip install pyzmq"
    ) from error

import ringcast
from ringcast._allowed import printable
from ringcast._group import config
from ringcast._group.framing import Malformed, pack_words, unpack_words
from ringcast._group.names import relay_of
from ringcast._group.relay import Lost, Relay

PROTOCOL = 4
# How long a process may take to answer.
ANSWER_SECONDS = 60.0
# A lost connection stays lost: the hub has forgotten this process by then.
_NEVER_MILLISECONDS = 24 * 3600 * 1000
_LINK_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_ADDRESS = re.compile(r"(tcp://[^#]+:\d+|ipc:///[^#]+)#([0-9a-f]{32}|[0-9a-f]{64})")
OUT_OF_REACH = "has died, or its machine can't be reached any more"


# ---- Names, addresses and sockets ----------------------------------------------------------------


class Person(NamedTuple):
    """A process on one side."""

    rank: int
    pid: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


def me(rank: int) -> Person:
    return Person(operator.index(rank), os.getpid(), socket.gethostname())


class Address(NamedTuple):
    """Where a hub listens, and the secret that both sides know."""

    endpoint: str
    #: in hexadecimal: 16 bytes are a password (PLAIN); 32 are the hub's public key (CURVE), which
    #: a process must know to be understood, and which never crosses the network
    secret: str

    @property
    def is_encrypted(self) -> bool:
        return len(self.secret) == 64

    def __str__(self) -> str:
        return f"{self.endpoint}#{self.secret}"


def parse_address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(
            f"not the address of a writer (tcp://ip:port#secret, of this version of ringcast): "
            f"{text[:100]!r}"
        )
    return Address(found[1], found[2])


def local_ip() -> str:
    """The address of a route outwards, or loopback without such a route. No packet is sent."""
    # Addresses for documentation, which no machine has.
    for family, outside in (socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((outside, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def new_keys() -> Optional[Tuple[bytes, bytes]]:
    """Public and secret. None: without CURVE."""
    return zmq.curve_keypair() if config.curve_is_on() and zmq.has("curve") else None


def prepare(sock: Any, ipv6: bool) -> None:
    milliseconds = int(config.heartbeat_seconds() * 1000)
    sock.set_hwm(0)  # acknowledgements bound what is under way
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.IPV6, int(ipv6)),
        (zmq.HEARTBEAT_IVL, max(1, milliseconds // 5)),
        (zmq.HEARTBEAT_TIMEOUT, milliseconds),
        (zmq.HEARTBEAT_TTL, min(milliseconds, 6553500)),  # ZeroMQ's maximum
        (zmq.TCP_MAXRT, milliseconds),  # while data waits to be sent, there are no heartbeats
    ):
        sock.setsockopt(option, value)


def events(monitor: Any) -> Iterator[Tuple[int, int]]:
    """The events so far: (event, the connection's descriptor)."""
    while monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        told = recv_monitor_message(monitor, zmq.NOBLOCK)
        yield int(told["event"]), int(told["value"])


def wait_for(ways: List[Any], milliseconds: int) -> List[Any]:
    """Wait until a socket or descriptor is readable; returns the readable ones."""
    return [way for way, _ in zmq.zmq_poll([(way, zmq.POLLIN) for way in ways], milliseconds)]


# ---- A reader's side -----------------------------------------------------------------------------


class Connection:
    """A socket to the hub."""

    goodbye_seconds = 1.0

    def __init__(self, address: Address, ipv6: bool) -> None:
        self.address = address
        self._lost = False
        self._context = zmq.Context()
        try:
            self.sock = self._context.socket(zmq.DEALER)
            prepare(self.sock, ipv6)
            self.sock.setsockopt(zmq.RECONNECT_IVL, _NEVER_MILLISECONDS)
            self.sock.setsockopt(zmq.SNDTIMEO, 0)
            if address.is_encrypted:
                self.sock.curve_serverkey = z85.encode(bytes.fromhex(address.secret))
                self.sock.curve_publickey, self.sock.curve_secretkey = zmq.curve_keypair()
            else:
                self.sock.plain_username = b"ringcast"
                self.sock.plain_password = address.secret.encode()
            self.monitor = self.sock.get_monitor_socket(_LINK_EVENTS)
            self.sock.connect(address.endpoint)
        except BaseException:
            self._context.destroy(0)
            raise

    def lost(self) -> bool:
        self._lost = len(list(events(self.monitor))) > 0 or self._lost
        return self._lost

    def send(self, letter: bytes, body: bytes = b"") -> None:
        """
        The monitor reports a hub out of reach: after damage the socket may have no connection.
        """
        with contextlib.suppress(zmq.Again):
            self.sock.send(letter + body)

    def poll(self, descriptors: List[int], milliseconds: int, listens: bool) -> List[Any]:
        ways = [
            *descriptors,
            *([self.sock] if listens else []),
            *([] if self._lost else [self.monitor]),
        ]
        ready = wait_for(ways, milliseconds)
        self.lost()
        return ready

    def take(self) -> Optional[Tuple[bytes, Any, Any]]:
        was_lost = self._lost  # before the look: messages from before the loss come first
        try:
            parts = self.sock.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            if was_lost:
                raise Lost(OUT_OF_REACH) from None
            return None
        letter = parts[0].bytes[:1]
        if len(parts) != (2 if letter == b"F" else 1):
            raise Malformed("a message of a wrong number of parts")
        return letter, parts[0].buffer[1:], parts[-1].buffer

    def ask(self, letter: bytes, body: bytes) -> "Asking":
        """Send a message, and return the answer: letter and words. Yields as long as there is no
        answer."""
        self.send(letter, body)
        while True:
            try:
                answer = self.take()
            except Lost:
                raise ringcast.WriterGone(
                    errno.EPIPE,
                    f"there is no writer at {self.address.endpoint}, or it does not speak as its "
                    f"address says: has it "
                    "ended? Is the address that of this run?",
                ) from None
            if answer is not None:
                return _unpack_answer(answer[0], answer[1])
            yield

    def close(self, cut_off: bool = False) -> None:
        self.sock.disable_monitor()
        self.monitor.close()
        self._context.destroy(0)


Asking = Generator[None, None, Tuple[bytes, Dict[str, Any]]]


def _pack_hello(person: Person) -> bytes:
    return pack_words(protocol=PROTOCOL, version=ringcast.__version__, **person._asdict())


def _unpack_answer(letter: bytes, body: Any) -> Tuple[bytes, Dict[str, Any]]:
    if letter == b"D":
        return letter, {}
    if letter == b"W":
        kinds = {
            "relays": list,
            "capacity": int,
            "spill": int,
            "readers": int,
            "name": str,
            "pid": int,
            "host": str,
        }
        return letter, unpack_words(body, **kinds)
    if letter in (b"E", b"N"):
        return letter, unpack_words(body, why=str)
    raise Malformed("a message that is no answer")


def _attach(handles: Any, rank: int) -> Optional[ringcast.Reader]:
    """Attach to the ring of this machine. None: there is no ring."""
    for handle in handles:
        with contextlib.suppress(ringcast.Error, ValueError, TypeError):
            return config.make_reader(handle, rank)
    return None


def _make_ring(words: Dict[str, Any]) -> ringcast.Writer:
    """
    As large as the writer's. A dead reader blocks no frame: the relay reports the death to the hub.
    """
    readers, name = max(64, words["readers"]), relay_of(words["name"])
    try:
        return config.make_writer(
            words["capacity"], readers, spill_bytes=words["spill"], on_death="evict", name=name
        )
    except ringcast.Error:
        # This machine has less memory: the relay reports a frame that does not fit.
        return config.make_writer(words["capacity"], readers, on_death="evict", name=name)


def _relay(
    connection: Connection, writer: ringcast.Writer, rank: int, welcome: Dict[str, Any]
) -> Relay:
    def announce(text: str, died: bool) -> None:
        writer.send_error(text, 0)

    source = f"the writer (pid {welcome['pid']} on {printable(welcome['host'], 64)})"
    leaving = f"{me(rank)}, which received for this machine, has closed its queue"
    return Relay(connection, writer, me(rank), source, announce, leaving)


class ReaderLink:
    """The side of a reader on another machine: `reader` receives the writer's frames.

    address, ipv6: of the ZmqHub. rank: the reader's name in errors. waits: whether the constructor
    calls join(); else the caller does, until join() returns True.

    ValueError: an invalid address. TimeoutError: no answer to the constructor within
    ANSWER_SECONDS. Other errors as of join().

    When the writer closes, `reader` drains and raises WriterGone; when the writer dies or is out of
    reach, ringcast.SendError, which names the writer, and then WriterGone.
    """

    def __init__(self, address: str, ipv6: bool, rank: int, waits: bool = True) -> None:
        self.reader: Any = None
        self._relay: Optional[Relay] = None  # if this process relays for its machine
        self._connection = Connection(parse_address(address), ipv6)
        self._steps = self._join(self._connection, rank)
        try:
            if waits and not self.join(ANSWER_SECONDS):
                raise TimeoutError(
                    f"the writer at {self._connection.address.endpoint} has not answered within "
                    f"{ANSWER_SECONDS} s: is "
                    "its process stopped, or does a firewall stand between?"
                )
        except BaseException:
            self.close()
            raise

    def join(self, seconds: Optional[float], wake: Sequence[int] = ()) -> bool:
        """
        Go on until the reader is attached (True), until the seconds are over, or until a descriptor
        of `wake` is readable. seconds: None for ever. After an error there is only close().

        ringcast.WriterGone: no writer is there. ConnectionRefusedError: the writer's side refuses
        this process, and says why.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while next(self._steps, self) is None:  # the default: the last step is done
            left = max(0.0, deadline - time.monotonic())
            ready = self._connection.poll(
                [*wake], -1 if left == math.inf else math.ceil(1000 * left), True
            )
            if not left or any(descriptor in ready for descriptor in wake):
                return False
        return True

    def _join(self, connection: Connection, rank: int) -> Generator[None, None, None]:
        """
        Attach to the ring of this machine's relay, or become the relay. Yields as long as an answer
        is missing.
        """
        letter, words = yield from connection.ask(b"H", _pack_hello(me(rank)))
        with contextlib.ExitStack() as undo:
            while letter == b"W":
                welcome, writer = words, None
                reader = _attach(welcome["relays"], rank)
                if reader is None:
                    writer = undo.enter_context(_make_ring(welcome))
                    reader = config.make_reader(writer.handle, rank)
                undo.enter_context(reader)
                role = b"S" if writer is None else b"R"
                letter, words = yield from connection.ask(role, pack_words(handle=reader.handle))
                if letter == b"D":
                    undo.pop_all()
                    self.reader = reader
                    if writer is None:
                        connection.close()
                    else:
                        self._relay = _relay(connection, writer, rank, welcome)
                    return
                # the relay has left meanwhile, and the hub welcomes this process again
                undo.close()
        why = printable(str(words.get("why")), 500)
        raise ConnectionRefusedError(
            f"the writer's side, at {connection.address.endpoint}, refuses: {why}"
        )

    def close(self, linger: Optional[float] = None) -> None:
        """
        If this process is the relay, the machine's other readers drain and raise SendError. linger:
        as of ZmqHub.close(), without effect.
        """
        if self.reader is None:
            self._steps.close()
            self._connection.close()
            return
        self.reader.close()
        if self._relay is not None:
            self._relay.close()
