# SPDX-License-Identifier: Apache-2.0
"""The relay of a MessageQueue (ringcast._group.relay), over ZeroMQ.

    hub = ZmqHub(writer.handle, 2, None, print)  # in the writer's process; readers take hub.address
    link = ReaderLink(hub.address, hub.ipv6, 3)    # on another machine, in the process of rank 3
    hub.wait(60)                                   # until both remote readers are there
    writer.send(...)                               # link.reader.recv() returns it

A machine gets each frame once: the machine's first reader relays into a new ring, and the other
readers there attach to that ring. Which processes share a machine is found by trying: a newcomer
gets the rings of the relays, attaches to a ring if possible, or becomes a relay. Newcomers decide
in turn; else two processes of a machine could both become relays.

    newcomer -> hub                                 hub -> newcomer
    H  hello: rank, pid, host                       W  welcome: the relays' rings, the ring's size
    S  served: by the ring of this relay            D  done: the newcomer is counted
    R  relay: has made this ring                    N  no: why not

The two sides know each other by the address, which has a secret. ZeroMQ's handshake asks for the
secret, and nothing of a connection without it is kept: the hub's public key with CURVE, ZeroMQ's
encryption, so that no third party can read or forge the messages, or a password with PLAIN, without
encryption: for the Unix socket, and where RINGCAST_CURVE is 0 in the writer's environment, for a
private network. Encryption takes a core about 2 ms per MiB on either side, seven times the cost of
plain sending, and 4 µs for a small message. A listener over TCP lets in only so many connections at
a time that have not shown the secret (_Gate).

The hub notices a killed process at once, and after RINGCAST_HEARTBEAT seconds (default 5, in the
environment of each side) a silent machine, a killed process with connections in a forked child, and
a stopped process, which counts as dead.
"""

import collections
import contextlib
import ctypes
import errno
import hmac
import multiprocessing.util
import os
import secrets
import socket
import struct
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

import ringcast
from ringcast._allowed import printable
from ringcast._files import above_the_streams
from ringcast._group.framing import Malformed, pack_words, unpack_words
from ringcast._group.relay import TURN_HEARD, Hub, Peer
from ringcast.vllm import zmq_transport as transport
from ringcast.vllm.zmq_transport import Person, z85, zmq

# The largest message of a reader's side, which sends no frames.
_SMALL_BYTES = 1 << 16
# How many messages of a peer may wait for the hub; then the peer waits.
_KEPT_MESSAGES = 128
_IPC = "ipc://"
_HUB_EVENTS = (
    zmq.EVENT_LISTENING
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)
# How many connections beside the readers' may come over TCP without the secret in so many seconds,
# after which ZeroMQ ends a handshake.
_MOST_STRANGERS, _STRANGER_SECONDS = 64, 10.0
_AT_EXIT_SECONDS = 1.0
# Linux's SO_ATTACH_FILTER and SO_DETACH_FILTER, and the filter (BPF) that drops each packet.
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_DROP = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0), 8)


class _Gate:
    """The door of a listener over TCP. While too many that have not shown the secret have come, the
    kernel drops the packets that would open one more connection, and sends nothing back: who knows
    the secret comes in by TCP's next try, and connections that are open go on.

    ZeroMQ has no such bound: strangers would take all descriptors of the process, and a listener
    without a descriptor for the next one spins.
    """

    def __init__(self, descriptor: int, most: int) -> None:
        self._listener = socket.socket(fileno=above_the_streams(os.dup(descriptor)))
        self._most = most
        # When each of them is over, whether closed before or not.
        self._leave: Deque[float] = collections.deque()
        self._is_shut = False

    def came(self) -> None:
        self._leave.append(time.monotonic() + _STRANGER_SECONDS)
        if len(self._leave) >= self._most and not self._is_shut:
            self._is_shut = self._set(_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(_DROP)))

    def shown(self) -> None:
        """Whoever of them it was."""
        if self._leave:
            self._leave.pop()

    def look(self) -> None:
        while self._leave and self._leave[0] <= time.monotonic():
            self._leave.popleft()
        if self._is_shut and len(self._leave) < self._most:
            self._is_shut = not self._set(_DETACH_FILTER, struct.pack("i", 0))

    def deadline(self) -> Optional[float]:
        return self._leave[0] if self._is_shut and self._leave else None

    def _set(self, option: int, value: bytes) -> bool:
        """False: this kernel has no filters, and ends each handshake in time alone."""
        with contextlib.suppress(OSError):
            self._listener.setsockopt(socket.SOL_SOCKET, option, value)
            return True
        return False

    def close(self) -> None:
        self._listener.close()


