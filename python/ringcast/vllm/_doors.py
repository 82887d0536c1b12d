# SPDX-License-Identifier: Apache-2.0
"""
How the writer of a queue and a reader in another container of the machine meet: over a Unix socket
in /dev/shm.

The reader makes the socket, the door, since only the reader learns of a ring out of reach. The
writer looks for doors only while readers are missing: a queue without such readers has no socket,
no name and no thread. The name of a door follows from the ring's handle, which has a random token,
and from the reader's name. The writer removes the name when the writer has connected.

    writer -> reader    the ring's handle, the writer's proof; later the address of the relay
    reader -> writer    JOINED, when the relay has the reader

An end of the connection before JOINED is a death, on either side. Both sides must be of one user;
the mode of the socket keeps other users out, and each side asks the kernel for the user of the
other side.
"""

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import select
import socket
import struct
import time
from typing import Dict, Iterator, List, Optional, Sequence

import ringcast
from ringcast._files import above_the_streams
from ringcast._group.framing import Wake

FOLDER = "/dev/shm"
_JOINED = b"j"
_MOST_BYTES = 4096
_CREDENTIALS = struct.Struct("=iII")  # pid, user, group


def new_name() -> str:
    """Of a socket in FOLDER, for one use."""
    return f"{FOLDER}/ringcast-{secrets.token_hex(16)}"


def _name_of_door(handle: str, name: str) -> str:
    return f"{FOLDER}/ringcast-{hashlib.sha256(f'{handle} {name}'.encode()).hexdigest()[:32]}"


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _new_socket() -> socket.socket:
    family, kind = socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
    return socket.socket(
        family, kind, fileno=above_the_streams(socket.socket(family, kind).detach())
    )


def _is_of_this_user(sock: socket.socket) -> bool:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())


class Door:
    """The reader's side. handle: of the ring. name: the reader's.

    FileExistsError: a reader of this name has a door. Another OSError: there is no folder for
    doors.
    """

    def __init__(self, handle: str, name: str) -> None:
        self._handle, self._pid = handle, os.getpid()
        self._path = _name_of_door(handle, name)
        self._visitor: Optional[socket.socket] = None
        self._heard = b""
        self._cancelled = False
        self._listener = _new_socket()
        try:
            self._open()
        except BaseException:
            self._listener.close()
            raise
        self._wake = Wake()

    def _open(self) -> None:
        """The name appears when the socket listens: only a dead reader's socket refuses."""
        first = new_name()
        self._listener.bind(first)
        try:
            os.chmod(first, 0o600)
            self._listener.listen(1)
            os.link(first, self._path)
        finally:
            _remove(first)

    @property
    def descriptor(self) -> int:
        """Readable from cancel() on."""
        return self._wake.descriptor

    def wait(self, timeout: Optional[float]) -> str:
        """
        The address of the relay. TimeoutError, ringcast.Cancelled; ringcast.WriterGone: the writer
        has come, and has ended since.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._cancelled:
            address = self._hear() if self._visitor is not None else self._answer()
            if address is not None:
                return address
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            poll = select.poll()
            for way in self._wake.descriptor, self._visitor or self._listener:
                poll.register(way, select.POLLIN)
            poll.poll(None if left is None else int(left * 1000) + 1)
        raise ringcast.Cancelled(errno.ECANCELED, "cancelled")

    def _answer(self) -> Optional[str]:
        with contextlib.suppress(BlockingIOError):
            visitor = socket.socket(fileno=above_the_streams(self._listener.accept()[0].detach()))
            if not _is_of_this_user(visitor):
                visitor.close()
                return None
            visitor.setblocking(False)
            self._visitor, self._heard = visitor, b""
            return self._hear()
        return None

    def _hear(self) -> Optional[str]:
        """The address, or None so far. Any visitor but the writer is sent away."""
        assert self._visitor is not None
        over = False
        with contextlib.suppress(BlockingIOError):
            while not over and len(self._heard) < _MOST_BYTES:
                part = self._visitor.recv(_MOST_BYTES)
                over = not part
                self._heard += part
        first, end, rest = self._heard.partition(b"\n")
        is_writer = bool(end) and hmac.compare_digest(first, self._handle.encode())
        address, complete, _ = rest.partition(b"\n")
        if is_writer and complete:
            return address.decode("ascii", "replace")
        if is_writer and over:
            raise ringcast.WriterGone(
                errno.EPIPE,
                "the writer of the message queue has ended before all its readers were attached",
            )
        if over or end or len(self._heard) >= _MOST_BYTES:
            if not is_writer:
                self._visitor.close()
                self._visitor = None
        return None

    def joined(self) -> None:
        if self._visitor is not None:
            with contextlib.suppress(OSError):
                self._visitor.send(_JOINED)

    def cancel(self) -> None:
        """From any thread: end the wait and all later waits."""
        self._cancelled = True
        self._wake.set()

    def close(self) -> None:
        if os.getpid() == self._pid and self._visitor is None:
            _remove(self._path)
        if self._visitor is not None:
            self._visitor.close()
        self._listener.close()
        self._wake.close()


class Visits:
    """The writer's side: the connections to the doors of the readers, by the readers' names."""

    def __init__(self, handle: str) -> None:
        self._handle = handle
        self._open: Dict[str, socket.socket] = {}

    def go(self, names: Sequence[str]) -> List[str]:
        """Connect to the present doors. Returns the dead readers with a door."""
        dead = []
        for name in names:
            if name not in self._open:
                try:
                    self._visit(name)
                except ConnectionRefusedError:
                    _remove(_name_of_door(self._handle, name))
                    dead.append(name)
                except OSError:  # above all, there is no door
                    continue
        return dead

    def _visit(self, name: str) -> None:
        path = _name_of_door(self._handle, name)
        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(_new_socket())
            sock.connect(path)
            if not _is_of_this_user(sock):
                return
            sock.send(self._handle.encode() + b"\n")
            undo.pop_all()
        _remove(path)
        self._open[name] = sock

    def waiting(self) -> Iterator[str]:
        """The connected readers, without the joined readers."""
        return iter(self._open)

    def tell(self, address: str) -> None:
        for sock in self._open.values():
            with contextlib.suppress(OSError):  # dead: lost() finds that
                sock.send(address.encode() + b"\n")

    def lost(self) -> List[str]:
        """The readers with an end before JOINED."""
        lost = []
        for name, sock in list(self._open.items()):
            try:
                said = sock.recv(1)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            if said != _JOINED:
                lost.append(name)
            self._open.pop(name).close()
        return lost

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
