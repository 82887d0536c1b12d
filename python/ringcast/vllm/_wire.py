# SPDX-License-Identifier: Apache-2.0
"""What travels between machines, and the sockets that it travels on.

A message is one letter, then:

    reader's side -> writer's side                      writer's side -> reader's side
    H  hello: token, who I am                           W  welcome: the relays that there are, the ring's size
    S  I am served by that relay's ring                 D  done: you are counted, or goodbye
    R  I have become a relay, this is my ring           C  one more reader is on your ring
    A  so much has arrived in my ring                   F  frames, or a piece of a large one
    L  a reader that I serve has died                   E  the end, and why
    B  goodbye                                          N  no: why not

Frames are told apart by heads of 16 bytes: their kind, the bytes of theirs that are in this message, and the bytes of
the whole frame. Whatever comes in is checked; what is not understood raises Malformed.
"""

import contextlib
import errno
import hmac
import json
import operator
import os
import re
import secrets
import socket
import struct
import threading
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import zmq
from zmq.utils.monitor import recv_monitor_message

import ringcast

PROTOCOL = 1
# The most bytes of frames in a message: a longer one would keep heartbeats waiting on a slow link.
PIECE_BYTES = 1 << 20
# What a message from a reader's side may take: none of them carries frames.
SMALL_BYTES = 1 << 16
# How long another process may keep one waiting that is about to answer.
ANSWER_SECONDS = 60.0
HEARTBEAT_SECONDS = 5.0
_HEAD = struct.Struct("<IIQ")
_ACK = struct.Struct("<Q")
_ADDRESS = re.compile(r"(tcp://[^#]+:\d+)#([0-9a-f]{32})(?:\.([0-9a-f]{64}))?")
_KINDS = (ringcast.KIND_BYTES, ringcast.KIND_TENSORS)


class Malformed(Exception):
    """The other side has sent what it must not."""


# ---- Who and where ---------------------------------------------------------------------------------------------------


class Person(NamedTuple):
    """A process on the other side of a leg."""

    rank: int
    pid: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


def me(rank: int) -> Person:
    return Person(operator.index(rank), os.getpid(), socket.gethostname())


class Address(NamedTuple):
    """Where a writer's side listens, and the secrets by which both sides know each other."""

    endpoint: str
    token: str
    #: the public key, in hexadecimal; empty: nothing is encrypted
    key: str

    def __str__(self) -> str:
        return f"{self.endpoint}#{self.token}" + (f".{self.key}" if self.key else "")


def parse_address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(f"not the address of a writer (tcp://ip:port#token, made by ringcast): {text[:100]!r}")
    return Address(found[1], found[2], found[3] or "")