class _Process(Peer):
    """A process on another machine, after its hello."""

    def __init__(self, identity: bytes, person: Person, descriptor: int) -> None:
        super().__init__(person)
        self.identity = identity
        self.descriptor = descriptor
        self.handle = ""  # of the ring of a relay
        self.served: List[Person] = []

    def __str__(self) -> str:
        others = (
            f", which receives for {', '.join(map(str, self.served))} too" if self.served else ""
        )
        return f"{self.name}{others}"

    def describe_loss(self, why: str) -> str:
        return f"{self}{',' if self.served else ''} {why}"


class ZmqHub(Hub):
    """Forwards the frames of the ring of `handle`, from now on, to readers on other machines.

    remote_readers: how many will come; nothing is forwarded before. connect_ip: the address of this
    machine to listen at; None: the address that a route outwards would use; ipc://PATH: readers of
    this machine come by a socket in the file system, without CURVE, and the path goes when all have
    come. lost: as of Hub. address: for ReaderLink(); with the address a process can read all
    messages: keep the address secret like a password.

    zmq.ZMQError: connect_ip is no address of this machine. ValueError: an argument, or
    RINGCAST_HEARTBEAT.
    """

    linger_seconds = 5.0
    _takes_newcomers = True

    @staticmethod
    def _copy(data: Any) -> Any:
        return zmq.Frame(data, copy=True)

    def __init__(
        self,
        handle: str,
        remote_readers: int,
        connect_ip: Optional[str],
        lost: Callable[[str], None],
    ) -> None:
        if remote_readers < 1:
            raise ValueError(f"remote_readers must be 1 or more, not {remote_readers}")
        ip = connect_ip or transport.local_ip()
        self._path = ip[len(_IPC) :] if ip.startswith(_IPC) else ""
        self.ipv6 = ":" in ip and not self._path
        self.wanted = remote_readers
        self._processes: Dict[bytes, _Process] = {}
        self._line: Deque[_Process] = collections.deque()
        self._deciding: Optional[_Process] = None
        self._deadline = 0.0
        self._connections: Set[int] = set()
        self._gone: List[_Process] = []
        self._gate: Optional[_Gate] = None
        self._zap: Any = None  # answers ZeroMQ's question whether a password is right
        self._context = zmq.Context()
        try:
            self._open(ip)
            super().__init__(handle, "remote machines", lost)
        except BaseException:
            self._context.destroy(0)
            self._shut()
            raise
        self._thread.start()

    def _open(self, ip: str) -> None:
        self._router = self._context.socket(zmq.ROUTER)
        transport.prepare(self._router, self.ipv6)
        self._router.setsockopt(zmq.MAXMSGSIZE, _SMALL_BYTES)
        self._router.setsockopt(zmq.RCVHWM, _KEPT_MESSAGES)
        keys = None if self._path else transport.new_keys()
        if keys is not None:
            secret = z85.decode(keys[0]).hex()
            self._router.curve_server = True
            self._router.curve_secretkey = keys[1]
        else:
            secret = secrets.token_hex(16)
            self._router.plain_server = True
            self._zap = self._context.socket(zmq.REP)
            self._zap.bind("inproc://zeromq.zap.01")
        self._secret = secret.encode()
        self._monitor = self._router.get_monitor_socket(_HUB_EVENTS)
        try:
            if self._path:
                self._bind_path()
            else:
                self._bind_tcp(f"[{ip}]" if self.ipv6 else ip)
        except zmq.ZMQError as error:
            raise zmq.ZMQError(  # vLLM's error, with more words
                error.errno,
                f"connect_ip (or VLLM_HOST_IP) must be an address of this machine that the remote "
                f"readers reach, and "
                f"{ip!r} can't be listened at: {error.strerror}",
            ) from None
        endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = str(transport.Address(endpoint, secret))

    def _bind_path(self) -> None:
        """For this user alone, by the mode and by the kernel's word on who connects."""
        self._router.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(self._path)
            except OSError:
                self._path = ""  # another's, which stays
                raise
            os.chmod(self._path, 0o600)  # before anybody can connect, and whatever the umask
            listener.listen(self.wanted)
            self._router.setsockopt(zmq.USE_FD, listener.fileno())
            self._router.bind(_IPC + self._path)
            listener.detach()  # ZeroMQ closes it

    def _bind_tcp(self, ip: str) -> None:
        most = _MOST_STRANGERS + self.wanted
        self._router.setsockopt(zmq.HANDSHAKE_IVL, int(_STRANGER_SECONDS * 1000))
        self._router.setsockopt(zmq.BACKLOG, most)
        self._router.bind(f"tcp://{ip}:*")
        for event, descriptor in transport.events(self._monitor):
            if event == zmq.EVENT_LISTENING:
                self._gate = _Gate(descriptor, most)

    # For other threads.

    def connected(self) -> List[Person]:
        relays = list(self._peers)
        return sorted(
            [relay.name for relay in relays]
            + [one for relay in relays for one in list(relay.served)]
        )

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until all remote readers are connected.

        TimeoutError: some are missing. ringcast.ReaderDied: a reader has died.
        RuntimeError("cancelled"): close().
        """
        with self.changed:
            self.changed.wait_for(
                lambda: self.complete or self.over or self.trouble or self._close_by, timeout
            )
            if self.complete:
                return
            if self.over or self._close_by is not None:
                raise RuntimeError("cancelled")
            if self.trouble:
                raise ringcast.ReaderDied(errno.EOWNERDEAD, self.trouble)
        there = self.connected()
        raise TimeoutError(
            f"{len(there)} of {self.wanted} remote readers have connected to "
            f"{self.address.partition('#')[0]} within "
            f"{timeout} s; {self.wanted - len(there)} are missing, there are: "
            f"{', '.join(map(str, there)) or 'none'}. "
            "The output of the missing processes says why"
        )

    def describe(self) -> str:
        """The connected readers, and how many bytes each machine is behind."""
        parts = [
            f"{relay}: {relay.sent - relay.acknowledged} bytes behind"
            for relay in list(self._peers)
        ]
        if not self.complete:
            parts.append(
                f"{self.wanted - len(self.connected())} of {self.wanted} have not come yet"
            )
        return "; ".join(parts) or "no remote reader is connected any more"

    def close(self, linger: Optional[float] = None) -> None:
        exits = linger is None and multiprocessing.util.is_exiting()
        super().close(_AT_EXIT_SECONDS if exits else linger)

    # The transport.

    def _send(self, peer: Any, letter: bytes, body: bytes = b"", data: Any = None) -> None:
        self._router.send(peer.identity, zmq.SNDMORE)
        self._router.send(letter + body, zmq.SNDMORE if data is not None else 0)
        if data is not None:
            self._router.send(data, copy=False)

    def _poll(self, descriptors: List[int], milliseconds: int) -> List[Any]:
        ways = [*descriptors, self._router, self._monitor]
        if self._zap is not None:
            ways.append(self._zap)
        return transport.wait_for(ways, 0 if self._gone else milliseconds)

    def _close_transport(self) -> None:
        self._router.disable_monitor()
        self._monitor.close()
        self._context.destroy(0)
        self._shut()

    def _shut(self) -> None:
        if self._gate is not None:
            self._gate.close()
        self._remove_path()

    def _remove_path(self) -> None:
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _patience(self) -> int:
        patience = super()._patience()
        deadlines = [
            None if self._deciding is None else self._deadline,
            None if self._gate is None else self._gate.deadline(),
        ]
        for deadline in deadlines:
            if deadline is not None:
                left = max(0, int((deadline - time.monotonic()) * 1000) + 1)
                patience = left if patience < 0 else min(left, patience)
        return patience

    def _listen(self) -> None:
        self._look_at_connections()
        if self._gate is not None:
            self._gate.look()
        if self._zap is not None:
            self._answer_zap()
        if self._hear():
            for process in self._gone:
                self._drop(process, transport.OUT_OF_REACH)
            self._gone.clear()
        if self._deciding is not None and time.monotonic() >= self._deadline:
            self._refuse(self._deciding, f"has not answered within {transport.ANSWER_SECONDS} s")

    def _look_at_connections(self) -> None:
        for event, descriptor in transport.events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._connections.add(descriptor)
                if self._gate is not None:
                    self._gate.came()
                continue
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:  # of which connection, ZeroMQ does not say
                if self._gate is not None:
                    self._gate.shown()
                continue
            self._connections.discard(descriptor)
            # Messages from before the loss come first.
            self._gone += [
                process for process in self._processes.values() if process.descriptor == descriptor
            ]

    def _answer_zap(self) -> None:
        """
        ZeroMQ asks for each connection. At "400", the usual refusal, ZeroMQ leaves the end of the
        connection to the other side, for as long as a handshake may take; at an answer that is none
        ZeroMQ ends it at once.
        """
        for _ in range(TURN_HEARD):
            try:
                asked = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            knows = len(asked) == 8 and hmac.compare_digest(asked[7], self._secret)
            self._zap.send_multipart([b"1.0", asked[1], b"200" if knows else b"no", b"", b"", b""])

    def _hear(self) -> bool:
        """True: no more messages."""
        for _ in range(TURN_HEARD):
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return True
            if len(parts) != 2:
                continue
            identity, body = parts[0].bytes, parts[1].bytes
            process = self._processes.get(identity)
            try:
                if process is not None:
                    self._understand(process, body[:1], body[1:])
                elif body[:1] == b"H":
                    self._welcome(identity, body[1:], int(parts[1].get(zmq.SRCFD)))
            except Malformed as error:
                if process is not None:
                    self._refuse(process, f"has sent an invalid message: {error}")
        return False

    # ---- Newcomers ----

    def _welcome(self, identity: bytes, body: bytes, descriptor: int) -> None:
        person, why_not = _unpack_hello(body)
        self._look_at_connections()  # else the number of a closed descriptor could mislead
        if descriptor not in self._connections:
            return
        process = _Process(identity, person, descriptor)
        if not why_not and (self._ended or self._close_by is not None):
            why_not = "the writer has closed its ring"
        if not why_not and self.complete:
            why_not = f"all {self.wanted} remote readers have come already"
        if why_not:
            self._send(process, b"N", pack_words(why=why_not))
            return
        self._processes[identity] = process
        self._line.append(process)
        self._serve_next()

    def _serve_next(self) -> None:
        if self._deciding is None and self._line:
            self._deciding = self._line.popleft()
            self._deadline = time.monotonic() + transport.ANSWER_SECONDS
            self._offer(self._deciding)

    def _offer(self, process: _Process) -> None:
        info = self._reader.info()
        words = {
            "capacity": info.capacity,
            "spill": info.spill_bytes,
            "readers": self.wanted,
            "name": info.name,
        }
        handles = [relay.handle for relay in self._peers]
        self._send(
            process,
            b"W",
            pack_words(relays=handles, pid=os.getpid(), host=socket.gethostname(), **words),
        )

    def _understand(self, peer: Any, letter: bytes, body: Any) -> None:
        if peer.handle:
            super()._understand(peer, letter, body)
        elif letter in (b"S", b"R") and peer is self._deciding:
            self._count(peer, letter, unpack_words(body, handle=str)["handle"])
        else:
            raise Malformed("a message out of turn")

    def _count(self, process: Any, letter: bytes, handle: str) -> None:
        by_handle = {relay.handle: relay for relay in self._peers}
        if letter == b"S" and handle not in by_handle:
            self._offer(process)  # the relay has left meanwhile
            return
        if letter == b"S":
            by_handle[handle].served.append(process.name)
            self._send(by_handle[handle], b"C")
            del self._processes[process.identity]  # the process sends nothing more
        elif handle and handle not in by_handle:
            process.handle = handle
            self._peers.append(process)
        else:
            raise Malformed("a relay with another's ring")
        self._deciding = None
        with self.changed:
            self.complete = len(self.connected()) >= self.wanted
            self.changed.notify_all()
        if self.complete:
            self._remove_path()
        # Last: after this answer the owner may close the hub, and all frames must cross.
        self._send(process, b"D")
        self._serve_next()

    # ---- Departures ----

    def _end(self, why: str) -> None:
        super()._end(why)
        for process in list(self._processes.values()):
            if not process.handle:
                self._refuse(process, "comes too late: the writer has closed its ring")

    def _refuse(self, process: _Process, why: str) -> None:
        self._send(process, b"N", pack_words(why=f"{process.name} {why}"))
        self._drop(process, why)

    def _drop(self, peer: Any, why: str) -> None:
        if self._processes.pop(peer.identity, None) is None:
            return
        if peer in self._line:
            self._line.remove(peer)
        super()._drop(peer, why)
        if peer is self._deciding:
            self._deciding = None
            self._serve_next()


def _unpack_hello(body: bytes) -> Tuple[Person, str]:
    """The newcomer, and the reason to refuse, or ""."""
    words = unpack_words(body, protocol=int, version=str, rank=int, pid=int, host=str)
    person = Person(words["rank"], words["pid"], printable(words["host"], 64))
    if (words["protocol"], words["version"]) != (transport.PROTOCOL, ringcast.__version__):
        theirs = printable(words["version"], 40)
        return (
            person,
            f"ringcast is {theirs} there, but {ringcast.__version__} here: it must be the same "
            f"version",
        )
    return person, ""