def local_ip() -> str:
    """The address that a route outwards would use; loopback where there is none. No packet is sent."""
    # Addresses for documentation: nobody has them.
    for family, outside in (socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((outside, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


# ---- Sockets ---------------------------------------------------------------------------------------------------------


def heartbeat_seconds() -> float:
    text = os.environ.get("RINGCAST_HEARTBEAT") or str(HEARTBEAT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 86400:
        raise ValueError(f"the environment's RINGCAST_HEARTBEAT is {text!r}: it must be seconds, such as 5")
    return seconds


def new_keys() -> Optional[Tuple[bytes, bytes]]:
    """Public and secret. None: without CURVE."""
    asked = os.environ.get("RINGCAST_CURVE") or "1"
    if asked not in ("0", "1"):
        raise ValueError(f"the environment's RINGCAST_CURVE is {asked!r}: it must be 0 or 1")
    return zmq.curve_keypair() if asked == "1" and zmq.has("curve") else None


def new_token() -> str:
    return secrets.token_hex(16)


def prepare(sock: Any, ipv6: bool) -> None:
    """What the sockets of both sides have in common."""
    milliseconds = int(heartbeat_seconds() * 1000)
    sock.set_hwm(0)  # acknowledgements bound what is under way
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.IPV6, int(ipv6)),
        (zmq.HEARTBEAT_IVL, max(1, milliseconds // 5)),
        (zmq.HEARTBEAT_TIMEOUT, milliseconds),
        (zmq.HEARTBEAT_TTL, min(milliseconds, 6553500)),  # ZeroMQ's most
        (zmq.TCP_MAXRT, milliseconds),  # no heartbeat is sent while data waits to be
    ):
        sock.setsockopt(option, value)


def connection_events(monitor_socket: Any) -> Iterator[Tuple[int, int]]:
    """What has happened by now: the event, and the connection's descriptor."""
    while monitor_socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        told = recv_monitor_message(monitor_socket, zmq.NOBLOCK)
        yield int(told["event"]), int(told["value"])


def wait_for(ways: List[Any], milliseconds: int = -1) -> List[Any]:
    """Until one of these sockets and descriptors is readable; those that are."""
    return [way for way, _ in zmq.zmq_poll([(way, zmq.POLLIN) for way in ways], milliseconds)]


class Wake:
    """Ends a poll of another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._far, self._near = os.pipe()
        self._closed = False
        os.set_blocking(self._far, False)
        os.set_blocking(self._near, False)

    @property
    def descriptor(self) -> int:
        return self._far

    def set(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it is awake
            if not self._closed:
                os.write(self._near, b"w")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._far, 4096)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._far)
                os.close(self._near)


# ---- Messages --------------------------------------------------------------------------------------------------------


def pack_words(letter: bytes, **words: Any) -> bytes:
    return letter + json.dumps(words).encode()


def unpack_words(body: bytes, **kinds: type) -> Dict[str, Any]:
    """Those of `kinds`, each of its type. Malformed: they are not."""
    try:
        words = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("what it says is no JSON") from None
    if not isinstance(words, dict):
        raise Malformed("what it says is no JSON object")
    for name, kind in kinds.items():
        if type(words.get(name)) is not kind:
            raise Malformed(f"{name!r} is missing in what it says, or no {kind.__name__}")
    return words


def printable(text: str, most: int) -> str:
    """What another machine says, to be shown here."""
    return "".join(character if character.isprintable() else "?" for character in text[:most])


def pack_hello(address: Address, person: Person) -> bytes:
    return pack_words(
        b"H", token=address.token, protocol=PROTOCOL, version=ringcast.__version__, **person._asdict()
    )


def unpack_hello(body: bytes, token: str) -> Tuple[Person, str]:
    """Who it is, and why it can't be served, or nothing. Malformed: it knows no token."""
    words = unpack_words(body, token=str, protocol=int, version=str, rank=int, pid=int, host=str)
    if not hmac.compare_digest(words["token"].encode("utf-8", "replace"), token.encode()):
        raise Malformed("it does not know the token")
    person = Person(words["rank"], words["pid"], printable(words["host"], 64))
    if (words["protocol"], words["version"]) != (PROTOCOL, ringcast.__version__):
        theirs = printable(words["version"], 40)
        return person, f"ringcast is {theirs} there, but {ringcast.__version__} here: it must be the same version"
    return person, ""


def pack_ack(total: int) -> bytes:
    return b"A" + _ACK.pack(total)


def unpack_ack(body: bytes) -> int:
    if len(body) != _ACK.size:
        raise Malformed("an acknowledgement of a wrong length")
    return int(_ACK.unpack(body)[0])


class Head(NamedTuple):
    kind: int
    here: int
    whole: int


def cost(number: int, data: int) -> int:
    """Bytes that `number` frames with `data` bytes count for in a window: empty ones take memory, too."""
    return number * 64 + data


def pack_heads(heads: Iterable[Head]) -> bytes:
    return b"F" + b"".join(_HEAD.pack(*head) for head in heads)


def unpack_heads(body: Any, data: int) -> List[Head]:
    if len(body) % _HEAD.size or not body:
        raise Malformed("heads of frames of a wrong length")
    heads = [Head(*head) for head in _HEAD.iter_unpack(body)]
    if sum(head.here for head in heads) != data:
        raise Malformed("frames of other lengths than their heads say")
    if any(head.kind not in _KINDS or head.here > head.whole for head in heads):
        raise Malformed("a frame's head that can't be")
    return heads


def gone(text: str) -> ringcast.WriterGone:
    return ringcast.WriterGone(errno.EPIPE, text)
